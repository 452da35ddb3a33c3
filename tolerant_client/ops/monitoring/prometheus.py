"""The links of this process as Prometheus metrics; this package's README.md has a row for each of them.

Laws:
- A scrape reads the board; nothing is kept here.  An unknown value has no sample.
- Labels are bounded: the MOST_PARTITIONS and MOST_TOPICS of a link with the greatest lag; one row stands
  for the rest, so that sums stay right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from kafka.structs import TopicPartition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tolerant_client.mirror.engine.copy_metrics import LATENCY_BOUNDS_MS, Copied
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.monitoring.mbean_names import (
    CHECKPOINT_METRICS,
    SOURCE_METRICS,
    THROTTLE_METRICS,
    checkpoint_values,
    source_values,
    throttle_values,
)
from tolerant_client.ops.service.link_state import LinkState, Phase

MOST_PARTITIONS = 1_000
MOST_TOPICS = 1_000
MOST_GROUPS = 1_000
MOST_PAUSED = 1_000
_PREFIX = "tolerant_mirror_"

_LINK = ("link",)
_TOPIC = ("link", "topic")

# By name: help text and labels.  Names end as Prometheus recommends: a unit, _total for counters.
_GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "up": ("1 while the link's query runs", _LINK),
    "health": (
        "0 ok (healthy, paused, promoted, handed back), 1 check it (waiting, unknown), 2 blocked: a person has to act",
        _LINK,
    ),
    "cluster_reachable": ("1 while the cluster responds; absent if it was not asked", ("link", "cluster")),
    "promoted": ("1 for a link that was promoted", _LINK),
    "fenced": ("1 for a link whose promotion has begun", _LINK),
    "handed_back": ("1 for a link that was handed back to MirrorMaker 2", _LINK),
    "start_time_seconds": ("When the link was started", _LINK),
    "look_time_seconds": ("When the clusters were last checked", _LINK),
    "report_time_seconds": ("When the last micro-batch ended", _LINK),
    "throttle_bytes_per_second": ("The limit in force; said_by: operator, or start", ("link", "said_by")),
    "log_end_offset": ("Sum of the log end offsets of a topic", ("link", "cluster", "topic")),
    "lag_offsets": ("Offsets that the target is behind", _TOPIC),
    "lag_bytes": ("Bytes that the target is behind: its lag in offsets times the mean bytes per offset", _TOPIC),
    "lag_seconds": ("Age of the oldest record not yet copied, of the partitions asked so far", _TOPIC),
    "offset_rate": ("Offsets that the target's log gains per second, mean of 10 s", _TOPIC),
    "partition_lag_offsets": ("Offsets that the target's partition is behind", ("link", "topic", "partition")),
    "partition_lag_seconds": (
        "Age of the partition's oldest record not yet copied",
        ("link", "topic", "partition"),
    ),
    "behind_partitions": ("Partitions that are not copied to their end", _LINK),
    "aged_partitions": ("Partitions that are behind and whose lag in seconds is known", _LINK),
    "leaderless_partitions": ("Partitions that have no leader, or one that does not respond", ("link", "cluster")),
    "paused_partitions": ("Partitions that an operator has paused", _TOPIC),
    "blocked_partitions": ("Partitions that need a person", _TOPIC),
    "waiting_partitions": ("Partitions that do not move, and resume by themselves", _TOPIC),
    "uncommitted_offsets": (
        "Part of the lag: offsets after the source's last stable offset, which wait for open transactions",
        _TOPIC,
    ),
    "open_transaction_seconds": ("Age of the oldest open transaction that holds back the source", _LINK),
    "paused": (
        "1 for what the operator has paused: the link (empty topic), a topic (empty partition), a partition",
        ("link", "topic", "partition"),
    ),
    "ledger_rows": ("Losses in the ledger", ("link", "reason")),
    "lost_offsets": ("Offsets that the ledger says are lost", ("link", "topic", "reason")),
    "duty_failing": ("1 if the last round of a periodic duty failed, or did only a part", ("link", "duty")),
    "duty_time_seconds": ("When the last round of a periodic duty ended", ("link", "duty")),
    "groups": ("Consumer groups whose offsets are synchronised", _LINK),
}
_COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "restarts": ("Queries that were started again after a failure", _LINK),
    "records": ("Records that the target has acknowledged", _TOPIC),
    "bytes": ("Bytes, as they are stored, that the target has acknowledged", _TOPIC),
    "filled_offsets": ("Offsets without a record on the source that micro-batches filled", _LINK),
    "troubles": ("Positions that were read again from the target's log after a fault", _LINK),
    "recovery_events": ("Actions of recovery after missing, late or wrong responses", ("link", "kind")),
}


class LinkCollector(Collector):
    """Collects from a board; register it in its own registry, or in prometheus_client.REGISTRY.

    `now_ms` returns the time, ms since 1970.
    """

    def __init__(self, board: Board, now_ms: Callable[[], int]) -> None:
        self._board = board
        self._now_ms = now_ms

    def describe(self) -> Iterable[Metric]:
        """Every metric, without samples: links may be added later."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """The current values of all metrics."""
        families = _families()
        for state in self._board.states():
            _add_link(families, state, self._now_ms())
            _add_topics(families, state)
            _add_partitions(families, state)
            _add_groups(families, state)
        return families.values()


def _families() -> dict[str, Metric]:
    families: dict[str, Metric] = {
        "info": InfoMetricFamily(
            _PREFIX + "link", "The link's clusters, how offsets are copied, the version", labels=_LINK
        ),
        "latency": HistogramMetricFamily(
            _PREFIX + "replication_latency_seconds",
            "Time from the newest record's timestamp to the target's acknowledgement, for each record batch",
            labels=_LINK,
        ),
    }
    for name, (text, labels) in _GAUGES.items():
        families[name] = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for name, (text, labels) in _COUNTERS.items():
        families[name] = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for name, text, labels in (*SOURCE_METRICS, *CHECKPOINT_METRICS, *THROTTLE_METRICS):
        families[name] = GaugeMetricFamily(name, text, labels=labels)
    return families


def _add(families: dict[str, Metric], name: str, labels: Iterable[object], value: float | None) -> None:
    if value is not None:
        family = families[name]
        assert isinstance(family, (GaugeMetricFamily, CounterMetricFamily))
        family.add_metric([str(label) for label in labels], value)


def _add_link(families: dict[str, Metric], state: LinkState, now_ms: int) -> None:
    link, report = state.link, state.report
    info, latency = families["info"], families["latency"]
    assert isinstance(info, InfoMetricFamily) and isinstance(latency, HistogramMetricFamily)
    facts = {
        "source": state.source,
        "target": state.target,
        "offsets": state.offsets,
        "version": version("tolerant-client"),
    }
    info.add_metric([link], facts)
    _add(families, "up", [link], state.phase is Phase.RUNNING)
    _add(families, "health", [link], health_of(state, now_ms)[0].code)
    for cluster in sorted(state.asked | state.unreachable.keys()):
        left_out = state.leaderless.get(cluster)
        _add(families, "cluster_reachable", [link, cluster], cluster not in state.unreachable)
        _add(families, "leaderless_partitions", [link, cluster], 0 if left_out is None else left_out.partitions)
    if begun := [one.since_ms for one in state.held if one.since_ms is not None]:
        _add(families, "open_transaction_seconds", [link], max(0, now_ms - min(begun)) / 1000)
    _add(families, "promoted", [link], state.control.is_promoted)
    _add(families, "fenced", [link], state.control.is_fenced)
    _add(families, "handed_back", [link], state.control.is_handed_back)
    _add(families, "start_time_seconds", [link], state.started_ms / 1000)
    _add(families, "look_time_seconds", [link], state.time_ms / 1000 if state.time_ms else None)
    _add(families, "report_time_seconds", [link], report.time_ms / 1000 if report.time_ms else None)
    _add(families, "throttle_bytes_per_second", [link, state.throttle_from], state.throttle_bytes)
    parts = [(topic, str(index)) for topic, index in sorted(state.control.paused_partitions)]
    for paused in [*((topic, "") for topic in sorted(state.control.paused)), *parts][:MOST_PAUSED]:
        _add(families, "paused", [link, *paused], 1)
    for name, duty in state.duties.items():
        _add(families, "duty_failing", [link, name], bool(duty.problem))
        _add(families, "duty_time_seconds", [link, name], duty.time_ms / 1000 if duty.time_ms else None)
    _add(families, "behind_partitions", [link], sum(topic.behind for topic in state.topics.values()))
    _add(families, "aged_partitions", [link], sum(topic.aged for topic in state.topics.values()))
    for reason, rows in Counter(str(row.reason) for row in state.ledger or ()).items():
        _add(families, "ledger_rows", [link, reason], rows)
    for (topic, reason), offsets in state.lost.items():
        _add(families, "lost_offsets", [link, topic, reason], offsets)
    _add(families, "restarts", [link], state.restarts)
    _add(families, "filled_offsets", [link], report.filled)
    _add(families, "troubles", [link], report.troubles)
    for name, ms in throttle_values(report.throttles):
        _add(families, name, [link], ms)
    for kind, events in report.recoveries.items():
        _add(families, "recovery_events", [link, kind], events)
    seconds = sum(done.latency.total for done in report.copied.values()) / 1000
    latency.add_metric([link], list(_buckets(report.latencies)), seconds)


def _buckets(latencies: Sequence[int]) -> Iterator[tuple[str, float]]:
    so_far = 0
    for bound, number in zip((*LATENCY_BOUNDS_MS, None), latencies):
        so_far += number
        yield ("+Inf" if bound is None else str(bound / 1000), so_far)


def _add_topics(families: dict[str, Metric], state: LinkState) -> None:
    for topic in state.most(MOST_TOPICS):
        labels = [state.link, topic.topic]
        _add(families, "log_end_offset", [state.link, "source", topic.topic], topic.source_end)
        _add(families, "log_end_offset", [state.link, "target", topic.topic], topic.target_end)
        _add(families, "lag_offsets", labels, topic.lag_offsets)
        _add(families, "lag_bytes", labels, topic.lag_bytes)
        _add(families, "lag_seconds", labels, topic.lag_seconds)
        _add(families, "offset_rate", labels, topic.offsets_per_s)
        _add(families, "paused_partitions", labels, topic.paused)
        _add(families, "blocked_partitions", labels, topic.blocked)
        _add(families, "waiting_partitions", labels, topic.waiting)
        _add(families, "uncommitted_offsets", labels, topic.uncommitted if topic.source_end is not None else None)
        _add(families, "records", labels, topic.records)
        _add(families, "bytes", labels, topic.bytes)


def _add_partitions(families: dict[str, Metric], state: LinkState) -> None:
    def behind(partition: TopicPartition) -> tuple[int, TopicPartition]:
        return -(state.partitions[partition].lag_offsets or 0), partition

    if len(state.partitions) > MOST_PARTITIONS:
        for topic in state.most(MOST_TOPICS):
            copied = Copied(topic.records, topic.bytes, topic.age, topic.latency)
            _add_mbean(families, state, (topic.topic, "all"), copied, (topic.offsets_per_s, topic.bytes_per_s))
        shown = sorted(state.partitions, key=behind)[:MOST_PARTITIONS]
    else:
        shown = sorted(state.partitions)
        for partition in shown:
            known = state.partitions[partition]
            copied = state.report.copied.get(partition, Copied())
            recent = state.recent.get(partition, Copied())._replace(records=copied.records, bytes=copied.bytes)
            _add_mbean(families, state, partition, recent, (known.offsets_per_s, known.bytes_per_s))
    for partition in shown:
        labels = [state.link, *partition]
        _add(families, "partition_lag_offsets", labels, state.partitions[partition].lag_offsets)
        _add(families, "partition_lag_seconds", labels, state.partitions[partition].lag_seconds(state.time_ms))


def _add_mbean(
    families: dict[str, Metric],
    state: LinkState,
    partition: tuple[str, object],
    copied: Copied,
    rates: tuple[float, float | None],
) -> None:
    for name, value in source_values(copied, *rates):
        _add(families, name, [state.source, state.target, *partition], value)


def _add_groups(families: dict[str, Metric], state: LinkState) -> None:
    if not state.groups:
        return
    _add(families, "groups", [state.link], len({group.group for group in state.groups}))
    for group in state.groups[:MOST_GROUPS]:
        for name, value in checkpoint_values(group.latency):
            _add(families, name, [state.source, state.target, group.group, group.topic, group.partition], value)
