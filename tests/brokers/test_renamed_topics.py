"""Topics that are called otherwise on the target, as by MirrorMaker 2: the same offsets under the other name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection

import kafka
import pytest
from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition
from msgspec.structs import replace
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.log_readers import read_bounds, read_with_confluent, read_with_kafka_python
from support.mirror_link import (
    append_records,
    both,
    compare,
    create_topic,
    delete_until,
    ends,
    mirror,
    prepare_translated_link,
    topics_of,
)
from support.nasty_topics import nasty_topic
from support.nasty_writer import BROKER_CONFIG, write_topics
from support.raising_copier import LinkCopier
from support.tree import SUPPORT
from tolerant_client.errors import DataLossError, OptionError
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.planned_link import plan_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow.translate import translate
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.mirror.state.offset_map import Place
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicCreation, TopicFilter
from tolerant_client.mirror.state.topics import describe_topics
from tolerant_client.mirror.verify.outcome import Outcome
from tolerant_client.records.record_batch import Record
from tolerant_client.testing import KafkaCluster

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

WRITER = SUPPORT / "mirror_process.py"
FAST = TransactionLimits(takeover_ms=300, linger_ms=5, commit_ms=50)


def link_topics(*include: str, source: str = "A", target: str = "B", separator: str = ".") -> LinkTopics:
    names = TopicNames(DefaultReplicationPolicy(separator), source)
    return LinkTopics(TopicFilter(include), names, target, copies_heartbeats=False)


def committed(servers: str, partitions: Collection[TopicPartition]) -> list[dict[int, Record]]:
    """What two independent consumers with read_committed agree on, without filler, which only targets have."""
    logs = read_with_kafka_python(servers, partitions, committed=True)
    assert logs == read_with_confluent(servers, partitions, committed=True)
    records = [{o: Record(o, r.timestamp, r.key, r.value, r.headers) for o, r in logs[p].items()} for p in partitions]
    return [{o: record for o, record in log.items() if not is_filler(record)} for log in records]


def require_identical(source: str, target: str, partitions: Collection[TopicPartition], alias: str = "A") -> None:
    renamed = [p._replace(topic=f"{alias}.{p.topic}") for p in partitions]
    copied = committed(target, renamed)
    assert copied == committed(source, partitions) and all(copied)
    ours, theirs = read_bounds(source, partitions), read_bounds(target, renamed)
    assert [ours[p][:2] for p in partitions] == [theirs[p][:2] for p in renamed]


def command(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def with_prefix(servers: str, prefix: str) -> set[str]:
    return {name for name in topics_of(servers) if prefix in name}


def write_transactions(servers: str, topic: str, count: int) -> None:
    """Every third one is aborted."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    producer.init_transactions()
    for number in range(count):
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)()
    producer.close()


# -- identical offsets --------------------------------------------------------


def test_every_kind_of_log_has_the_same_offsets_under_its_new_name(source: str, target: str) -> None:
    plain, transactions, late = "renamed-plain", "renamed-transactions", "renamed-late"
    create_topic(source, plain, 3, {"cleanup.policy": "compact"})
    create_topic(source, transactions)
    create_topic(source, late)
    append_records(source, plain, 700, partitions=3)
    append_records(source, late, 100)
    write_transactions(source, transactions, 7)
    delete_until(source, late, 40)
    link = link_topics("renamed-plain", "renamed-transactions", "renamed-late")
    progress = mirror(source, target, link, "renamed")
    assert {p.topic for p in progress} == {f"A.{name}" for name in (plain, transactions, late)}
    append_records(source, plain, 30, partitions=3, first=700)
    append_records(source, late, 50, first=100)
    write_transactions(source, transactions, 4)
    # Started anew, it finds its place in the renamed logs alone.
    assert sum(p.records for p in mirror(source, target, link, "renamed").values()) == 90 + 50 + 16  # markers, too
    assert sum(p.bytes for p in mirror(source, target, link, "renamed").values()) == 0
    counts = ((plain, 3), (transactions, 1), (late, 1))
    require_identical(source, target, [TopicPartition(name, n) for name, count in counts for n in range(count)])
    report = compare(source, target, link)
    assert report.identical and {part.topic for part in report.partitions} == {p.topic for p in progress}
    assert not {plain, transactions, late} & topics_of(target)
    told = json.loads(command("verify", "--source", source, "--target", target, "--link", "renamed"))
    assert told["identical"] and told["records"] == report.records
    with both(source, target) as (_, copy):
        assert copy.run(describe_topics, copy, [f"A.{plain}"])[f"A.{plain}"].is_compacted


