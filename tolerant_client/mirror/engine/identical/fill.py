"""Fills gaps (M5) with offsets that no consumer sees: aborted transactions, or bare transaction markers.

Laws of the transactions:
A. A transactional.id belongs to one partition of one link.  Its epoch is the lock: InitProducerId aborts the open transaction
   and fences the producer before.
B. A partition is added to a transaction only while the log ends inside a gap.  So whenever a broker writes the marker that
   ends the transaction (in time, after transaction.timeout.ms, at a takeover), the marker takes an offset of that gap.
C. A writer that was not fenced is the only one that has filled since its InitProducerId.  So it may continue after a request
   that got a response; after one that got none, it calls InitProducerId again: the late request then carries an old epoch
   (KAFKA-17754).
D. A fenced writer waits until the other one is done or makes no progress, before it fences back.
E. A gap is filled when the coordinator says that the transaction is over, not when its marker is in the log: until then a
   coordinator that fails over, or that lost the leader's response, writes the marker again
   (TransactionMarkerRequestCompletionHandler.scala), and no broker refuses it.  Such a marker takes one offset more.
   The log end is read again before every transaction that depends on it, and each leaves a part of the gap unfilled, so only
   a repeat of the gap's last marker reaches beyond the gap; it shows in the returned log end.  What a transaction wrote is
   replicated when it is over, so only a writer that takes over asks the leader whether it has more (admin/offsets.py).
F. A writer that a promotion has fenced would fence back, too.  So `may_write` is called between taking over and the first
   request that writes, after all waiting there, since a claim may lapse meanwhile; `may_send` repeats the check before each
   request without asking a broker.  The control is written before anything is fenced (fence.py): a writer that takes over
   after the fence finds the promotion there, and one that took over before is fenced.

Laws of the markers:
G. One request in flight and one writer for each partition: only their order is checked.  So a request begins at a log end
   up to which all is replicated (admin/offsets.py): the leader may have more of our markers than clients see.
H. The log end shows what became of a gap; error codes are merged by producer id (KafkaApis.scala,
   handleWriteTxnMarkersRequest), so they say nothing of a single marker.  A leader that was fenced for a moment may have refused
   some in the middle: what comes after them has other producer ids, of which it has seen no later epoch (gaps.py).
I. Nothing fences markers, so `may_write` returned at most _FRESH_S before each request, and `may_send` is called directly before it.  None
   lies unread at a broker: they have connections that are never throttled (write_abort_markers), with one request in flight on
   each, since a broker reads the next one only once the last is replicated.  A turn there is for the request alone: whoever waited
   for longer than _FRESH_S gives it up, reads again, and has the next one.  fence.py says what may still come late.
J. A writer of transactions may have left a request unread at a broker, which would open a transaction later: so the
   transactional.id that it had is fenced before the first marker (open_gaps.py).
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.coordinators import Coordinators
from tolerant_client.cluster.admin.offsets import replicated_end
from tolerant_client.cluster.admin.transactions import can_write_markers, write_abort_markers
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.connections import MARKERS
from tolerant_client.cluster.soon import SoonTurns
from tolerant_client.errors import OptionError, PartitionRefusedError, ProducerFencedError
from tolerant_client.mirror.batches.gaps import Gap, GapFill, marker_producer
from tolerant_client.mirror.engine.identical.gap_producer import GapProducer, gap_transactional_id
from tolerant_client.mirror.engine.partition_locks import PartitionLocks

# Offsets.  An empty transaction leaves no records, but each takes some ms; longer gaps get one transaction with filler
# records, which only read_uncommitted consumers see.
EMPTY_TRANSACTIONS = 10

_LEFT_BEHIND = 2  # offsets
_OFFSETS_PER_TRANSACTION = 2_000_000  # written long before the transaction times out
_FILLER_BATCH_BYTES = 16 << 10  # fits any max.message.bytes that is in use
_MARKERS_PER_REQUEST = 2_000
_CONTENTIONS = 8  # takeovers in one call
_QUIET_S = (0.05, 1.0)  # how long the log must not move before we fence back: at first, at most
_SETTLED_S = 5.0
_LANES = 8  # connections to a node for markers: over a distance each takes as long as a response
_FRESH_S = 1.0  # what was read before markers waited for those of other partitions

# Raises once the partition may not be written: LinkPromotedError, or a retriable error if it is not claimed.
MayWrite = Callable[[TopicPartition], Awaitable[None]]
MaySend = Callable[[TopicPartition], None]  # the same, without asking a broker
Fence = Callable[[TopicPartition], Awaitable[bool]]  # of who fills with transactions; whether anything was fenced


async def fences_nobody(_: TopicPartition) -> bool:
    """For logs of which nobody has ever filled a gap with transactions."""
    return False


class TransactionFiller:
    """Fills gaps with aborted transactions (laws A to F); on the loop of `target`."""

    def __init__(
        self,
        target: Cluster,
        link: str,
        may_write: MayWrite,
        may_send: MaySend = lambda partition: None,
        *,
        empty_transactions: int = EMPTY_TRANSACTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._link = link
        self._may_write = may_write
        self._may_send = may_send
        self._empty_transactions = max(empty_transactions, 1)
        self._clock = clock
        self._coordinators = Coordinators(target)
        self._producers: dict[TopicPartition, GapProducer] = {}
        self._locks = PartitionLocks()

    async def fill(
        self,
        partition: TopicPartition,
        gap: Gap,
        *,
        max_batch_bytes: int = _FILLER_BATCH_BYTES,
        topic_id: uuid.UUID | None = None,
    ) -> int:
        """Fills what the log does not have yet of a gap; returns the last log end that it read.

        The caller has read the log end at the gap's start.  `gap.until_offset` is returned if all is well; any other offset
        means that the log is not what the caller expected.  A second call for the partition waits for the first.
        Raises LinkPromotedError, PartitionRefusedError and KafkaError, retriable or not; the log then has a part of the gap or all
        of it.
        """
        async with self._locks.held([partition]) as has_waited:  # two fills of one process would not fence each other
            if partition in self._producers and self._producers[partition].topic_id != topic_id:
                del self._producers[partition]
            # Law C: while nobody has fenced us, the log still ends where the caller read it.
            is_known = partition in self._producers and not has_waited
            end = gap.from_offset if is_known else await replicated_end(self._target, partition)
            if has_waited and partition in self._producers:
                await self._may_write(partition)
            return await self._fill(partition, gap, end, max_batch_bytes, topic_id)

    async def _fill(
        self, partition: TopicPartition, gap: Gap, end: int, max_batch_bytes: int, topic_id: uuid.UUID | None
    ) -> int:
        contentions = 0
        while gap.from_offset <= end < gap.until_offset:
            producer = self._producers.get(partition)
            try:
                if producer is None:
                    transactional_id = gap_transactional_id(self._link, partition)
                    producer = GapProducer(
                        self._target,
                        self._coordinators,
                        transactional_id,
                        partition,
                        self._clock,
                        topic_id,
                        partial(self._may_send, partition),
                    )
                    await producer.begin()
                    end = await replicated_end(self._target, partition)  # law A: now nobody else moves it inside a gap
                    await self._may_write(partition)
                    self._producers[partition] = producer
                    continue
                goal = await self._extend(producer, Gap(end, gap.until_offset), max_batch_bytes)
                end = await self._log_end(partition)
                if end < goal:
                    raise _behind(self._target, partition, end, goal)
            except ProducerFencedError as error:
                self._producers.pop(partition, None)
                contentions += 1
                if contentions > _CONTENTIONS:
                    raise Errors.ConcurrentTransactionsError(
                        f"other writers of link {self._link} fill {partition.topic}-{partition.partition}, too"
                    ) from error
                end = await self._left_alone(partition, end, gap.until_offset, contentions)
            except BaseException as error:
                self._producers.pop(partition, None)  # law C
                if getattr(error, "invalid_metadata", False):
                    self._target.manager.cluster.request_update()  # the known leader may have changed
                raise
        return end

    async def _log_end(self, partition: TopicPartition) -> int:
        return (await self._target.list_offsets({partition: LATEST}))[partition]

    async def _extend(self, producer: GapProducer, gap: Gap, max_batch_bytes: int) -> int:
        """Fills a part of a gap from its start; returns the offset up to which it is filled."""
        remaining = gap.until_offset - gap.from_offset
        if remaining <= self._empty_transactions:
            count = (remaining + 1) // 2
            for _ in range(count):
                await producer.add()
                await producer.abort()
        else:
            # A few offsets are left to empty transactions: there is room for a repeated marker among them.
            count = max(min(remaining - _LEFT_BEHIND, _OFFSETS_PER_TRANSACTION), 2)
            await producer.sendable()
            await producer.add()
            await producer.produce(Gap(gap.from_offset, gap.from_offset + count - 1), max_batch_bytes)
            await producer.abort()
        await producer.ended()
        return gap.from_offset + count

    async def _left_alone(self, partition: TopicPartition, end: int, until: int, contentions: int) -> int:
        """Waits until the log reaches `until` or does not move for a time; returns its end (law D)."""
        quiet = random.uniform(0.5, 1.5) * min(_QUIET_S[0] * 2 ** (contentions - 1), _QUIET_S[1])
        deadline = self._clock() + quiet
        while end < until and self._clock() < deadline:
            await self._target.net.sleep(quiet / 5)
            now = await self._log_end(partition)
            if now > end:
                end, deadline = now, self._clock() + quiet
        return end


class MarkerFiller:
    """Fills gaps with bare abort markers (laws G to J); on the loop of `target`."""

    def __init__(
        self,
        target: Cluster,
        may_write: MayWrite,
        may_send: MaySend = lambda partition: None,
        fence: Fence = fences_nobody,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._may_write = may_write
        self._may_send = may_send
        self._fence = fence
        self._clock = clock
        self._unanswered: dict[TopicPartition, float] = {}  # when a request was sent that got no response
        # Where a request left a hole: up to which offset the next series of producer ids fills it, and which that is.
        self._holes: dict[TopicPartition, tuple[int, int]] = {}
        self._locks = PartitionLocks()
        self._turns: dict[tuple[int, str], SoonTurns] = {}  # by node and lane, law I

    def has_unanswered(self, partition: TopicPartition) -> bool:
        """Whether markers may still arrive that were sent before."""
        return partition in self._unanswered

    async def fill(
        self, partition: TopicPartition, gap: Gap, *, max_batch_bytes: int = 0, topic_id: uuid.UUID | None = None
    ) -> int:
        """Like TransactionFiller.fill, without batches; an end beyond the gap means repeated markers, or others' markers."""
        await self._target.connect()
        async with self._locks.held([partition]) as has_waited:
            is_known = partition not in self._unanswered and not has_waited
            end = gap.from_offset if is_known else await self._settled(partition)
            if not can_write_markers(self._target):
                raise _too_old()
            return await self._fill(partition, gap, end)

    async def _fill(self, partition: TopicPartition, gap: Gap, end: int) -> int:
        has_waited = False  # for its turn, longer than what it had read is fresh
        while gap.from_offset <= end < gap.until_offset:
            if await self._fence(partition):
                end = await replicated_end(self._target, partition)  # a transaction that it ended has moved it
                continue
            offsets = range(end, min(end + _MARKERS_PER_REQUEST, gap.until_offset))
            until, series = self._holes.get(partition, (0, 0))
            producers = [marker_producer(offset, series if offset < until else 0) for offset in offsets]
            node = await self._target.leader(partition)
            await self._may_write(partition)
            asked_at = self._clock()  # it may take longer than that itself
            lane = f"{MARKERS}-{partition.partition % _LANES}"
            turns = self._turns.setdefault((node, lane), SoonTurns(has_sequences=False))
            async with turns.turn(is_next=has_waited):
                if not (has_waited := self._clock() - asked_at > _FRESH_S):
                    self._may_send(partition)
                    self._unanswered[partition] = self._clock()
                    try:
                        codes = await write_abort_markers(self._target, node, partition, producers, lane)
                    except Errors.IncompatibleBrokerVersion as error:
                        # Nothing was sent: a running upgrade has not reached this broker yet.
                        del self._unanswered[partition]
                        raise _too_old() from error
                    del self._unanswered[partition]
            if has_waited:  # nobody waits for what it reads now
                end = await replicated_end(self._target, partition)
                continue
            self._raise_for(codes - {Errors.InvalidProducerEpochError.errno}, partition)
            # Markers that are there already are refused; then at least one must be new.
            goal = offsets.start + 1 if codes else offsets.stop
            end = await replicated_end(self._target, partition)
            if end < offsets.stop:
                self._holes[partition] = offsets.stop, (series if end < until else 0) + 1  # law H
            if end < goal:
                raise _behind(self._target, partition, end, goal)
        return end

    def _raise_for(self, codes: set[int], partition: TopicPartition) -> None:
        if not codes:
            return
        if Errors.ClusterAuthorizationFailedError.errno in codes:
            raise PartitionRefusedError(
                "Filling gaps with markers needs the permission ClusterAction on the target cluster;"
                f" grant it to the mirror's user, or set {GapFill.TRANSACTIONS.option}"
            ) from Errors.ClusterAuthorizationFailedError()
        error = Errors.for_code(max(codes))(f"WriteTxnMarkers for {partition.topic}-{partition.partition}")
        if getattr(error, "invalid_metadata", False):
            self._target.manager.cluster.request_update()  # the known leader may have changed
        raise error

    async def _settled(self, partition: TopicPartition) -> int:
        """The log end, after a request without a response has had time to arrive."""
        while (since := self._unanswered.get(partition)) is not None:
            if self._clock() - since > _SETTLED_S:
                del self._unanswered[partition]
            else:
                await self._target.net.sleep(_SETTLED_S / 10)
        return await replicated_end(self._target, partition)


def _too_old() -> OptionError:
    return OptionError(
        f"Filling gaps with markers needs target brokers of Kafka 2.8 or newer; set {GapFill.TRANSACTIONS.option}"
    )


def _behind(target: Cluster, partition: TopicPartition, end: int, goal: int) -> Exception:
    """The error for a log end of a leader that was replaced, or that lost what was replicated."""
    target.manager.cluster.request_update()
    error: Exception = Errors.OffsetNotAvailableError(
        f"the log of {partition.topic}-{partition.partition} ends at {end}, but it was written up to {goal}"
    )
    return error
