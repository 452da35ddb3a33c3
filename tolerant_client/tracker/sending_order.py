"""The requests of one connection by correlation id, in the order of the wire (law D of inflight.py)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tolerant_client.tracker.lifecycle import InFlightRequest, State


class SendingOrder(dict[int, InFlightRequest]):
    """The store of the tracker, the probe included; who asks owns the entries."""

    def was_sent(self, entry: InFlightRequest) -> None:
        """Notes that `entry` is written: behind others, if they were queued after it."""
        if next(reversed(self)) != entry.correlation_id:
            self[entry.correlation_id] = self.pop(entry.correlation_id)

    @property
    def oldest(self) -> InFlightRequest | None:
        """The oldest request on the wire without an answer that is believed."""
        for entry in self.values():
            if entry.is_unanswered:
                return entry
        return None

    def before(self, entry: InFlightRequest) -> Iterator[InFlightRequest]:
        """Those sent before `entry`, oldest first."""
        return takewhile(lambda r: r is not entry, self.values())

    def after(self, entry: InFlightRequest) -> Iterator[InFlightRequest]:
        """Those sent after `entry`, newest first."""
        return takewhile(lambda r: r is not entry, reversed(self.values()))

    def answered_after(self, entry: InFlightRequest) -> list[InFlightRequest]:
        """Those sent after `entry` to which an answer came, believed or not."""
        return [r for r in self.after(entry) if r.state is State.HELD or r.state is State.DOUBTED]

    def overtakes(self, entry: InFlightRequest, older: InFlightRequest | None) -> bool:
        """Whether `older` is without an answer, and was sent before `entry`, which has one."""
        return older is not None and older.state is State.IN_FLIGHT and entry in self.after(older)

    def came_out_of_turn(self, late: InFlightRequest, body: memoryview) -> bool:
        """Law H: whether a body that came late also fits an older one without an answer, or a later one with one."""
        return any(
            r.order > late.order if r.state is State.HELD else r.order < late.order and not r.resends
            for r in self.values()
            if r.takes(body, late)
        )

    def is_next(self, entry: InFlightRequest) -> bool:
        """Whether each request before `entry` has had an answer, if one that speaks of something else."""
        return all(r.odd is not None for r in self.before(entry) if r.is_unanswered)
