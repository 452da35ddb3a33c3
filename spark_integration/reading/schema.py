"""The columns of a read as Spark and as Arrow types, and the selection that a reader is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_integration.reading.options import ReadOptions
from tolerant_client.errors import OptionError
from tolerant_client.records.arrow import ALL_COLUMNS, HEADERS, SCHEMA, TIMESTAMP

_SPARK: Final[Mapping[pa.DataType, DataType]] = {
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    TIMESTAMP: TimestampType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
_OF_BATCHES: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "baseOffset": pa.int64(),
    "lastOffset": pa.int64(),
    "recordCount": pa.int32(),
    "leaderEpoch": pa.int32(),
    "maxTimestamp": TIMESTAMP,
    "compressionType": pa.string(),
    "isTransactional": pa.bool_(),
    "isControl": pa.bool_(),
    "batch": pa.binary(),
}
_ARROW: Final = {
    **_OF_BATCHES,
    **{field.name: field.type for field in ALL_COLUMNS},
    "keySchemaId": pa.int32(),
    "valueSchemaId": pa.int32(),
}
# One row per task: the ranges that it copies.
RANGES: Final = "ranges array<struct<topic: string, partition: int, until_offset: bigint>>"


def full_schema(options: ReadOptions) -> StructType:
    """All columns of a read: those of Spark's own Kafka source first, in its order."""
    if options.payload == "batches":
        names = [*_OF_BATCHES]
    else:
        names = [
            *SCHEMA.names,
            *(["headers"] if options.include_headers else []),
            *(["leaderEpoch"] if options.include_leader_epoch else []),
            *(f"{name}SchemaId" for name in options.framed),
        ]
    return StructType([StructField(name, _SPARK[_ARROW[name]]) for name in names])


def chosen_columns(schema: StructType, options: ReadOptions) -> pa.Schema:
    """The columns of `schema`, which may be a user's selection of full_schema's, in any order.

    Raises OptionError for a column that does not exist, or has another type.
    """
    known = full_schema(options)
    if not len(schema):
        raise OptionError(f"A schema without columns reads nothing; choose among {', '.join(known.names)}")
    types: dict[str, DataType] = {field.name: field.dataType for field in known}
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise OptionError(f"A schema has column {field.name!r} twice")
        if not field.nullable:
            raise OptionError(f"Column {field.name} may be null: write it without NOT NULL, or Spark leaves rows out")
        if field.name not in types:
            raise OptionError(f"There is no column {field.name!r}; a schema may choose among {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise OptionError(
                f"Column {field.name} is {types[field.name].simpleString()}, not {field.dataType.simpleString()};"
                " cast it after reading"
            )
    return pa.schema([pa.field(field.name, _ARROW[field.name]) for field in schema])
