"""Lag from a query's progress."""

from __future__ import annotations

from typing import Any

import pytest

from spark_integration.progress import offsets_behind_latest


class SourceProgress:
    """Like pyspark's, whose offsets are JSON strings."""

    endOffset = '{"t": {"0": 5, "1": 20}}'
    latestOffset = '{"t": {"0": 9, "1": 20}, "u": {"0": 2}}'


def test_lag_is_what_sparks_own_source_reports() -> None:
    assert offsets_behind_latest(SourceProgress()) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "2.0",
    }


@pytest.mark.parametrize(
    "source", [{}, {"endOffset": None, "latestOffset": {"t": {"0": 1}}}, {"endOffset": {}, "latestOffset": {}}]
)
def test_before_the_first_batch_there_is_no_lag(source: dict[str, Any]) -> None:
    assert offsets_behind_latest(source) == {}
