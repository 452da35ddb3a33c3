"""Searches two logs for where they differ, or from where on they agree: by bisection, with few reads."""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, differs, first_difference
from tolerant_client.mirror.logs.reading import read_slices

_PROBES_IN_THE_DARK = 64  # of a bisection: ranges without a record on both sides


async def first_difference_of_logs(
    source: Cluster,
    target: Cluster,
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    accepted: Collection[range] = (),
    *,
    is_committed: bool = False,
) -> int | None:
    """The lowest offset in [from_offset, until_offset) where the logs differ, if they differ at the end at all.

    By bisection: a foreign batch shifts everything after it, and a truncated source has other records from there on.  Where
    there is nothing to compare, as in a gap, both sides are searched.  With `is_committed` the target may be the original:
    records of its aborted transactions do not count.
    """
    in_the_dark = _PROBES_IN_THE_DARK

    async def probe(start: int) -> tuple[int | None, bool]:
        """The difference in the range from `start` on, and whether there was anything to compare."""
        spans = {partition: (start, min(start + COMPARED_OFFSETS, until_offset))}
        original = (await read_slices(source, spans, is_committed=True))[partition]
        copied = (await read_slices(target, spans, is_committed=is_committed))[partition]
        return first_difference(original, copied, accepted), bool(original.records.keys() & copied.records.keys())

    async def search(low: int, high: int) -> int | None:
        nonlocal in_the_dark
        if low >= high:
            return None
        start = (low + high) // 2
        differing, is_seen = await probe(start)
        if differing is None and not is_seen:
            in_the_dark -= 1
        if differing is not None or not is_seen and in_the_dark >= 0:
            before = await search(low, start)
            if before is not None or differing is not None:
                return differing if before is None else before
        return await search(start + COMPARED_OFFSETS, high)

    last = max(from_offset, until_offset - COMPARED_OFFSETS)
    if from_offset >= until_offset or (found := (await probe(last))[0]) is None:
        return None
    before = await search(from_offset, last)
    return found if before is None else before


async def agreement_start(
    source: Cluster, target: Cluster, partition: TopicPartition, from_offset: int, until_offset: int
) -> int:
    """The offset in [from_offset, until_offset] from which on the logs agree, although they differ before it.

    By bisection: a topic that was created again has other records up to where its copying resumed.  A range without a
    record on both sides counts as differing.
    """
    low, high = from_offset, until_offset
    while low < high:
        start = max(low, (low + high - COMPARED_OFFSETS) // 2)
        spans = {partition: (start, min(start + COMPARED_OFFSETS, high))}
        original = (await read_slices(source, spans, is_committed=True))[partition]
        copied = (await read_slices(target, spans, is_committed=False))[partition]
        differing = [offset for offset in {*original.records, *copied.records} if differs(original, copied, offset)]
        if differing:
            low = max(differing) + 1
        elif original.records.keys() & copied.records.keys():
            high = start
        else:
            low = spans[partition][1]
    return high
