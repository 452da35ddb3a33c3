"""correlation.py: what it remembers of old ids is right, and bounded."""

from __future__ import annotations

import pytest

from tolerant_client.tracker.correlation import SPACE, CorrelationIds

MANY = 5_000
REMEMBERED = 1_024


@pytest.mark.parametrize("start", [0, SPACE - 2_500])
def test_only_the_latest_lost_ids_are_remembered_as_such(start: int) -> None:
    ids = CorrelationIds(start)
    drawn = [ids.draw() for _ in range(MANY)]
    for n, correlation_id in enumerate(drawn):
        ids.lose(correlation_id, float(n))
    causes = [ids.recall(correlation_id)[0] for correlation_id in drawn]
    assert causes == ["duplicate"] * (MANY - REMEMBERED) + ["late"] * REMEMBERED


def test_only_the_latest_ids_without_an_answer_are_remembered_as_such() -> None:
    ids = CorrelationIds(0)
    drawn = [ids.draw_unanswered() for _ in range(MANY)]
    causes = [ids.recall(correlation_id)[0] for correlation_id in drawn]
    assert causes == ["duplicate"] * (MANY - REMEMBERED) + ["unasked"] * REMEMBERED


def test_a_lost_id_is_late_once_and_then_a_duplicate() -> None:
    ids = CorrelationIds(7)
    correlation_id = ids.draw()
    ids.lose(correlation_id, 2.5)
    assert ids.recall(correlation_id) == ("late", 2.5)
    assert ids.recall(correlation_id) == ("duplicate", None)
