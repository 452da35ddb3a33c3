"""What a translated copier commits, and what it sends again, when its target refuses, throttles or rewrites what is sent."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import kafka.errors as Errors
import pytest
from kafka.errors import OffsetNotAvailableError
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import OffsetAndEpoch
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.produce import ProducedPartition, ProduceResult
from tolerant_client.cluster.produce_window import ProduceTurns
from tolerant_client.errors import OversizedRecordError, PartitionRefusedError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.limits import CopyLimits, TransactionLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.mirror.engine.translated.refusals import Refusals
from tolerant_client.mirror.engine.translated.target_checks import Resumption, TopicPair
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.offset_map import MapRow
from tolerant_client.mirror.state.topics import TopicFacts
from tolerant_client.records.codecs import NONE, ZSTD
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, iter_batches, read_header

P = TopicPartition("orders", 0)
LARGE = 20_000  # a batch that is not merged with its neighbours
TOO_LARGE, BAD_TIME, OUT_OF_ORDER = 10, 32, 45


def batch(first: int, count: int = 1, size: int = LARGE, codec: int = NONE) -> bytes:
    records = [Record(0, 1_000, b"%d" % n, bytes(size)) for n in range(first, first + count)]
    return encode_batch(records, base_offset=first, codec=codec)


class World:
    """A source log, and a target that knows an epoch from its first batch on; `answers` are made after `delay` loops."""

    def __init__(self, net: NetworkSelector) -> None:
        self.net = net
        self.log: list[bytes] = []
        self.now = 0.0
        self.limits = TransactionLimits(linger_ms=0)
        self.facts = TopicFacts(False, 1 << 20, None)
        self.code: Callable[[BatchHeader, memoryview], int] = lambda header, data: 0
        self.append_time = -1
        self.throttle_ms = 0
        self.paused_until = 0.0
        self.sent: list[int] = []  # sequences
        self.open: list[memoryview] = []
        self.committed: list[memoryview] = []
        self.positions: list[int] = []
        self.aborted = 0
        self.reads = 0  # of both logs
        self.epoch = 0
        self.end = 0
        self.leader_epoch = self.map_epoch = 1  # of the target's log, and of the map
        self.left_open = False  # a copy that was aborted has lost its marker
        self.row: MapRow | None = None
        self.maps = KnownMaps(lambda: self.now)
        self.manager = SimpleNamespace(cluster=SimpleNamespace(request_update=lambda: None))
        self.turns = ProduceTurns(self, 1, 16, lambda: self.now)  # type: ignore[arg-type]
        self.wire_topic = str
        self.copy = self.adopted()

    def adopted(self) -> TranslatedPartition:
        link: Any = SimpleNamespace(
            source=self,
            target=self,
            name="dr",
            clock=lambda: self.now,
            policy=MirrorPolicy(),
            limits=CopyLimits(),
            memory=Memory(1 << 30),
            bucket=SimpleNamespace(free_at=0.0),
            claims=Mock(term=lambda _: 1, claimant=Mock(log=Mock(claimed_by=lambda *_: None))),
            control=SimpleNamespace(refresh=self.control),
            require_not_promoted=lambda: None,
            tasks=SimpleNamespace(notify=lambda: None, spawn=self.net.call_soon_with_future, until=AsyncMock()),
        )

        async def topics(_: str) -> TopicPair:
            return TopicPair(("s", "t"), self.facts)

        async def nobody(_: TopicPartition) -> None:
            return None

        async def map_epoch(_: TopicPartition) -> int:
            return self.map_epoch

        reads = SimpleNamespace(
            topics=topics, forget=lambda _: None, copied_by_others=nobody, maps=self.maps, map_epoch=map_epoch
        )
        reader = SimpleNamespace(leave=lambda _: None, rejoin=lambda _: None, try_join=self.read)
        parts: Any = SimpleNamespace(
            transactions=self.limits, reads=reads, adopted=None, reader=reader, turns=lambda _: self.turns
        )
        copy = TranslatedPartition(link, parts, P)
        copy.want(None, 1e9, 1e9, 0.0)
        copy.place.row = self.row
        copy.place._found = Resumption(0, None, True)

        async def read(_: int) -> int:
            if self.facts.rewrites_times:
                await copy.place._read_target(7)
            copy.place._target_epoch, copy.place._target_seen_at = self.leader_epoch, self.now
            copy.place._map_epoch, copy.place.is_open = self.map_epoch, self.left_open
            self.reads += 1
            copy.place.ids, copy.place.target = ("s", "t"), self.facts
            return 0 if copy.place.row is None else copy.place.row.position

        copy.place.read = read  # type: ignore[method-assign]
        copy.place.require_not_copied_since = AsyncMock()  # type: ignore[method-assign]
        producer: Any = copy._producer
        producer.take_over = self.take_over(producer)
        producer.begin_next = self.begin(producer)
        producer.add_partitions = self.added
        producer.write_rows = self.write_rows
        producer.commit = self.commit
        self.copy = copy
        return copy

    # -- clusters -------------------------------------------------------------

    async def control(self) -> Any:
        return SimpleNamespace(pauses=lambda _: False)

    async def sleep(self, delay: float) -> None:
        self.now += delay
        await self.net.sleep(0)

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def list_offsets_and_epochs(self, wanted: Any) -> dict[TopicPartition, OffsetAndEpoch]:
        return {p: OffsetAndEpoch(self.end, self.leader_epoch) for p in wanted}

    def paused_s(self, node_id: int) -> float:
        return max(0.0, self.paused_until - self.now)

    throttle_s = paused_s

    async def sendable(self, node_id: int) -> None:
        await self.net.sleep(0)
        self.now = max(self.now, self.paused_until)

    async def read(self, partitions: list[TopicPartition]) -> None:
        """All that the source has from the position on, in one response."""
        left = [each for each in self.log if read_header(memoryview(each)).next_offset > self.copy.position]
        end = read_header(memoryview(self.log[-1])).next_offset
        list(self.copy.accept(FetchedPartition(P, 0, end, end, 0, (), memoryview(bytearray(b"".join(left)))), None))

    # -- the producer ---------------------------------------------------------

    def begin(self, producer: Any) -> Any:
        async def begin() -> None:
            self.epoch += 1
            producer.producer_id, producer.producer_epoch = 7, self.epoch
            self.next_sequence = 0

        return begin

    def take_over(self, producer: Any) -> Any:
        async def take_over() -> None:
            self.aborted += len(self.open)
            self.open.clear()
            producer._end = 0
            await self.begin(producer)()
            producer._start_over()

        return take_over

    async def added(self, partitions: Any) -> None:
        """Opens a transaction, which will abort what was left open, too."""
        self.left_open = False

    async def write_rows(self, rows: Any, now_ms: int) -> None:
        self.rows = rows

    async def commit(self) -> None:
        self.committed += self.open
        self.open = []
        self.row = self.rows[-1]
        self.positions.append(self.row.position)

    def produce(
        self,
        node_id: int,
        batches: dict[TopicPartition, memoryview],
        *,
        transactional_id: str,
        topic_ids: dict[TopicPartition, uuid.UUID],
    ) -> Future:
        if self.paused_s(node_id):
            return Future().failure(Errors.NodeNotReadyError("Node paused: {'throttle'}"))
        data, future = batches[P], Future()
        header = read_header(data)
        self.sent.append(header.base_sequence)

        async def answer() -> None:
            await self.net.sleep(0)
            code = self.code(header, data)
            if not code and header.base_sequence != self.next_sequence and self.next_sequence:
                code = OUT_OF_ORDER
            at = self.end
            if not code:
                self.next_sequence = header.base_sequence + header.record_count
                self.end += header.record_count
                self.open.append(memoryview(bytes(data)))
            self.paused_until = self.now + self.throttle_ms / 1000
            part = ProducedPartition(P, code, -1 if code else at, self.append_time)
            future.success(ProduceResult([part], self.throttle_ms))

        self.net.call_soon(answer)
        return future

    # -- what a test asks -----------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Runs the copy until this is so, or it stopped."""

        async def run() -> None:
            running = self.net.call_soon_with_future(self.copy.run)
            for _ in range(2_000):
                await self.net.sleep(0.001)
                if running.is_done or until():
                    break
            self.copy.release()
            await running

        self.net.run(run)

    @property
    def copied(self) -> list[bytes]:
        """The keys of the committed records."""
        from tolerant_client.records.record_batch import decode_records

        return [record.key or b"" for each in self.committed for record in decode_records(each)]


