"""Moves consumer groups on the target: each gets the position there that it has on the source.

Laws:
- With identical offsets an offset is the same number; with translated ones the offset map gives it.  Either is limited to
  the target's log, [log start, log end].  If the log end limits it (`is_behind`), a later round moves it further.
- If a group's next records were copied by another mirror before the link took over, their position on the target is
  unknown: the group is left where it is there.
- An offset is moved only while the group has no members on the target, which the brokers check again, and only
  forward, unless `may_rewind`: a group's own progress on the target counts.
- What is written depends only on the two clusters: a round may be killed anywhere, and two processes may each
  run it.  Of two that race, the slower may write an offset of moments ago; the next round corrects it.

Consumers that assign their partitions by hand are not seen: to brokers their group is empty.  Share and streams groups
(KIP-932, KIP-1071) and those of Connect workers are left out, as MirrorMaker 2 does.
Groups whose offsets are no positions (OWN_GROUPS) are left out without a report: a sink's decision, moved or limited, would
name another micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import (
    EMPTY_STATES,
    IN_USE,
    CommittedOffset,
    GroupsHome,
    OffsetsPartition,
    commit_offsets,
    fetch_offsets,
    group_states,
    groups_home,
    list_groups,
)
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.producer.transaction import DECISION_GROUPS
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.map_topic import read_maps, require_map_topic
from tolerant_client.mirror.state.offset_map import OffsetMap, Place
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS, LinkTopics, TopicFilter

OWN_GROUPS = (OWN_TOPICS, DECISION_GROUPS)  # offsets of groups with these prefixes are no positions in a log
_SHARED_S = 10.0
_BEFORE_TAKEOVER = (
    "its offset on the source is {}, which another mirror copied before the link took over, so its offset on the target is"
    " unknown; it is moved once its offset is one that the link has copied"
)


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


class GroupMove(NamedTuple):
    """An offset of a group that was written on the target (or would be); `before` is -1 if it had none."""

    position: GroupPosition
    before: int


class TargetLog(NamedTuple):
    """The target's log of a partition, half-open.

    `translate` maps offsets of the source to the target's offset and whether records before it are missing; None: the offsets
    are the same.  Offsets that cannot be translated are absent.
    """

    start: int
    end: int
    translate: Mapping[int, tuple[int, bool]] | None = None

    def knows(self, offset: int) -> bool:
        """Whether the target's offset for an offset of the source is known."""
        return self.translate is None or offset in self.translate


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


@dataclass(frozen=True)
class GroupsReport:
    """One round: offsets moved, how many were right already, and what was left.

    `latency_ms` is the time from reading the source's offsets until the target's are written.
    `left` reasons: "none" (no group at all), "leaderless" (a partition of __consumer_offsets, or of the topic), "type",
    "no-topic", "members" (in use on the target), "ahead" (further on the target), "not-copied" (no row in the map),
    "before-takeover" (another mirror has copied its next records), "deleted" (moved, but to the target's log start),
    "stopped" (by the mirror), "over" (not moved, since the link was promoted before), "error".
    """

    moved: tuple[GroupMove, ...]
    unchanged: int
    behind: tuple[GroupPosition, ...]
    left: tuple[Left, ...]
    latency_ms: int = field(default=0, compare=False)


def position_of(group: str, partition: TopicPartition, committed: CommittedOffset, log: TargetLog) -> GroupPosition:
    """The position on the target for a group's committed offset on the source.  Pure."""
    wanted, is_behind = committed.offset, committed.offset > log.end
    if log.translate is not None:
        wanted, is_behind = log.translate[committed.offset]
    offset = max(log.start, min(wanted, log.end))
    return GroupPosition(group, partition, committed.offset, offset, committed.metadata, is_behind, wanted < log.start)


