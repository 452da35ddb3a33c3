"""What a promoted link has left behind on its source, as `status` and a repeated promotion report it.

The copies end where the fence said (LinkControl.copied_until), and the committed records that the source has after that were left
behind: a transaction that was open when the source was lost may have been aborted since (committed.py).  What it has deleted of that
since is lost (PartitionLag.deleted), and counts as left behind: nothing tells how many committed records it had, unless a promotion
that was run again before has found none, and written that into the control (`empty_until`).  So was left behind what the source has in
partitions that no link had begun and the target does not have: no mirror had seen them, so what the source has deleted of them is not on
the target either, whenever that was.  What another link from this source has begun is that link's to tell.

All this is unknown where the target has such a partition, as its producers may have made it by now, where the source does not tell the
log's end, and where its log is no longer the one that was copied: where its topic was created again, where it ends before what was
copied, and where a link copies back into it.  Offsets are half-open, those of the source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_log_offsets
from tolerant_client.cluster.admin.topics import present_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.life.lens import END_UNKNOWN, MAP_LOST, NEVER_HAD, PartitionLag, look_led
from tolerant_client.mirror.life.lost_copies import begun_ids, lost_copies
from tolerant_client.mirror.life.mirrors import within_bound
from tolerant_client.mirror.life.owners import find_taken
from tolerant_client.mirror.life.promotion_groups import STAY, unmoved_groups
from tolerant_client.mirror.life.promotion_report import PromotedPartition, PromotionReport, left_text
from tolerant_client.mirror.logs.committed import count_committed
from tolerant_client.mirror.state.control_topic import read_controls, update_control
from tolerant_client.mirror.state.copied_back import copied_back
from tolerant_client.mirror.state.health import by_reason, few, names
from tolerant_client.mirror.state.link_control import GONE, LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats, unread_map
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics, copied_until, mapped_topics
from tolerant_client.mirror.state.map_topic import has_map, lost_map
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

_CREATED_AGAIN = "its topic was created again on the source"
_UNFINISHED = "its promotion, which had no control to read, is not finished"
_UNTOLD = "no copy is on the target, and whether there was one is unknown: its failover had no control to read"
_SHORTER = "the source's log ends before what was copied"


async def promoted_before(
    action: str,
    source: Cluster | None,
    target: Cluster,
    link: str,
    control: LinkControl,
    groups: TopicFilter | None,
    *,
    is_dry_run: bool,
) -> PromotionReport:
    """The report for a link that is fenced already: nothing is left to do, and what was left behind, or the target has lost, is told.

    With a source it names those of `groups` that no promotion has moved, and writes down, unless it is a dry run, where the source has
    no committed record after the copies: markers and aborted records, which it will delete; and what neither cluster has of what a
    failover did not find.  Raises OptionError for a source that is not the link's.
    """
    if source is not None:
        require_same_source(control, link, await source.cluster_id())
    ends, is_translated = control.copied_until, await has_map(target, link, control)
    warnings = [f"link {link} was promoted before; no topic and no group was changed"]
    lost = await lost_map(target, link, control)
    mapped = await mapped_topics(target, link, control) if is_translated and lost is None else NO_MAP
    if not ends and is_translated and lost is None:  # version 0.1 promoted it, and its map still says it
        ends = await copied_until(target, link, mapped.partitions)
        warnings += [unread_map(mapped.unread, link)] if mapped.unread else []
    copies = await lost_copies(source, target, link, control, mapped, lost)
    control = control.with_gone(copies.retired, is_translated=is_translated)
    not_known: list[str] = []
    if not ends:
        text = f"how far link {link} had copied is unknown: {lost or END_UNKNOWN}"
        (not_known if lost else warnings).append(text)
    lags, never = [PartitionLag(p, at) for p, at in sorted(ends.items())], list[PartitionLag]()
    topics = _topics_of(control)
    unmoved, alike, unknown = None, dict[TopicPartition, int](), dict[TopicPartition, str]()
    if source is not None and lags:
        seen, unseen = await look_led(source, target, link, list(ends), is_translated, control, lost)
        asked = source, target, link, control, mapped, lost
        never, untold = await never_copied(*asked, is_translated=is_translated)
        seen, unlike = await as_left(source, target, control, mapped, [*seen, *never])
        known = {e.partition: e for e in seen}
        lags = [known.get(e.partition, e) for e in (*lags, *never)]
        unknown = _of_data({**unseen, **untold, **unlike}, topics)
        alike = {p: at for p, at in ends.items() if p in known and p not in unlike}
    if source is not None and groups is not None and topics is not None:
        unmoved = await unmoved_groups(source, target, topics, groups, alike, map_of=link if is_translated else None)
        warnings += [STAY] if any(left.reason == "over" for left in unmoved.left) else []
    gone = {*copies.deleted, *copies.created_again}  # and what the source has of them was copied
    lags = [PartitionLag(e.partition, 0) if e.partition in gone else e for e in lags]
    rows = _rows(lags, topics)
    if source is not None:
        rows = await with_left(source, rows, lags)
        read = [e for e in lags if e.partition in ends or e in never]
        empty = _empty_until(rows, read)
        if not is_dry_run and (empty or copies.retired):
            await _write_found(target, link, control, copies.retired, empty, is_translated=is_translated)
    return PromotionReport(
        action,
        link,
        is_dry_run,
        True,
        tuple(rows),
        warnings=tuple(warnings),
        groups=unmoved,
        damaged=tuple(copies.texts()),
        unknown_left=(*not_known, *unknown_left(unknown)),
    )


def _empty_until(rows: Iterable[PromotedPartition], lags: Iterable[PartitionLag]) -> dict[TopicPartition, int]:
    """The ends of source logs that have offsets and no committed record after these copies.  Pure."""
    none = {TopicPartition(r.topic, r.partition) for r in rows if (r.left_records, r.left_unread) == (0, 0)}
    return {
        e.partition: e.source_end
        for e in lags
        if e.partition in none and e.source_end and e.lag_offsets and not e.deleted
    }


async def _write_found(
    target: Cluster,
    link: str,
    control: LinkControl,
    gone: Collection[TopicPartition],
    empty: Mapping[TopicPartition, int],
    *,
    is_translated: bool,
) -> None:
    def change(now: LinkControl) -> LinkControl:
        if not (now.is_promoted and now.copied_until == control.copied_until):
            return now
        return replace(now.with_gone(gone, is_translated=is_translated), empty_until={**now.empty_until, **empty})

    with suppress(Errors.TopicAuthorizationFailedError, Errors.MessageSizeTooLargeError):  # then it stays unknown
        await update_control(target, link, change)


async def never_copied(
    source: Cluster,
    target: Cluster,
    link: str,
    control: LinkControl,
    mapped: MappedTopics,
    lost: str | None,
    *,
    is_translated: bool,
) -> tuple[list[PartitionLag], dict[TopicPartition, str]]:
    """The lags of what the source has, or had, in partitions that no link had begun; and why it is unknown what was left of others."""
    if (topics := _topics_of(control)) is None:
        return [], {}
    there, here = await source.partitions(), await target.partitions()
    known = {*control.begun, *control.copied, *control.copied_until, *control.unfenced}
    # The map still has what neither cluster had: what the source has got since in topics of these names is new.
    known |= {p for p in (*control.mapped, *mapped.partitions) if control.mapped.get(p) != GONE}
    never = [
        p
        for name, numbers in there.items()
        if topics.writes(name) and not is_heartbeats(topics, name)
        for p in map(partial(TopicPartition, name), numbers)
        if p not in known
    ]
    if never:
        ask_taken = partial(find_taken, target, link, control, never, mapped.names, is_translated=is_translated)
        taken = await within_bound(target, ask_taken) or {}
        never = [p for p in never if p not in taken]
    if not (never and (never := await _begun_by_none(source, target, link, never))):
        return [], {}
    logs, untold = await list_led_log_offsets(source, never)
    seen = [PartitionLag(p, 0, log.last_stable, log.high_watermark, log.start) for p, log in sorted(logs.items())]
    lags = [e for e in (replace(e, begun_at=control.empty_until.get(e.partition, 0)) for e in seen) if e.left_offsets]
    why = MAP_LOST if is_translated and lost is not None else NEVER_HAD
    made = {e.partition: why for e in lags if e.partition.partition in here.get(e.partition.topic, ())}
    return [e for e in lags if e.partition not in made], {**untold, **made}


async def _begun_by_none(
    source: Cluster, target: Cluster, link: str, partitions: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Those of these partitions that no other link from this source has begun: what was left of the others is theirs to tell."""
    try:
        links = await within_bound(target, read_controls, target, frozenset(p.topic for p in partitions))
    except Errors.TopicAuthorizationFailedError:
        links = None
    source_id = await source.cluster_id()
    others = [
        other
        for name, other in ({} if links is None else links.links).items()
        if name != link and other.may_copy_from(source_id)
    ]
    begun = {p for other in others for p in (*other.begun, *other.copied, *other.copied_until)}
    return [p for p in partitions if p not in begun]


