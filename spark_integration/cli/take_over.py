"""The commands `tolerant-kafka take-over` and `hand-back`: from MirrorMaker 2 to this mirror, and back to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import DryRun, FlowName, echo_json
from spark_integration.cli.options import Json
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life import handback, takeover
from tolerant_client.mirror.life.handback import HandBackReport
from tolerant_client.mirror.life.takeover import TakeoverReport
from tolerant_client.ops.mm2.flows import Flow, read_flows
from tolerant_client.ops.printing import Table, echo, print_table
from tolerant_client.ops.service.duties import connected

_T = TypeVar("_T")

Mm2File = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar="TOLERANT_KAFKA_CONFIG",
        exists=True,
        dir_okay=False,
        help="The MirrorMaker 2 file of both mirrors.",
    ),
]


def take_over(config: Mm2File, flow: FlowName = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Go on where MirrorMaker 2 has stopped, on the same target topics; stop it before, and start the mirror behind this.

    Where the copies have the source's offsets, they are adopted.  Elsewhere the flow needs tolerant.offsets = translated,
    and copying begins behind the last record that is there.  Exit codes: 0 ready, 3 something is in the way, nothing was
    written.
    """
    given = _chosen(config, flow)

    async def ask(source: Cluster, target: Cluster) -> TakeoverReport:
        return await takeover.take_over(
            source, target, given.link, given.link_topics, given.source_alias, offsets=given.offsets, is_dry_run=dry_run
        )

    with told_if_interrupted("taking over had begun, it may be done: run this again", dry_run):
        report = _run(given, ask)
    if as_json:
        echo_json(report.to_json())
        raise typer.Exit(report.exit_code)
    columns = ("topic", "partition", "offsets", "goes on at", "MirrorMaker 2 would at")
    table = Table(*columns, title=f"link {report.link}: take over")
    for p in report.partitions:
        position, committed = (f"{offset:,}" if offset >= 0 else "unknown" for offset in (p.position, p.committed))
        table.add_row(p.topic, str(p.partition), "identical" if p.is_identical else "others", position, committed)
    print_table(table)
    for text in report.blockers:
        echo(f"tolerant-kafka: in the way: {text}", err=True)
    echo(f"Ready: start tolerant-kafka mirror --config {config}" if report.is_done else "Nothing was written")
    raise typer.Exit(report.exit_code)


def hand_back(config: Mm2File, flow: FlowName = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Have MirrorMaker 2 go on where this mirror has stopped; stop the mirror before, and start MirrorMaker 2 behind this.

    From then on the mirror refuses to copy this flow, until take-over.  Exit codes: 0 ready, 3 something is in the way,
    nothing was written.
    """
    given = _chosen(config, flow)

    async def ask(source: Cluster, target: Cluster) -> HandBackReport:
        return await handback.hand_back(
            source, target, given.link, given.link_topics, given.source_alias, offsets=given.offsets, is_dry_run=dry_run
        )

    what = "handing back had begun, it is not finished, and this mirror copies nothing any more: run this again"
    with told_if_interrupted(what, dry_run):
        report = _run(given, ask)
    if as_json:
        echo_json(report.to_json())
        raise typer.Exit(report.exit_code)
    for p in report.partitions:
        echo(f"{p.topic}-{p.partition}: MirrorMaker 2 goes on at {p.after:,} instead of {p.before:,}")
    for text in report.blockers:
        echo(f"tolerant-kafka: in the way: {text}", err=True)
    echo("Ready: start MirrorMaker 2" if report.is_done else "Nothing was written")
    raise typer.Exit(report.exit_code)


def _chosen(config: Path, flow: str | None) -> Flow:
    flows = {str(one): one for one in read_flows(config).flows}
    if flow is None and len(flows) != 1:
        raise OptionError(f"{config} has the flows {', '.join(flows)}: say which with --flow")
    if flow is not None and flow not in flows:
        raise OptionError(f"{config} has no flow {flow}; it has {', '.join(flows)}")
    return flows[flow] if flow is not None else next(iter(flows.values()))


def _run(flow: Flow, ask: Callable[[Cluster, Cluster], Awaitable[_T]]) -> _T:
    source, target = connected(flow.source, flow.target, flow.names)
    try:
        return source.run(ask, source, target)
    finally:
        target.close()
        source.close()
