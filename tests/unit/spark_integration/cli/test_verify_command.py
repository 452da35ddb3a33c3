"""Which link the command verify reads; no broker."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
import pytest
from typer.testing import CliRunner

from spark_integration.cli import link as module
from spark_integration.cli.app import app
from spark_integration.cli.link import GivenLink
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.report import VerifyReport

CLUSTERS = ["verify", "--source", "a:1", "--target", "b:1"]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[LinkTopics]:
    """The topics that are compared, between clusters whose target has two links."""
    found: list[LinkTopics] = []

    def two(*_: object, **__: object) -> str:
        raise OptionError("The target has 2 links")

    def run(given: GivenLink, _: Any) -> tuple[VerifyReport, list[str]]:
        found.append(given.link_topics)
        return VerifyReport((), 0, 0.0, {}), []

    monkeypatch.setattr(module, "unnamed_link", two)
    monkeypatch.setattr(GivenLink, "run", run)
    return found


def test_to_compare_given_topics_no_link_is_looked_for(compared: list[LinkTopics]) -> None:
    done = CliRunner().invoke(app, [*CLUSTERS, "--topics", "orders"])
    assert (done.exit_code, compared) == (2, [LinkTopics.of("orders")]), done.exception  # nothing was compared: 2


def test_without_topics_a_link_has_to_say_them(compared: list[LinkTopics]) -> None:
    done = CliRunner().invoke(app, CLUSTERS)
    assert isinstance(done.exception, OptionError) and "2 links" in str(done.exception) and not compared


def test_what_may_not_be_read_is_not_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Errors.TopicAuthorizationFailedError("Fetch of tolerant-mirror-ledger-0 is not allowed to us")

    monkeypatch.setattr(GivenLink, "run", refuse)
    done = CliRunner().invoke(app, [*CLUSTERS, "--topics", "orders"])
    assert done.exit_code == 2 and "Fetch of tolerant-mirror-ledger-0 is not allowed to us" in done.stderr
