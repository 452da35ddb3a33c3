"""A scenario as a value, what comes of it on a source, and the kind of an error.

An error of the JVM is known by its classes and conditions, one of ours by the last line of its Python traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from support.long import LONG

JVM, OURS = "kafka", "tolerantkafka"

# Given to both sources unless a scenario says otherwise, so that nobody waits for long.
QUICK = {"kafka.fetch.max.wait.ms": "20", "fetchOffset.retryIntervalMs": "10"}

# kafka-error-conditions.json of Spark's connector.
_CONDITIONS = re.compile(
    r"\[((?:KAFKA|MISMATCHED|END_OFFSET|LOST_TOPIC|RESOLVED_START|UNRESOLVED_START)_[A-Z_.]*[A-Z])\]"
)
_JVM_KINDS = (
    ("record", r"KAFKA_NULL_TOPIC_IN_DATA|RecordTooLargeException|Partition \d+ of topic|Invalid partition: "),
    ("record", r"Invalid topics: "),
    ("record", r"NullPointerException: Cannot invoke \"org.apache.spark.unsafe.types.UTF8String"),
    ("loss", r"KAFKA_DATA_LOSS|_AVAILABLENOW|_PREFETCHED|OffsetOutOfRangeException"),
    ("option", r"SCHEMA_MISMATCH|Kafka option bootstrap.servers is not set"),
    ("option", r"IllegalArgumentException|NumberFormatException|NoSuchElementException|AssertionError"),
    ("option", r"PatternSyntaxException|ConfigException|_DOES_NOT_MATCH_ASSIGNED|START_OFFSET_GREATER_THAN_END"),
    ("option", r"UnknownTopicOrPartitionException|InvalidTopicException|Failed to create new KafkaAdminClient"),
    ("option", r"Failed to construct kafka (producer|consumer)|TimeoutException|AnalysisException"),
)
_OUR_KINDS = {
    "OptionError": "option",
    "DataLossError": "loss",
    "RecordRefusedError": "record",
    "RecordTooLargeError": "record",
}
_OUR_ERROR = re.compile(rf"\b({'|'.join(_OUR_KINDS)}): (.*(?:\n(?! *(?:File|at|SQLSTATE|\n)).*)*)")


@dataclass(frozen=True)
class Rows:
    """What a query returned; `rows` are sorted."""

    schema: str
    rows: tuple[Any, ...]
    partitions: int | None = None

    def __str__(self) -> str:
        return f"{len(self.rows)} rows" + ("" if self.partitions is None else f" in {self.partitions} partitions")


@dataclass(frozen=True)
class Failed:
    """How a query failed; `condition` is the name that Spark has for it."""

    kind: str
    message: str
    condition: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.condition or ''}: {self.message[:1_500]}"


Outcome = Rows | Failed
_S = TypeVar("_S")


def chosen(core: tuple[_S, ...], table: tuple[_S, ...]) -> list[_S]:
    """Every third one of the core in every run of all tests; with TOLERANT_LONG=1 (tox: `parity`) the whole table."""
    return list(table if LONG else core[::3])


Action = Callable[[Any], Any]


def every_row(frame: Any) -> Any:
    return frame


@dataclass(frozen=True)
class Scenario:
    """One query; `fails` is None, or what our message carries beside being of the JVM's kind.

    `action` makes another frame, or a value, of the one that was loaded.
    """

    name: str
    options: Mapping[str, str]
    action: Action = every_row
    fails: str | None = None
    counts_partitions: bool = field(default=False, kw_only=True)
    schema: str | None = field(default=None, kw_only=True)
    without_servers: bool = field(default=False, kw_only=True)


def run(spark: Any, servers: str, source: str, scenario: Scenario) -> Outcome:
    """Runs a batch scenario on a source."""
    reader = spark.read.format(source).options(**QUICK)
    if not scenario.without_servers:
        reader = reader.option("kafka.bootstrap.servers", servers)
    if scenario.schema is not None:
        reader = reader.schema(scenario.schema)
    try:
        result = scenario.action(reader.options(**scenario.options).load())
        if not hasattr(result, "collect"):
            return Rows(type(result).__name__, (result,))
        count = result.rdd.getNumPartitions() if scenario.counts_partitions else None
        return Rows(result.schema.simpleString(), sorted_rows(result), count)
    except Exception as error:  # its kind is what is compared
        return failure(error)


def sorted_rows(frame: Any) -> tuple[Any, ...]:
    """The rows as tuples, by topic, partition and offset where there are such columns."""
    columns = frame.columns
    rows = [tuple(freeze(value) for value in row) for row in frame.collect()]
    places = [columns.index(name) for name in ("topic", "partition", "offset") if name in columns]
    return tuple(sorted(rows, key=lambda row: ([row[place] for place in places], repr(row))))


def freeze(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(freeze, value))
    return value


def failure(error: BaseException) -> Failed:
    """The kind of an error of either source, and what it says."""
    told = "\n".join(_causes(error))
    ours = _OUR_ERROR.findall(told)
    name, message = ours[-1] if ours else (type(error).__name__, told)
    found = _CONDITIONS.search(message)
    condition = found.group(1) if found else None
    if "Traceback (most recent call last)" in told:
        return Failed(_OUR_KINDS.get(name, name), message, condition)
    for kind, pattern in _JVM_KINDS:
        if re.search(pattern, told):
            return Failed(kind, told, condition)
    return Failed(type(error).__name__, told, condition)


def _causes(error: BaseException) -> list[str]:
    """`class [condition]: message` of every cause of a Java exception."""
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    said = [f"{type(error).__name__}: {error}"]
    while cause is not None and len(said) < 20:
        try:
            condition = cause.getCondition()
        except Exception:  # py4j: only a SparkThrowable has one
            condition = None
        said.append(f"{cause.getClass().getName()} [{condition}]: {cause.getMessage()}")
        cause = cause.getCause()
    return said


def differences(scenario: Scenario, jvm: Outcome, ours: Outcome) -> list[str]:
    """What is not alike in what the two sources promise, a line each."""
    if isinstance(jvm, Failed) != (scenario.fails is not None):
        return [f"the JVM's source: {jvm}"]
    if isinstance(jvm, Failed) != isinstance(ours, Failed):
        return [f"the JVM's source: {jvm}; ours: {ours}"]
    if isinstance(jvm, Failed) and isinstance(ours, Failed):
        return unlike_failures(jvm, ours, scenario.fails or "")
    assert isinstance(jvm, Rows) and isinstance(ours, Rows)
    found = [f"{name}: {one} | {other}" for name, one, other in (
        ("schema", jvm.schema, ours.schema), ("partitions", jvm.partitions, ours.partitions),
    ) if one != other]  # fmt: skip
    if ours.rows != jvm.rows:
        only = [[row for row in one.rows if row not in other.rows] for one, other in ((jvm, ours), (ours, jvm))]
        found.append(f"rows: {len(jvm.rows)} | {len(ours.rows)}; only the JVM's: {only[0][:2]}; ours: {only[1][:2]}")
    return found


def unlike_failures(jvm: Failed, ours: Failed, says: str) -> list[str]:
    """Ours must be of the JVM's kind and carry its condition, and `says`."""
    if ours.kind != jvm.kind or (jvm.condition is not None and ours.condition != jvm.condition):
        return [f"kind: {jvm} | {ours}"]
    return [] if says in ours.message else [f"{says!r} is not in: {ours.message}"]
