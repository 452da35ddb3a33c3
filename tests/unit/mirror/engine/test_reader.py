"""What the reader asks a source's nodes for, and which responses it passes on."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition, FetchResult, RawFetch
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.cluster.tasks import Tasks
from tolerant_client.errors import ClusterUnreachableError, RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.engine.witnesses import Witnesses

FIRST, SECOND = (TopicPartition("orders", number) for number in range(2))
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


class Copy(CopiedPartition):
    """Accepts everything, one offset for each response."""

    records = troubles = 0
    is_placed = is_read = True
    is_stopped = is_settled = is_full = has_work = False
    paused_by = None
    source_id: uuid.UUID | None = None  # type: ignore[assignment]

    def __init__(self, partition: TopicPartition, position: int) -> None:
        super().__init__(partition, 0.0)
        self.position = position
        self.reasons: list[str] = []

    def waits(self, after_s: float, now: float) -> None:
        return None

    def leave_out(self, until_offset: int, now_ms: int) -> list[Appendable]:
        gap = Gap(self.position, until_offset)
        self.position = until_offset
        return [gap]

    def trouble(self, reason: str, now: float) -> None:
        self.reasons.append(reason)
        self.is_read = False

    def stop(self, error: TolerantClientError) -> None:
        self.error = error
        self.is_read = False


class Source:
    """Node 1 leads all, unless `leaders` names others; `respond` makes the response to a request, None means no response yet."""

    def __init__(self, net: NetworkSelector) -> None:
        self.net = net
        self.topic_id = OLD
        self.asked: list[RawFetch] = []
        self.respond: Callable[[RawFetch], list[FetchedPartition] | None] = lambda request: None
        self.manager = SimpleNamespace(cluster=SimpleNamespace(request_update=lambda: None))
        self.leaders: dict[TopicPartition, int | None] = {FIRST: 1, SECOND: 1}
        self.refreshes = 0
        self.refusal: Exception | None = None  # of the request for leaders
        self.throttle_time_ms = 0

    async def by_leader(self, partitions: Any) -> dict[int, list[TopicPartition]]:
        """Waits for elections, as Leaders does."""
        groups: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            while (node := self.leaders[partition]) is None:
                await self.net.sleep(0.005)
            groups.setdefault(node, []).append(partition)
        return groups

    def known_leader(self, partition: TopicPartition) -> int | None:
        return self.leaders[partition]

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.refusal is not None:
            raise self.refusal

    async def session(self, node_id: int, *, isolation_level: int) -> FetchSession:
        return FetchSession(11, isolation_level, None, lambda topic: self.topic_id)

    async def send_fetch(self, node_id: int, request: RawFetch) -> FetchResult:
        self.asked.append(request)
        await self.net.sleep(0.001)
        while (parts := self.respond(request)) is None:
            await self.net.sleep(0.005)
        return FetchResult(0, 7, self.throttle_time_ms, parts)


class Emptiness:
    """Once `finding` is set, returns its result for what is still wanted."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int, int]] = []
        self.finding = Future()

    async def has_no_records(
        self, partition: TopicPartition, position: int, stable: int, is_wanted: Callable[[], bool]
    ) -> bool:
        self.asked.append((partition, position, stable))
        return await self.finding and is_wanted()


class Rig:
    def __init__(self, net: NetworkSelector) -> None:
        self.source: Any = Source(net)
        self.copies = {p: Copy(p, 0) for p in (FIRST, SECOND)}
        self.now = 0.0
        self.tasks = Tasks(self.source)
        self.emptiness = Emptiness()
        self.accepted: list[tuple[TopicPartition, int]] = []
        self.enqueued: list[tuple[Copy, Appendable]] = []
        link: Any = SimpleNamespace(
            source=self.source,
            limits=CopyLimits(),
            clock=lambda: self.now,
            tasks=self.tasks,
            bucket=TokenBucket(),
            memory=Memory(1 << 30),
            emptiness=self.emptiness,
        )
        self.witnesses: Any = Witnesses(self.source, of_names=False)
        self.reader: Reader[Copy] = Reader(
            link,
            self.copies,
            self._accept,
            self.enqueued.extend,
            lambda copy: self.reader.leave(copy.partition),
            self.witnesses,
        )

    def _accept(self, copy: Copy, part: FetchedPartition, until: int | None) -> Iterator[list[Appendable]]:
        self.accepted.append((copy.partition, copy.position))
        copy.position += 1
        yield []

    def run(self, course: Callable[[], Awaitable[None]]) -> None:
        self.source.net.run(course)

    async def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_so():
                return
            await self.source.net.sleep(0.002)
        raise AssertionError("it never came")


