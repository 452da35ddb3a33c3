"""Bar charts of the benchmark tables: each is drawn from the cells of the table before it, and has no other figures.

A page asks for one with a comment after a table, which code hosts do not show:

    <!-- plot: ratio to MirrorMaker 2 -->    the other columns: "N times" of a cell, else its quotient by this one
    <!-- plot: percent -->                   the first "N %" of each cell; a cell without one is drawn as its words
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_ASKED = re.compile(r"((?:^\|.*\n)+)\n?<!-- plot: (.*?) -->\n", re.MULTILINE)
_NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")
_TIMES = re.compile(r"([\d.]+) times")
_PERCENT = re.compile(r"(\d+) %")

_INK = "#102030"  # stands for the page's own text colour while matplotlib draws
_COLOURS = ("#00897b", "#78909c", "#ef9a3c", "#7e57c2")


@dataclass(frozen=True)
class Chart:
    """Bars in groups: `values` has a row for each of `groups`, a column for each of `series`; a text has no bar."""

    title: str
    groups: Sequence[str]
    series: Sequence[str]
    values: Sequence[Sequence[float | str]]
    is_ratio: bool = False


def drawn(markdown: str) -> str:
    """The page with a chart after each table that requests one."""
    return _ASKED.sub(lambda found: f"{found[1]}\n{_svg(chart_of(found[1], found[2]))}\n", markdown)


def chart_of(table: str, wish: str) -> Chart:
    """The chart of a Markdown table; raises ValueError if the table has no figures for it."""
    head, _, *rows = (
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.strip().splitlines()
    )
    if wish == "percent":
        return _percentages(head, rows)
    base = re.fullmatch(r"ratio to (.*)", wish)
    if base is None or base[1] not in head:
        raise ValueError(f"a plot {wish!r} of a table with the columns {head}")
    return _ratios(head, rows, head.index(base[1]))


def _ratios(head: Sequence[str], rows: Sequence[Sequence[str]], base: int) -> Chart:
    columns = [n for n in range(1, len(head)) if n != base]
    groups, values = [], []
    for row in rows:
        found = [_ratio(row[n], row[base]) for n in columns]
        if all(found):
            groups.append(_plain(row[0]))
            values.append([ratio for ratios in found for ratio in ratios])
    if not values:
        raise ValueError(f"no row of {head} has a ratio")
    series = [_plain(head[n]) for n in columns]
    if len(values[0]) == 2 * len(series):  # "(6.8 times, 14 times)": of the rate, and of the rate per CPU-second
        series = [f"{name}, {what}" for name in series for what in ("records/s", "records per CPU-second")]
    return Chart(f"times {_plain(head[base]).partition(',')[0]}", groups, series, values, is_ratio=True)


def _ratio(cell: str, base: str) -> list[float]:
    told = [float(times) for times in _TIMES.findall(cell)]
    one, other = _NUMBER.fullmatch(cell), _NUMBER.fullmatch(base)
    if told or one is None or other is None:
        return told
    return [float(one[0].replace(",", "")) / float(other[0].replace(",", ""))]


def _percentages(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Chart:
    labels = sum(not _PERCENT.search(cell) for cell in rows[0][:2])
    groups, values, before = [], [], ""
    for row in rows:
        before = row[0] or before
        groups.append(": ".join((before, *row[1:labels])))
        values.append([float(found[1]) if (found := _PERCENT.match(cell)) else cell for cell in row[labels:]])
    return Chart("per cent of its own rate without faults", groups, head[labels:], values)


def _plain(text: str) -> str:
    return text.replace("`", "")


def _svg(chart: Chart) -> str:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    look = {
        "svg.fonttype": "none",
        "svg.hashsalt": chart.title,
        "font.size": 9,
        "axes.spines.right": False,
        "axes.spines.top": False,
    }
    ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    with pyplot.rc_context({**look, **ink}):
        bars = len(chart.groups) * len(chart.series)
        figure, axes = pyplot.subplots(
            figsize=(8.4, 0.9 + 0.17 * bars + 0.12 * len(chart.groups)), layout="constrained"
        )
        height = 0.8 / len(chart.series)
        for number, name in enumerate(chart.series):
            places = [group + (number - (len(chart.series) - 1) / 2) * height for group in range(len(chart.groups))]
            cells = [row[number] for row in chart.values]
            lengths = [cell if isinstance(cell, float) else 0.0 for cell in cells]
            if chart.is_ratio:  # a bar begins at 1, which means no difference
                axes.barh(
                    places, [length - 1 for length in lengths], height, left=1, label=name, color=_COLOURS[number]
                )
            else:
                axes.barh(places, lengths, height, label=name, color=_COLOURS[number])
            for place, cell, length in zip(places, cells, lengths):
                text = cell if isinstance(cell, str) else f"{cell:.2g}" if chart.is_ratio else f"{cell:.0f} %"
                axes.text(max(length, 1.0), place, f" {text}", va="center", fontsize=7.5)
        if chart.is_ratio:
            axes.set_xscale("log")
            axes.axvline(1, color=_INK, linewidth=0.8)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(range(len(chart.groups)), [textwrap.fill(group, 40) for group in chart.groups])
        axes.invert_yaxis()
        axes.set_xlabel(chart.title)
        figure.legend(loc="outside upper left", ncols=len(chart.series), frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", out.getvalue()[out.getvalue().index("<svg") :], flags=re.DOTALL)
    label = escape(f"Bars: {chart.title}. The figures are those of the table above.", quote=True)
    svg = svg.replace(_INK, "currentColor").replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f'<figure class="plot">{re.sub(chr(10) + "+", chr(10), svg).strip()}</figure>\n'
