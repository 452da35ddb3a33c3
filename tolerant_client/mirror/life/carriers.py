"""Which partitions of a target carry records of a link, found from the logs themselves.

What a link's mirror has written down may be less than what it has ever copied (another --topics under the same name, a record of
the control topic that was lost): promotion fences what the logs say, too, and what they could not be asked is told as unknown.

A broker tells who has written to a partition for as long as it remembers the producer (a day by default); after that the last
batches of the log do.  With translated offsets the copies have ids of their own, so there the topics alone are known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.admin.transactions import can_describe_producers, describe_producers
from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.errors import text_of
from tolerant_client.mirror.batches.divergence import read_headers
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS

_BACK = 8  # batches from the end of a log: the last ones may fill gaps, under other ids


class Carried(NamedTuple):
    """Partitions that carry records of the link, and why that is not known of others.

    The last records of `foreign` are of others; what wrote last in `hidden` is only shown to have been transactional.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unknown: Mapping[TopicPartition, str] = {}
    foreign: frozenset[TopicPartition] = frozenset()
    hidden: frozenset[TopicPartition] = frozenset()


async def find_carried(target: Cluster, producer_ids: Collection[int], known: Collection[TopicPartition]) -> Carried:
    """Of all partitions of the target but the `known` ones, those with batches of these producer ids."""
    if not producer_ids:
        return Carried()
    ids, skipped = frozenset(producer_ids), frozenset(known)
    wanted = {
        TopicPartition(topic, n)
        for topic, numbers in (await target.partitions()).items()
        if not topic.startswith((OWN_TOPICS, "__"))
        for n in numbers
    } - skipped
    ends = await list_led_offsets(target, dict.fromkeys(wanted, LATEST))
    starts = await list_led_offsets(target, dict.fromkeys(ends.offsets, EARLIEST))
    unknown = {**ends.left_out, **starts.left_out}
    found: set[TopicPartition] = set()
    if can_describe_producers(target):
        try:
            entries = await describe_producers(target, starts.offsets)
            found = {p for p, writers in entries.items() if any(one.producer_id in ids for one in writers)}
        except Errors.AuthorizationError:
            pass  # one topic that we may not read hides the others: the logs are read one by one
    left = {p: ends.offsets[p] - 1 for p, start in starts.offsets.items() if p not in found and ends.offsets[p] > start}
    written, foreign = frozenset(left), set[TopicPartition]()
    for _ in range(_BACK):
        if not left:
            break
        try:
            headers = await read_headers(target, left)
        except Errors.KafkaError as error:
            unknown.update(dict.fromkeys(left, f"its last batches cannot be read: {text_of(error)}"))
            break
        found |= {p for p, header in headers.items() if header.producer_id in ids}
        foreign |= {p for p, h in headers.items() if p not in found and not (h.is_control or h.is_transactional)}
        unknown.update({p: "its last batch could not be read" for p in left.keys() - headers.keys()})
        left = {
            p: header.base_offset - 1
            for p, header in headers.items()
            if p not in found
            and (header.is_control or header.is_transactional)
            and header.base_offset > starts.offsets[p]
        }
    return Carried(
        frozenset(found),
        {p: why for p, why in sorted(unknown.items()) if p not in found},
        frozenset(foreign),
        written - found - foreign - unknown.keys(),
    )
