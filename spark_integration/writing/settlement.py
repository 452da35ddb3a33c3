"""What the driver does once all tasks of a micro-batch have written: decide, and end their transactions.

The laws are those of exactly_once.py.  The order, for a micro-batch that was not decided before:

1. Every chosen transaction is still open (the broker compares its epoch): one that has timed out fails the micro-batch.
2. What other attempts and other runs left open is listed.
3. The decider's transaction begins, which fences other deciders; the former decision is read.
4. The decision is committed, if a reserve of time is left.
5. The oldest chosen transaction is committed, which the brokers would abort first; after it the others, all at once.
   Where the oldest one is lost no other is ended: what nobody has seen can be decided again.
6. The decider's next transaction, which begins only if no other decider came between, commits the note that all is
   ended; then what was left open is aborted.
7. What is open is listed once more, and what belongs to this run is aborted: attempts that Spark killed late.  So it is
   after a repeat, a micro-batch without rows and an abort.

An abort that finds what its own run has decided for this micro-batch does 5 and 6 first.

A driver that dies before the end of 4 has decided nothing; one that dies after it is followed by a repeat of the
micro-batch, which finds the decision and does steps 5 and 6 again, unless it finds the note.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition
from pyspark.sql.datasource import WriterCommitMessage

from spark_integration.connections import borrowed_cluster
from spark_integration.writing.exactly_once import Decision, SinkBatch, Written, reserve_ms
from spark_integration.writing.options import WriteOptions
from tolerant_client.cluster.admin.coordinators import Coordinators
from tolerant_client.cluster.admin.groups import CommittedOffset, groups_named
from tolerant_client.cluster.admin.transactions import transactional_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.transaction import PreparedTransaction, ProducerTransaction
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordRefusedError,
    RepeatDiffersError,
    text_of,
)

log = logging.getLogger(__name__)

_ABORT_PATIENCE_MS: Final = 5_000
_DECIDERS: Final = 5  # times that another decider may come between
_OPEN: Final = ("Ongoing",)
_TOPICS: Final = 100  # of an OffsetCommit: with a piece of metadata each well below a log's max.message.bytes


@dataclass
class WrittenTask(WriterCommitMessage):
    """What one task did; with exactlyOnce also where, and the transaction that it left open if it wrote anything."""

    rows: int
    dead_letters: int
    place: SinkBatch | None = None
    written: Written = Written(0, 0)
    transaction: PreparedTransaction | None = None
    partition: TopicPartition | None = None  # one that is in the transaction
    topics: tuple[str, ...] = ()
    opened_at: float = 0.0  # right before the transaction was open; s since the epoch, by the task's clock


def commit_tasks(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commits what the tasks wrote, whole; returns once every transaction is ended.

    Raises what SinkBatch.is_repeat and check_former raise, ProducerFencedError for a transaction that has timed out,
    RecordRefusedError where a topic was deleted meanwhile,
    DataLossError where an earlier decision was only carried out in part, and OutcomeUnknownError where the brokers have
    forgotten whether it was.
    """
    tasks = [task for task in messages if isinstance(task, WrittenTask) and task.place is not None]
    if tasks and tasks[0].place is not None:
        with borrowed_cluster(options.kafka) as cluster:
            cluster.run(_Settlement(cluster, options, tasks[0].place, tasks).commit)


def abort_tasks(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], place: SinkBatch | None = None
) -> None:
    """Aborts what the run wrote, unless it was decided; where that fails, brokers do it after the timeout.

    `place` is what a driver knows without a message: then tasks that have told nothing are aborted, too.
    """
    tasks = [task for task in messages if isinstance(task, WrittenTask) and task.place is not None]
    place = tasks[0].place if tasks else place  # foreachBatch: only tasks are told their micro-batch
    if place is not None:
        with (
            contextlib.suppress(Errors.KafkaError),
            borrowed_cluster(options.kafka, patience_ms=_ABORT_PATIENCE_MS) as cluster,
        ):
            cluster.run(_Settlement(cluster, options, place, tasks).abort)


