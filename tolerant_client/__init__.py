"""A compatibility layer on kafka-python that survives lost, late and wrong answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tolerant_client.clients import KafkaAdminClient, KafkaProducer
    from tolerant_client.consumer import KafkaConsumer
    from tolerant_client.errors import OutcomeUnknownError, TolerantClientError
    from tolerant_client.installation import install, uninstall
    from tolerant_client.policy import RecoveryPolicy

__all__ = [
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "OutcomeUnknownError",
    "RecoveryPolicy",
    "TolerantClientError",
    "install",
    "uninstall",
]

_HOMES = {
    "KafkaAdminClient": "tolerant_client.clients",
    "KafkaConsumer": "tolerant_client.consumer",
    "KafkaProducer": "tolerant_client.clients",
    "OutcomeUnknownError": "tolerant_client.errors",
    "RecoveryPolicy": "tolerant_client.policy",
    "TolerantClientError": "tolerant_client.errors",
    "install": "tolerant_client.installation",
    "uninstall": "tolerant_client.installation",
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
    return sorted({*globals(), *__all__})
