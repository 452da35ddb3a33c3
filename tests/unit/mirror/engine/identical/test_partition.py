"""The state machine of one copied partition; the letters are the laws in its docstring."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import kafka.errors as Errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Unreplicated
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.cluster.produce import ProducedPartition, add_sequence
from tolerant_client.errors import (
    OversizedRecordError,
    PartitionRefusedError,
    RecordBatchError,
    RecoveryExhaustedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.identical.accept import accept
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.troubles import refusal
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, iter_batches, read_header

TP = TopicPartition("orders", 3)
PRODUCER = 4711
NOT_NEXT = [45, 46, 47, 59, 1]
RETRIABLE = [3, 5, 6, 7, 19, 20, 56]
FATAL = [10, 29, 32, 87]
REMEMBERED_MS = 3_600_000
RULES = AppendRules(
    False, is_compacted=False, max_batch_bytes=1 << 20, remembered_ms=REMEMBERED_MS, filler=GapFill.TRANSACTIONS
)
NOW_MS = 1_700_000_000_000


def batch(base_offset: int, count: int = 10, timestamp: int = 1, **options: object) -> tuple[BatchHeader, memoryview]:
    view = memoryview(
        bytearray(encode_batch([Record(0, timestamp, None, b"x")] * count, base_offset=base_offset, **options))
    )  # type: ignore[arg-type]
    return read_header(view), view


def copying(log_end: int = 100, next_sequence: int = 100, until: int | None = 1000) -> PartitionCopy:
    copy = PartitionCopy(TP, 0.0)
    copy.until = until
    copy.resume(AppendState(log_end, PRODUCER, 0, next_sequence), RULES, 0.0)
    return copy


def take(copy: PartitionCopy, *views: memoryview, until: int | None = None) -> list[Appendable]:
    records = memoryview(bytearray().join(views))
    return list(chain.from_iterable(copy.take(FetchedPartition(TP, 0, 10**6, 10**6, 0, (), records), until, NOW_MS)))


def send(copy: PartitionCopy, base_offset: int, count: int = 10, timestamp: int = 1) -> BatchHeader:
    """Accepts and queues a batch and marks it as sent."""
    (item,) = take(copy, batch(base_offset, count, timestamp)[1])
    copy.enqueue(item)
    assert copy.dequeue() is item and not isinstance(item, Gap)
    copy.sent(item[0])
    return item[0]


def answer(
    copy: PartitionCopy,
    header: BatchHeader,
    error_code: int = 0,
    base_offset: int | None = None,
    now: float = 1.0,
    sent_at: float | None = None,
    **said: Any,
) -> None:
    copy.in_flight -= 1
    at = header.base_offset if base_offset is None else base_offset
    copy.appended(header, ProducedPartition(TP, error_code, at, **said), now if sent_at is None else sent_at, now)


# -- law A: only what starts exactly at the position --------------------------


def test_law_a_what_is_taken_moves_the_position() -> None:
    copy = copying()
    take(copy, batch(100)[1])
    take(copy, batch(110, 5)[1])
    assert (copy.position, copy.acked) == (115, 100)


def test_law_a_batch_that_the_target_has_is_not_taken() -> None:
    copy = copying()
    with pytest.raises(RecordBatchError, match="ends before offset 100"):
        take(copy, batch(90)[1])
    assert copy.position == 100


def test_law_a_gap_is_taken_when_a_second_response_shows_it() -> None:
    copy = copying()
    view = batch(105)[1]
    assert take(copy, view) == [] and copy.position == 100
    gap, _ = take(copy, view)
    assert gap == Gap(100, 105) and copy.position == 115


def test_law_a_gap_of_two_responses_that_disagree_is_not_taken() -> None:
    copy = copying()
    for base_offset in (105, 106, 105, 107):
        assert take(copy, batch(base_offset)[1]) == []
    copy.trouble("anything", 1.0)
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 1.0)
    assert take(copy, batch(107)[1]) == [], "what was shown before the trouble no longer counts"


# -- law B: sequences follow from the log -------------------------------------


def test_law_b_batches_are_stamped_with_consecutive_sequences_of_the_links_producer() -> None:
    copy = copying(next_sequence=7)
    for base_offset, count in ((100, 10), (110, 1), (111, 5)):
        for item in take(copy, batch(base_offset, count)[1]):
            copy.enqueue(item)
    stamped = [next(iter_batches(item[1]))[0] for item in copy.queue if not isinstance(item, Gap)]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in stamped] == [
        (PRODUCER, 0, 7),
        (PRODUCER, 0, 17),
        (PRODUCER, 0, 18),
    ]


def test_law_b_two_writers_give_the_same_batch_the_same_bytes() -> None:
    first, second = copying(), copying(log_end=110, next_sequence=110)
    for copy, start in ((first, 100), (second, 110)):
        for base_offset in range(start, 140, 10):
            for item in take(copy, batch(base_offset)[1]):
                copy.enqueue(item)
    sent = [[bytes(item[1]) for item in copy.queue if not isinstance(item, Gap)] for copy in (first, second)]
    assert len(sent[1]) == 3 and sent[0][1:] == sent[1]


def test_law_b_sequences_run_on_across_a_gap() -> None:
    copy = copying(next_sequence=7)
    views = [batch(100)[1], batch(115)[1]]
    for view in views:
        take(copy, view)
    for item in [*take(copy, batch(115)[1])]:
        copy.enqueue(item)
    (gap, (_, behind)) = copy.queue
    assert gap == Gap(110, 115)
    assert next(iter_batches(behind))[0].base_sequence == 7


@pytest.mark.parametrize(
    ("sequence", "delta", "following"),
    [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 1, 10, 9), (2**31 - 5, 5, 0), (2**31 - 6, 5, 2**31 - 1)],
)
def test_law_b_sequences_wrap_from_the_largest_to_zero(sequence: int, delta: int, following: int) -> None:
    assert add_sequence(sequence, delta) == following


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(1, 10**6), max_size=20))
def test_law_b_sequence_of_a_sum_is_the_sum_of_sequences(start: int, deltas: list[int]) -> None:
    one_by_one = start
    for delta in deltas:
        one_by_one = add_sequence(one_by_one, delta)
        assert 0 <= one_by_one < 2**31
    assert one_by_one == add_sequence(start, sum(deltas))


# -- law C: anything unexpected drains, and the log is read again -------------


def test_law_c_expected_response_moves_what_is_acknowledged() -> None:
    copy = copying()
    header = send(copy, 100)
    answer(copy, header)
    assert (copy.phase, copy.acked, copy.troubles, copy.bytes) == (Phase.COPYING, 110, 0, header.size)


@pytest.mark.parametrize("error_code", NOT_NEXT + RETRIABLE)
def test_law_c_refusal_that_may_heal_drains_without_a_doubt(error_code: int) -> None:
    copy = copying()
    headers = [send(copy, 100), send(copy, 110)]
    for _ in range(5):
        answer(copy, headers[0], error_code)
        assert copy.phase is Phase.DRAINING and copy.error is None
        assert not copy.is_drained
        answer(copy, headers[1], error_code)
        assert copy.is_drained
        copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 2.0)
        headers = [send(copy, 100), send(copy, 110)]


def test_law_c_response_at_another_offset_is_not_taken_for_an_append() -> None:
    copy = copying()
    header = send(copy, 100)
    answer(copy, header, base_offset=101)
    assert copy.phase is Phase.DRAINING
    assert copy.acked == 100


def test_law_c_a_later_response_under_the_id_of_a_lost_one_acknowledges_nothing() -> None:
    copy = copying()
    first, second = send(copy, 100), send(copy, 110)
    answer(copy, first, base_offset=second.base_offset)
    assert (copy.phase, copy.acked, copy.misplaced) == (Phase.DRAINING, 100, None)
    copy.in_flight -= 1
    copy.lost(second, "lost", 1.0)
    assert copy.is_drained
    copy.resume(AppendState(120, PRODUCER, 0, 120), RULES, 2.0)
    assert (copy.phase, copy.acked) == (Phase.COPYING, 120)


def test_law_c_good_response_while_draining_does_not_move_the_position() -> None:
    copy = copying()
    first, second = send(copy, 100), send(copy, 110)
    copy.in_flight -= 1
    copy.lost(first, "append failed", 1.0)
    answer(copy, second)
    assert copy.is_drained
    assert copy.acked == 100
    copy.resume(AppendState(120, PRODUCER, 0, 120), RULES, 2.0)
    assert (copy.position, copy.acked, copy.phase) == (120, 120, Phase.COPYING)


def test_law_c_resuming_goes_where_the_log_says_back_or_ahead() -> None:
    copy = copying()
    send(copy, 100)
    copy.trouble("something", 1.0)
    copy.resume(AppendState(300, PRODUCER, 0, 55), RULES, 2.0)
    (item,) = take(copy, batch(300)[1])
    copy.enqueue(item)
    assert not isinstance(item, Gap) and next(iter_batches(item[1]))[0].base_sequence == 55


def test_law_c_queued_batches_are_dropped_with_their_bytes() -> None:
    copy = copying()
    sizes = 0
    for base_offset in (100, 110, 120):
        (item,) = take(copy, batch(base_offset)[1])
        sizes += copy.enqueue(item)
    copy.enqueue(Gap(130, 140))
    assert copy.drop_queue() == sizes > 0
    assert not copy.queue
    assert copy.drop_queue() == 0


def test_law_c_first_troubles_are_looked_at_at_once_and_later_ones_with_growing_pauses() -> None:
    copy = copying()
    pauses = []
    for n in range(12):
        now = float(n * 10)
        copy.trouble("again", now)
        pauses.append(copy.not_before - now)
        copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, now)
    assert pauses[0] <= 0 and pauses[1] <= 0
    assert all(later >= earlier - 1e-6 for earlier, later in zip(pauses[2:], pauses[3:]))
    assert 0 < pauses[2] < pauses[-1] <= 1.001


def test_law_f_filled_gap_moves_what_is_acknowledged() -> None:
    copy = copying()
    copy.gap_filled(Gap(100, 107), 107, 1.0, 1.0)
    assert (copy.acked, copy.filled, copy.phase) == (107, 7, Phase.COPYING)


@pytest.mark.parametrize("log_end", [100, 106, 108])
def test_law_f_log_end_elsewhere_behind_a_gap_is_trouble(log_end: int) -> None:
    copy = copying()
    copy.gap_filled(Gap(100, 107), log_end, 1.0, 1.0)
    assert (copy.acked, copy.filled, copy.phase) == (100, 0, Phase.DRAINING)


def test_law_f_gap_that_could_not_be_filled_is_trouble_and_a_refusal_is_a_doubt() -> None:
    copy = copying()
    for _ in range(5):
        copy.not_filled(Gap(100, 101), Errors.KafkaConnectionError(), 1.0)
        assert copy.phase is Phase.DRAINING
        copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
    for _ in range(BELIEVED_AFTER):
        copy.not_filled(Gap(100, 101), TolerantClientError("no permission"), 1.0)
        if copy.phase is Phase.DRAINING:
            copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
    assert copy.phase is Phase.STOPPED


def test_a_refused_time_of_filler_is_told_as_this_machines_clock() -> None:
    """The filler's time has nothing to do with ACLs, and `gap.fill` does not apply before a log's start."""
    copy = copying()
    for _ in range(BELIEVED_AFTER):
        copy.not_filled(Gap(0, 40), Errors.InvalidTimestampError(), 1.0)
        if copy.phase is Phase.DRAINING:
            copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
    assert "set its clock right" in str(copy.error) and "ACLs" not in str(copy.error)


def test_paused_partition_takes_no_part_and_goes_on_once_resumed() -> None:
    copy = copying()
    copy.pause(TargetDivergedError("foreign"), 31.0)
    assert (copy.phase, copy.not_before) == (Phase.PAUSED, 31.0)
    assert not copy.is_drained
    copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 32.0)
    assert (copy.phase, copy.paused_by) == (Phase.COPYING, None)


def test_what_policy_has_paused_is_paused_while_it_is_checked_again_and_stops_nothing() -> None:
    """A check that fails said to the micro-batch that the partition had stopped for good, which ended the mirror."""
    copy = copying()
    finding = TargetDivergedError("the source topic was created again")
    copy.pause(finding, 31.0)
    for _ in range(2):
        copy.phase = Phase.SYNCING
        assert (copy.paused_by, copy.error, copy.is_settled) == (finding, None, True)
        copy.trouble("its leader does not respond", 32.0)
        assert (copy.paused_by, copy.error, copy.waits(0.0, 99.0)) == (finding, None, None)
    copy.phase = Phase.SYNCING
    copy.absent(33.0)  # an operator has deleted the target's topic: another one comes
    assert (copy.paused_by, copy.error) == (None, None) and copy.waits(0.0, 34.0) == (
        32.0,
        "the target topic does not exist",
    )


# -- law D: a later batch proves the earlier ones -----------------------------


def test_law_d_later_append_proves_an_earlier_one_whose_response_is_lost() -> None:
    copy = copying()
    first, second = send(copy, 100), send(copy, 110)
    answer(copy, second)
    assert copy.acked == 120
    copy.in_flight -= 1
    copy.lost(first, "append failed", 1.0)
    assert (copy.phase, copy.troubles) == (Phase.COPYING, 0)


@pytest.mark.parametrize("error_code", NOT_NEXT + FATAL)
def test_law_d_refusal_of_what_is_proved_means_nothing(error_code: int) -> None:
    copy = copying()
    first, second = send(copy, 100), send(copy, 110)
    answer(copy, second)
    answer(copy, first, error_code, -1)
    assert (copy.phase, copy.troubles, copy.acked) == (Phase.COPYING, 0, 120)


# -- law E: believed the third time ----------------------------------------


def doubts(copy: PartitionCopy, times: int) -> None:
    for _ in range(times):
        copy.doubt(TargetDivergedError("foreign"), 1.0)
        if copy.phase is Phase.DRAINING:
            copy.resume(AppendState(copy.acked, PRODUCER, 0, 0), RULES, 1.0)


def test_law_e_finding_is_believed_at_the_third_time() -> None:
    copy = copying()
    doubts(copy, BELIEVED_AFTER - 1)
    assert (copy.phase, copy.error) == (Phase.COPYING, None)
    doubts(copy, 1)
    assert copy.phase is Phase.STOPPED
    assert isinstance(copy.error, TargetDivergedError)


@pytest.mark.parametrize("error_code", [10, 32, 87])
def test_a_batch_of_several_that_is_refused_for_its_records_is_sent_as_the_source_has_it(error_code: int) -> None:
    copy = copying()
    log = [batch(100 + 10 * n)[1] for n in range(5)]
    (joined,) = take(copy, *log[:3])
    assert not isinstance(joined, Gap)
    copy.enqueue(joined)
    copy.dequeue()
    copy.sent(joined[0])
    answer(copy, joined[0], error_code)
    assert copy.separate_until == 130 and copy.is_drained
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES._replace(separate_until=copy.separate_until), 2.0)
    items = take(copy, *log)
    assert [item[0].base_offset for item in items if not isinstance(item, Gap)] == [100, 110, 120, 130]
    assert copy.position == 150, "what follows is joined"
    for item in items:
        copy.enqueue(item)
    for good in range(2):
        copy.dequeue()
        copy.sent(items[good][0])  # type: ignore[arg-type]
        answer(copy, items[good][0])  # type: ignore[arg-type]
    copy.drop_queue()
    for _ in range(BELIEVED_AFTER):
        copy.resume(AppendState(120, PRODUCER, 0, 120), RULES._replace(separate_until=copy.separate_until), 3.0)
        answer(copy, send(copy, 120), error_code)
    assert isinstance(copy.error, PartitionRefusedError) and "offset 120 was refused" in str(copy.error)


@pytest.mark.parametrize("count", [10, 50])
def test_what_precedes_a_record_in_its_batch_is_sent_without_it_where_the_broker_names_it(count: int) -> None:
    """In a batch of the source, and in one that was joined of several."""
    copy = copying()
    log = [batch(100 + 10 * n)[1] for n in range(5)]
    said = {"reason": "Compacted topic cannot accept message without key"}
    (joined,) = take(copy, *log[: count // 10])
    assert not isinstance(joined, Gap)
    copy.enqueue(joined)
    copy.dequeue()
    copy.sent(joined[0])
    answer(copy, joined[0], 87, -1, refused_index=count - 7, **said)
    assert copy.separate_until == 100 + count - 7 and copy.is_drained
    sent: list[tuple[int, int]] = []
    for _ in range(BELIEVED_AFTER):
        copy.resume(
            AppendState(copy.acked, PRODUCER, 0, copy.acked), RULES._replace(separate_until=copy.separate_until), 2.0
        )
        rest = [view for view in log if read_header(view).next_offset > copy.acked]
        for item in take(copy, *rest) or take(copy, *rest):  # a batch that begins before the position is shown twice
            assert not isinstance(item, Gap)
            copy.enqueue(item)
            copy.dequeue()
            copy.sent(item[0])
            sent.append((item[0].base_offset, item[0].next_offset))
            if item[0].base_offset == copy.separate_until:
                answer(copy, item[0], 87, -1, refused_index=0, **said)
                break
            answer(copy, item[0])
        copy.drop_queue()
    at = 100 + count - 7
    assert copy.acked == at and sent == [
        *((n, min(n + 10, at)) for n in range(100, at, 10)),
        *[(at, at + 7)] * BELIEVED_AFTER,
    ]
    why = f"append at offset {at} was refused with InvalidRecordError (error 87: {said['reason']}); check"
    assert why in str(copy.error)


@pytest.mark.parametrize("index", [-1, -(2**31), 10, 2**31 - 1])
def test_an_index_that_the_batch_does_not_have_names_no_record(index: int) -> None:
    copy = copying()
    answer(copy, send(copy, 100), 87, -1, refused_index=index)
    assert copy.separate_until == 110


def test_law_e_progress_in_between_clears_doubts() -> None:
    copy = copying()
    for n in range(5):
        doubts(copy, BELIEVED_AFTER - 1)
        answer(copy, send(copy, 100 + 10 * n))
    assert copy.phase is Phase.COPYING


def test_law_e_refusals_of_what_the_log_has_nevertheless_are_believed() -> None:
    copy = copying()
    for n in range(BELIEVED_AFTER):
        answer(copy, send(copy, 100 + 10 * n), 29, -1)
        if copy.phase is Phase.DRAINING:
            copy.resume(AppendState(110 + 10 * n, PRODUCER, 0, 110 + 10 * n), RULES, 1.0)
    assert copy.phase is Phase.STOPPED


@pytest.mark.parametrize("error_code", FATAL)
def test_law_e_refusal_that_will_not_heal_stops_with_its_name_and_offset(error_code: int) -> None:
    copy = copying()
    for _ in range(BELIEVED_AFTER):
        copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
        answer(copy, send(copy, 100), error_code, -1)
    assert copy.phase is Phase.STOPPED
    assert type(copy.error) is PartitionRefusedError
    assert f"orders-3: append at offset 100 was refused with {Errors.for_code(error_code).__name__}" in str(copy.error)


def test_what_is_said_of_a_refusal_is_the_same_at_each_try() -> None:
    """Else it would be told as a new one, since just now: a broker's words on a timestamp have the present time."""
    said = [str(refusal("orders-3", "append", 100, 32, "", f"within [{n}, {n + 1}]")) for n in (1, 2)]
    assert said[0] == said[1]
    assert "without key" in str(refusal("orders-3", "append", 100, 87, "", "message without key"))


