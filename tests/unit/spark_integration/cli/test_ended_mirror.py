"""What a mirror that has ended prints, and its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.cli import mirror
from spark_integration.cli.mirror_report import _UNSETTLED, MirrorReport
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.health import kept_beyond
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
        (
            {"kept": {FIRST: "the source has lost records"}},
            [
                "not copied: orders-0: the source has lost records: what the source has before that offset is not on the target;"
                " tolerant-kafka status names what was lost"
            ],
        ),
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
    told = "1,000 records of 1 topic copied in 1.2 s"
    assert str(report) == told and str(MirrorReport(**DONE, is_least=True)) == f"at least {told}"
    assert str(MirrorReport(**DONE, counts_offsets=True)) == told.replace("1,000 records", "1,004 offsets")
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


@pytest.mark.parametrize("offsets", ["identical", "translated"])
def test_a_target_that_goes_on_after_its_source_has_not_all_of_it(
    monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """Nor is it called so where another mirror copied what the source has gained since the start, or where nobody leads."""
    asked: list[set[TopicPartition]] = []

    async def ends(_: Any, wanted: Mapping[TopicPartition, int]) -> LedOffsets:
        asked.append(set(wanted))
        return LedOffsets({p: end for p, end in present.items() if p in wanted}, {})

    def of_source(_: Any, ask: Any, is_stopping: Any) -> Any:
        return asyncio.run(ask(None))

    monkeypatch.setattr(mirror, "list_led_offsets", ends)
    monkeypatch.setattr(mirror, "_of_source", of_source)
    shorter, grown, level, unled, unseen = partitions = [TopicPartition("orders", n) for n in range(5)]
    present = {shorter: 180, grown: 220, level: 200, unseen: 100}
    settings: Any = SimpleNamespace(is_identical=offsets == "identical", once=True)
    prepared: Any = SimpleNamespace(ends=dict.fromkeys(partitions, 190) | {level: 200}, target_ends={unseen: 200})
    reached = dict.fromkeys((shorter, grown, level, unled), 200)
    found = mirror.kept_at_end(settings, prepared, reached, lambda: False)
    if offsets == "translated":
        assert not found and not asked
        return
    assert asked == [{shorter, grown, unled, unseen}], "what is level costs no request"
    assert found == dict.fromkeys([shorter, unseen], kept_beyond(200))
