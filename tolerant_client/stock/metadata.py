"""What a client knows of a cluster's brokers and leaders, kept fresh in the background.

Laws:
- The refresh loop lives as long as the client.  kafka-python's ends for good if it waits for the refresh of another caller
  and that one fails, or if the first connection fails: then no leader is ever learned again unless somebody waits for a refresh.
- While no known broker can be connected to, the bootstrap addresses are asked, once a second, and their names are resolved
  again (KIP-899); also if no broker has told the metadata for metadata_recovery_rebootstrap_trigger_ms, or if one says
  REBOOTSTRAP_REQUIRED (KIP-1102).  kafka-python asks them only at the start: a cluster that moved to other addresses is lost.
- An address that leads to another cluster than before is not followed: its topics and offsets are others.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import text_of
from tolerant_client.stock.stock_names import ClusterMetadata

log = logging.getLogger(__name__)

STRATEGIES = ("rebootstrap", "none")
_PAUSE_S = 1.0  # between two rounds of the bootstrap addresses
_REBOOTSTRAP_REQUIRED = 129  # kafka-python 3.0 does not know the code


class TolerantMetadata(ClusterMetadata):  # type: ignore[misc]  # kafka-python is untyped
    """Metadata whose refresh loop survives the failure of a refresh, and the loss of all known brokers."""

    _refresh_loop_future: Any
    _failing_since: float | None = None  # when the first refresh failed since the last response
    _is_required = False  # a broker requires that the bootstrap addresses are asked
    _is_rebootstrapping = False  # the bootstrap addresses are being asked
    _has_warned = False
    _rebootstrap_at = 0.0
    _pause_s = _PAUSE_S

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

    async def _do_refresh_metadata(self, node_id: Any) -> None:
        if node_id is None and self._must_rebootstrap():
            try:
                await self._rebootstrap()
                return
            except Exception as error:
                if self._manager.best_node() is None:  # else a known broker can be asked, and may be the only one left
                    self.failed_update(error)
                    raise
        await super()._do_refresh_metadata(node_id)
        if node_id is None:
            self._pause_s, self._has_warned = _PAUSE_S, False

    def _must_rebootstrap(self) -> bool:
        """Whether only the bootstrap addresses can tell where the brokers are now."""
        config = self._manager.config
        if config["metadata_recovery_strategy"] == "none":
            return False
        failing_s = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        is_overdue = failing_s * 1000 > config["metadata_recovery_rebootstrap_trigger_ms"]
        return self._is_required or is_overdue or bool(self._manager.is_cut_off)

    async def _rebootstrap(self) -> None:
        """Asks the bootstrap addresses once; raises if none tells the brokers, or if it is too soon to ask again."""
        now = time.monotonic()
        try:
            if now < self._rebootstrap_at:
                raise self._manager.not_ready()
            self._is_rebootstrapping, self._rebootstrap_at = True, now + self._pause_s
            if self.config["client_dns_lookup"] != "use_all_dns_ips":  # else names are resolved at each connect
                self._bootstrap_brokers = self._generate_bootstrap_brokers()
            await self._manager.rebootstrap()
        except Exception as error:
            if self._is_rebootstrapping and not self._has_warned:
                self._has_warned = True
                log.warning("No known broker responds, and no bootstrap server tells of others: %s", text_of(error))
            raise
        finally:
            self._is_rebootstrapping = False
        self._has_warned = False
        log.warning("No known broker responded; the bootstrap servers have told these: %s", self)
        # If these cannot be connected to either, the next rounds are further and further apart.
        longest_s = max(self._manager.config["reconnect_backoff_max_ms"] / 1000, _PAUSE_S)
        self._pause_s = min(2 * self._pause_s, longest_s)
        self._rebootstrap_at = now + self._pause_s

    def failed_update(self, exception: Any) -> None:
        """Notes that a refresh has failed."""
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        super().failed_update(exception)

    def update_metadata(self, metadata: Any) -> None:
        """Notes what a broker tells; raises KafkaConnectionError if a bootstrap address leads to another cluster."""
        if metadata.error_code == _REBOOTSTRAP_REQUIRED:
            self._is_required = True
            error = Errors.KafkaConnectionError("a broker requires that the bootstrap servers are asked (KIP-1102)")
            self.failed_update(error)
            raise error
        if self._is_rebootstrapping and self.cluster_id and metadata.cluster_id not in (None, "", self.cluster_id):
            raise Errors.KafkaConnectionError(
                f"it leads to cluster {metadata.cluster_id}, and this client belongs to cluster {self.cluster_id}: make a new"
                " client to work with that one"
            )
        super().update_metadata(metadata)
        if metadata.brokers:
            self._failing_since, self._is_required = None, False
