"""Where MirrorMaker 2 is, found in the logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LogOffsets
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.life import takeover
from tolerant_client.mirror.life.takeover import (
    Bounds,
    TakenPartition,
    blockers,
    copied_by_us,
    find_position,
    is_identical,
    last_match,
    to_adopt,
)
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records.record_batch import Record


def records(*values: int, first: int = 0) -> list[Record]:
    return [Record(first + n, 1_700_000_000_000, b"k", b"%d" % value) for n, value in enumerate(values)]


def test_the_place_of_the_last_records_is_found_whatever_their_offsets() -> None:
    source = records(*range(100), first=1000)
    assert last_match(source, records(40, 41, 42, first=7)) == 1043


def test_offsets_without_a_record_do_not_matter() -> None:
    source = [record for record in records(*range(100)) if record.offset % 10]  # markers
    assert last_match(source, records(8, 9 + 2, first=500)) is None
    assert last_match(source, records(38, 39, 41, first=500)) == 42


def test_equal_records_are_told_apart_by_those_before_them() -> None:
    source = records(1, 7, 2, 7, 3, 7)
    assert last_match(source, records(2, 7)) == 4


def test_of_places_that_are_alike_the_first_one_counts() -> None:
    assert last_match(records(5, 5, 5, 5), records(5, 5)) == 2


def test_records_with_another_time_key_or_value_are_others() -> None:
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_001, b"k", b"2")]) is None
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_000, b"K", b"2")]) is None
    assert last_match(records(1, 2, 3), [Record(0, 1_700_000_000_000, b"k", b"2", (("h", b""),))]) is None


def partition(topic: str, *, is_identical: bool, position: int) -> TakenPartition:
    return TakenPartition(topic, 0, is_identical, -1, position, 100)


def test_identical_offsets_need_logs_that_are_identical() -> None:
    good = partition("good", is_identical=True, position=100)
    bad = partition("bad", is_identical=False, position=90)
    assert blockers([good], "identical") == ()
    (text,) = blockers([good, bad], "identical")
    assert "bad" in text and "good" not in text and "tolerant.offsets = translated" in text


def test_translated_offsets_need_a_position_that_the_logs_show() -> None:
    known = partition("known", is_identical=False, position=90)
    assert blockers([known], "translated") == ()
    (text,) = blockers([known, partition("lost", is_identical=False, position=-1)], "translated")
    assert "lost-0" in text


def test_open_transactions_are_in_the_way_of_identical_offsets() -> None:
    opened = replace(partition("open", is_identical=True, position=100), is_open=True)
    (text,) = blockers([opened], "identical")
    assert "open-0" in text and "transactions" in text
    assert blockers([opened], "translated") == ()


def test_what_was_copied_of_a_transaction_that_is_open_on_the_source_is_waited_for() -> None:
    undecided = replace(partition("open", is_identical=True, position=100), is_undecided=True)
    (text,) = blockers([undecided], "identical")
    assert "open on the source, open-0 (1 partitions)" in text and "wait until they have ended" in text
    assert blockers([undecided], "translated") == ()


def test_a_translated_link_that_has_copied_itself_takes_over_nothing() -> None:
    """Run beside the mirror it would take the mirror's own copies for those of another, which no group can be moved into."""
    taken = LinkControl(adopted={PLACE: 100})
    rows = {PLACE: MapRow(RowKey(PLACE, 0), "orders", ("", ""), 100, 7, (Run(50, 0, 50),))}
    assert not copied_by_us(taken, {}) and not copied_by_us(taken, rows), "what it had copied before MirrorMaker 2 did"
    rows[PLACE] = rows[PLACE]._replace(position=101)
    assert copied_by_us(taken, rows) == copied_by_us(LinkControl(), rows) == {PLACE}
    for over in ({"is_promotion_begun": True}, {"is_handed_back": True}):
        assert not copied_by_us(replace(taken, **over), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("control", "offsets", "refused"),
    [
        (LinkControl(map_id="m"), "identical", "copies into this target already"),
        (LinkControl(producer_ids=(7,)), "identical", "copies into this target already"),
        (LinkControl(producer_ids=(7,)), "translated", "copies into this target already"),
        (LinkControl(map_id="m"), "translated", ""),  # of which it has copied nothing yet
        (LinkControl(map_id="m", is_handed_back=True), "identical", ""),
        (LinkControl(producer_ids=(7,), is_handed_back=True), "translated", ""),
    ],
)
def test_a_live_link_takes_over_nothing_and_one_that_is_over_may_change_its_kind(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, offsets: str, refused: str
) -> None:
    cluster = Mock(
        connect=AsyncMock(), require_record_batches=AsyncMock(), partitions=AsyncMock(), highest_version=lambda _: 4
    )
    cluster.cluster_id = AsyncMock(return_value="a")
    nothing = dict.fromkeys(("refuse_one_cluster", "links_into", "require_not_forgotten"))
    empty = dict.fromkeys(("refuse_circle", "whether_mm2_runs", "shared_partitions"), ())
    for name, value in {"read_control": control, **nothing, **empty}.items():
        monkeypatch.setattr(takeover, name, AsyncMock(return_value=value))
    for name in ("read_positions_of_mm2", "last_rows", "read_bounds"):
        monkeypatch.setattr(takeover, name, AsyncMock(return_value={}))
    monkeypatch.setattr(takeover, "select_topics", lambda *_: ["orders"])
    taking = takeover.take_over(cluster, cluster, "dr", LinkTopics.of("orders"), "A", offsets=offsets, is_dry_run=True)
    if refused:
        with pytest.raises(OptionError, match=refused):
            asyncio.run(taking)
    else:
        assert asyncio.run(taking).exit_code == 0


