"""Produces whole record batches: idempotent, pipelined, settled one by one; on a Cluster's event loop.

Laws:
- What a batch's answer means is producer/partition.py's; here are requests,
  leaders, memory and time.
- A request takes one batch of every partition that has one (a broker accepts no
  more), and bytes count from `enqueue` until the batch is proven to be appended.
- The first error is kept and raised by every later call; what was enqueued
  before it may have been written or not, and the producer is done with.
- A single record that no broker will take is the caller's: `on_refused`, or
  without it the producer's error.

Peers read for it: TransactionManager.java and Sender.java of Apache Kafka,
kgo's sink.go (one batch in flight until the broker knows the producer).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import kafka.errors as Errors
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.cluster.producer.partition import LOST, ProducerBatch, ProducerPartition, Verdict, is_too_large
from tolerant_client.cluster.producer.settings import ProducerSettings
from tolerant_client.cluster.producer.topic_lookup import TopicLookup
from tolerant_client.errors import (
    DeliveryTimeoutError,
    OptionError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordRefusedError,
    RecordTooLargeError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.records.record_batch import Record, decode_records, encode_batch, read_header
from tolerant_client.stock.stock_names import Future

_APPENDED = (0, Errors.DuplicateSequenceNumberError.errno)
_FENCED = (Errors.InvalidProducerEpochError.errno, Errors.ProducerFencedError.errno)
_LEADER_HAS_LOST = (
    ": its leader may have lost records that it had acknowledged (an unclean election, or a crash before they were on"
    " disk); what this producer wrote may not be complete, so write it again"
)
_UNKNOWN_TOPIC = Errors.UnknownTopicOrPartitionError.errno
_REFRESH_EVERY = 0.1  # seconds
_PID_LEASE = 3600.0  # seconds idle after which another producer id is used: brokers forget them after a day
_MAX_CONNECTING_MS = 10_000
_MAX_SENT_BYTES = (100 << 20) - (64 << 10)  # the brokers' socket.request.max.bytes, less what is around a batch


class Encoded(Protocol):
    """What is enqueued; batch_encoding.EncodedBatch has it."""

    @property
    def data(self) -> memoryview: ...
    @property
    def record_count(self) -> int: ...
    @property
    def uncompressed_size(self) -> int: ...


class Enrolment(Protocol):
    """The transaction that batches go into; producer_transaction.ProducerTransaction has it."""

    @property
    def transactional_id(self) -> str: ...
    async def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Adds partitions; only then may be produced to them."""
        ...


class Refused(NamedTuple):
    """A record that was refused for good, and why."""

    partition: TopicPartition
    record: Record
    row: int
    error: RecordRefusedError


class _Sender:
    """The pipeline to one node."""

    def __init__(self) -> None:
        self.in_flight = 0


