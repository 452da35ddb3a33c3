"""A copier whose calls raise what stopped a partition: the first thing that a test wants to know."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine import link_copier
from tolerant_client.mirror.engine.limits import Progress


class LinkCopier(link_copier.LinkCopier):
    """The product's, with `copy`."""

    async def copy(
        self, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
    ) -> dict[TopicPartition, Progress]:
        """As copy_each, but raises the first error that stopped a partition."""
        progress = await self.copy_each(until, hold_ms=hold_ms, lease_ms=lease_ms)
        for done in progress.values():
            if done.stopped_by is not None:
                raise done.stopped_by
        return progress
