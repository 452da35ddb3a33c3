"""Failover without brokers: what is fenced without the source, and what it says about the copy."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.structs import TopicPartition

from support.promotion_world import CLICKS, ORDERS, P, Q, World, ends
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.errors import OffsetMapError
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.life import continued, promotion, promotion_steps, promotion_view
from tolerant_client.mirror.life import damage as damage_module
from tolerant_client.mirror.life import failover as failover_module
from tolerant_client.mirror.life import owners as owners_module
from tolerant_client.mirror.life.damage import SeenLog
from tolerant_client.mirror.life.promotion_report import PromotedPartition, PromotionReport, failover_warnings
from tolerant_client.mirror.state import link_topics
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.control_record import Controls, decode_control, encode_control
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics


def test_a_failover_says_what_nobody_can_know() -> None:
    known = PromotedPartition("orders", 0, 10, None, 1_700_000_000_123)
    assert "2023-11-14 22:13:20.123 UTC" in failover_warnings([known], "--config f")[0]
    assert "tolerant-kafka status --config f says how much" in failover_warnings([known], "--config f")[0]
    assert "newest" not in failover_warnings([replace(known, last_copied_ms=None)], "--config f")[0]


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_failover_says_of_when_the_newest_record_is_that_was_copied(
    world: World, monkeypatch: pytest.MonkeyPatch, is_translated: bool
) -> None:
    """With translated offsets the offset map says where it is on the target."""
    row = MapRow(RowKey(P, 0), "orders", ("", ""), 10, 0, (Run(8, 70, 2),))
    world.is_translated, asked = is_translated, dict[TopicPartition, int]()

    async def read_headers(_: Any, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        asked.update(offsets)
        return {p: SimpleNamespace(is_control=False, max_timestamp=1_700_000_000_123) for p in offsets}

    monkeypatch.setattr(promotion_view, "read_headers", read_headers)
    monkeypatch.setattr(promotion_view, "last_rows", AsyncMock(return_value={P: row}))
    assert "the newest record that was copied is of 2023-11-14 22:13:20.123 UTC" in world.failover().warnings[0]
    assert asked == {P: 71 if is_translated else 9}


def test_of_a_translated_link_what_its_map_does_not_name_is_fenced_and_not_called_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of others that --topics matches; but the link may just be copying its first records there."""
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    both, world.on_target = LinkTopics.of("orders|clicks"), ("orders", "clicks")
    world.is_translated, world.partitions, world.mapped = True, (CLICKS, P), MappedTopics(frozenset({P}))
    for is_known in (False, True):
        world.control = LinkControl(topics=both.to_json(), map_id="m") if is_known else LinkControl()
        report = world.failover(topics=both)
        assert report.is_done and world.done[-3] == "promoted" and world.done[-2].startswith("fence 0,0")
        assert world.control.copied_until.keys() == {P}
        assert [text.partition(" on the target: not link")[0] for text in report.not_promoted] == ["clicks-0"]
    away = map_partition("dr", Q)
    world.control, world.mapped = LinkControl(), MappedTopics(frozenset({P}), {away: "it has no leader"})
    assert not world.failover(topics=both).not_promoted, "a part of the map that is unread may name it"


def test_what_carries_records_of_the_link_is_fenced_though_nobody_has_written_it_down(world: World) -> None:
    world.carried = Carried(frozenset((Q,)), {TopicPartition("clicks", 0): "it has no leader on the target"})
    report = world.failover()
    assert world.done == ["promoted", "fence 0,1", "fenced"]
    assert [(p.topic, p.partition) for p in report.partitions] == [P, Q]
    assert report.warnings[0].startswith("orders-1 carry records of the link, though")
    assert "whether clicks-0 carry records of the link is unknown" in report.warnings[1]


