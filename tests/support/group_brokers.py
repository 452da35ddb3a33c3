"""Brokers that answer for many groups: which requests go out, and what codes make of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

PLACE = TopicPartition("A.orders", 3)


class Brokers:
    """Two coordinators in one object: groups are at node len(name) % 2, and answer with `codes` until these run out."""

    name = "target"

    def __init__(self, versions: dict[Any, int], codes: dict[str, list[int]] | None = None) -> None:
        self.net = NetworkSelector()
        self.requests: list[tuple[int | None, Any]] = []
        self.codes = codes or {}
        self.highest = {request.API_KEY: highest for request, highest in versions.items()}
        nodes = [SimpleNamespace(node_id=n) for n in (0, 1)]
        self.manager = SimpleNamespace(
            cluster=SimpleNamespace(request_update=lambda: None, brokers=lambda: nodes),
        )

    def highest_version(self, request: Any) -> int:
        return self.highest.get(request.API_KEY, -1)

    async def connect(self) -> None:
        pass

    async def refresh(self) -> None:
        pass

    async def insist(self, what: str, attempt: Any, patience_ms: int) -> Any:
        return await attempt()

    def _code(self, group: str) -> int:
        left = self.codes.get(group, [])
        return left.pop(0) if len(left) > 1 else left[0] if left else 0

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        self.requests.append((node_id, request))
        many = self.highest[request.API_KEY]
        if isinstance(request, FindCoordinatorRequest):
            names = request.coordinator_keys if many >= 4 else [request.key]
            names = [name for name in names if name != "unheard of"]
            found = [SimpleNamespace(key=n, node_id=len(n) % 2, error_code=15 if n == "homeless" else 0) for n in names]
            return SimpleNamespace(coordinators=found) if many >= 4 else found[0]
        if isinstance(request, ListGroupsRequest):
            name = "g" * (2 + (node_id or 0))
            listed = SimpleNamespace(group_id=name, protocol_type="consumer", group_state="Stable", group_type="")
            return SimpleNamespace(error_code=self._code(f"broker {node_id}"), groups=[listed])
        if isinstance(request, OffsetFetchRequest):
            names = [g.group_id for g in request.groups] if many >= 8 else [request.group_id]
            part = SimpleNamespace(partition_index=3, committed_offset=len(names[0]), metadata=None, error_code=0)
            gone = SimpleNamespace(partition_index=4, committed_offset=-1, metadata=None, error_code=0)
            topic = SimpleNamespace(name="A.orders", partitions=[part, gone])
            groups = [SimpleNamespace(group_id=n, error_code=self._code(n), topics=[topic]) for n in names]
            return SimpleNamespace(groups=groups) if many >= 8 else groups[0]
        if isinstance(request, OffsetCommitRequest):
            parts = [SimpleNamespace(partition_index=3, error_code=self._code(request.group_id))]
            return SimpleNamespace(topics=[SimpleNamespace(name="A.orders", partitions=parts)])
        assert isinstance(request, DescribeGroupsRequest)
        told = [SimpleNamespace(group_id=n, error_code=self._code(n), group_state="Empty") for n in request.groups]
        return SimpleNamespace(groups=told)

    def count(self, kind: Any) -> int:
        return sum(isinstance(request, kind) for _, request in self.requests)


KINDS = (FindCoordinatorRequest, OffsetFetchRequest, OffsetCommitRequest, ListGroupsRequest, DescribeGroupsRequest)
NEW = dict(zip(KINDS, (6, 10, 10, 5, 6)))  # Kafka 4
OLD = dict(zip(KINDS, (1, 3, 3, 2, 2)))  # Kafka 1
NAMES = [f"g{'.' * (n % 2)}{n:03}" for n in range(300)]


def run(cluster: Brokers, function: Any, *args: Any) -> Any:
    try:
        return cluster.net.run(function, cluster, *args)
    finally:
        cluster.net.close()
