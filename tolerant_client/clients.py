"""Drop-ins for kafka-python's clients: same arguments, same behaviour, tolerant connections.

    from tolerant_client import KafkaConsumer
    consumer = KafkaConsumer("topic", bootstrap_servers="broker:9092")

Besides kafka-python's own options they take `recovery_policy` and
`recovery_listener`; `recovery_counters` says what happened so far.
"""

from __future__ import annotations

from typing import Any

import kafka

from tolerant_client.events import Listener, RecoveryCounters
from tolerant_client.manager import TolerantNetClient
from tolerant_client.policy import RecoveryPolicy

_MAX_FRAME_BYTES = 100_000_000


class _Recovering:
    """Takes our options out before kafka-python, which rejects those it does not know, sees them."""

    recovery_counters: RecoveryCounters

    def _options(
        self, configs: dict[str, Any], policy: RecoveryPolicy | None, listener: Listener | None
    ) -> dict[str, Any]:
        counters = self.recovery_counters = RecoveryCounters()
        if "kafka_client" in configs:
            return configs

        def make_client(*args: Any, **client_configs: Any) -> TolerantNetClient:
            return TolerantNetClient(
                *args, recovery_policy=policy, recovery_listener=listener, recovery_counters=counters, **client_configs
            )

        return {**configs, "kafka_client": make_client}


class KafkaConsumer(_Recovering, kafka.KafkaConsumer):  # type: ignore[misc]  # kafka-python is untyped
    """kafka.KafkaConsumer that recovers from lost, late, doubled and misnumbered answers."""

    def __init__(
        self,
        *topics: str,
        recovery_policy: RecoveryPolicy | None = None,
        recovery_listener: Listener | None = None,
        **configs: Any,
    ) -> None:
        if super().DEFAULT_CONFIG.get("receive_message_max_bytes", 0) < _MAX_FRAME_BYTES:
            # kafka-python up to 3.0.3 allows 1,000,000, less than an ordinary Fetch answer.
            configs.setdefault("receive_message_max_bytes", _MAX_FRAME_BYTES)
        super().__init__(*topics, **self._options(configs, recovery_policy, recovery_listener))


class KafkaProducer(_Recovering, kafka.KafkaProducer):  # type: ignore[misc]
    """kafka.KafkaProducer that repeats what a broker de-duplicates, and nothing else.

    With `enable_idempotence=False` (or options that imply it) a record whose
    answer was lost fails with OutcomeUnknownError instead of being sent again;
    `RecoveryPolicy(resend_plain_produce=True)` sends it again.
    """

    def __init__(
        self, recovery_policy: RecoveryPolicy | None = None, recovery_listener: Listener | None = None, **configs: Any
    ) -> None:
        super().__init__(**self._options(configs, recovery_policy, recovery_listener))


class KafkaAdminClient(_Recovering, kafka.KafkaAdminClient):  # type: ignore[misc]
    """kafka.KafkaAdminClient on tolerant connections."""

    def __init__(
        self, recovery_policy: RecoveryPolicy | None = None, recovery_listener: Listener | None = None, **configs: Any
    ) -> None:
        super().__init__(**self._options(configs, recovery_policy, recovery_listener))
