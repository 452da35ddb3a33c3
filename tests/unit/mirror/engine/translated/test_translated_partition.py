"""Where a partition with translated offsets resumes, and how far it reports to have copied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import DataLossError, LinkPausedError, LinkPromotedError, ProducerFencedError
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.translated import partition
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.mirror.state.topics import TopicFacts


@pytest.mark.parametrize(
    ("now", "former", "acked"),
    [("anew", 0, 0), ("former", 0, 500), ("", 0, 500), ("former", 400, 0)],
    ids=["another", "the same", "no ids", "cut"],
)
def test_how_far_a_former_topic_was_looked_at_is_not_written_of_the_one_that_was_made_anew(
    now: str, former: int, acked: int
) -> None:
    """The written row names the new topic: a process that is killed then would resume there."""
    copy: Any = TranslatedPartition.__new__(TranslatedPartition)
    written = []

    async def done(*_: Any) -> Any:
        return None

    async def refresh() -> Any:
        return SimpleNamespace(pauses=lambda _: False)

    async def read(_: int) -> int:
        return 0

    async def write_position() -> None:
        written.append(copy.acked)

    copy.__dict__.update(
        partition=None,
        acked=500,
        until=None,
        hold_until=0.0,
        _source_id="former",
        _stands_since=1.0,
        _progressed_at=0.0,
        _claims=Mock(),
        _link=SimpleNamespace(
            control=SimpleNamespace(refresh=refresh),
            require_not_promoted=lambda: None,
        ),
        _parts=SimpleNamespace(reads=SimpleNamespace(copied_by_others=done)),
        _producer=SimpleNamespace(take_over=done, producer_id=7),
        _rules=SimpleNamespace(_replace=lambda **_: None),
        is_recoded=False,
        separate_until=0,
        _troubles=SimpleNamespace(reasons=()),
        place=SimpleNamespace(
            read=read,
            limit_adopted=done,
            begun=lambda: None,
            ids=(now, "t"),
            is_begun=False,
            has_copied=False,
            target=TopicFacts(False, 1, None),
            row=None,
            position=former,
            is_open=False,
        ),
        set_paused=lambda _: None,
        read_on=lambda: None,
        _write_position=write_position,
    )
    asyncio.run(copy._take_over())
    assert written == [acked] and copy.position == 0


def test_of_what_an_operator_has_paused_nothing_is_decided_until_it_is_resumed() -> None:
    """Its topic may have been created again on either side: that ends the link, or gets a ledger row, only then."""
    copy: Any = TranslatedPartition.__new__(TranslatedPartition)
    decided: list[Exception] = []

    async def decide(error: Exception, loss: object) -> None:
        decided.append(error)

    async def wake(_: float) -> None:
        woken.append(copy.is_over)
        if len(woken) == 3:
            copy.paused = None

    woken: list[bool] = []
    lost = DataLossError("the source topic was created again")
    troubles = SimpleNamespace(reasons=[], add=lambda *_: None, is_believed=lambda: True)
    copy.__dict__.update(
        partition=TopicPartition("orders", 0),
        acked=5,
        until=None,
        hold_until=1.0,
        lease_until=1.0,
        error=None,
        is_released=False,
        paused=LinkPausedError("by an operator"),
        wakeup=wake,
        place=SimpleNamespace(loss=object()),
        _stands_since=None,
        _progressed_at=0.0,
        _link=SimpleNamespace(clock=lambda: 0.0, limits=SimpleNamespace(patience_ms=1), target=None, name=""),
        _troubles=troubles,
        _decide=decide,
        is_recoded=False,
        separate_until=0,
    )
    asyncio.run(copy._trouble(lost))
    assert woken == [False] * 3 and decided == [] and copy._is_taken_over is False
    asyncio.run(copy._trouble(lost))
    assert decided == [lost]


@pytest.mark.parametrize("is_watching", [False, True])
def test_a_copier_whose_map_says_that_the_link_is_over_appends_nothing(
    is_watching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the map before it appends again, whether it was fenced off or not; the control may have been deleted."""
    copy: Any = TranslatedPartition.__new__(TranslatedPartition)
    calls: list[str] = []

    async def take_over() -> None:
        calls.append("take over")
        raise ProducerFencedError("a failover") if is_watching else promoted

    async def watch(*_: Any) -> None:
        calls.append("watch")
        raise promoted

    promoted = LinkPromotedError("Link dr was promoted, as its map says")
    copy.__dict__.update(
        error=None,
        is_released=False,
        paused=None,
        acked=5,
        until=9,
        _link=SimpleNamespace(tasks=SimpleNamespace(notify=lambda: None)),
        _parts=SimpleNamespace(reads=None, transactions=TransactionLimits()),
        _forget=lambda: None,
        _take_over=take_over,
    )
    monkeypatch.setattr(partition, "watch_rival", watch)
    asyncio.run(copy.run())
    assert copy.error is promoted and copy.is_done
    assert calls == ["take over", "watch"][: 1 + is_watching]
