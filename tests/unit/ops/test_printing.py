"""Foreign text never passes for the product's own: not as markup, not as an extra line, not as an escape sequence."""

from __future__ import annotations

import ast
import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import typer
from rich.console import Console
from typer.testing import CliRunner

from spark_integration.cli import promote
from spark_integration.cli.app import app
from spark_integration.cli.link import end_with
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.promotion_report import GroupPlace, PromotedPartition, PromotionReport
from tolerant_client.ops.doctor.checkup import Checkup
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.report import print_report
from tolerant_client.ops.monitoring.bars import LinkBars
from tolerant_client.ops.printing import LogFormatter, Table, cell, print_table, printable, working
from tolerant_client.ops.service.link_events import EventPrinter, LinkEvent

COMMANDS = Path(promote.__file__).parent
MARKUP, LINES, ESCAPE = "[/reports]", "x\ntolerant-kafka: dr: promoted", "\x1b[2K\x07"
FORGED = MARKUP + LINES + ESCAPE


def shown(thing: object) -> str:
    console = Console(file=io.StringIO(), width=400, force_terminal=True)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above


@pytest.mark.parametrize(
    "text, printed",
    [
        ("orders-7 grüße", "orders-7 grüße"),
        ("a\nb\r\x1b[2K\x7f", r"a\nb\r\x1b[2K\x7f"),
        ("right\u202eleft\u200b", r"right\u202eleft\u200b"),
        ("half \udc80", r"half \udc80"),
        (ValueError("line\nline"), r"line\nline"),
    ],
)
def test_what_a_terminal_would_obey_is_printed_as_an_escape(text: object, printed: str) -> None:
    assert printable(text) == printed


def test_a_table_shows_markup_as_it_is() -> None:
    table = Table("group", title=f"link {MARKUP}")
    table.add_row(FORGED)
    text = shown(table)
    assert text.count(MARKUP) == 2 and text.count(r"x\ntolerant-kafka: dr: promoted\x1b[2K\x07") == 1
    assert "\x1b[2K" not in text and "\x07" not in text
    assert shown(cell("orders[a-z]+")) == "orders[a-z]+\n"


def test_a_failover_with_a_group_named_like_markup_reports_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = PromotionReport(
        "failover",
        "dr",
        is_dry_run=False,
        is_done=True,
        partitions=(PromotedPartition("orders", 0, 10, None, None),),
        warnings=(f"group {FORGED} was there",),
        group_places=(GroupPlace(FORGED, "orders", 0, 7, 3),),
    )
    with pytest.raises(typer.Exit) as exit_:
        end_with(report, False, promote._show)
    out, err = capsys.readouterr()
    assert exit_.value.exit_code == 0
    assert MARKUP in out and "Link dr is promoted" in out
    assert (
        err == r"tolerant-kafka: warning: group [/reports]x\ntolerant-kafka: dr: promoted\x1b[2K\x07 was there" + "\n"
    )
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("counted", "told"),
    [
        ({}, "10"),  # a promotion that is blocked counts nothing
        ({"left_records": 0, "left_unread": 0}, "10 (0 records)"),
        ({"left_records": 1, "left_unread": 0}, "10 (1 record)"),
        ({"left_records": 1, "left_unread": 5}, "10"),
        ({"left_records": 6, "left_unread": 0, "left_deleted": (10, 14)}, "10 (6 records, 4 deleted)"),
        ({"left_records": 0, "left_unread": 0, "left_deleted": (10, 20)}, "10 (10 deleted)"),
    ],
)
def test_of_what_a_promotion_left_behind_only_records_that_were_counted_are_printed(
    counted: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part = PromotedPartition("orders", 0, 10, 10, None, **counted)
    promote._show(PromotionReport("promote", "dr", True, False, (part,)))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "orders" in line]
    assert row.split("│")[-2].strip() == told


def test_a_dry_run_shows_the_patterns_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
        "A->B.topics = orders[a-z]+, a[/]b.*\n"
    )
    result = CliRunner().invoke(app, ["mirror", "--config", str(file), "--dry-run"])
    assert result.exit_code == 0 and "orders[a-z]+, a[/]b.*" in result.stdout
    assert re.search(r"bytes/s at most +. no limit", result.stdout)


def test_an_event_of_a_link_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    EventPrinter()(LinkEvent("dr", "left", f"groups left {FORGED}"))
    assert capsys.readouterr().err == (
        r"tolerant-kafka: dr: groups left [/reports]x\ntolerant-kafka: dr: promoted\x1b[2K\x07" + "\n"
    )


def test_a_line_above_the_bars_is_one_line() -> None:
    file = io.StringIO()
    LinkBars(is_once=False, is_shown=False, console=Console(file=file, width=200)).print(
        f"tolerant-kafka: paused: {FORGED}"
    )
    assert file.getvalue() == r"tolerant-kafka: paused: [/reports]x\ntolerant-kafka: dr: promoted\x1b[2K\x07" + "\n"


def test_the_doctor_prints_no_escape_sequence_of_others() -> None:
    checkup = Checkup(findings=[Finding(Severity.ERROR, "groups", "source", FORGED, FORGED, FORGED)])
    file = io.StringIO()
    print_report(checkup, 1.0, Console(file=file, width=400))
    assert file.getvalue().count(MARKUP) == 3 and "\x1b" not in file.getvalue() and "\nx" not in file.getvalue()


