"""What tests of several folders share.

Property tests try the same examples in every run, so that a run can be repeated; with TOLERANT_LONG=1 they try new ones.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.long import LONG
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.artifacts import ClusterStartError, spark_kafka_jars

TESTS = Path(__file__).parent
# The files that take minutes come first, so that no process is left with one when the others have nothing more to do.
ONE_SESSION = ("spark", "parity")  # Spark takes half a minute of CPU until its first queries are quick
LONGEST_FIRST = (*ONE_SESSION, "matrix", "jobs", "brokers", "faults", "fuzz")  # one file of matrix takes minutes of CPU

settings.register_profile("repeatable", derandomize=True, deadline=None)
if LONG:
    os.environ.setdefault("PYTEST_TIMEOUT", "7200")
else:
    settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end: no search for garbage looks at it, neither meanwhile nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=_place_of)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


def _place_of(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.split("/")[1]
            return "one session" if folder in ONE_SESSION else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        environment = "alone" if item.get_closest_marker("alone") else "tests"
        report.sections.append(("alone", f"tox run -e {environment} -- {shlex.quote(item.nodeid)}"))
    return report


@pytest.fixture(scope="module")
def start_cluster(kafka_cluster_factory: Callable[..., KafkaCluster]) -> Iterator[Callable[..., KafkaCluster]]:
    """As kafka_cluster_factory, for clusters that end with the module: a broker costs CPU while nobody asks it, too."""
    with ExitStack() as clusters:
        yield lambda *args, **kwargs: clusters.enter_context(closing(kafka_cluster_factory(*args, **kwargs)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session for all tests: local[2], Python workers of this interpreter, Spark's own Kafka source beside ours.

    It has no web page, and its files are under the test run's own folder.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder: Path = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tolerant-client tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # it lives for minutes
    )
    try:
        builder = builder.config("spark.jars", ",".join(map(str, spark_kafka_jars())))
    except ClusterStartError:
        pass  # tests/parity says it; the others do without
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collects what stock clients leave unclosed (kafka-python, sockets that were refused), so that no other test is blamed.

    The test itself is marked with `filterwarnings("ignore:unclosed <socket:ResourceWarning")`.
    """
    yield
    caplog.get_records("call").clear()  # they hold exceptions that hold sockets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
