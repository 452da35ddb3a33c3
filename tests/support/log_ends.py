"""A cluster for what plans reads on the driver: topics, first offsets and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.structs import TopicPartition

from spark_integration.reading.offsets import EARLIEST, LATEST


class Logs:
    """A cluster that is nothing but first and end offsets, and a time for each offset: its own number."""

    bootstrap_servers = ("nowhere:1",)
    topic_ids: Mapping[str, str] = {}

    def __init__(
        self, logs: Mapping[TopicPartition, tuple[int, int]], *, lies: Iterable[dict[TopicPartition, int]] = ()
    ) -> None:
        self.logs = dict(logs)
        self.lies = list(lies)  # what the first questions for the latest offsets are answered
        self.asked: list[dict[TopicPartition, int]] = []
        self.isolation_levels: set[int] = set()
        self.net = self

    async def sleep(self, seconds: float) -> None: ...

    async def partitions(self, topics: Iterable[str] | None = None) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for partition in self.logs:
            if topics is None or partition.topic in topics:
                found.setdefault(partition.topic, []).append(partition.partition)
        return found

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        self.asked.append(dict(timestamps))
        self.isolation_levels.add(isolation_level)
        if self.lies and LATEST in timestamps.values():
            return self.lies.pop(0)
        return {partition: self._offset(*self.logs[partition], time) for partition, time in timestamps.items()}

    async def cluster_id(self) -> str | None:
        return None

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return asyncio.run(function(*args))

    def _offset(self, first: int, end: int, time: int) -> int:
        named = {EARLIEST: first, LATEST: end}
        return named[time] if time in named else max(first, time) if time < end else -1
