"""Watches a link from outside: progress bars and Prometheus metrics from both clusters' log ends and the ledger,
and what is paused."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.mirror.ledger import lost_offsets, read_ledger
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.raw import LATEST, READ_COMMITTED, RawCluster

_INTERVAL_S = 0.5
_LEDGER_INTERVAL_S = 10.0


class LinkWatch:
    """Reads the log ends of a link's partitions twice a second, in a thread of its own.

    `source` and `target` are Java client properties.  `ends` are the source's
    last stable offsets at the start; with `is_once` they are the goal, else the
    present ones are.  `metrics` is HOST:PORT to serve Prometheus metrics at.
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
    ) -> None:
        self._source = RawCluster(kafka_python_config(source), name="source")
        self._target = RawCluster(kafka_python_config(target), self._source.net, name="target")
        self._partitions = list(ends)
        self._ends = ends
        self._goal = _by_topic(ends)
        self._is_once = is_once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tolerant-kafka-watch", daemon=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not is_shown,
        )
        self._first: Mapping[TopicPartition, int] = {}
        self._last: Mapping[TopicPartition, int] = {}
        self._gauges = _Gauges(metrics) if metrics else None
        self._link = link
        self._former_losses: list[LedgerRow] = []
        self.losses: list[LedgerRow] = []  # ledger rows of the link since the start
        self.paused: Mapping[TopicPartition, str] = {}  # by partition: what for

    @property
    def copied(self) -> int:
        """Offsets that the target's logs have gained since the start."""
        return sum(self._last.values()) - sum(self._first.values())

    @property
    def behind(self) -> list[TopicPartition]:
        """Partitions that do not reach on the target as far as the source did at the start."""
        return [partition for partition, end in self._ends.items() if self._last[partition] < end]

    def tell_paused(self, paused: Mapping[TopicPartition, str]) -> None:
        """Takes what is paused now, and prints what was not paused before."""
        for partition in sorted(paused.keys() - self.paused.keys()):
            text = f"tolerant-kafka: paused: {partition.topic}-{partition.partition}: {paused[partition]}"
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.paused = paused
        if self._gauges is not None:
            self._gauges.set_paused({p.topic for p in self._partitions}, paused)

    def __enter__(self) -> LinkWatch:
        self._first = self._last = self._read(self._target)
        self._former_losses = self._read_ledger()
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._last = self._read(self._target)
            self.losses = [row for row in self._read_ledger() if row not in self._former_losses]
        except KafkaError as error:
            if kind is None:  # else the mirror's own error is the one to show
                reason = str(error).removeprefix(f"{type(error).__name__}: ")
                raise TolerantClientError(
                    f"Copying has ended, but the target did not tell how far, and what its ledger says was lost: {reason};"
                    " start the mirror again"
                ) from error
        finally:
            self._progress.stop()
            self._target.close()
            self._source.close()
            if self._gauges is not None:
                self._gauges.close()

    def _read(self, cluster: RawCluster) -> dict[TopicPartition, int]:
        """Where the logs end: the source's as far as it is stable, which is what can be copied."""
        isolation_level = READ_COMMITTED if cluster is self._source else 0

        async def ask() -> dict[TopicPartition, int]:
            return await cluster.list_offsets(dict.fromkeys(self._partitions, LATEST), isolation_level=isolation_level)

        ends: dict[TopicPartition, int] = cluster.run(ask)
        return ends

    def _read_ledger(self) -> list[LedgerRow]:
        return [row for row in self._target.run(read_ledger, self._target) if row.link == self._link]

    def _run(self) -> None:
        bars = {topic: self._progress.add_task(topic, total=goal, rate="") for topic, goal in sorted(self._goal.items())}
        at = ledger_at = time.monotonic()
        last = _by_topic(self._last)
        while not self._stop.wait(_INTERVAL_S):
            try:
                if not self._is_once or self._gauges is not None:
                    source = _by_topic(self._read(self._source))
                    self._goal = self._goal if self._is_once else source
                    if self._gauges is not None:
                        self._gauges.set(source, last)
                        if at >= ledger_at:
                            self._gauges.set_losses(self._read_ledger())
                            ledger_at = at + _LEDGER_INTERVAL_S
                self._last = self._read(self._target)
            except KafkaError:
                continue  # a cluster that is away for a moment shows no progress, nothing else
            before, last = last, _by_topic(self._last)
            at, elapsed = time.monotonic(), time.monotonic() - at
            for topic, bar in bars.items():
                rate = (last[topic] - before[topic]) / elapsed
                done = min(last[topic], self._goal[topic])
                self._progress.update(bar, completed=done, total=self._goal[topic], rate=f"{rate:,.0f} rec/s")


class _Gauges:
    """Log ends by cluster and topic, and the lag between them in offsets, served over HTTP."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise OptionError(f"--metrics needs HOST:PORT, such as 127.0.0.1:9464, not {address!r}")
        registry = CollectorRegistry()
        self._end = Gauge(
            "tolerant_mirror_log_end_offset", "Sum of the log end offsets of a topic", ["cluster", "topic"], registry=registry
        )
        self._lag = Gauge("tolerant_mirror_lag_offsets", "Offsets that the target is behind", ["topic"], registry=registry)
        self._losses = Gauge(
            "tolerant_mirror_lost_offsets", "Offsets that the ledger says are lost", ["topic", "reason"], registry=registry
        )
        self._paused = Gauge(
            "tolerant_mirror_paused_partitions", "Partitions that wait for an operator", ["topic"], registry=registry
        )
        try:
            self._server, self._thread = start_http_server(int(port), host, registry)
        except OSError as error:
            raise OptionError(f"--metrics cannot listen at {address} ({error.strerror}); choose another port") from error

    def set(self, source: Mapping[str, int], target: Mapping[str, int]) -> None:
        for topic, end in source.items():
            self._end.labels("source", topic).set(end)
            self._end.labels("target", topic).set(target[topic])
            self._lag.labels(topic).set(max(end - target[topic], 0))

    def set_losses(self, rows: Iterable[LedgerRow]) -> None:
        for (topic, reason), offsets in lost_offsets(rows).items():
            self._losses.labels(topic, reason).set(offsets)

    def set_paused(self, topics: Iterable[str], paused: Iterable[TopicPartition]) -> None:
        counts = Counter(partition.topic for partition in paused)
        for topic in counts.keys() | topics:
            self._paused.labels(topic).set(counts[topic])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for partition, end in ends.items():
        totals[partition.topic] = totals.get(partition.topic, 0) + end
    return totals
