"""The sink's decisions where topics, transactional ids, attempts and groups are not what they were."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_integration.connections import borrowed_cluster, close_pool
from spark_integration.writing import settlement
from spark_integration.writing.columns import WriteColumns
from spark_integration.writing.exactly_once import Decision, SinkBatch
from spark_integration.writing.options import parse_write_options
from spark_integration.writing.settlement import WrittenTask, abort_tasks, commit_tasks
from spark_integration.writing.writer import RecordsWriter, write_task
from support import sink_batch as sink_batches
from support.mirror_link import create_topic, delete_topic
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.cluster.admin.transactions import transactional_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    ClusterUnreachableError,
    OptionError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordRefusedError,
)
from tolerant_client.testing import KafkaCluster


@pytest.fixture(autouse=True)
def an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its folder, whose ids later micro-batches use, and no connections that are left."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    yield
    close_pool()


def committed_rows(servers: str, topic: str) -> list[bytes]:
    """What a consumer with read_committed sees of partition 0, which is all that these tests write to."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None, isolation_level="read_committed"
    )
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            found += [r.value for records in consumer.poll(timeout_ms=500).values() for r in records]
        return found
    finally:
        consumer.close()


def write_to_topics(servers: str, place: SinkBatch, topics: list[str]) -> list[WrittenTask]:
    """One task, one row to each topic: the topic's name."""
    options = parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"})
    rows = pa.record_batch([pa.array(topics), pa.array([t.encode() for t in topics])], names=["topic", "value"])
    return [write_task(options, WriteColumns(0, None, 1, None, None), place, iter([rows]))]


@pytest.mark.parametrize("deleted", ["first", "last"])
def test_a_repeat_obeys_a_decision_although_a_topic_was_deleted(kafka_cluster: KafkaCluster, deleted: str) -> None:
    """Brokers forget the offsets that stand beside a deleted topic: the decision stands beside the others, too."""
    servers, name = kafka_cluster.bootstrap_servers, f"decided-beside-{deleted}"
    topics = [f"{name}-{letter}" for letter in "abc"]
    for topic in topics:
        create_topic(servers, topic, 1)
    options = parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"})
    commit_tasks(options, write_to_topics(servers, SinkBatch(name, name, "1a" * 16, 0), topics))
    gone = topics[0] if deleted == "first" else topics[-1]
    delete_topic(servers, gone)
    create_topic(servers, gone, 1)
    close_pool()
    commit_tasks(options, write_to_topics(servers, SinkBatch(name, name, "1b" * 16, 0), topics))
    assert {topic: committed_rows(servers, topic) for topic in topics if topic != gone} == {
        topic: [topic.encode()] for topic in topics if topic != gone
    }


