"""How the command mirror ends: its exit codes, and its output for a copy that did not finish; no Spark, no broker."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli import mirror as command
from spark_integration.cli.app import app
from spark_integration.cli.exits import exit_code
from spark_integration.mirror import mirror_job
from tolerant_client.errors import (
    ClusterUnreachableError,
    LinkPromotedError,
    OptionError,
    SourceTruncatedError,
    StoppedError,
    TargetClaimedError,
    TargetDivergedError,
    TolerantClientError,
    UnsupportedSourceError,
    text_of,
)
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.open_transactions import Held, OpenTransaction
from tolerant_client.ops.service import local_job, mirror_settings, stop_signals
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.stop_signals import StopSignal

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NO_CLAIM = SimpleNamespace(unsettled=())
LINK = ["mirror", "--source", "a:1", "--target", "b:1", "--topics", "orders"]
FILE = """
clusters = primary, backup, lake
primary.bootstrap.servers = p:1
backup.bootstrap.servers = b:1
lake.bootstrap.servers = l:1
primary->backup.enabled = true
primary->lake.enabled = true
primary->lake.topics = clicks
"""


class Watch:
    """A watch that sees nothing."""

    behind: list[TopicPartition] = []
    standing = TaskReport()
    reached = {FIRST: 10, SECOND: 4}
    losses: list[Any] = []
    copied = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, report: object) -> None:
        pass


@pytest.fixture
def prepared() -> list[str]:
    """Counts how often a mirror has created topics and recorded its link."""
    return []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, prepared: list[str]) -> Callable[..., Any]:
    """Runs the command with a mirror that ends as the test says, and a target copied up to `copied`."""

    def run(
        outcome: Any,
        *options: str,
        number: int = 0,
        copied: tuple[int | None, int | None] = (10, 4),
        away: Exception | None = None,
        goals: Mapping[TopicPartition, int] = {},
        held: Sequence[Held] = (),
    ) -> Any:
        stopping = StopSignal()
        stopping.number = number
        monkeypatch.setattr(stop_signals, "stop_signals", lambda: stopping)
        monkeypatch.setattr(command, "LinkWatch", Watch)

        def prepare(settings: object, claim: object, is_stopping: object) -> PreparedLink:
            prepared.append("prepared")
            return PreparedLink(1, (), {FIRST: 10, SECOND: 10})

        monkeypatch.setattr(mirror_job, "prepare", prepare)

        def copy(*_: object, **__: object) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        async def look(*asked: Any) -> list[PartitionLag]:
            if away is not None:
                raise away
            assert asked[4] is ("translated" in options)
            return [PartitionLag(p, end, None, None) for p, end in zip((FIRST, SECOND), copied)]

        monkeypatch.setattr(mirror_job, "run", copy)
        monkeypatch.setattr(mirror_settings, "run_claim", lambda settings: contextlib.nullcontext(NO_CLAIM))
        monkeypatch.setattr(command, "unnamed_link", lambda source, target, is_start: "default")
        monkeypatch.setattr(command, "held_at_start", lambda settings, partitions, is_stopping: dict(goals))
        monkeypatch.setattr(
            command, "still_held", lambda settings, late, is_stopping: [one for one in held if one.partition in late]
        )
        monkeypatch.setattr(command, "look", look)
        return CliRunner().invoke(app, [*LINK, *options])

    return run


@pytest.mark.parametrize("offsets", ["identical", "translated"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_copy_ends_as_a_process_that_a_signal_ended_and_says_where(
    run: Callable[..., Any], offsets: str, number: int, code: int
) -> None:
    done = run(False, "--once", "--offsets", offsets, "--json", number=number)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.splitlines() == [
        "tolerant-kafka: interrupted: orders-1 is copied up to offset 4 of 10",
        "tolerant-kafka: interrupted: 6 offsets are not copied; start the mirror again",
    ]


@pytest.mark.parametrize(
    ("outcome", "number", "code"), [(TargetClaimedError("held"), 0, 1), (False, signal.SIGINT, 130)]
)
def test_what_is_unsettled_is_told_of_a_mirror_that_has_no_report_too(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], outcome: Exception | bool, number: int, code: int
) -> None:
    monkeypatch.setattr(NO_CLAIM, "unsettled", (FIRST,))
    done = run(outcome, "--once", number=number)
    assert done.exit_code == code and "tolerant-kafka: unsettled: orders-0: " in done.stderr


def test_an_address_for_metrics_that_cannot_be_had_is_told_before_anything_is_written(
    run: Callable[..., Any], prepared: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address in ("nonsense", f"127.0.0.1:{taken.getsockname()[1]}"):
            done = run(True, "--metrics", address)
            assert isinstance(done.exception, OptionError) and "--metrics" in str(done.exception)
    assert prepared == []
    assert run(True, "--metrics", "127.0.0.1:0").exit_code == 0 and prepared == ["prepared"]


def test_a_copy_that_is_interrupted_because_its_target_is_away_was_interrupted_all_the_same(
    run: Callable[..., Any],
) -> None:
    done = run(False, "--once", number=signal.SIGTERM, away=ClusterUnreachableError("The target is away"))
    assert done.exit_code == 143
    assert done.stderr.splitlines() == [
        "tolerant-kafka: The target is away",
        "tolerant-kafka: interrupted: the target does not tell how far it is; start the mirror again",
    ]


def test_a_copy_that_is_interrupted_and_has_lost_its_map_says_that_nobody_knows_how_far_it_is(
    run: Callable[..., Any],
) -> None:
    done = run(False, "--once", "--offsets", "translated", number=signal.SIGTERM, copied=(None, None))
    assert done.exit_code == 143
    assert done.stderr.splitlines() == [
        "tolerant-kafka: interrupted: how far the target is is unknown: the offset map of the link is lost, and no start"
        " can resume without it; tolerant-kafka status says what to do"
    ]


def test_a_mirror_that_follows_is_stopped_by_a_signal_as_it_should_be(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(False, "--json", number=signal.SIGTERM).exit_code == 0
    assert run(True, "--once", "--json").exit_code == 0
    monkeypatch.setattr(local_job, "run", lambda *_, **__: False)
    monkeypatch.setattr(mirror_settings, "prepare", lambda *_: PreparedLink(1, (), {FIRST: 10}))
    assert run(False).stdout.startswith("no record of 1 topic is known to have been copied"), (
        "Spark has killed tasks untold"
    )
    assert run(False, "--tasks", "0").stdout.startswith("0 offsets of 1 topic copied")


@pytest.mark.parametrize("outcome", [True, False, SourceTruncatedError("created again")])
def test_losses_that_were_accepted_are_told_however_the_run_ends(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    monkeypatch.setattr(Watch, "losses", ["orders-0 offsets 3 to 4"])
    for options in ([], ["--once"]):
        told = run(outcome, *options, number=signal.SIGTERM).stderr
        assert told.count("loss: orders-0 offsets 3 to 4") == 1


def test_the_end_of_a_copy_counts_what_plan_and_verify_count_and_json_has_both(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "standing", TaskReport(records=1_000))
    monkeypatch.setattr(Watch, "copied", 1_004)
    for offsets in ("identical", "translated"):
        told = run(True, "--once", "--offsets", offsets).stdout
        what = "1,004 offsets" if offsets == "identical" else "1,000 records"
        assert re.fullmatch(rf"{what} of 1 topic copied in [0-9.]+ s\n", told)
        told = json.loads(run(True, "--once", "--json", "--offsets", offsets).stdout)
        assert (told["records"], told["offsets"]) == (1_000, 1_004)


ENDING = """
import os, sys
from signal import SIGTERM
from tolerant_client.ops.service.stop_signals import stop_signals
class Late:
    def __del__(self, os=os, number=SIGTERM):
        os.kill(os.getpid(), number)
        os.write(1, b"taken apart")
