"""Promotion: the target of a link becomes a cluster that applications write to, with all that the source has.

Steps: wait until everything on the source is copied and nothing differs, write in the control that the link is promoted, fence
every process of the link (fence.py), read how far the copy came, move the groups a last time, write that the link is fenced.
Laws, besides those of promotion_steps.py:
- Topics that the link has and the file no longer names belong to the link until it is promoted.  The promotion reports them
  before it writes, compares them, and waits for them only where a mirror is seen to copy them.  Topics that the file names and
  the link does not have block a promotion.
- A partition of which the source does not tell how far it is (it has no leader) blocks the promotion, which waits for it as for
  the others, no longer than it is told to: it delays the report of no other partition.
- A partition that cannot be fenced, since it has no leader on the target, blocks the promotion at once; the report shows the others.
- Topics that only the source has, and that the link did not make because they are another link's, are named and left.
- The groups are rehearsed before anything is written.  Groups that cannot be moved are left and reported.
- What is lost after a promotion was interrupted no longer blocks it.  The report still names it.
- A promotion that finishes a failover reports what that one has left behind, too, of the partitions that it has fenced.  Others may
  have written since to what that one left, or made any of it anew: it is checked as by a failover (damage.py), and no group is moved past
  the copies.

promotion_blockers.py decides what blocks a promotion; it is pure.  Offsets are half-open and the source's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.circles import link_back, refuse_one_cluster
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.life.comparison import compare_ends, split
from tolerant_client.mirror.life.damage import Damage, as_damaged, created_again, delete_filler, find_damage
from tolerant_client.mirror.life.deleted_copies import deleted_warnings
from tolerant_client.mirror.life.fence import Fenced
from tolerant_client.mirror.life.left_behind import promoted_before, shorter, unknown_left, with_left, without_ends
from tolerant_client.mirror.life.lens import PartitionLag, look, open_spans, positions_of
from tolerant_client.mirror.life.lost_copies import gone_on_both
from tolerant_client.mirror.life.mirrors import look_at_claims, mirror_reasons, seen_mirrors, standing
from tolerant_client.mirror.life.promotion_blockers import (
    blockers,
    copied_besides,
    lacking_blockers,
    named,
    news,
    not_fenced,
)
from tolerant_client.mirror.life.promotion_groups import move_groups
from tolerant_client.mirror.life.promotion_report import (
    PromotionReport,
    carried_warnings,
    gone_warnings,
    unmade_texts,
)
from tolerant_client.mirror.life.promotion_steps import (
    LEADERS_MS,
    as_fenced,
    end_map,
    fence_own,
    fenced_before,
    moves_to_source,
    promoted_link,
    require_fencing_right,
    require_reading_right,
    require_same_promotion,
    unless_promoted,
    unshown,
    without_leader,
    write_end,
)
from tolerant_client.mirror.life.promotion_view import (
    PromotedLink,
    losses_of,
    map_damage,
    promoted_partitions,
    still_copied,
)
from tolerant_client.mirror.state.control_topic import half_done, read_control
from tolerant_client.mirror.state.health import waiting_reasons
from tolerant_client.mirror.state.lacking import sort_lacking, without_former
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.link_topics import (
    BesideFile,
    beside_file,
    is_heartbeats,
    only_on_target,
    partitions_of_link,
    require_whole,
)
from tolerant_client.mirror.state.map_rows import mapped_topics, require_not_last
from tolerant_client.mirror.state.open_transactions import find_held
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

_LOOK_S = 1.0  # between two looks: a log that does not grow for that long has no producer


async def promote(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics | None = None,
    groups: TopicFilter | None = None,
    *,
    of_file: bool = False,
    deadline_s: float = 60.0,
    is_dry_run: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> PromotionReport:
    """Promotes a link whose source is reachable, once everything is copied; moves `groups` a last time.

    The operator has stopped the producers on the source; the mirror still runs.  The link's control says which topics are
    promoted; `topics` are used where it names none, and those `of_file` are the ones to wait for.  `tell` gets what it waits
    for.  If something still blocks the promotion after `deadline_s`, nothing has been written.  If another command promotes the
    link meanwhile, the report is that of a repeat; LinkPromotedError if that one is not finished.  Raises OptionError, also for
    `topics` that are not the link's; TolerantClientError if it fails once the promotion is written; KafkaError.
    """
    await refuse_one_cluster(source, target)
    order = _Order(topics, groups, of_file, deadline_s, is_dry_run, tell)
    promoting = partial(_promote, order, source, target, link)
    return await unless_promoted("promote", source, target, link, promoting, groups=groups, is_dry_run=is_dry_run)


@dataclass(frozen=True)
class _Order:
    """What a promotion is to do: the parameters of promote."""

    topics: LinkTopics | None
    groups: TopicFilter | None
    of_file: bool
    deadline_s: float
    is_dry_run: bool
    tell: Callable[[str], None]

    @property
    def topics_of_file(self) -> LinkTopics | None:
        return self.topics if self.of_file else None


@dataclass(frozen=True)
class _Scope:
    """The partitions of a promotion: those `to_fence`, of which the target has some `alone`, and the source's `on_source`.

    Those that are `there` are on the target.  It lacks those that are `lacking`, and the source has deleted those that are `gone`.
    `of_links` are other links', and so are the lacking ones that are `unmade`, and why.  Those that are `leaderless` cannot be fenced now.
    """

    of: PromotedLink
    beside: BesideFile
    to_fence: list[TopicPartition]
    alone: list[TopicPartition]
    on_source: list[TopicPartition]
    there: list[TopicPartition]
    lacking: list[TopicPartition]
    gone: list[TopicPartition]
    of_links: Mapping[TopicPartition, str]
    unmade: Mapping[TopicPartition, str]
    leaderless: Mapping[TopicPartition, str]


@dataclass(frozen=True)
class _Readiness:
    """How far the copies are, what blocks the promotion, and the differences for which it does not wait.

    Of the blockers, those that are `lost` say of copies that the target has them no more.
    """

    ends: list[PartitionLag]
    blockers: list[str]
    differing: Mapping[TopicPartition, str]
    warnings: list[str]
    lost: Sequence[str] = ()


async def _promote(order: _Order, source: Cluster, target: Cluster, link: str, control: LinkControl) -> PromotionReport:
    scope = await _find_scope(order, source, target, link, control)
    if scope.leaderless:
        return await _not_fenceable(source, scope, control, is_dry_run=order.is_dry_run)
    of, groups, is_dry_run = scope.of, order.groups, order.is_dry_run
    before = positions_of(fenced_before(control))
    moving = partial(move_groups, source, target, of.topics, map_of=link if of.is_translated else None)
    if groups is not None and not is_dry_run:
        for left in (await moving(groups, without=scope.of_links, is_dry_run=True)).left:
            if left.is_failure:
                order.tell(f"will be left: {left}")
    if control.is_promotion_begun:
        ready = await _as_begun(source, scope, control)
    else:
        ready = await _awaited(order, source, scope, control)
    alone = [p for p in _to_fence(control, scope.alone) if p not in scope.of_links]
    ends = [*ready.ends, *await look(None, target, link, alone, of.is_translated, of.knowing(control))]
    warnings = [*ready.warnings, *scope.beside.kept, *carried_warnings(of.carried, scope.gone)]
    await losses_of(target, link)  # a ledger that we may not read is refused before anything is written
    fences: dict[TopicPartition, Fenced] = {}
    # A running mirror may have created more.
    partitions = sorted({*scope.to_fence, *(e.partition for e in ends)})
    now = await read_control(target, link)
    require_same_promotion(of, now, control)
    owners = of.owners(now, partitions)
    warnings += gone_warnings(p for p in scope.gone if p in owners.own)
    warnings += await deleted_warnings(of, control, (e for e in ends if e.partition in owners.own), source)
    will_do = not is_dry_run and not ready.blockers
    if will_do:
        await require_reading_right(of, owners.own)
        producer_id = await require_fencing_right(of)
        moves = await moves_to_source(of, source, control, {p.topic for p in partitions})
    with half_done("the promotion") if will_do else nullcontext():
        if will_do:
            begun, fences, owners = await fence_own(of, control, partitions, producer_id)
            begun = begun.knowing(moves)
            warnings += await end_map(of, begun)
            require_same_promotion(of, await read_control(target, link), begun)  # groups may read the target already
            ends = as_fenced(await _look_again(of, source, ends, of.knowing(control)), fences)
        ends = [e for e in ends if e.partition not in owners.left]
        damaged: Mapping[TopicPartition, Damage] = {}
        if control.unfenced:
            knowing = of.knowing(begun if will_do else now)
            damaged = await find_damage(of, knowing, scope.there, positions_of(ends))
            damaged = await delete_filler(target, knowing, damaged) if will_do else damaged
            ends = as_damaged(ends, damaged)
        anew = await created_again(of, control, before)
        moved = None
        if groups is not None:
            limits = {e.partition: e.position or 0 for e in ends if e.partition in damaged}
            limits |= {**before, **dict.fromkeys(anew, 0)}
            moved = await moving(groups, without=owners.left, limits=limits, is_dry_run=not will_do)
        unlike = {**({} if ready.blockers else _untold(of, ends)), **shorter(ends)}
        ends = without_ends(ends, unlike)
        report = PromotionReport(
            "promote",
            link,
            is_dry_run,
            will_do,
            tuple(await promoted_partitions(of, ends, fences)),
            tuple(ready.blockers),
            (*warnings, *map(str, await find_held(source, open_spans(ends)))),
            moved,
            losses=await losses_of(target, link),
            damaged=(
                *map_damage(of),
                *(text for p, text in of.unlike.items() if p not in damaged),
                *(found.text for found in (*anew.values(), *damaged.values()) if found.text),
                *ready.lost,
                *(text for p, text in ready.differing.items() if p not in owners.left),
            ),
            not_promoted=(*owners.texts(link), *unmade_texts(scope.unmade, partitions, owners.left)),
            unknown_left=tuple(unknown_left(unlike)),
        )
        if will_do:
            gone = await gone_on_both(source, target, control, of.mapped)
            await write_end(of, begun, report, producer_id, gone=gone)
    # Last: a source that dies meanwhile leaves no promotion half done.
    if ready.blockers:
        return report
    report = replace(report, partitions=tuple(await with_left(source, report.partitions, ends)))
    if not before:
        return report
    known = replace(control, copied_until=before)
    former = await promoted_before("promote", source, target, link, known, None, is_dry_run=True)
    return replace(
        report,
        partitions=(*former.partitions, *report.partitions),
        unknown_left=(*former.unknown_left, *report.unknown_left),
    )


async def _find_scope(order: _Order, source: Cluster, target: Cluster, link: str, control: LinkControl) -> _Scope:
    """What is to be promoted.  Raises OptionError where it cannot be."""
    require_same_source(control, link, await source.cluster_id())
    chosen = await require_whole(source, target, control, link, order.topics, of_file=order.of_file)
    mapped = await mapped_topics(target, link, control, patience_ms=LEADERS_MS)
    beside = await beside_file(source, target, control, link, order.topics_of_file, mapped)
    if control.tells_no_start and not control.is_promotion_begun:
        require_not_last(target, link, control, mapped.last)
    partitions, lacking = await partitions_of_link(source, target, chosen, link, control, mapped)
    # Topics that the source has deleted are promoted, too; nobody knows how much of them was not copied.
    gone, beside_link = await only_on_target(source, target, chosen, link, control, mapped)
    matching = {*partitions, *lacking, *gone}
    of = await promoted_link(target, link, control, chosen, mapped, matching, order.topics_of_file, alone=gone)
    of = replace(of, source_id=await source.cluster_id(), beside=frozenset(beside_link))
    if not of.is_shown(control):
        raise OptionError(unshown(of, await link_back(source, target, [source.wire_topic(p.topic) for p in matching])))
    if of.lost_map and not control.is_promotion_begun:
        raise OptionError(f"{of.lost_map}. Where the source is gone, run tolerant-kafka failover")
    on_source = await _of_source(of, source, of.carried.partitions)
    alone = sorted({*gone, *(of.carried.partitions - set(on_source))})
    there = sorted({*partitions, *of.carried.partitions, *gone})
    to_fence = _to_fence(control, there)
    of_links = of.owners(control, to_fence).of_links
    unmade = of.owners(control, [p for p in lacking if of.waits_for(p.topic)]).of_links
    leaderless = await without_leader(of, [p for p in to_fence if p not in of_links])
    return _Scope(of, beside, to_fence, alone, on_source, there, lacking, gone, of_links, unmade, leaderless)


async def _not_fenceable(source: Cluster, scope: _Scope, control: LinkControl, *, is_dry_run: bool) -> PromotionReport:
    """The report where partitions have no leader on the target: nothing is written; a failover may have fenced others before."""
    of = scope.of
    led = [p for p in scope.to_fence if p not in scope.leaderless and p not in scope.of_links]
    there, alone = [p for p in led if p not in scope.alone], [p for p in led if p in scope.alone]
    knowing = of.knowing(control)
    ends = await look(source, of.target, of.name, there, of.is_translated, knowing)
    ends += await look(None, of.target, of.name, alone, of.is_translated, knowing)
    rows = await promoted_partitions(of, [*fenced_before(control), *ends, *map(PartitionLag, scope.leaderless)], {})
    return PromotionReport(
        "promote",
        of.name,
        is_dry_run,
        False,
        rows,
        tuple(not_fenced(scope.leaderless, led, control)),
        tuple(scope.beside.kept),
        is_begun=control.is_promotion_begun,
    )


async def _as_begun(source: Cluster, scope: _Scope, control: LinkControl) -> _Readiness:
    """How far a promotion is that an earlier command has begun: nothing blocks it any more."""
    of, rest = scope.of, [p for p in scope.lacking if p not in scope.unmade]
    warnings = [f"{named(rest)}: only on the source, so not promoted"] if rest else []
    there = [p for p in scope.to_fence if p not in scope.alone and p not in scope.of_links]
    knowing = of.knowing(control)
    ends = await look(source, of.target, of.name, there, of.is_translated, knowing, patience_ms=LEADERS_MS)
    return _Readiness(ends, [], {}, [*warnings, *scope.beside.not_begun])


async def _awaited(order: _Order, source: Cluster, scope: _Scope, control: LinkControl) -> _Readiness:
    """Waits until nothing blocks the promotion."""
    of = scope.of
    claims, looked = await look_at_claims(of.target), time.monotonic()
    deadline_s = 0.0 if order.is_dry_run else order.deadline_s
    ready = await _wait(of, source, scope.on_source, deadline_s, order.tell)
    found = list(ready.blockers)
    if found and (scope.lacking or any(e.copyable for e in ready.ends)):  # somebody has to copy
        mirrors = await seen_mirrors(of.target, of.name, claims, looked)
        behind = {e.partition for e in ready.ends if e.copyable}
        waits = {p: wait for p, wait in standing(mirrors or (), (), control).items() if p in behind}
        found += [reason.text for reason in (*waiting_reasons(waits), *mirror_reasons(of.name, mirrors))]
    found += [f"{text}; start the mirror with it, or take it out of the file" for text in scope.beside.not_begun]
    return replace(ready, blockers=found)


async def _of_source(of: PromotedLink, source: Cluster, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions that the source has.  Raises OptionError if it does not let us describe one of their topics."""
    names = {p.topic for p in partitions if of.topics.has_source(p.topic)}
    there, refused = await visible_topics(source, sorted(names))
    for error in refused.values():
        raise OptionError(f"{error.args[0]}, since the target has records of link {of.name} in it") from error
    return sorted(p for p in partitions if p.partition in there.get(p.topic, ()))


