"""SIGTERM and SIGINT ask a mirror to stop; a second one ends it.

A mirror that is ending anyway ends with the exit code that it has: while Python takes its modules apart it would have
the handlers of signals no more, but those that are ignored stay so (Py_FinalizeEx, _PySignal_Fini).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time

_SAME_S = 1.0  # two signals closer than this are one that came twice: timeout(1) signals a process and its group
FORCED = 130  # exit code after a second signal


class StopSignal(threading.Event):
    """Whether a signal has asked for a stop; `number` is which one, 0 before."""

    number = 0

    @property
    def exit_code(self) -> int:
        """That of a process which the signal has ended, as shells tell it."""
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
