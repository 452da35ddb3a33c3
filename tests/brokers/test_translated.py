"""Translated offsets on real brokers: each record once beside other writers, an exact map, groups that move without replays."""

from __future__ import annotations

import bisect
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import kafka
import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from support.log_readers import LogRecord, read_bounds, read_with_confluent
from support.long import LONG
from support.mirror_link import (
    append_batches,
    append_records,
    both,
    compare,
    configure,
    create_topic,
    delete_topic,
    ends,
    make_anew,
    mirror,
    move_groups,
    prepare_translated_link,
)
from support.nasty_topics import nasty_topic
from support.nasty_writer import BROKER_CONFIG, write_topics
from support.raising_copier import LinkCopier
from support.tree import SUPPORT
from tolerant_client import KafkaConsumer
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.errors import (
    DataLossError,
    LinkPromotedError,
    OptionError,
    OversizedRecordError,
    PartitionRefusedError,
    TargetDivergedError,
)
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.limits import CopyLimits, Progress, TransactionLimits
from tolerant_client.mirror.engine.translated import partition as translated_partition
from tolerant_client.mirror.engine.translated import shared_reads
from tolerant_client.mirror.engine.translated.copy_transaction import CopyTransaction
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow.translate import commit_group, group_offsets, translate, translate_group
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.listing import list_links
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state import offset_map
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import PARTITION_DELETED_ON_SOURCE, Health
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.mirror.state.map_rows import clear_deleted, read_maps
from tolerant_client.mirror.state.map_topic import copier_id, map_partition, map_topic
from tolerant_client.mirror.state.offset_map import MapRow, OffsetMap, Place, RowKey, Run
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.state_topic import StateTopic
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.ops.doctor.finding import Severity
from tolerant_client.ops.doctor.link_examination import Subject, examine
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing import KafkaCluster

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

WRITER = SUPPORT / "translated_process.py"
FAST = TransactionLimits(takeover_ms=300, linger_ms=5, commit_ms=50)
STEPS = ("take_over", "open", "send", "settle", "write_rows", "commit", "renew")


class ForeignWriter:
    """Somebody else who writes to the target topic all the time."""

    def __init__(self, servers: str, topic: str) -> None:
        self.sent = 0
        self._topic = topic
        self._producer = kafka.KafkaProducer(bootstrap_servers=servers)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped.wait(0.003):
            self._producer.send(self._topic, b"foreign", b"%d" % self.sent, partition=0)
            self._producer.flush()
            self.sent += 1

    def __enter__(self) -> ForeignWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._producer.close()


def copy(
    source: str,
    target: str,
    topics: LinkTopics | str,
    link: str,
    limits: TransactionLimits = FAST,
    bounds: CopyLimits = CopyLimits(),
    *,
    goes_on: bool = False,
) -> None:
    with both(source, target, names=LinkTopics.of(topics).names) as (origin, there):

        async def run() -> None:
            prepared = await prepare_translated_link(origin, there, topics, link, goes_on=goes_on)
            copier = LinkCopier(origin, there, translated_offsets(limits), bounds, link=link)
            await copier.copy(prepared.ends)
            assert copier.link.memory.in_flight == 0

        origin.run(run)


def maps_of(target: str, link: str) -> dict[TopicPartition, OffsetMap]:
    with both(target, target) as (there, _):
        return there.run(read_maps, there, link)


def content(record: LogRecord) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.value, record.headers


def committed_logs(servers: str, topic: str, partitions: int = 1) -> list[dict[int, LogRecord]]:
    """By librdkafka, with read_committed."""
    wanted = [TopicPartition(topic, n) for n in range(partitions)]
    logs = read_with_confluent(servers, wanted, committed=True)
    return [logs[partition] for partition in wanted]


def require_exact_copy(
    source: str,
    target: str,
    topic: str,
    link: str,
    partitions: int = 1,
    foreign: int = 0,
    target_topic: str | None = None,
) -> None:
    """Each record once, in order, and where the map says; and the others' records as they were sent."""
    maps = maps_of(target, link)
    originals, copies = (
        committed_logs(source, topic, partitions),
        committed_logs(target, target_topic or topic, partitions),
    )
    for n, (original, copied) in enumerate(zip(originals, copies)):
        others = [o for o, record in copied.items() if record.value == b"foreign"]
        assert [copied[o].key for o in others] == [b"%d" % k for k in range(foreign if n == 0 else 0)]
        not_ours = set(others)
        ours = {o: record for o, record in copied.items() if o not in not_ours}
        assert [content(ours[o]) for o in sorted(ours)] == [content(original[o]) for o in sorted(original)]
        found = maps[TopicPartition(target_topic or topic, n)]
        for offset, there in zip(sorted(original), sorted(ours)):
            assert found.translate(offset)[1:3] == (there, Place.RECORD)
            assert found.source_of(there)[1:3] == (offset, Place.RECORD)


def require_exact_copy_of_the_rest(source: str, target: str, topic: str, link: str, copied_before: int) -> None:
    """As require_exact_copy, where the source no longer has the first records that were copied."""
    original, copied = committed_logs(source, topic)[0], committed_logs(target, topic)[0]
    found = maps_of(target, link)[TopicPartition(topic, 0)]
    rest = sorted(copied)[copied_before:]
    assert [content(copied[o]) for o in rest] == [content(original[o]) for o in sorted(original)]
    assert [found.translate(o).translated for o in sorted(original)] == rest


def transactional_records(servers: str, topic: str, transactions: int, each: int = 20) -> None:
    """Two producers, interleaved; every third transaction is aborted."""
    producers = [
        kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-{n}", linger_ms=0) for n in range(2)
    ]
    for producer in producers:
        producer.init_transactions()
    for n in range(transactions):
        for producer in producers:
            producer.begin_transaction()
        for k in range(each):
            producers[k % 2].send(topic, b"transactional", b"%d/%d" % (n, k), partition=0)
        for m, producer in enumerate(producers):
            if (2 * n + m) % 3 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    for producer in producers:
        producer.close()


# -- what is copied -----------------------------------------------------------


def test_committed_records_are_copied_once_beside_other_writers_and_the_map_tells_each_offset(
    source: str, target: str
) -> None:
    topic = "translated-beside"
    create_topic(source, topic, 2)
    with both(source, target) as (origin, there):
        origin.run(prepare_translated_link, origin, there, topic, "beside")
    with ForeignWriter(target, topic) as foreign:
        append_records(source, topic, 500, partitions=2, per_batch=7)
        copy(source, target, topic, "beside")
        transactional_records(source, topic, 6)
        append_records(source, topic, 500, partitions=2, first=500, codec=1)
        copy(source, target, topic, "beside")
        transactional_records(source, topic, 1)
        copy(source, target, topic, "beside")
        copy(source, target, topic, "beside")
    require_exact_copy(source, target, topic, "beside", 2, foreign.sent)
    end = read_bounds(source, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)].end
    at_end = maps_of(target, "beside")[TopicPartition(topic, 0)].translate(end)
    assert (at_end.place, at_end.position) == (Place.END, end), "behind the last marker nothing is missing"


