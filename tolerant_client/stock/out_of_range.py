"""Checks an OffsetOutOfRange: the error alone is never believed (incident 2, KAFKA-2477).

What happened in the incident, as a race:
1. A fetch at the very end of the log is checked against the log end.
2. The log grows; the response is still OffsetOutOfRange.
3. The reader resets its position although the offset is valid, and reads, or copies, everything again.

So a refused partition rests for a moment, and then the leader is asked for the
range: earliest and latest offset, and the end of the position's leader epoch
(KIP-320).  Within the range, the position stays and is fetched again.  Outside
it in two checks in a row, kafka-python gets the refusal and applies the user's
auto_offset_reset, and the loss is logged.  Where no leader responds, nothing is
decided.  Each leader is checked by itself: one that hangs holds up no other, and
once another broker leads its partitions, that broker is asked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors as Errors
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetForLeaderEpochRequest, OffsetSpec
from kafka.structs import TopicPartition

from tolerant_client.tracker.events import Event, OffsetOutOfRange

log = logging.getLogger(__name__)

BELIEVED_AFTER: Final = 2  # checks in a row

_ListOffsets = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_LeaderEpoch = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition


def report(manager: Any, event: Event, node_id: Any = None) -> None:
    """Has a tolerant connection manager count and report an event; a manager of the user's own gets nothing."""
    tell = getattr(manager, "recovery_event", None)
    if tell is not None:
        tell(event, node_id)


def report_truncations(manager: Any, checked: list[tuple[TopicPartition, Any, Any]], raised: dict[Any, Any]) -> None:
    """Tells the truncations among the positions that OffsetForLeaderEpoch has checked (KIP-320); on the event loop.

    `checked` are (partition, its state, the position that was checked); kafka-python raises LogTruncationError for those
    in `raised`, and has moved the others.
    """
    for tp, state, position in checked:
        now = raised[tp] if tp in raised else state.position
        if now is not None and now.offset >= position.offset:
            continue
        # Not the position that somebody sought: it still belongs to the topic in which it was reached (`topic_identity`).
        state.drop_pending_record_batch = False
        if tp not in raised:
            where = "auto_offset_reset decides where to resume" if now is None else f"resuming at {now.offset}"
            log.warning("%s: the log was truncated below position %d; %s", _name(tp), position.offset, where)
        end = -1 if now is None else now.offset
        event = OffsetOutOfRange("OffsetForLeaderEpoch", -1, tp.topic, tp.partition, position.offset, -1, end, True)
        report(manager, event, manager.cluster.leader_for_partition(tp))


@dataclass
class _Doubt:
    """One refused fetch; `looks` counts the checks in a row whose range did not hold its offset."""

    refusal: Any
    leader_epoch: int
    looks: int = 0

    @property
    def offset(self) -> int:
        return int(self.refusal.fetched_offset)


