"""Makes a link ready to start.

The checks come before the first write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster, OffsetAndEpoch
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import NO_PRODUCER
from tolerant_client.mirror.batches.losses import Loss, LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.circles import links_into, refuse_circle
from tolerant_client.mirror.engine.former_copies import FormerCopies, former_copies
from tolerant_client.mirror.engine.identical.resume_point import read_append_states
from tolerant_client.mirror.engine.planned_link import (
    PlannedLink,
    make_topics,
    partitions_of,
    plan_link,
    without_lost,
    without_topics,
)
from tolerant_client.mirror.engine.preflight import grown, look_for_others, require_same_source, write_down
from tolerant_client.mirror.engine.time_range import ends_at, require_all_led, starts_of_range
from tolerant_client.mirror.engine.translated.copied_before import find_copied, warn_of_unmapped
from tolerant_client.mirror.engine.translated.foresight import foresee
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.control_topic import read_control, start_without_orders
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import mapped_topics, require_not_last
from tolerant_client.mirror.state.map_topic import ensure_map_topic, require_kind, require_same_map
from tolerant_client.mirror.state.moves import known_moves
from tolerant_client.mirror.state.topic_filter import LinkTopics

ELECTION_MS = 10_000  # how long a start waits for leaders: longer than an election takes, but not for a dead broker
COPIED_MS = 10_000  # how long a start looks for what others have copied; the engine reads longer maps while it copies


@dataclass(frozen=True)
class PreparedLink:
    """A link that can start: its producer id, and its partitions with the source's last stable offsets.

    `producer_id` is NO_PRODUCER with translated offsets.  `waiting` says why other partitions cannot be copied now.  `target_ends` is
    where the target's logs end before anything is copied, of those whose leaders say it.  `generation` is the link's (LinkControl).
    """

    producer_id: int
    created: tuple[str, ...]
    ends: Mapping[TopicPartition, int]
    warnings: tuple[str, ...] = ()
    waiting: Mapping[TopicPartition, str] = field(default_factory=dict)
    target_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    generation: int = 0


async def prepare_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    link: str,
    policy: MirrorPolicy = MirrorPolicy(),
    *,
    is_translated: bool = False,
    from_ms: int | None = None,
    until_ms: int | None = None,
    goes_on: bool = False,
    claim: Callable[[Collection[str]], None] = lambda topics: None,
) -> PreparedLink:
    """Checks both clusters and every topic, then creates the missing topics and, for translated offsets, the link's map.

    A link that `goes_on` leaves refused topics out, and leaves target logs that differ to the engine, which stops only those
    partitions.  `from_ms` and `until_ms` bound by time what is copied: partitions of which nothing was copied yet begin at the
    first record at or after `from_ms`, and `ends` are at most the first record at or after `until_ms`.  `claim` gets the topics
    before anything is written.
    Raises what plan_link does, OptionError for a refused topic, LinkPromotedError, and, but for what an operator has paused,
    TargetDivergedError, and DataLossError if the policy is to fail.  Nothing was written then, unless a cluster became
    unreachable, or the target refused to create a topic.
    """
    checked = await _check_link(
        source, target, topics, link, goes_on=goes_on, has_start=from_ms is not None, is_identical=not is_translated
    )
    planned, control = checked.planned, checked.control
    names = [topic.name for topic in planned.topics.copied]
    if is_translated:
        if control.tells_no_start:
            require_not_last(target, link, control, (await mapped_topics(target, link, control)).last)
        await require_same_map(target, link, control)
    starts: dict[TopicPartition, OffsetAndEpoch] = {}
    ids: dict[str, str] = {}
    if from_ms is not None:
        asked = source, target, link, planned.ends, from_ms, control
        starts, ids = await starts_of_range(*asked, is_translated=is_translated)
    control = control.with_starts(starts, ids)
    claim(names)
    begin = _begin_translated if is_translated else _begin_identical
    own = await begin(checked._replace(control=control), None if goes_on else policy)

    def forget(now: LinkControl) -> LinkControl:
        now = now.without(own.planned.deleted, control).knowing(own.moves)
        begun = {**own.former.begun, **now.begun}
        if is_translated:  # what an identical start had begun of them is not on the target any more (look_for_others)
            begun = {p: of for p, of in begun.items() if p.topic not in names}
        return replace(now, begun=begun, maybe_begun=now.maybe_begun | own.former.maybe_begun)

    written = own.producer_id, starts, ids, own.map_id
    warning = await write_down(source, target, link, LinkTopics.of(topics), *written, forget)
    made = await make_topics(target, own.planned)
    if not goes_on:
        made.require_all(but=own.left_out)
    ends = made.ends if until_ms is None else await ends_at(source, made.ends, until_ms)
    warnings = (*made.warnings, *own.warnings, *(() if warning is None else (warning,)))
    created = tuple(topic.name for topic in made.topics.create)
    new = {p: 0 for p in ends if p.topic in created}
    begins = (await list_led_offsets(target, dict.fromkeys(ends.keys() - new.keys(), LATEST))).offsets
    own_id = NO_PRODUCER if own.producer_id is None else own.producer_id
    return PreparedLink(own_id, created, ends, warnings, made.waiting, {**new, **begins}, control.generation)


class _Checked(NamedTuple):
    """A link that may start, its plan, its control, and the controls of the links into its source; nothing is written yet."""

    source: Cluster
    target: Cluster
    link: str
    planned: PlannedLink
    control: LinkControl
    into_source: Controls | None


class _Begins(NamedTuple):
    """A link that has been checked, of which nothing is written yet: its plan without the topics that are `left_out`.

    `former` are copies of an earlier life of it, `moves` the last ones of its topics to the source.
    """

    planned: PlannedLink
    producer_id: int | None = None
    map_id: str | None = None
    former: FormerCopies = FormerCopies()
    moves: Mapping[str, int] = MappingProxyType({})
    left_out: Collection[str] = ()
    warnings: Sequence[str] = ()


async def _begin_translated(checked: _Checked, policy: MirrorPolicy | None) -> _Begins:
    """Refuses losses by the policy, if one is given, and creates the link's map."""
    source, target, link, planned, control, _ = checked
    known = planned.topics.refused.keys()
    planned, lost = await without_lost(source, target, link, control, planned)
    unmapped: list[str] = []
    if policy is not None:
        if gone := [p for p in lost if not control.pauses(p)]:
            raise TargetDivergedError(f"{names_of(gone)}: {TRANSLATED_COPY_DELETED}")
        unmapped = await _refuse_losses(checked._replace(planned=planned), policy)
    map_id = await ensure_map_topic(target, link, control)
    return _Begins(planned, map_id=map_id, left_out=planned.topics.refused.keys() - known, warnings=unmapped)


