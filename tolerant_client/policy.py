"""How far recovery may go, as one immutable value.

The defaults recover within a round trip or two, never send a plain Produce
again, and give a connection up that is wrong all the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tolerant_client.errors import OptionError


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What a connection does about answers that are missing, late or wrong."""

    reorder_grace_ms: float = 100.0
    """How long an older answer may come after a later one before it counts as lost."""

    max_reorder_grace_ms: float = 1_000.0
    """The grace grows to twice the worst lateness seen on a connection, up to this."""

    probe_min_ms: float = 50.0
    """The smallest silence, beyond what a request may rightly take, before a probe is sent."""

    probe_max_ms: float = 5_000.0
    """The largest such silence, however slow the round trips were."""

    max_resends: int = 8
    """How often one request is sent again before it fails; nothing is sent again after its deadline."""

    resend_plain_produce: bool = False
    """Send a Produce without producer id again when its answer is lost: may double records."""

    max_mismatches: int = 64
    """Lost answers and orphans within `mismatch_window_ms` that a connection survives."""

    mismatch_window_ms: float = 30_000.0
    """The window of `max_mismatches`."""

    def __post_init__(self) -> None:
        for name in ("reorder_grace_ms", "probe_min_ms", "max_resends", "max_mismatches", "mismatch_window_ms"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.probe_max_ms < self.probe_min_ms:
            raise OptionError(f"probe_max_ms ({self.probe_max_ms}) is below probe_min_ms ({self.probe_min_ms})")
