"""The sink under faults: answers that are lost or wrong, brokers that go, tasks, workers and drivers that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from spark_integration.connections import close_pool
from spark_integration.writing.columns import WriteColumns
from spark_integration.writing.exactly_once import SinkBatch
from spark_integration.writing.options import WriteOptions, parse_write_options
from spark_integration.writing.settlement import abort_tasks, commit_tasks
from spark_integration.writing.writer import write_task
from support import sink_batch as sink_batches
from support.encoding import encode_batches
from support.long import LONG
from support.mirror_link import create_topic
from support.sink_process import ROWS, TASKS
from tolerant_client.cluster.admin.groups import CommittedOffset
from tolerant_client.cluster.admin.transactions import transactional_ids, transactional_producers
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.batch_producer import BatchProducer
from tolerant_client.cluster.producer.sender import ProducerSettings
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    DeliveryTimeoutError,
    OptionError,
    ProducerFencedError,
    RepeatDiffersError,
)
from tolerant_client.records.record_batch import restamp
from tolerant_client.testing import (
    Drop,
    Duplicate,
    ErrorCode,
    Fault,
    FaultProxy,
    KafkaCluster,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Truncate,
)
from tolerant_client.tracker.events import Completed, Probe

PARTITIONS = 3
BATCHES = 300
PER_BATCH = 10
NOT_LEADER, NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED = 6, 19, 29
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 45, 47

# One answer in 20, over all kinds.
KINDS = (Drop, Duplicate, Reorder, RewriteCorrelationId, Stale, Truncate)
ONE_IN_20: tuple[Fault, ...] = tuple(kind(probability=1 / 20 / len(KINDS)) for kind in KINDS)

Proxies = Callable[..., FaultProxy]


def values(servers: str, topic: str, isolation_level: str = "read_committed") -> dict[int, list[bytes]]:
    """The values of each partition, in their order, as a stock consumer sees them."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None, isolation_level=isolation_level
    )
    try:
        wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        while any(consumer.position(partition) < ends[partition] for partition in wanted):
            for partition, records in consumer.poll(timeout_ms=500).items():
                found[partition.partition] += [record.value for record in records]
        return found
    finally:
        consumer.close()


def value(batch: int, number: int) -> bytes:
    return b"%06d-%02d" % (batch, number)


def written(batches: int = BATCHES) -> dict[int, list[bytes]]:
    """What `produce` writes."""
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    for batch in range(batches):
        found[batch % PARTITIONS] += [value(batch, number) for number in range(PER_BATCH)]
    return found


