"""By default gaps are filled with markers where the brokers take them of the mirror's user, and with transactions elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kafka
import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.structs import TopicPartition

from support.guarded_cluster import start_guarded
from support.mirror_link import append_records, both, compare, create_topic, ends, failed_over, header_at, mirror
from support.raising_copier import LinkCopier
from support.settled import changing
from tolerant_client.cluster.admin.coordinators import Coordinators
from tolerant_client.cluster.admin.transactions import may_write_markers, transactional_ids, write_abort_markers
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import ProducerFencedError
from tolerant_client.mirror.batches.gaps import Gap, is_filler_marker, marker_producer
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical import auto_fill
from tolerant_client.mirror.engine.identical.gap_producer import GapProducer, gap_transactional_id
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.life.status import read_status
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PASSWORD = "not-secret"
CLUSTER = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
TO_WRITE_MARKERS = (ACLOperation.DESCRIBE, ACLOperation.CLUSTER_ACTION)
TRANSACTIONS = MirrorPolicy.parse(gap_fill=["transactions"])
MARKERS = MirrorPolicy.parse(gap_fill=["markers"])


def abort(servers: str, topic: str, count: int, records: int = 1) -> None:
    """A gap of one offset more than `count`, and records after it."""
    with kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(count):
            producer.send(topic, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    append_records(servers, topic, records, first=ends(servers, topic)[0])


def gap_ids(servers: str, link: str) -> set[str]:
    """The transactional.ids with which gaps of a link were filled."""
    with Cluster({"bootstrap_servers": servers}) as cluster:
        found: set[str] = cluster.run(transactional_ids, cluster, f"tolerant-mirror-{link}-gap-")
        return found


def is_marker_at(servers: str, topic: str, offset: int) -> bool:
    return is_filler_marker(header_at(servers, TopicPartition(topic, 0), offset))


def assert_identical(source: str, target: str, topic: str) -> None:
    assert ends(source, topic) == ends(target, topic)
    assert compare(source, target, topic).identical


# -- with an authorizer -------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """User mirror may do what the mirror needs without markers; who uses another listener may do everything."""
    cluster = start_guarded(start_cluster, {"mirror": PASSWORD}, heap="320m")
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    allow(cluster, *(acl(ACLOperation.ALL, ResourcePattern(kind, "*")) for kind in kinds))
    return cluster


def acl(operation: ACLOperation, where: ResourcePattern = CLUSTER) -> ACL:
    return ACL("User:mirror", "*", operation, ACLPermissionType.ALLOW, where)


def allow(cluster: KafkaCluster, *acls: ACL) -> None:
    with changing(cluster.bootstrap_servers) as admin:
        admin.create_acls(list(acls))


def deny(cluster: KafkaCluster, *acls: ACL) -> None:
    filters = [ACLFilter(a.principal, a.host, a.operation, a.permission_type, a.resource_pattern) for a in acls]
    with changing(cluster.bootstrap_servers) as admin:
        admin.delete_acls(filters)


LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "mirror",
    "sasl_plain_password": PASSWORD,
}


def until_told(cluster: KafkaCluster, may: bool) -> None:
    """Waits until a broker's view of the rights of user mirror is that one."""
    deadline = time.monotonic() + 60
    with Cluster({"bootstrap_servers": cluster.servers_of("SASL"), **LOGIN}) as target:
        while target.run(may_write_markers, target) is not may:
            assert time.monotonic() < deadline
            time.sleep(0.05)


class Mirror:
    """A copier of one partition as user mirror, in rounds up to where the source ends."""

    def __init__(self, source: str, target: KafkaCluster, topic: str) -> None:
        self._servers = source, target.servers_of("SASL")
        self.topic = topic

    @contextmanager
    def running(self) -> Iterator[Callable[[], Progress]]:
        partition = TopicPartition(self.topic, 0)
        with Cluster({"bootstrap_servers": self._servers[0]}, name="source") as origin:
            target = Cluster({"bootstrap_servers": self._servers[1], **LOGIN}, origin.net, name="target")
            prepared = origin.run(prepare_link, origin, target, self.topic, self.topic)
            copier = LinkCopier(origin, target, identical_offsets(prepared.producer_id), link=self.topic)

            async def copy() -> Progress:
                until = await origin.list_offsets({partition: LATEST}, isolation_level=1)
                found: dict[TopicPartition, Progress] = await copier.copy(until, lease_ms=600_000)
                return found[partition]

            try:
                yield lambda: origin.run(copy)
            finally:
                target.close()


def test_rights_decide_and_a_change_of_them_is_followed_while_it_copies(
    source: str, guarded: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_fill, "_LAST_S", 0.2)
    topic, target = "ways-rights", guarded.bootstrap_servers
    create_topic(source, topic)
    append_records(source, topic, 10)
    with Mirror(source, guarded, topic).running() as copy:
        abort(source, topic, 20)
        assert copy().troubles == 0, "nothing was refused"
        assert len(gap_ids(target, topic)) == 1 and not is_marker_at(target, topic, 12)

        allow(guarded, *map(acl, TO_WRITE_MARKERS))
        until_told(guarded, may=True)
        abort(source, topic, 20)
        time.sleep(0.3)
        first = ends(target, topic)[0]
        assert copy().troubles == 0
        assert is_marker_at(target, topic, first) and is_marker_at(target, topic, first + 20)

        monkeypatch.setattr(auto_fill, "_LAST_S", 60.0)  # it still thinks that it may
        deny(guarded, *map(acl, TO_WRITE_MARKERS))
        until_told(guarded, may=False)
        abort(source, topic, 20)
        first = ends(target, topic)[0]
        assert copy().troubles == 1, "the refusal"
        assert not is_marker_at(target, topic, first)
        abort(source, topic, 20)
        assert copy().troubles == 1
    assert_identical(source, target, topic)


