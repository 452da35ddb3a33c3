"""What became of the partitions of a link that its target lacks; of those with translated offsets, by Law F of offset_map.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import still_missing, topic_ids
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics, mapped_topics
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import is_another


class Lacking(NamedTuple):
    """Partitions that a target lacks, sorted; each is in one of the three.

    The target had those that are `gone` with translated offsets, and nothing fills them again.  It had, or was to have, those that are
    `deleted`: a mirror makes them again.  No mirror has made those that are `unmade`.
    """

    gone: list[TopicPartition]
    deleted: list[TopicPartition]
    unmade: list[TopicPartition]


def sort_lacking(lacking: Iterable[TopicPartition], control: LinkControl, mapped: MappedTopics = NO_MAP) -> Lacking:
    """What became of these partitions, which the target lacks, by the link's control and its map (without_former).  Pure.

    A log that a link with translated offsets took over, and has copied nothing to, it begins again.
    """
    wanted = sorted(set(lacking))
    gone = [p for p in wanted if p in mapped.copies and mapped.copies[p].is_kept]
    begun = {*control.begun, *control.copied, *mapped.partitions}
    deleted = [p for p in wanted if p not in gone and p in begun]
    return Lacking(gone, deleted, [p for p in wanted if p not in gone and p not in deleted])


async def without_former(source: Cluster, target: Cluster, mapped: MappedTopics) -> MappedTopics:
    """Without the copies of which neither cluster has anything: the target lacks them, and the source has another topic now (Law F)."""
    if not mapped.copies:
        return mapped
    there = await target.partitions({p.topic for p in mapped.copies})
    absent = {p: row for p, row in mapped.copies.items() if p.partition not in there.get(p.topic, ())}
    ids = await topic_ids(source, {p.topic for p in absent}) if absent else {}
    former = {p for p, row in absent.items() if is_another(row.ids[0], str(ids.get(p.topic, "")))}
    return mapped._replace(copies={p: row for p, row in mapped.copies.items() if p not in former})


async def unfilled(
    source: Cluster, target: Cluster, link: str, control: LinkControl, lacking: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Why the topics of some of these partitions, which the target has said to lack, are not made by a link with translated offsets.

    It has copied to them, and nothing fills them again; or its map, which knows that, cannot be read now.
    """
    if not (wanted := sorted(set(lacking))):
        return {}
    mapped = await without_former(source, target, await mapped_topics(target, link, control, of=wanted))
    gone = sort_lacking(wanted, control, mapped).gone
    missing = await still_missing(target, {p.topic for p in gone})
    unread = {p: why for p in wanted if (why := mapped.unread.get(map_partition(link, p)))}
    return {**unread, **{p: TRANSLATED_COPY_DELETED for p in gone if p.topic in missing}}
