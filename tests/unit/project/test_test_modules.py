"""The names of test modules: pytest imports each by its name alone, so two of one name cannot be collected together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[2]
MARK = ".".join(("pytest", "mark", "alone"))


def test_each_test_module_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert len(names) > 200 and {name for name, count in names.items() if count > 1} == set()


def test_what_compares_times_is_run() -> None:
    """tox collects that of one folder only, which is quicker."""
    marked = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if MARK in path.read_text()}
    assert marked == {"faults"}
    assert "-m alone tests/faults" in (TESTS.parent / "tox.ini").read_text()
