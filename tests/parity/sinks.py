"""Sink scenarios: the same rows written with either sink, into topics of its own, and what arrived there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.scenario import JVM, QUICK, Failed, failure, freeze, unlike_failures
from parity.topics import Filler

TIMEOUT_S = 120

Frame = Callable[[Any], Any]  # of a SparkSession, or of a stream of the topic `steps`
HEADERS = "array<struct<key: string, value: binary>>"


def rows(schema: str, *values: Any) -> Frame:
    """These rows, in one Spark partition so that their order is one."""
    return lambda spark: spark.createDataFrame(list(values), schema).coalesce(1)


def expressions(count: int, *columns: str) -> Frame:
    """Rows of SQL expressions over `id`, from 0 to count."""
    return lambda spark: spark.range(0, count, 1, 1).selectExpr(*columns)


@dataclass(frozen=True)
class SinkScenario:
    """In options and column topic, @ is the prefix of the topics of the sink: each sink has @a and @b, 3 partitions.

    `has_places`: the partition of every record follows from the row, so it is compared.
    """

    name: str
    frame: Frame
    options: Mapping[str, str] = field(default_factory=lambda: {"topic": "@a"})
    mode: str | None = "append"
    fails: str | None = None
    has_places: bool = True
    is_stream: bool = False
    output_mode: str = "append"


@dataclass(frozen=True)
class Arrived:
    records: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{len(self.records)} records"


def write(spark: Any, servers: str, sink: str, scenario: SinkScenario, prefix: str, folder: Path) -> Failed | None:
    """Writes with one sink; None if nothing failed."""
    options = {"kafka.bootstrap.servers": servers, "kafka.max.block.ms": "5000", **scenario.options}
    options = {name: value.replace("@", prefix) for name, value in options.items() if value != ""}
    try:
        if scenario.is_stream:
            source = spark.readStream.format(JVM).options(**QUICK).option("kafka.bootstrap.servers", servers)
            source = source.option("subscribe", "steps").option("startingOffsets", "earliest").load()
            frame = _with_prefix(scenario.frame(source), prefix)
            writer = frame.writeStream.format(sink).options(**options).outputMode(scenario.output_mode)
            query = writer.option("checkpointLocation", str(folder / sink)).trigger(availableNow=True).start()
            assert query.awaitTermination(TIMEOUT_S), f"{sink}: the query did not end"
        else:
            frame = _with_prefix(scenario.frame(spark), prefix)
            writer = frame.write.format(sink).options(**options)
            (writer if scenario.mode is None else writer.mode(scenario.mode)).save()
    except Exception as error:  # its kind is what is compared
        return failure(error)
    return None


def _with_prefix(frame: Any, prefix: str) -> Any:
    if "topic" in frame.columns and dict(frame.dtypes)["topic"] == "string":
        from pyspark.sql.functions import regexp_replace

        frame = frame.withColumn("topic", regexp_replace("topic", "@", prefix))
    return frame


def arrived(spark: Any, servers: str, scenario: SinkScenario, prefixes: Mapping[str, str]) -> dict[str, Arrived]:
    """What is in the topics of each sink, by Spark's own source."""
    topics = ",".join(f"{prefix}{name}" for prefix in prefixes.values() for name in "ab")
    frame = spark.read.format(JVM).options(**QUICK).option("kafka.bootstrap.servers", servers)
    found = frame.option("subscribe", topics).option("includeHeaders", "true").load().collect()
    result = {}
    for sink, prefix in prefixes.items():
        records = []
        for row in sorted(found, key=lambda row: (row.topic, row.partition, row.offset)):
            if row.topic.startswith(prefix):
                place = (row.partition, row.offset) if scenario.has_places else ()
                told = (freeze(value) for value in (row.key, row.value, row.headers))
                records.append((row.topic.removeprefix(prefix), *place, *told))
        result[sink] = Arrived(tuple(records if scenario.has_places else sorted(records, key=repr)))
    return result


def make_topics(filler: Filler, prefixes: Mapping[str, str]) -> None:
    for prefix in prefixes.values():
        for name in "ab":
            filler.create(prefix + name, 3)


def differences(scenario: SinkScenario, jvm: Failed | Arrived, ours: Failed | Arrived, prefix: str) -> list[str]:
    """What is not alike, a line each; `prefix` is that of our topics."""
    if isinstance(jvm, Failed) != (scenario.fails is not None):
        return [f"the JVM's sink: {jvm}"]
    if isinstance(jvm, Failed) and isinstance(ours, Failed):
        return unlike_failures(jvm, ours, (scenario.fails or "").replace("@", prefix))
    if isinstance(jvm, Failed) or isinstance(ours, Failed):
        return [f"the JVM's sink: {jvm}; ours: {ours}"]
    if jvm == ours:
        return []
    only = [[r for r in one.records if r not in other.records] for one, other in ((jvm, ours), (ours, jvm))]
    return [f"{jvm} | {ours}; only the JVM's: {only[0][:2]}; only ours: {only[1][:2]}"]
