"""The command tolerant-kafka: mirror, verify, translate, offsets, demo.

Exit codes: 0 done (verify: identical), 1 failed on the way (verify: different),
2 could not start (verify: could not compare), 3 done, with losses that the ledger
tells, or with partitions that policy has paused, 130 interrupted.
"""

from __future__ import annotations

import enum
import json
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import javaproperties
import typer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from rich.console import Console
from rich.table import Table

from spark_integration.security.kafka_config import kafka_python_config
from spark_integration.mirroring.watch import LinkWatch
from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.mirror.losses import MirrorPolicy
from tolerant_client.mirror.verify import PartitionReport, Verification, VerifyReport, compare_here
from tolerant_client.raw import RawCluster
from tolerant_client.testing import ClusterStartError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

_Source = Annotated[str, typer.Option("--source", metavar="HOST:PORT", help="Bootstrap servers of the source cluster.")]
_Target = Annotated[str, typer.Option("--target", metavar="HOST:PORT", help="Bootstrap servers of the target cluster.")]
_Topics = Annotated[str, typer.Option("--topics", metavar="REGEX", help="Regular expression that a whole topic name must match.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
_SourceProperties = Annotated[
    Path | None,
    typer.Option("--source-properties", exists=True, dir_okay=False, help="Java client properties of the source (security.protocol, ...)."),
]
_TargetProperties = Annotated[
    Path | None,
    typer.Option("--target-properties", exists=True, dir_okay=False, help="Java client properties of the target."),
]
class _Offsets(str, enum.Enum):
    IDENTICAL = "identical"
    TRANSLATED = "translated"


_GapFill = Annotated[
    list[str],
    typer.Option(
        "--gap-fill",
        metavar="[REGEX=]auto|transactions|markers|records",
        help="How offsets without a committed record are taken on the target.",
    ),
]
_OnLoss = Annotated[
    list[str],
    typer.Option(
        "--on-loss", metavar="[REGEX=]fail|continue|pause", help="When the source no longer has what should be copied."
    ),
]
_OnOversized = Annotated[
    list[str],
    typer.Option(
        "--on-oversized", metavar="[REGEX=]fail|continue|pause", help="When a record is above the target's max.message.bytes."
    ),
]
_LinkName = Annotated[str, typer.Option("--link", help="Name of the link; two links may not share a target topic.")]


@app.command()
def mirror(
    source: _Source,
    target: _Target,
    topics: _Topics,
    once: Annotated[bool, typer.Option("--once", help="Stop at the log ends seen at the start.")] = False,
    as_json: _Json = False,
    link: _LinkName = "default",
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Spark tasks that share the partitions.")] = 1,
    metrics: Annotated[str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics.")] = None,
    offsets: Annotated[_Offsets, typer.Option("--offsets", help="translated: for topics with other writers.")] = _Offsets.IDENTICAL,
    gap_fill: _GapFill = [],
    on_loss: _OnLoss = [],
    on_oversized: _OnOversized = [],
    source_properties: _SourceProperties = None,
    target_properties: _TargetProperties = None,
) -> None:
    """Copy topics to another cluster, every record at the same offset."""
    from spark_integration.mirroring import mirror_job  # Spark is imported by the one command that needs it

    settings = mirror_job.MirrorSettings(
        _properties(source, source_properties),
        _properties(target, target_properties),
        topics,
        link,
        once,
        tasks,
        policy=MirrorPolicy.parse(gap_fill=gap_fill, on_loss=on_loss, on_oversized=on_oversized),
        offsets=offsets.value,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    started = time.monotonic()
    prepared = mirror_job.prepare(settings)
    for warning in prepared.warnings:
        typer.echo(f"tolerant-kafka: warning: {warning}", err=True)
    is_shown = not as_json and sys.stderr.isatty()
    with LinkWatch(
        settings.source, settings.target, prepared.ends, link, is_once=once, is_shown=is_shown, metrics=metrics
    ) as watch:
        mirror_job.run(settings, prepared, stopping.is_set, watch.tell_paused)
    seconds = time.monotonic() - started
    names = sorted({p.topic for p in prepared.ends})
    is_identical = offsets is _Offsets.IDENTICAL
    behind = [p for p in watch.behind if p not in watch.paused] if once and is_identical else []
    for row in watch.losses:
        typer.echo(f"tolerant-kafka: loss: {row}", err=True)
    for partition in behind:
        text = f"{partition.topic}-{partition.partition} did not reach the end that its source had at the start"
        typer.echo(f"tolerant-kafka: behind: {text}; start the mirror again", err=True)
    if as_json:
        losses = [row._asdict() for row in watch.losses]
        paused = [{**partition._asdict(), "reason": reason} for partition, reason in sorted(watch.paused.items())]
        # A topic with translated offsets also gains markers and what others write.
        counted = {"records" if is_identical else "offsets": watch.copied, "seconds": round(seconds, 3)}
        typer.echo(json.dumps({**counted, "topics": names, "losses": losses, "paused": paused}))
    elif is_identical:
        typer.echo(f"{watch.copied:,} offsets of {len(names)} topics copied in {seconds:.1f} s")
    else:
        typer.echo(f"{len(names)} topics copied in {seconds:.1f} s; they have gained {watch.copied:,} offsets on the target")
    if watch.losses or watch.paused or behind:
        raise typer.Exit(3)


@app.command()
def verify(
    source: _Source,
    target: _Target,
    topics: _Topics,
    as_json: _Json = False,
    while_running: Annotated[
        bool, typer.Option("--while-running", "--allow-behind", help="A target that ends earlier lags, and does not differ.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", dir_okay=False, help="Go on from the report in FILE, if it is there, and keep it up to date."),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=0, help="Compare in a Spark job with so many tasks; 0: in this process.")] = 0,
    source_properties: _SourceProperties = None,
    target_properties: _TargetProperties = None,
) -> None:
    """Compare two clusters offset by offset."""
    clusters = _properties(source, source_properties), _properties(target, target_properties)
    before = None if resume is None else _read_report(resume)

    def progress(report: VerifyReport) -> None:
        if resume is not None:
            _write_report(resume, report)

    if tasks:
        from spark_integration.mirroring import verify_job  # Spark is imported only by what needs it

        settings = verify_job.VerifySettings(*clusters, topics, while_running, tasks)
        report, warnings = verify_job.run(settings, before, progress)
    else:
        with RawCluster(kafka_python_config(clusters[0]), name="source") as first:
            second = RawCluster(kafka_python_config(clusters[1]), first.net, name="target")
            try:

                async def compare() -> tuple[VerifyReport, list[str]]:
                    verification = Verification(first, second, topics, allow_behind=while_running, resume=before)
                    return await compare_here(verification, progress), verification.warnings

                report, warnings = first.run(compare)
            finally:
                second.close()
    progress(report)
    for warning in warnings:
        typer.echo(f"tolerant-kafka: warning: {warning}", err=True)
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


@app.command()
def offsets(
    checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of a query: a path, hdfs://..., s3://...")],
    source: Annotated[str | None, typer.Option("--source", help="Place (0, 1, ...) or name of the source, if several read Kafka.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="Another batch than the last committed one.")] = None,
) -> None:
    """Print a streaming query's offsets as startingOffsets takes them, to start another query there.

    They are those of the last committed batch.  A batch that was planned after it is read again by the new query:
    what it may have written already is written once more, and nothing is skipped.  A query that keeps its checkpoint
    needs none of this: change its format from kafka to tolerantkafka, or back, and start it.
    """
    from spark_integration.reading.checkpoint import read_checkpoint, starting_offsets

    found = read_checkpoint(checkpoint)
    chosen = found.choose(batch)
    held = found.read(chosen)
    taken, text = starting_offsets(held, source, f"Batch {chosen} of {found.location}")
    typer.echo(text)
    state = "committed" if chosen in found.committed else "planned, not committed"
    others = ", ".join(name for name in held if name != taken)
    sources = f"source {taken}" + (f", without {others}" if others else "")
    typer.echo(f"tolerant-kafka: the end of batch {chosen} of {found.location}, {state}, {sources}", err=True)
    if after := [number for number in found.planned if number > chosen and number not in found.committed]:
        typer.echo(f"tolerant-kafka: batch {after[0]} was planned and not committed; it will be read again", err=True)


@app.command()
def translate(
    target: _Target,
    link: _LinkName = "default",
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of the source.")] = None,
    partition: Annotated[int, typer.Option("--partition", min=0)] = 0,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Offset of the source.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Consumer group of the source: all that it has committed.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="HOST:PORT", help="Where --group has committed.")] = None,
    commit: Annotated[bool, typer.Option("--commit", help="Commit for the same group on the target; it must be idle there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --commit: also backwards.")] = False,
    back: Annotated[bool, typer.Option("--back", help="--topic and --offset are the target's: translate to the source's.")] = False,
    as_json: _Json = False,
    source_properties: _SourceProperties = None,
    target_properties: _TargetProperties = None,
) -> None:
    """Translate offsets of a link that was mirrored with translated offsets, exactly.

    A consumer that goes on at a translated offset reads each record once.  Exit code 1: an offset is not on the target
    (not copied yet, deleted there, or its partition is not mirrored); then its place says so.
    """
    from tolerant_client.mirror import translate as translation

    is_group = group is not None
    if is_group == (topic is not None and offset is not None) or is_group != (source is not None):
        raise OptionError("Give either --topic and --offset, or --group and --source")
    if commit and not is_group or back and is_group or force and not commit:
        raise OptionError("--commit goes with --group, --force with --commit, --back with --topic and --offset")
    committed: list[translation.GroupCommit] = []
    with RawCluster(kafka_python_config(_properties(target, target_properties)), name="target") as there:
        if group is not None and source is not None:
            origin = RawCluster(kafka_python_config(_properties(source, source_properties)), there.net, name="source")
            try:
                found = there.run(translation.translate_group, origin, there, link, group)
            finally:
                origin.close()
        else:
            assert topic is not None and offset is not None
            way = translation.translate_back if back else translation.translate
            found = there.run(way, there, link, {TopicPartition(topic, partition): offset})
        if commit and group is not None:
            # As a closure: run() passes no keyword arguments on.
            async def move() -> list[translation.GroupCommit]:
                return await translation.commit_group(there, group, found.values(), is_forced=force)

            committed = there.run(move)
    _print_translations(found, committed, as_json)
    raise typer.Exit(0 if all(one.is_exact for one in found.values()) else 1)


def _print_translations(found: Any, committed: Any, as_json: bool) -> None:
    by_target = {one.target: one for one in committed}
    rows = []
    for one in sorted(found.values(), key=lambda one: one.partition):
        row = {"topic": one.partition.topic, "partition": one.partition.partition, "offset": one.offset, "place": "not-mirrored"}
        if one.found is not None:
            row |= {"target_topic": one.target.topic, "target_offset": one.found.translated, "place": one.found.place.value}
            row["position"] = one.found.position
        if one.target in by_target:
            row |= {"committed": by_target[one.target].is_written, "before": by_target[one.target].before}
        rows.append(row)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    columns = ["topic", "partition", "offset", "target_topic", "target_offset", "place", "position"]
    columns += ["committed", "before"] if committed else []
    table = Table(*(name.replace("_", " ") for name in columns))
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in columns))
    Console().print(table)


@app.command()
def demo(
    records: Annotated[int, typer.Option("--records", min=1000, help="Records to mirror.")] = 200_000,
    as_json: _Json = False,
) -> None:
    """Mirror between two clusters of its own, through a proxy that spoils 1 answer in 50."""
    from spark_integration.mirroring.demo import run_demo

    result = run_demo(records, is_quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json()))
    raise typer.Exit(0 if result.is_proved else 1)


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
    typer.echo(f"{verdict}: {report.records:,} records compared in {report.seconds:.1f} s{behind}")


def _properties(servers: str, path: Path | None) -> dict[str, str]:
    """Java client properties: those of the file, and the servers of the command line."""
    properties: dict[str, str] = {}
    if path is not None:
        with path.open("rb") as file:
            properties.update(javaproperties.load(file))
    properties["bootstrap.servers"] = servers
    return properties


def main() -> None:
    """Runs the command; every error is one sentence on standard error."""
    # kafka-python logs each lost connection as an error; what matters is said by our errors.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("tolerant_client").setLevel(logging.CRITICAL)
    try:
        app()
    except KafkaError as error:
        text = str(error).removeprefix(f"{type(error).__name__}: ")
        typer.echo(f"tolerant-kafka: {text}", err=True)
        sys.exit(2 if isinstance(error, (OptionError, ClusterStartError, ClusterUnreachableError)) else 1)


if __name__ == "__main__":
    main()