async def as_left(
    source: Cluster, target: Cluster, control: LinkControl, mapped: MappedTopics, lags: Iterable[PartitionLag]
) -> tuple[list[PartitionLag], dict[TopicPartition, str]]:
    """The lags of a promoted link, without the ends of source logs that are no longer what was copied; and why they are not.

    `mapped` is its whole map, which alone says of which topics the copies with translated offsets are.
    """
    if not (known := list(lags)):
        return [], {}
    ids = await within_bound(source, present_ids, source, sorted({e.partition.topic for e in known}))
    partitions = [e.partition for e in known]
    theirs = await within_bound(source, copied_back, source, target, partitions, control.copied_until)
    why: dict[TopicPartition, str] = {}
    begun = {**control.begun, **begun_ids(control, mapped)}
    for e in known:
        if ids is None or theirs is None:
            why[e.partition] = "the source did not respond in time"
        elif not begun.get(e.partition, TopicIds()).is_of_source(TopicIds(str(ids.get(e.partition.topic) or ""))):
            why[e.partition] = _CREATED_AGAIN
        elif e.partition in theirs:
            why[e.partition] = theirs[e.partition].why
        elif control.tells_no_start and not control.is_fenced and e.partition not in control.copied_until:
            why[e.partition] = _UNFINISHED  # whose marker ends the log is in the control with the last write
        elif control.is_of_unknown_source and control.is_identical and not e.position and e.source_end:
            why[e.partition] = _UNTOLD
    why = {**shorter(known), **why}
    return without_ends(known, why), why


