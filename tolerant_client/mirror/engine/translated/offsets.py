"""Records wherever the target's log ends: the copier's strategy for target topics that others write to as well.

Each record is copied once for read_committed consumers, in its partition's order, and the offset map says exactly where it is
(offset_map.py).  read_uncommitted consumers may also see copies in transactions that were aborted.

What a partition does is in partition.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from functools import cache

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.cluster.produce_window import ProduceTurns
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.strategy import CopiedLink, Strategy
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.mirror.engine.translated.refusals import Refusals
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads, TranslatedParts
from tolerant_client.mirror.engine.witnesses import Witnesses
from tolerant_client.mirror.state.claims_record import claimed_part, whole_of
from tolerant_client.mirror.state.map_rows import clear_deleted
from tolerant_client.mirror.state.map_topic import lost_map

_CLEAR_EVERY_S = 3600.0
_MAP_EVERY_S = 10.0
_MAP_AGAIN_S = 2.0


def translated_offsets(transactions: TransactionLimits = TransactionLimits()) -> Callable[[CopiedLink], Strategy]:
    """Copies in transactions, with an exact map of offsets (prepare_link)."""
    return lambda link: TranslatedOffsets(link, transactions)


class TranslatedOffsets:
    """The partitions of a link; each has its own coroutine."""

    def __init__(self, link: CopiedLink, transactions: TransactionLimits) -> None:
        self.partitions: dict[TopicPartition, TranslatedPartition] = {}
        self._link = link
        witnesses = Witnesses(link.source, of_names=False)
        self._reader = Reader(link, self.partitions, _accept, lambda taken: None, self._left, witnesses)
        self._parts = TranslatedParts(
            transactions,
            SharedReads(link.source, link.target, link.control, link.clock),
            Adopted(link.target, link.control),
            self._reader,
            cache(lambda node_id: ProduceTurns(link.target, node_id, link.limits.produce_max_requests, link.clock)),
        )
        self._refusals = Refusals()
        self._next_clearing = link.clock() + _CLEAR_EVERY_S * random.uniform(0.1, 1.0)
        self._next_map_look = link.clock() + _MAP_EVERY_S
        self._map_lost = 0  # checks in a row that found it missing

    # -- the copier's partitions ----------------------------------------------

    def claim_of(self, partition: TopicPartition) -> TopicPartition:
        """This link's part of a partition, since others may write to it as well."""
        return claimed_part(partition, self._link.name)

    def adopt(
        self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float
    ) -> TranslatedPartition:
        copy = self.partitions.get(partition)
        is_new = copy is None or copy.is_released or copy.is_done
        if copy is None or is_new:
            copy = self.partitions[partition] = TranslatedPartition(self._link, self._parts, partition)
            self._link.tasks.spawn(self._run, copy)
        copy.want(until, hold_until, lease_until, self._link.clock())
        if not is_new:
            copy.wakeup.notify()
            if copy.is_read and not copy.was_full and not self._reader.is_reading(partition):
                copy.read_on()  # it had everything that was wanted
        return copy

    async def _run(self, copy: TranslatedPartition) -> None:
        claim, clock = self.claim_of(copy.partition), self._link.clock
        if (standing := self._refusals.standing(copy.partition, clock())) is not None:
            copy.error, copy.acked = standing.error, standing.acked
        try:
            await self._link.tasks.until(lambda: copy.is_over or self._link.claims.holds(claim))
            await copy.run()
        finally:
            if standing is None:
                self._refusals.ended(copy.partition, copy.error, copy.acked, clock())
            if self.partitions.get(copy.partition) is copy:
                del self.partitions[copy.partition]
                self._link.claims.leave([claim])

    def release(self, partition: TopicPartition) -> None:
        if (copy := self.partitions.get(partition)) is not None:
            copy.release()

    def is_leaving(self, claim: TopicPartition) -> bool:
        """Only what it needs beside its part (copy_claims.py): one that was given up stays until nothing of it is in flight."""
        return whole_of(claim) in self.partitions

    async def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Releases partitions, and waits until their transactions are over."""
        copies = [copy for p in partitions if (copy := self.partitions.get(p)) is not None]
        for copy in copies:
            copy.release()
        await self._link.tasks.until(lambda: all(copy.is_done for copy in copies))

    def claims_changed(self) -> None:
        """Does nothing: each partition checks its claim directly before it writes."""

    def stop(self, partition: TopicPartition, error: TolerantClientError) -> None:
        self.partitions[partition].stop(error)

    def set_paused(self, partition: TopicPartition, is_paused: bool) -> None:
        self.partitions[partition].set_paused(is_paused)

    def lose_patience(self, partition: TopicPartition) -> None:
        """Stops a partition that was never claimed; a claimed one reports by itself that it has waited too long."""
        copy, link = self.partitions.get(partition), self._link
        if copy is None or link.claims.holds(self.claim_of(partition)):
            return
        if not copy.is_placed and link.clock() - copy.adopted_at > link.limits.patience_ms / 1000:
            copy.stop(link.unclaimed_error(copy))

    def watch(self) -> None:
        """Checks periodically that the map still exists, and removes deleted topics' rows from it."""
        now = self._link.clock()
        if now > self._next_map_look:
            self._next_map_look = float("inf")  # one check at a time
            self._link.tasks.spawn(self._require_map)
        if now > self._next_clearing:
            self._next_clearing = now + _CLEAR_EVERY_S
            self._link.tasks.spawn(self._clear, list(self.partitions))

    def _left(self, copy: TranslatedPartition) -> None:
        """Stops fetching a partition in trouble; it is fetched again after its next takeover."""
        self._reader.leave(copy.partition)
        self._link.tasks.notify()

    async def _require_map(self) -> None:
        """Stops all partitions if the map is missing: requests to its brokers would then get no response that says so.

        This is believed once it was found several times: a broker that has just started may not know the map yet.
        """
        link = self._link
        try:
            why = await lost_map(link.target, link.name, link.control.value)
        except Errors.KafkaError:
            why = None
        self._map_lost = 0 if why is None else self._map_lost + 1
        if why is not None and self._map_lost >= BELIEVED_AFTER:
            for copy in self.partitions.values():
                copy.stop(TargetDivergedError(why))
            link.tasks.notify()
        self._next_map_look = link.clock() + (_MAP_AGAIN_S if self._map_lost else _MAP_EVERY_S)

    async def _clear(self, partitions: list[TopicPartition]) -> None:
        try:
            await clear_deleted(self._link.target, self._link.name, partitions)
        except Errors.KafkaError:
            pass  # surplus rows do no harm; tried again in an hour


def _accept(copy: TranslatedPartition, part: FetchedPartition, until: int | None) -> Iterator[list[Appendable]]:
    """Returns nothing to append: what a partition takes waits for its next transaction."""
    return ([] for _ in copy.accept(part, until))
