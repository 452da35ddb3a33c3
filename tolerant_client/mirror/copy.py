"""Copies partitions from source to target, many at once, on one event loop.

The path of a batch: a fetch loop for each source node receives it, the
partition accepts and stamps it in place, the appender sends the slice, and the
answer moves `acked`.  Whatever goes wrong ends in one place: the partition drains,
and the sync loop reads its place from the target's log again.

Memory is bounded by `max_bytes_in_flight`, whatever the number of partitions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.future import Future
from kafka.net.wakeup_notifier import WakeupNotifier
from kafka.structs import TopicPartition

from tolerant_client.errors import RecordBatchError, RecoveryExhaustedError, TolerantClientError
from tolerant_client.fetch import FetchAnswer, FetchSession
from tolerant_client.mirror.append import Appender, CopyLimits, resolve
from tolerant_client.mirror.partition import PartitionCopy, Phase
from tolerant_client.mirror.state import read_append_states
from tolerant_client.raw import RawCluster
from tolerant_client.record_batch import BatchHeader, iter_batches


class Progress(NamedTuple):
    """What a copier has done for a partition; offsets before `acked` are on the target."""

    acked: int
    records: int
    bytes: int
    troubles: int
    error: TolerantClientError | None


class _Fetcher:
    """The fetch session with one source node and the rounds it has gone through."""

    def __init__(self, node_id: int, session: FetchSession) -> None:
        self.node_id = node_id
        self.session = session
        self.round = 0
        self.is_behind = True  # the last answer left records on the source
        self.failing_since: float | None = None


class LinkCopier:
    """Copies partitions of one link; both clusters must share one event loop.

    All methods run on that loop.  `producer_id` is the link's
    (state.init_producer_id).  `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        source: RawCluster,
        target: RawCluster,
        producer_id: int,
        limits: CopyLimits = CopyLimits(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.target = target
        self.producer_id = producer_id
        self.limits = limits
        self.clock = clock
        self._net = source.net
        self._partitions: dict[TopicPartition, PartitionCopy] = {}
        self._fetchers: dict[int, _Fetcher] = {}
        self._appender = Appender(target, limits, clock, self._appended, self._no_leader)
        self._to_sync: set[TopicPartition] = set()
        self._sync_wanted = WakeupNotifier(self._net)
        self._is_syncing = False
        self._waiters: set[Future] = set()
        self._callers: dict[TopicPartition, Future] = {}  # resolved when the call that copies a partition is done
        self._next_drop = 0.0
        self.failure: Exception | None = None  # what ended a loop; the copier is of no more use

    # -- what callers ask -----------------------------------------------------

    async def copy(
        self, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
    ) -> dict[TopicPartition, Progress]:
        """Copies each partition at least up to its offset, and what arrives for `hold_ms` more.

        For `lease_ms` after that the copying goes on in the background, until
        another writer shows up.  Raises the first partition's error when it
        stopped; the other partitions are brought to their end before.
        Calls for the same partition wait for each other.
        """
        while (busy := next((self._callers[p] for p in until if p in self._callers), None)) is not None:
            await busy
        done = Future()
        self._callers.update(dict.fromkeys(until, done))
        try:
            return await self._copy(until, hold_ms, lease_ms)
        finally:
            for partition in until:
                del self._callers[partition]
            resolve(done)

    async def _copy(
        self, until: Mapping[TopicPartition, int | None], hold_ms: int, lease_ms: int
    ) -> dict[TopicPartition, Progress]:
        now = self.clock()
        before = {p: (c.records, c.bytes) for p, c in self._partitions.items() if p in until}
        for partition, offset in until.items():
            self._adopt(partition, offset, now + hold_ms / 1000, now + (hold_ms + lease_ms) / 1000)
        try:
            await self._settled(until, now + hold_ms / 1000)
        finally:
            progress = {p: self._progress(p, before.get(p, (0, 0))) for p in until if p in self._partitions}
            for partition in until:
                if not lease_ms or self._is_stopped(partition):
                    self._release(partition)
        for done in progress.values():
            if done.error is not None:
                raise done.error
        return progress

    async def _settled(self, partitions: Iterable[TopicPartition], hold_until: float) -> None:
        """Waits until all have reached their offset or stopped, and the hold is over."""
        while True:
            if self.failure is not None:
                raise self.failure
            now = self.clock()
            waiting = [c for p in partitions if (c := self._partitions.get(p)) is not None and c.phase is not Phase.STOPPED]
            if all(c.has_reached for c in waiting) and (now >= hold_until or not waiting):
                return
            future = Future()
            self._waiters.add(future)
            timer = self._net.call_later(1.0 if now >= hold_until else min(1.0, hold_until - now), lambda: resolve(future))
            try:
                await future
            finally:
                self._waiters.discard(future)
                self._net.cancel(timer)
            patience_s, now = self.limits.patience_ms / 1000, self.clock()
            for copy in waiting:
                if not copy.has_reached:
                    copy.give_up_after(patience_s, now)
                    if now - max(self._appender.settled_at, copy.adopted_at) > patience_s and copy.phase is not Phase.STOPPED:
                        copy.stop(RecoveryExhaustedError(f"{copy}: the source sent nothing for {patience_s:.0f} s at offset {copy.acked}"))

    def _adopt(self, partition: TopicPartition, until: int | None, hold_until: float, lease_until: float) -> None:
        copy = self._partitions.get(partition)
        if copy is None:
            copy = self._partitions[partition] = PartitionCopy(partition, until, self.clock())
            self._want_sync(copy)
        copy.adopted_at = self.clock()
        copy.until = until
        copy.hold_until = hold_until
        copy.lease_until = lease_until
        if copy.phase is Phase.COPYING and not any(partition in f.session.positions for f in self._fetchers.values()):
            # It had reached its former offset and was left alone since.
            copy.phase = Phase.DRAINING
            self._after_trouble(copy)

    def _release(self, partition: TopicPartition) -> None:
        copy = self._partitions.pop(partition, None)
        if copy is not None:
            copy.phase = Phase.STOPPED  # what was accepted for it is not queued any more
            self._leave(copy)
            self._to_sync.discard(partition)

    def _leave(self, copy: PartitionCopy) -> None:
        for fetcher in self._fetchers.values():
            fetcher.session.forget(copy.partition)
        self._appender.drop(copy)

    def _is_stopped(self, partition: TopicPartition) -> bool:
        copy = self._partitions.get(partition)
        return copy is not None and copy.phase is Phase.STOPPED

    def _progress(self, partition: TopicPartition, before: tuple[int, int]) -> Progress:
        copy = self._partitions[partition]
        return Progress(copy.acked, copy.records - before[0], copy.bytes - before[1], copy.troubles, copy.error)

    # -- from trouble back to copying -----------------------------------------

    def _want_sync(self, copy: PartitionCopy) -> None:
        self._to_sync.add(copy.partition)
        if not self._is_syncing:
            self._is_syncing = True
            self._spawn(self._sync_loop)
        else:
            self._sync_wanted.notify()

    async def _sync_loop(self) -> None:
        try:
            while self._to_sync:
                now = self.clock()
                due = [p for p in self._to_sync if self._partitions[p].not_before <= now]
                if not due:
                    await self._sync_wanted(max(0.001, min(self._partitions[p].not_before for p in self._to_sync) - now))
                    continue
                self._to_sync.difference_update(due)
                states = await read_append_states(self.source, self.target, due, self.producer_id)
                joining = []
                for partition in due:
                    copy = self._partitions.get(partition)
                    if copy is None or copy.phase is Phase.STOPPED:
                        continue
                    state = states.get(partition)
                    if state is None:
                        copy.phase = Phase.SYNCING
                        copy.trouble("the last record batch could not be read", self.clock())
                        copy.not_before = max(copy.not_before, self.clock() + 0.02)
                        self._after_trouble(copy)
                    elif isinstance(state, TolerantClientError):
                        copy.phase = Phase.SYNCING
                        copy.doubt(state, self.clock())
                        self._after_trouble(copy)
                    else:
                        copy.resume(state, self.clock())
                        joining.append(partition)
                await self._join(joining)
                self._notify()
        finally:
            self._is_syncing = False

    async def _join(self, partitions: list[TopicPartition]) -> None:
        """Puts partitions into the fetch session of the node that leads them."""
        for node_id, members in (await self.source.by_leader(partitions)).items():
            fetcher = self._fetchers.get(node_id)
            is_new = fetcher is None
            if fetcher is None:
                fetcher = self._fetchers[node_id] = _Fetcher(node_id, await self.source.session(node_id))
            for partition in members:
                copy = self._partitions.get(partition)
                if copy is not None and copy.phase is Phase.COPYING:
                    copy.first_round = fetcher.round + 1
                    fetcher.session.seek(partition, copy.position)
            if is_new:
                self._spawn(self._fetch_loop, fetcher)

    def _after_trouble(self, copy: PartitionCopy) -> None:
        """Takes a troubled partition out of the flow; once drained it goes to the sync loop."""
        self._leave(copy)
        if self.clock() > copy.hold_until and copy.has_reached:
            # Only the lease is left: whoever else writes this partition is its owner now.
            self._release(copy.partition)
        elif copy.is_drained:
            self._want_sync(copy)
        if copy.phase is Phase.STOPPED:
            self._notify()

    # -- source side ----------------------------------------------------------

    async def _fetch_loop(self, fetcher: _Fetcher) -> None:
        answer: FetchAnswer | None = None
        try:
            while True:
                if not fetcher.session.positions:
                    break
                accepted = self._accept(fetcher, answer) if answer is not None else []
                self._drop_expired()
                fetching = self._net.call_soon_with_future(self._ask, fetcher) if fetcher.session.positions else None
                self._appender.enqueue(accepted)
                if fetching is None:
                    break
                answer = await fetching
        finally:
            if self._fetchers.get(fetcher.node_id) is fetcher:
                del self._fetchers[fetcher.node_id]

    async def _ask(self, fetcher: _Fetcher) -> FetchAnswer | None:
        """The next answer of a node, once there is room for it; None after a failure."""
        limits = self.limits
        await self._appender.room(limits.fetch_max_bytes)
        session = fetcher.session
        fetcher.round += 1
        request = session.request(
            # Behind means that the answer comes at once: a lost one is found sooner.
            max_wait_ms=10 if fetcher.is_behind else limits.fetch_max_wait_ms,
            max_bytes=limits.fetch_max_bytes,
            partition_max_bytes=limits.partition_max_bytes,
        )
        try:
            answer = await self.source.send_fetch(fetcher.node_id, request)
        except Errors.KafkaError as error:
            session.failed()
            await self._after_failed_fetch(fetcher, error)
            return None
        if not session.answered(answer):
            await self._after_failed_fetch(fetcher, Errors.for_code(answer.error_code)())
            return None
        fetcher.failing_since = None
        return answer

    async def _after_failed_fetch(self, fetcher: _Fetcher, error: Exception) -> None:
        """A node that does not answer may no longer lead: its partitions are placed anew."""
        self._give_up_after(fetcher, error)
        await self._net.sleep(0.02 * random.uniform(0.2, 1.0))
        if not isinstance(
            error, (Errors.KafkaConnectionError, Errors.NodeNotReadyError, Errors.RequestTimedOutError, Errors.KafkaTimeoutError)
        ):
            return
        await self.source.refresh()
        for partition in list(fetcher.session.positions):
            if await self.source.leader(partition) != fetcher.node_id:
                copy = self._partitions.get(partition)
                if copy is not None:
                    copy.trouble(f"node {fetcher.node_id} no longer leads", self.clock())
                    self._after_trouble(copy)

    def _give_up_after(self, fetcher: _Fetcher, error: Exception) -> None:
        """Stops the partitions of a node that answered no fetch for as long as the patience lasts."""
        now, patience_s = self.clock(), self.limits.patience_ms / 1000
        if fetcher.failing_since is None:
            fetcher.failing_since = now
        if now - fetcher.failing_since <= patience_s:
            return
        for copy in [c for p in fetcher.session.positions if (c := self._partitions.get(p)) is not None]:
            copy.stop(
                RecoveryExhaustedError(
                    f"{copy}: node {fetcher.node_id} of the source answered no fetch for {patience_s:.0f} s at offset"
                    f" {copy.acked}; check that broker",
                    (f"{type(error).__name__}: {error}",),
                )
            )
            self._after_trouble(copy)

    def _accept(self, fetcher: _Fetcher, answer: FetchAnswer) -> list[tuple[PartitionCopy, BatchHeader, memoryview]]:
        """Takes what each partition can append, and moves the session past it."""
        accepted = []
        now = self.clock()
        fetcher.is_behind = False
        for part in answer.partitions:
            copy = self._partitions.get(part.partition)
            if copy is None or copy.phase is not Phase.COPYING or part.partition not in fetcher.session.positions:
                continue
            if copy.first_round > fetcher.round:
                continue
            if part.error_code:
                copy.refused("fetch", part.error_code, now)
                self._after_trouble(copy)
                continue
            copy.high_watermark = part.high_watermark
            if copy.is_lease_over(now, self.limits.append_lease_ms / 1000):
                copy.trouble("the last look at the target's log is too old", now)
                self._after_trouble(copy)
                continue
            held = now < copy.hold_until or now < copy.lease_until
            try:
                for header, batch in iter_batches(part.records):
                    if copy.until is not None and header.base_offset >= copy.until and not held:
                        break
                    if copy.accept(header):
                        accepted.append((copy, header, batch))
            except (RecordBatchError, TolerantClientError) as error:
                copy.doubt(error, now)
                self._after_trouble(copy)
                continue
            if copy.until is not None and copy.position >= copy.until and not held:
                fetcher.session.forget(part.partition)
            elif len(part.records):
                fetcher.session.seek(part.partition, copy.position)
                fetcher.is_behind |= copy.is_behind
        return accepted

    def _drop_expired(self) -> None:
        """Lets go of partitions whose lease is over; looks at them once a second."""
        now = self.clock()
        if now < self._next_drop:
            return
        self._next_drop = now + 1.0
        for partition, copy in list(self._partitions.items()):
            if copy.has_reached and now > copy.lease_until > copy.hold_until:
                self._release(partition)

    # -- what the appender tells ----------------------------------------------

    def _appended(self, copies: list[PartitionCopy]) -> None:
        has_reached = False
        for copy in copies:
            if self._partitions.get(copy.partition) is not copy:
                continue
            if copy.phase is not Phase.COPYING:
                self._after_trouble(copy)
            else:
                has_reached |= copy.until is not None and copy.acked >= copy.until
        if has_reached:
            self._notify()

    def _no_leader(self, copy: PartitionCopy) -> None:
        copy.trouble("the target partition has no leader", self.clock())
        self._spawn(self.target.refresh)
        self._after_trouble(copy)

    # -- loops ----------------------------------------------------------------

    def _spawn(self, function: Callable[..., Any], *args: Any) -> None:
        async def guarded() -> None:
            try:
                await function(*args)
            except Exception as error:
                self.failure = error
                self._notify()

        self._net.call_soon(guarded)

    def _notify(self) -> None:
        for future in list(self._waiters):
            resolve(future)
