"""Failover: the target of a link becomes a cluster that applications write to, without the source.

The steps are those of promotion.py, but failover waits for nothing and moves no groups: it reports their positions on the target.
Laws, besides those of promotion_steps.py:
- The source is gone, so applications wait for every partition that can be fenced.  Failover fences the partitions that have a
  leader and writes those without one in the control; the same command again fences only these.  It writes nothing where it can fence
  nothing, and reports what was fenced before.
- A partition of the offset map that cannot be read is written there too: topics that only it names are unknown until it is read.

Offsets are half-open and the source's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.damage import as_damaged, delete_filler, find_damage, missing_topics, unchecked
from tolerant_client.mirror.life.deleted_copies import deleted_warnings
from tolerant_client.mirror.life.fence import Fenced
from tolerant_client.mirror.life.lens import look, positions_of
from tolerant_client.mirror.life.owners import Owners
from tolerant_client.mirror.life.promotion_blockers import not_fenced
from tolerant_client.mirror.life.promotion_report import (
    PromotionReport,
    carried_warnings,
    failover_warnings,
)
from tolerant_client.mirror.life.promotion_steps import (
    LEADERS_MS,
    as_fenced,
    end_map,
    fence_own,
    fenced_before,
    promoted_link,
    require_fencing_right,
    require_reading_right,
    unless_promoted,
    unshown,
    without_leader,
    write_end,
)
from tolerant_client.mirror.life.promotion_view import group_places, losses_of, map_damage, promoted_partitions
from tolerant_client.mirror.state.control_topic import half_done, read_control
from tolerant_client.mirror.state.link_control import LinkControl, plain_options
from tolerant_client.mirror.state.link_topics import beside_file, partitions_on_target, require_whole, unread_map
from tolerant_client.mirror.state.map_rows import mapped_topics
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter


async def failover(
    target: Cluster,
    link: str,
    topics: LinkTopics | None = None,
    groups: TopicFilter | None = None,
    *,
    of_file: bool = False,
    is_dry_run: bool = False,
) -> PromotionReport:
    """Promotes a link whose source is gone, with what the target has; the mirror may run or not.

    Partitions without a leader delay no others: they are left, and the report is not done.  `topics` and `of_file` are promote's.
    Raises OptionError; TolerantClientError if it fails once the promotion is written; KafkaError.
    """
    promoting = partial(_fail_over, target, link, topics=topics, groups=groups, of_file=of_file, is_dry_run=is_dry_run)
    may_be_forgotten = topics is not None
    return await unless_promoted(
        "failover", None, target, link, promoting, is_dry_run=is_dry_run, may_be_forgotten=may_be_forgotten
    )


async def _fail_over(
    target: Cluster,
    link: str,
    control: LinkControl,
    *,
    topics: LinkTopics | None,
    groups: TopicFilter | None,
    of_file: bool,
    is_dry_run: bool,
) -> PromotionReport:
    chosen = await require_whole(None, target, control, link, topics, of_file=of_file)
    mapped = await mapped_topics(target, link, control, patience_ms=LEADERS_MS)
    beside = await beside_file(None, target, control, link, topics if of_file else None, mapped)
    partitions = await partitions_on_target(target, chosen, link, control, mapped)
    of = await promoted_link(target, link, control, chosen, mapped, partitions, alone=partitions)
    there = partitions = sorted({*partitions, *of.carried.partitions})
    if not partitions and not control.unfenced:
        raise OptionError(f"The target has no topic of link {link}; check --target and --link")
    if not of.is_shown(control):
        raise OptionError(unshown(of))
    partitions = [p for p in partitions if {p, map_partition(link, p)} & control.unfenced or not control.unfenced]
    first = of.owners(control, partitions)
    leaderless = await without_leader(of, [p for p in partitions if p not in first.left])
    led = [p for p in partitions if p not in leaderless]
    will_do = not is_dry_run and (bool(led) or not (leaderless or mapped.unread))
    blocked = not_fenced(leaderless, () if will_do else led, control)
    blocked += [unread_map(mapped.unread, link)] if mapped.unread else []

    async def seen(owners: Owners, fences: Mapping[TopicPartition, Fenced]) -> PromotionReport:
        shown = [p for p in led if p not in owners.left]
        control = await read_control(target, link)  # a running mirror writes it until the fence
        ends = as_fenced(await look(None, target, link, shown, of.is_translated, of.knowing(control)), fences)
        damaged = await find_damage(of, of.knowing(control), there, positions_of(ends))
        if fences:
            damaged = await delete_filler(target, of.knowing(control), damaged)
        ends = as_damaged(ends, damaged)
        deleted = await deleted_warnings(of, control, ends, None)
        rows = await promoted_partitions(of, [*fenced_before(control), *ends], fences)
        known = {e.partition: e.position or 0 for e in ends if e.position is not None or e.partition in damaged}
        places, unread = await group_places(of, groups or TopicFilter(), known)
        return PromotionReport(
            "failover",
            link,
            is_dry_run,
            will_do and not blocked,
            rows,
            tuple(blocked),
            (
                *beside.kept,
                *carried_warnings(of.carried),
                *deleted,
                *failover_warnings(rows, target.file_options or f"--source SOURCE {plain_options(link, target)}"),
                *unchecked(of, control),
                *unread,
            ),
            group_places=places,
            losses=await losses_of(target, link),
            is_begun=bool(blocked) and (will_do or control.is_promotion_begun),
            damaged=(
                *map_damage(of),
                *missing_topics(of, control, there),
                *(found.text for found in damaged.values() if found.text),
            ),
            not_promoted=(*owners.texts(link), *beside.not_begun),
        )

    await require_reading_right(of, first.own.difference(leaderless))
    if will_do:
        producer_id = await require_fencing_right(of)
    report = await seen(first, {})  # reads all that the report needs: a missing right is found before the first write
    if not will_do:
        return report
    with half_done("the promotion"):
        begun, fences, owners = await fence_own(of, control, led, producer_id)
        unsaid = await end_map(of, begun)
        report = await seen(owners, fences)
        report = replace(report, warnings=(*report.warnings, *unsaid))
        await write_end(of, begun, report, producer_id, frozenset({*leaderless, *mapped.unread}))
    return report
