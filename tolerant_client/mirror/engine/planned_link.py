"""What a link would copy: which topics it creates, extends or refuses, and where its source's logs end.

A plan writes nothing; make_topics and grow_link create what the target lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import stable_ends
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.engine.circles import refuse_one_cluster
from tolerant_client.mirror.engine.preflight import look_for_others, unled_copies
from tolerant_client.mirror.engine.translated.copy_transaction import require_renewing
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED
from tolerant_client.mirror.state.lacking import unfilled
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import known_topics, see_topics
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.plan import TopicSpec, TopicsPlan, plan_topics, select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import (
    add_partitions,
    create_each_topic,
    describe_each_topic,
    fit_each_topic,
    require_names,
)


@dataclass(frozen=True)
class PlannedLink:
    """Topics of a link, and where the committed part of the source's logs ends (last stable offsets).

    `waiting` says why partitions have no end: they have no leader on a cluster, or their topic is refused.  `described` are the chosen
    topics as the source and the target have them now.  `gone` are topics that the link knows and the target has, but the
    source lacks, with their partitions on the target; `deleted` are topics that the link began, and both clusters lack.
    `alone` are all partitions of the link's names that the target has and the source does not, whosoever they are.
    """

    topics: TopicsPlan
    ends: Mapping[TopicPartition, int]
    waiting: Mapping[TopicPartition, str] = field(default_factory=dict)
    described: tuple[Mapping[str, TopicSpec], Mapping[str, TopicSpec]] = ({}, {})
    gone: Mapping[str, list[int]] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    alone: frozenset[TopicPartition] = frozenset()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may cause harm, one sentence each."""
        return self.topics.warnings

    def require_all(self, but: Collection[str] = ()) -> None:
        """Raises OptionError if a topic is refused, `but` for these."""
        for name, why in self.topics.refused.items():
            if name not in but:
                raise OptionError(why)


async def plan_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    control: LinkControl = LinkControl(),
    mapped: MappedTopics = NO_MAP,
    *,
    map_of: str | None = None,
    patience_ms: int = 0,
) -> PlannedLink:
    """What a link over these topics (or those that match a regular expression) would do; writes nothing.

    Topics that the `control` or `mapped` remembers, or that `topics` names, and that the source hides from us, are refused.
    Names are the target's; the source must be a Cluster with the names of `topics`.
    The source may be any Kafka from 0.8.2 on, the target must know record batches, and renew producers for translated offsets
    (require_renewing).  A problem with one topic or partition is reported for it alone; leaders are awaited for at most
    `patience_ms` on each cluster, those of a map if the link has translated offsets and is `map_of`.
    Raises OptionError, UnsupportedSourceError or ClusterUnreachableError.
    """
    topics = LinkTopics.of(topics)
    require_names(source, topics)
    await source.connect()
    await target.require_record_batches()
    if map_of is not None:
        await require_renewing(target)
    await refuse_one_cluster(source, target)
    view = await see_topics(source, target, topics, control, mapped)
    hidden = {p.topic: why for p, why in view.hidden.items()}
    chosen = sorted(view.on_source)
    if not (chosen or hidden):
        chosen = select_topics(topics, await source.partitions())  # raises an error that says what is wrong with them
    wanted = await describe_each_topic(source, chosen)
    present = await describe_each_topic(target, wanted.topics)
    visible = {name: topic for name, topic in wanted.topics.items() if name not in present.refused}
    plan = plan_topics(visible, present.topics, len(target.manager.cluster.brokers()), topics.creation)
    fitted = await fit_each_topic(target, plan.create)
    unsaid = {name: text_of(error) for name, error in {**wanted.refused, **present.refused, **fitted.refused}.items()}
    unsaid.update(hidden)
    plan = replace(
        plan, create=fitted.topics, warnings=plan.warnings + fitted.warnings, refused={**plan.refused, **unsaid}
    )
    led = await stable_ends(source, list(partitions_of(plan.copied)), patience_ms)
    ends, leaderless = led.without(await unled_copies(target, led.offsets, map_of, patience_ms))
    refused = {TopicPartition(name, n): why for name, why in plan.refused.items() for n in view.on_source.get(name, ())}
    known = known_topics(topics, control, view.on_source) | mapped.names
    gone = {name: numbers for name, numbers in view.gone.items() if name in known}
    waiting = {**leaderless, **refused, **view.hidden}
    begun = {
        p.topic for p in (*control.begun, *control.maybe_begun) if topics.writes(p.topic)
    }  # each was requested by its name
    deleted = frozenset(begun - view.on_source.keys() - view.on_target.keys() - hidden.keys())
    return PlannedLink(plan, ends, waiting, (wanted.topics, present.topics), gone, deleted, view.alone(topics))