class _Settlement:
    """One micro-batch's end; `tasks` are those of one run that have told their place."""

    def __init__(self, cluster: Cluster, options: WriteOptions, place: SinkBatch, tasks: Sequence[WrittenTask]) -> None:
        self._cluster = cluster
        self._options = options
        # The oldest first, as a decision names them.
        self._tasks = sorted((t for t in tasks if t.transaction is not None), key=lambda t: t.opened_at)
        self._place = place
        self._written = Written.total(task.written for task in tasks)
        self._chosen = [task.transaction for task in self._tasks if task.transaction is not None]
        timeout_ms = max(1, reserve_ms(options.transaction_timeout_ms) // 2)  # law E
        self._coordinators = Coordinators(cluster)
        self._decider = ProducerTransaction(cluster, self._place.decider, timeout_ms, self._coordinators)
        self._timed_out: ProducerFencedError | None = None  # no matter where the micro-batch was decided before
        self._stands: set[TopicPartition] = set()  # beside which the decision that was found is

    async def commit(self) -> None:
        try:
            await self._all(self._check_open, self._tasks)
        except ProducerFencedError as error:
            self._timed_out = error
        listed = await transactional_ids(self._cluster, self._place.prefix, _OPEN)
        for attempt in range(1, _DECIDERS + 1):
            try:
                decision, left = await self._decide(listed)
                break
            except (ProducerFencedError, Errors.InvalidProducerIdMappingError):
                # Another decider came between, or brokers have forgotten this one: those of tasks are caught before.
                # What was decided is read by the next attempt.
                if attempt == _DECIDERS or self._timed_out is not None:
                    raise
        await self._abort_left(left, decision)

    async def abort(self) -> None:
        await self._decider.begin()  # a decision that was on its way is made now, or never
        found = await self._found()
        if found is not None and self._is_mine(found):
            try:
                if not await self._is_ended(found) and not await self._carry_out(found):
                    found = None  # nothing of it was committed, nor will be
            except Errors.KafkaError as error:
                log.warning("%s was decided, and its repeat has to commit it: %s", self._place.what, error)
        await self._abort_left({transaction.transactional_id for transaction in self._chosen}, found)

    def _is_mine(self, found: Decision) -> bool:
        return (found.owner, found.run, found.batch) == (self._place.owner, self._place.run, self._place.batch)

    # -- step by step ------------------------------------------------------------

    async def _check_open(self, task: WrittenTask) -> None:
        assert task.transaction is not None and task.partition is not None
        transaction = self._transaction(task.transaction)
        try:
            await self._unless_deleted(transaction.add_partitions([task.partition]))
        except (ProducerFencedError, Errors.InvalidProducerIdMappingError) as error:
            raise self._too_long("and the brokers have aborted a part of it") from error

    async def _decide(self, listed: set[str] | None) -> tuple[Decision, set[str]]:
        """The decision that stands, carried out, and what else is to be aborted."""
        place = self._place
        await self._decider.begin()
        found = await self._found()
        if found is None and place.is_named:
            await self._check_former()
        if found is not None and await self._is_done(found):
            return found, {transaction.transactional_id for transaction in self._chosen}
        if self._timed_out is not None:
            raise self._timed_out
        if listed is None:  # brokers before 3.0 do not tell: most likely what the former run last used
            listed = {t.transactional_id for t in found.transactions} if found and found.run != place.run else set()
        decision = place.decide(found, self._written, self._chosen, listed)
        if not self._chosen:
            return decision, set()
        # At once: a repeat finds it beside any topic that is left, and what was found is replaced wherever it stands.
        beside = sorted(self._stands | self._beside())
        for number, piece in enumerate(place.pieces(decision)):
            await self._unless_deleted(self._commit_beside(beside, place.group(number), piece))
        self._check_time()
        await self._decider.commit()
        self._stands = set(beside)
        if not await self._carry_out(decision):
            self._timed_out = self._too_long("and the brokers have aborted its oldest transaction")
            raise self._timed_out
        settled = {place.run, *decision.superseded}  # law C
        return decision, {name for name in listed if place.run_of(name) in settled}

    async def _is_done(self, found: Decision) -> bool:
        """Whether this micro-batch is what was decided, which is carried out then; raises what is_repeat raises."""
        differs: RepeatDiffersError | None = None
        try:
            if not self._place.is_repeat(found, self._written):
                self._stands = set()
                return False
        except RepeatDiffersError as error:  # which says that it is committed: law B holds all the same
            differs = error
        if await self._is_ended(found) or await self._carry_out(found):
            if differs is not None:
                raise differs
            return True
        # Nothing of it was committed within transaction.timeout.ms: these tasks have written it again.
        self._place.check_in_charge(found)
        if found.run == self._place.run:  # or it is what they have written
            self._timed_out = self._too_long("and the brokers have aborted its oldest transaction")
        return False

    def _check_time(self) -> None:
        timeout_ms = self._options.transaction_timeout_ms
        left_ms = timeout_ms - 1000 * (time.time() - min(task.opened_at for task in self._tasks))
        if left_ms < reserve_ms(timeout_ms):
            self._timed_out = self._too_long(
                f"allows: {max(left_ms, 0) / 1000:.1f} s of it are left, and committing all of it safely is given"
                f" {reserve_ms(timeout_ms) / 1000:.1f} s, or the driver's clock is ahead of a worker's"
            )
            raise self._timed_out

    async def _carry_out(self, decision: Decision) -> bool:
        """Commits what was decided, and notes that; False where the brokers had aborted its oldest transaction instead,
        so that nothing of it is committed.

        Raises DataLossError where they had aborted a part, OutcomeUnknownError where they have forgotten, and
        ProducerFencedError where another decider came between: it may have carried out this decision, and what was told
        of the transactions says nothing then (law B).
        """
        lost, forgotten = await self._end(decision)
        await self._decider.begin_next()
        if forgotten:
            raise self._unknown(decision, forgotten)
        if lost and len(lost) < len(decision.transactions):
            raise self._written_in_part(decision, lost)
        if not lost:
            note = self._place.ended_note(decision)
            await self._commit_beside(sorted(self._stands), self._place.ended_group, note)
            await self._decider.commit()
        return not lost

    async def _unless_deleted(self, step: Awaitable[None]) -> None:
        """A step before the decision; raises RecordRefusedError where a topic that it needs is gone."""
        try:
            await step
        except ClusterUnreachableError as error:
            if not isinstance(error.__cause__, Errors.UnknownTopicOrPartitionError):
                raise
            raise RecordRefusedError(
                f"{self._place.what} is not committed: a topic was deleted after it was written to"
                f" ({text_of(error.__cause__)}). Create it and write again, as a query does when it is started again"
            ) from error

    async def _commit_beside(self, beside: Sequence[TopicPartition], group: str, committed: CommittedOffset) -> None:
        for at in range(0, len(beside), _TOPICS):
            await self._decider.commit_offset(group, beside[at : at + _TOPICS], committed)

    async def _end(self, decision: Decision) -> tuple[list[PreparedTransaction], list[PreparedTransaction]]:
        """Commits each transaction, the others after the first; returns the lost ones, and those that brokers forgot.

        Where the first is lost all are: the others are not committed.
        """
        patience_ms = max(self._cluster.patience_ms, self._options.transaction_timeout_ms)  # law E
        lost: list[PreparedTransaction] = []
        forgotten: list[PreparedTransaction] = []

        async def end(prepared: PreparedTransaction) -> None:
            try:
                await self._transaction(prepared).commit(patience_ms)
            except (ProducerFencedError, Errors.InvalidTxnStateError):
                lost.append(prepared)
            except Errors.InvalidProducerIdMappingError:  # ended in either way, or it would not have expired
                forgotten.append(prepared)

        first, others = decision.transactions[:1], decision.transactions[1:]
        await self._all(end, first)
        if lost:
            return list(decision.transactions), []
        await self._all(end, others)
        return lost, forgotten

    async def _is_ended(self, decision: Decision) -> bool:
        notes = await self._committed(self._place.ended_group, await self._markers())
        return self._place.ended_note(decision) in notes.values()

    # -- what is told --------------------------------------------------------------

    def _too_long(self, how: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{self._place.what} took longer than transaction.timeout.ms,"
            f" {self._options.transaction_timeout_ms} ms, {how}; nothing was"
            f" committed. {'Make micro-batches smaller (maxOffsetsPerTrigger)' if self._place.owner else 'Write less'}"
            " or raise kafka.transaction.timeout.ms and the brokers' transaction.max.timeout.ms"
        )

    def _written_in_part(self, decision: Decision, lost: Sequence[PreparedTransaction]) -> DataLossError:
        return DataLossError(
            f"{self._place.what} is written in part: the brokers aborted {len(lost)} of its"
            f" {len(decision.transactions)} transactions after transaction.timeout.ms, before they could be"
            " committed. Choose another exactlyOnceId to write all of it again: what was committed of it will be"
            " there twice"
        )

    def _unknown(self, decision: Decision, forgotten: Sequence[PreparedTransaction]) -> OutcomeUnknownError:
        topics = ", ".join(sorted(partition.topic for partition in self._stands))
        return OutcomeUnknownError(
            f"{self._place.what} was decided, and the brokers have forgotten {len(forgotten)} of its"
            f" {len(decision.transactions)} transactions (transactional.id.expiration.ms): they were"
            " committed, or aborted after transaction.timeout.ms."
            f" Look for its {decision.written.rows} rows in {topics} with isolation.level=read_committed. If they"
            f" are missing, choose another exactlyOnceId to write them; if they are there,"
            f" {self._place.done(decision.batch)}"
        )

    # -- what is left ----------------------------------------------------------------

    async def _abort_left(self, names: set[str], decision: Decision | None) -> None:
        """Aborts these and whatever else this run has left open, but nothing that was decided for this micro-batch.

        Where that fails, the brokers do it after the timeout.
        """
        try:
            listed = await transactional_ids(self._cluster, self._place.prefix, _OPEN)
        except Errors.KafkaError as error:
            log.warning("What other attempts may have left open is left for its timeout: %s", error)
            listed = None
        names = names | {name for name in listed or () if self._place.run_of(name) == self._place.run}
        if decision is not None and decision.batch == self._place.batch:  # ids of former ones are in use again
            names -= {transaction.transactional_id for transaction in decision.transactions}

        async def abort(name: str) -> None:
            try:
                await self._transaction(PreparedTransaction(name, -1, -1)).begin()
            except Errors.KafkaError as error:
                log.warning("The transaction of %r was left open for its timeout: %s", name, error)

        await self._all(abort, sorted(names))

    # -- what is there -----------------------------------------------------------

    async def _found(self) -> Decision | None:
        partitions = await self._markers()
        first = await self._committed(self._place.group(0), partitions)
        count = self._place.piece_count(first)
        if not count:
            return None
        newest = max(piece.offset for piece in first.values())
        self._stands = {partition for partition, piece in first.items() if piece.offset == newest}
        rest = [await self._committed(self._place.group(number), partitions) for number in range(1, count)]
        return self._place.read([first, *rest])

    async def _check_former(self) -> None:
        partitions = await self._markers()
        for group in await groups_named(self._cluster, self._place.former_prefix):
            if group.removeprefix(self._place.former_prefix).isdecimal():
                self._place.check_former(group, await self._committed(group, partitions))

    async def _committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        return await self._decider.committed(group, partitions)

    async def _markers(self) -> list[TopicPartition]:
        """The partitions beside which a decision may stand: the first one of a topic that is or was written to."""
        topics = {self._options.topic, self._options.dead_letter_topic} - {None}
        if self._options.topic is None:
            topics |= set(await self._cluster.partitions())
        return [TopicPartition(topic, 0) for topic in sorted(filter(None, topics))]

    def _beside(self) -> set[TopicPartition]:
        """Where the decision is committed: beside every topic that the tasks have written to."""
        return {TopicPartition(topic, 0) for task in self._tasks for topic in task.topics}

    def _transaction(self, prepared: PreparedTransaction) -> ProducerTransaction:
        timeout_ms = self._options.transaction_timeout_ms
        return ProducerTransaction(self._cluster, prepared.transactional_id, timeout_ms, self._coordinators, prepared)

    async def _all(self, function: Callable[[Any], Awaitable[None]], values: Iterable[Any]) -> None:
        """Runs the function for each value, all at once; raises the first error once all are done."""
        futures = [self._cluster.net.call_soon_with_future(function, value) for value in values]
        errors: list[BaseException] = []
        for future in futures:
            try:
                await future
            except Errors.KafkaError as error:
                errors.append(error)
        if errors:
            raise errors[0]
