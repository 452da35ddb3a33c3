"""Where a partition with translated offsets resumes, as both logs say, and what of it is lost.

The newest committed row of the offset map is the position (target_checks.py); a log that the link took over from another mirror
begins where it took over.

Law: a link has a position from its first look on.  It is a row of the map before anything is copied: what the source has there
by then, and has no more, is a loss (M7).  So is what policy has accepted, one loss behind the other: the row says of which
topic, and of which leader epoch, its position is from then on, and nobody finds the same loss again.
"""

from __future__ import annotations

import time

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.divergence import read_headers, read_slices, source_truncations
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.engine.translated.target_checks import (
    LostOffsets,
    check_last_record,
    check_target,
    find_adopted_losses,
    find_losses,
    is_another,
    never_copied,
    taken_over,
)
from tolerant_client.mirror.state.offset_map import MapRow


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

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    async def read(self, producer_id: int) -> int:
        """The source offset to resume at; `producer_id` is the one that the copies of this process have.

        Raises TargetDivergedError; DataLossError where the source no longer has what was or was to be copied, unless policy has
        accepted that; OffsetNotAvailableError where the source has to come to `position` again; and KafkaError.
        """
        self.row = await self._reads.last_row(self.partition)
        adopted = await self._read_target(producer_id)
        return await self._read_source(adopted)

    async def _read_target(self, producer_id: int) -> int:
        """The source offset before which another mirror had copied all."""
        pair = await self._reads.topics(self.partition.topic)
        self.ids, self.max_batch_bytes = pair
        end = (await self._link.target.list_offsets({self.partition: LATEST}))[self.partition]
        if self.row is not None:
            check_target(self.row, self._link.name, self.partition, self.ids, end)
            # A topic made anew has other records by right.
            if self.row.has_copied and not is_another(self.row.ids[0], self.ids[0]):
                await self._look_for_others(self.row, producer_id)
        adopted = await self._adopted.until(self.partition, end)
        if self.row is not None:
            self.row = taken_over(self.row, adopted)
        return adopted

    async def _look_for_others(self, row: MapRow, producer_id: int) -> None:
        """Raises TargetDivergedError where others wrote what lies at the end of the map's newest run (an election's loss)."""
        offsets = row.runs[-1].source_until - 1, row.runs[-1].target_until - 1
        header = (await read_headers(self._link.target, {self.partition: offsets[1]})).get(self.partition)
        if header is None or header.producer_id == producer_id:
            return  # the cleaner or retention took it, or it is ours: then only the source may have lost it
        original, copied = [
            (await read_slices(side, {self.partition: (at, at + 1)}, is_committed=False))[self.partition].records.get(
                at
            )
            for side, at in zip((self._link.source, self._link.target), offsets)
        ]
        lost = (await self._link.ledger.rows(refresh=True)).get(self.partition, ())
        if not any(loss.from_offset <= offsets[0] < loss.until_offset for loss in lost):
            check_last_record(row, self._link.name, original, copied)

    async def _read_source(self, adopted: int) -> int:
        source, row = self._link.source, self.row
        start = (await source.list_offsets({self.partition: EARLIEST}))[self.partition]
        end = (await source.list_offsets({self.partition: LATEST}))[self.partition]
        least = self._link.control.value.start_of(self.partition, self.ids[0], end) or 0
        self.is_begun = row is not None or adopted > 0
        if row is None and not adopted:
            return max(start, least)
        if row is not None and not row.has_copied:
            row = row._replace(position=max(row.position, least))  # an operator may have given it a start since
        if row is None:
            self.position = adopted
            losses = find_adopted_losses(self.partition, adopted, start, end)
        elif not row.has_copied and not adopted and is_another(row.ids[0], self.ids[0]):
            self.position = max(start, least)  # where the former topic was to begin says nothing of this one
            losses = [never_copied(self.partition)]
        else:
            self.position = row.position
            # A topic that was made anew counts its leader epochs from 0.
            self.leader_epoch = -1 if is_another(row.ids[0], self.ids[0]) else max(self.leader_epoch, row.epoch)
            cuts = await source_truncations(source, {self.partition: (row.epoch, row.position)})
            losses = find_losses(row, self.ids, start, end, cuts.get(self.partition))
        for loss, error in losses:
            if not any(loss.is_part_of(accepted) for accepted in self._accepted):
                self.loss = loss
                raise error
        if self.position > end:
            raise Errors.OffsetNotAvailableError(f"{self}: the source has not come to offset {self.position} again")
        position = max(start, self.position)
        if losses:
            self.is_begun = False
            if losses[0][0].reason is not LossReason.RETENTION:
                last = await read_headers(source, {self.partition: position - 1} if position > start else {})
                self.leader_epoch = last[self.partition].partition_leader_epoch if last else -1
        return position

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
