"""Old brokers and old message formats, mirrored to a new one: same offsets, keys, values and times.

With TOLERANT_LONG=1 more versions are started.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from support import mirror_link
from support.legacy_sets import message_set
from support.mirror_link import append_as_link, append_records, both, consume, create_topic, ends
from support.raising_copier import LinkCopier
from support.zookeeper_kafka import ZooKeeperKafka, require_zookeeper_kafka
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.cluster.admin.topics import delete_records
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import OptionError, SourceTruncatedError, TargetDivergedError
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.witnesses import UNSEEN_S
from tolerant_client.mirror.follow.translate import group_offsets
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.takeover import take_over
from tolerant_client.mirror.state.control_record import encode_control
from tolerant_client.mirror.state.control_topic import control_topic, read_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.node import HOST

pytestmark = pytest.mark.broker

T0 = 1_500_000_000_000
OLD_CODECS = {"none": codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY, "lz4": codecs.LZ4}
SIZES = (1, 7, 40, 2)  # of the sets that a piece of a log is made of
FORMATS = {0: "0.9.0", 1: "0.10.0", 2: "0.11.0"}  # message.format.version

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]  # as consume() has them


class Version(NamedTuple):
    """What a test must know of a broker."""

    number: tuple[int, ...]
    produce: int  # version of Produce for sets of v0 and v1
    formats: tuple[int, ...]  # what it stores

    @property
    def tells_versions(self) -> bool:
        return self.number >= (0, 10)


VERSIONS = {
    "0.8.2.2": Version((0, 8, 2), 0, (0,)),
    "0.9.0.1": Version((0, 9), 1, (0,)),
    "0.10.2.2": Version((0, 10, 2), 2, (0, 1)),
    "0.11.0.3": Version((0, 11), 2, (0, 1, 2)),
    "1.1.1": Version((1, 1), 2, (0, 1, 2)),
    "2.8.2": Version((2, 8), 2, (0, 1, 2)),
    "3.9.1": Version((3, 9), 2, (2,)),
}


def pair(offset: int) -> tuple[bytes | None, bytes | None]:
    key = None if offset % 5 == 1 else b"k%d" % offset
    return key, None if offset % 7 == 3 else b"value %d " % offset * (offset % 9)


class OldLogs:
    """Writes logs of every format that a broker has; `rows` is what must be found on the target."""

    def __init__(self, broker: ZooKeeperKafka, stored: int | None = None) -> None:
        self.broker = broker
        self._stored = stored  # the format of new topics, if it is not the broker's own
        self.version = VERSIONS[broker.version]
        self.rows: dict[str, list[Row]] = {}
        self.source_config: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
        if not self.version.tells_versions:
            self.source_config["api_version"] = self.version.number

    def write(self, names: Collection[str] = (*OLD_CODECS, "zstd"), formats: Collection[int] | None = None) -> None:
        """Topics vMAGIC-CODEC, and mixed-CODEC with a piece of each format, as upgrades leave it."""
        formats = self.version.formats if formats is None else formats
        for magic in formats:
            if magic != self._stored and len(self.version.formats) > 1:
                self.broker.restart({"log.message.format.version": FORMATS[magic]})
                self._stored = magic
            for codec in names:
                if codec != "zstd":
                    self._write_piece(f"v{magic}-{codec}", magic, codec)
                    if len(formats) > 1:
                        self._write_piece(f"mixed-{codec}", magic, codec)
                elif self.version.number >= (2, 1) and magic == 2:
                    self._write_piece("v2-zstd", magic, codec)

    def _write_piece(self, topic: str, magic: int, codec: str) -> None:
        if topic not in self.rows:
            self.broker.make_topic(topic)
        rows = self.rows.setdefault(topic, [])
        number = OLD_CODECS.get(codec, codecs.ZSTD)
        for size in SIZES:
            start = len(rows)
            given = [pair(n) for n in range(start, start + size)]
            headers = [(("h", None), ("h", b"%d" % n)) if magic == 2 and n % 3 else () for n in range(size)]
            if magic < 2:
                sent = message_set(magic, number, given, 0, T0 + start)
                assert self.broker.produce(topic, sent, min(magic + 1, self.version.produce)) == start
            else:
                records = [Record(0, T0 + start + n, *given[n], headers[n]) for n in range(size)]
                assert append(self.source_config, topic, encode_batch(records, codec=number)) == start
            rows += [(start + n, T0 + start + n if magic else -1, *given[n], headers[n]) for n in range(size)]


def append(config: Mapping[str, Any], topic: str, batch: bytes) -> int:
    with Cluster(config) as cluster:

        async def run() -> int:
            partition = TopicPartition(topic, 0)
            await cluster.list_offsets({partition: LATEST})
            (answer,) = await cluster.produce(await cluster.leader(partition), {partition: memoryview(batch)})
            assert answer.error_code == 0, answer
            return answer.base_offset

        return cluster.run(run)


def mirror(source: Mapping[str, Any], target: str, topics: str, link: str = "old") -> dict[TopicPartition, Progress]:
    """One run of a link, as `mirror --once` does it."""
    with Cluster(source, name="source") as origin:
        copy = Cluster({"bootstrap_servers": target}, origin.net, name="target")
        try:

            async def run() -> dict[TopicPartition, Progress]:
                prepared = await prepare_link(origin, copy, topics, link)
                return await LinkCopier(origin, copy, identical_offsets(prepared.producer_id), link=link).copy(
                    prepared.ends
                )

            return origin.run(run)
        finally:
            copy.close()


def check(logs: OldLogs, target: str) -> None:
    """Mirrors all that was written, twice (the second run finds everything there), and reads the target."""
    prefix = f"^({'|'.join(logs.rows)})$"
    for _ in range(2):
        progress = mirror(logs.source_config, target, prefix)
        assert {p.topic: done.acked for p, done in progress.items()} == {
            name: len(rows) for name, rows in logs.rows.items()
        }
    for name, rows in logs.rows.items():
        assert consume(target, name, 1, len(rows))[0] == rows, name


@pytest.fixture
def started() -> Iterator[Callable[..., OldLogs]]:
    """Starts a broker that lives until the end of the test."""
    with ExitStack() as stack:

        def start(version: str, stored: int | None = None, **config: str) -> OldLogs:
            require_zookeeper_kafka(version)
            if stored is not None:
                config["log.message.format.version"] = FORMATS[stored]
            return OldLogs(stack.enter_context(ZooKeeperKafka(version, config)), stored)

        yield start


def create(broker: ZooKeeperKafka, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Topics with a configuration, which brokers take from 0.10.1 on."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(name, 1, 1, topic_configs=dict(config)) for name, config in topics.items()])
    finally:
        admin.close()
    for name in topics:
        broker.make_topic(name)  # waits for the leader


def source_rows(broker: ZooKeeperKafka, topic: str, count: int) -> list[Row]:
    """Every record as stock kafka-python reads it from the old broker; -1 for no timestamp."""
    rows = consume(broker.bootstrap_servers, topic, 1, count)[0]
    return [(offset, -1 if time is None else time, key, value, headers) for offset, time, key, value, headers in rows]


def without_filler(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row[4] != ((FILLER, None),)]


def test_a_log_of_v0_and_v1_sets_is_mirrored_to_kafka_4(
    started: Callable[..., OldLogs], kafka_cluster: KafkaCluster
) -> None:
    logs = started("0.10.2.2", stored=0)
    create(logs.broker, {"stamped": {"message.timestamp.type": "LogAppendTime", "message.format.version": FORMATS[1]}})
    logs.write(["none", "lz4"])
    for size in SIZES:
        logs.broker.produce("stamped", message_set(1, codecs.GZIP, [pair(n) for n in range(size)], 0, T0), 2)
    logs.rows["stamped"] = source_rows(logs.broker, "stamped", sum(SIZES))
    assert min(row[1] for row in logs.rows["stamped"]) > T0 + 10**11
    check(logs, kafka_cluster.bootstrap_servers)


@pytest.mark.long
def test_kafka_2_8_is_mirrored_to_kafka_4(started: Callable[..., OldLogs], kafka_cluster: KafkaCluster) -> None:
    logs = started("2.8.2", stored=2)
    logs.write(["gzip"], formats=[2])
    check(logs, kafka_cluster.bootstrap_servers)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_format_and_codec_is_mirrored_to_kafka_4(
    started: Callable[..., OldLogs], start_cluster: Callable[..., KafkaCluster], version: str
) -> None:
    formats = VERSIONS[version].formats
    logs = started(version, stored=0 if len(formats) > 1 else None)
    logs.write()
    check(logs, start_cluster().bootstrap_servers)


@pytest.mark.long
@pytest.mark.parametrize("version", [name for name, version in VERSIONS.items() if 2 in version.formats])
def test_transactions_of_old_brokers_keep_their_offsets(
    started: Callable[..., OldLogs], start_cluster: Callable[..., KafkaCluster], version: str
) -> None:
    logs = started(version)
    target = start_cluster().bootstrap_servers
    servers = logs.broker.bootstrap_servers
    logs.broker.make_topic("transactions")
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id="old", max_block_ms=60_000)
    try:
        producer.init_transactions()
        for number in range(9):
            producer.begin_transaction()
            for n in range(5):
                producer.send("transactions", b"%d/%d" % (number, n), key=b"k", timestamp_ms=T0 + number)
            if number % 3 == 1:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close()
    end = 9 * 6
    committed = {"isolation_level": "read_committed"}
    rows = consume(servers, "transactions", 1, end, **committed)[0]
    assert len(rows) == 6 * 5
    for _ in range(2):
        ((_, done),) = mirror(logs.source_config, target, "transactions").items()
        assert done.acked == end
    assert consume(target, "transactions", 1, end, **committed)[0] == rows


@pytest.mark.long
@pytest.mark.parametrize(("version", "magic"), [("0.10.2.2", 0), ("0.10.2.2", 1), ("2.8.2", 1), ("2.8.2", 2)])
@pytest.mark.parametrize("is_made", [False, True])
def test_compacted_logs_keep_their_offsets(
    started: Callable[..., OldLogs],
    start_cluster: Callable[..., KafkaCluster],
    version: str,
    magic: int,
    is_made: bool,
) -> None:
    """Holes between and inside compressed sets; brokers before 0.11 do not tell that the topic is compacted."""
    logs = started(version, **{"log.cleaner.backoff.ms": "300"})
    target = start_cluster().bootstrap_servers
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
        "message.format.version": FORMATS[magic],
    }
    create(logs.broker, {"compacted": config})
    count = 3000
    for first in range(0, count, 20):
        numbers = range(first, first + 20)
        given = [(b"k%d" % (n if n % 3 == 0 else n * 7 % 97), None if n % 50 == 7 else b"v%d" % n) for n in numbers]
        assert logs.broker.produce("compacted", message_set(1, codecs.GZIP, given, 0, T0 + first), 2) == first
    rows: list[Row] = []
    for _ in range(60):  # until the cleaner has done what it can
        before, rows = rows, source_rows(logs.broker, "compacted", count)
        if before == rows and len(rows) < count:
            break
        time.sleep(1)
    assert len(rows) < count
    if is_made:
        create_topic(target, "compacted", config={"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"})
    for _ in range(2):
        ((_, done),) = mirror(logs.source_config, target, "compacted").items()
        assert done.acked == count
    found = consume(target, "compacted", 1, count)[0]
    # Where filler has the form of transactions that were aborted, a reader of all records sees it too.
    assert without_filler(found) == rows
    assert [row[0] for row in found] == sorted({row[0] for row in found})


@pytest.mark.parametrize("version", ["0.11.0.3", "2.8.2"])
def test_the_control_of_links_is_compacted_after_hours(started: Callable[..., OldLogs], version: str) -> None:
    """Else a start would read all that copiers have written in a week; on new brokers the settings are the same.

    The cleaner starts once all is written: Kafka 0.11 reads its list of segments before it asks which one is active, so a
    segment that is rolled meanwhile is cleaned whatever its age (LogCleanerManager.cleanableOffsets).
    """
    broker = started(version, **{"log.cleaner.enable": "false", "log.cleaner.backoff.ms": "100"}).broker

    def value(rate: int, knew: int) -> bytes:
        return encode_control(LinkControl(bytes_per_s=rate), 1, knew)

    with Cluster({"bootstrap_servers": broker.bootstrap_servers}, name="target") as target:
        topic = control_topic(target)

        async def left() -> list[int]:
            return [record.offset for record in await topic.read_all()]

        async def write(hours_ago: float) -> None:
            at = await topic.end()
            time_ms = int((time.time() - 3600 * hours_ago) * 1000)
            await topic.append([Record(0, time_ms, b"dr", value(at, at))])

        async def write_all() -> None:
            await topic.ensure()
            for hours_ago in (9, 8.9, 8.8, 4.5, 3.9, 0):  # the fourth and the last begin a segment
                await write(hours_ago)
            assert await left() == [0, 1, 2, 3, 4, 5]

        async def read_cleaned() -> None:
            deadline = time.monotonic() + 120
            while await left() == [0, 1, 2, 3, 4, 5] and time.monotonic() < deadline:
                await target.net.sleep(0.1)
            assert await left() == [2, 3, 4, 5], "the second segment has a record that is too young"
            assert (await read_control(target, "dr")).bytes_per_s == 5

        target.run(write_all)
        broker.restart({"log.cleaner.enable": "true"})
        broker.make_topic(topic.name)  # waits for the leader
        target.run(read_cleaned)


def test_topics_are_there_also_for_who_asks_a_broker_that_has_just_started(started: Callable[..., OldLogs]) -> None:
    """With ZooKeeper it serves before it knows any: a promoted link would be one without a control."""
    broker = started("3.9.1").broker
    with kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in ("orders", *(f"other-{n}" for n in range(60)))])
    seen: list[bool] = []

    def serves() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, broker.port), 1):
            return True
        return False

    def ask_once_it_is_back() -> None:
        for is_up in (False, True):
            while serves() is not is_up:
                time.sleep(0.005)
        for _ in range(10):
            with Cluster({"bootstrap_servers": broker.bootstrap_servers}, name="target") as cluster:
                seen.append("orders" in cluster.run(cluster.partitions, ["orders"]))

    for _ in range(2):
        asking = threading.Thread(target=ask_once_it_is_back)
        asking.start()
        broker.restart({})
        asking.join()
    assert len(seen) == 20 and all(seen)


# -- a topic that is created again: these brokers are asked for it by its name ----


def make_anew(broker: ZooKeeperKafka, topic: str) -> None:
    """Deletes a topic and fills it with more and other records than it had, no sooner than a mirror believes in (UNSEEN_S)."""
    time.sleep(UNSEEN_S)
    make_anew_with(broker, topic, 3000)


def make_anew_with(broker: ZooKeeperKafka, topic: str, count: int) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.delete_topics([topic])
    for _ in range(200):
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])
            break
        except Exception:
            time.sleep(0.05)
    admin.close()
    broker.make_topic(topic)
    append_records(broker.bootstrap_servers, topic, count, first=500_000)


@pytest.mark.parametrize("version", ["1.1.1", "2.8.2"])
@pytest.mark.parametrize("pause", ["frozen", "throttled"])
def test_topic_that_is_made_anew_between_two_fetches_is_not_copied_behind_the_old_one(
    started: Callable[..., OldLogs], kafka_cluster: KafkaCluster, version: str, pause: str
) -> None:
    broker, target = started(version).broker, kafka_cluster.bootstrap_servers
    topic = f"anew-{version}-{pause}"
    partition, rate = TopicPartition(topic, 0), 12_000 if pause == "throttled" else None
    broker.make_topic(topic)
    append_records(broker.bootstrap_servers, topic, 1000)
    with both(broker.bootstrap_servers, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, topic)
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=topic, bytes_per_s=rate)
            await copier.copy({partition: 1000 if rate is None else 100}, lease_ms=60_000)
            making = threading.Thread(target=make_anew, args=(broker, topic))
            making.start()
            if rate is None:
                making.join()  # this loop stands still meanwhile
            while making.is_alive():
                await origin.net.sleep(0.05)
            with pytest.raises((TargetDivergedError, SourceTruncatedError)):
                await copier.copy({partition: 3000})

        origin.run(run)
    (end,) = ends(target, topic)
    assert 100 <= end <= 1000
    copied = consume(target, topic, 1, end)[0]
    assert [key for _, _, key, _, _ in copied] == [b"%d" % n for n in range(end)], "of the old topic, all of it"


def test_copy_that_begins_with_records_of_a_former_topic_is_refused_at_a_start(
    started: Callable[..., OldLogs], kafka_cluster: KafkaCluster
) -> None:
    """Such a copy a mirror made that believed all that came under the topic's name."""
    logs, target, topic = started("1.1.1"), kafka_cluster.bootstrap_servers, "anew-former"
    logs.broker.make_topic(topic)
    append_records(logs.broker.bootstrap_servers, topic, 1000)
    mirror(logs.source_config, target, topic, link=topic)
    make_anew(logs.broker, topic)
    now = consume(logs.broker.bootstrap_servers, topic, 1, 3000)[0]
    behind = [Record(0, time, key, value) for offset, time, key, value, _ in now if offset >= 1000]
    append_as_link(target, topic, topic, behind, 1000)
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 has at offset 0 another record than the source"):
        mirror(logs.source_config, target, topic, link=topic)
    assert ends(target, topic) == [3000]


