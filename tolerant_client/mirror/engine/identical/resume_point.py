"""The mirror's only state is the target's log: where it ends and who wrote its last batch.

Read before the first append of a session and after anything unexpected
(M2-M4).  What the target has must be what the source has; a difference is
reported, never overwritten.

Laws (what a difference means: difference.py):
- A place to append at is the leader's end, and only where that is replicated (log_ends.py): elsewhere nothing of it is
  read yet.  A comparison appends nothing: it reads up to the high watermark, whatever a mirror has appended behind that.
- The end of a log proves nothing.  A log is a copy up to its end where records of both sides were compared, or where the
  link wrote its last batch, or fills gaps, in a log that it began (control, `begun`).
- What others wrote is a copy for readers of committed records, too, or none: while a transaction is open in it, it is neither.
- An emptied log shows nobody: others may have written, and have deleted it, since.  Its end is the link's where the control
  says that it had copied up to there (`copied`), or where the sequence that a broker remembers is the log end: sequences
  begin as the offset and count what the link wrote alone.  Gaps and the start of a log leave them behind the offset.
- The link's producer ids are all that it ever had; what they wrote is never called foreign.  It writes under no other id,
  whoever wrote the batch that it follows: the other one may write on, and a broker would take ours for a repeat of his.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.log_ends import Unreplicated, log_end_offsets, replicated_ends
from tolerant_client.cluster.admin.producers import (
    ProducerEntry,
    can_describe_producers,
    describe_producers,
    link_entry,
)
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.appendable import NO_PRODUCER, AppendState
from tolerant_client.mirror.batches.divergence import (
    COMPARED_OFFSETS,
    LogSlice,
    first_difference,
    has_nothing_at,
    is_copy,
    read_headers,
    read_slices,
)
from tolerant_client.mirror.batches.epochs import source_truncations
from tolerant_client.mirror.batches.gaps import is_filler, is_filler_marker
from tolerant_client.mirror.batches.losses import Loss
from tolerant_client.mirror.engine.identical.difference import (
    Case,
    Logs,
    Meaning,
    OpenTransaction,
    explain,
    has_times_rewritten,
    is_all_filler,
    is_found,
    misplaced,
    nothing_proves,
    overtaken,
    recreated,
    share_records,
)
from tolerant_client.mirror.engine.identical.places import ends_in_gap, fills_gap, step_back
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.topics import present_ids, topic_facts
from tolerant_client.records.record_batch import BatchHeader

_STEPS_BACK = 1000  # batches that are looked at for the last data, behind markers or for its sequence
_OTHERS_OFFSETS = 5_000  # of what others wrote after the link, that are compared
_UNKNOWN = TopicIds("", "")


class LogStart(NamedTuple):
    """The target's log is empty and the source's starts at `start`: that comes first (or is half done)."""

    state: AppendState
    start: int


Found = Meaning | LogStart | Unreplicated | OpenTransaction


async def read_append_states(
    source: Cluster,
    target: Cluster,
    partitions: Iterable[TopicPartition],
    producer_id: int,
    ledger: Ledger | None = None,
    copied: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
    control: LinkControl = LinkControl(),
    ids: Mapping[str, TopicIds] | None = None,
    *,
    at_high_watermark: bool = False,
) -> dict[TopicPartition, Found]:
    """Where each partition goes on, or why it cannot; one request a broker, not one a partition.

    Partitions that could not be read this time are absent, and where the target's replicas are behind nothing else is said;
    an open transaction is said in place of where to go on, not of a difference.
    What the ledger says already is not found again.
    `copied` says, where that is known, the source's leader epoch of the last batch that was copied and the offset up to
    which it was: the source is asked whether an election took back some of that, whatever its records are now.
    `control` says what was adopted, what the link has begun and copied, and where empty logs are to begin; `ids` are read_ids'.
    With `at_high_watermark` the logs are compared up to there, and no state is a place to append at.
    """
    wanted = list(partitions)
    ids = await read_ids(source, target, {p.topic for p in wanted}) if ids is None else ids
    truncated = await source_truncations(source, copied)
    logs, behind = await _bounds(source, target, wanted, control.adopted, at_high_watermark)
    cuts = {p: end for p, end in truncated.items() if p in logs and end < logs[p].target_end}
    last = await read_headers(target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written})
    bare = await has_nothing_at(
        target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written and p not in last}
    )
    last = {p: header for p, header in last.items() if header.next_offset == logs[p].target_end}
    logs = {p: log for p, log in logs.items() if not log.is_written or p in last or p in bare}
    own = {known for known in (producer_id, *control.producer_ids) if known >= 0}
    known = {p: end for p, end in control.copied.items() if p in logs and _is_begun(control, p, ids)}
    unproved = await _unproved(source, logs, last, own) | {
        p: logs[p].window for p in bare if logs[p].common[0] < logs[p].common[1]
    }
    originals = await read_slices(source, unproved, is_committed=True)
    ends = {
        p: (log.target_end - 1, log.target_end)
        for p, log in logs.items()
        if log.is_written and log.common[0] >= log.common[1]
    }
    copies = await read_slices(target, {**unproved, **ends}, is_committed=False)
    others = await _last_of_others(target, logs, last, own, known)
    strange, unknown = await _strangers(source, target, logs, others)
    others_differ, opened = await _differs_after_link(source, target, logs, {p: last[p] for p in others}, own, known)
    strange.difference_update(opened)  # what is not committed yet is no stranger's yet
    logs = {p: log for p, log in logs.items() if p not in unknown}
    last = {p: header for p, header in last.items() if p in logs}
    for p in ends.keys() & last.keys() & logs.keys():
        if last[p].is_control and not await ends_in_gap(target, p, last[p], own, logs[p].adopted, known.get(p, 0)):
            strange.add(p)
    states, remembered = await _append_states(target, logs, last, producer_id, own, at_high_watermark)

    link = ledger.link if ledger is not None else ""
    found: dict[TopicPartition, Found] = {**behind}
    troubled: list[Case] = []
    for p, state in states.items():
        log, now, copied_tail = logs[p], ids.get(p.topic, _UNKNOWN), copies.get(p)
        begun = control.begun[p] if _is_begun(control, p, ids) else None
        is_same_topic = begun is not None and bool(begun.source) and begun.source == now.source
        copied_to = None if begun is None else control.copied.get(p)
        differs_at = others_differ.get(p, first_difference(originals[p], copies[p]) if p in unproved else None)
        case = Case(
            p,
            log,
            last.get(p),
            state,
            cuts.get(p),
            producer_id,
            own,
            p in strange,
            is_same_topic,
            copied_to,
            differs_at,
        )
        is_end_known = (
            case.last is not None
            or log.adopted == log.target_end
            or begun is not None
            and log.target_end in (control.copied.get(p), control.log_starts.get(p))
            or p in remembered
            and state.next_sequence == add_sequence(log.target_end, 0)
        )
        is_proved = not case.is_strange and (
            is_end_known
            and (begun is not None or p in remembered or log.adopted > 0)
            or case.last is not None
            and (case.last.producer_id in own or is_filler_marker(case.last))
            or is_all_filler(copied_tail)
            or log.common[0] < log.common[1]
            and (p not in unproved or share_records(originals[p], copies[p]))
        )
        first = max(log.source_start, control.starts.get(p, 0))
        is_told = not at_high_watermark or p in last and _is_links(last[p], own)  # brokers may remember later batches
        if is_told and state.next_sequence > log.target_end:
            found[p] = misplaced(case)
        elif (start := await _start(target, p, log, first, copied_tail, control.log_starts.get(p))) is not None:
            found[p] = LogStart(state, start)
        elif log.target_end and begun is not None and not begun.is_of_source(now):
            found[p] = await recreated(source, target, case, link)
        elif log.target_end and not log.is_written and not is_proved:
            found[p] = nothing_proves(case)
        elif log.target_end < log.source_start and is_proved:
            found[p] = overtaken(case, link)
        elif (
            case.cut is not None
            or log.target_end > log.source_end
            or differs_at is not None
            or case.is_strange
            or has_times_rewritten(case)
        ):
            troubled.append(case)
        elif log.target_end and not is_proved:
            found[p] = nothing_proves(case)
        else:
            found[p] = state
    if troubled:
        rows = await ledger.rows(refresh=True) if ledger is not None else {}
        for case in troubled:
            what = await explain(source, target, case, link, rows.get(case.partition, ()))
            if what is not None:
                found[case.partition] = what
    untold = {p: what for p, what in opened.items() if not isinstance(found.get(p), (Loss, TolerantClientError))}
    return {**found, **untold}


async def read_ids(source: Cluster, target: Cluster, topics: Collection[str]) -> dict[str, TopicIds]:
    """The ids that topics have on both clusters now; "" of a cluster that tells none.

    A topic that one of them does not know is left out: whether it is the same is not known then.
    """
    there, here = await present_ids(source, topics), await present_ids(target, topics)
    both = [name for name in topics if name in there and name in here]
    return {name: TopicIds(*(str(of[name] or "") for of in (there, here))) for name in both}


async def _bounds(
    source: Cluster,
    target: Cluster,
    wanted: list[TopicPartition],
    adopted: Mapping[TopicPartition, int],
    at_high_watermark: bool,
) -> tuple[dict[TopicPartition, Logs], dict[TopicPartition, Unreplicated]]:
    # The target first: what it has by then, the source had before.
    target_start = await target.list_offsets(dict.fromkeys(wanted, EARLIEST))
    found: Mapping[TopicPartition, int | Unreplicated]
    if at_high_watermark:
        found = await target.list_offsets(dict.fromkeys(wanted, LATEST))
    else:
        found = await replicated_ends(target, wanted)
    target_end = {p: end for p, end in found.items() if isinstance(end, int)}
    behind = {p: end for p, end in found.items() if isinstance(end, Unreplicated)}
    wanted = list(target_end)
    source_start = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    # Nothing after the last stable offset was ever copied: what the target has there is somebody else's.
    source_end = await source.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    # A log that ends before what was adopted of it was made anew since.
    kept = {p: offset for p, offset in adopted.items() if offset <= target_end.get(p, 0)}
    return {
        p: Logs(source_start[p], source_end[p], target_start[p], target_end[p], kept.get(p, 0)) for p in wanted
    }, behind


async def _unproved(
    source: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets to compare of the partitions whose last batch is not proved by the headers alone.

    What another one than the link wrote may be a copy of a transaction that was aborted, which has the same headers.
    """
    comparable = {p: logs[p] for p in last if logs[p].common[0] < logs[p].common[1]}
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


