"""kafka-python's group coordinator, which reports what is wrong instead of asking for ever.

Laws:
- An absent coordinator is watched and reported as coordinator_watch.py defines.
- A coordinator is found when it has responded to a request, not when its name is known.
- A member claims no partition that it has lost.
- An id that a broker has given out is joined with, or left: no rebalance ends until it is, or until its session ends (KIP-394).
- A join that has begun stays pending until its assignment is taken over.  If it ends between two
  polls, the next poll takes the assignment over; until then heartbeats keep the member in the group.
- Where no broker can be connected to, a call without a timeout ends, and the commit of a close() does not
  use up all of its time.  Both say so, as kafka-python does at the first refused connection.
- All that a close() waits for shares its timeout.  What it has no time to wait for is sent all the same.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import kafka.errors as Errors
from kafka.structs import MemberState

from tolerant_client.errors import CoordinatorUnavailableError
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC
from tolerant_client.stock.coordinator_watch import CoordinatorWatch
from tolerant_client.stock.moved_member import MovedMember
from tolerant_client.stock.stock_names import StickyPartitionAssignor

log = logging.getLogger(__name__)

_MAX_PAUSE_MS = 1_000.0  # retry.backoff.max.ms of KIP-580
_LAST_LOOK_MS = 250.0  # for the lookup of a call whose time is up, so that its error can say why
_ID_WITHIN_MS = 500.0  # a broker gives a new member its id at once
_UNREACHED = 2  # lookups in a row: each goes to a connected broker if there is one
_REACH = 0.5  # seconds between two checks whether any broker can be reached
_HELD = 1.0  # seconds; a broker that is not the coordinator refuses a JoinGroup at once


class TolerantCoordinator(MovedMember):
    """kafka-python's ConsumerCoordinator, same arguments, that does not wait silently for ever."""

    def __init__(self, client: Any, subscription: Any, **configs: Any) -> None:
        super().__init__(client, subscription, **configs)
        self._watch = CoordinatorWatch(self._manager, self.group_id, OFFSETS_TOPIC)
        self._absence = self._watch.absence
        self._told: CoordinatorUnavailableError | None = None  # poll() raises it where kafka-python's may swallow it
        self._next_lookup = 0.0
        self._is_closing = False
        self._closes_by = float("inf")
        self._unreached = 0  # lookups in a row that reached no broker
        self._refusal = ""  # the last error of a refused connection
        self._assigned: Any = None  # by a join that has ended; the next poll takes it over

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """Waits until the coordinator is known; False when `timeout_ms` passed.

        Raises CoordinatorUnavailableError where the policy says so; without `timeout_ms`, and when closing,
        KafkaConnectionError once no broker can be connected to.
        """
        is_patient = timeout_ms is not None and not self._is_closing
        self._unreached = 0
        deadline = float("inf") if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while not self._ends_poll:
            now = time.monotonic()
            # At least one backoff: when the absence is due, the response to the lookup under way is still awaited.
            patience = max(self._absence.left(now), self.config["retry_backoff_ms"] / 1000)
            patience = max(0.0, min(patience, deadline - now, float("inf") if is_patient else _REACH))
            bounded_ms = None if patience == float("inf") else patience * 1000
            try:
                is_known = await super().ensure_coordinator_ready_async(bounded_ms)
            except Errors.RetriableError as error:
                # kafka-python raises the failure of one metadata refresh, although the next broker would respond.
                log.debug("Group %r: metadata for the coordinator lookup: %s", self.group_id, error)
                is_known = False
                pause = min(self.config["retry_backoff_ms"] / 1000, deadline - time.monotonic())
                await self._net.sleep(max(0.0, pause))
            if not is_known and not is_patient and self._unreached >= _UNREACHED:
                why = self._refusal or self._absence.last_failure
                raise Errors.KafkaConnectionError(f"group {self.group_id}: no broker can be connected to: {why}")
            if self._absence.is_due(is_known):
                looking = self._manager.call_soon(self._watch.look)
                if self._watch.is_raising:
                    await self._wait_for(looking, (deadline - time.monotonic()) * 1000)
            if self._watch.is_raising and (wrong := self._watch.take_error()):
                self._told = wrong
                raise wrong
            if is_known or time.monotonic() >= deadline:
                return bool(is_known)
        return False

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Like kafka-python's, which grants its timeout to the commit and then to the LeaveGroup again.

        Where no broker can be connected to, the commit is given up and logged.
        """
        self._is_closing = True
        if timeout_ms is not None:
            self._closes_by = time.monotonic() + timeout_ms / 1000
        super().close(autocommit=autocommit, timeout_ms=timeout_ms)

    async def _wait_for(self, future: Any, timeout_ms: float) -> None:
        try:
            await self._manager.wait_for(future, None if timeout_ms == float("inf") else max(0.0, timeout_ms))
        except Errors.KafkaTimeoutError:
            pass  # the next call gets the result

    def poll(self, timeout_ms: float | None = None) -> bool:
        """Like kafka-python's, which would take a CoordinatorUnavailableError for a poll that found nothing."""
        self._told = None
        is_ready = super().poll(timeout_ms=timeout_ms)
        if self._told is not None:
            raise self._told
        return is_ready

    def commit_offsets_sync(self, offsets: Any, timeout_ms: float | None = None) -> Any:
        """Commits; a timeout for lack of a coordinator raises CoordinatorUnavailableError."""
        with self._saying_why("the commit"):
            return super().commit_offsets_sync(offsets, timeout_ms=timeout_ms)

    def fetch_committed_offsets(self, partitions: Any, timeout_ms: float | None = None) -> Any:
        """Committed offsets; a timeout for lack of a coordinator raises CoordinatorUnavailableError."""
        with self._saying_why("the request for committed offsets"):
            return super().fetch_committed_offsets(partitions, timeout_ms=timeout_ms)

    async def refresh_committed_offsets_if_needed_async(self, timeout_ms: float | None = None) -> bool:
        """Starts partitions without a position at their committed offsets; False when `timeout_ms` passed.

        Uses the committed leader epoch (KIP-320), which kafka-python drops: without it a log that was
        truncated between the commit and a restart goes unnoticed.
        """
        if time.monotonic() < self._looks_at:
            return False
        missing = set(self._subscription.missing_fetch_positions())
        try:
            committed = await self.fetch_committed_offsets_async(missing, timeout_ms=timeout_ms)
        except CoordinatorUnavailableError:
            raise
        except Errors.KafkaTimeoutError:
            return False
        return await self.begin(missing, committed)

    @contextmanager
    def _saying_why(self, what: str) -> Iterator[None]:
        """Turns a timeout into the error that says what is wrong with the coordinator, if that is the reason; else what timed out."""
        try:
            yield
        except CoordinatorUnavailableError:
            raise
        except Errors.KafkaTimeoutError as timeout:
            error = self._watch.take_error() if self._absence.is_lasting else None
            if error is None and self._absence.is_lasting:
                self._net.run(self._wait_for, self._manager.call_soon(self._watch.look), _LAST_LOOK_MS)
                error = self._watch.take_error()
            if error is not None:
                raise error from timeout
            if timeout.args not in ((), (None,)):
                raise
            why = f": {self._absence.last_failure}" if self._absence.failures else ""
            raise Errors.KafkaTimeoutError(f"group {self.group_id}: {what} did not end in time{why}") from timeout

    # -- joining ----------------------------------------------------------------

    async def _do_join_and_sync_async(self) -> Any:
        """The assignment of the join that has ended since the last poll, else of a new one.

        kafka-python would join again and again for as long as joins end between polls.
        """
        if self._assigned is not None:
            return self._assigned
        # kafka-python drops the reasons to rejoin (another subscription, other metadata) once it has sent the
        # subscription and assigned by the metadata: a poll that ended before the join would have been the last
        # to check them.  This is requestRejoinIfNecessary of AbstractCoordinator.java.
        self.request_rejoin()
        try:
            assigned = await super()._do_join_and_sync_async()
        except Errors.KafkaConnectionError as error:
            # kafka-python silently tries the same node again until its backoff has grown.
            self._absence.failed(f"coordinator {self.coordinator_id}: {_name(error)}", time.monotonic(), is_known=True)
            raise
        if not self.rebalance_in_progress():
            raise Errors.IllegalGenerationError(f"group {self.group_id}: the member left while it was joining")
        self._assigned = assigned
        self._enable_heartbeat()
        return assigned

    def group_protocols(self) -> Any:
        """The assignors, with what the member owns: kafka-python's sticky ones claim what they were assigned last, also after it was lost.

        A cooperative group would leave such a partition to a member that does not read it, and so never gives it back.
        """
        own = self._subscription.assigned_partitions()
        for assignor in self._assignors.values():
            if isinstance(assignor, StickyPartitionAssignor) and assignor.member_assignment is not None:
                assignor.member_assignment = [tp for tp in assignor.member_assignment if tp in own]
        return super().group_protocols()

    async def _on_join_complete_async(self, generation: int, member_id: str, protocol: str, assigned: bytes) -> None:
        self._assigned = None
        await super()._on_join_complete_async(generation, member_id, protocol, assigned)

    def reset_generation(self, *args: Any, **kwargs: Any) -> None:
        """Forgets the membership and its assignment."""
        self._assigned = None
        super().reset_generation(*args, **kwargs)

    async def maybe_leave_group_async(self, reason: str | None = None, timeout_ms: float | None = None) -> None:
        """Like kafka-python's, which does not leave under an id that the member has not joined with yet."""
        ends = min(self._closes_by, time.monotonic() + (float("inf") if timeout_ms is None else timeout_ms / 1000))
        joining = self._join_task
        if (
            joining is not None
            and self.rebalance_in_progress()
            and self.is_dynamic_member()
            and not self._generation.has_member_id()
        ):
            with suppress(Exception):  # its response is the id; nobody wants its result
                await self._wait_for(joining, min(_ID_WITHIN_MS, (ends - time.monotonic()) * 1000))
        if self._generation.has_member_id() and not self.stable():
            self.state = MemberState.REBALANCING
        left_ms = max(0.0, ends - time.monotonic()) * 1000
        await super().maybe_leave_group_async(reason, timeout_ms=None if left_ms == float("inf") else left_ms)

    def stable(self) -> bool:
        """Whether the broker expects heartbeats: from the end of the join on, not only from the next poll."""
        return self._assigned is not None or bool(super().stable())

    # -- kafka-python's requests to the coordinator, watched --------------------

    async def _send_group_coordinator_request(self) -> Any:
        # kafka-python asks again at once while the known coordinator refuses connections.
        pause = self._next_lookup - time.monotonic()
        if pause > 0:
            await self._net.sleep(pause)
        grown = self.config["retry_backoff_ms"] * 2.0 ** min(self._absence.failures, 16)
        self._next_lookup = time.monotonic() + min(grown, _MAX_PAUSE_MS) / 1000 * random.uniform(0.8, 1.2)
        try:
            found = await super()._send_group_coordinator_request()
        except Errors.KafkaError as error:
            self._absence.failed(_name(error), time.monotonic())
            is_refused = isinstance(error, Errors.KafkaConnectionError)
            # A broker that throttles us, or has its limit of requests in flight, is not asked either.
            is_unreached = isinstance(error, Errors.NodeNotReadyError) and not self._manager.is_connected
            self._unreached = self._unreached + 1 if is_refused or is_unreached else 0
            if is_refused:
                self._refusal = _name(error)
            raise
        self._unreached = 0
        return found

    def coordinator_dead(self, error: Any) -> None:
        """Forgets the known coordinator."""
        if self.coordinator_id is not None:
            why = f"coordinator {self.coordinator_id}: {_name(error)}"
            self._absence.failed(why, time.monotonic(), is_known=True)
        super().coordinator_dead(error)

    def moved(self, move: Any) -> None:
        """Leaves the group of the former cluster, whose coordinator is watched no more."""
        self._watch.answered()
        super().moved(move)

    def _process_join_group_response(self, response: Any, send_time: float) -> Any:
        if time.monotonic() - send_time > _HELD:
            self._watch.answered()
        result = super()._process_join_group_response(response, send_time)
        self._watch.answered()
        return result

    def _handle_heartbeat_response(self, response: Any, send_time: float) -> Any:
        result = super()._handle_heartbeat_response(response, send_time)
        self._watch.answered()
        return result

    def _handle_offset_commit_response(self, offsets: Mapping[Any, Any], send_time: float, response: Any) -> Any:
        result = super()._handle_offset_commit_response(offsets, send_time, response)
        self._watch.answered()
        return result

    def _handle_offset_fetch_response(self, response: Any) -> Any:
        result = super()._handle_offset_fetch_response(response)
        self._watch.answered()
        return result


def _name(error: Any) -> str:
    """Kafka's name of an error, or its text."""
    return str(getattr(error, "message", None) or error)
