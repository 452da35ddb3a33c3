"""Hundreds of nasty topics through one mirror: what consumers read on both sides is the same, offset by offset.

TOLERANT_LONG=1 takes thousands of new ones.  A failure names its topic; TOLERANT_NASTY_SEEDS=123[,456] runs these alone:

    TOLERANT_NASTY_SEEDS=123 pytest tests/brokers/test_nasty_topics.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import kafka
import pytest
from kafka.structs import TopicPartition

from support.every_kind import every_kind
from support.log_readers import Bounds, Logs, read_bounds, read_with_confluent, read_with_kafka_python
from support.long import LONG
from support.mirror_link import both
from support.nasty_oracle import Judgement, judge_source, judge_topics
from support.nasty_topics import Kind, NastyTopic, features, nasty_topic
from support.nasty_writer import BROKER_CONFIG, CLEANER_CONFIG, write_topics
from support.raising_copier import LinkCopier
from support.tree import SUPPORT
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.testing import (
    FaultProxy,
    KafkaCluster,
)

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

WRITER = SUPPORT / "mirror_process.py"
TOPICS = 210
# By prefix: every way for topics of every kind, most of them by the default.
WAYS = ("nasty-auto", "nasty-auto", "nasty-auto", "nasty-records", "nasty-markers")
GAP_FILL = ["auto", ".*-records-.*=records", ".*-markers-.*=markers"]
KILLS = 3


# In every run: an open transaction that began before its log's start.
SEEN = [9_196_080_202]
GIVEN = [int(seed) for seed in os.environ.get("TOLERANT_NASTY_SEEDS", "").split(",") if seed]
FIRST_SEED = random.SystemRandom().randrange(10**6) * 10_000 if LONG else 0
ROUNDS = 10 if LONG and not GIVEN else 1

FAULTS = every_kind(1 / 30)


def seeds(number: int) -> list[int]:
    first = FIRST_SEED + number * TOPICS
    return GIVEN or [*range(first, first + TOPICS), *SEEN]


def topics_of(numbers: Sequence[int]) -> list[NastyTopic]:
    return [nasty_topic(seed, WAYS[seed % len(WAYS)]) for seed in numbers]


# -- the plans themselves -----------------------------------------------------


def test_every_nasty_thing_occurs_in_the_topics_of_every_run() -> None:
    found = Counter(feature for topic in topics_of(range(TOPICS)) for feature in features(topic))
    for kind in Kind:
        assert found[kind.value] >= 10, kind
    for feature in (
        *("none", "gzip", "snappy", "lz4", "zstd", "mixed codecs", "topic codec"),
        *("null key", "empty key", "null value", "empty value", "large value", "record of nothing", "resembles filler"),
        *("null header", "empty header", "duplicate headers", "non-ASCII header"),
        *("batch of a thousand", "hundred batches of one", "idempotent batches"),
        *("no timestamp", "equal timestamps", "backwards", "far apart"),
        *("commit", "abort", "empty transaction", "long transaction", "interleaved transactions", "open transaction"),
        *("epoch bumped", "plain records between transactional ones", "stable records before an open transaction"),
        *("compact", "compact,delete", "compacted later", "holes", "tombstones", "transaction across a cleaning"),
        *("late start", "start within a batch", "all deleted", "empty partition"),
        *("1 partitions", "2 partitions", "3 partitions"),
    ):
        assert found[feature] >= 10, feature


def test_a_seed_gives_the_same_topic_again() -> None:
    assert nasty_topic(7) == nasty_topic(7)
    assert nasty_topic(7).describe() == nasty_topic(7).describe()
    assert nasty_topic(7).partitions != nasty_topic(8).partitions


# -- on real brokers ----------------------------------------------------------


class Written(NamedTuple):
    """The topics, and their source as consumers see it."""

    topics: list[NastyTopic]
    partitions: list[TopicPartition]
    bounds: dict[TopicPartition, Bounds]
    committed: Logs


@pytest.fixture(scope="module")
def pair(start_cluster: Callable[..., KafkaCluster]) -> tuple[KafkaCluster, KafkaCluster]:
    source, target = (start_cluster(broker_config=config, heap="384m") for config in (BROKER_CONFIG, CLEANER_CONFIG))
    return source, target


@pytest.fixture(scope="module", params=range(ROUNDS))
def written(pair: tuple[KafkaCluster, KafkaCluster], request: pytest.FixtureRequest) -> Iterator[Written]:
    topics = topics_of(seeds(request.param))
    print(f"nasty topics of the seeds {topics[0].seed} to {topics[-1].seed}")
    yield write(pair[0], topics)
    for cluster in pair:
        delete_topics(cluster.bootstrap_servers, [topic.name for topic in topics])


def write(source: KafkaCluster, topics: list[NastyTopic]) -> Written:
    write_topics(source, topics)
    partitions = [p for topic in topics for p in topic.by_partition]
    committed = read_with_confluent(source.bootstrap_servers, partitions, committed=True)
    return Written(topics, partitions, read_bounds(source.bootstrap_servers, partitions), committed)


def delete_topics(servers: str, names: list[str]) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_topics(names)
    admin.close()


def test_both_readers_find_on_the_source_what_was_written(
    pair: tuple[KafkaCluster, KafkaCluster], written: Written
) -> None:
    source = pair[0].bootstrap_servers
    assert written.committed == read_with_kafka_python(source, written.partitions, committed=True)
    uncommitted = read_with_confluent(source, written.partitions, committed=False)
    assert uncommitted == read_with_kafka_python(source, written.partitions, committed=False)
    differences = []
    cleaned_away = 0
    for topic in written.topics:
        for partition, log in topic.by_partition.items():
            name = f"{partition.topic}-{partition.partition}"
            assert written.bounds[partition] == (log.start, log.last_stable_offset, log.log_end), name
            # Aborted records go with the first cleaning.
            there = (
                uncommitted[partition].keys() | (log.committed() if topic.is_compacted else log.uncommitted()).keys()
            )
            shown = {offset: record for offset, record in log.uncommitted().items() if offset in there}
            for expected, found in ((log.committed(), written.committed), (shown, uncommitted)):
                judgement = judge_source(
                    name,
                    expected,
                    found[partition],
                    is_compacted=topic.is_compacted,
                    is_stamped=topic.kind is Kind.STAMPED,
                )
                differences += judgement.differences
                cleaned_away += judgement.cleaned_away
    assert not differences, "\n".join(differences[:20])
    assert len(written.topics) < TOPICS or cleaned_away > 1000, "the cleaner has made no holes"


def mirror(source: str, target: str, topics: str, link: str) -> dict[TopicPartition, Progress]:
    policy = MirrorPolicy.parse(gap_fill=GAP_FILL)
    with both(source, target) as (origin, copy):

        async def run() -> dict[TopicPartition, Progress]:
            prepared = await prepare_link(origin, copy, topics, link, policy)
            return await LinkCopier(
                origin, copy, identical_offsets(prepared.producer_id), link=link, policy=policy
            ).copy(prepared.ends)

        return origin.run(run)


def killed_mirror(source: str, target: str, topics: str, link: str, after_s: float) -> bool:
    """A writer that is killed while it copies, if it is not done by then."""
    options = json.dumps({"gap_fill": GAP_FILL})
    command = [sys.executable, str(WRITER), source, target, topics, link, options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    started = process.stdout.readline()
    time.sleep(after_s)
    is_killed = process.poll() is None
    process.kill()
    _, errors = process.communicate()
    assert started == "copying\n" and (is_killed or process.returncode == 0), errors
    return is_killed


def compare(written: Written, target: str) -> Judgement:
    """Both levels on the target; what is committed with both readers."""
    bounds = read_bounds(target, written.partitions)
    total = Judgement([])
    for read, committed in ((read_with_confluent, True), (read_with_kafka_python, True), (read_with_confluent, False)):
        logs = read(target, written.partitions, committed=committed)
        total += judge_topics(written.topics, written.bounds, bounds, written.committed, logs)
    return total


def test_nasty_topics_are_identical_after_kills_and_a_last_run(
    pair: tuple[KafkaCluster, KafkaCluster], written: Written
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in pair)
    rng = random.Random(written.topics[0].seed)
    started = time.monotonic()
    killed = sum(killed_mirror(source, target, "nasty-.*", "nasty", rng.uniform(0.1, 1.5)) for _ in range(KILLS))
    mirror(source, target, "nasty-.*", "nasty")
    copied = time.monotonic() - started
    judgement = compare(written, target)
    print(
        f"{len(written.topics)} topics in {copied:.1f} s with {killed} kills: {judgement.records} records,"
        f" {judgement.fillers} filler, {judgement.cleaned_away} cleaned away"
    )
    assert not judgement.differences, "\n".join(judgement.differences[:40])
    assert len(written.topics) < TOPICS or (killed and judgement.records > 10_000 and judgement.fillers > 1000)
    again = mirror(source, target, "nasty-.*", "nasty")
    assert [str(p) for p, done in again.items() if done.records or done.bytes or done.troubles] == []


@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_nasty_topics_are_identical_with_one_answer_in_thirty_spoiled(
    pair: tuple[KafkaCluster, KafkaCluster], fault_proxy: Callable[..., FaultProxy], number: int
) -> None:
    first = FIRST_SEED + 5000 + 40 * number
    print(f"faulty topics of the seeds {first} to {first + 39}")
    topics = [nasty_topic(seed, WAYS[seed % len(WAYS)].replace("nasty", "faulty")) for seed in range(first, first + 40)]
    written = write(pair[0], topics)
    proxies = [fault_proxy(FAULTS, cluster, number) for cluster in pair]
    mirror(proxies[0].bootstrap_servers, proxies[1].bootstrap_servers, "faulty-.*", "faulty")
    hits = sum((proxy.injected for proxy in proxies), Counter())
    judgement = compare(written, pair[1].bootstrap_servers)
    print(f"{hits.total()} answers spoiled: {judgement.records} records, {judgement.fillers} filler")
    assert not judgement.differences, "\n".join(judgement.differences[:40])
    assert hits.total() > 20
    for cluster in pair:
        delete_topics(cluster.bootstrap_servers, [topic.name for topic in topics])
