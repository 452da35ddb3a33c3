"""The same batch reads on Spark's own Kafka source and on ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parity import batch_scenarios, error_scenarios, sink_scenarios, stream_scenarios
from parity.differences import TABLE as DIFFERENCES
from parity.scenario import JVM, OURS, Scenario, differences, run
from parity.topics import Filler

READS = batch_scenarios.TABLE + error_scenarios.TABLE
EVERY_NAME = [s.name for s in (*READS, *stream_scenarios.TABLE, *sink_scenarios.TABLE)]


@pytest.mark.parametrize("scenario", READS, ids=lambda scenario: scenario.name)
def test_a_batch_read_is_alike(
    spark: Any, filler: Filler, both: Callable[..., Any], judge: Callable[..., None], scenario: Scenario
) -> None:
    outcome = both(lambda source: run(spark, filler.servers, source, scenario))
    judge(scenario, differences(scenario, outcome[JVM], outcome[OURS]), outcome[JVM], outcome[OURS])


def test_every_scenario_has_a_name_of_its_own_and_every_difference_a_scenario() -> None:
    assert len(EVERY_NAME) == len(set(EVERY_NAME)) >= 120
    assert {difference.scenario for difference in DIFFERENCES} <= set(EVERY_NAME)
