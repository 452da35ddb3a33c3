"""How many committed records a log has in a range, and where that is unknown."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.logs import committed
from tolerant_client.mirror.logs.committed import Committed, count_committed
from tolerant_client.records.record_batch import ABORT, Record, encode_batch

P = TopicPartition("orders", 0)


def batch(at: int, count: int, *headers: tuple[str, bytes | None]) -> bytes:
    return encode_batch([Record(0, 1_000, None, None, list(headers)) for _ in range(count)], base_offset=at)


def counted(log: OneLog, start: int, until: int) -> Committed:
    return asyncio.run(count_committed(cast(Cluster, log), {P: (start, until)}))[P]


def test_records_count_in_their_range_and_neither_filler_nor_what_is_behind_an_open_transaction_does() -> None:
    log = OneLog([batch(0, 10), batch(10, 5, (FILLER, None)), batch(15, 10)])
    assert counted(log, 0, 25) == (20, 25)
    assert counted(log, 4, 18) == (9, 18)
    assert counted(log, 25, 25) == (0, 25)
    log.stable = 10
    assert counted(log, 0, 25) == (10, 10)


def test_records_of_an_aborted_transaction_and_markers_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    of: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    data = encode_batch([Record(0, 1_000, None, b"x")] * 3, base_offset=5, **of)
    key = struct.pack(">hh", 0, ABORT)
    end = encode_batch([Record(0, 1_000, key, bytes(6))], base_offset=8, is_control=True, **of)
    log = OneLog([batch(0, 5), data, end, batch(9, 1)])
    fetch = log.fetch

    async def aborting(*args: Any, **named: Any) -> list[FetchedPartition]:
        return [part._replace(aborted=((7, 5),)) for part in await fetch(*args, **named)]

    monkeypatch.setattr(log, "fetch", aborting)
    assert counted(log, 0, 10) == (6, 10)


def test_what_cannot_be_read_within_the_bounds_is_not_called_none(monkeypatch: pytest.MonkeyPatch) -> None:
    large = batch(0, 1_000) + batch(1_000, 1_000)
    log = OneLog([batch(at, 1_000) for at in range(0, 5_000, 1_000)])
    assert counted(log, 0, 5_000).records == 5_000
    monkeypatch.setattr(committed, "MOST_BYTES", 1)
    monkeypatch.setattr(committed, "_PARTITION_BYTES", len(large))
    assert counted(log, 0, 5_000) == (2_000, 2_000)
    monkeypatch.setattr(committed, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(committed, "_PARTITION_BYTES", 100)  # cut
    assert counted(log, 0, 5_000).records == 5_000
    monkeypatch.setattr(committed, "_EMPTY_ROUNDS", 1)
    assert counted(log, 0, 5_000) == (0, 0)
    monkeypatch.undo()
    monkeypatch.setattr(committed, "WITHIN_S", -1.0)
    assert counted(log, 0, 5_000) == (0, 0)
    monkeypatch.undo()
    log.start = 100
    assert counted(log, 0, 5_000) == (0, 0), "retention has just taken it"
    damaged = bytearray(batch(0, 10))
    damaged[-1] ^= 1
    assert counted(OneLog([bytes(damaged)]), 0, 10) == (0, 0)


def test_nothing_is_known_of_a_log_whose_leader_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(topics: Any) -> None:
        raise ClusterUnreachableError("The source could not be reached", "source")

    log = OneLog([batch(0, 10)])
    monkeypatch.setattr(log, "track", away)
    monkeypatch.setattr(log, "known_leader", lambda partition: None)
    monkeypatch.setattr(log, "why_leaderless", lambda partition: "unknown", raising=False)
    assert counted(log, 0, 10) == (0, 0)
