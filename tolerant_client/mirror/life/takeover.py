"""Take-over: a link resumes copying where MirrorMaker 2 has stopped, on the same target topics.

MirrorMaker 2 commits its positions only now and then (mm2_positions.py), so we find the exact position in the logs: the source
offset of the target's last records.
Laws:
- Nothing is written while MirrorMaker 2 runs.
- Nothing is guessed: a position that the logs do not show is reported as unknown.  Logs are identical if records prove it, or if
  MirrorMaker 2's position is the very offset at which the target's log ends; equal end offsets alone prove nothing.
- If the logs allow several positions, the lowest one counts: a record may be copied twice, but none is lost.
- The only write is one record of the control: if killed before it, take-over has done nothing; another run finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LogOffsets, log_offsets
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.circles import links_into, refuse_circle, refuse_one_cluster
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.engine.translated.copy_transaction import require_renewing
from tolerant_client.mirror.life.failback_decision import begin_again, is_live
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.shared_log import shared_partitions
from tolerant_client.mirror.logs.bisection import first_difference_of_logs
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl, require_finished
from tolerant_client.mirror.state.map_rows import last_rows
from tolerant_client.mirror.state.map_topic import require_kind
from tolerant_client.mirror.state.mm2_positions import read_positions_of_mm2, whether_mm2_runs
from tolerant_client.mirror.state.offset_map import MapRow
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids
from tolerant_client.records.record_batch import Record

# How many of the target's last records we search for as one sequence; fewer if MirrorMaker 2 repeated some.
_TAILS = (64, 8, 1)
_PIECE = 20_000  # source offsets that are searched at once
_MOST = 2_000_000  # source offsets that are searched in all
_COPIES_ALREADY = (
    "copies into this target already, so there is nothing to take over. If MirrorMaker 2 has copied since, run tolerant-kafka"
    " hand-back first"
)


class Bounds(NamedTuple):
    """The offsets of the two logs of a partition."""

    source: LogOffsets
    target: LogOffsets


@dataclass(frozen=True)
class TakenPartition:
    """A partition as MirrorMaker 2 has left it; offsets are the source's, except `target_end`.

    `committed` is MirrorMaker 2's own position (-1: none), `position` the one that the logs show (-1: none), `target_end` the end
    of the target's log.  `is_identical`: the target's log is the beginning of the source's, offset by offset; `is_open`: it has
    open transactions; `is_undecided`: it has records of transactions that are still open on the source.
    """

    topic: str
    partition: int
    is_identical: bool
    committed: int
    position: int
    target_end: int
    is_open: bool = False
    is_undecided: bool = False


@dataclass(frozen=True)
class TakeoverReport:
    """What was found; `is_done`: the link is prepared to resume there."""

    link: str
    offsets: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[TakenPartition, ...]
    blockers: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def last_match(source: Sequence[Record], tail: Sequence[Record]) -> int | None:
    """The offset after the sequence `tail`, the target's last records, in `source`.

    Both ascend.  The lowest such offset if there are several; None if there is none.  Pure.
    """
    wanted = [record[1:] for record in tail]
    found = [record[1:] for record in source]
    for index in range(len(wanted) - 1, len(found)):
        if found[index] == wanted[-1] and found[index - len(wanted) + 1 : index + 1] == wanted:
            return source[index].offset + 1
    return None


async def read_bounds(
    source: Cluster, target: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Bounds]:
    """Where both logs of each partition start and end."""
    wanted = list(partitions)
    # The target first: the source had everything that the target has by then.
    copied = await log_offsets(target, wanted)
    there = await log_offsets(source, wanted)
    return {p: Bounds(there[p], copied[p]) for p in wanted}


async def is_contradicted(source: Cluster, target: Cluster, partition: TopicPartition, bounds: Bounds) -> bool:
    """Whether something shows that the target's log is not the beginning of the source's."""
    if bounds.target.high_watermark > bounds.source.high_watermark:
        return True
    common = max(bounds.source.start, bounds.target.start), bounds.target.high_watermark
    return await first_difference_of_logs(source, target, partition, *common) is not None


async def is_identical(
    source: Cluster, target: Cluster, partition: TopicPartition, bounds: Bounds, committed: int
) -> bool:
    """Whether the target's log is the beginning of the source's: that must be proved, not only be without contradiction."""
    if bounds.target.high_watermark == 0:
        return True
    if await is_contradicted(source, target, partition, bounds):
        return False
    if committed == bounds.target.high_watermark:
        return True  # the last record that was copied has the same offset on both sides
    tail = await _last_records(target, partition, bounds)
    if not tail:
        return False
    span = {partition: (tail[-1].offset, tail[-1].offset + 1)}
    return tail[-1] == (await read_slices(source, span, is_committed=True))[partition].records.get(tail[-1].offset)


async def find_position(
    source: Cluster, target: Cluster, partition: TopicPartition, bounds: Bounds, committed: int
) -> int:
    """The source offset after the last record that the target has; -1 if the logs do not show it.

    `committed` (-1: unknown) is a lower bound.  If the target has no records any more, it is all that is known; if it never had
    one, copying begins at the source's first offset.
    """
    if bounds.target.high_watermark == 0:
        return bounds.source.start
    tail = await _last_records(target, partition, bounds)
    if not tail:
        return max(committed, bounds.source.start) if committed >= 0 else -1
    for length in _TAILS:
        found = await _find(source, partition, bounds.source.start, tail[-length:], committed)
        if found is not None:
            return max(found, committed)
    return -1


async def _last_records(target: Cluster, partition: TopicPartition, bounds: Bounds) -> list[Record]:
    """The last committed records of the target's log; offsets between them may be markers."""
    start, end, tail = bounds.target.start, bounds.target.last_stable, list[Record]()
    wanted, span = _TAILS[0], _TAILS[0]
    while start < end:
        log = (await read_slices(target, {partition: (max(start, end - span), end)}, is_committed=True))[partition]
        tail = [record for _, record in sorted(log.records.items())][-wanted:]
        if len(tail) == wanted or end - span <= start:
            break
        span *= 16
    return tail


