"""Topics that keep the state of a link: as durable as their cluster allows, written rarely, read on from an offset.

Control, claims, ledger, offset maps and MirrorMaker 2's own topics are StateTopics; each module defines its records.
This is not in `cluster`, since such a topic is created like other topics: fitted to what the brokers accept.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, Cluster
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.cluster.partition_fetch import fetch_alone
from tolerant_client.cluster.patience import BELIEVED_AFTER
from tolerant_client.mirror.batches.divergence import tail_records
from tolerant_client.mirror.state.plan import (
    CLEANUP_POLICY,
    TIMESTAMP_AFTER,
    TIMESTAMP_BEFORE,
    TIMESTAMP_TYPE,
    TopicSpec,
)
from tolerant_client.mirror.state.topics import create_topics, fit_topics
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch
from tolerant_client.records.record_sets import iter_record_sets

COMPACTED: Final = {CLEANUP_POLICY: "compact"}

_LONG_MAX: Final = str(2**63 - 1)


@dataclass(frozen=True)
class StateTopic:
    """One topic on `cluster`, on whose event loop it is used; `what` names it in errors.

    It is created with `config`, CreateTime, and `replicas`, or as many as there are brokers; -1: the brokers' default.
    `insync_of_two` is min.insync.replicas if there are two replicas, None the brokers' default.
    """

    cluster: Cluster
    name: str
    config: Mapping[str, str]
    what: str
    partitions: int = 1
    replicas: int = 3
    insync_of_two: int | None = 1
    codec: int = codecs.NONE

    async def exists(self) -> bool:
        """Whether the topic exists; asks the cluster each time, since it may have been deleted."""
        with self._told():
            return self.name in await self.cluster.partitions([self.name])

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Names the rights that are missing, where we may not read the topic."""
        try:
            yield
        except Errors.TopicAuthorizationFailedError as error:
            where = f"topic {self.name} of the {self.cluster.name}, {self.what}"
            text = f"We may not read {where}: grant us Read and Describe on it"
            raise Errors.TopicAuthorizationFailedError(text) from error

    @property
    def id(self) -> str:
        """The id of the topic that `exists` has seen; "" before Kafka 2.8."""
        return self.cluster.topic_ids.get(self.name, "")

    @property
    def leader_epochs(self) -> list[int]:
        """Which leaders `exists` has seen: others may have another log (unclean elections, an older disk).  -1 before Kafka 2.1."""
        return self.cluster.leader_epochs.get(self.name, [])

    async def ensure(self) -> None:
        """Creates the topic if it does not exist; an existing one is not changed.  Raises OptionError."""
        if await self.exists():
            return
        await self.cluster.refresh()
        brokers = len(self.cluster.manager.cluster.brokers())
        replicas = min(self.replicas, brokers) if self.replicas > 0 else -1
        config = {TIMESTAMP_TYPE: "CreateTime", TIMESTAMP_BEFORE: _LONG_MAX, TIMESTAMP_AFTER: _LONG_MAX}
        if self.insync_of_two is not None:
            config["min.insync.replicas"] = {1: "1", 2: str(self.insync_of_two)}.get(replicas, "2")
        wanted = TopicSpec(self.name, self.partitions, replicas, {**config, **self.config})
        topics, _ = await fit_topics(self.cluster, [wanted])
        await create_topics(self.cluster, topics)

    async def put(self, key: bytes, value: bytes | None) -> int:
        """Appends one record with the present time and returns its offset; as `append`."""
        return await self.append([Record(0, int(time.time() * 1000), key, value)])

    async def append(self, records: Iterable[Record], partition: int = 0) -> int:
        """Appends records, in one attempt, and returns the first one's offset once all in-sync replicas have them.

        They may be in the log although an error is raised, or be there twice, which must not change their meaning.
        """
        return await self.send(encode_batch(list(records), codec=self.codec), partition)

    async def send(self, batch: bytes, partition: int = 0) -> int:
        """As `append`, for records that are encoded already."""
        return await self.cluster.append(TopicPartition(self.name, partition), memoryview(batch))

    async def start(self, partition: int = 0) -> int:
        """The log start offset."""
        return await self._offset(partition, EARLIEST)

    async def end(self, partition: int = 0) -> int:
        """The high watermark."""
        return await self._offset(partition, LATEST)

    async def fetch(self, position: int, partition: int = 0, *, max_wait_ms: int = 0) -> FetchedPartition:
        """The response to one Fetch; raises its error."""
        there = TopicPartition(self.name, partition)
        return await fetch_alone(self.cluster, there, position, max_wait_ms=max_wait_ms)

    async def batches(
        self, position: int, end: int, partition: int = 0
    ) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """The batches from `position` to `end`, committed or not; fewer if the brokers return no more in BELIEVED_AFTER fetches.

        Includes the batch after `end` if the cleaner removed those before it: it shows that none is missing.
        """

        async def ask() -> list[tuple[BatchHeader, memoryview]]:
            found = iter_record_sets((await self.fetch(position, partition)).records, from_offset=position)
            return [pair for pair in found if pair[0].next_offset > position]

        in_vain = 0
        while position < end and in_vain < BELIEVED_AFTER:
            with self._told():
                found = await self.cluster.insist(f"reading {self.what}", ask)
            in_vain = 0 if found else in_vain + 1
            for header, batch in found:
                if position < end:
                    yield header, batch
                position = header.next_offset

    async def records(self, position: int, end: int) -> list[Record]:
        """The records from `position` to `end` that are still there, committed or not."""

        async def read() -> list[Record]:
            first = until = max(position, await self.start())
            found: list[Record] = []
            async for header, batch in self.batches(first, end):
                if not header.is_control:
                    found += (r for r in tail_records(header, batch, first) if first <= r.offset < end)
                until = header.next_offset
            if until < end:  # a wrong response, or a log that was created again
                raise Errors.OffsetNotAvailableError(f"{self.name} could be read up to {until} of {end} only")
            return found

        return await self.cluster.insist(f"reading {self.what}", read)

    async def read_all(self) -> list[Record]:
        """All present records; none without the topic."""
        return await self.records(0, await self.end()) if await self.exists() else []

    async def _offset(self, partition: int, timestamp: int) -> int:
        there = TopicPartition(self.name, partition)
        return (await self.cluster.list_offsets({there: timestamp}))[there]