@pytest.mark.parametrize(
    ("error_code", "right"),
    [
        (29, "Write on topic orders of the target"),
        (31, "IdempotentWrite on the target cluster"),
        (53, "Write on transactional ids that begin with tolerant-mirror- of the target"),
    ],
)
def test_a_right_that_is_missing_on_the_target_is_named_with_its_topic(error_code: int, right: str) -> None:
    copy, gap = copying(), copying()
    for _ in range(BELIEVED_AFTER):
        for each in (copy, gap):
            each.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
        answer(copy, send(copy, 100), error_code, -1)
        gap.not_filled(Gap(100, 101), Errors.for_code(error_code)("adding orders"), 1.0)
    for each in (copy, gap):
        assert isinstance(each.error, PartitionRefusedError)
        assert str(each.error).endswith(f"; grant {right} to the mirror's user, and a running mirror resumes")


def test_a_right_that_is_missing_on_the_source_is_named_with_the_topics_name_there() -> None:
    copy = copying()
    for _ in range(BELIEVED_AFTER):
        copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
        refused = FetchedPartition(TP, 29, -1, -1, -1, (), memoryview(b""))
        assert list(accept(copy, refused, None, "sales", 60.0, 1.0, NOW_MS)) == []
    assert "; grant Read on topic sales of the source to" in str(copy.error)


