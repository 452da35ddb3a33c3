"""Every record at the same offset: the copier's strategy for target topics that nobody else writes to.

The path of a batch: a fetch loop for each source node receives it (reader.py), the partition takes and stamps it in place
(partition.py), the appender sends the slice (append.py), and the response moves `acked`.  All trouble takes one path: the
partition drains (flow.py), and the target's log is read again (sync_loop.py).  The sync loop also decides what a loss leads to
(loss_handler.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.engine.identical.facts import TargetFacts
from tolerant_client.mirror.engine.identical.flow import Flow
from tolerant_client.mirror.engine.identical.loss_handler import LossHandler
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.identical.resting import RestingLogs
from tolerant_client.mirror.engine.identical.sync_loop import SyncLoop
from tolerant_client.mirror.engine.identical.unread import LATE_S
from tolerant_client.mirror.engine.strategy import CopiedLink, Strategy
from tolerant_client.mirror.state.link_control import LinkControl

_RESTS_S = 10.0  # since the last append, before the control records how far a partition was copied
_REMEMBER_S = 30.0  # between two such records
_SETTLES_S = 1.0  # wait for what is in flight when a partition is given back; after that its position is not recorded
_UNSETTLED = (
    "The mirror ends, and the target's broker has not responded to its last batches of %d partitions (%s ...), as it does while a"
    " quota throttles the mirror: it may still append these. The next mirror waits until the claims of this one end, and up to"
    " %.0f minutes before it appends old records after newer ones there"
)
_KEEP_ID_S = 86_400.0  # coordinators forget a transactional.id that is unused for a week; promotion needs ours

_log = logging.getLogger(__name__)


def identical_offsets(producer_id: int) -> Callable[[CopiedLink], Strategy]:
    """Copies at the same offsets; `producer_id` is the link's (init_producer_id)."""
    return lambda link: IdenticalOffsets(link, producer_id)


class IdenticalOffsets(Flow):
    """The partitions of a link in the flow of batches, and its periodic work."""

    def __init__(self, link: CopiedLink, producer_id: int) -> None:
        super().__init__(link, lambda: self.sync_loop.run())
        self._begun = Begun(link.target, link.control, self.is_ours)
        losses = LossHandler(self, self._begun)
        facts = TargetFacts(link.source, link.target, link.policy, link.clock)
        self.sync_loop = SyncLoop(self, producer_id, facts, self._begun, losses)
        self._resting = RestingLogs(link.target, link.clock, link.tasks.spawn, self.after_trouble)
        link.claims.is_held_up = link.target.held_up.is_now
        self._next_id_use = link.clock() + _KEEP_ID_S
        self._next_remembered = link.clock() + _REMEMBER_S

    def claim_of(self, partition: TopicPartition) -> TopicPartition:
        """The partition itself: nobody else writes to it."""
        return partition

    async def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Releases partitions; the control records how far they were copied, with what was in flight, before their claims end."""
        known = self.control.value
        given = [copy for copy in self.copies(partitions) if copy.is_placed and self.is_claimed(copy)]
        for copy in given:
            copy.in_flight += 1  # its claim is held until that is recorded (begun.py)
        for partition in partitions:
            self.release(partition)
        try:
            settles_by = self.clock() + _SETTLES_S
            while any(copy.in_flight > 1 for copy in given) and self.clock() < settles_by:
                await self.source.net.sleep(0.01)
            if self.claims.claimant.is_run_over and (left := [str(copy) for copy in given if copy.in_flight > 1]):
                _log.warning(_UNSETTLED, len(left), left[0], LATE_S / 60)
            kept = (Phase.RELEASED, Phase.PAUSED)
            await self._remember({c.partition: c.acked for c in given if c.in_flight == 1 and c.phase in kept}, known)
        finally:
            for copy in given:
                copy.in_flight -= 1
                self.settled(copy)

    def lose_patience(self, partition: TopicPartition) -> None:
        """Stops a partition that had only trouble, or no news, for as long as the patience lasts."""
        if (copy := self.partitions.get(partition)) is None:
            return
        now, patience_s = self.clock(), self.link.limits.patience_ms / 1000
        copy.give_up_after(patience_s, now)
        appender = self.appender
        waited_until = copy.unread.waited_until  # not `until`, before which only old records wait
        heard_at = max(
            appender.settled_at, appender.throttled_until, copy.adopted_at, waited_until, self.link.bucket.free_at
        )
        is_waiting = copy.is_troubled and partition not in self.unclaimed  # its own error tells what it waits for
        if copy.in_flight or is_waiting or now - heard_at <= patience_s or copy.phase is Phase.STOPPED:
            return
        is_unclaimed = partition in self.unclaimed
        copy.stop(self.link.unclaimed_error(copy) if is_unclaimed else copy.without_news(patience_s))

    def watch(self) -> None:
        """Checks resting logs, ends leases, and records periodically how far partitions were copied."""
        now = self.clock()
        self._resting.look([copy for copy in self.partitions.values() if self.is_claimed(copy)])
        self.drop_expired()
        if now > self._next_id_use:
            self._next_id_use = now + _KEEP_ID_S
            self.tasks.spawn(self._keep_id)
        if now > self._next_remembered:
            self._next_remembered = now + _REMEMBER_S
            self.tasks.spawn(self._remember, self.copied(self.partitions, _RESTS_S), self.control.value)

    def copied(self, partitions: Iterable[TopicPartition], after_s: float) -> dict[TopicPartition, int]:
        """How far partitions were copied that are claimed and have rested for `after_s`."""
        now = self.clock()
        return {c.partition: c.acked for c in self.copies(partitions) if c.rests(after_s, now) and self.is_claimed(c)}

    async def _remember(self, ends: Mapping[TopicPartition, int], known: LinkControl) -> None:
        """Has the control record how far was copied: at the next read the log may be empty, and its producer forgotten."""
        try:
            await self._begun.write({}, ends, known=known)
        except KafkaError:
            pass  # tried again the next time it rests

    async def _keep_id(self) -> None:
        try:
            await init_producer_id(self.target, self.control.value.producer_name(self.link.name))
        except KafkaError:
            self._next_id_use = self.clock()  # in a second
