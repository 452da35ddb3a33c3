"""What a difference between both logs means: a loss of the source with its lost offsets, or no loss."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from kafka.structs import TopicPartition

from support.one_log import OneLog
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.losses import Loss, LossReason
from tolerant_client.mirror.engine.identical import difference
from tolerant_client.mirror.engine.identical.difference import Case, explain, recreated
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.records.record_batch import Record, encode_batch

TP = TopicPartition("orders", 0)
OURS = 7


def log_of(values: bytes, **options: int) -> OneLog:
    records = [Record(0, n, None, b"%c" % value) for n, value in enumerate(values)]
    return OneLog(encode_batch(records[at : at + 50], base_offset=at, **options) for at in range(0, len(records), 50))


def case_of(source: OneLog, target: OneLog, copied: int | None = None) -> Case:
    logs = Logs(source.start, source.end, target.start, target.end)
    last = target.batches[-1][0] if target.batches else None
    return Case("dr", TP, logs, last, AppendState(target.end, OURS, 0, 0), None, OURS, {OURS}, copied=copied)


# -- a topic that was created again -----------------------------------------------


def lost(source: OneLog, target: OneLog) -> tuple[int, int] | None:
    clusters = cast(Cluster, source), cast(Cluster, target)
    loss = asyncio.run(recreated(*clusters, case_of(source, target)))
    if not isinstance(loss, Loss):
        assert loss == AppendState(target.end, OURS, 0, 0)
        return None
    return loss.row.from_offset, loss.row.until_offset


@pytest.mark.parametrize("count", [30, 1000, 4_500])
def test_nothing_is_lost_with_a_topic_made_anew_that_has_the_same_records(count: int) -> None:
    assert lost(log_of(b"a" * count), log_of(b"a" * count)) is None
    assert lost(log_of(b"a" * (count + 500)), log_of(b"a" * count)) is None


@pytest.mark.parametrize(
    ("source", "target", "row"),
    [
        (b"n" * 1000, b"o" * 1000, (0, 1000)),
        (b"n" * 1000, b"o" * 300 + b"n" * 700, (0, 300)),
        (b"n" * 1000, b"n" * 700 + b"o" * 300, (700, 1000)),
        (b"n" * 1000, b"o" * 300 + b"n" * 400 + b"o" * 300, (0, 1000)),
        (b"n" * 1000, b"n" * 400 + b"o" * 100 + b"n" * 500, (400, 500)),
        (b"n" * 600, b"n" * 1000, (600, 1000)),
        (b"n" * 600, b"o" * 1000, (0, 1000)),
        (b"", b"o" * 1000, (0, 1000)),
    ],
)
def test_row_of_a_topic_made_anew_has_what_differs_or_could_not_be_compared(
    source: bytes, target: bytes, row: tuple[int, int]
) -> None:
    assert lost(log_of(source), log_of(target)) == row


def test_all_is_lost_where_nothing_can_be_compared() -> None:
    assert lost(log_of(b"n" * 1000), OneLog([], 1000)) == (0, 1000)


# -- a loss that the ledger has already ----------------------------------------


def test_a_second_cut_before_a_known_row_is_a_loss_of_its_own() -> None:
    source = log_of(b"n" * 100 + b"x" * 150)
    target = log_of(b"n" * 100 + b"o" * 100, producer_id=OURS, producer_epoch=0, base_sequence=3)
    clusters = cast(Cluster, source), cast(Cluster, target)
    case = case_of(source, target, copied=200)
    rows = [case.row(150, 200, LossReason.TRUNCATION, "")]
    loss = asyncio.run(explain(*clusters, case._replace(cut=100), rows))
    assert isinstance(loss, Loss) and (loss.row.from_offset, loss.row.until_offset) == (100, 200)
    rows = [case.row(100, 200, LossReason.TRUNCATION, "")]
    assert asyncio.run(explain(*clusters, case._replace(cut=100), rows)) == case.state


# -- a source that is shorter -------------------------------------------------


def test_where_the_link_has_written_down_how_far_it_copied_no_places_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("nothing more had to be read")

    source = log_of(b"n" * 600)
    target = log_of(b"n" * 500 + b"o" * 500, producer_id=OURS, producer_epoch=0, base_sequence=3)
    clusters = cast(Cluster, source), cast(Cluster, target)
    monkeypatch.setattr(difference, "read_places", refuse)
    loss = asyncio.run(explain(*clusters, case_of(source, target, copied=1000), ()))
    assert isinstance(loss, Loss) and (loss.row.from_offset, loss.row.until_offset) == (500, 1000)
