"""Properties of Java clients are used, have no effect, or are refused; no message shows a secret."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import os
import pickle
import re
import socket
import sys
import threading
import time
import urllib.parse
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.tree import SUPPORT
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError, TolerantClientError
from tolerant_client.mirror.engine.process_copier import LinkConfig
from tolerant_client.security import java_properties, logins
from tolerant_client.security.java_properties import FORBIDDEN, FORBIDDEN_IN_WRITES, REFUSED
from tolerant_client.security.kafka_config import kafka_python_config
from tolerant_client.security.keystores import TlsSettings
from tolerant_client.security.logins import KerberosLogin, MskIamLogin, TokenLogin

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
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resets the state that a process keeps."""
    monkeypatch.setattr(java_properties, "_warned", set())
    monkeypatch.setattr(logins, "_kerberos_login", None)
    monkeypatch.setattr(logins, "_BACKOFFS_S", (0.0, 0.0))


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
    quiet = {*java_properties.WITHOUT_EFFECT, *java_properties.NOT_BUILT}
    quiet |= {*java_properties.PRODUCING, *java_properties.READ_ELSEWHERE}
    quiet -= {*FORBIDDEN, *FORBIDDEN_IN_WRITES}
    given = {name: "true" if name in java_properties._BOOLEAN else "-1" for name in quiet}
    config = kafka_python_config({"bootstrap.servers": "h:1", **given})
    assert config == {"bootstrap_servers": ["h:1"], "security_protocol": "PLAINTEXT"}
    assert caplog.records == []
    for name, reason in (("max.poll.records", "a whole number"), ("check.crcs", "true or false")):
        with pytest.raises(OptionError, match=f"kafka.{name} is 'many'; it must be {reason}"):
            kafka_python_config({"bootstrap.servers": "h:1", name: "many"})
        kafka_python_config({"bootstrap.servers": "h:1", name: "many"}, "write")  # not a property of producers


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
    with pytest.raises(
        OptionError, match=r"kafka.bootstrap.servers has the invalid address .*; write HOST:PORT\[,HOST:PORT"
    ):
        kafka_python_config({"bootstrap.servers": text})


def test_brokers_that_do_not_tell_their_version_are_told_of() -> None:
    assert make(broker__version__fallback="0.9.0.1")["api_version"] == (0, 9, 0, 1)
    with pytest.raises(OptionError, match="kafka.broker.version.fallback is 'old'; it must be a version such as"):
        make(broker__version__fallback="old")


def test_every_property_of_javas_clients_is_in_one_list() -> None:
    """The names of ConsumerConfig and ProducerConfig of Kafka 4.2."""
    names = (SUPPORT / "client_properties.txt").read_text().split()
    assert len(names) == 140
    assert {*names, *java_properties.OURS} == java_properties.KNOWN


def test_an_unknown_name_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert make(fetch__mn__bytes=CANARY) == make()
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().endswith("has no effect; did you mean 'kafka.fetch.min.bytes'?")
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("security.protocl", "; did you mean 'kafka.security.protocol'?"),
        ("ssl.truststore.locaton", "; did you mean 'kafka.ssl.truststore.location'?"),
        ("truststore.location", "; did you mean 'kafka.ssl.truststore.location'?"),
        ("sals.jaas.config", "; did you mean 'kafka.sasl.jaas.config'?"),
        ("ssl.x", ""),
    ],
)
def test_a_slip_in_a_property_of_security_is_refused(name: str, nearest: str) -> None:
    java = {"bootstrap.servers": "h:1", name: CANARY}
    if name != "security.protocl":
        java["security.protocol"] = "SSL"
    with pytest.raises(OptionError, match=re.escape(f"kafka.{name} is not a property of Kafka clients{nearest}")) as e:
        kafka_python_config(java)
    assert CANARY not in str(e.value)


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
    """No file is read before a client connects."""
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
        Cluster(config)


def test_links_between_clusters_differ_by_what_their_credentials_hold() -> None:
    """A worker process keeps a copier for each link."""

    def link(password: str) -> LinkConfig:
        tls = make(security__protocol="SSL", ssl__truststore__location="/ca", ssl__truststore__password=password)
        return pickle.loads(pickle.dumps(LinkConfig(tls, make(), 1)))

    assert link(CANARY).key() == link(CANARY).key() != link("another").key()
    assert CANARY not in link(CANARY).key()
    plain = LinkConfig(sasl("PLAIN", f"{PLAIN}username=u password={CANARY};"), make(), 1)
    assert CANARY not in repr(plain) + plain.key()


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
    """RFC 5802: a comma or an equals sign would end the field."""
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
    with pytest.raises(OptionError, match="a JAAS file of the JVM is not read.*Krb5LoginModule"):
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
        (KEYTAB, "", "sasl.kerberos.service.name or serviceName must give one name"),
        (f"{KEYTAB} serviceName=other", "kafka", "sasl.kerberos.service.name or serviceName must give one name"),
        ("useKeyTab=true", "kafka", "useKeyTab needs keyTab"),
    ):
        with pytest.raises(OptionError, match=reason):
            sasl("GSSAPI", f"{KERBEROS}{jaas};", sasl__kerberos__service__name=service)


