"""Reads log starts and ends, latest timestamps, and the transactions that hold logs back; writes nothing.

Partitions without a leader, or with one that does not respond, are left out: nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import log_offsets
from tolerant_client.cluster.admin.transactions import list_transactions
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.engine.translated.copied_before import find_copied
from tolerant_client.mirror.engine.translated.foresight import foresee
from tolerant_client.mirror.life import lens
from tolerant_client.mirror.life.comparison import compare_ends
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.mirrors import BOUND_S
from tolerant_client.mirror.life.owners import find_taken
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import known_topics, see_topics
from tolerant_client.mirror.state.map_rows import MappedTopics, mapped_topics
from tolerant_client.mirror.state.map_topic import has_map
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.doctor.facts import ClusterFacts

_TIMED_PARTITIONS = 200  # whose oldest uncopied batch is read


def serving(facts: ClusterFacts, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """The partitions of these topics whose leaders respond, and those leaders."""
    found = {}
    for name in topics:
        for p in facts.topics[name].partitions if name in facts.topics else ():
            if p.leader in facts.living and p.leader not in facts.silent:
                found[TopicPartition(p.topic, p.index)] = p.leader
    return found


async def transactional_ids(cluster: Cluster, nodes: Iterable[int]) -> set[str]:
    """All transactional ids that these coordinators have and that we may describe."""
    found: set[str] = set()
    for node in nodes:
        found.update(await cluster.insist("listing transactions", partial(list_transactions, cluster, node)))
    return found


async def positions(
    target: Cluster, link: str, leaders: Collection[TopicPartition], topics: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """How far each source partition is copied, 0 if not at all; `topics` maps the source's names to the target's."""
    control = await read_control(target, link)
    found = await lens.positions(target, link, leaders, await has_map(target, link, control), control)
    sources = {name: source for source, name in topics.items()}
    return {TopicPartition(sources[p.topic], p.partition): at for p, at in found.items() if p.topic in sources}


async def find_stopped(
    source: Cluster,
    target: Cluster,
    link: str,
    control: LinkControl,
    partitions: Collection[TopicPartition],
    starts_translated: bool,
) -> dict[TopicPartition, str]:
    """Which of these partitions a mirror of the link would stop at, as others have copied them or the logs differ; and why.

    `starts_translated` is how a link that was never started is to be started.
    """
    taken: Mapping[TopicPartition, str] = {}
    is_translated = starts_translated if control.tells_no_start else await has_map(target, link, control)
    if control.tells_no_start or control.topics is not None and not is_translated:
        taken = await find_taken(target, link, control, partitions, (), is_translated=is_translated)
    rest = [p for p in partitions if p not in taken]
    if is_translated:
        foreseen = await foresee(source, target, link, control, rest, rest)
        stopped = {p: error for p, found in foreseen.items() if (error := found.error) is not None}
        begun = {p: found for p, found in foreseen.items() if p not in stopped}
        stopped = {**stopped, **await find_copied(source, target, link, begun)}
        return {**taken, **{p: text_of(error) for p, error in stopped.items()}}
    found = (
        None
        if control.tells_no_start
        else await compare_ends(source, target, rest, Ledger(target, link), control, False)
    )
    return {**taken, **({} if found is None else found.differing)}


async def read_map(target: Cluster, link: str, control: LinkControl) -> MappedTopics:
    """What the map of the link names, as far as it is read in time."""
    return await mapped_topics(target, link, control, within_s=BOUND_S)


async def find_gone(
    source: Cluster, target: Cluster, control: LinkControl, topics: LinkTopics, mapped: MappedTopics
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str]]:
    """What the target has and the source does not, or does not show: partitions that the link has begun, and others that it may have; why."""
    view = await see_topics(source, target, topics, control, mapped)
    left_behind = view.left_behind(known_topics(topics, control, view.on_source) | mapped.names)
    return left_behind, {p: why for p, why in view.why_gone.items() if p not in left_behind}


async def lags(source: Cluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionLag]:
    """The lags, with each log's start and last stable offset."""
    there = await log_offsets(source, positions)
    return {p: PartitionLag(p, at, there[p].last_stable, source_start=there[p].start) for p, at in positions.items()}


async def oldest_times(source: Cluster, lags: Collection[PartitionLag]) -> dict[TopicPartition, int]:
    """The latest timestamp, in ms, of the first uncopied batch of the partitions that lag most; retention goes by it."""
    behind = sorted((lag for lag in lags if lag.copyable), key=lambda lag: lag.copyable, reverse=True)
    firsts = {lag.partition: max(lag.position or 0, lag.source_start or 0) for lag in behind[:_TIMED_PARTITIONS]}
    try:
        headers = await read_headers(source, firsts)
    except Errors.UnsupportedVersionError:
        return {}
    return {partition: header.max_timestamp for partition, header in headers.items()}
