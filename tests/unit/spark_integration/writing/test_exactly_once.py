"""The contents of a decision, the consequences of one that is found, and the digest that compares repeats."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_integration.writing.columns import WriteRows
from spark_integration.writing.exactly_once import (
    Decision,
    RowDigest,
    SinkBatch,
    Written,
    reserve_ms,
)
from tolerant_client.cluster.admin.groups import CommittedOffset
from tolerant_client.cluster.producer.transaction import PreparedTransaction
from tolerant_client.errors import OptionError, RepeatDiffersError

RUN, LATER_RUN = "0a" * 16, "0b" * 16
PLACE = SinkBatch("sink", "query-1", RUN, batch=7)
WRITTEN = Written(5, 0xABC)
TRANSACTIONS = tuple(PreparedTransaction(f"{PLACE.prefix}{RUN}/abc-{n}", 1000 + n, n) for n in range(2))
DECISION = Decision("query-1", RUN, 7, WRITTEN, TRANSACTIONS)


def rows(values: list[Any], keys: list[Any] | None = None, **columns: Any) -> WriteRows:
    given = {"topics": "t", "headers": None, "partitions": None, **columns}
    return WriteRows(
        values=pa.array(values, pa.binary()), keys=None if keys is None else pa.array(keys, pa.string()), **given
    )


def digest(*batches: WriteRows) -> Written:
    made = RowDigest()
    for batch in batches:
        made.add(batch)
    return made.result()


def read_back(place: SinkBatch, decision: Decision) -> Decision:
    pieces = [{"t-0": piece} for piece in place.pieces(decision)]
    assert place.piece_count(pieces[0]) == len(pieces)
    return place.read(pieces)


# -- what is committed -------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 1500])
def test_a_decision_is_read_as_it_was_written_however_many_transactions_it_names(count: int) -> None:
    many = tuple(PreparedTransaction(f"{PLACE.prefix}{RUN}/abc-{n}", 10**15 + n, n) for n in range(count))
    decision = replace(DECISION, transactions=many, superseded=(LATER_RUN,))
    pieces = PLACE.pieces(decision)
    assert {piece.offset for piece in pieces} == {8}
    assert max(len(piece.metadata) for piece in pieces) < 4096  # the brokers' offset.metadata.max.bytes
    assert read_back(PLACE, decision) == decision


def test_the_newest_of_several_topics_counts() -> None:
    older = replace(DECISION, batch=2)
    (old,), (new,) = PLACE.pieces(older), PLACE.pieces(DECISION)
    assert PLACE.read([{"a-0": old, "b-0": new}]) == DECISION


def test_pieces_of_different_decisions_are_refused() -> None:
    with pytest.raises(OptionError, match="an offset that no sink has written"):
        PLACE.read([{"t-0": CommittedOffset(8, "2:{")}, {"t-0": CommittedOffset(7, "}")}])


def strange(**other: Any) -> str:
    """A decision with another value in one field."""
    known = {"query": "", "run": "0a", "rows": 1, "digest": "0", "transactions": [], "superseded": []}
    return "1:" + json.dumps({**known, **other})


STRANGE = {
    "nothing": "",
    "a text": "text",
    "no decision": "1:",
    "a list": "1:[]",
    "a part of one": "1:" + json.dumps({"query": "query-1"}),
    "no piece": "0:",
    "too many pieces": "1001:{",
    "a number without end": "9" * 4000,
    "lists without end": "1:" + "[" * 3990,
    "infinitely many rows": '1:{"query":"","run":"","rows":Infinity,"digest":"0","transactions":[],"superseded":[]}',
    "a producer id that is a text": strange(transactions=[["0a/0b-0", "1000", 0]]),
    "a producer id beyond 64 bits": strange(transactions=[["0a/0b-0", 2**70, 0]]),
    "an epoch beyond 16 bits": strange(transactions=[["0a/0b-0", 1000, 2**15]]),
    "an epoch that is true": strange(transactions=[["0a/0b-0", 1000, True]]),
    "half a surrogate pair": strange(transactions=[["\ud800", 1000, 0]]),
    "a run that is a list": strange(run=["0a"]),
    "a superseded run that is a list": strange(superseded=[["0a"]]),
}


@pytest.mark.parametrize("metadata", STRANGE.values(), ids=STRANGE)
def test_an_offset_of_somebody_else_is_refused(metadata: str) -> None:
    committed = {"t-0": CommittedOffset(8, metadata)}
    with pytest.raises(OptionError, match="an offset that no sink has written"):
        PLACE.piece_count(committed)
        PLACE.read([committed])


def test_more_tasks_than_a_decision_can_name_are_refused_before_it_is_committed() -> None:
    many = tuple(PreparedTransaction(f"{PLACE.prefix}{RUN}/{'a' * 40}-{n}", 10**15 + n, n) for n in range(50_000))
    with pytest.raises(OptionError, match="has 50000 tasks, more than a decision can name"):
        PLACE.pieces(replace(DECISION, transactions=many))


# -- consequences of a found decision ----------------------------------------------


def test_a_micro_batch_is_repeated_only_where_it_was_decided() -> None:
    assert not PLACE.is_repeat(None, WRITTEN)
    assert PLACE.is_repeat(DECISION, WRITTEN)
    assert not replace(PLACE, batch=8).is_repeat(DECISION, WRITTEN)
    assert replace(PLACE, run=LATER_RUN).is_repeat(DECISION, WRITTEN)


def test_a_sink_that_belongs_to_another_query_is_refused() -> None:
    with pytest.raises(OptionError, match="belongs to query query-1, and this is query query-2"):
        replace(PLACE, owner="query-2").is_repeat(DECISION, WRITTEN)
    with pytest.raises(OptionError, match="and this is a batch write"):
        SinkBatch("sink", "", RUN, 0).is_repeat(DECISION, WRITTEN)


def test_a_checkpoint_that_is_older_than_the_sink_is_refused() -> None:
    with pytest.raises(OptionError, match="has committed micro-batch 7 of this query, and now gets 6"):
        replace(PLACE, batch=6).is_repeat(DECISION, WRITTEN)


@pytest.mark.parametrize("now", [Written(6, 0xABC), Written(5, 0xABD)])
def test_a_repeat_with_other_rows_is_named(now: Written) -> None:
    with pytest.raises(RepeatDiffersError, match="Micro-batch 7 of the sink 'sink' was committed with 5 rows"):
        PLACE.is_repeat(DECISION, now)


def test_a_repeat_whose_source_lost_records_is_told_how_to_resume_without_writing_again() -> None:
    with pytest.raises(
        RepeatDiffersError,
        match="checkpoint was restored.* or another topic, its source has fewer records .*compacted.* with commits/7 added to its"
        " checkpoint; that skips what offsets/7 names beyond",
    ):
        PLACE.is_repeat(DECISION, Written(3, 0xABC))


def test_a_run_that_was_superseded_decides_nothing() -> None:
    """Law C: its transactions may have been aborted."""
    later = replace(PLACE, run=LATER_RUN, batch=8)
    decision = later.decide(DECISION, WRITTEN, (), ())
    assert decision.superseded == (RUN,)
    with pytest.raises(OptionError, match="another run of the same query"):
        replace(PLACE, batch=9).is_repeat(decision, WRITTEN)


def test_a_run_that_was_superseded_has_what_was_decided_for_its_micro_batch_with_its_rows() -> None:
    later = replace(PLACE, run=LATER_RUN).decide(DECISION, WRITTEN, TRANSACTIONS, ())
    assert later.superseded == (RUN,)
    assert PLACE.is_repeat(later, WRITTEN)
    with pytest.raises(OptionError, match="another run of the same query has taken over"):
        PLACE.is_repeat(later, Written(6, 0xABC))
    with pytest.raises(OptionError, match="another run of the same query has taken over"):
        PLACE.check_in_charge(later)  # all of it was aborted: it may not decide again


def test_what_is_said_of_a_batch_write_speaks_of_no_micro_batch_and_no_run_of_a_query() -> None:
    place = SinkBatch("daily", "", RUN, 0)
    decision = place.decide(None, WRITTEN, (), ())
    with pytest.raises(RepeatDiffersError, match="The batch write of the sink 'daily' was committed with 5") as told:
        place.is_repeat(decision, Written(6, 0xABC))
    assert "icro-batch" not in str(told.value) and "checkpoint" not in str(told.value)
    later = replace(place, run=LATER_RUN).decide(decision, WRITTEN, (), ())
    with pytest.raises(OptionError, match="The batch write of the sink 'daily': the same write, sta") as said:
        place.check_in_charge(later)
    assert "icro-batch" not in str(said.value)


def test_runs_that_left_transactions_open_are_superseded_before_those_are_aborted() -> None:
    killed = "0c" * 16
    left = [f"{PLACE.prefix}{killed}/def-0", f"{PLACE.prefix}{RUN}/abc-9", PLACE.decider, "tolerant-sink-other/1-2"]
    assert PLACE.decide(None, WRITTEN, TRANSACTIONS, left).superseded == (killed,)


def test_what_a_former_version_committed_task_by_task_is_not_written_again() -> None:
    PLACE.check_former("tolerant-sink-sink-0", {})
    PLACE.check_former("tolerant-sink-sink-0", {"t-0": CommittedOffset(7, "{}")})
    with pytest.raises(OptionError, match="Micro-batch 7 .* at least in part, by a version .* Let that version finish"):
        PLACE.check_former("tolerant-sink-sink-0", {"t-0": CommittedOffset(8, "{}")})


@pytest.mark.parametrize(
    ("timeout_ms", "reserve"), [(900_000, 60_000), (180_000, 60_000), (60_000, 20_000), (5_000, 1_666)]
)
def test_a_minute_is_kept_for_committing_and_less_only_of_short_timeouts(timeout_ms: int, reserve: int) -> None:
    assert reserve_ms(timeout_ms) == reserve


# -- names -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a1b2c3", "a1b2c3-0"])
def test_an_id_of_a_task_says_its_run(name: str) -> None:
    assert PLACE.run_of(f"{PLACE.prefix}{RUN}/{name}") == RUN


@pytest.mark.parametrize(
    "name", ["tolerant-sink-sink/decider", "tolerant-sink-sink-0", "tolerant-sink-sin/0a/b-0", "0a/b-0"]
)
def test_ids_that_are_no_tasks_are_left_alone(name: str) -> None:
    assert PLACE.run_of(name) is None


# -- digests -----------------------------------------------------------------------


def test_neither_the_order_of_rows_nor_their_batches_nor_their_tasks_matter() -> None:
    values, keys = [b"a", b"", None, b"long" * 100, b"a"], ["k", None, "", "l", "k"]
    whole = digest(rows(values, keys))
    assert whole.rows == 5
    assert digest(rows(values[::-1], keys[::-1])) == whole
    assert digest(rows(values[:2], keys[:2]), rows(values[2:], keys[2:])) == whole
    assert Written.total([digest(rows(values[:2], keys[:2])), digest(), digest(rows(values[2:], keys[2:]))]) == whole
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


def test_a_topic_that_is_an_option_and_partitions_that_are_not_given_make_no_other_rows() -> None:
    values, keys = [b"a", None], ["k", None]
    column = digest(rows(values, keys, topics=pa.array(["t", "t"])))
    assert digest(rows(values, keys)) == column
    assert digest(rows(values, keys, partitions=pa.array([None, None], pa.int32()))) == column


def test_a_topic_and_a_key_that_change_places_change_the_digest() -> None:
    one, other = pa.array(["t"]), pa.array(["k"])
    assert digest(rows([b"v"], ["k"], topics=one)) != digest(rows([b"v"], ["t"], topics=other))


def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    """Brokers store it: with another way to compute it, every repeat would look different."""
    assert digest(rows([b"value", None], ["key", None])) == Written(2, DIGEST)


DIGEST = 4608061976253481949
