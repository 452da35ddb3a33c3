"""Both clusters of a link without brokers, as promotion and failover ask them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.life import (
    continued,
    left_behind,
    owners,
    promotion,
    promotion_groups,
    promotion_steps,
    promotion_view,
)
from tolerant_client.mirror.life import damage as damage_module
from tolerant_client.mirror.life import failover as failover_module
from tolerant_client.mirror.life.comparison import Comparison
from tolerant_client.mirror.life.damage import SeenLog
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.fence import Fenced
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.lost_copies import LostCopies
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state.carriers import Carried
from tolerant_client.mirror.state.claims import ClaimsLog, Run
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
CLICKS = TopicPartition("clicks", 0)
ORDERS = LinkTopics.of("orders")
MAP_IS_LOST = (
    "the map was deleted. Topics that only the map named are not fenced: a process of the link may still write there"
)


def ends(copied: int, stable: int | None, end: int | None, index: int = 0) -> PartitionLag:
    return PartitionLag(TopicPartition("orders", index), copied, stable, end)


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

    bootstrap_servers, file_options = "b:9092", ""

    def __init__(self, *topics: str, id: str = "B") -> None:
        self.id = id
        self.topics = topics
        self.net = Net()
        self.manager = SimpleNamespace(config={"security_protocol": "PLAINTEXT"})

    async def partitions(self, topics: Any = None) -> dict[str, list[int]]:
        return {topic: [0] for topic in self.topics if topics is None or topic in topics}

    async def list_offsets(self, wanted: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, 10)

    async def cluster_id(self) -> str:
        return self.id

    def wire_topic(self, topic: str) -> str:
        return topic


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
    untold: dict[TopicPartition, str] = field(default_factory=dict)  # of the offset map, that the link is over
    over: int = 0  # how often it was said
    mapped: MappedTopics = MappedTopics()
    contradicted: dict[TopicPartition, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    carried: Carried = Carried()
    others: Others = Others()
    seen: dict[TopicPartition, SeenLog] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)  # what the target's retention took
    on_target: tuple[str, ...] = ("orders",)
    forgotten: str | None = None
    ids: tuple[int, ...] = ()  # those of the link's transactional ids
    claims: ClaimsLog | None = field(default_factory=ClaimsLog)
    back: str = ""
    fenced_as: tuple[int, ...] = ()
    mirrors: list[Run] | None = field(default_factory=lambda: [Run("dr", "r", "m1", 812, 0, 60_000, is_alive=True)])
    deleted_at: str = ""  # "fence": somebody deletes the control topic meanwhile
    empty: frozenset[TopicPartition] = frozenset()
    looks: int = 0
    looked_as: list[tuple[int, ...]] = field(default_factory=list)  # whose markers are no copy
    later: list[PartitionLag] = field(default_factory=list)  # what the next looks find

    def promote(self, **how: Any) -> PromotionReport:
        cluster, target = cast(Cluster, FakeTarget("orders", id="A")), cast(Cluster, FakeTarget(*self.on_target))
        how.setdefault("groups", TopicFilter())

        async def run() -> PromotionReport:
            return await promote(cluster, target, "dr", tell=self.told.append, **{"deadline_s": 0.0, **how})

        return cast(PromotionReport, cluster.net.run(run))

    def failover(self, **how: Any) -> PromotionReport:
        cluster = cast(Cluster, FakeTarget(*self.on_target))
        return cast(PromotionReport, cluster.net.run(partial(failover, cluster, "dr", **{"topics": ORDERS, **how})))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, in place of what the modules of promotion and failover ask clusters with."""
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
        response = found.groups.pop(0) if found.groups else GroupsReport((), 0, (), ())
        if isinstance(response, Exception):
            raise response
        return response

    def delete_control(step: str) -> None:
        if found.deleted_at == step:
            found.control = LinkControl()

    async def say_over(*_: Any, **__: Any) -> dict[TopicPartition, str]:
        assert any(step.startswith("fence ") or step == "fence" for step in found.done)
        found.over += 1
        return found.untold

    async def use_id(_: Any, name: str) -> int:
        assert name == "dr"
        if not found.may_fence:
            raise Errors.TransactionalIdAuthorizationFailedError("no")
        delete_control("id")
        return 7

    async def fence_all(_: Any, __: str, *rest: Any) -> dict[TopicPartition, Fenced]:
        partitions = rest[0] if found.is_translated else rest[1]
        if not found.is_translated:
            await rest[2]()
        found.fenced_as = () if found.is_translated else rest[0].producer_ids
        found.done.append(
            "fence" if set(partitions) == {P} else f"fence {','.join(f'{p.partition}' for p in partitions)}"
        )
        delete_control("fence")
        return {p: Fenced(10, 10) for p in partitions}

    async def leaders(_: Any, wanted: Any, *, patience_ms: int = 0) -> LedOffsets:
        left_out = {p: "it has no leader on the target" for p in wanted if p in found.leaderless}
        return LedOffsets({p: 0 if p in found.empty else 10 for p in wanted if p not in left_out}, left_out)

    async def before_markers(_: Any, logs: dict[TopicPartition, int], *__: Any) -> dict[TopicPartition, int]:
        return logs

    async def look(
        source: Any, __: Any, ___: str, wanted: Any, is_translated: bool, control: LinkControl, **_: Any
    ) -> list[PartitionLag]:
        found.looked_as.append(control.producer_ids)
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

    async def count_none(_: Any, ranges: Any) -> dict[TopicPartition, Committed]:
        return {p: Committed(0, start) for p, (start, _) in ranges.items()}

    def patch(name: str, function: Any) -> None:
        steps = (promotion_groups, promotion_steps, continued, promotion_view)
        for module in (promotion, failover_module, *steps, damage_module, owners):
            if name in vars(module):
                monkeypatch.setattr(module, name, function)

    def respond(name: str, value: Any) -> None:
        async def response(*_: Any, **__: Any) -> Any:
            return value()

        patch(name, response)

    async def require_not_forgotten(_: Any, __: str, control: LinkControl) -> None:
        if found.forgotten is not None and control.is_unwritten:
            raise OptionError(found.forgotten)

    monkeypatch.setattr(promotion_steps, "_FINISHES_S", 0.0)
    patch("require_not_forgotten", require_not_forgotten)
    respond("look_at_claims", lambda: found.claims)
    respond("seen_mirrors", lambda: found.mirrors)
    respond("read_control", lambda: found.control)
    respond("read_controls", lambda: Controls({"dr": found.control}))
    monkeypatch.setattr(promotion_steps, "within_bound", AsyncMock(return_value=None))  # the source's controls
    respond("read_ids", dict)
    respond("_ids_of", lambda: found.ids)
    respond("link_back", lambda: found.back)
    respond("_seen_logs", lambda: found.seen)
    respond("has_map", lambda: found.is_translated)
    respond("lost_map", lambda: found.lost)
    respond("copied_logs", lambda: frozenset({P, TopicPartition("others", 0)}))
    patch("say_over", say_over)
    respond("mapped_topics", lambda: found.mapped)
    respond("contradicted", lambda: found.contradicted)
    respond("read_slices", lambda: {})
    respond("last_rows", lambda: {})
    respond("partitions_of_link", lambda: (list(found.partitions), list(found.lacking)))
    respond("partitions_on_target", lambda: list(found.partitions))
    patch("look", look)
    patch("list_led_offsets", leaders)
    patch("before_markers", before_markers)
    respond("compare_ends", lambda: found.compared)
    respond("find_held", list)
    monkeypatch.setattr(left_behind, "count_committed", count_none)
    monkeypatch.setattr(left_behind, "lost_copies", AsyncMock(return_value=LostCopies()))
    respond("find_carried", lambda: found.carried)
    respond("look_for_others", lambda: found.others)
    respond("other_copies", dict)
    respond("deleted_warnings", lambda: found.deleted)
    respond("read_headers", dict)
    patch("require_readable", readable)
    patch("update_control", update)
    respond("read_positions", lambda: None)
    patch("sync_groups", sync)
    patch("init_producer_id", use_id)
    patch("fence_identical", fence_all)
    patch("fence_translated", fence_all)
    patch("list_groups", groups)
    patch("read_ledger", ledger)
    return found
