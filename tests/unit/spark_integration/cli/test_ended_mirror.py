"""What a mirror that has ended prints, and its exit code."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.cli.mirror_report import _UNSETTLED, MirrorReport
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.open_transactions import Held

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
DONE: dict[str, Any] = {"topics": ["orders"], "records": 1_000, "offsets": 1_004, "seconds": 1.23456}
HELD = Held(SECOND, 4, 6, unknown="its broker is away")
ROW = LedgerRow(1, "A-B", "orders", 0, 4, 8, "retention", "gone")


@pytest.mark.parametrize(
    ("found", "warnings"),
    [
        ({"losses": [ROW]}, []),
        ({"paused": {FIRST: "an operator"}}, []),
        ({"blocked": {FIRST: "no right"}}, []),
        (
            {"waiting": {FIRST: "it has no leader on the source"}},
            ["not copied: orders-0: it has no leader on the source"],
        ),
        ({"behind": [FIRST]}, ["behind: orders-0 did not reach the end that its source had at the start"]),
        ({"held": [HELD]}, [f"waiting: copied up to the last stable offset; {HELD}"]),
        ({"ended": [FIRST]}, ["behind: orders-0 had an open transaction at the start, which has ended since"]),
        ({"unsettled": [FIRST]}, [_UNSETTLED.format("orders-0")]),
    ],
)
def test_whatever_was_not_copied_needs_attention(found: dict[str, Any], warnings: list[str]) -> None:
    report = MirrorReport(**DONE, **found)
    assert report.exit_code == report.to_json()["exit_code"] == 3
    assert [text.removesuffix("; start the mirror again") for text in report.warnings] == warnings


def test_a_whole_copy_is_one_sentence_or_one_document() -> None:
    report = MirrorReport(**DONE)
    assert (report.exit_code, report.warnings) == (0, [])
    told = "1,000 records of 1 topic copied in 1.2 s; the target has gained 1,004 offsets"
    assert str(report) == told and str(MirrorReport(**DONE, is_least=True)) == f"at least {told}"
    assert report.to_json() == {
        **DONE,
        "seconds": 1.235,
        "losses": [],
        "paused": [],
        "blocked": [],
        "waiting": [],
        "exit_code": 0,
        "open_transactions": [],
        "unsettled": [],
    }
