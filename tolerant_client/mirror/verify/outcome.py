"""What a comparison says in one word, for the command, its JSON and the Spark job alike.  Pure.

Laws:
- *identical* is a promise: every committed record that the source had was found equal on the target at its offset,
  the target has nothing more, and something was compared.
- What the ledger explains is never plain identical.
- A difference that was found is one, whatever else could not be compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple


class Difference(NamedTuple):
    """The first offset that is not the same on both sides, and in which way."""

    offset: int
    reason: str


class NotCompared(NamedTuple):
    """Offsets of the source that were not compared, and why.

    `matters` is False where the reason hides nothing: what the source itself no longer has, and what the target does
    not have yet while the mirror runs.
    """

    from_offset: int
    until_offset: int
    reason: str
    matters: bool = True


class Outcome(str, enum.Enum):
    """From the best to the worst, as `worst` weighs them."""

    IDENTICAL = "identical"
    EXPLAINED = "explained"  # identical, except for offsets that the ledger explains
    NOT_COMPARED = "not compared"  # nothing, or not to the end; no difference in what was
    DIFFERENT = "different"

    def __str__(self) -> str:
        return self.value

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES: Final = {Outcome.IDENTICAL: 0, Outcome.DIFFERENT: 1, Outcome.NOT_COMPARED: 2, Outcome.EXPLAINED: 3}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several ranges together; NOT_COMPARED of none."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.NOT_COMPARED)


def covered(parts: Iterable[NotCompared], from_offset: int, until_offset: int) -> int:
    """How many offsets of [from_offset, until_offset) the parts name, each once."""
    count, reached = 0, from_offset
    for part in sorted(parts):
        start, until = max(part.from_offset, reached), min(part.until_offset, until_offset)
        if until > start:
            count, reached = count + until - start, until
    return count
