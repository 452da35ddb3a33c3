"""The mirror engine between two real clusters: identical offsets, whatever starts, races or dies."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import kafka
import pytest
from kafka.structs import TopicPartition

from support.long import LONG
from support.mirror_link import (
    T0,
    append_batches,
    append_records,
    both,
    compare,
    consume,
    create_topic,
    delete_topic,
    ends,
    header_at,
    mirror,
    prepare,
    topics_of,
)
from support.raising_copier import LinkCopier
from support.tree import SUPPORT
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.errors import (
    ClusterUnreachableError,
    OptionError,
    TargetDivergedError,
)
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.topics import describe_topics
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

RACE_RECORDS = int(os.environ.get("TOLERANT_RACE_RECORDS", "1000000" if LONG else "200000"))
RACE_KILLS = int(os.environ.get("TOLERANT_RACE_KILLS", "10" if LONG else "3"))
RACE_PARTITIONS = 4
WRITER = SUPPORT / "mirror_process.py"


def various_records(count: int, codec: int) -> list[Record]:
    return [
        Record(
            0,
            T0 + n // 3,
            None if n % 5 == 0 else b"key-%d" % (n % 17),
            None if n % 7 == 0 else b"value-%d-" % n * (1 + n % 20),
            () if n % 3 else (("codec", b"%d" % codec), ("nothing", None), ("empty", b"")),
        )
        for n in range(count)
    ]


# -- what is copied -----------------------------------------------------------


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_headers_and_nulls_of_every_codec_are_copied_identically(source: str, target: str, codec: int) -> None:
    topic = f"mirror-codec-{codec}"
    create_topic(source, topic, 3)
    sample = various_records(40, codec)
    append_batches(source, ((TopicPartition(topic, n % 3), encode_batch(sample, codec=codec)) for n in range(30)))
    progress = mirror(source, target, topic)
    assert [p.records for p in progress.values()] == [400, 400, 400]
    report = compare(source, target, topic)
    assert report.identical and report.records == 1200
    if codec in (codecs.NONE, codecs.GZIP):
        copied = consume(target, topic, 3, 1200)
        assert copied == consume(source, topic, 3, 1200)
        assert [offset for offset, *_ in copied[0]] == list(range(400))


def test_target_topic_gets_the_partition_count_and_configuration_of_the_source(source: str, target: str) -> None:
    config = {"cleanup.policy": "delete", "retention.ms": "86400000", "max.message.bytes": "2000000"}
    create_topic(source, "mirror-config", 5, config)
    created = prepare(source, target, "mirror-config").created
    assert created == ("mirror-config",)
    with both(source, target) as (origin, copy):
        there = copy.run(describe_topics, copy, ["mirror-config"])["mirror-config"]
    assert there.partitions == 5
    assert config.items() <= there.config.items()
    assert prepare(source, target, "mirror-config").created == ()


def test_an_existing_target_topic_with_more_partitions_is_used_as_it_is(source: str, target: str) -> None:
    create_topic(source, "mirror-wider", 1)
    create_topic(target, "mirror-wider", 2)
    append_records(source, "mirror-wider", 50)
    mirror(source, target, "mirror-wider")
    assert ends(target, "mirror-wider", 2) == [50, 0]


def test_a_second_start_copies_nothing_and_later_records_are_appended(source: str, target: str) -> None:
    topic = "mirror-again"
    create_topic(source, topic, 2)
    append_records(source, topic, 1000, partitions=2)
    assert sum(p.records for p in mirror(source, target, topic).values()) == 2000
    for _ in range(2):
        assert sum(p.bytes for p in mirror(source, target, topic).values()) == 0
        assert ends(target, topic, 2) == [1000, 1000]
    append_records(source, topic, 500, partitions=2, first=1000, per_batch=7, codec=codecs.GZIP)
    assert sum(p.records for p in mirror(source, target, topic).values()) == 1000
    assert ends(target, topic, 2) == [1500, 1500]
    assert compare(source, target, topic).identical


def test_a_copy_ends_at_the_offset_that_was_asked_for(source: str, target: str) -> None:
    topic = "mirror-until"
    create_topic(source, topic)
    append_records(source, topic, 1000, per_batch=10)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "until")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id))
            for until in (0, 10, 45, 300):
                progress = await copier.copy({partition: until})
                assert progress[partition].acked == (until + 9) // 10 * 10
            again = await prepare_link(origin, copy, topic, "until")
            assert [link.target_ends, again.target_ends] == [{partition: 0}, {partition: 300}]

        origin.run(run)
    assert ends(target, topic) == [300]


def test_records_that_arrive_while_the_copy_is_held_are_copied_too(source: str, target: str) -> None:
    topic = "mirror-held"
    create_topic(source, topic)
    append_records(source, topic, 100)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> int:
            link = await prepare_link(origin, copy, topic, "held-link")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id))
            held = origin.net.call_soon_with_future(lambda: copier.copy({partition: None}, hold_ms=5000))
            await origin.net.sleep(0.5)
            batch = encode_batch([Record(0, T0, None, b"late")] * 5)
            await origin.produce(await origin.leader(partition), {partition: memoryview(batch)})
            return (await held)[partition].acked

        assert origin.run(run) == 105
    assert compare(source, target, topic).identical


def test_two_calls_for_one_partition_each_reach_their_offset(source: str, target: str) -> None:
    topic = "mirror-two-calls"
    create_topic(source, topic)
    append_records(source, topic, 20_000)
    partition = TopicPartition(topic, 0)
    limits = CopyLimits(fetch_max_bytes=100_000, partition_max_bytes=100_000)
    with both(source, target) as (origin, copy):

        async def run() -> tuple[int, int]:
            link = await prepare_link(origin, copy, topic, "two-calls")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), limits)
            far = origin.net.call_soon_with_future(lambda: copier.copy({partition: 20_000}))
            await origin.net.sleep(0.01)
            near = await copier.copy({partition: 1000})
            return (await far)[partition].acked, near[partition].acked

        far, near = origin.run(run)
    assert far == 20_000
    assert near >= 1000


def test_partition_left_alone_at_the_end_of_its_lease_is_taken_up_again(source: str, target: str) -> None:
    topic = "mirror-lease"
    create_topic(source, topic)
    append_records(source, topic, 100)
    partition = TopicPartition(topic, 0)
    with both(source, target) as (origin, copy):

        async def run() -> int:
            link = await prepare_link(origin, copy, topic, "lease")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id))
            await copier.copy({partition: 100}, lease_ms=200)
            await origin.net.sleep(0.3)
            batch = encode_batch([Record(0, T0, None, b"after the lease")] * 50)
            await origin.produce(await origin.leader(partition), {partition: memoryview(batch)})
            await origin.net.sleep(0.3)
            again = origin.net.call_soon_with_future(lambda: copier.copy({partition: 150}, lease_ms=200))
            return (await again)[partition].acked

        assert origin.run(run) == 150


def test_memory_in_flight_stays_within_its_bound_and_small_bounds_still_copy_all(source: str, target: str) -> None:
    topic = "mirror-bounded"
    create_topic(source, topic, 4)
    append_records(source, topic, 4000, partitions=4, size=500)
    limits = CopyLimits(
        max_bytes_in_flight=600_000, fetch_max_bytes=300_000, partition_max_bytes=100_000, produce_max_requests=2
    )
    seen = [0]
    with both(source, target) as (origin, copy):

        async def run() -> LinkCopier:
            link = await prepare_link(origin, copy, topic, "bounded")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), limits)
            done = origin.net.call_soon_with_future(lambda: copier.copy(link.ends))
            while not done.is_done:
                seen.append(copier.link.memory.in_flight)
                await origin.net.sleep(0.001)
            await done
            return copier

        copier = origin.run(run)
        assert copier.link.memory.in_flight == 0
        assert 0 < max(seen) <= limits.max_bytes_in_flight
    assert compare(source, target, topic).identical


# -- races and kills ----------------------------------------------------------


def writer(source: str, target: str, topics: str, link: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), source, target, topics, link]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_three_racing_writers_with_one_killed_again_and_again_copy_every_record_once(source: str, target: str) -> None:
    topic = "mirror-race"
    create_topic(source, topic, RACE_PARTITIONS)
    each = RACE_RECORDS // RACE_PARTITIONS
    append_records(source, topic, each, partitions=RACE_PARTITIONS, per_batch=50)
    prepare(source, target, topic, "race")
    steady = [writer(source, target, topic, "race") for _ in range(2)]
    rng = random.Random(1)
    killed_midway = 0
    try:
        for _ in range(RACE_KILLS):
            victim = writer(source, target, topic, "race")
            assert victim.stdout is not None
            victim.stdout.readline()
            time.sleep(rng.uniform(0.05, 0.5))
            killed_midway += victim.poll() is None
            victim.kill()
            victim.communicate()
        last = writer(source, target, topic, "race")
        ended = 0
        for process in (*steady, last):
            output, errors = process.communicate(timeout=600 if LONG else 60)
            # Where another one is at work for longer than it renews its claim, who waits is refused.
            assert process.returncode == 0 and "done" in output or "TargetClaimedError" in errors, errors
            ended += process.returncode == 0
        assert ended
    finally:
        for process in steady:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert killed_midway
    assert ends(target, topic, RACE_PARTITIONS) == [each] * RACE_PARTITIONS
    report = compare(source, target, topic)
    assert report.identical and report.records == each * RACE_PARTITIONS


# -- somebody else writes to the target ---------------------------------------


def foreign_write(servers: str, topic: str, records: int = 1, *, idempotent: bool = True) -> int:
    """Appends as an ordinary client; returns the producer id that the log shows."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, enable_idempotence=idempotent)
    sent = [producer.send(topic, b"foreign %d" % n, partition=0, timestamp_ms=T0) for n in range(records)]
    producer.close()
    return header_at(servers, TopicPartition(topic, 0), sent[0].get().offset).producer_id


