"""Failback: a link back onto the cluster that was once the source copies only the records which that cluster lacks.

Both logs of a partition are the same up to a point.  If the old source's log ends there, the link back adopts it: it copies from
that offset on, with its own producer id, as if it had copied everything before.  If the old source has more (records that it took
and that nobody copied before it failed), its log cannot hold the new source's records at their offsets, and no broker truncates a
log: the operator keeps it, or gives those records up and has the topic created again.

The roles here are those of the link back: `source` has the newer data, `target` is the old source.
Laws:
- What is adopted is proved: records that both logs still have are equal, or the source still has the batch before the target's
  end and the forward link wrote it there.  If retention has deleted what could prove it, the end of a log proves nothing, and
  nothing is adopted: an end that is wrong by one record loses a record, and nobody would ever notice.
- A topic is deleted only if a forward link copied it from this very target, or if it is this link's own former copy with no
  record of others at its end: an equal name is no proof.
- Whether a forward link copied a topic is decided as for its promotion (owners.py), by its control and by the source's logs.  If
  the target has records of a topic that no forward link copied, it is another one: it is named, and neither deleted nor adopted.
- Heartbeats are no data: the link's own former copy of them, which ends with the fence of its promotion, is copied again, and
  blocks nothing.
- The only write is one record of the control.  If killed before it, failback has done nothing but delete topics, which are copied
  again; another run finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.divergence import (
    COMPARED_OFFSETS,
    first_difference_of_logs,
    read_headers,
    read_slices,
)
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.mirror.engine.identical.resume_point import read_ids
from tolerant_client.mirror.engine.preflight import refuse_circle, refuse_one_cluster
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.owners import find_evidence, find_owners
from tolerant_client.mirror.state.control_topic import half_done, read_control, read_controls, update_control
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.state.link_control import LinkControl, Positions, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats, see_topics, some
from tolerant_client.mirror.state.map_topic import map_topic
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics

_NEVER_BEGUN = "nothing shows that the link has copied it"
_CREATED_AGAIN = "it was deleted and created again there after the link had copied it"
_LISTED = 1_000  # runs of offsets of lost records that are listed
_COUNTED = 1_000_000  # offsets that are searched for records
_PIECE = 10_000  # offsets whose records are in memory at once


@dataclass(frozen=True)
class SharedLog:
    """A partition that both clusters have, or only the target: its logs are the same up to `shared_until`.

    What the target has between there and `target_end` was never copied: `lost_records` committed records, whose offsets are in
    `lost_offsets` as half-open runs; at least that many unless `is_counted`.  The link will copy `to_copy` offsets.
    """

    topic: str
    partition: int
    shared_until: int
    target_end: int
    source_end: int
    lost_records: int = 0
    lost_offsets: tuple[tuple[int, int], ...] = ()
    is_proved: bool = True  # False: nothing shows where the logs stop being the same
    is_open: bool = False  # transactions are open on the target: its log will still grow
    is_counted: bool = True

    @property
    def is_diverged(self) -> bool:
        return self.target_end > self.shared_until

    @property
    def to_copy(self) -> int:
        return max(0, self.source_end - self.shared_until)


@dataclass(frozen=True)
class FailbackReport:
    """What failback found and did: `is_done` once the link can be started.

    A dry run lists in `deleted_topics` those that it would delete.
    """

    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[SharedLog, ...]
    deleted_topics: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(p), "is_diverged": p.is_diverged, "to_copy": p.to_copy} for p in self.partitions]
        return {**asdict(self), "partitions": rows, "exit_code": self.exit_code}


def blockers(partitions: Collection[SharedLog], *, discards: bool) -> tuple[str, ...]:
    """Why the link back cannot begin; pure."""
    found = []
    if opened := [p for p in partitions if p.is_open]:
        found.append(
            f"transactions are open on the target, {opened[0].topic}-{opened[0].partition} ({len(opened)} partitions): wait"
            " until its coordinator has ended them, then run this again"
        )
    if discards:
        return tuple(found)
    if bare := [p for p in partitions if p.is_diverged and p.is_proved and p.is_counted and not p.lost_records]:
        first = bare[0]
        found.append(
            f"in {counted(len(bare), 'partition')} the target's log ends with offsets without a record, such as the marker of a"
            f" fence, and the source may have records at these offsets: {first.topic}-{first.partition} from offset"
            f" {first.shared_until} to {first.target_end}. With --discard-diverged these topics are deleted on the target and"
            " copied again; no record is lost that was never copied"
        )
    if diverged := [p for p in partitions if p.is_diverged and p not in bare]:
        first = diverged[0]
        unseen = sum(not p.is_proved for p in diverged)
        doubt = (
            f" (for {unseen} of them the source has deleted everything that could show whether it was)"
            if unseen
            else ""
        )
        found.append(
            f"{len(diverged)} partitions of the target have records that were never copied{doubt}, {lost_records(diverged)} committed"
            f" records in all: {first.topic}-{first.partition} from offset {first.shared_until} to {first.target_end}. Read"
            " what you need from there, then give it up with --discard-diverged: these topics are deleted on the target and"
            " copied again"
        )
    if unproved := [p for p in partitions if not p.is_proved and not p.is_diverged]:
        first = unproved[0]
        found.append(
            f"{len(unproved)} partitions of the target have no records left at their ends, or none that the source still"
            f" has, so nothing shows whether their logs were copied to their ends: {first.topic}-{first.partition} ends at"
            f" offset {first.target_end}, and the source has records before that. With --discard-diverged these topics are"
            " deleted on the target and copied again; records that the source does not have are lost by that"
        )
    return tuple(found)


def lost_records(partitions: Iterable[SharedLog]) -> str:
    """How many records only the target has, as text."""
    every = list(partitions)
    return f"{'' if all(p.is_counted for p in every) else 'at least '}{sum(p.lost_records for p in every):,}"


def strangers(doomed: Iterable[str], taken: Collection[str]) -> tuple[str, ...]:
    """Why topics must not be deleted: no forward link has copied them, as it has those `taken`.  Pure."""
    foreign = sorted(set(doomed).difference(taken))
    if not foreign:
        return ()
    return (
        f"topic {foreign[0]} would be deleted on the target ({len(foreign)} topics), but no control on the source"
        " says that a link copied it from there: it may be another topic of the same name. Leave it out of --topics, or delete"
        " it yourself",
    )


def left_alone(others: Mapping[str, str]) -> tuple[str, ...]:
    """Why topics of the target, by name, are no originals of the source's: a sentence for each reason.  Pure."""
    named: dict[str, list[str]] = {}
    for name, why in sorted(others.items()):
        named.setdefault(why, []).append(name)
    return tuple(
        f"the target has records of {some(names)} that no link has copied from there: {why}. It may be another topic of the"
        " same name, so nothing of it is compared, deleted or copied: leave it out of --topics (topics.exclude of a file), here and for the mirror; if"
        " nobody needs its records on the target, delete it there yourself"
        for why, names in named.items()
    )


