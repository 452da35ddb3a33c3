"""The status of a link, also while one of its clusters does not respond: what the other one tells, and nothing else."""

from __future__ import annotations

import time
from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, text_of
from tolerant_client.mirror.life.lens import PartitionLag, source_ends
from tolerant_client.mirror.life.status import LinkStatus, read_status
from tolerant_client.mirror.life.topic_status import topics_of
from tolerant_client.mirror.state.health import Health, Reason, not_responding, sorted_by_weight
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics


async def read_known_status(
    source: Cluster, target: Cluster, link: str, topics: LinkTopics, *, of_file: bool = False
) -> LinkStatus:
    """As read_status; a cluster that cannot be reached makes the link unknown.  Raises ClusterUnreachableError for two of them."""
    try:
        await target.connect()
    except ClusterUnreachableError as error:
        if await _why_away(source) is not None:
            raise
        return await _of_source(source, link, topics, text_of(error))
    why = await _why_away(source)
    found = await read_status(source, target, link, topics, of_file=of_file, is_source_away=why is not None)
    if why is None or found.is_promoted or found.is_handed_back:  # these copy nothing: no source is missed
        return found
    reason = Reason(Health.UNKNOWN, not_responding("source", why))
    return replace(found, reasons=sorted_by_weight([reason, *found.reasons]))


async def _why_away(cluster: Cluster) -> str | None:
    try:
        await cluster.connect()
    except ClusterUnreachableError as error:
        return text_of(error)
    return None


async def _of_source(source: Cluster, link: str, topics: LinkTopics, why: str) -> LinkStatus:
    """What the source has; the control, the claims and all positions are on the target."""
    names = await source.partitions()
    chosen = select_topics(topics, names)
    wanted = [TopicPartition(name, number) for name in chosen for number in names[name]]
    ends, stable, unseen = await source_ends(source, wanted)
    lags = [PartitionLag(p, None, stable[p], ends[p]) for p in wanted if p in ends]
    now_ms = int(time.time() * 1000)
    unknown = "whether a mirror runs, how far it is, and what an operator has ordered is unknown: only the target tells"
    return LinkStatus(
        link,
        now_ms,
        None,
        None,
        None,
        None,
        tuple(replace(topic, paused=None) for topic in topics_of(lags, now_ms, LinkControl(), None, unseen)),
        (Reason(Health.UNKNOWN, not_responding("target", why)), Reason(Health.UNKNOWN, unknown)),
        losses=None,
        open_transactions=None,
        is_handed_back=None,
        mirrors=None,
    )
