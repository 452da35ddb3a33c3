"""verify as a Spark job: tasks compare slices of partitions and return the results as rows.

The driver lists both logs' bounds once and cuts the work into slices of about 256 MB; a task
reads its slices from both clusters and compares them in its Python worker.  No record crosses the JVM.
Partitions of compacted topics are not cut: only the whole shows whether a missing record was superseded.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_integration.mirror.mirror_job import original_error, spark_session
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import SlicesComparison
from tolerant_client.mirror.verify.verification import Verification
from tolerant_client.ops.service.clusters import both

_SCHEMA: Final = "results binary"  # of the slices of one group: list[SliceResult] as MessagePack
_SLICE_BYTES: Final = 256 << 20
_MAX_BYTES: Final = 64 << 20  # of fetched data that a task may hold
_GROUPS_A_TASK: Final = 4  # so that a task which finishes early takes another group
_SLICES_A_GROUP: Final = 4  # in one wave: the most that a restart has to repeat
_SAMPLES: Final = 3  # batches of a log from which the bytes per offset are estimated
_UNKNOWN_BYTES: Final = 1000  # bytes per offset without a sample


@dataclass(frozen=True)
class VerifySettings:
    """What to compare: Java client properties of both clusters (without prefix), a link's topics or a regular expression.

    `tasks` is the number of tasks that run at a time.
    """

    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    topics: LinkTopics | str
    allow_behind: bool = False
    tasks: int = 2

    @property
    def names(self) -> TopicNames | None:
        return LinkTopics.of(self.topics).names


def run(
    settings: VerifySettings,
    resume: Mapping[str, Any] | None = None,
    progress: Callable[[VerifyReport], None] = lambda report: None,
    session: SparkSession | None = None,
) -> tuple[VerifyReport, list[str]]:
    """Compares with Spark; returns the report, and warnings about parts of `resume` that are no longer valid.

    Without a session it creates one, and stops it.  `progress` is called after each wave of tasks.  Raises the errors of
    tolerant_client.mirror.verify.verification.verify.
    """
    own: SparkSession | None = None
    with both(settings.source, settings.target, settings.names) as (source, target):
        try:
            verification = Verification(
                source, target, settings.topics, allow_behind=settings.allow_behind, resume=resume
            )
            source.run(verification.prepare)
            while sizes := _next_sizes(verification, settings):
                if session is None:
                    session = own = spark_session(settings.tasks, settings.source, settings.target)
                    assert session is not None, "it is awaited"
                for wave in _waves(sizes, settings.tasks):
                    verification.take(compare(session, settings, wave))
                    progress(verification.report())
            return verification.report(), verification.warnings
        finally:
            if own is not None:
                own.stop()


def compare(session: SparkSession, settings: VerifySettings, groups: Sequence[Sequence[Slice]]) -> list[SliceResult]:
    """The results of these slices, each group in one task; raises the error of ours that ended a task."""
    groups = [list(group) for group in groups]

    def compared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = msgspec.msgpack.encode(_compare(settings, groups[number]))
                yield pa.RecordBatch.from_pydict({"results": pa.array([results], pa.binary())})

    count = len(groups)
    try:
        rows = session.range(0, count, 1, max(1, count)).mapInArrow(compared, _SCHEMA).collect()
    except PySparkException as error:
        raise original_error(str(error)) from error
    return [result for row in rows for result in msgspec.msgpack.decode(row.results, type=list[SliceResult])]


def cut(wanted: Slice, bytes_per_offset: float, slice_bytes: float) -> list[Slice]:
    """Cuts a slice into consecutive parts of about `slice_bytes`.  Pure."""
    offsets = wanted.until_offset - wanted.from_offset
    count = 1 if any(wanted.is_compacted) else min(offsets, max(1, math.ceil(offsets * bytes_per_offset / slice_bytes)))
    bounds = [wanted.from_offset + offsets * number // count for number in range(count + 1)]
    return [wanted._replace(from_offset=a, until_offset=b) for a, b in zip(bounds, bounds[1:])]


def deal(sizes: Mapping[Slice, float], groups: int) -> list[list[Slice]]:
    """Deals slices to at most `groups` groups: the largest first, each to the group with the least so far.  Pure."""
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
    parts = {whole: cut(whole, each[whole], _SLICE_BYTES) for whole in wanted}
    verification.split(parts)
    return {part: each[whole] * (part.until_offset - part.from_offset) for whole in wanted for part in parts[whole]}


async def _bytes_per_offset(source: Cluster, slices: Iterable[Slice]) -> dict[Slice, float]:
    """The approximate bytes per offset on the source, from a few of its batches."""
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
    """Slices in the order of their offsets, `groups` groups at a time: what is proved identical grows from the start."""
    ordered = sorted(sizes, key=lambda s: (s.from_offset, s.topic, s.partition))
    groups = _GROUPS_A_TASK * tasks
    for first in range(0, len(ordered), groups * _SLICES_A_GROUP):
        yield deal({wanted: sizes[wanted] for wanted in ordered[first : first + groups * _SLICES_A_GROUP]}, groups)


def _compare(settings: VerifySettings, slices: Sequence[Slice]) -> list[SliceResult]:
    with both(settings.source, settings.target, settings.names) as (source, target):
        return source.run(SlicesComparison(source, target, slices, max_bytes=_MAX_BYTES).run)