class OnOneNode(World):
    """One of the partitions that a node leads: they share its turns, its throttle and the `time`."""

    def __init__(self, net: NetworkSelector, time: SimpleNamespace) -> None:
        self.time = time
        super().__init__(net)
        timed: Any = SimpleNamespace(net=self, paused_s=self.paused_s, throttle_s=self.paused_s, sendable=self.sendable)
        self.turns = time.__dict__.setdefault("turns", ProduceTurns(timed, 1, 1, lambda: time.now))
        self.call_soon = net.call_soon
        self.ages: list[float] = []  # of the transactions, when they were committed

    @property
    def now(self) -> float:  # type: ignore[override]
        return float(self.time.now)

    @now.setter
    def now(self, now: float) -> None:
        self.time.now = now
        for timer in [timer for timer in self.time.timers if timer[0] <= now]:
            self.cancel(timer)
            timer[1]()

    def call_later(self, delay: float, call: Callable[[], None]) -> tuple[float, Callable[[], None]]:
        self.time.timers.append((self.now + delay, call))
        return self.time.timers[-1]  # type: ignore[no-any-return]

    def cancel(self, timer: tuple[float, Callable[[], None]]) -> None:
        if timer in self.time.timers:
            self.time.timers.remove(timer)

    @property
    def paused_until(self) -> float:  # type: ignore[override]
        return float(self.time.paused_until)

    @paused_until.setter
    def paused_until(self, until: float) -> None:
        self.time.paused_until = max(self.time.paused_until, until)

    async def added(self, partitions: Any) -> None:
        await self.net.sleep(0)
        self.opened_at = self.now

    async def commit(self) -> None:
        self.ages.append(self.now - self.opened_at)
        await super().commit()


