"""What the rules of a copy depend on: the target's topics and brokers, and whether the source cleans its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tolerant_client.cluster.admin.configs import producer_expiration_ms
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.appendable import AppendRules
from tolerant_client.mirror.batches.gaps import GapFill, choose_way
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.state.topics import TopicFacts, describe_topics, topic_facts

_LAST_S = 60.0  # a topic's configuration may change while it is copied
_REMEMBERED_MS = 3_600_000  # how long a broker that does not tell surely remembers a producer; the default is a day


class TargetFacts:
    """Facts that are at most a minute old, and newer than the last refusal that contradicts them; on the clusters' loop."""

    def __init__(self, source: Cluster, target: Cluster, policy: MirrorPolicy, clock: Callable[[], float]) -> None:
        self._source = source
        self._target = target
        self._policy = policy
        self._clock = clock
        # By topic: when read, the target's facts, whether the source cleans.  By node: when read, how long it surely remembers.
        self._topics: dict[str, tuple[float, TopicFacts, bool]] = {}
        self._remembered: dict[int, tuple[float, int]] = {}

    async def read(self, copies: Collection[PartitionCopy]) -> None:
        """Reads facts of these partitions that are stale or doubted.  Raises KafkaError."""
        now = self._clock()
        doubted = {copy.partition.topic for copy in copies if copy.has_doubtful_facts}
        topics = {copy.partition.topic for copy in copies}
        if stale := [t for t in topics if t in doubted or t not in self._topics or now - self._topics[t][0] > _LAST_S]:
            sources = await describe_topics(self._source, stale)
            for topic, facts in (await topic_facts(self._target, stale)).items():
                # Brokers before 0.11 do not tell; their only gaps are the cleaner's.
                is_cleaned = topic not in sources or not sources[topic].effective or sources[topic].is_compacted
                self._topics[topic] = (now, facts, is_cleaned)
        for copy in copies:
            copy.has_doubtful_facts = False
        for node_id in {node for copy in copies if (node := self._target.known_leader(copy.partition)) is not None}:
            if node_id not in self._remembered or now - self._remembered[node_id][0] > _LAST_S:
                told = await producer_expiration_ms(self._target, node_id)
                self._remembered[node_id] = (now, _REMEMBERED_MS if told is None else told // 2)

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def rewrites_times(self, topic: str) -> bool:
        """Whether the target's topic has LogAppendTime."""
        return self._topics[topic][1].rewrites_times

    def rules(self, copy: PartitionCopy) -> AppendRules:
        """What may be appended to a partition whose topic's facts were read."""
        topic = copy.partition.topic
        _, facts, is_cleaned = self._topics[topic]
        way = choose_way(self._policy.for_topic(topic).gap_fill, is_compacted=facts.is_compacted or is_cleaned)
        node_id = self._target.known_leader(copy.partition)
        _, remembered_ms = self._remembered.get(-1 if node_id is None else node_id, (0.0, _REMEMBERED_MS))
        codec = facts.codec if copy.is_recoded else None
        return AppendRules(
            way is GapFill.RECORDS,
            facts.is_compacted,
            facts.max_message_bytes,
            copy.left_out,
            remembered_ms,
            codec,
            copy.separate_until,
            None if way is GapFill.RECORDS else way,
        )
