"""Events of the tracker: frozen values without payloads.

The binding acts upon `Completed`, `Requeued`, `Failed`, `Probe` and `Retired`; all events go to the listener and the counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tolerant_client.errors import OptionError
from tolerant_client.tracker.lifecycle import Verdict


@dataclass(frozen=True, slots=True)
class Event:
    """Base: which API and correlation id it is about (-1 and "" where none)."""

    kind: ClassVar[str] = "event"
    api: str
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """The response to `request` arrived and decoded; `latency` is in seconds since it was first sent."""

    kind = "completed"
    request: Any = field(repr=False)
    response: Any = field(repr=False)
    latency: float


@dataclass(frozen=True, slots=True)
class Reordered(Event):
    """A response came after a later one, and before its request was declared lost."""

    kind = "reordered"


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The broker is done with the request, and its response has not come."""

    kind = "lost"
    reason: str


@dataclass(frozen=True, slots=True)
class Requeued(Event):
    """`request` is to be written again under its new correlation id."""

    kind = "requeued"
    request: Any = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """`request` ends without a response; `error` is set when the connection was closed with one."""

    kind = "failed"
    request: Any = field(repr=False)
    verdict: Verdict
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Orphan(Event):
    """A response that no request waits for: `late`, `duplicate`, `unasked` (acks=0), `unknown` (an id never sent) or
    `misfit` (the id of a request whose response it cannot be)."""

    kind = "orphan"
    cause: str

    @property
    def what(self) -> str:
        """The cause as part of a message."""
        return "that does not decode" if self.cause == "misfit" else f"with a {self.cause} correlation id"


@dataclass(frozen=True, slots=True)
class Probe(Event):
    """The probe `request` is to be written under `correlation_id`."""

    kind = "probe"
    request: Any = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class Retired(Event):
    """The connection is to be closed, which settles every request on it."""

    kind = "retired"
    reason: str
    is_timeout: bool = False


@dataclass(frozen=True, slots=True)
class Storm(Event):
    """Leaders of many partitions moved at once: `partitions` of `known` within `window_ms`.

    `nodes` lost leaders, the one that lost most first.  It belongs to no API and no connection.
    """

    kind = "storm"
    partitions: int
    known: int
    window_ms: float
    nodes: tuple[int, ...]
    message: str


@dataclass(frozen=True, slots=True)
class StormOver(Storm):
    """The end of a storm: no leader moved for `window_ms`; `partitions` moved in all of it."""

    kind = "storm over"


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange(Event):
    """A fetch at `offset` was refused; the log runs from `earliest` to `latest`, so it is a false alarm or believed.

    A truncation that OffsetForLeaderEpoch tells is always believed: the log is the known one up to `latest` (-1: from
    nowhere), and `earliest` is -1.
    """

    kind = "out_of_range"
    topic: str
    partition: int
    offset: int
    earliest: int
    latest: int
    is_believed: bool


@dataclass(frozen=True, slots=True)
class TopicRecreated(Event):
    """A topic was deleted and created again, with another id; a consumer's position `offset` belongs to the deleted one."""

    kind = "recreated"
    topic: str
    partition: int
    offset: int
    former_id: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class CorruptRecords(Event):
    """The records fetched at `offset` are damaged: fetched again, or believed to be damaged in the log."""

    kind = "corrupt"
    topic: str
    partition: int
    offset: int
    is_believed: bool


@dataclass(frozen=True, slots=True)
class CoordinatorUnavailable(Event):
    """The group or transactional id `name` has had no coordinator for `waited_ms`.

    It belongs to `partition` of the internal topic `topic` (-1 if that cannot be seen), whose `leader` (-1: none),
    `replicas` and `isr` are node ids.
    """

    kind = "coordinator unavailable"
    name: str
    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    waited_ms: float
    message: str


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """The client has left the cluster with the id `former_cluster` for the one that `servers` lead to."""

    kind = "moved"
    former_cluster: str
    servers: str


KINDS: Final = (
    *sorted(
        of.kind for of in tuple(vars().values()) if isinstance(of, type) and issubclass(of, Event) and of is not Event
    ),
    *(f"{Orphan.kind}:{cause}" for cause in ("late", "duplicate", "unasked", "unknown", "misfit")),
)
Listener = Callable[[Event], None]


class RecoveryCounters:
    """Counts events by (kind, api, node); `of()` sums over the parts that are not given."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, Any]] = Counter()

    def add(self, event: Event, node: Any) -> None:
        """Counts one event of the connection to `node`."""
        kind = f"{event.kind}:{event.cause}" if isinstance(event, Orphan) else event.kind
        self._counts[kind, event.api, node] += 1

    def completed(self, api: str, node: Any) -> None:
        """Counts a plain completion without an event object of its own."""
        self._counts["completed", api, node] += 1

    def of(self, kind: str, api: str | None = None, node: Any = None) -> int:
        """How often `kind` happened, for all APIs and nodes or for the given ones.

        "orphan" counts orphans of all causes, "orphan:late" those of one.  Raises OptionError for a kind that there is not.
        """
        if kind not in KINDS:
            raise OptionError(f"No event has the kind {kind!r}: give one of {', '.join(KINDS)}")
        return sum(
            n
            for (k, a, node_id), n in self.as_dict().items()
            if k.split(":")[0] == kind.split(":")[0]
            and (":" not in kind or k == kind)
            and (api is None or a == api)
            and (node is None or node_id == node)
        )

    def merge(self, other: RecoveryCounters) -> None:
        """Adds all that `other` counted."""
        self._counts.update(other.as_dict())

    def as_dict(self) -> dict[tuple[str, str, Any], int]:
        """A copy of all counts, by (kind, api, node); may be taken by any thread."""
        return dict(self._counts)
