"""One transaction of a batch producer, and the offsets that were committed in such transactions.

Laws:
- A transaction has its own epoch: `begin` bumps it, which ends or fences whoever
  had the transactional.id before.  So every request here may be sent again, even
  EndTxn: its epoch has no next transaction that a repeat could end (KAFKA-17754).
- After `commit` has returned, the transaction is committed; where it raises, it
  may be, and only the committed offsets tell (KIP-98, KIP-447).
- A prepared transaction (it is open, and everything produced in it is
  acknowledged) is committed by whoever holds its id, producer id and epoch; a
  repeat of that is harmless until the id begins another one.
- An aborted transaction is ended with a marker of the next epoch, never by
  EndTxn with its own: brokers without transactions v2 append a Produce that
  arrives after such a marker, and the next transaction's commit includes it
  (KIP-890).

Only versions before transactions v2 (KIP-890) are used: with them an epoch lasts
for the whole transaction, on brokers since 2.5.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import kafka.errors as Errors
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import by_topic, raise_for
from tolerant_client.cluster.admin.coordinators import GROUP, TRANSACTION, Coordinators
from tolerant_client.cluster.admin.groups import CommittedOffset, read_offsets, stable_offsets_request
from tolerant_client.cluster.admin.transactions import init_producer_id_request
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, ProducerFencedError

_EPOCH_COMPARED = 3  # the first InitProducerId that compares the epoch (KIP-360, Kafka 2.5)
_FENCED = (Errors.InvalidProducerEpochError.errno, Errors.ProducerFencedError.errno)

_T = TypeVar("_T")


class PreparedTransaction(NamedTuple):
    """An open transaction with all its records acknowledged: what is needed to end it elsewhere."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def raise_for_code(code: int, what: str) -> None:
    """Raises Kafka's error for a code other than 0."""
    if code in _FENCED:
        raise ProducerFencedError(
            f"{what}: another producer with the same transactional.id has taken over, or the transaction took longer"
            " than transaction.timeout.ms"
        )
    raise_for(code, what)