async def _wait(
    of: PromotedLink, source: Cluster, besides: list[TopicPartition], deadline_s: float, tell: Callable[[str], None]
) -> _Readiness:
    """Reads both clusters at least twice: until nothing blocks the promotion, a blocker does not go by waiting, or the deadline.

    While something blocks it, how far logs with identical offsets are copied is unknown where they differ, or were not compared.
    Checks the partitions of the link's topics and those `besides`.  Tells each cause for which it waits once.  Raises OptionError if
    the source has nothing of the link.
    """
    told: set[str] = set()
    # May be partitions that the file no longer names, if the mirror runs with an older file.
    moving: set[TopicPartition] = set()
    deadline = time.monotonic() + deadline_s
    options = link_options(of.name, of.target), link_options(of.name, of.target, source)
    # None before the first look; a look that finds no partition is an empty dict.
    before: dict[TopicPartition, PartitionLag] | None = None
    while True:
        control = await read_control(of.target, of.name)
        if control.is_over:  # since this command began
            control.require_not_promoted(of.name, of.target, source)
        partitions, lacking = await partitions_of_link(source, of.target, of.topics, of.name, control, of.mapped)
        left = of.owners(control, {*partitions, *lacking}).left
        wanted = sorted({*partitions, *besides} - left.keys())
        lacking = [p for p in lacking if p not in left and of.waits_for(p.topic)]
        ends = await look(source, of.target, of.name, wanted, of.is_translated, control)
        data = [e for e in ends if not is_heartbeats(of.topics, e.partition.topic)]
        moving |= await still_copied(of, control, before or {}, data)
        kept = [e for e in data if of.waits_for(e.partition.topic) or e.partition in moving]
        there, ledger = [e.partition for e in data if not e.untold], Ledger(of.target, of.name)
        compared = await compare_ends(source, of.target, there, ledger, control, of.is_translated)
        compared, differing = split(compared, {e.partition for e in kept})
        held = await find_held(source, open_spans(kept))
        given = "" if control.topics is not None or of.target.file_options else " --topics REGEX"
        found = blockers(kept, before or {}, control, compared, held, *options, given)
        found += copied_besides(e for e in kept if not of.waits_for(e.partition.topic))
        sorted_out = sort_lacking(lacking, control, await without_former(source, of.target, of.mapped))
        found = [*lacking_blockers(sorted_out), *found]
        if before is not None and (
            not found or any(blocker.lasts for blocker in found) or time.monotonic() >= deadline
        ):
            if found:  # nothing shows that the copy ends where the log, or the map, does
                unlike: Collection[TopicPartition] = {e.partition for e in ends}
                if compared is not None:
                    unlike = {*compared.unlike, *(differing.keys() - compared.counted)}
                has_position = [e for e in ends if e.partition in unlike and (e.position or of.is_translated)]
                ends = [replace(e, position=None) if e in has_position else e for e in ends]
            lost = [blocker.text for blocker in lacking_blockers(sorted_out._replace(deleted=[], unmade=[]))]
            lost += [compared.differing[p] for p in sorted(compared.lost)] if compared is not None else []
            return _Readiness(ends, [blocker.text for blocker in found], differing, [], lost)
        if deadline_s and (new := news(found, told)):
            tell(f"waiting: {'; '.join(new)}")
        before = {e.partition: e for e in ends}
        await source.net.sleep(_LOOK_S)


async def _look_again(
    of: PromotedLink, source: Cluster, ends: Iterable[PartitionLag], control: LinkControl
) -> list[PartitionLag]:
    """Reads the same partitions again; on the target alone those that the source does not have."""
    known = list(ends)
    there = [e.partition for e in known if e.stable_end is not None or e.untold]
    gone = [e.partition for e in known if not (e.stable_end is not None or e.untold)]
    found = await look(source, of.target, of.name, there, of.is_translated, control, patience_ms=LEADERS_MS)
    return found + await look(None, of.target, of.name, gone, of.is_translated, control)


def _untold(of: PromotedLink, ends: Iterable[PartitionLag]) -> dict[TopicPartition, str]:
    """The partitions with data of which the source does not tell how much was not copied, and why."""
    return {e.partition: e.untold for e in ends if e.untold and not is_heartbeats(of.topics, e.partition.topic)}


def _to_fence(control: LinkControl, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """The partitions that are not fenced yet.  A failover fenced the others, and applications may write there by now."""
    return [p for p in partitions if p in control.unfenced] if control.unfenced else partitions
