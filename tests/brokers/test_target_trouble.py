"""What a mirror makes of a target that others write to, that loses its end or its topics, forgets, throttles or is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import NewTopic
from kafka.protocol.admin import AlterClientQuotasRequest, ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from support.log_readers import LogRecord, read_with_kafka_python
from support.long import LONG
from support.mirror_link import (
    append_records,
    both,
    compare,
    create_again,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    header_at,
    mirror,
)
from support.raising_copier import LinkCopier
from support.settled import settle, until
from tolerant_client.cluster.admin.topics import present_ids
from tolerant_client.cluster.admin.transactions import describe_producers, init_producer_id, write_abort_markers
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    ClusterUnreachableError,
    OversizedRecordError,
    RecoveryExhaustedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.gaps import Gap, filler_batches, marker_producer
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.identical import log_start, resting, sync_loop, unread
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.resume_point import read_append_states
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.strategy import NO_CLAIM
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch, restamp
from tolerant_client.testing import KafkaCluster

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PROCESS = Path(__file__).parent.parent / "support" / "mirror_process.py"
COMMAND = [sys.executable, "-m", "spark_integration.cli.app"]
CONTINUE = MirrorPolicy(on_loss=LossPolicy.CONTINUE)
TRANSACTIONS = MirrorPolicy.parse(gap_fill=["transactions"])


def append_transactions(servers: str, topic: str, count: int, partitions: int = 1) -> None:
    """Transactions of two records in each partition, every other one aborted: markers and aborted records are gaps."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=f"source-{topic}")
    producer.init_transactions()
    for number in range(count):
        producer.begin_transaction()
        for index in range(2 * partitions):
            producer.send(topic, b"%d/%d" % (number, index), partition=index % partitions)
        producer.flush()
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.close()


def ledger_of(servers: str, topic: str) -> list[tuple[int, int, int, str]]:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        return [row[3:7] for row in cluster.run(read_ledger, cluster) if row.topic == topic]


def assert_identical(source: str, target: str, topic: str, partitions: int = 1) -> None:
    assert ends(target, topic, partitions) == ends(source, topic, partitions)
    report = compare(source, target, topic)
    assert report.identical, report


class RunningMirror:
    """A mirror in a thread of its own that follows its source until it is told to end, or fails."""

    def __init__(
        self,
        source: str,
        target: str,
        topics: str,
        link: str,
        limits: CopyLimits = CopyLimits(),
        patience_ms: int = 60_000,
        policy: MirrorPolicy = MirrorPolicy(),
    ) -> None:
        self.error: Exception | None = None
        self.progress: dict[TopicPartition, Progress] = {}
        self.acked: list[tuple[float, int]] = []  # all partitions together, whenever it was looked at
        self.troubles = 0
        self._ends = False
        self._clusters = (source, target, patience_ms)
        self._what = (topics, link, limits, policy)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RunningMirror:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()

    def _run(self) -> None:
        source, target, patience_ms = self._clusters
        topics, link, limits, policy = self._what
        try:
            with both(source, target, patience_ms) as (origin, copy):

                async def run() -> None:
                    prepared = await prepare_link(origin, copy, topics, link, policy)
                    offsets = identical_offsets(prepared.producer_id)
                    copier = LinkCopier(origin, copy, offsets, limits, link=link, policy=policy)
                    while not self._ends:
                        until = await origin.list_offsets(dict.fromkeys(prepared.ends, LATEST), isolation_level=1)
                        copying = origin.net.call_soon_with_future(
                            lambda: copier.copy(until, hold_ms=100, lease_ms=60_000)
                        )
                        while not copying.is_done:
                            await origin.net.sleep(0.05)
                            self.acked.append(
                                (time.monotonic(), sum(c.acked for c in copier.strategy.partitions.values()))
                            )
                            self.troubles = sum(c.troubles for c in copier.strategy.partitions.values())
                        self.progress = await copying

                origin.run(run)
        except Exception as error:
            self.error = error

    def until(self, condition: Callable[[], bool], at_most: float = 60) -> None:
        deadline = time.monotonic() + at_most
        while not condition():
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, (self.acked[-3:], self.troubles)
            time.sleep(0.05)

    def until_copied(self, topic: str, partitions: int = 1, at_most: float = 60) -> None:
        source, target, _ = self._clusters
        wanted = ends(source, topic, partitions)
        self.until(lambda: ends(target, topic, partitions) == wanted, at_most)

    def until_failed(self, at_most: float) -> Exception:
        self._thread.join(at_most)
        assert self.error is not None, "the mirror goes on"
        return self.error


# -- others write to the target -----------------------------------------------

FOREIGN = ["plain", "idempotent", "committed", "aborted", "open"]


