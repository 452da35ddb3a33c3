"""What a copier does between the requests: what it passes to the comparison of both logs, and what it does without its control."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.errors import (
    DataLossError,
    LinkPromotedError,
    OrdersHiddenError,
    TargetClaimedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.appendable import AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.engine import link_copier
from tolerant_client.mirror.engine.identical import sync_loop
from tolerant_client.mirror.engine.identical.offsets import IdenticalOffsets, identical_offsets
from tolerant_client.mirror.engine.identical.open_gaps import OpenGaps
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.unread import LATE_S
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.mirror.state.control_topic import orders_hidden
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.records.record_batch import Record, encode_batch, read_header

FIRST, SECOND = (TopicPartition("orders", number) for number in range(2))
RULES = AppendRules(False, False, 1 << 20, remembered_ms=3_600_000, filler=GapFill.TRANSACTIONS)
TERM = 3


class Looked(Exception):
    """Ends a test at the point where both logs would be read."""


@pytest.fixture
def now() -> list[float]:
    """The copier's time is the last one."""
    return [100.0]


@pytest.fixture
def copier(now: list[float]) -> Iterator[LinkCopier]:
    """A copier that sends no requests; it holds the claims of both partitions, under TERM."""
    with Cluster({"bootstrap_servers": "a:9092"}, name="source") as source:
        target = Cluster({"bootstrap_servers": "b:9092"}, source.net, name="target")
        copier = LinkCopier(source, target, identical_offsets(7), clock=lambda: now[-1])
        claims: Any = copier.claims
        claims.term = lambda partition: TERM
        claims.holds = lambda partition: True
        yield copier
        target.close()


def flow_of(copier: LinkCopier) -> IdenticalOffsets:
    assert isinstance(copier.strategy, IdenticalOffsets)
    return copier.strategy


def placed(copier: LinkCopier, partition: TopicPartition, acked: int, until: int | None = None) -> PartitionCopy:
    copy = flow_of(copier).partitions[partition] = PartitionCopy(partition, 0.0)
    copy.until = until
    copy.resume(AppendState(acked, 7, 0, acked), RULES, 0.0)
    copy.term = TERM
    return copy


