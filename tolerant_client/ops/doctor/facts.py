"""Facts read from a cluster, as values that checks use.  Pure.

What the brokers could not or would not tell is None, or absent, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

INTERNAL_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
_EFFECTIVE_MIN_ISR = (3, 7)
ADMIN_PROPERTIES = "admin.properties"  # of an authorized principal; only the operator knows the file
_ADMIN_CONFIG = frozenset({"kafka-leader-election.sh"})  # its option has another name than that of all other tools

# AclOperation.java: the name of each code in kafka-acls.sh.
OPERATIONS: Mapping[int, str] = {
    3: "Read",
    4: "Write",
    5: "Create",
    6: "Delete",
    7: "Alter",
    8: "Describe",
    9: "ClusterAction",
    10: "DescribeConfigs",
    11: "AlterConfigs",
    12: "IdempotentWrite",
}

Operations = frozenset[str]


@dataclass(frozen=True)
class Partition:
    """One partition as metadata shows it; `leader` is -1 if there is none."""

    topic: str
    index: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True)
class Topic:
    """One topic; `operations` are those our principal may do, `error_code` is Kafka's if it was requested by name."""

    name: str
    partitions: tuple[Partition, ...] = ()
    is_internal: bool = False
    operations: Operations | None = None
    error_code: int = 0

    @property
    def replication_factor(self) -> int:
        """The smallest of its partitions' replica counts."""
        return min((len(p.replicas) for p in self.partitions), default=0)


@dataclass(frozen=True)
class Broker:
    """A registered broker; a fenced one sends no heartbeats to the controller (KIP-631)."""

    node_id: int
    host: str
    port: int
    is_fenced: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.node_id} at {self.address}"


@dataclass(frozen=True)
class Quorum:
    """The controllers' quorum (KIP-595); times are the leader's, in ms; asked_ms and answered_ms are by our clock."""

    leader: int
    log_end: int
    voters: Mapping[int, tuple[int, int]]  # node id -> (log end offset, last caught up at)
    leader_time_ms: int
    asked_ms: int
    answered_ms: int


@dataclass(frozen=True)
class ClusterFacts:
    """The metadata of a cluster; `name` is "source", "target" or "cluster".

    `silent` are brokers in the metadata that do not respond to us; `configs` and
    `broker_configs` hold the values in force of the topics and brokers that were asked for; `version` is the Kafka
    version of the brokers; `is_secured` says that a client needs more than the address.
    """

    name: str
    bootstrap_servers: str
    cluster_id: str | None
    controller: int | None  # -1 if there is none; brokers before 0.10 do not tell
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]
    operations: Operations | None = None
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    version: tuple[int, ...] = ()
    is_secured: bool = False

    def tool(self, name: str) -> str:
        """The start of a command line of Kafka's own tools, as far as it is the same for all of them."""
        login = f" {'--admin.config' if name in _ADMIN_CONFIG else '--command-config'} {ADMIN_PROPERTIES}"
        return f"{name} --bootstrap-server {self.bootstrap_servers}{login if self.is_secured else ''}"

    @property
    def living(self) -> dict[int, Broker]:
        """Brokers that are not fenced."""
        return {node_id: broker for node_id, broker in self.brokers.items() if not broker.is_fenced}

    def leader_of(self, partition: TopicPartition) -> int:
        """The leader's node id; -1 if there is none."""
        known = self.topics[partition.topic].partitions if partition.topic in self.topics else ()
        return next((p.leader for p in known if p.index == partition.partition), -1)

    def config(self, topic: str, name: str) -> str | None:
        return self.configs.get(topic, {}).get(name)

    def min_isr(self, topic: str) -> int | None:
        """min.insync.replicas in force; None if the brokers do not tell."""
        value = self.config(topic, MIN_ISR)
        return None if value is None else int(value)

    def needed_isr(self, topic: str, replicas: int) -> int | None:
        """How many of `replicas` must be in sync for acks=all; None if the brokers do not tell.

        Brokers since 3.7 require no more than the partition has (Partition.scala, effectiveMinIsr; KAFKA-15583).
        """
        least = self.min_isr(topic)
        return least if least is None or self.version < _EFFECTIVE_MIN_ISR else min(least, replicas)

    def is_below_min_isr(self, partition: Partition) -> bool:
        """Whether the leader refuses writes with acks=all."""
        needed = self.needed_isr(partition.topic, len(partition.replicas))
        return partition.leader >= 0 and needed is not None and len(partition.isr) < needed

    def broker_setting(self, name: str) -> str | None:
        """A broker setting, from the lowest node id that told it."""
        for node_id in sorted(self.broker_configs):
            if name in self.broker_configs[node_id]:
                return self.broker_configs[node_id][name]
        return None

    def named(self, nodes: Iterable[int]) -> str:
        """Brokers for a sentence, with the addresses of those that are registered."""
        known = [str(self.brokers.get(node, f"broker {node} (not registered)")) for node in sorted(set(nodes))]
        return ", ".join(known) or "none"