@pytest.mark.long
def test_writers_that_are_killed_go_on_in_the_renamed_log(source: str, target: str) -> None:
    topic, link = "renamed-killed", link_topics("renamed-killed")
    create_topic(source, topic, 2)
    append_records(source, topic, 40_000, partitions=2, per_batch=20)
    killed_midway = 0
    for pause_s in (0.1, 0.2, None):
        command = [sys.executable, str(WRITER), source, target, link.to_json(), "renamed-killed"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        if pause_s is not None:
            time.sleep(pause_s)
            process.kill()
        _, errors = process.communicate(timeout=240)
        assert pause_s is not None or process.returncode == 0, errors
        killed_midway += 0 < sum(ends(target, f"A.{topic}", 2)) < 80_000
    assert killed_midway
    assert ends(target, f"A.{topic}", 2) == [40_000, 40_000]
    report = compare(source, target, link)
    assert report.identical and report.records == 80_000


def test_loss_is_told_and_written_down_under_the_target_name(source: str, target: str) -> None:
    topic, link = "renamed-lost", link_topics("renamed-lost")
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, link, "renamed-lost")
    append_records(source, topic, 30, first=20)
    delete_until(source, topic, 35)
    with pytest.raises(DataLossError, match="A.renamed-lost-0 no longer has offsets 20 to 35"):
        mirror(source, target, link, "renamed-lost")
    mirror(source, target, link, "renamed-lost", policy=MirrorPolicy.parse(on_loss=["A.renamed-lost=continue"]))
    with both(source, target) as (_, copy):
        (row,) = [row for row in copy.run(read_ledger, copy) if row.link == "renamed-lost"]
    assert (row.topic, row.from_offset, row.until_offset) == ("A.renamed-lost", 20, 35)
    assert compare(source, target, link).outcome is Outcome.EXPLAINED


def test_identity_policy_renames_heartbeats_only(source: str, target: str) -> None:
    create_topic(source, "renamed-identity")
    create_topic(source, "renamed-identity-heartbeats")
    append_records(source, "renamed-identity", 10)
    append_records(source, "renamed-identity-heartbeats", 10)
    names = TopicNames(IdentityReplicationPolicy(source_alias="A"), "A")
    mirror(
        source,
        target,
        LinkTopics(TopicFilter(("renamed-identity.*",)), names, "B", copies_heartbeats=False),
        "renamed-identity",
    )
    assert with_prefix(target, "renamed-identity") == {"renamed-identity", "A.renamed-identity-heartbeats"}
    require_identical(source, target, [TopicPartition("renamed-identity-heartbeats", 0)])


# -- what is chosen -----------------------------------------------------------


def test_two_links_in_opposite_directions_copy_each_topic_once(source: str, target: str) -> None:
    forth = link_topics(r"(.*\.)?renamed-both")
    back = link_topics(r"(.*\.)?renamed-both", source="B", target="A")
    for servers, count in ((source, 30), (target, 70)):
        create_topic(servers, "renamed-both")
        append_records(servers, "renamed-both", count)
    for _ in range(3):
        mirror(source, target, forth, "forth")
        mirror(target, source, back, "back")
    assert with_prefix(source, "renamed-both") == {"renamed-both", "B.renamed-both"}
    assert with_prefix(target, "renamed-both") == {"renamed-both", "A.renamed-both"}
    require_identical(source, target, [TopicPartition("renamed-both", 0)])
    require_identical(target, source, [TopicPartition("renamed-both", 0)], "B")
    assert ends(source, "renamed-both") == [30] and ends(target, "renamed-both") == [70]


def test_topic_that_came_from_a_third_cluster_keeps_its_way_in_its_name(source: str, target: str) -> None:
    for name in ("C_renamed-hop", "B_renamed-hop", "mm2-renamed-hop_internal"):
        create_topic(source, name)
    append_records(source, "C_renamed-hop", 10)
    mirror(source, target, link_topics(".*renamed-hop.*", separator="_"), "renamed-hop")
    assert with_prefix(target, "renamed-hop") == {"A_C_renamed-hop"}


