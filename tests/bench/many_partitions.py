"""MirrorMaker 2 and our mirror on very many partitions: how soon, how idle, how large.

    python tests/bench/many_partitions.py [--topics 100] [--partitions 100] [--peers mm2,spark] [--empty] [--idle 30]

Each partition has one record.  A peer finds its topics on the target; with --empty it creates them, and its times include
that.  MirrorMaker 2 asks for all of them in one operation, which a KRaft controller refuses from 10,000 partitions on
(QuorumController.java, MAX_RECORDS_PER_USER_OP), and then copies nothing.
Prints the seconds to the first record and to all records on the target, then, with nothing left to copy, the share of
a core and the memory (proportional set size) of all the peer's processes, and the brokers' share of a core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, save
from kafka.errors import NotLeaderForPartitionError
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.structs import TopicPartition
from peers import BenchError, Launch, Pair, Running, mm2_properties
from rich.console import Console
from rich.table import Table

from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.records.record_batch import Record, encode_batch

PREFIX = "wide-"
_TOPICS_AT_ONCE = 10
_SETTLED_S = 20.0  # from the last record to the idle measurement: compilers and caches calm down


@dataclass(frozen=True)
class WideRun:
    """Seconds from the start of the process; shares of one core; bytes."""

    peer: str
    partitions: int
    first_s: float
    all_s: float
    idle_cpu: float
    idle_brokers_cpu: float
    memory: int


def names_of(topics: int) -> list[str]:
    return [f"{PREFIX}{number:03}" for number in range(topics)]


def fill(pair: Pair, topics: int, partitions: int) -> None:
    """Creates the source topics and writes one record to each partition."""
    names = names_of(topics)
    with pair.clusters() as (source, _):

        async def write(some: list[str]) -> None:
            await create_topics(source, [TopicSpec(name, partitions, 1) for name in some])
            left = {TopicPartition(name, index) for name in some for index in range(partitions)}

            async def append() -> None:
                for node, members in (await source.by_leader(left)).items():
                    record = Record(0, int(time.time() * 1000), None, b"x" * 100)
                    batches = {p: memoryview(bytearray(encode_batch([record]))) for p in members}
                    produced = await source.produce(node, batches)
                    left.difference_update(part.partition for part in produced if not part.error_code)
                if left:
                    await source.refresh()
                    raise NotLeaderForPartitionError(f"{len(left)} partitions have no leader yet")

            await source.insist("writing a record to each partition", append)

        for start in range(0, topics, _TOPICS_AT_ONCE):
            source.run(write, names[start : start + _TOPICS_AT_ONCE])


def delete_all(pair: Pair) -> None:
    """Deletes every topic of the target but the brokers' own, and waits until they have gone."""
    with pair.clusters() as (_, target):
        state = DeleteTopicsRequest.DeleteTopicState

        async def delete() -> None:
            names = [name for name in await target.partitions() if not name.startswith("__")]
            for start in range(0, len(names), _TOPICS_AT_ONCE):
                some = [state(name=name, topic_id=None) for name in names[start : start + _TOPICS_AT_ONCE]]
                await target.send(DeleteTopicsRequest(topics=some, timeout_ms=60_000))

        target.run(delete)
        while any(not name.startswith("__") for name in target.run(target.partitions)):
            time.sleep(1)
    time.sleep(5)


def create(pair: Pair, prefix: str, topics: int, partitions: int) -> None:
    """Creates what a peer would create on the target, whose names begin with `prefix`."""
    with pair.clusters() as (_, target):
        specs = [TopicSpec(name.replace(PREFIX, prefix), partitions, 1) for name in names_of(topics)]
        target.run(create_topics, target, specs)


def launch(pair: Pair, name: str, run: int) -> tuple[Launch, str]:
    """The command of a peer, and what its target topics begin with."""
    pattern = f"{PREFIX}.*"
    if name == "mm2":
        alias = f"source{run}"
        # Our plain mirror has none.
        duties = dict.fromkeys(("emit.heartbeats.enabled", "emit.checkpoints.enabled"), "false")
        properties = mm2_properties(alias, pair.source, pair.target, pattern, {"tasks.max": "2", **duties})
        path = pair.folder / f"wide-{run}.properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))
        command = [*pair.java("-Xmx2g", "org.apache.kafka.connect.mirror.MirrorMaker"), str(path)]
        return Launch("mm2", command, "", 0.1, ends_itself=False, is_ours=False), f"{alias}.{PREFIX}"
    if name != "spark":
        raise BenchError(f"There is no peer {name!r}: choose from mm2, spark")
    command = [sys.executable, "-m", "spark_integration.cli.app", "mirror", "--source", pair.source]
    command += ["--target", pair.target, "--topics", pattern]
    return Launch("spark", command, "", 0.1, ends_itself=False, is_ours=True), PREFIX


