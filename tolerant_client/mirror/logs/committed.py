"""Counts the committed records that a log has in a range of offsets: offsets alone may be those of aborted transactions.

Laws:
- Markers, records of open and aborted transactions, and filler of a mirror do not count.
- A count costs MOST_BYTES and WITHIN_S at most, and waits for no broker longer: what was not read by then is unknown, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import ask_leaders
from tolerant_client.cluster.cluster import READ_COMMITTED, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import RecordBatchError
from tolerant_client.mirror.batches.divergence import LogSlice, Range
from tolerant_client.mirror.batches.gaps import is_filler

MOST_BYTES: Final = 64 << 20
WITHIN_S: Final = 10.0
_PARTITIONS_PER_ROUND = 200
_PARTITION_BYTES = 1 << 20
_EMPTY_ROUNDS = 4


class Committed(NamedTuple):
    """The committed records of a range whose offsets before `until` were read."""

    records: int
    until: int


async def count_committed(cluster: Cluster, ranges: Mapping[TopicPartition, Range]) -> dict[TopicPartition, Committed]:
    """The committed records of each range, as far as the leaders let it be read within the bounds."""
    found = {p: Committed(0, start) for p, (start, _) in ranges.items()}
    unread = {p: until for p, (start, until) in ranges.items() if start < until}
    size, in_vain, budget, deadline = _PARTITION_BYTES, 0, MOST_BYTES, time.monotonic() + WITHIN_S

    async def ask(node: int, members: Collection[TopicPartition]) -> dict[TopicPartition, FetchedPartition | Exception]:
        positions = {p: found[p].until for p in members}
        parts = await cluster.fetch(
            node, positions, max_wait_ms=0, partition_max_bytes=size, isolation_level=READ_COMMITTED
        )
        return {
            part.partition: Errors.for_code(part.error_code)("Fetch") if part.error_code else part for part in parts
        }

    with suppress(Errors.KafkaError):  # then the leaders are unknown, and so is what they have
        await cluster.heard(
            cluster.net.call_soon_with_future(cluster.track, {p.topic for p in unread}), WITHIN_S * 1000
        )
    while unread and budget > 0 and in_vain < _EMPTY_ROUNDS and (left_s := deadline - time.monotonic()) > 0:
        chosen = list(unread)[:_PARTITIONS_PER_ROUND]
        parts, left_out = await ask_leaders(cluster, "records", chosen, ask, {}, left_s)
        ended, has_moved = set(left_out), False
        for p, part in parts.items():
            budget -= len(part.records)
            try:
                now = _counted(found[p], part, unread[p])
            except RecordBatchError:
                ended.add(p)
                continue
            has_moved |= now.until > found[p].until
            found[p] = now
            if now.until >= min(unread[p], part.last_stable_offset):
                ended.add(p)
        unread = {p: until for p, until in unread.items() if p not in ended}
        if not (has_moved or ended):  # the first batch may be larger: brokers before 0.10.1 cut it
            in_vain, size = in_vain + 1, size * 8
    return found


def _counted(found: Committed, part: FetchedPartition, end: int) -> Committed:
    """With the whole batches of a response.  Raises RecordBatchError."""
    more = LogSlice(found.until)
    more.extend(part, end)
    return Committed(found.records + sum(not is_filler(record) for record in more.records.values()), more.until)