@pytest.fixture
def world() -> Iterator[World]:
    net = NetworkSelector()
    yield World(net)
    net.close()


def keys(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_a_quota_of_the_target_is_waited_for_and_aborts_no_transaction(world: World) -> None:
    """Each response throttles; so each transaction is committed after a tenth of its timeout, and none is sent again."""
    world.throttle_ms = 500
    world.limits = TransactionLimits(linger_ms=0, timeout_ms=10_000)
    world.copy = world.adopted()
    world.log = [batch(n, size=400_000) for n in range(12)]
    world.run(lambda: world.copy.acked == 12)
    assert world.copied == keys(12) and world.aborted == 0 and world.copy.troubles == 0
    assert len(world.sent) == 12 and len(world.positions) >= 3, "no transaction waits for the quota of all"


def test_small_batches_are_joined_to_what_the_quota_takes_in_a_second(world: World) -> None:
    """A megabyte at 60 kB/s is throttled for longer than a claim lasts, and each transaction would be aborted."""
    sizes: list[int] = []

    def take(header: BatchHeader, data: memoryview) -> int:
        sizes.append(header.size)
        return 0

    world.code = take
    world.log = [batch(n, size=1_000) for n in range(500)]
    world.turns.window.room_bytes = 60_000
    world.copy._rules = world.copy._rules._replace(joined_bytes=60_000)  # as the transaction before has left it
    world.run(lambda: world.copy.acked == 500)
    assert world.copied == keys(500) and len(sizes) < 20 and max(sizes) <= 61_000


def test_a_transaction_is_opened_when_its_partition_may_send_not_while_others_wait_for_the_quota() -> None:
    """A hundred partitions with a second for each batch: each waits longer than a transaction may last."""
    net, time = NetworkSelector(), SimpleNamespace(now=0.0, paused_until=0.0, timers=[])
    worlds = [OnOneNode(net, time) for _ in range(100)]
    for world in worlds:
        world.throttle_ms = 1_000
        world.log = [batch(n) for n in range(2)]

    async def run() -> None:
        running = [net.call_soon_with_future(world.copy.run) for world in worlds]
        for _ in range(2_000):
            await net.sleep(0.001)
            if all(world.copy.acked == 2 or world.copy.error for world in worlds):
                break
        for world in worlds:
            world.copy.release()
        for copying in running:
            await copying

    with contextlib.closing(net):
        net.run(run)
    assert [world.copy.error for world in worlds] == [None] * 100
    assert all(world.copied == keys(2) for world in worlds) and time.now > 150
    assert max(age for world in worlds for age in world.ages) < 5


def test_a_batch_whose_turn_comes_too_late_waits_for_the_next_transaction(world: World) -> None:
    """Requests of other partitions fill the window while a transaction is open: what it has is committed."""
    world.limits = TransactionLimits(linger_ms=0, timeout_ms=1_000)
    original, others = world.produce, [Future()]

    def with_others(*args: Any, **options: Any) -> Future:
        if len(world.sent) == 0:
            for other in others:
                world.turns.window.sent(2 << 20, other)
        return original(*args, **options)

    world.produce = with_others  # type: ignore[method-assign]
    world.copy = world.adopted()
    world.log = [batch(n) for n in range(3)]
    world.run(lambda: world.copy.acked > 0)
    assert world.copied == keys(1) and world.positions == [1] and world.aborted == 0
    for other in others:
        other.success(ProduceResult([], 0))
    world.adopted()
    world.run(lambda: world.copy.acked == 3)
    assert world.copied == keys(3) and world.aborted == 0


def test_a_target_that_is_slow_does_not_outlast_the_transaction(world: World) -> None:
    original = world.produce

    def slow(*args: Any, **options: Any) -> Future:
        world.now += 4.0
        return original(*args, **options)

    world.produce = slow  # type: ignore[method-assign]
    world.log = [batch(n) for n in range(6)]
    world.run(lambda: world.copy.acked == 6)
    assert world.copied == keys(6) and world.positions[:3] == [2, 4, 6]


@pytest.mark.parametrize("bad", [0, 1, 5])
def test_what_lies_before_a_record_that_is_refused_is_copied_once_and_the_record_is_tried_alone(
    world: World, bad: int
) -> None:
    world.log = [batch(n) for n in range(8)]
    world.code = lambda header, data: BAD_TIME if key_of(data) == b"%d" % bad else 0
    world.run(lambda: False)
    assert world.copied == keys(bad) and world.aborted == 0
    assert isinstance(world.copy.error, PartitionRefusedError) and f"offset {bad}:" in str(world.copy.error)
    assert world.sent[-2:] == [0, 0], "alone, each time"
    assert len(world.sent) <= 8 + 3
    world.code = lambda header, data: 0
    world.adopted()
    world.run(lambda: world.copy.acked == 8)
    assert world.copied == keys(8) and world.copy.error is None


@pytest.mark.parametrize("code", [BAD_TIME, TOO_LARGE])
@pytest.mark.parametrize("bad", [0, 1, 5])
def test_small_batches_of_the_source_before_one_that_is_refused_are_copied_although_they_are_sent_together(
    world: World, bad: int, code: int
) -> None:
    world.log = [batch(2 * n, 2, size=10) for n in range(8)]
    world.code = lambda header, data: code if b"%d" % (2 * bad + 1) in keys_of(data) else 0
    world.run(lambda: False)
    assert world.copied == keys(2 * bad) and world.aborted == 0
    assert isinstance(world.copy.error, PartitionRefusedError) and f"offset {2 * bad}:" in str(world.copy.error)
    world.code = lambda header, data: 0
    world.adopted()
    world.run(lambda: world.copy.acked == 16)
    assert world.copied == keys(16) and world.copy.error is None


def test_once_what_was_refused_is_copied_small_batches_are_sent_together_again(world: World) -> None:
    world.log = [batch(n, size=10) for n in range(6)]
    world.code = lambda header, data: BAD_TIME if header.record_count > 1 and not world.committed else 0

    def is_copied() -> bool:
        if world.copy.acked == len(world.log) == 6:
            world.log += [batch(n, size=10) for n in range(6, 12)]
            world.copy.read_on()
        return world.copy.acked == 12

    world.run(is_copied)
    assert world.copied == keys(12)
    assert [read_header(each).record_count for each in world.committed] == [1] * 6 + [6]


def keys_of(data: memoryview) -> list[bytes]:
    from tolerant_client.records.record_batch import decode_records

    return [record.key or b"" for record in decode_records(data)]


def key_of(data: memoryview) -> bytes:
    from tolerant_client.records.record_batch import decode_records

    return next(iter(decode_records(data))).key or b""


def test_a_batch_behind_a_refused_one_that_was_appended_nevertheless_has_all_of_it_sent_again(world: World) -> None:
    """A broker that forgot the epoch in between accepts any sequence: that must not be committed."""
    refused: list[bytes] = []

    def code(header: BatchHeader, data: memoryview) -> int:
        if key_of(data) == b"2" and not refused:
            refused.append(b"2")
            world.next_sequence = 0  # forgotten
            return BAD_TIME
        return 0

    world.log = [batch(n) for n in range(5)]
    world.code = code
    world.run(lambda: world.copy.acked == 5)
    assert world.aborted and world.copied == keys(5), "in order"


def test_the_first_batch_of_a_transaction_goes_alone(world: World) -> None:
    in_flight: list[int] = []
    original = world.produce

    def noted(*args: Any, **options: Any) -> Future:
        in_flight.append(world.turns.window.in_flight)
        return original(*args, **options)

    world.produce = noted  # type: ignore[method-assign]
    world.log = [batch(n) for n in range(9)]
    world.run(lambda: world.copy.acked == 9)
    world.log += [batch(n) for n in range(9, 18)]
    world.adopted()
    world.run(lambda: world.copy.acked == 18)
    assert in_flight[:2] == [0, 0] and in_flight[9:11] == [0, 0] and max(in_flight) > 1
    assert world.copied == keys(18)


@pytest.mark.parametrize("of_map", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
def test_under_another_leader_of_the_target_its_log_and_map_are_read_again_before_more_is_appended_or_committed(
    monkeypatch: pytest.MonkeyPatch, world: World, is_open: bool, of_map: bool
) -> None:
    """Either may have lost its end, and others may have written on: the next copy, or row, would hide that for good."""
    name = "map_epoch" if of_map else "leader_epoch"
    world.log = [batch(n) for n in range(4)]
    seen: list[int] = []

    def code(header: BatchHeader, data: memoryview) -> int:
        if is_open and not seen:
            world.now += 3  # between a batch and its commit
            setattr(world, name, 2)
        seen.append(world.reads)
        return 0

    world.code = code
    if not is_open:
        world.now = 10.0
        setattr(world, name, 2)
        take_over = world.copy.place.read

        async def read(producer_id: int) -> int:
            position = await take_over(producer_id)
            if world.reads == 1:  # the leader dies right after it
                world.copy.place._target_seen_at = world.now - 3
                setattr(world.copy.place, "_map_epoch" if of_map else "_target_epoch", 1)
            return position

        monkeypatch.setattr(world.copy.place, "read", read)
    world.run(lambda: len(world.copied) == 4)
    assert world.copied == keys(4) and world.reads == 2
    assert is_open == (seen[0] == 1) and seen[-1] == 2 and world.aborted == (4 if is_open else 0)


def test_timestamps_that_the_target_rewrites_are_not_committed_and_the_reason_is_told(world: World) -> None:
    """The responses show it at once; then the topic's configuration does, and nothing more is sent."""
    world.log = [batch(n) for n in range(4)]
    world.append_time = 77

    def switched(header: BatchHeader, data: memoryview) -> int:
        world.facts = world.facts._replace(rewrites_times=True)
        return 0

    world.code = switched
    world.run(lambda: False)
    assert world.committed == [] and world.sent == [0] and world.aborted == 1
    assert isinstance(world.copy.error, PartitionRefusedError)
    assert "orders-0: the target's topic has message.timestamp.type=LogAppendTime" in str(world.copy.error)
    assert world.copy.error.remedy == "set it to CreateTime, and a running mirror resumes"
    world.append_time, world.facts = -1, world.facts._replace(rewrites_times=False)
    world.code = lambda header, data: 0
    world.adopted()
    world.run(lambda: world.copy.acked == 4)
    assert world.copied == keys(4)


def test_what_lies_before_a_record_that_no_batch_can_hold_is_copied(world: World) -> None:
    world.log = [batch(0), batch(1), batch(2, size=3 << 20), batch(3)]
    read = world.read

    async def read_on(partitions: list[TopicPartition]) -> None:
        await read(partitions)
        if world.copy._fetch_error is None and world.copy.position == 2:
            await read(partitions)  # while the first two are in flight

    world.read = read_on  # type: ignore[method-assign]
    world.copy = world.adopted()
    world.run(lambda: False)
    assert isinstance(world.copy.error, OversizedRecordError) and world.copy.error.offset == 2
    assert world.copied == keys(2) and world.aborted == 0


def test_a_batch_that_the_target_stores_larger_than_it_is_sent_is_split(world: World) -> None:
    """compression.type of the target: a broker compares max.message.bytes with what it stores."""
    world.facts = TopicFacts(False, 100_000, None, codec=NONE)
    world.log = [batch(0, 12, codec=ZSTD), batch(12, 2, codec=ZSTD)]

    def stored(header: BatchHeader, data: memoryview) -> int:
        return TOO_LARGE if header.codec or header.size > 100_000 else 0

    world.code = stored
    world.run(lambda: world.copy.acked == 14)
    assert world.copied == keys(14) and world.copy.error is None
    assert {header.codec for each in world.committed for header, _ in iter_batches(each)} == {NONE}


def test_a_batch_that_is_too_large_although_nothing_is_stored_otherwise_is_told_with_both_settings(
    world: World,
) -> None:
    world.log = [batch(0)]
    world.code = lambda header, data: TOO_LARGE
    world.run(lambda: False)
    assert "max.message.bytes" in str(world.copy.error) and "compression.type" in str(world.copy.error)


def test_a_partition_that_is_refused_is_tried_again_after_growing_pauses() -> None:
    refusals, error, now = Refusals(), PartitionRefusedError("no"), 0.0
    pauses = []
    for _ in range(6):
        assert refusals.standing(P, now) is None
        refusals.ended(P, error, 5, now)
        began = now
        while (standing := refusals.standing(P, now)) is not None:
            assert (standing.error, standing.acked) == (error, 5)
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 10, 10]
    refusals.ended(P, error, 6, now)
    assert refusals.standing(P, now + 1.0) is None, "something was copied since: from the beginning"
    refusals.ended(P, None, 7, now)
    assert refusals.standing(P, now) is None


@pytest.mark.parametrize("is_read", [False, True])
def test_a_copy_waits_as_long_as_maps_of_other_links_are_read_and_says_so(world: World, is_read: bool) -> None:
    world.now, reads, at = 1.0, 0, world.copy.place.read

    async def read(producer_id: int) -> int:
        nonlocal reads
        if reads:
            waiting.append(copy.waits(30.0, world.now)[1])
        reads += 1
        world.now += 50.0
        if is_read or reads == 1:
            world.maps.read_at = world.now - 10
        if reads < 6:
            raise OffsetNotAvailableError(f"the map of link eu is not read (read up to {reads} of 6 so far)")
        return await at(producer_id)

    copy: Any = world.copy
    copy.place.read, copy.until = read, 3
    world.log = [batch(n) for n in range(3)]
    waiting: list[str] = []
    world.run(lambda: copy.acked == 3 or copy.error is not None)
    assert (
        all(f"read up to {n} of 6 so far" in reason for n, reason in enumerate(waiting, 1))
        and len(waiting) == reads - 1
    )
    if is_read:
        assert world.copied == keys(3) and copy.error is None
    else:
        assert reads == 4 and "no progress" in str(copy.error), "the reading stands still"


def test_what_was_left_open_is_aborted_before_more_is_copied(world: World) -> None:
    """The log has lost the marker that aborted it: the next commit would commit it, too."""
    world.log, world.left_open = [batch(n) for n in range(2)], True
    opened: list[bool] = []

    def code(header: BatchHeader, data: memoryview) -> int:
        opened.append(world.left_open)
        return 0

    world.code = code
    world.run(lambda: len(world.copied) == 2)
    assert world.copied == keys(2) and world.reads == 2 and not any(opened)
