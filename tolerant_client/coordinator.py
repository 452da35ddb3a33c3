"""kafka-python's group coordinator that says what is wrong instead of asking for ever.

Laws:
- A call that needs the coordinator and does not get through to it for
  `RecoveryPolicy.coordinator_timeout_ms` raises CoordinatorUnavailableError,
  made from fresh metadata.  The next call looks again, as long again.
- Only a broker's answer accuses: where no broker can be asked for metadata,
  the whole cluster is away, which a client survives as kafka-python does.
- A coordinator is found when it has answered a request, not when its name is known.
- A join that has begun is needed until its assignment is taken over.  One that ends between two
  polls waits for the next one, which takes it over; heartbeats keep the member's place until then.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from typing import Any

import kafka.errors as Errors
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import OffsetAndMetadata

from tolerant_client.coordinator_partition import OFFSETS_TOPIC, CoordinatorPartition
from tolerant_client.errors import CoordinatorUnavailableError
from tolerant_client.policy import RecoveryPolicy

log = logging.getLogger(__name__)

_ASK_TIMEOUT_MS = 5_000.0
_MAX_PAUSE_MS = 1_000.0  # retry.backoff.max.ms of KIP-580
_ENOUGH_FAILURES = 3  # one or two are an election
_LONGEST_GAP = 15.0  # seconds; socket_connection_setup_timeout_ms is 10 by default
_HELD = 1.0  # seconds; a broker that is not the coordinator refuses a JoinGroup at once


class Absence:
    """How long a coordinator has not been there: a series of failures without an answer between them.

    Two failures further apart than twice `limit` seconds, and than connecting
    may take, are two series: their caller polls rarely.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.failures = 0
        self.last_failure = ""
        self._is_known = False
        self._since = self._first = self._last = 0.0

    def failed(self, why: object, now: float, is_known: bool = False) -> None:
        """Notes a failure; `is_known`: a coordinator was named and did not serve."""
        if not self.failures or now - self._last > max(2 * self.limit, _LONGEST_GAP):
            self.failures = 0
            self._since = self._first = now
        self.failures += 1
        self._last = now
        self._is_known = is_known
        self.last_failure = str(why)

    def answered(self) -> None:
        """Ends the series: the coordinator has answered a request."""
        self.failures = 0

    def told(self, now: float) -> None:
        """The caller knows; the next time is due after `limit` seconds more."""
        self._first = now

    @property
    def is_lasting(self) -> bool:
        """True for more than the odd failure of an election."""
        return self.failures >= _ENOUGH_FAILURES

    def is_due(self, is_known: bool) -> bool:
        """Whether the caller should be told; a coordinator just named has its chance unless it failed last."""
        return self.is_lasting and self._last - self._first >= self.limit and (not is_known or self._is_known)

    def left(self, now: float) -> float:
        """Seconds until it may become due."""
        return self.limit if not self.failures else max(0.0, self._first + self.limit - now)

    def waited_ms(self, now: float) -> float:
        """Milliseconds since the first failure of the series."""
        return (now - self._since) * 1000 if self.failures else 0.0


async def describe_coordinator(manager: Any, name: str, topic: str = OFFSETS_TOPIC) -> CoordinatorPartition | None:
    """Asks any broker for the partition of `topic` that `name` belongs to; None where no broker answers.

    On the manager's event loop, at most a few seconds.
    """
    # Never created by asking: an internal topic of the broker's own making has its own settings.
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    try:
        metadata = await manager.wait_for(manager.send(request), _ASK_TIMEOUT_MS)
    except Errors.KafkaError as error:
        log.debug("Metadata of %s cannot be had: %s", topic, error)
        return None
    return CoordinatorPartition.read(name, topic, metadata)


