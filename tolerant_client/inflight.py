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

from collections import deque
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
from tolerant_client.policy import RecoveryPolicy
from tolerant_client.roundtrips import RoundTrips


class InFlightRequests:
    """The one store of requests in flight; its length and iteration leave probes out.

    `first_id` is where correlation ids start (a random number); `may_probe_setup`
    says whether a probe may overtake the first ApiVersions (not with SASL, where
    the broker would take it for a protocol error).
    """

    def __init__(self, policy: RecoveryPolicy, first_id: int, may_probe_setup: bool = True) -> None:
        self.policy = policy
        self.ids = CorrelationIds(first_id)
        self.round_trips = RoundTrips(policy.probe_min_ms / 1000, policy.probe_max_ms / 1000)
        self.is_retired = False
        self._waits = RoundTrips(policy.probe_min_ms / 1000, NEVER)  # of requests that may wait at the broker
        self._may_probe_setup = may_probe_setup
        self._requests: dict[int, InFlightRequest] = {}  # by id, in the order of sending
        self._next_order = 0
        self._probes = 0
        self._irregular = 0  # requests held or resent: while there are any, order needs a look
        self._suspicion = 0  # orphans that no lost request explains yet
        self._grace = policy.reorder_grace_ms / 1000
        self._progress = -NEVER
        self._probed_at = -NEVER
        self._deadline_from = NEVER  # lower bounds, made exact by expired()
        self._lost_from = NEVER
        self._mismatches: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._requests) - self._probes

    def __iter__(self) -> Iterator[InFlightRequest]:
        return (r for r in list(self._requests.values()) if not r.is_probe)

    # -- sending --------------------------------------------------------------

    def queue(self, request: Any, deadline: float, context: Any = None) -> InFlightRequest:
        """Takes a request in and draws its correlation id; the caller sends it and says `sent`."""
        action = action_for(request, self.policy.resend_plain_produce)
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
        if next(reversed(self._requests)) != entry.correlation_id:
            # Written behind others that were queued after it: the store's order is the wire's.
            self._requests[entry.correlation_id] = self._requests.pop(entry.correlation_id)
        return []

    def progress(self, now: float) -> None:
        """Notes that bytes are arriving (or, with a time ahead, that none can before it)."""
        if now > self._progress:
            self._progress = now

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without an answer, probes included."""
        for entry in self._requests.values():
            if entry.state is State.IN_FLIGHT and not entry.is_held:
                return entry
        return None

    # -- answers --------------------------------------------------------------

    def response(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """Takes one answer (T1, T2, T4, T6); `body` starts behind the correlation id."""
        if self.is_retired:
            return []
        self._progress = max(self._progress, now)
        entry = self._requests.get(correlation_id) or self._misnumbered(correlation_id)
        if entry is None:
            return self._orphan(correlation_id, now)
        if entry.state is not State.IN_FLIGHT:
            return self._retire(f"an answer to {entry.api} came before it was sent")
        if entry.is_held:
            return self._second_answer(entry, body, now)
        try:
            response = entry.request.decode_response(body)
        except Exception as error:  # a decoder on hostile bytes may raise anything
            return self._undecodable(entry, error, now)
        if entry is not self.oldest:
            return self._overtaking(entry, response, body, now)
        if self._irregular or entry.is_probe or entry.lost_at < NEVER:
            events = self._answered(entry, response, body, now)
            self._release(events, now)
            return events
        del self._requests[entry.correlation_id]
        return [self._complete(entry, response, now)]

    def _complete(self, entry: InFlightRequest, response: Any, now: float) -> Completed:
        entry.move(Input.ANSWERED)
        took, expected = now - entry.sent_at, entry.expected
        if not expected:
            self.round_trips.sample(took)
        else:
            self._waits.sample(took)
            if took > expected:
                self.round_trips.sample(took - expected)
        self.round_trips.unanswered = 0
        is_reordered = entry.overtaken_at < NEVER
        return Completed(entry.api, entry.correlation_id, entry, response, now - entry.first_sent_at, is_reordered)

    def _answered(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> list[Event]:
        """Completes the request, or holds its answer behind older ones that it must not overtake."""
        if entry.is_probe:
            self.round_trips.sample(now - entry.sent_at)
            self.round_trips.unanswered = 0
            self._suspicion = 0
            self._drop_probe(entry)
            return []
        if self._is_blocked(entry):
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
        is_explained = self._suspicion >= sum(not m.is_probe for m in missing) > 0
        for older in missing:
            older.overtaken_at = min(older.overtaken_at, now)
            older.lost_at = min(older.lost_at, now if is_explained else now + self._grace)
            self._lost_from = min(self._lost_from, older.lost_at)
        events = self._answered(entry, response, body, now)
        if is_explained:
            events += self._lose_overdue(now)
        self._release(events, now)
        return events

    def _second_answer(self, entry: InFlightRequest, body: memoryview, now: float) -> list[Event]:
        """A held request is answered again: the same bytes are a duplicate, others mean that one is a lie."""
        if entry.answer == body:
            return self._mismatch(now, [Orphan(entry.api, entry.correlation_id, "duplicate")])
        entry.is_held, entry.response, entry.answer = False, None, None
        self._irregular -= 0 if entry.resends else 1
        suspects = [o for o in self._requests.values() if o.order <= entry.order and not o.is_probe and not o.is_held]
        events: list[Event] = []
        for suspect in suspects:
            if suspect is entry or (suspect.is_unanswered and suspect.api == entry.api):
                self._lose(suspect, "two different answers came for one request", now, events)
        self._release(events, now)
        return events

    def _undecodable(self, entry: InFlightRequest, error: Exception, now: float) -> list[Event]:
        """T6: the body is not what was asked for, so neither it nor what follows is trusted."""
        reason = f"the answer to {entry.api} could not be decoded ({type(error).__name__}: {_first_line(error)})"
        return [Lost(entry.api, entry.correlation_id, reason), *self._retire(reason)]

    def _misnumbered(self, correlation_id: int) -> InFlightRequest | None:
        """Kafka 0.8.2 answers FindCoordinator version 0 with id 0 (both Python clients tolerate it)."""
        oldest = self.oldest if correlation_id == 0 else None
        if oldest is None or oldest.request.API_KEY != FIND_COORDINATOR or oldest.request.API_VERSION != 0:
            return None
        return oldest

    def _orphan(self, correlation_id: int, now: float) -> list[Event]:
        """T4: an answer that no request waits for is dropped, and makes the oldest request a suspect.

        It may be that one's answer under a wrong id; a wrong id is often one that
        was used before, so a duplicate is as suspicious as an id never sent.
        """
        cause, overtaken_at = self.ids.recall(correlation_id)
        events: list[Event] = [Orphan("", correlation_id, cause)]
        if cause == "unasked":
            return events
        if self._is_authenticating():
            return events + self._retire(f"an answer with a {cause} correlation id came while authenticating")
        if overtaken_at is not None:
            # This peer does answer late: give the next one the time that this one would have needed.
            self._grace = min(self.policy.max_reorder_grace_ms / 1000, max(self._grace, 2 * (now - overtaken_at)))
        else:
            self._suspicion += 1
        oldest = self.oldest
        if oldest is not None and not self._probes:
            events.append(self._probe(f"an answer with a {cause} id came while {oldest.api} was waiting", now))
        return self._mismatch(now, events)

    # -- time -----------------------------------------------------------------

    def next_wakeup(self, now: float) -> float | None:
        """When `expired` wants to be called; None when nothing can become due."""
        if self.is_retired or not self._requests:
            return None
        due = min(self._deadline_from, self._lost_from, self._probe_due())
        return None if due == NEVER else due

    def expired(self, now: float) -> list[Event]:
        """Does what is due: retires a connection that timed out, declares requests lost, probes silence."""
        if self.is_retired:
            return []
        events: list[Event] = []
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
            self.round_trips.unanswered += 1 if self._probes else 0
            events.append(self._probe(f"{oldest.api} is silent for longer than it can be", now))
        return events

    def _probe_due(self) -> float:
        """T5: when the oldest unanswered request is older than it can be, or than such requests are here.

        The broker takes one request after the other, so its time starts when the
        one before it was answered; bytes that are arriving are progress.  A probe
        behind a fetch that rightly waits only waits with it, so where data is
        flowing it need not be held back for the fetch's whole max_wait_ms.
        """
        oldest = self.oldest
        if oldest is None or oldest.lost_at < NEVER or len(self._requests) == self._probes:
            return NEVER
        if oldest.action is Action.CLOSE and not (self._may_probe_setup and oldest.request.API_KEY == API_VERSIONS):
            return NEVER
        since = max(oldest.sent_at, self._progress)
        if self._probes:
            since = max(since, self._probed_at)
            return since + self.round_trips.margin * 2
        patience = oldest.expected + self.round_trips.margin
        return since + (min(patience, self._waits.margin) if oldest.expected else patience)

    def _probe(self, reason: str, now: float) -> Probe:
        entry = InFlightRequest(ProbeRequest(), self.ids.draw(), self._next_order, NEVER, Action.HAND_UP, None)
        self._next_order += 1
        entry.is_probe = True
        self._probes += 1
        self._probed_at = now
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
        self._suspicion = max(0, self._suspicion - 1)
        entry.history.append(reason)
        if entry.action is Action.CLOSE:
            events += self._retire(f"the answer to {entry.api} is lost")
        elif entry.action is Action.RESEND and self._may_resend(entry, now):
            self._requeue(entry, reason, events)
        elif entry.action is Action.RESEND:
            self._fail(entry, Verdict.EXHAUSTED, reason, events)
        elif entry.action is Action.OUTCOME_UNKNOWN:
            self._fail(entry, Verdict.OUTCOME_UNKNOWN, reason, events)
        else:
            self._fail(entry, Verdict.HAND_UP, reason, events)
        self._mismatch(now, events)

    def _may_resend(self, entry: InFlightRequest, now: float) -> bool:
        return entry.resends < self.policy.max_resends and now < entry.deadline

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

    def _is_blocked(self, entry: InFlightRequest) -> bool:
        """True while an older request may not be overtaken by this one.

        Besides shared order keys, an older request of the same API that was not
        declared lost yet: its answer could be this one under a wrong id, which
        the second answer for this id would show.
        """
        keys = set(entry.request.order_keys)
        is_older = True
        for other in self._requests.values():
            if other is entry:
                is_older = False
            elif other.is_probe:
                continue
            elif is_older and other.is_unanswered and other.request.API_KEY == entry.request.API_KEY:
                return True
            elif other.order < entry.order and keys and not keys.isdisjoint(other.request.order_keys):
                return True
        return False

    def _release(self, events: list[Event], now: float) -> None:
        """Delivers held answers whose turn has come, oldest first."""
        if not self._irregular or self.is_retired:
            return
        unanswered_apis: set[int] = set()
        shadowed: set[int] = set()  # held behind an unanswered request of the same API
        for entry in self._requests.values():
            if entry.is_held and entry.request.API_KEY in unanswered_apis:
                shadowed.add(entry.order)
            elif entry.is_unanswered and not entry.is_probe:
                unanswered_apis.add(entry.request.API_KEY)
        waiting_keys: set[Any] = set()
        for entry in sorted(self._requests.values(), key=_by_order):
            keys = entry.request.order_keys
            if not entry.is_held or entry.order in shadowed or not waiting_keys.isdisjoint(keys):
                waiting_keys.update(keys)
            elif self._is_out_of_turn(entry, now):
                self._unhold(entry)
                self._requeue(entry, "the broker had not seen the request before it", events)
                waiting_keys.update(keys)
            else:
                events += self._finish(entry, entry.response, now)

    def _is_out_of_turn(self, entry: InFlightRequest, now: float) -> bool:
        """A held answer says that the request before it, lost and resent since, had not been seen."""
        check = getattr(entry.request, "is_out_of_turn", None)
        if check is None or entry.action is not Action.RESEND or not self._may_resend(entry, now):
            return False
        return bool(check(entry.response))

    def _unhold(self, entry: InFlightRequest) -> None:
        self._irregular -= 0 if entry.resends else 1
        entry.is_held, entry.response, entry.answer = False, None, None

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
        self._mismatches.append(now)
        horizon = now - self.policy.mismatch_window_ms / 1000
        while self._mismatches[0] < horizon:
            self._mismatches.popleft()
        if len(self._mismatches) > self.policy.max_mismatches:
            window = self.policy.mismatch_window_ms / 1000
            events += self._retire(f"{len(self._mismatches)} mismatches within {window:g} s")
        return events

    def _is_authenticating(self) -> bool:
        return any(r.action is Action.CLOSE for r in self._requests.values())


def _by_order(entry: InFlightRequest) -> int:
    return entry.order


def _first_line(error: Exception) -> str:
    """The start of a decoder's message; long ones may quote payload, so they are cut."""
    text = str(error).split("\n", 1)[0]
    return text if len(text) <= 120 else text[:117] + "..."
