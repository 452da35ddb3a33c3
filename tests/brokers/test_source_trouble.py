"""What a mirror makes of a source that loses records, is cut, created again, or grows (M7, incidents 2, 4 and 5)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial

import kafka
import pytest
from kafka.admin import NewPartitions, NewTopic
from kafka.structs import TopicPartition

from support.mirror_link import (
    T0,
    append_batches,
    append_records,
    both,
    compare,
    consume,
    create_replicated,
    create_topic,
    delete_records,
    ends,
    header_at,
    losses,
    make_anew,
    mirror,
    prepare,
    values,
)
from support.raising_copier import LinkCopier
from support.settled import changing
from tolerant_client.cluster.admin.offsets import log_end_offsets
from tolerant_client.cluster.admin.topics import present_ids
from tolerant_client.cluster.admin.transactions import ProducerEntry, init_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import DataLossError, SourceTruncatedError, TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.losses import LedgerRow, Loss, LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine import prepare as sync
from tolerant_client.mirror.engine.identical import evidence, next_sequence, resume_point
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.planned_link import plan_link
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.logs.reading import source_truncations
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, Ledger, read_ledger
from tolerant_client.records.record_batch import Record, encode_batch, restamp
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CONTINUE = MirrorPolicy(on_loss=LossPolicy.CONTINUE)


def create_again(servers: str, topic: str, records: int) -> None:
    """Deletes a topic and creates it with other records."""
    make_anew(servers, topic)
    append_batches(
        servers,
        [(TopicPartition(topic, 0), encode_batch([Record(0, T0, None, b"new %d" % n) for n in range(records)]))],
    )


# -- records that are gone before they were copied ----------------------------


def overtake(source: str, target: str, topic: str) -> None:
    """100 records are copied; of the next 100 the source deletes the first 50."""
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror(source, target, topic)
    append_records(source, topic, 100, first=100)
    delete_records(source, topic, 150)


def test_retention_that_overtook_the_mirror_ends_it_before_anything_is_written(source: str, target: str) -> None:
    topic = "trouble-overtaken"
    overtake(source, target, topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 no longer has offsets 100 to 150"):
        mirror(source, target, topic)
    assert ends(target, topic) == [100]
    assert losses(target, topic) == []


def test_copying_goes_on_behind_what_retention_took_and_the_ledger_says_so_once(source: str, target: str) -> None:
    topic = "trouble-overtaken-continue"
    overtake(source, target, topic)
    policy = MirrorPolicy.parse(on_loss=["fail", "trouble-.*=continue"])
    (progress,) = mirror(source, target, topic, policy=policy).values()
    assert (progress.losses, progress.acked) == (1, 200)
    assert losses(target, topic) == [(0, 100, 150, "retention")]
    original, copied = consume(source, topic, 1, 50)[0], consume(target, topic, 1, 200)[0]
    assert [record for record in copied if record[0] >= 150] == original
    assert [r for r in copied if r[0] in range(100, 150) and not r[4]] == []
    # Under any policy: what the ledger says is not found again.
    (progress,) = mirror(source, target, topic).values()
    assert (progress.losses, progress.records) == (0, 0)
    assert len(losses(target, topic)) == 1


def test_paused_partition_waits_while_others_are_copied(source: str, target: str) -> None:
    overtake(source, target, "trouble-paused")
    create_topic(source, "trouble-unpaused")
    append_records(source, "trouble-unpaused", 10)
    progress = mirror(source, target, "trouble-(un)?paused", policy=MirrorPolicy(on_loss=LossPolicy.PAUSE))
    paused = progress[TopicPartition("trouble-paused", 0)]
    assert paused.is_paused and isinstance(paused.error, DataLossError)
    assert ends(target, "trouble-paused") == [100]
    assert ends(target, "trouble-unpaused") == [10]
    assert losses(target, "trouble-paused") == []


# -- records that are gone after they were copied -----------------------------


@pytest.mark.parametrize("records", [0, 30, 150])
def test_topic_that_was_created_again_is_found_by_its_content(source: str, target: str, records: int) -> None:
    topic = f"trouble-again-{records}"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror(source, target, topic)
    create_again(source, topic, records) if records else recreate_empty(source, topic)
    with pytest.raises(SourceTruncatedError, match=f"{topic}-0.*deleted and created again"):
        mirror(source, target, topic)
    assert ends(target, topic) == [100]


def recreate_empty(servers: str, topic: str) -> None:
    create_again(servers, topic, 1)
    delete_records(servers, topic, 1)


def test_topic_that_was_created_again_is_copied_from_where_it_grows_beyond_the_old_one(
    source: str, target: str
) -> None:
    topic = "trouble-again-continue"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror(source, target, topic)
    create_again(source, topic, 30)
    (progress,) = mirror(source, target, topic, policy=CONTINUE).values()
    assert progress.acked == 100
    assert losses(target, topic) == [(0, 0, 100, "recreation")]
    (progress,) = mirror(source, target, topic).values()  # nothing to copy yet, and no new loss
    assert progress.acked == 100
    late = encode_batch([Record(0, T0, None, b"late %d" % n) for n in range(90)])
    append_batches(source, [(TopicPartition(topic, 0), late)])  # one batch across the end of the target's log
    (progress,) = mirror(source, target, topic).values()
    assert (progress.acked, progress.losses) == (120, 0)
    assert values(target, topic, 120)[119] == b"late 89"
    assert values(target, topic, 120)[100] == b"late 70"
    assert values(target, topic, 120)[99] != b"late 69"
    assert mirror(source, target, topic)[TopicPartition(topic, 0)].losses == 0
    assert len(losses(target, topic)) == 1


def test_topic_that_is_created_again_while_it_is_copied_ends_the_mirror(source: str, target: str) -> None:
    topic = "trouble-again-live"
    create_topic(source, topic)
    append_records(source, topic, 100)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "live")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="live")
            await copier.copy({partition: 100}, lease_ms=60_000)
            create_again(source, topic, 150)  # blocks this loop: the mirror sleeps meanwhile
            await copier.copy({partition: 150}, lease_ms=60_000)

        with pytest.raises(SourceTruncatedError, match="deleted and created again"):
            origin.run(run)
    assert ends(target, topic) == [100]


# -- what rewriting must not hide ---------------------------------------------


def test_coalesced_batches_are_recognised_and_other_records_in_them_are_not(source: str, target: str) -> None:
    topic = "trouble-coalesced"
    create_topic(source, topic)
    append_records(source, topic, 300, per_batch=1)
    mirror(source, target, topic)
    assert mirror(source, target, topic)[TopicPartition(topic, 0)].records == 0
    producer = kafka.KafkaProducer(bootstrap_servers=target)
    producer.send(topic, b"foreign", partition=0)
    producer.close()
    append_records(source, topic, 300, first=300, per_batch=1)
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 has a foreign record batch at offset 300"):
        mirror(source, target, topic, policy=CONTINUE)
    assert losses(target, topic) == []


@pytest.mark.parametrize("told", [True, False], ids=["told by the broker", "found in the log"])
def test_copy_whose_log_ends_in_gaps_goes_on_with_the_right_sequence(
    source: str, target: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"trouble-gap-at-end-{told}"
    if not told:
        monkeypatch.setattr(next_sequence, "can_describe_producers", lambda _: False)  # as before Kafka 2.8
    create_topic(source, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    for kind in ("commit", "abort", "commit", "abort"):
        producer.begin_transaction()
        producer.send(topic, kind.encode(), partition=0)
        producer.flush()
        getattr(producer, f"{kind}_transaction")()
        mirror(source, target, topic)
    producer.close()
    assert ends(target, topic) == ends(source, topic) == [8]
    data = [header_at(target, TopicPartition(topic, 0), offset) for offset in (0, 4)]
    assert [header.base_sequence for header in data] == [0, 1]
    for isolation in ("read_committed", "read_uncommitted"):
        copied = consume(target, topic, 1, 2, isolation_level=isolation)[0]
        assert [(offset, value) for offset, _, _, value, h in copied if not h] == [(0, b"commit"), (4, b"commit")]


def test_sequence_and_log_end_of_different_moments_are_never_put_together(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A writer reads the log end, 2. another appends, 3. the first asks for the sequence: it must not append that again."""
    topic = "trouble-moments"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic)
    with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"1", partition=0)
        producer.commit_transaction()
    mirror(source, target, topic)
    append_records(source, topic, 3)
    ask = next_sequence.describe_producers

    async def append_before_asking(
        cluster: Cluster, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerEntry]]:
        append_batches(target, [(partition, bytes(next_batch))])
        return await ask(cluster, partitions)

    with both(source, target) as (origin, copy):
        producer_id = origin.run(init_producer_id, copy, "tests")
        read = (resume_point.read_append_states, origin, copy, [partition], producer_id)
        before = origin.run(*read)[partition]
        (topic_id,) = copy.run(present_ids, copy, [topic]).values()
        assert before == AppendState(2, producer_id, 0, 1, topic_id, last_ms=before.last_ms)
        next_batch = bytearray(encode_batch([Record(0, T0, None, b"next")]))
        restamp(next_batch, *before[1:4])
        monkeypatch.setattr(next_sequence, "describe_producers", append_before_asking)
        assert origin.run(*read) == {}
        monkeypatch.undo()
        # What was appended is not the source's record.
        assert isinstance(origin.run(*read)[partition], TargetDivergedError)
    assert ends(target, topic) == [3]


