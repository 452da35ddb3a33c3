"""The transactions that copy one partition: its records and its rows of the offset map, all or nothing.

Laws:
A. Each transaction has its own epoch.  `take_over` gets one whoever has the transactional.id, and fences them; `renew` gets
   the next only as the holder of the last one (KIP-360), so a fenced writer cannot fence the others.  Late repeats of any
   request carry an old epoch, and are refused (KAFKA-17754).
B. A batch is sent once.  If its response does not come, or is an error, nothing is committed: the next takeover's
   InitProducerId aborts the transaction, with a marker of a higher epoch than any request still in flight (KIP-890).
C. The base offsets in one partition's responses grow by at least the batches' records; others are not believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import kafka.errors as Errors
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import OffsetMapError, OptionError, ProducerFencedError
from tolerant_client.mirror.batches.merge import DenseBatch
from tolerant_client.mirror.state.offset_map import MapRow, Run
from tolerant_client.records.record_batch import Record, encode_batch, read_header

_RENEWING = 3  # version of InitProducerId that carries the epoch it follows (KIP-360, Kafka 2.5)
_ROWS = 500  # rows of the map in one batch


class CopyTransaction(ProducerTransaction):
    """One partition's copier as a transactional producer; one transaction at a time."""

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
    ) -> None:
        super().__init__(cluster, transactional_id, timeout_ms)
        self._partition = partition
        self._map_partition = map_partition
        self._end = 0  # the target offset after the last response
        self._spans: deque[tuple[int, tuple[tuple[int, int], ...]]] = deque()  # of what is in flight, with its bytes
        self.runs: list[Run] = []  # what was appended and acknowledged in this transaction

    async def take_over(self) -> None:
        """Fences all other writers of the partition and aborts their transaction.

        Raises OptionError for brokers before 2.5.
        """
        await self._cluster.connect()
        if self._cluster.highest_version(InitProducerIdRequest) < _RENEWING:
            raise OptionError("Translated offsets need a target of Kafka 2.5 or newer (KIP-360)")
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
        self._records, self._rows = map(self._appends_to, (self._partition, self._map_partition))
        self._spans.clear()
        self.runs = []

    def _appends_to(self, partition: TopicPartition) -> StampedAppends:
        return StampedAppends(
            self._cluster,
            partition,
            self.producer_id,
            self.producer_epoch,
            transactional_id=self.transactional_id,
        )

    async def open(self, *, with_records: bool = True) -> None:
        """Adds the partitions: what is sent after this belongs to the transaction."""
        await self.add_partitions([self._partition, self._map_partition] if with_records else [self._map_partition])

    def send(self, node_id: int, dense: DenseBatch, held_bytes: int) -> None:
        """Sends a batch; once it is settled, `held_bytes` of memory are free."""
        header, batch, spans = dense
        self._records.send(node_id, header, batch)
        self._spans.append((held_bytes, spans))

    async def settle(self, most: int) -> int:
        """Settles responses until at most `most` batches are in flight; returns the bytes that are free.

        Raises Kafka's error, or ProducerFencedError, for a batch that was refused
        or got no response; OffsetMapError for a response that cannot be true.
        """
        freed = 0
        async for _, target in self._records.settled(most):
            held_bytes, spans = self._spans.popleft()
            freed += held_bytes
            if target < self._end:
                where = f"{self._partition.topic}-{self._partition.partition}"
                raise OffsetMapError(f"{where}: a batch was appended at {target}, the one before up to {self._end}")
            for source, count in spans:
                self.runs.append(Run(source, target, count))
                target += count
            self._end = target
        return freed

    async def write_rows(self, rows: Sequence[MapRow], now_ms: int) -> None:
        """Appends rows of the map to the transaction, and waits for the responses."""
        for some in chunks(rows, _ROWS):
            records = [Record(0, now_ms, row.key.encode(), row.encode()) for row in some]
            batch = memoryview(bytearray(encode_batch(records)))
            await self._rows.append(await self._cluster.leader(self._map_partition), read_header(batch), batch)


def is_fenced(error: BaseException) -> bool:
    """Whether another writer has taken over, or the coordinator has aborted a transaction that took too long."""
    return isinstance(error, (ProducerFencedError, Errors.InvalidProducerIdMappingError))
