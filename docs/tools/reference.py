"""Reference pages, generated from the code that they describe when the site is built."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer.main

from spark_integration.cli.app import app
from tolerant_client.metrics import RecoveryCollector
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.prometheus import LinkCollector
from tolerant_client.stock import client_metrics


def command_line() -> str:
    """Every command of tolerant-kafka, by the panels of its help."""
    root: Any = typer.main.get_command(app)
    panels: dict[str, list[Any]] = {}
    for command in root.commands.values():
        panels.setdefault(command.rich_help_panel, []).append(command)
    parts = ["# The command line", _text(root.help), "## Options of every command", *_options(root)]
    for panel, commands in panels.items():
        parts.append(f"## {panel}")
        for command in commands:
            arguments = [param for param in command.params if param.param_type_name == "argument"]
            usage = " ".join(
                _value(argument, typing.get_type_hints(inspect.unwrap(command.callback))) for argument in arguments
            )
            line = f"tolerant-kafka {command.name} {usage}".rstrip()
            parts += [f"### {command.name}", f"```text\n{line} [OPTIONS]\n```", _text(command.help), *_options(command)]
    return "\n\n".join(parts) + "\n"


def _text(help_: str | None) -> str:
    return (help_ or "").partition("\f")[0].strip()


def _options(command: Any) -> Iterable[str]:
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    rows = []
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            value = "" if option.is_flag or option.count else f" `{_value(option, hints)}`"
            variable = f"`{option.envvar}`" if option.envvar else ""
            rows.append((", ".join(f"`{name}`" for name in option.opts) + value, option.help or "", variable))
    return [_table(("option", "meaning", "in the environment"), rows)] if rows else []


def _value(param: Any, hints: Mapping[str, Any]) -> str:
    """The placeholder for a parameter's value, as in the help: its own, or one for its type."""
    if param.metavar is not None:
        return str(param.metavar)
    (hint,) = {*(typing.get_args(hints[param.name]) or (hints[param.name],))} - {type(None)}
    if issubclass(hint, enum.Enum):
        return "|".join(member.value for member in hint)
    words: Mapping[type, str] = {Path: "FILE", int: "N", float: "N"}
    return words.get(hint, param.name.upper())


def metrics() -> str:
    """Every metric that a mirror or a client can have."""
    link = LinkCollector(Board(), lambda: 0).describe()
    client = RecoveryCollector().collect()
    own = [(f"`{kind.replace(':', '-')}-total`", text) for kind, text in client_metrics.TOTALS.items()]
    return "\n\n".join(
        (
            "# Every metric",
            "Prometheus metrics of a mirror, served by `tolerant-kafka mirror --metrics HOST:PORT`.",
            "[Seeing the mirror](../../tolerant_client/ops/monitoring/README.md) says how to use them, and has alerts.",
            _families(link),
            "## Clients, for Prometheus",
            "Register a `RecoveryCollector` of your consumers and producers: [the clients](../clients.md).",
            _families(client),
            "## Clients, in kafka-python's own metrics",
            f'`client.metrics()["{client_metrics.GROUP}"]` of a consumer or producer.',
            _table(("metric", "meaning"), own),
        )
    )


def _families(families: Iterable[Any]) -> str:
    suffix: Mapping[str, str] = {"counter": "_total", "info": "_info"}
    rows = [
        (
            f"`{one.name}{suffix.get(one.type, '')}`",
            one.type,
            ", ".join(f"`{label}`" for label in one._labelnames),
            one.documentation,
        )
        for one in families
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [" | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) for row in rows]
    return "\n".join((f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {row} |" for row in cells)))


PAGES: Mapping[str, Callable[[], str]] = {"command-line": command_line, "metrics": metrics}
