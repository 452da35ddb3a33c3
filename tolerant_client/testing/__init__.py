"""Real Kafka clusters and a fault proxy for anyone's tests.

    with KafkaCluster() as cluster, FaultProxy(cluster, faults=[Drop(api="Fetch", count=3)]) as proxy:
        consumer = KafkaConsumer("topic", bootstrap_servers=proxy.bootstrap_servers)

pytest finds the fixtures kafka_cluster, kafka_cluster_factory and fault_proxy automatically.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tolerant_client.testing.artifacts import ClusterStartError as ClusterStartError
    from tolerant_client.testing.cluster import KafkaCluster as KafkaCluster
    from tolerant_client.testing.faults import BadLength as BadLength
    from tolerant_client.testing.faults import Corrupt as Corrupt
    from tolerant_client.testing.faults import Drop as Drop
    from tolerant_client.testing.faults import Duplicate as Duplicate
    from tolerant_client.testing.faults import ErrorCode as ErrorCode
    from tolerant_client.testing.faults import Fault as Fault
    from tolerant_client.testing.faults import Reorder as Reorder
    from tolerant_client.testing.faults import Reset as Reset
    from tolerant_client.testing.faults import RewriteCorrelationId as RewriteCorrelationId
    from tolerant_client.testing.faults import Stale as Stale
    from tolerant_client.testing.faults import Stall as Stall
    from tolerant_client.testing.faults import Truncate as Truncate
    from tolerant_client.testing.proxy import FaultProxy as FaultProxy

_FAULTS = (
    "BadLength", "Corrupt", "Drop", "Duplicate", "ErrorCode", "Fault", "Reorder", "Reset", "RewriteCorrelationId",
    "Stale", "Stall", "Truncate",
)  # fmt: skip
_HOMES = {"ClusterStartError": "artifacts", "FaultProxy": "proxy", "KafkaCluster": "cluster"}
_HOMES |= dict.fromkeys(_FAULTS, "faults")

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    # pytest loads this package's plugin in every project that has it installed, so kafka-python is imported only
    # when a fixture is used.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
