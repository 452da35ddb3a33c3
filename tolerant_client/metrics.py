"""Recovery counters for Prometheus, in one line:

    from prometheus_client import REGISTRY
    from tolerant_client.metrics import RecoveryCollector

    REGISTRY.register(RecoveryCollector(consumer, producer))

kafka-python's own metrics show the same counters without this module (client_metrics.py).

Law: RecoveryCounters is the only store; a scrape reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka import KafkaProducer
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tolerant_client.tracker.events import RecoveryCounters


class RecoveryCollector(Collector):
    """A Prometheus collector: tolerant_client_recovery_events_total{kind,api,node,client_id}.

    Each source is a client of tolerant_client, a RecoveryCounters, or a function that returns
    one (tolerant_client.recovery_counters covers all stock clients).  The label `node` is empty
    where no broker id is known.  A registry takes only one collector of this metric, so pass
    several clients to one: RecoveryCollector(consumer, producer).  `client_id` defaults to
    each client's own.
    """

    def __init__(self, *sources: Any, client_id: str | None = None) -> None:
        self._sources = sources
        self._client_id = client_id

    def collect(self) -> Iterable[CounterMetricFamily]:
        """The current counts, summed where two sources share all labels."""
        family = CounterMetricFamily(
            "tolerant_client_recovery_events",
            "What recovery did about responses that were missing, late or wrong",
            labels=["kind", "api", "node", "client_id"],
        )
        sums: dict[tuple[str, str, str, str], int] = {}
        for source in self._sources:
            client_id = _client_id_of(source) if self._client_id is None else self._client_id
            for (kind, api, node), count in _counters_of(source).as_dict().items():
                labels = kind, api, "" if node is None else str(node), client_id
                sums[labels] = sums.get(labels, 0) + count
        for labels, count in sums.items():
            family.add_metric(labels, count)
        yield family


def _counters_of(source: Any) -> RecoveryCounters:
    if isinstance(source, RecoveryCounters):
        return source
    counters: RecoveryCounters
    if callable(source):
        counters = source()
        return counters
    if hasattr(source, "recovery_counters"):
        counters = source.recovery_counters
        return counters
        # After install() a stock client's counters are only in its connection manager, a producer's in its sender's.
    client = source._sender._client if isinstance(source, KafkaProducer) else source._client
    counters = client._manager.recovery_counters
    return counters


def _client_id_of(source: Any) -> str:
    config = getattr(source, "config", None) or {}
    return str(config.get("client_id", ""))
