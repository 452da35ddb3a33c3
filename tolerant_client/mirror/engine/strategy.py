"""What identical and translated offsets have in common, and the interface of each.

A copier (link_copier.py) has calls, leases, claims, the operator's orders and the rate.  A strategy has the partitions: where
each resumes, what is appended, and what a response means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.tasks import Tasks
from tolerant_client.errors import LinkPausedError, RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.emptiness import EmptinessChecks
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.memory import Memory
from tolerant_client.mirror.engine.throttle import TokenBucket
from tolerant_client.mirror.state.claims_topic import Claims
from tolerant_client.mirror.state.control_topic import ControlWatch
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import link_options
from tolerant_client.mirror.state.link_pauses import paused_text

NO_CLAIM = "the claim on the target's partition is over"


@dataclass(frozen=True)
class CopiedLink:
    """What all partitions of a copier share; both clusters use one event loop.

    `clock` returns monotonic seconds.  `obey` applies the orders in `control.value`.
    """

    source: Cluster
    target: Cluster
    name: str
    limits: CopyLimits
    policy: MirrorPolicy
    clock: Callable[[], float]
    control: ControlWatch
    claims: Claims
    ledger: Ledger
    tasks: Tasks
    bucket: TokenBucket
    emptiness: EmptinessChecks
    memory: Memory
    obey: Callable[[], None]

    def require_not_promoted(self) -> None:
        """Raises LinkPromotedError if the link may not write any more, by its last orders."""
        self.control.value.require_not_promoted(self.name, self.target, self.source)

    def paused_error(self, copy: CopiedPartition) -> LinkPausedError:
        """The error for a partition that the operator has paused."""
        which = link_options(self.name, self.target)
        return LinkPausedError(paused_text(self.control.value, [copy.partition], which))

    def unclaimed_error(self, copy: CopiedPartition) -> RecoveryExhaustedError:
        """The error for a partition whose claim was never granted."""
        patience_s = self.limits.patience_ms / 1000
        return RecoveryExhaustedError(f"{copy} could not be claimed for {patience_s:.0f} s: {self.claims.problem}")


class Strategy(Protocol):
    """How the partitions of a link are copied; all methods run on the clusters' event loop."""

    @property
    def partitions(self) -> Mapping[TopicPartition, CopiedPartition]:
        """The partitions that the copier has."""

    def claim_of(self, partition: TopicPartition) -> TopicPartition:
        """The target partition to claim for it."""

    def adopt(
        self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float
    ) -> CopiedPartition:
        """Takes a partition to copy at least up to `until`, or sets a new end for one that the copier has."""

    def release(self, partition: TopicPartition) -> None:
        """Gives it up, and its claim once nothing of it is in flight."""

    def is_leaving(self, claim: TopicPartition) -> bool:
        """Whether a partition that was given up still needs this claim: something of it is in flight."""

    async def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Releases these for their owner; returns once nothing more is written for it."""

    def claims_changed(self) -> None:
        """Reacts to claims that were granted or lost."""

    def stop(self, partition: TopicPartition, error: TolerantClientError) -> None:
        """Stops it for good."""

    def set_paused(self, partition: TopicPartition, is_paused: bool) -> None:
        """Sets whether the operator has paused it."""

    def lose_patience(self, partition: TopicPartition) -> None:
        """Stops it if it has waited longer than the patience."""

    def watch(self) -> None:
        """Does what is due; called once a second."""
