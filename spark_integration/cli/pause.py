"""The commands `tolerant-kafka pause`, `resume` and `throttle`: orders to a running mirror through its control topic."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from kafka.structs import TopicPartition

from spark_integration.cli.link import GivenLink, given_link
from spark_integration.cli.options import DryRun, Json, OnTarget
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.state.control_topic import read_control, read_controls, update_control
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.state.link_control import NO_LIMIT, WHOLE_LINK, LinkControl
from tolerant_client.mirror.state.link_pauses import paused, resumed
from tolerant_client.mirror.state.link_topics import some
from tolerant_client.ops.printing import echo, echo_json
from tolerant_client.state_json import MOST

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_RATE = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)\s*(k|M|G|Ki|Mi|Gi|)B?")


def _topics_option(default: str) -> Any:
    help_ = f"A topic, by its name on the target; may be repeated. Default: {default}."
    return typer.Option("--topic", metavar="TOPIC", help=help_)


TopicsToPause = Annotated[list[str], _topics_option("the whole link")]
TopicsToResume = Annotated[list[str], _topics_option("everything that is paused")]
Partitions = Annotated[
    list[int], typer.Option("--partition", metavar="N", min=0, help="A partition of the one --topic; may be repeated.")
]


def pause(
    which: OnTarget,
    topic: TopicsToPause = [],
    partition: Partitions = [],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Pause a link, topics or partitions. A running mirror obeys within 2 seconds."""
    names = _names(topic, partition)
    given = given_link(which)
    _require_there(given, topic, partition)
    before = _change(given, lambda now: paused(now, *names), lambda now: topic, dry_run, as_json)
    if topic and WHOLE_LINK in before.paused and not as_json:
        echo("The whole link was paused before: resume without --topic ends that pause, and this one with it")


def resume(
    which: OnTarget,
    topic: TopicsToResume = [],
    partition: Partitions = [],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Resume the named topics and partitions; without --topic everything that is paused, also what was paused separately."""
    names = _names(topic, partition)
    given = given_link(which)

    async def held(there: Cluster) -> list[str]:
        return unpaused(topic, await read_control(there, given.link))

    if topic and (unknown := given.run_on_target(held)):
        _require_there(given, unknown, partition)
    _change(given, lambda now: resumed(now, *names), lambda now: unpaused(topic, now), dry_run, as_json)


def throttle(
    rate: Annotated[
        str,
        typer.Argument(
            metavar="BYTES_PER_SECOND|off|default",
            help="As 20M, 512Ki or 1000000; off for no limit; default for the rate in the mirror's file.",
        ),
    ],
    which: OnTarget,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Limit how many bytes a second all tasks of a link together fetch from its source.

    Overrides the config file until changed; default restores the file's rate.  The tasks share the rate equally.  For a
    moment it can be higher: by the bytes of half a second, plus one response of each broker.
    """
    limit = parse_rate(rate)
    given = given_link(which)
    _change(given, lambda now: replace(now, bytes_per_s=limit), lambda now: (), dry_run, as_json)


def parse_rate(text: str) -> int | None:
    """Bytes per second, NO_LIMIT for off, None for default.  Raises OptionError."""
    if text == "default":
        return None
    if text == "off":
        return NO_LIMIT
    found = _RATE.fullmatch(text)
    rate = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 1 <= rate <= MOST:
        raise OptionError(f"{text!r} is not a rate: give bytes a second as 20M, 512Ki or 1000000, or off, or default")
    return rate


def _names(topics: list[str], partitions: list[int]) -> tuple[list[str], list[TopicPartition]]:
    if partitions and len(topics) != 1:
        raise OptionError("--partition goes with exactly one --topic")
    if partitions:
        return [], [TopicPartition(topics[0], number) for number in partitions]
    return topics or [WHOLE_LINK], []


def unpaused(topics: Iterable[str], control: LinkControl) -> list[str]:
    """Topics of which nothing is paused: a misspelled one is included, one deleted after it was paused is not."""
    held = control.paused | {partition.topic for partition in control.paused_partitions}
    return [topic for topic in topics if topic not in held]


def _require_there(given: GivenLink, topics: list[str], partitions: list[int]) -> None:
    """Raises OptionError for a topic or partition that the target does not have."""
    if not topics:
        return

    async def ask(target: Cluster) -> tuple[dict[str, list[int]], list[str]]:
        # Not from the list of all topics: for a topic that we may not see, a request by name is refused, existing or not.
        there = await target.partitions(topics)
        return there, [] if all(topic in there for topic in topics) else sorted(await target.partitions())

    there, names = given.run_on_target(ask)
    for topic in topics:
        if topic not in there:
            near = difflib.get_close_matches(topic, names, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "use the topic's name on the target"
            raise OptionError(f"The target has no topic {topic}; {hint}")
    for number in partitions:
        if number not in there[topics[0]]:
            raise OptionError(
                f"Topic {topics[0]} has {counted(len(there[topics[0]]), 'partition')} on the target; there is no partition {number}"
            )


def _not_yet(given: GivenLink, topics: Iterable[str], links: Mapping[str, LinkControl]) -> list[str]:
    """Topics that the link has neither by its control nor by its file: they can be paused before they are added to it.

    Raises OptionError for those that another link has.
    """
    has = (links[given.link].writes, *(() if given.topics is None else (given.topics.writes,)))
    added = [topic for topic in topics if not any(writes(topic) for writes in has)]
    for topic in added:
        for other in (name for name, control in links.items() if control.writes(topic) and not control.is_over):
            raise OptionError(
                f"Link {given.link} does not have topic {topic}, so nothing is changed: link {other} does"
            )
    return added


def require_known(link: str, links: Collection[str]) -> None:
    """Raises OptionError for a link that is not recorded on the target: no mirror would obey."""
    if link not in links:
        raise OptionError(
            f"The target has no link {link}; its links are {some(sorted(links))}"
            if links
            else "No link copies to this target; a link is known once its mirror has been started"
        )


def _change(
    given: GivenLink,
    change: Callable[[LinkControl], LinkControl],
    named: Callable[[LinkControl], Iterable[str]],
    dry_run: bool,
    as_json: bool,
) -> LinkControl:
    """Changes the operator's orders, which name these topics, and prints them; returns those before."""

    async def ask(target: Cluster) -> tuple[LinkControl, LinkControl, list[str]]:
        before = await read_control(target, given.link)
        await require_not_forgotten(target, given.link, before)
        require_known(given.link, links := (await read_controls(target)).links)
        before.require_not_promoted(given.link, target)
        added = _not_yet(given, named(before), links)
        return before, change(before) if dry_run else await update_control(target, given.link, change), added

    before, after, added = given.run_on_target(ask)
    if as_json:
        document = {"link": given.link, "is_dry_run": dry_run, "is_changed": after != before}
        what = {"paused": sorted(after.paused), "paused_partitions": sorted(after.paused_partitions)}
        echo_json({**document, **what, "bytes_per_s": after.bytes_per_s})
        return before
    would = "would be " if dry_run else ""
    words = ", ".join(after.paused_words) or "nothing"
    echo(
        f"Link {given.link}: {would}paused: {words}; rate limit: {_rate(after)}{'' if after != before else ' (as before)'}"
    )
    if added:
        echo(
            f"Link {given.link} does not have {some(added)} yet: a topic that is paused is not copied when it is added"
        )
    return before


def _rate(control: LinkControl) -> str:
    if control.bytes_per_s is None:
        return "as in the mirror's file, or none"
    return "none" if control.bytes_per_s == NO_LIMIT else f"{control.bytes_per_s:,} bytes a second"
