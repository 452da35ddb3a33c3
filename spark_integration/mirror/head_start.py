"""What is copied while Spark starts: the first ranges of a link, in the process of its command.

A JVM and its Python workers take seconds until their first task copies; the copier of a task is ready at once.  So it copies
here until Spark's tasks ask for the partitions: the processes of one run hand them over (mirror/state/claims.py, law G).

Laws:
- Nothing depends on it: whatever ends it, Spark's tasks go on from the target's log, and tell what they find.
- It copies what the first tasks would, and tells of it in a report of its own.
- A copy up to the ends of its start that is over here needs no Spark.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.process_copier import close_workers
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import RangesCopier, RangesPlanner
from tolerant_client.ops.service.task_reports import RunReport

_HOLD_MS: Final = 600_000  # longer than any Spark takes to start, and to come to this link

_log = logging.getLogger(__name__)


class HeadStart(threading.Thread):
    """Copies until Spark's tasks have taken all partitions over, or the run ends.  A daemon: it holds up no exit.

    `folder` is for its report.  `is_complete` once all was copied here up to the ends of the start.
    """

    def __init__(self, settings: MirrorSettings, producer_id: int, folder: Path) -> None:
        super().__init__(name=f"head-start-{settings.link}", daemon=True)
        folder.mkdir()
        job = MirrorJob(replace(settings, tasks=1, hold_ms=_HOLD_MS, lease_ms=0), producer_id, str(folder))
        self.is_complete = False
        self._is_once = settings.once
        self._report = RunReport(folder)
        self._planner, self._copier = RangesPlanner(job), RangesCopier(job)

    def run(self) -> None:
        try:
            self._planner.begin(is_final=self._is_once)
            for ranges in self._planner.tasks():
                until = {TopicPartition(topic, partition): end for topic, partition, end in ranges}
                done = self._copier.copy_held(until)
                self._copier.settle([done])
                told = self._report.read()
                stands = told.paused or told.blocked or told.waiting
                self.is_complete = (
                    self._is_once
                    and not stands
                    and all(told.acked.get(p, -1) >= (end or 0) for p, end in until.items())
                )
        except Exception as error:  # whatever it is, Spark's tasks meet it again, and tell it
            _log.info("What was copied while Spark started has ended: %s", error)
        finally:
            self._planner.stop()
            close_workers()

    def told(self, spark: TaskReport | None) -> TaskReport:
        """What was done here and then by Spark's tasks: None before their query has started.

        Until they have told of a micro-batch, what stands still is what was found here; what waits their planner knows better.
        """
        if spark is None:
            return self._report.read()
        here = self._report.done.read()
        if spark.time_ms:
            return replace(here.plus([spark], spark.time_ms), latest=spark.latest)
        return replace(
            here,
            paused={**here.paused, **spark.paused},
            blocked={**here.blocked, **spark.blocked},
            waiting=spark.waiting,
            made_again={**here.made_again, **spark.made_again},
        )
