"""Copies partitions from source to target, many at once, on one event loop.

The path of a batch: a fetch loop for each source node receives it, the
partition takes and stamps it in place, the appender sends the slice, and the
answer moves `acked`.  Whatever goes wrong ends in one place: the partition drains,
and the sync loop reads its place from the target's log again.  There, too, is
decided what a loss leads to.

Memory is bounded by `max_bytes_in_flight`, whatever the number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.errors import KafkaError
from kafka.future import Future
from kafka.net.wakeup_notifier import WakeupNotifier
from kafka.structs import TopicPartition

from tolerant_client.errors import LinkPausedError, LinkPromotedError, RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.appendable import AppendRules
from tolerant_client.mirror.gaps import Gap, GapFill, choose_way
from tolerant_client.mirror.identical.append import Appender, GapFiller, resolve
from tolerant_client.mirror.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.identical.log_start import start_log_at
from tolerant_client.mirror.identical.partition import AppendState, PartitionCopy, Phase
from tolerant_client.mirror.identical.pull import Puller
from tolerant_client.mirror.identical.state import AheadOfSource, LogStart, read_append_states
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.limits import CopyLimits, Progress, raise_stopped
from tolerant_client.mirror.link.claims import Waiting
from tolerant_client.mirror.link.control import ControlWatch, link_options
from tolerant_client.mirror.link.health import WAITS_AFTER_S
from tolerant_client.mirror.link.throttle import TokenBucket
from tolerant_client.mirror.losses import LedgerRow, Loss, LossPolicy, LossReason, MirrorPolicy
from tolerant_client.mirror.producers import init_producer_id
from tolerant_client.mirror.topics import TopicFacts, describe_topics, topic_facts
from tolerant_client.mirror.turns import Turns
from tolerant_client.raw import RawCluster

_FACTS_LAST_S = 60.0  # a topic's configuration may be changed while it is copied
_PAUSE_S = 30.0  # between two looks at a partition that policy has paused
_AHEAD_S = 1.0  # between two looks at a source that has to catch up with what the target keeps
_CONTROL_S = 1.0  # between two looks at what the operator says
_KEEP_ID_S = 86_400.0  # coordinators forget a transactional.id that is not used for a week; promotion needs ours


class LinkCopier:
    """Copies partitions of one link; both clusters must share one event loop.

    All methods run on that loop.  `producer_id` is the link's
    (state.init_producer_id).  `clock` returns monotonic seconds.  `bytes_per_s`
    is the link's rate unless the operator gives it another; either is divided
    by `shares`, the number of its copiers.
    """

    def __init__(
        self,
        source: RawCluster,
        target: RawCluster,
        producer_id: int,
        limits: CopyLimits = CopyLimits(),
        clock: Callable[[], float] = time.monotonic,
        *,
        link: str = "default",
        policy: MirrorPolicy = MirrorPolicy(),
        bytes_per_s: int | None = None,
        shares: int = 1,
    ) -> None:
        self.source = source
        self.target = target
        self.producer_id = producer_id
        self.limits = limits
        self.clock = clock
        self.link = link
        self.policy = policy
        self.ledger = Ledger(target, link)
        self.control = ControlWatch(target, link)
        self._bytes_per_s = bytes_per_s
        self._shares = shares
        self._bucket = TokenBucket()
        self._is_following = False
        self._next_id_use = clock() + _KEEP_ID_S
        self._net = source.net
        self._partitions: dict[TopicPartition, PartitionCopy] = {}
        fillers: dict[GapFill, GapFiller] = {
            GapFill.TRANSACTIONS: TransactionFiller(target, link, self.control.require_not_promoted),
            GapFill.MARKERS: MarkerFiller(target, self.control.require_not_promoted),
        }
        self._appender = Appender(target, limits, clock, fillers, self._spawn, self._appended, self._no_leader)
        self._puller = Puller(
            source,
            self._partitions,
            self._appender,
            limits,
            clock,
            self._spawn,
            self._after_trouble,
            self._drop_expired,
            self._bucket,
        )
        self._facts: dict[str, tuple[float, TopicFacts, bool]] = {}  # when read, the target's, whether the source cleans
        self._to_sync: set[TopicPartition] = set()
        self._sync_wanted = WakeupNotifier(self._net)
        self._is_syncing = False
        self._waiters: set[Future] = set()
        self._turns = Turns()
        self._next_drop = 0.0
        self.failure: Exception | None = None  # what ended a loop; the copier is of no more use

    # -- what callers ask -----------------------------------------------------

    async def copy(
        self, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
    ) -> dict[TopicPartition, Progress]:
        """As copy_each, but raises the first error that stopped a partition."""
        return raise_stopped(await self.copy_each(until, hold_ms=hold_ms, lease_ms=lease_ms))

    async def copy_each(
        self, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
    ) -> dict[TopicPartition, Progress]:
        """Copies each partition at least up to its offset, and what arrives for `hold_ms` more.

        For `lease_ms` after that the copying goes on in the background, until
        another writer shows up.  A partition that stopped has its error in its progress;
        the other partitions are brought to their end.  Calls for the same partition wait for each other.
        """
        await self._turns.take(until)
        try:
            return await self._copy(until, hold_ms, lease_ms)
        finally:
            self._turns.leave(until)

    async def _copy(
        self, until: Mapping[TopicPartition, int | None], hold_ms: int, lease_ms: int
    ) -> dict[TopicPartition, Progress]:
        now = self.clock()
        before = {p: (c.records, c.bytes, c.filled, c.losses) for p, c in self._partitions.items() if p in until}
        for partition, offset in until.items():
            self._adopt(partition, offset, now + hold_ms / 1000, now + (hold_ms + lease_ms) / 1000)
        if not self._is_following:
            self._is_following = True
            self._spawn(self._follow_control)
        try:
            await self._settled(until, now + hold_ms / 1000)
        finally:
            waits = self.waiting()
            progress = {
                p: self._progress(p, before.get(p, (0, 0, 0, 0)), waits.get(p)) for p in until if p in self._partitions
            }
            for partition in until:
                if not lease_ms or self._is_stopped(partition):
                    self._release(partition)
        return progress

    async def _settled(self, partitions: Iterable[TopicPartition], hold_until: float) -> None:
        """Waits until all have reached their offset or stopped, and the hold is over."""
        while True:
            if self.failure is not None:
                raise self.failure
            now = self.clock()
            copies = [c for p in partitions if (c := self._partitions.get(p)) is not None]
            waiting = [c for c in copies if c.phase not in (Phase.STOPPED, Phase.PAUSED)]
            is_over = now >= hold_until or all(c.phase is Phase.STOPPED for c in copies)
            if is_over and all(c.has_reached for c in waiting):
                return
            future = Future()
            self._waiters.add(future)
            timer = self._net.call_later(1.0 if now >= hold_until else min(1.0, hold_until - now), lambda: resolve(future))
            try:
                await future
            finally:
                self._waiters.discard(future)
                self._net.cancel(timer)
            patience_s, now = self.limits.patience_ms / 1000, self.clock()
            for copy in waiting:
                if not copy.has_reached:
                    copy.give_up_after(patience_s, now)
                    heard_at = max(self._appender.settled_at, copy.adopted_at, self._bucket.free_at)
                    is_silent = not copy.in_flight and now - heard_at > patience_s
                    if is_silent and copy.phase is not Phase.STOPPED:
                        copy.stop(RecoveryExhaustedError(f"{copy}: the source sent nothing for {patience_s:.0f} s at offset {copy.acked}"))

    def _adopt(self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float) -> None:
        copy = self._partitions.get(partition)
        if copy is None:
            copy = self._partitions[partition] = PartitionCopy(partition, until, self.clock())
            self._want_sync(copy)
        copy.adopted_at = self.clock()
        copy.until = until
        copy.hold_until = hold_until
        copy.lease_until = lease_until
        if copy.phase is Phase.COPYING and not self._puller.is_pulling(partition):
            # It had reached its former offset and was left alone since.
            copy.phase = Phase.DRAINING
            self._after_trouble(copy)

    def _release(self, partition: TopicPartition) -> None:
        copy = self._partitions.pop(partition, None)
        if copy is not None:
            copy.phase = Phase.STOPPED  # what was accepted for it is not queued any more
            self._leave(copy)
            self._to_sync.discard(partition)

    def _leave(self, copy: PartitionCopy) -> None:
        self._puller.leave(copy.partition)
        self._appender.drop(copy)

    def _is_stopped(self, partition: TopicPartition) -> bool:
        copy = self._partitions.get(partition)
        return copy is not None and copy.phase is Phase.STOPPED

    def _progress(self, partition: TopicPartition, before: tuple[int, int, int, int], wait: Waiting | None) -> Progress:
        copy = self._partitions[partition]
        now = (copy.records, copy.bytes, copy.filled, copy.losses)
        records, size, filled, losses = (after - former for after, former in zip(now, before))
        is_paused = copy.phase is Phase.PAUSED and copy.error is not None
        return Progress(
            copy.acked, records, size, copy.troubles, filled, losses, is_paused, copy.error, copy.is_placed, wait
        )

    def waiting(self) -> dict[TopicPartition, Waiting]:
        """Partitions that have not moved for WAITS_AFTER_S though there is something to copy, and why."""
        now, now_ms = self.clock(), int(time.time() * 1000)
        found = {p: copy.waits(WAITS_AFTER_S, now) for p, copy in self._partitions.items()}
        return {p: Waiting(w[1], now_ms - int(1000 * (now - w[0]))) for p, w in found.items() if w is not None}

    # -- from trouble back to copying -----------------------------------------

    def _want_sync(self, copy: PartitionCopy) -> None:
        self._to_sync.add(copy.partition)
        if not self._is_syncing:
            self._is_syncing = True
            self._spawn(self._sync_loop)
        else:
            self._sync_wanted.notify()

    async def _sync_loop(self) -> None:
        try:
            while self._to_sync:
                now = self.clock()
                due = [p for p in self._to_sync if self._partitions[p].not_before <= now]
                if not due:
                    await self._sync_wanted(max(0.001, min(self._partitions[p].not_before for p in self._to_sync) - now))
                    continue
                self._to_sync.difference_update(due)
                try:
                    await self._sync(due)
                except KafkaError as error:
                    self._not_read(due, f"the place could not be read: {type(error).__name__}: {error}")
                self._notify()
        finally:
            self._is_syncing = False

    async def _sync(self, due: list[TopicPartition]) -> None:
        """Reads the places of partitions, and lets those that can go on."""
        if not self.control.is_read:
            await self.control.refresh()
        due = await self._led(await self._present(self._not_paused(due)))
        topics = {p.topic for p in due}
        await self._read_facts(topics)
        self._not_read([p for p in due if p.topic not in self._facts], "the target topic is not there")
        due = [p for p in due if p.topic in self._facts]
        copies = {p: copy for p in due if (copy := self._partitions.get(p)) is not None}
        copied = {p: (copy.former_epoch, copy.acked) for p, copy in copies.items() if copy.former_epoch >= 0}
        control = self.control.value
        states = await read_append_states(self.source, self.target, due, self.producer_id, self.ledger, copied, control)
        # Promotion is written down before the log is fenced: whoever read the log behind the fence finds it here.
        await self.control.refresh()
        self._obey()
        joining = []
        for partition in due:
            copy = self._partitions.get(partition)
            if copy is None or copy.phase is Phase.STOPPED:
                continue
            if self.control.value.pauses(partition):
                self._pause(copy)
                continue
            copy.phase = Phase.SYNCING
            rules = self._rules(copy)
            state = states.get(partition)
            now = self.clock()
            if isinstance(state, Loss) and copy.misplaced is not None:
                state = copy.misplaced
            elif isinstance(state, AppendState) and copy.is_too_large(state.log_end, rules.max_batch_bytes):
                state = self._oversized(copy, state)
            if state is None:
                copy.trouble("the last record batch could not be read (is Read allowed on the target's topic?)", now)
                copy.not_before = max(copy.not_before, now + 0.02)
            elif isinstance(state, TolerantClientError):
                copy.doubt(state, now)
            elif isinstance(state, AheadOfSource):
                copy.wait(state.state.log_end, now, now + _AHEAD_S)
                self._to_sync.add(partition)
            elif isinstance(state, LogStart):
                self._spawn(self._start_log, copy, state, rules)
                continue
            elif isinstance(state, Loss):
                self._spawn(self._lose, copy, state, rules)
                continue
            else:
                copy.resume(state, rules, now)
                joining.append(partition)
            if copy.phase not in (Phase.COPYING, Phase.PAUSED):
                self._after_trouble(copy)
        await self._join(joining)

    # -- what the operator says -----------------------------------------------

    async def _follow_control(self) -> None:
        """Looks once a second what the operator says, for as long as there is anything to copy."""
        try:
            while self._partitions:
                await self._net.sleep(_CONTROL_S)
                try:
                    await self.control.refresh()
                    if self.clock() > self._next_id_use:
                        self._next_id_use = self.clock() + _KEEP_ID_S
                        await init_producer_id(self.target, self.control.value.producer_name(self.link))
                except KafkaError:
                    continue  # what was said before holds
                self._obey()
                self._drop_expired()
        finally:
            self._is_following = False

    def _obey(self) -> None:
        """Makes what the operator says now take effect."""
        control, copies = self.control.value, list(self._partitions.values())
        rate = control.rate(self._bytes_per_s)
        self._bucket.set_rate(None if rate is None else rate / self._shares, self.clock())
        try:
            control.require_not_promoted(self.link)
        except LinkPromotedError as error:
            for copy in copies:
                copy.stop(error)
                self._leave(copy)
            self._to_sync.clear()
            self._notify()
            return
        for copy in copies:
            if not control.pauses(copy.partition):
                if copy.phase is Phase.PAUSED and isinstance(copy.error, LinkPausedError):
                    self._want_sync(copy)
            elif copy.phase is Phase.COPYING:
                copy.trouble("its operator has paused it", self.clock())
                self._after_trouble(copy)

    def _not_paused(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that the operator lets go on; the others are paused until he does."""
        copies = [copy for p in partitions if (copy := self._partitions.get(p)) is not None]
        for copy in copies:
            if self.control.value.pauses(copy.partition):
                self._pause(copy)
        return [copy.partition for copy in copies if not self.control.value.pauses(copy.partition)]

    def _pause(self, copy: PartitionCopy) -> None:
        if copy.phase is not Phase.STOPPED:
            resume = f"tolerant-kafka resume {link_options(self.link, self.target)}"
            copy.pause(LinkPausedError(f"{copy} is paused by an operator; {resume} lets it go on"), self.clock())

    def _not_read(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Partitions whose place could not be read are asked for again, a little later each time."""
        for partition in partitions:
            copy = self._partitions.get(partition)
            if copy is not None and copy.phase not in (Phase.STOPPED, Phase.COPYING):
                copy.phase = Phase.SYNCING
                copy.trouble(reason, self.clock())
                self._after_trouble(copy)

    async def _led(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those with a leader on both clusters: to wait for another one's election would hold up all."""
        leaderless: dict[TopicPartition, str] = {}
        for cluster in (self.source, self.target):
            await cluster.track({p.topic for p in partitions})
            without = [p for p in partitions if cluster.known_leader(p) is None]
            if without:
                self._spawn(self._refresh, cluster)
            leaderless.update(dict.fromkeys(without, cluster.name))
        for partition, name in leaderless.items():
            self._not_read([partition], f"the partition has no leader on the {name}")
        return [p for p in partitions if p not in leaderless]

    async def _refresh(self, cluster: RawCluster) -> None:
        """Asks for leaders; a cluster that does not answer shows in the partitions that wait for it."""
        try:
            await cluster.refresh()
        except KafkaError:
            pass

    async def _present(self, due: list[TopicPartition]) -> list[TopicPartition]:
        """Those that the target has; asking a broker for the log of another one would hold up all."""
        there = await self.target.partitions({p.topic for p in due})
        present = [p for p in due if p.partition in there.get(p.topic, ())]
        for partition in set(due).difference(present):
            self._facts.pop(partition.topic, None)
            copy = self._partitions.get(partition)
            if copy is not None and copy.phase is not Phase.STOPPED:
                copy.phase = Phase.SYNCING
                copy.absent(self.clock())
                self._after_trouble(copy)
        return present

    async def _read_facts(self, topics: set[str]) -> None:
        """What the partitions' rules depend on: the target's topics, and whether the source cleans its own."""
        now = self.clock()
        if stale := [t for t in topics if t not in self._facts or now - self._facts[t][0] > _FACTS_LAST_S]:
            sources = await describe_topics(self.source, stale)
            for topic, facts in (await topic_facts(self.target, stale)).items():
                # Brokers before 0.11 do not tell; they have no gaps but those of the cleaner.
                is_cleaned = topic not in sources or not sources[topic].effective or sources[topic].is_compacted
                self._facts[topic] = (now, facts, is_cleaned)

    def _rules(self, copy: PartitionCopy) -> AppendRules:
        _, facts, is_cleaned = self._facts[copy.partition.topic]
        fill = self.policy.for_topic(copy.partition.topic).gap_fill
        way = choose_way(fill, is_compacted=facts.is_compacted or is_cleaned)
        return AppendRules(way, facts.is_compacted, facts.max_message_bytes, copy.left_out)

    async def _start_log(self, copy: PartitionCopy, found: LogStart, rules: AppendRules) -> None:
        """Makes an empty log begin where the source's does, then looks again."""
        copy.in_flight += 1
        try:
            await start_log_at(
                self.target,
                copy.partition,
                found.state,
                found.start,
                is_compacted=rules.is_compacted,
                max_batch_bytes=rules.max_batch_bytes,
            )
        except KafkaError as error:
            copy.not_filled(Gap(found.state.log_end, found.start), error, self.clock())
        copy.in_flight -= 1
        copy.adopted_at = self.clock()
        if self._partitions.get(copy.partition) is not copy:
            return
        if copy.phase is Phase.SYNCING:
            self._want_sync(copy)
        else:
            self._after_trouble(copy)

    # -- losses ---------------------------------------------------------------

    def _oversized(self, copy: PartitionCopy, state: AppendState) -> Loss:
        error = copy.too_large
        assert error is not None
        topic, index = copy.partition
        now_ms = int(time.time() * 1000)
        row = LedgerRow(now_ms, self.link, topic, index, error.offset, error.offset + 1, LossReason.OVERSIZED, str(error))
        return Loss(row, error, state, state.log_end)

    async def _lose(self, copy: PartitionCopy, loss: Loss, rules: AppendRules) -> None:
        """Does what policy says of a loss that was found often enough."""
        chosen = self.policy.for_topic(copy.partition.topic)
        is_oversized = loss.row.reason == LossReason.OVERSIZED
        policy = chosen.on_oversized if is_oversized else chosen.on_loss
        now = self.clock()
        if not copy.is_believed(str(loss.error), now):
            pass
        elif policy is LossPolicy.FAIL:
            copy.stop(loss.error)
        elif policy is LossPolicy.PAUSE:
            copy.pause(loss.error, now + _PAUSE_S)
            self._want_sync(copy)
        elif await self._written(copy, loss):
            if is_oversized:
                copy.left_out.add(loss.row.from_offset)
                copy.too_large = None
            if loss.resume_at > loss.state.log_end:
                copy.resume(loss.state, rules, self.clock())
                items = copy.leave_out(loss.resume_at, int(time.time() * 1000))
                self._appender.enqueue([(copy, item) for item in items])
                await self._join([copy.partition])
            else:
                copy.trouble("a loss was written down", now)  # with the row in the ledger the place is another one
        if self._partitions.get(copy.partition) is copy and copy.phase not in (Phase.COPYING, Phase.PAUSED):
            self._after_trouble(copy)
        self._notify()

    async def _written(self, copy: PartitionCopy, loss: Loss) -> bool:
        """True once a loss is in the ledger, if the partition is still ours then."""
        try:
            await self.ledger.write([loss.row])
        except KafkaError as error:
            copy.trouble(f"the ledger could not be written: {type(error).__name__}: {error}", self.clock())
            return False
        copy.losses += 1
        return self._partitions.get(copy.partition) is copy and copy.phase is Phase.SYNCING

    async def _join(self, partitions: list[TopicPartition]) -> None:
        try:
            await self._puller.join(partitions)
        except KafkaError as error:
            for copy in [c for p in partitions if (c := self._partitions.get(p)) is not None]:
                copy.trouble(f"the source's leader was not found: {error}", self.clock())
                self._after_trouble(copy)

    def _after_trouble(self, copy: PartitionCopy) -> None:
        """Takes a troubled partition out of the flow; once drained it goes to the sync loop."""
        self._leave(copy)
        if self.clock() > copy.hold_until and copy.has_reached:
            # Only the lease is left: whoever else writes this partition is its owner now.
            self._release(copy.partition)
        elif copy.is_drained:
            self._want_sync(copy)
        if copy.phase is Phase.STOPPED:
            self._notify()

    # -- what the source side and the appender tell ---------------------------

    def _drop_expired(self) -> None:
        """Lets go of partitions whose lease is over; looks at them once a second."""
        now = self.clock()
        if now < self._next_drop:
            return
        self._next_drop = now + 1.0
        for partition, copy in list(self._partitions.items()):
            if copy.has_reached and now > copy.lease_until > copy.hold_until:
                self._release(partition)

    def _appended(self, copies: list[PartitionCopy]) -> None:
        has_reached = False
        for copy in copies:
            if self._partitions.get(copy.partition) is not copy:
                continue
            if copy.phase is not Phase.COPYING:
                self._after_trouble(copy)
            else:
                if copy.was_held_back and not copy.queue:
                    copy.was_held_back = False
                    self._spawn(self._join, [copy.partition])
                has_reached |= copy.until is not None and copy.acked >= copy.until
        if has_reached:
            self._notify()

    def _no_leader(self, copy: PartitionCopy) -> None:
        copy.trouble("the target partition has no leader", self.clock())
        self._spawn(self._refresh, self.target)
        self._after_trouble(copy)

    # -- loops ----------------------------------------------------------------

    def _spawn(self, function: Callable[..., Any], *args: Any) -> None:
        async def guarded() -> None:
            try:
                await function(*args)
            except Exception as error:
                self.failure = error
                self._notify()

        self._net.call_soon(guarded)

    def _notify(self) -> None:
        for future in list(self._waiters):
            resolve(future)
