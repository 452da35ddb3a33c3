"""The tracker: every request in flight on one connection, and what each answer means for it.

Laws (T1 to T8 are DESIGN.md's; tests cite the letters):
A. Every request ends in COMPLETED or FAILED exactly once, on whatever bytes.
B. A change of state is in lifecycle.TRANSITIONS or the connection is retired.
C. An answer completes its request only after its body decoded with no byte left over.
D. Older and later are positions in the order of sending, never numbers.
E. Nothing is sent again after its deadline, more often than the policy allows, or with other bytes than the first time
   (its id excepted).  The time that a peer takes for a probe counts for no request that was sent after it.
F. An answer out of step puts the stream on trial.  Nothing is believed, lost or sent again until the answer to a
   probe shows that the stream is in step; a second one that fits nothing, or no proof in time, ends the connection.
G. Silence and a probe's answer alone settle only reads and what is sent again, here or by its owner.  An answer
   to what was lost in silence disproves all probes: none is sent any more.  Where an answer was out of step it was
   that to the lost one, under a wrong id: what comes under its own is another's.
H. Brokers answer in the order of requests: an answer that also fits an older request without one, or a later one that
   has one, is believed for neither, for their ids may be exchanged.  What the decoder of a probe without an answer takes
   is the probe's, under whatever id it comes.
I. A response that speaks of something else is believed when a repeat brings the same again, when two bring
   nothing, where no repeat is safe (but what cannot be repeated is unknown where nothing is probed), or when
   nothing else is out of step and a probe has no response in time: then of a stream that is in step, which its
   turn shows where nothing is probed.  Not where it fits another in flight.

What a request carries beside its state (lifecycle.py), and why it is none:
- `response` while it is HELD, `odd` while it is ODD: what these states hold.
- `said`, `resends_when_said`: the odd response that its repeat is to confirm, and since which repeat (I).  It is asked
  for again as any other request, through the same states.
- `lost_ids`: those it was sent under before.  They bound its repeats (E), and the response to one may still come (T4).
- `is_proved_silent`: a probe sent after it has its response (G).  In flight or doubted, its ways on are the same.
- `sent_at`, `first_sent_at`, `deadline`, `expected`: times, by which silence is measured (T5); `history`: for messages.
What the tracker has beside them is of the connection: whether it is retired, disproved (G), on trial (F), and its probe.

It reads no clock, opens no socket and writes no log: every method takes `now`
(monotonic seconds) and returns the events that the binding has to act upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tolerant_client.tracker.correlation import CorrelationIds
from tolerant_client.tracker.events import Completed, Event, Failed, Lost, Orphan, Probe, Reordered, Requeued, Retired
from tolerant_client.tracker.lifecycle import NEVER, IllegalTransition, InFlightRequest, Input, State, Verdict
from tolerant_client.tracker.limits import Budget, Repeats, Trial, verdict_at_end
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.probe_timer import Silence
from tolerant_client.tracker.rules.apis import Action, OtherSubject, Request, action_for, is_settled_by_silence
from tolerant_client.tracker.sending_order import SendingOrder


class InFlightRequests:
    """The one store of requests in flight; its length and iteration leave the probe out.

    `first_id` is where correlation ids start (a random number); `question` is a request that this broker answers at
    once, that changes nothing, and whose answer no other request takes for its own; None while no such request is known:
    then nothing is probed, and an answer out of turn for longer than `reorder_grace_ms`, or that fits nothing, ends the
    connection.
    """

    def __init__(self, policy: RecoveryPolicy, first_id: int, question: Request | None = None) -> None:
        self.policy = policy
        self.question = question
        self.ids = CorrelationIds(first_id)
        self.silence = Silence(policy)
        self.is_retired = False
        self.is_disproved = False  # an answer came whose loss a probe had proved: this peer does not keep its order
        self._budget = Budget(policy)
        self._repeats = Repeats(policy)
        self._requests = SendingOrder()
        self._trial: Trial | None = None
        self._again = 0  # responses under ids that trials dropped, since a request was completed
        self._is_regular = True  # False on trial, and while requests are held or sent again: order needs a look
        self._events: list[Event] = []  # what the call that is running has done

    def __len__(self) -> int:
        return len(self._requests) - (self._requests.probe is not None)

    def __iter__(self) -> Iterator[InFlightRequest]:
        return self._requests.callers()

    # -- sending --------------------------------------------------------------

    def queue(self, request: Request, deadline: float, context: Any = None) -> InFlightRequest:
        """Takes a request in and draws its correlation id; the caller sends it and says `sent`."""
        if not self._requests:
            self._repeats.forget()
        return self._requests.enter(request, self.ids.draw(), deadline, action_for(request, self.policy), context)

    def withdraw(self, entry: InFlightRequest) -> None:
        """Takes a request back that could not be encoded, and so was never sent."""
        del self._requests[entry.correlation_id]
        entry.move(Input.FAIL)

    def sent(self, entry: InFlightRequest, now: float) -> list[Event]:
        """Notes that the request's bytes are on their way."""
        try:
            entry.move(Input.SENT)
        except IllegalTransition as illegal:
            self._retire(str(illegal))
            return self._done()
        self._requests.was_sent(entry, now)
        self._repeats.sent(entry)
        return []

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without an answer, the probe included."""
        return self._requests.oldest

    @property
    def is_doubtful(self) -> bool:
        """True while a probe waits or the stream is on trial: others answer sooner."""
        return self._requests.probe is not None or self._trial is not None

    # -- answers --------------------------------------------------------------

    def response(self, correlation_id: int, body: memoryview, now: float) -> list[Event]:
        """Takes one answer (T1, T2, T4, T6); `body` starts after the correlation id."""
        if self.is_retired:
            return []
        requests = self._requests
        if (probe := requests.open_probes.get(correlation_id)) is not None:
            self.silence.allow_for(probe, requests.callers(), now)
        self.silence.responded(now)
        entry = requests.get(correlation_id)
        if entry is None:
            self._orphan(correlation_id, body, now)
        elif entry.state is State.QUEUED or entry.state is State.REQUEUED:
            self._retire(f"an answer to {entry.api} came before it was sent")
        elif requests.open_probes and entry is not requests.probe and requests.is_of_a_probe(body):
            self._misfit(entry, f"an answer to {entry.api} is that of a probe", now)
        else:
            try:
                response = entry.request.decode_response(body)
            except OtherSubject as other:
                self._odd(entry, other, body, now)
            except Exception as error:  # a decoder on hostile bytes may raise anything
                self._misfit(entry, entry.not_decoded(error), now)
            else:
                if self._is_regular and entry is not requests.probe and entry is requests.oldest:
                    self.silence.answered(entry, now)
                    self._complete(entry, response, now)
                else:
                    self._answered(entry, response, body, now)
        return self._done()

    def _done(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _complete(self, entry: InFlightRequest, response: Any, now: float) -> None:
        del self._requests[entry.correlation_id]
        entry.move(Input.ANSWERED)
        self._again = 0
        self._events.append(Completed(entry.api, entry.correlation_id, entry, response, now - entry.first_sent_at))

    def _answered(self, entry: InFlightRequest, response: Any, body: memoryview, now: float) -> None:
        """An answer that fits its request, where the order needs a look: it is held until its turn has come."""
        alike = [r for r in self._requests.answered_after(entry) if r.takes(body, entry)]
        if not entry.is_open:
            return self._misfit(entry, f"two answers to one {entry.api} came", now, [entry, *alike])
        if entry is self._requests.probe:
            return self._verdict(entry, now)
        self.silence.answered(entry, now)
        if alike:
            return self._misfit(entry, f"its answer came after that of a later {entry.api}, and fits both", now, alike)
        older = [r for r in self._requests.before(entry) if r.is_open and r.takes(body, entry)]
        if entry is not self.oldest:
            if self._requests.is_setting_up:
                return self._retire(f"the answer to {entry.api} overtook another one while authenticating")
            is_meant = not older and self._requests.is_next(entry)
            # Of those that an exchange of ids may have struck nothing would be believed without a probe.
            grace = 0.0 if older and self.question is None else self.policy.reorder_grace_ms / 1000
            self._put_on_trial(now, grace, unbelieved=bool(older), is_meant=is_meant)
            if self.is_retired:
                return
            if self._requests.overtakes_probe(entry):
                self._ask("the answer to a probe did not come in its turn", now)
        elif self._requests.answered_after(entry):
            self._events.append(Reordered(entry.api, entry.correlation_id))
        if entry.state is State.ODD:
            self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)
        self._doubt([entry, *older]) if older else self._hold(entry, response)
        return self._release(now)

    def _doubt(self, entries: Iterable[InFlightRequest]) -> None:
        """Law H: nothing that came or comes to these is believed, for their ids may be exchanged."""
        for entry in entries:
            if entry.is_open or entry.state is State.HELD:
                entry.move(Input.DOUBT)

    def _hold(self, entry: InFlightRequest, response: Any) -> None:
        entry.move(Input.HOLD)
        entry.response = response

    def _odd(self, entry: InFlightRequest, other: OtherSubject, body: memoryview, now: float) -> None:
        """T6: an answer that decodes but speaks of something else than its request.

        Where it fits another request it is that one's, under whose id ours may come.  Where it fits none the trial (its
        turn, where nothing is probed) shows whether one is missing or left over.  The same again to a repeat is meant.
        """
        is_first = entry.state is State.IN_FLIGHT and entry is not self._requests.probe
        if is_first and entry.said is not None and other.names == entry.said.names:
            return self._answered(entry, other.response, body, now)
        others = self._requests.takers(body, entry)
        if entry is self._requests.probe and not others:
            return self._verdict(entry, now)  # it fits nobody else: this server says more than it is asked for
        if others or not is_first or other.response is None:
            return self._misfit(entry, str(other), now, others)
        if self.question is None and entry is self.oldest and not (self.ids.awaits_any or self._requests.is_setting_up):
            self._weigh(entry, other, now)
            return self._release(now)
        entry.move(Input.SUSPECT)
        entry.odd = other
        return self._put_on_trial(now, 0.0, is_meant=self._requests.is_next(entry))

    def _weigh(self, entry: InFlightRequest, other: OtherSubject, now: float) -> None:
        """Law I: the stream is in step, and has an odd response: asked again where that is safe, else believed."""
        is_unproved = self.question is None and entry.action is Action.OUTCOME_UNKNOWN
        if not is_unproved and (not entry.action.is_resend or self._repeats.has_yielded(entry)):
            self._hold(entry, other.response)
        elif self._repeats.allow(entry, now):
            entry.said, entry.resends_when_said = other, entry.resends
            entry.expected = 0.0  # it has been answered once: there is nothing left to wait for
            entry.history.append(str(other))
            self._requeue(entry, str(other))
        else:
            self._lose(entry, str(other), now)

    def _misfit(self, entry: InFlightRequest, what: str, now: float, doubted: Iterable[InFlightRequest] = ()) -> None:
        """T6: the body is not what was asked for: dropped, and the request goes on waiting.

        It may be an older one's under a wrong id, or our own spoiled: the trial says.  That to `doubted` may be ours.
        """
        self._doubt(doubted)
        entry.history.append(what)
        self._suspect(Orphan(entry.api, entry.correlation_id, "misfit"), now)

    def _orphan(self, correlation_id: int, body: memoryview, now: float) -> None:
        """T4: an answer that no request waits for is dropped.

        It may be the oldest request's under a wrong id; a wrong id is often one that was used before, so a
        duplicate is as suspicious as an id never sent.  The late answer of a lost request is explained by it, and
        completes it; one to acks=0 (Event Hubs gives them) is no mismatch, and only the trial shows whose it is.
        """
        is_of_a_probe = self._requests.is_of_a_probe(body)
        is_probes = self._requests.open_probes.pop(correlation_id, None) is not None and is_of_a_probe
        cause, sent_at = self.ids.recall(correlation_id)
        if sent_at is not None and is_of_a_probe is (cause == "late"):
            cause, sent_at = "duplicate", None  # only probes are replaced: it is another's, under its id
        orphan = Orphan("", correlation_id, "late" if cause == "replaced" else cause)
        self._again += self.ids.was_dropped(correlation_id)
        if self._again > 1:  # a slow peer's own, or one wrong id after the other: no further trial tells which
            self._events.append(orphan)
            return self._retire("answers come to what trials took for answered")
        # A re-authentication waits until all is settled but probes.
        if cause != "unasked" and (sent_at is None or (self._requests.is_setting_up and not is_probes)):
            return self._suspect(orphan, now)
        self._events.append(orphan)
        if sent_at is not None:
            self.silence.round_trips.sample(now - sent_at)  # this peer takes so long
            self._count(now)
        elif self.oldest is not None and not self._requests.is_setting_up:
            self._put_on_trial(now, 0.0, unbelieved=1)
        if cause == "late":
            self._disprove()
            self._complete_late(correlation_id, body, now)

    def _complete_late(self, correlation_id: int, body: memoryview, now: float) -> None:
        """Completes a request by the response to its first sending; its repeat is waited for no more.

        Not where another one waits that it fits (law H), nor one that yields to newer ones: its repeat may outdate
        the first (another epoch or member id fences it), or run after a newer one (such a peer keeps no order).
        """
        entry = next((r for r in self if correlation_id in r.lost_ids and r.is_open), None)
        if entry is None or self.is_retired or self._requests.is_of_a_probe(body):
            return
        is_its_own = all(r.response is not None for r in self._requests.takers(body, entry)) and entry.reads(body)
        if self._requests.came_out_of_turn(entry, body):
            self._retire(f"a late answer to {entry.api} came out of turn, and fits another one")
        elif is_its_own and not entry.request.yields_to_newer:
            self.ids.lose(entry.correlation_id, entry.sent_at)
            self._hold(entry, entry.request.decode_response(body))
            self._release(now)

    def _disprove(self) -> None:
        """Law G: from now on silence ends at the deadline, and the first answer out of step ends the connection."""
        self.is_disproved, self.question = True, None
        if self._trial is not None:
            self._retire("its answers do not come in the order of its requests")
        else:
            self._drop_probe()

    # -- the trial (T4, law F) ------------------------------------------------

    def _suspect(self, orphan: Orphan, now: float) -> None:
        """An answer that fits nothing: one may be an accident, two are a stream out of step."""
        self._events.append(orphan)
        if self._requests.is_setting_up:
            return self._retire(f"an answer {orphan.what} came while authenticating")
        if self.oldest is not None or self._trial is not None:
            is_second = self._trial is not None and self._trial.has_misfit
            if is_second or self.question is None:
                return self._retire("its answers are out of step with its requests")
            self._put_on_trial(now, 0.0, has_misfit=True, unbelieved=1)
        return self._count(now)

    def _put_on_trial(
        self, now: float, grace: float, has_misfit: bool = False, unbelieved: int = 0, is_meant: bool = False
    ) -> None:
        """Nothing is believed until a probe, sent after `grace` seconds, is answered."""
        if self.question is None and grace == 0.0:
            return self._retire("an answer came out of turn")
        if self._trial is None:
            self._trial = Trial(now, now + grace, grace + self.silence.patience(self._requests.expected))
            self._is_regular = False
        self._trial.has_misfit |= has_misfit
        self._trial.unbelieved += unbelieved
        self._trial.is_meant &= is_meant
        if self._trial.asks_at <= now or (grace == 0.0 and self._trial.asks_at < NEVER):
            self._ask("an answer came out of step", now)

    def _ask(self, reason: str, now: float) -> None:
        if self.question is None:
            return self._retire("an answer came out of turn")
        if self._trial is not None:
            self._trial.asks_at = NEVER
        self._drop_probe()
        entry = self._requests.enter(self.question, self.ids.draw(), NEVER, Action.HAND_UP, None)
        self._requests.probe = self._requests.open_probes[entry.correlation_id] = entry
        self.silence.probed(now)
        self._events.append(Probe("Probe", entry.correlation_id, entry, reason))

    def _drop_probe(self) -> None:
        if (probe := self._requests.remove_probe()) is not None:
            self.ids.replace(probe.correlation_id, probe.sent_at)

    def _verdict(self, probe: InFlightRequest, now: float) -> None:
        """The probe is answered: the stream is in step, and the broker is done with all that was sent before."""
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
                self._hold(entry, entry.said.response)  # two repeats have no response: it is all that the server says
            elif not self.is_retired:
                self._lose(entry, "a later answer came on the same connection", now, may_come)
        self._release(now)
        left = [r for r in self if r.state is State.DOUBTED or r.state is State.ODD]  # they were sent after the probe
        if left and not self.is_retired:
            self._put_on_trial(now, 0.0, is_meant=all(r.state is State.ODD and self._requests.is_next(r) for r in left))

    def _end_trial(self, now: float) -> None:
        """No proof came in time: law I, where nothing but odd responses is out of step, else law F."""
        if self._trial is None or not self._trial.is_meant or not self.policy.max_resends:
            return self._retire("nothing showed in time that its answers are in step with its requests")
        self._trial = None
        for entry in self:
            if entry.state is State.ODD and entry.odd is not None:
                self._hold(entry, entry.odd.response)
        return self._release(now)

    # -- time -----------------------------------------------------------------

    def next_wakeup(self, now: float) -> float | None:
        """When `expired` wants to be called; None when nothing can become due."""
        if self.is_retired or not self._requests:
            return None
        due = min(self._requests.deadline_from, self.silence.trial_ends(self._trial), self._probe_due())
        return None if due == NEVER else due

    def expired(self, now: float) -> list[Event]:
        """Does what is due: retires a connection that timed out or is out of step, probes silence."""
        if not self.is_retired and now >= self.silence.trial_ends(self._trial):
            self._end_trial(now)  # and silence counts again
        if self.is_retired:
            return self._done()
        if (late := self._requests.late(now)) is not None:
            self._retire(f"{late.api} was not answered within its timeout", is_timeout=True)
        elif now >= self._probe_due() and (oldest := self.oldest) is not None:
            self._ask(f"{oldest.api} is silent for longer than it can be", now)
        return self._done()

    def _probe_due(self) -> float:
        """T5: when the oldest request without an answer is older than it can be, or a trial's grace is over."""
        if self._trial is not None:
            return self._trial.asks_at
        return NEVER if self.question is None else self.silence.due(self._requests)

    # -- loss, order and the end ----------------------------------------------

    def _lose(self, entry: InFlightRequest, reason: str, now: float, may_come: bool = True) -> None:
        """T3: settles a lost request as its API allows; its response may still come."""
        self._events.append(Lost(entry.api, entry.correlation_id, reason))
        if may_come:
            self.ids.lose(entry.correlation_id, entry.sent_at)
        else:
            self.ids.drop(entry.correlation_id, entry.sent_at)
        entry.history.append(reason)
        if self._repeats.allow(entry, now):
            self._requeue(entry, reason)
        else:
            self._fail(entry, *self._repeats.verdict(entry, reason))
        self._count(now)

    def _requeue(self, entry: InFlightRequest, reason: str) -> None:
        """The same bytes under a new id; `order` keeps its place among requests that share a key."""
        entry.move(Input.RESEND)
        del self._requests[entry.correlation_id]
        entry.lost_ids.append(entry.correlation_id)
        entry.response = None
        entry.correlation_id = self.ids.draw()
        self._requests[entry.correlation_id] = entry
        self._is_regular = False
        self._events.append(Requeued(entry.api, entry.correlation_id, entry, reason))

    def _fail(self, entry: InFlightRequest, verdict: Verdict, reason: str, error: BaseException | None = None) -> None:
        del self._requests[entry.correlation_id]
        entry.move(Input.FAIL)
        self._events.append(Failed(entry.api, entry.correlation_id, entry, verdict, reason, error))

    def _release(self, now: float) -> None:
        """T2: delivers held answers whose turn has come, oldest first.

        Requests that share an order key (Produce of one partition, OffsetCommit of one group) are answered in the
        order of sending, resends included.
        """
        is_overtaken = self.oldest is not None and self._requests.answered_after(self.oldest)
        if self._trial is not None and self._trial.asks_at < NEVER and not is_overtaken:
            self._trial = None  # what came out of turn is all there
        if self._trial is not None or self.is_retired:
            return
        waiting_keys: set[Any] = set()
        for entry in sorted(self, key=lambda request: request.order):
            keys = entry.request.order_keys
            if entry.state is not State.HELD or not waiting_keys.isdisjoint(keys):
                waiting_keys.update(keys)
            elif entry.is_out_of_turn and self._repeats.allow(entry, now):
                waiting_keys.update(keys)
                self._requeue(entry, "the broker had not seen the request before it")
            else:
                self._complete(entry, entry.response, now)
        self._is_regular = not any(r.resends or r.state is State.HELD for r in self._requests.values())

    def close(self, error: BaseException | None, now: float, unflushed: frozenset[int] = frozenset()) -> list[Event]:
        """Settles every request: the connection is gone.  Idempotent; of `unflushed` ids no byte has left the process."""
        self.is_retired = True
        self._drop_probe()
        for entry in list(self._requests.values()):
            self._fail(entry, verdict_at_end(entry, unflushed), "the connection was lost", error)
        return self._done()

    def _retire(self, reason: str, is_timeout: bool = False) -> None:
        if not self.is_retired:
            self.is_retired = True
            self._events.append(Retired("", -1, reason, is_timeout))

    def _count(self, now: float) -> None:
        """T7: counts one mismatch; above the budget the connection is not worth its place."""
        if (reason := self._budget.count(now)) is not None:
            self._retire(reason)
