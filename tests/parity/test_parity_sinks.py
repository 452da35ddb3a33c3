"""The same writes, batch and streaming, with both sinks: what arrives in their topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.scenario import JVM, OURS, chosen
from parity.sink_scenarios import CORE, TABLE
from parity.sinks import SinkScenario, arrived, differences, make_topics, write
from parity.topics import Filler

CHOSEN = chosen(CORE, TABLE)


@pytest.mark.parametrize(("number", "scenario"), list(enumerate(CHOSEN)), ids=[scenario.name for scenario in CHOSEN])
def test_a_write_is_alike(
    spark: Any,
    filler: Filler,
    both: Callable[..., Any],
    judge: Callable[..., None],
    tmp_path: Path,
    number: int,
    scenario: SinkScenario,
) -> None:
    prefixes = {source: f"sink-{number}-{source}-" for source in (JVM, OURS)}
    make_topics(filler, prefixes)
    failed = both(lambda sink: write(spark, filler.servers, sink, scenario, prefixes[sink], tmp_path))
    there = arrived(spark, filler.servers, scenario, prefixes) if None in failed.values() else {}
    jvm, ours = (failed[sink] or there[sink] for sink in (JVM, OURS))
    judge(scenario, differences(scenario, jvm, ours, prefixes[OURS]), jvm, ours)
