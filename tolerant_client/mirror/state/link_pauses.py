"""What an operator pauses and resumes of a link: the whole of it, topics, partitions; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.link_control import WHOLE_LINK, LinkControl


def paused_text(control: LinkControl, partitions: Iterable[TopicPartition], which: str) -> str:
    """Why partitions that an operator has paused are not copied, and what resumes them; the options `which` name the link."""
    resume = control.resume_command(partitions, which)
    return f"paused by an operator; to resume: {resume}"


def paused(control: LinkControl, topics: Iterable[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """With these topics (or WHOLE_LINK) and partitions paused, too."""
    return replace(
        control, paused=control.paused | set(topics), paused_partitions=control.paused_partitions | set(partitions)
    )


def resumed(control: LinkControl, topics: Collection[str], partitions: Iterable[TopicPartition] = ()) -> LinkControl:
    """Without the pauses of these topics and partitions; a topic also resumes its partitions, WHOLE_LINK all.

    Raises OptionError for a topic or partition that stays paused because the link or its topic is.
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
        raise OptionError(
            f"{name} cannot be resumed alone, since {what} is paused; resume that, then pause the rest again"
        )
    kept = frozenset(p for p in control.paused_partitions if p not in gone and p.topic not in topics)
    return replace(control, paused=control.paused - set(topics), paused_partitions=kept)
