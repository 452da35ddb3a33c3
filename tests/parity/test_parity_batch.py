"""The same batch reads on Spark's own Kafka source and on ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parity import batch_scenarios, error_scenarios, query_scenarios, sink_scenarios, stream_scenarios
from parity.differences import TABLE as DIFFERENCES
from parity.scenario import JVM, OURS, Scenario, chosen, differences, run
from parity.topics import Filler

READS = (batch_scenarios, query_scenarios, error_scenarios)
TABLES = (*READS, stream_scenarios, sink_scenarios)
CHOSEN: list[Scenario] = [scenario for table in READS for scenario in chosen(table.CORE, table.TABLE)]


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda scenario: scenario.name)
def test_a_batch_read_is_alike(
    spark: Any, filler: Filler, both: Callable[..., Any], judge: Callable[..., None], scenario: Scenario
) -> None:
    outcome = both(lambda source: run(spark, filler.servers, source, scenario))
    judge(scenario, differences(scenario, outcome[JVM], outcome[OURS]), outcome[JVM], outcome[OURS])


def test_every_scenario_has_a_name_of_its_own_and_every_difference_a_scenario() -> None:
    names = [scenario.name for table in TABLES for scenario in table.TABLE]
    assert len(names) == len(set(names))
    assert {difference.scenario for difference in DIFFERENCES} <= set(names)


def test_every_run_has_enough_scenarios() -> None:
    assert sum(len(table.CORE) for table in TABLES) >= 120
