"""The mirror's only state is the target's log: where it ends and who wrote its last batch.

Read before the first append of a session and after anything unexpected
(M2-M4).  What the target has must be what the source has; a difference is
reported, never overwritten.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping

import crc32c
import kafka.errors as Errors
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from tolerant_client.errors import (
    DataLossError,
    RecordBatchError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
)
from tolerant_client.mirror.partition import AppendState
from tolerant_client.produce import add_sequence
from tolerant_client.raw import EARLIEST, LATEST, RawCluster
from tolerant_client.record_batch import HEADER_SIZE, BatchHeader, iter_batches, payload_digest, read_header

_TRANSACTION_COORDINATOR = 1
_PARTITIONS_PER_FETCH = 500
_WHOLE_BATCH = 2 << 20
_CHECKED_FIELDS = struct.Struct(">hiqqqhii")  # of a batch header, from its attributes on: what the CRC covers


async def init_producer_id(target: RawCluster, link: str) -> int:
    """The producer id of a link: the same one at every start (KIP-98, transactional.id).

    Data batches are plain idempotent ones of epoch 0: only the id is used (M2).
    """
    transactional_id = f"tolerant-mirror-{link}"

    async def ask() -> int:
        found = await target.send(FindCoordinatorRequest(key=transactional_id, key_type=_TRANSACTION_COORDINATOR, max_version=3))
        raise_for(found.error_code, "FindCoordinator")
        answer = await target.send(
            InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1, max_version=4
            ),
            found.node_id,
        )
        raise_for(answer.error_code, "InitProducerId")
        producer_id: int = answer.producer_id
        return producer_id

    return await target.insist(f"getting the producer id of link {link}", ask)


async def read_append_states(
    source: RawCluster, target: RawCluster, partitions: Iterable[TopicPartition], producer_id: int
) -> dict[TopicPartition, AppendState | TolerantClientError]:
    """Where each partition goes on, or why it cannot; one request a broker, not one a partition."""
    wanted = list(partitions)
    target_start = await target.list_offsets(dict.fromkeys(wanted, EARLIEST))
    target_end = await target.list_offsets(dict.fromkeys(wanted, LATEST))
    source_start = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    source_end = await source.list_offsets(dict.fromkeys(wanted, LATEST))
    written = {p: target_end[p] - 1 for p in wanted if target_end[p] > target_start[p]}
    last = await read_headers(target, written)
    comparable = {p: h.base_offset for p, h in last.items() if source_start[p] <= h.base_offset < source_end[p]}
    original = await read_headers(source, comparable)
    states: dict[TopicPartition, AppendState | TolerantClientError] = {}
    for p in wanted:
        if p in written and p not in last:
            continue  # not answered this time; the caller asks again
        if p in comparable and p not in original:
            continue
        try:
            await _check_last_batch(source, target, p, last.get(p), original.get(p), producer_id, source_start[p], source_end[p])
            states[p] = next_append(p, source_start[p], source_end[p], target_end[p], last.get(p), producer_id)
        except TolerantClientError as error:
            states[p] = error
    return states


def next_append(
    partition: TopicPartition,
    source_start: int,
    source_end: int,
    log_end: int,
    last: BatchHeader | None,
    producer_id: int,
) -> AppendState:
    """Decides the next append from both logs' bounds and the target's last batch.

    Raises DataLossError, UnsupportedSourceError or TargetDivergedError.
    """
    name = f"{partition.topic}-{partition.partition}"
    if log_end < source_start:
        if log_end == 0:
            raise UnsupportedSourceError(
                f"The source log of {name} starts at offset {source_start}, the target's is empty; logs that do not"
                " start at 0 are not mirrored yet, exclude the topic"
            )
        raise DataLossError(
            f"The source of {name} no longer has offsets {log_end} to {source_start}: retention overtook the mirror;"
            " delete the target topic to copy what is left"
        )
    if log_end > source_end:
        raise TargetDivergedError(
            f"The target log of {name} ends at offset {log_end}, beyond the source's end {source_end}: it holds foreign"
            " records, or the source was truncated or created again; mirror into a topic of its own"
        )
    if last is None:
        # Nothing in the log says a sequence.  The offset is one that all writers derive alike.
        return AppendState(log_end, producer_id, 0, add_sequence(log_end, 0))
    return AppendState(
        log_end, last.producer_id, last.producer_epoch, add_sequence(last.base_sequence, last.last_offset_delta + 1)
    )


async def read_headers(cluster: RawCluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchHeader]:
    """The header of the batch that contains each offset; partitions that failed are absent.

    Asks for HEADER_SIZE bytes a partition: a broker cuts batches at the limit,
    all but the first of an answer.
    """
    headers: dict[TopicPartition, BatchHeader] = {}
    for node, members in (await cluster.by_leader(offsets)).items():
        remaining = iter(members)
        while chunk := list(itertools.islice(remaining, _PARTITIONS_PER_FETCH)):

            async def ask(node: int = node, chunk: list[TopicPartition] = chunk) -> None:
                positions = {p: offsets[p] for p in chunk if p not in headers}
                fetched = await cluster.fetch(node, positions, max_wait_ms=0, partition_max_bytes=HEADER_SIZE)
                for part in fetched:
                    if part.error_code == 0 and len(part.records) >= HEADER_SIZE:
                        header = read_header(part.records)
                        if header.magic == 2 and header.base_offset <= positions.get(part.partition, -1) <= header.last_offset:
                            headers[part.partition] = header
                if any(part.error_code for part in fetched):
                    await cluster.refresh()

            await cluster.insist("reading the last batches", ask)
    return headers


async def _check_last_batch(
    source: RawCluster,
    target: RawCluster,
    partition: TopicPartition,
    last: BatchHeader | None,
    original: BatchHeader | None,
    producer_id: int,
    source_start: int,
    source_end: int,
) -> None:
    if last is None:
        return
    is_ours = last.producer_id == producer_id
    if original is not None and not is_copy(last, original) or is_ours and last.base_offset >= source_end:
        # Behind a foreign batch even our own lie elsewhere: say which one was the first.
        first = await _first_difference(source, target, partition, source_start, last)
        if original is not None or first.producer_id != producer_id:
            raise _diverged(partition, first, producer_id)
    if is_ours:
        return
    # Another id: the link's own from before its transactional.id expired, or a foreign writer's.
    if last.producer_id < 0 or original is None:
        raise _diverged(partition, last, producer_id)
    copies = [await _read_batch(cluster, partition, last.base_offset) for cluster in (source, target)]
    if payload_digest(copies[0]) != payload_digest(copies[1]):
        raise _diverged(partition, last, producer_id)


def _diverged(partition: TopicPartition, foreign: BatchHeader, producer_id: int) -> TargetDivergedError:
    return TargetDivergedError(
        f"The target log of {partition.topic}-{partition.partition} has a foreign record batch at offset"
        f" {foreign.base_offset} (producer id {foreign.producer_id}, the mirror's is {producer_id}) that is not the"
        " source's; stop that writer and mirror into a topic of its own"
    )


async def _first_difference(
    source: RawCluster, target: RawCluster, partition: TopicPartition, source_start: int, last: BatchHeader
) -> BatchHeader:
    """The first batch of the target that is not the source's; by bisection, as one foreign batch shifts all behind it."""
    found, low = last, source_start
    while low < found.base_offset:
        middle = {partition: (low + found.base_offset) // 2}
        there = (await read_headers(target, middle)).get(partition)
        if there is None:
            break
        original = (await read_headers(source, {partition: there.base_offset})).get(partition)
        if original is not None and is_copy(there, original):
            low = there.next_offset
        else:
            found = there
    return found


async def _read_batch(cluster: RawCluster, partition: TopicPartition, offset: int) -> memoryview:
    async def ask() -> memoryview:
        node = await cluster.leader(partition)
        for part in await cluster.fetch(node, {partition: offset}, max_wait_ms=0, partition_max_bytes=_WHOLE_BATCH):
            raise_for(part.error_code, f"Fetch of {partition.topic}-{partition.partition}")
            for _, batch in iter_batches(part.records):
                return batch
        raise RecordBatchError(f"no record batch came for {partition.topic}-{partition.partition}", offset)

    return await cluster.insist("reading a batch", ask)


def is_copy(copied: BatchHeader, original: BatchHeader) -> bool:
    """True when the headers say that two batches have the same offsets and the same records.

    CRC-32C is linear: where the records are equal, the two checksums differ by
    exactly what the headers' difference makes.  A target topic with another
    compression.type has other bytes, so there offsets and times must do.
    """
    if _shape(copied) != _shape(original):
        return False
    if copied.codec != original.codec:
        return True
    if copied.size != original.size:
        return False
    ours, theirs = (_CHECKED_FIELDS.pack(h.attributes, *h[6:]) for h in (copied, original))
    difference = bytes(a ^ b for a, b in zip(ours, theirs)) + bytes(copied.size - HEADER_SIZE)
    return bool(copied.crc ^ original.crc == crc32c.crc32c(difference) ^ crc32c.crc32c(bytes(len(difference))))


def _shape(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.record_count,
    )


def raise_for(error_code: int, what: str) -> None:
    """Raises kafka-python's error for a code other than 0."""
    if error_code:
        raise Errors.for_code(error_code)(what)
