"""What a repeated task finds, and the digest that it is compared by."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_integration.writing.columns import WriteRows
from spark_integration.writing.exactly_once import RowDigest, TaskPlace, Written
from tolerant_client.errors import OptionError, RepeatDiffersError
from tolerant_client.producer_transaction import CommittedOffset

PLACE = TaskPlace("sink", "query-1", batch=7, task=3)
WRITTEN = Written(5, 0xABC)


def rows(values: list[Any], keys: list[Any] | None = None, **columns: Any) -> WriteRows:
    given = {"topics": "t", "headers": None, "partitions": None, **columns}
    return WriteRows(values=pa.array(values, pa.binary()), keys=None if keys is None else pa.array(keys, pa.string()), **given)


def digest(*batches: WriteRows) -> Written:
    made = RowDigest()
    for batch in batches:
        made.add(batch)
    return made.result()


def test_what_was_committed_is_found_by_the_same_task_of_the_same_micro_batch() -> None:
    committed = PLACE.committed(WRITTEN)
    assert committed.offset == 8
    assert PLACE.find({"t-0": committed}) == WRITTEN
    assert TaskPlace("sink", "query-1", 8, 3).find({"t-0": committed}) is None
    assert PLACE.find({}) is None


def test_the_newest_of_several_topics_counts() -> None:
    older = TaskPlace("sink", "query-1", 2, 3).committed(Written(1, 1))
    assert PLACE.find({"a-0": older, "b-0": PLACE.committed(WRITTEN)}) == WRITTEN


def test_transactional_ids_differ_by_sink_and_task() -> None:
    assert PLACE.transactional_id == "tolerant-sink-sink-3"


def test_a_sink_that_belongs_to_another_query_is_refused() -> None:
    with pytest.raises(OptionError, match="belongs to query query-1, and this is query query-2"):
        TaskPlace("sink", "query-2", 7, 3).find({"t-0": PLACE.committed(WRITTEN)})
    with pytest.raises(OptionError, match="and this is a batch write"):
        TaskPlace("sink", "", 0, 3).find({"t-0": PLACE.committed(WRITTEN)})


def test_a_checkpoint_that_is_older_than_the_sink_is_refused() -> None:
    with pytest.raises(OptionError, match="has committed micro-batch 7 of this query, and now comes 6"):
        TaskPlace("sink", "query-1", 6, 3).find({"t-0": PLACE.committed(WRITTEN)})


@pytest.mark.parametrize("metadata", ["", "text", "[]", json.dumps({"query": "query-1"})])
def test_an_offset_of_somebody_else_is_refused(metadata: str) -> None:
    with pytest.raises(OptionError, match="an offset that no sink has written"):
        PLACE.find({"t-0": CommittedOffset(8, metadata)})


def test_a_repeat_with_other_rows_is_named() -> None:
    PLACE.check_repeat(WRITTEN, WRITTEN)
    for other in (Written(6, 0xABC), Written(5, 0xABD)):
        with pytest.raises(RepeatDiffersError, match="Task 3 of micro-batch 7 was committed with 5 rows"):
            PLACE.check_repeat(WRITTEN, other)


def test_the_order_of_rows_and_their_batches_do_not_matter() -> None:
    values, keys = [b"a", b"", None, b"long" * 100, b"a"], ["k", None, "", "l", "k"]
    whole = digest(rows(values, keys))
    assert whole.rows == 5
    assert digest(rows(values[::-1], keys[::-1])) == whole
    assert digest(rows(values[:2], keys[:2]), rows(values[2:], keys[2:])) == whole
    assert digest(rows([b"x", *values], ["y", *keys])._replace(
        values=pa.array([b"x", *values], pa.binary())[1:], keys=pa.array(["y", *keys])[1:])) == whole  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        rows([b"a", b"c"], ["k", "l"]),
        rows([b"b", b"a"], ["k", "l"]),
        rows([b"a", None], ["k", "l"]),
        rows([b"a", b"b", b""], ["k", "l", ""]),
        rows([b"a", b"b"], ["k", None]),
        rows([b"k", b"l"], ["a", "b"]),
        rows([b"a", b"b"]),
        rows([b"a", b"b"], ["k", "l"], topics="u"),
        rows([b"a", b"b"], ["k", "l"], topics=pa.array(["t", "u"])),
        rows([b"a", b"b"], ["k", "l"], partitions=pa.array([1, None], pa.int32())),
        rows([b"a", b"b"], ["k", "l"], headers=pa.array([[{"key": "h", "value": b""}], None])),
    ],
)
def test_any_difference_changes_the_digest(other: WriteRows) -> None:
    assert digest(rows([b"a", b"b"], ["k", "l"])).digest != digest(other).digest


def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    """It is kept by brokers: a new way to compute it would take every repeat for another one."""
    assert digest(rows([b"value", None], ["key", None])) == Written(2, DIGEST)


DIGEST = 2487322993885596684
