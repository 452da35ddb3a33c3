"""Promotion without brokers: what is in its way, what of a link it takes, and that nothing fails once the link is fenced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition
from msgspec import structs

from spark_integration.cli.exits import exit_code
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.errors import ClusterUnreachableError, OptionError, TolerantClientError, UnsupportedSourceError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.life import damage as damage_module
from tolerant_client.mirror.life import fence, owners, promotion, promotion_view
from tolerant_client.mirror.life.carriers import Carried
from tolerant_client.mirror.life.comparison import Comparison
from tolerant_client.mirror.life.damage import SeenLog
from tolerant_client.mirror.life.fence import Fenced
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.promotion import failover, promote
from tolerant_client.mirror.life.promotion_blockers import Blocker, blockers, lacking_texts
from tolerant_client.mirror.life.promotion_report import (
    PromotedPartition,
    PromotionReport,
    failover_warnings,
    unmade_texts,
)
from tolerant_client.mirror.state import link_topics
from tolerant_client.mirror.state import map_topic as map_topic_module
from tolerant_client.mirror.state.control_record import Controls, decode_control, encode_control
from tolerant_client.mirror.state.control_topic import half_done
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import differing_topics, require_whole
from tolerant_client.mirror.state.map_topic import MappedTopics, has_map, map_partition, map_topic, mapped_topics
from tolerant_client.mirror.state.offset_map import RowKey
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

P = TopicPartition("orders", 0)
ORDERS = LinkTopics.of("orders")


def ends(copied: int, stable: int | None, end: int | None, index: int = 0) -> PartitionLag:
    return PartitionLag(TopicPartition("orders", index), copied, stable, end)


# -- what is in the way -------------------------------------------------------


def test_nothing_is_in_the_way_when_all_is_copied_and_stands_still() -> None:
    now = ends(10, 10, 10)
    assert blockers([now], {P: now}) == blockers([now], {P: now}, LinkControl(), Comparison({})) == []


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        (ends(8, 10, 10), ends(8, 10, 10), "2 offsets are not copied yet: orders-0 2"),
        (ends(10, 10, 12), ends(10, 10, 12), "transactions are open on the source"),
        (ends(10, 10, 10), ends(9, 9, 9), "producers still write to the source: orders-0"),
        (
            ends(12, 10, 10),
            ends(12, 10, 10),
            "the target has more than the source: orders-0 ends at 12, on the source at 10",
        ),
    ],
)
def test_what_is_in_the_way_of_a_promotion_is_named(now: PartitionLag, before: PartitionLag, text: str) -> None:
    (found,) = blockers([now], {P: before})
    assert text in found.text
    assert found.lasts == ("more than" in text)


def test_what_is_no_copy_is_in_the_way_though_nothing_is_left_to_copy() -> None:
    now = ends(12, 10, 10)
    assert blockers([now], {P: now}, compared=Comparison({P: "a foreign batch"})) == [
        Blocker("a foreign batch", lasts=True)
    ]
    (found,) = blockers([now], {P: now}, compared=Comparison({}, (P,)))
    assert "could not be compared" in found.text and "orders-0" in found.text and not found.lasts
    (found,) = blockers([now], {P: now}, compared=Comparison({}, refused={P: "Fetch of orders-0 is not allowed"}))
    assert found == Blocker("orders-0 could not be compared: Fetch of orders-0 is not allowed", lasts=True)


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
        now, {}, LinkControl(paused_partitions=frozenset({TopicPartition("orders", 1)})), of_target="--link dr"
    )
    assert held.text.endswith(
        "paused them: orders-1 3; resume them: tolerant-kafka resume --link dr --topic orders --partition 1"
    )
    assert held.text.startswith("3 ") and held.lasts
    assert "2 offsets are not copied yet" in waiting.text and not waiting.lasts
    idle = ends(10, 10, 10)
    assert blockers([idle], {P: idle}, LinkControl(frozenset({""}))) == []


def test_a_target_that_is_ahead_has_no_lag() -> None:
    assert (ends(12, 10, 10).lag_offsets, ends(12, 10, 10).ahead) == (0, 2)
    assert (ends(12, None, None).lag_offsets, ends(12, None, None).ahead) == (None, 0)


def test_a_failover_says_what_nobody_can_know() -> None:
    known = PromotedPartition("orders", 0, 10, None, 1_700_000_000_123)
    assert "2023-11-14 22:13:20.123 UTC" in failover_warnings([known])[0]
    assert "newest" not in failover_warnings([replace(known, last_copied_ms=None)])[0]


# -- what of a link is promoted -----------------------------------------------


class Net:
    """An event loop for what waits for nothing real."""

    def run(self, function: Any, *args: Any) -> Any:
        coroutine = function(*args)
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("it waits")

    async def sleep(self, delay: float) -> None:
        pass


class FakeTarget:
    """A cluster that has topics."""

    bootstrap_servers = "b:9092"

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.net = Net()
        self.manager = SimpleNamespace(config={"security_protocol": "PLAINTEXT"})

    async def partitions(self, topics: Any = None) -> dict[str, list[int]]:
        return {topic: [0] for topic in self.topics if topics is None or topic in topics}

    async def list_offsets(self, wanted: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, 10)

    def wire_topic(self, topic: str) -> str:
        return topic


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
    with pytest.raises(OptionError, match="give --topics"):
        whole(LinkControl(), None, None, target)


# -- the course ---------------------------------------------------------------

HELD = LinkControl(frozenset({"orders"}), topics=ORDERS.to_json())


@dataclass
class World:
    """Both clusters of a link, as far as promotion asks them; `done` is what it wrote, in its order."""

    control: LinkControl = LinkControl(producer_ids=(7,), topics=ORDERS.to_json())
    ends: PartitionLag = ends(10, 10, 10)
    lacking: tuple[TopicPartition, ...] = ()
    compared: Comparison | None = Comparison({})
    groups: list[GroupsReport | Exception] = field(default_factory=list)
    may_fence: bool = True
    unlisted: Exception | None = None
    unreadable: frozenset[TopicPartition] = frozenset()
    ledger: list[Exception | None] = field(default_factory=list)  # what the next looks at it raise
    partitions: tuple[TopicPartition, ...] = (P,)
    leaderless: tuple[TopicPartition, ...] = ()
    is_translated: bool = False
    lost: str | None = None
    mapped: MappedTopics = MappedTopics()
    contradicted: dict[TopicPartition, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    carried: Carried = Carried()
    others: Others = Others()
    seen: dict[TopicPartition, SeenLog] = field(default_factory=dict)
    on_target: tuple[str, ...] = ("orders",)
    looks: int = 0
    later: list[PartitionLag] = field(default_factory=list)  # what the next looks find

    def promote(self, **how: Any) -> PromotionReport:
        cluster, target = cast(Cluster, FakeTarget("orders")), cast(Cluster, FakeTarget(*self.on_target))
        how.setdefault("groups", TopicFilter())

        async def run() -> PromotionReport:
            return await promote(cluster, target, "dr", tell=self.told.append, **{"deadline_s": 0.0, **how})

        return cast(PromotionReport, cluster.net.run(run))

    def failover(self, **how: Any) -> PromotionReport:
        cluster = cast(Cluster, FakeTarget("orders"))
        return cast(PromotionReport, cluster.net.run(partial(failover, cluster, "dr", **{"topics": ORDERS, **how})))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()

    async def update(_: Any, __: str, change: Any) -> LinkControl:
        before, found.control = found.control, change(found.control)
        if found.control == before:
            return before
        found.done.append(
            "fenced" if found.control.is_fenced else "fenced but some" if found.control.unfenced else "promoted"
        )
        return found.control

    async def sync(*_: Any, is_dry_run: bool, **__: Any) -> GroupsReport:
        found.done.append("rehearsal" if is_dry_run else "groups")
        answer = found.groups.pop(0) if found.groups else GroupsReport((), 0, (), ())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def use_id(_: Any, name: str) -> int:
        assert name == "dr"
        if not found.may_fence:
            raise Errors.TransactionalIdAuthorizationFailedError("no")
        return 7

    async def fence_all(_: Any, __: str, *rest: Any) -> dict[TopicPartition, Fenced]:
        found.done.append("fence" if set(rest[-1]) == {P} else f"fence {','.join(f'{p.partition}' for p in rest[-1])}")
        return {p: Fenced(10, 10) for p in rest[-1]}

    async def leaders(_: Any, wanted: Any, *, patience_ms: int) -> LedOffsets:
        left_out = {p: "it has no leader on the target" for p in wanted if p in found.leaderless}
        return LedOffsets({p: 10 for p in wanted if p not in left_out}, left_out)

    async def look(source: Any, __: Any, ___: str, wanted: Any, is_translated: bool) -> list[PartitionLag]:
        if source is None:
            return [PartitionLag(p, found.ends.position, None, None) for p in wanted]
        found.looks += 1
        if found.later:
            found.ends = found.later.pop(0)
        return [replace(found.ends, partition=p) for p in wanted]

    async def groups(_: Any) -> tuple[dict[str, Any], dict[str, Exception]]:
        if found.unlisted is not None:
            raise found.unlisted
        return {}, {"broker 3": Errors.GroupAuthorizationFailedError("no")}

    async def ledger(_: Any) -> list[LedgerRow]:
        if found.ledger and (error := found.ledger.pop(0)) is not None:
            raise error
        return []

    async def readable(_: Any, partitions: Any) -> None:
        if found.unreadable & set(partitions):
            raise Errors.TopicAuthorizationFailedError("Fetch of orders-0 is not allowed to us")

    def answer(name: str, value: Any) -> None:
        async def tell(*_: Any, **__: Any) -> Any:
            return value()

        for module in (promotion, promotion_view, damage_module, owners):
            if name in vars(module):
                monkeypatch.setattr(module, name, tell)

    answer("read_control", lambda: found.control)
    answer("read_ids", dict)
    answer("_seen_logs", lambda: found.seen)
    answer("has_map", lambda: found.is_translated)
    answer("lost_map", lambda: found.lost)
    answer("mapped_topics", lambda: found.mapped)
    answer("contradicted", lambda: found.contradicted)
    answer("read_slices", lambda: {})
    answer("partitions_of_link", lambda: (list(found.partitions), list(found.lacking)))
    answer("partitions_on_target", lambda: list(found.partitions))
    monkeypatch.setattr(promotion, "look", look)
    monkeypatch.setattr(promotion, "list_led_offsets", leaders)
    answer("compare_ends", lambda: found.compared)
    answer("find_held", list)
    answer("find_carried", lambda: found.carried)
    answer("look_for_others", lambda: found.others)
    answer("read_headers", dict)
    monkeypatch.setattr(promotion, "require_readable", readable)
    monkeypatch.setattr(promotion, "update_control", update)
    answer("read_positions", lambda: None)
    monkeypatch.setattr(promotion, "sync_groups", sync)
    monkeypatch.setattr(promotion, "init_producer_id", use_id)
    monkeypatch.setattr(promotion, "fence_identical", fence_all)
    monkeypatch.setattr(promotion, "fence_translated", fence_all)
    monkeypatch.setattr(promotion_view, "list_groups", groups)
    monkeypatch.setattr(promotion_view, "read_ledger", ledger)
    return found


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
    assert world.done == ["rehearsal"] and not world.control.is_promoted


def test_a_promotion_whose_groups_were_cut_short_goes_on(world: World) -> None:
    world.groups = [GroupsReport((), 0, (), ()), ClusterUnreachableError("away")]
    with pytest.raises(TolerantClientError, match="Error: away; the promotion is begun and not finished") as caught:
        world.promote()
    assert exit_code(caught.value) == 1, "2 says that nothing was written"
    assert world.control.is_promoted and not world.control.is_fenced
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
    assert world.done == ["rehearsal", "rehearsal"] and not world.control.is_promoted


def test_what_carries_records_of_the_link_is_fenced_though_nobody_has_written_it_down(world: World) -> None:
    world.carried = Carried(frozenset((Q,)), {TopicPartition("clicks", 0): "it has no leader on the target"})
    report = world.failover()
    assert world.done == ["promoted", "fence 0,1", "fenced"]
    assert [(p.topic, p.partition) for p in report.partitions] == [P, Q]
    assert report.warnings[0].startswith("orders-1 carry records of the link, though")
    assert "unknown is whether clicks-0 carry records of the link" in report.warnings[1]


def test_a_failover_names_what_the_target_has_lost_of_what_was_copied(world: World) -> None:
    world.is_translated, world.mapped = True, MappedTopics(frozenset({"orders", "clicks"}))
    world.contradicted = {P: "Target topic orders was deleted and created again after orders-0 was copied"}
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


def test_a_failover_tells_no_record_of_others_as_copied_and_names_a_partition_that_is_gone(world: World) -> None:
    gone = TopicPartition("orders", 3)
    world.control = replace(world.control, begun={gone: TopicIds("a", "b")}, copied={gone: 20})
    world.seen = {P: SeenLog(0, 10, 8, foreign=99)}
    report = world.failover()
    assert report.is_done and report.exit_code == 3 and [p.copied_until for p in report.partitions] == [8]
    assert report.damaged == (
        "others have written to orders-0 on the target from offset 8 on (producer id 99): nothing shows that this is the source's",
        "orders-3 is not on the target any more, and link dr has copied it, up to offset 20",
    )


@pytest.mark.parametrize(("copied", "damaged"), [("orders", 0), ("gone", 0), ("orders-gone", 1)])
def test_a_failover_names_a_topic_of_identical_offsets_that_the_target_has_no_more(
    world: World, copied: str, damaged: int
) -> None:
    topics = LinkTopics.of("orders.*").to_json()
    world.control = LinkControl(producer_ids=(7,), topics=topics, copied={TopicPartition(copied, 0): 10})
    report = world.failover(topics=LinkTopics.of("orders.*"))
    assert len(report.damaged) == damaged and report.exit_code == 3 * damaged


Q = TopicPartition("orders", 1)
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
        world.control = replace(world.control, is_promoted=False, is_fenced=False)


def test_what_the_mirror_has_begun_by_the_time_it_is_stopped_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote that down between our first look and our own record of the control."""
    first = world.control = replace(world.control, begun={P: TopicIds()})
    world.partitions = (P, Q)
    assert world.failover().is_done and "fence" in world.done

    async def read_before(*_: Any) -> LinkControl:
        return first

    monkeypatch.setattr(promotion, "read_control", read_before)
    world.control = replace(first, begun={P: TopicIds(), Q: TopicIds()})
    world.done.clear()
    assert world.failover().exit_code == 0 and world.done == ["promoted", "fence 0,1", "fenced"]


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
    assert report.not_promoted == (
        "clicks-0: on the source alone, and so not promoted: Link x may copy into topic clicks",
    )
    world.control = replace(world.control, is_promoted=True, is_fenced=False)
    assert world.promote(is_dry_run=is_dry_run).not_promoted == report.not_promoted
    assert unmade_texts({lacking: "why"}, [TopicPartition("clicks", 1)], ()) != []
    assert unmade_texts({lacking: "why"}, [lacking], ()) == [], "its mirror was free to make it meanwhile"


