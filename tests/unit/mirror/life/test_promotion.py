"""Promotion without brokers: what is in its way, what of a link it takes, and that nothing fails once the link is fenced."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition
from msgspec import structs

from spark_integration.cli.exits import exit_code
from support.promotion_world import CLICKS, MAP_IS_LOST, ORDERS, FakeTarget, P, Q, World, ends
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError, TolerantClientError, UnsupportedSourceError
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.life import left_behind, owners, promotion, promotion_steps, promotion_view
from tolerant_client.mirror.life.comparison import Comparison
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.promotion_blockers import Blocker, blockers, lacking_blockers, news
from tolerant_client.mirror.life.promotion_report import PromotionReport, unmade_texts
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state import link_topics, map_rows
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.lacking import Lacking, sort_lacking
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError, TopicIds
from tolerant_client.mirror.state.link_topics import differing_topics, require_whole
from tolerant_client.mirror.state.map_rows import MappedTopics, mapped_topics
from tolerant_client.mirror.state.map_topic import has_map, map_topic
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics


def test_nothing_is_in_the_way_when_all_is_copied_and_stands_still() -> None:
    now = ends(10, 10, 10)
    assert blockers([now], {P: now}, LinkControl(), Comparison({})) == []
    assert blockers([ends(0, 0, 0)], {P: ends(0, 0, 0)}) == []


def test_copies_that_nothing_shows_to_be_some_are_in_the_way_though_both_logs_end_at_the_same_offset() -> None:
    """The control was lost after a failover, and each side has as many records of its own."""
    (found,) = blockers([ends(10, 10, 10)], {P: ends(10, 10, 10)})
    assert "whether orders-0 is a copy of the source's log is unknown" in found.text and found.lasts


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        (ends(8, 10, 10), ends(8, 10, 10), "2 offsets are not copied yet: orders-0 2"),
        (ends(9, 10, 10), ends(9, 10, 10), "1 offset is not copied yet: orders-0 1"),
        (ends(10, 10, 12), ends(10, 10, 12), "transactions are open on the source"),
        (ends(10, 10, 10), ends(9, 9, 9), "producers still write to the source: orders-0"),
    ],
)
def test_what_is_in_the_way_of_a_promotion_is_named(now: PartitionLag, before: PartitionLag, text: str) -> None:
    (found,) = blockers([now], {P: before}, compared=Comparison({}))
    assert text in found.text and not found.lasts


UNTOLD = PartitionLag(P, 10, untold="it has no leader on the source")


def test_what_the_source_does_not_tell_is_in_the_way_of_a_promotion_that_may_wait_for_it() -> None:
    for before in (ends(10, 10, 10), UNTOLD):
        (found,) = blockers([UNTOLD], {P: before}, compared=Comparison({}), of_target="--target b:1 --link dr")
        assert not found.lasts and found.text == (
            "how much of orders-0 is not copied is unknown: it has no leader on the source; run this again once the source tells it, or,"
            " if its broker is gone for good, tolerant-kafka failover --target b:1 --link dr, which does not ask the source"
        )
    assert blockers([ends(10, 10, 10)], {P: UNTOLD}, compared=Comparison({})) == [], (
        "nobody wrote to it meanwhile, as far as is known"
    )


def test_a_promotion_waits_for_what_the_source_does_not_tell_and_reports_the_rest(world: World) -> None:
    world.ends = UNTOLD
    report = world.promote()
    assert not report.is_done and report.exit_code == 3 and "it has no leader on the source" in report.blockers[0]
    assert [(p.copied_until, p.lag) for p in report.partitions] == [(10, None)] and report.unknown_left == ()
    assert world.control.is_promotion_begun is False
    world.later = [UNTOLD, UNTOLD, ends(10, 10, 10)]
    report = world.promote(deadline_s=60.0)
    assert report.is_done and report.exit_code == 0 and "it has no leader on the source" in world.told[0]


def test_a_source_whose_controls_cannot_be_read_holds_up_no_promotion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = AsyncMock(side_effect=ClusterUnreachableError("the broker of its control topic is lost"))
    monkeypatch.setattr(promotion_steps, "within_bound", asked)
    assert world.promote().is_done and asked.called


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_the_source_does_not_tell_once_a_promotion_has_begun_is_said_to_be_unknown(
    world: World, is_begun: bool
) -> None:
    world.control = replace(world.control, is_promotion_begun=is_begun)
    world.later = [UNTOLD] if is_begun else [ends(10, 10, 10), ends(10, 10, 10), UNTOLD]
    report = world.promote()
    assert report.is_done and report.exit_code == 3
    assert report.unknown_left == (
        "what orders-0 left behind on the source is unknown: it has no leader on the source",
    )


def test_what_is_no_copy_is_in_the_way_though_nothing_is_left_to_copy() -> None:
    now = ends(12, 10, 10)
    assert blockers([now], {P: now}, compared=Comparison({P: "a foreign batch"})) == [
        Blocker("a foreign batch", lasts=True)
    ]
    (found,) = blockers([now], {P: now}, compared=Comparison({}, (P,)))
    assert "could not be compared" in found.text and "orders-0" in found.text and not found.lasts
    (found,) = blockers([now], {P: now}, compared=Comparison({}, refused={P: "Fetch of orders-0 is not allowed"}))
    assert found.lasts and found.text == "orders-0 could not be compared: Fetch of orders-0 is not allowed"


def test_no_cause_is_dropped_in_silence_however_many_there_are() -> None:
    many = [TopicPartition("many", n) for n in range(7)]
    reasons = {p: f"reason {p.partition}" for p in many}
    untold = [PartitionLag(p, 10, untold=why) for p, why in reasons.items()]
    for lags, compared in (
        ([], Comparison({}, refused=reasons)),
        ([], Comparison({}, opened=reasons)),
        ([], Comparison({}, emptied=reasons)),
        (untold, Comparison({})),
    ):
        found = blockers(lags, {}, compared=compared)
        assert (
            len(found) == 6 and "many-5 and 1 more partition" in found[-1].text and "2 more reasons" in found[-1].text
        )
        assert {blocker.lasts for blocker in found} == {bool(compared.refused)}
        told: set[str] = set()
        assert len(news(found[:-1], told)) == 5 and len(news(found, told)) == 1 and not news(found, told)


def test_a_log_whose_difference_is_in_the_ledger_is_not_in_the_way() -> None:
    now = ends(12, 10, 10)
    assert blockers([now], {P: now}, compared=Comparison({})) == []


def test_a_difference_is_told_instead_of_its_lag_and_many_are_not_told_one_by_one() -> None:
    many = [ends(8, 10, 10, n) for n in range(9)]
    found = [b.text for b in blockers(many, {}, compared=Comparison({e.partition: f"{e} differs" for e in many}))]
    assert found[0] == "orders-0 differs" and len(found) == 6 and "4 more partitions differ; all" in found[-1]


def test_what_an_operator_has_paused_is_named_with_the_command_that_resumes_it() -> None:
    now = [ends(8, 10, 10), ends(7, 10, 10, 1)]
    held, waiting = blockers(
        now,
        {},
        LinkControl(paused_partitions=frozenset({TopicPartition("orders", 1)})),
        Comparison({}),
        of_target="--link dr",
    )
    assert held.text.endswith(
        "paused them: orders-1 3; resume them: tolerant-kafka resume --link dr --topic orders --partition 1"
    )
    assert held.text.startswith("3 ") and held.lasts
    assert "2 offsets are not copied yet" in waiting.text and not waiting.lasts
    (limited,) = blockers(now[:1], {}, LinkControl(bytes_per_s=50), Comparison({}))
    assert (
        limited.text
        == f"{waiting.text}; the link is limited to 50 bytes a second (tolerant-kafka throttle changes that)"
    )
    idle = ends(10, 10, 10)
    assert blockers([idle], {P: idle}, LinkControl(frozenset({""})), Comparison({})) == []


def test_of_a_source_that_ends_before_what_was_copied_nobody_knows_what_a_promotion_leaves_behind(world: World) -> None:
    """Its topic was created again, and the loss was accepted: its records are others than those of the target."""
    world.ends = ends(50, 5, 5)
    report = world.promote()
    assert report.is_done and [p.lag for p in report.partitions] == [None]
    (said,) = report.unknown_left
    assert said.startswith("what orders-0 left behind on the source is unknown: the source's log ends before what was")
    assert report.exit_code == 3, "an unknown number is not 0"


@pytest.mark.parametrize("command", ["promote", "failover"])
def test_a_link_that_was_prepared_only_is_not_promoted_where_its_logs_have_other_offsets(
    command: str, world: World
) -> None:
    """A link with translated offsets took over; no map says so before its mirror has started."""
    world.control = LinkControl(topics=ORDERS.to_json(), source_cluster_id="A", adopted={P: 8})
    with pytest.raises(
        OptionError, match=r"continue orders-0 at offset 8 of the source, and the target's log ends at 10"
    ):
        getattr(world, command)()
    assert not world.done
    world.control, world.leaderless = replace(world.control, adopted={P: 10}), (P,)
    report = getattr(world, command)()
    assert not world.done and report.exit_code == 3 and "orders-0 cannot be fenced" in report.blockers[0]
    world.leaderless = ()
    assert getattr(world, command)().is_done


def test_while_a_promotion_is_blocked_nothing_says_how_many_records_are_not_copied(world: World) -> None:
    world.ends = ends(10, 15, 15)
    (part,) = world.promote().partitions
    assert (part.lag, part.left_records, part.left_unread) == (5, None, None)


def test_what_was_left_behind_is_counted_once_the_promotion_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that dies while it is read leaves no promotion half done."""
    counted: list[bool] = []

    async def count(_: Any, ranges: Any) -> dict[TopicPartition, Committed]:
        counted.append(world.control.is_fenced)
        return {p: Committed(0, until) for p, (_, until) in ranges.items()}

    monkeypatch.setattr(left_behind, "count_committed", count)
    world.ends = ends(10, 10, 10)
    assert world.promote().is_done and counted == [True]


