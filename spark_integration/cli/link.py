"""What the commands about a link share: which link is meant, and its two clusters."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from spark_integration.cli.options import client_properties
from spark_integration.option_values import whole_number
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.naming import name_link
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.link_topics import link_topics, written_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter, group_filter
from tolerant_client.ops.printing import asked, echo
from tolerant_client.security.kafka_config import kafka_python_config

if TYPE_CHECKING:
    from tolerant_client.ops.mm2.flows import Flow

_T = TypeVar("_T")

MaybeSource = Annotated[
    str | None,
    typer.Option(
        "--source", envvar="TOLERANT_KAFKA_SOURCE", metavar="HOST:PORT", help="Bootstrap servers of the source cluster."
    ),
]
MaybeTarget = Annotated[
    str | None,
    typer.Option(
        "--target", envvar="TOLERANT_KAFKA_TARGET", metavar="HOST:PORT", help="Bootstrap servers of the target cluster."
    ),
]
MaybeTopics = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="REGEX[,REGEX]",
        help="Whole topic names; without it, what the link's mirror has written down.",
    ),
]
GivenTopics = Annotated[
    str | None,
    typer.Option("--topics", metavar="REGEX[,REGEX]", help="Topics, by expressions that match a whole name."),
]
MaybeLink = Annotated[
    str | None,
    typer.Option(
        "--link",
        envvar="TOLERANT_KAFKA_LINK",
        help="Name of the link; without it, the one between these clusters, or of the target.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="TOLERANT_KAFKA_CONFIG",
        exists=True,
        dir_okay=False,
        help="A MirrorMaker 2 file, instead of --source, --target, --link, --topics.",
    ),
]
FlowName = Annotated[
    str | None, typer.Option("--flow", metavar="A->B", help="Which flow of --config, if it has several.")
]
Groups = Annotated[
    str | None,
    typer.Option("--groups", metavar="REGEX[,REGEX]", help='Consumer groups that move along; none: ""; default all.'),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before what cannot be undone.")]


@dataclass(frozen=True)
class GivenLink:
    """A link as the command line, or a file, names it; without `topics` it is asked what it has written down."""

    link: str
    target: Mapping[str, str] = field(repr=False)
    source: Mapping[str, str] | None = field(repr=False, default=None)
    topics: LinkTopics | None = None
    groups: TopicFilter | None = None
    flow: Flow | None = None  # of a file

    def known(self) -> GivenLink:
        """With the topics that the link has written down, if none were given; raises OptionError where it has not."""
        if self.topics is not None:
            return self

        async def ask(target: Cluster) -> LinkTopics:
            return link_topics(await read_control(target, self.link), self.link, None)

        return replace(self, topics=self.run_on_target(ask))

    def whole(self) -> GivenLink:
        """With all topics that the link has written down, whatever was given; raises OptionError where nobody says them."""

        async def ask(target: Cluster) -> LinkTopics:
            return written_topics(await read_control(target, self.link), self.link, self.topics)

        return replace(self, topics=self.run_on_target(ask))

    @property
    def link_topics(self) -> LinkTopics:
        """Raises OptionError where nobody says them."""
        if self.topics is None:
            raise OptionError("Give --topics: a regular expression over whole topic names")
        return self.topics

    @property
    def known_source(self) -> Mapping[str, str]:
        """Raises OptionError where no source was given."""
        if self.source is None:
            raise OptionError("Give --source, too: HOST:PORT[,HOST:PORT...]")
        return self.source

    def with_source(self) -> GivenLink:
        """The same; raises OptionError where no source was given, before anybody is asked anything."""
        assert self.known_source is not None
        return self

    def run(self, ask: Callable[[Cluster, Cluster], Awaitable[_T]]) -> _T:
        """Asks both clusters; raises OptionError where no source was given."""
        names = None if self.topics is None else self.topics.names
        with Cluster(kafka_python_config(self.known_source), name="source", names=names) as source:
            target = Cluster(kafka_python_config(self.target), source.net, name="target")
            try:
                return source.run(ask, source, target)
            finally:
                target.close()

    def run_on_target(self, ask: Callable[[Cluster], Awaitable[_T]]) -> _T:
        """Asks the target alone."""
        with Cluster(kafka_python_config(self.target), name="target") as target:
            return target.run(ask, target)


def given_link(
    source: str | None,
    target: str | None,
    topics: str | None,
    link: str | None,
    config: Path | None,
    flow: str | None,
    groups: str | None = None,
    source_properties: Path | None = None,
    target_properties: Path | None = None,
    *,
    needs_link: bool = True,
    is_start: bool = False,
) -> GivenLink:
    """The link that the options name; raises OptionError where they name none, or contradict each other.

    Where none is needed, none is looked for: it is called "" without --link.  `is_start`: it is named as a start names it.
    """
    if config is not None:
        if any(option is not None for option in (source, target, topics, link, source_properties, target_properties)):
            raise OptionError(
                "--config names clusters, topics and links: leave --source, --target, --topics, --link out"
            )
        return _of_file(config, flow, groups)
    if flow is not None:
        raise OptionError("--flow goes with --config")
    if target is None:
        raise OptionError("Give --target: HOST:PORT[,HOST:PORT...], or --config with a MirrorMaker 2 file")
    there = client_properties(target, target_properties)
    here = None if source is None else client_properties(source, source_properties)
    return GivenLink(
        link or (unnamed_link(here, there, is_start=is_start) if needs_link else ""),
        there,
        here,
        None if topics is None else LinkTopics.of(topics),
        _groups(groups, group_filter()),
    )


def unnamed_link(
    source: Mapping[str, str] | None, target: Mapping[str, str], *, is_start: bool = False, patience_ms: int = 60_000
) -> str:
    """The link that is meant where none is named, or that is started (mirror/life/naming.py); raises OptionError where several may be."""
    name = partial(name_link, is_start=is_start)
    with Cluster(kafka_python_config(target), name="target", patience_ms=patience_ms) as cluster:
        if source is None:
            return cluster.run(name, None, cluster)
        origin = Cluster(kafka_python_config(source), cluster.net, name="source", patience_ms=patience_ms)
        try:
            return cluster.run(name, origin, cluster)
        finally:
            origin.close()


def _of_file(config: Path, wanted: str | None, groups: str | None) -> GivenLink:
    from tolerant_client.ops.mm2.flows import read_flows

    flows = {str(flow): flow for flow in read_flows(config).flows}
    if wanted is not None and wanted not in flows:
        raise OptionError(f"{config} has no flow {wanted}; it has {', '.join(flows) or 'none'}")
    if wanted is None and len(flows) != 1:
        raise OptionError(f"{config} has {len(flows)} flows ({', '.join(flows)}): say which with --flow")
    flow = flows[wanted] if wanted is not None else next(iter(flows.values()))
    return GivenLink(flow.link, flow.target, flow.source, flow.link_topics, _groups(groups, flow.groups), flow)


def _groups(given: str | None, default: TopicFilter) -> TopicFilter | None:
    if given == "":
        return None
    return default if given is None else group_filter(given, ())


def time_ms(option: str, text: str) -> int:
    """A time as ms since 1970: ISO 8601 ("2026-11-22T05:00:00+00:00", UTC without a zone), or ms.  Raises OptionError."""
    if text.isascii() and text.isdigit():
        return whole_number(text, option)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"{option} {text!r} is no time: give 2026-11-22T05:00:00+00:00, or ms since 1970 ({error})"
        ) from error
    at_ms = int((found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if at_ms < 0:  # to Kafka -1 and -2 are the log's end and its start
        raise OptionError(f"{option} {text!r} is before 1970, when Kafka's times begin")
    return at_ms


def confirm(what: str, *, is_sure: bool) -> None:
    """Asks on a terminal before what cannot be undone; raises OptionError for any other response than yes.

    Who interrupts the question (Ctrl-C), or ends the input (Ctrl-D), ends the command as SIGINT does.
    """
    if is_sure or not sys.stdin.isatty():
        return
    try:
        is_wanted = asked(f"{what}. Continue?")
    except typer.Abort:
        echo("", err=True)  # the line of the question is not at its end
        echo("tolerant-kafka: interrupted: nothing was written", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    if not is_wanted:
        raise OptionError("Nothing was written")


def echo_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document))
