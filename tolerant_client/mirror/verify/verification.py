"""Compares two clusters offset by offset: "identical from A up to B" (M9).

Laws:
- Both logs' bounds are taken once, the target's before the source's: while a mirror runs the target is
  never ahead of what the source said.  What the source gets later is not looked at.
- Compared is what a read_committed consumer sees, in the offsets that both logs have; a log that starts
  earlier than the other is no difference (retention is each cluster's own affair), and is said.
- Nothing is left out silently: what could not be compared is in the report, with the reason.

A Verification decides what to compare and puts the results together; who compares (this process, or the
tasks of a Spark job) is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.divergence import read_headers
from tolerant_client.mirror.ledger import of_present_topics, read_ledger
from tolerant_client.mirror.plan import select_topics
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.topics import describe_topics, require_names, topic_ids
from tolerant_client.mirror.verify.log_comparison import Difference, Range
from tolerant_client.mirror.verify.report import (
    LogBounds,
    PartitionReport,
    Resumed,
    VerifyReport,
    partition_report,
    read_state,
)
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import MAX_BYTES, SlicesComparison
from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, RawCluster

__all__ = ["Difference", "PartitionReport", "Verification", "VerifyReport", "compare_here", "verify"]

_SAMPLES: Final = 3  # batches of a log that are looked at to guess how many bytes an offset takes
_UNKNOWN_BYTES: Final = 1000  # an offset where no sample tells
_LOOK_AGAIN_S: Final = 0.5
_UNFINISHED: Final = "not compared to its end yet"


class Verification:
    """One comparison of a link's topics, or those that match a regular expression; both clusters share one event loop.

    The source must be a RawCluster with the names of `topics`: everything here is called as on the target.

    `prepare` comes first; `next_slices` until it returns none, each time with the results given to `take`;
    `report` at any time.  With `allow_behind` a target that ends earlier lags, and differs not.
    `resume` is the JSON of an earlier report.
    """

    def __init__(
        self,
        source: RawCluster,
        target: RawCluster,
        topics: LinkTopics | str,
        *,
        allow_behind: bool = False,
        resume: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.target = target
        self.warnings: list[str] = []
        self._topics = LinkTopics.of(topics)
        self._allow_behind = allow_behind
        self._resume = resume
        self._started = time.monotonic()
        self._partitions: list[TopicPartition] = []
        self._present: set[TopicPartition] = set()  # on the target
        self._pending: set[TopicPartition] = set()
        self._accepted: dict[TopicPartition, tuple[Range, ...]] = {}
        self._compacted: dict[str, tuple[bool, bool]] = {}
        self._ids: dict[str, Any] = {}
        self._resumed: dict[TopicPartition, Resumed] = {}
        self._bounds: dict[TopicPartition, LogBounds] = {}
        self._errors: dict[TopicPartition, str] = {}
        self._results: dict[TopicPartition, dict[Range, SliceResult | None]] = {}  # by the bounds of slices
        self._waited_since: float | None = None

    async def prepare(self) -> None:
        """Looks at topics, ledger and the earlier report.

        Raises OptionError when nothing matches or the report is no good, and ClusterUnreachableError.
        """
        source, target = self.source, self.target
        require_names(source, self._topics)
        chosen = await source.partitions()
        chosen = {name: chosen[name] for name in select_topics(self._topics, chosen)}
        present = await target.partitions(chosen)
        self._partitions = [TopicPartition(name, index) for name, indexes in chosen.items() for index in indexes]
        if not self._partitions:
            raise OptionError(f"The topics matching {self._topics.filter} have no partitions")
        self._present = {p for p in self._partitions if p.partition in present.get(p.topic, ())}
        self._pending = set(self._partitions)
        configs = [await describe_topics(cluster, chosen) for cluster in (source, target)]
        for name in chosen:
            first, second = (config[name].is_compacted if name in config else False for config in configs)
            # Brokers before 0.11 do not say whether a topic is compacted: then it is what its copy is.
            is_told = bool(name in configs[0] and (configs[0][name].config or configs[0][name].effective))
            self._compacted[name] = (first if is_told else second, second)
        for side, cluster, names in (("source", source, list(chosen)), ("target", target, list(present))):
            ids = {name: str(topic_id) for name, topic_id in (await topic_ids(cluster, names)).items()}
            self._ids[side] = {"cluster": await cluster.cluster_id(), "topics": ids}
        for row in of_present_topics(await read_ledger(target), self._ids["target"]["topics"]):
            partition = TopicPartition(row.topic, row.partition)
            self._accepted[partition] = (*self._accepted.get(partition, ()), (row.from_offset, row.until_offset))
        if self._resume is not None:
            self._resumed, self.warnings = read_state(self._resume, self._ids)

    async def next_slices(self) -> list[Slice]:
        """Ranges to compare, a partition each; those without a leader come later, when they have one.

        Empty at the end.  A partition that has no leader for the cluster's patience is given up, and reported.
        """
        while self._pending:
            ready = await self._with_leaders()
            if ready:
                found = await self._list_bounds(ready)
                self._pending -= found.keys()
                self._bounds.update(found)
                if slices := [wanted for p in found if (wanted := self._slice(p)) is not None]:
                    for wanted in slices:
                        self._results[TopicPartition(wanted.topic, wanted.partition)] = {wanted[2:4]: None}
                    return slices
            now = time.monotonic()
            self._waited_since = now if self._waited_since is None else self._waited_since
            if now - self._waited_since > self.source.patience_ms / 1000:
                for partition in self._pending:
                    self._errors.setdefault(partition, f"it had no leader for {self.source.patience_ms / 1000:.0f} s")
                self._pending.clear()
            elif self._pending:
                await self.source.net.sleep(_LOOK_AGAIN_S)
                for cluster in (self.source, self.target):
                    await cluster.refresh()
        return []

    async def bytes_per_offset(self, slices: Iterable[Slice]) -> dict[Slice, float]:
        """About how many bytes an offset takes on the source, from a few of its batches."""
        sizes: dict[Slice, list[float]] = {wanted: [] for wanted in slices}
        for number in range(_SAMPLES):
            offsets = {}
            for wanted in sizes:
                place = (wanted.until_offset - 1 - wanted.from_offset) * number // (_SAMPLES - 1)
                offsets[TopicPartition(wanted.topic, wanted.partition)] = wanted.from_offset + place
            headers = await read_headers(self.source, offsets)
            for wanted, found in sizes.items():
                header = headers.get(TopicPartition(wanted.topic, wanted.partition))
                if header is not None:
                    found.append(header.size / (header.last_offset_delta + 1))
        return {wanted: sum(found) / len(found) if found else _UNKNOWN_BYTES for wanted, found in sizes.items()}

    def split(self, slices: Mapping[Slice, Sequence[Slice]]) -> None:
        """Slices of `next_slices` are compared in these parts."""
        for wanted, parts in slices.items():
            self._results[TopicPartition(wanted.topic, wanted.partition)] = {part[2:4]: None for part in parts}

    def take(self, results: Iterable[SliceResult]) -> None:
        """The result of a slice, or what is known of it so far; the last one counts."""
        for result in results:
            partition = TopicPartition(result.slice.topic, result.slice.partition)
            if result.slice[2:4] in self._results.get(partition, {}):
                self._results[partition][result.slice[2:4]] = result

    def report(self, *, is_finished: bool = True) -> VerifyReport:
        """What is known now; partitions that are not finished have an error that says so."""
        reports = tuple(self._report(p, is_finished) for p in self._partitions)
        return VerifyReport(reports, sum(r.records for r in reports), time.monotonic() - self._started, self._ids)

    # -- how it is decided ----------------------------------------------------

    async def _with_leaders(self) -> list[TopicPartition]:
        found = self._pending
        for cluster, wanted in ((self.source, self._pending), (self.target, self._pending & self._present)):
            await cluster.track({p.topic for p in wanted})
            found = {p for p in found if p not in wanted or cluster.known_leader(p) is not None}
        return [p for p in self._partitions if p in found]

    async def _list_bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Of the target first; partitions whose brokers do not answer are left out, for another time."""
        present = [p for p in partitions if p in self._present]
        target_end = await self._list(self.target, present, LATEST, READ_COMMITTED)
        target_start = await self._list(self.target, present, EARLIEST)
        source_end = await self._list(self.source, partitions, LATEST, READ_COMMITTED)
        source_start = await self._list(self.source, partitions, EARLIEST)
        found = {}
        for p in partitions:
            if p in source_start and p in source_end and (p not in self._present or (p in target_start and p in target_end)):
                found[p] = LogBounds(source_start[p], source_end[p], target_start.get(p), target_end.get(p))
        return found

    async def _list(
        self, cluster: RawCluster, partitions: Sequence[TopicPartition], which: int, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        try:
            return await cluster.list_offsets(dict.fromkeys(partitions, which), isolation_level=isolation_level)
        except (Errors.KafkaError, ValueError) as error:
            if len(partitions) < 2:
                for partition in partitions:
                    self._errors[partition] = str(error)
                return {}
        # One of them spoils it for all: each is asked for alone, at the same time.
        asked = [cluster.net.call_soon_with_future(self._list, cluster, [p], which, isolation_level) for p in partitions]
        return {p: offset for future in asked for p, offset in (await future).items()}

    def _slice(self, partition: TopicPartition) -> Slice | None:
        """What is to compare of a partition; None when nothing is."""
        bounds = self._bounds[partition]
        if bounds.target_start is None or bounds.target_end is None:
            return None
        start, until = max(bounds.source_start, bounds.target_start), min(bounds.source_end, bounds.target_end)
        if (state := self._resumed.get(partition)) is not None:
            if state.identical_until > until:
                self.warnings.append(
                    f"{partition.topic}-{partition.partition} was compared up to {state.identical_until}, and a log ends at"
                    f" {until} now; it is compared from its start"
                )
                del self._resumed[partition]
            else:
                start = max(start, state.identical_until)
        if start >= until:
            return None
        accepted = self._accepted.get(partition, ())
        return Slice(partition.topic, partition.partition, start, until, self._compacted[partition.topic], accepted)

    def _report(self, partition: TopicPartition, is_finished: bool) -> PartitionReport:
        bounds = self._bounds.get(partition)
        if bounds is None:
            error = self._errors.get(partition, _UNFINISHED)
            resumed = self._resumed.get(partition, Resumed(0, 0))
            return PartitionReport(
                partition.topic,
                partition.partition,
                0,
                0,
                None,
                None,
                resumed.identical_until,
                None,
                resumed.from_offset,
                error=error,
            )
        results = [
            result or SliceResult(Slice(partition.topic, partition.partition, *part), 0, part[0], error=_UNFINISHED)
            for part, result in self._results.get(partition, {}).items()
        ]
        if not is_finished:
            results = [r if r.identical_until >= r.slice.until_offset else _unfinished(r) for r in results]
        return partition_report(
            partition,
            bounds,
            results,
            allow_behind=self._allow_behind,
            accepted=self._accepted.get(partition, ()),
            resumed=self._resumed.get(partition),
        )


def _unfinished(result: SliceResult) -> SliceResult:
    if result.first_difference is not None or result.error is not None:
        return result
    return replace(result, error=_UNFINISHED)


async def compare_here(
    verification: Verification,
    progress: Callable[[VerifyReport], None] = lambda report: None,
    *,
    max_bytes: int = MAX_BYTES,
) -> VerifyReport:
    """Compares in this process; `progress` is called about once a second with what is known so far.

    `max_bytes` bounds the fetched data in memory.  Raises what Verification.prepare does.
    """
    source, target = verification.source, verification.target
    await verification.prepare()

    def report_progress(results: Sequence[SliceResult]) -> None:
        verification.take(results)
        progress(verification.report(is_finished=False))

    while slices := await verification.next_slices():
        comparison = SlicesComparison(
            source, target, slices, max_bytes=max_bytes, patience_ms=source.patience_ms, progress=report_progress
        )
        verification.take(await comparison.run())
    return verification.report()


async def verify(source: RawCluster, target: RawCluster, topics: LinkTopics | str, **options: Any) -> VerifyReport:
    """Compares every topic of the source whose name matches; `options` are those of Verification.

    Raises OptionError when nothing matches and ClusterUnreachableError.
    """
    return await compare_here(Verification(source, target, topics, **options))
