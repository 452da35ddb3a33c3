"""Plans all that a link would do, without writing anything: its topics, and what its flow does besides copying."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Untold, list_led_log_offsets, list_led_offsets
from tolerant_client.cluster.admin.topics import READ, WRITE, not_allowed
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import DataLossError, LinkPromotedError, OptionError, TolerantClientError, text_of
from tolerant_client.mirror.batches.losses import Loss, LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.circles import links_into, refuse_circle
from tolerant_client.mirror.engine.identical.difference import OpenTransaction
from tolerant_client.mirror.engine.planned_link import (
    PlannedLink,
    partitions_of,
    plan_link,
    without_lost,
    without_topics,
)
from tolerant_client.mirror.engine.preflight import grown, look_for_others, require_same_source
from tolerant_client.mirror.engine.time_range import foresee_starts
from tolerant_client.mirror.engine.translated.copied_before import find_copied, warn_of_unmapped
from tolerant_client.mirror.engine.translated.foresight import foresee
from tolerant_client.mirror.engine.translated.target_checks import Resumption
from tolerant_client.mirror.follow.acls import AclsReport, sync_acls
from tolerant_client.mirror.follow.configs import ConfigsReport, sync_configs
from tolerant_client.mirror.follow.group_positions import read_positions
from tolerant_client.mirror.follow.groups import GroupsReport, sync_groups
from tolerant_client.mirror.life.comparison import (
    PAUSED_AND_BLOCKED,
    is_counted,
    left_to_mirror,
    read_both,
    with_own_id,
    without_paused,
)
from tolerant_client.mirror.life.lens import MAP_LOST
from tolerant_client.mirror.life.mirrors import look_for_forgotten
from tolerant_client.mirror.life.plan_findings import durability, gone_refusals, gone_warnings, made_again_warnings
from tolerant_client.mirror.life.promotion_report import groups_json
from tolerant_client.mirror.state.control_topic import HIDDEN, UNKNOWN_ORDERS, read_control, start_without_orders
from tolerant_client.mirror.state.health import (
    TRANSLATED_COPY_DELETED,
    by_reason,
    few,
    kept_at_ends,
)
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.lacking import sort_lacking, without_former
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError, link_options
from tolerant_client.mirror.state.link_pauses import paused_text
from tolerant_client.mirror.state.link_topics import beside_file, see_topics, some, unread_map
from tolerant_client.mirror.state.map_rows import NO_MAP, copied_until, mapped_topics, require_not_last
from tolerant_client.mirror.state.map_topic import has_map, lost_map, map_partition, require_kind
from tolerant_client.mirror.state.open_transactions import Held, find_held, is_held_long
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

_MAP_S = 10.0  # how long we read an offset map: a large one, or a hanging broker, delays a plan no longer


@dataclass(frozen=True)
class Besides:
    """What a link does besides copying; None or False means not at all, as for a mirror without a file.

    `groups` are those whose offsets it moves, `config_exclude` the properties that it does not carry over (None: it carries over
    none).  `others` are sentences about what changes nothing that exists: heartbeats, checkpoints.
    """

    groups: TopicFilter | None = None
    config_exclude: tuple[str, ...] | None = None
    use_defaults_from: str = "target"
    has_acls: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicPlan:
    """A topic by its name on the target; `action` is create, grow, copy or refuse, `why` is the reason of a refusal.

    `to_copy` counts the source's offsets to copy, None if the topic is refused, or if how far it is copied is unknown.  `waiting` says by partition why it cannot be
    copied now, `paused` that an operator has paused it: whatever it waits for besides, the mirror says that alone.
    """

    topic: str
    action: str
    partitions: int
    target_partitions: int
    replication_factor: int
    to_copy: int | None
    config: dict[str, str]
    why: str = ""
    waiting: dict[int, str] = field(default_factory=dict)
    paused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkPlan:
    """Everything that a link would do; `refusals` are the reasons why it would stop, before or while copying.

    `losses` are those that policy accepts: each becomes a row of the ledger.
    """

    link: str
    offsets: str
    topics: tuple[TopicPlan, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    durability: tuple[str, ...] = ()
    configs: ConfigsReport | None = None
    acls: AclsReport | None = None
    groups: GroupsReport | None = None
    others: tuple[str, ...] = ()
    open_transactions: tuple[Held, ...] = ()
    losses: tuple[str, ...] = ()

    @property
    def held(self) -> tuple[Held, ...]:
        """Transactions that have been open for so long that the records after them count as not copied."""
        return tuple(one for one in self.open_transactions if is_held_long(one, int(time.time() * 1000)))

    @property
    def exit_code(self) -> int:
        is_left_out = bool(self.held) or any(t.action == "refuse" or t.waiting or t.paused for t in self.topics)
        return 3 if self.refusals or self.losses or is_left_out else 0

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "open_transactions": [held.to_json() for held in self.open_transactions]}
        if self.configs is not None:
            found["configs"] = {
                "changed": [change._asdict() for change in self.configs.changed],
                "left": [left._asdict() for left in self.configs.left],
            }
        if self.acls is not None:
            found["acls"] = {
                "added": [acl._asdict() for acl in self.acls.added],
                "unchanged": self.acls.unchanged,
                "left": [left._asdict() for left in self.acls.left],
            }
        if self.groups is not None:
            found["groups"] = groups_json(self.groups)
        return {**found, "exit_code": self.exit_code}


async def plan_everything(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics | str,
    besides: Besides = Besides(),
    *,
    of_file: bool = False,
    is_translated: bool | None = None,
    policy: MirrorPolicy = MirrorPolicy(),
    from_ms: int | None = None,
) -> LinkPlan:
    """The plan of a link, whose empty logs are to begin at `from_ms`; writes nothing.

    If `is_translated` is None, the target says whether its offsets are translated.  Warns of topics that the link has besides
    those `of_file`.  The plan of a link that was promoted or handed back is that refusal alone: what differs in its target's logs
    since is its own fence, or its producers' data.  So is that of a link with the other kind of offsets.
    Raises OptionError if no topic matches, both are one cluster, or the link copies from another source,
    ClusterUnreachableError, UnsupportedSourceError.
    """
    chosen = LinkTopics.of(topics)
    control = await read_control(target, link)
    try:
        was_begun = await has_map(target, link, control)
    except Errors.TopicAuthorizationFailedError as error:
        if control.is_hidden:
            raise start_without_orders(link) from error
        raise
    is_translated = was_begun if is_translated is None else is_translated
    try:
        control.require_not_promoted(link, target, source)
        await require_kind(target, link, control, is_translated=is_translated)
        lost = await lost_map(target, link, control) if was_begun and is_translated else None
        is_there = was_begun and lost is None
        mapped = await mapped_topics(target, link, control, within_s=_MAP_S, is_there=True) if is_there else NO_MAP
        require_not_last(target, link, control, mapped.last)
    except (LinkPromotedError, LinkKindError) as error:
        return LinkPlan(link, "translated" if was_begun else "identical", refusals=(text_of(error),))
    require_same_source(control, link, cluster_id := await source.cluster_id())
    planned = await plan_link(source, target, chosen, control, mapped, map_of=link if is_translated else None)
    unread = {p: mapped.unread[at] for p in planned.ends if (at := map_partition(link, p)) in mapped.unread}
    unread |= dict.fromkeys(planned.ends if lost else (), MAP_LOST)
    unknown = set(unread)
    ends = {p: end for p, end in planned.ends.items() if p not in unread}
    planned = replace(planned, ends=ends, waiting={**planned.waiting, **unread})
    refusals = [f"{UNKNOWN_ORDERS}: {HIDDEN}"] if control.is_hidden else []
    refusals += [why] if (why := await look_for_forgotten(target, link, control)) else []
    refusals += [lost] if lost else []
    refusals += [unread_map(mapped.unread, link)] if mapped.unread else []
    view = await see_topics(source, target, chosen, control, mapped)
    which = link_options(link, target)
    unpaused = {
        name: [n for n in of if not control.pauses(TopicPartition(name, n))] for name, of in planned.gone.items()
    }
    gone = {name: of for name, of in unpaused.items() if of}
    refusals += gone_refusals(gone, view.on_source, which)
    warnings = [*planned.warnings, *gone_warnings(view.gone.keys() - planned.gone.keys())]
    warnings += (await beside_file(None, target, control, link, chosen if of_file else None, mapped)).kept
    try:
        grown(control, chosen)
        own = replace(control, source_cluster_id=cluster_id)
        names = [topic.name for topic in planned.topics.copied]
        others = (await look_for_others(target, link, names, is_identical=not is_translated, own=own)).refused
        refusals += few(dict.fromkeys(others.values()))
        planned = without_topics(planned, others)  # the mirror does nothing with what others have
        copied = [source.wire_topic(topic.name) for topic in planned.topics.copied]
        warnings += await refuse_circle(source, target, copied, link, await links_into(source))
    except OptionError as error:
        refusals.append(text_of(error))
    gone_there: list[TopicPartition] = []
    if is_translated and not lost:
        planned, gone_there = await without_lost(source, target, link, control, planned)
    if paused := [p for p in gone_there if control.pauses(p)]:
        warnings.append(f"{PAUSED_AND_BLOCKED}: {names_of(paused)}: {TRANSLATED_COPY_DELETED}")
    if unpaused_there := [p for p in gone_there if p not in paused]:
        refusals.append(f"{names_of(unpaused_there)}: {TRANSLATED_COPY_DELETED}")
    made = [p for p in partitions_of(planned.topics.create) if p not in gone_there]
    warnings += made_again_warnings(sort_lacking(made, control, await without_former(source, target, mapped)))
    if is_translated and (lost or not was_begun):
        besides = replace(besides, groups=None)  # no map translates their offsets yet
    asked = source, target, link, planned.ends, planned.waiting, from_ms, control
    begins, control, unstarted = await foresee_starts(*asked, is_translated=is_translated)
    refusals += unstarted
    there = await target.partitions({p.topic for p in planned.ends})
    present = {p for p in planned.ends if p.partition in there.get(p.topic, ())}
    reached: Mapping[TopicPartition, int]
    stopped, losses = dict[TopicPartition, str](), list[str]()
    ledger = Ledger(target, link)
    if is_translated:
        foreseen = await foresee(source, target, link, control, planned.ends, present)
        # After a loss the mirror resumes before the end of what the map says.
        resumes = {p: of.found.position for p, of in foreseen.items() if isinstance(of.found, Resumption)}
        reached = {**await copied_until(target, link, present - resumes.keys()), **resumes}
        for p, found in foreseen.items():
            if isinstance(found.error, DataLossError) and policy.for_topic(p.topic).on_loss is LossPolicy.CONTINUE:
                losses.append(text_of(found.error))
            elif found.error is not None:
                stopped[p] = text_of(found.error)
                unknown |= set() if is_counted(found) else {p}
        begun = {p: found for p, found in foreseen.items() if p in present and p not in stopped}
        there_before = await find_copied(source, target, link, begun)
        stopped |= {p: text_of(error) for p, error in there_before.items()}
        warnings += await warn_of_unmapped(target, link, begun)
    else:
        reached = (await list_led_offsets(target, dict.fromkeys(present, LATEST))).offsets
        known = await with_own_id(target, link, control)
        stopped, losses, told = await _differences(source, target, list(reached), ledger, known, policy)
        warnings += told
        unknown |= stopped.keys()
    stopping, of_paused = without_paused(stopped, control)
    refusals += stopping.values()
    warnings += of_paused
    refusals += await right_refusals(source, target, planned)
    logs, _ = await list_led_log_offsets(source, planned.ends)
    held = await find_held(source, {p: (log.last_stable, log.high_watermark) for p, log in logs.items()})
    # What the policy accepts as lost the target keeps, too; with translated offsets nothing waits for it.
    kept_until = {} if is_translated else {p: at for p, at in reached.items() if p not in stopped}
    kept = await _kept(kept_until, {p: log.high_watermark for p, log in logs.items()}, ledger)
    starts = {p: log.start for p, log in logs.items()}
    starts |= {p: max(at, starts.get(p, 0)) for p, at in begins.items()}
    to_copy: dict[TopicPartition, int | None] = dict.fromkeys(unknown)
    to_copy |= {
        p: max(0, end - max(reached.get(p, 0), starts.get(p, 0))) for p, end in planned.ends.items() if p not in unknown
    }
    return LinkPlan(
        link,
        "translated" if is_translated else "identical",
        tuple(topic_plans(replace(planned, waiting={**kept, **planned.waiting}), to_copy, control, which)),
        tuple(refusals),
        tuple(warnings),
        tuple(durability(planned.described[0].values(), planned.described[1])),
        *await _besides(source, target, link if is_translated else None, chosen, besides, {*stopped, *planned.waiting}),
        besides.others,
        tuple(held),
        tuple(losses),
    )


async def right_refusals(source: Cluster, target: Cluster, planned: PlannedLink) -> list[str]:
    """Refusals for the rights without which the brokers will refuse to read a topic of the source, or to write one of the target."""
    copied, there = {topic.name for topic in planned.topics.copied}, planned.described[1]
    unread = await not_allowed(source, copied, READ)
    unwritten = await not_allowed(target, copied & there.keys(), WRITE)
    return [
        f"the {cluster.name} refuses us topic {some(names)}; grant {right} on it to the mirror's user"
        for cluster, names, right in (
            (source, [source.wire_topic(name) for name in unread], "Read"),
            (target, unwritten, "Write"),
        )
        if names
    ]


def topic_plans(
    planned: PlannedLink, to_copy: Mapping[TopicPartition, int | None], control: LinkControl, which: str
) -> Iterable[TopicPlan]:
    """The plan of each topic, ordered by name; the options `which` name the link; pure."""
    wanted, present = planned.described
    made = {topic.name: topic for topic in planned.topics.create}
    grown = {topic.name for topic in planned.topics.grow}
    waiting: dict[str, dict[int, str]] = {}
    for partition, why in planned.waiting.items():
        if not control.pauses(partition) or partition.topic in planned.topics.refused:
            waiting.setdefault(partition.topic, {})[partition.partition] = why
    for name in sorted({topic.name for topic in planned.topics.copied} | planned.topics.refused.keys()):
        width = present[name].partitions if name in present else 0
        if name in planned.topics.refused:
            factor = wanted[name].replication_factor if name in wanted else 0
            yield TopicPlan(name, "refuse", len(waiting[name]), width, factor, None, {}, planned.topics.refused[name])
            continue
        factor = made[name].replication_factor if name in made else present[name].replication_factor
        partitions = [TopicPartition(name, n) for n in range(wanted[name].partitions)]
        held = [p for p in partitions if control.pauses(p)]
        counts = [to_copy.get(p, 0) for p in partitions]
        yield TopicPlan(
            name,
            "create" if name in made else "grow" if name in grown else "copy",
            len(partitions),
            width,
            factor,
            None if None in counts else sum(filter(None, counts)),
            dict(made[name].config) if name in made else {},
            waiting=waiting.get(name, {}),
            paused=dict.fromkeys((p.partition for p in held), paused_text(control, held, which)),
        )


async def _differences(
    source: Cluster,
    target: Cluster,
    partitions: list[TopicPartition],
    ledger: Ledger,
    control: LinkControl,
    policy: MirrorPolicy,
) -> tuple[dict[TopicPartition, str], list[str], list[str]]:
    """Differences in the logs that would stop partitions, losses that policy accepts, and warnings of logs that were not compared."""
    producer_id = control.producer_ids[-1] if control.producer_ids else -1
    states, refused = await read_both(source, target, partitions, producer_id, ledger, control)
    stopped = {p: f"{p.topic}-{p.partition} could not be compared: {why}" for p, why in refused.items()}
    told, losses = list[str](), list[str]()
    held = await left_to_mirror(target, ledger.link, control, states)
    for partition, state in states.items():
        if partition in held and not isinstance(state, Loss):
            continue
        if isinstance(state, Loss) and policy.for_topic(partition.topic).on_loss is LossPolicy.CONTINUE:
            losses.append(text_of(state.error))
        elif isinstance(state, Loss):
            stopped[partition] = text_of(state.error)
        elif isinstance(state, TolerantClientError):
            stopped[partition] = text_of(state)
        elif isinstance(state, OpenTransaction):
            told.append(f"{partition.topic}-{partition.partition} waits: {state}")
    untold = by_reason({p: str(state) for p, state in states.items() if isinstance(state, Untold)})
    text = "could not be compared with the source's log this time"
    told += few(f"{some(f'{p.topic}-{p.partition}' for p in of)} {text}: {why}" for why, of in untold.items())
    if unread := [f"{p.topic}-{p.partition}" for p in sorted(partitions) if p not in states and p not in refused]:
        told.append(f"{text} (the mirror does so when it starts): {some(unread)}")
    return stopped, losses, told


async def _kept(
    reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], ledger: Ledger
) -> dict[TopicPartition, str]:
    """As kept_at_ends, with the row of the ledger that says what the source has lost."""
    if not (kept := kept_at_ends(reached, ends)):
        return {}
    rows = await ledger.rows()

    def lost(p: TopicPartition) -> list[str]:
        return [str(row) for row in rows.get(p, ()) if row.from_offset < reached[p] <= row.until_offset]

    return {p: "; in the ledger: ".join([why, *lost(p)[-1:]]) for p, why in kept.items()}


async def _besides(
    source: Cluster,
    target: Cluster,
    map_of: str | None,
    topics: LinkTopics,
    besides: Besides,
    stopped: Collection[TopicPartition],
) -> tuple[ConfigsReport | None, AclsReport | None, GroupsReport | None]:
    """What the link would change besides the logs, without partitions that are stopped or wait.

    `map_of` is the link whose map translates the groups' offsets; None: the target has the same offsets.
    """
    configs = None
    if besides.config_exclude is not None:
        configs = await sync_configs(
            source,
            target,
            topics,
            exclude=besides.config_exclude,
            use_defaults_from=besides.use_defaults_from,
            is_dry_run=True,
            leave_out={partition.topic for partition in stopped},
        )
    acls = await sync_acls(source, target, topics, is_dry_run=True) if besides.has_acls else None
    groups = None
    if besides.groups is not None:
        positions = await read_positions(source, target, topics, besides.groups, link=map_of, leave_out=stopped)
        groups = await sync_groups(target, positions, is_dry_run=True)
    return configs, acls, groups
