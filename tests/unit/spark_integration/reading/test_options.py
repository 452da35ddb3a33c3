"""Options of a read: which are accepted, which are refused, and that no secret is shown."""

from __future__ import annotations

import pickle

import pytest
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import EARLIEST, LATEST, AtTimestamp, Everywhere, SpecificOffsets
from spark_integration.reading.options import (
    Assign,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    TriggerLimits,
    parse_read_options,
)
from tolerant_client.errors import OptionError
from tolerant_client.security.java_properties import FORBIDDEN

T0 = TopicPartition("t", 0)


def parse(**options: str) -> ReadOptions:
    """Options by name, with `__` for dots; a topic is subscribed unless the test selects otherwise."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    if not {"assign", "subscribe", "subscribePattern"} & named.keys():
        named["subscribe"] = "t"
    return parse_read_options({"kafka.bootstrap.servers": "one:9092,two:9092", **named}, is_stream=False)


def test_defaults_are_those_of_a_batch_read() -> None:
    options = parse()
    assert options.kafka["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert options.selection == Subscribe(("t",))
    assert (options.start, options.end) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert options.fail_on_data_loss and not options.include_headers
    assert (options.isolation_level, options.payload) == (0, "records")
    assert options.min_partitions is None and options.max_records_per_partition is None


def test_names_are_case_insensitive() -> None:
    options = parse_read_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SUBSCRIBE": "t", "MINPARTITIONS": "3", "failondataloss": "FALSE"},
        is_stream=False,
    )
    assert options.min_partitions == 3 and not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("name", "value", "selection"),
    [
        ("assign", '{"t":[0]}', Assign((T0,))),
        ("subscribe", "a, b,a", Subscribe(("a", "b"))),
        ("subscribePattern", "a.*", SubscribePattern("a.*")),
    ],
)
def test_topics_are_chosen_in_three_ways(name: str, value: str, selection: object) -> None:
    assert parse(**{name: value}).selection == selection


@pytest.mark.parametrize(
    "options", [{}, {"subscribe": "t", "assign": '{"t":[0]}'}, {"subscribe": "t", "subscribePattern": "t"}]
)
def test_exactly_one_way_is_needed(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of assign, subscribe"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", **options}, is_stream=False)


def test_offsets_are_words_or_json() -> None:
    assert parse(startingOffsets="Earliest").start == Everywhere(EARLIEST)
    assert parse(endingOffsets="latest").end == Everywhere(LATEST)
    start = parse(startingOffsets='{"t":{"0":-2}}').start
    assert start == SpecificOffsets({T0: -2}, "startingOffsets")
    assert parse(endingOffsets='{"t":{"0":-1}}').end == SpecificOffsets({T0: -1}, "endingOffsets")


def test_minus_one_among_timestamps_is_the_end_of_that_partition() -> None:
    options = parse(startingOffsetsByTimestamp='{"t":{"0":-1}}', endingOffsetsByTimestamp='{"t":{"0":-1}}')
    assert options.start == AtTimestamp({T0: LATEST}, "startingOffsetsByTimestamp", "error")
    assert options.end == AtTimestamp({T0: LATEST}, "endingOffsetsByTimestamp", "latest")


def test_a_timestamp_for_all_wins_over_others() -> None:
    options = parse(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"t":{"0":6}}',
        startingOffsets="earliest",
        endingOffsetsByTimestamp='{"t":{"0":7}}',
        endingOffsets="latest",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert options.start == AtTimestamp(5, "startingTimestamp", "latest")
    assert options.end == AtTimestamp({T0: 7}, "endingOffsetsByTimestamp", "latest")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("startingOffsets", "latest", "cannot be 'latest': give earliest, or offsets as JSON"),
        ("endingOffsets", "earliest", "cannot be 'earliest'"),
        ("startingOffsets", '{"t":{"0":-1}}', "t-0 cannot be -1"),
        ("endingOffsets", '{"t":{"0":-2}}', "t-0 cannot be -2"),
        ("startingOffsets", '{"t":{"0":-3}}', "offset -3"),
        ("startingOffsets", "yesterday", "is 'yesterday': give earliest, or offsets as JSON, such as"),
        ("startingTimestamp", "2026-11-28", "ms since 1970, a whole number"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-5}}', "negative time"),
        ("startingOffsetsByTimestampStrategy", "guess", "error, latest"),
        ("failOnDataLoss", "yes", "true, false"),
        ("minPartitions", "0", "must be a whole number from 1 to"),
        ("maxRecordsPerPartition", "many", "whole number"),
        ("isolation__level", "serializable", "read_uncommitted, read_committed"),
        ("payload", "bytes", "records, batches"),
        ("subscribePattern", "(", "not a regular expression"),
        ("subscribePattern", "t[a&&[^b]]", "which only Java's regular expressions know"),
        ("subscribePattern", "t[ab[x-z]]", "which only Java's regular expressions know"),
        ("subscribePattern", "t(", "not a regular expression of Python"),
        ("subscribePattern", "", "needs a regular expression"),
        ("subscribe", " , ", "needs topic names"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        parse(**{name: value})
    assert name.replace("__", ".") in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOfsets", "startingOffsets"),
        ("subscribed", "subscribe"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.startingOffsets", "startingOffsets"),
        ("kafka.endingofsets", "endingOffsets"),
    ],
)
def test_an_unknown_option_gets_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{near}'"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", name: "x"}, is_stream=False)


def test_other_options_are_passed_over() -> None:
    """A query may share its options between readers and writers."""
    assert parse(zzz="x", topic="t", checkpointLocation="/tmp") == parse()


def test_create_table_is_refused_with_what_works() -> None:
    """Spark passes a table's options twice, and none of them when the table is read."""
    with pytest.raises(OptionError, match="Use CREATE TEMPORARY VIEW"):
        parse(option__kafka__bootstrap__servers="one:9092", option__subscribe="t")


