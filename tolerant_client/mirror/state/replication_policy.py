"""Names topics on the target of a link, and finds from such a name where the topic was copied from.

The policies of MirrorMaker 2 (KIP-382; ReplicationPolicy.java, DefaultReplicationPolicy.java and
IdentityReplicationPolicy.java of connect/mirror-client, as of Kafka 4.2), so that a target keeps its topics' names.  Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from tolerant_client.errors import OptionError
from tolerant_client.state_json import converted, decoded

_HEARTBEATS = "heartbeats"


class DefaultReplicationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Puts the source's alias before each name: `A.orders`; `source_alias` is the alias of the cluster copied from.

    Without `internal_separator_enabled` the internal topics keep ".", whatever the separator is (KIP-690).
    """

    separator: str = "."
    internal_separator_enabled: bool = True

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """The name on the target of `topic` of the source."""
        return f"{source_alias}{self.separator}{topic}"

    def source_topic(self, source_alias: str, topic: str) -> str | None:
        """The name on the source of `topic` of the target; None if it cannot be a copy from there.

        Unlike upstream_topic, this also holds for an alias that contains separators.
        """
        prefix = f"{source_alias}{self.separator}"
        return topic.removeprefix(prefix) if topic.startswith(prefix) else None

    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster that a topic was copied from; None if its name shows no copy."""
        # As Java's String.split: without a separator every letter is a part, and empty parts at the end are dropped.
        parts = topic.split(self.separator) if self.separator else list(topic)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """The name of a copied topic on the cluster that it was copied from; None if it was not copied."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """The name of a topic on the cluster where it was first written."""
        upstream = self.upstream_topic(topic)
        while upstream is not None and upstream != topic:
            topic, upstream = upstream, self.upstream_topic(upstream)
        return topic

    def is_internal(self, topic: str) -> bool:
        """True for topics that MirrorMaker 2 never copies: hidden ones, Kafka's own and MirrorMaker 2's own."""
        return self.is_mm2_internal(topic) or topic.startswith(("__", "."))

    def is_mm2_internal(self, topic: str) -> bool:
        # Since KAFKA-17200; before, every name ending in "internal" counted as MirrorMaker 2's or Connect's.
        is_named = topic.startswith("mm2") and topic.endswith(f"{self._internal_separator}internal")
        return is_named or self.is_checkpoints(topic)

    def is_heartbeats(self, topic: str) -> bool:
        """True for heartbeats, copied ones too."""
        return self.original_topic(topic) == self.heartbeats_topic()

    def is_checkpoints(self, topic: str) -> bool:
        """True for the checkpoints of any source."""
        return topic.endswith(self.checkpoints_topic(""))

    def heartbeats_topic(self) -> str:
        return _HEARTBEATS

    def checkpoints_topic(self, alias: str) -> str:
        """The target's topic for checkpoints of the source `alias`."""
        separator = self._internal_separator
        return f"{alias}{separator}checkpoints{separator}internal"

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_separator_enabled else "."


class IdentityReplicationPolicy(DefaultReplicationPolicy, frozen=True, tag=True):
    """Every topic keeps its name, except heartbeats, which the default policy names.

    Names then do not show a topic's source: it is `source_alias` for all of them, if that is given.
    """

    source_alias: str | None = None

    def remote_topic(self, source_alias: str, topic: str) -> str:
        return super().remote_topic(source_alias, topic) if _looks_like_heartbeats(topic) else topic

    def source_topic(self, source_alias: str, topic: str) -> str | None:
        return super().source_topic(source_alias, topic) if _looks_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if _looks_like_heartbeats(topic) else self.source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if _looks_like_heartbeats(topic) else topic


def _looks_like_heartbeats(topic: str) -> bool:
    return topic.endswith(_HEARTBEATS)


class _WrittenNames(msgspec.Struct):
    """TopicNames as the control topic keeps them."""

    name: str
    policy: dict[str, Any]
    source_alias: str


class TopicNames(msgspec.Struct, frozen=True):
    """The names of one link's topics: `source_alias` is its source."""

    policy: DefaultReplicationPolicy | IdentityReplicationPolicy
    source_alias: str

    @property
    def keeps(self) -> bool:
        """Whether every topic but heartbeats keeps its name."""
        return isinstance(self.policy, IdentityReplicationPolicy)

    def to_target(self, topic: str) -> str:
        """The name on the target of a topic of the source."""
        return self.policy.remote_topic(self.source_alias, topic)

    def to_source(self, topic: str) -> str:
        """The name on the source of a topic of the target.

        Raises OptionError for a name that no topic of this link can have on the target.
        """
        name = self.policy.source_topic(self.source_alias, topic)
        if name is None:
            raise OptionError(
                f"Topic {topic} of the target is no copy from cluster {self.source_alias}, whose topics are named"
                f" {self.to_target('TOPIC')} there"
            )
        return name

    def to_json(self) -> str:
        written = _WrittenNames(type(self.policy).__name__, asdict(self.policy), self.source_alias)
        return msgspec.json.encode(written).decode()

    @staticmethod
    def from_json(written: str) -> TopicNames:
        """Raises OptionError for text that to_json did not write."""
        try:
            found = decoded(written, _WrittenNames)
            policy = {**found.policy, "type": found.name}
            return converted({"policy": policy, "source_alias": found.source_alias}, TopicNames)
        except ValueError as error:
            raise OptionError(
                f"Not the names of a link's topics ({str(error)[:_SHOWN]}): {written[:_SHOWN]!r}"
            ) from error


_SHOWN = 200  # characters of text that cannot be read


def is_cycle(policy: DefaultReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether a topic of the source was once copied from the target: it would be copied in a circle for ever.

    As MirrorSourceConnector.isCycle; names without a source (IdentityReplicationPolicy) show no cycle.
    """
    upstream: str | None = topic
    while upstream is not None:
        topic, source = upstream, policy.topic_source(upstream)
        if source == target_alias:
            return True
        upstream = None if source is None else policy.upstream_topic(topic)
        if upstream == topic:
            return False
    return False
