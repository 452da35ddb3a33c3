"""A connection that tells which SASL mechanisms its broker offers where it does not offer ours."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors

from tolerant_client.stock.stock_names import KafkaConnection


class SaslOffer(KafkaConnection):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's connection; it names what the broker offers only where the response has no error code."""

    _offered: tuple[str, ...] = ()

    def _note_offer(self, response: Any) -> None:
        """Keeps the mechanisms that a response to SaslHandshake lists; any response may be given."""
        self._offered = tuple(getattr(response, "mechanisms", None) or self._offered)

    async def _sasl_authenticate(self, timeout_at: float | None = None) -> None:
        """Authenticates, or authenticates again."""
        try:
            await super()._sasl_authenticate(timeout_at)
        except Errors.UnsupportedSaslMechanismError:
            raise Errors.UnsupportedSaslMechanismError(
                f"sasl_mechanism is {self.config['sasl_mechanism']}, and the broker offers"
                f" {' or '.join(self._offered) or 'none'}"
            ) from None
