"""The mirror as a Spark streaming query of ranges.

Spark plans, schedules, retries and shows; the records go from source to target
inside the Python workers.  The target's log is the only state, so the
checkpoint is a temporary one and every start is a clean start.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkRuntimeError, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_integration.mirror.head_start import HeadStart
from spark_integration.mirror.spark_traffic import SETTINGS, holds_secret, traffic_settings
from spark_integration.source import TolerantKafkaDataSource
from tolerant_client.errors import TolerantClientError, error_named
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.ops.printing import echo
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.mirror_settings import prepare as prepare_settings
from tolerant_client.ops.service.run_claim import RunClaim
from tolerant_client.ops.service.task_reports import RunReport

# A failed task is cheap to retry: it resumes from the target's log.
_TASK_ATTEMPTS = 8
# The JVM only plans here: a fast start matters more than peak speed.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"
# The errors of a session whose JVM has ended or does not start.
SPARK_GONE = (Py4JError, PySparkRuntimeError, ConnectionError)
_ALONE_S = 2.0  # how long a copy up to the ends of its start runs before Spark is started, too
_END_S = 5.0  # for the micro-batch of about a second that it may have to finish
_LOOK_S: Final = 0.5  # while Spark starts
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_T = TypeVar("_T")


def prepare(settings: MirrorSettings, claim: RunClaim, is_stopping: Callable[[], bool]) -> PreparedLink:
    """As mirror_settings.prepare, before Spark is started; raises OptionError if Spark would expose passwords."""
    if _is_submitted():
        submitted_traffic([settings.source, settings.target])
    return prepare_settings(settings, claim, is_stopping)


def spark_session(
    tasks: int, *properties: Mapping[str, str], goes_on: Callable[[], bool] = lambda: True
) -> SparkSession | None:
    """The session of spark-submit, or else a local one with a thread for each task; it will hold these client properties.

    Returns None if `goes_on` ended the wait.  Raises OptionError if the session would expose the properties' passwords.
    """
    builder = SparkSession.builder.appName("tolerant-kafka mirror")
    if _is_submitted():
        settings, warning = submitted_traffic(properties)
        builder = builder.config(map={**settings})
        if warning is not None:
            echo(f"tolerant-kafka: warning: {warning}", err=True)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            builder.master(f"local[{tasks},{_TASK_ATTEMPTS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.extraJavaOptions", f"{_SHORT_LIVED} -Dlog4j2.configurationFile={_LOG_SETTINGS}")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "512m")
            .config("spark.python.authenticate.socketTimeout", "120s")  # 15 s are too few on a busy machine
            .config(map={**SETTINGS})
        )
    session = _awaited(builder.getOrCreate, goes_on)
    server: Any = None if session is None else session.sparkContext._accumulatorServer
    if server is not None:
        # It would print a traceback when the JVM ends first; we use no accumulators.
        server.handle_error = lambda *_: None
    return session


def _awaited(start: Callable[[], _T], goes_on: Callable[[], bool]) -> _T | None:
    """The result of `start`, run in a thread; if `goes_on` is false or raises first, kills its processes and returns None."""
    started: Future[_T] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)

    # In the main thread pyspark would handle SIGINT and raise anywhere.  A daemon: nobody waits for a JVM that hangs.
    thread = threading.Thread(target=run, name="spark-start", daemon=True)
    thread.start()
    try:
        while not wait([started], _LOOK_S).done:
            if not goes_on():
                return None
        thread.join()
        return started.result()
    finally:
        if not started.done():
            _kill_started_by(thread)


def _kill_started_by(thread: threading.Thread) -> None:
    """Kills the processes that a thread has started, and their own, if /proc lists them; a JVM ends anyway once we are gone."""
    tasks, found = [Path(f"/proc/self/task/{thread.native_id}")], []
    for task in tasks:  # the list grows meanwhile
        with contextlib.suppress(OSError):  # it has ended, or there is no /proc
            for pid in map(int, (task / "children").read_text().split()):
                # Stopped, it starts nothing more; killed now, its own processes could no longer be found.
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
                tasks += Path(f"/proc/{pid}/task").iterdir()
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit, whose session has its own settings


def submitted_traffic(properties: Iterable[Mapping[str, str]]) -> tuple[dict[str, str], str | None]:
    """The settings to add to spark-submit's session before it begins, and a warning; raises OptionError."""
    SparkContext._ensure_initialized()  # spark-submit's settings are in its JVM; a session would already use them
    return traffic_settings(dict(SparkConf().getAll()), has_secret=any(map(holds_secret, properties)))