def test_a_failover_names_what_the_target_has_lost_of_what_was_copied(world: World) -> None:
    clicks, empty = TopicPartition("clicks", 0), TopicPartition("empty", 0)  # of the last one the map has no record
    copies = {clicks: MapRow(RowKey(clicks, 0), "clicks", ("", ""), 4, 0, (Run(0, 70, 4),))}
    world.is_translated, world.mapped = True, MappedTopics(frozenset({P, clicks, empty}), copies=copies)
    world.contradicted = {
        P: OffsetMapError("Target topic orders was deleted and created again after orders-0 was copied")
    }
    report = world.failover()
    assert report.is_done and report.exit_code == 3 and not report.blockers
    assert [text.split(" was")[0].split(" is")[0] for text in report.damaged] == ["topic clicks", "Target topic orders"]


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_failover_without_a_control_says_that_nothing_was_checked(world: World, is_translated: bool) -> None:
    assert not any("could not be checked" in text for text in world.failover(is_dry_run=True).warnings)
    world.control, world.is_translated = LinkControl(topics=ORDERS.to_json()), is_translated
    told = [
        text for text in world.failover().warnings if "could not be checked: the control on the target says" in text
    ]
    assert len(told) == (0 if is_translated else 1), "a map says itself what was copied"
    assert all("if it had other topics than those above, they are neither fenced nor named" in text for text in told)


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_failover_of_a_link_that_was_only_prepared_says_that_it_has_copied_nothing(
    world: World, is_dry_run: bool
) -> None:
    world.control = LinkControl(topics=ORDERS.to_json(), source_cluster_id="source", adopted={P: 10})
    told = [
        text for text in world.failover(is_dry_run=is_dry_run).warnings if "of link dr" in text or "could not" in text
    ]
    assert told == [
        "no mirror of link dr has started since failback or take-over prepared it, so it has copied nothing to the target"
    ]


def test_a_failover_tells_no_record_of_others_as_copied_and_names_a_partition_that_is_gone(world: World) -> None:
    gone = TopicPartition("orders", 3)
    world.control = replace(world.control, begun={P: TopicIds(), gone: TopicIds("a", "b")}, copied={gone: 20})
    world.seen = {P: SeenLog(0, 10, 8, foreign=99)}
    report = world.failover()
    assert report.is_done and report.exit_code == 3 and [p.copied_until for p in report.partitions] == [8]
    assert report.damaged == (
        "others have written to orders-0 on the target from offset 8 on (producer id 99): nothing shows that this is the source's",
        "orders-3 is not on the target any more, and link dr has copied it, up to offset 20",
    )


def test_a_failover_of_a_translated_link_names_each_copied_partition_that_is_gone(world: World) -> None:
    """Somebody created the topic again with fewer partitions: nothing but the map has the others."""
    run = (Run(0, 70, 4),)
    copies = {p: MapRow(RowKey(p, 0), "orders", ("", ""), 4, 0, run) for p in (P, Q)}
    adopted = TopicPartition("orders", 2)
    copies[adopted] = MapRow(RowKey(adopted, 0), "orders", ("", ""), 4, 0, (Run(4, 4, 0),))
    world.is_translated, world.mapped = True, MappedTopics(frozenset(copies), copies=copies)
    report = world.failover()
    assert report.damaged == ("orders-1 is not on the target any more, and link dr has copied it, up to offset 4",)
    assert report.is_done and report.exit_code == 3 and [p.partition for p in report.partitions] == [0]


@pytest.mark.parametrize(("copied", "damaged"), [("orders", 0), ("gone", 0), ("orders-gone", 1)])
def test_a_failover_names_a_topic_of_identical_offsets_that_the_target_has_no_more(
    world: World, copied: str, damaged: int
) -> None:
    topics = LinkTopics.of("orders.*").to_json()
    world.control = LinkControl(producer_ids=(7,), topics=topics, copied={TopicPartition(copied, 0): 10})
    report = world.failover(topics=LinkTopics.of("orders.*"))
    assert len(report.damaged) == damaged and report.exit_code == 3 * damaged


