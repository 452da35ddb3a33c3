"""A broker that hangs retires the connections of many clients: the log says which broker, and says so once a minute."""

from __future__ import annotations

import logging

import pytest

from tolerant_client.stock.retirements import RetirementLog


def test_a_retired_connection_is_logged_with_its_broker_and_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    told = RetirementLog()
    with caplog.at_level(logging.INFO):
        for now in (0.0, 1.0, 59.0, 61.0):
            told.tell("source", "a:9092", "node 1", "no response", now)
        told.tell("", "b:9092", "node 1", "no response", 62.0)
    line = "The broker at a:9092 of the source (node 1): connection retired: no response"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        line,
        f"{line} (and 2 more in the 61 s before)",
        "The broker at b:9092 (node 1): connection retired: no response",
    ]
    assert len(caplog.records) == 5
