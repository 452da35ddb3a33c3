"""What may be appended, and what a log proves: records that were refused, forgotten producers, logs that others began (M2 to M7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors as Errors
import numpy as np
import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from support.mirror_link import (
    append_as_link,
    append_batches,
    append_records,
    both,
    compare,
    configure,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    header_at,
    make_anew,
    mirror,
    prepare_translated_link,
)
from support.raising_copier import LinkCopier
from tolerant_client.cluster.admin.coordinators import TRANSACTION, Coordinators
from tolerant_client.cluster.admin.transactions import describe_producers, init_producer_id
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    PartitionRefusedError,
    RecoveryExhaustedError,
    SourceTruncatedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.identical import gap_producer, next_sequence, offsets, resting
from tolerant_client.mirror.engine.identical.gap_producer import GapProducer, gap_transactional_id
from tolerant_client.mirror.engine.identical.offsets import IdenticalOffsets, identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import ControlWatch, read_control
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import last_rows
from tolerant_client.mirror.state.map_topic import ensure_map_topic, map_partition, map_topic
from tolerant_client.mirror.state.offset_map import MapRow
from tolerant_client.mirror.state.topics import describe_topics
from tolerant_client.records.batch_columns import HEADER
from tolerant_client.records.codecs import GZIP
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, read_header, restamp
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NOW = int(time.time() * 1000)
HOUR, DAY = 3_600_000, 86_400_000
FOR_EVER = str(2**63 - 1)
CONTINUE = MirrorPolicy(on_loss=LossPolicy.CONTINUE)


@pytest.fixture(scope="module")
def forgetful(start_cluster: Callable[..., KafkaCluster]) -> str:
    """A target that forgets producers, and aborts transactions that have timed out, within a second."""
    settings = {
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "50",
        "transactional.id.expiration.ms": "60000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    return start_cluster(heap="320m", broker_config=settings).bootstrap_servers


def numbered(first: int, count: int, timestamp: int, *, has_key: bool = True, size: int = 400) -> bytes:
    records = [
        Record(0, timestamp, b"k%d" % n if has_key else None, b"%06d" % n + b"x" * size)
        for n in range(first, first + count)
    ]
    return encode_batch(records)


def log_of(servers: str, topic: str) -> LogSlice:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        partition = TopicPartition(topic, 0)

        async def read() -> LogSlice:
            start = (await cluster.list_offsets({partition: EARLIEST}))[partition]
            end = (await cluster.list_offsets({partition: LATEST}))[partition]
            return (await read_slices(cluster, {partition: (start, end)}, is_committed=False))[partition]

        return cluster.run(read)


def misplaced(source: str, target: str, topic: str) -> list[int]:
    """Offsets of the target with a record that the source does not have there."""
    original, copied = log_of(source, topic), log_of(target, topic)
    return [offset for offset, record in copied.records.items() if record != original.records.get(offset)]


def ledger_of(servers: str, topic: str) -> list[tuple[Any, ...]]:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        return [row[4:7] for row in cluster.run(read_ledger, cluster) if row.topic == topic]


# -- a batch that is refused, beside others in flight -------------------------


def test_batch_that_follows_a_refused_one_does_not_take_its_offsets_in_an_empty_log(source: str, target: str) -> None:
    topic = "proved-refused-time"
    create_topic(source, topic, 1, {"message.timestamp.after.max.ms": FOR_EVER})
    create_topic(target, topic)  # an operator's, with Kafka 4's limit of an hour ahead
    partition = TopicPartition(topic, 0)
    first = numbered(0, 100, NOW + 3 * HOUR)
    append_batches(source, [(partition, first)] + [(partition, numbered(100 * n, 100, NOW)) for n in range(1, 21)])
    with pytest.raises(TolerantClientError, match="append at offset 0 was refused with InvalidTimestamp"):
        mirror(source, target, topic)
    assert ends(target, topic) == [0]


def test_batch_without_keys_that_a_compacted_topic_refuses_is_followed_by_none(source: str, target: str) -> None:
    topic = "proved-refused-key"
    create_topic(source, topic)
    create_topic(target, topic, 1, {"cleanup.policy": "compact"})
    partition = TopicPartition(topic, 0)
    first = numbered(0, 100, NOW, has_key=False)
    append_batches(source, [(partition, first)] + [(partition, numbered(100 * n, 100, NOW)) for n in range(1, 21)])
    with pytest.raises(TolerantClientError, match="append at offset 0 was refused with InvalidRecord"):
        mirror(source, target, topic)
    assert ends(target, topic) == [0]


def test_what_precedes_a_record_that_the_target_refuses_is_copied_and_the_error_is_about_that_record(
    source: str, target: str
) -> None:
    """The 14th of 20 records that a producer has sent in one batch, between others; and a record that is too old."""
    topic, late = "proved-refused-within", "proved-refused-late"
    for name in (topic, late):
        create_topic(source, name)
        create_topic(target, name, 1, {"cleanup.policy": "compact", "message.timestamp.before.max.ms": str(HOUR)})
        append_batches(source, [(TopicPartition(name, 0), numbered(0, 20, NOW))])
    records = [Record(0, NOW, None if n == 33 else b"k%d" % n, b"%d" % n) for n in range(20, 40)]
    times = [Record(0, NOW if n != 27 else NOW - DAY, b"k", b"%d" % n) for n in range(20, 40)]
    append_batches(
        source, [(TopicPartition(topic, 0), encode_batch(records)), (TopicPartition(topic, 0), numbered(40, 9, NOW))]
    )
    append_batches(source, [(TopicPartition(late, 0), encode_batch(times, codec=GZIP))])
    for _ in range(2):
        said = (
            r"append at offset 33 was refused with InvalidRecord.*87: Compacted topic cannot accept message without key"
        )
        with pytest.raises(TolerantClientError, match=said):
            mirror(source, target, topic)
        # Not in the broker's words, which are others at each try: then it would never have been refused for long.
        with pytest.raises(
            TolerantClientError, match="append at offset 27 was refused .*32: The timestamp of the message"
        ):
            mirror(source, target, late)
        assert (ends(target, topic), ends(target, late)) == ([33], [27])
    for name in (topic, late):
        configure(target, name, cleanup_policy="delete", message_timestamp_before_max_ms=FOR_EVER)
        mirror(source, target, name)
        assert compare(source, target, name).identical


def until_forgotten(servers: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:

        async def run() -> None:
            deadline = time.monotonic() + 30
            while (await describe_producers(cluster, [partition]))[partition]:
                assert time.monotonic() < deadline
                await cluster.net.sleep(0.1)

        cluster.run(run)


def test_first_batch_after_idleness_goes_alone_since_the_broker_may_have_forgotten_the_producer(
    source: str, forgetful: str
) -> None:
    topic = "proved-refused-idle"
    create_topic(source, topic, 1, {"message.timestamp.after.max.ms": FOR_EVER})
    create_topic(forgetful, topic)
    partition = TopicPartition(topic, 0)
    append_batches(source, [(partition, numbered(0, 100, NOW))])
    mirror(source, forgetful, topic)
    until_forgotten(forgetful, topic)
    refused = (partition, numbered(100, 100, NOW + 3 * HOUR))
    append_batches(source, [refused] + [(partition, numbered(100 * n, 100, NOW)) for n in range(2, 22)])
    with pytest.raises(TolerantClientError, match="append at offset 100 was refused with InvalidTimestamp"):
        mirror(source, forgetful, topic)
    assert ends(forgetful, topic) == [100] and misplaced(source, forgetful, topic) == []


def test_old_records_of_which_one_is_refused_in_the_middle_of_a_run_are_never_moved(
    source: str, forgetful: str
) -> None:
    """The broker forgets the producer of old records at its next look, whenever that is: here every 50 ms."""
    topic = "proved-refused-old"
    create_topic(source, topic, 1, {"message.timestamp.after.max.ms": FOR_EVER})
    create_topic(forgetful, topic)
    partition = TopicPartition(topic, 0)
    refused = (10, 20, 30)
    batches = [
        (partition, numbered(100 * n, 100, NOW + 3 * HOUR if n in refused else NOW - 300 * DAY)) for n in range(60)
    ]
    append_batches(source, batches)
    for n in refused:  # each is copied once the operator has lifted the limit
        configure(forgetful, topic, message_timestamp_after_max_ms=str(HOUR))
        with pytest.raises(TolerantClientError, match=f"append at offset {100 * n} was refused"):
            mirror(source, forgetful, topic)
        assert misplaced(source, forgetful, topic) == [] and ends(forgetful, topic) == [100 * n]
        configure(forgetful, topic, message_timestamp_after_max_ms=FOR_EVER)
        copy_until(source, forgetful, topic, 100 * n + 100)
    mirror(source, forgetful, topic)
    assert compare(source, forgetful, topic).identical


def copy_until(source: str, target: str, topic: str, offset: int, link: str = "tests") -> None:
    with both(source, target) as (origin, copy):

        async def run() -> None:
            prepared = await prepare_link(origin, copy, topic, link)
            await LinkCopier(origin, copy, identical_offsets(prepared.producer_id), link=link).copy(
                {TopicPartition(topic, 0): offset}
            )

        origin.run(run)


# -- what the end of a log proves ---------------------------------------------


@pytest.mark.parametrize("policy", [MirrorPolicy(), CONTINUE], ids=["fail", "continue"])
def test_log_that_others_began_and_emptied_is_not_believed_to_be_a_copy(
    source: str, target: str, policy: MirrorPolicy
) -> None:
    topic = f"proved-purged-{policy.on_loss}"
    create_topic(source, topic)
    create_topic(target, topic)
    append_records(source, topic, 1000)
    with kafka.KafkaProducer(bootstrap_servers=target, enable_idempotence=True) as producer:
        for n in range(100):
            producer.send(topic, b"test %d" % n, partition=0)
    delete_records(target, topic, 100)
    with pytest.raises(TargetDivergedError, match=f"{topic}-0 ends at offset 100, but is empty: nothing shows"):
        mirror(source, target, topic, policy=policy)
    assert ends(target, topic) == [100] and ledger_of(target, topic) == []
    make_anew(target, topic)
    mirror(source, target, topic, policy=policy)
    assert compare(source, target, topic).identical and ends(target, topic) == [1000]


def test_log_that_the_link_began_is_gone_on_with_where_retention_has_emptied_it(source: str, forgetful: str) -> None:
    topic = "proved-emptied"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror(source, forgetful, topic)
    delete_records(forgetful, topic, 100)
    until_forgotten(forgetful, topic)
    append_records(source, topic, 100, first=100)
    mirror(source, forgetful, topic)
    assert ends(forgetful, topic) == [200] and misplaced(source, forgetful, topic) == []
    with Cluster({"bootstrap_servers": forgetful}, name="reader") as cluster:
        begun = cluster.run(read_control, cluster, "tests").begun[TopicPartition(topic, 0)]
    assert isinstance(begun, TopicIds) and len(begun.source) == len(begun.target) == 36


@pytest.mark.parametrize("policy", [MirrorPolicy(), CONTINUE], ids=["fail", "continue"])
@pytest.mark.parametrize("copied", [0, 50])
def test_log_that_the_link_began_is_not_believed_beyond_what_it_copied_once_others_wrote_and_emptied_it(
    source: str, target: str, copied: int, policy: MirrorPolicy
) -> None:
    topic = f"proved-filled-{copied}-{policy.on_loss}"
    create_topic(source, topic)
    append_records(source, topic, copied)
    mirror(source, target, topic)
    append_records(target, topic, 100)
    delete_records(target, topic, copied + 100)
    append_records(source, topic, 200, first=copied)
    with pytest.raises(
        TargetDivergedError, match=f"{topic}-0 ends at offset {copied + 100}, but is empty: nothing shows"
    ):
        mirror(source, target, topic, policy=policy)
    assert ends(target, topic) == [copied + 100] and ledger_of(target, topic) == []
    delete_topic(target, topic)
    mirror(source, target, topic, policy=policy)
    assert compare(source, target, topic).identical and ends(target, topic) == [copied + 200]


def test_emptied_log_of_a_copier_that_was_killed_is_believed_where_the_broker_remembers_its_last_sequence(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "proved-sequence"
    create_topic(source, topic)
    append_records(source, topic, 100)
    with monkeypatch.context() as killed:
        killed.setattr(IdenticalOffsets, "copied", lambda *_: {})
        mirror(source, target, topic)
    delete_records(target, topic, 100)
    append_records(source, topic, 100, first=100)
    mirror(source, target, topic)
    assert ends(target, topic) == [200] and misplaced(source, target, topic) == []


def test_running_copier_writes_down_how_far_it_has_copied_what_rests(
    source: str, forgetful: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_RESTS_S", 0.5)
    monkeypatch.setattr(offsets, "_REMEMBER_S", 0.5)
    topic, partition = "proved-rests", TopicPartition("proved-rests", 0)
    create_topic(source, topic)
    append_records(source, topic, 100)
    with both(source, forgetful) as (origin, copy):
        link = origin.run(prepare_link, origin, copy, topic, "rests")
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="rests")

        async def run() -> None:
            copying = origin.net.call_soon_with_future(lambda: copier.copy({partition: 100}, hold_ms=8000))
            deadline = time.monotonic() + 8
            while (await read_control(copy, "rests")).copied.get(partition) != 100:
                assert time.monotonic() < deadline
                await origin.net.sleep(0.2)
            await copying

        origin.run(run)


def test_source_that_was_made_anew_while_the_target_was_emptied_is_a_recreation(source: str, target: str) -> None:
    topic = "proved-made-anew"
    create_topic(source, topic)
    append_records(source, topic, 1000)
    mirror(source, target, topic)
    delete_records(target, topic, 1000)
    make_anew(source, topic)
    append_records(source, topic, 3000, first=50_000)
    with pytest.raises(
        SourceTruncatedError, match=f"source topic of {topic}-0 was deleted and created again, as its id shows"
    ):
        mirror(source, target, topic)
    assert ends(target, topic) == [1000] and ledger_of(target, topic) == []
    for _ in range(2):  # it is found, and written down, once
        mirror(source, target, topic, policy=CONTINUE)
    mirror(source, target, topic)
    assert ends(target, topic) == [3000] and ledger_of(target, topic) == [(0, 1000, "recreation")]


def test_row_of_a_recreation_ends_where_the_target_has_what_the_new_topic_has(source: str, target: str) -> None:
    topic = "proved-made-anew-behind"
    create_topic(source, topic)
    append_records(source, topic, 1000, timestamp=NOW)
    mirror(source, target, topic)
    make_anew(source, topic)
    append_records(source, topic, 3000, first=50_000, timestamp=NOW)
    records = log_of(source, topic).records
    append_as_link(target, "tests", topic, [records[offset] for offset in range(1000, 3000)], 1000)
    with pytest.raises(SourceTruncatedError, match="was deleted and created again, as its id shows"):
        mirror(source, target, topic)
    mirror(source, target, topic, policy=CONTINUE)
    append_records(source, topic, 500, first=53_000, timestamp=NOW)
    mirror(source, target, topic)
    assert ledger_of(target, topic) == [(0, 1000, "recreation")] and misplaced(source, target, topic) == list(
        range(1000)
    )


@pytest.mark.parametrize("more", [0, 100])
def test_marker_of_a_transaction_of_others_is_no_truncation_of_the_source(source: str, target: str, more: int) -> None:
    topic = f"proved-stray-marker-{more}"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror(source, target, topic)
    with Cluster({"bootstrap_servers": target}, name="application") as cluster:

        async def leave_a_marker() -> int:
            transaction = ProducerTransaction(cluster, f"application-{topic}", 30_000)
            await transaction.begin()
            await transaction.add_partitions([TopicPartition(topic, 0)])
            await transaction.commit()
            return transaction.producer_id

        writer = cluster.run(leave_a_marker)
    append_records(source, topic, more, first=100)
    for policy in (MirrorPolicy(), CONTINUE):
        with pytest.raises(
            TargetDivergedError, match=f"{topic}-0 has the marker of a transaction at offset 100 .producer id {writer},"
        ):
            mirror(source, target, topic, policy=policy)
    assert ends(target, topic) == [101] and ledger_of(target, topic) == []


@pytest.mark.parametrize("commits", [False, True])
def test_transaction_of_others_that_is_open_on_the_target_is_waited_for_and_named(
    source: str, target: str, commits: bool
) -> None:
    """An application writes to both clusters, and dies in its transaction on the target: nobody knows how that ends."""
    topic, partition = f"proved-open-{commits}", TopicPartition(f"proved-open-{commits}", 0)
    create_topic(source, topic)
    append_records(source, topic, 100, timestamp=NOW)
    mirror(source, target, topic)
    rest = [(partition, numbered(5, 195, NOW))]
    append_batches(source, [(partition, numbered(0, 5, NOW)), *rest])
    with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as elsewhere:
        elsewhere.init_transactions()
        elsewhere.begin_transaction()
        elsewhere.send(topic, b"aborted", partition=0)
        elsewhere.flush()
        elsewhere.abort_transaction()  # offsets 300 and 301: the target has a marker at the first
    append_records(source, topic, 50, first=302, timestamp=NOW)
    with kafka.KafkaProducer(bootstrap_servers=target, transactional_id=topic) as application:
        application.init_transactions()
        application.begin_transaction()
        for record in decode_records(memoryview(numbered(0, 5, NOW))):
            application.send(topic, record.value, record.key, partition=0, timestamp_ms=NOW)
        application.flush()
        append_batches(target, rest)
        why = f"a transaction of producer {header_at(target, partition, 100).producer_id} is open on the target since offset 100"
        with pytest.raises(RecoveryExhaustedError, match=why):
            mirror(source, target, topic, limits=CopyLimits(patience_ms=3_000))
        assert ends(target, topic) == [300]
        application.commit_transaction() if commits else application.abort_transaction()
    if commits:
        mirror(source, target, topic)
        assert ends(target, topic) == [352] and compare(source, target, topic).identical
    else:
        with pytest.raises(TargetDivergedError, match=f"{topic}-0 has a foreign record batch at offset 100"):
            mirror(source, target, topic)
        assert ends(target, topic) == [301]


@pytest.mark.parametrize("where", ["doubled", "skipped"])
def test_batch_of_the_link_in_a_wrong_place_is_a_divergence_under_every_policy(
    source: str, target: str, where: str
) -> None:
    topic = f"proved-{where}"
    create_topic(source, topic)
    append_records(source, topic, 300, timestamp=NOW)
    copy_until(source, target, topic, 100)
    original = log_of(source, topic).records
    wrong = range(0, 100) if where == "doubled" else range(200, 300)
    with Cluster({"bootstrap_servers": target}, name="zombie") as cluster:

        async def append() -> int:
            producer_id = await init_producer_id(cluster, "tests")
            batch = bytearray(encode_batch([original[offset] for offset in wrong]))
            restamp(batch, producer_id, 0, 100)
            node = await cluster.leader(TopicPartition(topic, 0))
            (part,) = await cluster.produce(node, {TopicPartition(topic, 0): memoryview(batch)})
            return part.error_code

        assert cluster.run(append) == 0
    for policy in (MirrorPolicy(), CONTINUE):
        with pytest.raises(
            TargetDivergedError, match=f"at offset 100 .*the record that the source has at offset {wrong[0]}"
        ):
            mirror(source, target, topic, policy=policy)
    assert ends(target, topic) == [200] and ledger_of(target, topic) == []


@pytest.mark.parametrize("policy", [MirrorPolicy(), CONTINUE], ids=["fail", "continue"])
def test_batch_that_was_doubled_far_from_where_it_belongs_is_no_truncation(
    source: str, forgetful: str, policy: MirrorPolicy
) -> None:
    """Bulk-loaded records of one time in large batches: the source has the record nowhere near, and its log is shorter."""
    topic = f"proved-doubled-far-{policy.on_loss}"
    create_topic(source, topic)
    append_records(source, topic, 4500, per_batch=1500, timestamp=NOW)
    mirror(source, forgetful, topic)
    original = log_of(source, topic).records
    until_forgotten(forgetful, topic)
    append_as_link(forgetful, "tests", topic, [original[offset] for offset in range(3000, 4500)], 3000)
    assert ends(forgetful, topic) == [6000]
    for more in (0, 2000):  # while the source is shorter, and when it has grown beyond
        append_records(source, topic, more, first=4500, per_batch=500, timestamp=NOW)
        with pytest.raises(
            TargetDivergedError, match=f"{topic}-0 has at offset 4500 .*sequence 3000, which does not continue"
        ):
            mirror(source, forgetful, topic, policy=policy)
    assert ends(forgetful, topic) == [6000] and ledger_of(forgetful, topic) == []


def test_former_id_of_the_link_is_not_called_foreign(source: str, start_cluster: Callable[..., KafkaCluster]) -> None:
    settings = {
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "200",
        "transactional.id.expiration.ms": "1500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    }
    target = start_cluster(heap="320m", broker_config=settings).bootstrap_servers
    topic = "proved-former-id"
    create_topic(source, topic)
    append_records(source, topic, 100, timestamp=NOW)
    mirror(source, target, topic)
    delete_records(source, topic, 100)
    until_forgotten(target, topic)
    time.sleep(3)  # and the transactional.id
    mirror(source, target, topic)
    append_records(source, topic, 50, first=100, timestamp=NOW)
    mirror(source, target, topic)
    copied, original = log_of(target, topic).records, log_of(source, topic).records
    assert len(copied) == 150 and {offset: copied[offset] for offset in range(100, 150)} == original
    with Cluster({"bootstrap_servers": target}, name="reader") as cluster:
        assert len(cluster.run(read_control, cluster, "tests").producer_ids) >= 2


def test_emptied_log_is_gone_on_with_where_brokers_do_not_tell_which_sequence_they_remember(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Kafka 2.8: offsets say no sequence where gaps have taken some."""
    monkeypatch.setattr(next_sequence, "can_describe_producers", lambda _: False)
    topic = "proved-untold"
    create_topic(source, topic)
    with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as producer:
        producer.init_transactions()
        for n in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % n, partition=0)
            producer.commit_transaction()
            if n % 2:
                mirror(source, target, topic)
                delete_records(target, topic, ends(target, topic)[0])
    append_records(source, topic, 10, timestamp=NOW)
    mirror(source, target, topic)
    copied = log_of(target, topic).records
    assert ends(target, topic) == ends(source, topic) == [18] and len(copied) == 10
    assert misplaced(source, target, topic) == []


