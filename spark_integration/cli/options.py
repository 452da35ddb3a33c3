"""Options that several commands share, and the bundle of those that identify a link."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import javaproperties
import typer

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.link_name import LONGEST, is_link_name
from tolerant_client.security.kafka_config import kafka_python_config

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before what cannot be undone.")]
GivenTopics = Annotated[
    str | None,
    typer.Option("--topics", metavar="REGEX[,REGEX]", help="Regular expressions that match whole topic names."),
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups", metavar="REGEX[,REGEX]", help='Consumer groups to move to the target. Default: all. "" moves none.'
    ),
]
FlowName = Annotated[
    str | None, typer.Option("--flow", metavar="A->B", help="Which flow of --config, if it has several.")
]

_SPARK_PREFIX = re.compile(r"(?<![\w.])kafka\.(?=[a-z])")
LONGEST_S = 366 * 86_400  # the longest wait of a command; clocks overflow


def file_option(name: str, help_: str) -> Any:
    """An option that takes an existing file; an environment variable may set it."""
    # The help lists the variables at its end.
    return typer.Option(
        name, envvar=_variable(name), show_envvar=False, metavar="FILE", exists=True, dir_okay=False, help=help_
    )


def servers_option(name: str, help_: str) -> Any:
    """An option that takes bootstrap servers; an environment variable may set it."""
    return typer.Option(name, envvar=_variable(name), show_envvar=False, metavar="HOST:PORT", help=help_)


def _variable(name: str) -> str:
    return f"TOLERANT_KAFKA{name.removeprefix('-').replace('-', '_').upper()}"


@dataclass(frozen=True)
class WhichLink:
    """Identifies a link by its clusters, its name and its topics, or by a file.  A bundle (command.py)."""

    source: Annotated[str | None, servers_option("--source", "Bootstrap servers of the source cluster.")] = None
    target: Annotated[str | None, servers_option("--target", "Bootstrap servers of the target cluster.")] = None
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="NAME",
            envvar="TOLERANT_KAFKA_LINK",
            show_envvar=False,
            help=(
                "Name of the link. Default: the only link between these clusters (or into the target); a mirror that starts"
                " without it is called mirror- and 8 characters of the source's cluster id."
            ),
        ),
    ] = None
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            metavar="REGEX[,REGEX]",
            help="Regular expressions that match whole topic names. Default: the topics that the link's mirror has recorded.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        file_option(
            "--config",
            "A MirrorMaker 2 file. It replaces --source, --target, --link, --topics and the two --...-properties.",
        ),
    ] = None
    flow: FlowName = None
    source_properties: Annotated[
        Path | None,
        file_option("--source-properties", "Java client properties of the source (security.protocol, ...)."),
    ] = None
    target_properties: Annotated[
        Path | None, file_option("--target-properties", "Java client properties of the target.")
    ] = None

    def __post_init__(self) -> None:
        if self.link and not is_link_name(self.link):
            raise OptionError(
                f"--link is {self.link!r}: the name of a link is part of a topic's, which has letters, digits, '.', '_' and '-' only;"
                f" give at most {LONGEST} of them"
            )

    @property
    def says_what_a_file_does(self) -> bool:
        """Whether an option is given that cannot be combined with --config."""
        named = self.source, self.target, self.topics, self.link, self.source_properties, self.target_properties
        return any(option is not None for option in named)


# The options of commands that ask only the target.
OnTarget = Annotated[WhichLink, ("target", "link", "config", "flow", "target_properties")]


class OffsetsKind(str, enum.Enum):
    IDENTICAL = "identical"
    TRANSLATED = "translated"


Offsets = Annotated[
    OffsetsKind | None, typer.Option("--offsets", help="translated: for topics with other writers; default identical.")
]

TIME = "2026-11-22T05:00:00+00:00, or ms since 1970"
FromTime = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help=f"Start empty target logs at that time: {TIME}.")
]


def client_properties(servers: str, path: Path | None) -> dict[str, str]:
    """The Java client properties of the file, with the servers of the command line."""
    properties: dict[str, str] = {}
    if path is not None:
        try:
            with path.open("rb") as file:
                properties.update(javaproperties.load(file))
        except OSError as error:
            raise OptionError(f"{path} cannot be read: {error.strerror}") from None
        except javaproperties.InvalidUEscapeError as error:
            raise OptionError(f"{path} is not a properties file: {error}") from None
    properties["bootstrap.servers"] = servers
    try:
        kafka_python_config(properties)
    except OptionError as error:  # its message has Spark's option names
        raise OptionError(f"{path}: {_SPARK_PREFIX.sub('', error.args[0])}") from None
    return properties