def test_a_large_copy_that_died_is_aborted_and_the_next_one_goes_on(source: str, target: str) -> None:
    """It is longer than what is read of a log to find lost rows: what was not read of it is not open."""
    topic, link = "translated-died", "died"
    create_topic(source, topic)
    append_records(source, topic, 5)
    copy(source, target, topic, link)
    died = kafka.KafkaProducer(
        bootstrap_servers=target, transactional_id=copier_id(link, TopicPartition(topic, 0)), max_request_size=1 << 20
    )
    died.init_transactions()
    died.begin_transaction()
    sent = [died.send(topic, bytes(900_000), partition=0) for _ in range(3)]
    assert all(one.get(30).offset for one in sent)
    died.close()  # its transaction is open
    append_records(source, topic, 5, first=5)
    copy(source, target, topic, link)
    require_exact_copy(source, target, topic, link)


@pytest.mark.long
def test_a_partition_for_which_a_response_has_no_room_is_not_passed_over(source: str, target: str) -> None:
    """A broker leaves it empty, and tells its last stable offset all the same (KIP-74)."""
    topic, partitions = "translated-no-room", 10
    create_topic(source, topic, partitions)
    append_records(source, topic, 300, partitions=partitions, per_batch=10, size=1000)
    create_topic(target, topic, partitions)
    bounds = CopyLimits(fetch_max_bytes=64 << 10, partition_max_bytes=32 << 10)
    copy(source, target, topic, "translated-no-room", bounds=bounds)
    require_exact_copy(source, target, topic, "translated-no-room", partitions)


def test_verify_says_that_there_is_nothing_to_compare_offset_by_offset(source: str, target: str) -> None:
    topic = "translated-verify"
    create_topic(source, topic)
    create_topic(target, topic)
    append_records(source, topic, 100)
    append_records(target, topic, 10, first=100)  # somebody else's
    copy(source, target, topic, "translated-verify")
    for is_known in (True, False):  # without its control its map says it
        if not is_known:
            delete_topic(target, CONTROL_TOPIC)
        report = compare(source, target, topic)
        (part,) = report.partitions
        assert report.outcome.exit_code == 2 and part.first_difference is None
        assert "link translated-verify copies it with translated offsets" in (part.error or "")


def test_a_target_topic_may_have_another_name(source: str, target: str) -> None:
    create_topic(source, "translated-named")
    append_records(source, "translated-named", 100)

    west = LinkTopics(TopicFilter(("translated-named",)), TopicNames(DefaultReplicationPolicy(), "west"), "east")
    copy(source, target, west, "named")
    require_exact_copy(source, target, "translated-named", "named", target_topic="west.translated-named")


def test_what_arrives_while_a_copy_is_held_is_committed_soon(source: str, target: str) -> None:
    topic = "translated-held"
    create_topic(source, topic)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, there):

        async def run() -> int:
            await prepare_translated_link(origin, there, topic, "held-translated")
            copier = LinkCopier(origin, there, translated_offsets(), link="held-translated")
            held = origin.net.call_soon_with_future(lambda: copier.copy({partition: None}, hold_ms=4000, lease_ms=100))
            await origin.net.sleep(0.5)
            append_records(source, topic, 5)
            progress = (await held)[partition]
            assert progress.records == 5
            while copier.strategy.partitions:  # until the lease is over
                await origin.net.sleep(0.05)
            return progress.acked

        assert origin.run(run) == 5


# -- races and deaths ---------------------------------------------------------