def enqueue(producer: BatchProducer, topic: str, batches: range, *, is_pumped: bool = True) -> None:
    for batch in batches:
        column = pa.array([value(batch, number) for number in range(PER_BATCH)], pa.binary())
        # A broker that starts again takes a producer for as old as its records, and may forget it.
        for encoded in encode_batches(None, column, None, time.time_ns() // 1_000_000):
            producer.enqueue(TopicPartition(topic, batch % PARTITIONS), encoded, range(PER_BATCH))
        if is_pumped:
            producer.pump()


def produce(servers: str, topic: str, settings: ProducerSettings = ProducerSettings(), batches: int = BATCHES) -> None:
    with BatchProducer(Cluster({"bootstrap_servers": servers}, patience_ms=30_000), settings) as producer:
        producer.cluster.run(producer.start)
        producer.cluster.run(producer.partition_count, topic)
        enqueue(producer, topic, range(batches))
        producer.cluster.run(producer.flush)
        assert producer.bytes_in_flight == 0


@pytest.mark.parametrize("seed", range(20 if LONG else 1))
def test_every_record_is_written_once_and_in_order_when_one_answer_in_20_is_wrong(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, seed: int
) -> None:
    topic = f"sink-one-in-20-{seed}"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    proxy = fault_proxy(ONE_IN_20, seed=seed)
    produce(proxy.bootstrap_servers, topic)
    assert proxy.injected_total >= 3
    assert values(kafka_cluster.bootstrap_servers, topic) == written()


@pytest.mark.parametrize(
    "fault",
    [
        Drop(api="Produce", every=5),
        Reset(api="Produce", every=15),
        ErrorCode(NOT_LEADER, api="Produce", every=5),
        ErrorCode(NOT_ENOUGH_REPLICAS, api="Produce", every=5),
        Truncate(api="Produce", every=5),
        Reorder(api="Produce", every=3),
    ],
    ids=lambda fault: f"{fault.name}{getattr(fault, 'error_code', '')}",
)
def test_every_record_is_written_once_and_in_order_with_one_fault_again_and_again(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, fault: Fault
) -> None:
    topic = f"sink-{fault.name}{getattr(fault, 'error_code', '')}"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    proxy = fault_proxy([fault])
    produce(proxy.bootstrap_servers, topic)
    assert proxy.injected_total >= 3
    assert values(kafka_cluster.bootstrap_servers, topic) == written()


def test_one_lost_response_and_the_next_one_under_its_id_do_not_accuse_the_log(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster
) -> None:
    create_topic(kafka_cluster.bootstrap_servers, "sink-paired", PARTITIONS)
    lost = Drop(api="Produce", after=4, count=1)
    proxy = fault_proxy([lost, RewriteCorrelationId(-1, api="Produce", after=4, count=1, lasts=True)])
    produce(proxy.bootstrap_servers, "sink-paired")
    assert proxy.injected_total >= 3
    assert values(kafka_cluster.bootstrap_servers, "sink-paired") == written()


def test_a_broker_that_never_answers_becomes_an_error_that_names_the_partition(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster
) -> None:
    create_topic(kafka_cluster.bootstrap_servers, "sink-never", PARTITIONS)
    proxy = fault_proxy([Drop(api="Produce")])
    settings = ProducerSettings(delivery_timeout_ms=1_500, request_timeout_ms=1_000)
    with pytest.raises(DeliveryTimeoutError, match="sink-never-[0-2]: .* delivery.timeout.ms, 1500"):
        produce(proxy.bootstrap_servers, "sink-never", settings)


def test_a_topic_that_may_not_be_written_to_is_named(fault_proxy: Proxies, kafka_cluster: KafkaCluster) -> None:
    create_topic(kafka_cluster.bootstrap_servers, "sink-not-allowed", PARTITIONS)
    proxy = fault_proxy([ErrorCode(TOPIC_AUTHORIZATION_FAILED, api="Produce")])
    with pytest.raises(Errors.TopicAuthorizationFailedError, match="sink-not-allowed-[0-2] refuses what is written"):
        produce(proxy.bootstrap_servers, "sink-not-allowed")


def test_a_leader_that_takes_no_sequence_is_said_to_have_lost_records(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster
) -> None:
    create_topic(kafka_cluster.bootstrap_servers, "sink-no-order", PARTITIONS)
    proxy = fault_proxy([ErrorCode(OUT_OF_ORDER_SEQUENCE_NUMBER, api="Produce", after=1)])
    with pytest.raises(
        Errors.OutOfOrderSequenceNumberError,
        match="sink-no-order-[0-2] refuses .* may not be complete, so write it again",
    ):
        produce(proxy.bootstrap_servers, "sink-no-order")


def test_without_a_transaction_nobody_is_said_to_have_taken_it_over(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster
) -> None:
    create_topic(kafka_cluster.bootstrap_servers, "sink-epoch", PARTITIONS)
    proxy = fault_proxy([ErrorCode(INVALID_PRODUCER_EPOCH, api="Produce")])
    with pytest.raises(Errors.InvalidProducerEpochError, match="sink-epoch-[0-2] refuses what is written"):
        produce(proxy.bootstrap_servers, "sink-epoch")


@pytest.mark.long
def test_answers_that_wait_while_nobody_looks_are_no_losses(kafka_cluster: KafkaCluster) -> None:
    """A slow query gives its next rows long after the request's timeout."""
    create_topic(kafka_cluster.bootstrap_servers, "sink-slow", PARTITIONS)
    events: list[Any] = []
    config = {
        "bootstrap_servers": kafka_cluster.bootstrap_servers,
        "request_timeout_ms": 3_000,
        "recovery_listener": events.append,
    }
    with BatchProducer(Cluster(config), ProducerSettings()) as producer:
        producer.cluster.run(producer.start)
        producer.cluster.run(producer.partition_count, "sink-slow")
        enqueue(producer, "sink-slow", range(30))
        producer.cluster.run(producer.flush)
        events.clear()
        enqueue(producer, "sink-slow", range(30, 90))
        time.sleep(4)
        producer.cluster.run(producer.flush)
    assert {type(event) for event in events} <= {Completed, Probe}
    assert values(kafka_cluster.bootstrap_servers, "sink-slow") == written(90)


def test_a_killed_broker_is_waited_for(start_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = start_cluster(heap="320m")
    create_topic(cluster.bootstrap_servers, "sink-killed", PARTITIONS)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with BatchProducer(
                Cluster({"bootstrap_servers": cluster.bootstrap_servers}), ProducerSettings()
            ) as producer:
                producer.cluster.run(producer.start)
                producer.cluster.run(producer.partition_count, "sink-killed")
                for first in range(0, BATCHES, 10):
                    enqueue(producer, "sink-killed", range(first, first + 10))
                    time.sleep(0.03)
                producer.cluster.run(producer.flush)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with Cluster({"bootstrap_servers": cluster.bootstrap_servers}) as reader:
        partition = TopicPartition("sink-killed", 0)
        deadline = time.monotonic() + 60
        while reader.run(reader.list_offsets, {partition: LATEST})[partition] < 5 * PER_BATCH:
            assert thread.is_alive() and time.monotonic() < deadline, errors
    cluster.kill(1)
    cluster.restart(1)
    thread.join(120)
    assert not thread.is_alive() and not errors
    assert values(cluster.bootstrap_servers, "sink-killed") == written()


@pytest.mark.parametrize(
    ("how", "is_transactional"),
    [
        ("kill", False),
        pytest.param("stop", True, marks=pytest.mark.long),
        pytest.param("kill", True, marks=pytest.mark.long),
        pytest.param("stop", False, marks=pytest.mark.long),
    ],
)
def test_a_broker_that_starts_again_with_batches_in_flight_has_each_of_them_once(
    fault_proxy: Proxies, start_cluster: Callable[..., KafkaCluster], how: str, is_transactional: bool
) -> None:
    """It remembers only the last batch of a producer, and five of each partition were appended without a response."""
    cluster, topic, batches = start_cluster(heap="320m"), "sink-in-flight", 10 * PARTITIONS
    create_topic(cluster.bootstrap_servers, topic, PARTITIONS)
    proxy = fault_proxy(cluster=cluster)
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]

    def restart_once_all_in_flight_are_appended() -> None:
        with Cluster({"bootstrap_servers": cluster.bootstrap_servers}) as reader:
            deadline = time.monotonic() + 120
            while set(reader.run(reader.list_offsets, dict.fromkeys(partitions, LATEST)).values()) != {6 * PER_BATCH}:
                assert time.monotonic() < deadline
        getattr(cluster, how)(1)
        proxy.faults = ()
        cluster.restart(1)

    given, settings = {"bootstrap_servers": proxy.bootstrap_servers}, ProducerSettings(delivery_timeout_ms=600_000)
    with BatchProducer(Cluster(given), settings) as producer:
        run = producer.cluster.run
        run(producer.start)
        if is_transactional:
            transaction = ProducerTransaction(producer.cluster, topic, 600_000)
            run(transaction.begin)
            producer.start_transaction(transaction)
        run(producer.partition_count, topic)
        enqueue(producer, topic, range(PARTITIONS))
        run(producer.flush)
        proxy.faults = (Drop(api="Produce"),)
        enqueue(producer, topic, range(PARTITIONS, batches), is_pumped=False)  # so five are sent at once
        with ThreadPoolExecutor(1) as threads:
            restarted = threads.submit(restart_once_all_in_flight_are_appended)
            run(producer.flush)
            restarted.result()
        if is_transactional:
            run(transaction.commit)
    assert values(cluster.bootstrap_servers, topic) == written(batches)
    cluster.close()


# -- transactions ----------------------------------------------------------------


def transact(
    servers: str, topic: str, transactional_id: str, first: int, count: int, *, is_commit: bool = True
) -> None:
    """`count` batches from number `first` on in one transaction, which also commits `first + count` for the group."""
    with BatchProducer(Cluster({"bootstrap_servers": servers}, patience_ms=30_000), ProducerSettings()) as producer:
        run = producer.cluster.run
        transaction = ProducerTransaction(producer.cluster, transactional_id, 60_000)
        run(transaction.begin)
        producer.start_transaction(transaction)
        run(producer.partition_count, topic)
        enqueue(producer, topic, range(first, first + count))
        run(producer.flush)
        run(
            transaction.commit_offset, transactional_id, [TopicPartition(topic, 0)], CommittedOffset(first + count, "m")
        )
        run(transaction.commit if is_commit else transaction.abort)
        found = run(transaction.committed, transactional_id, [TopicPartition(topic, 0)])
        assert found == ({TopicPartition(topic, 0): CommittedOffset(first + count, "m")} if is_commit else found)


def test_transactions_are_written_whole_and_once_when_one_answer_in_20_is_wrong(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster
) -> None:
    topic, size = "sink-transactions", BATCHES // 10
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    proxy = fault_proxy(ONE_IN_20, seed=7)
    for number in range(10):
        if number % 3 == 1:
            transact(proxy.bootstrap_servers, topic, "sink-t", number * size, size, is_commit=False)
        transact(proxy.bootstrap_servers, topic, "sink-t", number * size, size)
    assert proxy.injected_total >= 10
    assert values(kafka_cluster.bootstrap_servers, topic) == written()


@pytest.fixture(params=["as given", pytest.param("3.3.2", marks=pytest.mark.long)])
def aborting(request: pytest.FixtureRequest) -> Iterator[str]:
    """The addresses of brokers, and of ones without KIP-890, which starts with 3.6."""
    if request.param == "as given":
        yield str(request.getfixturevalue("kafka_cluster").bootstrap_servers)
    else:
        with KafkaCluster(request.param, heap="320m") as cluster:
            yield cluster.bootstrap_servers
    close_pool()


def test_an_aborted_transaction_leaves_nothing_that_the_next_one_could_commit(aborting: str) -> None:
    """Brokers without transactions v2 (KIP-890) append what comes behind an abort marker of its own epoch.

    1. A Produce is on its way, held up.  2. The transaction is aborted.  3. The Produce arrives.  4. The next
    transaction of the same id is committed.
    """
    topic, wanted = "sink-aborted", TopicPartition("sink-aborted", 0)
    create_topic(aborting, topic, PARTITIONS)
    with BatchProducer(Cluster({"bootstrap_servers": aborting}), ProducerSettings()) as producer:
        run = producer.cluster.run
        run(producer.partition_count, topic)
        transaction = ProducerTransaction(producer.cluster, "sink-a", 60_000)
        run(transaction.begin)
        producer.start_transaction(transaction)
        enqueue(producer, topic, range(0, 6))
        run(producer.flush)
        (late,) = encode_batches(None, pa.array([b"late"], pa.binary()), None, 1_700_000_000_000)
        sequence = 2 * PER_BATCH  # of partition 0, after two batches
        restamp(late.data, transaction.producer_id, transaction.producer_epoch, sequence, is_transactional=True)
        run(transaction.abort)

        async def arrive() -> int:
            node_id = await producer.cluster.leader(wanted)
            (answer,) = await producer.cluster.produce(node_id, {wanted: late.data}, transactional_id="sink-a")
            return int(answer.error_code)

        assert run(arrive) == Errors.InvalidProducerEpochError.errno
    transact(aborting, topic, "sink-a", 0, 30)
    assert values(aborting, topic) == written(30)


def test_a_task_that_failed_with_requests_in_flight_is_written_once_by_its_next_attempt(aborting: str) -> None:
    topic = "sink-failed-task"
    create_topic(aborting, topic, PARTITIONS)
    given = {"kafka.bootstrap.servers": aborting, "topic": topic, "exactlyOnce": "true"}
    options, columns = parse_write_options(given), WriteColumns(topic, None, 0, None, None)

    def rows(is_failing: bool) -> Iterator[pa.RecordBatch]:
        for first in range(0, 27_000, 9_000):
            column = pa.array([b"%06d" % n + b"x" * 1_000 for n in range(first, first + 9_000)])
            yield pa.record_batch([column], names=["value"])
        if is_failing:
            raise RuntimeError("upstream failed")

    for trial in range(4 if LONG else 1):
        place = SinkBatch(f"{topic}-{trial}", "", f"{trial:032x}", 0)
        with pytest.raises(RuntimeError, match="upstream failed"):
            write_task(options, columns, place, rows(True))
        message = write_task(options, columns, place, rows(False))
        assert message.rows == 27_000
        commit_tasks(options, [message])
        count = Counter(int(v[:6]) for partition in values(aborting, topic).values() for v in partition)
        assert (len(count), set(count.values())) == (27_000, {trial + 1})


# -- one decision for a micro-batch ----------------------------------------------


def sink_batch(servers: str, topic: str, run: int, batch: int, tasks: int, death: str = "never") -> None:
    """A run of a micro-batch in a process of its own."""
    arguments = [servers, topic, topic, f"{run:032x}", str(batch), str(tasks), death]
    done = subprocess.run(
        [sys.executable, "-m", "support.sink_batch", *arguments],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if death == "never" else -signal.SIGKILL), done.stderr[-3000:]


def sink_options(servers: str, topic: str) -> WriteOptions:
    return parse_write_options({"kafka.bootstrap.servers": servers, "topic": topic, "exactlyOnce": "true"})


def committed_rows(servers: str, topic: str) -> list[bytes]:
    return sorted((v for partition in values(servers, topic).values() for v in partition), key=int)


@pytest.mark.parametrize("death", sink_batches.DEATHS)
def test_a_driver_that_is_killed_anywhere_has_its_micro_batch_written_once_by_other_tasks(
    kafka_cluster: KafkaCluster, death: str
) -> None:
    """Laws A and B, with a repeat of another number of tasks; law C: what was left open holds up no reader after it."""
    servers, topic = kafka_cluster.bootstrap_servers, f"sink-driver-{death}"
    create_topic(servers, topic, PARTITIONS)
    sink_batch(servers, topic, 1, 0, 2)
    sink_batch(servers, topic, 1, 1, 4, death)
    assert committed_rows(servers, topic)[: sink_batches.ROWS] == sink_batches.rows(0)
    sink_batch(servers, topic, 2, 1, 3, death)
    sink_batch(servers, topic, 3, 1, 1)
    sink_batch(servers, topic, 3, 2, 2)
    wanted = [*sink_batches.rows(0), *sink_batches.rows(1), *sink_batches.rows(2)]
    assert committed_rows(servers, topic) == wanted


def test_an_attempt_that_was_not_chosen_is_aborted_and_disturbs_nobody(kafka_cluster: KafkaCluster) -> None:
    """Speculation: two attempts of the same tasks, at the same time; Spark's driver hears of one."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-speculation"
    create_topic(servers, topic, PARTITIONS)
    place = SinkBatch(topic, topic, "0d" * 16, 0)
    first = sink_batches.write(servers, topic, place, 2)
    copies = sink_batches.write(servers, topic, place, 2)
    sink_batches.commit(servers, topic, [first[0], copies[1]])
    assert committed_rows(servers, topic) == sink_batches.rows(0)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        assert cluster.run(transactional_ids, cluster, place.prefix, ["Ongoing"]) == set()


def test_two_drivers_that_repeat_one_micro_batch_write_it_once(kafka_cluster: KafkaCluster) -> None:
    """Law A: a driver that was thought dead decides after the one that has followed it, or at the same time."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-two-drivers"
    create_topic(servers, topic, PARTITIONS)
    for batch in range(3):
        runs = [SinkBatch(topic, topic, f"{number}e" * 16, batch) for number in (1, 2)]
        told = [sink_batches.write(servers, topic, place, 2 + number) for number, place in enumerate(runs)]
        errors: list[Exception] = []

        def decide(messages: list[Any], errors: list[Exception] = errors) -> None:
            try:
                sink_batches.commit(servers, topic, messages)
            except OptionError as error:
                errors.append(error)

        threads = [threading.Thread(target=decide, args=(messages,)) for messages in told]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) <= 1 and all("another run of the same query" in str(error) for error in errors), errors
        wanted = [row for number in range(batch + 1) for row in sink_batches.rows(number)]
        assert committed_rows(servers, topic) == wanted


