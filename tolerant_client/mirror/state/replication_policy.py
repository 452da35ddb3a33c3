"""What a topic is called on the target of a link, and what its name there tells of where it comes from.

The policies of MirrorMaker 2 (KIP-382; ReplicationPolicy.java, DefaultReplicationPolicy.java and
IdentityReplicationPolicy.java of connect/mirror-client, as Kafka 4.2 has them), so that a target keeps the names it has.  Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from tolerant_client.errors import OptionError
from tolerant_client.state_json import decoded

_HEARTBEATS = "heartbeats"


class DefaultReplicationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The source's alias before each name: `A.orders`; `source_alias` is that of the cluster that a topic is copied from.

    Without `internal_separator_enabled` the internal topics keep "." whatever the separator is (KIP-690).
    """

    separator: str = "."
    internal_separator_enabled: bool = True

    def remote_topic(self, source_alias: str, topic: str) -> str:
        """What `topic` of the source is called on the target."""
        return f"{source_alias}{self.separator}{topic}"

    def source_topic(self, source_alias: str, topic: str) -> str | None:
        """What is called `topic` on the target, in the source's words; None if it cannot be a copy from there.

        Unlike upstream_topic right for an alias with separators in it, too.
        """
        prefix = f"{source_alias}{self.separator}"
        return topic.removeprefix(prefix) if topic.startswith(prefix) else None

    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster that a topic was copied from; None if its name says that it was not copied."""
        # As String.split of Java has it: every letter is a part without a separator, empty parts at the end are none.
        parts = topic.split(self.separator) if self.separator else list(topic)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        """What a copied topic is called on the cluster that it was copied from; None if it was not copied."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        """What a topic is called where it was first written."""
        upstream = self.upstream_topic(topic)
        while upstream is not None and upstream != topic:
            topic, upstream = upstream, self.upstream_topic(upstream)
        return topic

    def is_internal(self, topic: str) -> bool:
        """True for what MirrorMaker 2 never copies: hidden topics, Kafka's own and MirrorMaker 2's own."""
        return self.is_mm2_internal(topic) or topic.startswith(("__", "."))

    def is_mm2_internal(self, topic: str) -> bool:
        # Since KAFKA-17200; before, whatever ended in "internal" was taken for MirrorMaker 2's or Connect's.
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
        """Where the target keeps the checkpoints of the source `alias`."""
        separator = self._internal_separator
        return f"{alias}{separator}checkpoints{separator}internal"

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_separator_enabled else "."


class IdentityReplicationPolicy(DefaultReplicationPolicy, frozen=True, tag=True):
    """Every topic keeps its name, except heartbeats, which are named as by the default policy.

    Names tell nothing of a topic's source then: it is `source_alias` for all of them, if that is given.
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
        """What a topic of the source is called on the target."""
        return self.policy.remote_topic(self.source_alias, topic)

    def to_source(self, topic: str) -> str:
        """What a topic of the target is called on the source.

        Raises OptionError for a name that no topic of this link can have on the target.
        """
        name = self.policy.source_topic(self.source_alias, topic)
        if name is None:
            raise OptionError(
                f"Topic {topic} of the target is no copy from cluster {self.source_alias}: its topics are called"
                f" {self.to_target('TOPIC')} there"
            )
        return name

    def to_json(self) -> str:
        written = _WrittenNames(type(self.policy).__name__, asdict(self.policy), self.source_alias)
        return msgspec.json.encode(written).decode()

    @staticmethod
    def from_json(written: str) -> TopicNames:
        """Raises OptionError for what to_json did not write."""
        try:
            found = decoded(written, _WrittenNames)
            policy = {**found.policy, "type": found.name}
            return msgspec.convert({"policy": policy, "source_alias": found.source_alias}, TopicNames)
        except ValueError as error:
            raise OptionError(
                f"Not the names of a link's topics ({str(error)[:_SHOWN]}): {written[:_SHOWN]!r}"
            ) from error


_SHOWN = 200  # of what cannot be read


def is_cycle(policy: DefaultReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether a topic of the source was once copied from the target: it would go round for ever.

    As MirrorSourceConnector.isCycle; where names say nothing (IdentityReplicationPolicy) nothing is found.
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
