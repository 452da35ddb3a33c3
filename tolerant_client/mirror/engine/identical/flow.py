"""The partitions that a copier has: it adopts them, claims them on the target, copies them, and releases them.

Laws:
- A partition is neither read nor appended to before it is claimed (mirror/state/claims.py), and its claim is not released
  while a request is in flight.
- Any trouble takes a partition out of the flow.  It drains, and then waits in `to_sync` until the target's log was read
  again (sync_loop.py).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress

import kafka.errors as Errors
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import WakeupNotifier
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import LinkPausedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.engine.identical.accept import accept
from tolerant_client.mirror.engine.identical.append import Appender
from tolerant_client.mirror.engine.identical.auto_fill import gap_fillers
from tolerant_client.mirror.engine.identical.open_gaps import OpenGaps
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.strategy import NO_CLAIM, CopiedLink
from tolerant_client.mirror.engine.witnesses import Witnesses

_PAUSED = "its operator has paused it"


class Flow:
    """The partitions of one copier; on the loop of both clusters.

    `sync` reads the logs of the partitions in `to_sync` until none is left; it runs only while there are any.
    """

    def __init__(self, link: CopiedLink, sync: Callable[[], Awaitable[None]]) -> None:
        self.link = link
        self.source = link.source
        self.target = link.target
        self.control = link.control
        self.claims = link.claims
        self.clock = link.clock
        self.tasks = link.tasks
        self.partitions: dict[TopicPartition, PartitionCopy] = {}
        self.unclaimed: set[TopicPartition] = set()  # wait for their claim
        self.to_sync: set[TopicPartition] = set()
        self.sync_wanted = WakeupNotifier(link.source.net)
        self.open_gaps = OpenGaps(link.target, link.name, self.require_writable, link.clock)
        self.appender = Appender(
            link,
            gap_fillers(link.target, link.name, self.require_writable, self.require_ours, self.open_gaps.fence),
            self.is_claimed,
            self._appended,
            self._no_leader,
        )
        self.witnesses = Witnesses(link.source)
        self.reader = Reader(
            link, self.partitions, self._accept, self.appender.enqueue, self.after_trouble, self.witnesses
        )
        self._sync = sync
        self._is_syncing = False
        self._leaving: dict[TopicPartition, PartitionCopy] = {}  # given up, with requests in flight

    def copies(self, partitions: Iterable[TopicPartition]) -> list[PartitionCopy]:
        """Those of these partitions that the copier has."""
        return [copy for p in partitions if (copy := self.partitions.get(p)) is not None]

    def has(self, copy: PartitionCopy) -> bool:
        """Whether a partition was neither released nor adopted again since."""
        return self.partitions.get(copy.partition) is copy

    # -- adopted and released -------------------------------------------------

    def adopt(
        self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float
    ) -> PartitionCopy:
        copy = self.partitions.get(partition)
        if copy is None:
            copy = self.partitions[partition] = PartitionCopy(partition, self.clock())
            self.want_sync(copy)
        copy.rested()  # a partition that had reached its former offset gets its full patience
        copy.want(until, hold_until, lease_until, self.clock())
        if copy.phase is Phase.COPYING and not self.reader.is_reading(partition):
            # It had reached its former offset and is not fetched any more.
            copy.phase = Phase.DRAINING
            self.after_trouble(copy)
        return copy

    def release(self, partition: TopicPartition) -> None:
        copy = self.partitions.pop(partition, None)
        if copy is not None:
            copy.is_released = True
            if copy.phase is not Phase.PAUSED:  # accepted batches are no longer queued
                copy.phase = Phase.RELEASED if copy.phase is Phase.COPYING else Phase.STOPPED
            self.leave(copy)
            self.to_sync.discard(partition)
            self.unclaimed.discard(partition)
            self._leaving[partition] = copy
            self.settled(copy)

    def settled(self, copy: PartitionCopy) -> None:
        """Handles a settled request of a partition that was given up: after the last one its claim is released."""
        if copy.in_flight or self._leaving.get(copy.partition) is not copy:
            return
        if (unread_s := copy.unread.lost_until - self.clock()) > 0:
            self.target.net.call_later(unread_s, lambda: self.settled(copy))  # the next writer must not think it over
            return
        del self._leaving[copy.partition]
        if (wanted := self.partitions.get(copy.partition)) is None:
            self.claims.leave([copy.partition])
        elif wanted.phase is Phase.SYNCING:
            self.want_sync(wanted)

    def is_leaving(self, partition: TopicPartition) -> bool:
        return partition in self._leaving

    def drop_expired(self) -> None:
        """Releases partitions that have reached their offset and whose lease has ended."""
        now = self.clock()
        for partition, copy in list(self.partitions.items()):
            if copy.has_reached and now > copy.lease_until > copy.hold_until:
                self.release(partition)

    # -- claimed --------------------------------------------------------------

    def claimed(self, due: list[TopicPartition]) -> list[TopicPartition]:
        """Partitions that may be read and written; the others wait for their claim, or for requests in flight."""
        held = [p for p in due if self.claims.holds(p) and p not in self._leaving]
        self.unclaimed.update(p for p in set(due).difference(held) if p in self.partitions)
        return held

    def is_claimed(self, copy: PartitionCopy) -> bool:
        """Whether a partition may be appended to from the state that was read (claims.py, laws E and H)."""
        return copy.term is not None and self.claims.term(copy.partition) == copy.term

    def is_ours(self, partition: TopicPartition) -> bool:
        """Like is_claimed; also for a partition that was given up with requests in flight."""
        copy = self.partitions.get(partition) or self._leaving.get(partition)
        return copy is not None and self.is_claimed(copy)

    def claims_changed(self) -> None:
        """Takes partitions with a lapsed claim out of the flow; wants a sync of those whose claim was granted."""
        for lapsed in [c for c in self.partitions.values() if c.phase is Phase.COPYING and not self.is_claimed(c)]:
            lapsed.trouble(NO_CLAIM, self.clock())
            self.after_trouble(lapsed)
        for partition in [p for p in self.unclaimed if self.claims.holds(p) and p not in self._leaving]:
            self.unclaimed.discard(partition)
            self.want_sync(self.partitions[partition])

    async def require_writable(self, partition: TopicPartition) -> None:
        """Raises LinkPromotedError if the link may no longer write, and KafkaError if the partition may not be written."""
        await self.control.refresh()
        self.link.require_not_promoted()
        self.require_ours(partition)

    def require_ours(self, partition: TopicPartition) -> None:
        """Like require_writable, without asking a broker: long operations call it before each of their requests."""
        if not self.is_ours(partition):
            raise Errors.NotLeaderForPartitionError(NO_CLAIM)
        self.link.require_not_promoted()
        if self.control.value.pauses(partition):
            raise Errors.NotLeaderForPartitionError(_PAUSED)

    # -- in the flow and out of it --------------------------------------------

    def _accept(self, copy: PartitionCopy, part: FetchedPartition, until: int | None) -> Iterator[list[Appendable]]:
        append_lease_s = self.link.limits.append_lease_ms / 1000
        source_topic = self.source.wire_topic(copy.partition.topic)
        return accept(copy, part, until, source_topic, append_lease_s, self.clock(), int(time.time() * 1000))

    def leave(self, copy: PartitionCopy) -> None:
        """Takes a partition out of the flow; what is in flight is settled as usual."""
        self.reader.leave(copy.partition)
        self.appender.drop(copy)

    def after_trouble(self, copy: PartitionCopy) -> None:
        """Takes a partition in trouble out of the flow; once drained, its log is read again."""
        self.leave(copy)
        if copy.is_drained:
            self.want_sync(copy)
        if copy.phase is Phase.STOPPED:
            self.tasks.notify()

    def want_sync(self, copy: PartitionCopy) -> None:
        """Has a partition's log read again, not before its `not_before`."""
        self.to_sync.add(copy.partition)
        if not self._is_syncing:
            self._is_syncing = True
            self.tasks.spawn(self._run_sync)
        else:
            self.sync_wanted.notify()

    async def _run_sync(self) -> None:
        try:
            await self._sync()
        finally:
            self._is_syncing = False

    def not_read(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Has partitions whose logs could not be read tried again, with growing pauses."""
        for copy in self.copies(partitions):
            if copy.phase not in (Phase.STOPPED, Phase.COPYING):
                copy.phase = Phase.SYNCING
                copy.trouble(reason, self.clock())
                self.after_trouble(copy)

    def stop(self, partition: TopicPartition, error: TolerantClientError) -> None:
        copy = self.partitions[partition]
        copy.stop(error)
        self.leave(copy)
        self.to_sync.discard(partition)

    # -- the operator's orders ------------------------------------------------

    def set_paused(self, partition: TopicPartition, is_paused: bool) -> None:
        """Takes a partition that the operator has paused out of the flow, or resumes one that the operator had paused."""
        copy = self.partitions[partition]
        if not is_paused:
            if isinstance(copy.paused, LinkPausedError):
                copy.paused = None
                if copy.phase is Phase.PAUSED:
                    self.want_sync(copy)
        elif copy.phase is Phase.COPYING:
            copy.trouble(_PAUSED, self.clock())
            self.after_trouble(copy)

    def pause_if_said(self, copy: PartitionCopy) -> bool:
        """Pauses a partition if the operator has paused it; False otherwise."""
        if not self.control.value.pauses(copy.partition):
            return False
        if copy.phase is not Phase.STOPPED:
            copy.pause(self.link.paused_error(copy), self.clock())
        return True

    # -- for the appender -----------------------------------------------------

    def _appended(self, copies: list[PartitionCopy]) -> None:
        has_reached = False
        for copy in copies:
            if not self.has(copy):
                self.settled(copy)
                continue
            if copy.phase is not Phase.COPYING:
                self.after_trouble(copy)
            else:
                if not copy.queue:
                    self.reader.rejoin(copy)
                has_reached |= copy.until is not None and copy.acked >= copy.until
        if has_reached:
            self.tasks.notify()

    def _no_leader(self, copy: PartitionCopy) -> None:
        copy.trouble("the target partition has no leader", self.clock())
        self.tasks.spawn(refresh_quietly, self.target)
        self.after_trouble(copy)


async def refresh_quietly(cluster: Cluster) -> None:
    """Refreshes leaders; a cluster that does not respond shows in the partitions that wait for it."""
    with suppress(KafkaError):
        await cluster.refresh()
