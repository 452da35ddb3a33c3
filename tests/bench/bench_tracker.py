"""What the tracker and its network layer cost without faults: stock clients on ours beside stock clients on stock's.

    python tests/bench/bench_tracker.py [--pairs 10] [--records 500000]

Everything above the network layer is stock kafka-python's in both, each run is a process of its own, and the ratio
to quote is that of the CPU seconds, because the broker shares the machine.  "small" makes a request of every few
records, so that what a request costs is not hidden by its records.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from client_process import LAYER, Job
from clients import PARTITIONS, Topics
from figures import Figure, save
from pairs import run_pairs
from rich.console import Console
from rich.table import Table

from tolerant_client.testing import KafkaCluster

CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "consume": ("consume", 1.0, {}),
    "consume, small": ("consume", 0.1, {"max_partition_fetch_bytes": 2_000, "fetch_max_bytes": 2_000}),
    "produce": ("produce", 0.3, {}),
    "produce, small": ("produce", 0.1, {"batch_size": 500}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--cases", type=lambda text: text.split("|"), default=list(CASES), help="|".join(CASES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kept: list[Figure] = []
    console = Console(width=None if sys.stdout.isatty() else 150)
    how = f"median (middle half) of {options.pairs} pairs"
    table = Table(title=f"Our network layer : stock's under stock clients, {how}")
    for column in ("what", "stock k rec/s", "stock CPU us/rec", "rate", "CPU per record"):
        table.add_column(column)
    with KafkaCluster(broker_config={"log.segment.delete.delay.ms": "1000"}, heap="1g", java_options=()) as cluster:
        topics = Topics(cluster.bootstrap_servers)
        for topic in ("read", "written"):
            topics.create(topic)

        def job(do: str, share: float, client_options: dict[str, Any]) -> Job:
            records = int(options.records * share)
            return Job(
                client="",
                do=do,
                servers=cluster.bootstrap_servers,
                topic="read" if do == "consume" else "written",
                records=records,
                held=options.records * 3 // 2 if do == "consume" else records,
                partitions=PARTITIONS,
                seconds=120.0,
                sizes=(100, 100),
                options=client_options,
                is_bare=True,
            )

        topics.fill(job("consume", 1.0, {}))
        for case in options.cases:
            pairs = run_pairs(job(*CASES[case]), LAYER, "stock", options.pairs)
            row = f"{pairs.base_rate / 1e3:,.1f}", f"{pairs.base_cpu:,.1f}", str(pairs.rate), str(pairs.cpu)
            table.add_row(case, *row)
            kept += pairs.figures("tracker", case, LAYER)
            save(options.json, kept)
            console.print(f"{case}: rate {pairs.rate}, CPU {pairs.cpu}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