def decide_moves(
    positions: Iterable[GroupPosition],
    before: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
    states: Mapping[str, str],
    *,
    may_rewind: bool = False,
) -> tuple[list[GroupMove], list[Left], int]:
    """The offsets to write, those to leave, and how many are right already.  Pure.

    `before` has the groups whose offsets on the target are known, `states` their states there.
    """
    moves: list[GroupMove] = []
    left: list[Left] = []
    in_use: dict[str, int] = {}
    unchanged = 0
    for position in positions:
        group, partition = position.group, position.partition
        if group not in before or group not in states:
            continue  # the caller has reported why that is unknown
        at = before[group].get(partition)
        if at is not None and at.offset == position.offset:
            unchanged += 1
        elif states[group] not in EMPTY_STATES:
            in_use[group] = in_use.get(group, 0) + 1
        elif at is not None and at.offset > position.offset and not may_rewind:
            why = f"its offset on the target is {at.offset}, and by the source {position.offset}: it is not moved back"
            left.append(Left(place_name(group, partition), "ahead", why))
        else:
            moves.append(GroupMove(position, -1 if at is None else at.offset))
    for group, count in in_use.items():
        why = f"it is in use on the target (state {states[group]}): {count} of its offsets were left to its consumers"
        left.append(Left(f"group {group}", "members", why))
    return moves, left, unchanged


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
    left: list[Left] = []
    if not listed:
        left.append(
            Left(f"groups of the {source.name}", "none", "none was seen there; if it has some, grant Describe on them")
        )
    left += [Left(f"groups of {name} of the {source.name}", "error", str(error)) for name, error in unlisted.items()]
    elsewhere = sorted((await list_groups(target))[0]) if home.dead else []
    for partition in home.dead:
        hidden = [name for name in elsewhere if groups.matches(name) and home.dead_home_of(name) == partition]
        known_as = f" (of those on the {target.name}: {', '.join(hidden)})" if hidden else ""
        why = f"no broker lists its groups{known_as} or their offsets; {_remedy(partition)}"
        left.append(Left(f"groups in {partition} of the {source.name}", "leaderless", why))
    chosen = []
    for group in sorted(listed.values()):
        if not groups.matches(group.name) or group.name.startswith(OWN_GROUPS):
            continue
        if group.is_of_consumers:
            chosen.append(group.name)
        else:
            kind = group.group_type if group.protocol_type in ("", "consumer") else group.protocol_type
            left.append(Left(f"group {group.name}", "type", f"it is a {kind} group: its offsets are no consumer's"))
    committed, failures = await fetch_offsets(source, chosen)
    left += [Left(f"group {name}", "error", f"reading its offsets failed: {error}") for name, error in failures.items()]
    wanted: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for name, found in committed.items():
        for place, offset in found.items():
            if topics.takes(place.topic):
                there = TopicPartition(topics.to_target(place.topic), place.partition)
                if there not in leave_out:
                    wanted.setdefault(name, {})[there] = offset
    left += [
        Left(
            f"{p.topic}-{p.partition}",
            "stopped",
            "the mirror does not copy it now, and reports why for the partition itself",
        )
        for p in leave_out
    ]
    logs, missing = await _target_logs(target, wanted, link)
    positions = []
    waiting: dict[TopicPartition, list[str]] = {}
    for name, by_partition in wanted.items():
        for place, offset in by_partition.items():
            if place in missing:
                waiting.setdefault(place, []).append(name)
            elif not logs[place].knows(offset.offset):
                left.append(Left(place_name(name, place), "before-takeover", _BEFORE_TAKEOVER.format(offset.offset)))
            else:
                positions.append(position_of(name, place, offset, logs[place]))
    for position in positions:
        if position.is_deleted:
            why = f"its offset on the source is {position.upstream}, and the target's log starts at {position.offset}"
            left.append(Left(place_name(position.group, position.partition), "deleted", why))
    for place, names in waiting.items():
        reason, why = missing[place]
        left.append(
            Left(f"{place.topic}-{place.partition}", reason, f"{why}; groups with offsets of it: {', '.join(names)}")
        )
    return GroupPositions(tuple(positions), tuple(left), read_at)


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


