"""The code that the commands about a link share: the link's name, its two clusters, and how they end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import typer

from spark_integration.cli.options import WhichLink, client_properties
from spark_integration.option_values import whole_number
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.naming import name_link, unknown_link
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.link_topics import written_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter, group_filter
from tolerant_client.ops.printing import asked, echo, echo_json
from tolerant_client.ops.service.clusters import both
from tolerant_client.security.kafka_config import kafka_python_config

if TYPE_CHECKING:
    from tolerant_client.ops.mm2.flows import Flow

_T = TypeVar("_T")


@dataclass(frozen=True)
class GivenLink:
    """A link as the command line, or a file, names it; without `topics` the link's own record is read."""

    link: str
    target: Mapping[str, str] = field(repr=False)
    source: Mapping[str, str] | None = field(repr=False, default=None)
    topics: LinkTopics | None = None
    groups: TopicFilter | None = None
    flow: Flow | None = None  # of a file

    def known(self) -> GivenLink:
        """With the link's recorded topics if none were given; raises OptionError if there is no record."""
        return self if self.topics is not None else self.whole()

    def whole(self) -> GivenLink:
        """With all recorded topics of the link, whatever was given.

        Raises OptionError if nobody names any, or if the link's mirror copies without a record.
        """

        async def ask(target: Cluster) -> LinkTopics:
            control = await read_control(target, self.link)
            if self.topics is None and control.is_unwritten and (why := await unknown_link(target, self.link)):
                raise OptionError(why)
            await require_not_forgotten(target, self.link, control)
            return written_topics(control, self.link, self.topics)

        return replace(self, topics=self.run_on_target(ask))

    @property
    def file_options(self) -> str:
        """The options that name the link if a file does."""
        return "" if self.flow is None else self.flow.options

    @property
    def link_topics(self) -> LinkTopics:
        """The given topics; raises OptionError if there are none."""
        if self.topics is None:
            raise OptionError("Give --topics: a regular expression over whole topic names")
        return self.topics

    @property
    def known_source(self) -> Mapping[str, str]:
        """The given source; raises OptionError if there is none."""
        if self.source is None:
            raise OptionError("Give --source, too: HOST:PORT[,HOST:PORT...]")
        return self.source

    def run(self, ask: Callable[[Cluster, Cluster], Awaitable[_T]]) -> _T:
        """Runs a coroutine with both clusters; raises OptionError if no source was given."""
        names = None if self.topics is None else self.topics.names
        with both(self.known_source, self.target, names, file_options=self.file_options) as clusters:
            return clusters[0].run(ask, *clusters)

    def run_on_target(self, ask: Callable[[Cluster], Awaitable[_T]]) -> _T:
        """Runs a coroutine with the target only."""
        with Cluster(kafka_python_config(self.target), name="target", file_options=self.file_options) as target:
            return target.run(ask, target)


def given_link(
    which: WhichLink,
    groups: str | None = None,
    *,
    needs_link: bool = True,
    needs_source: bool = False,
    is_start: bool = False,
) -> GivenLink:
    """The link that the options name; raises OptionError for wrong options before it asks a cluster.

    If no link is needed it looks for none: without --link the name is "".  `is_start`: named as a mirror's start names it.
    """
    if which.config is not None:
        if which.says_what_a_file_does:
            raise OptionError(
                "--config names clusters, topics and links: leave --source, --target, --topics, --link out"
            )
        return link_of_file(which.config, which.flow, groups)[0]
    if which.flow is not None:
        raise OptionError("--flow goes with --config")
    if which.target is None:
        missing = "--source and --target" if needs_source and which.source is None else "--target"
        raise OptionError(f"Give {missing}: HOST:PORT[,HOST:PORT...], or --config with a MirrorMaker 2 file")
    given = GivenLink(
        which.link or "",
        client_properties(which.target, which.target_properties),
        None if which.source is None else client_properties(which.source, which.source_properties),
        None if which.topics is None else LinkTopics.of(which.topics),
        _groups(groups, group_filter()),
    )
    if needs_source:
        _ = given.known_source  # raises if there is none
    if given.link or not needs_link:
        return given
    return replace(given, link=unnamed_link(given.source, given.target, is_start=is_start))


