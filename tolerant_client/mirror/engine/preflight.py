"""What a link checks and records before it copies anything: whether it may copy, and where it begins.

An unreadable record that says that a link copies may belong to a mirror that writes the same topics: nothing starts beside
it, and the error says how to clear it (repair.py).  An unreadable record that does not say so belongs to no mirror, and
stops nobody.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.configs import describe_configs, tells_configs
from tolerant_client.cluster.admin.coordinators import transaction_partitions
from tolerant_client.cluster.admin.offsets import list_led_offsets, stable_ends
from tolerant_client.cluster.admin.topics import lacking, topic_ids
from tolerant_client.cluster.cluster import LATEST, Cluster, OffsetAndEpoch
from tolerant_client.errors import OptionError, TargetClaimedError, text_of
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls
from tolerant_client.mirror.state.control_topic import (
    HIDDEN,
    ControlsWatch,
    orders_hidden,
    read_controls,
    update_control,
)
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError, TopicIds, plain_options, unfinished
from tolerant_client.mirror.state.link_topics import require_no_unreadable
from tolerant_client.mirror.state.map_rows import leaderless_parts
from tolerant_client.mirror.state.map_topic import copier_id, map_partition, map_topic, was_never_started
from tolerant_client.mirror.state.plan import LOG_APPEND_TIME, TIMESTAMP_TYPE
from tolerant_client.mirror.state.promoted_copies import promoted_copies
from tolerant_client.mirror.state.topic_filter import LinkTopics

_OTHER_KIND = ", with {} offsets, and only one link may write a topic that has identical offsets"
MAY_NOT = (
    Errors.TopicAuthorizationFailedError,
    Errors.ClusterAuthorizationFailedError,
    Errors.GroupAuthorizationFailedError,
)


def grown(control: LinkControl, topics: LinkTopics) -> LinkTopics:
    """All topics that a link takes from now on: those it took before, and these.  Raises OptionError."""
    return topics if control.topics is None else topics.joined(LinkTopics.from_json(control.topics))


def require_same_source(control: LinkControl, link: str, cluster_id: str | None) -> None:
    """Raises OptionError if the link has copied from another cluster: its target's logs are not copies of this one."""
    known = control.source_cluster_id
    if control.topics is not None and None not in (known, cluster_id) and known != cluster_id:
        copies = "has copied" if control.is_over else "copies"
        raise OptionError(
            f"Link {link} {copies} from cluster {known}, and this source is cluster {cluster_id}: check --source; to copy from this one,"
            " give another --link"
        )


class Others(NamedTuple):
    """Why a link may not copy into topics beside other links, by topic, and warnings of records that were ignored.

    `taken` are the refused topics that another link has already: begun, promoted, or with transactional ids that it uses.
    `unknown` are those refused because nobody can tell now whether another link was promoted with them.
    """

    refused: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    def require_none(self) -> None:
        """Raises OptionError for the first topic that is refused."""
        for why in self.refused.values():
            raise OptionError(why)


def of_the_same_id(
    link: str, names: Iterable[str], other: str, *, is_identical: bool, other_is: bool
) -> dict[str, str]:
    """Topics of a link that share transactional ids with a topic of another link: {ours: the other's}.  Pure.

    Gaps of topic x-gap-y of link a have the id of those of topic y of link a-gap-x.  Either may be identical or translated.
    """
    ours, theirs = (
        f"{name}-{'gap' if identical else 'copy'}-" for name, identical in ((link, is_identical), (other, other_is))
    )
    return {n: f"{ours}{n}".removeprefix(theirs) for n in names if other != link and f"{ours}{n}".startswith(theirs)}


def topic_of_id(name: str, link: str, *, is_identical: bool) -> str | None:
    """The topic of a link with a partition whose transactional id is another link's own.  Pure.

    `name` is that of the other link's producer.  What fills gaps of partition t-0 of link a has the name of a link a-gap-t-0.
    """
    prefix = f"{link}-{'gap' if is_identical else 'copy'}-"
    topic, _, number = name.removeprefix(prefix).rpartition("-")
    return topic if name.startswith(prefix) and topic and number.isdecimal() else None


