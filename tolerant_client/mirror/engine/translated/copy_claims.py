"""The claims under which one partition is copied with translated offsets: the link's own part, and all links' part before the first record.

Links with translated offsets share a partition of the target.  Two of one source that begin it, while it is empty or idle, would both
find that nobody has copied it, and have it twice.

Laws:
A. A link sends its first records of a log under a claim that all links share, and only after it has read in the same term of that
   claim that no other one has copied the log (copied_before.py).  So of two links the later one reads after the term of the earlier.
B. What it reads then is final.  A link checks its claims after its rows are acknowledged and before it sends their commit, so a row
   that a later holder does not find is never committed.  It may find one in a transaction that is not over, of a holder that is dead,
   frozen, or does not know how its commit ended: then nothing is decided until the coordinator has ended that transaction.
C. The claim is wanted only while a record waits, and left once the first records are committed, or after any trouble.  Whoever idles
   holds up nobody, and a dead holder does so for its lease only.  The claims log grants it to one of those that want it, and
   nobody waits for a second claim with it: there is no circle.
D. A link that has begun without a record needs it at its next start, too: `is_first` is what resumption says (target_checks.py).
"""

from __future__ import annotations

from collections.abc import Callable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.strategy import NO_CLAIM, CopiedLink
from tolerant_client.mirror.state.claims_record import claimed_part


class CopyClaims:
    """Of one copy; `is_first`: the target is not known to have a record of ours of the source's present log."""

    def __init__(self, link: CopiedLink, partition: TopicPartition) -> None:
        self.is_first = True
        self._link = link
        self._terms: dict[TopicPartition, int | None] = {}  # under which both logs were read
        self._own = claimed_part(partition, link.name)
        self._first = claimed_part(partition, "")
        self._wants_first = False

    def begin(self) -> None:
        """What is read of the target from now on is true as long as `require` raises nothing."""
        self._terms = {self._own: self._link.claims.term(self._own)}
        self.require()

    def require(self) -> None:
        """Is called directly before anything is written."""
        for claim, term in self._terms.items():
            if term is None or self._link.claims.term(claim) != term:
                raise Errors.NotLeaderForPartitionError(NO_CLAIM)

    async def take_first(self, is_enough: Callable[[], bool]) -> None:
        """Waits for all links' part; raises OffsetNotAvailableError once it `is_enough`."""
        claims, first, self._wants_first = self._link.claims, self._first, True
        claims.want([first])
        await self._link.tasks.until(lambda: claims.holds(first) or is_enough())
        if (term := claims.term(first)) is None:
            raise Errors.OffsetNotAvailableError(self.waits_for or NO_CLAIM)
        self._terms[first] = term

    def leave_first(self, *, has_copied: bool = False) -> None:
        """Lets other links go on; nothing more of ours is sent there without `take_first`, unless it `has_copied`."""
        self.is_first = self.is_first and not has_copied
        self._terms.pop(self._first, None)
        if self._wants_first:
            self._wants_first = False
            self._link.claims.leave([self._first])

    @property
    def waits_for(self) -> str:
        """Which other mirror copies its first records there while ours wait, or ""."""
        claimant = self._link.claims.claimant
        holder = claimant.log.claimed_by(self._first, claimant.holder.id) if self.is_first else None
        return (
            ""
            if holder is None
            else f"{holder} copies its first records there: links that begin a log do it one after the other"
        )
