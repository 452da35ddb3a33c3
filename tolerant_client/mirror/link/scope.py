"""What belongs to a link: its topics and its partitions.

A link's topics only grow until it is promoted: what an earlier start has copied belongs to it, too.  A control holds for a
whole link, so promotion takes what the link's mirror has written down that it copies, never a part
of it: what was left out would be promoted, too, and neither looked at nor fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.link.beginning import require_no_unreadable, writes
from tolerant_client.mirror.link.control import HIDDEN, LinkControl, TopicIds, read_controls
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.raw import RawCluster

NOT_ON_SOURCE = "the source has no such topic"
_SHOWN = 5


def made_anew(
    controls: Mapping[str, LinkControl], source_cluster_id: str | None, now: Mapping[str, TopicIds]
) -> list[str]:
    """Of topics with these ids, by their names on the target, those that a link began to copy with others, in words.  Pure."""
    found: set[str] = set()
    for link, control in controls.items():
        if control.is_promoted or control.is_handed_back or control.source_cluster_id != source_cluster_id:
            continue
        for (topic, _), ids in control.begun.items():
            if (other := now.get(topic)) is None:
                continue
            for side, is_same in (("source", ids.is_of_source(other)), ("target", ids.is_of_target(other))):
                if not is_same:
                    found.add(
                        f"topic {topic} was deleted and made anew on the {side} since link {link} began to copy it: what is"
                        " compared is the new one"
                    )
    return sorted(found)


def link_topics(control: LinkControl, link: str, given: LinkTopics | None) -> LinkTopics:
    """What of a link is meant: `given`, or all that it copies; raises OptionError where nobody says so."""
    return written_topics(control, link, None) if given is None else given


def written_topics(control: LinkControl, link: str, given: LinkTopics | None) -> LinkTopics:
    """All that a link copies, as it has written down; `given` where it has not.  Raises OptionError without either."""
    if control.topics is not None:
        return LinkTopics.from_json(control.topics)
    if given is None and control.is_hidden:
        raise OptionError(f"What link {link} copies is unknown, since {HIDDEN}, or give --topics")
    if given is None:
        raise OptionError(f"No mirror of link {link} has written down what it copies; check --link, or give --topics")
    return given


def differing_topics(
    written: LinkTopics, given: LinkTopics, on_source: Iterable[str] = (), on_target: Iterable[str] = ()
) -> list[str]:
    """Topics, by their names there, that only one of two takes, or that both call otherwise on the target.  Pure."""

    def takes(topics: LinkTopics, name: str) -> str | None:
        return topics.to_target(name) if topics.takes(name) else None

    found = {name for name in on_source if takes(written, name) != takes(given, name)}
    return sorted(found | {name for name in on_target if writes(written, name) != writes(given, name)})


async def require_whole(
    source: RawCluster | None, target: RawCluster, control: LinkControl, link: str, given: LinkTopics | None
) -> LinkTopics:
    """All that a link copies; raises OptionError where `given` takes something else, or another live link the same."""
    written = written_topics(control, link, given)
    if given is None:
        return written
    on_target = list(await target.partitions())
    if control.topics is None:
        await _refuse_another(target, link, given, on_target)
        return written
    on_source = [] if source is None else [source.wire_topic(name) for name in await source.partitions()]
    if found := differing_topics(written, given, on_source, on_target):
        raise OptionError(
            f"Link {link} copies {written}, as its mirror has written down, and that is not what is asked for: they"
            f" differ in {some(found)}. A link is promoted as a whole: leave --topics out; where a file says what is copied,"
            " start its mirror with it first, or give --source, --target and --link instead of --config"
        )
    return written


async def _refuse_another(target: RawCluster, link: str, given: LinkTopics, on_target: Iterable[str]) -> None:
    """A wrong --link would leave the right one alive."""
    names = [name for name in on_target if writes(given, name)]
    controls = await read_controls(target)
    require_no_unreadable(controls, link, names, target)
    for other, control in controls.links.items():
        if other == link or control.is_promoted or control.topics is None:
            continue
        if both := [name for name in names if writes(LinkTopics.from_json(control.topics), name)]:
            raise OptionError(
                f"No mirror of link {link} has written down what it copies, and link {other} copies topic {both[0]}: is --link"
                f" {other} meant?"
            )


async def partitions_of_link(
    source: RawCluster, target: RawCluster, topics: LinkTopics
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Every partition of the link that the source has: those that are on the target, too, and those that are not yet.

    Raises OptionError where the source has none.
    """
    there = {TopicPartition(t, n) for t, numbers in (await target.partitions()).items() for n in numbers}
    names = [name for name in await source.partitions() if writes(topics, name)]
    wanted = [TopicPartition(t, n) for t, numbers in (await source.partitions(names)).items() for n in numbers]
    if not wanted:
        raise OptionError("The source has no topic of this link; check --source and --link")
    return sorted(there.intersection(wanted)), sorted(set(wanted) - there)


async def partitions_on_target(target: RawCluster, topics: LinkTopics) -> list[TopicPartition]:
    """Every partition that the target has of what the link copies."""
    found = await target.partitions()
    return sorted(TopicPartition(t, n) for t, numbers in found.items() if writes(topics, t) for n in numbers)


async def only_on_target(source: RawCluster, target: RawCluster, topics: LinkTopics) -> dict[str, list[int]]:
    """Topics that the link writes and the source does not have (any more), with their partitions on the target.

    The target is asked first: what is made meanwhile the source has by then.
    """
    found = await target.partitions()
    there = await source.partitions()
    return {
        name: numbers
        for name, numbers in sorted(found.items())
        if name not in there and writes(topics, name) and not is_heartbeats(topics, name)
    }


def is_heartbeats(topics: LinkTopics, name: str) -> bool:
    """Whether a topic of the target has the heartbeats that MirrorMaker 2's tools read."""
    return topics.names is not None and topics.names.policy.is_heartbeats(topics.to_source(name))


def some(texts: Iterable[str], between: str = ", ") -> str:
    """The first of several, and how many more there are."""
    known = list(texts)
    return between.join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
