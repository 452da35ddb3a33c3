"""The last line of a promotion: what is done, in part or not, and what a rehearsal would do."""

from __future__ import annotations

import pytest

from spark_integration.cli.promote import _show
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.life.promotion_report import PromotedPartition, PromotionReport

PART = PromotedPartition("orders", 0, 7, 0, None)
AWAY = ("orders-1 cannot be fenced: it has no leader",)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (PromotionReport("failover", "dr", False, True, (PART,)), "is promoted: nothing of it writes"),
        (
            PromotionReport("failover", "dr", False, False, (PART,), AWAY, is_begun=True),
            "is promoted in part: processes",
        ),
        (PromotionReport("failover", "dr", False, False, (), AWAY), "was not promoted; nothing was written"),
        (PromotionReport("failover", "dr", True, False, (PART,)), "could be promoted now; nothing was written"),
        (
            PromotionReport("failover", "dr", True, False, (PART,), AWAY),
            "could be promoted in part now, without what is named",
        ),
        (PromotionReport("failover", "dr", True, False, (), AWAY), "was not promoted; nothing was written"),
        (PromotionReport("promote", "dr", True, False, (PART,), AWAY), "was not promoted; nothing was written"),
    ],
)
def test_the_last_line_says_what_was_or_would_be_promoted(
    report: PromotionReport, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(report)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"Link dr {line}")


def test_that_no_group_was_seen_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    left = Left("groups of the source", "none", "none was seen there"), Left("group g", "members", "in use")
    _show(PromotionReport("promote", "dr", False, True, (PART,), groups=GroupsReport((), 0, (), left)))
    told = capsys.readouterr().out.splitlines()
    assert "note: groups of the source: none was seen there" in told and "left: group g: in use" in told
    left = tuple(Left(f"group g, wide-{n}", "no-topic", "the target has no such partition") for n in range(60))
    _show(PromotionReport("promote", "dr", False, True, (PART,), groups=GroupsReport((), 0, (), left)))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left: ")]
    assert told == ["left: group g, wide-0 and 59 more: the target has no such partition"]
    left = tuple(Left(f"group {name}", "in-use", "it is in use on the target") for name in "abc")
    _show(PromotionReport("promote", "dr", False, True, (PART,), groups=GroupsReport((), 0, (), left)))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left: ")]
    assert told == [f"left: group {name}: it is in use on the target" for name in "abc"], (
        "an operator sets them by hand"
    )