def test_what_the_mirror_has_begun_by_the_time_it_is_stopped_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote that down between our first look and our own record of the control."""
    first = world.control = replace(world.control, begun={P: TopicIds()})
    world.partitions = (P, Q)
    assert world.failover().is_done and "fence" in world.done

    async def read_before(*_: Any) -> LinkControl:
        return first

    for module in (failover_module, promotion_steps):
        monkeypatch.setattr(module, "read_control", read_before)
    world.control = replace(first, begun={P: TopicIds(), Q: TopicIds()})
    world.done.clear()
    assert world.failover().exit_code == 0 and world.done == ["promoted", "fence 0,1", "fenced"]


def test_a_failover_fences_what_has_a_leader_and_later_the_rest_alone(world: World) -> None:
    """Applications write to what was fenced meanwhile: a second fence would take their records for copies."""
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    report = world.failover()
    assert world.done == ["promoted", "fence", "fenced but some"]
    assert (report.is_done, report.is_begun, report.exit_code) == (False, True, 3) and "orders-1" in report.blockers[0]
    assert world.control.copied_until == {P: 10}
    assert [(p.topic, p.partition) for p in report.partitions] == [P]
    assert not world.control.is_fenced and decode_control(encode_control(world.control, 1)) == world.control
    world.done.clear()
    world.leaderless = ()
    report = world.failover()
    assert report.is_done and report.exit_code == 0 and world.done == ["fenced but some", "fence 1", "fenced"]
    assert world.control.is_fenced and not world.control.unfenced and world.control.copied_until == {P: 10, Q: 10}


@pytest.mark.parametrize(
    ("command", "adopted", "until", "said"),
    [
        ("failover", 10, 10, ""),
        ("failover", 8, 8, "ends at offset 10, and .* was to continue it at 8: others have written there since"),
        ("failover", 12, 10, "was to continue it at 12: it has lost records"),
        ("promote", 10, 10, ""),
        ("promote", 8, 8, "was to continue it at 8: others have written there since"),
    ],
)
def test_what_a_link_that_was_prepared_is_to_continue_delays_no_other_and_is_not_fenced_unseen(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, adopted: int, until: int, said: str
) -> None:
    before = PromotionReport("promote", "dr", True, False, ())  # of what was fenced before
    monkeypatch.setattr(promotion, "promoted_before", AsyncMock(return_value=before))
    world.ends, world.partitions, world.leaderless = ends(10, 10, 10), (P, Q), (Q,)
    world.control = LinkControl(topics=ORDERS.to_json(), source_cluster_id="A", adopted={P: 10, Q: adopted})
    report = world.failover()
    assert world.done == ["promoted", "fence", "fenced but some"] and not report.damaged
    assert report.exit_code == 3 and "orders-1" in report.blockers[0] and world.control.copied_until == {P: 10}
    world.done.clear()
    again = world.failover()
    assert not world.done and not again.is_done and not again.damaged, "it has no leader yet"
    world.leaderless = ()
    report = getattr(world, command)()
    assert report.is_done and "fence 1" in world.done and world.control.copied_until == {P: 10, Q: until}
    assert len(report.damaged) == bool(said) and re.search(said, "".join(report.damaged))


def test_what_had_no_leader_when_it_was_to_be_checked_is_left_though_it_has_one_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, world.on_target = LinkTopics.of("orders|clicks"), ("orders", "clicks")
    world.ends, world.partitions = ends(10, None, None), (P, CLICKS)
    world.control = LinkControl(topics=both.to_json(), source_cluster_id="A", adopted={P: 10, CLICKS: 10})
    led = AsyncMock(return_value=LedOffsets({P: 10}, {CLICKS: "it has no leader"}))
    monkeypatch.setattr(continued, "list_led_offsets", led)
    report = world.failover(topics=both)
    assert report.exit_code == 3 and world.done[1] == "fence" and world.control.unfenced == {CLICKS}


@pytest.mark.parametrize("command", ["failover", "promote"])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_what_was_made_anew_before_a_failover_is_finished_is_no_copy_and_is_not_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, is_prepared: bool
) -> None:
    """Whether the link had run, or was only prepared, and with which command it is finished: consumers begin at offset 0 there."""
    monkeypatch.setattr(
        promotion, "promoted_before", AsyncMock(return_value=PromotionReport("promote", "dr", True, False, ()))
    )
    both, ids = LinkTopics.of("orders|clicks"), {P: TopicIds("", "o"), CLICKS: TopicIds("", "c")}
    how = {"adopted": {P: 10, CLICKS: 8}, "adopted_ids": ids} if is_prepared else {"producer_ids": (7,), "begun": ids}
    world.control = LinkControl(topics=both.to_json(), source_cluster_id="A", **how)
    world.ends, world.partitions, world.leaderless, world.on_target = (
        ends(10, 10, 10),
        (P, CLICKS),
        (CLICKS,),
        ("orders", "clicks"),
    )
    now = {"orders": TopicIds("", "o"), "clicks": TopicIds("", "c")}
    for module in (continued, damage_module, owners_module, promotion_steps):
        monkeypatch.setattr(module, "read_ids", AsyncMock(return_value=now))
    assert world.failover(topics=both).exit_code == 3 and world.control.unfenced == {CLICKS}
    now["clicks"], world.leaderless = TopicIds("", "anew"), ()
    moved = AsyncMock(return_value=GroupsReport((), 0, (), ()))
    monkeypatch.setattr(promotion, "move_groups", moved)
    world.done.clear()
    report = getattr(world, command)(topics=both)
    assert report.is_done and report.exit_code == 3 and not any(step.startswith("fence ") for step in world.done)
    assert world.control.copied_until == {P: 10, CLICKS: 0} and not report.not_promoted
    (text,) = report.damaged
    assert text.startswith(
        "topic clicks was deleted and created again on the target: nothing is left there of what link dr"
    )
    assert command == "failover" or moved.call_args.kwargs["limits"] == {P: 10, CLICKS: 0}


def test_a_promotion_moves_no_group_into_what_was_made_anew_since_a_failover_had_fenced_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = PromotionReport("promote", "dr", True, False, (), damaged=("what the report names already",))
    monkeypatch.setattr(promotion, "promoted_before", AsyncMock(return_value=former))
    both, ids = LinkTopics.of("orders|clicks"), {P: TopicIds("", "o"), CLICKS: TopicIds("", "c")}
    world.control = LinkControl(topics=both.to_json(), source_cluster_id="A", producer_ids=(7,), begun=ids)
    world.ends, world.partitions, world.on_target = ends(10, 10, 10), (P, CLICKS), ("orders", "clicks")
    world.leaderless, now = (CLICKS,), {"orders": TopicIds("", "o"), "clicks": TopicIds("", "c")}
    for module in (continued, damage_module, owners_module, promotion_steps):
        monkeypatch.setattr(module, "read_ids", AsyncMock(return_value=now))
    assert world.failover(topics=both).exit_code == 3
    now["orders"], world.leaderless = TopicIds("", "anew"), ()
    moved = AsyncMock(return_value=GroupsReport((), 0, (), ()))
    monkeypatch.setattr(promotion, "move_groups", moved)
    report = world.promote(topics=both)
    (text,) = report.damaged
    assert report.is_done and report.exit_code == 3 and text.startswith("topic orders was deleted and created again")
    assert moved.call_args.kwargs["limits"] == {P: 0} and world.control.copied_until == {P: 10, CLICKS: 10}


@pytest.mark.parametrize("ids", [{}, {CLICKS: TopicIds("", "c")}])
def test_a_failover_names_what_a_link_was_to_continue_and_the_target_has_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, ids: dict[TopicPartition, TopicIds]
) -> None:
    """And does not wait for its leader."""
    both, asked = LinkTopics.of("orders|clicks"), AsyncMock(return_value=LedOffsets({P: 10}, {}))
    world.control = LinkControl(
        topics=both.to_json(), source_cluster_id="A", adopted={P: 10, CLICKS: 8}, adopted_ids=ids
    )
    monkeypatch.setattr(continued, "list_led_offsets", asked)
    report = world.failover(topics=both)
    assert report.is_done and report.exit_code == 3 and asked.call_args.args[1].keys() == {P}
    (text,) = report.damaged
    assert text.startswith("topic clicks is not on the target any more, and link dr was to continue it (no loss if")


def test_a_promotion_that_finishes_a_failover_names_what_others_have_written_since_as_the_failover_would(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        promotion, "promoted_before", AsyncMock(return_value=PromotionReport("promote", "dr", True, False, ()))
    )
    world.partitions, world.leaderless = (P, Q), (Q,)
    world.control = replace(world.control, begun={P: TopicIds(), Q: TopicIds()}, copied={Q: 7})
    world.failover()
    world.leaderless, world.seen = (), {Q: SeenLog(0, 10, 7, foreign=99)}
    for is_dry_run in (True, False):
        report = world.promote(is_dry_run=is_dry_run)
        assert report.exit_code == 3 and [p.copied_until for p in report.partitions] == [7]
        assert report.damaged[0].startswith("others have written to orders-1 on the target from offset 7 on")
    assert world.control.is_fenced and world.control.copied_until == {P: 10, Q: 7}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_failover_moves_a_topic_once_none_of_it_is_left_and_each_topic_once(world: World, is_deleted: bool) -> None:
    """Its way home may begin while the rest waits for a leader; what was deleted meanwhile was never moved."""
    clicks = TopicPartition("clicks", 0)
    world.ends, world.leaderless, world.on_target = ends(10, None, None), (Q,), ("orders", "clicks")
    world.control, world.partitions = replace(world.control, topics=LinkTopics().to_json()), (P, Q, clicks)
    world.failover(topics=None)
    first = world.control.primary_since
    assert first.keys() == {"clicks"} and world.control.target_cluster_id == "B"
    world.leaderless, world.on_target = (), ("clicks",) if is_deleted else ("orders", "clicks")
    world.partitions = (clicks,) if is_deleted else (P, Q, clicks)
    world.failover(topics=None)
    moved = world.control.primary_since
    assert moved.keys() == {"clicks"} if is_deleted else moved["orders"].since_ms > moved["clicks"].since_ms
    assert world.control.is_fenced and moved["clicks"] == first["clicks"]
    assert decode_control(encode_control(world.control, 1)) == world.control


def test_a_promotion_that_begins_forgets_when_it_has_moved_its_topics_before(world: World) -> None:
    """Else a way home since then would seem to have undone it, if it stops, or the target takes no record of that size."""
    former = {"orders": MovedTopic(1), "clicks": MovedTopic(2), "others": MovedTopic(3)}
    world.control = replace(world.control, primary_since=former, topics=LinkTopics.of("orders|clicks").to_json())
    world.ends = ends(10, None, None)
    world.failover(topics=None)
    assert world.control.primary_since.keys() == {"orders", "others"}, "clicks is not there"
    assert world.control.primary_since["orders"].since_ms > 3 == world.control.primary_since["others"].since_ms


def test_a_failover_moves_what_was_created_again_too_and_no_heartbeats(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applications write there from now on."""
    beats = TopicPartition("heartbeats", 0)
    world.control = replace(world.control, topics=LinkTopics().to_json(), begun={P: TopicIds("s", "t")})
    world.ends, world.partitions, world.on_target = ends(10, None, None), (P, beats), ("orders", "heartbeats")
    monkeypatch.setattr(promotion_steps, "read_ids", AsyncMock(return_value={"orders": TopicIds("", "anew")}))
    monkeypatch.setattr(promotion_steps, "is_heartbeats", lambda _, name: name == "heartbeats")
    world.failover(topics=None)
    assert {name: of.topic_id for name, of in world.control.primary_since.items()} == {"orders": "anew"}


