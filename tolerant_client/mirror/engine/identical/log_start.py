"""Makes an empty target log begin where the source's does: filler records up to there, then DeleteRecords.

Laws:
A. The filler is in ordinary batches of the link's producer, so the broker's check of their sequence lets any number
   of writers do this at once, and repeat it.
B. The control says, before the first record of it, at which offset the log is to begin (`log_starts`).  So whoever finds
   a log that ends with filler no later knows how far it goes, and that it waits to be deleted.  The filler itself is no
   proof: the target of another link has some, and any producer can write it.
C. DeleteRecords names an absolute offset below which there is nothing but filler, and whoever appends data behind it
   has deleted it before: repeating it, late or early, changes nothing else.

A writer that is killed leaves a log that ends before the offset which its last record names, or at it: in both cases
the next one calls start_log_at again (state.read_append_states says so).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import DeleteRecordsRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.gaps import Gap, filler_batches
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import BatchHeader, restamp

_PIPELINE = 16  # requests; a batch of filler is small, and what the broker does with it is not
_DELETE_TIMEOUT_MS = 30_000


async def start_log_at(
    target: Cluster,
    partition: TopicPartition,
    state: AppendState,
    start: int,
    *,
    is_compacted: bool,
    max_batch_bytes: int,
) -> None:
    """Brings a log that is empty, or holds nothing but such filler, to begin and end at `start`.

    Where the topic allows no DeleteRecords (cleanup.policy compact alone) the filler stays.
    Raises OptionError, and KafkaError when a batch was not appended: the next attempt, by whichever writer, goes on
    where the log then ends.
    """
    batches = filler_batches(
        Gap(state.log_end, start),
        is_compacted=is_compacted,
        max_batch_bytes=max_batch_bytes,
        timestamp_ms=int(time.time() * 1000),
        codec=codecs.GZIP if is_compacted else codecs.ZSTD,  # deleted at once, unless compacted
    )
    node = await target.leader(partition)
    sequence = state.next_sequence
    pending: deque[tuple[BatchHeader, Any]] = deque()
    for header, batch in batches:
        restamp(batch, state.producer_id, state.producer_epoch, sequence)
        sequence = add_sequence(sequence, header.record_count)
        pending.append((header, target.produce(node, {partition: batch})))
        if len(pending) >= _PIPELINE:
            await _appended(target, *pending.popleft())
    while pending:
        await _appended(target, *pending.popleft())
    await _delete_before(target, partition, start)


async def _delete_before(target: Cluster, partition: TopicPartition, offset: int) -> None:
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = topic_type.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
    answer = await target.send(
        DeleteRecordsRequest(
            topics=[topic_type(name=partition.topic, partitions=[wanted])], timeout_ms=_DELETE_TIMEOUT_MS, max_version=2
        ),
        await target.leader(partition),
    )
    (code,) = (part.error_code for topic in answer.topics for part in topic.partitions)
    where = f"{partition.topic}-{partition.partition}"
    if code == Errors.TopicAuthorizationFailedError.errno:
        raise OptionError(
            f"The mirror may not delete the filler before offset {offset} of {where}; grant it Delete on the target's topic"
        )
    if code not in (0, Errors.PolicyViolationError.errno):
        _raise(target, code, f"DeleteRecords of {where}")


async def _appended(target: Cluster, header: BatchHeader, future: Any) -> None:
    (part,) = await future
    where = f"{part.partition.topic}-{part.partition.partition}"
    if part.error_code:
        _raise(target, part.error_code, f"append of filler at offset {header.base_offset} of {where}")
    if part.base_offset != header.base_offset:
        raise Errors.OffsetOutOfRangeError(
            f"filler for offset {header.base_offset} of {where} was appended at {part.base_offset}"
        )


def _raise(target: Cluster, code: int, what: str) -> None:
    error = Errors.for_code(code)
    if getattr(error, "invalid_metadata", False):
        target.manager.cluster.request_update()  # the leader that we know may lead no longer
    raise error(what)
