"""The order in which the appender sends: law F of partition.py, with a target that responds when the test tells it to."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin import topics
from tolerant_client.cluster.connections import lane_of
from tolerant_client.cluster.held_up import HeldUp
from tolerant_client.cluster.produce import ProducedPartition, ProduceResult
from tolerant_client.mirror.batches.appendable import AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.identical import append
from tolerant_client.mirror.engine.identical.append import Appender
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.unread import LATE_S
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, read_header

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW_MS = int(time.time() * 1000)
RULES = AppendRules(False, False, 1 << 20, remembered_ms=3_600_000, filler=GapFill.TRANSACTIONS)


class Target:
    """Keeps what was sent; `answer` settles the oldest request."""

    def __init__(self, spawn: Callable[..., None], clock: Callable[[], float]) -> None:
        self.held_up = HeldUp(clock)
        self.manager = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda partition: 1))
        self.sent: list[tuple[dict[TopicPartition, memoryview], Future]] = []
        self.throttled = 0.0
        self.net = SimpleNamespace(call_soon=spawn)
        self.topic_ids: list[dict[TopicPartition, uuid.UUID]] = []
        self.lanes: list[str] = []

    def paused_s(self, node_id: int) -> float:
        return self.throttled

    def throttle_s(self, lane: str) -> float:
        return self.throttled

    async def sendable(self, node_id: int) -> None:
        self.throttled = 0.0
        await asyncio.sleep(0)

    def produce(
        self,
        node_id: int,
        batches: Mapping[TopicPartition, memoryview],
        *,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        lane: str,
    ) -> Future:
        self.lanes.append(lane)
        self.topic_ids.append(dict(topic_ids))
        future = Future()
        self.sent.append((dict(batches), future))
        self.held_up.sent(lane_of(lane, node_id), future)
        return future

    def answer(
        self, base_offsets: Mapping[TopicPartition, int], error_code: int = 0, throttle_time_ms: int = 0
    ) -> None:
        batches, future = self.sent.pop(0)
        future.success(
            ProduceResult([ProducedPartition(p, error_code, base_offsets[p]) for p in batches], throttle_time_ms)
        )


class Filler:
    """Fills when the test tells it to."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, Gap, asyncio.Future[int]]] = []

    async def fill(
        self, partition: TopicPartition, gap: Gap, *, max_batch_bytes: int, topic_id: uuid.UUID | None
    ) -> int:
        future = asyncio.get_running_loop().create_future()
        self.asked.append((partition, gap, future))
        return await future


class Rig:
    def __init__(self) -> None:
        self.target, self.filler = Target(self._spawn, lambda: self.now), Filler()
        self._tasks: list[asyncio.Task[None]] = []
        self.claimed = True
        self.now = 0.0
        self.memory = Memory(1 << 20)
        link: Any = SimpleNamespace(
            target=self.target,
            limits=CopyLimits(),
            clock=lambda: self.now,
            memory=self.memory,
            tasks=SimpleNamespace(spawn=self._spawn),
        )
        fillers = {GapFill.TRANSACTIONS: self.filler}
        self.appender = Appender(link, fillers, self.holds, self._answered, lambda copy: None)
        self.copies = {p: PartitionCopy(p, 0.0) for p in (FIRST, SECOND)}
        for copy in self.copies.values():
            copy.resume(AppendState(0, 4711, 0, 0), RULES, 0.0)

    def holds(self, copy: PartitionCopy) -> bool:
        return self.claimed

    def _spawn(self, function: Callable[..., Any], *args: Any) -> None:
        self._tasks.append(asyncio.create_task(function(*args)))

    def _answered(self, copies: list[PartitionCopy]) -> None:
        """What the copier does with a partition in trouble."""
        for copy in copies:
            if copy.phase is not Phase.COPYING:
                self.appender.drop(copy)

    def enqueue(self, partition: TopicPartition, *items: Gap | tuple[BatchHeader, memoryview]) -> None:
        self.appender.enqueue([(self.copies[partition], item) for item in items])