def test_a_failover_that_another_version_began_is_finished_with_what_that_has_moved(world: World) -> None:
    clicks = TopicPartition("clicks", 0)
    world.ends, world.leaderless, world.on_target = ends(10, None, None), (Q,), ("orders", "clicks")
    world.control, world.partitions = replace(world.control, topics=LinkTopics().to_json()), (P, Q, clicks)
    world.failover(topics=None)
    world.control = replace(world.control, primary_since={}, target_cluster_id=None)
    world.leaderless = ()
    world.failover(topics=None)
    assert world.control.primary_since.keys() == {"orders", "clicks"}


def test_what_a_failover_had_no_room_to_say_keeps_its_moment_when_the_rest_is_finished(world: World) -> None:
    clicks = TopicPartition("clicks", 0)
    world.ends, world.leaderless, world.on_target = ends(10, None, None), (Q,), ("orders", "clicks")
    world.control, world.partitions = replace(world.control, topics=LinkTopics().to_json()), (P, Q, clicks)
    world.failover(topics=None)
    begun = dict.fromkeys((P, Q, clicks), TopicIds())
    world.control = replace(world.control, primary_since={}, copied_until={}, begun=begun, unsaid_since_ms=5)
    world.leaderless = ()
    world.failover(topics=None)
    assert world.control.moved_ms("clicks") == 5 < world.control.primary_since["orders"].since_ms