async def sync_groups(
    target: Cluster,
    known: GroupPositions,
    *,
    may_rewind: bool = False,
    is_dry_run: bool = False,
    may_write: Callable[[], Awaitable[None]] | None = None,
) -> GroupsReport:
    """One round for groups of the source, whose positions were just read; `may_write` is passed to commit_offsets.

    Raises what `may_write` raises, and ClusterUnreachableError.
    """
    names = sorted({p.group for p in known.positions})
    left = list(known.left)
    home = await groups_home(target) if names else GroupsHome(())
    for name in list(names):
        if (partition := home.dead_home_of(name)) is not None:
            names.remove(name)
            why = f"its offsets belong to {partition} of the {target.name}; {_remedy(partition)}"
            left.append(Left(f"group {name}", "leaderless", why))
    before, failures = await fetch_offsets(target, names) if names else ({}, {})
    states, more = await group_states(target, before) if before else ({}, {})
    for name, error in {**failures, **more}.items():
        left.append(Left(f"group {name}", "error", f"describing it on the {target.name} failed: {error}"))
    moves, stay, unchanged = decide_moves(known.positions, before, states, may_rewind=may_rewind)
    left += stay
    if not is_dry_run:
        moves, refused = await _write(target, moves, may_write)
        left += refused
    latency_ms = round((time.monotonic() - known.read_at) * 1000)
    return GroupsReport(tuple(sorted(moves)), unchanged, known.behind, tuple(left), latency_ms)


async def _write(
    target: Cluster, moves: Iterable[GroupMove], may_write: Callable[[], Awaitable[None]] | None = None
) -> tuple[list[GroupMove], list[Left]]:
    """The moves that were written, and why the others were not."""
    unwritten = {(move.position.group, move.position.partition): move for move in moves}
    written: list[GroupMove] = []
    left: list[Left] = []
    for has_metadata in (True, False):  # if the target's offset.metadata.max.bytes is lower: without metadata
        wanted: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for (group, partition), move in unwritten.items():
            metadata = move.position.metadata if has_metadata else ""
            wanted.setdefault(group, {})[partition] = CommittedOffset(move.position.offset, metadata)
        codes, failures = await commit_offsets(target, wanted, may_write) if wanted else ({}, {})
        for group, error in failures.items():
            left.append(
                Left(f"group {group}", "error", f"committing for it failed, the next round tries again: {error}")
            )
        too_large: dict[tuple[str, TopicPartition], GroupMove] = {}
        refused: dict[tuple[str, int], list[str]] = {}
        for group, by_partition in codes.items():
            for partition, code in by_partition.items():
                move = unwritten[group, partition]
                if not code:
                    written.append(move)
                elif code == Errors.OffsetMetadataTooLargeError.errno and has_metadata:
                    too_large[group, partition] = move
                else:
                    refused.setdefault((group, code), []).append(f"{partition.topic}-{partition.partition}")
        left += [_refusal(group, code, places) for (group, code), places in refused.items()]
        unwritten = too_large
    return written, left


def _refusal(group: str, code: int, places: list[str]) -> Left:
    if code in IN_USE:
        why = f"it is in use on the target: {len(places)} of its offsets were left to its consumers"
        return Left(f"group {group}", "members", why)
    kind = Errors.for_code(code)
    remedy = "; grant Read on the group and on its topics" if issubclass(kind, Errors.AuthorizationError) else ""
    return Left(
        f"group {group}", "error", f"the target refuses its offsets of {', '.join(places)}: {kind.__name__}{remedy}"
    )


async def _target_logs(
    target: Cluster, offsets: Mapping[str, Mapping[TopicPartition, CommittedOffset]], link: str | None
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
    logs = {}
    for place in present:
        if place not in maps:
            missing[place] = ("not-copied", f"the map of link {link} has no row of it: nothing of it is copied yet")
            continue
        logs[place] = TargetLog(starts[place], ends[place], _translated(maps[place], wanted[place]))
    return logs, missing


def _translated(offset_map: OffsetMap, offsets: Iterable[int]) -> dict[int, tuple[int, bool]]:
    found = {offset: offset_map.translate(offset) for offset in offsets}
    known = {offset: t for offset, t in found.items() if t.place is not Place.BEFORE_TAKEOVER}
    return {offset: (t.translated, t.place is Place.NOT_COPIED) for offset, t in known.items()}


def place_name(group: str, partition: TopicPartition) -> str:
    """The offset of a group for a partition, as Left names it."""
    return f"group {group}, {partition.topic}-{partition.partition}"


def _remedy(partition: OffsetsPartition) -> str:
    return (
        f"it has no leader (replicas {_ids(partition.replicas)}, in sync {_ids(partition.isr)}): start one of these"
        " brokers, or reassign the partition"
    )


def _ids(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
