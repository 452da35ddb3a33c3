"""Which topic a consumer's positions belong to: a name does not identify one.

A topic that was deleted and created again has another id (KIP-516), and its log has other records at the same offsets.
A position that was reached in the former log is therefore not believed in the new one: it would pass over the records
below it, silently if the new log is the longer one.

Laws:
- A position belongs to the topic whose id Metadata tells, or told last before the topic went missing.  If Metadata tells
  another id, the positions of its partitions belong to the deleted topic: an event and a warning say so, the partitions
  rest, and the polling thread applies auto_offset_reset, as for a believed OffsetOutOfRange.
- A position that was set since (a seek, a reset, a committed offset) belongs to the topic that is there: it stays.
  The flag that kafka-python sets at each seek, and nobody reads, tells that; Metadata clears it.
- If the leader of a partition does not know it, its topic is not fetched before Metadata has told which topic there is.
- An id that was replaced does not come back: a broker that tells it again is behind.
- Ids belong to a cluster: if the cluster's id changes (another cluster under the same addresses), they prove nothing.
  Nor does a topic without an id (brokers before 2.8).
- Metadata comes on the event loop, which only marks; positions move in the polling thread, which decodes meanwhile.
  Work is done for each Metadata response, none for each poll or record.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.stock.out_of_range import report
from tolerant_client.tracker.events import TopicRecreated

log = logging.getLogger(__name__)


class TopicIds:
    """The ids of the topics that one fetcher reads, and its partitions that rest because of them."""

    def __init__(self, fetcher: Any) -> None:
        self._manager = fetcher._manager
        self._cluster = fetcher._manager.cluster
        self._subscriptions = fetcher._subscriptions
        self._cluster_id: Any = None
        self._ids: dict[str, Any] = {}  # of topics that exist, and the last one of assigned topics that went missing
        self._replaced: set[Any] = set()  # ids of deleted topics
        self._missing: set[str] = set()
        self._recreated: dict[TopicPartition, Any] = {}  # the states whose positions belong to a deleted topic
        self._refused: set[str] = set()  # topics that a leader does not know: they wait for Metadata
        updated = weakref.WeakMethod(self._updated)
        self._cluster.add_listener(lambda _: (update := updated()) is not None and update())
        self._updated()

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether a partition rests."""
        return tp in self._recreated or tp.topic in self._refused

    def clear(self) -> None:
        """Lets no partition rest any more."""
        self._recreated.clear()
        self._refused.clear()

    def refused(self, tp: TopicPartition, offset: int) -> None:
        """Notes that a partition is unknown to its leader, which was asked for `offset`; called by the polling thread."""
        state = self._subscriptions.assignment.get(tp)
        if state is None or state.position is None or state.position.offset != offset or tp.topic not in self._ids:
            return
        # This position was reached before the topic went missing, as were those that records led to.
        state.drop_pending_record_batch = False
        if tp.topic in self._refused:
            return
        self._refused.add(tp.topic)
        for other, state in list(self._subscriptions.assignment.items()):
            if other.topic == tp.topic and (position := state.position) is not None and position.leader_epoch >= 0:
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
                if not self._subscriptions.has_default_offset_reset_policy():
                    lost[tp] = state.position.offset
                    continue
                self._subscriptions.request_offset_reset(tp)
            self._recreated.pop(tp, None)
        if lost:
            raise Errors.OffsetOutOfRangeError(lost)

    def _updated(self) -> None:
        """Compares the ids of the Metadata response that has just come with the former ones; on the event loop."""
        if self._cluster_id != self._cluster.cluster_id:
            self._cluster_id = self._cluster.cluster_id
            self._ids.clear()
            self._replaced.clear()
        told: dict[str, Any] = {}
        for name in self._cluster.topics(exclude_internal_topics=False):
            topic_id = self._cluster.topic_id(name)
            if topic_id in self._replaced:
                topic_id = self._ids.get(name)
            if topic_id is not None and topic_id.int:  # 0: this broker has none
                told[name] = topic_id
        missing: dict[str, Any] = {}
        for tp, state in list(self._subscriptions.assignment.items()):
            former, now = self._ids.get(tp.topic), told.get(tp.topic)
            if former is not None and now is None:
                missing[tp.topic] = former
            self._judge(tp, state, former, now)
        self._replaced.update(former for name, former in self._ids.items() if told.get(name, former) != former)
        self._ids = told | missing
        self._missing = set(missing)
        self._refused.clear()

    def _judge(self, tp: TopicPartition, state: Any, former: Any, now: Any) -> None:
        is_set_since = state.drop_pending_record_batch
        if is_set_since:
            self._recreated.pop(tp, None)
        if now is None and tp.topic in self._missing:
            return  # a position that is set while the topic is missing belongs to the next one
        if former is None or now is None or now == former or is_set_since:
            state.drop_pending_record_batch = False
        elif (position := state.position) is not None and self._recreated.get(tp) is not state:
            self._recreated[tp] = state
            event = TopicRecreated("Metadata", -1, tp.topic, tp.partition, position.offset, str(former), str(now))
            log.warning("%s", self._loss(event))
            report(self._manager, event, self._cluster.leader_for_partition(tp))

    def _loss(self, event: TopicRecreated) -> str:
        what = (
            f"{event.topic}-{event.partition}: the topic was deleted and created again ({event.former_id} became"
            f" {event.topic_id}), and position {event.offset} belongs to the deleted one"
        )
        if self._subscriptions.has_default_offset_reset_policy():
            return f"{what}; auto_offset_reset decides where to resume"
        return f"{what}; there is no auto_offset_reset, so poll() raises: seek() to resume"
