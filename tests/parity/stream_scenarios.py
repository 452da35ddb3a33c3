"""Streaming reads: the offsets, rows and progress of every micro-batch."""

from __future__ import annotations

from parity.batch_scenarios import at, offsets, times
from parity.streams import Append, Cut, Delete, Drain, Fail, Go, Grow, Make, Start, Stop, StreamScenario
from parity.topics import STEPS

FROM_START = {"startingOffsets": "earliest"}
ALL_STEPS = {"subscribe": "steps", **FROM_START}
OWN = {"subscribe": "@a", **FROM_START}
TWO = {"@a": 2}
FIRST = (Append("@a", 0, 0, 10), Append("@a", 1, 0, 5))
MORE = (Append("@a", 0, 10, 13), Append("@a", 1, 5, 25))

STARTS = (
    StreamScenario("all that is there", ALL_STEPS),
    StreamScenario("all that is there with headers", {"subscribe": "mixed", **FROM_START, "includeHeaders": "true"}),
    StreamScenario("two topics", {"subscribe": "steps,others", **FROM_START}),
    StreamScenario("assigned partitions", {"assign": '{"steps":[1],"mixed":[2]}', **FROM_START}),
    StreamScenario("a pattern, streamed", {"subscribePattern": "pattern.*", **FROM_START}),
    StreamScenario("a pattern that matches nothing, streamed", {"subscribePattern": "nothing-like-this", **FROM_START}),
    StreamScenario("an empty topic, streamed", {"subscribe": "empty", **FROM_START}),
    StreamScenario("latest is where a new query starts", {"subscribe": "@a"}, (*FIRST, Go(), *MORE, Go()), TWO),
    StreamScenario(
        "latest by name",
        {"subscribe": "@a", "startingOffsets": "LATEST"},
        (*FIRST, Go(), *MORE, Go()),
        TWO,
    ),
    StreamScenario("given offsets", {"subscribe": "steps", "startingOffsets": offsets("steps", 50, 0)}),
    StreamScenario(
        "earliest and latest by partition",
        {"subscribe": "steps", "startingOffsets": offsets("steps", -1, -2)},
    ),
    StreamScenario("a time", {"subscribe": "steps", "startingTimestamp": at(40)}),
    StreamScenario(
        "times by partition, streamed",
        {"subscribe": "steps", "startingOffsetsByTimestamp": times("steps", 10, 50.5)},
    ),
    StreamScenario("a time later than all and latest", {
        "subscribe": "steps", "startingTimestamp": at(9_999), "startingOffsetsByTimestampStrategy": "latest",
    }),
    StreamScenario("a log that starts above 0, streamed", {"subscribe": "shortened", **FROM_START}),
    StreamScenario("a compacted log", {"subscribe": "compacted", **FROM_START, "maxOffsetsPerTrigger": "70"}),
    StreamScenario("transactions read committed, streamed", {
        "subscribe": "transactional", **FROM_START, "kafka.isolation.level": "read_committed",
    }),
    StreamScenario("an ending timestamp is not looked at", {**ALL_STEPS, "endingTimestamp": at(5)}),
)  # fmt: skip

LIMITS = (
    StreamScenario("maxOffsetsPerTrigger over uneven partitions", {
        "subscribe": "uneven", **FROM_START, "maxOffsetsPerTrigger": "150",
    }),
    StreamScenario("maxOffsetsPerTrigger below the number of partitions", {
        "subscribe": "@a", **FROM_START, "maxOffsetsPerTrigger": "1",
    }, (Append("@a", 0, 0, 3), Append("@a", 1, 0, 1), Go()), TWO),
    StreamScenario("maxOffsetsPerTrigger above all", {**ALL_STEPS, "maxOffsetsPerTrigger": "1000000"}),
    StreamScenario("maxOffsetsPerTrigger changes with a restart", OWN, (
        *FIRST, Go({"maxOffsetsPerTrigger": "9"}), *MORE, Go({"maxOffsetsPerTrigger": "20"}),
    ), TWO),
    StreamScenario("maxOffsetsPerTrigger while it runs", {**OWN, "maxOffsetsPerTrigger": "6"}, (
        *FIRST, Start(), Drain(), *MORE, Drain(), Stop(),
    ), TWO),
    StreamScenario("once does not look at limits", {**ALL_STEPS, "maxOffsetsPerTrigger": "10"}, (Go(trigger="once"),)),
    StreamScenario("minOffsetsPerTrigger holds a batch back", {
        **OWN, "minOffsetsPerTrigger": "20", "maxTriggerDelay": "1h",
    }, (*FIRST, Start(), Drain(), Append("@a", 0, 10, 15), Drain(), Append("@a", 1, 5, 25), Drain(), Stop()), TWO),
    StreamScenario("maxTriggerDelay lets it go", {
        **OWN, "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1ms",
    }, (*FIRST, Go()), TWO),
    StreamScenario(
        "both limits",
        {**OWN, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "8"},
        (*FIRST, Go()),
        TWO,
    ),
    StreamScenario("limits over partitions with minPartitions", {
        **ALL_STEPS, "maxOffsetsPerTrigger": "50", "minPartitions": "5",
    }),
    StreamScenario("maxRecordsPerPartition", {**ALL_STEPS, "maxRecordsPerPartition": "25"}),
)  # fmt: skip

