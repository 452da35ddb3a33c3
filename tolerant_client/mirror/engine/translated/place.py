"""Where a partition with translated offsets resumes, by both logs, and what of it is lost.

The newest committed row of the offset map is the position (target_checks.py); a log that the link took over from another mirror
begins where the link took over.

Laws:
- A link has a position from the first time it reads a log, also one that it took over.  It writes it as a row of the map before
  anything is copied: what the source has there by then, and later no longer has, is a loss (M7); and the row can follow what is
  read behind it that is no record (markers, aborted records), of which retention may take all that is left.  The same holds for what policy has accepted, one loss
  after the other: the row names the topic and the leader epoch of its position, and the same loss is not found again.
- Without its epoch nothing says that a log was cut below a position and has grown past it.  A position up to which nothing was read (a
  first one, one that was taken over, where a log begins again, or of a row from an earlier version) has that of the leader that told
  the log's end.
- A copy that needs no equal offsets leaves nothing out: it resumes where the source's log becomes a different one, at the start
  of a topic that was created again, or where a log was cut.
- The end of a log proves nothing, and a leader epoch may recur (a restored source): the last copied record is compared each
  time.  From there to the position the source had no record that the link copies, only markers, aborted records and holes, so a
  record there shows another log, too; nothing was copied there, and the link resumes after the last copied record.
- Until the target has a record of ours of the source's present log, and wherever a log begins again, what others have copied of it
  is asked each time (copied_before.py): that we have read a log before says nothing of what they have appended since.
- Of the target only what is committed counts as a copy, equal or different.  After a loss there a later copy of our own, which was aborted,
  may stand in place of the last one: that shows nothing of the source, whose losses are claimed on its own evidence only.
- Nor does the target's log go on by itself: copies of ours after the last one that the map tells of show that the map has lost rows
  (own_copies.py), and under another leader epoch either may have lost what was its end, also if others have written on since.  So the
  target is read again, and the last copied record compared, before more is appended: once it, or its row, is the last no more, nothing
  shows that loss.
- Each replica cleans its log by itself: if the source's topic is compacted, a record there may only be one that another leader's
  cleaner had removed.  Then the link resumes there, too, but without a loss, unless copied records differ as well.
"""

from __future__ import annotations

import time
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import not_before_start
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.copied_before import require_no_copy, require_not_there
from tolerant_client.mirror.engine.translated.first_other import first_other
from tolerant_client.mirror.engine.translated.own_copies import committed_copy, is_uncommitted
from tolerant_client.mirror.engine.translated.shared_reads import FRESH_S, SharedReads
from tolerant_client.mirror.engine.translated.target_checks import (
    LostOffsets,
    Resumption,
    asked_epochs,
    check_target,
    cut_at,
    is_same_record,
    lost_rows,
    not_before,
    overwritten,
    resumption,
    taken_over,
    uncommitted,
)
from tolerant_client.mirror.engine.troubles import times_would_change
from tolerant_client.mirror.logs.reading import read_headers, read_slices, source_truncations
from tolerant_client.mirror.state.offset_map import MapRow, is_another
from tolerant_client.mirror.state.topics import TopicFacts, describe_each_topic

_RECORD_BYTES = 16 << 10  # a larger batch is sent whole
_PIECE = 1_000  # offsets whose records are in memory at once
_LARGEST_PIECE = 64_000  # after pieces without a record
_LEFT_OUT = (LossReason.OVERSIZED, LossReason.RETENTION)  # losses of offsets before the position, in the same log