def test_law_e_damaged_batch_counts_as_a_doubt() -> None:
    copy = copying()
    for _ in range(BELIEVED_AFTER):
        copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
        copy.doubt(RecordBatchError("CRC mismatch", 100), 1.0)
    assert isinstance(copy.error, RecordBatchError) and str(copy.error).startswith(f"{copy}: CRC mismatch")


def test_law_e_damage_that_differs_each_time_was_done_on_the_way() -> None:
    copy = copying()
    for n in range(4 * BELIEVED_AFTER):
        copy.resume(AppendState(100, PRODUCER, 0, 0), RULES, 1.0)
        copy.doubt(RecordBatchError(f"CRC mismatch, {n:08x} computed", 100), 1.0)
        assert copy.phase is Phase.DRAINING
    assert copy.error is None


def test_stopped_partition_stays_stopped_and_keeps_its_first_error() -> None:
    copy = copying()
    copy.stop(TargetDivergedError("foreign"))
    copy.trouble("late response", 2.0)
    copy.give_up_after(0.0, 1e9)
    assert copy.phase is Phase.STOPPED
    assert isinstance(copy.error, TargetDivergedError)
    assert copy.troubles == 0


def test_law_e_what_several_batches_in_flight_are_refused_for_is_found_once() -> None:
    copy = copying()
    headers = [send(copy, 100 + 10 * n) for n in range(BELIEVED_AFTER + 1)]
    for header in headers:
        answer(copy, header, 10, -1)
    assert copy.is_drained and copy.error is None and copy.has_doubtful_facts