def batch(base_offset: int, count: int = 5, timestamp: int = NOW_MS, size: int = 1) -> tuple[BatchHeader, memoryview]:
    records = [Record(0, timestamp, None, b"x" * size)] * count
    view = memoryview(bytearray(encode_batch(records, base_offset=base_offset)))
    return read_header(view), view


def test_a_way_that_nothing_fills_stops_its_partition_and_not_the_copier() -> None:
    async def run() -> None:
        rig = Rig()
        for partition, filler in ((FIRST, GapFill.MARKERS), (SECOND, GapFill.TRANSACTIONS)):
            rig.copies[partition].resume(AppendState(0, 4711, 0, 0), RULES._replace(filler=filler), 0.0)
            rig.enqueue(partition, Gap(0, 6))
        for _ in range(3):
            await asyncio.sleep(0)
        assert [partition for partition, _, _ in rig.filler.asked] == [SECOND]
        assert rig.copies[FIRST].phase is Phase.DRAINING and rig.copies[FIRST].is_drained

    asyncio.run(run())


def test_gap_waits_for_what_is_before_it_and_holds_back_what_is_behind() -> None:
    async def run() -> None:
        rig = Rig()
        rig.enqueue(FIRST, batch(0), Gap(5, 6), batch(6))
        await asyncio.sleep(0)
        assert len(rig.target.sent) == 1 and not rig.filler.asked, "the gap waits"
        rig.target.answer({FIRST: 0})
        await asyncio.sleep(0)
        ((partition, gap, filled),) = rig.filler.asked
        assert (partition, gap, rig.target.sent) == (FIRST, Gap(5, 6), [])
        # What arrives while the gap is being filled must not overtake it: its sequence would fit.
        rig.enqueue(FIRST, batch(11))
        rig.enqueue(SECOND, batch(0))
        await asyncio.sleep(0)
        assert [list(batches) for batches, _ in rig.target.sent] == [[SECOND]], "other partitions continue"
        rig.target.answer({SECOND: 0})
        await asyncio.sleep(0)
        assert not rig.target.sent
        filled.set_result(6)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(rig.filler.asked) == 1 and len(rig.target.sent) == 2
        rig.target.answer({FIRST: 6})
        rig.target.answer({FIRST: 11})
        assert (rig.copies[FIRST].acked, rig.copies[FIRST].filled, rig.memory.in_flight) == (16, 1, 0)

    asyncio.run(run())


def test_nothing_goes_out_without_a_claim_and_what_waits_is_dropped() -> None:
    async def run() -> None:
        rig = Rig()
        rig.enqueue(FIRST, batch(0), Gap(5, 6))
        rig.claimed = False
        rig.enqueue(SECOND, batch(0))
        rig.target.answer({FIRST: 0})
        await asyncio.sleep(0)
        assert not rig.target.sent and not rig.filler.asked
        assert {copy.phase for copy in rig.copies.values()} == {Phase.DRAINING}
        assert [len(copy.queue) for copy in rig.copies.values()] == [0, 0]

    asyncio.run(run())


@pytest.mark.parametrize("outcome", [5, 7, Errors.KafkaConnectionError("away")])
def test_nothing_goes_out_behind_a_gap_that_was_not_filled(outcome: int | Errors.KafkaError) -> None:
    async def run() -> None:
        rig = Rig()
        rig.enqueue(FIRST, Gap(0, 6), batch(6))
        await asyncio.sleep(0)
        filled = rig.filler.asked[0][2]
        if isinstance(outcome, int):
            filled.set_result(outcome)
        else:
            filled.set_exception(outcome)
        copy = rig.copies[FIRST]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert copy.phase is Phase.DRAINING and copy.is_drained
        assert not rig.target.sent and rig.memory.in_flight == 0

    asyncio.run(run())


