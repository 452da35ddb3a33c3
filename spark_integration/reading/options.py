"""The options of a read, spelled as those of Spark's own Kafka source: parsed and checked, no I/O.

Laws:
- A wrong option is refused by name before any broker is asked; so is an unknown
  one that looks like a misspelling.
- Names are case-insensitive, as everywhere in Spark; values are not.
- No message and no repr contains a password.

Names, defaults and precedence: KafkaSourceProvider.scala of Apache Spark.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.structs import TopicPartition

from spark_integration.option_values import boolean, choice, duration_ms, positive, split_options, whole_number
from spark_integration.reading.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    Everywhere,
    OffsetSpec,
    SpecificOffsets,
    check_start_before_end,
    parse_assignment,
    parse_partition_numbers,
)
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.topic_filter import refuse_java_only
from tolerant_client.security.kafka_config import kafka_python_config

# The options of Spark's own source.
SPARK: Final = (
    "assign", "subscribe", "subscribePattern",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "includeHeaders",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs",
    "groupIdPrefix",
)  # fmt: skip
# The options beyond it.
OURS: Final = (
    "isolation.level", "payload", "maxBytesInFlight", "commitOffsets", "includeLeaderEpoch", "schemaRegistryFraming",
)  # fmt: skip

PAYLOADS: Final = ("records", "batches")  # and ranges, which has its own options
# Which columns carry a schema registry's prefix of five bytes: magic 0 and a schema id.
FRAMINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (), "key": ("key",), "value": ("value",), "both": ("key", "value"),
}  # fmt: skip

_ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
_MIN_BYTES_IN_FLIGHT: Final = 1 << 20
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True)
class Assign:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True)
class SubscribePattern:
    pattern: str


Selection = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True)
class TriggerLimits:
    """The limits of a micro-batch; offsets and ms."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True)
class ReadOptions:
    """A checked read; `kafka` is the configuration for Cluster."""

    kafka: Mapping[str, Any] = field(repr=False)
    selection: Selection
    start: OffsetSpec
    end: OffsetSpec = Everywhere(LATEST)
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    include_leader_epoch: bool = False
    framed: tuple[str, ...] = ()
    limits: TriggerLimits = TriggerLimits()
    group_id: str | None = None
    commits_offsets: bool = False
    fetch_offset_retries: int = 3
    fetch_offset_retry_ms: int = 1000  # as in KafkaOffsetReaderAdmin.scala; Spark's guide says 10 ms
    poll_timeout_ms: int = 120_000
    max_bytes_in_flight: int = 64 << 20
    isolation_level: int = 0
    payload: str = "records"


def parse_read_options(options: Mapping[str, str], *, is_stream: bool | None) -> ReadOptions:
    """The options of a batch read, of a stream, or (None) of either.

    Raises OptionError naming the first option that is wrong.
    """
    own, java = split_options(options, (*SPARK, *OURS))
    # Spark's own source accepts it only as a Kafka property; both spellings mean the same.
    isolation = java.pop("isolation.level", None)
    if (
        isolation is not None
        and own.setdefault("isolation.level", isolation).strip().lower() != isolation.strip().lower()
    ):
        raise OptionError(
            f"isolation.level is {own['isolation.level']!r} and kafka.isolation.level is {isolation!r}; give one"
        )
    if is_stream and (ending := next((name for name in _ENDING if name in own), None)):
        raise OptionError(f"{ending} is not valid in a streaming query: a stream has no end")
    start = _start(own, is_stream is not False)
    end = _end(own)
    check_start_before_end(start, end)
    return ReadOptions(
        kafka=kafka_python_config(java),
        selection=_selection(own),
        start=start,
        end=end,
        fail_on_data_loss=boolean(own, "failOnDataLoss", True),
        min_partitions=positive(own, "minPartitions"),
        max_records_per_partition=positive(own, "maxRecordsPerPartition"),
        include_headers=boolean(own, "includeHeaders", False),
        include_leader_epoch=boolean(own, "includeLeaderEpoch", False),
        framed=choice(own, "schemaRegistryFraming", FRAMINGS, ()),
        limits=_limits(own),
        group_id=java.get("group.id"),
        commits_offsets=_commits_offsets(own, java),
        fetch_offset_retries=_whole(own, "fetchOffset.numRetries", ReadOptions.fetch_offset_retries),
        fetch_offset_retry_ms=_whole(own, "fetchOffset.retryIntervalMs", ReadOptions.fetch_offset_retry_ms),
        poll_timeout_ms=positive(own, "kafkaConsumer.pollTimeoutMs") or ReadOptions.poll_timeout_ms,
        max_bytes_in_flight=_max_bytes_in_flight(own),
        isolation_level=choice(own, "isolation.level", _ISOLATION_LEVELS, 0),
        payload=choice(own, "payload", {name: name for name in PAYLOADS}, "records"),
    )


