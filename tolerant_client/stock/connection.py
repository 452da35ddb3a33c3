"""kafka-python's connection on our tracker: one in-flight store, one timer, no payload in logs.

Laws:
- The tracker decides, this file acts: it writes, completes futures, closes.
- All events of one call are acted upon before the connection is closed, so that
  good responses before a bad one reach their callers.
- `close` and `connection_lost` may come at any time, and twice; the tracker
  settles each request once.
"""

from __future__ import annotations

import logging
import random
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import kafka.errors as Errors

from tolerant_client.errors import CorrelationIdMismatchError
from tolerant_client.stock.alarm import Alarm
from tolerant_client.stock.probe_question import harmless_question
from tolerant_client.stock.request_errors import error_of, lost
from tolerant_client.stock.retirements import RETIREMENTS
from tolerant_client.stock.sasl_offer import SaslOffer
from tolerant_client.stock.stock_names import Future
from tolerant_client.tracker.events import (
    Completed,
    Event,
    Failed,
    Listener,
    Probe,
    RecoveryCounters,
    Requeued,
    Retired,
)
from tolerant_client.tracker.framing import FrameAssembler
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.lifecycle import NEVER, InFlightRequest
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules.apis import FIND_COORDINATOR, SETUP, Buffer
from tolerant_client.tracker.rules.requests import adapt, with_correlation_id

log = logging.getLogger(__name__)

_CORRELATION_ID = struct.Struct(">i")
_LIMIT = "max_in_flight"  # kafka-python's name for this reason to pause


@dataclass(slots=True)
class _Context:
    """What we keep with a request: its caller's future, its bytes, and how many bytes were written before them."""

    future: Any
    buffers: list[Buffer] = field(default_factory=list)
    begins: int = 0


