"""manager.py and clients.py on a fake broker behind a real port, in the clear and with TLS."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.inet import KafkaNetSocket
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse
from kafka.structs import TopicPartition

from spark_integration.cli.exits import exit_code
from support import fake_broker
from support.certificate import self_signed
from support.fake_broker import FakeBroker, batch, correlation_id_of, serve, set_correlation_id
from tolerant_client import KafkaConsumer, KafkaProducer, RecoveryPolicy
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import RawFetch
from tolerant_client.cluster.produce import RawProduce
from tolerant_client.errors import ClusterUnreachableError, LoginRefusedError, OptionError, SslAuthenticationError
from tolerant_client.stock import manager as manager_module
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.tracker.events import Event


@pytest.fixture
def net() -> Iterator[NetworkSelector]:
    net = NetworkSelector()
    yield net
    net.drain()
    net.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("is_tls", [False, True], ids=["clear", "tls"])
def test_large_batches_come_and_go_through_one_connection(
    net: NetworkSelector, is_tls: bool, request: pytest.FixtureRequest
) -> None:
    broker = FakeBroker()
    tls = None
    options: dict[str, Any] = {}
    if is_tls:
        pem = request.getfixturevalue("certificate")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pem)
        options = {"security_protocol": "SSL", "ssl_cafile": str(pem)}
    partitions = [TopicPartition("t", n) for n in range(3)]
    payload = bytes(range(256)) * 8000
    with serve(broker, tls) as address:
        manager = TolerantConnectionManager(net, bootstrap_servers=address, **options)

        async def go() -> Any:
            await manager.bootstrap_async(timeout_ms=10_000)
            connection = await manager.get_connection(1)
            records = {p: memoryview(batch(7, 0, payload=payload)) for p in partitions}
            produced = await connection.send_request(RawProduce(7, records, 1000))
            wanted = RawFetch(
                11, dict.fromkeys(partitions, 0), max_wait_ms=500, max_bytes=1 << 26, partition_max_bytes=1 << 26
            )
            return produced, await connection.send_request(wanted)

        produced, fetched = net.run(go)
        manager.close()
    assert [p.base_offset for p in produced] == [0, 0, 0]
    assert [bytes(p.records) for p in fetched.partitions] == [batch(7, 0, payload=payload)] * 3


def test_tls_to_a_plain_listener_fails_with_a_message(net: NetworkSelector, certificate: Path) -> None:
    with serve(FakeBroker()) as address:
        manager = TolerantConnectionManager(
            net, bootstrap_servers=address, security_protocol="SSL", ssl_cafile=str(certificate)
        )

        async def go() -> None:
            node = manager.cluster.bootstrap_brokers()[0].node_id
            await manager.get_connection(node, timeout_ms=500)

        with pytest.raises(Errors.KafkaConnectionError):
            net.run(go)
        manager.close()


def test_retired_connection_that_served_a_request_is_replaced_at_once(net: NetworkSelector) -> None:
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1")
    for _ in range(5):
        manager._back_off_from_useless(SimpleNamespace(node_id=1, is_retired=True, has_served=True))
        assert manager.connection_delay(1) == 0
    manager.close()


def test_retired_connection_that_served_nothing_costs_no_more_than_reconnect_backoff(net: NetworkSelector) -> None:
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=50)
    for _ in range(10):
        manager._back_off_from_useless(SimpleNamespace(node_id=1, is_retired=True, has_served=False))
        assert 0 < manager.connection_delay(1) <= 0.050 * 1.2  # kafka-python's jitter
    manager._backoff.clear()
    manager._back_off_from_useless(SimpleNamespace(node_id=1, is_retired=False, has_served=False))
    assert manager.connection_delay(1) == 0
    manager.close()


def test_connections_that_go_wrong_after_every_response_are_replaced_without_a_pause(net: NetworkSelector) -> None:
    broker = FakeBroker()
    answered: Counter[bytes] = Counter()

    def spoil(name: str, frame: bytes) -> list[bytes]:
        if name != "ListOffsets":
            return [frame]
        answered[b"ListOffsets"] += 1
        if answered[b"ListOffsets"] % 2:
            return [frame]
        return [set_correlation_id(frame, correlation_id_of(frame) + 3)] * 2

    broker.spoil = spoil
    with serve(broker) as address:
        manager = TolerantConnectionManager(net, bootstrap_servers=address)

        async def go() -> None:
            await manager.bootstrap_async(timeout_ms=10_000)
            for _ in range(4):
                assert manager.connection_delay(1) == 0
                connection = await manager.get_connection(1)
                await connection.send_request(ListOffsetsRequest(replica_id=-1, topics=[]))
                with pytest.raises(Errors.KafkaConnectionError):
                    await connection.send_request(ListOffsetsRequest(replica_id=-1, topics=[]))
                assert connection.is_retired
                assert connection.has_served

        net.run(go)
        manager.close()


def test_node_whose_probes_prove_nothing_is_not_probed_on_any_connection(net: NetworkSelector) -> None:
    broker = FakeBroker()
    with serve(broker) as address:
        manager = TolerantConnectionManager(net, bootstrap_servers=address)

        async def go() -> None:
            await manager.bootstrap_async(timeout_ms=10_000)
            connection = await manager.get_connection(1)
            assert connection.in_flight_requests.question is not None
            connection.in_flight_requests.is_disproved = True
            await connection.send_request(ListOffsetsRequest(replica_id=-1, topics=[]))
            connection.close()
            assert (await manager.get_connection(1)).in_flight_requests.question is None

        net.run(go)
        manager.close()


def test_response_before_sending_anything_retires_and_is_counted(net: NetworkSelector) -> None:
    broker = FakeBroker()
    seen: list[Event] = []
    broker.spoil = lambda name, frame: [set_correlation_id(frame, correlation_id_of(frame) ^ 1)]
    with serve(broker) as address:
        manager = TolerantConnectionManager(net, bootstrap_servers=address, recovery_listener=seen.append)
        with pytest.raises(Errors.KafkaTimeoutError):
            manager.bootstrap(timeout_ms=500)
        manager.close()
    assert {"orphan", "retired"} <= {event.kind for event in seen}
    assert manager.recovery_counters.of("retired") == sum(event.kind == "retired" for event in seen)


@pytest.mark.parametrize("client", [KafkaConsumer, KafkaProducer])
def test_drop_ins_still_refuse_options_that_nobody_knows(client: Any) -> None:
    with pytest.raises((ValueError, Errors.KafkaError), match="no_such_option"):
        client(bootstrap_servers="127.0.0.1:1", no_such_option=1)


def test_consumer_takes_our_options() -> None:
    broker = FakeBroker()
    seen: list[Event] = []
    with serve(broker) as address:
        consumer = KafkaConsumer(
            bootstrap_servers=address,
            recovery_policy=RecoveryPolicy(reorder_grace_ms=50),
            recovery_listener=seen.append,
        )
        assert consumer._client._manager.recovery_policy.reorder_grace_ms == 50
        consumer.close()
    assert consumer.recovery_counters.of("completed", "ApiVersions") >= 1
    assert all(event.kind == "completed" for event in seen)


def test_policy_that_means_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="recovery_listener is 5: give a function"):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", recovery_listener=5)
    with pytest.raises(ValueError, match="max_resends"):
        RecoveryPolicy(max_resends=-1)
    with pytest.raises(ValueError, match="probe_max_ms"):
        RecoveryPolicy(probe_min_ms=10, probe_max_ms=1)


def test_fake_batch_is_as_long_as_it_says() -> None:
    assert struct.unpack_from(">i", batch(1, 0, payload=b"abc"), 8)[0] == len(batch(1, 0, payload=b"abc")) - 12


def test_every_attempt_to_connect_has_all_the_time_that_stock_gives_it(net: NetworkSelector) -> None:
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1")
    assert manager._setup_seconds(1, None) == 10.0
    assert manager._setup_seconds(1, 2_000) == 2.0
    broker = FakeBroker()
    with serve(broker) as address:
        known = TolerantConnectionManager(net, bootstrap_servers=address)
        known.bootstrap(timeout_ms=5_000)

        async def connect() -> None:
            await known.get_connection(1)

        net.run(connect)
        assert known._setup_seconds(1, None) == 10.0
        known._backoff[1] = (2, 0.0, 20_000.0)  # it needs more than 10 s, and its steps get as much
        known._conns[1].close()
        assert known.get_connection(1)._setup_timeout == 20.0
        known.close()
    manager.close()


def test_an_address_that_swallows_everything_leaves_time_for_the_next(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowing = socket.create_server(("127.0.0.1", 0), backlog=0)
    silent = swallowing.getsockname()
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:  # its backlog is full: it completes no more handshakes
        filler.setblocking(False)
        filler.connect_ex(silent)
    broker = FakeBroker()
    with serve(broker) as address:
        good = (broker.host, broker.port)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in (silent, good)]
        monkeypatch.setattr(KafkaNetSocket, "dns_lookup", lambda self, host, port, raise_error=False: found)
        manager = TolerantConnectionManager(net, bootstrap_servers=address)
        began = time.monotonic()
        manager.bootstrap(timeout_ms=2_000)
        assert time.monotonic() - began < 2.0
        manager.close()
    for sock in (*fillers, swallowing):
        sock.close()


def test_an_attempt_that_runs_out_of_time_does_not_replace_what_an_earlier_one_has_told(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallow(self: Any, net: Any, sock: Any, address: Any, timeout_at: float | None = None) -> Any:
        if told:
            await net.sleep(max(0.0, (timeout_at or 0.0) - time.monotonic()))
            raise Errors.KafkaTimeoutError("Connection timed out")
        told.append(address)
        raise Errors.KafkaConnectionError("104 ECONNRESET")

    told: list[Any] = []
    monkeypatch.setattr(KafkaNetSocket, "sock_connect", swallow)
    for why in ("1 of 1 addresses failed: .*ECONNRESET$", "1 of 1 addresses did not respond: .*Connection timed out$"):
        manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=20)
        with pytest.raises(Errors.KafkaTimeoutError, match=why):
            manager.bootstrap(timeout_ms=500)
        manager.close()


def silent() -> socket.socket:
    """A listener whose process is frozen: the kernel accepts connections."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


