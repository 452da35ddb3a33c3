"""What was read of a link, as a value, and what that means for its health.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life.comparison import Comparison, is_comparable, without_paused
from tolerant_client.mirror.life.lens import PartitionLag, open_spans, positions_of
from tolerant_client.mirror.life.lost_copies import LOST_UNKNOWN, LostCopies
from tolerant_client.mirror.life.mirrors import at_work, mirror_reasons, standing, untold_reasons
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.control_topic import HIDDEN, UNKNOWN_ORDERS
from tolerant_client.mirror.state.health import (
    DELETED_ON_TARGET,
    TRANSLATED_COPY_DELETED,
    Health,
    Reason,
    blocked_reasons,
    by_reason,
    counted,
    few,
    kept_at_ends,
    waiting_reasons,
    with_pause,
)
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.lacking import Lacking, sort_lacking
from tolerant_client.mirror.state.link_control import LinkControl, unfinished
from tolerant_client.mirror.state.link_topics import LinkView, known_topics, some, unread_map
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.open_transactions import Held, is_held_long
from tolerant_client.mirror.state.topic_filter import LinkTopics

ADOPTED_UNCOMPARED = (
    "what the link has adopted is not compared before its mirror has started for the first time; tolerant-kafka plan says"
    " whether it may"
)
TAKEN_UNKNOWN = "whether another link has topics of it is unknown: the target's controls could not be read in time"


@dataclass(frozen=True)
class LinkScope:
    """What a link has, by its names on the target.

    `taken` are partitions that another link has, and why; None if that is unknown.  `lost_map` says that the offset map is lost.
    `lost` is what the target of a promoted link has no more of its copies (lost_copies.py); None if that is unknown.
    """

    link: str
    control: LinkControl
    topics: LinkTopics
    mapped: MappedTopics
    view: LinkView
    is_translated: bool
    taken: Mapping[TopicPartition, str] | None
    lost_map: str | None
    lost: LostCopies | None = LostCopies()

    @cached_property
    def partitions(self) -> list[TopicPartition]:
        """The link's partitions that no other link has."""
        return [p for p in partitions_of(self.view, self.control) if p not in (self.taken or ())]

    @cached_property
    def present(self) -> list[TopicPartition]:
        """Those that the target has."""
        return [p for p in self.partitions if p.partition in self.view.on_target.get(p.topic, ())]

    @cached_property
    def missing(self) -> list[TopicPartition]:
        """Those that the target lacks."""
        return sorted(set(self.partitions).difference(self.present))

    @cached_property
    def left_behind(self) -> dict[TopicPartition, str]:
        """Partitions that the link has copied and the source has no more, and what to do."""
        return self.view.left_behind(known_topics(self.topics, self.control, self.view.on_source) | self.mapped.names)

    @property
    def deleted(self) -> list[TopicPartition]:
        """Partitions that the link had copied and that were deleted on the target; after its promotion those with records only."""
        if self.control.is_over:
            return list(self.lost.deleted) if self.lost is not None else []
        gone, deleted, _ = sort_lacking(self.missing, self.control, self.mapped)
        return [p for p in (*gone, *deleted) if p not in self.view.hidden]