# -- a source that grows ------------------------------------------------------


def test_partitions_and_topics_that_are_added_are_copied_too(source: str, target: str) -> None:
    create_topic(source, "trouble-grows", 1)
    append_records(source, "trouble-grows", 10)
    mirror(source, target, "trouble-grows.*")
    with changing(source) as admin:
        admin.create_partitions({"trouble-grows": NewPartitions(3)})
    create_topic(source, "trouble-grows-too", 1)
    append_records(source, "trouble-grows", 10, partitions=3, first=10)
    append_records(source, "trouble-grows-too", 10)
    with both(source, target) as (origin, copy):
        planned = origin.run(plan_link, origin, copy, "trouble-grows.*")
    assert [t.name for t in planned.topics.create] == ["trouble-grows-too"]
    assert [(t.name, t.partitions) for t in planned.topics.grow] == [("trouble-grows", 3)]
    mirror(source, target, "trouble-grows.*")
    assert ends(target, "trouble-grows", 3) == [20, 10, 10]
    assert ends(target, "trouble-grows-too") == [10]


def test_once_ends_before_an_open_transaction(source: str, target: str) -> None:
    topic = "trouble-open"
    create_topic(source, topic)
    append_records(source, topic, 10)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush()
    append_records(source, topic, 10, first=10)
    assert prepare(source, target, topic).ends == {TopicPartition(topic, 0): 10}
    assert mirror(source, target, topic)[TopicPartition(topic, 0)].acked == 10
    producer.commit_transaction()
    producer.close()
    assert mirror(source, target, topic)[TopicPartition(topic, 0)].acked == 22


