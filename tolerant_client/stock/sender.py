"""kafka-python's sender, which ends every record in time, and sends a batch again as soon as its leader is connected again.

Laws:
- `delivery_timeout_ms` ends a record, and so its `flush()`, whatever the producer waits for: also while no broker
  responds to the request for its id, or to one of its transaction.  kafka-python expires nothing then: it relies on
  the failure of that request, which ours survives.
- Late records end before the batches to send are taken out of their queues.  kafka-python takes them out first, and
  where a batch that it had sent before is late, the others are neither sent nor put back.
- A batch is sent again under the producer id and epoch that it was sent with, also when a later epoch has begun.
  kafka-python fails its records then, however young they are.
- No batch is sent while another one of its partition is in flight, also if the records of that one are late: both could
  be refused and sent again in the other order, or the older one be appended as the later one of two epochs.
- A batch that fails may be written if an attempt got no response, or one that does not prove a refusal, or if a connection sent it
  again because it had lost the response; its error says so, whatever became of its last attempt.  How often a connection did that is known for
  all Produce requests together: in doubt, it was this one.  An attempt that was refused, for example because the leader has
  moved, has written nothing.  Records that are late before they were sent are not written, and their error says that alone.
- A batch whose records have ended does nothing more when its request ends, of which a later transaction may know nothing.
- A Produce request that ends leaves each of its partitions to the next batch, and none of its batches in flight, whatever is
  raised meanwhile.  kafka-python would never send to such a partition again.
- A producer that closes waits for no request once all its records have ended, but for those of a transaction that has not failed.
  kafka-python waits for as long as close() may take, after its flush() has taken as long, if a broker is silent.
- A batch whose connection ended waits for the next connection, not for `retry_backoff_ms` as well: the broker refused
  nothing, and connecting has its own backoff.  A second failure of the batch waits as in kafka-python, and so does its
  last try: the leader may have moved, and Metadata tells it meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

from kafka.errors import (
    BrokerNotAvailableError,
    DuplicateSequenceNumberError,
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
    ReplicaNotAvailableError,
    RequestTimedOutError,
    RetriableError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.producer import ProduceResponse

from tolerant_client.errors import OutcomeUnknownError, RecoveryExhaustedError
from tolerant_client.stock.held_batches import GIVEN_UP, HeldBatches
from tolerant_client.stock.sought_batches import Doubts, Find
from tolerant_client.stock.stock_names import Sender

log = logging.getLogger(__name__)

_PARTITION_RESPONSE = ProduceResponse.TopicProduceResponse.PartitionProduceResponse

_PAUSE_S = 0.05  # at least, between two endings of late records while other requests are waited for
# What a broker says of a batch before it appends it.  A leader that is deposed while it waits for its followers says some of
# these of a batch that it has appended, with the offset that it gave it (DelayedProduce.scala).
_REFUSED = (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
    ReplicaNotAvailableError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
_SILENT = (RequestTimedOutError, RecoveryExhaustedError)  # which the next connection may not cure


def _is_refused(error: BaseException, partition_response: Any) -> bool:
    """Whether an attempt has written nothing: it was not sent, or its broker has not appended the batch."""
    if partition_response is None:
        return isinstance(error, NodeNotReadyError)
    return isinstance(error, _REFUSED) and partition_response.base_offset < 0


def _doubted(error: BaseException) -> BaseException:
    """The error of a batch that may be written, which says so; `error` may be that of other batches, too."""
    if isinstance(error, OutcomeUnknownError):
        return error  # it says so
    told = copy(error)
    said = [str(error.args[0])] if any(error.args) else []
    told.args = ("; ".join([*said, "the records were sent, and may be written"]), *error.args[1:])
    told.__cause__ = error.__cause__ or error
    return told


class TolerantSender(Sender):  # type: ignore[misc]  # kafka-python is untyped
    """The sender of one producer; on the producer's thread."""

    _late_at = 0.0  # no record is late before

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._repeats_before = WeakKeyDictionary[Any, int]()  # by batch: when it was last sent
        self.last_offsets: dict[Any, int] = {}  # of what was acknowledged, by partition, whatever the producer id
        self.gives_times: dict[str, bool] = {}  # by topic, as its brokers told: with LogAppendTime
        self.held: HeldBatches | None = None  # with acks="mirrored"

    def run(self) -> None:
        """The loop of the producer's thread."""
        self._client._manager.call_soon(self._end_records_in_time)
        super().run()

    def run_once(self) -> None:
        """One turn of that loop."""
        transactions = self._transaction_manager
        may_complete = transactions is not None and transactions.is_transactional() and not transactions.has_error()
        if not (self._running or may_complete or self._accumulator.has_incomplete):
            self._force_close = True
        super().run_once()

    async def _end_records_in_time(self) -> None:
        """Runs on the event loop, which this thread drives also where it waits for a broker to become ready."""
        manager, transactions = self._client._manager, self._transaction_manager
        while not manager.closed and not (transactions is not None and transactions.has_fatal_error()):
            now = time.monotonic()
            self._end_late_records(now)
            await manager._net.sleep(max(_PAUSE_S, self._late_at - now))

    def _end_late_records(self, now: float) -> None:
        records = self._accumulator
        in_flight = set(records.muted)
        records.reset_next_batch_expiry_time()
        waiting, sent = records.expired_batches(now=now), super()._get_expired_inflight_batches(now=now)
        for batch in waiting + sent:
            late = f"{batch.record_count} records for {batch.topic_partition} did not end within delivery_timeout_ms"
            is_sent = batch in sent or records.may_have(batch)
            error = (
                _doubted(KafkaTimeoutError(late)) if is_sent else KafkaTimeoutError(f"{late}: they were not written")
            )
            self._settle(batch, error, None)
        records.muted |= in_flight
        self._late_at = min(records.next_expiry_time_ms, now * 1000 + records.delivery_timeout_ms) / 1000

    def _send_producer_data(self, now: float | None = None) -> Any:
        """Sends what is due; returns for how many milliseconds nothing else will be."""
        now = time.monotonic() if now is None else now
        if now >= self._late_at:
            self._end_late_records(now)
        return super()._send_producer_data(now=now)

    def _get_expired_inflight_batches(self, now: float | None = None) -> list[Any]:
        """None: see _end_late_records."""
        return []

    def _produce_request(self, node_id: Any, acks: Any, timeout: Any, batches: list[Any]) -> Any:
        """The request with these batches."""
        self._repeats_before.update(dict.fromkeys(batches, self._repeats()))
        return super()._produce_request(node_id, acks, timeout, batches)

    @property
    def is_idempotent(self) -> bool:
        """Whether its records have sequences, by which a broker knows a repeat."""
        return self._transaction_manager is not None

    @property
    def has_in_flight(self) -> bool:
        """Whether a request with records has not ended."""
        return any(batch.final_state is None for queue in self._in_flight_batches.values() for _, batch in queue)

    def acknowledge(self, batch: Any, offset: int) -> None:
        """Completes a batch that a log has at an offset, of which no broker has told."""
        super()._complete_batch(batch, _PARTITION_RESPONSE(error_code=0, base_offset=offset, log_append_time_ms=-1))

    def _repeats(self) -> Any:
        """How often a Produce request was sent again below this layer, on the connection that had lost its response."""
        return self._client._manager.recovery_counters.of("requeued", "Produce")

    def _can_retry(self, batch: Any, error_cls: Any) -> bool:
        """Whether a batch that failed is sent again."""
        return (
            issubclass(error_cls, RetriableError)
            and batch.attempts < self.config["retries"]
            and not batch.has_reached_delivery_timeout(self._accumulator.delivery_timeout_ms)
        )

    def _handle_produce_response(self, node_id: Any, send_time: float, batches: list[Any], response: Any) -> None:
        """Ends a request that a broker has responded to."""
        with self._ending(batches):
            super()._handle_produce_response(node_id, send_time, batches, response)

    def _failed_produce(self, batches: list[Any], node_id: Any, error: BaseException) -> None:
        """Ends a request without a response."""
        with self._ending(batches):
            super()._failed_produce(batches, node_id, error)

    @contextmanager
    def _ending(self, batches: list[Any]) -> Iterator[None]:
        try:
            yield
        finally:
            self._accumulator.muted.difference_update(batch.topic_partition for batch in batches)

    def _complete_batch(self, batch: Any, partition_response: Any) -> None:
        """Completes a batch as a broker has responded, or has it sent again."""
        if batch.final_state is not None:
            return
        is_appended = partition_response.error_code in (0, DuplicateSequenceNumberError.errno)
        if is_appended and self.held is not None:
            self._maybe_remove_from_inflight_batches(batch)
            if (transactions := self._transaction_manager).producer_id_and_epoch.match(batch):
                transactions.update_last_acked_offset(
                    batch.topic_partition, partition_response.base_offset, batch.record_count
                )
            self.held.hold(batch, partition_response)
        else:
            super()._complete_batch(batch, partition_response)
        if not partition_response.error_code:
            self._learn(batch, partition_response)

    async def hold_no_longer(self, find: Find) -> None:
        """Has `acks="mirrored"` mean "all" from now on, also for what is held, if `find` finds it in the producer's cluster."""
        held, self.held = self.held, None
        if held is not None:
            await held.settle_found(find, GIVEN_UP, Doubts())

    def _learn(self, batch: Any, response: Any) -> None:
        """What a success tells besides.  To a repeat a broker tells the time of the append whoever gives times (UnifiedLog.scala)."""
        partition, last = batch.topic_partition, response.base_offset + batch.record_count - 1
        self.last_offsets[partition] = last  # also where it is less: the topic was created again
        if response.log_append_time_ms < 0:
            self.gives_times[partition.topic] = False
        elif not (batch.in_retry() or self._was_repeated(batch)):
            self.gives_times[partition.topic] = True

    def _was_repeated(self, batch: Any) -> bool:
        """Whether its request may have been sent again below this layer."""
        repeats = self._repeats()
        return bool(repeats != self._repeats_before.get(batch, repeats))

    def _dispatch_error(self, batch: Any, exception: BaseException, partition_response: Any) -> None:
        """Completes a batch that failed, or has it sent again."""
        doubtful = self._accumulator.may_be_written
        if partition_response is not None and self._was_repeated(batch):
            doubtful.add(batch)
        is_refused = _is_refused(exception, partition_response)
        # What a broker says that no repeat cures is a refusal of this attempt.
        is_silent = not is_refused and (partition_response is None or isinstance(exception, RetriableError))
        is_doubtful = self._accumulator.may_have(batch)
        if (is_silent or is_doubtful) and not self._can_retry(batch, type(exception)):
            exception = _doubted(exception)
        if not is_refused:
            doubtful.add(batch)
        self._settle(batch, exception, partition_response)
        is_lost = isinstance(exception, KafkaConnectionError) and not isinstance(exception, _SILENT)
        if is_lost and batch.attempts == 1 < self.config["retries"]:
            batch.last_attempt -= self.config["retry_backoff_ms"] / 1000

    def _settle(self, batch: Any, error: BaseException, partition_response: Any) -> None:
        if batch.final_state is not None:
            return
        try:
            super()._dispatch_error(batch, error, partition_response)
        except Exception as raised:
            log.exception("%s: handling a failed batch of %s failed", self, batch.topic_partition)
            records = self._accumulator
            if batch in records._incomplete.all() and batch not in records._batches[batch.topic_partition]:
                failed = KafkaError(f"{error}; handling this failed: {raised!r}")
                super()._dispatch_error(batch, failed, None)
