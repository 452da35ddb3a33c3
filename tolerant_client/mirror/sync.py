"""Says what a link would do and makes it ready to start.

Everything that can be wrong is found here, before the first write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.mirror.identical.state import read_append_states
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link.beginning import ends_at, refuse_circle, starts_at, write_down
from tolerant_client.mirror.link.control import LinkControl, read_control
from tolerant_client.mirror.losses import Loss, LossPolicy, MirrorPolicy
from tolerant_client.mirror.plan import TopicSpec, TopicsPlan, plan_topics, select_topics
from tolerant_client.mirror.producers import init_producer_id
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.mirror.topics import add_partitions, create_topics, describe_topics, fit_topics, require_names
from tolerant_client.raw import LATEST, READ_COMMITTED, RawCluster

@dataclass(frozen=True)
class PlannedLink:
    """Topics of a link, and where the committed part of the source's logs ends (last stable offsets)."""

    topics: TopicsPlan
    ends: Mapping[TopicPartition, int]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may hurt, one sentence each."""
        return self.topics.warnings


@dataclass(frozen=True)
class PreparedLink:
    """A link that can start: its producer id and the partitions with their source's last stable offsets."""

    producer_id: int
    created: tuple[str, ...]
    ends: Mapping[TopicPartition, int]
    warnings: tuple[str, ...] = ()


async def plan_link(source: RawCluster, target: RawCluster, topics: LinkTopics | str) -> PlannedLink:
    """What a link over these topics (or those that match a regular expression) would do; writes nothing.

    Names are the target's; the source must be a RawCluster with the names of `topics`.
    It may be any Kafka from 0.8.2 on, the target must know record batches.
    Raises OptionError, UnsupportedSourceError or ClusterUnreachableError.
    """
    topics = LinkTopics.of(topics)
    require_names(source, topics)
    await source.connect()
    await target.require_record_batches()
    if await source.cluster_id() == await target.cluster_id() is not None:
        raise OptionError(
            f"Source {source.bootstrap_servers} and target {target.bootstrap_servers} are the same cluster"
            f" ({await source.cluster_id()}); give two clusters"
        )
    chosen = select_topics(topics, await source.partitions())
    wanted = await describe_topics(source, chosen)
    brokers = len(target.manager.cluster.brokers())
    plan = plan_topics(wanted, await describe_topics(target, chosen), brokers, topics.creation)
    create, warnings = await fit_topics(target, plan.create)
    ends = await source.list_offsets(dict.fromkeys(partitions_of(wanted.values()), LATEST), isolation_level=READ_COMMITTED)
    return PlannedLink(replace(plan, create=create, warnings=plan.warnings + warnings), ends)


async def make_topics(target: RawCluster, plan: TopicsPlan) -> None:
    """Creates the topics and partitions that the target lacks; repeatable."""
    await create_topics(target, plan.create)
    await add_partitions(target, plan.grow)


async def prepare_link(
    source: RawCluster,
    target: RawCluster,
    topics: LinkTopics | str,
    link: str,
    policy: MirrorPolicy = MirrorPolicy(),
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    compares: bool = True,
) -> PreparedLink:
    """Checks both clusters and every topic, then creates the missing topics.

    Without `compares` a target log that differs is left to the engine, which stops that partition alone.
    `from_ms` and `until_ms` bound what is copied by time: the empty logs of the target begin at the first record of
    that time, and `ends` are where the second one begins.
    Raises what plan_link does, LinkPromotedError, TargetDivergedError, and DataLossError where the
    policy is to fail; unless a cluster went away on the way, nothing was written then.
    """
    planned = await plan_link(source, target, topics)
    control = await read_control(target, link)
    control.require_not_promoted(link)
    await refuse_circle(source, target, [source.wire_topic(name) for name in {p.topic for p in planned.ends}], link)
    starts = {} if from_ms is None else await starts_at(source, target, planned.ends, from_ms, control)
    control = replace(control, starts={**control.starts, **starts})
    producer_id = await init_producer_id(target, control.producer_name(link))
    there = (*planned.topics.existing, *planned.topics.grow)
    if compares:
        await _refuse_differences(source, target, there, producer_id, Ledger(target, link), policy, control)
    warning = await write_down(source, target, link, LinkTopics.of(topics), producer_id, starts)
    await make_topics(target, planned.topics)
    ends = planned.ends if until_ms is None else await ends_at(source, planned.ends, until_ms)
    warnings = planned.warnings if warning is None else (*planned.warnings, warning)
    return PreparedLink(producer_id, tuple(t.name for t in planned.topics.create), ends, warnings)


async def _refuse_differences(
    source: RawCluster,
    target: RawCluster,
    topics: Collection[TopicSpec],
    producer_id: int,
    ledger: Ledger,
    policy: MirrorPolicy,
    control: LinkControl,
) -> None:
    there = await target.partitions(topic.name for topic in topics)
    partitions = [p for p in partitions_of(topics) if p.partition in there.get(p.topic, ())]
    if not partitions:
        return

    async def check() -> None:
        states = await read_append_states(source, target, partitions, producer_id, ledger, control=control)
        for partition in partitions:
            state = states.get(partition)
            if isinstance(state, TolerantClientError):
                raise state
            if isinstance(state, Loss) and policy.for_topic(partition.topic).on_loss is LossPolicy.FAIL:
                raise state.error

    await target.insist("comparing the ends of both logs", check)


def partitions_of(topics: Iterable[TopicSpec]) -> Iterable[TopicPartition]:
    """Every partition of these topics."""
    return (TopicPartition(topic.name, index) for topic in topics for index in range(topic.partitions))
