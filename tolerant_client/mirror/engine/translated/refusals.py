"""Which partitions the clusters refuse, and when each is tried again: every try leaves an aborted transaction on the target.

No clock here: time is an argument.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import PartitionRefusedError, TolerantClientError

_PAUSES = Backoff(1.0, 10.0)  # an operator who has corrected the cause does not wait for long


class Refused(NamedTuple):
    """The error that stopped a partition, and how far it was copied; `times` in a row at that offset."""

    error: PartitionRefusedError
    acked: int
    times: int
    until: float


class Refusals:
    """How the last copy of each partition of a link ended, if it was refused."""

    def __init__(self) -> None:
        self._found: dict[TopicPartition, Refused] = {}

    def standing(self, partition: TopicPartition, now: float) -> Refused | None:
        """The refusal of a partition that is not to be tried again yet."""
        known = self._found.get(partition)
        return known if known is not None and now < known.until else None

    def ended(self, partition: TopicPartition, error: TolerantClientError | None, acked: int, now: float) -> None:
        """Notes how a copy ended that was tried."""
        known = self._found.pop(partition, None)
        if isinstance(error, PartitionRefusedError):
            times = known.times + 1 if known is not None and known.acked == acked else 1
            self._found[partition] = Refused(error, acked, times, now + _PAUSES.pause_s(times))
