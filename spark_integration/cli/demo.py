"""The command `tolerant-kafka demo`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from spark_integration.cli.exits import require_spark
from spark_integration.cli.options import Json
from tolerant_client.ops.printing import echo_json


def demo(
    records: Annotated[int, typer.Option("--records", metavar="N", min=1000, help="Records to mirror.")] = 200_000,
    as_json: Json = False,
) -> None:
    """Mirror between two clusters that it starts, through proxies that inject faults into 1 response in 4."""
    require_spark()
    from spark_integration.mirror.demo import run_demo

    result = run_demo(records, is_quiet=as_json)
    if as_json:
        echo_json(asdict(result))
    raise typer.Exit(0 if result.is_proved else 1)
