"""How pauses grow, and when a repeated statement is believed."""

from __future__ import annotations

import time

import pytest

from tolerant_client.cluster.patience import BELIEVED_AFTER, Backoff, Belief, Patience


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    pauses = [Backoff(0.5, 3.0).pause_s(repeat) for repeat in range(1, 6)]
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Backoff().pause_s(10**9) == 1.0


def test_what_is_said_often_enough_in_a_row_is_believed() -> None:
    belief = Belief()
    assert [belief.hear(said) for said in ("a", "a", "b", "b", "b")] == [False, False, False, False, True]
    belief.forget()
    assert belief.times == 0 and [belief.hear("b") for _ in range(BELIEVED_AFTER)][-2:] == [False, True]


def test_patience_ends_and_its_pauses_differ_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(5.0, Backoff(1.0, 2.0))
    pauses = [patience.pause_s() for _ in range(3)]
    assert all(0.8 * whole <= pause <= 1.2 * whole for pause, whole in zip(pauses, (1.0, 2.0, 2.0)))
    assert not patience.is_over
    now[0] += 5.0
    assert patience.is_over
