"""Fetch sessions (KIP-227): a request tells a broker only what has changed since the one before.

Brokers that know topic ids (KIP-516, Kafka 3.1) are asked by them.  They keep the partitions of a session in a hash
table, by name and number or by id and number (FetchSession.scala, CachedPartition): the hashes of names that differ in
a digit lie side by side, and 10,000 partitions of "wide-000" to "wide-099" keep a broker busy for minutes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from kafka.structs import TopicPartition

from tolerant_client.cluster.fetch import FINAL_EPOCH, FetchAnswer, RawFetch, TopicNames


class FetchSession:
    """An incremental fetch session with one broker: only what changed is sent and answered.

    The caller moves positions with `seek` and `forget`, sends `request()`, and
    reports the outcome with `answered` or `failed`.  One request at a time.
    `version` is that of requests by name.  Topics are asked for by id where `topic_id`
    knows those of all, by the names that the caller uses.
    """

    def __init__(
        self,
        version: int,
        isolation_level: int = 0,
        names: TopicNames | None = None,
        topic_id: Callable[[str], uuid.UUID | None] | None = None,
    ) -> None:
        self.version = version
        self.isolation_level = isolation_level
        self.names = names
        self._topic_id = topic_id
        self._ids: dict[str, uuid.UUID] = {}  # of every topic of the session; empty where it goes by names
        self.positions: dict[TopicPartition, int] = {}
        self._changed: set[TopicPartition] = set()
        self._forgotten: set[TopicPartition] = set()
        self._id = 0
        self._epoch = 0

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch `partition` from `offset` in the next request.

        It goes behind the others: a response has room for the first ones, where no session has the broker rotate them (KIP-74).
        """
        self.positions.pop(partition, None)
        self.positions[partition] = offset
        self._changed.add(partition)
        self._forgotten.discard(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Stop fetching `partition`; unknown partitions are ignored."""
        if self.positions.pop(partition, None) is not None:
            self._changed.discard(partition)
            self._forgotten.add(partition)

    def request(self, *, max_wait_ms: int, max_bytes: int, partition_max_bytes: int) -> RawFetch:
        """The next request; a new session starts with all partitions (epoch 0)."""
        if self._epoch and not self._knows_topics():
            self.failed()  # a session goes by names or by ids, and a topic that was made anew has another id
        is_full = self._epoch == 0 or self.version < 7
        if is_full:
            self._ids = self._ids_of(self.positions)
        positions = self.positions if is_full else {p: self.positions[p] for p in self._changed}
        # Of a topic without an id the broker was never told.
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
        """Whether the last request named topics by their names: then nothing tells a topic that was made anew."""
        return not self._ids

    def made_anew(self) -> list[TopicPartition]:
        """Partitions of topics that have another id by now: their positions are of a log that is gone.

        They are forgotten, and a new session begins without them: the present topic is not to be read from there.
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
        """The node turned out to know no ids: begins anew without."""
        self._topic_id = None
        self._ids = {}
        self.failed()

    def _knows_topics(self) -> bool:
        """Whether what changed can be told in the session; it then has the ids of topics that are new in it."""
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

    def answered(self, answer: FetchAnswer) -> bool:
        """Takes the session's id and epoch from an answer; False when the session is gone.

        A partition whose records were answered must be moved with `seek`, or the
        broker sends the same records again.
        """
        if answer.error_code:
            self.failed()
            return False
        if answer.session_id == 0:
            self._id = self._epoch = 0  # the broker's session cache is full: full requests go on working
        else:
            self._id = answer.session_id
            self._epoch = 1 if self._epoch == 0x7FFFFFFF else self._epoch + 1
        return True

    def failed(self) -> None:
        """Starts a new session: nobody knows which epoch the broker has seen."""
        self._id = self._epoch = 0
        self._forgotten.clear()