def test_of_two_queries_with_one_sink_the_second_one_is_refused_and_the_first_one_goes_on(
    kafka_cluster: KafkaCluster,
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "sink-two-queries"
    create_topic(servers, topic, PARTITIONS)
    mine, other = (SinkBatch(topic, f"query-{number}", f"{number}f" * 16, 0) for number in (1, 2))
    told = [sink_batches.write(servers, topic, place, 2) for place in (mine, other)]
    sink_batches.commit(servers, topic, told[0])
    with pytest.raises(OptionError, match="belongs to query query-1, and this is query query-2"):
        sink_batches.commit(servers, topic, told[1])
    place = replace(mine, batch=1)
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, place, 2))
    assert committed_rows(servers, topic) == [*sink_batches.rows(0), *sink_batches.rows(1)]


def test_a_micro_batch_of_which_a_part_has_timed_out_is_not_committed_at_all(kafka_cluster: KafkaCluster) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "sink-timed-out"
    create_topic(servers, topic, PARTITIONS)
    place = SinkBatch(topic, topic, "1a" * 16, 0)
    told = sink_batches.write(servers, topic, place, 2)
    with Cluster({"bootstrap_servers": servers}) as cluster:  # as the coordinator does it, after its timeout
        assert told[0].transaction is not None
        cluster.run(ProducerTransaction(cluster, told[0].transaction.transactional_id, 60_000).begin)
    with pytest.raises(ProducerFencedError, match="took too long for transaction.timeout.ms"):
        sink_batches.commit(servers, topic, told)
    abort_tasks(sink_options(servers, topic), told)
    assert committed_rows(servers, topic) == []
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, replace(place, run="1b" * 16), 3))
    assert committed_rows(servers, topic) == sink_batches.rows(0)


