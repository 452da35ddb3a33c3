"""Correlation ids of one connection: drawing them, and knowing the old ones again.

Laws:
- Ids start anywhere in a 31-bit space and count up, so that an answer meant
  for another connection (KAFKA-5595) is not taken for one of ours by chance.
- Java's SASL range, MAX-7 to MAX, is never drawn (SaslClientAuthenticator.java,
  KAFKA-9854), and the space wraps without a negative or a reserved id.
- Whether an id was ever drawn here follows from its distance to the first one:
  nothing has to be remembered for it.
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
        """True for an id that this connection has used."""
        if not 0 <= correlation_id < SPACE:
            return False
        return (correlation_id - self._start) % SPACE < self._drawn

    def draw_unanswered(self) -> int:
        """The next id, for a request without an answer (acks=0), which is not tracked."""
        correlation_id = self.draw()
        self._unasked[correlation_id] = None
        if len(self._unasked) > _MEMORY:
            del self._unasked[next(iter(self._unasked))]
        return correlation_id

    def lose(self, correlation_id: int, sent_at: float) -> None:
        """Remembers an id whose request was declared lost."""
        _remember(self._lost, correlation_id, sent_at)

    def replace(self, correlation_id: int, sent_at: float) -> None:
        """Remembers an id whose request is not waited for any more, though nobody called it lost."""
        _remember(self._replaced, correlation_id, sent_at)

    def drop(self, correlation_id: int, sent_at: float) -> None:
        """Remembers an id of a lost request whose answer is taken to have come under another one."""
        _remember(self._dropped, correlation_id, sent_at)

    def was_dropped(self, correlation_id: int) -> bool:
        """Whether it is such an id."""
        return correlation_id in self._dropped

    @property
    def awaits_any(self) -> bool:
        """True while an answer may come to a request that is not waited for any more."""
        return bool(self._lost or self._replaced)

    def recall(self, correlation_id: int) -> tuple[str, float | None]:
        """Names an answer that no request waits for, and when the request of a late or replaced one was sent."""
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