@pytest.mark.parametrize("deleted", ["first", "last"])
def test_a_topic_that_is_deleted_after_its_tasks_have_written_is_named(
    kafka_cluster: KafkaCluster, deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, name = kafka_cluster.bootstrap_servers, f"deleted-before-{deleted}"
    topics = [f"{name}-{letter}" for letter in "abc"]
    for topic in topics:
        create_topic(servers, topic, 1)
    options = parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"})
    tasks = write_to_topics(servers, SinkBatch(name, name, "1a" * 16, 0), topics)
    gone = topics[0] if deleted == "first" else topics[-1]
    delete_topic(servers, gone)
    monkeypatch.setattr(
        settlement, "borrowed_cluster", lambda config, name: borrowed_cluster(config, name=name, patience_ms=3_000)
    )
    with pytest.raises(RecordRefusedError, match=f"is not committed: a topic was deleted after .* {gone} "):
        commit_tasks(options, tasks)
    monkeypatch.undo()
    abort_tasks(options, tasks)
    create_topic(servers, gone, 1)
    close_pool()
    commit_tasks(options, write_to_topics(servers, SinkBatch(name, name, "1b" * 16, 0), topics))
    assert {topic: committed_rows(servers, topic) for topic in topics} == {topic: [topic.encode()] for topic in topics}


# -- what brokers forget ----------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful(start_cluster: Callable[..., KafkaCluster]) -> str:
    """The addresses of brokers that forget transactional ids after seconds."""
    config = {
        "transactional.id.expiration.ms": "3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    return start_cluster(heap="320m", broker_config=config).bootstrap_servers


def wait_until_forgotten(servers: str, place: SinkBatch) -> None:
    deadline = time.monotonic() + 60
    with Cluster({"bootstrap_servers": servers}) as cluster:
        while cluster.run(transactional_ids, cluster, place.prefix):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_repeat_of_what_was_ended_needs_no_transaction_that_brokers_have_forgotten(forgetful: str) -> None:
    create_topic(forgetful, "ended-forgotten", 1)
    place = SinkBatch("ended-forgotten", "q", "5a" * 16, 0)
    sink_batches.commit(forgetful, "ended-forgotten", sink_batches.write(forgetful, "ended-forgotten", place, 2))
    wait_until_forgotten(forgetful, place)
    told = sink_batches.write(forgetful, "ended-forgotten", replace(place, run="5b" * 16), 3)
    sink_batches.commit(forgetful, "ended-forgotten", told)
    assert left_open(forgetful, place) == set()
    assert sorted(committed_rows(forgetful, "ended-forgotten"), key=int) == sink_batches.rows(0)


def test_where_nobody_knows_whether_a_decision_was_carried_out_a_repeat_says_where_to_look(forgetful: str) -> None:
    """A driver died after the last end of a transaction, before its note."""
    topic = "unknown-forgotten"
    create_topic(forgetful, topic, 1)
    place = SinkBatch(topic, "q", "6a" * 16, 0)
    with pytest.MonkeyPatch.context() as patch:

        async def no_note(*_: object) -> None:
            raise RuntimeError("killed")

        patch.setattr(ProducerTransaction, "begin_next", no_note)
        with pytest.raises(RuntimeError, match="killed"):
            sink_batches.commit(forgetful, topic, sink_batches.write(forgetful, topic, place, 2))
    close_pool()
    wait_until_forgotten(forgetful, place)
    told = sink_batches.write(forgetful, topic, replace(place, run="6b" * 16), 3)
    with pytest.raises(OutcomeUnknownError, match=f"forgotten 2 of its 2 .* Look for its 60 rows in {topic} "):
        sink_batches.commit(forgetful, topic, told)
    assert sorted(committed_rows(forgetful, topic), key=int) == sink_batches.rows(0)


# -- what the note stands for -----------------------------------------------------------


@pytest.mark.parametrize("tasks", [2, 1], ids=["all ids", "one id"])
def test_ids_that_the_next_micro_batch_has_taken_are_no_aborted_transactions(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """Two drivers of one query, both frozen for a while: X before its note, Y between its look for it and its ends."""
    servers, topic = kafka_cluster.bootstrap_servers, f"taken-again-{tasks}"
    create_topic(servers, topic, 1)
    x, y = (SinkBatch(topic, topic, digits * 16, 0) for digits in ("9a", "9b"))
    y_has_looked, x_goes_on = threading.Event(), threading.Event()
    is_at_note = threading.Event()
    note, commit = SinkBatch.ended_note, ProducerTransaction.commit
    errors: list[Exception] = []

    def ended_note(place: SinkBatch, decision: Decision) -> CommittedOffset:
        if place.run == x.run and not is_at_note.is_set():
            is_at_note.set()
            assert y_has_looked.wait(60)
        return note(place, decision)

    async def commit_after(transaction: ProducerTransaction, *arguments: Any) -> None:
        is_task = not transaction.transactional_id.endswith("/decider")
        if threading.current_thread().name == "y" and is_task and not y_has_looked.is_set():
            y_has_looked.set()
            assert x_goes_on.wait(60)
        await commit(transaction, *arguments)

    def decide(messages: list[WrittenTask]) -> None:
        try:
            sink_batches.commit(servers, topic, messages)
        except Exception as error:
            errors.append(error)

    monkeypatch.setattr(SinkBatch, "ended_note", ended_note)
    monkeypatch.setattr(ProducerTransaction, "commit", commit_after)
    told = sink_batches.write(servers, topic, x, 2), sink_batches.write(servers, topic, y, 3)
    drivers = [threading.Thread(target=decide, args=(t,), name=name) for t, name in zip(told, "xy", strict=True)]
    drivers[0].start()
    assert is_at_note.wait(60)
    drivers[1].start()
    drivers[0].join()
    later = sink_batches.write(servers, topic, replace(x, batch=1), tasks)
    assert {t.transaction and t.transaction.transactional_id for t in later} <= {
        t.transaction and t.transaction.transactional_id for t in told[0]
    }
    x_goes_on.set()
    drivers[1].join()
    assert errors == []
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)
    sink_batches.commit(servers, topic, later)
    assert sorted(committed_rows(servers, topic), key=int) == [*sink_batches.rows(0), *sink_batches.rows(1)]


def test_without_its_note_a_micro_batch_fails_and_its_repeat_writes_nothing_again(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that went on would take its ids again, and a repeat from an older checkpoint would find them fenced."""
    servers, topic = kafka_cluster.bootstrap_servers, "note-is-a-must"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, topic, "aa" * 16, 0)
    commit_offset = ProducerTransaction.commit_offset

    async def without_note(transaction: ProducerTransaction, group: str, *arguments: Any) -> None:
        if group == place.ended_group:
            raise ClusterUnreachableError("the coordinator of the note's group is away")
        await commit_offset(transaction, group, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ProducerTransaction, "commit_offset", without_note)
        told = sink_batches.write(servers, topic, place, 2)
        with pytest.raises(ClusterUnreachableError, match="the note's group is away"):
            sink_batches.commit(servers, topic, told)
        abort_tasks(parse_write_options({"kafka.bootstrap.servers": servers, "exactlyOnce": "true"}), told)
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, replace(place, run="ab" * 16), 3))
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)


def test_a_driver_that_finds_all_that_it_has_decided_aborted_fails_and_the_repeat_writes_it_once(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen right after its decision, for longer than transaction.timeout.ms."""
    servers, topic = kafka_cluster.bootstrap_servers, "frozen-after-decision"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, topic, "ba" * 16, 0)
    told = sink_batches.write(servers, topic, place, 2)
    begin = ProducerTransaction.begin
    commit = ProducerTransaction.commit

    async def commit_late(transaction: ProducerTransaction, *arguments: Any) -> None:
        if not transaction.transactional_id.endswith("/decider"):  # as the brokers do it, after the timeout
            with Cluster({"bootstrap_servers": servers}) as cluster:
                cluster.run(begin, ProducerTransaction(cluster, transaction.transactional_id, 60_000))
        await commit(transaction, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ProducerTransaction, "commit", commit_late)
        with pytest.raises(ProducerFencedError, match="have aborted its oldest transaction; nothing was committed"):
            sink_batches.commit(servers, topic, told)
    assert committed_rows(servers, topic) == []
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, replace(place, run="bb" * 16), 3))
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)