class Foreigners:
    """Ordinary clients that write where they should not."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._open: list[kafka.KafkaProducer] = []

    def write(self, kind: str, topic: str, partition: int = 0) -> tuple[int, int]:
        """Appends one record; returns (producer id, offset) as the log shows it."""
        own: dict[str, Any] = {"enable_idempotence": kind != "plain"}
        if kind not in ("plain", "idempotent"):
            own["transactional_id"] = f"foreign-{topic}-{partition}"
        producer = kafka.KafkaProducer(bootstrap_servers=self._servers, **own)
        if "transactional_id" in own:
            producer.init_transactions()
            producer.begin_transaction()
        offset = producer.send(topic, b"foreign", partition=partition).get(timeout=30).offset
        if kind == "open":
            self._open.append(producer)
        else:
            if "transactional_id" in own:
                (producer.abort_transaction if kind == "aborted" else producer.commit_transaction)()
            producer.close()
        return header_at(self._servers, TopicPartition(topic, partition), offset).producer_id, offset

    def close(self) -> None:
        for producer in self._open:
            producer.abort_transaction()
            producer.close()


@pytest.fixture
def foreigners(target: str) -> Iterator[Foreigners]:
    found = Foreigners(target)
    yield found
    found.close()


def assert_names(error: BaseException, topic: str, partition: int, writer: tuple[int, int]) -> None:
    for what in (f"{topic}-{partition} ", f"producer id {writer[0]},", f"offset {writer[1]} "):
        assert what in str(error), (what, str(error))


@pytest.mark.parametrize("kind", ["plain", "committed"])
def test_what_others_wrote_before_the_first_start_is_left_as_it_is(
    source: str, target: str, foreigners: Foreigners, kind: str
) -> None:
    topic = f"target-foreign-before-{kind}"
    create_topic(source, topic)
    append_transactions(source, topic, 3)
    create_topic(target, topic)
    writer = foreigners.write(kind, topic)
    before = ends(target, topic)
    for _ in range(2):
        with pytest.raises(TargetDivergedError) as raised:
            mirror(source, target, topic, policy=CONTINUE)
        assert_names(raised.value, topic, 0, writer)
    assert ends(target, topic) == before and ledger_of(target, topic) == []


@pytest.mark.long
def test_what_others_write_at_the_end_of_a_copy_is_named_at_the_next_start(
    source: str, target: str, foreigners: Foreigners
) -> None:
    topic, partitions = "target-foreign-end", len(FOREIGN)
    create_topic(source, topic, partitions)
    append_transactions(source, topic, 4, partitions)  # the copy ends with what fills a gap
    mirror(source, target, topic)
    writers = [foreigners.write(kind, topic, n) for n, kind in enumerate(FOREIGN)]
    before = ends(target, topic, partitions)
    # Both where the source has nothing beside the foreign record, and where it has.
    for more in (0, 4):
        append_records(source, topic, more, partitions=partitions)
        assert_each_is_named(source, target, topic, writers)
    assert ends(target, topic, partitions) == before and ledger_of(target, topic) == []


def assert_each_is_named(source: str, target: str, topic: str, writers: list[tuple[int, int]]) -> None:
    with both(source, target) as (origin, copy):

        async def run() -> None:
            producer_id = await init_producer_id(copy, "tests")
            copier = LinkCopier(origin, copy, identical_offsets(producer_id), link="tests", policy=CONTINUE)
            for n, writer in enumerate(writers):
                with pytest.raises(TargetDivergedError) as raised:
                    await copier.copy({TopicPartition(topic, n): 1000})
                assert_names(raised.value, topic, n, writer)

        origin.run(run)


@pytest.mark.parametrize("has_gaps", [False, True], ids=["data", "gaps"])
def test_what_others_write_in_the_middle_of_a_copy_stops_it(
    source: str, target: str, foreigners: Foreigners, has_gaps: bool
) -> None:
    topic, partitions = f"target-foreign-middle-{has_gaps}", len(FOREIGN)
    create_topic(source, topic, partitions)

    def append() -> None:
        if has_gaps:
            append_transactions(source, topic, 4, partitions)
        else:
            append_records(source, topic, 40, partitions=partitions, per_batch=10)

    append()
    with both(source, target) as (origin, copy):

        async def run() -> list[tuple[int, int]]:
            link = await prepare_link(origin, copy, topic, "tests", CONTINUE)
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests", policy=CONTINUE)
            await copier.copy(link.ends, lease_ms=60_000)
            # Blocks this loop: the mirror sleeps while the others write.
            writers = [foreigners.write(kind, topic, n) for n, kind in enumerate(FOREIGN)]
            append()
            for n, writer in enumerate(writers):
                partition = TopicPartition(topic, n)
                with pytest.raises(TargetDivergedError) as raised:
                    await copier.copy({partition: link.ends[partition] + 4})
                assert_names(raised.value, topic, n, writer)
            return writers

        writers = origin.run(run)
    assert ledger_of(target, topic) == []
    for n, (_, offset) in enumerate(writers):
        assert header_at(target, TopicPartition(topic, n), offset).base_offset == offset, (
            "the foreign record is still there"
        )


# -- the log becomes shorter, or empty ----------------------------------------


@pytest.fixture
def without_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches go by the names of their topics, as to brokers before 4.1."""
    monkeypatch.setattr(Cluster, "produces_by_id", lambda cluster, node_id, lane: False)


def test_topic_that_is_made_anew_between_two_appends_is_named_under_every_policy(
    source: str, target: str, without_ids: None
) -> None:
    topic = "target-made-anew"
    create_topic(source, topic)
    append_records(source, topic, 100)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "tests", CONTINUE)
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests", policy=CONTINUE)
            await copier.copy(link.ends, lease_ms=60_000)
            # Blocks this loop: the mirror sleeps meanwhile, and no request of it meets the missing topic.
            delete_topic(target, topic)
            create_again(target, topic)
            # Else the mirror may be told that the topic is not there, and fills it again.
            while ends(target, topic) != [0]:
                time.sleep(0.05)
            append_records(source, topic, 50, first=100)
            await copier.copy({partition: 150}, lease_ms=60_000)

        found = f"{topic}-0 has become shorter.*offset 100 was appended at 0.*delete the target topic"
        with pytest.raises(TargetDivergedError, match=found):
            origin.run(run)
    assert ledger_of(target, topic) == []
    delete_topic(target, topic)
    mirror(source, target, topic)
    assert_identical(source, target, topic)


# -- a name is not a topic -----------------------------------------------------


def made_anew_by_others(servers: str, topic: str, count: int) -> None:
    """The topic is deleted and created again, and an application writes into it; blocks the caller, as a freeze does."""
    delete_topic(servers, topic)
    create_again(servers, topic)
    append_records(servers, topic, count, first=7_000_000)


def append_aborted(servers: str, topic: str, offsets: int) -> None:
    """One aborted transaction that takes so many offsets, its marker included."""
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap_servers": servers}, name="writer") as cluster:

        async def run() -> None:
            transaction = ProducerTransaction(cluster, topic, 60_000)
            await transaction.begin()
            await transaction.add_partitions([partition])
            appends = StampedAppends(
                cluster, partition, transaction.producer_id, transaction.producer_epoch, transactional_id=topic
            )
            batches = filler_batches(
                Gap(0, offsets - 1), is_compacted=True, max_batch_bytes=1 << 20, timestamp_ms=1, codec=codecs.ZSTD
            )
            for batch in batches:
                await appends.append(await cluster.leader(partition), *batch)
            await transaction.begin()

        cluster.run(run)


def assert_is_the_applications(servers: str, topic: str, count: int) -> None:
    assert ends(servers, topic) == [count]
    partition = TopicPartition(topic, 0)
    records = read_with_kafka_python(servers, [partition], committed=False)[partition]
    assert sorted(records) == list(range(count))


