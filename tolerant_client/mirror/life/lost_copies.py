"""Which copies of a promoted link its target has no more: their topics were deleted since, or deleted and created again.

Nothing of the link fills them again, so `status`, and `promote` and `failover` run again, name them in the same words.
Laws:
- The topic's id decides, not its name: whoever writes to a deleted topic, or reads it, may create it again within a second
  (auto.create.topics.enable).  The id that was copied to is in the control; with translated offsets in the map, and in the control
  once the link was fenced, also of the copies that logs told of where the map was lost by then.  Where the map is lost, and the control
  of an earlier version does not say it, that is unknown, not nothing.
- What another link has begun in the topic that was created again is that link's, and no loss.
- What neither cluster had when the link was promoted was no part of it (gone_on_both).  A failover does not ask the source: what it
  did not find on the target is `retired` as soon as the source that was copied says that it has it no more, either: no topic of the name, or
  one of another id, of which nothing was copied.
- Heartbeats are no data, and a copy that was empty lost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import present_ids, visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.life.mirrors import BOUND_S, within_bound
from tolerant_client.mirror.state.control_topic import read_controls
from tolerant_client.mirror.state.health import names
from tolerant_client.mirror.state.link_control import GONE, LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics, mapped_topics
from tolerant_client.mirror.state.offset_map import is_another
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids

_GOES_ON = (
    "and the link was promoted with it, so nothing copies it again: if nobody deleted it on purpose, what was copied is on the source"
    " alone, as far as it is left there"
)
LOST_UNKNOWN = "whether the target still has what the link was promoted with is unknown: it could not be read in time"


class LostCopies(NamedTuple):
    """Partitions that were `deleted` on the target, and others whose topics were then `created_again` there, or may have been.

    `retired` are no loss: a failover did not find them, and the source has them no more.
    """

    deleted: tuple[TopicPartition, ...] = ()
    created_again: tuple[TopicPartition, ...] = ()
    unknown: tuple[TopicPartition, ...] = ()
    retired: tuple[TopicPartition, ...] = ()

    def texts(self) -> list[str]:
        """A sentence for each kind of loss."""
        found = []
        if self.deleted:
            found.append(f"{names(self.deleted)}: not on the target any more, {_GOES_ON}")
        if self.created_again:
            found.append(f"{names(self.created_again)}: deleted and created again on the target, {_GOES_ON}")
        if self.unknown:
            found.append(
                f"whether {names(self.unknown)} on the target {'is' if len(self.unknown) == 1 else 'are'} still what the link was promoted"
                " with is unknown: its offset map, which alone knows it, is lost"
            )
        return found


async def lost_copies(
    source: Cluster | None,
    target: Cluster,
    link: str,
    control: LinkControl,
    mapped: MappedTopics,
    lost_map: str | None,
) -> LostCopies:
    """What the target of a promoted link has lost of its copies; `mapped` is its whole map, unless it is lost.  Raises KafkaError."""
    if not control.is_promotion_begun or control.topics is None:
        return LostCopies()
    topics, was = LinkTopics.from_json(control.topics), begun_ids(control, mapped._replace(uncopied={}))
    had = sorted(p for p in _with_data(control, mapped, was) if not is_heartbeats(topics, p.topic))
    there, refused = await visible_topics(target, sorted({p.topic for p in had}))
    now = await read_ids(None, target, sorted(there))
    absent = [p for p in had if p.partition not in there.get(p.topic, ())]
    known = {p: was.get(p, TopicIds()).target for p in had}
    again = [p for p in had if p.topic in now and p not in absent and is_another(known[p], now[p.topic].target)]
    if again:
        others = await _of_others(target, link, again, now)
        again = [p for p in again if p not in others]
    is_told = control.is_identical or lost_map is None
    untold = [] if is_told else [p for p in had if p not in was and p.topic in now and p not in absent]
    absent = [p for p in absent if p.topic not in refused]
    retired = await _retired(source, control, was, (*absent, *again))
    deleted, again = ([p for p in lost if p not in retired] for lost in (absent, again))
    return LostCopies(tuple(deleted), tuple(again), tuple(untold), tuple(sorted(retired)))


def _with_data(
    control: LinkControl, mapped: MappedTopics, was: Mapping[TopicPartition, TopicIds]
) -> Collection[TopicPartition]:
    """The partitions of which the link had copied records, as far as is known.  Pure."""
    if not control.is_identical and (was or mapped.partitions):
        return was  # the map tells what it has copied
    # A copy that was deleted before the link was fenced has no end, and one that was created again then ends at 0.
    ends: dict[TopicPartition, int | None] = dict.fromkeys(was)
    for p, end in control.copied_until.items():
        ends[p] = max(end, control.copied.get(p, 0), control.adopted.get(p, 0))
    return [p for p, end in ends.items() if end is None or end > control.began_at(p)]


def begun_ids(control: LinkControl, mapped: MappedTopics) -> dict[TopicPartition, TopicIds]:
    """The ids of the topics that a link has begun, or was to continue, "" where they are unknown."""
    if control.is_identical:
        return dict(control.had)
    rows = {**mapped.uncopied, **mapped.copies}
    ids = {**control.mapped, **{p: TopicIds(*row.ids) for p, row in rows.items()}}
    return {p: of for p, of in ids.items() if control.mapped.get(p) != GONE}


async def _retired(
    source: Cluster | None,
    control: LinkControl,
    was: Mapping[TopicPartition, TopicIds],
    missing: Collection[TopicPartition],
) -> Collection[TopicPartition]:
    """Those of these that were not there when the link was fenced, and that the source which was copied has no more, either."""
    unfound = set(missing) - control.copied_until.keys()
    # Where the control had no room for the ends, nothing tells what was there.
    if source is None or not (unfound and control.is_fenced and control.copied_until):
        return ()
    if control.source_cluster_id is None or await source.cluster_id() != control.source_cluster_id:
        return ()
    return await within_bound(source, _retired_there, source, was, unfound) or ()


async def _retired_there(
    source: Cluster, was: Mapping[TopicPartition, TopicIds], partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Those of these partitions that the source does not have, or whose topics were created again there."""
    there, refused = await visible_topics(source, sorted({p.topic for p in partitions}))
    now = await present_ids(source, there)
    return {
        p
        for p in partitions
        if p.topic not in refused
        and (
            p.partition not in there.get(p.topic, ())
            or is_another(was.get(p, TopicIds()).source, str(now.get(p.topic) or ""))
        )
    }


