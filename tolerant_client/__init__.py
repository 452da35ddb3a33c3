"""A compatibility layer on kafka-python that survives lost, late and wrong responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tolerant_client.errors import (
        CoordinatorUnavailableError,
        NotMirroredError,
        OptionError,
        OutcomeUnknownError,
        RecordBatchError,
        TolerantClientError,
        TransactionOutcomeUnknownError,
    )
    from tolerant_client.mirror.standby.clients import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from tolerant_client.stock.installation import install, recovery_counters, uninstall
    from tolerant_client.tracker.policy import RecoveryPolicy

__all__ = [
    "CoordinatorUnavailableError",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "NotMirroredError",
    "OptionError",
    "OutcomeUnknownError",
    "RecordBatchError",
    "RecoveryPolicy",
    "TolerantClientError",
    "TransactionOutcomeUnknownError",
    "install",
    "recovery_counters",
    "uninstall",
]

# What programs import from `kafka` beside the clients: only the name of the package changes.
_KAFKAS = (
    "AsyncConsumerRebalanceListener",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "DefaultSerializer",
    "Deserializer",
    "IsolationLevel",
    "JsonSerializer",
    "OffsetAndMetadata",
    "OffsetSpec",
    "Serializer",
    "TopicPartition",
    "TopicPartitionReplica",
)
_HOMES = {
    **dict.fromkeys(_KAFKAS, "kafka"),
    "CoordinatorUnavailableError": "tolerant_client.errors",
    "KafkaAdminClient": "tolerant_client.mirror.standby.clients",
    "KafkaConsumer": "tolerant_client.mirror.standby.clients",
    "KafkaProducer": "tolerant_client.mirror.standby.clients",
    "NotMirroredError": "tolerant_client.errors",
    "OptionError": "tolerant_client.errors",
    "OutcomeUnknownError": "tolerant_client.errors",
    "RecordBatchError": "tolerant_client.errors",
    "RecoveryPolicy": "tolerant_client.tracker.policy",
    "TolerantClientError": "tolerant_client.errors",
    "TransactionOutcomeUnknownError": "tolerant_client.errors",
    "install": "tolerant_client.stock.installation",
    "recovery_counters": "tolerant_client.stock.installation",
    "uninstall": "tolerant_client.stock.installation",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import tolerant_client` is cheap."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_KAFKAS})
