"""Reads that many partitions of a link want at the same time, made once.

Law: a response is never older than its request: a partition that has fenced
the others reads what is there after that.  (Facts of topics may be some seconds old.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import present_ids
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.cluster.produce_window import ProduceTurns
from tolerant_client.mirror.engine.copied_by_mm2 import Mm2Copy, copies_of_mm2
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.preflight import copied_by_others
from tolerant_client.mirror.engine.reader import Reader
from tolerant_client.mirror.engine.translated.adopted import Adopted
from tolerant_client.mirror.engine.translated.copied_before import Origin, origins, other_copies
from tolerant_client.mirror.engine.translated.target_checks import TopicPair
from tolerant_client.mirror.state.carriers import find_written
from tolerant_client.mirror.state.control_topic import ControlsWatch, ControlWatch
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.map_rows import LastRow, read_last_rows
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.mm2_positions import KnownPositions
from tolerant_client.mirror.state.open_transactions import open_transactions
from tolerant_client.mirror.state.topics import topic_facts

_FACTS_LAST_S = 5.0
FRESH_S = 2.0  # how long a leader of the target is taken for the same: no other one leads before
_MAP_S = 10.0  # how long maps are waited for at a time; their reading goes on (known_maps.py)


_Found = TypeVar("_Found")


class _Asked(Generic[_Found]):
    """One kind of read of a cluster, made once for all partitions that wait for it."""

    def __init__(
        self,
        target: Cluster,
        link: str,
        ask: Callable[[Cluster, str, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, _Found]]],
    ) -> None:
        self._target = target
        self._link = link
        self._ask = ask
        self._wanted: dict[TopicPartition, list[Future]] = {}
        self._is_reading = False

    async def __call__(self, partition: TopicPartition) -> _Found | None:
        future = Future()
        self._wanted.setdefault(partition, []).append(future)
        if not self._is_reading:
            self._is_reading = True
            self._target.net.call_soon(self._read)
        found: _Found | None = await future
        return found

    async def _read(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = await self._ask(self._target, self._link, wanted)
            except Exception as error:  # for every caller
                for future in (future for futures in wanted.values() for future in futures):
                    future.failure(error)
            else:
                for partition, futures in wanted.items():
                    for future in futures:
                        future.success(found.get(partition))
        self._is_reading = False


class _Recent(Generic[_Found]):
    """One kind of read, which serves all who ask for the same within `lasts_s` seconds of it."""

    def __init__(
        self, target: Cluster, ask: Callable[..., Awaitable[_Found]], lasts_s: float, clock: Callable[[], float]
    ) -> None:
        self._target = target
        self._ask = ask
        self._lasts_s = lasts_s
        self._clock = clock
        self._asked: dict[Hashable, tuple[float, Future]] = {}

    async def __call__(self, what: Hashable) -> _Found:
        now = self._clock()
        known = self._asked.get(what)
        if known is None or known[0] + self._lasts_s < now or known[1].failed():
            known = self._asked[what] = now, self._target.net.call_soon_with_future(self._ask, what)
        found: _Found = await known[1]
        return found

    def forget(self, what: Hashable) -> None:
        """Has it read again by the next caller."""
        self._asked.pop(what, None)


class SharedReads:
    """Reads of a link's map and of its topics; on the event loop that both clusters share.

    `copied_by_others` gives the error for a target log that the link may not write beside another link, `other_copies` what other links
    have copied there, as their maps say, `open_producers` the ids of producers that have transactions open in it, as far as brokers tell,
    `origins` the links that have copied it from there to the source, `copies_of_mm2` what MirrorMaker 2 has copied there.
    """

    def __init__(self, source: Cluster, target: Cluster, control: ControlWatch, clock: Callable[[], float]) -> None:
        link = control.link

        async def last_rows(
            target: Cluster, link: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, LastRow]:
            return await read_last_rows(target, link, partitions, control.value)

        async def copied_back(
            source: Cluster, _: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[Origin, ...]]:
            return await origins(source, target, partitions, self.maps, _MAP_S, into_source)

        async def of_mm2(
            _: Cluster, __: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, tuple[Mm2Copy, ...]]:
            return await copies_of_mm2(source, positions, partitions)

        async def written(
            target: Cluster, _: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, bool]:
            producer_ids = {self._producer_ids[p] for p in partitions}  # each has batches in its own log alone
            return dict.fromkeys((await find_written(target, producer_ids, partitions)).own, True)

        async def opened(
            target: Cluster, _: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, set[int]]:
            found = defaultdict[TopicPartition, set[int]](set)
            for one in await open_transactions(target, partitions):
                found[one.partition].add(one.producer_id)
            return found

        into_source, into_target = ControlsWatch(source.by_own_names()), ControlsWatch(target)
        positions = KnownPositions(target)
        self.maps = KnownMaps(clock)
        self._source = source
        self._target = target
        self._facts = _Recent(target, self._read_topic, _FACTS_LAST_S, clock)
        self._map_epochs = _Recent(target, self._map_epoch, FRESH_S, clock)
        # By partition of the map: a leader that does not respond delays no rows of the others.
        self._last_rows = defaultdict[TopicPartition, _Asked[LastRow]](lambda: _Asked(target, link, last_rows))
        self._producer_ids: dict[TopicPartition, int] = {}
        self._written = _Asked(target, link, written)
        self.open_producers = _Asked(target, link, opened)
        self._link = link
        self.copied_by_others = _Asked(target, link, partial(copied_by_others, known=self.maps, controls=into_target))
        self.other_copies = _Asked(
            target, link, partial(other_copies, known=self.maps, within_s=_MAP_S, controls=into_target)
        )
        self.origins = _Asked(source, link, copied_back)
        self.copies_of_mm2 = _Asked(target, link, of_mm2)

    async def last_row(self, partition: TopicPartition) -> LastRow:
        """What the map says last of a source partition; raises what read_last_rows does."""
        return await self._last_rows[map_partition(self._link, partition)](partition) or LastRow()

    async def has_written(self, partition: TopicPartition, producer_id: int) -> bool:
        """Whether the target's log has batches of the partition's copier, as its leader remembers, or the batches show (carriers.py)."""
        self._producer_ids[partition] = producer_id
        return bool(await self._written(partition))

    async def map_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch of the part of the map with the rows of a source partition, at most FRESH_S old; -1 if it has none."""
        return await self._map_epochs(map_partition(self._link, partition))

    async def _map_epoch(self, part: TopicPartition) -> int:
        return (await self._target.list_offsets_and_epochs({part: LATEST}))[part].leader_epoch

    async def topics(self, topic: str) -> TopicPair:
        """Facts of a topic on both clusters, at most a few seconds old."""
        return await self._facts(topic)

    def forget(self, topic: str) -> None:
        """Has the topic's facts read again by the next caller."""
        self._facts.forget(topic)

    async def _read_topic(self, topic: str) -> TopicPair:
        facts = (await topic_facts(self._target, [topic])).get(topic)
        if facts is None:
            then = "if it was deleted there, start the mirror again, which creates it or says what else to do"
            raise Errors.UnknownTopicOrPartitionError(f"the target has no topic {topic}; {then}")
        ids = await present_ids(self._source, [topic])
        if topic not in ids:  # without its id it might be a different topic by now
            raise Errors.UnknownTopicOrPartitionError(f"the source has no topic {topic}")
        return TopicPair((str(ids[topic] or ""), str(facts.topic_id or "")), facts)


@dataclass(frozen=True)
class TranslatedParts:
    """What the partitions of a link share, besides what those of every link do; `turns` are those at a target node."""

    transactions: TransactionLimits
    reads: SharedReads
    adopted: Adopted
    reader: Reader[Any]  # of the partitions that take these parts
    turns: Callable[[int], ProduceTurns]