class ProducerTransaction:
    """A transaction of `transactional_id`; a broker ends it by itself after `timeout_ms`.

    With `prepared` it was begun elsewhere: `commit` commits it, and `begin` aborts it.
    """

    _too_long = "kafka.transaction.timeout.ms is {}, more than the brokers' transaction.max.timeout.ms"

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        timeout_ms: int,
        coordinators: Coordinators | None = None,
        prepared: PreparedTransaction | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = prepared.producer_id if prepared else -1
        self.producer_epoch = prepared.producer_epoch if prepared else -1
        self.partition: TopicPartition | None = None  # the first one that was added
        self.opened_at: float | None = None  # by this machine's clock, in s; the coordinator's count begins later
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._coordinators = coordinators or Coordinators(cluster)

    @property
    def prepared(self) -> PreparedTransaction:
        """What is needed to end it elsewhere, once everything produced is acknowledged."""
        return PreparedTransaction(self.transactional_id, self.producer_id, self.producer_epoch)

    async def begin(self) -> None:
        """Gets a producer id and a new epoch; aborts a transaction that was open, completes one that was ending.

        Raises OptionError where the brokers allow no transaction as long as `timeout_ms`.
        """
        self.producer_id, self.producer_epoch = await self._next_epoch("beginning a transaction")

    async def begin_next(self) -> None:
        """Begins another one, with a new epoch, unless another producer has had the transactional.id since `begin`.

        In that case raises ProducerFencedError: the coordinator compares the epoch (KIP-360, Kafka 2.5).
        """
        mine = self.producer_id, self.producer_epoch
        self.producer_id, self.producer_epoch = await self._next_epoch("beginning the next transaction", *mine)

    async def _next_epoch(self, what: str, producer_id: int = -1, producer_epoch: int = -1) -> tuple[int, int]:
        def read(response: Any) -> tuple[int, int]:
            if response.error_code == Errors.InvalidTransactionTimeoutError.errno:
                raise OptionError(self._too_long.format(self._timeout_ms))
            raise_for_code(response.error_code, f"InitProducerId of {self.transactional_id!r}")
            return response.producer_id, response.producer_epoch

        return await self._coordinators.ask(
            TRANSACTION,
            self.transactional_id,
            f"{what} of {self.transactional_id!r}",
            lambda: init_producer_id_request(
                self.transactional_id,
                self._timeout_ms,
                producer_id,
                producer_epoch,
                min_version=0 if producer_id < 0 else _EPOCH_COMPARED,
            ),
            read,
        )

    async def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Adds partitions; the first one opens the transaction.

        For partitions that it already has, the coordinator only compares the epoch.  Raises ProducerFencedError.
        """
        wanted = by_topic(self._cluster, partitions)
        self.opened_at = self.opened_at or time.time()
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def read(response: Any) -> None:
            topics = response.results_by_topic_v3_and_below
            told = [(part.partition_error_code, topic.name) for topic in topics for part in topic.results_by_partition]
            # A partition that is not allowed has the others refused as OPERATION_NOT_ATTEMPTED.
            told.sort(key=lambda each: each[0] == Errors.OperationNotAttemptedError.errno)
            first = next((code for code, _ in told if code), 0)
            named = dict.fromkeys(name for code, name in told if code == first)
            raise_for_code(first, f"adding topic {', '.join(named)} to {self.transactional_id!r}")

        await self._ask(
            "adding partitions to a transaction",
            lambda: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.producer_epoch,
                v3_and_below_topics=[topic(name=name, partitions=numbers) for name, numbers in wanted.items()],
                max_version=3,
            ),
            read,
        )
        self.partition = self.partition or partitions[0]

    async def commit_offset(self, group: str, partitions: Iterable[TopicPartition], committed: CommittedOffset) -> None:
        """Adds an offset of a group, for each partition, to the transaction: committed with it, or not at all."""
        await self._add_offsets(group)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics = [
            topic(
                name=partition.topic,
                partitions=[
                    topic.TxnOffsetCommitRequestPartition(
                        partition_index=partition.partition,
                        committed_offset=committed.offset,
                        committed_leader_epoch=-1,
                        committed_metadata=committed.metadata,
                    )
                ],
            )
            for partition in partitions
        ]

        def read(response: Any) -> None:
            for answered in response.topics:
                for part in answered.partitions:
                    raise_for_code(
                        part.error_code, f"committing an offset of topic {answered.name} for group {group!r}"
                    )

        await self._coordinators.ask(
            GROUP,
            group,
            "committing offsets in a transaction",
            lambda: TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=topics,
                max_version=3,
            ),
            read,
        )

    async def commit(self, patience_ms: int | None = None) -> None:
        """Commits; everything produced must have been acknowledged before.  `patience_ms` is Cluster.insist's."""
        await self._end_txn("committing a transaction", is_committed=True, patience_ms=patience_ms)

    async def _end_txn(self, what: str, *, is_committed: bool, patience_ms: int | None = None) -> None:
        await self._ask(
            what,
            lambda: EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=is_committed,
                max_version=3,
            ),
            lambda response: raise_for_code(response.error_code, f"ending a transaction of {self.transactional_id!r}"),
            patience_ms,
        )

    async def abort(self) -> None:
        """Aborts; read_committed consumers never see what was produced, even what is still on its way.

        This object keeps its epoch, which is fenced from then on.  Where another
        producer has taken over, raises ProducerFencedError and leaves that
        producer's transaction alone.
        """
        # InitProducerId would abort anybody's transaction: it compares no epoch (TransactionCoordinator.scala).
        # AddOffsetsToTxn does; after a completed commit it begins an empty transaction, which is aborted at once.
        await self._add_offsets(self.transactional_id)
        await self._next_epoch("aborting a transaction")

    async def _add_offsets(self, group: str) -> None:
        await self._ask(
            "adding offsets to a transaction",
            lambda: AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                group_id=group,
                max_version=3,
            ),
            lambda response: raise_for_code(
                response.error_code, f"adding group {group!r} to {self.transactional_id!r}"
            ),
        )

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed, for these partitions and any others; waits for transactions that are being ended.

        All partitions are requested too, for offsets that were committed with a
        topic that is no longer written to.  That alone is not enough: a broker that
        is asked for all omits partitions that have nothing but a pending commit.
        Raises OptionError on brokers before Kafka 2.5, which cannot wait.
        """

        def read(response: Any) -> dict[TopicPartition, CommittedOffset]:
            raise_for_code(response.error_code, f"reading the offsets of group {group!r}")
            found, codes = read_offsets(response)
            for partition, code in codes.items():
                if code != Errors.UnknownTopicOrPartitionError.errno:  # nothing can be committed for it
                    raise_for_code(code, f"reading the offset of topic {partition.topic} for group {group!r}")
            return found

        async def ask(named: Sequence[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
            what = "reading committed offsets"
            return await self._coordinators.ask(GROUP, group, what, lambda: stable_offsets_request(group, named), read)

        try:
            return {**await ask(None), **await ask(partitions)}
        except Errors.UnsupportedVersionError as error:
            raise OptionError("exactlyOnce needs brokers of Kafka 2.5 or newer (KIP-447)") from error

    def _ask(
        self, what: str, request: Callable[[], Any], read: Callable[[Any], _T], patience_ms: int | None = None
    ) -> Awaitable[_T]:
        """Sends a request of this epoch to the coordinator."""
        return self._coordinators.ask(TRANSACTION, self.transactional_id, what, request, read, patience_ms)
