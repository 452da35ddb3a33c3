"""What a start detects of a log that ends like the source's and begins differently."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.identical.probes import Rows, probe_logs
from tolerant_client.records.record_batch import Record, encode_batch

TP = TopicPartition("orders", 0)


def log_of(values: bytes, per_batch: int = 50) -> OneLog:
    records = [Record(0, n, None, b"%c" % value) for n, value in enumerate(values)]
    return OneLog(
        encode_batch(records[at : at + per_batch], base_offset=at) for at in range(0, len(records), per_batch)
    )


def probe(
    source: OneLog, target: OneLog, adopted: int = 0, rows: Rows = {}
) -> dict[TopicPartition, TargetDivergedError]:
    async def read_rows() -> Rows:
        return rows

    clusters = cast(Cluster, source), cast(Cluster, target)
    return asyncio.run(probe_logs(*clusters, {TP: target.end}, {TP: adopted}, read_rows))


def test_log_that_begins_with_a_former_topic_is_seen_though_it_ends_as_the_source() -> None:
    source = log_of(b"n" * 1000)
    found = probe(source, log_of(b"o" * 300 + b"n" * 700))
    assert "orders-0 has at offset 0 another record" in str(found[TP])
    assert probe(source, log_of(b"n" * 1000)) == probe(source, log_of(b"n" * 1000, per_batch=20)) == {}


@pytest.mark.parametrize("first", [300, 600])
def test_thirds_of_a_log_are_looked_at(first: int) -> None:
    target = b"n" * first + b"o" * 100 + b"n" * (900 - first)
    assert "at offset" in str(probe(log_of(b"n" * 1000), log_of(target))[TP])


def test_what_was_adopted_or_is_in_the_ledger_is_no_difference() -> None:
    source, target = log_of(b"n" * 1000), log_of(b"o" * 300 + b"n" * 700)
    row = LedgerRow(0, "link", *TP, 0, 300, "recreation", "")
    assert probe(source, target, adopted=300) == probe(source, target, rows={TP: [row]}) == {}
