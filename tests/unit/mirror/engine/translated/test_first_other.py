"""The offset from which on a restored source has other records than were copied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.engine.translated import first_other as module
from tolerant_client.mirror.engine.translated.first_other import first_other
from tolerant_client.mirror.state.offset_map import Run
from tolerant_client.records.record_batch import Record

P = TopicPartition("orders", 0)
RUNS = [Run(100, 1_000, 300), Run(410, 1_400, 1), Run(420, 1_500, 580)]  # up to offset 1,000
COPIED = {run.source + n: run.target + n for run in RUNS for n in range(run.length)}


@pytest.mark.parametrize(
    ("cut", "until", "cleaned", "found"),
    [
        (1_000, 1_000, range(0), None),  # nothing differs
        (999, 1_000, range(0), 999),
        (700, 1_000, range(0), 700),
        (700, 650, range(0), None),  # the source ends before the difference
        (405, 1_000, range(0), 400),  # after the last record that agrees
        (411, 1_000, range(0), 411),
        (120, 1_000, range(0), 120),
        (0, 1_000, range(0), 100),  # nothing agrees: from the first copied record on
        (700, 1_000, range(950, 1_000), 700),
        (700, 1_000, range(600, 750), 600),  # what one side no longer has is copied again
        (700, 1_000, range(850, 1_000), None),  # nothing shows that anything differs
        (700, 1_000, range(0, 500), 700),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_it_is_the_offset_behind_the_last_record_that_agrees(
    monkeypatch: pytest.MonkeyPatch, cut: int, until: int, cleaned: range, found: int | None, side: str
) -> None:
    assert found_by(monkeypatch, cut, until, side, cleaned) == found


@pytest.mark.parametrize(
    ("cut", "start", "found"),
    [
        (990, 420, 990),
        (990, 900, 990),
        (700, 699, 700),
        (700, 700, 700),  # nothing that agrees is left
        (120, 405, 405),  # and what lay before is unknown
        (120, 950, 950),
        (120, 1_000, None),
    ],
)
def test_what_retention_took_of_the_source_cannot_be_copied_again(
    monkeypatch: pytest.MonkeyPatch, cut: int, start: int, found: int | None
) -> None:
    assert found_by(monkeypatch, cut, 1_000, "source", range(start), start) == found


def test_a_marker_where_a_record_was_copied_from_is_of_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(monkeypatch, 1_000, 1_000, "source", range(0), marker=999) == 999


def found_by(
    monkeypatch: pytest.MonkeyPatch, cut: int, until: int, side: str, cleaned: range, start: int = 0, marker: int = -1
) -> int | None:
    reads = []

    async def read_slices(cluster: str, spans: Any, *, is_committed: bool) -> Any:
        reads.append(spans)
        ((start, end),) = spans.values()
        assert 0 < end - start <= 100
        places = {COPIED[o] if cluster == "target" else o: o for o in COPIED}
        records = {
            at: Record(at, 0, None, b"%d %d" % (o, cluster == "source" and o >= cut))
            for at, o in places.items()
            if start <= at < end and not (cluster == side and o in cleaned)
        }
        vacant = [range(marker, marker + 1)] if cluster == "source" and start <= marker < end else []
        for at in vacant[:1]:
            records.pop(at.start)
        return {P: LogSlice(end, records, vacant)}

    async def read_maps(*_: Any) -> Any:
        return {P: SimpleNamespace(runs=RUNS)}

    monkeypatch.setattr(module, "read_slices", read_slices)
    monkeypatch.setattr(module, "read_maps", read_maps)
    source: Any = "source"
    target: Any = "target"
    found = asyncio.run(first_other(source, target, "dr", P, start, until))
    assert len(reads) < 30
    return found