class Doubts:
    """The refused partitions of one fetcher; they are not fetched while they are in it."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher
        self._manager = fetcher._manager
        self._subscriptions = fetcher._subscriptions
        self._pause = fetcher.config["retry_backoff_ms"] / 1000
        self._patience = fetcher.config["request_timeout_ms"]
        self._open: dict[TopicPartition, _Doubt] = {}
        self._believed: dict[TopicPartition, Any] = {}  # refusals on their way to kafka-python
        self._truncated: dict[TopicPartition, Any] = {}  # what one response says of positions that it calls truncated
        self._is_watching = False
        self._looking: set[Any] = set()  # the leaders that are being asked

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._open

    def clear(self) -> None:
        """Forgets everything."""
        self._open.clear()
        self._believed.clear()
        self._truncated.clear()

    def is_believed(self, refusal: Any) -> bool:
        """True for a refusal that the checks have confirmed."""
        return self._believed.pop(refusal.topic_partition, None) is refusal

    def repeat_truncations(self, response: Any, positions: dict[TopicPartition, Any]) -> None:
        """Makes a truncation that OffsetForLeaderEpoch tells of a position for the first time an error that it repeats."""
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic, part.partition)
                position = positions.get(tp)
                if position is None or part.error_code:
                    continue
                known, told = self._truncated.pop(tp, None), (position, part.leader_epoch, part.end_offset)
                is_truncated = part.leader_epoch in (None, -1) or part.end_offset < position.offset
                if is_truncated and known != told:
                    self._truncated[tp] = told
                    part.error_code = Errors.NotLeaderForPartitionError.errno

    def look_into(self, refusal: Any) -> None:
        """Takes a refused fetch (a CompletedFetch) at the current position; called by the polling thread."""
        tp = refusal.topic_partition
        self._open[tp] = _Doubt(refusal, self._subscriptions.position(tp).leader_epoch)
        self._manager.cluster.request_update()  # the log may be that of another topic (topic_identity.py)
        self._manager.call_soon(self._watch)

    async def _watch(self) -> None:
        """Checks all refused partitions with their leaders, each leader by itself, until none is left."""
        if self._is_watching:
            return
        self._is_watching = True
        try:
            while self._open:
                await self._manager._net.sleep(self._pause)
                for node_id, asked in self._by_leader().items():
                    if node_id not in self._looking:
                        self._looking.add(node_id)
                        self._manager.call_soon(self._look, node_id, asked)
        finally:
            self._open.clear()
            self._is_watching = False

    async def _look(self, node_id: Any, asked: dict[TopicPartition, _Doubt]) -> None:
        """Checks the refused partitions of one leader together, with one request of each kind."""
        try:
            for tp, (earliest, latest, epoch_end) in (await self._ranges(node_id, asked)).items():
                self._judge(tp, asked[tp], earliest, latest, epoch_end)
        except (Errors.RetriableError, Errors.KafkaTimeoutError) as error:
            log.info("Cannot look up the offsets of %s yet: %s", ", ".join(map(_name, asked)), error)
            self._manager.cluster.request_update()
        except Exception as error:
            # A missing permission, for example: the next fetch meets it too, and raises it.
            log.warning("Cannot look up the offsets of %s: %s", ", ".join(map(_name, asked)), error)
            for tp, doubt in asked.items():
                if self._open.get(tp) is doubt:
                    del self._open[tp]
        finally:
            self._looking.discard(node_id)

    def _by_leader(self) -> dict[Any, dict[TopicPartition, _Doubt]]:
        by_leader: dict[Any, dict[TopicPartition, _Doubt]] = {}
        for tp, doubt in self._open.copy().items():
            if not self._is_current(tp, doubt):
                continue
            node_id = self._manager.cluster.leader_for_partition(tp)
            if node_id is None or node_id == -1:
                self._manager.cluster.request_update()
            else:
                by_leader.setdefault(node_id, {})[tp] = doubt
        return by_leader

    def _is_current(self, tp: TopicPartition, doubt: _Doubt) -> bool:
        """False, and forgotten, once the partition was revoked or somebody else moved its position."""
        state = self._subscriptions.assignment.get(tp)
        if state is not None and state.position is not None and state.position.offset == doubt.offset:
            return self._open.get(tp) is doubt
        self._open.pop(tp, None)
        return False

    def _judge(self, tp: TopicPartition, doubt: _Doubt, earliest: int, latest: int, epoch_end: int | None) -> None:
        if not self._is_current(tp, doubt):
            return
        offset = doubt.offset
        is_inside = earliest <= offset <= max(latest, -1 if epoch_end is None else epoch_end)
        doubt.looks = 0 if is_inside else doubt.looks + 1
        if not is_inside and doubt.looks < BELIEVED_AFTER:
            return
        event = OffsetOutOfRange("Fetch", -1, tp.topic, tp.partition, offset, earliest, latest, not is_inside)
        if is_inside:
            span = f"[{earliest}, {latest}]"
            log.info("%s: OffsetOutOfRange at %d, which is within %s: fetching again", _name(tp), offset, span)
        else:
            log.warning("%s", self._loss(event))
            # kafka-python applies the policy to the refusal, in the polling thread.
            self._believed[tp] = doubt.refusal
            self._fetcher._completed_fetches.append(doubt.refusal)
        del self._open[tp]
        report(self._manager, event, self._manager.cluster.leader_for_partition(tp))

    def _loss(self, event: OffsetOutOfRange) -> str:
        span = f"[{event.earliest}, {event.latest}]"
        where = f"{event.topic}-{event.partition}: position {event.offset} is out of range {span}"
        if event.offset < event.earliest:
            lost = f"{event.earliest - event.offset} offsets were deleted before they were read"
        else:
            lost = f"the log lost at least {event.offset - event.latest} offsets below the position"
        if self._subscriptions.has_default_offset_reset_policy():
            return f"{where}: {lost}; auto_offset_reset decides where to resume"
        return f"{where}: {lost}; there is no auto_offset_reset, so poll() raises: seek() to resume"

    # -- asking the leaders ---------------------------------------------------

    async def _ranges(
        self, node_id: Any, asked: dict[TopicPartition, _Doubt]
    ) -> dict[TopicPartition, tuple[int, int, int | None]]:
        """(earliest, latest, end of the position's leader epoch or None) of each partition that could be looked up."""
        earliest = await self._list_offsets(node_id, asked, OffsetSpec.EARLIEST)
        latest = await self._list_offsets(node_id, asked, OffsetSpec.LATEST)
        above = {tp: d for tp, d in asked.items() if d.leader_epoch >= 0 and d.offset > latest.get(tp, d.offset)}
        ends = await self._epoch_ends(node_id, above)
        return {tp: (earliest[tp], latest[tp], ends.get(tp)) for tp in asked if tp in earliest and tp in latest}

    async def _list_offsets(self, node_id: Any, asked: Any, spec: Any) -> dict[TopicPartition, int]:
        """Offsets as read_uncommitted sees them: a position may be beyond the last stable offset."""
        by_topic: dict[str, list[Any]] = {}
        for tp in asked:
            partition = _ListOffsets(partition_index=tp.partition, current_leader_epoch=-1, timestamp=spec)
            by_topic.setdefault(tp.topic, []).append(partition)
        request = ListOffsetsRequest(
            isolation_level=IsolationLevel.READ_UNCOMMITTED, topics=list(by_topic.items()), min_version=0
        )
        response = await self._manager.wait_for(self._manager.send(request, node_id=node_id), self._patience)
        offsets, retry = self._fetcher._handle_list_offsets_response(response)
        if retry:
            self._manager.cluster.request_update()
        return {tp: found.offset for tp, found in offsets.items()}

    async def _epoch_ends(self, node_id: Any, asked: dict[TopicPartition, _Doubt]) -> dict[TopicPartition, int]:
        """The end of each position's leader epoch in the leader's log; empty from brokers that cannot tell."""
        if not asked:
            return {}
        by_topic: dict[str, list[Any]] = {}
        for tp, doubt in asked.items():
            partition = _LeaderEpoch(partition=tp.partition, current_leader_epoch=-1, leader_epoch=doubt.leader_epoch)
            by_topic.setdefault(tp.topic, []).append(partition)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(by_topic.items()))
        try:
            response = await self._manager.wait_for(self._manager.send(request, node_id=node_id), self._patience)
        except (Errors.IncompatibleBrokerVersion, Errors.UnsupportedVersionError):
            return {}
        return {
            TopicPartition(topic.topic, part.partition): part.end_offset
            for topic in response.topics
            for part in topic.partitions
            if part.error_code == 0 and part.end_offset >= 0
        }


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"
