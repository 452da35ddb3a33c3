"""One range of one partition, fetched as record batches until its end, whatever happens meanwhile.

Laws:
- The position only moves over what was received and checked, or over what two
  answers of the broker agree is gone (INCIDENTS.md 2).
- OFFSET_OUT_OF_RANGE is never believed by itself: ListOffsets decides.
- Without progress for `poll_timeout_ms` it ends with an error, never silently.
"""

from __future__ import annotations

import time
from typing import Final, NoReturn

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from spark_integration.offsets import EARLIEST, LATEST, OffsetRange
from spark_integration.options import ReadOptions
from tolerant_client.committed import skip_aborted
from tolerant_client.errors import (
    ClusterUnreachableError,
    DataLossError,
    OptionError,
    RecordBatchError,
    UnsupportedSourceError,
)
from tolerant_client.fetch import FetchedPartition
from tolerant_client.raw import RawCluster
from tolerant_client.record_batch import BatchHeader, iter_batches

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500

_OUT_OF_RANGE: Final = 1
# Believed when said this often in a row, without anything else between.
_BELIEVED_AFTER: Final = 3
_BACKOFF: Final = 0.05
_MAX_BACKOFF: Final = 1.0

Batches = list[tuple[BatchHeader, memoryview]]


class RangeFetch:
    """The state of fetching one range; `position` is the next offset to fetch."""

    def __init__(self, cluster: RawCluster, wanted: OffsetRange, options: ReadOptions) -> None:
        self._cluster = cluster
        self._range = wanted
        self._partition = TopicPartition(wanted.topic, wanted.partition)
        self._options = options
        self._last_doubt = ""
        self._doubts = 0
        self.position = wanted.from_offset

    @property
    def is_done(self) -> bool:
        return self.position >= self._range.until_offset

    async def next_batches(self) -> Batches:
        """The batches of the next answer that moves the position; perhaps none of them counts.

        The views belong to the caller.  Control batches are among them.
        """
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        backoff = _BACKOFF
        while not self.is_done:
            try:
                before = self.position
                batches = await self._attempt()
                if self.position > before:
                    self._doubts = 0
                    return batches
                reason = f"no records at offset {self.position}"
            except (DataLossError, OptionError, UnsupportedSourceError, ClusterUnreachableError):
                raise
            except (kafka_errors.KafkaError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                if self._is_believed(reason) and not getattr(error, "retriable", False):
                    raise
            if time.monotonic() > deadline:
                raise ClusterUnreachableError(
                    f"{self._name} could not be read from offset {self.position} for"
                    f" {self._options.poll_timeout_ms} ms ({reason});"
                    " kafkaConsumer.pollTimeoutMs is how long to try"
                )
            await self._cluster.net.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF)
        return []

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}-{self._partition.partition}"

    async def _attempt(self) -> Batches:
        await self._cluster.connect()
        node = await self._cluster.leader(self._partition)
        try:
            answers = await self._cluster.fetch(
                node,
                {self._partition: self.position},
                max_wait_ms=MAX_WAIT_MS,
                max_bytes=MAX_BYTES,
                partition_max_bytes=MAX_BYTES,
                isolation_level=self._options.isolation_level,
            )
        except kafka_errors.KafkaError:
            await self._cluster.refresh()
            raise
        for answer in answers:
            if answer.partition == self._partition:
                break
        else:
            raise kafka_errors.UnknownError(f"an answer to a fetch of {self._name} without it")
        if answer.error_code == _OUT_OF_RANGE:
            await self._out_of_range()
            return []
        if answer.error_code:
            await self._cluster.refresh()
            raise kafka_errors.for_code(answer.error_code)(self._name)
        if len(answer.records):
            return self._accept(answer)
        await self._nothing(answer)
        return []

    def _accept(self, answer: FetchedPartition) -> Batches:
        batches: Batches = []
        position = self.position
        for header, batch in iter_batches(answer.records):
            # A fetch starts with the batch that contains the position, so the first
            # one may start before it, and compaction may have left a gap before it.
            if header.next_offset <= position:
                continue
            if header.base_offset >= self._range.until_offset:
                position = self._range.until_offset
                break
            batches.append((header, batch))
            position = header.next_offset
        if position == self.position:
            raise RecordBatchError(
                f"{len(answer.records)} bytes of {self._name} without a whole batch", self.position
            )
        if self._options.isolation_level:
            batches = list(skip_aborted(batches, answer.aborted))
        self.position = position
        return batches

    async def _nothing(self, answer: FetchedPartition) -> None:
        end = answer.last_stable_offset if self._options.isolation_level else answer.high_watermark
        if end >= self._range.until_offset:
            # The broker knows offsets up there but has no record from here on: compacted away.
            if self._is_believed(f"nothing from {self.position}"):
                self.position = self._range.until_offset
        elif self._is_believed(f"end {end} at {self.position}"):
            await self._log_ends_before()

    async def _log_ends_before(self) -> None:
        # A new leader knows its high watermark late, so only the log's end counts.
        latest = await self._offset(LATEST)
        if self._options.isolation_level == 0 and latest < self._range.until_offset:
            self._lost(latest, f"the log ends at {latest}")

    async def _out_of_range(self) -> None:
        earliest, latest = await self._offset(EARLIEST), await self._offset(LATEST)
        if earliest <= self.position <= latest:
            self._doubts = 0  # the broker contradicts itself: fetch again
            return
        if not self._is_believed(f"log {earliest}-{latest}"):
            return
        if self.position < earliest:
            self._lost(earliest, f"the log starts at {earliest}")
        else:
            self._lost(latest, f"the log ends at {latest}")

    def _lost(self, offset: int, reason: str) -> None:
        until = self._range.until_offset
        if self._options.fail_on_data_loss:
            self._refuse(reason)
        # What is left of the range begins at the log's start, or nothing is left of it.
        self.position = min(offset, until) if offset > self.position else until

    def _refuse(self, reason: str) -> NoReturn:
        raise DataLossError(
            f"{self._name} was to be read from offset {self.position} to {self._range.until_offset},"
            f" but {reason}; failOnDataLoss=false reads what is left"
        )

    async def _offset(self, which: int) -> int:
        return (await self._cluster.list_offsets({self._partition: which}))[self._partition]

    def _is_believed(self, doubt: str) -> bool:
        self._doubts = self._doubts + 1 if doubt == self._last_doubt else 1
        self._last_doubt = doubt
        return self._doubts >= _BELIEVED_AFTER
