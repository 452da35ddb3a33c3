"""The commands of the command line, by name, as typer makes them."""

from __future__ import annotations

from typing import Any

import typer

from spark_integration.cli.app import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands
