"""Options of a read: what is taken, what is refused, and that no secret shows."""

from __future__ import annotations

import pickle

import pytest
from kafka.structs import TopicPartition

from spark_integration.kafka_config import FORBIDDEN
from spark_integration.offsets import EARLIEST, LATEST, AtTimestamp, Everywhere, SpecificOffsets
from spark_integration.options import (
    KNOWN,
    WITHOUT_EFFECT,
    Assign,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    parse_read_options,
)
from tolerant_client.errors import OptionError

T0 = TopicPartition("t", 0)
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="s3\\"cret";'
CANARY = "canary-4711"


def parse(**options: str) -> ReadOptions:
    """Options by name, with `__` for dots; a topic is subscribed unless another choice is made."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    if not {"assign", "subscribe", "subscribePattern"} & named.keys():
        named["subscribe"] = "t"
    return parse_read_options({"kafka.bootstrap.servers": "one:9092,two:9092", **named})


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
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SUBSCRIBE": "t", "MINPARTITIONS": "3", "failondataloss": "FALSE"}
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
        parse_read_options({"kafka.bootstrap.servers": "h:1", **options})


def test_offsets_are_words_or_json() -> None:
    assert parse(startingOffsets="Earliest").start == Everywhere(EARLIEST)
    assert parse(endingOffsets="latest").end == Everywhere(LATEST)
    start = parse(startingOffsets='{"t":{"0":-2}}').start
    assert start == SpecificOffsets({T0: -2}, "startingOffsets")
    assert parse(endingOffsets='{"t":{"0":-1}}').end == SpecificOffsets({T0: -1}, "endingOffsets")


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
        ("startingOffsets", "latest", "cannot be 'latest'"),
        ("endingOffsets", "earliest", "cannot be 'earliest'"),
        ("startingOffsets", '{"t":{"0":-1}}', "t-0 cannot be -1"),
        ("endingOffsets", '{"t":{"0":-2}}', "t-0 cannot be -2"),
        ("startingOffsets", '{"t":{"0":-3}}', "offset -3"),
        ("startingOffsets", "yesterday", "is no JSON"),
        ("startingTimestamp", "-5", "whole number"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-5}}', "negative time"),
        ("startingOffsetsByTimestampStrategy", "guess", "error, latest"),
        ("failOnDataLoss", "yes", "true, false"),
        ("minPartitions", "0", "greater than 0"),
        ("maxRecordsPerPartition", "many", "whole number"),
        ("isolation__level", "serializable", "read_uncommitted, read_committed"),
        ("payload", "bytes", "records, ranges"),
        ("subscribePattern", "(", "no regular expression"),
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
        ("kafka.security.protocl", "kafka.security.protocol"),
    ],
)
def test_an_unknown_option_gets_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{near}'"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", name: "x"})


def test_an_unknown_option_far_from_all_gets_the_list() -> None:
    with pytest.raises(OptionError, match="known are assign"):
        parse(zzz="x")


def test_options_of_streams_are_taken_without_effect() -> None:
    assert parse(maxOffsetsPerTrigger="10", groupIdPrefix="x", kafka__group__id="g") == parse()
    assert not set(KNOWN) & set(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_kafka_properties_say_what_to_do(name: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name} is not supported: {FORBIDDEN[name]}"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", f"kafka.{name}": "x"})


@pytest.mark.parametrize("servers", ["", " , "])
def test_bootstrap_servers_are_required(servers: str) -> None:
    with pytest.raises(OptionError, match="bootstrap.servers is required"):
        parse(kafka__bootstrap__servers=servers)


def test_isolation_level_may_have_kafkas_prefix() -> None:
    assert parse(kafka__isolation__level="read_committed").isolation_level == 1
    assert parse(isolation__level="read_committed").isolation_level == 1


def test_numbers_and_names_are_passed_on() -> None:
    config = parse(kafka__client__id="c", kafka__request__timeout__ms="5").kafka
    assert (config["client_id"], config["request_timeout_ms"]) == ("c", 5)
    with pytest.raises(OptionError, match="whole number"):
        parse(kafka__request__timeout__ms="soon")


def sasl(**options: str) -> ReadOptions:
    return parse(
        **{
            "kafka__security__protocol": "SASL_SSL",
            "kafka__sasl__mechanism": "SCRAM-SHA-512",
            "kafka__sasl__jaas__config": JAAS,
            **options,
        }
    )


def test_scram_credentials_are_taken_from_jaas() -> None:
    config = sasl().kafka
    assert config["security_protocol"] == "SASL_SSL"
    assert config["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (config["sasl_plain_username"], config["sasl_plain_password"]) == ("u", 's3"cret')


@pytest.mark.parametrize(
    "jaas",
    [
        f"org.apache.kafka.common.security.plain.PlainLoginModule required password='{CANARY}' username=u ;",
        f'kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required\n username="u"\n password="{CANARY}";',
    ],
)
def test_plain_credentials_are_taken_from_jaas(jaas: str) -> None:
    options = sasl(kafka__sasl__mechanism="PLAIN", kafka__sasl__jaas__config=jaas)
    assert options.kafka["sasl_plain_password"] == CANARY
    assert CANARY not in repr(options)


@pytest.mark.parametrize(
    "jaas",
    [
        "",
        CANARY,
        f'org.example.Other required username="u" password="{CANARY}";',
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{CANARY}"',
        f'org.apache.kafka.common.security.scram.ScramLoginModule required password="{CANARY}";',
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" "{CANARY}";',
    ],
)
def test_a_wrong_jaas_configuration_is_refused_without_showing_it(jaas: str) -> None:
    with pytest.raises(OptionError, match="ScramLoginModule required") as caught:
        sasl(kafka__sasl__jaas__config=jaas)
    assert CANARY not in str(caught.value)


def test_a_mechanism_is_needed_and_must_be_known() -> None:
    with pytest.raises(OptionError, match="one of PLAIN, SCRAM"):
        sasl(kafka__sasl__mechanism="GSSAPI")


def test_pem_files_are_passed_on() -> None:
    config = parse(
        kafka__security__protocol="ssl",
        kafka__ssl__truststore__location="/ca.pem",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__keystore__location="/me.pem",
        kafka__ssl__key__password=CANARY,
    ).kafka
    assert config["security_protocol"] == "SSL"
    assert (config["ssl_cafile"], config["ssl_certfile"], config["ssl_keyfile"]) == ("/ca.pem", "/me.pem", "/me.pem")
    assert config["ssl_password"] == CANARY and config["ssl_check_hostname"]


def test_java_keystores_are_refused() -> None:
    for options in (
        {"kafka__ssl__truststore__location": "/ca.jks"},
        {"kafka__ssl__truststore__location": "/ca", "kafka__ssl__truststore__type": "JKS"},
    ):
        with pytest.raises(OptionError, match="must be a PEM file"):
            parse(kafka__security__protocol="SSL", **options)


def test_security_without_effect_is_refused() -> None:
    with pytest.raises(OptionError, match="kafka.sasl.mechanism has no effect"):
        parse(kafka__sasl__mechanism="PLAIN")
    with pytest.raises(OptionError, match="security.protocol must be"):
        parse(kafka__security__protocol="TLS")
    with pytest.raises(OptionError, match="https, or empty"):
        parse(kafka__security__protocol="SSL", kafka__ssl__endpoint__identification__algorithm="no")
