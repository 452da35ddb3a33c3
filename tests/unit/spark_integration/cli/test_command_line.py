"""What all commands do with their command line before they ask a cluster."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli import status as status_command
from spark_integration.cli import take_over, translate
from spark_integration.cli.app import app
from spark_integration.cli.exits import LOOK, exit_code
from spark_integration.cli.link import GivenLink, confirm, time_ms
from spark_integration.cli.options import WhichLink
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, OptionError, OrdersHiddenError
from tolerant_client.mirror.follow import translate as follow
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.translate import GroupCommit, TranslatedOffset
from tolerant_client.mirror.life.listing import ListedLink, Listing
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.offset_map import Place, Translation
from tolerant_client.mirror.state.topic_filter import LinkTopics

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

    monkeypatch.setattr(Cluster, "__init__", connect)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError) and exit_code(done.exception) == 2
    assert not done.stdout
    option = words[words.index(HALF) - 1] if words[0] != "throttle" else "rate"
    assert re.fullmatch(rf".*{option} 'half-\\udcff' is not UTF-8.*", str(done.exception))


def test_a_path_that_is_not_utf_8_is_a_path() -> None:
    done = CliRunner().invoke(app, ["status", "--config", HALF])
    assert "does not exist" in done.output


LINK = (*BOTH, "--topics", "orders", "--link", "dr")
FILE = """
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
A->B.topics = orders
"""


@pytest.mark.parametrize("is_dry_run", [False, True])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("promote", *LINK), "if the promotion had begun, it is not finished: run this again"),
        (("failover", *LINK[2:]), "if the promotion had begun, it is not finished: run this again"),
        (("failback", *LINK), "if failing back had begun, it is not finished"),
        (("take-over", "--config", "FILE"), "if taking over had begun, it may be done: run this again"),
        (("hand-back", "--config", "FILE"), "if handing back had begun, it is not finished"),
    ],
)
def test_a_command_that_is_interrupted_says_that_it_may_be_half_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], said: str, is_dry_run: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    monkeypatch.setattr(GivenLink, "whole", lambda given: given)
    monkeypatch.setattr(GivenLink, "run", interrupt)
    monkeypatch.setattr(GivenLink, "run_on_target", interrupt)
    dry = ["--dry-run"] if is_dry_run else []
    done = CliRunner().invoke(app, [*(str(file) if word == "FILE" else word for word in words), *dry])
    assert done.exit_code == 130
    assert (f"tolerant-kafka: interrupted: {said}" in done.stderr) is not is_dry_run


@pytest.mark.parametrize("command", ["take-over", "hand-back"])
def test_an_interrupt_before_anybody_is_asked_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    monkeypatch.setattr(take_over, "link_of_file", interrupt)
    done = CliRunner().invoke(app, [command, "--config", str(file)])
    assert done.exit_code == 130 and "had begun" not in done.stderr


CHILD = """
import sys
from importlib.abc import MetaPathFinder
from spark_integration.cli import entry

