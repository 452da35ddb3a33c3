"""The batches of a producer that moves to another cluster: what its log holds already is acknowledged, the rest is sent there.

Laws:
- Only an idempotent producer asks.  Without sequences what may be written is sent again, as after every lost connection.
- Producer ids and sequences are a cluster's own: every batch that is sent to the next cluster has those of that one.
- A batch that may be written on the former cluster may have been copied.  A copy has the producer id of its link, so the
  content decides: the records are looked for where the next cluster's log has copies.
- A producer has one batch of each partition in flight.  So one alone is in question, or the parts of one that was split,
  and they are the first to be sent.
- What the former cluster had acknowledged and is still held (held_batches.py) has its place in the log.  Before the end of the copies
  it is there, or fails: to send it after records that followed it would change their order.  The rest is sent, before what was
  sent later.
- What is in question is in flight: nothing of its partition is sent before.  `delivery_timeout_ms` ends it as it ends any
  other, and the error says that it may be written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from itertools import zip_longest
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.stock.held_batches import SOMETHING_ELSE
from tolerant_client.stock.sought_batches import PAUSE_S, Doubts, Find, Sought


class MovedBatches:
    """What the sender of one producer had in flight when it left a cluster."""

    def __init__(self, sender: Any, end_of: Callable[[TopicPartition], int | None]) -> None:
        """`end_of` tells where the copies of a partition end, None if it has none."""
        self._sender = sender
        self._manager = sender._client._manager
        self._in_question: dict[TopicPartition, list[Any]] = {}
        self._sought: dict[TopicPartition, Sought] = {}
        records, transactions = sender._accumulator, sender._transaction_manager
        self._held, sender.held = sender.held, None  # a copy of what is sent to the next cluster has no link yet
        self._end_of = end_of
        self._doubts = Doubts()
        for partition in list(records._batches):
            with records._tp_lock(partition):
                sent = [batch for batch in records._batches[partition] if batch.in_retry()]
                doubtful = [b for b in sent if b in records.may_be_written and end_of(partition) is not None]
                for batch in sent:
                    if batch not in doubtful:
                        records.renew(batch)
                for held in reversed([] if self._held is None else self._held.up_to(partition)):
                    if held.base_offset >= (end_of(partition) or 0) and self._held.drop(held):
                        records.renew(held.batch)
                        records.may_be_elsewhere.add(held.batch)
                        held.batch.created = time.monotonic()  # its delivery begins anew
                        records._batches[partition].appendleft(held.batch)
            if doubtful:
                self._in_question[partition] = doubtful
                self._sought[partition] = _sought(sender, partition, doubtful)
        records.muted.update(self._in_question)
        if self._held is not None:
            records.muted.update(self._held.waiting())
        transactions.begin_anew()

    async def settle(self, find: Find) -> None:
        """Acknowledges what the log has, and has the rest sent; asks again until it is told."""
        if self._held is not None:
            await self._held.settle_found(find, SOMETHING_ELSE, self._doubts, self._release)
        while self._in_question and not self._manager.closed:
            try:
                await find(self._manager._net, dict(self._sought), self._hear)
            except Exception as error:
                self._doubts(error)
            self._leave_ended()
            if self._in_question:
                await self._manager._net.sleep(PAUSE_S)

    def _release(self, partitions: Set[TopicPartition]) -> None:
        self._sender._accumulator.muted -= partitions - self._in_question.keys()

    def _hear(self, partition: TopicPartition, offsets: Sequence[int] | Exception) -> None:
        if isinstance(offsets, Exception):
            self._doubts(offsets)
        else:
            self._settle(partition, offsets)

    def _leave_ended(self) -> None:
        """Lets the partitions go on of which all that was in question has ended for its age."""
        for partition, batches in list(self._in_question.items()):
            if all(batch.final_state is not None for batch in batches):
                self._settle(partition, ())

    def _settle(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        records, batches = self._sender._accumulator, self._in_question.pop(partition)
        del self._sought[partition]
        written = []
        with records._tp_lock(partition):
            for batch, offset in zip_longest(batches, offsets):
                if batch.final_state is not None:
                    continue
                if offset is None:
                    records.renew(batch)
                else:
                    records._batches[partition].remove(batch)
                    written.append((batch, offset))
            records.muted.discard(partition)
        for batch, offset in written:  # its callbacks may send records
            self._sender.acknowledge(batch, offset)


def _sought(sender: Any, partition: TopicPartition, batches: Sequence[Any]) -> Sought:
    age_s = time.monotonic() - min(batch.created for batch in batches)
    last = sender.last_offsets.get(partition, -1)
    since_ms = int((time.time() - age_s) * 1000) if sender.gives_times.get(partition.topic) else None
    return Sought.of(batches, -1 if last < 0 else last + 1, since_ms)
