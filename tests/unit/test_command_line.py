"""What all commands do with their command line, before a cluster is asked anything."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("pyspark")

from typer.testing import CliRunner

from spark_integration.cli import app
from spark_integration.commands.exits import exit_code
from tolerant_client.errors import OptionError
from tolerant_client.raw import RawCluster

BOTH = ("--source", "127.0.0.1:1", "--target", "127.0.0.1:2")
HALF = "half-\udcff"  # what Python makes of a byte that is no UTF-8


@pytest.mark.parametrize(
    "words",
    [
        ("mirror", *BOTH, "--topics", "orders", "--link", HALF),
        ("status", *BOTH, "--link", HALF),
        ("promote", *BOTH, "--link", HALF),
        ("failback", *BOTH, "--topics", "orders", "--link", HALF),
        ("doctor", *BOTH, "--link", HALF),
        ("doctor", *BOTH, "--group", "well", "--group", HALF),
        ("pause", *BOTH[2:], "--topic", HALF),
        ("throttle", HALF, *BOTH[2:]),
        ("status", "--target", HALF),
    ],
)
def test_a_name_that_is_not_utf_8_is_refused_before_a_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def connect(*_: Any, **__: Any) -> None:
        pytest.fail("a cluster was asked")

    monkeypatch.setattr(RawCluster, "__init__", connect)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError) and exit_code(done.exception) == 2
    option = words[words.index(HALF) - 1] if words[0] != "throttle" else "rate"
    assert re.fullmatch(rf".*{option} 'half-\\udcff' is not UTF-8.*", str(done.exception))


def test_a_path_that_is_not_utf_8_is_a_path() -> None:
    done = CliRunner().invoke(app, ["status", "--config", HALF])
    assert "does not exist" in done.output
