"""Copies partitions from source to target, many at once, on one event loop.

The path of a batch: a fetch loop for each source node receives it, the
partition takes and stamps it in place, the appender sends the slice, and the
answer moves `acked`.  Whatever goes wrong ends in one place: the partition drains,
and the sync loop reads its place from the target's log again.  There, too, is
decided what a loss leads to.

Nothing is read or appended of a partition before it is claimed on the target (mirror/state/claims.py), and nothing is
released that has a request in flight.

Memory is bounded by `max_bytes_in_flight`, whatever the number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import kafka.errors as Errors
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.log_ends import Unreplicated
from tolerant_client.cluster.admin.producers import init_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import (
    LinkPausedError,
    LinkPromotedError,
    OptionError,
    RecoveryExhaustedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.appendable import NO_PRODUCER, AppendRules, AppendState
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.batches.losses import LedgerRow, Loss, LossPolicy, LossReason, MirrorPolicy
from tolerant_client.mirror.engine.identical.append import NO_CLAIM, Appender, GapFiller, resolve
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.engine.identical.difference import AheadOfSource, OpenTransaction
from tolerant_client.mirror.engine.identical.facts import TargetFacts
from tolerant_client.mirror.engine.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.engine.identical.given_times import rewritten_offsets
from tolerant_client.mirror.engine.identical.log_start import start_log_at
from tolerant_client.mirror.engine.identical.open_gaps import OpenGaps
from tolerant_client.mirror.engine.identical.partition import PartitionCopy, Phase, times_rewritten
from tolerant_client.mirror.engine.identical.probes import probe_logs
from tolerant_client.mirror.engine.identical.reader import Puller
from tolerant_client.mirror.engine.identical.resting import RestingLogs
from tolerant_client.mirror.engine.identical.resume_point import LogStart, read_append_states, read_ids
from tolerant_client.mirror.engine.limits import CopyLimits, Progress, raise_stopped
from tolerant_client.mirror.engine.partition_locks import Turns
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.state.claims import Waiting
from tolerant_client.mirror.state.claims_topic import Claims, claimed_by, new_holder
from tolerant_client.mirror.state.control import CONTROL_TOPIC, ControlWatch, link_options
from tolerant_client.mirror.state.health import WAITS_AFTER_S
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.stock.stock_names import Future, WakeupNotifier

_PAUSE_S = 30.0  # between two looks at a partition that policy has paused
_AHEAD_S = 1.0  # between two looks at a source that has to catch up with what the target keeps
_BEHIND_S = 0.05  # between two looks at a target whose replicas have to catch up, or a transaction to end, at first
_HELD_S = 0.5  # a partition is not handed over before that: of many that ask each gets something done
_CONTROL_S = 1.0  # between two looks at what the operator says
_RESTS_S = 10.0  # since the last append, before it is written down how far a partition was copied
_REMEMBER_S = 60.0  # between two such records
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
        source: Cluster,
        target: Cluster,
        producer_id: int,
        limits: CopyLimits = CopyLimits(),
        clock: Callable[[], float] = time.monotonic,
        *,
        link: str = "default",
        policy: MirrorPolicy = MirrorPolicy(),
        bytes_per_s: int | None = None,
        shares: int = 1,
        run: str = "",
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
        self.claims = Claims(target, new_holder(link, run), self._spawn, self._claims_changed)
        self._unclaimed: set[TopicPartition] = set()  # wait for their claim
        self._leaving: dict[TopicPartition, PartitionCopy] = {}  # given up, with requests in flight
        self._is_following = False
        self._next_id_use = clock() + _KEEP_ID_S
        self._next_remembered = clock() + _REMEMBER_S
        self._net = source.net
        self._partitions: dict[TopicPartition, PartitionCopy] = {}
        fillers: dict[GapFill, GapFiller] = {
            GapFill.TRANSACTIONS: TransactionFiller(target, link, self._may_fill),
            GapFill.MARKERS: MarkerFiller(target, self._may_fill),
        }
        self._appender = Appender(
            target, limits, clock, fillers, self._is_claimed, self._spawn, self._appended, self._no_leader
        )
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
        self._facts = TargetFacts(source, target, policy, clock)
        self._begun = Begun(target, self.control)
        self._open_gaps = OpenGaps(target, link, self._may_fill, clock)
        self._resting = RestingLogs(target, clock, self._spawn, self._after_trouble)
        self._to_sync: set[TopicPartition] = set()
        self._looked_at: set[TopicPartition] = set()  # by a group that is not done: one look at a partition at a time
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

        For `lease_ms` after that the copying goes on in the background, unless
        another process of the run asks for the partition.  A partition that stopped has its error in its progress;
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
        self.claims.want(until)
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
            ends = {} if lease_ms else self._copied(until, 0)
            for partition in until:
                if not lease_ms or self._is_stopped(partition):
                    self._release(partition)
        await self._remember(ends)
        await self.claims.released()
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
            timer = self._net.call_later(
                1.0 if now >= hold_until else min(1.0, hold_until - now), lambda: resolve(future)
            )
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
                    is_waiting = copy.is_troubled and copy.partition not in self._unclaimed  # it says itself what for
                    is_silent = not copy.in_flight and not is_waiting and now - heard_at > patience_s
                    if is_silent and copy.phase is not Phase.STOPPED:
                        copy.stop(self._silence(copy, patience_s))

    def _silence(self, copy: PartitionCopy, patience_s: float) -> TolerantClientError:
        if copy.partition not in self._unclaimed:
            return RecoveryExhaustedError(
                f"{copy}: the source sent nothing for {patience_s:.0f} s at offset {copy.acked}"
            )
        return RecoveryExhaustedError(f"{copy} could not be claimed for {patience_s:.0f} s: {self.claims.problem}")

    def _adopt(self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float) -> None:
        copy = self._partitions.get(partition)
        if copy is None:
            copy = self._partitions[partition] = PartitionCopy(partition, until, self.clock())
            self._want_sync(copy)
        copy.rested()  # if it had reached its former offset, its patience begins now
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
            self._unclaimed.discard(partition)
            self._leaving[partition] = copy
            self._left(copy)

    def _left(self, copy: PartitionCopy) -> None:
        """Releases the claim of a partition that was given up, once nothing of it is in flight."""
        if copy.in_flight or self._leaving.get(copy.partition) is not copy:
            return
        del self._leaving[copy.partition]
        if (wanted := self._partitions.get(copy.partition)) is None:
            self.claims.leave([copy.partition])
        elif wanted.phase is Phase.SYNCING:
            self._want_sync(wanted)

    # -- claims ---------------------------------------------------------------

    def _claimed(self, due: list[TopicPartition]) -> list[TopicPartition]:
        """Those that may be looked at and written; the others wait for their claim, or for what is still in flight."""
        held = [p for p in due if self.claims.holds(p) and p not in self._leaving]
        self._unclaimed.update(p for p in set(due).difference(held) if p in self._partitions)
        return held

    def _is_claimed(self, copy: PartitionCopy) -> bool:
        """Whether a partition may be appended to from the place that was read (claims.py, laws E and H)."""
        return copy.term is not None and self.claims.term(copy.partition) == copy.term

    def _claims_changed(self) -> None:
        """Hands over what another process of the run asks for, and looks at what was granted."""
        for lapsed in [c for c in self._partitions.values() if c.phase is Phase.COPYING and not self._is_claimed(c)]:
            lapsed.trouble(NO_CLAIM, self.clock())
            self._after_trouble(lapsed)
        claimant = self.claims.claimant
        for partition in claimant.asked:
            if (copy := self._partitions.get(partition)) is not None:
                if claimant.is_run_over or self.clock() - copy.adopted_at > _HELD_S:
                    self._release(partition)
                    self._notify()
            elif partition not in self._leaving:
                self.claims.leave([partition])
        for partition in [p for p in self._unclaimed if self.claims.holds(p) and p not in self._leaving]:
            self._unclaimed.discard(partition)
            self._want_sync(self._partitions[partition])
        rivals = self.claims.rivals() if self._unclaimed else {}
        for partition in self._unclaimed.intersection(rivals):
            self._partitions[partition].stop(claimed_by(partition, rivals[partition]))
            self._notify()

    async def _may_fill(self, partition: TopicPartition) -> None:
        await self.control.require_not_promoted()
        copy = self._partitions.get(partition) or self._leaving.get(partition)
        if copy is None or not self._is_claimed(copy):
            raise Errors.NotLeaderForPartitionError(NO_CLAIM)

    # -- giving up ------------------------------------------------------------

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
                times = {p: self._partitions[p].not_before for p in self._to_sync - self._looked_at}
                due = [p for p, not_before in times.items() if not_before <= now]
                if not due:
                    await self._sync_wanted(max(0.001, min(times.values(), default=now + 1.0) - now))
                    continue
                self._to_sync.difference_update(due)
                try:
                    groups = await self._by_leaders(due)
                except KafkaError as error:
                    self._not_read(due, f"the leaders could not be found: {type(error).__name__}: {error}")
                    continue
                for group in groups:
                    self._looked_at.update(group)
                    self._spawn(self._sync_group, group)
        finally:
            self._is_syncing = False

    async def _by_leaders(self, due: list[TopicPartition]) -> list[list[TopicPartition]]:
        """Partitions that are looked at together, those of the same two leaders: a broker that hangs holds up its own alone."""
        if not self.control.is_read:
            await self.control.refresh()
        groups: dict[tuple[int | None, int | None], list[TopicPartition]] = {}
        for partition in await self._led(await self._present(self._not_paused(self._claimed(due)))):
            leaders = self.source.known_leader(partition), self.target.known_leader(partition)
            groups.setdefault(leaders, []).append(partition)
        return list(groups.values())

    async def _sync_group(self, due: list[TopicPartition]) -> None:
        try:
            await self._sync(due)
        except LinkPromotedError:
            self._obey()
        except KafkaError as error:
            self._not_read(due, f"the place could not be read: {type(error).__name__}: {error}")
        finally:
            self._looked_at.difference_update(due)
            self._sync_wanted.notify()
        self._notify()

    async def _sync(self, due: list[TopicPartition]) -> None:
        """Reads the places of partitions, and lets those that can go on."""
        copies = {p: copy for p in due if (copy := self._partitions.get(p)) is not None}
        for copy in copies.values():
            copy.term = self.claims.term(copy.partition)  # before anything is read
        await self._facts.read(copies.values())
        self._not_read([p for p in due if not self._facts.has(p.topic)], "the target topic is not there")
        due = self._with_times_kept([p for p in due if self._facts.has(p.topic)])
        unknown = await self._open_gaps.end(due)
        for partition, why in unknown.items():
            self._not_read([partition], why)
        due = [p for p in due if p not in unknown and p in copies]
        if not due:
            return
        copied = {p: (copies[p].former_epoch, copies[p].acked) for p in due if copies[p].former_epoch >= 0}
        await self._puller.witnesses.look(self.target, due)  # before both logs are compared
        ids = await read_ids(self.source, self.target, {p.topic for p in due})
        self._not_read([p for p in due if p.topic not in ids], "one of the clusters says that it has no such topic")
        due = [p for p in due if p.topic in ids]
        if not due:
            return
        control = self.control.value
        # Another process of the run may have copied further since.
        known = {p: max(c.acked, control.copied.get(p, 0)) for p, c in copies.items() if c.is_placed}
        filled = {p: c.log_start for p, c in copies.items() if c.log_start}
        control = replace(control, copied={**control.copied, **known}, log_starts={**control.log_starts, **filled})
        states = await read_append_states(
            self.source, self.target, due, self.producer_id, self.ledger, copied, control, ids
        )
        unprobed = {
            p: found.log_end
            for p, found in states.items()
            if isinstance(found, AppendState) and not copies[p].is_placed and not ids[p.topic].source
        }
        rows = partial(self.ledger.rows, refresh=True)
        states |= await probe_logs(self.source, self.target, unprobed, control.adopted, rows)
        starts = {p: found.start for p, found in states.items() if isinstance(found, LogStart)}
        await self._begun.write(
            {p: ids[p.topic] for p, found in states.items() if isinstance(found, (AppendState, LogStart))},
            log_starts=starts,
        )
        for partition, found in states.items():
            if isinstance(found, AppendState) and found.producer_id == NO_PRODUCER:
                states[partition] = await self._begun.identified(found)
            elif isinstance(found, Loss) and found.state.producer_id == NO_PRODUCER:
                states[partition] = found._replace(state=await self._begun.identified(found.state))
            elif isinstance(found, AppendState) and copies[partition].retimed:
                states[partition] = await self._with_times_read(copies[partition], found)
        # Promotion is written down before the log is fenced: whoever read the log behind the fence finds it here.
        await self.control.refresh()
        self._obey()
        joining = []
        for partition in due:
            copy = copies[partition]
            if self._partitions.get(partition) is not copy or copy.phase is Phase.STOPPED:
                continue  # whoever took it over since looks for himself
            if self.control.value.pauses(partition):
                self._pause(copy)
                continue
            copy.phase = Phase.SYNCING
            if not self._is_claimed(copy):
                copy.trouble(NO_CLAIM, self.clock())
                self._after_trouble(copy)
                continue
            rules = self._facts.rules(copy)
            state = states.get(partition)
            now = self.clock()
            if isinstance(state, (Loss, TargetDivergedError)) and copy.misplaced is not None:
                state = copy.misplaced
            elif isinstance(state, AppendState) and copy.is_too_large(state.log_end, rules.max_batch_bytes):
                state = self._oversized(copy, state)
            if state is None:
                copy.trouble("the last record batch could not be read (is Read allowed on the target's topic?)", now)
                copy.not_before = max(copy.not_before, now + 0.02)
            elif isinstance(state, (Unreplicated, OpenTransaction)):
                copy.trouble(str(state), now)
                copy.not_before = max(copy.not_before, now + _BEHIND_S)
            elif isinstance(state, TolerantClientError):
                copy.doubt(state, now)
            elif isinstance(state, AheadOfSource):
                copy.wait(state.state.log_end, now, now + _AHEAD_S)
                self._want_sync(copy)
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
                self.claims.claimant.waiting = self.waiting()
                self._resting.look([copy for copy in self._partitions.values() if self._is_claimed(copy)])
                self._drop_expired()
                try:
                    await self.control.refresh()
                    if self.clock() > self._next_id_use:
                        self._next_id_use = self.clock() + _KEEP_ID_S
                        await init_producer_id(self.target, self.control.value.producer_name(self.link))
                except KafkaError:
                    continue  # what was said before holds
                self._obey()
                if self.clock() > self._next_remembered:
                    self._next_remembered = self.clock() + _REMEMBER_S
                    self._spawn(self._remember, self._copied(self._partitions, _RESTS_S))
        finally:
            self._is_following = False

    def _copied(self, partitions: Iterable[TopicPartition], after_s: float) -> dict[TopicPartition, int]:
        """How far those were copied that are claimed and have rested so long."""
        now, copies = self.clock(), [copy for p in partitions if (copy := self._partitions.get(p)) is not None]
        return {c.partition: c.acked for c in copies if c.rests(after_s, now) and self._is_claimed(c)}

    async def _remember(self, ends: Mapping[TopicPartition, int]) -> None:
        """Has the control say how far was copied: the log may be empty, and its producer forgotten, by the next look."""
        try:
            await self._begun.write({}, ends)
        except KafkaError:
            pass  # the next time it rests

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

    async def _refresh(self, cluster: Cluster) -> None:
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
            self._facts.forget(partition.topic)
            copy = self._partitions.get(partition)
            if copy is not None and copy.phase is not Phase.STOPPED:
                copy.phase = Phase.SYNCING
                copy.absent(self.clock())
                self._after_trouble(copy)
        return present

    def _with_times_kept(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those of topics that keep the times of records; the others wait for whoever has set it otherwise."""
        kept = []
        for partition in partitions:
            copy = self._partitions.get(partition)
            if not self._facts.rewrites_times(partition.topic):
                kept.append(partition)
            elif copy is not None and copy.phase is not Phase.STOPPED and not copy.retimed:
                copy.phase, copy.has_doubtful_facts = Phase.SYNCING, True
                copy.doubt(
                    TolerantClientError(
                        f"{copy}: the target's topic has message.timestamp.type=LogAppendTime, which would rewrite timestamps;"
                        " set it to CreateTime, and copying goes on"
                    ),
                    self.clock(),
                )
                self._after_trouble(copy)
            else:
                kept.append(partition)  # its log shows what was rewritten
        return kept

    async def _with_times_read(self, copy: PartitionCopy, state: AppendState) -> AppendState | TargetDivergedError:
        """The place of a partition, unless the log shows that the target's brokers gave records times of their own."""
        in_log = [span for span in copy.retimed if span[0] < state.log_end]
        if (given := await rewritten_offsets(self.target, copy.partition, in_log)) is not None:
            return times_rewritten(str(copy), *given)
        copy.retimed.clear()
        return state

    async def _start_log(self, copy: PartitionCopy, found: LogStart, rules: AppendRules) -> None:
        """Makes an empty log begin where the source's does, then looks again."""
        copy.in_flight += 1
        try:
            await self._may_fill(copy.partition)
            if copy.partition not in self.control.value.log_starts:
                raise OptionError(
                    f"{copy} is to begin at offset {found.start}, and nothing says so: an unfinished start would be taken"
                    f" for a loss later; grant the mirror Write on the target's topic {CONTROL_TOPIC}"
                )
            copy.log_start = found.start
            await start_log_at(
                self.target,
                copy.partition,
                found.state,
                found.start,
                {self.producer_id, *self.control.value.producer_ids},
                is_compacted=rules.is_compacted,
                max_batch_bytes=rules.max_batch_bytes,
            )
        except KafkaError as error:
            copy.not_filled(Gap(found.state.log_end, found.start), error, self.clock())
        copy.in_flight -= 1
        copy.adopted_at = self.clock()
        if self._partitions.get(copy.partition) is not copy:
            self._left(copy)
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
        row = LedgerRow(
            now_ms, self.link, topic, index, error.offset, error.offset + 1, LossReason.OVERSIZED, str(error)
        )
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
            if loss.row.reason == LossReason.RECREATION:  # from now on the link goes on with the new topic
                ids = await read_ids(self.source, self.target, {copy.partition.topic})
                if copy.partition.topic not in ids:
                    raise Errors.UnknownTopicOrPartitionError(f"topic {copy.partition.topic} of one of the clusters")
                copied = {copy.partition: loss.state.log_end}
                await self._begun.write({copy.partition: ids[copy.partition.topic]}, copied)
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
        if copy.is_drained:
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
        self._claims_changed()
        for partition, copy in list(self._partitions.items()):
            if copy.has_reached and now > copy.lease_until > copy.hold_until:
                self._release(partition)

    def _appended(self, copies: list[PartitionCopy]) -> None:
        has_reached = False
        for copy in copies:
            if self._partitions.get(copy.partition) is not copy:
                self._left(copy)
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