def test_target_topic_that_is_made_anew_under_an_idle_copier_is_filled_from_its_start(source: str, target: str) -> None:
    topic, partition = "proved-idle", TopicPartition("proved-idle", 0)
    create_topic(source, topic)
    append_records(source, topic, 500, timestamp=NOW)
    with both(source, target) as (origin, copy):
        link = origin.run(prepare_link, origin, copy, topic, "tests")
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
        origin.run(lambda: copier.copy({partition: 500}, lease_ms=120_000))
        make_anew(target, topic)
        origin.run(origin.net.sleep, 2.5)
        append_records(source, topic, 10, first=500, timestamp=NOW)
        progress = origin.run(lambda: copier.copy_each({partition: 510}))[partition]
    assert progress.error is None and progress.acked == 510
    assert compare(source, target, topic).identical and ends(target, topic) == [510]


@pytest.mark.parametrize("others", [0, 10])
def test_log_that_rests_is_looked_at_and_filled_again_or_named(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    topic, partition = f"proved-resting-{others}", TopicPartition(f"proved-resting-{others}", 0)
    create_topic(source, topic)
    append_records(source, topic, 500, timestamp=NOW)
    monkeypatch.setattr(resting, "LOOK_S", 1.0)
    with both(source, target) as (origin, copy):
        link = origin.run(prepare_link, origin, copy, topic, "tests")
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
        origin.run(lambda: copier.copy({partition: 500}, lease_ms=120_000))
        if others:
            append_batches(target, [(partition, numbered(0, others, NOW))])
        else:
            make_anew(target, topic)
        progress = origin.run(lambda: copier.copy_each({partition: None}, hold_ms=12_000))[partition]
    if others:
        assert isinstance(progress.error, TargetDivergedError) and "foreign record batch at offset 500" in str(
            progress.error
        )
        assert ends(target, topic) == [510]
    else:
        assert (progress.error, progress.acked) == (None, 500)
        assert ends(target, topic) == [500] and compare(source, target, topic).identical


# -- what a killed writer left open -------------------------------------------


def open_gap(source: str, target: str, topic: str, link: str, produced: Gap | None) -> None:
    """100 records are copied; in the gap of 51 offsets behind them the writer is killed; 100 records follow."""
    create_topic(source, topic)
    append_records(source, topic, 100, timestamp=NOW)
    with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(50):
            producer.send(topic, b"aborted", partition=0)
        producer.flush()
        mirror(source, target, topic, link=link)
        producer.abort_transaction()
    append_records(source, topic, 100, first=151, timestamp=NOW)
    partition = TopicPartition(topic, 0)
    with Cluster({"bootstrap_servers": target}, name="killed") as cluster:

        async def fill_a_part() -> None:
            await cluster.connect()
            killed = GapProducer(
                cluster, Coordinators(cluster), gap_transactional_id(link, partition), partition, time.monotonic
            )
            await killed.begin()
            await killed.add()
            if produced is not None:
                await killed.produce(produced, 16 << 10)

        cluster.run(fill_a_part)


@pytest.fixture
def times_out_soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which the coordinator of `forgetful` has surely ended what nobody else did."""
    monkeypatch.setattr(gap_producer, "_TRANSACTION_TIMEOUT_MS", 4_000)
    return 6.0


@pytest.mark.parametrize("produced", [None, Gap(100, 140)], ids=["nothing", "filler"])
@pytest.mark.parametrize("way", ["auto", "transactions", "records"])
def test_gap_that_a_killed_writer_left_open_is_ended_before_anything_is_appended(
    source: str, forgetful: str, times_out_soon: float, produced: Gap | None, way: str
) -> None:
    topic = f"proved-open-gap-{way}-{produced is not None}"
    open_gap(source, forgetful, topic, topic, produced)
    began = time.monotonic()
    mirror(source, forgetful, topic, link=topic, policy=MirrorPolicy.parse(gap_fill=[way]))
    with kafka.KafkaConsumer(
        bootstrap_servers=forgetful, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        assert consumer.end_offsets([partition])[partition] == 251, "whoever reads committed is held back"
    time.sleep(max(0.0, began + times_out_soon - time.monotonic()))
    assert ends(forgetful, topic) == ends(source, topic) == [251]
    assert compare(source, forgetful, topic).identical


def test_open_gap_that_retention_took_on_the_source_is_ended_too(
    source: str, forgetful: str, times_out_soon: float
) -> None:
    topic = "proved-open-gap-retention"
    open_gap(source, forgetful, topic, topic, Gap(100, 140))
    delete_records(source, topic, 200)
    began = time.monotonic()
    mirror(source, forgetful, topic, link=topic, policy=CONTINUE)
    time.sleep(max(0.0, began + times_out_soon - time.monotonic()))
    assert ends(forgetful, topic) == [251]
    append_records(source, topic, 100, first=251, timestamp=NOW)
    mirror(source, forgetful, topic, link=topic)
    # The marker that ended it lies at 140, in the place of a record of the source.
    assert ledger_of(forgetful, topic) == [(140, 200, "retention")]
    assert misplaced(source, forgetful, topic) == [] or all(
        offset < 200 for offset in misplaced(source, forgetful, topic)
    )
    copied = log_of(forgetful, topic).records
    assert [copied[offset].value for offset in range(251, 351)] == [
        log_of(source, topic).records[n].value for n in range(251, 351)
    ]


def test_the_end_of_an_open_gap_in_a_topic_that_was_made_anew_is_called_the_mirrors_own(
    source: str, target: str
) -> None:
    """A coordinator writes it into whatever has the name."""
    topic = "proved-open-gap-anew"
    open_gap(source, target, topic, topic, Gap(100, 140))
    make_anew(target, topic)
    with pytest.raises(
        TargetDivergedError, match=f"{topic}-0 was deleted and created again .* that the mirror had left open"
    ):
        mirror(source, target, topic, link=topic)
    assert ends(target, topic) == [1]
    make_anew(target, topic)
    mirror(source, target, topic, link=topic)
    assert compare(source, target, topic).identical


# -- a log that begins above offset 0 -----------------------------------------


def test_log_start_that_the_control_cannot_say_is_refused_and_nothing_is_filled(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that was left half done would be taken for what retention took, and go into the ledger."""
    topic = "proved-start-unsaid"
    create_topic(source, topic)
    append_records(source, topic, 100)
    delete_records(source, topic, 40)

    async def refuse(*_: object) -> None:
        raise Errors.TopicAuthorizationFailedError(CONTROL_TOPIC)

    with monkeypatch.context() as patched:
        patched.setattr(ControlWatch, "update", refuse)
        for policy in (MirrorPolicy(), CONTINUE):
            text = f"{topic}-0 is to begin at offset 40.* Write .*{CONTROL_TOPIC}"
            with pytest.raises(PartitionRefusedError, match=text):
                mirror(source, target, topic, link=topic, policy=policy)
    assert ends(target, topic) == [0] and ledger_of(target, topic) == []
    mirror(source, target, topic, link=topic)
    assert compare(source, target, topic).identical


# -- the target's topic is changed while it is written ------------------------


def test_topic_that_is_set_to_log_append_time_blocks_at_once_and_says_what_was_rewritten(
    source: str, target: str
) -> None:
    topic, partition = "proved-append-time", TopicPartition("proved-append-time", 0)
    create_topic(source, topic)
    append_records(source, topic, 100)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "tests")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
            await copier.copy(link.ends, lease_ms=60_000)
            configure(target, topic, message_timestamp_type="LogAppendTime")
            append_batches(source, [(partition, numbered(100 * n, 100, NOW - 300 * DAY)) for n in range(1, 51)])
            with pytest.raises(
                TargetDivergedError, match=r"proved-append-time-0 has offsets 100 to \d+ with times that its brokers"
            ):
                await copier.copy({partition: 5100}, lease_ms=60_000)

        origin.run(run)
    (until,) = ends(target, topic)
    assert until == 200, "of old records one batch is in flight, and its answer says so"
    with pytest.raises(TolerantClientError, match="LogAppendTime"):
        mirror(source, target, topic, policy=CONTINUE)
    configure(target, topic, message_timestamp_type="CreateTime")
    for policy in (MirrorPolicy(), CONTINUE):
        with pytest.raises(TargetDivergedError, match=f"{topic}-0 has offsets 100 to {until} with times"):
            mirror(source, target, topic, policy=policy)
    assert ledger_of(target, topic) == [] and ends(target, topic) == [until]
    delete_topic(target, topic)
    mirror(source, target, topic)
    assert compare(source, target, topic).identical


