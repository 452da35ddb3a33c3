"""The mirror in the process of its command, without Spark and Java: for small links and short copies.

It uses the planner and the copier of Spark's tasks, one short micro-batch after the other: nothing is planned
during a micro-batch, and a stop waits for its end.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.engine.process_copier import close_workers
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import INCURABLE, RangesCopier, RangesPlanner
from tolerant_client.ops.service.run_claim import RunClaim
from tolerant_client.ops.service.task_reports import RunReport

_HOLD_MS: Final = 1_000
_LOOK_S: Final = 1.0
_END_S: Final = 6.0  # for the copier's end; a stop takes at most 10 s


def run(
    settings: MirrorSettings,
    link: PreparedLink,
    is_stopping: Callable[[], bool],
    tell: Callable[[TaskReport], None] = lambda report: None,
    *,
    claim: RunClaim,
) -> bool:
    """Runs the mirror until it is done (`once`) or `is_stopping`; returns whether it ended by itself.

    `tell` gets the report once a second and at the end.  Raises the error that stopped a partition.
    """
    if is_stopping():
        return False
    with tempfile.TemporaryDirectory(prefix="tolerant-mirror-", ignore_cleanup_errors=True) as folder:
        report = RunReport(Path(folder))
        here = replace(settings, tasks=1, hold_ms=_HOLD_MS)
        batches = _Batches(MirrorJob(here, link.producer_id, folder, link.generation))
        batches.start()
        is_stopped = False
        try:
            while batches.is_alive() and not is_stopped:
                batches.join(_LOOK_S)
                now = report.read()
                tell(claim.besides(now))
                claim.tell(now)
                claim.require_held()
                is_stopped = is_stopping()
        finally:
            end_by = time.monotonic() + _END_S
            batches.stopped.set()
            claim.end()  # the copier releases what it holds, and takes nothing more
            batches.join(max(0.0, end_by - time.monotonic()))
            tell(report.read())
        if batches.error is not None and (not is_stopped or isinstance(batches.error, INCURABLE)):
            raise batches.error
        return not is_stopped


class _Batches(threading.Thread):
    """The micro-batches of a link; `error` is what ended them.  A daemon: a copy that waits for brokers does not delay the exit."""

    def __init__(self, job: MirrorJob) -> None:
        super().__init__(name=f"tolerant-mirror-{job.settings.link}", daemon=True)
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self._planner, self._copier = RangesPlanner(job), RangesCopier(job)
        self._is_once = job.settings.once

    def run(self) -> None:
        try:
            self._planner.begin(is_final=self._is_once)
            while not self.stopped.is_set():
                until = [{TopicPartition(t, n): end for t, n, end in ranges} for ranges in self._planner.tasks()]
                repeat = self._copier.settle([self._copier.copy(ranges) for ranges in until])
                if repeat is not None:
                    if self.stopped.wait(repeat.pause_s):
                        raise repeat.error
                elif self._is_once:
                    break
                if not self._is_once:
                    self._planner.look()
        except Exception as error:  # the command reports errors of every kind
            self.error = error
        finally:
            self._planner.stop()
            close_workers()
