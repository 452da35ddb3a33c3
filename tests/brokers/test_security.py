"""SASL, TLS and re-authentication (KIP-368) on a real broker, with our three clients.

Whatever happens to an answer while authenticating, its connection is given up and
another one authenticates anew; nothing is sent again on it, nothing is lost or doubled.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion
from kafka.structs import TopicPartition

from support.settled import changing
from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, LoginRefusedError
from tolerant_client.testing import (
    Drop,
    Duplicate,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reset,
    RewriteCorrelationId,
    Truncate,
)
from tolerant_client.testing.artifacts import java_executable

pytestmark = pytest.mark.broker

USER, PASSWORD, WRONG = "alice", "alice-canary-secret", "wrong-canary-secret"
STORE_PASSWORD = "store-secret"
REAUTH_MS = 2_500
PATIENCE = 40.0  # for a CI machine; nothing here takes a tenth of it when it works


class Certificate:
    """A self-signed certificate for 127.0.0.1, made by keytool: a key store for the broker, PEM for clients."""

    def __init__(self, folder: Path, name: str, *more: str, address: str = "ip:127.0.0.1") -> None:
        self.store, self.pem = folder / f"{name}.p12", folder / f"{name}.pem"
        self._keytool = str(Path(java_executable()).resolve().with_name("keytool"))
        subject = ["-dname", "CN=127.0.0.1", "-ext", f"san={address}", "-ext", "bc:c", "-validity", "2", *more]
        self._run("-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", *subject)
        self._run("-exportcert", "-rfc", "-file", str(self.pem))

    def _run(self, command: str, *arguments: str) -> None:
        common = ["-alias", "broker", "-keystore", str(self.store), "-storepass", STORE_PASSWORD]
        subprocess.run([self._keytool, command, *common, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    """Certificates by the listener that shows them."""
    folder = tmp_path_factory.mktemp("refused")
    expired = Certificate(folder, "expired", "-startdate", "-5d")
    return {"EXPIRED": expired, "OTHER_NAME": Certificate(folder, "other", address="dns:kafka.example.com")}


@pytest.fixture(scope="module")
def cluster(
    start_cluster: Callable[..., KafkaCluster], certificate: Certificate, refused: dict[str, Certificate]
) -> KafkaCluster:
    """PROXIED and SASL speak SASL in the clear; a PLAIN session of PROXIED lives for REAUTH_MS; MUTUAL wants certificates."""
    login = "org.apache.kafka.common.security"
    config = {"listener.name.proxied.plain.connections.max.reauth.ms": str(REAUTH_MS)}
    for name in ("proxied", "sasl", "sasl_tls"):
        config[f"listener.name.{name}.sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256"
        plain = f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        config[f"listener.name.{name}.plain.sasl.jaas.config"] = plain
        config[f"listener.name.{name}.scram-sha-256.sasl.jaas.config"] = f"{login}.scram.ScramLoginModule required;"
    shown = {name: certificate for name in ("TLS", "SASL_TLS", "MUTUAL")} | refused
    for name, one in ((listener.lower(), one) for listener, one in shown.items()):
        config[f"listener.name.{name}.ssl.keystore.location"] = str(one.store)
        config[f"listener.name.{name}.ssl.keystore.type"] = "PKCS12"
        config[f"listener.name.{name}.ssl.keystore.password"] = STORE_PASSWORD
    config["listener.name.mutual.ssl.client.auth"] = "required"
    listeners = {"PROXIED": "SASL_PLAINTEXT", "SASL": "SASL_PLAINTEXT", "TLS": "SSL", "SASL_TLS": "SASL_SSL"}
    listeners |= dict.fromkeys(("EXPIRED", "OTHER_NAME", "MUTUAL"), "SSL")
    cluster = start_cluster(broker_config=config, listeners=listeners, heap="256m")
    user = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD, 4096)
    with changing(cluster.bootstrap_servers) as admin:
        admin.alter_user_scram_credentials([user])
    return cluster


def login(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": password}


PLAIN = {"security_protocol": "SASL_PLAINTEXT", **login("PLAIN")}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "SASL PLAIN": ("SASL", PLAIN),
    "SASL SCRAM-SHA-256": ("SASL", {"security_protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-256")}),
    "TLS": ("TLS", {"security_protocol": "SSL"}),
    "TLS and SASL PLAIN": ("SASL_TLS", {"security_protocol": "SASL_SSL", **login("PLAIN")}),
    "TLS and SASL SCRAM-SHA-256": ("SASL_TLS", {"security_protocol": "SASL_SSL", **login("SCRAM-SHA-256")}),
}


class Traffic:
    """A producer and a consumer of one topic, and whether every record came once and in order."""

    def __init__(self, topic: str, **options: Any) -> None:
        admin = KafkaAdminClient(**options)
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()
        self._topic = topic
        self._futures: list[Any] = []
        self.values: list[int] = []
        self.producer = KafkaProducer(**options)
        self.consumer = KafkaConsumer(group_id=None, auto_offset_reset="earliest", **options)
        self.consumer.assign([TopicPartition(topic, 0)])

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
        self.producer.close(timeout=5)

    def send(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self._futures)
            self._futures.append(self.producer.send(self._topic, value, partition=0))

    def receive(self, timeout_ms: int = 100) -> None:
        for records in self.consumer.poll(timeout_ms=timeout_ms).values():
            self.values += [int(r.value) for r in records]

    def settle(self) -> None:
        """Waits until all that was sent is written and read, and checks it."""
        deadline = time.monotonic() + PATIENCE
        self.producer.flush(timeout=PATIENCE)
        while len(self.values) < len(self._futures) and time.monotonic() < deadline:
            self.receive(timeout_ms=500)
        self.receive()  # what came twice would be there now
        assert [f.value.offset for f in self._futures] == list(range(len(self._futures)))
        assert self.values == list(range(len(self._futures)))


@contextlib.contextmanager
def uncollected_sockets() -> Iterator[None]:
    """A client of kafka-python 3.0 that cannot be made leaves its event loop's own sockets to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.mark.parametrize("way", WAYS)
