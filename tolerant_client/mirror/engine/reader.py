"""The source side of a copier: one fetch loop for each node, with an incremental fetch session.

Fetches use isolation level 1 (read_committed): responses end at the last stable offset and name the aborted transactions
(M6).

Laws:
- A response is dropped if its fetch began elsewhere than at the partition's position, or in another topic than the one in
  which the position was read.
- A response is taken in steps (law G of batches/appendable.py), and the event loop turns whenever they have taken _TURN_S: the
  claims on the target's partitions, and the target's responses, wait no longer, whatever a response holds.  What was taken is
  enqueued before each turn, so `position` is right whenever others run; if they move it, or have the partition leave or join
  anew, the rest of the response is dropped.
- A partition of which enough is waiting stays out of the session until less is.
- Offsets without records are skipped once the source has shown none there for some time, and fetches of the partition alone
  have shown none either (emptiness.py).  Under a quota (KIP-219) each other partition of the session has its turn before:
  a response that throttles shows nothing, and what a fetch of one partition alone returns is dropped at the cost of all.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_COMMITTED
from tolerant_client.cluster.event_loop import WakeupNotifier
from tolerant_client.cluster.fetch import FetchedPartition, FetchResult, RawFetch
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.cluster.patience import QUOTA_S
from tolerant_client.errors import RecoveryExhaustedError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.batches.divergence import first_size
from tolerant_client.mirror.engine.copied_partition import CopiedPartition
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.mirror.engine.witnesses import Witnesses

_LARGEST_SET = 1 << 28  # bytes; a greater length is taken for damage
_DRY_S = 2.0
_TURN_S = 0.02
_IDLE_S = 1.0  # wait of a loop whose partitions are all full

_AWAY = (Errors.KafkaConnectionError, Errors.NodeNotReadyError, Errors.RequestTimedOutError, Errors.KafkaTimeoutError)

C = TypeVar("C", bound=CopiedPartition)


class _Fetcher:
    """The fetch session with one source node, and its round number."""

    def __init__(self, node_id: int, session: FetchSession, partition_max_bytes: int, wakeup: WakeupNotifier) -> None:
        self.node_id = node_id
        self.session = session
        self.partition_max_bytes = partition_max_bytes  # grows where a broker before 0.10.1 cuts even the first set
        self.wakeup = wakeup
        self.turned_at = float("-inf")  # when the event loop last turned while a response was taken
        self.full: set[TopicPartition] = set()  # left out until less of them waits
        self.round = 0
        self.is_behind = True  # the last response left records on the source
        self.next_dry_watch = 0.0
        self.turns = 0  # responses that did not throttle
        self.throttled_at = float("-inf")
        self.failing_since: float | None = None
        self.seen_at = float("-inf")  # when the last fetch that succeeded was sent


class Reader(Generic[C]):
    """Fetches what the partitions need next.

    `partitions` is the strategy's; the reader never changes it.  `accept` returns what a partition takes of its part of a
    response, up to an offset, step by step, and moves its position; `enqueue` gets what all partitions took, before the loop
    turns and, at the end of a response, after the next fetch was started.  `on_trouble` gets a partition that cannot continue as it is.
    """

    def __init__(
        self,
        link: CopiedLink,
        partitions: Mapping[TopicPartition, C],
        accept: Callable[[C, FetchedPartition, int | None], Iterator[list[Appendable]]],
        enqueue: Callable[[list[tuple[C, Appendable]]], None],
        on_trouble: Callable[[C], None],
        witnesses: Witnesses | None = None,
    ) -> None:
        self._source = link.source
        self._limits = link.limits
        self._clock = link.clock
        self._spawn = link.tasks.spawn
        self._bucket = link.bucket
        self._memory = link.memory
        self._emptiness = link.emptiness
        self._partitions = partitions
        self._accept = accept
        self._enqueue = enqueue
        self._on_trouble = on_trouble
        self._witnesses = witnesses
        self._fetchers: dict[int, _Fetcher] = {}

    def is_reading(self, partition: TopicPartition) -> bool:
        """Whether it is in a fetch session now."""
        return any(partition in fetcher.session.positions for fetcher in self._fetchers.values())

    def leave(self, partition: TopicPartition) -> None:
        """Stops fetching a partition."""
        for fetcher in self._fetchers.values():
            fetcher.session.forget(partition)
            if partition in fetcher.full:
                fetcher.full.discard(partition)
                fetcher.wakeup.notify()

    def rejoin(self, copy: C) -> None:
        """Fetches a partition again that was left out because it was full."""
        if copy.was_full:
            copy.was_full = False
            self._spawn(self.try_join, [copy.partition])

    async def try_join(self, partitions: Iterable[TopicPartition]) -> None:
        """Like `join`, but a partition whose leader is not found gets trouble, and delays no other."""
        members = list(partitions)
        if len(members) > 1:
            leaderless = {p for p in members if self._source.known_leader(p) is None}
            members = [p for p in members if p not in leaderless]
            for partition in leaderless:
                self._spawn(self.try_join, [partition])
        try:
            await self.join(members)
        except Errors.KafkaError as error:
            for partition in members:
                if (copy := self._partitions.get(partition)) is not None:
                    self._trouble(copy, f"the source's leader was not found: {error}")

    async def join(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions to the fetch session of their leader.  Raises KafkaError."""
        for node_id, members in (await self._source.by_leader(partitions)).items():
            fetcher = self._fetchers.get(node_id)
            is_new = fetcher is None
            if fetcher is None:
                session = await self._source.session(node_id, isolation_level=READ_COMMITTED)
                wakeup = WakeupNotifier(self._source.net)
                fetcher = self._fetchers[node_id] = _Fetcher(node_id, session, self._limits.partition_max_bytes, wakeup)
            for partition in members:
                copy = self._partitions.get(partition)
                if copy is not None and copy.is_read:
                    self.leave(partition)
                    copy.was_full = False
                    copy.dry_since = None  # this node's responses count
                    copy.first_round = fetcher.round + 1
                    fetcher.session.seek(partition, copy.position)
            fetcher.wakeup.notify()
            if is_new:
                self._spawn(self._loop, fetcher)

    # -- one node -------------------------------------------------------------

    async def _loop(self, fetcher: _Fetcher) -> None:
        response: FetchResult | None = None
        try:
            while fetcher.session.positions or fetcher.full:
                taken = await self._take(fetcher, response) if response is not None else []
                self._watch_dry(fetcher)
                fetching = None
                if fetcher.session.positions:
                    fetching = self._source.net.call_soon_with_future(self._ask, fetcher)
                self._enqueue(taken)
                if fetching is not None:
                    response = await fetching
                else:
                    response = None
                    await fetcher.wakeup(_IDLE_S)
        finally:
            if self._fetchers.get(fetcher.node_id) is fetcher:
                del self._fetchers[fetcher.node_id]

    async def _ask(self, fetcher: _Fetcher) -> FetchResult | None:
        """The node's next response, once there is room for it; None after a failure."""
        limits = self._limits
        await self._memory.room(limits.fetch_max_bytes)
        while (wait_s := self._bucket.wait_s(self._clock())) > 0:
            await self._source.net.sleep(min(wait_s, 1.0))  # the rate may change
        session = fetcher.session
        for partition in session.created_again():
            if (copy := self._partitions.get(partition)) is not None:
                self._trouble(copy, "its topic was created again on the source")
        fetcher.round += 1
        request = session.request(
            # With more to read a response comes at once, so a lost one is found sooner.  Full partitions must not wait to rejoin.
            max_wait_ms=10 if fetcher.is_behind or fetcher.full else limits.fetch_wait_ms(len(session.positions)),
            max_bytes=self._bucket.response_bytes(limits.fetch_max_bytes),
            partition_max_bytes=fetcher.partition_max_bytes,
        )
        self._require_ids(request)
        asked_at = self._clock()
        try:
            response = await self._source.send_fetch(fetcher.node_id, request)
        except Errors.UnsupportedVersionError:
            session.go_by_names()
            return None
        except Errors.KafkaError as error:
            session.failed()
            if isinstance(error, _AWAY):
                self._suspect(fetcher)
            await self._after_failure(fetcher, error)
            return None
        if not session.answered(response):
            self._suspect(fetcher)
            await self._after_failure(fetcher, Errors.for_code(response.error_code)())
            return None
        fetcher.failing_since = None
        self._bucket.take(sum(len(part.records) for part in response.partitions), self._clock())
        if self._witnesses is not None:
            await self._look_again(fetcher, response, self._witnesses)
        fetcher.seen_at = asked_at
        return response

    def _require_ids(self, request: RawFetch) -> None:
        """Removes partitions whose position was read in another topic than the request names; their part is dropped."""
        if not request.topic_ids:
            return
        for partition in request.positions:
            copy = self._partitions.get(partition)
            if copy is not None and copy.source_id not in (None, request.topic_ids[partition.topic]):
                self._source.manager.cluster.request_update()
                self._trouble(copy, "its topic was created again on the source")

    def _suspect(self, fetcher: _Fetcher) -> None:
        """Marks the node's partitions: a node that was away may come back with other logs."""
        if self._witnesses is not None:
            self._witnesses.suspect((*fetcher.session.positions, *fetcher.full))

    async def _look_again(self, fetcher: _Fetcher, response: FetchResult, witnesses: Witnesses) -> None:
        """After a pause or a failure, believes records only if the source still has what was copied (witnesses.py)."""
        unseen_s, doubted = self._clock() - fetcher.seen_at, {}
        for part in response.partitions:
            copy = self._partitions.get(part.partition)
            if copy is None or not copy.is_read or copy.position == 0 or part.error_code or not len(part.records):
                continue
            is_compared, is_named = copy.first_round == fetcher.round, fetcher.session.goes_by_names
            if witnesses.doubt(part.partition, unseen_s, is_compared=is_compared, is_named=is_named):
                doubted[part.partition] = copy
        if not doubted:
            return
        reason = "the source does not show that its log is still the one that was copied"
        for partition in await witnesses.missing(fetcher.node_id, doubted):
            if self._partitions.get(partition) is doubted[partition]:  # not released, nor adopted again, meanwhile
                self._trouble(doubted[partition], reason)

    async def _after_failure(self, fetcher: _Fetcher, error: Exception) -> None:
        """A node that does not respond may no longer lead: its partitions are moved to their new leaders."""
        self._give_up_after(fetcher, error)
        await self._source.net.sleep(0.02 * random.uniform(0.2, 1.0))
        if not isinstance(error, _AWAY):
            return
        with contextlib.suppress(Errors.KafkaError):  # the node may still lead; the loop asks it again
            await self._source.refresh()
        for partition in list(fetcher.session.positions):
            copy = self._partitions.get(partition)
            if copy is not None and self._source.known_leader(partition) != fetcher.node_id:
                self._trouble(copy, f"node {fetcher.node_id} no longer leads")

    def _give_up_after(self, fetcher: _Fetcher, error: Exception) -> None:
        """Stops the partitions of a node that answered no fetch for longer than the patience."""
        now, patience_s = self._clock(), self._limits.patience_ms / 1000
        if fetcher.failing_since is None:
            fetcher.failing_since = now
        if now - fetcher.failing_since <= patience_s:
            return
        for copy in [c for p in fetcher.session.positions if (c := self._partitions.get(p)) is not None]:
            copy.stop(
                RecoveryExhaustedError(
                    f"{copy}: node {fetcher.node_id} of the source responded to no fetch for {patience_s:.0f} s at offset"
                    f" {copy.acked}; check that broker",
                    (f"{type(error).__name__}: {error}",),
                )
            )
            self._on_trouble(copy)

    # -- one response ---------------------------------------------------------

    async def _take(self, fetcher: _Fetcher, response: FetchResult) -> list[tuple[C, Appendable]]:
        """Has each partition take its part of a response, and moves the session past it; returns what is not enqueued yet."""
        taken: list[tuple[C, Appendable]] = []
        session, now = fetcher.session, self._clock()
        fetcher.turned_at = now
        if response.throttle_time_ms:
            fetcher.throttled_at = now
        else:
            fetcher.turns += 1
        fetcher.is_behind = False
        for part in response.partitions:
            copy = self._partitions.get(part.partition)
            if copy is None or not self._is_awaited(fetcher, copy, copy.position):
                continue
            if part.error_code and getattr(Errors.for_code(part.error_code), "invalid_metadata", False):
                self._source.manager.cluster.request_update()  # the leader, or the topic, may have changed
            if copy.is_full and not part.error_code:
                self._leave_out(fetcher, copy)
                continue
            if not await self._take_part(fetcher, copy, part, self._until(copy), taken):
                continue
            until = self._until(copy)  # a lease that was renewed between two steps has moved it
            if until is not None and copy.position >= until:
                session.forget(part.partition)
            elif len(part.records):
                size = min(first_size(part.records), _LARGEST_SET)
                fetcher.partition_max_bytes = max(fetcher.partition_max_bytes, size)
                session.seek(part.partition, copy.position)
                fetcher.is_behind |= copy.is_behind
                copy.dry_since = None
                if copy.is_full:
                    self._leave_out(fetcher, copy)
        return taken

    def _until(self, copy: C) -> int | None:
        return None if copy.is_held(self._clock()) else copy.until

    async def _take_part(
        self, fetcher: _Fetcher, copy: C, part: FetchedPartition, until: int | None, taken: list[tuple[C, Appendable]]
    ) -> bool:
        """Adds what a partition takes to `taken`, which is enqueued before each turn; False if it does not read on from there."""
        began_at, is_seen = copy.position, False
        for items in self._accept(copy, part, until):
            if copy.position > began_at and not is_seen and self._witnesses is not None:
                self._witnesses.saw(part)  # nothing of it is stamped yet
                is_seen = True
            taken += [(copy, item) for item in items]
            if self._clock() - fetcher.turned_at < _TURN_S:
                continue
            position = copy.position
            self._enqueue(taken)
            taken.clear()
            await self._source.net.sleep(0)
            fetcher.turned_at = self._clock()
            if not self._is_awaited(fetcher, copy, position):
                return False
        if not copy.is_read:
            self._on_trouble(copy)
        return copy.is_read

    def _is_awaited(self, fetcher: _Fetcher, copy: C, position: int) -> bool:
        """Whether the partition reads from `position`, in this session, what was asked for in its present round."""
        is_same = self._partitions.get(copy.partition) is copy and copy.is_read and copy.position == position
        return is_same and copy.partition in fetcher.session.positions and copy.first_round <= fetcher.round

    def _leave_out(self, fetcher: _Fetcher, copy: C) -> None:
        """Stops fetching a partition until `rejoin`."""
        copy.was_full = True
        fetcher.session.forget(copy.partition)
        fetcher.full.add(copy.partition)

    def _trouble(self, copy: C, reason: str) -> None:
        copy.trouble(reason, self._clock())
        self._on_trouble(copy)

    def _watch_dry(self, fetcher: _Fetcher) -> None:
        """Finds gaps that the cleaner left between the position and the last stable offset, with no records after them.

        Runs once a second: in a fetch session brokers leave partitions with nothing new out of their responses.
        """
        now = self._clock()
        if now < fetcher.next_dry_watch:
            return
        fetcher.next_dry_watch = now + _DRY_S / 2
        turns = len(fetcher.session.positions) if now - fetcher.throttled_at < QUOTA_S else 0
        for partition in fetcher.session.positions:
            copy = self._partitions.get(partition)
            if copy is None or not copy.is_read or not copy.is_behind or copy.has_work:
                continue
            if copy.dry_since is not None:
                if now - copy.dry_since <= _DRY_S or fetcher.turns - copy.dry_turns < turns:
                    continue
                self._spawn(self._end_dry, copy, copy.position, copy.last_stable_offset)
            copy.dry_since, copy.dry_turns = now, fetcher.turns

    async def _end_dry(self, copy: C, position: int, stable: int) -> None:
        """Skips offsets without records, if the source confirms that there are none and nothing has arrived since."""

        def is_dry() -> bool:
            is_copied = self._partitions.get(copy.partition) is copy and copy.is_read
            return is_copied and copy.position == position and not copy.has_work

        if not await self._emptiness.has_no_records(copy.partition, position, stable, is_dry):
            return
        self._enqueue([(copy, item) for item in copy.leave_out(stable, int(time.time() * 1000))])
        if copy.is_read:
            self.leave(copy.partition)
            await self.try_join([copy.partition])