async def _last_of_others(
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
    copied: Mapping[TopicPartition, int],
) -> dict[TopicPartition, BatchHeader]:
    """The last data batches of the logs in which somebody else than the link wrote last; its gaps are the link's.

    A log that ends where the link had `copied` it was proved before.  Where more bare markers than are looked at hide who
    wrote last, or the cleaner does, the log counts as others', with one of those markers.
    """
    ends = {
        p: h
        for p, h in last.items()
        if h.producer_id not in own and not is_filler_marker(h) and copied.get(p) != h.next_offset
    }
    least = _written_from(logs)
    data = await step_back(target, ends, least, _is_bare_marker, _STEPS_BACK)
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
    """The offsets of a batch that are compared."""
    return max(header.base_offset, header.next_offset - COMPARED_OFFSETS), header.next_offset


async def _differs_after_link(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    ends: Mapping[TopicPartition, BatchHeader],
    own: Collection[int],
    copied: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OpenTransaction]]:
    """Where logs that others wrote last differ after the link's last batch, of the last 5,000 offsets; what is open in others.

    A batch of theirs that is the source's says nothing of those before it, and one that they have aborted has no records.
    """
    if not ends:
        return {}, {}
    # Asked first: what is stable then is so in all that is read.
    stable = await target.list_offsets(dict.fromkeys(ends, LATEST), isolation_level=READ_COMMITTED)
    ours = await step_back(target, ends, _written_from(logs), lambda header: header.producer_id not in own)
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
    return found, {
        p: OpenTransaction(begins[p].producer_id if p in begins else -1, offset) for p, offset in unstable.items()
    }


