"""What the reader asks a source's nodes for, and which responses it hands on."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchAnswer, FetchedPartition, RawFetch
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.tasks import Tasks
from tolerant_client.mirror.engine.throttle import TokenBucket

FIRST, SECOND = (TopicPartition("orders", number) for number in range(2))
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


class Copy(CopiedPartition):
    """Takes what it is given, one offset a response."""

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

    def stop(self, error: Exception) -> None:
        raise error


class Source:
    """One node that leads all; `respond` says what comes for a request; nothing yet with None."""

    def __init__(self, net: NetworkSelector) -> None:
        self.net = net
        self.topic_id = OLD
        self.asked: list[RawFetch] = []
        self.respond: Callable[[RawFetch], list[FetchedPartition] | None] = lambda request: None
        self.manager = SimpleNamespace(cluster=SimpleNamespace(request_update=lambda: None))

    async def by_leader(self, partitions: Any) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def session(self, node_id: int, *, isolation_level: int) -> FetchSession:
        return FetchSession(11, isolation_level, None, lambda topic: self.topic_id)

    async def send_fetch(self, node_id: int, request: RawFetch) -> FetchAnswer:
        self.asked.append(request)
        await self.net.sleep(0.001)
        while (parts := self.respond(request)) is None:
            await self.net.sleep(0.005)
        return FetchAnswer(0, 7, 0, parts)


class Rig:
    def __init__(self, net: NetworkSelector) -> None:
        self.source: Any = Source(net)
        self.copies = {p: Copy(p, 0) for p in (FIRST, SECOND)}
        self.accepted: list[tuple[TopicPartition, int]] = []
        link: Any = SimpleNamespace(
            source=self.source,
            limits=CopyLimits(),
            clock=lambda: 0.0,
            tasks=Tasks(self.source),
            bucket=TokenBucket(),
            memory=Memory(1 << 30),
            emptiness=None,
        )
        self.reader: Reader[Copy] = Reader(
            link, self.copies, self._accept, lambda taken: None, lambda copy: self.reader.leave(copy.partition)
        )

    def _accept(self, copy: Copy, part: FetchedPartition, until: int | None) -> list[Appendable]:
        self.accepted.append((copy.partition, copy.position))
        copy.position += 1
        return []

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
    """Its position is another one since: the response would be taken for what lies there."""

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
    """1. A partition is placed.  2. Its topic is made anew, which the metadata tell.  3. It joins the reader."""

    async def run() -> None:
        rig.copies[FIRST].source_id = OLD
        rig.source.topic_id = NEW
        rig.source.respond = lambda request: [part(FIRST), part(SECOND)] if len(rig.source.asked) == 1 else None
        await rig.reader.join([FIRST, SECOND])
        await rig.until(lambda: len(rig.source.asked) == 2)
        assert rig.copies[FIRST].reasons == ["its topic was made anew on the source"]
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
        assert not copy.was_full and rig.source.asked[1].session_epoch == 1, "in the session that it had"

    rig.run(run)
