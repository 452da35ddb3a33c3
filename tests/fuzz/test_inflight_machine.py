"""The tracker under any order of requests, answers, lies and time.

Invariant A: every request is settled exactly once.
Invariant B: whatever was requeued is what was sent, under a new id, and only while the policy allows it.
Invariant C: an answer completes a request only if it was made for it (its body carries a token),
or if the liar used the id of a request of the same API before that one's own answer came.
Invariant D: requests that share an order key are completed in the order of sending, resends included,
and one that yields to newer ones is never sent again after a newer one.
Invariant E: what may have run and cannot be repeated is called unknown, and nothing else is.
Invariant F: while a connection is set up every mismatch ends it, and nothing is sent again.
Invariant G: an id that was settled, lost or never asked about is named as such, and the budget of
mismatches is kept.
Invariant H: on trial nothing is completed, and nothing is sent again; one probe is in flight at most.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tolerant_client.tracker.correlation import SPACE
from tolerant_client.tracker.events import Completed, Event, Failed, Lost, Orphan, Probe, Requeued, Retired
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.lifecycle import InFlightRequest, State, Verdict
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules import apis

ROWS = {
    "idempotent": (apis.PRODUCE, rows.PRODUCE_IDEMPOTENT),
    "plain": (apis.PRODUCE, rows.PRODUCE_PLAIN),
    "fetch": (apis.FETCH, rows.FETCH_ALONE),
    "session": (apis.FETCH, rows.FETCH_IN_SESSION),
    "metadata": (apis.METADATA, rows.METADATA_REFRESH),
    "offsets": (apis.LIST_OFFSETS, rows.READ_ONLY),
    "coordinator": (apis.FIND_COORDINATOR, rows.READ_ONLY),
    "commit": (apis.OFFSET_COMMIT, rows.COMMIT),
    "create": (apis.CREATE_TOPICS, rows.TOPIC_CREATE),
}
FIRST_IDS = st.sampled_from([0, 5, SPACE - 3, SPACE - 1, 2**31 - 1])
ANY_ID = st.sampled_from([-1, -(2**31), 0, 3, 77, SPACE, 2**31 - 1])
OUT_OF_TURN = 45
NOTHING = memoryview(b"\0\0\0\0\0\0")


class Request(apis.Request):
    """A request that takes only an answer made for its own API; `tells` if only its very own."""

    row = order_keys = yields_to_newer = None  # its own

    def __init__(self, token: int, kind: str, keys: tuple[str, ...], tells: bool) -> None:
        self.token = token
        self.API_KEY, self.row = ROWS[kind]
        self.API_VERSION = 1
        self.name = kind
        self.order_keys = keys
        self.yields_to_newer = self.row.yields_to_newer
        self.expected_ms = 500.0 if self.API_KEY == apis.FETCH else 0.0
        self.tells = tells

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[apis.Buffer]:
        return []

    def decode_response(self, body: memoryview) -> tuple[int, int]:
        if len(body) != 6 or body[0] != self.API_KEY + 1:
            raise ValueError("another API's answer")
        token = int.from_bytes(body[1:5], "big")
        if self.tells and token != self.token:
            raise apis.OtherSubject("another request's answer", (token, body[5]), token)
        return token, body[5]

    def is_out_of_turn(self, response: tuple[int, int]) -> bool:
        return response[1] == OUT_OF_TURN


class Question(apis.Request):
    """What a probe asks."""

    name, API_KEY, API_VERSION, expected_ms = "question", apis.METADATA, 1, 0.0
    expect_response = frame_buffers = None  # it is written by hand
    yields_to_newer = False

    def decode_response(self, body: memoryview) -> None:
        if body != NOTHING:
            raise ValueError("not an answer about nothing")


class SetupRequest(Request):
    """The connection's own: the first ApiVersions, or a SASL exchange."""

    def __init__(self, token: int, is_sasl: bool) -> None:
        super().__init__(token, "metadata", (), False)
        self.API_KEY = apis.SASL_AUTHENTICATE if is_sasl else apis.API_VERSIONS
        self.row = rows.AUTHENTICATION if is_sasl else rows.FIRST_REQUEST
        self.name = "setup"


def answer_of(entry: InFlightRequest, error: int = 0) -> memoryview:
    request = entry.request
    if isinstance(request, Question):
        return NOTHING
    return memoryview(bytes([request.API_KEY + 1]) + request.token.to_bytes(4, "big") + bytes([error]))


