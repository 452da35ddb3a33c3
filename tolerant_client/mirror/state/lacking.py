"""What became of the partitions of a link that its target lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import still_missing
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import NO_MAP, MappedTopics, map_partition, mapped_topics


class Lacking(NamedTuple):
    """Partitions that a target lacks, sorted; each is in one of the three.

    The target had those that are `gone` with translated offsets, and nothing fills them again.  It had, or was to have, those that are
    `deleted` with identical offsets: a mirror makes them again.  No mirror has made those that are `unmade`.
    """

    gone: list[TopicPartition]
    deleted: list[TopicPartition]
    unmade: list[TopicPartition]


def sort_lacking(lacking: Iterable[TopicPartition], control: LinkControl, mapped: MappedTopics = NO_MAP) -> Lacking:
    """What became of these partitions, which the target lacks, by the link's control and its map.  Pure.

    A log that a link with translated offsets took over, and has copied nothing to, it begins again.
    """
    wanted = sorted(set(lacking))
    gone = [p for p in wanted if p in mapped.copies and mapped.copies[p].is_kept]
    deleted = [p for p in wanted if p not in gone and (p in control.begun or p in control.copied)]
    return Lacking(gone, deleted, [p for p in wanted if p not in gone and p not in deleted])


async def unfilled(
    target: Cluster, link: str, control: LinkControl, lacking: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Why the topics of some of these partitions, which the target has said to lack, are not made by a link with translated offsets.

    It has copied to them, and nothing fills them again; or its map, which knows that, cannot be read now.
    """
    if not (wanted := sorted(set(lacking))):
        return {}
    mapped = await mapped_topics(target, link, control, of=wanted)
    gone = sort_lacking(wanted, control, mapped).gone
    missing = await still_missing(target, {p.topic for p in gone})
    unread = {p: why for p in wanted if (why := mapped.unread.get(map_partition(link, p)))}
    return {**unread, **{p: TRANSLATED_COPY_DELETED for p in gone if p.topic in missing}}
