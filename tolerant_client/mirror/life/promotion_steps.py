"""The steps that promotion and failover share: they find what is the link's, check that it can be fenced, and fence it.

Laws:
- A promotion takes every partition that the link's mirror has written in the control as copied, also those that the source has
  deleted, and every other partition whose target log has records of the link: a process of the link could still write there.
- Partitions that match the link's topics but are not the link's own are left as they are, and named (owners.py).
- The first write says in the control that the link is promoted.  Whatever can be found to block it is found before that.
- Who owns a partition is decided by the control that is there at the first write.  If it was deleted since the command read it,
  the evidence does not belong to it (what the first one claimed was not looked for in the logs): then nothing is written.
- What has records and was not fenced is not called promoted: it is left, and named.
- After that there is no way back: an error on the way says so, and the same command again resumes.  The control says that the
  link is fenced once the report is complete; after that nothing fences it again.
- Of two commands that promote a link at the same time one does it: the first write, and the last one, compare the control with what
  the command read of its promotion.  A repeat takes over from a command that is still fencing, which then stops before its marker,
  and never says that the link is promoted.  Whoever finds it promoted by another one says so, as a repeat does.
- What it had to find out because the control tells of no start (deleted, or restored empty) is in the control that it leaves:
  the topics from the first write on, so that a repeat takes the same; which logs the link had begun, its producer ids and the
  one that fences, and the source if it was asked, with the last write, since a repeat decides by the same evidence.
- A promotion writes the control, fences, has the offset map say so, too, and only then commits for groups.  A running mirror checks the control right before each
  request that commits for a group (cluster/admin/groups.py).  So only a request that is in flight for as long as all the fencing
  takes could set a group back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import LinkPromotedError, OptionError, ProducerFencedError, text_of
from tolerant_client.mirror.engine.circles import links_into
from tolerant_client.mirror.life.continued import with_continued
from tolerant_client.mirror.life.fence import Fenced, fence_identical, fence_translated
from tolerant_client.mirror.life.left_behind import promoted_before
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.mirrors import require_not_forgotten, within_bound
from tolerant_client.mirror.life.owners import Owners, copied_elsewhere, find_evidence
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.logs.reading import require_readable
from tolerant_client.mirror.state.carriers import Carried, copied_logs
from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls
from tolerant_client.mirror.state.control_topic import (
    HIDDEN,
    NothingWrittenError,
    read_control,
    read_controls,
    update_control,
)
from tolerant_client.mirror.state.health import by_reason, names
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds, link_options
from tolerant_client.mirror.state.link_topics import begun_partitions, is_heartbeats
from tolerant_client.mirror.state.map_rows import MappedTopics, say_over
from tolerant_client.mirror.state.map_topic import copier_id, has_map, lost_map, map_partition
from tolerant_client.mirror.state.moves import known_moves, next_move_ms
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.state.topics import read_ids

_FINISHES_S = 30.0  # for another command that promotes the link at the same time
_LOOK_S = 0.5
_REPEATS = 2  # of a fence
LEADERS_MS = 10_000  # how long we wait for leaders: an election under way ends by then
_WRITTEN_MEANWHILE = "it got its first records while the link was promoted, and the link has not begun it"


async def unless_promoted(
    action: str,
    source: Cluster | None,
    target: Cluster,
    link: str,
    promoting: Callable[[LinkControl], Awaitable[PromotionReport]],
    *,
    groups: TopicFilter | None = None,
    is_dry_run: bool,
    may_be_forgotten: bool = False,
) -> PromotionReport:
    """Promotes a link by its control (control_to_promote); reports only what was left behind if it was promoted before.

    Also if another command promotes it meanwhile.  Raises LinkPromotedError if that one does not finish within _FINISHES_S.
    """
    control = await control_to_promote(target, link, may_be_forgotten=may_be_forgotten)
    left = control.unfenced  # by a failover before: another command that finishes it, or leaves others, changes that
    if not control.is_fenced:
        try:
            return await promoting(control)
        except LinkPromotedError:
            until = time.monotonic() + (0.0 if is_dry_run else _FINISHES_S)
            while (control := await read_control(target, link)).is_half_promoted and control.unfenced == left:
                if time.monotonic() >= until:
                    break
                await target.net.sleep(_LOOK_S)
            if not control.is_fenced:
                raise
    return await promoted_before(action, source, target, link, control, groups, is_dry_run=is_dry_run)


async def control_to_promote(target: Cluster, link: str, *, may_be_forgotten: bool = False) -> LinkControl:
    """The control of a link that may be promoted.

    Raises OptionError for one that was handed back, that we may not read or, unless allowed, that was forgotten.
    """
    control = await read_control(target, link)
    if control.is_hidden:  # what we would write would replace it
        raise OptionError(f"Whether link {link} was promoted before is unknown: {HIDDEN}")
    if not may_be_forgotten:
        await require_not_forgotten(target, link, control)
    if control.is_handed_back:
        raise OptionError(
            f"Link {link} was handed back to MirrorMaker 2 and writes nothing: stop MirrorMaker 2, then applications may write to the target"
        )
    return control


async def promoted_link(
    target: Cluster,
    link: str,
    control: LinkControl,
    topics: LinkTopics,
    mapped: MappedTopics,
    partitions: Collection[TopicPartition],
    of_file: LinkTopics | None = None,
    *,
    alone: Collection[TopicPartition],
) -> PromotedLink:
    """The link, with the evidence of who owns these partitions, which its topics match; the target has some of them `alone`.

    Raises OptionError for one that was prepared only (continued.py), and for one that has copied nothing, of topics that another link
    has copied.
    """
    is_translated, lost = await has_map(target, link, control), await lost_map(target, link, control)
    evidence = await find_evidence(target, link, control, partitions, mapped.names, is_translated=is_translated)
    if is_translated:
        unclaimed = [p for p in partitions if p not in control.adopted]
        evidence = evidence._replace(elsewhere=await copied_elsewhere(target, link, unclaimed, mapped))
        has_copied = mapped.copies or mapped.unread or control.adopted or lost
        if evidence.elsewhere and not (has_copied or control.is_promotion_begun):
            raise OptionError(of_another(link, evidence.elsewhere))
    has = begun_partitions(control, mapped)
    if is_translated and not lost and (has is not None or control.tells_no_start and not mapped.unread):
        copied = mapped.names if has is None else {p.topic for p in has}
        unmapped = [p for p in alone if p.topic not in copied]
        ends = (await list_led_offsets(target, dict.fromkeys(unmapped, LATEST))).offsets
        evidence = evidence._replace(logs=Carried(foreign=frozenset(p for p, end in ends.items() if end)))
    found = evidence.logs
    beyond = Carried(
        found.partitions.difference(partitions), {p: w for p, w in found.unknown.items() if p not in partitions}
    )
    of = PromotedLink(link, target, topics, is_translated, lost, beyond, mapped, evidence, of_file)
    return await with_continued(of, control, partitions, patience_ms=LEADERS_MS)


def of_another(link: str, elsewhere: Mapping[TopicPartition, str]) -> str:
    """What to say of a link that has copied nothing, of topics that others have copied.  Pure."""
    first, other = min(elsewhere.items())
    return (
        f"Link {link} has copied nothing to this target, and link {other} has copied {first.topic}-{first.partition}: is --link {other}"
        f" meant? A promotion of link {link} would stop no process that writes there"
    )


def unshown(of: PromotedLink, back: str = "") -> str:
    """What to say if nothing shows that the link has copied to this target; `back` names a link that copies the other way."""
    which, logs = link_options(of.name, of.target), of.evidence.logs
    if back:
        return f"Link {of.name} has copied nothing to this target, and {back}: are source and target exchanged? Check {which}"
    start = f"Nothing on the target shows that link {of.name} has copied there, so nothing is promoted: its control says nothing,"
    unread = "".join(f" ({names(those)} could not be read: {why})" for why, those in by_reason(logs.unknown).items())
    batches = f"no log of its topics has a batch of its producer id{unread}"
    if not of.evidence.producer_ids:
        batches = (
            f"which records are its own is unknown, since no coordinator names the producer id of tolerant-mirror-{of.name} (after"
            " seven days without a start it is forgotten, and without Describe on that transactional id it is hidden)"
        )
    if of.evidence.was_seen:  # of a link with identical offsets its claims name what it has copied: that would be shown
        return (
            f"{start} no log has a batch of the producers that coordinators name for its copies with translated offsets (which takes Kafka 3.0,"
            f" and Describe on the transactional ids tolerant-mirror-{of.name}-), though a mirror of it was seen there in the last hour."
            f" Check {which}; if that is right, end that mirror for good before applications write there: what it may copy cannot be fenced"
        )
    claims = "no mirror of it has claimed a partition there in the last hour"
    if of.evidence.held is None:
        claims = f"whether a mirror of it runs is unknown, since {CLAIMS_TOPIC} could not be read"
    return (
        f"{start} {batches}, and {claims}. Check {which}; if that is right, and no mirror of"
        " the link runs, nothing has to be fenced before applications write there"
    )


async def without_leader(of: PromotedLink, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
    """Partitions of the target without a leader, and why; also those whose partition of the offset map has none or is unread.

    One that had none when it was to be checked (continued.py) counts as one of them.
    """
    maps = {p: map_partition(of.name, p) for p in partitions} if of.is_translated and not of.lost_map else {}
    asked = [p for p in (*partitions, *maps.values()) if p not in of.unseen]
    led = await list_led_offsets(of.target, dict.fromkeys(asked, LATEST), patience_ms=LEADERS_MS)
    left_out = {**of.mapped.unread, **led.left_out, **of.unseen}
    return {p: left_out.get(p) or left_out[maps[p]] for p in partitions if p in left_out or maps.get(p) in left_out}


async def require_fencing_right(of: PromotedLink) -> int:
    """The producer id that will fence; a new one if the link's transactional.id has expired.

    Raises OptionError where we may not fence: found after the control is written, that would leave half a promotion.
    """
    name = (await read_control(of.target, of.name)).producer_name(of.name)
    try:
        return await init_producer_id(of.target, name)  # as each start of the mirror does; it writes to no log
    except Errors.TransactionalIdAuthorizationFailedError as error:
        raise OptionError(
            f"We may not use the transactional.id tolerant-mirror-{name} on the target, which fencing takes; grant us Write on"
            " the prefix tolerant-mirror- of transactional ids, and on the topics of the link"
        ) from error


async def require_reading_right(of: PromotedLink, partitions: Collection[TopicPartition]) -> None:
    """Raises OptionError where we may not read partitions to fence: the fence reads its markers after the control is written."""
    try:
        await require_readable(of.target, () if of.is_translated else partitions)
    except Errors.TopicAuthorizationFailedError as error:
        raise OptionError(
            f"{error.args[0]}; fencing takes Read and Write on the topics of the link on the target"
        ) from error


async def fence_own(
    of: PromotedLink, known: LinkControl, partitions: Collection[TopicPartition], producer_id: int
) -> tuple[LinkControl, dict[TopicPartition, Fenced], Owners]:
    """Writes that the link is promoted, after which its mirror begins no partition, and fences those of these that are its own.

    `known` is the control that the evidence belongs to; returns the one that was written.  That of a link with identical offsets
    gets the id that fences, too: whoever reads the logs later tells its markers by it.  Raises
    NothingWrittenError if the control no longer says what it did, or may not be written.
    """

    def change(now: LinkControl) -> LinkControl:
        if now.forgets(known, partitions):
            raise NothingWrittenError(
                f"The control of link {of.name} no longer says what it copies, as it did when this command began: {CONTROL_TOPIC} of"
                " the target was deleted meanwhile. This command has fenced nothing, and the link is not promoted: run it again with"
                " --topics, or with the --config of the link"
            )
        require_same_promotion(of, now, known)
        ids = now.producer_ids
        ids = (*ids, producer_id) if ids and producer_id not in ids else ids
        topics = of.topics.to_json() if now.topics is None or now.tells_no_start else now.topics
        begun = replace(now, is_promotion_begun=True, promotion=run, topics=topics, producer_ids=ids)
        if now.is_half_promoted:
            return begun
        # It moves its topics anew: when it had moved them before says nothing of that.
        former = {name: topic for name, topic in now.primary_since.items() if not now.writes(name)}
        return replace(begun, primary_since=former)

    run = uuid.uuid4().hex
    try:
        control = await update_control(of.target, of.name, change)
    except Errors.TopicAuthorizationFailedError as error:
        raise NothingWrittenError(f"{text_of(error)}. This command has written and fenced nothing") from error
    if not of.is_translated:  # its mirror may have made a deleted topic again since the first look
        ids = await read_ids(None, of.target, {p.topic for p in partitions})
        of = replace(of, evidence=of.evidence._replace(ids=ids))
    owners = of.owners(control, partitions)
    own = sorted(owners.own)
    if of.is_translated:  # it may just be copying its first records of what its map does not name
        await fence_translated(of.target, of.name, [*own, *owners.of_strangers, *sorted(of.beside)])
        return control, {}, owners

    async def require_promotion() -> None:
        require_same_promotion(of, await read_control(of.target, of.name), control)

    fences = await _fenced(of, of.knowing(control), own, require_promotion) if own else {}
    for p in of.unlike.keys() & fences.keys():
        fences[p] = fences[p]._replace(copied_until=min(fences[p].copied_until, known.adopted[p]))
    nobodys = [p for p in partitions if not (p in owners.own or p in owners.left or p in control.had)]
    ends = (await list_led_offsets(of.target, dict.fromkeys(nobodys, LATEST))).offsets if nobodys else {}
    written = {p: _WRITTEN_MEANWHILE for p, end in ends.items() if end}
    return control, fences, owners._replace(of_strangers={**owners.of_strangers, **written})


async def _fenced(
    of: PromotedLink,
    control: LinkControl,
    own: Collection[TopicPartition],
    require_promotion: Callable[[], Awaitable[None]],
) -> dict[TopicPartition, Fenced]:
    """Fences; again if another command took the transactional.id, as each does before its first write, and has not taken over."""
    for _ in range(_REPEATS):
        with suppress(ProducerFencedError):
            return await fence_identical(of.target, of.name, control, own, require_promotion)
        await require_promotion()
    return await fence_identical(of.target, of.name, control, own, require_promotion)


def require_same_promotion(of: PromotedLink, now: LinkControl, known: LinkControl) -> None:
    """Raises LinkPromotedError if another command has begun, or finished, a promotion since `known` was read."""
    said = [(each.is_promotion_begun, each.is_fenced, each.promotion) for each in (now, known)]
    if now.is_promotion_begun and said[0] != said[1]:
        now.require_not_promoted(of.name, of.target)


async def end_map(of: PromotedLink, begun: LinkControl) -> tuple[str, ...]:
    """Has the offset map of a link that was fenced say that it is over, with the control that says so; a warning where it does not.

    Otherwise, if the control is deleted, a mirror that was frozen since before the promotion would copy on.
    """
    if not of.is_translated or of.lost_map:
        return ()
    failed = await say_over(of.target, of.name, begun.generation, patience_ms=LEADERS_MS)
    return tuple(
        f"{names(sorted(failed))} of the target could not be told that link {of.name} is over ({why}): {CONTROL_TOPIC} alone says so."
        " If that topic is deleted, a mirror of the link that was frozen or cut off copies into this target again: make sure that"
        " none is left"
        for why in list(failed.values())[:1]
    )


async def _mapped(of: PromotedLink, fenced: Collection[TopicPartition]) -> dict[TopicPartition, TopicIds]:
    """What a link with translated offsets has copied; where its map is lost, those that were fenced and whose logs say so."""
    if not of.is_translated:
        return {}
    if not of.lost_map:
        return {p: TopicIds(*row.ids) for p, row in of.mapped.copies.items()}
    with suppress(Errors.KafkaError):  # all is fenced by now, and must end; then it stays unknown
        copied = (await copied_logs(of.target, copier_id(of.name))).intersection(fenced)
        ids = await read_ids(None, of.target, {p.topic for p in copied})
        return {p: ids.get(p.topic, TopicIds()) for p in copied}
    return {}


async def moves_to_source(
    of: PromotedLink, source: Cluster, known: LinkControl, topics: Collection[str]
) -> dict[str, int]:
    """When these topics were last moved to the source, as the controls there say now; none if these cannot be read within BOUND_S.

    Of a link whose control is `known` and that is promoted by half, not those that it has moved: these may have moved on since.
    """
    controls: Controls | None = None
    if not of.is_translated:
        with suppress(Errors.KafkaError):  # its broker may be lost
            controls = await within_bound(source, links_into, source, None)
    if controls is None:
        return {}
    late = [name for name in topics if not (known.is_half_promoted and known.moved_ms(name))]
    return known_moves(controls.links, late, source.wire_topic)


async def _topics_moved_now(
    of: PromotedLink, begun: LinkControl, report: PromotionReport, unfenced: Collection[TopicPartition]
) -> dict[str, MovedTopic]:
    """The topics that a link with identical offsets, whose control is `begun`, has moved by now, and had not before; not heartbeats.

    None that waits for partitions left `unfenced`, nor one that the target does not have.  One that was created again there is
    what applications write to.
    """
    if of.is_translated:
        return {}
    late = {p.topic for p in unfenced}
    anew = {p.topic for p in report.partitions if not begun.moved_ms(p.topic)}  # 0: version 0.1 did not write it
    there = await of.target.partitions(anew - late)
    ids = await read_ids(None, of.target, there)
    known = (*(await read_controls(of.target, None)).links.values(), begun)
    since_ms = next_move_ms(known, int(time.time() * 1000))
    names = [name for name in there if not is_heartbeats(of.topics, name)]
    return {name: MovedTopic(since_ms, ids.get(name, TopicIds()).target) for name in names}


async def write_end(
    of: PromotedLink,
    begun: LinkControl,
    report: PromotionReport,
    producer_id: int,
    unfenced: frozenset[TopicPartition] = frozenset(),
    gone: Collection[TopicPartition] = (),
) -> None:
    """Writes that the link is fenced, except for partitions left `unfenced`, and where its copies end for good, without what is `gone`.

    `begun` is the control that fence_own wrote, with the moves_to_source; it is written again if it was deleted meanwhile.  If the
    target takes no record of that size, it leaves out where they end, and at last which logs it found that the link had begun, and those
    moves: then that is unknown later.
    """
    moved, cluster_id = await _topics_moved_now(of, begun, report, unfenced), await of.target.cluster_id()
    mapped = await _mapped(of, {TopicPartition(p.topic, p.partition) for p in report.partitions})

    def fenced(size: int, now: LinkControl) -> LinkControl:
        now = now if now.is_promotion_begun else begun
        require_same_promotion(of, now, begun)
        ends = {**now.copied_until, **report.copies_end}
        end = replace(
            now, is_fenced=not unfenced, unfenced=unfenced, copied_until=ends, mapped={**now.mapped, **mapped}
        )
        end = end.with_gone(gone, is_translated=of.is_translated)
        end = of.with_found(end, producer_id) if end.is_fenced else end
        end = replace(end, primary_since={**now.primary_since, **moved}, target_cluster_id=cluster_id)
        end = end.knowing(begun.known_moves)
        less = replace(end, copied_until={}, mapped=now.mapped)
        since_ms = now.unsaid_since_ms  # of what has moved before
        if since_ms is None:
            since_ms = max((topic.since_ms for topic in moved.values()), default=None)
        said = {name: topic for name, topic in now.primary_since.items() if name not in moved}
        least = replace(
            less, begun=now.begun, primary_since=said, unsaid_since_ms=since_ms, known_moves=now.known_moves
        )
        return (end, less, least)[size]

    for size in range(3):
        try:
            await update_control(of.target, of.name, partial(fenced, size))
            return
        except Errors.MessageSizeTooLargeError:
            if size == 2:
                raise


def as_fenced(ends: Iterable[PartitionLag], fences: Mapping[TopicPartition, Fenced]) -> list[PartitionLag]:
    """With the position where the copy ends for good, for each partition that was fenced."""
    return [replace(e, position=fences[e.partition].copied_until) if e.partition in fences else e for e in ends]


def fenced_before(control: LinkControl) -> list[PartitionLag]:
    """Where the copies end that a failover has fenced which left others unfenced.  Pure."""
    ends = control.copied_until.items() if control.unfenced else ()
    return [PartitionLag(p, at) for p, at in sorted(ends) if p not in control.unfenced]