class Paused(CopyTransaction):
    """A writer that stops before, or after, its `step` until it is let go."""

    step = ""
    is_after = False
    gate: Any = None
    reached: Any = None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != object.__getattribute__(self, "step") or object.__getattribute__(self, "gate") is None:
            return found
        return self._stopping(found)

    def _stopping(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def stop() -> None:
            reached, gate = self.reached, self.gate
            self.reached = None
            if reached is not None:
                reached.success(None)
                await gate

        async def stopping(*args: Any, **options: Any) -> Any:
            if not self.is_after:
                await stop()
            result = await method(*args, **options)
            if self.is_after:
                await stop()
            return result

        return stopping


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [s for s in STEPS if s != "send" and (LONG or s in ("settle", "commit"))])
def test_a_writer_paused_at_any_step_while_another_takes_over_does_nothing_more(
    source: str, target: str, step: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A is at the step.  2. B takes over, copies all.  3. A goes on.  Where A is never let go, it is a kill -9."""
    link = topic = f"translated-pause-{step}-{is_after}"
    create_topic(source, topic)
    append_records(source, topic, 60, per_batch=20)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, there):

        async def run() -> None:
            await prepare_translated_link(origin, there, topic, link)
            first = LinkCopier(origin, there, translated_offsets(FAST), link=link)
            second = LinkCopier(origin, there, translated_offsets(FAST), link=link)
            monkeypatch.setattr(Paused, "gate", kafka.future.Future())
            monkeypatch.setattr(Paused, "reached", kafka.future.Future())
            monkeypatch.setattr(Paused, "step", step)
            monkeypatch.setattr(Paused, "is_after", is_after)
            reached, gate = Paused.reached, Paused.gate
            monkeypatch.setattr(translated_partition, "CopyTransaction", Paused)
            paused = origin.net.call_soon_with_future(lambda: first.copy({partition: 100}))
            await reached
            monkeypatch.setattr(translated_partition, "CopyTransaction", CopyTransaction)
            append_records(source, topic, 40, first=60, per_batch=20)
            # As if its claim had come to it while the first one was frozen: the epochs of the transactions are the second lock.
            monkeypatch.setattr(second.claims, "holds", lambda claim: True)
            monkeypatch.setattr(second.claims, "term", lambda claim: 1)
            monkeypatch.setattr(second.claims, "rivals", dict)
            assert (await second.copy({partition: 100}))[partition].acked == 100
            gate.success(None)
            assert (await paused)[partition].acked == 100

        origin.run(run)
    require_exact_copy(source, target, topic, link)


@pytest.mark.long
def test_two_copiers_at_once_let_each_other_live_and_copy_every_record_once(source: str, target: str) -> None:
    topic = "translated-two"
    create_topic(source, topic, 2)
    append_records(source, topic, 4000, partitions=2, per_batch=10)
    limits = TransactionLimits(takeover_ms=200, linger_ms=5, commit_ms=20, commit_bytes=20_000)
    with both(source, target) as (origin, there):

        async def run() -> None:
            prepared = await prepare_translated_link(origin, there, topic, "two")
            copiers = [LinkCopier(origin, there, translated_offsets(limits), link="two", run="one") for _ in range(2)]
            calls = [origin.net.call_soon_with_future(lambda c=c: c.copy(prepared.ends)) for c in copiers]
            done = [await call for call in calls]
            # Who handed a partition over leaves its report to the other one.
            for partition, end in prepared.ends.items():
                assert max(progress[partition].acked for progress in done) == end

        origin.run(run)
    require_exact_copy(source, target, topic, "two", 2)


@pytest.mark.long
def test_processes_killed_again_and_again_beside_other_writers_copy_every_record_once(source: str, target: str) -> None:
    topic = "translated-killed"
    create_topic(source, topic, 2)
    with both(source, target) as (origin, there):
        origin.run(prepare_translated_link, origin, there, topic, "killed")
    rng = random.Random(1)
    rounds = int(os.environ.get("TOLERANT_KILLS", "40"))

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, str(WRITER), source, target, topic, "killed"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    copied = 0
    with ForeignWriter(target, topic) as foreign:
        for n in range(rounds):
            append_records(source, topic, 3000, partitions=2, first=3000 * n, per_batch=10)
            writers = [start() for _ in range(rng.choice((1, 1, 2)))]
            for process in writers:
                assert process.stdout is not None
                process.stdout.readline()
            time.sleep(rng.uniform(0.0, 1.0))
            copied += any(process.poll() is None for process in writers)
            for process in writers:
                process.kill()
                process.communicate()
        last = start()
        _, errors = last.communicate(timeout=300)
        assert last.returncode == 0, errors
    assert copied > rounds // 2, "most writers were done before they were killed"
    require_exact_copy(source, target, topic, "killed", 2, foreign.sent)


@pytest.mark.long
def test_nasty_topics_are_copied_once_and_every_one_of_their_offsets_is_translated(
    start_cluster: Callable[..., KafkaCluster], target: str
) -> None:
    cluster = start_cluster(broker_config=BROKER_CONFIG, heap="384m")
    source = cluster.bootstrap_servers
    first = int(os.environ.get("TOLERANT_NASTY_SEEDS", random.SystemRandom().randrange(10**6) * 1000))
    topics = [nasty_topic(seed, "translated-nasty") for seed in range(first, first + 60)]
    print(f"nasty topics of the seeds from {first}")
    write_topics(cluster, topics)
    copy(source, target, "translated-nasty.*", "nasty")
    partitions = {p: topic.is_compacted for topic in topics for p in topic.by_partition}
    bounds = read_bounds(source, list(partitions))
    originals = read_with_confluent(source, list(partitions), committed=True)
    copies = read_with_confluent(target, list(partitions), committed=True)
    maps = maps_of(target, "nasty")
    for partition, is_compacted in partitions.items():
        original, copied, found = originals[partition], copies[partition], maps.get(partition)
        if found is None:
            assert not original and not copied, partition
            continue
        offsets = sorted(original)
        newest = {original[o].key: o for o in offsets}
        there = []
        for offset in offsets:
            translation = found.translate(offset)
            assert translation.place is Place.RECORD, (partition, offset)
            assert found.source_of(translation.translated).translated == offset, (partition, offset)
            if translation.translated in copied:
                there.append(translation.translated)
                assert content(copied[translation.translated]) == content(original[offset]), (partition, offset)
            else:  # the target's cleaner may have taken what is superseded, and tombstones
                assert is_compacted and (newest[original[offset].key] != offset or original[offset].value is None)
        assert there == sorted(copied), partition
        for offset in range(bounds[partition].start, bounds[partition].stable):
            translation = found.translate(offset)
            at = bisect.bisect_left(offsets, offset)
            if at < len(offsets):
                assert translation.translated == found.translate(offsets[at]).translated, (partition, offset)
            else:
                assert translation.place is Place.END, (partition, offset)


# -- groups that move ---------------------------------------------------------


def consume(servers: str, topic: str, group: str, most: int) -> list[tuple[bytes, bytes]]:
    """Goes on where the group stands, and commits what it has read."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    consumer.assign([TopicPartition(topic, 0)])
    found: list[tuple[bytes, bytes]] = []
    idle_since = time.monotonic()
    while len(found) < most and time.monotonic() - idle_since < 2.0:
        for records in consumer.poll(timeout_ms=300, max_records=most - len(found)).values():
            found += [(record.key, record.value) for record in records]
            idle_since = time.monotonic()
    position = consumer.position(TopicPartition(topic, 0))
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(position, "", -1)})
    consumer.close()
    return found


