"""Is the log that the source answers from still the one that was copied?

Brokers before Kafka 3.1 are asked by names: of a topic that was deleted and made anew between two fetches they answer what
the new one has at the position.  And a broker of any version that was gone may come back with an older copy of its disks, and
with other records in the same leader epoch at the position.  Laws:
A. What a name stood for is known for the moment when a fetch was sent that was answered without an error.  Records that come
   within UNSEEN_S of it are believed: so fast no topic is deleted, made anew and filled beyond a copier's position.
B. Later ones are believed when the source, after they came, still has a batch that it had of the topic before, its *witness*:
   the same header with the same checksum.  Topics do not come back.
C. A partition's first witness is read before both logs are compared at its start, so that this proves it; later ones come
   with records that were believed.  What comes first after a comparison is doubted in any case.
D. Where the source does not show the witness (another topic, or the cleaner or retention took it) both logs are compared
   anew.  Where none can be had (formats v0 and v1, nothing left) that happens for records that come later than UNSHOWN_S,
   and what comes first after the comparison is believed.
E. What comes first of a partition after its node was away (a lost connection, a fetch session that is gone) is believed
   under Law B, whatever tells its topic, however soon it comes; without a witness both logs are compared.  So a witness is
   the last batch that was taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.leaders import LATE_S
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.mirror.batches.divergence import first_header, last_header, read_headers
from tolerant_client.records.record_batch import BatchHeader

UNSEEN_S = 0.1  # 0.15 s were measured, on an idle machine
UNSHOWN_S = 1.0

_PARTITIONS = 200  # of a request
_BYTES = 16 << 10  # of each; a batch that is larger is read alone


class Witnesses:
    """The witness of each partition; on the event loop of `source`.  `of_names`: partitions that are fetched by name are doubted."""

    def __init__(self, source: Cluster, *, of_names: bool = True) -> None:
        self._source = source
        self._of_names = of_names
        self._known: dict[TopicPartition, BatchHeader] = {}
        self._suspected: set[TopicPartition] = set()

    def saw(self, part: FetchedPartition) -> None:
        """Takes the last batch of an answer that was believed; before the batch is stamped."""
        if (header := last_header(part.records)) is not None:
            self._known[part.partition] = header

    def suspect(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes it that the node of these was away."""
        self._suspected.update(partitions)

    def doubt(self, partition: TopicPartition, unseen_s: float, *, is_compared: bool, is_named: bool = True) -> bool:
        """Whether records are to be looked at again (`missing`) that came `unseen_s` after their topic was seen last.

        `is_compared`: they are the first ones since both logs were compared; `is_named`: they were asked for by name.
        """
        if partition in self._suspected:
            return True
        if not (is_named and self._of_names):
            return False
        if partition in self._known:
            return is_compared or unseen_s > UNSEEN_S
        return not is_compared and unseen_s > UNSHOWN_S

    async def look(self, target: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Reads the witnesses of partitions that have none, at the end of what was copied; why it is not known of some.

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
        """Those whose witness the node, their leader, does not show now; they have none any more."""
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
            pass  # what was not seen is not there
        missing |= unseen
        for partition in missing:
            self._known.pop(partition, None)
        self._suspected.difference_update(partitions)
        return missing
