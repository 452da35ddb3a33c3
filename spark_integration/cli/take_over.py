"""The commands `tolerant-kafka take-over` and `hand-back`: from MirrorMaker 2 to this mirror, and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import GivenLink, end_with, link_of_file
from spark_integration.cli.options import DryRun, FlowName, Json, file_option
from tolerant_client.mirror.life import handback, takeover
from tolerant_client.mirror.life.handback import HandBackReport
from tolerant_client.mirror.life.takeover import TakeoverReport
from tolerant_client.ops.printing import Table, echo, echo_each, print_table

if TYPE_CHECKING:
    from tolerant_client.ops.mm2.flows import Flow

_T = TypeVar("_T")

Mm2File = Annotated[Path, file_option("--config", "The MirrorMaker 2 file of both mirrors.")]


def take_over(config: Mm2File, flow: FlowName = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Continue where MirrorMaker 2 stopped, on the same target topics. Stop it first; start the mirror afterwards.

    If the copies have the source's offsets, they are adopted.  Otherwise the flow needs tolerant.offsets = translated,
    and copying begins after the last record on the target.  Exit codes: 0 ready, 3 something blocks it, nothing was
    written.
    """
    link = link_of_file(config, flow)
    with told_if_interrupted("taking over had begun, it may be done: run this again", dry_run):
        report = _run(takeover.take_over, *link, dry_run)
    end_with(report, as_json, partial(_show_taken, config))


def hand_back(config: Mm2File, flow: FlowName = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Let MirrorMaker 2 continue where this mirror stopped. Stop the mirror first; start MirrorMaker 2 afterwards.

    From then on the mirror refuses to copy this flow, until take-over.  Exit codes: 0 ready, 3 something blocks it,
    nothing was written.
    """
    link = link_of_file(config, flow)
    what = "handing back had begun, it is not finished, and this mirror copies nothing any more: run this again"
    with told_if_interrupted(what, dry_run):
        report = _run(handback.hand_back, *link, dry_run)
    end_with(report, as_json, _show_handed)


def _run(ask: Callable[..., Awaitable[_T]], given: GivenLink, flow: Flow, is_dry_run: bool) -> _T:
    options = {"offsets": flow.offsets, "is_dry_run": is_dry_run}
    return given.run(
        lambda source, target: ask(source, target, given.link, given.link_topics, flow.source_alias, **options)
    )


def _show_taken(config: Path, report: TakeoverReport) -> None:
    columns = ("topic", "partition", "offsets", "resumes at", "MirrorMaker 2 would at")
    table = Table(*columns, title=f"link {report.link}: take over")
    for p in report.partitions:
        position, committed = (f"{offset:,}" if offset >= 0 else "unknown" for offset in (p.position, p.committed))
        table.add_row(p.topic, str(p.partition), "identical" if p.is_identical else "others", position, committed)
    print_table(table)
    echo_each("blocker", report.blockers)
    echo(f"Ready: start tolerant-kafka mirror --config {config}" if report.is_done else "Nothing was written")


def _show_handed(report: HandBackReport) -> None:
    for p in report.partitions:
        echo(f"{p.topic}-{p.partition}: MirrorMaker 2 resumes at {p.after:,} instead of {p.before:,}")
    echo_each("blocker", report.blockers)
    echo("Ready: start MirrorMaker 2" if report.is_done else "Nothing was written")