def copy_with_foreign_write(source: str, target: str, topic: str, per_batch: int, timestamp: int | None) -> int:
    """Half of the log is copied, somebody writes, the other half arrives; returns the writer's producer id."""
    create_topic(source, topic)
    append_records(source, topic, 500, per_batch=per_batch, timestamp=timestamp)
    partition = TopicPartition(topic, 0)
    foreign = []
    with both(source, target) as (origin, copy):

        async def run() -> None:
            link = await prepare_link(origin, copy, topic, "foreign")
            copier = LinkCopier(origin, copy, identical_offsets(link.producer_id))
            await copier.copy({partition: 500}, lease_ms=60_000)
            # Blocks this loop: the mirror sleeps while the others write.
            foreign.append(foreign_write(target, topic))
            append_records(source, topic, 500, first=500, per_batch=per_batch, timestamp=timestamp)
            try:
                await copier.copy({partition: 1000}, lease_ms=60_000)
            except TargetDivergedError as error:
                raised.append(error)

        raised: list[TargetDivergedError] = []
        origin.run(run)
    assert raised, "the copy went on beyond the foreign record"
    assert f"producer id {foreign[0]}" in str(raised[0])
    assert "offset 500" in str(raised[0])
    assert f"{topic}-0" in str(raised[0])
    return foreign[0]


