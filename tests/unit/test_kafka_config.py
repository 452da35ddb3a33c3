"""Properties of Java clients: what is used, what has no effect, what is refused, and that no secret shows."""

from __future__ import annotations

import http.server
import json
import logging
import os
import pickle
import sys
import threading
import urllib.parse
from base64 import b64decode
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_integration import kafka_config
from spark_integration.kafka_config import FORBIDDEN, FORBIDDEN_IN_WRITES, REFUSED, kafka_python_config
from spark_integration.keystores import TlsSettings
from spark_integration.logins import KerberosLogin, MskIamLogin, TokenLogin
from tolerant_client.errors import ClusterUnreachableError, OptionError, TolerantClientError
from tolerant_client.mirror.worker import LinkConfig
from tolerant_client.raw import RawCluster

CANARY = "canary-4711"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required "
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required "
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
MSK = "software.amazon.msk.auth.iam.IAMLoginModule required;"


def make(use: Any = "read", **java: str) -> dict[str, Any]:
    """The configuration for properties by name, with `__` for dots."""
    named = {name.replace("__", "."): value for name, value in java.items()}
    config = kafka_python_config({"bootstrap.servers": "one:9092, two:9092", **named}, use)
    assert pickle.loads(pickle.dumps(config)) == config
    return config


def sasl(mechanism: str, jaas: str, **java: str) -> dict[str, Any]:
    return make(
        **{"security__protocol": "SASL_PLAINTEXT", "sasl__mechanism": mechanism, "sasl__jaas__config": jaas, **java}
    )


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_config, "_warned", set())


def test_numbers_and_names_are_passed_on() -> None:
    config = make(client__id="c", request__timeout__ms=" 5 ", connections__max__idle__ms="-1")
    assert config["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert (config["client_id"], config["request_timeout_ms"]) == ("c", 5)
    assert config["connections_max_idle_ms"] > 10**9
    with pytest.raises(OptionError, match=r"kafka.request.timeout.ms is 'soon'; it must be a whole number"):
        make(request__timeout__ms="soon")


@pytest.mark.parametrize("use", ["read", "write"])
def test_what_spark_refuses_is_refused(use: str) -> None:
    refused = FORBIDDEN if use == "read" else FORBIDDEN_IN_WRITES
    others = {*FORBIDDEN, *FORBIDDEN_IN_WRITES} - refused.keys()
    for name in refused:
        with pytest.raises(OptionError, match=f"kafka.{name} is not supported: "):
            kafka_python_config({"bootstrap.servers": "h:1", name: "x"}, use)  # type: ignore[arg-type]
    kafka_python_config({"bootstrap.servers": "h:1", **dict.fromkeys(others, "x")}, use)  # type: ignore[arg-type]


def test_what_java_knows_is_taken_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    quiet = {*kafka_config.WITHOUT_EFFECT, *kafka_config.PRODUCING, *kafka_config.READ_ELSEWHERE}
    quiet -= {*FORBIDDEN, *FORBIDDEN_IN_WRITES}
    given = {name: "true" if name in kafka_config._BOOLEAN else "-1" for name in quiet}
    config = kafka_python_config({"bootstrap.servers": "h:1", **given})
    assert config == {"bootstrap_servers": ["h:1"], "security_protocol": "PLAINTEXT"}
    assert caplog.records == []
    for name, reason in (("max.poll.records", "a whole number"), ("check.crcs", "true or false")):
        with pytest.raises(OptionError, match=f"kafka.{name} is 'many'; it must be {reason}"):
            kafka_python_config({"bootstrap.servers": "h:1", name: "many"})
        kafka_python_config({"bootstrap.servers": "h:1", name: "many"}, "write")  # no property of a producer


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1,b:2 , c-d.e:65535,", ["a:1", "b:2", "c-d.e:65535"]),
        ("PLAINTEXT://a:1, SASL_SSL://b:2", ["a:1", "b:2"]),
        ("[::1]:9092", ["[::1]:9092"]),
    ],
)
def test_addresses_are_read_as_java_reads_them(text: str, servers: list[str]) -> None:
    assert kafka_python_config({"bootstrap.servers": text})["bootstrap_servers"] == servers