def test_a_failover_whose_partition_without_a_leader_was_deleted_is_finished(world: World) -> None:
    world.ends, world.control = (
        ends(10, None, None),
        replace(world.control, is_promotion_begun=True, unfenced=frozenset({Q})),
    )
    assert world.failover().is_done and world.done == ["fenced but some", "fenced"]


def test_a_rehearsed_failover_names_what_has_no_leader_and_writes_nothing(world: World) -> None:
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    report = world.failover(is_dry_run=True)
    assert (report.is_done, report.is_begun, report.exit_code) == (False, False, 3) and world.done == []


def test_a_failover_fences_what_has_a_map_that_can_be_read_and_later_the_rest_alone(world: World) -> None:
    away = map_partition("dr", Q)
    world.ends, world.partitions, world.is_translated = ends(10, None, None), (P, Q), True
    world.leaderless, world.mapped = (away,), MappedTopics(frozenset({P}), {away: "it has no leader"})
    report = world.failover()
    assert world.done == ["promoted", "fence", "fenced but some"] and report.exit_code == 3
    assert "orders-1 cannot be fenced" in report.blockers[0] and f"{away.topic}-{away.partition}" in report.blockers[1]
    assert decode_control(encode_control(world.control, 1)) == world.control
    world.done.clear()
    world.leaderless, world.mapped = (), MappedTopics()
    late = next(p for n in range(100) if map_partition("dr", p := TopicPartition("shown-now", n)) == away)
    world.partitions = (P, Q, late)
    assert world.failover().exit_code == 0 and world.done == ["fenced but some", f"fence 1,{late.partition}", "fenced"]


