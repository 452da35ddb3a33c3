"""Filters as bounds: no row that passes them is ever outside."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.pushdown import Bounds, bounds_of

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COMPARE: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
}


def passes(one: Any, row: dict[str, Any]) -> bool:
    return COMPARE[type(one)](row[one.attribute[0]], one.value)


def at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


whole = st.integers(0, 6)
times = st.integers(-3000, 9000).map(at)
values = {"topic": st.sampled_from("abc"), "partition": whole, "offset": whole, "timestamp": times}


@st.composite
def a_filter(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(values)))
    kind = draw(st.sampled_from(list(COMPARE)))
    value = draw(st.lists(values[column], min_size=1, max_size=3)) if kind is In else draw(values[column])
    made: Filter = kind((column,), tuple(value) if kind is In else value)
    return made


@given(filters=st.lists(a_filter(), max_size=4), row=st.fixed_dictionaries({**values, "ms": st.integers(-3, 9)}))
def test_a_row_that_passes_lies_within(filters: list[Filter], row: dict[str, Any]) -> None:
    row["timestamp"] = at(row["ms"] * 1000)  # a record's time is whole ms
    bounds = bounds_of(filters)
    if all(passes(one, row) for one in filters):
        assert bounds.holds(TopicPartition(row["topic"], row["partition"]))
        assert bounds.clip(OffsetRange("t", 0, row["offset"], row["offset"] + 1)).size == 1
        assert bounds.from_ms <= row["ms"] < bounds.until_ms


def test_bounds_are_tight_for_offsets_and_partitions() -> None:
    bounds = bounds_of(
        [
            GreaterThan(("offset",), 9),
            LessThanOrEqual(("offset",), 20),
            In(("partition",), (1, 2)),
            EqualTo(("topic",), "a"),
            LessThan(("partition",), 2),
        ]
    )
    assert bounds.clip(OffsetRange("a", 1, 0, 100)) == OffsetRange("a", 1, 10, 21)
    kept = [p for p in range(4) if bounds.holds(TopicPartition("a", p))]
    assert kept == [1] and not bounds.holds(TopicPartition("b", 1))


def test_contradicting_filters_leave_nothing() -> None:
    bounds = bounds_of([GreaterThan(("offset",), 50), LessThan(("offset",), 10)])
    assert bounds.clip(OffsetRange("a", 0, 0, 100)).size == 0


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("offset",), 5)),
        IsNotNull(("value",)),
        EqualTo(("value",), b"x"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("offset", "nested"), 5),
        EqualTo(("offset",), None),
        GreaterThan(("timestamp",), None),
    ],
)
def test_other_filters_bound_nothing(one: Filter) -> None:
    assert bounds_of([one]) == Bounds()
