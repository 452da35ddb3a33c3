"""Checks whether the log that the source returns is still the one that was copied.

Brokers before Kafka 3.1 are asked by topic name: if a topic was deleted and created again between two fetches, they return
the new topic's records at the position.  And a broker of any version that was away may come back with an older copy of its
disks, and with other records in the same leader epoch at the position.  Laws:
A. Which topic a name stands for is known at the moment when a fetch was sent that succeeded.  Records that arrive within
   UNSEEN_S of it are believed: no topic is deleted, created again and filled beyond a copier's position that fast.
B. Later records are believed if the source, after they arrived, still has a batch of the topic before, its *witness*: the
   same header with the same checksum.  A deleted topic does not come back.
C. A partition's first witness is read before both logs are compared at its start, so that the comparison proves it; later
   ones come with records that were believed.  The first records after a comparison are doubted however soon they arrive.
D. Where the source does not show the witness (another topic, or the cleaner or retention removed it) both logs are compared
   again.  Where there is no witness (formats v0 and v1, nothing left) they are compared for records that arrive later than
   UNSHOWN_S, and the first records after that comparison are believed.
E. The first records of a partition after its node was away (a lost connection, a lost fetch session) are believed only under
   Law B, even if they were fetched by topic id, and however soon they arrive; without a witness both logs are compared.  So
   the witness is the last batch that was taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S
from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.divergence import first_header, last_header
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.records.record_batch import BatchHeader

UNSEEN_S = 0.1  # the fastest that was measured is 0.15 s, on an idle machine
UNSHOWN_S = 1.0

_PARTITIONS = 200  # in a request
_BYTES = 16 << 10  # for each partition; a larger batch is fetched alone


class Witnesses:
    """The witness of each partition; on the event loop of `source`.  `of_names`: partitions that are fetched by name are doubted."""

    def __init__(self, source: Cluster, *, of_names: bool = True) -> None:
        self._source = source
        self._of_names = of_names
        self._known: dict[TopicPartition, BatchHeader] = {}
        self._suspected: set[TopicPartition] = set()

    def saw(self, part: FetchedPartition) -> None:
        """Keeps the last batch of a believed response; call it before that batch is stamped."""
        if (header := last_header(part.records)) is not None:
            self._known[part.partition] = header

    def suspect(self, partitions: Iterable[TopicPartition]) -> None:
        """Marks partitions whose node was away."""
        self._suspected.update(partitions)

    def doubt(self, partition: TopicPartition, unseen_s: float, *, is_compared: bool, is_named: bool = True) -> bool:
        """Whether records that arrived `unseen_s` after their topic was last seen need a check of the witness (`missing`).

        `is_compared`: they are the first since both logs were compared; `is_named`: they were fetched by name.
        """
        if partition in self._suspected:
            return True
        if not (is_named and self._of_names):
            return False
        if partition in self._known:
            return is_compared or unseen_s > UNSEEN_S
        return not is_compared and unseen_s > UNSHOWN_S

    async def look(self, target: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Reads missing witnesses at the end of what was copied; returns why a partition's could not be read.

        Raises KafkaError.
        """
        await self._source.connect()
        unknown = [] if self._source.fetches_by_id else [p for p in partitions if p not in self._known]
        if not unknown:
            return {}
        copied, untold = await list_led_offsets(target, dict.fromkeys(unknown, LATEST), within_s=LATE_S)
        there, more = await list_led_offsets(self._source, dict.fromkeys(copied, LATEST), within_s=LATE_S)
        self._known |= await read_headers(
            self._source, {p: end - 1 for p, at in there.items() if (end := min(copied[p], at)) > 0}
        )
        return {**untold, **more}

    async def missing(self, node_id: int, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """The partitions whose witness their leader, this node, does not show now; their witness is forgotten."""
        unseen = {p for p in partitions if p in self._known}
        missing = set(partitions) - unseen
        try:
            for chunk in (*chunks(sorted(unseen), _PARTITIONS), *([p] for p in sorted(unseen))):
                if not (asked := {p: self._known[p].base_offset for p in chunk if p in unseen}):
                    continue
                for part in await self._source.fetch(node_id, asked, max_wait_ms=0, partition_max_bytes=_BYTES):
                    header = None if part.error_code else first_header(part.records)
                    if part.error_code or header not in (None, self._known[part.partition]):
                        missing.add(part.partition)
                    if part.error_code or header is not None:
                        unseen.discard(part.partition)
        except Errors.KafkaError:
            pass  # what was not seen counts as missing
        missing |= unseen
        for partition in missing:
            self._known.pop(partition, None)
        self._suspected.difference_update(partitions)
        return missing
