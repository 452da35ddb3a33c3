"""What a state that was read means for its partition.  Pure."""

from __future__ import annotations

from tolerant_client.cluster.admin.offsets import Unreplicated, Untold
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import AppendRules, AppendState
from tolerant_client.mirror.batches.losses import LedgerRow, Loss, LossReason
from tolerant_client.mirror.engine.identical.difference import AheadOfSource, OpenTransaction
from tolerant_client.mirror.engine.identical.partition import PartitionCopy
from tolerant_client.mirror.engine.identical.resume_point import Found, LogStart

_AHEAD_S = 1.0  # between two reads while the source catches up with what the target keeps
_REPLICATED_S = 0.05  # between two reads while the target's replicas catch up or a transaction ends, at first
_UNREAD_S = 0.02


def placed(
    copy: PartitionCopy, found: Found | None, rules: AppendRules, link: str, now: float, now_ms: int
) -> LogStart | Loss | None:
    """Applies what was read to a partition that is syncing; returns what must be done before it can be copied.

    Otherwise its phase shows the result: it copies, is paused, or is in trouble.  `now_ms` is the time of day.
    """
    if isinstance(found, (Loss, TargetDivergedError)) and copy.misplaced is not None:
        found = copy.misplaced
    elif isinstance(found, AppendState) and copy.is_too_large(found.log_end, rules):
        found = _oversized(copy, found, link, now_ms)
    if found is None:
        copy.trouble(
            "the ends of both logs could not be read, or changed meanwhile (may the mirror Read the target's topic?)",
            now,
        )
        copy.not_before = max(copy.not_before, now + _UNREAD_S)
    elif isinstance(found, (Unreplicated, Untold, OpenTransaction)):
        copy.trouble(str(found), now)
        copy.not_before = max(copy.not_before, now + _REPLICATED_S)
    elif isinstance(found, TolerantClientError):
        copy.doubt(found, now)
    elif isinstance(found, AheadOfSource):
        copy.wait(found.state.log_end, now, now + _AHEAD_S)
    elif isinstance(found, (LogStart, Loss)):
        return found
    else:
        copy.resume(found, rules, now)
    return None


def _oversized(copy: PartitionCopy, state: AppendState, link: str, now_ms: int) -> Loss:
    error = copy.too_large
    assert error is not None
    topic, index = copy.partition
    row = LedgerRow(now_ms, link, topic, index, error.offset, error.offset + 1, LossReason.OVERSIZED, error.finding)
    return Loss(row, error, state, state.log_end)
