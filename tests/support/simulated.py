"""Clock, event loop and wire in simulated time, for a real TolerantConnection.

- `Clock` takes the place of the `time` module in the modules under test.
- `SimulatedNet` is the event loop: timers and coroutines, run in the order of
  time; it knows which timers are the client's and which are the wire's.
- `Wire` is the transport: whole request frames go to a server function, what it
  answers arrives a round trip later, in order, as a broker's answers do.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import struct
from collections.abc import Callable
from typing import Any

ROUND_TRIP = 0.010


class Clock:
    """Stands in for the `time` module; only the loop moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


class SimulatedNet:
    """The event loop that kafka-python's connection asks for."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._queue: list[list[Any]] = []
        self._count = itertools.count()

    def call_at(self, when: float, task: Callable[[], Any]) -> Any:
        """A timer of the client."""
        timer = [max(when, self.clock.now), next(self._count), task, True]
        heapq.heappush(self._queue, timer)
        return timer

    def call_later(self, delay: float, task: Callable[[], Any]) -> Any:
        return self.call_at(self.clock.now + delay, task)

    def call_soon(self, task: Callable[[], Any]) -> Any:
        return self.call_at(self.clock.now, task)

    def cancel(self, timer: Any) -> None:
        timer[2] = None

    def arrive(self, when: float, task: Callable[[], Any]) -> None:
        """Something that happens on the wire."""
        heapq.heappush(self._queue, [when, next(self._count), task, False])

    def client_timers(self) -> int:
        """Timers that the client has set and not cancelled."""
        return sum(1 for _, _, task, is_client in self._queue if is_client and task is not None)

    def start(self, coroutine: Any) -> None:
        """Runs a coroutine that awaits kafka-python's futures."""

        def step(_: Any = None) -> None:
            try:
                future = coroutine.send(None)
            except StopIteration:
                return
            future.add_both(step)

        step()

    def run(self, until: float, enough: Callable[[], bool] | None = None) -> None:
        """Lets time pass up to `until`, or until `enough()` holds."""
        queue, clock = self._queue, self.clock
        while queue and queue[0][0] <= until and not (enough is not None and enough()):
            when, _, task, _ = heapq.heappop(queue)
            if task is None:
                continue
            if when > clock.now:
                clock.now = when
            result = task()
            if inspect.iscoroutine(result):
                self.start(result)
        if enough is None or not enough():
            clock.now = max(clock.now, until)


class Wire:
    """A transport to `serve(frame, wire)`; answers are put on it with `answer`."""

    host = "fake"

    def __init__(self, net: SimulatedNet, serve: Callable[[bytes], None]) -> None:
        self.net = net
        self.serve = serve
        self.assembler: Any = None
        self.error: BaseException | None = None
        self.step: int | None = None  # bytes of one read; None for all that is there
        self.stalled_until = 0.0  # nothing arrives before that
        self.is_cut = False
        self._buffer = bytearray()
        self._protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def resume_reading(self) -> None:
        pass

    def host_port(self) -> str:
        return "fake:9092"

    def writelines(self, buffers: list[Any]) -> None:
        """Takes bytes as the client writes them and serves every whole frame."""
        for part in buffers:
            self._buffer += part
        while len(self._buffer) >= 4:
            end = 4 + struct.unpack_from(">i", self._buffer)[0]
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            self.serve(frame)

    def abort(self, error: BaseException | None = None) -> None:
        protocol, self._protocol = self._protocol, None
        self.error = error
        if protocol is not None:
            protocol.connection_lost(error)

    close = abort

    def answer(self, data: bytes, delay: float = 0.0) -> None:
        """Bytes that arrive a round trip (and `delay`) from now, not before a stall ends."""
        when = max(self.net.clock.now + ROUND_TRIP + delay, self.stalled_until)
        self.net.arrive(when, lambda: self.deliver(data))

    def deliver(self, data: bytes) -> None:
        """Hands bytes over now, as reads of at most `step` bytes."""
        step = self.step or len(data) or 1
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            while piece and self._protocol is not None:
                room = self.assembler.writable()
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                piece = piece[size:]
                now = self.net.clock.now
                frames = self.assembler.received(size)
                protocol = self._protocol
                protocol.bytes_received(now)
                if frames or self.assembler.error is not None:
                    protocol.frames_received(frames, now)
