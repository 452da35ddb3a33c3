"""What a translated copier takes of fetch responses: each batch once, in order, and nothing that only one response shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import PartitionRefusedError
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.limits import CopyLimits, TransactionLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.records.record_batch import Record, encode_batch

PARTITION = TopicPartition("orders", 3)


def batch(first: int, count: int = 10, epoch: int = 0, size: int = 0) -> bytes:
    records = [Record(0, 1000, b"%d" % n, bytes(size)) for n in range(first, first + count)]
    return encode_batch(records, base_offset=first, partition_leader_epoch=epoch)


def response(*batches: bytes, stable: int = 1000, error_code: int = 0) -> FetchedPartition:
    return FetchedPartition(PARTITION, error_code, stable, stable, 0, (), memoryview(bytearray(b"".join(batches))))


class Rig:
    """A partition that was placed, without the `run` that would copy what it takes."""

    def __init__(self, net: NetworkSelector) -> None:
        self.memory = Memory(1 << 30)
        self.left: list[TopicPartition] = []
        link: Any = SimpleNamespace(
            source=SimpleNamespace(net=net, wire_topic=lambda topic: f"source-{topic}"),
            target=None,
            name="dr",
            clock=lambda: 0.0,
            policy=MirrorPolicy(),
            limits=CopyLimits(),
            memory=self.memory,
        )
        parts: Any = SimpleNamespace(
            transactions=TransactionLimits(),
            reads=None,
            adopted=None,
            reader=SimpleNamespace(leave=self.left.append, rejoin=lambda copy: None),
            turns=None,
        )
        self.copy = TranslatedPartition(link, parts, PARTITION)
        self.queue = self.copy.queue
        self.copy._rules = self.copy._rules._replace(max_batch_bytes=1 << 20)
        self.begin(0)

    def begin(self, position: int) -> None:
        self.copy._forget()
        self.copy.position = position

    def take(self, *batches: bytes, stable: int = 1000, error_code: int = 0) -> None:
        """Raises the error for which the partition would read its position again."""
        list(self.copy.accept(response(*batches, stable=stable, error_code=error_code), None))
        if (error := self.copy._fetch_error) is not None:
            assert not self.copy.is_read
            raise error


@pytest.fixture
def rig() -> Iterator[Rig]:
    net = NetworkSelector()
    yield Rig(net)
    net.close()


def test_batches_are_given_out_in_order_each_once(rig: Rig) -> None:
    rig.take(batch(0))
    rig.take(batch(10))
    batches, position = rig.queue.next_batches(0, rig.copy._rules)
    assert sum(header.record_count for header, _ in batches) == 20 and position == 20
    assert not rig.queue and rig.queue.next_batches(20, rig.copy._rules) == ([], 20)


def test_a_large_batch_goes_alone_and_small_ones_together_with_the_gaps_between(rig: Rig) -> None:
    log = [batch(0), batch(20), batch(40, 1, size=50_000), batch(60)]
    rig.take(*log, stable=70)
    assert rig.copy.position == 10, "a hole is believed when two responses show it"
    rig.take(*log[1:], stable=70)
    assert rig.queue.bytes == rig.memory.in_flight == sum(map(len, log))
    small, position = rig.queue.next_batches(0, rig.copy._rules)
    assert [header.base_offset for header, _ in small] == [0, 20] and position == 40
    large, position = rig.queue.next_batches(position, rig.copy._rules)
    assert [header.base_offset for header, _ in large] == [40] and position == 41
    assert rig.queue.skip_gaps() == 60
    last, position = rig.queue.next_batches(60, rig.copy._rules)
    assert [header.base_offset for header, _ in last] == [60] and position == 70
    assert not rig.copy.is_behind


def test_a_response_with_a_newer_leader_epoch_is_not_used_until_somebody_has_looked(rig: Rig) -> None:
    rig.take(batch(0, epoch=4))
    newer = [batch(10, epoch=4), batch(20, epoch=5)]
    with pytest.raises(Errors.OffsetNotAvailableError):
        rig.take(*newer)
    assert rig.copy.position == 10 and rig.copy.place.leader_epoch == 5
    rig.begin(10)
    rig.take(*newer)
    assert rig.copy.position == 30


def test_offsets_without_records_are_gone_over_behind_what_waits(rig: Rig) -> None:
    rig.take(batch(0), stable=150)
    assert rig.copy.is_behind and rig.copy.leave_out(150, 0) == []
    assert rig.copy.position == 150 and not rig.copy.is_behind and rig.copy.has_work
    assert rig.queue.next_batches(0, rig.copy._rules)[1] == 150


def test_a_hole_at_the_end_is_the_position_that_is_written_down(rig: Rig) -> None:
    rig.begin(100)
    rig.copy.leave_out(150, 0)
    assert list(rig.queue._items) == [Gap(100, 150)] and rig.queue.skip_gaps() == 150


def test_a_right_that_is_missing_is_named_with_its_topic_and_cluster(rig: Rig) -> None:
    with pytest.raises(PartitionRefusedError, match="; grant Read on topic source-orders of the source to"):
        rig.take(error_code=29)
    rig.copy._troubles._doubts = BELIEVED_AFTER - 1
    asyncio.run(rig.copy._trouble(Errors.TopicAuthorizationFailedError("adding orders to 'x'")))
    assert isinstance(rig.copy.error, PartitionRefusedError)
    text = str(rig.copy.error)
    assert "adding orders to 'x'; grant Read and Describe on topic source-orders of the source, and Write," in text
    assert "Read and Describe on topic orders and on topics that begin with tolerant-mirror- of the target," in text
    rig.copy.error = None
    rig.copy._troubles._doubts = BELIEVED_AFTER - 1
    asyncio.run(rig.copy._trouble(Errors.KafkaProtocolError("a response could not be decoded")))  # has no error code
    assert "could not be decoded; check the topic's configuration and ACLs" in str(rig.copy.error)


def test_errors_are_raised_and_nothing_is_taken(rig: Rig) -> None:
    rig.begin(7)
    with pytest.raises(Errors.OffsetOutOfRangeError, match="orders-3 at offset 7"):
        rig.take(error_code=1)
    rig.begin(7)
    damaged = bytearray(batch(7))
    damaged[-1] ^= 1
    with pytest.raises(Errors.CorruptRecordError):
        rig.take(bytes(damaged))
    assert rig.copy.position == 7 and not rig.queue and rig.queue.bytes == rig.memory.in_flight == 0
    rig.copy._forget()
    assert rig.left[-1] == PARTITION and not rig.copy.is_read, "no fetch is wanted"


def test_what_is_forgotten_takes_no_memory_whether_or_not_it_was_given_out(rig: Rig) -> None:
    rig.take(batch(0), batch(10, 1, size=50_000))
    rig.queue.next_batches(0, rig.copy._rules)
    rig.copy._forget()
    assert rig.memory.in_flight == rig.queue.bytes == 0 and not rig.queue
