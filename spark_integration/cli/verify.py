"""The command `tolerant-kafka verify`."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_integration.cli.exits import ended_with, require_spark
from spark_integration.cli.link import given_link
from spark_integration.cli.options import Json, WhichLink
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.life.mirrors import look_for_forgotten
from tolerant_client.mirror.life.naming import unknown_link
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.verify.outcome import Difference, Outcome
from tolerant_client.mirror.verify.report import PartitionReport, VerifyReport
from tolerant_client.mirror.verify.verification import Verification, compare_here
from tolerant_client.ops.printing import Table, echo, echo_each, echo_json, print_table


def verify(
    which: WhichLink,
    as_json: Json = False,
    while_running: Annotated[
        bool,
        typer.Option("--while-running", help="Treat a shorter target log as lag, not as a difference."),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            dir_okay=False,
            help="Resume from the report in FILE, if it is there, and keep it up to date.",
        ),
    ] = None,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks", metavar="N", min=0, help="Compare in a Spark job with this many tasks; 0: in this process."
        ),
    ] = 0,
) -> None:
    """Compare two clusters offset by offset."""
    before = None if resume is None else _read_report(resume)
    if tasks:
        require_spark("--tasks 0")
    is_alone = which.topics is not None  # with given topics the two clusters suffice
    given = given_link(which, needs_link=not is_alone, needs_source=True).known()

    async def forgotten(target: Cluster) -> str | None:
        return await look_for_forgotten(target, given.link, await read_control(target, given.link))

    async def same_source(source: Cluster, target: Cluster) -> None:
        if given.link:
            require_same_source(await read_control(target, given.link), given.link, await source.cluster_id())

    async def unknown(target: Cluster) -> str | None:
        return await unknown_link(
            target, given.link, "leave --link out: with --topics verify needs none", has_topics=True
        )

    if is_alone and which.link and (why := given.run_on_target(unknown)) is not None:
        raise OptionError(why)
    if given.flow is not None and (why := given.run_on_target(forgotten)) is not None:
        echo_each("warning", [why])

    def progress(report: VerifyReport) -> None:
        if resume is not None:
            _write_report(resume, report)

    async def compare(first: Cluster, second: Cluster) -> tuple[VerifyReport, list[str]]:
        await same_source(first, second)
        verification = Verification(first, second, given.link_topics, allow_behind=while_running, resume=before)
        return await compare_here(verification, progress), verification.warnings

    with ended_with(Outcome.NOT_COMPARED.exit_code, as_json):  # 1 would mean that they differ
        if tasks:
            from spark_integration.mirror import verify_job

            given.run(same_source)
            link_settings = given.known_source, given.target, given.link_topics
            report, warnings = verify_job.run(
                verify_job.VerifySettings(*link_settings, while_running, tasks), before, progress
            )
        else:
            report, warnings = given.run(compare)
    progress(report)
    echo_each("warning", warnings)
    if as_json:
        echo_json(report.as_json())
    else:
        print_report(report)
    raise typer.Exit(report.outcome.exit_code)


def _read_report(path: Path) -> dict[str, Any] | None:
    """The report of an earlier verify; None if there is none yet."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"--resume {path} cannot be read ({error}); give another file, or remove it") from error
    if not isinstance(found, dict):
        raise OptionError(f"--resume {path} is not a report of verify; give another file, or remove it")
    return found


def _write_report(path: Path, report: VerifyReport) -> None:
    """Replaces the file atomically, so that it is always whole."""
    try:
        # A name that nobody can foresee: in a folder where others may write, a link of that name would lead elsewhere.
        beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with beside.open("x") as file:
            try:
                file.write(json.dumps(report.as_json()))
                file.flush()
                beside.replace(path)
            except BaseException:
                beside.unlink()
                raise
    except OSError as error:
        raise OptionError(f"--resume {path} cannot be written ({error}); give another file") from error