def test_a_driver_whose_decider_brokers_have_forgotten_reads_what_was_decided_and_ends_it(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still before its note for longer than transactional.id.expiration.ms, as the decider's id did."""
    servers, topic = kafka_cluster.bootstrap_servers, "decider-forgotten"
    create_topic(servers, topic, 1)
    place, begin_next, forgotten = SinkBatch(topic, topic, "bc" * 16, 0), ProducerTransaction.begin_next, [True]

    async def begin_forgotten(transaction: ProducerTransaction) -> None:
        if forgotten:
            forgotten.pop()
            raise Errors.InvalidProducerIdMappingError(transaction.transactional_id)
        await begin_next(transaction)

    monkeypatch.setattr(ProducerTransaction, "begin_next", begin_forgotten)
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, place, 2))
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        decider = ProducerTransaction(cluster, "looks", 60_000)
        assert len(cluster.run(decider.committed, place.ended_group, [TopicPartition(topic, 0)])) == 1


# -- the time that is left --------------------------------------------------------------


@pytest.fixture(scope="module")
def punctual(start_cluster: Callable[..., KafkaCluster]) -> str:
    """The addresses of brokers that abort a transaction right after its timeout."""
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    return start_cluster(heap="320m", broker_config=config).bootstrap_servers


@pytest.mark.long
def test_a_micro_batch_of_which_a_part_times_out_after_the_first_look_is_not_committed_at_all(
    punctual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law E: all transactions are open when commit begins, and one is not when its decision is about to be made."""
    topic, more = "times-out-within", {"kafka.transaction.timeout.ms": "9000"}
    create_topic(punctual, topic, 1)
    place = SinkBatch(topic, topic, "ca" * 16, 0)
    (first,) = sink_batches.write(punctual, topic, place, 1, **more)
    started = time.monotonic()
    time.sleep(4)
    (second,) = sink_batches.write(punctual, topic, place, 1, **more)

    async def list_late(cluster: Cluster, *arguments: Any) -> set[str] | None:
        await cluster.net.sleep(max(started + 9.5 - time.monotonic(), 0))
        return await transactional_ids(cluster, *arguments)

    monkeypatch.setattr("spark_integration.writing.settlement.transactional_ids", list_late)
    with pytest.raises(ProducerFencedError, match=r"too long for .* 9000 ms: .* worker's\); nothing was committed"):
        sink_batches.commit(punctual, topic, [first, second], **more)
    assert committed_rows(punctual, topic) == []


# -- what killed attempts leave open ---------------------------------------------------


def left_open(servers: str, place: SinkBatch) -> set[str] | None:
    with Cluster({"bootstrap_servers": servers}) as cluster:
        return cluster.run(transactional_ids, cluster, place.prefix, ["Ongoing"])


def after_the_decision(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Does it where a decision's transaction, or the first one of a found decision, is about to be committed."""
    commit = ProducerTransaction.commit
    waiting = [action]

    async def commit_after(transaction: ProducerTransaction, *arguments: Any) -> None:
        if waiting:
            waiting.pop()()
        await commit(transaction, *arguments)

    monkeypatch.setattr(ProducerTransaction, "commit", commit_after)


def write_in_another_process(servers: str, topic: str, place: SinkBatch) -> None:
    """An attempt that was killed when all its rows were written; the driver hears nothing of it."""
    arguments = [servers, topic, place.owner, place.run, str(place.batch), "1", "tasks"]
    subprocess.run(
        [sys.executable, "-m", "support.sink_batch", *arguments],
        cwd=Path(__file__).parents[1], capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_repeat", [False, True])
def test_an_attempt_that_begins_after_the_list_was_made_is_aborted_before_commit_returns(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, is_repeat: bool
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, f"late-attempt-{is_repeat}"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, topic, "2a" * 16, 0)
    if is_repeat:
        sink_batches.commit(servers, topic, sink_batches.write(servers, topic, replace(place, run="2b" * 16), 1))
    told = sink_batches.write(servers, topic, place, 2)
    if is_repeat:
        write_in_another_process(servers, topic, place)
    else:
        after_the_decision(monkeypatch, lambda: write_in_another_process(servers, topic, place))
    sink_batches.commit(servers, topic, told)
    assert left_open(servers, place) == set()
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)


def test_a_micro_batch_without_rows_aborts_what_a_killed_attempt_left_open(kafka_cluster: KafkaCluster) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "late-attempt-empty"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, topic, "3a" * 16, 0)
    sink_batches.write(servers, topic, place, 1)
    sink_batches.commit(servers, topic, [WrittenTask(0, 0, place)])
    assert left_open(servers, place) == set()


