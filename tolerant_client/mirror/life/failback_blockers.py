"""Why a link back cannot begin, and what to do about it: what failback says of what it has read; pure.

The clusters are those of failback.py: `into_target` are the links into its target, `into_source` those into its source, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.losses import GOES_ON
from tolerant_client.mirror.engine.preflight import promoted_text, unmoved_text
from tolerant_client.mirror.engine.troubles import WITH_WHAT_IT_HAS, fill_again
from tolerant_client.mirror.life.shared_log import SharedLog
from tolerant_client.mirror.state.health import by_reason, counted, few, names
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import some
from tolerant_client.mirror.state.moves import copied_topics, last_moves, unsaid_moves

_DELETED = "these topics are deleted on the target, with what groups have committed of them there, and copied again"


# -- topics of which nothing is brought back ------------------------------------------


def home_texts(
    home: Mapping[str, str],
    link: str,
    brought: Collection[str],
    into_target: Mapping[str, LinkControl],
    into_source: Mapping[str, LinkControl],
    command: Callable[[str, Collection[str]], str],
    source_id: str | None,
) -> dict[str, str]:
    """Why nothing is brought back to those topics of the target, of all to be `brought` by the link, that are at_home.

    `command` is what to type to bring back topics by a link.  Only under its own name the link that brought a topic home stops
    telling clients so; if it copies from another cluster than the source, whose id is given, that name cannot be used.
    """

    def once_lost(of: str) -> str:
        control = into_target[of]
        if not control.may_copy_from(source_id) or unsaid_moves(control, brought, into_source):
            return f"run this again: it is copied back whole. {has_led_here(of)}"
        own = sorted(home.keys() & set(copied_topics(control)))
        return f"run {'this again' if of == link else command(of, own)}: it is copied back whole"

    def moved_on(name: str) -> str | None:
        """The link that copies a topic into the source and knows that it was moved on from the target since: in a ring, say."""
        since_ms = last_moves(into_target)[name].since_ms
        live = ((link, c) for link, c in into_source.items() if c.is_identical and not c.is_over and c.writes(name))
        return next((link for link, c in live if c.known_moves.get(name, -1) > since_ms), None)

    def why(name: str, of: str) -> str:
        if (feeder := moved_on(name)) is not None:
            return (
                f"Topic {name} of this target is the copy of link {of}, which was promoted, and was moved on since to another cluster,"
                f" from which link {feeder} copies it into this source. Run failback with its primary as the source, or leave it out"
            )
        return (
            f"{promoted_text(name, of)} So the target is its primary, and nothing is to be brought back. To copy it to the source again,"
            " run tolerant-kafka failback with source and target exchanged; or leave the topic out. But if the target was lost since, and"
            " applications write to the source's topic instead, that one is the primary: do not exchange them, but delete the topic on the"
            f" target, {WITH_WHAT_IT_HAS}, and {once_lost(of)}"
        )

    return {name: why(name, of) for name, of in sorted(home.items())}


def unmoved_texts(
    link: str, brought: Collection[str], into_target: Mapping[str, LinkControl], target: Cluster
) -> dict[str, str]:
    """Why topics are not brought back that another link's promotion has not moved to the target yet."""
    half = {of: c for of, c in into_target.items() if of != link and c.is_half_promoted}
    return {
        name: unmoved_text(name, of, c, target)
        for of, c in half.items()
        for name in sorted(brought)
        if c.writes(name) and not c.has_moved(name)
    }


def has_led_here(link: str) -> str:
    """What to do with the clients of topics that another link copies back, though the control of this one says that they are home."""
    return (
        f"Its clients with standby= stay at this target, to which link {link} has led them: start them again once another link is"
        " prepared for it, and they begin at the source (with brokers before 2.8 only without standby=)"
    )


# -- logs ---------------------------------------------------------------------------


