"""Asking the leaders of many partitions.

Law: a node that hangs makes only its own partitions unknown, where all leaders are asked at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import text_of

SILENT_S = 5.0  # a leader that says nothing for so long is not asked again in the same look

_T = TypeVar("_T")
# What a node says of each of these partitions that it leads.
Ask = Callable[[int, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, _T]]]


async def ask_leaders(
    cluster: Cluster,
    what: str,
    partitions: Iterable[TopicPartition],
    ask: Ask[_T | Exception],
    silent: dict[int, Exception],
) -> tuple[dict[TopicPartition, _T], dict[TopicPartition, str]]:
    """What the leaders say, all asked at once and once, each for SILENT_S; and why others could not be asked.

    Nodes that said nothing are noted in `silent`, and those that are there are not asked.
    """
    found: dict[TopicPartition, _T] = {}
    left_out: dict[TopicPartition, str] = {}
    by_node: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        node_id = cluster.known_leader(partition)
        if node_id is None:
            left_out[partition] = cluster.why_leaderless(partition)
        else:
            by_node.setdefault(node_id, []).append(partition)

    async def told(node_id: int) -> Mapping[TopicPartition, _T | Exception]:
        try:
            return await ask(node_id, by_node[node_id])
        except (Errors.KafkaError, ValueError) as error:
            return dict.fromkeys(by_node[node_id], error)

    asked = {node: cluster.net.call_soon_with_future(told, node) for node in by_node if node not in silent}
    until = time.monotonic() + SILENT_S
    for node_id, future in asked.items():
        try:
            answers = await cluster.manager.wait_for(future, max(1.0, 1000 * (until - time.monotonic())))
        except Errors.KafkaTimeoutError:
            silent[node_id] = Errors.KafkaTimeoutError(f"no response within {SILENT_S:.0f} s")
            continue
        for partition in by_node[node_id]:
            answer = answers.get(partition, Errors.UnknownTopicOrPartitionError("an answer without it"))
            if isinstance(answer, Exception):
                leader = f"node {node_id} of the {cluster.name}, which leads it"
                left_out[partition] = f"{leader}, tells no {what} of it: {text_of(answer)}"
            else:
                found[partition] = answer
    for node_id in by_node.keys() & silent.keys():
        why = f"node {node_id} of the {cluster.name}, which leads it, does not respond: {text_of(silent[node_id])}"
        left_out.update((p, why) for p in by_node[node_id])
    return found, left_out


async def insist_on_leaders(
    cluster: Cluster, what: str, partitions: Iterable[TopicPartition], ask: Ask[_T]
) -> dict[TopicPartition, _T]:
    """What the leaders say, one after the other; a request that fails is repeated (Cluster.insist)."""
    wanted = list(partitions)
    answered: set[TopicPartition] = set()
    found: dict[TopicPartition, _T] = {}

    async def attempt() -> None:
        for node_id, members in (await cluster.by_leader(p for p in wanted if p not in answered)).items():
            found.update(await ask(node_id, members))
            answered.update(members)

    if wanted:
        await cluster.insist(what, attempt)
    return found
