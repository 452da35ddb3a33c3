"""The mirror as a Spark streaming query of ranges.

Spark plans, schedules, retries and shows; the records go from source to target
inside the Python workers.  The target's log is the only state, so the
checkpoint is a temporary one and a start is always a clean start.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_integration.mirroring.ranges import read_paused
from spark_integration.security.kafka_config import kafka_python_config
from spark_integration.source import TolerantKafkaDataSource
from tolerant_client import errors
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.losses import MirrorPolicy
from tolerant_client.mirror.sync import PreparedLink, prepare_link
from tolerant_client.mirror.translated.copier import prepare_translated_link
from tolerant_client.raw import RawCluster

NO_PRODUCER_ID = -1

# A failed task is cheap to repeat: it goes on from the target's log.
_TASK_ATTEMPTS = 8
# The JVM only plans here: starting soon is worth more to it than peak speed.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PAUSED = "tolerant-mirror-paused.json"  # what commits on the driver tell this process
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True)
class MirrorSettings:
    """A link: Java client properties of both clusters (without prefix), and how to copy.

    `once` ends the mirror at the log ends seen at its start.  In tail mode each
    micro-batch copies for `hold_ms`, and for `lease_ms` more while Spark plans
    the next one.  `offsets` is identical or translated.
    """

    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    topics: str
    link: str = "default"
    once: bool = False
    tasks: int = 1
    hold_ms: int = 10_000
    lease_ms: int = 30_000
    policy: MirrorPolicy = MirrorPolicy()
    offsets: str = "identical"


def prepare(settings: MirrorSettings) -> PreparedLink:
    """Checks the link and creates missing topics, before Spark is started.

    Raises the errors of prepare_link and prepare_translated_link.
    """
    with RawCluster(kafka_python_config(settings.source), name="source") as source:
        target = RawCluster(kafka_python_config(settings.target), source.net, name="target")
        try:
            if settings.offsets == "identical":
                return source.run(prepare_link, source, target, settings.topics, settings.link, settings.policy)
            translated = source.run(prepare_translated_link, source, target, settings.topics, settings.link)
            return PreparedLink(NO_PRODUCER_ID, translated.created, translated.ends)
        finally:
            target.close()


def spark_session(tasks: int) -> SparkSession:
    """The session of spark-submit, or else a local one with a thread for each task."""
    builder = SparkSession.builder.appName("tolerant-kafka mirror")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # set by spark-submit, with the session's own settings
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
        )
    session: SparkSession = builder.getOrCreate()
    return session


def start(settings: MirrorSettings, link: PreparedLink, session: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Starts the streaming query of a prepared link; its checkpoint is to hold `_PAUSED` too."""
    session.dataSource.register(TolerantKafkaDataSource)
    source = {f"kafka.{key}": value for key, value in settings.source.items()}
    target = {f"kafka.{key}": value for key, value in settings.target.items()}
    ranges = (
        session.readStream.format("tolerantkafka")
        .option("payload", "ranges")
        .option("subscribePattern", settings.topics)
        .option("tasks", settings.tasks)
        .option("tail", not settings.once)
        .options(**source, **{f"target.{key}": value for key, value in target.items()})
        .load()
    )
    writer = (
        ranges.writeStream.format("tolerantkafka")
        .option("payload", "ranges")
        .option("link", settings.link)
        .option("offsets", settings.offsets)
        .option("producerId", link.producer_id)
        .option("policy", settings.policy.to_json())
        .option("holdMs", 0 if settings.once else settings.hold_ms)
        .option("leaseMs", 0 if settings.once else settings.lease_ms)
        .option("report", str(checkpoint / _PAUSED))
        .option("checkpointLocation", str(checkpoint))
        .options(**target, **{f"source.{key}": value for key, value in source.items()})
        .queryName(f"tolerant-mirror-{settings.link}")
    )
    writer = writer.trigger(availableNow=True) if settings.once else writer.trigger(processingTime="0 seconds")
    query: StreamingQuery = writer.start()
    return query


def run(
    settings: MirrorSettings,
    link: PreparedLink,
    is_stopping: Callable[[], bool] = lambda: False,
    tell_paused: Callable[[Mapping[TopicPartition, str]], None] = lambda paused: None,
) -> None:
    """Runs the mirror until it is done (`once`) or `is_stopping`.

    `tell_paused` gets once a second, and at the end, the partitions that are paused with the reasons.
    Raises the error that stopped a partition, as the executor raised it.
    """
    session = spark_session(settings.tasks)
    try:
        with tempfile.TemporaryDirectory(prefix="tolerant-mirror-", ignore_cleanup_errors=True) as folder:
            query = start(settings, link, session, Path(folder))
            try:
                while not query.awaitTermination(1):
                    tell_paused(read_paused(Path(folder, _PAUSED)))
                    if is_stopping():
                        query.stop()
            except StreamingQueryException as error:
                raise original_error(str(error)) from error
            finally:
                tell_paused(read_paused(Path(folder, _PAUSED)))
    finally:
        session.stop()


def original_error(text: str) -> TolerantClientError:
    """The error of ours that a Spark failure tells of; its stack traces are left out."""
    for kind, message in re.findall(r"tolerant_client\.errors\.(\w+): (?:\w+: )?([^\n]+)", text):
        cls = getattr(errors, kind, None)
        if isinstance(cls, type) and issubclass(cls, TolerantClientError):
            error: TolerantClientError = cls(message)
            return error
    last_lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]+(Error|Exception)\b", line)]
    return TolerantClientError(f"The Spark job failed: {last_lines[-1] if last_lines else text[:300]}")