def begun(now: LinkControl, source_cluster_id: str | None, topics: LinkTopics, adopted: Positions) -> LinkControl:
    """The control of a link that begins after what its target has; a new generation if the link ran before.  Pure."""
    had_one = bool(now.producer_ids) or now.is_over
    return replace(
        now,
        is_promoted=False,
        is_fenced=False,
        unfenced=frozenset(),
        is_handed_back=False,
        generation=now.generation + had_one,
        producer_ids=(),
        adopted=adopted,
        starts={},
        starts_of={},
        begun={},
        copied={},
        map_id=None,
        source_cluster_id=source_cluster_id,
        topics=topics.to_json(),
    )


def is_live(control: LinkControl) -> bool:
    """Whether a link copies with identical offsets now, so that it must not begin again.  Pure."""
    return bool(control.producer_ids) and not control.is_over


async def failback(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics | str,
    *,
    discards: bool = False,
    is_dry_run: bool = False,
) -> FailbackReport:
    """Prepares a link back: compares the logs, and writes to the control up to where the target's are adopted.

    With `discards` it deletes diverged topics of the target, to be copied again.  Afterwards the mirror is started like any
    other.  If something blocks it, nothing is written.  Raises OptionError if the link back is live, if it would copy in a
    circle (the forward link was not promoted), and for translated offsets; KafkaError.
    """
    chosen = LinkTopics.of(topics)
    if chosen.to_target("orders") != "orders":
        raise OptionError(
            f"Link {link} renames topics (orders to {chosen.to_target('orders')}): it would copy back to other topics."
            " Failing back needs the same names on both clusters (IdentityReplicationPolicy)"
        )
    await source.connect()
    await target.require_record_batches()
    await refuse_one_cluster(source, target)
    view = await see_topics(source, target, chosen)
    view.require_seen(link)
    names = sorted(view.on_source) or select_topics(chosen, await source.partitions())
    for unseen in await refuse_circle(source, target, [source.wire_topic(name) for name in names], link):
        raise OptionError(unseen)  # the forward link must be promoted, and we must know it
    forward = await _forward_links(source, target)
    await _refuse_translated(source, names, forward)
    former = await read_control(target, link)
    await require_not_forgotten(target, link, former)
    if is_live(former):
        raise OptionError(
            f"Link {link} copies into this target already and was not promoted: its mirror needs no failback to resume;"
            " for another link give --link"
        )
    copied_by = {producer_id for control in forward.values() for producer_id in control.producer_ids}
    own = await _own_copies(target, former, await shared_partitions(source, target, names))
    logs = []
    data = [name for name in names if not is_heartbeats(chosen, name)]
    for partition in await shared_partitions(source, target, data):
        logs.append(await compare_logs(source, target, partition, copied_by))
    taken, others = await taken_topics(source, target, logs, forward)
    others = {name: why for name, why in others.items() if name not in own}
    logs += await unshared_logs(source, target, data)
    logs = [await _with_losses(target, log) for log in logs if log.topic not in others]
    found = (*left_alone(others), *blockers(logs, discards=discards))
    doomed = {name for name in own if is_heartbeats(chosen, name)}
    if discards:
        given_up = {p.topic for p in logs if p.is_diverged or not p.is_proved}
        keeps = {p.topic for p in logs if p.lost_records or not (p.is_counted and p.is_proved)}
        found = (*found, *strangers((name for name in given_up if name in keeps or name not in own), taken))
        doomed |= given_up
    if found or is_dry_run:
        return FailbackReport(link, is_dry_run, False, tuple(logs), () if found else tuple(sorted(doomed)), found)
    adopted = {
        TopicPartition(p.topic, p.partition): p.shared_until for p in logs if p.topic not in doomed and p.shared_until
    }
    cluster_id = await source.cluster_id()
    with half_done("failing back"):
        if doomed:
            await delete_topics(target, sorted(doomed))
        await update_control(target, link, lambda now: begun(now, cluster_id, chosen, adopted))
    return FailbackReport(link, False, True, tuple(logs), tuple(sorted(doomed)))


