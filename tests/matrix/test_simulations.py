"""The tracker in 30,000 seeded simulations (a million with TOLERANT_LONG=1), in two processes.

A seed that breaks an invariant is printed with the line that replays it, event by event:
`PYTHONPATH=tests python -m support.simulation <seed>`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.long import LONG
from support.simulation import FAULTS, Broken, Simulation
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.lifecycle import InFlightRequest
from tolerant_client.tracker.limits import Repeats
from tolerant_client.tracker.rules.apis import OtherSubject

SEEDS = int(os.environ.get("TOLERANT_SIMULATIONS", "1000000" if LONG else "30000"))
PROCESSES = 2
FIRST_SEED = 1_000_000

MUST_HAPPEN = {
    "completed",
    "reordered",
    "lost",
    "requeued",
    "failed",
    "probe",
    "retired",
    "timeout",
    "mismatch",
    "throttle",
    "believed",
    "believed without proof",
    *(f"orphan:{cause}" for cause in ("late", "duplicate", "unasked", "unknown", "misfit")),
    *(f"verdict {verdict}" for verdict in ("HAND_UP", "OUTCOME_UNKNOWN", "EXHAUSTED", "CLOSED")),
    *(f"fault {fault}" for fault in FAULTS),
}


def _believe_it(tracker: InFlightRequests, entry: InFlightRequest, other: OtherSubject, *_: Any) -> None:
    entry.hold(other.response)


def start(first: int, count: int) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    return subprocess.Popen(
        [sys.executable, "-m", "support.simulation", "--first", str(first), "--count", str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_invariants_hold_in_every_simulation_and_everything_happens() -> None:
    share = SEEDS // PROCESSES
    processes = [start(FIRST_SEED + n * share, share) for n in range(PROCESSES)]
    happened: Counter[str] = Counter()
    broken: list[str] = []
    for process in processes:
        output, _ = process.communicate()
        result = json.loads(output)
        happened.update(result["happened"])
        broken += result["broken"]
    assert not broken, "\n".join(broken)
    assert {kind: happened[kind] for kind in MUST_HAPPEN if happened[kind] < SEEDS / 2_000} == {}
    # An answer that the bytes do not tell from the right one needs several faults at the right places.
    assert happened["fooled"] < happened["completed"] / 1_000


def test_a_seed_is_the_same_every_time() -> None:
    assert Simulation(42).run().happened == Simulation(42).run().happened


@pytest.mark.parametrize(
    ("broken_rule", "law"),
    [
        ((InFlightRequests, "_disprove", lambda self: None), "J"),
        ((Repeats, "allow", lambda self, entry, now: entry.action.is_resend), "[DE]"),
        ((InFlightRequests, "_doubt", lambda self, entries: None), "B"),
        ((Repeats, "has_yielded", lambda self, entry: False), "D"),
        ((InFlightRequests, "_weigh", _believe_it), "B"),
        ((InFlightRequests, "_end_trial", lambda self, now: self._settlement.retire("no proof came")), "K"),
    ],
    ids=[
        "a late answer disproves nothing",
        "no limit of repeats",
        "exchanged ids",
        "an old commit is repeated",
        "an odd response is believed",
        "a server that means it is left beside a long poll",
    ],
)
def test_simulations_find_a_broken_rule(
    broken_rule: tuple[type, str, object], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that cannot fail proves nothing."""
    monkeypatch.setattr(*broken_rule)
    try:
        for seed in range(20_000):
            Simulation(seed).run()
    except Broken as error:
        assert re.search(f"invariant {law}", str(error))
        return
    raise AssertionError("nothing was found in 20,000 simulations")
