"""A failover names what the target has lost, or never had, and tells no record of others as copied."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from support.mirror_link import (
    append_as_link,
    append_records,
    both,
    create_topic,
    ends,
    make_anew,
    mirror,
    prepare,
    values,
)
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids
from tolerant_client.records.record_batch import Record

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def copied(source: str, target: str, topic: str, count: int, partitions: int = 1) -> None:
    create_topic(source, topic, partitions)
    if count:
        append_records(source, topic, count, partitions=partitions)
        mirror(source, target, topic, link=topic)
    else:
        prepare(source, target, topic, topic)


def failed_over(target: str, topic: str) -> PromotionReport:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        dry = cluster.run(lambda: failover(cluster, topic, is_dry_run=True))
        report: PromotionReport = cluster.run(lambda: failover(cluster, topic))
    assert dry.exit_code == report.exit_code and len(dry.damaged) == len(report.damaged)
    return report


def applications_write(servers: str, topic: str, is_transactional: bool) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic if is_transactional else None)
    with closing(producer):
        if is_transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for n in range(3):
            producer.send(topic, b"own%d" % n, partition=0)
        if is_transactional:
            producer.commit_transaction()


def shown(report: PromotionReport) -> list[tuple[int, int, bool]]:
    return [(p.partition, p.copied_until, p.last_copied_ms is not None) for p in report.partitions]


def test_partitions_of_a_topic_that_was_made_anew_are_named_each(source: str, target: str) -> None:
    topic = "damage-anew"
    copied(source, target, topic, 200, partitions=2)
    make_anew(target, topic)
    append_records(target, topic, 50, first=9000)
    report = failed_over(target, topic)
    assert report.exit_code == 3 and shown(report) == [(0, 0, False)]
    anew, gone = report.damaged
    assert "created again on the target" in anew and f"{topic}-0, up to offset 200" in anew
    assert f"{topic}-1 is not on the target any more" in gone


def test_records_of_others_behind_a_copy_are_not_told_as_copied(source: str, target: str) -> None:
    topic = "damage-others"
    copied(source, target, topic, 200)
    append_records(target, topic, 30, first=7000)
    report = failed_over(target, topic)
    assert report.exit_code == 3 and shown(report) == [(0, 200, True)]
    assert f"others have written to {topic}-0 on the target from offset 200 on" in report.damaged[0]
    assert "2023-11-14 22:13:20.199" in report.warnings[0]  # the last one that was copied


def test_a_rehearsal_without_the_control_ends_a_copy_before_the_fence_as_the_failover_does(
    source: str, target: str
) -> None:
    topic = "damage-fence-ends"
    copied(source, target, topic, 20)
    with Cluster({"bootstrap_servers": target}, name="target") as there:
        assert there.run(lambda: failover(there, topic)).exit_code == 0
        there.run(delete_topics, there, [CONTROL_TOPIC])
        rehearsed, again = (
            there.run(lambda: failover(there, topic, LinkTopics.of(topic), is_dry_run=dry)) for dry in (True, False)
        )
    assert shown(rehearsed) == shown(again) == [(0, 20, True)] and rehearsed.exit_code == again.exit_code == 0


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
def test_a_failover_without_its_control_finds_where_the_former_one_has_fenced(
    source: str, target: str, is_transactional: bool
) -> None:
    topic = f"damage-fenced-{is_transactional}"
    copied(source, target, topic, 20)
    with both(source, target) as (origin, there):
        assert there.run(lambda: failover(there, topic)).exit_code == 0
        append_records(source, topic, 2, first=20)
        applications_write(target, topic, is_transactional)
        if not is_transactional:  # more than are read one by one
            append_records(target, topic, 1_100, first=1_000, per_batch=1)
        there.run(delete_topics, there, [CONTROL_TOPIC])
        asked = origin, there, topic, LinkTopics.of(topic)
        rehearsed = origin.run(lambda: promote(*asked, is_dry_run=True, deadline_s=0.0))
        assert any("the fence of this very link" in text for text in rehearsed.blockers), rehearsed
        assert [p.copied_until for p in rehearsed.partitions] == [None], (
            "what others wrote after the fence is not copied"
        )
        assert not rehearsed.unknown_left, "nor does the source's log end before what was copied"
        again = there.run(lambda: failover(there, topic, LinkTopics.of(topic)))
        assert again.exit_code == 3 and [p.copied_until for p in again.partitions] == [20]
        assert f"link {topic} was promoted before with {topic}-0" in again.damaged[0]
        report = origin.run(lambda: promote(origin, there, topic))
    assert report.exit_code == 3 and f"2 committed records of {topic}-0 were not copied" in report.left_behind


@pytest.mark.parametrize("is_translated", [False, True], ids=["identical", "translated"])
def test_what_a_source_topic_that_was_made_anew_before_a_failover_has_is_not_counted_from_the_former_ones_end(
    source: str, target: str, is_translated: bool
) -> None:
    """Of the new one the target has nothing, whether it is shorter, longer, or as long as what was copied."""
    link = f"damage-source-anew-{is_translated}".lower()
    topics = {f"{link}-{count}": count for count in (3, 12, 20)}
    for topic in topics:
        create_topic(source, topic)
        append_records(source, topic, 12)
    mirror(source, target, f"{link}-.*", link, is_translated=is_translated)
    for topic, count in topics.items():
        make_anew(source, topic)
        append_records(source, topic, count)
    assert failed_over(target, link).exit_code == 0
    with both(source, target) as (origin, there):
        report = origin.run(lambda: promote(origin, there, link))
        status = origin.run(lambda: read_status(origin, there, link))
    names = f"{link}-12-0 and 2 more partitions"
    told = f"what {names} left behind on the source is unknown: its topic was created again on the source"
    assert (report.unknown_left, report.left_behind, report.exit_code) == ((told,), "", 3)
    assert [p.lag for p in report.partitions] == [None] * 3
    assert told in status.notes and [topic.lag for topic in status.topics] == [None] * 3


@pytest.mark.parametrize("before", ["nothing", "others"])
def test_filler_of_a_log_start_that_was_left_half_done_is_deleted_where_it_is_the_links(
    source: str, target: str, before: str
) -> None:
    topic = f"damage-start-{before}"
    copied(source, target, topic, 0)
    partition = TopicPartition(topic, 0)
    sequence = 0
    if before == "others":
        append_records(target, topic, 10)
        sequence = 10
    append_as_link(target, topic, topic, [Record(0, 1, None, None, ((FILLER, None),))] * 20, sequence)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        ids = cluster.run(read_ids, None, cluster, {topic})[topic]

        def begin(now: Any) -> Any:
            return replace(now, begun={partition: ids}, log_starts={partition: 500})

        cluster.run(update_control, cluster, topic, begin)
    end = ends(target, topic)[0]
    report = failed_over(target, topic)
    assert report.exit_code == 3 and shown(report) == [(0, 0, False)]
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        start = cluster.run(cluster.list_offsets, {partition: EARLIEST})[partition]
    if before == "others":
        assert start == 0 and "kafka-delete-records.sh" in report.damaged[0] and len(values(target, topic, 10)) == 10
    else:
        assert start == end and f"the log now begins at offset {end}" in report.damaged[0]
    assert f"nothing of {topic}-0 was copied: its log was to begin at offset 500" in report.damaged[0]


def test_a_copy_that_is_whole_has_no_damage(source: str, target: str) -> None:
    topic = "damage-none"
    copied(source, target, topic, 100, partitions=2)
    report = failed_over(target, topic)
    assert report.exit_code == 0 and not report.damaged and shown(report) == [(0, 100, True), (1, 100, True)]
