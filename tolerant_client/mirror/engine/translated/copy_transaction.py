"""The transactions that copy one partition: its records and its rows of the offset map, all or nothing.

Laws:
A. Each transaction has its own epoch.  `take_over` gets one whoever has the transactional.id, and fences them; `renew` gets
   the next only as the holder of the last one (KIP-360), so a fenced writer cannot fence the others.  Late repeats of any
   request carry an old epoch, and are refused (KAFKA-17754).
B. A batch is sent once.  If its response does not come, or is an error, nothing is committed: the next takeover's
   InitProducerId aborts the transaction, with a marker of a higher epoch than any request still in flight (KIP-890).
C. The base offsets in one partition's responses grow by at least the batches' records; others are not believed.
D. The first batch goes alone: a broker that does not know the epoch accepts any sequence.  So what is in flight after a
   refused batch is refused, too, and what was sent before it may be committed.
   The transaction is opened in that batch's turn (ProduceTurns, Law D): the coordinator aborts it after a time.  Directly before that
   `may_open` is asked, which raises KafkaError if the target's log may be another one than was read.
E. A response with a time is no copy (M6): each batch is sent once, so the broker gave that time to its records.
F. What ends a transaction waits for no quota: a batch is throttled after it was appended, for longer than a transaction lasts
   if the quota is low for its size.  Only batches wait for that (connections.py); a row of the map that is sent again has the
   sequence of the first time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import kafka.errors as Errors
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import NO_APPEND_TIME
from tolerant_client.cluster.produce_window import ProduceTurns
from tolerant_client.cluster.producer.partition import is_for_its_records
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import OffsetMapError, OptionError, ProducerFencedError
from tolerant_client.mirror.engine.translated.fetched_queue import Outgoing
from tolerant_client.mirror.engine.troubles import times_would_change
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import MapRow, Run
from tolerant_client.records.record_batch import Record, encode_batch, read_header

_RENEWING = 3  # version of InitProducerId that carries the epoch it follows (KIP-360, Kafka 2.5)
_ROWS = 500  # rows of the map in one batch


async def require_renewing(target: Cluster) -> None:
    """Raises OptionError for brokers before 2.5, whose transactions cannot follow each other without a new producer."""
    await target.connect()
    if target.highest_version(InitProducerIdRequest) < _RENEWING:
        raise OptionError("Translated offsets need a target of Kafka 2.5 or newer (KIP-360)")


class CopyTransaction(ProducerTransaction):
    """One partition's copier as a transactional producer; one transaction at a time.

    `turns` are those of all partitions at a node; `may_send` is called directly before each batch, and raises KafkaError once
    nothing more may be sent.
    """

    _too_long = (
        "Records are copied in transactions of {} ms, more than the target's transaction.max.timeout.ms; raise that"
    )

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        partition: TopicPartition,
        map_partition: TopicPartition,
        timeout_ms: int,
        turns: Callable[[int], ProduceTurns],
        may_send: Callable[[], None],
        may_open: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cluster, transactional_id, timeout_ms)
        self._partition = partition
        self._map_partition = map_partition
        self._turns = turns
        self._waits_at: ProduceTurns | None = None
        self._may_send = may_send
        self._may_open = may_open
        self._clock = clock
        self._end = 0  # the target offset after the last response
        self._sent: deque[Outgoing] = deque()  # what is in flight
        self.began_at = float("inf")  # by the clock; until then it is not open
        self.runs: list[Run] = []  # what was appended and acknowledged in this transaction
        self.bytes = 0  # of that, as it was sent
        self.taken_bytes = 0  # of what was sent, as it was fetched

    async def take_over(self) -> None:
        """Fences all other writers of the partition and aborts their transaction.

        Raises OptionError for brokers before 2.5.
        """
        await require_renewing(self._cluster)
        self._end = 0
        await self.begin()
        self._start_over()

    async def renew(self) -> None:
        """Gets an epoch for the next transaction, once the markers of the last one are written.

        Raises ProducerFencedError if another writer has taken over.
        """
        await self.begin_next()
        self._start_over()

    def _start_over(self) -> None:
        self._records = self._appends_to(self._partition)
        self._rows = self._appends_to(self._map_partition, is_soon=True)  # law F
        self._sent.clear()
        self.began_at = float("inf")
        self.runs = []
        self.bytes = self.taken_bytes = 0

    def _appends_to(self, partition: TopicPartition, *, is_soon: bool = False) -> StampedAppends:
        return StampedAppends(
            self._cluster,
            partition,
            self.producer_id,
            self.producer_epoch,
            transactional_id=self.transactional_id,
            may_send=self._may_send,
            is_soon=is_soon,
        )

    async def open(self, *, with_records: bool = True) -> None:
        """Adds the partitions: what is sent after this belongs to the transaction."""
        if with_records:
            await self._may_open()
        self._may_send()
        self.began_at = self._clock()
        await self.add_partitions([self._partition, self._map_partition] if with_records else [self._map_partition])

    @property
    def is_open(self) -> bool:
        return self.began_at < float("inf")

    async def send(self, node_id: int, outgoing: Outgoing, within_s: float) -> bool:
        """Sends a batch in its turn, the first one after it has opened the transaction.

        Returns whether that came `within_s`, and was not given up.  Once the batch is settled, its `held_bytes` of memory are free.
        """
        header, batch, _ = outgoing.batch
        self._waits_at = turns = self._turns(node_id)
        is_sent = await turns.send(
            self,
            header.size,
            lambda: self._records.send(node_id, header, batch),
            prepare=None if self.is_open else self.open,
            within_s=within_s,
        )
        if is_sent:
            self._sent.append(outgoing)
            self.taken_bytes += outgoing.held_bytes
        return is_sent

    @property
    def throttled_until(self) -> float:
        """When the last throttle ended, or will, of the node that got the last batch: no time of trouble (by the clock)."""
        return float("-inf") if self._waits_at is None else self._waits_at.window.throttled_until

    def give_up_turn(self) -> None:
        """Has `send` return at once if its turn has not come."""
        if self._waits_at is not None:
            self._waits_at.give_up(self)

    async def settle(self, most: int) -> int:
        """Settles responses until at most `most` batches are in flight; returns the bytes that are free.

        Raises Kafka's error, or ProducerFencedError, for a batch that was refused
        or got no response; OffsetMapError for a response that cannot be true; PartitionRefusedError for Law E.
        """
        freed, where = 0, f"{self._partition.topic}-{self._partition.partition}"
        async for header, part in self._records.settled(most):
            if part.log_append_time != NO_APPEND_TIME:
                raise times_would_change(where)
            outgoing, target = self._sent.popleft(), part.base_offset
            freed += outgoing.held_bytes
            self.bytes += header.size
            if target < self._end:
                raise OffsetMapError(f"{where}: a batch was appended at {target}, the one before up to {self._end}")
            for source, count in outgoing.batch.spans:
                self.runs.append(Run(source, target, count))
                target += count
            self._end = target
        return freed

    def refused(self, error: Errors.BrokerResponseError) -> Outgoing | None:
        """The batch that was refused for its records with this error of `settle`."""
        return self._sent[0] if self._sent and is_for_its_records(error.errno) else None

    async def may_commit_rest(self) -> bool:
        """Whether something was sent before the refused batch, and nothing after it was appended."""
        return bool(self.runs) and await self._records.refused_all()

    async def write_rows(self, rows: Sequence[MapRow], now_ms: int) -> None:
        """Appends rows of the map to the transaction, and waits for the responses."""
        for some in chunks(rows, _ROWS):
            records = [Record(0, now_ms, row.key.encode(), row.encode()) for row in some]
            batch = memoryview(bytearray(encode_batch(records)))
            await self._rows.append(await self._cluster.leader(self._map_partition), read_header(batch), batch)


def reason_of(error: Errors.KafkaError, target: Cluster, link: str, partition: TopicPartition) -> str:
    """Why nothing moves; a transaction ends with a marker in each of its partitions, and one without a leader takes none."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, Errors.ConcurrentTransactionsError):
        return text
    written = (partition, map_partition(link, partition))
    away = [f"{p.topic}-{p.partition}" for p in written if target.known_leader(p) is None]
    return (
        f"{' and '.join(away)} of the target has no leader, so the last transaction cannot end ({text})"
        if away
        else text
    )


def is_fenced(error: BaseException) -> bool:
    """Whether another writer has taken over, or the coordinator has aborted a transaction that took too long."""
    return isinstance(error, (ProducerFencedError, Errors.InvalidProducerIdMappingError))
