"""Which topic a consumer's positions belong to: a name does not identify one.

A topic that was deleted and created again has another id (KIP-516), and its log has other records at the same offsets.
A position that was reached in the former log is therefore not believed in the new one: it would pass over the records
below it, silently if the new log is the longer one.

Laws:
- A position belongs to the topic whose id is believed.  If Metadata tells another id, the partitions of that topic rest,
  and brokers are asked, each for itself, until two of them agree (or the only one there is, or that responds for a
  while): a broker that is behind is believed no more than one OffsetOutOfRange.  If they agree on the id that is
  believed, nothing has happened.  If they agree on another one, the positions belong to the deleted topic: an event and
  a warning say so.
- All records of the new topic come after such a position.  So it resumes at the first one, whatever auto_offset_reset
  says; without auto_offset_reset poll() raises, unless nothing had been read at all.
- A position that was set since the believed id was last told (a seek, a reset, a committed offset) belongs to the topic
  that is there: it stays.  The flag that kafka-python sets at each seek, and nobody reads, tells that.  Metadata clears
  it, and so does a fetch by id from there (Kafka 3.1): the topic that is believed was there.
- Fetches by id bring records of the believed topic only, so nothing is read twice.  Older brokers fetch by name: nothing
  shows of which topic the first records at a set position are.  They count as those of the believed one: to read the new
  one from its first record may give some twice, but loses none.
- If the leader of a partition does not know it, or its id, it is not fetched before Metadata has told which topic there is.
- Ids belong to a cluster: if the cluster's id changes (another cluster under the same addresses), they prove nothing.
  Nor does a topic without an id (brokers before 2.8).
- Metadata comes on the event loop, which only marks; positions move in the polling thread, which decodes meanwhile.
  Work is done for each Metadata response, none for each poll or record.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import kafka.errors as Errors
from kafka.protocol.consumer import OffsetResetStrategy
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.stock.out_of_range import report
from tolerant_client.stock.stock_names import Future
from tolerant_client.tracker.events import TopicRecreated

log = logging.getLogger(__name__)

_ASKED: Final = 3  # brokers at once
_BELIEVED_BY: Final = 2  # of them that agree
_ALONE_AFTER_S: Final = 1.0  # then those that respond are enough: others may be frozen, or out of this client's reach
_DISAGREE_S: Final = 10.0  # after two that contradict each other one is not enough; then it is told, too
_LONGEST_PAUSE_S: Final = 1.0
_PATIENCE_MS: Final = 1_000  # for a broker's response, beyond the time for which it may hold a fetch

_NO_ID: Final = uuid.UUID(int=0)
_Topic = MetadataRequest.MetadataRequestTopic


class AskedTopics:
    """The topics that a node was asked for by id: those of its fetch session, or of its last fetch; none if it was asked by name."""

    def __init__(self) -> None:
        self.ids: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def goes_with(self, ids: Mapping[str, Any]) -> bool:
        """Whether a session with these topics may go on with others that have these ids."""
        is_same_way = bool(ids) == bool(self.ids)
        return is_same_way and all(self.ids.get(name, topic_id) == topic_id for name, topic_id in ids.items())

    def add(self, ids: Mapping[str, Any]) -> None:
        self.ids.update(ids)
        self.names.update((topic_id, name) for name, topic_id in ids.items())


class TopicIds:
    """The ids of the topics that one fetcher reads, and its partitions that rest because of them."""

    def __init__(self, fetcher: Any) -> None:
        self._manager = fetcher._manager
        self._cluster = fetcher._manager.cluster
        self._subscriptions = fetcher._subscriptions
        self._drop_buffered = fetcher.drop_buffered
        self._pause = fetcher.config["retry_backoff_ms"] / 1000
        self._patience_ms = fetcher.config["fetch_max_wait_ms"] + _PATIENCE_MS
        self._cluster_id: Any = None
        # Believed ones: of topics that exist, and of assigned ones that went missing.
        self._ids: dict[str, Any] = {}
        self._doubted: set[str] = set()  # topics of which another id was told: they rest until brokers agree
        self._is_asking = False
        self._missing: set[str] = set()
        self._recreated: dict[TopicPartition, Any] = {}  # the states whose positions belong to a deleted topic
        self._unknown: set[TopicPartition] = set()  # to their leaders: they wait for Metadata
        updated = weakref.WeakMethod(self._updated)
        self._cluster.add_listener(lambda _: (update := updated()) is not None and update())
        self._updated()

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether a partition rests."""
        return tp in self._recreated or tp in self._unknown or tp.topic in self._doubted

    def clear(self) -> None:
        """Lets no partition rest any more."""
        self._recreated.clear()
        self._unknown.clear()
        self._doubted.clear()

    def refused(self, tp: TopicPartition, offset: int, is_by_id: bool) -> None:
        """Notes that its leader, which was asked for `offset`, does not know a partition, or the believed topic; in the polling thread."""
        state = self._subscriptions.assignment.get(tp)
        if state is None or state.position is None or state.position.offset != offset or tp.topic not in self._ids:
            return  # of a former position
        self._unknown.add(tp)
        self._cluster.request_update()  # which ends the rest
        if is_by_id:
            return  # the position may have been set in the next topic
        # This position was reached before the topic went missing, as were those that records led to.
        state.drop_pending_record_batch = False
        for other, state in list(self._subscriptions.assignment.items()):
            if other.topic == tp.topic and (position := state.position) is not None and position.leader_epoch >= 0:
                state.drop_pending_record_batch = False

    def of(self, name: str) -> Any:
        """The believed id of a topic; None if it has none."""
        return self._ids.get(name)

    def fetched(self, tp: TopicPartition, offset: int, is_by_id: bool) -> None:
        """Notes a fetch at `offset` that succeeded: of the believed topic if by id, else as it seems; in the polling thread."""
        state = self._subscriptions.assignment.get(tp)
        if state is None or state.position is None or state.position.offset != offset:
            return
        if is_by_id or (tp.topic not in self._doubted and tp.topic not in self._missing):
            state.drop_pending_record_batch = False

    def apply(self) -> None:
        """Has the positions that belong to deleted topics reset; called by the polling thread.

        Raises OffsetOutOfRangeError without auto_offset_reset, until they are sought, or no longer assigned.
        """
        if not self._recreated:
            return
        lost: dict[TopicPartition, int] = {}
        for tp, state in list(self._recreated.items()):
            is_current = self._subscriptions.assignment.get(tp) is state and state.position is not None
            if is_current and not state.drop_pending_record_batch:
                if state.position.offset and not self._subscriptions.has_default_offset_reset_policy():
                    lost[tp] = state.position.offset
                    continue
                self._subscriptions.request_offset_reset(tp, OffsetResetStrategy.EARLIEST)
            self._recreated.pop(tp, None)
        if lost:
            raise Errors.OffsetOutOfRangeError(lost)

    def _updated(self) -> None:
        """Compares the ids of the Metadata response that has just come with those believed; on the event loop."""
        if self._cluster_id != self._cluster.cluster_id:
            self._cluster_id = self._cluster.cluster_id
            self._ids.clear()
            self._doubted.clear()
        told: dict[str, Any] = {}
        for name in self._cluster.topics(exclude_internal_topics=False):
            topic_id = self._cluster.topic_id(name)
            if topic_id is not None and topic_id.int:  # 0: this broker has none
                told[name] = topic_id
        assigned = list(self._subscriptions.assignment.items())
        names = {tp.topic for tp, _ in assigned}
        known = {name: topic_id for name, topic_id in self._ids.items() if name in names}
        self._doubted &= names
        self._doubted |= {name for name in known.keys() & told.keys() if known[name] != told[name]}
        self._ids = told | {
            name: topic_id for name, topic_id in known.items() if name not in told or name in self._doubted
        }
        self._unknown.clear()
        for tp, state in assigned:
            # A position that is set while the topic is missing, or in doubt, may belong to the next one.
            if tp.topic not in self._doubted and (tp.topic in told or tp.topic not in self._missing):
                self._judge(tp, state, False)
        self._missing = names - told.keys()
        if self._doubted and not self._is_asking:
            self._is_asking = True
            self._manager.call_soon(self._settle)

    async def _settle(self) -> None:
        """Asks brokers which topics there are until no topic is in doubt; on the event loop."""
        began = time.monotonic()
        alone_from, told_at = began + _ALONE_AFTER_S, began + _DISAGREE_S
        pause = self._pause
        try:
            while True:
                told = await self._told_by_brokers()
                now = time.monotonic()
                wanted = min(_BELIEVED_BY, len(self._cluster.brokers())) if now < alone_from else 1
                for name in list(self._doubted):
                    ids = Counter(topic_ids.get(name) for topic_ids in told)
                    if len(ids) > 1:
                        alone_from = now + _DISAGREE_S  # one that is silent now has contradicted
                    if _NO_ID in ids:
                        ids = Counter({None: _BELIEVED_BY})
                    for topic_id, count in ids.items():
                        if count >= (wanted if len(ids) == 1 else _BELIEVED_BY):
                            self._believe(name, topic_id)
                if not self._doubted:
                    return
                if now >= told_at:
                    told_at = float("inf")
                    log.warning("Brokers do not agree on the ids of %s: not read until they do", sorted(self._doubted))
                await self._manager._net.sleep(pause)
                pause = min(2 * pause, max(self._pause, _LONGEST_PAUSE_S))
                self._cluster.request_update()  # brokers that are away leave it
        finally:
            self._is_asking = False

    async def _told_by_brokers(self) -> list[dict[str, Any]]:
        """The ids of the doubted topics that exist, as each of the first brokers to respond tells them."""
        nodes = [broker.node_id for broker in self._cluster.brokers()]
        responses = []
        for node_id in random.sample(nodes, min(_ASKED, len(nodes))):
            # Not by the manager's send(), which may send a request for metadata to another broker as well.
            topics = [_Topic(name=name) for name in self._doubted]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            with suppress(Errors.KafkaError):
                responses.append(self._manager.get_connection(node_id).send_request(request))
        enough = Future()

        def found() -> list[Any]:
            return [response.value for response in responses if response.is_done and response.exception is None]

        def look(_: Any = None) -> None:
            is_over = len(found()) >= _BELIEVED_BY or all(response.is_done for response in responses)
            if is_over and not enough.is_done:
                enough.success(None)

        for response in responses:
            response.add_both(look)
        look()
        with suppress(Errors.KafkaTimeoutError):
            await self._manager.wait_for(enough, self._patience_ms)
        return [
            {topic.name: topic.topic_id or _NO_ID for topic in metadata.topics if not topic.error_code}
            for metadata in found()
            if metadata.cluster_id == self._cluster_id
        ]

    def _believe(self, name: str, topic_id: Any) -> None:
        """Takes the id on which brokers agree; None: the topic is missing, or some brokers have no ids."""
        self._doubted.discard(name)
        if topic_id is None:
            return
        former, self._ids[name] = self._ids.get(name), topic_id
        if former != topic_id:
            self._drop_buffered(name)
        for tp, state in list(self._subscriptions.assignment.items()):
            if tp.topic == name and self._judge(tp, state, former is not None and former != topic_id):
                event = TopicRecreated(
                    "Metadata", -1, name, tp.partition, state.position.offset, str(former), str(topic_id)
                )
                log.warning("%s", self._loss(event))
                report(self._manager, event, self._cluster.leader_for_partition(tp))

    def _judge(self, tp: TopicPartition, state: Any, is_another: bool) -> bool:
        """Whether the position of a partition, of whose topic the id was told, turns out to belong to a deleted topic."""
        is_set_since, state.drop_pending_record_batch = state.drop_pending_record_batch, False
        if is_set_since:
            self._recreated.pop(tp, None)
        elif is_another and state.position is not None and self._recreated.get(tp) is not state:
            self._recreated[tp] = state
            return True
        return False

    def _loss(self, event: TopicRecreated) -> str:
        what = (
            f"{event.topic}-{event.partition}: the topic was deleted and created again ({event.former_id} became"
            f" {event.topic_id}), and position {event.offset} belongs to the deleted one"
        )
        if not event.offset or self._subscriptions.has_default_offset_reset_policy():
            return f"{what}; the first record of the new one comes next"
        return f"{what}; there is no auto_offset_reset, so poll() raises: seek() to resume"
