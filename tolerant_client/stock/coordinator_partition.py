"""Which partition coordinates a group or a transactional id, and what is wrong with it.  Pure.

Laws:
- The partition is Java's String.hashCode of the name, absolute, modulo the
  partition count of the internal topic (GroupCoordinatorService.java and
  TransactionStateManager.scala, partitionFor; Utils.java, abs).
- A diagnosis states only what metadata shows, and says so where metadata shows nothing.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tolerant_client.errors import CoordinatorUnavailableError

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

_REPLICATION_SETTING = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}
_UNKNOWN_TOPIC = 3
_NOT_AUTHORIZED = 29


def java_hash(text: str) -> int:
    """Java's String.hashCode: of UTF-16 code units, a signed 32-bit number."""
    units = array.array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of(name: str, partition_count: int) -> int:
    """The partition of the internal topic that a group id or transactional id belongs to."""
    value = java_hash(name)
    # Utils.abs: the smallest int has no positive counterpart and counts as 0.
    return 0 if value == -(1 << 31) else abs(value) % partition_count


@dataclass(frozen=True, slots=True)
class CoordinatorPartition:
    """What metadata says about the partition of `topic` that `name` belongs to.

    `partition` is -1 where the topic cannot be seen (`error_code` says why);
    `brokers` maps the ids of the registered brokers to host:port.
    """

    name: str
    topic: str
    error_code: int
    partition: int
    partition_count: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    brokers: Mapping[int, str]

    @classmethod
    def read(cls, name: str, topic: str, metadata: Any) -> CoordinatorPartition:
        """Reads it from the response to a MetadataRequest for `topic`."""
        brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
        found = next((t for t in metadata.topics if t.name == topic), None)
        error_code = _UNKNOWN_TOPIC if found is None else found.error_code
        if found is None or not found.partitions:
            return cls(name, topic, error_code or _UNKNOWN_TOPIC, -1, 0, -1, (), (), brokers)
        count = len(found.partitions)
        index = partition_of(name, count)
        seen = next((p for p in found.partitions if p.partition_index == index), None)
        if seen is None:
            return cls(name, topic, _UNKNOWN_TOPIC, -1, count, -1, (), (), brokers)
        replicas, isr = tuple(seen.replica_nodes), tuple(seen.isr_nodes)
        return cls(name, topic, error_code, index, count, seen.leader_id, replicas, isr, brokers)

    @property
    def _label(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def _owner(self) -> str:
        return f"{'Transactional id' if self.topic == TRANSACTIONS_TOPIC else 'Group'} {self.name!r}"

    def error(self, waited_ms: float, last_failure: str) -> CoordinatorUnavailableError:
        """The error for a caller that has waited `waited_ms`."""
        problem, remedy = self._diagnosis()
        message = (
            f"{self._owner} has had no coordinator for {waited_ms / 1000:.1f} s: {problem}. {remedy}."
            f" Last failure: {last_failure}"
        )
        return CoordinatorUnavailableError(
            message, self.name, self.topic, self.partition, self.leader, self.replicas, self.isr, waited_ms
        )

    def _diagnosis(self) -> tuple[str, str]:
        if self.partition < 0:
            return self._unseen()
        missing = [node for node in self.replicas if node not in self.brokers]
        state = (
            f"it belongs to {self._label} (of {self.partition_count} partitions), replicas {_ids(self.replicas)},"
            f" in sync {_ids(self.isr)}"
        )
        if self.leader < 0:
            return f"{state}, and that partition has no leader", self._without_leader(missing)
        at = self.brokers.get(self.leader, "an address that is not in the metadata")
        others = [node for node in self.isr if node != self.leader and node in self.brokers]
        move = f", or move the leadership of {self._label} to {_brokers(others)}" if others else ""
        return (
            f"{state}, and its leader, broker {self.leader} at {at}, does not serve it",
            f"Check whether that address can be reached from here and what broker {self.leader} logs; restart it{move}",
        )

    def _without_leader(self, missing: list[int]) -> str:
        elsewhere = " Other partitions have their own leaders: groups that belong to them are not affected"
        if self.topic == TRANSACTIONS_TOPIC:
            elsewhere = elsewhere.replace("groups", "transactional ids")
        in_sync = [node for node in missing if node in self.isr]
        if not missing:
            return (
                f"All its brokers are registered: check for an offline log directory on {_brokers(self.isr)}, or"
                f" reassign partition {self._label}.{elsewhere}"
            )
        lossy = [node for node in self.replicas if node in self.brokers]
        unclean = ""
        if lossy and in_sync:
            unclean = f"; an unclean election of {_brokers(lossy)} would lose what only the others had"
        return (
            f"Start {_brokers(in_sync or missing)}; if that is impossible, reassign partition {self._label}"
            f" to running brokers{unclean}.{elsewhere}"
        )

    def _unseen(self) -> tuple[str, str]:
        if self.error_code == _NOT_AUTHORIZED:
            return (
                f"it belongs to a partition of {self.topic}, which this client may not see",
                f"Allow it DESCRIBE on topic {self.topic} to learn which partition, or ask the operator",
            )
        if self.error_code == _UNKNOWN_TOPIC:
            setting = _REPLICATION_SETTING[self.topic]
            return (
                f"the topic {self.topic} does not exist, and the cluster has not created it",
                f"Check the brokers' logs; often {setting} is above the number of brokers"
                f" ({len(self.brokers)} registered)",
            )
        return (
            f"it belongs to a partition of {self.topic}, whose metadata comes with error {self.error_code}",
            "Check the brokers' logs",
        )


def _ids(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _brokers(nodes: Iterable[int]) -> str:
    ids = [str(node) for node in nodes]
    if not ids:
        return "the brokers that hold it"
    return f"broker {ids[0]}" if len(ids) == 1 else f"one of the brokers {', '.join(ids)}"