CLICKS = TopicPartition("clicks", 0)


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

    async def look(source: Any, __: Any, ___: str, wanted: Any, *_: Any) -> list[PartitionLag]:
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
        replace(world.control, is_promoted=False, is_fenced=False),
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

    for module in (promotion, owners):
        monkeypatch.setattr(module, "read_ids", read_ids)
    monkeypatch.setattr(promotion, "find_held", find_held)
    assert world.promote().exit_code == 0 and "fence" in world.done


def test_a_topic_of_the_target_alone_that_the_link_does_not_have_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = TopicPartition("mine", 0)
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of(".*").to_json(), begun={P: TopicIds()})
    world.carried, world.on_target = Carried(foreign=frozenset((mine,))), ("orders", "mine")
    report = world.promote()
    assert report.is_done and not report.warnings and world.done.count("fence") == 1
    (text,) = report.not_promoted
    assert text.startswith("mine-0 on the target: not link dr's, and nothing was written there")


def test_a_file_that_has_more_topics_than_its_link_is_in_the_way_until_a_mirror_was_started_with_it(
    world: World,
) -> None:
    world.control = LinkControl(producer_ids=(7,), topics=LinkTopics.of("clicks").to_json())
    report = world.promote(topics=LinkTopics.of("orders|clicks"), of_file=True)
    assert not report.is_done and report.blockers == (
        "the file names orders, and no mirror of link dr was started with that; start the mirror with it, or take that out of"
        " the file",
    )
    report = world.failover(topics=LinkTopics.of("orders|clicks"), of_file=True)
    assert report.is_done and report.exit_code == 3
    assert report.not_promoted == ("the file names orders, and no mirror of link dr was started with that",)


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