def test_records_are_written_and_read(cluster: KafkaCluster, certificate: Certificate, way: str) -> None:
    listener, options = WAYS[way]
    if listener.endswith("TLS"):
        options = {**options, "ssl_cafile": str(certificate.pem)}
    with Traffic(way.replace(" ", "-"), bootstrap_servers=cluster.servers_of(listener), **options) as traffic:
        traffic.send(50)
        traffic.settle()
        assert traffic.consumer.recovery_counters.of("retired") == 0


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("client", [KafkaConsumer, KafkaProducer, KafkaAdminClient])
@pytest.mark.parametrize(("mechanism", "answers"), [("PLAIN", 1), ("SCRAM-SHA-256", 2)])
def test_wrong_password_is_said_at_once_and_nowhere_repeated(
    cluster: KafkaCluster,
    certificate: Certificate,
    fault_proxy: Callable[..., FaultProxy],
    caplog: pytest.LogCaptureFixture,
    client: Callable[..., Any],
    mechanism: str,
    answers: int,
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy = fault_proxy(cluster=cluster)
    options = {"security_protocol": "SASL_PLAINTEXT", **login(mechanism, WRONG)}
    with pytest.raises(Errors.SaslAuthenticationFailedError) as raised:
        client(bootstrap_servers=proxy.bootstrap_servers, **options)
    assert proxy.responses["SaslAuthenticate"] == answers  # one attempt
    options = {"security_protocol": "SASL_SSL", "ssl_cafile": str(certificate.pem), **login(mechanism, WRONG)}
    with pytest.raises(Errors.SaslAuthenticationFailedError):
        client(bootstrap_servers=cluster.servers_of("SASL_TLS"), **options)
    logged = [record.getMessage() for record in caplog.records]
    assert logged
    assert not [text for text in (str(raised.value), repr(raised.value), *logged) if WRONG in text]


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(
    ("listener", "says"),
    [
        ("TLS", "self.signed certificate"),  # not in the truststore
        ("EXPIRED", "certificate has expired"),
        ("OTHER_NAME", "IP address mismatch"),
        ("MUTUAL", "ALERT_(BAD_CERTIFICATE|CERTIFICATE_REQUIRED)"),  # the broker refuses us
    ],
)
def test_tls_that_is_refused_is_told(
    cluster: KafkaCluster, certificate: Certificate, refused: dict[str, Certificate], listener: str, says: str
) -> None:
    trusted = {**refused, "MUTUAL": certificate, "TLS": refused["OTHER_NAME"]}[listener]
    options = {"security_protocol": "SSL", "ssl_cafile": str(trusted.pem)}
    servers = cluster.servers_of(listener)
    with pytest.raises(Errors.KafkaTimeoutError, match=says):
        KafkaProducer(bootstrap_servers=servers, bootstrap_timeout_ms=1_000, **options)
    began = time.monotonic()
    with Cluster({"bootstrap_servers": servers, **options}, name="source") as source:
        with pytest.raises(
            ClusterUnreachableError, match=f"source at {servers} .*{says}.*the TLS handshake was refused"
        ):
            source.run(source.cluster_id)
    assert time.monotonic() - began < PATIENCE / 4


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_mechanism_that_is_not_offered_is_told_with_those_that_are(cluster: KafkaCluster) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-512")}
    servers = cluster.servers_of("SASL")
    with pytest.raises(Errors.KafkaTimeoutError, match="offers (PLAIN or SCRAM-SHA-256|SCRAM-SHA-256 or PLAIN)"):
        KafkaProducer(bootstrap_servers=servers, bootstrap_timeout_ms=1_000, **options)
    began = time.monotonic()
    with Cluster({"bootstrap_servers": servers, **options}, name="source") as source:
        with pytest.raises(LoginRefusedError, match="sasl.mechanism is SCRAM-SHA-512, .*PLAIN.*correct sasl.mechanism"):
            source.run(source.cluster_id)
    assert time.monotonic() - began < PATIENCE / 4


@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(("listener", "protocol"), [("TLS", "PLAINTEXT"), ("SASL", "PLAINTEXT"), ("PLAINTEXT", "SSL")])
def test_listener_of_another_protocol_is_named_in_the_error(
    cluster: KafkaCluster, listener: str, protocol: str
) -> None:
    servers = cluster.servers_of(listener)
    with pytest.raises(Errors.KafkaError) as raised:
        KafkaProducer(bootstrap_servers=servers, security_protocol=protocol, bootstrap_timeout_ms=1000)
    assert servers in str(raised.value)


def test_sessions_are_renewed_under_faults_without_loss(
    cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy]
) -> None:
    faults = [
        fault(api=api, every=every, after=after)
        for api in ("Fetch", "Produce")
        for fault, every, after in ((Drop, 29, 5), (RewriteCorrelationId, 23, 9), (Duplicate, 19, 2), (Reset, 71, 40))
    ]
    proxy = fault_proxy(faults=faults, cluster=cluster)
    with Traffic("renewed", bootstrap_servers=proxy.bootstrap_servers, **PLAIN) as traffic:
        before = proxy.responses["SaslAuthenticate"]
        end = time.monotonic() + 3 * REAUTH_MS / 1000
        while time.monotonic() < end:
            traffic.send(5)
            traffic.receive(timeout_ms=20)
        renewed = proxy.responses["SaslAuthenticate"] - before
        traffic.settle()
    assert renewed >= 4  # two clients, twice at least: by renewal, or by connecting after a reset
    assert len({name.partition("/")[2] for name in proxy.injected}) >= 3


