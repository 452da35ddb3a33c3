"""Produces whole record batches: idempotent, pipelined, settled one by one; on a Cluster's event loop.

Laws:
- `partition.py` decides what a batch's response means; `sender.py` has requests, leaders and time; this module has the
  producer's id, what it takes, and what happens to records that brokers refuse.
- Bytes count from `enqueue` until the batch is proven to be appended.
- The first error is kept and raised by every later call; what was enqueued
  before it may or may not have been written, and the producer is of no more use.
- A single record that no broker will take goes to the caller's `on_refused`;
  without one it is the producer's error.

Compare TransactionManager.java and Sender.java of Apache Kafka, and kgo's
sink.go (one batch in flight until the broker knows the producer).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.transactions import init_producer_id_request
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.connections import PRODUCE
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.cluster.producer.partition import ProducerBatch, ProducerPartition, is_too_large
from tolerant_client.cluster.producer.sender import ProducerSettings, Sender
from tolerant_client.cluster.producer.topic_lookup import TopicLookup
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    OptionError,
    RecordRefusedError,
    RecordTooLargeError,
    UnsupportedSourceError,
)
from tolerant_client.records.batch_encoding import EncodedBatch
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, read_header

_PID_LEASE = 3600.0  # seconds idle after which a new producer id is used: brokers forget them after a day
_MAX_CONNECTING_MS = 10_000
_MAX_SENT_BYTES = (100 << 20) - (64 << 10)  # the brokers' socket.request.max.bytes, less the overhead around a batch


class Refused(NamedTuple):
    """A record that was refused for good, and why."""

    partition: TopicPartition
    record: Record
    row: int
    error: RecordRefusedError


class BatchProducer:
    """Appends encoded batches to the leaders of their partitions; owns `cluster` and closes it.

    One caller at a time: `start`, then `enqueue` and `pump` as often as it likes,
    `await room()` before it exceeds a bound, and `await flush()` in the end.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.on_refused: Callable[[Refused], None] | None = None
        self._lookup = TopicLookup(cluster, settings.max_block_ms)
        self._limits: dict[str, int] = {}  # bytes of a batch, by topic; outlives the producer id
        self._sender = Sender(cluster, settings, self._split)
        self._used_at = float("-inf")

    def __enter__(self) -> BatchProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the cluster's connections; what is not flushed may or may not be written."""
        self._sender.fail(Errors.IllegalStateError("The producer is closed"))
        self.cluster.close()

    # -- who produces ----------------------------------------------------------

    async def connect(self) -> None:
        """Connects, within max.block.ms or 10 s.

        Raises ClusterUnreachableError, and OptionError for brokers that know no record batches.
        """
        self._sender.check()
        await self.cluster.connect(min(self.settings.max_block_ms, _MAX_CONNECTING_MS))
        try:
            await self.cluster.require_record_batches()
        except UnsupportedSourceError as error:
            raise OptionError(
                "Writing needs brokers of Kafka 0.11 or newer (KIP-98): older ones know no record batches"
            ) from error

    async def start(self) -> None:
        """Connects, and gets a producer id if there is none; the id is kept from task to task."""
        await self.connect()
        self._sender.start()
        now = time.monotonic()
        is_stale = (
            self._sender.producer_id < 0 or now - self._used_at > _PID_LEASE or self._sender.transaction is not None
        )
        self._used_at = now
        if self.settings.is_idempotent and is_stale:
            what = "getting a producer id"
            self._become(*await self.cluster.insist(what, self._init_producer_id, self.settings.max_block_ms))

    def start_transaction(self, transaction: ProducerTransaction) -> None:
        """Produces from now on in a transaction that has begun, as its producer."""
        self._become(transaction.producer_id, transaction.producer_epoch, transaction)

    def stop(self, error: BaseException) -> None:
        """Sends nothing more; every later call raises `error`, or an earlier one."""
        self._sender.fail(error)

    def _become(self, producer_id: int, producer_epoch: int, transaction: ProducerTransaction | None = None) -> None:
        self._sender.check()  # it may have been stopped while it waited for the id
        if not self._sender.is_idle:
            raise Errors.IllegalStateError("A producer with batches in flight cannot become another one: flush first")
        self._sender = Sender(self.cluster, self.settings, self._split, producer_id, producer_epoch, transaction)

    @property
    def bytes_in_flight(self) -> int:
        return self._sender.bytes_in_flight

    async def _init_producer_id(self) -> tuple[int, int]:
        response = await self.cluster.send(init_producer_id_request(None, 0))
        raise_for(response.error_code, "InitProducerId; kafka.enable.idempotence=false writes without a producer id")
        return response.producer_id, response.producer_epoch

    async def partition_count(self, topic: str, is_fresh: bool = False) -> int:
        """How many partitions a topic has; a missing one is created where the brokers create topics by themselves.

        With `is_fresh` the brokers are asked even if the count is known.
        Raises RecordRefusedError naming the topic.
        """
        if is_fresh:
            self._sender.check()
            await self.cluster.refresh()
        count = (await self.partition_counts([topic]))[topic]
        if isinstance(count, RecordRefusedError):
            raise count
        return count

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int | RecordRefusedError]:
        """Like partition_count, for many topics, which are waited for together."""
        self._sender.check()
        return await self._lookup.partition_counts(topics)

    def largest_batch(self, topic: str) -> int | None:
        """The bytes that a batch should not exceed, where the topic has refused larger ones."""
        return self._limits.get(topic)

    # -- batches ---------------------------------------------------------------

    def enqueue(self, partition: TopicPartition, batch: EncodedBatch, rows: Sequence[int]) -> None:
        """Takes a batch; `rows` are the caller's numbers of its records.  `pump` or a wait sends it.

        The bytes belong to the producer from now on: it stamps them.
        """
        self._sender.check()
        made = ProducerBatch(batch.data, batch.record_count, rows, self._sender.deadline())
        reason = self._excess(batch) if batch.record_count == 1 else None
        if reason is None:
            self._sender.add(partition, made)
        else:
            self._refuse(partition, made, RecordTooLargeError, reason)
            self._sender.check()

    def _excess(self, batch: EncodedBatch) -> str | None:
        """Why a record is too large to be sent at all, None if it is not."""
        limit = self.settings.max_record_bytes
        if limit is not None:
            size = batch.uncompressed_size
            return f"of {size} bytes is larger than max.request.size, {limit}" if size > limit else None
        size = len(batch.data)
        if size <= _MAX_SENT_BYTES:
            return None
        # The broker would close the connection each time, and so fail the batches of other partitions too.
        return (
            f"of {size} bytes is larger than brokers take by default (socket.request.max.bytes), {_MAX_SENT_BYTES};"
            " where they take more, give kafka.max.request.size"
        )

    def pump(self) -> None:
        """Sends what can be sent and takes what has arrived, without waiting."""
        self._sender.check()
        self._sender.dispatch()
        self.cluster.net.poll(timeout_ms=0)
        self._sender.check()

    async def room(self) -> None:
        """Waits until fewer bytes than the bound are in flight."""
        await self._sender.wait(lambda: self.bytes_in_flight < self.settings.max_bytes_in_flight)

    async def flush(self) -> None:
        """Waits until every batch is in its log (with acks=0: has been taken); raises what prevented it."""
        await self._sender.wait(lambda: not self.bytes_in_flight)
        if self.settings.acks == 0:
            # Nothing is acknowledged, but a response on the same connection proves that what came before was taken.
            for node_id in self._sender.requests:
                with contextlib.suppress(Errors.KafkaError):  # a node that has left says nothing
                    await self.cluster.send(metadata_request([]), self.cluster.lane(PRODUCE, node_id))
        self._used_at = time.monotonic()

    def _split(self, state: ProducerPartition, batch: ProducerBatch, code: int) -> None:
        """Sends a batch that was refused for its records again in parts, until a single record is refused."""
        parts: list[ProducerBatch] = []
        size, count = len(batch.data), 2
        topic = state.partition.topic
        if is_too_large(code) and batch.record_count > 1:
            self._limits[topic] = min(self._limits.get(topic, size), size // 2)
            count = -(-size // self._limits[topic])
        if batch.record_count > 1:
            codec, records = read_header(batch.data).codec, list(decode_records(batch.data))
            each = -(-len(records) // count)
            for first in range(0, len(records), each):
                part = records[first : first + each]
                data = memoryview(bytearray(encode_batch(part, codec=codec)))
                parts.append(ProducerBatch(data, len(part), batch.rows[first : first + each], batch.deadline))
        self._sender.replace(state, parts)
        if parts:
            return
        if is_too_large(code):
            reason = f"of {size} bytes is larger than the topic's max.message.bytes"
            self._refuse(state.partition, batch, RecordTooLargeError, reason)
        else:
            self._refuse(state.partition, batch, RecordRefusedError, f"is refused ({Errors.for_code(code).__name__})")

    def _refuse(
        self, partition: TopicPartition, batch: ProducerBatch, kind: type[RecordRefusedError], reason: str
    ) -> None:
        row = int(batch.rows[0])
        name = f"{partition.topic}-{partition.partition}"
        error = kind(f"{name}: the record in row {row} {reason}", partition.topic, partition.partition, row)
        if self.on_refused is None:
            self._sender.fail(error)
            return
        (record,) = decode_records(batch.data)
        try:
            self.on_refused(Refused(partition, record, row, error))
        except Exception as raised:
            self._sender.fail(raised)