def test_what_was_decided_is_not_aborted_when_the_driver_gives_up(kafka_cluster: KafkaCluster) -> None:
    """Law B: Spark calls abort where commit has raised, whatever it had done."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-given-up"
    create_topic(servers, topic, PARTITIONS)
    told = sink_batches.write(servers, topic, SinkBatch(topic, topic, "2a" * 16, 0), 2)
    sink_batches.commit(servers, topic, told)
    abort_tasks(sink_options(servers, topic), told)
    sink_batches.commit(servers, topic, told)
    assert committed_rows(servers, topic) == sink_batches.rows(0)


@pytest.mark.parametrize("where", ["stream", "foreachBatch"])
def test_an_abort_after_a_decision_commits_what_was_decided(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Law B: commit has failed between its decision and the ends, and no reader waits for a repeat.

    In foreachBatch the driver takes itself for a batch write: what the tasks tell counts.
    """
    servers, topic = kafka_cluster.bootstrap_servers, f"sink-decided-aborted-{where}"
    known = SinkBatch(topic, "", "9b" * 16, 0) if where == "foreachBatch" else None
    create_topic(servers, topic, PARTITIONS)
    place, commit = SinkBatch(topic, topic, "2b" * 16, 0), ProducerTransaction.commit

    async def commit_no_task(transaction: ProducerTransaction, *arguments: Any) -> None:
        if not transaction.transactional_id.endswith("/decider"):
            raise ClusterUnreachableError("the coordinators of the tasks are away")
        await commit(transaction, *arguments)

    told = sink_batches.write(servers, topic, place, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ProducerTransaction, "commit", commit_no_task)
        with pytest.raises(ClusterUnreachableError):
            sink_batches.commit(servers, topic, told)
        abort_tasks(sink_options(servers, topic), told, known)
    assert committed_rows(servers, topic) == []
    abort_tasks(sink_options(servers, topic), told, known)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        assert cluster.run(transactional_ids, cluster, place.prefix, ["Ongoing"]) == set()
    assert committed_rows(servers, topic) == sink_batches.rows(0)