def test_a_link_whose_target_has_none_of_its_partitions_is_waited_for_no_longer_than_was_said(world: World) -> None:
    world.partitions, world.lacking = (), (P,)
    report = world.promote(is_dry_run=True, deadline_s=60.0)
    assert (world.looks, report.exit_code) == (2, 3)
    assert report.blockers == ("orders-0: not on the target yet; let the mirror run until it has made them there",)
    assert lacking_texts([P, Q], LinkControl(copied={Q: 9})) == [
        "orders-1: not on the target any more; start the mirror again, which makes them there and fills them",
        *report.blockers,
    ]


@pytest.mark.parametrize(
    "changes", [{"compared": Comparison({P: "orders-0 differs"})}, {"ends": ends(8, 10, 10), "control": HELD}]
)
def test_what_no_waiting_cures_is_not_waited_for(world: World, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(world, name, value)
    assert world.promote(deadline_s=60.0).exit_code == 3
    assert world.looks == 2 and len(world.told) == 1


def test_what_is_waited_for_is_told_when_it_changes(world: World) -> None:
    world.later = [ends(8, 10, 10)] * 5 + [ends(9, 10, 10)] * 3 + [ends(10, 10, 10)]
    assert world.promote(deadline_s=60.0).is_done
    assert [text.split(" offsets")[0] for text in world.told] == ["waiting: 2", "waiting: 1"]


def test_a_promotion_that_was_begun_leaves_out_what_no_mirror_can_make_any_more(world: World) -> None:
    world.control = replace(world.control, is_promoted=True)
    world.lacking = (TopicPartition("orders", 1),)
    report = world.promote()
    assert report.is_done and report.warnings[0] == "orders-1: on the source alone, and so not promoted"


def test_what_is_promoted_already_is_promoted_by_nobody_again(world: World) -> None:
    world.control = replace(world.control, is_promoted=True, is_fenced=True)
    assert world.promote().is_done and world.failover().is_done and world.done == []


@pytest.mark.parametrize("is_translated", [False, True])
def test_who_may_not_fence_promotes_nothing_half(world: World, is_translated: bool) -> None:
    world.may_fence, world.is_translated = False, is_translated
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="grant us Write on the prefix tolerant-mirror-"):
            action()
    assert world.done == ["rehearsal"] and not world.control.is_promoted