def _of_shared_ids(
    link: str, names: Collection[str], own: LinkControl, other: str, control: LinkControl, *, is_identical: bool
) -> dict[str, str]:
    """Those of a link's topics that may not be copied, since another link has one of its transactional ids.

    `own` is the link's control, `control` the other's.  Pure.
    """
    assert control.topics
    taken, other_is = LinkTopics.from_json(control.topics), control.is_identical
    ours, theirs = own.producer_name(link), control.producer_name(other)
    twins = of_the_same_id(link, names, other, is_identical=is_identical, other_is=other_is)
    which = {name: f"ids of topic {twin} of link {other}" for name, twin in twins.items() if taken.writes(twin)}
    if (mine := topic_of_id(theirs, link, is_identical=is_identical)) is not None and mine in names:
        which[mine] = f"id of link {other} itself"
    refused = {
        name: f"Topic {name} of link {link} has the transactional {ids}: leave it out, or copy it by a link of another name"
        for name, ids in which.items()
    }
    whole = topic_of_id(ours, other, is_identical=other_is)
    if ours == theirs or whole is not None and taken.writes(whole):
        what = f"link {other}" if whole is None else f"topic {whole} of link {other}"
        why = f"Link {link} has a transactional id of {what}: give it another name with --link"
        refused = dict.fromkeys(names, why)
    return refused


async def look_for_others(
    target: Cluster,
    link: str,
    names: Collection[str],
    *,
    is_identical: bool,
    is_new: bool = False,
    own: LinkControl | None = None,
) -> Others:
    """Which of these target topics another link writes, may write, or copied before it was promoted.

    Links with translated offsets may share a topic; a link with identical offsets, which has a producer id, must be alone in
    it, and its promoted copy gets the source's records from no other.  A link that has begun to copy a topic has it.  Any link may begin a topic that it names and nobody has begun, but a
    link with translated offsets goes first.  `is_new`: the topics were found while the link runs; of two links that find
    the same topic, the one whose name sorts first copies it.  `own` is the link's control as it
    will be, if that is not the one on the target (failback).
    """
    try:
        controls = await read_controls(target, frozenset(names))
    except MAY_NOT:
        # A mirror neither starts nor copies then; what it finds meanwhile must be checked later.
        return Others(dict.fromkeys(names, HIDDEN)) if is_new else Others()
    try:
        require_no_unreadable(controls, link, names, target)
    except OptionError as error:
        return Others(dict.fromkeys(names, text_of(error)))
    refused: dict[str, str] = {}
    taken: set[str] = set()
    own = controls.links.get(link, LinkControl()) if own is None else own
    ours = {p.topic for p in own.begun}
    promoted, unknown = await _why_promoted(
        target, link, controls, own, names, is_identical=is_identical, asks_unnamed=not is_identical
    )
    refused |= {**promoted, **unknown}
    if not is_identical and own.map_id is not None:
        otherwise = await _copied_otherwise(target, link, own, names)
        refused |= otherwise
        taken |= otherwise.keys()
    taken |= promoted.keys()
    for other, control in _others_that_live(controls, link):
        if not control.topics:
            continue
        shared = _of_shared_ids(link, names, own, other, control, is_identical=is_identical)
        taken |= shared.keys()
        refused |= shared
        if not (is_identical or control.is_identical):
            continue
        theirs = LinkTopics.from_json(control.topics)
        is_same_kind = is_identical and control.is_identical
        kind = "" if is_same_kind else _OTHER_KIND.format("translated" if is_identical else "identical")
        way_out = f"use that link (a mirror with --link {other}; the flow A->B of a file is link A-B)"
        if await was_never_started(target, other, control):
            kind = "; it was prepared (failback, take-over) and has not started yet"
            way_out += f". {how_to_forget(other, target)}"
        begun = {p.topic for p in control.begun}.intersection(names)
        taken |= begun
        may_begin = is_identical and not (is_new and is_same_kind and link < other)
        refused |= {
            name: f"Link {other} {'copies' if name in begun else 'may copy'} into topic {name} of this target{kind}: {way_out},"
            " or leave the topic out of this one"
            for name in sorted(names)
            if name in begun or may_begin and name not in ours and theirs.writes(name)
        }
    return Others(
        refused,
        tuple(
            f"{record}, and does not say that a link copies: ignored; revoke the right to write there from whoever wrote"
            " it"
            for record in controls.unreadable
        ),
        frozenset(taken),
        frozenset(unknown) - taken,
    )


