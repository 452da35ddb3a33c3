"""The transactional producer that takes the gaps of one partition: its requests, and which of them may be repeated.

Laws:
- A request that was answered with "later" is sent again; one that was not answered never is, and its producer is of
  no more use: what is late then carries an old epoch (KAFKA-17754).
- Versions before transactions v2 (KIP-890) are used throughout: an epoch lasts for any number of transactions.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import kafka.errors as Errors
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.cluster.producer.transaction import TRANSACTION, Coordinators, raise_for_code
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import Gap, filler_batches
from tolerant_client.records.record_batch import BatchHeader, restamp

# Long for what a transaction writes, short for who reads committed beside a writer that was killed in one.
_TRANSACTION_TIMEOUT_MS = 10_000
_PIPELINE = 8  # requests
_PATIENCE_S = 30.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05

# Answers that say that nothing was done yet.
_LATER = (
    Errors.ConcurrentTransactionsError,
    Errors.CoordinatorLoadInProgressError,
    Errors.CoordinatorNotAvailableError,
    Errors.NotCoordinatorError,
    Errors.NodeNotReadyError,  # not sent: the connection is made anew, or throttled (KIP-219)
    Errors.NotEnoughReplicasError,  # a produce of a transaction that is still being looked up (KIP-890)
)

_T = TypeVar("_T")


def gap_transactional_id(link: str, partition: TopicPartition) -> str:
    """The transactional.id that fills gaps of a partition of a link."""
    return f"tolerant-mirror-{link}-gap-{partition.topic}-{partition.partition}"


class GapProducer:
    """One epoch of `transactional_id`, for one partition."""

    def __init__(
        self,
        target: Cluster,
        coordinators: Coordinators,
        transactional_id: str,
        partition: TopicPartition,
        clock: Callable[[], float],
    ) -> None:
        self._target = target
        self._clock = clock
        self._coordinators = coordinators
        self._transactional_id = transactional_id
        self._partition = partition
        self._producer_id = -1
        self._producer_epoch = -1
        self._next_sequence = 0

    async def begin(self) -> None:
        """Takes over; what was open is ended when this returns."""

        def read(answer: Any) -> tuple[int, int]:
            if answer.error_code == Errors.InvalidTransactionTimeoutError.errno:
                raise OptionError(
                    f"Gaps are filled in transactions of {_TRANSACTION_TIMEOUT_MS} ms, more than the target's"
                    " transaction.max.timeout.ms; raise that, or set gap.fill=records"
                )
            self._raise_for(answer.error_code, "InitProducerId")
            return answer.producer_id, answer.producer_epoch

        def request() -> InitProducerIdRequest:
            return InitProducerIdRequest(
                transactional_id=self._transactional_id,
                transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
                max_version=4,
            )

        what = f"taking over {self._transactional_id}"
        try:
            answer = await self._coordinators.ask(TRANSACTION, self._transactional_id, what, request, read)
        except Errors.TransactionalIdAuthorizationFailedError as error:
            raise OptionError(
                f"The mirror may not use the transactional.id {self._transactional_id}; grant it Write on the prefix"
                " tolerant-mirror- of transactional ids, or set gap.fill=records"
            ) from error
        self._producer_id, self._producer_epoch = answer

    async def add(self) -> None:
        """Opens a transaction; the one before is ended, marker and all, when this returns."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def read(answer: Any) -> None:
            (added,) = (part for topic in answer.results_by_topic_v3_and_below for part in topic.results_by_partition)
            self._raise_for(added.partition_error_code, "AddPartitionsToTxn")

        await self._ask(
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._transactional_id,
                v3_and_below_producer_id=self._producer_id,
                v3_and_below_producer_epoch=self._producer_epoch,
                v3_and_below_topics=[topic(name=self._partition.topic, partitions=[self._partition.partition])],
                max_version=3,
            ),
            read,
        )

    async def produce(self, gap: Gap, max_batch_bytes: int) -> None:
        """Appends filler records for `gap`; they have a key, which every topic takes."""
        node = await self._target.leader(self._partition)
        pending: deque[tuple[BatchHeader, Any]] = deque()
        batches = filler_batches(
            gap, is_compacted=True, max_batch_bytes=max_batch_bytes, timestamp_ms=int(time.time() * 1000)
        )
        for number, (header, batch) in enumerate(batches):
            restamp(batch, self._producer_id, self._producer_epoch, self._next_sequence, is_transactional=True)
            self._next_sequence = add_sequence(self._next_sequence, header.record_count)
            if number == 0:  # the broker looks the transaction up, and may ask for patience
                await self._patiently(lambda: self._appended(header, self._send(node, batch)))
                continue
            pending.append((header, self._send(node, batch)))
            if len(pending) >= _PIPELINE:
                await self._appended(*pending.popleft())
        while pending:
            await self._appended(*pending.popleft())

    async def abort(self) -> None:
        """Begins to end the transaction; its marker is written a little later."""
        await self._ask(
            lambda: EndTxnRequest(
                transactional_id=self._transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                committed=False,
                max_version=3,
            ),
            lambda answer: self._raise_for(answer.error_code, "EndTxn"),
        )

    async def ended(self) -> None:
        """Waits until the aborted transaction is over: then nobody writes its marker again."""
        # Asked again, a coordinator says CONCURRENT_TRANSACTIONS until it is done (TransactionCoordinator.scala).
        await self.abort()

    def _send(self, node: int, batch: memoryview) -> Any:
        return self._target.produce(node, {self._partition: batch}, transactional_id=self._transactional_id)

    async def _appended(self, header: BatchHeader, future: Any) -> None:
        (part,) = await future
        self._raise_for(part.error_code, "Produce of filler")
        if part.base_offset != header.base_offset:
            raise Errors.OffsetOutOfRangeError(
                f"filler for offset {header.base_offset} of {self._partition.topic}-{self._partition.partition}"
                f" was appended at {part.base_offset}"
            )

    def _raise_for(self, code: int, what: str) -> None:
        raise_for_code(code, f"{what} of {self._transactional_id}")

    async def _ask(self, request: Callable[[], Any], read: Callable[[Any], _T]) -> _T:
        return await self._patiently(
            lambda: self._coordinators.ask_once(TRANSACTION, self._transactional_id, request, read)
        )

    async def _patiently(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats what was answered with "later", and nothing else."""
        for pause in _pauses(self._clock):
            try:
                return await attempt()
            except _LATER as error:
                last = error
            await self._target.net.sleep(pause)
        raise last


def _pauses(clock: Callable[[], float]) -> Iterator[float]:
    """Seconds between attempts, growing, for as long as patience lasts."""
    deadline = clock() + _PATIENCE_S
    for attempt in itertools.count():
        yield min(_FIRST_PAUSE_S * 1.5**attempt, _LONGEST_PAUSE_S)
        if clock() > deadline:
            return
