"""payload=ranges: rows say which partitions to copy, and the sink copies them on the executor.

The records never cross the JVM.  Read side: a stream with one row for each task; its only column `ranges` has
(topic, partition, until_offset), exclusive; until_offset null means "and whatever arrives during the micro-batch".
All rows are read in one Spark partition: repartitioned to as many partitions as there are tasks, each gets one.  Write
side: each task hands its ranges to the copier of its Python worker process (tolerant_client.mirror.engine.process_copier).

Both sides get one more option, which describes the link (tolerant_client.ops.service.mirror_settings.MirrorJob).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tolerant_client.ops.service.mirror_settings import MirrorJob
from tolerant_client.ops.service.ranges import CopiedRanges, Range, RangesCopier, RangesPlanner


@dataclass
class RangesTask(InputPartition):
    """The ranges of every task."""

    rows: tuple[tuple[Range, ...], ...]

    def __init__(self, rows: tuple[tuple[Range, ...], ...]) -> None:
        super().__init__(rows)
        self.rows = rows


@dataclass
class RangesMessage(WriterCommitMessage):
    """The result of one task, on its way to the driver."""

    copied: CopiedRanges


class RangesStreamReader(RangesPlanner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is {"trigger": n}, the number of the micro-batch.

    Only this reader knows what each micro-batch copies: a query of ranges never starts from a checkpoint, so thousands of
    offsets need not be stored for each.  In tail mode n grows each time, so that tasks always run; otherwise only once,
    unless the micro-batch is repeated.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(MirrorJob.of(options))

    def __getstate__(self) -> dict[str, Any]:
        return {}  # executors get the reader only for `read`, once per micro-batch

    def initialOffset(self) -> dict[str, Any]:
        self.begin()  # unless Trigger.AvailableNow did, whose ends are final
        return {"trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self.begin(is_final=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self.is_tail:
            self.look()
        elif start["trigger"] and not self.is_repeating:
            return start
        return {"trigger": start["trigger"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = self.tasks()
        return [RangesTask(rows)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[tuple[list[Range]]]:
        assert isinstance(partition, RangesTask)
        return ((list(ranges),) for ranges in partition.rows)


class RangesStreamWriter(RangesCopier, DataSourceStreamWriter):
    """Copies the ranges of its rows; Spark settles a micro-batch on the driver, in a separate process."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(MirrorJob.of(options))

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        until = {TopicPartition(r.topic, r.partition): r.until_offset for row in iterator for r in row.ranges}
        return RangesMessage(self.copy(until))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        repeat = self.settle([message.copied for message in messages if isinstance(message, RangesMessage)])
        if repeat is not None:
            time.sleep(repeat.pause_s)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Undoes nothing: a retried task resumes from the target's log."""