def print_report(report: VerifyReport) -> None:
    """Prints a row for each topic, one for each partition with something to report, and a verdict."""
    table = Table("topic", "partitions", "compared", "identical until", "")
    by_topic: dict[str, list[PartitionReport]] = {}
    for part in report.partitions:
        by_topic.setdefault(part.topic, []).append(part)
    for topic, parts in by_topic.items():
        same = [p for p in parts if p.first_difference is None and p.error is None]
        if same:
            offsets = _of(sum(p.compared for p in same), sum(p.held for p in same))
            compared = f"{offsets}, {sum(p.records for p in same):,} records"
            lag = sum(p.lag for p in same)
            table.add_row(
                topic, str(len(same)), compared, f"{lag:,} before the end" if lag else "the end", "no difference"
            )
        for p in parts:
            for row in _rows(p):
                table.add_row(*row)
    print_table(table)
    echo(verdict(report))


def _rows(p: PartitionReport) -> Iterator[tuple[str, ...]]:
    name, bounds = f"{p.topic}-{p.partition}", f"{p.from_offset:,} to {p.until_offset:,}"
    if p.first_difference is not None:
        yield (
            name,
            "1",
            _of(p.compared, p.held),
            f"{p.identical_until:,}",
            f"first difference: {_said(p.first_difference)}",
        )
        if p.untold_difference not in (None, p.first_difference):
            yield name, "", "", "", f"where the ledger has no loss: {_said(p.untold_difference)}"
    elif p.error is not None:
        yield name, "1", _of(p.compared, p.held), f"{p.identical_until:,}", f"not compared: {p.error}"
    told = p.first_difference and p.first_difference.reason
    for gap in (gap for gap in p.not_compared if gap.reason != told):
        yield name, "", f"{gap.from_offset:,} to {gap.until_offset:,}", "", f"not compared: {gap.reason}"
    for row in p.ledger:
        how = "the source shows it" if row.is_proved else "compared with what the source has there now"
        yield name, "", f"{row.from_offset:,} to {row.until_offset:,}", "", f"the ledger says {row.reason}: {how}"
    if p.told_records:
        yield name, "", "", "", f"{p.told_records:,} records differ where the ledger has a loss"
    if p.compacted:
        yield name, "", bounds, "", f"{p.compacted:,} superseded records are on one side only"
    if p.target_start is not None and (gone := min(p.source_start or 0, p.target_end or 0)) > p.target_start:
        yield name, "", f"{p.target_start:,} to {gone:,}", "", "the source no longer has what the target has there"


def _said(difference: Difference | None) -> str:
    return "" if difference is None else f"offset {difference.offset:,}: {difference.reason}"


def _of(compared: int, held: int) -> str:
    return f"{compared:,} of {held:,} offsets"


def verdict(report: VerifyReport) -> str:
    """The result of the comparison, as one sentence."""
    compared = f"{_of(report.compared, report.held)} of the source compared"
    if report.uncounted:
        compared += f", besides {counted(report.uncounted, 'partition')} that could not be counted"
    elif report.held:
        compared += f" ({math.floor(1000 * report.compared / report.held) / 10:g} %)"
    words = {
        Outcome.IDENTICAL: "identical",
        Outcome.EXPLAINED: f"identical except {counted(report.explained, 'offset')} that the ledger explains",
        Outcome.NOT_COMPARED: "NOT COMPARED to the end" if report.compared else "NOTHING COMPARED",
        Outcome.DIFFERENT: "DIFFERENT",
    }
    if report.outcome is not Outcome.EXPLAINED and report.explained:
        compared += f", {counted(report.explained, 'offset')} explained by the ledger"
    behind = f", the target is {counted(report.lag, 'offset')} behind" if report.lag else ""
    return (
        f"{words[report.outcome]}: {compared}, {counted(report.records, 'record')}, in {report.seconds:.1f} s{behind}"
    )