async def make_topics(target: Cluster, planned: PlannedLink) -> PlannedLink:
    """Creates the topics and partitions that the target lacks; repeatable.

    Returns what can then be copied; what the brokers refuse to create is added to `waiting`.
    """
    plan = planned.topics
    errors = {**await create_each_topic(target, plan.create), **await add_partitions(target, plan.grow)}
    if not errors:
        return planned
    refused = {name: text_of(error) for name, error in errors.items()}
    there = await target.partitions(refused)
    unmade = [p for p in planned.ends if p.topic in refused and p.partition not in there.get(p.topic, ())]
    lacking = {p: refused[p.topic] for p in unmade}
    return replace(
        planned,
        topics=replace(
            plan,
            create=tuple(topic for topic in plan.create if topic.name not in refused),
            refused={**plan.refused, **refused},
        ),
        ends={p: end for p, end in planned.ends.items() if p not in lacking},
        waiting={**planned.waiting, **lacking},
    )


async def grow_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    link: str,
    known: Collection[str],
    control: LinkControl = LinkControl(),
    mapped: MappedTopics = NO_MAP,
    *,
    is_identical: bool,
) -> PlannedLink:
    """What a running link copies from now on; creates what the target lacks of it.

    `control` is the one read at its start; `mapped` are the partitions that the link has copied, also of topics that it no longer does.
    Of the topics that are not `known`, those that other links write are refused (look_for_others), as at a start; so is a lost copy that
    nothing fills again (unfilled).
    Raises what plan_link does, and KafkaError.
    """
    topics = LinkTopics.of(topics)
    own = mapped._replace(partitions=frozenset(p for p in mapped.partitions if topics.writes(p.topic)))
    planned = await plan_link(source, target, topics, control, own, map_of=None if is_identical else link)
    if found := {topic.name for topic in planned.topics.copied} - set(known):
        others = await look_for_others(target, link, found, is_identical=is_identical, is_new=True)
        planned = without_topics(planned, others.refused)
    if not is_identical:
        planned, _ = await without_lost(source, target, link, control, planned)
    return await make_topics(target, planned)


def without_topics(planned: PlannedLink, refused: Mapping[str, str]) -> PlannedLink:
    """A plan in which these topics are refused altogether.  Pure."""
    plan = planned.topics
    kept = ([topic for topic in part if topic.name not in refused] for part in (plan.create, plan.existing, plan.grow))
    lacking = {p: refused[p.topic] for p in (*planned.ends, *planned.waiting) if p.topic in refused}
    create, existing, grow = map(tuple, kept)
    return replace(
        planned,
        topics=replace(plan, create=create, existing=existing, grow=grow, refused={**plan.refused, **refused}),
        ends={p: end for p, end in planned.ends.items() if p not in lacking},
        waiting={**planned.waiting, **lacking},
    )


async def without_lost(
    source: Cluster, target: Cluster, link: str, control: LinkControl, planned: PlannedLink
) -> tuple[PlannedLink, list[TopicPartition]]:
    """The plan of a link with translated offsets without the topics that it does not make (unfilled), and its copies that are lost."""
    lost = await unfilled(source, target, link, control, partitions_of(planned.topics.create))
    left_out = without_topics(planned, {p.topic: why for p, why in lost.items()})
    return left_out, sorted(p for p, why in lost.items() if why == TRANSLATED_COPY_DELETED)


def partitions_of(topics: Iterable[TopicSpec]) -> Iterable[TopicPartition]:
    """Every partition of these topics."""
    return (TopicPartition(topic.name, index) for topic in topics for index in range(topic.partitions))
