"""Finds the topics to write to, as Java's producer does: the brokers may create them.

Laws:
- A topic that does not exist is waited for once, together with the others of the same call; after that brokers are asked
  for it each time, without waiting, until it is found.
- A topic that exists but cannot be written to yet, because its leaders are being elected, is waited for each time.
- What brokers say of topics that they were not asked for is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.leaders import metadata_request
from tolerant_client.cluster.patience import Backoff, Patience
from tolerant_client.errors import RecordRefusedError

_MAX_PAUSE = 0.25  # seconds, while a topic is being created
_MAX_NAME = 249  # characters: Topic.java of Kafka's clients
_SHOWN = 40
_NAMED = 3
_MAX_CREATING = 10.0  # seconds that a cluster may take to create a topic, unless the caller waits less
_ASKED_AT_ONCE = 100
_REMEMBERED = 10_000  # topics that were waited for in vain
_UNKNOWN, _NOT_READY = 0, -1  # instead of a partition count


class TopicLookup:
    """What one producer knows of topics; it waits `max_block_ms`, but at most 10 s, for those that do not exist."""

    def __init__(self, cluster: Cluster, max_block_ms: int) -> None:
        self._cluster = cluster
        self._max_block_ms = max_block_ms
        self._patience = min(max_block_ms / 1000, _MAX_CREATING)
        self._missed: dict[str, None] = {}  # waited for in vain, the oldest first

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int | RecordRefusedError]:
        """How many partitions each topic has, or why it cannot be written to.

        Brokers that create topics by themselves create them.  Leaders of those that are found are tracked.
        """
        found: dict[str, int | RecordRefusedError] = {}
        for topic in topics:
            if len(topic) > _MAX_NAME:  # no request is worth it, and brokers cannot even read a much longer one
                name = f"{topic[:_SHOWN]!r}... ({len(topic)} characters)"
                found[topic] = RecordRefusedError(
                    f"{name} is not a valid topic name: the maximum is {_MAX_NAME} characters", topic
                )
            else:
                found[topic] = len(self._cluster.manager.cluster.partitions_for_topic(topic) or ())
        patience = Patience(self._patience, Backoff(longest_s=_MAX_PAUSE))
        while missing := [topic for topic, count in found.items() if isinstance(count, int) and count <= 0]:
            for at in range(0, len(missing), _ASKED_AT_ONCE):
                found |= await self._ask(missing[at : at + _ASKED_AT_ONCE])
            if new := [topic for topic in missing if isinstance(count := found[topic], int) and count > 0]:
                await self._cluster.track(new)
                for topic in new:  # one that is missing again is waited for again
                    self._missed.pop(topic, None)
            left = [topic for topic in missing if found[topic] in (_UNKNOWN, _NOT_READY)]
            if patience.is_over or all(found[topic] == _UNKNOWN and topic in self._missed for topic in left):
                found |= {topic: self._miss(topic, is_there=found[topic] == _NOT_READY) for topic in left}
            else:
                await self._cluster.net.sleep(patience.pause_s())
        return found

    async def _ask(self, topics: Sequence[str]) -> dict[str, int | RecordRefusedError]:
        what = f"looking for topic {', '.join(topics[:_NAMED])}{' and others' if len(topics) > _NAMED else ''}"
        return await self._cluster.insist(what, lambda: _ask(self._cluster, topics), self._max_block_ms)

    def _miss(self, topic: str, *, is_there: bool) -> RecordRefusedError:
        if is_there:
            return RecordRefusedError(
                f"Topic {topic} cannot be written to: brokers named no leader for it within {self._patience:g} s;"
                " check that its brokers run",
                topic,
            )
        self._missed[topic] = None
        if len(self._missed) > _REMEMBERED:
            self._missed.pop(next(iter(self._missed)))
        return RecordRefusedError(
            f"Topic {topic} does not exist, and the brokers have not created it within {self._patience:g} s"
            " (auto.create.topics.enable); create it first",
            topic,
        )


async def _ask(cluster: Cluster, topics: Sequence[str]) -> dict[str, int | RecordRefusedError]:
    """Each topic's partition count, _UNKNOWN where it does not exist, _NOT_READY where it has none to tell yet."""
    # Java's producer always allows it; auto.create.topics.enable of the brokers decides.
    response = await cluster.send(metadata_request(topics, may_create=True))
    counts: dict[str, int | RecordRefusedError] = dict.fromkeys(topics, _UNKNOWN)
    for found in response.topics:
        if found.name not in counts:
            continue
        if found.error_code == Errors.TopicAuthorizationFailedError.errno:
            raise Errors.TopicAuthorizationFailedError(f"topic {found.name}")
        if found.error_code == Errors.InvalidTopicError.errno:
            counts[found.name] = RecordRefusedError(f"{found.name!r} is not a valid topic name", found.name)
        else:
            is_unknown = found.error_code == Errors.UnknownTopicOrPartitionError.errno
            counts[found.name] = _UNKNOWN if is_unknown else _NOT_READY if found.error_code else len(found.partitions)
    return counts
