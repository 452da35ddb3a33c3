"""Where the copies of promoted links end on a target: before their fence, from which on the log is its own.

The control says where a copy ended (version 0.1 did not write it), and the log has a marker of the link there; a failover that
knew less of its copy as such (damage.py) says an earlier offset, without one.  Once a link back copies, both logs go on as one: it
fills the fence's offset on the old source.  So a copy ends there only where the source's log ends, too, or has a record at that
offset, which was left behind: also one that is not committed, since a failover does not wait for open transactions.  Where the
source's log starts after that offset, it ends there unless a link has copied back.  But it lacks nothing up to the source's log start
if a promotion has found, before the source deleted that, that it had no committed record (`empty_until` of the control).

What a link has copied back has no such end: both logs go on as one until that link is promoted, and from there on each is its own.
What follows is not compared: the target is no longer the source's copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.gaps import is_filler
from tolerant_client.mirror.logs.reading import read_headers, read_slices
from tolerant_client.mirror.state.copied_back import CopiedBack, copied_back
from tolerant_client.mirror.state.link_control import LinkControl, Positions
from tolerant_client.mirror.verify.report import LogBounds


async def find_fences(
    source: Cluster, target: Cluster, promoted: Collection[LinkControl], bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    """The offsets of the fences of these promoted links in the target's logs."""
    ends = {p: b.source_end for p, b in bounds.items() if b.source_end is not None}
    fences: dict[TopicPartition, int] = {}
    for control in promoted:
        said = {p: offset for p, offset in control.copied_until.items() if p in ends}
        behind = {p: offset for p, offset in said.items() if (bounds[p].source_start or 0) <= offset < ends[p]}
        first = await _marked(target, control, behind, bounds)
        found = await read_slices(source, {p: (at, at + 1) for p, at in first.items()}, is_committed=False)
        left = {p: at for p, at in first.items() if any(not is_filler(r) for r in found[p].records.values())}
        before = {p: offset for p, offset in said.items() if offset < (bounds[p].source_start or 0)}
        if overtaken := await _marked(target, control, before, bounds):
            back = await copied_back(source, target, list(overtaken), control.copied_until)
            left |= {p: offset for p, offset in overtaken.items() if p not in back}
        at_end = await _marked(target, control, {p: end for p, end in ends.items() if p not in left}, bounds)
        # Two promotions at once write two fences.
        fences |= {**left, **{p: first.get(p, end) for p, end in at_end.items()}}
    return fences


def ended_copies(promoted: Iterable[LinkControl], copying: Iterable[LinkControl]) -> dict[TopicPartition, int]:
    """Where the last copies of promoted links ended, except for those that a link of `copying` copies again.  Pure."""
    again = {p for control in copying for p in (*control.begun, *control.adopted)}
    ended: dict[TopicPartition, int] = {}
    for control in promoted:
        ended |= {p: max(end, ended.get(p, end)) for p, end in control.copied_until.items() if p not in again}
    return ended


async def find_copied_back(
    source: Cluster,
    target: Cluster,
    ended: Positions,
    fences: Collection[TopicPartition],
    bounds: Mapping[TopicPartition, LogBounds],
) -> dict[TopicPartition, CopiedBack]:
    """Which of these copies, without a fence, a link has copied back; `until` is where that ended, if the target goes on there."""
    open_ended = bounds.keys() - set(fences)
    longer = [p for p, end in ended.items() if p in open_ended and (bounds[p].source_end or 0) > end]
    found = await copied_back(source, target, longer, ended) if longer else {}
    return {
        p: back if back.until is not None and back.until < (bounds[p].target_end or 0) else back._replace(until=None)
        for p, back in found.items()
    }


def ends_before(
    fences: Positions,
    back: Mapping[TopicPartition, CopiedBack],
    empty: Positions,
    bounds: Mapping[TopicPartition, LogBounds],
) -> dict[TopicPartition, LogBounds]:
    """These bounds, but the copies end before these fences, or where a link `back` has ended.  Pure.

    The source had no record there before the offsets `empty`.
    """
    found = dict(bounds)
    ends = {p: of.until for p, of in back.items() if p in bounds and of.until is not None}
    for p, fence in {**ends, **fences}.items():
        start = bounds[p].source_start or 0
        end = start if fence < start <= empty.get(p, 0) else fence
        found[p] = bounds[p]._replace(target_end=end, target_stable=min(bounds[p].target_stable or 0, end))
    return found


async def _marked(
    target: Cluster, control: LinkControl, offsets: Positions, bounds: Mapping[TopicPartition, LogBounds]
) -> Positions:
    """Those of these offsets at which the target's log has a marker of the link."""
    there = {p: at for p, at in offsets.items() if (bounds[p].target_start or 0) <= at < (bounds[p].target_end or 0)}
    headers = await read_headers(target, there) if control.producer_ids and there else {}
    return {
        p: there[p]
        for p, header in headers.items()
        if header.is_control and header.producer_id in control.producer_ids and header.base_offset == there[p]
    }
