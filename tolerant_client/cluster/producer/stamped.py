"""The batches of one producer in one partition: stamped, pipelined, settled in order, never sent twice.

For callers that never send a batch again: transactions that are given up after an error, and filler whose position is read
again then.  (`batch_producer.py` does send again.)  Laws:
A. Sequences follow one another from `sequence` on.  After an error nothing more is sent, except after `append`: what was
   refused there is in no log, and the next batch takes its sequence.  A broker that knows the epoch refuses what is in flight
   after a batch that it has refused.
B. A broker that does not know the producer accepts any sequence.  So where a batch has a fixed position, as in `append_at`,
   the first one goes alone, and what follows is sent once it is in position.  Where no batch of the last 2 s is known to be
   in position (a process may have been frozen), the next one is sent once nothing is in flight and the log ends there.
C. A name is not a topic: with `topic_id` any other topic refuses a batch, where brokers know ids.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.offsets import replicated_end
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import PRODUCE, lane_of
from tolerant_client.cluster.produce import ProducedPartition, ProduceResult, add_sequence
from tolerant_client.cluster.producer.transaction import raise_for_code
from tolerant_client.records.record_batch import BatchHeader, restamp

_SHOWN_S = 2.0


class StampedAppends:
    """Appends to `partition` as a producer, in its transaction if there is one; the batches are stamped in place.

    `may_send` is called before each request, and raises KafkaError once nothing more may be sent.  `what` names the
    operation in the error of a refusal.  With `is_soon` they are few bytes that wait for no quota (Cluster.produce_soon).
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        sequence: int = 0,
        *,
        transactional_id: str | None = None,
        what: str | None = None,
        topic_id: uuid.UUID | None = None,
        may_send: Callable[[], None] = lambda: None,
        is_soon: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._producer = (producer_id, producer_epoch)
        self._sequence = sequence
        self._transactional_id = transactional_id
        self._what = what
        self._topic_ids = {} if topic_id is None else {partition: topic_id}
        self._may_send = may_send
        self._is_soon = is_soon
        self._clock = clock
        self._in_flight: deque[tuple[BatchHeader, float, Any]] = deque()
        self._shown_at = clock()  # when the last batch that was appended was sent

    def send(self, node_id: int, header: BatchHeader, batch: memoryview) -> Any:
        """Sends a batch, which must not be changed until it is settled, and returns the future of Cluster.produce."""
        self._may_send()
        restamp(batch, *self._producer, self._sequence, is_transactional=self._transactional_id is not None)
        self._sequence = add_sequence(self._sequence, header.record_count)
        batches, transactional_id = {self._partition: batch}, self._transactional_id
        if self._is_soon:

            def soon() -> Awaitable[ProduceResult]:
                return self._cluster.produce_soon(node_id, batches, transactional_id=transactional_id)

            future = self._cluster.net.call_soon_with_future(soon)
        else:
            future = self._cluster.produce(
                node_id, batches, transactional_id=transactional_id, topic_ids=self._topic_ids
            )
        self._in_flight.append((header, self._clock(), future))
        return future

    async def _sendable(self, node_id: int) -> None:
        if not self._is_soon:
            await self._cluster.sendable(lane_of(PRODUCE, node_id))

    async def settled(self, most: int = 0) -> AsyncIterator[tuple[BatchHeader, ProducedPartition]]:
        """The batches that were appended, each with its response, until at most `most` are in flight.

        Raises Kafka's error for one that was refused or got no response, and in a transaction ProducerFencedError.
        """
        while self._in_flight and (self._in_flight[0][-1].is_done or len(self._in_flight) > most):
            header, sent_at, future = self._in_flight.popleft()
            (part,) = await future
            if part.error_code and Errors.for_code(part.error_code).invalid_metadata:
                self._cluster.manager.cluster.request_update()  # the known leader may no longer lead
            where = f"{self._partition.topic}-{self._partition.partition}"
            if self._transactional_id is not None:
                raise_for_code(part.error_code, self._what or f"append to {where}")
            raise_for(part.error_code, self._what or f"append to {where} at offset {header.base_offset}")
            self._shown_at = sent_at
            yield header, part

    async def refused_all(self) -> bool:
        """Settles what is in flight after an error of `settled`; whether the broker has refused all of it."""
        codes: list[int] = []
        while self._in_flight:
            *_, future = self._in_flight.popleft()
            try:
                (part,) = await future
            except Errors.KafkaError:
                codes.append(0)  # nobody knows
            else:
                codes.append(part.error_code)
        return all(codes)

    async def append(self, node_id: int, header: BatchHeader, batch: memoryview) -> int:
        """Appends a batch with nothing else in flight; returns its base offset.  Raises what `settled` raises."""
        sequence = self._sequence
        await self._sendable(node_id)
        self.send(node_id, header, batch)
        try:
            ((_, part),) = [each async for each in self.settled()]
        except Errors.KafkaError:
            self._sequence = sequence
            raise
        return part.base_offset

    async def append_at(self, node_id: int, header: BatchHeader, batch: memoryview) -> None:
        """Like `append`, at the header's base offset; raises OffsetOutOfRangeError for a batch that lies elsewhere."""
        self._require_place(header, await self.append(node_id, header, batch))

    async def append_all_at(
        self, node_id: int, batches: Iterable[tuple[BatchHeader, memoryview]], in_flight: int
    ) -> None:
        """Like `append_at`, for many batches, at most `in_flight` of them in flight."""
        for header, batch in batches:
            await self._sendable(node_id)
            if self._clock() - self._shown_at > _SHOWN_S:  # law B
                await self._require_places(0)
                await self._require_end(header.base_offset)
            self.send(node_id, header, batch)
            await self._require_places(in_flight - 1)
        await self._require_places(0)

    async def _require_places(self, most: int) -> None:
        async for header, part in self.settled(most):
            self._require_place(header, part.base_offset)

    async def _require_end(self, offset: int) -> None:
        asked_at = self._clock()
        end = await replicated_end(self._cluster, self._partition)
        if end != offset:
            raise Errors.OffsetOutOfRangeError(
                f"the log of {self._partition.topic}-{self._partition.partition} ended at {offset}, and ends at {end} now"
            )
        self._shown_at = asked_at

    def _require_place(self, header: BatchHeader, base_offset: int) -> None:
        if base_offset != header.base_offset:
            raise Errors.OffsetOutOfRangeError(
                f"filler for offset {header.base_offset} of {self._partition.topic}-{self._partition.partition}"
                f" was appended at {base_offset}"
            )
