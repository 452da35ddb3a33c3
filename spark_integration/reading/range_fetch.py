"""One range of one partition, fetched as record batches up to its end, whatever happens meanwhile.

Laws:
- While the caller works on one response the next one is on its way, and no other.
- The position only moves over what was received and checked, or over what two
  responses of the broker agree is gone (docs/incidents.md 2).
- OFFSET_OUT_OF_RANGE is never believed by itself: ListOffsets decides.
- Records of another topic with the same name are never taken: a fetch is for the topic with the range's id, if it has one.
- Without progress for `poll_timeout_ms` it ends with an error, never silently.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Final, NoReturn

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import EARLIEST, LAST_STABLE, LATEST, OffsetRange
from spark_integration.reading.options import ReadOptions
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.cluster.partition_fetch import is_local
from tolerant_client.cluster.patience import Backoff, Belief, Patience
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    OptionError,
    RecordBatchError,
    UnsupportedSourceError,
)
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import BatchHeader
from tolerant_client.records.record_sets import iter_record_sets

log = logging.getLogger(__name__)

MAX_BYTES: Final = 8 * 1024 * 1024
# Shares of maxBytesInFlight: the current response, the next one, and both again as decoded records.
BYTES_SHARES: Final = 4
# The requested records exist, so a response comes at once, and a lost one is noticed sooner with a short wait;
# a broker takes longer for records in remote storage (KIP-405).
MAX_WAIT_MS: Final = 10
REMOTE_WAIT_MS: Final = 500
# Seconds that the caller may take for one response: a fetch sent ahead would be overdue before it is read.
SLOW: Final = 5.0

_OUT_OF_RANGE: Final = 1
# A report is believed after several in a row, without anything else between.
_BACKOFF: Final = Backoff(0.05)

Batches = list[tuple[BatchHeader, memoryview]]


class RangeFetch:
    """The state of fetching one range; `position` is the next offset to fetch."""

    def __init__(self, cluster: Cluster, wanted: OffsetRange, options: ReadOptions) -> None:
        self._cluster = cluster
        self._range = wanted
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._options = options
        self._doubts = Belief()
        self._why = ""  # what the last attempt found instead of records
        self._is_stale = False  # an attempt has failed since the last lookup of the leader
        self._max_wait_ms = MAX_WAIT_MS
        self._max_bytes = min(MAX_BYTES, options.max_bytes_in_flight // BYTES_SHARES)
        self._ahead: Future | None = None  # the response for `position`, if the request was already sent
        self._given_at = time.monotonic()
        self.position = wanted.from_offset
        self.first_wanted = wanted.from_offset  # batches may hold records before it, also if the log starts later now

    @property
    def is_done(self) -> bool:
        return self.position >= self._range.until_offset

    async def next_batches(self) -> Batches:
        """The batches of the next response that moves the position; possibly none of them counts.

        The views belong to the caller.  Control batches are included.
        """
        started = time.monotonic()
        is_slow = started - self._given_at > SLOW
        patience = Patience(self._options.poll_timeout_ms / 1000, _BACKOFF)
        while not self.is_done:
            before = self.position
            try:
                batches = await self._attempt()
            except (DataLossError, OptionError, UnsupportedSourceError):
                raise
            except (kafka_errors.KafkaError, ValueError) as error:
                self._give_up_if_lasting(error)
            else:
                if self.position > before:
                    self._doubts.forget()
                    self._max_wait_ms = MAX_WAIT_MS
                    if not is_slow:
                        await self._ask_ahead()
                    self._given_at = time.monotonic()
                    return batches
            if patience.is_over:
                raise ClusterUnreachableError(
                    f"{self._name} could not be read from offset {self.position} for"
                    f" {self._options.poll_timeout_ms} ms ({self._why});"
                    " if the brokers are only slow, raise kafkaConsumer.pollTimeoutMs"
                )
            await self._cluster.net.sleep(patience.pause_s())
        return []

    def _give_up_if_lasting(self, error: Exception) -> None:
        self._is_stale = True
        self._why = f"{type(error).__name__}: {error}"
        is_lasting = self._doubts.hear(self._why) and not getattr(error, "retriable", False)
        if not is_lasting or isinstance(error, ClusterUnreachableError):
            return
        if isinstance(error, RecordBatchError):
            raise damaged(self._partition, error) from error
        if isinstance(error, kafka_errors.AuthorizationError) and error.__cause__ is None:
            raise self._cluster.not_allowed(error, f"reading topic {self._partition.topic}") from error
        raise error

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.partition}"

    async def _attempt(self) -> Batches:
        if self._is_stale and not await self._is_there():
            return []
        ahead, self._ahead = self._ahead, None
        response: FetchedPartition | None = await (ahead if ahead is not None else self._fetch())
        if response is None:
            self._why = "responses without this partition, as a broker sends them under a quota"
        elif response.error_code == _OUT_OF_RANGE:
            await self._out_of_range()
        elif response.error_code:
            raise kafka_errors.for_code(response.error_code)(self._name)
        elif len(response.records):
            return self._accept(response)
        else:
            await self._nothing(response)
        return []

    async def _is_there(self) -> bool:
        """Looks the leader up again; a partition that is missing three times in a row is lost."""
        topic, number = self._partition
        known = self._range.topic_id
        if number not in (await self._cluster.partitions([topic])).get(topic, ()):
            self._why = "it does not exist any more"
        elif known is not None and (now := self._cluster.topic_ids.get(topic, known)) != known:
            self._why = f"its topic was deleted and created again (its id was {known} and is {now})"
        else:
            await self._cluster.refresh()
            self._is_stale = False
            return True
        if self._doubts.hear(self._why):
            self._lost(self._range.until_offset, self._why)
        return False

    async def _fetch(self) -> FetchedPartition | None:
        """Fetches from the topic with the range's id: brokers since Kafka 3.1 are asked by id (KIP-516), others by name.

        Of those others, the leader that has responded is then asked for the topic's id: it never returns to an earlier one.
        """
        cluster, topic, known = self._cluster, self._range.topic, self._range.topic_id
        topic_id = None if known is None else uuid.UUID(bytes=base64.urlsafe_b64decode(f"{known}=="))
        await cluster.connect()
        node = await cluster.leader(self._partition)

        async def fetch(topic_ids: Mapping[str, uuid.UUID] | None = None) -> FetchedPartition | None:
            fetched = await cluster.fetch(
                node,
                {self._partition: self.position},
                max_wait_ms=self._max_wait_ms,
                max_bytes=self._max_bytes,
                partition_max_bytes=self._max_bytes,
                isolation_level=self._options.isolation_level,
                topic_ids=topic_ids,
            )
            return next((part for part in fetched if part.partition == self._partition), None)

        if topic_id is None:
            return await fetch()
        try:
            return await fetch({topic: topic_id})
        except kafka_errors.UnsupportedVersionError:
            found = await fetch()
        told = await cluster.send(metadata_request([topic]), node)
        if topic_id not in {described.topic_id for described in told.topics}:
            raise kafka_errors.UnknownTopicIdError(f"topic {topic} with the id {known}")
        return found

    async def _ask_ahead(self) -> None:
        """Sends the next fetch; its response stays in the socket until it is needed."""
        if not self.is_done:
            net = self._cluster.net
            self._ahead = net.call_soon_with_future(self._fetch)
            await net.sleep(0)  # lets it reach the socket

    def _accept(self, response: FetchedPartition) -> Batches:
        batches: Batches = []
        position = self.position
        for header, batch in iter_record_sets(response.records, from_offset=position):
            # A fetch starts with the batch that contains the position, so the first
            # one may start before it, and compaction may have left a gap before it.
            if header.next_offset <= position:
                continue
            if header.base_offset >= self._range.until_offset:
                position = self._range.until_offset
                break
            batches.append((header, batch))
            position = header.next_offset
            if position >= self._range.until_offset:
                break  # what follows is not even checked
        if position == self.position:
            raise RecordBatchError(f"{len(response.records)} bytes without a whole batch", self.position)
        if self._options.isolation_level:
            aborted = AbortedTransactions(response.aborted)
            batches = [(header, batch) for header, batch in batches if not aborted.cover(header, batch)]
        self.position = position
        return batches

    async def _nothing(self, response: FetchedPartition) -> None:
        end, what = response.high_watermark, "the log ends at"
        if self._options.isolation_level and response.last_stable_offset < end:
            end, what = response.last_stable_offset, f"{LAST_STABLE} is"
        self._max_wait_ms = REMOTE_WAIT_MS
        self._why = f"no records at offset {self.position}, and {what} {end}"
        if end < self._range.until_offset:
            if self._doubts.hear(self._why):
                await self._log_ends_before()
        elif self._doubts.hear(f"no records at offset {self.position}") and await self._is_local():  # others may write
            # The broker has offsets up there but no record from here on: compacted away.
            self.position = self._range.until_offset

    async def _is_local(self) -> bool:
        """Whether the broker has the position on its own disks: if not, "nothing" may mean "not yet" (KIP-405)."""
        if await is_local(self._cluster, self._partition, self.position):
            return True
        self._why = f"no records at offset {self.position}, which is in remote storage"
        return False

    async def _log_ends_before(self) -> None:
        # A new leader learns its high watermark late, so only the log's end counts.
        latest = await self._offset(LATEST)
        if latest > self.position:
            self._doubts.forget()  # more has arrived meanwhile
        elif latest < self._range.until_offset:
            self._lost(latest, f"the log ends at {latest}")

    async def _out_of_range(self) -> None:
        earliest, latest = await self._offset(EARLIEST), await self._offset(LATEST)
        if earliest <= self.position <= latest:
            self._doubts.forget()  # the broker contradicts itself: fetch again
            return
        lost_until, limit = (earliest, "starts") if self.position < earliest else (latest, "ends")
        self._why = f"the log {limit} at {lost_until}"
        # Each time the same is doubted, though the limits may move meanwhile: others write, and retention goes on.
        if self._doubts.hear(f"{self.position} is out of range: the log {limit} elsewhere"):
            self._lost(lost_until, self._why)

    def _lost(self, offset: int, reason: str) -> None:
        until = self._range.until_offset
        if self._options.fail_on_data_loss:
            self._refuse(reason)
        # The rest of the range begins at the log's start, or there is no rest.
        position = min(offset, until) if offset > self.position else until
        log.warning("%s: the offsets from %d to %d are left out: %s", self._name, self.position, position, reason)
        self.position = position
        self.first_wanted = self.position

    def _refuse(self, reason: str) -> NoReturn:
        raise DataLossError(
            f"[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] {self._name} was to be read from offset"
            f" {self.position} to {self._range.until_offset}, but {reason}; failOnDataLoss=false reads what is left"
        )

    async def _offset(self, which: int) -> int:
        return (await self._cluster.list_offsets({self._partition: which}))[self._partition]


def damaged(partition: TopicPartition, error: RecordBatchError) -> RecordBatchError:
    """The error with its position and a remedy."""
    return RecordBatchError(
        f"{partition.topic}-{partition.partition}: {error.args[0]}; a batch read can leave it out by startingOffsets and"
        " endingOffsets, a stream by a new checkpointLocation and startingOffsets after it",
        error.offset,
    )
