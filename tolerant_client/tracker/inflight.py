"""The tracker: every request in flight on one connection, and what each response means for it.

Laws (T1 to T8 are in DESIGN.md; tests cite the letters):
A. Every request ends in COMPLETED or FAILED exactly once, whatever bytes arrive.
B. A change of state is in lifecycle.TRANSITIONS, or the connection is retired.
C. A response completes its request only after its body has decoded with no byte left over.
D. Older and later mean positions in the order of sending, never numbers.
E. Nothing is sent again after its deadline, more often than the policy allows, or with other bytes than the first time
   (except its id).  The time that a peer takes for a probe does not count for requests sent after that probe.
F. A response out of step puts the stream on trial.  Until the response to a probe shows that the stream is in step,
   nothing is believed, lost or sent again.  A second response that fits nothing, or no proof in time, ends the
   connection.
G. Silence and a probe's response alone settle only reads and what is sent again, here or by its owner.  A response to
   a request that was lost in silence disproves all probes: no more are sent.  If a response was out of step, it was the
   lost request's own under a wrong id, and a later response under the lost request's id belongs to another request.
H. Brokers respond in the order of requests.  So a response that also fits an older request without a response, or a
   later request with one, completes neither, because their ids may have been exchanged.  A body that the decoder of an
   open probe accepts is the probe's, whatever id it has.
I. A response that speaks of something else (an odd one) is believed in four cases: a repeat brings the same again; two
   repeats bring nothing; no repeat is safe (where nothing is probed, such a request ends as unknown if it may not run
   twice); or nothing else is out of step and the probe has no response in time.  Where nothing is probed, the odd
   response must come in its turn.  If it fits another request in flight, it is never believed.

What a request carries beside its state (lifecycle.py), and why these are not states:
- `response` while it is HELD, `odd` while it is ODD: the content of these states.
- `said`, `resends_when_said`: the odd response that a repeat is to confirm, and the number of repeats before it (I).
  The request is repeated like any other, through the same states.
- `lost_ids`: the ids of its earlier sendings.  They limit its repeats (E), and a response to one may still come (T4).
- `is_proved_silent`: a probe sent after it has its response (G).  Its transitions are those of its state.
- `sent_at`, `first_sent_at`, `deadline`, `expected`: times, which measure silence (T5); `history`: text for messages.
The rest belongs to the connection: whether it is retired (settlement.py), disproved (G), on trial (F), and its probe.

The tracker reads no clock, opens no socket and writes no log: every method takes `now` (monotonic seconds) and returns
the events that the binding must act upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tolerant_client.tracker.correlation import CorrelationIds
from tolerant_client.tracker.events import Event, Orphan, Probe, Reordered
from tolerant_client.tracker.lifecycle import NEVER, IllegalTransition, InFlightRequest, Input, State
from tolerant_client.tracker.limits import Trial
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.probe_timer import Silence
from tolerant_client.tracker.rules.apis import Action, OtherSubject, Request, action_for, is_settled_by_silence
from tolerant_client.tracker.sending_order import SendingOrder
from tolerant_client.tracker.settlement import Settlement


class InFlightRequests:
    """The requests in flight on one connection; its length and iteration leave the probe out.

    `first_id` is the first correlation id (a random number).  `question` is the request of a probe: the broker responds
    to it at once, it changes nothing, and no other request accepts its response.  While it is None, nothing is probed,
    and a response that stays out of turn for longer than `reorder_grace_ms`, or fits nothing, ends the connection.
    """

    def __init__(self, policy: RecoveryPolicy, first_id: int, question: Request | None = None) -> None:
        self.policy = policy
        self.question = question
        self.ids = CorrelationIds(first_id)
        self.silence = Silence(policy)
        self.is_disproved = False  # a response came whose loss a probe had proved: this peer does not keep the order
        self._requests = SendingOrder()
        self._settlement = Settlement(policy, self._requests, self.ids)
        self._repeats = self._settlement.repeats
        self._trial: Trial | None = None

    def __len__(self) -> int:
        return len(self._requests) - (self._requests.probe is not None)

    def __iter__(self) -> Iterator[InFlightRequest]:
        return self._requests.callers()

    @property
    def is_retired(self) -> bool:
        """True once the connection is to end: it takes no further response."""
        return self._settlement.is_retired

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without a response, the probe included."""
        return self._requests.oldest

    @property
    def is_doubtful(self) -> bool:
        """True while a probe waits or the stream is on trial: prefer other connections."""
        return self._requests.probe is not None or self._trial is not None

    # -- sending --------------------------------------------------------------

    def queue(self, request: Request, deadline: float, context: Any = None) -> InFlightRequest:
        """Takes a request and draws its correlation id; the caller sends it and then calls `sent`."""
        if not self._requests:
            self._repeats.forget()
        return self._requests.enter(request, self.ids.draw(), deadline, action_for(request, self.policy), context)

    def withdraw(self, entry: InFlightRequest) -> None:
        """Takes back a request that could not be encoded, and so was never sent."""
        del self._requests[entry.correlation_id]
        entry.move(Input.FAIL)

    def sent(self, entry: InFlightRequest, now: float) -> list[Event]:
        """Notes that the request's bytes are on their way."""
        try:
            entry.move(Input.SENT)
        except IllegalTransition as illegal:
            self._settlement.retire(str(illegal))
            return self._settlement.done()
        self._requests.was_sent(entry, now)
        self._repeats.sent(entry)
        return []

    # -- responses ------------------------------------------------------------

    def response(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """Takes one response (T1, T2, T4, T6); `body` starts after the correlation id."""
        settlement, requests = self._settlement, self._requests
        if settlement.is_retired:
            return []
        if (probe := requests.open_probes.get(correlation_id)) is not None:
            self.silence.allow_for(probe, requests.callers(), now)
        self.silence.responded(now)
        entry = requests.get(correlation_id)
        if entry is None:
            self._orphan(correlation_id, body, now)
        elif entry.state is State.QUEUED or entry.state is State.REQUEUED:
            settlement.retire(f"a response to {entry.api} came before it was sent")
        elif requests.open_probes and entry is not requests.probe and requests.is_of_a_probe(body):
            self._misfit(entry, f"the response to a probe came as the one to {entry.api}", now)
        else:
            try:
                response = entry.request.decode_response(body)
            except OtherSubject as other:
                self._odd(entry, other, body, now)
            except Exception as error:  # a decoder on hostile bytes may raise anything
                self._misfit(entry, entry.not_decoded(error), now)
            else:
                if settlement.is_regular and entry is not requests.probe and entry is requests.oldest:
                    self.silence.answered(entry, now)
                    settlement.complete(entry, response, now)
                else:
                    self._fitting(entry, response, body, now)
        return settlement.done()

    def _fitting(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> None:
        """A response that fits its request where the order must be checked: it is held until its turn."""
        alike = [r for r in self._requests.answered_after(entry) if r.takes(body, entry)]
        if not entry.is_open:
            return self._misfit(entry, f"two responses to one {entry.api} came", now, [entry, *alike])
        if entry is self._requests.probe:
            return self._verdict(entry, now)
        self.silence.answered(entry, now)
        if alike:
            return self._misfit(
                entry, f"its response came after that of a later {entry.api}, and fits both", now, alike
            )
        older = [r for r in self._requests.before(entry) if r.is_open and r.takes(body, entry)]
        if entry is not self.oldest:
            if self._requests.is_setting_up:
                reason = f"the response to {entry.api} overtook another one while authenticating"
                return self._settlement.retire(reason)
            is_meant = not older and self._requests.is_next(entry)
            # Without a probe nothing would be believed of those whose ids may be exchanged.
            grace = 0.0 if older and self.question is None else self.policy.reorder_grace_ms / 1000
            self._put_on_trial(now, grace, unbelieved=bool(older), is_meant=is_meant)
            if self.is_retired:
                return
            if self._requests.overtakes_probe(entry):
                self._ask("the response to a probe did not come in its turn", now)
        elif self._requests.answered_after(entry):
            self._settlement.tell(Reordered(entry.api, entry.correlation_id))
        if entry.state is State.ODD:
            self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)
        self._doubt([entry, *older]) if older else entry.hold(response)
        return self._release(now)

    def _doubt(self, entries: Iterable[InFlightRequest]) -> None:
        """Law H: believes no response to these, because their ids may have been exchanged."""
        for entry in entries:
            if entry.is_open or entry.state is State.HELD:
                entry.move(Input.DOUBT)

    def _odd(self, entry: InFlightRequest, other: OtherSubject, body: memoryview, now: float) -> None:
        """T6: a response that decodes but speaks of something else than its request.

        If it fits another request, it is that one's, and ours may come under the other's id.  If it fits none, the trial
        (or its turn, where nothing is probed) shows whether a response is missing or left over.  The same content again
        in response to a repeat is what the server means.
        """
        is_first = entry.state is State.IN_FLIGHT and entry is not self._requests.probe
        if is_first and entry.said is not None and other.names == entry.said.names:
            return self._fitting(entry, other.response, body, now)
        others = self._requests.takers(body, entry)
        if entry is self._requests.probe and not others:
            return self._verdict(entry, now)  # it fits no other request: this server says more than it is asked for
        if others or not is_first or other.response is None:
            return self._misfit(entry, str(other), now, others)
        if self.question is None and entry is self.oldest and not (self.ids.awaits_any or self._requests.is_setting_up):
            self._weigh(entry, other, now)
            return self._release(now)
        entry.move(Input.SUSPECT)
        entry.odd = other
        return self._put_on_trial(now, 0.0, is_meant=self._requests.is_next(entry))

    def _weigh(self, entry: InFlightRequest, other: OtherSubject, now: float) -> None:
        """Law I, on a stream that is in step: sends the request again where that is safe, else believes the response."""
        is_unproved = self.question is None and entry.action is Action.OUTCOME_UNKNOWN
        if not is_unproved and (not entry.action.is_resend or self._repeats.has_yielded(entry)):
            entry.hold(other.response)
        elif self._repeats.allow(entry, now):
            entry.said, entry.resends_when_said = other, entry.resends
            entry.expected = 0.0  # the broker has responded once: nothing is left that it could rightly wait for
            entry.history.append(str(other))
            self._settlement.requeue(entry, str(other))
        else:
            self._settlement.lose(entry, str(other), now)

    def _misfit(self, entry: InFlightRequest, what: str, now: float, doubted: Iterable[InFlightRequest] = ()) -> None:
        """T6: drops a body that does not fit its request, which still waits.

        The body may be an older request's under a wrong id, or our own one damaged: the trial shows which.  Our own
        response may come under the id of one of `doubted`.
        """
        self._doubt(doubted)
        entry.history.append(what)
        self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)

    def _orphan(self, correlation_id: int, body: memoryview, now: float) -> None:
        """T4: drops a response that no request waits for.

        It may be the oldest request's under a wrong id.  A wrong id is often one that was used before, so a duplicate is
        as suspicious as an id that was never sent.  Two kinds have an explanation: the late response of a lost request,
        which completes that request; and a response to acks=0 (Event Hubs sends these), which is no mismatch, but only
        the trial shows whose it is.
        """
        is_of_a_probe = self._requests.is_of_a_probe(body)
        is_probes = self._requests.open_probes.pop(correlation_id, None) is not None and is_of_a_probe
        cause, sent_at = self.ids.recall(correlation_id)
        if sent_at is not None and is_of_a_probe is (cause == "late"):
            cause, sent_at = "duplicate", None  # only probes are replaced: it is another request's, under this id
        orphan = Orphan("", correlation_id, "late" if cause == "replaced" else cause)
        self._settlement.surplus += self.ids.was_dropped(correlation_id)
        if self._settlement.surplus > 1:  # a slow peer's own, or one wrong id after another: no trial can tell which
            self._settlement.tell(orphan)
            return self._settlement.retire("responses come to requests that trials took for answered")
        # A re-authentication waits until everything except probes is settled.
        if cause != "unasked" and (sent_at is None or (self._requests.is_setting_up and not is_probes)):
            return self._suspect(orphan, now)
        self._settlement.tell(orphan)
        if sent_at is not None:
            self.silence.round_trips.sample(now - sent_at)  # this peer takes so long
            self._settlement.count_mismatch(now)
        elif self.oldest is not None and not self._requests.is_setting_up:
            self._put_on_trial(now, 0.0, unbelieved=1)
        if cause == "late":
            self._disprove()
            self._complete_late(correlation_id, body, now)

    def _complete_late(self, correlation_id: int, body: memoryview, now: float) -> None:
        """Completes a request by the response to an earlier sending; its repeat no longer waits.

        Not if the body fits another waiting request, too (law H).  Nor if the request yields to newer ones: its repeat
        may outdate the first sending (another epoch or member id fences it), or may run after a newer request, because
        this peer does not keep the order.
        """
        entry = next((r for r in self if correlation_id in r.lost_ids and r.is_open), None)
        if entry is None or self.is_retired or self._requests.is_of_a_probe(body):
            return
        is_its_own = all(r.response is not None for r in self._requests.takers(body, entry)) and entry.reads(body)
        if self._requests.came_out_of_turn(entry, body):
            self._settlement.retire(f"a late response to {entry.api} came out of turn, and fits another one")
        elif is_its_own and not entry.request.yields_to_newer:
            self.ids.lose(entry.correlation_id, entry.sent_at)
            entry.hold(entry.request.decode_response(body))
            self._release(now)

    def _disprove(self) -> None:
        """Law G: from now on silence ends at the deadline, and the first response out of step ends the connection."""
        self.is_disproved, self.question = True, None
        if self._trial is not None:
            self._settlement.retire("its responses do not come in the order of its requests")
        else:
            self._drop_probe()

    # -- the trial (T4, law F) ------------------------------------------------

    def _suspect(self, orphan: Orphan, now: float) -> None:
        """A response that fits nothing: one may be an accident, two show a stream out of step."""
        self._settlement.tell(orphan)
        if self._requests.is_setting_up:
            return self._settlement.retire(f"a response {orphan.what} came while authenticating")
        if self.oldest is not None or self._trial is not None:
            is_second = self._trial is not None and self._trial.has_misfit
            if is_second or self.question is None:
                return self._settlement.retire("its responses are out of step with its requests")
            self._put_on_trial(now, 0.0, has_misfit=True, unbelieved=1)
        return self._settlement.count_mismatch(now)

    def _put_on_trial(
        self, now: float, grace: float, has_misfit: bool = False, unbelieved: int = 0, is_meant: bool = False
    ) -> None:
        """Believes nothing until a probe, sent after `grace` seconds, has its response."""
        if self.question is None and grace == 0.0:
            return self._settlement.retire("a response came out of turn")
        if self._trial is None:
            self._trial = Trial(now, now + grace, grace + self.silence.patience(self._requests.expected))
            self._settlement.is_regular = False
        self._trial.has_misfit |= has_misfit
        self._trial.unbelieved += unbelieved
        self._trial.is_meant &= is_meant
        if self._trial.asks_at <= now or (grace == 0.0 and self._trial.asks_at < NEVER):
            self._ask("a response came out of step", now)

    def ask(self, reason: str, now: float) -> list[Event]:
        """Sends a probe, for a caller that wants to know whether the broker reads; there must be a `question`."""
        self._ask(reason, now)
        return self._settlement.done()

    def _ask(self, reason: str, now: float) -> None:
        """Sends a probe in place of the one before."""
        if self.question is None:
            return self._settlement.retire("a response came out of turn")
        if self._trial is not None:
            self._trial.asks_at = NEVER
        self._drop_probe()
        entry = self._requests.enter(self.question, self.ids.draw(), NEVER, Action.HAND_UP, None)
        self._requests.probe = self._requests.open_probes[entry.correlation_id] = entry
        self.silence.probed(now)
        self._settlement.tell(Probe("Probe", entry.correlation_id, entry, reason))

    def _drop_probe(self) -> None:
        if (probe := self._requests.remove_probe()) is not None:
            self.ids.replace(probe.correlation_id, probe.sent_at)

    def _verdict(self, probe: InFlightRequest, now: float) -> None:
        """The probe has its response: the stream is in step, and the broker is done with all that was sent before."""
        unanswered = [r for r in self._requests.before(probe) if r.is_unanswered]
        trial, self._trial = self._trial, None
        del self._requests.open_probes[probe.correlation_id]
        self._requests.remove_probe()
        self.silence.proved(probe, now)
        is_whole = not (trial is not None and trial.has_misfit) and all(r.state is State.ODD for r in unanswered)
        may_come = trial is None or trial.unbelieved < len(unanswered)  # else theirs came under other ids
        for entry in unanswered:
            if trial is None and not is_settled_by_silence(entry.request) and not self._repeats.allow(entry, now):
                entry.is_proved_silent = True
            elif is_whole and entry.odd is not None:  # then all of them are ODD
                self._weigh(entry, entry.odd, now)
            elif trial is None and entry.said is not None and entry.resends - entry.resends_when_said > 1:
                self.ids.lose(entry.correlation_id, entry.sent_at)
                entry.hold(entry.said.response)  # two repeats have no response: the server has nothing else to say
            elif not self.is_retired:
                self._settlement.lose(entry, "a later response came on the same connection", now, may_come)
        self._release(now)
        left = [r for r in self if r.state is State.DOUBTED or r.state is State.ODD]  # they were sent after the probe
        if left and not self.is_retired:
            self._put_on_trial(now, 0.0, is_meant=all(r.state is State.ODD and self._requests.is_next(r) for r in left))

    def _end_trial(self, now: float) -> None:
        """No proof came in time: law I where only odd responses are out of step, else law F."""
        if self._trial is None or not self._trial.is_meant or not self.policy.max_resends:
            return self._settlement.retire("nothing showed in time that its responses are in step with its requests")
        self._trial = None
        for entry in self:
            if entry.state is State.ODD and entry.odd is not None:
                entry.hold(entry.odd.response)
        return self._release(now)

    def _release(self, now: float) -> None:
        """Ends a trial that waits only for order once the order is restored; without a trial, completes what is held."""
        is_overtaken = self.oldest is not None and self._requests.answered_after(self.oldest)
        if self._trial is not None and self._trial.asks_at < NEVER and not is_overtaken:
            self._trial = None  # what came out of turn is all there
        if self._trial is None and not self.is_retired:
            self._settlement.release(now)

    # -- time and the end -----------------------------------------------------

    def next_wakeup(self, now: float) -> float | None:
        """When to call `expired`; None while nothing can become due."""
        if self.is_retired or not self._requests:
            return None
        due = min(self._requests.deadline_from, self.silence.trial_ends(self._trial), self._probe_due())
        return None if due == NEVER else due

    def expired(self, now: float) -> list[Event]:
        """Does what is due: ends a trial, retires a connection with an overdue request, probes silence."""
        if not self.is_retired and now >= self.silence.trial_ends(self._trial):
            self._end_trial(now)  # and silence counts again
        if self.is_retired:
            return self._settlement.done()
        if (late := self._requests.late(now)) is not None:
            self._settlement.retire(f"{late.api} had no response within its timeout", is_timeout=True)
        elif now >= self._probe_due() and (oldest := self.oldest) is not None:
            self._ask(f"{oldest.api} is silent for longer than it can be", now)
        return self._settlement.done()

    def _probe_due(self) -> float:
        """T5: when the oldest request has been silent for longer than it can be, or when a trial's grace is over."""
        if self._trial is not None:
            return self._trial.asks_at
        return NEVER if self.question is None else self.silence.due(self._requests)

    def close(self, error: BaseException | None, unflushed: frozenset[int] = frozenset()) -> list[Event]:
        """Fails every request, because the connection is gone; of `unflushed` ids no byte has left the process.  Idempotent."""
        self._drop_probe()
        self._settlement.fail_all(error, unflushed)
        return self._settlement.done()