def test_a_target_that_is_ahead_has_no_lag() -> None:
    assert (ends(12, 10, 10).lag_offsets, ends(12, 10, 10).ahead) == (0, 2)
    assert (ends(12, None, None).lag_offsets, ends(12, None, None).ahead) == (None, 0)


def whole(control: LinkControl, given: LinkTopics | None, source: FakeTarget | None, target: FakeTarget) -> LinkTopics:
    cluster = cast(Cluster, source), cast(Cluster, target)
    found: LinkTopics = target.net.run(require_whole, *cluster, control, "dr", given)
    return found


RENAMED = structs.replace(LinkTopics.of("orders|clicks"), names=TopicNames(DefaultReplicationPolicy(), "A"))


@pytest.mark.parametrize(
    ("given", "differ"),
    [
        (LinkTopics.of("orders|clicks"), []),
        (LinkTopics.of("(clicks|orders)"), []),
        (LinkTopics.of("orders"), ["clicks"]),
        (LinkTopics.of("orders|clicks|new"), ["new"]),
        (LinkTopics.of(".*"), ["local", "new"]),
        (RENAMED, ["clicks", "orders"]),
    ],
)
def test_two_descriptions_of_topics_are_the_same_where_they_take_the_same(given: LinkTopics, differ: list[str]) -> None:
    written = LinkTopics.of("orders|clicks")
    assert differing_topics(written, given, ["orders", "clicks", "new"], ["orders", "clicks", "local"]) == differ


