"""Promotion: the target of a link becomes a cluster that applications write to; and failover, the same without the source.

The course: look until all of the source is copied and nothing differs (failover: not at all), write down that the link is
promoted, fence whatever process of it there is (fence.py), see how far the copy came, move the groups a last time, write
down that it is fenced.
Laws:
- What is promoted is all that the link's mirror has written down that it copies, also what the source has deleted, and besides
  what carries its records, as the target's logs say: a process of it could still write there.  What a file has no more is of the
  link until then: it is told before, compared, and waited for only where a mirror is seen to copy it; what a file has and the
  link has not is in the way of a promotion.
- What the link's topics match and is not the link's own is left as it is, and named (owners.py), also what the source alone has.
- Until the link is written down as promoted nothing is written, and whatever can be found to be in the way is found by then;
  the groups are rehearsed, too.
- From then on there is no way back: whatever dies or is refused on the way says so, and the same command again goes on.
  Groups that cannot be moved are left, and told.  That it is fenced is written down when the report is complete; after that
  it is not fenced again.
- What was lost between a promotion that was interrupted and its end is no reason to stop any more, and is told all the same.
- Where the source is gone applications wait for every partition that can be had: failover fences those that have a leader,
  writes down which have none, and the same command again fences these alone.  A partition of the map that cannot be read is
  written down with them: topics that it alone names are unknown until then.
- A promotion writes its control down, fences, and only then commits for groups; a running mirror looks at the control right
  before each request that commits for a group (cluster/admin/groups.py).  So only a request that is on its way for as long as
  all the fencing takes could put a group back.

What is decided is pure (promotion_blockers.py); offsets are half-open, those of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError, text_of
from tolerant_client.mirror.batches.divergence import require_readable
from tolerant_client.mirror.engine.identical.resume_point import read_ids
from tolerant_client.mirror.follow.groups import GroupsReport, read_positions, sync_groups
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.life.carriers import Carried
from tolerant_client.mirror.life.comparison import compare_ends, split
from tolerant_client.mirror.life.damage import Damage, delete_filler, find_damage, missing_topics, unchecked
from tolerant_client.mirror.life.fence import Fenced, fence_identical, fence_translated
from tolerant_client.mirror.life.lens import PartitionLag, look, open_spans, positions_of
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.owners import Owners, find_evidence
from tolerant_client.mirror.life.promotion_blockers import (
    Blocker,
    blockers,
    copied_besides,
    lacking_texts,
    named,
    not_to_be_fenced,
)
from tolerant_client.mirror.life.promotion_report import (
    PromotionReport,
    carried_warnings,
    failover_warnings,
    gone_warnings,
    promoted_before,
    unmade_texts,
)
from tolerant_client.mirror.life.promotion_view import (
    PromotedLink,
    group_places,
    losses_of,
    map_damage,
    promoted_partitions,
    still_copied,
)
from tolerant_client.mirror.state.control_topic import half_done, read_control, update_control
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.link_topics import (
    beside_file,
    is_heartbeats,
    only_on_target,
    partitions_of_link,
    partitions_on_target,
    require_whole,
    unread_map,
)
from tolerant_client.mirror.state.map_topic import MappedTopics, has_map, lost_map, map_partition, mapped_topics
from tolerant_client.mirror.state.open_transactions import find_held
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

_LEADERS_MS = 10_000  # how long leaders are waited for: an election under way ends by then
_LOOK_S = 1.0  # between two looks: what stands still for that long, stands


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
    """Promotes a link whose source is there, once all of it is copied; `groups` are moved a last time.

    The producers on the source must have been stopped; the mirror still runs.  All that the link copies is promoted, as it
    has written down; `topics` count where it has not, and those `of_file` say what is waited for.  `tell` gets that.  Where
    something is in the way after `deadline_s`, nothing has been written.  Raises OptionError, for other `topics` too that are
    not those of the link, and for partitions of the target without a leader; TolerantClientError where a cluster goes away
    behind that; KafkaError.
    """
    control = await _control(target, link, topics)
    if control.is_fenced:
        return promoted_before("promote", link, is_dry_run)
    chosen = await require_whole(source, target, control, link, topics, of_file=of_file)
    beside = await beside_file(source, target, control, link, topics if of_file else None)
    mapped = await mapped_topics(target, link, control, patience_ms=_LEADERS_MS)
    partitions, lacking = await partitions_of_link(source, target, chosen, link, control, mapped)
    # What the source has deleted is promoted, too, and nobody knows how much of it was left to copy.
    gone = await only_on_target(source, target, chosen, link, control, mapped)
    matching = {*partitions, *lacking, *gone}
    of = await _promoted(target, link, control, chosen, mapped, matching, topics if of_file else None)
    if of.lost_map and not control.is_promoted:
        raise OptionError(f"{of.lost_map}. Where the source is gone, run tolerant-kafka failover")
    on_source = await _of_source(of, source, of.carried.partitions)
    on_target = sorted({*gone, *(of.carried.partitions - set(on_source))})
    partitions = _to_fence(control, sorted({*partitions, *of.carried.partitions, *gone}))
    of_links = of.owners(control, partitions).of_links
    unmade = of.owners(control, [p for p in lacking if of.waits_for(p.topic)]).of_links
    if leaderless := (await _without_leader(of, [p for p in partitions if p not in of_links])):
        raise OptionError(not_to_be_fenced(leaderless))
    if groups is not None and not is_dry_run:
        for left in (await _move_groups(of, source, groups, of_links, is_dry_run=True)).left:
            if left.is_failure:
                tell(f"left will be {left}")
    if control.is_promoted:  # what was begun before has no way back
        found: list[str] = []
        rest = [p for p in lacking if p not in unmade]
        warnings = [f"{named(rest)}: on the source alone, and so not promoted"] if rest else []
        warnings += beside.not_begun
        there = [p for p in partitions if p not in on_target and p not in of_links]
        ends, differing = await look(source, target, link, there, of.is_translated), dict[TopicPartition, str]()
    else:
        ends, found, differing = await _wait(of, source, on_source, 0.0 if is_dry_run else deadline_s, tell)
        found += [f"{text}; start the mirror with it, or take that out of the file" for text in beside.not_begun]
        warnings = []
    alone = [p for p in _to_fence(control, on_target) if p not in of_links]
    ends = [*ends, *await look(None, target, link, alone, of.is_translated)]
    warnings += [
        *beside.kept,
        *carried_warnings(of.carried, gone),
    ]
    await losses_of(target, link)  # what may not be read is refused before anything is written
    fences: dict[TopicPartition, Fenced] = {}
    partitions = sorted({*partitions, *(e.partition for e in ends)})  # a mirror that runs may have made more
    owners = of.owners(await read_control(target, link), partitions)
    warnings += gone_warnings(p for p in gone if p in owners.own)
    will_do = not is_dry_run and not found
    if will_do:
        await _require_readable(of, owners.own)
        await _require_rights(of)
    with half_done("the promotion") if will_do else nullcontext():
        if will_do:
            fences, owners = await _fence(of, partitions)
            ends = _as_fenced(await _look_again(of, source, ends), fences)
        ends = [e for e in ends if e.partition not in owners.left]
        moved = None
        if groups is not None:
            moved = await _move_groups(of, source, groups, owners.left, is_dry_run=not will_do)
        report = PromotionReport(
            "promote",
            link,
            is_dry_run,
            will_do,
            await promoted_partitions(of, ends, fences),
            tuple(found),
            (*warnings, *map(str, await find_held(source, open_spans(ends)))),
            moved,
            losses=await losses_of(target, link),
            damaged=(*map_damage(of), *(text for p, text in differing.items() if p not in owners.left)),
            not_promoted=(*owners.texts(link), *unmade_texts(unmade, partitions, owners.left)),
        )
        if will_do:
            await update_control(target, link, lambda now: replace(now, is_fenced=True, unfenced=frozenset()))
    return report


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

    Partitions without a leader hold up no others: they are left, and the report is not done.  `topics` and `of_file` are promote's.
    Raises OptionError, TolerantClientError where the target goes away on the way, and KafkaError.
    """
    control = await _control(target, link, topics)
    if control.is_fenced:
        return promoted_before("failover", link, is_dry_run)
    chosen = await require_whole(None, target, control, link, topics, of_file=of_file)
    beside = await beside_file(None, target, control, link, topics if of_file else None)
    mapped = await mapped_topics(target, link, control, patience_ms=_LEADERS_MS)
    partitions = await partitions_on_target(target, chosen, link, control, mapped)
    of = await _promoted(target, link, control, chosen, mapped, partitions)
    there = partitions = sorted({*partitions, *of.carried.partitions})
    if not partitions and not control.unfenced:
        raise OptionError(f"The target has no topic of link {link}; check --target and --link")
    partitions = [p for p in partitions if {p, map_partition(link, p)} & control.unfenced or not control.unfenced]
    first = of.owners(control, partitions)
    leaderless = await _without_leader(of, [p for p in partitions if p not in first.left])
    led = [p for p in partitions if p not in leaderless]
    blocked = [not_to_be_fenced(leaderless)] if leaderless else []
    blocked += [unread_map(mapped.unread, link)] if mapped.unread else []
    if blocked and not led:
        raise OptionError("; ".join(blocked))

    async def seen(owners: Owners, fences: Mapping[TopicPartition, Fenced]) -> PromotionReport:
        shown = [p for p in led if p not in owners.left]
        ends = _as_fenced(await look(None, target, link, shown, of.is_translated), fences)
        control = await read_control(target, link)  # a mirror that runs writes there until it is fenced
        damaged = await find_damage(of, control, there, positions_of(ends))
        if fences:
            damaged = await delete_filler(target, control, damaged)
        ends = _as_damaged(ends, damaged)
        rows = await promoted_partitions(of, ends, fences)
        places, unread = await group_places(of, groups or TopicFilter(), positions_of(ends))
        return PromotionReport(
            "failover",
            link,
            is_dry_run,
            not is_dry_run and not blocked,
            rows,
            tuple(blocked),
            (*beside.kept, *carried_warnings(of.carried), *failover_warnings(rows), *unchecked(of, control), *unread),
            group_places=places,
            losses=await losses_of(target, link),
            is_begun=not is_dry_run and bool(blocked),
            damaged=(
                *map_damage(of),
                *missing_topics(of, control, there),
                *(found.text for found in damaged.values() if found.text),
            ),
            not_promoted=(*owners.texts(link), *beside.not_begun),
        )

    await _require_readable(of, first.own.difference(leaderless))
    if not is_dry_run:
        await _require_rights(of)
    report = await seen(first, {})  # what may not be read is refused before anything is written
    if is_dry_run:
        return report
    with half_done("the promotion"):
        fences, owners = await _fence(of, led)
        report = await seen(owners, fences)
        left = frozenset({*leaderless, *mapped.unread})
        await update_control(target, link, lambda now: replace(now, is_fenced=not left, unfenced=left))
    return report


