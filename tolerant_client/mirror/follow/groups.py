"""Moves consumer groups on the target to the positions that they have on the source.

Laws:
- An offset is moved only while the group has no members on the target, which the brokers check again, and only
  forward, unless `may_rewind`: a group's own progress on the target counts.
- What is written depends only on the two clusters: a round may be killed anywhere, and two processes may each
  run it.  Of two that race, the slower may write an offset of moments ago; the next round corrects it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import (
    EMPTY_STATES,
    IN_USE,
    CommittedOffset,
    GroupsHome,
    commit_offsets,
    fetch_offsets,
    group_states,
    groups_home,
)
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.follow.group_positions import (
    GroupPosition,
    GroupPositions,
    leaderless_remedy,
    place_name,
)
from tolerant_client.mirror.follow.skipped import Left


class GroupMove(NamedTuple):
    """An offset of a group that was written on the target (or would be); `before` is -1 if it had none."""

    position: GroupPosition
    before: int


@dataclass(frozen=True)
class GroupsReport:
    """One round: offsets moved, how many were right already, and what was left.

    `latency_ms` is the time from reading the source's offsets until the target's are written.
    `left` reasons: "none" (no group at all), "leaderless" (a partition of __consumer_offsets, or of the topic), "type",
    "no-topic", "members" (in use on the target), "ahead" (further on the target), "not-copied" (no row in the map),
    "before-takeover" (another mirror has copied its next records), "lost-row" (the map has lost what it said of them),
    "former-topic" (the map is of one that is there no more),
    "deleted" (moved, but to the target's log start), "stopped" (by the mirror), "over" (not moved, since the link was promoted
    before), "error".
    """

    moved: tuple[GroupMove, ...]
    unchanged: int
    behind: tuple[GroupPosition, ...]
    left: tuple[Left, ...]
    latency_ms: int = field(default=0, compare=False)


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
            why = (
                f"its offset on the target is {at.offset}, after {position.offset}, where it belongs by its position on the source: it is"
                " not moved back"
            )
            left.append(Left(place_name(group, partition), "ahead", why))
        else:
            moves.append(GroupMove(position, -1 if at is None else at.offset))
    for group, count in in_use.items():
        why = f"it is in use on the target (state {states[group]}): {_of_its_offsets(count)} left to its consumers"
        left.append(Left(f"group {group}", "members", why))
    return moves, left, unchanged


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
            why = f"its offsets belong to {partition} of the {target.name}; {leaderless_remedy(partition)}"
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


def _of_its_offsets(number: int) -> str:
    return f"{number:,} of its offsets {'was' if number == 1 else 'were'}"


def _refusal(group: str, code: int, places: list[str]) -> Left:
    if code in IN_USE:
        why = f"it is in use on the target: {_of_its_offsets(len(places))} left to its consumers"
        return Left(f"group {group}", "members", why)
    kind = Errors.for_code(code)
    remedy = "; grant Read on the group and on its topics" if issubclass(kind, Errors.AuthorizationError) else ""
    return Left(
        f"group {group}", "error", f"the target refuses its offsets of {', '.join(places)}: {kind.__name__}{remedy}"
    )