class Interrupt(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt
        return None

sys.meta_path.insert(0, Interrupt())
entry.main()
"""


def test_an_interrupt_while_the_command_is_still_imported_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_command_is_what_the_entry_point_runs() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from spark_integration.cli.entry import main; main()",
            "status",
            "--target",
            HALF.encode("utf-8", "surrogateescape"),
        ],
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 2 and b"is not UTF-8" in done.stderr


@pytest.mark.parametrize(("link", "is_refused"), [("a b", True), ("a/b", True), ("a" * 226, True), ("a" * 225, False)])
def test_a_link_name_that_no_topic_could_have_is_refused(link: str, *, is_refused: bool) -> None:
    with pytest.raises(OptionError, match="the name of a link is part of a topic's") if is_refused else nullcontext():
        WhichLink(link=link)


def test_the_version_is_printed_and_short_options_for_help_are_known() -> None:
    assert re.fullmatch(r"tolerant-kafka \d+\.\d+\S*\n", CliRunner().invoke(app, ["--version"]).output)
    for words in (["-h"], ["status", "-h"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 and "Usage" in done.output


@pytest.mark.parametrize(("words", "levels"), [((), set()), (("-v",), {"INFO"}), (("-vv",), {"INFO", "DEBUG"})])
def test_logs_are_silent_unless_asked_for(words: tuple[str, ...], levels: set[str]) -> None:
    script = "import logging, typer; from spark_integration.cli import app as cli\n" + (
        "@cli.app.command(cls=cli.Command)\n"
        "def say() -> None:\n"
        "    for level in (logging.DEBUG, logging.INFO): logging.getLogger('tolerant_client.cluster.cluster').log(level, 'said')\n"
        "cli.main()"
    )
    for line in ([*words, "say"], ["say", *words]):  # before the command, and after it
        done = subprocess.run([sys.executable, "-c", script, *line], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0
        said = (
            re.fullmatch(r"[-\d]+ [\d:,]+ (\w+) tolerant_client.cluster.cluster: said", line)
            for line in done.stderr.splitlines()
        )
        assert {found[1] for found in said} == levels


def test_what_the_command_line_leaves_out_the_environment_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reaches the point of asking the cluster, which does not exist: a missing option would be noticed before."""
    monkeypatch.setenv("TOLERANT_KAFKA_TARGET", "127.0.0.1:1,127.0.0.1")
    monkeypatch.setenv("TOLERANT_KAFKA_SOURCE", "127.0.0.1:1")
    done = CliRunner().invoke(app, ["status", "--link", "dr"])
    assert isinstance(done.exception, OptionError) and "the invalid address '127.0.0.1'" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "taken", "left"),
    [
        ("orders", {"orders"}, {"payments"}),
        ("orders,payments.eu", {"orders", "payments.eu"}, {"orders,payments.eu"}),
        ("orders , pay.*", {"orders", "payments"}, {"order"}),
        ("a{1,2},[,b]c", {"a", "aa", "bc", ",c"}, {"aaa", "a{1", "c"}),
    ],
)
def test_topics_are_expressions_with_commas_between_them(text: str, taken: set[str], left: set[str]) -> None:
    topics = LinkTopics.of(text)
    assert {name for name in taken | left if topics.takes(name)} == taken


@pytest.mark.parametrize(("response", "goes_on"), [("y", True), ("n", False), ("", False)])
def test_on_a_terminal_what_cannot_be_undone_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, response: str, goes_on: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(response + "\n"))
    if goes_on:
        confirm("Promote link dr", is_sure=False)
    else:
        with pytest.raises(OptionError, match="Nothing was written"):
            confirm("Promote link dr", is_sure=False)


@pytest.mark.parametrize("command", ["promote", "failover", "failback"])
def test_what_cannot_be_undone_asks_nothing_of_a_script_or_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("it asked"))
    confirm(command, is_sure=False)  # standard input is no terminal
    monkeypatch.setattr("sys.stdin", Terminal(""))
    confirm(command, is_sure=True)
    assert "--yes" in CliRunner().invoke(app, [command, "-h"], terminal_width=200).output


QUESTION = "Continue? [y/N]: "


def has_a_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its jobs in the background ignore it


