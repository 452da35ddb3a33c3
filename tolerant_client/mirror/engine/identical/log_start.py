"""Makes an empty target log begin at an offset, usually the source's log start: filler records up to it, then DeleteRecords.

Laws:
A. The filler is in ordinary batches of the link's producer, so the broker's sequence check lets any number of writers do this
   at once, and repeat it.
B. Before the first record of filler the control records at which offset the log should begin (`log_starts`).  So a process
   that later finds a log that ends with filler knows how far it goes, and that it must still be deleted.  The filler itself
   proves nothing: the target of another link has some, and any producer can write it.
C. A name is not a topic: the filler is for the topic whose log was read, and `may_send` is called before each request.
   DeleteRecords knows only names, so directly before it, and after the headers were read, the topic must still have its id.
D. DeleteRecords names an absolute offset below which there is only filler, and a writer that appends data after it has
   deleted it before: a repeat, late or early, changes nothing else.
E. Others may write to the log meanwhile, and their records are not deleted.  That our filler was appended where it belongs
   says nothing of what an earlier attempt left.  So before the deletion the headers of all batches below the offset are read
   back.  If a batch is not the link's, nothing is deleted, and the next writer finds the same: find_log_start reads the
   headers before anything is appended.
F. A broker that does not know the producer accepts any sequence, even after others' records.  So the first batch goes alone,
   and nothing follows if it lies elsewhere.

A writer that is killed leaves a log that ends before the offset in the control, or at it: in both cases the next one calls
start_log_at again (resume_point.read_append_states says so).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import delete_records, require_topic
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.errors import PartitionRefusedError, TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.gaps import Gap, filler_batches, is_filler
from tolerant_client.mirror.engine.identical.evidence import Evidence
from tolerant_client.mirror.engine.identical.places import first_of_others
from tolerant_client.mirror.state.topics import topic_facts
from tolerant_client.records import codecs

_FRESH_S = 2.0
_PIPELINE = 16  # requests; a batch of filler is small, but costs the broker much


async def find_log_start(target: Cluster, evidence: Evidence) -> int | TargetDivergedError | None:
    """The offset at which the target's log should start; None if it has its start.

    An empty log that the link has begun begins where it was begun, wherever the source begins by now.  A log whose start is
    unfinished ends with filler before or at the offset in the control.  A start is never moved: what the source lost after it
    is a loss.  Such a log, and any whose start is unproved, is searched for others' records below that offset: filler after
    their records may reach beyond it.
    """
    case, log, first, filled_to = evidence.case, evidence.case.logs, evidence.first, evidence.filled_to
    if log.target_end == 0:
        start = first if evidence.begun_at is None else evidence.begun_at
        return start if 0 < start <= first else None
    if filled_to is None or not log.target_start < filled_to <= first:
        return None
    record = None if evidence.tail is None else evidence.tail.records.get(log.target_end - 1)
    # A copied record may look like filler, since another link's target has filler: only the control tells.
    is_half_done = log.target_end <= filled_to and record is not None and is_filler(record)
    if is_half_done or evidence.is_start_unproved:
        refusal = await others_before(target, case.partition, filled_to, log.target_end, case.own)
        if refusal is not None:
            return refusal
    if not is_half_done:
        return None
    if log.target_end < filled_to:
        return filled_to
    topic = case.partition.topic
    facts = (await topic_facts(target, [topic])).get(topic)
    return filled_to if facts is not None and facts.can_delete_records else None


async def start_log_at(
    target: Cluster,
    partition: TopicPartition,
    state: AppendState,
    start: int,
    own: Collection[int],
    *,
    is_compacted: bool,
    max_batch_bytes: int,
    may_send: Callable[[], None] = lambda: None,
) -> None:
    """Makes a log that is empty, or has only such filler, begin and end at `start`.

    `own` are all producer ids of the link; `may_send` raises KafkaError once nothing more may be written.  If the topic does
    not allow DeleteRecords (cleanup.policy compact alone) the filler stays.
    Raises PartitionRefusedError, TargetDivergedError if others have written before `start`, and KafkaError if a batch was not appended,
    or not read back: the next attempt, by any writer, continues where the log then ends.
    """
    batches = filler_batches(
        Gap(state.log_end, start),
        is_compacted=is_compacted,
        max_batch_bytes=max_batch_bytes,
        timestamp_ms=int(time.time() * 1000),
        codec=codecs.GZIP if is_compacted else codecs.ZSTD,  # deleted at once, unless compacted
    )
    node = await target.leader(partition)
    appends = StampedAppends(
        target,
        partition,
        state.producer_id,
        state.producer_epoch,
        state.next_sequence,
        topic_id=state.topic_id,
        may_send=may_send,
    )
    if (first := next(batches, None)) is not None:
        await appends.append_at(node, *first)  # law F
    await appends.append_all_at(node, batches, _PIPELINE)
    is_fresh = False
    while not is_fresh:  # a process that was frozen meanwhile checks again
        if (refusal := await others_before(target, partition, start, start, own)) is not None:
            raise refusal
        asked_at = time.monotonic()
        await require_topic(target, partition.topic, state.topic_id)
        is_fresh = time.monotonic() - asked_at < _FRESH_S
    may_send()
    await _delete_before(target, partition, start)


async def others_before(
    target: Cluster, partition: TopicPartition, start: int, log_end: int, own: Collection[int]
) -> TargetDivergedError | None:
    """The error for a log that should begin at `start` and that others have written to; None if all before it is the link's.

    `log_end` is where the log ends, if that is before `start`.  Raises KafkaError if the log could not be read up to there.
    """
    foreign = await first_of_others(target, partition, min(start, log_end), own)
    if foreign is None:
        return None
    return TargetDivergedError(
        f"The target log of {partition.topic}-{partition.partition} is to begin at offset {start}, and has a foreign record batch"
        f" before that, at offset {foreign.base_offset} (producer id {foreign.producer_id}, none of the mirror's); nothing was"
        " deleted. Stop that writer and mirror into a topic of its own, or, if nobody needs those records, delete the target"
        " topic: the next start creates it and fills it again"
    )


async def _delete_before(target: Cluster, partition: TopicPartition, offset: int) -> None:
    code = await delete_records(target, partition, offset)
    where = f"{partition.topic}-{partition.partition}"
    if code == Errors.TopicAuthorizationFailedError.errno:
        raise PartitionRefusedError(
            f"The mirror may not delete the filler before offset {offset} of {where}; grant it Delete on the target's topic"
        )
    if code not in (0, Errors.PolicyViolationError.errno):
        error = Errors.for_code(code)
        if error.invalid_metadata:
            target.manager.cluster.request_update()  # the known leader may have changed
        raise error(f"DeleteRecords of {where}")
