"""The topics and partitions that belong to a link.

A link's topics only grow until it is promoted: topics of an earlier start belong to it, too.  A control holds for the whole link,
so a promotion takes all topics that the control names, never a part of them: the others would be promoted, too, but neither
checked nor fenced.

A topic of the target that the link's expressions match and the source does not have is the target's own, and nobody speaks of it, if the
link is known to have begun none of it (`begun_partitions`).  Where that is unknown, since the control was deleted, it may be the link's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls, Unreadable
from tolerant_client.mirror.state.control_topic import HIDDEN, read_controls
from tolerant_client.mirror.state.health import deleted_on_source
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

NOT_ON_SOURCE = "the source has no such topic"
PARTITION_NOT_ON_SOURCE = "the source has no such partition of this topic any more"
_SHOWN = 5
_TOPIC_NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")  # Topic.java


def hindrance(record: Unreadable, topic: str, cluster: Cluster) -> str:
    """Why nothing may start beside an unreadable record that a mirror of this topic may have written, and how to clear it."""
    return (
        f"{record}, and says that a link copies from cluster {(record.copies_from or '')[:60]!r} to this {cluster.name};"
        f" it may take topic {topic}. Install here the version of the mirror that wrote it; if none did, take away the right to"
        f" write there from whoever wrote it, and run tolerant-kafka repair with the {cluster.name} as --target and that key as --link"
    )


def require_no_unreadable(controls: Controls, link: str, names: Collection[str], target: Cluster) -> None:
    """Raises OptionError if an unreadable record may be of another link that copies these topics."""
    if may_copy := [record for record in controls.unreadable if record.key != link and record.copies_from and names]:
        why = hindrance(may_copy[0], min(names), target)
        raise OptionError(f"Whether another link than {link} copies the same topics is unknown: {why}")


def created_again(
    controls: Mapping[str, LinkControl], source_cluster_id: str | None, now: Mapping[str, TopicIds]
) -> list[str]:
    """A sentence for each topic (the target's name) whose present id differs from the one that a link began with.  Pure."""
    found: set[str] = set()
    for link, control in controls.items():
        if control.is_over or control.source_cluster_id != source_cluster_id:
            continue
        for (topic, _), ids in control.begun.items():
            if (other := now.get(topic)) is None:
                continue
            for side, is_same in (("source", ids.is_of_source(other)), ("target", ids.is_of_target(other))):
                if not is_same:
                    found.add(
                        f"topic {topic} was deleted and created again on the {side} since link {link} began to copy it: the new"
                        " one is compared"
                    )
    return sorted(found)


def hidden_topics(link: str) -> str:
    """What to say of a link whose control we may not read, where no topics are given."""
    return f"What link {link} copies is unknown, since {HIDDEN}, or give --topics"


def written_topics(control: LinkControl, link: str, given: LinkTopics | None) -> LinkTopics:
    """All topics that the control says a link copies, else those `given`.  Raises OptionError without either."""
    if control.topics is not None:
        return LinkTopics.from_json(control.topics)
    if given is None and control.is_hidden:
        raise OptionError(hidden_topics(link))
    if given is None:
        raise OptionError(
            f"Link {link} was never started on this target, or its record in {CONTROL_TOPIC} was deleted: check --target and"
            " --link, or give --topics"
        )
    return given


def differing_topics(
    written: LinkTopics, given: LinkTopics, on_source: Iterable[str] = (), on_target: Iterable[str] = ()
) -> list[str]:
    """Topics that only one of two takes, or that both name differently on the target.  Pure."""

    def takes(topics: LinkTopics, name: str) -> str | None:
        return topics.to_target(name) if topics.takes(name) else None

    found = {name for name in on_source if takes(written, name) != takes(given, name)}
    return sorted(found | {name for name in on_target if written.writes(name) != given.writes(name)})


class BesideFile(NamedTuple):
    """How the topics of a file differ from those in its link's control, a sentence each.

    `kept`: topics that the link has copied and the file no longer names; they belong to the link until it is promoted.
    `not_begun`: topics that the file names and the link does not copy.
    """

    kept: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()


async def beside_file(
    source: Cluster | None,
    target: Cluster,
    control: LinkControl,
    link: str,
    of_file: LinkTopics | None,
    mapped: MappedTopics = NO_MAP,
) -> BesideFile:
    """What differs if a file was changed since the mirror was started with it; empty without a file.

    Without a source only the target's topics are known; `mapped` is the link's map, if it was read.
    """
    if of_file is None or control.topics is None:
        return BesideFile()
    written = LinkTopics.from_json(control.topics)
    on_target = list(await target.partitions())
    wanted = set(on_target)
    if source is not None:
        on_source = [source.wire_topic(name) for name in await source.partitions()]
        wanted = {of_file.to_target(name) for name in on_source if of_file.takes(name)}
    has = begun_partitions(control, mapped)
    begun = set(on_target) if has is None else {p.topic for p in has}

    def only_of(topics: LinkTopics, other: LinkTopics, names: Iterable[str]) -> str:
        return some(
            name
            for name in sorted(names)
            if topics.writes(name) and not other.writes(name) and not is_heartbeats(topics, name)
        )

    kept = only_of(written, of_file, begun.intersection(on_target))
    not_begun = only_of(of_file, written, wanted)
    return BesideFile(
        (
            f"link {link} has copied more than the file names (any more): {kept}. That is the link's until it is promoted, and"
            " is promoted with it, as far as it was copied; a mirror with this file copies no more of it",
        )
        if kept
        else (),
        (f"the file names {not_begun}, and no mirror of link {link} was started with that",) if not_begun else (),
    )


async def require_whole(
    source: Cluster | None,
    target: Cluster,
    control: LinkControl,
    link: str,
    given: LinkTopics | None,
    *,
    of_file: bool = False,
) -> LinkTopics:
    """All topics that a link copies; raises OptionError if `given` takes others, or if another live link copies the same.

    Topics given `of_file` may differ: the file may have been changed since (beside_file says how).  So may those given to repeat a
    promotion that had no control to read and was interrupted, since only what was given then is in the control: both count.
    """
    written = written_topics(control, link, given)
    if given is None or of_file and control.topics is not None:
        return written
    on_target = list(await target.partitions())
    if control.topics is None:
        await _refuse_another(target, link, given, on_target)
        return written
    on_source = [] if source is None else [source.wire_topic(name) for name in await source.partitions()]
    if found := differing_topics(written, given, on_source, on_target):
        if control.is_half_promoted and control.tells_no_start and not control.unfenced:
            await _refuse_another(target, link, given, on_target)
            return given.joined(written)
        raise OptionError(
            f"Link {link} copies {written}, as its control on the target says, and not what is asked for: they"
            f" differ in {some(found)}. A link is promoted as a whole: leave --topics out"
        )
    return written


async def _refuse_another(target: Cluster, link: str, given: LinkTopics, on_target: Iterable[str]) -> None:
    """Raises OptionError if another live link copies these topics: with a wrong --link the right link would stay alive."""
    names = [name for name in on_target if given.writes(name)]
    controls = await read_controls(target)
    require_no_unreadable(controls, link, names, target)
    for other, control in controls.links.items():
        if other == link or control.is_promotion_begun or control.topics is None:
            continue
        if both := [name for name in names if LinkTopics.from_json(control.topics).writes(name)]:
            raise OptionError(
                f"No mirror of link {link} has written down what it copies, and link {other} copies topic {both[0]}: is --link"
                f" {other} meant?"
            )


class LinkView(NamedTuple):
    """The topics of a link, by their names on the target, with their partitions on either cluster.

    `gone` are topics that the target has and the source, asked for each by name, does not have (any more), as far as the link may have
    begun them; and, of topics that the source has, partitions that the link has begun to copy and that the source lacks (the topic was
    created again).  `beside` are the other topics that the target alone has: its own.
    `hidden` says of others, which are in none of these, why they are unknown: a cluster does not let us describe them.  Their
    partitions are those that the other cluster or the link's control knows, else the first one, which every topic has.
    `unread` are partitions of the link's map that cannot be read now, and why.
    """

    on_source: Mapping[str, list[int]]
    on_target: Mapping[str, list[int]]
    gone: Mapping[str, list[int]]
    hidden: Mapping[TopicPartition, str]
    unread: Mapping[TopicPartition, str] = NO_MAP.unread
    beside: Mapping[str, list[int]] = MappingProxyType({})

    @property
    def why_gone(self) -> dict[TopicPartition, str]:
        """The reason for each partition that is gone."""
        return {
            TopicPartition(name, n): PARTITION_NOT_ON_SOURCE if name in self.on_source else NOT_ON_SOURCE
            for name, numbers in self.gone.items()
            for n in numbers
        }

    def has(self, partition: TopicPartition) -> bool:
        """Whether a cluster has the topic, as far as we may see it."""
        return partition.topic in {*self.on_source, *self.on_target, *(p.topic for p in self.hidden)}

    def of_target_alone(self, begun: Collection[TopicPartition], mapped: Collection[str] = ()) -> LinkView:
        """With what the link has begun, or mapped, as the source's, which does not respond: also what the target lacks of `begun`.

        With all topics of the target if nothing is known.
        """
        known = {*mapped, *(p.topic for p in begun)}
        seen = {name: list(numbers) for name, numbers in self.on_target.items() if not known or name in known}
        hidden = {p.topic for p in self.hidden}
        for topic, number in sorted(begun):
            if topic not in hidden and number not in seen.setdefault(topic, []):
                seen[topic].append(number)
        return self._replace(on_source=seen, gone={})

    def alone(self, topics: LinkTopics) -> frozenset[TopicPartition]:
        """All partitions that the target has and the source does not, of what these topics name, but of heartbeats."""
        there = _partitions({name: of for name, of in self.on_target.items() if not is_heartbeats(topics, name)})
        return frozenset(there - _partitions(self.on_source) - self.hidden.keys())

    def left_behind(self, known: Collection[str]) -> dict[TopicPartition, str]:
        """Those that are gone, of topics that the link is `known` to copy, in the words of its health."""
        return {p: deleted_on_source(has_topic=p.topic in self.on_source) for p in self.why_gone if p.topic in known}

    def require_seen(self, link: str) -> None:
        """Raises OptionError if the link may have a topic that we may not describe, or that only an unread map names."""
        if self.hidden:
            raise OptionError(
                f"{some(dict.fromkeys(self.hidden.values()), '; ')}, then run this again: link {link} copies it, as far as we"
                " know, and a topic that we may not describe can be neither compared nor fenced"
            )
        if self.unread:
            raise OptionError(unread_map(self.unread, link))


def unread_map(unread: Mapping[TopicPartition, str], link: str) -> str:
    """A sentence about partitions of a link's map that cannot be read.  Pure."""
    (topic, number), why = next(iter(unread.items()))
    return (
        f"{some(f'{p.topic}-{p.partition}' for p in unread)} cannot be read, so whether link {link} has copied topics that the"
        f" clusters hide from us is unknown ({topic}-{number}: {why}); start a broker that has it, then run this again"
    )


async def see_topics(
    source: Cluster | None,
    target: Cluster,
    topics: LinkTopics,
    control: LinkControl = LinkControl(),
    mapped: MappedTopics = NO_MAP,
) -> LinkView:
    """The topics of a link on both clusters, or on the target alone, also those that only its control knows.

    The control of a link with translated offsets has no partitions: `mapped` says which it has copied.

    Metadata for all topics leaves out those that we may not describe.  So each cluster is asked by name for every topic that the
    other cluster, the control, the map or the link's expressions name and that it does not list.  The target lists its topics
    before the source: a topic that is created meanwhile is on the source by then.
    """
    on_target = {name: numbers for name, numbers in (await target.partitions()).items() if topics.writes(name)}
    listed = {} if source is None else await source.partitions()
    on_source = {name: numbers for name, numbers in listed.items() if topics.writes(name)}
    known = known_topics(topics, control, {*on_source, *on_target}) | mapped.names
    more, refused = await visible_topics(target, sorted((known | on_source.keys()) - on_target.keys()))
    on_target.update(more)
    if source is not None:
        unlisted = (known | on_target.keys()) - on_source.keys()
        wanted = sorted(name for name in unlisted if not is_heartbeats(topics, name))
        more, refused_there = await visible_topics(source, wanted)
        on_source.update(more)
        refused = {**refused, **refused_there}
    begun = _named_partitions(control, mapped)
    hidden: dict[TopicPartition, str] = {}
    for name, error in sorted(refused.items()):
        remembered = sorted(p.partition for p in begun if p.topic == name)
        numbers = on_source.pop(name, None) or on_target.pop(name, None) or remembered or [0]
        hidden.update(dict.fromkeys((TopicPartition(name, n) for n in numbers), str(error.args[0])))
    alone = [name for name in sorted(on_target.keys() - on_source.keys()) if not is_heartbeats(topics, name)]
    has = begun_partitions(control, mapped)
    own = set(alone).difference(alone if has is None else (p.topic for p in has))
    gone = {name: on_target[name] for name in alone if name not in own}
    if source is not None:
        for name in sorted(on_target.keys() & on_source.keys()):
            fewer = sorted(set(on_target[name]).difference(on_source[name]))
            if fewer := [n for n in fewer if TopicPartition(name, n) in begun]:
                gone[name] = fewer
    return LinkView(on_source, on_target, gone, hidden, mapped.unread, {name: on_target[name] for name in sorted(own)})


def begun_partitions(control: LinkControl, mapped: MappedTopics) -> frozenset[TopicPartition] | None:
    """The partitions, by their names on the target, of which a link may have records there; None if nothing tells.  Pure.

    A mirror writes down that it begins a partition before its first record there: in the control, with translated offsets in the map.
    A start without a control finds in the logs what it had begun before (former_copies.py), or may have.
    A control that was deleted tells nothing, nor does one of version 0.1, which has no `begun`, nor a map that is lost or not read whole.
    """
    is_told = control.begun if control.is_identical else mapped.partitions or control.is_prepared and control.adopted
    if control.is_hidden or control.tells_no_start or mapped.unread or not is_told:
        return None
    return _named_partitions(control, mapped).union(control.log_starts, control.unfenced)


def _named_partitions(control: LinkControl, mapped: MappedTopics) -> frozenset[TopicPartition]:
    """The partitions that a link has begun, took over, or may have begun, as far as its control and its map name them.  Pure."""
    return mapped.partitions.union(control.begun, control.copied, control.adopted, control.maybe_begun)


def known_topics(topics: LinkTopics, control: LinkControl, seen: Collection[str]) -> set[str]:
    """Names on the target of the topics that a link names, whether a cluster lists them or not.  Pure.

    An expression that could be a topic's name counts as one, unless it matches a topic that was `seen`: "a.b" may mean "a-b".
    """
    partitions = (*control.begun, *control.copied, *control.unfenced)
    names = {p.topic for p in partitions if topics.writes(p.topic)}
    originals = [topics.to_source(name) for name in seen]
    for expression in {each for filter in (topics.filter, *topics.also) for each in filter.include}:
        if not any(TopicFilter((expression,)).matches(name) for name in originals) and topics.takes(expression):
            names.add(topics.to_target(expression))
    return {name for name in names if _TOPIC_NAME.fullmatch(name)}


async def partitions_of_link(
    source: Cluster, target: Cluster, topics: LinkTopics, link: str, control: LinkControl, mapped: MappedTopics
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Every partition of the link that the source has: those that the target has, too, and those that it lacks.

    Raises OptionError if the source has none, and if there may be a topic that we may not describe.
    """
    view = await see_topics(source, target, topics, control, mapped)
    view.require_seen(link)
    wanted, there = _partitions(view.on_source), _partitions(view.on_target)
    if not wanted:
        raise OptionError("The source has no topic of this link; check --source and --link")
    return sorted(there & wanted), sorted(wanted - there)


async def partitions_on_target(
    target: Cluster, topics: LinkTopics, link: str, control: LinkControl, mapped: MappedTopics
) -> list[TopicPartition]:
    """Every partition of the link that the target has, as far as its map could be read.

    Raises OptionError if there may be a topic that we may not describe.
    """
    view = await see_topics(None, target, topics, control, mapped._replace(unread={}))
    view.require_seen(link)
    return sorted(_partitions(view.on_target))


async def only_on_target(
    source: Cluster, target: Cluster, topics: LinkTopics, link: str, control: LinkControl, mapped: MappedTopics
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Partitions of the target that the source does not have: those that the link may have begun, and those `beside` (LinkView).

    Raises OptionError if there may be a topic that we may not describe.
    """
    view = await see_topics(source, target, topics, control, mapped)
    view.require_seen(link)
    return sorted(_partitions(view.gone)), sorted(_partitions(view.beside))


def _partitions(topics: Mapping[str, list[int]]) -> set[TopicPartition]:
    return {TopicPartition(topic, n) for topic, numbers in topics.items() for n in numbers}


def is_heartbeats(topics: LinkTopics, name: str) -> bool:
    """Whether a topic of the target has heartbeats for MirrorMaker 2's tools."""
    names = topics.names
    return names is not None and topics.has_source(name) and names.policy.is_heartbeats(topics.to_source(name))


def some(texts: Iterable[str], between: str = ", ") -> str:
    """Joins the first few texts and counts the others."""
    known = list(texts)
    return between.join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
