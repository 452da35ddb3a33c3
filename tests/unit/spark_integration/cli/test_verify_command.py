"""Which link the command verify reads; no broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.errors as Errors
import pytest
from typer.testing import CliRunner

from spark_integration.cli import link as module
from spark_integration.cli.app import app
from spark_integration.cli.link import GivenLink
from spark_integration.cli.verify import _read_report, _write_report
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


def test_a_report_is_written_beside_its_file_under_a_name_that_nobody_can_foresee(tmp_path: Path) -> None:
    file, theirs = tmp_path / "report", tmp_path / "theirs"
    theirs.write_text("precious")
    file.with_name("report.new").symlink_to(theirs)
    _write_report(file, VerifyReport((), 0, 0.0, {}))
    assert _read_report(file) is not None and theirs.read_text() == "precious"
    assert not file.is_symlink() and len(list(tmp_path.iterdir())) == 3
    with pytest.raises(OptionError, match="cannot be written"):
        _write_report(theirs.with_name("folder") / "report", VerifyReport((), 0, 0.0, {}))
    theirs.with_name("folder").mkdir()
    with pytest.raises(OptionError, match="cannot be written"):
        _write_report(theirs.with_name("folder"), VerifyReport((), 0, 0.0, {}))
    assert len(list(tmp_path.iterdir())) == 4, "nothing is left of what failed"


def test_what_may_not_be_read_is_not_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Errors.TopicAuthorizationFailedError("Fetch of tolerant-mirror-ledger-0 is not allowed to us")

    monkeypatch.setattr(GivenLink, "run", refuse)
    done = CliRunner().invoke(app, [*CLUSTERS, "--topics", "orders"])
    assert done.exit_code == 2 and "Fetch of tolerant-mirror-ledger-0 is not allowed to us" in done.stderr