@pytest.mark.parametrize("timestamp", [NOW_MS - 3_600_001, 1, -1], ids=["just too old", "1970", "none"])
def test_old_records_are_in_flight_one_request_a_node_with_one_batch_a_partition(timestamp: int) -> None:
    async def run() -> None:
        rig = Rig()
        for partition in (FIRST, SECOND):
            rig.enqueue(partition, *(batch(5 * n, timestamp=timestamp) for n in range(3)))
        sent = []
        while rig.target.sent:
            assert len(rig.target.sent) == 1 and set(rig.target.lanes) == {"produce-old"}
            batches = dict(rig.target.sent[0][0])
            sent += list(batches)
            rig.target.answer({p: rig.copies[p].acked for p in batches})
        assert sorted(sent) == 3 * [FIRST] + 3 * [SECOND]
        assert [copy.acked for copy in rig.copies.values()] == [15, 15]

    asyncio.run(run())


def test_old_records_hold_up_no_others_and_a_partition_of_both_stays_in_order() -> None:
    """Law A: each kind has a connection, and between two of them nothing has an order."""

    async def run() -> None:
        rig = Rig()
        rig.enqueue(SECOND, batch(0))
        rig.enqueue(FIRST, batch(0, timestamp=1), batch(5, timestamp=1), batch(10), batch(15), batch(20, timestamp=1))
        rig.target.answer({SECOND: 0})
        rig.enqueue(SECOND, batch(5), batch(10), batch(15, timestamp=1))
        seen = []
        while in_flight := [list(batches) for batches, _ in rig.target.sent]:
            seen.append((in_flight, rig.target.lanes[-len(in_flight) :]))
            rig.target.answer({p: copy.acked for p, copy in rig.copies.items()})
        assert seen[0] == ([[FIRST], [SECOND], [SECOND]], ["produce-old", "produce", "produce"])
        assert all(lanes.count("produce-old") <= 1 for _, lanes in seen)
        lanes_of_first = [{lanes[n] for n, p in enumerate(sent) if FIRST in p} for sent, lanes in seen]
        assert max(map(len, lanes_of_first)) == 1 and {"produce"} in lanes_of_first
        assert [copy.acked for copy in rig.copies.values()] == [25, 20]
        assert not any(copy.troubles for copy in rig.copies.values())

    asyncio.run(run())


@pytest.mark.parametrize("last_ms", [NOW_MS, 1, None], ids=["newer", "old", "none"])
def test_old_records_wait_after_newer_ones_while_what_a_silent_writer_sent_may_come(last_ms: int | None) -> None:
    async def run() -> None:
        rig = Rig()
        for copy in rig.copies.values():
            copy.unread.took_over(LATE_S - 60.0, 0.0)
            copy.resume(AppendState(0, 4711, 0, 0, last_ms=last_ms), RULES, 0.0)
        rig.enqueue(FIRST, batch(0, timestamp=1))
        rig.enqueue(SECOND, batch(0), batch(5, timestamp=1))
        assert len(rig.target.sent) == (1 if last_ms == NOW_MS else 2)
        while rig.target.sent:
            rig.target.answer({p: copy.acked for p, copy in rig.copies.items()})
        first, second = rig.copies.values()
        assert (first.acked, second.acked) == (0 if last_ms == NOW_MS else 5, 5)
        assert second.is_drained and second.not_before == 60.0 and not second.troubles
        assert second.waits(0.0, 1.0) == (0.0, second.unread.reason) and "old records" in second.unread.reason
        rig.now = second.read_at = 60.0
        second.resume(AppendState(5, 4711, 0, 5, last_ms=NOW_MS), RULES, 60.0)
        rig.enqueue(SECOND, batch(5, timestamp=1))
        assert len(rig.target.sent) == 1 and second.waits(0.0, 60.0) is None

    asyncio.run(run())


def test_what_was_lost_while_a_quota_throttles_is_awaited_before_old_records() -> None:
    async def run() -> None:
        rig = Rig()
        rig.enqueue(FIRST, batch(0))
        rig.target.answer({FIRST: 0})
        rig.enqueue(FIRST, batch(5), batch(10))
        rig.target.throttled = 40.0
        rig.target.answer({FIRST: 5}, throttle_time_ms=40_000)
        rig.target.throttled = 0.0
        _, future = rig.target.sent.pop(0)
        future.failure(Errors.KafkaConnectionError("cut off"))
        assert rig.copies[FIRST].unread.lost_until == 40.0

    asyncio.run(run())