# -- law G: in flight together only while the broker surely remembers the producer ----


def test_law_g_first_batch_after_a_resume_goes_alone() -> None:
    copy = copying()
    assert copy.may_send(NOW_MS)
    first = send(copy, 100, timestamp=NOW_MS)
    assert not copy.may_send(NOW_MS)
    answer(copy, first)
    send(copy, 110, timestamp=NOW_MS)
    assert copy.may_send(NOW_MS) and copy.may_send(NOW_MS + REMEMBERED_MS - 1)
    copy.trouble("anything", 1.0)
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 2.0)
    assert not copy.may_send(NOW_MS)


def test_law_g_what_comes_after_old_records_goes_alone_until_young_ones_are_acknowledged() -> None:
    copy = copying()
    answer(copy, send(copy, 100, timestamp=NOW_MS))
    young, old = send(copy, 110, timestamp=NOW_MS), send(copy, 120, timestamp=NOW_MS - REMEMBERED_MS)
    assert not copy.may_send(NOW_MS)
    answer(copy, young)
    assert not copy.may_send(NOW_MS), "the old one may be appended, and the producer forgotten"
    answer(copy, old)
    assert copy.may_send(NOW_MS)
    after = send(copy, 130, timestamp=NOW_MS)
    assert not copy.may_send(NOW_MS)
    answer(copy, after)
    send(copy, 140, timestamp=NOW_MS)
    assert copy.may_send(NOW_MS)


