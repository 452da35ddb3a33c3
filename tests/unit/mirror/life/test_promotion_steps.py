"""Promotion and failover without brokers: what both refuse, leave, and never leave half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from spark_integration.cli.exits import exit_code
from support.promotion_world import CLICKS, MAP_IS_LOST, ORDERS, FakeTarget, Net, P, Q, World, ends
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import (
    ClusterUnreachableError,
    LinkPromotedError,
    OptionError,
    ProducerFencedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.life import left_behind, promotion, promotion_steps, promotion_view
from tolerant_client.mirror.life.comparison import Comparison
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.owners import Evidence
from tolerant_client.mirror.life.promotion_blockers import not_fenced
from tolerant_client.mirror.life.promotion_groups import STAY
from tolerant_client.mirror.life.promotion_report import PromotedPartition, PromotionReport
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state import link_topics
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.control_topic import half_done
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.topic_filter import LinkTopics


def test_where_the_copies_end_is_left_out_if_the_target_takes_no_record_of_that_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything is fenced by then: the promotion must end."""
    written: list[LinkControl] = []

    async def update(_: object, __: str, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
        control = change(LinkControl(is_promotion_begun=True))
        if control.copied_until:
            raise Errors.MessageSizeTooLargeError("too large")
        written.append(control)
        return control

    monkeypatch.setattr(promotion_steps, "update_control", update)
    monkeypatch.setattr(promotion_steps, "read_controls", AsyncMock(return_value=Controls({})))
    monkeypatch.setattr(promotion_steps, "read_ids", AsyncMock(return_value={}))
    partition = PromotedPartition("orders", 0, 9, 0, None)
    report = PromotionReport("promote", "dr", False, True, (partition,))
    of = PromotedLink("dr", cast(Cluster, FakeTarget("orders")), ORDERS, is_translated=False, lost_map=None)
    asyncio.run(promotion_steps.write_end(of, LinkControl(is_promotion_begun=True), report, 7))
    assert [(c.is_fenced, c.copied_until, [*c.primary_since]) for c in written] == [(True, {}, ["orders"])]


def test_a_control_that_may_not_be_written_is_no_promotion_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> LinkControl:
        raise Errors.TopicAuthorizationFailedError("appending to tolerant-mirror-control-0 is not allowed to us")

    monkeypatch.setattr(promotion_steps, "update_control", refuse)
    of = PromotedLink("dr", cast(Cluster, None), ORDERS, is_translated=False, lost_map=None)
    with pytest.raises(OptionError, match="not allowed to us. This command has written and fenced nothing$"):
        with half_done("the promotion"):
            asyncio.run(promotion_steps.fence_own(of, LinkControl(), [P], 7))


def test_what_was_found_without_a_control_is_kept_as_far_as_the_target_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its producer ids, at least: verify finds the fence by them."""
    for most in (2, 1, 0):
        written: list[LinkControl] = []

        async def update(
            _: object,
            __: str,
            change: Callable[[LinkControl], LinkControl],
            most: int = most,
            to: list[LinkControl] = written,
        ) -> LinkControl:
            control = change(LinkControl(is_promotion_begun=True, topics=ORDERS.to_json()))
            if len(control.copied_until) + len(control.begun) > most:
                raise Errors.MessageSizeTooLargeError("too large")
            to.append(control)
            return control

        monkeypatch.setattr(promotion_steps, "update_control", update)
        monkeypatch.setattr(promotion_steps, "read_controls", AsyncMock(return_value=Controls({})))
        monkeypatch.setattr(promotion_steps, "read_ids", AsyncMock(return_value={}))
        report = PromotionReport("failover", "dr", False, True, (PromotedPartition("orders", 0, 9, 0, None),))
        evidence = Evidence(Carried(frozenset((P,))), producer_ids=(5,))
        target = cast(Cluster, FakeTarget("orders"))
        of = PromotedLink("dr", target, ORDERS, is_translated=False, lost_map=None, evidence=evidence)
        asyncio.run(promotion_steps.write_end(of, LinkControl(is_promotion_begun=True), report, 7))
        (control,) = written
        assert control.is_fenced and control.producer_ids == (5, 7)
        said = len(control.copied_until), len(control.begun), len(control.primary_since)
        assert said == (most == 2, most > 0, most > 0) and (control.unsaid_since_ms is None) == (most > 0)


ANOTHERS = Others({"clicks": "Link x copies into topic clicks"}, taken=frozenset(("clicks",)))


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_what_another_link_has_is_neither_fenced_nor_waited_for_nor_shown_but_named(
    world: World, is_dry_run: bool
) -> None:
    """Its mirror was refused that topic, and copies the others; a dry run says the same."""
    theirs = TopicPartition("clicks", 0)
    world.control = LinkControl(
        producer_ids=(7,), topics=LinkTopics.of("orders|clicks").to_json(), begun={P: TopicIds()}
    )
    world.partitions, world.lacking, world.others = (P, theirs), (TopicPartition("clicks", 1),), ANOTHERS
    for action, given in ((world.promote, {}), (world.failover, {"topics": None})):
        report = action(is_dry_run=is_dry_run, **given)
        assert report.is_done is not is_dry_run and report.exit_code == 3 and not report.blockers
        assert [(p.topic, p.partition) for p in report.partitions] == [P]
        (text,) = report.not_promoted
        assert text.startswith("clicks-0 on the target: not link dr's, and nothing was written there: Link x copies")
        assert ("fence" in world.done) is not is_dry_run and not any("," in done for done in world.done)
        world.done.clear()
        world.control = replace(world.control, is_promotion_begun=False, is_fenced=False)


def test_a_file_that_has_more_topics_than_its_link_is_in_the_way_until_a_mirror_was_started_with_it(
    world: World,
) -> None:
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of("clicks").to_json())
    report = world.promote(topics=LinkTopics.of("orders|clicks"), of_file=True)
    assert not report.is_done and report.blockers == (
        "the file names orders, and no mirror of link dr was started with that; start the mirror with it, or take it out of"
        " the file",
    )
    report = world.failover(topics=LinkTopics.of("orders|clicks"), of_file=True)
    assert report.is_done and report.exit_code == 3
    assert report.not_promoted == ("the file names orders, and no mirror of link dr was started with that",)


@pytest.mark.parametrize("topics", [None, LinkTopics.of("orders")])
def test_a_mirror_that_runs_without_a_control_is_not_promoted_also_with_a_file_and_failed_over_with_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, topics: LinkTopics | None
) -> None:
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.control, world.forgotten = LinkControl(), "A mirror of link dr runs, and its control says nothing"
    world.carried, world.ids = Carried(frozenset((P,))), (5,)
    with pytest.raises(OptionError, match="its control says nothing"):
        world.promote(topics=topics, of_file=topics is not None, is_dry_run=True)
    if topics is None:
        with pytest.raises(OptionError, match="its control says nothing"):
            world.failover(topics=None)
        return
    assert any("says nothing (any more) of what it copied" in text for text in world.failover(of_file=True).warnings)


@pytest.mark.parametrize("is_dry_run", [False, True])
@pytest.mark.parametrize("carried", [Carried(), Carried(foreign=frozenset((P,)))])
def test_a_link_that_never_ran_there_is_not_promoted_whatever_its_topics_match(
    world: World, monkeypatch: pytest.MonkeyPatch, is_dry_run: bool, carried: Carried
) -> None:
    """The wrong file, a wrong --target or --link, source and target exchanged: the logs there are others'."""
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.control, world.carried, world.ids = LinkControl(), carried, (5,)
    for action in (world.promote, world.failover):
        with pytest.raises(
            OptionError, match="Nothing on the target shows that link dr .* Check --target b:9092 --link dr; if"
        ):
            action(topics=ORDERS, is_dry_run=is_dry_run)
    world.carried, world.claims = Carried(unknown={P: "it has no leader"}), None
    with pytest.raises(
        OptionError, match=r"producer id \(orders-0 could not be read: it has no leader\), and whether a mirror"
    ):
        world.failover(topics=ORDERS, is_dry_run=is_dry_run)
    world.back = "link A-B copies topic orders from this target to this source"
    with pytest.raises(OptionError, match="link A-B copies topic orders .*: are source and target exchanged"):
        world.promote(topics=ORDERS, is_dry_run=is_dry_run)
    assert world.done == [] and not world.control.is_promotion_begun


def test_the_control_names_the_id_that_fenced_also_if_the_coordinator_had_forgotten_the_links(world: World) -> None:
    """After seven days without a start: else verify and failback would take the fence for another producer's."""
    for action in (world.promote, world.failover):
        world.control = replace(world.control, producer_ids=(5,), is_promotion_begun=False, is_fenced=False)
        assert action().is_done and world.control.producer_ids == (5, 7)


def test_who_may_not_read_the_control_promotes_nothing_half(world: World) -> None:
    world.control = LinkControl(is_hidden=True)
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="was promoted before is unknown: we may not read topic"):
            action(topics=ORDERS)
    assert world.done == []


