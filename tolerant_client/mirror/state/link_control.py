"""What holds for a link: what an operator has said of it, and what it must remember; pure.

It is kept on the target as records of a topic (control_record.py, control_topic.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import LinkPromotedError, OptionError
from tolerant_client.mirror.state.health import names as names_of
from tolerant_client.state_json import Whole

WHOLE_LINK = ""
NO_LIMIT = 0

Positions = Mapping[TopicPartition, int]
_T = TypeVar("_T")


class TopicIds(NamedTuple):
    """The ids of a topic on both clusters (KIP-516); "" from brokers before 2.8."""

    source: str = ""
    target: str = ""

    def is_of_source(self, now: TopicIds) -> bool:
        """Whether the source's topic is still the same, as far as that is told."""
        return not (self.source and now.source and self.source != now.source)

    def is_of_target(self, now: TopicIds) -> bool:
        """Whether the target's topic is still the same, as far as that is told."""
        return not (self.target and now.target and self.target != now.target)


@dataclass(frozen=True)
class LinkControl:
    """What holds for a link; the default is that of a link nobody has said anything of.

    `paused` has WHOLE_LINK and topics, `paused_partitions` what is paused of other topics.  `bytes_per_s` is what
    the operator says of the whole link: a rate, NO_LIMIT, or None, and then the rate that its mirror was started with holds.
    `unfenced` are what a failover left for later, where it has fenced the others.
    `is_handed_back`: MirrorMaker 2 copies into the target again.  `generation` counts the lives of a link: each has a
    producer id of its own.  `adopted` are source offsets before which the target was found to have all, whoever wrote it;
    `starts` where empty target logs are to begin, though the source's begin before, and `starts_of` of which topics
    of the source these offsets are (start_of; absent where no broker told).  `begun` has the partitions whose target
    logs this link has begun, or has found to be the source's, and which topics that were.  `copied` says up to which offset the
    link had copied them when it last came to rest, or where it began them: an empty log of theirs is believed to be a copy up
    to that offset alone.  `log_starts` are where logs were to begin that were filled up to there: a log that ends no later is
    the link's filler, and may have to be deleted still.  `map_id` is the topic id of the offset map that a link with translated
    offsets has ("" from brokers that tell none), None before it has one.  `is_hidden`: we may not read the control, so nothing of it is known; it is in no record.
    """

    paused: frozenset[str] = frozenset()
    bytes_per_s: Whole | None = None
    is_promoted: bool = False
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

    @property
    def is_over(self) -> bool:
        """Whether the link copies nothing any more: it was promoted, or handed back to MirrorMaker 2."""
        return self.is_promoted or self.is_handed_back

    def has_begun(self, partition: TopicPartition, ids: Mapping[str, TopicIds]) -> bool:
        """Whether the link has begun this log of the target, and not another one of that name; `ids` are the topics' now."""
        begun = self.begun.get(partition)
        return begun is not None and begun.is_of_target(ids.get(partition.topic, TopicIds()))

    def start_of(self, partition: TopicPartition, source_id: str, source_end: int | None = None) -> int | None:
        """Where an empty log of the target is to begin, of a source topic that has this id now; None where nobody said so of it.

        One that ends before it, where its end is given, was cut, or made anew where no ids tell.
        """
        start, of = self.starts.get(partition), self.starts_of.get(partition, TopicIds())
        if start is None or not of.is_of_source(TopicIds(source_id)):
            return None
        return start if source_end is None or start <= source_end else None

    def with_starts(self, starts: Positions, source_ids: Mapping[str, str]) -> LinkControl:
        """With more logs that are to begin at an offset of the source's topics that have these ids."""
        of = {p: TopicIds(source_ids[p.topic]) for p in starts if p.topic in source_ids}
        return replace(self, starts={**self.starts, **starts}, starts_of={**self.starts_of, **of})

    def without(self, topics: Collection[str], known: LinkControl) -> LinkControl:
        """Without what it remembers of logs of these topics, as `known` has them; one that was begun since stays, and one without ids."""
        gone = {p for p, ids in known.begun.items() if p.topic in topics and all(ids) and self.begun.get(p) == ids}
        if not gone:
            return self

        def kept(of: Mapping[TopicPartition, _T]) -> dict[TopicPartition, _T]:
            return {p: value for p, value in of.items() if p not in gone}

        return replace(
            self,
            begun=kept(self.begun),
            copied=kept(self.copied),
            adopted=kept(self.adopted),
            starts=kept(self.starts),
            starts_of=kept(self.starts_of),
            log_starts=kept(self.log_starts),
        )

    def pauses(self, partition: TopicPartition) -> bool:
        return WHOLE_LINK in self.paused or partition.topic in self.paused or partition in self.paused_partitions

    @property
    def paused_words(self) -> list[str]:
        """What is paused, in words: a topic may be called as a partition of another one."""
        if WHOLE_LINK in self.paused:
            return ["the whole link"]
        topics = [f"topic {topic}" for topic in sorted(self.paused)]
        return topics + [f"partition {topic}-{index}" for topic, index in sorted(self.paused_partitions)]

    def resume_command(self, partitions: Iterable[TopicPartition], which: str) -> str:
        """What an operator types to resume these partitions and no other pause; several commands where it takes them."""
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
        """Bytes a second that the link may copy, None without a limit; `default` is what its mirror was started with."""
        return default if self.bytes_per_s is None else self.bytes_per_s or None

    def producer_name(self, link: str) -> str:
        """What init_producer_id takes: a later life of a link is not fenced with the former one."""
        return f"{link}~{self.generation}" if self.generation else link

    def require_not_identical(self, link: str) -> None:
        """Raises OptionError where a link that is to have translated offsets has copied with identical ones."""
        if self.producer_ids:
            raise OptionError(
                f"Link {link} has copied into this target with identical offsets: give the one with translated offsets a name"
                " of its own with --link"
            )

    def require_not_promoted(self, link: str) -> None:
        """Raises LinkPromotedError for a link that may not write any more."""
        if self.is_handed_back:
            raise LinkPromotedError(
                f"Link {link} was handed back to MirrorMaker 2, and copies nothing any more. To go on behind what MirrorMaker 2"
                " has copied, stop it and run tolerant-kafka take-over"
            )
        given = f"--target TARGET --link {shlex.quote(link)}"
        if found := unfinished(self, given, f"--source SOURCE {given}"):
            raise LinkPromotedError(
                f"Link {link} is being promoted, and nothing is copied into its target any more; where no promotion runs now:"
                f" {found[0]}"
            )
        if self.is_promoted or self.is_fenced:
            raise LinkPromotedError(
                f"Link {link} was promoted: its target belongs to its own producers, and nothing is copied into it any more."
                " To copy back, run tolerant-kafka failback with source and target exchanged"
            )


