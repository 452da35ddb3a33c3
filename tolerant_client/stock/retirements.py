"""The log of retired connections: which broker of which cluster, and at most one warning a minute for each broker.

One for all clients of a process, because a mirror has many clients of one cluster, and a broker that hangs retires
connections of each of them.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

_QUIET_S: Final = 60.0
_REMEMBERED_S: Final = 600.0


class RetirementLog:
    """Used by the event loops of several threads: a race costs a line too many."""

    def __init__(self) -> None:
        # By address: when a warning was logged (s), and how many were left out since.
        self._told: dict[str, tuple[float, int]] = {}

    def tell(self, cluster: str, address: str, node: str, reason: str, now: float) -> None:
        """Logs a retired connection, as info within a minute of a warning about the same broker; `cluster` may be ""."""
        of = f" of the {cluster}" if cluster else ""
        last, left_out = self._told.get(address, (-_QUIET_S, 0))
        if now - last < _QUIET_S:
            self._told[address] = (last, left_out + 1)
            log.info("The broker at %s%s (%s): connection retired: %s", address, of, node, reason)
            return
        self._told = {each: told for each, told in list(self._told.items()) if now - told[0] < _REMEMBERED_S}
        self._told[address] = (now, 0)
        more = f" (and {left_out} more in the {now - last:.0f} s before)" if left_out else ""
        log.warning("The broker at %s%s (%s): connection retired: %s%s", address, of, node, reason, more)


RETIREMENTS: Final = RetirementLog()
