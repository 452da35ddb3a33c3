"""Samples whole logs at a start, if the source's brokers have no topic ids (before Kafka 2.8).

A log whose end equals the source's may begin with records of a former topic of that name: one that was created again while a
mirror, of another version or for a moment, did not see it.  Such records lie at the log's start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S
from tolerant_client.cluster.admin.offsets import Untold, list_led_offsets
from tolerant_client.cluster.cluster import EARLIEST, Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.divergence import COMPARED_OFFSETS, first_difference, is_copy
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.troubles import fill_again
from tolerant_client.mirror.logs.reading import read_headers, read_slices

_PROBES = 3  # of each log: at its start, and at its thirds

Rows = Mapping[TopicPartition, Collection[LedgerRow]]


async def probe_logs(
    source: Cluster,
    target: Cluster,
    ends: Mapping[TopicPartition, int],
    adopted: Mapping[TopicPartition, int],
    read_rows: Callable[[], Awaitable[Rows]],
) -> dict[TopicPartition, TargetDivergedError | Untold]:
    """Partitions whose target has, before `ends`, other records than the source, and what that means; or why this is unknown.

    Skips what was adopted, and the offsets of the ledger's rows, which are read if logs differ.  Raises KafkaError.
    """
    if not ends:
        return {}
    starts, untold = await list_led_offsets(source, dict.fromkeys(ends, EARLIEST), within_s=LATE_S)
    copied, more = await list_led_offsets(target, dict.fromkeys(starts, EARLIEST), within_s=LATE_S)
    spans = {p: (max(starts[p], at, adopted.get(p, 0)), ends[p]) for p, at in copied.items()}
    found: dict[TopicPartition, TargetDivergedError | Untold] = {
        p: Untold(why) for p, why in {**untold, **more}.items()
    }
    for n in range(_PROBES):
        at = {
            p: start + (end - start) * n // _PROBES
            for p, (start, end) in spans.items()
            if start < end and p not in found
        }
        ours, theirs = await read_headers(target, at), await read_headers(source, at)
        unproved = {
            p: (offset, min(offset + COMPARED_OFFSETS, ends[p]))
            for p, offset in at.items()
            if p not in ours or p not in theirs or not is_copy(ours[p], theirs[p])
        }
        originals = await read_slices(source, unproved, is_committed=True)
        copies = await read_slices(target, unproved, is_committed=False)
        differing = {p for p in unproved if first_difference(originals[p], copies[p]) is not None}
        rows = await read_rows() if differing else {}
        for p in differing:
            accepted = [range(row.from_offset, row.until_offset) for row in rows.get(p, ())]
            if (offset := first_difference(originals[p], copies[p], accepted)) is not None:
                found[p] = _diverged(p, offset)
    return found


def _diverged(partition: TopicPartition, offset: int) -> TargetDivergedError:
    return TargetDivergedError(
        f"The target log of {partition.topic}-{partition.partition} has at offset {offset} another record than the source,"
        " though both end alike: the source's topic was deleted and created again while it was copied, or somebody else wrote"
        " there first"
    ).advising(f"if nobody needs what others wrote there, {fill_again()}")
