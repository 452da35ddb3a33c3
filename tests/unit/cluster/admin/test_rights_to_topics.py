"""Which topics we may not read or write, as the brokers tell before we try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors

from tolerant_client.cluster.admin.topics import READ, WRITE, not_allowed

TOLD = {
    "read": (0, {READ}),
    "both": (0, {READ, WRITE}),
    "old-broker": (0, None),
    "no-right": (Errors.TopicAuthorizationFailedError.errno, None),
    "not-there": (Errors.UnknownTopicOrPartitionError.errno, None),
}


class Brokers:
    """Respond to a Metadata request that asks for rights."""

    wire_topic = topic_of = staticmethod(str)

    async def insist(self, what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        return await ask()

    async def send(self, request: Any) -> Any:
        topics = [
            SimpleNamespace(name=name, error_code=error, authorized_operations=rights)
            for name, (error, rights) in TOLD.items()
        ]
        return SimpleNamespace(topics=topics)


def test_a_topic_without_any_right_is_one_that_we_may_not_read() -> None:
    brokers: Any = Brokers()
    assert asyncio.run(not_allowed(brokers, TOLD, READ)) == ["no-right"]
    assert asyncio.run(not_allowed(brokers, TOLD, WRITE)) == ["no-right", "read"]
