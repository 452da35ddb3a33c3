"""One session and one broker for all scenarios, with both sources in it and the topics filled once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from parity import batch_scenarios
from parity.differences import BY_SCENARIO
from parity.scenario import JVM, OURS, Rows, run
from parity.topics import Filler, fill
from tolerant_client.testing.artifacts import ClusterStartError, spark_kafka_jars


@pytest.fixture(scope="session")
def filler(kafka_cluster: Any) -> Iterator[Filler]:
    filler = Filler(kafka_cluster.bootstrap_servers)
    producer = fill(filler)
    yield filler
    producer.close(timeout=5)
    filler.close()


@pytest.fixture(scope="session")
def both(spark: Any, filler: Filler) -> Iterator[Callable[[Callable[[str], Any]], dict[str, Any]]]:
    """Calls a function with the name of each source, at the same time."""
    try:
        spark_kafka_jars()
    except ClusterStartError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    # Spark registers Python sources at the first question for any: two at once might not see it yet.
    for source in (OURS, JVM):
        outcome = run(spark, filler.servers, source, batch_scenarios.SELECTION[0])
        assert isinstance(outcome, Rows), outcome
    # A write looks for its sink in the thread's active session, which only the thread that made the session has.
    activate = spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession
    with ThreadPoolExecutor(2, initializer=lambda: activate(spark._jsparkSession)) as threads:
        yield lambda act: dict(zip((JVM, OURS), threads.map(act, (JVM, OURS)), strict=True))


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Any, Sequence[str], Any, Any], None]:
    """Raises AssertionError unless nothing differs, or what is in the table of differences."""

    def judge(scenario: Any, found: Sequence[str], jvm: Any, ours: Any) -> None:
        known = BY_SCENARIO.get(scenario.name)
        if known is None:
            assert not found, "\n".join(found)
            return
        assert found, f"{scenario.name} is alike now: take it out of parity/differences.py"
        assert re.match(known.jvm, str(jvm), re.S), f"the JVM's source: {jvm}"
        assert re.match(known.ours, str(ours), re.S), f"ours: {ours}"

    return judge