def test_kerberos_needs_its_package_and_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(OptionError, match=r"pip install '\.\[kerberos\]'"):
        KerberosLogin("kafka")()
    stand_in = ModuleType("gssapi")
    stand_in.__spec__ = ModuleSpec("gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi", stand_in)
    with pytest.raises(OptionError, match="keyTab '/nowhere/me.keytab' cannot be read"):
        KerberosLogin("kafka", keytab="/nowhere/me.keytab")()
    monkeypatch.setenv("KRB5CCNAME", "")
    assert KerberosLogin("kafka", ticket_cache="/tmp/tickets")() == {"sasl_kerberos_service_name": "kafka"}
    assert os.environ["KRB5CCNAME"] == "FILE:/tmp/tickets"


def test_a_process_has_one_kerberos_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tickets are in the process's environment, so a second login would replace the first one's tickets."""
    stand_in = ModuleType("gssapi")
    stand_in.__spec__ = ModuleSpec("gssapi", None)
    monkeypatch.setitem(sys.modules, "gssapi", stand_in)
    monkeypatch.setenv("KRB5CCNAME", "")
    first = KerberosLogin("kafka", "alice@A", ticket_cache="/tmp/alice")
    assert first() == pickle.loads(pickle.dumps(first))()
    assert KerberosLogin("broker", "alice@A", ticket_cache="/tmp/alice")() == {"sasl_kerberos_service_name": "broker"}
    for other in (KerberosLogin("kafka", "bob@B", ticket_cache="/tmp/bob"), KerberosLogin("kafka")):
        with pytest.raises(
            OptionError, match="logged in to Kerberos as alice@A of /tmp/alice and cannot log in as (bob|the)"
        ):
            other()
    assert os.environ["KRB5CCNAME"] == "FILE:/tmp/alice"


def test_msk_signs_with_what_botocore_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    config = sasl("AWS_MSK_IAM", MSK, sasl__client__callback__handler__class=handler)
    assert (config["sasl_mechanism"], config["credentials"]) == ("AWS_MSK_IAM", (MskIamLogin(),))
    with pytest.raises(OptionError, match="awsRoleArn is not supported; botocore finds the AWS credentials"):
        sasl("AWS_MSK_IAM", MSK.replace(";", ' awsRoleArn="arn";'))
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(OptionError, match=r"pip install '\.\[msk\]'"):
        Cluster(config)


class TokenServer(http.server.HTTPServer):
    """An OAuth server that records its requests."""

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
    """KIP-1139 added properties for the id and the secret; KIP-342 defines the extensions."""
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
    ("given", "seconds"),
    [({}, 10.0), ({"connect": "2000"}, 2.0), ({"connect": "2000", "read": "3000"}, 3.0), ({"read": "20000"}, 20.0)],
)
def test_the_login_timeouts_count_as_given(given: dict[str, str], seconds: float) -> None:
    config = oauth("https://here/token", **{f"sasl__login__{name}__timeout__ms": ms for name, ms in given.items()})
    assert config["credentials"][0].connect_timeout_s == seconds


@pytest.mark.parametrize(
    ("status", "answer", "kind", "reason"),
    [
        (401, '{"error": "invalid_client"}', OptionError, "responded with 401 invalid_client; check the client's id"),
        (400, f"<html>{CANARY}</html>", OptionError, "responded with 400 without a reason"),
        (503, "", ClusterUnreachableError, "responded with 503 .*operator"),
        (302, "", OptionError, "responded with 302"),
        (200, f'{{"token": "{CANARY}"}}', OptionError, "without an access_token"),
        (200, CANARY, OptionError, "without an access_token"),
        (200, f'{{"access_token": "{CANARY}\\u0001auth"}}', OptionError, "gave a token that is not a bearer token"),
    ],
)
def test_a_token_that_is_refused_is_named(
    tokens: TokenServer, status: int, answer: str, kind: type[TolerantClientError], reason: str
) -> None:
    tokens.status, tokens.answer = status, answer
    with pytest.raises(kind, match=reason) as caught:
        Cluster(oauth(tokens.url))
    assert tokens.url in str(caught.value) and CANARY not in str(caught.value)
    # A passing error is retried; a redirect is not followed.
    assert len(tokens.asked) == (3 if status == 503 else 1)


def jwt(claims: dict[str, Any]) -> str:
    return f"a.{urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c"


@pytest.mark.parametrize(
    ("fields", "life"),
    [
        ({"access_token": jwt({"exp": 10_000})}, 9_000),
        ({"access_token": jwt({"exp": 10_000}), "expires_in": None}, 9_000),
        ({"access_token": jwt({"exp": 10_000}), "expires_in": "70"}, 70),
        ({"access_token": jwt({"exp": None})}, 60),
        ({"access_token": jwt({})}, 60),
        ({"access_token": "opaque"}, 60),
        ({"access_token": "a.x.c"}, 60),
        ({"access_token": "opaque", "expires_in": float("nan")}, 60),
    ],
)
def test_the_life_of_a_token_is_told_by_its_server_or_by_itself(
    tokens: TokenServer, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], life: float
) -> None:
    tokens.answer = json.dumps(fields)
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    assert TokenLogin(tokens.url, "me", CANARY).ask() == (fields["access_token"], life)


class Login:
    """Returns the tokens, or raises the errors, in `answers` one by one; the last one for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers, self.asked, self.extensions = list(answers), 0, {}

    def ask(self) -> tuple[str, float]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer, 100.0


