"""node.py: ports that no two processes are given, and what an error shows of a broker's log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tolerant_client.testing import node
from tolerant_client.testing.node import free_ports, log_tail

_CHILD = """
import sys
from tolerant_client.testing import node

asked = sorted(int(port) for port in sys.argv[1:])
node.random.SystemRandom.sample = lambda self, ports, count: [*asked, *ports[:2]]
print(*node.free_ports(2))
"""


def test_a_port_is_another_processs_for_as_long_as_that_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody listens there yet, as before a broker has started."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(node.tempfile, "tempdir", None)
    monkeypatch.setattr(node, "_handed_out", set())
    node._reservations.cache_clear()
    ours = free_ports(3)
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, ours)], capture_output=True, text=True, timeout=240, check=True
    )
    theirs = [int(port) for port in child.stdout.split()]
    assert len(theirs) == 2 and not set(theirs) & set(ours)
    monkeypatch.setattr(node.random.SystemRandom, "sample", lambda *_: [*ours, *theirs])
    assert free_ports(2) == theirs
    os.close(node._reservations())
    node._reservations.cache_clear()


def test_an_error_shows_why_a_broker_ended_and_not_its_shutdown_alone(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    lines = ["INFO starting", " ERROR Fatal", "java.net.BindException: Address already in use", *["INFO closed"] * 40]
    log.write_text("\n".join(lines))
    told = log_tail(log).splitlines()
    assert told == [" ERROR Fatal", "java.net.BindException: Address already in use", "[...]", *["INFO closed"] * 15]
    log.write_text("INFO one\n ERROR two\n")
    assert log_tail(log).splitlines() == ["INFO one", " ERROR two"]
