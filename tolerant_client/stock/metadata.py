"""What a client knows of a cluster's brokers and leaders, kept fresh in the background.

Laws:
- The refresh loop lives as long as the client.  kafka-python's ends for good if it waits for the refresh of another caller
  and that one fails, or if the first connection fails: then no leader is ever learned again unless somebody waits for a refresh.
- While no known broker can be connected to, the bootstrap addresses are asked, once a second, and their names are resolved
  again (KIP-899); also if no broker has told the metadata for metadata_recovery_rebootstrap_trigger_ms, or if one says
  REBOOTSTRAP_REQUIRED (KIP-1102).  kafka-python asks them only at the start: a cluster that moved to other addresses is lost.
- An address that leads to another cluster than before is not followed: its topics and offsets are others.  Who knows that
  they are the same moves the client there (bootstrap.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import text_of
from tolerant_client.stock.stock_names import ClusterMetadata

log = logging.getLogger(__name__)

STRATEGIES = ("rebootstrap", "none")
_PAUSE_S = 1.0  # between two rounds of the bootstrap addresses
# What ClusterMetadata keeps of the cluster that it belongs to.
_OF_A_CLUSTER = (
    "config",
    "_bootstrap_brokers",
    "_brokers",
    "_partitions",
    "_broker_partitions",
    "_topic_ids",
    "_topic_names_by_id",
    "_coordinators",
    "_coordinator_brokers",
    "unauthorized_topics",
    "internal_topics",
    "controller",
    "cluster_id",
)
_REBOOTSTRAP_REQUIRED = 129  # kafka-python 3.0 does not know the code


class TolerantMetadata(ClusterMetadata):  # type: ignore[misc]  # kafka-python is untyped
    """Metadata whose refresh loop survives the failure of a refresh, and the loss of all known brokers."""

    _refresh_loop_future: Any
    _failing_since: float | None = None  # when the first refresh failed since the last response
    _is_required = False  # a broker requires that the bootstrap addresses are asked
    _rebootstrapping: Any = None  # the last round of them
    _rebootstrap_at = 0.0
    _pause_s = _PAUSE_S
    _has_warned = False

    def forget(self, config: Mapping[str, Any]) -> None:
        """Knows nothing any more but the bootstrap servers of the next cluster, which are in `config`, and the topics that are asked for."""
        known = ClusterMetadata(**{**self.config, **config})
        with self._lock:
            for name in _OF_A_CLUSTER:
                setattr(self, name, getattr(known, name))
        self._failing_since, self._is_required, self._pause_s, self._has_warned = None, False, _PAUSE_S, False
        self.request_update()

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
        if node_id is not None:
            if self._is_rebootstrapping and self.is_bootstrap(node_id):
                await self._ask_bootstrap_address(node_id)
            else:
                await super()._do_refresh_metadata(node_id)
            return
        if self._manager.is_moving:
            await self._manager.moved()  # which tells the metadata
            return
        if self._must_rebootstrap():
            self._rebootstrap_if_due()
            if self._manager.best_node() is None:
                # Who waits for metadata goes on waiting; the loop looks again after retry_backoff_ms.
                self._failed()
                self._last_refresh_ms = time.monotonic() * 1000
                raise self._manager.not_ready()
        await super()._do_refresh_metadata(None)
        self._pause_s, self._has_warned = _PAUSE_S, False

    async def _ask_bootstrap_address(self, node_id: Any) -> None:
        """Raises KafkaConnectionError if it leads to another cluster."""
        metadata = await self._manager.send(self.metadata_request(), node_id)
        if self.cluster_id and metadata.cluster_id not in (None, "", self.cluster_id):
            raise Errors.KafkaConnectionError(
                f"it leads to cluster {metadata.cluster_id}, and this client belongs to cluster {self.cluster_id}: make a new"
                " client to work with that one"
            )
        self.update_metadata(metadata)

    def _must_rebootstrap(self) -> bool:
        """Whether only the bootstrap addresses can tell where the brokers are now."""
        config = self._manager.config
        if config["metadata_recovery_strategy"] == "none":
            return False
        failing_s = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        is_overdue = failing_s * 1000 > config["metadata_recovery_rebootstrap_trigger_ms"]
        return self._is_required or is_overdue or bool(self._manager.is_cut_off)

    @property
    def _is_rebootstrapping(self) -> bool:
        return self._rebootstrapping is not None and not self._rebootstrapping.is_done

    def _rebootstrap_if_due(self) -> None:
        """Has the bootstrap addresses asked beside the known brokers, of which one may come back first."""
        now = time.monotonic()
        if now >= self._rebootstrap_at and not self._is_rebootstrapping:
            self._rebootstrap_at = now + self._pause_s
            self._rebootstrapping = self._manager.call_soon(self._rebootstrap)

    async def _rebootstrap(self) -> None:
        """Asks the bootstrap addresses once."""
        moves = self._manager.moves
        try:
            if self.config["client_dns_lookup"] != "use_all_dns_ips":  # else names are resolved at each connect
                self._bootstrap_brokers = self._generate_bootstrap_brokers()
            # A broker that could not be connected to since the last round may be out of this client's reach.
            await self._manager.rebootstrap(resets=self._pause_s == _PAUSE_S)
        except Exception as error:
            if not self._has_warned and not self.closed and moves == self._manager.moves:
                self._has_warned = True
                log.warning("No known broker responds, and no bootstrap server tells of others: %s", text_of(error))
            return
        if moves != self._manager.moves:
            return  # they are those of the next cluster
        self._has_warned = False
        log.warning("No known broker responded; the bootstrap servers have told these: %s", self)
        # If these cannot be connected to either, the next rounds are further and further apart.
        longest_s = max(self._manager.config["reconnect_backoff_max_ms"] / 1000, _PAUSE_S)
        self._pause_s = min(2 * self._pause_s, longest_s)
        self._rebootstrap_at = time.monotonic() + self._pause_s

    def _failed(self) -> None:
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def failed_update(self, exception: Any) -> None:
        """Notes that a refresh has failed."""
        self._failed()
        super().failed_update(exception)

    def update_metadata(self, metadata: Any) -> None:
        """Notes what a broker tells; raises KafkaConnectionError if it requires that the bootstrap servers are asked."""
        if metadata.error_code == _REBOOTSTRAP_REQUIRED:
            self._is_required = True
            error = Errors.KafkaConnectionError("a broker requires that the bootstrap servers are asked (KIP-1102)")
            self.failed_update(error)
            raise error
        super().update_metadata(metadata)
        if metadata.brokers:
            self._failing_since, self._is_required = None, False
