"""Clients that reach what is no Kafka broker: an error within the time they were given, and a log that says why."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors as Errors
import pytest

from support.fake_broker import FakeBroker, serve
from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer

# A client of kafka-python 3.0 that cannot be made leaves its event loop's own sockets to the garbage collector.
pytestmark = [
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket fd=[0-9]+, family=1,:ResourceWarning"),
]

CANARY = b"canary-secret"
BOOTSTRAP_MS = 1_200
BOUND = 20.0  # seconds; for a slow machine, where a client without a bound would wait for ever

Talk = Callable[[socket.socket], None]


class Listener:
    """A port where `talk` has each connection to itself, in a thread; counts the connections."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.port: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._clients)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            self._talk(client)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._threads[0].join()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def listener() -> Iterator[Callable[[Talk], Listener]]:
    opened: list[Listener] = []

    def listen(talk: Talk) -> Listener:
        opened.append(Listener(talk))
        return opened[-1]

    yield listen
    for one in opened:
        one.close()


def drained(client: socket.socket) -> None:
    """Reads until the client has gone."""
    while client.recv(4096):
        pass


def answer(data: bytes) -> Talk:
    """Reads something, says `data` and waits for the client to go."""

    def talk(client: socket.socket) -> None:
        client.recv(4096)
        client.sendall(data)
        drained(client)

    return talk


def answer_slowly(client: socket.socket) -> None:
    client.recv(4096)
    for byte in struct.pack(">i", 10_000) + bytes(1000):
        client.sendall(bytes([byte]))
        time.sleep(0.2)


def hang_up(client: socket.socket) -> None:
    client.recv(4096)


# What a TLS server says to something that is no ClientHello: alert, fatal, protocol_version (RFC 8446, section 6).
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"

LISTENERS: dict[str, tuple[Talk, str]] = {
    "HTTP server": (answer(b"HTTP/1.1 400 Bad Request\r\n\r\n" + CANARY), "HTTP"),
    "TLS listener": (answer(TLS_ALERT), "TLS"),
    "silence": (drained, "within its timeout"),
    "one byte now and then": (answer_slowly, "within its timeout"),
    "huge length": (answer(struct.pack(">i", 0x7FFFFFFF) + CANARY), "2147483647"),
    "negative length": (answer(struct.pack(">i", -5) + CANARY), "-5"),
    "garbage in a frame": (answer(struct.pack(">i", 60) + CANARY * 5), "correlation id"),
    "closed at once": (hang_up, "closed the connection"),
}


def refused(make: Callable[..., Any], address: str, **options: Any) -> Errors.KafkaError:
    """The error of a client that cannot be made, within the bound."""
    began = time.monotonic()
    with pytest.raises(Errors.KafkaError) as raised:
        make(bootstrap_servers=address, bootstrap_timeout_ms=BOOTSTRAP_MS, **options)
    assert time.monotonic() - began < BOUND
    return raised.value


@pytest.mark.parametrize("name", LISTENERS)
def test_client_gives_up_in_time_and_says_why(
    name: str, listener: Callable[[Talk], Listener], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    talk, cause = LISTENERS[name]
    peer = listener(talk)
    error = refused(KafkaProducer, peer.address)
    assert peer.address in str(error)
    assert cause in str(error)
    assert CANARY.decode() not in str(error) + caplog.text
    assert 1 <= peer.connections < 30  # it backs off


@pytest.mark.parametrize("client", [KafkaConsumer, KafkaAdminClient])
def test_other_clients_give_up_in_time_too(client: Callable[..., Any], listener: Callable[[Talk], Listener]) -> None:
    refused(client, listener(drained).address)


@pytest.mark.parametrize("name", ["HTTP server", "silence", "one byte now and then", "closed at once"])
def test_tls_client_gives_up_in_time_and_says_why(
    name: str, listener: Callable[[Talk], Listener], caplog: pytest.LogCaptureFixture
) -> None:
    talk, _ = LISTENERS[name]
    error = refused(KafkaProducer, listener(talk).address, security_protocol="SSL")
    assert "TLS handshake with 127.0.0.1" in str(error)
    assert CANARY.decode() not in caplog.text


@pytest.mark.parametrize("name", ["HTTP server", "huge length", "garbage in a frame"])
def test_node_that_turns_out_hostile_later_is_left_alone_more_and_more(
    name: str, listener: Callable[[Talk], Listener]
) -> None:
    """The bootstrap server is a broker, and its metadata lead to something else."""
    talk, _ = LISTENERS[name]
    peer = listener(talk)
    broker = FakeBroker()
    with serve(broker) as address:
        broker.port = peer.port
        admin = KafkaAdminClient(bootstrap_servers=address, request_timeout_ms=1500, retry_backoff_ms=10)
        began = time.monotonic()
        with pytest.raises(Errors.KafkaError):
            admin.list_topics()
        seconds = time.monotonic() - began
        admin.close()
    assert seconds < BOUND
    assert peer.connections < 40
