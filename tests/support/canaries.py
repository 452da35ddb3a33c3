"""Listens to every log line at every level, and looks for canaries: values that must not be in any."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Iterator

from tolerant_client.tracker.events import Event

TRACE = 1


class Listener(logging.Handler):
    """Every line as it would be printed, tracebacks included; `events` and `errors` too, once they are told."""

    def __init__(self) -> None:
        super().__init__(TRACE)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # Formatter writes the traceback into record.exc_text.
        self.lines += [record.getMessage(), logging.Formatter("%(message)s").format(record), repr(record.args)]

    def event(self, event: Event) -> None:
        """A recovery_listener."""
        self.lines += [str(event), repr(event)]

    def error(self, error: BaseException | None) -> None:
        """An error that a caller got, with what it was raised from."""
        while error is not None:
            self.lines += [str(error), repr(error)]
            error = error.__cause__ or error.__context__

    def seen(self, *canaries: str) -> list[str]:
        """The lines that hold a canary, in the clear or in base64."""
        wanted = [*canaries, *(base64.b64encode(canary.encode()).decode().rstrip("=") for canary in canaries)]
        return [line for line in self.lines if any(canary in line for canary in wanted)]


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    """Hears all loggers at level 1."""
    listener, root = Listener(), logging.getLogger()
    level = root.level
    root.setLevel(TRACE)
    root.addHandler(listener)
    try:
        yield listener
    finally:
        root.removeHandler(listener)
        root.setLevel(level)
