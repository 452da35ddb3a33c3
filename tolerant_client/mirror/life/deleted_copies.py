"""Copied records that the target has deleted already and the source still has: a promotion warns of them.

Two logs with the same limits rarely begin at the same offset, since brokers delete whole segments.  So what the start of a log lacks
counts only if the target's topic keeps less than the source's, and a log counts in any case if nothing of it is left.
Offsets are half-open, those of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.promotion_view import PromotedLink
from tolerant_client.mirror.state.health import few, names
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.plan import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS, TopicSpec, kept_less
from tolerant_client.mirror.state.topics import describe_each_topic

_LIMITS = f"{RETENTION_MS}, {RETENTION_BYTES} and {CLEANUP_POLICY}"


class Deleted(NamedTuple):
    """Copied offsets that the target no longer has; `is_whole`: nothing of the copy is left."""

    since: int
    until: int
    is_whole: bool


async def deleted_warnings(
    of: PromotedLink, control: LinkControl, ends: Iterable[PartitionLag], source: Cluster | None
) -> list[str]:
    """Warnings of what the target has deleted; without a source, of logs of which nothing is left."""
    data = [e for e in ends if e.position and not is_heartbeats(of.topics, e.partition.topic)]
    data = [e for e in data if source is None or e.source_start is not None]  # others are not on the source any more
    starts = (await list_led_offsets(of.target, dict.fromkeys((e.partition for e in data), EARLIEST))).offsets
    logs_end = (await list_led_offsets(of.target, dict.fromkeys(starts, LATEST))).offsets
    bounds = {p: (starts[p], end) for p, end in logs_end.items()}
    found = deleted_of(data, bounds, control, is_translated=of.is_translated)
    topics = sorted({p.topic for p in found})
    if source is None or not topics:
        whole = {p: span for p, span in found.items() if span.is_whole}
        if not whole:
            return []
        first, span = min(whole.items())
        return [
            f"the target no longer has any record of {names(whole)}, such as offsets {span.since:,} to {span.until:,} of"
            f" {first.topic}-{first.partition}; whether the source still has them is unknown"
        ]
    wanted, present = [(await describe_each_topic(cluster, topics)).topics for cluster in (source, of.target)]
    limits = {name: _limits(wanted[name], present[name]) for name in topics if name in wanted and name in present}
    told = {p: span for p, span in found.items() if span.is_whole or limits.get(p.topic) != ""}
    return _texts(told, "which the source has", limits)


def deleted_of(
    ends: Iterable[PartitionLag],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    control: LinkControl,
    *,
    is_translated: bool,
) -> dict[TopicPartition, Deleted]:
    """What was copied and is no longer in the target's logs, which begin and end at these `bounds`.  Pure.

    The target has a translated copy at other offsets: only that all of it is gone can be seen.
    """
    found = {}
    for e in ends:
        p, position = e.partition, e.position or 0
        start, end = bounds.get(p, (0, 0))
        since = max(e.source_start or 0, control.log_starts.get(p, 0), control.starts.get(p, 0))
        until = (position if 0 < end <= start else since) if is_translated else min(start, position)
        if since < until:
            found[p] = Deleted(since, until, until == position)
    return found


def _limits(wanted: TopicSpec, present: TopicSpec) -> str:
    """By which settings the target keeps less than the source, as text; "" if by none.  Pure."""
    return ", ".join(
        f"{limit}={present.value(limit, 'unknown')} (the source's: {wanted.value(limit, 'unknown')})"
        for limit in kept_less(wanted, present)
    )


def _texts(found: Mapping[TopicPartition, Deleted], on_source: str, limits: Mapping[str, str]) -> list[str]:
    """A sentence for each topic.  Pure."""
    topics: dict[str, list[TopicPartition]] = {}
    for p in sorted(found):
        topics.setdefault(p.topic, []).append(p)
    return few(
        f"the target no longer has offsets {found[of[0]].since:,} to {found[of[0]].until:,} of {names(of)}, {on_source}; before it"
        f" deletes more, check {limits.get(topic) or _LIMITS} of topic {topic} on the target"
        for topic, of in topics.items()
    )
