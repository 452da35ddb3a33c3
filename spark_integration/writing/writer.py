"""The sink of format("tolerantkafka"), batch and streaming: rows become record batches on the executors.

Laws:
- A wrong option or column is refused before a task of the write runs; Spark asks after the shuffles that come before it.
- Without exactlyOnce the sink is at-least-once, like Spark's own: within a task no lost response, retry or election
  duplicates or loses a record (the producer is idempotent), but a task that runs again writes again.
- exactlyOnce=true: spark_integration.writing.exactly_once says what is guaranteed and what is not.
- Producers belong to the Python worker process, which Spark reuses.

The save mode is append; streams may use the output modes append and complete, which both append.  Spark does not allow
Python data sources two things that its own sink has: a write without a mode (errorIfExists), and output mode update.  For
update, write from foreachBatch.  There exactlyOnceId names the query's sink, as in writeStream: the numbers of
micro-batches distinguish them.  Several writes of one foreachBatch need an id each.  With Spark Connect the tasks of
foreachBatch do not know the number: there each micro-batch needs its own id, of which brokers keep groups and
transactional ids for a week (offsets.retention.minutes, transactional.id.expiration.ms).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_integration.connections import borrowed
from spark_integration.writing.columns import WriteColumns, choose_columns
from spark_integration.writing.exactly_once import RowDigest, SinkBatch
from spark_integration.writing.options import WriteOptions, parse_write_options
from spark_integration.writing.settlement import WrittenTask, abort_tasks, commit_tasks
from spark_integration.writing.task import WriteTask
from spark_integration.writing.transaction_names import transactional_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.batch_producer import BatchProducer
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import OptionError

_BATCH_WRITE: Final = 0
_ABORT_MS: Final = 5_000.0
# Local properties of a micro-batch's tasks (StreamExecution.scala); the job group is the id of the query's run.
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


class RecordsWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "Save mode Overwrite not allowed for tolerantkafka: records cannot be replaced. Give mode append, and delete the"
                " topic's records first if none of them is to stay"
            )
        self._options = parse_write_options(options)
        self._columns = choose_columns(schema, self._options.topic)
        run = uuid.uuid4().hex  # made on the driver: the same for all attempts
        sink = self._options.exactly_once_id
        self._place = SinkBatch(sink or run, "", run, _BATCH_WRITE, is_named=sink is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sink = self._options.exactly_once_id
        place = None if sink is None else _micro_batch(sink)  # the micro-batch that foreachBatch writes
        return write_task(self._options, self._columns, place or self._place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """With exactlyOnce this commits the rows, all of them; raises the errors of commit_tasks."""
        commit_tasks(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """With exactlyOnce this aborts what tasks have written, with or without a message, unless it was decided."""
        abort_tasks(self._options, messages, self._place if self._options.is_exactly_once else None)


class RecordsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; `overwrite` (output mode complete) appends too, as in Spark's own sink."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = parse_write_options(options)
        self._columns = choose_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(
            self._options, self._columns, self._place() if self._options.is_exactly_once else None, iterator
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """With exactlyOnce this commits the rows, all of them; raises the errors of commit_tasks."""
        commit_tasks(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """With exactlyOnce this aborts what tasks have written, unless it was decided."""
        abort_tasks(self._options, messages)

    def _place(self) -> SinkBatch:
        """The place of this task; its message carries it to the driver."""
        place = _micro_batch(self._options.exactly_once_id)
        if place is None:
            raise OptionError(
                "exactlyOnce needs the ids of query, run and micro-batch, and Spark has not told this task all of them"
            )
        return place


def _micro_batch(sink: str | None) -> SinkBatch | None:
    """The micro-batch of this task; None if Spark has not told it one."""
    query, batch, run = (_local_property(name) for name in (_QUERY, _BATCH, _RUN))
    if query is None or batch is None:
        return None
    try:
        uuid.UUID(run or "")
    except ValueError as error:
        raise OptionError(
            f"The Spark job group of this micro-batch is {run!r}: exactlyOnce tells the runs of a query apart by the group that Spark"
            " sets for each. Do not call setJobGroup or clearJobGroup in foreachBatch; setJobDescription names jobs, too"
        ) from error
    digits = hashlib.sha256(f"{query} {run}".encode()).hexdigest()[:32]
    return SinkBatch(sink or query, query, digits, int(batch))


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def write_task(
    options: WriteOptions, columns: WriteColumns, place: SinkBatch | None, iterator: Iterator[pa.RecordBatch]
) -> WrittenTask:
    """Writes the rows of one task; returns once they are in their logs, with exactlyOnce not yet committed."""

    def make() -> BatchProducer:
        return BatchProducer(Cluster(options.kafka, name="sink"), options.producer)

    # Each transaction has its own producer id; a plain producer keeps its id from task to task.
    what = ("producer", options.is_exactly_once, sorted(options.kafka.items()), options.producer)
    with borrowed(what, make) as producer:
        if options.is_exactly_once:
            assert place is not None
            producer.cluster.run(producer.connect)
            with transactional_id(place) as name:
                transaction = ProducerTransaction(producer.cluster, name, options.transaction_timeout_ms)
                return _write_once(producer, options, columns, place, transaction, iterator)
        producer.cluster.run(producer.start)
        task = WriteTask(producer, options, columns, _task_number())
        task.write(iterator)
        return WrittenTask(task.rows, task.dead)


def _write_once(
    producer: BatchProducer,
    options: WriteOptions,
    columns: WriteColumns,
    place: SinkBatch,
    transaction: ProducerTransaction,
    iterator: Iterator[pa.RecordBatch],
) -> WrittenTask:
    run = producer.cluster.run
    run(transaction.begin)
    producer.start_transaction(transaction)
    digest = RowDigest()
    task = WriteTask(producer, options, columns, _task_number(), digest)
    try:
        task.write(iterator)
    except Exception as error:
        producer.stop(error)  # sends nothing more, whatever responses arrive while the transaction is being ended
        with contextlib.suppress(Exception):  # the driver aborts it if this fails
            run(_abort, producer, transaction)
        raise
    prepared = transaction.prepared if transaction.partition is not None else None
    topics = tuple(sorted(task.topics))
    opened_at = transaction.opened_at or time.time()
    return WrittenTask(task.rows, task.dead, place, digest.result(), prepared, transaction.partition, topics, opened_at)


async def _abort(producer: BatchProducer, transaction: ProducerTransaction) -> None:
    manager = producer.cluster.manager
    await manager.wait_for(producer.cluster.net.call_soon_with_future(transaction.begin), _ABORT_MS)
