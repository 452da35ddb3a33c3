"""The command `tolerant-kafka translate`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kafka.structs import TopicPartition

from spark_integration.cli.exits import LOOK
from spark_integration.cli.link import GivenLink, given_link
from spark_integration.cli.options import Json, WhichLink
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import by_reason
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.printing import Table, echo, echo_each, echo_json, print_table
from tolerant_client.security.kafka_config import kafka_python_config

if TYPE_CHECKING:
    from tolerant_client.mirror.follow.translate import TranslatedOffset

_Which = Annotated[WhichLink, ("target", "link", "config", "flow", "source_properties", "target_properties")]


def translate(
    which: _Which,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Topic of the source.")] = None,
    partition: Annotated[int, typer.Option("--partition", metavar="N", min=0, help="Partition of that topic.")] = 0,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="OFFSET", min=0, help="Offset of the source.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="GROUP", help="Consumer group of the source: translate all that it has committed."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="HOST:PORT", help="The cluster where --group has committed.")
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit for the same group on the target; it must be idle there.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --commit: also move the group backwards.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --commit: show what would be committed; commit nothing.")
    ] = False,
    back: Annotated[
        bool, typer.Option("--back", help="--topic and --offset are the target's: translate to the source's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Translate offsets of a link that copies with translated offsets.

    A consumer that resumes at a translated offset reads each record once.  Exit code 3: an offset is not on the target
    (not copied yet, deleted there, or its partition is not mirrored), or nobody knows its position (another mirror copied
    it, before-takeover; the map has lost its row, lost-row), or its topic was deleted, or deleted and created again, or its
    log cut, on either cluster since it was copied (former-topic; the source is asked with --group); then its row says so,
    and --commit leaves such a partition unchanged.  Where a cluster before 2.8 leaves that unknown, a warning says so.
    """
    from tolerant_client.mirror.follow import translate as translation

    is_group = group is not None
    if (
        is_group == (topic is not None and offset is not None)
        or which.config is None
        and is_group != (source is not None)
    ):
        raise OptionError("Give either --topic and --offset, or --group and --source")
    if commit and not is_group or back and is_group or (force or dry_run) and not commit:
        raise OptionError(
            "--commit goes with --group, --force and --dry-run with --commit, --back with --topic and --offset"
        )
    given = given_link(replace(which, source=source))
    committed: list[translation.GroupCommit] = []
    with Cluster(kafka_python_config(given.target), name="target", file_options=given.file_options) as there:
        names = there.run(_names, there, given)
        if group is not None:
            with Cluster(kafka_python_config(given.known_source), there.net, name="source", names=names) as origin:
                found = there.run(translation.translate_group, origin, there, given.link, group)
        else:
            assert topic is not None and offset is not None
            way = translation.translate_back if back else translation.translate
            name = topic if names is None or back else names.to_target(topic)
            found = there.run(way, there, given.link, {TopicPartition(name, partition): offset})
        if commit and group is not None:
            move = partial(translation.commit_group, is_forced=force, is_dry_run=dry_run)
            committed = there.run(move, there, group, found.values())
    _print_translations(found, committed, as_json, names, back, "would commit" if dry_run else "committed")
    for why, of in by_reason({one.partition: one.why for one in found.values() if one.why}).items():
        echo(f"tolerant-kafka: {names_of(of)}: {why}", err=True)
    doubts = by_reason({one.partition: one.doubt for one in found.values() if one.doubt})
    echo_each("warning", (f"{names_of(of)}: {doubt}" for doubt, of in doubts.items()))
    if commit and not any(one.is_written for one in committed):
        would = "would be" if dry_run else "was"
        why = _why_nothing(found.values(), given.link)
        echo(f"tolerant-kafka: nothing {would} committed for group {group}: {why}", err=True)
    raise typer.Exit(0 if all(one.is_exact for one in found.values()) else LOOK)


def _why_nothing(found: Collection[TranslatedOffset], link: str) -> str:
    if all(one.found is None for one in found):
        return f"link {link} has mirrored no partition of which the group has offsets"
    if not any(one.is_known for one in found):
        return "nobody can translate its offsets"
    return "on the target it is already at these offsets, or beyond (--force moves it back)"


async def _names(target: Cluster, given: GivenLink) -> TopicNames | None:
    """The topic names on the target: from the file, or from the link's record."""
    if given.topics is not None:
        return given.topics.names
    written = (await read_control(target, given.link)).topics
    return None if written is None else LinkTopics.from_json(written).names


def _print_translations(
    translated: Any, committed: Any, as_json: bool, names: TopicNames | None, back: bool, done: str
) -> None:
    """Prints a row for each partition; what is the source's and what the target's has the same name in both directions."""

    def told(topic: str, is_source: bool) -> str:
        return names.to_source(topic) if names is not None and is_source else topic

    by_target = {one.target: one for one in committed}
    rows = []
    for one in sorted(translated.values(), key=lambda one: one.partition):
        given, found = ("target", "source") if back else ("source", "target")
        row: dict[str, Any] = {"partition": one.partition.partition, "place": "not-mirrored"}
        row |= {f"{given}_topic": told(one.partition.topic, not back), f"{given}_offset": one.offset}
        if one.found is not None:
            row |= {f"{found}_topic": told(one.target.topic, back), "place": one.found.place.value}
            row["position"] = one.found.position
            if one.is_known:
                row[f"{found}_offset"] = one.found.translated
        if one.doubt:
            row["warning"] = one.doubt
        if one.target in by_target:
            row |= {done.replace(" ", "_"): by_target[one.target].is_written, "before": by_target[one.target].before}
        rows.append(row)
    if as_json:
        echo_json(rows)
        return
    columns = ["source_topic", "partition", "source_offset", "target_topic", "target_offset", "place", "position"]
    columns += [done.replace(" ", "_"), "before"] if committed else []
    table = Table(*(name.replace("_", " ") for name in columns))
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    print_table(table)