def count(target: Cluster, prefix: str, known: dict[TopicPartition, int], wanted: int) -> int:
    """Records on the target so far; partitions that are all there are not looked up again."""

    async def read() -> int:
        if len(known) < wanted:
            for name, numbers in (await target.partitions()).items():
                if name.startswith(prefix):
                    known.update(dict.fromkeys((TopicPartition(name, number) for number in numbers), LATEST))
        return sum((await target.list_offsets(known)).values()) if known else 0

    found: int = target.run(read)
    return found


def measure(
    pair: Pair, how: Launch, prefix: str, run: int, partitions: int, idle_s: float, timeout_s: float
) -> WideRun:
    name = how.name
    known: dict[TopicPartition, int] = {}
    with pair.clusters() as (_, target), Running(how, pair.folder, run) as peer:
        first = 0.0
        found = 0
        while found < partitions:
            found = count(target, prefix, known, partitions)
            now = time.monotonic() - peer.started
            first = first or (now if found else 0.0)
            if now > timeout_s or not peer.is_alive():
                raise BenchError(
                    f"{name} copied {found:,} of {partitions:,} records in {now:.0f} s; its output is {peer.tail()}"
                )
            time.sleep(0.2)
        settle_until = time.monotonic() + _SETTLED_S
        while time.monotonic() < settle_until:
            peer.cpu()
            time.sleep(0.2)
        began, cpu, brokers = time.monotonic(), peer.cpu(), pair.broker_cpu()
        while time.monotonic() < began + idle_s:
            peer.cpu()
            time.sleep(0.2)
        span = time.monotonic() - began
        return WideRun(
            name, partitions, first, now, (peer.cpu() - cpu) / span, (pair.broker_cpu() - brokers) / span, peer.memory()
        )


def wide_table(runs: Sequence[WideRun]) -> Table:
    table = Table(title=f"{runs[0].partitions:,} partitions with one record each")
    for column in ("peer", "first record, s", "all records, s", "idle, % of a core", "brokers then, %", "memory, MB"):
        table.add_column(column, justify="left" if column == "peer" else "right")
    for run in runs:
        table.add_row(
            run.peer,
            f"{run.first_s:.1f}",
            f"{run.all_s:.1f}",
            f"{run.idle_cpu:.1%}",
            f"{run.idle_brokers_cpu:.1%}",
            f"{run.memory / 1e6:,.0f}",
        )
    return table


def figures_of(runs: Sequence[WideRun]) -> Iterator[Figure]:
    units = {
        "first_s": "seconds to the first record",
        "all_s": "seconds to all records",
        "idle_cpu": "idle, share of a core",
        "idle_brokers_cpu": "brokers meanwhile, share of a core",
        "memory": "bytes of memory",
    }
    for run in runs:
        row = f"{run.partitions:,} partitions"
        for name, unit in units.items():
            values = (float(getattr(run, name)),)
            yield Figure(table="partitions", row=row, peer=run.peer, unit=unit, values=values, is_cost=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["mm2", "spark"])
    parser.add_argument("--empty", action="store_true", help="start with an empty target")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one peer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs: list[WideRun] = []
    config = {"log.cleaner.enable": "false", "log.initial.task.delay.ms": "1000"}
    with (
        tempfile.TemporaryDirectory(prefix="bench-wide-") as folder,
        Pair(Path(folder), heap="2g", source_config=config) as pair,
    ):
        fill(pair, options.topics, options.partitions)
        for number, name in enumerate(options.peers):
            if number:
                delete_all(pair)
            how, prefix = launch(pair, name, number)
            if not options.empty:
                create(pair, prefix, options.topics, options.partitions)
            run = measure(pair, how, prefix, number, options.topics * options.partitions, options.idle, options.timeout)
            runs.append(run)
            print(run, flush=True)
    Console(width=None if sys.stdout.isatty() else 150).print(wide_table(runs))
    save(options.json, figures_of(runs))


if __name__ == "__main__":
    main()
