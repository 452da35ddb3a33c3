"""Reads which position each consumer group of the source has on the target.

Laws:
- With identical offsets an offset is the same number; with translated ones the offset map gives it.  Either is limited to
  the target's log, [log start, log end].  If the log end limits it (`is_behind`), a later round moves it further.
- If a group's next records were copied by another mirror before the link took over, or the map has lost its row of them, their position
  on the target is unknown: the group is left where it is there.  So it is where the offset map is of a topic that is there no more (former_topics.py).

Consumers that assign their partitions by hand are not seen: to brokers their group is empty.  Share and streams groups
(KIP-932, KIP-1071) and those of Connect workers are left out, as MirrorMaker 2 does.
Groups whose offsets are no positions (OWN_GROUPS) are left out without a report: a sink's decision, moved or limited, would
name another micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import (
    CommittedOffset,
    GroupsHome,
    ListedGroup,
    OffsetsPartition,
    fetch_offsets,
    groups_home,
    list_groups,
)
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.refused_rights import DECISION_GROUPS
from tolerant_client.mirror.follow.former_topics import find_former
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.map_rows import read_maps
from tolerant_client.mirror.state.map_topic import require_map_topic
from tolerant_client.mirror.state.offset_map import Place, Translation
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS, LinkTopics, TopicFilter

OWN_GROUPS = (OWN_TOPICS, DECISION_GROUPS)  # offsets of groups with these prefixes are no positions in a log
_SHARED_S = 10.0
_BEFORE_TAKEOVER = (
    "its offset on the source is {}, which another mirror copied before the link took over, so its offset on the target is"
    " unknown; it is moved once its offset is one that the link has copied"
)
_LOST_ROW = (
    "its offset on the source is {}, of which the link's offset map has lost what it said (unclean election, or a power failure), so its"
    " offset on the target is unknown; it is moved once its offset is one that the map knows"
)
_UNKNOWN = {Place.BEFORE_TAKEOVER: _BEFORE_TAKEOVER, Place.LOST_ROW: _LOST_ROW}
_STOPPED = "the mirror copies nothing there now, and reports why by partition"
Offsets = Mapping[str, Mapping[TopicPartition, CommittedOffset]]  # by group; partitions have the target's names
Missing = Mapping[TopicPartition, tuple[str, str]]  # a reason of Left, and why


class GroupPosition(NamedTuple):
    """The position of a group: `upstream` on the source, therefore `offset` of `partition` (the target's name).

    `is_behind`: the target does not have all that the group has read yet, and `offset` is the end of its copy.
    `is_deleted`: the target has deleted what the group would read next, and `offset` is its log start.
    """

    group: str
    partition: TopicPartition
    upstream: int
    offset: int
    metadata: str
    is_behind: bool
    is_deleted: bool = False


class TargetLog(NamedTuple):
    """The target's log of a partition, half-open.

    `translate` has the translation of each offset of the source; None: the offsets are the same.
    """

    start: int
    end: int
    translate: Mapping[int, Translation] | None = None

    def unknown(self, offset: int) -> Place | None:
        """Why the target's offset for an offset of the source is unknown; None if it is known."""
        place = Place.RECORD if self.translate is None else self.translate[offset].place
        return None if place.is_known else place


@dataclass(frozen=True)
class GroupPositions:
    """The positions of all groups of a link, as of `read_at` (monotonic seconds), and groups whose position is unknown."""

    positions: tuple[GroupPosition, ...]
    left: tuple[Left, ...]
    read_at: float

    @property
    def behind(self) -> tuple[GroupPosition, ...]:
        """Groups that have read more than the target has."""
        return tuple(p for p in self.positions if p.is_behind)


async def read_positions(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics,
    groups: TopicFilter,
    *,
    link: str | None = None,
    leave_out: Collection[TopicPartition] = (),
) -> GroupPositions:
    """The positions of the groups with committed offsets of the link's topics, without partitions to `leave_out`.

    `link` is given only if its offsets are translated: then its map on the target translates them.
    Raises OptionError if such a link has no map, UnsupportedSourceError for a source before Kafka 0.10.2,
    ClusterUnreachableError.
    """
    read_at = time.monotonic()
    listed, unlisted = await list_groups(source)
    home = await groups_home(source)
    on_target = (await list_groups(target))[0] if home.dead else {}
    chosen, others = _of_consumers(listed.values(), groups)
    committed, failures = await fetch_offsets(source, chosen)
    wanted = _of_link(committed, topics, leave_out)
    logs, missing = await _target_logs(source, target, wanted, link)
    positions, unplaced = place_groups(wanted, logs, missing)
    left = (
        *_unlisted(source.name, listed, unlisted),
        *_of_dead_home(source.name, target.name, home, filter(groups.matches, on_target)),
        *others,
        *(Left(f"group {name}", "error", f"reading its offsets failed: {why}") for name, why in failures.items()),
        *(Left(_name(place), "stopped", _STOPPED) for place in leave_out),
        *unplaced,
    )
    return GroupPositions(tuple(positions), left, read_at)


def _unlisted(cluster: str, listed: Mapping[str, ListedGroup], unlisted: Mapping[str, object]) -> Iterator[Left]:
    """That no group is seen, and brokers that list none."""
    if not listed:
        yield Left(f"groups of the {cluster}", "none", "none was seen there; if it has some, grant Describe on them")
    for name, error in unlisted.items():
        yield Left(f"groups of {name} of the {cluster}", "error", str(error))


def _of_dead_home(source: str, target: str, home: GroupsHome, on_target: Iterable[str]) -> Iterator[Left]:
    """Partitions of the source's __consumer_offsets without a leader, with the groups on the target that belong there."""
    known = sorted(on_target)
    for partition in home.dead:
        hidden = [name for name in known if home.dead_home_of(name) == partition]
        known_as = f" (of those on the {target}: {', '.join(hidden)})" if hidden else ""
        why = f"no broker lists its groups{known_as} or their offsets; {leaderless_remedy(partition)}"
        yield Left(f"groups in {partition} of the {source}", "leaderless", why)


def _of_consumers(listed: Iterable[ListedGroup], groups: TopicFilter) -> tuple[list[str], list[Left]]:
    """The groups to move, and those of other kinds."""
    chosen, left = [], []
    for group in sorted(listed):
        if not groups.matches(group.name) or group.name.startswith(OWN_GROUPS):
            continue
        if group.is_of_consumers:
            chosen.append(group.name)
        else:
            kind = group.group_type if group.protocol_type in ("", "consumer") else group.protocol_type
            left.append(Left(f"group {group.name}", "type", f"it is a {kind} group: its offsets are no consumer's"))
    return chosen, left


def _of_link(committed: Offsets, topics: LinkTopics, leave_out: Collection[TopicPartition]) -> Offsets:
    """The offsets of the link's topics, under the target's names."""
    wanted: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for name, found in committed.items():
        for place, offset in found.items():
            if topics.takes(place.topic):
                there = TopicPartition(topics.to_target(place.topic), place.partition)
                if there not in leave_out:
                    wanted.setdefault(name, {})[there] = offset
    return wanted


def place_groups(
    wanted: Offsets, logs: Mapping[TopicPartition, TargetLog], missing: Missing
) -> tuple[list[GroupPosition], list[Left]]:
    """The position of each committed offset in the target's logs, and what is to be said of the others.  Pure."""
    positions: list[GroupPosition] = []
    left: list[Left] = []
    waiting: dict[TopicPartition, list[str]] = {}
    for group, by_partition in wanted.items():
        for place, offset in by_partition.items():
            if place in missing:
                waiting.setdefault(place, []).append(group)
            elif (unknown := logs[place].unknown(offset.offset)) is not None:
                left.append(Left(place_name(group, place), unknown.value, _UNKNOWN[unknown].format(offset.offset)))
            else:
                positions.append(position_of(group, place, offset, logs[place]))
    for position in positions:
        if position.is_deleted:
            why = f"its offset on the source is {position.upstream}, and the target's log starts at {position.offset}"
            left.append(Left(place_name(position.group, position.partition), "deleted", why))
    for place, names in waiting.items():
        reason, why = missing[place]
        left.append(Left(_name(place), reason, f"{why}; groups with offsets of it: {', '.join(names)}"))
    return positions, left


def position_of(group: str, partition: TopicPartition, committed: CommittedOffset, log: TargetLog) -> GroupPosition:
    """The position on the target for a group's committed offset on the source.  Pure."""
    wanted, is_behind = committed.offset, committed.offset > log.end
    if log.translate is not None:
        found = log.translate[committed.offset]
        wanted, is_behind = found.translated, found.place is Place.NOT_COPIED
    offset = max(log.start, min(wanted, log.end))
    return GroupPosition(group, partition, committed.offset, offset, committed.metadata, is_behind, wanted < log.start)


class SharedPositions:
    """The group positions that one duty has read, for another duty whose round comes right after."""

    def __init__(self, topics: LinkTopics, groups: TopicFilter, link: str | None = None) -> None:
        self._topics = topics
        self._groups = groups
        self._link = link
        self._known: tuple[str, frozenset[TopicPartition], GroupPositions] | None = None

    async def read(
        self, duty: str, source: Cluster, target: Cluster, leave_out: Collection[TopicPartition]
    ) -> GroupPositions:
        """The positions now, or of some seconds ago; a `duty` never gets the same reading twice.

        Raises what read_positions does.
        """
        known, self._known = self._known, None
        if known is not None:
            reader, without, positions = known
            is_fresh = time.monotonic() - positions.read_at < _SHARED_S
            if reader != duty and without == frozenset(leave_out) and is_fresh:
                return positions
        positions = await read_positions(
            source, target, self._topics, self._groups, link=self._link, leave_out=leave_out
        )
        self._known = duty, frozenset(leave_out), positions
        return positions


async def _target_logs(
    source: Cluster, target: Cluster, offsets: Offsets, link: str | None
) -> tuple[dict[TopicPartition, TargetLog], dict[TopicPartition, tuple[str, str]]]:
    """The target's logs of the partitions with group offsets, and why some of them are unknown."""
    wanted: dict[TopicPartition, set[int]] = {}
    for by_partition in offsets.values():
        for place, committed in by_partition.items():
            wanted.setdefault(place, set()).add(committed.offset)
    missing: dict[TopicPartition, tuple[str, str]] = {}
    if not wanted:
        return {}, {}
    there = await target.partitions()  # a request by name would fail for all topics if we may not describe one
    await target.track({place.topic for place in wanted} & there.keys())
    await target.refresh()
    for place in list(wanted):
        if place.partition not in there.get(place.topic, ()):
            missing[place] = (
                "no-topic",
                "the target has no such partition (yet, or any more), or does not let us describe it",
            )
        elif target.known_leader(place) is None:
            missing[place] = ("leaderless", "the partition has no leader on the target")
    present = [place for place in wanted if place not in missing]
    starts, untold = await list_led_offsets(target, dict.fromkeys(present, EARLIEST))
    ends, more = await list_led_offsets(target, dict.fromkeys(starts, LATEST))
    missing |= {place: ("leaderless", why) for place, why in {**untold, **more}.items()}
    present = list(ends)
    if link is None:
        return {place: TargetLog(starts[place], ends[place]) for place in present}, missing
    await require_map_topic(target, link, await read_control(target, link))
    maps = await read_maps(target, link, present)  # maps have the engine's names, which are the target's
    former = (await find_former(source, target, link, maps.values())).known
    missing |= {place: ("former-topic", why) for place, why in former.items()}
    logs = {}
    for place in present:
        if place in former:
            continue
        if place not in maps:
            missing[place] = ("not-copied", f"the map of link {link} has no row of it: nothing of it is copied yet")
            continue
        logs[place] = TargetLog(starts[place], ends[place], {o: maps[place].translate(o) for o in wanted[place]})
    return logs, missing


def place_name(group: str, partition: TopicPartition) -> str:
    """The offset of a group for a partition, as Left names it."""
    return f"group {group}, {_name(partition)}"


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def leaderless_remedy(partition: OffsetsPartition) -> str:
    return (
        f"it has no leader (replicas {_ids(partition.replicas)}, in sync {_ids(partition.isr)}): start one of these"
        " brokers, or reassign the partition"
    )


def _ids(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
