"""A TCP proxy in front of Kafka brokers that injects chosen faults into their responses.

- One thread runs all connections with non-blocking sockets; no other thread touches them.
- Memory is bounded: a direction reads again only after it has forwarded all that it has read.
- Bytes that no fault changes are sent from the buffer into which they were received.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tolerant_client.testing.artifacts import ClusterStartError
from tolerant_client.testing.faults import Fault, FaultPlan
from tolerant_client.testing.responses import Request
from tolerant_client.testing.streams import Abort, FaultState, Piece, RequestStream, ResponseStream, Wait

if TYPE_CHECKING:
    from tolerant_client.testing.cluster import KafkaCluster

_HOST = "127.0.0.1"
_BUFFER_BYTES = 256 << 10
# After this many full buffers the other connections have their turn.
_TURNS = 8
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """A proxy in front of every broker of a cluster, as a context manager.

    `cluster` is a started KafkaCluster, whose PROXIED listeners advertise the proxy's ports, or a mapping of
    port to listen on (0: a free one) -> (host, port) of a broker.  Each response is offered to the `faults` in
    their order; `seed` is for faults with a probability and without a seed.
    Raises ClusterStartError from `start` if a port is in use, ValueError for invalid faults.
    """

    def __init__(
        self,
        cluster: KafkaCluster | Mapping[int, tuple[str, int]],
        faults: Iterable[Fault] = (),
        seed: int = 0,
    ) -> None:
        if isinstance(cluster, Mapping):
            self._routes = list(cluster.items())
        else:
            self._routes = [(advertised, (_HOST, port)) for port, advertised in cluster.proxied.values()]
        self._seed = seed
        self._state = FaultState(faults, seed)
        self._listeners: list[socket.socket] = []
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> FaultProxy:
        """Listen on all ports; a proxy can be started only once."""
        if self._thread is not None:
            raise ClusterStartError("This FaultProxy was already started: create another one")
        listening: list[tuple[socket.socket, tuple[str, int]]] = []
        try:
            for port, broker in self._routes:
                listening.append((_listen(port), broker))
            self._loop = _Loop(listening, self._state)
        except BaseException:
            for listener, _ in listening:
                listener.close()
            raise
        self._routes = [(listener.getsockname()[1], broker) for listener, broker in listening]
        self._thread = threading.Thread(target=self._loop.run, name="tolerant-fault-proxy", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End all connections and the thread; later calls do nothing.

        Raises the first error of the proxy itself, if there was one: the test's results cannot be trusted then.
        """
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        loop.stop()
        self._thread.join()
        if loop.failure is not None:
            raise loop.failure

    @property
    def bootstrap_servers(self) -> str:
        """host:port,... of the proxy's listeners."""
        return ",".join(f"{_HOST}:{port}" for port, _ in self._routes)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults; setting them restarts their schedules with the next response."""
        return self._state.plan.faults

    @faults.setter
    def faults(self, faults: Iterable[Fault]) -> None:
        # A single assignment: the proxy's thread sees either the old plan or the new one.
        self._state.plan = FaultPlan(faults, self._seed)

    @property
    def responses(self) -> Counter[str]:
        """The number of responses of each API that the brokers have sent since the start; a copy."""
        return self._state.responses.copy()

    @property
    def connected(self) -> int:
        """The number of connections that clients have made since the start."""
        return 0 if self._loop is None else self._loop.accepted

    @property
    def open_connections(self) -> int:
        """The number of connections that are open now."""
        return 0 if self._loop is None else len(self._loop.links)

    @property
    def injected(self) -> Counter[str]:
        """The number of faults injected since the start, by API and fault: "Fetch/Drop"; a copy."""
        return self._state.injected.copy()

    @property
    def injected_total(self) -> int:
        """The number of faults injected since the start."""
        return self.injected.total()


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise ClusterStartError(
            f"Port {port} is in use on {_HOST}, so the proxy cannot listen there: close the other proxy of this "
            "cluster, or stop the process that listens there"
        ) from error
    return listener


class _Aborted(Exception):
    """The connection ends here, with a reset for its client."""


class _Flow:
    """One direction of a connection: read from `source`, sent to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.out: deque[Piece] = deque()
        self.resume_at: float | None = None
        self.has_ended = False

    @property
    def wants_to_read(self) -> bool:
        return not self.out and not self.has_ended and self.resume_at is None

    @property
    def wants_to_write(self) -> bool:
        return bool(self.out) and self.resume_at is None

    def flush(self, now: float) -> bool:
        """Send as much as possible; returns whether nothing is left."""
        while self.out and self.resume_at is None:
            piece = self.out.popleft()
            if isinstance(piece, Wait):
                self.resume_at = now + piece.seconds
            elif isinstance(piece, Abort):
                raise _Aborted
            else:
                try:
                    sent = self.sink.send(piece)
                except BlockingIOError:
                    sent = 0
                if sent < len(piece):
                    self.out.appendleft(memoryview(piece)[sent:])
                    return False
        return not self.out and self.resume_at is None

    def receive(self) -> memoryview | None:
        """The bytes that have arrived: empty at the end of the stream, None if there are none."""
        try:
            return self.buffer[: self.source.recv_into(self.buffer)]
        except BlockingIOError:
            return None


