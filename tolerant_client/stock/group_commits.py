"""What a member knows of its group's commits, where a move to another cluster (moved_member.py) may keep it from making its own in time.

Laws:
- What the group had committed on the former cluster, as far as any living member knows, is not read again, nor passed over, on the next
  one, as long as that member joins there before others have read on.
- A group that has members takes commits from members only, but from each of them for any partition.  So what was refused, since others
  had joined first, is committed by this member as soon as it has joined, whoever is assigned the partition, unless the group is further
  on.  Everybody's join after a move lasts LATEST_S longer than that takes (moved_member.py), and only then a position is looked for.
- A member that was first is alone with all partitions, and nobody can tell it who else will come.  So of a partition of which nothing is
  committed that counts it reads nothing for OWNERS_S after its own former commits: who had the partition joins meanwhile, and commits
  what it knows.
- What was committed on the next cluster before the group came (what a mirror has synced, or the group itself before it had left that
  cluster) does not count if the group was further on, on the former one.  That one says so as long as it responds.  If it is lost, whatever was
  committed before the clients had left the next cluster may be such, where records were copied since.  What is committed once this
  member has come counts, also if it is less: its owner has gone back.  When the group came this member cannot know: a commit has no
  time.  So what an owner has gone back to and committed before this member came does not count for it, unless others commit again.
- A member that is made there while others may be on their way is one that has moved without commits of its own.  One that is made later is
  like any other: it doubts nothing that is committed, waits for nobody, and does not ask where the group was before.
- A topic that was created again on the next cluster is none that was copied there, as far as brokers tell ids (2.8): of it, what was committed
  on the former cluster, and before the clients had left the next one, says nothing.
- If nobody comes, a member begins where the group was on the former cluster, and commits that; else at what is committed, else by
  `auto_offset_reset`: with "latest" where the end was when it got the partition.
- What could not even then be committed (a right, a topic that is not there) counts where this member is assigned the partition by its
  first join: it begins there, if the group is not further on.
- A partition that a member keeps has its position, also one that was sought.  But if the group is further on than that, and than what
  this member knows it to have committed, then others have read it while this one was joining: it goes on where they have stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import kafka.errors as Errors
from kafka.protocol.consumer import OffsetResetStrategy
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.stock.moving import Destination
from tolerant_client.stock.stock_names import ConsumerCoordinator

log = logging.getLogger(__name__)

OWNERS_S: Final = 15.0
LAST_COMMIT_MS: Final = 1_000
_LOOKS_S: Final = 0.1  # between two looks for what former owners commit

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
FindEnds = Callable[[Collection[TopicPartition], float], Awaitable[dict[TopicPartition, int]]]  # within milliseconds


class GroupCommits(ConsumerCoordinator):  # type: ignore[misc]  # kafka-python is untyped
    """kafka-python's ConsumerCoordinator, which remembers commits.  Who moves it (MovedMember) says what happens to its membership."""

    def __init__(self, client: Any, subscription: Any, **configs: Any) -> None:
        super().__init__(client, subscription, **configs)
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}  # by its group, of what it is assigned
        self._uncommitted: dict[TopicPartition, OffsetAndMetadata] = {}  # there, but on the former cluster
        self._found: dict[TopicPartition, OffsetAndMetadata] = {}  # by the group, when this member had joined
        self._is_meeting = False  # it has joined, and commits before anybody looks for a position
        self._owners_until = 0.0  # those of partitions of which nothing is committed may come
        self._looks_at = 0.0  # for commits again, not before
        self._ends: dict[TopicPartition, int] = {}  # of those partitions, when this member got them
        self._find_ends: FindEnds | None = None  # None before a move
        self._to: Destination | None = None
        self._before: Offsets | None = None  # by the group there, before this member's own

    def _begin_on_next_cluster(self, former: Offsets, to: Destination, find_ends: FindEnds) -> None:
        """Of the `former` commits none is made on the next cluster yet, where `find_ends` tells where logs end."""
        self._to, self._before = to, None
        self._committed.clear()
        self._uncommitted, self._found = dict(former), {}
        self._owners_until, self._looks_at, self._ends = 0.0, 0.0, {}
        self._find_ends = find_ends

    async def _find_former(self) -> None:
        """What the group had committed on the next cluster before it came; as far as that tells."""
        topics = self._subscription.subscription
        if self._before is None and self._to is not None and topics:
            with suppress(Errors.KafkaError):
                self._before = await self.fetch_committed_offsets_async(
                    {tp for tp in self._to.ends if tp.topic in topics}, timeout_ms=LAST_COMMIT_MS
                )

    def _wait_for_owners(self) -> None:
        """From now on, since the former commits are made, or given up."""
        self._owners_until = time.monotonic() + OWNERS_S

    def _took(self, offsets: Offsets) -> None:
        """The group has these offsets."""
        self._committed.update(offsets)
        for tp in offsets:
            self._uncommitted.pop(tp, None)

    def _keep_commits(self, kept: Collection[TopicPartition]) -> None:
        """After a join, which left it these: of others the group may have later commits by now, and what was refused is theirs."""
        own = self._subscription.assigned_partitions()
        self._committed = {tp: offset for tp, offset in self._committed.items() if tp in kept and tp in own}
        self._uncommitted = {tp: offset for tp, offset in self._uncommitted.items() if tp in own}

    def _last_commits(self) -> dict[TopicPartition, OffsetAndMetadata]:
        own = self._subscription.assigned_partitions()
        return {tp: offset for tp, offset in self._committed.items() if tp in own}

    def _tell_uncommitted(self) -> None:
        if self._uncommitted:
            left = ", ".join(f"{tp.topic}-{tp.partition} {at.offset}" for tp, at in self._uncommitted.items())
            log.warning("Group %s: the offsets before the move could not be committed: %s", self.group_id, left)

    def generation_if_stable(self) -> Any:
        """The generation of the member, also once it has joined and its join is not over."""
        return self._generation if self._is_meeting else super().generation_if_stable()

    async def _commit_as_member(self) -> None:
        """Commits what was refused before, unless the group is further on, and finds what others have committed."""
        self._is_meeting = True
        try:
            self._found = await self.fetch_committed_offsets_async(
                self._uncommitted.keys() | self._subscription.assigned_partitions(), timeout_ms=LAST_COMMIT_MS
            )
            for tp in self._uncommitted.keys() & self._found.keys():
                if self._found[tp].offset >= self._uncommitted[tp].offset:
                    del self._uncommitted[tp]
            await self._commit_offsets_sync_async(self._uncommitted.copy(), timeout_ms=LAST_COMMIT_MS)
        except Errors.KafkaError as error:
            log.debug("Group %r: offsets after the join: %s", self.group_id, error)
            self._tell_uncommitted()
        finally:
            self._is_meeting = False

    def _go_on_after_others(self) -> None:
        """Before the partitions are taken over that it keeps: begins where others have read on while it was joining."""
        for tp, position in self._subscription.all_consumed_offsets().items():
            known, at = self._committed.get(tp), self._found.get(tp)
            if known is not None and at is not None and max(position.offset, known.offset) < at.offset:
                self._subscription.seek(tp, OffsetAndMetadata(at.offset, "", at.leader_epoch))
                self._committed[tp] = at

    @property
    def _is_member(self) -> bool:
        return bool(self._subscription.partitions_auto_assigned())

    def _copies_of(self, tp: TopicPartition) -> Destination | None:
        """Where the group has come to, if the partition's topic there is still the one that was copied."""
        topic_id = self._cluster.topic_id(tp.topic)
        known = str(topic_id) if topic_id is not None and topic_id.int else ""
        return None if self._to is None or self._to.was_created_again(tp, known) else self._to

    def _is_left_behind(self, tp: TopicPartition, committed: OffsetAndMetadata) -> bool:
        """Whether nobody has committed this since the group came, and the group had gone on elsewhere."""
        to = self._copies_of(tp)
        if to is None or not self._is_member or not to.is_left_behind(tp, committed.offset):
            return False
        return self._before is None or tp in self._before and self._before[tp].offset == committed.offset

    def _counting(
        self, partitions: Collection[TopicPartition], committed: Offsets
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of these, what the group has committed that counts, or what this member could not commit, if it is further on."""
        counts = {tp: at for tp, at in committed.items() if not self._is_left_behind(tp, at)}
        for tp in partitions:
            own = self._uncommitted.pop(tp, None)
            if own is not None and (tp not in committed or committed[tp].offset < own.offset):
                counts[tp] = own
        return counts

    def _elsewhere(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed of these on the former cluster, as far as that tells."""
        if not self._is_member:
            return {}
        places = {tp: to.former_commit(tp) for tp in partitions if (to := self._copies_of(tp)) is not None}
        return {tp: OffsetAndMetadata(at, "", -1) for tp, at in places.items() if at is not None}

    async def begin(self, partitions: Collection[TopicPartition], committed: Offsets) -> bool:
        """Begins in partitions without a position where the group has `committed`, or later where this member had.

        False: in some it is too early to do so.
        """
        is_early = self._is_member and time.monotonic() < self._owners_until
        counts = self._counting(partitions, committed)
        former = {} if is_early else self._elsewhere(partitions - counts.keys())
        begins = counts if is_early else {**committed, **counts, **former}
        if self._is_member:
            self._committed.update({tp: at for tp, at in committed.items() if tp in begins})
        for tp, at in begins.items():
            self._subscription.seek(tp, OffsetAndMetadata(at.offset, "", at.leader_epoch))
        await self._commit_elsewhere(former, committed)
        return not await self._waits_for_owners(partitions - begins.keys(), is_early)

    async def _commit_elsewhere(self, former: Offsets, committed: Offsets) -> None:
        """Commits where the group was on the former cluster."""
        if older := former.keys() & committed.keys():
            log.warning(
                "Group %s: what was committed here is older than what the group had committed on the cluster that it has left. It begins"
                " there: %s",
                self.group_id,
                ", ".join(
                    f"{tp.topic}-{tp.partition} {former[tp].offset}, not {committed[tp].offset}" for tp in sorted(older)
                ),
            )
        with suppress(Errors.KafkaError):  # nobody else will
            await self._commit_offsets_sync_async(former, timeout_ms=LAST_COMMIT_MS)

    async def _waits_for_owners(self, partitions: Collection[TopicPartition], is_early: bool) -> bool:
        """Whether it is too early to begin in these, of which nothing counts that is committed."""
        if not partitions or not is_early:
            self._looks_at, ends, self._ends = 0.0, self._ends, {}
            for tp in ends.keys() & partitions:
                self._subscription.seek(tp, ends[tp])
            return False
        self._looks_at = time.monotonic() + _LOOKS_S
        begins_at_end = self._subscription._default_offset_reset_strategy == OffsetResetStrategy.LATEST
        if begins_at_end and self._find_ends is not None:
            with suppress(Errors.KafkaError):
                self._ends |= await self._find_ends(set(partitions) - self._ends.keys(), _LOOKS_S * 1000)
        return True
