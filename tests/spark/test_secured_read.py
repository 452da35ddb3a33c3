"""Secured brokers, with the properties that Spark users write for Java's client: the same rows from both sources."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.keystores import PASSWORD as STORE_PASSWORD
from support.keystores import Identity
from support.settled import changing
from tolerant_client.testing import KafkaCluster

TOPIC = "secured"
RECORDS = 60
USER, PASSWORD, WRONG = "alice", "alice-canary-secret", "wrong-canary-secret"
LOGIN = "org.apache.kafka.common.security"
SCRAM = f'{LOGIN}.scram.ScramLoginModule required username="{USER}" password="{PASSWORD}";'
PLAIN = f'{LOGIN}.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
OAUTH = f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required clientId="{USER}" clientSecret="{PASSWORD}";'


class Stores:
    """The files of a broker and of its users, written by keytool."""

    def __init__(self, folder: Path) -> None:
        authority = Identity("authority", is_authority=True)
        self.broker = Identity("broker", authority).keystore(folder / "broker.p12", "PKCS12")
        client = Identity("client", authority)
        self.trust, self.key = {}, {}
        for kind in ("JKS", "PKCS12"):
            self.trust[kind] = authority.truststore(folder / f"trust.{kind}", kind)
            self.key[kind] = client.keystore(folder / f"client.{kind}", kind)
        self.pem = (authority.certificate_pem(), client.key_pem(), client.chain_pem())
        self.strangers = Identity("stranger", is_authority=True).truststore(folder / "stranger.p12", "PKCS12")

    def truststore(self, kind: str) -> dict[str, str]:
        return {"ssl.truststore.type": kind, **store("truststore", self.trust[kind])}


def store(name: str, path: Path) -> dict[str, str]:
    return {f"ssl.{name}.location": str(path), f"ssl.{name}.password": STORE_PASSWORD}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster], stores: Stores) -> KafkaCluster:
    """MUTUAL asks for a client's certificate, SECURE for a login; both speak TLS."""
    config = {
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.secure.plain.sasl.jaas.config": (
            f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        # Without a handler of its own the broker takes unsigned tokens.
        "listener.name.secure.oauthbearer.sasl.jaas.config": (
            f'{LOGIN}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    for listener in ("mutual", "secure"):
        for name, value in {**store("keystore", stores.broker), **stores.truststore("JKS")}.items():
            config[f"listener.name.{listener}.{name}"] = value
    listeners = {"MUTUAL": "SSL", "SECURE": "SASL_SSL"}
    cluster = start_cluster(broker_config=config, listeners=listeners, heap="256m")
    with changing(cluster.bootstrap_servers) as admin:
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD, 4096)]
        )
        admin.create_topics([NewTopic(TOPIC, 2, 1)])
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for number in range(RECORDS):
        producer.send(TOPIC, b"%d" % number, partition=number % 2)
    producer.close()
    return cluster


