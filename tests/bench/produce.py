"""Our KafkaProducer beside stock kafka-python's: the same settings, in pairs of processes, without faults.

    python tests/bench/produce.py [--pairs 6] [--sizes 100,1000] [--codecs none,lz4] [--acks idempotent,plain]

Ratios are ours to stock: a rate above 1 is faster, a CPU time above 1 costs more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from client_process import Job
from clients import PARTITIONS, Topics
from figures import Figure, save
from pairs import Pairs, run_pairs
from rich.console import Console
from rich.table import Table

from tolerant_client.testing import KafkaCluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--records", type=int, help="default: 200,000 of up to 500 B, 60,000 of larger ones")
    parser.add_argument("--sizes", type=lambda text: [int(part) for part in text.split(",")], default=[100, 1000])
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["none", "lz4"])
    parser.add_argument("--acks", type=lambda text: text.split(","), default=["idempotent", "plain"])
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a run")
    parser.add_argument("--json", type=Path, default=Path(tempfile.gettempdir(), "bench-produce.json"))
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    how = f"ours : stock, median (middle half) of {options.pairs} pairs"
    table = Table(title=f"Producing to {PARTITIONS} partitions, {how}")
    for column in ("records", "codec", "producer", "stock k rec/s", "stock CPU us/rec", "rate", "CPU per record"):
        table.add_column(column)
    kept: list[Figure] = []
    with KafkaCluster(broker_config={"log.segment.delete.delay.ms": "1000"}, heap="1g", java_options=()) as cluster:
        topics = Topics(cluster.bootstrap_servers)
        for size in options.sizes:
            records = options.records or (200_000 if size <= 500 else 60_000)
            for codec in options.codecs:
                for acks in options.acks:
                    topic = f"written-{size}-{codec}-{acks}"
                    topics.create(topic)
                    job = Job(
                        client="",
                        do="produce",
                        servers=cluster.bootstrap_servers,
                        topic=topic,
                        records=records,
                        held=records,
                        partitions=PARTITIONS,
                        seconds=options.seconds,
                        sizes=(size, size),
                        options={
                            "enable_idempotence": acks == "idempotent",
                            "compression_type": None if codec == "none" else codec,
                        },
                        is_bare=True,
                    )
                    pairs: Pairs = run_pairs(job, "ours", "stock", options.pairs)
                    topics.delete(topic)
                    kept += pairs.figures("produce", f"{size} B, {codec}, {acks}")
                    row = f"{pairs.base_rate / 1e3:,.1f}", f"{pairs.base_cpu:,.1f}", str(pairs.rate), str(pairs.cpu)
                    table.add_row(f"{records:,} x {size} B", codec, acks, *row)
                    console.print(f"{topic}: rate {pairs.rate}, CPU {pairs.cpu}", highlight=False)
                    save(options.json, kept)
    console.print(table)
    console.print(f"All figures: {options.json}", highlight=False)


if __name__ == "__main__":
    main()
