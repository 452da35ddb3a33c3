"""pytest fixtures: real Kafka clusters, and a fault proxy in front of them.

A test that uses one of them gets the marker `broker`.  On a machine without Java it is skipped; if the environment
variable CI is set it fails instead, so that a broken CI does not look green.  It fails also if there are no jars of the
version: a wrong --kafka-version is a mistake, not a machine that lacks something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tolerant_client.testing.cluster import KafkaCluster
    from tolerant_client.testing.faults import Fault
    from tolerant_client.testing.proxy import FaultProxy

_FIXTURES = frozenset({"kafka_cluster", "kafka_cluster_factory", "fault_proxy"})


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tolerant-kafka")
    group.addoption("--kafka-version", default="4.2.0", help="version of the Kafka brokers for tests (4.2.0)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "broker: needs real Apache Kafka brokers (Java 17)")


# First, because pytest's own -m decides in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("broker")


@pytest.fixture(scope="session")
def kafka_cluster_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts clusters that run until the end of the session: kafka_cluster_factory(version=None, **arguments).

    The arguments are those of KafkaCluster; version None means the version of --kafka-version.
    """
    clusters: list[KafkaCluster] = []

    def make(version: str | None = None, **arguments: Any) -> KafkaCluster:
        from tolerant_client.testing.cluster import KafkaCluster

        cluster = KafkaCluster(version or _version(request), **arguments)
        _require(cluster.version)
        clusters.append(cluster)
        return cluster.start()

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture(scope="session")
def kafka_cluster(kafka_cluster_factory: Callable[..., KafkaCluster]) -> KafkaCluster:
    """A cluster of one node that all tests of the session share: name topics after the test."""
    return kafka_cluster_factory()


@pytest.fixture
def fault_proxy(request: pytest.FixtureRequest) -> Iterator[Callable[..., FaultProxy]]:
    """Starts proxies that are closed after the test: fault_proxy(faults=[...], cluster=None, seed=0).

    `cluster` None means the fixture kafka_cluster; a cluster has at most one proxy at a time.
    """
    from tolerant_client.testing.proxy import FaultProxy

    proxies: list[FaultProxy] = []

    def make(
        faults: Iterable[Fault] = (),
        cluster: KafkaCluster | Mapping[int, tuple[str, int]] | None = None,
        seed: int = 0,
    ) -> FaultProxy:
        behind = request.getfixturevalue("kafka_cluster") if cluster is None else cluster
        proxies.append(FaultProxy(behind, faults, seed))
        return proxies[-1].start()

    yield make
    for proxy in proxies:
        proxy.close()


def _version(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--kafka-version"))


def _require(version: str) -> None:
    """Skips without Java, or fails under CI; fails if the jars of this version cannot be had."""
    from tolerant_client.testing.artifacts import ClusterStartError, jars, java_executable

    has_java = False
    try:
        java_executable()
        has_java = True
        jars(version)
    except ClusterStartError as error:
        if has_java or os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
