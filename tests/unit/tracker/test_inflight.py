"""The tracker, rule by rule (T1 to T8 of DESIGN.md), with time as an argument."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tolerant_client.tracker.correlation import SPACE, CorrelationIds
from tolerant_client.tracker.events import (
    Completed,
    Event,
    Failed,
    Lost,
    Orphan,
    Probe,
    Reordered,
    Requeued,
    Retired,
)
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.lifecycle import TRANSITIONS, IllegalTransition, InFlightRequest, Input, State, Verdict
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.probe_timer import RoundTrips
from tolerant_client.tracker.rules import apis

OK = memoryview(b"ok")
HANDED_UP = 999  # an API without a row
PROBE_ANSWER = memoryview(b"nothing")


class FakeRequest(apis.Request):
    """A request whose answer is any body but b"bad" and a probe's; b"odd..." speaks of something else."""

    API_VERSION: int | None = 1
    order_keys: tuple[Any, ...] = ()

    def __init__(
        self,
        api_key: int = HANDED_UP,
        *,
        keys: tuple[Any, ...] = (),
        resend_safe: bool | None = None,
        expected_ms: float = 0.0,
        version: int = 1,
    ) -> None:
        self.API_KEY = api_key
        self.API_VERSION = version
        self.name = f"Api{api_key}"
        self.order_keys = self.keys = keys
        self.resend_safe = resend_safe
        self.expected_ms = expected_ms

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[apis.Buffer]:
        return [b"\0" * 12]

    def decode_response(self, body: memoryview) -> bytes:
        if body in (b"bad", PROBE_ANSWER):
            raise ValueError("bytes left over")
        if body.tobytes().startswith(b"odd") or (body == b"for b" and self.keys != ("b",)):
            raise apis.OtherSubject("speaks of something else", bytes(body), bytes(body))
        if body == b"of nobody":
            raise apis.OtherSubject("speaks of nobody", None, bytes(body))
        return bytes(body)

    def is_out_of_turn(self, response: bytes) -> bool:
        return response == b"45"


class Question(FakeRequest):
    """What a probe asks: only one answer is its own."""

    def decode_response(self, body: memoryview) -> bytes:
        if body != PROBE_ANSWER:
            raise ValueError("not an answer about nothing")
        return bytes(body)


def tracker(
    first_id: int = 1000, question: FakeRequest | None = Question(apis.METADATA), **policy: Any
) -> InFlightRequests:
    return InFlightRequests(RecoveryPolicy(**policy), first_id, question)


def send(
    store: InFlightRequests, request: FakeRequest | None = None, now: float = 0.0, timeout: float = 30.0
) -> InFlightRequest:
    entry = store.queue(request or FakeRequest(), now + timeout)
    assert store.sent(entry, now) == []
    return entry


def resend(store: InFlightRequests, events: list[Event], now: float) -> None:
    """Writes what is to be written, as the binding does."""
    for event in events:
        if isinstance(event, (Requeued, Probe)):
            store.sent(event.request, now)


def of(kind: type[Event], events: list[Event]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def kinds(events: list[Event]) -> list[str]:
    return [e.kind for e in events]


# -- the table ----------------------------------------------------------------


@pytest.mark.parametrize(("state", "happened"), list(itertools.product(State, Input)))
def test_every_pair_of_state_and_input_is_in_the_table_or_refused(state: State, happened: Input) -> None:
    entry = InFlightRequest(FakeRequest(), 1, 0, 1.0, apis.Action.HAND_UP, None)
    entry.state = state
    if (state, happened) in TRANSITIONS:
        entry.move(happened)
        assert entry.state is TRANSITIONS[state, happened]
    else:
        with pytest.raises(IllegalTransition):
            entry.move(happened)
        assert entry.state is state


def test_finished_states_have_no_way_out() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in (State.COMPLETED, State.FAILED)]


def test_sending_twice_retires_the_connection() -> None:
    store = tracker()
    entry = send(store)
    assert kinds(store.sent(entry, 0.1)) == ["retired"]


def test_answer_before_sending_retires_the_connection() -> None:
    store = tracker()
    entry = store.queue(FakeRequest(), 30.0)
    assert kinds(store.response(entry.correlation_id, OK, 0.1)) == ["retired"]


# -- T1, T2 -------------------------------------------------------------------


def test_answer_to_the_oldest_completes_it() -> None:
    store = tracker()
    first, second = send(store), send(store)
    (event,) = store.response(first.correlation_id, OK, 0.25)
    assert isinstance(event, Completed)
    assert (event.request, event.response, event.latency) == (first, b"ok", 0.25)
    assert list(store) == [second]


GRACE = RecoveryPolicy().reorder_grace_ms / 1000
ROUND_TRIP = 0.001


def prove(store: InFlightRequests, now: float) -> list[Event]:
    """Lets the grace of a trial pass, and answers its probe: the stream is in step."""
    events = store.expired(now + GRACE)
    resend(store, events, now + GRACE)
    (probe,) = of(Probe, events)
    return store.response(probe.correlation_id, PROBE_ANSWER, now + GRACE + ROUND_TRIP)


def test_answer_that_overtakes_is_held_and_the_older_one_gets_a_grace() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.METADATA)), send(store, FakeRequest(apis.LIST_OFFSETS))
    assert store.response(later.correlation_id, OK, 1.0) == []
    assert store.next_wakeup(1.0) == pytest.approx(1.0 + GRACE)
    events = store.response(older.correlation_id, OK, 1.004)
    assert kinds(events) == ["reordered", "completed", "completed"]
    assert [e.request for e in of(Completed, events)] == [older, later]
    assert not store.is_doubtful
    assert len(store) == 0


def test_request_whose_answer_is_overtaken_is_lost_once_a_probe_is_answered() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.LIST_OFFSETS)), send(store, FakeRequest(apis.METADATA))
    store.response(later.correlation_id, OK, 1.0)
    events = prove(store, 1.0)
    assert kinds(events) == ["lost", "requeued", "completed"]
    assert older.state is State.REQUEUED


def test_own_answer_of_a_slow_request_shows_that_the_one_before_was_a_lie() -> None:
    store = tracker()
    older, later = send(store), send(store)
    assert store.response(later.correlation_id, memoryview(b"the older one's"), 1.0) == []
    events = store.response(later.correlation_id, memoryview(b"its own"), 1.001)
    assert kinds(events) == ["orphan", "probe"]
    resend(store, events, 1.001)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.002)
    assert of(Completed, events) == []
    assert [e.request for e in of(Failed, events)] == [older, later]


def test_requests_that_share_a_key_are_not_overtaken_even_across_a_resend() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(key, keys=("t-0",), resend_safe=True)) for key in (apis.PRODUCE, HANDED_UP))
    other = send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(later.correlation_id, OK, 1.0)
    store.response(other.correlation_id, OK, 1.0)
    events = prove(store, 1.0)
    assert kinds(events) == ["lost", "requeued", "completed"]
    assert [e.request for e in of(Completed, events)] == [other]
    resend(store, events, 1.1)
    events = store.response(older.correlation_id, OK, 1.2)
    assert [e.request for e in of(Completed, events)] == [older, later]


def test_answer_that_came_out_of_turn_is_asked_for_again_after_the_resend() -> None:
    store = tracker()
    older = send(store, FakeRequest(apis.FETCH, keys=("t-0",), resend_safe=True))
    later = send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True))
    store.response(later.correlation_id, memoryview(b"45"), 1.0)
    resend(store, prove(store, 1.0), 1.1)
    events = store.response(older.correlation_id, OK, 1.2)
    assert kinds(events) == ["completed", "requeued"]
    resend(store, events, 1.2)
    assert kinds(store.response(later.correlation_id, OK, 1.3)) == ["completed"]
    assert len(store) == 0


def test_of_two_answers_to_a_held_request_neither_is_believed() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.METADATA)), send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(later.correlation_id, OK, 1.0)
    events = store.response(later.correlation_id, OK, 1.0)
    assert [e.cause for e in of(Orphan, events)] == ["misfit"]
    resend(store, events, 1.0)
    assert of(Completed, store.response(older.correlation_id, OK, 1.01)) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.02)
    assert [e.request for e in of(Completed, events)] == [older]
    assert [e.request for e in of(Requeued, events)] == [later]