def part(partition: TopicPartition, records: bytes = b"records") -> FetchedPartition:
    return FetchedPartition(partition, 0, 100, 100, 0, (), memoryview(records))


@pytest.fixture
def rig() -> Iterator[Rig]:
    net = NetworkSelector()
    yield Rig(net)
    net.close()


def test_what_was_asked_for_before_a_partition_joined_anew_is_dropped(rig: Rig) -> None:
    """Its position has changed since: the response would be taken for what lies at the new one."""

    async def run() -> None:
        rig.source.respond = lambda request: None
        await rig.reader.join([FIRST])
        await rig.until(lambda: len(rig.source.asked) == 1)
        rig.copies[FIRST].position = 50
        await rig.reader.join([FIRST])
        rig.source.respond = lambda request: [part(FIRST)] if len(rig.source.asked) < 3 else None
        await rig.until(lambda: len(rig.source.asked) == 3)
        assert [request.positions for request in rig.source.asked[:2]] == [{FIRST: 0}, {FIRST: 50}]
        assert rig.accepted == [(FIRST, 50)]

    rig.run(run)


def test_a_topic_with_another_id_than_the_one_that_was_placed_is_not_read(rig: Rig) -> None:
    """1. A partition is placed.  2. Its topic is created again, as metadata show.  3. The partition joins the reader."""

    async def run() -> None:
        rig.copies[FIRST].source_id = OLD
        rig.source.topic_id = NEW
        rig.source.respond = lambda request: [part(FIRST), part(SECOND)] if len(rig.source.asked) == 1 else None
        await rig.reader.join([FIRST, SECOND])
        await rig.until(lambda: len(rig.source.asked) == 2)
        assert rig.copies[FIRST].reasons == ["its topic was created again on the source"]
        assert rig.accepted == [(SECOND, 0)]

    rig.run(run)


def test_a_partition_that_has_enough_is_left_out_until_it_has_less(rig: Rig) -> None:
    async def run() -> None:
        copy = rig.copies[FIRST]
        copy.is_full = True
        rig.source.respond = lambda request: [part(p) for p in request.positions] or [part(FIRST)]
        await rig.reader.join([FIRST])
        await rig.until(lambda: copy.was_full)
        await rig.source.net.sleep(0.05)
        assert len(rig.source.asked) == 1 and rig.accepted == []
        copy.is_full = False
        rig.source.respond = lambda request: [part(FIRST)] if len(rig.source.asked) == 2 else None
        rig.reader.rejoin(copy)
        await rig.until(lambda: rig.accepted == [(FIRST, 0)])
        assert not copy.was_full and rig.source.asked[1].session_epoch == 1, "in the session it had before"

    rig.run(run)


def reset(request: RawFetch) -> NoReturn:
    raise Errors.KafkaConnectionError("reset")


@pytest.mark.parametrize("leader", [2, None], ids=["elsewhere", "none"])
def test_a_connection_that_breaks_has_those_partitions_alone_placed_anew_that_its_node_leads_no_longer(
    rig: Rig, leader: int | None
) -> None:
    """1. The connection breaks.  2. SECOND has no leader yet.  3. FIRST is fetched at once from its leader."""

    async def run() -> None:
        rig.source.respond = lambda request: reset(request) if len(rig.source.asked) == 1 else None
        await rig.reader.join([FIRST, SECOND])
        rig.source.leaders[SECOND] = leader
        await rig.until(lambda: len(rig.source.asked) == 2)
        assert rig.source.asked[1].positions == {FIRST: 0} and rig.source.refreshes == 1
        assert rig.copies[SECOND].reasons == ["node 1 no longer leads"] and not rig.copies[FIRST].reasons
        assert rig.tasks.failure is None

    rig.run(run)