def test_foreign_write_in_the_middle_of_a_copy_is_named_with_its_producer_and_offset(source: str, target: str) -> None:
    copy_with_foreign_write(source, target, "mirror-foreign-middle", 100, None)
    assert not compare(source, target, "mirror-foreign-middle").identical


def test_foreign_write_between_batches_that_look_alike_is_found_too(source: str, target: str) -> None:
    # One record a batch, all of one time: after the foreign record every copy lies where its neighbour should.
    copy_with_foreign_write(source, target, "mirror-foreign-alike", 1, T0)


def test_foreign_writes_during_a_fast_copy_stop_it(source: str, target: str) -> None:
    topic = "mirror-foreign-fast"
    create_topic(source, topic)
    append_records(source, topic, 30_000, per_batch=20, size=1000)  # too large to be coalesced
    prepare(source, target, topic)
    process = writer(source, target, topic, "tests")
    while ends(target, topic)[0] < 1000:
        assert process.poll() is None
    producer_id = foreign_write(target, topic)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert errors.startswith("TargetDivergedError")
    assert f"producer id {producer_id}" in errors


@pytest.mark.parametrize("idempotent", [True, False])
def test_foreign_records_on_the_target_are_refused_before_anything_is_written(
    source: str, target: str, idempotent: bool
) -> None:
    topic = f"mirror-foreign-start-{idempotent}"
    for name in (topic, f"{topic}-new"):
        create_topic(source, name)
        append_records(source, name, 100)
    create_topic(target, topic)
    producer_id = foreign_write(target, topic, 3, idempotent=idempotent)
    before = topics_of(target)
    with pytest.raises(
        TargetDivergedError, match=f"{topic}-0 has a foreign record batch at offset . .producer id {producer_id}"
    ):
        mirror(source, target, f"{topic}.*")
    assert topics_of(target) == before
    assert ends(target, topic) == [3]


