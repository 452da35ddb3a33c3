"""Watches a link from outside, in a thread of its own: progress bars, and samples of what is known of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from rich.console import Console

from spark_integration.mirroring.link_state import GroupState, LinkState, PartitionState, Phase, TaskReport, added
from spark_integration.monitoring.bars import LinkBars
from spark_integration.monitoring.board import Board
from spark_integration.monitoring.look import MOST_AGES, bytes_per_offset, log_ends, stable_ends, written_ms
from spark_integration.monitoring.server import StatusServer
from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.mirror.ledger import read_ledger
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.mirror.measures import Copied
from tolerant_client.mirror.replication_policy import TopicNames
from tolerant_client.raw import LATEST, RawCluster

_INTERVAL_S = 0.5
_SHARE = 30  # a look that takes the processor n seconds is followed by 30 n without one
_LEDGER_INTERVAL_S = 10.0
_SIZES_INTERVAL_S = 60.0
_AGAIN_S = 5.0  # after a question that failed
_RATE_S = 10.0
_RECENT_MS = 60_000
_PATIENCE_MS = 5_000  # a cluster that is away for a moment shows no progress, nothing else
_AWAY = (KafkaError, OSError, ValueError)  # ValueError: an answer that cannot be decoded, again and again
_KNOWN_SIZE = 100  # records of a topic, once copied, tell what its records take


class LinkWatch:
    """Reads the log ends of a link's partitions up to twice a second, and gives samples to a board.

    `source` and `target` are Java client properties.  `ends` are the source's
    last stable offsets at the start; with `is_once` they are the goal, else the
    present ones are.  `metrics` is HOST:PORT to serve metrics and the status page at;
    where there are several links, one StatusServer shows the `board` of all.
    `names` are those of the clusters, `topic_names` those of the link's topics.
    Topics of the reports that `ends` does not have are watched, too.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        ends: Mapping[TopicPartition, int],
        link: str,
        *,
        is_once: bool,
        is_shown: bool,
        metrics: str | None = None,
        board: Board | None = None,
        names: tuple[str, str] = ("source", "target"),
        offsets: str = "identical",
        console: Console | None = None,
        topic_names: TopicNames | None = None,
    ) -> None:
        self._topic_names = topic_names
        self._source, self._target = self._connect(source, target)
        self._ends = ends
        self._goals = _by_topic(ends)
        self._is_once = is_once
        self._is_identical = offsets == "identical"
        self._board = Board() if board is None and metrics else board
        self._server: StatusServer | None = None
        if self._board is not None and metrics:
            try:
                self._server = StatusServer(self._board, metrics)
            except OptionError:
                self._close()
                raise
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of _state
        self._thread = threading.Thread(target=self._run, name=f"tolerant-kafka-watch-{link}", daemon=True)
        self._bars = LinkBars(is_once=is_once, is_shown=is_shown, console=console)
        now_ms = _now_ms()
        self._state = LinkState(
            link,
            now_ms,
            now_ms,
            *names,
            offsets=offsets,
            query=f"tolerant-mirror-{link}",
            partitions={p: PartitionState(source_end=end) for p, end in ends.items()},
        )
        self._first: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._positions: deque[tuple[float, Mapping[TopicPartition, int]]] = deque()
        self._written: dict[TopicPartition, tuple[int, int]] = {}  # the offset that was asked for, and its time
        self._asked: dict[TopicPartition, None] = {}  # whose age was asked for, the longest ago first
        self._sizes: Mapping[TopicPartition, float] = {}
        self._latest: deque[tuple[int, Mapping[TopicPartition, Copied]]] = deque()
        self._former_reports = TaskReport()  # of queries that were started again
        self._ledger_at = self._sizes_at = float("-inf")
        self._former_losses: list[LedgerRow] = []
        self.losses: list[LedgerRow] = []  # ledger rows of the link since the start

    @property
    def state(self) -> LinkState:
        """What is known now."""
        return self._state

    @property
    def url(self) -> str:
        """Where the status page is, if this watch serves one."""
        return "" if self._server is None else self._server.url

    @property
    def paused(self) -> Mapping[TopicPartition, str]:
        """What the last report says is paused, and what for."""
        return self._state.paused

    @property
    def copied(self) -> int:
        """Offsets that the target's logs have gained since the start."""
        return sum(end - self._first.get(partition, 0) for partition, end in self._last.items())

    @property
    def behind(self) -> list[TopicPartition]:
        """Partitions that do not reach on the target as far as the source did at the start."""
        return [partition for partition, end in self._ends.items() if self._last.get(partition, 0) < end]

    # -- what others tell -----------------------------------------------------

    def tell(self, report: TaskReport) -> None:
        """Takes what the tasks of the running query have done, and prints what was not paused before."""
        for partition in sorted(report.paused.keys() - self.paused.keys()):
            text = f"tolerant-kafka: paused: {partition.topic}-{partition.partition}: {report.paused[partition]}"
            self._bars.print(text)
        with self._lock:
            last = self._state.report
            if report.time_ms and report.time_ms != last.time_ms:
                if report.records < last.records - self._former_reports.records:
                    self._former_reports = last  # another query: it counts from 0
                self._latest.append((report.time_ms, report.latest))
                while report.time_ms - self._latest[0][0] > _RECENT_MS:
                    self._latest.popleft()
                report = replace(self._former_reports.plus([report], report.time_ms), latest=report.latest)
                recent = added({}, *(latest for _, latest in self._latest))
                new = {p: PartitionState() for p in report.acked if p not in self._state.partitions}
                self._state = replace(
                    self._state,
                    report=report,
                    recent=recent,
                    partitions={**self._state.partitions, **new},
                    phase=Phase.RUNNING,
                )
            else:
                self._state = replace(self._state, report=replace(last, paused=report.paused))

    def tell_phase(self, phase: Phase, problem: str = "") -> None:
        """Takes what has become of the query; RESTARTING counts as one restart."""
        with self._lock:
            restarts = self._state.restarts + (phase is Phase.RESTARTING)
            self._state = replace(self._state, phase=phase, problem=problem, restarts=restarts)

    def tell_duty(self, duty: str, problem: str = "") -> None:
        """Takes how the last round of a periodic duty ended."""
        with self._lock:
            self._state = replace(self._state, duties={**self._state.duties, duty: problem})

    def tell_groups(self, groups: Iterable[GroupState]) -> None:
        """Takes the groups' offsets as the last round left them."""
        with self._lock:
            before = {group[:3]: group.latency for group in self._state.groups}
            told = tuple(
                group._replace(latency=before[group[:3]].plus(group.latency) if group[:3] in before else group.latency)
                for group in groups
            )
            self._state = replace(self._state, groups=told)

    def tell_control(self, held: Iterable[str], throttle_bytes: int | None, is_promoted: bool) -> None:
        """Takes what the operator has ordered."""
        with self._lock:
            self._state = replace(
                self._state, held=tuple(sorted(held)), throttle_bytes=throttle_bytes, is_promoted=is_promoted
            )

    # -- its life -------------------------------------------------------------

    def __enter__(self) -> LinkWatch:
        try:
            self._last = self._read_surely()
            self._first = dict(self._last)
            self._former_losses = self._read_ledger()
        except BaseException:
            self._close()
            raise
        for cluster in (self._source, self._target):
            cluster.patience_ms = min(cluster.patience_ms, _PATIENCE_MS)
        self._bars.progress.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._target.patience_ms = self._patience_ms
        try:
            self._took(self._read_surely())
            self.losses = [row for row in self._read_ledger() if row not in self._former_losses]
        except KafkaError as error:
            if kind is None:  # else the mirror's own error is the one to show
                reason = str(error).removeprefix(f"{type(error).__name__}: ")
                raise TolerantClientError(
                    f"Copying has ended, but the target did not tell how far, and what its ledger says was lost: {reason};"
                    " start the mirror again"
                ) from error
        finally:
            self._bars.progress.stop()
            self._close()

    def _connect(self, source: Mapping[str, str], target: Mapping[str, str]) -> tuple[RawCluster, RawCluster]:
        origin = RawCluster(kafka_python_config(source), name="source", names=self._topic_names)
        copy = RawCluster(kafka_python_config(target), origin.net, name="target")
        self._patience_ms = copy.patience_ms
        return origin, copy

    def _close(self) -> None:
        self._target.close()
        self._source.close()
        if self._server is not None:
            self._server.close()

    def _read(self, cluster: RawCluster) -> dict[TopicPartition, int]:
        """Where the logs end: the source's as far as it is stable, which is what can be copied."""
        partitions = list(self._state.partitions)
        if cluster is self._source:
            return cluster.run(stable_ends, cluster, partitions)
        return cluster.run(log_ends, cluster, partitions)

    def _read_surely(self) -> dict[TopicPartition, int]:
        """The target's ends; waits for those of the start that have no leader at the moment."""
        found = self._read(self._target)
        missing = dict.fromkeys(self._ends.keys() - found.keys(), LATEST)
        return {**found, **(self._target.run(self._target.list_offsets, missing) if missing else {})}

    def _read_ledger(self) -> list[LedgerRow]:
        return [row for row in self._target.run(read_ledger, self._target) if row.link == self._state.link]

    # -- looking --------------------------------------------------------------

    def _run(self) -> None:
        if self._board is None and not self._bars.is_shown:
            return  # nobody sees it
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            started = time.thread_time()
            self._look()
            if self._bars.is_shown:
                self._bars.show(self._state, self._goals)
            pause_s = max(_INTERVAL_S, _SHARE * (time.thread_time() - started))

    def _look(self) -> None:
        """One sample; what could not be read stays as it was, and the cluster is said not to answer."""
        unreachable: dict[str, str] = {}
        source_ends: Mapping[TopicPartition, int] = {}
        if self._board is not None or not self._is_once:
            source_ends = self._try(unreachable, self._source) or {}
        target_ends = self._try(unreachable, self._target)
        self._took(target_ends or {})
        ledger = self._state.ledger
        now = time.monotonic()
        if self._board is not None:
            if now - self._ledger_at >= _LEDGER_INTERVAL_S and not unreachable:
                self._ledger_at = now
                ledger = tuple(self._quietly(self._read_ledger) or ledger)
        positions = self._last if self._is_identical else self._state.report.acked
        rates = self._rates(now, dict(positions))
        with self._lock:
            former, copied = self._state.partitions, self._state.report.copied
        topics = _sizes_by_topic(copied)
        states: dict[TopicPartition, PartitionState] = {}
        for partition, known in former.items():
            states[partition] = PartitionState(
                source_ends.get(partition, known.source_end),
                self._last.get(partition),
                positions.get(partition),
                None,
                topics.get(partition.topic) or self._sizes.get(partition),
                rates.get(partition, 0.0),
            )
        if self._board is not None and not unreachable:
            self._read_ages(states)
            self._read_sizes(states, now)
        for partition, state in states.items():
            offset, time_ms = self._written.get(partition, (-1, 0))
            if offset == state.position:
                states[partition] = replace(state, oldest_ms=time_ms)
        with self._lock:
            new = {p: s for p, s in self._state.partitions.items() if p not in states}
            has_started = self._state.phase is Phase.STARTING and any(rates.values())  # the first micro-batch may be long
            self._state = replace(
                self._state,
                time_ms=_now_ms(),
                partitions={**states, **new},
                unreachable=unreachable,
                ledger=ledger,
                phase=Phase.RUNNING if has_started else self._state.phase,
            )
            sample = self._state
        if self._board is not None:
            self._board.tell(sample)

    def _took(self, target_ends: Mapping[TopicPartition, int]) -> None:
        """Takes the target's ends; of partitions that are new, what was copied so far counts as gained."""
        for partition in target_ends.keys() - self._last.keys():
            done = self._state.report.copied.get(partition, Copied())
            self._first.setdefault(partition, max(target_ends[partition] - done.records, 0))
        self._last = {**self._last, **target_ends}

    def _try(self, unreachable: dict[str, str], cluster: RawCluster) -> dict[TopicPartition, int] | None:
        try:
            return self._read(cluster)
        except _AWAY as error:
            unreachable[cluster.name] = str(error).removeprefix(f"{type(error).__name__}: ")
            return None

    def _quietly(self, read: Any, *arguments: Any) -> Any:
        """What was read; None where that failed: the next look tells whether the cluster is away."""
        try:
            return read(*arguments)
        except _AWAY:
            return None

    def _rates(self, now: float, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        while len(self._positions) > 1 and now - self._positions[1][0] >= _RATE_S:
            self._positions.popleft()
        rates: dict[TopicPartition, float] = {}
        if self._positions and now > self._positions[0][0]:
            at, before = self._positions[0]
            rates = {p: max(position - before.get(p, position), 0) / (now - at) for p, position in positions.items()}
        if not self._positions or now - self._positions[-1][0] >= 1.0:
            self._positions.append((now, positions))
        return rates

    def _read_ages(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Asks when the oldest records were written that are not copied: of so many partitions a look, all in turn."""
        wanted = {
            p: state.position
            for p, state in states.items()
            if state.lag_offsets and state.position is not None and self._written.get(p, (-1, 0))[0] != state.position
        }
        turn = [*(p for p in wanted if p not in self._asked), *(p for p in self._asked if p in wanted)][:MOST_AGES]
        if not turn:
            return
        for partition in turn:
            self._asked.pop(partition, None)
            self._asked[partition] = None
        offsets = {p: wanted[p] for p in turn}
        times = self._quietly(self._source.run, written_ms, self._source, offsets) or {}
        self._written.update((p, (offsets[p], time_ms)) for p, time_ms in times.items())
        for partition in [p for p, state in states.items() if not state.lag_offsets]:
            self._written.pop(partition, None)
            self._asked.pop(partition, None)

    def _read_sizes(self, states: Mapping[TopicPartition, PartitionState], now: float) -> None:
        """Asks what offsets take of partitions that are behind and have not told it by what was copied."""
        wanted = [p for p, state in states.items() if state.lag_offsets and state.bytes_per_offset is None]
        if wanted and now - self._sizes_at >= _SIZES_INTERVAL_S:
            ends = {p: states[p].source_end or 0 for p in wanted}
            sizes = self._quietly(self._source.run, bytes_per_offset, self._source, wanted, ends)
            self._sizes = sizes or {}
            self._sizes_at = now if sizes is not None else now - _SIZES_INTERVAL_S + _AGAIN_S


def _sizes_by_topic(copied: Mapping[TopicPartition, Copied]) -> dict[str, float]:
    """Bytes a record by topic, where enough was copied to tell."""
    records: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for (topic, _), done in copied.items():
        records[topic] = records.get(topic, 0) + done.records
        sizes[topic] = sizes.get(topic, 0) + done.bytes
    return {topic: sizes[topic] / number for topic, number in records.items() if number >= _KNOWN_SIZE}


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for partition, end in ends.items():
        totals[partition.topic] = totals.get(partition.topic, 0) + end
    return totals


def _now_ms() -> int:
    return int(time.time() * 1000)
