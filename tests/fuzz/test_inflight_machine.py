"""The tracker under any order of requests, answers, lies and time.

Invariant A: every request is settled exactly once.
Invariant B: whatever was requeued is what was sent, and only while the policy allows it.
Invariant C: an answer completes a request only if it was made for it (its body carries a token),
or if the liar used the id of a request of the same API before that one's own answer came.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from tolerant_client import apis
from tolerant_client.events import Completed, Event, Failed, Probe, Requeued, Retired
from tolerant_client.inflight import InFlightRequests
from tolerant_client.lifecycle import InFlightRequest
from tolerant_client.policy import RecoveryPolicy

API_KEYS = st.sampled_from([apis.PRODUCE, apis.FETCH, apis.METADATA, apis.LIST_OFFSETS, apis.OFFSET_COMMIT, 19])
FIRST_IDS = st.sampled_from([0, 5, 2**31 - 12, 2**31 - 1])


class Request:
    """A request that takes only an answer made for its own API."""

    API_VERSION = 1

    def __init__(self, token: int, api_key: int, keys: tuple[str, ...], resend_safe: bool | None) -> None:
        self.token = token
        self.API_KEY = api_key
        self.name = f"Api{api_key}"
        self.order_keys = keys
        self.resend_safe = resend_safe
        self.expected_ms = 500.0 if api_key == apis.FETCH else 0.0

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[apis.Buffer]:
        return []

    def decode_response(self, body: memoryview) -> int:
        api_key, token = body[0], int.from_bytes(body[1:], "big")
        if api_key != self.API_KEY:
            raise ValueError("another API's answer")
        return token


def answer_of(entry: InFlightRequest) -> memoryview:
    if entry.is_probe:
        return memoryview(b"\0\0\0\0\0\0")
    return memoryview(bytes([entry.request.API_KEY]) + entry.request.token.to_bytes(4, "big"))


class TrackerMachine(RuleBasedStateMachine):
    """Sends, answers, drops, doubles, misnumbers, waits; then closes."""

    sent_ids = Bundle("sent_ids")

    @initialize(first_id=FIRST_IDS, max_mismatches=st.sampled_from([2, 64]), resend_plain=st.booleans())
    def start(self, first_id: int, max_mismatches: int, resend_plain: bool) -> None:
        self.policy = RecoveryPolicy(max_mismatches=max_mismatches, resend_plain_produce=resend_plain, max_resends=3)
        self.store = InFlightRequests(self.policy, first_id)
        self.now = 100.0
        self.requests: list[InFlightRequest] = []
        self.settled: Counter[int] = Counter()
        self.unsent: list[InFlightRequest] = []
        self.answered: dict[int, memoryview] = {}  # ids the "broker" has answered truthfully
        self.liars: set[int] = set()  # ids under which somebody lied
        self.is_closed = False

    def act(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Completed):
                self.settled[event.request.request.token] += 1
                is_own = event.response == event.request.request.token
                assert is_own or event.correlation_id in self.liars
                assert event.request.sent_at >= 0
            elif isinstance(event, Failed):
                self.settled[event.request.request.token] += 1
            elif isinstance(event, Requeued):
                assert event.request.resends <= self.policy.max_resends
                assert event.request.deadline > self.now
                self.unsent.append(event.request)
            elif isinstance(event, Probe):
                self.unsent.append(event.request)
        if any(isinstance(event, Retired) for event in events):
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self.act(self.store.close(ConnectionError("closed"), self.now))
        assert all(self.settled[entry.request.token] == 1 for entry in self.requests)
        assert len(self.store) == 0

    @precondition(lambda self: not self.is_closed)
    @rule(api_key=API_KEYS, key=st.sampled_from(["", "a", "b"]), resend_safe=st.sampled_from([None, True, False]))
    def send(self, api_key: int, key: str, resend_safe: bool | None) -> None:
        request = Request(len(self.requests), api_key, (key,) if key else (), resend_safe)
        entry = self.store.queue(request, self.now + 30.0)
        self.requests.append(entry)
        self.unsent.append(entry)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def write(self) -> None:
        waiting, self.unsent = self.unsent, []
        for entry in waiting:
            self.act(self.store.sent(entry, self.now))

    def in_flight(self) -> list[InFlightRequest]:
        return [entry for entry in self.store._requests.values() if entry.is_unanswered]

    def answer(self, entry: InFlightRequest) -> None:
        body = answer_of(entry)
        self.answered[entry.correlation_id] = body
        self.act(self.store.response(entry.correlation_id, body, self.now))

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule()
    def answer_the_oldest(self) -> None:
        self.answer(self.in_flight()[0])

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule(data=st.data())
    def answer_any(self, data: Any) -> None:
        self.answer(data.draw(st.sampled_from(self.in_flight())))

    @precondition(lambda self: not self.is_closed and self.answered)
    @rule(data=st.data())
    def answer_again(self, data: Any) -> None:
        correlation_id = data.draw(st.sampled_from(sorted(self.answered)))
        self.act(self.store.response(correlation_id, self.answered[correlation_id], self.now))

    @precondition(lambda self: not self.is_closed and self.in_flight())
    @rule(data=st.data(), correlation_id=st.sampled_from([-1, 3, 77, 2**31 - 1]))
    def answer_under_a_strange_id(self, data: Any, correlation_id: int) -> None:
        body = answer_of(data.draw(st.sampled_from(self.in_flight())))
        self.liars.add(correlation_id)
        self.act(self.store.response(correlation_id, body, self.now))

    @precondition(lambda self: not self.is_closed and len(self.in_flight()) > 1)
    @rule(data=st.data())
    def answer_under_anothers_id(self, data: Any) -> None:
        entries = self.in_flight()
        body = answer_of(data.draw(st.sampled_from(entries)))
        correlation_id = data.draw(st.sampled_from(entries)).correlation_id
        self.liars.add(correlation_id)
        self.act(self.store.response(correlation_id, body, self.now))

    @precondition(lambda self: not self.is_closed)
    @rule(seconds=st.sampled_from([0.001, 0.05, 0.12, 1.0, 6.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.store.expired(self.now))

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

    @precondition(lambda self: not self.is_closed)
    @rule()
    def hang_up(self) -> None:
        self.close()

    @precondition(lambda self: self.is_closed)
    @rule()
    def close_again(self) -> None:
        assert self.store.close(None, self.now) == []
        assert self.store.response(1, memoryview(b"\0"), self.now) == []
        assert self.store.expired(self.now) == []

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
    def bookkeeping_agrees_with_the_requests(self) -> None:
        if not hasattr(self, "store"):
            return
        entries = self.store._requests.values()
        assert self.store._probes == sum(entry.is_probe for entry in entries)
        assert self.store._irregular == sum(1 for e in entries if e.is_held or e.resends)
        assert all(entry.correlation_id == key for key, entry in self.store._requests.items())

    def teardown(self) -> None:
        if hasattr(self, "store") and not self.is_closed:
            self.close()


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
