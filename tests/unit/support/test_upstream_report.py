"""tests/upstream/run.py's verdict on two runs of kafka-python's own tests."""

from __future__ import annotations

import runpy
from typing import Any

from support.tree import ROOT

report: Any = runpy.run_path(str(ROOT / "tests" / "upstream" / "run.py"))["report"]
PASSED = {f"test_{n}": "passed" for n in range(20)}
UNABLE = {f"test_without_its_support_file_{n}": "error" for n in range(9)}


def test_only_what_passes_stock_and_not_installed_is_a_difference() -> None:
    assert report(PASSED, PASSED) == 0
    assert report({**PASSED, "test_flaky": "failed"}, {**PASSED, "test_flaky": "passed"}) == 0
    assert report(PASSED, {**PASSED, "test_1": "failed"}) == 1


def test_run_in_which_many_tests_cannot_run_at_all_fails() -> None:
    assert report({**PASSED, **UNABLE}, {**PASSED, **UNABLE}) == 1