async def _copied_otherwise(target: Cluster, link: str, own: LinkControl, names: Collection[str]) -> dict[str, str]:
    """Why a translated link may not copy into those of its topics that an earlier version has begun with identical offsets."""
    begun = {p for p in own.begun if p.topic in names}
    if not begun:
        return {}
    ids = {name: TopicIds(target=str(id)) for name, id in (await topic_ids(target, {p.topic for p in begun})).items()}
    there = await target.partitions({p.topic for p in begun})
    still = [p for p in begun if own.has_begun(p, ids) and p.partition in there.get(p.topic, ())]
    ends = (await list_led_offsets(target, dict.fromkeys(still, LATEST))).offsets
    return {
        p.topic: f"Topic {p.topic} of this target has what a mirror of link {link} has copied there with identical offsets, when it"
        " was started without --offsets translated: the link, which has translated offsets, would append all of it once more. Leave"
        " the topic out, or delete it on the target, also what others wrote there: it is then copied again"
        for p in still
        if ends.get(p, 1)  # without a leader: unknown
    }


def how_to_forget(link: str, target: Cluster) -> str:
    """How to give up a link that was only prepared, as a clause; its control is on `target`."""
    return (
        f"If it is not wanted, such as a mistyped name, run tolerant-kafka repair --forget with the {target.name} as --target"
        f" and --link {shlex.quote(link)}"
    )


class RefusalFacts(NamedTuple):
    """Why topics are refused, as far as it is cheap to request: the control topic's end, which exist, which are `stamped`.

    And the parts of offset maps that have no leader: what only they tell is unknown.
    """

    control_end: int | None
    topics: Mapping[str, uuid.UUID | None]  # ids of those that exist
    stamped: frozenset[str] = frozenset()  # with LogAppendTime
    leaderless: frozenset[TopicPartition] = frozenset()


async def unled_copies(
    target: Cluster, partitions: Collection[TopicPartition], map_of: str | None = None, patience_ms: int = 0
) -> dict[TopicPartition, str]:
    """Why nothing can be appended now to copies that the target has: no leader responds for them, or for what their transactions need.

    The transactions are those of link `map_of`, which has translated offsets: they need a part of its map, and a coordinator, whose
    partition only those see who may describe it (the copier names it after its patience).  Waits `patience_ms` for leaders.
    """
    needs: dict[TopicPartition, dict[TopicPartition, str]] = {p: {} for p in partitions}
    if map_of is not None:
        coordinators = await transaction_partitions(target, [copier_id(map_of, p) for p in needs])
        for p, needed in needs.items():
            needed[map_partition(map_of, p)] = "its part of the map"
            if (coordinator := coordinators.get(copier_id(map_of, p))) is not None:
                needed[coordinator] = "which coordinates its transactions"
    asked = {p for copy, needed in needs.items() for p in (copy, *needed)}
    there = await target.partitions({p.topic for p in asked})
    present = [p for p in asked if p.partition in there.get(p.topic, ())]
    _, away = await list_led_offsets(target, dict.fromkeys(present, LATEST), patience_ms=patience_ms)
    found = {
        p: f"{n.topic}-{n.partition}, {what}: {away[n]}"
        for p, needed in needs.items()
        for n, what in needed.items()
        if n in away
    }
    return {**found, **{p: away[p] for p in partitions if p in away}}


async def refusal_facts(target: Cluster, refused: Collection[str]) -> RefusalFacts:
    """The facts that may change once refused topics become free; three requests."""
    absent = await lacking(target, {*refused, CONTROL_TOPIC})
    ends = await stable_ends(target, () if CONTROL_TOPIC in absent else [TopicPartition(CONTROL_TOPIC, 0)])
    there = {name: target.topic_id(name) for name in refused if name not in absent}
    told = await describe_configs(target, there, [TIMESTAMP_TYPE]) if tells_configs(target) else {}
    types = {name: found.get(TIMESTAMP_TYPE) for name, found in told.items() if not isinstance(found, Exception)}
    stamped = frozenset(name for name, found in types.items() if found is not None and found.value == LOG_APPEND_TIME)
    return RefusalFacts(next(iter(ends.offsets.values()), None), there, stamped, leaderless_parts(target))