def test_it_is_held_up_by_a_throttle_for_half_a_minute_and_by_a_node_that_says_nothing_for_a_second() -> None:
    async def run() -> None:
        rig = Rig()
        seen = [rig.target.held_up.is_now()]
        rig.enqueue(FIRST, batch(0))
        for rig.now in (1.0, 1.1):
            seen.append(rig.target.held_up.is_now())
        rig.target.answer({FIRST: 0})
        rig.enqueue(FIRST, batch(5), batch(10))
        seen.append(rig.target.held_up.is_now())
        rig.target.answer({FIRST: 5}, throttle_time_ms=400)
        _, cut_off = rig.target.sent.pop(0)
        cut_off.failure(Errors.KafkaConnectionError("its connection is closed, which ends no throttle at the node"))
        for rig.now in (1.2, 2.0, 31.4, 31.6):
            assert rig.appender.throttled_until <= 1.2
            seen.append(rig.target.held_up.is_now())
        assert seen == [False, False, True, False, True, True, True, False]

    asyncio.run(run())


def test_it_is_held_up_by_a_node_that_responds_each_second_and_has_many_requests_in_flight() -> None:
    async def run() -> None:
        rig, seen = Rig(), []
        rig.enqueue(FIRST, batch(0))  # the first one goes alone
        rig.target.answer({FIRST: 0})
        rig.enqueue(FIRST, *(batch(5 * number) for number in range(1, 5)))
        for number, rig.now in enumerate((0.6, 1.2, 1.8), 1):
            seen.append(rig.target.held_up.is_now())
            rig.target.answer({FIRST: 5 * number})
        assert seen == [False, True, True] and rig.target.sent

    asyncio.run(run())


def test_nothing_is_sent_while_the_broker_throttles_and_no_partition_is_in_trouble() -> None:
    async def run() -> None:
        rig = Rig()
        rig.target.throttled = 11.0
        rig.enqueue(FIRST, batch(0), batch(5))
        rig.enqueue(SECOND, batch(0))
        assert rig.target.sent == []
        while rig.target.throttled:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [sorted(sent) for sent, _ in rig.target.sent] == [[FIRST, SECOND]]
        assert all(copy.phase is Phase.COPYING and copy.in_flight for copy in rig.copies.values())

    asyncio.run(run())


def test_requests_and_what_is_in_flight_grow_until_a_quota_and_then_a_request_has_what_it_takes_in_a_second() -> None:
    async def run() -> None:
        rig = Rig()
        queued = [(copy, batch(n, 1, size=500_000)) for n in range(20) for copy in rig.copies.values()]
        rig.appender.enqueue(queued)
        seen, appended = [], Counter[TopicPartition]()
        for throttle_time_ms in [0, 0, 0, 0, 300, 0, 0, 0, 0]:
            seen.append([len(batches) for batches, _ in rig.target.sent])
            partitions = rig.target.sent[0][0].keys()
            rig.target.answer(appended, throttle_time_ms=throttle_time_ms)
            appended.update(partitions)
        assert seen[:5] == [[2], [2, 2], [2, 2, 1], [2, 1, 2, 1], [1, 2, 1, 2, 1]]
        assert [len(requests) for requests in seen[5:]] == [4, 3, 2, 1], "nothing more until the quota has taken it"
        assert [len(batches) for batches, _ in rig.target.sent] == [1], "a batch has more than that"

    asyncio.run(run())