def test_a_token_that_still_counts_is_kept_while_the_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    down = ClusterUnreachableError("down")
    login = Login(down, "first", down)
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    provider = logins.TokenProvider(login)  # type: ignore[arg-type]
    assert (provider.token(), login.asked) == ("first", 2)  # the first failure was retried
    for now, asked in ((79.0, 2), (81.0, 3), (82.0, 3), (87.0, 4), (99.0, 5)):
        assert (provider.token(), login.asked) == ("first", asked)
    now = 101.0
    with pytest.raises(ClusterUnreachableError):
        provider.token()
    assert login.asked == 8
    login.answers = ["second"]
    assert provider.token() == "second"


def test_what_speaks_no_http_is_named_without_its_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(3):
                peer, _address = listener.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(CANARY.encode())
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass  # closing with unread bytes would reset the connection

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterUnreachableError, match="gave no token: BadStatusLine; does it speak HTTP") as caught:
            opened(oauth(f"http://127.0.0.1:{listener.getsockname()[1]}/t"))
        thread.join()
    assert CANARY not in str(caught.value)


def test_an_answer_in_drops_ends_with_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    drops: Any = SimpleNamespace(read1=lambda _: b" ")
    with pytest.raises(TimeoutError):
        TokenLogin("https://h/t")._read(drops)
    assert next(now) == 16  # after 12 s, the first check after the timeout of 10 s


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"https://me:{CANARY}@h/t", "has a login before its host; give clientId"),
        (f"https://me:{CANARY}@h:x/t", "must have the form https://HOST"),
        ("https://h/a b", "must have the form https://HOST"),
        ("https://[h/t", "must have the form"),
        ("https:t", "must have the form"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_without_showing_it(url: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.sasl.oauthbearer.token.endpoint.url {reason}") as caught:
        oauth(url)
    assert CANARY not in str(caught.value) and CANARY not in repr(TokenLogin(url))


def test_a_slip_in_tls_for_the_token_server_is_refused() -> None:
    with pytest.raises(OptionError, match="jaas.config: ssl.truststore.locaton is not supported; use one of"):
        oauth("https://h/t", "clientId=me clientSecret=x ssl.truststore.locaton=/ca")
    assert oauth("https://h/t", "clientId=me clientSecret=x ssl.truststore.location=/ca ssl.protocol=TLSv1.3")


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
        (f"clientId=me clientSecret={CANARY} extension_auth=x", {}, "extension_auth is not a valid SASL extension"),
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


def test_an_error_of_an_oauth_server_that_comes_in_drops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.0 401 No\r\n\r\n")
                for _ in range(100):
                    connection.sendall(b" ")
                    time.sleep(0.1)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        login = TokenLogin(f"http://127.0.0.1:{listening.getsockname()[1]}/token", "me", CANARY, connect_timeout_s=0.5)
        began = time.monotonic()
        with pytest.raises(OptionError, match="responded with 401 without a reason"):
            login.ask()
        assert time.monotonic() - began < 8


@pytest.mark.parametrize("answer", ["[" * 100_000, '{"error": "x\\nforged\\u001b[2K"}', "[]"])
def test_what_is_no_error_code_of_an_oauth_server_is_not_shown(tokens: TokenServer, answer: str) -> None:
    tokens.status, tokens.answer = 401, answer
    with pytest.raises(OptionError, match="responded with 401 without a reason"):
        TokenLogin(tokens.url, "me", CANARY).ask()


def test_a_secret_that_goes_over_http_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    oauth("http://login.example.com/token")
    assert "unencrypted; use https" in caplog.text and CANARY not in caplog.text


def test_a_number_of_thousands_of_digits_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="at most 18 digits"):
        kafka_python_config({"bootstrap.servers": "a:1", "request.timeout.ms": "9" * 5000})