def test_one_cluster_is_not_promoted_from_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTarget, "cluster_id", AsyncMock(return_value="one"))
    with pytest.raises(OptionError, match="the same cluster"):
        world.promote()
    assert world.done == []


def test_of_a_link_whose_control_was_deleted_what_its_producer_id_wrote_is_promoted_and_the_rest_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, empty = TopicPartition("clicks", 0), TopicPartition("empty", 0)
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.control, world.ids = LinkControl(), (5,)
    world.partitions, world.carried = (theirs, empty, P), Carried(frozenset((P,)), foreign=frozenset((theirs,)))
    world.empty = frozenset((empty,))
    report = world.failover()
    assert report.is_done and report.exit_code == 3 and world.done == ["promoted", "fence", "fenced"]
    assert world.fenced_as == (5,) and [(p.topic, p.partition) for p in report.partitions] == [empty, P]
    assert len(report.not_promoted) == 1 and report.not_promoted[0].startswith("clicks-0 on the target: not link dr's")


BEGUN = LinkControl(producer_ids=(5,), source_cluster_id="A", topics=ORDERS.to_json(), begun={P: TopicIds()})


@pytest.mark.parametrize("now", [LinkControl(), replace(BEGUN, begun={Q: TopicIds()})])
def test_a_control_that_is_deleted_while_a_promotion_waits_ends_it_before_anything_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch, now: LinkControl
) -> None:
    """The evidence was read for the former control, so it would fence nothing and call it promoted; also after a restart."""
    for action in (world.promote, world.failover):
        world.control, world.done = BEGUN, []

        async def use_id(*_: object) -> int:
            world.control = now
            return 7

        monkeypatch.setattr(promotion_steps, "init_producer_id", use_id)
        with pytest.raises(
            OptionError, match="deleted meanwhile. This command has fenced nothing.*: run it again with --topics"
        ):
            action(topics=None)
        assert world.control == now and "fence" not in world.done