def test_an_address_that_does_not_respond_holds_up_no_other_one(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(FakeBroker()) as address, silent() as first, silent() as second:
        frozen = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
        monkeypatch.setattr(manager_module.random, "choice", lambda found: found[0])  # the frozen ones are tried first
        manager = TolerantConnectionManager(net, bootstrap_servers=[*frozen, address])
        began = time.monotonic()
        manager.bootstrap(timeout_ms=4_500)  # each alone has 10 s
        assert manager.bootstrapped and time.monotonic() - began < 4.5
        assert not any(str(node).startswith("bootstrap") for node in manager._conns)
        manager.close()


def test_an_address_that_never_tells_of_the_brokers_holds_up_no_other_one(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = FakeBroker()
    frozen.ignore = lambda name, frame: name == "Metadata"
    with serve(frozen) as first, serve(FakeBroker()) as second:
        manager = TolerantConnectionManager(net, bootstrap_servers=[first, second])
        ports = {broker.node_id: broker.port for broker in manager.cluster.bootstrap_brokers()}
        monkeypatch.setattr(
            manager_module.random, "choice", lambda found: min(found, key=lambda n: ports[n] != frozen.port)
        )
        manager.bootstrap(timeout_ms=4_500)
        assert manager.bootstrapped and "Metadata" in frozen.names()
        manager.close()


def test_a_controller_among_the_addresses_does_not_end_the_attempt_at_a_broker(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(manager: TolerantConnectionManager, node_id: Any, deadline: float | None) -> None:
        await manager._net.sleep(0.0 if node_id.endswith("0") else 0.3)
        if node_id.endswith("0"):
            raise Errors.IncompatibleBrokerVersion("a controller")

    monkeypatch.setattr(manager_module.random, "choice", lambda found: found[0])
    monkeypatch.setattr(TolerantConnectionManager, "_try_address", answer)
    manager = TolerantConnectionManager(net, bootstrap_servers=["127.0.0.1:1", "127.0.0.1:2"])
    manager.bootstrap(timeout_ms=4_500)
    manager.close()
    alone = TolerantConnectionManager(net, bootstrap_servers=["127.0.0.1:1"])
    with pytest.raises(Errors.IncompatibleBrokerVersion, match="a controller"):
        alone.bootstrap(timeout_ms=4_500)
    alone.close()


def test_it_is_told_how_many_addresses_failed_and_how_many_did_not_respond(net: NetworkSelector) -> None:
    with silent() as listener:
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}", "127.0.0.1:1"]
        manager = TolerantConnectionManager(net, bootstrap_servers=addresses)
        with pytest.raises(
            Errors.KafkaTimeoutError, match="1 of 2 addresses failed: .*REFUSED; 1 of 2 addresses did not respond"
        ):
            manager.bootstrap(timeout_ms=2_500)
        assert not manager.is_misunderstood
        manager.close()


def test_a_cluster_that_dies_is_told_with_its_address_and_why_no_broker_is_connected_to() -> None:
    with serve(FakeBroker()) as address:
        cluster = Cluster({"bootstrap_servers": address}, name="source", patience_ms=1_000)
        cluster.run(cluster.connect)
    with cluster:
        cluster.drop_connections("the broker was killed")
        with pytest.raises(
            ClusterUnreachableError, match=f"source at {address} could not be .*{address}.*REFUSED"
        ) as raised:
            cluster.run(cluster.require_broker)
        assert raised.value.cluster == "source"
        with pytest.raises(Errors.NodeNotReadyError, match=f"unable to connect to {address}"):
            cluster.manager.get_connection(1)


@pytest.mark.parametrize("user", ["mirror", None])
def test_a_refused_login_names_the_cluster_its_address_the_user_and_what_to_correct(
    user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise Errors.SaslAuthenticationFailedError("SaslAuthenticationFailedError: Invalid username or password")

    monkeypatch.setattr(TolerantConnectionManager, "bootstrap_async", refuse)
    config = {"bootstrap_servers": ["b:1", "b:2"], "sasl_plain_username": user, "sasl_mechanism": "PLAIN"}
    with Cluster(config, name="target") as cluster, pytest.raises(LoginRefusedError) as raised:
        cluster.run(cluster.insist, "reading", cluster.connect)
    who = "the login of user mirror" if user else "our login (PLAIN)"
    assert str(raised.value) == (
        f"The target at b:1,b:2 refuses {who}: Invalid username or password; correct sasl.jaas.config in the client"
        " properties of the target, or the user on its brokers"
    )
    assert (raised.value.cluster, exit_code(raised.value)) == ("target", 2)
    cause = raised.value.__cause__
    assert isinstance(cause, Errors.SaslAuthenticationFailedError) and not isinstance(cause, LoginRefusedError)


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """Gives the token that it was made with."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"exp": 1_700_000_000, "sub": "canary"}, "; our token expired at 2023-11-14 22:13:20 UTC"),
        ({"exp": 4_000_000_000}, ""),
        (None, ""),
    ],
)
def test_a_refused_token_is_told_with_its_end_and_where_it_comes_from(
    claims: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise Errors.SaslAuthenticationFailedError('{"status":"invalid_token"}')

    monkeypatch.setattr(TolerantConnectionManager, "bootstrap_async", refuse)
    token = (
        "opaque-canary" if claims is None else f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}."
    )
    config = {"bootstrap_servers": "b:1", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens(token)}
    with Cluster(config, name="sink") as cluster, pytest.raises(LoginRefusedError) as raised:
        cluster.run(cluster.insist, "reading", cluster.connect)
    assert str(raised.value) == (
        f'The sink at b:1 refuses our login (OAUTHBEARER): {{"status":"invalid_token"}}{words}; correct'
        " sasl.oauthbearer.* (where our token comes from) in the client properties of the sink, or what its brokers want of"
        " a token"
    )
    assert "canary" not in str(raised.value)


def test_a_node_that_is_not_ready_is_told_with_the_reason_that_is_known() -> None:
    with Cluster({"bootstrap_servers": "b:1"}, name="source") as cluster:
        cluster.manager._failures["2"] = Errors.KafkaConnectionError("node 2 was killed an hour ago")
        own = Errors.NodeNotReadyError("node 3 of the source is not in the metadata")
        assert "(node 3 of the source is not in the metadata)" in str(cluster.unreachable(60_000, own))
        for error in (Errors.NodeNotReadyError(3), Errors.NodeNotReadyError("metadata"), Errors.NodeNotReadyError()):
            assert "node 2 was killed an hour ago" in str(cluster.unreachable(60_000, error))


def test_a_cluster_whose_brokers_name_no_coordinator_was_reached() -> None:
    with Cluster({"bootstrap_servers": "b:1"}, name="sink") as cluster:
        told = str(cluster.unreachable(60_000, Errors.CoordinatorNotAvailableError("15"), "beginning a transaction"))
        assert (
            "The sink at b:1 was reached, but beginning a transaction failed for 60 s" in told
            and "replication factor" in told
        )


def test_a_cluster_that_has_moved_is_found_at_a_bootstrap_address_and_connected_to(net: NetworkSelector) -> None:
    long_ms = dict.fromkeys(("reconnect_backoff_ms", "reconnect_backoff_max_ms"), 60_000)  # no machine is that slow
    with serve(FakeBroker()) as first:
        options: dict[str, Any] = {**long_ms, "metadata_recovery_strategy": "none"}  # nobody asks but this test
        manager = TolerantConnectionManager(net, bootstrap_servers=first, **options)
        net.run(manager.bootstrap_async, 10_000)

        async def connect() -> Any:
            return await manager.get_connection(1)

        former = net.run(connect)
    with serve(FakeBroker()) as second:
        metadata = manager.cluster
        metadata.config["bootstrap_servers"] = second
        metadata._bootstrap_brokers = metadata._generate_bootstrap_brokers()
        manager.update_backoff(1)
        net.run(partial(manager.rebootstrap, resets=False))
        (broker,) = metadata.brokers()
        assert f"{broker.host}:{broker.port}" == second != first
        assert former.closed and not manager.connection_delay(1) and not manager.is_misunderstood
        assert net.run(connect).connected
        manager.update_backoff(1)
        for resets in (False, True):  # the same address: it may be out of our reach
            net.run(partial(manager.rebootstrap, resets=resets))
            assert bool(manager.connection_delay(1)) != resets
    manager.close()


_LONG_MS = 30_000  # as long as a client would wait that does not see that waiting is in vain
_SOON_S = 10.0


def tls_server(certificate: Path, *, wants: Path | None = None) -> ssl.SSLContext:
    """The TLS of a broker, which may want a certificate of its clients."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    if wants is not None:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(wants)
    return tls


@pytest.mark.parametrize("kind", ["stranger", "name", "without ours"])
def test_tls_that_is_refused_ends_a_command_at_once_and_a_client_as_late_as_stock(certificate: Path, kind: str) -> None:
    """Not as a wrong protocol: who goes without TLS instead sends the password to whoever listens there."""
    trusted = {} if kind == "stranger" else {"ssl_cafile": str(certificate)}
    with serve(FakeBroker(), tls_server(certificate, wants=certificate if kind == "without ours" else None)) as address:
        address = address.replace("127.0.0.1", "localhost") if kind == "name" else address
        config = {"bootstrap_servers": address, "security_protocol": "SSL", **trusted}
        began = time.monotonic()
        with Cluster(config, name="source") as client:
            with pytest.raises(ClusterUnreachableError, match=r"CERTIFICATE.*check the broker's certificate") as told:
                client.run(client.connect, _LONG_MS)
        assert "security.protocol" not in str(told.value)
        assert time.monotonic() - began < _SOON_S
        with pytest.raises(Errors.KafkaTimeoutError, match="CERTIFICATE") as failed:
            KafkaProducer(bootstrap_timeout_ms=1_000, **config)  # as long as stock: it may be renewed
        assert isinstance(failed.value.__cause__, SslAuthenticationError)


@pytest.mark.parametrize("makes", [None, KafkaProducer])
def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are(makes: Any) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "mirror"}
    began = time.monotonic()
    with serve(FakeBroker()) as address:
        config = {"bootstrap_servers": address, "sasl_plain_password": "secret", **login}
        if makes is None:
            told = (
                f"The source at {address} refuses the login of user mirror: sasl.mechanism is PLAIN, and the broker offers"
                " SCRAM-SHA-256 or SCRAM-SHA-512; correct sasl.mechanism and sasl.jaas.config in the client properties of the"
                " source"
            )
            with Cluster(config, name="source") as client, pytest.raises(LoginRefusedError) as raised:
                client.run(client.connect, _LONG_MS)
            assert str(raised.value) == told
        else:
            with pytest.raises(
                Errors.KafkaTimeoutError, match="sasl_mechanism is PLAIN, .* offers SCRAM-SHA-256 or SCRAM"
            ):
                makes(bootstrap_timeout_ms=1_000, **config)  # as long as stock: a rolling restart may add it
    assert time.monotonic() - began < _SOON_S


class Refusing(FakeBroker):
    """Refuses the mechanism or the login for as long as it is told to."""

    mechanism_error = login_error = 0

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        response = super()._answer_Metadata(request, version)
        topic_class = MetadataResponse.MetadataResponseTopic
        partition = topic_class.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
        )  # fmt: skip
        response.topics = [topic_class(error_code=0, name="orders", is_internal=False, partitions=[partition])]
        return response

    def _answer_SaslHandshake(self, request: Any, version: int) -> Any:
        offered = ["SCRAM-SHA-512"] if self.mechanism_error else ["PLAIN"]
        return SaslHandshakeResponse(version=version, error_code=self.mechanism_error, mechanisms=offered)

    def _answer_SaslAuthenticate(self, request: Any, version: int) -> Any:
        return SaslAuthenticateResponse(version=version, error_code=self.login_error, auth_bytes=b"")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mechanism", Errors.UnsupportedSaslMechanismError), ("login", Errors.SaslAuthenticationFailedError)],
)
def test_a_producer_whose_login_is_refused_for_some_seconds_goes_on_within_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, kind: Any
) -> None:
    """The thread that sends drives the event loop: an error that throws it out of its turn would come again, for ever."""
    for requests, request in ((fake_broker._REQUESTS, SaslAuthenticateRequest), (fake_broker.API_VERSIONS, (0, 1))):
        monkeypatch.setitem(requests, SaslAuthenticateRequest.API_KEY, request)  # type: ignore[arg-type]
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "mirror", "sasl_plain_password": "secret"}
    broker = Refusing()
    with serve(broker) as address:
        producer = KafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            enable_idempotence=False,
            max_block_ms=10_000,
            **login,
        )
        producer.send("orders", b"first").get(10)
        manager = producer._sender._client._manager
        setattr(broker, f"{name}_error", kind.errno)
        for connection in list(manager._conns.values()):
            manager.call_soon(connection.close)
        record = producer.send("orders", b"second")
        time.sleep(3.0)  # the backoff grows from 0.05 s to seconds meanwhile
        assert not record.is_done and 3 <= broker.names().count("SaslHandshake") < 15
        setattr(broker, f"{name}_error", 0)
        began = time.monotonic()
        record.get(20)
        assert time.monotonic() - began < _SOON_S
        producer.close()
    assert not [record for record in caplog.records if "Uncaught error" in record.getMessage()]


