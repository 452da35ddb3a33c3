"""Where the source's log became another one than the one that was copied, by the records themselves.

Law: what was cut, or restored and written to again, agrees up to an offset and differs from there on.  So it is found by
bisection over what was copied; what can be compared on neither side counts as differing once something behind it does, so
that nothing the source has is left out.  What lies before the source's start cannot be copied again, and is not looked at.
"""

from __future__ import annotations

import bisect
from itertools import accumulate

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, read_slices
from tolerant_client.mirror.engine.translated.target_checks import is_same_record
from tolerant_client.mirror.state.map_topic import read_maps


async def first_other(
    source: Cluster, target: Cluster, link: str, partition: TopicPartition, start: int, until: int
) -> int | None:
    """From which offset on a source that starts at `start` has other records before `until` than were copied.

    It is the one behind the last record that agrees, or that of the first one that was copied and may be there still; None
    where the last ones agree.  Raises KafkaError.
    """
    known = (await read_maps(target, link, [partition])).get(partition)
    runs = [
        run._replace(length=min(run.length, until - run.source))
        for run in (known.runs if known is not None else ())
        if run.source < until
    ]
    counts = list(accumulate((run.length for run in runs), initial=0))  # of copied records before each run

    async def compare(first: int, last: int) -> list[tuple[int, bool]]:
        """Copied records by number in [first, last), as far as one run goes, that are on both sides: whether each agrees."""
        at = bisect.bisect_right(counts, first) - 1
        run, skipped = runs[at], first - counts[at]
        count = min(last - first, run.length - skipped, COMPARED_OFFSETS)
        here, there = run.source + skipped, run.target + skipped
        span = {partition: (here, here + count)}
        original = (await read_slices(source, span, is_committed=False))[partition].records
        span = {partition: (there, there + count)}
        copied = (await read_slices(target, span, is_committed=False))[partition].records
        return [
            (first + n, is_same_record(original[here + n], copied[there + n]))
            for n in range(count)
            if here + n in original and there + n in copied
        ]

    def narrow(low: int, high: int, at: int, seen: list[tuple[int, bool]]) -> tuple[int, int]:
        """Records before `low` agree, those from `high` on do not."""
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