def answer_in_order(store: InFlightRequests, entries: list[InFlightRequest], ids: list[int]) -> list[Event]:
    """A broker's answers in the order of requests, each under the id of another one, then the probe's."""
    events = [e for at in ids for e in store.response(entries[at].correlation_id, OK, 1.0)]
    assert kinds(events) == ["orphan", "probe"]
    resend(store, events, 1.0)
    return store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.001)


@pytest.mark.parametrize(
    ("request_", "policy", "verdict"),
    [
        (FakeRequest(apis.PRODUCE), {}, Verdict.OUTCOME_UNKNOWN),
        (FakeRequest(apis.PRODUCE), {"retries_plain_produce": True}, Verdict.HAND_UP),
        (FakeRequest(HANDED_UP), {}, Verdict.HAND_UP),
        (FakeRequest(apis.PRODUCE, resend_safe=True), {}, None),
        (FakeRequest(apis.LIST_OFFSETS), {}, None),
    ],
)
def test_exchanged_ids_are_seen_by_their_order_and_neither_answer_is_believed(
    request_: FakeRequest, policy: dict[str, bool], verdict: Verdict | None
) -> None:
    store = tracker(**policy)
    entries = [send(store, request_) for _ in range(3)]
    events = answer_in_order(store, entries, [1, 0, 2])
    assert [e.request for e in of(Completed, events)] == [entries[2]]
    assert [e.request for e in of(Requeued, events)] == ([] if verdict else entries[:2])
    failed = [(e.request, e.verdict) for e in of(Failed, events)]
    assert failed == ([(entry, verdict) for entry in entries[:2]] if verdict else [])


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (FakeRequest(apis.PRODUCE), Verdict.OUTCOME_UNKNOWN),
        (FakeRequest(HANDED_UP), Verdict.HAND_UP),
        (FakeRequest(apis.PRODUCE, resend_safe=True), None),
        (FakeRequest(apis.LIST_OFFSETS), None),
    ],
)
def test_response_that_fits_an_older_request_too_is_believed_for_neither(
    request_: FakeRequest, verdict: Verdict | None
) -> None:
    """Behind a gateway the probe's response comes before the later one's own, and shows nothing of it."""
    store = tracker()
    entries = [send(store, request_) for _ in "ab"]
    assert store.response(entries[1].correlation_id, OK, 1.0) == []
    events = prove(store, 1.0)
    assert of(Completed, events) == []
    assert [e.request for e in of(Requeued, events)] == ([] if verdict else entries)
    assert [(e.request, e.verdict) for e in of(Failed, events)] == ([(e, verdict) for e in entries] if verdict else [])


def test_missing_response_costs_no_more_than_the_next_one() -> None:
    store = tracker()
    entries = [send(store, FakeRequest(apis.LIST_OFFSETS)) for _ in range(5)]
    assert [e for entry in entries[1:] for e in store.response(entry.correlation_id, OK, 1.0)] == []
    events = prove(store, 1.0)
    assert [e.request for e in of(Requeued, events)] == entries[:2]
    assert [e.request for e in of(Completed, events)] == entries[2:]


def test_ids_that_went_round_leave_nothing_to_believe() -> None:
    store = tracker()
    entries = [send(store, FakeRequest(apis.LIST_OFFSETS)) for _ in range(3)]
    assert [e.request for e in of(Requeued, answer_in_order(store, entries, [1, 2, 0]))] == entries


@pytest.mark.parametrize("ids", [[2, 0, 1], [2, 1, 0]])
def test_second_answer_in_another_order_ends_the_connection(ids: list[int]) -> None:
    store = tracker()
    entries = [send(store, FakeRequest(apis.LIST_OFFSETS)) for _ in range(3)]
    assert kinds([e for at in ids for e in store.response(entries[at].correlation_id, OK, 1.0)])[-1] == "retired"


def test_answer_that_fits_another_request_leaves_that_one_nothing_to_believe() -> None:
    """The broker answers b, then a: a takes any answer, b only its own."""
    store = tracker()
    b, a = send(store, FakeRequest(apis.LIST_OFFSETS, keys=("b",))), send(store, FakeRequest(apis.LIST_OFFSETS))
    resend(store, store.response(a.correlation_id, memoryview(b"for b"), 1.0), 1.0)
    assert kinds(store.response(b.correlation_id, OK, 1.0)) == ["orphan", "retired"]


def test_late_answer_is_explained_by_its_loss_and_teaches_patience() -> None:
    store = warm(0.004)
    older, later = send(store, now=1.0), send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    store.response(later.correlation_id, OK, 1.0)
    prove(store, 1.0)
    before = store.silence.round_trips.estimate
    waiting = send(store, now=1.1)
    (orphan,) = store.response(older.correlation_id, OK, 1.4)
    assert orphan.cause == "late"
    assert not store.is_doubtful
    assert store.silence.round_trips.estimate > before
    assert kinds(store.response(waiting.correlation_id, OK, 1.4)) == ["completed"]


def test_order_is_that_of_the_wire_and_not_of_the_queue() -> None:
    store = tracker()
    queued_first = store.queue(FakeRequest(), 30.0)
    sent_first = send(store, FakeRequest(apis.LIST_OFFSETS))
    assert store.sent(queued_first, 0.1) == []
    assert store.oldest is sent_first
    assert kinds(store.response(sent_first.correlation_id, OK, 0.2)) == ["completed"]
    assert of(Lost, store.expired(0.4)) == []
    assert kinds(store.response(queued_first.correlation_id, OK, 0.5)) == ["completed"]


def test_answer_that_comes_while_an_older_one_with_its_key_is_resent_waits() -> None:
    store = tracker()
    older = send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True))
    other = send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(other.correlation_id, OK, 1.0)
    events = store.expired(1.0 + GRACE)
    resend(store, events, 1.01)
    later = send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True), now=1.01)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.02), 1.02)
    assert store.response(later.correlation_id, OK, 1.03) == []
    events = store.response(older.correlation_id, OK, 1.04)
    assert [e.request for e in of(Completed, events)] == [older, later]


def warm(rtt: float = 0.004, **policy: Any) -> InFlightRequests:
    store = tracker(**policy)
    for _ in range(20):
        store.response(send(store).correlation_id, OK, rtt)
    return store


# -- T3 -----------------------------------------------------------------------


class Yielding(FakeRequest):
    yields_to_newer = True


def test_commit_is_sent_again_unless_a_newer_one_of_its_group_was_sent() -> None:
    def commit(group: str) -> FakeRequest:
        return Yielding(apis.OFFSET_COMMIT, keys=(("group", group),), resend_safe=True)

    events = lose(tracker(), commit("a"))
    assert kinds(events) == ["lost", "requeued", "completed"]
    store = tracker()
    older, newer, other = send(store, commit("a")), send(store, commit("a")), send(store, commit("b"))
    store.response(send(store, FakeRequest(99)).correlation_id, OK, 1.0)
    events = prove(store, 1.0)
    assert [e.request for e in of(Requeued, events)] == [newer, other]
    assert [(e.request, e.verdict) for e in of(Failed, events)] == [(older, Verdict.HAND_UP)]


def test_commit_yields_to_a_newer_one_that_was_answered_already() -> None:
    store = tracker()
    older = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",), resend_safe=True))
    newer = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",), resend_safe=True))
    assert store.response(newer.correlation_id, OK, 1.0) == []
    events = prove(store, 1.0)
    assert [e.request for e in of(Failed, events)] == [older]
    assert [e.request for e in of(Requeued, events)] == [newer]


