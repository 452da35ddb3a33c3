"""What can happen to an answer on its way from broker to client, as values, and who is hit when.

- A fault is a frozen value; how far its schedule has come is kept in a FaultPlan, never in the fault.
- Faults are asked in their order; the first that takes an answer has it, and the later ones do not count it.
- The same faults, seed and order of answers make the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tolerant_client.testing.answers import API_NAMES

# A fault for every API leaves these alone: without them there is no connection to try anything on.
SPARED_APIS = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})


@dataclass(frozen=True)
class Fault:
    """Base of the faults: which answers are hit.

    `api` is an API's name as Kafka spells it, None for every API but ApiVersions and SASL.  With `probability`
    each such answer is hit by chance, drawn from `seed` (default: from the proxy's seed and the fault's place).
    Otherwise the schedule is exact: `after` answers pass, then every `every`-th is hit, `count` in all (None:
    no end).  With `lasts` every answer that follows on the same connection is hit as well, of whatever API: a
    connection broken for good.  Raises ValueError for values that mean nothing.
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
            raise ValueError(f"{self.name}: api is {self.api!r}, which is no Kafka API: spell it like Fetch or Produce")
        if self.probability is not None:
            if not 0.0 <= self.probability <= 1.0:
                raise ValueError(f"{self.name}: probability is {self.probability}: it lies between 0 and 1")
            if self.count is not None or self.after != 0 or self.every != 1:
                raise ValueError(f"{self.name}: give either probability or a schedule (count, after, every), not both")
        elif self.seed is not None:
            raise ValueError(f"{self.name}: seed without probability has no effect: leave it out")
        if self.count is not None and self.count < 0:
            raise ValueError(f"{self.name}: count is {self.count}: it is 0 or more, or None for no end")
        if self.after < 0:
            raise ValueError(f"{self.name}: after is {self.after}: it is 0 or more")
        if self.every < 1:
            raise ValueError(f"{self.name}: every is {self.every}: it is 1 or more")

    @property
    def name(self) -> str:
        """The fault's name in the proxy's counters."""
        return type(self).__name__

    def concerns(self, api: str) -> bool:
        """Whether answers of this API are counted and may be hit."""
        return api not in SPARED_APIS if self.api is None else api == self.api


@dataclass(frozen=True)
class Drop(Fault):
    """The answer never arrives; the request has been carried out."""


@dataclass(frozen=True)
class Duplicate(Fault):
    """The answer arrives twice, one right after the other."""


@dataclass(frozen=True)
class Reorder(Fault):
    """The answer arrives after the one that follows it on the same connection.

    It is held until that one has been forwarded, which itself is left alone.  If none comes within 50 ms, it is
    let go, counts as not hit, and the next answer is tried instead.
    """


@dataclass(frozen=True)
class RewriteCorrelationId(Fault):
    """The answer's correlation id is changed by `delta`, in 32 bits."""

    delta: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta % (1 << 32) == 0:
            raise ValueError(f"{self.name}: delta is {self.delta}, which changes nothing")


@dataclass(frozen=True)
class Stale(Fault):
    """Before the answer, an earlier one of the same connection arrives once more.

    It is the last one of at most 64 KiB; where there is none yet, the answer is neither hit nor counted.
    """


@dataclass(frozen=True)
class Truncate(Fault):
    """The last `cut` bytes are missing and the frame's length agrees, so the body ends too early.

    `cut` None is half of the body; more than the body is all of it.
    """

    cut: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut is not None and self.cut < 1:
            raise ValueError(f"{self.name}: cut is {self.cut}: it is 1 byte or more, or None for half of the body")


@dataclass(frozen=True)
class BadLength(Fault):
    """The frame's length is replaced by `length`; the default is none that a frame can have."""

    length: int = -7

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -(1 << 31) <= self.length < 1 << 31:
            raise ValueError(f"{self.name}: length is {self.length}: it is a 32-bit number")


@dataclass(frozen=True)
class Corrupt(Fault):
    """One byte is changed: anywhere in the "body", or where the "records" of a Fetch answer are.

    "records" is the body after its first 256 bytes, or its second half if it is not that long.
    """

    where: Literal["records", "body"] = "records"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.where not in ("records", "body"):
            raise ValueError(f"{self.name}: where is {self.where!r}: it is 'records' or 'body'")


@dataclass(frozen=True)
class Stall(Fault):
    """The answer, and all behind it on the connection, arrive `seconds` later."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.seconds < float("inf"):
            raise ValueError(f"{self.name}: seconds is {self.seconds}: it is 0 or more")


@dataclass(frozen=True)
class Reset(Fault):
    """Instead of the answer the client gets a connection reset (RST)."""


@dataclass(frozen=True)
class ErrorCode(Fault):
    """The answer is valid and reports `error_code` for all that it is about; the request has been carried out.

    The code is set per partition, topic, group or coordinator where the answer has them, else at its top, and
    what a broker leaves empty beside an error is emptied (the records of Fetch, the partitions of Metadata).
    An answer that has no place for it, or a version that kafka-python does not know, is not hit.
    """

    error_code: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -(1 << 15) <= self.error_code < 1 << 15 or self.error_code == 0:
            raise ValueError(f"{self.name}: error_code is {self.error_code}: it is a 16-bit number, and 0 is no error")


class Turn:
    """A fault and how far its schedule has come."""

    def __init__(self, fault: Fault, rng: random.Random) -> None:
        self.fault = fault
        self.rng = rng
        self._seen = 0
        self._hit = 0

    def take(self) -> bool:
        """Count one answer; whether it is hit."""
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
        """The answer taken last could not be hit after all: the next one is due instead."""
        if self.fault.probability is None:
            self._seen -= 1
            self._hit -= 1


class FaultPlan:
    """The faults of a proxy with their schedules; used by one thread."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        self.faults = tuple(faults)
        self._turns = []
        for place, fault in enumerate(self.faults):
            if not isinstance(fault, Fault):
                raise ValueError(f"{fault!r} is no fault: see tolerant_client.testing.faults")
            self._turns.append(Turn(fault, random.Random(f"{seed}/{place}" if fault.seed is None else fault.seed)))
        self.wants_history = any(isinstance(fault, Stale) for fault in self.faults)

    def choose(self, api: str, body_size: int, has_history: bool) -> Turn | None:
        """The fault that takes this answer, None for most.

        `body_size` is in bytes after the correlation id; an answer that a fault cannot be done to is not counted
        by it.
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