async def left_texts(
    source: Cluster, control: LinkControl, lags: Sequence[PartitionLag], unknown: Mapping[TopicPartition, str]
) -> list[str]:
    """What a promoted link with these lags (as_left) left behind, as a repeated promotion says it; why of some that is `unknown`."""
    topics = _topics_of(control)
    found = left_text(await with_left(source, _rows(lags, topics), lags))
    return ([found] if found else []) + unknown_left(_of_data(unknown, topics))


def _topics_of(control: LinkControl) -> LinkTopics | None:
    return LinkTopics.from_json(control.topics) if control.topics else None


def _of_data(told: Mapping[TopicPartition, str], topics: LinkTopics | None) -> dict[TopicPartition, str]:
    return {p: text for p, text in told.items() if topics is None or not is_heartbeats(topics, p.topic)}


def _rows(lags: Iterable[PartitionLag], topics: LinkTopics | None) -> list[PromotedPartition]:
    """The rows of a report about copies that were promoted before."""
    return [
        PromotedPartition(
            e.partition.topic,
            e.partition.partition,
            e.position,
            e.left_offsets,
            last_copied_ms=None,
            is_heartbeats=topics is not None and is_heartbeats(topics, e.partition.topic),
            left_deleted=e.deleted,
        )
        for e in lags
    ]


async def with_left(
    source: Cluster, rows: Iterable[PromotedPartition], lags: Iterable[PartitionLag]
) -> list[PromotedPartition]:
    """With how many of the records that the source has after these copies are committed, but of heartbeats."""
    known = {TopicPartition(row.topic, row.partition): row for row in rows}
    data = [e for e in lags if not known[e.partition].is_heartbeats]
    spans = {e.partition: (e.source_end - (e.lag_offsets or 0), e.source_end) for e in data if e.source_end}
    found = await count_committed(source, spans)
    left = {
        p: replace(known[p], left_records=of.records, left_unread=spans[p][1] - of.until) for p, of in found.items()
    }
    return [*{**known, **left}.values()]


def shorter(lags: Iterable[PartitionLag]) -> dict[TopicPartition, str]:
    """The partitions whose source logs end before what was copied, and that they do.  Pure."""
    return {e.partition: _SHORTER for e in lags if e.ahead}


def without_ends(lags: Iterable[PartitionLag], unlike: Collection[TopicPartition]) -> list[PartitionLag]:
    """The lags without the ends of source logs that are not (any more) what was copied.  Pure."""
    return [replace(e, stable_end=None, source_end=None) if e.partition in unlike else e for e in lags]


def unknown_left(why: Mapping[TopicPartition, str]) -> list[str]:
    """Sentences about partitions of a promoted link of which nothing tells what it left behind.  Pure."""
    return few(f"what {names(of)} left behind on the source is unknown: {text}" for text, of in by_reason(why).items())
