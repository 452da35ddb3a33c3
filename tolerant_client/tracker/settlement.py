"""How the requests of one connection end: completed in order, sent again, or failed; and when the connection itself ends.

It acts on what inflight.py has found out about the responses; it judges none itself.

Laws (T2, T3, T7 and T8 of DESIGN.md):
- Every request ends in COMPLETED or FAILED exactly once.
- Requests that share an order key (Produce of one partition, OffsetCommit of one group) complete in the order of
  sending, repeats included.
- A repeat has the bytes of the first sending under a new correlation id.
"""

from __future__ import annotations

from typing import Any

from tolerant_client.tracker.correlation import CorrelationIds
from tolerant_client.tracker.events import Completed, Event, Failed, Lost, Requeued, Retired
from tolerant_client.tracker.lifecycle import InFlightRequest, Input, State, Verdict
from tolerant_client.tracker.limits import Budget, Repeats, verdict_at_end
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.sending_order import SendingOrder


class Settlement:
    """Ends the entries of `requests` and collects the events; the tracker owns `requests` and `ids`."""

    def __init__(self, policy: RecoveryPolicy, requests: SendingOrder, ids: CorrelationIds) -> None:
        self.is_retired = False
        self.is_regular = True
        """The next response completes the oldest request at once: no trial is on, and nothing is held or sent again."""
        self.surplus = 0
        """Responses under ids whose requests a trial took for answered, since a request was completed."""
        self.repeats = Repeats(policy)
        self._requests = requests
        self._ids = ids
        self._budget = Budget(policy)
        self._events: list[Event] = []

    def tell(self, event: Event) -> None:
        """Adds an event to those of the running call."""
        self._events.append(event)

    def done(self) -> list[Event]:
        """The events of the running call, which ends with it."""
        events, self._events = self._events, []
        return events

    # -- one request ----------------------------------------------------------

    def complete(self, entry: InFlightRequest, response: Any, now: float) -> None:
        """Hands `response` to the caller."""
        del self._requests[entry.correlation_id]
        entry.move(Input.RESPONDED)
        self.surplus = 0
        self._events.append(Completed(entry.api, entry.correlation_id, entry, response, now - entry.first_sent_at))

    def lose(self, entry: InFlightRequest, reason: str, now: float, may_come: bool = True) -> None:
        """T3: sends a lost request again, or fails it, as its API allows.

        `may_come` says whether its own response may still arrive late.
        """
        self._events.append(Lost(entry.api, entry.correlation_id, reason))
        if may_come:
            self._ids.lose(entry.correlation_id, entry.sent_at)
        else:
            self._ids.drop(entry.correlation_id, entry.sent_at)
        entry.history.append(reason)
        if self.repeats.allow(entry, now):
            self.requeue(entry, reason)
        else:
            self._fail(entry, *self.repeats.verdict(entry, reason))
        self.count_mismatch(now)

    def requeue(self, entry: InFlightRequest, reason: str) -> None:
        """Asks for the same bytes under a new id; `order` keeps the request's position among those that share a key."""
        entry.move(Input.RESEND)
        del self._requests[entry.correlation_id]
        entry.lost_ids.append(entry.correlation_id)
        entry.response = None
        entry.correlation_id = self._ids.draw()
        self._requests[entry.correlation_id] = entry
        self.is_regular = False
        self._events.append(Requeued(entry.api, entry.correlation_id, entry, reason))

    def _fail(self, entry: InFlightRequest, verdict: Verdict, reason: str, error: BaseException | None = None) -> None:
        del self._requests[entry.correlation_id]
        entry.move(Input.FAIL)
        self._events.append(Failed(entry.api, entry.correlation_id, entry, verdict, reason, error))

    # -- all requests ---------------------------------------------------------

    def release(self, now: float) -> None:
        """T2: completes the requests whose held response is next in order, oldest first."""
        waiting_keys: set[Any] = set()
        for entry in sorted(self._requests.callers(), key=lambda request: request.order):
            keys = entry.request.order_keys
            if entry.state is not State.HELD or not waiting_keys.isdisjoint(keys):
                waiting_keys.update(keys)
            elif entry.is_out_of_turn and self.repeats.allow(entry, now):
                waiting_keys.update(keys)
                self.requeue(entry, "the broker had not seen the request before it")
            else:
                self.complete(entry, entry.response, now)
        self.is_regular = not any(r.resends or r.state is State.HELD for r in self._requests.values())

    def fail_all(self, error: BaseException | None, unflushed: frozenset[int]) -> None:
        """Fails every request, because the connection is gone; of `unflushed` ids no byte has left the process."""
        self.is_retired = True
        for entry in list(self._requests.values()):
            self._fail(entry, verdict_at_end(entry, unflushed), "the connection was lost", error)

    # -- the connection -------------------------------------------------------

    def retire(self, reason: str, is_timeout: bool = False) -> None:
        """Asks once for the end of the connection."""
        if not self.is_retired:
            self.is_retired = True
            self._events.append(Retired("", -1, reason, is_timeout))

    def count_mismatch(self, now: float) -> None:
        """T7: counts one mismatch; too many end the connection."""
        if (reason := self._budget.count(now)) is not None:
            self.retire(reason)
