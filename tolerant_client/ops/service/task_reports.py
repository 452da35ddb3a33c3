"""How the processes of a mirror on the driver's host report to each other, in files of the mirror's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from tolerant_client.ops.service.link_state import TaskReport

_REPORTS = msgspec.msgpack.Decoder(TaskReport)


class ReportFile:
    """A TaskReport in a file; it is read again only after it was replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._report = TaskReport()

    def read(self) -> TaskReport:
        """The last report written; an empty one before that."""
        try:
            stat = self._path.stat()
            if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
                self._report, self._seen = _REPORTS.decode(self._path.read_bytes()), seen
        except FileNotFoundError:
            pass
        return self._report

    def write(self, report: TaskReport) -> None:
        """Replaces the file atomically: a reader finds the whole new report or the whole old one."""
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_bytes(msgspec.msgpack.encode(report))
        beside.replace(self._path)


class RunReport:
    """The reports in a mirror's folder: what is `done` up to its last micro-batch, and what its planner keeps `waiting`."""

    def __init__(self, folder: Path) -> None:
        self.done = ReportFile(folder / "tolerant-mirror-report")
        self.waiting = ReportFile(folder / "tolerant-mirror-waiting")

    def read(self) -> TaskReport:
        done, left_out = self.done.read(), self.waiting.read()
        blocked, waiting = {**left_out.blocked, **done.blocked}, {**left_out.waiting, **done.waiting}
        if not (left_out.blocked or left_out.waiting or left_out.made_again):
            return done
        return replace(done, blocked=blocked, waiting=waiting, made_again=left_out.made_again)
