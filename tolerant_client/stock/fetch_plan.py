"""What a consumer fetches next, and when: one fetch ahead of the records that are given out.

Laws:
- At most one fetch per node is in flight.  It is sent when the last buffered response
  is begun, and asks for what follows that response: memory holds two responses per
  node, each of at most `fetch_max_bytes`.  A response is used only once the position
  has reached its first offset, so a seek in between costs one fetch and nothing else.
- A fetch that the broker may hold is not sent ahead, since every later request to the node waits for it.  While
  records of a node are buffered, the node is asked only if it responds at once, as far as is known.  A read_committed
  consumer gets no record from the last stable offset on, and nobody knows whether the rest of a log reaches
  `fetch_min_bytes`.
- Topics are asked for by id where brokers know it, so that no response is of another topic of the same name (`topic_identity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import kafka.errors as Errors
from kafka.protocol.consumer import FetchRequest
from kafka.structs import TopicPartition

from tolerant_client.stock.out_of_range import Doubts
from tolerant_client.stock.stock_names import Fetcher, FetchMetadata, FetchRequestData, FetchSessionHandler
from tolerant_client.stock.topic_identity import AskedTopics, TopicIds
from tolerant_client.tracker.rules.apis import FETCH_BY_ID_VERSION

_NO_EPOCH = -1

_Fetch = FetchRequest.FetchTopic.FetchPartition


def _drop(partitions: Iterable[Any]) -> None:
    """Makes these parts of responses refusals: their records are of another topic than is believed."""
    for part in partitions:
        part.error_code, part.records = Errors.UnknownTopicIdError.errno, b""


class PlannedFetches(Fetcher):  # type: ignore[misc]  # kafka-python is untyped
    """The part of the fetcher that asks."""

    _next_partition_records: Any

    def __init__(self, client: Any, subscriptions: Any, **configs: Any) -> None:
        super().__init__(client, subscriptions, **configs)
        self._doubts = Doubts(self)
        self._topic_ids = TopicIds(self)
        self._asked: dict[Any, AskedTopics] = {}  # by node
        self._readable_ends: dict[TopicPartition, int] = {}  # where each log ended for this reader at its last fetch
        self._is_fetch_due = False  # scheduled on the event loop, not begun yet
        self._handed_out: set[TopicPartition] = set()  # to an iterator, which moves the position record by record

    def send_fetches(self) -> Any:
        """Like kafka-python's, but does not wait for the event loop while all that can be fetched is in flight.

        Fetches that are done must leave `_fetch_futures` first, else the wait for the next record ends at once.
        """
        in_flight = list(self._fetch_futures)
        is_waiting = bool(in_flight) and not any(future.is_done for future in in_flight)
        if is_waiting and not self._is_fetch_due and not self._is_fetch_wanted():
            return in_flight
        return super().send_fetches()

    def _is_fetch_wanted(self) -> bool:
        """Whether there may be a fetch to send; for callers outside the event loop, which plans the fetch."""
        try:
            return any(self._to_fetch())
        except (KeyError, RuntimeError):
            return True  # the assignment is changing: the event loop checks again

    async def _send_fetches_async(self) -> Any:
        try:
            return await super()._send_fetches_async()
        finally:
            self._is_fetch_due = False

    def _fetchable_partitions(self) -> list[TopicPartition]:
        resting = self._handed_out
        return [tp for tp in super()._fetchable_partitions() if not self._is_in_doubt(tp) and tp not in resting]

    def _is_in_doubt(self, tp: TopicPartition) -> bool:
        return tp in self._doubts or tp in self._topic_ids

    def _to_fetch(self) -> Iterator[tuple[Any, TopicPartition, int, int]]:
        """(node id, partition, offset, epoch of the record before it) for every fetch that may be sent now."""
        positions = [(tp, self._subscriptions.position(tp)) for tp in self._fetchable_partitions()]
        wanted = [(tp, position.offset, position.leader_epoch) for tp, position in positions if position is not None]
        busy = None
        if (part := self._next_partition_records) and self._subscriptions.is_fetchable(part.topic_partition):
            busy = self._node_to_ask(part.topic_partition)
            if part.end is not None and self._is_fetchable_ahead(part.topic_partition, part.fetch_offset, part.end[0]):
                wanted.append((part.topic_partition, *part.end))
        if busy is not None and any(self._is_there(tp, at) and self._node_to_ask(tp) == busy for tp, at, _ in wanted):
            busy = None  # it responds at once
        for tp, offset, epoch in wanted:
            if (node_id := self._node_to_ask(tp)) is not None and node_id != busy:
                yield node_id, tp, offset, epoch

    def _is_fetchable_ahead(self, tp: TopicPartition, from_offset: int, end_offset: int) -> bool:
        if self._is_in_doubt(tp) or not self._subscriptions.is_fetchable(tp) or not self._is_there(tp, end_offset):
            return False
        if self.config["fetch_min_bytes"] > 1:
            return False  # nobody knows how many bytes follow
        if any(fetch.topic_partition == tp for fetch in self._completed_fetches.copy()):
            return False
        position = self._subscriptions.position(tp)
        return position is not None and from_offset <= position.offset <= end_offset

    def _is_there(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the broker responds to a fetch of that offset at once, as far as is known."""
        end = self._readable_ends.get(tp)
        return end is None or offset < end

    def _node_to_ask(self, tp: TopicPartition) -> Any:
        """The node to fetch a partition from; None where there is none, or it cannot be asked now."""
        node_id = self._select_read_replica(tp)
        if node_id is None or node_id == -1:
            self._manager.cluster.request_update()
            return None
        if (
            node_id in self._nodes_with_pending_fetch_requests
            or self._manager.connection_delay(node_id) > 0
            or self._client.throttle_delay(node_id) > 0
        ):
            return None
        return node_id

    def _create_fetch_requests(self) -> dict[Any, tuple[Any, dict[TopicPartition, int]]]:
        """{node id: (request, {partition: fetch offset})}."""
        by_node: dict[Any, dict[TopicPartition, Any]] = {}
        for node_id, tp, offset, epoch in self._to_fetch():
            current_epoch = self._manager.cluster.leader_epoch_for_partition(tp)
            by_node.setdefault(node_id, {})[tp] = _Fetch(
                partition=tp.partition,
                current_leader_epoch=_NO_EPOCH if current_epoch is None else current_epoch,
                fetch_offset=offset,
                last_fetched_epoch=epoch,
                partition_max_bytes=self.config["max_partition_fetch_bytes"],
            )
        return {
            node_id: (self._request(node_id, partitions), {tp: part.fetch_offset for tp, part in partitions.items()})
            for node_id, partitions in by_node.items()
        }

    def _request(self, node_id: Any, partitions: dict[TopicPartition, Any]) -> Any:
        ids = {name: self._topic_ids.of(name) for name in {tp.topic for tp in partitions}}
        ids = {} if None in ids.values() else ids
        asked = self._asked.setdefault(node_id, AskedTopics())
        if self._enable_incremental_fetch_sessions:
            handler = self._session_handlers.get(node_id)
            if handler is None:
                handler = self._session_handlers[node_id] = FetchSessionHandler(node_id)
            if not asked.goes_with(ids):
                handler.next_metadata = handler.next_metadata.next_close_existing()
            session = handler.build_next(partitions)
        else:
            session = FetchRequestData(partitions, None, FetchMetadata.LEGACY)
        if session.metadata.is_full:
            asked = self._asked[node_id] = AskedTopics()
        asked.add(ids)
        topics, forgotten = session.to_send, session.to_forget
        for topic in (*topics, *forgotten):
            topic.topic_id = asked.ids.get(topic.topic)
        return FetchRequest(
            max_wait_ms=self.config["fetch_max_wait_ms"],
            min_bytes=self.config["fetch_min_bytes"],
            max_bytes=self.config["fetch_max_bytes"],
            isolation_level=self._isolation_level,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id=self.config["client_rack"],
            min_version=FetchRequest.min_version_for_isolation_level(self._isolation_level),
            max_version=FETCH_BY_ID_VERSION if asked.ids else FETCH_BY_ID_VERSION - 1,
        )

    def _handle_fetch_response(self, node_id: Any, fetch_offsets: Any, send_time: float, response: Any) -> None:
        if response.API_VERSION >= FETCH_BY_ID_VERSION:
            names = self._asked[node_id].names
            response.responses = [topic for topic in response.responses if topic.topic_id in names]
            for topic in response.responses:
                topic.topic = names[topic.topic_id]
                if self._topic_ids.of(topic.topic) != topic.topic_id:
                    _drop(topic.partitions)
        super()._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def drop_buffered(self, topic: str) -> None:
        """Drops what was fetched of the former topic of this name; on the event loop."""
        buffered = [*self._completed_fetches.copy(), *self._paused_completed_fetches.copy().values()]
        _drop(fetch.partition_data for fetch in buffered if fetch.topic_partition.topic == topic)
