"""The topic of a link's offset map: once a link has one, nothing takes another, or none, for it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.life import lens
from tolerant_client.mirror.state import map_topic as module
from tolerant_client.mirror.state.control_record import decode_control, encode_control
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import (
    NO_MAP,
    copied_until,
    ensure_map_topic,
    has_map,
    lost_map,
    map_topic,
    mapped_topics,
    read_last_rows,
)

P = TopicPartition("orders", 0)
OURS, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)
KNOWN = LinkControl(map_id=str(OURS), adopted={P: 12})


def target_with(monkeypatch: pytest.MonkeyPatch, topic_id: uuid.UUID | None, exists: bool = True) -> Cluster:
    """A target whose map has this id, None of brokers that tell none; no map where it does not exist."""

    async def partitions(topics: Collection[str]) -> dict[str, list[int]]:
        return {name: [0] for name in topics if exists}

    async def ids(_: object, topics: Collection[str]) -> dict[str, uuid.UUID]:
        return {name: topic_id for name in topics if exists and topic_id is not None}

    monkeypatch.setattr(module, "topic_ids", ids)
    return cast(Cluster, Mock(spec=Cluster, partitions=partitions, net=Mock(sleep=AsyncMock())))


@pytest.mark.parametrize(
    ("control", "topic_id", "exists", "said"),
    [
        (KNOWN, OURS, True, None),
        (KNOWN, OTHER, True, "was deleted and created again"),
        (KNOWN, None, False, "was deleted:"),
        (KNOWN, None, True, None),  # told by no broker: as far as is known
        (LinkControl(map_id=""), OTHER, True, None),
        (LinkControl(map_id=""), None, False, "was deleted:"),
        (LinkControl(), None, False, None),  # a first start, or a control of a version that has written no id
        (LinkControl(map_id=str(OURS), producer_ids=(3,)), OTHER, True, None),
    ],
)
def test_a_map_that_is_gone_or_another_one_is_lost(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, topic_id: uuid.UUID | None, exists: bool, said: str | None
) -> None:
    why = asyncio.run(lost_map(target_with(monkeypatch, topic_id, exists), "dr", control))
    assert why is None if said is None else why is not None and said in why and map_topic("dr") in why


@pytest.mark.parametrize(("topic_id", "exists"), [(OTHER, True), (None, False)])
def test_a_lost_map_is_not_made_anew_and_says_of_nothing_that_it_was_not_copied(
    monkeypatch: pytest.MonkeyPatch, topic_id: uuid.UUID | None, exists: bool
) -> None:
    target = target_with(monkeypatch, topic_id, exists)
    made = AsyncMock()
    monkeypatch.setattr(module.StateTopic, "ensure", made)
    monkeypatch.setattr(module, "_newest_rows", AsyncMock(return_value={}))
    monkeypatch.setattr(module, "read_control", AsyncMock(return_value=KNOWN))
    with pytest.raises(TargetDivergedError, match="copies nothing twice"):
        asyncio.run(ensure_map_topic(target, "dr", KNOWN))
    with pytest.raises(TargetDivergedError, match="under another link name"):
        asyncio.run(read_last_rows(target, "dr", [P], KNOWN))
    made.assert_not_awaited()
    assert asyncio.run(has_map(target, "dr", KNOWN)), "it is no link with identical offsets now"
    assert asyncio.run(mapped_topics(target, "dr", KNOWN)) == NO_MAP
    assert asyncio.run(copied_until(target, "dr", [P])) == {}
    assert [lag.position for lag in asyncio.run(lens.look(None, target, "dr", [P], True, KNOWN))] == [None]
    monkeypatch.setattr(module, "read_control", AsyncMock(return_value=LinkControl(adopted=KNOWN.adopted)))
    for end, until in ((9, 12), (0, 0)):  # an empty log was created again since the link took it over
        monkeypatch.setattr(module, "list_led_offsets", AsyncMock(return_value=LedOffsets({P: end}, {})))
        assert asyncio.run(copied_until(target, "dr", [P])) == {P: until}


def test_a_partition_that_takes_over_again_looks_whether_it_read_the_map_of_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_newest_rows", AsyncMock(return_value={}))
    target = cast(Any, target_with(monkeypatch, OTHER))
    watch = ControlWatch(target, "dr")
    reads = SharedReads(Mock(spec=Cluster), target, watch, lambda: 0.0)
    assert asyncio.run(reads._last_rows[P]._ask(target, "dr", [P])) == {}
    watch.value = KNOWN
    with pytest.raises(TargetDivergedError):
        asyncio.run(reads._last_rows[P]._ask(target, "dr", [P]))


def test_the_control_keeps_the_id_of_a_map() -> None:
    assert decode_control(encode_control(KNOWN, 1)).map_id == str(OURS)
    assert LinkControl().map_id is None
