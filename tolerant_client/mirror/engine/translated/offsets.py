"""Records wherever the target's log ends: the strategy of a copier whose target topics others write to as well.

Every record is copied once for consumers with read_committed, in its partition's order, and the offset map says exactly
where it is (offset_map.py).  Consumers with read_uncommitted may also see copies of transactions that were aborted.

What a partition does is in partition.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.strategy import CopiedLink, Strategy
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition, TranslatedParts
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.engine.witnesses import Witnesses
from tolerant_client.mirror.state.claims import claimed_part
from tolerant_client.mirror.state.map_topic import clear_deleted, lost_map

_CLEAR_EVERY_S = 3600.0
_MAP_EVERY_S = 10.0
_MAP_AGAIN_S = 2.0


def translated_offsets(transactions: TransactionLimits = TransactionLimits()) -> Callable[[CopiedLink], Strategy]:
    """Copies in transactions, with an exact map of offsets (prepare_link)."""
    return lambda link: TranslatedOffsets(link, transactions)


class TranslatedOffsets:
    """The partitions of a link, each a coroutine of its own."""

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
        )
        self._next_clearing = link.clock() + _CLEAR_EVERY_S * random.uniform(0.1, 1.0)
        self._next_map_look = link.clock() + _MAP_EVERY_S
        self._map_lost = 0  # looks in a row that found it gone

    # -- the copier's partitions ----------------------------------------------

    def claim_of(self, partition: TopicPartition) -> TopicPartition:
        """This link's part of a partition that others may write to as well."""
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
                copy.read_on()  # it had all that was wanted
        return copy

    async def _run(self, copy: TranslatedPartition) -> None:
        claim = self.claim_of(copy.partition)
        try:
            await self._link.tasks.until(lambda: copy.is_over or self._link.claims.holds(claim))
            await copy.run()
        finally:
            if self.partitions.get(copy.partition) is copy:
                del self.partitions[copy.partition]
                self._link.claims.leave([claim])

    def release(self, partition: TopicPartition) -> None:
        if (copy := self.partitions.get(partition)) is not None:
            copy.release()

    def is_leaving(self, claim: TopicPartition) -> bool:
        """Never: a partition that was given up is there until nothing of it is in flight."""
        return False

    async def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Releases partitions, and waits until their transactions are over."""
        copies = [copy for p in partitions if (copy := self.partitions.get(p)) is not None]
        for copy in copies:
            copy.release()
        await self._link.tasks.until(lambda: all(copy.is_done for copy in copies))

    def claims_changed(self) -> None:
        """Each partition asks for its claim at the last moment before it writes."""

    def stop(self, partition: TopicPartition, error: TolerantClientError) -> None:
        self.partitions[partition].stop(error)

    def set_paused(self, partition: TopicPartition, is_paused: bool) -> None:
        self.partitions[partition].set_paused(is_paused)

    def lose_patience(self, partition: TopicPartition) -> None:
        """Stops a partition that was never claimed; one that is says itself when it has waited for too long."""
        copy, link = self.partitions.get(partition), self._link
        if copy is None or link.claims.holds(self.claim_of(partition)):
            return
        if not copy.is_placed and link.clock() - copy.adopted_at > link.limits.patience_ms / 1000:
            copy.stop(link.unclaimed_error(copy))

    def watch(self) -> None:
        """Looks whether the map is still there, and clears it of deleted topics' rows, now and then."""
        now = self._link.clock()
        if now > self._next_map_look:
            self._next_map_look = float("inf")  # one look at a time
            self._link.tasks.spawn(self._require_map)
        if now > self._next_clearing:
            self._next_clearing = now + _CLEAR_EVERY_S
            self._link.tasks.spawn(self._clear, list(self.partitions))

    def _left(self, copy: TranslatedPartition) -> None:
        """A partition in trouble is fetched again when it has taken over anew."""
        self._reader.leave(copy.partition)
        self._link.tasks.notify()

    async def _require_map(self) -> None:
        """Stops all partitions where the map is gone: what is asked of its brokers then has no response that says so.

        It is believed when it was found several times: a broker that has just started may not know it yet.
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
            pass  # rows too many do no harm; the next time is in an hour


def _accept(copy: TranslatedPartition, part: FetchedPartition, until: int | None) -> list[Appendable]:
    """Nothing is appended at once: what a partition takes waits for its next transaction."""
    copy.accept(part, until)
    return []
