"""The fence without brokers: where a copy ends, and who is fenced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition

from support.promotion_world import FakeTarget, P
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.errors import LinkPromotedError
from tolerant_client.mirror.life import fence
from tolerant_client.mirror.state.link_control import LinkControl


def test_a_copy_ends_before_the_marker_of_a_fence_that_was_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records up to 10, markers of two fences at 10 and 11; in another partition one, behind an application's marker."""
    other = TopicPartition("orders", 1)
    log = {(P, 11): (True, 7), (P, 10): (True, 7), (P, 9): (False, 7), (P, 8): (False, 7), (other, 4): (True, 9)}

    async def headers(_: Any, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            p: SimpleNamespace(
                is_control=log[p, offset][0], producer_id=log[p, offset][1], base_offset=offset, next_offset=offset + 1
            )
            for p, offset in wanted.items()
        }

    monkeypatch.setattr(fence, "read_headers", headers)
    target = FakeTarget()
    assert target.net.run(fence.before_markers, target, {P: 12, other: 5}, {7}, {}) == {P: 10, other: 5}
    assert target.net.run(fence.before_markers, target, {P: 12}, {7}, {P: 11}) == {P: 11}, "it was adopted"
    # A fence that was killed: its marker at 10, filler for a former id at 11 (law C), then the marker of the next one.
    log = {
        (P, 12): (True, 8),
        (P, 11): (False, 8),
        (P, 10): (True, 8),
        (P, 9): (False, 8),
        (P, 8): (False, 8),
        (P, 7): (False, 8),
    }
    assert target.net.run(fence.before_markers, target, {P: 13}, {7, 8}, {}) == {P: 10}


def test_copiers_of_a_translated_link_are_fenced_by_name_whatever_list_transactions_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker does not list a transactional id that we may not describe, nor one without a coordinator."""
    fenced: list[str] = []

    class Transaction:
        def __init__(self, target: object, name: str, timeout_ms: int) -> None:
            self.name = name

        async def begin(self) -> None:
            fenced.append(self.name)

    async def none(*_: object) -> set[str]:
        return set()

    async def run() -> None:
        net = SimpleNamespace(call_soon_with_future=lambda begin, name: asyncio.ensure_future(begin(name)))
        target = cast(Cluster, SimpleNamespace(net=net))
        await fence.fence_translated(target, "l", [TopicPartition("t", n) for n in range(3)])

    monkeypatch.setattr(fence, "ProducerTransaction", Transaction)
    monkeypatch.setattr(fence, "transactional_ids", none)
    asyncio.run(run())
    assert fenced == [f"tolerant-mirror-l-copy-t-{n}" for n in range(3)]


def test_a_fence_whose_promotion_another_command_has_taken_over_writes_no_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the transactional.id by then, so the other one can only have fenced before, and applications may write."""
    steps: list[str] = []

    class Transaction:
        producer_id = 7

        def __init__(self, *_: object) -> None:
            pass

        async def begin(self) -> None:
            steps.append("begin")

    async def require_promotion() -> None:
        steps.append("ask")
        raise LinkPromotedError("another one fences")

    monkeypatch.setattr(fence, "ProducerTransaction", Transaction)
    monkeypatch.setattr(fence, "transactional_ids", AsyncMock(return_value=set()))
    monkeypatch.setattr(fence, "read_headers", AsyncMock(return_value={}))
    with pytest.raises(LinkPromotedError):
        asyncio.run(fence.fence_identical(cast(Cluster, FakeTarget()), "dr", LinkControl(), [P], require_promotion))
    assert steps == ["begin", "ask"]


def test_a_former_producer_that_could_not_be_fenced_is_named_with_its_partition() -> None:
    """It has no transactional.id, so nobody took that over."""

    def produce(*_: object, **__: object) -> Future:
        return Future().success([ProducedPartition(P, Errors.InvalidProducerEpochError.errno, -1)])

    async def leader(partition: TopicPartition) -> int:
        return 1

    async def insist(what: str, attempt: Any) -> int:
        told.append(what)
        return cast(int, await attempt())

    told: list[str] = []
    target = cast(Cluster, SimpleNamespace(produce=produce, leader=leader, insist=insist, sendable=leader))
    with pytest.raises(Errors.InvalidProducerEpochError, match="fencing producer id 9 in orders-0"):
        asyncio.run(fence._write_filler(target, P, 9, 4))
    assert told == ["fencing producer id 9 in orders-0"]
