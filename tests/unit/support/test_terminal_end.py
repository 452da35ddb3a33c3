"""How the mirror ends on a terminal of 80 columns: whatever the bars draw, the sentence that ends it stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from support.terminal import Screen, run_in_terminal

SENTENCE = (
    "The target log of orders-0 has a foreign record batch at offset 2500 (producer id 1, the mirror's is 0): somebody else"
    " writes to it. Find out who, delete the target topic, and start the mirror again: it creates the topic and fills it again"
)
CHILD = """
import contextlib, sys, time
from types import SimpleNamespace
from kafka.structs import TopicPartition
from spark_integration.cli import app as cli
from spark_integration.cli import mirror as command
from spark_integration.mirror import mirror_job
from tolerant_client.ops.service import mirror_settings
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.engine.prepare import PreparedLink

sentence = sys.argv.pop()
ends = {TopicPartition(topic, 0): 10_000 for topic in ("audit", "orders", "payments")}

def run(settings, link, is_stopping, tell, claim):
    for turn in range(4):
        tell(TaskReport(turn, acked=dict.fromkeys(ends, turn)))
        time.sleep(0.3)
        sys.stderr.write("WARNING: Using incubator modules: jdk.incubator.vector\\n") if turn == 0 else None
    raise TargetDivergedError(sentence)

command.unnamed_link = lambda source, target, is_start: "default"
mirror_settings.run_claim = lambda settings: contextlib.nullcontext(SimpleNamespace(unsettled=()))
mirror_job.prepare = lambda settings, claim, is_stopping: PreparedLink(1, (), ends)
mirror_job.run = run
cli.main()
"""


def test_the_sentence_that_ends_a_mirror_is_on_the_screen_at_the_end(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    arguments = ["mirror", "--source", "127.0.0.1:1", "--target", "127.0.0.1:2", "--topics", "orders", SENTENCE]
    code, seen = run_in_terminal([sys.executable, str(script), *arguments], 80, {"PYTHONPATH": ":".join(sys.path)})
    assert code == 1
    assert seen.rstrip().endswith(f"tolerant-kafka: {SENTENCE}"), seen


def test_a_screen_shows_what_a_terminal_would() -> None:
    screen = Screen(10)
    screen.feed("one\r\ntwo\r\n\x1b[1A\x1b[2Kthree\r\n\x1b[32m0123456789ab\x1b[0m\r\n")
    assert screen.text == "one\nthree\n0123456789ab\n\n"
