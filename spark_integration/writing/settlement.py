"""The driver's work after all tasks of a micro-batch have written: it decides, and ends their transactions.

The laws are those of exactly_once.py.  The steps, for a micro-batch that was not decided before:

1. Check that every chosen transaction is still open (the broker compares its epoch); if one has timed out, the
   micro-batch fails.
2. List what other attempts and other runs left open.
3. Begin the decider's transaction, which fences other deciders, and read the former decision.
4. Commit the decision, if the reserve of time is left.
5. Commit the oldest chosen transaction, which the brokers would abort first; then all others, at once.
   If the oldest one is lost, commit no other: what nobody has seen can be decided again.
6. Begin the decider's next transaction, which succeeds only if no other decider came between, and commit the note that
   all is ended; then abort what was left open.
7. List open transactions once more, and abort those of this run: attempts that Spark killed late.  This step also
   follows a repeat, a micro-batch without rows and an abort.

An abort that finds a decision of its own run for this micro-batch does 5 and 6 first.

A driver that dies before the end of 4 has decided nothing.  If it dies later, the micro-batch is repeated; the repeat
finds the decision and does steps 5 and 6 again, unless it finds the note.
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
_DECIDERS: Final = 5  # attempts, if other deciders come between
_OPEN: Final = ("Ongoing",)
_TOPICS: Final = 100  # per OffsetCommit: with a piece of metadata each, well below a log's max.message.bytes


@dataclass
class WrittenTask(WriterCommitMessage):
    """The result of a task; with exactlyOnce also its place, and the transaction that it left open if it wrote anything."""

    rows: int
    dead_letters: int
    place: SinkBatch | None = None
    written: Written = Written(0, 0)
    transaction: PreparedTransaction | None = None
    partition: TopicPartition | None = None  # one partition of the transaction
    topics: tuple[str, ...] = ()
    opened_at: float = 0.0  # just before the transaction was opened; s since the epoch, by the task's clock


def commit_tasks(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commits everything that the tasks wrote; returns once every transaction is ended.

    Raises the errors of SinkBatch.is_repeat and check_former, ProducerFencedError for a transaction that has timed out,
    RecordRefusedError if a topic was deleted meanwhile,
    DataLossError if an earlier decision was carried out only in part, and OutcomeUnknownError if the brokers have
    forgotten whether it was.
    """
    tasks = [task for task in messages if isinstance(task, WrittenTask) and task.place is not None]
    if tasks and tasks[0].place is not None:
        with borrowed_cluster(options.kafka, name="sink") as cluster:
            cluster.run(_Settlement(cluster, options, tasks[0].place, tasks).commit)


def abort_tasks(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], place: SinkBatch | None = None
) -> None:
    """Aborts what the run wrote, unless it was decided; if that fails, brokers abort it after the timeout.

    With `place`, which some drivers know without a message, tasks that have sent no message are aborted, too.
    """
    tasks = [task for task in messages if isinstance(task, WrittenTask) and task.place is not None]
    place = tasks[0].place if tasks else place  # foreachBatch: only the tasks know their micro-batch
    if place is not None:
        with (
            contextlib.suppress(Errors.KafkaError),
            borrowed_cluster(options.kafka, name="sink", patience_ms=_ABORT_PATIENCE_MS) as cluster,
        ):
            cluster.run(_Settlement(cluster, options, place, tasks).abort)