def test_what_comes_after_a_connection_broke_is_believed_where_the_node_shows_what_it_had(rig: Rig) -> None:
    """Its disks may have been restored: FIRST still has the last batch that was taken, SECOND has a different one."""

    async def missing(node_id: int, doubted: Any) -> set[TopicPartition]:
        asked.append(set(doubted))
        return {SECOND} & set(doubted)

    asked: list[set[TopicPartition]] = []
    rig.witnesses.missing = missing

    async def run() -> None:
        for copy in rig.copies.values():
            copy.position = 50
        responses: dict[int, Any] = {1: [part(FIRST)], 2: None, 3: [part(FIRST), part(SECOND)]}

        def respond(request: RawFetch) -> Any:
            now = len(rig.source.asked)
            return reset(request) if now == 2 else responses.get(now)

        rig.source.respond = respond
        await rig.reader.join([FIRST, SECOND])
        await rig.until(lambda: len(rig.source.asked) == 4)
        assert asked == [{FIRST, SECOND}]
        assert rig.accepted == [(FIRST, 50), (FIRST, 51)] and len(rig.copies[SECOND].reasons) == 1

    rig.run(run)


def test_a_source_that_tells_no_leaders_ends_nothing_before_the_patience_of_its_partitions_is_over(rig: Rig) -> None:
    async def run() -> None:
        rig.source.refusal, rig.source.respond = ClusterUnreachableError("nobody is there"), reset
        rig.copies[SECOND].is_read = False
        await rig.reader.join([FIRST, SECOND])
        await rig.until(lambda: rig.source.refreshes >= 3)
        assert rig.tasks.failure is None and rig.reader.is_reading(FIRST)
        rig.now = CopyLimits().patience_ms / 1000 + 1
        await rig.until(lambda: not rig.reader.is_reading(FIRST))
        assert isinstance(rig.copies[FIRST].error, RecoveryExhaustedError) and rig.tasks.failure is None
        assert "node 1 of the source responded to no fetch for 120 s at offset -1" in str(rig.copies[FIRST].error)
        assert rig.copies[SECOND].error is None, "it is not read from that node"

    rig.run(run)


def test_the_patience_with_a_node_begins_anew_with_each_response(rig: Rig) -> None:
    def respond(request: RawFetch) -> list[FetchedPartition] | None:
        """Resets, 70 s apart, with a response between the first and the second."""
        if len(rig.source.asked) > 4:
            return None
        rig.now = 70.0 * len(rig.source.asked)
        return [] if len(rig.source.asked) == 2 else reset(request)

    async def run() -> None:
        rig.source.respond = respond
        await rig.reader.join([FIRST])
        await rig.until(lambda: rig.source.refreshes == 3)
        assert rig.copies[FIRST].error is None and rig.reader.is_reading(FIRST)

    rig.run(run)


def test_an_election_that_lasts_holds_up_no_other_partition_that_joins(rig: Rig) -> None:
    async def run() -> None:
        rig.source.leaders[FIRST] = None
        rig.tasks.spawn(rig.reader.try_join, [FIRST, SECOND])
        await rig.until(lambda: len(rig.source.asked) == 1)
        assert rig.source.asked[0].positions == {SECOND: 0}
        rig.source.leaders[FIRST] = 1
        await rig.until(lambda: rig.reader.is_reading(FIRST))

    rig.run(run)