def _is_begun(control: LinkControl, partition: TopicPartition, ids: Mapping[str, TopicIds]) -> bool:
    """Whether the link has begun this log of the target, and not another one of that name."""
    begun = control.begun.get(partition)
    return begun is not None and begun.is_of_target(ids.get(partition.topic, _UNKNOWN))


async def _strangers(
    source: Cluster,
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    others: Mapping[TopicPartition, BatchHeader],
) -> tuple[set[TopicPartition], set[TopicPartition]]:
    """The partitions whose last data batch, of `others`, is not the source's; and those of which that cannot be told now.

    A batch that takes the place of offsets without records on the source is proved by nothing.
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


# -- the next sequence --------------------------------------------------------


async def _append_states(
    target: Cluster,
    logs: Mapping[TopicPartition, Logs],
    last: Mapping[TopicPartition, BatchHeader],
    producer_id: int,
    own: Collection[int],
    at_high_watermark: bool,
) -> tuple[dict[TopicPartition, AppendState], set[TopicPartition]]:
    """What is appended next, and the partitions where a broker remembers the link."""
    ending = last.keys()
    # What was adopted others wrote: it says nothing of the link's sequence.
    last = {p: header for p, header in last.items() if header.next_offset > logs[p].adopted}
    unsaid = [p for p in logs if (p not in last or not _is_links(last[p], own)) and logs[p].target_end]
    entries: dict[TopicPartition, list[ProducerEntry]] = {}
    if unsaid and can_describe_producers(target):
        # As a race: 1. we read the log end, 2. another writer appends the next batch, 3. the broker tells us the sequence
        # behind it.  With both we would append that batch again, and the broker would take it.  So the log must still end
        # there once the sequence is known, for the leader too, which counts batches that are not replicated yet.
        told = await describe_producers(target, unsaid)
        ends = await log_end_offsets(target, told)
        # A comparison takes from them only that the link wrote here; without a last batch their sequence is its proof.
        later = ending if at_high_watermark else ()
        entries = {p: found for p, found in told.items() if ends.get(p) == logs[p].target_end or p in later}
    elif unsaid:
        # The link's last data lies before what fills gaps; before others' data none is looked for.
        last |= await step_back(
            target, {p: last[p] for p in unsaid if p in last}, _written_from(logs), fills_gap, _STEPS_BACK
        )
        entries = {p: [] for p in unsaid}
    untold = {
        p
        for p in entries
        if not entries[p] and not can_describe_producers(target) and not (p in last and _is_links(last[p], own))
    }
    states = {
        p: next_append(log.target_end, last.get(p), entries.get(p, ()), producer_id, own)
        for p, log in logs.items()
        if p not in unsaid or p in entries
    }
    # A broker that remembers another sequence than we guess would refuse it for ever.
    states |= {p: states[p]._replace(producer_id=NO_PRODUCER, next_sequence=0) for p in untold}
    return states, {p for p, known in entries.items() if link_entry(known, producer_id, own) is not None}


def next_append(
    log_end: int, last: BatchHeader | None, entries: Iterable[ProducerEntry], producer_id: int, own: Collection[int]
) -> AppendState:
    """The next append, from the log's last batch or, where that is no data batch of the link, from what the broker remembers.

    `own` are all producer ids of the link: whoever else wrote the same records may write on under his.
    """
    if last is not None and _is_links(last, own):
        sequence = add_sequence(last.base_sequence, last.last_offset_delta + 1)
        return AppendState(log_end, last.producer_id, last.producer_epoch, sequence)
    if (entry := link_entry(entries, producer_id, own)) is not None:
        return AppendState(log_end, entry.producer_id, entry.producer_epoch, add_sequence(entry.last_sequence, 1))
    # Nothing says a sequence.  The offset is one that all writers derive alike.
    return AppendState(log_end, producer_id, 0, add_sequence(log_end, 0))


def _is_links(header: BatchHeader, own: Collection[int]) -> bool:
    return header.producer_id in own and not fills_gap(header)


def _written_from(logs: Mapping[TopicPartition, Logs]) -> dict[TopicPartition, int]:
    """From which offset on the target's logs have what the link may have written."""
    return {p: max(log.target_start, log.adopted) for p, log in logs.items()}


# -- where a log starts -------------------------------------------------------


async def _start(
    target: Cluster, partition: TopicPartition, log: Logs, first: int, tail: LogSlice | None, filled_to: int | None
) -> int | None:
    """The offset to start the target's log at, `first` where nothing is begun; None when it has its start.

    A log that was to start elsewhere ends with filler, in its `tail`, before or at the offset that the control says.  No
    start is moved: what the source has had behind it since, and has no more, is a loss.
    """
    if log.target_end == 0:
        return first or None
    record = None if tail is None else tail.records.get(log.target_end - 1)
    # A copied record may look like filler, which the target of another link has: the control alone says whose it is.
    if filled_to is None or not log.target_end <= filled_to <= first or record is None or not is_filler(record):
        return None
    if log.target_end < filled_to:
        return filled_to
    if log.target_start >= filled_to:
        return None
    facts = (await topic_facts(target, [partition.topic])).get(partition.topic)
    return filled_to if facts is not None and facts.can_delete_records else None
