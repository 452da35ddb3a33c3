"""The benchmarks' figures: their tables, and the comparison that says what has become slower."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import figures

    yield figures
    sys.modules.pop("figures")


@pytest.fixture
def compare(figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command on two lists of figures; returns its exit code."""

    def run(before: list[Any], after: list[Any]) -> int:
        paths = [tmp_path / "before.json", tmp_path / "after.json"]
        for path, found in zip(paths, (before, after)):
            figures.Report(machine={}, figures=tuple(found)).save(path)
        monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, paths)])
        main: Callable[[], int] = runpy.run_path(str(BENCH / "compare.py"))["main"]
        return main()

    return run


def cell(figures: Any, peer: str, *values: float, unit: str = "records/s", is_cost: bool = False) -> Any:
    return figures.Figure(
        table="copy", row="5,000,000 x 100 B", peer=peer, unit=unit, values=tuple(values), is_cost=is_cost
    )


def test_a_table_shows_medians_spread_and_ratios_to_the_base(figures: Any) -> None:
    shown = figures.markdown([cell(figures, "engine", 800.0, 900.0, 1000.0), cell(figures, "mm2", 100.0, 102.0, 101.0)])
    assert "| copy: records/s | mm2 | engine |" in shown
    assert "| 5,000,000 x 100 B | 101 | 900 ±11% (8.9 times) |" in shown
    assert "<!-- plot: ratio to mm2 -->" in shown


def test_a_machine_that_is_slower_as_a_whole_is_no_regression(figures: Any, compare: Callable[..., int]) -> None:
    before = [cell(figures, "mm2", 100.0), cell(figures, "engine", 800.0)]
    assert compare(before, [cell(figures, "mm2", 50.0), cell(figures, "engine", 390.0)]) == 0


@pytest.mark.parametrize(("unit", "is_cost", "ours"), [("records/s", False, 500.0), ("s", True, 1200.0)])
def test_a_ratio_that_lost_more_than_the_margin_fails(
    unit: str, is_cost: bool, ours: float, figures: Any, compare: Callable[..., int]
) -> None:
    def found(value: float) -> list[Any]:
        return [cell(figures, peer, v, unit=unit, is_cost=is_cost) for peer, v in (("mm2", 100.0), ("engine", value))]

    assert compare(found(800.0), found(ours)) == 1
    assert compare(found(ours), found(800.0)) == 0


def test_a_cell_that_was_not_measured_again_fails(figures: Any, compare: Callable[..., int]) -> None:
    before = [cell(figures, "mm2", 100.0), cell(figures, "engine", 800.0), cell(figures, "spark", 700.0)]
    assert compare(before, before[:2]) == 1


def test_two_runs_without_a_common_cell_compare_nothing(figures: Any, compare: Callable[..., int]) -> None:
    assert compare([cell(figures, "engine", 800.0)], [cell(figures, "mm2", 100.0)]) == 2