def test_more_records_on_the_target_than_on_the_source_are_refused(source: str, target: str) -> None:
    create_topic(source, "mirror-longer")
    create_topic(target, "mirror-longer")
    foreign_write(target, "mirror-longer", 3)
    with pytest.raises(TargetDivergedError, match="mirror-longer-0"):
        mirror(source, target, "mirror-longer")
    assert ends(target, "mirror-longer") == [3]


def test_a_second_link_onto_a_topic_is_refused_with_the_name_of_the_first(source: str, target: str) -> None:
    topic = "mirror-older-link"
    create_topic(source, topic)
    append_records(source, topic, 300)
    mirror(source, target, topic, "older")
    append_records(source, topic, 300, first=300)
    with pytest.raises(OptionError, match="Link older copies into topic mirror-older-link of this target"):
        mirror(source, target, topic, "newer")
    assert mirror(source, target, topic, "older")[TopicPartition(topic, 0)].records == 300
    assert compare(source, target, topic).identical


def test_a_strangers_control_record_stops_a_start_only_where_it_may_be_of_another_mirror(
    source: str, target: str
) -> None:
    topic = "mirror-strange-control"
    create_topic(source, topic)
    append_records(source, topic, 30)
    mirror(source, target, topic, "kept")
    with kafka.KafkaProducer(bootstrap_servers=target) as stranger:

        def say(value: bytes | None) -> None:
            stranger.send(CONTROL_TOPIC, value, key=b"someone").get(30)

        try:
            append_records(source, topic, 30, first=30)
            say(b'{"version":1,"topics":"rubbish","producer_ids":[1]}')
            assert mirror(source, target, topic, "kept")[TopicPartition(topic, 0)].records == 30
            say(b'{"version":1,"topics":"rubbish","source_cluster_id":"A","begun":{"t":[["a","b",[[0,2000000000]]]]}}')
            with pytest.raises(
                OptionError,
                match=f"'someone' in {CONTROL_TOPIC} cannot be read .*topic {topic}. .*tolerant-kafka repair",
            ):
                mirror(source, target, topic, "kept")
        finally:
            say(None)
    append_records(source, topic, 30, first=60)
    assert mirror(source, target, topic, "kept")[TopicPartition(topic, 0)].records == 30
    assert compare(source, target, topic).identical


# -- bad input ----------------------------------------------------------------


@pytest.fixture
def untouched(target: str) -> Iterator[None]:
    """The target has the same topics after the test as before."""
    before = topics_of(target)
    yield
    assert topics_of(target) == before


@pytest.mark.usefixtures("untouched")
def test_unknown_topic_is_refused_with_a_suggestion(source: str, target: str) -> None:
    create_topic(source, "mirror-orders")
    with pytest.raises(OptionError, match="No topic of the source matches 'mirror-ordres'.*mirror-orders"):
        mirror(source, target, "mirror-ordres")
    with pytest.raises(OptionError, match="is not a regular expression"):
        mirror(source, target, "mirror-(")


@pytest.mark.usefixtures("untouched")
def test_source_that_is_the_target_is_refused(source: str) -> None:
    create_topic(source, "mirror-itself")
    with pytest.raises(OptionError, match="are the same cluster"):
        mirror(source, source, "mirror-itself")
    with pytest.raises(OptionError, match="are the same cluster"):
        mirror(source, source.replace("127.0.0.1", "localhost"), "mirror-itself")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("missing", ["source", "target"] if LONG else ["target"])
