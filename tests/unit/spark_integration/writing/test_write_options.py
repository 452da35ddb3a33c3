"""Options of a write: accepted and refused as in Spark's own sink and Java's producer."""

from __future__ import annotations

import pickle

import pytest

from spark_integration.writing.options import MAX_BATCH_BYTES, WriteOptions, parse_write_options
from tolerant_client.cluster.producer.sender import ProducerSettings
from tolerant_client.errors import OptionError
from tolerant_client.records import codecs


def parse(**options: str) -> WriteOptions:
    """Options by name, with `__` for dots."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    return parse_write_options({"kafka.bootstrap.servers": "one:9092,two:9092", **named})


def test_only_the_brokers_are_required() -> None:
    options = parse()
    assert options.kafka["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert options.producer == ProducerSettings()
    assert (options.topic, options.codec, options.level, options.max_batch_bytes) == (
        None,
        codecs.NONE,
        None,
        MAX_BATCH_BYTES,
    )
    assert not options.is_exactly_once and options.dead_letter_topic is None
    assert options.transaction_timeout_ms == 900_000


def test_names_are_case_insensitive_and_the_topic_is_trimmed() -> None:
    options = parse(
        TOPIC=" clicks ", exactlyonce="TRUE", EXACTLYONCEID="sink", deadlettertopic="dead", includeheaders="true"
    )
    assert (options.topic, options.is_exactly_once, options.exactly_once_id) == ("clicks", True, "sink")
    assert options.dead_letter_topic == "dead"


def test_properties_of_javas_producer_mean_what_they_mean_there() -> None:
    options = parse(
        kafka__compression__type="zstd", kafka__compression__zstd__level="7", kafka__compression__gzip__level="1",
        kafka__batch__size="16384", kafka__linger__ms="100", kafka__max__request__size="2000000",
        kafka__buffer__memory="1000000", kafka__delivery__timeout__ms="60000", kafka__request__timeout__ms="5000",
        kafka__max__in__flight__requests__per__connection="3", kafka__max__block__ms="700", kafka__retries="9",
        kafka__acks="all", kafka__enable__idempotence="true", kafka__partitioner__ignore__keys="true",
    )  # fmt: skip
    assert (options.codec, options.level, options.max_batch_bytes, options.ignores_keys) == (
        codecs.ZSTD,
        7,
        16384,
        True,
    )
    assert options.producer == ProducerSettings(
        max_in_flight=3, max_requests=3, max_request_bytes=2_000_000, max_record_bytes=2_000_000,
        max_bytes_in_flight=1_000_000, request_timeout_ms=5_000, delivery_timeout_ms=60_000, max_block_ms=700, retries=9,
    )  # fmt: skip
    assert options.kafka["request_timeout_ms"] == 5_000


def test_a_batch_is_not_larger_than_a_request() -> None:
    assert parse(kafka__max__request__size="5000").max_batch_bytes == 5000
    assert parse(kafka__batch__size="0").max_batch_bytes == 1


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), ("1", 1), ("0", 0)])
def test_idempotence_that_nobody_asked_for_gives_way(acks: str, number: int) -> None:
    producer = parse(kafka__acks=acks).producer
    assert (producer.acks, producer.is_idempotent) == (number, number == -1)
    assert not parse(kafka__max__in__flight__requests__per__connection="6").producer.is_idempotent
    assert not parse(kafka__retries="0").producer.is_idempotent


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "kafka.enable.idempotence=true needs acks=all"),
        ({"kafka.retries": "0", "kafka.enable.idempotence": "true"}, "needs retries above 0"),
        ({"kafka.acks": "2"}, "kafka.acks is '2'; it must be one of all, -1, 0, 1"),
        ({"kafka.compression.type": "brotli"}, "kafka.compression.type is 'brotli'; it must be one of none, gzip"),
        ({"kafka.compression.gzip.level": "12"}, "kafka.compression.gzip.level is '12'; it must be a whole number from 1 to 9"),
        ({"kafka.batch.size": "big"}, "kafka.batch.size is 'big'"),
        ({"kafka.max.request.size": "0"}, "kafka.max.request.size is '0'; it must be a whole number from 1 to"),
        ({"kafka.delivery.timeout.ms": "1000"}, "kafka.delivery.timeout.ms should be equal to or larger than"),
        ({"kafka.transactional.id": "t"}, "kafka.transactional.id is not supported"),
        ({"kafka.partitioner.class": "my.Partitioner"}, "kafka.partitioner.class my.Partitioner is not supported"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
        ({"kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        ({"exactlyOnce": "yes"}, "exactlyOnce is 'yes'; it must be one of true, false"),
        ({"exactlyOnceId": "sink"}, "exactlyOnceId has no effect without exactlyOnce=true"),
        ({"exactlyOnce": "true", "kafka.acks": "1"}, "exactlyOnce needs the idempotent producer"),
        ({"exactlyOnec": "true"}, "Unknown option 'exactlyOnec'; did you mean 'exactlyOnce'"),
        ({"kafka.exactlyOnce": "true"}, "Unknown option 'kafka.exactlyOnce'; did you mean 'exactlyOnce'"),
        ({"kafka.exactly_once": "true"}, "Unknown option 'kafka.exactly_once'; did you mean 'exactlyOnce'"),
        ({"topic": " t", "deadLetterTopic": "t "}, "deadLetterTopic is 't', the topic itself"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_write_options({"kafka.bootstrap.servers": "one:9092", **options})


def test_options_of_others_are_passed_over_as_by_sparks_own_sink() -> None:
    assert parse(checkpointLocation="/c", path="/p", startingOffsets="earliest", subscribe="t") == parse()


def test_partitioners_of_java_that_pass_over_keys_do_so() -> None:
    package = "org.apache.kafka.clients.producer."
    assert parse(kafka__partitioner__class=package + "RoundRobinPartitioner").ignores_keys
    assert not parse(kafka__partitioner__class=package + "internals.DefaultPartitioner").ignores_keys


def test_options_pickle_and_hide_the_connection() -> None:
    options = parse(topic="t")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "one:9092" not in repr(options)