def test_a_repeat_with_other_rows_ends_what_was_decided_before_it_is_refused(kafka_cluster: KafkaCluster) -> None:
    """Law B, after a driver that died right after its decision: what the error calls committed is."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-differs"
    create_topic(servers, topic, PARTITIONS)
    sink_batch(servers, topic, 1, 0, 2, "decided")
    told = sink_batches.write(servers, topic, SinkBatch(topic, topic, "3c" * 16, 0), 2)[:1]
    with pytest.raises(RepeatDiffersError, match="was committed with 60 rows .* and is repeated with 30"):
        sink_batches.commit(servers, topic, told)
    assert committed_rows(servers, topic) == sink_batches.rows(0)


@pytest.mark.parametrize("aborted", ["both", "older", "younger"])
def test_what_was_decided_and_aborted_by_the_brokers_is_written_again_or_named(
    kafka_cluster: KafkaCluster, aborted: str
) -> None:
    """A driver died right after its decision, and was away for longer than transaction.timeout.ms."""
    servers, topic = kafka_cluster.bootstrap_servers, f"sink-aborted-{aborted}"
    create_topic(servers, topic, PARTITIONS)
    sink_batch(servers, topic, 1, 0, 2, "decided")
    with Cluster({"bootstrap_servers": servers}) as cluster:
        names = cluster.run(transactional_producers, cluster, f"tolerant-sink-{topic}/", ["Ongoing"])
        assert names is not None and len(names) == 2
        older, younger = sorted(names, key=names.__getitem__)  # a broker gives producer ids in their order
        for name in {"both": [older, younger], "older": [older], "younger": [younger]}[aborted]:
            cluster.run(ProducerTransaction(cluster, name, 60_000).begin)
    told = sink_batches.write(servers, topic, SinkBatch(topic, topic, "3a" * 16, 0), 3)
    if aborted == "younger":
        with pytest.raises(DataLossError, match="is written in part: the brokers aborted 1 of its 2 transactions"):
            sink_batches.commit(servers, topic, told)
        abort_tasks(sink_options(servers, topic), told)
        assert len(committed_rows(servers, topic)) == sink_batches.ROWS // 2
    else:
        sink_batches.commit(servers, topic, told)
        assert committed_rows(servers, topic) == sink_batches.rows(0)
        with Cluster({"bootstrap_servers": servers}) as cluster:
            assert cluster.run(transactional_ids, cluster, f"tolerant-sink-{topic}/", ["Ongoing"]) == set()


@pytest.mark.parametrize("is_chosen_in_order", [True, False])
def test_a_driver_whose_oldest_transaction_is_aborted_after_its_decision_commits_none_of_it(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, is_chosen_in_order: bool
) -> None:
    """It was frozen after its decision until the first timeout; Spark may tell of the tasks in any order."""
    servers, topic = kafka_cluster.bootstrap_servers, f"sink-oldest-{is_chosen_in_order}"
    create_topic(servers, topic, PARTITIONS)
    place = SinkBatch(topic, topic, "6a" * 16, 0)
    told = sink_batches.write(servers, topic, place, 3)
    assert told[0].transaction is not None
    oldest, commit = told[0].transaction.transactional_id, ProducerTransaction.commit
    waiting = [oldest]

    async def commit_late(transaction: ProducerTransaction, *arguments: Any) -> None:
        if waiting and not transaction.transactional_id.endswith("/decider"):
            with Cluster({"bootstrap_servers": servers}) as cluster:
                cluster.run(ProducerTransaction(cluster, waiting.pop(), 60_000).begin)
        await commit(transaction, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ProducerTransaction, "commit", commit_late)
        with pytest.raises(ProducerFencedError, match="aborted its oldest transaction; nothing was committed"):
            sink_batches.commit(servers, topic, told if is_chosen_in_order else told[::-1])
    abort_tasks(sink_options(servers, topic), told)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        assert cluster.run(transactional_ids, cluster, place.prefix, ["Ongoing"]) == set()
    assert committed_rows(servers, topic) == []
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, replace(place, run="6b" * 16), 2))
    assert committed_rows(servers, topic) == sink_batches.rows(0)


def test_a_micro_batch_that_a_former_version_began_is_refused_and_the_next_one_goes_on(
    kafka_cluster: KafkaCluster,
) -> None:
    """That version committed task by task, each beside an offset of its own group."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-former"
    create_topic(servers, topic, PARTITIONS)
    transact(servers, topic, f"tolerant-sink-{topic}-0", 0, 1)  # commits 1: micro-batch 0
    before = values(servers, topic)
    told = sink_batches.write(servers, topic, SinkBatch(topic, topic, "4a" * 16, 0), 2)
    with pytest.raises(OptionError, match="by a version of tolerant-client that commits task by task"):
        sink_batches.commit(servers, topic, told)
    abort_tasks(sink_options(servers, topic), told)
    assert values(servers, topic) == before
    sink_batches.commit(servers, topic, sink_batches.write(servers, topic, SinkBatch(topic, topic, "4b" * 16, 1), 2))
    found = [v for partition in values(servers, topic).values() for v in partition]
    assert len(found) == PER_BATCH + sink_batches.ROWS


