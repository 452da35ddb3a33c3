"""The outcome of a comparison in one word, for the command, its JSON and the Spark job.  Pure.

Laws:
- *identical* is a promise: every committed record that the source had was found equal on the target at its offset,
  the target has no more records, and something was compared.
- A log with a difference that the ledger explains is not *identical*.
- A difference that was found counts, whatever else could not be compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple


class Difference(NamedTuple):
    """The first offset at which the sides differ, and how."""

    offset: int
    reason: str


class NotCompared(NamedTuple):
    """Offsets of the source that were not compared, and why.

    `matters` is False if the reason can hide no difference: the source no longer has them, or the target does not have them yet
    while the mirror runs.
    """

    from_offset: int
    until_offset: int
    reason: str
    matters: bool = True


class Outcome(str, enum.Enum):
    """From the best to the worst, as `worst` weighs them."""

    IDENTICAL = "identical"
    EXPLAINED = "explained"  # identical, except for offsets that the ledger explains
    NOT_COMPARED = "not compared"  # nothing, or not to the end; what was compared is equal
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
    """How many offsets of [from_offset, until_offset) the parts cover, each counted once."""
    count, reached = 0, from_offset
    for part in sorted(parts):
        start, until = max(part.from_offset, reached), min(part.until_offset, until_offset)
        if until > start:
            count, reached = count + until - start, until
    return count
