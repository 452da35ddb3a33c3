"""KafkaCluster: it starts, its nodes stop, die, freeze and come back, and nothing of it is left."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.testing import ClusterStartError, KafkaCluster

# Its tests end nodes, so they do not share the cluster of the session.
pytestmark = pytest.mark.broker

QUICK_TO_NOTICE = {"broker.session.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster(broker_config=QUICK_TO_NOTICE, heap="256m")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def create_topic(cluster: KafkaCluster, name: str, replicas: int = 1) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(name, 1, replicas)])
    admin.close()


def produce(cluster: KafkaCluster, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for value in values:
        producer.send(topic, value).get(20)
    producer.close()


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=15000
    )
    values = [record.value for _, record in zip(range(count), consumer)]
    consumer.close()
    return values


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie whose parent has not waited yet is dead enough.
    status = Path(f"/proc/{pid}/stat")
    try:
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False


def test_a_broker_maps_the_classes_of_an_earlier_one(cluster: KafkaCluster) -> None:
    assert ".jsa" in Path(f"/proc/{cluster.pid(1)}/maps").read_text()


def test_records_outlive_a_stop_and_a_kill(cluster: KafkaCluster) -> None:
    create_topic(cluster, "restarts")
    produce(cluster, "restarts", b"1")
    before = cluster.bootstrap_servers
    for end in (cluster.stop, cluster.kill):
        pid = cluster.pid(1)
        assert pid is not None
        end(1)
        assert cluster.pid(1) is None and not is_alive(pid)
        cluster.restart(1)
        assert cluster.bootstrap_servers == before
    produce(cluster, "restarts", b"2")
    assert consume(cluster, "restarts", 2) == [b"1", b"2"]
    assert "Kafka Server started" in cluster.log_file(1).read_text()


def test_paused_node_is_silent_until_it_is_resumed(cluster: KafkaCluster) -> None:
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    api_versions = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    cluster.pause(1)
    with socket.create_connection(("127.0.0.1", port), timeout=0.3) as connection:
        connection.sendall(api_versions)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        cluster.resume(1)
        connection.settimeout(10)
        assert connection.recv(1) == b"\0"
    cluster.wait_ready()


def test_both_listeners_advertise_what_they_should(cluster: KafkaCluster) -> None:
    listening, advertised = cluster.proxied[1]
    properties = (cluster.work_dir / "node-1" / "server.properties").read_text()
    assert f"PROXIED\\://127.0.0.1\\:{listening}" in properties
    assert f"PROXIED\\://127.0.0.1\\:{advertised}" in properties
    assert len({listening, advertised, int(cluster.bootstrap_servers.rpartition(":")[2])}) == 3


def test_unknown_node_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(ValueError, match="node_id is 2: this cluster has 1"):
        cluster.kill(2)


@pytest.fixture
def refused_connections() -> Iterator[None]:
    """kafka-python 3.0 leaves the socket of a refused connection to the garbage collector.

    Its log records, which pytest keeps, hold the exceptions that hold the sockets.
    """
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("refused_connections")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_three_nodes_survive_the_loss_of_one(cluster: KafkaCluster) -> None:
    with KafkaCluster(nodes=3, broker_config=QUICK_TO_NOTICE, heap="256m") as cluster:
        assert cluster.node_ids == (1, 2, 3)
        create_topic(cluster, "replicated", replicas=3)
        produce(cluster, "replicated", b"1")
        cluster.kill(2)
        produce(cluster, "replicated", b"2")
        pids = [pid for pid in map(cluster.pid, cluster.node_ids) if pid is not None]
        assert len(pids) == 2
        assert consume(cluster, "replicated", 2) == [b"1", b"2"]
        work_dir = cluster.work_dir
    assert not any(map(is_alive, pids))
    assert not work_dir.exists()


def test_given_work_dir_is_kept_and_used_again(tmp_path: Path, cluster: KafkaCluster) -> None:
    kept = {"work_dir": tmp_path / "kept", "broker_config": QUICK_TO_NOTICE, "heap": "256m"}
    with KafkaCluster(**kept) as first:  # type: ignore[arg-type]
        create_topic(first, "kept")
        produce(first, "kept", b"1")
    with KafkaCluster(**kept) as second:  # type: ignore[arg-type]
        assert consume(second, "kept", 1) == [b"1"]


def test_port_in_use_is_said(cluster: KafkaCluster, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(ClusterStartError, match=f"Port {port} is in use"):
        KafkaCluster(ports=[port]).start()


def test_broken_configuration_shows_the_end_of_the_log(cluster: KafkaCluster, tmp_path: Path) -> None:
    broken = KafkaCluster(broker_config={"num.io.threads": "none"}, work_dir=tmp_path)
    with pytest.raises(ClusterStartError, match=r"num\.io\.threads"):
        broken.start()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"nodes": 2}, "1 or 3 nodes"),
        ({"ports": [1, 2]}, "2 ports for 1 nodes"),
        ({"broker_config": {"listeners": "x"}}, "sets listeners"),
        ({"listeners": {"PLAINTEXT": "SSL"}}, "the name 'PLAINTEXT'"),
        ({"listeners": {"TLS": "TLS"}}, "the protocol 'TLS': choose from PLAINTEXT, SSL"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        KafkaCluster(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "sentence"), [("2.8.2", "without ZooKeeper"), ("newest", "is not a Kafka version")]
)
def test_versions_that_cannot_run_are_refused(version: str, sentence: str) -> None:
    with pytest.raises(ClusterStartError, match=sentence):
        KafkaCluster(version).start()


def test_cluster_that_does_not_run_says_so() -> None:
    cluster = KafkaCluster()
    cluster.close()
    with pytest.raises(ClusterStartError, match="is not running"):
        cluster.bootstrap_servers  # noqa: B018


PARENT = """
import sys
from tolerant_client.testing import KafkaCluster
cluster = KafkaCluster(heap="256m").start()
cluster.pause(1)
print(cluster.pid(1), cluster.work_dir, flush=True)
sys.stdin.read()
"""


def test_kill_of_the_parent_leaves_nothing(cluster: KafkaCluster) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, work_dir = parent.stdout.readline().split()
        assert is_alive(int(pid))
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (is_alive(int(pid)) or Path(work_dir).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(pid)) and not Path(work_dir).exists()


@pytest.mark.parametrize("on_lane", [False, True])
def test_a_node_that_the_cluster_does_not_have_is_named_and_no_wrong_address(
    cluster: KafkaCluster, on_lane: bool
) -> None:
    with Cluster({"bootstrap_servers": cluster.bootstrap_servers}, name="target", patience_ms=1_500) as target:

        async def ask() -> None:
            await target.connect()
            await target.send(metadata_request([]), target.lane("fetch", 99) if on_lane else 99)

        with pytest.raises(ClusterUnreachableError) as caught:
            target.run(target.insist, "describing", ask)
    said = "was reached, but describing failed for 2 s (node 99 is not among the nodes of the target): start that broker; if it was"
    assert said in str(caught.value) and "address" not in str(caught.value)
