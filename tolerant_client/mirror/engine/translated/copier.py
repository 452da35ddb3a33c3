"""The copier of a link with translated offsets: for target topics that others write to as well.

Every record is copied once for consumers with read_committed, in its partition's order, and the offset map says exactly
where it is (offset_map.py).  Consumers with read_uncommitted may also see copies of transactions that were aborted.

What a partition does is in translated_partition.py; here are the fetches, one loop for each source node, and the calls.
Memory is bounded by `max_bytes_in_flight`, whatever the number of partitions.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_COMMITTED, Cluster
from tolerant_client.cluster.fetch import FetchedPartition, RawFetchById
from tolerant_client.errors import LinkPromotedError, OptionError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.emptiness import EmptinessChecks
from tolerant_client.mirror.engine.lag import require_no_copies_of_identical
from tolerant_client.mirror.engine.limits import CopyLimits, Progress, raise_stopped
from tolerant_client.mirror.engine.partition_locks import Turns
from tolerant_client.mirror.engine.preflight import ends_at, offsets_at, write_down
from tolerant_client.mirror.engine.prepare import check_link, make_topics
from tolerant_client.mirror.engine.tasks import Tasks, resolve
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.partition import TransactionLimits, TranslatedLink, TranslatedPartition
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads
from tolerant_client.mirror.state.claims import Waiting, claimed_part
from tolerant_client.mirror.state.claims_topic import Claims, claimed_by, new_holder
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.health import WAITS_AFTER_S
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.map_topic import clear_deleted, ensure_map_topic, read_maps
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.stock.stock_names import Future, WakeupNotifier

_CLEAR_EVERY_S = 3600.0
_CONTROL_S = 1.0  # between two looks at what the operator says


@dataclass(frozen=True)
class PreparedTranslatedLink:
    """Topics that were created on the target, and the last stable offsets of the source's partitions.

    `waiting` says of others why they cannot be copied now.
    """

    created: tuple[str, ...]
    ends: Mapping[TopicPartition, int]
    warnings: tuple[str, ...] = ()
    waiting: Mapping[TopicPartition, str] = field(default_factory=dict)


async def prepare_translated_link(
    source: Cluster,
    target: Cluster,
    topics: LinkTopics | str,
    link: str,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    goes_on: bool = False,
    claim: Callable[[Collection[str]], None] = lambda topics: None,
) -> PreparedTranslatedLink:
    """Checks both clusters, then creates the missing target topics and the link's map topic.

    Names are the target's; the source must be a Cluster with the names of `topics`.  `from_ms`, `until_ms`, `goes_on`
    and `claim` are prepare_link's: partitions that nothing was copied of begin at the first record of that time.
    Raises OptionError, UnsupportedSourceError, LinkPromotedError or ClusterUnreachableError before anything is written.
    """
    planned, control = await check_link(
        source, target, topics, link, goes_on=goes_on, has_start=from_ms is not None, is_identical=False
    )
    require_no_copies_of_identical(control, link)
    claim([topic.name for topic in planned.topics.copied])
    await ensure_map_topic(target, link)
    starts: dict[TopicPartition, int] = {}
    if from_ms is not None:
        begun = await read_maps(target, link, planned.ends)
        if old := [p for p in planned.ends if p in begun and p not in control.starts]:
            raise OptionError(
                f"{old[0].topic}-{old[0].partition} was copied by link {link} before: only what nothing was copied of can begin at"
                " a time; leave --from out, or use another link"
            )
        starts = await offsets_at(source, [p for p in planned.ends if p not in control.starts], from_ms)
    warning = await write_down(source, target, link, LinkTopics.of(topics), None, starts)
    made = await make_topics(target, planned)
    if not goes_on:
        made.require_all()
    ends = made.ends if until_ms is None else await ends_at(source, made.ends, until_ms)
    warnings = made.warnings if warning is None else (*made.warnings, warning)
    return PreparedTranslatedLink(tuple(t.name for t in made.topics.create), ends, warnings, made.waiting)


class TranslatedCopier:
    """Copies partitions of one link; both clusters must share one event loop.

    Used as a LinkCopier is: all methods run on that loop, `clock`, `bytes_per_s`
    and `shares` are the same, `failure` says that the copier is of no more use.
    The link must have been prepared (prepare_translated_link).
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        link: str,
        limits: CopyLimits = CopyLimits(),
        transactions: TransactionLimits = TransactionLimits(),
        clock: Callable[[], float] = time.monotonic,
        *,
        policy: MirrorPolicy = MirrorPolicy(),
        bytes_per_s: int | None = None,
        shares: int = 1,
        run: str = "",
    ) -> None:
        self._tasks = Tasks(source)
        self.bytes_in_flight = 0
        self._source = source
        self._target = target
        self._name = link
        self._limits = limits
        self._clock = clock
        self._net = source.net
        self.control = ControlWatch(target, link)
        self.claims = Claims(target, new_holder(link, run), self._tasks.spawn, self._claims_changed)
        self._bytes_per_s = bytes_per_s
        self._shares = shares
        self._bucket = TokenBucket()
        self._is_following = False
        self._link = TranslatedLink(
            source,
            target,
            link,
            limits,
            transactions,
            policy,
            Ledger(target, link),
            clock,
            SharedReads(source, target, link, clock),
            self.control,
            Adopted(target, self.control),
            self._bucket,
            EmptinessChecks(source, self._bucket, clock),
            lambda partition: self.claims.term(self._claim(partition)),
            self._start_fetching,
            self._tasks.notify,
            self._settled,
        )
        self._partitions: dict[TopicPartition, TranslatedPartition] = {}
        self._fetching: dict[int, WakeupNotifier] = {}  # by source node: wakes its loop
        self._turns = Turns()
        self._room: Future | None = None
        self._next_clearing = clock() + _CLEAR_EVERY_S * random.uniform(0.1, 1.0)

    # -- what callers ask -----------------------------------------------------

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
        """Copies each partition at least up to its source offset, and what arrives for `hold_ms` more.

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
        now = self._clock()
        hold_until = now + hold_ms / 1000
        copies = {p: self._adopt(p, offset, hold_until, hold_until + lease_ms / 1000) for p, offset in until.items()}
        before = {p: (copy.records, copy.bytes, copy.losses) for p, copy in copies.items()}
        if not self._is_following:
            self._is_following = True
            self._tasks.spawn(self._follow_control)
        try:
            await self._wait(lambda: all(c.error or c.paused or c.has_reached for c in copies.values()), hold_until)
        finally:
            waits = self.waiting()
            for copy in copies.values():
                if not lease_ms or copy.error is not None:
                    copy.release()
        if not lease_ms:
            await self._wait(lambda: all(copy.is_done for copy in copies.values()), 0.0)
            await self.claims.released()
        return {p: self._progress(copy, *before[p], waits.get(p)) for p, copy in copies.items()}

    def waiting(self) -> dict[TopicPartition, Waiting]:
        """Partitions that have not moved for WAITS_AFTER_S though there is something to copy, and why."""
        now, now_ms = self._clock(), int(time.time() * 1000)
        found = {p: copy.waits(WAITS_AFTER_S, now) for p, copy in self._partitions.items()}
        return {p: Waiting(w[1], now_ms - int(1000 * (now - w[0]))) for p, w in found.items() if w is not None}

    def _progress(
        self, copy: TranslatedPartition, records: int, size: int, losses: int, wait: Waiting | None
    ) -> Progress:
        return Progress(
            acked=copy.acked,
            records=copy.records - records,
            bytes=copy.bytes - size,
            troubles=copy.troubles,
            filled=0,
            losses=copy.losses - losses,
            is_paused=copy.error is None and copy.paused is not None,
            error=copy.error or copy.paused,
            wait=wait,
        )

    async def _wait(self, is_done: Callable[[], bool], at_least_until: float) -> None:
        while self.failure is None and not (is_done() and self._clock() >= at_least_until):
            await self._tasks.wait(at_least_until - self._clock())
        if self.failure is not None:
            raise self.failure

    def _adopt(
        self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float
    ) -> TranslatedPartition:
        copy = self._partitions.get(partition)
        is_new = copy is None or copy.is_released or copy.is_done
        if copy is None or is_new:
            copy = self._partitions[partition] = TranslatedPartition(self._link, partition)
        copy.adopted_at = self._clock()
        copy.until = until
        copy.hold_until = hold_until
        copy.lease_until = lease_until
        if is_new:
            self.claims.want([self._claim(partition)])
            self._tasks.spawn(self._run, copy)
        else:
            copy.wake()
            self._start_fetching()
        return copy

    async def _run(self, copy: TranslatedPartition) -> None:
        claim = self._claim(copy.partition)
        try:
            await self._wait(lambda: copy.is_over or self.claims.holds(claim), 0.0)
            await copy.run()
        finally:
            if self._partitions.get(copy.partition) is copy:
                del self._partitions[copy.partition]
                self.claims.leave([claim])

    def _claim(self, partition: TopicPartition) -> TopicPartition:
        """What is claimed of a partition that others may write to as well: this link's part of it."""
        return claimed_part(partition, self._name)

    def _claims_changed(self) -> None:
        """Hands over what another process of the run asks for, and ends what another run has."""
        asked, rivals = self.claims.claimant.asked, self.claims.rivals()
        for partition, copy in list(self._partitions.items()):
            claim = self._claim(partition)
            if claim in asked:
                copy.release()
            elif claim in rivals and copy.error is None:
                copy.error = claimed_by(claim, rivals[claim])
                copy.wake()
        self._tasks.notify()

    # -- what the operator says -----------------------------------------------

    async def _follow_control(self) -> None:
        """Looks at once and once a second what the operator says, for as long as there is anything to copy."""
        try:
            while self._partitions:
                self.claims.claimant.waiting = self.waiting()
                try:
                    await self.control.refresh()
                    self._obey()
                except Errors.KafkaError:
                    pass  # what was said before holds
                await self._net.sleep(_CONTROL_S)
        finally:
            self._is_following = False

    def _obey(self) -> None:
        rate = self.control.value.rate(self._bytes_per_s)
        self._bucket.set_rate(None if rate is None else rate / self._shares, self._clock())
        for copy in list(self._partitions.values()):
            try:
                copy.obey(self.control.value)
            except LinkPromotedError as error:
                copy.error = error
                copy.wake()
        self._tasks.notify()
        self._start_fetching()

    # -- source side ----------------------------------------------------------

    def _start_fetching(self) -> None:
        """Has a loop for every node that leads a partition which wants more."""
        for copy in self._partitions.values():
            if copy.wants_more:
                node_id = self._source.known_leader(copy.partition)
                if node_id is None:
                    self._source.manager.cluster.request_update()
                elif node_id not in self._fetching:
                    self._fetching[node_id] = WakeupNotifier(self._net)
                    self._tasks.spawn(self._fetch_loop, node_id)

    async def _fetch_loop(self, node_id: int) -> None:
        turn = 0
        try:
            while led := [
                copy for copy in self._partitions.values() if self._source.known_leader(copy.partition) == node_id
            ]:
                turn = (turn + 1) % len(led)  # a response has room for the first ones (KIP-74)
                led = led[turn:] + led[:turn]
                positions = {copy.partition: copy.intake.fetch_position for copy in led if copy.wants_more}
                if not positions:
                    await self._fetching[node_id](0.25)
                    continue
                await self._has_room(self._limits.fetch_max_bytes)
                while (wait_s := self._bucket.wait_s(self._clock())) > 0:
                    await self._net.sleep(min(wait_s, _CONTROL_S))  # the rate may change
                is_urgent = len(positions) < len(led) or any(copy.intake.is_behind for copy in led)
                await self._fetch(node_id, positions, 10 if is_urgent else self._limits.fetch_wait_ms(len(positions)))
                self._clear_now_and_then()
        finally:
            del self._fetching[node_id]

    async def _fetch(self, node_id: int, positions: Mapping[TopicPartition, int], max_wait_ms: int) -> None:
        try:
            parts = await self._read(node_id, positions, max_wait_ms)
        except Errors.KafkaError:
            self._source.manager.cluster.request_update()
            await self._net.sleep(0.05 * random.uniform(0.5, 1.0))
            return
        self._bucket.take(sum(len(part.records) for part in parts), self._clock())
        for part in parts:
            copy = self._partitions.get(part.partition)
            if copy is not None and part.partition in positions:
                before = copy.intake.queued_bytes
                copy.deliver(part, positions[part.partition])
                self.bytes_in_flight += copy.intake.queued_bytes - before

    async def _read(
        self, node_id: int, positions: Mapping[TopicPartition, int], max_wait_ms: int
    ) -> list[FetchedPartition]:
        """Of the topics with the ids that the partitions were placed by, not of what has their names by now (Kafka 3.1)."""
        ids: dict[str, uuid.UUID | None] = {}
        now: dict[TopicPartition, int] = {}
        later: dict[TopicPartition, int] = {}  # its topic was made anew between two partitions
        for partition, position in positions.items():
            if (copy := self._partitions.get(partition)) is not None:
                is_alike = ids.setdefault(partition.topic, copy.source_id) == copy.source_id
                (now if is_alike else later)[partition] = position
        limits: dict[str, Any] = {
            "max_wait_ms": max_wait_ms,
            "max_bytes": self._bucket.answer_bytes(self._limits.fetch_max_bytes),
            "partition_max_bytes": self._limits.partition_max_bytes,
            "isolation_level": READ_COMMITTED,
        }
        known = {topic: source_id for topic, source_id in ids.items() if source_id is not None}
        try:
            if not self._source.fetches_by_id or len(known) < len(ids):
                raise Errors.UnsupportedVersionError(f"Fetch by topic id, of node {node_id} of the {self._source.name}")
            answer = await self._source.send_fetch(node_id, RawFetchById(known, now, **limits))
            if answer.error_code:
                raise Errors.for_code(answer.error_code)(f"Fetch from node {node_id} of the {self._source.name}")
            parts = list(answer.partitions)
        except Errors.UnsupportedVersionError:
            parts = await self._source.fetch(node_id, now, **limits)
        return parts + (await self._read(node_id, later, 0) if later else [])

    async def _has_room(self, size: int) -> None:
        while self.bytes_in_flight and self.bytes_in_flight + size > self._limits.max_bytes_in_flight:
            self._room = self._room or Future()
            await self._room

    def _settled(self, size: int) -> None:
        self.bytes_in_flight -= size
        if self._room is not None and size:
            room, self._room = self._room, None
            resolve(room)
        for wakeup in self._fetching.values():
            wakeup.notify()

    def _clear_now_and_then(self) -> None:
        if self._clock() > self._next_clearing:
            self._next_clearing = self._clock() + _CLEAR_EVERY_S
            self._tasks.spawn(self._clear, list(self._partitions))

    async def _clear(self, partitions: list[TopicPartition]) -> None:
        try:
            await clear_deleted(self._target, self._name, partitions)
        except Errors.KafkaError:
            pass  # rows too many do no harm; the next time is in an hour
