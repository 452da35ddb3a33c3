"""One partition of a batch producer, against a log that behaves as a broker's (ProducerStateManager)."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.cluster.producer.partition import (
    KNOWN_FOR,
    LOST,
    ProducerBatch,
    ProducerPartition,
    Sought,
    Verdict,
)
from tolerant_client.records.record_batch import Record, encode_batch, read_header

TP = TopicPartition("t", 0)
PID, EPOCH = 4711, 3
OUT_OF_ORDER, TOO_LARGE, NOT_LEADER, NOT_AUTHORIZED, INVALID_RECORD = 45, 10, 6, 29, 87


def batch(number: int, count: int = 2) -> ProducerBatch:
    data = memoryview(bytearray(encode_batch([Record(0, 1, None, b"%d" % number)] * count)))
    return ProducerBatch(data, count, range(count), deadline=100.0)


def partition(batches: int = 0, max_in_flight: int = 5) -> ProducerPartition:
    made = ProducerPartition(TP, PID, EPOCH, max_in_flight)
    for number in range(batches):
        made.add(batch(number))
    return made


def send_all(state: ProducerPartition, now: float = 0.0) -> list[ProducerBatch]:
    sent = []
    while state.may_send(now):
        sent.append(state.send())
    return sent


def known(batches: int) -> tuple[ProducerPartition, list[ProducerBatch]]:
    """A partition whose first batch was appended at offset 0, and the next ones, in flight."""
    state = partition(batches + 1)
    (first,) = send_all(state)
    state.appended(first, 0, 0.0)
    return state, send_all(state)


def test_until_the_broker_knows_the_producer_one_batch_is_in_flight() -> None:
    """Law B: it would accept any sequence."""
    state = partition(7)
    (first,) = send_all(state)
    proven, verdict = state.appended(first, 100, 0.0)
    assert (proven, verdict) == ([first], Verdict.NOTHING)
    assert len(send_all(state)) == 5


def test_after_a_pause_the_broker_may_have_forgotten_the_producer() -> None:
    """Law B: of two batches in flight it would accept only the second one, which would then prove the first."""
    state, sent = known(1)
    state.appended(sent[0], 2, 1.0)
    for number in range(3):
        state.add(batch(number))
    now = 1.0 + KNOWN_FOR
    (first,) = send_all(state, now)
    state.appended(first, 500, now)
    assert len(send_all(state, now)) == 2


def test_a_topic_that_was_created_again_between_two_tasks_has_lost_nothing_of_the_second() -> None:
    state, sent = known(1)
    state.appended(sent[0], 2, 0.0)
    assert state.is_idle
    state.forget()
    state.add(batch(1))
    state.add(batch(2))
    (first,) = send_all(state)
    assert state.appended(first, 0, 0.0) == ([first], Verdict.NOTHING)
    (second,) = send_all(state)
    assert state.appended(second, 2, 0.0) == ([second], Verdict.NOTHING)


def test_a_record_that_is_refused_costs_no_pauses() -> None:
    """Hundreds of them may follow one another, and the others wait."""
    state = partition()
    state.add(batch(0, 1))
    verdicts = [state.failed(state.send(), INVALID_RECORD, 5.0) for _ in range(BELIEVED_AFTER) if state.may_send(5.0)]
    assert verdicts == [Verdict.AGAIN, Verdict.AGAIN, Verdict.RECORDS]


def test_batches_are_stamped_with_one_sequence_after_the_other() -> None:
    state, sent = known(3)
    headers = [read_header(b.data) for b in sent]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [
        (PID, EPOCH, 2),
        (PID, EPOCH, 4),
        (PID, EPOCH, 6),
    ]


def test_without_idempotence_no_batch_has_a_sequence_and_none_proves_another() -> None:
    state = ProducerPartition(TP, -1, -1, 3)
    for number in range(3):
        state.add(batch(number))
    first, second, third = send_all(state)
    assert {read_header(b.data).base_sequence for b in (first, second, third)} == {-1}
    assert state.failed(first, LOST, 0.0) is Verdict.NOTHING
    assert state.appended(third, 10, 0.0)[0] == [third]
    assert state.appended(second, 12, 0.0) == ([second], Verdict.AGAIN)
    assert send_all(state) == [first]


def test_a_later_response_proves_a_lost_one() -> None:
    """Law A."""
    state, (first, second, third) = known(3)
    assert state.failed(first, LOST, 0.0) is Verdict.NOTHING
    assert state.failed(second, LOST, 0.0) is Verdict.NOTHING
    assert state.appended(third, 6, 0.0) == ([first, second, third], Verdict.NOTHING)
    assert state.is_idle and first.sends == second.sends == 1


def test_what_no_later_response_proves_goes_again_with_the_same_bytes() -> None:
    state, sent = known(2)
    bytes_before = [bytes(b.data) for b in sent]
    state.failed(sent[0], LOST, 0.0)
    assert state.failed(sent[1], LOST, 0.0) is Verdict.AGAIN
    (again,) = send_all(state)
    assert again is sent[0]
    state.appended(again, 2, 0.0)
    assert send_all(state) == [sent[1]]
    assert [bytes(b.data) for b in sent] == bytes_before


def test_after_a_refusal_nothing_is_sent_until_all_is_settled() -> None:
    """Law C."""
    state, sent = known(3)
    state.add(batch(9))
    assert state.failed(sent[0], NOT_LEADER, 0.0) is Verdict.NOTHING
    assert send_all(state) == []
    assert state.failed(sent[1], OUT_OF_ORDER, 0.0) is Verdict.NOTHING
    assert state.failed(sent[2], OUT_OF_ORDER, 0.0) is Verdict.AGAIN
    assert state.last_code == NOT_LEADER and state.retry_at > 0
    assert send_all(state, state.retry_at - 0.001) == []
    assert send_all(state, state.retry_at) == [sent[0]]


def test_a_refused_batch_that_a_later_one_proves_was_refused_by_mistake() -> None:
    """A spoiled response: a broker does not append out of order."""
    state, (first, second) = known(2)
    state.failed(first, NOT_LEADER, 0.0)
    assert state.appended(second, 4, 0.0) == ([first, second], Verdict.NOTHING)
    assert state.is_idle


def test_an_offset_that_contradicts_the_proof_is_no_proof() -> None:
    """Law G.  A topic that was created again knows no producer, and takes whatever comes first."""
    state, (first, second) = known(2)
    state.failed(first, NOT_LEADER, 0.0)
    assert state.appended(second, 0, 0.0) == ([], Verdict.CONTRADICTED)
    assert state.sought == Sought((PID, EPOCH), (0,), 0, 0)
    assert not state.may_send(1e9)


def test_a_later_response_under_the_id_of_a_lost_one_is_found_out_and_nothing_is_sent_but_what_has_no_proof() -> None:
    """Law G: the second batch gets the third one's response, and the third one's own offset is below what was told."""
    state, (second, third, fourth) = known(3)
    assert state.appended(second, 4, 0.0) == ([second], Verdict.NOTHING)
    assert state.failed(third, LOST, 0.0) is Verdict.NOTHING
    assert state.failed(fourth, LOST, 0.0) is Verdict.AGAIN
    assert send_all(state) == [third]
    assert state.appended(third, 4, 0.0) == ([], Verdict.CONTRADICTED)
    assert state.sought == Sought((PID, EPOCH), (0, 2), 0, 4)
    state.found({0: 0, 2: 2})
    now = state.retry_at
    assert send_all(state, now) == [third]
    assert state.appended(third, 4, now) == ([third], Verdict.NOTHING)
    assert send_all(state, now) == [fourth]
    assert state.appended(fourth, 6, 0.0)[0] == [fourth] and state.is_idle


def test_nothing_is_believed_between_a_contradiction_and_what_the_log_says() -> None:
    """Law G: a topic that was created again grows, so a later offset contradicts nothing."""
    state, (second, third, fourth) = known(3)
    assert state.appended(second, 0, 0.0) == ([], Verdict.NOTHING)
    assert state.appended(third, 1_000, 0.0) == ([], Verdict.NOTHING)
    assert state.failed(fourth, TOO_LARGE, 0.0) is Verdict.CONTRADICTED
    assert state.sought == Sought((PID, EPOCH), (0,), 0, 0) and state.first is second


def test_what_is_sought_begins_where_a_batch_before_lies_that_may_have_got_the_response_of_the_first_of_it() -> None:
    """Law G: each of five in flight may have got the last one's response."""
    state = partition(14)
    for base_offset in range(100, 230, 10):
        state.appended(state.send(), base_offset, 0.0)
    assert state.appended(state.send(), 215, 0.0)[1] is Verdict.CONTRADICTED
    assert state.sought == Sought((PID, EPOCH), (16, 18, 20, 22, 24), 140, 220)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (NOT_AUTHORIZED, Verdict.FAILED),
        (TOO_LARGE, Verdict.RECORDS),
        (INVALID_RECORD, Verdict.RECORDS),
        (OUT_OF_ORDER, Verdict.FAILED),
    ],
)
def test_what_would_end_it_is_believed_the_third_time(code: int, verdict: Verdict) -> None:
    """Law E; of a batch with one record."""
    state = partition()
    state.add(batch(0, 1))
    now = 0.0
    for attempt in range(1, BELIEVED_AFTER + 1):
        (sent,) = send_all(state, now)
        assert state.failed(sent, code, now) is (verdict if attempt == BELIEVED_AFTER else Verdict.AGAIN)
        now = state.retry_at


