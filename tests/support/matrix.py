"""One cell of the fault matrix: a real TolerantConnection, real bytes, simulated time, every invariant.

The invariants, by number:
1. every request ends once, within its deadline; 2. with an answer that the broker
made for it; 3. batches with a producer id are appended once and in order; 4. what
may not run twice is not sent twice, and an unknown outcome is said; 5. bytes sent
again are the same but for their id; 6. the counters are the injected faults;
7. nothing is left over; 8. no payload and no secret is logged; 9. recovery ends
within the policy's bound; 10. nothing takes longer than with stock kafka-python.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import kafka.errors as Errors
import kafka.net.connection

import tolerant_client.stock.connection
from support.answer_faults import (
    DEEP,
    ODD,
    REQUEST_TIMEOUT,
    Burst,
    Cell,
    Fault,
    Piece,
    as_answers,
    draining_account,
    fault,
    probe_answer,
    setup_account,
    stock_settles_at,
)
from support.fake_broker import FakeBroker, correlation_id_of, set_correlation_id
from support.long import LONG
from support.samples import (
    ACKS_0,
    CANARY,
    CLIENT_ID,
    MECHANISM,
    PER_PARTITION,
    Sample,
    contents,
    encoded,
    filled,
    response_class,
    sample,
    samples,
)
from support.simulated import ROUND_TRIP, Clock, SimulatedNet, Wire
from tolerant_client.errors import OutcomeUnknownError
from tolerant_client.stock.connection import TolerantConnection
from tolerant_client.tracker.correlation import SPACE
from tolerant_client.tracker.events import Completed, Event, Failed
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules.apis import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Action,
    action_for,
)
from tolerant_client.tracker.rules.requests import adapt

OLD = 100  # the number of the request that was completed before the burst
POLICY = RecoveryPolicy()
_HEAD = struct.Struct(">ihhi")
_HEAD_BYTES = 12
# What kafka-python pauses before it connects and asks again (reconnect_backoff_ms, retry_backoff_ms), and three
# round trips: stock's price of a connection.  A trial costs less.
RECONNECTING = 0.050 + 0.100 + 3 * ROUND_TRIP
LONG_POLL = 0.5  # what a trial waits for a broker that may rightly wait


class Violated(AssertionError):
    """An invariant does not hold in a cell; the message is the cell's name and what was seen."""


class Ids:
    """Stands in for the `random` module of connection.py: where correlation ids start."""

    def __init__(self) -> None:
        self.start = 1 << 30

    def getrandbits(self, bits: int) -> int:
        return self.start


class Listening(logging.Handler):
    """Reads every log record at every level, and fails on a canary."""

    def __init__(self) -> None:
        super().__init__(1)
        self.records = 0
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1
        text = record.getMessage()
        if record.exc_info:
            text += repr(record.exc_info[1])
        if "canary" in text:
            self.leaks.append(text)


