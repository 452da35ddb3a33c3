"""fences.py without brokers: where verify finds that the copy of a promoted link ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.state.copied_back import CopiedBack
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.verify import fences
from tolerant_client.mirror.verify.report import LogBounds

P = TopicPartition("orders", 0)


@pytest.mark.parametrize(("stable", "is_filler"), [(15, False), (18, False), (18, True)])
def test_a_transaction_that_was_open_on_the_source_during_a_failover_was_left_behind(
    stable: int, is_filler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is open, and once it was aborted.  Filler at the fence's offset is a link back's."""

    async def read_headers(_: Any, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {p: SimpleNamespace(is_control=at == 15, producer_id=7, base_offset=at) for p, at in offsets.items()}

    async def read_slices(_: Any, ranges: Mapping[TopicPartition, Any], *, is_committed: bool) -> dict[Any, Any]:
        headers = ((FILLER, None),) if is_filler else ()
        record = SimpleNamespace(headers=headers, key=None, value=None if is_filler else b"v")
        return {p: SimpleNamespace(records={} if is_committed else {15: record}) for p in ranges}

    monkeypatch.setattr(fences, "read_headers", read_headers)
    monkeypatch.setattr(fences, "read_slices", read_slices)
    control = LinkControl(is_promotion_begun=True, is_fenced=True, producer_ids=(7,), copied_until={P: 15})
    bounds = {P: LogBounds(0, stable, 18, 0, 16, 16)}
    nowhere: Any = None
    found = asyncio.run(fences.find_fences(nowhere, nowhere, [control], bounds))
    assert found == ({} if is_filler else {P: 15})


@pytest.mark.parametrize(
    ("said", "markers", "source_end", "fence"),
    [
        (15, {15}, 15, 15),
        (10, {15}, 15, 15),  # a failover that knew less of its copy as such
        (0, {15}, 15, 15),
        (15, {15, 16}, 16, 15),  # the first of two; the source has filler there
        (15, {15}, 16, None),
    ],
)
def test_a_fence_is_where_a_marker_of_the_link_is(
    said: int, markers: set[int], source_end: int, fence: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_headers(_: Any, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            p: SimpleNamespace(is_control=at in markers, producer_id=7, base_offset=at) for p, at in offsets.items()
        }

    async def read_slices(_: Any, ranges: Mapping[TopicPartition, Any], *, is_committed: bool) -> dict[Any, Any]:
        filler = SimpleNamespace(headers=((FILLER, None),), key=None, value=None)
        return {p: SimpleNamespace(records=dict.fromkeys(range(*part), filler)) for p, part in ranges.items()}

    monkeypatch.setattr(fences, "read_headers", read_headers)
    monkeypatch.setattr(fences, "read_slices", read_slices)
    control = LinkControl(is_promotion_begun=True, is_fenced=True, producer_ids=(7,), copied_until={P: said})
    bounds = {P: LogBounds(0, source_end, source_end, 0, 20, 20)}
    nowhere: Any = None
    assert asyncio.run(fences.find_fences(nowhere, nowhere, [control], bounds)).get(P) == fence


@pytest.mark.parametrize(
    ("start", "back", "fence"), [(16, {}, 15), (15, {}, None), (18, {}, 15), (18, {P: CopiedBack("back")}, None)]
)
def test_where_the_source_has_deleted_what_it_had_at_the_fence_the_copy_ends_there_unless_a_link_copied_back(
    start: int, back: dict[TopicPartition, CopiedBack], fence: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_headers(_: Any, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {p: SimpleNamespace(is_control=at == 15, producer_id=7, base_offset=at) for p, at in offsets.items()}

    async def read_slices(_: Any, ranges: Mapping[TopicPartition, Any], *, is_committed: bool) -> dict[Any, Any]:
        return {p: SimpleNamespace(records={}) for p in ranges}

    async def copied_back(*_: Any) -> dict[TopicPartition, CopiedBack]:
        return back

    for function in (read_headers, read_slices, copied_back):
        monkeypatch.setattr(fences, function.__name__, function)
    control = LinkControl(is_promotion_begun=True, is_fenced=True, producer_ids=(7,), copied_until={P: 15})
    nowhere: Any = None
    found = asyncio.run(fences.find_fences(nowhere, nowhere, [control], {P: LogBounds(start, 18, 18, 0, 20, 20)}))
    assert found.get(P) == fence


HOME = LinkControl(is_promotion_begun=True, is_fenced=True, producer_ids=(7,), copied_until={P: 15})
LIVE = LinkControl(producer_ids=(8,), begun={P: TopicIds("s", "t")})


@pytest.mark.parametrize(
    ("promoted", "copying", "ended"),
    [
        ([HOME], [], {P: 15}),
        ([HOME, replace(HOME, copied_until={P: 30})], [], {P: 30}),  # moved there once more
        ([HOME], [LIVE], {}),  # it is a copy again
        ([HOME], [replace(LIVE, begun={}, adopted={P: 20})], {}),
    ],
)
def test_the_copy_of_a_promoted_link_has_ended_unless_another_one_goes_on_with_it(
    promoted: list[LinkControl], copying: list[LinkControl], ended: dict[TopicPartition, int]
) -> None:
    assert fences.ended_copies(promoted, copying) == ended


@pytest.mark.parametrize(
    ("target_end", "until", "found"),
    [
        (20, 20, None),  # the target has nothing since
        (25, 20, 20),
        (25, None, None),  # the link back goes on
    ],
)
def test_a_log_that_goes_on_after_it_was_copied_back_is_a_copy_up_to_there(
    target_end: int, until: int | None, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def copied_back(*given: Any) -> dict[TopicPartition, CopiedBack]:
        asked.append(given[2:])
        return {P: CopiedBack("why", until)}

    monkeypatch.setattr(fences, "copied_back", copied_back)
    nowhere: Any = None
    bounds = {P: LogBounds(0, 30, 30, 0, target_end, target_end)}
    for fenced, longer, is_asked in (({}, bounds, True), ({P: 15}, bounds, False)):
        told = asyncio.run(fences.find_copied_back(nowhere, nowhere, {P: 15}, fenced, longer))
        assert told == ({P: CopiedBack("why", found)} if is_asked else {})
    shorter = {P: bounds[P]._replace(source_stable=15, source_end=15)}
    assert not asyncio.run(fences.find_copied_back(nowhere, nowhere, {P: 15}, {}, shorter))
    assert asked == [([P], {P: 15})]
    (cut,) = fences.ends_before({}, {P: CopiedBack("why", found)}, {}, bounds).values()
    assert cut.target_end == cut.target_stable == (target_end if found is None else found)
