"""The sequence of the next batch, from the target's log or else from its brokers' producer state (M2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import log_end_offsets
from tolerant_client.cluster.admin.transactions import (
    ProducerEntry,
    can_describe_producers,
    describe_producers,
    link_entry,
)
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.mirror.batches.appendable import NO_PRODUCER, AppendState
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.places import MOST_STEPS_BACK, fills_gap, step_back
from tolerant_client.records.record_batch import BatchHeader


async def read_sequences(
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    producer_id: int,
    own: Collection[int],
    at_high_watermark: bool,
) -> tuple[dict[TopicPartition, AppendState], set[TopicPartition]]:
    """The next append of each partition, and the partitions whose broker remembers the link."""
    ending = last.keys()
    # What was adopted is others' data: it says nothing of the link's sequence.
    last = {p: header for p, header in last.items() if header.next_offset > logs[p].adopted}
    unsaid = [p for p in logs if (p not in last or not is_data_of(last[p], own)) and logs[p].target_end]
    entries: dict[TopicPartition, list[ProducerEntry]] = {}
    if unsaid and can_describe_producers(target):
        # A race: 1. we read the log end, 2. another writer appends the next batch, 3. the broker returns the sequence after
        # that batch.  With both values we would append that batch again, and the broker would accept it.  So the log must
        # still end there once the sequence is known, by the leader's log end, which counts batches not replicated yet.
        told = await describe_producers(target, unsaid)
        ends = await log_end_offsets(target, told)
        # A comparison only needs to know that the link wrote here; without a last batch its sequence is the proof.
        later = ending if at_high_watermark else ()
        entries = {p: found for p, found in told.items() if ends.get(p) == logs[p].target_end or p in later}
    elif unsaid:
        # The link's last data batch is before the filler of gaps; none is searched for before others' data.
        last |= await step_back(
            target,
            {p: last[p] for p in unsaid if p in last},
            {p: log.written_from for p, log in logs.items()},
            fills_gap,
            MOST_STEPS_BACK,
        )
        entries = {p: [] for p in unsaid}
    untold = {
        p
        for p in entries
        if not entries[p] and not can_describe_producers(target) and not (p in last and is_data_of(last[p], own))
    }
    states = {
        p: next_append(log.target_end, last.get(p), entries.get(p, ()), producer_id, own)
        for p, log in logs.items()
        if p not in unsaid or p in entries
    }
    # The broker may remember a sequence that we cannot know, and would refuse our guess for ever.
    states |= {p: states[p]._replace(producer_id=NO_PRODUCER, next_sequence=0) for p in untold}
    return states, {p for p, known in entries.items() if link_entry(known, producer_id, own) is not None}


def next_append(
    log_end: int, last: BatchHeader | None, entries: Iterable[ProducerEntry], producer_id: int, own: Collection[int]
) -> AppendState:
    """The next append, from the log's last batch or, if that is no data batch of the link, from what the broker remembers.

    `own` are all producer ids of the link.  Others who wrote the same records may continue under theirs: those are never used.
    """
    if last is not None and is_data_of(last, own):
        sequence = add_sequence(last.base_sequence, last.last_offset_delta + 1)
        return AppendState(log_end, last.producer_id, last.producer_epoch, sequence, last_ms=last.max_timestamp)
    if (entry := link_entry(entries, producer_id, own)) is not None:
        sequence = add_sequence(entry.last_sequence, 1)
        return AppendState(log_end, entry.producer_id, entry.producer_epoch, sequence, last_ms=entry.last_timestamp)
    # Nothing tells a sequence.  All writers derive the same one from the offset.
    return AppendState(log_end, producer_id, 0, add_sequence(log_end, 0))


def is_data_of(header: BatchHeader, own: Collection[int]) -> bool:
    return header.producer_id in own and not fills_gap(header)
