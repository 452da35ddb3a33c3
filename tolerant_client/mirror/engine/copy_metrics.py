"""What a mirror's process knows and the clusters do not: records, bytes and times of the copies, and recovery events.

Laws:
- Only what the target has acknowledged is counted, at the one place that all batches pass: Cluster.produce.  What was
  produced in a transaction counts once that is committed: an aborted one has copied nothing.
- A batch's age and latency are those of its newest record, in ms of this machine's clock; records without a timestamp
  have neither.  The latency ends when the target shows the record.
- The mirror's own topics are not counted, nor are transactions with which a link fills gaps.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import FETCH, PRODUCE
from tolerant_client.cluster.fetch import FetchResult
from tolerant_client.cluster.produce import ProduceResult
from tolerant_client.mirror.batches.gaps import is_filler_batch
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.records.record_batch import read_header

# Upper bounds of the latency histogram in ms; a last bucket counts what is above them.
LATENCY_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)


class Span(NamedTuple):
    """Observed times in ms: how many, their sum, the least, the greatest and the last."""

    number: int = 0
    total: int = 0
    least: int = 0
    greatest: int = 0
    last: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.number if self.number else 0.0

    def seen(self, ms: int) -> Span:
        """This span with one more time."""
        return self.plus(Span(1, ms, ms, ms, ms))

    def plus(self, later: Span) -> Span:
        """This span with a later one."""
        if not (self.number and later.number):
            return later if later.number else self
        return Span(
            self.number + later.number,
            self.total + later.total,
            min(self.least, later.least),
            max(self.greatest, later.greatest),
            later.last,
        )


class Copied(NamedTuple):
    """What the target has acknowledged of one partition: records, stored bytes, ages at the append, latencies."""

    records: int = 0
    bytes: int = 0
    age: Span = Span()
    latency: Span = Span()

    def plus(self, later: Copied) -> Copied:
        """The sum of this and what was copied later."""
        return Copied(
            self.records + later.records,
            self.bytes + later.bytes,
            self.age.plus(later.age),
            self.latency.plus(later.latency),
        )


class _Sent(NamedTuple):
    """A batch that was sent."""

    partition: TopicPartition
    records: int
    size: int
    newest_ms: int
    sent_ms: int


@dataclass(frozen=True)
class Measured:
    """What happened since the last call of `take`: copies by partition, a histogram of latencies, recovery events by kind.

    `throttles` are the throttle times of responses (KIP-219), in ms: of those to "produce" and to "fetch".
    """

    copied: Mapping[TopicPartition, Copied]
    latencies: tuple[int, ...]
    recoveries: Mapping[str, int]
    throttles: Mapping[str, Span] = field(default_factory=dict)


class MeasuredCluster(Cluster):
    """A target that counts what it acknowledges; transactional batches only with `has_transactional_copies`.  A source has no copies.

    `wall_clock` returns seconds since 1970.
    """

    def __init__(
        self,
        *args: Any,
        has_transactional_copies: bool = False,
        wall_clock: Callable[[], float] = time.time,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._has_transactional_copies = has_transactional_copies
        self._wall_clock = wall_clock
        self._copied: dict[TopicPartition, Copied] = {}
        self._open: dict[str, list[_Sent]] = {}  # acknowledged, by transactional id
        self._latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._recovered: Counter[str] = Counter()
        self._throttles: dict[str, Span] = {}

    def produce(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, memoryview],
        *args: Any,
        transactional_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Cluster.produce, measured."""
        future = super().produce(node_id, batches, *args, transactional_id=transactional_id, **options)
        future.add_callback(self._throttled, PRODUCE)
        if transactional_id is None or self._has_transactional_copies:
            now_ms = int(self._wall_clock() * 1000)
            own = (_sent(p, batch, now_ms) for p, batch in batches.items() if not p.topic.startswith(OWN_TOPICS))
            sent = [each for each in own if each is not None]
            future.add_callback(self._acknowledged, sent, transactional_id)
        return future

    async def send(self, request: Any, node_id: int | str | None = None) -> Any:
        """Cluster.send; the ends of transactions, and throttles of fetches, are noted."""
        response = await super().send(request, node_id)
        if isinstance(response, FetchResult):
            self._throttled(FETCH, response)
        if isinstance(request, (EndTxnRequest, InitProducerIdRequest)) and not response.error_code:
            ended = self._open.pop(request.transactional_id, [])  # InitProducerId aborts what was open
            if isinstance(request, EndTxnRequest) and request.committed:
                self._count(ended)
        return response

    def take(self, *clusters: Cluster) -> Measured:
        """What was measured since the last call; recovery events and throttles are those of this cluster and of `clusters`."""
        throttles: dict[str, Span] = {}
        events: Counter[str] = Counter()
        for cluster in (self, *clusters):
            for (kind, _, _), count in cluster.manager.recovery_counters.as_dict().items():
                if kind != "completed":
                    events[kind] += count
            if isinstance(cluster, MeasuredCluster):
                throttles, cluster._throttles = spans_together([throttles, cluster._throttles]), {}
        taken = Measured(self._copied, tuple(self._latencies), dict(events - self._recovered), throttles)
        self._copied, self._latencies, self._recovered = {}, [0] * (len(LATENCY_BOUNDS_MS) + 1), events
        return taken

    def _throttled(self, kind: str, response: ProduceResult | FetchResult | None) -> None:
        if response is not None:  # with acks=0
            self._throttles[kind] = self._throttles.get(kind, Span()).seen(response.throttle_time_ms)

    def _acknowledged(self, sent: Sequence[_Sent], transactional_id: str | None, response: Any) -> None:
        appended = {part.partition for part in response or () if not part.error_code}
        found = [each for each in sent if each.partition in appended]
        if transactional_id is None:
            self._count(found)
        else:
            self._open.setdefault(transactional_id, []).extend(found)

    def _count(self, copied: Iterable[_Sent]) -> None:
        now_ms = int(self._wall_clock() * 1000)
        for partition, records, size, time_ms, sent_ms in copied:
            age = latency = Span()
            if time_ms >= 0:
                # A producer's clock may be ahead of ours: a negative time counts as 0.
                age, latency = age.seen(max(0, sent_ms - time_ms)), latency.seen(max(0, now_ms - time_ms))
                self._latencies[bisect.bisect_left(LATENCY_BOUNDS_MS, latency.last)] += 1
            done = Copied(records, size, age, latency)
            known = self._copied.get(partition)
            self._copied[partition] = done if known is None else known.plus(done)


def spans_together(found: Iterable[Mapping[str, Span]]) -> dict[str, Span]:
    """The sums of spans by name."""
    total: dict[str, Span] = {}
    for spans in found:
        total.update({name: total.get(name, Span()).plus(span) for name, span in spans.items()})
    return total


def _sent(partition: TopicPartition, batch: memoryview, now_ms: int) -> _Sent | None:
    """None for filler: it is no record of the source."""
    header = read_header(batch)
    if is_filler_batch(header, batch):
        return None
    return _Sent(partition, header.record_count, header.size, header.max_timestamp, now_ms)