# -- steps --------------------------------------------------------------------


async def _control(target: Cluster, link: str, topics: LinkTopics | None) -> LinkControl:
    control = await read_control(target, link)
    if topics is None:
        await require_not_forgotten(target, link, control)
    if control.is_handed_back:
        raise OptionError(
            f"Link {link} was handed back to MirrorMaker 2 and writes nothing: stop MirrorMaker 2, and the target is yours"
        )
    return control


async def _promoted(
    target: Cluster,
    link: str,
    control: LinkControl,
    topics: LinkTopics,
    mapped: MappedTopics,
    partitions: Collection[TopicPartition],
    of_file: LinkTopics | None = None,
) -> PromotedLink:
    """The link, with what tells whose these partitions are, which its topics match."""
    is_translated = await has_map(target, link, control)
    evidence = await find_evidence(target, link, control, partitions, mapped.names, is_translated=is_translated)
    found = evidence.logs
    beyond = Carried(
        found.partitions.difference(partitions), {p: w for p, w in found.unknown.items() if p not in partitions}
    )
    lost = await lost_map(target, link, control)
    return PromotedLink(link, target, topics, is_translated, lost, beyond, mapped, evidence, of_file)


def _as_damaged(ends: Iterable[PartitionLag], damaged: Mapping[TopicPartition, Damage]) -> list[PartitionLag]:
    """Without what is no copy."""
    return [
        replace(e, position=min(e.position or 0, damaged[e.partition].copied_until)) if e.partition in damaged else e
        for e in ends
    ]


