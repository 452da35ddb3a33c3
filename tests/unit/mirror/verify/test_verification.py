"""What verify decides to compare, without brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import NOT_ON_SOURCE
from tolerant_client.mirror.state.promoted_copies import PromotedCopies
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify import verification
from tolerant_client.mirror.verify.verification import Verification


def test_only_what_a_failover_without_a_control_fenced_was_copied_with_translated_offsets() -> None:
    """It was given expressions that match topics of others, too, whose offsets are identical."""
    ours, theirs = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    nowhere: Any = None
    found_by = Verification(nowhere, nowhere, ".*")
    found_by._pending = {ours, theirs}
    found = LinkControl(
        is_promotion_begun=True, is_fenced=True, topics=LinkTopics.of(".*").to_json(), copied_until={theirs: 5}
    )
    found_by._leave_out_translated("x", {p for p in found_by._pending if found.writes(p.topic)})
    assert found_by._pending == {ours} and found_by._errors.keys() == {theirs}


def test_a_topic_of_the_target_alone_that_no_link_from_the_source_has_begun_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied, mine = TopicPartition("orders", 0), TopicPartition("mine", 0)
    knows = LinkControl(
        source_cluster_id="A",
        topics=LinkTopics.of(".*").to_json(),
        producer_ids=(0,),
        begun={copied: TopicIds("s", "t")},
    )
    nowhere: Any = None
    for links, is_own in (
        ({"A-B": knows}, True),
        ({}, False),  # nobody says whether it was copied
        ({"A-B": replace(knows, begun={})}, False),
        ({"A-B": knows, "old": replace(knows, begun={mine: TopicIds("s", "t")})}, False),
        ({"A-B": knows, "untold": replace(knows, topics=None, begun={})}, True),
        ({"C-B": replace(knows, source_cluster_id="C")}, False),
    ):
        found_by = Verification(nowhere, nowhere, ".*")
        found_by._partitions, found_by._errors = [mine, copied], {mine: NOT_ON_SOURCE}
        found_by._ids = {"source": {"cluster": "A", "topics": {}}}
        told = asyncio.run(found_by._leave_out_own(links))
        assert told == (
            ["mine: on the target alone, and no link from this source has begun it: left out"] if is_own else []
        )
        assert (found_by._partitions, found_by._errors) == (
            ([copied], {}) if is_own else ([mine, copied], {mine: NOT_ON_SOURCE})
        )


def test_what_a_translated_link_matches_and_is_refused_or_never_copied_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its expression says what it may copy: not the promoted copy of an identical link, nor what it had not when it was promoted."""
    copied, theirs = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    live = LinkControl(source_cluster_id="A", topics=LinkTopics.of(".*").to_json())
    over = replace(live, is_promotion_begun=True, is_fenced=True, copied_until={copied: 5})
    nowhere: Any = None
    monkeypatch.setattr(verification, "has_map", AsyncMock(return_value=True))
    unnamed = AsyncMock(return_value={"x": {theirs}})  # its control was deleted
    for control, copies, left_out in (
        (live, ({}, {}), {copied, theirs}),
        (live, ({"clicks": "l2"}, {}), {copied}),
        (live, ({}, {"clicks": "nobody can tell"}), {copied, theirs}),
        (over, ({}, {}), {copied}),
        (over, ({"orders": "l2"}, {}), {copied}),  # it had copied it before
        (replace(over, copied_until={}), ({}, {}), {copied, theirs}),  # version 0.1 does not say it
        (over, ({"clicks": "l2"}, {}), {copied, theirs}),
    ):
        is_last = (control, copies) == (over, ({"clicks": "l2"}, {}))
        monkeypatch.setattr(verification, "unnamed_copies", unnamed if is_last else AsyncMock(return_value={}))
        monkeypatch.setattr(verification, "read_controls", AsyncMock(return_value=Controls({"A-B": control})))
        monkeypatch.setattr(verification, "read_control", AsyncMock(return_value=control))
        monkeypatch.setattr(verification, "promoted_copies", AsyncMock(return_value=PromotedCopies(*copies)))
        found_by = Verification(nowhere, nowhere, ".*")
        found_by._pending = {copied, theirs}
        found_by._ids = {side: {"cluster": side, "topics": {}} for side in ("source", "target")}
        found_by._ids["source"]["cluster"] = "A"
        asyncio.run(found_by._made_anew())
        assert (found_by._errors.get(theirs) == "nobody can tell") is bool(copies[1])
        assert found_by._errors.keys() == left_out and found_by._pending == {copied, theirs} - left_out
