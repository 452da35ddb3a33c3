"""Queries over batch reads: how they are split into tasks, what they ask of the rows, and what clients are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.batch_scenarios import BOTH_STEPS, at, offsets
from parity.scenario import Scenario

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def where(condition: str) -> Callable[[Any], Any]:
    return lambda frame: frame.where(condition)


def columns(*names: str) -> Callable[[Any], Any]:
    return lambda frame: frame.select(*names)


SPLITS = (
    Scenario("as many Spark partitions as Kafka has", {"subscribe": "steps,others"}, counts_partitions=True),
    Scenario("an empty partition and its Spark partition", {"subscribe": "mixed"}, counts_partitions=True),
    *(
        Scenario(
            f"minPartitions {count} of uneven partitions",
            {"subscribe": "uneven", "minPartitions": str(count)},
            counts_partitions=True,
        )
        for count in (1, 7, 12)
    ),
    *(
        Scenario(
            f"maxRecordsPerPartition {count} of uneven partitions",
            {"subscribe": "uneven", "maxRecordsPerPartition": str(count)},
            counts_partitions=True,
        )
        for count in (100, 1_000_000)
    ),
    Scenario(
        "both splits, few records each",
        {"subscribe": "uneven", "maxRecordsPerPartition": "60", "minPartitions": "8"},
        counts_partitions=True,
    ),
    Scenario(
        "both splits, many partitions",
        {"subscribe": "uneven", "maxRecordsPerPartition": "200", "minPartitions": "12"},
        counts_partitions=True,
    ),
    Scenario(
        "more partitions than records",
        {"subscribe": "pattern.one", "minPartitions": "9"},
        counts_partitions=True,
    ),
    Scenario("an empty topic and minPartitions", {"subscribe": "empty", "minPartitions": "4"}, counts_partitions=True),
    Scenario(
        "splits between given offsets",
        {
            "subscribe": "steps",
            "minPartitions": "5",
            "startingOffsets": offsets("steps", 10, 20),
            "endingOffsets": offsets("steps", 51, 27),
        },
        counts_partitions=True,
    ),
    Scenario(
        "splits of a log that starts above 0",
        {"subscribe": "shortened", "minPartitions": "5"},
        counts_partitions=True,
    ),
    Scenario("splits of a compacted log", {"subscribe": "compacted", "minPartitions": "7"}, counts_partitions=True),
    Scenario("splits of transactions read committed", {
        "subscribe": "transactional", "minPartitions": "9", "kafka.isolation.level": "read_committed",
    }),
)  # fmt: skip


def _joined(frame: Any) -> Any:
    left = frame.where("topic = 'steps' and partition = 0").select("key", "value", "offset")
    right = frame.where("topic = 'others'").selectExpr("value", "timestamp as seen")
    return left.join(right, "value")


QUERIES = (
    Scenario("only the values", {"subscribe": "mixed"}, columns("value")),
    Scenario(
        "columns in another order",
        {"subscribe": "mixed", "includeHeaders": "true"},
        columns("headers", "timestampType", "offset", "topic"),
    ),
    Scenario("no column at all", BOTH_STEPS, lambda frame: frame.selectExpr("1 as one")),
    Scenario(
        "a cast of key and value",
        BOTH_STEPS,
        lambda frame: frame.selectExpr("cast(key as string)", "cast(value as string)", "offset"),
    ),
    Scenario("a count", {"subscribe": "mixed,uneven"}, lambda frame: frame.count()),
    Scenario("a count of nothing", {"subscribe": "empty"}, lambda frame: frame.count()),
    Scenario("is it empty", BOTH_STEPS, lambda frame: frame.isEmpty()),
    Scenario("a limit", {"subscribe": "pattern.one"}, lambda frame: frame.limit(3).count()),
    Scenario("the first rows by offset", BOTH_STEPS, lambda frame: frame.orderBy("offset", "partition").limit(5)),
    Scenario("one partition", BOTH_STEPS, where("partition = 1")),
    Scenario("a range of offsets", BOTH_STEPS, where("offset >= 10 and offset < 13")),
    Scenario(
        "an offset in one partition or another",
        BOTH_STEPS,
        where("(partition = 0 and offset = 5) or (partition = 1 and offset > 57)"),
    ),
    Scenario("offsets in a list", BOTH_STEPS, where("offset in (1, 3, 59, 99)")),
    Scenario(
        "a range of times",
        BOTH_STEPS,
        where(f"timestamp >= timestamp_millis({at(10)}) and timestamp < timestamp_millis({at(12.5)})"),
    ),
    Scenario(
        "a time of times that go back",
        {"subscribe": "restless-times"},
        where(f"timestamp > timestamp_millis({at(90)})"),
    ),
    Scenario("a topic of two", {"subscribe": "steps,others"}, where("topic = 'others'")),
    Scenario("topics of a prefix", {"subscribe": "steps,others"}, where("topic like 'st%'")),
    Scenario("a key", BOTH_STEPS, where("key = cast('k3' as binary)")),
    Scenario("keys that are null", {"subscribe": "mixed"}, where("key is null")),
    Scenario("values that are not null", {"subscribe": "mixed"}, where("value is not null and partition <> 1")),
    Scenario("a condition that nothing meets", BOTH_STEPS, where("offset < 0")),
    Scenario("a condition and other columns", BOTH_STEPS, lambda frame: frame.where("offset = 7").select("value")),
    Scenario(
        "headers by key",
        {"subscribe": "mixed", "includeHeaders": "true"},
        lambda frame: (
            frame.selectExpr("offset", "explode(headers) as header").selectExpr("offset", "header.key", "header.value")
        ),
    ),
    Scenario("a join of two topics", {"subscribe": "steps,others"}, _joined),
    Scenario("sums by topic and partition", {"subscribe": "steps,others,mixed"},
             lambda frame: frame.groupBy("topic", "partition").agg({"offset": "sum", "*": "count"})),
    Scenario("counts in windows of time", BOTH_STEPS,
             lambda frame: frame.selectExpr("window(timestamp, '15 seconds') as w").groupBy("w").count()),
    Scenario("a union with itself", BOTH_STEPS, lambda frame: frame.union(frame)),
    Scenario("values once each", BOTH_STEPS, lambda frame: frame.select("value").distinct()),
    Scenario("the source's own schema given by the user", BOTH_STEPS, schema=COLUMNS),
    Scenario(
        "read twice from a cache",
        BOTH_STEPS,
        lambda frame: (frame.cache().count(), frame.count(), frame.unpersist())[1],
    ),
)  # fmt: skip

CLIENTS = (
    Scenario("a group id of one's own", {**BOTH_STEPS, "kafka.group.id": "parity-group"}),
    Scenario("a prefix of group ids", {**BOTH_STEPS, "groupIdPrefix": "parity"}),
    Scenario(
        "both a group id and a prefix",
        {**BOTH_STEPS, "kafka.group.id": "parity-group", "groupIdPrefix": "parity"},
    ),
    Scenario("retries of offsets", {**BOTH_STEPS, "fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10"}),
    Scenario("a poll timeout", {**BOTH_STEPS, "kafkaConsumer.pollTimeoutMs": "10000"}),
    Scenario(
        "small fetches",
        {
            **BOTH_STEPS,
            "kafka.max.partition.fetch.bytes": "200",
            "kafka.fetch.max.bytes": "300",
            "kafka.max.poll.records": "3",
        },
    ),
    Scenario(
        "waits and timeouts of a client",
        {
            **BOTH_STEPS,
            "kafka.request.timeout.ms": "20000",
            "kafka.fetch.max.wait.ms": "50",
            "kafka.fetch.min.bytes": "1",
            "kafka.session.timeout.ms": "6000",
            "kafka.heartbeat.interval.ms": "1000",
            "kafka.default.api.timeout.ms": "20000",
            "kafka.metadata.max.age.ms": "3000",
            "kafka.receive.buffer.bytes": "65536",
            "kafka.send.buffer.bytes": "-1",
        },
    ),
    Scenario(
        "names of a client",
        {**BOTH_STEPS, "kafka.client.id": "parity", "kafka.client.rack": "rack-1", "kafka.group.instance.id": "one"},
    ),
    Scenario("a Kafka option that nobody knows", {**BOTH_STEPS, "kafka.no.such.option": "1"}),
    Scenario("a Kafka option of producers", {**BOTH_STEPS, "kafka.linger.ms": "5", "kafka.acks": "all"}),
    Scenario("no security by name", {**BOTH_STEPS, "kafka.security.protocol": "PLAINTEXT"}),
    Scenario("names of Kafka options in capitals", {"subscribe": "others", "KAFKA.MAX.POLL.RECORDS": "10"}),
)  # fmt: skip

CORE = SPLITS
TABLE = (*SPLITS, *QUERIES, *CLIENTS)
