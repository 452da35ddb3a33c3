"""`mirror --once` where a leader or a transaction coordinator is away: what it needs is named, the rest is copied, and it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from support.mirror_link import append_records, create_topic, ends
from tolerant_client.mirror.state.map_topic import copier_id
from tolerant_client.stock.coordinator_partition import TRANSACTIONS_TOPIC, partition_of
from tolerant_client.testing import KafkaCluster

COMMAND = [sys.executable, "-m", "spark_integration.cli.app"]
PATIENCE_S = 120  # CopyLimits
run = partial(subprocess.run, capture_output=True, text=True, timeout=90)


@pytest.fixture(scope="module")
def three_nodes(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Node 2 alone has the last of the 4 partitions of __transaction_state."""
    cluster = start_cluster(nodes=3, heap="256m", broker_config={"transaction.state.log.min.isr": "1"})
    create(cluster.bootstrap_servers, TRANSACTIONS_TOPIC, [1, 1, 3, 2], **{"cleanup.policy": "compact"})
    return cluster


def create(servers: str, topic: str, leaders: list[int], **config: str) -> None:
    """A topic with one replica of each partition, on these nodes."""
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        replicas = {number: [node] for number, node in enumerate(leaders)}
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=replicas, topic_configs=config)])


def topic_named(prefix: str, *coordinated: int) -> str:
    """A topic, and link, of whose three partitions node 2 coordinates the transactions of these."""
    names = (f"{prefix}-{number}" for number in range(1000))
    return next(
        name
        for name in names
        if coordinated == tuple(n for n in range(3) if partition_of(copier_id(name, TopicPartition(name, n)), 4) == 3)
    )


def mirroring(source: str, target: str, topic: str, offsets: str) -> list[str]:
    link = ["--source", source, "--target", target, "--topics", topic, "--link", topic]
    return [*COMMAND, "mirror", *link, "--offsets", offsets, "--tasks", "0", "--once", "--json"]


def test_a_partition_whose_transactions_have_no_coordinator_is_named_and_the_others_are_copied(
    source: str, three_nodes: KafkaCluster
) -> None:
    topic, target = topic_named("coordinator-away", 1), three_nodes.bootstrap_servers
    create_topic(source, topic, 3)
    create(target, topic, [1, 1, 3])
    append_records(source, topic, 10, partitions=3)
    once = mirroring(source, target, topic, "translated")
    assert run(once).returncode == 0
    before = ends(target, topic, 3)
    append_records(source, topic, 10, first=10, partitions=3)
    why = f"{TRANSACTIONS_TOPIC}-3, which coordinates its transactions: it has no leader on the target"
    three_nodes.kill(2)
    try:
        plan = [*COMMAND, "plan", *once[4 : once.index("--offsets")], "--json"]
        deadline = time.monotonic() + 60
        while json.loads((planned := run(plan)).stdout)["topics"][0]["waiting"] != {"1": why}:
            assert time.monotonic() < deadline, planned.stdout  # the session of node 2 is not over before
        assert planned.returncode == 3
        copied = run(once)
        assert copied.returncode == 3, copied.stderr
        assert json.loads(copied.stdout)["waiting"] == [{"topic": topic, "partition": 1, "reason": why}]
        after = ends(target, topic, 3)
        assert after[0] >= before[0] + 10 and after[1] == before[1] and after[2] >= before[2] + 10
    finally:
        three_nodes.restart(2)
    assert run(once).returncode == 0
    assert ends(target, topic, 3)[1] >= before[1] + 10


@pytest.mark.long
def test_what_loses_its_leader_while_it_is_copied_is_named_after_the_patience_and_the_rest_is_copied(
    source: str, three_nodes: KafkaCluster
) -> None:
    """Leaders of the source and of the target, and coordinators; all at once, since each takes the whole patience."""
    nodes, kinds = three_nodes.bootstrap_servers, ("identical", "translated")
    at_source = {f"lost-source-{offsets}": (nodes, source, offsets) for offsets in kinds}
    at_target = {topic_named(f"lost-target-{offsets}"): (source, nodes, offsets) for offsets in kinds}
    of_ids = {topic_named("lost-coordinator", 1): (source, nodes, "translated")}
    links = {**at_source, **at_target, **of_ids}
    for topic, (origin, copy, offsets) in links.items():
        create_topic(source, topic, 3)
        create(nodes, topic, [1, 1, 3] if topic in of_ids else [1, 2, 3])
        assert run(mirroring(origin, copy, topic, offsets)).returncode == 0
        append_records(origin, topic, 600, partitions=3, size=1000, per_batch=10)
        assert run([*COMMAND, "throttle", "60000", "--target", copy, "--link", topic]).returncode == 0
    begun = {
        topic: subprocess.Popen(mirroring(*where[:2], topic, where[2]), stdout=subprocess.PIPE, text=True)
        for topic, where in links.items()
    }
    try:
        for topic, (_, copy, _) in links.items():
            deadline = time.monotonic() + 60
            while ends(copy, topic, 3)[1] < 20:
                assert time.monotonic() < deadline and begun[topic].poll() is None, topic
                time.sleep(0.2)
        three_nodes.kill(2)
        for topic, (_, copy, _) in links.items():
            assert run([*COMMAND, "throttle", "off", "--target", copy, "--link", topic]).returncode == 0
        deadline = time.monotonic() + PATIENCE_S + 90
        for topic, (_, copy, _) in links.items():
            out, _ = begun[topic].communicate(timeout=deadline - time.monotonic())
            assert begun[topic].returncode == 3, (topic, out)
            ((number, reason),) = [(p["partition"], p["reason"]) for p in json.loads(out)["waiting"]]
            assert number == 1 and reason and (topic not in at_target or "no leader" in reason), out
    finally:
        for process in begun.values():
            process.kill()
        three_nodes.restart(2)
    for topic, (origin, copy, offsets) in links.items():
        found = ends(copy, topic, 3)
        assert found[0] >= 600 > found[1] and found[2] >= 600, (topic, found)
        assert run(mirroring(origin, copy, topic, offsets)).returncode == 0
        assert ends(copy, topic, 3)[1] >= 600, topic
