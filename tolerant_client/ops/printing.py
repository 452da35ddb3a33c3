"""Prints text from outside safely: topic and group names, and what brokers and servers say.

Laws:
- One call prints one line, and one record of a log is one, but for its traceback: line ends, control characters, and
  characters that reorder or hide text are escaped.
- Text from outside is never interpreted as markup.
- Nothing is cut, and a command is on one line that can be copied: a long cell of a table goes below it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import rich.table
import typer
from rich.console import Console
from rich.measure import Measurement, measure_renderables
from rich.text import Text

_WIDEST = 10_000
_LONGEST_CELL = 60  # characters: a command with its options is longer
BELOW = "see below"


def printable(text: object) -> str:
    """The text with each non-printable character escaped: a line end becomes \\n, ESC becomes \\x1b."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


class LogFormatter(logging.Formatter):
    """A formatter for logs on a terminal: brokers say how they are called, and what went wrong."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def cell(text: object, style: str = "") -> Text:
    """A cell, a title or a line for rich; markup in the text is not interpreted."""
    return Text(printable(text), style)


def echo(text: object, *, err: bool = False) -> None:
    """One line on standard output, or on standard error."""
    typer.echo(printable(text), err=err)


def echo_each(kind: str, texts: Iterable[object]) -> None:
    """Prints one line of this kind on standard error for each text."""
    for text in texts:
        echo(f"tolerant-kafka: {kind}: {text}", err=True)


def echo_json(document: object) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document))


def asked(question: object) -> bool:
    """Asks on standard error and returns whether the operator says yes; raises typer.Abort when interrupted."""
    return typer.confirm(printable(question), err=True)


def working(what: str) -> AbstractContextManager[object]:
    """Shows on standard error that work is in progress, if it is a terminal."""
    console = Console(stderr=True)
    return console.status(cell(what)) if console.is_terminal else nullcontext()


def print_table(table: Table) -> None:
    """Prints the title, the table, and below it each cell that is too long for one, on a line of its own.

    No word is cut or broken: a terminal that is narrower than the longest words gets a table that is wider than the
    terminal.  Elsewhere than on a terminal a row is one line.
    """
    console = Console()
    if table.title is not None:
        console.print(table.title, style="table.title", soft_wrap=True)
        table.title = None
    edges = 3 * len(table.columns) + 1
    measuring = console.options.update(width=_WIDEST)
    texts = ([column.header, *column.cells] for column in table.columns)
    sizes = [measure_renderables(console, measuring, each) for each in texts]
    widths = _widths(sizes, (console.width if console.is_terminal else _WIDEST) - edges)
    for column, width in zip(table.columns, widths):
        column.width = width
    # Without the height rich ignores the width where TERM is dumb.
    Console(width=max(console.width, sum(widths) + edges), height=console.height).print(table, soft_wrap=True)
    for line in table.below:
        echo(line)


def _widths(sizes: Sequence[Measurement], room: int) -> list[int]:
    """The width of each column: its longest word at least, then equal shares of the rest of `room` for those that need it."""
    widths = [size.minimum for size in sizes]
    while (spare := room - sum(widths)) > 0:
        short = [n for n, size in enumerate(sizes) if widths[n] < size.maximum]
        if not short:
            break
        for n in short[:spare]:
            widths[n] += min(max(spare // len(short), 1), sizes[n].maximum - widths[n])
    return widths


class Table(rich.table.Table):
    """A rich table that shows its title and cells literally; a cell that is too long for it goes `below`."""

    def __init__(self, *columns: str, title: str | None = None, show_header: bool = True) -> None:
        named = None if title is None else cell(title)
        super().__init__(*columns, title=named, show_header=show_header)
        self.below: list[str] = []

    def add_row(self, *cells: object, **settings: Any) -> None:
        texts = [str(each) for each in cells]
        for column, text in zip(self.columns[1:], texts[1:]):
            if len(text) > _LONGEST_CELL:
                name = f", {column.header}" if column.header else ""
                self.below.append(f"{texts[0]}{name}: {text}")
        first, *others = texts
        shown = (BELOW if len(text) > _LONGEST_CELL else text for text in others)
        super().add_row(cell(first), *map(cell, shown), **settings)
