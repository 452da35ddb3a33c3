"""Compares two clusters offset by offset: "identical from A up to B" (M9).

Laws:
- Both logs' bounds are read once, the target's first: a mirror that runs has nothing there that is beyond the source's bounds.
  Records that the source gets later are not compared.
- The comparison covers what a read_committed consumer sees, in the offsets that both logs have.  Offsets that the source has
  and the target's log no longer has (it starts later) are not compared, and never called identical.
- Where the target's log ends earlier, the source's committed records after that are counted (committed.py): without any, as after a
  failover in a transaction that was aborted later, the target lacks nothing.  Where none was found and not all of that could be read,
  as without the right Read on the source, it is not compared, and no difference.
- A topic of the link that the target has and the source has not (any more) is reported as not compared, one that is known to be the
  target's own (begun_topics.py) in a warning alone.
- Nothing is left out silently: the report says how many of the source's offsets were compared, and why the others were not;
  those after its last stable offset wait for an open transaction, which is named.
- A row of the ledger excuses only what the source proves now: its log starts after the offsets (retention), or its record there is
  larger than the limit in the row (oversized).  All other offsets in the ledger are compared, and a difference counts.
- A topic that is created again while it is compared counts as not compared.  One that was created again since its link began
  to copy it, according to the control, is compared as it is now, with a warning.
- The copy of a promoted link ends before its fence (fences.py): all from that offset on is the target's own, and is not
  compared; a warning says so.  What the source has after that was left behind.  Heartbeats that the source got after that are not
  compared either: they never end, and no promotion waits for them.  Nor is what differs since a link has copied back.

A Verification decides what to compare and joins the results; the caller decides who compares: this process, or a Spark job's tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_log_offsets
from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.logs.committed import Committed, count_committed
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control, read_controls
from tolerant_client.mirror.state.copied_back import CopiedBack
from tolerant_client.mirror.state.ledger import limit_of, of_present_topics, read_ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import NOT_ON_SOURCE, created_again, is_heartbeats, see_topics, some
from tolerant_client.mirror.state.map_topic import has_map
from tolerant_client.mirror.state.open_transactions import find_held
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.promoted_copies import promoted_copies, unnamed_copies
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import describe_topics, require_names
from tolerant_client.mirror.verify.begun_topics import begun_logs, own_topics
from tolerant_client.mirror.verify.fences import ended_copies, ends_before, find_copied_back, find_fences
from tolerant_client.mirror.verify.log_comparison import Range
from tolerant_client.mirror.verify.report import (
    LedgerRange,
    LogBounds,
    PartitionReport,
    Resumed,
    VerifyReport,
    Waiting,
    partition_report,
    read_state,
)
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.slices_comparison import MAX_BYTES, SlicesComparison
from tolerant_client.records.record_batch import encode_batch

_LOOK_AGAIN_S: Final = 0.5
_LIVE_MS: Final = 60_000  # younger transactions count as live: the default of transaction.timeout.ms
_NOWHERE: Final = LogBounds(None, None, None, None, None, None)


class Verification:
    """One comparison of a link's topics, or those that match a regular expression; both clusters share one event loop.

    The source must be a Cluster with the names of `topics`: all names here are the target's.

    Call `prepare` first, then `next_slices` until it returns none, and pass the results of each to `take`; `report` at any
    time.  With `allow_behind` a target that ends earlier lags, which is no difference.  `resume` is the JSON of an earlier
    report.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
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
        self._held_by: tuple[set[TopicPartition], set[TopicPartition]] = (set(), set())  # source and target
        self._pending: set[TopicPartition] = set()
        self._rows: dict[TopicPartition, list[LedgerRow]] = {}
        self._ledger: dict[TopicPartition, list[LedgerRange]] = {}
        self._waiting: dict[TopicPartition, tuple[Waiting, Waiting]] = {}
        self._compacted: dict[str, tuple[bool, bool]] = {}
        self._promoted: list[LinkControl] = []  # of links between these clusters
        self._ended: dict[TopicPartition, int] = {}  # where their copies end
        self._back: dict[TopicPartition, CopiedBack] = {}
        self._beats_until: dict[TopicPartition, int] = {}  # of their copies of heartbeats, which go on at the source
        self._empty: dict[TopicPartition, int] = {}  # up to where the source had no record after these copies
        self._rest: dict[TopicPartition, Committed] = {}  # what the source has after the target's end
        self._starts: dict[TopicPartition, int] = {}  # of links that began at a time (--from)
        self._ids: dict[str, Any] = {}
        self._resumed: dict[TopicPartition, Resumed] = {}
        self._bounds: dict[TopicPartition, LogBounds] = {}
        self._errors: dict[TopicPartition, str] = {}
        self._remade: dict[str, str] = {}
        self._results: dict[TopicPartition, dict[Range, SliceResult | None]] = {}  # by the offset range of the slice
        self._waited_since: float | None = None

    async def prepare(self) -> None:
        """Reads the topics, the ledger and the earlier report.

        Raises OptionError if no topic matches or the report cannot be used, and ClusterUnreachableError.
        """
        source, target = self.source, self.target
        require_names(source, self._topics)
        view = await see_topics(source, target, self._topics)
        chosen = view.on_source
        present = {name: numbers for name, numbers in view.on_target.items() if name in chosen or name in view.gone}
        if not (chosen or present or view.hidden):
            select_topics(self._topics, await source.partitions())  # raises the reason why no topic matches
        self._held_by = (
            {TopicPartition(name, index) for name, indexes in chosen.items() for index in indexes},
            {TopicPartition(name, index) for name, indexes in present.items() for index in indexes},
        )
        self._partitions = sorted({*self._held_by[0], *self._held_by[1], *view.hidden})
        if not self._partitions:
            raise OptionError(f"The topics matching {self._topics.filter} have no partitions")
        self._errors = {
            **dict.fromkeys((p for p in self._held_by[1] if p.topic not in chosen), NOT_ON_SOURCE),
            **view.hidden,
        }
        self._pending = set(self._partitions) - self._errors.keys()
        configs = [await describe_topics(cluster, chosen) for cluster in (source, target)]
        for name in chosen:
            first, second = (config[name].is_compacted if name in config else False for config in configs)
            # Brokers before 0.11 do not say whether a topic is compacted: then we assume what its copy is.
            is_told = bool(name in configs[0] and (configs[0][name].config or configs[0][name].effective))
            self._compacted[name] = (first if is_told else second, second)
        for side, cluster, names in (("source", source, list(chosen)), ("target", target, list(present))):
            ids = {name: str(topic_id) for name, topic_id in (await topic_ids(cluster, names)).items()}
            self._ids[side] = {"cluster": await cluster.cluster_id(), "topics": ids}
        for row in of_present_topics(await read_ledger(target), self._ids["target"]["topics"]):
            self._rows.setdefault(TopicPartition(row.topic, row.partition), []).append(row)
        if self._resume is not None:
            self._resumed, self.warnings = read_state(self._resume, self._ids)
        self.warnings += await self._made_anew()

    async def _made_anew(self) -> list[str]:
        source, target = (self._ids[side]["topics"] for side in ("source", "target"))
        now = {name: TopicIds(source.get(name, ""), target.get(name, "")) for name in source.keys() | target.keys()}
        try:
            controls = await read_controls(self.target)
            unread = {record.key for record in controls.unreadable}
            links = {link: await read_control(self.target, link) for link in controls.links if link not in unread}
        except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError):
            return [
                f"whether topics were created again since their link began is unknown: we may not read {CONTROL_TOPIC} of the"
                " target; grant Read and Describe on it"
            ]
        origin = self._ids["source"]["cluster"]
        self._promoted = promoted = [
            control for control in links.values() if control.is_promotion_begun and control.may_copy_from(origin)
        ]
        copying = [control for control in links.values() if control.source_cluster_id == origin and not control.is_over]
        self._ended = ended_copies(promoted, copying)
        for link, control in links.items():
            if control.topics and control.may_copy_from(origin) and await has_map(self.target, link, control):
                others: set[TopicPartition] = set()
                if not control.is_over:
                    names = {p.topic for p in self._pending if control.writes(p.topic)}
                    refused, unknown = await promoted_copies(
                        self.target, link, control, links, names, is_identical=False
                    )
                    others = {p for p in self._pending if p.topic in refused}
                    self._errors |= {p: unknown[p.topic] for p in self._pending if p.topic in unknown}
                    self._pending -= self._errors.keys()
                others |= begun_logs(copying, now)
                self._leave_out_translated(
                    link, {p for p in self._pending if control.writes(p.topic) and p not in others}
                )
        for link, copies in (await unnamed_copies(self.target, links, self._pending, now)).items():
            self._leave_out_translated(link, copies - begun_logs(copying, now))
        self._starts = {
            p: start
            for control in copying
            for p in control.starts
            if (start := control.start_of(p, source.get(p.topic, ""))) is not None
        }
        self._beats_until = {
            p: end
            for control in promoted
            if control.topics is not None
            for p, end in control.copied_until.items()
            if is_heartbeats(LinkTopics.from_json(control.topics), p.topic)
        }
        self._empty = {
            p: end
            for control in promoted
            for p, end in control.empty_until.items()
            if control.begun.get(p, TopicIds()).is_of_source(now.get(p.topic, TopicIds()))
        }
        return [*created_again(links, origin, now), *await self._leave_out_own(links)]

    async def _leave_out_own(self, links: Mapping[str, LinkControl]) -> list[str]:
        alone = {p.topic for p, why in self._errors.items() if why == NOT_ON_SOURCE}
        own = await own_topics(self.target, links, self._ids["source"]["cluster"], alone)
        if not own or own.issuperset(p.topic for p in self._partitions):
            return []
        self._partitions = [p for p in self._partitions if p.topic not in own]
        self._errors = {p: why for p, why in self._errors.items() if p.topic not in own}
        return [f"{some(sorted(own))}: on the target alone, and no link from this source has begun it: left out"]

    def _leave_out_translated(self, link: str, partitions: Collection[TopicPartition]) -> None:
        why = f"link {link} copies it with translated offsets: there is nothing to compare offset by offset"
        self._errors |= dict.fromkeys(partitions, why)
        self._pending -= self._errors.keys()

    async def _before_fences(self, found: Mapping[TopicPartition, LogBounds]) -> dict[TopicPartition, LogBounds]:
        """These bounds, but a target's log with a promoted link's fence ends before that fence."""
        found = {p: b.source_before(self._beats_until.get(p)) for p, b in found.items()}
        fences = await find_fences(self.source, self.target, self._promoted, found)
        if fences:
            names = some(f"{topic}-{index}: {offset:,}" for (topic, index), offset in sorted(fences.items()))
            self.warnings.append(
                "the link was promoted; from the fence on, the target's log is its own and is left out; the fence is at"
                f" offset ({names})"
            )
        self._back |= await find_copied_back(self.source, self.target, self._ended, fences, found)
        return ends_before(fences, self._back, self._empty, found)

    async def next_slices(self) -> list[Slice]:
        """The next ranges to compare, one per partition; partitions without a leader come later, when they have one.

        Empty at the end.  A partition without a leader for as long as the cluster's patience is reported as not compared.
        """
        while self._pending:
            ready = await self._with_leaders()
            if ready:
                found = await self._before_fences(await self._list_bounds(ready))
                self._pending -= found.keys()
                self._bounds.update(found)
                for partition, bounds in found.items():
                    rows = [await self._proved(row, bounds) for row in self._rows.get(partition, ())]
                    self._ledger[partition] = [part for parts in rows for part in parts]
                await self._name_transactions(found)
                if not self._allow_behind:
                    longer = {p: span for p, b in found.items() if (span := b.rest) is not None}
                    self._rest |= await count_committed(self.source, longer)
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
        await self._find_topics_made_anew()
        return []

    def split(self, slices: Mapping[Slice, Sequence[Slice]]) -> None:
        """Replaces slices of `next_slices` by parts that are compared separately."""
        for wanted, parts in slices.items():
            self._results[TopicPartition(wanted.topic, wanted.partition)] = {part[2:4]: None for part in parts}

    def take(self, results: Iterable[SliceResult]) -> None:
        """Takes results of slices, finished or not; the last one of a slice counts."""
        for result in results:
            partition = TopicPartition(result.slice.topic, result.slice.partition)
            if result.slice[2:4] in self._results.get(partition, {}):
                self._results[partition][result.slice[2:4]] = result

    def report(self) -> VerifyReport:
        """The report so far; offsets that have not been compared yet are in it as not compared."""
        reports = tuple(self._report(p) for p in self._partitions)
        return VerifyReport(reports, sum(r.records for r in reports), time.monotonic() - self._started, self._ids)

    # -- decisions ----------------------------------------------------

    async def _with_leaders(self) -> list[TopicPartition]:
        found = self._pending
        for cluster, there in zip((self.source, self.target), self._held_by):
            wanted = self._pending & there
            await cluster.track({p.topic for p in wanted})
            found = {p for p in found if p not in wanted or cluster.known_leader(p) is not None}
        return [p for p in self._partitions if p in found]

    async def _list_bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Reads the target's bounds first; partitions whose brokers do not respond are left out, to be tried again."""
        sides = []
        for cluster, there in ((self.target, self._held_by[1]), (self.source, self._held_by[0])):
            wanted = [p for p in partitions if p in there]
            found, left_out = await list_led_log_offsets(cluster, wanted)
            self._errors |= left_out
            absent = set(partitions) - there
            told: dict[TopicPartition, tuple[int | None, ...]] = dict.fromkeys(absent, (None, None, None))
            sides.append(told | found)
        target, source = sides
        return {p: LogBounds(*source[p], *target[p]) for p in partitions if p in source and p in target}

    async def _proved(self, row: LedgerRow, bounds: LogBounds) -> list[LedgerRange]:
        """The parts of a ledger row: the one whose reason the source proves, and the rest."""
        start, until, reason = row.from_offset, row.until_offset, str(row.reason)
        if reason == LossReason.RETENTION.value and bounds.source_start is not None:
            gone = max(start, min(until, bounds.source_start))
            parts = [LedgerRange(start, gone, reason, is_proved=True), LedgerRange(gone, until, reason)]
            return [part for part in parts if part.until_offset > part.from_offset]
        is_there = start >= bounds.common[0] and until == start + 1 <= bounds.common[1]
        is_larger = reason == LossReason.OVERSIZED.value and is_there and await self._is_larger(row)
        return [LedgerRange(start, until, reason, is_larger)]

    async def _is_larger(self, row: LedgerRow) -> bool:
        """Whether the source's record alone makes a batch larger than the limit in the row."""
        partition, offset, limit = TopicPartition(row.topic, row.partition), row.from_offset, limit_of(row)
        if limit is None:
            return False
        found = (await read_slices(self.source, {partition: (offset, offset + 1)}, is_committed=True))[partition]
        header = (await read_headers(self.source, {partition: offset})).get(partition)
        record = found.records.get(offset)
        codec = 0 if header is None else header.codec
        return record is not None and len(encode_batch([record], codec=codec)) > limit

    async def _name_transactions(self, found: Mapping[TopicPartition, LogBounds]) -> None:
        """Finds what holds back the last stable offsets.  While the mirror runs, a live transaction counts as lag."""
        sides = (
            (self.source, {p: (b.source_stable, b.source_end) for p, b in found.items()}),
            (self.target, {p: (b.target_stable, b.target_end) for p, b in found.items()}),
        )
        reasons: list[dict[TopicPartition, Waiting]] = []
        for cluster, spans in sides:
            told: dict[TopicPartition, Waiting] = {}
            known = {p: (stable, end) for p, (stable, end) in spans.items() if stable is not None and end is not None}
            for held in await find_held(cluster, known):
                since_ms = held.since_ms
                is_live = since_ms is not None and time.time() * 1000 - since_ms < _LIVE_MS
                matters = not (self._allow_behind and is_live)
                told.setdefault(held.partition, Waiting(f"on the {cluster.name}: {held}", matters))
            reasons.append(told)
        for p in found:
            self._waiting[p] = (reasons[0].get(p, Waiting("")), reasons[1].get(p, Waiting("")))

    async def _find_topics_made_anew(self) -> None:
        for side, cluster in (("source", self.source), ("target", self.target)):
            before = self._ids[side]["topics"]
            now = {name: str(topic_id) for name, topic_id in (await topic_ids(cluster, before)).items()}
            for name, topic_id in before.items():
                if now.get(name) != topic_id:
                    what = "created again" if name in now else "deleted"
                    self._remade[name] = f"its topic was {what} on the {side} while it was compared; compare again"

    def _slice(self, partition: TopicPartition) -> Slice | None:
        """The slice of a partition to compare; None if there is nothing to compare."""
        start, until = self._bounds[partition].common
        if (state := self._resumed.get(partition)) is not None:
            if not state.from_offset <= start <= until >= state.identical_until:
                self.warnings.append(
                    f"{partition.topic}-{partition.partition} was compared from {state.from_offset} to"
                    f" {state.identical_until}, and both logs now have {start} to {until}; it is compared from its start"
                )
                del self._resumed[partition]
            else:
                start = max(start, state.identical_until)
        if start >= until:
            return None
        rows = self._ledger.get(partition, ())
        told: tuple[Range, ...] = tuple(row[:2] for row in rows if not row.is_proved)
        left_out = {row.from_offset for row in rows if row.is_proved and row.reason == LossReason.OVERSIZED.value}
        compacted = self._compacted[partition.topic]
        return Slice(partition.topic, partition.partition, start, until, compacted, told, tuple(sorted(left_out)))

    def _report(self, partition: TopicPartition) -> PartitionReport:
        if partition not in self._bounds:
            resumed = self._resumed.get(partition, Resumed(0, 0))
            error = self._errors.get(partition, "it has not been checked yet")
            found = replace(self._combined(partition), from_offset=resumed.from_offset, error=error)
            return replace(found, identical_until=resumed.identical_until)
        topic, number = partition
        parts = self._results.get(partition, {}).items()
        results = [result or SliceResult(Slice(topic, number, *part), 0, part[0]) for part, result in parts]
        found = self._combined(partition, results)
        remade = self._remade.get(partition.topic)
        return found if remade is None else replace(found, error=remade, identical_until=found.from_offset)

    def _combined(self, partition: TopicPartition, results: Sequence[SliceResult] = ()) -> PartitionReport:
        return partition_report(
            partition,
            self._bounds.get(partition, _NOWHERE),
            results,
            allow_behind=self._allow_behind,
            ledger=self._ledger.get(partition, ()),
            waiting=self._waiting.get(partition, (Waiting(""), Waiting(""))),
            resumed=self._resumed.get(partition),
            begun_at=self._starts.get(partition, 0),
            rest=self._rest.get(partition),
            back=self._back.get(partition),
        )


async def compare_here(
    verification: Verification,
    progress: Callable[[VerifyReport], None] = lambda report: None,
    *,
    max_bytes: int = MAX_BYTES,
) -> VerifyReport:
    """Compares in this process; `progress` is called about once a second with the report so far.

    `max_bytes` limits the fetched data in memory.  Raises what Verification.prepare does.
    """
    source, target = verification.source, verification.target
    await verification.prepare()

    def report_progress(results: Sequence[SliceResult]) -> None:
        verification.take(results)
        progress(verification.report())

    while slices := await verification.next_slices():
        comparison = SlicesComparison(
            source, target, slices, max_bytes=max_bytes, patience_ms=source.patience_ms, progress=report_progress
        )
        verification.take(await comparison.run())
    return verification.report()


async def verify(source: Cluster, target: Cluster, topics: LinkTopics | str, **options: Any) -> VerifyReport:
    """Compares every topic of the source whose name matches; `options` are those of Verification.

    Raises OptionError if no topic matches, and ClusterUnreachableError.
    """
    return await compare_here(Verification(source, target, topics, **options))