class _Settlement:
    """Settles one micro-batch; `tasks` are those of one run that have sent their place."""

    def __init__(self, cluster: Cluster, options: WriteOptions, place: SinkBatch, tasks: Sequence[WrittenTask]) -> None:
        self._cluster = cluster
        self._options = options
        # The oldest first, as in a decision.
        self._tasks = sorted((t for t in tasks if t.transaction is not None), key=lambda t: t.opened_at)
        self._place = place
        self._written = Written.total(task.written for task in tasks)
        self._chosen = [task.transaction for task in self._tasks if task.transaction is not None]
        timeout_ms = max(1, reserve_ms(options.transaction_timeout_ms) // 2)  # law E
        self._coordinators = Coordinators(cluster)
        self._decider = ProducerTransaction(cluster, self._place.decider, timeout_ms, self._coordinators)
        self._timed_out: ProducerFencedError | None = None  # ignored if the micro-batch was decided before
        self._stands: set[TopicPartition] = set()  # the partitions beside which the found decision is stored

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
                # Another decider came between, or the brokers have forgotten this decider's id; task ids raise no such
                # error here.  The next attempt reads what was decided.
                if attempt == _DECIDERS or self._timed_out is not None:
                    raise
        await self._abort_left(left, decision)

    async def abort(self) -> None:
        await self._decider.begin()  # completes or aborts a decision that is in progress
        found = await self._found()
        if found is not None and self._is_mine(found):
            try:
                if not await self._is_ended(found) and not await self._carry_out(found):
                    found = None  # nothing of it was or will be committed
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
            raise self._too_long("the brokers have aborted a part of it") from error

    async def _decide(self, listed: set[str] | None) -> tuple[Decision, set[str]]:
        """The decision in force, carried out, and the other transactions to abort."""
        place = self._place
        await self._decider.begin()
        found = await self._found()
        if found is None and place.is_named:
            await self._check_former()
        if found is not None and await self._is_done(found):
            return found, {transaction.transactional_id for transaction in self._chosen}
        if self._timed_out is not None:
            raise self._timed_out
        if listed is None:  # brokers before 3.0 cannot list them: most likely the ids that the former run used last
            listed = {t.transactional_id for t in found.transactions} if found and found.run != place.run else set()
        decision = place.decide(found, self._written, self._chosen, listed)
        if not self._chosen:
            return decision, set()
        # Beside every topic at once: a repeat finds it beside any that is left, and it replaces the former one everywhere.
        beside = sorted(self._stands | self._beside())
        for number, piece in enumerate(place.pieces(decision)):
            await self._unless_deleted(self._commit_beside(beside, place.group(number), piece))
        self._check_time()
        await self._decider.commit()
        self._stands = set(beside)
        if not await self._carry_out(decision):
            self._timed_out = self._too_long("the brokers have aborted its oldest transaction")
            raise self._timed_out
        settled = {place.run, *decision.superseded}  # law C
        return decision, {name for name in listed if place.run_of(name) in settled}

    async def _is_done(self, found: Decision) -> bool:
        """Whether the found decision is for this micro-batch; if so it is carried out.  Raises the errors of is_repeat."""
        differs: RepeatDiffersError | None = None
        try:
            if not self._place.is_repeat(found, self._written):
                self._stands = set()
                return False
        except RepeatDiffersError as error:  # it says that the decision is committed: law B applies first
            differs = error
        if await self._is_ended(found) or await self._carry_out(found):
            if differs is not None:
                raise differs
            return True
        # Nothing of it was committed within transaction.timeout.ms, and these tasks have written it again.
        self._place.check_in_charge(found)
        if found.run == self._place.run:  # or it was these tasks' own decision
            self._timed_out = self._too_long("the brokers have aborted its oldest transaction")
        return False

    def _check_time(self) -> None:
        timeout_ms = self._options.transaction_timeout_ms
        left_ms = timeout_ms - 1000 * (time.time() - min(task.opened_at for task in self._tasks))
        if left_ms < reserve_ms(timeout_ms):
            self._timed_out = self._too_long(
                f"{max(left_ms, 0) / 1000:.1f} s of it are left, but committing all of it safely needs"
                f" {reserve_ms(timeout_ms) / 1000:.1f} s (or the driver's clock is ahead of a worker's)"
            )
            raise self._timed_out

    async def _carry_out(self, decision: Decision) -> bool:
        """Commits the decided transactions and the note; returns False if the brokers had aborted the oldest one instead,
        so that none is committed.

        Raises DataLossError if they had aborted a part, OutcomeUnknownError if they have forgotten, and
        ProducerFencedError if another decider came between: it may have carried out this decision, so the results of
        committing mean nothing then (law B).
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
        """Awaits a step before the decision; raises RecordRefusedError if a topic that it needs was deleted."""
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
        """Commits the first transaction, then all others; returns those that are lost, and those that brokers forgot.

        If the first is lost all are: the others are not committed.
        """
        patience_ms = max(self._cluster.patience_ms, self._options.transaction_timeout_ms)  # law E
        lost: list[PreparedTransaction] = []
        forgotten: list[PreparedTransaction] = []

        async def end(prepared: PreparedTransaction) -> None:
            try:
                await self._transaction(prepared).commit(patience_ms)
            except (ProducerFencedError, Errors.InvalidTxnStateError):
                lost.append(prepared)
            except Errors.InvalidProducerIdMappingError:  # it was committed or aborted, or it would not have expired
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

    # -- errors --------------------------------------------------------------------

    def _too_long(self, how: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{self._place.what} took too long for transaction.timeout.ms,"
            f" {self._options.transaction_timeout_ms} ms: {how}; nothing was"
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
            f"{self._place.what} was decided, but the brokers have forgotten {len(forgotten)} of its"
            f" {len(decision.transactions)} transactions (transactional.id.expiration.ms): they were"
            " committed, or aborted after transaction.timeout.ms."
            f" Look for its {decision.written.rows} rows in {topics} with isolation.level=read_committed. If they"
            f" are missing, choose another exactlyOnceId to write them; if they are there,"
            f" {self._place.done(decision.batch)}"
        )

    # -- what is left ----------------------------------------------------------------

    async def _abort_left(self, names: set[str], decision: Decision | None) -> None:
        """Aborts these and anything else that this run has left open, except what was decided for this micro-batch.

        If that fails, the brokers do it after the timeout.
        """
        try:
            listed = await transactional_ids(self._cluster, self._place.prefix, _OPEN)
        except Errors.KafkaError as error:
            log.warning("Transactions that other attempts may have left open stay open until their timeout: %s", error)
            listed = None
        names = names | {name for name in listed or () if self._place.run_of(name) == self._place.run}
        if decision is not None and decision.batch == self._place.batch:  # an earlier decision's ids are in use again
            names -= {transaction.transactional_id for transaction in decision.transactions}

        async def abort(name: str) -> None:
            try:
                await self._transaction(PreparedTransaction(name, -1, -1)).begin()
            except Errors.KafkaError as error:
                log.warning("The transaction of %r stays open until its timeout: %s", name, error)

        await self._all(abort, sorted(names))

    # -- what is stored ------------------------------------------------------------

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
        """The partitions beside which a decision may be stored: the first one of each topic that is or was written to."""
        topics = {self._options.topic, self._options.dead_letter_topic} - {None}
        if self._options.topic is None:
            topics |= set(await self._cluster.partitions())
        return [TopicPartition(topic, 0) for topic in sorted(filter(None, topics))]

    def _beside(self) -> set[TopicPartition]:
        """The partitions beside which the decision is committed: one of every topic that the tasks have written to."""
        return {TopicPartition(topic, 0) for task in self._tasks for topic in task.topics}

    def _transaction(self, prepared: PreparedTransaction) -> ProducerTransaction:
        timeout_ms = self._options.transaction_timeout_ms
        return ProducerTransaction(self._cluster, prepared.transactional_id, timeout_ms, self._coordinators, prepared)

    async def _all(self, function: Callable[[Any], Awaitable[None]], values: Iterable[Any]) -> None:
        """Runs the function for all values at once; raises the first error after all have finished."""
        futures = [self._cluster.net.call_soon_with_future(function, value) for value in values]
        errors: list[BaseException] = []
        for future in futures:
            try:
                await future
            except Errors.KafkaError as error:
                errors.append(error)
        if errors:
            raise errors[0]