class TokenServer(http.server.HTTPServer):
    """Answers every client that knows the password with an unsigned token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.asked = 0


class _TokenHandler(http.server.BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.server.asked += 1
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        is_known = self.headers["Authorization"] == expected
        claims = {"sub": USER, "iat": time.time(), "exp": time.time() + 600}
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "none"}, claims)
        ]
        answer = (
            {"access_token": ".".join((*parts, "")), "expires_in": 600} if is_known else {"error": "invalid_client"}
        )
        self.send_response(200 if is_known else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def load(spark: Any, cluster: KafkaCluster) -> Callable[..., Any]:
    def load(source: str, listener: str, java: dict[str, str]) -> Any:
        reader = spark.read.format(source).option("subscribe", TOPIC)
        reader = reader.option("kafka.bootstrap.servers", cluster.servers_of(listener))
        protocol = {"MUTUAL": "SSL", "SECURE": "SASL_SSL"}[listener]
        for name, value in {"security.protocol": protocol, **java}.items():
            reader = reader.option(f"kafka.{name}", value)
        return reader.load()

    return load


def values(frame: Any) -> list[tuple[int, int, int]]:
    return sorted((row.partition, row.offset, int(bytes(row.value))) for row in frame.collect())


EVERYTHING = sorted((number % 2, number // 2, number) for number in range(RECORDS))


def mutual(stores: Stores, kind: str) -> dict[str, str]:
    key = {"ssl.keystore.type": kind, **store("keystore", stores.key[kind]), "ssl.key.password": STORE_PASSWORD}
    return {**stores.truststore(kind), **key}


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_java_keystores_authenticate_both_sides(load: Callable[..., Any], stores: Stores, kind: str) -> None:
    for source in ("kafka", "tolerantkafka"):
        assert values(load(source, "MUTUAL", mutual(stores, kind))) == EVERYTHING, source


def test_pem_texts_authenticate_both_sides(load: Callable[..., Any], stores: Stores) -> None:
    trusted, key, chain = stores.pem
    java = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": chain,
    }
    for source in ("kafka", "tolerantkafka"):
        assert values(load(source, "MUTUAL", java)) == EVERYTHING, source


@pytest.mark.parametrize(("mechanism", "jaas"), [("SCRAM-SHA-512", SCRAM), ("PLAIN", PLAIN)])
def test_jaas_logins_over_tls(load: Callable[..., Any], stores: Stores, mechanism: str, jaas: str) -> None:
    java = {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas, **stores.truststore("JKS")}
    for source in ("kafka", "tolerantkafka"):
        assert values(load(source, "SECURE", java)) == EVERYTHING, source


def test_a_properties_file_of_javas_client_serves_the_commands(
    cluster: KafkaCluster, stores: Stores, tmp_path: Path
) -> None:
    """Here, where the brokers are: a cluster is compared with itself, once in the clear."""
    java = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": SCRAM,
        **stores.truststore("JKS"),
    }
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in java.items()))
    clusters = ["--source", cluster.servers_of("SECURE"), "--target", cluster.bootstrap_servers]
    result = CliRunner().invoke(
        app, ["verify", *clusters, "--topics", TOPIC, "--source-properties", str(properties), "--json"]
    )
    assert result.exit_code == 0, result.output
    assert sum(partition["identical_until"] for partition in json.loads(result.stdout)["partitions"]) == RECORDS


def oauth(stores: Stores, tokens: TokenServer, jaas: str = OAUTH) -> dict[str, str]:
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": jaas,
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{tokens.server_port}/token",
        "sasl.login.callback.handler.class": f"{LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler",
        **stores.truststore("JKS"),
    }


def test_tokens_of_an_oauth_server_log_in(load: Callable[..., Any], stores: Stores, tokens: TokenServer) -> None:
    assert values(load("tolerantkafka", "SECURE", oauth(stores, tokens))) == EVERYTHING
    assert tokens.asked >= 2  # the driver's process and an executor's


def test_what_keeps_a_query_out_is_said(load: Callable[..., Any], stores: Stores, tokens: TokenServer) -> None:
    scram = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM, **stores.truststore("JKS")}
    cases = {
        "no login with this password": (
            {**scram, "sasl.jaas.config": SCRAM.replace(PASSWORD, WRONG)},
            "refuses the login of user alice",
        ),
        "no trust": ({**scram, **store("truststore", stores.strangers)}, "certificate verify failed"),
        "no file": ({**scram, "ssl.truststore.location": "/nowhere/trust.jks"}, "'/nowhere/trust.jks' cannot be read"),
        "no store password": ({**scram, "ssl.truststore.password": WRONG}, "its password is wrong"),
        "no token": (oauth(stores, tokens, OAUTH.replace(PASSWORD, WRONG)), "responded with 401 invalid_client"),
    }
    for case, (java, reason) in cases.items():
        with pytest.raises(Exception, match=reason) as caught:
            load("tolerantkafka", "SECURE", java).collect()
        text = str(caught.value)
        assert not any(secret in text for secret in (PASSWORD, WRONG, STORE_PASSWORD)), case
