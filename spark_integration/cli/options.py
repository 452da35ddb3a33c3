"""Options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import javaproperties
import typer

from tolerant_client.errors import OptionError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
SourceProperties = Annotated[
    Path | None,
    typer.Option(
        "--source-properties",
        envvar="TOLERANT_KAFKA_SOURCE_PROPERTIES",
        exists=True,
        dir_okay=False,
        help="Java client properties of the source (security.protocol, ...).",
    ),
]
TargetProperties = Annotated[
    Path | None,
    typer.Option(
        "--target-properties",
        envvar="TOLERANT_KAFKA_TARGET_PROPERTIES",
        exists=True,
        dir_okay=False,
        help="Java client properties of the target.",
    ),
]

LONGEST_S = 366 * 86_400  # that a command waits; no clock counts for ever


class OffsetsKind(str, enum.Enum):
    IDENTICAL = "identical"
    TRANSLATED = "translated"


Offsets = Annotated[
    OffsetsKind | None, typer.Option("--offsets", help="translated: for topics with other writers; default identical.")
]


def client_properties(servers: str, path: Path | None) -> dict[str, str]:
    """Java client properties: those of the file, and the servers of the command line."""
    properties: dict[str, str] = {}
    if path is not None:
        try:
            with path.open("rb") as file:
                properties.update(javaproperties.load(file))
        except OSError as error:
            raise OptionError(f"{path} cannot be read: {error.strerror}") from None
        except javaproperties.InvalidUEscapeError as error:
            raise OptionError(f"{path} is no properties file: {error}") from None
    properties["bootstrap.servers"] = servers
    return properties
