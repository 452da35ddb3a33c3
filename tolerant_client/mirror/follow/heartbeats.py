"""Emits heartbeats as MirrorMaker 2 does, so that tools which read them (MirrorClient, replicationHops) see this mirror.

For two clusters A and B MirrorMaker 2 writes "A to B" into `heartbeats` of B, and "B to A" into `heartbeats` of A even
if only A->B is enabled; that flow copies the latter to B as `A.heartbeats`, and from this name MirrorClient on B
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
    replication_factor: int,
) -> Heartbeat:
    """Writes one heartbeat into `cluster`, whose alias is `target_alias` (and which has no names of a link), and returns it.

    Raises OptionError if we may not create or write the topic, ClusterUnreachableError.
    """
    heartbeat = Heartbeat(source_alias, target_alias, now_ms)
    await write_records(cluster, topic, [encode_heartbeat(heartbeat)], now_ms, replication_factor=replication_factor)
    return heartbeat