def lose(store: InFlightRequests, request: FakeRequest, now: float = 1.0) -> list[Event]:
    """Loses one request the plain way: a later one is answered, and a probe."""
    send(store, request, now)
    later = send(store, FakeRequest(99), now)
    store.response(later.correlation_id, OK, now)
    return prove(store, now)


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (FakeRequest(HANDED_UP), Verdict.HAND_UP),
        (FakeRequest(apis.METADATA), None),
        (FakeRequest(apis.FETCH), Verdict.HAND_UP),
        (FakeRequest(apis.PRODUCE), Verdict.OUTCOME_UNKNOWN),
        (FakeRequest(apis.INIT_PRODUCER_ID), None),
        (FakeRequest(apis.JOIN_GROUP), Verdict.HAND_UP),
        (FakeRequest(apis.CREATE_TOPICS), Verdict.OUTCOME_UNKNOWN),
        (FakeRequest(apis.LIST_OFFSETS, resend_safe=False), Verdict.HAND_UP),
        (FakeRequest(apis.LIST_OFFSETS), None),
        (FakeRequest(apis.FIND_COORDINATOR), None),
        (FakeRequest(apis.FETCH, resend_safe=True), None),
        (FakeRequest(apis.PRODUCE, resend_safe=True), None),
    ],
    ids=lambda value: value.name if isinstance(value, FakeRequest) else str(value),
)
def test_lost_request_is_settled_as_its_api_allows(request_: FakeRequest, verdict: Verdict | None) -> None:
    events = lose(tracker(), request_)
    assert kinds(events) == ["lost", "requeued" if verdict is None else "failed", "completed"]
    assert [e.verdict for e in of(Failed, events)] == ([verdict] if verdict else [])


def test_plain_produce_is_sent_again_only_where_the_policy_says_so() -> None:
    events = lose(tracker(resend_plain_produce=True), FakeRequest(apis.PRODUCE))
    assert kinds(events) == ["lost", "requeued", "completed"]


def test_plain_produce_is_handed_up_as_retriable_where_its_producer_retries() -> None:
    events = lose(tracker(retries_plain_produce=True), FakeRequest(apis.PRODUCE))
    assert [e.verdict for e in of(Failed, events)] == [Verdict.HAND_UP]
    store = tracker(retries_plain_produce=True)
    send(store, FakeRequest(apis.PRODUCE))
    assert [e.verdict for e in of(Failed, store.close(None))] == [Verdict.CLOSED]


def test_request_lost_too_often_fails_with_its_history() -> None:
    store = tracker(max_resends=2)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS))
    events: list[Event] = []
    for round_ in range(3):
        now = float(round_)
        later = send(store, FakeRequest(99), now)
        store.response(later.correlation_id, OK, now)
        events = prove(store, now)
        resend(store, events, now + 0.1)
    (failed,) = of(Failed, events)
    assert failed.verdict is Verdict.EXHAUSTED
    assert len(entry.history) == 3


def test_nothing_is_sent_again_after_its_deadline() -> None:
    store = tracker()
    send(store, FakeRequest(apis.LIST_OFFSETS), now=0.0, timeout=1.05)
    later = send(store, FakeRequest(99))
    store.response(later.correlation_id, OK, 1.0)
    events = store.expired(1.2)
    assert of(Requeued, events) == []
    assert of(Retired, events)[0].is_timeout


def test_loss_that_is_certain_only_after_the_deadline_sends_nothing_again() -> None:
    store = tracker()
    send(store, FakeRequest(apis.LIST_OFFSETS), timeout=1.0)
    events = store.response(5, OK, 0.9)
    resend(store, events, 0.9)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.1)
    assert kinds(events) == ["lost", "failed"]


# -- T4 -----------------------------------------------------------------------


def test_orphan_response_is_dropped_and_named() -> None:
    store = tracker()
    entry = send(store)
    store.response(entry.correlation_id, OK, 0.1)
    assert [e.cause for e in of(Orphan, store.response(entry.correlation_id, OK, 0.2))] == ["duplicate"]
    assert [e.cause for e in of(Orphan, store.response(7, OK, 0.2))] == ["unknown"]
    assert [e.cause for e in of(Orphan, store.response(-5, OK, 0.2))] == ["unknown"]
    unasked = store.ids.draw_unanswered()
    assert [e.cause for e in of(Orphan, store.response(unasked, OK, 0.2))] == ["unasked"]


def test_never_sent_id_makes_the_oldest_a_suspect_and_probes_at_once() -> None:
    store = tracker()
    suspect = send(store, FakeRequest(apis.FETCH, expected_ms=500))
    events = store.response(5, OK, 0.2)
    assert kinds(events) == ["orphan", "probe"]
    resend(store, events, 0.2)
    (probe,) = of(Probe, events)
    # With that evidence the probe's answer needs no grace.
    events = store.response(probe.correlation_id, PROBE_ANSWER, 0.21)
    assert [e.request for e in of(Failed, events)] == [suspect]
    assert len(store) == 0


# -- T5 -----------------------------------------------------------------------


def test_silent_request_is_probed_and_lost_by_the_probes_answer() -> None:
    store = warm(0.001)
    entry = send(store, FakeRequest(apis.FETCH, expected_ms=500), now=1.0)
    assert store.next_wakeup(1.0) == pytest.approx(1.701, abs=0.001)
    assert store.expired(1.65) == []
    assert not store.is_doubtful
    events = store.expired(1.702)
    assert kinds(events) == ["probe"]
    assert store.is_doubtful
    resend(store, events, 1.702)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.703)
    assert [e.request for e in of(Failed, events)] == [entry]
    assert not store.is_doubtful


@pytest.mark.parametrize("key", [apis.PRODUCE, apis.CREATE_TOPICS, apis.DELETE_GROUPS, HANDED_UP])
@pytest.mark.parametrize("is_retried", [False, True])
def test_silence_and_a_probe_alone_do_not_settle_what_is_not_sent_again(key: int, is_retried: bool) -> None:
    store = tracker(retries_plain_produce=is_retried)
    entry = send(store, FakeRequest(key))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    assert store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101) == []
    assert not store.is_doubtful
    assert store.next_wakeup(1.101) == 30.0
    assert kinds(store.response(entry.correlation_id, OK, 20.0)) == ["completed"]


class RepeatedAbove(FakeRequest):
    """As a Produce of batches with a producer id, whose owner sends the same sequences again."""

    is_repeated_above = True


def test_silence_and_a_probe_hand_up_what_its_owner_sends_again() -> None:
    store = tracker()
    entry = send(store, RepeatedAbove(apis.PRODUCE, resend_safe=False))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101)
    assert [(e.request, e.verdict) for e in of(Failed, events)] == [(entry, Verdict.OUTCOME_UNKNOWN)]
    assert not store.is_retired


def test_batch_that_a_gateway_is_slow_with_is_handed_up_once_and_no_other_is() -> None:
    store = tracker()
    slow = send(store, RepeatedAbove(apis.PRODUCE, resend_safe=False))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101)
    send(store, RepeatedAbove(apis.PRODUCE, resend_safe=False), now=1.2)
    assert [(e.kind, e.cause) for e in store.response(slow.correlation_id, OK, 1.5)] == [("orphan", "late")]
    assert store.is_disproved
    assert store.expired(31.0) == []


def test_commit_that_a_newer_one_replaces_waits_for_its_answer_in_silence() -> None:
    store = tracker()
    older, newer = (send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",), resend_safe=True)) for _ in "ab")
    events = store.expired(1.1)
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101)
    assert [e.request for e in of(Requeued, events)] == [newer]
    assert of(Failed, events) == []
    assert older.is_unanswered


def test_later_answer_settles_what_silence_alone_did_not() -> None:
    store = tracker()
    entry = send(store, FakeRequest(apis.PRODUCE))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101)
    store.response(send(store, FakeRequest(99), now=2.0).correlation_id, OK, 2.1)
    assert [(e.request, e.verdict) for e in of(Failed, prove(store, 2.1))] == [(entry, Verdict.OUTCOME_UNKNOWN)]


