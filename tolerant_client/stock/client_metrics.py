"""Recovery counters in kafka-python's own metrics: `client.metrics()["tolerant-client-metrics"]`.

Laws:
- RecoveryCounters is the only store; a metric reads it on demand.
"""

from __future__ import annotations

from typing import Any

from kafka.metrics import AnonMeasurable

from tolerant_client.stock.held_batches import HeldBatches
from tolerant_client.tracker.events import RecoveryCounters

GROUP = "tolerant-client-metrics"

TOTALS = {
    "completed": "Requests whose response arrived.",
    "reordered": "Responses that came after a later one, in time.",
    "lost": "Requests whose response did not come.",
    "requeued": "Requests sent again after their response was lost.",
    "failed": "Requests that ended without a response.",
    "orphan": "Responses that no request waited for.",
    "orphan:late": "Responses to requests that were settled before.",
    "orphan:duplicate": "Responses that came twice.",
    "orphan:unknown": "Responses under an id that was never sent.",
    "orphan:misfit": "Responses that cannot belong to their request.",
    "probe": "Small requests sent to find out whether a response is lost.",
    "retired": "Connections given up.",
}


UNMIRRORED = "unmirrored-records"


def register_held(metrics: Any, held: HeldBatches) -> None:
    """Shows how many records of a producer its own cluster has acknowledged, and the standby perhaps not."""
    name = metrics.metric_name(UNMIRRORED, GROUP, "Records that wait for the standby.")
    metrics.add_metric(name, AnonMeasurable(lambda config, now: held.record_count))


def register(metrics: Any, counters: RecoveryCounters) -> None:
    """Shows the counters in a client's kafka.metrics.Metrics, as <event>-total."""
    for kind, description in TOTALS.items():
        name = metrics.metric_name(kind.replace(":", "-") + "-total", GROUP, description)
        metrics.add_metric(name, AnonMeasurable(lambda config, now, kind=kind: counters.of(kind)))