def test_a_control_that_is_deleted_while_a_promotion_fences_is_written_again(world: World) -> None:
    """Else it would say that the link is fenced, and not that it was promoted."""
    for action in (world.promote, world.failover):
        world.control, world.deleted_at = BEGUN, "fence"
        assert action().is_done
        assert world.control == replace(
            BEGUN,
            is_promotion_begun=True,
            is_fenced=True,
            producer_ids=(5, 7),
            copied_until={P: 10},
            promotion=world.control.promotion,
            primary_since=world.control.primary_since,
            target_cluster_id="B",
        )
        assert world.control.primary_since.keys() == {"orders"}


def test_a_log_that_gets_its_first_records_during_a_promotion_is_not_called_promoted(world: World) -> None:
    """It was empty when the evidence was read, and the link has not begun it: nothing fences it."""
    for action in (world.promote, world.failover):
        world.control, world.partitions, world.empty = BEGUN, (P, Q), frozenset((Q,))
        assert [p.partition for p in action().partitions] == [0, 1]
        world.control, world.empty = BEGUN, frozenset()
        report = action()
        assert report.is_done and report.exit_code == 3 and [p.partition for p in report.partitions] == [0]
        (text,) = report.not_promoted
        assert text.startswith("orders-1 on the target: not link dr's") and "got its first records" in text


