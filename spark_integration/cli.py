"""The command tolerant-kafka: mirror, verify, offsets, demo.

Exit codes: 0 done (verify: identical), 1 failed on the way (verify: different),
2 could not start (verify: could not compare), 130 interrupted.
"""

from __future__ import annotations

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
from rich.console import Console
from rich.table import Table

from spark_integration.security.kafka_config import kafka_python_config
from spark_integration.mirroring.watch import LinkWatch
from tolerant_client.errors import ClusterUnreachableError, OptionError, TolerantClientError
from tolerant_client.mirror.verify import VerifyReport, verify as verify_clusters
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
    source_properties: _SourceProperties = None,
    target_properties: _TargetProperties = None,
) -> None:
    """Copy topics to another cluster, every record at the same offset."""
    from spark_integration.mirroring import mirror_job  # Spark is imported by the one command that needs it

    settings = mirror_job.MirrorSettings(
        _properties(source, source_properties), _properties(target, target_properties), topics, link, once, tasks
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    started = time.monotonic()
    prepared = mirror_job.prepare(settings)
    is_shown = not as_json and sys.stderr.isatty()
    with LinkWatch(
        settings.source, settings.target, prepared.ends, is_once=once, is_shown=is_shown, metrics=metrics
    ) as watch:
        mirror_job.run(settings, prepared, stopping.is_set)
    seconds = time.monotonic() - started
    names = sorted({p.topic for p in prepared.ends})
    if as_json:
        typer.echo(json.dumps({"records": watch.copied, "seconds": round(seconds, 3), "topics": names}))
    else:
        typer.echo(f"{watch.copied:,} records of {len(names)} topics copied in {seconds:.1f} s")


@app.command()
def verify(
    source: _Source,
    target: _Target,
    topics: _Topics,
    as_json: _Json = False,
    source_properties: _SourceProperties = None,
    target_properties: _TargetProperties = None,
) -> None:
    """Compare two clusters offset by offset."""
    with RawCluster(kafka_python_config(_properties(source, source_properties)), name="source") as first:
        second = RawCluster(kafka_python_config(_properties(target, target_properties)), first.net, name="target")
        try:
            report = first.run(verify_clusters, first, second, topics)
        finally:
            second.close()
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        print_report(report)
    raise typer.Exit(0 if report.identical else 1)


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
    """A row for each topic, and one for each partition that differs."""
    table = Table("topic", "partitions", "source end", "identical until", "first difference")
    by_topic: dict[str, list[Any]] = {}
    for part in report.partitions:
        by_topic.setdefault(part.topic, []).append(part)
    for topic, parts in by_topic.items():
        wrong = [p for p in parts if p.first_difference is not None]
        if not wrong:
            ends = sum(p.source_end for p in parts)
            table.add_row(topic, str(len(parts)), f"{ends:,} (all)", "the end", "none")
        for p in wrong:
            found = f"offset {p.first_difference.offset}: {p.first_difference.reason}"
            table.add_row(f"{topic}-{p.partition}", "1", f"{p.source_end:,}", f"{p.identical_until:,}", found)
    Console().print(table)
    verdict = "identical" if report.identical else "DIFFERENT"
    typer.echo(f"{verdict}: {report.records:,} records compared in {report.seconds:.1f} s")


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
