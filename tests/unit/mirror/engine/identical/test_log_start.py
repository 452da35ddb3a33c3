"""A log is made to begin above offset 0, and no records that others wrote there meanwhile are deleted (log_start.py)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.admin import topics
from tolerant_client.cluster.cluster import EARLIEST
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.engine.identical import log_start
from tolerant_client.mirror.engine.identical.log_start import start_log_at
from tolerant_client.records.record_batch import Record, encode_batch, read_header

P = TopicPartition("orders", 0)
LINK_ID, FORMER_ID, STRANGER = 7, 6, 5
START = 500
MOST = 700  # bytes: 500 offsets take many batches


class Target(OneLog):
    """A leader that checks no sequence: it does not know our producer.  Others write `before` ahead of the first batch."""

    def __init__(self, *batches: bytes, before: bytes | None = None) -> None:
        super().__init__(batches)
        self.before = before
        self.produced = 0
        self.reads = 0
        self.topic_ids: set[uuid.UUID] = set()
        self.deleted: list[int] = []
        self.is_silent = False

    def append(self, batch: bytes) -> int:
        offset = self.end
        placed = offset.to_bytes(8, "big") + bytes(batch[8:])
        self.batches.append((read_header(placed), placed))
        self.end = self.stable = self.batches[-1][0].next_offset
        return offset

    def produce(
        self,
        node: int,
        batches: Mapping[TopicPartition, memoryview],
        *,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        **_: object,
    ) -> Future:
        self.topic_ids |= set(topic_ids.values())
        if self.before is not None:
            self.append(self.before)
            self.before = None
        self.produced += 1
        return Future().success([ProducedPartition(P, 0, self.append(bytes(batches[P])))])

    async def sendable(self, node: int) -> None:
        """No quota."""

    async def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert timestamps == {P: EARLIEST}
        self.reads += 1
        return {P: self.start}

    async def fetch(self, node: int, positions: Mapping[TopicPartition, int], **options: Any) -> Any:
        found = await super().fetch(node, positions, **options)
        return [part._replace(records=memoryview(b"")) for part in found] if self.is_silent else found

    async def send(self, request: Any, node: int) -> Any:
        self.deleted += [part.offset for topic in request.topics for part in topic.partitions]
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[SimpleNamespace(error_code=0)])])


def written(base_offset: int, producer_id: int = STRANGER, **options: Any) -> bytes:
    return encode_batch(
        [Record(0, 1, None, b"kept")] * 10,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_offset,
        **options,
    )


def filler(base_offset: int, producer_id: int = LINK_ID) -> bytes:
    records = [Record(0, 1, None, None, ((FILLER, None),))] * 10
    return encode_batch(
        records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=base_offset
    )


def start(target: Any, topic_id: uuid.UUID | None = None, **options: Any) -> None:
    state = AppendState(target.end, LINK_ID, 0, target.end, topic_id)
    own = {LINK_ID, FORMER_ID}
    asyncio.run(start_log_at(target, P, state, START, own, is_compacted=False, max_batch_bytes=MOST, **options))


def test_what_is_deleted_is_filler_of_the_link_whichever_of_its_producers_wrote_it() -> None:
    for target in (Target(), Target(filler(0, FORMER_ID), filler(10))):
        start(target)
        assert target.end == START and target.deleted == [START]


@pytest.mark.parametrize(
    "foreign",
    [
        written(10),
        written(10, -1),
        written(10, LINK_ID, is_transactional=True),
        written(10, is_control=True),
        filler(10, STRANGER),
    ],
    ids=["idempotent", "without a producer id", "in a transaction", "marker", "filler"],
)
def test_records_of_others_among_the_filler_are_named_and_not_deleted(foreign: bytes) -> None:
    """An earlier attempt left them: the log ends with our filler, and all that this attempt appends is in place."""
    target = Target(filler(0), foreign, filler(20))
    whose = read_header(foreign).producer_id
    with pytest.raises(
        TargetDivergedError,
        match=rf"orders-0 is to begin at offset 500, .* at offset 10 \(producer id {whose}, .*nothing was deleted.*mirror into",
    ):
        start(target)
    assert target.deleted == []


def test_records_of_others_behind_the_filler_are_in_nobodys_way() -> None:
    target = Target(*(filler(offset) for offset in range(0, START, 10)))
    target.append(written(0))
    state = AppendState(START, LINK_ID, 0, START)
    asyncio.run(start_log_at(target, P, state, START, {LINK_ID}, is_compacted=False, max_batch_bytes=MOST))  # type: ignore[arg-type]
    assert target.deleted == [START]


def test_nothing_follows_a_first_batch_that_lies_behind_the_records_of_others() -> None:
    """A broker that does not know the producer accepts any sequence."""
    target = Target(before=written(0))
    with pytest.raises(Errors.OffsetOutOfRangeError, match="filler for offset 0 of orders-0 was appended at 10"):
        start(target)
    assert target.produced == 1 and target.deleted == []


def test_what_could_not_be_read_back_is_not_deleted() -> None:
    """An empty response proves nothing."""
    target = Target()
    target.is_silent = True
    with pytest.raises(Errors.OffsetNotAvailableError, match="orders-0 was read up to offset 0, not to 500") as raised:
        start(target)
    assert raised.value.retriable and target.deleted == []


def test_filler_that_another_writer_deletes_meanwhile_is_asked_for_anew() -> None:
    target = Target()

    async def moved(*_: Any) -> dict[TopicPartition, int]:
        target.start = START
        return {P: 0}

    target.list_offsets = moved  # type: ignore[method-assign]
    with pytest.raises(Errors.KafkaError) as raised:
        start(target)
    assert getattr(raised.value, "retriable", False) and target.deleted == []


def test_nothing_is_deleted_of_a_topic_that_was_made_anew_since_its_headers_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DeleteRecords knows only names."""

    async def other(cluster: Any, topics: Any) -> dict[str, uuid.UUID]:
        return {"orders": uuid.uuid4()}

    monkeypatch.setattr(topics, "present_ids", other)
    target, topic_id = Target(), uuid.uuid4()
    with pytest.raises(Errors.UnknownTopicIdError) as raised:
        start(target, topic_id)
    assert raised.value.retriable and target.deleted == [] and target.topic_ids == {topic_id}


def test_headers_are_read_again_after_a_freeze_before_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(log_start, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1.0))
    frozen_s = iter([5.0, 0.0])

    async def freeze(*_: Any) -> None:
        now[0] += next(frozen_s)

    monkeypatch.setattr(log_start, "require_topic", freeze)
    target = Target()
    start(target)
    assert target.reads == 2 and target.deleted == [START]


@pytest.mark.parametrize("after", [0, 3, 9999], ids=["first batch", "a later one", "deletion"])
def test_a_start_that_may_not_go_on_sends_nothing_more(after: int) -> None:
    """It was paused, released or promoted, or its claim has ended."""
    target = Target()

    def may_send() -> None:
        if target.produced >= after or target.end >= START:
            raise Errors.NotLeaderForPartitionError("the claim is over")

    with pytest.raises(Errors.NotLeaderForPartitionError):
        start(target, may_send=may_send)
    assert target.deleted == [] and (target.produced == after or target.end == START)
