"""What a client knows of a cluster's brokers and leaders, kept fresh in the background.

Law: the refresh loop lives as long as the client.  kafka-python's ends for good if it waits for the refresh of another caller
and that one fails, or if the first connection fails: then no leader is ever learned again unless somebody waits for a refresh.
"""

from __future__ import annotations

import logging
from typing import Any

from tolerant_client.stock.stock_names import ClusterMetadata

log = logging.getLogger(__name__)


class TolerantMetadata(ClusterMetadata):  # type: ignore[misc]  # kafka-python is untyped
    """Metadata whose refresh loop survives the failure of a refresh."""

    _refresh_loop_future: Any

    def start_refresh_loop(self) -> None:
        """Starts the loop; again where it has ended because no broker could be reached at first."""
        loop = self._refresh_loop_future
        if loop is not None and loop.is_done and not self.closed and self._manager.bootstrapped:
            self._refresh_loop_future = None
        super().start_refresh_loop()

    async def _refresh_loop(self) -> None:
        while not self.closed:
            try:
                await super()._refresh_loop()
            except Exception as error:
                if not self._manager.bootstrapped:
                    raise  # bootstrap_async starts the loop again
                log.debug("A metadata refresh failed: %s", error)
