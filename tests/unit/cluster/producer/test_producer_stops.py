"""Who a batch producer is: a stop counts, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tolerant_client.cluster.producer.batch_producer import BatchProducer
from tolerant_client.cluster.producer.sender import ProducerSettings


class FakeCluster:
    """Gives a producer id; `meanwhile` is what happens before that."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.net = None

    async def connect(self, timeout_ms: int) -> None:
        pass

    async def require_record_batches(self) -> None:
        pass

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]], patience_ms: int) -> Any:
        self.meanwhile()
        return 7, 0


def test_a_stop_is_not_forgotten_with_the_producer_id_that_comes_after_it() -> None:
    cluster: Any = FakeCluster()
    producer = BatchProducer(cluster, ProducerSettings())
    stopped = RuntimeError("the query was stopped")
    cluster.meanwhile = lambda: producer.stop(stopped)
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:
            asyncio.run(producer.start())
        assert raised.value is stopped
