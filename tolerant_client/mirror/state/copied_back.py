"""Which topics of a source a link has copied back to it: then its logs are no longer what another link copied from it."""

from __future__ import annotations

from collections.abc import Collection

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_controls
from tolerant_client.mirror.state.link_control import Positions
from tolerant_client.mirror.state.map_topic import was_never_started


async def copied_back(source: Cluster, target: Cluster, topics: Collection[str], ours: Positions) -> dict[str, str]:
    """Which of these topics, by their names on the target, a link has copied back to the source, or may have; and why.

    Not a link back with the same offsets that was promoted before our own copies, which end at `ours`: all that it wrote is
    before them (A-B-A-B).
    """
    try:
        links = (await read_controls(source, frozenset(map(source.wire_topic, topics)))).links
    except Errors.TopicAuthorizationFailedError:
        return dict.fromkeys(topics, f"we may not read {CONTROL_TOPIC} of the source, so a link may have copied back")
    here = await target.cluster_id()
    found: dict[str, str] = {}
    for name, control in links.items():
        if here is None or not control.may_copy_from(here) or not control.topics:
            continue
        if await was_never_started(source, name, control):
            continue
        for topic in topics:
            wire = source.wire_topic(topic)
            ends = {p.partition: end for p, end in control.copied_until.items() if p.topic == wire}
            is_over = (
                control.is_fenced
                and control.is_identical
                and all(end <= ours.get(TopicPartition(topic, n), end) for n, end in ends.items())
            )
            if control.writes(wire) and not (ends and is_over):
                found[topic] = f"link {name} has copied back to it"
    return found