RESTARTS = (
    StreamScenario("a restart goes on where it stopped", OWN, (*FIRST, Go(), *MORE, Go()), TWO),
    StreamScenario("a restart with nothing new", OWN, (*FIRST, Go(), Go()), TWO),
    StreamScenario("a restart does not look at startingOffsets", OWN, (
        *FIRST, Go(), *MORE, Go({"startingOffsets": offsets("@a", 0, 0)}),
    ), TWO),
    StreamScenario(
        "a restart does not look at startingTimestamp",
        OWN,
        (*FIRST, Go(), *MORE, Go({"startingTimestamp": at(0)})),
        TWO,
    ),
    StreamScenario("a new partition is read from its start", {"subscribe": "@a"}, (
        *FIRST, Go(), Grow("@a", 3), Append("@a", 2, 0, 7), Go(),
    ), TWO),
    StreamScenario("a new partition while it runs", OWN, (
        *FIRST, Start(), Drain(), Grow("@a", 3), Append("@a", 2, 0, 7), Drain(), Stop(),
    ), TWO),
    StreamScenario("a new partition and a limit", {**OWN, "maxOffsetsPerTrigger": "8"}, (
        *FIRST, Go(), Grow("@a", 3), Append("@a", 2, 0, 30), Append("@a", 0, 10, 14), Go(),
    ), TWO),
    StreamScenario("a new topic that the pattern matches", {"subscribePattern": "@n.*"}, (
        Append("@n1", 0, 0, 5), Go(), Make("@n2"), Append("@n2", 0, 0, 6), Go(),
    ), {"@n1": 1}),
    StreamScenario("more topics after a restart", OWN, (
        *FIRST, Go(), Make("@b"), Append("@b", 0, 0, 4), Go({"subscribe": "@a,@b"}),
    ), TWO),
    StreamScenario("fewer topics after a restart", {"subscribe": "@a,@b", **FROM_START, "failOnDataLoss": "false"}, (
        *FIRST, Append("@b", 0, 0, 4), Go(), *MORE, Go({"subscribe": "@a"}),
    ), {"@a": 2, "@b": 1}),
    StreamScenario(
        "batches while it runs",
        OWN,
        (
            Start(),
            Append("@a", 0, 0, 10),
            Drain(),
            Append("@a", 1, 0, 3),
            Drain(),
            Append("@a", 0, 10, 11),
            Drain(),
            Stop(),
        ),
        TWO,
    ),
)  # fmt: skip

FIRST_FAILS = (
    StreamScenario("the first batch from latest fails, records arrive", {"subscribe": "@a"}, (
        *FIRST, Fail(), *MORE, Go(), Append("@a", 0, 13, 20), Go(),
    ), TWO),
    StreamScenario("the first batch fails, the topic grows", OWN, (
        *FIRST, Fail(), Grow("@a", 3), Append("@a", 2, 0, 3), Go(), Go(),
    ), TWO),
    StreamScenario("the first batch from given offsets fails, the topic grows", {
        "subscribe": "@a", "startingOffsets": offsets("@a", 2, -2),
    }, (*FIRST, Fail(), Grow("@a", 3), Append("@a", 2, 0, 3), *MORE, Go(), Go()), TWO),
    StreamScenario("the first batch fails, a topic is added", OWN, (
        *FIRST, Fail(), Make("@b"), Append("@b", 0, 0, 4), Go({"subscribe": "@a,@b"}), Go({"subscribe": "@a,@b"}),
    ), TWO),
    StreamScenario("the first batch fails, the log is cut", OWN, (*FIRST, Fail(), Cut("@a", 0, 7), Go()), TWO,
                   fails="KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"),
)  # fmt: skip

