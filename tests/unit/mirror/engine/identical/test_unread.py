"""What may lie unread at a broker."""

from __future__ import annotations

import pytest

from tolerant_client.mirror.engine.identical.unread import LATE_S, Unread

NOW_MS = 1_700_000_000_000.0


@pytest.mark.parametrize(
    ("old_from_ms", "remembered_ms", "silent_s", "now", "holds"),
    [
        (NOW_MS, NOW_MS + 1_000, 10.0, 50.0, True),
        (NOW_MS + 100_000, NOW_MS + 100_000, 10.0, 50.0, True),  # the broker forgets the producer too soon
        (NOW_MS + 1000 * LATE_S, NOW_MS + 1_000, 10.0, 50.0, False),  # the broker goes on to remember the producer
        (NOW_MS, NOW_MS - 1, 10.0, 50.0, True),  # it was not old when it was sent
        (NOW_MS, NOW_MS - 3_600_000, 10.0, 50.0, False),  # nothing can be unread after an old batch
        (NOW_MS, NOW_MS + 1_000, float("inf"), 50.0, False),  # nobody fell silent
        (NOW_MS, NOW_MS + 1_000, 10.0, 50.0 + LATE_S - 10.0, False),
    ],
)
def test_an_old_batch_waits_after_a_newer_one_while_what_a_silent_writer_sent_may_come(
    old_from_ms: float, remembered_ms: float, silent_s: float, now: float, holds: bool
) -> None:
    unread = Unread()
    assert not unread.holds(old_from_ms.__le__, NOW_MS, now)
    unread.ends_with(remembered_ms)
    unread.took_over(silent_s, 50.0)
    unread.took_over(float("inf"), 50.0)
    assert unread.holds(old_from_ms.__le__, NOW_MS, now) is holds


def test_what_was_lost_counts_until_the_throttle_ends_that_was_told() -> None:
    unread = Unread()
    unread.ends_with(NOW_MS + 1_000)
    for until in (float("-inf"), 40.0, 30.0):
        unread.lost(until)
    assert unread.holds(lambda _: True, NOW_MS, 39.0) and not unread.holds(lambda _: True, NOW_MS, 40.0)
