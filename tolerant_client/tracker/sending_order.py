"""The requests of one connection by correlation id, in the order of sending (law D of inflight.py).

It finds the oldest request, the silent one, and the requests that a body may belong to (law H); it changes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from tolerant_client.tracker.lifecycle import NEVER, InFlightRequest, State
from tolerant_client.tracker.rules.apis import Action, Request


class SendingOrder(dict[int, InFlightRequest]):
    """The requests in flight, the probe included; the tracker owns the entries."""

    def __init__(self) -> None:
        super().__init__()
        self.probe: InFlightRequest | None = None  # at most one is in flight
        self.open_probes: dict[int, InFlightRequest] = {}  # all without a response, replaced ones included
        self.deadline_from = NEVER  # a lower bound of all deadlines, made exact by late()
        self._next_order = 0

    def enter(
        self, request: Request, correlation_id: int, deadline: float, action: Action, context: Any
    ) -> InFlightRequest:
        """Takes a request in."""
        entry = InFlightRequest(request, correlation_id, self._next_order, deadline, action, context)
        self._next_order += 1
        self[correlation_id] = entry
        if deadline < self.deadline_from:
            self.deadline_from = deadline
        return entry

    def was_sent(self, entry: InFlightRequest, now: float) -> None:
        """Notes that `entry` is written, and moves it to the end of the order if others were written before it."""
        entry.sent_at = now
        if entry.first_sent_at < 0:
            entry.first_sent_at = now
        if next(reversed(self)) != entry.correlation_id:
            self[entry.correlation_id] = self.pop(entry.correlation_id)

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without a response that is believed."""
        for entry in self.values():
            if entry.is_unanswered:
                return entry
        return None

    @property
    def silent(self) -> InFlightRequest | None:
        """The oldest one whose silence a probe may still explain: neither the probe, nor one that a probe has proved silent."""
        for entry in self.values():
            if entry.is_unanswered and not entry.is_proved_silent and entry is not self.probe:
                return entry
        return None

    def remove_probe(self) -> InFlightRequest | None:
        """Removes and returns the probe, if there is one; `open_probes` keeps it until its response comes."""
        probe, self.probe = self.probe, None
        return None if probe is None else self.pop(probe.correlation_id)

    def late(self, now: float) -> InFlightRequest | None:
        """A request whose deadline is over, if there is one."""
        if now < self.deadline_from:
            return None
        self.deadline_from = min((r.deadline for r in self.values()), default=NEVER)
        return next((r for r in self.values() if r.deadline <= now), None)

    def callers(self) -> Iterator[InFlightRequest]:
        """All requests except the probe; the store may change during the iteration."""
        return (r for r in list(self.values()) if r is not self.probe)

    def before(self, entry: InFlightRequest) -> Iterator[InFlightRequest]:
        """Those sent before `entry`, oldest first."""
        return takewhile(lambda r: r is not entry, self.values())

    def after(self, entry: InFlightRequest) -> Iterator[InFlightRequest]:
        """Those sent after `entry`, newest first."""
        return takewhile(lambda r: r is not entry, reversed(self.values()))

    def answered_after(self, entry: InFlightRequest) -> list[InFlightRequest]:
        """Those sent after `entry` that have a response, believed or not."""
        return [r for r in self.after(entry) if r.state is State.HELD or r.state is State.DOUBTED]

    def is_next(self, entry: InFlightRequest) -> bool:
        """Whether every request before `entry` has a response, even one that speaks of something else."""
        return all(r.state is State.ODD for r in self.before(entry) if r.is_unanswered)

    # -- whose a body may be --------------------------------------------------

    def takers(self, body: memoryview, entry: InFlightRequest) -> list[InFlightRequest]:
        """The other requests that a body fits which came under the id of `entry`."""
        return [r for r in self.callers() if r.takes(body, entry)]

    def overtakes_probe(self, entry: InFlightRequest) -> bool:
        """Whether the probe has no response and was sent before `entry`, which has one."""
        return self.probe is not None and self.probe.state is State.IN_FLIGHT and entry in self.after(self.probe)

    def came_out_of_turn(self, late: InFlightRequest, body: memoryview) -> bool:
        """Whether a late body also fits an older request without a response, or a later request with one."""
        return any(
            r.order > late.order if r.state is State.HELD else r.order < late.order and not r.resends
            for r in self.values()
            if r.takes(body, late)
        )

    def is_of_a_probe(self, body: memoryview) -> bool:
        """Whether a body that came under another id is the response to a probe, whichever other request it fits, too."""
        probe = next(iter(self.open_probes.values()), None)  # all ask the same
        if probe is None:
            return False
        try:
            response = probe.request.decode_response(body)
        except Exception:  # a decoder on hostile bytes may raise anything
            return False
        return probe.request.is_unmistakable(response)

    # -- what the broker is doing ---------------------------------------------

    @property
    def is_setting_up(self) -> bool:
        """True while the connection authenticates, when anything out of step ends it (T7)."""
        return any(r.action is Action.CLOSE for r in self.values())

    @property
    def expected(self) -> float:
        """How long what is in flight may rightly wait at the broker, in seconds."""
        return sum(r.expected for r in self.values() if r.is_unanswered)
