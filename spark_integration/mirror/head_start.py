"""Copies while Spark starts: the first ranges of a link, in the process of its command.

A JVM and its Python workers take seconds until their first task copies; this process can copy at once.  It does so
until Spark's tasks ask for the partitions: processes of one run hand them over (mirror/state/claims.py, law G).

Laws:
- An error that no retry cures ends the run at once: Spark need not meet it again.  After any other error here,
  Spark's tasks resume from the target's log.
- It copies what the first tasks would, in micro-batches as short as those without Spark, and writes its own report of
  each: what does not move, and which losses policies accepted, is known before Spark has started, or without it.
- It copies until all partitions are handed over, however long Spark takes, and ends with the run.
- If a copy up to the ends of its start finishes here, Spark is not needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.engine.process_copier import close_workers
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import INCURABLE_ALONE, RangesCopier, RangesPlanner
from tolerant_client.ops.service.task_reports import RunReport

# A copier checks once a second who asks for its partitions, and keeps each for at least half a second (link_copier.py).
_HOLD_MS: Final = 1_500

_log = logging.getLogger(__name__)


class HeadStart(threading.Thread):
    """Copies until Spark's tasks have taken all partitions over, or `stopped`.  A daemon: it does not delay the exit.

    `folder` is for its report.  `is_complete` once everything up to the ends of the start was copied here; `error` is an
    error that no retry cures.
    """

    def __init__(self, settings: MirrorSettings, link: PreparedLink, folder: Path) -> None:
        super().__init__(name=f"head-start-{settings.link}", daemon=True)
        folder.mkdir()
        job = MirrorJob(replace(settings, tasks=1, hold_ms=_HOLD_MS), link.producer_id, str(folder), link.generation)
        self.stopped = threading.Event()
        self.is_complete = False
        self.error: Exception | None = None
        self._is_once = settings.once
        self._report = RunReport(folder)
        self._planner, self._copier = RangesPlanner(job), RangesCopier(job)

    def run(self) -> None:
        try:
            self._planner.begin(is_final=self._is_once)
            for ranges in self._planner.tasks():
                self._copy({TopicPartition(topic, partition): end for topic, partition, end in ranges})
        except INCURABLE_ALONE as error:
            self.error = error
        except Exception as error:  # Spark's tasks retry, and report what they find
            _log.info("The copy during Spark's start has ended: %s", error)
        finally:
            self._planner.stop()
            close_workers()

    def _copy(self, until: Mapping[TopicPartition, int | None]) -> None:
        left = until
        while left and not self.stopped.is_set():
            if (repeat := self._copier.settle([self._copier.copy(left)])) is not None:
                raise repeat.error
            if self._is_once:
                told = self._report.read()
                stands = told.paused or told.blocked or told.waiting
                self.is_complete = not stands and all(told.acked.get(p, -1) >= (end or 0) for p, end in until.items())
                break
            held = self._copier.held()
            left = {p: end for p, end in left.items() if p in held}

    def told(self, spark: TaskReport | None) -> TaskReport:
        """The report of this copy plus that of Spark's tasks, which is None before their query has started.

        Until the tasks report a micro-batch, what is paused or blocked comes from both; what waits, from Spark's planner.
        """
        if spark is None:
            return self._report.read()
        here = self._report.done.read()
        if spark.time_ms:
            return replace(here.plus([spark], spark.time_ms), latest=spark.latest)
        both = spark.besides(here)
        return replace(
            here,
            paused=both.paused,
            blocked=both.blocked,
            remedies=both.remedies,
            waiting=spark.waiting,
            made_again={**here.made_again, **spark.made_again},
        )