@dataclass(frozen=True)
class Looks:
    """The lags at `began` (monotonic seconds), and `seconds` later; why partitions were `unseen` then.

    `left_behind` says what a promoted link left behind on its source, or why that is unknown; `unled` why nothing can be
    appended to copies whose positions are known.
    """

    began: float
    first: Sequence[PartitionLag]
    seconds: float
    second: Sequence[PartitionLag]
    unseen: Mapping[TopicPartition, str]
    left_behind: Sequence[str] = ()
    unled: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkFacts:
    """What was read of a link at `now_ms`.

    `rows` are the ledger's, None for the reasons `unread`.  `compared` and `mirrors` are None if they could not be read in time.
    `of_target` and `of_both` are the options that name the link to a command.  What follows them is read of a link that copies:
    the topics that its file no longer names (`kept`), that its map calls it over (`is_over_in_map`), once more the lags of what
    stood still (`again`), and that its control has `forgotten` what a mirror copies.
    """

    scope: LinkScope
    looks: Looks
    now_ms: int
    is_source_away: bool
    rows: Mapping[TopicPartition, Iterable[LedgerRow]] | None
    unread: Sequence[Reason]
    compared: Comparison | None
    held: Sequence[Held]
    mirrors: Sequence[Run] | None
    of_target: str
    of_both: str
    kept: Sequence[str] = ()
    is_over_in_map: str | None = None
    again: Looks | None = None
    forgotten: str | None = None

    @property
    def unseen(self) -> dict[TopicPartition, str]:
        """Partitions of which it is unknown how far they are, and why."""
        view = self.scope.view
        if self.scope.control.is_over:
            return dict(self.looks.unseen)
        return {**self.looks.unseen, **view.why_gone, **view.hidden}

    @property
    def _found(self) -> Comparison:
        return Comparison({}) if self.compared is None else self.compared

    @property
    def differing(self) -> Mapping[TopicPartition, str]:
        return self._found.differing

    @property
    def unlike(self) -> Collection[TopicPartition]:
        """Partitions that differ so that how much of them is copied is unknown."""
        return self._found.unlike

    @property
    def unsettled(self) -> Mapping[TopicPartition, str]:
        return self._found.unsettled

    @cached_property
    def waiting(self) -> dict[TopicPartition, Waiting]:
        """What running mirrors report as waiting, without what is told by other reasons."""
        scope, told = self.scope, {*self.differing, *(self.scope.taken or ()), *self.scope.left_behind}
        waiting = standing(self.mirrors or (), told, scope.control)
        return {p: why for p, why in waiting.items() if scope.view.has(p) or not scope.topics.writes(p.topic)}

    @property
    def shorter(self) -> dict[TopicPartition, str]:
        found = shortened(self.looks.second, self.scope.control, self.scope.is_translated)
        return {p: why for p, why in found.items() if p not in self.differing}

    @property
    def ahead(self) -> dict[TopicPartition, str]:
        """Why partitions wait whose target's log goes on after the end of their source's, where no mirror tells it."""
        if self.compared is None or self.scope.is_translated:
            return {}
        untold = {*self.compared.refused, *self.compared.opened, *self.compared.unread, *self.compared.emptied}
        told = {*self.differing, *self.unsettled, *self.waiting, *untold}
        ends = {lag.partition: lag.source_end for lag in self.looks.second if lag.source_end is not None}
        found = kept_at_ends(positions_of(self.looks.second), ends)
        return {p: why for p, why in found.items() if p not in told and not self.scope.control.pauses(p)}

    @property
    def unexplained(self) -> list[PartitionLag]:
        """The first look at the partitions of which nothing else says why they stand still, if they do."""
        told = {*self.differing, *self.unsettled, *self.waiting, *self.shorter, *self.looks.unled}
        return [lag for lag in self.looks.first if lag.partition not in told]

    @property
    def seems_still(self) -> bool:
        """Whether a longer look is needed to see whether the link moves."""
        return bool(still(self.unexplained, self.looks.second, self.scope.control, self.looks.seconds))

    @property
    def made_soon(self) -> list[TopicPartition]:
        scope = self.scope
        unmapped = [p for p in scope.missing if p not in scope.mapped.partitions]
        return made_soon(unmapped, scope.control, self.mirrors or ())


def partitions_of(view: LinkView, control: LinkControl) -> list[TopicPartition]:
    """The partitions that the source has, and those of a promoted link, though the source may have them no more."""
    has = {TopicPartition(topic, number) for topic, numbers in view.on_source.items() for number in numbers}
    return sorted(has.union(control.copied_until))


def reasons_of(facts: LinkFacts) -> list[Reason]:
    """Why a link is not healthy."""
    control = facts.scope.control
    reasons = [Reason(Health.BLOCKED, text) for text in unfinished(control, facts.of_target, facts.of_both)]
    if control.is_hidden:
        reasons.append(Reason(Health.UNKNOWN, f"{UNKNOWN_ORDERS}: {HIDDEN}"))
    if control.is_over:
        reasons += _lost_reasons(facts.scope)
    else:
        reasons += [*_stop_reasons(facts), *_unknown_reasons(facts), *_wait_reasons(facts), *_mirror_reasons(facts)]
    return reasons