def test_what_another_process_has_copied_further_is_not_forgotten_when_logs_are_looked_at(
    copier: LinkCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: dict[TopicPartition, int] = {}

    async def look(*args: Any) -> Any:
        copied.update(args[6].copied)
        raise Looked

    async def nothing(*_: Any) -> dict[Any, Any]:
        return {}

    monkeypatch.setattr(sync_loop, "read_append_states", look)

    async def same(source: Any, target: Any, topics: Any) -> dict[str, TopicIds]:
        return dict.fromkeys(topics, TopicIds("s", "t"))

    monkeypatch.setattr(sync_loop, "read_ids", same)
    monkeypatch.setattr(OpenGaps, "end", nothing)
    facts: Any = SimpleNamespace(read=nothing, has=lambda topic: True, rewrites_times=lambda topic: False)
    flow_of(copier).sync_loop._facts, flow_of(copier).witnesses = facts, SimpleNamespace(look=nothing)  # type: ignore[assignment]
    placed(copier, FIRST, 300)
    placed(copier, SECOND, 300)
    copier.control.value = LinkControl(copied={FIRST: 500, SECOND: 100})
    with pytest.raises(Looked):
        asyncio.run(flow_of(copier).sync_loop.sync([FIRST, SECOND]))
    assert copied == {FIRST: 500, SECOND: 300}


def test_a_topic_that_a_cluster_says_it_does_not_know_is_looked_at_again_before_its_logs_are_compared(
    copier: LinkCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its id another topic of that name, created meanwhile, would pass for the one that was copied."""

    async def nothing(*_: Any) -> dict[Any, Any]:
        return {}

    async def look(*_: Any) -> Any:
        raise Looked

    for name, found in {"read_ids": nothing, "read_append_states": look}.items():
        monkeypatch.setattr(sync_loop, name, found)
    monkeypatch.setattr(OpenGaps, "end", nothing)
    facts: Any = SimpleNamespace(read=nothing, has=lambda topic: True, rewrites_times=lambda topic: False)
    flow_of(copier).sync_loop._facts, flow_of(copier).witnesses = facts, SimpleNamespace(look=nothing)  # type: ignore[assignment]
    copy = placed(copier, FIRST, 300)
    copy.phase = Phase.SYNCING
    asyncio.run(flow_of(copier).sync_loop.sync([FIRST]))
    assert copy.phase is not Phase.COPYING and copy.troubles == 1


def test_how_far_was_copied_is_written_down_under_the_claim_alone_that_the_place_was_read_under(
    copier: LinkCopier,
) -> None:
    placed(copier, FIRST, 300)
    placed(copier, SECOND, 300).term = TERM - 1
    assert flow_of(copier).copied([FIRST, SECOND], 10.0) == {FIRST: 300}


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "hangs"])
def test_a_control_that_cannot_be_read_holds_up_no_look_at_resting_logs_and_no_lease(
    copier: LinkCopier, is_away: bool
) -> None:
    done: list[str] = []
    sleeps = iter(range(6))
    flow: Any = flow_of(copier)
    link: Any = copier.link

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)
        if next(sleeps) >= (4 if is_away else 2):
            flow.partitions.clear()

    async def refresh() -> None:
        if not is_away:
            await asyncio.Event().wait()
        raise Errors.KafkaConnectionError("away")

    async def run() -> None:
        loops: list[asyncio.Task[None]] = []
        link.tasks.spawn = lambda function: loops.append(asyncio.ensure_future(function()))
        copier._every_second(copier._watch)
        copier._every_second(copier._follow_control)
        await loops[0]
        loops[1].cancel()

    placed(copier, FIRST, 300)
    link.source.net.sleep = sleep
    copier.control.refresh = refresh  # type: ignore[method-assign, assignment]
    flow._resting = SimpleNamespace(look=lambda copies: done.append(f"look at {len(copies)}"))
    flow.drop_expired = lambda: done.append("drop")
    asyncio.run(run())
    assert done == ["look at 1", "drop", "look at 1", "drop", "look at 1", "drop"]


@pytest.mark.parametrize("is_translated", [False, True], ids=["identical", "translated"])
def test_a_control_that_may_not_be_read_any_more_stops_what_is_copied(copier: LinkCopier, is_translated: bool) -> None:
    async def hidden() -> None:
        raise orders_hidden()

    watch: Any = copier.control
    watch._read = hidden
    copy: Any = placed(copier, FIRST, 300)
    if is_translated:
        link: Any = replace(copier.link, tasks=SimpleNamespace(spawn=lambda *_: None))
        strategy: Any = translated_offsets()(link)
        copier.strategy = strategy
        copy = strategy.adopt(FIRST, 400, 200.0, 200.0)
    asyncio.run(copier._follow_control())
    assert copy.is_stopped and "we may not read topic tolerant-mirror-control" in str(copy.error)


def test_what_cannot_hear_the_operator_is_not_taken_over_again() -> None:
    """As a copier that a promotion has fenced: taken over again, it would write after the fence."""
    taken: list[bool] = []
    copy: Any = TranslatedPartition.__new__(TranslatedPartition)

    async def hidden(*_: Any) -> Any:
        raise orders_hidden()

    async def take_over() -> None:
        taken.append(True)

    copy.__dict__.update(
        partition=FIRST,
        _claims=Mock(),
        _stands_since=1.0,
        _link=SimpleNamespace(clock=lambda: 1.0),
        _parts=SimpleNamespace(reads=SimpleNamespace(copied_by_others=hidden)),
        _producer=SimpleNamespace(take_over=take_over),
    )
    with pytest.raises(OrdersHiddenError):  # which ends the copy
        asyncio.run(copy._take_over())
    assert not taken


def test_a_copier_that_loses_sight_of_its_orders_while_it_takes_over_records_no_position() -> None:
    """Its rows are those of before another copier had the partition."""
    recorded: list[bool] = []
    copy: Any = TranslatedPartition.__new__(TranslatedPartition)

    async def lost() -> None:
        copy.error = orders_hidden()

    async def record() -> None:
        recorded.append(True)

    copy.__dict__.update(
        error=None, is_released=False, is_done=False, paused=None, until=9, acked=0, hold_until=0.0, lease_until=0.0, _take_over=lost, _record_position=record, _forget=lambda: None,
        _link=SimpleNamespace(tasks=SimpleNamespace(notify=lambda: None), clock=lambda: 1.0),
    )  # fmt: skip
    asyncio.run(copy.run())
    assert not recorded and isinstance(copy.error, OrdersHiddenError)


def test_what_is_not_claimed_waits_for_the_right_that_the_claims_lack(copier: LinkCopier, now: list[float]) -> None:
    copy, claims = placed(copier, FIRST, 300), cast(Any, copier.claims)
    refused = Errors.TopicAuthorizationFailedError("not authorized")
    copier.link.target.net.run(claims._trouble, "write", refused, 0.0)
    copy.trouble("append answered X", 100.0)
    now.append(200.0)
    assert copier.waiting()[FIRST].reason == "append answered X", "it is claimed"
    claims.holds = lambda partition: False
    told = copier.waiting()[FIRST].reason
    assert told.startswith("the claim on the target's partition is over: tolerant-mirror-claims of the target: ")
    assert told.endswith("; grant the mirror Create, Describe, Read and Write on it")


@pytest.mark.parametrize("cluster", ["source", "target"])
def test_what_stands_behind_a_quota_says_so(copier: LinkCopier, now: list[float], cluster: str) -> None:
    placed(copier, FIRST, 300, until=400)
    words = f"; node 1 of the {cluster} throttles us: a quota"
    getattr(copier.link, cluster).quota_words = lambda: words
    assert copier.waiting() == {}
    now.append(now[-1] + 11.0)
    assert copier.waiting()[FIRST].reason == f"it stands at offset 300{words}"
    getattr(copier.link, cluster).quota_words = lambda: ""
    assert copier.waiting() == {}


def test_what_stood_still_without_a_quota_or_had_nothing_to_copy_does_not_count(
    copier: LinkCopier, now: list[float]
) -> None:
    copy, target = placed(copier, FIRST, 300, until=300), cast(Any, copier.link.target)
    assert copier.waiting() == {} and copier._stands == {}, "ten thousand partitions would be kept each second"
    target.quota_words = lambda: "; a quota"
    assert copier.waiting() == {}
    now.append(now[-1] + 11.0)
    copy.until = 400
    assert copier.waiting() == {}, "it had all"
    now.append(now[-1] + 11.0)
    assert copier.waiting()[FIRST].reason == "it stands at offset 300; a quota"
    now.append(now[-1] + 31.0)
    assert copier.waiting() == {}, "the quota was gone for so long"


def test_a_copy_without_an_end_learns_from_the_log_ends_what_a_quota_keeps_fetches_from_telling(
    copier: LinkCopier, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(copier, FIRST, 300)
    placed(copier, SECOND, 300)
    asked: list[float] = []

    async def ends(source: Cluster, partitions: list[TopicPartition]) -> LedOffsets:
        assert partitions == [FIRST, SECOND]
        asked.append(now[-1])
        if len(asked) == 2:
            raise Errors.KafkaConnectionError("away")
        return LedOffsets({FIRST: 301, SECOND: 300}, {})

    monkeypatch.setattr(link_copier, "stable_ends", ends)
    source = cast(Any, copier.link.source)
    asyncio.run(copier._ask_ends())
    source.quota_words = lambda: "; a quota"
    for _ in range(13):
        now.append(now[-1] + 1.0)
        asyncio.run(copier._ask_ends())
        waiting = copier.waiting()
    assert {p: wait.reason for p, wait in waiting.items()} == {FIRST: "it stands at offset 300; a quota"}
    assert asked == [101.0, 106.0, 111.0], "only while it throttles us, and not each second"


def test_patience_begins_where_a_partition_that_had_reached_its_end_is_to_go_on(copier: LinkCopier) -> None:
    copy = placed(copier, FIRST, 300, until=300)
    copy.trouble("the end of the target's log could not be read", 0.0)
    copy.resume(AppendState(300, 7, 0, 300), RULES, 1.0)
    flow_of(copier).reader.is_reading = lambda partition: True  # type: ignore[method-assign]
    flow_of(copier).adopt(FIRST, 400, 100.0, 100.0)
    copy.give_up_after(60.0, 100.0)
    assert copy.error is None and copy.phase is Phase.COPYING


def test_a_doubt_about_a_partition_that_was_adopted_anew_meanwhile_is_nothing_to_the_new_one(
    copier: LinkCopier,
) -> None:
    copies: dict[str, PartitionCopy] = {"old": placed(copier, FIRST, 300), "kept": placed(copier, SECOND, 300)}
    troubled: list[PartitionCopy] = []

    async def missing(node_id: int, doubted: Iterable[TopicPartition]) -> set[TopicPartition]:
        copies["new"] = placed(copier, FIRST, 300)
        return set(doubted)

    reader: Any = flow_of(copier).reader
    witnesses = SimpleNamespace(doubt=lambda *_, **__: True, missing=missing)
    reader._on_trouble = troubled.append
    parts = [FetchedPartition(p, 0, 400, 400, 0, (), memoryview(b"records")) for p in (FIRST, SECOND)]
    fetcher = SimpleNamespace(node_id=1, round=1, seen_at=0.0, session=SimpleNamespace(goes_by_names=True))
    asyncio.run(reader._look_again(fetcher, SimpleNamespace(partitions=parts), witnesses))
    assert troubled == [copies["kept"]] and copies["new"].phase is Phase.COPYING


def test_what_a_partition_waits_for_is_named_when_it_is_given_up_and_no_silent_source(copier: LinkCopier) -> None:
    """It is adopted before it first finds what it waits for: its patience ends a little later than that for silence."""
    copy = flow_of(copier).partitions[FIRST] = PartitionCopy(FIRST, 0.0)
    copy.until, copy.adopted_at = 500, 100.0
    copy.trouble("a transaction is open", 101.0)
    times = iter([220.5, 221.5])
    flow_of(copier).clock = lambda: next(times)
    flow_of(copier).lose_patience(FIRST)
    assert copy.error is None
    flow_of(copier).lose_patience(FIRST)
    assert "no progress for 120 s" in str(copy.error) and "a transaction is open" in str(copy.error)


@pytest.mark.parametrize("waits", [True, False])
def test_patience_begins_after_a_silent_writer_s_batches_only_where_something_waits_for_these(
    copier: LinkCopier, now: list[float], waits: bool
) -> None:
    copy = placed(copier, FIRST, 300, until=500)
    copy.adopted_at = flow_of(copier).appender.settled_at = 100.0
    copy.unread.took_over(0.0, 100.0)
    if waits:
        copy.wait_for_unread(100.0)
        copy.resume(AppendState(300, 7, 0, 300), RULES, 100.0 + LATE_S)  # its next batch is being fetched again
    patience_s = copier.link.limits.patience_ms / 1000
    begins = 100.0 + (LATE_S if waits else 0.0)
    for at in (begins + patience_s, begins + patience_s + 1.0):
        assert copy.error is None
        now.append(at)
        flow_of(copier).lose_patience(FIRST)
    assert f"the source sent nothing for {patience_s:.0f} s" in str(copy.error)


@pytest.mark.parametrize(
    "said, error",
    [
        (LinkControl(), None),
        (LinkControl(paused=frozenset({"orders"})), Errors.NotLeaderForPartitionError),
        (LinkControl(paused_partitions=frozenset({SECOND})), None),
        (LinkControl(is_promotion_begun=True), LinkPromotedError),
    ],
)
def test_what_lasts_obeys_what_the_operator_said_before_each_of_its_requests(
    copier: LinkCopier, said: LinkControl, error: type[Exception] | None
) -> None:
    placed(copier, FIRST, 300)
    copier.control.value = said
    with pytest.raises(error) if error else contextlib.nullcontext():
        flow_of(copier).require_ours(FIRST)


def test_what_lasts_ends_with_the_claim_under_which_its_place_was_read(copier: LinkCopier) -> None:
    placed(copier, FIRST, 300).term = TERM - 1  # granted again since
    with pytest.raises(Errors.NotLeaderForPartitionError, match="the claim on the target's partition is over"):
        flow_of(copier).require_ours(FIRST)


# -- translated offsets -------------------------------------------------------


class Unclaimed:
    """Claims that nobody grants."""

    problem = "the claims log hangs"

    def __init__(self) -> None:
        self.claimant: Any = SimpleNamespace(asked=(), is_run_over=False, waiting={})
        self.left: list[TopicPartition] = []

    def want(self, claims: Iterable[TopicPartition]) -> None:
        list(claims)

    def leave(self, claims: Iterable[TopicPartition]) -> None:
        self.left += claims

    def holds(self, claim: TopicPartition) -> bool:
        return False

    def rivals(self) -> dict[TopicPartition, Any]:
        return {}

    async def released(self) -> None:
        pass


@pytest.fixture
def translated() -> Iterator[tuple[LinkCopier, list[float]]]:
    """A copier of translated offsets that holds no claim, and its clock."""
    now = [100.0]
    with Cluster({"bootstrap_servers": "a:9092"}, name="source") as source:
        target = Cluster({"bootstrap_servers": "b:9092"}, source.net, name="target")
        copier = LinkCopier(source, target, translated_offsets(), clock=lambda: now[-1])
        claims = Unclaimed()
        copier.claims = claims  # type: ignore[assignment]
        copier.link = copier.strategy._link = replace(copier.link, claims=claims)  # type: ignore[arg-type, attr-defined]

        async def nothing() -> LinkControl:
            return LinkControl()

        copier.control.refresh = nothing  # type: ignore[method-assign]
        yield copier, now
        target.close()


def test_a_translated_partition_that_another_task_asks_for_in_the_middle_of_a_call_holds_it_up_no_longer(
    translated: tuple[LinkCopier, list[float]],
) -> None:
    copier, now = translated
    claims: Any = copier.claims

    async def run() -> None:
        copying = copier.link.source.net.call_soon_with_future(lambda: copier.copy_each({FIRST: 500}))
        await copier.link.source.net.sleep(0.05)
        assert not copying.is_done
        claims.claimant.asked = [copier.strategy.claim_of(FIRST)]
        copier._claims_changed()
        await copier.link.source.net.sleep(0.05)
        assert not copying.is_done, "when many ask, each gets something done"
        now.append(101.0)
        copier._claims_changed()
        done = (await copying)[FIRST]
        assert not done.is_placed and done.error is None, "its state is for its next owner to report"
        assert claims.left == [copier.strategy.claim_of(FIRST)] and not copier.strategy.partitions

    copier.link.source.run(run)


def test_a_partition_in_trouble_ends_no_lease_of_another_one_of_the_same_call(
    copier: LinkCopier, now: list[float]
) -> None:
    """The call waits for it for up to the patience, which is longer than the lease."""
    healthy, troubled = placed(copier, FIRST, 500, until=500), placed(copier, SECOND, 0, until=500)
    for copy in (healthy, troubled):
        copy.want(500, 110.0, 140.0, 100.0)
    net = copier.link.source.net

    async def run() -> None:
        settled = net.call_soon_with_future(lambda: copier._settled([healthy, troubled], 110.0, 30.0))
        for later in (120.0, 145.0, 165.0):
            now.append(later)
            copier.link.tasks.notify()
            await net.sleep(0.02)
            flow_of(copier).drop_expired()
        assert not settled.is_done
        assert flow_of(copier).partitions == {FIRST: healthy, SECOND: troubled}
        assert healthy.is_held(165.0)
        troubled.acked = 500
        copier.link.tasks.notify()
        await settled

    net.run(run)


def test_a_translated_partition_that_is_never_claimed_says_why_after_the_patience(
    translated: tuple[LinkCopier, list[float]],
) -> None:
    copier, now = translated

    async def run() -> None:
        copying = copier.link.source.net.call_soon_with_future(lambda: copier.copy_each({FIRST: 500}))
        await copier.link.source.net.sleep(0.05)
        now.append(221.0)
        copier.link.tasks.notify()
        error = (await copying)[FIRST].error
        assert "could not be claimed for 120 s: the claims log hangs" in str(error)

    copier.link.source.run(run)


def test_a_promotion_is_told_at_once_of_a_lease_though_the_target_says_nothing(
    translated: tuple[LinkCopier, list[float]],
) -> None:
    """A partition's `run` ends when what it waits for does: a call without a lease waits for it."""
    copier, _ = translated
    claims: Any = copier.claims
    strategy: Any = copier.strategy
    net = copier.link.source.net
    silence, promoted = Future(), LinkPromotedError("it was promoted")

    async def silent(partition: TopicPartition) -> TolerantClientError | None:
        return await silence  # type: ignore[no-any-return]

    async def stopped(lease_ms: int) -> Any:
        copying = net.call_soon_with_future(lambda: copier.copy_each({FIRST: 500}, lease_ms=lease_ms))
        await net.sleep(0.05)
        strategy.stop(FIRST, promoted)
        copier.link.tasks.notify()
        await net.sleep(0.05)
        return copying

    async def run() -> None:
        claims.holds, claims.term = lambda claim: True, lambda claim: TERM
        strategy._parts.reads.copied_by_others = silent
        leased = await stopped(30_000)
        assert leased.is_done and (await leased)[FIRST].error is promoted
        copying = await stopped(0)
        assert not copying.is_done
        silence.success(TargetClaimedError("another link has it"))
        assert (await copying)[FIRST].error is not None

    copier.link.source.run(run)


@pytest.mark.parametrize("is_granted_anew", [False, True])
def test_how_far_was_copied_is_written_under_the_claim_that_is_released_then(
    copier: LinkCopier, monkeypatch: pytest.MonkeyPatch, is_granted_anew: bool
) -> None:
    """A process that was frozen before the write has no claim any more: another may have copied another topic since."""
    flow, claims = flow_of(copier), cast(Any, copier.claims)
    left: list[TopicPartition] = []
    written: list[LinkControl] = []
    copy = placed(copier, FIRST, 300)
    copy.rested()

    async def update(change: Any) -> None:
        assert not left and flow.is_leaving(FIRST)
        if is_granted_anew:
            claims.term = lambda partition: TERM + 1
        written.append(change(LinkControl()))

    monkeypatch.setattr(copier.control, "update", update)
    monkeypatch.setattr(claims, "leave", left.extend)
    assert flow.copied([FIRST], 0) == {FIRST: 300}
    asyncio.run(flow.give_back([FIRST]))
    assert written == [LinkControl() if is_granted_anew else LinkControl(copied={FIRST: 300})]
    assert left == [FIRST] and not flow.is_leaving(FIRST)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_run_that_is_over_remembers_how_far_was_copied_with_what_was_in_flight_before_its_claims_are_released(
    copier: LinkCopier, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The next start may find an empty log, and believes it only if the control records how far it was copied."""
    claims, events = cast(Any, copier.claims), list[object]()
    resting, flowing = placed(copier, FIRST, 300), placed(copier, SECOND, 300)
    header = read_header(encode_batch([Record(0, 1, None, b"x")] * 10, base_offset=300))

    async def update(change: Any) -> None:
        events.append(change(LinkControl()).copied)

    async def run() -> None:
        flowing.sent(header)
        claims.claimant = SimpleNamespace(asked={FIRST, SECOND}, is_run_over=True)
        copier._claims_changed()
        await copier.link.source.net.sleep(0.02)
        copier._claims_changed()
        assert resting.is_released and flowing.is_released and not events
        flowing.in_flight -= 1
        if is_lost:
            flowing.lost(header, "append failed", 100.0)
        else:
            flowing.appended(header, ProducedPartition(FIRST, 0, 300), 100.0, 100.0)
        await copier.link.source.net.sleep(0.05)

    monkeypatch.setattr(copier.control, "update", update)
    monkeypatch.setattr(claims, "leave", lambda partitions: events.extend(partitions))
    monkeypatch.setattr(claims, "rivals", dict)
    copier.link.source.run(run)
    assert events == [{FIRST: 300} if is_lost else {FIRST: 300, SECOND: 310}, FIRST, SECOND]


def test_losses_of_a_partition_that_was_handed_over_are_told_by_who_wrote_them(
    translated: tuple[LinkCopier, list[float]],
) -> None:
    copier, now = translated

    async def run() -> None:
        copying = copier.link.source.net.call_soon_with_future(lambda: copier.copy_each({FIRST: 500}))
        await copier.link.source.net.sleep(0.05)
        copy = copier.strategy.partitions[FIRST]
        copy.losses, copy.error = 1, DataLossError("it went on")
        assert copier.held == {FIRST}
        copier.strategy.release(FIRST)
        assert not copier.held, "although it stays until nothing of it is in flight"
        copier.link.tasks.notify()
        assert (await copying)[FIRST].done_only() == (await copying)[FIRST]
        assert (await copying)[FIRST].losses == 1

    copier.link.source.run(run)


def test_a_copier_that_is_closed_between_two_calls_has_given_back_what_it_had(
    copier: LinkCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next owner of its partitions would wait until its claims expire."""
    left: list[TopicPartition] = []
    written: list[LinkControl] = []

    async def update(change: Any) -> None:
        written.append(change(LinkControl()))

    monkeypatch.setattr(copier.control, "update", update)
    monkeypatch.setattr(copier.claims, "leave", left.extend)
    placed(copier, FIRST, 300)
    placed(copier, SECOND, 5)
    asyncio.run(copier.give_back())
    assert written == [LinkControl(copied={FIRST: 300, SECOND: 5})]
    assert not copier.strategy.partitions
    assert sorted(left) == [FIRST, SECOND]