@pytest.mark.parametrize("text", ["localhost", "a:1,b", "a:", ":1", "a:port", "a b:1", "http//a:1"])
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers has the address .*: HOST:PORT\[,HOST:PORT"):
        kafka_python_config({"bootstrap.servers": text})


def test_brokers_that_do_not_tell_their_version_are_told_of() -> None:
    assert make(broker__version__fallback="0.9.0.1")["api_version"] == (0, 9, 0, 1)
    with pytest.raises(OptionError, match="kafka.broker.version.fallback is 'old'; it must be a version such as"):
        make(broker__version__fallback="old")


def test_every_property_of_javas_clients_is_in_one_list() -> None:
    """The names of ConsumerConfig and ProducerConfig of Kafka 4.2."""
    names = (Path(__file__).parents[1] / "support" / "client_properties.txt").read_text().split()
    assert len(names) == 140
    assert {*names, *kafka_config.OURS} == kafka_config._KNOWN


def test_an_unknown_name_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert make(fetch__mn__bytes=CANARY) == make()
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().endswith("has no effect; did you mean 'kafka.fetch.min.bytes'?")
    assert CANARY not in caplog.text


def test_security_that_is_switched_off_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = make(sasl__mechanism="PLAIN", ssl__truststore__location="/ca.jks", ssl__provider="x")
    assert config["security_protocol"] == "PLAINTEXT" and "credentials" not in config
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert messages[0] == "kafka.sasl.mechanism has no effect with kafka.security.protocol PLAINTEXT"


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_who_is_trusted_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{name} is not supported") as caught:
        kafka_python_config({"bootstrap.servers": "h:1", "security.protocol": "SSL", name: CANARY})
    assert CANARY not in str(caught.value)
    assert make(security__protocol="SSL", ssl__trustmanager__algorithm="PKIX")


def test_a_protocol_must_be_known() -> None:
    with pytest.raises(OptionError, match="kafka.security.protocol must be one of PLAINTEXT, SSL"):
        make(security__protocol="TLS")
    with pytest.raises(OptionError, match="kafka.bootstrap.servers is required"):
        kafka_python_config({"bootstrap.servers": " , "})


def test_tls_is_described_not_opened() -> None:
    """No file is read before somebody connects."""
    config = make(
        security__protocol="ssl",
        ssl__truststore__location="/nowhere/ca.jks",
        ssl__truststore__password=CANARY,
        ssl__keystore__location="/nowhere/me.p12",
        ssl__keystore__password=CANARY,
        ssl__key__password=CANARY,
        ssl__endpoint__identification__algorithm="",
    )
    (tls,) = config["credentials"]
    assert isinstance(tls, TlsSettings)
    assert config["security_protocol"] == "SSL" and config["ssl_check_hostname"] is False
    assert CANARY not in repr(config)
    with pytest.raises(OptionError, match="/nowhere/ca.jks"):
        RawCluster(config)


def test_links_between_clusters_differ_by_what_their_credentials_hold() -> None:
    """A worker process keeps a copier for each link."""

    def link(password: str) -> LinkConfig:
        tls = make(security__protocol="SSL", ssl__truststore__location="/ca", ssl__truststore__password=password)
        return pickle.loads(pickle.dumps(LinkConfig(tls, make(), 1)))

    assert link(CANARY).key() == link(CANARY).key() != link("another").key()


@pytest.mark.parametrize(
    "jaas",
    [
        f"{PLAIN}password='{CANARY}' username=u ;",
        f'kafkashaded.{PLAIN}\n username="u"\n password="{CANARY}";',
        f'{PLAIN.replace("required", "REQUIRED")} username = "u" password="{CANARY}" ; ',
    ],
)
def test_plain_credentials_are_taken_from_jaas(jaas: str) -> None:
    config = sasl("PLAIN", jaas)
    assert config["sasl_mechanism"] == "PLAIN"
    assert (config["sasl_plain_username"], config["sasl_plain_password"]) == ("u", CANARY)


def test_a_password_may_hold_what_jaas_needs() -> None:
    r"""Java reads C's escapes: \" is a quote, \\ a backslash."""
    config = sasl("PLAIN", PLAIN + r'username="u" password="a\"b\\c; d=\"e\" \n";')
    assert config["sasl_plain_password"] == 'a"b\\c; d="e" \n'


def test_a_scram_name_is_escaped() -> None:
    """RFC 5802: a comma and an equals sign would end the field."""
    config = sasl("SCRAM-SHA-512", f'{SCRAM}username="a=b,c" password="{CANARY}";')
    assert config["sasl_plain_username"] == "a=3Db=2Cc"


@pytest.mark.parametrize(
    "jaas",
    [
        "",
        CANARY,
        f'org.example.Other required username="u" password="{CANARY}";',
        f'{SCRAM}username="u" password="{CANARY}"',
        f'{SCRAM}password="{CANARY}";',
        f'{SCRAM}username="u" "{CANARY}";',
        f'{SCRAM}username="u" password="{CANARY};',
    ],
)
def test_a_wrong_jaas_configuration_is_refused_without_showing_it(jaas: str) -> None:
    with pytest.raises(OptionError, match="ScramLoginModule required") as caught:
        sasl("SCRAM-SHA-256", jaas)
    assert CANARY not in str(caught.value)


def test_a_jaas_configuration_is_needed() -> None:
    with pytest.raises(OptionError, match="a JAAS file named to the JVM is not seen here.*Krb5LoginModule"):
        make(security__protocol="SASL_PLAINTEXT")  # Java's default mechanism is GSSAPI
    with pytest.raises(OptionError, match="kafka.sasl.mechanism must be one of PLAIN, SCRAM"):
        sasl("DIGEST-MD5", "x")
    with pytest.raises(OptionError, match="tokenauth"):
        sasl("SCRAM-SHA-256", f'{SCRAM}username="u" password="{CANARY}" tokenauth=true;')


@pytest.mark.parametrize(
    "name", ["sasl__client__callback__handler__class", "sasl__login__callback__handler__class", "sasl__login__class"]
)
def test_java_classes_of_a_user_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="no Java classes are loaded"):
        sasl("PLAIN", f'{PLAIN}username="u" password="p";', **{name: "com.example.Handler"})


