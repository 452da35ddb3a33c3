"""Whether what others than the link have written to the target's logs is what the source has there.

A last batch that its header alone does not prove is compared by its records; if others wrote last, what they wrote after the
link is compared, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S
from tolerant_client.cluster.admin.offsets import Untold, list_led_offsets
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, LogSlice, first_difference, is_copy
from tolerant_client.mirror.batches.gaps import is_filler_marker
from tolerant_client.mirror.engine.identical.difference import OpenTransaction, is_all_filler, is_found
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.places import MOST_STEPS_BACK, ends_in_gap, step_back
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.records.record_batch import BatchHeader

_OTHERS_OFFSETS = 5_000  # of what others wrote after the link, that are compared


class OtherWriters(NamedTuple):
    """What others have written to the logs: `strange` are those that end with what is no copy, `unread` those that could not be
    judged this time; `differ_at` is where records after the link's differ.
    """

    strange: Collection[TopicPartition]
    unread: Collection[TopicPartition]
    differ_at: Mapping[TopicPartition, int]
    opened: Mapping[TopicPartition, OpenTransaction | Untold]


async def read_other_writers(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
    copied: Mapping[TopicPartition, int],
) -> OtherWriters:
    """What others than the link have written to logs with these last batches, of which it had `copied` so much."""
    others = await last_of_others(target, logs, last, own, copied)
    strange, unread = await _find_strangers(source, target, logs, others)
    differ_at, opened = await _differs_after_link(source, target, logs, {p: last[p] for p in others}, own, copied)
    strange.difference_update(opened)  # what is not committed yet does not count as a stranger's
    for p, header in last.items():
        if header.is_control and p not in unread and not logs[p].has_common:
            if not await ends_in_gap(target, p, header, own, logs[p].adopted, copied.get(p, 0)):
                strange.add(p)
    return OtherWriters(strange, unread, differ_at, opened)


async def unproved_tails(
    source: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets to compare in partitions whose last batch is not proved by its header alone.

    A batch that others wrote may be a copy from an aborted transaction, which has the same headers.
    """
    comparable = {p: logs[p] for p in last if logs[p].has_common}
    original = await read_headers(
        source,
        {
            p: last[p].base_offset
            for p, log in comparable.items()
            if log.source_start <= last[p].base_offset < log.source_end
        },
    )
    proved = {p for p, header in original.items() if last[p].producer_id in own and is_copy(last[p], header)}
    return {p: log.window for p, log in comparable.items() if p not in proved}


async def last_of_others(
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
    copied: Mapping[TopicPartition, int],
) -> dict[TopicPartition, BatchHeader]:
    """The last data batches of the logs in which somebody else than the link wrote last; gap filler counts as the link's.

    A log that ends where the link had `copied` it was proved before.  If its last data is hidden by more bare markers than are
    read, or by the cleaner, the log counts as others', with one of those markers.
    """
    ends = {
        p: h
        for p, h in last.items()
        if h.producer_id not in own and not is_filler_marker(h) and copied.get(p) != h.next_offset
    }
    least = {p: log.written_from for p, log in logs.items()}
    data = await step_back(target, ends, least, _is_bare_marker, MOST_STEPS_BACK)
    others = {
        p: h
        for p, h in data.items()
        if (h.base_offset > least[p] if _is_bare_marker(h) else not h.is_control and h.next_offset > least[p])
        and h.producer_id not in own
    }
    may_be_filler = {p: _tail(h) for p, h in others.items() if h.is_transactional}
    slices = await read_slices(target, may_be_filler, is_committed=False)
    return {p: h for p, h in others.items() if not is_all_filler(slices.get(p))}


def _is_bare_marker(header: BatchHeader) -> bool:
    return header.is_control and not is_filler_marker(header)


def _tail(header: BatchHeader) -> tuple[int, int]:
    """The offsets of a batch to compare."""
    return max(header.base_offset, header.next_offset - COMPARED_OFFSETS), header.next_offset


async def _differs_after_link(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    ends: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
    copied: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OpenTransaction | Untold]]:
    """Where logs that others wrote last differ after the link's last batch, within the last 5,000 offsets; the open
    transactions in others, or why that is unknown.

    One of their batches that equals the source's proves nothing of those before it, and an aborted batch has no records.
    """
    if not ends:
        return {}, {}
    # Read first: what is stable then is stable in everything that is read later.
    asked = dict.fromkeys(ends, LATEST)
    stable, left_out = await list_led_offsets(target, asked, isolation_level=READ_COMMITTED, within_s=LATE_S)
    ends = {p: ends[p] for p in stable}
    ours = await step_back(
        target, ends, {p: log.written_from for p, log in logs.items()}, lambda header: header.producer_id not in own
    )
    found: dict[TopicPartition, int] = {}
    unstable: dict[TopicPartition, int] = {}
    for p, header in ours.items():
        first, end = logs[p].common
        since = header.next_offset if header.producer_id in own else copied.get(p, first)
        stretches = range(max(first, since, end - _OTHERS_OFFSETS), end, COMPARED_OFFSETS)
        if stretches and stable[p] < end:
            unstable[p] = stable[p]
        for start in stretches:
            span = {p: (start, min(start + COMPARED_OFFSETS, end))}
            original = (await read_slices(source, span, is_committed=True))[p]
            copies = [(await read_slices(target, span, is_committed=seen))[p] for seen in (False, True)]
            if differences := [d for copy in copies if (d := first_difference(original, copy)) is not None]:
                found[p] = min(differences)
                break
    unstable = {p: offset for p, offset in unstable.items() if p not in found}
    begins = await read_headers(target, unstable)
    opened = {
        p: OpenTransaction(begins[p].producer_id if p in begins else -1, offset) for p, offset in unstable.items()
    }
    return found, {**opened, **{p: Untold(why) for p, why in left_out.items()}}


async def _find_strangers(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    others: Mapping[TopicPartition, BatchHeader],
) -> tuple[set[TopicPartition], set[TopicPartition]]:
    """The partitions whose last data batch, of `others`, is not the source's; and those where this cannot be determined now.

    A batch at offsets where the source has no records is never proved.
    """
    spans = {p: _tail(h) for p, h in others.items()}
    written = await read_slices(target, spans, is_committed=False)
    visible = written | await read_slices(
        target, {p: spans[p] for p, h in others.items() if h.is_transactional}, is_committed=True
    )
    there = {
        p: (max(start, logs[p].source_start), end) for p, (start, end) in spans.items() if end > logs[p].source_start
    }
    originals = await read_slices(source, there, is_committed=True)
    strange, unknown = set(), set()
    for p, (_, end) in spans.items():
        found = is_found(written[p], visible[p], originals.get(p, LogSlice(end)), min(end, logs[p].source_end))
        if found is None:
            unknown.add(p)
        elif not found:
            strange.add(p)
    return strange, unknown
