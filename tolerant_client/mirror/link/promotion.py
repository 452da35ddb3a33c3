"""Promotion: the target of a link becomes a cluster that applications write to; and failover, the same without the source.

The course: look until all of the source is copied (failover: not at all), write down that the link is promoted, fence
whatever process of it there is (fence.py), see how far the copy came, move the groups a last time, write down that it
is fenced.  Whatever dies on the way, the same command again goes on; once fenced, a link is not fenced again.

What is decided is pure (blockers); times are ms since 1970, offsets half-open, those of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.divergence import read_headers
from tolerant_client.mirror.ledger import read_ledger
from tolerant_client.mirror.link.beginning import writes
from tolerant_client.mirror.link.control import LinkControl, read_control, update_control
from tolerant_client.mirror.link.fence import Fenced, fence_identical, fence_translated
from tolerant_client.mirror.link.group_requests import fetch_offsets, list_groups
from tolerant_client.mirror.link.groups import GroupsReport, sync_groups
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.mirror.producers import can_describe_producers, describe_producers
from tolerant_client.mirror.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.translated.map_topic import map_topic, read_maps
from tolerant_client.raw import LATEST, READ_COMMITTED, RawCluster

_LOOK_S = 1.0  # between two looks: what stands still for that long, stands
_SHOWN = 5


class Ends(NamedTuple):
    """A partition of a link: offsets before `copied` are on the target.

    The source's committed part ends at `stable`, its log at `end`; both None where the source is not asked.
    """

    partition: TopicPartition
    copied: int
    stable: int | None
    end: int | None

    @property
    def lag(self) -> int:
        return 0 if self.stable is None else max(0, self.stable - self.copied)

    @property
    def open_offsets(self) -> int:
        """What lies behind a transaction that is open."""
        return 0 if self.stable is None or self.end is None else self.end - self.stable

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


@dataclass(frozen=True)
class PromotedPartition:
    """Where the copy of a partition ends; `lag` are the source's committed offsets that are not on the target."""

    topic: str
    partition: int
    copied_until: int
    lag: int | None
    last_copied_ms: int | None  # timestamp of the last record that was copied
    fence_marker: int | None = None
    fence_records: tuple[int, ...] = ()
    is_heartbeats: bool = False


@dataclass(frozen=True)
class GroupPlace:
    """Where a group stands on the target; `left_to_read` offsets of the copy lie before it."""

    group: str
    topic: str
    partition: int
    offset: int
    left_to_read: int