@pytest.mark.parametrize("transactional_id", [None, "by-id"])
def test_a_broker_refuses_a_batch_for_a_topic_that_was_made_anew(target: str, transactional_id: str | None) -> None:
    topic = f"by-id-{transactional_id}"
    partition = TopicPartition(topic, 0)
    create_topic(target, topic)
    with Cluster({"bootstrap_servers": target}, name="writer") as cluster:

        async def run() -> list[tuple[int, int]]:
            (topic_id,) = (await present_ids(cluster, [topic])).values()
            assert topic_id is not None
            producer_id, epoch = -1, -1
            if transactional_id is not None:
                transaction = ProducerTransaction(cluster, transactional_id, 10_000)
                await transaction.begin()
                await transaction.add_partitions([partition])
                producer_id, epoch = transaction.producer_id, transaction.producer_epoch
            told = []
            for number in range(2):
                node = await cluster.leader(partition)
                batch = bytearray(encode_batch([Record(0, 1, b"k", b"v")]))
                restamp(batch, producer_id, epoch, number, is_transactional=transactional_id is not None)
                (part,) = await cluster.produce(
                    node,
                    {partition: memoryview(batch)},
                    transactional_id=transactional_id,
                    topic_ids={partition: topic_id},
                )
                told.append((part.error_code, part.base_offset))
                assert cluster.produces_by_id(node)
                made_anew_by_others(target, topic, 3)
            return told

        assert cluster.run(run) == [(0, 0), (Errors.UnknownTopicIdError.errno, -1)]


def copy_across_a_freeze(
    source: str, target: str, topic: str, is_time: Callable[[int], bool], frozen_s: float = 0.0
) -> None:
    """Copies a topic; once its log is as far as `is_time` wants the process stands still while the topic is created again.

    No request is half sent then: brokers that know no ids append it to the new topic (DESIGN.md, what remains of M4).
    """
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, topic)
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=topic)
            copying = origin.net.call_soon_with_future(copier.copy, link.ends)
            while not is_time(
                (await copy.list_offsets({TopicPartition(topic, 0): LATEST}))[TopicPartition(topic, 0)]
            ) or (any(known.transport and known.transport._write_buffer for known in copy.manager._conns.values())):
                await origin.net.sleep(0)
            made_anew_by_others(target, topic, 1000)
            time.sleep(frozen_s)
            await copying

        origin.run(run)


def test_a_mirror_that_was_frozen_while_it_copied_appends_nothing_to_the_topic_that_has_the_name_now(
    source: str, target: str
) -> None:
    topic = "frozen-copying"
    create_topic(source, topic)
    append_records(source, topic, 300_000, per_batch=100, timestamp=int(time.time() * 1000))
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 was deleted and created again on the target"):
        copy_across_a_freeze(source, target, topic, lambda end: 5_000 < end < 250_000)
    assert_is_the_applications(target, topic, 1000)


def test_where_brokers_know_no_ids_a_mirror_that_was_frozen_for_more_than_2_s_looks_at_the_log_before_it_appends(
    source: str, target: str, without_ids: None
) -> None:
    topic = "frozen-by-name"
    create_topic(source, topic)
    append_records(source, topic, 300_000, timestamp=int(time.time() * 1000))
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 was deleted and created again on the target"):
        copy_across_a_freeze(source, target, topic, lambda end: 5_000 < end < 250_000, frozen_s=2.5)
    assert_is_the_applications(target, topic, 1000)


def test_a_gap_goes_on_in_no_topic_that_was_made_anew(source: str, target: str) -> None:
    """The log of the application ends inside the gap, and filler says nothing of what lies before it."""
    topic = "frozen-gap"
    create_topic(source, topic)
    append_records(source, topic, 100)
    append_aborted(source, topic, 1_000_000)
    append_records(source, topic, 100)
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 was deleted and created again on the target"):
        copy_across_a_freeze(source, target, topic, lambda end: 1_000 < end < 900_000)
    partition = TopicPartition(topic, 0)
    records = read_with_kafka_python(target, [partition], committed=False)[partition]
    assert sorted(records) == list(range(1000)), "no filler"


