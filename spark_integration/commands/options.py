"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import javaproperties
import typer

Source = Annotated[str, typer.Option("--source", metavar="HOST:PORT", help="Bootstrap servers of the source cluster.")]
Target = Annotated[str, typer.Option("--target", metavar="HOST:PORT", help="Bootstrap servers of the target cluster.")]
Topics = Annotated[str, typer.Option("--topics", metavar="REGEX", help="Regular expression that a whole topic name must match.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
SourceProperties = Annotated[
    Path | None,
    typer.Option("--source-properties", exists=True, dir_okay=False, help="Java client properties of the source (security.protocol, ...)."),
]
TargetProperties = Annotated[
    Path | None,
    typer.Option("--target-properties", exists=True, dir_okay=False, help="Java client properties of the target."),
]
LinkName = Annotated[str, typer.Option("--link", help="Name of the link; two links may not share a target topic.")]


def client_properties(servers: str, path: Path | None) -> dict[str, str]:
    """Java client properties: those of the file, and the servers of the command line."""
    properties: dict[str, str] = {}
    if path is not None:
        with path.open("rb") as file:
            properties.update(javaproperties.load(file))
    properties["bootstrap.servers"] = servers
    return properties
