"""Watches a link from outside: progress bars and Prometheus metrics from both clusters' own log ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from kafka.structs import TopicPartition
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spark_integration.security.kafka_config import kafka_python_config
from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.raw import LATEST, RawCluster

_INTERVAL_S = 0.5


class LinkWatch:
    """Reads the log ends of a link's partitions twice a second, in a thread of its own.

    `source` and `target` are Java client properties.  `ends` are the source's
    log ends at the start; with `is_once` they are the goal, else the source's
    present ends are.  `metrics` is HOST:PORT to serve Prometheus metrics at.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        ends: Mapping[TopicPartition, int],
        *,
        is_once: bool,
        is_shown: bool,
        metrics: str | None = None,
    ) -> None:
        self._source = RawCluster(kafka_python_config(source), name="source")
        self._target = RawCluster(kafka_python_config(target), self._source.net, name="target")
        self._partitions = list(ends)
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
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._gauges = _Gauges(metrics) if metrics else None

    @property
    def copied(self) -> int:
        """Offsets that the target's logs have gained since the start."""
        return sum(self._last.values()) - sum(self._first.values())

    def __enter__(self) -> LinkWatch:
        self._first = self._last = self._read(self._target)
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._last = self._read(self._target)
        except TolerantClientError:
            pass  # the mirror's own error is the one to show
        self._progress.stop()
        self._target.close()
        self._source.close()
        if self._gauges is not None:
            self._gauges.close()

    def _read(self, cluster: RawCluster) -> dict[str, int]:
        return _by_topic(cluster.run(cluster.list_offsets, dict.fromkeys(self._partitions, LATEST)))

    def _run(self) -> None:
        bars = {topic: self._progress.add_task(topic, total=goal, rate="") for topic, goal in sorted(self._goal.items())}
        at = time.monotonic()
        while not self._stop.wait(_INTERVAL_S):
            try:
                if not self._is_once or self._gauges is not None:
                    source = self._read(self._source)
                    self._goal = self._goal if self._is_once else source
                    if self._gauges is not None:
                        self._gauges.set(source, self._last)
                before, self._last = self._last, self._read(self._target)
            except TolerantClientError:
                continue  # a cluster that is away for a moment shows no progress, nothing else
            at, elapsed = time.monotonic(), time.monotonic() - at
            for topic, bar in bars.items():
                rate = (self._last[topic] - before[topic]) / elapsed
                done = min(self._last[topic], self._goal[topic])
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
        try:
            self._server, self._thread = start_http_server(int(port), host, registry)
        except OSError as error:
            raise OptionError(f"--metrics cannot listen at {address} ({error.strerror}); choose another port") from error

    def set(self, source: Mapping[str, int], target: Mapping[str, int]) -> None:
        for topic, end in source.items():
            self._end.labels("source", topic).set(end)
            self._end.labels("target", topic).set(target[topic])
            self._lag.labels(topic).set(max(end - target[topic], 0))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for partition, end in ends.items():
        totals[partition.topic] = totals.get(partition.topic, 0) + end
    return totals
