"""A mirror that starts ends its waits at once when it is asked to stop, whatever does not respond; no broker."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tolerant_client.errors import StoppedError
from tolerant_client.ops.service.mirror_settings import MirrorSettings, prepare, run_claim


@pytest.fixture
def silent() -> Iterator[str]:
    """A cluster that takes connections and never responds, as a frozen broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def in_half_a_second() -> Callable[[], bool]:
    at = time.monotonic() + 0.5
    return lambda: time.monotonic() > at


def test_a_stop_ends_the_checks_of_a_start(silent: str) -> None:
    clusters = {"bootstrap.servers": silent}
    settings = MirrorSettings(clusters, clusters, "orders")
    began = time.monotonic()
    with run_claim(settings) as claim, pytest.raises(StoppedError, match="the (source|target) was waited for"):
        prepare(settings, claim, in_half_a_second())
    assert time.monotonic() - began < 5.0


def test_a_stop_ends_the_wait_for_a_claim(silent: str) -> None:
    clusters = {"bootstrap.servers": silent}
    began = time.monotonic()
    with run_claim(MirrorSettings(clusters, clusters, "orders")) as claim:
        with pytest.raises(StoppedError, match="before the target was claimed"):
            claim.take(["orders"], in_half_a_second())
        assert time.monotonic() - began < 1.5
    assert time.monotonic() - began < 8.0, "the end of the run is announced in vain"