# -- the end of an idle log ----------------------------------------------------


def test_law_h_what_was_idle_waits_for_a_log_whose_replicas_are_behind_and_says_so() -> None:
    copy = copying()
    copy.last_stable_offset = 200
    copy.is_looked_at = True
    copy.looked_at(Unreplicated(100, 110), 5.0, 5.0)
    assert copy.is_drained and not copy.is_looked_at
    assert copy.waits(10.0, 15.0) == (5.0, str(Unreplicated(100, 110)))
    assert "the leader's log ends at 110, its high watermark is 100" in str(Unreplicated(100, 110))


# -- times that the target gives ----------------------------------------------


def test_law_h_a_response_shows_where_the_log_ended_when_its_request_was_sent() -> None:
    copy = copying()
    header = send(copy, 100)
    answer(copy, header, sent_at=1.0, now=9.0)  # read after a freeze of 8 s
    assert copy.acked == 110 and copy.is_unchecked(9.0) and not copy.is_unchecked(3.0)
    copy.looked_at(110, 8.5, 9.0)
    assert not copy.is_unchecked(9.0)
    copy.gap_filled(Gap(110, 117), 117, 8.0, 30.0)
    assert copy.is_unchecked(30.0), "a gap that took long shows nothing of the present"


def test_law_h_a_place_is_as_old_as_the_look_at_its_log() -> None:
    copy = PartitionCopy(TP, 0.0)
    copy.read_at = 1.0
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 5.0)
    assert copy.is_unchecked(5.0)