async def _begin_identical(checked: _Checked, policy: MirrorPolicy | None) -> _Begins:
    """Takes the link's producer id, and refuses target logs that differ, and losses by the policy, if one is given."""
    source, target, link, planned, control, into_source = checked
    producer_id, former = await init_producer_id(target, control.producer_name(link)), FormerCopies()
    if control.tells_no_start:
        there = list(partitions_of((*planned.topics.existing, *planned.topics.grow)))
        former = await former_copies(target, planned.alone, there, producer_id)
    if policy is not None:
        await _refuse_differences(checked, producer_id, policy)
    moves: dict[str, int] = {}
    if into_source is not None:
        moves = known_moves(into_source.links, (topic.name for topic in planned.topics.copied), source.wire_topic)
    return _Begins(planned, producer_id, former=former, moves=moves)


async def _refuse_losses(checked: _Checked, policy: MirrorPolicy) -> list[str]:
    """As _refuse_differences, with translated offsets: what its map and both logs show, and what others have copied; warnings."""
    source, target, link, planned, control, _ = checked
    partitions = [p for p in planned.ends if not control.pauses(p)]
    foreseen = await foresee(source, target, link, control, partitions, partitions)
    for p, one in foreseen.items():
        if isinstance(one.found, TolerantClientError):
            raise one.found
        for loss, error in one.found.losses:
            if policy.on(p.topic, loss.reason) is LossPolicy.FAIL:
                raise error
    going = {
        p: one
        for p, one in foreseen.items()
        if one.error is None or policy.for_topic(p.topic).on_loss is LossPolicy.CONTINUE
    }
    try:
        asking = target.net.call_soon_with_future(find_copied, source, target, link, going)
        copied = await target.manager.wait_for(asking, COPIED_MS)
    except Errors.KafkaError:
        return []  # the engine asks again, and awaits what is unknown yet
    for refused in copied.values():
        if isinstance(refused, TargetDivergedError):
            raise refused
    return await warn_of_unmapped(target, link, going)


async def _check_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    link: str,
    *,
    goes_on: bool,
    has_start: bool,
    is_identical: bool,
) -> _Checked:
    """A link that may start, at a time if it `has_start`; writes nothing."""
    control = await read_control(target, link)
    if control.is_hidden:
        raise start_without_orders(link)
    control.require_not_promoted(link, target, source)
    require_same_source(control, link, cluster_id := await source.cluster_id())
    map_of = None if is_identical else link
    planned = await plan_link(source, target, topics, control, map_of=map_of, patience_ms=ELECTION_MS)
    if not goes_on:
        planned.require_all()
    await require_kind(target, link, control, is_translated=not is_identical)
    grown(control, LinkTopics.of(topics))
    names = [topic.name for topic in planned.topics.copied]
    own = replace(control, source_cluster_id=cluster_id)
    others = await look_for_others(target, link, names, is_identical=is_identical, own=own)
    if not goes_on:
        others.require_none()
    planned = without_topics(planned, others.refused)
    copied = [source.wire_topic(topic.name) for topic in planned.topics.copied]
    into_source = await links_into(source, None)  # what a move had no room to say, `begun` says
    unseen = await refuse_circle(source, target, copied, link, into_source)
    if has_start:
        require_all_led(planned.waiting)
    warnings = (*planned.warnings, *others.warnings, *unseen)
    planned = replace(planned, topics=replace(planned.topics, warnings=warnings))
    return _Checked(source, target, link, planned, control, into_source)


async def _refuse_differences(checked: _Checked, producer_id: int, policy: MirrorPolicy) -> None:
    source, target, link, planned, control, into_source = checked
    topics = (*planned.topics.existing, *planned.topics.grow)
    there = await target.partitions(topic.name for topic in topics)
    both = [p for p in partitions_of(topics) if p in planned.ends and p.partition in there.get(p.topic, ())]
    # The engine compares what is paused before it copies it again, and partitions without a leader once they have one.
    partitions = [p for p in both if not control.pauses(p)]
    if not partitions:
        return

    async def check() -> None:
        asked = source, target, partitions, producer_id, Ledger(target, link)
        states = await read_append_states(*asked, control=control, into_source=into_source, at_high_watermark=True)
        for partition in partitions:
            state = states.get(partition)
            if isinstance(state, TolerantClientError):
                raise state
            if isinstance(state, Loss) and policy.for_topic(partition.topic).on_loss is LossPolicy.FAIL:
                raise state.error

    await target.insist("comparing the ends of both logs", check)