class BatchProducer:
    """Appends encoded batches to the leaders of their partitions; owns `cluster` and closes it.

    One caller at a time: `start`, then `enqueue` and `pump` as often as it likes,
    `await room()` before more than a bound, and `await flush()` in the end.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.on_refused: Callable[[Refused], None] | None = None
        self.bytes_in_flight = 0
        self.records_appended = 0
        self._partitions: dict[TopicPartition, ProducerPartition] = {}
        self._ready: dict[TopicPartition, ProducerPartition] = {}
        self._lookup = TopicLookup(cluster, settings.max_block_ms)
        self._limits: dict[str, int] = {}  # bytes of a batch, by topic; outlives the producer id
        self._senders: dict[int, _Sender] = {}
        self._identity = (-1, -1)
        self._transaction: Enrolment | None = None
        self._unenrolled: list[TopicPartition] = []
        self._is_enrolling = False
        self._is_dispatching = False
        self._is_due = False
        self._error: BaseException | None = None
        self._waiter: Future | None = None
        self._timer_at = float("inf")
        self._is_refreshing = False
        self._refreshed_at = float("-inf")
        self._used_at = float("-inf")

    def __enter__(self) -> BatchProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the cluster's connections; what is not flushed may be written or not."""
        self._error = self._error or Errors.IllegalStateError("The producer is closed")
        self.cluster.close()

    # -- who produces ----------------------------------------------------------

    async def connect(self) -> None:
        """Connects, within max.block.ms or 10 s.

        Raises ClusterUnreachableError, and OptionError for brokers that know no record batches.
        """
        self._check()
        await self.cluster.connect(min(self.settings.max_block_ms, _MAX_CONNECTING_MS))
        try:
            await self.cluster.require_record_batches()
        except UnsupportedSourceError as error:
            raise OptionError(
                "Writing needs brokers of Kafka 0.11 or newer (KIP-98): older ones know no record batches"
            ) from error

    async def start(self) -> None:
        """Connects, and gets a producer id if there is none; the same one goes on from task to task."""
        await self.connect()
        self._senders.clear()
        for state in self._partitions.values():
            state.forget()
        now = time.monotonic()
        is_stale = self._identity[0] < 0 or now - self._used_at > _PID_LEASE or self._transaction is not None
        self._used_at, self._transaction = now, None
        if self.settings.is_idempotent and is_stale:
            what = "getting a producer id"
            self._become(*await self.cluster.insist(what, self._init_producer_id, self.settings.max_block_ms))

    def start_transaction(self, transaction: Enrolment, producer_id: int, producer_epoch: int) -> None:
        """Produces from now on in a transaction, as the producer that it was begun by."""
        self._check()
        self._become(producer_id, producer_epoch)
        self._transaction = transaction

    def stop(self, error: BaseException) -> None:
        """Sends nothing more: `error` is what every later call raises, unless there was one before."""
        self._fail(error)

    def _become(self, producer_id: int, producer_epoch: int) -> None:
        if any(not state.is_idle for state in self._partitions.values()):
            raise Errors.IllegalStateError("A producer with batches in flight cannot become another one: flush first")
        self._identity = (producer_id, producer_epoch)
        self._partitions.clear()
        self._ready.clear()
        self._unenrolled.clear()

    async def _init_producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1, max_version=4
        )
        answer = await self.cluster.send(request)
        if answer.error_code:
            raise Errors.for_code(answer.error_code)(
                "InitProducerId; kafka.enable.idempotence=false writes without a producer id"
            )
        return answer.producer_id, answer.producer_epoch

    async def partition_count(self, topic: str, is_fresh: bool = False) -> int:
        """How many partitions a topic has; one that does not exist is created where the brokers do so by themselves.

        With `is_fresh` the brokers are asked even if it is known.
        Raises RecordRefusedError naming the topic.
        """
        if is_fresh:
            self._check()
            await self.cluster.refresh()
        count = (await self.partition_counts([topic]))[topic]
        if isinstance(count, RecordRefusedError):
            raise count
        return count

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int | RecordRefusedError]:
        """As partition_count, of many topics, which are waited for together."""
        self._check()
        return await self._lookup.partition_counts(topics)

    def largest_batch(self, topic: str) -> int | None:
        """The bytes that a batch should not exceed, where the topic has refused larger ones."""
        return self._limits.get(topic)

    # -- batches ---------------------------------------------------------------

    def enqueue(self, partition: TopicPartition, batch: Encoded, rows: Sequence[int]) -> None:
        """Takes a batch; `rows` are the caller's numbers of its records.  `pump` or a wait sends it.

        The bytes are the producer's from here on: it stamps them.
        """
        self._check()
        made = ProducerBatch(batch.data, batch.record_count, rows, self._deadline())
        reason = self._excess(batch) if batch.record_count == 1 else None
        if reason is not None:
            self._refuse(partition, made, RecordTooLargeError, reason)
            self._check()
            return
        self._add(partition, [made])

    def _excess(self, batch: Encoded) -> str | None:
        """Why a record is too large to be sent at all, None if it is not."""
        limit = self.settings.max_record_bytes
        if limit is not None:
            size = batch.uncompressed_size
            return f"of {size} bytes is larger than max.request.size, {limit}" if size > limit else None
        size = len(batch.data)
        if size <= _MAX_SENT_BYTES:
            return None
        # The broker would close the connection, again and again, on the batches of other partitions too.
        return (
            f"of {size} bytes is larger than brokers take by default (socket.request.max.bytes), {_MAX_SENT_BYTES};"
            " where they take more, give kafka.max.request.size"
        )

    def _deadline(self) -> float:
        return time.monotonic() + self.settings.delivery_timeout_ms / 1000

    def _add(self, partition: TopicPartition, batches: list[ProducerBatch]) -> None:
        state = self._partitions.get(partition)
        if state is None:
            window = min(self.settings.max_in_flight, 5) if self._identity[0] >= 0 else self.settings.max_in_flight
            state = self._partitions[partition] = ProducerPartition(partition, *self._identity, window)
            if self._transaction is not None:
                state.is_enrolled = False
                self._unenrolled.append(partition)
        for batch in batches:
            self.bytes_in_flight += len(batch.data)
            state.add(batch)
        self._ready[partition] = state

    def pump(self) -> None:
        """Sends what can be sent and takes what has arrived, without waiting."""
        self._check()
        self._dispatch()
        self.cluster.net.poll(timeout_ms=0)
        self._check()

    async def room(self) -> None:
        """Waits until fewer bytes are in flight than may be."""
        await self._wait(lambda: self.bytes_in_flight < self.settings.max_bytes_in_flight)

    async def flush(self) -> None:
        """Waits until every batch is in its log (with acks=0: has been taken); raises what prevented it."""
        await self._wait(lambda: not self.bytes_in_flight)
        if self.settings.acks == 0:
            # Nothing is acknowledged, but an answer on the same connection says that what came before was taken.
            for node_id in self._senders:
                with contextlib.suppress(Errors.KafkaError):  # a node that has left says nothing
                    await self.cluster.send(MetadataRequest(topics=[], allow_auto_topic_creation=False), node_id)
        self._used_at = time.monotonic()

    async def _wait(self, is_over: Callable[[], bool]) -> None:
        self._dispatch()
        while self._error is None and not is_over():
            self._waiter = Future()
            await self._waiter
        self._check()

    # -- sending ---------------------------------------------------------------

    def _dispatch(self) -> None:
        """Sends what can be sent; a request that is settled while it is being sent has it look again, not within."""
        self._is_due = True
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._is_due and self._error is None:
                self._is_due = False
                self._dispatch_once()
        finally:
            self._is_dispatching = False

    def _dispatch_once(self) -> None:
        """Fills requests with a batch of each partition that may send one."""
        if self._unenrolled and not self._is_enrolling:
            self._is_enrolling = True
            self.cluster.net.call_soon(self._enrol)
        now = time.monotonic()
        by_node: dict[int, list[ProducerPartition]] = {}
        for partition, state in list(self._ready.items()):
            if not state.may_send(now):
                if state.retry_at > now:
                    self._arm(state.retry_at)
                else:
                    del self._ready[partition]
                continue
            node_id = self.cluster.manager.cluster.leader_for_partition(partition)
            if node_id is None or node_id == -1:
                self._without_leader(state, now)
            else:
                by_node.setdefault(node_id, []).append(state)
        for node_id, states in by_node.items():
            self._fill(node_id, states, now)

    def _fill(self, node_id: int, states: list[ProducerPartition], now: float) -> None:
        sender = self._senders.setdefault(node_id, _Sender())
        while states and sender.in_flight < self.settings.max_requests and self._error is None:
            sent: list[tuple[ProducerPartition, ProducerBatch]] = []
            size = 0
            left: list[ProducerPartition] = []
            for number, state in enumerate(states):
                first = state.first
                if first is not None and size and size + len(first.data) > self.settings.max_request_bytes:
                    left += states[number:]
                    break
                batch = state.send(self._transaction is not None)
                sent.append((state, batch))
                size += len(batch.data)
                left.append(state)
            self._send(sender, node_id, sent)
            states = [state for state in left if state.may_send(now)]

    def _send(self, sender: _Sender, node_id: int, sent: list[tuple[ProducerPartition, ProducerBatch]]) -> None:
        sender.in_flight += 1
        future = self.cluster.produce(
            node_id,
            {state.partition: batch.data for state, batch in sent},
            self.settings.request_timeout_ms,
            acks=self.settings.acks,
            transactional_id=None if self._transaction is None else self._transaction.transactional_id,
        )
        future.add_callback(self._answered, sender, sent)
        future.add_errback(self._lost, sender, sent)

    def _without_leader(self, state: ProducerPartition, now: float) -> None:
        state.no_leader(now)
        self._arm(state.retry_at)
        self._refresh(now)
        batch = state.first
        if batch is not None and now > batch.deadline:
            self._timed_out(state, batch, "it has no leader")

    async def _enrol(self) -> None:
        transaction, partitions = self._transaction, self._unenrolled[:]
        try:
            if transaction is not None:
                await transaction.add_partitions(partitions)
            if transaction is self._transaction:
                del self._unenrolled[: len(partitions)]
                for partition in partitions:
                    self._partitions[partition].is_enrolled = True
                    self._ready[partition] = self._partitions[partition]
        except Exception as error:
            self._fail(error)
        finally:
            self._is_enrolling = False
        self._dispatch()

    # -- answers ---------------------------------------------------------------

    def _answered(self, sender: _Sender, sent: list[tuple[ProducerPartition, ProducerBatch]], answer: Any) -> None:
        sender.in_flight -= 1
        now = time.monotonic()
        found: Mapping[TopicPartition, ProducedPartition] = {} if answer is None else {p.partition: p for p in answer}
        for state, batch in sent:
            part = found.get(state.partition) or ProducedPartition(state.partition, 0, -1)  # acks=0
            self._settle(state, batch, part.error_code, part.base_offset, now)
        self._after_answer()

    def _lost(self, sender: _Sender, sent: list[tuple[ProducerPartition, ProducerBatch]], error: BaseException) -> None:
        sender.in_flight -= 1
        now = time.monotonic()
        if isinstance(
            error, (Errors.SaslAuthenticationFailedError, Errors.UnsupportedVersionError, UnsupportedSourceError)
        ):
            self._fail(error)
        if not isinstance(error, OutcomeUnknownError):
            self._refresh(now)  # a connection that ended: its broker may lead no longer
        for state, batch in sent:
            self._settle(state, batch, LOST, -1, now)
        self._after_answer()

    def _settle(self, state: ProducerPartition, batch: ProducerBatch, code: int, base_offset: int, now: float) -> None:
        if state is not self._partitions.get(state.partition):
            return  # of an identity that the producer had before
        if code in _APPENDED:
            proven, verdict = state.appended(batch, base_offset, now)
            for each in proven:
                self.bytes_in_flight -= len(each.data)
                self.records_appended += each.record_count
        else:
            verdict = state.failed(batch, code, now)
        self._ready[state.partition] = state
        if verdict is not Verdict.NOTHING:
            self._trouble(state, verdict, now)

    def _trouble(self, state: ProducerPartition, verdict: Verdict, now: float) -> None:
        name = f"{state.partition.topic}-{state.partition.partition}"
        if verdict is Verdict.DIVERGED:
            self._fail(
                TolerantClientError(
                    f"{name} lost records that had been acknowledged (a topic that was created again, or an unclean"
                    " election): what this producer wrote is not complete"
                )
            )
            return
        batch = state.first
        assert batch is not None
        code = state.last_code
        reason = "no answer came" if code == LOST else Errors.for_code(code).__name__
        if verdict is Verdict.RECORDS:
            self._split(state, batch, code)
        elif verdict is Verdict.FAILED and code in _FENCED and self._transaction is not None:
            self._fail(
                ProducerFencedError(
                    f"{name}: another producer with the same transactional.id has taken over, or the transaction took"
                    f" longer than transaction.timeout.ms ({reason})"
                )
            )
        elif verdict is Verdict.FAILED:
            remedy = _LEADER_HAS_LOST if code == Errors.OutOfOrderSequenceNumberError.errno else ""
            self._fail(Errors.for_code(code)(f"{name} refuses what is written, again and again{remedy}"))
        elif batch.sends > self.settings.retries:
            self._fail(
                DeliveryTimeoutError(f"{name}: a batch was sent {batch.sends} times, as retries says ({reason})")
            )
        elif now > batch.deadline:
            self._timed_out(state, batch, reason)
        else:
            if code == _UNKNOWN_TOPIC or getattr(Errors.for_code(code), "invalid_metadata", False):
                self._refresh(now)
            self._arm(state.retry_at)

    def _timed_out(self, state: ProducerPartition, batch: ProducerBatch, reason: str) -> None:
        name = f"{state.partition.topic}-{state.partition.partition}"
        self._fail(
            DeliveryTimeoutError(
                f"{name}: {batch.record_count} records were not acknowledged within delivery.timeout.ms,"
                f" {self.settings.delivery_timeout_ms} ({reason}); they may have been written"
            )
        )

    def _split(self, state: ProducerPartition, batch: ProducerBatch, code: int) -> None:
        """A batch that was refused for its records goes again in parts, until one record alone is refused."""
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
        state.replace_first(parts, self._deadline())
        self.bytes_in_flight += sum(len(part.data) for part in parts) - size
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
            self._fail(error)
            return
        (record,) = decode_records(batch.data)
        try:
            self.on_refused(Refused(partition, record, row, error))
        except Exception as raised:
            self._fail(raised)

    # -- errors, time ----------------------------------------------------------

    def _after_answer(self) -> None:
        self._dispatch()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.is_done:
            waiter.success(None)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _refresh(self, now: float) -> None:
        """Asks for the leaders, at most every 100 ms."""
        if self._is_refreshing:
            return
        self._is_refreshing = True
        pause = max(0.0, self._refreshed_at + _REFRESH_EVERY - now)

        async def refresh() -> None:
            try:
                await self.cluster.net.sleep(pause)
                await self.cluster.manager.cluster.refresh_metadata()
            except (Errors.KafkaError, ValueError):
                pass  # the batch that needs it is tried again, and refreshes again
            finally:
                self._is_refreshing, self._refreshed_at = False, time.monotonic()
            self._dispatch()

        self.cluster.net.call_soon(refresh)

    def _arm(self, due: float) -> None:
        if due < self._timer_at:
            self._timer_at = due
            self.cluster.net.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = float("inf")
        self._dispatch()
        self._wake()
