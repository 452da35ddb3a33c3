"""Finds where each partition resumes.  The mirror's only state is the target's log: where it ends and who wrote its last batch.

The log is read before the first append of a session and after anything
unexpected (M2-M4).  What the target has must be what the source has; a
difference is reported, never overwritten.  evidence.py reads both logs,
where_to_resume decides purely, and difference.py reads more where they differ.

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
  there by then, and no longer has, is a loss; a log starts with the source's only if nothing of it was begun.  Nothing there can be
  compared: whether the source was cut below that and has grown past it, its leader epoch at the start tells (`start_epochs`).
- A log that the link has begun to fill up to its start offset, and that has others' records below it, does not continue: the
  records are neither deleted with the filler nor copied over.
- A name is not a topic: a log of another topic than the one that the link has begun is no copy, whatever its end is.  The control is
  read again before that is said: it was read before the log, which the link's mirror may have begun anew since.  An empty log
  is begun anew.  An offset where a log should begin applies only to the source topic in which it was found.
- The link's producer ids are all that it ever had; what they wrote is never called foreign.  The link writes under no other
  id, whoever wrote the batch before: that writer may continue, and a broker would take our batch for a repeat of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import Unreplicated, Untold
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.losses import Loss
from tolerant_client.mirror.engine.circles import is_original, links_back, links_into
from tolerant_client.mirror.engine.copied_by_mm2 import take_over_first
from tolerant_client.mirror.engine.identical.difference import (
    Case,
    Meaning,
    OpenTransaction,
    created_again,
    explain,
    fenced,
    misplaced,
    nothing_proves,
    overtaken,
    recreated,
)
from tolerant_client.mirror.engine.identical.evidence import Evidence, Known, read_evidence, with_anew
from tolerant_client.mirror.engine.identical.log_start import find_log_start
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.mm2_positions import KnownPositions
from tolerant_client.mirror.state.topics import read_ids


class LogStart(NamedTuple):
    """The target's log should begin at `start`, but is empty, or only filled up to there: making its start comes first."""

    state: AppendState
    start: int


Found = Meaning | LogStart | Unreplicated | OpenTransaction | Untold


class ToExplain(Enum):
    """The logs do not agree: more has to be read of them to say what that means (difference.py)."""

    DIFFERENCE = auto()
    RECREATION = auto()  # of the source's topic


async def read_append_states(
    source: Cluster,
    target: Cluster,
    partitions: Iterable[TopicPartition],
    producer_id: int,
    ledger: Ledger | None = None,
    copied: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({}),
    control: LinkControl = LinkControl(),
    ids: Mapping[str, TopicIds] | None = None,
    mm2: KnownPositions | None = None,
    *,
    into_source: Controls | None = None,
    at_high_watermark: bool = False,
) -> dict[TopicPartition, Found]:
    """Where each partition resumes, or why it cannot.

    Partitions that could not be read this time are absent.  If a leader returns no offset, or the target's replicas are behind,
    only that is reported.  An open transaction is reported in place of a state, not in place of a difference.
    Losses that the ledger has already are not found again.
    `copied`, where known, has the source's leader epoch of the last copied batch and the offset up to which was copied: the
    source is asked whether an election truncated some of that, whatever its records are now.
    `control` says what was adopted, what the link has begun and copied, and where empty logs should begin; `ids` are read_ids'.
    What it says of a former topic is read again, for which the ledger names the link.  `mm2` is what is known of MirrorMaker 2.
    `into_source` are links_into the source, read if they are needed and not given.
    With `at_high_watermark` the logs are compared up to there, and no state may be appended to.
    """
    wanted = list(partitions)
    ids = await read_ids(source, target, {p.topic for p in wanted}) if ids is None else ids
    link = ledger.link if ledger is not None else ""
    known = Known(link, producer_id, control, ids, copied, at_high_watermark)
    read = await read_evidence(source, target, wanted, known)
    if link and (former := [p for p, evidence in read.evidence.items() if evidence.is_created_again]):
        now = await read_control(target, link)
        if begun := {p for p in former if now.begun.get(p, control.begun[p]) != control.begun[p]}:
            known = replace(known, control=_begun_since(control, now, begun))
            read = read.replaced(begun, await read_evidence(source, target, begun, known))
    found: dict[TopicPartition, Found] = {**read.left_out}
    differing: list[Case] = []
    for p, evidence in read.evidence.items():
        if evidence.is_created_again:
            found[p] = await created_again(target, evidence.case)
            continue
        try:
            start = await find_log_start(target, evidence)
        except Errors.OffsetNotAvailableError:
            continue
        match where_to_resume(evidence, start):
            case ToExplain.RECREATION:
                found[p] = await recreated(source, target, evidence.case)
            case ToExplain.DIFFERENCE:
                differing.append(evidence.case)
            case placed:
                found[p] = placed
    if differing:
        rows = await ledger.rows(refresh=True) if ledger is not None else {}
        strange = [one.partition for one in differing if not one.is_begun]
        of_mm2 = await take_over_first(source, target, link, mm2 or KnownPositions(target), strange) if strange else {}
        if strange and into_source is None:
            into_source = await links_into(source)
        back = links_back(into_source, await target.cluster_id()) if strange else []
        for one in differing:
            case = one._replace(mm2=of_mm2.get(one.partition, ""))
            what = await explain(source, target, case, rows.get(one.partition, ()))
            if isinstance(what, TargetDivergedError) and one.partition in strange:
                what = is_original(source, target, link, one.partition, back) or what
            if what is not None:
                found[one.partition] = what
    untold = {p: what for p, what in read.opened.items() if not isinstance(found.get(p), (Loss, TolerantClientError))}
    return {**found, **untold}


def _begun_since(control: LinkControl, now: LinkControl, partitions: Collection[TopicPartition]) -> LinkControl:
    """The control with what it says `now` of partitions whose logs were begun anew since it was read.  Pure."""
    return replace(
        control,
        begun=with_anew(control.begun, now.begun, partitions),
        copied=with_anew(control.copied, now.copied, partitions),
        log_starts=with_anew(control.log_starts, now.log_starts, partitions),
        producer_ids=tuple(dict.fromkeys((*control.producer_ids, *now.producer_ids))),
    )


def where_to_resume(evidence: Evidence, start: int | TargetDivergedError | None) -> Found | ToExplain:
    """Where a partition resumes by what was read of it; `start` is where its log should begin and does not (log_start.py).  Pure."""
    case, logs = evidence.case, evidence.case.logs
    if case.last is not None and case.is_fence(case.last):
        return fenced(case, case.last)
    if evidence.is_sequence_ahead:
        return misplaced(case)
    if start is not None:
        return LogStart(case.state, start) if isinstance(start, int) else start
    if evidence.begun is not None and not evidence.begun.is_of_source(evidence.ids):
        return ToExplain.RECREATION
    if logs.target_end and not logs.is_written and not evidence.is_proved:
        return nothing_proves(case)
    if logs.target_end < logs.source_start and evidence.is_proved:
        return overtaken(case)
    if evidence.is_contradicted:
        return ToExplain.DIFFERENCE
    if logs.target_end and not evidence.is_proved:
        return nothing_proves(case)
    return case.state
