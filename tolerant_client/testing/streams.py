"""The two directions of a proxied connection, without sockets: bytes in, pieces to send out.

- A request is never changed; only its header is read.
- Of a response that no fault takes, only the first 8 bytes are read, and its bytes are forwarded as they arrive: a
  piece is then a view of the caller's buffer, which must not be reused before the piece has been sent.
- Only Duplicate, Reorder and ErrorCode hold a whole response; Stale holds a copy of one of up to 64 KiB.
- After bytes that are not a Kafka frame (such as TLS), the rest of the stream is forwarded unchanged.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tolerant_client.testing.faults import (
    BadLength,
    Corrupt,
    Drop,
    Duplicate,
    ErrorCode,
    Fault,
    FaultPlan,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Stall,
    Truncate,
    Turn,
)
from tolerant_client.testing.responses import NotEnough, Request, api_name, read_request, with_error

REORDER_WAIT_S = 0.05
_HISTORY_BYTES = 64 << 10
_HEADER = struct.Struct(">ii")
_WRAP = 1 << 32


@dataclass(frozen=True)
class Wait:
    """A marker among pieces: the pieces after it are sent `seconds` later."""

    seconds: float


@dataclass(frozen=True)
class Abort:
    """A marker among pieces: the client's connection is reset here."""


Piece = memoryview | bytes | bytearray | Wait | Abort


class FaultState:
    """The faults of a proxy and its counters, shared by its connections; only the proxy's thread changes the counters."""

    def __init__(self, faults: Iterable[Fault], seed: int) -> None:
        self.plan = FaultPlan(faults, seed)
        self.responses: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()

    def hit(self, api: str, fault: Fault) -> None:
        self.injected[f"{api}/{fault.name}"] += 1


class RequestStream:
    """Reads the header of each request of a connection, and remembers the requests that get a response."""

    def __init__(self, pending: dict[int, Request]) -> None:
        self._pending = pending
        self._head = bytearray()
        self._left = 0
        self._is_foreign = False

    def feed(self, data: memoryview) -> list[Piece]:
        """All of `data`, after the requests in it were remembered."""
        position, end = 0, len(data)
        while position < end and not self._is_foreign:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
            else:
                position = self._read_head(data, position)
        return [data]

    def _read_head(self, data: memoryview, position: int) -> int:
        known = len(self._head)
        # Enough for nearly every header; a Produce with a long client id or transactional id takes more turns.
        self._head += data[position : position + 64]
        if len(self._head) < 4:
            return position + 64
        (size,) = struct.unpack_from(">i", self._head)
        if size < 8:
            self._is_foreign = True
            return len(data)
        frame_size = 4 + size
        del self._head[frame_size:]
        try:
            request = read_request(self._head)
        except NotEnough:
            if len(self._head) < frame_size:
                return position + len(self._head) - known
            request = None
        if request is not None and request.expects_response:
            self._pending[request.correlation_id] = request
        taken = len(self._head) - known
        self._left = frame_size - len(self._head)
        self._head.clear()
        return position + taken


# Ways to take the next bytes of a response.
_PASS, _SKIP, _COLLECT, _TEE, _FLIP = range(5)


class _Take:
    """The next `left` bytes are passed on, skipped, collected, both (tee), or passed on changed (flip)."""

    __slots__ = ("how", "left", "mask")

    def __init__(self, how: int, left: int, mask: int = 0) -> None:
        self.how = how
        self.left = left
        self.mask = mask


# A step of the rest of a response: bytes to take, a piece to send, or a call that decides at that point.
_Step = _Take | Piece | Callable[[], list[Piece]]