def disproved(now: float = 2.0) -> InFlightRequests:
    """A store behind a gateway that has answered a probe before the request ahead of it."""
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    first_id = slow.correlation_id
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101), 1.101)
    assert not store.is_disproved
    events = store.response(first_id, OK, now)
    assert kinds(events) == ["orphan", "completed"]
    assert of(Completed, events)[0].request is slow
    # The peer answers the repeat as well.
    assert [(e.kind, e.cause) for e in store.response(slow.correlation_id, OK, now + 0.5)] == [("orphan", "late")]
    return store


def test_late_answer_disproves_the_probes_and_silence_ends_at_the_deadline() -> None:
    store = disproved()
    assert store.is_disproved
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=3.0)
    assert [store.expired(3.0 + second) for second in range(30)] == [[]] * 30
    assert kinds(store.response(entry.correlation_id, OK, 32.9)) == ["completed"]
    send(store, FakeRequest(apis.LIST_OFFSETS), now=33.0)
    assert of(Retired, store.expired(63.0))[0].is_timeout


def given_up_by_a_probe(store: InFlightRequests, now: float) -> None:
    """Silence is probed at `now`, and a gateway answers the probe by itself."""
    events = store.expired(now)
    resend(store, events, now)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now + 0.01), now + 0.01)


def given_up(store: InFlightRequests, request: FakeRequest, now: float) -> tuple[InFlightRequest, int]:
    """One that is sent again after silence, and its first id."""
    entry = send(store, request, now=now)
    first_id = entry.correlation_id
    given_up_by_a_probe(store, now + 1.1)
    return entry, first_id


def misnumbered(store: InFlightRequests, wrong_id: int, now: float) -> list[Event]:
    """The response to the one in flight comes under a wrong id; a probe shows that it has no other to come."""
    events = store.response(wrong_id, OK, now)
    assert [(e.kind, e.cause) for e in of(Orphan, events)] == [("orphan", "duplicate")]
    resend(store, events, now)
    return store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now + 0.001)


def test_response_under_the_id_of_one_that_was_lost_to_a_wrong_id_is_another_ones() -> None:
    """Ids are too small by one distance, twice: the second one is that of the request which the first one lost."""
    store = tracker()
    answered = send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(answered.correlation_id, OK, 0.1)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    lost_id = entry.correlation_id
    events = misnumbered(store, answered.correlation_id, 1.0)
    assert kinds(events) == ["lost", "requeued"]
    resend(store, events, 1.1)
    assert kinds(misnumbered(store, lost_id, 1.2)) == ["lost", "requeued"]
    assert not store.is_disproved


def test_response_that_fits_two_is_one_that_has_come() -> None:
    store = tracker()
    answered = send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(answered.correlation_id, OK, 0.1)
    first, second = (send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0) for _ in "ab")
    lost_id = second.correlation_id
    events = store.response(answered.correlation_id, OK, 1.1)  # the first one's, under a wrong id
    resend(store, events, 1.1)
    assert store.response(second.correlation_id, OK, 1.1) == []  # believed for neither
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101)
    assert [e.request for e in of(Requeued, events)] == [first, second]
    resend(store, events, 1.101)
    assert [e.cause for e in of(Orphan, store.response(lost_id, OK, 1.2))] == ["duplicate"]
    assert not store.is_disproved


def test_response_that_also_fits_an_older_request_ends_a_connection_that_is_not_probed_at_once() -> None:
    store = tracker(question=None)
    _, later = (send(store, FakeRequest(apis.LIST_OFFSETS)) for _ in "ab")
    assert kinds(store.response(later.correlation_id, OK, 1.0)) == ["retired"]


def test_what_may_not_run_twice_is_settled_by_a_response_under_a_lost_id() -> None:
    store = tracker()
    answered = send(store, FakeRequest(apis.PRODUCE))
    store.response(answered.correlation_id, OK, 0.1)
    lost_id = send(store, FakeRequest(apis.PRODUCE), now=1.0).correlation_id
    assert kinds(misnumbered(store, answered.correlation_id, 1.0)) == ["lost", "failed"]
    send(store, FakeRequest(apis.PRODUCE), now=2.0)
    assert kinds(misnumbered(store, lost_id, 2.1)) == ["lost", "failed"]
    assert not store.is_disproved


def test_surplus_response_at_a_peer_that_answers_probes_first_costs_two_repeats_and_the_connection() -> None:
    """The trial took the surplus one for the request's; its own and that of its repeat come after the probes'."""
    store = tracker()
    answered = send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(answered.correlation_id, OK, 0.1)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    first_id = entry.correlation_id
    resend(store, misnumbered(store, answered.correlation_id, 1.1), 1.2)
    second_id = entry.correlation_id
    resend(store, misnumbered(store, first_id, 1.5), 1.6)
    assert kinds(store.response(second_id, OK, 1.7)) == ["orphan", "retired"]


def test_response_to_a_probe_under_a_lost_id_disproves_nothing() -> None:
    store = tracker()
    lost, first_id = given_up(store, FakeRequest(apis.LIST_OFFSETS), 0.0)
    resend(store, events := store.expired(4.0), 4.0)
    assert of(Probe, events)
    assert [e.cause for e in of(Orphan, store.response(first_id, PROBE_ANSWER, 4.1))] == ["duplicate"]
    assert not store.is_disproved and lost.is_unanswered


def test_response_under_the_id_of_a_probe_that_was_replaced_puts_the_stream_on_trial() -> None:
    store = tracker()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS))
    resend(store, first := store.expired(1.1), 1.1)
    resend(store, again := store.expired(2.2), 2.2)
    resend(store, store.response(of(Probe, again)[0].correlation_id, PROBE_ANSWER, 2.3), 2.3)
    replaced_id = of(Probe, first)[0].correlation_id
    assert kinds(store.response(replaced_id, OK, 2.4)) == ["orphan", "probe"]
    assert entry.is_unanswered


def test_late_answer_of_the_only_probe_left_starts_no_trial() -> None:
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    resend(store, first := store.expired(1.1), 1.1)
    resend(store, again := store.expired(2.2), 2.2)
    resend(store, store.response(of(Probe, again)[0].correlation_id, PROBE_ANSWER, 2.3), 2.3)
    assert [e.cause for e in store.response(of(Probe, first)[0].correlation_id, PROBE_ANSWER, 2.4)] == ["late"]
    assert not store.is_doubtful
    assert kinds(store.response(slow.correlation_id, OK, 2.5)) == ["completed"]


def test_late_answer_that_does_not_decode_leaves_its_repeat_in_flight() -> None:
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    first_id = slow.correlation_id
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101), 1.101)
    assert kinds(store.response(first_id, BAD, 2.0)) == ["orphan"]
    assert [e.response for e in of(Completed, store.response(slow.correlation_id, OK, 2.1))] == [b"ok"]


def test_late_answer_that_another_request_may_wait_for_completes_nothing() -> None:
    """One id is wrong, behind a gateway: what comes late under b's may be a's."""
    store = tracker()
    a, b = (send(store, FakeRequest(apis.FIND_COORDINATOR)) for _ in "ab")
    late_id = b.correlation_id
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101), 1.101)
    assert kinds(store.response(late_id, memoryview(b"a's"), 2.0)) == ["orphan"]
    assert [e.request for e in of(Completed, store.response(a.correlation_id, OK, 2.1))] == [a]
    assert [e.response for e in of(Completed, store.response(b.correlation_id, OK, 2.2))] == [b"ok"]


def test_late_answer_that_overtook_an_older_one_and_fits_both_ends_the_connection() -> None:
    """Behind a gateway the ids of both are exchanged: under the older one's id comes what is this one's."""
    store = tracker()
    send(store, FakeRequest(apis.PRODUCE))
    late_id = send(store, FakeRequest(apis.PRODUCE, resend_safe=True)).correlation_id
    given_up_by_a_probe(store, 1.1)
    assert kinds(store.response(late_id, OK, 2.0)) == ["orphan", "retired"]


def test_late_answer_that_fits_a_later_request_with_an_answer_ends_the_connection() -> None:
    """The same, the other way round: what the later one was told is the earlier one's, and waits for its turn."""
    store = tracker()
    late_id = send(store, FakeRequest(apis.PRODUCE, resend_safe=True, keys=("p",))).correlation_id
    later = send(store, FakeRequest(apis.PRODUCE, keys=("p",)))
    given_up_by_a_probe(store, 1.1)
    assert store.response(later.correlation_id, OK, 2.0) == []
    assert kinds(store.response(late_id, OK, 2.0)) == ["orphan", "retired"]