def test_filler_that_was_sent_twice_with_two_times_is_no_rewritten_time(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, partition = "proved-filler-twice", TopicPartition("proved-filler-twice", 0)
    create_topic(source, topic)
    append_records(source, topic, 300, timestamp=NOW)
    policy = MirrorPolicy.parse(gap_fill=["records"])
    doubled: list[int] = []
    produce = Cluster.produce

    def produce_twice(self: Cluster, node_id: int, batches: Any, *args: Any, **options: Any) -> Any:
        header = read_header(batches[partition]) if partition in batches else None
        if header is not None and header.base_sequence == 300 and not doubled:
            doubled.append(header.last_offset_delta + 1)
            earlier = bytearray(batches[partition])
            view = np.frombuffer(earlier, HEADER, 1)
            view["base_timestamp"] = view["max_timestamp"] = NOW - 5
            restamp(memoryview(earlier), header.producer_id, header.producer_epoch, header.base_sequence)
            produce(self, node_id, {partition: memoryview(earlier)})
        return produce(self, node_id, batches, *args, **options)

    with both(source, target) as (origin, copy):
        link = origin.run(prepare_link, origin, copy, topic, "tests", policy)
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests", policy=policy)
        origin.run(lambda: copier.copy({partition: 300}, lease_ms=60_000))
        monkeypatch.setattr(Cluster, "produce", produce_twice)
        with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for _ in range(50):
                producer.send(topic, b"aborted", partition=0)
            producer.flush()
            producer.abort_transaction()
        append_records(source, topic, 100, first=351, timestamp=NOW)
        progress = origin.run(lambda: copier.copy_each({partition: 451}))[partition]
    assert doubled and (progress.error, progress.acked) == (None, 451)
    assert progress.troubles, "the response of the second told the time of the first"
    assert compare(source, target, topic).identical


def test_topic_that_was_log_append_time_while_nothing_was_written_goes_on_once_it_is_set_back(
    source: str, target: str
) -> None:
    topic, partition = "proved-append-time-back", TopicPartition("proved-append-time-back", 0)
    create_topic(source, topic)
    append_records(source, topic, 100)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "tests")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
            configure(target, topic, message_timestamp_type="LogAppendTime")
            with pytest.raises(TolerantClientError, match="message.timestamp.type=LogAppendTime.*set it to CreateTime"):
                await copier.copy({partition: 100})
            configure(target, topic, message_timestamp_type="CreateTime")
            assert (await copier.copy({partition: 100}))[partition].acked == 100

        origin.run(run)
    assert compare(source, target, topic).identical


