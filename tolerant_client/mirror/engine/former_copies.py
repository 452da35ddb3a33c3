"""What a link with identical offsets had copied before its control was lost, of what its source does not have any more.

A mirror that starts without a control writes a new one, and begins again what the source has.  Of what the target alone has nothing would
say by then that the link had begun it, and it would count as the target's own.
Laws:
- A log with batches of the link's producer id is its copy.  One in which nothing but markers is found may be one: they fill gaps.
- A coordinator forgets that id after seven days without use.  So where another log of the link has records before it has a control, or
  one is such a copy, the link may have run before, and whose the other logs are that the target alone has is unknown.
- A log without an offset lost nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.mirror.state.carriers import find_written
from tolerant_client.mirror.state.link_control import TopicIds
from tolerant_client.mirror.state.topics import read_ids


class FormerCopies(NamedTuple):
    """Logs of the target alone that are the link's, with the ids of their topics there, and those that are `maybe_begun`."""

    begun: dict[TopicPartition, TopicIds] = {}
    maybe_begun: frozenset[TopicPartition] = frozenset()


async def former_copies(
    target: Cluster, alone: Collection[TopicPartition], copied: Collection[TopicPartition], producer_id: int
) -> FormerCopies:
    """Whose logs those are that the target has `alone`, before a link without a control begins `copied`.  Raises KafkaError."""
    if not alone:
        return FormerCopies()
    written = await find_written(target, [producer_id], alone)
    ours = {p.topic for p in written.own}
    ids = await read_ids(None, target, ours)
    begun = {p: TopicIds(target=ids.get(p.topic, TopicIds()).target) for p in alone if p.topic in ours}
    if not ours and not any((await list_led_offsets(target, dict.fromkeys(copied, LATEST))).offsets.values()):
        return FormerCopies({}, written.markers)
    ends, unled = await list_led_offsets(target, dict.fromkeys(alone, LATEST))
    return FormerCopies(begun, frozenset(p for p in alone if p not in begun and (ends.get(p) or p in unled)))
