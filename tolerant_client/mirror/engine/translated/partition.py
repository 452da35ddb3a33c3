"""One source partition, copied by transactions into a target partition that others write to as well.

Laws:
A. Records and the map rows that say where they are belong to one transaction; the newest committed row is the position.
   So wherever a copier dies, the next one continues after the last record that counts (read_committed).
B. The position is read after all other writers are fenced, and nothing is appended without that (copy_transaction.py).
C. After any response but the expected one, what was not committed is forgotten and B begins again.
   But what was sent before a record that cannot be copied is committed first: nothing good is sent again because of it.
D. A fenced copier only watches, so that two do not abort each other's transactions for ever (rival.py).
E. Nothing is written without the claim under which the position was read (mirror/state/claims.py): no transaction fences an
   identical copy, which our records would spoil.  Nor is a partition that another link has begun to copy identically (copy_claims.py).
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.event_loop import WakeupNotifier
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import (
    DataLossError,
    LinkPausedError,
    LinkPromotedError,
    OrdersHiddenError,
    OversizedRecordError,
    RecordBatchError,
    TargetClaimedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.appendable import Appendable, AppendRules
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.batches.losses import LossPolicy, LossReason
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.limits import PAUSE_S
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.translated.copy_claims import CopyClaims
from tolerant_client.mirror.engine.translated.copy_transaction import CopyTransaction, is_fenced, reason_of
from tolerant_client.mirror.engine.translated.fetched_queue import FetchedQueue, newest_epoch
from tolerant_client.mirror.engine.translated.place import Place
from tolerant_client.mirror.engine.translated.rival import watch_rival
from tolerant_client.mirror.engine.translated.shared_reads import TranslatedParts
from tolerant_client.mirror.engine.translated.target_checks import LostOffsets
from tolerant_client.mirror.engine.troubles import copy_refusal, refusal
from tolerant_client.mirror.state.map_topic import copier_id, map_partition
from tolerant_client.mirror.state.offset_map import extend, is_another

_PAUSES = Backoff(0.04)
_IDLE_S = 0.5


class TranslatedPartition(CopiedPartition):
    """The copy of one partition: `run` copies it, `accept` gives it what was fetched."""

    records = 0

    def __init__(self, link: CopiedLink, parts: TranslatedParts, partition: TopicPartition) -> None:
        super().__init__(partition, link.clock())
        self.is_done = False
        self.queue = FetchedQueue()
        self.place = Place(link, parts.reads, parts.adopted, partition)
        self._link = link
        self._parts = parts
        self._claims = CopyClaims(link, partition)
        self.wakeup = WakeupNotifier(link.source.net)
        self._producer = CopyTransaction(
            link.target,
            copier_id(link.name, partition),
            self.partition,
            map_partition(link.name, partition),
            parts.transactions.timeout_ms,
            parts.turns,
            self._claims.require,
            self.place.require_same_leader,
            link.clock,
        )
        self._rules = AppendRules(False, False, 0)
        self._fetch_error: Exception | None = None
        self._progressed_at = link.clock()
        self._stands_since: float | None = None  # since when there is something to copy, or trouble
        self._is_taken_over = False
        self._source_id = ""  # of the source topic in which `acked` is an offset

    # -- for the copier -------------------------------------------------------

    @property
    def is_placed(self) -> bool:
        return self.acked >= 0

    @property
    def is_stopped(self) -> bool:
        return self.error is not None or self.is_released or self.is_done

    @property
    def is_settled(self) -> bool:
        return self.is_stopped or self.paused is not None or self.has_reached

    @property
    def is_over(self) -> bool:
        is_idle = self.has_reached or self.paused is not None
        return self.is_released or self.error is not None or is_idle and not self.is_held(self._link.clock())

    @property
    def is_read(self) -> bool:
        return self.position >= 0 and self._fetch_error is None and not isinstance(self.paused, LinkPausedError)

    @property
    def is_full(self) -> bool:
        return self.queue.bytes >= 2 * self._link.limits.partition_max_bytes

    @property
    def has_work(self) -> bool:
        return len(self.queue) > 0

    def stop(self, error: TolerantClientError) -> None:
        self.error = error
        self._end()

    def set_paused(self, is_paused: bool) -> None:
        """Applies the operator's order: while paused nothing is fetched, but what was fetched is copied."""
        if is_paused and self.paused is None:
            self.paused = self._link.paused_error(self)
            self._parts.reader.leave(self.partition)
            self.wakeup.notify()
        elif not is_paused and isinstance(self.paused, LinkPausedError):
            self.paused = None
            self._progressed_at = self._link.clock()
            self.wakeup.notify()
            self.read_on()

    def read_on(self) -> None:
        """Has the partition fetched; in the background, since `run` may end while a leader is searched for."""
        self._link.tasks.spawn(self._parts.reader.try_join, [self.partition])

    def release(self) -> None:
        """Ends the copy once the open transaction is committed."""
        self.is_released = True
        self._end()

    def _end(self) -> None:
        self._producer.give_up_turn()  # all others' may come first
        self.wakeup.notify()

    @property
    def source_id(self) -> uuid.UUID | None:
        return uuid.UUID(known) if (known := self.place.ids[0]) else None

    def accept(self, part: FetchedPartition, until: int | None) -> Iterator[None]:
        """Takes a response to a fetch from `position`, step by step; batches from `until` on are left for later.

        A response with a newer leader epoch is not used: the log may have been cut, and have grown again (KIP-101).
        """
        try:
            if code := part.error_code:
                right = f"Read on topic {self._link.source.wire_topic(self.partition.topic)} of the source"
                what = f"Fetch of {self} at offset {self.position}"
                raise refusal(str(self), "fetch", self.position, code, right) or Errors.for_code(code)(what)
            self.place.saw_epoch(newest_epoch(part.records))
            for course in self.courses(part, until, self._rules, int(time.time() * 1000)):
                self.last_stable_offset = part.last_stable_offset
                self._link.memory.take(self.queue.put(course.items))
                if self.queue:
                    self.wakeup.notify()
                yield
        except Errors.KafkaError as error:
            if isinstance(error, OversizedRecordError):
                self.place.loss = LostOffsets(LossReason.OVERSIZED, error.offset, error.offset + 1)
                error = error.at(str(self))
            self._fetch_error = error
            self.wakeup.notify()

    def leave_out(self, until_offset: int, now_ms: int) -> list[Appendable]:
        """As CopiedPartition.leave_out; a gap takes no offsets here."""
        self.queue.put([Gap(self.position, until_offset)])
        self.position = until_offset
        self.wakeup.notify()
        return []

    def trouble(self, reason: str, now: float) -> None:
        self._fetch_error = Errors.OffsetNotAvailableError(f"{self}: {reason}")
        self.wakeup.notify()

    # -- copying --------------------------------------------------------------

    async def run(self) -> None:
        """Copies until the call, or the lease, that wanted it is over; `error` says what stopped it."""
        is_fenced_off = False
        try:
            while not self.is_over:
                try:
                    if is_fenced_off:
                        is_fenced_off = False
                        await watch_rival(self, self._link, self._parts.reads, self._parts.transactions.takeover_ms)
                        continue
                    await self._take_over()
                    while not self.is_over:
                        await self._copy_one_transaction()
                    if not isinstance(self.error, (LinkPromotedError, OrdersHiddenError)):
                        await self._record_position()
                except (LinkPromotedError, OrdersHiddenError, TargetClaimedError) as error:
                    self.error = error
                except Errors.KafkaError as error:
                    self._forget()
                    if not (is_fenced_off := is_fenced(error)):
                        await self._trouble(error)
        finally:
            self._forget()
            self.is_done = True
            self._link.tasks.notify()

    async def _take_over(self) -> None:
        self._stands_since = self._stands_since or self._link.clock()
        self._claims.begin()
        if error := await self._parts.reads.copied_by_others(self.partition):
            raise error
        await self._producer.take_over()
        # A promotion is in the control before the copiers are fenced, and in the map after it: one that takes over later finds either.
        control = await self._link.control.refresh()
        self._link.require_not_promoted()
        self.set_paused(control.pauses(self.partition))
        known, position = self.place.row, await self.place.read(self._producer.producer_id)
        if self.place.is_open:
            await self._producer.open()
            await self._producer.take_over()
            raise Errors.OffsetNotAvailableError(
                f"{self}: a copy has lost the marker that aborted it; it is aborted again"
            )
        if is_another(self._source_id, self.place.ids[0]) or self.place.row != known or position < self.place.position:
            # In another topic, or a log that was cut, copying begins where it resumes.
            self.acked = min(self.acked, position)
        self._source_id = self.place.ids[0]
        self._claims.is_first = not self.place.has_copied
        self.advance(position)
        if not self.place.is_begun:
            self._claims.require()
            await self.place.limit_adopted()
            await self._write_position()
            self.place.begun()
        target, codec = self.place.target, self.place.target.codec if self.is_recoded else None
        self._rules = self._rules._replace(
            max_batch_bytes=target.max_message_bytes, codec=codec, separate_until=self.separate_until
        )
        self.position = position
        self._is_taken_over = True
        self._stands_since = self._stands_since if self._troubles.reasons else None
        self.read_on()

    async def _copy_one_transaction(self) -> None:
        """Copies from the first waiting record to the commit."""
        if (position := self.queue.skip_gaps()) is not None:
            self.advance(position)
        while not self.queue:
            self._check_fetches()
            if self.is_over:
                return
            await self.wakeup(_IDLE_S)
            if (position := self.queue.skip_gaps()) is not None:
                self.advance(position)
            elif not self.queue:
                await self._record_position()
        self._stands_since = self._stands_since or self._link.clock()
        if self._claims.is_first:
            await self._claims.take_first(lambda: self.is_over or not self._is_patient)
            await self.place.require_not_copied_since(self.acked)
        try:
            copied = await self._fill()
        except Errors.BrokerResponseError as error:
            if (refused := self._producer.refused(error)) is not None:
                self.refused_with(error.errno, refused.until_offset)
                if await self._producer.may_commit_rest():
                    await self._commit(refused.batch.spans[0][0])
            raise
        if self._producer.is_open:
            await self._commit(copied)

    async def _fill(self) -> int:
        """Sends what waits until the transaction has to be committed; returns the source offset up to which all is acknowledged."""
        limits, producer, clock, copied = self._parts.transactions, self._producer, self._link.clock, self.acked
        while True:
            self._check_fetches(is_open=True)
            while self.queue and producer.taken_bytes < limits.commit_bytes and not self.is_stopped:
                if (position := self.queue.skip_gaps()) is not None:
                    copied = position
                    continue
                node = await self._link.target.leader(self.partition)
                if producer.is_open and clock() > producer.began_at + limits.open_s:
                    break
                self._rules = self._rules._replace(joined_bytes=self._parts.turns(node).window.room_bytes)
                outgoing = self.queue.next(self._rules)
                if not await producer.send(node, outgoing, limits.turn_s if producer.is_open else float("inf")):
                    self.queue.put_back(outgoing)
                    break
                copied = outgoing.until_offset
                await self._settle(limits.max_requests if producer.runs else 0)
            await self._settle(limits.max_requests)
            if (pause := self._time_to_commit(copied)) <= 0:
                break
            await self.wakeup(pause)
        await self._settle(0)
        return copied

    async def _record_position(self) -> None:
        """Has the map record that what follows the last record was read, too: markers, aborted records, holes."""
        if self.place.row is not None and self.acked > self.place.row.position:
            await self._write_position()

    async def _write_position(self) -> None:
        await self._producer.open(with_records=False)
        await self._commit(self.acked)

    @property
    def _is_patient(self) -> bool:
        since = max(self._progressed_at, self.adopted_at, self._producer.throttled_until, self._link.bucket.free_at)
        since = since if self._is_taken_over else max(since, self._parts.reads.maps.read_at)
        return self.has_reached or self._link.clock() - since <= self._link.limits.patience_ms / 1000

    def _time_to_commit(self, copied: int) -> float:
        """Seconds until the transaction must be committed, if nothing arrives before."""
        limits, now = self._parts.transactions, self._link.clock()
        if self.is_released or self._fetch_error is not None or self._producer.taken_bytes >= limits.commit_bytes:
            return 0.0
        if self.until is not None and copied >= self.until and not self.is_held(now):
            return 0.0
        is_drained = not self.queue and not self.is_behind
        return self._producer.began_at + (limits.linger_ms if is_drained else limits.commit_ms) / 1000 - now

    async def _commit(self, copied: int) -> None:
        runs, place = self._producer.runs, self.place
        await place.require_same_logs()
        rows = extend(place.row, self.partition, self.partition.topic, place.ids, runs, copied, place.leader_epoch)
        await self._producer.write_rows(rows, int(time.time() * 1000))
        self._claims.require()
        await self._producer.commit()
        place.row = rows[-1]
        self.records += sum(run.length for run in runs)
        self.bytes += self._producer.bytes
        self.advance(copied)
        await self._producer.renew()
        self._claims.leave_first(has_copied=bool(runs))

    async def _settle(self, most: int) -> None:
        freed = await self._producer.settle(most)
        self.queue.bytes -= freed
        self._link.memory.settle(freed)
        if not self.is_full:
            self._parts.reader.rejoin(self)

    def _check_fetches(self, *, is_open: bool = False) -> None:
        """Raises what a fetch has found; in a transaction a finding about the next record waits until that is committed."""
        if self._fetch_error is not None and not (
            is_open and isinstance(self._fetch_error, (OversizedRecordError, RecordBatchError))
        ):
            error, self._fetch_error = self._fetch_error, None
            raise error
        if self.paused is None and not self._is_patient:
            self.error = self.without_news(self._link.limits.patience_ms / 1000)

    # -- when something is wrong ----------------------------------------------

    def waits(self, after_s: float, now: float) -> tuple[float, str] | None:
        since = self._stands_since
        if since is None or now - since < after_s or self.error is not None or self.paused is not None:
            return None
        has_work = not self._is_taken_over or self.has_work or self.is_behind
        first = self._claims.waits_for or "the target's brokers have not completed the requests for it"
        return (since, (self._troubles.reasons or (first,))[-1]) if has_work else None

    async def _trouble(self, error: Errors.KafkaError) -> None:
        """Pauses, or stops: after a finding that was made three times without progress in between, or after the patience.

        Of what an operator has paused nothing is decided: it is read again once it is resumed.
        """
        link, now = self._link, self._link.clock()
        loss, self.place.loss = self.place.loss, None
        cause = error.__cause__ if isinstance(error.__cause__, Errors.KafkaError) else error
        self._is_taken_over = False
        if isinstance(self.paused, LinkPausedError):
            return await self._rest()
        self._stands_since = self._stands_since or now
        self._troubles.add(reason_of(cause, link.target, link.name, self.partition), now)
        if isinstance(error, RecordBatchError):
            self._troubles.damaged(str(error))
            error = error.at(str(self))
        is_believed = not getattr(cause, "retriable", False) and self._troubles.is_believed()
        if is_believed and isinstance(error, TolerantClientError) and not getattr(error, "retriable", False):
            await self._decide(error, loss if isinstance(error, (DataLossError, OversizedRecordError)) else None)
        elif is_believed and not isinstance(cause, (Errors.OffsetOutOfRangeError, RecordBatchError)):
            what, topic = f"{self} at offset {self.acked}: {error}", self.partition.topic
            self.error = copy_refusal(what, cause, topic, link.source.wire_topic(topic))
        elif not self._is_patient:
            self.error = self.without_progress(link.limits.patience_ms / 1000)
        else:
            self.place.forget_topics()
            for cluster in (link.source, link.target):
                cluster.manager.cluster.request_update()
            await link.source.net.sleep(_PAUSES.pause_s(len(self._troubles.reasons)) * random.uniform(0.5, 1.0))

    async def _decide(self, error: TolerantClientError, loss: LostOffsets | None) -> None:
        """Stops, or applies the policy for a loss (M7); its ledger row is written before copying continues."""
        policy = self._link.policy.on(self.partition.topic, loss.reason) if loss is not None else LossPolicy.FAIL
        if loss is None or policy is LossPolicy.FAIL:
            self.error = error
        elif policy is LossPolicy.PAUSE:
            self.paused = error
            if self.place.row is not None:
                self.advance(self.place.position)
            self._link.tasks.notify()
            await self._rest(PAUSE_S)
            if not self.is_over:
                self.paused = None
        else:
            try:
                await self.place.accept(loss, error)
            except Errors.KafkaError as why:
                self.error = TolerantClientError(f"{self}: a loss could not be written to the ledger ({why}): {error}")
                return
            self.losses += 1
            if loss.reason is LossReason.OVERSIZED:
                self._rules = self._rules._replace(left_out={*self._rules.left_out, loss.from_offset})

    async def _rest(self, most_s: float = float("inf")) -> None:
        """Waits while it is paused."""
        until = self._link.clock() + most_s
        while self.paused is not None and not self.is_over and (left := until - self._link.clock()) > 0:
            await self.wakeup(min(left, _IDLE_S))

    def advance(self, position: int) -> None:
        """Notes that everything before this source offset is on the target."""
        if position > self.acked:
            self._progressed_at = self._link.clock()
            self._stands_since = None
            self._troubles.progressed()
        had_reached = self.has_reached
        self.acked = max(self.acked, position)
        if self.has_reached and not had_reached:
            self._link.tasks.notify()

    def _forget(self) -> None:
        """Drops everything that is not committed."""
        self._claims.leave_first()
        self._parts.reader.leave(self.partition)
        self._fetch_error = None
        self.position = self.last_stable_offset = -1
        self._shown = frozenset()
        self._link.memory.settle(self.queue.clear())
