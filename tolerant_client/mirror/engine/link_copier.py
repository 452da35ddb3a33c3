"""Copies many partitions of a link from source to target at once, on one event loop.

Identical and translated offsets are two strategies (strategy.py).  This module has what does not depend on them: calls that
hold partitions, leases that outlast a call, claims, the operator's orders, the rate, and progress.

Laws:
- Calls for the same partition wait for each other.
- A partition that another process of the run asks for is handed over, even in the middle of a call.  One that another run
  has claimed stops.
- When its run is over a copier gives everything back, as at the end of a call without a lease: the position is stored
  before the claim is released.
- Leases end and partitions are handed over in time even while the control cannot be read.
- Nothing is copied while the control may not be read.  If it cannot be read for another reason, the last orders hold.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import stable_ends
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import QUOTA_S
from tolerant_client.cluster.tasks import Tasks
from tolerant_client.errors import LinkPromotedError, OrdersHiddenError, TolerantClientError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.emptiness import EmptinessChecks
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.partition_locks import PartitionLocks
from tolerant_client.mirror.engine.strategy import NO_CLAIM, CopiedLink, Strategy
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.claims_topic import Claims, claimed_by, new_holder
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.health import WAITS_AFTER_S
from tolerant_client.mirror.state.ledger import Ledger

_EVERY_S = 1.0  # between two reads of the control, and two checks for what is due
_ENDS_S = 5.0  # between two questions where the source's logs end, under a quota
_HELD_S = 0.5  # the least time before a partition is handed over: when many processes ask, each gets something done


class LinkCopier:
    """Copies partitions of one link; both clusters must share one event loop.

    All methods run on that loop.  `offsets` makes the strategy (identical_offsets, translated_offsets); prepare_link must have
    prepared the link for it.  `clock` returns monotonic seconds.  `bytes_per_s` is the link's rate unless the operator sets
    another; either is divided by `shares`, the number of the link's copiers.  `generation` is that of the prepared link (ControlWatch).
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        offsets: Callable[[CopiedLink], Strategy],
        limits: CopyLimits = CopyLimits(),
        clock: Callable[[], float] = time.monotonic,
        *,
        link: str = "default",
        policy: MirrorPolicy = MirrorPolicy(),
        bytes_per_s: int | None = None,
        shares: int = 1,
        run: str = "",
        generation: int | None = None,
    ) -> None:
        tasks, bucket = Tasks(source), TokenBucket()
        self.control = ControlWatch(target, link, generation)
        self.claims = Claims(target, new_holder(link, run), tasks.spawn, self._claims_changed)
        self.link = CopiedLink(
            source,
            target,
            link,
            limits,
            policy,
            clock,
            self.control,
            self.claims,
            Ledger(target, link),
            tasks,
            bucket,
            EmptinessChecks(source, bucket, clock),
            Memory(limits.max_bytes_in_flight),
            self.obey,
        )
        self.strategy = offsets(self.link)
        self._bytes_per_s = bytes_per_s
        self._shares = shares
        self._locks = PartitionLocks()
        self._quota_at = float("-inf")  # when a quota was last seen
        # Under a quota: how far each partition that has more to copy was copied, and since when.
        self._stands: dict[TopicPartition, tuple[int, float]] = {}
        self._stable_ends: Mapping[TopicPartition, int] = {}  # the source's then
        self._ends_at = float("-inf")
        self._repeated: set[Callable[[], Awaitable[None]]] = set()

    @property
    def failure(self) -> Exception | None:
        """The error that ended a background loop; the copier is then unusable."""
        return self.link.tasks.failure

    @property
    def held(self) -> set[TopicPartition]:
        """Partitions that it has, also between two calls, and has not given up."""
        return {p for p, copy in self.strategy.partitions.items() if not copy.is_released}

    # -- calls ----------------------------------------------------------------

    async def copy_each(
        self, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
    ) -> dict[TopicPartition, Progress]:
        """Copies each partition at least up to its source offset, and what arrives for `hold_ms` after that.

        Then copying continues in the background for `lease_ms`, unless another process of the run asks for the partition.
        A partition that stopped has its error in its progress; the others are copied to their end.  Calls for the same
        partition wait for each other.
        """
        async with self._locks.held(until):
            return await self._copy(until, hold_ms, lease_ms)

    async def _copy(
        self, until: Mapping[TopicPartition, int | None], hold_ms: int, lease_ms: int
    ) -> dict[TopicPartition, Progress]:
        strategy = self.strategy
        hold_until = self.link.clock() + hold_ms / 1000
        self.claims.want(map(strategy.claim_of, until))
        copies = {p: strategy.adopt(p, offset, hold_until, hold_until + lease_ms / 1000) for p, offset in until.items()}
        before = {p: (c.records, c.bytes, c.filled, c.losses) for p, c in copies.items()}
        self._every_second(self._watch)
        self._every_second(self._follow_control)
        self._every_second(self._ask_ends)
        try:
            await self._settled(copies.values(), hold_until, lease_ms / 1000)
        except BaseException:
            for partition in copies:
                strategy.release(partition)
            raise
        waits = self.waiting()
        own = {p for p, copy in copies.items() if not copy.is_released or copy.is_placed and copy.has_reached}
        if not lease_ms:
            await strategy.give_back(own)
        else:
            for partition in [p for p in own if copies[p].is_stopped]:
                strategy.release(partition)  # report its error at once: what its copying task waits for may take long
        await self.claims.released()
        progress = {p: _progress(copy, *before[p], waits.get(p)) for p, copy in copies.items()}
        # The next owner reports the state of what was handed over; only the work done here is reported here.
        return {p: done if p in own else done.done_only() for p, done in progress.items()}

    async def give_back(self) -> None:
        """Gives back every partition that it has between two calls, as a call without a lease does at its end."""
        await self.strategy.give_back(list(self.strategy.partitions))
        await self.claims.released()

    async def _settled(self, copies: Collection[CopiedPartition], hold_until: float, lease_s: float) -> None:
        """Waits until every partition has reached its offset, stopped or is paused, and the hold is over.

        While it waits for one of them the others' leases do not end: a partition in trouble holds up no other.
        """
        tasks, clock = self.link.tasks, self.link.clock
        while tasks.failure is None:
            now = clock()
            for copy in copies if lease_s and now >= hold_until else ():
                copy.lease_until = max(copy.lease_until, now + lease_s)
            is_over = now >= hold_until or all(copy.is_stopped or copy.is_released for copy in copies)
            if is_over and all(copy.is_settled for copy in copies):
                return
            await tasks.wait(hold_until - now)
            for copy in copies:
                if not copy.is_settled:
                    self.strategy.lose_patience(copy.partition)
        raise tasks.failure

    def waiting(self) -> dict[TopicPartition, Waiting]:
        """Partitions that have not moved for WAITS_AFTER_S though there is something to copy, and why.

        A quota of either cluster is named in each reason, and is the reason where nothing else was found.
        """
        now, now_ms = self.link.clock(), int(time.time() * 1000)
        copies = self.strategy.partitions
        found = {p: w for p, copy in copies.items() if (w := copy.waits(WAITS_AFTER_S, now)) is not None}
        if quota := f"{self.link.source.quota_words()}{self.link.target.quota_words()}":
            found |= self._stand_still(now, found)
        waits = {p: Waiting(w[1] + quota, now_ms - int(1000 * (now - w[0]))) for p, w in found.items()}
        if self.claims.problem:  # then nothing else that was found matters to what is not claimed
            unclaimed = [p for p in waits if not self.claims.holds(self.strategy.claim_of(p))]
            waits |= {p: waits[p]._replace(reason=f"{NO_CLAIM}: {self.claims.problem}") for p in unclaimed}
        return waits

    def _stand_still(self, now: float, but: Collection[TopicPartition]) -> dict[TopicPartition, tuple[float, str]]:
        """Partitions that have not moved for WAITS_AFTER_S under a quota, since when and where; called while it throttles us.

        A copy without an end learns from fetches what there is to copy; while these are throttled, from _ask_ends.
        """
        before = self._stands if now - self._quota_at <= QUOTA_S else {}
        self._quota_at, self._stands, found = now, {}, {}
        for partition, copy in self.strategy.partitions.items():
            is_behind = not copy.has_reached or copy.is_behind or copy.has_work
            is_behind |= 0 <= copy.position < self._stable_ends.get(partition, 0)
            if partition in but or not is_behind or copy.is_stopped or copy.paused_by is not None:
                continue
            stands = before.get(partition)
            if stands is None or stands[0] != copy.acked:
                stands = copy.acked, now
            self._stands[partition] = acked, since = stands
            if now - since >= WAITS_AFTER_S:
                found[partition] = since, f"it stands at offset {acked:,}"
        return found

    # -- in the background ----------------------------------------------------

    def _every_second(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeats a step for as long as the strategy has partitions."""

        async def repeat() -> None:
            try:
                while self.strategy.partitions:
                    await step()
                    await self.link.source.net.sleep(_EVERY_S)
            finally:
                self._repeated.discard(step)

        if step not in self._repeated:
            self._repeated.add(step)
            self.link.tasks.spawn(repeat)

    async def _watch(self) -> None:
        self.claims.claimant.waiting = self.waiting()
        self._claims_changed()
        self.strategy.watch()

    async def _ask_ends(self) -> None:
        """Asks the source where its logs end while it throttles us: that request waits for no quota."""
        source, now = self.link.source, self.link.clock()
        if now - self._ends_at < _ENDS_S or not source.quota_words():
            return
        self._ends_at = now
        with contextlib.suppress(KafkaError, TolerantClientError):  # the last ones hold
            self._stable_ends = (await stable_ends(source, list(self.strategy.partitions))).offsets

    async def _follow_control(self) -> None:
        try:
            await self.control.refresh()
        except OrdersHiddenError as error:
            for partition in [p for p, copy in self.strategy.partitions.items() if not copy.is_stopped]:
                self.strategy.stop(partition, error)  # its owner tries again
            self.link.tasks.notify()
        except KafkaError:
            pass  # the last orders hold
        else:
            self.obey()

    def obey(self) -> None:
        """Applies the operator's last orders."""
        link, strategy, control = self.link, self.strategy, self.control.value
        rate = control.rate(self._bytes_per_s)
        link.bucket.set_rate(None if rate is None else rate / self._shares, link.clock())
        try:
            link.require_not_promoted()
        except LinkPromotedError as error:
            for partition in list(strategy.partitions):
                strategy.stop(partition, error)
        else:
            for partition in list(strategy.partitions):
                strategy.set_paused(partition, control.pauses(partition))
        link.tasks.notify()

    def _claims_changed(self) -> None:
        """Hands over what another process of the run asks for, gives all back after the run, stops what another run has."""
        strategy, claimant = self.strategy, self.claims.claimant
        copies = {strategy.claim_of(p): copy for p, copy in strategy.partitions.items()}
        for claim in claimant.asked:
            copy = copies.get(claim)
            if copy is None:
                if not strategy.is_leaving(claim):
                    self.claims.leave([claim])
            elif not claimant.is_run_over and self.link.clock() - copy.adopted_at > _HELD_S:
                strategy.release(copy.partition)
        kept = [p for p, copy in strategy.partitions.items() if not copy.is_released]
        if claimant.is_run_over and kept:
            self.link.tasks.spawn(strategy.give_back, kept)
        strategy.claims_changed()
        for claim, rival in self.claims.rivals().items():
            if (copy := copies.get(claim)) is not None and not copy.is_stopped:
                strategy.stop(copy.partition, claimed_by(claim, rival))
        self.link.tasks.notify()


def _progress(
    copy: CopiedPartition, records: int, size: int, filled: int, losses: int, wait: Waiting | None
) -> Progress:
    """What was done for a partition since it had these records, bytes, filled offsets and losses."""
    return Progress(
        acked=copy.acked,
        records=copy.records - records,
        bytes=copy.bytes - size,
        troubles=copy.troubles,
        filled=copy.filled - filled,
        losses=copy.losses - losses,
        is_paused=copy.paused_by is not None,
        error=copy.error or copy.paused_by,
        is_placed=copy.is_placed,
        wait=wait,
    )
