"""Leader epochs of the source: was what we copied taken back by an election (KIP-101, KIP-320, incident 4)?"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import leader_epoch_ends
from tolerant_client.cluster.cluster import Cluster


async def source_truncations(
    source: Cluster, copied: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Where the source's logs were cut below what was copied.

    `copied` has the leader epoch of the last copied batch and the offset behind
    it.  The leader says where its log has the end of that epoch; what was
    copied from there on is gone.  Partitions without a cut are absent, all of
    them where the brokers (before 2.1) cannot say.
    """
    ends = await leader_epoch_ends(source, {p: epoch for p, (epoch, _) in copied.items() if epoch >= 0})
    return {p: end for p, end in ends.items() if p in copied and 0 <= end < copied[p][1]}