def link_of_file(config: Path, flow_name: str | None, groups: str | None = None) -> tuple[GivenLink, Flow]:
    """The link of a flow of a MirrorMaker 2 file; raises OptionError if the flow is not named, or does not exist."""
    from tolerant_client.ops.mm2.flows import read_flows

    flows = {str(flow): flow for flow in read_flows(config).flows}
    if flow_name is not None and flow_name not in flows:
        raise OptionError(f"{config} has no flow {flow_name}; it has {', '.join(flows) or 'none'}")
    if flow_name is None and len(flows) != 1:
        raise OptionError(f"{config} has {len(flows)} flows ({', '.join(flows)}): say which with --flow")
    flow = flows[flow_name] if flow_name is not None else next(iter(flows.values()))
    return GivenLink(flow.link, flow.target, flow.source, flow.link_topics, _groups(groups, flow.groups), flow), flow


def _groups(given: str | None, default: TopicFilter) -> TopicFilter | None:
    if given == "":
        return None
    return default if given is None else group_filter(given, ())


def unnamed_link(
    source: Mapping[str, str] | None, target: Mapping[str, str], *, is_start: bool = False, patience_ms: int = 60_000
) -> str:
    """The link if none is named, also at a mirror's start (mirror/life/naming.py); raises OptionError if there are several."""
    name = partial(name_link, is_start=is_start)
    if source is None:
        with Cluster(kafka_python_config(target), name="target", patience_ms=patience_ms) as cluster:
            return cluster.run(name, None, cluster)
    with both(source, target, patience_ms=patience_ms) as clusters:
        return clusters[0].run(name, *clusters)


_FIRST_MS = 100_000_000_000  # in 1973


def time_ms(option: str, text: str) -> int:
    """A time as ms since 1970: ISO 8601 ("2026-11-22T05:00:00+00:00", UTC without a zone), or ms.  Raises OptionError.

    A number counts as ms only if it is too large to be a year, a date or a time in seconds.
    """
    if text.isascii() and text.isdigit():
        if (at := whole_number(text, option)) < _FIRST_MS:
            raise OptionError(
                f"{option} {text!r} would be {at} ms since 1970: give the whole time, as 2026-11-22T05:00:00+00:00, or all"
                f" digits of the ms ({_FIRST_MS} or more)"
            )
        return at
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"{option} {text!r} is not a time: give 2026-11-22T05:00:00+00:00, or ms since 1970 ({error})"
        ) from error
    at_ms = int((found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if at_ms < 0:  # for Kafka -1 and -2 are the log's end and its start
        raise OptionError(f"{option} {text!r} is before 1970, where Kafka's timestamps begin")
    return at_ms


def confirm(what: str, *, is_sure: bool) -> None:
    """Asks on a terminal before an irreversible step; raises OptionError for any response but yes.

    An interrupt (Ctrl-C) or the end of input (Ctrl-D) ends the command like SIGINT.
    """
    if is_sure or not sys.stdin.isatty():
        return
    try:
        is_wanted = asked(f"{what}. Continue?")
    except typer.Abort:
        echo("", err=True)  # ends the line of the question
        echo("tolerant-kafka: interrupted: nothing was written", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    if not is_wanted:
        raise OptionError("Nothing was written")


class Report(Protocol):
    """The result of a command."""

    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> dict[str, Any]: ...


_Report = TypeVar("_Report", bound=Report)


def end_with(report: _Report, as_json: bool, show: Callable[[_Report], object]) -> NoReturn:
    """Ends the command: prints the report as one JSON document, or with `show`, and exits with its exit code."""
    if as_json:
        echo_json(report.to_json())
    else:
        show(report)
    raise typer.Exit(report.exit_code)
