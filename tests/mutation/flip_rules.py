"""Flips one rule of the tracker at a time and asks whether the fast tests notice.

    python tests/mutation/flip_rules.py [word ...]      only flips whose rule or name has one of the words

Each flip is one exact replacement in a temporary copy of the package; the tree is never touched.
The tests run against the copy, the quickest first, until one fails.  The exit code is 1 when a
flip survives, or when its text is no longer there exactly once; 2 when the tests fail unflipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITES = (
    ("tests/unit/test_inflight.py", "tests/unit/test_framing.py", "tests/unit/test_correlation.py"),
    ("tests/unit/test_apis.py", "tests/unit/test_identity.py", "tests/unit/test_request_facts.py"),
    ("tests/unit/test_connection.py",),
    ("tests/matrix/test_simulations.py",),
    ("tests/fuzz",),
    ("tests/matrix/test_answer_faults.py", "-k", "every_invariant or throttles"),
)
SIMULATIONS = "8000"
LIMIT = 300  # seconds for one suite; a flip that hangs the tests is found as well


@dataclass(frozen=True)
class Flip:
    """`old` occurs exactly once in the module and becomes `new`."""

    rule: str
    name: str
    module: str
    old: str
    new: str


FLIPS = (
    # T1, T2: matching and order
    Flip("T1", "an answer to the oldest is not completed", "inflight", "if entry is not self.oldest:", "if True:"),
    Flip("T2", "no grace", "mismatches", "return max(grace, self._lateness)", "return 0.0"),
    Flip("T2", "a later answer does not overtake", "inflight", "if older.is_unanswered:\n", "if False:\n"),
    Flip("T2", "lateness is not learned", "inflight", "self.mismatches.late(now - overtaken_at)", "pass"),
    Flip(
        "T2",
        "the grace does not shrink for harmless repeats",
        "mismatches",
        "if round_trip >= 0 and entry.is_repeat_harmless:",
        "if False:",
    ),
    Flip(
        "T2",
        "the grace shrinks where giving up costs more than a repeat",
        "mismatches",
        "if round_trip >= 0 and entry.is_repeat_harmless:",
        "if round_trip >= 0:",
    ),
    Flip(
        "T2 order",
        "order keys do not hold an answer",
        "order",
        "elif other.order < entry.order and keys and not keys.isdisjoint(other.request.order_keys):",
        "elif False:",
    ),
    Flip(
        "T2 order",
        "held answers are released past their keys",
        "order",
        "or entry.order in shadowed or not waiting_keys.isdisjoint(keys):",
        "or entry.order in shadowed:",
    ),
    Flip(
        "T2 order",
        "a later answer of the same API is not held",
        "order",
        "elif is_older and other.is_unanswered and other.request.API_KEY == entry.request.API_KEY:",
        "elif False:",
    ),
    Flip(
        "T2 order",
        "held answers are released behind an unanswered one of their API",
        "order",
        "shadowed.add(entry.order)",
        "pass",
    ),
    Flip(
        "T2 order", "a resent request loses its place", "order", "key=lambda request: request.order", "key=lambda r: 0"
    ),
    Flip(
        "T2 order",
        "a refused batch is handed up instead of asked for again",
        "inflight",
        "return bool(check(entry.response))",
        "return False",
    ),
    Flip(
        "T2 held",
        "a second, different answer is ignored",
        "inflight",
        "return self._second_answer(entry, now)",
        "return []",
    ),
    Flip(
        "T2 held",
        "a second, equal answer unseats the first",
        "inflight",
        "if entry.is_held and entry.answer == body:",
        "if False:",
    ),
    Flip(
        "T2 held",
        "only one of two doubtful requests is lost",
        "inflight",
        "if suspect.order <= entry.order and is_kin and (suspect.is_held or suspect.is_unanswered):",
        "if suspect is entry:",
    ),
    Flip(
        "T2 proof",
        "a held answer is believed once the older request is lost",
        "inflight",
        "entry.needs_proof = True",
        "pass",
    ),
    Flip(
        "T2 proof",
        "no probe is sent for the proof",
        "inflight",
        "if doubtful is not None and not self._probes:",
        "if False:",
    ),
    Flip("T2 proof", "a later answer is no proof", "inflight", "older.is_proven = older.is_held", "pass"),
    # T3: settling what is lost
    Flip(
        "T3",
        "outcome unknown becomes retriable",
        "inflight",
        "self._fail(entry, Verdict.OUTCOME_UNKNOWN, reason, events)",
        "self._fail(entry, Verdict.HAND_UP, reason, events)",
    ),
    Flip(
        "T3",
        "outcome unknown is not said at the end of a connection",
        "inflight",
        "elif entry.action is Action.OUTCOME_UNKNOWN and entry.first_sent_at >= 0:",
        "elif False:",
    ),
    Flip(
        "T3",
        "a request that was never sent is called unknown",
        "inflight",
        "elif entry.action is Action.OUTCOME_UNKNOWN and entry.first_sent_at >= 0:",
        "elif entry.action is Action.OUTCOME_UNKNOWN:",
    ),
    Flip(
        "T3",
        "what may not be repeated is repeated",
        "inflight",
        "self._fail(entry, Verdict.HAND_UP, reason, events)",
        "self._requeue(entry, reason, events)",
    ),
    Flip(
        "T3 limit",
        "no limit of repeats",
        "inflight",
        "return entry.resends < self.policy.max_resends and now < entry.deadline",
        "return now < entry.deadline",
    ),
    Flip(
        "T3 limit",
        "repeats after the deadline",
        "inflight",
        "return entry.resends < self.policy.max_resends and now < entry.deadline",
        "return entry.resends < self.policy.max_resends",
    ),
    Flip(
        "T3 newer",
        "an old commit is repeated after a newer one",
        "inflight",
        "self._newest.get(key, -1) > entry.order for key",
        "False for key",
    ),
    Flip(
        "T3 bytes",
        "a repeat keeps its correlation id",
        "connection",
        "entry.context.buffers = with_correlation_id(entry.context.buffers, entry.correlation_id)",
        "pass",
    ),
    Flip(
        "T3 bytes",
        "a repeat has other bytes",
        "requests",
        "prefix = bytearray(first[:_ID_END])",
        "prefix = bytearray(first[:_ID_END - 5]) + bytes(5)",
    ),
    Flip(
        "T3 session",
        "a fetch in a session is repeated",
        "request_facts",
        "return rows.FETCH_ALONE if is_alone else rows.FETCH_IN_SESSION",
        "return rows.FETCH_ALONE",
    ),
    Flip(
        "T3 producer",
        "a plain produce is taken for an idempotent one",
        "request_facts",
        "if _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_AT)[0] < 0:",
        "if False:",
    ),
    Flip(
        "T3 producer",
        "a plain produce is repeated without being asked to",
        "apis",
        "if resend_plain_produce and row is rows.PRODUCE_PLAIN",
        "if row is rows.PRODUCE_PLAIN",
    ),
    # T4: orphans
    Flip("T4", "an orphan raises no suspicion", "inflight", "self.mismatches.unexplained += 1", "pass"),
    Flip("T4", "an orphan sends no probe", "inflight", "if oldest is not None and not self._probes:", "if False:"),
    Flip("T4 tombstone", "lost ids are forgotten", "correlation", "self._lost[correlation_id] = since", "pass"),
    Flip("T4 tombstone", "tombstones grow without bound", "correlation", "if len(self._lost) > _MEMORY:", "if False:"),
    Flip("T4 acks=0", "unasked ids grow without bound", "correlation", "if len(self._unasked) > _MEMORY:", "if False:"),
    Flip(
        "T4 tombstone",
        "an id of our own is called unknown",
        "correlation",
        '("duplicate" if self.was_drawn(correlation_id) else "unknown")',
        '"unknown"',
    ),
    Flip(
        "T4 acks=0", "an unasked answer counts as a mismatch", "inflight", 'if cause == "unasked":', 'if cause == "":'
    ),
    Flip(
        "T4 zero",
        "FindCoordinator of 0.8.2 is not recognised",
        "inflight",
        "entry = self._requests.get(correlation_id) or self._misnumbered(correlation_id)",
        "entry = self._requests.get(correlation_id)",
    ),
    # T5: silence
    Flip(
        "T5",
        "silence is not probed",
        "inflight",
        "if now >= self._probe_due() and not self.is_retired:",
        "if False:",
    ),
    Flip("T5", "a probe's answer proves nothing", "inflight", "for older in missing:", "for older in missing * 0:"),
    Flip("T5 progress", "arriving bytes are no progress", "silence", "if now > self._progress:", "if False:"),
    Flip(
        "T5 throttle",
        "a throttling broker is probed",
        "connection",
        "self.in_flight_requests.progress(self._throttle_time)",
        "pass",
    ),
    Flip(
        "T5 backoff",
        "unanswered probes come as often as the first",
        "silence",
        "self.round_trips.unanswered += 1 if is_repeated else 0",
        "pass",
    ),
    Flip(
        "T5 setup",
        "a probe overtakes SASL",
        "inflight",
        "if oldest.action is Action.CLOSE and not (self._may_probe_setup and oldest.request.API_KEY == API_VERSIONS):",
        "if False:",
    ),
    # T6: ids and decoding
    Flip(
        "T6 decoding",
        "bytes left over are accepted",
        "requests",
        "if end != len(body):",
        "if False:",
    ),
    Flip("T6 decoding", "an answer of somebody else is accepted", "requests", "if not speaks:", "if False:"),
    Flip(
        "T6 misfit",
        "what does not decode completes its request",
        "inflight",
        "return self._misfit(entry, error, now)",
        "response = None",
    ),
    Flip(
        "T6 misfit",
        "a misfit answer is no suspicion",
        "inflight",
        'return self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)',
        'return [Orphan(entry.api, entry.correlation_id, "misfit")]',
    ),
    Flip(
        "T6 misfit",
        "a stream out of step is kept",
        "inflight",
        "self._trial_ends = min(self._trial_ends, self.silence.since(now) + patience)",
        "pass",
    ),
    Flip("T6 ids", "Java's reserved ids are drawn", "correlation", "SPACE = 2**31 - 8", "SPACE = 2**31"),
    Flip(
        "T6 ids",
        "ids do not wrap",
        "correlation",
        "return (self._start + drawn) % SPACE",
        "return self._start + drawn",
    ),
    Flip(
        "T6 ids",
        "an id of before the wrap is forgotten",
        "correlation",
        "return (correlation_id - self._start) % SPACE < self._drawn",
        "return 0 <= correlation_id - self._start < self._drawn",
    ),
    # T7: giving a connection up
    Flip(
        "T7 setup",
        "a mismatch while authenticating is survived",
        "inflight",
        "return any(r.action is Action.CLOSE for r in self._requests.values())",
        "return False",
    ),
    Flip("T7 budget", "no budget of mismatches", "inflight", "if verdict is not None:", "if False:"),
    Flip(
        "T7 budget",
        "mismatches are never forgiven",
        "mismatches",
        "while self._recent[0] < now - window:",
        "while False:",
    ),
    Flip(
        "T7 deadline",
        "a request without an answer waits for ever",
        "inflight",
        "if now >= self._deadline_from:\n            self._deadline_from",
        "if False:\n            self._deadline_from",
    ),
    Flip(
        "T7 framing",
        "a bad frame length is survived",
        "connection",
        'self._retire(Retired("", -1, str(error)), error)',
        "pass",
    ),
    Flip(
        "T7 framing",
        "a negative frame length is a frame",
        "framing",
        "if length < self.smallest_frame or length > self._max:",
        "if length > self._max:",
    ),
    Flip(
        "T7 budget",
        "the first mismatch ends the connection",
        "inflight",
        "if verdict is not None:\n            events += self._retire(verdict)",
        'events += self._retire("")',
    ),
    Flip(
        "A",
        "requests are left when a connection ends",
        "connection",
        "self._act(self.in_flight_requests.close(error, time.monotonic()), time.monotonic())",
        "pass",
    ),
    Flip(
        "A",
        "a re-authentication waits for ever",
        "connection",
        "self._reauth.on_response_processed()\n        self._arm(now)\n\n    def _expire",
        "self._arm(now)\n\n    def _expire",
    ),
    Flip(
        "T8",
        "events are not counted",
        "connection",
        "self.recovery_counters.add(event, self.node_id)\n            self._tell",
        "self._tell",
    ),
)


@contextmanager
def copy_of_the_project() -> Iterator[Path]:
    """The packages and their tests in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="flip-") as folder:
        copy = Path(folder)
        for part in ("tolerant_client", "spark_integration", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (*ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "setup.cfg"):
            shutil.copy(path, copy / path.name)
        yield copy


def environment(copy: Path) -> dict[str, str]:
    """Python imports the copy, and nothing is cached beside it."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOLERANT_SIMULATIONS": SIMULATIONS,
        "TOLERANT_SMALL": "1",
    }


def first_failure(copy: Path) -> str | None:
    """The first test that fails on the copy; None when all pass."""
    for suite in SUITES:
        files = [part for part in suite if not part.startswith("tests/") or (copy / part).exists()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *files]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{files[0]} hangs"
        if done.returncode == 0:
            continue
        summary = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        failed = [line.split()[1] for line in summary]
        return failed[0] if failed else f"{files[0]} ends with {done.returncode}: {done.stdout[-300:]}"
    return None


def imported_from(copy: Path) -> Path:
    """Where the tests of the copy find the package."""
    command = [sys.executable, "-c", "import tolerant_client; print(tolerant_client.__file__)"]
    done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def main(words: list[str]) -> int:
    flips = [flip for flip in FLIPS if not words or any(word in f"{flip.rule} {flip.name}" for word in words)]
    wrong = 0
    with copy_of_the_project() as copy:
        assert imported_from(copy).is_relative_to(copy.resolve()), "the tests would not see the flips"
        broken = first_failure(copy)
        if broken is not None:
            print(f"the tests fail unflipped: {broken}")
            return 2
        for flip in flips:
            path = copy / "tolerant_client" / f"{flip.module}.py"
            text = path.read_text(encoding="utf-8")
            if text.count(flip.old) != 1:
                verdict, wrong = f"STALE: its text is there {text.count(flip.old)} times", wrong + 1
                print(f"| {flip.rule} | {flip.name} | {verdict} |", flush=True)
                continue
            started = time.monotonic()
            path.write_text(text.replace(flip.old, flip.new), encoding="utf-8")
            killer = first_failure(copy)
            path.write_text(text, encoding="utf-8")
            took = time.monotonic() - started
            if killer is None:
                wrong += 1
            verdict = f"SURVIVED ({took:.0f} s)" if killer is None else f"killed by {killer}"
            print(f"| {flip.rule} | {flip.name} | {verdict} |", flush=True)
    print(f"{len(flips)} flips, {wrong} survived or stale")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