# -- the ledger ---------------------------------------------------------------


def test_rows_of_racing_writers_are_read_once_and_the_topic_keeps_them_for_ever(target: str) -> None:
    row = LedgerRow(T0, "race", "trouble-ledger", 0, 5, 9, "retention", "gone")
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:

        async def run() -> list[LedgerRow]:
            writers = [Ledger(cluster, "race") for _ in range(3)]
            others = [row._replace(partition=n) for n in (1, 2)]
            waiting = [
                cluster.net.call_soon_with_future(lambda w=writer, r=new: w.write([r]))
                for writer in writers
                for new in (row, *others)
            ]
            for future in waiting:
                await future
            for writer in writers:
                await writer.write([row, row._replace(until_offset=12)])
            return sorted(r for r in await read_ledger(cluster) if r.topic == row.topic)

        grown = row._replace(from_offset=9, until_offset=12)
        assert cluster.run(run) == [row, grown, row._replace(partition=1), row._replace(partition=2)]
    admin = kafka.KafkaAdminClient(bootstrap_servers=target)
    (described,) = admin.describe_topics([LEDGER_TOPIC])
    admin.close()
    assert len(described["partitions"]) == 1


# -- leader epochs ------------------------------------------------------------


def test_healthy_source_tells_of_no_truncation(source: str) -> None:
    create_topic(source, "trouble-epochs")
    append_records(source, "trouble-epochs", 20)
    partition = TopicPartition("trouble-epochs", 0)
    with Cluster({"bootstrap_servers": source}, name="source") as cluster:
        assert cluster.run(source_truncations, cluster, {partition: (0, 20)}) == {}
        # A copy that went further than the epoch does was cut.
        assert cluster.run(source_truncations, cluster, {partition: (0, 25)}) == {partition: 20}
        assert cluster.run(source_truncations, cluster, {partition: (-1, 25)}) == {}


