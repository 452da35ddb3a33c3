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
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition

import tolerant_client
from support.fake_broker import FakeBroker, serve
from tolerant_client.errors import OptionError
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock.manager import TolerantNetClient

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
    # Threads of tests before this one may have ended meanwhile.
    assert threading.active_count() <= threads and open_descriptors() <= descriptors


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_client_is_not_closed_when_a_constructor_fails(package: Any, kind: str, nobody: str) -> None:
    own = TolerantNetClient(bootstrap_servers=nobody)  # the stock one leaves sockets behind that could not connect
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # __del__ of what was never made
@pytest.mark.parametrize("kind", ["KafkaProducer", "KafkaAdminClient"])
def test_an_address_without_a_name_is_refused_as_by_the_stock_client(kind: str) -> None:
    for package in (kafka, tolerant_client):
        with pytest.raises(TypeError, match="positional"):
            getattr(package, kind)("127.0.0.1:1")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # __del__ of what was never made
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_may_be_named_and_what_is_none_is_refused_at_once(kind: str) -> None:
    with serve(FakeBroker()) as address:
        client = getattr(tolerant_client, kind)(bootstrap_servers=address, recovery_policy="strict")
        assert manager_of(client).recovery_policy.max_resends == 0
        client.close()
    for wrong in ("lenient", 5, ["strict"]):
        with pytest.raises(OptionError, match="'strict', 'balanced' and 'patient'"):
            getattr(tolerant_client, kind)(bootstrap_servers="127.0.0.1:1", recovery_policy=wrong)


def manager_of(client: Any) -> Any:
    holder = client._sender if hasattr(client, "_sender") else client
    return holder._manager if hasattr(holder, "_manager") else holder._client._manager


def test_poll_arrow_does_not_call_a_poll_that_somebody_else_wraps() -> None:
    class Traced(tolerant_client.KafkaConsumer):
        def poll(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("poll was called")  # what a tracing agent wraps

    partition = TopicPartition("t", 0)
    with serve(FakeBroker()) as address:
        consumer = Traced(bootstrap_servers=address, group_id=None)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        data = encode_batch([Record(0, 1_700_000_000_000, None, b"v") for _ in range(5)], base_offset=0)
        fetcher = consumer._fetcher
        fetcher._next_partition_records = fetcher.PartitionRecords(0, partition, MemoryRecords(data))
        assert consumer.poll_arrow(0).num_rows == 5
        consumer.close()


@pytest.mark.parametrize(("retries", "is_consent"), [(None, False), (0, False), (3, True)])
def test_retries_may_be_none_as_with_the_stock_producer_and_are_no_consent_then(
    retries: int | None, is_consent: bool
) -> None:
    with serve(FakeBroker()) as address:
        for package in (kafka, tolerant_client):
            producer = package.KafkaProducer(bootstrap_servers=address, retries=retries, enable_idempotence=False)
            producer.close()
        assert manager_of(producer).recovery_policy.retries_plain_produce is is_consent