KEYTAB = "useKeyTab=true keyTab='/nowhere/me.keytab' principal=\"me@EXAMPLE\""


def test_kerberos_logs_in_with_a_keytab_or_a_ticket() -> None:
    config = sasl("GSSAPI", f"{KERBEROS}{KEYTAB} storeKey=true;", sasl__kerberos__service__name="kafka")
    assert config["credentials"] == (KerberosLogin("kafka", "me@EXAMPLE", "/nowhere/me.keytab"),)
    config = sasl("GSSAPI", f"{KERBEROS}useTicketCache=true ticketCache=/tmp/tickets serviceName=broker;")
    assert config["credentials"] == (KerberosLogin("broker", ticket_cache="/tmp/tickets"),)
    for jaas, service, reason in (
        (KEYTAB, "", "sasl.kerberos.service.name must be given once"),
        (f"{KEYTAB} serviceName=other", "kafka", "sasl.kerberos.service.name must be given once"),
        ("useKeyTab=true", "kafka", "useKeyTab needs keyTab"),
    ):
        with pytest.raises(OptionError, match=reason):
            sasl("GSSAPI", f"{KERBEROS}{jaas};", sasl__kerberos__service__name=service)


def test_kerberos_needs_its_package_and_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(OptionError, match=r"pip install 'tolerant-client\[kerberos\]'"):
        KerberosLogin("kafka")()
    stand_in = ModuleType("gssapi")
    stand_in.__spec__ = ModuleSpec("gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi", stand_in)
    with pytest.raises(OptionError, match="keyTab '/nowhere/me.keytab' cannot be read"):
        KerberosLogin("kafka", keytab="/nowhere/me.keytab")()
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    assert KerberosLogin("kafka", ticket_cache="/tmp/tickets")() == {"sasl_kerberos_service_name": "kafka"}
    assert os.environ.pop("KRB5CCNAME") == "FILE:/tmp/tickets"


def test_msk_signs_with_what_botocore_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    config = sasl("AWS_MSK_IAM", MSK, sasl__client__callback__handler__class=handler)
    assert (config["sasl_mechanism"], config["credentials"]) == ("AWS_MSK_IAM", (MskIamLogin(),))
    with pytest.raises(OptionError, match="awsRoleArn is not supported; AWS credentials are found as botocore"):
        sasl("AWS_MSK_IAM", MSK.replace(";", ' awsRoleArn="arn";'))
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(OptionError, match=r"pip install 'tolerant-client\[msk\]'"):
        RawCluster(config)