def test_a_link_is_promoted_as_a_whole_or_not_at_all() -> None:
    control = LinkControl(topics=LinkTopics.of("orders|clicks").to_json())
    target = FakeTarget("orders", "clicks")
    assert whole(control, None, None, target) == whole(control, LinkTopics.of("clicks|orders"), target, target)
    with pytest.raises(OptionError, match="differ in clicks. A link is promoted as a whole: leave --topics out"):
        whole(control, ORDERS, None, target)
    with pytest.raises(OptionError, match="differ in new"):
        whole(control, LinkTopics.of("orders|clicks|new"), FakeTarget("orders", "clicks", "new"), target)


def test_who_may_not_read_what_a_link_has_written_down_is_not_told_that_it_has_not() -> None:
    with pytest.raises(
        OptionError, match="copies is unknown, since we may not read topic tolerant-mirror-control"
    ) as caught:
        whole(LinkControl(is_hidden=True), None, None, FakeTarget("orders"))
    assert "check --link" not in str(caught.value)


def test_topics_that_are_given_count_where_nothing_was_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    live = {"other": LinkControl(topics=LinkTopics.of("cl.*").to_json())}

    async def controls(_: Any) -> Controls:
        return Controls(live, ())

    monkeypatch.setattr(link_topics, "read_controls", controls)
    target = FakeTarget("orders", "clicks")
    assert whole(LinkControl(), ORDERS, None, target) == ORDERS
    with pytest.raises(OptionError, match="is --link other meant"):
        whole(LinkControl(), LinkTopics.of(".*"), None, target)
    with pytest.raises(OptionError, match="check --target and --link, or give --topics"):
        whole(LinkControl(), None, None, target)