def test_a_log_start_deletes_nothing_of_a_topic_that_was_made_anew(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still between reading the headers back and DeleteRecords."""
    topic = "frozen-start"
    create_topic(source, topic)
    append_records(source, topic, 1100)
    delete_records(source, topic, 900)
    read_headers = log_start.others_before

    async def frozen(*args: Any) -> TargetDivergedError | None:
        found = await read_headers(*args)
        if found is None:
            made_anew_by_others(target, topic, 1000)
        return found

    monkeypatch.setattr(log_start, "others_before", frozen)
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 was deleted and created again on the target"):
        mirror(source, target, topic, link=topic)
    assert_is_the_applications(target, topic, 1000)


def test_topic_that_is_made_anew_between_two_appends_is_filled_again_where_brokers_know_ids(
    source: str, target: str
) -> None:
    topic = "target-made-anew-by-id"
    create_topic(source, topic)
    append_records(source, topic, 100)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "tests")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
            await copier.copy(link.ends, lease_ms=60_000)
            delete_topic(target, topic)
            create_again(target, topic)
            while ends(target, topic) != [0]:
                time.sleep(0.05)
            append_records(source, topic, 50, first=100)
            await copier.copy({partition: 150}, lease_ms=60_000)

        origin.run(run)
    assert_identical(source, target, topic)


@pytest.mark.parametrize("fill", [append_records, append_transactions])
def test_topic_that_is_made_anew_while_the_mirror_looks_is_filled_again(
    source: str, target: str, fill: Callable[..., Any]
) -> None:
    topic = f"target-refilled-{fill.__name__}"
    create_topic(source, topic)
    fill(source, topic, 6)
    with RunningMirror(source, target, topic, "refill") as running:
        running.until_copied(topic)
        delete_topic(target, topic)
        fill(source, topic, 6)  # the mirror finds that the topic is not there
        running.until(lambda: running.troubles > 0)
        create_again(target, topic)
        running.until_copied(topic, at_most=30)
        assert running.progress and all(p.records >= 0 for p in running.progress.values())
    assert_identical(source, target, topic)


@pytest.mark.long
@pytest.mark.parametrize("is_session", [True, False], ids=["session", "start"])
@pytest.mark.parametrize("fill", [append_records, append_transactions])
def test_log_that_was_emptied_up_to_its_end_is_continued(
    source: str, target: str, fill: Callable[..., Any], is_session: bool
) -> None:
    topic = f"target-emptied-{fill.__name__}-{is_session}"
    create_topic(source, topic)
    fill(source, topic, 6)
    partition = TopicPartition(topic, 0)

    def empty() -> int:
        (end,) = ends(target, topic)
        admin = kafka.KafkaAdminClient(bootstrap_servers=target)
        admin.delete_records({partition: end})
        admin.close()
        fill(source, topic, 6)
        return end

    if is_session:
        with RunningMirror(source, target, topic, "tests") as running:
            running.until_copied(topic)
            end = empty()
            running.until_copied(topic)
    else:
        mirror(source, target, topic)
        end = empty()
        mirror(source, target, topic)
    assert ends(target, topic) == ends(source, topic)
    original = [r for r in committed(source, topic) if r.offset >= end]
    assert original and committed(target, topic) == original
    assert ledger_of(target, topic) == []


def committed(servers: str, topic: str) -> list[LogRecord]:
    partition = TopicPartition(topic, 0)
    return list(read_with_kafka_python(servers, [partition], committed=True)[partition].values())


def test_all_records_before_one_that_is_too_large_are_copied(source: str, target: str) -> None:
    """The first fetch has it, and most of what lies before it waits to be appended then."""
    topic = "target-oversized"
    create_topic(source, topic)
    create_topic(target, topic, config={"max.message.bytes": "100000"})
    append_records(source, topic, 100, per_batch=1, size=50_000)
    append_records(source, topic, 1, first=100, size=300_000)
    append_records(source, topic, 5, first=101)
    with pytest.raises(OversizedRecordError, match="the record at offset 100"):
        mirror(source, target, topic)
    assert committed(target, topic) == [record for record in committed(source, topic) if record.offset < 100]


# -- the topic is deleted -----------------------------------------------------


@pytest.mark.long
def test_topic_that_is_deleted_stops_its_partitions_within_seconds_and_the_next_start_fills_it_again(
    source: str, target: str
) -> None:
    gone, other = "target-gone", "target-stays"
    for topic in (gone, other):
        create_topic(source, topic)
        append_records(source, topic, 100)
    with RunningMirror(source, target, "target-(gone|stays)", "gone") as running:
        running.until_copied(gone)
        running.until_copied(other)
        delete_topic(target, gone)
        began = time.monotonic()
        for topic in (gone, other):
            append_records(source, topic, 100, first=100)
        error = running.until_failed(30)
        assert time.monotonic() - began < 15
    assert type(error) is TolerantClientError
    assert f" {gone}-0: the target no longer has this partition" in str(error)
    assert "the mirror creates the topic and fills it again" in str(error)
    assert ends(target, gone) == [-1]
    assert ends(target, other) == [200], "the others are brought to their end first"
    mirror(source, target, "target-(gone|stays)", link="gone")
    assert_identical(source, target, gone)


# -- brokers forget -----------------------------------------------------------

FORGETFUL = {
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "200",
    "transactional.id.expiration.ms": "1500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "quota.window.num": "2",  # s; a throttle of Kafka's default windows takes more than ten
}


@pytest.fixture(scope="module")
def forgetful(start_cluster: Callable[..., KafkaCluster]) -> str:
    """A target that forgets producers after 1 s and transactional ids after 1.5 s."""
    return start_cluster(heap="320m", broker_config=FORGETFUL).bootstrap_servers


@pytest.fixture(scope="module")
def forgets_producers(start_cluster: Callable[..., KafkaCluster]) -> str:
    """A target that forgets producers after 1 s, and no transactional ids: a link keeps its producer id."""
    settings = {name: value for name, value in FORGETFUL.items() if name.startswith("producer.id")}
    return start_cluster(heap="320m", broker_config=settings).bootstrap_servers


def until_forgotten(servers: str, topic: str, link: str = "") -> None:
    """Waits until the leader remembers no producer of a topic and, with `link`, until its producer id is another one."""
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:

        async def run() -> None:
            deadline = time.monotonic() + 30
            while (await describe_producers(cluster, [partition]))[partition]:
                assert time.monotonic() < deadline
                await cluster.net.sleep(0.1)
            while link and await transactional_ids(cluster, link):
                assert time.monotonic() < deadline
                await cluster.net.sleep(0.1)

        cluster.run(run)


async def transactional_ids(cluster: Cluster, link: str) -> list[str]:
    answer = await cluster.send(ListTransactionsRequest(state_filters=[], producer_id_filters=[], max_version=0), 1)
    return [
        t.transactional_id
        for t in answer.transaction_states
        if t.transactional_id.startswith(f"tolerant-mirror-{link}")
    ]


FORGOTTEN = pytest.mark.parametrize(
    ("fill", "policy"),
    [
        (append_records, MirrorPolicy()),
        (append_transactions, MirrorPolicy()),
        (append_transactions, TRANSACTIONS),
    ],
    ids=["data", "markers", "transactions"],
)


@FORGOTTEN
def test_copying_goes_on_in_a_session_whose_producers_were_forgotten(
    source: str, forgetful: str, fill: Callable[..., Any], policy: MirrorPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"target-forgotten-{fill.__name__}-{policy.gap_fill.value}"
    looks: list[float] = []

    async def counted(*args: Any) -> Any:
        looks.append(time.monotonic())
        return await read_append_states(*args)

    monkeypatch.setattr(sync_loop, "read_append_states", counted)
    monkeypatch.setattr(resting, "LOOK_S", 3600.0)  # a look at the resting log would renew what was seen of it
    create_topic(source, topic)
    fill(source, topic, 4)
    limits = CopyLimits(append_lease_ms=500)
    with RunningMirror(source, forgetful, topic, topic, limits, policy=policy) as running:
        running.until_copied(topic)
        until_forgotten(forgetful, topic, link=topic)
        time.sleep(2 * limits.append_lease_ms / 1000)  # all may have been forgotten while the mirror was starting
        before = len(looks)
        fill(source, topic, 4)
        running.until_copied(topic)
        assert len(looks) > before, "what was seen of the log is too old to append to without another look"
    assert_identical(source, forgetful, topic)


@pytest.mark.long
@FORGOTTEN
def test_copying_goes_on_at_a_start_with_another_producer_id(
    source: str, forgetful: str, fill: Callable[..., Any], policy: MirrorPolicy
) -> None:
    topic = f"target-forgotten-start-{fill.__name__}-{policy.gap_fill.value}"
    create_topic(source, topic)
    fill(source, topic, 4)
    ids = set()
    for _ in range(3):
        with both(source, forgetful) as (origin, copy):
            ids.add(copy.run(init_producer_id, copy, topic))
        mirror(source, forgetful, topic, link=topic, policy=policy)
        assert_identical(source, forgetful, topic)
        until_forgotten(forgetful, topic, link=topic)
        fill(source, topic, 4)
    assert len(ids) == 3


# -- quotas -------------------------------------------------------------------


@contextmanager
def quota(servers: str, **rates: float) -> Iterator[None]:
    """Bytes a second, or percent of a thread, that each client id may take."""
    entry = AlterClientQuotasRequest.EntryData

    def alter(remove: bool) -> None:
        change = entry(
            entity=[entry.EntityData(entity_type="client-id", entity_name=None)],
            ops=[entry.OpData(key=key, value=rate, remove=remove) for key, rate in rates.items()],
        )
        with Cluster({"bootstrap_servers": servers}, name="admin") as cluster:
            answer = cluster.run(cluster.send, AlterClientQuotasRequest(entries=[change], validate_only=False))
            assert answer.entries[0].error_code == 0, answer

    alter(False)
    settle(servers)
    try:
        yield
    finally:
        alter(True)


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What troubled a partition, whichever."""
    found: list[str] = []
    trouble = PartitionCopy.trouble

    def noted(copy: PartitionCopy, reason: str, now: float) -> None:
        found.append(reason)
        trouble(copy, reason, now)

    monkeypatch.setattr(PartitionCopy, "trouble", noted)
    return found


def copy_at_quota(
    source: str, target: str, throttled: str, topic: str, megabytes: float, **rates: float
) -> tuple[float, float]:
    """Copies so much at a quota; returns how long it took, and the longest time in which nothing was copied, in s."""
    create_topic(source, topic)
    append_records(source, topic, int(2_000 * megabytes), size=500)
    with quota(throttled, **rates), RunningMirror(source, target, topic, "quota") as running:
        running.until_copied(topic, at_most=60 + 3 * megabytes * 1e6 / min(rates.values()) if LONG else 60)
    assert running.error is None
    assert_identical(source, target, topic)
    moves = sorted({acked: at for at, acked in reversed(running.acked) if acked >= 0}.values())
    return moves[-1] - moves[0], max((b - a for a, b in zip(moves, moves[1:], strict=False)), default=0.0)


@pytest.mark.long
def test_mirror_waits_as_long_as_a_quota_asks(source: str, forgetful: str, reasons: list[str]) -> None:
    took, _ = copy_at_quota(source, forgetful, forgetful, "target-quota", 2, producer_byte_rate=700_000.0)
    assert took > 1, "nothing was throttled"
    assert reasons == [], "an answer that was only late was taken for a lost one"


@pytest.mark.long
@pytest.mark.parametrize(
    "where, megabytes, rates",
    [
        ("target", 40, {"producer_byte_rate": 1_000_000.0}),
        # A single request of 8 MB is throttled for longer than the client believes (policy.py, max_throttle_ms).
        ("target", 16, {"producer_byte_rate": 150_000.0}),
        ("source", 40, {"consumer_byte_rate": 1_000_000.0}),
    ],
    ids=["produce", "slow", "fetch"],
)
def test_mirror_goes_on_at_the_rate_of_a_quota(
    source: str, target: str, where: str, megabytes: float, rates: dict[str, float], reasons: list[str]
) -> None:
    topic = f"target-quota-{where}-{megabytes}-{next(iter(rates))}"
    throttled = {"source": source, "target": target}[where]
    took, longest = copy_at_quota(source, target, throttled, topic, megabytes, **rates)
    print(f"{where} {rates}: {megabytes} MB took {took:.0f} s, nothing for {longest:.0f} s, {len(reasons)} troubles")
    assert reasons == [], "an answer that was only late was taken for a lost one"


@pytest.mark.long
def test_a_quota_of_requests_may_cost_a_claim_and_no_record(source: str, target: str, reasons: list[str]) -> None:
    """What throttles a fetch empties its response, that of the claims, too: a claim that is not read back lapses."""
    took, longest = copy_at_quota(source, target, target, "target-quota-requests", 40, request_percentage=1.0)
    print(f"40 MB took {took:.0f} s, nothing for {longest:.0f} s, {len(reasons)} troubles")
    assert set(reasons) <= {NO_CLAIM}


@pytest.mark.long
def test_a_translated_copy_waits_for_a_quota_and_sends_nothing_twice(source: str, forgetful: str) -> None:
    """A transaction that is aborted for it is sent again without end, and fills the target's log."""
    topic = link = "target-quota-translated"
    create_topic(source, topic, 2)
    append_records(source, topic, 2_000, partitions=2, size=1_000)
    with both(source, forgetful) as (origin, there), quota(forgetful, producer_byte_rate=700_000.0):

        async def run() -> dict[TopicPartition, Progress]:
            prepared = await prepare_link(origin, there, topic, link, is_translated=True)
            return await LinkCopier(origin, there, translated_offsets(), link=link).copy(prepared.ends)

        began = time.monotonic()
        progress = origin.run(run).values()
    assert time.monotonic() - began > 1, "nothing was throttled"
    assert [(done.records, done.troubles) for done in progress] == [(2_000, 0)] * 2
    assert sum(ends(forgetful, topic, 2)) < 4_000 + 50, "besides the records only markers"


@pytest.mark.long
@pytest.mark.parametrize("rate", [100_000, 50_000])
@pytest.mark.parametrize("is_translated", [True, False], ids=["translated", "identical"])
def test_a_batch_that_is_throttled_for_longer_than_a_transaction_lasts_is_copied_once(
    source: str, target: str, is_translated: bool, rate: int
) -> None:
    """8 MB at 100 kB/s are throttled for 70 s: the rows of the map and the transaction's end do not wait for that."""
    topic = link = f"target-quota-large-{rate}-{is_translated}"
    partitions = [TopicPartition(topic, number) for number in range(2)]
    create_topic(source, topic, 2, {"max.message.bytes": "10000000"})
    size = records = 0
    for large in (8_000_000, 2_000_000):
        size += append_records(source, topic, 50, partitions=2, first=records)
        size += append_records(source, topic, 1, first=records + 50, size=large)
        size += append_records(source, topic, 50, partitions=2, first=records + 51)
        records += 101
    with both(source, target) as (origin, there), quota(target, producer_byte_rate=float(rate)):

        async def run() -> dict[TopicPartition, Progress]:
            prepared = await prepare_link(origin, there, topic, link, is_translated=is_translated)
            kind = translated_offsets() if is_translated else identical_offsets(prepared.producer_id)
            return await LinkCopier(origin, there, kind, link=link).copy(prepared.ends)

        began = time.monotonic()
        progress = origin.run(run)
        took = time.monotonic() - began
    print(f"{size} bytes at {rate} bytes a second took {took:.0f} s, {progress}")
    assert [progress[each].troubles for each in partitions] == [0, 0]
    assert sum(ends(target, topic, 2)) <= sum(ends(source, topic, 2)) + 60 * is_translated, "only markers besides"
    logs = [read_with_kafka_python(servers, partitions, committed=True) for servers in (source, target)]
    copied, there_now = [
        [[(r.timestamp, r.key, r.value) for _, r in sorted(log[each].items())] for each in partitions] for log in logs
    ]
    assert there_now == copied
    # The last large batch is not waited for, and a broker averages over its windows.
    assert (size - 2_100_000) / rate * 0.8 < took < size / rate * 1.2 + 20


@pytest.mark.long
def test_many_partitions_share_a_quota_without_an_aborted_transaction_and_end_at_once(source: str, target: str) -> None:
    """The rows and the ends of transactions, and the claims, come between the batches of all partitions."""
    topic = link = "target-quota-shared"
    create_topic(source, topic, 48)
    append_records(source, topic, 1_000, partitions=48, size=1_000)
    with both(source, target) as (origin, there), quota(target, producer_byte_rate=200_000.0):

        async def run() -> tuple[float, int, int]:
            prepared = await prepare_link(origin, there, topic, link, is_translated=True)
            copier = LinkCopier(origin, there, translated_offsets(), link=link)
            origin.net.call_soon_with_future(lambda: copier.copy(prepared.ends, hold_ms=600_000))
            await origin.net.sleep(60)
            copies = list(copier.strategy.partitions.values())
            began = time.monotonic()
            await copier.strategy.give_back(list(prepared.ends))
            return time.monotonic() - began, sum(copy.records for copy in copies), sum(copy.troubles for copy in copies)

        stopped_s, records, troubles = origin.run(run)
    print(f"{records} records, stopped in {stopped_s:.1f} s, {troubles} troubles")
    assert records > 8_000 and troubles == 0 and stopped_s < 20
    assert sum(ends(target, topic, 48)) < records + 500, "besides the records only markers"


def test_markers_do_not_lie_unread_behind_a_fetch_that_is_throttled(forgetful: str) -> None:
    """Nothing fences them: read when the throttle ends, they would follow what another mirror has written meanwhile."""
    partition = TopicPartition("target-quota-markers", 0)
    create_topic(forgetful, partition.topic)
    append_records(forgetful, partition.topic, 1_000, size=1_000, per_batch=100)
    with quota(forgetful, consumer_byte_rate=10_000.0), Cluster({"bootstrap_servers": forgetful}) as cluster:

        async def run() -> float:
            node = await cluster.leader(partition)
            for _ in range(3):  # on the connection of ordinary requests
                cluster.net.call_soon_with_future(lambda: cluster.fetch(node, {partition: 0}, max_wait_ms=0))
            await cluster.net.sleep(0)
            began = time.monotonic()
            assert await write_abort_markers(cluster, node, partition, [marker_producer(1_000)]) == set()
            return time.monotonic() - began

        took = cluster.run(run)
    print(f"the marker was there after {took:.1f} s")
    assert took < 20  # the throttle takes more than a minute


def killed_under_a_quota(source: str, target: str, topic: str) -> tuple[list[int], float]:
    """Kills a mirror a second after its first append to 8 partitions; where these end then, and when that was."""
    command = [sys.executable, str(PROCESS), source, target, topic, topic, json.dumps({"produce_max_bytes": 1})]
    with quota(target, producer_byte_rate=2_500.0):  # a batch of 100 kB throttles for 40 s
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while sum(ends(target, topic, 8)) <= 0:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        process.kill()
        process.wait()
        killed = time.monotonic()
        return ends(target, topic, 8), killed


def test_a_mirror_that_is_stopped_under_a_quota_says_what_is_unsettled_and_exits_with_3(
    source: str, target: str
) -> None:
    topic = "target-quota-stopped"
    create_topic(source, topic, 8)
    now_ms = int(time.time() * 1000)  # so that several batches of a partition are in flight
    append_records(source, topic, 10_000, partitions=8, size=1_000, per_batch=100, timestamp=now_ms)
    where = ["--source", source, "--target", target, "--topics", topic, "--link", topic]
    mirror = subprocess.Popen([*COMMAND, "mirror", *where, "--tasks", "0"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while sum(ends(target, topic, 8)) < 5_000:
        assert mirror.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    with quota(target, producer_byte_rate=50_000.0):
        time.sleep(1)
        mirror.terminate()
        _, errors = mirror.communicate(timeout=240)
    assert mirror.returncode == 3 and f"unsettled: {topic}-" in errors, errors


@pytest.mark.long
def test_what_a_throttle_held_of_a_killed_mirror_is_not_appended_to_its_finished_copy(
    source: str, forgetful: str
) -> None:
    """A broker reads the connection of a client that is dead when the throttle ends, and knows no producer of old records."""
    topic = link = "target-quota-killed"
    create_topic(source, topic, 8)
    append_records(source, topic, 200, partitions=8, size=1_000, per_batch=100)
    at_kill, killed = killed_under_a_quota(source, forgetful, topic)
    mirror(source, forgetful, topic, link=link)
    took = time.monotonic() - killed
    print(f"{at_kill} at the kill, copied {took:.0f} s after it")
    assert sum(at_kill) < 1_600 and took < 35, "the throttle was over before"
    while time.monotonic() - killed < 60:
        assert ends(forgetful, topic, 8) == [200] * 8
        time.sleep(0.5)
    assert_identical(source, forgetful, topic, 8)


@pytest.mark.long
def test_old_records_are_not_appended_while_newer_ones_of_a_killed_mirror_lie_unread(
    source: str, forgets_producers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker knows the producer of the newer ones until an old one is the last."""
    topic = link = "target-quota-ages"
    monkeypatch.setattr(unread, "LATE_S", 75.0)
    create_topic(source, topic, 8)
    in_50_min = int(time.time() * 1000) + 3_000_000  # so that a broker that forgets after 1 s remembers it
    append_records(source, topic, 100, partitions=8, size=1_000, per_batch=100, timestamp=in_50_min)
    append_records(source, topic, 100, partitions=8, size=1_000, per_batch=100, first=100)
    at_kill, killed = killed_under_a_quota(source, forgets_producers, topic)
    mirror(source, forgets_producers, topic, link=link)
    print(f"{at_kill} at the kill, copied {time.monotonic() - killed:.0f} s after it")
    while time.monotonic() - killed < 80:
        assert ends(forgets_producers, topic, 8) == [200] * 8
        time.sleep(0.5)
    assert sum(at_kill) < 1_600
    assert_identical(source, forgets_producers, topic, 8)


# -- epochs, elections, replicas and disks -----------------------------


@pytest.mark.long
def test_copying_goes_on_once_the_epochs_of_its_transactional_ids_are_used_up(source: str, target: str) -> None:
    topic, link = "target-epochs", "epochs"
    create_topic(source, topic)
    append_transactions(source, topic, 4)
    with RunningMirror(source, target, topic, link, policy=TRANSACTIONS) as running:
        running.until_copied(topic)
        for transactional_id in (f"tolerant-mirror-{link}", f"tolerant-mirror-{link}-gap-{topic}-0"):
            assert use_up_epochs(target, transactional_id) >= 32_000
        append_transactions(source, topic, 4)
        append_records(source, topic, 10)
        running.until_copied(topic)
    assert_identical(source, target, topic)
    append_transactions(source, topic, 4)
    mirror(source, target, topic, link=link, policy=TRANSACTIONS)
    assert_identical(source, target, topic)


def use_up_epochs(servers: str, transactional_id: str) -> int:
    """Takes epochs until the id has another producer id; returns how many."""
    with Cluster({"bootstrap_servers": servers}, name="admin") as cluster:

        async def run() -> int:
            def ask() -> Any:
                return cluster.manager.send(
                    InitProducerIdRequest(
                        transactional_id=transactional_id,
                        transaction_timeout_ms=10_000,
                        producer_id=-1,
                        producer_epoch=-1,
                        max_version=4,
                    ),
                    1,
                )

            await cluster.connect()
            asked = deque(ask() for _ in range(50))
            seen: set[int] = set()
            for count in range(40_000):
                answer = await asked.popleft()
                asked.append(ask())
                assert answer.error_code == 0, answer
                seen.add(answer.producer_id)
                if len(seen) == 2:
                    for future in asked:
                        await future
                    return count
            raise AssertionError(f"{seen}, epoch {answer.producer_epoch}")

        return cluster.run(run)


@pytest.fixture(scope="module")
def three_nodes(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    settings = {"unclean.leader.election.enable": "true", "unclean.leader.election.interval.ms": "1000"}
    return start_cluster(nodes=3, heap="256m", broker_config=settings)


def create_replicated(servers: str, topic: str, replicas: list[list[int]], min_isr: int) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    try:
        assignment = dict(enumerate(replicas))
        config = {"min.insync.replicas": str(min_isr), "unclean.leader.election.enable": str(min_isr == 1).lower()}
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignment, topic_configs=config)])
    finally:
        admin.close()


def is_leaderless(servers: str, partition: TopicPartition) -> bool:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        cluster.run(cluster.connect)
        cluster.run(cluster.track, [partition.topic])
        return cluster.known_leader(partition) is None


def end_of(servers: str, partition: TopicPartition) -> int:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        return cluster.run(cluster.list_offsets, {partition: LATEST})[partition]


FILLS = pytest.mark.parametrize("fill", [append_records, append_transactions], ids=["data", "gaps"])


@pytest.mark.long
@FILLS
def test_what_an_unclean_election_took_back_on_the_target_is_copied_again(
    source: str, three_nodes: KafkaCluster, fill: Callable[..., Any], reasons: list[str]
) -> None:
    topic, target = f"target-unclean-{fill.__name__}", three_nodes.bootstrap_servers
    create_topic(source, topic)
    create_replicated(target, topic, [[1, 2]], 1)
    fill(source, topic, 20)
    with RunningMirror(source, target, topic, "unclean") as running:
        running.until_copied(topic)
        (kept,) = ends(target, topic)
        three_nodes.kill(2)
        fill(source, topic, 20)
        running.until_copied(topic)
        three_nodes.kill(1)
        three_nodes.restart(2, wait=False)
        time.sleep(8)
        assert ends(target, topic) == [kept], "the election took nothing back"
        fill(source, topic, 20)
        running.until_copied(topic, at_most=90)
    three_nodes.restart(1)
    print("UNCLEAN", fill.__name__, set(reasons))
    assert_identical(source, target, topic)
    assert ledger_of(target, topic) == []


@pytest.mark.long
@FILLS
@pytest.mark.parametrize("away", [(2,), (3, 2)], ids=["one", "two"])
def test_mirror_waits_for_replicas_that_are_away(
    source: str, three_nodes: KafkaCluster, fill: Callable[..., Any], away: tuple[int, ...], reasons: list[str]
) -> None:
    """With one of two replicas away the broker answers NOT_ENOUGH_REPLICAS, with two of three nodes nobody is elected."""
    topic, target = f"target-replicas-{fill.__name__}-{len(away)}", three_nodes.bootstrap_servers
    create_topic(source, topic)
    create_replicated(target, topic, [[1, 2]] if len(away) == 1 else [[1, 2, 3]], 2)
    fill(source, topic, 20)
    with RunningMirror(source, target, topic, "replicas") as running:
        running.until_copied(topic)
        filling = threading.Thread(target=lambda: [(fill(source, topic, 10), time.sleep(0.1)) for _ in range(40)])
        filling.start()
        time.sleep(1)
        for node_id in away:
            three_nodes.kill(node_id)
        time.sleep(20)
        for node_id in away:
            three_nodes.restart(node_id, wait=False)
        three_nodes.wait_ready()
        filling.join()
        running.until_copied(topic, at_most=90)
    print("REPLICAS", fill.__name__, away, set(reasons))
    assert_identical(source, target, topic)


@pytest.mark.parametrize("offsets", ["identical", "translated"])
def test_a_partition_without_a_leader_on_the_target_is_named_holds_up_no_other_and_comes_back(
    source: str, three_nodes: KafkaCluster, offsets: str
) -> None:
    """`plan`, `mirror --once`, `status`, `promote` and a running mirror say of the target's brokers what they say of the source's."""
    topic, target = f"target-leaderless-{offsets}", three_nodes.bootstrap_servers
    led, lost = TopicPartition(topic, 0), TopicPartition(topic, 1)
    create_topic(source, topic, 2)
    create_replicated(target, topic, [[1], [2]], 1)
    append_records(source, topic, 10, partitions=2)
    link = ["--source", source, "--target", target, "--topics", topic, "--link", topic]
    mirroring = ["mirror", *link, "--offsets", offsets, "--tasks", "0"]
    run = partial(subprocess.run, capture_output=True, text=True, timeout=90)
    assert run([*COMMAND, *mirroring, "--once"]).returncode == 0
    append_records(source, topic, 10, first=10, partitions=2)
    why = "it has no leader on the target"
    three_nodes.kill(2)
    try:
        until(lambda: is_leaderless(target, lost))
        planned = run([*COMMAND, "plan", *link, "--json"])
        assert planned.returncode == 3, planned.stdout
        (found,) = json.loads(planned.stdout)["topics"]
        assert (found["to_copy"], found["waiting"]) == (10, {"1": why})
        status = json.loads(run([*COMMAND, "status", *link, "--json"]).stdout)
        assert [r for r in status["reasons"] if f"{topic}-1" in r["text"] and why in r["text"]], status["reasons"]
        once = run([*COMMAND, *mirroring, "--once", "--json"])
        assert once.returncode == 3, once.stderr
        assert json.loads(once.stdout)["waiting"] == [{"topic": topic, "partition": 1, "reason": why}]
        assert end_of(target, led) >= 20
        promoted = run([*COMMAND, "promote", *link, "--yes", "--json"])
        assert promoted.returncode == 3, promoted.stderr
        (blocker,), rows = (json.loads(promoted.stdout)[name] for name in ("blockers", "partitions"))
        assert f"{topic}-1 cannot be fenced" in blocker and why in blocker
        assert sorted((row["partition"], row["copied_until"], row["lag"]) for row in rows) == [
            (0, 20, 0),
            (1, None, None),
        ]
        running = subprocess.Popen([*COMMAND, *mirroring], stderr=subprocess.PIPE, text=True)
        try:
            append_records(source, topic, 10, first=20, partitions=2)
            until(lambda: end_of(target, led) >= 30)
            three_nodes.restart(2)
            until(lambda: end_of(target, lost) >= 30)
            running.send_signal(signal.SIGTERM)
            _, told = running.communicate(timeout=240)
        finally:
            running.kill()
        assert f"waiting: {topic}-1: {why}" in told, told
    finally:
        three_nodes.restart(2)
    assert run([*COMMAND, *mirroring, "--once"]).returncode == 0
    logs = read_with_kafka_python(target, [led, lost], committed=True)
    for log in logs.values():
        assert sorted(int(record.key or b"") for record in log.values()) == list(range(30))


@pytest.mark.long
def test_leaders_that_are_killed_again_and_again_leave_an_identical_copy_or_a_named_divergence(
    source: str, three_nodes: KafkaCluster, reasons: list[str]
) -> None:
    topic, target = "target-kills", three_nodes.bootstrap_servers
    kills = int(os.environ.get("TOLERANT_RACE_KILLS", "6"))
    create_topic(source, topic, 6)
    create_replicated(target, topic, [[n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1] for n in range(6)], 2)
    ended = threading.Event()

    def fill() -> None:
        while not ended.is_set():
            append_transactions(source, topic, 20, 6)

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        with RunningMirror(source, target, topic, "kills") as running:
            running.until(lambda: running.acked[-1:] and running.acked[-1][1] > 100)
            for number in range(kills):
                node_id = number % 3 + 1
                three_nodes.kill(node_id)
                time.sleep(5)
                three_nodes.restart(node_id)
                time.sleep(3)
            ended.set()
            filling.join()
            try:
                running.until_copied(topic, 6, at_most=120)
            except TargetDivergedError as error:
                print("KILLS", error)
                return
    finally:
        ended.set()
        filling.join()
        print("KILLS", running.acked[-1], len(reasons), set(reasons))
    assert_identical(source, target, topic, 6)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 80 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
def test_full_disk_of_the_target_is_waited_for_and_named(source: str, small_disk: Path, reasons: list[str]) -> None:
    topic = "target-disk"
    create_topic(source, topic)
    append_records(source, topic, 120_000, size=1000)
    with KafkaCluster(heap="320m", work_dir=small_disk / "kafka") as cluster:
        target = cluster.bootstrap_servers
        limits = CopyLimits(patience_ms=10_000)
        with RunningMirror(source, target, topic, "disk", limits, patience_ms=10_000) as running:
            error = running.until_failed(120)
        print("DISK", error, set(reasons))
        assert isinstance(error, (RecoveryExhaustedError, ClusterUnreachableError))
        assert cluster.pid(1) is None, "the broker did not end"
        assert target in str(error) or f"{topic}-0" in str(error)
        subprocess.run(["mount", "-o", "remount,size=600m", str(small_disk)], check=True)
        cluster.restart(1)
        mirror(source, target, topic, link="disk")
        assert_identical(source, target, topic)
