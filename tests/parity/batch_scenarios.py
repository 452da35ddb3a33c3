"""Batch reads that succeed: what is selected, what a log can hold, and where a read starts and ends."""

from __future__ import annotations

import json

from parity.scenario import Scenario
from parity.topics import CODECS, SECOND, STEPS, T0

BOTH_STEPS = {"subscribe": "steps"}


def offsets(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


def at(seconds: float) -> str:
    return str(int(T0 + seconds * SECOND))


def times(topic: str, *seconds: float) -> str:
    return offsets(topic, *(int(T0 + second * SECOND) for second in seconds))


SELECTION = (
    Scenario("one topic", BOTH_STEPS),
    Scenario("several topics", {"subscribe": "steps,others"}),
    Scenario("spaces and empty names in subscribe", {"subscribe": " steps , ,others,"}),
    Scenario("a topic named twice is read once", {"subscribe": "steps,steps"}),
    Scenario("a topic with dots and dashes in its name", {"subscribe": "a_b.c-D_0"}),
    Scenario("an empty topic", {"subscribe": "empty"}),
    Scenario("an empty topic and a full one", {"subscribe": "empty,steps"}),
    Scenario("one assigned partition", {"assign": '{"steps":[1]}'}),
    Scenario("assigned partitions of two topics", {"assign": '{"mixed":[2,0],"others":[0]}'}),
    Scenario("an assigned partition named twice", {"assign": '{"steps":[1,1]}'}),
    Scenario("spaces in assign", {"assign": ' { "steps" : [ 0 ] } '}),
    Scenario("a pattern", {"subscribePattern": "pattern.*"}),
    Scenario("a pattern with an escaped dot", {"subscribePattern": r"pattern\.one"}),
    Scenario("a pattern matches anywhere in a name", {"subscribePattern": "attern"}),
    Scenario("a pattern for whole names", {"subscribePattern": "^pattern.one$|^pattern$"}),
    Scenario("a pattern does not match internal topics", {"subscribePattern": "__|others"}),
    Scenario("a pattern with a flag inside", {"subscribePattern": "(?i)pattern.f.*"}),
    Scenario("a pattern with alternatives", {"subscribePattern": "steps|others"}),
    Scenario("a pattern with a class of Java's", {"subscribePattern": r"\p{Upper}attern\p{Punct}four"}),
    Scenario("a possessive pattern of Java's", {"subscribePattern": "p[a-z]++.one"}),
    Scenario("a pattern with an intersection of Java's", {"subscribePattern": "pattern[.X&&[^X]]one"}),
    Scenario("a pattern that matches nothing", {"subscribePattern": "nothing-like-this"}),
    Scenario("spaces around a pattern", {"subscribePattern": " pattern.one "}),
    Scenario(
        "names of options in capitals",
        {"SUBSCRIBE": "steps", "STARTINGOFFSETS": "earliest", "INCLUDEHEADERS": "TRUE"},
    ),
    Scenario(
        "names of options in small letters",
        {"subscribe": "steps", "endingoffsets": "latest", "minpartitions": "5"},
    ),
    Scenario("an option that nobody knows", {"subscribe": "steps", "somethingElse": "1"}),
    Scenario("a slip in the name of an option", {"subscribe": "steps", "startingOfsets": "earliest"}),
    Scenario("an option that belongs to streams", {"subscribe": "steps", "maxOffsetsPerTrigger": "1"}),
    Scenario(
        "other options that belong to streams",
        {"subscribe": "steps", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1s"},
    ),
)

CONTENTS = (
    *(
        Scenario(f"records in codec {codec}", {"subscribe": f"codec-{codec}", "includeHeaders": "true"})
        for codec in CODECS
    ),
    Scenario("null and empty keys and values", {"subscribe": "mixed"}),
    Scenario("headers of every kind", {"subscribe": "mixed", "includeHeaders": "true"}),
    Scenario("no column of headers unless asked", {"subscribe": "mixed", "includeHeaders": "false"}),
    Scenario("times of the broker", {"subscribe": "append-time"}),
    Scenario("times of the broker with headers", {"subscribe": "append-time", "includeHeaders": "true"}),
    Scenario("times that go back, are equal, are none or far away", {"subscribe": "restless-times"}),
    Scenario(
        "records of several MB",
        {"subscribe": "big"},
        lambda frame: frame.selectExpr("offset", "key", "length(value)", "md5(value)"),
    ),
    Scenario("records larger than a fetch", {"subscribe": "big", "kafka.max.partition.fetch.bytes": "1000"},
             lambda frame: frame.selectExpr("offset", "length(value)")),
    Scenario("a log that starts above 0", {"subscribe": "shortened"}),
    Scenario("a compacted log with holes", {"subscribe": "compacted"}),
    Scenario(
        "a part of a compacted log",
        {
            "subscribe": "compacted",
            "startingOffsets": offsets("compacted", 3),
            "endingOffsets": offsets("compacted", 180),
        },
    ),
    Scenario("transactions read uncommitted", {"subscribe": "transactional"}),
    Scenario("transactions read committed", {"subscribe": "transactional", "kafka.isolation.level": "read_committed"}),
    Scenario("read uncommitted by name", {"subscribe": "transactional", "kafka.isolation.level": "read_uncommitted"}),
    Scenario("a part that begins in an aborted transaction", {
        "subscribe": "transactional", "kafka.isolation.level": "read_committed",
        "startingOffsets": offsets("transactional", 15, 5, 0), "endingOffsets": offsets("transactional", 30, 8, -1),
    }),
    Scenario("partitions of very uneven size", {"subscribe": "uneven"}),
)  # fmt: skip

OFFSETS = (
    Scenario(
        "from earliest to latest by name",
        {**BOTH_STEPS, "startingOffsets": "earliest", "endingOffsets": "latest"},
    ),
    Scenario("names of offsets in capitals", {**BOTH_STEPS, "startingOffsets": "EARLIEST", "endingOffsets": "Latest"}),
    Scenario(
        "spaces around names of offsets",
        {**BOTH_STEPS, "startingOffsets": " earliest ", "endingOffsets": " latest"},
    ),
    Scenario("from given offsets", {**BOTH_STEPS, "startingOffsets": offsets("steps", 10, 59)}),
    Scenario("up to given offsets", {**BOTH_STEPS, "endingOffsets": offsets("steps", 10, 0)}),
    Scenario(
        "between given offsets",
        {**BOTH_STEPS, "startingOffsets": offsets("steps", 5, 7), "endingOffsets": offsets("steps", 6, 50)},
    ),
    Scenario(
        "a start and an end that are equal",
        {**BOTH_STEPS, "startingOffsets": offsets("steps", 5, 7), "endingOffsets": offsets("steps", 5, 7)},
    ),
    Scenario("earliest of one partition", {**BOTH_STEPS, "startingOffsets": offsets("steps", -2, 58)}),
    Scenario("latest of one partition", {**BOTH_STEPS, "endingOffsets": offsets("steps", -1, 2)}),
    Scenario("from the end of the log", {**BOTH_STEPS, "startingOffsets": offsets("steps", STEPS, 58)}),
    Scenario(
        "up to the start of a log that starts above 0",
        {"subscribe": "shortened", "endingOffsets": offsets("shortened", 20, 50, 3)},
    ),
    Scenario("spaces in offsets", {**BOTH_STEPS, "startingOffsets": ' { "steps" : { "0" : 55 , "1" : -2 } } '}),
    Scenario(
        "a start before the log without failing",
        {"subscribe": "shortened", "startingOffsets": offsets("shortened", 3, 0, 0), "failOnDataLoss": "false"},
    ),
    Scenario(
        "an end beyond the log without failing",
        {
            **BOTH_STEPS,
            "endingOffsets": offsets("steps", STEPS + 40, 5),
            "failOnDataLoss": "false",
            "kafkaConsumer.pollTimeoutMs": "2000",
        },
    ),
    Scenario(
        "a start beyond the log without failing",
        {
            **BOTH_STEPS,
            "startingOffsets": offsets("steps", STEPS + 40, 50),
            "endingOffsets": offsets("steps", STEPS + 50, 55),
            "failOnDataLoss": "false",
            "kafkaConsumer.pollTimeoutMs": "2000",
        },
    ),
    Scenario(
        "a pattern with given offsets",
        {"subscribePattern": "step.", "startingOffsets": offsets("steps", 50, 50)},
    ),
    Scenario(
        "assigned partitions with given offsets",
        {"assign": '{"steps":[1]}', "startingOffsets": '{"steps":{"1":20}}', "endingOffsets": '{"steps":{"1":30}}'},
    ),
)  # fmt: skip

TIMES = (
    Scenario("from a time", {**BOTH_STEPS, "startingTimestamp": at(30)}),
    Scenario("from a time between two records", {**BOTH_STEPS, "startingTimestamp": at(30.5)}),
    Scenario("from a time before the first record", {**BOTH_STEPS, "startingTimestamp": "0"}),
    Scenario("up to a time", {**BOTH_STEPS, "endingTimestamp": at(30)}),
    Scenario("up to a time after the last record", {**BOTH_STEPS, "endingTimestamp": at(9_999)}),
    Scenario("up to a time before the first record", {**BOTH_STEPS, "endingTimestamp": "1"}),
    Scenario("between times", {**BOTH_STEPS, "startingTimestamp": at(10), "endingTimestamp": at(20)}),
    Scenario(
        "times by partition",
        {
            **BOTH_STEPS,
            "startingOffsetsByTimestamp": times("steps", 5, 50),
            "endingOffsetsByTimestamp": times("steps", 10, 70),
        },
    ),
    Scenario(
        "latest where no record is that young",
        {**BOTH_STEPS, "startingTimestamp": at(9_999), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Scenario(
        "latest where one partition has no record that young",
        {
            **BOTH_STEPS,
            "startingOffsetsByTimestamp": times("steps", 55, 9_999),
            "startingOffsetsByTimestampStrategy": "LATEST",
        },
    ),
    Scenario(
        "strategy error where there are records",
        {**BOTH_STEPS, "startingTimestamp": at(58), "startingOffsetsByTimestampStrategy": "error"},
    ),
    Scenario("spaces around a time", {**BOTH_STEPS, "startingTimestamp": f" {at(50)} "}),
    Scenario(
        "times that go back and forth",
        {"subscribe": "restless-times", "startingTimestamp": at(20), "endingTimestamp": at(97)},
    ),
    Scenario(
        "a time in a log that starts above 0",
        {"subscribe": "shortened", "startingTimestamp": at(1), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Scenario(
        "a time in a compacted log",
        {"subscribe": "compacted", "startingTimestamp": at(101), "endingTimestamp": at(180)},
    ),
    Scenario(
        "a time as the start, an offset as the end",
        {**BOTH_STEPS, "startingTimestamp": at(10), "endingOffsets": offsets("steps", 20, -1)},
    ),
    Scenario(
        "an offset as the start, a time as the end",
        {**BOTH_STEPS, "startingOffsets": offsets("steps", 20, -2), "endingTimestamp": at(30)},
    ),
    Scenario(
        "a time goes before times by partition",
        {**BOTH_STEPS, "startingTimestamp": at(50), "startingOffsetsByTimestamp": times("steps", 1, 1)},
    ),
    Scenario("a time goes before offsets", {**BOTH_STEPS, "startingTimestamp": at(50), "startingOffsets": "earliest"}),
    Scenario(
        "a time goes before a start that is not allowed",
        {**BOTH_STEPS, "startingTimestamp": at(50), "startingOffsets": "latest"},
    ),
    Scenario(
        "a time goes before offsets that are no JSON",
        {**BOTH_STEPS, "startingTimestamp": at(50), "startingOffsets": "{"},
    ),
    Scenario(
        "times by partition go before offsets",
        {**BOTH_STEPS, "startingOffsetsByTimestamp": times("steps", 50, 51), "startingOffsets": offsets("steps", 1, 1)},
    ),
    Scenario(
        "an ending time goes before ending times by partition",
        {**BOTH_STEPS, "endingTimestamp": at(5), "endingOffsetsByTimestamp": times("steps", 50, 50)},
    ),
    Scenario(
        "an ending time goes before ending offsets",
        {**BOTH_STEPS, "endingTimestamp": at(5), "endingOffsets": "earliest"},
    ),
    Scenario(
        "ending times by partition go before ending offsets",
        {**BOTH_STEPS, "endingOffsetsByTimestamp": times("steps", 5, 6), "endingOffsets": offsets("steps", 50, 50)},
    ),
    Scenario(
        "a time and an offset behind it",
        {**BOTH_STEPS, "startingTimestamp": at(30), "endingOffsets": offsets("steps", 40, 50)},
    ),
)  # fmt: skip

TABLE = CORE = (*SELECTION, *CONTENTS, *OFFSETS, *TIMES)
