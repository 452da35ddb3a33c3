"""Whether a link closes a circle: another one copies its topics back from its target to its source.

Two links that copy the same topics in opposite directions between two clusters would each take the other's copies for
foreign writes, or copy them round and round.  Each link records in the control topic of its target which cluster it copies
from and which topics it takes.  So a link finds the links that write to its *source* in the control topic there.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.engine.preflight import MAY_NOT, how_to_forget, look_for_others
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls
from tolerant_client.mirror.state.control_topic import ControlsWatch, read_control, read_controls
from tolerant_client.mirror.state.link_control import LinkControl, link_options, listed, plain_options, unfinished
from tolerant_client.mirror.state.link_topics import hindrance
from tolerant_client.mirror.state.map_topic import was_never_started
from tolerant_client.mirror.state.moves import copied_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter


async def refuse_one_cluster(source: Cluster, target: Cluster) -> None:
    """Raises OptionError where source and target are the same cluster."""
    if await source.cluster_id() == await target.cluster_id() is not None:
        raise OptionError(
            f"Source {listed(source.bootstrap_servers)} and target {listed(target.bootstrap_servers)} are the same cluster"
            f" ({await source.cluster_id()}); give two clusters"
        )


async def links_into(
    source: Cluster, begun_of: Collection[str] | None = (), watch: ControlsWatch | None = None
) -> Controls | None:
    """The controls of the links that copy to our source, or have done so, as read_controls; None if we may not read them.

    `watch`, of the source by its own names, spares who asks again what it has read.
    """
    try:
        return await (read_controls(source.by_own_names(), begun_of) if watch is None else watch.read(begun_of))
    except MAY_NOT:
        return None


async def refuse_circle(
    source: Cluster, target: Cluster, topics: Collection[str], link: str, controls: Controls | None
) -> tuple[str, ...]:
    """Raises OptionError where a live link copies some of these topics (the source's names) from our target to our source.

    A link lives until it is promoted, and its processes are fenced.  `controls` are links_into the source; returns a warning
    without them.
    """
    there = await target.cluster_id()
    if there is None:
        return ()
    source = source.by_own_names()
    if controls is None:
        return (
            f"whether link {link} runs in a circle cannot be seen: we may not read {CONTROL_TOPIC} of the source; grant the"
            " mirror Read and Describe on it, even if it does not exist yet",
        )
    may_copy = [record for record in controls.unreadable if record.copies_from == there]
    if may_copy and topics:
        why = hindrance(may_copy[0], min(topics), source)
        raise OptionError(f"Nothing tells whether link {link} runs in a circle: {why}")
    for other, control in links_back(controls, there):
        both = _in_both(control, [name for name in topics if not control.has_moved(name)])
        is_unknown = control.is_of_unknown_source
        # What copies already began while nothing copied the other way.
        if both and control.is_half_promoted and not (is_unknown and await _copies_already(target, link)):
            copied = "may have copied" if is_unknown else "copied"
            onto, between = plain_options(other, source), plain_options(other, source, target)
            raise OptionError(
                f"Link {link} would run in a circle with link {other}, which {copied} topic {both} from this target to this"
                f" source: {unfinished(control, onto, between)[0]}"
            )
        if both and not control.is_promotion_begun and not control.is_identical:  # what it is refused it does not copy
            others = await look_for_others(source, other, topics, is_identical=False)
            both = _in_both(control, set(topics) - others.taken - others.unknown)
            if not both and (unknown := sorted(name for name in others.unknown if control.writes(name))):
                why = others.refused[unknown[0]]
                raise OptionError(f"Nothing tells whether link {link} runs in a circle: {why}")
        if both and not control.is_promotion_begun:
            way_out = f"Promote link {other} first"
            what = "copies"
            if await was_never_started(source, other, control):
                what, way_out = "was prepared to copy", how_to_forget(other, source)
            raise OptionError(
                f"Link {link} would run in a circle: link {other} {what} topic {both} from this target to this source."
                f" {way_out}, or leave its topics out"
            )
    return ()


async def link_back(source: Cluster, target: Cluster, topics: Collection[str]) -> str:
    """Which live link copies some of these topics (the source's names) from our target to our source; "" if none is seen."""
    for other, control in links_back(await links_into(source), await target.cluster_id()):
        if not control.is_over and (both := _in_both(control, topics)):
            return f"link {other} copies topic {both} from this target to this source"
    return ""


def links_back(controls: Controls | None, target_id: str | None) -> list[tuple[str, LinkControl]]:
    """The links that copy from our target to our source (links_into), or have done so, as far as is known.  Pure."""
    if controls is None or target_id is None:
        return []
    return [(name, c) for name, c in controls.links.items() if c.may_copy_from(target_id) and c.topics]


def is_original(
    source: Cluster, target: Cluster, link: str, partition: TopicPartition, back: Iterable[tuple[str, LinkControl]]
) -> TargetDivergedError | None:
    """The error for a target log that differs, and that one of the promoted links `back` (links_back) has copied to our source."""
    name = source.wire_topic(partition.topic)
    known = {
        other: c for other, c in back if c.is_promotion_begun and c.source_cluster_id is not None and c.writes(name)
    }
    if not known:
        return None
    other = min(known, key=lambda name: not known[name].is_identical)
    remedy = leave_out_translated(other)
    if known[other].is_identical:
        remedy = (
            f"run {failback_command(link, target, source, had_topics(known[other]))}: it compares both logs, names what only the target has, and"
            " prepares this link to copy back what the target lacks"
        )
    return TargetDivergedError(
        f"The target log {partition.topic}-{partition.partition} is the original: link {other}, which was promoted, has copied it from this"
        f" target to this source. It has something that the source does not have, or has otherwise, so link {link} cannot resume it"
    ).advising(remedy)


def topics_option(topics: LinkTopics, names: Iterable[str]) -> str:
    """What an option --topics says of topics: their expressions, or where no option says the same, the `names` that they take."""
    return topics.option or ",".join(map(_expression, names))


def only_topics(names: Iterable[str]) -> LinkTopics:
    """Topics by their names."""
    return LinkTopics(TopicFilter(tuple(map(_expression, names))))


def _expression(name: str) -> str:
    """The regular expression that matches a topic's name alone."""
    return name.replace(".", r"\.")


def had_topics(control: LinkControl) -> str:
    """What an option --topics says of the topics that a promoted link has copied; "" if its control does not say it."""
    return "" if control.topics is None else topics_option(LinkTopics.from_json(control.topics), copied_topics(control))


def failback_command(link: str, target: Cluster, source: Cluster, topics: str) -> str:
    """What to type to prepare the link back for these topics of an option."""
    command = f"tolerant-kafka failback {link_options(link, target, source)}"
    return f"{command} --topics {shlex.quote(topics)}" if topics and not target.file_options else command


def leave_out_translated(forward: str) -> str:
    """The advice on an original of which a link with translated offsets has made the source's log."""
    return (
        f"Leave the topic out: link {forward} had translated offsets, and failback compares logs with the same offsets. What"
        " producers have written to the source since can be copied into a topic of another name (in a file: a replication policy)"
    )


async def _copies_already(target: Cluster, link: str) -> bool:
    """Whether the link has started since it was made, or failed back, last."""
    own = await read_control(target, link)
    return own.topics is not None and not (own.is_over or await was_never_started(target, link, own))


def _in_both(control: LinkControl, names: Collection[str]) -> str:
    """The topics among `names` that a link writes on its target, in words; empty if none."""
    both = sorted(name for name in names if control.writes(name))
    return f"{both[0]} and {len(both) - 1} more" if len(both) > 1 else "".join(both)
