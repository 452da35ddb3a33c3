"""SIGTERM and SIGINT ask a mirror to stop; a second one ends it at once.

A mirror that is already ending keeps its exit code: at exit the signals are set to be ignored, because finalization
removes Python's signal handlers but not that (Py_FinalizeEx, _PySignal_Fini).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time

_SAME_S = 1.0  # two signals closer than this are one sent twice: timeout(1) signals a process and its group
FORCED = 130  # exit code after a second signal


class StopSignal(threading.Event):
    """Whether a signal has asked for a stop; `number` is that signal, 0 before."""

    number = 0

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ended, as shells report it."""
        return 128 + self.number


def stop_signals() -> StopSignal:
    """Set by the first SIGTERM or SIGINT; the second one ends the process at once with exit code 130."""
    stopping = StopSignal()
    asked_at = 0.0

    def ask(number: int, frame: object) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if not stopping.is_set():
            asked_at, stopping.number = now, number
        elif now - asked_at > _SAME_S:
            os._exit(FORCED)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
        atexit.register(signal.signal, number, signal.SIG_IGN)
    return stopping
