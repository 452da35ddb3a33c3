"""The tracker: every request in flight on one connection, and what each answer means for it.

Laws (T1 to T8 are DESIGN.md's; tests cite the letters):
A. Every request ends in COMPLETED or FAILED exactly once, on whatever bytes.
B. A change of state is in lifecycle.TRANSITIONS or the connection is retired.
C. An answer completes its request only after its body decoded with no byte left over.
D. Older and later are positions in the order of sending, never numbers.
E. Nothing is sent again after its deadline, more often than the policy allows,
   or with other bytes than the first time (its id excepted).

It reads no clock, opens no socket and writes no log: every method takes `now`
(monotonic seconds) and returns the events that the binding has to act upon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tolerant_client.apis import API_VERSIONS, FIND_COORDINATOR, Action, ProbeRequest, action_for
from tolerant_client.correlation import CorrelationIds
from tolerant_client.events import (
    Completed,
    Event,
    Failed,
    Lost,
    Orphan,
    Probe,
    Reordered,
    Requeued,
    Retired,
    Verdict,
)
from tolerant_client.lifecycle import NEVER, IllegalTransition, InFlightRequest, Input, State
from tolerant_client.mismatches import Mismatches
from tolerant_client.order import is_blocked, released
from tolerant_client.policy import RecoveryPolicy
from tolerant_client.silence import Silence

_TRIAL = 0.5  # seconds: after a misfit, the least time in which an answer must decode


class InFlightRequests:
    """The one store of requests in flight; its length and iteration leave probes out.

    `first_id` is where correlation ids start (a random number); `may_probe_setup`
    says whether a probe may overtake the first ApiVersions (not with SASL, where
    the broker would take it for a protocol error).
    """

    def __init__(self, policy: RecoveryPolicy, first_id: int, may_probe_setup: bool = True) -> None:
        self.policy = policy
        self.ids = CorrelationIds(first_id)
        self.silence = Silence(policy)
        self.mismatches = Mismatches(policy)
        self.is_retired = False
        self._may_probe_setup = may_probe_setup
        self._requests: dict[int, InFlightRequest] = {}  # by id, in the order of sending
        self._next_order = 0
        self._probes = 0
        self._irregular = 0  # requests held or resent: while there are any, order needs a look
        self._deadline_from = NEVER  # lower bounds, made exact by expired()
        self._lost_from = NEVER
        self._trial_ends = NEVER  # after a misfit: by then an answer must have decoded
        self._newest: dict[Any, int] = {}  # by order key: the newest request that older ones yield to

    def __len__(self) -> int:
        return len(self._requests) - self._probes

    def __iter__(self) -> Iterator[InFlightRequest]:
        return (r for r in list(self._requests.values()) if not r.is_probe)

    # -- sending --------------------------------------------------------------

    def queue(self, request: Any, deadline: float, context: Any = None) -> InFlightRequest:
        """Takes a request in and draws its correlation id; the caller sends it and says `sent`."""
        action = action_for(request, self.policy.resend_plain_produce)
        if not self._requests:
            self._newest.clear()  # nothing older is left that would have to yield
        entry = InFlightRequest(request, self.ids.draw(), self._next_order, deadline, action, context)
        self._next_order += 1
        self._requests[entry.correlation_id] = entry
        if deadline < self._deadline_from:
            self._deadline_from = deadline
        return entry

    def withdraw(self, entry: InFlightRequest) -> None:
        """Takes a request back that could not be encoded, and so was never sent."""
        self._remove(entry)
        entry.move(Input.FAIL)

    def unanswered_id(self) -> int:
        """The id for a request without an answer (acks=0), which is not tracked."""
        correlation_id = self.ids.draw()
        self.ids.forget_answer(correlation_id)
        return correlation_id

    def sent(self, entry: InFlightRequest, now: float) -> list[Event]:
        """Notes that the request's bytes are on their way."""
        try:
            entry.move(Input.SENT)
        except IllegalTransition as illegal:
            return self._retire(str(illegal))
        entry.sent_at = now
        if entry.first_sent_at < 0:
            entry.first_sent_at = now
            if getattr(entry.request, "yields_to_newer", False):
                self._newest.update(dict.fromkeys(entry.request.order_keys, entry.order))
        if next(reversed(self._requests)) != entry.correlation_id:
            # Written behind others that were queued after it: the store's order is the wire's.
            self._requests[entry.correlation_id] = self._requests.pop(entry.correlation_id)
        return []

    def progress(self, now: float) -> None:
        """Notes that bytes are arriving (or, with a time ahead, that none can before it)."""
        self.silence.progress(now)

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without an answer, probes included."""
        for entry in self._requests.values():
            if entry.state is State.IN_FLIGHT and not entry.is_held:
                return entry
        return None

    @property
    def is_doubtful(self) -> bool:
        """True while a probe waits: this connection is silent, or a request on it may have lost its answer."""
        return self._probes > 0 or self._trial_ends < NEVER

    # -- answers --------------------------------------------------------------

    def response(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """Takes one answer (T1, T2, T4, T6); `body` starts behind the correlation id."""
        if self.is_retired:
            return []
        self.silence.progress(now)
        entry = self._requests.get(correlation_id) or self._misnumbered(correlation_id)
        if entry is None:
            return self._orphan(correlation_id, now)
        if entry.state is not State.IN_FLIGHT:
            return self._retire(f"an answer to {entry.api} came before it was sent")
        if entry.is_held and entry.answer == body:
            return self._mismatch(now, [Orphan(entry.api, entry.correlation_id, "duplicate")])
        try:
            response = entry.request.decode_response(body)
        except Exception as error:  # a decoder on hostile bytes may raise anything
            return self._misfit(entry, error, now)
        self._trial_ends = NEVER
        if entry.is_held:
            return self._second_answer(entry, now)
        if self._irregular:
            self._prove(entry)
        if entry is not self.oldest:
            return self._overtaking(entry, response, body, now)
        if self._irregular or entry.is_probe or entry.lost_at < NEVER:
            events = self._answered(entry, response, body, now)
            self._release(events, now)
            return events
        del self._requests[entry.correlation_id]
        return [self._complete(entry, response, now)]

    def _prove(self, entry: InFlightRequest) -> None:
        """An answer to `entry` says that no other one comes to what was sent before it."""
        for older in self._requests.values():
            if older is entry:
                return
            older.is_proven = older.is_held

    def _complete(self, entry: InFlightRequest, response: Any, now: float) -> Completed:
        entry.move(Input.ANSWERED)
        self.silence.answered(entry, now)
        is_reordered = entry.overtaken_at < NEVER
        return Completed(entry.api, entry.correlation_id, entry, response, now - entry.first_sent_at, is_reordered)

    def _answered(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> list[Event]:
        """Completes the request, or holds its answer behind older ones that it must not overtake."""
        if entry.is_probe:
            self.silence.answered(entry, now)
            self.mismatches.unexplained = 0
            self._drop_probe(entry)
            return []
        if is_blocked(entry, self._requests.values()):
            entry.move(Input.HELD)
            entry.is_held, entry.response, entry.answer = True, response, body
            self._irregular += 0 if entry.resends else 1
            return []
        return self._finish(entry, response, now)

    def _finish(self, entry: InFlightRequest, response: Any, now: float) -> list[Event]:
        self._remove(entry)
        events: list[Event] = []
        if entry.overtaken_at < NEVER:
            events.append(Reordered(entry.api, entry.correlation_id))
        events.append(self._complete(entry, response, now))
        return events

    def _overtaking(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> list[Event]:
        """T2: a later request was answered first; those before it are reordered or lost."""
        if self._is_authenticating():
            return self._retire(f"the answer to {entry.api} overtook another one while authenticating")
        missing = []
        for older in self._requests.values():
            if older is entry:
                break
            if older.is_unanswered:
                missing.append(older)
        is_explained = self.mismatches.explain(sum(not m.is_probe for m in missing))
        round_trip = self.silence.round_trips.estimate
        for older in missing:
            older.overtaken_at = min(older.overtaken_at, now)
            grace = 0.0 if is_explained else self.mismatches.grace(older, round_trip)
            older.lost_at = min(older.lost_at, now + grace)
            self._lost_from = min(self._lost_from, older.lost_at)
        events = self._answered(entry, response, body, now)
        if is_explained:
            events += self._lose_overdue(now)
        self._release(events, now)
        return events

    def _second_answer(self, entry: InFlightRequest, now: float) -> list[Event]:
        """A held request is answered again, otherwise: one of the two is a lie, so neither is believed.

        Nor is what is held of its API before it: the first answer may have been its only proof.
        """
        events: list[Event] = []
        for suspect in list(self._requests.values()):
            is_kin = suspect.request.API_KEY == entry.request.API_KEY and not suspect.is_probe
            if suspect.order <= entry.order and is_kin and (suspect.is_held or suspect.is_unanswered):
                if suspect.is_held:
                    self._unhold(suspect)
                self._lose(suspect, "two different answers came for one request", now, events)
        self._release(events, now)
        return events

    def _misfit(self, entry: InFlightRequest, error: Exception, now: float) -> list[Event]:
        """T6: the body is not what was asked for: dropped, and the request goes on waiting.

        This one may be an older request's under a wrong id, or our own spoiled on
        its way: the next answer on the connection, or a probe's, will say.  If
        none decodes in time, the stream itself is out of step.
        """
        reason = f"an answer to {entry.api} does not decode ({type(error).__name__}: {_first_line(error)})"
        if self._is_authenticating():
            return [Orphan(entry.api, entry.correlation_id, "misfit"), *self._retire(reason)]
        entry.history.append(reason)
        waits = sum(r.expected for r in self._requests.values() if r.is_unanswered)
        patience = max(_TRIAL, 4 * self.silence.round_trips.margin) + waits
        self._trial_ends = min(self._trial_ends, self.silence.since(now) + patience)
        return self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)

    def _misnumbered(self, correlation_id: int) -> InFlightRequest | None:
        """Kafka 0.8.2 answers FindCoordinator version 0 with id 0 (both Python clients tolerate it)."""
        oldest = None if correlation_id or self.ids.was_drawn(0) else self.oldest
        if oldest is None or oldest.request.API_KEY != FIND_COORDINATOR or oldest.request.API_VERSION != 0:
            return None
        return oldest

    def _orphan(self, correlation_id: int, now: float) -> list[Event]:
        """T4: an answer that no request waits for is dropped, and makes the oldest request a suspect.

        It may be that one's answer under a wrong id; a wrong id is often one that
        was used before, so a duplicate is as suspicious as an id never sent.
        """
        cause, overtaken_at = self.ids.recall(correlation_id)
        orphan = Orphan("", correlation_id, cause)
        if cause == "unasked":
            return [orphan]
        if self._is_authenticating():
            return [orphan, *self._retire(f"an answer with a {cause} correlation id came while authenticating")]
        if overtaken_at is None:
            return self._suspect(orphan, now)
        # This peer does answer late: give the next one the time that this one would have needed.
        self.mismatches.late(now - overtaken_at)
        return self._mismatch(now, [orphan])

    def _suspect(self, orphan: Orphan, now: float) -> list[Event]:
        """The oldest request may have lost its answer to this orphan: a probe will tell."""
        events: list[Event] = [orphan]
        self.mismatches.unexplained += 1
        oldest = self.oldest
        if oldest is not None and not self._probes:
            events.append(self._probe(f"a {orphan.cause} answer came while {oldest.api} was waiting", now))
        return self._mismatch(now, events)

    # -- time -----------------------------------------------------------------

    def next_wakeup(self, now: float) -> float | None:
        """When `expired` wants to be called; None when nothing can become due."""
        if self.is_retired or not self._requests:
            return None
        due = min(self._deadline_from, self._lost_from, self._trial_ends, self._probe_due())
        return None if due == NEVER else due

    def expired(self, now: float) -> list[Event]:
        """Does what is due: retires a connection that timed out, declares requests lost, probes silence."""
        if self.is_retired:
            return []
        events: list[Event] = []
        if now >= self._trial_ends:
            return self._retire("no answer decoded after one that did not")
        if now >= self._deadline_from:
            self._deadline_from = min((r.deadline for r in self._requests.values()), default=NEVER)
            if now >= self._deadline_from:
                late = next(r for r in self._requests.values() if r.deadline <= now)
                return self._retire(f"{late.api} was not answered within its timeout", is_timeout=True)
        if now >= self._lost_from:
            events += self._lose_overdue(now)
            self._release(events, now)
        if now >= self._probe_due() and not self.is_retired:
            oldest = self.oldest
            assert oldest is not None
            events.append(self._probe(f"{oldest.api} is silent for longer than it can be", now))
        return events

    def _probe_due(self) -> float:
        """T5: when the oldest unanswered request is older than it can be."""
        oldest = self.oldest
        if oldest is None or oldest.lost_at < NEVER or len(self._requests) == self._probes:
            return NEVER
        if oldest.is_probe and not self._may_probe_setup and self._is_authenticating():
            return NEVER
        if oldest.action is Action.CLOSE and not (self._may_probe_setup and oldest.request.API_KEY == API_VERSIONS):
            return NEVER
        return self.silence.due(oldest, self._probes > 0)

    def _probe(self, reason: str, now: float) -> Probe:
        entry = InFlightRequest(ProbeRequest(), self.ids.draw(), self._next_order, NEVER, Action.HAND_UP, None)
        self._next_order += 1
        entry.is_probe = True
        self.silence.probed(now, is_repeated=self._probes > 0)
        self._probes += 1
        self._requests[entry.correlation_id] = entry
        return Probe("Probe", entry.correlation_id, entry, reason)

    def _drop_probe(self, entry: InFlightRequest) -> None:
        del self._requests[entry.correlation_id]
        self._probes -= 1

    # -- loss -----------------------------------------------------------------

    def _lose_overdue(self, now: float) -> list[Event]:
        events: list[Event] = []
        self._lost_from = NEVER
        for entry in list(self._requests.values()):
            if entry.lost_at == NEVER or not entry.is_unanswered:
                continue
            if entry.lost_at > now:
                self._lost_from = min(self._lost_from, entry.lost_at)
            elif entry.is_probe:
                self.ids.lose(entry.correlation_id, entry.overtaken_at)
                self._drop_probe(entry)
            else:
                self._lose(entry, "a later answer came on the same connection", now, events)
            if self.is_retired:
                break
        return events

    def _lose(self, entry: InFlightRequest, reason: str, now: float, events: list[Event]) -> None:
        """T3: settles a lost request as its API allows."""
        events.append(Lost(entry.api, entry.correlation_id, reason))
        self.ids.lose(entry.correlation_id, min(entry.overtaken_at, now))
        self.mismatches.settle()
        entry.history.append(reason)
        self._doubt_later_answers(entry)
        if entry.action is Action.CLOSE:
            events += self._retire(f"the answer to {entry.api} is lost")
        elif entry.action.is_resend and self._has_yielded(entry):
            self._fail(entry, Verdict.HAND_UP, f"{reason}, and a newer {entry.api} was sent since", events)
        elif entry.action.is_resend and self._may_resend(entry, now):
            self._requeue(entry, reason, events)
        elif entry.action.is_resend:
            self._fail(entry, Verdict.EXHAUSTED, reason, events)
        elif entry.action is Action.OUTCOME_UNKNOWN:
            self._fail(entry, Verdict.OUTCOME_UNKNOWN, reason, events)
        else:
            self._fail(entry, Verdict.HAND_UP, reason, events)
        self._mismatch(now, events)

    def _may_resend(self, entry: InFlightRequest, now: float) -> bool:
        return entry.resends < self.policy.max_resends and now < entry.deadline

    def _doubt_later_answers(self, lost: InFlightRequest) -> None:
        """A held answer of the lost request's API may be that one's, under a wrong id."""
        is_later = False
        for entry in self._requests.values():
            is_later = is_later or entry is lost
            if is_later and entry.is_held and entry.request.API_KEY == lost.request.API_KEY:
                entry.needs_proof = True

    def _has_yielded(self, entry: InFlightRequest) -> bool:
        """A repeat would undo a newer request of its kind (an OffsetCommit would rewind its group)."""
        return getattr(entry.request, "yields_to_newer", False) and any(
            self._newest.get(key, -1) > entry.order for key in entry.request.order_keys
        )

    def _requeue(self, entry: InFlightRequest, reason: str, events: list[Event]) -> None:
        """The same bytes under a new id; `order` keeps its place among requests that share a key."""
        entry.move(Input.RESEND)
        del self._requests[entry.correlation_id]
        self._irregular += 0 if entry.resends else 1
        entry.resends += 1
        entry.correlation_id = self.ids.draw()
        entry.overtaken_at = entry.lost_at = NEVER
        self._requests[entry.correlation_id] = entry
        events.append(Requeued(entry.api, entry.correlation_id, entry, reason))

    def _fail(
        self,
        entry: InFlightRequest,
        verdict: Verdict,
        reason: str,
        events: list[Event],
        error: BaseException | None = None,
    ) -> None:
        self._remove(entry)
        entry.move(Input.FAIL)
        events.append(Failed(entry.api, entry.correlation_id, entry, verdict, reason, error))

    def _remove(self, entry: InFlightRequest) -> None:
        del self._requests[entry.correlation_id]
        if entry.is_held or entry.resends:
            self._irregular -= 1
        entry.is_held = False

    # -- order ----------------------------------------------------------------

    def _release(self, events: list[Event], now: float) -> None:
        """Delivers held answers whose turn has come, oldest first."""
        if not self._irregular or self.is_retired:
            return
        requests = list(self._requests.values())
        for entry, out_of_turn in released(requests, lambda held: self._is_out_of_turn(held, now)):
            if out_of_turn:
                self._unhold(entry)
                self._requeue(entry, "the broker had not seen the request before it", events)
            else:
                events += self._finish(entry, entry.response, now)
        doubtful = next((r for r in self._requests.values() if r.needs_proof and not r.is_proven), None)
        if doubtful is not None and not self._probes:
            events.append(self._probe(f"an answer to {doubtful.api} may be that of one before it", now))

    def _is_out_of_turn(self, entry: InFlightRequest, now: float) -> bool:
        """A held answer says that the request before it, lost and resent since, had not been seen."""
        check = getattr(entry.request, "is_out_of_turn", None)
        may_resend = entry.action.is_resend and self._may_resend(entry, now) and not self._has_yielded(entry)
        if check is None or not may_resend:
            return False
        return bool(check(entry.response))

    def _unhold(self, entry: InFlightRequest) -> None:
        self._irregular -= 0 if entry.resends else 1
        entry.is_held = entry.is_proven = entry.needs_proof = False
        entry.response = entry.answer = None

    # -- the end --------------------------------------------------------------

    def close(self, error: BaseException | None, now: float) -> list[Event]:
        """Settles every request: the connection is gone.  Idempotent.

        A Produce without producer id that had been sent may have been applied:
        its outcome is unknown, unless the policy allows to send it again.
        """
        self.is_retired = True
        events: list[Event] = []
        for entry in list(self._requests.values()):
            if entry.is_probe:
                self._drop_probe(entry)
            elif entry.action is Action.OUTCOME_UNKNOWN and entry.first_sent_at >= 0:
                self._fail(entry, Verdict.OUTCOME_UNKNOWN, "the connection was lost", events, error)
            else:
                self._fail(entry, Verdict.CLOSED, "the connection was lost", events, error)
        return events

    def _retire(self, reason: str, is_timeout: bool = False) -> list[Event]:
        if self.is_retired:
            return []
        self.is_retired = True
        return [Retired("", -1, reason, is_timeout)]

    def _mismatch(self, now: float, events: list[Event]) -> list[Event]:
        """T7: counts one mismatch; above the budget the connection is not worth its place."""
        verdict = self.mismatches.count(now)
        if verdict is not None:
            events += self._retire(verdict)
        return events

    def _is_authenticating(self) -> bool:
        return any(r.action is Action.CLOSE for r in self._requests.values())


def _first_line(error: Exception) -> str:
    """The start of a decoder's message; long ones may quote payload, so they are cut."""
    text = str(error).split("\n", 1)[0]
    return text if len(text) <= 120 else text[:117] + "..."
