"""Which topics a link back takes, and what it adopts, deletes and refuses, decided from what failback.py has read, whose laws these are.

Pure.  `forward` are the links from the target to the source, `into_target` those into the target, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.circles import failback_command, only_topics, topics_option
from tolerant_client.mirror.life.failback_blockers import (
    blockers,
    left_alone,
    overtaken,
    strangers,
    unled_texts,
    untold,
)
from tolerant_client.mirror.life.shared_log import SharedLog
from tolerant_client.mirror.state.health import few
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, Positions, TopicIds
from tolerant_client.mirror.state.moves import copied_topics, moved_topics, undone, unsaid_moves
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

_NOT_KEPT = ".*heartbeats"  # which IdentityReplicationPolicy renames


# -- which topics ---------------------------------------------------------------


def name_beside(
    link: str, brought: Collection[str], into_target: Mapping[str, LinkControl], into_source: Mapping[str, LinkControl]
) -> str:
    """A name like the link's which no link into the target has, or one from the same source that may be prepared for these topics."""

    def is_fit(name: str) -> bool:
        control = into_target.get(name, LinkControl(is_promotion_begun=True, is_fenced=True, source_cluster_id=of))
        is_over = control.is_promoted and control.source_cluster_id == of
        return is_over and not unsaid_moves(control, brought, into_source)

    of = into_target[link].source_cluster_id
    return next(filter(is_fit, (f"{link}-{number}" for number in count(2))))


def topics_to_bring_back(
    source: Cluster,
    target: Cluster,
    link: str,
    forward: Mapping[str, LinkControl],
    into_target: Mapping[str, LinkControl],
    home: Collection[str],
) -> LinkTopics:
    """The topics of the forward link whose promotion is to be undone, as far as it was not; if all are at `home`, those that are.

    Raises OptionError if nothing tells it.
    """
    found = {name: c for name, c in sorted(_to_undo(link, forward, into_target, home).items()) if c.topics}
    topics: dict[str, LinkTopics] = {}
    past: set[str] = set()
    for name, control in found.items():
        of_link = undone(control, into_target)
        past.update(of_link)
        if (left := _left(control, into_target, home)) is not None:
            whole = _by_their_names(LinkTopics.from_json(control.topics or ""))
            topics[name] = only_topics(left) if left and (of_link or any(map(whole.writes, home))) else whole
    if not topics and past:
        return only_topics(sorted(past))
    if not topics:
        raise OptionError(
            "Give --topics, a regular expression over whole topic names: the source tells of no link from this target to it"
        )
    which = next(iter(topics.values()))
    if any(of != which for of in topics.values()):
        options = {name: topics_option(of, copied_topics(found[name])) for name, of in topics.items()}
        commands = [
            f"for what link {name} has copied: {failback_command(link, target, source, option)}"
            for name, option in options.items()
        ]
        raise OptionError(
            f"Links {', '.join(topics)} have copied different topics from this target to this source, and nothing tells which of them link"
            f" {link} is to undo. Give its topics; another one needs a link back of another name, too: {'; '.join(few(commands))}"
        )
    return which


def _by_their_names(topics: LinkTopics) -> LinkTopics:
    """The same topics without a file's names, if they keep theirs: its aliases are of the other direction."""
    if topics.names is None or not topics.names.keeps:
        return topics
    filters = [TopicFilter(f.include, (*f.exclude, _NOT_KEPT)) for f in (topics.filter, *topics.also)]
    return LinkTopics(filters[0], also=tuple(filters[1:]))


def _left(control: LinkControl, into_target: Mapping[str, LinkControl], home: Collection[str]) -> list[str] | None:
    """What a promoted link has copied and nothing has brought home; None if all of it was.  Empty if its control names none."""
    copied, past = copied_topics(control), {*undone(control, into_target), *home}
    left = [topic for topic in copied if topic not in past]
    return left if left or not copied else None


def _to_undo(
    link: str, forward: Mapping[str, LinkControl], into_target: Mapping[str, LinkControl], home: Collection[str]
) -> Mapping[str, LinkControl]:
    """The forward links that are promoted, and not undone as a whole; of those the one with the link's name, or those with topics that
    the link has had.

    What the link has had last counts more than a name: the rest of the forward link of its name may have been left out on purpose.  If
    there are none, others: they are refused with the reason.
    """
    promoted = {name: c for name, c in forward.items() if c.is_promotion_begun}
    comparable = {name: c for name, c in promoted.items() if c.is_identical or c.is_of_unknown_source}
    left = {name: _left(c, into_target, home) for name, c in comparable.items()}
    last = {name: c for name, c in comparable.items() if left[name] is not None}
    meant = last or comparable or promoted or forward
    named = {link: forward[link]} if link in forward else {}
    had = next((c for of in (into_target, forward) if (c := of.get(link)) is not None and c.topics), LinkControl())
    shared = {name: c for name, c in meant.items() if any(map(had.writes, left.get(name) or copied_topics(c)))}
    if named and (link not in promoted or link in meant and (link in shared or not shared)):
        return named
    return shared or (meant if left.get(link, ()) is None else named or meant)


