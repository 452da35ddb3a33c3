"""The options of a write, spelled as those of Spark's own Kafka sink and Java's producer: parsed and checked, no I/O.

| option | meaning | default |
|---|---|---|
| kafka.bootstrap.servers | HOST:PORT[,HOST:PORT...] | required |
| topic | the topic of all rows; without it the column `topic` names it | |
| includeHeaders | accepted; as in Spark's sink, the column `headers` is written whenever it exists | |
| kafka.* | properties of Java's producer | |

| beyond Spark's own sink | meaning | default |
|---|---|---|
| exactlyOnce | a repeated task or a restarted query writes nothing twice (spark_integration.writing.exactly_once) | false |
| exactlyOnceId | the sink's name for that, one for each query (foreachBatch too) | the query's id; for a batch a new one |
| deadLetterTopic | takes records that cannot be written (spark_integration.writing.dead_letters) | they fail the task |

Of Java's producer: acks, batch.size, buffer.memory, compression.type and its levels, delivery.timeout.ms,
enable.idempotence, max.block.ms, max.in.flight.requests.per.connection, max.request.size, partitioner.ignore.keys,
request.timeout.ms, retries and transaction.timeout.ms have their meaning there.  If they are not given, batches
are up to 1 MB, a record may be as large as its topic allows, transaction.timeout.ms is 15 minutes, and
enable.idempotence is true.  linger.ms has no effect: batches are full.  Of max.block.ms at most 10 s are spent on
connecting, and at most 10 s on waiting for a topic that the brokers create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_integration.option_values import boolean, choice, positive, split_options, whole_number
from tolerant_client.cluster.producer.sender import ProducerSettings
from tolerant_client.errors import OptionError
from tolerant_client.records import codecs
from tolerant_client.security.kafka_config import kafka_python_config

SPARK: Final = ("topic", "includeHeaders")
OURS: Final = ("exactlyOnce", "exactlyOnceId", "deadLetterTopic")
MAX_BATCH_BYTES: Final = 1_000_000  # below the brokers' message.max.bytes, 1048588
TRANSACTION_TIMEOUT_MS: Final = 900_000  # the brokers' transaction.max.timeout.ms

_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
_CODECS: Final = {name: number for number, name in enumerate(codecs.CODEC_NAMES)}
# KIP-390; Java's lz4 levels are those of its high compressor.
_LEVELS: Final = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_PARTITIONERS: Final = ("DefaultPartitioner", "UniformStickyPartitioner", "RoundRobinPartitioner")


@dataclass(frozen=True)
class WriteOptions:
    """A checked write; `kafka` is the configuration for Cluster, `codec` is the wire's number."""

    kafka: Mapping[str, Any] = field(repr=False)
    topic: str | None = None
    producer: ProducerSettings = ProducerSettings()
    codec: int = codecs.NONE
    level: int | None = None
    max_batch_bytes: int = MAX_BATCH_BYTES
    ignores_keys: bool = False
    is_exactly_once: bool = False
    exactly_once_id: str | None = None
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    dead_letter_topic: str | None = None


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a batch write, or of a stream.

    Raises OptionError naming the first option that is wrong.  Like Spark's own
    sink, it ignores options that it does not know, unless one looks
    like a misspelling of one that it knows.
    """
    own, java = split_options(options, (*SPARK, *OURS))
    given = {f"kafka.{name}": value for name, value in java.items()}  # errors then name the options as they were given
    is_exactly_once = boolean(own, "exactlyOnce", False)
    sink = own.get("exactlyOnceId", "").strip() or None
    if sink is not None and not is_exactly_once:
        raise OptionError("exactlyOnceId has no effect without exactlyOnce=true")
    if "transactional.id" in java:
        raise OptionError(
            "kafka.transactional.id is not supported: every task needs its own; exactlyOnce=true makes them,"
            " exactlyOnceId names the sink in them"
        )
    producer = _producer(given)
    if is_exactly_once and not producer.is_idempotent:
        raise OptionError(
            "exactlyOnce needs the idempotent producer: leave kafka.enable.idempotence, acks and retries alone"
        )
    boolean(own, "includeHeaders", False)
    topic = own["topic"].strip() if "topic" in own else None
    dead_letter_topic = own.get("deadLetterTopic", "").strip() or None
    if dead_letter_topic is not None and dead_letter_topic == topic:
        raise OptionError(
            f"deadLetterTopic is {topic!r}, the topic itself, which has refused the records; choose another one"
        )
    codec = choice(given, "kafka.compression.type", _CODECS, codecs.NONE)
    limit = producer.max_record_bytes or MAX_BATCH_BYTES
    batch_size = whole_number(given.get("kafka.batch.size", str(MAX_BATCH_BYTES)), "kafka.batch.size")
    return WriteOptions(
        kafka=kafka_python_config(java, "write"),
        topic=topic,
        producer=producer,
        codec=codec,
        level=_level(given, codecs.codec_name(codec)),
        max_batch_bytes=max(1, min(batch_size, limit)),
        ignores_keys=_partitioner(given),
        is_exactly_once=is_exactly_once,
        exactly_once_id=sink,
        transaction_timeout_ms=positive(given, "kafka.transaction.timeout.ms") or TRANSACTION_TIMEOUT_MS,
        dead_letter_topic=dead_letter_topic,
    )


def _producer(given: Mapping[str, str]) -> ProducerSettings:
    """As ProducerConfig.java does: default idempotence is switched off by settings that exclude it."""
    default = ProducerSettings()
    acks = choice(given, "kafka.acks", _ACKS, -1)
    in_flight = positive(given, "kafka.max.in.flight.requests.per.connection")
    retries = whole_number(given.get("kafka.retries", str(default.retries)), "kafka.retries")
    is_asked_for = "kafka.enable.idempotence" in given
    is_idempotent = boolean(given, "kafka.enable.idempotence", True)
    for is_against, what in (
        (acks != -1, "acks=all"),
        (retries == 0, "retries above 0"),
        ((in_flight or 5) > 5, "max.in.flight.requests.per.connection of at most 5"),
    ):
        if is_idempotent and is_against:
            if is_asked_for:
                raise OptionError(f"kafka.enable.idempotence=true needs {what}")
            is_idempotent = False
    max_request = positive(given, "kafka.max.request.size")
    request_timeout = positive(given, "kafka.request.timeout.ms") or default.request_timeout_ms
    delivery = positive(given, "kafka.delivery.timeout.ms")
    linger = whole_number(given.get("kafka.linger.ms", "0"), "kafka.linger.ms")
    if delivery is not None and delivery < linger + request_timeout:
        raise OptionError("kafka.delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms")
    return ProducerSettings(
        acks=acks,
        is_idempotent=is_idempotent,
        max_in_flight=in_flight or default.max_in_flight,
        max_requests=in_flight or default.max_requests,
        max_request_bytes=max_request or default.max_request_bytes,
        max_record_bytes=max_request,
        max_bytes_in_flight=positive(given, "kafka.buffer.memory") or default.max_bytes_in_flight,
        request_timeout_ms=request_timeout,
        delivery_timeout_ms=delivery or max(default.delivery_timeout_ms, request_timeout),
        max_block_ms=positive(given, "kafka.max.block.ms") or default.max_block_ms,
        retries=retries,
    )


def _level(given: Mapping[str, str], codec: str) -> int | None:
    chosen = None
    for name, (lowest, highest) in _LEVELS.items():
        key = f"kafka.compression.{name}.level"
        if key not in given:
            continue
        text = given[key].strip()
        if not text.lstrip("-").isdecimal() or not (lowest <= int(text) <= highest or (name, text) == ("gzip", "-1")):
            raise OptionError(f"{key} is {given[key]!r}; it must be a whole number from {lowest} to {highest}")
        if name == codec and text != "-1":
            chosen = int(text)
    return chosen


def _partitioner(given: Mapping[str, str]) -> bool:
    """Whether keys are ignored; raises OptionError for a user's own partitioner."""
    kind = given.get("kafka.partitioner.class", "").strip()
    name = kind.rpartition(".")[2]
    if kind and name not in _PARTITIONERS:
        raise OptionError(
            f"kafka.partitioner.class {kind} is not supported: no Java classes are loaded; give a column `partition`"
        )
    ignores = boolean(given, "kafka.partitioner.ignore.keys", False)
    return ignores or name in _PARTITIONERS[1:]