def test_batches_behind_one_that_is_in_no_log_get_its_sequences() -> None:
    """Law D."""
    state, sent = known(2)
    assert state.failed(sent[0], TOO_LARGE, 0.0) is Verdict.NOTHING
    assert state.failed(sent[1], OUT_OF_ORDER, 0.0) is Verdict.RECORDS
    halves = [batch(10, 1), batch(11, 1)]
    state.replace_first(halves, 200.0)
    assert {b.deadline for b in (*halves, sent[1])} == {200.0}
    (first,) = send_all(state, 1e9)
    state.appended(first, 2, 1e9)
    rest = send_all(state, 1e9)
    assert [first, *rest] == [*halves, sent[1]]
    assert [b.sequence for b in (first, *rest)] == [2, 3, 4]
    state.appended(rest[0], 3, 1e9)
    state.appended(rest[1], 4, 1e9)
    assert state.is_idle


def test_batches_behind_one_that_is_left_out_move_up() -> None:
    """Law D: the broker waits for the sequence that was never appended."""
    state, sent = known(2)
    state.failed(sent[0], TOO_LARGE, 0.0)
    state.failed(sent[1], OUT_OF_ORDER, 0.0)
    state.replace_first([], 200.0)
    assert send_all(state, 1e9) == [sent[1]]
    assert read_header(sent[1].data).base_sequence == sent[1].sequence == 2


