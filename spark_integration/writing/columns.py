"""The columns of a written frame: which become topic, key, value, headers and partition.

Laws, those of Spark's own sink (KafkaWriter.scala and KafkaWriteTask.scala of Apache Spark 4.2):
- A column is found by its exact name; other columns are left out.
- The option `topic` takes precedence over the column, which is then not even checked.
- Headers are written whenever the column exists: includeHeaders is an option of reading.
- A wrong schema is refused before anything is written.

Unlike that sink's, all columns are converted to Arrow by Spark before others are left out.  What it cannot convert is refused
here, on the driver, with the remedy: several columns, or fields of a column, of one name, and year-month intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from tolerant_client.errors import OptionError
from tolerant_client.records.batch_encoding import row_without_header_key

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_WANTED: Final[dict[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
}


class WriteRows(NamedTuple):
    """The rows of one Arrow batch, as input for batch_encoding and partitioner; `topics` is one for all or a column."""

    topics: str | pa.Array
    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    partitions: pa.Array | None


@dataclass(frozen=True)
class WriteColumns:
    """The positions of the columns in a frame; `topic` is a column's number or the option's topic."""

    topic: int | str
    key: int | None
    value: int
    headers: int | None
    partition: int | None

    def rows(self, batch: pa.RecordBatch) -> WriteRows:
        """The columns of one batch of the frame, not copied.

        Raises ValueError, naming the row of the batch, for a null topic
        and for a header without a key.
        """
        topics: Any = self.topic
        if isinstance(topics, int):
            topics = batch.column(topics)
            if topics.null_count:
                row = topics.is_null().index(True).as_py()
                raise ValueError(
                    f"[KAFKA_NULL_TOPIC_IN_DATA] null topic present in the data, in row {row} of {batch.num_rows}."
                    " Use the topic option for setting a default topic."
                )
        headers = _column(batch, self.headers)
        if headers is not None:
            row = row_without_header_key(headers)
            if row is not None:
                raise ValueError(
                    f"null key of a header present in the data, in row {row} of {batch.num_rows};"
                    " Kafka's headers need a key, only their value may be null"
                )
        return WriteRows(
            topics, _column(batch, self.key), batch.column(self.value), headers, _column(batch, self.partition)
        )


def _column(batch: Any, number: int | None) -> Any:
    return None if number is None else batch.column(number)


def choose_columns(schema: StructType, topic: str | None) -> WriteColumns:
    """The columns of a frame with this schema; `topic` is the option, None if it is not set.

    Raises OptionError, with the wording of Spark's own sink, for a column
    that is missing or has another type; and for a frame that Spark cannot convert.
    """
    source = _find(schema, "topic") if topic is None else topic
    if source is None:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    key, value = _find(schema, "key"), _find(schema, "value")
    if value is None:
        raise OptionError("Required attribute 'value' not found")
    headers, partition = _find(schema, "headers"), _find(schema, "partition")
    for what in _unconvertible(schema):
        raise OptionError(
            f"The frame has {what}, and Spark converts all columns for a Python sink: select the columns to write,"
            " df.select('key', 'value'), or after a join df.select(left['key'], 'value')"
        )
    return WriteColumns(source, key, value, headers, partition)


def _unconvertible(schema: StructType) -> Iterator[str]:
    """What keeps Spark from converting a frame to Arrow for Python (ArrowUtils.scala, and PyArrow, which has no such intervals)."""
    for name in _doubled_names(schema):
        yield f"several columns {name!r}"
    for column in schema:
        for name in _doubled_fields(column.dataType):
            yield f"several fields {name!r} in the column {column.name!r}"
        # PyArrow passes on those within an array, a map or a struct.
        if isinstance(column.dataType, YearMonthIntervalType):
            yield f"a column {column.name!r} of the type {column.dataType.simpleString()}"


def _doubled_names(struct: StructType) -> list[str]:
    return [name for name, count in Counter(struct.fieldNames()).items() if count > 1]


def _doubled_fields(kind: DataType) -> Iterator[str]:
    """Names that several fields of a struct have, at any depth."""
    if isinstance(kind, StructType):
        yield from _doubled_names(kind)
        inner = [field.dataType for field in kind]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    else:
        inner = []
    for one in inner:
        yield from _doubled_fields(one)


def _find(schema: StructType, name: str) -> int | None:
    """The number of the column of this name; raises OptionError for a type that it may not have."""
    names = schema.fieldNames()
    if name not in names:
        return None
    number = names.index(name)
    found, wanted = schema[number].dataType, _WANTED[name]
    if not any(_is_same(found, kind) for kind in wanted):
        raise OptionError(
            f"{name} attribute unsupported type {found.simpleString()}."
            f" {name} must be a(n) {' or '.join(kind.simpleString() for kind in wanted)}"
        )
    return number


def _is_same(found: DataType, wanted: DataType) -> bool:
    """Whether two types differ only in nullability and in the case of names, like DataTypeUtils.sameType."""
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return _is_same(found.elementType, wanted.elementType)
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        return len(found) == len(wanted) and all(
            one.name.lower() == other.name.lower() and _is_same(one.dataType, other.dataType)
            for one, other in zip(found, wanted, strict=True)
        )
    return found == wanted
