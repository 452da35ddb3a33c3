"""A network that delivers nothing for half a minute: what was sent before is not appended after everybody has gone on.

Linux only, as root: the mirror runs in a network namespace, behind one that routes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kafka.structs import TopicPartition

from support.log_readers import read_with_confluent
from support.mirror_link import append_records, create_topic
from support.tree import SUPPORT
from tolerant_client.testing import KafkaCluster, cluster, node

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="makes network namespaces"),
]

BROKERS, CLIENT = "10.213.1.1", "10.213.2.1"
# Producers are forgotten after a second, if their records are old.
FORGETS_PRODUCERS = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "200"}
CUT_S = 28  # TCP sends again 25.6 s after it first did, and then 51.2 s
OVER_S = 75  # since the cut


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    """Where a client of BROKERS runs; another namespace routes between them."""
    client, router = (f"tolerant-{os.getpid()}-{name}" for name in ("client", "router"))
    with ExitStack() as made:
        for name in (client, router):
            ip("netns", "add", name)
            made.callback(ip, "netns", "del", name)
        ip("link", "add", "brokers", "type", "veth", "peer", "name", "to-brokers", "netns", router)
        ip("link", "add", "client", "netns", client, "type", "veth", "peer", "name", "to-client", "netns", router)
        ip("addr", "add", f"{BROKERS}/24", "dev", "brokers")
        ip("link", "set", "brokers", "up")
        for where, device, address in (
            (router, "to-brokers", "10.213.1.2"),
            (router, "to-client", "10.213.2.2"),
            (client, "client", CLIENT),
        ):
            ip("-n", where, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", where, "link", "set", device, "up")
        ip("-n", client, "route", "add", "default", "via", "10.213.2.2")
        ip("route", "add", f"{CLIENT}/32", "via", "10.213.1.2")
        subprocess.run(["ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        yield client


@contextmanager
def cut(namespace: str) -> Iterator[None]:
    """Meanwhile nothing that the client sends arrives, and nothing tells it so."""
    router = namespace.replace("client", "router")
    ip("-n", router, "route", "add", "blackhole", f"{BROKERS}/32")
    try:
        yield
    finally:
        ip("-n", router, "route", "del", "blackhole", f"{BROKERS}/32")


@pytest.fixture(scope="module")
def servers(namespace: str, start_cluster: Callable[..., KafkaCluster]) -> Iterator[list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (cluster, node):
            patch.setattr(module, "HOST", BROKERS)
        yield [start_cluster(heap="320m", broker_config=FORGETS_PRODUCERS).bootstrap_servers for _ in range(2)]


@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "killed"])
def test_what_a_cut_network_kept_is_not_appended_after_the_copy_has_gone_on(
    namespace: str, servers: list[str], is_killed: bool
) -> None:
    """Without the reset at the end of a connection the system delivers its batch at last, and doubles it."""
    for n in range(3):  # at the cut there may be nothing in flight
        topic = f"cut-{is_killed}-{n}"
        create_topic(servers[0], topic, 4)
        append_records(servers[0], topic, 10_000, partitions=4, size=2_000, per_batch=1)
        options = json.dumps({"produce_max_bytes": 4_000})
        command = [sys.executable, str(SUPPORT / "mirror_process.py"), *servers, topic, topic, options]

        def start() -> subprocess.Popen[str]:
            inside = ["ip", "netns", "exec", namespace, *command]
            process = subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None and process.stdout.readline() == "copying\n"
            return process

        process = start()
        time.sleep(0.3 + 0.3 * n)
        began = time.monotonic()
        with cut(namespace):
            time.sleep(1)
            assert process.poll() is None, "the copy was over before"
            if is_killed:
                process.kill()
                process.communicate()
            time.sleep(began + CUT_S - time.monotonic())
        process = start() if is_killed else process
        assert "done" in process.communicate(timeout=300)[0]
        time.sleep(max(0, began + OVER_S - time.monotonic()))
        partitions = [TopicPartition(topic, index) for index in range(4)]
        source, target = (read_with_confluent(server, partitions, committed=True) for server in servers)
        assert {p: len(log) for p, log in target.items()} == dict.fromkeys(partitions, 10_000)
        assert source == target
