"""The command `tolerant-kafka failback`: prepares the link back to a cluster that was the source."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import (
    Config,
    DryRun,
    FlowName,
    GivenTopics,
    MaybeLink,
    MaybeSource,
    MaybeTarget,
    Yes,
    confirm,
    echo_json,
    given_link,
)
from spark_integration.cli.options import Json, SourceProperties, TargetProperties
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life import failback as way_back
from tolerant_client.mirror.life.failback import FailbackReport, lost_records
from tolerant_client.ops.printing import Table, echo, print_table


def failback(
    source: MaybeSource = None,
    target: MaybeTarget = None,
    topics: GivenTopics = None,
    link: MaybeLink = None,
    discard_diverged: Annotated[
        bool,
        typer.Option(
            "--discard-diverged",
            help="Delete topics of the target whose logs have what was never copied, or cannot be compared; they are copied anew.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
    flow: FlowName = None,
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """Prepare copying back: --source has the newer data, --target is the cluster that was the source.

    Compares both logs of every partition.  Where the target's is the beginning of the source's, the link back goes on at
    its end and copies only the difference.  Where the target has records that were never copied, they are named and
    nothing is done, unless --discard-diverged gives them up; only topics that a link took from there are deleted.  Then
    start the mirror of the link back as any other.
    Exit codes: 0 ready, 3 something is in the way, nothing was written.
    """
    given = given_link(source, target, topics, link, config, flow, None, source_properties, target_properties)
    chosen = given.link_topics

    async def ask(origin: Cluster, there: Cluster) -> FailbackReport:
        return await way_back.failback(origin, there, given.link, chosen, discards=discard_diverged, is_dry_run=dry_run)

    if discard_diverged:
        confirm("Delete topics of the target that have what was never copied", is_sure=yes or dry_run)
    what = "failing back had begun, it is not finished, and topics that diverged may be deleted on the target: run this again"
    with told_if_interrupted(what, dry_run):
        report = given.run(ask)
    if as_json:
        echo_json(report.to_json())
        raise typer.Exit(report.exit_code)
    table = Table(
        "topic", "partition", "same until", "to copy", "only on the target", title=f"link {report.link}: failback"
    )
    for p in report.partitions:
        lost = f"{lost_records([p])} records of offsets {p.shared_until:,} to {p.target_end:,}" if p.is_diverged else ""
        lost = lost or ("" if p.is_proved else "nothing is left to compare")
        table.add_row(p.topic, str(p.partition), f"{p.shared_until:,}", f"{p.to_copy:,}", lost)
    print_table(table)
    for text in report.blockers:
        echo(f"tolerant-kafka: in the way: {text}", err=True)
    for name in report.deleted_topics:
        echo(f"tolerant-kafka: topic {name} was deleted on the target", err=True)
    if report.is_done:
        echo(f"Link {report.link} is ready: start its mirror with these clusters and --link {report.link}")
    else:
        echo(f"Nothing was written{'' if report.blockers else '; link ' + report.link + ' could be prepared so'}")
    raise typer.Exit(report.exit_code)