def test_limits_of_a_trigger_are_offsets_and_a_duration() -> None:
    assert parse().limits == TriggerLimits(None, None, 900_000)
    limits = parse(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10", maxTriggerDelay="2m").limits
    assert limits == TriggerLimits(10, 10, 120_000)
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(11\) is higher than maxOffsetsPerTrigger \(10\)"):
        parse(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="11")


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("30 S", 30_000), ("500ms", 500), ("7", 7), ("1d", 86_400_000)]
)
def test_durations_are_sparks(text: str, ms: int) -> None:
    assert parse(maxTriggerDelay=text).limits.max_delay_ms == ms


@pytest.mark.parametrize("text", ["", "soon", "5 weeks", "-1s", "1.5m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="maxTriggerDelay is"):
        parse(maxTriggerDelay=text)


def test_a_stream_starts_at_the_end_and_may_be_told_to() -> None:
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    assert parse_read_options(base, is_stream=True).start == Everywhere(LATEST)
    told = parse_read_options({**base, "startingOffsets": '{"t":{"0":-1}}'}, is_stream=True)
    assert told.start == SpecificOffsets({T0: -1}, "startingOffsets")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is not valid in a streaming query"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", name: "1"}, is_stream=True)


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":4}}'},
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":4}}'},
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        ),
    ],
)
def test_a_start_behind_its_end_is_refused_with_sparks_condition(options: dict[str, str], condition: str) -> None:
    with pytest.raises(OptionError, match=condition):
        parse(**options)


def test_committing_offsets_needs_a_group() -> None:
    with pytest.raises(OptionError, match="commitOffsets=true needs kafka.group.id"):
        parse(commitOffsets="true")
    options = parse(commitOffsets="true", kafka__group__id="g")
    assert (options.commits_offsets, options.group_id) == (True, "g")


def test_memory_is_bounded_from_below_too() -> None:
    assert parse(maxBytesInFlight="1048576").max_bytes_in_flight == 1 << 20
    with pytest.raises(OptionError, match="maxBytesInFlight is 1000; a task needs at least"):
        parse(maxBytesInFlight="1000")


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_kafka_properties_say_what_to_do(name: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name} is not supported: {FORBIDDEN[name]}"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", f"kafka.{name}": "x"}, is_stream=False)


@pytest.mark.parametrize("servers", ["", " , "])
def test_bootstrap_servers_are_required(servers: str) -> None:
    with pytest.raises(OptionError, match="bootstrap.servers is required"):
        parse(kafka__bootstrap__servers=servers)


def test_isolation_level_may_have_kafkas_prefix() -> None:
    assert parse(kafka__isolation__level="read_committed").isolation_level == 1
    assert parse(isolation__level="read_committed").isolation_level == 1


def test_contradicting_isolation_levels_are_refused() -> None:
    with pytest.raises(
        OptionError, match="isolation.level is 'read_uncommitted' and kafka.isolation.level is 'read_committed'"
    ):
        parse(isolation__level="read_uncommitted", kafka__isolation__level="read_committed")


def test_no_limit_may_be_said_by_the_largest_long() -> None:
    assert parse(maxOffsetsPerTrigger=str(2**63 - 1)).limits.max_offsets == 2**63 - 1
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger is"):
        parse(maxOffsetsPerTrigger=str(2**63))


@pytest.mark.parametrize(
    "text",
    [
        '{"t":{"0":' + "1" * 30 + "}}",
        '{"t":{"0":1,"00":2}}',
        '{"t":{"4294967296":1}}',
        "[" * 100_000,
        '{"t":{"0":' + "9" * 5000 + "}}",
    ],
    ids=["beyond a long", "twice", "beyond an int", "nested", "digits"],
)
def test_json_beyond_all_bounds_is_refused_by_name(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        parse(startingOffsets=text)