@pytest.mark.parametrize("kind", [SslAuthenticationError, Errors.UnsupportedSaslMechanismError])
@pytest.mark.parametrize(("ends_refused", "goes_on"), [(False, True), (True, False)])
def test_a_refusal_that_a_restart_cures_ends_no_client_that_stock_lets_through(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch, kind: Any, ends_refused: bool, goes_on: bool
) -> None:
    said = iter([kind("refused")] * (8 if goes_on else 80))

    async def attempt(*_: object) -> None:
        for error in said:
            raise error

    monkeypatch.setattr(TolerantConnectionManager, "_try_address", attempt)
    manager = TolerantConnectionManager(net, bootstrap_servers=["127.0.0.1:1", "127.0.0.1:2"])
    manager.ends_refused = ends_refused
    with contextlib.nullcontext() if goes_on else pytest.raises(kind):
        manager.bootstrap(timeout_ms=5_000)
    manager.close()


def test_one_address_that_refuses_us_ends_nothing_while_another_is_away(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be restarting, and be the one that takes us."""

    async def attempt(_: object, node_id: str, *__: object) -> None:
        if node_id.endswith("0"):
            raise Errors.UnsupportedSaslMechanismError("not offered")
        raise Errors.KafkaConnectionError("ECONNREFUSED")

    monkeypatch.setattr(TolerantConnectionManager, "_try_address", attempt)
    manager = TolerantConnectionManager(net, bootstrap_servers=["127.0.0.1:1", "127.0.0.1:2"], reconnect_backoff_ms=20)
    manager.ends_refused = True
    with pytest.raises(Errors.KafkaTimeoutError, match="2 of 2 addresses failed: 127.0.0.1:[12]: .*not offered"):
        manager.bootstrap(timeout_ms=1_000)
    manager.close()


def test_a_handshake_that_is_cut_is_tried_again(certificate: Path) -> None:
    with serve(FakeBroker(), tls_server(certificate)) as address:
        broker = int(address.rpartition(":")[2])

        class CuttingFirst(socketserver.BaseRequestHandler):
            """Resets or ends connections in the handshake, some more often than a refusal is believed; then hands them on."""

            left = ["reset", "end"] * 3

            def handle(self) -> None:
                if self.left:
                    self.request.recv(100)
                    if self.left.pop() == "reset":
                        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                with socket.create_connection(("127.0.0.1", broker)) as behind:
                    there = threading.Thread(target=pass_on, args=(self.request, behind))
                    there.start()
                    pass_on(behind, self.request)
                    there.join()

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), CuttingFirst) as listener:
            threading.Thread(target=listener.serve_forever, daemon=True).start()
            front = f"127.0.0.1:{listener.server_address[1]}"
            config = {"bootstrap_servers": front, "security_protocol": "SSL", "ssl_cafile": str(certificate)}
            with Cluster(config) as client:
                client.run(client.connect, _LONG_MS)
            assert not CuttingFirst.left
            listener.shutdown()


def pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_RDWR)


def test_a_known_node_whose_certificate_is_refused_is_told_as_that(certificate: Path) -> None:
    """It is tried for as long as one that is away: its certificate may be renewed meanwhile."""
    with serve(FakeBroker(), tls_server(certificate)) as address:
        broker = FakeBroker()
        with serve(broker, tls_server(certificate)) as front:
            broker.host, broker.port = "localhost", int(address.rpartition(":")[2])  # not the name in its certificate
            config = {"bootstrap_servers": front, "security_protocol": "SSL", "ssl_cafile": str(certificate)}
            with Cluster(config, patience_ms=500) as client:
                client.run(client.connect)

                async def ask() -> None:
                    await client.insist("asking", partial(client.send, ListOffsetsRequest(replica_id=-1, topics=[]), 1))

                with pytest.raises(ClusterUnreachableError, match=r"CERTIFICATE.*check the broker's certificate"):
                    client.run(ask)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (Errors.KafkaConnectionError("unable to connect: timed out"), "certificate has expired"),
        (Errors.KafkaConnectionError("unable to connect: ECONNREFUSED"), "certificate has expired"),
        (Errors.RequestTimedOutError("SaslHandshake had no response"), "certificate has expired"),
        (SslAuthenticationError("unknown CA"), "unknown CA"),
    ],
)
def test_a_refusal_says_more_than_the_silence_of_a_later_attempt(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch, later: Exception, told: str
) -> None:
    said = iter([SslAuthenticationError("certificate has expired")])

    async def fail(*_: object) -> None:
        raise next(said, later)

    monkeypatch.setattr(TolerantConnectionManager, "_try_address", fail)
    manager = TolerantConnectionManager(net, bootstrap_servers=["127.0.0.1:1"], reconnect_backoff_ms=20)
    with pytest.raises(Errors.KafkaTimeoutError, match=told) as raised:
        manager.bootstrap(timeout_ms=500)
    assert isinstance(raised.value.__cause__, SslAuthenticationError)
    manager.close()


class Closing(socketserver.BaseRequestHandler):
    """Closes any connection that sends something."""

    def handle(self) -> None:
        self.request.recv(1)


def test_a_listener_that_breaks_off_is_told_as_one_that_speaks_another_protocol(certificate: Path) -> None:
    with serve(FakeBroker(), tls_server(certificate)) as address, Cluster({"bootstrap_servers": address}) as plain:
        with pytest.raises(
            ClusterUnreachableError, match="closes them: check that security.protocol=PLAINTEXT is what"
        ):
            plain.run(plain.connect, 3_000)
    with socketserver.ThreadingTCPServer(
        ("127.0.0.1", 0), Closing
    ) as listener:  # as a broker does to a frame of 350 MB
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{listener.server_address[1]}"
        config = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_cafile": str(certificate)}
        with (
            Cluster(config) as secured,
            pytest.raises(ClusterUnreachableError, match="check that security.protocol=SSL is what"),
        ):
            secured.run(secured.connect, 3_000)
        listener.shutdown()
    with Cluster({"bootstrap_servers": "127.0.0.1:1"}) as nobody:
        with pytest.raises(ClusterUnreachableError, match="check that its brokers run and that this address is right"):
            nobody.run(nobody.connect, 500)
