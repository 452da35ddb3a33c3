"""A link whose state topics were deleted on its target: its copies are there, and only the logs say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import (
    append_records,
    both,
    configure,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    mirror,
)
from support.zookeeper_kafka import ZooKeeperKafka
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.listing import list_links
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import _UNSHOWN, read_status
from tolerant_client.mirror.state.carriers import START_UNTOLD
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import Health
from tolerant_client.mirror.state.map_topic import MAP_PARTITIONS, map_partition, map_topic
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.doctor.link_examination import Subject, examine

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def lose(target: str, link: str) -> None:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [CONTROL_TOPIC, map_topic(link)])


def test_a_translated_link_without_control_and_map_copies_nothing_twice_and_every_command_says_so(
    source: str, target: str
) -> None:
    link = "lost-both"
    topics, copied, empty, gone = f"{link}-.*", f"{link}-copied", f"{link}-empty", f"{link}-gone"
    for topic in (copied, empty, gone):
        create_topic(source, topic)
    append_records(source, copied, 20)
    append_records(source, gone, 10)
    mirror(source, target, topics, link, is_translated=True)
    until = ends(target, copied)
    append_records(target, copied, 1)  # others write there, too
    lose(target, link)
    delete_topic(source, gone)

    told = f"Topic {map_topic(link)} of the target, the offset map of link {link}, was deleted, as its control was, and the log of {copied}-0 and 1 more"
    with pytest.raises(TargetDivergedError, match=told):
        mirror(source, target, topics, link, is_translated=True)
    assert ends(target, copied) == [until[0] + 1]
    with both(source, target) as (origin, copy):
        planned = origin.run(lambda: plan_everything(origin, copy, link, topics, is_translated=True))
        assert planned.exit_code == 3 and any(text.startswith(told) for text in planned.refusals), planned
        status = origin.run(lambda: read_status(origin, copy, link, LinkTopics.of(topics)))
        assert status.health is Health.BLOCKED and any(text.startswith(told) for text in status.findings), status
        assert {t.topic: (t.lag, t.unknown) for t in status.topics}.get(empty) == (None, (0,)), status
        assert any(f"{gone}-0" in reason.text for reason in status.reasons), status
        (listed,) = [one for one in origin.run(lambda: list_links(copy)).links if one.link == link]
        assert listed.offsets == "translated" and "its control and its offset map are gone" in listed.state
        for command in (["status"], ["promote", "--dry-run"], ["failover", "--dry-run"]):
            clusters = ["--target", target, *(() if command[0] == "failover" else ("--source", source))]
            done = CliRunner().invoke(app, [*command, *clusters, "--link", link])
            assert str(done.exception) == f"OptionError: Link {link}: {listed.state}. Or give --topics", done
        other = origin.run(lambda: plan_everything(origin, copy, f"{link}-2", copied, is_translated=True))
        warned = f"{copied}-0 of the target has copies of link {link}, whose offset map was deleted: if it has copied this source, link"
        assert any(text.startswith(warned) for text in other.warnings) and other.exit_code == 0, other
        with pytest.raises(OptionError, match="run tolerant-kafka failover"):
            origin.run(lambda: promote(origin, copy, link, LinkTopics.of(topics)))
        report = origin.run(lambda: failover(copy, link, LinkTopics.of(topics)))
        assert report.is_done and report.exit_code == 3 and report.damaged[0].startswith(told), report
        assert {p.topic: p.copied_until for p in report.partitions} == dict.fromkeys((copied, empty, gone))
        assert not origin.run(lambda: read_control(copy, link)).tells_no_start
        again = origin.run(lambda: promote(origin, copy, link))
        assert again.exit_code == 3 and again.unknown_left and not again.damaged, again
        delete_topic(target, gone)
        status = origin.run(lambda: read_status(origin, copy, link))
        assert status.exit_code == 3 and status.findings[0].startswith(f"{gone}-0: not on the target any more"), status
        assert not any("were not copied" in note for note in status.notes), status
        delete_topic(target, CONTROL_TOPIC)
        prepared = origin.run(lambda: prepare_link(origin, copy, copied, f"{link}-2", is_translated=True))
        assert any(text.startswith(warned) for text in prepared.warnings), prepared


def test_a_map_that_was_trimmed_lets_nothing_be_copied_twice_and_every_command_says_so(
    source: str, target: str
) -> None:
    """An operator's script gave each topic a retention, and set the map's cleanup.policy right again as `doctor` says."""
    topic = link = "lost-rows"
    create_topic(source, topic)
    append_records(source, topic, 10)
    mirror(source, target, topic, link, is_translated=True)
    before, part = ends(target, topic), map_partition(link, TopicPartition(topic, 0))
    configure(target, part.topic, cleanup_policy="compact,delete")
    delete_records(target, part.topic, ends(target, part.topic, MAP_PARTITIONS)[part.partition], part.partition)
    configure(target, part.topic, cleanup_policy="compact")
    told = f"the offset map of link {link}, has lost rows .partition {part.partition} now starts at offset"
    with pytest.raises(TargetDivergedError, match=told):
        mirror(source, target, topic, link, is_translated=True)
    assert ends(target, topic) == before
    with both(source, target) as (origin, copy):
        planned = origin.run(lambda: plan_everything(origin, copy, link, topic, is_translated=True))
        assert planned.exit_code == 3 and any(re.search(told, text) for text in planned.refusals), planned
        status = origin.run(lambda: read_status(origin, copy, link, LinkTopics.of(topic)))
        assert status.health is Health.BLOCKED and any(re.search(told, text) for text in status.findings), status
        assert [(t.lag, t.unknown) for t in status.topics] == [(None, (0,))], status
        with pytest.raises(OptionError, match=told):
            origin.run(lambda: promote(origin, copy, link, LinkTopics.of(topic)))


def test_a_target_that_cannot_tell_what_a_translated_link_has_copied_gets_no_advice_to_start_it(
    source: str, start_old_broker: Callable[..., ZooKeeperKafka]
) -> None:
    topic = link = "lost-both-old"
    create_topic(source, topic)
    append_records(source, topic, 5)
    target = start_old_broker("2.8.2").bootstrap_servers
    mirror(source, target, topic, link, is_translated=True)
    lose(target, link)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        (listed,) = cluster.run(lambda: list_links(cluster)).links
    assert listed.state.startswith(f"its control is gone, {START_UNTOLD}, or, if it was promoted"), listed
    with both(source, target) as (origin, copy):
        planned = origin.run(lambda: plan_everything(origin, copy, link, topic, is_translated=True))
    warned = f"whether a link whose offset map and control were deleted, this one or another, has copied into {topic}-0 is unknown"
    assert any(text.startswith(warned) for text in planned.warnings), planned
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checked = examine(Subject(clusters, LinkTopics.of(topic), link=link, seconds=0))
    (gone,) = [found for found in checked.findings if found.evidence.startswith("its control is gone")]
    assert gone.remedy[1:].startswith(START_UNTOLD[1:]), gone


def test_a_translated_link_that_has_copied_nothing_starts_again_without_control_and_map(
    source: str, target: str
) -> None:
    topic = link = "lost-both-nothing"
    create_topic(source, topic)
    create_topic(target, topic)
    append_records(target, topic, 3, first=100)  # of others
    mirror(source, target, topic, link, is_translated=True)
    lose(target, link)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        with pytest.raises(OptionError, match=r"though a mirror of it was seen there in the last hour\. Check"):
            cluster.run(lambda: failover(cluster, link, LinkTopics.of(topic)))
    append_records(source, topic, 20)
    mirror(source, target, topic, link, is_translated=True)
    assert ends(target, topic)[0] > 20
    lose(target, link)
    delete_topic(target, topic)  # which is the remedy, if no record is to be there twice
    mirror(source, target, topic, link, is_translated=True)
    assert 20 < ends(target, topic)[0] < 23


def test_a_copy_between_markers_whose_source_was_deleted_is_the_links_after_a_start_without_a_control(
    source: str, target: str
) -> None:
    link = "lost-between-markers"
    topics, lost, kept = f"{link}-.*", f"{link}-lost", f"{link}-kept"
    for topic in (lost, kept):
        create_topic(source, topic)
    with closing(KafkaProducer(bootstrap_servers=source, transactional_id=link)) as producer:
        producer.init_transactions()
        for is_committed in (False, True):
            producer.begin_transaction()
            for n in range(5):
                producer.send(lost, b"%d" % n).get(10)
            producer.commit_transaction() if is_committed else producer.abort_transaction()
    mirror(source, target, topics, link)
    delete_topic(source, lost)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [CONTROL_TOPIC])
    mirror(source, target, topics, link)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        assert TopicPartition(lost, 0) in cluster.run(lambda: read_control(cluster, link)).begun


def test_how_far_a_link_is_that_has_never_copied_into_a_topic_of_others_is_unknown(source: str, target: str) -> None:
    topic = link = "lost-never"
    for servers, count in ((source, 12), (target, 20)):
        create_topic(servers, topic)
        append_records(servers, topic, count)
    with both(source, target) as (origin, copy):
        status = origin.run(lambda: read_status(origin, copy, link, LinkTopics.of(topic)))
    assert [(t.lag, t.unknown) for t in status.topics] == [(None, (0,))], status
    assert any(_UNSHOWN in reason.text for reason in status.reasons), status
    topic = link = "lost-control-alone"
    create_topic(source, topic)
    append_records(source, topic, 12)
    mirror(source, target, topic, link)
    delete_topic(target, CONTROL_TOPIC)
    with both(source, target) as (origin, copy):
        status = origin.run(lambda: read_status(origin, copy, link, LinkTopics.of(topic)))
    assert [(t.lag, t.unknown) for t in status.topics] == [(0, ())], "its producer id shows whose copy it is"
