"""One transaction of a batch producer, and the offsets that were committed in such ones.

Laws:
- A transaction has an epoch of its own: `begin` bumps it, which ends or fences
  whoever had the transactional.id before.  So every request here may be sent
  again, EndTxn too: there is no next transaction of its epoch that a repeat
  could end (KAFKA-17754).
- After `commit` returned, the transaction is committed; where it
  raises, it may be, and only the committed offsets tell (KIP-98, KIP-447).
- A transaction that was prepared (everything produced in it is acknowledged,
  and it is open) is committed by whoever holds its three numbers; a repeat of
  that is harmless until the id begins another one.
- An aborted transaction is ended with a marker of the next epoch, never by
  EndTxn with its own: brokers without transactions v2 append a Produce that
  comes behind such a marker, and the next transaction's commit takes it for
  its own (KIP-890).

Versions before transactions v2 (KIP-890) are used throughout: with them an
epoch lasts for the whole transaction, on brokers since 2.5.
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

DECISION_GROUPS = "tolerant-sink-"  # groups of the Spark sink with exactlyOnce: their offsets number micro-batches
_EPOCH_COMPARED = 3  # InitProducerId that looks at the epoch (KIP-360, Kafka 2.5)
_FENCED = (Errors.InvalidProducerEpochError.errno, Errors.ProducerFencedError.errno)

_T = TypeVar("_T")


class PreparedTransaction(NamedTuple):
    """A transaction that is open with all its records acknowledged: what it takes to end it elsewhere."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def raise_for_code(code: int, what: str) -> None:
    """Raises Kafka's error of a code, if it is one."""
    if code in _FENCED:
        raise ProducerFencedError(
            f"{what}: another producer with the same transactional.id has taken over, or the transaction took longer"
            " than transaction.timeout.ms"
        )
    raise_for(code, what)


class ProducerTransaction:
    """A transaction of `transactional_id`, which a broker ends by itself after `timeout_ms`.

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
        self.opened_at: float | None = None  # by this machine's clock, in s: the coordinator counts from later on
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._coordinators = coordinators or Coordinators(cluster)

    @property
    def prepared(self) -> PreparedTransaction:
        """What it takes to end it elsewhere, once everything produced is acknowledged."""
        return PreparedTransaction(self.transactional_id, self.producer_id, self.producer_epoch)

    async def begin(self) -> None:
        """Gets a producer id and a new epoch; a transaction that was open is aborted, one that was ending is ended.

        Raises OptionError where the brokers allow no transaction as long as `timeout_ms`.
        """
        self.producer_id, self.producer_epoch = await self._next_epoch("beginning a transaction")

    async def begin_next(self) -> None:
        """Begins another one, with a new epoch, unless another producer has had the transactional.id since `begin`.

        Raises ProducerFencedError then: the coordinator compares the epoch (KIP-360, Kafka 2.5).
        """
        mine = self.producer_id, self.producer_epoch
        self.producer_id, self.producer_epoch = await self._next_epoch("beginning the next transaction", *mine)

    async def _next_epoch(self, what: str, producer_id: int = -1, producer_epoch: int = -1) -> tuple[int, int]:
        def read(answer: Any) -> tuple[int, int]:
            if answer.error_code == Errors.InvalidTransactionTimeoutError.errno:
                raise OptionError(self._too_long.format(self._timeout_ms))
            raise_for_code(answer.error_code, f"InitProducerId of {self.transactional_id!r}")
            return answer.producer_id, answer.producer_epoch

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
        """Adds partitions: the transaction is open from the first one on.

        For partitions that it has, the coordinator does no more than compare the epoch.  Raises ProducerFencedError.
        """
        wanted = by_topic(self._cluster, partitions)
        self.opened_at = self.opened_at or time.time()
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        def read(answer: Any) -> None:
            topics = answer.results_by_topic_v3_and_below
            codes = [part.partition_error_code for topic in topics for part in topic.results_by_partition]
            # One that is not allowed has the others refused as OPERATION_NOT_ATTEMPTED.
            codes.sort(key=lambda code: code == Errors.OperationNotAttemptedError.errno)
            raise_for_code(next(filter(None, codes), 0), f"adding {', '.join(wanted)} to {self.transactional_id!r}")

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
        """Makes an offset of a group, of each partition, part of the transaction: committed with it, or not at all."""
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

        def read(answer: Any) -> None:
            for answered in answer.topics:
                for part in answered.partitions:
                    raise_for_code(part.error_code, f"committing an offset of {answered.name} for group {group!r}")

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
            lambda answer: raise_for_code(answer.error_code, f"ending a transaction of {self.transactional_id!r}"),
            patience_ms,
        )

    async def abort(self) -> None:
        """Aborts; nobody with read_committed ever sees what was produced, even what is still on its way.

        This object keeps its epoch, which is fenced from then on.  Raises
        ProducerFencedError, and leaves the transaction of the other producer
        alone, where one has taken over.
        """
        # InitProducerId would abort anybody's transaction: it looks at no epoch (TransactionCoordinator.scala).  This
        # one does; after a commit that was done it begins an empty transaction, which is aborted at once.
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
            lambda answer: raise_for_code(answer.error_code, f"adding group {group!r} to {self.transactional_id!r}"),
        )

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed, for these partitions or any; waits for transactions that are being ended.

        It is asked for all, too, for what was committed beside a topic that is
        written to no more.  That alone would not do: a broker that is asked for
        all passes over those of which nothing but a pending commit is there.
        Raises OptionError on brokers before Kafka 2.5, which cannot wait.
        """

        def read(answer: Any) -> dict[TopicPartition, CommittedOffset]:
            raise_for_code(answer.error_code, f"reading the offsets of group {group!r}")
            found, codes = read_offsets(answer)
            for partition, code in codes.items():
                if code != Errors.UnknownTopicOrPartitionError.errno:  # nothing can be committed for it
                    raise_for_code(code, f"reading the offset of {partition.topic} for group {group!r}")
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
        """Asks the coordinator for something in this epoch."""
        return self._coordinators.ask(TRANSACTION, self.transactional_id, what, request, read, patience_ms)
