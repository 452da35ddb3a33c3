"""The environment sets options that are not typed: a typed option always takes precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from typer.testing import CliRunner

from spark_integration.cli import doctor, link, mirror
from spark_integration.cli.app import app
from tolerant_client.errors import OptionError
from tolerant_client.ops.service import clusters

FILE = """
clusters = A, B
A.bootstrap.servers = file-a:1
B.bootstrap.servers = file-b:1
A->B.enabled = true
A->B.topics = orders
"""
HERE, THERE = "127.0.0.1:1", "127.0.0.1:2"


class Asked(Exception):
    """The command goes on to ask a cluster: the command line was accepted."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mm2.properties"
    path.write_text(FILE)
    return str(path)


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's text is the cluster that would be asked first."""

    def ask(config: Any, *_: Any, **__: Any) -> None:
        raise Asked(",".join(map(str, config["bootstrap_servers"])))

    for module in (link, clusters):
        monkeypatch.setattr(module, "Cluster", ask)
    monkeypatch.setattr(
        doctor,
        "examine",
        lambda subject: ask({"bootstrap_servers": [c["bootstrap.servers"] for c in subject.clusters.values()]}),
    )
    monkeypatch.setattr(mirror, "mirror_flows", lambda config, *_, **__: ask({"bootstrap_servers": ["a file's"]}))


def run(monkeypatch: pytest.MonkeyPatch, words: list[str], **environment: str) -> BaseException | None:
    for name in ("SOURCE", "TARGET", "LINK", "CONFIG", "SOURCE_PROPERTIES", "TARGET_PROPERTIES"):
        monkeypatch.delenv(f"TOLERANT_KAFKA_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"TOLERANT_KAFKA_{name}", value)
    return CliRunner().invoke(app, words).exception


PAIR = {"SOURCE": HERE, "TARGET": THERE, "LINK": "dr"}
LINK_COMMANDS = [
    ["mirror"],
    ["status"],
    ["verify"],
    ["plan"],
    ["promote"],
    ["failover"],
    ["pause"],
    ["resume"],
    ["throttle", "off"],
]
LINK_COMMANDS += [["repair"], ["failback"], ["doctor"], ["take-over"], ["hand-back"]]


@pytest.mark.parametrize("command", LINK_COMMANDS)
def test_a_typed_file_takes_the_place_of_the_clusters_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    found = run(monkeypatch, [*command, "--config", file], **PAIR, SOURCE_PROPERTIES="/there/is/none")
    assert isinstance(found, Asked) and "file" in str(found)


@pytest.mark.parametrize("command", LINK_COMMANDS)
def test_every_command_with_a_file_takes_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    found = run(monkeypatch, command, CONFIG=file)
    assert isinstance(found, Asked) and "file" in str(found)


@pytest.mark.parametrize("path", ["FILE", "/there/is/none"])
@pytest.mark.parametrize(
    "command", [c for c in LINK_COMMANDS if c[0] in ("status", "verify", "plan", "promote", "doctor")]
)
def test_typed_clusters_take_the_place_of_the_file_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, command: list[str], file: str, path: str
) -> None:
    given = file if path == "FILE" else path
    found = run(monkeypatch, [*command, "--source", HERE, "--target", THERE, "--link", "dr"], CONFIG=given)
    assert isinstance(found, Asked) and "127.0.0.1" in str(found)


def test_one_typed_option_is_completed_by_the_environment(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    found = run(monkeypatch, ["failover", "--link", "other", "--topics", "a"], TARGET=THERE, CONFIG=file)
    assert isinstance(found, Asked) and THERE in str(found)


def test_a_typed_cluster_of_doctor_is_examined_alone(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for environment in (PAIR, {"CONFIG": file}):
        found = run(monkeypatch, ["doctor", "--cluster", "127.0.0.1:3"], **environment)
        assert isinstance(found, Asked) and str(found) == "127.0.0.1:3"


def test_properties_of_the_environment_are_those_of_a_cluster_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = tmp_path / "source.properties"
    properties.write_text("security.protocol = PLAINTEXT\n")
    found = run(monkeypatch, ["doctor", "--target", THERE], SOURCE_PROPERTIES=str(properties))
    assert isinstance(found, Asked) and str(found) == THERE


@pytest.mark.parametrize("typed", [HERE, "127.0.0.1:9"], ids=["the same", "another"])
def test_properties_of_the_environment_are_sent_to_no_cluster_but_the_one_that_it_names(
    monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    """They contain its password."""
    read = run(monkeypatch, ["plan", "--source", typed, "--topics", "a"], **PAIR, SOURCE_PROPERTIES="/there/is/none")
    assert isinstance(read, Asked) == (typed != HERE), read


def test_a_completion_is_refused_by_no_variable(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for name, value in {**PAIR, "CONFIG": file}.items():
        monkeypatch.setenv(f"TOLERANT_KAFKA_{name}", value)
    done = CliRunner().invoke(
        app,
        prog_name="tolerant-kafka",
        env={
            "_TOLERANT_KAFKA_COMPLETE": "complete_bash",
            "COMP_WORDS": "tolerant-kafka status --li",
            "COMP_CWORD": "2",
        },
    )
    assert done.exit_code == 0 and "--link" in done.output, done.output


@pytest.mark.parametrize("command", [["mirror"], ["status"], ["doctor"]])
def test_variables_that_contradict_each_other_are_named(
    monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    found = run(monkeypatch, command, CONFIG=file, LINK="dr")
    assert isinstance(found, OptionError)
    assert "TOLERANT_KAFKA_CONFIG and TOLERANT_KAFKA_LINK are both set" in str(found)


@pytest.mark.parametrize("command", [["mirror", "--topics", "a"], ["status"]])
def test_what_is_typed_may_still_contradict_itself(
    monkeypatch: pytest.MonkeyPatch, command: list[str], file: str
) -> None:
    found = run(monkeypatch, [*command, "--config", file, "--source", HERE])
    assert isinstance(found, OptionError) and "--config " in str(found) and "both set" not in str(found)
