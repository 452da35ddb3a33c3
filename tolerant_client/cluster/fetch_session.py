"""Fetch sessions (KIP-227): a request tells a broker only what has changed since the one before.

Brokers that know topic ids (KIP-516, Kafka 3.1) are asked by id.  They keep a session's partitions in a hash table, by
name and number or by id and number (FetchSession.scala, CachedPartition).  The hashes of names that differ in a digit are
adjacent, so 10,000 partitions of "wide-000" to "wide-099" keep a broker busy for minutes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FINAL_EPOCH, FetchResult, RawFetch, TopicNames


class FetchSession:
    """An incremental fetch session with one broker: requests and responses hold only what changed.

    The caller moves positions with `seek` and `forget`, sends `request()`, and
    reports the outcome with `answered` or `failed`.  One request at a time.
    `version` is that of requests by name.  Topics are requested by id where `topic_id`,
    called with the caller's names, knows the ids of all.
    """

    def __init__(
        self,
        version: int,
        isolation_level: int,
        names: TopicNames | None = None,
        topic_id: Callable[[str], uuid.UUID | None] | None = None,
    ) -> None:
        self.version = version
        self.isolation_level = isolation_level
        self.names = names
        self._topic_id = topic_id
        self._ids: dict[str, uuid.UUID] = {}  # of every topic of the session; empty where it uses names
        self.positions: dict[TopicPartition, int] = {}
        self._changed: set[TopicPartition] = set()
        self._forgotten: set[TopicPartition] = set()
        self._id = 0
        self._epoch = 0

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetches `partition` from `offset` in the next request.

        It goes last: outside a session, in which the broker rotates partitions, a response holds the first ones (KIP-74).
        """
        self.positions.pop(partition, None)
        self.positions[partition] = offset
        self._changed.add(partition)
        self._forgotten.discard(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Stops fetching `partition`; ignores an unknown one."""
        if self.positions.pop(partition, None) is not None:
            self._changed.discard(partition)
            self._forgotten.add(partition)

    def request(self, *, max_wait_ms: int, max_bytes: int, partition_max_bytes: int) -> RawFetch:
        """The next request; a new session starts with all partitions (epoch 0)."""
        if self._epoch and not self._knows_topics():
            self.failed()  # a session uses names or ids, and a recreated topic has another id
        is_full = self._epoch == 0 or self.version < 7
        if is_full:
            self._ids = self._ids_of(self.positions)
        positions = self.positions if is_full else {p: self.positions[p] for p in self._changed}
        # The broker was never told of a topic without an id.
        forgotten = () if is_full else tuple(p for p in self._forgotten if not self._ids or p.topic in self._ids)
        self._changed.clear()
        self._forgotten.clear()
        return RawFetch(
            self.version,
            dict(positions),
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            isolation_level=self.isolation_level,
            session_id=self._id,
            session_epoch=self._epoch if self.version >= 7 else FINAL_EPOCH,
            forgotten=forgotten,
            names=self.names,
            topic_ids=dict(self._ids),
        )

    @property
    def goes_by_names(self) -> bool:
        """Whether the last request named topics by name: then nothing reveals a recreated topic."""
        return not self._ids

    def created_again(self) -> list[TopicPartition]:
        """Partitions of topics that have another id by now: their positions are in a log that is gone.

        They are forgotten, and a new session begins without them: the present topic must not be read from there.
        """
        if self._topic_id is None:
            return []
        anew = {topic for topic, known in self._ids.items() if self._topic_id(topic) not in (None, known)}
        if not anew:
            return []
        gone = [partition for partition in self.positions if partition.topic in anew]
        for partition in gone:
            self.forget(partition)
        for topic in anew:
            del self._ids[topic]
        self.failed()
        return gone

    def go_by_names(self) -> None:
        """Begins a new session by name: the node turned out to know no ids."""
        self._topic_id = None
        self._ids = {}
        self.failed()

    def _knows_topics(self) -> bool:
        """Whether the session can take the changes; if so, it also takes the ids of its new topics."""
        if not self._ids or not self._changed:
            return True
        changed = self._ids_of(self._changed)
        is_known = bool(changed) and all(
            self._ids.get(topic, topic_id) == topic_id for topic, topic_id in changed.items()
        )
        self._ids.update(changed if is_known else {})
        return is_known

    def _ids_of(self, partitions: Iterable[TopicPartition]) -> dict[str, uuid.UUID]:
        """The id of each topic; empty unless all are known."""
        if self._topic_id is None:
            return {}
        ids: dict[str, uuid.UUID] = {}
        for topic in {partition.topic for partition in partitions}:
            known = self._topic_id(topic) or self._ids.get(topic)
            if known is None:
                return {}
            ids[topic] = known
        return ids

    def answered(self, response: FetchResult) -> bool:
        """Takes the session's id and epoch from a response; False when the session is gone.

        A partition whose records have come must be moved with `seek`, or the
        broker sends the same records again.
        """
        if response.error_code:
            self.failed()
            return False
        if response.session_id == 0:
            self._id = self._epoch = 0  # the broker's session cache is full: full requests keep working
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == 0x7FFFFFFF else self._epoch + 1
        return True

    def failed(self) -> None:
        """Starts a new session: nobody knows which epoch the broker has seen."""
        self._id = self._epoch = 0
        self._forgotten.clear()
