"""Which topics a failback without any takes: those of the move that it undoes, never those of an earlier one or of another source."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import (
    append_records,
    both,
    compare,
    create_topic,
    delete_topic,
    failed_over,
    mirror,
    promoted,
    topics_of,
)
from tolerant_client.errors import OptionError, TargetDivergedError, text_of
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.life.takeover import take_over
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics


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
