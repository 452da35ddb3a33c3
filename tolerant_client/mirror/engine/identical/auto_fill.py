"""Fills each gap the way that the target's brokers allow then: with markers, which need a right, or with transactions.

Laws:
A. Markers are preferred: a coordinator that moves to another broker may write the end of a transaction twice (law E of fill.py).
B. A way is given up only between two reads of the log, never within a gap: markers that are refused are trouble, after which the
   position is read again and open transactions are ended (open_gaps.py).
C. The brokers are asked at most once in _LAST_S, for all partitions.  A refusal counts for as long, whatever they say of our
   rights: they learn of a change one after the other.
D. Who has sent markers without a response fills with markers until the log shows what became of them.
E. A long gap gets one transaction, which takes as long as a short one, and markers at its end: so what the coordinator writes
   twice lies inside the gap.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import kafka.errors as Errors
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import may_write_markers
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.identical.fill import Fence, MarkerFiller, MaySend, MayWrite, TransactionFiller

_LAST_S = 60.0
_LONG, _REST = 4_000, 100  # offsets: of a gap that takes several requests of markers, and of its end


class AutoFiller:
    """Fills gaps with markers where the target's brokers take them of us, else with transactions; on the loop of `target`."""

    def __init__(
        self,
        target: Cluster,
        transactions: TransactionFiller,
        markers: MarkerFiller,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._transactions = transactions
        self._markers = markers
        self._clock = clock
        self._told: tuple[float, bool] | None = None  # when, and whether markers may be written
        self._asking: Future | None = None

    async def fill(
        self, partition: TopicPartition, gap: Gap, *, max_batch_bytes: int, topic_id: uuid.UUID | None = None
    ) -> int:
        """Like TransactionFiller.fill; lacking a right to write markers is no error."""
        if not (self._markers.has_unanswered(partition) or await self._may_write_markers()):
            return await self._transactions.fill(partition, gap, max_batch_bytes=max_batch_bytes, topic_id=topic_id)
        if gap.until_offset - gap.from_offset > _LONG and not self._markers.has_unanswered(partition):
            first = Gap(gap.from_offset, gap.until_offset - _REST)
            end = await self._transactions.fill(partition, first, max_batch_bytes=max_batch_bytes, topic_id=topic_id)
            if not first.until_offset <= end < gap.until_offset:
                return end
            gap = Gap(end, gap.until_offset)
        try:
            return await self._markers.fill(partition, gap)
        except KafkaError as error:
            if not _is_refusal(error):
                raise
            self._told = (self._clock(), False)
            raise _not_taken(partition, error) from error

    async def _may_write_markers(self) -> bool:
        if self._told is None or self._clock() - self._told[0] > _LAST_S:
            if self._asking is None:
                self._asking = self._target.net.call_soon_with_future(self._ask)
            await self._asking
        assert self._told is not None
        return self._told[1]

    async def _ask(self) -> None:
        try:
            self._told = (self._clock(), await may_write_markers(self._target))
        finally:
            self._asking = None


def _is_refusal(error: KafkaError) -> bool:
    """Whether a broker takes no markers, or none of ours; a running upgrade may not have reached it yet."""
    return isinstance(error, OptionError) or isinstance(error.__cause__, Errors.ClusterAuthorizationFailedError)


def _not_taken(partition: TopicPartition, error: KafkaError) -> KafkaError:
    """The passing trouble after which the gap is filled with transactions."""
    later: KafkaError = Errors.OffsetNotAvailableError(
        f"the gaps of {partition.topic}-{partition.partition} are filled with transactions from here on: {text_of(error)}"
    )
    return later


Filler = TransactionFiller | MarkerFiller | AutoFiller


def gap_fillers(
    target: Cluster, link: str, may_write: MayWrite, may_send: MaySend, fence: Fence
) -> dict[GapFill, Filler]:
    """What fills a gap in each way but RECORDS, which are data (AppendRules.fills_with_records)."""
    transactions = TransactionFiller(target, link, may_write, may_send)
    markers = MarkerFiller(target, may_write, may_send, fence)
    return {
        GapFill.TRANSACTIONS: transactions,
        GapFill.MARKERS: markers,
        GapFill.AUTO: AutoFiller(target, transactions, markers),
    }