class Place:
    """Where one partition resumes; call `read` after all other writers are fenced."""

    def __init__(self, link: CopiedLink, reads: SharedReads, adopted: Adopted, partition: TopicPartition) -> None:
        self.partition = partition
        self.row: MapRow | None = None
        self.ids = ("", "")  # of the topics of source and target
        self.target = TopicFacts(False, 0, None)
        self.position = -1
        self.leader_epoch = -1  # the newest that was seen in the source's log
        self.loss: LostOffsets | None = None  # the loss behind the last error
        self._target_epoch = -1  # of the leader under which the target's log was read
        self._target_seen_at = float("-inf")  # by the link's clock, when that leader was asked
        self._map_epoch = -1  # of the leader under which the map was read
        # A copy of ours, or a row of the map, has lost the marker that aborted it (own_copies.py).
        self.is_open = False
        self._link = link
        self._reads = reads
        self._adopted = adopted
        self._accepted: set[LostOffsets] = set()
        self._known: MapRow | None = None  # the newest row of the map
        self._found = Resumption(-1, None)
        self._is_other = False  # the source has a different record at the offset of the last copied one
        # From there on it may have records that another leader's cleaner had removed.
        self._dirty_from: int | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the map has the resume position in the source's present log, and the leader epoch of it, if leaders tell one."""
        has_epoch = self.row is not None and self.row.epoch >= 0
        return self._found.is_begun and (has_epoch or self.leader_epoch < 0)

    @property
    def has_copied(self) -> bool:
        """As Resumption.has_copied, when it was read."""
        return self._found.has_copied

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    async def read(self, producer_id: int) -> int:
        """The source offset to resume at; `producer_id` is the one of this process's copies.

        Raises TargetDivergedError; PartitionRefusedError if the target would rewrite timestamps (M6); DataLossError if the source no
        longer has what was copied or was to be copied, unless policy has accepted that; and KafkaError.
        """
        self._map_epoch = await self._reads.map_epoch(self.partition)
        self.row, writer = await self._reads.last_row(self.partition)
        self.is_open = writer == producer_id
        adopted, end = await self._read_target(producer_id)
        position = await self._read_source(adopted)
        if end and not self._found.has_copied:
            await self._require_not_copied(position)
        return position

    async def _read_target(self, producer_id: int) -> tuple[int, int]:
        """The source offset before which another mirror had copied everything, and where the target's log ends."""
        self.ids, self.target = await self._reads.topics(self.partition.topic)
        if self.target.rewrites_times:
            raise times_would_change(str(self))
        self._target_seen_at = self._link.clock()
        told = (await self._link.target.list_offsets_and_epochs({self.partition: LATEST}))[self.partition]
        end, self._target_epoch = told
        self._is_other = False
        if self.row is not None:
            check_target(self.row, self._link.name, self.partition, self.ids, end)
            # A topic that was created again may have other records.
            if self.row.has_copied and not is_another(self.row.ids[0], self.ids[0]):
                self._is_other = await self._has_other(self.row, producer_id, end)
        adopted = await self._adopted.until(self.partition, end)
        await self._require_rows(producer_id, end, is_adopted=adopted > 0)
        self._known, self.row = self.row, taken_over(self.row, self.partition, self.ids, end, adopted)
        return adopted, end

    async def _require_rows(self, producer_id: int, end: int, *, is_adopted: bool) -> None:
        """Raises TargetDivergedError if the target's log, which ends at `end`, has copies of ours of which the map does not tell."""
        target, partition, row, copy = self._link.target, self.partition, self.row, None
        if row is None or row.is_former(self.ids):
            row = None
            is_lost = end > 0 and not is_adopted and await self._reads.has_written(partition, producer_id)
        else:
            start, is_lost = row.target_until, False
            if end > start + row.has_copied:  # beyond the marker of the last copy
                copy = await committed_copy(target, partition, start, end, producer_id)
                self.is_open = self.is_open or producer_id in (await self._reads.open_producers(partition) or ())
                is_lost = copy is not None
        if is_lost:
            raise lost_rows(row, self._link.name, partition, copy)

    async def _has_other(self, row: MapRow, producer_id: int, end: int) -> bool:
        """Whether the source has a different record than the last one that was copied into a log that ends at `end`.

        Raises TargetDivergedError if that copy is no longer there (an election's loss): others wrote in its place, or it is not committed.
        """
        link = self._link
        offsets = row.runs[-1].source_until - 1, row.runs[-1].target_until - 1
        header = (await read_headers(link.target, {self.partition: offsets[1]})).get(self.partition)
        if header is None:
            return False  # the cleaner or retention removed it
        if not header.is_transactional:
            raise overwritten(row, link.name)
        source, target = [
            await self._slice(cluster, offset, is_committed=cluster is link.target)
            for cluster, offset in zip((link.source, link.target), offsets)
        ]
        is_lost = target.is_vacant(offsets[1])
        if target.until <= offsets[1]:  # someone has a transaction open since before it
            asked = (link.target, self.partition, offsets[1], end, header.producer_id)
            is_lost = await is_uncommitted(*asked)
            target = await self._slice(link.target, offsets[1])
        if is_lost:
            raise uncommitted(row, link.name)
        original, copied = source.records.get(offsets[0]), target.records.get(offsets[1])
        if original is not None and copied is not None and header.has_log_append_time:
            copied = copied._replace(timestamp=original.timestamp)  # the target's brokers overwrote it
        if is_same_record(original, copied) and not source.is_vacant(offsets[0]):
            return False
        if header.producer_id == producer_id:
            return True  # even if the ledger has a loss there: only the map, which has none, says what was accepted
        lost = (await link.ledger.rows(refresh=True)).get(self.partition, ())
        if not any(loss.from_offset <= offsets[0] < loss.until_offset for loss in lost):
            raise overwritten(row, link.name)
        return False

    async def _slice(self, cluster: Cluster, offset: int, *, is_committed: bool = False) -> LogSlice:
        """What either log has at an offset."""
        span = {self.partition: (offset, offset + 1)}
        return (await read_slices(cluster, span, is_committed=is_committed, first_bytes=_RECORD_BYTES))[self.partition]

    async def _has_more(self, start: int, position: int) -> bool:
        """Whether the source has a committed record in [start, position), except those that the ledger says were left out.

        Raises OffsetNotAvailableError while transactions are open there, which no log has that was copied up to `position`.
        """
        source = self._link.source
        told = await source.list_offsets({self.partition: LATEST}, isolation_level=READ_COMMITTED)
        stable = told[self.partition]
        if stable < position and (await not_before_start(source, told))[self.partition] < position:
            raise Errors.OffsetNotAvailableError(
                f"the source of {self} was copied up to {position}, and its last stable offset is {stable}: its log may have"
                " been cut, or restored, and open transactions do not let it be compared yet"
            )
        until, piece = start, _PIECE
        while until < position:
            at, until = until, min(until + piece, position)
            size = min(position - at, 64) * _RECORD_BYTES
            read = await read_slices(source, {self.partition: (at, until)}, is_committed=True, first_bytes=size)
            if not (records := read[self.partition].records):
                piece = min(4 * piece, _LARGEST_PIECE)
                continue
            piece = _PIECE
            rows = (await self._link.ledger.rows(refresh=True)).get(self.partition, ())
            left_out = [range(row.from_offset, row.until_offset) for row in rows if row.reason in _LEFT_OUT]
            if not all(any(offset in span for span in left_out) for offset in records):
                return True
        return False

    async def _is_cleaned(self) -> bool:
        """Whether the source's topic is compacted, or its brokers do not tell (as in identical/facts.py)."""
        topic = (await describe_each_topic(self._link.source, [self.partition.topic])).topics.get(self.partition.topic)
        return topic is None or not topic.effective or topic.is_compacted

    async def _read_source(self, adopted: int) -> int:
        source, row = self._link.source, self.row
        start = (await source.list_offsets({self.partition: EARLIEST}))[self.partition]
        end, epoch = (await source.list_offsets_and_epochs({self.partition: LATEST}))[self.partition]
        least = await self._start_of(end)
        self._dirty_from = cut = None
        is_anew = row is not None and is_another(row.ids[0], self.ids[0])
        if row is not None:
            moved = not_before(row, self.ids[0], least)
            self.position = moved.position
            cut = min(
                (
                    accepted.from_offset
                    for accepted in self._accepted
                    if accepted.reason is LossReason.TRUNCATION
                    and accepted.from_offset < self.position <= accepted.until_offset
                ),
                default=None,
            )
            cut = cut if cut is None else min(cut, end)  # it may have been cut again since
            if is_anew:
                self.leader_epoch = -1  # it counts its leader epochs from 0
            else:
                self.leader_epoch = max(self.leader_epoch, row.epoch)
                cut = await self._cut_at(row, adopted, start, end) if cut is None else cut
        found = resumption(self._known, row, self.ids, start, end, least, cut, self._dirty_from)
        for loss, error in found.losses:
            if not any(loss.is_part_of(accepted) for accepted in self._accepted):
                self.loss = loss
                raise error
        if found.begins_again:  # the log begins again
            self.leader_epoch = -1
        if self.leader_epoch < 0 and found.position <= end:
            self.leader_epoch = epoch
        self._found, self.row = found, found.row
        return found.position

    async def _start_of(self, end: int) -> int:
        """Where an operator has the copy begin in the source's log, which ends at `end`, if nothing of it was copied."""
        control, source_id = self._link.control.value, self.ids[0]
        asked = None if self.row is not None and self.row.has_copied else control.asked_start(self.partition, source_id)
        cut = {} if asked is None else await source_truncations(self._link.source, {self.partition: asked})
        return control.start_of(self.partition, source_id, end, cut.get(self.partition)) or 0

    async def _require_not_copied(self, begin: int) -> None:
        """Raises TargetDivergedError if the target's log already has what is to be copied from `begin` on (copied_before.py)."""
        link, partition, ids = self._link, self.partition, self.ids
        others, origins = await self._reads.other_copies(partition) or (), await self._reads.origins(partition) or ()
        of_mm2 = await self._reads.copies_of_mm2(partition) or ()
        told, again = (others, origins, of_mm2), self._found.begins_again
        await require_not_there(link.source, link.target, link.name, partition, ids, begin, *told, begins_again=again)

    async def require_not_copied_since(self, begin: int) -> None:
        """As `read` does of other links' maps, once no other link may copy its first record beside us (copy_claims.py)."""
        link, partition = self._link, self.partition
        if (await link.target.list_offsets({partition: LATEST}))[partition]:
            start = (await link.target.list_offsets({partition: EARLIEST}))[partition]
            others = await self._reads.other_copies(partition) or ()
            require_no_copy(link.name, partition, self.ids, begin, start, others)

    async def _cut_at(self, row: MapRow, adopted: int, start: int, end: int) -> int | None:
        """As cut_at, but the records may show that the source's log, [start, end), differs earlier from what was copied, or at all."""
        asked = asked_epochs({self.partition: row}, {self.partition: self.ids[0]})
        told = (await source_truncations(self._link.source, asked)).get(self.partition)
        cut = cut_at(row, told, start, end, adopted)
        if row.is_adopted:
            return cut  # no run says which records are copies
        copied_until = max(start, row.runs[-1].source_until, adopted)  # no record that follows was copied
        until = row.position if cut is None else cut
        ask = partial(first_other, self._link.source, self._link.target, self._link.name, self.partition, start, until)
        found = await ask() if cut is not None or self._is_other else None
        if found is None and cut is None and row.has_copied and copied_until < row.position:
            if not await self._has_more(copied_until, row.position):
                return None
            found = await ask()
            if found is None and await self._is_cleaned():
                self._dirty_from = copied_until
                return None
            cut = copied_until
        return cut if found is None else found

    async def limit_adopted(self) -> None:
        """Limits what the control calls adopted, and a start, to what lies before a loss; call it before the map has the resume position.

        Raises OptionError and KafkaError.
        """
        if self._found.adopted_until is not None:
            await self._adopted.limit(self.partition, self._found.adopted_until, self._found.position)

    def saw_epoch(self, epoch: int) -> None:
        """Notes the newest leader epoch of a response; raises OffsetNotAvailableError for a newer one than before."""
        known, self.leader_epoch = self.leader_epoch, max(self.leader_epoch, epoch)
        if epoch > known >= 0:
            raise Errors.OffsetNotAvailableError(f"the source of {self} has leader epoch {epoch} now")

    def begun(self) -> None:
        """Notes that the map has the resume position: no process will find the accepted losses again."""
        self._accepted.clear()

    async def require_same_leader(self) -> None:
        """Raises OffsetNotAvailableError if the target's log, or its map, has another leader epoch than at the last `read`.

        That must be repeated then.
        """
        now = self._link.clock()
        if now - self._target_seen_at > FRESH_S:
            told = (await self._link.target.list_offsets_and_epochs({self.partition: LATEST}))[self.partition]
            self._require_epoch(f"log of {self}", told.leader_epoch, self._target_epoch)
            self._target_seen_at = now
        self._require_epoch(f"map of {self}", await self._reads.map_epoch(self.partition), self._map_epoch)

    def _require_epoch(self, what: str, epoch: int, known: int) -> None:
        if epoch != known:
            raise Errors.OffsetNotAvailableError(f"the target's {what} has leader epoch {epoch} now")

    async def require_same_logs(self) -> None:
        """As require_same_leader; raises UnknownTopicOrPartitionError if a topic was created again since the last `read`."""
        await self.require_same_leader()
        if (await self._reads.topics(self.partition.topic)).ids != self.ids:
            raise Errors.UnknownTopicOrPartitionError(f"{self}: a topic was created again")

    def forget_topics(self) -> None:
        """Has the facts of its topics read again."""
        self._reads.forget(self.partition.topic)

    async def accept(self, loss: LostOffsets, error: TolerantClientError) -> None:
        """Accepts a loss: once its ledger row is written, `read` resumes after it (M7).  Raises KafkaError."""
        now_ms, (topic, number) = int(time.time() * 1000), self.partition
        row = LedgerRow(
            now_ms, self._link.name, topic, number, loss.from_offset, loss.until_offset, loss.reason, error.finding
        )
        await self._link.ledger.write([row])
        self._accepted.add(loss)