def test_late_answer_that_its_repeat_may_have_outdated_completes_nothing() -> None:
    """InitProducerId: the repeat has bumped the epoch once more, so the first one's is fenced."""
    store = tracker()
    slow = send(store, Yielding(apis.INIT_PRODUCER_ID, keys=("t",), resend_safe=True))
    first_id = slow.correlation_id
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101), 1.101)
    assert kinds(store.response(first_id, memoryview(b"epoch 5"), 2.0)) == ["orphan"]
    events = store.response(slow.correlation_id, memoryview(b"epoch 6"), 2.1)
    assert [e.response for e in of(Completed, events)] == [b"epoch 6"]


def test_answers_that_change_places_are_waited_for_where_nothing_is_probed() -> None:
    store = disproved()
    a, b = send(store, now=3.0), send(store, FakeRequest(apis.LIST_OFFSETS), now=3.0)
    assert store.response(b.correlation_id, OK, 3.1) == []
    assert kinds(store.response(a.correlation_id, OK, 3.104)) == ["reordered", "completed", "completed"]
    a, b = send(store, now=4.0), send(store, FakeRequest(apis.LIST_OFFSETS), now=4.0)
    assert store.response(b.correlation_id, OK, 4.1) == []
    assert kinds(store.expired(4.105)) == ["retired"]


def test_first_answer_out_of_step_ends_a_connection_whose_probes_prove_nothing() -> None:
    store = disproved()
    send(store, now=3.0)
    assert kinds(store.response(7, OK, 3.1)) == ["orphan", "retired"]


def test_late_answer_on_trial_ends_the_connection() -> None:
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    first_id = slow.correlation_id
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.101), 1.101)
    resend(store, store.response(7, OK, 1.2), 1.2)
    assert kinds(store.response(first_id, OK, 1.21)) == ["orphan", "retired"]


def test_late_answer_of_a_probe_that_was_replaced_disproves_nothing() -> None:
    store = tracker()
    send(store, FakeRequest(apis.LIST_OFFSETS))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    again = store.expired(2.2)
    resend(store, again, 2.2)
    assert len(of(Probe, again)) == 1
    (orphan,) = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 2.3)
    assert orphan.cause == "late"
    assert not store.is_disproved


def test_time_that_a_peer_takes_for_probes_counts_for_no_request_that_was_sent_after_them() -> None:
    """Each response takes 2 s, one after the other: the request and two probes, then a request with 5 s."""
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS), timeout=5.0)
    probes: list[int] = []
    for now in (1.1, 2.2):
        events = store.expired(now)
        resend(store, events, now)
        probes += [probe.correlation_id for probe in of(Probe, events)]
    assert kinds(store.response(slow.correlation_id, OK, 2.3)) == ["completed"]
    late = send(store, FakeRequest(apis.LIST_OFFSETS), now=2.3, timeout=5.0)
    store.response(probes[0], PROBE_ANSWER, 4.3)
    assert late.deadline == pytest.approx(9.3)  # 2.0 s for the first probe
    store.response(probes[1], PROBE_ANSWER, 6.3)
    assert late.deadline == pytest.approx(11.3)
    resend(store, store.expired(7.4), 7.4)
    assert not store.is_retired  # the peer has its 5 s
    assert kinds(store.response(late.correlation_id, OK, 8.3)) == ["completed"]


def test_deadline_is_kept_where_a_probe_was_sent_later_or_nothing_responds() -> None:
    store = tracker()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), timeout=5.0)
    events = store.expired(1.1)
    resend(store, events, 1.1)
    store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 3.0)
    assert entry.deadline == 5.0
    silent = send(store, FakeRequest(apis.LIST_OFFSETS), now=3.0, timeout=3.0)
    assert silent.deadline == 6.0


def test_a_response_of_a_slow_peer_does_not_hasten_the_next_probe() -> None:
    """The probes of a request that has its response now are on their way: the next one does not add to them."""
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    for now in (1.1, 2.2):
        resend(store, store.expired(now), now)
    assert kinds(store.response(slow.correlation_id, OK, 2.3)) == ["completed"]
    send(store, FakeRequest(apis.LIST_OFFSETS), now=2.3)
    assert store.next_wakeup(2.3) == pytest.approx(7.3)  # 5 s: no sooner than this peer may take


def test_response_of_a_replaced_probe_is_no_mismatch_of_a_re_authentication() -> None:
    """All that was in flight is settled, but not our probes: their responses come first."""
    store = tracker()
    slow = send(store, FakeRequest(apis.LIST_OFFSETS))
    probes: list[int] = []
    for now in (1.1, 2.2):
        events = store.expired(now)
        resend(store, events, now)
        probes += [probe.correlation_id for probe in of(Probe, events)]
    store.response(slow.correlation_id, OK, 2.3)
    handshake = send(store, FakeRequest(apis.SASL_HANDSHAKE), now=2.4)
    for probe in probes:
        assert of(Retired, store.response(probe, PROBE_ANSWER, 4.3)) == []
    assert kinds(store.response(handshake.correlation_id, OK, 5.0)) == ["completed"]


def test_strange_body_under_the_id_of_a_replaced_probe_ends_an_authentication() -> None:
    store = tracker()
    send(store, FakeRequest(apis.LIST_OFFSETS))
    events = store.expired(1.1)
    resend(store, events, 1.1)
    resend(store, store.expired(2.2), 2.2)
    send(store, FakeRequest(apis.SASL_HANDSHAKE), now=2.4)
    assert of(Retired, store.response(of(Probe, events)[0].correlation_id, OK, 2.5))


def test_repeats_are_waited_for_twice_as_long_each_time() -> None:
    store = warm(0.001)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    now, waits = 1.0, []
    for _ in range(7):
        due = store.next_wakeup(now)
        assert due is not None
        waits.append(due - now)
        events = store.expired(due)
        resend(store, events, due)
        now = due
        resend(store, store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now), now)
    assert entry.resends == 7
    assert all(later > 1.8 * earlier for earlier, later in itertools.pairwise(waits[:5]))
    assert waits[-1] <= RecoveryPolicy().probe_max_ms / 1000


def test_nothing_is_probed_where_no_harmless_question_is_known() -> None:
    store = tracker(question=None)
    entry = send(store)
    assert store.next_wakeup(0.0) == 30.0
    assert kinds(store.response(7, OK, 0.1)) == ["orphan", "retired"]
    assert [e.request for e in of(Failed, store.close(None))] == [entry]


def test_one_probe_is_in_flight_at_most() -> None:
    store = tracker()
    send(store, timeout=300.0)
    now, asked = 0.0, []
    while now < 60.0:
        now = store.next_wakeup(now) or 60.0
        events = store.expired(now)
        resend(store, events, now)
        asked += of(Probe, events)
        assert len(store._requests) <= 2
    assert 3 < len(asked) < 9


def test_slow_request_survives_its_probe() -> None:
    store = tracker()
    entry = send(store)
    events = store.expired(1.1)
    assert kinds(events) == ["probe"]
    resend(store, events, 1.1)
    assert kinds(store.response(entry.correlation_id, OK, 3.0)) == ["completed"]
    assert store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 3.0) == []
    assert len(store) == 0
    assert store.next_wakeup(3.0) is None


def test_arriving_bytes_are_progress_and_not_silence() -> None:
    store = tracker()
    send(store)
    store.silence.progress(1.5)
    assert store.expired(1.6) == []
    assert kinds(store.expired(2.6)) == ["probe"]


def test_unanswered_probes_come_less_and_less_often() -> None:
    store = tracker(probe_max_ms=60_000)
    send(store, timeout=300.0)
    times = []
    now = 0.0
    while now < 100.0:
        due = store.next_wakeup(now)
        assert due is not None
        now = due
        events = store.expired(now)
        resend(store, events, now)
        times += [now for _ in of(Probe, events)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0][: len(gaps)]


