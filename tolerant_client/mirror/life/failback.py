"""Failback: a link back onto the cluster that was once the source copies only the records which that cluster lacks.

Both logs of a partition are the same up to a point.  If the old source's log ends there, the link back adopts it: it copies from
that offset on, with its own producer id, as if it had copied everything before.  If the old source has more (records that it took
and that nobody copied before it failed), its log cannot hold the new source's records at their offsets, and no broker truncates a
log: the operator keeps it, or gives those records up and has the topic created again.

The roles here are those of the link back: `source` has the newer data, `target` is the old source.
Laws:
- What is adopted is proved: records that both logs still have are equal, or the source still has the batch before the target's
  end and the forward link wrote it there.  If retention has deleted what could prove it, the end of a log proves nothing, and
  nothing is adopted: an end that is wrong by one record loses a record, and nobody would ever notice.
- What another link copies into the target, or may copy, is refused as its mirror's start would be (preflight.look_for_others),
  before anything is compared: it is named, and neither deleted nor adopted, and the link is not called ready.
- A topic is deleted only if a forward link copied it from this very target, or if it is this link's own former copy with no
  record of others at its end: an equal name is no proof.  If a failover without a control fenced the forward link, nobody knows
  its source: then only topics whose two logs share records are its copies.
- Whether a forward link copied a topic is decided as for its promotion (owners.py), by its control and by the source's logs.  If
  the target has records of a topic that no forward link copied, it is another one: it is named, and neither deleted nor adopted.
  Logs that are proved equal are adopted whoever copied them, since nothing is deleted by that.
- Heartbeats are no data: the link's own former copy of them, which ends with the fence of its promotion, is copied again, and
  blocks nothing.  Nor does another link's copy of them, which is left alone.
- A partition without a leader on either cluster blocks it, and is named; the logs of other topics are compared and shown.
- What the target is the primary of is home: it was moved from the source to the target, and not back since (moves.py).
  It is named, and neither compared, deleted nor chosen.
  What the promotion of another link has not moved to the target yet is named, too, and left alone: a process of it may still write there.
- A link of that name from another source keeps its control, also once it was promoted: nothing else says what it was promoted with.
  So does one that was promoted with a topic of which nothing is brought back now, unless that promotion was undone.
- Topics that nobody gives are those of the forward link by the names that they have on both clusters, without the aliases of its
  file, which are of the other direction: the link back may be started with that file, or without one.  If all of them are home, they
  are named like those that are given.
- The only write is one record of the control.  If killed before it, failback has done nothing but delete topics, which are copied
  again; another run finds the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.admin.transactions import known_producer_id
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.circles import only_topics, refuse_circle, refuse_one_cluster, topics_option
from tolerant_client.mirror.engine.preflight import look_for_others
from tolerant_client.mirror.life.failback_blockers import has_led_here, home_texts, unmoved_texts
from tolerant_client.mirror.life.failback_decision import (
    Compared,
    Decision,
    begin_again,
    decide,
    is_live,
    name_beside,
    topics_to_bring_back,
)
from tolerant_client.mirror.life.failback_links import Links, left_to_undo, read_links
from tolerant_client.mirror.life.mirrors import require_not_forgotten
from tolerant_client.mirror.life.promotion_steps import LEADERS_MS
from tolerant_client.mirror.life.shared_log import (
    SharedLog,
    compare_logs,
    shared_partitions,
    unshared_logs,
    with_losses,
)
from tolerant_client.mirror.life.taken_topics import taken_topics
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.control_topic import HIDDEN, half_done, update_control
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds, link_options, plain_options
from tolerant_client.mirror.state.link_topics import is_heartbeats, see_topics, some
from tolerant_client.mirror.state.map_topic import map_topic, require_kind
from tolerant_client.mirror.state.moves import copied_topics, known_moves, undone, unsaid_moves
from tolerant_client.mirror.state.plan import select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids


@dataclass(frozen=True)
class FailbackReport:
    """What failback found and did: `is_done` once the link can be started, without a file with `topics` as its option --topics.

    A dry run lists in `deleted_topics` those that it would delete.  `warnings` are of what stops the mirror.  `flow`: A->B, which is the
    link in a file, if a file has started one that it undoes.
    """

    link: str
    is_dry_run: bool
    is_done: bool
    partitions: tuple[SharedLog, ...]
    deleted_topics: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    topics: str = ""
    flow: str = ""

    @property
    def exit_code(self) -> int:
        return 3 if self.blockers else 0

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(p), "is_diverged": p.is_diverged, "to_copy": p.to_copy} for p in self.partitions]
        return {**asdict(self), "partitions": rows, "exit_code": self.exit_code}


async def failback(
    source: Cluster,
    target: Cluster,
    link: str,
    topics: LinkTopics | str | None = None,
    *,
    discards: bool = False,
    is_dry_run: bool = False,
) -> FailbackReport:
    """Prepares a link back: compares the logs, and writes to the control up to where the target's are adopted.

    With `discards` it deletes diverged topics of the target, to be copied again.  Afterwards the mirror is started like any
    other.  If something blocks it, nothing is written.  Raises OptionError if the link back is live, if it would copy in a
    circle (the forward link was not promoted), and for translated offsets; KafkaError.  Without `topics` they are those of the forward
    link.
    """
    await source.connect()
    await refuse_one_cluster(source, target)
    links = await read_links(source, target, link)
    chosen = await _chosen(source, target, links, topics)
    await target.require_record_batches()
    view = await see_topics(source, target, chosen)
    view.require_seen(link)
    names = sorted(view.on_source) or select_topics(chosen, await source.partitions())
    if topics is None and not chosen.option:
        # As the mirror is told to start: else a new topic would be the link's, too, and nobody would copy it.
        chosen = only_topics(names)
    await _require_may_begin(source, target, links, chosen, names)
    ids = await read_ids(source, target, names)  # first: whatever is made anew meanwhile is not what was compared
    compared = await _compare(source, target, links, names, chosen)
    found = decide(compared, discards=discards)
    partitions = [TopicPartition(name, n) for name in names for n in view.on_source.get(name, ())]
    report = FailbackReport(
        link,
        is_dry_run,
        False,
        compared.logs,
        () if found.blockers else found.deleted,
        found.blockers,
        found.warnings + _pauses(target, link, links.former, partitions),
        topics_option(chosen, names),
        links.flow(names),
    )
    if found.blockers or is_dry_run:
        return report
    with half_done("failing back"):
        await _begin(target, links, chosen, found, ids, known_moves(links.into_source, names, source.wire_topic))
    return replace(report, is_done=True)


async def _chosen(source: Cluster, target: Cluster, links: Links, topics: LinkTopics | str | None) -> LinkTopics:
    """The topics that are given, or else those to bring back; raises OptionError for those that it cannot be told of, or renamed."""
    if topics is None:
        await _refuse_circle(source, target, (), links)
        left = await left_to_undo(source, target, links)
        chosen = topics_to_bring_back(source, target, links.link, left, links.into_target, links.home)
    else:
        chosen = LinkTopics.of(topics)
    if chosen.to_target("orders") != "orders":
        raise OptionError(
            f"Link {links.link} renames topics (orders to {chosen.to_target('orders')}): it would copy back to other topics."
            " Failing back needs the same names on both clusters (IdentityReplicationPolicy)"
        )
    return chosen


async def _begin(
    target: Cluster,
    links: Links,
    topics: LinkTopics,
    found: Decision,
    ids: Mapping[str, TopicIds],
    moves: Mapping[str, int],
) -> None:
    """Deletes what is given up, and writes that the link begins after what is adopted.

    Also `moves`, those that it knows of: if it is promoted before its mirror has started, its clients come home, and what they write
    is not given up.
    """
    if found.deleted:
        await delete_topics(target, found.deleted)
    generation = await _unused_generation(target, links.link, links.former)

    def change(now: LinkControl) -> LinkControl:
        control = begin_again(now, links.source_cluster_id, topics, found.adopted, generation, ids)
        return control.knowing(moves)

    await update_control(target, links.link, change)


async def _refuse_circle(source: Cluster, target: Cluster, topics: Collection[str], links: Links) -> None:
    """Raises OptionError unless the forward links of these topics are known to be promoted."""
    for unseen in await refuse_circle(source, target, topics, links.link, links.read_into_source):
        raise OptionError(unseen)


async def _unused_generation(target: Cluster, link: str, former: LinkControl) -> int:
    """The first generation from the control's on whose producer no coordinator knows.

    A control that was deleted has forgotten how many there were, and the fence of each is in the logs for good (fence.py).
    """
    generation = former.generation
    while await known_producer_id(target, replace(former, generation=generation).producer_name(link)) is not None:
        generation += 1
    return generation


def _pauses(target: Cluster, link: str, control: LinkControl, partitions: Iterable[TopicPartition]) -> tuple[str, ...]:
    """A warning of what an operator has paused of the link in its life before, which holds on."""
    if not (paused := [p for p in partitions if control.pauses(p)]):
        return ()
    resume = control.resume_command(paused, link_options(link, target))
    return (
        f"an operator has paused {some(control.paused_words)} of link {link}, before it was promoted; to resume: {resume}",
    )


async def _require_may_begin(
    source: Cluster, target: Cluster, links: Links, topics: LinkTopics, names: Sequence[str]
) -> None:
    """Raises OptionError if the link back may not begin with these `names` of the topics."""
    link, former = links.link, links.former
    wire = [source.wire_topic(name) for name in names]
    await _refuse_circle(source, target, wire, links)
    await _refuse_translated(source, names, links.forward)
    await require_not_forgotten(target, link, former)
    if is_live(former):
        raise OptionError(
            f"Link {link} copies into this target already and was not promoted: its mirror needs no failback to resume,"
            " and none for topics that are added to it; give another --link only for topics that no link copies there"
        )
    await require_kind(target, link, former, is_translated=False)
    if former.is_hidden:  # before anything is deleted
        raise OptionError(f"Whether another link copies the same topics is unknown: {HIDDEN}")
    _require_all_said(source, target, links, topics, names)


def _require_all_said(source: Cluster, target: Cluster, links: Links, topics: LinkTopics, names: Sequence[str]) -> None:
    """Raises OptionError if the link, prepared for these `names` of the topics, would no longer say what it was promoted with."""
    link, former = links.link, links.former
    lost = unsaid_moves(links.into_target.get(link, former), names, links.into_source)
    if lost and not links.home.keys() >= set(names):  # else nothing is prepared
        data = [name for name in names if not is_heartbeats(topics, name)]
        command = _command(source, target, name_beside(link, names, links.into_target, links.into_source), data, topics)
        past = undone(former, links.into_source)
        gone = any(former.has_moved(name) and name not in past for name in names)
        raise OptionError(
            f"Link {link} was promoted with {some(lost)} on this target, and its control alone tells clients and operators so:"
            f" prepared for other topics, it would not any more. {has_led_here(link) + '. ' if gone else ''}Give another --link, also instead"
            f" of a file (clients come home by a link of any name): {command}"
        )


def _command(
    source: Cluster, target: Cluster, link: str, names: Collection[str], topics: LinkTopics | None = None
) -> str:
    """What to type to bring these names, of topics that may be given, back by a link without a file."""
    option = topics_option(only_topics(names) if topics is None else topics, names)
    return f"tolerant-kafka failback {plain_options(link, target, source)} --topics {shlex.quote(option)}"


async def _compare(
    source: Cluster, target: Cluster, links: Links, names: Sequence[str], topics: LinkTopics
) -> Compared:
    """Reads both clusters' logs of the topics, except those that are home, and those of which a partition cannot be read."""
    link, former, forward, home = links.link, links.former, links.forward, links.home
    unled = {**await _unled(source, names), **await _unled(target, names)}
    names = sorted(set(names) - {p.topic for p in unled})
    shared = await shared_partitions(source, target, names)
    own_after = begin_again(former, links.source_cluster_id, topics, dict.fromkeys(shared, 0))  # as the mirror finds it
    others_have = (await look_for_others(target, link, names, is_identical=True, own=own_after)).refused
    are_home = {name: home[name] for name in names if name in home}
    command = partial(_command, source, target)
    refused = {
        **others_have,
        **home_texts(are_home, link, names, links.into_target, links.into_source, command, links.source_cluster_id),
        **unmoved_texts(link, names, links.into_target, target),
    }
    shared = [p for p in shared if p.topic not in refused]
    copied_by = {
        number for control in forward.values() if not control.is_of_unknown_source for number in control.producer_ids
    }
    own = await _own_copies(target, former, shared)
    data = [name for name in names if name not in refused and not is_heartbeats(topics, name)]
    logs = [await compare_logs(source, target, p, copied_by) for p in shared if not is_heartbeats(topics, p.topic)]
    taken, others, unknown = await taken_topics(source, target, logs, forward)
    others = {name: why for name, why in others.items() if name not in own}
    unknown = {name: why for name, why in unknown.items() if name not in own}
    logs += await unshared_logs(source, target, data)
    return Compared(
        tuple([await with_losses(target, p) for p in logs if p.topic not in others and p.topic not in unknown]),
        frozenset(own),
        frozenset(name for name in own if is_heartbeats(topics, name)),
        frozenset(taken),
        {name: why for name, why in refused.items() if not is_heartbeats(topics, name)},
        others,
        unknown,
        unled,
        {name: of for of, c in links.into_target.items() if of != link and c.is_promoted for name in copied_topics(c)},
    )