def _lost_reasons(scope: LinkScope) -> list[Reason]:
    """Reasons for copies of a promoted link that the target has no more."""
    texts = [LOST_UNKNOWN] if scope.lost is None else scope.lost.texts()
    return [Reason(Health.UNKNOWN, text) for text in texts]


def _stop_reasons(facts: LinkFacts) -> Iterator[Reason]:
    """Reasons why partitions are copied no further before a person has acted."""
    scope, control = facts.scope, facts.scope.control
    yield from (Reason(Health.BLOCKED, text) for text in (scope.lost_map, facts.is_over_in_map) if text)
    yield from blocked_reasons(scope.taken or {})
    if scope.taken is None:
        yield Reason(Health.UNKNOWN, TAKEN_UNKNOWN)
    stopped, _ = without_paused(facts.differing, control)
    yield from (Reason(Health.BLOCKED, text) for text in stopped.values())
    left_behind = {p: why for p, why in scope.left_behind.items() if not control.pauses(p)}
    yield from blocked_reasons(with_pause(left_behind, facts.of_target))


def _unknown_reasons(facts: LinkFacts) -> Iterator[Reason]:
    """Reasons for what could not be read or compared."""
    scope, left_behind = facts.scope, facts.scope.left_behind
    yield from _unseen_reasons({p: why for p, why in facts.unseen.items() if p not in left_behind})
    if scope.view.unread:
        yield Reason(Health.UNKNOWN, unread_map(scope.view.unread, scope.link))
    yield from facts.unread
    if is_comparable(scope.control, scope.is_translated) and not facts.is_source_away:
        yield from uncompared_reasons(facts.compared)


def _wait_reasons(facts: LinkFacts) -> Iterator[Reason]:
    """Reasons why partitions do not move now."""
    control = facts.scope.control
    yield from (Reason(Health.WAITING, str(one)) for one in facts.held if is_held_long(one, facts.now_ms))
    yield from waiting_reasons(facts.waiting)
    yield from (Reason(Health.WAITING, text) for text in facts.unsettled.values())
    yield from untold_reasons(facts.mirrors or ())
    unled = {p: why for p, why in facts.looks.unled.items() if not (p in facts.waiting or control.pauses(p))}
    for why, of in by_reason({**facts.ahead, **facts.shorter, **unled}).items():
        yield Reason(Health.WAITING, f"{names_of(of)}: {why}")
    if (again := facts.again) is not None:
        yield from still(again.first, again.second, facts.scope.control, again.seconds)
        unseen = facts.unseen
        yield from _unseen_reasons({p: why for p, why in again.unseen.items() if p not in unseen})


def _mirror_reasons(facts: LinkFacts) -> Iterator[Reason]:
    """Reasons in what an operator has ordered, and in what mirrors do or do not."""
    control, missing = facts.scope.control, facts.scope.missing
    yield from mirror_reasons(facts.scope.link, facts.mirrors)
    if facts.forgotten is not None:
        yield Reason(Health.UNKNOWN, facts.forgotten)
    if paused := control.paused_words:
        yield Reason(Health.PAUSED, f"an operator has paused {some(paused)}")
    soon = facts.made_soon
    yield from missing_reasons(sort_lacking((p for p in missing if p not in soon), control, facts.scope.mapped))


def notes_of(facts: LinkFacts) -> list[str]:
    """What an operator may want to know of a link though nothing is wrong with it."""
    scope = facts.scope
    if scope.control.is_over:
        return list(facts.looks.left_behind)
    _, of_paused = without_paused(facts.differing, scope.control)
    notes = [*facts.kept, *of_paused]
    if scope.control.adopted and not scope.is_translated and not is_comparable(scope.control, scope.is_translated):
        notes.append(ADOPTED_UNCOMPARED)
    return notes + unmade_notes(facts.made_soon)


