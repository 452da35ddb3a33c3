"""Whether a log holds what was acknowledged (acknowledged.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.producer import acknowledged
from tolerant_client.cluster.producer.acknowledged import find_acknowledged
from tolerant_client.cluster.producer.partition import Sought
from tolerant_client.errors import TolerantClientError
from tolerant_client.records.record_batch import Record, encode_batch, restamp

P = TopicPartition("orders", 0)
OURS, OTHERS = (4711, 3), (4711, 2)


class Log(OneLog):
    """A log of batches of 10 records; what cannot be read or is not found is asked for three times."""

    def __init__(self, *batches: tuple[tuple[int, int], int]) -> None:
        super().__init__(stamped(10 * number, *each) for number, each in enumerate(batches))
        self.tries = 0

    async def insist(self, what: str, attempt: Any, patience_ms: int = 0) -> Any:
        for self.tries in (1, 2):
            try:
                return await attempt()
            except Errors.KafkaError:
                continue
        self.tries = 3
        return await attempt()


def stamped(base_offset: int, producer: tuple[int, int], sequence: int) -> bytes:
    batch = bytearray(encode_batch([Record(0, 1, None, b"x")] * 10))
    restamp(memoryview(batch), *producer, sequence)
    return base_offset.to_bytes(8, "big") + bytes(batch[8:])


def find(log: Any, sought: Sought) -> dict[int, int]:
    return asyncio.run(find_acknowledged(log, P, sought, 1_000))


@pytest.fixture(autouse=True)
def leader_end(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the leader's own log ends beyond what it shows."""
    hidden = [0]

    async def ends(log: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {P: log.end + hidden[0]}

    monkeypatch.setattr(acknowledged, "log_end_offsets", ends)
    return hidden


def test_batches_are_found_by_their_producer_and_sequence_between_those_of_others() -> None:
    log = Log((OURS, 0), (OTHERS, 10), (OURS, 10), ((-1, -1), -1), (OURS, 20))
    assert find(log, Sought(OURS, (0, 10), 0, 20)) == {0: 0, 10: 20}
    assert log.tries == 1


@pytest.mark.parametrize("sought", [Sought(OURS, (0, 10), 0, 20), Sought(OURS, (0,), 50, 60)])
def test_a_log_that_has_not_all_of_them_has_lost_records_and_is_read_three_times(sought: Sought) -> None:
    """A log that was created again has only a later batch, or ends before it."""
    log = Log((OURS, 10), (OTHERS, 0))
    with pytest.raises(TolerantClientError, match="orders-0 lost records that had been acknowledged"):
        find(log, sought)
    assert log.tries == 3


def test_what_a_new_leader_does_not_show_yet_is_not_lost(leader_end: list[int]) -> None:
    leader_end[0] = 10
    with pytest.raises(
        TolerantClientError, match="may have lost records .* could not be read .* not all is replicated"
    ):
        find(Log((OURS, 0)), Sought(OURS, (0, 10), 0, 10))


def test_a_log_that_may_not_be_read_accuses_nobody() -> None:
    class Closed(Log):
        async def fetch(self, *args: Any, **options: Any) -> list[FetchedPartition]:
            raise Errors.TopicAuthorizationFailedError("orders")

    with pytest.raises(TolerantClientError, match="orders-0 may have lost .* could not be read .*TopicAuthorization"):
        find(Closed(), Sought(OURS, (0,), 0, 0))