async def _unled(cluster: Cluster, names: Collection[str]) -> dict[TopicPartition, str]:
    """The partitions of these topics that have no leader that responds, and why."""
    there = await cluster.partitions(names)
    asked = {TopicPartition(name, number): LATEST for name, numbers in there.items() for number in numbers}
    return (await list_led_offsets(cluster, asked, patience_ms=LEADERS_MS)).left_out


async def _own_copies(target: Cluster, former: LinkControl, partitions: Iterable[TopicPartition]) -> set[str]:
    """Topics of which this link, before it was promoted, has written every log on the target.

    The control says so, or the producer ids of the last batches: the marker of its fence has the link's.
    """
    wanted = list(partitions)
    ids = await read_ids(None, target, {p.topic for p in wanted})
    unsaid = [p for p in wanted if not former.has_begun(p, ids)]
    ends = await target.list_offsets(dict.fromkeys(unsaid, LATEST))
    last = await read_headers(target, {p: end - 1 for p, end in ends.items() if end})
    others = {p.topic for p in unsaid if p not in last or last[p].producer_id not in former.producer_ids}
    return {p.topic for p in wanted} - others


async def _refuse_translated(source: Cluster, names: Iterable[str], forward: Mapping[str, LinkControl]) -> None:
    """Raises OptionError for topics that were copied with translated offsets: their records have other offsets there.

    What a live link copies would be a circle, which is refused before.
    """
    wanted = list(names)
    for other, control in forward.items():
        both = sorted(name for name in wanted if control.is_over and control.writes(source.wire_topic(name)))
        offset_map = source.topic_of(map_topic(other))
        if both and not control.producer_ids and offset_map in await source.partitions([offset_map]):
            raise OptionError(
                f"Link {other} copied topic {both[0]} with translated offsets: its records are at other offsets on the two"
                " clusters, and failback compares logs with the same offsets; leave such topics out"
            )
