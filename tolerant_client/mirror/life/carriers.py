"""Which partitions of a target have records of a link, according to the logs themselves.

The control may name fewer topics than the link has ever copied (another --topics under the same name, a lost record of the
control topic).  So a promotion also fences the partitions whose logs have its records, and reports unreadable logs as unknown.

A broker says who has written to a partition for as long as it remembers the producer (a day by default); after that only the
last batches of the log do.  With translated offsets the copies have other producer ids, so only the topics are known.
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

_BACK = 8  # how many batches we read back from the end: the last ones may fill gaps, with other producer ids


class Carried(NamedTuple):
    """Partitions that have records of the link, and why that is unknown of others.

    Other producers wrote the last records of `foreign`; of `hidden` the log only shows that its last writers were transactional.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unknown: Mapping[TopicPartition, str] = {}
    foreign: frozenset[TopicPartition] = frozenset()
    hidden: frozenset[TopicPartition] = frozenset()


async def find_carried(target: Cluster, producer_ids: Collection[int], known: Collection[TopicPartition]) -> Carried:
    """The partitions of the target, except the `known` ones, with batches of these producer ids."""
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
            pass  # the request fails for all if we may not read one topic: read the logs one by one
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
