"""The faults that can hit a response between broker and client, as values, and the schedule of their hits.

- A fault is a frozen value; a FaultPlan keeps the progress of its schedule, never the fault itself.
- Each response is offered to the faults in their order; the first that takes it hits it, and later ones do not count it.
- The same faults, seed and order of responses make the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tolerant_client.testing.responses import API_NAMES

# A fault for every API spares these: without them there is no connection to test.
SPARED_APIS = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})


@dataclass(frozen=True)
class Fault:
    """Base of the faults: it selects the responses to hit.

    `api` is an API's name as Kafka spells it, None for every API except ApiVersions and SASL.  With `probability`
    each such response is hit at random, drawn from `seed` (default: the proxy's seed and the fault's position).
    Otherwise the schedule is exact: `after` responses pass, then every `every`-th is hit, `count` in all (None:
    no limit).  With `lasts` every later response on the same connection is hit too, of any API: the connection
    stays broken.  Raises ValueError for invalid values.
    """

    api: str | None = field(default=None, kw_only=True)
    probability: float | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    count: int | None = field(default=None, kw_only=True)
    after: int = field(default=0, kw_only=True)
    every: int = field(default=1, kw_only=True)
    lasts: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.api is not None and self.api not in API_NAMES:
            raise ValueError(f"{self.name}: api is {self.api!r}, not a Kafka API: spell it like Fetch or Produce")
        if self.probability is not None:
            if not 0.0 <= self.probability <= 1.0:
                raise ValueError(f"{self.name}: probability is {self.probability}: it must be between 0 and 1")
            if self.count is not None or self.after != 0 or self.every != 1:
                raise ValueError(f"{self.name}: give either probability or a schedule (count, after, every), not both")
        elif self.seed is not None:
            raise ValueError(f"{self.name}: seed without probability has no effect: remove it")
        if self.count is not None and self.count < 0:
            raise ValueError(f"{self.name}: count is {self.count}: it must be 0 or more, or None for no limit")
        if self.after < 0:
            raise ValueError(f"{self.name}: after is {self.after}: it must be 0 or more")
        if self.every < 1:
            raise ValueError(f"{self.name}: every is {self.every}: it must be 1 or more")

    @property
    def name(self) -> str:
        """The fault's name in the proxy's counters."""
        return type(self).__name__

    def concerns(self, api: str) -> bool:
        """Whether responses of this API are counted and may be hit."""
        return api not in SPARED_APIS if self.api is None else api == self.api


@dataclass(frozen=True)
class Drop(Fault):
    """The response never arrives; the broker has carried out the request."""


@dataclass(frozen=True)
class Duplicate(Fault):
    """The response arrives twice in a row."""


@dataclass(frozen=True)
class Reorder(Fault):
    """The response arrives after the next one on the same connection.

    The proxy holds it until it has forwarded the next one, which no fault hits.  If none comes within 50 ms, the
    held response is forwarded and counts as not hit, and the fault tries the next response instead.
    """


@dataclass(frozen=True)
class RewriteCorrelationId(Fault):
    """`delta` is added to the response's correlation id, in 32 bits."""

    delta: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta % (1 << 32) == 0:
            raise ValueError(f"{self.name}: delta is {self.delta}, which changes nothing")


@dataclass(frozen=True)
class Stale(Fault):
    """Before the response, an earlier response of the same connection arrives again.

    It is the last one of at most 64 KiB; if there is none yet, the response is neither hit nor counted.
    """


@dataclass(frozen=True)
class Truncate(Fault):
    """The last `cut` bytes are missing and the frame's length is adjusted, so the body ends too early.

    `cut` None is half of the body; a value above the body's size cuts all of it.
    """

    cut: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut is not None and self.cut < 1:
            raise ValueError(f"{self.name}: cut is {self.cut}: it must be 1 byte or more, or None for half of the body")


@dataclass(frozen=True)
class BadLength(Fault):
    """The frame's length is replaced by `length`; the default is impossible for a frame."""

    length: int = -7

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -(1 << 31) <= self.length < 1 << 31:
            raise ValueError(f"{self.name}: length is {self.length}: it must be a 32-bit number")


@dataclass(frozen=True)
class Corrupt(Fault):
    """One byte is changed: anywhere in the "body", or in the part where the "records" of a Fetch response are.

    "records" is the body after its first 256 bytes, or its second half if it is not longer than that.
    """

    where: Literal["records", "body"] = "records"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where not in ("records", "body"):
            raise ValueError(f"{self.name}: where is {self.where!r}: it must be 'records' or 'body'")


@dataclass(frozen=True)
class Stall(Fault):
    """The response, and all later ones on the connection, arrive `seconds` later."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.seconds < float("inf"):
            raise ValueError(f"{self.name}: seconds is {self.seconds}: it must be 0 or more")


@dataclass(frozen=True)
class Reset(Fault):
    """The client gets a connection reset (RST) instead of the response."""


@dataclass(frozen=True)
class ErrorCode(Fault):
    """The response is valid and reports `error_code` throughout; the broker has carried out the request.

    The code is set per partition, topic, group or coordinator if the response has them, else at the top level;
    fields that a broker leaves empty with an error are emptied (records of Fetch, partitions of Metadata).
    A response without an error field, or of a version that kafka-python does not know, is not hit.
    """

    error_code: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.error_code, int) or not -(1 << 15) <= self.error_code < 1 << 15 or self.error_code == 0:
            raise ValueError(
                f"{self.name}: error_code is {self.error_code!r}: it must be a 16-bit number, and not 0, as the errno of an error of kafka.errors"
            )


class Turn:
    """A fault and the progress of its schedule."""

    def __init__(self, fault: Fault, rng: random.Random) -> None:
        self.fault = fault
        self.rng = rng
        self._seen = 0
        self._hit = 0

    def take(self) -> bool:
        """Count one response; returns whether it is hit."""
        fault = self.fault
        if fault.probability is not None:
            return self.rng.random() < fault.probability
        if fault.count is not None and self._hit >= fault.count:
            return False
        place = self._seen - fault.after
        self._seen += 1
        if place < 0 or place % fault.every:
            return False
        self._hit += 1
        return True

    def give_back(self) -> None:
        """Undo the last take: the response could not be hit, and the next one is due instead."""
        if self.fault.probability is None:
            self._seen -= 1
            self._hit -= 1


class FaultPlan:
    """The faults of a proxy with their schedules; used by one thread."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        if isinstance(faults, Fault):
            raise ValueError(f"faults is one fault; give a list: faults=[{faults.name}(...)]")
        self.faults = tuple(faults)
        self._turns = []
        for place, fault in enumerate(self.faults):
            if not isinstance(fault, Fault):
                raise ValueError(f"{fault!r} is not a fault: see tolerant_client.testing.faults")
            self._turns.append(Turn(fault, random.Random(f"{seed}/{place}" if fault.seed is None else fault.seed)))
        self.wants_history = any(isinstance(fault, Stale) for fault in self.faults)

    def choose(self, api: str, body_size: int, has_history: bool) -> Turn | None:
        """The fault that takes this response, None for most responses.

        `body_size` counts the bytes after the correlation id.  A fault does not count responses that it cannot hit.
        """
        for turn in self._turns:
            fault = turn.fault
            if not fault.concerns(api):
                continue
            if isinstance(fault, Stale) and not has_history:
                continue
            if isinstance(fault, Truncate | Corrupt) and body_size == 0:
                continue
            if turn.take():
                return turn
        return None
