"""The health of a running link, with every reason for which it is not healthy: for the page, metrics and probes.  Pure.

The words are those of tolerant_client.mirror.state.health, which `status` uses too.  Laws besides:
- The first reason alone tells an operator what to check, and where.
- Numbers that are not refreshed for long are unknown: a page that still responds does not prove that the mirror runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tolerant_client.mirror.state.control_topic import UNKNOWN_ORDERS
from tolerant_client.mirror.state.health import (
    Health,
    Reason,
    blocked_reasons,
    counted,
    few,
    not_responding,
    sorted_by_weight,
    waiting_reasons,
    worst,
)
from tolerant_client.mirror.state.open_transactions import is_held_long
from tolerant_client.ops.service.link_state import LinkState, Phase

# A micro-batch in tail mode holds for 10 s, and a sample of 10,000 partitions can be followed by 30 s of rest.
STALE_S = 90.0
_OVERDUE_S = 120.0  # plus two intervals


def health_of(state: LinkState, now_ms: int) -> tuple[Health, tuple[Reason, ...]]:
    """The health and its reasons, the worst first."""
    control = state.control
    if control.is_handed_back:
        return Health.HANDED_BACK, ()
    if control.is_promoted:
        return Health.PROMOTED, ()
    reasons = sorted_by_weight(_reasons(state, now_ms))
    return worst(reasons), reasons


def _reasons(state: LinkState, now_ms: int) -> Iterator[Reason]:
    if state.control.is_promotion_begun or state.control.is_fenced:
        text = "Its promotion has begun and has not ended, and nothing is copied: run the same command again"
        yield Reason(Health.BLOCKED, text)
    if state.phase is Phase.FAILED:
        yield Reason(Health.BLOCKED, f"The mirror has failed: {state.problem or 'no reason is known'}")
    yield from (Reason(Health.BLOCKED, state.unreachable[name]) for name in sorted(state.refused))
    yield from blocked_reasons({p: why for p, why in state.blocked.items() if not state.control.pauses(p)})
    yield from _unknown(state, now_ms)
    yield from _waiting(state, now_ms)
    if paused := state.control.paused_words:
        yield Reason(
            Health.PAUSED, f"An operator has paused {', '.join(paused[:5])}{' and more' if len(paused) > 5 else ''}"
        )


def _unknown(state: LinkState, now_ms: int) -> Iterator[Reason]:
    looked_s = (now_ms - state.time_ms) / 1000
    away = {name: why for name, why in state.unreachable.items() if name not in state.refused}
    texts = [not_responding(name, why) for name, why in away.items()]
    if state.blind:
        texts.append(f"The clusters cannot be checked: {state.blind}")
    if state.control_problem:
        texts.append(f"{UNKNOWN_ORDERS[0].upper()}{UNKNOWN_ORDERS[1:]}: {state.control_problem}")
    if state.phase is Phase.RUNNING and looked_s > STALE_S:
        texts.append(f"The clusters were last checked {_long(looked_s)} ago: all numbers are that old")
    if state.phase is Phase.RUNNING and (silent_s := _silent_s(state, now_ms)) > STALE_S:
        texts.append(f"No micro-batch has ended for {_long(silent_s)}: what the tasks do is unknown")
    if state.phase is Phase.STOPPED:
        texts.append("The mirror was stopped: all numbers are as of then")
    for name, left_out in state.leaderless.items():
        number = counted(left_out.partitions, "partition")
        texts.append(f"{number} of the {name} cannot be checked, so their numbers are older: {left_out.why}")
    yield from (Reason(Health.UNKNOWN, text) for text in texts)


def _waiting(state: LinkState, now_ms: int) -> Iterator[Reason]:
    if state.phase is Phase.RESTARTING:
        yield Reason(Health.WAITING, f"The mirror is started again: {state.problem or 'no reason is known'}")
    elif state.phase is Phase.STARTING:
        yield Reason(Health.WAITING, f"The mirror has been starting for {_long((now_ms - state.started_ms) / 1000)}")
    yield from waiting_reasons(state.waiting)
    held = (str(one) for one in state.held if is_held_long(one, now_ms))
    yield from (Reason(Health.WAITING, text) for text in few(held))
    for name, duty in state.duties.items():
        since_s = (now_ms - duty.time_ms) / 1000
        if duty.problem:
            yield Reason(Health.WAITING, f"{name}: {duty.problem}")
        if state.phase is Phase.RUNNING and duty.time_ms and since_s > 2 * duty.interval_s + _OVERDUE_S:
            text = f"{name}: no round has ended for {_long(since_s)}, though one is due every {duty.interval_s:g} s"
            yield Reason(Health.WAITING, text)


def _silent_s(state: LinkState, now_ms: int) -> float:
    """For how long the tasks have reported nothing, in seconds."""
    return (now_ms - (state.report.time_ms or state.started_ms)) / 1000


def _long(seconds: float) -> str:
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"