def test_heartbeats_go_along_though_the_filter_leaves_them_out(source: str, target: str) -> None:
    with both(source, target, names=TopicNames(DefaultReplicationPolicy(), "A")) as (origin, copy):

        async def chosen(link: LinkTopics) -> set[str]:
            topics = (await plan_link(origin, copy, link)).topics
            return {topic.name for topic in (*topics.create, *topics.existing, *topics.grow)}

        if "heartbeats" not in topics_of(source):
            create_topic(source, "heartbeats")
        link = replace(link_topics("renamed-no-such-topic"), waits_for_topics=True)
        assert origin.run(chosen, link) == set()
        assert "A.heartbeats" in origin.run(chosen, replace(link, copies_heartbeats=True))
        with pytest.raises(OptionError, match="No topic of the source matches 'renamed-no-such-topic'"):
            origin.run(chosen, replace(link, waits_for_topics=False))
        with pytest.raises(IllegalStateError, match="give it the link's"):
            origin.run(chosen, LinkTopics())


def test_missing_topic_is_created_as_the_link_says(source: str, target: str) -> None:
    config = {"retention.ms": "86400000", "segment.ms": "7200000"}
    create_topic(source, "renamed-created", 2, config)
    creation = TopicCreation(replication_factor=2, config_exclude=(r"segment\..*",), use_defaults_from="source")
    link = replace(link_topics("renamed-created"), creation=creation)
    with both(source, target, names=link.names) as (origin, copy):
        planned = origin.run(plan_link, origin, copy, link)
        mirror(source, target, link, "renamed-created")
        made = copy.run(describe_topics, copy, ["A.renamed-created"])["A.renamed-created"]
    assert any("A.renamed-created is created with 1 replica," in warning for warning in planned.warnings)
    assert (made.partitions, made.replication_factor) == (2, 1)
    assert made.config["retention.ms"] == "86400000" and "segment.ms" not in made.config
    assert "flush.ms" in made.config, "a default of the source's brokers"


# -- translated offsets -------------------------------------------------------


def test_translated_offsets_have_the_target_name_too(source: str, target: str) -> None:
    topic, link = "renamed-translated", link_topics("renamed-translated")
    partition = TopicPartition("A.renamed-translated", 0)
    create_topic(source, topic)
    create_topic(target, partition.topic)
    append_records(target, partition.topic, 3, first=100)  # somebody else's
    with both(source, target, names=link.names) as (origin, there):

        async def copy() -> None:
            prepared = await prepare_translated_link(origin, there, link, topic)
            await LinkCopier(origin, there, translated_offsets(FAST), link=topic).copy(prepared.ends)

        for first in (0, 20):
            append_records(source, topic, 20, first=first)
            origin.run(copy)
        found = there.run(translate, there, topic, {partition: 25})[partition].found
    assert found is not None and found.place is Place.RECORD
    (copied,), (original,) = committed(target, [partition]), committed(source, [TopicPartition(topic, 0)])
    assert copied[found.translated].value == original[25].value
    # The link has written down what its topics are called.
    there_and_back = (
        ["--topic", topic, "--offset", "25"],
        ["--back", "--topic", partition.topic, "--offset", str(found.translated)],
    )
    for options in there_and_back:
        (row,) = json.loads(command("translate", "--target", target, "--link", topic, *options))
        assert (row["source_topic"], row["source_offset"]) == (topic, 25)
        assert (row["target_topic"], row["target_offset"]) == (partition.topic, found.translated)
    assert [r.value for r in copied.values()][3:] == [r.value for r in original.values()]


# -- everything at once -------------------------------------------------------


@pytest.mark.long
def test_nasty_topics_with_holes_are_identical_under_their_new_names(
    start_cluster: Callable[..., KafkaCluster], target: str
) -> None:
    cluster = start_cluster(broker_config=BROKER_CONFIG, heap="384m")
    topics = [nasty_topic(seed, "renamed-nasty") for seed in range(12)]
    write_topics(cluster, topics)
    link = link_topics("renamed-nasty.*")
    mirror(cluster.bootstrap_servers, target, link, "renamed-nasty")
    report = compare(cluster.bootstrap_servers, target, link)
    assert report.records and not any(p.first_difference or p.error for p in report.partitions)
    left = [each for p in report.partitions for each in p.not_compared if each.matters]
    assert left and all("open transaction" in each.reason for each in left)
    assert any(topic.is_compacted for topic in topics), "a cleaner has made holes"
    # When to clean is each cluster's affair.
    whole = [p for topic in topics if not topic.is_compacted for p in topic.by_partition]
    renamed = [p._replace(topic=f"A.{p.topic}") for p in whole]
    assert committed(target, renamed) == committed(cluster.bootstrap_servers, whole)
