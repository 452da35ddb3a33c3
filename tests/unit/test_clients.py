"""The drop-ins' constructors: one that fails leaves nothing behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.net.compat import KafkaNetClient
from support.fake_broker import FakeBroker, serve

import tolerant_client
from tolerant_client.manager import TolerantNetClient

DESCRIPTORS = Path("/proc/self/fd")
KINDS = ["KafkaConsumer", "KafkaProducer", "KafkaAdminClient"]


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port that is taken and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture(params=["drop-in", "installed"])
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "drop-in":
        yield tolerant_client
        return
    tolerant_client.install()
    yield kafka
    tolerant_client.uninstall()


def open_descriptors() -> int:
    return len(os.listdir(DESCRIPTORS))


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this platform does not show a process its descriptors")
@pytest.mark.parametrize("kind", KINDS)
def test_a_constructor_that_fails_leaves_no_thread_and_no_descriptor(package: Any, kind: str, nobody: str) -> None:
    threads, descriptors = threading.active_count(), open_descriptors()
    failures = []  # their tracebacks keep everything that they can keep alive
    for _ in range(3):
        with pytest.raises(Errors.KafkaTimeoutError) as failure:
            getattr(package, kind)(bootstrap_servers=nobody, bootstrap_timeout_ms=200)
        failures.append(failure)
    assert (threading.active_count(), open_descriptors()) == (threads, descriptors)


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_client_is_not_closed_when_a_constructor_fails(package: Any, kind: str, nobody: str) -> None:
    own = TolerantNetClient(bootstrap_servers=nobody)  # the stock one leaves sockets that could not connect
    with pytest.raises(Errors.KafkaTimeoutError):
        getattr(package, kind)(bootstrap_servers=nobody, bootstrap_timeout_ms=200, kafka_client=lambda **_: own)
    assert not own._manager.closed
    own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_of_a_stock_client_stays_as_it_was(kind: str) -> None:
    broker = FakeBroker()
    options: dict[str, Any] = {"enable_idempotence": False} if kind == "KafkaProducer" else {}
    with serve(broker) as where:
        tolerant_client.install()
        try:
            client = getattr(kafka, kind)(bootstrap_servers=where, **options)
        finally:
            tolerant_client.uninstall()
        assert client.config["kafka_client"] is KafkaNetClient
        client.close()