@pytest.mark.parametrize("is_translated", [False, True])
def test_what_a_promotion_found_out_without_a_control_is_in_the_one_that_it_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch, is_translated: bool
) -> None:
    """Else status and promote deny it, verify knows no fence of it, and failback finds no owner of its copies."""
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.ids, world.carried, world.is_translated = (5,), Carried(frozenset((P,))), is_translated
    for action in (world.failover, world.promote):
        world.control, world.ledger = LinkControl(), [None, ClusterUnreachableError("away")]
        with pytest.raises(TolerantClientError, match="begun and is not finished: run this again"):
            action(topics=ORDERS)
        assert world.control.topics == ORDERS.to_json() and world.control.tells_no_start, "so a repeat decides the same"
        action(topics=None)
        found = world.control
        assert found.is_fenced and found.topics == ORDERS.to_json()
        assert found.is_of_unknown_source == found.may_copy_from("C") == (action == world.failover)
        assert (found.producer_ids, found.begun) == (((), {}) if is_translated else ((5, 7), {P: TopicIds()}))


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_promotion_without_a_control_that_was_interrupted_is_repeated_with_corrected_topics(
    world: World, monkeypatch: pytest.MonkeyPatch, is_translated: bool
) -> None:
    """No mirror wrote down those that it was given first, and what they left out would never be fenced."""
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.ids, world.carried, world.is_translated = (5,), Carried(frozenset((P, CLICKS))), is_translated
    world.on_target, both = ("orders", "clicks"), LinkTopics.of("orders|clicks")
    for action in (world.failover, world.promote):
        world.control, world.ledger = LinkControl(), [None, ClusterUnreachableError("away")]
        with pytest.raises(TolerantClientError, match="run this again"):
            action(topics=ORDERS)
        assert action(topics=both).is_done
        written = LinkTopics.from_json(world.control.topics or "")
        assert written == both.joined(ORDERS) and world.control.is_fenced