def test_a_link_that_was_handed_back_is_not_promoted(world: World) -> None:
    world.control = replace(world.control, is_handed_back=True)
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="stop MirrorMaker 2"):
            action()
    assert world.done == []


def test_a_partition_without_a_leader_is_in_the_way_before_anything_is_written(world: World) -> None:
    world.partitions, world.leaderless = (P, Q), (Q,)
    with pytest.raises(OptionError, match="orders-1 cannot be fenced.* has no leader on the target.*; start a broker"):
        world.promote()
    assert world.done == []
    world.partitions = (Q,)
    with pytest.raises(OptionError, match="start a broker that has it, or delete the topic, then run this again"):
        world.failover()
    assert world.done == []


def test_a_failover_fences_what_has_a_leader_and_later_the_rest_alone(world: World) -> None:
    """Applications write to what was fenced meanwhile: a second fence would take their records for copies."""
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    report = world.failover()
    assert world.done == ["promoted", "fence", "fenced but some"]
    assert (report.is_done, report.is_begun, report.exit_code) == (False, True, 3) and "orders-1" in report.blockers[0]
    assert [(p.topic, p.partition) for p in report.partitions] == [P]
    assert not world.control.is_fenced and decode_control(encode_control(world.control, 1)) == world.control
    world.done.clear()
    world.leaderless = ()
    report = world.failover()
    assert report.is_done and report.exit_code == 0 and world.done == ["fence 1", "fenced"]
    assert world.control.is_fenced and not world.control.unfenced


