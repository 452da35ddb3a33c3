"""What promotion and failover read from the target of a link, for their reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import fetch_offsets, list_groups
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.identical.difference import is_all_filler
from tolerant_client.mirror.follow.group_positions import OWN_GROUPS
from tolerant_client.mirror.life.fence import Fenced
from tolerant_client.mirror.life.lens import PartitionLag, positions_of
from tolerant_client.mirror.life.owners import Evidence, Owners, find_owners
from tolerant_client.mirror.life.promotion_report import GroupPlace, PromotedPartition
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, read_ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics, last_rows
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter


@dataclass(frozen=True)
class PromotedLink:
    """The link that is promoted; `of_file` are the topics of its file, if one is given.

    `beside` are topics of the target alone that it has not begun (LinkView): a process of it that is about to is fenced, no more.
    If it has not run since it was prepared, logs `unseen` had no leader when they were checked, and why, and those that are `unlike` do
    not end where it was to continue, in words.
    """

    name: str
    target: Cluster
    topics: LinkTopics
    is_translated: bool
    lost_map: str | None  # why the offset map no longer says what was copied
    carried: Carried = Carried()  # partitions outside its topics that have its records
    mapped: MappedTopics = NO_MAP
    evidence: Evidence = Evidence()
    of_file: LinkTopics | None = None
    source_id: str | None = None  # None if the source is not asked
    beside: frozenset[TopicPartition] = frozenset()
    unseen: Mapping[TopicPartition, str] = field(default_factory=dict)
    unlike: Mapping[TopicPartition, str] = field(default_factory=dict)

    def owners(self, control: LinkControl, partitions: Collection[TopicPartition]) -> Owners:
        """Who owns these partitions, by what the link's control says now."""
        return find_owners(control, partitions, self.evidence, is_translated=self.is_translated)

    def is_shown(self, control: LinkControl) -> bool:
        """Whether anything shows that the link has copied to this target: a promotion of another would write into others' logs."""
        is_said = not control.is_unwritten or bool(control.producer_ids) or self.is_translated
        return is_said or bool(self.evidence.logs.partitions or self.evidence.held)

    def knowing(self, control: LinkControl) -> LinkControl:
        """The control with the link's producer ids, also if it names none."""
        return replace(control, producer_ids=control.producer_ids or self.evidence.producer_ids)

    def with_found(self, control: LinkControl, producer_id: int) -> LinkControl:
        """The control of a link that was fenced with this id, with what was found out because it tells of no start."""
        if not control.tells_no_start:
            return control
        is_lost = self.is_translated and self.lost_map  # coordinators forget what shows it
        control = replace(control, source_cluster_id=self.source_id, map_id="" if is_lost else None)
        own = () if self.is_translated else sorted(self.owners(control, control.copied_until).own)
        if not own:
            return control
        return replace(
            control,
            producer_ids=tuple(sorted({*self.evidence.producer_ids, producer_id})),
            begun={p: self.evidence.ids.get(p.topic, TopicIds()) for p in own},
        )

    def waits_for(self, topic: str) -> bool:
        """Whether a promotion waits for a topic: not for heartbeats, which never end, nor for one that the file does not name."""
        return not is_heartbeats(self.topics, topic) and (self.of_file is None or self.of_file.writes(topic))


async def still_copied(
    of: PromotedLink,
    control: LinkControl,
    before: Mapping[TopicPartition, PartitionLag],
    ends: Iterable[PartitionLag],
) -> set[TopicPartition]:
    """Partitions outside the file that gained records of the link since `before`: a mirror with an older file copies them."""
    moved = [
        (e.partition, e.position - 1)
        for e in ends
        if e.partition in before and e.position and e.position != before[e.partition].position
    ]
    unsaid = {p: last for p, last in moved if not of.waits_for(p.topic)}
    if of.is_translated:
        return set(unsaid)  # their positions are from the map, which only the link writes
    headers = await read_headers(of.target, unsaid)
    return {p for p, header in headers.items() if header.producer_id in control.producer_ids}


async def group_places(
    of: PromotedLink, groups: TopicFilter, copied: Mapping[TopicPartition, int]
) -> tuple[tuple[GroupPlace, ...], tuple[str, ...]]:
    """The positions of groups on the target, and a sentence for each group whose position is unknown."""
    try:
        listed, failures = await list_groups(of.target)
        consumers = [g.name for g in listed.values() if g.is_of_consumers and not g.name.startswith(OWN_GROUPS)]
        names = [name for name in consumers if groups.matches(name)]
        committed, unread = await fetch_offsets(of.target, names) if names else ({}, {})
    except ClusterUnreachableError:
        raise
    except Exception as error:  # groups do not undo a promotion
        return (), (f"the positions of groups on the target are unknown: {type(error).__name__}: {error}",)
    ends = await of.target.list_offsets(dict.fromkeys(copied, LATEST)) if of.is_translated else copied
    places = [
        GroupPlace(name, place.topic, place.partition, offset.offset, max(0, ends[place] - offset.offset))
        for name, by_partition in sorted(committed.items())
        for place, offset in sorted(by_partition.items())
        if place in copied
    ]
    missing = {**{f"groups of {name}": error for name, error in failures.items()}, **unread}
    return tuple(places), tuple(
        f"the position of {name} on the target is unknown: {error}" for name, error in missing.items()
    )


async def promoted_partitions(
    of: PromotedLink, ends: Iterable[PartitionLag], fences: Mapping[TopicPartition, Fenced]
) -> tuple[PromotedPartition, ...]:
    """The rows of the report, with the timestamp of the last copied record of each partition and its fence."""
    known = list(ends)
    until = positions_of(known)  # where the copies end in the target's logs
    if of.is_translated:
        rows = await last_rows(of.target, of.name, [p for p, end in until.items() if end])
        until = {p: row.target_until for p, row in rows.items() if row.has_copied}
    last = await read_headers(of.target, {p: end - 1 for p, end in until.items() if end})
    lasts = {p: (until[p] - 1, until[p]) for p in last}
    ends_with = await read_slices(of.target, lasts, is_committed=False)
    partitions = []
    for e in known:
        header, fence = last.get(e.partition), fences.get(e.partition)
        is_data = header is not None and not header.is_control and not is_all_filler(ends_with.get(e.partition))
        time_ms = header.max_timestamp if header is not None and is_data and header.max_timestamp >= 0 else None
        partitions.append(
            PromotedPartition(
                e.partition.topic,
                e.partition.partition,
                e.position,
                e.left_offsets,
                time_ms,
                None if fence is None else fence.marker,
                () if fence is None else fence.records,
                is_heartbeats(of.topics, e.partition.topic),
                left_deleted=e.deleted,
            )
        )
    return tuple(partitions)


def map_damage(of: PromotedLink) -> tuple[str, ...]:
    """A sentence that the map is lost, and what was not fenced for that reason."""
    if of.lost_map is None:
        return ()
    text = "Topics that only the map named are not fenced: a process of the link may still write there"
    return (f"{of.lost_map}. {text}",)


async def losses_of(target: Cluster, link: str) -> tuple[LedgerRow, ...]:
    try:
        rows = await read_ledger(target)
    except Errors.TopicAuthorizationFailedError as error:
        raise OptionError(
            f"We may not read what link {link} has lost: grant us Read and Describe on topic {LEDGER_TOPIC} of the target"
        ) from error
    return tuple(row for row in rows if row.link == link)
