"""The command `tolerant-kafka translate`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from kafka.structs import TopicPartition
from rich.console import Console
from rich.table import Table

from spark_integration.commands.options import client_properties, Json, LinkName, SourceProperties, Target, TargetProperties
from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import OptionError
from tolerant_client.raw import RawCluster


def translate(
    target: Target,
    link: LinkName = "default",
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of the source.")] = None,
    partition: Annotated[int, typer.Option("--partition", min=0)] = 0,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Offset of the source.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Consumer group of the source: all that it has committed.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="HOST:PORT", help="Where --group has committed.")] = None,
    commit: Annotated[bool, typer.Option("--commit", help="Commit for the same group on the target; it must be idle there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --commit: also backwards.")] = False,
    back: Annotated[bool, typer.Option("--back", help="--topic and --offset are the target's: translate to the source's.")] = False,
    as_json: Json = False,
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """Translate offsets of a link that was mirrored with translated offsets, exactly.

    A consumer that goes on at a translated offset reads each record once.  Exit code 1: an offset is not on the target
    (not copied yet, deleted there, or its partition is not mirrored); then its place says so.
    """
    from tolerant_client.mirror.translated import translate as translation

    is_group = group is not None
    if is_group == (topic is not None and offset is not None) or is_group != (source is not None):
        raise OptionError("Give either --topic and --offset, or --group and --source")
    if commit and not is_group or back and is_group or force and not commit:
        raise OptionError("--commit goes with --group, --force with --commit, --back with --topic and --offset")
    committed: list[translation.GroupCommit] = []
    with RawCluster(kafka_python_config(client_properties(target, target_properties)), name="target") as there:
        if group is not None and source is not None:
            origin = RawCluster(kafka_python_config(client_properties(source, source_properties)), there.net, name="source")
            try:
                found = there.run(translation.translate_group, origin, there, link, group)
            finally:
                origin.close()
        else:
            assert topic is not None and offset is not None
            way = translation.translate_back if back else translation.translate
            found = there.run(way, there, link, {TopicPartition(topic, partition): offset})
        if commit and group is not None:
            # As a closure: run() passes no keyword arguments on.
            async def move() -> list[translation.GroupCommit]:
                return await translation.commit_group(there, group, found.values(), is_forced=force)

            committed = there.run(move)
    _print_translations(found, committed, as_json)
    raise typer.Exit(0 if all(one.is_exact for one in found.values()) else 1)


def _print_translations(found: Any, committed: Any, as_json: bool) -> None:
    by_target = {one.target: one for one in committed}
    rows = []
    for one in sorted(found.values(), key=lambda one: one.partition):
        row = {"topic": one.partition.topic, "partition": one.partition.partition, "offset": one.offset, "place": "not-mirrored"}
        if one.found is not None:
            row |= {"target_topic": one.target.topic, "target_offset": one.found.translated, "place": one.found.place.value}
            row["position"] = one.found.position
        if one.target in by_target:
            row |= {"committed": by_target[one.target].is_written, "before": by_target[one.target].before}
        rows.append(row)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    columns = ["topic", "partition", "offset", "target_topic", "target_offset", "place", "position"]
    columns += ["committed", "before"] if committed else []
    table = Table(*(name.replace("_", " ") for name in columns))
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    Console().print(table)