def test_a_group_that_moves_to_the_target_reads_every_record_once(source: str, target: str) -> None:
    topic = group = "translated-failover"
    create_topic(source, topic)
    with both(source, target) as (origin, there):
        origin.run(prepare_translated_link, origin, there, topic, "failover")
    with ForeignWriter(target, topic):
        append_records(source, topic, 300, per_batch=30)
        transactional_records(source, topic, 3)
        copy(source, target, topic, "failover")
        append_records(source, topic, 200, first=300, per_batch=30)
        copy(source, target, topic, "failover")
    everything = [(r.key, r.value) for _, r in sorted(committed_logs(source, topic)[0].items())]
    first = consume(source, topic, group, 317)  # in the middle of a transaction's records
    assert len(first) == 317
    command = ["translate", "--target", target, "--link", "failover", "--group", group, "--source", source, "--json"]
    from spark_integration.cli.app import app

    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    dry = CliRunner().invoke(app, [*command, "--commit", "--dry-run"])
    assert dry.exit_code == 0 and json.loads(dry.output)[0]["would_commit"], dry.output
    with both(source, target) as (_, there):
        assert there.run(group_offsets, there, group) == {}, "without --commit nothing is written"
    done = CliRunner().invoke(app, [*command, "--commit"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.output)
    assert (row["source_topic"], row["committed"], row["before"]) == (topic, True, -1)
    second = [record for record in consume(target, topic, group, 10_000) if record[1] != b"foreign"]
    assert first + second == everything
    again = CliRunner().invoke(app, [*command, "--commit"])
    assert again.exit_code == 0 and not json.loads(again.stdout)[0]["committed"], "never backwards"
    forced = CliRunner().invoke(app, [*command, "--commit", "--force"])
    assert forced.exit_code == 0 and json.loads(forced.output)[0]["committed"]
    (row,) = json.loads(forced.output)
    offset, there_offset = row["source_offset"], row["target_offset"]
    assert offset != there_offset
    one = ["translate", "--target", target, "--link", "failover", "--topic", topic, "--json", "--offset"]
    assert json.loads(CliRunner().invoke(app, [*one, str(offset)]).output)[0]["target_offset"] == there_offset
    back = CliRunner().invoke(app, [*one, str(there_offset), "--back"])
    (row,) = json.loads(back.output)
    assert (row["source_offset"], row["target_offset"]) == (offset, there_offset), "the same names in both directions"
    beyond = CliRunner().invoke(app, [*one, "1000000"])
    assert beyond.exit_code == 3 and json.loads(beyond.output)[0]["place"] == "not-copied"


def test_a_group_is_not_moved_by_the_map_of_a_topic_that_is_there_no_more(source: str, target: str) -> None:
    """Its offsets would be those of records that others have written, or would skip what the source has written since."""
    link = group = "former"
    kept, on_target, on_source, gone = names = [f"former-{name}" for name in ("kept", "target", "source", "gone")]
    for topic in names:
        create_topic(source, topic)
        append_records(source, topic, 12)
    copy(source, target, "former-.*", link)
    make_anew_with(target, on_target, 20)
    make_anew_with(source, on_source, 12)
    delete_topic(target, gone)
    with both(source, target) as (origin, there):
        offsets = {group: {TopicPartition(topic, 0): CommittedOffset(7, "") for topic in names}}
        assert not origin.run(commit_offsets, origin, offsets)[1]
        synced = origin.run(
            partial(move_groups, link=link, is_dry_run=True), origin, there, LinkTopics.of("former-.*"), TopicFilter()
        )
    assert [move.position.partition.topic for move in synced.moved] == [kept]
    reasons = {left.name: left.reason for left in synced.left if left.name.startswith("former-")}
    assert reasons == {f"{gone}-0": "no-topic", f"{on_source}-0": "former-topic", f"{on_target}-0": "former-topic"}
    from spark_integration.cli.app import app

    command = ["translate", "--target", target, "--link", link, "--json"]
    done = CliRunner().invoke(app, [*command, "--group", group, "--source", source, "--commit"])
    rows = {row["source_topic"]: row for row in json.loads(done.stdout)}
    assert {topic: row["place"] for topic, row in rows.items() if topic != kept} == dict.fromkeys(
        names[1:], "former-topic"
    )
    assert (done.exit_code, rows[kept]["committed"], rows[kept]["target_offset"]) == (3, True, 7)
    assert not any("target_offset" in row or "committed" in row for topic, row in rows.items() if topic != kept)
    for topic, what in ((on_target, "created again on the target"), (on_source, "created again on the source")):
        assert f"{topic}-0: topic {topic} was deleted and {what} since link {link} copied it" in done.stderr
    assert f"{gone}-0: topic {gone} was deleted on the target" in done.stderr
    with both(source, target) as (_, there):
        assert there.run(group_offsets, there, group) == {TopicPartition(kept, 0): 7}
    for topic in (on_target, gone):
        for back in ((), ("--back",)):
            one = CliRunner().invoke(app, [*command, "--topic", topic, "--offset", "5", *back])
            assert (one.exit_code, json.loads(one.stdout)[0]["place"]) == (3, "former-topic"), one.output


@pytest.mark.long
def test_a_group_in_use_on_the_target_is_left_alone(source: str, target: str) -> None:
    topic = group = "translated-busy"
    create_topic(source, topic)
    append_records(source, topic, 10)
    copy(source, target, topic, "busy")
    assert len(consume(source, topic, group, 5)) == 5
    member = KafkaConsumer(topic, bootstrap_servers=target, group_id=group)
    try:
        while not member.assignment():
            member.poll(timeout_ms=100)
        with both(source, target) as (origin, there):
            found = origin.run(translate_group, origin, there, "busy", group)
            with pytest.raises(OptionError, match="in use"):
                there.run(commit_group, there, group, found.values())
            assert there.run(group_offsets, there, group) == {}
    finally:
        member.close()


# -- what must not be trusted -------------------------------------------------


def test_a_copier_that_slept_through_a_failover_copies_nothing_though_the_control_was_deleted_since(
    source: str, target: str
) -> None:
    """Nor does a new start; with the topic of the controls went all that said so outside the link's own map."""
    topic = link = "translated-over"
    create_topic(source, topic, 2)
    append_records(source, topic, 10, partitions=2)
    with both(source, target) as (origin, there):

        async def slept() -> list[Progress]:
            prepared = await prepare_translated_link(origin, there, topic, link)
            copier = LinkCopier(origin, there, translated_offsets(FAST), link=link)
            await copier.copy(prepared.ends)
            report = await failover(there, link)
            assert report.is_done and not [text for text in report.warnings if "could not be told" in text]
            with pytest.raises(
                OptionError, match=f"{topic} of this target is the copy of link {link}, which was promoted"
            ):
                await prepare_translated_link(origin, there, topic, f"{link}-beside")
            delete_topic(target, CONTROL_TOPIC)
            with pytest.raises(OptionError, match=f"{topic} of this target is the copy of link {link}, .* was deleted"):
                await prepare_translated_link(origin, there, topic, f"{link}-beside")
            append_records(source, topic, 10, partitions=2)
            return list((await copier.copy_each(dict.fromkeys(prepared.ends, 20))).values())

        for done in origin.run(slept):
            assert isinstance(done.stopped_by, LinkPromotedError) and map_topic(link) in str(done.stopped_by)
        assert [len(log) for log in committed_logs(target, topic, 2)] == [10, 10]
        with pytest.raises(LinkPromotedError, match="is copied into it any more"):
            origin.run(prepare_translated_link, origin, there, topic, link)
        planned = origin.run(plan_everything, origin, there, link, topic)
        status = origin.run(partial(read_status, origin, there, link, LinkTopics.of(topic)))
        for texts in (planned.refusals, status.findings):
            assert any(f"tolerant-kafka failover --target {target} --link {link} --topics" in text for text in texts)
        assert (planned.exit_code, status.exit_code) == (3, 3)
        assert there.run(partial(failover, there, link, LinkTopics.of(topic))).is_done
        assert there.run(read_control, there, link).is_fenced, "it knows it again"
        # What the map says of the copies is as it was.
        assert [found.position for _, found in sorted(there.run(read_maps, there, link).items())] == [10, 10]


@pytest.mark.parametrize("is_identical", [False, True])
def test_what_a_link_has_copied_whose_control_was_deleted_is_not_copied_again_by_another(
    source: str, target: str, is_identical: bool
) -> None:
    """A link with translated offsets that was never promoted has its map; one with identical ones that was, its log.

    Either is listed: the one by its map, the other by its mirror of the last hour.
    """
    topic = f"translated-twice-{is_identical}"
    former = f"{topic}-former"
    create_topic(source, topic)
    append_records(source, topic, 30)
    if is_identical:
        mirror(source, target, topic, former)
        with both(target, target) as (there, _):
            assert there.run(failover, there, former).is_done
        append_records(target, topic, 5, first=500)  # its producers' own
    else:
        copy(source, target, topic, former)
    delete_topic(target, CONTROL_TOPIC)
    with both(target, target) as (there, _):
        found = there.run(list_links, there)
    assert "so which links it has is unknown" in str(found.unknown) and found.exit_code == 3
    assert former in [link.link for link in found.links]
    append_records(source, topic, 10, first=30)
    told = "at their own offsets" if is_identical else f"{map_topic(former)} of the target says"
    with both(source, target) as (origin, there):
        planned = origin.run(partial(plan_everything, is_translated=True), origin, there, f"{topic}-again", topic)
    assert any(told in text for text in planned.refusals) and planned.exit_code == 3
    with pytest.raises(TargetDivergedError, match=told):
        copy(source, target, topic, f"{topic}-again")
    assert len(committed_logs(target, topic)[0]) == (35 if is_identical else 30)
    if not is_identical:  # the remedies: it goes on under its former name, or is copied again without its map
        copy(source, target, topic, former)
        assert len(committed_logs(target, topic)[0]) == 40
        with pytest.raises(TargetDivergedError, match=f"Mirror it with --link {former}"):
            copy(source, target, topic, f"{topic}-again")  # whatever the controls say
        delete_topic(target, map_topic(former))
        copy(source, target, topic, f"{topic}-again")
        assert len(committed_logs(target, topic)[0]) == 80


def test_a_link_of_which_only_the_map_is_left_is_listed_also_once_another_was_started_again(
    source: str, target: str
) -> None:
    """The first start after the control topic was deleted writes it anew, with that link alone."""
    started, left = links = ("listed-started", "listed-left")
    for link in links:
        create_topic(source, link)
        append_records(source, link, 10)
        copy(source, target, link, link)
    delete_topic(target, CONTROL_TOPIC)
    for found_started in ("gone", "known"):
        with both(target, target) as (there, _):
            found = there.run(list_links, there)
        of = {link.link: link for link in found.links}
        assert (of[started].found, of[left].found, found.exit_code) == (found_started, "gone", 3)
        assert found.unknown and (of[left].offsets, of[left].topics) == ("translated", "unknown")
        copy(source, target, started, started)
    copy(source, target, left, left)
    with both(target, target) as (there, _):
        of = {link.link: link for link in there.run(list_links, there).links}
    assert (of[started].found, of[left].found) == ("known", "known")


@pytest.mark.parametrize("is_anew", [False, True], ids=["empty", "made anew"])
def test_a_log_that_a_link_had_begun_without_a_record_gets_none_that_another_has_copied_since(
    source: str, target: str, is_anew: bool
) -> None:
    """A row of our map without a record of the source's present log says nothing of what others have appended since."""
    topic = f"translated-begun-{is_anew}"
    ours, theirs, partition = f"{topic}-ours", f"{topic}-theirs", TopicPartition(topic, 0)
    create_topic(source, topic)
    if is_anew:
        append_records(source, topic, 10)
    copy(source, target, topic, ours)
    if is_anew:
        make_anew(source, topic)
    append_records(source, topic, 30)
    copy(source, target, topic, theirs)
    there_before = len(committed_logs(target, topic)[0])
    assert there_before == (40 if is_anew else 30)
    told = f"{map_topic(theirs)} of the target says"
    policy = MirrorPolicy(on_loss=LossPolicy.CONTINUE)
    with both(source, target) as (origin, there):
        planned = origin.run(partial(plan_everything, is_translated=True, policy=policy), origin, there, ours, topic)
        assert any(told in text for text in planned.refusals), planned

        async def go_on(link: str) -> Progress:
            await prepare_translated_link(origin, there, topic, link, policy, goes_on=True)
            copier = LinkCopier(origin, there, translated_offsets(FAST), link=link, policy=policy)
            return (await copier.copy_each({partition: 30}))[partition]

        for _ in range(2):
            assert told in str(origin.run(go_on, ours).stopped_by)
    assert len(committed_logs(target, topic)[0]) == there_before
    append_records(source, topic, 10, first=30)
    copy(source, target, topic, theirs)  # the remedy
    assert len(committed_logs(target, topic)[0]) == there_before + 10


@pytest.mark.parametrize("has_own", [False, True], ids=["nothing", "another topic"])
def test_a_link_that_was_refused_what_another_has_copied_is_not_promoted_with_it(
    source: str, target: str, has_own: bool
) -> None:
    topic, own = f"translated-refused-{has_own}", f"translated-refused-{has_own}-own"
    right, wrong = f"{topic}-right", f"{topic}-wrong"
    for name in (topic, own):
        create_topic(source, name)
        append_records(source, name, 30)
    copy(source, target, topic, right)
    if has_own:
        copy(source, target, own, wrong)
    with pytest.raises(TargetDivergedError, match=f"has what link {right} has copied"):
        copy(source, target, topic, wrong)  # without a trace
    with pytest.raises(TargetDivergedError, match=f"has what link {right} has copied"):
        copy(source, target, topic, wrong, goes_on=True)  # as one of a file does
    named = f"link {right} has copied" + ("" if has_own else f" {topic}-0: is --link {right} meant")
    with both(source, target) as (origin, there):
        for promoting in (partial(failover, there, is_dry_run=has_own), partial(promote, origin, there)):
            if not has_own:
                with pytest.raises(OptionError, match=named):
                    origin.run(promoting, wrong)
                assert not origin.run(read_control, there, wrong).is_promotion_begun
                continue
            report = origin.run(promoting, wrong)
            assert report.exit_code == 3 and [p.topic for p in report.partitions] == [own]
            assert not report.blockers and named in report.not_promoted[0]
        append_records(source, topic, 5, first=30)
        copy(source, target, topic, right)
        assert origin.run(failover, there, right).exit_code == 0
    assert len(committed_logs(target, topic)[0]) == 35


@pytest.mark.parametrize("is_identical", [False, True])
def test_an_original_gets_none_of_its_copies_and_is_not_called_a_copy(
    source: str, target: str, is_identical: bool
) -> None:
    """A mirror back after a failover, without failback: only the old source has what was not copied."""
    topic = f"translated-original-{is_identical}"
    forward = f"{topic}-forward"
    create_topic(source, topic)
    for first in (0, 30):  # with translated offsets, a marker lies between the two
        append_records(source, topic, 30, first=first)
        mirror(source, target, topic, forward, is_translated=not is_identical)
    append_records(source, topic, 2, first=60)  # not copied
    with both(target, target) as (there, _):
        assert there.run(failover, there, forward).is_done
    delete_until(target, topic, 0 if is_identical else 35)  # of the rest no record has its own offset
    append_records(target, topic, 10, first=500)
    told = f"is the original: link {forward} has copied it from this target to this source"
    with both(target, source) as (origin, there):
        planned = origin.run(partial(plan_everything, is_translated=True), origin, there, f"{topic}-back", topic)
    assert any(told in text and ("tolerant-kafka failback" in text) is is_identical for text in planned.refusals), (
        planned.refusals
    )
    assert not any("delete" in text for text in planned.refusals)
    with pytest.raises(TargetDivergedError, match=told):
        copy(target, source, topic, f"{topic}-back")
    assert len(committed_logs(source, topic)[0]) == 62


def test_a_map_of_another_link_that_takes_long_to_read_is_read_once_and_then_the_copy_begins(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several times as long as it is waited for at a time; the control of its link is gone."""
    topic = "translated-slow-map"
    create_topic(source, topic)
    create_topic(source, f"{topic}.other")
    append_records(source, f"{topic}.other", 30)
    copy(source, target, rf"{topic}\.other", "slow-former")
    append_records(source, topic, 30)
    create_topic(target, topic)
    append_records(target, topic, 5, first=500)  # its producers' own
    partition = TopicPartition(topic, 0)
    there = map_partition("slow-former", partition)
    rows = [
        MapRow(RowKey(TopicPartition("elsewhere", 0), n), "elsewhere", ("a", "b"), n, 0, (Run(0, 0, n),))
        for n in range(1, 200)
    ]
    batches = [encode_batch([Record(0, 0, row.key.encode(), row.encode())]) for row in rows]
    append_batches(target, [(there, batch) for batch in batches])
    delete_topic(target, CONTROL_TOPIC)
    read: list[int] = []
    original = StateTopic.batches

    async def slow(self: StateTopic, position: int, end: int, number: int = 0) -> Any:
        async for header, batch in original(self, position, end, number):
            if TopicPartition(self.name, number) == there:
                await self.cluster.net.sleep(0.03)
                read.append(header.base_offset)
            yield header, batch

    monkeypatch.setattr(StateTopic, "batches", slow)
    monkeypatch.setattr(shared_reads, "_MAP_S", 1.0)
    with both(source, target) as (origin, cluster):

        async def run() -> None:
            prepared = await prepare_translated_link(origin, cluster, topic, "slow-ours")
            read.clear()  # what planning has read
            copier = LinkCopier(
                origin, cluster, translated_offsets(FAST), CopyLimits(patience_ms=5_000), link="slow-ours"
            )
            await copier.copy(prepared.ends)

        origin.run(run)
    assert sorted(read) == sorted(set(read)) and len(read) >= 199, "each row once"
    assert len(committed_logs(target, topic)[0]) == 35


def test_what_another_source_has_under_the_same_name_is_copied_beside_it(source: str, target: str) -> None:
    """Also if no control says any more whose copy is there."""
    topic = "translated-of-two"
    create_topic(source, topic)
    append_records(source, topic, 30)
    copy(source, target, topic, "one")
    delete_topic(target, CONTROL_TOPIC)
    make_anew_with(source, topic, 20)  # as a topic of another cluster, it has another id
    copy(source, target, topic, "two")
    assert len(committed_logs(target, topic)[0]) == 50


@pytest.mark.long
def test_rows_go_when_the_targets_retention_has_deleted_their_records(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "translated-cleared"
    monkeypatch.setattr(offset_map, "RUNS_PER_ROW", 2)
    create_topic(source, topic)
    for n in range(7):
        append_records(source, topic, 10, first=10 * n)
        copy(source, target, topic, "cleared")
    partition = TopicPartition(topic, 0)
    assert len(maps_of(target, "cleared")[partition].runs) == 7
    admin = kafka.KafkaAdminClient(bootstrap_servers=target)
    admin.delete_records({partition: 40})
    admin.close()
    with both(source, target) as (_, there):
        assert there.run(clear_deleted, there, "cleared", [partition]) == 1
        assert there.run(clear_deleted, there, "cleared", [partition]) == 0
        found = there.run(translate, there, "cleared", {partition: 5})[partition].found
        assert found is not None and found.place is Place.DELETED and found.translated == 22
    append_records(source, topic, 10, first=70)
    copy(source, target, topic, "cleared")
    assert maps_of(target, "cleared")[partition].translate(75)[1:3] == (82, Place.RECORD)


def make_anew_with(servers: str, topic: str, count: int) -> None:
    make_anew(servers, topic)
    append_records(servers, topic, count)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_was_deleted_and_created_again_is_named(source: str, target: str, side: str) -> None:
    topic = link = f"translated-again-{side}"
    create_topic(source, topic)
    append_records(source, topic, 10)
    copy(source, target, topic, link)
    make_anew_with(source if side == "source" else target, topic, 20)
    with both(source, target) as (origin, there):
        plan = origin.run(partial(plan_everything, is_translated=True), origin, there, link, topic)
        report = origin.run(partial(promote, is_dry_run=True), origin, there, link)
        found = origin.run(read_status, origin, there, link)
        alone = there.run(partial(failover, is_dry_run=True), there, link)
    assert [(t.copied, t.lag, t.unknown) for t in found.topics] == [(None, None, (0,))], (
        "the position is one in another log"
    )
    assert [(p.copied_until, p.lag) for p in report.partitions] == [(None, None)]
    assert [t.to_copy for t in plan.topics] == [None]
    assert [("created again" in text) for text in alone.damaged] == [True] * (side == "target")
    assert alone.exit_code == (3 if side == "target" else 0)
    assert any("created again" in text for text in plan.refusals) and plan.exit_code == 3
    assert any("created again" in text for text in report.blockers), report
    assert any("created again" in reason.text for reason in found.reasons if reason.health is Health.BLOCKED)
    with pytest.raises(DataLossError if side == "source" else TargetDivergedError, match="created again"):
        copy(source, target, topic, link)


def test_a_source_made_anew_that_is_shorter_is_copied_from_its_first_record_and_told_once(
    source: str, target: str
) -> None:
    topic = link = "translated-shorter"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic)
    append_records(source, topic, 100)
    copy(source, target, topic, link)
    make_anew(source, topic)
    append_records(source, topic, 30, first=500)
    policy = MirrorPolicy(on_loss=LossPolicy.CONTINUE)
    with both(source, target) as (origin, there):

        async def copy_on() -> Progress:
            copier = LinkCopier(origin, there, translated_offsets(FAST), link=link, policy=policy)
            return (await copier.copy({partition: 30}))[partition]

        progress = origin.run(copy_on)
        assert (progress.acked, progress.records, progress.losses) == (30, 30, 1)
        (row,) = [row for row in there.run(read_ledger, there) if row.link == link]
        assert (row.from_offset, row.until_offset, row.reason) == (100, 100, "recreation")
        found = origin.run(read_status, origin, there, link)
        assert not [reason for reason in found.reasons if reason.health is Health.BLOCKED]
    append_records(source, topic, 10, first=530)
    copy(source, target, topic, link)
    assert len(committed_logs(target, topic)[0]) == 140
    known = maps_of(target, link)[partition]
    assert known.position == 40 and known.translate(0)[1:3] == (101, Place.RECORD)


def test_a_topic_that_both_clusters_deleted_is_copied_from_its_first_record_once_the_source_has_it_again(
    source: str, target: str
) -> None:
    """Of two such topics the target has one again, too, with records of others; a third one it has lost alone."""
    link, topics, lost = "translated-both", "translated-both-.*", "translated-alone"
    made, unmade = f"{link}-made", f"{link}-unmade"
    for topic in (made, unmade, lost):
        create_topic(source, topic)
        append_records(source, topic, 12)
    copy(source, target, topics, link)
    copy(source, target, lost, lost)
    for topic in (made, unmade, lost):
        delete_topic(target, topic)
    for topic in (made, unmade):
        make_anew(source, topic)
        append_records(source, topic, 5, first=500)
    for topic in (made, lost):
        create_topic(target, topic)
        append_records(target, topic, 3, first=900)
    with both(source, target) as (origin, there):
        plan = origin.run(partial(plan_everything, is_translated=True), origin, there, link, topics)
        found = origin.run(read_status, origin, there, link)
        refused = origin.run(partial(promote, is_dry_run=True), origin, there, link)
    assert (plan.exit_code, [(t.action, t.to_copy) for t in plan.topics]) == (0, [("copy", 5), ("create", 5)])
    told = f"topic {unmade} is not on the target any more, though the link had begun to copy it: it is created again"
    assert [text.startswith(told) for text in plan.warnings] == [True]
    assert not [reason for reason in found.reasons if reason.health is Health.BLOCKED], found
    assert [(t.copied, t.lag) for t in found.topics] == [(0, 5), (None, None)]
    assert not refused.damaged and any(f"{unmade}-0: not on the target any more" in text for text in refused.blockers)
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checked = examine(Subject(clusters, LinkTopics.of(topics), link=link, seconds=0, is_translated=True))
    assert not [one for one in checked.findings if one.severity is Severity.ERROR], checked
    for count in (5, 10):
        copy(source, target, topics, link)
        assert [len(committed_logs(target, topic)[0]) for topic in (made, unmade)] == [count + 3, count]
        for topic in (made, unmade):
            append_records(source, topic, 5, first=500 + count)
    first = {p.topic: (known.position, known.translate(0)) for p, known in maps_of(target, link).items()}
    assert all((position, at.place) == (10, Place.RECORD) for position, at in first.values())
    assert [first[topic][1].translated >= 3 for topic in (made, unmade)] == [True, False]
    with both(source, target) as (origin, there):
        assert not [row for row in origin.run(read_ledger, there) if row.link == link]
    with pytest.raises(TargetDivergedError, match="deleted and created again"):
        copy(source, target, lost, lost)


def test_a_failover_names_a_topic_that_the_target_has_no_more(source: str, target: str) -> None:
    for link in ("translated-gone", "translated-there"):
        create_topic(source, link)
        append_records(source, link, 10)
    with both(source, target) as (origin, there):
        for topic in ("translated-gone", "translated-there"):
            copy(source, target, topic, "translated-lost")
        delete_topic(target, "translated-gone")
        report = there.run(failover, there, "translated-lost")
    assert report.is_done and report.exit_code == 3
    assert report.damaged == (
        "topic translated-gone is not on the target any more, and link translated-lost has copied it (no loss if it was deleted on the"
        " source, too)",
    )
    assert [p.topic for p in report.partitions] == ["translated-there"]


def test_a_failover_names_each_partition_of_a_topic_that_was_created_again_with_fewer(source: str, target: str) -> None:
    topic = link = "translated-fewer-there"
    create_topic(source, topic, partitions=3)
    append_records(source, topic, 30, partitions=3)
    copy(source, target, topic, link)
    make_anew(target, topic)  # with one partition
    append_records(target, topic, 50)  # of others
    with both(source, target) as (origin, there):
        refused = there.run(partial(promote, origin, there, link, is_dry_run=True))
        assert refused.damaged and set(refused.damaged) <= set(refused.blockers), refused
        reports = [there.run(partial(failover, there, link, is_dry_run=dry)) for dry in (True, False, False)]
    assert [report.exit_code for report in reports] == [3, 3, 3]
    for report in reports[:2]:
        assert [(p.partition, p.copied_until, p.last_copied_ms) for p in report.partitions] == [(0, 0, None)]
        anew, *gone = report.damaged
        assert anew.startswith(f"Target topic {topic} was deleted and created again after {topic}-0")
        assert [text.split(",")[0] for text in gone] == [f"{topic}-{n} is not on the target any more" for n in (1, 2)]
    gone_since, anew_since = reports[2].damaged
    assert gone_since.startswith(f"{topic}-1 and 1 more partition: not on the target any more")
    assert anew_since.startswith(f"{topic}-0: deleted and created again on the target")


def test_a_partition_that_the_source_has_no_more_is_named_and_promoted(source: str, target: str) -> None:
    topic = link = "translated-fewer"
    create_topic(source, topic, partitions=2)
    append_records(source, topic, 10, partitions=2)
    copy(source, target, topic, link)
    make_anew(source, topic)  # with one partition
    pause = f"tolerant-kafka pause --target {target} --link {link} --topic {topic} --partition 1:"
    lacking = f"{topic}-1: {PARTITION_DELETED_ON_SOURCE.replace('pause it:', pause)}"
    with both(source, target) as (origin, there):
        planned = origin.run(plan_everything, origin, there, link, topic)
        report = origin.run(partial(promote, is_dry_run=True), origin, there, link)
    assert lacking in planned.refusals
    # Of the first one the source has another log now, so how much of that is copied is unknown.
    assert [(p.partition, p.copied_until, p.lag) for p in report.partitions] == [(0, None, None), (1, 10, None)]


def test_a_topic_that_is_made_anew_under_a_copier_that_stands_still_is_not_copied_behind_the_old_one(
    source: str, target: str
) -> None:
    topic = "translated-anew-frozen"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic)
    append_records(source, topic, 1000)
    with both(source, target) as (origin, there):

        async def run() -> None:
            await prepare_translated_link(origin, there, topic, topic)
            copier = LinkCopier(origin, there, translated_offsets(FAST), link=topic)
            await copier.copy({partition: 1000}, lease_ms=60_000)
            make_anew_with(source, topic, 3000)  # this loop stands still meanwhile
            with pytest.raises(DataLossError, match="created again"):
                await copier.copy({partition: 3000})

        origin.run(run)
    assert len(committed_logs(target, topic)[0]) == 1000


def overtake(source: str, target: str, topic: str, link: str) -> None:
    """Of 30 records a link has copied 10, and the source has deleted the next 10."""
    create_topic(source, topic)
    append_records(source, topic, 10)
    copy(source, target, topic, link)
    append_records(source, topic, 20, first=10, per_batch=10)
    delete_until(source, topic, 20)


def delete_until(servers: str, topic: str, offset: int) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_a_plan_names_what_retention_took_of_a_partition_that_was_begun_without_a_record(
    source: str, target: str
) -> None:
    topic = link = "translated-begun"
    create_topic(source, topic)
    copy(source, target, topic, link)
    append_records(source, topic, 10)
    delete_until(source, topic, 10)
    with both(source, target) as (origin, there):
        planned = origin.run(plan_everything, origin, there, link, LinkTopics.of(topic))
    assert planned.exit_code == 3 and "no longer has offsets 0 to 10" in str(planned.refusals)


def test_what_retention_took_before_it_was_copied_is_in_the_way_of_a_promotion(source: str, target: str) -> None:
    topic, link = "translated-behind", "behind"
    overtake(source, target, topic, link)
    delete_until(source, topic, 30)  # nothing is left to copy
    with both(source, target) as (origin, there):

        async def look() -> tuple[Any, Any, Any]:
            promoted = await promote(origin, there, link, deadline_s=0.0)
            planned = await plan_everything(origin, there, link, LinkTopics.of(topic))
            return promoted, planned, await read_status(origin, there, link)

        promoted, planned, status = origin.run(look)
    lost = "no longer has offsets 10 to 30"
    assert not promoted.is_done and lost in promoted.blockers[0]
    assert any(lost in text for text in planned.refusals)
    assert status.health is Health.BLOCKED and lost in str(status.reasons)


@pytest.mark.long
def test_records_that_retention_took_before_they_were_copied_are_a_loss(source: str, target: str) -> None:
    topic = "translated-overtaken"
    overtake(source, target, topic, "overtaken")
    with pytest.raises(DataLossError, match="no longer has offsets 10 to 20"):
        copy(source, target, topic, "overtaken")
    partition = TopicPartition(topic, 0)

    def run(policy: LossPolicy) -> Progress:
        with both(source, target) as (origin, there):

            async def copy_on() -> Progress:
                copier = LinkCopier(
                    origin, there, translated_offsets(FAST), link="overtaken", policy=MirrorPolicy(on_loss=policy)
                )
                return (await copier.copy({partition: 30}))[partition]

            return origin.run(copy_on)

    paused = run(LossPolicy.PAUSE)
    assert paused.is_paused and paused.acked == 10 and isinstance(paused.error, DataLossError)
    progress = run(LossPolicy.CONTINUE)
    assert (progress.acked, progress.records, progress.losses) == (30, 10, 1)
    with both(source, target) as (_, there):
        (row,) = [row for row in there.run(read_ledger, there) if row.link == "overtaken"]
    assert (row.topic, row.from_offset, row.until_offset, row.reason) == (topic, 10, 20, "retention")
    require_exact_copy_of_the_rest(source, target, topic, "overtaken", 10)
    assert maps_of(target, "overtaken")[partition].translate(15)[1:3] == (11, Place.NEXT)


def test_a_record_above_the_targets_limit_is_left_out_where_policy_says_so(source: str, target: str) -> None:
    topic = "translated-oversized"
    create_topic(source, topic)
    create_topic(target, topic, config={"max.message.bytes": "2000"})
    append_records(source, topic, 30, per_batch=30, size=500)  # a batch above the limit, of records below it
    append_records(source, topic, 1, first=30, size=5000)
    append_records(source, topic, 10, first=31)
    with pytest.raises(OversizedRecordError):
        copy(source, target, topic, "oversized")
    partition = TopicPartition(topic, 0)
    policy = MirrorPolicy(on_oversized=LossPolicy.CONTINUE)
    with both(source, target) as (origin, there):

        async def run() -> Progress:
            copier = LinkCopier(origin, there, translated_offsets(FAST), link="oversized", policy=policy)
            return (await copier.copy({partition: 41}))[partition]

        assert origin.run(run).losses == 1
        (row,) = [row for row in there.run(read_ledger, there) if row.link == "oversized"]
    assert (row.from_offset, row.until_offset, row.reason) == (30, 31, "oversized")
    original, copied = committed_logs(source, topic)[0], committed_logs(target, topic)[0]
    del original[30]
    assert [content(copied[o]) for o in sorted(copied)] == [content(original[o]) for o in sorted(original)]
    found = maps_of(target, "oversized")[partition]
    assert [found.translate(o).translated for o in sorted(original)] == sorted(copied)
    assert found.translate(30).translated == found.translate(31).translated


def test_what_precedes_a_record_that_the_target_refuses_is_copied_and_not_sent_again(source: str, target: str) -> None:
    topic = "translated-refused"
    create_topic(source, topic)
    create_topic(target, topic, config={"message.timestamp.before.max.ms": "86400000"})
    now_ms = int(time.time() * 1000)
    times = [now_ms] * 30 + [1] + [now_ms] * 5
    batches = [encode_batch([Record(0, each, b"%d" % n, bytes(20_000))]) for n, each in enumerate(times)]
    append_batches(source, ((TopicPartition(topic, 0), batch) for batch in batches))
    for _ in range(2):
        with pytest.raises(PartitionRefusedError, match=f"{topic}-0 at offset 30: .*InvalidTimestampError"):
            copy(source, target, topic, "refused")
    assert len(committed_logs(target, topic)[0]) == 30
    (end,) = ends(target, topic)
    assert end < 30 + 10, "besides the good ones only markers, one for each try"


def test_timestamps_that_the_target_would_rewrite_are_never_shown(source: str, target: str) -> None:
    topic, link = "translated-times", "translated-times"
    create_topic(source, topic)
    append_records(source, topic, 20)
    copy(source, target, topic, link)
    with both(source, target) as (origin, there):

        async def run() -> dict[TopicPartition, Progress]:
            copier = LinkCopier(origin, there, translated_offsets(FAST), link=link)
            partition = TopicPartition(topic, 0)
            held = origin.net.call_soon_with_future(lambda: copier.copy_each({partition: 40}))
            while (taken := copier.strategy.partitions.get(partition)) is None or not taken._is_taken_over:
                await origin.net.sleep(0.05)
            configure(target, topic, message_timestamp_type="LogAppendTime")
            append_records(source, topic, 20, first=20)
            return await held

        progress = origin.run(run)[TopicPartition(topic, 0)]
    configure(target, topic, message_timestamp_type="CreateTime")
    assert progress.acked == 20 and isinstance(progress.error, PartitionRefusedError)
    assert "message.timestamp.type=LogAppendTime" in str(progress.error)
    assert len(committed_logs(target, topic)[0]) == 20
    copy(source, target, topic, link)
    require_exact_copy(source, target, topic, link)


@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "translated"])
@pytest.mark.parametrize("kind", ["uncompressed", "gzip"])
def test_batches_that_the_target_stores_larger_than_they_are_sent_are_split(
    source: str, target: str, kind: str, is_identical: bool
) -> None:
    """compression.type; brokers compare max.message.bytes with what they store."""
    topic = f"stored-{kind}-{is_identical}"
    create_topic(source, topic)
    create_topic(target, topic, config={"compression.type": kind, "max.message.bytes": "100000"})
    noise = random.Random(7)
    values = [bytes(30_000)] * 10 + [noise.randbytes(900) for _ in range(109)]  # in all 100 KB less some bytes
    large, full = ([Record(0, 1_000 + n, None, v) for n, v in enumerate(some)] for some in (values[:10], values[10:]))
    batches = encode_batch(large, codec=codecs.ZSTD), encode_batch(full)
    assert all(len(batch) < 100_000 for batch in batches)
    append_batches(source, ((TopicPartition(topic, 0), batch) for batch in batches))
    if is_identical:
        mirror(source, target, topic, link=topic)
        assert compare(source, target, topic).identical
    else:
        copy(source, target, topic, topic)
        require_exact_copy(source, target, topic, topic)


def test_a_map_topic_that_could_lose_rows_is_refused_before_anything_is_written(source: str, target: str) -> None:
    create_topic(source, "translated-map-refused")
    with both(source, target) as (origin, there):
        there.run(
            create_topics, there, [TopicSpec(map_topic("map-refused"), 8, 1, {"cleanup.policy": "compact,delete"})]
        )
        with pytest.raises(OptionError, match="cleanup.policy"):
            origin.run(prepare_translated_link, origin, there, "translated-map-refused", "map-refused")
        assert there.run(there.partitions, ["translated-map-refused"]) == {}
        with pytest.raises(OptionError, match="no topic tolerant-mirror-offsets-nobody"):
            there.run(translate, there, "nobody", {TopicPartition("t", 0): 0})
