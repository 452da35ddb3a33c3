"""A target whose replicas are behind: the leader has what no client sees yet, and a mirror appends nothing a second time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from support.mirror_link import T0, append_records, both, compare, create_topic, ends
from support.settled import changing
from tolerant_client.cluster.admin.offsets import Unreplicated, replicated_ends
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.comparison import Comparison, compare_ends
from tolerant_client.mirror.state.claims_topic import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, Ledger
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

FOLLOWER = 2
FOR_EVER = str(2**63 - 1)
TIMES = {"message.timestamp.before.max.ms": FOR_EVER, "message.timestamp.after.max.ms": FOR_EVER}


def place(servers: str, topic: str, replicas: list[list[int]], **config: str) -> None:
    settings = {
        "min.insync.replicas": "1",
        **TIMES,
        **{name.replace("_", "."): value for name, value in config.items()},
    }
    with changing(servers) as admin:
        admin.create_topics(
            [NewTopic(topic, -1, -1, replica_assignments=dict(enumerate(replicas)), topic_configs=settings)]
        )


@pytest.fixture(scope="module")
def slow(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Node FOLLOWER leads nothing, and stays in the ISR for a minute when it stands still; producers are forgotten at once."""
    settings = {
        "replica.lag.time.max.ms": "60000",
        "broker.session.timeout.ms": "60000",
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "50",
    }
    cluster = start_cluster(nodes=3, heap="320m", broker_config=settings)
    target = first(cluster)
    place(target, "__transaction_state", [[1]] * 4, cleanup_policy="compact")
    place(target, CLAIMS_TOPIC, [[1]], message_timestamp_type="LogAppendTime")
    place(target, CONTROL_TOPIC, [[1]], cleanup_policy="compact")
    place(target, LEDGER_TOPIC, [[1]])
    return cluster


def first(cluster: KafkaCluster) -> str:
    return cluster.bootstrap_servers.split(",")[0]


class Copying:
    """A copier that follows its source in a thread of its own, and can lose its connections to the target."""

    def __init__(self, source: str, target: str, topic: str, policy: MirrorPolicy) -> None:
        self._what = (source, target, topic, policy)
        self._thread = threading.Thread(target=self._run)
        self.copier: LinkCopier | None = None
        self.target: Cluster | None = None
        self.waits: list[str] = []
        self.progress: dict[TopicPartition, Progress] = {}

    def __enter__(self) -> Copying:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        source, target, topic, policy = self._what
        with both(source, target) as (origin, copy):

            async def run() -> None:
                link = await prepare_link(origin, copy, topic, topic, policy)
                copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=topic, policy=policy)
                self.target = copy
                origin.net.call_soon(lambda: self._watch(copier, origin))
                self.progress = await copier.copy_each(link.ends, hold_ms=45_000)

            origin.run(run)

    async def _watch(self, copier: LinkCopier, origin: Cluster) -> None:
        while not self.progress:
            self.waits += [wait.reason for wait in copier.waiting().values()]
            await origin.net.sleep(0.5)

    def drop_connections(self) -> None:
        assert self.target is not None
        target = self.target
        target.net.call_soon(lambda: target.drop_connections("a reset"))


def until(servers: str, topic: str, end: int) -> None:
    deadline = time.monotonic() + 30
    while ends(servers, topic) != [end]:
        assert time.monotonic() < deadline, ends(servers, topic)
        time.sleep(0.2)


@pytest.fixture
def frozen(slow: KafkaCluster) -> Iterator[Callable[[], None]]:
    """Freezes the follower when it is called; it runs again in the end."""
    yield lambda: slow.pause(FOLLOWER)
    slow.resume(FOLLOWER)


def compared(source: str, target: str, topic: str) -> Comparison | None:
    with both(source, target) as (origin, copy):
        control = origin.run(read_control, copy, topic)
        partitions, ledger = [TopicPartition(topic, 0)], Ledger(copy, topic)
        found: Comparison | None = origin.run(compare_ends, origin, copy, partitions, ledger, control, False)
        return found


@pytest.mark.long
@pytest.mark.parametrize(("way", "timestamp"), [("records", T0), ("markers", None)])
def test_what_the_leader_alone_has_is_waited_for_and_not_appended_again(
    source: str, slow: KafkaCluster, frozen: Callable[[], None], way: str, timestamp: int | None
) -> None:
    """Old records, whose producer is forgotten at once, and bare markers, of which the last can be doubled."""
    topic, target = f"behind-{way}", first(slow)
    create_topic(source, topic)
    place(target, topic, [[1, FOLLOWER]])
    now = int(time.time() * 1000)
    append_records(source, topic, 300, timestamp=timestamp or now)
    with Copying(source, target, topic, MirrorPolicy.parse(gap_fill=[way])) as copying:
        until(target, topic, 300)
        producer: Any = None
        if way == "markers":
            producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
            producer.init_transactions()
            producer.begin_transaction()
            for _ in range(50):
                producer.send(topic, b"aborted", partition=0)
            producer.flush()
        frozen()
        if producer is not None:
            producer.abort_transaction()
            producer.close()
        end = 300 if producer is None else 351
        append_records(source, topic, 100, first=end, timestamp=timestamp or now)
        partition = TopicPartition(topic, 0)
        deadline = time.monotonic() + 90
        with Cluster({"bootstrap_servers": target}, name="target") as cluster:
            while isinstance(found := cluster.run(replicated_ends, cluster, [partition])[partition], int):
                assert time.monotonic() < deadline, "the leader has nothing that is not replicated"
                time.sleep(0.2)
            copying.drop_connections()
            while not copying.waits and time.monotonic() < deadline:
                time.sleep(0.2)
        assert isinstance(found, Unreplicated), found
        assert found.high_watermark == 300 and found.leader_end > 300
        assert compared(source, target, topic) == Comparison({}, ()), "up to the high watermark"
        slow.resume(FOLLOWER)
        until(target, topic, end + 100)
    (progress,) = copying.progress.values()
    assert (progress.error, progress.acked) == (None, end + 100)
    assert any("replication on the target is behind" in reason for reason in copying.waits), copying.waits
    assert compare(source, target, topic).identical