def test_the_marker_of_an_interrupted_fence_is_no_copy_also_without_a_control(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    world.control, world.ids = LinkControl(is_promotion_begun=True, topics=ORDERS.to_json()), (5,)
    world.carried = Carried(frozenset((P,)))
    for action in (world.failover, world.promote):
        world.looked_as.clear()
        action(is_dry_run=True, topics=None)
        assert set(world.looked_as) == {(5,)}


def test_what_a_failover_without_a_control_left_for_later_is_decided_by_the_same_evidence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty log of a topic that the link writes, whose leader was away, is fenced, and a stranger's is not."""
    monkeypatch.setattr(link_topics, "read_controls", AsyncMock(return_value=Controls({})))
    away = {Q: "it has no leader", CLICKS: "it has no leader"}
    world.control, world.ids, world.carried = LinkControl(), (5,), Carried(frozenset((P,)), unknown=away)
    world.partitions, world.leaderless = (P, Q, CLICKS), (Q, CLICKS)
    both = LinkTopics.of("orders|clicks")
    assert world.failover(topics=both).is_begun and world.control.unfenced == {Q, CLICKS} and not world.control.begun
    world.leaderless, world.carried = (), Carried(frozenset((P,)), foreign=frozenset((CLICKS,)))
    report = world.failover(topics=None)
    assert report.is_done and world.done[-2:] == ["fence 1", "fenced"] and world.control.begun.keys() == {P, Q}
    assert report.not_promoted[0].startswith("clicks-0 on the target: not link dr's")


def test_what_is_promoted_already_is_promoted_by_nobody_again(world: World) -> None:
    world.control = replace(world.control, is_promotion_begun=True, is_fenced=True)
    assert world.promote().is_done and world.failover().is_done and world.done == []


def by_another(control: LinkControl, *, is_fenced: bool = True) -> LinkControl:
    """The control as another command has left it, which promoted the link meanwhile or still does."""
    return replace(control, is_promotion_begun=True, is_fenced=is_fenced, promotion="another")


def sleeps(monkeypatch: pytest.MonkeyPatch, world: World, *controls: LinkControl) -> None:
    """What others write into the control while a promotion sleeps."""
    later = list(controls)

    async def sleep(_: Net, delay: float) -> None:
        world.control = later.pop(0) if later else world.control

    monkeypatch.setattr(Net, "sleep", sleep)


def test_a_promotion_that_waits_sees_that_another_command_promotes_the_link(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producers may write to the target by then: nothing is in the way, and nothing is left to wait for."""
    world.ends, half = ends(5, 10, 10), by_another(world.control, is_fenced=False)
    sleeps(monkeypatch, world, world.control, half, half, by_another(world.control))
    monkeypatch.setattr(promotion_steps, "_FINISHES_S", 60.0)
    report = world.promote(deadline_s=60.0, groups=None)
    assert report.is_done and report.exit_code == 0 and not report.blockers
    assert report.warnings[0] == "link dr was promoted before; no topic and no group was changed"
    assert world.done == []


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_promotion_that_another_command_has_begun_and_not_finished_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, is_dry_run: bool
) -> None:
    world.ends, half = ends(5, 10, 10), by_another(world.control, is_fenced=False)
    sleeps(monkeypatch, world, half)
    with pytest.raises(
        LinkPromotedError, match="is being promoted: .*its mirrors end.* if none runs any more, its .* run again"
    ) as caught:
        world.promote(is_dry_run=is_dry_run)
    assert exit_code(caught.value) == 2 and world.control == half and "fence" not in world.done


def test_of_two_commands_that_finish_a_failover_at_the_same_time_one_waits_for_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = frozenset({P})
    world.control = replace(world.control, is_promotion_begun=True, promotion="the first half", unfenced=late)
    half = replace(by_another(world.control, is_fenced=False), unfenced=late)

    async def use_id(*_: object) -> int:
        world.control = half
        return 7

    monkeypatch.setattr(promotion_steps, "init_producer_id", use_id)
    monkeypatch.setattr(promotion_steps, "_FINISHES_S", 60.0)
    sleeps(monkeypatch, world, half, replace(by_another(world.control), unfenced=frozenset()))
    report = world.failover()
    assert report.is_done and "link dr was promoted before; no topic and no group was changed" in report.warnings
    assert world.done == []


def test_a_fence_whose_transaction_another_command_has_ended_that_then_gave_way_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command takes the transactional.id before it finds in the control that it comes second."""
    fence, broken = promotion_steps.fence_identical, [1]

    async def break_in(*arguments: Any) -> Any:
        if broken:
            broken.pop()
            raise ProducerFencedError("taken over")
        return await fence(*arguments)

    monkeypatch.setattr(promotion_steps, "fence_identical", break_in)
    assert world.failover().is_done and world.done == ["promoted", "fence", "fenced"]


def test_what_another_command_has_fenced_during_a_look_is_not_called_different(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(*_: object) -> Comparison:
        world.control = by_another(world.control)
        return Comparison({P: "orders-0: the target has a marker there"})

    monkeypatch.setattr(promotion, "compare_ends", compare)
    assert world.promote().is_done and world.done == ["rehearsal"]


@pytest.mark.parametrize("is_translated", [False, True])
@pytest.mark.parametrize("action", [World.promote, World.failover])
@pytest.mark.parametrize("known", [None, "an interrupted one"])
def test_of_two_commands_that_promote_a_link_at_the_same_time_one_fences(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[World], PromotionReport],
    known: str | None,
    is_translated: bool,
) -> None:
    """Once the first one says that the link is promoted, applications write: a second fence would end up in their log."""
    before = replace(world.control, is_promotion_begun=known is not None, promotion=known)
    for is_fenced in (True, False):
        world.control, world.done, world.is_translated = before, [], is_translated

        async def use_id(*_: object, is_fenced: bool = is_fenced) -> int:
            world.control = by_another(before, is_fenced=is_fenced)
            return 7

        monkeypatch.setattr(promotion_steps, "init_producer_id", use_id)
        if is_fenced:
            report = action(world)
            assert (
                report.is_done and "link dr was promoted before; no topic and no group was changed" in report.warnings
            )
            assert (STAY in report.warnings) is (report.action == "promote"), "no group was moved"
        else:
            with pytest.raises(LinkPromotedError, match="is being promoted"):
                action(world)
        assert world.control == by_another(before, is_fenced=is_fenced) and set(world.done) <= {"rehearsal"}


@pytest.mark.parametrize("is_translated", [False, True])
@pytest.mark.parametrize("action", [World.promote, World.failover])
def test_a_promotion_from_which_a_repeat_has_taken_over_neither_moves_groups_nor_says_that_it_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch, action: Callable[[World], PromotionReport], is_translated: bool
) -> None:
    world.is_translated = is_translated
    taken = by_another(world.control, is_fenced=False)

    async def take_over(*_: object, **__: object) -> list[LedgerRow]:
        world.control = taken if world.control.is_promotion_begun else world.control
        return []

    monkeypatch.setattr(promotion_view, "read_ledger", take_over)
    with pytest.raises(LinkPromotedError, match="is being promoted"):
        action(world)
    assert world.control == taken


@pytest.mark.parametrize("is_translated", [False, True])
def test_who_may_not_fence_promotes_nothing_half(world: World, is_translated: bool) -> None:
    world.may_fence, world.is_translated = False, is_translated
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="grant us Write on the prefix tolerant-mirror-"):
            action()
    assert world.done == ["rehearsal"] and not world.control.is_promotion_begun