def start(settings: MirrorSettings, link: PreparedLink, session: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Starts the streaming query of a prepared link; its checkpoint folder also holds the RunReport."""
    session.dataSource.register(TolerantKafkaDataSource)
    # Makes it this thread's session, in which Spark looks its data sources up.
    session.createDataFrame([], "nothing INT")
    job = MirrorJob(settings, link.producer_id, str(checkpoint), link.generation)
    ranges = session.readStream.format("tolerantkafka").options(**job.options).load()
    # Within one stage Spark has one Python worker read the rows and another one write them, and swaps their roles with each
    # micro-batch: then both would have a copier for every partition.  After the repartition each task gets one row.
    ranges = ranges.repartition(settings.tasks)
    writer = (
        ranges.writeStream.format("tolerantkafka")
        .option("checkpointLocation", f"file://{checkpoint}")  # not in the cluster's default file system
        .options(**job.options)
        .queryName(f"tolerant-mirror-{settings.link}")
    )
    writer = writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime="0 seconds")
    query: StreamingQuery = writer.start()
    return query


def run(
    settings: MirrorSettings,
    link: PreparedLink,
    is_stopping: Callable[[], bool],
    tell: Callable[[TaskReport], None] = lambda report: None,
    *,
    claim: RunClaim,
) -> bool:
    """Runs the mirror until it is done (`once`) or `is_stopping`; returns whether it ended by itself.

    Until Spark's tasks copy, this process does (head_start.py); Spark is not started for a copy that finishes sooner.
    `tell` gets the report once a second and at the end; while Spark starts, only if something does not move.
    Raises the error that stopped a partition, as its copier raised it, and TolerantClientError if Spark cannot be
    started or its JVM ends.
    """
    if is_stopping():
        return False
    with tempfile.TemporaryDirectory(prefix="tolerant-mirror-", ignore_cleanup_errors=True) as folder:
        head_start = HeadStart(settings, link, Path(folder) / "head-start")
        try:
            is_done = _run(settings, link, head_start, Path(folder), is_stopping, tell, claim)
        except SPARK_GONE as error:
            if not is_stopping():
                raise spark_gone(error) from error
            is_done = False  # a signal to the process group has ended the JVM, too
        if head_start.error is not None:
            raise head_start.error  # the stop came before anybody had seen it
        return is_done


def spark_gone(error: Exception) -> TolerantClientError:
    """The meaning of an error of SPARK_GONE, in one sentence."""
    return TolerantClientError(
        f"Spark could not be started, or its JVM has ended ({type(error).__name__}: {_first_line(error)}); its output is above;"
        " start the mirror again"
    )


def _run(
    settings: MirrorSettings,
    link: PreparedLink,
    head_start: HeadStart,
    folder: Path,
    is_stopping: Callable[[], bool],
    tell: Callable[[TaskReport], None],
    claim: RunClaim,
) -> bool:
    report = RunReport(folder)
    session: SparkSession | None = None
    query: StreamingQuery | None = None
    is_stopped = False

    def goes_on() -> bool:
        """Tells the current report; returns whether Spark is (still) needed.  Raises the error that ends the run."""
        told = head_start.told(None if query is None else report.read())
        claim.tell(told)
        shown = claim.besides(told)
        if query is not None or shown.paused or shown.blocked or shown.waiting:
            tell(shown)  # not sooner: it shows the bars, and output of the JVM would disturb them
        claim.require_held()
        if head_start.error is not None:
            raise head_start.error
        return not (is_stopping() or query is None and head_start.is_complete)

    try:
        if not _is_submitted():
            head_start.start()
            head_start.join(_ALONE_S if settings.once else 0)
        if goes_on():
            session = spark_session(settings.tasks, settings.source, settings.target, goes_on=goes_on)
        if session is not None and goes_on():
            query = _awaited(partial(start, settings, link, session, folder), goes_on)
        if query is None:
            return head_start.is_complete
        try:
            while not query.awaitTermination(1):
                if not goes_on():
                    is_stopped = True
                    head_start.stopped.set()
                    claim.end()  # before Spark kills the Python workers, which have claims to release
                    query.stop()
        except StreamingQueryException as error:
            raise original_error(str(error)) from error
        return not is_stopped
    finally:
        head_start.stopped.set()
        claim.end()  # before Spark takes seconds to stop
        if head_start.is_alive():
            head_start.join(_END_S)  # it has released what it held, and reports what it did
        tell(head_start.told(None if query is None else report.read()))
        if session is not None:
            with contextlib.suppress(*SPARK_GONE):  # the JVM is gone, and its error was raised
                session.stop()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(".")


def original_error(text: str) -> TolerantClientError:
    """The error of ours inside a Spark failure, without its stack traces."""
    for kind, message in re.findall(r"tolerant_client\.errors\.(\w+): (?:\w+: )?([^\n]+)", text):
        if (cls := error_named(kind)) is not None:
            return cls(message)
    last_lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]+(Error|Exception)\b", line)]
    return TolerantClientError(
        f"The Spark job failed: {last_lines[-1] if last_lines else ' '.join(text.split())[:300]}"
    )