class _Link:
    """A client's connection and the one to its broker."""

    def __init__(self, client: socket.socket, broker: socket.socket, state: FaultState) -> None:
        pending: dict[int, Request] = {}
        self.client = client
        self.broker = broker
        self.requests = _Flow(client, broker)
        self.responses = _Flow(broker, client)
        self.request_stream = RequestStream(pending)
        self.response_stream = ResponseStream(pending, state)
        self.is_connected = False
        self.is_closed = False

    def interest(self) -> tuple[int, int]:
        """The selector events to wait for at the client's socket and at the broker's."""
        if not self.is_connected:
            return 0, selectors.EVENT_WRITE
        requests, responses = self.requests, self.responses
        return (
            selectors.EVENT_READ * requests.wants_to_read | selectors.EVENT_WRITE * responses.wants_to_write,
            selectors.EVENT_READ * responses.wants_to_read | selectors.EVENT_WRITE * requests.wants_to_write,
        )


class _Loop:
    """The proxy's thread: it runs `run` until `stop`, which any thread may call."""

    def __init__(self, listening: list[tuple[socket.socket, tuple[str, int]]], state: FaultState) -> None:
        self._state = state
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._listening = listening
        self.links: set[_Link] = set()
        self._interests: dict[socket.socket, int] = {}
        self._timers: list[tuple[float, int, _Link]] = []
        self._order = itertools.count()
        self.accepted = 0
        self.failure: Exception | None = None
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for listener, broker in listening:
            self._selector.register(listener, selectors.EVENT_READ, broker)

    def stop(self) -> None:
        self._waker.send(b"x")

    def run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            self.failure = self.failure or error
        finally:
            for link in list(self.links):
                self._close(link)
            for listener, _ in self._listening:
                listener.close()
            self._selector.close()
            self._waker.close()
            self._woken.close()

    def _turn(self) -> bool:
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                return False
            if isinstance(key.data, _Link):
                self._guarded(key.data)
            else:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj, key.data)
        while self._timers and self._timers[0][0] <= time.monotonic():
            self._guarded(heapq.heappop(self._timers)[2])
        return True

    def _accept(self, listener: socket.socket, address: tuple[str, int]) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = listener.accept()
            broker = socket.socket()
            for end in (client, broker):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, broker, self._state)
            self.links.add(link)
            self.accepted += 1
            broker.connect_ex(address)
            self._watch(link)

    def _guarded(self, link: _Link) -> None:
        if link.is_closed:
            return
        try:
            self._advance(link)
        # If the broker is gone, its client gets a reset too.
        except (_Aborted, OSError):
            self._close(link, reset=True)
        except Exception as error:
            self.failure = self.failure or error
            self._close(link, reset=True)

    def _advance(self, link: _Link) -> None:
        if not link.is_connected:
            problem = link.broker.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                raise OSError(problem, "the broker cannot be reached")
            link.is_connected = True
        now = time.monotonic()
        responses, stream = link.responses, link.response_stream
        if responses.resume_at is not None and responses.resume_at <= now:
            responses.resume_at = None
        responses.out += stream.expire(now)
        before = (responses.resume_at, stream.deadline)
        self._pump(link, link.requests, now)
        self._pump(link, responses, now)
        for when, known in zip((responses.resume_at, stream.deadline), before):
            if when is not None and when != known:
                heapq.heappush(self._timers, (when, next(self._order), link))
        if responses.has_ended and not responses.out and responses.resume_at is None:
            self._close(link)
        else:
            self._watch(link)

    def _pump(self, link: _Link, flow: _Flow, now: float) -> None:
        """Move bytes until none are left, the sink is full, or the other connections have their turn."""
        for _ in range(_TURNS):
            if not flow.flush(now) or flow.has_ended:
                return
            data = flow.receive()
            if data is None:
                return
            if not data:
                flow.has_ended = True
                if flow is link.responses:
                    flow.out += link.response_stream.release()
                    flow.flush(now)
                else:
                    # The client may still be reading: half of the connection stays open.
                    link.broker.shutdown(socket.SHUT_WR)
                return
            if flow is link.responses:
                flow.out += link.response_stream.feed(data, now)
            else:
                flow.out += link.request_stream.feed(data)
            if len(data) < _BUFFER_BYTES:
                flow.flush(now)
                return

    def _watch(self, link: _Link) -> None:
        for end, events in zip((link.client, link.broker), link.interest()):
            known = self._interests.get(end, 0)
            if events == known:
                continue
            if not known:
                self._selector.register(end, events, link)
            elif events:
                self._selector.modify(end, events, link)
            else:
                self._selector.unregister(end)
            self._interests[end] = events

    def _close(self, link: _Link, reset: bool = False) -> None:
        link.is_closed = True
        self.links.discard(link)
        for end in (link.client, link.broker):
            if self._interests.pop(end, 0):
                self._selector.unregister(end)
            if reset and end is link.client:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()