def test_a_link_that_was_handed_back_is_not_promoted(world: World) -> None:
    world.control = replace(world.control, is_handed_back=True)
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="stop MirrorMaker 2"):
            action()
    assert world.done == []


def test_each_reason_why_partitions_cannot_be_fenced_is_said_once_and_with_them() -> None:
    first, second = not_fenced(
        {Q: "it has no leader", P._replace(partition=2): "its map has none", P: "it has no leader"}, (), LinkControl()
    )
    assert first.startswith("orders-0, orders-1 cannot be fenced") and "(it has no leader)" in first
    assert second.startswith("orders-2 cannot be fenced") and "(its map has none)" in second


def test_a_partition_without_a_leader_is_in_the_way_before_anything_is_written(world: World) -> None:
    world.partitions, world.leaderless = (P, Q), (Q,)
    report = world.promote()
    (why,) = report.blockers
    assert "orders-1 cannot be fenced" in why and "has no leader on the target" in why and "; start a broker" in why
    assert (report.exit_code, report.is_done, world.done) == (3, False, [])
    assert [(p.partition, p.copied_until) for p in report.partitions] == [(0, 10), (1, None)]
    world.partitions = (Q,)
    report = world.failover()
    assert report.blockers == (why,) and why.endswith("; start a broker that has it, then run this again")
    assert (report.exit_code, report.is_done, report.is_begun, world.done) == (3, False, False, [])


def test_a_link_that_was_promoted_in_part_is_never_called_not_promoted_and_its_report_shows_what_was_fenced_before(
    world: World,
) -> None:
    """Applications write to what was fenced: nobody is told that nothing was written, nor to delete the topic."""
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    world.failover()
    world.done.clear()
    for action in (world.failover, world.promote):
        for is_dry_run in (False, True):
            report = action(is_dry_run=is_dry_run)
            assert (report.is_done, report.is_begun, report.exit_code, world.done) == (False, True, 3, [])
            assert (P.partition, 10) in [(row.partition, row.copied_until) for row in report.partitions]
            assert "orders-1 cannot be fenced" in report.blockers[0] and "elete" not in "".join(report.blockers)
            assert len(report.blockers) == 1


def test_a_promotion_that_finishes_a_failover_tells_what_that_one_left_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    world.failover()
    world.ends, world.leaderless = ends(10, 10, 10), ()

    async def look_led(_: Any, __: Any, ___: str, wanted: Any, *____: Any) -> Any:
        assert list(wanted) == [P]
        return [ends(10, 14, 14)], {}

    async def as_left(_: Any, __: Any, ___: Any, ____: Any, lags: Any) -> Any:
        return lags, {}

    async def count(_: Any, spans: Any) -> Any:
        return {p: Committed(until - start, until) for p, (start, until) in spans.items()}

    monkeypatch.setattr(left_behind, "has_map", AsyncMock(return_value=False))
    for name, function in {"look_led": look_led, "as_left": as_left, "count_committed": count}.items():
        monkeypatch.setattr(left_behind, name, function)
    report = world.promote(groups=None)
    assert [(row.partition, row.left_records) for row in report.partitions] == [(0, 4), (1, 0)]
    assert report.is_done and report.exit_code == 3
    assert "4 committed records of orders-0 were not copied" in report.left_behind