def test_a_failover_whose_partition_without_a_leader_was_deleted_is_finished(world: World) -> None:
    world.ends, world.control = ends(10, None, None), replace(world.control, is_promoted=True, unfenced=frozenset({Q}))
    assert world.failover().is_done and world.done == ["fenced"]


def test_a_rehearsed_failover_names_what_has_no_leader_and_writes_nothing(world: World) -> None:
    world.ends, world.partitions, world.leaderless = ends(10, None, None), (P, Q), (Q,)
    report = world.failover(is_dry_run=True)
    assert (report.is_done, report.is_begun, report.exit_code) == (False, False, 3) and world.done == []


def test_a_translated_partition_whose_map_has_no_leader_is_not_fenced(world: World) -> None:
    world.is_translated, world.leaderless = True, (map_partition("dr", P),)
    with pytest.raises(OptionError, match="orders-0 cannot be fenced"):
        world.promote()
    assert world.done == []


def test_a_failover_fences_what_has_a_map_that_can_be_read_and_later_the_rest_alone(world: World) -> None:
    away = map_partition("dr", Q)
    world.ends, world.partitions, world.is_translated = ends(10, None, None), (P, Q), True
    world.leaderless, world.mapped = (away,), MappedTopics(frozenset({"orders"}), {away: "it has no leader"})
    report = world.failover()
    assert world.done == ["promoted", "fence", "fenced but some"] and report.exit_code == 3
    assert "orders-1 cannot be fenced" in report.blockers[0] and f"{away.topic}-{away.partition}" in report.blockers[1]
    assert decode_control(encode_control(world.control, 1)) == world.control
    world.done.clear()
    world.leaderless, world.mapped = (), MappedTopics()
    late = next(p for n in range(100) if map_partition("dr", p := TopicPartition("shown-now", n)) == away)
    world.partitions = (P, Q, late)
    assert world.failover().exit_code == 0 and world.done == [f"fence 1,{late.partition}", "fenced"]