HELD = LinkControl(frozenset({"orders"}), topics=ORDERS.to_json())


def test_groups_are_rehearsed_before_the_fence_and_moved_behind_it(world: World) -> None:
    report = world.promote()
    assert report.is_done and report.exit_code == 0
    assert world.done == ["rehearsal", "promoted", "fence", "groups", "fenced"]


@pytest.mark.parametrize(
    "error", [UnsupportedSourceError("0.10.2"), KeyError(16), Errors.GroupAuthorizationFailedError("no")]
)
def test_groups_that_cannot_be_moved_at_all_do_not_leave_a_promotion_half_done(world: World, error: Exception) -> None:
    world.groups = [error, error]
    report = world.promote()
    assert report.is_done and world.control.is_fenced and report.exit_code == 3
    assert report.groups is not None
    (left,) = report.groups.left
    assert left.is_failure and "--reset-offsets" in left.why
    assert "all groups" in world.told[0]


def test_a_cluster_that_is_away_while_groups_are_rehearsed_leaves_the_link_alone(world: World) -> None:
    world.groups = [ClusterUnreachableError("away")]
    with pytest.raises(ClusterUnreachableError):
        world.promote()
    assert world.done == ["rehearsal"] and not world.control.is_promotion_begun


def test_a_promotion_whose_groups_were_cut_short_goes_on(world: World) -> None:
    world.groups = [GroupsReport((), 0, (), ()), ClusterUnreachableError("away")]
    with pytest.raises(TolerantClientError, match="Error: away; the promotion has begun and is not finished") as caught:
        world.promote()
    assert exit_code(caught.value) == 1, "2 says that nothing was written"
    assert world.control.is_promotion_begun and not world.control.is_fenced
    world.ends, world.compared = ends(11, 12, 12), None  # a fence lies there, and somebody has gone on writing
    report = world.promote()
    assert report.is_done and report.exit_code == 3 and report.partitions[0].lag == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"compared": Comparison({P: "orders-0 has a foreign record batch"})}, "a foreign record batch"),
        ({"lacking": (TopicPartition("orders", 1),)}, "orders-1: not on the target yet; let the mirror run"),
        ({"ends": ends(8, 10, 10), "control": HELD}, "tolerant-kafka resume --target b:9092 --link dr"),
    ],
)
def test_what_is_in_the_way_is_found_before_anything_is_written(
    world: World, changes: dict[str, Any], text: str
) -> None:
    for name, value in changes.items():
        setattr(world, name, value)
    report = world.promote()
    assert not report.is_done and report.exit_code == 3 and text in report.blockers[0]
    assert world.done == ["rehearsal", "rehearsal"] and not world.control.is_promotion_begun


