"""Correlation ids of one connection: draws new ones and recognizes old ones.

Laws:
- Ids start at a random number in a 31-bit space and count up, so that a response meant for another connection
  (KAFKA-5595) is not taken for one of ours by chance.
- Java's SASL range, MAX-7 to MAX, is never drawn (SaslClientAuthenticator.java, KAFKA-9854); the space wraps without
  a negative or reserved id.
- The distance to the first id tells whether an id was ever drawn here, so these ids need no memory.
"""

from __future__ import annotations

SPACE = 2**31 - 8  # 0 to MAX-8

_MEMORY = 1024


class CorrelationIds:
    """The ids of one connection; `start` is taken modulo the space."""

    __slots__ = ("_drawn", "_dropped", "_lost", "_replaced", "_start", "_unasked")

    def __init__(self, start: int) -> None:
        self._start = start % SPACE
        self._drawn = 0
        self._lost: dict[int, float] = {}
        self._replaced: dict[int, float] = {}
        self._dropped: dict[int, float] = {}
        self._unasked: dict[int, None] = {}

    def draw(self) -> int:
        """The next id."""
        drawn = self._drawn
        self._drawn = drawn + 1
        return (self._start + drawn) % SPACE

    def was_drawn(self, correlation_id: int) -> bool:
        """True for an id that this connection has drawn."""
        if not 0 <= correlation_id < SPACE:
            return False
        return (correlation_id - self._start) % SPACE < self._drawn

    def draw_unanswered(self) -> int:
        """The next id, for a request that has no response (acks=0) and is not tracked."""
        correlation_id = self.draw()
        self._unasked[correlation_id] = None
        if len(self._unasked) > _MEMORY:
            del self._unasked[next(iter(self._unasked))]
        return correlation_id

    def lose(self, correlation_id: int, sent_at: float) -> None:
        """Remembers an id whose request was declared lost."""
        _remember(self._lost, correlation_id, sent_at)

    def replace(self, correlation_id: int, sent_at: float) -> None:
        """Remembers the id of a request that was given up without being declared lost (a probe)."""
        _remember(self._replaced, correlation_id, sent_at)

    def drop(self, correlation_id: int, sent_at: float) -> None:
        """Remembers the id of a lost request whose response probably came under another id."""
        _remember(self._dropped, correlation_id, sent_at)

    def was_dropped(self, correlation_id: int) -> bool:
        """True for an id that `drop` remembers."""
        return correlation_id in self._dropped

    @property
    def awaits_any(self) -> bool:
        """True while a response may come that no request waits for any more."""
        return bool(self._lost or self._replaced)

    def recall(self, correlation_id: int) -> tuple[str, float | None]:
        """Classifies a response that no request waits for; for "late" and "replaced" also says when its request was sent.

        Forgets a late or replaced id with that.
        """
        for cause, ids in (("late", self._lost), ("replaced", self._replaced)):
            sent_at = ids.pop(correlation_id, None)
            if sent_at is not None:
                return cause, sent_at
        if correlation_id in self._unasked:
            return "unasked", None
        return ("duplicate" if self.was_drawn(correlation_id) else "unknown"), None


def _remember(ids: dict[int, float], correlation_id: int, sent_at: float) -> None:
    ids[correlation_id] = sent_at
    if len(ids) > _MEMORY:
        del ids[next(iter(ids))]
