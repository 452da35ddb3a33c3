"""Which link the command verify reads; no broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from typer.testing import CliRunner

from spark_integration.cli import link as module
from spark_integration.cli.app import app
from spark_integration.cli.link import GivenLink
from spark_integration.cli.verify import _read_report, _write_report
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.life import naming
from tolerant_client.mirror.life.listing import Listing, listed
from tolerant_client.mirror.state.control_record import Controls, Unreadable
from tolerant_client.mirror.state.link_control import LinkControl
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


def test_a_link_that_the_target_does_not_have_is_an_error_that_names_those_it_has(
    monkeypatch: pytest.MonkeyPatch, compared: list[LinkTopics]
) -> None:
    """Also where the topics are given: nothing else would say that the name is wrong."""
    links = {name: LinkControl(topics=LinkTopics.of("orders").to_json()) for name in ("drb", "dra")}
    read = AsyncMock(return_value=Controls(links, (Unreadable("new", "of a newer version", None),)))

    async def read_control(_: Any, link: str) -> LinkControl:
        return links.get(link, LinkControl())

    def run_on_target(_: GivenLink, ask: Any) -> Any:
        return asyncio.run(ask(None))

    async def list_links(_: Any, named: str) -> Listing:
        return listed(read.return_value, [], lost={named: True} if named == "wiped" else {})

    monkeypatch.setattr(naming, "read_controls", read)
    monkeypatch.setattr(naming, "list_links", list_links)
    monkeypatch.setattr(module, "read_control", read_control)
    monkeypatch.setattr(module, "require_not_forgotten", AsyncMock())
    monkeypatch.setattr(GivenLink, "run_on_target", run_on_target)
    told = (
        "Link dr was never started on this target, or its record in tolerant-mirror-control was deleted; the links of this target"
        " are dra, drb, new: check --target and --link, or "
    )
    given = ["--topics", "orders"]
    for command in (["verify"], ["status"], ["verify", *given]):
        done = CliRunner().invoke(app, [*command, *CLUSTERS[1:], "--link", "dr"])
        remedy = "leave --link out: with --topics verify needs none" if given[0] in command else "give --topics"
        assert isinstance(done.exception, OptionError) and text_of(done.exception) == told + remedy
    done = CliRunner().invoke(app, ["status", *CLUSTERS[1:], "--link", "wiped"])
    assert str(done.exception).startswith(
        "OptionError: Link wiped: its control and its offset map are gone, so how far"
    ), done
    assert not compared
    for known in ("dra", "new"):  # the second one is there, though nobody can read it
        CliRunner().invoke(app, [*CLUSTERS, *given, "--link", known])
    read.return_value = Controls({})
    done = CliRunner().invoke(app, [*CLUSTERS, *given, "--link", "dr"])
    assert "; this target has no link: check" in str(done.exception)
    read.side_effect = Errors.TopicAuthorizationFailedError("tolerant-mirror-control")
    CliRunner().invoke(app, [*CLUSTERS, *given, "--link", "dr"])  # nothing tells
    read.side_effect = None
    CliRunner().invoke(app, [*CLUSTERS, *given, "--link", "wiped"])  # there is such a link
    assert len(compared) == 4


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
