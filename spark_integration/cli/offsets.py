"""The command `tolerant-kafka offsets`."""

from __future__ import annotations

from typing import Annotated

import typer

from tolerant_client.ops.printing import echo


def offsets(
    checkpoint: Annotated[str, typer.Argument(help="checkpointLocation of a query: a path, hdfs://..., s3://...")],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="INDEX|NAME", help="Index (0, 1, ...) or name of the source, if several read Kafka."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=0, help="This batch instead of the last committed one.")
    ] = None,
) -> None:
    """Print a streaming query's offsets as startingOffsets takes them, to start another query there.

    They are those of the last committed batch.  The new query reads a later batch, which was planned but not committed,
    again: what that batch has already written is written once more, and nothing is skipped.  A query that keeps its
    checkpoint needs none of this: change its format from kafka to tolerantkafka, or back, and start it.
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
    echo(f"tolerant-kafka: the end of batch {chosen} of {found.location}, {state}, {sources}", err=True)
    if after := [number for number in found.planned if number > chosen and number not in found.committed]:
        echo(f"tolerant-kafka: batch {after[0]} was planned and not committed; it will be read again", err=True)
