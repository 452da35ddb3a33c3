"""The bounds of a copier, and what it says of a partition; the same for identical and translated offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tolerant_client.errors import LinkPausedError, TolerantClientError
from tolerant_client.mirror.state.claims import Waiting

PAUSE_S = 30.0  # between two reads of a partition that policy has paused
_MANY = 1_000  # partitions


@dataclass(frozen=True)
class CopyLimits:
    """Bounds of a copier; bytes, ms and requests."""

    max_bytes_in_flight: int = 96 << 20
    fetch_max_bytes: int = 24 << 20
    partition_max_bytes: int = 6 << 20
    fetch_max_wait_ms: int = 250
    produce_max_bytes: int = 8 << 20
    produce_max_requests: int = 64
    append_lease_ms: int = 3_600_000
    patience_ms: int = 120_000

    def fetch_wait_ms(self, partitions: int) -> int:
        """How long a fetch may wait for records: a broker looks at every partition of it each time, so longer with many."""
        return self.fetch_max_wait_ms * (2 if partitions > _MANY else 1)


@dataclass(frozen=True)
class TransactionLimits:
    """How long a transaction may be; ms, bytes and requests.

    One is committed `linger_ms` after it began when all is copied, and in any
    case after `commit_ms` or `commit_bytes`.  Brokers abort it after
    `timeout_ms`.  A fenced copier takes over again after `takeover_ms` without
    progress of the other one.
    """

    linger_ms: int = 50
    commit_ms: int = 400
    commit_bytes: int = 32 << 20
    max_requests: int = 16
    timeout_ms: int = 60_000
    takeover_ms: int = 3_000


class Progress(NamedTuple):
    """What a copier has done for a partition; offsets before `acked` are on the target.

    `filled` are offsets in gaps, `losses` ledger rows.  With `is_paused` the
    partition is left alone, by its operator or by policy, and `error` says what for; without it `error` is what stopped it.
    Until `is_placed` the target's log was not read, and may be no copy.  `wait` is why it does not move, though it goes on
    trying.
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
        """Says that an operator has paused the partition."""
        return self.error if isinstance(self.error, LinkPausedError) else None

    @property
    def blocked_by(self) -> TolerantClientError | None:
        """What a person has to see to before the partition goes on."""
        return None if self.paused_by is not None else self.error

    @property
    def stopped_by(self) -> TolerantClientError | None:
        """What ended the copying of the partition; None while it goes on, or waits."""
        return None if self.is_paused else self.error

    def done_only(self) -> Progress:
        """What was done, and nothing of how the partition stands."""
        return self._replace(is_paused=False, error=None, is_placed=False, wait=None)
