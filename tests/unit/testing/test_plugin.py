"""The pytest plugin, in a project that has only installed tolerant-client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tolerant_client import testing

TESTS = """
def test_with_a_broker(kafka_cluster): pass
def test_with_a_proxy(fault_proxy): fault_proxy()
def test_without(): pass
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on TESTS, as on a machine without Java and without cached jars."""
    (folder / "test_it.py").write_text(TESTS)
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "JAVA_HOME")}
    clean |= {"PATH": str(folder), "TOLERANT_KAFKA_CACHE": str(folder / "cache"), **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--strict-markers", *arguments]
    return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=240)


def test_without_java_tests_with_brokers_are_skipped(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "Java 17 or newer is needed" in done.stdout


def test_under_ci_they_fail(tmp_path: Path) -> None:
    done = run(tmp_path, CI="true")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout and "1 error" in done.stdout
    assert "skipped" not in done.stdout


def test_a_version_that_does_not_exist_fails(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(
        '#!/bin/sh\n[ "$1" != -version ] || { echo \'version "17.0.1"\'; exit 0; }; echo "UNRESOLVED: not found"; exit 1\n'
    )
    java.chmod(0o755)
    done = run(tmp_path, "--kafka-version", "4.2")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout and "1 error" in done.stdout and "skipped" not in done.stdout
    assert "The jars of Kafka 4.2 could not be resolved" in done.stdout and "check the version" in done.stdout


@pytest.mark.parametrize(("expression", "count"), [("broker", 2), ("not broker", 1)])
def test_fixtures_mark_their_tests(tmp_path: Path, expression: str, count: int) -> None:
    done = run(tmp_path, "-m", expression, "--collect-only")
    assert f"{count}/3 tests collected" in done.stdout, done.stdout


def test_plugin_alone_imports_no_kafka() -> None:
    code = (
        "import sys, tolerant_client.testing.plugin;"
        " sys.exit(bool({'kafka', 'tolerant_client.testing.cluster'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_the_packages_names_can_be_completed() -> None:
    assert set(testing.__all__) <= set(dir(testing))