class TokenServer(http.server.HTTPServer):
    """An OAuth server that counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status, self.answer = 200, json.dumps({"access_token": "a.b.c", "expires_in": 3600})
        self.url = f"http://127.0.0.1:{self.server_port}/token"


class _TokenHandler(http.server.BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        user = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        self.server.asked.append((user, dict(urllib.parse.parse_qsl(body))))
        self.send_response(self.server.status)
        self.send_header("Location", self.server.url)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def oauth(url: str, jaas: str = f'clientId="me" clientSecret="{CANARY}" scope="kafka"', **java: str) -> dict[str, Any]:
    return sasl("OAUTHBEARER", f"{OAUTH}{jaas};", sasl__oauthbearer__token__endpoint__url=url, **java)


def opened(config: dict[str, Any]) -> Any:
    (login,) = config["credentials"]
    assert isinstance(login, TokenLogin) and CANARY not in repr(config)
    return login()["sasl_oauth_token_provider"]


def test_a_token_is_asked_for_once_while_it_lasts(tokens: TokenServer) -> None:
    handler = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    provider = opened(oauth(tokens.url, sasl__login__callback__handler__class=handler))
    assert [provider.token() for _ in range(3)] == ["a.b.c"] * 3
    assert tokens.asked == [(f"me:{CANARY}", {"grant_type": "client_credentials", "scope": "kafka"})]
    assert provider.extensions() == {}


def test_a_token_that_ends_is_asked_for_again(tokens: TokenServer) -> None:
    tokens.answer = json.dumps({"access_token": "short", "expires_in": 0})
    provider = opened(oauth(tokens.url))
    provider.token()
    assert len(tokens.asked) == 2


def test_newer_names_and_extensions_are_taken(tokens: TokenServer) -> None:
    """KIP-1139 gave the id and the secret properties of their own; KIP-342 are the extensions."""
    config = oauth(
        tokens.url,
        "extension_logicalCluster=lkc-1",
        sasl__oauthbearer__client__credentials__client__id="me@there",
        sasl__oauthbearer__client__credentials__client__secret=CANARY,
        sasl__oauthbearer__scope="one two",
        sasl__oauthbearer__header__urlencode="true",
    )
    assert opened(config).extensions() == {"logicalCluster": "lkc-1"}
    assert tokens.asked == [(f"me%40there:{CANARY}", {"grant_type": "client_credentials", "scope": "one two"})]


@pytest.mark.parametrize(
    ("status", "answer", "kind", "reason"),
    [
        (401, '{"error": "invalid_client"}', OptionError, "answered 401 invalid_client; check the client's id"),
        (400, f"<html>{CANARY}</html>", OptionError, "answered 400 without a reason"),
        (503, "", ClusterUnreachableError, "answered 503"),
        (302, "", ClusterUnreachableError, "answered 302"),
        (200, f'{{"token": "{CANARY}"}}', OptionError, "without an access_token"),
        (200, CANARY, OptionError, "without an access_token"),
        (200, f'{{"access_token": "{CANARY}\\u0001auth"}}', OptionError, "holds no bearer token"),
    ],
)
def test_a_token_that_is_refused_is_named(
    tokens: TokenServer, status: int, answer: str, kind: type[TolerantClientError], reason: str
) -> None:
    tokens.status, tokens.answer = status, answer
    with pytest.raises(kind, match=reason) as caught:
        RawCluster(oauth(tokens.url))
    assert tokens.url in str(caught.value) and CANARY not in str(caught.value)
    assert len(tokens.asked) == 1  # not at the place that it was sent to either


def test_a_token_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterUnreachableError, match="http://127.0.0.1:1/token gave no token.*refused"):
        opened(oauth("http://127.0.0.1:1/token"))


def test_a_token_may_lie_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("a.b.c\n")
    provider = opened(oauth(path.as_uri(), ""))
    path.write_text("d.e.f\n")  # renewed by somebody else
    assert provider.token() == "d.e.f"
    path.unlink()
    with pytest.raises(OptionError, match="a token' cannot be read"):
        provider.token()


@pytest.mark.parametrize(
    ("jaas", "java", "reason"),
    [
        ("clientId=me", {}, "lacks clientId or clientSecret"),
        (f"clientId=me clientSecret={CANARY} extension_auth=x", {}, "extension_auth is no SASL extension"),
        ("", {"sasl.oauthbearer.assertion.file": "x"}, "sasl.oauthbearer.assertion.file is not supported"),
        (
            "",
            {"sasl.oauthbearer.jwt.retriever.class": "a.JwtBearerJwtRetriever"},
            "jwt.retriever.class is not supported",
        ),
        (f"clientId=me clientSecret={CANARY}", {"sasl.login.read.timeout.ms": "x"}, "must be a whole number"),
    ],
)
def test_what_is_wrong_with_a_token_is_named(jaas: str, java: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        oauth("https://h/t", jaas, **{name.replace(".", "__"): value for name, value in java.items()})
    assert CANARY not in str(caught.value)
    with pytest.raises(OptionError, match="token.endpoint.url is required: https://"):
        oauth("ftp://h/t")
