"""The control topic of a cluster, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import kafka.errors as Errors
import pytest

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state import control_topic
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.records.record_batch import Record


class ControlTopic:
    """A cluster with nothing but its control topic, in memory; `before_append` runs between a writer's look and its record."""

    name, id, codec = "target", "t", 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Record] = []
        self.before_append: list[Callable[[], Awaitable[object]]] = []
        self.is_killed, self.is_there, self.is_refused = False, True, False
        self.read_from: list[int] = []
        self.leader_epochs = [4]
        self.cluster = self
        monkeypatch.setattr(control_topic, "control_topic", lambda cluster: cluster)

    async def insist(self, what: str, attempt: Callable[[], Awaitable[int]]) -> int:
        return await attempt()

    async def exists(self) -> bool:
        if self.is_refused:
            raise Errors.TopicAuthorizationFailedError("tolerant-mirror-control")
        return self.is_there

    async def end(self) -> int:
        return len(self.log)

    async def records(self, start: int, end: int) -> list[Record]:
        self.read_from += range(start, end)
        return self.log[start:end]

    async def ensure(self) -> None:
        """It is there."""

    async def put(self, key: bytes, value: bytes) -> int:
        while self.before_append:
            await self.before_append.pop()()
        self.log.append(Record(len(self.log), 0, key, value))
        if self.is_killed:
            raise KeyboardInterrupt
        return len(self.log) - 1

    async def change(self, link: str = "dr", **changes: Any) -> LinkControl:
        return await update_control(cast(Cluster, self), link, lambda now: replace(now, **changes))

    async def read(self) -> LinkControl:
        return await read_control(cast(Cluster, self), "dr")
