"""How a link is, and every reason why it is not well: for the status page, for metrics, for probes.  Pure.

Laws:
- Whoever reads only this at night knows what to look at: each reason is a sentence that says what is wrong and where.
- Numbers that nobody has refreshed for long are said to be old: a page that goes on answering is no sign of a mirror.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from spark_integration.mirroring.link_state import LinkState, Phase

_STALE_S = 90.0  # a micro-batch of a tail holds for 10 s, and a look at 10,000 partitions is followed by as much rest
_STARTING_S = 180.0
_OVERDUE_S = 120.0  # and two intervals


class Level(str, enum.Enum):
    """How a link is: OK; WARNING, an operator should look; CRITICAL, nothing is copied."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"

    def __str__(self) -> str:
        return self.value


def health_of(state: LinkState, now_ms: int) -> tuple[Level, tuple[str, ...]]:
    """The level, and the reasons, the worst first."""
    critical, warnings = tuple(_critical(state)), tuple(_warnings(state, now_ms))
    level = Level.CRITICAL if critical else Level.WARNING if warnings else Level.OK
    return level, (*critical, *warnings)


def _critical(state: LinkState) -> Iterator[str]:
    for name, why in state.unreachable.items():
        yield f"The {name} cluster does not answer: {why}"
    if state.phase in (Phase.FAILED, Phase.RESTARTING):
        yield f"The query is {state.phase}: {state.problem or 'no reason is known'}"


def _warnings(state: LinkState, now_ms: int) -> Iterator[str]:
    control = state.control
    if state.blind:
        yield f"The clusters cannot be looked at: {state.blind}"
    looked_s, started_s = (now_ms - state.time_ms) / 1000, (now_ms - state.started_ms) / 1000
    reported_s = (now_ms - state.report.time_ms) / 1000 if state.report.time_ms else started_s
    if state.phase is Phase.STARTING and started_s > _STARTING_S:
        yield f"The link has been starting for {_long(started_s)}: see what its log says"
    if state.phase is Phase.RUNNING:
        if looked_s > _STALE_S:
            yield f"The clusters were last looked at {_long(looked_s)} ago: all numbers are as old"
        if reported_s > _STALE_S:
            yield f"No micro-batch has ended for {_long(reported_s)}"
        if not (control.is_promoted or control.is_handed_back):
            yield from _overdue(state, now_ms)
    for name, duty in state.duties.items():
        if duty.problem:
            yield f"{name}: {duty.problem}"
    if control.paused:
        names = ", ".join(name or "the whole link" for name in sorted(control.paused)[:5])
        yield f"The operator has paused {names}{' and more' if len(control.paused) > 5 else ''}"
    if control.is_handed_back:
        yield "The link was handed back to MirrorMaker 2: it copies nothing"
    elif control.is_promoted:
        yield "The link is promoted: it copies nothing"
    elif control.is_fenced:
        yield "The link is fenced: a promotion has begun and has not ended, and nothing is copied"
    if state.paused:
        yield f"{_counted(len(state.paused), 'partition')} paused: see what for"
    for name, number in state.leaderless.items():
        yield f"{_counted(number, 'partition')} without a leader on the {name}: their numbers are as of before"
    if state.ledger:
        yield f"The ledger has {_counted(len(state.ledger), 'row')}: records were lost or left out"


def _overdue(state: LinkState, now_ms: int) -> Iterator[str]:
    for name, duty in state.duties.items():
        since_s = (now_ms - duty.time_ms) / 1000
        if duty.time_ms and since_s > 2 * duty.interval_s + _OVERDUE_S:
            yield f"{name}: no round has ended for {_long(since_s)}, though one is due every {duty.interval_s:g} s"


def _long(seconds: float) -> str:
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
