"""The status of a link, from both clusters, its control, its ledger and the claims log; nothing asks its processes.

How it is measured:
- lag in offsets, seconds and bytes: by lens.py; a sum is None if a part of it is unknown.  Offsets after the last stable offset
  wait for open transactions, and are reported separately, with the transactions.
- whether it moves: by two looks, _LOOK_S apart.
- whether a mirror runs, and why it says that partitions wait: by mirrors.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import LinkPromotedError, text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life.comparison import Comparison, compare_ends, is_comparable, without_paused
from tolerant_client.mirror.life.left_behind import as_left, unknown_left
from tolerant_client.mirror.life.lens import (
    PartitionLag,
    bytes_per_offset,
    look_led,
    open_spans,
    positions_of,
    written_ms,
)
from tolerant_client.mirror.life.mirrors import (
    BOUND_S,
    at_work,
    look_at_claims,
    mirror_json,
    mirror_reasons,
    require_not_forgotten,
    seen_mirrors,
    standing,
    untold_reasons,
    why_forgotten,
    within_bound,
)
from tolerant_client.mirror.life.owners import find_taken
from tolerant_client.mirror.life.promotion_report import deleted_texts
from tolerant_client.mirror.life.topic_status import TopicStatus, topics_of
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.control_topic import HIDDEN, UNKNOWN_ORDERS, read_control
from tolerant_client.mirror.state.health import (
    DELETED_ON_TARGET,
    WAITS_AFTER_S,
    Health,
    Reason,
    blocked_reasons,
    by_reason,
    counted,
    few,
    sorted_by_weight,
    waiting_reasons,
    with_pause,
    worst,
)
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC, Ledger
from tolerant_client.mirror.state.link_control import LinkControl, link_options, unfinished
from tolerant_client.mirror.state.link_topics import (
    beside_file,
    known_topics,
    see_topics,
    some,
    unread_map,
    written_topics,
)
from tolerant_client.mirror.state.map_topic import has_map, lost_map, mapped_topics, require_not_last
from tolerant_client.mirror.state.open_transactions import Held, find_held, is_held_long
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics

_LOOK_S = 2.0
ADOPTED_UNCOMPARED = (
    "what the link has adopted is not compared before its mirror has started for the first time; tolerant-kafka plan says"
    " whether it may"
)
TAKEN_UNKNOWN = "whether another link has topics of it is unknown: the target's controls could not be read in time"


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
    control = await read_control(target, link)
    if topics is None:
        await require_not_forgotten(target, link, control)
    chosen = topics or written_topics(control, link, None)
    mapped = await mapped_topics(target, link, control, within_s=BOUND_S)
    seen_source = None if is_source_away else source
    view = await see_topics(seen_source, target, chosen, control, mapped)
    if is_source_away:
        known = {p for p in (*control.begun, *control.copied) if chosen.writes(p.topic)}
        view = view.of_target_alone(known, mapped.names)
    elif not (view.on_source or view.hidden or view.gone or control.is_over):
        select_topics(chosen, await source.partitions())  # raises the reason why no topic matches
    has = {TopicPartition(t, n) for t, numbers in view.on_source.items() for n in numbers}
    wanted = sorted(has.union(control.copied_until))  # of a promoted link, though the source may have them no more
    is_translated = await has_map(target, link, control)
    ask_taken = partial(find_taken, target, link, control, wanted, mapped.names, is_translated=is_translated)
    # What another link has is its copy, or its producers' by now: our mirror is refused it, and comparing it says nothing.
    # Before the first start nothing says whether the link will have translated offsets, and may share topics.
    found = {} if control.is_over or control.topics is None else await within_bound(target, ask_taken)
    taken = found or {}
    wanted = [p for p in wanted if p not in taken]
    present = [p for p in wanted if p.partition in view.on_target.get(p.topic, ())]
    missing = sorted(set(wanted) - set(present))
    lost = await lost_map(target, link, control)
    notes: list[str] = []
    (first, _), began = await look_led(seen_source, target, link, present, is_translated, control), time.monotonic()
    await target.net.sleep(_LOOK_S)
    second, unseen = await look_led(seen_source, target, link, present, is_translated, control)
    if control.is_promotion_begun and seen_source is not None:
        second, unlike = await as_left(source, target, control, second)
        notes += unknown_left({**unseen, **unlike})
        notes += few(deleted_texts({e.partition: e.deleted for e in second if e.deleted}))
    left_behind = view.left_behind(known_topics(chosen, control, view.on_source) | mapped.names)
    if not control.is_over:
        unseen.update(view.why_gone)
        unseen.update(view.hidden)
    seconds = time.monotonic() - began
    ledger = Ledger(target, link)
    rows, unread = await read_rows(target, ledger)
    seen = [e.partition for e in second]
    compared = None
    if rows is not None and found is not None and not is_source_away:
        compared = await within_bound(target, compare_ends, source, target, seen, ledger, control, is_translated)
    second = await _with_age_and_size(source, second)
    now_ms = int(time.time() * 1000)
    deleted = [] if control.is_over else [p for p in missing if p in control.begun or p in control.copied]
    statuses = topics_of(second, now_ms, control, rows, {*unseen, *taken, *deleted})
    held = await find_held(source, held_spans(first, second))
    mirrors = await seen_mirrors(target, link, claims, looked)
    reasons = [
        Reason(Health.BLOCKED, text)
        for text in unfinished(control, link_options(link, target), link_options(link, target, source))
    ]
    if control.is_hidden:
        reasons.append(Reason(Health.UNKNOWN, f"{UNKNOWN_ORDERS}: {HIDDEN}"))
    if not control.is_over:
        notes += (await beside_file(None, target, control, link, topics if of_file else None)).kept
        differing = compared.differing if compared is not None else {}
        reasons += [Reason(Health.BLOCKED, lost)] if lost else []
        try:
            require_not_last(target, link, control, mapped.last)
        except LinkPromotedError as error:
            reasons.append(Reason(Health.BLOCKED, text_of(error)))
        reasons += blocked_reasons(taken)
        if found is None:
            reasons.append(Reason(Health.UNKNOWN, TAKEN_UNKNOWN))
        stopped, of_paused = without_paused(differing, control)
        reasons += [Reason(Health.BLOCKED, text) for text in stopped.values()]
        notes += of_paused
        kept = {p: why for p, why in left_behind.items() if not control.pauses(p)}
        reasons += blocked_reasons(with_pause(kept, link_options(link, target)))
        reasons += _unseen_reasons({p: why for p, why in unseen.items() if p not in left_behind})
        if view.unread:
            reasons.append(Reason(Health.UNKNOWN, unread_map(view.unread, link)))
        reasons += unread
        if is_comparable(control, is_translated):
            reasons += [] if is_source_away else uncompared_reasons(compared)
        elif control.adopted and not is_translated:
            notes.append(ADOPTED_UNCOMPARED)
        reasons += [Reason(Health.WAITING, str(one)) for one in held if is_held_long(one, now_ms)]
        waiting = standing(mirrors or (), {*differing, *taken, *left_behind}, control)
        waiting = {p: wait for p, wait in waiting.items() if view.has(p) or not chosen.writes(p.topic)}
        reasons += waiting_reasons(waiting)
        reasons += untold_reasons(mirrors or ())
        shorter = {p: why for p, why in shortened(second, control, is_translated).items() if p not in differing}
        reasons += [Reason(Health.WAITING, f"{names_of(of)}: {why}") for why, of in by_reason(shorter).items()]
        told = differing.keys() | waiting.keys() | shorter.keys()
        untold = [e for e in first if e.partition not in told]
        if still(untold, second, control, seconds):
            await source.net.sleep(max(0.0, began + WAITS_AFTER_S - time.monotonic()))
            after, away = await look_led(
                seen_source, target, link, [e.partition for e in untold], is_translated, control
            )
            reasons += still(untold, after, control, time.monotonic() - began)
            reasons += _unseen_reasons({p: why for p, why in away.items() if p not in unseen})
        reasons += mirror_reasons(link, mirrors)
        if (why := await why_forgotten(target, link, control, mirrors)) is not None:
            reasons.append(Reason(Health.UNKNOWN, why))
        if paused := control.paused_words:
            reasons.append(Reason(Health.PAUSED, f"an operator has paused {some(paused)}"))
        soon = made_soon([p for p in missing if p not in mapped.partitions], control, mirrors or ())
        reasons += missing_reasons([p for p in missing if p not in soon], control)
        notes += unmade_notes(soon)
    return LinkStatus(
        link,
        int(time.time() * 1000),
        is_translated,
        control.is_promoted,
        control.bytes_per_s,
        moved_per_s(first, second, seconds),
        tuple(statuses),
        sorted_by_weight(reasons),
        None if rows is None else tuple(row for found in rows.values() for row in found),
        () if control.is_over else None if is_source_away else tuple(held),
        control.is_handed_back,
        None if mirrors is None else tuple(mirrors),
        tuple(notes),
    )


async def _with_age_and_size(source: Cluster, seen: list[PartitionLag]) -> list[PartitionLag]:
    """Adds the age of the oldest record that is not copied, and the size of an offset, as far as the source says."""
    behind = {e.partition: e for e in seen if e.lag_offsets}
    if not behind:
        return seen
    headers = await within_bound(source, read_headers, source, positions_of(behind.values())) or {}
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


def made_soon(missing: Iterable[TopicPartition], control: LinkControl, mirrors: Iterable[Run]) -> list[TopicPartition]:
    """Partitions of new topics that a mirror at work was started with: it creates them, so nothing is wrong yet.  Pure."""
    if control.topics is None or not any(run.holds for run in at_work(mirrors)):
        return []
    started_with = LinkTopics.from_json(control.topics)
    known = control.begun.keys() | control.copied.keys()
    return [p for p in missing if p not in known and started_with.writes(p.topic)]


def unmade_notes(soon: Collection[TopicPartition]) -> list[str]:
    """A note about partitions that a running mirror will create.  Pure."""
    if not soon:
        return []
    return [
        f"{names_of(sorted(soon))}: not on the target yet: the running mirror creates what is missing the next time it looks for"
        " new topics (within 30 s, with --config within refresh.topics.interval.seconds), unless refresh.topics.enabled=false:"
        " then restart it"
    ]


def missing_reasons(missing: Collection[TopicPartition], control: LinkControl) -> list[Reason]:
    """Reasons for partitions that the target lacks; those that the link had begun to copy were deleted there.  Pure."""
    deleted = sorted(p for p in missing if p in control.begun or p in control.copied)
    unmade = sorted(set(missing).difference(deleted))
    reasons = []
    if deleted:
        reasons.append(Reason(Health.WAITING, f"{names_of(deleted)}: {DELETED_ON_TARGET}"))
    if unmade:
        number = f"{len(unmade)} partition{'s are' if len(unmade) > 1 else ' is'} not"
        text = f"{names_of(unmade)}: not on the target yet ({number}): no mirror has created it"
        reasons.append(Reason(Health.WAITING, text))
    return reasons


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


def moved_per_s(first: Iterable[PartitionLag], second: Iterable[PartitionLag], seconds: float) -> float | None:
    """Copied offsets per second, over the partitions that were seen twice; None without one.  Pure."""
    before = positions_of(first)
    moved = [position - before[p] for p, position in positions_of(second).items() if p in before]
    return sum(moved) / seconds if moved else None


def held_spans(first: Iterable[PartitionLag], second: Iterable[PartitionLag]) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets that open transactions held back in both looks, at the same last stable offset.  Pure."""
    before = open_spans(first)
    return {p: span for p, span in open_spans(second).items() if p in before and before[p][0] == span[0]}