async def _own_copies(target: Cluster, former: LinkControl, partitions: Iterable[TopicPartition]) -> set[str]:
    """Topics of which this link, before it was promoted, has written every log on the target.

    The control says so, or the producer ids of the last batches: the marker of its fence has the link's.
    """
    wanted = list(partitions)
    ids = await read_ids(None, target, {p.topic for p in wanted})
    unsaid = [p for p in wanted if not former.has_begun(p, ids)]
    ends = await target.list_offsets(dict.fromkeys(unsaid, LATEST))
    last = await read_headers(target, {p: end - 1 for p, end in ends.items() if end})
    others = {p.topic for p in unsaid if p not in last or last[p].producer_id not in former.producer_ids}
    return {p.topic for p in wanted} - others


async def _forward_links(source: Cluster, target: Cluster) -> dict[str, LinkControl]:
    """The links that have copied from our target to our source."""
    there = await target.cluster_id()
    if there is None:
        return {}
    found = (await read_controls(source)).links
    names = [name for name, control in found.items() if control.source_cluster_id == there and control.topics]
    return {name: await read_control(source, name) for name in names}  # with all that they have begun


async def taken_topics(
    source: Cluster, target: Cluster, logs: Collection[SharedLog], forward: Mapping[str, LinkControl]
) -> tuple[set[str], dict[str, str]]:
    """The topics that forward links have copied; and those with records on the target that none has copied, and why we think so.

    The control names the source's topic, too: one that was created again since then was never copied.  Without a forward link
    nothing is known of any topic.
    """
    written = {TopicPartition(log.topic, log.partition) for log in logs if log.target_end}
    filled = {TopicPartition(log.topic, log.partition) for log in logs if log.source_end}  # an empty log shows nothing
    ids = await read_ids(target, source, {p.topic for p in written}) if forward else {}
    taken: set[str] = set()
    others: dict[str, str] = {}
    for name, control in forward.items():
        assert control.topics is not None
        topics = LinkTopics.from_json(control.topics)
        taken |= {p.topic for p in written if is_heartbeats(topics, source.wire_topic(p.topic))}
        again = {p for p, of in control.begun.items() if not of.is_of_source(ids.get(p.topic, TopicIds()))}
        known = {*control.begun, *control.adopted, *control.copied, *control.log_starts} - again
        taken |= {p.topic for p in known}
        if not control.begun:  # of version 0.1, which does not say what it has copied; equal records do
            taken |= {log.topic for log in logs if log.is_proved and not log.is_diverged and log.shared_until}
        rest = {p for p in written if p.topic not in taken}
        if not (rest and control.producer_ids):
            continue
        asked = (filled & rest) - again
        evidence = await find_evidence(source, name, control, asked, (), is_translated=False)
        owners, unknown = find_owners(control, asked, evidence, is_translated=False), evidence.logs.unknown
        taken |= {p.topic for p in owners.own if p not in unknown}
        reasons = {**dict.fromkeys(rest, _NEVER_BEGUN), **dict.fromkeys(again & rest, _CREATED_AGAIN), **owners.left}
        others |= {p.topic: unknown.get(p, why) for p, why in sorted(reasons.items())}
    return taken, {name: why for name, why in others.items() if name not in taken}


