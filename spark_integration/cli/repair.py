"""The command `tolerant-kafka repair`: makes the control of a link readable again, or forgets a link prepared by mistake."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import end_with, given_link
from spark_integration.cli.options import DryRun, Json, OnTarget
from tolerant_client.mirror.life import repair as repairing
from tolerant_client.mirror.life.repair import RepairReport
from tolerant_client.ops.printing import echo

Forget = Annotated[
    bool,
    typer.Option(
        "--forget",
        help="Also if this loses something that the link has recorded; without it the command names what that is.",
    ),
]


def repair(which: OnTarget, forget: Forget = False, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Make the control of a link readable again after something else wrote under its name. Stop its mirror first.

    The last readable record is written again.  If there is none, all that the link had recorded is lost; this needs
    --forget.  This also forgets a link that failback or take-over prepared, under a mistyped name for example, and that was
    never started.  Other links are not touched.  Exit codes: 0 readable, 3 --forget is needed, nothing was written.
    """
    given = given_link(which)
    with told_if_interrupted("repairing had begun, it may be done: run this again", dry_run):
        report = given.run_on_target(
            lambda there: repairing.repair(there, given.link, forgets=forget, is_dry_run=dry_run)
        )
    end_with(report, as_json, _show)


def _show(report: RepairReport) -> None:
    if report.unreadable is None and not report.forgotten:
        echo(f"The control of link {report.link} can be read; nothing was written")
        return
    would = "would be" if report.is_dry_run or not report.is_done else "is"
    if report.unreadable is not None:
        echo(f"Link {report.link}: {report.unreadable}")
        echo(
            f"The record before it {would} written once more" if report.is_restored else f"Its control {would} removed"
        )
    if report.forgotten:
        echo(f"Forgotten {would}: {report.forgotten}")
    if not report.is_done:
        echo(f"Nothing was written{'' if report.exit_code == 0 else '; with --forget it is'}")
