"""The sink of format("tolerantkafka"), batch and streaming: rows become record batches on the executors.

Laws:
- A wrong option or column is refused before a task runs.
- Without exactlyOnce the sink is at-least-once, as Spark's own is: no lost answer, retry or election doubles or loses
  a record within a task (the producer is idempotent), but a task that runs again writes again.
- exactlyOnce=true: spark_integration.writing.exactly_once says what is guaranteed and what is not.
- Producers belong to the Python worker process, which Spark reuses.

Save mode append; streams have the output modes append and complete, and both append.  Spark itself lets no Python
data source have what its own sink has beside: a write without a mode (errorIfExists), and output mode update.  For
update, write from foreachBatch, with exactlyOnceId naming sink and micro-batch.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from kafka.structs import TopicPartition
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_integration.connections import borrowed, open_cluster
from spark_integration.writing.columns import WriteColumns, choose_columns
from spark_integration.writing.exactly_once import RowDigest, TaskPlace
from spark_integration.writing.options import WriteOptions, parse_write_options
from spark_integration.writing.task import WriteTask
from tolerant_client.batch_producer import BatchProducer
from tolerant_client.errors import OptionError
from tolerant_client.producer_transaction import CommittedOffset, ProducerTransaction, groups_named

_BATCH_WRITE: Final = 0
_ABORT_MS: Final = 5_000.0
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class WrittenTask(WriterCommitMessage):
    """What one task did; `is_repeat`: its rows had been committed before.

    `place` and `siblings`, all tasks that the sink ever had, are told by task 0 of exactlyOnce.
    """

    rows: int
    dead_letters: int
    is_repeat: bool = False
    place: TaskPlace | None = None
    siblings: tuple[TaskPlace, ...] = ()


class RecordsWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "Save mode Overwrite not allowed for tolerantkafka. Allowed save modes are Append and ErrorIfExists"
                " (default): records cannot be replaced; delete the topic's records first"
            )
        self._options = parse_write_options(options)
        self._columns = choose_columns(schema, self._options.topic)
        self._sink = self._options.exactly_once_id or str(uuid.uuid4())  # on the driver: the same for all attempts

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        place = TaskPlace(self._sink, "", _BATCH_WRITE, _task_number())
        return write_task(self._options, self._columns, place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task has committed by itself; raises RepeatDiffersError for a repeat with fewer tasks."""
        check_siblings(self._options, messages)


class RecordsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; `overwrite` (output mode complete) appends too, as in Spark's own sink."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = parse_write_options(options)
        self._columns = choose_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        place = TaskPlace("", "", 0, _task_number())
        if self._options.is_exactly_once:
            query, batch = _local_property(_QUERY), _local_property(_BATCH)
            if query is None or batch is None:
                raise OptionError("exactlyOnce needs the ids of query and micro-batch, and Spark has not told this task")
            place = TaskPlace(self._options.exactly_once_id or query, query, int(batch), place.task)
        return write_task(self._options, self._columns, place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has committed by itself; raises RepeatDiffersError for a repeat with fewer tasks."""
        check_siblings(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to undo: a task that failed has aborted its transaction, or its next attempt does."""


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def write_task(
    options: WriteOptions, columns: WriteColumns, place: TaskPlace, iterator: Iterator[pa.RecordBatch]
) -> WrittenTask:
    """Writes the rows of one task; returns once they are in their logs, or committed."""

    def make() -> BatchProducer:
        return BatchProducer(open_cluster(options.kafka, name="sink"), options.producer)

    # Transactions have producer ids of their own; the plain one goes on from task to task.
    what = ("producer", options.is_exactly_once, sorted(options.kafka.items()), options.producer)
    with borrowed(what, make) as producer:
        if options.is_exactly_once:
            return _write_once(producer, options, columns, place, iterator)
        producer.cluster.run(producer.start)
        task = WriteTask(producer, options, columns, place.task)
        task.write(iterator)
        return WrittenTask(task.rows, task.dead)


def _write_once(
    producer: BatchProducer,
    options: WriteOptions,
    columns: WriteColumns,
    place: TaskPlace,
    iterator: Iterator[pa.RecordBatch],
) -> WrittenTask:
    run = producer.cluster.run
    transaction = ProducerTransaction(producer.cluster, place.transactional_id, options.transaction_timeout_ms)
    run(producer.connect)
    run(transaction.begin)
    told = (place, tuple(run(_siblings, producer, place))) if place.task == 0 else (None, ())
    markers = run(_markers, producer, options)
    found = place.find(run(transaction.committed, place.transactional_id, markers))
    digest = RowDigest()
    task = WriteTask(producer, options, columns, place.task, digest)
    if found is not None:
        task.skip(iterator)
        place.check_repeat(found, digest.result())
        return WrittenTask(found.rows, 0, True, *told)
    producer.start_transaction(transaction, transaction.producer_id, transaction.producer_epoch)
    try:
        task.write(iterator)
        if task.topics:
            marker = TopicPartition(options.topic if options.topic in task.topics else min(task.topics), 0)
            run(_commit, transaction, marker, place.committed(digest.result()))
    except Exception as error:
        producer.stop(error)  # nothing more is sent, whatever answers come while the transaction is being ended
        with contextlib.suppress(Exception):  # the next attempt ends it, if this does not
            run(_abort, producer, transaction)
        raise
    return WrittenTask(task.rows, task.dead, False, *told)


def check_siblings(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raises RepeatDiffersError if a task that is not there any more had committed what these tasks wrote."""
    for told in messages:
        if isinstance(told, WrittenTask) and any(sibling.task >= len(messages) for sibling in told.siblings):
            break
    else:
        return
    with BatchProducer(open_cluster(options.kafka, name="sink"), options.producer) as producer:
        markers = producer.cluster.run(_markers, producer, options)
        for sibling in told.siblings:
            if sibling.task >= len(messages):
                name = sibling.transactional_id
                transaction = ProducerTransaction(producer.cluster, name, options.transaction_timeout_ms)
                committed = producer.cluster.run(transaction.committed, name, markers)
                sibling.check_absent(committed, len(messages))


async def _siblings(producer: BatchProducer, place: TaskPlace) -> list[TaskPlace]:
    """The tasks that the sink had so far; asked for in every micro-batch, as any of them may be a repeated one."""
    groups = await groups_named(producer.cluster, place.siblings)
    return [sibling for group in groups if (sibling := place.sibling(group)) is not None]


async def _markers(producer: BatchProducer, options: WriteOptions) -> list[TopicPartition]:
    """The partitions beside which a task may have committed: the first one of a topic that it wrote to."""
    topics = {options.topic, options.dead_letter_topic} - {None}
    if options.topic is None:
        topics |= set(await producer.cluster.partitions())
    return [TopicPartition(topic, 0) for topic in sorted(filter(None, topics))]


async def _commit(transaction: ProducerTransaction, marker: TopicPartition, committed: CommittedOffset) -> None:
    await transaction.commit_offset(transaction.transactional_id, marker, committed)
    await transaction.commit()


async def _abort(producer: BatchProducer, transaction: ProducerTransaction) -> None:
    manager = producer.cluster.manager
    await manager.wait_for(producer.cluster.net.call_soon_with_future(transaction.abort), _ABORT_MS)
