"""Rows go to the partitions that a Java producer would choose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from tolerant_client.records.partitioner import murmur2, partition_rows, sort_by_partition

# org.apache.kafka.common.utils.UtilsTest, testMurmur2
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KINDS = (pa.binary(), pa.large_binary())

keys_of_rows = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def java_partition(key: bytes, count: int) -> int:
    return int((kafka_python_murmur2(key) & 0x7FFFFFFF) % count)


@pytest.mark.parametrize("kind", KINDS)
def test_hashes_are_those_of_kafkas_own_tests(kind: pa.DataType) -> None:
    assert murmur2(pa.array(list(JAVA), kind)).view(np.int32).tolist() == list(JAVA.values())
    assert [int(murmur2(pa.array([key], kind)).view(np.int32)[0]) for key in JAVA] == list(JAVA.values())


@given(
    keys=st.lists(st.binary(max_size=12) | st.binary(max_size=200), max_size=60),
    kind=st.sampled_from(KINDS),
    before=st.integers(0, 3),
)
def test_hashes_are_those_of_kafka_python(keys: Sequence[bytes], kind: pa.DataType, before: int) -> None:
    column = pa.array([b"other"] * before + [*keys, b"after"], kind).slice(before, len(keys))
    assert murmur2(column).tolist() == [kafka_python_murmur2(key) & 0xFFFFFFFF for key in keys]


@pytest.mark.parametrize("rows", [1, 16, 17, 100])
def test_one_long_key_among_short_ones(rows: int) -> None:
    keys = [b"%d" % row for row in range(rows - 1)] + [b"long" * 5000 + b"end"]
    assert murmur2(pa.array(keys)).tolist() == [kafka_python_murmur2(key) & 0xFFFFFFFF for key in keys]


def test_strings_are_hashed_as_utf_8() -> None:
    words = ["", "a", "\u00e4\u00f6", "\u4f60\u597d", "\U0001f600"]
    wanted = [kafka_python_murmur2(word.encode()) & 0xFFFFFFFF for word in words]
    assert murmur2(pa.array(words)).tolist() == murmur2(pa.array(words, pa.large_string())).tolist() == wanted


@given(
    keys=keys_of_rows,
    chosen=st.data(),
    count=st.integers(1, 50),
    first=st.integers(0, 10**9),
    run_rows=st.integers(1, 5),
)
def test_a_given_partition_wins_then_the_key_then_the_turn(
    keys: list[bytes | None], chosen: st.DataObject, count: int, first: int, run_rows: int
) -> None:
    given_ones = chosen.draw(st.lists(st.none() | st.integers(0, count - 1), min_size=len(keys), max_size=len(keys)))
    found = partition_rows(
        pa.array(keys, pa.binary()), pa.array(given_ones, pa.int32()), count, first, run_rows=run_rows
    )
    turn = 0
    wanted = []
    for key, partition in zip(keys, given_ones, strict=True):
        if partition is None and key is not None:
            partition = java_partition(key, count)
        elif partition is None:
            partition = (first + turn // run_rows) % count
            turn += 1
        wanted.append(partition)
    assert found.tolist() == wanted
    assert found.dtype == np.int32


def test_columns_that_are_not_there_are_as_null() -> None:
    nothing = partition_rows(None, None, 3, 2, row_count=7, run_rows=3)
    assert nothing.tolist() == [2, 2, 2, 0, 0, 0, 1]
    assert partition_rows(pa.nulls(7, pa.binary()), None, 3, 2, run_rows=3).tolist() == nothing.tolist()
    assert partition_rows(None, pa.nulls(7, pa.int32()), 3, 2, run_rows=3).tolist() == nothing.tolist()
    with pytest.raises(ValueError, match="row_count is required"):
        partition_rows(None, None, 3, 2)


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_a_partition_that_there_is_not_is_refused_by_row_and_value(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"row 2 asks for partition {wrong}, but the topic has 3 partitions, 0 to 2"):
        partition_rows(None, pa.array([0, None, wrong], pa.int32()), 3, 0)


@given(st.lists(st.integers(0, 40), max_size=200), st.booleans())
def test_rows_are_grouped_by_partition_in_their_order(numbers: list[int], is_wide: bool) -> None:
    partitions = np.array([number + 40_000 * (is_wide and number % 2) for number in numbers], np.int32)
    wanted = {
        partition: [row for row, other in enumerate(partitions.tolist()) if other == partition]
        for partition in sorted(set(partitions.tolist()))
    }
    order, present, counts = sort_by_partition(partitions)
    assert dict(zip(present.tolist(), counts.tolist())) == {partition: len(rows) for partition, rows in wanted.items()}
    assert order.tolist() == [row for rows in wanted.values() for row in rows]
    assert dict(zip(present.tolist(), counts.tolist(), strict=True)) == {p: len(rows) for p, rows in wanted.items()}