class TolerantConnection(SaslOffer):
    """One connection to one broker.

    `recovery_listener` is called with each event, on the event loop.  `disproved` are
    the nodes whose probes prove nothing; a client's connections share it and
    `recovery_counters`.  `place` names the cluster, if it has a name, and HOST:PORT.
    """

    def __init__(
        self,
        net: Any,
        node_id: Any = None,
        broker_version_data: Any = None,
        *,
        recovery_policy: RecoveryPolicy | None = None,
        recovery_listener: Listener | None = None,
        recovery_counters: RecoveryCounters | None = None,
        setup_timeout: float = NEVER,
        disproved: set[Any] | None = None,
        place: tuple[str, str] = ("", ""),
        **configs: Any,
    ) -> None:
        super().__init__(net, node_id=node_id, broker_version_data=broker_version_data, **configs)
        self.recovery_policy = recovery_policy or RecoveryPolicy()
        self.recovery_counters = recovery_counters if recovery_counters is not None else RecoveryCounters()
        self._listener = recovery_listener
        self._disproved = set() if disproved is None else disproved
        self._place = place
        self._setup_timeout = setup_timeout  # seconds for one step of a re-authentication (KIP-368)
        self.in_flight_requests = InFlightRequests(self.recovery_policy, random.getrandbits(31))
        self._unsent: deque[InFlightRequest] = deque()
        self._unsent_bare: list[Buffer] = []
        self._written_bytes = 0  # given to the transport
        self._flushed_bytes: int | None = None  # once closed: how many of them left the process, if that is known
        self._doubts_throttle = False
        self._sends_buffered = False
        self.is_retired = False
        self.has_served = False  # whether a caller's request got a response
        self._alarm = Alarm(net, self._on_alarm)
        self._node_name = f"node {node_id}"
        self._limit: int = self.config["max_in_flight_requests_per_connection"]

    @property
    def is_doubtful(self) -> bool:
        """True while this connection is silent for too long, or may be out of step: others respond sooner."""
        return self.in_flight_requests.is_doubtful

    # -- connecting -----------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Takes over a connected transport and starts reading."""
        if self.closed:
            raise Errors.KafkaConnectionError("Connection closed during connect")
        self.transport = transport
        transport.assembler = FrameAssembler(self.config["receive_message_max_bytes"])
        if transport.get_protocol() is not self:
            transport.set_protocol(self)
        self.initializing = True
        transport.resume_reading()
        log.debug("%s: connection made", self._node_name)

    def _init_complete(self) -> None:
        if self.broker_version_data is not None and self.node_id not in self._disproved:
            self.in_flight_requests.question = harmless_question(self.broker_version_data)
        super()._init_complete()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Closes for good, which settles every request."""
        self._flushed_bytes = getattr(self.transport, "sent_bytes", None)
        super().connection_lost(exc)
        self._alarm.stop()

    # -- sending --------------------------------------------------------------

    def send_request(self, request: Any, request_timeout_ms: float | None = None) -> Any:
        """Sends now, or once the connection is ready; either way the future ends by its deadline.

        What has waited for that is sent first: a request without a response ends at once, and its caller may send the next.
        """
        if self._sends_buffered:
            future = Future()
            self._request_buffer.append((request, future, self._timeout_at(timeout_ms=request_timeout_ms)))
            return future
        future = super().send_request(request, request_timeout_ms)
        if self._request_buffer:
            self._arm(time.monotonic())
        return future

    def send_buffered(self) -> None:
        """Sends what has waited for the connection, in its order."""
        self._sends_buffered = True
        try:
            super().send_buffered()
        finally:
            self._sends_buffered = False

    def _send_request(self, request: Any, future: Any = None, timeout_at: float | None = None) -> Any:
        future = Future() if future is None else future
        if self.closed:
            return future.failure(Errors.KafkaConnectionError(f"{self._node_name}: connection closed"))
        try:
            if request.API_VERSION is None:
                request.API_VERSION = self.broker_version_data.api_version(request)
        except Errors.IncompatibleBrokerVersion as error:
            return future.failure(error)
        now = time.monotonic()
        deadline = self._timeout_at(now=now) if timeout_at is None else timeout_at
        if deadline <= now:
            return future.failure(Errors.KafkaTimeoutError(f"{self._node_name}: the deadline passed before sending"))
        adapted = adapt(request)
        if adapted.API_KEY in SETUP:
            deadline = min(deadline, max(now, self._throttle_time) + self._setup_timeout)
            future.add_callback(self._note_offer)
        if not adapted.expect_response():
            correlation_id = self.in_flight_requests.ids.draw_unanswered()
            self._write_bare(adapted.frame_buffers(correlation_id, self.config["client_id"]))
            return future.success(None)
        context = _Context(future)
        entry = self.in_flight_requests.queue(adapted, deadline, context)
        try:
            context.buffers = adapted.frame_buffers(entry.correlation_id, self.config["client_id"])
        except Exception as error:
            # Never sent: it only has to leave the store.
            self.in_flight_requests.withdraw(entry)
            return future.failure(error)
        if adapted.is_raw:
            self.transport.assembler.smallest_frame = 0
        self._write(entry, now)
        if len(self.in_flight_requests) >= self._limit:
            self.pause(_LIMIT)
        self._arm(now)
        return future

    def _write(self, entry: InFlightRequest, now: float, is_repair: bool = False) -> None:
        """Writes a request now, or once there is no reason to pause.

        The limit of requests in flight does not hold up resends and probes: the
        responses that would make room may be waiting for them.
        """
        passed = {_LIMIT, "throttle"} if self._doubts_throttle else {_LIMIT}
        if self.paused and not (is_repair and self.paused <= passed):
            self._unsent.append(entry)
            return
        size = sum(map(len, entry.context.buffers))
        entry.context.begins = self._written_bytes
        self._written_bytes += size
        self.transport.writelines(entry.context.buffers)
        self._act(self.in_flight_requests.sent(entry, now), now)
        if log.isEnabledFor(logging.DEBUG):
            what = f"{entry.api} v{entry.request.API_VERSION}"
            log.debug("%s: sent %s, id %d, %d bytes", self._node_name, what, entry.correlation_id, size)

    def _write_bare(self, buffers: list[Buffer]) -> None:
        if self.paused:
            self._unsent_bare.extend(buffers)
        else:
            self._written_bytes += sum(map(len, buffers))
            self.transport.writelines(buffers)

    def unpause(self, v: Any) -> None:
        """Removes one reason to pause; after the last one, writes what waited."""
        if v not in self.paused:
            return
        self.paused.discard(v)
        if self.paused or self.transport is None or self.closed:
            return
        now = time.monotonic()
        bare, self._unsent_bare = self._unsent_bare, []
        if bare:
            self._write_bare(bare)
        while self._unsent and not self.paused:
            if self._written >= self._limit:
                self.pause(_LIMIT)
                break
            self._write(self._unsent.popleft(), now)
        self._arm(now)

    @property
    def _written(self) -> int:
        return len(self.in_flight_requests) - len(self._unsent)

    def _resume(self) -> None:
        """Writes more once fewer requests are in flight than allowed."""
        if _LIMIT in self.paused and self._written < self._limit:
            self.unpause(_LIMIT)

    # -- receiving ------------------------------------------------------------

    def bytes_received(self, now: float) -> None:
        """Notes that bytes are arriving: a large response on its way is progress, not silence."""
        self.in_flight_requests.silence.progress(now)

    def data_received(self, data: Buffer) -> None:
        """Takes bytes from a transport that is not ours, through kafka-python's own interface."""
        waiting = memoryview(data)
        while waiting and not self.closed:
            room = self.transport.assembler.writable()
            size = min(len(room), len(waiting))
            room[:size] = waiting[:size]
            waiting = waiting[size:]
            now = time.monotonic()
            frames = self.transport.assembler.received(size)
            self.bytes_received(now)
            self.frames_received(frames, now)

    def frames_received(self, frames: list[memoryview], now: float) -> None:
        """Takes whole frames from the transport, in the order of arrival."""
        tracker = self.in_flight_requests
        if frames and self._doubts_throttle:
            self._lift_throttle()
        for frame in frames:
            if self.closed or tracker.is_retired:
                return
            oldest = tracker.oldest
            if oldest is not None and oldest.request.is_raw:
                events = tracker.response(oldest.correlation_id, frame, now)
                self.transport.assembler.smallest_frame = 4
            else:
                (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
                if not correlation_id and not tracker.ids.was_drawn(0) and _is_answered_under_0(oldest):
                    correlation_id = oldest.correlation_id
                events = tracker.response(correlation_id, frame[4:], now)
            if tracker.is_disproved:
                self._disproved.add(self.node_id)
            self._act(events, now)
        if self.closed:
            return
        error = self.transport.assembler.error
        if error is not None:
            self._act([Retired("", -1, str(error))], now, error)
            return
        self._resume()
        self._reauth.on_response_processed()
        self._arm(now)

    # -- acting ---------------------------------------------------------------

    def _act(self, events: list[Event], now: float, error: BaseException | None = None) -> None:
        """Does what the tracker decided; a retirement, with its error if that is known, comes last."""
        retired: Retired | None = None
        for event in events:
            if type(event) is Completed:
                self._complete(event)
                continue
            self.recovery_counters.add(event, self.node_id)
            self._tell(event)
            if isinstance(event, Requeued):
                entry = event.request
                entry.context.buffers = with_correlation_id(entry.context.buffers, entry.correlation_id)
                if not self.in_flight_requests.is_retired and not self.closed:
                    self._write(entry, now, is_repair=True)
            elif isinstance(event, Probe):
                self._send_probe(event, now)
            elif isinstance(event, Failed):
                self._fail(event)
            elif isinstance(event, Retired):
                retired = event
        if retired is not None:
            self._close_retired(retired, error)

    def _complete(self, event: Completed) -> None:
        entry = event.request
        self.has_served = self.has_served or entry.request.API_KEY not in SETUP
        self.recovery_counters.completed(event.api, self.node_id)
        self._tell(event)
        if self._sensors:
            self._sensors.request_time.record(event.latency * 1000)
        log.debug("%s: response to %s, id %d", self._node_name, event.api, event.correlation_id)
        self._maybe_throttle(event.response)
        if not entry.context.future.is_done:
            entry.context.future.success(event.response)

    def _maybe_throttle(self, response: Any) -> None:
        super()._maybe_throttle(response)
        if not self._throttle_time:
            return
        # A throttling broker reads none of our requests before that time (KIP-219).
        longest_s = self.recovery_policy.max_throttle_ms / 1000
        self.in_flight_requests.silence.progress(min(self._throttle_time, time.monotonic() + longest_s))
        if response.throttle_time_ms > 1000 * longest_s:
            self.net.call_later(longest_s, self._doubt_throttle)

    def _doubt_throttle(self) -> None:
        """Sends a probe to a broker that is said to throttle us for so long: any response shows that it reads, and does not."""
        now = time.monotonic()
        if self.closed or self.in_flight_requests.is_retired or self._throttle_time <= now:
            return
        self._doubts_throttle = True
        if self.in_flight_requests.question is None:
            return self._lift_throttle()
        log.info("%s: throttles us for %.0f s more, if that is true", self._node_name, self._throttle_time - now)
        self._act(self.in_flight_requests.ask("the throttle is too long to be believed", now), now)

    def _lift_throttle(self) -> None:
        self._doubts_throttle = False
        self._throttle_time = 0
        self.unpause("throttle")

    def _send_probe(self, event: Probe, now: float) -> None:
        entry = event.request
        if self.closed or self.in_flight_requests.is_retired:
            return
        entry.context = _Context(None)
        entry.context.buffers = entry.request.frame_buffers(entry.correlation_id, self.config["client_id"])
        log.info("%s: probe, id %d: %s", self._node_name, entry.correlation_id, event.reason)
        self._write(entry, now, is_repair=True)

    def _fail(self, event: Failed) -> None:
        future = event.request.context.future
        if not future.is_done:
            future.failure(error_of(event, self._node_name))

    def _close_retired(self, event: Retired, error: BaseException | None) -> None:
        if self.closed:
            return
        RETIREMENTS.tell(*self._place, self._node_name, event.reason, time.monotonic())
        self.is_retired = True
        if error is None:
            kind = Errors.RequestTimedOutError if event.is_timeout else CorrelationIdMismatchError
            error = kind(f"{self._node_name}: connection retired: {event.reason}")
        self.close(error)

    def _tell(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            log.exception("recovery_listener failed")

    def fail_in_flight_requests(self, error: BaseException | None) -> None:
        """Settles everything that waits here; the base class calls it once closed."""
        if not self.closed:
            raise RuntimeError("Connection must be closed to fail in flight requests")
        cause = error if isinstance(error, BaseException) else Errors.Cancelled()
        while self._request_buffer:
            request, future, _ = self._request_buffer.popleft()
            future.failure(lost(cause, f"{self._node_name}: {type(request).__name__}"))
        self._unsent.clear()
        self._unsent_bare.clear()
        now = time.monotonic()
        self._act(self.in_flight_requests.close(cause, self._unflushed()), now)

    def _unflushed(self) -> frozenset[int]:
        """The correlation ids of requests of which no byte has left this process."""
        flushed = self._flushed_bytes
        if flushed is None:
            return frozenset()
        return frozenset(r.correlation_id for r in self.in_flight_requests if r.context.begins >= flushed)

    # -- time -----------------------------------------------------------------

    def _arm(self, now: float) -> None:
        """Makes sure that `_on_alarm` runs when the tracker, or what waits for the connection, next needs it."""
        due = self.in_flight_requests.next_wakeup(now)
        if self._request_buffer:
            due = min(NEVER if due is None else due, *(deadline for _, _, deadline in self._request_buffer))
        if due is not None and not self.closed:
            self._alarm.set(due)

    def _on_alarm(self) -> None:
        if self.closed:
            return
        now = time.monotonic()
        self._act(self.in_flight_requests.expired(now), now)
        self._expire_buffered(now)
        if self.closed:
            return
        self._resume()
        self._reauth.on_response_processed()
        self._arm(now)

    def _expire_buffered(self, now: float) -> None:
        """Fails requests that waited too long for the connection to be ready."""
        waiting = list(self._request_buffer)
        self._request_buffer.clear()
        self._request_buffer.extend(item for item in waiting if item[2] > now)
        for request, future, deadline in waiting:
            if deadline <= now:
                what = f"{self._node_name}: {type(request).__name__}"
                future.failure(Errors.KafkaTimeoutError(f"{what}: the connection was not ready before the deadline"))

    def __str__(self) -> str:
        return str(super().__str__()).replace("KafkaConnection", "TolerantConnection")


def _is_answered_under_0(oldest: InFlightRequest | None) -> TypeGuard[InFlightRequest]:
    """Kafka 0.8.2 responds to FindCoordinator version 0 with id 0 (both Python clients tolerate it)."""
    return oldest is not None and oldest.request.API_KEY == FIND_COORDINATOR and oldest.request.API_VERSION == 0
