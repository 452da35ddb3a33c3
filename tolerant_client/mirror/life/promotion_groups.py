"""The groups of a promotion: moved a last time by the command that promotes the link, and by none after it.

Laws:
- Once a link is over, the position of a group on the target is the group's own: its consumers have read on there, or an operator has
  set it back to read again what a move would pass over.  So a repeated promotion, also one after a failover, which moves no
  group, names what it would have moved and leaves it.
- What the target has after the end of the copy are records of its own, whatever the source has at their offsets: no group's position
  on the source leads there.
- Groups do not undo a promotion: an error that a repeat would not cure leaves them all, and is reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, text_of
from tolerant_client.mirror.follow.group_positions import GroupPosition, place_name, read_positions
from tolerant_client.mirror.follow.groups import GroupMove, GroupsReport, sync_groups
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.link_control import Positions
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

STAY = (
    "the link was promoted before, and only the command that promotes a link moves groups (a failover moves none): a group"
    " that was not moved and has neither read on, nor been set back on purpose, on the target reads records again there; stop"
    " its consumers and set it with kafka-consumer-groups.sh --reset-offsets --to-offset"
)


async def move_groups(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics,
    groups: TopicFilter,
    *,
    map_of: str | None,
    without: Collection[TopicPartition],
    limits: Positions = MappingProxyType({}),
    is_dry_run: bool,
) -> GroupsReport:
    """Moves group offsets once; `map_of` is the link if its offsets are translated.  Some copies are damaged, and end at these `limits`."""

    async def moved() -> GroupsReport:
        known = await read_positions(source, target, topics, groups, link=map_of, leave_out=without)
        if limits:
            whole = (position for position in known.positions if position.partition not in limits)
            inside = within_copies(known.positions, limits, is_translated=map_of is not None)
            known = replace(known, positions=(*whole, *inside))
        report = await sync_groups(target, known, is_dry_run=is_dry_run)
        # Those of partitions that are not promoted: the report names these partitions already.
        return replace(report, left=tuple(left for left in report.left if left.reason != "stopped"))

    return await _unless_it_fails(moved)


async def unmoved_groups(
    source: Cluster, target: Cluster, topics: LinkTopics, groups: TopicFilter, ends: Positions, *, map_of: str | None
) -> GroupsReport:
    """The groups that a promotion would move now, as left, of a link that is over and whose copies end at `ends`."""
    if not ends:
        why = "none was moved, and where they belong is unknown, since where the copies end is (or they are no copies any more)"
        return GroupsReport((), 0, (), (Left("all groups", "over", why),))

    async def rehearsed() -> GroupsReport:
        known = await read_positions(source, target, topics, groups, link=map_of)
        inside = within_copies(known.positions, ends, is_translated=map_of is not None)
        report = await sync_groups(target, replace(known, positions=tuple(inside)), is_dry_run=True)
        return replace(report, moved=(), left=(*report.left, *map(_not_moved, report.moved)))

    return await _unless_it_fails(rehearsed)


def within_copies(
    positions: Iterable[GroupPosition], ends: Positions, *, is_translated: bool
) -> Iterator[GroupPosition]:
    """The positions in copies that end at these source offsets, limited to these ends.  Pure."""
    for position in positions:
        if (end := ends.get(position.partition)) is None:
            continue
        if not is_translated and position.upstream > end:  # the offset map limits the others
            position = position._replace(offset=min(position.offset, end), is_behind=True)
        yield position


def _not_moved(move: GroupMove) -> Left:
    at = "it has none" if move.before < 0 else f"its offset is {move.before}"
    why = f"by its position on the source it belongs at offset {move.position.offset} of the target, where {at}: it was not moved"
    return Left(place_name(move.position.group, move.position.partition), "over", why)


async def _unless_it_fails(report: Callable[[], Awaitable[GroupsReport]]) -> GroupsReport:
    try:
        return await report()
    except ClusterUnreachableError:
        raise
    except Exception as error:
        text = text_of(error)
        why = (
            f"none can be moved ({type(error).__name__}: {text}); set them on the target to their positions on the source"
            " with kafka-consumer-groups.sh --reset-offsets"
        )
        return GroupsReport((), 0, (), (Left("all groups", "error", why),))
