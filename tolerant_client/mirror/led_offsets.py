"""Offsets of many partitions, of which some may have no leader.

Law: no partition waits for another one.  `RawCluster.list_offsets` answers for all or for none; here what cannot be asked
is left out, with the reason.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.raw import LATEST, READ_COMMITTED, RawCluster

_BELIEVED_AFTER = 3  # looks: one wrong answer leaves nothing out


class LedOffsets(NamedTuple):
    """Offsets of the partitions that could be asked, and why each of the others could not."""

    offsets: dict[TopicPartition, int]
    left_out: dict[TopicPartition, str]


async def stable_ends(source: RawCluster, partitions: Collection[TopicPartition], patience_ms: int = 0) -> LedOffsets:
    """How far each partition can be copied: the last stable offsets."""
    asked = dict.fromkeys(partitions, LATEST)
    return await list_led_offsets(source, asked, isolation_level=READ_COMMITTED, patience_ms=patience_ms)


async def list_led_offsets(
    cluster: RawCluster, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0, patience_ms: int = 0
) -> LedOffsets:
    """As RawCluster.list_offsets; waits at most `patience_ms` for the leaders that are missing, or do not answer.

    Raises ClusterUnreachableError where no broker answers.
    """
    found: dict[TopicPartition, int] = {}
    deadline, pause_s = time.monotonic() + patience_ms / 1000, 0.05
    await cluster.connect()
    await cluster.track({p.topic for p in timestamps})
    looks = 0
    while True:
        looks += 1
        left_out: dict[TopicPartition, str] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in timestamps:
            if partition not in found:
                node_id = cluster.known_leader(partition)
                if node_id is None:
                    left_out[partition] = f"it has no leader on the {cluster.name}"
                else:
                    by_node.setdefault(node_id, []).append(partition)
        for node_id, members in by_node.items():
            for partition, answer in (await _answers(cluster, node_id, members, timestamps, isolation_level)).items():
                if isinstance(answer, int):
                    found[partition] = answer
                else:
                    leader = f"node {node_id} of the {cluster.name}, which leads it"
                    left_out[partition] = f"{leader}, tells no offset of it: {answer}"
        if not left_out or looks >= _BELIEVED_AFTER and time.monotonic() >= deadline:
            return LedOffsets(found, left_out)
        await cluster.net.sleep(pause_s * random.uniform(0.8, 1.2))
        pause_s = min(pause_s * 2, 1.0)
        await cluster.refresh()


async def _answers(
    cluster: RawCluster,
    node_id: int,
    members: list[TopicPartition],
    timestamps: Mapping[TopicPartition, int],
    isolation_level: int,
) -> dict[TopicPartition, int | Exception]:
    try:
        told = await cluster.offsets_at(node_id, members, timestamps, isolation_level)
    except (Errors.KafkaError, ValueError) as error:
        return dict.fromkeys(members, error)
    return {p: told.get(p, Errors.UnknownTopicOrPartitionError("an answer without it")) for p in members}
