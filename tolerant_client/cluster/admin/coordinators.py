"""Coordinators of groups and transactional ids: finds them, and asks one, or those of many keys at a time.

Laws:
- What fails for a key fails for that key alone: a partition of __consumer_offsets without a leader holds up no group of
  another partition.
- Many keys share a request where the brokers can (KIP-699), and requests to different coordinators run in parallel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

import kafka.errors as Errors
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import NOT_CONNECTED
from tolerant_client.cluster.admin.asking import AT_ONCE, chunks, is_retriable
from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import BELIEVED_AFTER, Patience
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.stock.coordinator_partition import TRANSACTIONS_TOPIC, partition_of

GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
_FIND_MANY = 4
_UNDER_WAY = 16
_MOVED = (Errors.NotCoordinatorError.errno, Errors.CoordinatorNotAvailableError.errno)

_T = TypeVar("_T")
Failures = dict[str, Exception]


async def find_coordinators(cluster: Cluster, kind: int, keys: Iterable[str]) -> dict[str, int | Exception]:
    """The node that coordinates each key, or why it is not known; asked once.  Raises ClusterUnreachableError."""
    await cluster.connect()
    has_many = cluster.highest_version(FindCoordinatorRequest) >= _FIND_MANY
    found: dict[str, int | Exception] = {}
    for chunk in chunks(keys, AT_ONCE if has_many else 1):
        request = (
            FindCoordinatorRequest(key_type=kind, coordinator_keys=chunk, max_version=_FIND_MANY)
            if has_many
            else FindCoordinatorRequest(key=chunk[0], key_type=kind, max_version=_FIND_MANY - 1)
        )
        try:
            response = await cluster.send(request)
        except ClusterUnreachableError:
            raise
        except (Errors.KafkaError, ValueError) as error:
            found.update(dict.fromkeys(chunk, error))
            continue
        for told in response.coordinators if has_many else [response]:
            key = told.key if has_many else chunk[0]
            kind_of = Errors.for_code(told.error_code)
            found[key] = kind_of(f"finding the coordinator of {key!r}") if told.error_code else told.node_id
        for key in chunk:
            if key not in found:
                found[key] = Errors.CoordinatorNotAvailableError(f"the {cluster.name} says nothing about {key!r}")
    return found


async def transaction_partitions(cluster: Cluster, ids: Iterable[str]) -> dict[str, TopicPartition]:
    """The partition of __transaction_state that each id belongs to; empty where there is none, or we may not describe it."""
    visible, _ = await visible_topics(cluster, [TRANSACTIONS_TOPIC])
    count = len(visible.get(TRANSACTIONS_TOPIC, ()))
    return {name: TopicPartition(TRANSACTIONS_TOPIC, partition_of(name, count)) for name in ids} if count else {}


class Coordinators:
    """Finds the coordinator of groups and transactional ids, and asks it until it responds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: dict[tuple[int, str], int] = {}

    async def ask(
        self,
        kind: int,
        key: str,
        what: str,
        request: Callable[[], Any],
        read: Callable[[Any], _T],
        patience_ms: int | None = None,
    ) -> _T:
        """Sends `request()` to the coordinator until `read(response)`, which raises for error codes, succeeds.

        `patience_ms` is Cluster.insist's.
        """
        return await self._cluster.insist(what, lambda: self.ask_once(kind, key, request, read), patience_ms)

    def known(self, kind: int, key: str) -> int | None:
        """The broker that is asked now; None where none was found yet."""
        return self._nodes.get((kind, key))

    async def ask_once(self, kind: int, key: str, request: Callable[[], Any], read: Callable[[Any], _T]) -> _T:
        """Sends `request()` to the coordinator, if there is one, and returns `read(response)`."""
        node_id = self._nodes.get((kind, key))
        if node_id is None:
            found = (await find_coordinators(self._cluster, kind, [key]))[key]
            if isinstance(found, Exception):
                raise found
            node_id = self._nodes[kind, key] = found
        try:
            return read(await self._cluster.send(request(), node_id))
        except Errors.KafkaError as error:
            if getattr(error, "errno", None) in _MOVED or isinstance(error, NOT_CONNECTED):
                self._nodes.pop((kind, key), None)
            raise


class ManyGroups(Generic[_T]):
    """Asks the coordinators of many groups, and asks again for groups whose error may heal.

    `may_send` is called right before requests are sent, each time; what it raises ends the call.
    """

    def __init__(
        self, cluster: Cluster, patience_ms: int, may_send: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._cluster = cluster
        self._patience_ms = patience_ms
        self._may_send = may_send
        self._nodes: dict[str, int] = {}
        self._found: dict[str, _T] = {}
        self._failures: Failures = {}
        self._repeats: dict[str, int] = {}

    async def ask(
        self,
        groups: Collection[str],
        request: Callable[[Sequence[str]], Any],
        read: Callable[[Any], Iterable[tuple[str, int, _T]]],
        many: int,
    ) -> tuple[dict[str, _T], Failures]:
        """Responses by group, and the errors of groups without one; `many` is how many groups a request may name.

        `read` yields (group, error code, response) of each; the name "" stands for the only group of its request.
        """
        net = self._cluster.net
        pending = list(groups)
        patience = Patience(self._patience_ms / 1000)
        while pending:
            await self._find([name for name in pending if name not in self._nodes])
            by_node: dict[int, list[str]] = {}
            for name in pending:
                if name in self._nodes:
                    by_node.setdefault(self._nodes[name], []).append(name)
            for some in chunks([(node, part) for node in by_node for part in chunks(by_node[node], many)], _UNDER_WAY):
                if self._may_send is not None:
                    await self._may_send()
                asked = [
                    (names, net.call_soon_with_future(self._cluster.send, request(names), node)) for node, names in some
                ]
                for names, future in asked:
                    await self._settle(names, future, read)
            pending = [n for n in pending if n not in self._found and self._repeats.get(n, 0) < BELIEVED_AFTER]
            if pending and patience.is_over:
                break
            if pending:
                await net.sleep(patience.pause_s())
        for name in set(pending) - self._found.keys() - self._failures.keys():
            self._failures[name] = Errors.CoordinatorNotAvailableError(
                f"the {self._cluster.name} says nothing about {name!r}"
            )
        return self._found, self._failures

    async def _settle(
        self, names: Sequence[str], future: Awaitable[Any], read: Callable[[Any], Iterable[tuple[str, int, _T]]]
    ) -> None:
        try:
            for name, code, response in read(await future):
                name = name or names[0]
                if code:
                    self._failed(name, Errors.for_code(code)(f"group {name!r} of the {self._cluster.name}"))
                else:
                    self._found[name] = response
                    self._failures.pop(name, None)
        except ClusterUnreachableError:
            raise
        except (Errors.KafkaError, ValueError) as error:
            self._cluster.manager.cluster.request_update()
            for name in names:
                self._failed(name, error)

    async def _find(self, groups: Collection[str]) -> None:
        for name, found in (await find_coordinators(self._cluster, GROUP, groups)).items():
            if isinstance(found, Exception):
                self._failed(name, found)
            else:
                self._nodes[name] = found

    def _failed(self, group: str, error: Exception) -> None:
        """Believes an error that cannot heal when it comes three times; looks up the coordinator again in any case."""
        self._nodes.pop(group, None)
        self._repeats[group] = 0 if is_retriable(error) else self._repeats.get(group, 0) + 1
        self._failures[group] = error
