"""A mirror's service as a test runs it: a process, what it tells, and waiting for what it does."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.spark_processes import Process


def wait_for(condition: Callable[[], bool], patience_s: float = 240) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


class Service(Process):
    """support.mirror_service with links, or with a MirrorMaker 2 file; a context manager."""

    def __init__(self, folder: Path, *links: dict[str, Any] | Path) -> None:
        self._events: list[dict[str, str]] = []
        tests = str(Path(__file__).resolve().parents[1])
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))}
        log = folder / f"service-{secrets.token_hex(2)}.log"
        given = str(links[0]) if isinstance(links[0], Path) else json.dumps(links)
        command = [sys.executable, "-m", "support.mirror_service", given]
        super().__init__(command, log, environment, is_spoken_with=True)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def event(self, kind: str, link: str) -> str:
        """Waits for the next event of this kind and link, and returns its text."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            for told in self._events:
                if (told["kind"], told["link"]) == (kind, link):
                    self._events.remove(told)
                    return told["text"]
            self._events.append(json.loads(self.line()))
        raise AssertionError(f"no {kind} of {link} among {self._events}")

    def stop(self) -> float:
        """Seconds that a clean stop took."""
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(60) == 0
        return time.monotonic() - began
