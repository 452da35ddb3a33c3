"""The command `tolerant-kafka repair`: a link whose control cannot be read is given back to its operator."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import Config, DryRun, FlowName, MaybeLink, MaybeTarget, echo_json, given_link
from spark_integration.cli.options import Json, TargetProperties
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life import repair as repairing
from tolerant_client.mirror.life.repair import RepairReport
from tolerant_client.ops.printing import echo

Forget = Annotated[
    bool,
    typer.Option(
        "--forget", help="Also where something that the link has written down is lost by it; without this it is named."
    ),
]


def repair(
    target: MaybeTarget = None,
    link: MaybeLink = None,
    forget: Forget = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    config: Config = None,
    flow: FlowName = None,
    target_properties: TargetProperties = None,
) -> None:
    """Make the control of a link readable again, where something else has written under its name; stop its mirror first.

    The record before that is written once more.  Where it is gone, what the link had written down is forgotten, and only with
    --forget.  Other links are not touched.  Exit codes: 0 readable, 3 --forget is needed, nothing was written.
    """
    given = given_link(None, target, None, link, config, flow, target_properties=target_properties)

    async def ask(there: Cluster) -> RepairReport:
        return await repairing.repair(there, given.link, forgets=forget, is_dry_run=dry_run)

    with told_if_interrupted("repairing had begun, it may be done: run this again", dry_run):
        report = given.run_on_target(ask)
    if as_json:
        echo_json(report.to_json())
        raise typer.Exit(report.exit_code)
    if report.unreadable is None:
        echo(f"The control of link {report.link} can be read; nothing was written")
        return
    would = "would be" if dry_run or not report.is_done else "is"
    echo(f"Link {report.link}: {report.unreadable}")
    echo(
        "The record before it " + would + " written once more"
        if report.is_restored
        else f"Its control {would} taken away"
    )
    if report.forgotten:
        echo(f"Forgotten {would}: {report.forgotten}")
    if not report.is_done:
        echo(f"Nothing was written{'' if report.exit_code == 0 else '; with --forget it is'}")
    raise typer.Exit(report.exit_code)
