"""Finds where each partition resumes.  The mirror's only state is the target's log: where it ends and who wrote its last batch.

The log is read before the first append of a session and after anything
unexpected (M2-M4).  What the target has must be what the source has; a
difference is reported, never overwritten.

Laws (what a difference means: difference.py):
- A batch is appended at the leader's log end, and only if all before it is replicated (admin/offsets.py); otherwise nothing of
  the partition is read yet.  A comparison appends nothing: it reads up to the high watermark, whatever a mirror has appended
  after it.
- The end of a log proves nothing.  A log is a copy up to its end if records of both sides were compared, or if the link wrote
  its last batch, or filled gaps, in a log that it began (control, `begun`).
- What others wrote must be a copy for read_committed consumers, too.  While a transaction is open in it, that is undecided.
- An emptied log does not show who wrote it: others may have written since, and deleted it.  Its end is the link's if the
  control records that the link had copied up to there (`copied`), or if the sequence that a broker remembers equals the log
  end: sequences begin at the offset and count only what the link's producer wrote.  Gaps filled by others' ids (transactions,
  markers) make them lag behind it.
- A log that the link has begun has a position even if nothing was copied: 0, or where it should begin.  What the source had
  there by then, and no longer has, is a loss; a log starts with the source's only if nothing of it was begun.
- A log that the link has begun to fill up to its start offset, and that has others' records below it, does not continue: the
  records are neither deleted with the filler nor copied over.
- A name is not a topic: a log of another topic than the one that the link has begun is no copy, whatever its end is.  An empty
  one is begun anew.  An offset where a log should begin applies only to the source topic in which it was found.
- The link's producer ids are all that it ever had; what they wrote is never called foreign.  The link writes under no other
  id, whoever wrote the batch before: that writer may continue, and a broker would take our batch for a repeat of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S
from tolerant_client.cluster.admin.offsets import Unreplicated, Untold, list_led_offsets, replicated_ends
from tolerant_client.cluster.admin.topics import present_ids
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Cluster
from tolerant_client.cluster.produce import add_sequence
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import first_difference
from tolerant_client.mirror.batches.gaps import is_filler_marker
from tolerant_client.mirror.batches.losses import Loss
from tolerant_client.mirror.engine.identical.difference import (
    Case,
    Meaning,
    OpenTransaction,
    created_again,
    explain,
    has_times_rewritten,
    is_all_filler,
    misplaced,
    nothing_proves,
    overtaken,
    recreated,
    share_records,
)
from tolerant_client.mirror.engine.identical.log_start import find_log_start
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.next_sequence import is_data_of, read_sequences
from tolerant_client.mirror.engine.identical.other_writers import (
    differs_after_link,
    find_strangers,
    last_of_others,
    unproved_tails,
)
from tolerant_client.mirror.engine.identical.places import ends_in_gap
from tolerant_client.mirror.logs.reading import has_nothing_at, read_headers, read_slices, source_truncations
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds


class LogStart(NamedTuple):
    """The target's log should begin at `start`, but is empty, or only filled up to there: making its start comes first."""

    state: AppendState
    start: int