def test_what_an_election_took_back_is_lost_even_where_equal_records_came_again(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "trouble-epochs-equal"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, topic)

    async def cut(*_: object) -> dict[TopicPartition, int]:
        return {partition: 12}

    monkeypatch.setattr(evidence, "source_truncations", cut)
    with both(source, target) as (origin, copy):
        found = origin.run(resume_point.read_append_states, origin, copy, [partition], 0)[partition]
    assert isinstance(found, Loss)
    assert found.row[4:7] == (12, 20, "truncation")
    assert (found.state.log_end, found.resume_at) == (20, 20)


# -- more nodes, minutes ------------------------------------------------------


@pytest.fixture
def three_nodes() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=3, heap="256m") as cluster:
        yield cluster
    gc.collect()  # the sockets of refused connections, while their warnings are still ignored


def test_a_partition_without_a_leader_holds_up_no_other_and_comes_back(
    three_nodes: KafkaCluster, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "trouble-leaderless"
    servers, led, lost = three_nodes.bootstrap_servers, TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: [1], 1: [2]})])
    admin.close()
    append_records(servers, topic, 10, partitions=2)
    monkeypatch.setattr(sync, "ELECTION_MS", 500)
    with both(servers, target) as (origin, copy):
        three_nodes.kill(2)
        began = time.monotonic()
        link = origin.run(prepare_link, origin, copy, topic, topic)
        assert time.monotonic() - began < 30  # a wait for the leader would have been 60 s, and then an error
        assert (dict(link.ends), link.waiting.keys()) == (
            {led: 10},
            {lost},
        )  # or its leader is not known to be dead yet
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=topic)
        assert origin.run(copier.copy, link.ends)[led].acked == 10
        three_nodes.restart(2)
        found = origin.run(partial(plan_link, patience_ms=30_000), origin, copy, topic)
        assert (dict(found.ends), found.waiting) == ({led: 10, lost: 10}, {})


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_promotion_waits_no_longer_for_a_partition_without_a_leader_than_it_is_told_to(
    three_nodes: KafkaCluster, target: str, is_translated: bool
) -> None:
    topic = link = f"trouble-promoted-{is_translated}"
    servers = three_nodes.bootstrap_servers
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: [1], 1: [2]})])
    admin.close()
    append_records(servers, topic, 10, partitions=2)
    mirror(servers, target, topic, link, is_translated=is_translated)
    for is_away in (True, False):
        if is_away:
            three_nodes.kill(2)
        else:
            three_nodes.restart(2)
        told: list[str] = []
        began = time.monotonic()
        with both(servers, target) as (origin, copy):
            promoting = partial(promote, deadline_s=3.0 if is_away else 60.0, tell=told.append)
            report = origin.run(promoting, origin, copy, link)
        assert (report.is_done, report.exit_code) == ((False, 3) if is_away else (True, 0))
        assert [p.copied_until for p in report.partitions] == [10, 10]
        assert [p.lag for p in report.partitions] == ([0, None] if is_away else [0, 0])
        if is_away:
            assert time.monotonic() - began < 25  # it was 75 s, and then an error
            assert all(
                f"how much of {topic}-1 is not copied is unknown: " in text for text in (report.blockers[0], told[-1])
            )


