"""The command `tolerant-kafka verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from spark_integration.commands.link import Config, FlowName, MaybeLink, MaybeSource, MaybeTarget, MaybeTopics, given_link
from spark_integration.commands.options import Json, SourceProperties, TargetProperties
from spark_integration.printing import Table, echo
from tolerant_client.errors import OptionError
from tolerant_client.mirror.verify.verification import PartitionReport, Verification, VerifyReport, compare_here
from tolerant_client.raw import RawCluster


def verify(
    source: MaybeSource = None,
    target: MaybeTarget = None,
    topics: MaybeTopics = None,
    as_json: Json = False,
    while_running: Annotated[
        bool, typer.Option("--while-running", "--allow-behind", help="A target that ends earlier lags, and does not differ.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", dir_okay=False, help="Go on from the report in FILE, if it is there, and keep it up to date."),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=0, help="Compare in a Spark job with so many tasks; 0: in this process.")] = 0,
    link: MaybeLink = None,
    config: Config = None,
    flow: FlowName = None,
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """Compare two clusters offset by offset."""
    given = given_link(source, target, topics, link, config, flow, None, source_properties, target_properties).known()
    before = None if resume is None else _read_report(resume)

    def progress(report: VerifyReport) -> None:
        if resume is not None:
            _write_report(resume, report)

    if tasks:
        from spark_integration.mirroring import verify_job  # Spark is imported only by what needs it

        settings = verify_job.VerifySettings(given.known_source, given.target, given.link_topics, while_running, tasks)
        report, warnings = verify_job.run(settings, before, progress)
    else:

        async def compare(first: RawCluster, second: RawCluster) -> tuple[VerifyReport, list[str]]:
            verification = Verification(first, second, given.link_topics, allow_behind=while_running, resume=before)
            return await compare_here(verification, progress), verification.warnings

        report, warnings = given.run(compare)
    progress(report)
    for warning in warnings:
        echo(f"tolerant-kafka: warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        print_report(report)
    raise typer.Exit(1 if report.is_different else 0 if report.is_complete else 2)


def _read_report(path: Path) -> dict[str, Any] | None:
    """The report that an earlier verify has left; None where there is none yet."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"--resume {path} cannot be read ({error}); give another file, or remove it") from error
    if not isinstance(found, dict):
        raise OptionError(f"--resume {path} holds no report of verify; give another file, or remove it")
    return found


def _write_report(path: Path, report: VerifyReport) -> None:
    """Written beside and moved, so that there is always a whole one."""
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.write_text(json.dumps(report.as_json()))
        beside.replace(path)
    except OSError as error:
        raise OptionError(f"--resume {path} cannot be written ({error}); give another file") from error


def print_report(report: VerifyReport) -> None:
    """A row for each topic, and one for each partition of which more is to say."""
    table = Table("topic", "partitions", "compared", "identical until", "first difference")
    by_topic: dict[str, list[PartitionReport]] = {}
    for part in report.partitions:
        by_topic.setdefault(part.topic, []).append(part)
    for topic, parts in by_topic.items():
        same = [p for p in parts if p.first_difference is None and p.error is None]
        if same:
            compared = f"{sum(p.records for p in same):,} records"
            lag = sum(p.lag for p in same)
            table.add_row(topic, str(len(same)), compared, f"{lag:,} before the end" if lag else "the end", "none")
        for p in parts:
            name, bounds = f"{topic}-{p.partition}", f"{p.from_offset:,} to {p.until_offset:,}"
            if p.first_difference is not None:
                found = f"offset {p.first_difference.offset}: {p.first_difference.reason}"
                table.add_row(name, "1", bounds, f"{p.identical_until:,}", found)
            elif p.error is not None:
                table.add_row(name, "1", bounds, f"{p.identical_until:,}", f"not compared: {p.error}")
            for gap in p.not_compared:
                table.add_row(name, "", f"{gap.from_offset:,} to {gap.until_offset:,}", "", f"not compared: {gap.reason}")
            for start, until in p.accepted:
                table.add_row(name, "", f"{start:,} to {until:,}", "", "accepted loss, see the ledger")
            if p.compacted:
                table.add_row(name, "", bounds, "", f"{p.compacted:,} superseded records are on one side only")
            if p.target_start is not None and p.target_start != p.source_start:
                first, second = ("source", "target") if p.source_start < p.target_start else ("target", "source")
                table.add_row(name, "", bounds, "", f"the {first} log starts earlier than the {second}'s: {min(p.source_start, p.target_start):,}")
    Console().print(table)
    verdict = "DIFFERENT" if report.is_different else "identical" if report.is_complete else "NOT COMPARED to the end"
    behind = f", the target is {report.lag:,} offsets behind" if report.lag else ""
    echo(f"{verdict}: {report.records:,} records compared in {report.seconds:.1f} s{behind}")
