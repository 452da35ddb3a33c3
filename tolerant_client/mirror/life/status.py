"""The status of a link, from both clusters, its control, its ledger and the claims log; nothing asks its processes.

How it is measured:
- lag in offsets, seconds and bytes: by lens.py; a sum is None if a part of it is unknown.  Offsets after the last stable offset
  wait for open transactions, and are reported separately, with the transactions.
- whether it moves: by two looks, _LOOK_S apart.
- whether a mirror runs, and why it says that partitions wait: by mirrors.py.
- what it means: status_reasons.py decides by what was read, purely.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import LinkPromotedError, text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.preflight import require_same_source, unled_copies
from tolerant_client.mirror.life.comparison import compare_ends
from tolerant_client.mirror.life.left_behind import as_left, left_texts, never_copied
from tolerant_client.mirror.life.lens import PartitionLag, bytes_per_offset, look_led, positions_of, written_ms
from tolerant_client.mirror.life.lost_copies import lost_copies
from tolerant_client.mirror.life.mirrors import (
    BOUND_S,
    look_at_claims,
    mirror_json,
    require_not_forgotten,
    seen_mirrors,
    why_forgotten,
    within_bound,
)
from tolerant_client.mirror.life.owners import find_taken
from tolerant_client.mirror.life.status_reasons import (
    LinkFacts,
    LinkScope,
    Looks,
    held_spans,
    moved_per_s,
    notes_of,
    partitions_of,
    reasons_of,
)
from tolerant_client.mirror.life.topic_status import TopicStatus, topics_of
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import WAITS_AFTER_S, Health, Reason, sorted_by_weight, worst
from tolerant_client.mirror.state.lacking import without_former
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, Ledger
from tolerant_client.mirror.state.link_control import link_options
from tolerant_client.mirror.state.link_topics import beside_file, see_topics, written_topics
from tolerant_client.mirror.state.map_rows import NO_MAP, mapped_topics, require_not_last
from tolerant_client.mirror.state.map_topic import has_map, lost_map
from tolerant_client.mirror.state.open_transactions import Held, find_held
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records.record_batch import BatchHeader

_LOOK_S = 2.0
_UNSHOWN = "nothing on the target shows that the link has copied to it"
_LEFT_UNKNOWN = "what it left behind on the source is unknown: the source does not respond"


@dataclass(frozen=True)
class LinkStatus:
    """A link at `time_ms`; `reasons` say what is not healthy, the worst first (health.py).

    `is_translated`, `is_promoted` and `copied_per_s` are None if the target does not respond.
    """

    link: str
    time_ms: int
    is_translated: bool | None
    is_promoted: bool | None
    bytes_per_s: int | None
    copied_per_s: float | None
    topics: tuple[TopicStatus, ...]
    reasons: tuple[Reason, ...]
    losses: tuple[LedgerRow, ...] | None = ()
    open_transactions: tuple[Held, ...] | None = ()
    is_handed_back: bool | None = False
    mirrors: tuple[Run, ...] | None = ()  # seen in the last hour, the newest last
    notes: tuple[str, ...] = ()  # what a promotion would also take, what a running mirror will create

    @property
    def health(self) -> Health:
        """The worst reason; without one, whether the link is handed back, promoted or healthy."""
        if self.reasons:
            return worst(self.reasons)
        if self.is_handed_back:
            return Health.HANDED_BACK
        return Health.PROMOTED if self.is_promoted else Health.HEALTHY

    @property
    def findings(self) -> tuple[str, ...]:
        """What an operator has to check, one sentence each."""
        return tuple(reason.text for reason in self.reasons if reason.health.code)

    @property
    def exit_code(self) -> int:
        return self.health.exit_code

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(replace(self, mirrors=())),
            "mirrors": None if self.mirrors is None else [mirror_json(run) for run in self.mirrors],
            "reasons": [reason._asdict() for reason in self.reasons],
            "losses": None if self.losses is None else [row._asdict() for row in self.losses],
            "open_transactions": None
            if self.open_transactions is None
            else [held.to_json() for held in self.open_transactions],
            "findings": self.findings,
            "health": self.health,
            "exit_code": self.exit_code,
        }


async def read_status(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics | None = None,
    *,
    of_file: bool = False,
    is_source_away: bool = False,
) -> LinkStatus:
    """The status of a link; without `topics` its control says which it has.

    Notes what the link has besides topics `of_file`.  A source that `is_source_away` is not asked.  A broker that does not respond
    delays it by some seconds, and its partitions are unknown.  Raises OptionError if nothing says what the link copies, KafkaError.
    """
    claims, looked = await look_at_claims(target), time.monotonic()
    seen_source = None if is_source_away else source
    scope = await _read_scope(source, target, link, topics, is_source_away=is_source_away)
    looks = await _look_twice(seen_source, target, scope)
    ledger = Ledger(target, link)
    rows, unread = await read_rows(target, ledger)
    compared = None
    if rows is not None and scope.taken is not None and not is_source_away:
        seen, control = [lag.partition for lag in looks.second], scope.control
        compared = await within_bound(target, compare_ends, source, target, seen, ledger, control, scope.is_translated)
    if scope.control.is_unwritten and compared is None and not scope.is_translated:  # by its end alone it is no copy
        unshown = {lag.partition: _UNSHOWN for lag in looks.second if lag.position}
        there = [lag for lag in looks.second if not lag.position]
        looks = replace(looks, second=there, unseen={**looks.unseen, **unshown})
    looks = replace(looks, second=await _with_age_and_size(source, target, looks.second))
    now_ms = int(time.time() * 1000)
    facts = LinkFacts(
        scope,
        looks,
        now_ms,
        is_source_away,
        rows,
        unread,
        compared,
        await find_held(source, held_spans(looks.first, looks.second)),
        await seen_mirrors(target, link, claims, looked),
        link_options(link, target),
        link_options(link, target, source),
    )
    if not scope.control.is_over:
        facts = await _read_of_copying(seen_source, target, facts, topics if of_file else None)
    return status_of(facts, int(time.time() * 1000))


async def _read_scope(
    source: Cluster, target: Cluster, link: str, topics: LinkTopics | None, *, is_source_away: bool
) -> LinkScope:
    control = await read_control(target, link)
    if topics is None:
        await require_not_forgotten(target, link, control)
    if not is_source_away:
        require_same_source(control, link, await source.cluster_id())
    chosen = topics or written_topics(control, link, None)
    lost = await lost_map(target, link, control)
    mapped = NO_MAP if lost else await mapped_topics(target, link, control, within_s=BOUND_S)
    if not (is_source_away or control.is_over):
        mapped = await without_former(source, target, mapped)
    view = await see_topics(None if is_source_away else source, target, chosen, control, mapped)
    if is_source_away:
        known = {p for p in (*control.begun, *control.copied) if chosen.writes(p.topic)}
        view = view.of_target_alone(known, mapped.names)
    elif not (view.on_source or view.hidden or view.gone or control.is_over):
        select_topics(chosen, await source.partitions())  # raises the reason why no topic matches
    wanted = partitions_of(view, control)
    is_translated = await has_map(target, link, control)
    ask_taken = partial(find_taken, target, link, control, wanted, mapped.names, is_translated=is_translated)
    # What another link has is its copy, or its producers' by now: our mirror is refused it, and comparing it says nothing.
    # Before the first start nothing says whether the link will have translated offsets, and may share topics.
    taken = {} if control.is_over or control.topics is None else await within_bound(target, ask_taken)
    reached = None if is_source_away else source
    copies = await within_bound(target, lost_copies, reached, target, link, control, mapped, lost)
    if copies is not None:
        control = control.with_gone(copies.retired, is_translated=is_translated)
    return LinkScope(link, control, chosen, mapped, view, is_translated, taken, lost, copies)


async def _look_twice(source: Cluster | None, target: Cluster, scope: LinkScope) -> Looks:
    asked = (source, target, scope.link, scope.present, scope.is_translated, scope.control, scope.lost_map)
    (first, _), began = await look_led(*asked), time.monotonic()
    await target.net.sleep(_LOOK_S)
    second, unseen = await look_led(*asked)
    seconds, left = time.monotonic() - began, list[str]()
    if scope.control.is_promotion_begun:
        left = [_LEFT_UNKNOWN]
        if source is not None:
            never, untold = list[PartitionLag](), dict[TopicPartition, str]()
            if scope.control.is_fenced:
                asked_never = source, target, scope.link, scope.control, scope.mapped, scope.lost_map
                never, untold = await never_copied(*asked_never, is_translated=scope.is_translated)
            seen, unlike = await as_left(source, target, scope.control, scope.mapped, [*second, *never])
            # never_copied tells of what the link had not begun, and whose it is; version 0.1 did not write what it had.
            fenced = scope.control.copied_until if scope.control.is_fenced else {}
            unknown = {p: why for p, why in unseen.items() if p in fenced or not fenced}
            lost = {*scope.lost.deleted, *scope.lost.created_again} if scope.lost is not None else set()
            kept = [e for e in seen if e.partition not in lost]  # what the source has of the others was copied
            left = await left_texts(source, scope.control, kept, {**unknown, **untold, **unlike})
            second = seen[: len(second)]
    unled: Mapping[TopicPartition, str] = {}
    if scope.is_translated and not scope.control.is_promotion_begun:  # else the copies themselves tell where they end
        unled = await unled_copies(target, scope.present, scope.link)
    return Looks(began, first, seconds, second, unseen, left, {p: why for p, why in unled.items() if p not in unseen})


async def _read_of_copying(
    source: Cluster | None, target: Cluster, facts: LinkFacts, of_file: LinkTopics | None
) -> LinkFacts:
    """With what is read only of a link that has not been promoted."""
    scope, began = facts.scope, facts.looks.began
    facts = replace(
        facts, kept=(await beside_file(None, target, scope.control, scope.link, of_file, scope.mapped)).kept
    )
    try:
        require_not_last(target, scope.link, scope.control, scope.mapped.last)
    except LinkPromotedError as error:
        facts = replace(facts, is_over_in_map=text_of(error))
    if facts.seems_still:
        first = facts.unexplained
        await target.net.sleep(max(0.0, began + WAITS_AFTER_S - time.monotonic()))
        asked = [lag.partition for lag in first]
        after, away = await look_led(
            source, target, scope.link, asked, scope.is_translated, scope.control, scope.lost_map
        )
        facts = replace(facts, again=Looks(began, first, time.monotonic() - began, after, away))
    return replace(facts, forgotten=await why_forgotten(target, scope.link, scope.control, facts.mirrors))


def status_of(facts: LinkFacts, time_ms: int) -> LinkStatus:
    """What all that was read of a link says of it.  Pure."""
    scope, looks, rows = facts.scope, facts.looks, facts.rows
    again = {*(scope.lost.created_again if scope.lost is not None else ()), *facts.unlike}
    unknown = {*facts.unseen, *(scope.taken or ()), *scope.deleted, *again}
    there = [lag for lag in looks.second if lag.partition not in again]
    open_transactions = None if facts.is_source_away else tuple(facts.held)
    return LinkStatus(
        scope.link,
        time_ms,
        scope.is_translated,
        scope.control.is_promoted,
        scope.control.bytes_per_s,
        moved_per_s(looks.first, looks.second, looks.seconds),
        tuple(topics_of(there, facts.now_ms, scope.control, rows, unknown)),
        sorted_by_weight(reasons_of(facts)),
        None if rows is None else tuple(row for found in rows.values() for row in found),
        () if scope.control.is_over else open_transactions,
        scope.control.is_handed_back,
        None if facts.mirrors is None else tuple(facts.mirrors),
        tuple(notes_of(facts)),
    )


async def _with_age_and_size(source: Cluster, target: Cluster, seen: Sequence[PartitionLag]) -> Sequence[PartitionLag]:
    """Adds the age of the oldest record that is not copied, and the size of an offset, as far as the source says."""
    behind = {e.partition: e for e in seen if e.lag_offsets}
    if not behind:
        return seen
    headers: Mapping[TopicPartition, BatchHeader] = {}
    if not source.quota_words():  # no quota of the source is waited for, as while both logs are compared
        headers = await within_bound(target, read_headers, source, positions_of(behind.values())) or {}
    ask = partial(bytes_per_offset, source, {p: e.source_end for p, e in behind.items() if e.source_end is not None})
    sizes = await within_bound(source, source.insist, "asking what logs take", ask) or {}
    return [
        replace(
            e,
            oldest_ms=written_ms(headers[e.partition]) if e.partition in headers else None,
            bytes_per_offset=sizes.get(e.partition),
        )
        for e in seen
    ]


async def read_rows(
    target: Cluster, ledger: Ledger
) -> tuple[Mapping[TopicPartition, Iterable[LedgerRow]] | None, list[Reason]]:
    """The link's rows of the ledger; None and a reason if it cannot be read now, or we may not read it."""
    why = "could not be read in time"
    try:
        if (rows := await within_bound(target, ledger.rows)) is not None:
            return rows, []
    except Errors.TopicAuthorizationFailedError:
        why = f"may not be read: grant us Read and Describe on topic {LEDGER_TOPIC} of it"
    return None, [Reason(Health.UNKNOWN, f"what was lost is unknown: the ledger on the target {why}")]