def test_a_file_that_has_fewer_topics_than_its_link_is_no_reason_to_refuse(world: World) -> None:
    """Nobody copies `clicks` any more: it is not waited for; what is left behind is told."""
    lost = TopicPartition("clicks", 0)
    world.control = LinkControl(
        producer_ids=(7,),
        topics=LinkTopics.of("orders|clicks").to_json(),
        begun={P: TopicIds(), lost: TopicIds()},
    )
    world.partitions, world.on_target, world.later = (P, lost), ("orders", "clicks"), []
    with pytest.raises(OptionError, match="differ in clicks.* leave --topics out"):
        world.promote(topics=ORDERS)
    report = world.promote(topics=ORDERS, of_file=True)
    assert report.is_done and "fence 0,0" in world.done
    assert "link dr has copied more than the file names (any more): clicks. That is the link's" in report.warnings[0]


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_topic_that_the_source_alone_has_since_another_link_may_copy_it_is_named(
    world: World, is_dry_run: bool
) -> None:
    """Nobody makes it on the target: its records stay on the source, and who goes over must know."""
    lacking = TopicPartition("clicks", 0)
    world.control = LinkControl(
        producer_ids=(7,), topics=LinkTopics.of("orders|clicks").to_json(), begun={P: TopicIds()}
    )
    world.lacking, world.others = (lacking,), Others({"clicks": "Link x may copy into topic clicks"})
    report = world.promote(is_dry_run=is_dry_run)
    assert report.is_done is not is_dry_run and report.exit_code == 3 and not report.warnings
    assert report.not_promoted == ("clicks-0: only on the source, so not promoted: Link x may copy into topic clicks",)
    world.control = replace(world.control, is_promotion_begun=True, is_fenced=False)
    assert world.promote(is_dry_run=is_dry_run).not_promoted == report.not_promoted
    assert unmade_texts({lacking: "why"}, [TopicPartition("clicks", 1)], ()) != []
    assert unmade_texts({lacking: "why"}, [lacking], ()) == [], "its mirror was free to make it meanwhile"


def with_former_file(world: World) -> World:
    """`clicks` was taken out of the file, and the mirror still runs with the former one."""
    world.control = LinkControl(
        producer_ids=(7,),
        topics=LinkTopics.of("orders|clicks").to_json(),
        begun={P: TopicIds(), CLICKS: TopicIds()},
    )
    world.partitions, world.on_target = (P, CLICKS), ("orders", "clicks")
    return world


def test_a_topic_that_both_sides_write_to_by_themselves_holds_up_no_promotion(world: World) -> None:
    """`.*` matches it, and the link was refused: it is named, and the rest is promoted."""
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of(".*").to_json(), begun={P: TopicIds()})
    world.carried = Carried(foreign=frozenset((CLICKS,)))
    world.partitions, world.on_target = (P, CLICKS), ("orders", "clicks")
    world.compared = Comparison({CLICKS: "clicks-0 has a foreign record batch"})
    report = world.promote()
    assert report.is_done and report.exit_code == 3 and report.blockers == ()
    assert [text for text in report.not_promoted if "clicks-0" in text]


def test_what_neither_the_file_names_nor_the_target_has_is_no_part_of_a_promotion(world: World) -> None:
    world.control = LinkControl(
        producer_ids=(7,), topics=LinkTopics.of("orders|clicks").to_json(), begun={P: TopicIds()}
    )
    world.lacking, world.others = (CLICKS,), Others({"clicks": "Link x may copy into topic clicks"})
    report = world.promote(topics=ORDERS, of_file=True)
    assert report.is_done and report.exit_code == 0 and report.not_promoted == ()


@pytest.mark.parametrize(("writer", "is_waited_for"), [(7, True), (99, False)])
def test_what_the_file_has_no_more_is_waited_for_where_the_mirror_still_copies_it(
    world: World, monkeypatch: pytest.MonkeyPatch, writer: int, is_waited_for: bool
) -> None:
    """It was not started again with the new file; what others write there by now is no copy."""
    with_former_file(world)
    positions = [100, 200, 200, 1000]

    async def look(source: Any, __: Any, ___: str, wanted: Any, *_: Any, **____: Any) -> list[PartitionLag]:
        copied = positions.pop(0) if len(positions) > 1 else positions[0]
        return [PartitionLag(p, 10, 10, 10) if p == P else PartitionLag(p, copied, 1000, 1000) for p in wanted]

    async def headers(_: Any, asked: Any) -> dict[TopicPartition, Any]:
        header = SimpleNamespace(producer_id=writer, is_control=True)
        return dict.fromkeys(asked, header)

    monkeypatch.setattr(promotion, "look", look)
    monkeypatch.setattr(promotion_view, "read_headers", headers)
    report = world.promote(topics=ORDERS, of_file=True, is_dry_run=True)
    assert bool(report.blockers) is is_waited_for
    if is_waited_for:
        assert report.blockers[0] == "800 offsets are not copied yet: clicks-0 800"
        assert report.blockers[1].startswith("a mirror still copies clicks-0, which the file does not name (any more):")
    positions[:] = [100, 200, 200, 1000]
    report = world.promote(topics=ORDERS, of_file=True, deadline_s=60.0)
    assert report.is_done and bool(world.told) is is_waited_for