@pytest.mark.parametrize("appended", range(1, 6))
def test_what_a_restarted_broker_has_forgotten_is_proven_by_a_later_batch(appended: int) -> None:
    """Law F: five were in flight, the first ones were appended, and no response came."""
    broker, state, now = Broker(), partition(6), 0.0
    (first,) = send_all(state)
    state.appended(first, broker.append(bytes(first.data))[1], now)
    sent = send_all(state)
    for number, each in enumerate(sent):
        if number < appended:
            broker.append(bytes(each.data))
        state.failed(each, LOST, now)
    broker.restart()
    settled: list[ProducerBatch] = []
    while not state.is_idle:
        now = max(now, state.retry_at)
        for each in send_all(state, now):
            code, offset = broker.append(bytes(each.data))
            if code:
                assert state.failed(each, code, now) is Verdict.AGAIN
            else:
                proven, verdict = state.appended(each, offset, now)
                settled += proven
                assert verdict is Verdict.NOTHING
    assert settled == sent
    assert broker.log == [bytes(each.data[61:]) for each in (first, *sent)]


def out_of_order(batches: int) -> tuple[ProducerPartition, list[ProducerBatch]]:
    """A partition whose batches were lost in flight, and the first of them, sent again, was refused as out of order."""
    state, sent = known(batches)
    for each in sent:
        state.failed(each, LOST, 0.0)
    assert send_all(state) == sent[:1]
    assert state.failed(sent[0], OUT_OF_ORDER, 0.0) is Verdict.AGAIN
    return state, sent


