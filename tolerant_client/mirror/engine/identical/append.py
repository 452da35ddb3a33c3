"""The target side of a copier: stamped batches go out as slices, with many requests in flight.

A request takes the next batch of every partition that has one (brokers accept
one batch for each partition and request).  Three things wait until nothing of
their partition is in flight, while other partitions continue: filling a gap, a
batch of a partition that may have only one in flight (law G of
identical/partition.py), and reading the end of an idle partition's log (law H).
Bytes count from queueing to the response (memory.py).

Laws:
A. What a broker has not read of a connection when a quota throttles it, it reads when the throttle ends: minutes later, also if
   this process is dead by then, and another one has appended the same.  It refuses that by its sequence, unless it has forgotten
   the producer, as it does after old records (law G of identical/partition.py).  So old records have a connection of their
   own to each node, with one request in flight: that is read at once, and its response, which may throttle the connection,
   leaves nothing in it.  What is not old may lie unread: old records wait for it (unread.py).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Unreplicated, replicated_ends_at
from tolerant_client.cluster.admin.topics import require_topic
from tolerant_client.cluster.connections import PRODUCE, PRODUCE_OLD, lane_of
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.cluster.produce_window import ProduceWindow
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.batches.appendable import Appendable, Batch
from tolerant_client.mirror.batches.gaps import Gap, GapFill
from tolerant_client.mirror.engine.identical.auto_fill import Filler
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.queued_partition import Phase
from tolerant_client.mirror.engine.strategy import NO_CLAIM, CopiedLink
from tolerant_client.records.record_batch import BatchHeader

_LONG_FILL_S = 0.1  # long enough for a topic to be deleted and created again


class _Sender:
    """The pipeline to one target node, for `old` records or for others; `ready` holds the partitions with queued batches, in turn."""

    def __init__(self, node_id: int, is_old: bool, window: Callable[[_Sender], ProduceWindow]) -> None:
        self.node_id = node_id
        self.is_old = is_old
        self.lane = PRODUCE_OLD if is_old else PRODUCE
        self.window = window(self)
        self.ready: dict[TopicPartition, PartitionCopy] = {}


class Appender:
    """Appends to the leaders of the target.

    `holds` says, directly before a batch is sent, whether its partition may be
    appended to.  `on_response` gets the partitions of every request that was
    settled, `on_no_leader` a partition that has no leader to send to.
    """

    def __init__(
        self,
        link: CopiedLink,
        fillers: Mapping[GapFill, Filler],
        holds: Callable[[PartitionCopy], bool],
        on_response: Callable[[list[PartitionCopy]], None],
        on_no_leader: Callable[[PartitionCopy], None],
    ) -> None:
        self.settled_at = link.clock()  # when a request was last settled
        self._target = link.target
        self._limits = link.limits
        self._clock = link.clock
        self._memory = link.memory
        self._fillers = fillers
        self._holds = holds
        self._spawn = link.tasks.spawn
        self._on_response = on_response
        self._on_no_leader = on_no_leader
        self._senders: dict[tuple[int, bool], _Sender] = {}  # by node, and whether for old records

    @property
    def throttled_until(self) -> float:
        """When the last throttle of any node ended, or will: no time of trouble (by the clock)."""
        return max((sender.window.throttled_until for sender in self._senders.values()), default=float("-inf"))

    def enqueue(self, accepted: list[tuple[PartitionCopy, Appendable]]) -> None:
        """Stamps and sends what was taken; drops what a partition in trouble took."""
        ready: dict[int, list[PartitionCopy]] = {}
        for copy, item in accepted:
            if copy.phase is not Phase.COPYING:
                continue
            node_id = self._target.manager.cluster.leader_for_partition(copy.partition)
            if node_id is None or node_id == -1:
                self._on_no_leader(copy)
                continue
            self._memory.take(copy.enqueue(item))
            ready.setdefault(node_id, []).append(copy)
        senders = {sender for node_id, copies in ready.items() for sender in self._make_ready(node_id, copies)}
        for sender in senders:
            sender.window.flush()

    def drop(self, copy: PartitionCopy) -> None:
        """Forgets what is queued for a partition; what is in flight is settled as usual."""
        for sender in self._senders.values():
            sender.ready.pop(copy.partition, None)
        self._memory.settle(copy.drop_queue())

    def _window(self, sender: _Sender) -> ProduceWindow:
        most = 1 if sender.is_old else self._limits.produce_max_requests  # Law A
        return ProduceWindow(self._target, sender.node_id, most, lambda: self._flush(sender), self._clock, sender.lane)

    def _make_ready(self, node_id: int, copies: Iterable[PartitionCopy]) -> set[_Sender]:
        """Adds partitions with queued batches to the senders of their next ones, and returns these."""
        now_ms, senders = time.time() * 1000, set()
        for copy in copies:
            if not copy.queue:
                continue
            key = node_id, copy.is_next_old(now_ms)
            if (sender := self._senders.get(key)) is None:
                sender = self._senders[key] = _Sender(*key, self._window)
            sender.ready[copy.partition] = copy  # at the end: every partition has its turn
            senders.add(sender)
        return senders

    def _flush_others(self, sender: _Sender, copies: Iterable[PartitionCopy]) -> None:
        """Makes partitions ready; the caller flushes `sender`."""
        for other in self._make_ready(sender.node_id, copies) - {sender}:
            other.window.flush()

    def _flush(self, sender: _Sender) -> None:
        while sender.ready and sender.window.has_room():
            now_ms = time.time() * 1000
            most_bytes = sender.window.request_bytes(self._limits.produce_max_bytes)
            idle: list[PartitionCopy] = []
            batches: dict[TopicPartition, memoryview] = {}
            topic_ids: dict[TopicPartition, uuid.UUID] = {}
            sent: list[tuple[PartitionCopy, BatchHeader]] = []
            left: list[PartitionCopy] = []
            size = 0
            for partition, copy in list(sender.ready.items()):
                del sender.ready[partition]
                if copy.is_next_old(now_ms) != sender.is_old:
                    left.append(copy)
                    continue
                if (batch := self._next_batch(sender, copy, idle, now_ms)) is None:
                    continue
                header, batches[partition] = batch
                if copy.topic_id is not None:
                    topic_ids[partition] = copy.topic_id
                sent.append((copy, header))
                copy.sent(header)
                size += header.size
                left.append(copy)
                if size >= most_bytes:
                    break
            if idle:
                self._spawn(self._look, sender, idle)
            self._flush_others(sender, left)
            if not batches:
                continue
            future = self._target.produce(sender.node_id, batches, topic_ids=topic_ids, lane=sender.lane)
            future.add_callback(self._produced, sender, sent, size, self._clock())
            future.add_errback(self._failed, sender, sent, size)
            sender.window.sent(size, future)  # last: it flushes, and all must know what became of this

    def _next_batch(
        self, sender: _Sender, copy: PartitionCopy, idle: list[PartitionCopy], now_ms: float
    ) -> Batch | None:
        """Takes the batch of a partition that goes out next; None if there is none, or something comes first.

        Once that is settled the partition is in `ready` again.  Adds it to `idle` if the end of its log is to be read first.
        """
        if not copy.queue:
            return None
        if not self._holds(copy):
            copy.trouble(NO_CLAIM, self._clock())
            self._on_response([copy])
            return None
        if copy.is_looked_at:
            return None
        if copy.is_unchecked(self._clock()):
            if not copy.in_flight:
                copy.is_looked_at = True
                copy.in_flight += 1
                idle.append(copy)
            return None
        if copy.unread.holds(copy.is_next_old, now_ms, self._clock()):
            if not copy.in_flight:
                copy.wait_for_unread(self._clock())
                self._on_response([copy])
            return None
        item = copy.queue[0]
        if not isinstance(item, Gap):
            if not copy.may_send(now_ms):
                return None
            copy.dequeue()
            return item
        # The gap stays at the head until it is filled, so that nothing after it goes out.
        if copy.in_flight:
            return None
        if copy.acked == item.from_offset:
            copy.in_flight += 1
            self._spawn(self._fill, sender, copy, item)
        else:
            copy.trouble(f"what lies before offset {item.from_offset} is not acknowledged", self._clock())
            self._on_response([copy])
        return None

    def _produced(
        self, sender: _Sender, sent: list[tuple[PartitionCopy, BatchHeader]], size: int, sent_at: float, response: Any
    ) -> None:
        produced: dict[TopicPartition, ProducedPartition] = {part.partition: part for part in response}
        now = self._clock()
        for copy, header in sent:
            copy.in_flight -= 1
            copy.appended(header, produced[copy.partition], sent_at, now)
        self._settle(sender, [copy for copy, _ in sent], size)

    def _failed(self, sender: _Sender, sent: list[tuple[PartitionCopy, BatchHeader]], size: int, error: Any) -> None:
        now = self._clock()
        for copy, header in sent:
            copy.in_flight -= 1
            copy.lost(header, f"append failed: {text_of(error)}", now)
            if not sender.is_old:
                copy.unread.lost(self._target.held_up.told_until(lane_of(sender.lane, sender.node_id)))
        self._settle(sender, [copy for copy, _ in sent], size)

    async def _look(self, sender: _Sender, copies: list[PartitionCopy]) -> None:
        """Asks the leader itself, since metadata may be old, where the logs of idle partitions end."""
        wanted = [copy.partition for copy in copies]
        ends: dict[TopicPartition, int | Unreplicated | Exception]
        asked_at = self._clock()
        try:
            ends = await replicated_ends_at(self._target, sender.node_id, wanted)
        except KafkaError as error:
            ends = dict.fromkeys(wanted, error)
        for copy in copies:
            copy.in_flight -= 1
            copy.looked_at(ends.get(copy.partition), asked_at, self._clock())
        self._settle(sender, copies)
        sender.window.flush()

    def _filler_of(self, copy: PartitionCopy) -> Filler:
        """Raises OptionError if nothing fills gaps the way that the topic is to have: that stops the partition alone."""
        way = copy.rules.filler
        if way is None or way not in self._fillers:
            raise OptionError(f"Nothing fills a gap of {copy.partition.topic} by {way}")
        return self._fillers[way]

    async def _fill(self, sender: _Sender, copy: PartitionCopy, gap: Gap) -> None:
        began_at, partition, topic_id = self._clock(), copy.partition, copy.topic_id
        try:
            filler, size = self._filler_of(copy), copy.rules.max_batch_bytes
            log_end = await filler.fill(partition, gap, max_batch_bytes=size, topic_id=topic_id)
            if self._clock() - began_at > _LONG_FILL_S:
                await require_topic(self._target, partition.topic, topic_id)  # transactions and markers go by names
        except KafkaError as error:
            copy.not_filled(gap, error, self._clock())
        else:
            copy.gap_filled(gap, log_end, began_at, self._clock())
        copy.in_flight -= 1
        if copy.queue and copy.queue[0] is gap:
            copy.dequeue()
        self._settle(sender, [copy])
        sender.window.flush()

    def _settle(self, sender: _Sender, copies: list[PartitionCopy], size: int = 0) -> None:
        """Takes what the partitions have become; the window has the next request sent after that."""
        self.settled_at = self._clock()
        self._on_response(copies)
        self._memory.settle(size)
        self._flush_others(sender, copies)
