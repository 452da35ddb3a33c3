"""The mirrors that the benchmarks compare, the two clusters they run on, and what their processes cost.

Laws:
- A peer is one command in a session of its own; its CPU time is that of every
  process of the session, alive or gone.
- Brokers do not outlive their Pair, nor a peer's processes their Running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from figures import KAFKA_VERSION
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topics import create_topics
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.artifacts import TOOLS_MODULES, jars, java_executable
from tolerant_client.testing.node import log_tail

NAMES = ("mm2", "engine", "spark")
_REPOSITORY = Path(__file__).resolve().parents[2]
_RESCAN_S = 0.25
_TICK = os.sysconf("SC_CLK_TCK")


class BenchError(SystemExit):
    """A measurement that must not be quoted; the message says why."""


@dataclass(frozen=True)
class Launch:
    """How a peer is started and where its copy appears.

    `ends_itself`: exits once it has copied.  `is_ours`: same topic name and offsets.
    """

    name: str
    command: list[str]
    target_topic: str
    poll_s: float
    ends_itself: bool
    is_ours: bool


class Pair:
    """Two real brokers and a folder for configurations and outputs, as a context manager."""

    def __init__(self, folder: Path, heap: str = "1g", source_config: Mapping[str, str] | None = None) -> None:
        # Deleted topics give their disk back before the next run instead of a minute later.
        config = {"log.segment.delete.delay.ms": "1000"}
        self.folder = folder
        configs = ({**config, **(source_config or {})}, config)
        self._clusters = [
            KafkaCluster(KAFKA_VERSION, broker_config=config, heap=heap, java_options=()) for config in configs
        ]
        self._tools = os.pathsep.join(map(str, jars(KAFKA_VERSION, TOOLS_MODULES)))

    def __enter__(self) -> Pair:
        with contextlib.ExitStack() as stack:
            for cluster in self._clusters:
                stack.enter_context(cluster)
            self._stack = stack.pop_all()
        self.source, self.target = (cluster.bootstrap_servers for cluster in self._clusters)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def clusters(self) -> Iterator[tuple[Cluster, Cluster]]:
        """Fresh clients of source and target, on one event loop."""
        with Cluster({"bootstrap_servers": self.source}, name="source") as source:
            target = Cluster({"bootstrap_servers": self.target}, source.net, name="target")
            try:
                yield source, target
            finally:
                target.close()

    def broker_cpu(self) -> float:
        """CPU seconds of both brokers so far."""
        return sum(_cpu_clock(pid) or 0.0 for cluster in self._clusters if (pid := cluster.pid(1)) is not None)

    def create(self, topic: str, partitions: int) -> None:
        """A source topic that is ready to be written."""
        with self.clusters() as (source, _):
            source.run(create_topics, source, [TopicSpec(topic, partitions, 1)])

    def delete(self, topic: str, *, on_source: bool = False) -> None:
        """Deletes a topic, on the target unless said otherwise, and waits until it has gone."""
        with self.clusters() as both:
            cluster = both[0 if on_source else 1]

            async def delete() -> None:
                state = DeleteTopicsRequest.DeleteTopicState
                answer = await cluster.send(
                    DeleteTopicsRequest(topics=[state(name=topic, topic_id=None)], timeout_ms=30_000)
                )
                for response in answer.responses:
                    raise_for(response.error_code, f"deleting {topic}")

            cluster.run(delete)
            while cluster.run(cluster.partitions, [topic]):
                time.sleep(0.05)

    def load(self, topic: str, records: int, size: int, codec: str) -> None:
        """Fills a source topic with full batches of 256 KiB of random letters."""
        properties = ("batch.size=262144", "linger.ms=1000", "buffer.memory=134217728", f"compression.type={codec}")
        log = self.folder / f"load-{topic}.log"
        command = [
            *self.java("-Xmx512m", "org.apache.kafka.tools.ProducerPerformance"),
            *("--bootstrap-server", self.source, "--topic", topic, "--num-records", str(records)),
            *("--record-size", str(size), "--throughput", "-1", "--command-property", *properties),
        ]
        with open(log, "wb") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            raise BenchError(f"ProducerPerformance ended with {code}:\n{log_tail(log)}")

    def source_end(self, topic: str) -> int:
        """Records in a source topic."""
        with self.clusters() as (source, _):
            return LogEnd(source, topic).read()

    def refuse_difference(self, topic: str) -> None:
        """Raises BenchError unless both clusters hold the topic identically."""
        with self.clusters() as (source, target):
            report = source.run(verify, source, target, topic)
        if not report.identical:
            raise BenchError(
                f"The copy of {topic} is NOT identical: {[p for p in report.partitions if p.first_difference]}"
            )

    def java(self, heap: str, main_class: str) -> list[str]:
        log_level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [java_executable(), heap, log_level, "-cp", self._tools, main_class]

    # -- the peers ------------------------------------------------------------

    def launch(self, name: str, topic: str, run: int, *, codec: str = "none", tail_s: float = 0) -> Launch:
        """The command of a peer; `run` tells repeated runs apart, `tail_s` means to go on copying.

        The topic's name is also the regular expression for it: letters, digits and hyphens only.
        """
        if name == "mm2":
            return self._mm2(topic, run, codec, 0 if tail_s else 5)
        if name.partition(":")[0] == "engine":
            script = str(Path(__file__).with_name("engine.py"))
            gap_fill = name.partition(":")[2] or "auto"
            command = [sys.executable, script, self.source, self.target, topic, str(tail_s), gap_fill]
        elif name == "spark":
            command = [sys.executable, "-m", "spark_integration.cli.app", "mirror", "--source", self.source]
            # The link of engine.py: the claims refuse two links onto one topic.
            command += ["--link", "bench", "--target", self.target, "--topics", topic, "--json"]
            command += [] if tail_s else ["--once"]
        else:
            raise BenchError(f"There is no peer {name!r}: choose from {', '.join(NAMES)}")
        return Launch(name, command, topic, poll_s=0.01, ends_itself=not tail_s, is_ours=True)

    def _mm2(self, topic: str, run: int, codec: str, linger_ms: int) -> Launch:
        # MM2 keeps its offsets under the alias of the source: a new alias is a new start.
        alias = f"source{run}"
        more = {
            "tasks.max": "2",
            # Only the copying of records is compared.
            **dict.fromkeys(("emit.heartbeats.enabled", "emit.checkpoints.enabled"), "false"),
            "target.producer.linger.ms": str(linger_ms),
            "target.producer.compression.type": codec,
            f"{alias}.consumer.isolation.level": "read_committed",
        }
        properties = mm2_properties(alias, self.source, self.target, topic, more)
        path = self.folder / f"mm2-{run}.properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))
        command = [*self.java("-Xmx1g", "org.apache.kafka.connect.mirror.MirrorMaker"), str(path)]
        return Launch("mm2", command, f"{alias}.{topic}", poll_s=0.1, ends_itself=False, is_ours=False)


def mm2_properties(alias: str, source: str, target: str, topics: str, more: Mapping[str, str]) -> dict[str, str]:
    """MirrorMaker 2's configuration for one link from `alias` to "target"; `more` overrides.

    Batches and fetches are as large as ours, so that it is not measured with the small ones of its defaults.
    """
    return {
        "clusters": f"{alias}, target",
        f"{alias}.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": topics,
        **dict.fromkeys(("replication.factor", "offset-syncs.topic.replication.factor"), "1"),
        "checkpoints.topic.replication.factor": "1",
        **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
        **dict.fromkeys(("sync.group.offsets.enabled", "sync.topic.acls.enabled"), "false"),
        "target.producer.batch.size": "262144",
        "target.producer.buffer.memory": "134217728",
        f"{alias}.consumer.max.partition.fetch.bytes": str(6 << 20),
        f"{alias}.consumer.max.poll.records": "10000",
        **more,
    }


class LogEnd:
    """How many records a topic has got; 0 before it exists."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions: dict[TopicPartition, int] = {}

    def read(self) -> int:
        if not self._partitions:
            numbers = self._cluster.run(self._cluster.partitions, [self._topic]).get(self._topic, [])
            self._partitions = {TopicPartition(self._topic, number): LATEST for number in numbers}
        return sum(self._cluster.run(self._cluster.list_offsets, self._partitions).values())


