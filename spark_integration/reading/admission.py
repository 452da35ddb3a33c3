"""How much of the available data goes into one micro-batch.  Pure: offsets by partition, time is an argument.

The rules are exactly those of KafkaMicroBatchStream.scala (rateLimit,
delayBatch, verifyEndOffsetForTriggerAvailableNow), so that a query keeps its batches when it moves to this source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kafka.structs import TopicPartition

from spark_integration.reading.offsets import partition_names
from spark_integration.reading.options import TriggerLimits
from tolerant_client.errors import DataLossError

_INT64_MAX = 2**63 - 1


class Admission:
    """Decides for one stream; remembers when it last admitted a batch."""

    def __init__(self, limits: TriggerLimits) -> None:
        self._limits = limits
        self._last_ms = float("-inf")

    def end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        first: Mapping[TopicPartition, int],
        now_ms: float,
    ) -> dict[TopicPartition, int]:
        """The end of the next batch; `start` itself if it should wait.

        `first` has the first offsets of partitions that `start` does not know.
        """
        if self._limits.min_offsets is not None and self._is_too_early(start, latest, now_ms):
            return dict(start)
        if self._limits.max_offsets is None:
            return dict(latest)
        return share_out(self._limits.max_offsets, {**first, **start}, latest)

    def _is_too_early(
        self, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], now_ms: float
    ) -> bool:
        fresh = sum(offset - start.get(partition, 0) for partition, offset in latest.items())
        if now_ms - self._last_ms < self._limits.max_delay_ms and fresh < (self._limits.min_offsets or 0):
            return True
        self._last_ms = now_ms
        return False


def share_out(
    limit: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends that admit about `limit` offsets after `starts` in all, in proportion, at least one for each partition."""
    sizes = {p: end - starts[p] for p, end in ends.items() if p in starts and end > starts[p]}
    total = float(sum(sizes.values()))
    if total < 1:
        return dict(ends)
    shared = dict(ends)
    for partition, size in sizes.items():
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        shared[partition] = min(ends[partition], starts[partition] + min(whole, _INT64_MAX - starts[partition]))
    return shared


def check_end(
    end: Mapping[TopicPartition, int], prefetched: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> None:
    """Raises DataLossError if with Trigger.AvailableNow a batch's `end` contradicts the prefetched or the current ends.

    With minOffsetsPerTrigger the rest may be too small for a batch; the next run reads it, as with Spark's own source.
    """
    if odd := sorted(end.keys() ^ prefetched.keys()):
        _refuse("MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED", odd, "are not in both")
    if beyond := [p for p in sorted(end) if end[p] > prefetched[p]]:
        _refuse(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            beyond,
            "end after the prefetched offsets",
        )
    if lost := sorted(end.keys() - latest.keys()):
        _refuse("LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW", lost, "are gone")
    if short := [p for p in sorted(end) if end[p] > latest[p]]:
        _refuse(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
            short,
            "became shorter while they were read",
        )


def _refuse(condition: str, partitions: list[TopicPartition], what: str) -> None:
    raise DataLossError(
        f"[{condition}] With Trigger.AvailableNow, {partition_names(partitions)} {what}; it may be temporary: start the query again"
    )
