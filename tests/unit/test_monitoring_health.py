"""health.py: whoever reads only the reasons knows what to look at, also when nobody refreshes them any more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.link_samples import NOW_MS, state, troubled

from spark_integration.mirroring.link_state import DutyState, Phase, TaskReport
from spark_integration.monitoring.health import Level, health_of
from tolerant_client.mirror.link.control import LinkControl


def test_health_is_ok_without_a_reason_only() -> None:
    assert health_of(state(), NOW_MS) == (Level.OK, ())


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"unreachable": {"source": "refused"}}, Level.CRITICAL, "The source cluster does not answer: refused"),
        ({"phase": Phase.RESTARTING, "problem": "lost"}, Level.CRITICAL, "The query is restarting: lost"),
        ({"phase": Phase.FAILED}, Level.CRITICAL, "The query is failed"),
        ({"blind": "KeyError: x"}, Level.WARNING, "cannot be looked at: KeyError: x"),
        ({"leaderless": {"source": 2}}, Level.WARNING, "2 partitions without a leader on the source"),
        ({"duties": {"sync_topic_acls": DutyState(NOW_MS, "no")}}, Level.WARNING, "sync_topic_acls: no"),
        ({"duties": {"beat": DutyState(NOW_MS - 200_000, "", 1.0)}}, Level.WARNING, "beat: no round has ended for 200 s"),
        ({"control": LinkControl(paused=frozenset(("",)))}, Level.WARNING, "paused the whole link"),
        ({"control": LinkControl(is_promoted=True, is_fenced=True)}, Level.WARNING, "promoted: it copies nothing"),
        ({"control": LinkControl(is_fenced=True)}, Level.WARNING, "fenced"),
        ({"control": LinkControl(is_handed_back=True)}, Level.WARNING, "handed back to MirrorMaker 2"),
        ({"report": TaskReport(NOW_MS - 91_000)}, Level.WARNING, "No micro-batch has ended for 91 s"),
        ({"report": TaskReport(), "started_ms": NOW_MS - 200_000}, Level.WARNING, "No micro-batch has ended for 200 s"),
        ({"phase": Phase.STARTING, "started_ms": NOW_MS - 600_000}, Level.WARNING, "has been starting for 10 min"),
    ],
)
def test_health_names_every_reason(change: dict[str, object], level: Level, words: str) -> None:
    found, reasons = health_of(replace(state(), **change), NOW_MS)  # type: ignore[arg-type]
    assert found is level
    assert any(words in reason for reason in reasons), reasons


def test_worst_reason_comes_first() -> None:
    level, reasons = health_of(replace(troubled(), unreachable={"target": "away"}), NOW_MS)
    assert level is Level.CRITICAL
    assert reasons[0].startswith("The target cluster") and len(reasons) == 4


def test_numbers_that_nobody_refreshes_are_said_to_be_old() -> None:
    later = NOW_MS + 3 * 3_600_000
    level, reasons = health_of(state(), later)
    assert level is Level.WARNING
    assert any("last looked at 3.0 h ago: all numbers are as old" in reason for reason in reasons), reasons


@pytest.mark.parametrize("change", [{"control": LinkControl(is_promoted=True)}, {"phase": Phase.STOPPED}])
def test_what_rests_by_order_is_not_called_late(change: dict[str, object]) -> None:
    resting = replace(state(), duties={"beat": DutyState(NOW_MS - 900_000, "", 1.0)}, **change)  # type: ignore[arg-type]
    assert not any("no round" in reason for reason in health_of(resting, NOW_MS)[1])
