"""A plan foresees where a mirror with translated offsets begins a log, and what stops it: from the same facts, both say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import EARLIEST, OffsetAndEpoch
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.engine.translated import copied_before, foresight, place
from tolerant_client.mirror.engine.translated.copied_before import find_copied
from tolerant_client.mirror.engine.translated.foresight import Foreseen, foresee
from tolerant_client.mirror.engine.translated.place import Place
from tolerant_client.mirror.engine.translated.target_checks import TopicPair, resumption
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import LastRow
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topics import TopicFacts

P = TopicPartition("orders", 0)
IDS = TopicIds("s", "t")
COPIED = MapRow(RowKey(P, 0), "orders", ("s", "t"), 100, 0, (Run(0, 7, 100),))
READ = COPIED._replace(position=20, runs=(Run(20, 0, 0),))  # up to 20; nothing was copied
AGAIN = READ._replace(key=RowKey(P, 1), position=50, runs=(Run(50, 107, 0),))  # after a loss
ADOPTED = READ._replace(position=60, runs=(Run(50, 40, 0),))


@pytest.mark.parametrize(
    ("row", "source_id", "start", "least", "cut_at", "at", "has_copied"),
    [
        (None, "s", 5, 0, None, 5, False),
        (None, "s", 5, 9, None, 9, False),
        (READ, "s", 0, 0, None, 20, False),
        (READ, "s", 0, 30, None, 30, False),
        (READ, "s", 25, 0, None, 25, False),
        (AGAIN, "s", 0, 0, None, 50, False),
        (COPIED, "s", 0, 0, None, 100, True),
        (COPIED, "", 100, 0, None, 100, True),
        (COPIED, "s", 101, 0, None, 101, False),  # retention overtook the link
        (COPIED, "s", 0, 0, 70, 70, False),  # the source was cut
        (COPIED, "s", 90, 0, 70, 90, False),
        (COPIED, "anew", 0, 0, None, 0, False),
        (COPIED, "anew", 0, 9, None, 9, False),
    ],
)
def test_a_link_begins_a_log_until_it_has_copied_a_record_of_it(
    row: MapRow | None, source_id: str, start: int, least: int, cut_at: int | None, at: int, has_copied: bool
) -> None:
    found = resumption(row, row, (source_id, "t"), start, 500, least, cut_at)
    assert (found.position, found.has_copied) == (at, has_copied)


def cluster(start: int, end: int) -> Any:
    async def offsets(wanted: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, int]:
        return {p: start if at == EARLIEST else end for p, at in wanted.items()}

    async def epochs(wanted: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAndEpoch]:
        return {p: OffsetAndEpoch(at, 1) for p, at in (await offsets(wanted)).items()}

    return SimpleNamespace(list_offsets=offsets, list_offsets_and_epochs=epochs)


async def led(cluster: Any, wanted: Mapping[TopicPartition, int], **_: Any) -> LedOffsets:
    return LedOffsets(await cluster.list_offsets(wanted), {})


def of_mirror(
    source: Any, target: Any, row: MapRow | None, ids: TopicIds, control: LinkControl
) -> tuple[int | None, str | None]:
    """Where the mirror begins, once policy has accepted every loss, None where it goes on; and what it says first."""

    async def until(_: TopicPartition, end: int) -> int:
        return control.adopted_of(P, end)

    reads: Any = SimpleNamespace(
        topics=AsyncMock(return_value=TopicPair(ids, TopicFacts(False, 1 << 20, None))),
        last_row=AsyncMock(return_value=LastRow(row)),
        map_epoch=AsyncMock(return_value=0),
        has_written=AsyncMock(return_value=False),
        open_producers=AsyncMock(return_value=None),
        other_copies=AsyncMock(return_value=()),
        origins=AsyncMock(return_value=()),
        copies_of_mm2=AsyncMock(return_value=()),
    )
    control_watch = SimpleNamespace(value=control)
    link: Any = SimpleNamespace(source=source, target=target, name="dr", control=control_watch, clock=lambda: 0.0)
    found = Place(link, reads, SimpleNamespace(until=until), P)  # type: ignore[arg-type]
    said: list[str] = []
    for _ in range(4):
        try:
            asyncio.run(found.read(7))
            break
        except TolerantClientError as error:
            said.append(str(error))
            if found.loss is None:
                break  # the target's log lost what was copied
            found._accepted.add(found.loss)
            found.loss = None
    else:
        raise AssertionError("there is no end of losses")
    asked = place.require_not_there
    assert isinstance(asked, AsyncMock)
    return asked.await_args.args[5] if asked.await_args is not None else None, said[0] if said else None


def of_plan(source: Any, target: Any, control: LinkControl) -> tuple[int | None, str | None]:
    async def plan() -> Foreseen:
        found = await foresee(source, target, "dr", control, [P], [P])
        await find_copied(source, target, "dr", found)
        return found[P]

    error = asyncio.run(plan()).error
    asked = copied_before.require_not_there
    assert isinstance(asked, AsyncMock)
    return asked.await_args.args[5] if asked.await_args is not None else None, None if error is None else str(error)


@pytest.mark.parametrize("told", [None, 30, 95])  # where the source's leaders say that the copied epoch ends
@given(
    row=st.sampled_from([None, COPIED, READ, AGAIN, ADOPTED]),
    source_id=st.sampled_from(["s", "anew", ""]),
    target_end=st.sampled_from([0, 40, 107, 300]),
    spans=st.tuples(*(st.sampled_from([0, 15, 60, 100, 101, 150]) for _ in range(2))),
    start_of=st.sampled_from([None, 10, 90, 130]),
    adopted=st.sampled_from([0, 50, 100, 140]),
)
@example(row=COPIED, source_id="s", target_end=300, spans=(0, 150), start_of=None, adopted=140)
@example(row=None, source_id="s", target_end=300, spans=(0, 100), start_of=130, adopted=0)
def test_a_plan_begins_every_log_where_the_mirror_begins_it(
    told: int | None,
    row: MapRow | None,
    source_id: str,
    target_end: int,
    spans: tuple[int, int],
    start_of: int | None,
    adopted: int,
) -> None:
    """A cut is found by records only by the mirror: here none are left that differ."""
    source, target, ids = cluster(min(spans), max(spans)), cluster(0, target_end), TopicIds(source_id, "t")
    control = LinkControl(adopted={P: adopted} if adopted else {})
    if start_of is not None:
        control = control.with_starts({P: OffsetAndEpoch(start_of, 1)}, {P.topic: source_id})

    async def cuts(_: Any, copied: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        return {p: told for p, (epoch, at) in copied.items() if told is not None and 0 <= epoch and told < at}

    with pytest.MonkeyPatch.context() as patch:
        for module in (place, copied_before):
            patch.setattr(module, "require_not_there", AsyncMock())
        for module in (place, foresight):
            patch.setattr(module, "source_truncations", cuts)
        patch.setattr(place, "read_headers", AsyncMock(return_value={}))
        patch.setattr(place, "first_other", AsyncMock(return_value=None))
        patch.setattr(place, "committed_copy", AsyncMock(return_value=None))
        patch.setattr(Place, "_has_more", AsyncMock(return_value=False))
        patch.setattr(foresight, "last_rows", AsyncMock(return_value={} if row is None else {P: row}))
        patch.setattr(foresight, "list_led_offsets", led)
        patch.setattr(foresight, "replaced", AsyncMock(return_value=frozenset()))
        patch.setattr(foresight, "followed", AsyncMock(return_value={}))
        patch.setattr(foresight, "read_ids", AsyncMock(return_value={P.topic: ids}))
        for name in ("other_copies", "origins", "copies_of_mm2"):
            patch.setattr(copied_before, name, AsyncMock(return_value={}))
        assert of_plan(source, target, control) == of_mirror(source, target, row, ids, control)
