"""Where a partition with translated offsets resumes, as both logs say, and what of it is lost.

The newest committed row of the offset map is the position (target_checks.py); a log that the link took over from another mirror
begins where it took over.

Laws:
- A link has a position from its first look on.  It is a row of the map before anything is copied: what the source has there
  by then, and has no more, is a loss (M7).  So is what policy has accepted, one loss behind the other: the row says of which
  topic, and of which leader epoch, its position is from then on, and nobody finds the same loss again.
- A copy that needs no equal offsets leaves nothing out: it resumes where the source's log is another one, at the beginning of
  a topic that was made anew, or where a log was cut.
- The end of a log proves nothing, and a leader epoch may come again (a source that was restored): the last copied record is
  compared each time.
"""

from __future__ import annotations

import time

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.divergence import read_headers, read_slices, source_truncations
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.first_other import first_other
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.engine.translated.target_checks import (
    LostOffsets,
    check_target,
    find_adopted_losses,
    find_losses,
    is_same_record,
    never_copied,
    overwritten,
    taken_over,
)
from tolerant_client.mirror.state.offset_map import MapRow, begun_anew, is_another
from tolerant_client.records.record_batch import Record

_RECORD_BYTES = 16 << 10  # a batch that is larger comes whole


class Place:
    """The place of one partition; `read` it once all other writers are fenced."""

    def __init__(self, link: CopiedLink, reads: SharedReads, adopted: Adopted, partition: TopicPartition) -> None:
        self.partition = partition
        self.row: MapRow | None = None
        self.ids = ("", "")  # of the topics of source and target
        self.max_batch_bytes = 0
        self.position = -1
        self.is_begun = False  # the map says of the source's log as it is now where it resumes
        self.leader_epoch = -1  # the newest one seen in the source's log
        self.loss: LostOffsets | None = None  # what the last error means
        self._link = link
        self._reads = reads
        self._adopted = adopted
        self._accepted: set[LostOffsets] = set()
        self._is_other = False  # the source has another record where the last one was copied from
        self._adopted_until: int | None = (
            None  # what the link may go on to call adopted, once the map says where it resumes
        )

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    async def read(self, producer_id: int) -> int:
        """The source offset to resume at; `producer_id` is the one that the copies of this process have.

        Raises TargetDivergedError; DataLossError where the source no longer has what was or was to be copied, unless policy has
        accepted that; and KafkaError.
        """
        self.row = await self._reads.last_row(self.partition)
        adopted = await self._read_target(producer_id)
        return await self._read_source(adopted)

    async def _read_target(self, producer_id: int) -> int:
        """The source offset before which another mirror had copied all."""
        pair = await self._reads.topics(self.partition.topic)
        self.ids, self.max_batch_bytes = pair
        end = (await self._link.target.list_offsets({self.partition: LATEST}))[self.partition]
        self._is_other = False
        if self.row is not None:
            check_target(self.row, self._link.name, self.partition, self.ids, end)
            # A topic made anew has other records by right.
            if self.row.has_copied and not is_another(self.row.ids[0], self.ids[0]):
                self._is_other = await self._has_other(self.row, producer_id)
        adopted = await self._adopted.until(self.partition, end)
        if self.row is not None:
            self.row = taken_over(self.row, adopted)
        return adopted

    async def _has_other(self, row: MapRow, producer_id: int) -> bool:
        """Whether the source has another record than the last one that was copied.

        Raises TargetDivergedError where others wrote what lies at the end of the map's newest run (an election's loss).
        """
        offsets = row.runs[-1].source_until - 1, row.runs[-1].target_until - 1
        header = (await read_headers(self._link.target, {self.partition: offsets[1]})).get(self.partition)
        if header is None:
            return False  # the cleaner or retention took it
        sides = zip((self._link.source, self._link.target), offsets)
        original, copied = [await self._record(cluster, offset) for cluster, offset in sides]
        if original is not None and copied is not None and header.has_log_append_time:
            copied = copied._replace(timestamp=original.timestamp)  # the target's brokers gave it another one
        if is_same_record(original, copied):
            return False
        if header.producer_id == producer_id:
            return True  # whatever the ledger has there: the map, which has not, says what was accepted
        lost = (await self._link.ledger.rows(refresh=True)).get(self.partition, ())
        if not any(loss.from_offset <= offsets[0] < loss.until_offset for loss in lost):
            raise overwritten(row, self._link.name, offsets)
        return False

    async def _record(self, cluster: Cluster, offset: int) -> Record | None:
        """The record at an offset of either log; None where it is not there any more."""
        span = {self.partition: (offset, offset + 1)}
        slices = await read_slices(cluster, span, is_committed=False, first_bytes=_RECORD_BYTES)
        return slices[self.partition].records.get(offset)

    async def _read_source(self, adopted: int) -> int:
        source, row = self._link.source, self.row
        start = (await source.list_offsets({self.partition: EARLIEST}))[self.partition]
        end = (await source.list_offsets({self.partition: LATEST}))[self.partition]
        least = self._link.control.value.start_of(self.partition, self.ids[0], end) or 0
        self.is_begun, self._adopted_until = row is not None or adopted > 0, None
        if row is None and not adopted:
            return max(start, least)
        is_anew = row is not None and is_another(row.ids[0], self.ids[0])
        if row is not None and not row.has_copied and not is_anew:
            row = row._replace(position=max(row.position, least))  # an operator may have given it a start since
        self.position = adopted if row is None else row.position
        cuts = [
            accepted.from_offset
            for accepted in self._accepted
            if accepted.reason is LossReason.TRUNCATION
            and accepted.from_offset < self.position <= accepted.until_offset
        ]
        if row is None:
            losses = find_adopted_losses(self.partition, adopted, start, min(end, *cuts) if cuts else end)
        elif is_anew:
            self.leader_epoch = -1  # it counts its leader epochs from 0
            losses = (
                find_losses(row, self.ids, start, end, None)
                if row.has_copied or adopted
                else [never_copied(self.partition)]
            )
        else:
            self.leader_epoch = max(self.leader_epoch, row.epoch)
            losses = find_losses(row, self.ids, start, end, min(cuts) if cuts else await self._cut_at(row, start, end))
        for loss, error in losses:
            if not any(loss.is_part_of(accepted) for accepted in self._accepted):
                self.loss = loss
                raise error
        if not losses:
            return max(start, self.position)
        (reason, cut, _), _ = losses[0]
        self.is_begun = False
        if reason is LossReason.RETENTION:
            return max(start, self.position)
        position = max(start, least if is_anew else cut)
        last = await read_headers(source, {self.partition: position - 1} if position > start else {})
        self.leader_epoch = last[self.partition].partition_leader_epoch if last else -1
        if row is not None:
            self.row = begun_anew(row, self.ids, position)
        self._adopted_until = 0 if is_anew else position
        return position

    async def _cut_at(self, row: MapRow, start: int, end: int) -> int | None:
        """From where on the source's log, [start, end), is another one than was copied, as its leader or its records show."""
        told = (await source_truncations(self._link.source, {self.partition: (row.epoch, row.position)})).get(
            self.partition
        )
        if told is None and row.position <= end and not self._is_other:
            return None
        until = min(row.position, end) if told is None else min(told, end)
        found = await first_other(self._link.source, self._link.target, self._link.name, self.partition, start, until)
        return told if found is None else found

    async def limit_adopted(self) -> None:
        """Has the control call no more adopted than what lies before a loss; to be done before the map says where the log resumes.

        Raises OptionError and KafkaError.
        """
        if self._adopted_until is not None:
            await self._adopted.limit(self.partition, self._adopted_until)

    def begun(self) -> None:
        """Takes it that the map says where the log resumes: what policy has accepted is found by nobody again."""
        self._accepted.clear()

    async def require_same_topics(self) -> None:
        """Raises UnknownTopicOrPartitionError where a topic was made anew since its place was read: it is read again then."""
        if (await self._reads.topics(self.partition.topic)).ids != self.ids:
            raise Errors.UnknownTopicOrPartitionError(f"{self}: a topic was created anew")

    def forget_topics(self) -> None:
        """Has the facts of its topics asked anew."""
        self._reads.forget(self.partition.topic)

    async def accept(self, loss: LostOffsets, error: TolerantClientError) -> None:
        """Resumes after a loss from now on, once the ledger has its row (M7).  Raises KafkaError."""
        now_ms, (topic, number) = int(time.time() * 1000), self.partition
        row = LedgerRow(
            now_ms, self._link.name, topic, number, loss.from_offset, loss.until_offset, loss.reason, str(error)
        )
        await self._link.ledger.write([row])
        self._accepted.add(loss)