@pytest.mark.parametrize("granted", [(), TO_WRITE_MARKERS[:1], TO_WRITE_MARKERS[1:]], ids=["none", "one", "other"])
def test_one_right_without_the_other_is_none(
    source: str, guarded: KafkaCluster, granted: tuple[ACLOperation, ...]
) -> None:
    allow(guarded, *map(acl, granted))
    try:
        until_told(guarded, may=False)
    finally:
        deny(guarded, *map(acl, granted))


# -- one way after the other --------------------------------------------------


def test_without_an_authorizer_gaps_are_markers(source: str, target: str) -> None:
    topic = "ways-open"
    create_topic(source, topic)
    abort(source, topic, 20)
    mirror(source, target, topic, link=topic)
    assert [is_marker_at(target, topic, offset) for offset in range(21)] == [True] * 21
    assert not gap_ids(target, topic)
    assert_identical(source, target, topic)


def test_a_long_gap_is_a_transaction_that_ends_before_it(source: str, target: str) -> None:
    topic = "ways-long"
    create_topic(source, topic)
    abort(source, topic, 9_999)
    mirror(source, target, topic, link=topic)
    assert [is_marker_at(target, topic, offset) for offset in (0, 9_899, 9_900, 9_999)] == [False, False, True, True]
    assert_identical(source, target, topic)


def begun_by(target: str, link: str, partition: TopicPartition, produced: Gap | None) -> tuple[Cluster, GapProducer]:
    """A writer of transactions that has taken over, and stops in one if `produced` is what it has written."""
    cluster = Cluster({"bootstrap_servers": target}, name="stopped")

    async def begin() -> GapProducer:
        await cluster.connect()
        producer = GapProducer(
            cluster, Coordinators(cluster), gap_transactional_id(link, partition), partition, time.monotonic
        )
        await producer.begin()
        if produced is not None:
            await producer.add()
            await producer.produce(produced, 16 << 10)
        return producer

    return cluster, cluster.run(begin)


def copied_before_gap(source: str, target: str, topic: str) -> None:
    """A topic of ten records that a link of its name has copied; what is appended next is at offset 10."""
    create_topic(source, topic)
    append_records(source, topic, 10)
    mirror(source, target, topic, link=topic)


@pytest.mark.parametrize("policy", [MirrorPolicy(), MARKERS], ids=["auto", "markers"])
@pytest.mark.parametrize("produced", [None, Gap(10, 15)], ids=["late", "open"])
def test_who_fills_with_markers_ends_and_fences_who_was_filling_with_transactions(
    source: str, target: str, policy: MirrorPolicy, produced: Gap | None
) -> None:
    """What it has left unread at its coordinator would open a transaction whose end lies wherever the log ends then."""
    topic = f"ways-fenced-{policy.gap_fill.value}-{produced is not None}"
    partition = TopicPartition(topic, 0)
    copied_before_gap(source, target, topic)
    abort(source, topic, 20)
    cluster, late = begun_by(target, topic, partition, produced)
    mirror(source, target, topic, link=topic, policy=policy)
    with pytest.raises(ProducerFencedError):
        cluster.run(late.add)
    cluster.close()
    assert is_marker_at(target, topic, 10) == (produced is None) and is_marker_at(target, topic, 30)
    assert_identical(source, target, topic)


def test_transactions_go_on_where_markers_were_left(source: str, target: str) -> None:
    topic = "ways-markers-left"
    partition = TopicPartition(topic, 0)
    copied_before_gap(source, target, topic)
    abort(source, topic, 20)
    write_markers(target, partition, range(10, 17))
    mirror(source, target, topic, link=topic, policy=TRANSACTIONS)
    assert is_marker_at(target, topic, 16) and not is_marker_at(target, topic, 17)
    assert_identical(source, target, topic)


def write_markers(target: str, partition: TopicPartition, offsets: range) -> None:
    with Cluster({"bootstrap_servers": target}, name="late") as cluster:

        async def write() -> set[int]:
            node = await cluster.leader(partition)
            return await write_abort_markers(cluster, node, partition, [marker_producer(offset) for offset in offsets])

        assert cluster.run(write) == set()


# -- after a promotion --------------------------------------------------------


def test_markers_that_arrive_after_a_promotion_are_nobodys_records(source: str, target: str) -> None:
    topic = "ways-late-markers"
    partition = TopicPartition(topic, 0)
    copied_before_gap(source, target, topic)
    abort(source, topic, 50, records=0)
    failed_over(target, topic)
    write_markers(target, partition, range(10, 61))  # of a request that was in flight
    append_records(target, topic, 5, first=62)
    with both(source, target) as (origin, there):
        status: Any = origin.run(read_status, origin, there, topic)
        assert not [reason for reason in status.reasons if "marker" in reason.text or "diverge" in reason.text]
    failed_over(target, topic)  # once more: nothing is in its way
    with both(target, source) as (origin, there):
        back: Any = origin.run(lambda: failback(origin, there, f"{topic}-back", topic))
    assert not back.blockers, back
    mirror(target, source, topic, link=f"{topic}-back")
    assert_identical(target, source, topic)