def test_a_partition_that_is_left_out_does_not_wait_for_a_long_poll_of_the_others(rig: Rig) -> None:
    async def run() -> None:
        rig.copies[FIRST].is_full = True
        rig.source.respond = lambda request: [part(p) for p in (FIRST,) if p in request.positions]
        await rig.reader.join([FIRST, SECOND])
        await rig.until(lambda: len(rig.source.asked) >= 4)
        assert [request.max_wait_ms for request in rig.source.asked[:4]] == [10] * 4
        rig.copies[FIRST].is_full = False
        rig.source.respond = lambda request: []
        rig.reader.rejoin(rig.copies[FIRST])
        await rig.until(lambda: rig.source.asked[-1].max_wait_ms == CopyLimits().fetch_wait_ms(2))

    rig.run(run)


# -- offsets without records --------------------------------------------------


async def dry(rig: Rig) -> None:
    """The source reported 100 stable offsets for FIRST, and no records come."""
    rig.copies[FIRST].last_stable_offset = 100
    rig.source.respond = lambda request: []
    await rig.reader.join([FIRST])
    await passes(rig, 0.0)


async def passes(rig: Rig, seconds: float) -> None:
    """This much time, and some rounds after it."""
    rig.now += seconds
    rounds = len(rig.source.asked)
    await rig.until(lambda: len(rig.source.asked) > rounds + 2)


def test_offsets_without_records_are_gone_over_once_the_source_shows_none_for_2_s_and_alone(rig: Rig) -> None:
    async def run() -> None:
        await dry(rig)
        for _ in range(2):
            await passes(rig, 1.0)
        assert rig.emptiness.asked == []
        await passes(rig, 1.0)
        assert rig.emptiness.asked == [(FIRST, 0, 100)] and rig.enqueued == []
        rig.emptiness.finding.success(True)
        await rig.until(lambda: any(request.positions == {FIRST: 100} for request in rig.source.asked))
        assert rig.enqueued == [(rig.copies[FIRST], Gap(0, 100))]

    rig.run(run)


def test_offsets_of_which_a_fetch_alone_shows_records_are_not_gone_over(rig: Rig) -> None:
    async def run() -> None:
        await dry(rig)
        for _ in range(3):
            await passes(rig, 1.0)
        rig.emptiness.finding.success(False)
        await passes(rig, 0.0)
        assert rig.enqueued == [] and rig.copies[FIRST].position == 0
        await passes(rig, 2.5)
        assert len(rig.emptiness.asked) == 2, "it is checked again"

    rig.run(run)


def test_under_a_quota_a_partition_is_dry_once_each_other_one_had_its_turn(rig: Rig) -> None:
    async def run() -> None:
        rig.source.throttle_time_ms = 9_000
        await dry(rig)
        for _ in range(5):
            await passes(rig, 1.0)
        assert rig.emptiness.asked == [], "a response that throttles shows nothing"
        rig.source.throttle_time_ms = 0
        await passes(rig, 0.0)  # a response that was on its way still throttles
        await passes(rig, 1.0)
        assert rig.emptiness.asked == [(FIRST, 0, 100)]

    rig.run(run)


def test_a_partition_is_dry_by_the_responses_of_the_node_that_leads_it_now(rig: Rig) -> None:
    async def run() -> None:
        rig.source.respond = lambda request: []
        await rig.reader.join([SECOND])
        await rig.until(lambda: len(rig.source.asked) > 100)
        await passes(rig, 1.0)
        await dry(rig)
        await passes(rig, 1.0)
        rig.source.leaders[FIRST] = 2
        await rig.reader.join([FIRST])
        for _ in range(4):
            await passes(rig, 1.0)
        assert rig.emptiness.asked == [(FIRST, 0, 100)]

    rig.run(run)


def test_records_that_come_after_all_end_a_dry_spell(rig: Rig) -> None:
    async def run() -> None:
        await dry(rig)
        await passes(rig, 1.0)
        rig.source.respond = lambda request: [part(FIRST)] if not rig.accepted else []
        await rig.until(lambda: len(rig.accepted) == 1)
        for _ in range(3):
            await passes(rig, 1.0)
        assert rig.emptiness.asked == [], "the 2 s begin with the records"
        await passes(rig, 1.0)
        assert rig.emptiness.asked == [(FIRST, 1, 100)]

    rig.run(run)