def test_of_an_interrupted_promotion_every_partition_is_named_that_may_still_be_written_to(world: World) -> None:
    world.control = replace(world.control, is_promotion_begun=True)
    world.partitions, world.leaderless = (P, Q), (Q,)
    for report in (world.promote(), world.failover(is_dry_run=True)):
        assert report.is_begun and not report.is_done and "may still write to orders-0, too" in report.blockers[1]


def test_a_translated_partition_whose_map_has_no_leader_is_not_fenced(world: World) -> None:
    world.is_translated, world.leaderless = True, (map_partition("dr", P),)
    report = world.promote()
    assert "orders-0 cannot be fenced" in report.blockers[0] and report.exit_code == 3 and world.done == []


def test_a_link_whose_map_is_lost_is_fenced_by_a_failover_alone_which_knows_of_nothing_that_it_was_copied(
    world: World,
) -> None:
    world.is_translated, world.lost = True, "the map was deleted"
    world.ends, world.leaderless = PartitionLag(P), (map_partition("dr", P),)
    with pytest.raises(OptionError, match="the map was deleted.* tolerant-kafka failover"):
        world.promote()
    assert not world.done
    report = world.failover()
    assert report.is_done and report.exit_code == 3 and report.damaged == (MAP_IS_LOST,)
    assert [p.copied_until for p in report.partitions] == [None] and world.control.is_fenced
    assert world.control.mapped.keys() == {P}, "its log says that it was copied: its deletion will be a loss"


@pytest.mark.parametrize("action", [World.promote, World.failover])
def test_the_map_of_a_link_that_was_fenced_says_so_and_where_it_could_not_be_told_the_report_does(
    world: World, action: Callable[[World], PromotionReport]
) -> None:
    assert not action(world).warnings or not world.over, "identical offsets have no map"
    world.control, world.is_translated = replace(LinkControl(), topics=ORDERS.to_json(), map_id="m"), True
    there = map_partition("dr", P)
    for untold in (
        {},
        {there: "NotEnoughReplicasError"},
        {there: "NotEnoughReplicasError", there._replace(partition=9): ""},
    ):
        world.done.clear()
        world.control, world.untold = replace(world.control, is_promotion_begun=False, is_fenced=False), untold
        report = action(world)
        assert report.is_done and world.control.is_fenced and report.exit_code == 0
        told = [text for text in report.warnings if "could not be told" in text]
        assert len(told) == bool(untold)
        which = f"{there.topic}-{there.partition}{' and 1 more partition' if len(untold) > 1 else ''} of the target"
        assert all(which in text and "NotEnough" in text for text in told)
    assert world.over == 3


def test_a_report_that_was_cut_short_is_made_again(world: World) -> None:
    refused = Errors.TopicAuthorizationFailedError("Fetch of orders-0")
    for action, error in product((world.promote, world.failover), (ClusterUnreachableError("away"), refused)):
        world.ledger = [None, error]
        with pytest.raises(TolerantClientError, match="begun and is not finished: run this again") as caught:
            action()
        assert exit_code(caught.value) == 1 and world.control.is_promotion_begun
    assert not world.control.is_fenced and world.promote().partitions and world.control.is_fenced


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_ledger_that_may_not_be_read_is_refused_before_anything_is_written(world: World, is_dry_run: bool) -> None:
    for action in (world.promote, world.failover):
        world.ledger = [Errors.TopicAuthorizationFailedError("Fetch of tolerant-mirror-ledger-0")]
        with pytest.raises(
            OptionError, match="grant us Read and Describe on topic tolerant-mirror-ledger of the target"
        ):
            action(is_dry_run=is_dry_run)
    assert not world.control.is_promotion_begun and set(world.done) <= {"rehearsal"}


def test_who_may_not_read_what_is_to_be_fenced_promotes_nothing_half(world: World) -> None:
    world.unreadable = frozenset({P})
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="Fetch of orders-0 .*; fencing takes Read and Write on the topics"):
            action()
    assert not world.control.is_promotion_begun and set(world.done) <= {"rehearsal"}


def test_our_own_mistakes_are_not_called_a_cluster_that_refuses() -> None:
    with pytest.raises(KeyError), half_done("the promotion"):
        raise KeyError(16)
