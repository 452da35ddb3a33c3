"""Which offset maps tell of topics that are there no more: a name does not identify a topic (KIP-516)."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import still_missing, topic_ids, visible_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.offset_map import OffsetMap, is_another


async def find_former(
    source: Cluster | None, target: Cluster, link: str, maps: Iterable[OffsetMap]
) -> dict[TopicPartition, str]:
    """Why the offsets of some of these maps, which were just read, are not those of the topics that the clusters have now.

    The target has no such topic any more, or one of them has another one with its name: no group may be moved there.  Without a source
    only the target is asked.  What a cluster does not tell (ids before Kafka 2.8, topics that we may not describe) is no reason.
    """
    known = {found.partition: found for found in maps}
    there, hidden = await visible_topics(target, sorted({found.target.topic for found in known.values()}))
    absent = {found.target.topic for found in known.values()} - there.keys() - hidden.keys()
    absent = await still_missing(target, absent)
    now = await topic_ids(target, there)
    on_source = {} if source is None else (await visible_topics(source, sorted({p.topic for p in known})))[0]
    origin = {} if source is None else await topic_ids(source, on_source)
    former = dict[TopicPartition, str]()
    for partition, found in known.items():
        of_source, of_target = found.ids
        if found.target.topic in absent:
            what = f"topic {found.target.topic} was deleted on the target"
        elif is_another(of_target, str(now.get(found.target.topic, ""))):
            what = f"topic {found.target.topic} was deleted and created again on the target"
        elif is_another(of_source, str(origin.get(partition.topic, ""))):
            what = f"topic {partition.topic} was deleted and created again on the source"
        else:
            continue
        former[partition] = f"{what} since link {link} copied it, and the offset map tells only of the former one"
    return former
