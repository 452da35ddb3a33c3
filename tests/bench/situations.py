"""What MirrorMaker 2 and our mirror make of what real sources and targets do, on real brokers.

    python tests/bench/situations.py [NAME ...] [--mirrors mm2,mm2-eos,ours] [--list]

Prints a row for each situation and mirror, and keeps them (--json).  MirrorMaker 2
has IdentityReplicationPolicy, the settings of the throughput benchmark, and looks
for topics every 5 s instead of every 600 s; "mm2-eos" is exactly-once and reads committed records only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from situation_rig import MIRRORS, Rig, Row, rig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests/, for support

import situations_source
import situations_target
from situation_list import SITUATIONS, Situation

from support.zookeeper_kafka import ZooKeeperKafka
from tolerant_client.testing import KafkaCluster

_MODULES = (situations_source, situations_target)  # they enter their situations
_BROKER = {
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "300",
    "log.retention.check.interval.ms": "1000",
    "group.coordinator.rebalance.protocols": "classic,consumer",
}
_JAVA = ("-XX:TieredStopAtLevel=1",)


def _cluster(version: str, nodes: int) -> Any:
    if version < "3":
        return ZooKeeperKafka(version)
    return KafkaCluster(version, nodes, broker_config=_BROKER, heap="384m", java_options=_JAVA)


@contextlib.contextmanager
def clusters(wanted: Situation) -> Iterator[tuple[Any, Any]]:
    with (
        _cluster(wanted.source_version, wanted.source_nodes) as source,
        _cluster("4.2.0", wanted.target_nodes) as target,
    ):
        yield source, target


def run(chosen: Sequence[Situation], mirrors: Sequence[str], keep: Callable[[Row], None]) -> None:
    """Each situation with each mirror; those that need the same clusters share them."""
    number = 0
    needs = dict.fromkeys(situation.needs for situation in chosen)
    with tempfile.TemporaryDirectory(prefix="situations-") as folder:
        for need in needs:
            mine = [situation for situation in chosen if situation.needs == need]
            with clusters(mine[0]) as (source, target):
                for situation in mine:
                    for kind in (kind for kind in mirrors if kind in situation.mirrors):
                        number += 1
                        addresses = source.bootstrap_servers, target.bootstrap_servers
                        with rig(kind, situation.name, number, Path(folder), *addresses) as made:
                            made.source_cluster, made.target_cluster = source, target
                            keep(_one(situation, made))


def _one(situation: Situation, made: Rig) -> Row:
    try:
        return situation.act(made) or made.row()
    except Exception as error:
        # The other situations are still worth their time; the row says that this one was not measured.
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Row(situation.name, made.kind, len(made.wanted), 0, 0, 0, 0, 0, 0, "NOT MEASURED", [text[:200]])


def table(rows: Sequence[Row]) -> Table:
    made = Table(title="records that a read_committed consumer sees on the target")
    counts = ("wanted", "arrived", "twice", "missing", "foreign", "filler", "offsets")
    for column in ("situation", "mirror", *counts, "state", "notes"):
        made.add_column(column, justify="left" if column in ("situation", "mirror", "state", "notes") else "right")
    for row in rows:
        found = (row.wanted, row.arrived, row.duplicates, row.missing, row.foreign, row.filler)
        made.add_row(
            row.situation, row.mirror, *(f"{n:,}" for n in found), row.offsets, row.state, "; ".join(row.notes)
        )
    return made


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="situations; all by default")
    parser.add_argument("--mirrors", type=lambda text: text.split(","), default=list(MIRRORS))
    parser.add_argument("--list", action="store_true", help="names and what they are, then end")
    parser.add_argument("--json", type=Path, default=Path(tempfile.gettempdir(), "situations.json"))
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SITUATIONS):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(SITUATIONS)}")
    if unknown := set(options.mirrors) - set(MIRRORS):
        parser.error(f"--mirrors {', '.join(sorted(unknown))}: choose from {', '.join(MIRRORS)}")
    return options


def main() -> None:
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 220)
    chosen = [SITUATIONS[name] for name in options.names or SITUATIONS]
    if options.list:
        for situation in chosen:
            console.print(f"{situation.name}: {situation.title}", highlight=False)
        return
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        console.print(
            f"{time.strftime('%H:%M:%S')} {row.situation} | {row.mirror}: {row.wanted:,} wanted, {row.arrived:,} arrived,"
            f" {row.duplicates:,} twice, {row.missing:,} missing, {row.foreign:,} foreign, {row.filler:,} filler, offsets"
            f" {row.offsets}; {row.state}; {'; '.join(row.notes)}",
            highlight=False,
            soft_wrap=True,
        )
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")

    try:
        run(chosen, options.mirrors, keep)
    finally:
        console.print(table(rows))
        console.print(f"All rows: {options.json}", highlight=False)


if __name__ == "__main__":
    main()
