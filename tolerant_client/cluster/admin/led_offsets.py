"""Offsets of many partitions, of which some may have no leader.

Laws:
- No partition waits for another one.  `Cluster.list_offsets` answers for all or for none; here what cannot be asked is
  left out, with the reason.
- All leaders are asked at once, and one that hangs holds up a look for SILENT_S, once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import text_of

SILENT_S = 5.0  # a leader that says nothing for so long is not asked again in the same look
_BELIEVED_AFTER = 3  # looks: one wrong answer leaves nothing out


class LedOffsets(NamedTuple):
    """Offsets of the partitions that could be asked, and why each of the others could not."""

    offsets: dict[TopicPartition, int]
    left_out: dict[TopicPartition, str]


async def stable_ends(source: Cluster, partitions: Collection[TopicPartition], patience_ms: int = 0) -> LedOffsets:
    """How far each partition can be copied: the last stable offsets."""
    asked = dict.fromkeys(partitions, LATEST)
    return await list_led_offsets(source, asked, isolation_level=READ_COMMITTED, patience_ms=patience_ms)


async def list_led_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    patience_ms: int = 0,
    looks: int = _BELIEVED_AFTER,
) -> LedOffsets:
    """As Cluster.list_offsets; waits at most `patience_ms` for the leaders that are missing, or do not answer.

    What cannot be asked is believed after so many `looks`.

    Raises ClusterUnreachableError where no broker answers.
    """
    found: dict[TopicPartition, int] = {}
    silent: dict[int, Exception] = {}
    deadline, pause_s = time.monotonic() + patience_ms / 1000, 0.05
    await cluster.connect()
    await cluster.track({p.topic for p in timestamps})
    looked = 0
    while True:
        looked += 1
        left_out: dict[TopicPartition, str] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in timestamps:
            if partition not in found:
                node_id = cluster.known_leader(partition)
                if node_id is None:
                    left_out[partition] = cluster.why_leaderless(partition)
                else:
                    by_node.setdefault(node_id, []).append(partition)
        answers = {
            node_id: cluster.net.call_soon_with_future(_answers, cluster, node_id, members, timestamps, isolation_level)
            for node_id, members in by_node.items()
            if node_id not in silent
        }
        until = time.monotonic() + SILENT_S
        for node_id, answer_of_node in answers.items():
            try:
                told = await cluster.manager.wait_for(answer_of_node, max(1.0, 1000 * (until - time.monotonic())))
            except Errors.KafkaTimeoutError:
                silent[node_id] = Errors.KafkaTimeoutError(f"no response within {SILENT_S:.0f} s")
                continue
            for partition, answer in told.items():
                if isinstance(answer, int):
                    found[partition] = answer
                else:
                    leader = f"node {node_id} of the {cluster.name}, which leads it"
                    left_out[partition] = f"{leader}, tells no offset of it: {text_of(answer)}"
        for node_id in by_node.keys() & silent.keys():
            why = f"node {node_id} of the {cluster.name}, which leads it, does not respond: {text_of(silent[node_id])}"
            left_out.update((p, why) for p in by_node[node_id])
        may_heal = any(cluster.known_leader(p) not in silent for p in left_out)
        if not left_out or (looked >= looks or not may_heal) and time.monotonic() >= deadline:
            return LedOffsets(found, left_out)
        await cluster.net.sleep(pause_s * random.uniform(0.8, 1.2))
        pause_s = min(pause_s * 2, 1.0)
        if time.monotonic() < deadline:
            silent.clear()
        await cluster.refresh()


async def _answers(
    cluster: Cluster,
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
