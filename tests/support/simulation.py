"""Seeded simulations of the tracker: random requests, a broker that answers in order, faults on its answers.

    PYTHONPATH=tests python -m support.simulation 123456          replays one seed and prints its trace
    PYTHONPATH=tests python -m support.simulation --first 0 --count 1000   runs many; one JSON line

A seed decides everything: ids, requests, latencies, throttles, faults.  A quarter of
the seeds have no fault, a quarter exactly one, the rest many.  Asserted in each:

A. Every request is settled exactly once, and not after its deadline; the time that the peer took for probes sent before
   it does not count.
B. An answer completes the request that it was made for; another one only where
   several faults together left no way to tell, or where it speaks of something else
   and its request may not be sent again, or the repeat's answer says the same, or two have none,
   or nothing else was out of step and no proof came within a trial's patience.  A gateway
   that answers the probe after a request before the request is one of several faults.
C. Batches with a producer id are appended once and in order, and requests that
   share an order key are completed in the order of sending.
D. What may not be sent again is sent once; where it may have run and the answer
   is lost, the outcome is called unknown.  No commit runs after a newer one was sent.
E. What is sent again has a new id, time left and repeats left.
F. Without faults nothing is lost, orphaned, reordered, probed, repeated or retired;
   every such event is explained by a fault.
G. While authenticating nothing is repeated.
H. At the end nothing is in flight and nothing will become due; timers do not spin.
I. A connection that is shifted or garbled for good is left within a trial's patience; at a slow gateway,
   whose answers from before still come, within that of the last one.
J. Behind a gateway that answers probes by itself, and the rest slowly but in order, only
   reads fail before the connection does, if no other fault strikes, and nothing is probed, or
   lost by a probe, once an answer has disproved one.  A sixth of the seeds have a gateway.
K. A server that names something else for good is believed at the first repeat, and kept by a policy that sends anything again.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections import Counter, deque
from typing import Any, NoReturn

from tolerant_client.tracker.correlation import SPACE
from tolerant_client.tracker.events import Completed, Event, Failed, Lost, Orphan, Probe, Requeued, Retired
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.lifecycle import NEVER, InFlightRequest, Verdict
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.apis import Action, OtherSubject

TIMEOUT = 30.0
_REMEMBERED = 5  # batches of one producer that a broker knows again (ProducerStateEntry.java)
_MAX_TURNS = 5_000
_AT_ONCE = 4


class Broken(AssertionError):
    """An invariant does not hold; the message starts with the seed."""


class Request(apis.Request):
    """A request whose answer is its API and its token; `tells` if it refuses an answer to another one."""

    __slots__ = (
        "API_KEY",
        "API_VERSION",
        "expected_ms",
        "key",
        "name",
        "order_keys",
        "row",
        "sequence",
        "tells",
        "token",
        "yields_to_newer",
    )
    expect_response = frame_buffers = None  # the simulation sends it itself

    def __init__(self, kind: Kind, token: int, key: int) -> None:
        self.name, self.API_KEY, self.row, self.tells, self.expected_ms, is_keyed = kind
        self.API_VERSION = 1
        self.token = token
        self.key = key
        self.order_keys: tuple[Any, ...] = ((self.API_KEY, key),) if is_keyed else ()
        self.yields_to_newer = self.row.yields_to_newer
        self.sequence = -1

    def decode_response(self, body: memoryview) -> tuple[int, int]:
        """(token, error code); raises ValueError on a body that is not for this API, or not for this request.

        The first byte is the API's key plus one, as a probe's answer starts with zeros: some decoders take that, too.
        """
        if body == PROBE_BODY and self.API_KEY in (apis.METADATA, apis.OFFSET_COMMIT):
            return -1, 0
        if len(body) != 6 or body[0] != self.API_KEY + 1:
            raise ValueError("not an answer to this API")
        token = int.from_bytes(body[1:5], "big")
        if self.tells and token != self.token:
            response = None if self.API_KEY == apis.PRODUCE else (token, body[5])
            raise OtherSubject("speaks of another request", response, token)
        return token, body[5]

    def is_out_of_turn(self, response: tuple[int, int]) -> bool:
        return response[1] == 45


class Question(apis.Request):
    """What a probe asks."""

    name, API_KEY, API_VERSION, expected_ms = "Question", apis.METADATA, 1, 0.0
    expect_response = frame_buffers = None  # the simulation sends it itself

    def decode_response(self, body: memoryview) -> None:
        if body == PROBE_BODY:
            return
        if len(body) == 6 and body[0] == self.API_KEY + 1:
            raise OtherSubject("speaks of a topic", None, body.tobytes())
        raise ValueError("not an answer about nothing")


Kind = tuple[str, int, rows.ApiRow, bool, float, bool]

IDEMPOTENT: Kind = ("Produce", apis.PRODUCE, rows.PRODUCE_IDEMPOTENT, True, 0.0, True)
COMMIT: Kind = ("OffsetCommit", apis.OFFSET_COMMIT, rows.COMMIT, False, 0.0, True)
KINDS: tuple[Kind, ...] = (
    IDEMPOTENT,
    IDEMPOTENT,
    ("PlainProduce", apis.PRODUCE, rows.PRODUCE_PLAIN, True, 0.0, True),
    ("ProduceToOnePartition", apis.PRODUCE, rows.PRODUCE_PLAIN, False, 0.0, True),
    ("Fetch", apis.FETCH, rows.FETCH_ALONE, True, 500.0, False),
    ("SessionFetch", apis.FETCH, rows.FETCH_IN_SESSION, False, 500.0, False),
    ("Metadata", apis.METADATA, rows.METADATA_REFRESH, False, 0.0, False),
    ("ListOffsets", apis.LIST_OFFSETS, rows.READ_ONLY, True, 0.0, False),
    ("FindCoordinator", apis.FIND_COORDINATOR, rows.READ_ONLY, False, 0.0, False),
    COMMIT,
    ("CreateTopics", apis.CREATE_TOPICS, rows.TOPIC_CREATE, True, 0.0, False),
)
SETUP: tuple[Kind, ...] = (
    ("ApiVersions", apis.API_VERSIONS, rows.FIRST_REQUEST, False, 0.0, False),
    ("SaslAuthenticate", apis.SASL_AUTHENTICATE, rows.AUTHENTICATION, False, 0.0, False),
)

FAULTS = (
    "drop",
    "swallow",
    "duplicate",
    "duplicate later",
    "reorder",
    "late",
    "next id",
    "id before",
    "stale id",
    "strange id",
    "misfit",
    "odd",
    "odd for good",
    "foreign",
    "ids exchanged",
    "stall",
    "unasked",
    "cut off",
    "shifted for good",
    "garbled for good",
)
LASTING = FAULTS[-3:]
ODD_BIT = 1 << 6  # of the first byte of a token: the same answer, of something else
PROBE_BODY = memoryview(b"\0\0\0\0\0\0")
POLICIES = (
    RecoveryPolicy(),
    RecoveryPolicy(),
    RecoveryPolicy.patient(),
    RecoveryPolicy.strict(),
    RecoveryPolicy(max_resends=2, max_mismatches=6),
)


class Simulation:
    """One seed.  `happened` counts what occurred, for the coverage of many."""

    def __init__(self, seed: int, is_told: bool = False) -> None:
        self.seed = seed
        self.is_told = is_told
        self.rng = rng = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.now = 100.0
        self.deadline_of: dict[int, float] = {}
        self.asked: dict[
            int, int
        ] = {}  # by the id of a probe without a response: how many requests were sent before it
        self.arrived_at = -NEVER  # the last response
        self.settled: dict[int, str] = {}
        self.entries: list[InFlightRequest] = []
        self.writes: Counter[int] = Counter()  # by token
        self.ids: dict[int, set[int]] = {}  # by token: every id it was sent under
        self.used: list[int] = []  # ids in the order of writing
        self.liars: set[int] = set()  # ids under which something came that its request accepts and should not
        self.faults = 0
        self.orphan_makers = 0
        self.is_over = False
        # The broker.
        self.logs: dict[int, list[int]] = {}
        self.next_sequence: Counter[int] = Counter()
        self.commits: dict[int, int] = {}
        self.newest_commit: dict[int, int] = {}
        self.done: Counter[int] = Counter()
        self.free_at = 0.0
        self.arrives_at = 0.0
        self.is_cut = False
        self.shift = 0  # of every id from now on
        # An answer was lost, and each one after it comes under the id before its own.
        self.unpaired: deque[int] | None = None
        self.is_garbled = False
        self.is_odd = False
        self.odd_ids: set[int] = set()  # ids whose answers speak of something else
        self.exchanged: tuple[int, memoryview] | None = None  # waits for the next answer, to exchange their ids
        self.spoiled_from = NEVER  # when a lasting fault's first answer arrives
        self.lost_ids: set[int] = set()
        self.silent_ids: set[int] = set()  # of these, those that no answer under a wrong id may have been for
        self.unbelieved = 0  # answers since a trial was decided that were nobody's, or came out of turn
        self.arrived = memoryview(b"")
        self.heard: set[int] = set()  # ids under which something came
        self.is_disproved = False  # an answer came to one that was lost in silence
        self.is_lasting_since = NEVER  # when the first of them arrived, and was waited for
        self.patience = 0.0
        self.is_out_of_patience = False  # what the tracker does now it does as a trial's time is over

        plan = seed % 4
        self.is_gateway = seed // 4 % 6 == 0
        self.rate = (0.0, 1.0, 0.08, 0.25)[plan]
        self.allowed = (0, 1, NEVER, NEVER)[plan]
        self.depth = rng.choice((1, 2, 5, 16))
        self.latency = rng.choice((0.0005, 0.005, 0.05))
        self.policy = rng.choice(POLICIES)
        start = SPACE - rng.randrange(1, 12) if rng.random() < 0.25 else rng.getrandbits(31)
        self.setup = rng.random() < 0.15
        # A broker of which no harmless question is known, one time in ten.
        self.tracker = InFlightRequests(self.policy, start, None if rng.random() < 0.1 else Question())
        self.queue: list[tuple[float, int, int, memoryview, float]] = []  # arrivals
        self.count = 0
        # Where a lone fault strikes: not always the first answer.
        self.skip = rng.randrange(0, 8) if plan == 1 else 0

    # -- the run --------------------------------------------------------------

    def run(self) -> Simulation:
        rng, tracker = self.rng, self.tracker
        left = rng.randrange(1, 24)
        next_send = self.now
        token = 0
        turns = 0
        if self.setup:
            self.send(SETUP[rng.randrange(2)], token, 0)
            token += 1
        while not self.is_over:
            turns += 1
            if turns > _MAX_TURNS:
                self.broken("H", "the simulation does not end")
            due = tracker.next_wakeup(self.now)
            arrival = self.queue[0][0] if self.queue else NEVER
            # A caller waits for the set-up, and for room.
            may_send = left > 0 and len(tracker) < self.depth and not (self.setup and len(tracker))
            sending = next_send if may_send else NEVER
            wake = NEVER if due is None else due
            if arrival == sending == wake == NEVER:
                break
            if sending <= arrival and sending <= wake:
                self.setup = False
                self.now = max(self.now, sending)
                kind = KINDS[rng.randrange(len(KINDS))]
                key = rng.randrange(2)
                if kind is IDEMPOTENT and self.in_flight_of(key) >= _REMEMBERED:
                    kind = KINDS[5]
                self.send(kind, token, key)
                token += 1
                left -= 1
                next_send = self.now + (0.0 if rng.random() < 0.6 else rng.random() * 0.2)
            elif arrival <= wake:
                self.now = max(self.now, arrival)
                _, _, correlation_id, body, throttle = heapq.heappop(self.queue)
                self.arrive(correlation_id, body, throttle)
            else:
                self.now = max(self.now, wake)
                self.is_out_of_patience = self.now >= tracker.silence.trial_ends(tracker._trial)
                self.act(tracker.expired(self.now))
                self.is_out_of_patience = False
                for _ in range(_AT_ONCE):  # what the end of a trial delivers may leave another one overdue
                    again = None if self.is_over else tracker.next_wakeup(self.now)
                    if again is None or again > self.now or not (events := tracker.expired(self.now)):
                        break
                    self.act(events)
                else:
                    self.broken("H", "a timer is due for ever")
        self.finish()
        return self

    def in_flight_of(self, key: int) -> int:
        return sum(e.request.row is rows.PRODUCE_IDEMPOTENT and e.request.key == key for e in self.tracker)

    def send(self, kind: Kind, token: int, key: int) -> None:
        if not self.setup and self.rng.random() < 0.05:
            self.send_unasked()
        request = Request(kind, token, key)
        if kind is IDEMPOTENT:
            request.sequence = self.next_sequence[key]
            self.next_sequence[key] += 1
        timeout = TIMEOUT if self.rng.random() < 0.98 else self.rng.choice((0.05, 0.3, 2.0))
        self.deadline_of[token] = self.now + timeout
        entry = self.tracker.queue(request, self.now + timeout)
        self.entries.append(entry)
        if kind is COMMIT:
            self.newest_commit[key] = token
        self.write(entry)

    def send_unasked(self) -> None:
        """A Produce with acks=0; where the fault says so it is answered all the same (Event Hubs)."""
        correlation_id = self.tracker.ids.draw_unanswered()
        self.used.append(correlation_id)
        if self.is_struck("unasked"):
            self.orphan_makers += 1
            self.put(correlation_id, memoryview(b"\0answer"), self.now + self.latency)

    def write(self, entry: InFlightRequest) -> None:
        """Puts a request on the wire: the broker takes it and its answer, or what became of it, is on its way."""
        events = self.tracker.sent(entry, self.now)
        if events:
            self.broken("A", f"sending gave {events}")
        self.used.append(entry.correlation_id)
        request = entry.request
        if isinstance(request, Question):
            self.asked[entry.correlation_id] = len(self.entries)
        if isinstance(request, Question) and self.is_gateway:
            self.put(entry.correlation_id, PROBE_BODY, self.now + self.latency)
            return
        if isinstance(request, Question):
            self.answer(entry, PROBE_BODY)
            return
        token = request.token
        self.writes[token] += 1
        ids = self.ids.setdefault(token, set())
        if entry.correlation_id in ids:
            self.broken("E", f"request {token} is sent again under an id that it had")
        ids.add(entry.correlation_id)
        if self.writes[token] > 1 and not entry.action.is_resend:
            self.broken("D", f"{request.name} {token} is sent twice")
        if self.is_struck("swallow"):
            return
        self.answer(entry, self.execute(request))

    def execute(self, request: Request) -> memoryview:
        self.done[request.token] += 1
        error = 0
        if request.row is rows.PRODUCE_IDEMPOTENT:
            log = self.logs.setdefault(request.key, [])
            if request.sequence == len(log):
                log.append(request.token)
            elif request.sequence > len(log) or request.sequence < len(log) - _REMEMBERED:
                error = 45
        elif request.row is rows.COMMIT:
            if request.token < self.commits.get(request.key, -1):
                self.broken("D", f"commit {request.token} runs after {self.commits[request.key]}")
            self.commits[request.key] = request.token
        return memoryview(bytes([request.API_KEY + 1]) + request.token.to_bytes(4, "big") + bytes([error]))

    # -- the wire -------------------------------------------------------------

    def is_struck(self, fault: str) -> bool:
        """Whether this fault strikes here; only for those that are not on an answer."""
        if self.faults >= self.allowed or self.rng.random() >= self.rate / len(FAULTS):
            return False
        self.faults += 1
        self.happened[f"fault {fault}"] += 1
        return True

    def pick_fault(self) -> str | None:
        if self.faults >= self.allowed:
            return None
        if self.skip:
            self.skip -= 1
            return None
        if self.rng.random() >= self.rate:
            return None
        self.faults += 1
        fault = FAULTS[self.rng.randrange(len(FAULTS))]
        self.happened[f"fault {fault}"] += 1
        return fault

    def put(self, correlation_id: int, body: memoryview, when: float, throttle: float = 0.0) -> None:
        if self.is_cut:
            return
        if self.shift or self.is_garbled:
            self.spoiled_from = min(self.spoiled_from, when)
        if self.unpaired is not None:
            self.spoiled_from = min(self.spoiled_from, when)
            self.unpaired.append(correlation_id)
            correlation_id = self.unpaired.popleft()
        elif self.shift:
            correlation_id = (correlation_id + self.shift) % SPACE
        if self.shift or self.unpaired is not None:
            self.orphan_makers += 1
            self.liars.add(correlation_id)
        if self.is_garbled:
            self.orphan_makers += 1
            body = body[:-1]
        self.count += 1
        heapq.heappush(self.queue, (when, self.count, correlation_id, body, throttle))

    def oddly(self, entry: InFlightRequest, body: memoryview) -> memoryview:
        """The same of something else, where the request tells; a Produce of nobody's partition is a misfit."""
        if not getattr(entry.request, "tells", False) or (self.is_odd and entry.request.API_KEY == apis.PRODUCE):
            return body
        self.odd_ids.add(entry.correlation_id)
        self.orphan_makers += 1  # it is a misfit where it fits another request
        return memoryview(bytes([body[0], body[1] ^ ODD_BIT]) + body[2:].tobytes())

    def answer(self, entry: InFlightRequest, body: memoryview) -> None:
        rng = self.rng
        if self.is_odd:
            body = self.oddly(entry, body)
        start = max(self.now + self.latency, self.free_at)
        took = entry.expected * rng.random() if entry.expected and rng.random() < 0.5 else 0.0002 * rng.random()
        is_probe = isinstance(entry.request, Question)
        throttle = 0.3 * rng.random() if rng.random() < 0.03 and not is_probe else 0.0
        self.free_at = start + took + throttle
        when = self.arrives_at = max(self.arrives_at, start + took + self.latency)
        if self.is_gateway and rng.random() < 0.25:
            when = self.arrives_at = when + 4 * rng.random()
        correlation_id = entry.correlation_id
        if self.exchanged is not None:
            (other_id, other_body), self.exchanged = self.exchanged, None
            self.orphan_makers += 2
            self.liars.update((correlation_id, other_id))
            self.put(correlation_id, other_body, when)
            self.put(other_id, body, when)
            return
        fault = self.pick_fault()
        if fault is None:
            self.put(correlation_id, body, when, throttle)
            return
        if self.is_told:
            print(f"{self.now - 100:9.4f}  fault: {fault} on the answer to {entry.api} {correlation_id}")
        if fault in ("drop", "swallow"):
            return
        if fault in ("duplicate", "duplicate later"):
            self.orphan_makers += 1
            self.put(correlation_id, body, when, throttle)
            self.put(correlation_id, body, when if fault == "duplicate" else when + rng.random() * 8)
        elif fault in ("reorder", "late"):
            self.orphan_makers += 1  # after a later one that it fits, too, it is believed for neither
            self.put(correlation_id, body, when + (0.08 if fault == "reorder" else 8) * rng.random(), throttle)
        elif fault in ("next id", "id before", "stale id", "strange id"):
            self.lie(fault, entry, body, when)
        elif fault == "misfit":
            self.orphan_makers += 1
            self.put(correlation_id, body[:-1], when, 0.0)
        elif fault in ("odd", "odd for good"):
            self.is_odd = self.is_odd or fault == "odd for good"
            self.put(correlation_id, self.oddly(entry, body), when, throttle)
        elif fault == "foreign":
            self.orphan_makers += 1
            self.put((correlation_id + 1_000_000) % SPACE, body, when)
            self.put(correlation_id, body, when, throttle)
        elif fault == "ids exchanged":
            self.exchanged = correlation_id, body
        elif fault == "stall":
            self.arrives_at = when + 4 * rng.random()
            self.put(correlation_id, body, self.arrives_at, throttle)
        elif fault in LASTING:
            self.is_cut = fault == "cut off"
            self.is_garbled = fault == "garbled for good"
            if fault == "shifted for good":
                self.shift = rng.choice((1, 3, 100, -1, -3, 0))
                if not self.shift:
                    self.unpaired = deque([correlation_id])
                    return
            self.put(correlation_id, body, when)
        else:
            self.put(correlation_id, body, when, throttle)  # "unasked" and "swallow" strike elsewhere

    def lie(self, fault: str, entry: InFlightRequest, body: memoryview, when: float) -> None:
        self.orphan_makers += 1
        correlation_id = entry.correlation_id
        if fault == "next id":
            wrong = (correlation_id + 1) % SPACE
        elif fault == "id before":
            wrong = (correlation_id - 1) % SPACE
        elif fault == "stale id":
            wrong = self.used[self.rng.randrange(len(self.used))]
        else:
            wrong = self.rng.choice((-1, 0, SPACE + 3, (correlation_id + 70_000) % SPACE))
        self.liars.add(wrong)
        self.put(wrong, body, when)

    def arrive(self, correlation_id: int, body: memoryview, throttle: float) -> None:
        if self.is_told:
            print(f"{self.now - 100:9.4f}  answer {correlation_id}")
        is_waited_for = len(self.tracker) > 0
        self.arrived = body
        self.heard.add(correlation_id)
        is_of_a_probe = body == PROBE_BODY and correlation_id in self.asked
        if (sent_before := self.asked.get(correlation_id)) is not None:
            if is_of_a_probe:
                del self.asked[correlation_id]  # else it is another one's, under its id
            for entry in self.entries[sent_before:]:
                if entry.sent_at >= 0:
                    self.deadline_of[entry.request.token] += self.now - max(entry.sent_at, self.arrived_at)
        self.arrived_at = self.now
        events = self.tracker.response(correlation_id, body, self.now)
        # At a gateway it may pass for that of a request which a probe gave up.
        is_late = any(type(e) is Orphan and e.cause == "late" for e in events)
        if self.now >= self.spoiled_from and self.is_lasting_since == NEVER and is_waited_for and not is_late:
            self.is_lasting_since = self.now
            self.patience = self.tracker.silence.patience(NEVER) + self.policy.reorder_grace_ms / 1000
        elif self.is_gateway and self.is_lasting_since < self.now:
            self.is_lasting_since = self.now  # bytes that arrive are progress of a trial
        if throttle and any(type(e) is Completed for e in events):
            # KIP-219: nothing is read from us before that.
            self.tracker.silence.progress(self.now + throttle)
            self.happened["throttle"] += 1
        self.unbelieved += not (is_late or is_of_a_probe or any(type(e) is Completed for e in events))
        self.act(events)
        if is_of_a_probe and not is_late:
            self.unbelieved = 0

    # -- acting, as the binding does -----------------------------------------

    def act(self, events: list[Event]) -> None:
        is_retired = False
        for event in events:
            if self.is_told:
                print(f"{self.now - 100:9.4f}    {event}")
            kind = type(event)
            self.happened[event.kind] += 1
            if kind is Completed:
                self.completed(event)  # type: ignore[arg-type]
            elif self.is_disproved and (kind is Probe or "later response" in getattr(event, "reason", "")):
                self.broken("J", f"after a late answer: {event}")
            elif kind is Failed:
                self.failed(event)  # type: ignore[arg-type]
            elif kind is Requeued:
                self.requeued(event)  # type: ignore[arg-type]
                if not self.tracker.is_retired:
                    self.write(event.request)  # type: ignore[attr-defined]
            elif kind is Probe:
                if not self.tracker.is_retired:
                    self.write(event.request)  # type: ignore[attr-defined]
            elif kind is Orphan:
                self.happened[f"orphan:{event.cause}"] += 1  # type: ignore[attr-defined]
                self.is_disproved |= event.correlation_id in self.silent_ids and self.arrived != PROBE_BODY
            elif kind is Lost:
                self.lost_ids.add(event.correlation_id)
                unheard = [e for e in events if type(e) is Lost and e.correlation_id not in self.heard]
                if event in unheard and self.unbelieved < len(unheard):
                    self.silent_ids.add(event.correlation_id)
            elif kind is Retired:
                self.happened["timeout" if event.is_timeout else "mismatch"] += 1  # type: ignore[attr-defined]
                if not event.is_timeout and self.policy.max_resends and self.is_nothing_but_odd():  # type: ignore[attr-defined]
                    self.broken("K", f"a server that means it is left: {event}")
                if self.allowed == 1 and self.now > self.is_lasting_since + self.patience + 0.35:
                    self.broken("I", f"out of step for {self.now - self.is_lasting_since:.3f} s")
                is_retired = True
        if is_retired and not self.is_over:
            self.close()

    def close(self) -> None:
        self.is_over = True
        self.act(self.tracker.close(ConnectionError("retired")))

    def settle(self, entry: InFlightRequest, how: str) -> None:
        token = entry.request.token
        if token in self.settled:
            self.broken("A", f"request {token} was {self.settled[token]}, then {how}")
        if self.now > self.deadline_of[token] + 1e-6:
            self.broken("A", f"request {token} is {how} {self.now - self.deadline_of[token]:.3f} s late")
        self.settled[token] = how

    def completed(self, event: Completed) -> None:
        entry = event.request
        request = entry.request
        self.settle(entry, "completed")
        token, error = event.response
        if token != request.token:
            is_lied_about = bool(self.ids[request.token] & self.liars)  # a late one completes what was sent again, too
            if self.ids[request.token] & self.odd_ids and token == request.token | ODD_BIT << 24:
                self.believed(entry, token)
            elif self.unpaired is not None and is_lied_about and token >= 0 and not request.tells:
                self.happened["in the place of a lost one"] += 1  # its id and its turn are right, and it names nothing
                self.is_lasting_since = NEVER  # nothing shows yet
            elif (
                (request.tells and not self.odd_ids)
                or not is_lied_about
                or self.faults + self.is_given_up(token, request) < 2
            ):
                self.broken("B", f"request {request.token} is completed by the answer of {token}")
            else:
                self.happened["fooled"] += 1
        elif error and entry.resends < self.policy.max_resends:
            self.broken("C", f"batch {token} is refused as out of turn after {entry.resends} repeats")
        for key in request.order_keys:
            for other in self.tracker:
                if other.order < entry.order and key in other.request.order_keys:
                    self.broken("C", f"request {request.token} overtakes {other.request.token}")

    def is_given_up(self, token: int, request: Request) -> bool:
        """Whether a gateway's answer to a probe had one of both given up: a fault beside the wrong id."""
        ids = self.ids[request.token] | self.ids.get(token, set())
        return self.is_gateway and not ids.isdisjoint(self.lost_ids)

    def is_nothing_but_odd(self) -> bool:
        """The server means something else for good, and nothing of it was taken for another request's, or waited for."""
        return self.is_odd and self.allowed == 1 and not self.happened["orphan"] and not self.happened["lost"]

    def believed(self, entry: InFlightRequest, token: int) -> None:
        """An answer of something else was: a repeat said the same, or there may be none, or no proof came in time."""
        self.happened["believed"] += 1
        if self.is_out_of_patience:
            self.happened["believed without proof"] += 1
            return
        request = entry.request
        has_yielded = request.row is rows.COMMIT and self.newest_commit[request.key] > request.token
        if has_yielded or not entry.action.is_resend:
            return
        is_said = entry.said is not None and entry.said.names == token
        repeats = entry.resends - entry.resends_when_said
        is_said_again = is_said and (len(self.ids[request.token] & self.odd_ids) > 1 or repeats > 1)
        is_alone = self.allowed == 1 and not self.is_gateway
        if not is_said_again or (is_alone and not self.is_odd):
            self.broken("B", f"request {request.token} is completed by an answer of something else")
        if self.is_nothing_but_odd() and entry.resends > 1:
            self.broken("K", f"request {request.token} is sent {entry.resends + 1} times to a server that means it")

    def failed(self, event: Failed) -> None:
        entry = event.request
        self.settle(entry, "failed")
        self.happened[f"verdict {event.verdict.name}"] += 1
        if self.is_gateway and not self.faults and not self.tracker.is_retired and not entry.request.row.is_read:
            self.broken("J", f"request {entry.request.token} was slow, and is called {event.verdict}")
        if entry.action is Action.OUTCOME_UNKNOWN and entry.first_sent_at >= 0:
            if event.verdict is not Verdict.OUTCOME_UNKNOWN:
                self.broken("D", f"request {entry.request.token} may have run and is called {event.verdict}")
        elif event.verdict is Verdict.OUTCOME_UNKNOWN:
            self.broken("D", f"request {entry.request.token} has a known outcome and is called unknown")

    def requeued(self, event: Requeued) -> None:
        entry = event.request
        token = entry.request.token
        if self.now >= self.deadline_of[token]:
            self.broken("E", f"request {token} is sent again after its deadline")
        if entry.resends > self.policy.max_resends:
            self.broken("E", f"request {token} is sent again {entry.resends} times")
        if entry.request.row is rows.COMMIT and self.newest_commit[entry.request.key] > token:
            self.broken("D", f"commit {token} is sent again after {self.newest_commit[entry.request.key]}")
        if any(other.action is Action.CLOSE for other in self.tracker):
            self.broken("G", f"request {token} is sent again while authenticating")

    # -- the end --------------------------------------------------------------

    def finish(self) -> None:
        tracker, happened = self.tracker, self.happened
        if not self.is_over:
            # A probe whose answer was lost may stay until the next answer overtakes it; nobody waits for it.
            if len(tracker) or tracker.next_wakeup(self.now) is not None:
                self.broken("H", f"{len(tracker)} requests are left, and something is due")
            self.close()
        if len(self.settled) != len(self.entries):
            self.broken("A", f"{len(self.entries) - len(self.settled)} requests were never settled")
        if tracker._requests or len(tracker) or tracker.close(None):
            self.broken("H", "something is left after the end")
        for key, log in self.logs.items():
            if len(log) != len(set(log)) or log != sorted(log):
                self.broken("C", f"partition {key} holds {log}")
        for entry in self.entries:
            request = entry.request
            if request.row is rows.PRODUCE_IDEMPOTENT and self.settled[request.token] == "completed":
                is_there = request.token in self.logs.get(request.key, ())
                if not is_there and entry.resends < self.policy.max_resends and request.tells:
                    self.broken("C", f"batch {request.token} was acknowledged and is not in the log")
        kinds = ("lost", "orphan", "reordered", "mismatch", "probe")
        wrong = sum(happened[kind] for kind in kinds)
        if not self.faults and not self.is_gateway and wrong:
            self.broken("F", f"without a fault: {dict(happened)}")
        if not self.faults and not self.is_gateway and self.policy.max_resends and happened["requeued"]:
            self.broken("F", f"without a fault {happened['requeued']} requests were repeated")
        # A probe that is given up may be answered late, like any other request; and a repeat after its first answer.
        if happened["orphan"] > self.orphan_makers + happened["lost"] + happened["probe"] + happened["requeued"]:
            self.broken("F", f"{happened['orphan']} orphans from {self.orphan_makers} faults")

    def broken(self, law: str, what: str) -> NoReturn:
        replay = f"PYTHONPATH=tests python -m support.simulation {self.seed}"
        raise Broken(f"seed {self.seed}, invariant {law}: {what}    {replay}")


def run_many(first: int, count: int, most: int = 20) -> tuple[Counter[str], list[str]]:
    """Runs seeds; what happened in all of them, and the messages of those that broke."""
    happened: Counter[str] = Counter()
    broken: list[str] = []
    for seed in range(first, first + count):
        try:
            happened += Simulation(seed).run().happened
        except Broken as error:
            broken.append(str(error))
        except Exception as error:  # a tracker that raises is broken as well
            broken.append(f"seed {seed}: {type(error).__name__}: {error}")
        if len(broken) >= most:
            break
    return happened, broken


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--first"]:
        happened, broken = run_many(int(arguments[1]), int(arguments[3]))
        print(json.dumps({"happened": happened, "broken": broken}))
        return 1 if broken else 0
    simulation = Simulation(int(arguments[0]), is_told=True).run()
    print(f"every invariant holds; {dict(simulation.happened)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
