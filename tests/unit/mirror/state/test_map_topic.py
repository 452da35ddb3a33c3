"""The topic of a link's offset map: once a link has one, nothing takes another, or none, for it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.life import lens
from tolerant_client.mirror.state import map_rows
from tolerant_client.mirror.state import map_topic as map_topic_module
from tolerant_client.mirror.state.control_record import decode_control, encode_control
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError
from tolerant_client.mirror.state.map_rows import (
    NO_MAP,
    copied_until,
    mapped_topics,
    read_last_rows,
)
from tolerant_client.mirror.state.map_topic import (
    ensure_map_topic,
    has_map,
    lost_map,
    map_partition,
    map_topic,
    require_kind,
)

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
OURS, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)
KNOWN = LinkControl(map_id=str(OURS), adopted={P: 12})


def target_with(
    monkeypatch: pytest.MonkeyPatch,
    topic_id: uuid.UUID | None,
    exists: bool = True,
    trimmed: dict[int, int] | None = None,
) -> Cluster:
    """A target whose map has this id, None of brokers that tell none; no map where it does not exist.

    `trimmed`: where parts of the map now start.
    """

    async def partitions(topics: Collection[str]) -> dict[str, list[int]]:
        return {name: [0] for name in topics if exists}

    async def ids(_: object, topics: Collection[str]) -> dict[str, uuid.UUID]:
        return {name: topic_id for name in topics if exists and topic_id is not None}

    async def starts(_: object, asked: Collection[TopicPartition], **__: object) -> LedOffsets:
        return LedOffsets({p: (trimmed or {}).get(p.partition, 0) for p in asked if exists}, {})

    monkeypatch.setattr(map_topic_module, "topic_ids", ids)
    monkeypatch.setattr(map_topic_module, "list_led_offsets", starts)
    monkeypatch.setattr(map_topic_module, "copied_logs", AsyncMock(return_value=frozenset()))
    return cast(
        Cluster,
        Mock(spec=Cluster, partitions=partitions, net=Mock(sleep=AsyncMock()), file_options="--config f.properties"),
    )


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
        (LinkControl(producer_ids=(3,)), OTHER, True, None),  # a former link of this name had a map
        (LinkControl(map_id=str(OURS), producer_ids=(3,)), OTHER, True, "was deleted and created again"),
    ],
)
def test_a_map_that_is_gone_or_another_one_is_lost(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, topic_id: uuid.UUID | None, exists: bool, said: str | None
) -> None:
    why = asyncio.run(lost_map(target_with(monkeypatch, topic_id, exists), "dr", control))
    assert why is None if said is None else why is not None and said in why and map_topic("dr") in why


def test_a_map_that_was_trimmed_has_lost_rows_and_those_that_are_left_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once cleanup.policy=delete had deleted rows, the next start copied everything twice, also after that was set right."""
    target = target_with(monkeypatch, OURS, trimmed={3: 12, 5: 7})
    why = asyncio.run(lost_map(target, "dr", KNOWN))
    assert why is not None and "partition 3 now starts at offset 12, partition 5 now starts at offset 7" in why
    assert "Setting cleanup.policy right brings no row back. To copy all again, delete that topic" in why
    part = map_partition("dr", P)
    monkeypatch.setattr(map_rows, "_newest_rows", AsyncMock(return_value=({}, {})))
    for number in (part.partition, 5):
        target = target_with(monkeypatch, OURS, trimmed={number: 12})
        reading = read_last_rows(target, "dr", [P], KNOWN)  # asks the leader of its own part alone
        if number == part.partition:
            with pytest.raises(TargetDivergedError, match="has lost rows"):
                asyncio.run(reading)
        else:
            assert asyncio.run(reading) == {}
    assert asyncio.run(lost_map(target, "dr", KNOWN, ())) is None


@pytest.mark.parametrize(
    ("control", "is_lost"),
    [
        (LinkControl(), True),
        (LinkControl(topics="{}", is_promotion_begun=True), True),  # a failover that found no control
        (LinkControl(topics="{}", adopted={P: 12}), False),  # prepared: it begins after what a former link has copied
        (LinkControl(is_hidden=True), False),
        (LinkControl(producer_ids=(3,)), False),
    ],
)
def test_a_map_without_a_control_is_lost_if_the_logs_have_copies_of_the_link(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, is_lost: bool
) -> None:
    for exists in (False, True):
        target = target_with(monkeypatch, None, exists)
        monkeypatch.setattr(map_topic_module, "copied_logs", logs := AsyncMock(return_value=frozenset([P])))
        why = asyncio.run(lost_map(target, "dr", control))
        assert (why is not None and "as its control was, and the log of orders-0 has" in why) == (
            is_lost and not exists
        )
        assert asyncio.run(has_map(target, "dr", control)) == (is_lost or exists and not control.is_identical)
        if is_lost and not exists:
            logs.assert_awaited_with(target, "tolerant-mirror-dr-copy-")