class ResponseStream:
    """The responses of one connection, with the faults injected into them."""

    def __init__(self, pending: dict[int, Request], state: FaultState) -> None:
        self._pending = pending
        self._state = state
        self._header = bytearray()
        self._passing = 0
        self._steps: deque[_Step] = deque()
        self._collected = bytearray()
        self._last: bytes | None = None
        self._held: tuple[bytes, str, Turn] | None = None
        self._lasting: Turn | None = None
        self._is_foreign = False
        self._is_aborted = False
        self.deadline: float | None = None

    def feed(self, data: memoryview, now: float) -> list[Piece]:
        """The pieces to send after `data` has arrived."""
        if self._is_aborted:
            return []
        out: list[Piece] = []
        position = begin = 0  # data[begin:position] is forwarded as one piece at the next interruption
        end = len(data)
        while position < end or self._has_ready_step():
            if self._is_foreign:
                position = end
            elif self._passing:
                step = min(self._passing, end - position)
                self._passing -= step
                position += step
            elif self._steps:
                first = self._steps[0]
                if isinstance(first, _Take) and first.how in (_PASS, _TEE):
                    position = self._take(first, data, position)
                    continue
                if begin < position:
                    out.append(data[begin:position])
                if isinstance(first, _Take):
                    if first.how == _FLIP:
                        out.append(bytes([data[position] ^ first.mask]))
                    position = self._take(first, data, position)
                else:
                    self._steps.popleft()
                    out += first() if callable(first) else [first]
                begin = position
                if self._is_aborted:
                    return out
            elif not self._header and end - position >= 8:
                size, correlation_id = _HEADER.unpack_from(data, position)
                chosen = self._begin(size, correlation_id, now)
                if chosen is not None:
                    if begin < position:
                        out.append(data[begin:position])
                    begin = position + 8
                    self._steps += chosen
                position += 8
            else:
                if begin < position:
                    out.append(data[begin:position])
                step = min(8 - len(self._header), end - position)
                self._header += data[position : position + step]
                position += step
                begin = position
                if len(self._header) == 8:
                    size, correlation_id = _HEADER.unpack(self._header)
                    chosen = self._begin(size, correlation_id, now)
                    if chosen is None:
                        out.append(bytes(self._header))
                    else:
                        self._steps += chosen
                    self._header.clear()
        if begin < end:
            out.append(data[begin:end])
        return out

    def expire(self, now: float) -> list[Piece]:
        """Forward the response that Reorder holds, if its time is over; no other response has overtaken it."""
        return [] if self.deadline is None or now < self.deadline else self.release()

    def release(self) -> list[Piece]:
        """Forward the response that Reorder holds, unless another response is just overtaking it."""
        self.deadline = None
        if self._held is None or self._passing or self._steps:
            return []
        frame, _, turn = self._held
        self._held = None
        turn.give_back()
        return [frame]

    def _has_ready_step(self) -> bool:
        """Whether the next step needs no more bytes."""
        return bool(self._steps) and not self._passing and not isinstance(self._steps[0], _Take)

    def _take(self, step: _Take, data: memoryview, position: int) -> int:
        size = min(step.left, len(data) - position)
        if step.how in (_COLLECT, _TEE):
            self._collected += data[position : position + size]
        step.left -= size
        if step.left == 0:
            self._steps.popleft()
        return position + size

    def _begin(self, size: int, correlation_id: int, now: float) -> list[_Step] | None:
        """The steps for a response, the first of which sends its header; None to forward it unchanged."""
        if size < 4:
            self._is_foreign = True
            return None
        body = size - 4
        request = self._pending.pop(correlation_id, None)
        state = self._state
        api = "unknown" if request is None else api_name(request.api_key)
        state.responses[api] += 1
        header = _HEADER.pack(size, correlation_id)
        if self._held is not None:
            return [header, *_takes(_Take(_PASS, body)), self._overtaken]
        turn = self._lasting
        if turn is None and request is not None:
            turn = state.plan.choose(api, body, self._last is not None)
        if request is not None and turn is not None:
            if turn.fault.lasts:
                self._lasting = turn
            return self._spoil(turn, request, api, header, body, now)
        if state.plan.wants_history and size + 4 <= _HISTORY_BYTES:
            self._collected[:] = header
            return [header, *_takes(_Take(_TEE, body)), self._remember]
        self._passing = body
        return None

    def _spoil(self, turn: Turn, request: Request, api: str, header: bytes, body: int, now: float) -> list[_Step]:
        fault = turn.fault
        if isinstance(fault, Duplicate | Reorder | ErrorCode):
            self._collected[:] = header
            return [*_takes(_Take(_COLLECT, body)), lambda: self._spoil_whole(turn, request, api, now)]
        self._state.hit(api, fault)
        rest = _takes(_Take(_PASS, body))
        match fault:
            case Drop():
                return [*_takes(_Take(_SKIP, body))]
            case RewriteCorrelationId():
                changed = (request.correlation_id + fault.delta + _WRAP // 2) % _WRAP - _WRAP // 2
                return [_HEADER.pack(body + 4, changed), *rest]
            case BadLength():
                return [_HEADER.pack(fault.length, request.correlation_id), *rest]
            case Stale():
                assert self._last is not None
                return [self._last, header, *rest]
            case Truncate():
                cut = min(body, max(1, body // 2) if fault.cut is None else fault.cut)
                short = _HEADER.pack(body - cut + 4, request.correlation_id)
                return [short, *_takes(_Take(_PASS, body - cut), _Take(_SKIP, cut))]
            case Corrupt():
                first = 0 if fault.where == "body" else 256 if body > 256 else body // 2
                place = turn.rng.randrange(first, body)
                flip = _Take(_FLIP, 1, turn.rng.randrange(1, 256))
                return [header, *_takes(_Take(_PASS, place), flip, _Take(_PASS, body - place - 1))]
            case Stall():
                return [Wait(fault.seconds), header, *rest]
            case Reset():
                return [self._abort]
        raise TypeError(f"{fault!r} is not a fault that the proxy knows")

    def _spoil_whole(self, turn: Turn, request: Request, api: str, now: float) -> list[Piece]:
        frame = bytes(self._collected)
        self._collected.clear()
        fault = turn.fault
        if isinstance(fault, Reorder):
            self._held = (frame, api, turn)
            self.deadline = now + REORDER_WAIT_S
            return []
        if isinstance(fault, ErrorCode):
            changed = with_error(frame, request.api_key, request.api_version, fault.error_code)
            if changed is None:
                turn.give_back()
                return [frame]
            self._state.hit(api, fault)
            return [changed]
        self._state.hit(api, fault)
        return [frame, frame]

    def _overtaken(self) -> list[Piece]:
        assert self._held is not None
        frame, api, turn = self._held
        self._held = None
        self.deadline = None
        self._state.hit(api, turn.fault)
        return [frame]

    def _remember(self) -> list[Piece]:
        self._last = bytes(self._collected)
        self._collected.clear()
        return []

    def _abort(self) -> list[Piece]:
        self._is_aborted = True
        return [Abort()]


def _takes(*takes: _Take) -> list[_Take]:
    """The takes that take at least one byte."""
    return [take for take in takes if take.left]
