"""Rows of the ledger, and what of a loss is new."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.state.ledger import (
    UNREADABLE,
    decode_row,
    distinct,
    encode_row,
    lost_offsets,
    of_present_topics,
    unwritten,
)
from tolerant_client.records.record_batch import Record
from tolerant_client.state_json import LAST_MS

ROW = LedgerRow(5, "default", "orders", 3, 30, 40, LossReason.RETENTION, "gone")


@given(
    st.builds(
        lambda time_ms, link, topic, partition, offsets, reason, detail: LedgerRow(
            time_ms, link, topic, partition, *sorted(offsets), reason, detail
        ),
        st.integers(0, LAST_MS),
        st.text(),
        st.text(),
        st.integers(0, 2**31 - 1),
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
        st.sampled_from(LossReason),
        st.text(),
    )
)
def test_row_comes_back_from_its_record(row: LedgerRow) -> None:
    assert decode_row(encode_row(row)) == row


def test_schema_is_what_the_module_says() -> None:
    record = encode_row(ROW)
    assert (record.key, record.timestamp) == (b"default/orders/3", 5)
    assert json.loads(record.value or b"") == {
        "version": 1, "time_ms": 5, "link": "default", "topic": "orders", "partition": 3,
        "from_offset": 30, "until_offset": 40, "reason": "retention", "detail": "gone",
        "topic_id": "",
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"[]", b"{}", b'{"link": 1}', b"null"])
def test_foreign_record_is_shown_as_unreadable(value: bytes | None) -> None:
    row = decode_row(Record(17, 99, None, value))
    assert (row.reason, row.time_ms) == (UNREADABLE, 99)
    assert "offset 17" in row.detail


@pytest.mark.parametrize(
    "change",
    [
        {"until_offset": 10**400},
        {"until_offset": 2**63},
        {"from_offset": -1},
        {"from_offset": 41},
        {"until_offset": 40.0},
        {"until_offset": "40"},
        {"until_offset": True},
        {"partition": 2**31},
        {"time_ms": LAST_MS + 1},
        {"topic": "\ud800"},
        {"topic": 7},
        {"topic_id": None},
    ],
)
def test_a_row_that_no_mirror_can_have_written_is_unreadable(change: dict[str, object]) -> None:
    value = json.dumps({**json.loads(encode_row(ROW).value or b""), **change}).encode()
    row = decode_row(Record(3, 2**62, None, value))
    assert (row.reason, row.time_ms) == (UNREADABLE, LAST_MS)


def test_repeated_rows_are_one_whatever_their_time_and_detail() -> None:
    later = ROW._replace(time_ms=6, detail="again")
    other = ROW._replace(partition=4)
    assert distinct([ROW, later, other, ROW]) == [ROW, other]


def test_what_a_deleted_topic_lost_says_nothing_of_one_that_was_made_after_it() -> None:
    former, present, old = ROW._replace(topic_id="a"), ROW._replace(topic_id="b"), ROW._replace(topic="payments")
    assert of_present_topics([former, present, old], {"orders": "b", "payments": "c"}) == [present, old]
    assert of_present_topics([former, present], {}) == [former, present], "brokers that tell no ids"
    assert unwritten(present, [former]) == present


def test_unreadable_records_stay_apart() -> None:
    rows = [decode_row(Record(n, 0, None, b"?")) for n in range(2)]
    assert distinct(rows + rows) == rows


def test_loss_that_is_known_is_not_written_again_and_one_that_grew_only_from_there() -> None:
    assert unwritten(ROW, []) == ROW
    assert unwritten(ROW, [ROW._replace(time_ms=1)]) is None
    assert unwritten(ROW._replace(until_offset=50), [ROW]) == ROW._replace(from_offset=40, until_offset=50)
    parts = [ROW._replace(from_offset=35, until_offset=50), ROW._replace(from_offset=20, until_offset=35)]
    assert unwritten(ROW, parts) is None
    assert unwritten(ROW, [ROW._replace(from_offset=31)]) == ROW


def test_a_loss_of_no_offset_is_written_once_for_each_place() -> None:
    empty = ROW._replace(until_offset=30)
    assert unwritten(empty, [ROW._replace(from_offset=0), ROW._replace(from_offset=20, until_offset=20)]) == empty
    assert unwritten(empty, [empty._replace(time_ms=1)]) is None


@pytest.mark.parametrize("change", [{"topic": "x"}, {"partition": 0}, {"link": "x"}, {"reason": "truncation"}])
def test_other_loss_is_not_taken_for_this_one(change: dict[str, str]) -> None:
    assert unwritten(ROW, [ROW._replace(**change)]) == ROW  # type: ignore[arg-type]


def test_lost_offsets_are_counted_by_topic_and_reason() -> None:
    rows = [ROW, ROW._replace(partition=4, until_offset=31), ROW._replace(reason="oversized", until_offset=31)]
    assert lost_offsets(rows) == {("orders", "retention"): 11, ("orders", "oversized"): 1}