def _selection(own: Mapping[str, str]) -> Selection:
    given = [name for name in ("assign", "subscribe", "subscribePattern") if name in own]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise OptionError(f"Give exactly one of assign, subscribe and subscribePattern; found: {found}")
    value = own[given[0]].strip()
    if given[0] == "assign":
        return Assign(parse_assignment(value, "assign"))
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError("subscribe needs topic names, separated by commas")
        return Subscribe(topics)
    refuse_java_only(f"subscribePattern {value!r}", value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what a later Python will read otherwise
            re.compile(value)
    except (re.error, Warning) as error:
        raise OptionError(f"subscribePattern {value!r} is not a regular expression of Python: {error}") from None
    if not value:
        raise OptionError("subscribePattern needs a regular expression")
    return SubscribePattern(value)


def _whole(own: Mapping[str, str], name: str, default: int) -> int:
    return whole_number(own[name], name) if name in own else default


def _start(own: Mapping[str, str], is_stream: bool) -> OffsetSpec:
    strategy = choice(own, "startingOffsetsByTimestampStrategy", {"error": "error", "latest": "latest"}, "error")
    spec = _by_timestamp(own, "startingTimestamp", "startingOffsetsByTimestamp", strategy)
    if spec is not None:
        return spec
    if is_stream:
        return _by_offset(own, "startingOffsets", Everywhere(LATEST))
    return _by_offset(own, "startingOffsets", Everywhere(EARLIEST), refused=LATEST)


def _end(own: Mapping[str, str]) -> OffsetSpec:
    # If no record is younger than the ending time, the end is the log's end.
    spec = _by_timestamp(own, "endingTimestamp", "endingOffsetsByTimestamp", "latest")
    return spec or _by_offset(own, "endingOffsets", Everywhere(LATEST), refused=EARLIEST)


def _by_timestamp(own: Mapping[str, str], one: str, each: str, if_none: str) -> OffsetSpec | None:
    if one in own:
        return AtTimestamp(whole_number(own[one], one, "ms since 1970, a whole number"), one, if_none)
    if each in own:
        times = parse_partition_numbers(own[each], each)
        for partition, time in times.items():
            if time < 0 and time != LATEST:
                raise OptionError(
                    f"{each}: {partition.topic}-{partition.partition} has the negative time {time}; only -1 (latest) is allowed"
                )
        return AtTimestamp(times, each, if_none)
    return None


_EXAMPLE = '{"topic":{"0":23,"1":-2}}'


def _other_end(refused: int) -> str:
    return "earliest" if refused == LATEST else "latest"


def _by_offset(own: Mapping[str, str], name: str, default: OffsetSpec, refused: int | None = None) -> OffsetSpec:
    if name not in own:
        return default
    text = own[name].strip()
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is not None:
        if named == refused:
            raise OptionError(
                f"{name} of a batch read cannot be {text.lower()!r}: give {_other_end(refused)}, or offsets as JSON"
            )
        return Everywhere(named)
    if not text.startswith("{"):
        words = "earliest, latest" if refused is None else _other_end(refused)
        raise OptionError(f"{name} is {text!r}: give {words}, or offsets as JSON, such as {_EXAMPLE}")
    offsets = parse_partition_numbers(text, name)
    for partition, offset in offsets.items():
        where = f"{name}: {partition.topic}-{partition.partition}"
        if offset == refused:
            word = {EARLIEST: "earliest", LATEST: "latest"}[offset]
            raise OptionError(f"{where} cannot be {offset} ({word}) in a batch read")
        if offset < EARLIEST:
            raise OptionError(f"{where} has the offset {offset}; only -2 (earliest) and -1 (latest) may be negative")
    return SpecificOffsets(offsets, name)


def _limits(own: Mapping[str, str]) -> TriggerLimits:
    most, least = positive(own, "maxOffsetsPerTrigger"), positive(own, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    return TriggerLimits(most, least, duration_ms(own, "maxTriggerDelay", TriggerLimits.max_delay_ms))


def _commits_offsets(own: Mapping[str, str], java: Mapping[str, str]) -> bool:
    commits = boolean(own, "commitOffsets", False)
    if commits and not java.get("group.id"):
        raise OptionError("commitOffsets=true needs kafka.group.id, the group whose offsets are written")
    return commits


def _max_bytes_in_flight(own: Mapping[str, str]) -> int:
    most = positive(own, "maxBytesInFlight")
    if most is not None and most < _MIN_BYTES_IN_FLIGHT:
        raise OptionError(f"maxBytesInFlight is {most}; a task needs at least {_MIN_BYTES_IN_FLIGHT} (1 MiB)")
    return most or ReadOptions.max_bytes_in_flight