def test_dead_connection_is_retired_at_the_request_timeout() -> None:
    store = tracker()
    send(store, timeout=30.0)
    resend(store, store.expired(1.1), 1.1)
    (event,) = of(Retired, store.expired(30.0))
    assert event.is_timeout
    assert kinds(store.close(None)) == ["failed"]


# -- T6 -----------------------------------------------------------------------


def test_ids_wrap_below_javas_reserved_range() -> None:
    ids = CorrelationIds(SPACE - 2)
    assert [ids.draw() for _ in range(4)] == [2**31 - 10, 2**31 - 9, 0, 1]
    assert all(map(ids.was_drawn, (2**31 - 10, 2**31 - 9, 0, 1)))
    assert not any(map(ids.was_drawn, (2, -1, 2**31 - 8, 2**31 - 1, SPACE - 3)))


def test_older_and_later_do_not_depend_on_the_numbers() -> None:
    store = tracker(first_id=SPACE - 1)
    older, later = send(store, FakeRequest(apis.LIST_OFFSETS)), send(store)
    assert (older.correlation_id, later.correlation_id) == (SPACE - 1, 0)
    store.response(later.correlation_id, OK, 1.0)
    assert kinds(prove(store, 1.0)) == ["lost", "requeued", "completed"]


BAD = memoryview(b"bad")


def test_answer_that_does_not_decode_is_dropped_and_probed_for() -> None:
    store = tracker()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS))
    events = store.response(entry.correlation_id, BAD, 0.1)
    assert [(e.cause, e.correlation_id) for e in of(Orphan, events)] == [("misfit", entry.correlation_id)]
    resend(store, events, 0.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 0.101)
    assert kinds(events) == ["lost", "requeued"]
    assert "does not decode" in entry.history[0]


def test_own_answer_after_one_that_did_not_decode_completes_the_request() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.LIST_OFFSETS)), send(store, FakeRequest(apis.METADATA))
    events = store.response(later.correlation_id, BAD, 0.1)
    resend(store, events, 0.1)
    assert store.response(later.correlation_id, OK, 0.101) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 0.102)
    assert kinds(events) == ["lost", "requeued", "completed"]
    assert [e.request for e in of(Completed, events)] == [later]
    assert older.state is State.REQUEUED


def test_two_answers_that_fit_nothing_are_a_stream_out_of_step() -> None:
    for first, second in itertools.product(("misfit", "unknown"), repeat=2):
        store = warm()
        entry = send(store, now=1.0)
        ids = {"misfit": entry.correlation_id, "unknown": 77}
        resend(store, store.response(ids[first], BAD, 1.1), 1.1)
        assert "retired" in kinds(store.response(ids[second], BAD, 1.2))


@pytest.mark.parametrize("shift", [1, 3, 100, -1, -3])
def test_stream_that_is_shifted_for_good_is_left_after_a_round_trip_or_two(shift: int) -> None:
    store = warm(0.001)
    entry = send(store, now=1.0)
    events = store.response((entry.correlation_id + shift) % SPACE, OK, 1.001)
    resend(store, events, 1.001)
    for probe in of(Probe, events):
        events = store.response((probe.correlation_id + shift) % SPACE, PROBE_ANSWER, 1.002)
    assert "retired" in kinds(events)
    assert store.close(None)


def test_stream_of_which_nothing_is_proved_in_time_is_left() -> None:
    store = warm()
    entry = send(store, now=1.0)
    resend(store, store.response(entry.correlation_id, BAD, 1.1), 1.1)
    assert of(Retired, store.expired(1.2)) == []
    assert "in step" in of(Retired, store.expired(1.4))[0].reason


def test_trial_waits_for_a_long_poll_and_not_for_minutes() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    send(store, FakeRequest(apis.JOIN_GROUP, expected_ms=60_000), now=1.0)
    resend(store, store.response(entry.correlation_id, BAD, 1.1), 1.1)
    assert of(Retired, store.expired(1.7)) == []
    assert of(Retired, store.expired(2.0)) != []


def test_nothing_is_believed_on_trial_and_all_of_it_once_the_probe_is_answered() -> None:
    store = warm()
    entries = [send(store, now=1.0) for _ in range(4)]
    events = store.response(7, OK, 1.1)
    resend(store, events, 1.1)
    for entry in entries:
        assert store.response(entry.correlation_id, OK, 1.11) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.12)
    assert [e.request for e in of(Completed, events)] == entries


def test_bytes_that_arrive_on_trial_are_progress() -> None:
    store = warm()
    send(store, now=1.0)
    resend(store, store.response(7, OK, 1.1), 1.1)
    store.silence.progress(1.25)
    assert store.expired(1.4) == []
    assert "retired" in kinds(store.expired(1.5))


def test_probe_that_is_overtaken_is_replaced() -> None:
    store = warm()
    send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    resend(store, store.response(7, OK, 1.1), 1.1)
    later = send(store, now=1.1)
    events = store.response(later.correlation_id, OK, 1.11)
    assert kinds(events) == ["probe"]
    resend(store, events, 1.11)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.12)
    assert kinds(events) == ["lost", "requeued", "completed"]


# -- answers that speak of something else ---------------------------------------

ODD = memoryview(b"odd")


def put_on_trial_by(store: InFlightRequests, entry: InFlightRequest, body: memoryview, now: float) -> list[Event]:
    """`body` comes for `entry`, and 10 ms later a probe shows that the stream is in step."""
    events = store.response(entry.correlation_id, body, now)
    assert kinds(events) == ["probe"]
    resend(store, events, now)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now + 0.01)
    resend(store, events, now + 0.01)
    return events


@pytest.mark.parametrize("key", [apis.CREATE_TOPICS, HANDED_UP])
def test_odd_response_that_may_not_be_asked_for_again_is_what_the_server_means(key: int) -> None:
    store = warm()
    entry = send(store, FakeRequest(key), now=1.0)
    events = put_on_trial_by(store, entry, ODD, 1.1)
    assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"odd")]
    assert kinds(events) == ["completed"]


def test_odd_response_beside_one_that_is_missing_is_not_what_the_server_means() -> None:
    store = warm()
    entry = send(store, now=1.0)
    send(store, now=1.0)
    events = put_on_trial_by(store, entry, ODD, 1.1)
    assert kinds(events) == ["lost", "failed", "lost", "failed"]


def test_odd_response_beside_one_that_fits_nothing_is_not_what_the_server_means() -> None:
    store = warm()
    entry = send(store, now=1.0)
    (probe,) = of(Probe, events := store.response(entry.correlation_id, ODD, 1.1))
    resend(store, events, 1.1)
    assert kinds(store.response(1, OK, 1.101)) == ["orphan"]
    assert kinds(store.response(probe.correlation_id, PROBE_ANSWER, 1.11)) == ["lost", "failed"]


def test_an_answer_that_also_fits_a_later_request_which_has_one_is_believed_for_neither() -> None:
    """The later one takes more than the older one: under its id came what the older one does not take."""
    store = warm()
    older, later = send(store, now=1.0), send(store, FakeRequest(keys=("b",)), now=1.0)
    assert not of(Completed, store.response(later.correlation_id, memoryview(b"for b"), 1.001))
    events = store.response(older.correlation_id, OK, 1.002)
    assert kinds(events) == ["orphan", "probe"]
    resend(store, events, 1.002)
    (probe,) = of(Probe, events)
    assert not of(Completed, store.response(probe.correlation_id, PROBE_ANSWER, 1.01))


@pytest.mark.parametrize(("key", "is_safe"), [(apis.LIST_OFFSETS, None), (apis.PRODUCE, True)])
def test_odd_response_is_asked_for_again_and_not_believed(key: int, is_safe: bool | None) -> None:
    store = warm()
    entry = send(store, FakeRequest(key, resend_safe=is_safe), now=1.0)
    assert kinds(put_on_trial_by(store, entry, ODD, 1.1)) == ["requeued"]
    assert entry.history == ["speaks of something else"]
    events = store.response(entry.correlation_id, OK, 1.2)
    assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"ok")]