class TrackerMachine(RuleBasedStateMachine):
    """Sends, answers, drops, doubles, misnumbers, spoils, throttles, waits; then closes."""

    @initialize(
        first_id=FIRST_IDS,
        max_mismatches=st.sampled_from([64, 64, 3, 0]),
        max_resends=st.sampled_from([3, 3, 1, 0]),
        resend_plain=st.booleans(),
        has_question=st.sampled_from([True, True, True, False]),
    )
    def start(
        self, first_id: int, max_mismatches: int, max_resends: int, resend_plain: bool, has_question: bool
    ) -> None:
        self.policy = RecoveryPolicy(
            max_mismatches=max_mismatches, resend_plain_produce=resend_plain, max_resends=max_resends
        )
        self.first_id = first_id
        self.has_question = has_question
        self.now = 100.0
        self.connect()

    def connect(self) -> None:
        self.store = InFlightRequests(self.policy, self.first_id, Question() if self.has_question else None)
        self.requests: list[InFlightRequest] = []
        self.settled: Counter[int] = Counter()
        self.unsent: list[InFlightRequest] = []
        self.answered: dict[int, memoryview] = {}  # ids the "broker" has answered truthfully
        self.liars: set[int] = set()  # ids under which somebody lied
        self.unasked: set[int] = set()
        self.probe_ids: set[int] = set()
        self.ids: dict[int, list[int]] = {}  # by token: every id it had
        self.deadlines: dict[int, float] = {}
        self.newest: dict[str, int] = {}  # by order key: the newest commit that was sent
        self.mismatches: list[float] = []
        self.is_closed = False

    # -- acting, as the binding does -------------------------------------------

    def act(self, events: list[Event], cause: int | None = None) -> None:
        is_setup = any(isinstance(entry.request, SetupRequest) for entry in self.store)
        if self.store._trial is not None:
            assert not any(isinstance(event, Completed | Requeued | Lost) for event in events)
        for event in events:
            if isinstance(event, Completed):
                self.completed(event)
            elif isinstance(event, Failed):
                self.failed(event)
            elif isinstance(event, Requeued):
                assert not is_setup
                self.requeued(event)
            elif isinstance(event, Probe):
                assert isinstance(event.request.request, Question)
                self.unsent = [entry for entry in self.unsent if not isinstance(entry.request, Question)]
                self.probe_ids.add(event.correlation_id)
                self.unsent.append(event.request)
            elif isinstance(event, Orphan):
                self.orphan(event, cause)
            elif isinstance(event, Lost):
                self.mismatches.append(self.now)
        recent = [at for at in self.mismatches if at >= self.now - self.policy.mismatch_window_ms / 1000]
        is_retired = any(isinstance(event, Retired) for event in events)
        if len(recent) > self.policy.max_mismatches:
            assert is_retired or self.is_closed
        assert is_retired <= self.store.is_retired
        if is_retired:
            assert sum(isinstance(event, Retired) for event in events) == 1
            self.close()

    def completed(self, event: Completed) -> None:
        entry = event.request
        request = entry.request
        self.settled[request.token] += 1
        token, _ = event.response
        # One that speaks of something else is believed where no repeat is safe, or when a repeat brings the same.
        is_meant = (
            entry.said is not None and entry.said.names == token
            if entry.action.is_resend
            else entry.odd is not None and entry.odd.names == token
        )
        assert token == request.token or is_meant or (not request.tells and event.correlation_id in self.liars)
        assert entry.sent_at >= 0
        for other in self.store:
            assert other.order > entry.order or not set(other.request.order_keys) & set(request.order_keys)

    def failed(self, event: Failed) -> None:
        entry = event.request
        self.settled[entry.request.token] += 1
        may_be_unknown = entry.request.row.action is apis.Action.OUTCOME_UNKNOWN and entry.first_sent_at >= 0
        if entry.request.row is rows.PRODUCE_PLAIN and self.policy.resend_plain_produce:
            may_be_unknown = False
        assert (event.verdict is Verdict.OUTCOME_UNKNOWN) == may_be_unknown

    def requeued(self, event: Requeued) -> None:
        entry = event.request
        request = entry.request
        assert entry.resends <= self.policy.max_resends
        assert self.deadlines[request.token] == entry.deadline > self.now
        assert event.correlation_id == entry.correlation_id
        assert entry.correlation_id not in self.ids[request.token]
        self.ids[request.token].append(entry.correlation_id)
        assert request.row.action.is_resend or (request.row is rows.PRODUCE_PLAIN and self.policy.resend_plain_produce)
        if request.yields_to_newer:
            assert all(self.newest.get(key, -1) <= request.token for key in request.order_keys)
        self.unsent.append(entry)

    def orphan(self, event: Orphan, cause: int | None) -> None:
        assert cause is not None, "time alone makes no orphan"
        if event.cause == "unasked":
            assert cause in self.unasked
            return
        self.mismatches.append(self.now)
        drawn = {n for ids in self.ids.values() for n in ids} | self.unasked | self.probe_ids
        if event.cause == "unknown":
            assert cause not in drawn
        elif event.cause == "late":
            assert cause in drawn

    def close(self) -> None:
        self.is_closed = True
        self.unsent.clear()
        self.act(self.store.close(ConnectionError("closed")))
        assert all(self.settled[entry.request.token] == 1 for entry in self.requests)
        assert len(self.store) == 0
        assert self.store.next_wakeup(self.now) is None

    # -- what a caller does -----------------------------------------------------

    def queue(self, request: Request, timeout: float) -> None:
        entry = self.store.queue(request, self.now + timeout)
        self.deadlines[request.token] = self.now + timeout
        self.ids[request.token] = [entry.correlation_id]
        assert 0 <= entry.correlation_id < SPACE
        self.requests.append(entry)
        self.unsent.append(entry)

    @precondition(lambda self: not self.is_closed)
    @rule(
        kinds=st.lists(st.sampled_from(sorted(ROWS)), min_size=1, max_size=4),
        key=st.sampled_from(["", "a", "b"]),
        tells=st.booleans(),
        timeout=st.sampled_from([30.0, 30.0, 30.0, 0.2]),
        is_written=st.booleans(),
    )
    def send(self, kinds: list[str], key: str, tells: bool, timeout: float, is_written: bool) -> None:
        for kind in kinds:
            self.queue(Request(len(self.requests), kind, (key,) if key else (), tells), timeout)
        if is_written:
            self.put_on_the_wire()

    @precondition(lambda self: not self.is_closed and not self.requests)
    @rule(is_sasl=st.booleans())
    def set_up(self, is_sasl: bool) -> None:
        self.queue(SetupRequest(len(self.requests), is_sasl), 30.0)
        self.put_on_the_wire()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def write(self) -> None:
        self.put_on_the_wire()

    def is_new(self, entry: InFlightRequest) -> bool:
        return not isinstance(entry.request, Question) and entry.first_sent_at < 0

    def put_on_the_wire(self) -> None:
        waiting, self.unsent = self.unsent, []
        for entry in waiting:
            if entry.request.yields_to_newer:
                for key in entry.request.order_keys:
                    self.newest[key] = max(self.newest.get(key, -1), entry.request.token)
            self.act(self.store.sent(entry, self.now))

    @precondition(lambda self: not self.is_closed and any(self.is_new(e) for e in self.unsent))
    @rule()
    def take_back(self) -> None:
        """Its bytes could not be made: it was never sent."""
        entry = next(e for e in self.unsent if self.is_new(e))
        self.unsent.remove(entry)
        self.store.withdraw(entry)
        self.settled[entry.request.token] += 1

    @precondition(lambda self: not self.is_closed)
    @rule(is_answered=st.booleans())
    def send_without_answer(self, is_answered: bool) -> None:
        """acks=0; Event Hubs answers it all the same."""
        correlation_id = self.store.ids.draw_unanswered()
        self.unasked.add(correlation_id)
        if is_answered:
            before = len(self.store)
            self.act(self.store.response(correlation_id, memoryview(b"answer"), self.now), correlation_id)
            assert self.is_closed or len(self.store) == before

    # -- what a broker and the wire do ------------------------------------------

    def in_flight(self) -> list[InFlightRequest]:
        return [entry for entry in self.store._requests.values() if entry.is_unanswered]

    def held(self) -> list[InFlightRequest]:
        return [entry for entry in self.store._requests.values() if entry.state is State.HELD]

    def answer(self, entry: InFlightRequest, error: int = 0) -> None:
        body = answer_of(entry, error)
        self.answered[entry.correlation_id] = body
        self.act(self.store.response(entry.correlation_id, body, self.now), entry.correlation_id)

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule()
    def answer_the_oldest(self) -> None:
        oldest = self.in_flight()[0]
        self.answer(oldest)
        if not isinstance(oldest.request, Question) and not self.is_closed and not oldest.request.order_keys:
            is_doubted = any(entry.state is State.DOUBTED for entry in self.store)
            assert self.settled[oldest.request.token] == 1 or oldest.state is State.HELD or is_doubted

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule(data=st.data(), error=st.sampled_from([0, 0, OUT_OF_TURN]))
    def answer_any(self, data: Any, error: int) -> None:
        self.answer(data.draw(st.sampled_from(self.in_flight())), error)

    @precondition(lambda self: not self.is_closed and self.answered)
    @rule(data=st.data())
    def answer_again(self, data: Any) -> None:
        correlation_id = data.draw(st.sampled_from(sorted(self.answered)))
        self.act(self.store.response(correlation_id, self.answered[correlation_id], self.now), correlation_id)

    @precondition(lambda self: not self.is_closed and self.held())
    @rule(data=st.data(), is_readable=st.booleans())
    def answer_a_held_one_otherwise(self, data: Any, is_readable: bool) -> None:
        entry = data.draw(st.sampled_from(self.held()))
        body = answer_of(entry, 7) if is_readable else memoryview(b"spoiled")
        is_setup = any(isinstance(other.request, SetupRequest) for other in self.store)
        self.act(self.store.response(entry.correlation_id, body, self.now), entry.correlation_id)
        if not is_readable and not is_setup and not self.is_closed:
            assert entry.state is State.HELD, "what does not decode may not unseat an answer that did"

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule(data=st.data(), body=st.sampled_from([b"", b"\0", b"spoiled"]))
    def spoil_an_answer(self, data: Any, body: bytes) -> None:
        """A body that does not decode never settles its request by itself."""
        entry = data.draw(st.sampled_from(self.in_flight()))
        self.act(self.store.response(entry.correlation_id, memoryview(body), self.now), entry.correlation_id)
        if not self.is_closed and not isinstance(entry.request, Question):
            assert not self.settled[entry.request.token]

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule(data=st.data(), correlation_id=ANY_ID)
    def answer_under_a_strange_id(self, data: Any, correlation_id: int) -> None:
        body = answer_of(data.draw(st.sampled_from(self.in_flight())))
        self.liars.add(correlation_id)
        self.act(self.store.response(correlation_id, body, self.now), correlation_id)

    @precondition(lambda self: not self.is_closed and len(self.in_flight()) > 1)
    @rule(data=st.data())
    def answer_under_anothers_id(self, data: Any) -> None:
        entries = self.in_flight()
        body = answer_of(data.draw(st.sampled_from(entries)))
        correlation_id = data.draw(st.sampled_from(entries)).correlation_id
        self.liars.add(correlation_id)
        self.act(self.store.response(correlation_id, body, self.now), correlation_id)

    @precondition(lambda self: not self.is_closed)
    @rule(throttled=st.sampled_from([0.0, 0.5, 3.0]))
    def make_progress(self, throttled: float) -> None:
        """Bytes arrive, or the broker says that it does not read for a while: no probe before that."""
        self.store.silence.progress(self.now + throttled)
        if self.store._trial is None:
            assert self.store._probe_due() > self.now + throttled
        else:
            assert self.store.silence.trial_ends(self.store._trial) > self.now + throttled

    # -- time ---------------------------------------------------------------------

    @precondition(lambda self: not self.is_closed)
    @rule(seconds=st.sampled_from([0.001, 0.05, 0.12, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.store.expired(self.now))
        assert self.is_closed or all(self.deadlines[e.request.token] > self.now for e in self.store)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def wait_for_the_wakeup(self) -> None:
        due = self.store.next_wakeup(self.now)
        if due is None:
            return
        self.now = max(self.now, due)
        self.act(self.store.expired(self.now))
        again = None if self.is_closed else self.store.next_wakeup(self.now)
        # The binding arms one timer for this: due for ever would be a busy loop.
        assert again is None or again > self.now or self.store.expired(self.now) == []

    @precondition(lambda self: not self.is_closed and len(self.requests) > 12)
    @rule()
    def hang_up(self) -> None:
        self.close()

    @precondition(lambda self: self.is_closed)
    @rule()
    def close_again(self) -> None:
        assert self.store.close(None) == []
        assert self.store.response(1, memoryview(b"\0"), self.now) == []
        assert self.store.expired(self.now) == []

    @precondition(lambda self: self.is_closed)
    @rule()
    def connect_again(self) -> None:
        self.connect()

    @invariant()
    def each_request_is_settled_exactly_once(self) -> None:
        if not hasattr(self, "store"):
            return
        waiting = {entry.request.token for entry in self.store}
        for entry in self.requests:
            token = entry.request.token
            assert self.settled[token] == (0 if token in waiting else 1)
        assert len(self.store) == len(waiting)

    @invariant()
    def somebody_looks_after_every_request(self) -> None:
        """No request may wait without a time at which something happens to it."""
        if hasattr(self, "store") and not self.is_closed and len(self.store):
            due = self.store.next_wakeup(self.now)
            assert due is not None
            assert due <= max(self.now, max(self.deadlines[entry.request.token] for entry in self.store))

    @invariant()
    def bookkeeping_agrees_with_the_requests(self) -> None:
        if not hasattr(self, "store"):
            return
        entries = self.store._requests.values()
        assert [e for e in entries if isinstance(e.request, Question)] == [
            e for e in (self.store._requests.probe,) if e
        ]
        if self.store._settlement.is_regular:
            assert self.store._trial is None
            assert not any(e.state is State.HELD or e.resends for e in entries)
        if self.store._trial is None:
            assert self.is_closed or not any(e.state is State.DOUBTED for e in entries)
        assert all(entry.correlation_id == key for key, entry in self.store._requests.items())

    def teardown(self) -> None:
        if hasattr(self, "store") and not self.is_closed:
            self.close()


TestTracker = TrackerMachine.TestCase
# A loaded machine is slow; that says nothing about the tracker.
TestTracker.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