async def _why_promoted(
    target: Cluster, link: str, controls: Controls, own: LinkControl, names: Collection[str], **how: Any
) -> tuple[dict[str, str], dict[str, str]]:
    """Why a link may not copy into topics that are the promoted copy of another link, or that nobody knows not to be one now."""
    copies = await promoted_copies(target, link, own, controls.links, names, **how)
    back = " To copy it back, run tolerant-kafka failback with source and target exchanged; or leave the topic out."
    leave_out = " Leave the topic out."

    def remedy(other: str) -> str:
        if other in controls.links:
            return back if controls.links[other].is_identical else leave_out
        return (
            f" Its offset map says so, but nothing which source it copied: its record in {CONTROL_TOPIC} was deleted.{leave_out[:-1]}, or,"
            f" if link {link} copies another source, delete {map_topic(other)} on the target."
        )

    def text(name: str, other: str) -> str:
        control = controls.links.get(other)
        if control is not None and control.is_half_promoted and not control.has_moved(name):
            return unmoved_text(name, other, control, target)
        return f"{promoted_text(name, other)}{remedy(other)} If none of it is needed any more, delete it on the target: it is then copied again"

    promoted = {name: text(name, other) for name, other in sorted(copies.of.items())}
    unknown = {
        name: f"Topic {name} of this target is not copied now: {why}. If its brokers are away, start one; if they are only slow,"
        " start the mirror again; or leave the topic out"
        for name, why in sorted(copies.unknown.items())
    }
    return promoted, unknown


def promoted_text(topic: str, link: str) -> str:
    """Why nothing is copied into a topic of the target that a link was promoted with."""
    return (
        f"Topic {topic} of this target is the copy of link {link}, which was promoted: it belongs to its producers, and what they"
        " have written there exists nowhere else."
    )


def unmoved_text(topic: str, link: str, control: LinkControl, target: Cluster) -> str:
    """Why nothing else is copied into a topic of the target that the promotion of a link, which has begun, has not moved there yet."""
    onto = plain_options(link, target)
    why = unfinished(control, onto, f"--source SOURCE {onto}")[0]
    return f"Topic {topic} of this target is the copy of link {link}, and not its producers' yet: {why}; or leave the topic out"


async def copied_by_others(
    target: Cluster, link: str, partitions: Collection[TopicPartition], known: KnownMaps, controls: ControlsWatch
) -> dict[TopicPartition, Errors.KafkaError]:
    """Which of these target logs our link with translated offsets may not write, since another one has begun them with identical
    offsets or was promoted with them: TargetClaimedError, or a retriable error where that is unknown now.

    Call it once the logs are claimed: a link records it before it appends, under its own claim.  Raises OrdersHiddenError.
    """
    names = {p.topic for p in partitions}
    try:
        found = await controls.read(names)
    except Errors.TopicAuthorizationFailedError as error:
        raise orders_hidden() from error
    own = found.links.get(link, LinkControl())
    promoted, unknown = await _why_promoted(target, link, found, own, names, is_identical=False, known=known)
    live = {
        p: TargetClaimedError(
            f"{p.topic}-{p.partition} of the target was copied by link {other} with identical offsets, and only that link may"
            " write it: leave the topic out of one of the two links"
        )
        for other, control in _others_that_live(found, link)
        for p in control.begun.keys() & set(partitions)
    }
    waiting = {p: Errors.OffsetNotAvailableError(unknown[p.topic]) for p in partitions if p.topic in unknown}
    return {**waiting, **{p: TargetClaimedError(promoted[p.topic]) for p in partitions if p.topic in promoted}, **live}


def _others_that_live(controls: Controls, link: str) -> list[tuple[str, LinkControl]]:
    return [(other, control) for other, control in controls.links.items() if other != link and not control.is_over]


async def write_down(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics,
    producer_id: int | None,
    starts: Mapping[TopicPartition, OffsetAndEpoch],
    source_ids: Mapping[str, str],
    map_id: str | None = None,
    forget: Callable[[LinkControl], LinkControl] = lambda now: now,
) -> str | None:
    """Records the link, and where its logs begin, in the control topic; returns a warning if the mirror may not write there.

    An unchanged record is not written again; `forget` removes what is no longer needed.  Raises LinkKindError.
    """
    cluster_id = await source.cluster_id()

    def change(control: LinkControl) -> LinkControl:
        control.require_kind(link, is_translated=producer_id is None)  # another start may have come first
        ids = control.producer_ids
        if producer_id is not None and producer_id not in ids:
            ids = (*ids, producer_id)
        return replace(
            forget(control).with_starts(starts, source_ids),
            source_cluster_id=cluster_id,
            topics=grown(control, topics).to_json(),
            producer_ids=ids,
            map_id=map_id or control.map_id or map_id,
        )

    try:
        await update_control(target, link, change)
    except LinkKindError:
        raise
    except (*MAY_NOT, OptionError) as error:
        if starts:
            raise
        text = text_of(error)
        return (
            f"link {link} cannot be recorded in {CONTROL_TOPIC} of the target ({text}): status and promote do not know what it"
            " copies, and circles are not detected; grant the mirror Create, Read and Write on that topic"
        )
    return None
