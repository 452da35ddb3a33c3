"""What the links of a target say that they have begun, and which of its topics are its own.

Its own are those that it alone has and no link from this source has begun: there is nothing to compare them with.  A topic that no such
link matches is not known to be one, as the link that copied it may have been forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import begun_partitions
from tolerant_client.mirror.state.map_rows import NO_MAP, mapped_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics

_MAP_S = 10.0  # how long a map is read: what it does not say by then is unknown


def begun_logs(links: Iterable[LinkControl], now: Mapping[str, TopicIds]) -> set[TopicPartition]:
    """The logs that links with identical offsets have begun, of the present topics.  Pure."""
    return {
        p
        for control in links
        for p, ids in control.begun.items()
        if p.topic in now and ids.target and ids.target == now[p.topic].target
    }


async def own_topics(
    target: Cluster, links: Mapping[str, LinkControl], source_id: str | None, names: Collection[str]
) -> set[str]:
    """Those of these topics, which the target alone has, that links from this source match and are known to have begun nothing of."""
    matched, copied = set[str](), set[str]()
    for link, control in links.items():
        if not control.may_copy_from(source_id):
            continue
        writes = LinkTopics.from_json(control.topics).writes if control.topics else control.writes
        if not (theirs := set(filter(writes, names))):
            continue
        mapped = NO_MAP if control.is_identical else await mapped_topics(target, link, control, within_s=_MAP_S)
        has = begun_partitions(control, mapped)
        matched |= theirs
        copied |= theirs if has is None else theirs & {p.topic for p in has}
    return matched - copied