@pytest.mark.parametrize("is_newer_away", [True, False])
def test_a_failback_names_a_partition_without_a_leader_and_shows_the_other_topics(
    three_nodes: KafkaCluster, target: str, is_newer_away: bool
) -> None:
    topics = whole, broken = [f"trouble-back-{is_newer_away}-{n}" for n in range(2)]
    servers = three_nodes.bootstrap_servers
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    assignments = {whole: {0: [1]}, broken: {0: [1], 1: [2]}}
    admin.create_topics([NewTopic(name, -1, -1, replica_assignments=of) for name, of in assignments.items()])
    admin.close()
    for number, topic in enumerate(topics, 1):
        create_topic(target, topic, number)
        for each in (servers, target):
            append_records(each, topic, 10, partitions=number)
    clusters = (servers, target) if is_newer_away else (target, servers)
    for is_away in (True, False):
        if is_away:
            three_nodes.kill(2)
        else:
            three_nodes.restart(2)
        began = time.monotonic()
        with both(*clusters) as (origin, copy):
            report = origin.run(failback, origin, copy, f"back-{is_newer_away}", f"trouble-back-{is_newer_away}-.*")
        assert (report.is_done, report.exit_code) == ((False, 3) if is_away else (True, 0)), report.blockers
        assert {p.topic for p in report.partitions} == ({whole} if is_away else {whole, broken})
        if is_away:
            assert time.monotonic() - began < 40  # it was 60 s, and then an error
            (why,) = report.blockers
            assert why.startswith(f"{broken}-1 cannot be compared: "), why


@pytest.mark.long
def test_leaders_that_move_and_die_change_nothing(three_nodes: KafkaCluster, target: str) -> None:
    topic = "trouble-leaders"
    servers = three_nodes.bootstrap_servers
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 6, 3, topic_configs={"min.insync.replicas": "2"})])
    admin.close()
    append_records(servers, topic, 20_000, partitions=6, per_batch=20)
    limits = CopyLimits(fetch_max_bytes=200_000, partition_max_bytes=50_000)
    trouble: list[BaseException] = []

    def kill_and_restart() -> None:
        try:
            for node in (1, 2, 3):
                time.sleep(1)
                three_nodes.kill(node)
                time.sleep(6)
                three_nodes.restart(node)
        except BaseException as error:
            trouble.append(error)

    def write() -> None:
        try:
            producer = kafka.KafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
            for n in range(12_000):
                producer.send(topic, b"%d" % n, partition=n % 6)
                time.sleep(0.002)
            producer.close()
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=kill_and_restart), threading.Thread(target=write)]
    with both(servers, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "leaders")
            for thread in threads:
                thread.start()
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), limits, link="leaders")
            while any(thread.is_alive() for thread in threads):
                await copier.copy(dict.fromkeys(link.ends), hold_ms=2000, lease_ms=10_000)

        origin.run(run)
    assert trouble == []
    mirror(servers, target, topic, "leaders")
    assert ends(target, topic, 6) == ends(servers, topic, 6)
    assert compare(servers, target, topic).identical
    assert losses(target, topic) == []


@pytest.mark.long
def test_log_end_of_a_leader_counts_what_is_not_replicated_yet(three_nodes: KafkaCluster) -> None:
    topic = "trouble-unreplicated"
    partition = TopicPartition(topic, 0)
    create_replicated(three_nodes.bootstrap_servers, topic, [1, 2])
    append_records(three_nodes.bootstrap_servers, topic, 10)
    three_nodes.pause(2)
    try:
        servers = three_nodes.bootstrap_servers.split(",")
        with Cluster({"bootstrap_servers": [servers[0], servers[2]]}, name="target") as cluster:

            async def run() -> tuple[int, int]:
                batch = memoryview(bytearray(encode_batch([Record(0, T0, None, b"leader alone")])))
                await cluster.connect()
                await cluster.track([topic])
                await cluster.produce(await cluster.leader(partition), {partition: batch}, acks=1)
                stable = await cluster.list_offsets({partition: LATEST})
                return stable[partition], (await log_end_offsets(cluster, [partition]))[partition]

            assert cluster.run(run) == (10, 11)
    finally:
        three_nodes.resume(2)