@dataclass(frozen=True)
class PromotionReport:
    """What promotion or failover has done, or would do; `is_done` once nothing of the link can write any more."""

    action: str
    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[PromotedPartition, ...]
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    groups: GroupsReport | None = None
    group_places: tuple[GroupPlace, ...] = ()
    losses: tuple[LedgerRow, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where all is well, 3 where an operator has to look."""
        behind = self.groups is not None and self.groups.behind
        return 3 if self.blockers or behind or any(p.lag for p in self.partitions if not p.is_heartbeats) else 0

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["losses"] = [row._asdict() for row in self.losses]
        if self.groups is not None:
            found["groups"] = groups_json(self.groups)
        return {**found, "exit_code": self.exit_code}


def groups_json(report: GroupsReport) -> dict[str, Any]:
    """A round of group offsets, without the metadata that groups keep beside theirs."""

    def place(position: Any) -> dict[str, Any]:
        return {"group": position.group, **position.partition._asdict(), "source": position.upstream, "target": position.offset}

    return {
        "moved": [{**place(m.position), "before": m.before} for m in report.moved],
        "unchanged": report.unchanged,
        "behind": [place(p) for p in report.behind],
        "left": [left._asdict() for left in report.left],
    }


def blockers(ends: Iterable[Ends], before: Mapping[TopicPartition, Ends]) -> list[str]:
    """Why a link cannot be promoted now; `before` is an earlier look."""
    found: list[str] = []
    known = list(ends)
    lagging = [e for e in known if e.lag]
    if lagging:
        found.append(f"{sum(e.lag for e in lagging):,} offsets are not copied yet: {_some(f'{e} {e.lag:,}' for e in lagging)}")
    if opened := [e for e in known if e.open_offsets]:
        what = _some(f"{e} from offset {e.stable} on" for e in opened)
        found.append(f"transactions are open on the source, nothing behind them is copied: {what}; end them, or their producers")
    grown = [e for e in known if e.partition in before and e.end != before[e.partition].end]
    if grown:
        found.append(f"producers still write to the source: {_some(map(str, grown))}; stop them")
    return found


def _some(texts: Iterable[str]) -> str:
    known = list(texts)
    return ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")


async def promote(
    source: RawCluster,
    target: RawCluster,
    link: str,
    topics: LinkTopics | None = None,
    groups: TopicFilter | None = None,
    *,
    deadline_s: float = 60.0,
    is_dry_run: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> PromotionReport:
    """Promotes a link whose source is there, once all of it is copied; `groups` are moved a last time.

    The producers on the source must have been stopped; the mirror still runs.  `topics` are what the link has written
    down of itself where they are not given.  `tell` gets what is waited for.  Where something is in the way after
    `deadline_s`, nothing has been written.  Raises OptionError and KafkaError.
    """
    control = await read_control(target, link)
    chosen = link_topics(control, link, topics)
    if control.is_fenced:
        return _promoted_before("promote", link, is_dry_run)
    is_translated = await has_map(target, link)
    partitions = await partitions_of_link(source, target, chosen)
    deadline = time.monotonic() + deadline_s
    before: dict[TopicPartition, Ends] = {}
    while True:
        ends = await look(source, target, link, partitions, is_translated)
        # Heartbeats never end; they say nothing that is to be kept.
        found = blockers((e for e in ends if not is_heartbeats(chosen, e.partition.topic)), before)
        if control.is_promoted or before and not found:  # what was begun before has no way back
            break
        if before and time.monotonic() >= deadline:
            break
        if found:
            tell("; ".join(found))
        before = {e.partition: e for e in ends}
        await source.net.sleep(_LOOK_S)
    fences: dict[TopicPartition, Fenced] = {}
    will_do = not is_dry_run and (control.is_promoted or not found)
    if will_do:
        fences = await _fence(target, link, partitions, is_translated)
        ends = _as_fenced(await look(source, target, link, partitions, is_translated), fences)
    moved = None
    if groups is not None:
        name = link if is_translated else None
        moved = await sync_groups(source, target, chosen, groups, link=name, is_dry_run=not will_do)
    if will_do:
        await update_control(target, link, lambda now: replace(now, is_fenced=True))
    return PromotionReport(
        "promote",
        link,
        is_dry_run,
        will_do,
        await _partitions(target, chosen, ends, fences, is_translated),
        () if will_do else tuple(found),
        await _open_transactions(source, ends),
        moved,
        losses=await _losses(target, link),
    )


async def failover(
    target: RawCluster, link: str, topics: LinkTopics | None = None, groups: TopicFilter | None = None, *, is_dry_run: bool = False
) -> PromotionReport:
    """Promotes a link whose source is gone, with what the target has; the mirror may run or not.

    Raises OptionError and KafkaError.
    """
    control = await read_control(target, link)
    chosen = link_topics(control, link, topics)
    if control.is_fenced:
        return _promoted_before("failover", link, is_dry_run)
    is_translated = await has_map(target, link)
    partitions = await _partitions_on(target, chosen)
    if not partitions:
        raise OptionError(f"The target has no topic of link {link}; check --link and --topics")
    fences = {} if is_dry_run else await _fence(target, link, partitions, is_translated)
    ends = _as_fenced(await look(None, target, link, partitions, is_translated), fences)
    if not is_dry_run:
        await update_control(target, link, lambda now: replace(now, is_fenced=True))
    shown = await _partitions(target, chosen, ends, fences, is_translated)
    places = await _group_places(target, groups or TopicFilter(), {e.partition: e.copied for e in ends}, is_translated)
    return PromotionReport(
        "failover",
        link,
        is_dry_run,
        not is_dry_run,
        shown,
        warnings=failover_warnings(shown),
        group_places=tuple(places),
        losses=await _losses(target, link),
    )


def failover_warnings(partitions: Iterable[PromotedPartition]) -> tuple[str, ...]:
    """What cannot be known while the source is gone."""
    times = [p.last_copied_ms for p in partitions if p.last_copied_ms is not None]
    newest = f"; the newest record that was copied is of {_text_of(max(times))}" if times else ""
    return (
        f"what the source had beyond the offsets above is not known{newest}: when it comes back, failback names what is there only",
        "transactions that were open on the source when it went are not on the target, none of their records",
    )


def _text_of(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000)) + f".{time_ms % 1000:03d} UTC"


# -- steps --------------------------------------------------------------------


def link_topics(control: LinkControl, link: str, given: LinkTopics | None) -> LinkTopics:
    """What a link copies; raises OptionError where nobody says so."""
    if given is not None:
        return given
    if control.topics is None:
        raise OptionError(f"No mirror of link {link} has written down what it copies; check --link, or give --topics")
    return LinkTopics.from_json(control.topics)


async def has_map(target: RawCluster, link: str) -> bool:
    """Whether the link has translated offsets."""
    return map_topic(link) in await target.partitions([map_topic(link)])


async def partitions_of_link(source: RawCluster, target: RawCluster, topics: LinkTopics) -> list[TopicPartition]:
    """Every partition of the link that the source has and the target, too.

    Raises OptionError for one that the target lacks: the mirror has not seen it yet.
    """
    there = {TopicPartition(t, n) for t, numbers in (await target.partitions()).items() for n in numbers}
    names = [name for name in await source.partitions() if writes(topics, name)]
    wanted = [TopicPartition(t, n) for t, numbers in (await source.partitions(names)).items() for n in numbers]
    if not wanted:
        raise OptionError("The source has no topic of this link; check --link and --topics")
    if lacking := sorted(set(wanted) - there):
        raise OptionError(
            f"{lacking[0].topic}-{lacking[0].partition} is not on the target yet ({len(lacking)} partitions of the link are not):"
            " let the mirror run until it has seen them, or leave their topics out"
        )
    return sorted(wanted)


async def _open_transactions(source: RawCluster, ends: Iterable[Ends]) -> tuple[str, ...]:
    """Whose transactions are open on the source, where its brokers tell (Kafka 2.8)."""
    wanted = [e.partition for e in ends if e.open_offsets]
    if not wanted or not can_describe_producers(source):
        return ()
    told = await describe_producers(source, wanted)
    return tuple(
        f"{partition.topic}-{partition.partition}: producer id {entry.producer_id} has had a transaction open since offset"
        f" {entry.transaction_start}"
        for partition, entries in sorted(told.items())
        for entry in entries
        if entry.transaction_start >= 0
    )


def is_heartbeats(topics: LinkTopics, name: str) -> bool:
    """Whether a topic of the target has the heartbeats that MirrorMaker 2's tools read."""
    return topics.names is not None and topics.names.policy.is_heartbeats(topics.to_source(name))


async def _partitions_on(target: RawCluster, topics: LinkTopics) -> list[TopicPartition]:
    found = await target.partitions()
    return sorted(TopicPartition(t, n) for t, numbers in found.items() if writes(topics, t) for n in numbers)


async def look(
    source: RawCluster | None, target: RawCluster, link: str, partitions: Iterable[TopicPartition], is_translated: bool
) -> list[Ends]:
    """How far both sides are; the target is asked before the source, so a lag is never told too small."""
    wanted = list(partitions)
    if is_translated:
        maps = await read_maps(target, link, wanted)
        copied = {p: maps[p].position if p in maps else 0 for p in wanted}
    else:
        copied = await target.list_offsets(dict.fromkeys(wanted, LATEST))
    if source is None:
        return [Ends(p, copied[p], None, None) for p in wanted]
    stable = await source.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    end = await source.list_offsets(dict.fromkeys(wanted, LATEST))
    return [Ends(p, copied[p], stable[p], end[p]) for p in wanted]


async def _fence(
    target: RawCluster, link: str, partitions: list[TopicPartition], is_translated: bool
) -> dict[TopicPartition, Fenced]:
    control = await update_control(target, link, lambda now: replace(now, is_promoted=True))
    if is_translated:
        await fence_translated(target, link, partitions)
        return {}
    return await fence_identical(target, link, control, partitions)


def _as_fenced(ends: Iterable[Ends], fences: Mapping[TopicPartition, Fenced]) -> list[Ends]:
    return [e._replace(copied=fences[e.partition].copied_until) if e.partition in fences else e for e in ends]


async def _group_places(
    target: RawCluster, groups: TopicFilter, copied: Mapping[TopicPartition, int], is_translated: bool
) -> list[GroupPlace]:
    listed, _ = await list_groups(target)
    names = [g.name for g in listed.values() if groups.matches(g.name) and g.is_of_consumers]
    committed, _ = await fetch_offsets(target, names) if names else ({}, {})
    ends = await target.list_offsets(dict.fromkeys(copied, LATEST)) if is_translated else copied
    return [
        GroupPlace(name, place.topic, place.partition, offset.offset, max(0, ends[place] - offset.offset))
        for name, by_partition in sorted(committed.items())
        for place, offset in sorted(by_partition.items())
        if place in copied
    ]


async def _partitions(
    target: RawCluster, topics: LinkTopics, ends: Iterable[Ends], fences: Mapping[TopicPartition, Fenced], is_translated: bool
) -> tuple[PromotedPartition, ...]:
    known = list(ends)
    last = {} if is_translated else await read_headers(target, {e.partition: e.copied - 1 for e in known if e.copied})
    partitions = []
    for e in known:
        header, fence = last.get(e.partition), fences.get(e.partition)
        time_ms = header.max_timestamp if header is not None and not header.is_control and header.max_timestamp >= 0 else None
        partitions.append(
            PromotedPartition(
                e.partition.topic,
                e.partition.partition,
                e.copied,
                None if e.stable is None else e.lag,
                time_ms,
                None if fence is None else fence.marker,
                () if fence is None else fence.records,
                is_heartbeats(topics, e.partition.topic),
            )
        )
    return tuple(partitions)


async def _losses(target: RawCluster, link: str) -> tuple[LedgerRow, ...]:
    return tuple(row for row in await read_ledger(target) if row.link == link)


def _promoted_before(action: str, link: str, is_dry_run: bool) -> PromotionReport:
    return PromotionReport(action, link, is_dry_run, True, (), warnings=(f"link {link} was promoted before; nothing was done",))