def test_topics_that_an_unread_part_of_the_map_alone_may_name_are_told_as_unknown(world: World) -> None:
    world.ends, world.is_translated = ends(10, None, None), True
    world.mapped = MappedTopics(frozenset({P}), {map_partition("dr", Q): "it has no leader"})
    assert map_partition("dr", P) != map_partition("dr", Q)
    report = world.failover()
    assert (report.is_done, report.exit_code) == (False, 3) and not world.control.is_fenced
    assert "topics that the clusters hide from us is unknown" in report.blockers[0]


def test_a_failover_fences_and_moves_nothing(world: World) -> None:
    world.ends, world.deleted = ends(10, None, None), ["the target no longer has offsets 0 to 10"]
    assert world.failover(is_dry_run=True).warnings[0] == world.deleted[0]
    report = world.failover()
    assert report.exit_code == 0 and report.warnings[0] == world.deleted[0]
    assert report.is_done and world.done == ["promoted", "fence", "fenced"]
    assert "groups of broker 3" in report.warnings[-1]


def test_a_failover_whose_groups_cannot_be_listed_is_one_all_the_same(world: World) -> None:
    world.ends, world.unlisted = ends(10, None, None), KeyError(16)
    report = world.failover()
    assert report.is_done and world.control.is_fenced and "KeyError" in report.warnings[-1]