def _unseen_reasons(unseen: Mapping[TopicPartition, str]) -> list[Reason]:
    texts = few(f"how far {names_of(of)} are is unknown: {why}" for why, of in by_reason(unseen).items())
    return [Reason(Health.UNKNOWN, text) for text in texts]


def uncompared_reasons(compared: Comparison | None) -> list[Reason]:
    """Reasons for logs that were not compared; None: the whole comparison took too long.  Pure."""
    if compared is None:
        text = "whether both logs are the same is unknown: they, or the ledger, could not be read in time"
        return [Reason(Health.UNKNOWN, text)]
    untold = {**compared.refused, **compared.opened}
    texts = few(f"{names_of(of)} could not be compared: {why}" for why, of in by_reason(untold).items())
    if compared.unread:
        texts.append(f"{names_of(sorted(compared.unread))} could not be compared with the source's log this time")
    return [Reason(Health.UNKNOWN, text) for text in texts]


def shortened(ends: Iterable[PartitionLag], control: LinkControl, is_translated: bool) -> dict[TopicPartition, str]:
    """Partitions whose target log ends before what the link had copied when it last came to rest, and how.  Pure.

    A log that is to begin at an offset may still be filled up to there.
    """
    return {
        e.partition: f"the target's log ends at offset {e.position}, and the link had copied it up to {copied}: it has lost"
        " records (unclean election), or its topic was created again; a mirror of the link fills it again from the source"
        for e in ends
        if not is_translated
        and e.position is not None
        and e.position < (copied := control.copied.get(e.partition, 0))
        and copied > control.log_starts.get(e.partition, 0)
    }


def still(
    first: Iterable[PartitionLag], second: Iterable[PartitionLag], control: LinkControl, seconds: float
) -> list[Reason]:
    """A reason if partitions do not move though they have offsets that can be copied; pure."""
    before = {e.partition: e for e in first if e.copyable}
    found = [
        e
        for e in second
        if e.partition in before
        and e.copyable
        and before[e.partition].position == e.position
        and not control.pauses(e.partition)
    ]
    if not found:
        return []
    top = max(found, key=lambda e: e.copyable)
    more = len(found) - 1
    others = f"; {counted(more, 'more partition')} {'stands' if more == 1 else 'stand'} still, too" if more else ""
    return [
        Reason(
            Health.WAITING,
            f"{top} has not moved for {seconds:.0f} s: it is at offset {top.position:,}, and {top.copyable:,} offsets could be"
            f" copied{others}{control.limit_words()}",
        )
    ]
