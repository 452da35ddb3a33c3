"""The options of a read, spelled as those of Spark's own Kafka source: parsed and checked, no I/O.

Laws:
- A wrong option is refused before any broker is asked; the message names the
  option, and the nearest known one if it is unknown.
- Names are case-insensitive, as everywhere in Spark; values are not.
- No message and no repr contains a password.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kafka.structs import TopicPartition

from spark_integration.kafka_config import kafka_python_config
from spark_integration.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    Everywhere,
    OffsetSpec,
    SpecificOffsets,
    parse_assignment,
    parse_partition_numbers,
)
from tolerant_client.errors import OptionError

# Names as Spark writes them.  The second group matters to streams or to Spark's
# own consumers only: accepted, so that a query can change its format alone.
KNOWN: Final = (
    "assign", "subscribe", "subscribePattern",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "includeHeaders",
    "kafkaConsumer.pollTimeoutMs", "isolation.level", "payload",
)  # fmt: skip
WITHOUT_EFFECT: Final = (
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip

_PAYLOADS: Final = ("records", "ranges")
_ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
_NAMES: Final = {name.lower(): name for name in (*KNOWN, *WITHOUT_EFFECT)}
_KAFKA_PREFIX: Final = "kafka."

_V = TypeVar("_V")


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
class ReadOptions:
    """A checked read; `kafka` holds kafka-python's configuration keys."""

    kafka: Mapping[str, Any] = field(repr=False)
    selection: Selection
    start: OffsetSpec
    end: OffsetSpec
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    isolation_level: int = 0
    payload: str = "records"


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read.

    Raises OptionError naming the first option that is wrong.
    """
    own: dict[str, str] = {}
    java: dict[str, str] = {}
    for given, value in options.items():
        name = given.lower()
        if name.startswith(_KAFKA_PREFIX):
            java[name.removeprefix(_KAFKA_PREFIX)] = str(value)
        elif name in _NAMES:
            own[_NAMES[name]] = str(value)
        else:
            raise OptionError(f"Unknown option {given!r}{_nearest(name)}")
    # Spark's own source takes it as a Kafka property only; both spellings mean one thing.
    isolation = java.pop("isolation.level", None)
    if isolation is not None:
        own.setdefault("isolation.level", isolation)
    return ReadOptions(
        kafka=kafka_python_config(java),
        selection=_selection(own),
        start=_start(own),
        end=_end(own),
        fail_on_data_loss=_boolean(own, "failOnDataLoss", True),
        min_partitions=_positive(own, "minPartitions"),
        max_records_per_partition=_positive(own, "maxRecordsPerPartition"),
        include_headers=_boolean(own, "includeHeaders", False),
        poll_timeout_ms=_positive(own, "kafkaConsumer.pollTimeoutMs") or 120_000,
        isolation_level=_choice(own, "isolation.level", _ISOLATION_LEVELS, 0),
        payload=_choice(own, "payload", {name: name for name in _PAYLOADS}, "records"),
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
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"subscribePattern {value!r} is no regular expression: {error}") from None
    if not value:
        raise OptionError("subscribePattern needs a regular expression")
    return SubscribePattern(value)


def _start(own: Mapping[str, str]) -> OffsetSpec:
    strategy = _choice(
        own, "startingOffsetsByTimestampStrategy", {"error": "error", "latest": "latest"}, "error"
    )
    spec = _by_timestamp(own, "startingTimestamp", "startingOffsetsByTimestamp", strategy)
    return spec or _by_offset(own, "startingOffsets", Everywhere(EARLIEST), refused=LATEST)


def _end(own: Mapping[str, str]) -> OffsetSpec:
    # Where no record is younger than the ending time, the end is the end of the log.
    spec = _by_timestamp(own, "endingTimestamp", "endingOffsetsByTimestamp", "latest")
    return spec or _by_offset(own, "endingOffsets", Everywhere(LATEST), refused=EARLIEST)


def _by_timestamp(own: Mapping[str, str], one: str, each: str, if_none: str) -> OffsetSpec | None:
    if one in own:
        return AtTimestamp(_whole_number(own[one], one), one, if_none)
    if each in own:
        times = parse_partition_numbers(own[each], each)
        for partition, time in times.items():
            if time < 0:
                raise OptionError(f"{each}: {partition.topic}-{partition.partition} has the negative time {time}")
        return AtTimestamp(times, each, if_none)
    return None


def _by_offset(own: Mapping[str, str], name: str, default: OffsetSpec, refused: int) -> OffsetSpec:
    if name not in own:
        return default
    text = own[name].strip()
    word = {EARLIEST: "earliest", LATEST: "latest"}[refused]
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is not None:
        if named == refused:
            raise OptionError(f"{name} of a batch read cannot be {word!r}")
        return Everywhere(named)
    offsets = parse_partition_numbers(text, name)
    for partition, offset in offsets.items():
        where = f"{name}: {partition.topic}-{partition.partition}"
        if offset == refused:
            raise OptionError(f"{where} cannot be {refused} ({word}) in a batch read")
        if offset < EARLIEST:
            raise OptionError(f"{where} has the offset {offset}; only -2 (earliest) and -1 (latest) may be negative")
    return SpecificOffsets(offsets, name)


def _boolean(own: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(own, name, {"true": True, "false": False}, default)


def _choice(own: Mapping[str, str], name: str, values: Mapping[str, _V], default: _V) -> _V:
    if name not in own:
        return default
    text = own[name].strip().lower()
    if text not in values:
        raise OptionError(f"{name} is {own[name]!r}; it must be one of {', '.join(values)}")
    return values[text]


def _positive(own: Mapping[str, str], name: str) -> int | None:
    if name not in own:
        return None
    number = _whole_number(own[name], name)
    if number == 0:
        raise OptionError(f"{name} must be greater than 0")
    return number


def _whole_number(text: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise OptionError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def _nearest(name: str) -> str:
    # A Kafka property without its prefix is the commonest slip.
    for close in difflib.get_close_matches(name, [*_NAMES, "kafka.bootstrap.servers"], n=1, cutoff=0.6):
        return f"; did you mean {_NAMES.get(close, close)!r}?"
    return f"; known are {', '.join(KNOWN)} and kafka.*"