def blockers(
    partitions: Collection[SharedLog], *, discards: bool, undeletable: Collection[str] = ()
) -> tuple[str, ...]:
    """Why the link back cannot begin, except for what `strangers` says of the `undeletable` topics."""
    found = []
    if opened := [p for p in partitions if p.is_open]:
        found.append(
            f"transactions are open on the target, {opened[0].topic}-{opened[0].partition} ({counted(len(opened), 'partition')}): wait"
            " until its coordinator has ended them, then run this again"
        )
    if discards:
        return tuple(found)
    partitions = [p for p in partitions if p.topic not in undeletable]
    if bare := [p for p in partitions if p.is_diverged and p.is_proved and p.is_counted and not p.lost_records]:
        first = bare[0]
        found.append(
            f"in {counted(len(bare), 'partition')} the target's log ends with offsets without a record, such as the marker of a"
            f" fence, and the source may have records at these offsets: {first.topic}-{first.partition} from offset"
            f" {first.shared_until} to {first.target_end}. With --discard-diverged {_DELETED}; no record is lost that"
            " was never copied"
        )
    if diverged := [p for p in partitions if p.is_diverged and p not in bare]:
        first = diverged[0]
        unseen = sum(not p.is_proved for p in diverged)
        doubt = f" (for {unseen} of them nothing shows whether it was)" if unseen else ""
        found.append(
            f"{counted(len(diverged), 'partition')} of the target {'has' if len(diverged) == 1 else 'have'} records that were never copied{doubt}, {lost_records(diverged)} committed"
            f" records in all: {first.topic}-{first.partition} from offset {first.shared_until} to {first.target_end}. Read"
            f" what you need from there, then give it up with --discard-diverged: {_DELETED}"
        )
    if unproved := [p for p in partitions if not p.is_proved and not p.is_diverged]:
        first = unproved[0]
        found.append(
            f"in {counted(len(unproved), 'partition')} the target has no records left at the end of its log, or none that the source still"
            f" has, so nothing shows whether the log was copied to its end: {first.topic}-{first.partition} ends at"
            f" offset {first.target_end}, and the source has records before that. With --discard-diverged"
            f" {_DELETED}; records that the source does not have are lost by that"
        )
    return tuple(found)


def lost_records(partitions: Iterable[SharedLog]) -> str:
    """How many records only the target has, as text."""
    every = list(partitions)
    return f"{'' if all(p.is_counted for p in every) else 'at least '}{sum(p.lost_records for p in every):,}"


def strangers(
    undeletable: Collection[str], own: Collection[str], promoted: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Why topics whose logs cannot be adopted are not deleted either; `own` are copies of this link before its promotion, `promoted`
    those of others.
    """
    others = {name: promoted[name] for name in undeletable if name in promoted and name not in own}
    found = [
        f"{some(of)} on the target is the copy of link {link}, which was promoted, so --discard-diverged does not delete it: if"
        " applications write there, exchange source and target; else leave it out of --topics, or delete it yourself,"
        f" {WITH_WHAT_IT_HAS}"
        for link, of in by_reason(others).items()
    ]
    if foreign := sorted(set(undeletable).difference(own, others)):
        found.append(
            f"the target's log of {some(foreign)} is not a copy of the source's, and no control on the source says that a link"
            " copied it from there: it may be another topic of the same name, so --discard-diverged does not delete it. Leave"
            f" it out of --topics, or delete it yourself, {WITH_WHAT_IT_HAS}"
        )
    if former := sorted(set(undeletable).intersection(own)):
        found.append(
            f"{some(former)} on the target is this link's own copy of before its promotion, and others may have written to it"
            " since, so --discard-diverged does not delete it. If the source has nothing newer, copy their records to it by failback"
            " in the other direction; or read what you need of them, then delete the topic on the target yourself: it is then"
            " copied again"
        )
    return tuple(found)


def left_alone(others: Mapping[str, str]) -> tuple[str, ...]:
    """Why topics of the target, by name, are no originals of the source's: a sentence for each reason."""
    return tuple(
        f"the target has records of {some(of)}, and the source's log was not copied from there: {why}. It may be another topic"
        " of the same name, so nothing of it is compared, deleted or copied: leave it out of --topics (topics.exclude of a file), here and for the mirror; if"
        " nobody needs its records on the target, delete it there yourself"
        for why, of in by_reason(others).items()
    )


def unled_texts(unled: Mapping[TopicPartition, str]) -> list[str]:
    """Why logs cannot be read now: a sentence for each reason."""
    return few(
        f"{names(of)} cannot be compared: {why}. Run this again once a broker that has it responds, or leave its topic out of"
        " --topics"
        for why, of in by_reason(unled).items()
    )


def untold(unknown: Mapping[str, str]) -> tuple[str, ...]:
    """What cannot be said of topics of the target, by name, this time: a sentence for each reason."""
    return tuple(
        f"whether a link has copied {some(of)} from the target is unknown: {why}. Run this again when the source's brokers"
        " respond, or leave it out of --topics"
        for why, of in by_reason(unknown).items()
    )


def overtaken(adopted: Iterable[SharedLog]) -> tuple[str, ...]:
    """A warning of adopted logs after whose ends the source has deleted records already."""
    found = [p for p in adopted if p.is_overtaken]
    return tuple(
        f"the source no longer has offsets {first.shared_until} to {first.source_start} of {first.topic}-{first.partition}"
        f" ({counted(len(found), 'partition')}): retention has deleted what the target lacks, and the mirror stops there. Resume"
        f" after it with {GOES_ON}, or {fill_again()}, as far as it is left"
        for first in found[:1]
    )