late = Late()
stop_signals()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 2])
def test_a_signal_that_comes_while_python_is_ending_changes_no_exit_code(code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING, str(code)], capture_output=True, timeout=240)
    assert (done.returncode, done.stdout) == (code, b"taken apart")


def test_a_copy_up_to_the_last_stable_offset_says_what_waits_for_whom(run: Callable[..., Any]) -> None:
    held = Held(
        SECOND, 4, 6, OpenTransaction(SECOND, 7, 0, 4, 1_763_800_000_000, 6), None, "kafka-transactions.sh abort"
    )
    done = run(True, "--once", "--json", goals={SECOND: 10}, held=[held])
    assert done.exit_code == 3
    assert done.stderr == f"tolerant-kafka: waiting: copied up to the last stable offset; {held}\n"
    assert "orders-1: 6 offsets from 4 on wait for an open transaction (producer id 7" in done.stderr
    told = json.loads(done.stdout)
    assert (told["exit_code"], [one["producer_id"] for one in told["open_transactions"]]) == (3, [7])
    ended = run(True, "--once", "--json", goals={SECOND: 10})
    assert (ended.exit_code, "had an open transaction at the start, which has ended since" in ended.stderr) == (3, True)
    assert run(True, "--once", "--json", goals={FIRST: 10}).exit_code == 0  # copied meanwhile


