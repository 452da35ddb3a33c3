"""The same streaming reads on both sources: rows, offsets, progress and checkpoint of every micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity.scenario import JVM, OURS, chosen
from parity.stream_scenarios import CORE, TABLE
from parity.streams import StreamScenario, differences, run_stream
from parity.topics import Filler

CHOSEN = chosen(CORE, TABLE)


@pytest.mark.parametrize(("number", "scenario"), list(enumerate(CHOSEN)), ids=[scenario.name for scenario in CHOSEN])
def test_a_streaming_read_is_alike(
    spark: Any,
    filler: Filler,
    both: Callable[..., Any],
    judge: Callable[..., None],
    tmp_path: Path,
    number: int,
    scenario: StreamScenario,
) -> None:
    runs = run_stream(spark, filler, both, scenario, f"stream-{number}-", tmp_path)
    judge(scenario, differences(scenario, runs[JVM], runs[OURS]), runs[JVM], runs[OURS])
