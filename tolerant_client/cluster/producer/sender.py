"""The requests of a batch producer: leaders, requests in flight, and timers; on a Cluster's event loop.

Laws:
- A request takes one batch of every partition that has one (a broker accepts no more).
- `producer/partition.py` decides what a response means; the owner decides about a batch that is refused for its records.
- The first error ends the sending, and every later call raises it.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.produce import ProducedPartition
from tolerant_client.cluster.producer.acknowledged import find_acknowledged
from tolerant_client.cluster.producer.partition import (
    LOST,
    MAX_IN_FLIGHT,
    ProducerBatch,
    ProducerPartition,
    Verdict,
)
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import (
    DeliveryTimeoutError,
    OutcomeUnknownError,
    ProducerFencedError,
    UnsupportedSourceError,
)
from tolerant_client.stock.alarm import Alarm

_APPENDED = (0, Errors.DuplicateSequenceNumberError.errno)
_FENCED = (Errors.InvalidProducerEpochError.errno, Errors.ProducerFencedError.errno)
_LEADER_HAS_LOST = (
    ": its leader may have lost records that it had acknowledged (an unclean election, or a crash before they were on"
    " disk); what this producer wrote may not be complete, so write it again"
)
_UNKNOWN_TOPIC = Errors.UnknownTopicOrPartitionError.errno

Sent = list[tuple[ProducerPartition, ProducerBatch]]


@dataclass(frozen=True)
class ProducerSettings:
    """How to produce; bytes, ms and numbers, with the meaning of the Java producer's properties.

    `max_in_flight` counts batches of a partition (at most 5 with idempotence),
    `max_requests` requests to one broker.
    """

    acks: int = -1
    is_idempotent: bool = True
    max_in_flight: int = 5
    max_requests: int = 16
    max_request_bytes: int = 8 << 20
    max_record_bytes: int | None = None
    max_bytes_in_flight: int = 32 << 20
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    retries: int = 2**31 - 1


class Sender:
    """The requests of one producer id and epoch, (-1, -1) without idempotence, in `transaction` if there is one.

    `on_refused` gets a partition's first batch that was refused for its records, and the code; it must call `replace`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        on_refused: Callable[[ProducerPartition, ProducerBatch, int], None],
        producer_id: int = -1,
        producer_epoch: int = -1,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transaction = transaction
        self.bytes_in_flight = 0
        self.requests: Counter[int] = Counter()  # in flight, by node; has every node that was sent to since `start`
        self._cluster = cluster
        self._settings = settings
        self._on_refused = on_refused
        self._partitions: dict[TopicPartition, ProducerPartition] = {}
        self._ready: dict[TopicPartition, ProducerPartition] = {}
        self._unenrolled: list[TopicPartition] = []
        self._is_enrolling = False
        self._is_dispatching = False
        self._is_due = False
        self._error: BaseException | None = None
        self._waiter: Future | None = None
        self._alarm = Alarm(cluster.net, self._on_alarm)

    def start(self) -> None:
        """Expects nothing of the logs: what was appended before is settled."""
        self.requests = +self.requests
        for state in self._partitions.values():
            state.forget()

    @property
    def is_idle(self) -> bool:
        return all(state.is_idle for state in self._partitions.values())

    def add(self, partition: TopicPartition, batch: ProducerBatch) -> None:
        """Queues a batch; `dispatch` sends it."""
        state = self._partitions.get(partition)
        if state is None:
            window = (
                min(self._settings.max_in_flight, MAX_IN_FLIGHT)
                if self.producer_id >= 0
                else self._settings.max_in_flight
            )
            state = self._partitions[partition] = ProducerPartition(
                partition, self.producer_id, self.producer_epoch, window
            )
            if self.transaction is not None:
                state.is_enrolled = False
                self._unenrolled.append(partition)
        self.bytes_in_flight += len(batch.data)
        state.add(batch)
        self._ready[partition] = state

    def replace(self, state: ProducerPartition, parts: Sequence[ProducerBatch]) -> None:
        """Replaces the first batch of a partition with `parts`, perhaps none."""
        first = state.first
        assert first is not None
        state.replace_first(parts, self.deadline())
        self.bytes_in_flight += sum(len(part.data) for part in parts) - len(first.data)

    def deadline(self) -> float:
        """When a batch that is queued now has to be in its log."""
        return time.monotonic() + self._settings.delivery_timeout_ms / 1000

    async def wait(self, is_over: Callable[[], bool]) -> None:
        """Sends until `is_over`; raises the first error."""
        self.dispatch()
        while self._error is None and not is_over():
            self._waiter = Future()
            await self._waiter
        self.check()

    def check(self) -> None:
        """Raises the error that has ended the sending."""
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Ends the sending; the first error counts."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.is_done:
            waiter.success(None)

    # -- sending ---------------------------------------------------------------

    def dispatch(self) -> None:
        """Sends what can be sent; a request that is settled meanwhile has it check again afterwards, not recursively."""
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
            self._cluster.net.call_soon(self._enrol)
        now = time.monotonic()
        by_node: dict[int, list[ProducerPartition]] = {}
        for partition, state in list(self._ready.items()):
            if not state.may_send(now):
                if state.retry_at > now:
                    self._alarm.set(state.retry_at)
                else:
                    del self._ready[partition]
                continue
            node_id = self._cluster.manager.cluster.leader_for_partition(partition)
            if node_id is None or node_id == -1:
                self._without_leader(state, now)
            else:
                by_node.setdefault(node_id, []).append(state)
        for node_id, states in by_node.items():
            self._fill(node_id, states, now)

    def _fill(self, node_id: int, states: list[ProducerPartition], now: float) -> None:
        while states and self.requests[node_id] < self._settings.max_requests and self._error is None:
            sent: Sent = []
            size = 0
            left: list[ProducerPartition] = []
            for number, state in enumerate(states):
                first = state.first
                if first is not None and size and size + len(first.data) > self._settings.max_request_bytes:
                    left += states[number:]
                    break
                batch = state.send(self.transaction is not None)
                sent.append((state, batch))
                size += len(batch.data)
                left.append(state)
            self._send(node_id, sent)
            states = [state for state in left if state.may_send(now)]

    def _send(self, node_id: int, sent: Sent) -> None:
        self.requests[node_id] += 1
        future = self._cluster.produce(
            node_id,
            {state.partition: batch.data for state, batch in sent},
            self._settings.request_timeout_ms,
            acks=self._settings.acks,
            transactional_id=None if self.transaction is None else self.transaction.transactional_id,
        )
        future.add_callback(self._answered, node_id, sent)
        future.add_errback(self._lost, node_id, sent)

    def _without_leader(self, state: ProducerPartition, now: float) -> None:
        state.no_leader(now)
        self._alarm.set(state.retry_at)
        self._cluster.manager.cluster.request_update()
        batch = state.first
        if batch is not None and now > batch.deadline:
            self._timed_out(state, batch, "it has no leader")

    async def _enrol(self) -> None:
        partitions = self._unenrolled[:]
        try:
            if self.transaction is not None:
                await self.transaction.add_partitions(partitions)
            del self._unenrolled[: len(partitions)]
            for partition in partitions:
                self._partitions[partition].is_enrolled = True
                self._ready[partition] = self._partitions[partition]
        except Exception as error:
            self.fail(error)
        finally:
            self._is_enrolling = False
        self.dispatch()

    # -- responses -------------------------------------------------------------

    def _answered(self, node_id: int, sent: Sent, response: Any) -> None:
        self.requests[node_id] -= 1
        now = time.monotonic()
        found: Mapping[TopicPartition, ProducedPartition] = {p.partition: p for p in response or ()}
        for state, batch in sent:
            part = found.get(state.partition) or ProducedPartition(state.partition, 0, -1)  # acks=0
            self._settle(state, batch, part.error_code, part.base_offset, now)
        self._after_response()

    def _lost(self, node_id: int, sent: Sent, error: BaseException) -> None:
        self.requests[node_id] -= 1
        now = time.monotonic()
        if isinstance(
            error, (Errors.SaslAuthenticationFailedError, Errors.UnsupportedVersionError, UnsupportedSourceError)
        ):
            self.fail(error)
        if not isinstance(error, OutcomeUnknownError):
            self._cluster.manager.cluster.request_update()  # a connection ended: its broker may no longer lead
        for state, batch in sent:
            self._settle(state, batch, LOST, -1, now)
        self._after_response()

    def _settle(self, state: ProducerPartition, batch: ProducerBatch, code: int, base_offset: int, now: float) -> None:
        if code in _APPENDED:
            proven, verdict = state.appended(batch, base_offset, now)
            for each in proven:
                self.bytes_in_flight -= len(each.data)
        else:
            verdict = state.failed(batch, code, now)
        self._ready[state.partition] = state
        if verdict is not Verdict.NOTHING:
            self._trouble(state, verdict, now)

    def _trouble(self, state: ProducerPartition, verdict: Verdict, now: float) -> None:
        name = f"{state.partition.topic}-{state.partition.partition}"
        if verdict is Verdict.CONTRADICTED:
            self._cluster.net.call_soon(functools.partial(self._ask_log, state))
            return
        batch = state.first
        assert batch is not None
        code = state.last_code
        reason = "no response came" if code == LOST else Errors.for_code(code).__name__
        if verdict is Verdict.RECORDS:
            self._on_refused(state, batch, code)
        elif verdict is Verdict.FAILED and code in _FENCED and self.transaction is not None:
            self.fail(
                ProducerFencedError(
                    f"{name}: another producer with the same transactional.id has taken over, or the transaction took"
                    f" longer than transaction.timeout.ms ({reason})"
                )
            )
        elif verdict is Verdict.FAILED:
            remedy = _LEADER_HAS_LOST if code == Errors.OutOfOrderSequenceNumberError.errno else ""
            error = Errors.for_code(code)(f"{name} refuses what is written each time{remedy}")
            if isinstance(error, Errors.AuthorizationError):
                error = self._cluster.not_allowed(error, f"writing to topic {state.partition.topic}")
            self.fail(error)
        elif batch.sends > self._settings.retries:
            self.fail(
                DeliveryTimeoutError(f"{name}: a batch was sent {batch.sends} times, as `retries` allows ({reason})")
            )
        elif now > batch.deadline:
            self._timed_out(state, batch, reason)
        else:
            if code == _UNKNOWN_TOPIC or Errors.for_code(code).invalid_metadata:
                self._cluster.manager.cluster.request_update()
            self._alarm.set(state.retry_at)

    async def _ask_log(self, state: ProducerPartition) -> None:
        """Reads the log to resolve a contradiction (law G); what is not proven is sent again, within its deadline."""
        assert state.sought is not None
        try:
            state.found(
                await find_acknowledged(
                    self._cluster, state.partition, state.sought, self._settings.delivery_timeout_ms
                )
            )
        except Exception as error:
            self.fail(error)
            return
        self._ready[state.partition] = state
        self._trouble(state, Verdict.AGAIN, time.monotonic())
        self._after_response()

    def _timed_out(self, state: ProducerPartition, batch: ProducerBatch, reason: str) -> None:
        name = f"{state.partition.topic}-{state.partition.partition}"
        self.fail(
            DeliveryTimeoutError(
                f"{name}: {batch.record_count} records were not acknowledged within delivery.timeout.ms,"
                f" {self._settings.delivery_timeout_ms} ({reason}); they may have been written"
            )
        )

    def _after_response(self) -> None:
        self.dispatch()
        self._wake()

    def _on_alarm(self) -> None:
        self.dispatch()
        self._wake()
