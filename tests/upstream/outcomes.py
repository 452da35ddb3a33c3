"""A pytest plugin for kafka-python's own tests: installs on request, and writes down how each test ended.

UPSTREAM_INSTALL=1 makes the stock classes tolerant before anything is
collected; UPSTREAM_OUTCOMES names the JSON file {test id: outcome};
UPSTREAM_REPEATS runs each test so many times.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

_outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    random.seed(0)  # some tests are parametrized by chance
    if os.environ.get("UPSTREAM_INSTALL") == "1":
        import tolerant_client

        tolerant_client.install()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (repeats := int(os.environ.get("UPSTREAM_REPEATS", "1"))) > 1:
        metafunc.fixturenames.append("_repeat")
        metafunc.parametrize("_repeat", range(repeats))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _outcomes[report.nodeid] = "not collected"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _outcomes[report.nodeid] = report.outcome
    elif report.outcome != "passed":
        # A failing teardown spoils what had passed.
        _outcomes[report.nodeid] = "error" if report.failed else report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ["UPSTREAM_OUTCOMES"]).write_text(json.dumps(_outcomes, indent=1, sort_keys=True))
