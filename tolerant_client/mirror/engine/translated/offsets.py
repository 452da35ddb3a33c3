"""Records wherever the target's log ends: the strategy of a copier whose target topics others write to as well.

Every record is copied once for consumers with read_committed, in its partition's order, and the offset map says exactly
where it is (offset_map.py).  Consumers with read_uncommitted may also see copies of transactions that were aborted.

What a partition does is in partition.py; here are the fetches, one loop for each source node.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_COMMITTED
from tolerant_client.cluster.fetch import FetchedPartition, RawFetchById
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.engine.strategy import CopiedLink, Strategy
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.partition import TransactionLimits, TranslatedPartition, TranslatedParts
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.state.claims import claimed_part
from tolerant_client.mirror.state.map_topic import clear_deleted
from tolerant_client.stock.stock_names import WakeupNotifier

_CLEAR_EVERY_S = 3600.0


def translated_offsets(transactions: TransactionLimits = TransactionLimits()) -> Callable[[CopiedLink], Strategy]:
    """Copies in transactions, with an exact map of offsets (prepare_translated_link)."""
    return lambda link: TranslatedOffsets(link, transactions)


class TranslatedOffsets:
    """The partitions of a link, each a coroutine of its own."""

    def __init__(self, link: CopiedLink, transactions: TransactionLimits) -> None:
        self.partitions: dict[TopicPartition, TranslatedPartition] = {}
        self._link = link
        self._parts = TranslatedParts(
            transactions,
            SharedReads(link.source, link.target, link.name, link.clock),
            Adopted(link.target, link.control),
            self._start_fetching,
            self._settled,
        )
        self._fetching: dict[int, WakeupNotifier] = {}  # by source node: wakes its loop
        self._next_clearing = link.clock() + _CLEAR_EVERY_S * random.uniform(0.1, 1.0)

    # -- the copier's partitions ----------------------------------------------

    def claim_of(self, partition: TopicPartition) -> TopicPartition:
        """This link's part of a partition that others may write to as well."""
        return claimed_part(partition, self._link.name)

    def adopt(
        self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float
    ) -> TranslatedPartition:
        """Takes a partition to copy up to `until` at least, or a new end of one that the copier has."""
        copy = self.partitions.get(partition)
        is_new = copy is None or copy.is_released or copy.is_done
        if copy is None or is_new:
            copy = self.partitions[partition] = TranslatedPartition(self._link, self._parts, partition)
            self._link.tasks.spawn(self._run, copy)
        copy.want(until, hold_until, lease_until, self._link.clock())
        if not is_new:
            copy.wake()
            self._start_fetching()
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
        """Ends a copy once the transaction that is open is committed."""
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
        """Stops a partition."""
        self.partitions[partition].stop(error)

    def set_paused(self, partition: TopicPartition, is_paused: bool) -> None:
        """Takes whether the operator has paused a partition."""
        self.partitions[partition].set_paused(is_paused)
        self._start_fetching()

    def lose_patience(self, partition: TopicPartition) -> None:
        """Stops a partition that was never claimed; one that is says itself when it has waited for too long."""
        copy, link = self.partitions.get(partition), self._link
        if copy is None or link.claims.holds(self.claim_of(partition)):
            return
        if not copy.is_placed and link.clock() - copy.adopted_at > link.limits.patience_ms / 1000:
            copy.stop(link.unclaimed_error(copy))

    def watch(self) -> None:
        """Clears the map of deleted topics' rows, now and then."""
        now = self._link.clock()
        if now > self._next_clearing:
            self._next_clearing = now + _CLEAR_EVERY_S
            self._link.tasks.spawn(self._clear, list(self.partitions))

    async def _clear(self, partitions: list[TopicPartition]) -> None:
        try:
            await clear_deleted(self._link.target, self._link.name, partitions)
        except Errors.KafkaError:
            pass  # rows too many do no harm; the next time is in an hour

    # -- source side ----------------------------------------------------------

    def _start_fetching(self) -> None:
        """Has a loop for every node that leads a partition which wants more."""
        for copy in self.partitions.values():
            if copy.wants_more:
                node_id = self._link.source.known_leader(copy.partition)
                if node_id is None:
                    self._link.source.manager.cluster.request_update()
                elif node_id not in self._fetching:
                    self._fetching[node_id] = WakeupNotifier(self._link.source.net)
                    self._link.tasks.spawn(self._fetch_loop, node_id)

    async def _fetch_loop(self, node_id: int) -> None:
        turn = 0
        try:
            while led := [
                copy for copy in self.partitions.values() if self._link.source.known_leader(copy.partition) == node_id
            ]:
                turn = (turn + 1) % len(led)  # a response has room for the first ones (KIP-74)
                led = led[turn:] + led[:turn]
                positions = {copy.partition: copy.intake.fetch_position for copy in led if copy.wants_more}
                if not positions:
                    await self._fetching[node_id](0.25)
                    continue
                await self._link.memory.room(self._link.limits.fetch_max_bytes)
                while (wait_s := self._link.bucket.wait_s(self._link.clock())) > 0:
                    await self._link.source.net.sleep(min(wait_s, 1.0))  # the rate may change
                is_urgent = len(positions) < len(led) or any(copy.intake.is_behind for copy in led)
                await self._fetch(
                    node_id, positions, 10 if is_urgent else self._link.limits.fetch_wait_ms(len(positions))
                )
        finally:
            del self._fetching[node_id]

    async def _fetch(self, node_id: int, positions: Mapping[TopicPartition, int], max_wait_ms: int) -> None:
        try:
            parts = await self._read(node_id, positions, max_wait_ms)
        except Errors.KafkaError:
            self._link.source.manager.cluster.request_update()
            await self._link.source.net.sleep(0.05 * random.uniform(0.5, 1.0))
            return
        self._link.bucket.take(sum(len(part.records) for part in parts), self._link.clock())
        for part in parts:
            copy = self.partitions.get(part.partition)
            if copy is not None and part.partition in positions:
                before = copy.intake.queued_bytes
                copy.deliver(part, positions[part.partition])
                self._link.memory.take(copy.intake.queued_bytes - before)

    async def _read(
        self, node_id: int, positions: Mapping[TopicPartition, int], max_wait_ms: int
    ) -> list[FetchedPartition]:
        """Of the topics with the ids that the partitions were placed by, not of what has their names by now (Kafka 3.1)."""
        ids: dict[str, uuid.UUID | None] = {}
        now: dict[TopicPartition, int] = {}
        later: dict[TopicPartition, int] = {}  # its topic was made anew between two partitions
        for partition, position in positions.items():
            if (copy := self.partitions.get(partition)) is not None:
                is_alike = ids.setdefault(partition.topic, copy.source_id) == copy.source_id
                (now if is_alike else later)[partition] = position
        limits: dict[str, Any] = {
            "max_wait_ms": max_wait_ms,
            "max_bytes": self._link.bucket.answer_bytes(self._link.limits.fetch_max_bytes),
            "partition_max_bytes": self._link.limits.partition_max_bytes,
            "isolation_level": READ_COMMITTED,
        }
        known = {topic: source_id for topic, source_id in ids.items() if source_id is not None}
        try:
            if not self._link.source.fetches_by_id or len(known) < len(ids):
                raise Errors.UnsupportedVersionError(
                    f"Fetch by topic id, of node {node_id} of the {self._link.source.name}"
                )
            answer = await self._link.source.send_fetch(node_id, RawFetchById(known, now, **limits))
            if answer.error_code:
                raise Errors.for_code(answer.error_code)(f"Fetch from node {node_id} of the {self._link.source.name}")
            parts = list(answer.partitions)
        except Errors.UnsupportedVersionError:
            parts = await self._link.source.fetch(node_id, now, **limits)
        return parts + (await self._read(node_id, later, 0) if later else [])

    def _settled(self, size: int) -> None:
        self._link.memory.settle(size)
        for wakeup in self._fetching.values():
            wakeup.notify()