class TolerantCoordinator(ConsumerCoordinator):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's ConsumerCoordinator, same arguments, whose silence has an end."""

    def __init__(self, client: Any, subscription: Any, **configs: Any) -> None:
        super().__init__(client, subscription, **configs)
        policy = getattr(self._manager, "recovery_policy", None) or RecoveryPolicy()
        self._absence = Absence(policy.coordinator_timeout_ms / 1000)
        self._next_lookup = 0.0
        self._assigned: Any = None  # by a join that has ended; the next poll takes it over

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """Waits until the coordinator is known; False when `timeout_ms` passed.

        Raises CoordinatorUnavailableError when the policy's time passed, over however many calls.
        """
        deadline = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            now = time.monotonic()
            # Not below a pause: at the end of the time the answer of the lookup under way is still awaited.
            patience = max(self._absence.left(now), self.config["retry_backoff_ms"] / 1000)
            patience = max(0.0, min(patience, deadline - now))
            bounded_ms = None if patience == float("inf") else patience * 1000
            try:
                is_known = await super().ensure_coordinator_ready_async(bounded_ms)
            except Errors.RetriableError as error:
                # kafka-python lets the failure of one metadata refresh out, where the next broker would answer.
                log.debug("Group %r: metadata for the coordinator lookup: %s", self.group_id, error)
                is_known = False
                pause = min(self.config["retry_backoff_ms"] / 1000, deadline - time.monotonic())
                await self._net.sleep(max(0.0, pause))
            if self._absence.is_due(is_known):
                await self._say_what_is_wrong()
            if is_known or time.monotonic() >= deadline:
                return bool(is_known)

    def commit_offsets_sync(self, offsets: Any, timeout_ms: float | None = None) -> Any:
        """Commits; a timeout for want of a coordinator raises CoordinatorUnavailableError."""
        try:
            return super().commit_offsets_sync(offsets, timeout_ms=timeout_ms)
        except Errors.KafkaTimeoutError as error:
            self._raise_cause(error)
            raise

    def fetch_committed_offsets(self, partitions: Any, timeout_ms: float | None = None) -> Any:
        """Committed offsets; a timeout for want of a coordinator raises CoordinatorUnavailableError."""
        try:
            return super().fetch_committed_offsets(partitions, timeout_ms=timeout_ms)
        except Errors.KafkaTimeoutError as error:
            self._raise_cause(error)
            raise

    async def refresh_committed_offsets_if_needed_async(self, timeout_ms: float | None = None) -> bool:
        """Starts partitions without a position at their committed offsets; False when `timeout_ms` passed.

        With the leader epoch that was committed (KIP-320), which kafka-python drops: without it a
        log that was truncated between the commit and a restart goes unnoticed.
        """
        missing = set(self._subscription.missing_fetch_positions())
        try:
            committed = await self.fetch_committed_offsets_async(missing, timeout_ms=timeout_ms)
        except Errors.KafkaTimeoutError:
            return False
        for partition, offset in committed.items():
            # Where it is missing (3.0.4) a position older than its leader is validated again on every poll, for ever.
            can_validate = hasattr(self._subscription.assignment[partition], "_current_leader_epoch")
            epoch = offset.leader_epoch if can_validate else -1
            self._subscription.seek(partition, OffsetAndMetadata(offset.offset, "", epoch))
        return True

    def _raise_cause(self, timeout: Exception) -> None:
        if not self._absence.is_lasting:
            return
        try:
            self._net.run(self._say_what_is_wrong)
        except CoordinatorUnavailableError as error:
            raise error from timeout

    async def _say_what_is_wrong(self) -> None:
        found = await describe_coordinator(self._manager, self.group_id)
        now = time.monotonic()
        waited_ms, failure = self._absence.waited_ms(now), self._absence.last_failure
        self._absence.told(now)
        if found is None:
            log.warning(
                "Group %r: no broker has answered for %.1f s (%s); still trying",
                self.group_id, waited_ms / 1000, failure,
            )  # fmt: skip
            return
        raise found.error(waited_ms, failure)

    # -- joining ----------------------------------------------------------------

    async def _do_join_and_sync_async(self) -> Any:
        """The assignment of the join that has ended since the last poll, else of a new one.

        kafka-python would join once more, and again, for as long as joins end between polls.
        """
        if self._assigned is not None:
            return self._assigned
        # Its reasons (another subscription, other metadata) are gone for kafka-python once it has sent the
        # subscription and assigned by the metadata: a poll that ended before the join would have been the last
        # to look at it.  As requestRejoinIfNecessary of AbstractCoordinator.java.
        self.request_rejoin()
        try:
            assigned = await super()._do_join_and_sync_async()
        except Errors.KafkaConnectionError as error:
            # kafka-python tries the same node again without a word, until its pauses have grown.
            self._absence.failed(f"coordinator {self.coordinator_id}: {_name(error)}", time.monotonic(), is_known=True)
            raise
        if not self.rebalance_in_progress():
            raise Errors.IllegalGenerationError(f"group {self.group_id}: the member left while it was joining")
        self._assigned = assigned
        self._enable_heartbeat()
        return assigned

    async def _on_join_complete_async(self, generation: int, member_id: str, protocol: str, assigned: bytes) -> None:
        self._assigned = None
        await super()._on_join_complete_async(generation, member_id, protocol, assigned)

    def reset_generation(self, *args: Any, **kwargs: Any) -> None:
        """Forgets the membership, and what was assigned with it."""
        self._assigned = None
        super().reset_generation(*args, **kwargs)

    def stable(self) -> bool:
        """Whether the broker expects heartbeats: from the end of the join on, not only from the next poll."""
        return self._assigned is not None or bool(super().stable())

    # -- what kafka-python does with the coordinator, watched -------------------

    async def _send_group_coordinator_request(self) -> Any:
        # kafka-python asks again at once while the coordinator it was told of refuses connections.
        pause = self._next_lookup - time.monotonic()
        if pause > 0:
            await self._net.sleep(pause)
        grown = self.config["retry_backoff_ms"] * 2.0 ** min(self._absence.failures, 16)
        self._next_lookup = time.monotonic() + min(grown, _MAX_PAUSE_MS) / 1000 * random.uniform(0.8, 1.2)
        try:
            return await super()._send_group_coordinator_request()
        except Errors.KafkaError as error:
            self._absence.failed(_name(error), time.monotonic())
            raise

    def coordinator_dead(self, error: Any) -> None:
        """Forgets the coordinator that was known."""
        if self.coordinator_id is not None:
            why = f"coordinator {self.coordinator_id}: {_name(error)}"
            self._absence.failed(why, time.monotonic(), is_known=True)
        super().coordinator_dead(error)

    def _process_join_group_response(self, response: Any, send_time: float) -> Any:
        if time.monotonic() - send_time > _HELD:
            self._absence.answered()
        result = super()._process_join_group_response(response, send_time)
        self._absence.answered()
        return result

    def _handle_heartbeat_response(self, response: Any, send_time: float) -> Any:
        result = super()._handle_heartbeat_response(response, send_time)
        self._absence.answered()
        return result

    def _handle_offset_commit_response(self, offsets: Mapping[Any, Any], send_time: float, response: Any) -> Any:
        result = super()._handle_offset_commit_response(offsets, send_time, response)
        self._absence.answered()
        return result

    def _handle_offset_fetch_response(self, response: Any) -> Any:
        result = super()._handle_offset_fetch_response(response)
        self._absence.answered()
        return result


def _name(error: Any) -> str:
    """Kafka's name of an error, or its own words."""
    return str(getattr(error, "message", None) or error)