@pytest.mark.parametrize("error", [Errors.MessageSizeTooLargeError(), Errors.RecordListTooLargeError()])
def test_a_size_that_is_refused_in_a_gap_has_the_facts_of_the_topic_read_again(error: Errors.KafkaError) -> None:
    copy = copying()
    copy.not_filled(Gap(100, 107), error, 1.0)
    assert copy.has_doubtful_facts and copy.phase is Phase.DRAINING


def test_another_time_than_the_batchs_own_stops_the_flow_until_the_log_was_read() -> None:
    copy = copying()
    header = send(copy, 100, timestamp=NOW_MS)
    answer(copy, header, log_append_time=NOW_MS)  # as a broker responds if it has the batch already
    assert copy.phase is Phase.COPYING and copy.acked == 110
    others = [send(copy, 110, timestamp=NOW_MS), send(copy, 120, timestamp=NOW_MS)]
    for header in others:
        answer(copy, header, log_append_time=NOW_MS + 1)
    assert copy.is_drained and copy.acked == 110 and copy.retimed == [(110, 120), (120, 130)]


# -- patience, lease, accounting ----------------------------------------------


def test_patience_ends_with_an_error_that_tells_the_history() -> None:
    copy = copying()
    copy.trouble("append answered NotLeaderForPartitionError", 10.0)
    copy.give_up_after(60.0, 69.0)
    assert copy.error is None
    copy.give_up_after(60.0, 71.0)
    assert isinstance(copy.error, RecoveryExhaustedError)
    assert "orders-3: no progress for 60 s at offset 100" in str(copy.error)
    assert "NotLeaderForPartitionError" in str(copy.error)