class Running:
    """A started peer, as a context manager that ends it, and the CPU time of all its processes.

    `cpu` must be called often: what a process used after its last call is lost.
    """

    def __init__(self, launch: Launch, folder: Path, run: int) -> None:
        self.launch = launch
        self.output = folder / f"{launch.name}-{run}.log"
        self.started = time.monotonic()
        with open(self.output, "wb") as out:
            self._process = subprocess.Popen(
                launch.command,
                cwd=_REPOSITORY,
                # Compiled modules are kept, as in any installation: Spark starts a dozen Python processes.
                env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._seen: dict[tuple[int, str], float] = {}
        self._scanned = 0.0

    def __enter__(self) -> Running:
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9 for every process of the peer."""
        for pid, _ in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self.kill()

    def cpu(self) -> float:
        """CPU seconds, user and system, of every process that belonged to the peer."""
        now = time.monotonic()
        if now > self._scanned + _RESCAN_S:
            self._scanned = now
            for member in self._members():
                self._seen.setdefault(member, 0.0)
        for member, before in self._seen.items():
            self._seen[member] = max(before, _cpu_clock(member[0]) or 0.0)
        return sum(self._seen.values())

    def memory(self) -> int:
        """Bytes of memory of all its processes; what several share counts once (proportional set size, proc(5))."""
        total = 0
        for pid, _ in self._members():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total << 10

    def is_over(self) -> bool:
        """Whether the command has ended and nothing is left of it; raises BenchError if it failed."""
        self.cpu()
        code = self._process.poll()
        if code:
            raise BenchError(f"{self.launch.name} ended with {code}:\n{self.tail()}")
        return code == 0 and not self._members()

    def tail(self) -> str:
        """The last lines that the peer printed."""
        return log_tail(self.output)

    def _members(self) -> list[tuple[int, str]]:
        """(pid, start time) of the processes of the session."""
        session = self._process.pid
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                # After the name in brackets come state, parent, group, session; the start time is field 22 (proc(5)).
                with contextlib.suppress(OSError):
                    fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    if fields[0] != "Z" and int(fields[3]) == session:
                        found.append((int(entry.name), fields[19]))
        return found


class Span:
    """From its making on: wall time, CPU of the brokers, and how much of the machine others took."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._began = time.monotonic()
        self._then = self._now()

    def read(self, peer_cpu: float) -> tuple[float, float, float]:
        """Wall seconds, CPU seconds of the brokers, and the share of the machine that was neither these,
        nor the peer's `peer_cpu`, nor the benchmark's own.
        """
        brokers, machine, own = (now - then for now, then in zip(self._now(), self._then))
        wall = time.monotonic() - self._began
        others = (machine - brokers - own - peer_cpu) / (wall * (os.cpu_count() or 1))
        return wall, brokers, max(0.0, others)

    def _now(self) -> tuple[float, float, float]:
        return self._pair.broker_cpu(), _machine_cpu(), time.process_time()


def _machine_cpu() -> float:
    """CPU seconds that this machine has spent on anything."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICK  # without idle and iowait


def _cpu_clock(pid: int) -> float | None:
    """utime + stime of a process in nanosecond steps instead of the 10 ms of /proc/PID/stat; None if it has gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process, linux/posix-timers.h
    except OSError:
        return None
