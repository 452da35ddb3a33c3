"""Prints text from outside safely: topic and group names, and what brokers and servers say.

Laws:
- One call prints one line, and one record of a log is one, but for its traceback: line ends, control characters, and
  characters that reorder or hide text are escaped.
- Text from outside is never interpreted as markup.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import rich.table
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

_WIDEST = 10_000


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


def print_table(table: rich.table.Table) -> None:
    """Prints a table; if the terminal is narrower than the longest words, the table is wider than the terminal, not cut."""
    console = Console()
    least = Measurement.get(console, console.options.update(width=_WIDEST), table).minimum
    Console(width=max(console.width, least)).print(table, soft_wrap=True)


class Table(rich.table.Table):
    """A rich table that shows its title and cells literally."""

    def __init__(self, *columns: str, title: str | None = None, show_header: bool = True) -> None:
        named = None if title is None else cell(title, "table.title")
        super().__init__(*columns, title=named, show_header=show_header)

    def add_row(self, *cells: object, **settings: Any) -> None:
        super().add_row(*(cell(each) for each in cells), **settings)
