"""The columns of a written frame: chosen and refused as in Spark's own sink."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from spark_integration.writing.columns import WriteColumns, choose_columns
from support.encoding import encode_batches
from tolerant_client.errors import OptionError
from tolerant_client.records.record_batch import decode_records

ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(key: str = "key", value: str = "value", kind: DataType | None = None) -> ArrayType:
    return ArrayType(
        StructType([StructField(key, StringType(), False), StructField(value, kind or BinaryType())]), False
    )


def frame(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_columns_are_found_wherever_they_are() -> None:
    schema = frame(
        other=LongType(),
        partition=IntegerType(),
        headers=headers(),
        value=BinaryType(),
        key=StringType(),
        topic=StringType(),
    )
    assert choose_columns(schema, None) == WriteColumns(topic=5, key=4, value=3, headers=2, partition=1)


def test_only_a_value_and_a_topic_are_needed() -> None:
    assert choose_columns(frame(value=StringType()), "t") == WriteColumns("t", None, 0, None, None)
    assert choose_columns(frame(topic=StringType(), value=BinaryType()), None) == WriteColumns(0, None, 1, None, None)


def test_the_option_wins_over_a_topic_column_of_whatever_type() -> None:
    assert choose_columns(frame(topic=LongType(), value=StringType()), "t").topic == "t"


def test_names_are_exact() -> None:
    schema = frame(Value=StringType(), value=StringType(), KEY=StringType())
    assert choose_columns(schema, "t") == WriteColumns("t", None, 1, None, None)


def doubled(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (doubled("key", "value", "key"), "several columns 'key'"),
        (doubled("value", "n", "n"), "several columns 'n'"),
        (frame(value=StringType(), s=doubled("a", "a")), "several fields 'a' in the column 's'"),
        (frame(value=StringType(), s=frame(z=ArrayType(doubled("a", "a")))), "several fields 'a' in the column 's'"),
        (frame(value=StringType(), m=MapType(StringType(), doubled("a", "a"))), "several fields 'a' in the column 'm'"),
        (frame(value=StringType(), m=MapType(doubled("a", "a"), StringType())), "several fields 'a' in the column 'm'"),
        (frame(value=StringType(), i=YearMonthIntervalType(0, 0)), "a column 'i' of the type interval year"),
    ],
)
def test_what_spark_cannot_convert_is_refused_with_the_remedy(schema: StructType, what: str) -> None:
    with pytest.raises(OptionError, match=rf"The frame has {what}, .*: select the columns to write, df\.select\("):
        choose_columns(schema, "t")


def test_left_out_columns_may_have_all_other_types() -> None:
    schema = frame(
        value=StringType(),
        n=LongType(),
        N=LongType(),
        s=StructType([StructField("a", ArrayType(YearMonthIntervalType())), StructField("A", NullType())]),
        d=DayTimeIntervalType(),
        v=VariantType(),
    )
    assert choose_columns(schema, "t") == WriteColumns("t", None, 0, None, None)


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (frame(value=StringType()), None, "topic option required when no 'topic' attribute is present"),
        (frame(key=StringType()), "t", "Required attribute 'value' not found"),
        (frame(VALUE=StringType()), "t", "Required attribute 'value' not found"),
        (frame(topic=IntegerType(), value=StringType()), None,
         r"topic attribute unsupported type int\. topic must be a\(n\) string$"),
        (frame(value=LongType()), "t",
         r"value attribute unsupported type bigint\. value must be a\(n\) string or binary$"),
        (frame(value=StringType(), key=DoubleType()), "t",
         r"key attribute unsupported type double\. key must be a\(n\) string or binary$"),
        (frame(value=StringType(), key=NullType()), "t", "key attribute unsupported type void"),
        (frame(value=StringType(), partition=LongType()), "t",
         r"partition attribute unsupported type bigint\. partition must be a\(n\) int$"),
        (frame(value=StringType(), headers=MapType(StringType(), BinaryType())), "t",
         r"headers attribute unsupported type map<string,binary>\."
         r" headers must be a\(n\) array<struct<key:string,value:binary>>$"),
        (frame(value=StringType(), headers=headers(kind=StringType())), "t", "headers attribute unsupported type"),
        (frame(value=StringType(), headers=headers("name")), "t", "headers attribute unsupported type"),
        (frame(value=StringType(), headers=ArrayType(BinaryType())), "t", "headers attribute unsupported type"),
    ],
)  # fmt: skip
def test_what_spark_refuses_is_refused_with_its_sentence(schema: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        choose_columns(schema, topic)


def test_names_of_header_fields_may_be_of_any_case() -> None:
    assert choose_columns(frame(value=StringType(), headers=headers("KEY", "Value")), "t").headers == 1


def test_the_choice_travels_to_the_workers() -> None:
    columns = choose_columns(frame(topic=StringType(), value=StringType()), None)
    assert pickle.loads(pickle.dumps(columns)) == columns


def batch(large: bool = False, **columns: Any) -> Any:
    kinds = {
        "topic": pa.large_string() if large else pa.string(),
        "key": pa.large_binary() if large else pa.binary(),
        "value": pa.large_string() if large else pa.string(),
        "headers": ARROW_HEADERS,
        "partition": pa.int32(),
    }
    return pa.record_batch([pa.array(values, kinds[name]) for name, values in columns.items()], names=list(columns))


@pytest.mark.parametrize("large", [False, True])
def test_rows_are_what_the_encoder_takes(large: bool) -> None:
    schema = frame(topic=StringType(), key=BinaryType(), value=StringType(), headers=headers(), partition=IntegerType())
    given = batch(
        large,
        topic=["a", "b"],
        key=[None, b"k"],
        value=["v", None],
        headers=[[{"key": "h", "value": None}], None],
        partition=[None, 3],
    )
    rows = choose_columns(schema, None).rows(given)
    assert rows.topics.to_pylist() == ["a", "b"]
    assert rows.partitions.to_pylist() == [None, 3]
    (encoded,) = encode_batches(rows.keys, rows.values, rows.headers, 5)
    assert [(record.key, record.value, record.headers) for record in decode_records(encoded.data)] == [
        (None, b"v", (("h", None),)),
        (b"k", None, ()),
    ]


def test_columns_that_a_frame_has_not_are_none() -> None:
    rows = choose_columns(frame(value=StringType()), "t").rows(batch(value=["v"]))
    assert (rows.topics, rows.keys, rows.headers, rows.partitions) == ("t", None, None, None)
    assert rows.values.to_pylist() == ["v"]


def test_a_null_topic_is_refused_by_row() -> None:
    columns = choose_columns(frame(topic=StringType(), value=StringType()), None)
    with pytest.raises(ValueError, match=r"null topic present in the data, in row 1 of 3\. Use the topic option"):
        columns.rows(batch(topic=["a", None, None], value=["v", "w", "x"]))


def test_a_header_without_a_key_is_refused_by_row() -> None:
    columns = choose_columns(frame(value=StringType(), headers=headers()), "t")
    with pytest.raises(ValueError, match="null key of a header present in the data, in row 2 of 3"):
        columns.rows(batch(value=["v", "w", "x"], headers=[None, [], [{"key": None, "value": b"1"}]]))