def told_on_a_terminal(typed: bytes, *words: str) -> tuple[int, str]:
    """The exit code of a command whose question gets these keys as its response, and the terminal's whole output."""
    ours, theirs = os.openpty()
    flags = termios.tcgetattr(theirs)
    flags[3] &= ~termios.ECHO  # so that whatever comes is what the command says
    termios.tcsetattr(theirs, termios.TCSANOW, flags)
    child = subprocess.Popen(
        [sys.executable, "-m", "spark_integration.cli.app", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=has_a_terminal,
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := _read(ours):
            seen += piece
            if seen.endswith(QUESTION.encode()):
                for _ in range(10):
                    os.write(ours, typed)  # again: Python misses a SIGINT that comes just before it reads
                    if select.select([ours], [], [], 5)[0]:
                        break
        return child.wait(timeout=240), seen.decode()
    finally:
        os.close(ours)
        child.kill()
        child.wait()


def _read(terminal: int) -> bytes:
    assert select.select([terminal], [], [], 60)[0], "the command says nothing, and does not end"
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: the command has ended
        return b""


FAILOVER = ("failover", "--target", "127.0.0.1:1", "--topics", "orders", "--link")


@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_question_that_is_interrupted_ends_the_command_as_sigint_does(key: bytes) -> None:
    code, seen = told_on_a_terminal(key, *FAILOVER, "dr")
    assert code == 130 and seen.endswith("\r\ntolerant-kafka: interrupted: nothing was written\r\n")
    assert "Abort" not in seen and "Traceback" not in seen


def test_a_refusal_shows_the_name_of_a_link_as_it_is() -> None:
    code, seen = told_on_a_terminal(b"n\n", *FAILOVER, "x\x1b[31mred\u202eabc")
    assert code == 2 and r"--link is 'x\x1b[31mred\u202eabc'" in seen
    assert "\x1b[31m" not in seen and "\u202e" not in seen


def closed(stream: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$0" "$@" {stream}', sys.executable, "-m", "spark_integration.cli.app", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)


@pytest.mark.parametrize("words", [("failover", *LINK[2:]), ("failback", *LINK, "--discard-diverged")])
def test_a_command_whose_standard_input_is_closed_asks_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"  # which is refused after the question
    file.write_text("security.protocol = SSL\nssl.truststore.location = /no-store\n")
    properties = [
        word for side in ("source", "target") if f"--{side}" in words for word in (f"--{side}-properties", file)
    ]
    done = closed("<&-", *words, *map(str, properties))
    assert done.returncode == 2 and "/no-store" in done.stderr
    assert "Traceback" not in done.stderr and "Continue?" not in done.stderr


STREAMS = """
import os, subprocess, sys
from spark_integration.cli import app as cli
@cli.app.command()
def say():
    sys.stderr.isatty()
    print(sys.stdin.read(), [os.fstat(n).st_rdev == os.stat(os.devnull).st_rdev for n in (0, 2)])
    sys.stdout.flush()
    sys.exit(subprocess.call([sys.executable, "-c", "import os; os.fstat(0), os.fstat(2)"]))
cli.main()
"""


def test_closed_standard_streams_are_nobodys_also_for_what_is_started() -> None:
    """Otherwise a file or a socket in the place of a closed stream would receive what is meant for standard error."""
    command = ["sh", "-c", 'exec "$0" "$@" <&- 2>&-', sys.executable, "-c", STREAMS, "say"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, " [True, True]\n")


@pytest.mark.parametrize("words", [("verify", *LINK[:-2], "--tasks", "2"), ("demo",), ("mirror", *LINK)])
def test_a_command_that_needs_spark_says_in_one_sentence_that_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Cluster, "__init__", lambda *_, **__: pytest.fail("a cluster was asked"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError) and "Java" in str(done.exception)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError) and "pyspark is not installed" in str(done.exception)


@pytest.mark.parametrize("text", ["²", "1" * 20, "-1", "1969-12-31T23:59:59.999+00:00", "1e3", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--from"):
        time_ms("--from", text)


@pytest.mark.parametrize("words", [("doctor", *BOTH, "--seconds"), ("promote", *LINK, "--wait")])
@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300"])
def test_nobody_waits_for_ever(words: tuple[str, ...], seconds: str) -> None:
    done = CliRunner().invoke(app, [*words, seconds])
    refused = done.exit_code == 2 or isinstance(done.exception, OptionError)
    assert refused and not isinstance(done.exception, OverflowError) and words[-1] in f"{done.output}{done.exception}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", [("status", *BOTH, "--link", "nope"), ("list", *BOTH[2:])])
def test_a_command_that_is_refused_prints_its_one_document_too(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OptionError("No mirror of link nope has written down what it copies")

    monkeypatch.setattr(Cluster, "__init__", refuse)
    done = CliRunner().invoke(app, [*command, "--json"])
    assert isinstance(done.exception, OptionError)
    told = {"error": "No mirror of link nope has written down what it copies", "exit_code": 2}
    assert json.loads(done.stdout) == told
    assert not CliRunner().invoke(app, command).stdout


def test_orders_that_may_not_be_read_prevent_a_start() -> None:
    assert exit_code(OrdersHiddenError("hidden")) == 2


def test_a_right_that_list_lacks_has_the_exit_code_that_it_has_in_other_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TopicAuthorizationFailedError("topic tolerant-mirror-control: reading is not allowed to us")

    monkeypatch.setattr(Cluster, "__init__", refuse)
    done = CliRunner().invoke(app, ["list", *BOTH[2:], "--json"])
    assert json.loads(done.stdout)["exit_code"] == 2 and "tolerant-mirror-control" in json.loads(done.stdout)["error"]


def refused(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Why a command that asks no cluster is refused."""
    monkeypatch.setattr(Cluster, "__init__", lambda *_, **__: pytest.fail("a cluster was asked"))
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError), (done.exception, done.output)
    return str(done.exception.args[0])


@pytest.mark.parametrize(
    ("place", "before", "said"),
    [
        (
            None,
            0,
            "nothing was committed for group billing: link dr has mirrored no partition of which the group has offsets",
        ),
        (Place.RECORD, 0, ""),
        (
            Place.RECORD,
            9,
            "nothing was committed for group billing: on the target it is already at these offsets, or beyond (--force moves it back)",
        ),
        (Place.BEFORE_TAKEOVER, 0, "nothing was committed for group billing: nobody can translate its offsets"),
    ],
)
def test_a_commit_that_committed_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch, place: Place | None, before: int, said: str
) -> None:
    orders = TopicPartition("orders", 0)
    found = None if place is None else Translation(5, 5, place, 9)
    one = TranslatedOffset(orders, 5, orders, found)

    async def translate_group(*_: object) -> dict[TopicPartition, TranslatedOffset]:
        return {orders: one}

    async def commit_group(*_: object, **__: object) -> list[GroupCommit]:
        return [GroupCommit(orders, 5, before, before < 5)] if one.is_known else []

    async def no_names(*_: object) -> None:
        return None

    monkeypatch.setattr(follow, "translate_group", translate_group)
    monkeypatch.setattr(follow, "commit_group", commit_group)
    monkeypatch.setattr(translate, "_names", no_names)
    words = ["translate", *BOTH, "--link", "dr", "--group", "billing", "--commit"]
    done = CliRunner().invoke(app, words)
    assert done.stderr == (f"tolerant-kafka: {said}\n" if said else "") and done.exit_code == (
        0 if one.is_exact else LOOK
    )
    assert "nothing would be committed" in CliRunner().invoke(app, [*words, "--dry-run"]).stderr or not said


def test_status_of_a_link_that_the_dead_source_would_name_says_how_to_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ClusterUnreachableError("The source at a:1 could not be reached", "source")

    monkeypatch.setattr(status_command, "given_link", unreachable)
    for words, is_advised in ((BOTH, True), ((*BOTH, "--link", "dr"), False)):
        done = CliRunner().invoke(app, ["status", *words])
        assert ("With --link, or --config," in str(done.exception)) is is_advised


HERE = ("mirror", *BOTH, "--tasks", "0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*HERE, "--topics", "("), "is not a regular expression"),
        ((*HERE, "--topics", "orders", "--gap-fill", "nope"), "--gap-fill"),
        ((*HERE, "--topics", "orders", "--from", "yesterday"), "--from"),
        ((*HERE, "--topics", "orders", "--metrics", "nowhere"), "--metrics"),
        (("status", *BOTH[2:]), "Give --source, too"),
        (("status", "--link", "dr"), "Give --source and --target"),
        (("pause", "--link", "dr"), "Give --target"),
        (("status", *BOTH, "--topics", "("), "is not a regular expression"),
        (("plan", *BOTH[2:]), "Give --source, too"),
        (("promote", *BOTH[2:]), "Give --source, too"),
        (("promote", *BOTH, "--groups", "("), "is not a regular expression"),
        (("verify", *BOTH[2:]), "Give --source, too"),
        (("verify", *BOTH, "--resume", "FILE"), "--resume"),
        (("pause", *BOTH[2:], "--partition", "0"), "--partition goes with exactly one --topic"),
        (("resume", *BOTH[2:], "--partition", "0"), "--partition goes with exactly one --topic"),
        (("doctor", *BOTH, "--topics", "("), "is not a regular expression"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_told_before_a_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    file = tmp_path / "report"
    file.write_text("[]")
    assert why in refused(monkeypatch, *(str(file) if word == "FILE" else word for word in words))


def test_what_is_wrong_with_an_address_or_a_property_is_told_where_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert refused(monkeypatch, "status", "--source", "a", *BOTH[2:]).startswith(
        "--source has the invalid address 'a'; write HOST:PORT"
    )
    assert refused(monkeypatch, "doctor", "--cluster", "a:").startswith("--cluster has the invalid address 'a:'")
    file = tmp_path / "client.properties"
    file.write_text("security.protocol = NONE\n")
    assert refused(monkeypatch, "pause", *BOTH[2:], "--target-properties", str(file)).startswith(
        f"{file}: security.protocol must be one of"
    )
    monkeypatch.setenv("TOLERANT_KAFKA_TARGET", "b")
    assert refused(monkeypatch, "pause").startswith("TOLERANT_KAFKA_TARGET has the invalid address 'b'")
    told = {
        "error": "TOLERANT_KAFKA_TARGET has the invalid address 'b'; write HOST:PORT[,HOST:PORT...]",
        "exit_code": 2,
    }
    assert json.loads(CliRunner().invoke(app, ["pause", "--json"]).stdout) == told
    assert "no-checkpoint" in refused(monkeypatch, "offsets", "/no-checkpoint", "--source", "0")


def test_the_help_names_whole_variables_of_the_environment_at_80_columns() -> None:
    shown = CliRunner().invoke(app, ["status", "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    assert max(map(len, shown.splitlines())) <= 80
    for name in ("SOURCE", "TARGET", "LINK", "CONFIG", "SOURCE_PROPERTIES", "TARGET_PROPERTIES"):
        assert re.search(rf"\bTOLERANT_KAFKA_{name}\b", shown), shown
    assert "TOLERANT_KAFKA" not in CliRunner().invoke(app, ["demo", "--help"]).output


def test_links_are_listed_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = LinkTopics.of("orders.*, a-topic-with-a-long-name-of-its-own, another-topic-with-a-long-name")
    control = LinkControl(source_cluster_id="4L6g3nShT-eMCtK--X86sw", topics=topics.to_json(), producer_ids=(1,))
    links = (
        ListedLink("mirror-4L6g3nSh", control, None, True, False),
        ListedLink("broken", None, None, True, False, "unreadable"),
    )
    monkeypatch.setattr(Cluster, "run", lambda *_: Listing(links))
    shown = CliRunner().invoke(app, ["list", *BOTH[2:]], env={"COLUMNS": "80"})
    assert shown.exit_code == 3 and shown.output.splitlines() == [
        "link mirror-4L6g3nSh: no mirror was seen in the last hour",
        f"  offsets: identical; from cluster: 4L6g3nShT-eMCtK--X86sw; topics: {topics}",
        "link broken: unreadable: run tolerant-kafka repair",
        "  offsets: unknown; from cluster: unknown; topics: unknown",
    ]


def test_the_links_of_a_files_target_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, asked = tmp_path / "mm2.properties", list[str]()
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:2\nA->B.enabled = true\n")

    def run(cluster: Cluster, *_: Any) -> Listing:
        asked.extend((*cluster.bootstrap_servers, cluster.file_options))
        return Listing(())

    monkeypatch.setattr(Cluster, "run", run)
    shown = CliRunner().invoke(app, ["list", "--config", str(file)])
    assert (shown.output, shown.exit_code, asked) == ("This cluster has no links\n", 0, ["b:2", ""])
    assert "Give --target: " in refused(monkeypatch, "list")


@pytest.mark.parametrize("is_done", [False, True])
def test_a_promotion_that_is_blocked_has_moved_no_group(monkeypatch: pytest.MonkeyPatch, is_done: bool) -> None:
    blockers = () if is_done else ("1 offset is not copied yet",)
    groups = GroupsReport((), 3, (), ())
    report = PromotionReport("promote", "dr", False, is_done, (), blockers, groups=groups)
    monkeypatch.setattr(GivenLink, "run", lambda *_: report)
    monkeypatch.setattr(GivenLink, "whole", lambda given: given)
    shown = CliRunner().invoke(app, ["promote", *LINK])
    said = "0 offsets moved, 3 were" if is_done else "0 offsets would be moved, 3 are"
    assert f"groups: {said} already right" in shown.output and shown.exit_code == (0 if is_done else 3)


def test_what_is_unknown_of_the_links_is_said_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "run", lambda *_: Listing((), "the topic was deleted"))
    shown = CliRunner().invoke(app, ["list", *BOTH[2:]])
    assert (shown.output, shown.exit_code) == ("the topic was deleted\n", 3)
    shown = CliRunner().invoke(app, ["list", *BOTH[2:], "--json"])
    document = {"links": [], "unknown": "the topic was deleted", "exit_code": 3}
    assert (json.loads(shown.output), shown.exit_code) == (document, 3)
    monkeypatch.setattr(Cluster, "run", lambda *_: Listing(()))
    shown = CliRunner().invoke(app, ["list", *BOTH[2:]])
    assert (shown.output, shown.exit_code) == ("This cluster has no links\n", 0)


def test_the_help_shows_values_in_words_and_none_of_a_flag() -> None:
    """typer since 0.29 shows Python's types, and a value of options that take none."""
    for command in [
        "",
        *(str(info.name or info.callback.__name__.replace("_", "-")) for info in app.registered_commands),
    ]:
        shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"}).output
        options = [line for line in shown.splitlines() if re.match(r"\W+--", line)]
        assert options and not re.search(r"<(bool|int|float|str|list|file|path)\b", "".join(options)), command
