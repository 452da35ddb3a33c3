"""The source side of a copier: one fetch loop for each node, with an incremental fetch session.

Only what is stable is asked for (isolation level 1): the answers end at the last
stable offset and name the transactions that were aborted (M6).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import READ_COMMITTED
from tolerant_client.cluster.fetch import FetchAnswer, FetchedPartition
from tolerant_client.cluster.fetch_session import FetchSession
from tolerant_client.errors import OversizedRecordError, RecoveryExhaustedError, TolerantClientError
from tolerant_client.mirror.batches.appendable import Appendable
from tolerant_client.mirror.engine.identical.append import Appender
from tolerant_client.mirror.engine.identical.partition import PartitionCopy, Phase
from tolerant_client.mirror.engine.identical.witnesses import Witnesses
from tolerant_client.mirror.engine.strategy import CopiedLink
from tolerant_client.records.record_batch import LOG_OVERHEAD

_LENGTH_AT = 8
_LEADER_EPOCH_AT = 12  # in a record batch; byte 16 is the magic
_MAGIC_AT = 16
_LARGEST_SET = 1 << 28  # bytes; a length beyond is taken for damage
_DRY_S = 2.0

_AWAY = (Errors.KafkaConnectionError, Errors.NodeNotReadyError, Errors.RequestTimedOutError, Errors.KafkaTimeoutError)


class _Fetcher:
    """The fetch session with one source node and the rounds it has gone through."""

    def __init__(self, node_id: int, session: FetchSession, partition_max_bytes: int) -> None:
        self.node_id = node_id
        self.session = session
        self.partition_max_bytes = partition_max_bytes  # grows where a broker before 0.10.1 cuts even the first set
        self.round = 0
        self.is_behind = True  # the last answer left records on the source
        self.next_dry_watch = 0.0
        self.failing_since: float | None = None
        self.seen_at = float("-inf")  # when the last fetch was sent that was answered


class Puller:
    """Fetches what the partitions need next, and gives it to the appender.

    `partitions` is the copier's, and read only here.  `on_trouble` gets a partition
    that cannot go on as it is.
    """

    def __init__(
        self,
        link: CopiedLink,
        partitions: Mapping[TopicPartition, PartitionCopy],
        appender: Appender,
        on_trouble: Callable[[PartitionCopy], None],
    ) -> None:
        self._source = link.source
        self._partitions = partitions
        self._appender = appender
        self._limits = link.limits
        self._clock = link.clock
        self._spawn = link.tasks.spawn
        self._on_trouble = on_trouble
        self._bucket = link.bucket
        self._memory = link.memory
        self._emptiness = link.emptiness
        self._fetchers: dict[int, _Fetcher] = {}
        self.witnesses = Witnesses(link.source)

    def is_pulling(self, partition: TopicPartition) -> bool:
        return any(partition in fetcher.session.positions for fetcher in self._fetchers.values())

    def leave(self, partition: TopicPartition) -> None:
        """Stops fetching a partition."""
        for fetcher in self._fetchers.values():
            fetcher.session.forget(partition)

    async def join(self, partitions: Iterable[TopicPartition]) -> None:
        """Puts partitions into the fetch session of the node that leads them."""
        for node_id, members in (await self._source.by_leader(partitions)).items():
            fetcher = self._fetchers.get(node_id)
            is_new = fetcher is None
            if fetcher is None:
                session = await self._source.session(node_id, isolation_level=READ_COMMITTED)
                fetcher = self._fetchers[node_id] = _Fetcher(node_id, session, self._limits.partition_max_bytes)
            for partition in members:
                copy = self._partitions.get(partition)
                if copy is not None and copy.phase is Phase.COPYING:
                    copy.first_round = fetcher.round + 1
                    fetcher.session.seek(partition, copy.position)
            if is_new:
                self._spawn(self._loop, fetcher)

    # -- one node -------------------------------------------------------------

    async def _loop(self, fetcher: _Fetcher) -> None:
        answer: FetchAnswer | None = None
        try:
            while fetcher.session.positions:
                taken = self._take(fetcher, answer) if answer is not None else []
                self._watch_dry(fetcher)
                fetching = None
                if fetcher.session.positions:
                    fetching = self._source.net.call_soon_with_future(self._ask, fetcher)
                self._appender.enqueue(taken)
                if fetching is None:
                    break
                answer = await fetching
        finally:
            if self._fetchers.get(fetcher.node_id) is fetcher:
                del self._fetchers[fetcher.node_id]

    async def _ask(self, fetcher: _Fetcher) -> FetchAnswer | None:
        """The next answer of a node, once there is room for it; None after a failure."""
        limits = self._limits
        await self._memory.room(limits.fetch_max_bytes)
        while (wait_s := self._bucket.wait_s(self._clock())) > 0:
            await self._source.net.sleep(min(wait_s, 1.0))  # the rate may change
        session = fetcher.session
        for partition in session.made_anew():
            if (copy := self._partitions.get(partition)) is not None:
                self._trouble(copy, "its topic was made anew on the source")
        fetcher.round += 1
        request = session.request(
            # Behind means that the answer comes at once: a lost one is found sooner.
            max_wait_ms=10 if fetcher.is_behind else limits.fetch_wait_ms(len(session.positions)),
            max_bytes=self._bucket.answer_bytes(limits.fetch_max_bytes),
            partition_max_bytes=fetcher.partition_max_bytes,
        )
        asked_at = self._clock()
        try:
            answer = await self._source.send_fetch(fetcher.node_id, request)
        except Errors.UnsupportedVersionError:
            session.go_by_names()
            return None
        except Errors.KafkaError as error:
            session.failed()
            await self._after_failure(fetcher, error)
            return None
        if not session.answered(answer):
            await self._after_failure(fetcher, Errors.for_code(answer.error_code)())
            return None
        fetcher.failing_since = None
        self._bucket.take(sum(len(part.records) for part in answer.partitions), self._clock())
        if session.goes_by_names:
            await self._look_again(fetcher, answer)
        fetcher.seen_at = asked_at
        return answer

    async def _look_again(self, fetcher: _Fetcher, answer: FetchAnswer) -> None:
        """Believes records that came after a pause only where the source still has what was copied before (witnesses.py)."""
        unseen_s, doubted = self._clock() - fetcher.seen_at, {}
        for part in answer.partitions:
            copy = self._partitions.get(part.partition)
            if (
                copy is None
                or copy.phase is not Phase.COPYING
                or copy.position == 0
                or part.error_code
                or not len(part.records)
            ):
                continue
            if self.witnesses.doubt(part.partition, unseen_s, is_compared=copy.first_round == fetcher.round):
                doubted[part.partition] = copy
        reason = "the source does not show that its topic is still the one that was copied"
        for partition in await self.witnesses.missing(fetcher.node_id, doubted):
            if self._partitions.get(partition) is doubted[partition]:  # not released, nor adopted anew, meanwhile
                self._trouble(doubted[partition], reason)

    async def _after_failure(self, fetcher: _Fetcher, error: Exception) -> None:
        """A node that does not answer may no longer lead: its partitions are placed anew."""
        self._give_up_after(fetcher, error)
        await self._source.net.sleep(0.02 * random.uniform(0.2, 1.0))
        if not isinstance(error, _AWAY):
            return
        await self._source.refresh()
        for partition in list(fetcher.session.positions):
            if await self._source.leader(partition) != fetcher.node_id:
                copy = self._partitions.get(partition)
                if copy is not None:
                    self._trouble(copy, f"node {fetcher.node_id} no longer leads")

    def _give_up_after(self, fetcher: _Fetcher, error: Exception) -> None:
        """Stops the partitions of a node that answered no fetch for as long as the patience lasts."""
        now, patience_s = self._clock(), self._limits.patience_ms / 1000
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
            self._on_trouble(copy)

    # -- one answer -----------------------------------------------------------

    def _take(self, fetcher: _Fetcher, answer: FetchAnswer) -> list[tuple[PartitionCopy, Appendable]]:
        """What each partition can append, with the session moved past it."""
        taken: list[tuple[PartitionCopy, Appendable]] = []
        now = self._clock()
        fetcher.is_behind = False
        for part in answer.partitions:
            copy = self._partitions.get(part.partition)
            if copy is None or copy.phase is not Phase.COPYING or part.partition not in fetcher.session.positions:
                continue
            if copy.first_round > fetcher.round:
                continue
            if part.error_code:
                if getattr(Errors.for_code(part.error_code), "invalid_metadata", False):
                    self._source.manager.cluster.request_update()  # the leader, or the topic, may be another one by now
                copy.refused("fetch", part.error_code, now)
                self._on_trouble(copy)
                continue
            copy.last_stable_offset = part.last_stable_offset
            if copy.is_lease_over(now, self._limits.append_lease_ms / 1000):
                self._trouble(copy, "the last look at the target's log is too old")
                continue
            if -1 not in (epoch := _leader_epoch(part), copy.leader_epoch) and epoch != copy.leader_epoch:
                # An unclean election may have taken back what was copied: both logs are compared (KIP-101).
                copy.former_epoch, copy.leader_epoch = copy.leader_epoch, -1
                self._trouble(copy, "the source has a new leader epoch")
                continue
            if copy.is_held_back:
                copy.was_held_back = True  # until all that waits has gone out
                fetcher.session.forget(part.partition)
                continue
            until = None if now < copy.hold_until or now < copy.lease_until else copy.until
            try:
                taken += [(copy, item) for item in copy.take(part, until, int(time.time() * 1000))]
            except OversizedRecordError as error:
                copy.too_large = error.at(str(copy))  # what that leads to is decided when the place has been read again
                self._trouble(copy, str(error))
                continue
            except TolerantClientError as error:
                copy.doubt(error, now)
                self._on_trouble(copy)
                continue
            if fetcher.session.goes_by_names:
                self.witnesses.saw(part)
            if until is not None and copy.position >= until:
                fetcher.session.forget(part.partition)
            elif len(part.records):
                fetcher.partition_max_bytes = max(fetcher.partition_max_bytes, min(_first_size(part), _LARGEST_SET))
                fetcher.session.seek(part.partition, copy.position)
                fetcher.is_behind |= copy.is_behind
                copy.dry_since = None
        return taken

    def _trouble(self, copy: PartitionCopy, reason: str) -> None:
        copy.trouble(reason, self._clock())
        self._on_trouble(copy)

    def _watch_dry(self, fetcher: _Fetcher) -> None:
        """The cleaner may have left nothing between a position and the last stable offset: that is a gap, too.

        Looked for once a second: a broker leaves partitions with nothing new out of the answers of a session.
        """
        now = self._clock()
        if now < fetcher.next_dry_watch:
            return
        fetcher.next_dry_watch = now + _DRY_S / 2
        for partition in fetcher.session.positions:
            copy = self._partitions.get(partition)
            if copy is None or copy.phase is not Phase.COPYING or not copy.is_behind or copy.queue or copy.in_flight:
                continue
            if copy.dry_since is None:
                copy.dry_since = now
            elif now - copy.dry_since > _DRY_S:
                copy.dry_since = now
                self._spawn(self._end_dry, copy, copy.position, copy.last_stable_offset)

    async def _end_dry(self, copy: PartitionCopy, position: int, stable: int) -> None:
        """Goes over offsets without records, where the source has none and nothing has come since."""

        def is_dry() -> bool:
            is_copied = self._partitions.get(copy.partition) is copy and copy.phase is Phase.COPYING
            return is_copied and copy.position == position and not copy.queue and not copy.in_flight

        if not await self._emptiness.has_no_records(copy.partition, position, stable, is_dry):
            return
        self._appender.enqueue([(copy, item) for item in copy.leave_out(stable, int(time.time() * 1000))])
        if copy.phase is Phase.COPYING:
            self.leave(copy.partition)
            await self.join([copy.partition])


def _first_size(part: FetchedPartition) -> int:
    """The bytes of the first batch or message, whether or not all of it came."""
    if len(part.records) < LOG_OVERHEAD:
        return 0
    return LOG_OVERHEAD + int.from_bytes(part.records[_LENGTH_AT:LOG_OVERHEAD], "big", signed=True)


def _leader_epoch(part: FetchedPartition) -> int:
    """That of the first batch; -1 without one, and for message sets."""
    if len(part.records) <= _MAGIC_AT or part.records[_MAGIC_AT] < 2:
        return -1
    return int.from_bytes(part.records[_LEADER_EPOCH_AT : _LEADER_EPOCH_AT + 4], "big", signed=True)
