"""metadata.py: the loop that refreshes metadata in the background outlives every failure."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector

from tolerant_client.stock.metadata import TolerantMetadata
from tolerant_client.stock.stock_names import Future


class Manager:
    """Its next refresh hangs until `refreshed` is set, its first connection fails unless `bootstrapped`."""

    def __init__(self, net: NetworkSelector) -> None:
        self._net = net
        self.bootstrapped = True
        self.refreshes = 0
        self.refreshed = Future()

    def call_soon(self, function: Any, *args: Any) -> Any:
        return self._net.call_soon_with_future(function, *args)

    async def bootstrap_async(self) -> None:
        raise Errors.KafkaConnectionError("refused")

    def connection_delay(self, node_id: Any) -> float:
        return 0.0

    def least_loaded_node(self) -> int:
        return 1

    def reset_backoff(self, node_id: Any) -> None: ...
    def send(self, request: Any, node_id: int) -> Future:
        self.refreshes += 1
        return self.refreshed


async def wait(net: NetworkSelector, seconds: float = 0.05) -> None:
    await net.sleep(seconds)


@pytest.mark.parametrize("is_first", [False, True], ids=["the-refresh-of-another", "the-first-connection"])
def test_the_loop_goes_on_after(is_first: bool) -> None:
    net = NetworkSelector()
    manager = Manager(net)
    metadata = TolerantMetadata(bootstrap_servers="a:1")
    metadata.attach(manager)
    manager.bootstrapped = not is_first
    if not is_first:  # another caller's refresh is under way when the loop begins
        net.call_soon_with_future(metadata.refresh_metadata)
        net.run(wait, net)
    metadata.start_refresh_loop()
    net.run(wait, net)
    assert manager.refreshes == (not is_first)
    failed, manager.refreshed, manager.bootstrapped = manager.refreshed, Future(), True
    failed.failure(Errors.KafkaConnectionError("lost"))
    net.run(wait, net, 0.2)
    metadata.request_update()
    net.run(wait, net, 0.2)
    assert manager.refreshes == 1 + (not is_first)
    metadata.close()
    manager.refreshed.failure(Errors.KafkaConnectionError("lost"))
    net.run(wait, net)
    net.close()