def test_a_batch_write_that_fails_before_any_task_has_told_is_aborted_whole(kafka_cluster: KafkaCluster) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "aborted-untold"
    create_topic(servers, topic, 1)
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true", "exactlyOnceId": topic}
    writer = RecordsWriter(given, StructType([StructField("value", BinaryType())]), overwrite=False)
    told = writer.write(iter([pa.record_batch([pa.array([b"0"], pa.binary())], names=["value"])]))
    assert isinstance(told, WrittenTask) and told.place is not None
    assert left_open(servers, told.place)
    writer.abort([None, None])
    assert left_open(servers, told.place) == set()


def test_an_abort_ends_an_id_that_the_last_micro_batch_was_decided_with(kafka_cluster: KafkaCluster) -> None:
    """Tasks take the ids of the last micro-batch again; its decision protects that micro-batch only."""
    servers, topic = kafka_cluster.bootstrap_servers, "aborted-again"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, topic, "4a" * 16, 0)
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, place, 2))
    told = sink_batches.write(servers, topic, replace(place, batch=1), 2)
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true"}
    abort_tasks(parse_write_options(given), told)
    assert left_open(servers, place) == set()
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)


def test_a_superseded_batch_write_whose_rows_were_decided_succeeds(kafka_cluster: KafkaCluster) -> None:
    """The same write twice at once: which one decides does not matter, and neither fails nor doubles a row."""
    servers, topic = kafka_cluster.bootstrap_servers, "superseded-repeat"
    create_topic(servers, topic, 1)
    runs = [SinkBatch(topic, "", digits * 16, 0) for digits in ("7a", "7b")]
    told = [sink_batches.write(servers, topic, place, tasks) for tasks, place in enumerate(runs, start=2)]
    sink_batches.commit(servers, topic, told[1])
    sink_batches.commit(servers, topic, told[0])
    assert left_open(servers, runs[0]) == set()
    assert sorted(committed_rows(servers, topic), key=int) == sink_batches.rows(0)


# -- what a group says ------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        "99999999:{",
        "1:" + "[" * 3990,
        '1:{"query":"","run":"","rows":Infinity,"digest":"0","transactions":[],"superseded":[]}',
    ],
    ids=["pieces", "lists", "infinity"],
)
def test_a_group_that_says_what_no_sink_writes_is_refused(
    kafka_cluster: KafkaCluster, request: pytest.FixtureRequest, metadata: str
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, f"strange-{request.node.callspec.id}"
    create_topic(servers, topic, 1)
    place = SinkBatch(topic, "", "8a" * 16, 0)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        said = {place.group(0): {TopicPartition(topic, 0): CommittedOffset(1, metadata)}}
        assert cluster.run(commit_offsets, cluster, said) == ({place.group(0): {TopicPartition(topic, 0): 0}}, {})
    with pytest.raises(OptionError, match="has an offset that no sink has written; choose another exactlyOnceId"):
        sink_batches.commit(servers, topic, sink_batches.write(servers, topic, place, 1))
    assert committed_rows(servers, topic) == []