async def _find(
    source: Cluster, partition: TopicPartition, source_start: int, tail: Sequence[Record], committed: int
) -> int | None:
    until = (await source.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
    # The broker returns the first offset with this timestamp or a later one: no record of this time is before it.
    at = (await source.list_offsets({partition: min(record.timestamp for record in tail)}))[partition]
    at = max(at, source_start) if at >= 0 else source_start
    last = min(until, max(at, committed) + _MOST)
    before: list[Record] = []
    while at < last:
        piece = (await read_slices(source, {partition: (at, min(at + _PIECE, last))}, is_committed=True))[partition]
        before = [*before, *(record for _, record in sorted(piece.records.items()))]
        if (found := last_match(before, tail)) is not None:
            return found
        before, at = before[-len(tail) :], max(piece.until, at + 1)
    return None


def copied_by_us(control: LinkControl, rows: Mapping[TopicPartition, MapRow]) -> set[TopicPartition]:
    """What a link with translated offsets has copied after its start: it would take its own copies for MirrorMaker 2's.

    `rows` are the newest of its map.  Pure.
    """
    return set() if control.is_over else {p for p, row in rows.items() if row.position > control.adopted.get(p, 0)}


def to_adopt(partitions: Iterable[TakenPartition]) -> dict[TopicPartition, int]:
    """The positions to write to the control, without empty logs: these are copied like any other link's.  Pure."""
    return {TopicPartition(p.topic, p.partition): p.position for p in partitions if p.position and p.target_end}


def blockers(partitions: Sequence[TakenPartition], offsets: str) -> tuple[str, ...]:
    """Why the link cannot resume where MirrorMaker 2 stopped; pure."""
    if offsets == "identical":
        found = []
        if others := [p for p in partitions if not p.is_identical]:
            names = sorted({p.topic for p in others})
            found.append(
                f"{len(others)} partitions of {len(names)} topics do not have the source's offsets on the target, or have"
                f" no records left that show it ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}): set"
                " tolerant.offsets = translated for the flow, leave these topics to a flow of their own that has it, or delete"
                " them on the target to have them copied again"
            )
        if opened := [p for p in partitions if p.is_open]:
            found.append(
                f"transactions are open on the target, {opened[0].topic}-{opened[0].partition} ({len(opened)} partitions):"
                " wait until its coordinator has ended them, then run this again"
            )
        if undecided := [p for p in partitions if p.is_undecided]:
            found.append(
                f"MirrorMaker 2 has copied records of transactions that are open on the source, {undecided[0].topic}-"
                f"{undecided[0].partition} ({len(undecided)} partitions): whether they will commit is not known yet; wait until"
                " they have ended, then run this again"
            )
        return tuple(found)
    unknown = [p for p in partitions if p.position < 0]
    if unknown:
        first = unknown[0]
        return (
            f"the last records of {first.topic}-{first.partition} ({len(unknown)} partitions) were not found among"
            f" {_MOST:,} offsets of the source from their time on: somebody else has written to the target, or one side has"
            " deleted them; leave these topics out, or delete"
            " them on the target to have them copied again",
        )
    return ()


async def take_over(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics,
    source_alias: str,
    *,
    offsets: str = "identical",
    is_dry_run: bool = False,
) -> TakeoverReport:
    """Prepares a link to resume where MirrorMaker 2, which must have been stopped, has left its target topics.

    With identical offsets the link adopts the target's logs; with translated ones copying begins at the exact position, also if
    the link had copied before and was handed back.  Of one that copies already, what MirrorMaker 2 has copied and the link has not
    is taken over, whether its mirror runs or not.  If something blocks it, nothing is written.
    Raises OptionError for a link that copies all of it already, or would copy in a circle, or a target that is too old for translated
    offsets, and KafkaError.
    """
    await source.connect()
    await target.require_record_batches()
    await refuse_one_cluster(source, target)
    names = select_topics(topics, await source.partitions())
    wire = [source.wire_topic(name) for name in names]
    await refuse_circle(source, target, wire, link, await links_into(source))
    control = await read_control(target, link)
    require_same_source(control, link, cluster_id := await source.cluster_id())
    await require_not_forgotten(target, link, control)
    require_finished(control, link, target, source)
    is_translated = offsets == "translated"
    if is_translated:
        await require_renewing(target)
    # A translated one may take over once more until it has copied something.
    if is_live(control) and not (is_translated and control.map_id is not None):
        raise OptionError(f"Link {link} {_COPIES_ALREADY}")
    await require_kind(target, link, control, is_translated=is_translated)
    partitions = await shared_partitions(source, target, names)
    running = await whether_mm2_runs(target, source_alias)
    known = await read_positions_of_mm2(target, source_alias)
    rows = await last_rows(target, link, partitions) if is_translated else {}
    rows = {p: row for p, row in rows.items() if row.is_kept}
    told = {p: known.get(TopicPartition(source.wire_topic(p.topic), p.partition)) for p in partitions}
    own = copied_by_us(control, rows)
    if own:  # of the others the mirror has refused what MirrorMaker 2 had copied (copied_by_mm2.py)
        partitions = [p for p in partitions if p not in own and told[p] is not None]
        if not partitions or any((at := told[p]) is not None and at.offset > rows[p].position for p in own):
            raise OptionError(f"Link {link} {_COPIES_ALREADY}")
    ids = {} if is_translated else await read_ids(source, target, {p.topic for p in partitions})
    found = []
    for p, bounds in (await read_bounds(source, target, partitions)).items():
        committed = -1 if (at := told[p]) is None else at.offset
        is_same = await is_identical(source, target, p, bounds, committed)
        # Our own link may have copied more before it was handed back.
        least = max(committed, rows[p].position if p in rows else -1)
        position = bounds.target.high_watermark if is_same else await find_position(source, target, p, bounds, least)
        is_open = bounds.target.last_stable < bounds.target.high_watermark
        is_undecided = is_same and bounds.source.last_stable < bounds.target.high_watermark
        found.append(
            TakenPartition(
                p.topic, p.partition, is_same, committed, position, bounds.target.high_watermark, is_open, is_undecided
            )
        )
    wrong = (*running, *blockers(found, offsets))
    is_done = not wrong and not is_dry_run
    if is_done:
        adopted = to_adopt(found)

        def change(now: LinkControl) -> LinkControl:
            if own:
                return replace(now, adopted={**now.adopted, **adopted})
            return begin_again(now, cluster_id, topics, adopted, ids=ids)

        await update_control(target, link, change)
    return TakeoverReport(link, offsets, is_dry_run, is_done, tuple(found), wrong)