def test_nothing_of_a_partition_follows_a_batch_that_was_refused_or_lost() -> None:
    async def run() -> None:
        for settle in (
            lambda target: target.answer({FIRST: -1}, error_code=Errors.NotLeaderForPartitionError.errno),
            lambda target: target.sent.pop(0)[1].failure(Errors.KafkaConnectionError("away")),
        ):
            rig = Rig()
            rig.enqueue(FIRST, *(batch(5 * n, size=500_000) for n in range(3)))  # more than may be in flight
            rig.target.answer({FIRST: 0})
            assert len(rig.target.sent) == 1 and rig.copies[FIRST].queue
            settle(rig.target)
            assert rig.target.sent == [] and rig.copies[FIRST].phase is not Phase.COPYING

    asyncio.run(run())


def test_many_requests_that_fail_at_once_as_those_to_a_node_that_is_away_are_all_settled() -> None:
    async def run() -> None:
        rig, many = Rig(), [TopicPartition("many", n) for n in range(400)]
        rig.copies = {p: PartitionCopy(p, 0.0) for p in many}
        for copy in rig.copies.values():
            copy.resume(AppendState(0, 4711, 0, 0), RULES, 0.0)
        rig.target.throttled = 5.0  # so all wait
        for partition in many:
            rig.enqueue(partition, batch(0, size=60_000))
        window = rig.appender._senders[1, False].window
        window.room_bytes = 1 << 16  # a small quota: one batch a request
        rig.target.throttled = 0.0
        away = Future().failure(Errors.NodeNotReadyError("node 1"))
        rig.target.produce = lambda *args, **kwargs: away  # type: ignore[method-assign]
        window.flush()
        assert not window.in_flight and not rig.memory.in_flight
        assert {copy.in_flight for copy in rig.copies.values()} == {0}

    asyncio.run(run())


def test_batches_are_for_the_topics_whose_logs_were_read() -> None:
    async def run() -> None:
        rig = Rig()
        ids = {FIRST: uuid.uuid4(), SECOND: uuid.uuid4()}  # created again between the two reads
        for partition, topic_id in ids.items():
            rig.copies[partition].resume(AppendState(0, 4711, 0, 0, topic_id), RULES, 0.0)
            rig.enqueue(partition, batch(0))
        rig.target.answer({FIRST: 0})
        assert rig.target.topic_ids == [{FIRST: ids[FIRST]}, {SECOND: ids[SECOND]}]

    asyncio.run(run())


def test_what_is_sent_after_a_freeze_waits_for_what_is_in_flight_and_a_look_at_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law H: responses that arrived before the freeze make no log look fresh."""

    async def run() -> None:
        rig, looks = Rig(), []

        async def look(target: Any, node_id: int, partitions: Any) -> dict[TopicPartition, int]:
            looks.append((list(partitions), rig.copies[FIRST].in_flight))
            return {FIRST: 15}

        monkeypatch.setattr(append, "replicated_ends_at", look)
        rig.enqueue(FIRST, *(batch(5 * n, size=150_000) for n in range(10)))  # two are in flight at first
        rig.target.answer({FIRST: 0})
        assert len(rig.target.sent) == 2
        rig.now = 5.0  # frozen: both responses wait in the socket
        rig.target.answer({FIRST: 5})
        assert len(rig.target.sent) == 1, "nothing follows an old response"
        rig.target.answer({FIRST: 10})
        assert rig.target.sent == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert looks == [([FIRST], 1)] and rig.copies[FIRST].acked == 15 and rig.target.sent

    asyncio.run(run())


def test_a_gap_whose_topic_was_made_anew_while_it_was_filled_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        rig = Rig()

        async def other(target: Any, topics: Any) -> dict[str, uuid.UUID]:
            return {"orders": uuid.uuid4()}

        monkeypatch.setattr(topics, "present_ids", other)
        rig.copies[FIRST].resume(AppendState(0, 4711, 0, 0, uuid.uuid4()), RULES, 0.0)
        rig.enqueue(FIRST, Gap(0, 6))
        await asyncio.sleep(0)
        rig.now = 1.0
        rig.filler.asked[0][2].set_result(6)
        for _ in range(3):
            await asyncio.sleep(0)
        copy = rig.copies[FIRST]
        assert copy.is_drained and copy.filled == 0

    asyncio.run(run())
