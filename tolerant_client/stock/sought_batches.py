"""What to look for in a cluster's log: batches that a producer has sent, and of which it is not known what became."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.errors import text_of
from tolerant_client.records.record_batch import Record, decode_records

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # between two looks


class Sought(NamedTuple):
    """What to look for in the log of a partition: batches that follow one another, if they are there.

    They are not below `from_offset`, if that is not -1.  Copies have the timestamps of their records, or, where brokers give times
    (LogAppendTime), none before `appended_since_ms` (ms since the epoch).  With `places`, each batch is at that offset or not there.
    `size` is the number of bytes of these batches as they were sent.
    """

    batches: Sequence[Sequence[Record]]
    from_offset: int
    appended_since_ms: int | None = None
    places: Sequence[int] = ()
    size: int = 0

    @classmethod
    def of(
        cls, sent: Sequence[Any], from_offset: int, appended_since_ms: int | None, places: Sequence[int] = ()
    ) -> Sought:
        """What to look for of batches that are closed."""
        buffers = [memoryview(batch.records.buffer()) for batch in sent]
        records = [tuple(decode_records(buffer)) for buffer in buffers]
        return cls(records, from_offset, appended_since_ms, places, sum(map(len, buffers)))


# Is told of each partition: the offsets of those sought batches that a cluster has, or why that is not known yet.  Without places it
# is told of no batch that follows one that the cluster lacks.
Tell = Callable[[TopicPartition, Sequence[int] | Exception], None]
# On an event loop: tells of each partition as soon as it is known.  Raises what is wrong with the cluster.
Find = Callable[[Any, Mapping[TopicPartition, Sought], Tell], Awaitable[None]]


class Doubts:
    """Says, each reason once, why it is not known what a cluster has."""

    def __init__(self) -> None:
        self._told = set[str]()

    def __call__(self, error: Exception) -> None:
        if (reason := text_of(error)) not in self._told:
            self._told.add(reason)
            log.warning("Which records the producer's cluster has is not known yet: %s", reason)
