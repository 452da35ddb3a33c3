"""The limits of a copier, and what it reports of a partition; the same for identical and translated offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tolerant_client.errors import LinkPausedError, TolerantClientError
from tolerant_client.mirror.state.claims_record import Waiting

PAUSE_S = 30.0  # between two reads of a partition that the policy has paused
_MANY = 1_000  # partitions


@dataclass(frozen=True)
class CopyLimits:
    """Limits of a copier, in bytes, ms and requests."""

    max_bytes_in_flight: int = 96 << 20
    fetch_max_bytes: int = 24 << 20
    partition_max_bytes: int = 6 << 20
    fetch_max_wait_ms: int = 250
    produce_max_bytes: int = 8 << 20
    produce_max_requests: int = 64
    append_lease_ms: int = 3_600_000
    patience_ms: int = 120_000

    def fetch_wait_ms(self, partitions: int) -> int:
        """How long a fetch may wait for records: longer with many partitions, since a broker checks each of them every time."""
        return self.fetch_max_wait_ms * (2 if partitions > _MANY else 1)


@dataclass(frozen=True)
class TransactionLimits:
    """Limits of a transaction, in ms, bytes and requests.

    A transaction is committed `linger_ms` after it began if everything is
    copied, and otherwise after `commit_ms` or, while there is more to send,
    after `commit_bytes` or `open_s`, or if its next turn to send does not come within `turn_s`.  Brokers abort it after `timeout_ms`.  A fenced copier takes over again once the other one has
    made no progress for `takeover_ms`.
    """

    linger_ms: int = 50
    commit_ms: int = 400
    commit_bytes: int = 32 << 20
    max_requests: int = 16
    timeout_ms: int = 60_000
    takeover_ms: int = 3_000

    @property
    def open_s(self) -> float:
        """Seconds after which no more is sent: a slow target must not outlast the transaction."""
        return self.timeout_ms / 10_000

    @property
    def turn_s(self) -> float:
        """Seconds for which a transaction that is open waits for its turn: all others' may come first."""
        return self.commit_ms / 1000


class Progress(NamedTuple):
    """What a copier has done for a partition; all offsets before `acked` are on the target.

    `filled` counts offsets in gaps, `losses` ledger rows.  With `is_paused` the operator or the policy has paused the
    partition, and `error` says why; without it `error` is what stopped the partition.  Until `is_placed` the target's log was
    not read, and may not be a copy.  `wait` is why the partition does not move although the copier keeps trying.
    """

    acked: int
    records: int
    bytes: int
    troubles: int
    filled: int
    losses: int
    is_paused: bool
    error: TolerantClientError | None
    is_placed: bool = True
    wait: Waiting | None = None

    @property
    def paused_by(self) -> TolerantClientError | None:
        """The error that says that an operator has paused the partition."""
        return self.error if isinstance(self.error, LinkPausedError) else None

    @property
    def blocked_by(self) -> TolerantClientError | None:
        """What a person has to resolve before the partition resumes."""
        return None if self.paused_by is not None else self.error

    @property
    def stopped_by(self) -> TolerantClientError | None:
        """What stopped the partition for good; None while it is copied, waits or is paused."""
        return None if self.is_paused else self.error

    def done_only(self) -> Progress:
        """What was done, without the partition's present state."""
        return self._replace(is_paused=False, error=None, is_placed=False, wait=None)
