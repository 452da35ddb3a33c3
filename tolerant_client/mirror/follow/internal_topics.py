"""Creates MirrorMaker 2's own topics, of one compacted partition each, and writes to them.

A record may be written twice: the last record of a key counts, and a repeat is equal to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.records.record_batch import Record

_BATCH_BYTES = 500_000
_RECORD_OVERHEAD = 30


async def write_records(
    cluster: Cluster, topic: str, records: Iterable[tuple[bytes, bytes]], now_ms: int, *, replication_factor: int
) -> None:
    """Appends (key, value) records, and returns once all in-sync replicas have them; creates a missing topic.

    The topic gets at most one replica per broker.  Raises OptionError if we may not create or write it,
    ClusterUnreachableError.
    """
    there = StateTopic(cluster, topic, COMPACTED, topic, replicas=replication_factor, insync_of_two=None)
    try:
        await there.ensure()
        for batch in _batches(records, now_ms):
            await cluster.insist(f"writing {topic}", partial(there.append, batch))
    except (Errors.TopicAuthorizationFailedError, Errors.ClusterAuthorizationFailedError) as error:
        raise OptionError(
            f"Topic {topic} of the {cluster.name} cannot be written ({error}); grant Create, Describe and Write on it, or"
            " disable what writes it"
        ) from error


def _batches(records: Iterable[tuple[bytes, bytes]], now_ms: int) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for key, value in records:
        if batch and size + len(key) + len(value) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(Record(0, now_ms, key, value))
        size += len(key) + len(value) + _RECORD_OVERHEAD
    if batch:
        yield batch
