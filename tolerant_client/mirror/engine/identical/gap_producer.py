"""The transactional producer that fills the gaps of one partition: which of its requests may be repeated.

Laws:
- A request whose response says "later" is sent again.  One without a response never is, and its producer is discarded:
  the late request then carries an old epoch (KAFKA-17754).
- A transaction with records begins once the node takes them: it would time out behind a quota (produce_window.py, law D).
- Versions before transactions v2 (KIP-890) are used: one epoch lasts for any number of transactions.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.coordinators import TRANSACTION, Coordinators
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import PRODUCE, lane_of
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import PartitionRefusedError
from tolerant_client.mirror.batches.gaps import Gap, GapFill, filler_batches

# Long enough for what a transaction writes; short for read_committed consumers if a writer was killed within one.
_TRANSACTION_TIMEOUT_MS = 10_000
_PIPELINE = 8  # requests
_PATIENCE_S = 30.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05

# Errors that say that nothing was done yet.
_LATER = (
    Errors.ConcurrentTransactionsError,
    Errors.CoordinatorLoadInProgressError,
    Errors.CoordinatorNotAvailableError,
    Errors.NotCoordinatorError,
    Errors.NodeNotReadyError,  # not sent: the connection is being made again, or is throttled (KIP-219)
    Errors.NotEnoughReplicasError,  # a Produce of a transaction that the broker is still verifying (KIP-890)
)

_T = TypeVar("_T")


def gap_transactional_id(link: str, partition: TopicPartition) -> str:
    """The transactional.id of the producer that fills gaps of a link's partition."""
    return f"tolerant-mirror-{link}-gap-{partition.topic}-{partition.partition}"


class GapProducer(ProducerTransaction):
    """A producer for one partition; one epoch of `transactional_id`.

    It fills gaps of the topic that has `topic_id`; `may_send` raises KafkaError once nothing more may be filled.
    """

    _too_long = (
        "Gaps are filled in transactions of {} ms, more than the target's transaction.max.timeout.ms;"
        f" raise that, or set {GapFill.RECORDS.option}"
    )

    def __init__(
        self,
        target: Cluster,
        coordinators: Coordinators,
        transactional_id: str,
        partition: TopicPartition,
        clock: Callable[[], float],
        topic_id: uuid.UUID | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(target, transactional_id, _TRANSACTION_TIMEOUT_MS, coordinators)
        self.topic_id = topic_id
        self._clock = clock
        self._may_send = may_send
        self._partition = partition

    async def begin(self) -> None:
        """Takes over; a transaction that was open is over when this returns."""
        try:
            await super().begin()
        except Errors.TransactionalIdAuthorizationFailedError as error:
            raise PartitionRefusedError(
                f"The mirror may not use the transactional.id {self.transactional_id}; grant it Write on the prefix"
                f" tolerant-mirror- of transactional ids, or set {GapFill.RECORDS.option}"
            ) from error
        self._appends = StampedAppends(
            self._cluster,
            self._partition,
            self.producer_id,
            self.producer_epoch,
            transactional_id=self.transactional_id,
            topic_id=self.topic_id,
            may_send=self._may_send,
            clock=self._clock,
        )

    async def sendable(self) -> None:
        """Waits until the partition's leader takes batches."""
        await self._cluster.sendable(lane_of(PRODUCE, await self._cluster.leader(self._partition)))

    async def add(self) -> None:
        """Opens a transaction; the one before is over, marker included, when this returns."""
        self._may_send()
        await self.add_partitions([self._partition])

    async def produce(self, gap: Gap, max_batch_bytes: int) -> None:
        """Appends filler records for `gap`; they have a key, which every topic accepts."""
        node = await self._cluster.leader(self._partition)
        batches = filler_batches(
            gap, is_compacted=True, max_batch_bytes=max_batch_bytes, timestamp_ms=int(time.time() * 1000)
        )
        first = next(batches)  # the broker verifies the transaction, and may ask us to retry
        await self._patiently(lambda: self._appends.append_at(node, *first))
        await self._appends.append_all_at(node, batches, _PIPELINE)

    async def abort(self) -> None:
        """Begins to abort the transaction; its marker is written a little later.  Call it with nothing in flight."""
        await self._end_txn("ending a transaction", is_committed=False)

    async def ended(self) -> None:
        """Waits until the aborted transaction is over: then its marker is not written again."""
        # To a second EndTxn a coordinator responds CONCURRENT_TRANSACTIONS until it is done (TransactionCoordinator.scala).
        await self.abort()

    async def _ask(
        self, what: str, request: Callable[[], Any], read: Callable[[Any], _T], patience_ms: int | None = None
    ) -> _T:
        """One epoch has many transactions, so a request without a response is not sent again."""
        return await self._patiently(
            lambda: self._coordinators.ask_once(TRANSACTION, self.transactional_id, request, read)
        )

    async def _patiently(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats an attempt whose response says "later", and no other."""
        for pause in _pauses(self._clock):
            try:
                return await attempt()
            except _LATER as error:
                last = error
            await self._cluster.net.sleep(pause)
        raise last


def _pauses(clock: Callable[[], float]) -> Iterator[float]:
    """Seconds between attempts, growing, until the patience ends."""
    deadline = clock() + _PATIENCE_S
    for attempt in itertools.count():
        yield min(_FIRST_PAUSE_S * 1.5**attempt, _LONGEST_PAUSE_S)
        if clock() > deadline:
            return
