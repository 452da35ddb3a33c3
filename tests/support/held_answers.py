"""A proxy that understands frames and asks a function what to do with each one, connection by connection.

The faults of tolerant_client.testing are schedules of answers; this one has what lasts on *one* connection, and
requests that arrive late.  One thread a direction.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

RESET = "reset"
HELD = "held"  # a request: its connection to the client is reset, and it waits until it is let go


class Link:
    """One connection of a client; `note` is for the functions."""

    def __init__(self, number: int, client: socket.socket, broker: socket.socket) -> None:
        self.number = number
        self.client, self.broker = client, broker
        self.apis: dict[int, int] = {}  # by correlation id
        self.note: dict[str, Any] = {}

    def reset(self) -> None:
        """Ends the client's connection with a RST; the broker's stays."""
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.shutdown(socket.SHUT_RD)
            self.client.close()


class HookedProxy:
    """In front of `proxied` (as KafkaCluster.proxied); `answer(link, api_key, frame)` gives frames or RESET.

    `request(link, api_key, frame)` gives the frame, or HELD; `let_go` sends what was held, in its own connection.
    """

    def __init__(self, proxied: Mapping[int, tuple[int, int]]) -> None:
        self.answer: Callable[[Link, int, bytes], list[bytes] | str] = lambda link, api, frame: [frame]
        self.request: Callable[[Link, int, bytes], bytes | str] = lambda link, api, frame: frame
        self.held: list[tuple[Link, bytes]] = []
        self.refusing: set[int] = set()
        self._numbers = itertools.count()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listeners = [
            (socket.create_server(("127.0.0.1", advertised)), port) for port, advertised in proxied.values()
        ]
        for listener, port in self._listeners:
            self._start(self._accept, listener, port)
        self.bootstrap_servers = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each, _ in self._listeners)

    def __enter__(self) -> HookedProxy:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [listener for listener, _ in self._listeners] + self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def let_go(self) -> None:
        """Sends the requests that were held to their broker, each by the connection it came on."""
        held, self.held = self.held, []
        for link, frame in held:
            link.broker.sendall(frame)

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=run, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                broker = socket.create_connection(("127.0.0.1", port))
                for sock in (client, broker):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, broker]
                link = Link(next(self._numbers), client, broker)
                self._start(self._up, link)
                self._start(self._down, link)

    def _up(self, link: Link) -> None:
        for frame in _frames(link.client):
            api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            link.apis[correlation_id] = api_key
            wanted = self.request(link, api_key, frame)
            if wanted == HELD:
                self.held.append((link, frame))
                link.reset()
                return
            with contextlib.suppress(OSError):
                link.broker.sendall(frame)
        if not any(held is link for held, _ in self.held):
            with contextlib.suppress(OSError):
                link.broker.shutdown(socket.SHUT_RDWR)

    def _down(self, link: Link) -> None:
        for frame in _frames(link.broker):
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            wanted = self.answer(link, link.apis.pop(correlation_id, -1), frame)
            if isinstance(wanted, str):
                link.reset()
                return
            with contextlib.suppress(OSError):
                for each in wanted:
                    link.client.sendall(each)
        with contextlib.suppress(OSError):
            link.client.shutdown(socket.SHUT_RDWR)


def _frames(source: socket.socket) -> Iterator[bytes]:
    buffered = bytearray()
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            buffered += data
            while len(buffered) >= 4 and len(buffered) >= (end := 4 + struct.unpack_from(">i", buffered)[0]):
                yield bytes(buffered[:end])
                del buffered[:end]


def with_id(frame: bytes, delta: int) -> bytes:
    """The answer with another correlation id."""
    (correlation_id,) = struct.unpack_from(">i", frame, 4)
    return frame[:4] + struct.pack(">I", (correlation_id + delta) % (1 << 32)) + frame[8:]


def cut(frame: bytes) -> bytes:
    """The answer without the second half of its body; its length agrees."""
    body = frame[8:]
    half = body[: max(1, len(body) // 2)]
    return struct.pack(">i", 4 + len(half)) + frame[4:8] + half
