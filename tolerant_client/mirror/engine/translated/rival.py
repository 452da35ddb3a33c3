"""How a copier that was fenced watches the one that has taken over its partition (law D of translated/partition.py).

It takes over again if records wait and the position does not move.
"""

from __future__ import annotations

import random
from typing import Protocol

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED
from tolerant_client.cluster.event_loop import WakeupNotifier
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.translated.shared_reads import SharedReads


class FencedCopy(Protocol):
    """The copy of a partition that another copier has taken over."""

    partition: TopicPartition
    acked: int
    hold_until: float
    is_released: bool
    wakeup: WakeupNotifier

    @property
    def has_reached(self) -> bool: ...

    @property
    def is_over(self) -> bool: ...

    def advance(self, position: int) -> None:
        """Takes over a position that the other one has recorded."""


async def watch_rival(copy: FencedCopy, link: CopiedLink, reads: SharedReads, takeover_ms: int) -> None:
    """Returns once records wait and the position has not moved for `takeover_ms`, or the copy is over.  Raises KafkaError."""
    if copy.has_reached and link.clock() > copy.hold_until:
        copy.is_released = True  # only its lease was left
    still_since = link.clock()
    patience_s = takeover_ms / 1000 * random.uniform(0.7, 1.3)
    while not copy.is_over:
        await copy.wakeup(patience_s / 4)
        row, _ = await reads.last_row(copy.partition)
        end = await link.source.list_offsets({copy.partition: LATEST}, isolation_level=READ_COMMITTED)
        if row is not None and row.position > copy.acked:
            copy.advance(row.position)
            still_since = link.clock()
        elif copy.acked >= end[copy.partition]:
            still_since = link.clock()
        if link.clock() - still_since > patience_s:
            return