def test_unreachable_cluster_is_named_within_seconds(source: str, target: str, missing: str) -> None:
    addresses = {"source": source, "target": target, missing: "127.0.0.1:9"}
    start = time.monotonic()
    with pytest.raises(ClusterUnreachableError, match=f"The {missing} at 127.0.0.1:9 could not be reached"):
        mirror(addresses["source"], addresses["target"], ".*")
    assert time.monotonic() - start < 15


@pytest.mark.usefixtures("untouched")
def test_log_append_time_on_the_target_is_refused(source: str, target: str) -> None:
    create_topic(source, "mirror-stamping")
    create_topic(target, "mirror-stamping", 1, {"message.timestamp.type": "LogAppendTime"})
    try:
        with pytest.raises(
            OptionError, match="Topic mirror-stamping of the target has message.timestamp.type=LogAppendTime"
        ):
            mirror(source, target, "mirror-stamping")
    finally:
        delete_topic(target, "mirror-stamping")


# -- what has gaps ------------------------------------------------------------


def test_target_topic_gets_the_partitions_that_the_source_has_more(source: str, target: str) -> None:
    create_topic(source, "mirror-narrow", 3)
    create_topic(target, "mirror-narrow", 2)
    append_records(source, "mirror-narrow", 100, partitions=3)
    mirror(source, target, "mirror-narrow")
    assert ends(target, "mirror-narrow", 3) == [100] * 3


def test_log_append_times_of_the_source_are_kept(source: str, target: str) -> None:
    create_topic(source, "mirror-stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    append_records(source, "mirror-stamped", 500, per_batch=7)
    mirror(source, target, "mirror-stamped")
    stamped = consume(source, "mirror-stamped", 1, 500)
    assert stamped == consume(target, "mirror-stamped", 1, 500)
    assert all(timestamp > T0 + 10**9 for _, timestamp, *_ in stamped[0]), "the source's broker gave the times"


def test_log_that_starts_later_starts_there_on_the_target(source: str, target: str) -> None:
    partition = TopicPartition("mirror-late", 0)
    create_topic(source, partition.topic)
    append_records(source, partition.topic, 100)
    admin = kafka.KafkaAdminClient(bootstrap_servers=source)
    admin.delete_records({partition: 40})
    admin.close()
    mirror(source, target, partition.topic)
    assert consume(source, partition.topic, 1, 60) == consume(target, partition.topic, 1, 60)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        assert cluster.run(cluster.list_offsets, {partition: EARLIEST}) == {partition: 40}
    append_records(source, partition.topic, 50, first=100)
    mirror(source, target, partition.topic)
    assert consume(source, partition.topic, 1, 110) == consume(target, partition.topic, 1, 110)


@pytest.mark.parametrize("gap_fill", ["auto", "transactions", "markers", "records"])
def test_transactions_keep_their_offsets(source: str, target: str, gap_fill: str) -> None:
    topic = f"mirror-transactions-{gap_fill}"
    create_topic(source, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    for number in range(8):
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)()
    producer.close()
    progress = mirror(source, target, topic, policy=MirrorPolicy.parse(gap_fill=[gap_fill]))
    assert ends(target, topic) == ends(source, topic) == [32]
    assert progress[TopicPartition(topic, 0)].filled == (0 if gap_fill == "records" else 17)
    committed = consume(source, topic, 1, 15, isolation_level="read_committed")
    for isolation_level in ("read_committed", "read_uncommitted"):
        found = consume(target, topic, 1, 32, isolation_level=isolation_level)
        assert {0: [record for record in found[0] if not is_filler(Record(*record))]} == committed
    assert compare(source, target, topic).identical


def test_open_transaction_is_not_waited_for_and_is_copied_once_it_is_committed(source: str, target: str) -> None:
    topic = "mirror-open-transaction"
    create_topic(source, topic)
    append_records(source, topic, 10)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush()
    append_records(source, topic, 10, first=10)
    mirror(source, target, topic)
    assert (ends(source, topic), ends(target, topic)) == ([21], [10])
    producer.commit_transaction()
    producer.close()
    mirror(source, target, topic)
    assert ends(target, topic) == [22]
    assert consume(source, topic, 1, 21) == consume(target, topic, 1, 21)