def test_topics_that_an_unread_part_of_the_map_alone_may_name_are_told_as_unknown(world: World) -> None:
    world.ends, world.is_translated = ends(10, None, None), True
    world.mapped = MappedTopics(frozenset({"orders"}), {map_partition("dr", Q): "it has no leader"})
    assert map_partition("dr", P) != map_partition("dr", Q)
    report = world.failover()
    assert (report.is_done, report.exit_code) == (False, 3) and not world.control.is_fenced
    assert "topics that the clusters hide from us is unknown" in report.blockers[0]


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


MAP_IS_LOST = (
    "the map was deleted. Topics that it alone named are not fenced: a process of the link may still write there"
)


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_promotion_whose_map_was_lost_after_it_was_begun_goes_on_and_tells_it(world: World, is_dry_run: bool) -> None:
    world.control = replace(world.control, is_promoted=True)
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
        yield RowKey(TopicPartition(f"topic-{number}", 0), 0), None if number == 6 else ""

    monkeypatch.setattr(map_topic_module, "list_led_offsets", leaders)
    monkeypatch.setattr(map_topic_module, "_rows", rows)

    async def partitions(topics: list[str]) -> dict[str, list[int]]:
        return {topic: [0] for topic in topics}

    net = NetworkSelector()
    target = SimpleNamespace(
        net=net, partitions=partitions, manager=KafkaConnectionManager(net, bootstrap_servers="b:9092")
    )
    found = net.run(mapped_topics, target, "dr", LinkControl())
    net.close()
    assert found.names == {f"topic-{n}" for n in (0, 1, 2, 4, 7)}
    assert found.unread == {away: "no leader", away._replace(partition=5): "its leader went away"}


def test_a_map_that_a_former_link_of_this_name_has_left_makes_no_link_translated() -> None:
    target = FakeTarget(map_topic("dr"))
    identical, translated = LinkControl(producer_ids=(7,)), LinkControl(topics=ORDERS.to_json())
    assert target.net.run(has_map, target, "dr", translated)
    assert not target.net.run(has_map, target, "dr", identical), "it would be promoted without a fence"
    translated.require_not_identical("dr")
    with pytest.raises(OptionError, match="a name of its own with --link"):
        identical.require_not_identical("dr")


def test_a_failover_fences_and_moves_nothing(world: World) -> None:
    world.ends = ends(10, None, None)
    report = world.failover()
    assert report.is_done and world.done == ["promoted", "fence", "fenced"]
    assert "groups of broker 3" in report.warnings[-1]


def test_a_failover_whose_groups_cannot_be_listed_is_one_all_the_same(world: World) -> None:
    world.ends, world.unlisted = ends(10, None, None), KeyError(16)
    report = world.failover()
    assert report.is_done and world.control.is_fenced and "KeyError" in report.warnings[-1]