@pytest.mark.parametrize(
    ("java", "words"),
    [("/nope", "JAVA_HOME is /nope, but it has no bin/java"), ("", "Java 17 or newer is needed to run Spark")],
)
@pytest.mark.parametrize("way", [LINK, ["mirror", "--config", "FILE"]])
def test_without_java_nothing_is_begun_and_one_sentence_says_so(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: list[str], java: str, words: str
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    monkeypatch.setenv("JAVA_HOME", java)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mirror_job, "prepare", lambda settings: pytest.fail("something was written"))
    done = CliRunner().invoke(app, [str(file) if word == "FILE" else word for word in way])
    assert isinstance(done.exception, OptionError) and words in str(done.exception)
    assert exit_code(done.exception) == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, [str(file) if word == "FILE" else word for word in way])
    assert isinstance(done.exception, OptionError) and "pyspark is not installed" in str(done.exception)


@pytest.mark.parametrize("error", [OptionError("later"), ClusterUnreachableError("away"), TolerantClientError("else")])
def test_an_error_after_the_start_is_a_failure_and_no_bad_usage(run: Callable[..., Any], error: Exception) -> None:
    done = run(error)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "tolerant-kafka: link default copies 1 topic (2 partitions); Ctrl-C stops it",
        f"tolerant-kafka: {error.args[0]}",
    ]


@pytest.mark.parametrize(
    "error",
    [
        TargetClaimedError("held"),
        LinkPromotedError("promoted"),
        OptionError("wrong"),
        TargetDivergedError("no copy"),
        SourceTruncatedError("lost"),
        UnsupportedSourceError("too old"),
        TopicAuthorizationFailedError("orders"),
    ],
)
def test_a_start_that_is_refused_has_copied_nothing_and_says_so_with_its_code(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert run(error).exit_code == 1, "copying had begun"
    assert json.loads(run(error, "--json").stdout) == {"error": text_of(error), "exit_code": 1}

    def refuse(*_: object) -> PreparedLink:
        raise error

    monkeypatch.setattr(mirror_job, "prepare", refuse)
    done = CliRunner().invoke(app, LINK)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"tolerant-kafka: {text_of(error)}\n")
    assert json.loads(CliRunner().invoke(app, [*LINK, "--json"]).stdout) == {"error": text_of(error), "exit_code": 2}


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--once"], 143)])
def test_a_stop_while_the_mirror_starts_is_told_as_interrupted_and_ends_as_a_stop(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: list[str], code: int
) -> None:
    def stop(*_: object) -> PreparedLink:
        raise StoppedError("A stop was asked for")

    run(True, number=signal.SIGTERM)
    monkeypatch.setattr(mirror_job, "prepare", stop)
    done = CliRunner().invoke(app, [*LINK, *options])
    text = "interrupted: the mirror had not started to copy; start it again"
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"tolerant-kafka: {text}\n")
    told = CliRunner().invoke(app, [*LINK, *options, "--json"])
    assert json.loads(told.stdout) == {"error": text, "exit_code": code}
    assert run(StoppedError("A stop was asked for"), "--once", number=signal.SIGTERM).exit_code == 143


def test_only_the_flows_into_the_clusters_of_this_process_run(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(FILE)

    def flows(*options: str) -> list[str]:
        done = CliRunner().invoke(app, ["mirror", "--config", str(file), "--dry-run", "--json", *options])
        assert done.exit_code == 0, done.exception
        return [flow["flow"] for flow in json.loads(done.stdout)["flows"]]

    assert flows() == ["primary->backup", "primary->lake"]
    assert flows("--clusters", "backup") == ["primary->backup"]
    assert flows("--clusters", "lake, backup") == ["primary->backup", "primary->lake"]
    with pytest.raises(OptionError, match="'bakcup' is not in clusters = primary, backup, lake; did you mean backup?"):
        CliRunner().invoke(app, ["mirror", "--config", str(file), "--clusters", "bakcup"], catch_exceptions=False)
    with pytest.raises(OptionError, match="--clusters goes with --config"):
        CliRunner().invoke(app, [*LINK, "--clusters", "backup"], catch_exceptions=False)
