"""What a mirror's process knows and the clusters do not: records, bytes and times of the copies, and recovery events.

Laws:
- Only what the target has acknowledged is counted, at the one place that all batches pass: Cluster.produce.
- A batch's age and latency are those of its newest record, in ms of this machine's clock; records without a timestamp
  have neither.  Records of translated offsets become visible a little later, when their transaction commits.
- The mirror's own topics are not counted, nor are transactions with which a link fills gaps.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.records.record_batch import read_header
from tolerant_client.tracker.events import RecoveryCounters

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


@dataclass(frozen=True)
class Measured:
    """What happened since the last call of `take`: copies by partition, a histogram of latencies, recovery events by kind."""

    copied: Mapping[TopicPartition, Copied]
    latencies: tuple[int, ...]
    recoveries: Mapping[str, int]


class MeasuredCluster(Cluster):
    """A target that counts what it acknowledges; transactional batches only with `has_transactional_copies`.

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
        self._latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._recovered: Counter[str] = Counter()

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
        if transactional_id is None or self._has_transactional_copies:
            sent = {p: _facts(batch) for p, batch in batches.items() if not p.topic.startswith(OWN_TOPICS)}
            future.add_callback(self._acknowledged, sent, int(self._wall_clock() * 1000))
        return future

    def take(self, *clusters: Cluster) -> Measured:
        """What was measured since the last call; recovery events are those of this cluster and of `clusters`."""
        total = RecoveryCounters()
        for cluster in (self, *clusters):
            total.merge(cluster.manager.recovery_counters)
        events: Counter[str] = Counter()
        for (kind, _, _), count in total.as_dict().items():
            if kind != "completed":
                events[kind] += count
        taken = Measured(self._copied, tuple(self._latencies), dict(events - self._recovered))
        self._copied, self._latencies, self._recovered = {}, [0] * (len(LATENCY_BOUNDS_MS) + 1), events
        return taken

    def _acknowledged(self, sent: Mapping[TopicPartition, tuple[int, int, int]], sent_ms: int, response: Any) -> None:
        now_ms = int(self._wall_clock() * 1000)
        part: ProducedPartition
        for part in response or ():
            facts = sent.get(part.partition)
            if facts is None or part.error_code:
                continue
            records, size, time_ms = facts
            age = latency = Span()
            if time_ms >= 0:
                # A producer's clock may be ahead of ours: a negative time counts as 0.
                age, latency = age.seen(max(0, sent_ms - time_ms)), latency.seen(max(0, now_ms - time_ms))
                self._latencies[bisect.bisect_left(LATENCY_BOUNDS_MS, latency.last)] += 1
            done = Copied(records, size, age, latency)
            known = self._copied.get(part.partition)
            self._copied[part.partition] = done if known is None else known.plus(done)


def _facts(batch: memoryview) -> tuple[int, int, int]:
    header = read_header(batch)
    return header.record_count, header.size, header.max_timestamp
