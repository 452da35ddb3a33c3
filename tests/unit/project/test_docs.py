"""docs/tools: reference pages name all that the code has, and plots draw the figures of their tables and no others."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from support.commands import COMMANDS
from support.tree import ROOT
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.prometheus import LinkCollector

DOCS = ROOT / "docs"
BENCHMARKS = (DOCS / "benchmarks.md").read_text()


def tool(name: str) -> Any:
    """A module of docs/tools, which is no package: MkDocs has the folder on its path."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reference, plots = tool("reference"), tool("plots")


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = reference.command_line()
    parts = re.split(r"^### (.*)$", page, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert told.keys() == COMMANDS.keys()
    for name, command in COMMANDS.items():
        options = {text for param in command.params if param.param_type_name == "option" for text in param.opts}
        assert {text for text in options if f"`{text}`" not in told[name]} == set(), name


def test_the_page_of_metrics_has_every_metric_of_a_link_and_of_a_client() -> None:
    page = reference.metrics()
    names = {family.name for family in LinkCollector(Board(), lambda: 0).describe()}
    assert {name for name in names if not re.search(rf"`{name}(_total|_info)?`", page)} == set()
    assert "`tolerant_client_recovery_events_total`" in page and "`requeued-total`" in page


def test_a_ratio_is_what_the_table_calls_times_and_else_the_quotient_of_its_numbers() -> None:
    rows = ("| data | old, /s | new |", "|---|---|---|", "| small | 200 | 1,000 (5.1 times) |", "| large | 200 | 300 |")
    table = "\n".join((*rows, "| start | 8 s | 1 s |", ""))
    chart = plots.chart_of(table, "ratio to old, /s")
    assert (chart.groups, chart.series, chart.values) == (["small", "large"], ["new"], [[5.1], [1.5]])


def test_a_cell_without_a_percentage_is_drawn_as_its_words() -> None:
    rows = ("| api | fault | a | b |", "|---|---|---|---|", "| Fetch | lost | 99 %, 0.1 s | stuck |")
    table = "\n".join((*rows, "| | cut | 5 failed | 58 % |", ""))
    chart = plots.chart_of(table, "percent")
    assert chart.groups == ["Fetch: lost", "Fetch: cut"]
    assert chart.values == [[99.0, "stuck"], ["5 failed", 58.0]]


def test_a_wish_that_the_table_cannot_fulfil_is_an_error() -> None:
    with pytest.raises(ValueError, match="ratio to others"):
        plots.chart_of("| a | b |\n|---|---|\n| x | 1 |\n", "ratio to others")


def test_each_plot_of_the_benchmarks_stands_behind_a_table_that_has_its_figures() -> None:
    asked = plots._ASKED.findall(BENCHMARKS)
    assert len(asked) == BENCHMARKS.count("<!-- plot:") == 4
    for table, wish in asked:
        figures = {float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", table)}
        for row in plots.chart_of(table, wish).values:
            drawn = [cell for cell in row if isinstance(cell, float)]
            assert all(
                cell in figures or any(abs(cell - a / b) < 1e-9 for a in figures for b in figures if b)
                for cell in drawn
            )
