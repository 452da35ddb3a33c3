"""The commands `tolerant-kafka status` and `plan`: how a link is doing, and what it would do."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from spark_integration.commands.link import (
    Config,
    FlowName,
    Groups,
    MaybeLink,
    MaybeSource,
    MaybeTarget,
    MaybeTopics,
    echo_json,
    given_link,
)
from spark_integration.commands.options import Json, SourceProperties, TargetProperties
from tolerant_client.mirror.link.plan_report import LinkPlan, plan_everything
from tolerant_client.mirror.link.status import LinkStatus, read_status
from tolerant_client.raw import RawCluster


def status(
    source: MaybeSource = None,
    target: MaybeTarget = None,
    link: MaybeLink = None,
    topics: MaybeTopics = None,
    as_json: Json = False,
    config: Config = None,
    flow: FlowName = None,
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """How a link is doing: lag in offsets, seconds and bytes, what is paused, lost or wrong.  Exit code 3: look at it."""
    given = given_link(source, target, topics, link, config, flow, None, source_properties, target_properties).known()

    async def ask(origin: RawCluster, there: RawCluster) -> LinkStatus:
        return await read_status(origin, there, given.link, given.link_topics)

    found = given.run(ask)
    if as_json:
        echo_json(found.to_json())
        raise typer.Exit(found.exit_code)
    rate = "" if found.bytes_per_s is None else f", at most {found.bytes_per_s:,} bytes/s"
    table = Table(
        "topic", "partitions", "lag", "seconds", "bytes", "paused", "lost",
        title=f"link {found.link}: {found.health}, {found.copied_per_s:,.0f} offsets/s{rate}",
    )
    for t in found.topics:
        seconds = "unknown" if t.lag_s is None else f"{t.lag_s:,.1f}"
        size = "unknown" if t.lag_bytes is None else f"{t.lag_bytes:,}"
        is_all = len(t.paused) == t.partitions
        paused = "all" if t.paused and is_all else ", ".join(map(str, t.paused))
        table.add_row(t.topic, str(t.partitions), f"{t.lag:,}", seconds, size, paused, f"{t.lost:,}" if t.lost else "")
    Console().print(table)
    for row in found.losses:
        typer.echo(f"tolerant-kafka: loss: {row}", err=True)
    for text in found.findings:
        typer.echo(f"tolerant-kafka: look: {text}", err=True)
    raise typer.Exit(found.exit_code)


def plan(
    source: MaybeSource = None,
    target: MaybeTarget = None,
    topics: MaybeTopics = None,
    link: MaybeLink = None,
    groups: Groups = None,
    as_json: Json = False,
    config: Config = None,
    flow: FlowName = None,
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """What a mirror would do: topics, their configuration, ACLs, groups, durability; writes nothing.  Exit code 3: it would stop."""
    given = given_link(source, target, topics, link, config, flow, groups, source_properties, target_properties).known()

    async def ask(origin: RawCluster, there: RawCluster) -> LinkPlan:
        return await plan_everything(origin, there, given.link, given.link_topics, given.groups)

    found = given.run(ask)
    if as_json:
        echo_json(found.to_json())
        raise typer.Exit(found.exit_code)
    console = Console()
    table = Table("topic", "what", "partitions", "replicas", "offsets to copy", "why", title=f"link {found.link}: plan")
    for t in found.topics:
        width = f"{t.target_partitions} to {t.partitions}" if t.action == "grow" else str(t.partitions)
        waiting = "" if t.to_copy is None else f"{t.to_copy:,}"
        table.add_row(t.topic, t.action, width, str(t.replication_factor), waiting, t.why)
    console.print(table)
    lines = [f"refused: {text}" for text in found.refusals]
    lines += [f"warning: {text}" for text in found.warnings]
    lines += [f"durability: {text}" for text in found.durability]
    if found.configs is not None:
        lines += [f"configuration: {c.topic} {c.name}: {c.before} to {c.after or 'the default'}" for c in found.configs.changed]
        lines += [f"configuration left: {left}" for left in found.configs.left]
    if found.acls is not None:
        lines += [f"ACL: {acl}" for acl in found.acls.added] + [f"ACL left: {left}" for left in found.acls.left]
    if found.groups is not None:
        lines += [
            f"group: {m.position.group}, {m.position.partition.topic}-{m.position.partition.partition} to {m.position.offset:,}"
            for m in found.groups.moved
        ]
        lines += [f"group left: {left}" for left in found.groups.left]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(found.exit_code)