@contextmanager
def simulation() -> Iterator[Simulation]:
    """Puts simulated time, known ids and a listener to all logs in place."""
    clock, ids, listening = Clock(), Ids(), Listening()
    places = [
        (tolerant_client.stock.connection, "time", clock),
        (tolerant_client.stock.connection, "random", ids),
        (kafka.net.connection, "time", clock),
        (kafka.net.connection, "random", random.Random(1)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    loggers = [logging.getLogger(name) for name in ("tolerant_client", "kafka")]
    was = [(log, log.level, log.propagate) for log in loggers]
    # Python's own advice for cheap records (logging HOWTO, "Optimization"): nobody asks where they were made.
    cheap = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
    dear = {name: getattr(logging, name) for name in cheap}
    try:
        for name in cheap:
            setattr(logging, name, None)
        for module, name, value in places:
            setattr(module, name, value)
        for log in loggers:
            log.addHandler(listening)
            log.setLevel(1)
            log.propagate = False
        yield Simulation(clock, ids, listening)
    finally:
        for name, value in dear.items():
            setattr(logging, name, value)
        for module, name, value in before:
            setattr(module, name, value)
        for log, level, propagate in was:
            log.removeHandler(listening)
            log.setLevel(level)
            log.propagate = propagate


class Simulation:
    """What the cells of one test share."""

    def __init__(self, clock: Clock, ids: Ids, listening: Listening) -> None:
        self.clock = clock
        self.ids = ids
        self.listening = listening


@cache
def _tail(sample: Sample, n: int) -> bytes:
    """A request's bytes behind its correlation id."""
    return b"".join(adapt(sample.request(n)).frame_buffers(0, CLIENT_ID))[_HEAD_BYTES:]


@cache
def _known(sample: Sample, many: int) -> dict[bytes, int]:
    return {_tail(sample, n): n for n in [*range(many), OLD]}


@cache
def _produced(version: int, partition: int, error_code: int, offset: int) -> bytes:
    topic_class = response_class(PRODUCE).TopicProduceResponse
    part = topic_class.PartitionProduceResponse(
        version=version, index=partition, error_code=error_code, base_offset=offset
    )
    topics = [topic_class(version=version, name="t", partition_responses=[part])]
    return encoded(filled(response_class(PRODUCE), version, 0, {"responses": topics}))


@cache
def _read(sample: Sample, body: bytes) -> Any:
    answer = response_class(sample.api_key).decode(b"\0\0\0\0" + body, version=sample.version, header=True)
    return contents(answer)


class SampleBroker:
    """Answers samples, probes and authentication; keeps what it executed and what it answered.

    `spoil`, once set, is given the answers of the next burst of `expected` requests.
    """

    def __init__(self, sample: Sample, depth: int, lifetime_ms: int = 0) -> None:
        self.wire: Wire
        self.sample = sample
        self.known = _known(sample, depth)
        self.logs = FakeBroker()
        self.executed: Counter[int] = Counter()
        self.answers: dict[int, list[bytes]] = {}
        self.frames: dict[int, list[bytes]] = {}
        self.strangers: list[bytes] = []
        self.lifetime_ms = lifetime_ms
        self.hold: list[bytes] | None = None  # collects answers instead of sending them
        self.swallow: Callable[[int], bool] = lambda n: False
        self.spoil_setup: Callable[[int, bytes], bool] = lambda api_key, answer: False  # True: it sends instead
        self.unasked: bytes | None = None
        self.probes = 0
        self.lasting: Callable[[bytes], bytes | None] | None = None

    def serve(self, frame: bytes) -> None:
        """Takes one request frame."""
        _, api_key, version, correlation_id = _HEAD.unpack_from(frame)
        n = self.known.get(frame[_HEAD_BYTES:])
        if n is not None and api_key == self.sample.api_key and version == self.sample.version:
            self.frames.setdefault(n, []).append(frame)
            if self.swallow(n):
                return
            self._send(self._frame(correlation_id, self._execute(n)))
        elif api_key == METADATA:
            self.probes += 1
            self._send(probe_answer(correlation_id))
        elif api_key in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
            answer = self._frame(correlation_id, self._setup(api_key, version))
            if not self.spoil_setup(api_key, answer):
                self._send(answer)
        elif api_key == PRODUCE and frame[_HEAD_BYTES:] == _tail(ACKS_0, 0):
            self.unasked = self._frame(correlation_id, _produced(version, 0, 0, 0))
        else:
            self.strangers.append(frame)

    def _frame(self, correlation_id: int, body: bytes) -> bytes:
        return struct.pack(">ii", 4 + len(body), correlation_id) + body

    def _send(self, frame: bytes) -> None:
        spoiled = frame if self.lasting is None else self.lasting(frame)
        if self.hold is not None:
            self.hold.append(frame)
        elif spoiled is not None:
            self.wire.answer(spoiled)

    def _setup(self, api_key: int, version: int) -> bytes:
        if api_key == API_VERSIONS:
            return sample("ApiVersions").body(0)
        return _sasl(api_key, version, self.lifetime_ms)

    def _execute(self, n: int) -> bytes:
        self.executed[n] += 1
        if self.sample.api_key == PRODUCE:
            data = self.sample.request(n).topic_data[0].partition_data[0]
            error_code, offset = self.logs.append(("t", data.index), bytes(data.records))
            body = _produced(self.sample.version, data.index, error_code, offset)
        else:
            body = self.sample.body(n)
        self.answers.setdefault(n, []).append(body)
        return body


@cache
def _sasl(api_key: int, version: int, lifetime_ms: int) -> bytes:
    values = {"session_lifetime_ms": lifetime_ms, "mechanisms": [MECHANISM], "auth_bytes": b""}
    return encoded(filled(response_class(api_key), version, 0, values))


class Unthrottled(TolerantConnection):
    """For answers that only their throttle time tells apart: brokers before 2.0 throttle by themselves (KIP-219)."""

    broker_version = (1, 1)


class Bench:
    """One connection in simulated time, connected to a SampleBroker."""

    def __init__(
        self,
        shared: Simulation,
        cell: Cell,
        is_sasl: bool = False,
        lifetime_ms: int = 0,
        caller: Sample | None = None,
        connection_class: type[TolerantConnection] = Unthrottled,
    ) -> None:
        self.cell = cell
        self.shared = shared
        self.clock = shared.clock
        self.rng = random.Random(cell.seed)
        self.net = SimulatedNet(self.clock)
        self.sample = caller or cell.sample  # what callers send; the cell's may be the connection's own
        self.broker = SampleBroker(self.sample, cell.depth, lifetime_ms)
        self.wire = Wire(self.net, self.broker.serve)
        self.broker.wire = self.wire
        self.settled: Counter[int] = Counter()  # by id() of the tracker's entry
        self.entries: list[Any] = []
        sasl = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": "somebody",
            "sasl_plain_password": "canary-password",
        }
        # One cell in four lets the ids wrap within the burst.
        wraps = cell.fault.may_wrap and zlib.crc32(cell.seed.encode()) % 4 == 0
        shared.ids.start = SPACE - self.rng.randrange(2, 8) if wraps else self.rng.randrange(1 << 28, 1 << 30)
        self.connection = connection_class(
            self.net,
            node_id=1,
            recovery_policy=POLICY,
            recovery_listener=self._listen,
            client_id=CLIENT_ID,
            max_in_flight_requests_per_connection=100,
            receive_message_max_bytes=1 << 20,
            request_timeout_ms=int(REQUEST_TIMEOUT * 1000),
            **(sasl if is_sasl else {}),
        )
        self.futures: list[Any] = []
        self.ended: list[float] = []
        self.sent_at = 0.0

    def _listen(self, event: Event) -> None:
        if isinstance(event, (Completed, Failed)):
            self.settled[id(event.request)] += 1
            self.entries.append(event.request)  # keeps it alive, so that its id() stays its own

    def connect(self) -> None:
        self.connection.connection_made(self.wire)
        self.net.start(self.connection.initialize())

    def connected(self) -> Bench:
        """Connects, and lets one request of the sample be answered."""
        self.connect()
        self.net.run(self.clock.now + 1.0, lambda: bool(self.connection.connected))
        assert self.connection.connected
        self.broker.hold = []
        future = self.connection.send_request(self.sample.request(OLD))
        (self.old,) = self.broker.hold
        self.broker.hold = None
        self.wire.answer(self.old)
        self.net.run(self.clock.now + 1.0, lambda: bool(future.is_done))
        assert future.succeeded(), future.exception or "the first request was not answered"
        self.entries.clear()
        self.settled.clear()
        return self

    # -- the burst ------------------------------------------------------------

    def burst(self) -> None:
        """Sends the cell's requests at once and puts its fault on their answers."""
        cell, fault, broker, wire = self.cell, self.cell.fault, self.broker, self.wire
        self.counted = self.counts()
        self.sent_at = self.clock.now
        swallowed = range(cell.victim, cell.victim + fault.swallowed)
        first = set(swallowed)
        broker.swallow = lambda n: n in first and not first.discard(n)  # type: ignore[func-returns-value]
        broker.hold = []
        if fault.sends_acks_0:
            self.connection.send_request(ACKS_0.request(0))
        for n in range(cell.depth):
            self.send(n)
        frames, broker.hold = broker.hold, None
        wire.step = fault.step
        self.put_on_the_wire(Burst(frames, cell.victim, self.old, cell.sample))

    def put_on_the_wire(self, burst: Burst) -> None:
        """Puts the fault on a burst's answers, and on all later ones if it lasts."""
        fault, broker = self.cell.fault, self.broker
        broker.lasting = fault.lasting
        pieces = fault.spoil(burst)
        if fault.lasting is not None:
            spoiled = map(fault.lasting, burst.frames[burst.victim :])
            pieces = [*pieces[: burst.victim], *(Piece(frame) for frame in spoiled if frame is not None)]
        self.stock_takes = ROUND_TRIP + stock_settles_at(burst, pieces, fault.stall)
        if broker.unasked is not None:
            pieces.insert(0, Piece(broker.unasked))
        self.put(pieces)

    def put(self, pieces: list[Piece]) -> None:
        """Puts bytes on the wire as the fault has it."""
        cell, fault, wire = self.cell, self.cell.fault, self.wire
        for at, piece in enumerate(pieces):
            if at == cell.victim and fault.stall:
                wire.stalled_until = self.clock.now + ROUND_TRIP + fault.stall
            if piece.is_reset:
                self.net.arrive(self.clock.now + ROUND_TRIP, lambda: wire.abort(ConnectionResetError("reset")))
            elif piece.delay:
                self.net.arrive(self.clock.now + ROUND_TRIP + piece.delay, lambda p=piece: wire.deliver(p.data))
            else:
                wire.answer(piece.data)

    def send(self, n: int) -> None:
        future = self.connection.send_request(self.sample.request(n))
        future.add_both(lambda _: self.ended.append(self.clock.now))
        self.futures.append(future)

    def spoil_next(self, api_key: int) -> None:
        """Puts the fault on the answer to the connection's own next request of that API.

        A caller's request comes while it is unanswered, and has to wait for it.
        """
        self.counted = self.counts()
        self.entries.clear()
        self.settled.clear()
        self.is_spoiled = False
        old = getattr(self, "old", None)

        def spoil(key: int, answer: bytes) -> bool:
            if key != api_key or self.is_spoiled:
                return False
            self.is_spoiled = True
            self.sent_at = self.clock.now
            self.send(0)
            self.wire.step = self.cell.fault.step
            before = old if old is not None else set_correlation_id(answer, correlation_id_of(answer) - 1)
            burst = Burst([answer], 0, before, self.cell.sample)
            if self.cell.fault.swallowed:
                self.stock_takes = REQUEST_TIMEOUT
            else:
                self.put_on_the_wire(burst)
            return True

        self.broker.spoil_setup = spoil

    def counts(self) -> Counter[str]:
        """What was counted, summed over APIs."""
        total: Counter[str] = Counter()
        for (kind, _, _), count in self.connection.recovery_counters.as_dict().items():
            total[kind] += count
        return total

    def run(self) -> None:
        """Until all is settled and every late piece has come."""
        self.net.run(self.sent_at + REQUEST_TIMEOUT + 2.0)

    # -- the invariants -------------------------------------------------------

    def fail(self, law: int, what: str) -> None:
        raise Violated(f"[{self.cell.seed}] invariant {law}: {what}")

    def check(self, expected: Counter[str] | None) -> None:
        """Asserts all invariants; `expected` are the counts, None where only sums are known."""
        self.check_settled()
        self.check_answers()
        if expected is not None:
            self.check_counts(self.counts() - self.counted, expected)
        # Silence alone does not settle what may not run twice: that has as long as with stock (invariant 10).
        is_waited_for = self.cell.needs_more and expected is not None and not expected["lost"]
        if self.cell.fault.recovers and self.cell.phase == "steady" and not self.cell.is_setup and not is_waited_for:
            self.check_time()
        if self.cell.phase == "steady":
            self.check_stall()
        if not self.connection.closed:
            self.check_idle()
            self.connection.close()
        self.check_nothing_left()

    def check_settled(self) -> None:
        waiting = [n for n, future in enumerate(self.futures) if not future.is_done]
        if waiting:
            self.fail(1, f"requests {waiting} never ended")
        if len(self.ended) != len(self.futures):
            self.fail(1, f"{len(self.ended)} callbacks for {len(self.futures)} requests")
        if any(count != 1 for count in self.settled.values()):
            self.fail(1, f"requests were settled {sorted(self.settled.values())} times")
        latest = max(self.ended)
        if latest > self.sent_at + REQUEST_TIMEOUT + 0.001:
            self.fail(1, f"a request ended {latest - self.sent_at:.3f} s after it was sent")

    def check_answers(self) -> None:
        cell, broker, item = self.cell, self.broker, self.sample
        is_closed_early = self.connection.closed
        for n, future in enumerate(self.futures):
            if future.exception is None:
                got = contents(future.value)
                made = broker.answers.get(n, [])
                if cell.fault.is_meant and n == cell.victim and not cell.action.is_resend:
                    made = [item.body(ODD)]
                if got not in [_read(item, body) for body in made]:
                    self.fail(2, f"request {n} was given an answer that was not made for it")
                if item.is_idempotent:
                    part = got["responses"][0]["partition_responses"][0]
                    if (part["error_code"], part["base_offset"]) != (0, n % PER_PARTITION):
                        self.fail(3, f"batch {n}: error {part['error_code']}, offset {part['base_offset']}")
            else:
                self.check_error(n, future.exception, is_closed_early)
            copies = broker.frames.get(n, [])
            if len({frame[:8] + frame[12:] for frame in copies}) > 1:
                self.fail(5, f"request {n} was sent again with other bytes")
            if len({frame[8:12] for frame in copies}) != len(copies):
                self.fail(5, f"request {n} was sent again under an id that it had before")
            if len(copies) > 1 and not item.is_repeatable:
                self.fail(4, f"request {n} was sent {len(copies)} times and may run only once")
        if broker.strangers:
            self.fail(5, f"the broker was sent {len(broker.strangers)} frames that nobody made")
        if item.is_idempotent:
            self.check_logs(is_closed_early)

    def check_error(self, n: int, error: BaseException, is_closed_early: bool) -> None:
        """The caller is told whether to send it again: yes, or that it may have been carried out."""
        is_unknown = isinstance(error, OutcomeUnknownError)
        if is_unknown != (self.cell.action is Action.OUTCOME_UNKNOWN and self.sample is self.cell.sample):
            self.fail(4, f"request {n} ended with {type(error).__name__}, and its action is {self.cell.action}")
        is_retriable = bool(getattr(error, "retriable", False))
        if is_unknown == is_retriable:
            self.fail(4, f"request {n} ended with {type(error).__name__}, retriable: {is_retriable}")
        if not is_unknown and not isinstance(error, Errors.KafkaConnectionError | Errors.Cancelled):
            self.fail(
                4, f"request {n} ended with {type(error).__name__}, which kafka-python does not repeat everywhere"
            )

    def check_logs(self, is_closed_early: bool) -> None:
        for (_, partition), log in self.broker.logs.logs.items():
            numbers = [int(batch.partition(CANARY)[2]) for batch in log]
            first = partition * PER_PARTITION
            if partition != OLD // PER_PARTITION and numbers != list(range(first, first + len(numbers))):
                self.fail(3, f"partition {partition} holds batches {numbers}")
        written = sum(len(log) for log in self.broker.logs.logs.values())
        if not is_closed_early and written != len(self.futures) + 1:
            self.fail(3, f"{written} batches were appended of {len(self.futures) + 1}")

    def check_counts(self, counted: Counter[str], expected: Counter[str]) -> None:
        fault = self.cell.fault
        seen, limits = +counted, +expected
        if fault.lasting is not None:
            # How many orphans and probes it takes depends on which ids the shift hits.
            seen = Counter({kind: seen[kind] for kind in limits})
        for kind in fault.bounded:
            if not min(1, limits[kind]) <= seen[kind] <= limits[kind]:
                self.fail(6, f"{kind} {seen[kind]}, expected 1 to {limits[kind]}")
            del seen[kind], limits[kind]
        if seen != limits:
            self.fail(6, f"counted {as_answers(seen)}; expected {as_answers(limits)}")
        if self.broker.probes != counted["probe"]:
            self.fail(6, f"{self.broker.probes} probes reached the broker, {counted['probe']} were counted")

    def check_stall(self) -> None:
        """Stock settles the burst and, where it has closed the connection, asks again over a new one."""
        bound = self.stock_takes + RECONNECTING + (LONG_POLL if self.cell.expected else 0.0)
        took = max(self.ended) - self.sent_at
        if self.cell.fault.swallowed and self.sample.is_idempotent:
            bound += PER_PARTITION * ROUND_TRIP  # as in check_time
        if took > bound + 0.020:
            self.fail(10, f"a request ended after {took:.3f} s, with stock after {bound:.3f} s")

    def check_time(self) -> None:
        """A margin of silence, the probe's round trip, the grace, and a round trip for the repeat."""
        cell = self.cell
        silence = expected(cell.sample) + POLICY.probe_min_ms / 1000 + ROUND_TRIP
        bound = ROUND_TRIP + silence + ROUND_TRIP + POLICY.reorder_grace_ms / 1000 + ROUND_TRIP
        if cell.fault.swallowed and cell.sample.is_idempotent:
            bound += PER_PARTITION * ROUND_TRIP  # batches refused out of turn are asked for one after the other
        if cell.yields and cell.alike:
            bound += ROUND_TRIP  # the repeat's answer passes for the older one's: it is asked for once more
        took = max(self.ended) - self.sent_at
        if took > bound + 0.020:
            self.fail(9, f"recovered after {took:.3f} s, the bound is {bound:.3f} s")

    def check_idle(self) -> None:
        tracker = self.connection.in_flight_requests
        if len(tracker) or tracker._requests:
            self.fail(7, f"{len(tracker._requests)} requests in flight with every future done")
        if not tracker._settlement.is_regular or tracker._trial is not None or self.connection._unsent:
            self.fail(
                7,
                f"regular: {tracker._settlement.is_regular}, {len(self.connection._unsent)} unsent, with nothing to do",
            )
        if self.connection.paused:
            self.fail(7, f"paused for {self.connection.paused} with nothing in flight")

    def check_nothing_left(self) -> None:
        connection = self.connection
        tracker = connection.in_flight_requests
        left = (len(tracker._requests), len(connection._unsent), len(connection._unsent_bare))
        if any(left) or connection._request_buffer:
            self.fail(7, f"after the end there are {left} in flight, unsent, unsent without answer")
        if self.net.client_timers():
            self.fail(7, f"after the end there are {self.net.client_timers()} timers")
        if self.shared.listening.leaks:
            self.fail(8, f"logged: {self.shared.listening.leaks[0][:200]!r}")


@cache
def action_of(item: Sample) -> Action:
    """What settles a lost request of this sample."""
    return action_for(adapt(item.request(0)))


@cache
def expected(item: Sample) -> float:
    """How long a broker may rightly wait with its answer, in seconds."""
    return float(adapt(item.request(0)).expected_ms / 1000)


@cache
def accepts(item: Sample, n: int, answer_of: int) -> bool:
    """True where a request takes the answer of another one for its own."""
    request = adapt(item.request(n))
    request.frame_buffers(0, CLIENT_ID)
    try:
        request.decode_response(memoryview(item.body(answer_of)))
    except Exception:  # a decoder may raise anything
        return False
    return True


def doubted_without(item: Sample, missing: range, depth: int) -> int:
    """How many answers are believed for neither request, since they pass for one whose answer is missing."""
    waiting, doubted = set(missing), 0
    for later in range(missing.stop, depth):
        alike = {n for n in waiting if accepts(item, n, later)}
        waiting -= alike
        doubted += bool(alike)
    return doubted


def cell_of(fault: Fault, item: Sample, depth: int, phase: str) -> Cell:
    """The cell at these coordinates."""
    victim = (depth - 1) // 2
    alike = sum(accepts(item, later, victim) for later in range(victim + 1, depth))
    first, second = (adapt(item.request(n)) for n in (0, 1))
    yields = getattr(first, "yields_to_newer", False) and bool(set(first.order_keys) & set(second.order_keys))
    action = action_of(item)
    needs_more = not action.is_resend and not first.row.is_read
    doubted = tuple(doubted_without(item, range(victim, victim + n), depth) for n in range(4))
    return Cell(fault, item, depth, phase, action, alike, expected(item), yields, needs_more, doubted)


# -- the phases ---------------------------------------------------------------

HOUR_MS = 3_600_000
PHASES = ("connect", "authenticate", "steady", "re-authenticate", "draining", "close")
_SETUP = {"ApiVersions": API_VERSIONS, "SaslHandshake": SASL_HANDSHAKE, "SaslAuthenticate": SASL_AUTHENTICATE}
_ORDER = {
    "connect": ("ApiVersions",),
    "authenticate": ("ApiVersions", "SaslHandshake", "SaslAuthenticate"),
    "re-authenticate": ("SaslHandshake", "SaslAuthenticate"),
}


def run_cell(shared: Simulation, cell: Cell) -> None:
    """Runs one cell and asserts every invariant; raises Violated."""
    if cell.phase in _ORDER:
        _run_setup(shared, cell)
    elif cell.phase == "draining":
        _run_draining(shared, cell)
    elif cell.phase == "close":
        _run_close(shared, cell)
    else:
        bench = Bench(shared, cell).connected()
        bench.burst()
        bench.run()
        bench.check(cell.fault.account(cell))


def _run_setup(shared: Simulation, cell: Cell) -> None:
    """The victim is the connection's own request; a caller's waits behind it."""
    order = _ORDER[cell.phase]
    is_sasl, is_again = cell.phase != "connect", cell.phase == "re-authenticate"
    bench = Bench(shared, cell, is_sasl, HOUR_MS if is_again else 0, caller=sample("ListOffsets"))
    if is_again:
        bench.connected()
        bench.spoil_next(_SETUP[cell.sample.name])
        bench.net.run(bench.clock.now + HOUR_MS / 1000, lambda: bench.is_spoiled)
    else:
        bench.spoil_next(_SETUP[cell.sample.name])
        bench.connect()
        bench.net.run(bench.clock.now + 1.0, lambda: bench.is_spoiled)
    bench.run()
    bench.check(setup_account(cell, order.index(cell.sample.name), len(order)))
    if not bench.connection.init_future.is_done or not bench.connection.close_future.is_done:
        bench.fail(1, "whoever waits for the connection waits for ever")


def _run_draining(shared: Simulation, cell: Cell) -> None:
    """The burst is in flight when the re-authentication falls due; a caller's request comes meanwhile."""
    bench = Bench(shared, cell, is_sasl=True, lifetime_ms=HOUR_MS).connected()
    due = bench.connection._reauth.task[0]
    bench.net.run(due - ROUND_TRIP / 2)
    bench.burst()
    bench.run()
    if not bench.connection.closed and bench.connection._reauth.is_reauthenticating:
        bench.fail(1, "the re-authentication waits for ever, and with it whoever sends")
    bench.check(draining_account(cell))


def _run_close(shared: Simulation, cell: Cell) -> None:
    """The connection is closed just after the fault, and closed again."""
    bench = Bench(shared, cell).connected()
    bench.burst()
    bench.net.run(bench.sent_at + ROUND_TRIP + 0.002)
    bench.connection.close()
    bench.connection.close()
    bench.run()
    counted = bench.counts() - bench.counted
    if counted["completed"] + counted["failed"] != cell.depth:
        bench.fail(6, f"counted {as_answers(counted)} for {cell.depth} requests")
    if counted["completed"] != sum(future.exception is None for future in bench.futures):
        bench.fail(6, f"counted {as_answers(counted)}, which is not what callers got")
    bench.check(None)


DEPTHS = (1, 2, 5, DEEP)
IS_SMALL = bool(os.environ.get("TOLERANT_SMALL"))  # for tests/mutation: representatives only


def cells(fault: Fault, phase: str, depths: tuple[int, ...] = DEPTHS) -> Iterator[Cell]:
    """All cells of one fault in one phase.

    The deepest run for the representatives and for a quarter of the other APIs,
    another quarter for every fault; with TOLERANT_LONG=1 for all.
    """
    if phase in _ORDER:
        names = [name for name in _ORDER[phase] if phase == "connect" or name != "ApiVersions"]
        depths = (1,)
    elif phase == "draining" or IS_SMALL:
        names = list(REPRESENTATIVES)
        depths = tuple(d for d in depths if d in (1, 5))
    else:
        names = [item.name for item in samples() if not item.name.startswith("Sasl")]
        if phase == "close":
            depths = tuple(d for d in depths if d < DEEP)
    for name in names:
        for depth in depths:
            is_quarter = zlib.crc32(f"{fault.name} {name}".encode()) % 4 == 0
            if depth == DEEP and not (LONG or is_quarter or name in REPRESENTATIVES):
                continue
            cell = cell_of(fault, sample(name), depth, phase)
            if phase in _ORDER and fault.sends_acks_0:
                continue
            if fault.fits(cell):
                yield cell


# One for each way in which a lost request is settled, and each way of waiting.
REPRESENTATIVES = (
    "ListOffsets",
    "Metadata",
    "Produce",
    "Produce with a producer id",
    "Fetch in a session",
    "Fetch without a session",
    "OffsetCommit",
    "JoinGroup without a member id",
    "CreateTopics",
    "ApiVersions",
)


def replay(seed: str) -> None:
    """Runs the cell of that name and prints what happened: `python -m support.matrix "<seed>"`."""
    fault_name, sample_name, depth, phase = (part.strip() for part in seed.strip("[] ").split("|"))
    cell = cell_of(fault(fault_name), sample(sample_name), int(depth.removeprefix("depth ")), phase)
    listen = Bench._listen

    def tell(bench: Bench, event: Event) -> None:
        print(f"{bench.clock.now - bench.sent_at:9.4f}  {event}")
        listen(bench, event)

    Bench._listen = tell  # type: ignore[method-assign]
    with simulation() as shared:
        run_cell(shared, cell)
    print("every invariant holds")


if __name__ == "__main__":
    replay(sys.argv[1])
