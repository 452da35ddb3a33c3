"""Recovery counters in kafka-python's own metrics: `client.metrics()["tolerant-client-metrics"]`.

Laws:
- RecoveryCounters is the one store; a metric reads it when it is asked.
"""

from __future__ import annotations

from typing import Any

from kafka.metrics import AnonMeasurable

from tolerant_client.tracker.events import RecoveryCounters

GROUP = "tolerant-client-metrics"

TOTALS = {
    "completed": "Requests whose answer arrived.",
    "reordered": "Answers that came after a later one, in time.",
    "lost": "Requests whose answer did not come.",
    "requeued": "Requests sent again after their answer was lost.",
    "failed": "Requests that ended without an answer.",
    "orphan": "Answers that no request waited for.",
    "orphan:late": "Answers to requests that were settled before.",
    "orphan:duplicate": "Answers that came twice.",
    "orphan:unknown": "Answers under an id that was never sent.",
    "orphan:misfit": "Answers that cannot be those of their request.",
    "probe": "Small requests sent to find out whether an answer is lost.",
    "retired": "Connections given up.",
}


def register(metrics: Any, counters: RecoveryCounters) -> None:
    """Shows the counters in a client's kafka.metrics.Metrics, as <event>-total."""
    for kind, description in TOTALS.items():
        name = metrics.metric_name(kind.replace(":", "-") + "-total", GROUP, description)
        metrics.add_metric(name, AnonMeasurable(lambda config, now, kind=kind: counters.of(kind)))
