"""The mirror under faults: whatever is lost, doubled, late or wrong on the wire, the copy is identical or the error is clear."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import kafka
import pytest
from kafka.structs import TopicPartition

from support.every_kind import every_kind
from support.long import LONG
from support.mirror_link import append_records, both, compare, create_topic, ends, mirror, prepare
from support.raising_copier import LinkCopier
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.testing import (
    Corrupt,
    Drop,
    ErrorCode,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reset,
    RewriteCorrelationId,
    Stall,
    Truncate,
)

PARTITIONS = 4
EACH = 2_500
OUT_OF_RANGE, NOT_LEADER, TOPIC_AUTHORIZATION_FAILED = 1, 6, 29

# Small fetches and few requests in flight make many answers that can go wrong.
SMALL = CopyLimits(
    max_bytes_in_flight=1 << 20, fetch_max_bytes=128 << 10, partition_max_bytes=32 << 10, patience_ms=60_000
)

EVERY_KIND = every_kind(1 / 25)

Proxies = Callable[..., FaultProxy]


@pytest.fixture(scope="module")
def target_cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster()


@pytest.fixture(scope="module")
def sources(kafka_cluster: KafkaCluster) -> Callable[[str], int]:
    """Makes a source topic and returns the bytes of its log; its batches are too large to be coalesced."""

    def make(topic: str) -> int:
        create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
        return append_records(
            kafka_cluster.bootstrap_servers, topic, EACH, partitions=PARTITIONS, per_batch=10, size=1700
        )

    return make


class InBackground:
    """A copy on a thread of its own, so that the test can hurt the clusters meanwhile."""

    def __init__(self, source: str, target: str, topic: str, limits: CopyLimits = SMALL) -> None:
        self.progress: dict[TopicPartition, Progress] = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(source, target, topic, limits))
        self._thread.start()

    def _run(self, source: str, target: str, topic: str, limits: CopyLimits) -> None:
        try:
            self.progress = mirror(source, target, topic, limits=limits)
        except Exception as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float = 60) -> dict[TopicPartition, Progress]:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the copy hangs"
        if self.error is not None:
            raise self.error
        return self.progress


def wait_until_copied(servers: str, topic: str, records: int, copying: InBackground) -> None:
    while sum(ends(servers, topic, PARTITIONS)) < records:
        assert copying.is_running, copying.error


def assert_identical(source: str, target: str, topic: str) -> None:
    report = compare(source, target, topic)
    assert report.identical, report
    assert report.records == PARTITIONS * EACH
    assert ends(target, topic, PARTITIONS) == [EACH] * PARTITIONS


@pytest.mark.parametrize("seed", range(20 if LONG else 2))
def test_copy_is_identical_with_every_fault_on_both_sides(
    fault_proxy: Proxies,
    kafka_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sources: Callable[[str], int],
    seed: int,
) -> None:
    topic = f"mirror-every-fault-{seed}"
    sources(topic)
    source = fault_proxy(EVERY_KIND, kafka_cluster, seed)
    target = fault_proxy(EVERY_KIND, target_cluster, seed + 1000)
    mirror(source.bootstrap_servers, target.bootstrap_servers, topic, limits=SMALL)
    hits = source.injected + target.injected
    assert hits.total() >= 5, hits
    assert_identical(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Drop(api="Produce", every=5), marks=pytest.mark.long),  # each waits for its timeout
        RewriteCorrelationId(api="Produce", every=5),
        Drop(api="Fetch", every=5),
        Corrupt(api="Fetch", every=5),
        Reset(api="Produce", every=20),
        ErrorCode(NOT_LEADER, api="Produce", every=5),
    ],
    ids=lambda fault: f"{fault.name}-{fault.api}",
)
def test_copy_is_identical_with_one_fault_again_and_again(
    fault_proxy: Proxies,
    kafka_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sources: Callable[[str], int],
    fault: Fault,
) -> None:
    topic = f"mirror-{fault.name}-{fault.api}"
    sources(topic)
    clusters = {"Fetch": kafka_cluster, "Produce": target_cluster}
    assert fault.api is not None
    proxy = fault_proxy([fault], clusters[fault.api])
    servers = {api: cluster.bootstrap_servers for api, cluster in clusters.items()}
    servers[fault.api] = proxy.bootstrap_servers
    mirror(servers["Fetch"], servers["Produce"], topic, limits=SMALL)
    assert proxy.injected_total >= 5
    assert_identical(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)


def test_a_false_offset_out_of_range_resets_no_position_and_copies_nothing_twice(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, target_cluster: KafkaCluster, sources: Callable[[str], int]
) -> None:
    """Incident 2."""
    topic = "mirror-incident-2"
    size = sources(topic)
    source = fault_proxy([ErrorCode(OUT_OF_RANGE, api="Fetch", every=5)], kafka_cluster)
    progress = mirror(source.bootstrap_servers, target_cluster.bootstrap_servers, topic, limits=SMALL)
    assert source.injected_total >= 5
    assert sum(p.troubles for p in progress.values()) >= 5
    assert sum(p.bytes for p in progress.values()) == size
    assert_identical(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)


def test_target_broker_killed_in_the_middle_is_waited_for(
    kafka_cluster: KafkaCluster, target_cluster: KafkaCluster, fault_proxy: Proxies, sources: Callable[[str], int]
) -> None:
    topic = "mirror-killed-target"
    sources(topic)
    slow = fault_proxy([Stall(0.02, api="Fetch")], kafka_cluster)
    copying = InBackground(slow.bootstrap_servers, target_cluster.bootstrap_servers, topic)
    wait_until_copied(target_cluster.bootstrap_servers, topic, 1000, copying)
    target_cluster.kill(1)
    assert copying.is_running
    target_cluster.restart(1)
    copying.result()
    assert_identical(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)


def test_paused_source_broker_only_delays_the_copy(
    kafka_cluster: KafkaCluster, target_cluster: KafkaCluster, fault_proxy: Proxies, sources: Callable[[str], int]
) -> None:
    topic = "mirror-paused-source"
    size = sources(topic)
    slow = fault_proxy([Stall(0.02, api="Fetch")], kafka_cluster)
    copying = InBackground(slow.bootstrap_servers, target_cluster.bootstrap_servers, topic)
    wait_until_copied(target_cluster.bootstrap_servers, topic, 1000, copying)
    kafka_cluster.pause(1)
    try:
        time.sleep(2)
        assert copying.is_running
    finally:
        kafka_cluster.resume(1)
    assert sum(p.bytes for p in copying.result().values()) == size
    assert_identical(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)


@pytest.fixture(scope="module")
def three_brokers(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    return start_cluster(nodes=3, heap="256m")


def move_leader(servers: str, partition: TopicPartition, leader: int) -> None:
    """Another broker leads; the one that led lives on and keeps its connections."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.alter_partition_reassignments({partition: [leader]})
    finally:
        admin.close()
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        deadline = time.monotonic() + 60
        while cluster.run(cluster.leader, partition) != leader:
            assert time.monotonic() < deadline
            cluster.run(cluster.refresh)


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.long), "target"])
def test_leader_that_moves_away_from_a_living_broker_is_followed(
    kafka_cluster: KafkaCluster, three_brokers: KafkaCluster, side: str
) -> None:
    partition = TopicPartition(f"mirror-moved-{side}", 0)
    servers = {"source": kafka_cluster.bootstrap_servers, "target": kafka_cluster.bootstrap_servers}
    servers[side] = three_brokers.bootstrap_servers
    create_topic(servers["source"], partition.topic)
    if side == "target":
        create_topic(servers["target"], partition.topic)
    append_records(servers["source"], partition.topic, 1000)
    with both(servers["source"], servers["target"], patience_ms=15_000) as (origin, copy):

        async def run() -> int:
            link = await prepare_link(origin, copy, partition.topic, "moved")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), SMALL)
            await copier.copy({partition: 1000}, lease_ms=60_000)
            moving = origin if side == "source" else copy
            leader = await moving.leader(partition)
            move_leader(servers[side], partition, leader % 3 + 1)
            append_records(servers["source"], partition.topic, 1000, first=1000)
            return (await copier.copy({partition: 2000}))[partition].acked

        started = time.monotonic()
        assert origin.run(run) == 2000
        assert time.monotonic() - started < 20
    report = compare(servers["source"], servers["target"], partition.topic)
    assert report.identical and report.records == 2000


