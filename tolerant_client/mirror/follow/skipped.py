"""What a duty left as it is, and why: one vocabulary for all duties.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_FAILURES = frozenset(("error", "refused", "leaderless", "over"))


class Left(NamedTuple):
    """`name` (a group, a partition of a group, a setting of a topic, an ACL) was left as it is.

    `reason` is one word for programs, `why` a sentence for people.
    """

    name: str
    reason: str
    why: str

    @property
    def is_failure(self) -> bool:
        """Whether the duty failed, so that an operator should check; False for what it leaves by its rules."""
        return self.reason in _FAILURES

    @property
    def is_note(self) -> bool:
        """Whether it is a remark, since nothing is known to have been left."""
        return self.reason == "none"

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def together(left: Iterable[Left]) -> list[Left]:
    """One for all partitions that were left for one reason, in the order of the first ones: it names one and counts the others.

    Each group has its own, whether it was left as a whole or some partitions of it.
    """
    found: dict[tuple[str, str, str], set[str]] = {}
    for name, reason, why in left:
        group = name.partition(", ")[0] if name.startswith("group ") else ""
        found.setdefault((group, reason, why), set()).add(name)
    return [
        Left(f"{min(named)} and {len(named) - 1:,} more" if len(named) > 1 else min(named), reason, why)
        for (_, reason, why), named in found.items()
    ]


class LeftSoFar:
    """What the rounds of each duty have left, so that each is reported once, and again when it comes back."""

    def __init__(self) -> None:
        self._known: dict[str, set[tuple[str, str]]] = {}

    def news(self, duty: str, left: Iterable[Left]) -> list[Left]:
        """What a round of `duty` has left that the round before had not left for the same reason."""
        now = {(each.name, each.reason): each for each in left}
        before = self._known.get(duty, set())
        self._known[duty] = set(now)
        return [each for key, each in now.items() if key not in before]