# -- what becomes of their logs -----------------------------------------------------


class Compared(NamedTuple):
    """What failback has read: `logs` of the topics that the link may copy back, and what is known of the others, by topic.

    `refused` are those that another link copies, `others` no originals of the source's, `unknown` those that could not be told,
    and why.  `own` are copies of this link before its promotion, `heartbeats` those of `own` that hold no data; `taken` were
    copied by a forward link.  `unled` are partitions whose logs cannot be read now, and why: nothing is told of their topics.  `promoted` are copies of
    other links, and which promoted one.
    """

    logs: tuple[SharedLog, ...]
    own: frozenset[str]
    heartbeats: frozenset[str]
    taken: frozenset[str]
    refused: Mapping[str, str]
    others: Mapping[str, str]
    unknown: Mapping[str, str]
    unled: Mapping[TopicPartition, str]
    promoted: Mapping[str, str]


class Decision(NamedTuple):
    """What failback does unless there are `blockers`: `deleted` are topics of the target that will be copied again."""

    blockers: tuple[str, ...]
    deleted: tuple[str, ...]
    adopted: Positions
    warnings: tuple[str, ...]


def decide(compared: Compared, *, discards: bool) -> Decision:
    """What becomes of each log; with `discards` diverged topics of the target are deleted."""
    logs, own = compared.logs, compared.own
    given_up = {p.topic for p in logs if p.is_diverged or not p.is_proved}
    keeps = {p.topic for p in logs if p.lost_records or not (p.is_counted and p.is_proved)}
    undeletable = {name for name in given_up - compared.taken if name in keeps or name not in own}
    blocked = (
        *unled_texts(compared.unled),
        *few(dict.fromkeys(compared.refused.values())),
        *left_alone(compared.others),
        *untold(compared.unknown),
        *blockers(logs, discards=discards, undeletable=undeletable),
        *strangers(undeletable, own, compared.promoted),
    )
    deleted = compared.heartbeats | (given_up - undeletable if discards else set())
    kept = [p for p in logs if p.topic not in given_up | compared.heartbeats]
    adopted = {TopicPartition(p.topic, p.partition): p.shared_until for p in kept if p.shared_until}
    return Decision(blocked, tuple(sorted(deleted)), adopted, overtaken(kept))


def telling_of(
    control: LinkControl, names: Collection[str], ids: Mapping[str, TopicIds] = MappingProxyType({})
) -> LinkControl:
    """A control that tells of moves and copies of these topics only, and, where their `ids` are known, only of these very ones."""

    def is_same(partition: TopicPartition) -> bool:
        return partition.topic in names and not control.was_created_again(
            partition, ids.get(partition.topic, TopicIds())
        )

    return replace(
        control,
        begun={p: of for p, of in control.begun.items() if is_same(p)},
        copied_until={p: end for p, end in control.copied_until.items() if is_same(p)},
        primary_since={
            name: of
            for name, of in control.primary_since.items()
            if name in names and TopicIds(target=of.topic_id).is_of_target(ids.get(name, TopicIds()))
        },
    )


def begin_again(
    now: LinkControl,
    source_cluster_id: str | None,
    topics: LinkTopics,
    adopted: Positions,
    generation: int = 0,
    ids: Mapping[str, TopicIds] = MappingProxyType({}),
) -> LinkControl:
    """The control of a link that begins after what its target has; a new generation if the link ran before, from `generation` on.

    With identical offsets what is adopted is of topics with these `ids`.
    Of its former life only the operator's orders and its moves live on.
    """
    had_one = bool(now.producer_ids) or now.is_over
    return LinkControl(
        now.paused,
        now.bytes_per_s,
        paused_partitions=now.paused_partitions,
        others=now.others,
        generation=max(now.generation + had_one, generation),
        primary_since={name: MovedTopic(ms) for name, ms in moved_topics(now).items()} | dict(now.primary_since),
        target_cluster_id=now.target_cluster_id,
        known_moves=now.known_moves,
        adopted=adopted,
        adopted_ids={p: ids[p.topic] for p in adopted if p.topic in ids},
        source_cluster_id=source_cluster_id,
        topics=topics.to_json(),
    )


def is_live(control: LinkControl) -> bool:
    """Whether a link copies now, so that it must not begin again."""
    return not control.is_over and (control.is_identical or control.map_id is not None)
