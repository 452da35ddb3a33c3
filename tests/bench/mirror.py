"""MirrorMaker 2 and our mirror, one after the other on the same two real brokers.

    python tests/bench/mirror.py [--records N] [--sizes 100,1000] [--codecs none,lz4] [--peers mm2,engine,spark]
    python tests/bench/mirror.py --data nasty [--peers mm2,engine,engine:records]
    python tests/bench/mirror.py --latency

--data names what the topics are like (nasty: all but plain): plain, transactions-N (of N records, every 20th
aborted), compacted-N (the cleaner left one record in N), single-records (a batch each).  "engine:records" is the
engine with gap.fill=records.

Prints a table with ratios to MM2 and keeps all raw figures (--json).  Steady
state is from the first record readable on the target until all are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nasty_data
from figures import Figure, save
from latency import LatencyRun, measure_latency
from peers import NAMES, BenchError, Launch, LogEnd, Pair, Running, Span
from rich.console import Console
from rich.table import Table

PARTITIONS = 4
# How many records are written; fewer are copied where some are aborted or compacted away.
NASTY_RECORDS = {
    "transactions-10": 100_000,
    "transactions-100": 600_000,
    "transactions-1000": 1_000_000,
    "compacted-2": 1_000_000,
    "compacted-10": 2_000_000,
    "single-records": 200_000,
}
_LATENCY_COLUMNS = ("p50_ms", "p99_ms", "p999_ms", "max_ms", "cpu_percent", "brokers_cpu_percent", "others_percent")
DISTURBED = 0.15  # of the machine's time for processes that are no part of the measurement

# The ways of filling gaps that make sense: compacted topics and dense ones have no other than "auto".
NASTY_PEERS = {"transactions": ["mm2", "engine:transactions", "engine:markers", "engine:records"]}


@dataclass(frozen=True)
class Data:
    """What a source topic is filled with."""

    size: int
    codec: str
    records: int
    kind: str = "plain"

    def __str__(self) -> str:
        return f"{self.records:,} x {self.size:,} B, {self.codec if self.kind == 'plain' else self.kind}"


@dataclass(frozen=True)
class CopyRun:
    """One copy of a topic; seconds, and CPU seconds of the peer's processes.

    `steady_*` is the span from the first sample with records on the target to
    the one with all; `whole_*` also has start-up and, where the peer ends by
    itself, its end.  `others` is the share of the machine that went to
    processes other than the peer, the brokers and the benchmark.
    """

    peer: str
    data: str
    size: int
    repeat: int
    records: int
    startup_s: float
    startup_cpu: float
    steady_records: int
    steady_s: float
    steady_cpu: float
    whole_s: float
    whole_cpu: float
    brokers_cpu: float
    others: float
    output: str

    @property
    def rate(self) -> float:
        return self.steady_records / self.steady_s

    @property
    def rate_per_cpu(self) -> float:
        return self.steady_records / self.steady_cpu


def measure_copy(
    pair: Pair, launch: Launch, data: Data, repeat: int, topic: str, timeout_s: float, source_end: int | None = None
) -> CopyRun:
    """Runs one peer until its copy is complete, checks the copy and deletes it.

    `source_end` is the sum of the source's log ends where that is not the number of records: ours ends there.
    """
    complete = source_end if launch.is_ours and source_end is not None else data.records
    os.sync()  # what the run before left to be written is not this one's
    span = Span(pair)
    with pair.clusters() as (_, target), Running(launch, pair.folder, repeat) as peer:
        log = LogEnd(target, launch.target_topic)
        first: tuple[float, float, int] | None = None
        found = 0
        while found < complete:
            found = log.read()
            cpu, now = peer.cpu(), time.monotonic()
            if found and first is None:
                first = (now, cpu, found)
            if now > peer.started + timeout_s or (peer.is_over() and log.read() < complete):
                raise BenchError(f"{launch.name} copied {found:,} of {complete:,} offsets; its output is {peer.tail()}")
            time.sleep(launch.poll_s)
        assert first is not None
        while launch.ends_itself and not peer.is_over():
            time.sleep(0.01)
        whole_s, whole_cpu = (time.monotonic(), peer.cpu()) if launch.ends_itself else (now, cpu)
        _, brokers_cpu, others = span.read(peer.cpu())
        if first[2] >= complete:
            raise BenchError(
                f"{launch.name} had copied all {complete:,} offsets when the first was seen: give more --records"
            )
    if launch.is_ours:
        pair.refuse_difference(topic)
    else:
        with pair.clusters() as (_, target):
            found = LogEnd(target, launch.target_topic).read()
        if found != complete:
            raise BenchError(f"{launch.name} made {found:,} records out of {complete:,}")
    pair.delete(launch.target_topic)
    return CopyRun(
        peer=launch.name,
        data=str(data),
        size=data.size,
        repeat=repeat,
        records=data.records,
        startup_s=first[0] - peer.started,
        startup_cpu=first[1],
        steady_records=data.records * (complete - first[2]) // complete,
        steady_s=now - first[0],
        steady_cpu=cpu - first[1],
        whole_s=whole_s - peer.started,
        whole_cpu=whole_cpu,
        brokers_cpu=brokers_cpu,
        others=others,
        output=peer.tail() if launch.is_ours else "",
    )


def measure_copies(pair: Pair, options: argparse.Namespace, keep: Callable[[CopyRun], None]) -> None:
    """All peers on all data, in turns: each repeat begins with another peer."""
    aliases = iter(range(1_000_000))
    for data, topic in _loaded(pair, options):
        source_end = None if data.kind == "plain" else pair.source_end(topic)
        peers = options.peers or NASTY_PEERS.get(data.kind.partition("-")[0], ["mm2", "engine"])
        for repeat in range(options.repeat):
            turn = repeat % len(peers)
            for name in peers[turn:] + peers[:turn]:
                alias = next(aliases)
                launch = pair.launch(name, topic, alias, codec=data.codec)
                try:
                    keep(measure_copy(pair, launch, data, alias, topic, options.timeout, source_end))
                except BenchError as error:
                    if data.kind == "plain":
                        raise
                    # One way of filling gaps may be hopeless on one kind of data; the others are still measured.
                    print(f"{data} {name}: NOT MEASURED, {error}", flush=True)
                    pair.delete(launch.target_topic)
        pair.delete(topic, on_source=True)


def _loaded(pair: Pair, options: argparse.Namespace) -> Iterator[tuple[Data, str]]:
    """The topics that are measured, each once it has been filled."""
    for kind in options.data:
        for size in options.sizes:
            for codec in options.codecs if kind == "plain" else ["none"]:
                if kind == "plain":
                    data = Data(size, codec, options.records or (5_000_000 if size < 500 else 1_000_000))
                    topic = f"bench-{size}-{codec}"
                    pair.create(topic, PARTITIONS)
                    pair.load(topic, data.records, size, codec)
                    if (loaded := pair.source_end(topic)) != data.records:
                        raise BenchError(f"The source has {loaded:,} records instead of {data.records:,}")
                else:
                    topic = f"bench-{kind}-{size}"
                    wanted = options.records or NASTY_RECORDS[kind]
                    committed = nasty_data.load(pair.source, topic, kind, wanted, size, PARTITIONS)
                    data = Data(size, codec, committed, kind)
                yield data, topic


def copy_table(runs: Sequence[CopyRun], peers: Sequence[str]) -> Table:
    """Medians with [min-max] for every data and peer; ratios are those of the medians."""
    table = Table(title="Copying a topic of 4 partitions, median [min-max]")
    for column in (
        "data",
        "peer",
        "k rec/s",
        "k rec per CPU-s",
        "MB/s",
        "start s",
        "whole s",
        "whole CPU-s",
        "wall : MM2",
        "CPU : MM2",
    ):
        table.add_column(column, justify="left" if column in ("data", "peer") else "right")
    for data in dict.fromkeys(run.data for run in runs):
        base = [run for run in runs if run.data == data and run.peer == "mm2"]
        for peer in peers:
            own = [run for run in runs if run.data == data and run.peer == peer]
            if not own:
                continue
            mark = " *" if any(run.others > DISTURBED for run in own) else ""
            table.add_row(
                data,
                peer + mark,
                _spread([run.rate / 1e3 for run in own]),
                _spread([run.rate_per_cpu / 1e3 for run in own]),
                f"{statistics.median(run.rate * run.size / 1e6 for run in own):,.0f}",
                _spread([run.startup_s for run in own], ",.1f"),
                f"{statistics.median(run.whole_s for run in own):,.1f}",
                f"{statistics.median(run.whole_cpu for run in own):,.1f}",
                _ratio([run.rate for run in own], [run.rate for run in base]),
                _ratio([run.rate_per_cpu for run in own], [run.rate_per_cpu for run in base]),
            )
        table.add_section()
    table.caption = f"* in one run or more, other processes had over {DISTURBED:.0%} of the machine"
    return table


def latency_table(runs: Sequence[LatencyRun]) -> Table:
    """Milliseconds from append on the source to readable on the target."""
    table = Table(title="Append on the source to readable on the target, ms, median [min-max]")
    for column in ("peer", "p50", "p99", "p99.9", "max", "CPU % of a core", "brokers %", "others %"):
        table.add_column(column, justify="left" if column == "peer" else "right")
    for peer in dict.fromkeys(run.peer for run in runs):
        own = [run for run in runs if run.peer == peer]
        columns = [[getattr(run, name) for run in own] for name in _LATENCY_COLUMNS]
        table.add_row(peer, *(_spread(values, ",.2f") for values in columns))
    return table


def _spread(values: Sequence[float], form: str = ",.0f") -> str:
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} [{min(values):{form}}-{max(values):{form}}]"


def _ratio(values: Sequence[float], base: Sequence[float]) -> str:
    return f"{statistics.median(values) / statistics.median(base):.2f}" if base else "-"


def figures_of(copies: Sequence[CopyRun], latencies: Sequence[LatencyRun]) -> Iterator[Figure]:
    """A cell for each peer and kind of data, and for each peer's percentiles."""
    for data, peer in dict.fromkeys((run.data, run.peer) for run in copies):
        own = [run for run in copies if (run.data, run.peer) == (data, peer)]
        for unit, values, is_cost in (
            ("records/s", [run.rate for run in own], False),
            ("records per CPU-second", [run.rate_per_cpu for run in own], False),
            ("seconds to the first record", [run.startup_s for run in own], True),
        ):
            yield Figure(table="copy", row=data, peer=peer, unit=unit, values=tuple(values), is_cost=is_cost)
    for peer in dict.fromkeys(run.peer for run in latencies):
        for name in _LATENCY_COLUMNS[:4]:
            values = [getattr(run, name) for run in latencies if run.peer == peer]
            row = f"append to readable, {name.removesuffix('_ms').replace('p999', 'p99.9')}"
            yield Figure(table="latency", row=row, peer=peer, unit="ms", values=tuple(values), is_cost=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, help="default: 5,000,000 of up to 500 B, 1,000,000 of larger ones")
    parser.add_argument("--data", type=lambda text: text.split(","), default=["plain"])
    sizes = {
        "type": lambda text: [int(part) for part in text.split(",")],
        "help": "default: 100,1000; 100 for nasty data",
    }
    parser.add_argument("--sizes", **sizes)
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["none", "lz4"])
    peers = f"default: {','.join(NAMES)}; for nasty data those that make sense"
    parser.add_argument("--peers", type=lambda text: text.split(","), help=peers)
    parser.add_argument("--repeat", type=int, help="default: 3, and 1 for nasty data")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one copy")
    parser.add_argument("--json", type=Path, default=Path(tempfile.gettempdir(), "bench-mirror.json"))
    parser.add_argument("--latency", action="store_true", help="measure latency instead of throughput")
    parser.add_argument("--rate", type=int, default=1000, help="with --latency: records a second")
    parser.add_argument("--warm-up", type=float, default=10.0, help="with --latency: seconds at full rate before")
    parser.add_argument("--seconds", type=float, default=20.0, help="with --latency: how long")
    options = parser.parse_args(arguments)
    if options.data == ["nasty"]:
        options.data = list(NASTY_RECORDS)
    is_plain = options.data == ["plain"]
    options.sizes = options.sizes or ([100, 1000] if is_plain else [100])
    options.repeat = options.repeat or (3 if is_plain else 1)
    options.peers = options.peers or (list(NAMES) if is_plain else [])
    if unknown := set(options.data) - {"plain", *NASTY_RECORDS}:
        parser.error(f"--data {', '.join(sorted(unknown))}: choose from plain, {', '.join(NASTY_RECORDS)}")
    if unknown := {peer.partition(":")[0] for peer in options.peers} - set(NAMES):
        parser.error(f"--peers {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    return options


def main() -> None:
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 170)
    copies: list[CopyRun] = []
    latencies: list[LatencyRun] = []

    def keep_copy(run: CopyRun) -> None:
        copies.append(run)
        console.print(
            f"{run.data} {run.peer}: {run.rate:,.0f} rec/s, {run.rate_per_cpu:,.0f} per CPU-s, first after"
            f" {run.startup_s:.1f} s, whole {run.whole_s:.1f} s and {run.whole_cpu:.1f} CPU-s; others {run.others:.0%}",
            highlight=False,
        )

    def keep_latency(run: LatencyRun) -> None:
        latencies.append(run)
        console.print(
            f"{run.peer}: p50 {run.p50_ms:.2f} ms, p99 {run.p99_ms:.2f} ms, max {run.max_ms:.1f} ms; others {run.others_percent:.0f} %",
            highlight=False,
        )

    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-mirror-") as folder,
            Pair(Path(folder), source_config=nasty_data.SOURCE_CONFIG) as pair,
        ):
            if options.latency:
                for repeat in range(options.repeat):
                    turn = repeat % len(options.peers)
                    for name in ["direct", *options.peers[turn:], *options.peers[:turn]]:
                        keep_latency(
                            measure_latency(pair, name, repeat, options.rate, options.warm_up, options.seconds)
                        )
            else:
                measure_copies(pair, options, keep_copy)
    finally:
        raw = {"copies": [asdict(run) for run in copies], "latencies": [asdict(run) for run in latencies]}
        save(options.json, figures_of(copies, latencies), raw)
        if copies:
            console.print(copy_table(copies, list(dict.fromkeys(run.peer for run in copies))))
        if latencies:
            console.print(latency_table(latencies))
        console.print(f"All figures: {options.json}", highlight=False)


if __name__ == "__main__":
    main()
