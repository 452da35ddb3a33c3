"""metadata.py: the loop that refreshes metadata in the background outlives every failure, and finds a cluster that has moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector

import tolerant_client.stock.metadata as metadata_module
from tolerant_client.stock.metadata import TolerantMetadata
from tolerant_client.stock.stock_names import Future


class Manager:
    """Its next refresh hangs until `refreshed` is set, its first connection fails unless `bootstrapped`."""

    is_moving = False
    moves = 0

    def __init__(self, net: NetworkSelector) -> None:
        self._net = net
        self.bootstrapped = True
        self.refreshes = 0
        self.refreshed = Future()
        self.is_cut_off = False
        self.searches = 0
        self.has_reset: bool | None = None
        self.node: int | None = 1
        self.found: Any = Errors.KafkaTimeoutError("nobody")
        self.config = {
            "metadata_recovery_strategy": "rebootstrap",
            "metadata_recovery_rebootstrap_trigger_ms": 300_000,
            "reconnect_backoff_max_ms": 4_000,
        }

    async def rebootstrap(self, *, resets: bool) -> None:
        self.searches += 1
        self.has_reset = resets
        if isinstance(self.found, Exception):
            raise self.found

    def not_ready(self) -> Errors.NodeNotReadyError:
        return Errors.NodeNotReadyError("no broker can be connected to at the moment")

    def call_soon(self, function: Any, *args: Any) -> Any:
        return self._net.call_soon_with_future(function, *args)

    async def bootstrap_async(self) -> None:
        raise Errors.KafkaConnectionError("refused")

    def connection_delay(self, node_id: Any) -> float:
        return 0.0

    def least_loaded_node(self) -> int | None:
        return self.node

    best_node = least_loaded_node

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


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Any:
    """refresh(seconds) moves the clock and refreshes once: the error, or None; with the manager and the metadata."""
    net, clock = NetworkSelector(), Clock()
    manager = Manager(net)
    metadata = TolerantMetadata(bootstrap_servers="a:1")
    metadata.attach(manager)
    monkeypatch.setattr(metadata_module, "time", clock)

    def refresh(seconds: float = 0.0) -> Exception | None:
        clock.now += seconds
        try:
            net.run(metadata.refresh_metadata)
        except Errors.KafkaError as error:
            return error
        finally:
            net.run(wait, net, 0.001)  # the bootstrap addresses are asked beside it
        return None

    yield SimpleNamespace(refresh=refresh, manager=manager, metadata=metadata, net=net, clock=clock)
    net.close()


def response(**fields: Any) -> Any:
    return SimpleNamespace(
        **{
            "API_VERSION": 13,
            "error_code": 0,
            "cluster_id": "ours",
            "brokers": [(1, "b", 2, None)],
            "topics": [],
            "controller_id": 1,
            **fields,
        }
    )


def test_the_bootstrap_addresses_are_asked_once_a_second_while_no_known_broker_can_be_connected_to(lost: Any) -> None:
    lost.manager.is_cut_off, lost.manager.node = True, None
    lost.metadata._future = waiting = Future()  # as request_update()'s, without the loop
    for seconds, searches in ((0, 1), (0.1, 1), (0.6, 1), (0.4, 2), (0.9, 2), (0.2, 3)):
        assert lost.refresh(seconds) is not None and lost.manager.searches == searches
        assert not waiting.is_done, "who waits for metadata goes on waiting"
        assert lost.metadata._last_refresh_ms == lost.clock.now * 1000, "the loop does not spin"
    lost.manager.found = None
    lost.refresh(1.0)
    assert lost.manager.searches == 4 and lost.manager.has_reset
    # The brokers that they name cannot be connected to: 2 s, then 4 s, which is reconnect_backoff_max_ms.
    for seconds, searches in ((1.5, 4), (0.6, 5), (1.5, 5), (2.6, 6), (3.9, 6), (0.2, 7), (3.9, 7)):
        lost.refresh(seconds)
        assert lost.manager.searches == searches, seconds
        assert lost.manager.has_reset == (searches == 4)
    lost.manager.is_cut_off, lost.manager.node = False, 1
    lost.manager.refreshed.success(response())
    assert lost.refresh(5.0) is None and lost.manager.searches == 7 and waiting.succeeded()
    lost.manager.is_cut_off, lost.manager.node = True, None
    for seconds, searches in ((0.0, 8), (0.5, 8)):
        lost.refresh(seconds)
        assert lost.manager.searches == searches
    lost.manager.config["metadata_recovery_strategy"], lost.manager.node = "none", 1
    assert lost.refresh(60.0) is None and lost.manager.searches == 8


def test_they_are_asked_if_no_broker_has_told_the_metadata_for_long_and_so_are_the_known_brokers(lost: Any) -> None:
    """One of these may be the only one left: that of the bootstrap address may be gone for good."""
    lost.manager.refreshed.failure(Errors.RequestTimedOutError())
    for seconds in (0.0, 200.0, 99.0):
        assert isinstance(lost.refresh(seconds), Errors.RequestTimedOutError) and not lost.manager.searches
    for searches in (1, 2):
        assert isinstance(lost.refresh(2.0), Errors.RequestTimedOutError) and lost.manager.searches == searches
    lost.manager.refreshed = Future().success(response())
    assert lost.refresh(0.1) is None and lost.manager.searches == 2
    assert lost.refresh(60.0) is None and lost.manager.searches == 2


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_they_are_asked_if_a_broker_requires_it(strategy: str, lost: Any) -> None:
    lost.manager.config["metadata_recovery_strategy"] = strategy
    lost.manager.refreshed.success(response(error_code=129, brokers=[]))
    for searches in (0, 1):
        assert isinstance(lost.refresh(), Errors.KafkaConnectionError)
        assert lost.manager.searches == (searches if strategy == "rebootstrap" else 0)
        assert lost.metadata.ttl() > 0, "the next refresh comes after a pause"


def test_an_address_that_leads_to_another_cluster_is_not_followed(lost: Any, caplog: Any) -> None:
    lost.metadata.update_metadata(response())
    lost.manager.is_cut_off, lost.manager.node = True, None

    lost.manager.refreshed.success(response(cluster_id="another", brokers=[(7, "c", 3, None)]))

    async def found(*, resets: bool) -> None:
        await lost.metadata._do_refresh_metadata("bootstrap-0")

    lost.manager.rebootstrap = found
    lost.refresh()
    assert "leads to cluster another, and this client belongs to cluster ours" in caplog.text
    assert [broker.node_id for broker in lost.metadata.brokers()] == [1]
    assert caplog.text.count("leads to cluster another") == 1 and lost.refresh(2.0) and lost.refresh(2.0)
    assert caplog.text.count("leads to cluster another") == 1, "a warning for each outage"
    # A known broker that has come back with another cluster is believed, as by kafka-python.
    lost.manager.is_cut_off, lost.manager.node = False, 1
    assert lost.refresh(2.0) is None and [broker.node_id for broker in lost.metadata.brokers()] == [7]
