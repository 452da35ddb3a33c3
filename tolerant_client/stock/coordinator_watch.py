"""Watches how long a group or a transactional id has no coordinator, finds out why, and reports it.

Laws:
- A call ends when it would end with kafka-python.  The reason is reported separately: a warning in the log and an event
  within seconds, and again after each `RecoveryPolicy.coordinator_timeout_ms`.  The error of a call that times out for
  lack of the coordinator names the reason.
- With `RecoveryPolicy.raise_coordinator_unavailable` a call raises the reason once the coordinator has been away for
  `coordinator_timeout_ms`, over however many calls.  The next call checks again, for as long.
- Only a broker's response accuses: where no broker responds to Metadata, the whole cluster is away, which a client
  survives as kafka-python does.
- The lookup takes no time from a call: it runs by itself on the event loop.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import kafka.errors as Errors
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.errors import CoordinatorUnavailableError
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, CoordinatorPartition
from tolerant_client.tracker.events import CoordinatorUnavailable
from tolerant_client.tracker.policy import RecoveryPolicy

log = logging.getLogger(__name__)

_SAY_AFTER = 5.0  # seconds; an election takes less
_ASK_WITHIN = 5.0  # seconds
_ENOUGH_FAILURES = 3  # an election causes one or two
_LONGEST_GAP = 15.0  # seconds; socket_connection_setup_timeout_ms is 10 s by default


class Absence:
    """How long a coordinator has been away: a series of failures without a response between them.

    It is due after `first` seconds (default: `limit`), and again after each `limit`.  Failures further apart than twice
    `limit`, and than an attempt to connect may take, are two series: their caller polls rarely.
    """

    def __init__(self, limit: float, first: float | None = None) -> None:
        self.limit = limit
        self.failures = 0
        self.last_failure = ""
        self._first = limit if first is None else first
        self._is_known = False
        self._since = self._due_at = self._last = 0.0

    def failed(self, why: object, now: float, is_known: bool = False) -> None:
        """Notes a failure; `is_known`: the coordinator was known but did not serve."""
        if not self.failures or now - self._last > max(2 * self.limit, _LONGEST_GAP):
            self.failures = 0
            self._since = now
            self._due_at = now + self._first
        self.failures += 1
        self._last = now
        self._is_known = is_known
        self.last_failure = str(why)

    def answered(self) -> None:
        """Ends the series: the coordinator has responded to a request."""
        self.failures = 0

    def told(self, now: float) -> None:
        """Notes that the caller was told; the next time is due after another `limit` seconds."""
        self._due_at = now + self.limit

    @property
    def is_lasting(self) -> bool:
        """True for more failures than an election causes."""
        return self.failures >= _ENOUGH_FAILURES

    def is_due(self, is_known: bool) -> bool:
        """Whether the caller should be told; a coordinator that was just found gets a chance unless it failed last."""
        return self.is_lasting and self._last >= self._due_at and (not is_known or self._is_known)

    def left(self, now: float) -> float:
        """Seconds until it may become due."""
        return self._first if not self.failures else max(0.0, self._due_at - now)

    def waited_ms(self, now: float) -> float:
        """Milliseconds since the first failure of the series."""
        return (now - self._since) * 1000 if self.failures else 0.0


async def describe_coordinator(manager: Any, name: str, topic: str = OFFSETS_TOPIC) -> CoordinatorPartition | None:
    """Asks one broker after another for the partition of `topic` that `name` belongs to; None where none responds.

    Runs on the manager's event loop for a few seconds at most; asks each broker once, as the first may be the dead one.
    """
    deadline = time.monotonic() + _ASK_WITHIN
    asked: list[Any] = []
    while (left := deadline - time.monotonic()) > 0 and not manager.closed:
        node_id = manager.best_node(but=asked)
        if node_id is None:
            break
        asked.append(node_id)
        # The request must not create the topic: brokers create internal topics with settings of their own.  It is built
        # for each broker: sending sets a request's version to its broker's.
        named = [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        try:
            metadata = await manager.wait_for(manager.send(request, node_id), 1000 * left)
            return CoordinatorPartition.read(name, topic, metadata)
        except Errors.KafkaError as error:
            log.debug("Metadata of %s could not be fetched from node %s: %s", topic, node_id, error)
    return None


class CoordinatorWatch:
    """Notices that the coordinator of `name`, a partition of `topic`, is away; finds out why and reports it."""

    def __init__(self, manager: Any, name: str, topic: str) -> None:
        policy = getattr(manager, "recovery_policy", None) or RecoveryPolicy()
        limit = policy.coordinator_timeout_ms / 1000
        self.name = name
        self.is_raising = policy.raise_coordinator_unavailable
        self.absence = Absence(limit, limit if self.is_raising else min(limit, _SAY_AFTER))
        self._manager = manager
        self._topic = topic
        self._is_looking = False
        self._error: CoordinatorUnavailableError | None = None

    def answered(self) -> None:
        """Notes that the coordinator has responded to a request."""
        self.absence.answered()
        self._error = None

    def take_error(self) -> CoordinatorUnavailableError | None:
        """The error that was found and not yet raised."""
        error, self._error = self._error, None
        return error

    async def look(self) -> None:
        """Finds out what is wrong and reports it, unless a lookup is under way; on the event loop."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            found = await describe_coordinator(self._manager, self.name, self._topic)
        finally:
            self._is_looking = False
        if not self.absence.failures:
            return  # it has responded meanwhile
        now = time.monotonic()
        waited_ms, failure = self.absence.waited_ms(now), self.absence.last_failure
        self.absence.told(now)
        if found is None:
            log.warning(
                "%r: no coordinator for %.1f s, and no broker responds to Metadata (%s); still trying",
                self.name,
                waited_ms / 1000,
                failure,
            )
            return
        self._error = error = found.error(waited_ms, failure)
        log.warning("%s", error)
        self._manager.recovery_event(
            CoordinatorUnavailable(
                "FindCoordinator", -1, self.name, error.topic, error.partition, error.leader, error.replicas,
                error.isr, waited_ms, str(error),
            )
        )  # fmt: skip
