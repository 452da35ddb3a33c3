"""Heartbeats as MirrorMaker 2 emits them, so that what watches those (MirrorClient, replicationHops) sees this mirror.

For two clusters A and B MirrorMaker 2 writes "A to B" into `heartbeats` of B, and "B to A" into `heartbeats` of A even
where only A->B is enabled; that flow copies the latter to B as `A.heartbeats`, and from this name MirrorClient on B
knows that A is upstream (MirrorMakerConfig.clusterPairs, MirrorHeartbeatTask, MirrorClient.upstreamClusters).
"""

from __future__ import annotations

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.follow.internal_topics import write_records
from tolerant_client.mirror.follow.mm2_records import Heartbeat, encode_heartbeat

HEARTBEATS_TOPIC = "heartbeats"


async def emit_heartbeat(
    cluster: Cluster,
    source_alias: str,
    target_alias: str,
    now_ms: int,
    *,
    topic: str = HEARTBEATS_TOPIC,
    replication_factor: int = 3,
) -> Heartbeat:
    """Writes one heartbeat into `cluster`, which is called `target_alias` (and has no names of a link), and returns it.

    Raises OptionError where the topic may not be made or written, ClusterUnreachableError.
    """
    heartbeat = Heartbeat(source_alias, target_alias, now_ms)
    await write_records(cluster, topic, [encode_heartbeat(heartbeat)], now_ms, replication_factor=replication_factor)
    return heartbeat
