"""A cluster of one partition, in memory, for what reads logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.records.record_batch import read_header


class OneLog:
    """A cluster with one partition; cuts answers at the limit as brokers before 0.10.1 did."""

    name = "source"

    def __init__(self, batches: Iterable[bytes], start: int = 0, stable: int | None = None) -> None:
        self.batches = [(read_header(batch), batch) for batch in batches]
        self.start = start
        self.end = self.batches[-1][0].next_offset if self.batches else start
        self.stable = self.end if stable is None else stable
        self.fetches = 0
        self.net = self.manager = self

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return await self.offsets_at(1, timestamps, timestamps, 0)

    async def offsets_at(
        self, node: int, partitions: Iterable[TopicPartition], timestamps: Mapping[TopicPartition, int], *_: object
    ) -> dict[TopicPartition, int]:
        return {p: self.end if timestamps[p] == LATEST else self.start for p in partitions}

    async def connect(self) -> None:
        pass

    async def track(self, topics: Iterable[str]) -> None:
        pass

    def known_leader(self, partition: TopicPartition) -> int:
        return 1

    def call_soon_with_future(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(function(*args))

    async def heard(self, future: asyncio.Future[Any], timeout_ms: float, node_id: int | None = None) -> Any:
        return await future

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()

    async def fetch(
        self,
        node: int,
        positions: Mapping[TopicPartition, int],
        *,
        partition_max_bytes: int = 1 << 20,
        isolation_level: int = 0,
        **_: object,
    ) -> list[FetchedPartition]:
        self.fetches += 1
        end = self.stable if isolation_level else self.end
        found = []
        for partition, position in positions.items():
            error = 0 if self.start <= position <= self.end else 1
            data = b"".join(b for h, b in self.batches if h.last_offset >= position and h.base_offset < end)[
                :partition_max_bytes
            ]
            found.append(FetchedPartition(partition, error, self.end, end, 0, (), memoryview(b"" if error else data)))
        return found