def test_commands_print_only_through_printing() -> None:
    """Only JSON is printed unchanged: it is already escaped."""
    wrong = []
    for path in COMMANDS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "rich.table":
                wrong.append(f"{path.name} imports rich.table")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "typer.confirm",
                "typer.prompt",
                "typer.secho",
            ):
                wrong.append(f"{path.name}: {ast.unparse(node.func)}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.echo":
                printed = ast.unparse(node.args[0])
                if not printed.startswith("json.dumps(") and (path.name, printed) != ("offsets.py", "text"):
                    wrong.append(f"{path.name}: typer.echo({printed})")
    assert wrong == []


def test_a_properties_file_with_a_wrong_escape_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "source.properties"
    file.write_text("password = canary\\uXYZ\n")
    result = CliRunner().invoke(app, ["verify", "--source", "a:1", "--target", "b:1", "--source-properties", str(file)])
    assert isinstance(result.exception, OptionError) and "is not a properties file" in str(result.exception)


def printed(table: Table, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What print_table prints on a terminal of this width, or of no colours ("dumb"), or into a pipe ("")."""
    if columns:
        monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal for rich
        monkeypatch.setenv(*(("TERM", "dumb") if columns == "dumb" else ("COLUMNS", columns)))
    print_table(table)
    return re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("columns", ["40", "80", "200", "dumb", ""])
def test_a_table_cuts_and_breaks_no_word(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns of equal and of very different widths: rich takes a missing width from the widest, whatever is in them."""
    topic, command = (
        "payments.of-the-eu-central-1-region",
        "tolerant-kafka resume --target b:9092 --link A-B --topic payments",
    )
    names = [f"column-number-{n}" for n in range(3)]
    table = Table("topic", "n", *names, "why", "what", title=f"link {'of-a-long-name-' * 6}: plan")
    table.add_row(topic, "3", *(f"value-of-{n}" for n in range(3)), "it has fewer partitions than the source", command)
    said = printed(table, columns, monkeypatch, capsys)
    lines = said.splitlines()
    assert "…" not in said and all(word in said for word in (*names, topic, "value-of-2", "partitions", "below"))
    assert lines[0].startswith("link ") and lines[0].endswith("-: plan")
    assert lines[-1] == f"{topic}, what: {command}"
    rows = [line for line in lines if line.startswith("│")]
    assert len({len(row) for row in rows}) == 1 and (columns != "" or len(rows) == 1)


def test_a_table_uses_the_width_of_the_terminal_before_it_exceeds_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("topic", "a", "b")
    table.add_row("t" * 40, "many short words " * 3, "others that are short")
    said = printed(table, "80", monkeypatch, capsys)
    assert {len(line) for line in said.splitlines()} == {80} and "t" * 40 in said


def test_the_doctor_prints_a_command_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "kafka-acls.sh --bootstrap-server b:9092 --command-config admin.properties --add --topic tolerant-mirror-control"
    file = io.StringIO()
    found = Finding(
        Severity.ERROR, "rights", "target", "topic tolerant-mirror-control", "Write is not allowed", command
    )
    print_report(Checkup(findings=[found]), 1.0, Console(file=file, width=80))
    assert file.getvalue().splitlines()[:3] == [
        "error: target, rights: topic tolerant-mirror-control",
        "  found: Write is not allowed",
        f"  to do: {command}",
    ]


def test_a_command_whose_output_nobody_reads_ends_as_if_by_sigpipe() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "spark_integration.cli.app", "verify", "--help"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_one_sentence_and_no_verdict() -> None:
    command = [sys.executable, "-m", "spark_integration.cli.app", "verify", "--help"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    said = b"tolerant-kafka: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, said)


def test_a_closed_standard_output_changes_nothing_of_a_command() -> None:
    command = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "spark_integration.cli.app", "verify"]
    done = subprocess.run([*command, "--help"], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    wrong = subprocess.run([*command, "--source", "a:1"], stderr=subprocess.PIPE)
    assert wrong.returncode == 2 and b"Traceback" not in wrong.stderr and b"tolerant-kafka: " in wrong.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_output_has_no_sign_for_is_printed_as_an_escape(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60"}
    command = [sys.executable, "-m", "spark_integration.cli.app", "mirror", "-h"]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and b"--topics" in done.stdout


def test_what_takes_seconds_is_shown_while_it_does_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (False, True):
        shown = io.StringIO()
        monkeypatch.setattr(shown, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stderr", shown)
        with working("looking"):
            pass
        assert ("looking" in shown.getvalue()) is is_terminal


def test_a_record_of_the_log_is_one_line_and_escapes_what_a_broker_says() -> None:
    try:
        raise ConnectionError(ESCAPE)
    except ConnectionError:
        record = logging.LogRecord("kafka", logging.INFO, "x.py", 1, "node at %s", (LINES + ESCAPE,), sys.exc_info())
    first, *traceback = LogFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first == "INFO node at x\\ntolerant-kafka: dr: promoted\\x1b[2K\\x07"
    assert traceback[0].startswith("Traceback") and traceback[-1] == "ConnectionError: \\x1b[2K\\x07"
