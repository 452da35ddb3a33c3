"""What tests on real brokers share: one source and one target, and a broker for repeated requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support.repeats import Wire, commit, create, find_coordinator, new, partition_code, wait_for_leader
from support.zookeeper_kafka import ZooKeeperKafka, require_zookeeper_kafka
from tolerant_client.testing import KafkaCluster


@pytest.fixture(scope="session")
def source(kafka_cluster: KafkaCluster) -> str:
    return kafka_cluster.bootstrap_servers


@pytest.fixture(scope="session")
def target_cluster(kafka_cluster_factory: Callable[..., KafkaCluster]) -> KafkaCluster:
    return kafka_cluster_factory(heap="384m")


@pytest.fixture(scope="session")
def target(target_cluster: KafkaCluster) -> str:
    return target_cluster.bootstrap_servers


@pytest.fixture(scope="module")
def start_old_broker() -> Iterator[Callable[..., ZooKeeperKafka]]:
    """Starts a broker of a version with ZooKeeper that lives until the end of the module; keywords are its configuration."""
    with ExitStack() as stack:

        def started(version: str, **broker_config: str) -> ZooKeeperKafka:
            require_zookeeper_kafka(version)
            return stack.enter_context(ZooKeeperKafka(version, broker_config))

        yield started


@pytest.fixture(scope="session")
def authorized_cluster(kafka_cluster_factory: Callable[..., KafkaCluster]) -> KafkaCluster:
    """One node with an authorizer, on which everybody may do everything."""
    return kafka_cluster_factory(
        heap="320m",
        broker_config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )


@pytest.fixture(scope="session")
def wire(authorized_cluster: KafkaCluster) -> Iterator[Wire]:
    """A plain connection to it."""
    wire = Wire(authorized_cluster.bootstrap_servers)
    yield wire
    wire.socket.close()


@pytest.fixture(scope="session")
def topic(wire: Wire) -> str:
    """A topic of two partitions that all tests share."""
    name = new("topic")
    wire.ask(create(name, partitions=2))
    wait_for_leader(wire, name)
    return name


@pytest.fixture
def group(wire: Wire, topic: str) -> str:
    """A group whose coordinator serves, without members."""
    name = new("group")
    find_coordinator(wire, 0, name)
    wire.ready(lambda: commit(name, topic, 1), partition_code, 8)
    return name
