"""How long a send takes with acks="mirrored", beside acks="all" and stock kafka-python's while the same mirror runs.

    python tests/bench/mirrored.py [--rates 100,1000] [--seconds 10] [--rounds 3]

Records of 100 bytes over 4 partitions at an even rate; the peers take turns.  All record their own clock at send() and in the
callback.  The mirror is the engine without Spark.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import kafka
from peers import BenchError, Pair
from rich.console import Console
from rich.table import Table

import tolerant_client
from tolerant_client.errors import OptionError

_PARTITIONS, _LINK, _READY_S = 4, "bench", 60.0
PEERS = ("stock, acks=all", "acks=all", "acks=mirrored")


def producer(peer: str, pair: Pair) -> Any:
    if peer == PEERS[0]:
        return kafka.KafkaProducer(bootstrap_servers=pair.source, acks="all")
    standby = {"bootstrap_servers": pair.target}
    return tolerant_client.KafkaProducer(
        bootstrap_servers=pair.source, standby=standby, link=_LINK, acks=peer.removeprefix("acks=")
    )


def latencies_ms(peer: str, pair: Pair, topic: str, rate: int, seconds: float) -> list[float]:
    """Of each record that was sent after the first second."""
    made = producer(peer, pair)
    took: list[float] = []
    try:
        began = time.perf_counter()
        for number in range(int(rate * (seconds + 1))):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            sent_at = time.perf_counter()
            sent = made.send(topic, b"x" * 100, partition=number % _PARTITIONS)
            if sent_at - began > 1:
                sent.add_callback(lambda _, at=sent_at: took.append(1000 * (time.perf_counter() - at)))
        made.flush(timeout=60)
    finally:
        made.close(timeout=60)
    if len(took) < rate * seconds * 0.9:
        raise BenchError(f"{peer}: only {len(took)} records were acknowledged")
    return took


def wait_for_link(pair: Pair) -> None:
    """Until the mirror has written its control."""
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            producer(PEERS[1], pair).close()
            return
        except OptionError as error:
            if time.monotonic() > deadline:
                raise BenchError(f"The mirror does not start: {error}") from error
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=lambda text: [int(rate) for rate in text.split(",")], default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    took: dict[tuple[int, str], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="mirrored-") as folder, Pair(Path(folder)) as pair:
        pair.create("sends", _PARTITIONS)
        engine = Path(__file__).with_name("engine.py")
        mirror = subprocess.Popen([sys.executable, engine, pair.source, pair.target, "sends", "86400", "auto"])
        try:
            wait_for_link(pair)
            for _ in range(options.rounds):
                for rate in options.rates:
                    for peer in PEERS:
                        took[rate, peer].append(latencies_ms(peer, pair, "sends", rate, options.seconds))
        finally:
            mirror.kill()
            mirror.wait()
    table = Table(title=f"ms from send() to its acknowledgement, medians of {options.rounds} rounds")
    for column in ("records/s", "producer", "p50", "p99", "times acks=all"):
        table.add_column(column, justify="left" if column == "producer" else "right")
    for (rate, peer), rounds in took.items():
        p50, p99 = (statistics.median(statistics.quantiles(one, n=100)[n] for one in rounds) for n in (49, 98))
        beside = statistics.median(statistics.median(one) for one in took[rate, PEERS[1]])
        table.add_row(f"{rate:,}", peer, f"{p50:.1f}", f"{p99:.1f}", f"{p50 / beside:.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
