"""What a link with identical offsets had copied before its control was lost, of what its source does not have any more.

A mirror that starts without a control writes a new one, and begins again what the source has.  Of what the target alone has nothing would
say by then that the link had begun it, and it would count as the target's own.
Laws:
- A log that begins or ends with a batch of the link's producer id is its copy.
- A coordinator forgets that id after seven days without use.  So where another log of the link has records before it has a control, or
  one is such a copy, the link may have run before, and whose the other logs are that the target alone has is unknown.
- A log without an offset lost nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.mirror.logs.reading import read_headers
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
    ends, unled = await list_led_offsets(target, dict.fromkeys(alone, LATEST))
    starts = (await list_led_offsets(target, dict.fromkeys(ends, EARLIEST))).offsets
    full = [p for p, start in starts.items() if start < ends[p]]
    first = await read_headers(target, {p: starts[p] for p in full})
    last = await read_headers(target, {p: ends[p] - 1 for p in full})
    ours = {p.topic for of in (first, last) for p, header in of.items() if header.producer_id == producer_id}
    ids = await read_ids(None, target, ours)
    begun = {p: TopicIds(target=ids.get(p.topic, TopicIds()).target) for p in alone if p.topic in ours}
    if not ours and not any((await list_led_offsets(target, dict.fromkeys(copied, LATEST))).offsets.values()):
        return FormerCopies()
    return FormerCopies(begun, frozenset(p for p in alone if p not in begun and (ends.get(p) or p in unled)))