def test_a_report_that_was_cut_short_is_made_again(world: World) -> None:
    refused = Errors.TopicAuthorizationFailedError("Fetch of orders-0")
    for action, error in product((world.promote, world.failover), (ClusterUnreachableError("away"), refused)):
        world.ledger = [None, error]
        with pytest.raises(TolerantClientError, match="begun and not finished: run this again") as caught:
            action()
        assert exit_code(caught.value) == 1 and world.control.is_promoted
    assert not world.control.is_fenced and world.promote().partitions and world.control.is_fenced


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_ledger_that_may_not_be_read_is_refused_before_anything_is_written(world: World, is_dry_run: bool) -> None:
    for action in (world.promote, world.failover):
        world.ledger = [Errors.TopicAuthorizationFailedError("Fetch of tolerant-mirror-ledger-0")]
        with pytest.raises(
            OptionError, match="grant us Read and Describe on topic tolerant-mirror-ledger of the target"
        ):
            action(is_dry_run=is_dry_run)
    assert not world.control.is_promoted and set(world.done) <= {"rehearsal"}


def test_who_may_not_read_what_is_to_be_fenced_promotes_nothing_half(world: World) -> None:
    world.unreadable = frozenset({P})
    for action in (world.promote, world.failover):
        with pytest.raises(OptionError, match="Fetch of orders-0 .*; fencing takes Read and Write on the topics"):
            action()
    assert not world.control.is_promoted and set(world.done) <= {"rehearsal"}


def test_our_own_mistakes_are_not_called_a_cluster_that_refuses() -> None:
    with pytest.raises(KeyError), half_done("the promotion"):
        raise KeyError(16)


def test_groups_that_are_left_by_the_rules_are_no_failure() -> None:
    def code(*left: Left) -> int:
        return PromotionReport("promote", "dr", False, True, (), groups=GroupsReport((), 0, (), left)).exit_code

    assert code(Left("group g", "members", "in use")) == 0
    assert code(Left("group g", "error", "no")) == 3


# -- the fence ----------------------------------------------------------------


def test_a_copy_ends_before_the_marker_of_a_fence_that_was_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records up to 10, markers of two fences at 10 and 11; in another partition one, behind an application's marker."""
    other = TopicPartition("orders", 1)
    log = {(P, 10): (True, 7), (P, 9): (False, 7), (other, 4): (True, 9)}

    async def headers(_: Any, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            p: SimpleNamespace(is_control=log[p, offset][0], producer_id=log[p, offset][1], base_offset=offset)
            for p, offset in wanted.items()
        }

    monkeypatch.setattr(fence, "read_headers", headers)
    target = FakeTarget()
    assert target.net.run(fence._copied_until, target, {P: 11, other: 5}, 7) == {P: 10, other: 5}


def test_copiers_of_a_translated_link_are_fenced_by_name_whatever_list_transactions_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker does not list a transactional id that we may not describe, nor one without a coordinator."""
    fenced: list[str] = []

    class Transaction:
        def __init__(self, target: object, name: str, timeout_ms: int) -> None:
            self.name = name

        async def begin(self) -> None:
            fenced.append(self.name)

    async def none(*_: object) -> set[str]:
        return set()

    async def run() -> None:
        net = SimpleNamespace(call_soon_with_future=lambda begin, name: asyncio.ensure_future(begin(name)))
        target = cast(Cluster, SimpleNamespace(net=net))
        await fence.fence_translated(target, "l", [TopicPartition("t", n) for n in range(3)])

    monkeypatch.setattr(fence, "ProducerTransaction", Transaction)
    monkeypatch.setattr(fence, "transactional_ids", none)
    asyncio.run(run())
    assert fenced == [f"tolerant-mirror-l-copy-t-{n}" for n in range(3)]


def test_a_former_producer_that_could_not_be_fenced_is_named_with_its_partition() -> None:
    """It has no transactional.id, so nobody took that over."""

    def produce(*_: object, **__: object) -> Future:
        return Future().success([ProducedPartition(P, Errors.InvalidProducerEpochError.errno, -1)])

    async def leader(partition: TopicPartition) -> int:
        return 1

    async def insist(what: str, attempt: Any) -> int:
        told.append(what)
        return cast(int, await attempt())

    told: list[str] = []
    target = cast(Cluster, SimpleNamespace(produce=produce, leader=leader, insist=insist))
    with pytest.raises(Errors.InvalidProducerEpochError, match="fencing producer id 9 in orders-0"):
        asyncio.run(fence._write_filler(target, P, 9, 4))
    assert told == ["fencing producer id 9 in orders-0"]
