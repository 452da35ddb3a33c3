"""Offsets as JSON, and the planning of ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import (
    EARLIEST,
    AtTimestamp,
    Everywhere,
    OffsetRange,
    SpecificOffsets,
    began_at,
    check_same_partitions,
    cluster_of,
    first_end,
    flat_offsets,
    nested_offsets,
    parse_assignment,
    parse_partition_numbers,
    plan_ranges,
    topic_ids,
)
from tolerant_client.errors import OptionError

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

ranges = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 300)), max_size=6).map(
    lambda pairs: [OffsetRange("t", i, start, start + size) for i, (start, size) in enumerate(pairs)]
)


def test_spark_writes_offsets_like_this() -> None:
    text = '{"a":{"0":23,"1":-2},"b":{"0":-1}}'
    assert parse_partition_numbers(text, "startingOffsets") == {A0: 23, A1: -2, B0: -1}
    assert json.dumps(nested_offsets({B0: -1, A1: -2, A0: 23}), separators=(",", ":")) == text


@given(
    offsets=st.dictionaries(
        st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 10**6)),
        st.integers(-2, 2**62),
        min_size=1,
    )
)
def test_offsets_survive_json(offsets: dict[TopicPartition, int]) -> None:
    assert parse_partition_numbers(json.dumps(nested_offsets(offsets)), "x") == offsets


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "needs a JSON object"),
        ("{}", "needs a JSON object"),
        ('{"a":3}', "topic a needs an object"),
        ('{"a":{"x":3}}', "'x', which is not a number"),
        ('{"a":{"-1":3}}', "'-1', which is not a number"),
        ('{"a":{"0":"3"}}', "a-0 needs an integer"),
        ('{"a":{"0":true}}', "a-0 needs an integer"),
        ('{"a":{"0":1.5}}', "a-0 needs an integer"),
        ('{"a":{"0":1},"a":{"1":1}}', "names something twice"),
    ],
)
def test_wrong_offsets_are_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        parse_partition_numbers(text, "startingOffsets")
    assert "startingOffsets" in str(caught.value)


def test_assignments_are_lists_of_partitions() -> None:
    assert parse_assignment('{"b":[0],"a":[1,0,1]}', "assign") == (A0, A1, B0)


@pytest.mark.parametrize("text", ['{"a":0}', '{"a":[]}', '{"a":["0"]}', '{"a":[-1]}', "a"])
def test_wrong_assignments_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        parse_assignment(text, "assign")


def test_missing_and_extra_partitions_are_named() -> None:
    check_same_partitions(SpecificOffsets({A0: 1, A1: 2}, "startingOffsets"), [A1, A0])
    check_same_partitions(Everywhere(EARLIEST), [A1, A0])
    with pytest.raises(OptionError, match=r"KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED.*startingOffsets.*missing: a-1"):
        check_same_partitions(SpecificOffsets({A0: 1}, "startingOffsets"), [A0, A1])
    with pytest.raises(OptionError, match=r"KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED.*not read: b-0"):
        check_same_partitions(AtTimestamp({A0: 1, B0: 1}, "endingOffsetsByTimestamp"), [A0])


def test_topic_ids_are_names_without_partitions() -> None:
    """Spark's own source reads a map of maps of numbers, and ignores a topic without numbers."""
    nested = nested_offsets({B0: 3, A0: 1}, {"a": "mZ0x-_", "elsewhere": "x"})
    assert nested == {"a": {"0": 1}, "b": {"0": 3}, "a:mZ0x-_": {}}
    assert flat_offsets(nested) == {A0: 1, B0: 3}
    assert topic_ids(nested) == {"a": "mZ0x-_"}
    assert topic_ids(nested_offsets({A0: 1})) == {}


def test_topic_ids_say_which_cluster_they_are_of() -> None:
    nested = nested_offsets({A0: 1}, {"a": "mZ0x-_"}, "MkU3")
    assert nested == {"a": {"0": 1}, "a:mZ0x-_": {}, ":MkU3": {}}
    assert (flat_offsets(nested), topic_ids(nested), cluster_of(nested)) == ({A0: 1}, {"a": "mZ0x-_"}, "MkU3")
    assert cluster_of(nested_offsets({A0: 1}, {"a": "mZ0x-_"})) is None
    assert nested_offsets({A0: 1}, {}, "MkU3") == {"a": {"0": 1}}


def test_the_end_of_a_first_batch_says_where_that_began() -> None:
    start = nested_offsets({A0: 1}, {"a": "mZ0x-_"}, "MkU3")
    end = nested_offsets({A0: 5}, {"a": "mZ0x-_"}, "MkU3")
    first = json.loads(json.dumps(first_end(end, start)))
    assert {name: numbers for name, numbers in first.items() if numbers} == {"a": {"0": 5}}
    assert (flat_offsets(first), topic_ids(first), cluster_of(first)) == ({A0: 5}, {"a": "mZ0x-_"}, "MkU3")
    assert (began_at(first), began_at(end)) == (start, None)


def test_nested_offsets_are_in_order_and_come_back() -> None:
    nested = nested_offsets({B0: 3, A1: 2, A0: 1})
    assert json.dumps(nested) == '{"a": {"0": 1, "1": 2}, "b": {"0": 3}}'
    assert flat_offsets(nested) == {A0: 1, A1: 2, B0: 3}


@given(
    whole=ranges,
    least=st.none() | st.integers(1, 40),
    most=st.none() | st.integers(1, 100),
)
def test_a_plan_covers_every_offset_once(whole: list[OffsetRange], least: int | None, most: int | None) -> None:
    plan = plan_ranges(whole, least, most)
    for given_range in whole:
        parts = [r for r in plan if r.partition == given_range.partition]
        assert sum(r.size for r in parts) == given_range.size
        if parts:
            assert parts[0].from_offset == given_range.from_offset
            assert parts[-1].until_offset == given_range.until_offset
            assert all(a.until_offset == b.from_offset for a, b in zip(parts, parts[1:], strict=False))
    assert all(r.size > 0 for r in plan)
    if most is not None:
        assert all(r.size <= most for r in plan)
    if least is not None:
        assert len(plan) >= min(least, sum(r.size for r in whole))
    assert plan == plan_ranges(whole, least, most)


def test_the_largest_ranges_are_split_first() -> None:
    whole = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 1000), OffsetRange("t", 2, 5, 5)]
    plan = plan_ranges(whole, 5, None)
    assert [(r.partition, r.from_offset, r.until_offset) for r in plan] == [
        (0, 0, 10), (1, 0, 250), (1, 250, 500), (1, 500, 750), (1, 750, 1000),
    ]  # fmt: skip


def test_without_wishes_a_range_is_a_task() -> None:
    assert plan_ranges([OffsetRange("t", 0, 3, 9)], None, None) == [OffsetRange("t", 0, 3, 9)]