async def _of_source(of: PromotedLink, source: Cluster, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """Those that the source has.  Raises OptionError where it does not let us describe one."""
    names = {p.topic for p in partitions if of.topics.has_source(p.topic)}
    there, refused = await visible_topics(source, sorted(names))
    for error in refused.values():
        raise OptionError(f"{error.args[0]}, since the target has records of link {of.name} in it") from error
    return sorted(p for p in partitions if p.partition in there.get(p.topic, ()))


async def _wait(
    of: PromotedLink, source: Cluster, besides: list[TopicPartition], deadline_s: float, tell: Callable[[str], None]
) -> tuple[list[PartitionLag], list[str], dict[TopicPartition, str]]:
    """Looks at least twice, until nothing is in the way, something is that no waiting cures, or the deadline: how far both
    sides are then, what is in the way, and what differs of that which nothing waits for.

    `besides` its topics, these partitions are looked at.  What is waited for is told when it changes.  Raises OptionError where the source has nothing of the link.
    """
    told = ""
    moving: set[TopicPartition] = set()  # also what its mirror was started with, and the file has no more
    deadline = time.monotonic() + deadline_s
    options = link_options(of.name, of.target), link_options(of.name, of.target, source)
    before: dict[TopicPartition, PartitionLag] | None = None  # no look yet; one that finds no partition is one, too
    while True:
        control = await read_control(of.target, of.name)
        partitions, lacking = await partitions_of_link(source, of.target, of.topics, of.name, control, of.mapped)
        left = of.owners(control, {*partitions, *lacking}).left
        wanted = sorted({*partitions, *besides} - left.keys())
        lacking = [p for p in lacking if p not in left and of.waits_for(p.topic)]
        ends = await look(source, of.target, of.name, wanted, of.is_translated)
        data = [e for e in ends if not is_heartbeats(of.topics, e.partition.topic)]
        moving |= await still_copied(of, control, before or {}, data)
        kept = [e for e in data if of.waits_for(e.partition.topic) or e.partition in moving]
        there, ledger = [e.partition for e in data], Ledger(of.target, of.name)
        compared = await compare_ends(source, of.target, there, ledger, control, of.is_translated)
        compared, differing = split(compared, {e.partition for e in kept})
        found = blockers(kept, before or {}, control, compared, await find_held(source, open_spans(kept)), *options)
        found += copied_besides(e for e in kept if not of.waits_for(e.partition.topic))
        if lacking:
            found = [*map(Blocker, lacking_texts(lacking, control)), *found]
        if before is not None and (
            not found or any(blocker.lasts for blocker in found) or time.monotonic() >= deadline
        ):
            return ends, [blocker.text for blocker in found], differing
        text = f"waiting: {'; '.join(blocker.text for blocker in found)}"
        if found and deadline_s and text != told:
            told = text
            tell(text)
        before = {e.partition: e for e in ends}
        await source.net.sleep(_LOOK_S)


async def _look_again(of: PromotedLink, source: Cluster, ends: Iterable[PartitionLag]) -> list[PartitionLag]:
    """The same partitions; those that the source does not have on the target alone."""
    known = list(ends)
    there = [e.partition for e in known if e.stable_end is not None]
    gone = [e.partition for e in known if e.stable_end is None]
    found = await look(source, of.target, of.name, there, of.is_translated)
    return found + await look(None, of.target, of.name, gone, of.is_translated)


async def _move_groups(
    of: PromotedLink, source: Cluster, groups: TopicFilter, without: Collection[TopicPartition], *, is_dry_run: bool
) -> GroupsReport:
    """A round of group offsets.  What no repeat cures is left: a link that is fenced is promoted, whatever its groups do."""
    name = of.name if of.is_translated else None
    try:
        positions = await read_positions(source, of.target, of.topics, groups, link=name, leave_out=without)
        report = await sync_groups(of.target, positions, is_dry_run=is_dry_run)
        return replace(
            report, left=tuple(left for left in report.left if left.reason != "stopped")
        )  # told as not promoted
    except ClusterUnreachableError:
        raise
    except Exception as error:
        text = text_of(error)
        why = (
            f"none can be moved ({type(error).__name__}: {text}); set them on the target to where they stand on the source"
            " with kafka-consumer-groups.sh --reset-offsets"
        )
        return GroupsReport((), 0, (), (Left("all groups", "error", why),))


def _to_fence(control: LinkControl, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """What is not fenced yet: of the others a failover has told where their copies end, and applications write there."""
    return [p for p in partitions if p in control.unfenced] if control.unfenced else partitions


async def _without_leader(of: PromotedLink, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
    """Partitions of the target that nothing can be written to now, and why; those whose map cannot, or is unread, too."""
    maps = {p: map_partition(of.name, p) for p in partitions} if of.is_translated and not of.lost_map else {}
    asked = dict.fromkeys([*partitions, *maps.values()], LATEST)
    if not asked:
        return {}
    left_out = {**of.mapped.unread, **(await list_led_offsets(of.target, asked, patience_ms=_LEADERS_MS)).left_out}
    return {p: left_out.get(p) or left_out[maps[p]] for p in partitions if p in left_out or maps.get(p) in left_out}


async def _require_rights(of: PromotedLink) -> None:
    """Raises OptionError where we may not fence: found out behind the control, it would leave half a promotion."""
    name = (await read_control(of.target, of.name)).producer_name(of.name)
    try:
        await init_producer_id(of.target, name)  # as each start of the mirror does: it leaves no trace in any log
    except Errors.TransactionalIdAuthorizationFailedError as error:
        raise OptionError(
            f"We may not use the transactional.id tolerant-mirror-{name} on the target, which fencing takes; grant us Write on"
            " the prefix tolerant-mirror- of transactional ids, and on the topics of the link"
        ) from error


async def _require_readable(of: PromotedLink, partitions: Collection[TopicPartition]) -> None:
    """Raises OptionError where we may not read what is to be fenced: the markers are looked for behind the control."""
    try:
        await require_readable(of.target, () if of.is_translated else partitions)
    except Errors.TopicAuthorizationFailedError as error:
        raise OptionError(
            f"{error.args[0]}; fencing takes Read and Write on the topics of the link on the target"
        ) from error


async def _fence(
    of: PromotedLink, partitions: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, Fenced], Owners]:
    """Fences what of these partitions is the link's own once it is written down as promoted: from then on it begins nothing."""
    control = await update_control(of.target, of.name, lambda now: replace(now, is_promoted=True))
    if not of.is_translated:  # its mirror makes again what was deleted since the first look
        ids = await read_ids(None, of.target, {p.topic for p in partitions})
        of = replace(of, evidence=of.evidence._replace(ids=ids))
    owners = of.owners(control, partitions)
    own = sorted(owners.own)
    if of.is_translated:
        await fence_translated(of.target, of.name, own)
        return {}, owners
    return await fence_identical(of.target, of.name, control, own) if own else {}, owners


def _as_fenced(ends: Iterable[PartitionLag], fences: Mapping[TopicPartition, Fenced]) -> list[PartitionLag]:
    return [replace(e, position=fences[e.partition].copied_until) if e.partition in fences else e for e in ends]
