"""Which topics a failback without any takes: those of the move that it undoes, never those of an earlier one or of another source."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from spark_integration.cli.link import link_of_file
from support.mirror_link import (
    append_records,
    both,
    compare,
    create_topic,
    delete_topic,
    ends,
    failed_over,
    mirror,
    promoted,
    topics_of,
)
from support.moved_links import moved
from support.settled import until
from tolerant_client import KafkaConsumer, KafkaProducer
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetDivergedError, text_of
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life import failover as failover_module
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.repair import repair
from tolerant_client.mirror.life.takeover import take_over
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.moves import at_home
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import RangesPlanner
from tolerant_client.stock.moving import manager_of


@pytest.fixture(autouse=True)
def no_control_is_left(source: str, target: str) -> Iterator[None]:
    """Every promoted link of the one cluster onto the other is one that a failback may undo."""
    yield
    for servers in (source, target):
        if CONTROL_TOPIC in topics_of(servers):
            delete_topic(servers, CONTROL_TOPIC)


def failed_back(source: str, target: str, link: str, **how: Any) -> Any:
    with both(source, target) as (origin, copy):
        return origin.run(lambda: failback(origin, copy, link, **how))


@pytest.mark.parametrize("again, back", [("there", "there"), ("again", "there"), ("there", "back")])
def test_topics_that_were_added_after_an_earlier_move_are_brought_back_too(
    source: str, target: str, again: str, back: str
) -> None:
    """Whatever the links are called, and beside a link that has copied other topics."""
    name = f"topics-{again}-{back}"
    first, second = f"{name}-a", f"{name}-b"
    link, forward_again, link_back, beside = (f"{name}.{which}" for which in ("there", again, back, "beside"))
    for topic in (first, second, f"{name}-c"):
        create_topic(source, topic)
        append_records(source, topic, 5)
    mirror(source, target, first, link)
    promoted(source, target, link)
    assert failed_back(target, source, link_back).is_done
    mirror(target, source, first, link_back)
    promoted(target, source, link_back)
    mirror(source, target, f"{name}-c", beside)
    promoted(source, target, beside)
    assert failed_back(source, target, forward_again, topics=first).is_done
    mirror(source, target, f"{name}-(a|b)", forward_again)
    append_records(source, second, 2, first=5)  # nobody copies them
    failed_over(target, forward_again)
    append_records(target, second, 3, first=100)
    found = failed_back(target, source, link_back)
    assert {(p.topic, p.lost_records) for p in found.partitions} == {(first, 0), (second, 2)} and found.exit_code == 3
    assert failed_back(target, source, link_back, discards=True).is_done
    mirror(target, source, f"{name}-(a|b)", link_back)
    assert compare(target, source, f"{name}-(a|b)").identical


def test_of_a_way_home_in_parts_only_the_rest_is_brought_back_and_what_is_home_is_never_deleted(
    source: str, target: str
) -> None:
    """The second topic stays behind at first, since only the old source has the last records of it."""
    name = "topics-parts"
    first, second, link, back = f"{name}-a", f"{name}-b", f"{name}.there", f"{name}.back"
    for topic in (first, second):
        create_topic(source, topic)
        append_records(source, topic, 10)
    mirror(source, target, f"{name}-.*", link)
    append_records(source, second, 2, first=10)  # nobody copies them
    failed_over(target, link)
    for topic in (first, second):
        append_records(target, topic, 4, first=100)
    assert failed_back(target, source, back, topics=first).is_done
    mirror(target, source, first, back)
    promoted(target, source, back)
    append_records(source, first, 5, first=500)  # its primary's own
    at_home = ends(source, first)
    told = (
        f"Topic {first} of this target is the copy of link {back}, which was promoted: .* is its primary, .* exchanged"
    )
    told_of = told.replace(first, f"{name}-[ab]").replace(back, rf"{back}\S*")
    for again in (back, f"{back}-2"):
        found = failed_back(target, source, again, topics=first, discards=True)
        assert not found.is_done and not found.deleted_topics and not found.partitions
        (text,) = found.blockers
        assert re.match(told, text)
    # Preparing the same link for the other topic would forget that it was promoted with the first one.
    for topics in (None, second):
        with pytest.raises(OptionError, match=f"Link {back} was promoted with {first} on this target.*another --link"):
            failed_back(target, source, back, topics=topics, discards=True)
    found = failed_back(target, source, f"{back}-2", discards=True)
    assert found.is_done and found.deleted_topics == (second,) and found.topics == second
    mirror(target, source, found.topics, f"{back}-2")
    assert compare(target, source, second).identical
    promoted(target, source, f"{back}-2")
    for again in (back, f"{back}-2", f"{back}-3", link):
        found = failed_back(target, source, again, discards=True)
        assert found.exit_code == 3 and not found.deleted_topics and all(re.match(told_of, b) for b in found.blockers)
    assert ends(source, first) == at_home
    for topics in (first, f"{name}-.*"):  # the next time, whose link has nothing to remember: its promotion was undone
        found = failed_back(source, target, link, topics=topics)
        assert found.is_done and [p.to_copy for p in found.partitions if p.topic == first] == [6], found


def test_what_a_link_back_that_never_ran_was_failed_over_with_is_home(source: str, target: str) -> None:
    topic = link = "topics-never-ran"
    back = f"{topic}-back"
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link)
    failed_over(target, link)
    assert failed_back(target, source, back, topics=topic).is_done
    standby: Any = {"bootstrap_servers": source, "standby": {"bootstrap_servers": target}, "link": link}
    with both(source, target) as (origin, copy), closing(KafkaProducer(**standby)) as client:
        assert manager_of(client).cluster.cluster_id == copy.run(copy.cluster_id)
        # The target is lost before the mirror of the link back has started.
        *_, warning = failed_over(source, back).warnings
        assert warning.startswith(f"no mirror of link {back} has started") and "it has copied nothing" in warning
        home = origin.run(origin.cluster_id)
        until(lambda: manager_of(client).cluster.cluster_id == home)
        with closing(KafkaProducer(**standby)) as made:
            assert manager_of(made).cluster.cluster_id == home
    append_records(source, topic, 3, first=500)
    at_home = ends(source, topic)
    found = failed_back(target, source, f"{back}-2", topics=topic, discards=True)
    assert not found.is_done and not found.deleted_topics and ends(source, topic) == at_home


def test_the_failover_of_a_link_that_was_prepared_again_and_never_ran_writes_no_record(
    source: str, target: str
) -> None:
    """Its former generation, which its promotion has fenced, is not fenced once more with a record that consumers would see."""
    topic = link = "topics-again-unrun"
    back = f"{topic}-back"
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link)
    promoted(source, target, link)
    assert failed_back(target, source, back, topics=topic).is_done
    mirror(target, source, topic, back)
    promoted(target, source, back)
    assert failed_back(source, target, link, topics=topic).is_done
    failed_over(target, link)
    options: Any = {"group_id": None, "auto_offset_reset": "earliest", "consumer_timeout_ms": 1000}
    with closing(KafkaConsumer(topic, bootstrap_servers=target, **options)) as consumer:
        assert [record.offset for record in consumer] == [*range(5)]


def failed_over_but(late: str, target: str, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover that leaves one topic for later, as if it had no leader."""

    async def away(_: Any, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        return {p: "it has no leader" for p in partitions if p.topic == late}

    with monkeypatch.context() as patched, Cluster({"bootstrap_servers": target}, name="target") as cluster:
        patched.setattr(failover_module, "without_leader", away)
        report = cluster.run(failover_module.failover, cluster, link)
        assert report.is_begun and not report.is_done


def test_what_the_failover_of_the_way_home_has_left_for_later_is_not_home_and_no_other_links(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "topics-late"
    first, second, link, back = f"{name}-a", f"{name}-b", f"{name}.there", f"{name}.back"
    for topic in (first, second):
        create_topic(source, topic)
        append_records(source, topic, 5)
    mirror(source, target, f"{name}-(a|b)", link)
    promoted(source, target, link)
    assert failed_back(target, source, back).is_done
    mirror(target, source, f"{name}-(a|b)", back)
    failed_over_but(second, source, back, monkeypatch)
    for topics in (None, second):
        (text,) = failed_back(target, source, f"{back}-2", topics=topics, discards=True).blockers
        assert re.match(
            f"Topic {second} .* copy of link {back}, and not .* yet: its failover left .* run again: ", text
        )
    (text,) = failed_back(target, source, f"{back}-2", topics=first, discards=True).blockers
    assert "So the target is its primary" in text
    failed_over(source, back)
    (text,) = failed_back(target, source, f"{back}-2", topics=second, discards=True).blockers
    assert "So the target is its primary" in text


def test_what_came_home_while_the_failover_of_the_rest_had_to_wait_stays_home(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = link = "topics-half"
    first, second, back = f"{name}-a", f"{name}-b", f"{name}-back"
    for topic in (first, second):
        create_topic(source, topic)
        append_records(source, topic, 5)
    mirror(source, target, f"{name}-(a|b)", link)
    failed_over_but(second, target, link, monkeypatch)
    append_records(target, first, 3, first=100)
    assert failed_back(target, source, back, topics=first).is_done
    mirror(target, source, first, back)
    promoted(target, source, back)
    append_records(source, first, 4, first=500)
    standby: Any = {"bootstrap_servers": source, "standby": {"bootstrap_servers": target}, "link": link}
    with closing(KafkaProducer(**standby)) as client:
        client.send(first, b"at home").get(20)
        there = ends(target, first)
        failed_over(target, link)  # of what is left of it
        time.sleep(3.0)  # in which the client would have left
        client.send(first, b"at home").get(20)
    at_home = ends(source, first)
    assert ends(target, first) == there != at_home
    with closing(KafkaConsumer(first, **standby)) as made:  # which names what it reads
        assert list(made.end_offsets([TopicPartition(first, 0)]).values()) == at_home
    append_records(target, second, 3, first=100)
    found = failed_back(target, source, f"{back}-2", discards=True)
    assert found.is_done and found.topics == second and {p.topic for p in found.partitions} == {second}
    assert not failed_back(target, source, f"{back}-3", topics=first, discards=True).is_done
    assert ends(source, first) == at_home


def test_what_was_made_anew_while_the_failover_of_a_link_that_had_not_run_had_to_wait_is_read_whole(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And until then what it has left is its copy, onto which no other link is let."""
    name = link = "topics-anew"
    first, second, back = f"{name}-a", f"{name}-b", f"{name}-back"
    for topic in (first, second):
        create_topic(source, topic)
        append_records(source, topic, 5)
    mirror(source, target, f"{name}-(a|b)", link)
    promoted(source, target, link)
    assert failed_back(target, source, back).is_done
    mirror(target, source, f"{name}-(a|b)", back)
    promoted(target, source, back)
    assert failed_back(source, target, link).is_done
    failed_over_but(second, target, link, monkeypatch)
    with pytest.raises(OptionError, match=f"Topic {second} .* copy of link {link}, and not .* yet: its failover left"):
        mirror(source, target, second, f"{name}-other")
    options: Any = {"group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    standby: Any = {"standby": {"bootstrap_servers": target}, "link": link}
    with closing(KafkaConsumer(second, bootstrap_servers=source, consumer_timeout_ms=25000, **options)) as consumer:
        assert len([*islice(consumer, 5)]) == 5
        consumer.commit()
    delete_topic(target, second)
    create_topic(target, second)
    append_records(target, second, 8, first=100)
    there = ends(target, second)
    with both(source, target) as (origin, copy):
        report = origin.run(promote, origin, copy, link)
    assert report.is_done and report.exit_code == 3 and ends(target, second) == there, "no marker"
    assert f"topic {second} was deleted and created again on the target" in report.damaged[0]
    with closing(
        KafkaConsumer(second, bootstrap_servers=source, consumer_timeout_ms=25000, **options, **standby)
    ) as consumer:
        assert [record.offset for record in islice(consumer, 8)] == [*range(8)]


def test_a_topic_that_was_left_out_of_a_later_move_stays_left_out(source: str, target: str) -> None:
    """Its links have one name there and back, as long as they can."""
    name = link = "topics-fewer"
    first, second = f"{name}-a", f"{name}-b"
    for topic in (first, second):
        create_topic(source, topic)
        append_records(source, topic, 5)
    mirror(source, target, f"{name}-(a|b)", link)
    promoted(source, target, link)
    assert failed_back(target, source, link).is_done
    mirror(target, source, f"{name}-(a|b)", link)
    promoted(target, source, link)
    assert failed_back(source, target, link, topics=first).is_done
    mirror(source, target, first, link)
    promoted(source, target, link)
    append_records(target, first, 3, first=100)
    with pytest.raises(OptionError) as refused:
        failed_back(target, source, link)
    there = ends(source, second)
    (at_home,) = failed_back(target, source, link, topics=f"{name}-.*", discards=True).blockers
    assert second in at_home and "nothing is to be brought back" in at_home and ends(source, second) == there
    delete_topic(target, second)
    with pytest.raises(OptionError, match="promoted with topics-fewer-b on this target"):
        failed_back(target, source, link, topics=f"{name}-.*")  # which takes that name, and brings nothing of it
    (command,) = re.findall(r"tolerant-kafka (failback .*)$", text_of(refused.value))
    told = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "500"})
    assert told.exit_code == 0 and f"Link {link}-2 is ready" in told.output
    mirror(target, source, first, f"{link}-2")
    promoted(target, source, f"{link}-2")
    append_records(source, first, 2, first=200)
    found = failed_back(source, target, link)
    assert found.is_done and found.topics == first
    mirror(source, target, first, link)
    assert compare(source, target, first).identical


def test_what_was_deleted_where_it_was_home_is_copied_back_once_more(source: str, target: str) -> None:
    topic = link = "topics-given-up"
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link)
    promoted(source, target, link)
    assert failed_back(target, source, link).is_done
    mirror(target, source, topic, link)
    promoted(target, source, link)
    append_records(source, topic, 2, first=50)
    assert failed_back(target, source, link, topics=topic, discards=True).blockers
    delete_topic(source, topic)
    assert failed_back(target, source, link).is_done
    mirror(target, source, topic, link)
    assert compare(target, source, topic).identical


def test_after_a_flow_of_a_file_the_way_back_starts_with_a_file_and_without_one(
    source: str, target: str, tmp_path: Path
) -> None:
    for topic in ("topics-file-a", "topics-file-x"):
        create_topic(source, topic)
        append_records(source, topic, 5)
    files = {flow: tmp_path / flow for flow in ("P->Q", "Q->P", "Q->P-2")}
    for flow, file in files.items():
        alias = "P-2" if flow.endswith("-2") else "P"
        file.write_text(
            f"clusters = {alias}, Q\n{alias}.bootstrap.servers = {source}\nQ.bootstrap.servers = {target}\n{flow}.enabled = true\n"
            "topics = topics-file-.*\ntopics.exclude = .*-x\nemit.heartbeats.enabled = false\n"
            "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
        )
    there, back, _ = (link_of_file(file, flow)[0].link_topics for flow, file in files.items())
    mirror(source, target, there, "P-Q")
    failed_over(target, "P-Q")
    append_records(target, "topics-file-a", 3, first=50)
    for link in ("topics_by_hand", "Q-P-2", "Q-P"):
        clusters = ["--source", target, "--target", source, "--link", link]
        told = CliRunner().invoke(app, ["failback", *clusters], env={"COLUMNS": "500"})
        options = re.search(
            r"Start its mirror with these clusters, --link \S+ and (--topics .*)\n(?:Or .* a file .* its flow (\S+) is)?",
            told.stdout,
        )
        assert told.exit_code == 0 and options, told.output
        start = [*clusters, *shlex.split(options[1])] if "-" not in link else ["--config", str(files[options[2]])]
        planned = CliRunner().invoke(app, ["plan", *start], env={"COLUMNS": "500"})
        assert planned.exit_code == 0 and "topics-file-a" in planned.output, planned.output
        assert "topics-file-x" not in planned.output
        if link != "Q-P":
            with both(target, source) as (_, copy):
                assert copy.run(lambda: repair(copy, link, forgets=True)).exit_code == 0
    mirror(target, source, back, "Q-P")
    assert compare(target, source, "topics-file-a").identical


def test_the_failback_that_a_refused_mirror_prints_works_as_it_stands(source: str, target: str) -> None:
    """The link back has another name than the forward link, and other links have copied other topics."""
    for topic in ("topics-typed", "topics-others", "topics-translated"):
        create_topic(source, topic)
        append_records(source, topic, 5)
        mirror(source, target, topic, f"{topic}-there", is_translated=topic == "topics-translated")
        append_records(source, topic, 2, first=5)
        failed_over(target, f"{topic}-there")
        append_records(target, topic, 4, first=100)
    with both(target, source) as (origin, copy):
        with pytest.raises(TargetDivergedError) as refused:
            origin.run(prepare_link, origin, copy, "topics-typed", "way-back")
        with pytest.raises(OptionError) as ambiguous:
            origin.run(failback, origin, copy, "way-back")
        with pytest.raises(TargetDivergedError) as translated:
            origin.run(prepare_link, origin, copy, "topics-translated", "way-back")
    for text, topics in (
        (text_of(refused.value), ["topics-typed"]),
        (text_of(ambiguous.value), ["topics-others", "topics-typed"]),
    ):
        commands = re.findall(r"tolerant-kafka (failback .*?)(?:: it compares|; for|$)", text)
        assert [shown(command) for command in commands] == topics, text
    assert "Leave the topic out: link topics-translated-there had translated" in text_of(translated.value)
    assert "run tolerant-kafka failback" not in text_of(translated.value)


def test_each_failback_that_is_printed_where_one_must_be_chosen_works_as_it_stands(source: str, target: str) -> None:
    """One of the links has come home in part."""
    name = "topics-many"
    for letter in "abm":
        create_topic(source, f"{name}-{letter}")
        append_records(source, f"{name}-{letter}", 5)
    for topics, link in ((f"{name}-(a|b)", f"{name}.there"), (f"{name}-m", f"{name}.other")):
        mirror(source, target, topics, link)
        promoted(source, target, link)
    assert failed_back(target, source, f"{name}.back", topics=f"{name}-a").is_done
    mirror(target, source, f"{name}-a", f"{name}.back")
    promoted(target, source, f"{name}.back")
    with pytest.raises(OptionError) as ambiguous:
        failed_back(target, source, f"{name}.next")
    commands = re.findall(r"tolerant-kafka (failback .*?)(?:; for|$)", text_of(ambiguous.value))
    assert [command[-1] for command in commands] == ["m", "b"]
    for command in commands:
        told = CliRunner().invoke(app, [*shlex.split(command), "--dry-run"], env={"COLUMNS": "500"})
        assert told.exit_code == 0, told.output


def shown(command: str) -> str:
    """The topic that a failback as typed refuses to give up."""
    told = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "500"})
    (topic,) = set(re.findall(r"2 committed records in all: (\S+)-0 from", told.output))
    assert told.exit_code == 3
    return str(topic)


def test_a_promoted_link_of_another_source_keeps_its_name_and_its_control(source: str, target: str) -> None:
    create_topic(source, "topics-mine")
    append_records(source, "topics-mine", 5)
    mirror(source, target, "topics-mine", "same-name")
    promoted(source, target, "same-name")
    other = LinkControl(
        source_cluster_id="of-a-third-cluster",
        topics=LinkTopics.of("topics-theirs").to_json(),
        producer_ids=(7,),
        is_promotion_begun=True,
        is_fenced=True,
    )
    told = "Link same-name has copied from cluster of-a-third-cluster, and this source is cluster .*: check --source; to copy from this one, give"
    with both(target, source) as (origin, copy):
        origin.run(update_control, copy, "same-name", lambda _: other)
        for topics in (None, "topics-mine"):
            with pytest.raises(OptionError, match=told):
                origin.run(failback, origin, copy, "same-name", topics)
        with pytest.raises(OptionError, match=told):
            origin.run(take_over, origin, copy, "same-name", LinkTopics.of("topics-mine"), "A")
        assert origin.run(read_control, copy, "same-name") == other
        assert origin.run(failback, origin, copy, "another-name").is_done


def test_a_link_back_whose_control_was_deleted_after_its_promotion_is_not_met_by_its_former_fence(
    source: str, target: str
) -> None:
    topic = there = "topics-fenced"
    back = f"{topic}.back"
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, there)
    promoted(source, target, there)
    assert failed_back(target, source, back, topics=topic).is_done
    mirror(target, source, topic, back)
    promoted(target, source, back)
    assert failed_back(source, target, there, topics=topic).is_done
    mirror(source, target, topic, there)
    promoted(source, target, there)
    append_records(target, topic, 5, first=5)
    delete_topic(source, CONTROL_TOPIC)
    assert failed_back(target, source, back, topics=topic).is_done
    mirror(target, source, topic, back)
    compare(target, source, topic)


def test_a_promotion_is_after_the_last_move_to_its_source_though_its_link_was_started_before_that(
    source: str, target: str
) -> None:
    """The links of a chain run all the time, and the machine that promotes the second may have the slower clock."""
    topic, ahead_ms = "topics-chain", int(time.time() * 1000) + 3_600_000
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, "chain-b")
    upstream = moved(topic, ahead_ms, source_cluster_id="another-cluster")
    with both(source, target) as (origin, copy):
        origin.run(update_control, origin, "chain-a", lambda _: upstream)
        promoted(source, target, "chain-b")
        control = copy.run(read_control, copy, "chain-b")
        source_id = origin.run(origin.cluster_id)
    assert control.known_moves[topic] == ahead_ms < control.primary_since[topic].since_ms
    assert at_home({"chain-a": upstream}, {"chain-b": control}, source_id) == {topic: "chain-b"}


def test_a_running_mirror_learns_of_the_moves_to_its_source(source: str, target: str) -> None:
    """So does a link after it, and a failover, for which the source is not there to ask."""
    topic, since_ms = "topics-live", int(time.time() * 1000) + 3_600_000  # by a clock that is fast
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, "live")
    settings = MirrorSettings(*({"bootstrap.servers": each} for each in (source, target)), topic, "live", refresh_s=0)
    planner = RangesPlanner(MirrorJob(settings))
    with ExitStack() as stack:
        origin, copy = stack.enter_context(both(source, target))
        stack.callback(planner.stop)

        def known() -> Any:
            planner.look()
            return copy.run(read_control, copy, "live")

        before = known()
        assert before.known_moves == {} and known().written_ms == before.written_ms
        origin.run(update_control, origin, "live-up", lambda _: moved(topic, since_ms, source_cluster_id="elsewhere"))
        assert known() == replace(before, known_moves={topic: since_ms})
        failed_over(target, "live")
        over = copy.run(read_control, copy, "live")
        assert over.primary_since[topic].since_ms == since_ms + 1
        origin.run(update_control, origin, "live-up", lambda _: moved(topic, since_ms + 2))
        assert known() == over
