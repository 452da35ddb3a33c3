"""What a link would do, all of it, before anything is written: topics, their configuration, ACLs, groups, durability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.errors import LinkPromotedError, OptionError, TolerantClientError
from tolerant_client.mirror.identical.state import read_append_states
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link.acls import AclsReport, sync_acls
from tolerant_client.mirror.link.beginning import refuse_circle
from tolerant_client.mirror.link.configs import ConfigsReport, sync_configs
from tolerant_client.mirror.link.control import LinkControl, read_control
from tolerant_client.mirror.link.groups import GroupsReport, sync_groups
from tolerant_client.mirror.link.promotion import groups_json, look
from tolerant_client.mirror.losses import Loss
from tolerant_client.mirror.plan import TopicSpec, plan_topics, select_topics
from tolerant_client.mirror.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.topics import describe_topics, fit_topics, require_names
from tolerant_client.raw import EARLIEST, LATEST, READ_COMMITTED, RawCluster

_MIN_INSYNC = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"


@dataclass(frozen=True)
class TopicPlan:
    """A topic by its name on the target; `action` is create, grow, copy or refuse, `why` says so of the last one.

    `to_copy` are the offsets that wait on the source, None where the topic is refused.
    """

    topic: str
    action: str
    partitions: int
    target_partitions: int
    replication_factor: int
    to_copy: int | None
    config: dict[str, str]
    why: str = ""


@dataclass(frozen=True)
class LinkPlan:
    """Everything that a link would do; `refusals` are what it would stop at, before or while copying."""

    link: str
    topics: tuple[TopicPlan, ...]
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    durability: tuple[str, ...]
    configs: ConfigsReport | None
    acls: AclsReport | None
    groups: GroupsReport | None

    @property
    def exit_code(self) -> int:
        return 3 if self.refusals or any(t.action == "refuse" for t in self.topics) else 0

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
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
    source: RawCluster,
    target: RawCluster,
    link: str,
    topics: LinkTopics | str,
    groups: TopicFilter | None = None,
    *,
    with_configs: bool = True,
    with_acls: bool = True,
) -> LinkPlan:
    """The plan of a link with identical offsets; writes nothing.

    Raises OptionError where nothing matches or both are one cluster, ClusterUnreachableError, UnsupportedSourceError.
    """
    chosen = LinkTopics.of(topics)
    require_names(source, chosen)
    await source.connect()
    await target.require_record_batches()
    if await source.cluster_id() == await target.cluster_id() is not None:
        raise OptionError(f"Source and target are the same cluster ({await source.cluster_id()}); give two clusters")
    names = select_topics(chosen, await source.partitions())
    control = await read_control(target, link)
    refusals = []
    try:
        control.require_not_promoted(link)
        await refuse_circle(source, target, [source.wire_topic(name) for name in names], link)
    except (OptionError, LinkPromotedError) as error:
        refusals.append(_text(error))
    wanted, present = await describe_topics(source, names), await describe_topics(target, names)
    plans, warnings = await _plan_topics(target, wanted, present, chosen)
    partitions = [
        TopicPartition(plan.topic, n)
        for plan in plans
        if plan.action in ("copy", "grow")
        for n in range(min(plan.partitions, plan.target_partitions))
    ]
    waiting = {e.partition: e.lag for e in await look(source, target, link, partitions, False)}
    rest = [
        TopicPartition(plan.topic, n)
        for plan in plans
        if plan.action in ("create", "grow")
        for n in range(plan.target_partitions, plan.partitions)
    ]
    waiting |= await _stable(source, rest)
    refusals += await _would_stop(source, target, partitions, Ledger(target, link), control)
    counted = [
        replace(plan, to_copy=sum(waiting.get(TopicPartition(plan.topic, n), 0) for n in range(plan.partitions)))
        if plan.action != "refuse"
        else plan
        for plan in plans
    ]
    return LinkPlan(
        link,
        tuple(counted),
        tuple(refusals),
        tuple(warnings),
        tuple(durability(wanted.values(), present)),
        await sync_configs(source, target, chosen, is_dry_run=True) if with_configs else None,
        await sync_acls(source, target, chosen, is_dry_run=True) if with_acls else None,
        await sync_groups(source, target, chosen, groups, is_dry_run=True) if groups is not None else None,
    )


async def _plan_topics(
    target: RawCluster, wanted: dict[str, TopicSpec], present: dict[str, TopicSpec], topics: LinkTopics
) -> tuple[list[TopicPlan], list[str]]:
    """Topic by topic, so that one that is refused hides no other."""
    brokers = len(target.manager.cluster.brokers())
    plans: list[TopicPlan] = []
    warnings: list[str] = []
    for name, spec in wanted.items():
        there = present.get(name)
        width = 0 if there is None else there.partitions
        try:
            plan = plan_topics({name: spec}, present, brokers, topics.creation)
            create, more = await fit_topics(target, plan.create)
        except OptionError as error:
            plans.append(TopicPlan(name, "refuse", spec.partitions, width, spec.replication_factor, None, {}, _text(error)))
            continue
        warnings += [*plan.warnings, *more]
        if create:
            (made,) = create
            plans.append(TopicPlan(name, "create", spec.partitions, 0, made.replication_factor, 0, dict(made.config)))
        else:
            factor = spec.replication_factor if there is None else there.replication_factor
            plans.append(TopicPlan(name, "grow" if plan.grow else "copy", spec.partitions, width, factor, 0, {}))
    return plans, warnings


async def _stable(source: RawCluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """How many offsets there are to copy of partitions that the target does not have."""
    wanted = list(partitions)
    ends = await source.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    starts = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    return {p: max(0, ends[p] - starts[p]) for p in wanted}


async def _would_stop(
    source: RawCluster, target: RawCluster, partitions: list[TopicPartition], ledger: Ledger, control: LinkControl
) -> list[str]:
    """What the two logs already show that would stop the mirror, or be a loss to decide about."""
    producer_id = control.producer_ids[-1] if control.producer_ids else -1
    states = await read_append_states(source, target, partitions, producer_id, ledger, control=control)
    errors = [s.error if isinstance(s, Loss) else s for s in states.values()]
    return [_text(e) for e in errors if isinstance(e, TolerantClientError)]


def durability(source: Iterable[TopicSpec], target: dict[str, TopicSpec]) -> list[str]:
    """Where the target keeps less than the source promises; pure."""
    found = []
    for wanted in source:
        present = target.get(wanted.name)
        if present is None:
            continue
        if present.replication_factor < wanted.replication_factor:
            found.append(
                f"topic {wanted.name} has {present.replication_factor} replicas on the target and {wanted.replication_factor} on"
                " the source: reassign its partitions to more brokers"
            )
        ours, theirs = (int(spec.value(_MIN_INSYNC, "1")) for spec in (present, wanted))
        if ours < min(theirs, present.replication_factor):
            found.append(
                f"topic {wanted.name} takes records that {ours} replicas have on the target, and {theirs} on the source: set"
                f" {_MIN_INSYNC}={min(theirs, present.replication_factor)} on the target"
            )
        if present.value(_UNCLEAN, "false") == "true":
            found.append(
                f"topic {wanted.name} may lose acknowledged records on the target: set {_UNCLEAN}=false there"
            )
    return found


def _text(error: TolerantClientError) -> str:
    return str(error).removeprefix(f"{type(error).__name__}: ")
