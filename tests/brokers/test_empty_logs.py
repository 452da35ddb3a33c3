"""A link has begun logs of which nothing is copied yet: what the source loses then is a loss, too (M7)."""

from __future__ import annotations

import pytest

from support.mirror_link import (
    append_records,
    compare,
    consume,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    losses,
    make_anew,
    mirror,
    topics_of,
    values,
)
from support.services import wait_for
from tolerant_client.errors import DataLossError, SourceTruncatedError
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy

GO_ON = MirrorPolicy(on_loss=LossPolicy.CONTINUE)

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def test_what_retention_takes_before_the_first_record_is_copied_is_a_loss(source: str, target: str) -> None:
    topic = "empty-overtaken"
    create_topic(source, topic)
    mirror(source, target, topic, link=topic)
    append_records(source, topic, 100)
    delete_records(source, topic, 50)
    with pytest.raises(DataLossError, match="no longer has offsets 0 to 50"):
        mirror(source, target, topic, link=topic)
    assert ends(target, topic) == [0]
    mirror(source, target, topic, link=topic, policy=GO_ON)
    assert losses(target, topic) == [(0, 0, 50, "retention")]
    assert ends(target, topic) == [100]
    assert min(values(target, topic, 100)) == 50


def test_a_source_made_anew_before_the_first_record_is_copied_is_a_loss(source: str, target: str) -> None:
    topic = "empty-anew"
    create_topic(source, topic)
    mirror(source, target, topic, link=topic)
    append_records(source, topic, 100)
    make_anew(source, topic)
    append_records(source, topic, 30, first=700)
    with pytest.raises(SourceTruncatedError, match="deleted and created again"):
        mirror(source, target, topic, link=topic)
    mirror(source, target, topic, link=topic, policy=GO_ON)
    mirror(source, target, topic, link=topic)  # from now on that topic is the one
    assert losses(target, topic) == [(0, 0, 0, "recreation")]
    assert ends(target, topic) == [30]
    assert compare(source, target, topic).identical


def test_a_log_that_nobody_has_begun_starts_where_the_source_does(source: str, target: str) -> None:
    topic = "empty-never"
    create_topic(source, topic)
    append_records(source, topic, 100)
    delete_records(source, topic, 50)
    mirror(source, target, topic, link=topic)
    assert (ends(target, topic), losses(target, topic)) == ([100], [])
    assert min(values(target, topic, 100)) == 50


def test_a_target_topic_that_was_deleted_begins_anew_at_the_offset_where_it_began(source: str, target: str) -> None:
    topic = "empty-filled-anew"
    create_topic(source, topic)
    append_records(source, topic, 100)
    delete_records(source, topic, 50)
    mirror(source, target, topic, link=topic)
    delete_topic(target, topic)
    wait_for(lambda: topic not in topics_of(target))
    for _ in range(2):  # the second start finds what the first one wrote down
        mirror(source, target, topic, link=topic)
        assert (ends(target, topic), losses(target, topic)) == ([100], [])
        assert consume(target, topic, 1, 100)[0][0][0] == 50
        assert compare(source, target, topic).identical


def test_translated_offsets_have_a_position_before_the_first_record(source: str, target: str) -> None:
    topic = "empty-translated"
    create_topic(source, topic)
    mirror(source, target, topic, link=topic, is_translated=True)
    append_records(source, topic, 100)
    delete_records(source, topic, 50)
    with pytest.raises(DataLossError, match="no longer has offsets 0 to 50"):
        mirror(source, target, topic, link=topic, is_translated=True)
    for _ in range(2):  # what the ledger says is told once
        mirror(source, target, topic, link=topic, policy=GO_ON, is_translated=True)
    mirror(source, target, topic, link=topic, is_translated=True)
    assert losses(target, topic) == [(0, 0, 50, "retention")]
    assert ends(target, topic) == [51]  # and a marker