def test_of_an_empty_log_nothing_is_adopted() -> None:
    """Found empty by the mirror, it would be taken for one that was created again."""
    full = partition("full", is_identical=False, position=90)
    empty = TakenPartition("empty", 0, False, -1, 100, 0)  # the source's first offset
    assert to_adopt([full, empty]) == {TopicPartition("full", 0): 90}


# -- what shows that two logs are one -----------------------------------------

PLACE = TopicPartition("orders", 0)


def drive(coroutine: Any) -> Any:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Record]]:
    """The records of the two logs, by the clusters' names, which stand for the clusters."""
    logs: dict[str, list[Record]] = {"source": [], "target": []}

    async def read_slices(cluster: str, ranges: Any, *, is_committed: bool) -> Any:
        ((p, (start, until)),) = ranges.items()
        return {p: LogSlice(until, {r.offset: r for r in logs[cluster] if start <= r.offset < until})}

    async def first_difference_of_logs(
        source: str, target: str, p: TopicPartition, start: int, until: int
    ) -> int | None:
        here = {r.offset: r for r in logs[source] if start <= r.offset < until}
        return min((r.offset for r in logs[target] if r.offset in here and here[r.offset] != r), default=None)

    monkeypatch.setattr(takeover, "read_slices", read_slices)
    monkeypatch.setattr(takeover, "first_difference_of_logs", first_difference_of_logs)
    return logs


def identical(bounds: Bounds, committed: int = -1) -> bool:
    return bool(drive(is_identical("source", "target", PLACE, bounds, committed)))  # type: ignore[arg-type]


def test_equal_records_at_equal_offsets_show_it(slices: dict[str, list[Record]]) -> None:
    slices["source"], slices["target"] = records(*range(10)), records(*range(8))
    assert identical(Bounds(LogOffsets(0, 10, 10), LogOffsets(0, 8, 8)))
    slices["target"] = records(*range(1, 9))
    assert not identical(Bounds(LogOffsets(0, 10, 10), LogOffsets(0, 8, 8)))


def test_an_end_alone_shows_nothing(slices: dict[str, list[Record]]) -> None:
    """Retention has emptied the target; the source's log happens to go on there."""
    slices["source"] = records(*range(500))
    emptied = Bounds(LogOffsets(0, 500, 500), LogOffsets(400, 400, 400))
    assert not identical(emptied)
    assert not identical(emptied, committed=380)
    assert identical(emptied, committed=400), "MirrorMaker 2 has noted that very offset"
    assert identical(Bounds(LogOffsets(0, 500, 500), LogOffsets(0, 0, 0))), "an empty log that never had a record"


def test_a_target_that_lies_where_the_source_was_compacted_shows_nothing(slices: dict[str, list[Record]]) -> None:
    slices["source"], slices["target"] = records(*range(10), first=990), records(*range(10))
    assert not identical(Bounds(LogOffsets(0, 1000, 1000), LogOffsets(0, 10, 10)), committed=1000)


def test_a_target_that_ends_behind_the_source_is_no_copy(slices: dict[str, list[Record]]) -> None:
    assert not identical(Bounds(LogOffsets(0, 300, 300), LogOffsets(400, 400, 400)), committed=400)


def position(bounds: Bounds, committed: int) -> int:
    return int(drive(find_position("source", "target", PLACE, bounds, committed)))  # type: ignore[arg-type]


def test_of_an_emptied_log_nobody_knows_more_than_mirrormaker_2(slices: dict[str, list[Record]]) -> None:
    emptied = Bounds(LogOffsets(100, 500, 500), LogOffsets(400, 400, 400))
    assert position(emptied, -1) == -1, "copying from the source's first record would repeat what the target had"
    assert position(emptied, 380) == 380
    assert position(emptied, 50) == 100
    assert position(Bounds(LogOffsets(100, 500, 500), LogOffsets(0, 0, 0)), -1) == 100
