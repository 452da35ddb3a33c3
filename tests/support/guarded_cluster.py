"""A real broker on which a user may do what an ACL allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tolerant_client.testing import KafkaCluster


def start_guarded(
    start: Callable[..., KafkaCluster], users: Mapping[str, str], *, heap: str = "256m", **broker_config: str
) -> KafkaCluster:
    """A cluster with an authorizer and a listener SASL for these users, with their passwords (PLAIN).

    The brokers and whoever uses another listener (ANONYMOUS) may do everything.  Dots in names of `broker_config` are
    underscores.
    """
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return start(
        heap=heap,
        broker_config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
            ),
            **{name.replace("_", "."): value for name, value in broker_config.items()},
        },
        listeners={"SASL": "SASL_PLAINTEXT"},
    )
