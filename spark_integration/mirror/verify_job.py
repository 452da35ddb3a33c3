"""verify as a Spark job: tasks compare slices of partitions, and the rows they return say what they found.

The driver lists both logs' bounds once and cuts what is to compare into slices of about `slice_mb`; a task
reads its slices from both clusters and compares them in its Python worker.  No record crosses the JVM.
Partitions of compacted topics are not cut: only all of one tells whether a missing record was superseded.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from spark_integration.mirror.mirror_job import original_error, spark_session
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.divergence import read_headers
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.outcome import Difference, NotCompared
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import SlicesComparison
from tolerant_client.mirror.verify.verification import Verification
from tolerant_client.security.kafka_config import kafka_python_config

_COLUMNS: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "from_offset": pa.int64(),
    "until_offset": pa.int64(),
    "outcome": pa.string(),
    "compared": pa.int64(),
    "records": pa.int64(),
    "identical_until": pa.int64(),
    "first_difference_offset": pa.int64(),
    "reason": pa.string(),
    "untold_difference_offset": pa.int64(),
    "untold_reason": pa.string(),
    "told_records": pa.int64(),
    "left_out": pa.int64(),
    "filler": pa.int64(),
    "compacted": pa.int64(),
    "compared_until": pa.int64(),
    "not_compared": pa.string(),
    "error": pa.string(),
}
_SPARK_TYPES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long"}
_ARROW: Final = pa.schema(_COLUMNS.items())
SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in _COLUMNS.items())
_GROUPS_A_TASK: Final = 4  # so that a task which is done early takes another group
_SLICES_A_GROUP: Final = 4  # of one wave: what a restart has to repeat at most
_SAMPLES: Final = 3  # batches of a log that are looked at to guess how many bytes an offset takes
_UNKNOWN_BYTES: Final = 1000  # an offset where no sample tells


@dataclass(frozen=True)
class VerifySettings:
    """What to compare: Java client properties of both clusters (without prefix), a link's topics or a regular expression.

    `tasks` run at a time; `max_mb` is what each may hold of fetched data.
    """

    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    topics: LinkTopics | str
    allow_behind: bool = False
    tasks: int = 2
    slice_mb: int = 256
    max_mb: int = 64

    @property
    def names(self) -> TopicNames | None:
        return LinkTopics.of(self.topics).names


def run(
    settings: VerifySettings,
    resume: Mapping[str, Any] | None = None,
    progress: Callable[[VerifyReport], None] = lambda report: None,
    session: SparkSession | None = None,
) -> tuple[VerifyReport, list[str]]:
    """Compares with Spark; the report, and warnings about what of `resume` counts no more.

    Without a session one is made, and stopped.  `progress` is called after each wave of tasks.  Raises what
    tolerant_client.mirror.verify.verify does.
    """
    with Cluster(kafka_python_config(settings.source), name="source", names=settings.names) as source:
        target = Cluster(kafka_python_config(settings.target), source.net, name="target")
        own: SparkSession | None = None
        try:
            verification = Verification(
                source, target, settings.topics, allow_behind=settings.allow_behind, resume=resume
            )
            source.run(verification.prepare)
            while sizes := _next_sizes(verification, settings):
                if session is None:
                    session = own = spark_session(settings.tasks, settings.source, settings.target)
                for wave in _waves(sizes, settings.tasks):
                    verification.take(collect(slices_frame(session, settings, wave)))
                    progress(verification.report())
            return verification.report(), verification.warnings
        finally:
            if own is not None:
                own.stop()
            target.close()


def verify_frame(session: SparkSession, settings: VerifySettings) -> DataFrame:
    """A row for each slice of every partition, and for each range that differs, or is not compared, without a look at
    its records (a partition or log end that one side lacks, what waits for an open transaction): see SCHEMA.

    `outcome` is one of outcome.Outcome; nothing but rows that are "identical" means that the topics are.  The bounds
    are taken when this is called, the records are compared when the DataFrame is used, each time anew.
    """
    with Cluster(kafka_python_config(settings.source), name="source", names=settings.names) as source:
        target = Cluster(kafka_python_config(settings.target), source.net, name="target")
        try:
            verification = Verification(source, target, settings.topics, allow_behind=settings.allow_behind)
            source.run(verification.prepare)
            sizes: dict[Slice, float] = {}
            while more := _next_sizes(verification, settings):
                sizes.update(more)
            edges = _rows(verification.edges())
        finally:
            target.close()
    compared = slices_frame(session, settings, deal(sizes, _GROUPS_A_TASK * settings.tasks))
    return compared.union(session.createDataFrame(edges.to_pylist(), SCHEMA)) if edges.num_rows else compared


def slices_frame(session: SparkSession, settings: VerifySettings, groups: Sequence[Sequence[Slice]]) -> DataFrame:
    """The rows of these slices; each group is one task."""
    source, target, names, max_bytes = (
        dict(settings.source),
        dict(settings.target),
        settings.names,
        settings.max_mb << 20,
    )
    groups = [list(group) for group in groups]

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _rows(_compare(source, target, names, groups[number], max_bytes))

    count = len(groups)
    return session.range(0, count, 1, max(1, count)).mapInArrow(compare, SCHEMA)


def collect(frame: DataFrame) -> list[SliceResult]:
    """The results that the rows of slices_frame tell of; raises the error of ours that ended a task."""
    from pyspark.errors import PySparkException

    try:
        rows = frame.collect()
    except PySparkException as error:
        raise original_error(str(error)) from error
    return [_result(row) for row in rows]


def cut(wanted: Slice, bytes_per_offset: float, slice_bytes: float) -> list[Slice]:
    """A slice as parts of about `slice_bytes`, one behind the other.  Pure."""
    offsets = wanted.until_offset - wanted.from_offset
    count = 1 if any(wanted.is_compacted) else min(offsets, max(1, math.ceil(offsets * bytes_per_offset / slice_bytes)))
    bounds = [wanted.from_offset + offsets * number // count for number in range(count + 1)]
    return [wanted._replace(from_offset=a, until_offset=b) for a, b in zip(bounds, bounds[1:])]


def deal(sizes: Mapping[Slice, float], groups: int) -> list[list[Slice]]:
    """Slices in at most so many groups, the largest first, each to the group that has least.  Pure."""
    dealt: list[list[Slice]] = [[] for _ in range(min(groups, len(sizes)))]
    load = [(0.0, number) for number in range(len(dealt))]
    for wanted in sorted(sizes, key=lambda s: (-sizes[s], s[:4])):
        least, number = load[0]
        dealt[number].append(wanted)
        heapq.heapreplace(load, (least + sizes[wanted] + 1, number))
    return dealt


def _next_sizes(verification: Verification, settings: VerifySettings) -> dict[Slice, float]:
    """The next slices, cut, with their sizes in bytes."""
    wanted = verification.source.run(verification.next_slices)
    if not wanted:
        return {}
    each = verification.source.run(_bytes_per_offset, verification.source, wanted)
    parts = {whole: cut(whole, each[whole], settings.slice_mb << 20) for whole in wanted}
    verification.split(parts)
    return {part: each[whole] * (part.until_offset - part.from_offset) for whole in wanted for part in parts[whole]}


async def _bytes_per_offset(source: Cluster, slices: Iterable[Slice]) -> dict[Slice, float]:
    """About how many bytes an offset takes on the source, from a few of its batches."""
    sizes: dict[Slice, list[float]] = {wanted: [] for wanted in slices}
    for number in range(_SAMPLES):
        offsets = {}
        for wanted in sizes:
            place = (wanted.until_offset - 1 - wanted.from_offset) * number // (_SAMPLES - 1)
            offsets[TopicPartition(wanted.topic, wanted.partition)] = wanted.from_offset + place
        headers = await read_headers(source, offsets)
        for wanted, found in sizes.items():
            header = headers.get(TopicPartition(wanted.topic, wanted.partition))
            if header is not None:
                found.append(header.size / (header.last_offset_delta + 1))
    return {wanted: sum(found) / len(found) if found else _UNKNOWN_BYTES for wanted, found in sizes.items()}


def _waves(sizes: Mapping[Slice, float], tasks: int) -> Iterator[list[list[Slice]]]:
    """Slices in the order of their offsets, a number of groups at a time: what is identical grows from the start."""
    ordered = sorted(sizes, key=lambda s: (s.from_offset, s.topic, s.partition))
    groups = _GROUPS_A_TASK * tasks
    for first in range(0, len(ordered), groups * _SLICES_A_GROUP):
        yield deal({wanted: sizes[wanted] for wanted in ordered[first : first + groups * _SLICES_A_GROUP]}, groups)


def _compare(
    source: Mapping[str, str],
    target: Mapping[str, str],
    names: TopicNames | None,
    slices: Sequence[Slice],
    max_bytes: int,
) -> list[SliceResult]:
    with Cluster(kafka_python_config(source), name="source", names=names) as first:
        second = Cluster(kafka_python_config(target), first.net, name="target")
        try:
            return first.run(SlicesComparison(first, second, slices, max_bytes=max_bytes).run)
        finally:
            second.close()


def _rows(results: Iterable[SliceResult]) -> pa.RecordBatch:
    rows = []
    for result in results:
        first, untold = result.first_difference or (None, None), result.difference or (None, None)
        gaps = json.dumps([part._asdict() for part in result.not_compared]) if result.not_compared else None
        rows.append(
            (
                *result.slice[:4],
                str(result.outcome),
                result.compared,
                result.records,
                result.identical_until,
                *first,
                *untold,
                result.told_records,
                result.left_out,
                result.filler,
                result.compacted,
                result.compared_until,
                gaps,
                result.error,
            )
        )
    columns = list(zip(*rows)) if rows else [()] * len(_ARROW)
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, _ARROW)], schema=_ARROW)


def _result(row: Any) -> SliceResult:
    told = ((row.first_difference_offset, row.reason), (row.untold_difference_offset, row.untold_reason))
    first, untold = (None if offset is None else Difference(offset, reason) for offset, reason in told)
    return SliceResult(
        Slice(row.topic, row.partition, row.from_offset, row.until_offset),
        row.records,
        row.compared_until,
        untold,
        None if first == untold else first,
        row.told_records,
        row.left_out,
        row.filler,
        row.compacted,
        tuple(NotCompared(**part) for part in json.loads(row.not_compared or "[]")),
        row.error,
    )