def test_same_odd_response_to_a_repeat_is_what_the_server_means() -> None:
    """It costs the round trips of one probe and one repeat, and none of the mismatches that a connection survives."""
    store = warm(max_mismatches=0)
    for now in (1.0, 2.0, 3.0):
        entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=now)
        assert kinds(put_on_trial_by(store, entry, ODD, now)) == ["requeued"]
        events = store.response(entry.correlation_id, ODD, now + 0.02)
        assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"odd")]
        assert kinds(events) == ["completed"]


def test_odd_response_is_all_that_a_server_says_that_answers_no_repeat() -> None:
    """kafka-python's own tests have such brokers: each response is scripted for one request."""
    store = warm()
    entry = send(store, FakeRequest(apis.JOIN_GROUP, resend_safe=True, expected_ms=60_000), now=1.0)
    put_on_trial_by(store, entry, ODD, 1.1)
    for now, then in ((2.0, ["lost", "requeued"]), (4.0, ["completed"])):
        events = store.expired(now)
        resend(store, events, now)
        events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now + 0.01)
        resend(store, events, now + 0.01)
        assert kinds(events) == then
    assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"odd")]


def unanswered(store: InFlightRequests, now: float) -> list[Event]:
    """Silence is probed at `now`, and the probe is answered 10 ms later."""
    events = store.expired(now)
    resend(store, events, now)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, now + 0.01)
    resend(store, events, now + 0.01)
    return events


def test_repeats_before_an_odd_response_do_not_count_as_those_that_have_none_after_it() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    assert kinds(unanswered(store, 3.0)) == ["lost", "requeued"]
    assert kinds(put_on_trial_by(store, entry, ODD, 3.1)) == ["requeued"]
    assert kinds(unanswered(store, 7.0)) == ["lost", "requeued"]
    assert kinds(unanswered(store, 17.0)) == ["completed"]


def test_response_to_the_last_repeat_that_had_none_disproves_the_probes() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    put_on_trial_by(store, entry, ODD, 1.1)
    unanswered(store, 3.0)
    last_id = entry.correlation_id
    assert kinds(unanswered(store, 7.0)) == ["completed"]
    assert [e.cause for e in of(Orphan, store.response(last_id, OK, 8.0))] == ["late"]
    assert store.is_disproved


def test_odd_response_that_overtook_a_probes_gets_a_trial_of_its_own() -> None:
    store = warm()
    first = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    events = store.response(first.correlation_id, ODD, 1.1)
    resend(store, events, 1.1)
    later = send(store, FakeRequest(apis.FIND_COORDINATOR), now=1.1)
    assert store.response(later.correlation_id, ODD, 1.11) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.12)
    resend(store, events, 1.12)
    assert kinds(events) == ["requeued", "probe"]
    assert store.response(first.correlation_id, OK, 1.129) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.13)
    assert [e.request for e in of(Requeued, events)] == [later]
    assert [e.request for e in of(Completed, events)] == [first]


def test_another_odd_response_to_a_repeat_is_asked_for_again_until_it_may_not_be() -> None:
    store = warm(max_resends=2)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    for n in range(2):
        assert kinds(put_on_trial_by(store, entry, memoryview(b"odd %d" % n), 1.1 + n)) == ["requeued"]
    events = put_on_trial_by(store, entry, memoryview(b"odd 0"), 3.1)
    assert [e.verdict for e in of(Failed, events)] == [Verdict.EXHAUSTED]


def test_odd_response_of_a_commit_that_a_newer_one_replaces_is_what_the_server_means() -> None:
    store = warm()
    older = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",)), now=1.0)
    newer = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",)), now=1.0)
    events = store.response(older.correlation_id, ODD, 1.1)
    resend(store, events, 1.1)
    assert store.response(newer.correlation_id, ODD, 1.105) == []
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.11)
    assert [(e.request, e.response) for e in of(Completed, events)] == [(older, b"odd")]
    assert [e.request for e in of(Requeued, events)] == [newer]


def test_odd_response_where_nothing_is_probed_is_asked_for_again_and_kept() -> None:
    """A gateway leaves topics out of Metadata, and has shown that its answers to probes prove nothing."""
    store = disproved()
    for now in (3.0, 4.0, 5.0):
        entry = send(store, FakeRequest(apis.METADATA), now=now)
        events = store.response(entry.correlation_id, ODD, now)
        assert kinds(events) == ["requeued"]
        resend(store, events, now)
        assert kinds(store.response(entry.correlation_id, ODD, now + 0.1)) == ["completed"]


def test_odd_response_to_what_may_not_run_twice_tells_nothing_where_nothing_is_probed() -> None:
    store = disproved()
    entry = send(store, FakeRequest(apis.CREATE_TOPICS), now=3.0)
    (failed,) = of(Failed, store.response(entry.correlation_id, ODD, 3.1))
    assert (failed.request, failed.verdict) == (entry, Verdict.OUTCOME_UNKNOWN)


def test_odd_response_out_of_its_turn_ends_a_connection_where_nothing_is_probed() -> None:
    store = disproved()
    send(store, FakeRequest(apis.LIST_OFFSETS), now=3.0)
    overtaking = send(store, FakeRequest(apis.METADATA), now=3.0)
    assert kinds(store.response(overtaking.correlation_id, ODD, 3.1)) == ["retired"]


def test_odd_response_that_may_be_that_of_a_request_given_up_ends_the_connection() -> None:
    """A stream of a gateway that is shifted for good: what came is the answer to the repeat before."""
    store = tracker()
    _, awaited_id = given_up(store, FakeRequest(apis.LIST_OFFSETS), 0.0)
    other, other_id = given_up(store, FakeRequest(apis.FIND_COORDINATOR), 1.2)
    assert kinds(store.response(other_id, OK, 2.5)) == ["orphan", "completed"]
    assert kinds(store.response(awaited_id, OK, 2.6)) == ["orphan", "completed"]
    assert kinds(store.response(other.correlation_id, OK, 2.7)) == ["orphan"]
    assert store.is_disproved
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=3.0)
    assert kinds(store.response(entry.correlation_id, ODD, 3.1)) == ["retired"]


def test_odd_response_ends_a_connection_that_is_being_made() -> None:
    store = tracker(question=None)
    entry = send(store, FakeRequest(apis.SASL_AUTHENTICATE))
    assert kinds(store.response(entry.correlation_id, ODD, 0.1)) == ["retired"]


def patience_is_over(store: InFlightRequests) -> list[Event]:
    """What happens when the trial's time ends."""
    due = store.next_wakeup(1.2)
    assert due is not None
    return store.expired(due)


def test_odd_response_beside_a_long_poll_is_what_the_server_means() -> None:
    """A Fetch that waits for 3 s is before the probe; nothing else is out of step."""
    store = warm()
    entry = send(store, FakeRequest(apis.METADATA), now=1.0)
    poll = send(store, FakeRequest(apis.FETCH, expected_ms=3_000), now=1.0)
    resend(store, store.response(entry.correlation_id, ODD, 1.1), 1.1)
    events = patience_is_over(store)
    assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"odd")]
    assert kinds(events) == ["completed"]
    assert kinds(store.response(poll.correlation_id, OK, 4.0)) == ["completed"]
    assert len(store) == 0


def test_what_comes_in_its_turn_after_an_odd_response_is_believed_with_it() -> None:
    store = warm()
    first, second = (send(store, FakeRequest(key), now=1.0) for key in (apis.METADATA, apis.LIST_OFFSETS))
    send(store, FakeRequest(apis.FETCH, expected_ms=3_000), now=1.0)
    resend(store, store.response(first.correlation_id, ODD, 1.1), 1.1)
    assert store.response(second.correlation_id, OK, 1.11) == []
    assert [e.request for e in of(Completed, patience_is_over(store))] == [first, second]


