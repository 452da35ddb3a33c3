"""Copies partitions from source to target, many at once, on one event loop.

The path of a batch: a fetch loop for each source node receives it (reader.py), the partition takes and stamps it in place
(partition.py), the appender sends the slice (append.py), and the response moves `acked`.  Whatever goes wrong ends in one
place: the partition drains (flow.py), and its place is read from the target's log again (sync_loop.py).  There, too, is
decided what a loss leads to (loss_handler.py).

Memory is bounded by `max_bytes_in_flight`, whatever the number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.engine.identical.control_follower import ControlFollower
from tolerant_client.mirror.engine.identical.facts import TargetFacts
from tolerant_client.mirror.engine.identical.flow import Flow
from tolerant_client.mirror.engine.identical.loss_handler import LossHandler
from tolerant_client.mirror.engine.identical.partition import PartitionCopy, Phase
from tolerant_client.mirror.engine.identical.sync_loop import SyncLoop
from tolerant_client.mirror.engine.limits import CopyLimits, Progress, raise_stopped
from tolerant_client.mirror.engine.partition_locks import Turns
from tolerant_client.mirror.engine.tasks import Tasks
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.state.claims import Waiting
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.health import WAITS_AFTER_S
from tolerant_client.mirror.state.ledger import Ledger


class LinkCopier:
    """Copies partitions of one link; both clusters must share one event loop.

    All methods run on that loop.  `producer_id` is the link's
    (init_producer_id).  `clock` returns monotonic seconds.  `bytes_per_s`
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
        self.producer_id = producer_id
        self.limits = limits
        self.clock = clock
        self.control = ControlWatch(target, link)
        self._tasks = Tasks(source)
        self._bucket = TokenBucket()
        self._turns = Turns()
        self._flow = Flow(
            source,
            target,
            self.control,
            run,
            limits,
            clock,
            self._tasks,
            self._bucket,
            lambda: self._sync_loop.run(),
        )
        self.claims = self._flow.claims
        self._partitions = self._flow.partitions
        self._appender = self._flow.appender
        ledger, begun = Ledger(target, link), Begun(target, self.control)
        self._follower = ControlFollower(self._flow, begun, self._bucket, bytes_per_s, shares, self.waiting)
        self._sync_loop = SyncLoop(
            self._flow,
            producer_id,
            ledger,
            TargetFacts(source, target, policy, clock),
            begun,
            self._follower,
            LossHandler(self._flow, policy, ledger, begun),
        )

    @property
    def failure(self) -> Exception | None:
        """What ended a loop; the copier is of no more use then."""
        return self._tasks.failure

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
            self._flow.adopt(partition, offset, now + hold_ms / 1000, now + (hold_ms + lease_ms) / 1000)
        self._follower.start()
        try:
            await self._settled(until, now + hold_ms / 1000)
        finally:
            waits = self.waiting()
            copies = self._flow.copies(until)
            progress = {
                c.partition: self._progress(c, before.get(c.partition, (0, 0, 0, 0)), waits.get(c.partition))
                for c in copies
            }
            ends = {} if lease_ms else self._follower.copied(until, 0)
            for copy in copies:
                if not lease_ms or copy.phase is Phase.STOPPED:
                    self._flow.release(copy.partition)
        await self._follower.remember(ends)
        await self.claims.released()
        return progress

    async def _settled(self, partitions: Iterable[TopicPartition], hold_until: float) -> None:
        """Waits until all have reached their offset or stopped, and the hold is over."""
        while True:
            if self.failure is not None:
                raise self.failure
            now = self.clock()
            copies = self._flow.copies(partitions)
            waiting = [c for c in copies if c.phase not in (Phase.STOPPED, Phase.PAUSED)]
            is_over = now >= hold_until or all(c.phase is Phase.STOPPED for c in copies)
            if is_over and all(c.has_reached for c in waiting):
                return
            await self._tasks.wait(hold_until - now)
            patience_s, now = self.limits.patience_ms / 1000, self.clock()
            for copy in waiting:
                if not copy.has_reached:
                    copy.give_up_after(patience_s, now)
                    heard_at = max(self._appender.settled_at, copy.adopted_at, self._bucket.free_at)
                    is_waiting = (
                        copy.is_troubled and copy.partition not in self._flow.unclaimed
                    )  # it says itself what for
                    is_silent = not copy.in_flight and not is_waiting and now - heard_at > patience_s
                    if is_silent and copy.phase is not Phase.STOPPED:
                        copy.stop(self._silence(copy, patience_s))

    def _silence(self, copy: PartitionCopy, patience_s: float) -> TolerantClientError:
        if copy.partition not in self._flow.unclaimed:
            return RecoveryExhaustedError(
                f"{copy}: the source sent nothing for {patience_s:.0f} s at offset {copy.acked}"
            )
        return RecoveryExhaustedError(f"{copy} could not be claimed for {patience_s:.0f} s: {self.claims.problem}")

    def _progress(self, copy: PartitionCopy, before: tuple[int, int, int, int], wait: Waiting | None) -> Progress:
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