def test_what_comes_in_no_order_at_all_ends_the_partition_when_all_was_tried_again_and_again() -> None:
    """Laws E and F: the leader lost what it had acknowledged."""
    state, sent = out_of_order(3)
    tried = [sent[0]]
    verdict = Verdict.AGAIN
    while verdict is Verdict.AGAIN:
        (again,) = send_all(state, state.retry_at)
        tried.append(again)
        verdict = state.failed(again, OUT_OF_ORDER, state.retry_at)
    assert (verdict, state.first) == (Verdict.FAILED, sent[0])
    assert tried == [sent[0], sent[2], sent[1]] * 2 + sent[:1]


@pytest.mark.parametrize("code", [LOST, NOT_LEADER, NOT_AUTHORIZED, TOO_LARGE])
def test_a_later_batch_that_is_refused_for_another_reason_says_nothing_of_the_first(code: int) -> None:
    """The search of law F starts again with the first batch, which is neither split nor given up."""
    state, sent = out_of_order(3)
    assert send_all(state, state.retry_at) == sent[2:]
    assert state.failed(sent[2], code, 1.0) is Verdict.AGAIN
    assert state.first is sent[0]
    assert send_all(state, state.retry_at) == sent[:1]


def test_a_later_batch_at_an_offset_that_contradicts_the_proof_is_no_proof_after_a_restart() -> None:
    """The topic was created again meanwhile: it takes any sequence."""
    state, sent = out_of_order(3)
    assert send_all(state, state.retry_at) == sent[2:]
    assert state.appended(sent[2], 0, 1.0)[1] is Verdict.CONTRADICTED


def test_after_a_restart_batches_are_in_flight_together_again() -> None:
    state, sent = out_of_order(2)
    for number in range(3):
        state.add(batch(number))
    assert send_all(state, state.retry_at) == sent[1:]
    assert state.appended(sent[1], 4, 1.0)[0] == sent
    assert len(send_all(state, 1.0)) == 3


def test_without_idempotence_no_batch_goes_ahead_of_the_first() -> None:
    """A spoiled response: without sequences no broker refuses an order."""
    state = ProducerPartition(TP, -1, -1, 3)
    for number in range(3):
        state.add(batch(number))
    sent = send_all(state)
    for each in sent:
        state.failed(each, OUT_OF_ORDER, 0.0)
    assert send_all(state, state.retry_at) == sent


def test_doubts_end_with_progress() -> None:
    state, now = partition(), 0.0
    for number in range(3):
        state.add(batch(number))
        for _ in range(BELIEVED_AFTER - 1):
            assert state.failed(state.send(), NOT_AUTHORIZED, now) is Verdict.AGAIN
            now = state.retry_at
        state.appended(state.send(), -1, now)
    assert state.is_idle


def test_nothing_is_sent_before_the_partition_is_in_its_transaction() -> None:
    state = partition(1)
    state.is_enrolled = False
    assert not state.may_send(0.0)
    state.is_enrolled = True
    assert state.may_send(0.0)