IDENTICAL, TRANSLATED = "tolerant.offsets = identical", "--offsets translated .in a file tolerant.offsets = translated"


@pytest.mark.parametrize(
    ("control", "exists", "is_translated", "refused"),
    [
        (KNOWN, True, False, TRANSLATED),
        (KNOWN, False, False, TRANSLATED),  # its map is lost
        (KNOWN, True, True, None),
        # An earlier version has taken it for identical once.
        (replace(KNOWN, producer_ids=(3,)), True, False, TRANSLATED),
        (replace(KNOWN, producer_ids=(3,)), True, True, None),
        (LinkControl(producer_ids=(3,)), True, True, IDENTICAL),
        (LinkControl(producer_ids=(3,)), True, False, None),  # a former link of this name had a map
        (replace(KNOWN, is_handed_back=True), True, False, None),  # take-over begins it again
        (LinkControl(producer_ids=(3,), is_promotion_begun=True), True, True, None),
        (LinkControl(), False, False, None),
        (LinkControl(), False, True, None),
        (
            LinkControl(paused=frozenset({"x"})),
            True,
            False,
            f"does not say that this link has identical ones: .* {TRANSLATED}",
        ),
        (LinkControl(topics="{}", source_cluster_id="A-id"), True, False, TRANSLATED),  # version 0.1 wrote no map_id
        (LinkControl(topics="{}", source_cluster_id="A-id"), True, True, None),
        (LinkControl(), True, True, None),
        (LinkControl(is_hidden=True), True, False, None),  # another error says that
        (LinkControl(topics="{}", source_cluster_id="A-id", generation=1), True, False, None),  # take-over prepared it
    ],
)
def test_a_link_keeps_the_kind_of_offsets_with_which_it_began(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, exists: bool, is_translated: bool, refused: str | None
) -> None:
    target = target_with(monkeypatch, OURS, exists)
    assert control.is_identical == (control.producer_ids != () and control.map_id is None)
    has_one = asyncio.run(has_map(target, "dr", control))
    assert has_one == (not control.is_identical and (exists or control.map_id is not None))
    asking = require_kind(target, "dr", control, is_translated=is_translated)
    if refused is None:
        asyncio.run(asking)
    else:
        with pytest.raises(LinkKindError, match=refused):
            asyncio.run(asking)


@pytest.mark.parametrize(("topic_id", "exists"), [(OTHER, True), (None, False)])
def test_a_lost_map_is_not_made_anew_and_says_of_nothing_that_it_was_not_copied(
    monkeypatch: pytest.MonkeyPatch, topic_id: uuid.UUID | None, exists: bool
) -> None:
    target = target_with(monkeypatch, topic_id, exists)
    made = AsyncMock()
    monkeypatch.setattr(map_topic_module.StateTopic, "ensure", made)
    monkeypatch.setattr(map_rows, "_newest_rows", AsyncMock(return_value=({}, {})))
    monkeypatch.setattr(map_rows, "read_control", AsyncMock(return_value=KNOWN))
    with pytest.raises(TargetDivergedError, match="copies nothing twice"):
        asyncio.run(ensure_map_topic(target, "dr", KNOWN))
    with pytest.raises(TargetDivergedError, match="under another link name"):
        asyncio.run(read_last_rows(target, "dr", [P], KNOWN))
    made.assert_not_awaited()
    assert asyncio.run(has_map(target, "dr", KNOWN)), "it is no link with identical offsets now"
    assert asyncio.run(mapped_topics(target, "dr", KNOWN)) == NO_MAP
    assert asyncio.run(copied_until(target, "dr", [P])) == {}
    assert [lag.position for lag in asyncio.run(lens.look(None, target, "dr", [P], True, KNOWN))] == [None]
    monkeypatch.setattr(map_rows, "read_control", AsyncMock(return_value=LinkControl(adopted=KNOWN.adopted)))
    for end, until in ((9, 12), (0, 0)):  # an empty log was created again since the link took it over
        monkeypatch.setattr(map_rows, "list_led_offsets", AsyncMock(return_value=LedOffsets({P: end}, {})))
        assert asyncio.run(copied_until(target, "dr", [P])) == {P: until}


def test_a_partition_that_takes_over_again_looks_whether_it_read_the_map_of_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_rows, "_newest_rows", AsyncMock(return_value=({}, {})))
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


def test_a_link_with_identical_offsets_needs_no_map_to_translate_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_topic_module, "describe_topics", AsyncMock(return_value={}))
    target = target_with(monkeypatch, None, False)
    for control, why in ((LinkControl(producer_ids=(7,)), "identical offsets"), (LinkControl(), "check --link and")):
        with pytest.raises(OptionError, match=why):
            asyncio.run(map_topic_module.require_map_topic(target, "dr", control))
