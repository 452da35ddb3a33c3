"""The control of a link: what an operator has ordered, and what the link must remember; pure.

It is stored on the target as records of a topic (control_record.py, control_topic.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster, OffsetAndEpoch
from tolerant_client.errors import LinkPromotedError, OptionError
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.state_json import Moment, Whole

WHOLE_LINK = ""
NO_LIMIT = 0

Positions = Mapping[TopicPartition, int]
_T = TypeVar("_T")


class TopicIds(NamedTuple):
    """The ids of a topic on both clusters (KIP-516); "" from brokers before 2.8."""

    source: str = ""
    target: str = ""

    def is_of_source(self, now: TopicIds) -> bool:
        """Whether the source's topic is still the same, as far as the ids are known."""
        return not (self.source and now.source and self.source != now.source)

    def is_of_target(self, now: TopicIds) -> bool:
        """Whether the target's topic is still the same, as far as the ids are known."""
        return not (self.target and now.target and self.target != now.target)


GONE = TopicIds("-", "-")  # no broker gives such ids


class MovedTopic(NamedTuple):
    """When a promotion has moved a topic to its target (ms since 1970), and the topic's id there; "" from brokers before 2.8."""

    since_ms: Moment
    topic_id: str = ""


@dataclass(frozen=True)
class LinkControl:
    """The control of a link; the default is that of a link without any record.

    `paused` has WHOLE_LINK and topics, `paused_partitions` partitions of other topics.  `bytes_per_s` is the operator's rate for
    the whole link, NO_LIMIT, or None for the rate that its mirror was started with.
    `is_promotion_begun`: the link copies nothing any more, but a process of it may still write until it `is_fenced`, too; then
    it `is_promoted`.  `unfenced` are the partitions that a failover left for later when it fenced the others: the link is not
    fenced before they are.
    `is_handed_back`: MirrorMaker 2 copies into the target again.  `generation` counts how often the link began again: each time
    it has a new producer id.  `adopted` are source offsets before which the target has all records, whoever wrote them, and
    `adopted_ids` the ids of their topics then: version 0.1 did not write them, and with translated offsets the map tells them;
    `starts` where empty target logs are to begin, though the source's begin earlier, and `starts_of` the source topics whose
    offsets these are (start_of; absent if no broker gave an id).  `start_epochs` are the source's leader epochs there, as far as leaders
    told them: version 0.1 did not write them.  `begun` has the partitions whose target logs this link has
    begun, or has found to be the source's, with the ids of their topics.  `copied` says up to which offset the link had copied
    them when it last came to rest, or where it began them: an empty log counts as a copy only up to that offset.
    `log_starts` are the offsets where filled logs were to begin: a log that does not end after that is the link's filler, which
    may still have to be deleted.  `copied_until` says where the copies of a promoted link end for good, before the records of its
    fence and of whoever writes there now; version 0.1 did not write it.  `empty_until` has the offsets before which the source had
    no committed record after these ends, as a promotion found that was run again.  `map_id` is the topic id of the offset map of a link with
    translated offsets ("" from brokers without ids), None before it has one.  `promotion` is the run of promote or failover that
    fences the link, or fenced it last.  `maybe_begun` are partitions that the target alone had when a start found no control, though the
    link had run before: whether they are its copies is unknown (former_copies.py).  `mapped` has the topics that a promoted link with
    translated offsets had copied, as its map said when it was fenced; GONE are those that neither cluster had then.
    `primary_since` has the topics that promotions of this link with identical offsets have moved to its target, also once it begins
    again (moves.py); where the target took no record with them, `unsaid_since_ms` says when the last one was.  `target_cluster_id` is
    the id of the target that they were moved to.  `known_moves`: when topics of the link were last moved to its source, or before, as
    its mirror, failback or promote has seen there.
    `written_ms`: when its record was, by its writer's clock.  `is_hidden`: we may not read it, so nothing of it is known; no record has it.
    """

    paused: frozenset[str] = frozenset()
    bytes_per_s: Whole | None = None
    is_promotion_begun: bool = False
    is_fenced: bool = False
    generation: Whole = 0
    source_cluster_id: str | None = None
    topics: str | None = None
    producer_ids: tuple[Whole, ...] = ()
    adopted: Positions = field(default_factory=dict)
    starts: Positions = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    is_handed_back: bool = False
    unfenced: frozenset[TopicPartition] = frozenset()
    begun: Mapping[TopicPartition, TopicIds] = field(default_factory=dict)
    copied: Positions = field(default_factory=dict)
    log_starts: Positions = field(default_factory=dict)
    paused_partitions: frozenset[TopicPartition] = frozenset()
    map_id: str | None = None
    is_hidden: bool = False
    starts_of: Mapping[TopicPartition, TopicIds] = field(default_factory=dict)
    start_epochs: Positions = field(default_factory=dict)
    copied_until: Positions = field(default_factory=dict)
    empty_until: Positions = field(default_factory=dict)
    promotion: str | None = None
    maybe_begun: frozenset[TopicPartition] = frozenset()
    mapped: Mapping[TopicPartition, TopicIds] = field(default_factory=dict)
    primary_since: Mapping[str, MovedTopic] = field(default_factory=dict)
    target_cluster_id: str | None = None
    unsaid_since_ms: Moment | None = None
    known_moves: Mapping[str, Moment] = field(default_factory=dict)
    adopted_ids: Mapping[TopicPartition, TopicIds] = field(default_factory=dict)
    written_ms: Whole = field(default=0, compare=False)

    @property
    def is_identical(self) -> bool:
        """Whether the link has started with identical offsets, or was promoted with them before it ever did (failback prepared it).

        One with a map has translated ones, whatever ids an identical start of an earlier version has left.
        """
        return self.map_id is None and (bool(self.producer_ids) or self.is_promotion_begun and self.tells_moves)

    @property
    def is_over(self) -> bool:
        """Whether the link copies nothing any more: a promotion has begun, or it was handed back to MirrorMaker 2."""
        return self.is_promotion_begun or self.is_handed_back

    @property
    def is_promoted(self) -> bool:
        """Whether the link is promoted and fenced: the target belongs to its own producers, no process of the link writes to it."""
        return self.is_promotion_begun and self.is_fenced

    @property
    def is_half_promoted(self) -> bool:
        """Whether a promotion has begun and is not finished: a process of the link may still write to its target."""
        return self.is_promotion_begun and not self.is_fenced

    def has_moved(self, name: str) -> bool:
        """Whether a promotion has moved this topic to its target (its name there): no process of the link writes to it any more.

        A failover that left partitions for later has moved the topics of the others.
        """
        late = {p.topic for p in self.unfenced}
        is_fenced = self.is_fenced or bool(late) and name not in late
        return self.is_promotion_begun and is_fenced and self.writes(name)

    @property
    def is_prepared(self) -> bool:
        """Whether failback or take-over prepared the link, and nothing here says that a mirror of it has started since.

        A translated link from before `map_id` may have started nevertheless: its offset map tells (map_topic.was_never_started).
        """
        has_started = self.producer_ids or self.map_id is not None
        return self.topics is not None and not (has_started or self.is_over or self.is_hidden)

    @property
    def is_unwritten(self) -> bool:
        """Whether no start of a mirror has written this, as far as we may read it: nothing tells what the link copies."""
        return self.topics is None and not self.is_over and not self.is_hidden

    @property
    def tells_no_start(self) -> bool:
        """Whether it tells of no start of a mirror: only a promotion can have found out what the link copied."""
        return self.source_cluster_id is None and not self.producer_ids and self.map_id is None

    def forgets(self, known: LinkControl, partitions: Collection[TopicPartition]) -> bool:
        """Whether it no longer tells of a start, or that one of these logs was begun, as an earlier record of the link did."""
        lost = known.begun.keys() - self.begun.keys()
        return self.tells_no_start and not known.tells_no_start or not lost.isdisjoint(partitions)

    @property
    def is_of_unknown_source(self) -> bool:
        """Whether a failover fenced the link without its control: it does not ask the source."""
        return self.is_promotion_begun and self.source_cluster_id is None

    def may_copy_from(self, cluster_id: str | None) -> bool:
        """Whether the link copies from this cluster, or may have."""
        return self.source_cluster_id == cluster_id or self.is_of_unknown_source

    @cached_property
    def writes(self) -> Callable[[str], bool]:
        """Tells whether the link has a topic on its target (its name there), as far as is known.

        Expressions may match others' topics, above all those given to a failover without the control: a link that was fenced has what
        was fenced, as soon as the control says it.
        """
        fenced = frozenset(p.topic for p in (*self.copied_until, *self.unfenced, *self.begun))
        if self.topics is None or (self.is_of_unknown_source or self.is_fenced and self.copied_until) and fenced:
            return fenced.__contains__
        return LinkTopics.from_json(self.topics).writes

    def is_younger(self, than_s: float, now_s: float) -> bool:
        """Whether its record was written not longer before `now_s` (since the epoch), nor after it, as far as both clocks agree."""
        return abs(now_s - self.written_ms / 1000) < than_s

    def has_begun(self, partition: TopicPartition, ids: Mapping[str, TopicIds]) -> bool:
        """Whether the link has begun this very log of the target, not a former one; `ids` are the topics' present ids."""
        return partition in self.begun and not self.was_created_again(partition, ids.get(partition.topic, TopicIds()))

    @cached_property
    def had(self) -> Mapping[TopicPartition, TopicIds]:
        """The logs of the target that the link has begun, or is to continue since it was prepared, with the ids of their topics.

        Not those that one with translated offsets continues: its map has them.
        """
        return {**({} if self.map_id is not None else self.adopted_ids), **self.begun}

    def was_created_again(self, partition: TopicPartition, now: TopicIds) -> bool:
        """Whether the target's topic, which has these ids now, is another one than that of which the link had this log."""
        had = self.had.get(partition)
        return had is not None and not had.is_of_target(now)

    def adopted_of(self, partition: TopicPartition, target_end: int) -> int:
        """The source offset before which a target log that ends there has everything since the link took it over; else 0.

        An empty log was created again since.
        """
        return self.adopted.get(partition, 0) if target_end else 0

    def start_of(
        self, partition: TopicPartition, source_id: str, source_end: int | None = None, cut: int | None = None
    ) -> int | None:
        """Where an empty log of the target is to begin; None if nothing was set for the source topic with this id.

        Also None if the source's log, whose end may be given, ends before that: it was truncated or, without ids, created again.
        If it was `cut` before that (asked_start), and has grown past it, what it has from there on is newer than what it had.
        """
        start, of = self.starts.get(partition), self.starts_of.get(partition, TopicIds())
        if start is None or not of.is_of_source(TopicIds(source_id)):
            return None
        if source_end is not None and start > source_end:
            return None
        return start if cut is None else min(start, cut)

    def began_at(self, partition: TopicPartition) -> int:
        """The offset before which the copy has no record, if it has any at all: its log was to begin there."""
        return max(said.get(partition, 0) for said in (self.log_starts, self.starts))

    def first_to_copy(self, partition: TopicPartition) -> int:
        """The first source offset that is not copied and was to be: before it lies what had no record, or was not asked for."""
        return max(self.began_at(partition), self.empty_until.get(partition, 0))

    def asked_start(self, partition: TopicPartition, source_id: str) -> tuple[int, int] | None:
        """What to ask the source's leader of where a log is to begin (source_truncations): the leader epoch there, and the offset."""
        start, epoch = self.start_of(partition, source_id), self.start_epochs.get(partition)
        return None if start is None or epoch is None else (epoch, start)

    def with_starts(
        self, starts: Mapping[TopicPartition, OffsetAndEpoch], source_ids: Mapping[str, str]
    ) -> LinkControl:
        """With more logs that are to begin at an offset; the source's topics have these ids."""
        of = {p: TopicIds(source_ids[p.topic]) for p in starts if p.topic in source_ids}
        epochs = {p: epoch for p, epoch in self.start_epochs.items() if p not in starts}
        return replace(
            self,
            starts={**self.starts, **{p: at.offset for p, at in starts.items()}},
            starts_of={**self.starts_of, **of},
            start_epochs=epochs | {p: at.leader_epoch for p, at in starts.items() if at.leader_epoch >= 0},
        )

    def without(self, topics: Collection[str], known: LinkControl) -> LinkControl:
        """Forgets the logs of these topics that `known` has begun; keeps one that was begun since, and one without ids."""
        gone = {p for p, ids in known.begun.items() if p.topic in topics and all(ids) and self.begun.get(p) == ids}
        unsure = frozenset(p for p in self.maybe_begun if p.topic not in topics)
        if not gone and unsure == self.maybe_begun:
            return self

        def kept(of: Mapping[TopicPartition, _T]) -> dict[TopicPartition, _T]:
            return {p: value for p, value in of.items() if p not in gone}

        return replace(
            self,
            begun=kept(self.begun),
            copied=kept(self.copied),
            adopted=kept(self.adopted),
            adopted_ids=kept(self.adopted_ids),
            starts=kept(self.starts),
            starts_of=kept(self.starts_of),
            start_epochs=kept(self.start_epochs),
            log_starts=kept(self.log_starts),
            maybe_begun=unsure,
        )

    def with_gone(self, gone: Collection[TopicPartition], *, is_translated: bool) -> LinkControl:
        """Of a promoted link, without the copies that neither cluster has: its promotion has nothing to say of them."""
        begun = {p: ids for p, ids in self.begun.items() if p not in gone}
        adopted_ids = {p: ids for p, ids in self.adopted_ids.items() if p not in gone}
        copied = {p: at for p, at in self.copied.items() if p not in gone}
        mapped = {**self.mapped, **(dict.fromkeys(gone, GONE) if is_translated else {})}  # the map still has them
        return replace(self, begun=begun, adopted_ids=adopted_ids, copied=copied, mapped=mapped)

    def pauses(self, partition: TopicPartition) -> bool:
        return WHOLE_LINK in self.paused or partition.topic in self.paused or partition in self.paused_partitions

    @property
    def paused_words(self) -> list[str]:
        """What is paused, as text that tells topics from partitions, since a topic may be named like a partition."""
        if WHOLE_LINK in self.paused:
            return ["the whole link"]
        topics = [f"topic {topic}" for topic in sorted(self.paused)]
        return topics + [f"partition {topic}-{index}" for topic, index in sorted(self.paused_partitions)]

    def resume_command(self, partitions: Iterable[TopicPartition], which: str) -> str:
        """The command that resumes these partitions and no other pause; several commands if needed."""
        resume = f"tolerant-kafka resume {which}"
        if WHOLE_LINK in self.paused:
            return resume
        known = set(partitions)
        alone = {p for p in known & self.paused_partitions if p.topic not in self.paused}
        commands = [f"{resume} --topic {shlex.quote(t)}" for t in sorted({p.topic for p in known} & self.paused)]
        for topic in sorted({p.topic for p in alone}):
            numbers = " ".join(f"--partition {p.partition}" for p in sorted(alone) if p.topic == topic)
            commands.append(f"{resume} --topic {shlex.quote(topic)} {numbers}")
        return "; ".join(commands) or resume

    def rate(self, default: int | None) -> int | None:
        """Bytes per second that the link may copy, None without a limit; `default` is the rate that its mirror was started with."""
        return default if self.bytes_per_s is None else self.bytes_per_s or None

    def limit_words(self, default: int | None = None) -> str:
        """The end of a sentence about what is not copied yet: the rate that may be the reason, "" without one."""
        rate = self.rate(default)
        return (
            ""
            if rate is None
            else f"; the link is limited to {rate:,} bytes a second (tolerant-kafka throttle changes that)"
        )

    def producer_name(self, link: str) -> str:
        """The name for init_producer_id: the fence of one generation does not fence the next."""
        return f"{link}~{self.generation}" if self.generation else link

    @property
    def tells_moves(self) -> bool:
        """Whether promotions of it, with identical offsets, have written when they moved topics; version 0.1 did not."""
        return bool(self.primary_since) or self.unsaid_since_ms is not None

    def moved_ms(self, name: str) -> int | None:
        """When a promotion of this link has moved a topic to its target (its name there) last; None if none has."""
        if name in self.primary_since:
            return self.primary_since[name].since_ms
        if not self.has_moved(name):
            return None
        return self.unsaid_since_ms if self.tells_moves else 0

    def knowing(self, moves: Mapping[str, int]) -> LinkControl:
        """This control, which also knows of these moves of topics to the link's source: when each was, in ms."""
        later = {name: max(since_ms, self.known_moves.get(name, -1)) for name, since_ms in moves.items()}
        return replace(self, known_moves={**self.known_moves, **later})

    def brings_back(self, name: str, moved_to: str | None, moved_ms: int) -> bool:
        """Whether the link copies, or has copied, a topic back that was moved then to this cluster (None: unknown, so any)."""
        is_its_source = moved_to is None or moved_to == self.source_cluster_id
        return is_its_source and self.known_moves.get(name, -1) >= moved_ms and self.writes(name)

    def require_kind(self, link: str, *, is_translated: bool) -> None:
        """Raises LinkKindError if the link has begun with offsets of the other kind, and is not over: then it may begin again."""
        if self.is_over:
            return
        if is_translated and self.is_identical:
            raise LinkKindError(
                f"Link {link} has copied into this target with identical offsets: start it with --offsets identical (in a file"
                " tolerant.offsets = identical), or give a link with translated offsets a name of its own (--link, in a file"
                " another alias)"
            )
        if not is_translated and self.map_id is not None:
            raise LinkKindError(
                f"Link {link} copies into this target with translated offsets: start it with --offsets translated (in a file"
                " tolerant.offsets = translated), or give a link with identical offsets a name of its own (--link, in a file another alias)"
            )

    def require_not_promoted(self, link: str, target: Cluster, source: Cluster | None = None) -> None:
        """Raises LinkPromotedError for a link that may not write any more; names the clusters that are given in its commands."""
        if self.is_handed_back:
            raise LinkPromotedError(
                f"Link {link} was handed back to MirrorMaker 2 and copies nothing any more. To resume after what MirrorMaker 2"
                " has copied, stop it and run tolerant-kafka take-over"
            )
        if self.is_half_promoted:
            given = link_options(link, target)
            both = link_options(link, target, source)
            if source is None and not target.file_options:
                both = f"--source SOURCE {given}"
            raise LinkPromotedError(
                f"Link {link} is being promoted: nothing is copied into its target any more, and its mirrors end. While promote or"
                f" failover runs, nothing is left to do; if none runs any more, {unfinished(self, given, both)[0]}"
            )
        if self.is_promotion_begun or self.is_fenced:
            is_translated = self.map_id is not None  # failback is for equal offsets
            raise LinkPromotedError(
                f"Link {link} was promoted: its target belongs to its own producers, and nothing is copied into it any more"
                f"{'' if is_translated else '. To copy back, run tolerant-kafka failback with source and target exchanged'}"
            )