class Broker:
    """A log that remembers a producer's last five batches, after a restart only the last one; others write there, too."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.offsets: dict[int, int] = {}  # by sequence
        self.end = 0
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=5)  # sequence, count, base offset

    def restart(self) -> None:
        self._recent = deque(list(self._recent)[-1:], maxlen=5)

    def append(self, data: bytes) -> tuple[int, int]:
        header = read_header(data)
        for sequence, count, offset in self._recent:
            if (sequence, count) == (header.base_sequence, header.record_count):
                return 0, offset
        expected = sum(self._recent[-1][:2]) if self._recent else None
        if expected is not None and header.base_sequence != expected:
            return OUT_OF_ORDER, -1
        self._recent.append((header.base_sequence, header.record_count, self.end))
        self.log.append(bytes(data[61:]))
        offset, self.end = self.end, self.end + header.record_count
        self.offsets[header.base_sequence] = offset
        return 0, offset

    def find(self, sought: Sought) -> dict[int, int] | None:
        there = {sequence: self.offsets.get(sequence, -1) for sequence in sought.sequences}
        is_there = all(sought.from_offset <= offset <= sought.to_offset for offset in there.values())
        return there if is_there else None


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 0.6), st.booleans())
def test_whatever_is_lost_or_refused_every_batch_is_appended_once_and_in_order(
    seed: int, count: int, rate: float, is_made_anew: bool
) -> None:
    """Or a log with acknowledged batches was created again, and the next response that shows this reveals it."""
    dice, broker, state, now = random.Random(seed), Broker(), partition(), 0.0
    batches = [batch(number, dice.randint(1, 3)) for number in range(count)]
    waiting = list(batches)
    wire: list[ProducerBatch] = []  # requests on their way; a broker takes them one after the other
    settled: list[ProducerBatch] = []
    lost_with = -1  # batches that were acknowledged when their log was created again
    is_going = False
    for _ in range(20_000):
        if waiting and dice.random() < 0.5:
            state.add(waiting.pop(0))
        while state.may_send(now):
            wire.append(state.send())
        if is_made_anew and lost_with < 0 and len(settled) > count // 2 and broker.end > 30:
            broker, lost_with = Broker(), len(settled)
        verdicts: list[Verdict] = []
        if wire:
            sent = wire.pop(0)
            broker.end += dice.choice((0, 0, 0, 1, 7)) if lost_with < 0 else 0
            fault = dice.random() < rate
            kind = dice.choice(
                ["never arrives", "answer lost", "refused", "false code", "restart", "the next one's", "swapped"]
            )
            code, offset = (
                (LOST, -1) if fault and kind in ("never arrives", "refused") else broker.append(bytes(sent.data))
            )
            answers = [(sent, code, offset)]
            if fault and kind in ("the next one's", "swapped"):
                if wire:
                    after = wire.pop(0)
                    swapped = (code, offset) if kind == "swapped" else (LOST, -1)
                    answers = [(sent, *broker.append(bytes(after.data))), (after, *swapped)]
            elif fault:
                answers = [(sent, NOT_LEADER if kind in ("refused", "false code") else LOST, -1)]
            is_going = is_going or (fault and kind == "restart")
            if is_going:  # what is on its way is appended, and no response comes
                answers = [(each, LOST, -1) for each, *_ in answers]
                if not wire:
                    broker.restart()
                    is_going = False
            for each, code, offset in answers:
                if code == 0:
                    proven, verdict = state.appended(each, offset, now)
                    settled += proven
                else:
                    verdict = state.failed(each, code, now)
                verdicts.append(verdict)
            if Verdict.CONTRADICTED in verdicts:
                assert state.sought is not None
                there = broker.find(state.sought)
                if there is None:
                    assert lost_with >= 0
                    return
                state.found(there)
            if lost_with >= 0 and Verdict.FAILED in verdicts:
                return
            assert {*verdicts} <= {Verdict.NOTHING, Verdict.AGAIN, Verdict.CONTRADICTED}
        elif not waiting and state.is_idle:
            break
        now += 0.01
    assert settled == batches
    if lost_with < 0 or lost_with == len(batches):
        assert lost_with >= 0 or broker.log == [bytes(b.data[61:]) for b in batches]
    else:
        assert not broker.log, "a batch appended after the log was created again reveals it"