async def gone_on_both(
    source: Cluster, target: Cluster, control: LinkControl, mapped: MappedTopics
) -> frozenset[TopicPartition]:
    """The partitions that a link has copied and neither cluster has any more."""
    gone = {*control.had, *control.copied, *control.mapped, *mapped.copies}
    for cluster in (target, source):
        there, refused = await visible_topics(cluster, sorted({p.topic for p in gone}))
        gone = {p for p in gone if p.topic not in refused and p.partition not in there.get(p.topic, ())}
    return frozenset(gone)


async def _of_others(
    target: Cluster, link: str, partitions: Collection[TopicPartition], now: Mapping[str, TopicIds]
) -> set[TopicPartition]:
    """Those of these partitions that other links have begun in the topics that are there `now`."""
    try:
        links = (await read_controls(target, frozenset(p.topic for p in partitions))).links
    except Errors.TopicAuthorizationFailedError:
        return set()
    found = set[TopicPartition]()
    for other, control in links.items():
        if other != link:
            mapped = NO_MAP
            if not control.is_identical:
                mapped = await mapped_topics(target, other, control, of=partitions, within_s=BOUND_S)
            ids = begun_ids(control, mapped)
            found |= {p for p in partitions if p in ids and ids[p].target and ids[p].target == now[p.topic].target}
    return found
