"""Logs are compared up to the target's high watermark, whatever a mirror at work has appended behind that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest
from kafka.structs import TopicPartition

from tolerant_client.fetch import FetchedPartition
from tolerant_client.mirror.identical import state
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link import plan_report
from tolerant_client.mirror.link.control import LinkControl, TopicIds
from tolerant_client.mirror.link.ends import Comparison, compare_ends
from tolerant_client.mirror.log_ends import Unreplicated
from tolerant_client.mirror.losses import MirrorPolicy
from tolerant_client.mirror.producers import ProducerEntry
from tolerant_client.raw import CONSUMER, EARLIEST
from tolerant_client.record_batch import Record, encode_batch, read_header

P = TopicPartition("orders", 0)
LINK_ID = 7
IDS = TopicIds("source-id", "target-id")
CONTROL = LinkControl(producer_ids=(LINK_ID,), begun={P: IDS})
ENTRY = ProducerEntry(LINK_ID, 0, 19, 0, -1)


class Log:
    """A cluster of one node and one partition; `leader_end` is what the leader has beyond the high watermark.

    A transaction is open from `stable` on.
    """

    def __init__(
        self, *batches: bytes, end: int, leader_end: int | None = None, start: int = 0, stable: int | None = None
    ) -> None:
        self.stable = end if stable is None else stable
        self.batches, self.start, self.end = batches, start, end
        self.leader_end = end if leader_end is None else leader_end
        self.manager = SimpleNamespace(
            broker_version_data=SimpleNamespace(api_versions={DescribeProducersRequest.API_KEY: (0, 0)})
        )

    async def list_offsets(
        self, asked: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        end = self.stable if isolation_level else self.end
        return {p: self.start if time == EARLIEST else end for p, time in asked.items()}

    async def offsets_at(
        self, node: int, partitions: Iterable[TopicPartition], *_: Any, replica_id: int = CONSUMER
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end if replica_id == CONSUMER else self.leader_end)

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def insist(self, what: str, attempt: Any) -> Any:
        return await attempt()

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, int], *, isolation_level: int = 0, **_: Any
    ) -> list[FetchedPartition]:
        end = self.stable if isolation_level else self.end
        held = [b for b in self.batches if positions[P] <= (header := read_header(b)).last_offset and header.base_offset < end]
        return [FetchedPartition(P, 0, self.end, self.end, self.start, (), memoryview(b"".join(held)))]


def batch(base_offset: int, value: bytes = b"x", **options: Any) -> bytes:
    return encode_batch([Record(0, 1, None, value)] * 10, base_offset=base_offset, **options)


def of_link(base_offset: int, value: bytes = b"x") -> bytes:
    return batch(base_offset, value, producer_id=LINK_ID, producer_epoch=0, base_sequence=base_offset)


def marker(base_offset: int) -> bytes:
    records = [Record(0, 1, b"\0\0\0\0", b"")]
    return encode_batch(records, base_offset=base_offset, producer_id=99, producer_epoch=4, is_control=True)


SOURCE = Log(batch(0), batch(10), end=20)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ids(*_: Any) -> dict[str, TopicIds]:
        return {"orders": IDS}

    async def producers(target: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerEntry]]:
        return {p: [ENTRY] for p in partitions}

    monkeypatch.setattr(state, "read_ids", ids)
    monkeypatch.setattr(state, "describe_producers", producers)


async def no_rows(**_: Any) -> dict[TopicPartition, Any]:
    return {}


def compared(source: Any, target: Any) -> Comparison | None:
    ledger: Any = SimpleNamespace(link="default", rows=no_rows)
    return asyncio.run(compare_ends(source, target, [P], ledger, CONTROL, False))


def test_a_mirror_that_appends_is_in_no_comparisons_way_and_a_place_waits_for_the_replicas() -> None:
    source: Any = SOURCE
    target: Any = Log(of_link(0), end=10, leader_end=20)
    assert compared(source, target) == Comparison({}, ())
    placed = asyncio.run(state.read_append_states(source, target, [P], LINK_ID, control=CONTROL))
    assert placed == {P: Unreplicated(10, 20)}


def test_a_log_whose_last_batch_fills_a_gap_is_compared_while_more_is_appended() -> None:
    source: Any = Log(batch(0), batch(11), end=21)
    assert compared(source, Log(of_link(0), marker(10), end=11, leader_end=21)) == Comparison({}, ())


def test_an_emptied_log_whose_sequence_is_of_later_batches_is_not_compared_this_time() -> None:
    assert compared(SOURCE, Log(end=10, leader_end=20, start=10)) == Comparison({}, (P,))


def test_what_differs_before_the_high_watermark_is_found() -> None:
    found = compared(SOURCE, Log(of_link(0, b"other"), end=10, leader_end=20))
    assert found is not None and not found.unread and "another record than the source" in found.differing[P]


def test_what_others_wrote_while_a_transaction_is_open_on_the_source_is_no_copy_of_it() -> None:
    source: Any = Log(batch(0), batch(10), end=20, stable=10)
    strangers = [
        batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0),
        batch(10, b"other", producer_id=99, producer_epoch=0, base_sequence=0, is_transactional=True),
    ]
    for stranger in strangers:
        found = compared(source, Log(of_link(0), stranger, end=20))
        assert found is not None and "foreign record batch at offset 10" in found.differing[P]
    assert compared(source, Log(of_link(0), end=10)) == Comparison({}, ())


def planned(target: Any) -> list[str]:
    source: Any = SOURCE
    ledger = Ledger(target, "default")
    return asyncio.run(plan_report._differences(source, target, [P], ledger, CONTROL, MirrorPolicy()))[1]


def test_a_plan_warns_of_what_could_not_be_compared() -> None:
    assert planned(Log(of_link(0), end=10, leader_end=20)) == []
    (warning,) = planned(Log(end=10, leader_end=20, start=10))
    assert warning.startswith("could not be compared with the source's log") and warning.endswith(": orders-0")
