"""Runs links in one process until it is stopped: one Spark session, and for each link a streaming query and duty threads.

Laws:
- A link that fails, for whatever reason, is started again (`restarts.py`), and never affects another link.
- No dead task in a living process: a query that ended or finishes no micro-batch is started again, and if Spark itself
  is dead the process ends with an error, so that systemd or Kubernetes starts it again.
- A stop stops everything and waits for no copy: the target's log is the only position that counts.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_integration.mirror import mirror_job
from tolerant_client.errors import LinkPromotedError, TolerantClientError
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.service.clusters import connected
from tolerant_client.ops.service.duties import Duty, DutyThread, lanes
from tolerant_client.ops.service.link_events import LinkEvent, Tell, sentence, tell_duty
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorSettings, run_claim
from tolerant_client.ops.service.restarts import LinkLife, RestartPolicy, Step
from tolerant_client.ops.service.run_claim import RunClaim
from tolerant_client.ops.service.task_reports import RunReport

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
_STOP_S = 6.0  # for all links together
_SPARK_STOP_S = 2.0  # then it is killed: a stop takes at most 10 s
_SPARK_SILENT_S = 60.0  # a JVM that does not respond for so long is dead
_PAUSE_S = 5.0  # between two checks, which take _LOOK_S: this process was frozen, and could not hear a response


@dataclass(frozen=True)
class SupervisedLink:
    """A link and its duties."""

    settings: MirrorSettings
    duties: tuple[Duty, ...] = ()
    aliases: tuple[str, str] = ("source", "target")


class LinkJob(Protocol):
    """A link that can be started any number of times.

    `is_repeating` says whether its last micro-batch ended with an error that a retry may cure.
    """

    @property
    def is_repeating(self) -> bool: ...

    def start(self) -> None:
        """Starts it; nothing of an earlier start is left."""

    def look(self) -> int | None:
        """The last finished micro-batch, None before the first; raises the error that ended the query."""

    def stop(self) -> None:
        """Ends what start began, if it still runs; raises StuckError if it does not end soon."""

    def close(self) -> None:
        """Ends what continues between two starts; called before `stop`, because tasks that Spark kills release nothing."""


class StuckError(TolerantClientError):
    """Spark does not end a query; if that lasts, only another process can continue."""


class SparkLink:
    """A link as a streaming query of `session`, and its duties; each start has a temporary folder as its checkpoint."""

    def __init__(
        self, link: SupervisedLink, session: SparkSession, tell: Tell, is_stopping: Callable[[], bool]
    ) -> None:
        self._settings = link.settings
        self._is_stopping = is_stopping
        self._wanted = link.duties
        self._session = session
        self._tell = tell
        self._query: StreamingQuery | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._report: RunReport | None = None
        self._duties: list[DutyThread] = []
        # From the first start on: partitions that an earlier query holds are handed over.
        self._claim: RunClaim | None = None
        self._told = TaskReport()
        self._ends: frozenset[TopicPartition] = frozenset()
        self._unplaced: frozenset[TopicPartition] = frozenset()  # nobody has checked yet whether these are copies

    def start(self) -> None:
        self.stop()
        if self._claim is None:
            self._claim = run_claim(self._settings)
        prepared = mirror_job.prepare(self._settings, self._claim, self._is_stopping)
        link = self._settings.link
        self._ends = frozenset(prepared.ends)
        self._folder = tempfile.TemporaryDirectory(prefix=f"tolerant-mirror-{link}-", ignore_cleanup_errors=True)
        self._report = RunReport(Path(self._folder.name))
        self._query = mirror_job.start(self._settings, prepared, self._session, Path(self._folder.name))
        self._tell(LinkEvent(link, "started", _started(prepared), prepared))

    @property
    def is_repeating(self) -> bool:
        return self._told.is_repeating

    def look(self) -> int | None:
        assert self._query is not None and self._claim is not None
        self._claim.require_held()
        progress = self._query.lastProgress  # read before the report, which then includes that micro-batch
        self._tell_report()
        if not self._query.isActive:
            error = self._query.exception()
            if error is None:
                raise TolerantClientError("The query has ended by itself")
            raise mirror_job.original_error(str(error)) from error
        if progress is None:
            return None
        self._see_to_duties()
        return int(progress["batchId"])

    def stop(self) -> None:
        if self._query is not None:
            try:
                self._query.stop()
            except Exception as error:  # Spark's and py4j's errors have no common base
                if _is_active(self._query):
                    raise StuckError(f"Spark has not ended the query within {_STOP_S:.0f} s") from error
        self._query = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def close(self) -> None:
        for thread in self._duties:
            thread.stop()
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        for thread in self._duties:
            thread.close()
        self._duties = []

    def _see_to_duties(self) -> None:
        """Starts the duties after the first micro-batch; they leave out partitions not yet known to be copies."""
        stopped = self._unplaced | self._told.blocked.keys()
        for thread in self._duties:
            thread.stopped = stopped
        if not self._duties:
            settings = self._settings
            connect = functools.partial(connected, settings.source, settings.target, settings.names)
            tell = tell_duty(settings.link, self._tell)
            self._duties = [DutyThread(settings.link, lane, connect, tell, stopped) for lane in lanes(self._wanted)]

    def _tell_report(self) -> None:
        assert self._report is not None
        report = self._report.read()
        if not report.time_ms or report.is_repeating:  # until a micro-batch has seen all, what was found before lasts
            report = report.besides(self._told)
        self._unplaced = self._ends - report.acked.keys()
        self._told = report
        if self._claim is not None:
            self._claim.tell(report)
            report = self._claim.besides(report)
        self._tell(LinkEvent(self._settings.link, "report", "", report))


class LinkThread:
    """Keeps one link running until `stop` is set; `stuck` says why that is no longer possible."""

    def __init__(
        self,
        name: str,
        job: LinkJob,
        tell: Tell,
        stop: threading.Event,
        policy: RestartPolicy,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.name = name
        self.stuck: StuckError | None = None
        self._job = job
        self._tell = tell
        self._stop = stop
        self._is_stopping = is_stopping
        self._life = LinkLife(policy)
        self._policy = policy
        self._stuck_at: float | None = None
        self._told = ""
        self._ending = threading.Lock()
        self._is_end_told = False
        self._thread = threading.Thread(target=self._run, name=f"link-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Returns whether the thread has ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and self.stuck is None:
                self.step(time.monotonic())
                self._stop.wait(_LOOK_S)
            self._job.close()
            self._end(time.monotonic())
        except Exception as error:  # a thread that ends unexpectedly must be noticed
            _log.exception("Link %s", self.name)
            self.stuck = StuckError(f"Its thread has ended: {sentence(error)}")
        self.tell_end()

    def tell_end(self) -> None:
        """Tells once how the link has ended; a stop does not wait for a thread whose cluster does not respond."""
        with self._ending:
            is_told, self._is_end_told = self._is_end_told, True
        if is_told:
            return
        if self.stuck is None:
            self._tell(LinkEvent(self.name, "stopped", "stopped"))
        else:
            self._tell(LinkEvent(self.name, "dead", f"can only resume in another process: {sentence(self.stuck)}"))

    def step(self, now: float) -> None:
        """Does what is due; an error concerns this link only."""
        try:
            match self._life.step(now):
                case Step.START:
                    began = time.monotonic()
                    self._job.start()
                    self._life.started(now + time.monotonic() - began)
                case Step.LOOK:
                    self._life.looked(now, self._job.look(), self._job.is_repeating)
                case Step.TAKE_DOWN:
                    raise TolerantClientError(
                        "No micro-batch has ended for too long; if that happens again, make sure that Spark has a core for"
                        " every task of every link"
                    )
                case Step.WAIT:
                    pass
        except LinkPromotedError as error:
            self._job.close()
            self._end(now)
            self._life.promoted(now)
            if self._told != str(error):
                self._tell(LinkEvent(self.name, "promoted", f"not started: {sentence(error)}"))
            self._told = str(error)
        except Exception as error:  # the law: a link that fails is started again
            # The signal may have ended Spark's JVM, too: errors caused by that are not reported.
            if self._is_stopping():
                return
            if not isinstance(error, (KafkaError, PySparkException, OSError, ValueError)):
                _log.exception("Link %s", self.name)
            self._end(now)
            wait_s = self._life.failed(now, random.random())
            self._told = ""
            text = f"failed, and is started again in {wait_s:.0f} s: {sentence(error)}"
            self._tell(LinkEvent(self.name, "failed", text, error))

    def _end(self, now: float) -> None:
        try:
            self._job.stop()
            self._stuck_at = None
        except StuckError as error:
            self._stuck_at = now if self._stuck_at is None else self._stuck_at
            if now - self._stuck_at > self._policy.stalled_s:
                self.stuck = error


class SparkPulse:
    """Asks Spark once a second whether it lives, in a thread, because a request to a dead JVM may never return.

    Silence counts only while this process runs: after a pause of its own (a frozen process, a snapshot of its machine) it
    counts anew.
    """

    def __init__(self, session: SparkSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = session.sparkContext
        self._clock = clock
        self._beat_at = self._checked_at = clock()
        self._problem = ""
        threading.Thread(target=self._run, name="spark-pulse", daemon=True).start()

    def death(self, now: float) -> str:
        """Why Spark is dead, or ""; call it every _LOOK_S."""
        if now - self._checked_at > _PAUSE_S:
            self._beat_at = now
        self._checked_at = now
        if not self._problem and now - self._beat_at > _SPARK_SILENT_S:
            self._problem = f"its JVM has not responded for {now - self._beat_at:.0f} s"
        return self._problem

    def _run(self) -> None:
        while not self._problem:
            try:
                if self._context._jsc.sc().isStopped():
                    self._problem = "its application was ended"
                self._beat_at = self._clock()
            except Exception as error:  # py4j's errors have no common base
                self._problem = f"its JVM is gone ({type(error).__name__})"
            time.sleep(1)

    def kill(self) -> None:
        """Kills the JVM if it is ours; under spark-submit it is our parent, and ends with us."""
        process = getattr(self._context._gateway, "proc", None)
        if process is not None:
            process.kill()


def run_links(
    links: Sequence[SupervisedLink],
    *,
    is_stopping: Callable[[], bool],
    tell: Tell,
    policy: RestartPolicy = RestartPolicy(),
) -> None:
    """Runs links until `is_stopping`, each by itself; a stop takes 10 s at most.

    `tell` gets the events, from several threads.
    Raises TolerantClientError if Spark died, or does not start: only another process can continue.
    """
    properties = [each for link in links for each in (link.settings.source, link.settings.target)]
    if is_stopping():
        return
    try:
        tasks = sum(link.settings.tasks for link in links)
        session = mirror_job.spark_session(tasks, *properties, goes_on=lambda: not is_stopping())
        if session is None:
            return
        session.conf.set("spark.sql.streaming.stopTimeout", f"{_STOP_S:.0f}s")
    except mirror_job.SPARK_GONE as error:
        if is_stopping():
            return  # a signal to the process group has ended the JVM, too
        raise mirror_job.spark_gone(error) from error
    if is_stopping():
        session.stop()
        return
    pulse = SparkPulse(session)
    stop = threading.Event()
    threads = [
        LinkThread(link.settings.link, SparkLink(link, session, tell, is_stopping), tell, stop, policy, is_stopping)
        for link in links
    ]
    for thread in threads:
        thread.start()
    death = ""
    try:
        while not death and not is_stopping():
            time.sleep(_LOOK_S)
            stuck = [f"link {thread.name}: {thread.stuck}" for thread in threads if thread.stuck is not None]
            death = pulse.death(time.monotonic()) or "; ".join(stuck)
    finally:
        stop.set()
        deadline = time.monotonic() + (0.5 if death else _STOP_S)
        is_clean = all([thread.join(max(0.0, deadline - time.monotonic())) for thread in threads])
        if not death and not (is_clean and _ends(session.stop, _SPARK_STOP_S)):
            _log.info("Spark did not stop in time and is killed; nothing is lost, the target's log has the position")
            pulse.kill()
            for thread in threads:
                thread.tell_end()
    if death:
        pulse.kill()
        raise TolerantClientError(f"Spark died: {death}; the process ends, so that its service manager starts it again")


def _ends(function: Callable[[], object], timeout_s: float) -> bool:
    def end() -> None:
        with contextlib.suppress(Exception):  # the JVM is already gone; py4j's errors have no common base
            function()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _started(link: PreparedLink) -> str:
    topics = {partition.topic for partition in link.ends}
    created = f", {len(link.created)} of them created" if link.created else ""
    warnings = "".join(f"; warning: {warning}" for warning in link.warnings)
    return f"copying {counted(len(topics), 'topic')} with {counted(len(link.ends), 'partition')}{created}{warnings}"


def _is_active(query: StreamingQuery) -> bool:
    try:
        return bool(query.isActive)
    except Exception:  # a dead JVM runs no query
        return False