AUTHENTICATION = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
SPOILED: dict[str, Callable[..., Fault]] = {
    "drop": Drop,
    "wrong id": RewriteCorrelationId,
    "truncate": Truncate,
    "duplicate": Duplicate,
}


@pytest.mark.parametrize(
    ("fault", "api"),
    [
        # What is dropped is waited for until the client's timeout.
        pytest.param(fault, api, marks=[pytest.mark.long] if fault == "drop" and api != "ApiVersions" else [])
        for fault in SPOILED
        for api in AUTHENTICATION
    ],
)
def test_spoiled_authentication_ends_its_connection_and_nothing_else(
    cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy], api: str, fault: str
) -> None:
    proxy = fault_proxy(faults=[SPOILED[fault](api=api, every=4, count=2)], cluster=cluster)
    began = time.monotonic()
    with Traffic(f"{api}-{fault}".replace(" ", "-"), bootstrap_servers=proxy.bootstrap_servers, **PLAIN) as traffic:
        traffic.send(20)
        traffic.settle()
    print(f"{api} {fault}: {time.monotonic() - began:.1f} s, {proxy.injected}")
    assert proxy.injected_total >= 2


@pytest.mark.parametrize("name", ["lost", "wrong"])
def test_spoiled_renewal_of_a_session_ends_its_connection_and_nothing_else(
    cluster: KafkaCluster, fault_proxy: Callable[..., FaultProxy], name: str
) -> None:
    kinds = [Drop] if name == "lost" else [RewriteCorrelationId, Truncate, Duplicate]
    faults = [kind(api=api, after=n, count=1) for api in AUTHENTICATION[1:] for n, kind in enumerate(kinds)]
    proxy = fault_proxy(cluster=cluster)
    with Traffic(f"renewal-{name}", bootstrap_servers=proxy.bootstrap_servers, **PLAIN) as traffic:
        traffic.send(5)
        traffic.settle()
        proxy.faults = tuple(faults)  # all connections are authenticated: the next time is a renewal
        deadline = time.monotonic() + PATIENCE
        while proxy.injected_total < len(faults) and time.monotonic() < deadline:
            traffic.send(2)
            traffic.receive(timeout_ms=50)
        traffic.settle()
        counters = (traffic.producer.recovery_counters, traffic.consumer.recovery_counters)
    assert proxy.injected_total == len(faults)
    # A duplicate that comes when its request is settled and no other one waits is only dropped.
    assert sum(c.of("retired") for c in counters) >= sum(not isinstance(fault, Duplicate) for fault in faults)
