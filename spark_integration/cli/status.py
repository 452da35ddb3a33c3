"""The command `tolerant-kafka status`: how a link is doing."""

from __future__ import annotations

import typer

from spark_integration.cli.link import (
    Config,
    FlowName,
    MaybeLink,
    MaybeSource,
    MaybeTarget,
    MaybeTopics,
    echo_json,
    given_link,
)
from spark_integration.cli.options import Json, SourceProperties, TargetProperties
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life.status import LinkStatus, read_status
from tolerant_client.mirror.state.health import utc
from tolerant_client.ops.printing import Table, echo, print_table


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
    given = (
        given_link(source, target, topics, link, config, flow, None, source_properties, target_properties)
        .with_source()
        .known()
    )

    async def ask(origin: Cluster, there: Cluster) -> LinkStatus:
        return await read_status(origin, there, given.link, given.link_topics)

    found = given.run(ask)
    if as_json:
        echo_json(found.to_json())
        raise typer.Exit(found.exit_code)
    rate = f", at most {found.bytes_per_s:,} bytes/s" if found.bytes_per_s else ""
    table = Table(
        "topic",
        "partitions",
        "lag",
        "uncommitted",
        "seconds",
        "bytes",
        "paused",
        "lost",
        title=f"link {found.link}: {found.health}, {found.copied_per_s:,.0f} offsets/s{rate}",
    )
    for t in found.topics:
        seconds = "unknown" if t.lag_s is None else f"{t.lag_s:,.1f}"
        size = "unknown" if t.lag_bytes is None else f"{t.lag_bytes:,}"
        is_all = len(t.paused) == t.partitions
        paused = "all" if t.paused and is_all else ", ".join(map(str, t.paused))
        lag = f"{t.lag:,}" + (f" and {len(t.unknown)} unknown" if t.unknown else "")
        uncommitted = f"{t.open_offsets:,}" if t.open_offsets else ""
        table.add_row(
            t.topic, str(t.partitions), lag, uncommitted, seconds, size, paused, f"{t.lost:,}" if t.lost else ""
        )
    print_table(table)
    for run in found.mirrors:
        if run.is_alive:
            echo(f"mirror: on {run.host}, process {run.pid}, since {utc(run.since_ms)}")
    for row in found.losses:
        echo(f"tolerant-kafka: loss: {row}", err=True)
    for reason in found.reasons:
        echo(f"tolerant-kafka: {reason.health}: {reason.text}", err=True)
    raise typer.Exit(found.exit_code)