LOSSES = (
    StreamScenario("the log's start passes the position", OWN, (*FIRST, Go(), *MORE, Cut("@a", 1, 15), Go()), TWO,
                   fails="KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"),
    StreamScenario("the log's start passes the position without failing", {**OWN, "failOnDataLoss": "false"}, (
        *FIRST, Go(), *MORE, Cut("@a", 1, 15), Go(),
    ), TWO),
    StreamScenario("all that was left is gone without failing", {**OWN, "failOnDataLoss": "false"}, (
        *FIRST, Go(), *MORE, Cut("@a", 1, 25), Cut("@a", 0, 13), Go(),
    ), TWO),
    StreamScenario("a topic deleted", {"subscribePattern": "@d.*", **FROM_START}, (
        Append("@d1", 0, 0, 5), Append("@d2", 0, 0, 5), Go(), Delete("@d2"), Go(),
    ), {"@d1": 1, "@d2": 1}, fails="KAFKA_DATA_LOSS.PARTITIONS_DELETED"),
    StreamScenario(
        "a topic deleted and a group id",
        {"subscribePattern": "@d.*", **FROM_START, "kafka.group.id": "parity-stream"},
        ( Append("@d1", 0, 0, 5), Append("@d2", 0, 0, 5), Go(), Delete("@d2"), Go(), ),
        {"@d1": 1, "@d2": 1},
        fails="KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT",
    ),
    StreamScenario(
        "a topic deleted without failing",
        {"subscribePattern": "@d.*", **FROM_START, "failOnDataLoss": "false"},
        ( Append("@d1", 0, 0, 5), Append("@d2", 0, 0, 5), Go(), Delete("@d2"), Append("@d1", 0, 5, 9), Go(), ),
        {"@d1": 1, "@d2": 1},
    ),
    StreamScenario("a topic created again", OWN, (
        *FIRST, Go(), Delete("@a"), Make("@a", 2), Append("@a", 0, 0, 4), Go(),
    ), TWO, fails="KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"),
    StreamScenario("a topic created again without failing", {**OWN, "failOnDataLoss": "false"}, (
        *FIRST, Go(), Delete("@a"), Make("@a", 2), Append("@a", 0, 0, 12), Append("@a", 1, 0, 2), Go(),
        Append("@a", 0, 12, 14), Append("@a", 1, 2, 4), Go(),
    ), TWO),
    StreamScenario("a new partition that starts above 0", OWN, (
        *FIRST, Go(), Grow("@a", 3), Append("@a", 2, 0, 9), Cut("@a", 2, 3), Go(),
    ), TWO, fails="KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"),
    StreamScenario("a new partition that starts above 0 without failing", {**OWN, "failOnDataLoss": "false"}, (
        *FIRST, Go(), Grow("@a", 3), Append("@a", 2, 0, 9), Cut("@a", 2, 3), Go(),
    ), TWO),
    StreamScenario(
        "a start that is gone, streamed",
        {"subscribe": "shortened", "startingOffsets": offsets("shortened", 3, 50, 0)},
        fails="KAFKA_DATA_LOSS",
    ),
    StreamScenario("a start that is gone without failing", {
        "subscribe": "shortened", "startingOffsets": offsets("shortened", 3, 50, 0), "failOnDataLoss": "false",
    }),
    StreamScenario(
        "a start beyond the log, streamed",
        {"subscribe": "steps", "startingOffsets": offsets("steps", STEPS + 40, 0)},
        fails="KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
    ),
)  # fmt: skip


def fails(name: str, says: str, **options: str) -> StreamScenario:
    selects = any(key.lower() in ("assign", "subscribe", "subscribepattern") for key in options)
    return StreamScenario(name, options if selects else {"subscribe": "steps", **options}, fails=says)


ERRORS = (
    fails("ending offsets in a stream", "endingOffsets", endingOffsets="latest"),
    fails(
        "ending offsets by time in a stream",
        "endingOffsetsByTimestamp",
        endingOffsetsByTimestamp=times("steps", 1, 1),
    ),
    fails("two selections in a stream", "subscribe", subscribe="steps", subscribePattern="steps"),
    fails("a topic that does not exist in a stream", "nowhere", subscribe="nowhere"),
    fails("a start without one of the partitions in a stream", "startingOffsets", startingOffsets='{"steps":{"0":1}}'),
    fails("no record that young in a stream", "startingTimestamp", startingTimestamp=at(9_999)),
    fails(
        "limits that contradict each other",
        "maxOffsetsPerTrigger",
        minOffsetsPerTrigger="9",
        maxOffsetsPerTrigger="5",
    ),
    fails("a limit that is no number", "maxOffsetsPerTrigger", maxOffsetsPerTrigger="many"),
    fails("a lower limit that is no number", "minOffsetsPerTrigger", minOffsetsPerTrigger="few"),
    fails("a delay that is none", "maxTriggerDelay", maxTriggerDelay="soon", minOffsetsPerTrigger="1"),
    fails("a forbidden Kafka option in a stream", "auto.offset.reset", **{"kafka.auto.offset.reset": "earliest"}),
    fails("offsets that are no JSON in a stream", "startingOffsets", startingOffsets="[1]"),
)  # fmt: skip

CORE = (*LIMITS[:3], *FIRST_FAILS[:3], *LOSSES)
TABLE = (*STARTS, *LIMITS, *RESTARTS, *FIRST_FAILS, *LOSSES, *ERRORS)
