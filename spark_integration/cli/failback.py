"""The command `tolerant-kafka failback`: prepares the link back to a cluster that was the source."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Annotated

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import confirm, end_with, given_link
from spark_integration.cli.options import DryRun, Json, WhichLink, Yes
from tolerant_client.mirror.life import failback as way_back
from tolerant_client.mirror.life.failback import FailbackReport
from tolerant_client.mirror.life.failback_blockers import lost_records
from tolerant_client.ops.printing import Table, echo, echo_each, print_table


def failback(
    which: WhichLink,
    discard_diverged: Annotated[
        bool,
        typer.Option(
            "--discard-diverged",
            help="Delete target topics that hold records that were never copied, or that cannot be compared; they are copied again.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Prepare copying back: --source has the newer data, --target is the cluster that was the source.

    Compares both logs of every partition.  If the target's log is the beginning of the source's, the link back resumes
    at its end and copies only the difference.  If the target has records that were never copied, the command names them
    and changes nothing, unless --discard-diverged gives them up; it deletes only topics that a link copied from there, or that
    are the link's own former copies without a record of others, and what groups have committed of them goes with them.
    The link's own former copy of heartbeats is always created anew.
    Without --topics it prepares those of the promoted link that it undoes, as far as they are not home yet: of several links,
    of the one with the topics that it had last, or with its name.
    Afterwards start the mirror of the link back like any other.
    Exit codes: 0 ready, 3 something blocks it, or all is home already; nothing was written.
    """
    given = given_link(which, needs_source=True)
    if discard_diverged:
        confirm("Delete topics of the target with records that were never copied", is_sure=yes or dry_run)
    what = "failing back had begun, it is not finished, and topics that diverged may be deleted on the target: run this again"
    with told_if_interrupted(what, dry_run):
        report = given.run(
            lambda origin, there: way_back.failback(
                origin, there, given.link, given.topics, discards=discard_diverged, is_dry_run=dry_run
            )
        )
    start = (
        f"Start its mirror with these clusters, --link {shlex.quote(given.link)} and --topics {shlex.quote(report.topics)}"
        if given.flow is None
        else f"Start the service with {which.config}; this is its flow {given.flow}"
    )
    end_with(report, as_json, partial(_show, start=start, has_file=given.flow is not None))


def _show(report: FailbackReport, start: str, *, has_file: bool) -> None:
    table = Table(
        "topic", "partition", "same until", "to copy", "only on the target", title=f"link {report.link}: failback"
    )
    for p in report.partitions:
        lost = f"{lost_records([p])} records of offsets {p.shared_until:,} to {p.target_end:,}" if p.is_diverged else ""
        lost = lost or ("" if p.is_proved else "nothing is left to compare")
        table.add_row(p.topic, str(p.partition), f"{p.shared_until:,}", f"{p.to_copy:,}", lost)
    print_table(table)
    echo_each("blocker", report.blockers)
    echo_each("warning", report.warnings)
    for name in report.deleted_topics:
        what = "would be" if report.is_dry_run else "was"
        echo(f"tolerant-kafka: topic {name} {what} deleted on the target, and is copied anew", err=True)
    if report.is_done:
        echo(f"Link {report.link} is ready. {start}")
        if report.flow and not has_file:
            echo(
                f"Or start it with a file that names the clusters so: its flow {report.flow} is link {report.link}. What a file has started"
                " is not started with options any more"
            )
    else:
        echo(
            f"Nothing was written{'' if report.blockers else '; link ' + report.link + ' could be prepared like this'}"
        )