Found = Meaning | LogStart | Unreplicated | OpenTransaction | Untold


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
    """Where each partition resumes, or why it cannot; one request for each broker, not for each partition.

    Partitions that could not be read this time are absent.  If a leader returns no offset, or the target's replicas are behind,
    only that is reported.  An open transaction is reported in place of a state, not in place of a difference.
    Losses that the ledger has already are not found again.
    `copied`, where known, has the source's leader epoch of the last copied batch and the offset up to which was copied: the
    source is asked whether an election truncated some of that, whatever its records are now.
    `control` says what was adopted, what the link has begun and copied, and where empty logs should begin; `ids` are read_ids'.
    With `at_high_watermark` the logs are compared up to there, and no state may be appended to.
    """
    wanted = list(partitions)
    ids = await read_ids(source, target, {p.topic for p in wanted}) if ids is None else ids
    truncated = await source_truncations(source, copied)
    logs, unknown_bounds = await _bounds(source, target, wanted, control.adopted, at_high_watermark)
    cuts = {p: end for p, end in truncated.items() if p in logs and end < logs[p].target_end}
    last = await read_headers(target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written})
    bare = await has_nothing_at(
        target, {p: log.target_end - 1 for p, log in logs.items() if log.is_written and p not in last}
    )
    last = {p: header for p, header in last.items() if header.next_offset == logs[p].target_end}
    logs = {p: log for p, log in logs.items() if not log.is_written or p in last or p in bare}
    own = {known for known in (producer_id, *control.producer_ids) if known >= 0}
    known = {p: end for p, end in control.copied.items() if p in logs and control.has_begun(p, ids)}
    unproved = await unproved_tails(source, logs, last, own) | {
        p: logs[p].window for p in bare if logs[p].common[0] < logs[p].common[1]
    }
    originals = await read_slices(source, unproved, is_committed=True)
    ends = {
        p: (log.target_end - 1, log.target_end)
        for p, log in logs.items()
        if log.is_written and log.common[0] >= log.common[1]
    }
    copies = await read_slices(target, {**unproved, **ends}, is_committed=False)
    others = await last_of_others(target, logs, last, own, known)
    strange, unknown = await find_strangers(source, target, logs, others)
    others_differ, opened = await differs_after_link(source, target, logs, {p: last[p] for p in others}, own, known)
    strange.difference_update(opened)  # what is not committed yet does not count as a stranger's
    logs = {p: log for p, log in logs.items() if p not in unknown}
    last = {p: header for p, header in last.items() if p in logs}
    for p in ends.keys() & last.keys() & logs.keys():
        if last[p].is_control and not await ends_in_gap(target, p, last[p], own, logs[p].adopted, known.get(p, 0)):
            strange.add(p)
    states, remembered = await read_sequences(target, logs, last, producer_id, own, at_high_watermark)
    states = {p: state._replace(topic_id=_target_id(ids, p)) for p, state in states.items()}

    link = ledger.link if ledger is not None else ""
    found: dict[TopicPartition, Found] = {**unknown_bounds}
    troubled: list[Case] = []
    for p, state in states.items():
        log, now, copied_tail = logs[p], ids.get(p.topic, TopicIds()), copies.get(p)
        begun = control.begun[p] if control.has_begun(p, ids) else None
        is_same_topic = begun is not None and bool(begun.source) and begun.source == now.source
        copied_to = None if begun is None else control.copied.get(p)
        differs_at = others_differ.get(p, first_difference(originals[p], copies[p]) if p in unproved else None)
        case = Case(
            link,
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
        # Without ids, an empty log that was copied before must have been created again since.
        is_own = begun is not None and (bool(begun.target) or not known.get(p, 0))
        given = control.start_of(p, now.source, None if is_own else log.source_end) or 0
        first = max(log.source_start, given)
        is_told = not at_high_watermark or p in last and is_data_of(last[p], own)  # brokers may remember later batches
        if log.target_end and p in control.begun and begun is None:
            found[p] = await created_again(target, case)
            continue
        is_unproved = begun is not None and not log.adopted and known.get(p, 0) < control.log_starts.get(p, 0)
        try:
            start = await find_log_start(
                target,
                p,
                log,
                first,
                copied_tail,
                control.log_starts.get(p),
                own,
                begun_at=control.log_starts.get(p) or given if is_own else None,
                is_unproved=is_unproved,
            )
        except Errors.OffsetNotAvailableError:
            continue
        if is_told and state.next_sequence > log.target_end:
            found[p] = misplaced(case)
        elif start is not None:
            found[p] = LogStart(state, start) if isinstance(start, int) else start
        elif begun is not None and not begun.is_of_source(now):
            found[p] = await recreated(source, target, case)
        elif log.target_end and not log.is_written and not is_proved:
            found[p] = nothing_proves(case)
        elif log.target_end < log.source_start and is_proved:
            found[p] = overtaken(case)
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
            what = await explain(source, target, case, rows.get(case.partition, ()))
            if what is not None:
                found[case.partition] = what
    untold = {p: what for p, what in opened.items() if not isinstance(found.get(p), (Loss, TolerantClientError))}
    return {**found, **untold}


async def read_ids(source: Cluster | None, target: Cluster, topics: Collection[str]) -> dict[str, TopicIds]:
    """The ids that topics have on both clusters now; "" for a cluster that has none, or is not asked.

    Without topics that one of them does not know: whether those are the same is unknown.
    """
    there = dict.fromkeys(topics) if source is None else await present_ids(source, topics)
    here = await present_ids(target, topics)
    both = [name for name in topics if name in there and name in here]
    return {name: TopicIds(*(str(of[name] or "") for of in (there, here))) for name in both}


async def _bounds(
    source: Cluster,
    target: Cluster,
    wanted: list[TopicPartition],
    adopted: Mapping[TopicPartition, int],
    at_high_watermark: bool,
) -> tuple[dict[TopicPartition, Logs], dict[TopicPartition, Unreplicated | Untold]]:
    unknown: dict[TopicPartition, Unreplicated | Untold] = {}

    async def told(
        cluster: Cluster, partitions: Iterable[TopicPartition], which: int, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, which)
        offsets, left_out = await list_led_offsets(cluster, asked, isolation_level=isolation_level, within_s=LATE_S)
        unknown.update((p, Untold(why)) for p, why in left_out.items())
        return offsets

    # The target first: whatever it has by then, the source had before.
    target_start = await told(target, wanted, EARLIEST)
    target_end: dict[TopicPartition, int] = {}
    if at_high_watermark:
        target_end = await told(target, target_start, LATEST)
    else:
        for p, end in (await replicated_ends(target, target_start)).items():
            if isinstance(end, int):
                target_end[p] = end
            else:
                unknown[p] = end
    source_start = await told(source, target_end, EARLIEST)
    # Nothing after the last stable offset was ever copied: what the target has there is somebody else's.
    source_end = await told(source, source_start, LATEST, READ_COMMITTED)
    # A log that ends before the end of what was adopted was created again since.
    kept = {p: offset for p, offset in adopted.items() if offset <= target_end.get(p, 0)}
    return {
        p: Logs(source_start[p], max(end, source_start[p]), target_start[p], target_end[p], kept.get(p, 0))
        for p, end in source_end.items()
    }, unknown


def _target_id(ids: Mapping[str, TopicIds], partition: TopicPartition) -> uuid.UUID | None:
    known = ids.get(partition.topic, TopicIds()).target
    return uuid.UUID(known) if known else None
