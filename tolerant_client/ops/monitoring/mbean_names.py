"""MirrorMaker 2's metrics under their usual Prometheus names, so that existing dashboards and alerts keep working.

An MBean `kafka.connect.mirror:type=MirrorSourceConnector,source=A,target=B,topic=orders,partition=0` with attribute
`record-count` becomes, in jmx_exporter's default format in lower case (and in Strimzi's metrics reporter, for which its
dashboards are made), `kafka_connect_mirror_mirrorsourceconnector_record_count{source=,target=,topic=,partition=}`.
Attributes: MirrorSourceMetrics.java and MirrorCheckpointMetrics.java.  All are gauges there, and here.

The throttle times of a producer and a consumer (SenderMetricsRegistry.java, FetchMetricsRegistry.java) have Kafka's names, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tolerant_client.mirror.engine.copy_metrics import Copied, Span

_SOURCE = "kafka_connect_mirror_mirrorsourceconnector_"
_CHECKPOINT = "kafka_connect_mirror_mirrorcheckpointconnector_"

SOURCE_LABELS = ("source", "target", "topic", "partition")
CHECKPOINT_LABELS = ("source", "target", "group", "topic", "partition")


class MBeanMetric(NamedTuple):
    """A metric of MirrorMaker 2; `help` says what it means in this mirror."""

    name: str
    help: str
    labels: tuple[str, ...]


_SPANS: Mapping[str, str] = {"": "last", "_min": "least", "_max": "greatest", "_avg": "mean"}

SOURCE_METRICS = tuple(
    MBeanMetric(_SOURCE + name, text, SOURCE_LABELS)
    for name, text in (
        ("record_count", "Records that the target has acknowledged since the start of the query"),
        ("record_rate", "Offsets that the target's log has gained per second, mean of 10 s"),
        ("byte_count", "Bytes, as they are stored, that the target has acknowledged since the start of the query"),
        ("byte_rate", "Bytes per second: the rate of offsets times the mean bytes per offset"),
        *(
            (f"record_age_ms{end}", f"Age of records when they are sent to the target, {word}")
            for end, word in _SPANS.items()
        ),
        *(
            (f"replication_latency_ms{end}", f"Time from a record's timestamp to the target's acknowledgement, {word}")
            for end, word in _SPANS.items()
        ),
    )
)
CHECKPOINT_METRICS = tuple(
    MBeanMetric(name, f"Time that a group's offset takes to the target, {word}", CHECKPOINT_LABELS)
    for name, word in ((f"{_CHECKPOINT}checkpoint_latency_ms{end}", word) for end, word in _SPANS.items())
)


THROTTLE_METRICS = tuple(
    MBeanMetric(
        f"{name}_{end}", f"Throttle time of a response to {what} in the last micro-batch, in ms, {word}", ("link",)
    )
    for name, what in (
        ("kafka_producer_producer_metrics_produce_throttle_time", "Produce of the target"),
        ("kafka_consumer_consumer_fetch_manager_metrics_fetch_throttle_time", "Fetch of either cluster"),
    )
    for end, word in (("avg", "mean"), ("max", "greatest"))
)


def throttle_values(throttles: Mapping[str, Span]) -> Iterator[tuple[str, float]]:
    """Names and values of THROTTLE_METRICS; what had no response is left out."""
    spans = [throttles.get(kind, Span()) for kind in ("produce", "fetch") for _ in range(2)]
    for number, (metric, span) in enumerate(zip(THROTTLE_METRICS, spans)):
        if span.number:
            yield metric.name, span.greatest if number % 2 else span.mean


def source_values(copied: Copied, offsets_per_s: float, bytes_per_s: float | None) -> Iterator[tuple[str, float]]:
    """Names and values of SOURCE_METRICS for one partition; unknown values are left out.

    `copied` has the sums since the start, and the ages and latencies of the last minute.
    """
    yield _SOURCE + "record_count", copied.records
    yield _SOURCE + "record_rate", offsets_per_s
    yield _SOURCE + "byte_count", copied.bytes
    if bytes_per_s is not None:
        yield _SOURCE + "byte_rate", bytes_per_s
    yield from _span(_SOURCE + "record_age_ms", copied.age)
    yield from _span(_SOURCE + "replication_latency_ms", copied.latency)


def checkpoint_values(latency: Span) -> Iterator[tuple[str, float]]:
    """Names and values of CHECKPOINT_METRICS for one group and partition."""
    yield from _span(_CHECKPOINT + "checkpoint_latency_ms", latency)


def _span(name: str, span: Span) -> Iterator[tuple[str, float]]:
    if span.number:
        for end, which in _SPANS.items():
            yield name + end, getattr(span, which)
