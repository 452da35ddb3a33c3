"""What a translated copier takes of fetch answers: each batch once, in order, and nothing on a single word."""

from __future__ import annotations

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.appendable import AppendRules
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.translated.fetched_queue import DRY_ANSWERS, Intake
from tolerant_client.records.record_batch import Record, encode_batch

PARTITION = TopicPartition("orders", 3)
RULES = AppendRules(GapFill.TRANSACTIONS, False, 1 << 20)


def batch(first: int, count: int = 10, epoch: int = 0, size: int = 0) -> bytes:
    records = [Record(0, 1000, b"%d" % n, bytes(size)) for n in range(first, first + count)]
    return encode_batch(records, base_offset=first, partition_leader_epoch=epoch)


def answer(*batches: bytes, stable: int = 1000, error_code: int = 0) -> FetchedPartition:
    return FetchedPartition(PARTITION, error_code, stable, stable, 0, (), memoryview(bytearray(b"".join(batches))))


def begun(position: int = 0) -> Intake:
    intake = Intake()
    intake.begin(position)
    return intake


def deliver(intake: Intake, part: FetchedPartition, position: int | None = None) -> None:
    intake.deliver(part, intake.fetch_position if position is None else position, None, RULES, 0)


def test_an_answer_to_a_fetch_from_elsewhere_is_dropped() -> None:
    intake = begun()
    deliver(intake, answer(batch(0)))
    deliver(intake, answer(batch(0)), 0)
    deliver(intake, answer(batch(10)))
    batches, position = intake.next_batches(0)
    assert sum(header.record_count for header, _ in batches) == 20 and position == 20
    assert not intake and intake.next_batches(20) == ([], 20)


def test_a_large_batch_goes_alone_and_small_ones_together_with_the_gaps_between() -> None:
    intake = begun()
    log = [batch(0), batch(20), batch(40, 1, size=50_000), batch(60)]
    deliver(intake, answer(*log, stable=70))
    assert intake.fetch_position == 10, "a hole is believed when two answers show it"
    deliver(intake, answer(*log[1:], stable=70))
    assert intake.queued_bytes == sum(map(len, log))
    small, position = intake.next_batches(0)
    assert [header.base_offset for header, _ in small] == [0, 20] and position == 40
    large, position = intake.next_batches(position)
    assert [header.base_offset for header, _ in large] == [40] and position == 41
    assert intake.skip_gaps() == 60
    last, position = intake.next_batches(60)
    assert [header.base_offset for header, _ in last] == [60] and position == 70
    assert not intake.is_behind


def test_an_answer_with_a_newer_leader_epoch_is_not_used_until_somebody_has_looked() -> None:
    intake = begun()
    deliver(intake, answer(batch(0, epoch=4)))
    newer = answer(batch(10, epoch=4), batch(20, epoch=5))
    with pytest.raises(Errors.OffsetNotAvailableError):
        deliver(intake, newer)
    assert intake.fetch_position == 10 and intake.epoch == 5
    intake.begin(10)
    deliver(intake, newer)
    assert intake.fetch_position == 30


def test_emptiness_is_gone_over_only_when_it_was_answered_several_times_and_found_to_be_local() -> None:
    intake = begun(100)
    for n in range(DRY_ANSWERS):
        assert intake.dry_gap is None
        deliver(intake, answer(stable=150))
    assert intake.dry_gap == Gap(100, 150)
    intake.settle_dry_gap(False)
    assert intake.fetch_position == 100 and not intake
    for n in range(DRY_ANSWERS):
        deliver(intake, answer(stable=150))
    intake.settle_dry_gap(True)
    assert intake.fetch_position == 150 and intake.skip_gaps() == 150 and not intake.is_behind


def test_records_that_come_after_all_end_a_dry_gap() -> None:
    intake = begun(100)
    for n in range(DRY_ANSWERS):
        deliver(intake, answer(stable=150))
    deliver(intake, answer(batch(100), stable=150))
    intake.settle_dry_gap(True)
    assert intake.fetch_position == 110


def test_errors_are_raised_and_nothing_is_taken() -> None:
    intake = begun(7)
    with pytest.raises(Errors.OffsetOutOfRangeError, match="orders-3 at offset 7"):
        deliver(intake, answer(error_code=1))
    damaged = bytearray(batch(7))
    damaged[-1] ^= 1
    with pytest.raises(Errors.CorruptRecordError):
        deliver(intake, answer(bytes(damaged)))
    assert intake.fetch_position == 7 and not intake and intake.queued_bytes == 0
    intake.forget()
    deliver(intake, answer(batch(7)), 7)
    assert not intake, "no fetch was wanted"
