"""What Trigger.AvailableNow promises: nothing beyond the ends seen first is read, and nothing is gone: pure.

With minOffsetsPerTrigger the rest may be too little for a batch, and is left to the next run, as in Spark's own source.

The conditions are those of verifyEndOffsetForTriggerAvailableNow in KafkaMicroBatchStream.scala.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka.structs import TopicPartition

from spark_integration.reading.offsets import partition_names
from tolerant_client.errors import DataLossError

_REMEDY: Final = "it may pass: start the query again"

Offsets = Mapping[TopicPartition, int]


def check_end(end: Offsets, prefetched: Offsets, latest: Offsets) -> None:
    """Raises DataLossError where a batch's `end` contradicts what was seen first, or what there is now."""
    if odd := sorted(end.keys() ^ prefetched.keys()):
        _refuse("MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED", odd, "are not in both")
    if beyond := [p for p in sorted(end) if end[p] > prefetched[p]]:
        _refuse(
            "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            beyond,
            "end behind what was seen first",
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
    raise DataLossError(f"[{condition}] With Trigger.AvailableNow, {partition_names(partitions)} {what}; {_REMEDY}")