def made_soon(missing: Iterable[TopicPartition], control: LinkControl, mirrors: Iterable[Run]) -> list[TopicPartition]:
    """Partitions of new topics that a mirror at work was started with: it creates them, so nothing is wrong yet."""
    if control.topics is None or not any(run.holds for run in at_work(mirrors)):
        return []
    started_with = LinkTopics.from_json(control.topics)
    known = control.begun.keys() | control.copied.keys()
    return [p for p in missing if p not in known and started_with.writes(p.topic)]


def unmade_notes(soon: Collection[TopicPartition]) -> list[str]:
    """A note about partitions that a running mirror will create."""
    if not soon:
        return []
    return [
        f"{names_of(sorted(soon))}: not on the target yet: the running mirror creates what is missing the next time it looks for"
        " new topics (within 30 s, with --config within refresh.topics.interval.seconds), unless refresh.topics.enabled=false:"
        " then restart it"
    ]


def missing_reasons(lacking: Lacking) -> list[Reason]:
    """Reasons for partitions that the target lacks."""
    gone, deleted, unmade = lacking
    reasons = [Reason(Health.BLOCKED, f"{names_of(gone)}: {TRANSLATED_COPY_DELETED}")] if gone else []
    if deleted:
        reasons.append(Reason(Health.WAITING, f"{names_of(deleted)}: {DELETED_ON_TARGET}"))
    if unmade:
        number = f"{len(unmade)} partition{'s are' if len(unmade) > 1 else ' is'} not"
        text = f"{names_of(unmade)}: not on the target yet ({number}): no mirror has created it"
        reasons.append(Reason(Health.WAITING, text))
    return reasons


def moved_per_s(first: Iterable[PartitionLag], second: Iterable[PartitionLag], seconds: float) -> float | None:
    """Copied offsets per second, over the partitions that were seen twice; None without one."""
    before = positions_of(first)
    moved = [position - before[p] for p, position in positions_of(second).items() if p in before]
    return sum(moved) / seconds if moved else None


def held_spans(first: Iterable[PartitionLag], second: Iterable[PartitionLag]) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets that open transactions held back in both looks, at the same last stable offset."""
    before = open_spans(first)
    return {p: span for p, span in open_spans(second).items() if p in before and before[p][0] == span[0]}


def unseen_texts(unseen: Mapping[TopicPartition, str]) -> list[str]:
    """A sentence for each reason why it is unknown how far partitions are copied."""
    return few(
        f"how far {names_of(of)} {'is' if len(of) == 1 else 'are'} copied is unknown: {why}"
        for why, of in by_reason(unseen).items()
    )


def _unseen_reasons(unseen: Mapping[TopicPartition, str]) -> list[Reason]:
    return [Reason(Health.UNKNOWN, text) for text in unseen_texts(unseen)]


def uncompared_reasons(compared: Comparison | None) -> list[Reason]:
    """Reasons for logs that were not compared; None: the whole comparison took too long."""
    if compared is None:
        text = "whether both logs are the same is unknown: they, or the ledger, could not be read in time"
        return [Reason(Health.UNKNOWN, text)]
    untold = {**compared.refused, **compared.opened}
    texts = few(f"{names_of(of)} could not be compared: {why}" for why, of in by_reason(untold).items())
    if compared.unread:
        texts.append(f"{names_of(sorted(compared.unread))} could not be compared with the source's log this time")
    return [Reason(Health.UNKNOWN, text) for text in texts]


def shortened(ends: Iterable[PartitionLag], control: LinkControl, is_translated: bool) -> dict[TopicPartition, str]:
    """Partitions whose target log ends before what the link had copied when it last came to rest, and how.

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
    """A reason if partitions do not move though they have offsets that can be copied."""
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
            f"{top} has not moved for {seconds:.0f} s: it is at offset {top.position:,}, and {counted(top.copyable, 'offset')} could be"
            f" copied{others}{control.limit_words()}",
        )
    ]
