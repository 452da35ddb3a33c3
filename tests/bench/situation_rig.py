"""What every situation shares: a source topic of records whose keys occur once, a mirror to run, the count of what arrived.

Laws:
- What should arrive is read from the source, by an independent client (confluent-kafka) with read_committed.
- A situation knows only the Rig: the mirror under it is MirrorMaker 2 or ours, by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_topics import QUIET, Found, Place, Topics
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from figures import KAFKA_VERSION
from peers import Launch, Running, mm2_properties

from tolerant_client.testing.artifacts import TOOLS_MODULES, jars, java_executable
from tolerant_client.testing.node import free_ports

MIRRORS = ("mm2", "mm2-eos", "ours", "ours-continue")  # the last one: with --on-loss=continue
_HEAP = "-Xmx384m"


@dataclass(frozen=True)
class Row:
    """What a mirror made of a situation; counts are records that a read_committed consumer sees on the target.

    `foreign` are records that no read_committed consumer of the source saw: aborted ones, somebody else's.
    """

    situation: str
    mirror: str
    wanted: int
    arrived: int
    duplicates: int
    missing: int
    foreign: int
    filler: int
    same_offset: int
    state: str
    notes: list[str] = field(default_factory=list)

    @property
    def offsets(self) -> str:
        if self.same_offset == self.wanted and not self.missing:
            return "identical"
        return f"{self.same_offset:,} of {self.wanted:,}"


class Mirror:
    """A mirror in a process of its own."""

    def __init__(self, launch: Launch, folder: Path, run: int) -> None:
        self._running = Running(launch, folder, run)
        self.is_ours = launch.is_ours

    @property
    def output(self) -> str:
        return self._running.output.read_text(errors="replace")

    def is_up(self) -> bool:
        """Whether its first task has started (or has already failed)."""
        return "finished initialization and start" in self.output or '"up"' in self.output or self.has_ended()

    def has_ended(self) -> bool:
        return not self._running.is_alive()

    def stop(self) -> None:
        self._running.__exit__(None, None, None)

    def kill(self) -> None:
        self._running.kill()

    def signal(self, number: int) -> None:
        """SIGSTOP or SIGCONT."""
        os.kill(self._running.pid, number)


class Rig:
    """One situation with one mirror: names, both clusters, the mirrors started, and what should arrive."""

    def __init__(self, kind: str, situation: str, run: int, folder: Path, source: str, target: str) -> None:
        self.kind = kind
        self.situation = situation
        self.run = run
        self.folder = folder
        self.topic = f"{situation}-{kind}"
        self.source = Topics(source)
        self.target = Topics(target)
        self.mirror_source = source  # where the mirror reads; a proxy's address in some situations
        self.partition_fetch_bytes = 6 << 20  # of each partition in one answer
        self.topics = self.topic  # the regular expression that the mirror is given
        self.wanted: dict[bytes, Place] = {}
        self.notes: list[str] = []
        self.source_cluster: Any = None
        self.target_cluster: Any = None
        self._started: list[Mirror] = []
        self._begun = time.monotonic()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def remember(self, topic: str | None = None) -> None:
        """What the source holds now should arrive, and where."""
        for found in self.source.read(topic or self.topic):
            assert found.key is not None
            self.wanted[found.key] = found.place

    def fill(self, count: int, first: int = 0, **how: Any) -> None:
        self.source.write(self.topic, first, count, **how)

    def copied(self, topic: str | None = None) -> dict[bytes, list[Found]]:
        found: dict[bytes, list[Found]] = {}
        for record in self.target.read(topic or self.topic):
            if not record.is_filler and record.key is not None:
                found.setdefault(record.key, []).append(record)
        return found

    # -- the mirror -----------------------------------------------------------

    def start(self, more: Mapping[str, str] | None = None, *, wait_s: float = 180) -> Mirror:
        """Starts a mirror and waits until it works; the same one again after a stop."""
        number = self.run * 10 + len(self._started)
        launch = self._ours() if self.kind.startswith("ours") else self._mm2(number, more or {})
        mirror = Mirror(launch, self.folder, number)
        self._started.append(mirror)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not mirror.is_up():
            time.sleep(0.2)
        if not mirror.is_up():
            self.note(f"not up after {wait_s:.0f} s")
        return mirror

    @property
    def mirror(self) -> Mirror:
        """The one that was started last."""
        return self._started[-1]

    def settle(self, at_most: float = 60, quiet: float = 8, topic: str | None = None) -> None:
        """Until all that is wanted is on the target, or nothing has come for `quiet` s, or `at_most` s are over."""
        deadline = time.monotonic() + at_most
        before: list[tuple[int, int]] = []
        changed = time.monotonic()
        is_counted = False
        while (now := time.monotonic()) < deadline:
            ends = self.target.ends(topic or self.topic)
            if ends != before:
                changed, before, is_counted = now, ends, False
            elif now > changed + quiet:
                return
            elif now > changed + 1.5 and not is_counted and sum(end for _, end in ends) >= len(self.wanted):
                # Nothing comes any more, not even what would be too much.
                if not self.wanted.keys() - self.copied(topic).keys():
                    return
                is_counted = True
            time.sleep(0.3)
        self.note(f"not at rest after {at_most:.0f} s")

    def until_copied(self, share: float, at_most: float = 60) -> None:
        """Until about this share of the wanted records is on the target."""
        deadline = time.monotonic() + at_most
        while time.monotonic() < deadline:
            if self.arrived() >= share * len(self.wanted):
                return
            time.sleep(0.05)

    def arrived(self) -> int:
        """The target's log ends, added up."""
        return sum(end for _, end in self.target.ends(self.topic))

    def _mm2(self, number: int, more: Mapping[str, str]) -> Launch:
        alias = f"source{self.run}"
        properties = {
            **mm2_properties(alias, self.mirror_source, self.target.servers, self.topics, {}),
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "tasks.max": "1",
            f"{alias}.consumer.max.partition.fetch.bytes": str(self.partition_fetch_bytes),
            **dict.fromkeys(("emit.heartbeats.enabled", "emit.checkpoints.enabled"), "false"),
            # 600 s by default: nobody would wait for it here.
            "refresh.topics.interval.seconds": "5",
            "sync.topic.configs.interval.seconds": "5",
        }
        if self.kind == "mm2-eos":
            (port,) = free_ports(1)
            properties |= {
                "target.exactly.once.source.support": "enabled",  # without its cluster's name it means nothing
                "dedicated.mode.enable.internal.rest": "true",
                "listeners": f"http://127.0.0.1:{port}",
                f"{alias}.consumer.isolation.level": "read_committed",
            }
        properties |= {key.replace("ALIAS", alias): value for key, value in more.items()}
        path = self.folder / f"mm2-{number}.properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in properties.items()))
        log = "-Dorg.slf4j.simpleLogger."
        command = [
            *(java_executable(), _HEAP, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *(f"{log}defaultLogLevel=warn", f"{log}log.org.apache.kafka.connect.runtime=info"),
            *("-cp", os.pathsep.join(map(str, jars(KAFKA_VERSION, TOOLS_MODULES)))),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(path)),
        ]
        return Launch(self.kind, command, self.topic, poll_s=0.1, ends_itself=False, is_ours=False)

    def _ours(self) -> Launch:
        script = str(Path(__file__).with_name("follow.py"))
        on_loss = "continue" if self.kind == "ours-continue" else "fail"
        command = [
            sys.executable,
            script,
            self.mirror_source,
            self.target.servers,
            self.topics,
            f"link{self.run}",
            on_loss,
        ]
        command.append(str(self.partition_fetch_bytes))
        return Launch(self.kind, command, self.topic, poll_s=0.1, ends_itself=False, is_ours=True)

    # -- what came of it ------------------------------------------------------

    def state(self) -> str:
        """What an operator is told: the mirror's task state and the first cause it names."""
        last = self.mirror
        if last.is_ours:
            lines = [json.loads(line) for line in last.output.splitlines() if line.startswith("{")]
            said = dict.fromkeys(line["error"] for line in lines if "error" in line)
            rows = sum(line.get("losses", 0) for line in lines)
            words = [f"stopped: {text}" for text in said] or ["ended" if last.has_ended() else "RUNNING"]
            return "; ".join([*words, *([f"{rows} ledger rows"] if rows else [])])
        states = self._task_states()
        words = [", ".join(f"{count if count > 1 else 'task'} {state}" for state, count in states.items()) or "no task"]
        if "FAILED" in states:
            # The cause that follows "Task threw an uncaught ..." and the last "Caused by" under it.
            traces = re.findall(r"^(?:Caused by: )?([\w.]+(?:Exception|Error)[^\n]*)", last.output, re.MULTILINE)
            words += [traces[-1][:200]] if traces else []
        return ": ".join(words)

    def _task_states(self) -> Counter[str]:
        topic = f"mm2-status.source{self.run}.internal"
        newest: dict[str, str] = {}
        where = {"bootstrap.servers": self.target.servers, "group.id": "status", "enable.partition.eof": True}
        consumer = Consumer({**where, **QUIET})
        try:
            count = self.target.partitions(topic)
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(count)])
            ended = 0
            deadline = time.monotonic() + 20
            while ended < count and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is not None and message.error():
                    ended += message.error().code() == KafkaError._PARTITION_EOF
                elif message is not None and message.key().startswith(b"status-task-MirrorSourceConnector"):
                    newest[message.key().decode()] = json.loads(message.value())["state"] if message.value() else "gone"
        finally:
            consumer.close()
        return Counter(newest.values())

    def row(self, topic: str | None = None) -> Row:
        """The count; call it before the mirror is stopped."""
        topic = topic or self.topic
        # In this order: what arrives meanwhile is not taken for uncommitted.
        uncommitted = [record for record in self.target.read(topic, "read_uncommitted") if not record.is_filler]
        read = self.target.read(topic)
        records = [record for record in read if not record.is_filler]
        if len(uncommitted) > len(records):
            self.note(f"read_uncommitted sees {len(uncommitted) - len(records):,} more")
        times = Counter(record.key for record in records if record.key in self.wanted)
        same = {
            record.key
            for record in records
            if record.key in self.wanted and self.wanted[record.key][:2] == record.place[:2]
        }
        moved = {
            record.key
            for record in records
            if record.key in self.wanted and self.wanted[record.key].timestamp != record.place.timestamp
        }
        if moved:
            self.note(f"{len(moved):,} timestamps differ")
        return Row(
            situation=self.situation,
            mirror=self.kind,
            wanted=len(self.wanted),
            arrived=len(records),
            duplicates=sum(times.values()) - len(times),
            missing=len(self.wanted) - len(times),
            foreign=len(records) - sum(times.values()),
            filler=len(read) - len(records),
            same_offset=len(same),
            state=self.state(),
            notes=[*self.notes, f"{time.monotonic() - self._begun:.0f} s"],
        )

    def close(self) -> None:
        for mirror in self._started:
            with contextlib.suppress(ProcessLookupError):
                mirror.signal(signal.SIGCONT)
            mirror.stop()


@contextlib.contextmanager
def rig(kind: str, situation: str, run: int, folder: Path, source: str, target: str) -> Iterator[Rig]:
    made = Rig(kind, situation, run, folder, source, target)
    try:
        yield made
    finally:
        made.close()