# -- what never heals must become an error ------------------------------------

IMPATIENT = CopyLimits(patience_ms=5_000)


@pytest.fixture
def in_seconds() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 30


@pytest.mark.usefixtures("in_seconds")
@pytest.mark.parametrize(
    "fault",
    [Drop(api="Fetch"), Truncate(api="Fetch"), ErrorCode(NOT_LEADER, api="Fetch")],
    ids=lambda fault: fault.name,
)
def test_source_that_never_answers_a_fetch_well_becomes_an_error(
    fault_proxy: Proxies,
    kafka_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sources: Callable[[str], int],
    fault: Fault,
) -> None:
    topic = f"mirror-no-fetch-{fault.name}"
    sources(topic)
    # A source that is a target, too, has the controls of links, which a start reads: it would be the first to fail.
    with Cluster({"bootstrap_servers": kafka_cluster.bootstrap_servers}, name="source") as cluster:
        if CONTROL_TOPIC in cluster.run(cluster.partitions):
            cluster.run(delete_topics, cluster, [CONTROL_TOPIC])
    prepare(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)
    source = fault_proxy([fault], kafka_cluster)
    copying = InBackground(source.bootstrap_servers, target_cluster.bootstrap_servers, topic, IMPATIENT)
    with pytest.raises(RecoveryExhaustedError, match=f"{topic}-[0-3]: "):
        copying.result()


@pytest.mark.usefixtures("in_seconds")
def test_target_that_may_not_be_read_becomes_an_error(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, target_cluster: KafkaCluster, sources: Callable[[str], int]
) -> None:
    topic = "mirror-no-read"
    sources(topic)
    mirror(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers, topic)
    append_records(kafka_cluster.bootstrap_servers, topic, 100, partitions=PARTITIONS, first=EACH)
    target = fault_proxy([ErrorCode(TOPIC_AUTHORIZATION_FAILED, api="Fetch")], target_cluster)
    copying = InBackground(kafka_cluster.bootstrap_servers, target.bootstrap_servers, topic, IMPATIENT)
    with pytest.raises(TolerantClientError, match="we may not read topic tolerant-mirror-control of the target"):
        copying.result()  # test_least_rights.py has the rights on each topic alone


@pytest.mark.usefixtures("in_seconds")
def test_target_that_refuses_every_append_becomes_an_error(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, target_cluster: KafkaCluster, sources: Callable[[str], int]
) -> None:
    topic = "mirror-no-append"
    sources(topic)
    with both(kafka_cluster.bootstrap_servers, target_cluster.bootstrap_servers) as (_, copy):
        assert topic not in copy.run(copy.partitions)
    target = fault_proxy([ErrorCode(TOPIC_AUTHORIZATION_FAILED, api="Produce")], target_cluster)
    copying = InBackground(kafka_cluster.bootstrap_servers, target.bootstrap_servers, topic, IMPATIENT)
    with pytest.raises(TolerantClientError, match=f"{topic}-.*TopicAuthorizationFailedError"):
        copying.result()
