"""The command `tolerant-kafka mirror`."""

from __future__ import annotations

import enum
import json
import signal
import sys
import threading
import time
from typing import Annotated

import typer

from spark_integration.commands.options import client_properties, Json, LinkName, Source, SourceProperties, Target, TargetProperties, Topics
from spark_integration.mirroring.watch import LinkWatch
from tolerant_client.mirror.losses import MirrorPolicy


class Offsets(str, enum.Enum):
    IDENTICAL = "identical"
    TRANSLATED = "translated"


GapFill = Annotated[
    list[str],
    typer.Option(
        "--gap-fill",
        metavar="[REGEX=]auto|transactions|markers|records",
        help="How offsets without a committed record are taken on the target.",
    ),
]
OnLoss = Annotated[
    list[str],
    typer.Option(
        "--on-loss", metavar="[REGEX=]fail|continue|pause", help="When the source no longer has what should be copied."
    ),
]
OnOversized = Annotated[
    list[str],
    typer.Option(
        "--on-oversized", metavar="[REGEX=]fail|continue|pause", help="When a record is above the target's max.message.bytes."
    ),
]


def mirror(
    source: Source,
    target: Target,
    topics: Topics,
    once: Annotated[bool, typer.Option("--once", help="Stop at the log ends seen at the start.")] = False,
    as_json: Json = False,
    link: LinkName = "default",
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Spark tasks that share the partitions.")] = 1,
    metrics: Annotated[str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics.")] = None,
    offsets: Annotated[Offsets, typer.Option("--offsets", help="translated: for topics with other writers.")] = Offsets.IDENTICAL,
    gap_fill: GapFill = [],
    on_loss: OnLoss = [],
    on_oversized: OnOversized = [],
    source_properties: SourceProperties = None,
    target_properties: TargetProperties = None,
) -> None:
    """Copy topics to another cluster, every record at the same offset."""
    from spark_integration.mirroring import mirror_job  # Spark is imported by the one command that needs it

    settings = mirror_job.MirrorSettings(
        client_properties(source, source_properties),
        client_properties(target, target_properties),
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
    is_identical = offsets is Offsets.IDENTICAL
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