async def _refuse_translated(source: Cluster, names: Iterable[str], forward: Mapping[str, LinkControl]) -> None:
    """Raises OptionError for topics that were copied with translated offsets: their records have other offsets there."""
    wanted = list(names)
    for other, control in forward.items():
        assert control.topics is not None
        both = sorted(name for name in wanted if LinkTopics.from_json(control.topics).writes(source.wire_topic(name)))
        offset_map = source.topic_of(map_topic(other))
        if both and not control.producer_ids and offset_map in await source.partitions([offset_map]):
            raise OptionError(
                f"Link {other} copied topic {both[0]} with translated offsets: its records are at other offsets on the two"
                " clusters, and failback compares logs with the same offsets; leave such topics out"
            )


async def shared_partitions(source: Cluster, target: Cluster, names: Iterable[str]) -> list[TopicPartition]:
    """The partitions of topics that both clusters have."""
    here, there = await source.partitions(names), await target.partitions(names)
    return sorted(
        TopicPartition(topic, n) for topic, numbers in here.items() for n in numbers if n in there.get(topic, ())
    )


async def unshared_logs(source: Cluster, target: Cluster, names: Iterable[str]) -> list[SharedLog]:
    """Partitions with records that only the target has, of topics that both have: nobody has copied them."""
    here, there = await source.partitions(names), await target.partitions(names)
    alone = [TopicPartition(topic, n) for topic in sorted(here) for n in there.get(topic, ()) if n not in here[topic]]
    if not alone:
        return []
    starts = await target.list_offsets(dict.fromkeys(alone, EARLIEST))
    ends = await target.list_offsets(dict.fromkeys(alone, LATEST))
    stable = await target.list_offsets(dict.fromkeys(alone, LATEST), isolation_level=READ_COMMITTED)
    return [
        SharedLog(p.topic, p.partition, starts[p], ends[p], 0, is_open=stable[p] < ends[p])
        for p in alone
        if ends[p] > starts[p]
    ]


