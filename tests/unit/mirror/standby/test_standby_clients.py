"""What a client that follows a link is given."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

import kafka.errors as Errors
import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby import link_watch
from tolerant_client.mirror.standby.clients import (
    MIRRORED_TIMEOUT_MS,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    connection_to,
    waits_for_standby_ms,
)


def test_no_password_goes_to_a_cluster_for_which_it_was_not_given() -> None:
    to = connection_to({"bootstrap_servers": "b:9092", "security_protocol": "SSL"})
    assert to["security_protocol"] == "SSL" and to["sasl_plain_password"] is None and to["ssl_keyfile"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"standby": {"bootstrap_servers": "b:9092"}}, "standby and link belong together"),
        ({"link": "orders"}, "standby and link belong together"),
        ({"standby": {}, "link": "orders"}, "standby has no bootstrap_servers"),
        ({"standby": "b:9092", "link": "orders"}, "standby is no dict with options"),
        ({"standby": {"bootstrap_servers": "b:9092"}, "link": 5}, "link is 5: give the name"),
        ({"standby": {"bootstrap_servers": "b:9092"}, "link": ""}, "link is '': give the name"),
        (
            {"standby": {"bootstrap_servers": "b:9092", "group_id": "g"}, "link": "x"},
            "standby has group_id, which is no",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_connected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaConsumer(bootstrap_servers="127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security_protocol": "TLS"}, "standby has security_protocol 'TLS': give one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "standby has sasl_mechanism None: give one of .*, PLAIN, SCRAM-SHA-256"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAN"}, "standby has sasl_mechanism 'PLAN'"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
            "standby has no sasl_plain_username and no sasl_plain_password: sasl_mechanism PLAIN needs it",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "u",
            },
            "standby has no sasl_plain_password: sasl_mechanism SCRAM-SHA-512",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"},
            "standby has no sasl_oauth_token_provider",
        ),
        (
            {"security_protocol": "SSL", "ssl_cafile": "/nowhere"},
            "standby has ssl_cafile '/nowhere', which cannot be read: No such file",
        ),
        ({"security_protocol": "SSL", "ssl_cafile": __file__}, "standby has ssl_ options that cannot be used: .*"),
        (
            {"proxy_url": "nope://x"},
            "standby has a proxy_url that cannot be used: give SCHEME://USER:PASSWORD@HOST:PORT",
        ),
        ({"api_version": "banana"}, r"standby has api_version 'banana': give a tuple of numbers, as \(3, 6\)"),
        ({"api_version": 5}, "standby has api_version 5: give a tuple of numbers"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "u",
                "sasl_plain_password": 5,
            },
            "standby has a sasl_plain_password that is no text$",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": "x",
            },
            r"standby has a sasl_oauth_token_provider without token\(\): give an AbstractTokenProvider",
        ),
        ({"security_protocol": "SSL", "ssl_context": "x"}, "standby has ssl_context 'x': give an ssl.SSLContext"),
        ({"security_protocol": "SSL", "ssl_cafile": 5.5}, "standby has ssl_cafile 5.5, which cannot be read: expected"),
        (
            {"security_protocol": "SSL", "ssl_certfile": __file__, "ssl_password": 5},
            "standby has ssl_ options that cannot be used: password should be a string",
        ),
    ],
)
def test_a_standby_that_cannot_be_connected_to_is_refused_before_anything_is_connected(
    options: dict[str, Any], message: str
) -> None:
    for make in (KafkaConsumer, KafkaAdminClient):
        with pytest.raises(OptionError, match=message):
            make(bootstrap_servers="127.0.0.1:1", standby={"bootstrap_servers": "b:9092", **options}, link="x")


@pytest.mark.parametrize("servers", ["b:x", " ", b"b:9092", 9092, "b:99999", [" "], "[::1", lambda: "b:9092"])
def test_addresses_that_are_none_are_refused(servers: Any) -> None:
    with pytest.raises(OptionError, match=r"standby has bootstrap_servers .*: give HOST:PORT, or a list of them"):
        connection_to({"bootstrap_servers": servers})


@pytest.mark.parametrize("servers", ["b", "[::1]:9092", ["a:1", "b"], ("b:1",), {"b:1"}, "SSL://b:9092", "b:9092,"])
def test_addresses_that_kafka_python_can_use_are_taken(servers: Any) -> None:
    to = connection_to({"bootstrap_servers": servers, "api_version": (3, 6)})
    assert (to["bootstrap_servers"], to["api_version"]) == (servers, (3, 6))


def test_files_that_no_connection_uses_are_not_read() -> None:
    unused = {"bootstrap_servers": "b:9092", "ssl_cafile": "/nowhere"}
    assert connection_to(unused)["ssl_cafile"] == "/nowhere"
    context = ssl.create_default_context()
    assert connection_to({**unused, "security_protocol": "SSL", "ssl_context": context})["ssl_context"] is context


def test_a_standby_that_is_silent_is_waited_for_once_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_watch, "FIRST_WORD_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        standby, began = f"127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        with pytest.raises(Errors.KafkaError, match="Unable to bootstrap from 127.0.0.1:1"):
            KafkaAdminClient(
                bootstrap_servers="127.0.0.1:1",
                bootstrap_timeout_ms=300,
                standby={"bootstrap_servers": standby},
                link="A-B",
            )
    assert 0.4 <= time.monotonic() - began < 3
    assert "Whether link A-B is promoted is unknown yet: the standby at" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": "Mirrored"}, "acks is 'Mirrored': give 0, 1"),
        ({"acks": "1"}, "acks is '1': give 0, 1"),
        ({"acks": None}, "acks is None: give 0, 1"),
        ({"acks": True}, "acks is True: give 0, 1"),
        ({"mirrored_timeout_ms": 5}, 'mirrored_timeout_ms belongs to acks="mirrored"'),
        (
            {"acks": "mirrored", "standby": {}, "link": "A-B", "mirrored_timeout_ms": True},
            "mirrored_timeout_ms is True",
        ),
        ({"acks": "mirrored"}, "needs standby and link"),
    ],
)
def test_acks_that_no_broker_knows_are_refused_before_anything_is_sent(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", **options)


def test_only_a_mirrored_record_waits_for_the_standby() -> None:
    assert [waits_for_standby_ms(acks, "A-B", None) for acks in (0, 1, -1, "all")] == [None] * 4
    assert waits_for_standby_ms("mirrored", "A-B", None) == MIRRORED_TIMEOUT_MS
    assert waits_for_standby_ms("mirrored", "A-B", 0.5) == 0.5