# -- what operators change, and are told ---------------------------------------


def link_options(link: str, target: Cluster, source: Cluster | None = None) -> str:
    """What an operator types behind a command to name a link: "--target b:9092 --link dr", and its source if that is given."""
    words = []
    for option, cluster in (("source", source), ("target", target)):
        if cluster is not None:
            servers = cluster.bootstrap_servers
            words.append(f"--{option} {servers if isinstance(servers, str) else ','.join(servers)}")
            if cluster.manager.config["security_protocol"] != "PLAINTEXT":
                words.append(f"--{option}-properties FILE")
    return " ".join([*words, f"--link {shlex.quote(link)}"])


def unfinished(control: LinkControl, of_target: str, of_both: str) -> list[str]:
    """A promotion that died before everything was fenced; pure.  The options mean the link (link_options)."""
    if not control.is_promoted or control.is_fenced:
        return []
    if control.unfenced:
        what = names_of(sorted(control.unfenced))
        return [
            f"its failover left what had no leader, and a process of it may still write there: {what}; when it has one, or was"
            f" deleted, run again tolerant-kafka failover {of_target}"
        ]
    return [
        "its promotion was begun and not finished, so a process of it may still write to the target: before anybody else writes"
        f" there, run again tolerant-kafka promote {of_both} or, without the source, tolerant-kafka failover {of_target}"
    ]


def paused(control: LinkControl, topics: Iterable[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """With topics (WHOLE_LINK among them) and partitions paused, too.  Pure."""
    return replace(
        control, paused=control.paused | set(topics), paused_partitions=control.paused_partitions | set(partitions)
    )


def resumed(control: LinkControl, topics: Collection[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """Without pauses of what is named; a topic ends those of its partitions, too, WHOLE_LINK all.  Pure.

    Raises OptionError for what stays paused because something larger is.
    """
    if WHOLE_LINK in topics:
        return replace(control, paused=frozenset(), paused_partitions=frozenset())
    gone = set(partitions)
    whole = "the whole link" if WHOLE_LINK in control.paused else ""
    larger = {
        f"{p.topic}-{p.partition}": whole or f"topic {p.topic}" for p in gone if whole or p.topic in control.paused
    }
    if larger := {**larger, **(dict.fromkeys(topics, whole) if whole else {})}:
        name, what = min(larger.items())
        raise OptionError(f"{name} cannot be resumed alone: {what} is paused; resume that, and pause the rest again")
    kept = frozenset(p for p in control.paused_partitions if p not in gone and p.topic not in topics)
    return replace(control, paused=control.paused - set(topics), paused_partitions=kept)
