"""payload=ranges: rows say which offsets to copy, and the sink copies them on the executor.

The records never cross the JVM.  Read side: a stream of rows (topic, partition,
from_offset, until_offset), half-open; until_offset null means "and whatever
arrives while the micro-batch lasts".  Write side: each task hands its rows to
the copier of its Python worker process (tolerant_client.mirror.worker).

Options of the read side: kafka.* (source), target.kafka.*, subscribePattern,
tasks (default 1), tail (default false), refreshIntervalMs (default 30000).
Options of the write side: kafka.* (target), source.kafka.*, producerId,
holdMs (default 0), leaseMs (default 0).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from spark_integration.reading.offsets import NestedOffsets, nested_offsets
from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import OptionError
from tolerant_client.mirror.sync import create_topics, plan_link
from tolerant_client.mirror.worker import LinkConfig, copy_ranges
from tolerant_client.raw import EARLIEST, LATEST, RawCluster



@dataclass
class CopiedRanges(WriterCommitMessage):
    """What one task copied."""

    records: int
    bytes: int
    troubles: int


@dataclass
class RangesTask(InputPartition):
    """The rows of one task."""

    rows: tuple[tuple[str, int, int, int | None], ...]

    def __init__(self, rows: tuple[tuple[str, int, int, int | None], ...]) -> None:
        super().__init__(rows)
        self.rows = rows


class RangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans what there is to copy; with `target.kafka.*` it also creates topics that appear.

    An offset is {"offsets": {topic: {partition: end}}, "trigger": n}; n moves on
    with every micro-batch in tail mode, so that tasks always run.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        self._configs = (_cluster(lowered, "kafka."), _cluster(lowered, "target.kafka."))
        self._clusters: tuple[RawCluster, RawCluster] | None = None
        self._pattern = lowered.get("subscribepattern", "")
        if not self._pattern:
            raise OptionError("payload=ranges needs subscribePattern, a regular expression over topic names")
        self._tasks = _number(lowered, "tasks", 1)
        if self._tasks < 1:
            raise OptionError(f"tasks must be at least 1, not {self._tasks}")
        self._is_tail = lowered.get("tail", "false").lower() == "true"
        self._refresh_s = _number(lowered, "refreshIntervalMs", 30_000) / 1000
        self._refreshed_at = float("-inf")
        self._partitions: list[TopicPartition] = []
        self._last: NestedOffsets | None = None  # where Trigger.AvailableNow ends

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clusters": None}  # executors get the reader for `read` alone

    def initialOffset(self) -> dict[str, Any]:
        self._refresh()
        return {"offsets": self._list(EARLIEST), "trigger": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._last if self._last is not None else self._ends()
        return {"offsets": ends, "trigger": start["trigger"] + (1 if self._is_tail else 0)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = [
            (topic, int(index), start["offsets"].get(topic, {}).get(index, 0), None if self._is_tail else until)
            for topic, ends in end["offsets"].items()
            for index, until in ends.items()
            if self._is_tail or until > start["offsets"].get(topic, {}).get(index, 0)
        ]
        size = {row: end["offsets"][row[0]][str(row[1])] - row[2] for row in rows}
        return [RangesTask(tuple(rows)) for rows in spread(size, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int | None]]:
        assert isinstance(partition, RangesTask)
        return iter(partition.rows)

    def stop(self) -> None:
        if self._clusters is not None:
            source, target = self._clusters
            target.close()
            source.close()

    def _ends(self) -> NestedOffsets:
        self._refresh()
        return self._list(LATEST)

    def _list(self, which: int) -> NestedOffsets:
        source, _ = self._connected()
        return nested_offsets(source.run(source.list_offsets, dict.fromkeys(self._partitions, which)))

    def _connected(self) -> tuple[RawCluster, RawCluster]:
        if self._clusters is None:
            source = RawCluster(self._configs[0], name="source")
            self._clusters = (source, RawCluster(self._configs[1], source.net, name="target"))
        return self._clusters

    def _refresh(self) -> None:
        """Looks for new topics and partitions, and creates them on the target."""
        now = time.monotonic()
        if now - self._refreshed_at >= self._refresh_s:
            source, target = self._connected()
            planned = source.run(plan_link, source, target, self._pattern)
            source.run(create_topics, target, planned.topics.create)
            self._partitions = list(planned.ends)
            self._refreshed_at = now


class RangesStreamWriter(DataSourceStreamWriter):
    """Copies the ranges of its rows from source to target, at the same offsets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        lowered = {key.lower(): value for key, value in options.items()}
        if "producerid" not in lowered:
            raise OptionError("payload=ranges needs producerId, the link's producer id (tolerant_client.mirror.sync.prepare_link)")
        self._link = LinkConfig(
            _cluster(lowered, "source.kafka."), _cluster(lowered, "kafka."), _number(lowered, "producerId", -1)
        )
        self._hold_ms = _number(lowered, "holdMs", 0)
        self._lease_ms = _number(lowered, "leaseMs", 0)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        until = {TopicPartition(row.topic, row.partition): row.until_offset for row in iterator}
        copied = copy_ranges(self._link, until, hold_ms=self._hold_ms, lease_ms=self._lease_ms) if until else {}
        return CopiedRanges(
            sum(p.records for p in copied.values()), sum(p.bytes for p in copied.values()), sum(p.troubles for p in copied.values())
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the target's log is the only state."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to undo: a repeated task goes on from the target's log."""


def spread(
    size: Mapping[tuple[str, int, int, int | None], int], tasks: int
) -> list[list[tuple[str, int, int, int | None]]]:
    """Deals rows to at most `tasks` tasks, the largest first, each to the task that has least.  Pure."""
    dealt: list[list[tuple[str, int, int, int | None]]] = [[] for _ in range(min(tasks, len(size)))]
    load = [0] * len(dealt)
    for row in sorted(size, key=lambda r: (-size[r], r[:3], r[3] is None, r[3])):
        least = load.index(min(load))
        dealt[least].append(row)
        load[least] += size[row] + 1
    return dealt


def _cluster(lowered: Mapping[str, str], prefix: str) -> dict[str, Any]:
    java = {key.removeprefix(prefix): value for key, value in lowered.items() if key.startswith(prefix)}
    if not java.get("bootstrap.servers"):
        raise OptionError(f"payload=ranges needs {prefix}bootstrap.servers")
    return kafka_python_config(java)


def _number(lowered: Mapping[str, str], name: str, default: int) -> int:
    text = lowered.get(name.lower(), str(default))
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {text!r}") from None