def test_a_decision_of_many_tasks_is_carried_out(kafka_cluster: KafkaCluster) -> None:
    """More transactions than one offset's metadata can name."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-many-tasks"
    create_topic(servers, topic, PARTITIONS)
    told = sink_batches.write(servers, topic, SinkBatch(topic, topic, "5a" * 16, 1), sink_batches.ROWS)
    sink_batches.commit(servers, topic, told)
    assert committed_rows(servers, topic) == sink_batches.rows(1)


@pytest.mark.parametrize("seed", range(10 if LONG else 1))
def test_micro_batches_are_written_once_when_one_answer_in_20_is_wrong(
    fault_proxy: Proxies, kafka_cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))  # so the second micro-batch of a run has the ids of the first
    topic = f"sink-decided-{seed}"
    create_topic(kafka_cluster.bootstrap_servers, topic, PARTITIONS)
    proxy = fault_proxy(ONE_IN_20, seed=seed)
    for batch in range(5):
        place = SinkBatch(topic, topic, f"{batch // 2:032x}", batch)
        told = sink_batches.write(proxy.bootstrap_servers, topic, place, 1 + batch % 3)
        sink_batches.commit(proxy.bootstrap_servers, topic, told)
    assert proxy.injected_total > 0, "nothing was tried"
    wanted = [row for batch in range(5) for row in sink_batches.rows(batch)]
    assert committed_rows(kafka_cluster.bootstrap_servers, topic) == wanted


def test_an_abort_leaves_the_transaction_of_whoever_has_taken_over_alone(kafka_cluster: KafkaCluster) -> None:
    """A task that lost against its speculative copy."""
    servers, topic = kafka_cluster.bootstrap_servers, "sink-taken-over"
    create_topic(servers, topic, PARTITIONS)
    with BatchProducer(Cluster({"bootstrap_servers": servers}), ProducerSettings()) as producer:
        run = producer.cluster.run
        loser, winner = (ProducerTransaction(producer.cluster, "sink-o", 60_000) for _ in range(2))
        run(producer.partition_count, topic)
        run(loser.begin)
        run(winner.begin)
        producer.start_transaction(winner)
        enqueue(producer, topic, range(30))
        run(producer.flush)
        with pytest.raises(ProducerFencedError):
            run(loser.abort)
        run(winner.commit)
    assert values(servers, topic) == written(30)


@pytest.mark.long
def test_what_was_committed_beside_a_topic_that_is_not_named_is_found(kafka_cluster: KafkaCluster) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "sink-renamed"
    create_topic(servers, topic, PARTITIONS)
    transact(servers, topic, "sink-r", 0, 3)
    with Cluster({"bootstrap_servers": servers}) as cluster:
        found = cluster.run(
            ProducerTransaction(cluster, "sink-r", 60_000).committed, "sink-r", [TopicPartition("another", 0)]
        )
    assert found == {TopicPartition(topic, 0): CommittedOffset(3, "m")}


def test_a_producer_whose_id_was_taken_over_is_fenced_and_writes_nothing(kafka_cluster: KafkaCluster) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, "sink-fenced"
    create_topic(servers, topic, PARTITIONS)
    with BatchProducer(Cluster({"bootstrap_servers": servers}), ProducerSettings()) as zombie:
        run = zombie.cluster.run
        transaction = ProducerTransaction(zombie.cluster, "sink-z", 60_000)
        run(transaction.begin)
        zombie.start_transaction(transaction)
        run(zombie.partition_count, topic)
        enqueue(zombie, topic, range(100, 110))
        run(zombie.flush)
        transact(servers, topic, "sink-z", 0, 30)
        with pytest.raises(ProducerFencedError):
            enqueue(zombie, topic, range(110, 120))
            run(zombie.flush)
        with pytest.raises(ProducerFencedError):
            run(transaction.commit)
    assert values(servers, topic) == written(30)


# -- Spark -----------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """All processes below one, parents first."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        mine = below.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def python_workers(pid: int) -> list[int]:
    """The Python workers of a driver's executors: children of pyspark's daemons."""
    workers = []
    for child in children(pid):
        try:
            parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
            if "pyspark/daemon" in Path(f"/proc/{parent}/cmdline").read_text().replace(".", "/"):
                workers.append(child)
        except OSError:
            continue
    return workers