def test_probe_that_is_due_when_an_odd_response_is_believed_is_sent_at_once() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.METADATA), now=1.0)
    send(store, FakeRequest(apis.FETCH, expected_ms=3_000), now=1.0)
    resend(store, store.response(entry.correlation_id, ODD, 1.1), 1.1)
    assert kinds(store.expired(9.0)) == ["completed", "probe"]
    assert store.expired(9.0) == []


def test_odd_response_that_overtook_another_one_is_not_believed_without_proof() -> None:
    store = warm()
    send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    overtaking = send(store, FakeRequest(apis.METADATA), now=1.0)
    resend(store, store.response(overtaking.correlation_id, ODD, 1.1), 1.1)
    assert kinds(patience_is_over(store)) == ["retired"]


@pytest.mark.parametrize("body", [OK, memoryview(b"bad")], ids=["overtakes", "fits nothing"])
def test_odd_response_beside_another_one_out_of_step_is_not_believed_without_proof(body: memoryview) -> None:
    store = warm()
    odd = send(store, FakeRequest(apis.METADATA), now=1.0)
    send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    other = send(store, FakeRequest(apis.FIND_COORDINATOR), now=1.0)
    resend(store, store.response(odd.correlation_id, ODD, 1.1), 1.1)
    store.response(other.correlation_id, body, 1.11)
    assert kinds(patience_is_over(store)) == ["retired"]


@pytest.mark.parametrize("is_overtaking", [False, True])
def test_odd_response_left_over_by_a_probe_is_believed_only_in_its_turn(is_overtaking: bool) -> None:
    store = warm()
    first = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    probe = of(Probe, sent := store.response(first.correlation_id, ODD, 1.1))[0]
    resend(store, sent, 1.1)
    if is_overtaking:
        send(store, FakeRequest(HANDED_UP), now=1.1)
    later = send(store, FakeRequest(apis.FIND_COORDINATOR), now=1.1)
    assert store.response(later.correlation_id, ODD, 1.11) == []
    resend(store, store.response(probe.correlation_id, PROBE_ANSWER, 1.12), 1.12)
    assert kinds(patience_is_over(store))[:1] == (["retired"] if is_overtaking else ["completed"])


def test_odd_response_to_what_is_doubted_is_forgotten() -> None:
    store = warm()
    doubted = send(store, FakeRequest(apis.LIST_OFFSETS, keys=("b",)), now=1.0)
    other = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    resend(store, store.response(doubted.correlation_id, ODD, 1.1), 1.1)
    events = store.response(other.correlation_id, memoryview(b"for b"), 1.11)
    assert doubted.state is State.DOUBTED
    resend(store, events, 1.11)
    (probe,) = [e for e in store._requests.values() if isinstance(e.request, Question)]
    events = store.response(probe.correlation_id, PROBE_ANSWER, 1.12)
    assert [e.request for e in of(Requeued, events)] == [doubted, other]


def test_response_that_no_caller_could_act_upon_is_lost() -> None:
    store = warm()
    entry = send(store, FakeRequest(HANDED_UP), now=1.0)
    events = store.response(entry.correlation_id, memoryview(b"of nobody"), 1.1)
    assert [e.cause for e in of(Orphan, events)] == ["misfit"]
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.11)
    assert [e.verdict for e in of(Failed, events)] == [Verdict.HAND_UP]


def test_odd_answer_beside_a_missing_one_is_not_believed() -> None:
    store = warm()
    first, second = (
        send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0),
        send(store, FakeRequest(apis.METADATA), now=1.0),
    )
    events = store.response(second.correlation_id, ODD, 1.1)
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.11)
    assert [e.request for e in of(Requeued, events)] == [first, second]


def test_odd_answer_that_fits_another_request_is_that_ones() -> None:
    store = warm()
    first = send(store, FakeRequest(apis.LIST_OFFSETS, keys=("a",)), now=1.0)
    second = send(store, FakeRequest(apis.LIST_OFFSETS, keys=("b",)), now=1.0)
    events = store.response(first.correlation_id, memoryview(b"for b"), 1.1)
    assert [e.cause for e in of(Orphan, events)] == ["misfit"]
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.11)
    assert [e.request for e in of(Requeued, events)] == [first, second]


def test_own_answer_after_an_odd_one_is_believed() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS), now=1.0)
    events = store.response(entry.correlation_id, ODD, 1.1)
    resend(store, events, 1.1)
    assert [e.cause for e in of(Orphan, store.response(entry.correlation_id, OK, 1.11))] == ["misfit"]
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.12)
    assert [(e.request, e.response) for e in of(Completed, events)] == [(entry, b"ok")]


def test_answer_that_does_not_decode_retires_while_authenticating() -> None:
    store = tracker()
    send(store, FakeRequest(apis.SASL_AUTHENTICATE))
    other = send(store)
    assert kinds(store.response(other.correlation_id, BAD, 0.1)) == ["orphan", "retired"]


# -- T7 -----------------------------------------------------------------------


def test_mismatch_while_authenticating_retires_at_once() -> None:
    store = tracker()
    send(store, FakeRequest(apis.SASL_AUTHENTICATE))
    assert "retired" in kinds(store.response(5, OK, 0.1))


def test_budget_of_mismatches_retires_and_settles_all() -> None:
    store = tracker(max_mismatches=3)
    entry = send(store)
    seen: list[Event] = []
    for n in range(4):
        seen += store.response(10 + n, OK, 0.1)
    assert len(of(Retired, seen)) == 1
    assert store.response(entry.correlation_id, OK, 0.2) == []
    assert [e.request for e in of(Failed, store.close(None))] == [entry]
    assert store.close(None) == []


def test_mismatches_outside_the_window_are_forgiven() -> None:
    store = tracker(max_mismatches=3, mismatch_window_ms=1000)
    seen: list[Event] = []
    for n in range(20):
        seen += store.response(10 + n, OK, float(n))
    assert of(Retired, seen) == []


# -- the end ------------------------------------------------------------------


def test_closing_says_which_outcome_is_unknown() -> None:
    store = tracker()
    send(store, FakeRequest(apis.PRODUCE))
    send(store, FakeRequest(apis.PRODUCE, resend_safe=True))
    store.queue(FakeRequest(apis.PRODUCE), 30.0)  # never sent
    error = ConnectionError("gone")
    verdicts = [e.verdict for e in of(Failed, store.close(error))]
    assert verdicts == [Verdict.OUTCOME_UNKNOWN, Verdict.CLOSED, Verdict.CLOSED]


def test_what_has_not_left_the_process_is_not_unknown() -> None:
    store = tracker()
    send(store, FakeRequest(apis.PRODUCE))
    waiting = send(store, FakeRequest(apis.PRODUCE))
    events = store.close(None, frozenset([waiting.correlation_id]))
    assert [e.verdict for e in of(Failed, events)] == [Verdict.OUTCOME_UNKNOWN, Verdict.CLOSED]


def test_round_trips_follow_rfc_6298() -> None:
    trips = RoundTrips(0.05, 5.0)
    assert trips.after(0) == 1.0
    trips.sample(0.1)
    assert trips.after(0) == trips.estimate == pytest.approx(0.3)
    for _ in range(200):
        trips.sample(0.001)
    assert trips.estimate == pytest.approx(0.051)
    assert trips.after(3) == pytest.approx(0.408)
    assert trips.after(5_000) == 5.0


def test_reordered_event_names_the_api() -> None:
    assert Reordered("Fetch", 3).kind == "reordered"
    assert Lost("Fetch", 3, "why").reason == "why"


def test_a_policy_that_sends_nothing_again_believes_no_odd_response_for_want_of_time() -> None:
    for policy, ends in ((RecoveryPolicy(), False), (RecoveryPolicy.strict(), True)):
        store = InFlightRequests(policy, 1000, Question(apis.METADATA))
        entry = send(store, FakeRequest(apis.LIST_OFFSETS))
        send(store, FakeRequest(expected_ms=5000))  # a long poll, which the probe waits behind
        resend(store, store.response(entry.correlation_id, ODD, 0.1), 0.1)
        events = store.expired(20.0)
        assert bool(of(Retired, events)) == ends and bool(of(Completed, events)) != ends