class LinkKindError(OptionError):
    """A link was to copy with identical offsets and has translated ones, or the other way round; nothing was written."""


# -- what operators change, and are told ---------------------------------------


def link_options(link: str, target: Cluster, source: Cluster | None = None) -> str:
    """The options that name a link in a command, as the operator names it: those of its file, or "--target b:9092 --link dr".

    These have its source if that is given.
    """
    return target.file_options or plain_options(link, target, source)


def plain_options(link: str, target: Cluster, source: Cluster | None = None) -> str:
    """As link_options, for a link that is not the one of the file that names the clusters."""
    words = []
    for option, cluster in (("source", source), ("target", target)):
        if cluster is not None:
            words.append(f"--{option} {listed(cluster.bootstrap_servers)}")
            if cluster.manager.config["security_protocol"] != "PLAINTEXT":
                words.append(f"--{option}-properties FILE")
    return " ".join([*words, f"--link {shlex.quote(link)}"])


def listed(servers: str | Sequence[str]) -> str:
    """Bootstrap servers as an option has them: "b:9092,c:9092"."""
    return servers if isinstance(servers, str) else ",".join(servers)


def unfinished(control: LinkControl, of_target: str, of_both: str) -> list[str]:
    """Sentences about a promotion that stopped before everything was fenced; pure.  The options name the link (link_options)."""
    if not control.is_half_promoted:
        return []
    if control.unfenced:
        what = names_of(sorted(control.unfenced))
        return [
            f"its failover left partitions without a leader, and a process of it may still write there: {what}; when they have one,"
            f" or were deleted, run again: tolerant-kafka failover {of_target}"
        ]
    return [
        "its promotion was begun and not finished, so a process of it may still write to its target: before anybody else writes"
        f" there, run again: tolerant-kafka promote {of_both} or, without the source, tolerant-kafka failover {of_target}"
    ]


def require_finished(control: LinkControl, link: str, target: Cluster, source: Cluster) -> None:
    """Raises OptionError if a promotion of the link has begun and is not finished: nothing else may begin with it."""
    if control.is_half_promoted:
        text = unfinished(control, link_options(link, target), link_options(link, target, source))[0]
        raise OptionError(f"Link {link} cannot begin again: {text}")