def test_patience_starts_anew_with_progress() -> None:
    copy = copying()
    copy.trouble("one", 10.0)
    copy.resume(AppendState(101, PRODUCER, 0, 101), RULES, 20.0)
    copy.give_up_after(60.0, 1000.0)
    assert copy.error is None


@pytest.mark.parametrize(("until", "stable"), [(None, 100), (100, 200)])
def test_trouble_is_over_for_what_has_all_and_whose_log_is_as_it_was_left(until: int | None, stable: int) -> None:
    copy = copying(until=until)
    copy.trouble("the end of the target's log could not be read", 10.0)
    copy.rested()  # while the trouble lasts
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 11.0)
    copy.last_stable_offset = stable
    copy.rested()
    copy.until, copy.last_stable_offset = 1000, 1000
    assert copy.waits(10.0, 9_000.0) is None
    copy.give_up_after(120.0, 9_000.0)
    assert copy.error is None


@pytest.mark.parametrize(("until", "stable"), [(None, 200), (None, -1), (200, 200)])
def test_trouble_lasts_where_something_waits_or_nobody_knows(until: int | None, stable: int) -> None:
    copy = copying(until=until)
    copy.trouble("append answered NotLeaderForPartitionError", 10.0)
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES, 11.0)
    copy.last_stable_offset = stable
    copy.rested()
    copy.give_up_after(120.0, 131.0)
    assert isinstance(copy.error, RecoveryExhaustedError)


def test_trouble_that_lasts_is_not_over_because_nothing_waits() -> None:
    copy = copying()
    copy.last_stable_offset = 100
    copy.trouble("the target partition has no leader", 10.0)
    copy.rested()
    assert copy.waits(10.0, 30.0) == (10.0, "the target partition has no leader")


def test_lease_runs_from_the_last_look_at_the_log() -> None:
    copy = copying()
    assert not copy.is_lease_over(59.0, 60.0)
    assert copy.is_lease_over(61.0, 60.0)
    answer(copy, send(copy, 100), now=50.0)
    assert not copy.is_lease_over(109.0, 60.0)


def test_records_are_counted_from_the_first_look_by_whomever_they_were_written() -> None:
    copy = copying(log_end=100)
    answer(copy, send(copy, 100))
    copy.trouble("overtaken", 1.0)
    copy.resume(AppendState(200, PRODUCER, 0, 200), RULES, 1.0)
    assert copy.records == 100


def test_end_is_reached_by_what_is_acknowledged_and_not_by_what_is_sent() -> None:
    copy = copying(until=110)
    header = send(copy, 100)
    assert not copy.has_reached
    answer(copy, header)
    assert copy.has_reached
    assert copying(until=None).has_reached


@given(st.data())
def test_any_responses_in_any_order_leave_the_acknowledged_offset_true(data: st.DataObject) -> None:
    """A broker that appends in order; responses are lost, wrong or late.  `acked` never exceeds what it appended."""
    copy = copying(until=None)
    log_end, in_flight = 100, []
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["send", "answer", "lose", "refuse", "another's"]))
        if step == "send" and copy.phase is Phase.COPYING:
            header = send(copy, copy.position, data.draw(st.integers(1, 9)))
            is_next = header.base_offset == log_end
            log_end = header.next_offset if is_next else log_end
            in_flight.append((header, is_next or header.next_offset <= log_end))
        elif in_flight:
            header, is_there = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            if step == "lose":
                copy.in_flight -= 1
                copy.lost(header, "lost", 1.0)
            elif step == "another's" and in_flight:
                answer(copy, header, base_offset=data.draw(st.sampled_from(in_flight))[0].base_offset)
            elif step == "refuse" or not is_there:
                answer(copy, header, 45, -1)
            else:
                answer(copy, header)
        assert copy.acked <= log_end
        assert copy.acked <= copy.position
        if copy.is_drained:
            copy.resume(AppendState(log_end, PRODUCER, 0, log_end), RULES, 1.0)
            assert copy.position == copy.acked == log_end


