"""The tracker, rule by rule (T1 to T8 of DESIGN.md), with time as an argument."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tolerant_client import apis
from tolerant_client.correlation import SPACE, CorrelationIds
from tolerant_client.events import Completed, Event, Failed, Lost, Orphan, Probe, Reordered, Requeued, Retired, Verdict
from tolerant_client.inflight import InFlightRequests
from tolerant_client.lifecycle import TRANSITIONS, IllegalTransition, InFlightRequest, Input, State
from tolerant_client.policy import RecoveryPolicy
from tolerant_client.roundtrips import RoundTrips

OK = memoryview(b"ok")
HANDED_UP = 999  # an API without a row
PROBE_ANSWER = memoryview(b"\0\0\0\0\0\0")


class FakeRequest:
    """A request whose answer is any body but b"bad"."""

    API_VERSION: int | None = 1

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
        self.order_keys = keys
        self.resend_safe = resend_safe
        self.expected_ms = expected_ms

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[apis.Buffer]:
        return [b"\0" * 12]

    def decode_response(self, body: memoryview) -> bytes:
        if body == b"bad":
            raise ValueError("2 bytes left over")
        return bytes(body)

    def is_out_of_turn(self, response: bytes) -> bool:
        return response == b"45"


def tracker(first_id: int = 1000, **policy: Any) -> InFlightRequests:
    return InFlightRequests(RecoveryPolicy(**policy), first_id)


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
    assert (event.request, event.response, event.latency, event.is_reordered) == (first, b"ok", 0.25, False)
    assert list(store) == [second]


def test_later_answer_is_delivered_and_the_older_one_gets_a_grace() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.METADATA)), send(store, FakeRequest(apis.LIST_OFFSETS))
    assert kinds(store.response(later.correlation_id, OK, 1.0)) == ["completed"]
    assert store.next_wakeup(1.0) == pytest.approx(1.1)
    assert store.expired(1.05) == []
    assert kinds(store.response(older.correlation_id, OK, 1.09)) == ["reordered", "completed"]
    assert len(store) == 0


def test_unmatched_request_is_lost_after_the_grace() -> None:
    store = tracker()
    older, later = send(store, FakeRequest(apis.LIST_OFFSETS)), send(store, FakeRequest(apis.METADATA))
    store.response(later.correlation_id, OK, 1.0)
    events = store.expired(1.1)
    assert kinds(events) == ["lost", "requeued"]
    assert older.state is State.REQUEUED


def test_later_answer_of_the_same_api_waits_for_the_grace() -> None:
    store = tracker()
    send(store)
    later = send(store)
    assert store.response(later.correlation_id, OK, 1.0) == []
    assert len(store) == 2
    assert kinds(store.expired(1.05)) == []


def test_answer_that_may_be_a_lost_ones_waits_for_proof() -> None:
    store = tracker()
    send(store)
    later = send(store)
    assert store.response(later.correlation_id, OK, 1.0) == []
    events = store.expired(1.1)
    assert kinds(events) == ["lost", "failed", "probe"]
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.2)
    assert [e.request for e in of(Completed, events)] == [later]


def test_own_answer_of_a_slow_request_shows_that_the_one_before_was_a_lie() -> None:
    store = tracker()
    older, later = send(store), send(store)
    store.response(later.correlation_id, memoryview(b"the older one's"), 1.0)
    resend(store, store.expired(1.1), 1.1)
    events = store.response(later.correlation_id, memoryview(b"its own"), 1.5)
    assert of(Completed, events) == []
    assert [e.request for e in of(Failed, events)] == [later]
    assert older.state is State.FAILED


def test_proof_by_an_answer_that_is_not_believed_any_more_is_none() -> None:
    store = tracker()
    first, second, third = send(store), send(store), send(store)
    assert store.response(second.correlation_id, memoryview(b"the first one's"), 1.0) == []
    assert store.response(third.correlation_id, memoryview(b"the second one's"), 1.0) == []
    events = store.response(third.correlation_id, memoryview(b"its own"), 1.0)
    assert of(Completed, events) == []
    assert [e.request for e in of(Failed, events)] == [first, second, third]


def test_answer_to_something_sent_later_is_proof_enough() -> None:
    store = tracker()
    older, later = send(store), send(store)
    other = send(store, FakeRequest(99))
    store.response(later.correlation_id, OK, 1.0)
    store.response(other.correlation_id, OK, 1.0)
    events = store.expired(1.1)
    assert kinds(events) == ["lost", "failed", "completed"]
    assert [e.request for e in of(Failed, events) + of(Completed, events)] == [older, later]


def test_requests_that_share_a_key_are_not_overtaken_even_across_a_resend() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True)) for _ in "ab")
    other = send(store, FakeRequest(apis.LIST_OFFSETS))
    assert store.response(later.correlation_id, OK, 1.0) == []
    assert kinds(store.response(other.correlation_id, OK, 1.0)) == ["completed"]
    events = store.expired(1.1)
    assert kinds(events) == ["lost", "requeued"]
    resend(store, events, 1.1)
    events = store.response(older.correlation_id, OK, 1.2)
    assert [e.request for e in of(Completed, events)] == [older, later]


def test_answer_that_came_out_of_turn_is_asked_for_again_after_the_resend() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True)) for _ in "ab")
    store.response(later.correlation_id, memoryview(b"45"), 1.0)
    resend(store, store.expired(1.1), 1.1)
    events = store.response(older.correlation_id, OK, 1.2)
    assert kinds(events) == ["completed", "requeued"]
    resend(store, events, 1.2)
    assert kinds(store.response(later.correlation_id, OK, 1.3)) == ["completed"]
    assert len(store) == 0


def test_two_different_answers_for_a_held_request_lose_both() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True)) for _ in "ab")
    store.response(later.correlation_id, memoryview(b"the older one's"), 1.0)
    events = store.response(later.correlation_id, memoryview(b"its own"), 1.0)
    assert [e.request for e in of(Requeued, events)] == [older, later]
    assert of(Completed, events) == []


def test_second_equal_answer_for_a_held_request_is_a_duplicate() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True)) for _ in "ab")
    store.response(later.correlation_id, OK, 1.0)
    (orphan,) = store.response(later.correlation_id, OK, 1.0)
    assert orphan.cause == "duplicate"
    events = store.response(older.correlation_id, OK, 1.01)
    assert [e.request for e in of(Completed, events)] == [older, later]


def test_peer_that_answers_late_is_given_more_grace() -> None:
    store = tracker()
    older, later = send(store), send(store, FakeRequest(apis.LIST_OFFSETS))
    store.response(later.correlation_id, OK, 1.0)
    store.expired(1.1)
    (orphan,) = store.response(older.correlation_id, OK, 1.4)
    assert orphan.cause == "late"
    older, later = send(store, now=2.0), send(store, FakeRequest(apis.LIST_OFFSETS), now=2.0)
    store.response(later.correlation_id, OK, 3.0)
    assert store.expired(3.5) == []
    assert kinds(store.response(older.correlation_id, OK, 3.6)) == ["reordered", "completed"]


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
    later = send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True))
    store.response(other.correlation_id, OK, 1.0)
    resend(store, store.expired(1.1), 1.1)
    assert store.response(later.correlation_id, OK, 1.2) == []
    events = store.response(older.correlation_id, OK, 1.3)
    assert [e.request for e in of(Completed, events)] == [older, later]


def overtaken(store: InFlightRequests, request: FakeRequest, now: float = 1.0) -> float:
    """Until when the answer of `request` may come after a later one came at `now`."""
    send(store, request, now)
    later = send(store, FakeRequest(99), now)
    store.response(later.correlation_id, OK, now)
    due = store.next_wakeup(now)
    assert due is not None
    return due - now


def warm(rtt: float = 0.004, **policy: Any) -> InFlightRequests:
    store = tracker(**policy)
    for _ in range(20):
        store.response(send(store).correlation_id, OK, rtt)
    return store


def test_grace_is_one_round_trip_where_giving_up_too_early_costs_one_repeat() -> None:
    assert overtaken(warm(), FakeRequest(apis.FETCH, resend_safe=True)) == pytest.approx(0.005)
    assert overtaken(warm(0.02), FakeRequest(apis.FETCH, resend_safe=True)) == pytest.approx(0.02, abs=0.002)
    assert overtaken(warm(0.2), FakeRequest(apis.FETCH, resend_safe=True)) == pytest.approx(0.1)
    assert overtaken(tracker(), FakeRequest(apis.FETCH, resend_safe=True)) == pytest.approx(0.1)


def test_grace_is_whole_where_giving_up_too_early_is_told_to_the_caller() -> None:
    assert overtaken(warm(), FakeRequest(apis.PRODUCE)) == pytest.approx(0.1)
    assert overtaken(warm(), FakeRequest(apis.OFFSET_COMMIT, keys=("g",))) == pytest.approx(0.1)


# -- T3 -----------------------------------------------------------------------


class Yielding(FakeRequest):
    yields_to_newer = True


def test_commit_is_sent_again_unless_a_newer_one_of_its_group_was_sent() -> None:
    def commit(group: str) -> FakeRequest:
        return Yielding(apis.OFFSET_COMMIT, keys=(("group", group),), resend_safe=True)

    events = lose(tracker(), commit("a"))
    assert kinds(events) == ["lost", "requeued"]
    store = tracker()
    older, newer, other = send(store, commit("a")), send(store, commit("a")), send(store, commit("b"))
    store.response(send(store, FakeRequest(99)).correlation_id, OK, 1.0)
    events = store.expired(1.1)
    assert [e.request for e in of(Requeued, events)] == [newer, other]
    assert [(e.request, e.verdict) for e in of(Failed, events)] == [(older, Verdict.HAND_UP)]


def test_commit_yields_to_a_newer_one_that_was_answered_already() -> None:
    store = tracker()
    older = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",), resend_safe=True))
    newer = send(store, Yielding(apis.OFFSET_COMMIT, keys=("g",), resend_safe=True))
    assert store.response(newer.correlation_id, OK, 1.0) == []
    events = store.expired(1.1)
    assert [e.request for e in of(Failed, events)] == [older]
    resend(store, events, 1.1)
    events = store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.2)
    assert [e.request for e in of(Completed, events)] == [newer]


def lose(store: InFlightRequests, request: FakeRequest, now: float = 1.0) -> list[Event]:
    """Loses one request the plain way: a later one is answered, the grace passes."""
    send(store, request, now)
    later = send(store, FakeRequest(99), now)
    store.response(later.correlation_id, OK, now)
    return store.expired(now + 0.1)


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
    assert kinds(events) == ["lost", "requeued" if verdict is None else "failed"]
    assert [e.verdict for e in of(Failed, events)] == ([verdict] if verdict else [])


def test_plain_produce_is_sent_again_only_where_the_policy_says_so() -> None:
    events = lose(tracker(resend_plain_produce=True), FakeRequest(apis.PRODUCE))
    assert kinds(events) == ["lost", "requeued"]


def test_request_lost_too_often_fails_with_its_history() -> None:
    store = tracker(max_resends=2)
    entry = send(store, FakeRequest(apis.LIST_OFFSETS))
    events: list[Event] = []
    for round_ in range(3):
        now = float(round_)
        later = send(store, FakeRequest(99), now)
        store.response(later.correlation_id, OK, now)
        events = store.expired(now + 0.1)
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
    later = send(store, FakeRequest(99))
    store.response(5, OK, 0.9)  # explains the loss, so that it needs no grace
    events = store.response(later.correlation_id, OK, 1.1)
    assert kinds(events) == ["completed", "lost", "failed"]


# -- T4 -----------------------------------------------------------------------


def test_orphan_response_is_dropped_and_named() -> None:
    store = tracker()
    entry = send(store)
    store.response(entry.correlation_id, OK, 0.1)
    assert [e.cause for e in of(Orphan, store.response(entry.correlation_id, OK, 0.2))] == ["duplicate"]
    assert [e.cause for e in of(Orphan, store.response(7, OK, 0.2))] == ["unknown"]
    assert [e.cause for e in of(Orphan, store.response(-5, OK, 0.2))] == ["unknown"]
    unasked = store.unanswered_id()
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
    store = tracker()
    warm = send(store)
    store.response(warm.correlation_id, OK, 0.001)
    entry = send(store, FakeRequest(apis.FETCH, expected_ms=500), now=1.0)
    due = store.next_wakeup(1.0)
    assert due == pytest.approx(1.51)
    assert store.expired(1.505) == []
    events = store.expired(1.511)
    assert kinds(events) == ["probe"]
    resend(store, events, 1.511)
    assert store.response(of(Probe, events)[0].correlation_id, PROBE_ANSWER, 1.513) == []
    assert store.next_wakeup(1.513) == pytest.approx(1.518, abs=0.002)
    events = store.expired(1.53)
    assert [e.request for e in of(Failed, events)] == [entry]


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
    store.progress(1.5)
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
    assert gaps == sorted(gaps)
    assert len(times) < 10


def test_dead_connection_is_retired_at_the_request_timeout() -> None:
    store = tracker()
    send(store, timeout=30.0)
    resend(store, store.expired(1.1), 1.1)
    (event,) = of(Retired, store.expired(30.0))
    assert event.is_timeout
    assert kinds(store.close(None, 30.0)) == ["failed"]


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
    assert kinds(store.expired(1.1)) == ["lost", "requeued"]


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
    resend(store, store.response(later.correlation_id, BAD, 0.1), 0.1)
    events = store.response(later.correlation_id, OK, 0.101)
    assert kinds(events) == ["completed", "lost", "requeued"]
    assert of(Lost, events)[0].correlation_id != later.correlation_id
    assert older.state is State.REQUEUED


def test_connection_on_which_nothing_decodes_any_more_is_retired() -> None:
    store = tracker()
    entry = send(store)
    resend(store, store.response(entry.correlation_id, BAD, 0.1), 0.1)
    assert of(Retired, store.expired(4.0)) == []
    assert "decode" in of(Retired, store.expired(4.11))[0].reason


def test_trial_waits_for_what_may_rightly_wait_at_the_broker() -> None:
    store = warm()
    entry = send(store, FakeRequest(apis.LIST_OFFSETS))
    send(store, FakeRequest(apis.JOIN_GROUP, expected_ms=60_000))
    resend(store, store.response(entry.correlation_id, BAD, 0.1), 0.1)
    assert of(Retired, store.expired(29.0)) == []


def test_good_answer_ends_the_trial_of_a_connection() -> None:
    store = tracker()
    entry, later = send(store, FakeRequest(apis.LIST_OFFSETS)), send(store, FakeRequest(apis.METADATA))
    resend(store, store.response(entry.correlation_id, BAD, 0.1), 0.1)
    resend(store, store.response(later.correlation_id, OK, 0.2), 0.2)
    assert of(Retired, store.expired(4.2)) == []


def test_second_answer_that_does_not_decode_leaves_a_held_one_alone() -> None:
    store = tracker()
    older, later = (send(store, FakeRequest(apis.PRODUCE, keys=("t-0",), resend_safe=True)) for _ in "ab")
    store.response(later.correlation_id, OK, 1.0)
    assert of(Lost, store.response(later.correlation_id, BAD, 1.0)) == []
    events = store.response(older.correlation_id, OK, 1.01)
    assert [e.request for e in of(Completed, events)] == [older, later]


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
    assert [e.request for e in of(Failed, store.close(None, 0.2))] == [entry]
    assert store.close(None, 0.3) == []


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
    verdicts = [e.verdict for e in of(Failed, store.close(error, 1.0))]
    assert verdicts == [Verdict.OUTCOME_UNKNOWN, Verdict.CLOSED, Verdict.CLOSED]


def test_find_coordinator_of_0_8_2_is_answered_under_id_zero() -> None:
    store = tracker()
    entry = send(store, FakeRequest(apis.FIND_COORDINATOR, version=0))
    assert [e.request for e in of(Completed, store.response(0, OK, 0.1))] == [entry]


def test_round_trips_follow_rfc_6298() -> None:
    trips = RoundTrips(0.05, 5.0)
    assert trips.margin == 1.0
    trips.sample(0.1)
    assert trips.margin == pytest.approx(0.2)
    assert trips.estimate == pytest.approx(0.3)
    for _ in range(200):
        trips.sample(0.001)
    assert trips.margin == 0.05
    trips.unanswered = 3
    assert trips.margin == pytest.approx(0.4)
    trips.unanswered = 5_000  # an outage of days
    assert trips.margin == 5.0


def test_reordered_event_names_the_api() -> None:
    assert Reordered("Fetch", 3).kind == "reordered"
    assert Lost("Fetch", 3, "why").reason == "why"