@pytest.mark.parametrize("meanwhile", ["records", "work", "trouble", "anew"])
def test_a_check_for_records_counts_for_nothing_once_the_partition_is_another_one(rig: Rig, meanwhile: str) -> None:
    async def run() -> None:
        await dry(rig)
        for _ in range(3):
            await passes(rig, 1.0)
        copy = rig.copies[FIRST]
        if meanwhile == "records":
            rig.source.respond = lambda request: [part(FIRST)] if not rig.accepted else []
            await rig.until(lambda: len(rig.accepted) == 1)
        elif meanwhile == "work":
            copy.has_work = True
        elif meanwhile == "trouble":
            copy.trouble("its leader has changed", rig.now)
        else:
            rig.copies[FIRST] = Copy(FIRST, 0)
        assert len(rig.emptiness.asked) == 1
        rig.emptiness.finding.success(True)
        await passes(rig, 0.0)
        assert rig.enqueued == [] and copy.position == (1 if meanwhile == "records" else 0)

    rig.run(run)


@pytest.mark.parametrize("meanwhile", ["nothing", "joins anew", "leaves", "moves", "fails"])
def test_the_loop_turns_while_a_long_response_is_taken_and_nothing_is_taken_twice(rig: Rig, meanwhile: str) -> None:
    """Each step takes 15 ms: the claims are renewed after at most two, and have all that was taken enqueued before."""
    copy, seen = rig.copies[FIRST], set()

    def accept(copy: Copy, part: FetchedPartition, until: int | None) -> Iterator[list[Appendable]]:
        for _ in range(6):
            rig.now += 0.015
            copy.position += 1
            yield [Gap(copy.position - 1, copy.position)]

    async def other() -> None:
        while len(rig.source.asked) < 2 and 50 not in seen:
            if copy.is_read:
                assert meanwhile == "moves" or len(rig.enqueued) == copy.position
            seen.add(copy.position)
            if copy.position == 2:
                if meanwhile == "joins anew":
                    rig.tasks.spawn(rig.reader.join, [FIRST])
                elif meanwhile == "leaves":
                    rig.reader.leave(FIRST)
                elif meanwhile == "moves":
                    copy.position = 50
                elif meanwhile == "fails":
                    copy.trouble("it fails", 0.0)
            await rig.source.net.sleep(0)

    async def run() -> None:
        rig.reader._accept = accept
        rig.source.respond = lambda request: [part(FIRST)] if len(rig.source.asked) == 1 else None
        rig.tasks.spawn(other)
        await rig.reader.join([FIRST])
        await rig.until(lambda: len(rig.enqueued) >= (6 if meanwhile == "nothing" else 2))
        await rig.source.net.sleep(0.02)
        if meanwhile == "nothing":
            assert {2, 4} <= seen and len(rig.enqueued) == 6 and rig.source.asked[1].positions == {FIRST: 6}
        else:
            assert len(rig.enqueued) == 2
        if meanwhile == "joins anew":
            assert rig.source.asked[1].positions == {FIRST: 2}

    rig.run(run)
    assert rig.tasks.failure is None


def test_a_lease_that_is_renewed_between_two_steps_of_a_response_is_read_on(rig: Rig) -> None:
    copy = rig.copies[FIRST]
    copy.until = 6

    def accept(copy: Copy, part: FetchedPartition, until: int | None) -> Iterator[list[Appendable]]:
        while copy.position < (until or 0):
            rig.now += 0.015
            copy.position += 1
            yield [Gap(copy.position - 1, copy.position)]

    async def renew() -> None:
        while copy.position != 2:
            await rig.source.net.sleep(0)
        assert rig.reader.is_reading(FIRST), "nobody has to start it"
        copy.until = 20

    async def run() -> None:
        rig.reader._accept = accept
        rig.source.respond = lambda request: [part(FIRST)] if FIRST in request.positions else None
        rig.tasks.spawn(renew)
        await rig.reader.join([FIRST])
        await rig.until(lambda: copy.position == 20)

    rig.run(run)
    assert rig.tasks.failure is None
