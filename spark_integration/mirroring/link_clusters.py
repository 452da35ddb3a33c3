"""Both clusters of a link as its watch asks them: each question once, with little patience.

Whoever asks gets the answer or an error of AWAY within seconds; the next look asks again.  One thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from spark_integration.mirroring.duties import connected
from spark_integration.monitoring import look
from tolerant_client.mirror.ledger import read_ledger
from tolerant_client.mirror.link.control import ControlWatch, LinkControl
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.mirror.replication_policy import TopicNames

AWAY = (KafkaError, OSError, ValueError)  # ValueError: an answer that cannot be decoded, again and again
_PATIENCE_MS = 5_000  # a cluster that is away for a moment shows no progress, nothing else


class LinkClusters:
    """Clients of source and target, given as Java client properties; nothing is connected before the first question."""

    def __init__(self, source: Mapping[str, str], target: Mapping[str, str], link: str, names: TopicNames | None) -> None:
        self._source, self._target = connected(source, target, names)
        self._source.patience_ms = self._target.patience_ms = _PATIENCE_MS
        self._link = link
        self._control = ControlWatch(self._target, link)

    def close(self) -> None:
        self._target.close()
        self._source.close()

    def source_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the source's logs end as far as they are stable; without those that have no leader."""
        return self._source.run(look.stable_ends, self._source, partitions)

    def target_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the target's logs end; without those that have no leader."""
        return self._target.run(look.log_ends, self._target, partitions)

    def leaderless(self, partitions: Collection[TopicPartition]) -> dict[str, int]:
        """How many partitions of which cluster had no leader when their ends were asked for; without zeros."""
        counted = {c.name: len(look.leaderless(c, partitions)) for c in (self._source, self._target)}
        return {name: number for name, number in counted.items() if number}

    def ledger(self) -> list[LedgerRow]:
        """The link's losses, oldest first."""
        return [row for row in self._target.run(read_ledger, self._target) if row.link == self._link]

    def control(self) -> LinkControl:
        """What the operator has ordered."""
        found = self._source.run(self._control.refresh)
        if found.is_promoted or found.is_handed_back:
            self._control = ControlWatch(self._target, self._link)  # a later life of the link is not promoted
        return found

    def written_ms(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """When the records at these offsets of the source were written; absent where that is not told."""
        return self._source.run(look.written_ms, self._source, positions)

    def bytes_per_offset(
        self, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """What an offset takes on the source's disks on average; absent where that is not known."""
        return self._source.run(look.bytes_per_offset, self._source, partitions, ends)
