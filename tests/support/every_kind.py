"""Every kind of fault at once, for a copy that has to survive all of them."""

from __future__ import annotations

from typing import Final

from tolerant_client.testing import (
    Corrupt,
    Drop,
    Duplicate,
    ErrorCode,
    Fault,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Stall,
    Truncate,
)

_WHOLE: Final = (Drop, Duplicate, Reorder, RewriteCorrelationId, Stale, Truncate, Reset)
_NOT_LEADER: Final = 6


def every_kind(probability: float) -> tuple[Fault, ...]:
    """The kinds share the probability.  Offsets and metadata have no checksum, so bytes are changed only where there is one."""
    each = probability / (len(_WHOLE) + 3)
    return (
        *(kind(probability=each) for kind in _WHOLE),  # type: ignore[operator]
        Corrupt(api="Fetch", probability=each),
        Stall(0.2, probability=each),
        ErrorCode(_NOT_LEADER, probability=each),
    )
