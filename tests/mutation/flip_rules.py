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
    (
        "tests/unit/tracker/test_inflight.py",
        "tests/unit/tracker/test_framing.py",
        "tests/unit/tracker/test_correlation.py",
    ),
    (
        "tests/unit/tracker/rules/test_apis.py",
        "tests/unit/tracker/rules/test_identity.py",
        "tests/unit/tracker/rules/test_request_facts.py",
        "tests/unit/tracker/rules/test_requests.py",
        "tests/unit/cluster/test_fetch.py",
    ),
    ("tests/unit/stock/test_connection.py",),
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
    Flip(
        "T2",
        "no grace for an answer that is overtaken",
        "tracker/inflight",
        "self.policy.reorder_grace_ms / 1000",
        "0.0",
    ),
    Flip(
        "T2",
        "a later answer does not overtake",
        "tracker/inflight",
        "        if entry is not self.oldest:\n",
        "        if False:\n",
    ),
    Flip(
        "T2",
        "a trial goes on though all answers are there",
        "tracker/inflight",
        "self._trial = None  # what came out of turn is all there",
        "pass",
    ),
    Flip(
        "T2 order",
        "held answers are released past their keys",
        "tracker/settlement",
        "if entry.state is not State.HELD or not waiting_keys.isdisjoint(keys):",
        "if entry.state is not State.HELD:",
    ),
    Flip(
        "T2 order",
        "a resent request loses its place",
        "tracker/settlement",
        "key=lambda request: request.order",
        "key=lambda r: 0",
    ),
    Flip(
        "T2 order",
        "a refused batch is handed up instead of asked for again",
        "tracker/lifecycle",
        "return self.request.is_out_of_turn(self.response)",
        "return False",
    ),
    Flip(
        "T2 held",
        "a second answer is ignored",
        "tracker/inflight",
        '            return self._misfit(entry, f"two responses',
        '            return\n            return self._misfit(entry, f"two responses',
    ),
    # Law H: exchanged ids
    Flip(
        "H",
        "an answer that might be exchanged with a later one is believed",
        "tracker/inflight",
        "        if alike:\n",
        "        if False:\n",
    ),
    Flip(
        "H",
        "an answer that might be an older request's is believed",
        "tracker/inflight",
        "if older else entry.hold",
        "if False else entry.hold",
    ),
    Flip(
        "H",
        "an answer to what is doubted leaves later ones believed",
        "tracker/inflight",
        "now, [entry, *alike])",
        "now, [entry])",
    ),
    Flip(
        "H",
        "a late answer completes what it may not be of",
        "tracker/inflight",
        "all(r.response is not None for r in self._requests.takers(body, entry))",
        "True",
    ),
    Flip(
        "H",
        "a late answer that overtook another's is only late",
        "tracker/inflight",
        "if self._requests.came_out_of_turn(entry, body):",
        "if False:",
    ),
    Flip(
        "H",
        "a late answer may come after a later one's",
        "tracker/sending_order",
        "r.order > late.order if r.state is State.HELD else ",
        "r.state is not State.HELD and ",
    ),
    Flip("H", "a late answer may come before that of a repeat", "tracker/sending_order", " and not r.resends", ""),
    Flip(
        "H",
        "those that it might be exchanged with are believed",
        "tracker/inflight",
        "                entry.move(Input.DOUBT)",
        "                pass",
    ),
    Flip("H", "what is doubted is forgotten", "tracker/sending_order", " or r.state is State.DOUBTED]", "]"),
    # Law F: the trial
    Flip(
        "F",
        "what fits is believed on trial",
        "tracker/inflight",
        "if self._trial is None and not self.is_retired:\n            self._settlement.release",
        "if not self.is_retired:\n            self._settlement.release",
    ),
    Flip(
        "F",
        "the hot path does not know of a trial",
        "tracker/inflight",
        "self.silence.patience(self._requests.expected))\n            self._settlement.is_regular = False",
        "self.silence.patience(self._requests.expected))",
    ),
    Flip(
        "F",
        "a second answer that fits nothing is survived",
        "tracker/inflight",
        "is_second = self._trial is not None and self._trial.has_misfit",
        "is_second = False",
    ),
    Flip("F", "a trial does not end", "tracker/inflight", "now >= self.silence.trial_ends(self._trial):", "False:"),
    Flip("F", "a trial waits for minutes", "tracker/probe_timer", "min(rightly, _LONG_POLL)", "rightly"),
    Flip(
        "F",
        "a trial does not wait for a long poll",
        "tracker/probe_timer",
        "self.round_trips.estimate + min(rightly, _LONG_POLL)",
        "self.round_trips.estimate",
    ),
    Flip(
        "F",
        "arriving bytes are no progress of a trial",
        "tracker/probe_timer",
        "else self.since(trial.began) + trial.patience",
        "else trial.began + trial.patience",
    ),
    Flip(
        "F",
        "a probe that was overtaken is waited for",
        "tracker/inflight",
        "if self._requests.overtakes_probe(entry):",
        "if False:",
    ),
    Flip(
        "F",
        "two probes are in flight",
        "tracker/inflight",
        "self._drop_probe()\n        entry = self._requests.enter",
        "entry = self._requests.enter",
    ),
    # Law G: what a probe alone settles
    Flip(
        "G",
        "a probe alone settles what may not run twice",
        "tracker/inflight",
        "if trial is None and not is_settled_by_silence(entry.request) and not self._repeats.allow(entry, now):",
        "if False:",
    ),
    Flip(
        "G",
        "a late answer disproves nothing",
        "tracker/inflight",
        "self.is_disproved, self.question = True, None",
        "pass",
    ),
    Flip(
        "H",
        "a short response without brokers passes for the probe's",
        "tracker/rules/requests",
        "return self.API_KEY != apis.METADATA or bool(response.brokers)",
        "return True",
    ),
    Flip(
        "G",
        "a late answer completes what its repeat outdates",
        "tracker/inflight",
        "elif is_its_own and not entry.request.yields_to_newer:",
        "elif is_its_own:",
    ),
    Flip(
        "F",
        "an odd answer that overtook a probe's is forgotten",
        "tracker/inflight",
        "if r.state is State.DOUBTED or r.state is State.ODD]",
        "if r.state is State.DOUBTED]",
    ),
    Flip("G", "a replaced probe's answer disproves the others", "tracker/inflight", 'if cause == "late":', "if True:"),
    Flip(
        "G",
        "a late answer completes nothing",
        "tracker/inflight",
        "self._disprove()\n            self._complete_late(correlation_id, body, now)",
        "self._disprove()",
    ),
    Flip(
        "G",
        "a repeat whose request is completed is a stranger",
        "tracker/inflight",
        "self.ids.lose(entry.correlation_id, entry.sent_at)\n            entry.hold",
        "entry.hold",
    ),
    Flip(
        "G",
        "what comes under the id of one that was lost to a wrong id is late",
        "tracker/inflight",
        "trial.unbelieved < len(unanswered)",
        "True",
    ),
    Flip(
        "G",
        "after a trial nothing is late",
        "tracker/inflight",
        "may_come = trial is None or trial.unbelieved < len(unanswered)",
        "may_come = trial is None",
    ),
    Flip(
        "G",
        "a response that fits two and is believed for neither may come once more",
        "tracker/inflight",
        "unbelieved=bool(older), is_meant",
        "is_meant",
    ),
    Flip(
        "G",
        "a response under the id of a probe, or a probe's under a lost one, is explained",
        "tracker/inflight",
        'is_of_a_probe is (cause == "late")',
        "False",
    ),
    Flip(
        "G",
        "trials without end for a gateway's surplus response",
        "tracker/inflight",
        "if self._settlement.surplus > 1:",
        "if False:",
    ),
    Flip(
        "H",
        "what fits two waits for its place where nothing is probed",
        "tracker/inflight",
        "0.0 if older and self.question is None else self.policy",
        "self.policy",
    ),
    Flip(
        "F",
        "without a probe no answer may be overtaken",
        "tracker/inflight",
        "if self.question is None and grace == 0.0:",
        "if self.question is None:",
    ),
    Flip(
        "G",
        "repeats are waited for no longer than the first",
        "tracker/probe_timer",
        "self.round_trips.after(oldest.resends)",
        "self.round_trips.after(0)",
    ),
    # Odd answers
    Flip(
        "T6 odd",
        "an odd answer is never believed",
        "tracker/inflight",
        "            entry.hold(other.response)\n        elif",
        "            self._settlement.lose(entry, str(other), now)\n        elif",
    ),
    Flip(
        "T6 odd",
        "an odd answer is believed at once",
        "tracker/inflight",
        "        if not is_unproved and (not entry.action.is_resend or self._repeats.has_yielded(entry)):",
        "        if not is_unproved:",
    ),
    Flip(
        "T6 odd",
        "an odd answer to what may not run twice is believed where nothing is probed",
        "tracker/inflight",
        "is_unproved = self.question is None and entry.action is Action.OUTCOME_UNKNOWN",
        "is_unproved = False",
    ),
    Flip(
        "T6 odd",
        "an odd answer to a commit that has yielded is lost",
        "tracker/inflight",
        "(not entry.action.is_resend or self._repeats.has_yielded(entry)):",
        "not entry.action.is_resend:",
    ),
    Flip(
        "T6 odd",
        "a server whose probes name topics is left",
        "tracker/inflight",
        "if entry is self._requests.probe and not others:",
        "if False:",
    ),
    Flip(
        "T6 odd",
        "a probe takes the answer of a request for its own",
        "tracker/inflight",
        "if entry is self._requests.probe and not others:",
        "if entry is self._requests.probe:",
    ),
    Flip(
        "T6 odd",
        "the same again to a repeat is not believed",
        "tracker/inflight",
        " and other.names == entry.said.names:",
        " and False:",
    ),
    Flip(
        "T6 odd",
        "anything odd to a repeat is believed",
        "tracker/inflight",
        " and other.names == entry.said.names:",
        ":",
    ),
    Flip(
        "T6 odd",
        "the repeat of what was answered may rightly wait",
        "tracker/inflight",
        "            entry.expected = 0.0  #",
        "            pass  #",
    ),
    Flip(
        "T6 odd",
        "an odd answer is forgotten if its repeats have none",
        "tracker/inflight",
        "entry.said is not None and entry.resends - entry.resends_when_said > 1:",
        "False:",
    ),
    Flip(
        "T6 odd",
        "an odd answer is believed if one repeat has none",
        "tracker/inflight",
        "entry.said is not None and entry.resends - entry.resends_when_said > 1:",
        "entry.said is not None:",
    ),
    Flip(
        "T6 odd",
        "repeats before an odd answer count as those after it",
        "tracker/inflight",
        "entry.resends - entry.resends_when_said > 1",
        "entry.resends > 1",
    ),
    Flip(
        "G",
        "the last repeat that had no answer is forgotten",
        "tracker/inflight",
        "                self.ids.lose(entry.correlation_id, entry.sent_at)\n                entry.hold",
        "                entry.hold",
    ),
    Flip(
        "T6 odd",
        "an odd answer is asked for again for ever",
        "tracker/inflight",
        "        elif self._repeats.allow(entry, now):\n            entry.said",
        "        elif True:\n            entry.said",
    ),
    Flip("T6 odd", "what no caller can act upon is believed", "tracker/inflight", " or other.response is None:", ":"),
    Flip(
        "T6 odd",
        "a Produce answer of nobody's partition is handed up",
        "tracker/rules/requests",
        "            meant = None\n        elif",
        "            pass\n        elif",
    ),
    Flip(
        "T6 odd",
        "a Produce answer that names a partition twice is believed",
        "tracker/rules/requests",
        " and len(codes) == len(names)",
        "",
    ),
    Flip(
        "T6 odd",
        "a Fetch answer that names a partition twice is believed",
        "tracker/rules/requests",
        "max(names.values(), default=0) > 1",
        "False",
    ),
    Flip(
        "T6 odd",
        "the mirror believes a Fetch answer that names a partition twice",
        "cluster/fetch",
        "if len({part.partition for part in fetched}) < len(fetched):",
        "if False:",
    ),
    Flip(
        "T6 odd",
        "an odd answer to what is doubted is remembered",
        "tracker/inflight",
        "            if entry.is_open or entry.state is State.HELD:\n",
        "            if entry.state is not State.ODD and (entry.is_open or entry.state is State.HELD):\n",
    ),
    Flip(
        "T6 odd",
        "an odd answer is believed beside a missing one",
        "tracker/inflight",
        "and all(r.state is State.ODD for r in unanswered)",
        "and any(r.state is State.ODD for r in unanswered)",
    ),
    Flip(
        "T6 odd",
        "an odd answer is believed after one that fits nothing",
        "tracker/inflight",
        "is_whole = not (trial is not None and trial.has_misfit) and",
        "is_whole =",
    ),
    Flip(
        "T6 odd",
        "an answer that fits another request is believed",
        "tracker/inflight",
        "if others or not is_first or",
        "if not is_first or",
    ),
    Flip(
        "T6 odd",
        "a server that means it is left where nothing is probed",
        "tracker/inflight",
        "if self.question is None and entry is self.oldest and not (",
        "if False and not (",
    ),
    Flip(
        "T6 odd",
        "an odd answer is believed out of its turn where nothing is probed",
        "tracker/inflight",
        "if self.question is None and entry is self.oldest and not (",
        "if self.question is None and not (",
    ),
    Flip(
        "T6 odd",
        "an odd answer may be that of a request that is given up",
        "tracker/inflight",
        "(self.ids.awaits_any or self._requests.is_setting_up)",
        "self._requests.is_setting_up",
    ),
    Flip(
        "T6 odd",
        "a server that means it is left while authenticating no more",
        "tracker/inflight",
        "(self.ids.awaits_any or self._requests.is_setting_up)",
        "self.ids.awaits_any",
    ),
    Flip(
        "T6 odd",
        "a server that means it is left beside a long poll",
        "tracker/inflight",
        "if self._trial is None or not self._trial.is_meant or not self.policy.max_resends:",
        "if True:",
    ),
    Flip(
        "T6 odd",
        "a policy that sends nothing again believes an odd answer in the end",
        "tracker/inflight",
        " or not self.policy.max_resends:",
        ":",
    ),
    Flip(
        "T6 odd",
        "a trial that had more than an odd answer ends by believing it",
        "tracker/inflight",
        "        self._trial.is_meant &= is_meant\n",
        "",
    ),
    Flip(
        "T6 odd",
        "an odd answer that overtook another one is believed in the end",
        "tracker/inflight",
        "return self._put_on_trial(now, 0.0, is_meant=self._requests.is_next(entry))",
        "return self._put_on_trial(now, 0.0, is_meant=True)",
    ),
    Flip(
        "T6 odd",
        "what came after an odd answer has overtaken it",
        "tracker/inflight",
        "is_meant = not older and self._requests.is_next(entry)",
        "is_meant = False",
    ),
    Flip(
        "T6 odd",
        "what overtook another one leaves the odd answers believed",
        "tracker/inflight",
        "is_meant = not older and self._requests.is_next(entry)",
        "is_meant = True",
    ),
    Flip(
        "T6 odd",
        "odd answers after a probe's are believed beside doubted ones",
        "tracker/inflight",
        "is_meant=all(r.state is State.ODD and self._requests.is_next(r) for r in left)",
        "is_meant=True",
    ),
    Flip(
        "T6 odd",
        "odd answers after a probe's are never believed without proof",
        "tracker/inflight",
        "is_meant=all(r.state is State.ODD and self._requests.is_next(r) for r in left)",
        "is_meant=False",
    ),
    Flip(
        "T6 odd",
        "a probe waits for a timer of its own after a trial",
        "tracker/inflight",
        "self._end_trial(now)  # and silence counts again",
        "self._end_trial(now)\n            return self._done()",
    ),
    # T3: settling what is lost
    Flip(
        "T3",
        "outcome unknown becomes retriable",
        "tracker/limits",
        "(Verdict.OUTCOME_UNKNOWN if entry.action is Action.OUTCOME_UNKNOWN else Verdict.HAND_UP)",
        "Verdict.HAND_UP",
    ),
    Flip(
        "T3",
        "outcome unknown is not said at the end of a connection",
        "tracker/limits",
        "is_unknown = entry.action is Action.OUTCOME_UNKNOWN and may_have_run",
        "is_unknown = False",
    ),
    Flip(
        "T3",
        "a request that was never sent is called unknown",
        "tracker/limits",
        "is_unknown = entry.action is Action.OUTCOME_UNKNOWN and may_have_run",
        "is_unknown = entry.action is Action.OUTCOME_UNKNOWN",
    ),
    Flip(
        "T3",
        "what may not be repeated is repeated",
        "tracker/settlement",
        "self._fail(entry, *self.repeats.verdict(entry, reason))",
        "self.requeue(entry, reason)",
    ),
    Flip(
        "T3 limit",
        "no limit of repeats",
        "tracker/limits",
        "entry.resends < self._policy.max_resends and now < entry.deadline",
        "now < entry.deadline",
    ),
    Flip(
        "T3 limit",
        "repeats after the deadline",
        "tracker/limits",
        "entry.resends < self._policy.max_resends and now < entry.deadline",
        "entry.resends < self._policy.max_resends",
    ),
    Flip(
        "T3 newer",
        "an old commit is repeated after a newer one",
        "tracker/limits",
        "self._newest.get(key, -1) > entry.order for key",
        "False for key",
    ),
    Flip(
        "T3 bytes",
        "a repeat keeps its correlation id",
        "stock/connection",
        "entry.context.buffers = with_correlation_id(entry.context.buffers, entry.correlation_id)",
        "pass",
    ),
    Flip(
        "T3 bytes",
        "a repeat has other bytes",
        "tracker/rules/requests",
        "prefix = bytearray(first[:_ID_END])",
        "prefix = bytearray(first[:_ID_END - 5]) + bytes(5)",
    ),
    Flip(
        "T3 session",
        "a fetch in a session is repeated",
        "tracker/rules/request_facts",
        "return rows.FETCH_ALONE if is_alone else rows.FETCH_IN_SESSION",
        "return rows.FETCH_ALONE",
    ),
    Flip(
        "T3 producer",
        "a plain produce is taken for an idempotent one",
        "tracker/rules/request_facts",
        "if _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_AT)[0] < 0:",
        "if False:",
    ),
    Flip(
        "T3 producer",
        "a plain produce is repeated without being asked to",
        "tracker/rules/apis",
        "if policy.resend_plain_produce:",
        "if True:",
    ),
    Flip(
        "T3 producer",
        "a producer that retries is told that the outcome is unknown",
        "tracker/rules/apis",
        "if policy.retries_plain_produce:",
        "if False:",
    ),
    Flip(
        "T3 close",
        "what ends a connection is told as it is",
        "stock/request_errors",
        "if says_enough and not is_timeout:",
        "if True:",
    ),
    Flip(
        "T3 close",
        "what has not left the process is called unknown",
        "stock/connection",
        "if r.context.begins >= flushed)",
        "if False)",
    ),
    # T4: orphans
    Flip(
        "T4",
        "an orphan starts no trial",
        "tracker/inflight",
        "self._put_on_trial(now, 0.0, has_misfit=True, unbelieved=1)",
        "pass",
    ),
    Flip(
        "T4",
        "an answer to acks=0 starts no trial",
        "tracker/inflight",
        "            self._put_on_trial(now, 0.0, unbelieved=1)\n        if cause",
        "            pass\n        if cause",
    ),
    Flip(
        "T4",
        "a late answer teaches nothing",
        "tracker/inflight",
        "self.silence.round_trips.sample(now - sent_at)  # this",
        "pass  # this",
    ),
    Flip(
        "T4 tombstone",
        "lost ids are forgotten",
        "tracker/correlation",
        "_remember(self._lost, correlation_id, sent_at)",
        "pass",
    ),
    Flip("T4 tombstone", "tombstones grow without bound", "tracker/correlation", "if len(ids) > _MEMORY:", "if False:"),
    Flip(
        "T4 acks=0",
        "unasked ids grow without bound",
        "tracker/correlation",
        "if len(self._unasked) > _MEMORY:",
        "if False:",
    ),
    Flip(
        "T4 tombstone",
        "an id of our own is called unknown",
        "tracker/correlation",
        '("duplicate" if self.was_drawn(correlation_id) else "unknown")',
        '"unknown"',
    ),
    Flip(
        "T4 acks=0",
        "an unasked answer counts as a mismatch",
        "tracker/inflight",
        'cause != "unasked" and (',
        "(",
    ),
    Flip(
        "T4 zero",
        "FindCoordinator of 0.8.2 is not recognised",
        "stock/connection",
        "if not correlation_id and not tracker.ids.was_drawn(0) and _is_answered_under_0(oldest):",
        "if False:",
    ),
    # T5: silence
    Flip(
        "T5",
        "a probe's time counts for the requests after it",
        "tracker/probe_timer",
        "entry.deadline += now - max(entry.sent_at, self.responded_at)",
        "pass",
    ),
    Flip(
        "T5",
        "a probe gives more time to the requests before it, too",
        "tracker/probe_timer",
        "if entry.order > probe.order and entry.sent_at >= 0:",
        "if entry.sent_at >= 0:",
    ),
    Flip(
        "T5",
        "silence is not probed",
        "tracker/inflight",
        "elif now >= self._probe_due() and (oldest := self.oldest) is not None:",
        "elif False:",
    ),
    Flip(
        "T5",
        "a probe's answer proves nothing",
        "tracker/inflight",
        "[r for r in self._requests.before(probe) if r.is_unanswered]",
        "[]",
    ),
    Flip(
        "T5",
        "a probe is sent that the broker may not know",
        "stock/probe_question",
        "versions.api_version(question, version, version)",
        "version",
    ),
    Flip(
        "H",
        "a probe's answer under the id of a request is believed",
        "tracker/inflight",
        "elif requests.open_probes and entry is not requests.probe and requests.is_of_a_probe(body):",
        "elif False:",
    ),
    Flip(
        "T6",
        "a tagged field may run over the end",
        "tracker/rules/requests",
        'memoryview(bytes(body) + b"\\0") if len(body) < _SMALL else body',
        "body",
    ),
    Flip(
        "T5",
        "a probe's answer may be another request's",
        "stock/probe_question",
        "if version < versions.api_version(question):",
        "if version <= versions.api_version(question):",
    ),
    Flip(
        "T5 progress", "arriving bytes are no progress", "tracker/probe_timer", "if now > self._progress:", "if False:"
    ),
    Flip(
        "T5 throttle",
        "a throttling broker is probed",
        "stock/connection",
        "self.in_flight_requests.silence.progress(min(self._throttle_time, time.monotonic() + longest_s))",
        "pass",
    ),
    Flip(
        "T5 backoff",
        "unanswered probes come as often as the first",
        "tracker/probe_timer",
        "self.round_trips.unanswered += 1",
        "pass",
    ),
    Flip(
        "T5 wait",
        "what may rightly wait is probed",
        "tracker/probe_timer",
        "self._progress) + oldest.expected",
        "self._progress)",
    ),
    Flip(
        "T5 setup",
        "a probe overtakes SASL",
        "tracker/probe_timer",
        "if oldest is None or requests.is_setting_up:",
        "if oldest is None:",
    ),
    # T6: ids and decoding
    Flip(
        "T6 decoding",
        "bytes left over are accepted",
        "tracker/rules/requests",
        "if end != len(body):",
        "if False:",
    ),
    Flip(
        "T6 decoding", "an answer of somebody else is accepted", "tracker/rules/requests", "if not speaks:", "if False:"
    ),
    Flip(
        "T6 misfit",
        "what does not decode completes its request",
        "tracker/inflight",
        "                self._misfit(entry, entry.not_decoded(error), now)\n            else:",
        "                self._complete(entry, None, now)\n            else:",
    ),
    Flip(
        "T6 misfit",
        "a misfit answer is no suspicion",
        "tracker/inflight",
        '        self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)\n\n    def _orphan',
        '        self._events.append(Orphan(entry.api, entry.correlation_id, "misfit"))\n\n    def _orphan',
    ),
    Flip("T6 ids", "Java's reserved ids are drawn", "tracker/correlation", "SPACE = 2**31 - 8", "SPACE = 2**31"),
    Flip(
        "T6 ids",
        "ids do not wrap",
        "tracker/correlation",
        "return (self._start + drawn) % SPACE",
        "return self._start + drawn",
    ),
    Flip(
        "T6 ids",
        "an id of before the wrap is forgotten",
        "tracker/correlation",
        "return (correlation_id - self._start) % SPACE < self._drawn",
        "return 0 <= correlation_id - self._start < self._drawn",
    ),
    # T7: giving a connection up
    Flip(
        "T7 setup",
        "a mismatch while authenticating is survived",
        "tracker/sending_order",
        "return any(r.action is Action.CLOSE for r in self.values())",
        "return False",
    ),
    Flip(
        "T7 budget",
        "no budget of mismatches",
        "tracker/settlement",
        "if (reason := self._budget.count(now)) is not None:",
        "if False:",
    ),
    Flip(
        "T7 budget",
        "mismatches are never forgiven",
        "tracker/limits",
        "while self._recent[0] < now - window:",
        "while False:",
    ),
    Flip(
        "T7 deadline",
        "a request without an answer waits for ever",
        "tracker/inflight",
        "if (late := self._requests.late(now)) is not None:",
        "if (late := None) is not None:",
    ),
    Flip(
        "T7 framing",
        "a bad frame length is survived",
        "stock/connection",
        'self._act([Retired("", -1, str(error))], now, error)',
        "pass",
    ),
    Flip(
        "T7 framing",
        "a negative frame length is a frame",
        "tracker/framing",
        "if length < self.smallest_frame or length > self._max:",
        "if length > self._max:",
    ),
    Flip(
        "T7 budget",
        "the first mismatch ends the connection",
        "tracker/settlement",
        "if (reason := self._budget.count(now)) is not None:\n            self.retire(reason)",
        'self.retire("")',
    ),
    Flip(
        "A",
        "requests are left when a connection ends",
        "stock/connection",
        "self._act(self.in_flight_requests.close(cause, self._unflushed()), now)",
        "pass",
    ),
    Flip(
        "A",
        "a re-authentication waits for ever",
        "stock/connection",
        "self._reauth.on_response_processed()\n        self._arm(now)\n\n    def _expire",
        "self._arm(now)\n\n    def _expire",
    ),
    Flip(
        "T8",
        "events are not counted",
        "stock/connection",
        "self.recovery_counters.add(event, self.node_id)\n            self._tell",
        "self._tell",
    ),
)


@contextmanager
def copy_of_the_project() -> Iterator[Path]:
    """The packages, their tests and the pages that these read, in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="flip-") as folder:
        copy = Path(folder)
        for part in ("tolerant_client", "spark_integration", "tests", "docs"):
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
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *suite]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{suite[0]} hangs"
        if done.returncode == 0:
            continue
        summary = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        failed = [line.split()[1] for line in summary]
        return failed[0] if failed else f"{suite[0]} ends with {done.returncode}: {done.stdout[-300:]}"
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
