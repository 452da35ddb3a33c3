"""Asks several nodes: the leaders of many partitions, or the coordinators of many keys.

Law: where all are asked at once, a node that hangs makes only its own partitions unknown.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TolerantClientError, text_of

SILENT_S = 5.0  # a leader that says nothing for this long is not asked again in the same pass
NOT_CONNECTED = (Errors.KafkaConnectionError, Errors.NodeNotReadyError)
LATE_S = 30.0  # the same for callers in no hurry: a quota may hold up a response (KIP-219)

_K = TypeVar("_K")
_T = TypeVar("_T")
# Returns what a node says of each of these partitions, which it leads.
Ask = Callable[[int, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, _T]]]


class SilentError(TolerantClientError):
    """A node said nothing for as long as we waited for it."""


async def ask_nodes(
    cluster: Cluster,
    by_node: Mapping[int, Collection[_K]],
    ask: Callable[[int, Collection[_K]], Awaitable[Mapping[_K, _T | Exception]]],
    within_s: float = SILENT_S,
) -> dict[_K, _T | Exception]:
    """What each node says of its keys, asked once and in parallel, each for `within_s`; SilentError for a silent one."""

    async def told(node_id: int) -> Mapping[_K, _T | Exception]:
        try:
            return await ask(node_id, by_node[node_id])
        except (Errors.KafkaError, ValueError) as error:
            return dict.fromkeys(by_node[node_id], error)

    asked = {node_id: cluster.net.call_soon_with_future(told, node_id) for node_id in by_node}
    until = time.monotonic() + within_s
    found: dict[_K, _T | Exception] = {}
    for node_id, future in asked.items():
        silent: Exception = Errors.UnknownTopicOrPartitionError("missing in the response")
        responses: Mapping[_K, _T | Exception] = {}
        try:
            responses = await cluster.heard(future, max(1.0, 1000 * (until - time.monotonic())), node_id)
        except Errors.KafkaTimeoutError:
            silent = SilentError(f"no response within {within_s:.0f} s")
        found.update({key: responses.get(key, silent) for key in by_node[node_id]})
    return found


async def ask_leaders(
    cluster: Cluster,
    what: str,
    partitions: Iterable[TopicPartition],
    ask: Ask[_T | Exception],
    silent: dict[int, Exception],
    within_s: float = SILENT_S,
) -> tuple[dict[TopicPartition, _T], dict[TopicPartition, str]]:
    """What the leaders say, asked once and in parallel, each for `within_s`; and why others could not be asked.

    Nodes that said nothing are added to `silent`; nodes that are in it are not asked.
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

    asked = {node_id: members for node_id, members in by_node.items() if node_id not in silent}
    responses = await ask_nodes(cluster, asked, ask, within_s)
    for node_id, members in asked.items():
        for partition in members:
            response = responses[partition]
            if isinstance(response, SilentError):
                silent[node_id] = response
            elif isinstance(response, Exception):
                leader = f"node {node_id} of the {cluster.name}, which leads it"
                says = "does not respond" if isinstance(response, NOT_CONNECTED) else f"gives no {what} for it"
                left_out[partition] = f"{leader}, {says}: {text_of(response)}"
            else:
                found[partition] = response
    for node_id in by_node.keys() & silent.keys():
        why = f"node {node_id} of the {cluster.name}, which leads it, does not respond: {text_of(silent[node_id])}"
        left_out.update((p, why) for p in by_node[node_id])
    return found, left_out


async def insist_on_leaders(
    cluster: Cluster, what: str, partitions: Iterable[TopicPartition], ask: Ask[_T]
) -> dict[TopicPartition, _T]:
    """What the leaders say, asked one after the other; a request that fails is repeated (Cluster.insist)."""
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
