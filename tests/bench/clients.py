"""Ours beside stock kafka-python, aiokafka and confluent-kafka behind one fault proxy, on a real broker.

    python tests/bench/clients.py [--records N] [--clients ours,stock] [--faults drop,reset] [--do consume,produce]

One answer in --one-in to Fetch (consuming) or Produce (acks=all, idempotent) is spoiled.  Every run is a fresh
client process; the proxy is another process.  A cell says what share of its own fault-free rate behind the same
proxy a client keeps (median over --rounds), its longest time without a record or an ack, and what the faults did to
the records; "stuck after N" is a run that its time limit ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from client_process import CLIENTS, Job, Result, values
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from figures import Figure, save
from rich.console import Console
from rich.table import Table

from tolerant_client.testing import KafkaCluster

_HERE = Path(__file__).resolve().parent
PARTITIONS = 4
NONE = "none"
NOT_LEADER_OR_FOLLOWER = 6
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "drop": ("Drop", {}),
    "duplicate": ("Duplicate", {}),
    "reorder": ("Reorder", {}),
    "id+1": ("RewriteCorrelationId", {"delta": 1}),
    "id-1": ("RewriteCorrelationId", {"delta": -1}),
    "id-foreign": ("RewriteCorrelationId", {"delta": 123_456_789}),
    "stale": ("Stale", {}),
    "truncate": ("Truncate", {}),
    "corrupt": ("Corrupt", {}),
    "stall": ("Stall", {"seconds": 0.2}),
    "reset": ("Reset", {}),
    "error": ("ErrorCode", {"error_code": NOT_LEADER_OR_FOLLOWER}),
}
_HARM = ("lost", "doubled", "out_of_order", "wrong", "failed")  # counts of records in a Result
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "consume": {},
    "produce": {"aiokafka": {"enable_idempotence": True}, "confluent": {"enable.idempotence": True}},
}


@dataclass(frozen=True)
class Run:
    """One client process: what it saw, and what the proxy did meanwhile."""

    client: str
    do: str
    fault: str
    round: int
    result: Result
    answers: int
    injected: int

    @property
    def rate(self) -> float:
        return self.result.records / self.result.seconds if self.result.seconds else 0.0


class Proxy:
    """The proxy's process, as a context manager; `port` is its port once faults were set."""

    def __init__(self, cluster: KafkaCluster) -> None:
        ((port, advertised),) = cluster.proxied.values()
        command = [sys.executable, str(_HERE / "proxy_process.py"), str(advertised), str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.servers = f"127.0.0.1:{advertised}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def set(self, faults: Sequence[tuple[str, dict[str, Any]]]) -> tuple[Counter[str], Counter[str]]:
        """Replaces the faults; answers by API and faults by "Fetch/Drop" since the call before."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(faults)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("The proxy has ended: its message is above")
        said = json.loads(line)
        return Counter(said["answers"]), Counter(said["injected"])


class Topics:
    """Topics of one broker: the one that is read, and one for each run that writes."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def create(self, name: str) -> None:
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def fill(self, job: Job) -> None:
        """Writes the records of `job`, in batches as a busy producer makes them."""
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 50, "batch.size": 65_536})
        for number, value in enumerate(values(job)):
            producer.produce(job.topic, value, partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush()
        producer.flush()

    def check(self, topic: str, acked: bytes, result: Result) -> None:
        """Counts what a log lacks of the acknowledged records, has twice, or has in another order."""
        config = {"bootstrap.servers": self._servers, "group.id": "check", "enable.auto.commit": False}
        consumer = Consumer({**config, "enable.partition.eof": True, "log_level": 0})
        consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        found = bytearray(len(acked))
        highest = [-1] * PARTITIONS
        open_ends = PARTITIONS
        while open_ends:
            for message in consumer.consume(5000, 5.0):
                if message.error() is not None:
                    open_ends -= 1
                    continue
                number = int.from_bytes(message.value()[4:12], "big")
                if found[number]:
                    result.doubled += 1
                elif number < highest[message.partition()]:
                    result.out_of_order += 1
                found[number] = 1
                highest[message.partition()] = max(highest[message.partition()], number)
        consumer.close()
        result.lost = sum(1 for was_acked, is_there in zip(acked, found) if was_acked and not is_there)


def run_client(job: Job) -> Result:
    """Runs the job in a process of its own, which ends itself at the job's limit."""
    command = [sys.executable, str(_HERE / "client_process.py"), json.dumps(asdict(job))]
    # Compiled modules are kept, as in any installation.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        out, errors = process.communicate(timeout=job.seconds + 15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Result(errors={"killed": 1})
    if not out.strip():
        raise SystemExit(f"{job.client} said nothing:\n{errors[-2000:]}")
    return Result(**json.loads(out.strip().rpartition("\n")[2]))


@dataclass
class Bench:
    """Everything that a run needs."""

    options: argparse.Namespace
    folder: Path
    proxy: Proxy
    topics: Topics

    def job(self, client: str, do: str, topic: str, fault: str = NONE) -> Job:
        records = self.options.records or (700_000 if do == "consume" else 100_000)
        trace = str(self.options.trace / f"{client}-{do}-{fault}.txt") if self.options.trace else ""
        acked = str(self.folder / "acked") if do == "produce" else ""
        return Job(
            client=client,
            do=do,
            servers=self.proxy.servers,
            topic=topic,
            records=records,
            held=records * 5 // 4 if do == "consume" else records,
            partitions=PARTITIONS,
            seconds=self.options.seconds,
            options=_OPTIONS[do].get(client, {}),
            acked=acked,
            trace=trace,
        )

    def measure(self, client: str, do: str, fault: str, number: int) -> Run:
        """One run, its records checked."""
        api = "Fetch" if do == "consume" else "Produce"
        topic = "read" if do == "consume" else f"written-{client}-{fault.replace('+', '')}-{number}"
        if do == "produce":
            self.topics.create(topic)
        spoiled = []
        if fault != NONE:
            name, arguments = FAULTS[fault]
            chance = {"api": api, "probability": 1 / self.options.one_in, "seed": self.options.seed + number}
            spoiled = [(name, {**chance, **arguments})]
        job = self.job(client, do, topic, fault)
        self.proxy.set(spoiled)
        result = run_client(job)
        answers, injected = self.proxy.set([])
        if do == "produce":
            with contextlib.suppress(FileNotFoundError):
                self.topics.check(topic, Path(job.acked).read_bytes(), result)
                Path(job.acked).unlink()
            self.topics.delete(topic)
        return Run(client, do, fault, number, result, answers[api], sum(injected.values()))

    def runs(self) -> Iterator[Run]:
        """All runs: in each round every client has its fault-free run among those with faults."""
        for do in self.options.do:
            if do == "consume":
                self.topics.create("read")
                self.topics.fill(self.job("ours", do, "read"))
            for number in range(self.options.rounds):
                for fault in [NONE, *self.options.faults]:
                    turn = number % len(self.options.clients)
                    for client in self.options.clients[turn:] + self.options.clients[:turn]:
                        yield self.measure(client, do, fault, number)


def table(runs: Sequence[Run], do: str) -> Table:
    """A row a fault, a column a client; what is kept is a share of the fault-free run of the same round."""
    clients = list(dict.fromkeys(run.client for run in runs))
    made = Table(title=f"{do}: rate kept, longest stall; faults in the run, and what they did to the records")
    for column in ("fault", *clients):
        made.add_column(column)
    base = {(run.client, run.round): run.rate for run in runs if run.fault == NONE}
    for fault in dict.fromkeys(run.fault for run in runs):
        cells = []
        for client in clients:
            own = [run for run in runs if run.client == client and run.fault == fault]
            cells.append(_cell(own, [run.rate / (base.get((client, run.round)) or math.inf) for run in own]))
        made.add_row(fault, *cells)
    return made


def _cell(own: Sequence[Run], kept: Sequence[float]) -> str:
    if not own:
        return "-"
    results = [run.result for run in own]
    stall = max(r.longest_stall for r in results)
    # A run that its limit ended was stuck, or only slow.
    stuck = [r.records for r in results if not r.is_complete and r.longest_stall > r.seconds / 3]
    if stuck:
        text = f"stuck after {min(stuck):,}"
    elif own[0].fault == NONE:
        text = f"{statistics.median(run.rate for run in own) / 1e3:,.0f} k/s"
    else:
        text = f"{statistics.median(kept):.0%}"
    text += f", {stall:.2f} s"
    if own[0].fault != NONE:
        text += f"; {sum(run.injected for run in own)}/{sum(run.answers for run in own)}"
    for name in _HARM:
        if total := sum(getattr(r, name) for r in results):
            text += f", {total:,} {name.replace('_', ' ')}"
    errors: Counter[str] = Counter()
    for r in results:
        errors.update(r.errors)
    return text + "".join(f", {count:,} x {name}" for name, count in errors.most_common(2))


def figures_of(runs: Sequence[Run]) -> Iterator[Figure]:
    """The share that each client keeps of its own fault-free rate, its longest stall, and what became of the records."""
    base = {(run.client, run.do, run.round): run.rate for run in runs if run.fault == NONE}
    for do, fault, client in dict.fromkeys((run.do, run.fault, run.client) for run in runs):
        own = [run for run in runs if (run.do, run.fault, run.client) == (do, fault, client)]
        rates = tuple(run.rate for run in own)
        kept = tuple(100 * run.rate / (base.get((client, do, run.round)) or math.inf) for run in own)
        stalls = tuple(run.result.longest_stall for run in own)
        harmed = tuple(float(sum(getattr(run.result, name) for name in _HARM)) for run in own)
        row = f"{do}, {fault}"
        if fault == NONE:
            yield Figure(table="clients", row=row, peer=client, unit="records/s", values=rates)
            continue
        yield Figure(table="clients", row=row, peer=client, unit="% of its rate without faults", values=kept)
        yield Figure(table="clients", row=row, peer=client, unit="longest stall, s", values=stalls, is_cost=True)
        yield Figure(table="clients", row=row, peer=client, unit="records harmed", values=harmed, is_cost=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, help="of 100 B to 1 KB; default: 700,000 to consume, 100,000 to produce")
    for name, known in (("clients", CLIENTS), ("faults", tuple(FAULTS)), ("do", ("consume", "produce"))):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(known), help=",".join(known))
    parser.add_argument("--one-in", type=float, default=20.0, help="one answer in so many is spoiled")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a run, its start included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", type=Path, help="a folder for the recovery events of ours, one file a fault")
    parser.add_argument("--json", type=Path, default=Path(tempfile.gettempdir(), "bench-clients.json"))
    options = parser.parse_args(arguments)
    for name, known in (("clients", CLIENTS), ("faults", tuple(FAULTS)), ("do", ("consume", "produce"))):
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"--{name} {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return options


def main() -> None:
    options = parse_options()
    console = Console(width=None if sys.stdout.isatty() else 190)
    if options.trace:
        options.trace.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-clients-")))
            # A deleted topic gives its disk back before the next run instead of a minute later.
            config = {"log.segment.delete.delay.ms": "1000"}
            cluster = stack.enter_context(KafkaCluster(broker_config=config, heap="1g", java_options=()))
            bench = Bench(options, folder, stack.enter_context(Proxy(cluster)), Topics(cluster.bootstrap_servers))
            for run in bench.runs():
                runs.append(run)
                line = f"{run.do} {run.fault} {run.client}: {run.rate:,.0f}/s, {run}"
                console.print(line, highlight=False, soft_wrap=True)
    finally:
        save(options.json, figures_of(runs), [asdict(run) for run in runs])
        for do in dict.fromkeys(run.do for run in runs):
            console.print(table([run for run in runs if run.do == do], do))
        console.print(f"All figures: {options.json}; load average now {os.getloadavg()[0]:.1f}", highlight=False)


if __name__ == "__main__":
    main()
