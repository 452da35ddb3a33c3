"""One timer on kafka-python's event loop, for whoever has several things to see to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tolerant_client.tracker.lifecycle import NEVER


class Alarm:
    """Calls `ring` once, at the earliest time that was asked for; times are those of time.monotonic(), in seconds."""

    def __init__(self, net: Any, ring: Callable[[], None]) -> None:
        self._net = net
        self._ring = ring
        self._at = NEVER
        self._timer: Any = None

    def set(self, at: float) -> None:
        """Rings at `at`, or before if that was asked for before; on the event loop only."""
        if at < self._at:
            self.stop()
            self._at, self._timer = at, self._net.call_at(at, self._rung)

    def stop(self) -> None:
        """Forgets what was asked for."""
        timer, self._timer, self._at = self._timer, None, NEVER
        if timer is not None:
            with contextlib.suppress(ValueError, RuntimeError):  # the loop is closed
                self._net.cancel(timer)

    def _rung(self) -> None:
        self._timer, self._at = None, NEVER
        self._ring()
