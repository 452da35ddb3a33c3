"""What a partition takes of a response to a fetch, or why it takes nothing; laws as in identical/partition.py.

Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import OversizedRecordError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.batches.divergence import first_header
from tolerant_client.mirror.engine.identical.partition import PartitionCopy


def accept(
    copy: PartitionCopy,
    part: FetchedPartition,
    until: int | None,
    source_topic: str,
    append_lease_s: float,
    now: float,
    now_ms: int,
) -> Iterator[list[Appendable]]:
    """What to append next, up to an offset, step by step, with `position` moved past it; nothing, and trouble, if in doubt.

    `source_topic` is the topic's name on the source.
    """
    if part.error_code:
        copy.refused("fetch", part.error_code, f"Read on topic {source_topic} of the source", now)
        return
    copy.last_stable_offset, copy.has_finding = part.last_stable_offset, False
    if copy.is_lease_over(now, append_lease_s):
        copy.trouble("the target's log was last read too long ago", now)
        return
    first = first_header(part.records)
    epoch = -1 if first is None else first.partition_leader_epoch
    if -1 not in (epoch, copy.leader_epoch) and epoch != copy.leader_epoch:
        # An unclean election may have truncated what was copied: both logs are compared (KIP-101).
        copy.former_epoch, copy.leader_epoch = copy.leader_epoch, -1
        copy.trouble("the source has a new leader epoch", now)
        return
    try:
        yield from copy.take(part, until, now_ms)
    except TolerantClientError as error:
        if copy.has_work:
            copy.has_finding = True  # found again once all before it is acknowledged (Law J)
        elif isinstance(error, OversizedRecordError):
            copy.too_large = error.at(str(copy))  # the consequence is decided once the target's log was read again
            copy.trouble(str(error), now)
        else:
            copy.doubt(error, now)