@pytest.fixture
def sink_process(
    tmp_path: Path, kafka_cluster: KafkaCluster
) -> Iterator[Callable[[str, int], subprocess.Popen[bytes]]]:
    """Starts support.sink_process on one checkpoint; what is left of it is ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(topic: str, batches: int) -> subprocess.Popen[bytes]:
        arguments = [kafka_cluster.bootstrap_servers, topic, str(tmp_path / "checkpoint"), str(batches)]
        with open(tmp_path / "log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.sink_process", *arguments],
                cwd=Path(__file__).parents[1],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        kill_driver(process)


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for the driver's Python and its JVM at once; Python workers find out by themselves."""
    with_jvm = [process.pid, *children(process.pid)] if process.poll() is None else []
    for pid in with_jvm:
        try:
            if "pyspark/daemon" not in Path(f"/proc/{pid}/cmdline").read_text().replace(".", "/"):
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    process.wait()


def wait_for_records(reader: Cluster, topic: str, above: int, process: subprocess.Popen[bytes]) -> int:
    """The records in the logs, committed or not, once there are more than `above`."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    deadline = time.monotonic() + 120
    while True:
        found = sum(reader.run(reader.list_offsets, dict.fromkeys(partitions, LATEST)).values())
        if found > above:
            return found
        assert time.monotonic() < deadline
        assert process.poll() is None, "the query ended"
        time.sleep(0.02)


def assert_written_once(servers: str, topic: str, batches: int) -> None:
    count = Counter(int(v) for partition in values(servers, topic).values() for v in partition)
    assert [n for n, times in count.items() if times > 1] == []
    assert [n for n in range(batches * TASKS * ROWS) if n not in count] == []


@pytest.mark.long
def test_killed_workers_and_drivers_lose_and_double_nothing(
    kafka_cluster: KafkaCluster, sink_process: Callable[[str, int], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    topic, servers, dice = "sink-killed-drivers", kafka_cluster.bootstrap_servers, random.Random(5)
    create_topic(servers, topic, PARTITIONS)
    kills, batches = (8, 12) if LONG else (1, 3)
    killed_workers = 0
    with Cluster({"bootstrap_servers": servers}, name="reader") as reader:
        seen = 0
        for _ in range(kills):
            process = sink_process(topic, 1_000_000)
            seen = wait_for_records(reader, topic, seen, process)
            time.sleep(dice.random())
            for worker in python_workers(process.pid)[:1]:
                os.kill(worker, signal.SIGKILL)
                killed_workers += 1
            seen = wait_for_records(reader, topic, seen, process)
            time.sleep(dice.random())
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            kill_driver(process)
            partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
            seen = sum(reader.run(reader.list_offsets, dict.fromkeys(partitions, LATEST)).values())
    assert killed_workers == kills
    process = sink_process(topic, batches)
    assert process.wait(180) == 0, (tmp_path / "log").read_text()[-3000:]
    assert_written_once(servers, topic, batches)