# -- translated offsets -----------------------------------------------------------


def test_a_target_that_is_too_old_for_translated_offsets_is_refused_before_anything_is_created(
    started: Callable[..., OldLogs], kafka_cluster: KafkaCluster
) -> None:
    broker, source, topic = started("1.1.1").broker, kafka_cluster.bootstrap_servers, "too-old-for-translated"
    create_topic(source, topic)
    append_records(source, topic, 5)
    with both(source, broker.bootstrap_servers) as (origin, copy):
        for attempt in (
            partial(prepare_link, origin, copy, topic, topic, is_translated=True),
            partial(plan_everything, origin, copy, topic, topic, is_translated=True),
            partial(take_over, origin, copy, topic, LinkTopics.of(topic), "A", offsets="translated"),
        ):
            with pytest.raises(OptionError, match="Translated offsets need a target of Kafka 2.5"):
                origin.run(attempt)
        assert origin.run(copy.partitions) == {}


def test_a_group_is_not_moved_by_the_map_of_a_source_topic_that_was_made_anew_though_no_broker_told_its_id(
    started: Callable[..., OldLogs], kafka_cluster: KafkaCluster
) -> None:
    """The last record that was copied decides; where the source has deleted it, that nothing tells is said."""
    pytest.importorskip("pyspark")
    from spark_integration.cli.app import app

    broker, target, link = started("1.1.1").broker, kafka_cluster.bootstrap_servers, "no-ids"
    source = broker.bootstrap_servers
    kept, deleted, *anew = names = [f"no-ids-{name}" for name in ("kept", "deleted", "longer", "as-long", "shorter")]
    for topic in names:
        broker.make_topic(topic)
        append_records(source, topic, 12)
    mirror_link.mirror(source, target, "no-ids-.*", link, is_translated=True)
    for topic, count in zip(anew, (20, 12, 3), strict=True):
        make_anew_with(broker, topic, count)
    with both(source, target) as (origin, _):
        assert origin.run(delete_records, origin, TopicPartition(deleted, 0), 12) == 0
        offsets = {link: {TopicPartition(topic, 0): CommittedOffset(2, "") for topic in names}}
        assert not origin.run(commit_offsets, origin, offsets)[1]
    command = [
        "translate",
        "--target",
        target,
        "--link",
        link,
        "--group",
        link,
        "--source",
        source,
        "--json",
        "--commit",
    ]
    done = CliRunner().invoke(app, command)
    rows = {row["source_topic"]: row for row in json.loads(done.stdout)}
    places = {topic: row["place"] for topic, row in rows.items()}
    assert places == {kept: "record", deleted: "record", **dict.fromkeys(anew, "former-topic")}
    assert {topic for topic, row in rows.items() if row.get("committed")} == {kept, deleted} and done.exit_code == 3
    assert [topic for topic, row in rows.items() if "warning" in row] == [deleted]
    assert f"warning: {deleted}-0: whether it was created again since link {link} copied it is unknown" in done.stderr
    for topic, told in zip(anew, ("has at offset 11 another", "has at offset 11 another", "only up to 3"), strict=True):
        assert [line for line in done.stderr.splitlines() if f"{topic}-0" in line and told in line], (
            topic,
            done.stderr,
        )
    with both(source, target) as (_, there):
        assert there.run(group_offsets, there, link) == {TopicPartition(t, 0): 2 for t in (kept, deleted)}
