"""Finds by the records themselves where the source's log stopped being the one that was copied.

Law: a log that was cut, or restored, and written to again, agrees up to an offset and differs from there on.  So that offset is
found by bisection over what was copied.  Offsets that only one side still has count as differing if something after them
differs, so that nothing the source has is left out.  What lies before the source's start cannot be copied again, and is not read.
"""

from __future__ import annotations

import bisect
from itertools import accumulate

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS
from tolerant_client.mirror.engine.translated.target_checks import is_same_record
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.mirror.state.map_rows import read_maps


async def first_other(
    source: Cluster, target: Cluster, link: str, partition: TopicPartition, start: int, until: int
) -> int | None:
    """The offset from which on a source that starts at `start` has other records before `until` than were copied.

    It is the offset after the last record that agrees or, if none does, that of the first copied record that may still be
    there; None if the last records agree.  Raises KafkaError.
    """
    known = (await read_maps(target, link, [partition])).get(partition)
    runs = [
        run._replace(length=min(run.length, until - run.source))
        for run in (known.runs if known is not None else ())
        if run.source < until
    ]
    counts = list(accumulate((run.length for run in runs), initial=0))  # number of copied records before each run

    async def compare(first: int, last: int) -> list[tuple[int, bool]]:
        """Whether each copied record with a number in [first, last), within one run, agrees; only of those on both sides.

        The source may have a marker at the offset of one: then it does not.
        """
        at = bisect.bisect_right(counts, first) - 1
        run, skipped = runs[at], first - counts[at]
        count = min(last - first, run.length - skipped, COMPARED_OFFSETS)
        here, there = run.source + skipped, run.target + skipped
        span = {partition: (here, here + count)}
        original = (await read_slices(source, span, is_committed=False))[partition]
        span = {partition: (there, there + count)}
        copied = (await read_slices(target, span, is_committed=False))[partition].records
        return [
            (
                first + n,
                not original.is_vacant(here + n) and is_same_record(original.records[here + n], copied[there + n]),
            )
            for n in range(count)
            if (here + n in original.records or original.is_vacant(here + n)) and there + n in copied
        ]

    def narrow(low: int, high: int, at: int, seen: list[tuple[int, bool]]) -> tuple[int, int]:
        """Narrows the bounds: records before `low` agree, those from `high` on do not."""
        differing = min((n for n, agrees in seen if not agrees), default=None)
        agreeing = [n + 1 for n, agrees in seen if agrees and (differing is None or n < differing)]
        high = at if not seen else high if differing is None else differing
        return max([low, *agreeing]), high

    total = counts[-1]
    if not total:
        return None
    at = max(counts[bisect.bisect_left(counts, total) - 1], total - COMPARED_OFFSETS)
    seen = await compare(at, total)
    if all(agrees for _, agrees in seen):
        return None
    gone = sum(max(0, min(run.source_until, start) - run.source) for run in runs)
    low, high = narrow(gone, total, at, seen)
    while low < high:
        at = (low + high) // 2
        low, high = narrow(low, high, at, await compare(at, high))
    if not low:
        return runs[0].source
    at = bisect.bisect_left(counts, low) - 1  # the run of the last record that agrees
    return max(start, runs[at].source + low - counts[at])