def test_what_the_file_has_no_more_is_compared_and_is_not_in_the_way(world: World) -> None:
    with_former_file(world).compared = Comparison({CLICKS: "clicks-0 has a foreign record batch"})
    report = world.promote(topics=ORDERS, of_file=True)
    assert report.is_done and report.exit_code == 3 and report.damaged == ("clicks-0 has a foreign record batch",)
    world.control, world.compared = (
        replace(world.control, is_promotion_begun=False, is_fenced=False),
        Comparison({}, (CLICKS,)),
    )
    (text,) = world.promote(topics=ORDERS, of_file=True, is_dry_run=True).damaged
    assert text.startswith("clicks-0 could not be compared")


def test_what_the_mirror_has_made_again_while_a_promotion_waited_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deleted the target topic: the ids of the first look are those of the former one."""
    world.control = replace(world.control, begun={P: TopicIds("s", "old")})
    ids = {"orders": TopicIds("", "old")}

    async def read_ids(*_: Any) -> dict[str, TopicIds]:
        return dict(ids)

    async def find_held(*_: Any) -> list[Any]:
        ids["orders"] = TopicIds("", "new")
        world.control = replace(world.control, begun={P: TopicIds("s", "new")})
        return []

    for module in (promotion_steps, owners):
        monkeypatch.setattr(module, "read_ids", read_ids)
    monkeypatch.setattr(promotion, "find_held", find_held)
    assert world.promote().exit_code == 0 and "fence" in world.done


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_topic_that_the_target_alone_has_and_the_link_has_not_begun_is_no_part_of_its_promotion(
    world: World, is_translated: bool
) -> None:
    """But a process of the link with translated offsets may be about to begin it, if the source had it: that one is fenced."""
    mine = TopicPartition("mine", 0)
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of(".*").to_json(), begun={P: TopicIds()})
    if is_translated:
        world.control = replace(world.control, map_id="m", begun={})
    world.mapped, world.is_translated = MappedTopics(frozenset({P} if is_translated else ())), is_translated
    world.carried, world.on_target = Carried(foreign=frozenset((mine,))), ("orders", "mine")
    for is_dry_run in (True, False):
        report = world.promote(is_dry_run=is_dry_run)
        assert report.exit_code == 0 and not report.warnings and {p.topic for p in report.partitions} == {"orders"}
    assert report.is_done and world.control.copied_until.keys() == {P}
    assert world.done.count("fence 0,0" if is_translated else "fence") == 1


def test_a_topic_that_the_target_alone_has_and_of_which_nothing_tells_whether_the_link_began_it_is_told_once(
    world: World,
) -> None:
    mine = TopicPartition("mine", 0)
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of(".*").to_json())  # version 0.1 did not write it
    world.carried, world.on_target = Carried(foreign=frozenset((mine,))), ("orders", "mine")
    report = world.promote()
    assert report.is_done and not report.warnings and world.done.count("fence") == 1
    (text,) = report.not_promoted
    assert text.startswith("mine-0 on the target: not link dr's, and nothing was written there")


def test_what_the_source_has_deleted_is_fenced_by_a_promotion_too(world: World) -> None:
    gone = TopicPartition("gone", 0)
    world.carried = Carried(frozenset((gone,)))
    report = world.promote()
    assert report.is_done and "fence 0,0" in world.done
    assert [(p.topic, p.copied_until, p.lag) for p in report.partitions] == [("orders", 10, 0), ("gone", 10, None)]
    assert report.warnings[0].startswith("gone-0 carry records of the link, though")


@pytest.mark.parametrize("is_translated", [False, True])
@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_topic_of_the_link_that_the_source_has_deleted_has_its_row_with_an_unknown_lag(
    world: World, is_translated: bool, is_dry_run: bool
) -> None:
    gone = TopicPartition("gone", 0)
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of("orders|gone").to_json())
    world.carried, world.is_translated, world.on_target = Carried(frozenset((gone,))), is_translated, ("orders", "gone")
    report = world.promote(is_dry_run=is_dry_run)
    assert report.is_done is not is_dry_run and ("fence 0,0" in world.done) is not is_dry_run
    assert [(p.topic, p.copied_until, p.lag) for p in report.partitions] == [("orders", 10, 0), ("gone", 10, None)]
    (warning,) = report.warnings
    assert (
        warning.startswith("the source has no such topic, or partition of it (any more): gone-0; ")
        and "unknown" in warning
    )


def test_a_dry_run_looks_twice_and_answers(world: World) -> None:
    world.ends = ends(8, 10, 10)
    report = world.promote(is_dry_run=True, deadline_s=60.0)
    assert (world.looks, report.exit_code, world.told) == (2, 3, [])
    assert report.blockers == ("2 offsets are not copied yet: orders-0 2",)
    why = Waiting("orders-0: the record at offset 8 is too large; raise it", 0, is_blocked=True)
    away = {TopicPartition("orders", 1): why._replace(reason="not behind")}
    world.mirrors = [replace(run, waiting={P: why, **away}) for run in world.mirrors or ()]
    text = "orders-0 since 1970-01-01 00:00:00 UTC: the record at offset 8 is too large; raise it"
    assert world.promote(is_dry_run=True).blockers == (*report.blockers, text), "what status says, too"
    world.mirrors = []
    text = "no mirror of link dr has been seen in the last hour: start it"
    assert world.promote(is_dry_run=True).blockers == (*report.blockers, text)


def test_a_link_whose_target_has_none_of_its_partitions_is_waited_for_no_longer_than_was_said(world: World) -> None:
    world.partitions, world.lacking = (), (P,)
    report = world.promote(is_dry_run=True, deadline_s=60.0)
    assert (world.looks, report.exit_code) == (2, 3)
    assert report.blockers == ("orders-0: not on the target yet; let the mirror run until it has created them",)
    again, unmade = lacking_blockers(sort_lacking([P, Q], LinkControl(copied={Q: 9})))
    assert again.text == "orders-1: not on the target any more; start the mirror again, which creates and fills them"
    assert (unmade.text,) == report.blockers and not (again.lasts or unmade.lasts)
    gone, _ = lacking_blockers(Lacking([Q], [], [P]))
    assert gone.text.startswith("orders-1: not on the target any more") and "nothing fills it again" in gone.text
    assert gone.lasts, "no mirror creates it again"


@pytest.mark.parametrize(
    "changes", [{"compared": Comparison({P: "orders-0 differs"})}, {"ends": ends(8, 10, 10), "control": HELD}]
)
def test_what_no_waiting_cures_is_not_waited_for(world: World, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(world, name, value)
    assert world.promote(deadline_s=60.0).exit_code == 3
    assert world.looks == 2 and len(world.told) == 1


def test_each_cause_for_which_a_promotion_waits_is_told_once(world: World) -> None:
    """A producer that goes on writing: offsets that are not copied yet come and go, and so does its growth."""
    written = [ends(8, 10, 10), ends(11, 12, 12), ends(12, 12, 12), ends(13, 14, 14), ends(14, 17, 17)] * 3
    world.later = [*written, ends(17, 17, 17), ends(17, 17, 17)]
    assert world.promote(deadline_s=60.0).is_done
    assert world.told == [
        "waiting: 2 offsets are not copied yet: orders-0 2",
        "waiting: producers still write to the source: orders-0; have them pause (clients with standby= stay open)",
    ]


def test_a_topic_that_is_written_to_later_is_a_cause_of_its_own() -> None:
    told: set[str] = set()

    def writing(*topics: str) -> list[str]:
        lags = [PartitionLag(TopicPartition(topic, 0), 5, 5, 5) for topic in topics]
        before = {e.partition: replace(e, source_end=4) for e in lags}
        return news(blockers(lags, before, compared=Comparison({})), told)

    assert [len(writing(*topics)) for topics in (["a"], ["a"], ["b"], ["a", "b"], ["b", "c"])] == [1, 0, 1, 0, 1]


def test_a_promotion_that_was_begun_leaves_out_what_no_mirror_can_make_any_more(world: World) -> None:
    world.control = replace(world.control, is_promotion_begun=True)
    world.lacking = (TopicPartition("orders", 1),)
    report = world.promote()
    assert report.is_done and report.warnings[0] == "orders-1: only on the source, so not promoted"


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_promotion_whose_map_was_lost_after_it_was_begun_goes_on_and_tells_it(world: World, is_dry_run: bool) -> None:
    world.control = replace(world.control, is_promotion_begun=True)
    world.is_translated, world.lost, world.ends = True, "the map was deleted", PartitionLag(P, None, 90, 90, 0)
    report = world.promote(groups=None, is_dry_run=is_dry_run)
    assert report.is_done is not is_dry_run and report.exit_code == 3 and report.damaged == (MAP_IS_LOST,)


def test_what_a_map_names_is_read_where_it_has_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    away = TopicPartition(map_topic("dr"), 3)

    async def leaders(_: Any, wanted: Any, *, patience_ms: int = 0) -> LedOffsets:
        return LedOffsets({p: p.partition for p in wanted if p != away}, {p: "no leader" for p in wanted if p == away})

    async def rows(_: Any, number: int, *__: int) -> Any:
        assert number != away.partition
        if number == 5:
            raise ClusterUnreachableError("its leader went away")
        key = RowKey(TopicPartition(f"topic-{number}", 0), 0)
        yield key, None if number == 6 else MapRow(key, f"topic-{number}", ("", ""), 0, -1, (Run(0, 0, 0),))

    monkeypatch.setattr(map_rows, "list_led_offsets", leaders)
    monkeypatch.setattr(map_rows, "_rows", rows)

    async def partitions(topics: list[str]) -> dict[str, list[int]]:
        return {topic: [0] for topic in topics}

    net = NetworkSelector()
    target = SimpleNamespace(
        net=net, partitions=partitions, manager=KafkaConnectionManager(net, bootstrap_servers="b:9092")
    )
    found = net.run(mapped_topics, target, "dr", LinkControl())
    net.close()
    assert found.partitions == {TopicPartition(f"topic-{n}", 0) for n in (0, 1, 2, 4, 7)}
    assert found.unread == {away: "no leader", away._replace(partition=5): "its leader went away"}


def test_a_map_that_a_former_link_of_this_name_has_left_makes_no_link_translated() -> None:
    target = FakeTarget(map_topic("dr"))
    identical, translated = LinkControl(producer_ids=(7,)), LinkControl(topics=ORDERS.to_json())
    assert target.net.run(has_map, target, "dr", translated)
    assert not target.net.run(has_map, target, "dr", identical), "it would be promoted without a fence"
    translated.require_kind("dr", is_translated=True)
    identical.require_kind("dr", is_translated=False)
    with pytest.raises(LinkKindError, match="a name of its own .--link, in a file another alias"):
        identical.require_kind("dr", is_translated=True)


def test_what_a_promotion_leaves_behind_is_said_beside_its_exit_code(world: World) -> None:
    """One that was interrupted goes on whatever is lost; heartbeats never end."""
    world.control, world.ends = replace(world.control, is_promotion_begun=True), ends(11, 13, 13)
    would, left = world.promote(is_dry_run=True), world.promote()
    unknown = "not copied, and how many committed records they have is unknown"
    assert would.left_behind.startswith(f"2 offsets of orders-0 would be {unknown}")
    assert left.left_behind.startswith(f"3 offsets of orders-0 were {unknown}")
    assert (would.exit_code, left.exit_code) == (3, 3)
    beats = replace(left, partitions=tuple(replace(p, is_heartbeats=True) for p in left.partitions))
    assert beats.left_behind == "" and beats.exit_code == 0


def test_groups_that_are_left_by_the_rules_are_no_failure() -> None:
    def code(*left: Left) -> int:
        return PromotionReport("promote", "dr", False, True, (), groups=GroupsReport((), 0, (), left)).exit_code

    assert code(Left("group g", "members", "in use")) == 0
    assert code(Left("group g", "error", "no")) == 3