def test_lowered_max_message_bytes_is_seen_at_the_first_refusal_and_batches_are_split(source: str, target: str) -> None:
    topic, partition = "proved-lowered", TopicPartition("proved-lowered", 0)
    create_topic(source, topic)
    append_records(source, topic, 100)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "tests")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link="tests")
            await copier.copy(link.ends, lease_ms=60_000)
            configure(target, topic, max_message_bytes="20000")
            append_batches(source, [(partition, numbered(100 * n, 100, NOW)) for n in range(1, 11)])
            assert (await copier.copy({partition: 1100}, lease_ms=60_000))[partition].acked == 1100

        origin.run(run)
    assert compare(source, target, topic).identical


# -- a broker that hangs ------------------------------------------------------


@pytest.fixture(scope="module")
def three_nodes(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Whose second node stays the leader of what it leads while it is frozen."""
    settings = {"broker.session.timeout.ms": "180000", "broker.heartbeat.interval.ms": "1000"}
    return start_cluster(nodes=3, heap="256m", broker_config=settings)


def link_coordinated_elsewhere(
    cluster: Cluster, partition: TopicPartition, node_id: int, *, is_there: bool = False
) -> str:
    """The name of a link whose gap transactions in the partition another broker coordinates: what is open there only it knows.

    `is_there`: this very broker does.
    """
    names = {gap_transactional_id(link, partition): link for link in map("hung-{}".format, range(20))}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=list(names), min_version=4)
        found = cluster.run(cluster.send, request).coordinators
        for told in found:
            if not told.error_code and (told.node_id == node_id) is is_there:
                return names[told.key]
        time.sleep(0.5)
    raise AssertionError("no other coordinator")


def test_broker_that_hangs_holds_up_no_partition_that_another_leads(
    source: str, three_nodes: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, led, hung = "proved-hung", TopicPartition("proved-hung", 0), TopicPartition("proved-hung", 1)
    target = three_nodes.bootstrap_servers
    create_topic(source, topic, 2)
    append_records(source, topic, 100, partitions=2)
    with kafka.KafkaAdminClient(bootstrap_servers=target) as admin:
        # Where the leader of the claims log hangs all writing rightly stops, so another broker has it.
        for name, assignment, config in (
            (topic, {0: [1], 1: [2]}, {}),
            (CONTROL_TOPIC, {0: [1]}, {}),
            (CLAIMS_TOPIC, {0: [1]}, {"message.timestamp.type": "LogAppendTime"}),
        ):
            admin.create_topics([kafka.admin.NewTopic(name, -1, -1, assignment, config)])
    with both(source, target) as (origin, copy):
        name = link_coordinated_elsewhere(copy, led, 2)
        link = origin.run(prepare_link, origin, copy, topic, name)
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=name)
        apart = copier.claims._target
        origin.run(apart.connect)
        for cluster in (copy, apart):  # what any broker may answer is asked elsewhere
            monkeypatch.setattr(cluster.manager, "least_loaded_node", lambda *_: 1)
        three_nodes.pause(2)
        began = time.monotonic()

        async def run() -> float:
            copying = origin.net.call_soon_with_future(lambda: copier.copy_each({led: 100, hung: 100}))
            while copier.strategy.partitions.get(led) is None or copier.strategy.partitions[led].acked < 100:
                await origin.net.sleep(0.05)
                assert time.monotonic() < began + 30, "the partition of the broker that answers waits"
            three_nodes.resume(2)
            assert {progress.acked for progress in (await copying).values()} == {100}
            return time.monotonic() - began

        origin.run(run)
    assert compare(source, target, topic).identical


@pytest.mark.parametrize("is_described", [True, pytest.param(False, id="brokers before 3.0", marks=pytest.mark.long)])
def test_a_coordinator_that_hangs_is_told_within_half_a_minute_by_name_though_the_leader_is_well(
    source: str, three_nodes: KafkaCluster, monkeypatch: pytest.MonkeyPatch, is_described: bool
) -> None:
    topic = f"proved-hung-coordinator-{is_described}"
    led = TopicPartition(topic, 0)
    target = three_nodes.bootstrap_servers
    create_topic(source, topic)
    append_records(source, topic, 100)
    with kafka.KafkaAdminClient(bootstrap_servers=target) as admin:
        there = admin.list_topics()
        for name, config in (
            (topic, {}),
            (CONTROL_TOPIC, {}),
            (CLAIMS_TOPIC, {"message.timestamp.type": "LogAppendTime"}),
        ):
            if name not in there:
                admin.create_topics([kafka.admin.NewTopic(name, -1, -1, {0: [1]}, config)])
    with both(source, target) as (origin, copy):
        name = link_coordinated_elsewhere(copy, led, 2, is_there=True)
        link = origin.run(prepare_link, origin, copy, topic, name)
        copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=name)
        apart = copier.claims._target
        origin.run(apart.connect)
        for cluster in (copy, apart):  # what any broker may answer is asked elsewhere
            monkeypatch.setattr(cluster.manager, "least_loaded_node", lambda *_: 1)
        if not is_described:
            monkeypatch.delitem(copy.manager.broker_version_data.api_versions, DescribeTransactionsRequest.API_KEY)
        three_nodes.pause(2)
        began = time.monotonic()

        async def run() -> str:
            copying = origin.net.call_soon_with_future(lambda: copier.copy_each({led: 100}))
            while not (waits := copier.waiting()):
                await origin.net.sleep(0.05)
                assert time.monotonic() < began + 30, "nothing is said of why the partition waits"
            three_nodes.resume(2)
            assert {progress.acked for progress in (await copying).values()} == {100}
            return waits[led].reason

        said = origin.run(run)
    assert said == f"the coordinator of transactional id {gap_transactional_id(name, led)} at broker 2 does not respond"
    assert compare(source, target, topic).identical


# -- translated offsets -------------------------------------------------------


def test_map_topic_of_translated_offsets_is_as_durable_as_the_control(three_nodes: KafkaCluster) -> None:
    three_nodes.resume(2)
    with Cluster({"bootstrap_servers": three_nodes.bootstrap_servers}, name="target") as cluster:
        cluster.run(ensure_map_topic, cluster, "durable", LinkControl())
        (spec,) = cluster.run(describe_topics, cluster, [map_topic("durable")]).values()
    limits = ("min.insync.replicas", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    assert spec.replication_factor == 3 and [spec.config[name] for name in limits] == ["2", FOR_EVER, FOR_EVER]


def test_translated_copy_whose_records_an_election_took_back_is_named_though_others_wrote_since(
    source: str, target: str
) -> None:
    """The election is played by a topic id that the map does not know: the log is created again, and longer than it was."""
    topic, link = "proved-translated", "proved-translated"
    create_topic(source, topic)
    append_records(source, topic, 100)

    def run(policy: MirrorPolicy = MirrorPolicy()) -> None:
        with both(source, target) as (origin, copy):

            async def copy_all() -> None:
                prepared = await prepare_translated_link(origin, copy, topic, link, policy)
                await LinkCopier(origin, copy, translated_offsets(), link=link, policy=policy).copy(prepared.ends)

            origin.run(copy_all)

    run()
    (row,) = last_rows_of(target, link, topic).values()
    make_anew(target, topic)
    append_records(target, topic, 200, first=5000)
    forget_ids(target, link, row)
    append_records(source, topic, 10, first=100)
    with pytest.raises(
        TargetDivergedError, match=f"{topic}-0 has at offset 99 another record than the one of {topic}-0, offset 99"
    ):
        run()


def last_rows_of(servers: str, link: str, topic: str) -> dict[TopicPartition, MapRow]:
    with Cluster({"bootstrap_servers": servers}, name="reader") as cluster:
        return cluster.run(last_rows, cluster, link, [TopicPartition(topic, 0)])


def forget_ids(servers: str, link: str, row: MapRow) -> None:
    """Writes the newest row of a map as brokers before 2.8 have it written, without ids."""
    record = Record(0, NOW, row.key.encode(), row._replace(ids=("", "")).encode())
    append_batches(servers, [(map_partition(link, row.key.partition), encode_batch([record]))])