# -- law J: what cannot be copied waits for what can ---------------------------


def damaged(base_offset: int) -> memoryview:
    view = batch(base_offset)[1]
    view[-1] ^= 1
    return view


def large(base_offset: int) -> memoryview:
    return memoryview(
        bytearray(encode_batch([Record(0, 1, None, os.urandom(RULES.max_batch_bytes))], base_offset=base_offset))
    )


@pytest.mark.parametrize("bad", [damaged, large])
def test_law_j_what_cannot_be_copied_counts_once_all_before_it_is_acknowledged(
    bad: Callable[[int], memoryview],
) -> None:
    copy = copying()
    header = send(copy, 100)
    part = FetchedPartition(TP, 0, 10**6, 10**6, 0, (), bad(110))
    for _ in range(2 * BELIEVED_AFTER):
        assert list(accept(copy, part, None, "orders", 60.0, 1.0, NOW_MS)) == []
    assert copy.phase is Phase.COPYING and copy.too_large is None and copy.is_full, "not read on"
    answer(copy, header)
    assert copy.acked == 110 and not copy.is_full
    assert list(accept(copy, part, None, "orders", 60.0, 1.0, NOW_MS)) == []
    assert copy.phase is Phase.DRAINING
    assert copy.is_too_large(110, RULES) is (bad is large)
    assert not copy.is_too_large(100, RULES), "the target lost what lies before it"
    copy.resume(AppendState(110, PRODUCER, 0, 110), RULES, 1.0)
    assert send(copy, 110) and not copy.is_full


# -- what becomes of the target's log -----------------------------------------


def test_partition_that_the_target_has_not_is_believed_to_be_gone_when_that_lasts() -> None:
    copy = copying()
    for now in (1.0, 1.5, 3.9):
        copy.phase = Phase.SYNCING
        copy.absent(now)
        assert copy.phase is Phase.DRAINING
    copy.phase = Phase.SYNCING
    copy.absent(4.1)
    assert copy.phase is Phase.STOPPED
    assert "orders-3: the target no longer has this partition" in str(copy.error)


def test_partition_that_comes_back_is_looked_for_anew() -> None:
    copy = copying()
    copy.absent(1.0)
    copy.resume(AppendState(0, PRODUCER, 0, 0), RULES, 2.0)
    copy.absent(9.0)
    assert copy.phase is Phase.DRAINING


def test_records_are_counted_on_where_a_target_log_became_shorter() -> None:
    copy = copying(log_end=100)
    answer(copy, send(copy, 100, 50))
    assert copy.records == 50
    copy.trouble("anything", 1.0)
    copy.resume(AppendState(0, PRODUCER, 0, 0), RULES, 1.0)
    assert (copy.records, copy.acked) == (50, 0)
    answer(copy, send(copy, 0, 10))
    assert copy.records == 60


def test_batch_that_was_appended_below_its_offset_says_that_the_log_became_shorter_until_the_logs_agree() -> None:
    copy = copying()
    assert copy.misplaced is None
    answer(copy, send(copy, 100), base_offset=0)
    assert "orders-3 has become shorter" in str(copy.misplaced) and "offset 100 was appended at 0" in str(
        copy.misplaced
    )
    copy.resume(AppendState(110, PRODUCER, 0, 110), RULES, 1.0)
    assert copy.misplaced is None
    answer(copy, send(copy, 110), base_offset=111)
    assert copy.misplaced is None, "somebody else wrote, but nothing was lost"


def test_a_batch_that_is_refused_as_too_large_has_the_next_ones_sent_as_the_topic_stores_them() -> None:
    """1. Refused.  2. Its log is read again, with the topic's configuration.  3. The record itself is too large so.  4. Set back."""
    copy = copying()
    answer(copy, send(copy, 100), 10)
    assert copy.is_recoded and copy.has_doubtful_facts and copy.phase is Phase.DRAINING
    copy.resume(AppendState(100, PRODUCER, 0, 100), RULES._replace(codec=0, max_batch_bytes=200), 1.0)
    large = bytearray(encode_batch([Record(0, 1, None, bytes(5_000))], base_offset=100, codec=4))
    with pytest.raises(OversizedRecordError) as raised:
        take(copy, memoryview(large))
    copy.too_large = raised.value
    assert copy.is_too_large(100, copy.rules)
    assert not copy.is_too_large(100, RULES._replace(max_batch_bytes=200))
