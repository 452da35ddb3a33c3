"""What is copied while Spark starts: the first ranges of a link, in the process of its command.

A JVM and its Python workers take seconds until their first task copies; the copier of a task is ready at once.  So it copies
here until Spark's tasks ask for the partitions: the processes of one run hand them over (mirror/state/claims.py, law G).

Laws:
- What no repeat cures ends the run, whoever meets it: Spark is not waited for to meet it again.  Whatever else ends it here,
  Spark's tasks go on from the target's log.
- It copies what the first tasks would, in micro-batches as short as those without Spark, and tells of each in a
  report of its own: what stands still, and what policies accepted, is told before Spark has started, or instead.
- It goes on until all was handed over, however long Spark takes, and ends with the run.
- A copy up to the ends of its start that is over here needs no Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.process_copier import close_workers
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import INCURABLE, RangesCopier, RangesPlanner
from tolerant_client.ops.service.task_reports import RunReport

# A copier looks once a second at who asks, and hands over what it has for half a second (link_copier.py).
_HOLD_MS: Final = 1_500

_log = logging.getLogger(__name__)


class HeadStart(threading.Thread):
    """Copies until Spark's tasks have taken all partitions over, or `stopped`.  A daemon: it holds up no exit.

    `folder` is for its report.  `is_complete` once all was copied here up to the ends of the start; `error` is what it met
    that no repeat cures.
    """

    def __init__(self, settings: MirrorSettings, producer_id: int, folder: Path) -> None:
        super().__init__(name=f"head-start-{settings.link}", daemon=True)
        folder.mkdir()
        job = MirrorJob(replace(settings, tasks=1, hold_ms=_HOLD_MS), producer_id, str(folder))
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
        except INCURABLE as error:
            self.error = error
        except Exception as error:  # Spark's tasks repeat it, and tell what they find
            _log.info("What was copied while Spark started has ended: %s", error)
        finally:
            self._planner.stop()
            close_workers()

    def _copy(self, until: Mapping[TopicPartition, int | None]) -> None:
        left = until
        while left and not self.stopped.is_set():
            self._copier.settle([self._copier.copy(left)])
            if self._is_once:
                told = self._report.read()
                stands = told.paused or told.blocked or told.waiting
                self.is_complete = not stands and all(told.acked.get(p, -1) >= (end or 0) for p, end in until.items())
                break
            held = self._copier.held()
            left = {p: end for p, end in left.items() if p in held}

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
