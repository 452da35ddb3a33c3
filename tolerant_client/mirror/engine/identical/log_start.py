"""Makes an empty target log begin where the source's does: filler records up to there, then DeleteRecords.

Laws:
A. The filler is in ordinary batches of the link's producer, so the broker's check of their sequence lets any number
   of writers do this at once, and repeat it.
B. The control says, before the first record of it, at which offset the log is to begin (`log_starts`).  So whoever finds
   a log that ends with filler no later knows how far it goes, and that it waits to be deleted.  The filler itself is no
   proof: the target of another link has some, and any producer can write it.
C. A name is not a topic: the filler is for the one whose log was read, the owner is asked before each request whether it may go
   out, and directly before DeleteRecords, which knows names only, the topic still has its id after its headers were read.
D. DeleteRecords names an absolute offset below which there is nothing but filler, and whoever appends data behind it
   has deleted it before: repeating it, late or early, changes nothing else.
E. Others may write to the log meanwhile, and their records are not deleted.  That our filler was appended where it belongs
   says nothing of what an earlier attempt left: so before the deletion the headers of all that lies below the offset are
   read back.  Where a batch is not the link's nothing is deleted, and whoever comes next finds the same: find_log_start reads
   them before anything is appended.
F. A broker that does not know the producer takes any sequence, behind others' records, too.  So the first batch goes alone,
   and nothing follows one that lies elsewhere.

A writer that is killed leaves a log that ends before the offset which its last record names, or at it: in both cases
the next one calls start_log_at again (state.read_append_states says so).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import delete_records, require_topic
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.gaps import Gap, filler_batches, is_filler
from tolerant_client.mirror.engine.identical.difference import Logs
from tolerant_client.mirror.engine.identical.places import first_of_others
from tolerant_client.mirror.state.topics import topic_facts
from tolerant_client.records import codecs

_FRESH_S = 2.0
_PIPELINE = 16  # requests; a batch of filler is small, and what the broker does with it is not


async def find_log_start(
    target: Cluster,
    partition: TopicPartition,
    log: Logs,
    first: int,
    tail: LogSlice | None,
    filled_to: int | None,
    own: Collection[int],
    *,
    begun_at: int | None,
    is_unproved: bool,
) -> int | TargetDivergedError | None:
    """The offset to start the target's log at, `first` where nothing is begun; None when it has its start.

    An empty log that the link has begun at an offset, `begun_at`, begins there wherever the source does by now.
    A log that was to start elsewhere ends with filler, in its `tail`, before or at the offset that the control says.  No
    start is moved: what the source has had behind it since, and has no more, is a loss.  What others wrote before that
    offset is looked for in such a log, and with `is_unproved`: filler behind their records may reach beyond it.
    """
    if log.target_end == 0:
        start = first if begun_at is None else begun_at
        return start if 0 < start <= first else None
    if filled_to is None or not log.target_start < filled_to <= first:
        return None
    record = None if tail is None else tail.records.get(log.target_end - 1)
    # A copied record may look like filler, which the target of another link has: the control alone says whose it is.
    is_half_done = log.target_end <= filled_to and record is not None and is_filler(record)
    if is_half_done or is_unproved:
        refusal = await others_before(target, partition, filled_to, log.target_end, own)
        if refusal is not None:
            return refusal
    if not is_half_done:
        return None
    if log.target_end < filled_to:
        return filled_to
    facts = (await topic_facts(target, [partition.topic])).get(partition.topic)
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
    """Brings a log that is empty, or holds nothing but such filler, to begin and end at `start`.

    `own` are all producer ids of the link; `may_send` raises KafkaError once nothing more may be written.  Where the topic allows no DeleteRecords (cleanup.policy compact alone) the
    filler stays.
    Raises OptionError, TargetDivergedError where others have written before `start`, and KafkaError when a batch was not
    appended, or not read back: the next attempt, by whichever writer, goes on where the log then ends.
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
    while not is_fresh:  # a process that was frozen since begins anew
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
    """What it means that others have written to a log that is to begin at `start`; None where all before it is the link's.

    `log_end` is where the log ends, if that is before `start`.  Raises KafkaError where it was not read so far.
    """
    foreign = await first_of_others(target, partition, min(start, log_end), own)
    if foreign is None:
        return None
    return TargetDivergedError(
        f"The target log of {partition.topic}-{partition.partition} is to begin at offset {start}, and has a foreign record batch"
        f" before that, at offset {foreign.base_offset} (producer id {foreign.producer_id}, none of the mirror's); nothing was"
        " deleted. Stop that writer and mirror into a topic of its own, or, where nobody needs those records, delete the target"
        " topic: the next start creates it and fills it again"
    )


async def _delete_before(target: Cluster, partition: TopicPartition, offset: int) -> None:
    code = await delete_records(target, partition, offset)
    where = f"{partition.topic}-{partition.partition}"
    if code == Errors.TopicAuthorizationFailedError.errno:
        raise OptionError(
            f"The mirror may not delete the filler before offset {offset} of {where}; grant it Delete on the target's topic"
        )
    if code not in (0, Errors.PolicyViolationError.errno):
        error = Errors.for_code(code)
        if error.invalid_metadata:
            target.manager.cluster.request_update()  # the leader that we know may lead no longer
        raise error(f"DeleteRecords of {where}")
