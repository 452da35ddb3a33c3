"""The tracker: every request in flight on one connection, and what each answer means for it.

Laws (T1 to T8 are DESIGN.md's; tests cite the letters):
A. Every request ends in COMPLETED or FAILED exactly once, on whatever bytes.
B. A change of state is in lifecycle.TRANSITIONS or the connection is retired.
C. An answer completes its request only after its body decoded with no byte left over.
D. Older and later are positions in the order of sending, never numbers.
E. Nothing is sent again after its deadline, more often than the policy allows,
   or with other bytes than the first time (its id excepted).  The time that a peer takes for a probe counts for no
   request that was sent after it.
F. An answer out of step puts the stream on trial.  Nothing is believed, lost or sent again until the answer to a
   probe shows that the stream is in step; a second one that fits nothing, or no proof in time, ends the connection.
G. Silence and a probe's answer alone settle only reads and what is sent again, here or by its owner.  An answer
   after its loss was proved disproves all probes: none is sent any more.
H. Brokers answer in the order of requests: an answer that also fits an older request without one, or
   a later one that has one, is believed for neither, for their ids may be exchanged.  What the decoder of a probe
   without an answer takes is the probe's, under whatever id it comes.
I. A response that speaks of something else is believed when a repeat brings the same again, when two bring
   nothing, where no repeat is safe (but what cannot be repeated is unknown where nothing is probed), or when
   nothing else is out of step and a probe has no response in time: then of a stream that is in step, which its
   turn shows where nothing is probed.  Not where it fits another in flight.

What a request carries beside its state (lifecycle.py), and why it is none:
- `response`, `odd`, `said`: what came, kept until it is believed or a repeat has shown what it means (I); it may come in
  any state before the last.
- `resends`, `resends_when_said`, `lost_ids`: how often, and under which ids, it was sent: bounds of repeats (E).
- `is_proved_silent`: a probe sent after it has its response (G).  In flight or doubted, its ways on are the same.
What the tracker has beside them is of the connection: whether it is retired, disproved (G), on trial (F), and its probe.

It reads no clock, opens no socket and writes no log: every method takes `now`
(monotonic seconds) and returns the events that the binding has to act upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tolerant_client.policy import RecoveryPolicy
from tolerant_client.tracker.correlation import CorrelationIds
from tolerant_client.tracker.events import (
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
from tolerant_client.tracker.lifecycle import NEVER, IllegalTransition, InFlightRequest, Input, State
from tolerant_client.tracker.probe_timer import Silence
from tolerant_client.tracker.repeats import Repeats
from tolerant_client.tracker.rules.apis import Action, OtherSubject, Request, action_for, is_settled_by_silence
from tolerant_client.tracker.sending_order import SendingOrder
from tolerant_client.tracker.trial import Budget, Trial

_Requests = Iterable[InFlightRequest]


class InFlightRequests:
    """The one store of requests in flight; its length and iteration leave the probe out.

    `first_id` is where correlation ids start (a random number); `question` is a request that this broker
    answers at once, that changes nothing, and whose answer no other request takes for its own; None while no
    such request is known: then nothing is probed, and the first answer out of turn, or that fits nothing, ends
    the connection.
    """

    def __init__(self, policy: RecoveryPolicy, first_id: int, question: Request | None = None) -> None:
        self.policy = policy
        self.question = question
        self.ids = CorrelationIds(first_id)
        self.silence = Silence(policy)
        self.is_retired = False
        self.is_disproved = False  # an answer came whose loss a probe had proved: this peer does not keep its order
        self._budget = Budget(policy)
        self._requests = SendingOrder()
        self._next_order = 0
        self._probe: InFlightRequest | None = None  # the one that is in flight; in _requests as well
        self._open_probes: dict[int, InFlightRequest] = {}  # without a response, those that were replaced included
        self._trial: Trial | None = None
        self._is_regular = True  # False on trial, and while requests are held or sent again: order needs a look
        self._deadline_from = NEVER  # a lower bound, made exact by expired()
        self._repeats = Repeats(policy)

    def __len__(self) -> int:
        return len(self._requests) - (self._probe is not None)

    def __iter__(self) -> Iterator[InFlightRequest]:
        return (r for r in list(self._requests.values()) if r is not self._probe)

    # -- sending --------------------------------------------------------------

    def queue(self, request: Request, deadline: float, context: Any = None) -> InFlightRequest:
        """Takes a request in and draws its correlation id; the caller sends it and says `sent`."""
        action = action_for(request, self.policy)
        if not self._requests:
            self._repeats.forget()
        entry = self._enter(request, deadline, action, context)
        if deadline < self._deadline_from:
            self._deadline_from = deadline
        return entry

    def _enter(self, request: Request, deadline: float, action: Action, context: Any) -> InFlightRequest:
        entry = InFlightRequest(request, self.ids.draw(), self._next_order, deadline, action, context)
        self._next_order += 1
        self._requests[entry.correlation_id] = entry
        return entry

    def withdraw(self, entry: InFlightRequest) -> None:
        """Takes a request back that could not be encoded, and so was never sent."""
        del self._requests[entry.correlation_id]
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
            self._repeats.sent(entry)
        self._requests.was_sent(entry)
        return []

    def progress(self, now: float) -> None:
        """Notes that bytes are arriving (or, with a time ahead, that none can before it)."""
        self.silence.progress(now)

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without an answer, the probe included."""
        return self._requests.oldest

    @property
    def is_doubtful(self) -> bool:
        """True while a probe waits or the stream is on trial: others answer sooner."""
        return self._probe is not None or self._trial is not None

    # -- answers --------------------------------------------------------------

    def response(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """Takes one answer (T1, T2, T4, T6); `body` starts after the correlation id."""
        if self.is_retired:
            return []
        if (probe := self._open_probes.get(correlation_id)) is not None:
            self._allow_for(probe, now)
        self.silence.responded(now)
        entry = self._requests.get(correlation_id)
        if entry is None:
            return self._orphan(correlation_id, body, now)
        if entry.state is State.QUEUED or entry.state is State.REQUEUED:
            return self._retire(f"an answer to {entry.api} came before it was sent")
        if self._open_probes and entry is not self._probe and self._is_probes(body):
            return self._misfit(entry, f"an answer to {entry.api} is that of a probe", now)
        try:
            response = entry.request.decode_response(body)
        except OtherSubject as other:
            return self._odd(entry, other, body, now)
        except Exception as error:  # a decoder on hostile bytes may raise anything
            return self._misfit(entry, entry.not_decoded(error), now)
        if self._is_regular and entry is not self._probe and entry is self._requests.oldest:
            self.silence.answered(entry, now)
            del self._requests[entry.correlation_id]
            return [self._complete(entry, response, now)]
        return self._answered(entry, response, body, now)

    def _complete(self, entry: InFlightRequest, response: Any, now: float) -> Completed:
        entry.move(Input.ANSWERED)
        return Completed(entry.api, entry.correlation_id, entry, response, now - entry.first_sent_at)

    def _answered(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> list[Event]:
        """An answer that fits its request, where the order needs a look: it is held until its turn has come."""
        alike = [r for r in self._requests.answered_after(entry) if r.takes(body, entry)]
        if entry.state is not State.IN_FLIGHT:
            return self._misfit(entry, f"two answers to one {entry.api} came", now, [entry, *alike])
        if entry is self._probe:
            return self._verdict(now)
        self.silence.answered(entry, now)
        if alike:
            return self._misfit(entry, f"its answer came after that of a later {entry.api}, and fits both", now, alike)
        older = [r for r in self._requests.before(entry) if r.state is State.IN_FLIGHT and r.takes(body, entry)]
        events: list[Event] = []
        if entry is not self.oldest:
            if self._is_setting_up():
                return self._retire(f"the answer to {entry.api} overtook another one while authenticating")
            is_meant = not older and self._requests.is_next(entry)
            events += self._put_on_trial(now, self.policy.reorder_grace_ms / 1000, is_meant=is_meant)
            if self.is_retired:
                return events
            if self._requests.overtakes(entry, self._probe):
                events.append(self._ask("the answer to a probe did not come in its turn", now))
        elif self._requests.answered_after(entry):
            events.append(Reordered(entry.api, entry.correlation_id))
        if entry.odd is not None:
            entry.odd = None
            events += self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)
        self._doubt([entry, *older]) if older else self._hold(entry, response)
        return self._release(events, now)

    def _doubt(self, entries: _Requests) -> None:
        """Law H: nothing that came or comes to these is believed, for their ids may be exchanged."""
        for entry in entries:
            if entry.state is State.IN_FLIGHT or entry.state is State.HELD:
                entry.move(Input.DOUBT)
                entry.odd = None

    def _is_probes(self, body: memoryview) -> bool:
        """Whether a body that came under another id is the answer of a probe, whatever else takes it, too."""
        probe = next(iter(self._open_probes.values()), None)  # all ask the same
        if probe is None:
            return False
        try:
            response = probe.request.decode_response(body)
        except Exception:  # a decoder on hostile bytes may raise anything
            return False
        return probe.request.is_unmistakable(response)

    def _hold(self, entry: InFlightRequest, response: Any) -> None:
        entry.move(Input.HOLD)
        entry.response = response

    def _odd(self, entry: InFlightRequest, other: OtherSubject, body: memoryview, now: float) -> list[Event]:
        """T6: an answer that decodes but speaks of something else than its request.

        Where it fits another request it is that one's, under whose id ours may come.  Where it fits none the trial (its
        turn, where nothing is probed) shows whether one is missing or left over.  The same again to a repeat is meant.
        """
        is_first = entry.state is State.IN_FLIGHT and entry.odd is None and entry is not self._probe
        if is_first and entry.said is not None and other.names == entry.said.names:
            return self._answered(entry, other.response, body, now)
        others = [r for r in self if r.takes(body, entry)]
        if entry is self._probe and not others:
            return self._verdict(now)  # it fits nobody else: this server says more than it is asked for
        if others or not is_first or other.response is None:
            return self._misfit(entry, str(other), now, others)
        if self.question is None and entry is self.oldest and not (self.ids.awaits_any or self._is_setting_up()):
            events: list[Event] = []
            self._weigh(entry, other, now, events)
            return self._release(events, now)
        entry.odd = other
        return self._put_on_trial(now, 0.0, is_meant=self._requests.is_next(entry))

    def _weigh(self, entry: InFlightRequest, other: OtherSubject, now: float, events: list[Event]) -> None:
        """Law I: the stream is in step, and has an odd response: asked again where that is safe, else believed."""
        entry.odd = None
        if self.question is None and entry.action is Action.OUTCOME_UNKNOWN:
            self._lose(entry, str(other), now, events)  # nothing has shown that the stream is in step
        elif not entry.action.is_resend or self._repeats.has_yielded(entry):
            self._hold(entry, other.response)
        elif self._repeats.allow(entry, now):
            entry.said, entry.resends_when_said = other, entry.resends
            entry.expected = 0.0  # it has been answered once: there is nothing left to wait for
            entry.history.append(str(other))
            self._requeue(entry, str(other), events)
        else:
            self._lose(entry, str(other), now, events)

    def _misfit(self, entry: InFlightRequest, what: str, now: float, doubted: _Requests = ()) -> list[Event]:
        """T6: the body is not what was asked for: dropped, and the request goes on waiting.

        It may be an older one's under a wrong id, or our own spoiled: the trial says.  That to `doubted` may be ours.
        """
        self._doubt(doubted)
        entry.history.append(what)
        return self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)

    def _orphan(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """T4: an answer that no request waits for is dropped.

        It may be the oldest request's under a wrong id; a wrong id is often one that was used before, so a
        duplicate is as suspicious as an id never sent.  The late answer of a lost request is explained by it, and
        completes it; one to acks=0 (Event Hubs gives them) is no mismatch, and only the trial shows whose it is.
        """
        is_probes = correlation_id in self._open_probes and self._is_probes(body)
        self._open_probes.pop(correlation_id, None)
        cause, sent_at = self.ids.recall(correlation_id)
        orphan = Orphan("", correlation_id, "late" if cause == "replaced" else cause)
        if cause == "unasked":
            is_waited_for = self.oldest is not None and not self._is_setting_up()
            return [orphan, *(self._put_on_trial(now, 0.0) if is_waited_for else ())]
        # A re-authentication waits until all is settled but probes.
        if sent_at is None or (self._is_setting_up() and not is_probes):
            return self._suspect(orphan, now)
        self.silence.round_trips.sample(now - sent_at)  # this peer takes so long
        events = self._count(now, [orphan])
        if cause == "late":
            events += self._disprove()
            self._complete_late(correlation_id, body, events, now)
        return events

    def _complete_late(self, correlation_id: int, body: memoryview, events: list[Event], now: float) -> None:
        """Completes a request by the response to its first sending; its repeat is waited for no more.

        Not where another one waits that it fits (law H), nor one that yields to newer ones: its repeat may outdate
        the first (another epoch or member id fences it), or run after a newer one (such a peer keeps no order).
        """
        entry = next((r for r in self if correlation_id in r.lost_ids and r.state is State.IN_FLIGHT), None)
        if entry is None or self.is_retired or self._is_probes(body):
            return
        is_its_own = not any(r.response is None and r.takes(body, entry) for r in self) and entry.reads(body)
        if self._requests.came_out_of_turn(entry, body):
            events += self._retire(f"a late answer to {entry.api} came out of turn, and fits another one")
        elif is_its_own and not entry.request.yields_to_newer:
            self.ids.replace(entry.correlation_id, entry.sent_at)
            self._hold(entry, entry.request.decode_response(body))
            self._release(events, now)

    def _disprove(self) -> list[Event]:
        """Law G: from now on silence ends at the deadline, and the first answer out of step ends the connection."""
        self.is_disproved, self.question = True, None
        if self._trial is not None:
            return self._retire("its answers do not come in the order of its requests")
        self._drop_probe()
        return []

    def _allow_for(self, probe: InFlightRequest, now: float) -> None:
        """Law E: what was sent after a probe has as much more time as the probe's response has kept it waiting."""
        for entry in self:
            if entry.order > probe.order and entry.sent_at >= 0:
                entry.deadline += now - max(entry.sent_at, self.silence.responded_at)

    # -- the trial (T4, law F) ------------------------------------------------

    def _suspect(self, orphan: Orphan, now: float) -> list[Event]:
        """An answer that fits nothing: one may be an accident, two are a stream out of step."""
        events: list[Event] = [orphan]
        if self._is_setting_up():
            what = "that does not decode" if orphan.cause == "misfit" else f"with a {orphan.cause} correlation id"
            return events + self._retire(f"an answer {what} came while authenticating")
        if self.oldest is not None or self._trial is not None:
            is_second = self._trial is not None and self._trial.has_misfit
            if is_second or self.question is None:
                return events + self._retire("its answers are out of step with its requests")
            events += self._put_on_trial(now, 0.0, has_misfit=True)
        return self._count(now, events)

    def _put_on_trial(self, now: float, grace: float, has_misfit: bool = False, is_meant: bool = False) -> list[Event]:
        """Nothing is believed until a probe, sent after `grace` seconds, is answered."""
        if self.question is None:
            return self._retire("an answer came out of turn")
        if self._trial is None:
            self._trial = Trial(now, now + grace, grace + self.silence.patience(self._rightly()))
            self._is_regular = False
        self._trial.has_misfit |= has_misfit
        self._trial.is_meant &= is_meant
        if self._trial.asks_at <= now or (grace == 0.0 and self._trial.asks_at < NEVER):
            return [self._ask("an answer came out of step", now)]
        return []

    def _rightly(self) -> float:
        """How long what is in flight may wait at the broker, in seconds."""
        return sum(r.expected for r in self._requests.values() if r.is_unanswered)

    def _ask(self, reason: str, now: float) -> Probe:
        assert self.question is not None  # else nothing is probed: callers have seen to it
        if self._trial is not None:
            self._trial.asks_at = NEVER
        self._drop_probe()
        self._probe = entry = self._enter(self.question, NEVER, Action.HAND_UP, None)
        self._open_probes[entry.correlation_id] = entry
        self.silence.probed(now)
        return Probe("Probe", entry.correlation_id, entry, reason)

    def _drop_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            del self._requests[probe.correlation_id]
            self.ids.replace(probe.correlation_id, probe.sent_at)

    def _verdict(self, now: float) -> list[Event]:
        """The probe is answered: the stream is in step, and the broker is done with all that was sent before."""
        probe, trial = self._probe, self._trial
        assert probe is not None
        unanswered = [r for r in self._requests.before(probe) if r.is_unanswered]
        del self._requests[probe.correlation_id], self._open_probes[probe.correlation_id]
        self._probe = self._trial = None
        self.silence.answered(probe, now)
        self.silence.proved()
        is_whole = not (trial is not None and trial.has_misfit) and all(r.odd is not None for r in unanswered)
        events: list[Event] = []
        for entry in unanswered:
            if trial is None and not is_settled_by_silence(entry.request) and not self._repeats.allow(entry, now):
                entry.is_proved_silent = True
            elif is_whole and entry.odd is not None:
                self._weigh(entry, entry.odd, now, events)
            elif trial is None and entry.said is not None and entry.resends - entry.resends_when_said > 1:
                self.ids.lose(entry.correlation_id, entry.sent_at)
                self._hold(entry, entry.said.response)  # two repeats have no response: it is all that the server says
            elif not self.is_retired:
                self._lose(entry, "a later answer came on the same connection", now, events)
        self._release(events, now)
        left = [r for r in self if r.state is State.DOUBTED or r.odd is not None]  # they were sent after the probe
        if left and not self.is_retired:
            is_meant = all(r.odd is not None and self._requests.is_next(r) for r in left)
            events += self._put_on_trial(now, 0.0, is_meant=is_meant)
        return events

    def _end_trial(self, now: float) -> list[Event]:
        """No proof came in time: law I, where nothing but odd responses is out of step, else law F."""
        if self._trial is None or not self._trial.is_meant or not self.policy.max_resends:
            return self._retire("nothing showed in time that its answers are in step with its requests")
        self._trial = None
        for entry, other in [(r, r.odd) for r in self if r.odd is not None]:
            self._hold(entry, other.response)
            entry.odd = None
        return self._release([], now) + self.expired(now)  # silence counts again

    # -- time -----------------------------------------------------------------

    def next_wakeup(self, now: float) -> float | None:
        """When `expired` wants to be called; None when nothing can become due."""
        if self.is_retired or not self._requests:
            return None
        due = min(self._deadline_from, self._trial_ends(), self._probe_due())
        return None if due == NEVER else due

    def expired(self, now: float) -> list[Event]:
        """Does what is due: retires a connection that timed out or is out of step, probes silence."""
        if self.is_retired:
            return []
        if now >= self._trial_ends():
            return self._end_trial(now)
        if now >= self._deadline_from:
            self._deadline_from = min((r.deadline for r in self._requests.values()), default=NEVER)
            if now >= self._deadline_from:
                late = next(r for r in self._requests.values() if r.deadline <= now)
                return self._retire(f"{late.api} was not answered within its timeout", is_timeout=True)
        if now >= self._probe_due():
            oldest = self.oldest
            assert oldest is not None
            return [self._ask(f"{oldest.api} is silent for longer than it can be", now)]
        return []

    def _trial_ends(self) -> float:
        return NEVER if self._trial is None else self.silence.since(self._trial.began) + self._trial.patience

    def _probe_due(self) -> float:
        """T5: when the oldest request without an answer is older than it can be, or a trial's grace is over."""
        if self._trial is not None:
            return self._trial.asks_at
        if self.question is None:
            return NEVER
        waiting = (r for r in self._requests.values() if r.is_unanswered and not r.is_proved_silent)
        oldest = next((r for r in waiting if r is not self._probe), None)
        if oldest is None or self._is_setting_up():
            return NEVER
        return self.silence.due(oldest, self._probe is not None)

    # -- loss, order and the end ----------------------------------------------

    def _lose(self, entry: InFlightRequest, reason: str, now: float, events: list[Event]) -> None:
        """T3: settles a lost request as its API allows."""
        events.append(Lost(entry.api, entry.correlation_id, reason))
        self.ids.lose(entry.correlation_id, entry.sent_at)
        entry.history.append(reason)
        entry.odd = None
        if entry.action.is_resend and self._repeats.has_yielded(entry):
            self._fail(entry, Verdict.HAND_UP, f"{reason}, and a newer {entry.api} was sent since", events)
        elif self._repeats.allow(entry, now):
            self._requeue(entry, reason, events)
        elif entry.action.is_resend:
            self._fail(entry, Verdict.EXHAUSTED, reason, events)
        elif entry.action is Action.OUTCOME_UNKNOWN:
            self._fail(entry, Verdict.OUTCOME_UNKNOWN, reason, events)
        else:
            self._fail(entry, Verdict.HAND_UP, reason, events)
        self._count(now, events)

    def _requeue(self, entry: InFlightRequest, reason: str, events: list[Event]) -> None:
        """The same bytes under a new id; `order` keeps its place among requests that share a key."""
        entry.move(Input.RESEND)
        del self._requests[entry.correlation_id]
        entry.resends += 1
        entry.lost_ids.append(entry.correlation_id)
        entry.response = None
        entry.correlation_id = self.ids.draw()
        self._requests[entry.correlation_id] = entry
        self._is_regular = False
        events.append(Requeued(entry.api, entry.correlation_id, entry, reason))

    def _fail(
        self,
        entry: InFlightRequest,
        verdict: Verdict,
        reason: str,
        events: list[Event],
        error: BaseException | None = None,
    ) -> None:
        del self._requests[entry.correlation_id]
        entry.move(Input.FAIL)
        events.append(Failed(entry.api, entry.correlation_id, entry, verdict, reason, error))

    def _release(self, events: list[Event], now: float) -> list[Event]:
        """T2: delivers held answers whose turn has come, oldest first.

        Requests that share an order key (Produce of one partition, OffsetCommit of one group) are answered in the
        order of sending, resends included.
        """
        is_overtaken = self.oldest is not None and self._requests.answered_after(self.oldest)
        if self._trial is not None and self._trial.asks_at < NEVER and not is_overtaken:
            self._trial = None  # what came out of turn is all there
        if self._trial is not None or self.is_retired:
            return events
        waiting_keys: set[Any] = set()
        for entry in sorted(self, key=lambda request: request.order):
            keys = entry.request.order_keys
            if entry.state is not State.HELD or not waiting_keys.isdisjoint(keys):
                waiting_keys.update(keys)
            elif entry.is_out_of_turn and self._repeats.allow(entry, now):
                waiting_keys.update(keys)
                self._requeue(entry, "the broker had not seen the request before it", events)
            else:
                del self._requests[entry.correlation_id]
                events.append(self._complete(entry, entry.response, now))
        self._is_regular = not any(r.resends or r.state is State.HELD for r in self._requests.values())
        return events

    def close(self, error: BaseException | None, now: float, unflushed: frozenset[int] = frozenset()) -> list[Event]:
        """Settles every request: the connection is gone.  Idempotent.

        What may not run twice and may have been carried out is called unknown.  `unflushed` are the ids of requests
        of which no byte has left the process.
        """
        self.is_retired = True
        self._drop_probe()
        events: list[Event] = []
        for entry in list(self._requests.values()):
            may_have_run = entry.first_sent_at >= 0 and (entry.resends > 0 or entry.correlation_id not in unflushed)
            is_unknown = entry.action is Action.OUTCOME_UNKNOWN and may_have_run
            verdict = Verdict.OUTCOME_UNKNOWN if is_unknown else Verdict.CLOSED
            self._fail(entry, verdict, "the connection was lost", events, error)
        return events

    def _retire(self, reason: str, is_timeout: bool = False) -> list[Event]:
        if self.is_retired:
            return []
        self.is_retired = True
        return [Retired("", -1, reason, is_timeout)]

    def _count(self, now: float, events: list[Event]) -> list[Event]:
        """T7: counts one mismatch; above the budget the connection is not worth its place."""
        verdict = self._budget.count(now)
        if verdict is not None:
            events += self._retire(verdict)
        return events

    def _is_setting_up(self) -> bool:
        return any(r.action is Action.CLOSE for r in self._requests.values())
