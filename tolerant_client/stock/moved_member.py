"""The part of the coordinator that follows a move to another cluster (moving.py): its commits, and how a member joins there.

Laws:
- No commit is of a record that was not copied, unless it was read on the next cluster or the program names it (moving.py).  None names a
  leader epoch of the former one.
- Whatever was committed on the former cluster is committed on the next one at once, before any later commit: those offsets win over the
  ones that were copied before.  What is given out and not committed is committed only by who would do it anyway: auto-commit,
  once poll() is called again.  A member commits nothing of a partition that it has lost since.
- A group takes offsets from anybody until it has a member, then from members only.  So each member reads on for READS_ON_S after
  the move, and until the former commits are made, then commits, and stops; it joins only LATEST_S later: all that stop within
  LATEST_S of each other have committed everything by then, and nobody reads what another one has read.
- The former commits wait for the coordinator, however long it is away: nobody joins without it either.  Other commits wait for them, as
  long as for a response.  As lookups pause for longer and
  longer, members find it at different times: so before it joins, each waits as long again as it took, but READS_ON_S at most.
  Only what refuses a commit (a right, a topic that is not there) ends its tries, after _REFUSED_S; before the join it is tried again.
- A member that comes later finds, at its commit, that others have joined, and may own its partitions: it has lost them, as if its
  session had expired.  It has something to commit wherever it has a position: what the group has committed, at least.  What it could
  not commit it commits once it has joined (group_commits.py).
- Of a partition of which the group has committed nothing, and this member has given out nothing, the position is committed with the
  rest: it is where the group begins, and says nothing of any record.  Whoever is assigned the partition would begin at the end by then
  (auto_offset_reset), and nobody would read what came while the members joined.  With "earliest" nothing is passed over, nor committed.
- The first member to join is assigned all partitions, if the broker does not wait for others (group.initial.rebalance.delay.ms=0).
  They would be read by it, and by their owners.  So the first join after a move counts only if a heartbeat LATEST_S later tells of
  nobody else who joins; otherwise the member joins again.  Who needs longer than that to join: group_commits.py.
- A member that was alone in its group joins like any other: whoever starts beside it within group.initial.rebalance.delay.ms is in its first
  assignment, and would read again what it read while it joined.
- A synchronous commit while the member is joining waits for the join, with one timeout for both.  Of partitions that others got
  then it raises CommitFailedError, as after any rebalance, unless nothing new was to be committed.  A member that is closing does not
  join for it: it has committed all that it was given out before it began to join.
- Commits are sent until the JoinGroup is, so also those of a listener's on_partitions_revoked.  One that is refused after the member
  has stopped says nothing of its partitions: it had committed before others joined.  It names no membership, so it says nothing of
  the one that the member has got meanwhile either.  Nor does a refusal end a join.
- A close tells the listener of a revocation while the member has its partitions, and waits for what it commits then: there is no
  LeaveGroup whose response would come after theirs.
- A member that had lost its membership before the move, or had none yet, commits nothing and joins when the others do, not before:
  they would all come too late.  So does one that is made there: the promotion may just have been.  It is like a member that has moved
  without commits of its own.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

import kafka.errors as Errors
from kafka.protocol.consumer import OffsetResetStrategy
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from tolerant_client.errors import text_of
from tolerant_client.stock.group_commits import LAST_COMMIT_MS, GroupCommits, Offsets
from tolerant_client.stock.moving import Move
from tolerant_client.stock.stock_names import Future, Generation, RebalanceProtocol

log = logging.getLogger(__name__)

READS_ON_S: Final = 1.0
LATEST_S: Final = 0.5
_LOOK_S: Final = 0.01  # between two looks whether commits are made, before a close
_POLLS_S: Final = 0.1  # between two polls of a member that reads while it joins
_TRY_MS: Final = 5_000
_REFUSED_S: Final = 5.0
_NO_TOPIC: Final = (Errors.UnknownTopicOrPartitionError, Errors.UnknownTopicIdError)
_NO_MEMBER: Final = (Errors.UnknownMemberIdError.errno, Errors.IllegalGenerationError.errno)


class Stage(enum.Enum):
    """How far a member has come on its way into its group on the next cluster.

    It moves with its partitions: READS_ON.  It moves without: OUTSIDE.
    READS_ON: it stops: STOPPED.  READS_ON: a commit is refused: OUTSIDE.
    Any: it has joined: INSIDE, as one that never moved.
    """

    READS_ON = enum.auto()
    STOPPED = enum.auto()
    OUTSIDE = enum.auto()
    INSIDE = enum.auto()


class MovedMember(GroupCommits):
    """kafka-python's ConsumerCoordinator, which can move."""

    _is_closing: bool
    _closes_by: float
    _assigned: Any

    def __init__(self, client: Any, subscription: Any, **configs: Any) -> None:
        super().__init__(client, subscription, **configs)
        self._move: Move | None = None
        self._first_commit: Any = None  # done before any other commit on the next cluster
        self._tried = Future()  # once more to make it, or made it
        self._begun: Collection[TopicPartition] = ()  # of these a position: what was committed on the next cluster wins
        self._stage = Stage.INSIDE
        self._stops_at = 0.0  # not before; later it is when it stopped
        self._waits_s = 0.0  # for others who find the coordinator later
        self._committing = 0  # commits under way
        self._is_polling = False
        self._polled: Move | None = None  # the move that the last poll() knew of

    def moved(self, move: Move) -> None:
        """Leaves the group of the former cluster without a word, and keeps the assignment; on the event loop."""
        is_auto = self._subscription.partitions_auto_assigned()
        is_member = is_auto and self._assigned is None and not self._generation.is_lost()
        offsets = self._last_commits() if is_member or not is_auto else {}
        begins_at_first = self._subscription._default_offset_reset_strategy == OffsetResetStrategy.EARLIEST
        unread = move.unread_positions if is_member and not begins_at_first else {}
        super().coordinator_dead("the client has moved to another cluster")
        self._join_task, self.rejoining = None, False
        self._disable_heartbeat()
        self._subscription.all_consumed_offsets = partial(move.consumed, self._subscription.all_consumed_offsets)
        if self.group_id is not None:
            self._begin_on_next_cluster(move.copied({**unread, **offsets}), move.to, move.ends)
            self._begun = unread.keys() - offsets.keys()
            self._tried, self._first_commit = Future(), self._manager.call_soon(self._commit_first)
            self._first_commit.add_both(lambda _: self._tried.success(None))
            self._stops_at = time.monotonic() + READS_ON_S  # also for one that subscribes only now
            if is_auto:
                self._stage = Stage.READS_ON if is_member else Stage.OUTSIDE
                self.reset_generation()
            if self.config["enable_auto_commit"]:
                self.next_auto_commit_deadline = 0.0
        self._move = move  # last: the polling thread, which may be anywhere, acts on the rest once it sees this

    def inherits(self, move: Move | None) -> None:
        """In a forked child: knows of the parent's move, as the fetcher does; it does not move itself."""
        if move is None:
            return
        self._subscription.all_consumed_offsets = partial(move.consumed, self._subscription.all_consumed_offsets)
        self._move = move

    def begins_beside_movers(self, move: Move) -> None:
        """It is made on the cluster that others of its group have moved to, or may be moving to: it does not join before them."""
        self._stops_at = time.monotonic() + READS_ON_S
        self._begin_on_next_cluster({}, move.to, move.ends)
        self._first_commit = self._manager.call_soon(self._commit_first)

    @property
    def is_moving(self) -> bool:
        """Whether a member has not joined on the next cluster yet, and has its partitions still."""
        return self._stage in (Stage.READS_ON, Stage.STOPPED) and bool(self._subscription.partitions_auto_assigned())

    @property
    def _is_reading_on(self) -> bool:
        """Whether it is too early to join."""
        return (
            self.is_moving
            and self._stage is Stage.READS_ON
            and (time.monotonic() < self._stops_at or not self._first_commit.is_done)
        )

    @property
    def _ends_poll(self) -> bool:
        """Whether the poll() that is under way began before the move, and would wait for the join."""
        return self._is_polling and self._polled is not self._move

    # -- commits ------------------------------------------------------------------

    def _as_copied(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit on the next cluster for offsets that may be of the former one."""
        return dict(offsets) if self._move is None else self._move.copied(offsets)

    async def _commit_first(self) -> None:
        """Makes the former commits as soon as there is a coordinator; gives up what is refused for _REFUSED_S."""
        until = float("inf")
        while time.monotonic() < until and not self._manager.closed:
            try:
                await self._commit_former(_TRY_MS)
                break
            except Errors.CommitFailedError:
                break
            except Exception as error:
                log.debug("Group %r: offsets after the move: %s", self.group_id, error)
                if not isinstance(error, Errors.RetriableError) or isinstance(error, _NO_TOPIC):
                    until = min(until, time.monotonic() + _REFUSED_S)
            tried, self._tried = self._tried, Future()
            tried.success(None)
            await self._net.sleep(self.config["retry_backoff_ms"] / 1000)
        now = time.monotonic()
        self._waits_s = min(READS_ON_S, now - (self._stops_at - READS_ON_S))
        self._stops_at = max(self._stops_at, now)  # the next cluster may have kept everybody waiting
        self._wait_for_owners()
        if self._stage is not Stage.OUTSIDE:
            self._tell_uncommitted()

    async def _commit_former(self, timeout_ms: float) -> None:
        """Commits what was committed on the former cluster, and where the group begins if it has committed nothing."""
        await self._manager.moved(timeout_ms)
        if not await super().ensure_coordinator_ready_async(timeout_ms):
            raise Errors.KafkaTimeoutError(f"group {self.group_id}: no coordinator")
        await self._find_former()
        try:
            known = await self.fetch_committed_offsets_async(
                self._uncommitted.keys() & self._begun, timeout_ms=timeout_ms
            )
            for tp in known:
                self._uncommitted.pop(tp, None)
            await super()._send_offset_commit_request(self._uncommitted.copy())
        except Errors.CommitFailedError:
            if self.is_moving:
                self._lose_partitions()
            raise

    async def _wait_for_first_commit(self) -> None:
        """As long as a response may take; raises KafkaTimeoutError."""
        first, waits_ms = self._first_commit, self.config["request_timeout_ms"]
        ends = time.monotonic() + waits_ms / 1000
        while first is not None and not first.is_done:
            if time.monotonic() >= ends:
                raise Errors.KafkaTimeoutError(
                    f"group {self.group_id}: the cluster that the client has moved to took no commits for {waits_ms} ms"
                )
            await self._tried

    async def _send_offset_commit_request(self, offsets: Offsets) -> Any:
        self._committing += 1
        try:
            await self._wait_for_first_commit()
            return await super()._send_offset_commit_request(self._as_copied(offsets))
        except Errors.CommitFailedError as error:
            if not self.is_moving:
                raise
            if self._stage is Stage.STOPPED:
                raise Errors.RebalanceInProgressError(
                    "the member joins its group on the cluster that it has moved to"
                ) from error
            self._lose_partitions()
            raise
        finally:
            self._committing -= 1

    def _lose_partitions(self) -> None:
        """Others have joined (or its own former membership has not ended), so they may own the partitions of this member: it joins as one that has lost them."""
        self._stage = Stage.OUTSIDE
        self._committed.clear()
        log.warning(
            "Group %s: it has members on this cluster already (others, or this client's former membership until its session"
            " ends): this member has lost its partitions",
            self.group_id,
        )

    def _handle_offset_commit_response(self, offsets: Offsets, send_time: float, response: Any) -> Any:
        if self.is_moving and any(code in _NO_MEMBER for _, partitions in response.topics for _, code in partitions):
            raise Errors.CommitFailedError(
                f"group {self.group_id}: others have joined on the cluster that it has moved to"
            )
        result = super()._handle_offset_commit_response(offsets, send_time, response)
        self._took(offsets)
        return result

    def generation_if_stable(self) -> Any:
        """The generation of the member; none is needed before anybody has joined on the next cluster."""
        if self.is_moving and self.state is MemberState.UNJOINED:
            return Generation.NO_GENERATION
        return super().generation_if_stable()

    def commit_offsets_sync(self, offsets: Any, timeout_ms: float | None = None) -> Any:
        """Commits; a member that moves may have to join first."""
        ends = time.monotonic() + (self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms) / 1000
        try:
            return super().commit_offsets_sync(offsets, timeout_ms=timeout_ms)
        except Errors.RebalanceInProgressError:
            if not self.is_moving or self._is_closing:
                raise
        asked, committed = self._as_copied(offsets), self._committed
        new = {tp for tp, at in asked.items() if tp not in committed or at.offset != committed[tp].offset}
        if not self.ensure_active_group(timeout_ms=max(0.0, ends - time.monotonic()) * 1000):
            raise Errors.KafkaTimeoutError(
                f"group {self.group_id}: the join after the move lasts longer than the commit may"
            )
        own = self._subscription.assigned_partitions()
        left_ms = max(0.0, ends - time.monotonic()) * 1000
        result = super().commit_offsets_sync({tp: offsets[tp] for tp in new & own}, timeout_ms=left_ms)
        if lost := sorted(new - own):
            raise Errors.CommitFailedError(
                f"The group was assigned anew after the move to another cluster: {lost} belong to other members, which"
                " may read again what was not committed"
            )
        return result

    # -- polls and the join ---------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> bool:
        """Like kafka-python's; a member that has just moved reads on before it joins."""
        self._polled = self._move
        if self._polled is not None:
            self._polled.settle()
        if self._is_reading_on:
            self._invoke_completed_offset_commit_callbacks()
            self._maybe_auto_commit_offsets_async()
            if time.monotonic() > self._stops_at:
                self.ensure_coordinator_ready(timeout_ms=0)  # which tells of one that is away
            return True
        self._is_polling = True
        try:
            is_ready = bool(super().poll(timeout_ms=timeout_ms))
            if self._ends_poll and self._move is not None:
                self._move.settle()
                return True
            return is_ready
        finally:
            self._is_polling = False

    def time_to_next_poll(self) -> float:
        """Seconds until poll() should be called again."""
        next_s = float(super().time_to_next_poll())
        return max(_POLLS_S, min(next_s, self._stops_at - time.monotonic())) if self.is_moving else next_s

    async def _on_join_prepare_async(self, generation: int, member_id: str, timeout_ms: float | None = None) -> None:
        if self.is_moving:
            await self._commit_last()  # which may find that it comes too late
        if not self.is_moving:
            await super()._on_join_prepare_async(generation, member_id, timeout_ms=timeout_ms)  # tells what is lost
            return
        self._stage, self._stops_at = Stage.STOPPED, time.monotonic()
        if self._rebalance_protocol == RebalanceProtocol.EAGER:
            await self._tell_revoked()
        self._is_leader = False
        self._subscription.reset_group_subscription()

    async def _on_close_prepare_async(self) -> None:
        """Like kafka-python's, for which a member that moves has lost its partitions; but it may commit them still."""
        ends = min(time.monotonic() + LAST_COMMIT_MS / 1000, self._closes_by)
        first = self._first_commit
        while first is not None and not first.is_done and time.monotonic() < ends:  # then the coordinator is known
            await self._net.sleep(_LOOK_S)
        if first is not None and not first.is_done:
            self._tell_uncommitted()
        if not self.is_moving:
            await super()._on_close_prepare_async()
            return
        if self._stage is Stage.READS_ON or self._rebalance_protocol != RebalanceProtocol.EAGER:
            await self._tell_revoked()
        await self._net.sleep(0)  # what the listener has committed begins
        while self._committing and time.monotonic() < ends:
            await self._net.sleep(_LOOK_S)
        self._subscription.assign_from_subscribed([])
        self._is_leader = False
        self._subscription.reset_group_subscription()

    async def _commit_last(self) -> None:
        """Commits what this member would commit before any rebalance, and what was refused at first."""
        if self._uncommitted:
            with suppress(Errors.KafkaError):
                await self._commit_former(LAST_COMMIT_MS)
        if not self.is_moving:
            return
        offsets = self._last_commits()
        if self.config["enable_auto_commit"] and self._is_polling:
            offsets |= self._subscription.all_consumed_offsets()
        try:
            await self._commit_offsets_sync_async(offsets, timeout_ms=LAST_COMMIT_MS)
        except Errors.KafkaError as error:
            log.warning(
                "Group %s: what was read since the last commit could not be committed before the join after the move, and may be read"
                " again: %s",
                self.group_id,
                text_of(error),
            )

    async def _tell_revoked(self) -> None:
        """Stops reading, and tells the listener what it is told before a join that takes all partitions."""
        own = set(self._subscription.assigned_partitions())
        if not own:
            return
        self._subscription.mark_pending_revocation(own)
        if self._subscription.rebalance_listener:
            try:
                await self._invoke_rebalance_listener_async("on_partitions_revoked", own)
            except Exception:
                log.exception("Group %s: the listener's on_partitions_revoked failed after the move", self.group_id)

    async def _do_join_and_sync_async(self) -> Any:
        """Joins once all that moved with this member have committed; RebalanceInProgressError if others have come meanwhile."""
        this = self._join_task
        if self._first_commit is not None:
            await self._first_commit
            await self._find_former()  # of what it has subscribed to since
        await self._net.sleep(max(0.0, self._stops_at + self._waits_s + LATEST_S - time.monotonic()))
        if self._is_closing or self._join_task is not this:
            raise Errors.IllegalGenerationError(f"group {self.group_id}: the member left before it joined")
        assigned = await super()._do_join_and_sync_async()
        is_first = self._stage is not Stage.INSIDE
        if is_first:
            await self._commit_as_member()
        if is_first or time.monotonic() < self._stops_at + self._waits_s + 2 * LATEST_S:
            await self._net.sleep(LATEST_S)
            await self._send_heartbeat_request()
        return assigned

    async def _on_join_complete_async(self, generation: int, member_id: str, protocol: str, assigned: bytes) -> None:
        former = self._subscription.assigned_partitions()
        if self._stage is Stage.INSIDE:
            self._uncommitted.clear()
        else:
            self._go_on_after_others()
        self._stage = Stage.INSIDE
        await super()._on_join_complete_async(generation, member_id, protocol, assigned)
        self._keep_commits(former)

    def reset_generation(self, member_id: str = "") -> None:
        """Forgets the membership, and what was committed in it."""
        if not self.is_moving:
            self._committed.clear()
        super().reset_generation(member_id)