async def compare_logs(
    source: Cluster, target: Cluster, partition: TopicPartition, copied_by: Collection[int] = ()
) -> SharedLog:
    """Up to where the two logs of a partition are the same; does not count what the target has after that.

    The target was the original: only its committed records count, and at other offsets the source must have what a mirror fills
    gaps with.  `copied_by` are the producer ids of links that copied from the target to the source.
    """
    wanted = {partition: LATEST}
    end = (await target.list_offsets(wanted))[partition]
    stable = (await target.list_offsets(wanted, isolation_level=READ_COMMITTED))[partition]
    start = (await target.list_offsets({partition: EARLIEST}))[partition]
    source_end = (await source.list_offsets(wanted))[partition]
    source_start = (await source.list_offsets({partition: EARLIEST}))[partition]
    common = max(start, source_start), min(end, source_end)
    is_proved = True
    if common[0] < common[1]:
        difference = await first_difference_of_logs(target, source, partition, *common)
        first = common[1] if difference is None else difference
        if difference is None and not await _is_shown(source, target, partition, *common):
            is_proved = await _was_copied(source, partition, first - 1, copied_by)
    elif end == 0 or source_end <= start:
        first = min(end, source_end)
    elif start == end:
        first = min(end, source_end)
        # If the source has nothing before that end either, the target can lack none of it.
        is_proved = source_start >= end or first == end and await _was_copied(source, partition, end - 1, copied_by)
    else:
        first, is_proved = start, False  # the source has deleted everything that the target has
    topic, index = partition
    return SharedLog(topic, index, first, end, source_end, is_proved=is_proved, is_open=stable < end)


async def _is_shown(
    source: Cluster, target: Cluster, partition: TopicPartition, from_offset: int, until_offset: int
) -> bool:
    """Whether logs without a difference prove at their common end that one is a copy: a record of both, or filler."""
    span = {partition: (max(from_offset, until_offset - COMPARED_OFFSETS), until_offset)}
    original = (await read_slices(target, span, is_committed=True))[partition]
    copied = (await read_slices(source, span, is_committed=True))[partition]
    return any(offset in original.records or original.is_vacant(offset) for offset in copied.records)


async def _was_copied(source: Cluster, partition: TopicPartition, offset: int, copied_by: Collection[int]) -> bool:
    """Whether one of these producers wrote the records at an offset; a control batch is no proof: it may be a fence."""
    header = (await read_headers(source, {partition: offset})).get(partition)
    return header is not None and not header.is_control and header.producer_id in copied_by


async def _with_losses(target: Cluster, log: SharedLog) -> SharedLog:
    """With the number of committed records that only the target has, and their offsets as far as these are listed."""
    partition = TopicPartition(log.topic, log.partition)
    if not log.is_diverged:
        return log
    start = max(log.shared_until, (await target.list_offsets({partition: EARLIEST}))[partition])
    at, until = start, min(log.target_end, start + _COUNTED)
    number, runs = 0, list[tuple[int, int]]()
    while at < until:
        piece = (await read_slices(target, {partition: (at, min(at + _PIECE, until))}, is_committed=True))[partition]
        for offset in sorted(offset for offset, record in piece.records.items() if not is_filler(record)):
            number += 1
            if runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            elif len(runs) < _LISTED:
                runs.append((offset, offset + 1))
        if piece.until <= at:
            break  # nothing can be read there now
        at = piece.until
    return replace(log, lost_records=number, lost_offsets=tuple(runs), is_counted=at >= log.target_end)
