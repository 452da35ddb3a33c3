"""A client moves, in place, to another cluster that has the same records at the same offsets: the target of a link.

Laws:
- Who moves a client knows that the copies are final there: the link is promoted and fenced.
- First it leaves: its connections are closed, and nothing is sent.  Once everybody who waited for the former cluster has gone on
  (bootstrap.py), one step of the event loop parts what belongs to the one from what belongs to the other.
- What the polling thread has in hand at that moment was fetched from the former cluster.  So that thread settles positions, at
  the beginning of its next poll(): before that nothing is fetched, validated or reset, and a commit is of nothing that was not copied.
- A position stays, but it is never after the end of the copies: the records that follow were not copied, and others may have
  been written there since.  What was fetched and not given out is dropped, and fetched again; an iterator ends as at a seek().
- Of a partition whose copies end nowhere as far as the link tells, no record was copied: it is read from its first record on.
- A position in a topic that was not copied belongs to nothing on the next cluster: it is reset as auto_offset_reset says.  Both
  with a warning.
- After the end of the copies both clusters have records, and they are others.  An offset there, up to which the client has read on
  the former cluster, may be of a record of that one if an application names it, whatever was read on the next one since: what is
  committed for it is the end of the copies.  Positions on the next cluster are known to be such (`consumed`).  Any other offset comes
  from none of the client's records of the former cluster, and is committed as it is named.
- A seek before that poll settles them, too, so it is one on the next cluster.  Until records of the partition were given out there,
  nobody knows of an offset after the end of the copies, up to which the client had read on the former cluster, on which it was
  found: it becomes the end of the copies.
- Leader epochs are a cluster's own: no position, fetch or commit of the next cluster names one of the former.
- A client can move again, and come back: its last move ends before the next one begins.  A consumer's ends in its poll(), and a
  member's with its join, for which the next one waits for JOINS_S at most: its cluster may be lost, too, by then.
- How a member of a group moves says moved_member.py; what becomes of a producer's records, moved_batches.py.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import kafka
from kafka.structs import OffsetAndMetadata, TopicPartition

from tolerant_client.stock.moved_batches import MovedBatches
from tolerant_client.stock.sought_batches import Find
from tolerant_client.tracker.events import Moved

log = logging.getLogger(__name__)

JOINS_S: Final = 60.0
_PAUSE_S: Final = 0.05


class OffsetThere(OffsetAndMetadata):  # type: ignore[misc]  # kafka-python is untyped
    """An offset of the cluster that `move` led to: a position there, or what is committed there for one of the former cluster."""

    move: Move


@dataclass(frozen=True)
class Destination:
    """The cluster that a client moves to: `config` (kafka-python's keys) connects to it.

    `ends` has the offsets after the last copied record; it need not have partitions without one.  `is_copied` tells whether the
    other cluster has copies of a topic at all.  `left_at` has where its logs ended when the clients left it, if they come back to it.
    `former_commits` tells what the client's group has committed on the cluster that it leaves, None until that has said so.
    `was_created_again` tells whether a topic with this id ("": unknown) is another one than that with the copies of the partition.
    """

    config: Mapping[str, Any]
    ends: Mapping[TopicPartition, int]
    is_copied: Callable[[str], bool]
    left_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    former_commits: Callable[[], Mapping[TopicPartition, int] | None] = lambda: None
    was_created_again: Callable[[TopicPartition, str], bool] = lambda partition, topic_id: False

    def end(self, partition: TopicPartition) -> int | None:
        """The offset after the last copied record; None if the other cluster has no copies of the partition."""
        return self.ends.get(partition) if self.is_copied(partition.topic) else None

    def place(self, partition: TopicPartition, offset: int) -> int | None:
        """Where the other cluster has what follows a position; None if it has no copies of the partition."""
        end = self.end(partition)
        return None if end is None else min(offset, end)

    def former_commit(self, partition: TopicPartition) -> int | None:
        """What is to be committed for the group's commit on the former cluster; None if there is none, or none is known."""
        offset = (self.former_commits() or {}).get(partition)
        return None if offset is None else self.place(partition, offset)

    def is_left_behind(self, partition: TopicPartition, committed: int) -> bool:
        """Whether the group has gone on elsewhere since it committed this on the other cluster, or may have."""
        if self.former_commits() is not None:
            former = self.former_commit(partition)
            return former is not None and committed < former
        return committed <= self.left_at.get(partition, -1) and committed < self.ends.get(partition, -1)

    def committed(self, partition: TopicPartition, offset: int, read: float) -> int | None:
        """What to commit for an offset that a moved client asks for, which is the former cluster's if it has `read` there so far.

        None: nothing can be committed.
        """
        return self.place(partition, offset) if offset <= read else offset


class Move:
    """One move of a consumer, which its parts share; `settle` ends it in the polling thread."""

    def __init__(self, to: Destination, consumer: Any) -> None:
        self.to = to
        self.is_settled = False  # positions are those of the next cluster
        self.unread_positions: Mapping[TopicPartition, OffsetAndMetadata] = {}  # from which nothing was given out
        self.may_have_read: Collection[TopicPartition] = ()  # on the former cluster
        self._consumer = weakref.ref(consumer)  # whose event loop keeps its parts alive, and so this
        self._read: Mapping[TopicPartition, int] = {}  # until where, on the former cluster

    def settle(self) -> None:
        """Drops what is of the former cluster, unless it has; in the polling thread, before it looks at positions or records."""
        consumer = self._consumer()
        if self.is_settled or consumer is None:
            return
        self._read = consumer._fetcher.settle(self.to)
        consumer._iterator = None  # its fill holds records of the former cluster
        self.is_settled = True

    async def ends(self, partitions: Collection[TopicPartition], timeout_ms: float) -> dict[TopicPartition, int]:
        """Where the logs of these end now on the next cluster; on the event loop."""
        consumer = self._consumer()
        if consumer is None or not partitions:
            return {}
        found = await consumer._fetcher._fetch_offsets_by_times_async(dict.fromkeys(partitions, -1), timeout_ms)
        return {tp: at.offset for tp, at in found.items()}

    def sought(self, tp: TopicPartition, offset: int) -> int:
        """Where a seek goes whose offset may have been found on either cluster: no record of the next one was given out."""
        if offset > self._read.get(tp, -1):
            return offset
        place = self.to.place(tp, offset)
        return offset if place is None else place

    def consumed(self, consumed: Callable[[], dict[TopicPartition, Any]]) -> dict[TopicPartition, Any]:
        """What kafka-python's `all_consumed_offsets` says, so that it is known to be of the next cluster."""
        offsets = consumed()
        if not self.is_settled:
            return offsets
        return {tp: self._there(at.offset, at.metadata, at.leader_epoch) for tp, at in offsets.items()}

    def _there(self, offset: int, metadata: str, leader_epoch: int) -> OffsetThere:
        there = OffsetThere(offset, metadata, leader_epoch)
        there.move = self
        return there

    def committed(self, tp: TopicPartition, asked: OffsetAndMetadata) -> OffsetThere | None:
        """What to commit on the next cluster."""
        is_there = isinstance(asked, OffsetThere) and asked.move is self
        at = asked.offset if is_there else self.to.committed(tp, asked.offset, self._read_until(tp))
        return None if at is None else self._there(at, asked.metadata, -1)

    def _read_until(self, tp: TopicPartition) -> float:
        """The offset until which the client may have read on the former cluster; the polling thread may go on until it settles."""
        return self._read.get(tp, -1) if self.is_settled or tp not in self.may_have_read else math.inf

    def copied(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit on the next cluster for these."""
        copied = {tp: self.committed(tp, asked) for tp, asked in offsets.items()}
        return {tp: offset for tp, offset in copied.items() if offset is not None}


def manager_of(client: Any) -> Any:
    """The connection manager of a consumer, a producer or an admin client."""
    return client._sender._client._manager if isinstance(client, kafka.KafkaProducer) else client._manager


def topics_of(client_ref: Callable[[], Any]) -> set[str]:
    """What a client is subscribed to, or assigned, or has written to, as far as it is made, and still there; from any thread."""
    client = client_ref()
    if isinstance(client, kafka.KafkaProducer):
        return set(manager_of(client).cluster._topics) if hasattr(client, "_sender") else set()
    subscription = getattr(client, "_subscription", None)
    if subscription is None:
        return set()
    return set(subscription.subscription or ()) | {tp.topic for tp in list(subscription.assignment)}


class Mover:
    """Moves one client, which it does not keep alive; `net` is the client's event loop."""

    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self.net = manager_of(client)._net
        self._settled: Any = None  # what became of a producer's records at the last move
        self.is_moving = False  # it has begun, and the client is not on its way yet

    @property
    def client(self) -> Any:
        """The client, None if it is gone."""
        return self._client()

    @property
    def is_wanted(self) -> bool:
        """Whether the client is still there, and not closed."""
        client = self._client()
        return client is not None and not manager_of(client).closed

    @property
    def cluster_id(self) -> str | None:
        """The id of the client's cluster."""
        client = self._client()
        cluster_id: str | None = None if client is None else manager_of(client).cluster.cluster_id
        return cluster_id

    def topics(self) -> set[str]:
        """As topics_of."""
        return topics_of(self._client)

    @property
    def group(self) -> str | None:
        """The group of a consumer that has one."""
        client = self._client()
        group: str | None = None if client is None else client.config.get("group_id")
        return group

    def hold_no_longer(self, find: Find) -> bool:
        """Has `acks="mirrored"` of a producer mean "all" from now on; returns False if it does; from any thread.

        `find` looks for what is held in the producer's cluster.
        """
        sender = getattr(self._client(), "_sender", None)
        if sender is None or sender.held is None:
            return False
        with contextlib.suppress(RuntimeError):  # it has just been closed
            self.net.call_soon_with_future(sender.hold_no_longer, find)
        return True

    def begin(self, to: Destination, find: Find) -> None:
        """Has it move, without waiting; from any thread.  `find` looks for a producer's records among the copies."""

        def failed(error: BaseException) -> None:
            if self.is_wanted:  # else it was closed meanwhile
                log.error("The client could not move to another cluster", exc_info=error)

        self.is_moving = True
        with contextlib.suppress(RuntimeError):  # it has just been closed
            self.net.call_soon_with_future(self.move, to, find).add_errback(failed)

    async def move(self, to: Destination, find: Find) -> None:
        """Moves it, on its event loop, without waiting for the next cluster.  A client that is closed stays."""
        joins_until = time.monotonic() + JOINS_S
        while self._has_not_ended(joins_until):
            await self.net.sleep(_PAUSE_S)
        if (client := self._client()) is None:
            return
        manager = manager_of(client)
        await manager.leave()
        sender = getattr(client, "_sender", None)
        while sender is not None and sender.has_in_flight and not manager.closed:
            await self.net.sleep(0)  # until each request has ended as its connection has
        if manager.closed:
            return
        former, servers = manager.cluster.cluster_id, to.config["bootstrap_servers"]
        moved = manager.move(to.config)
        self.is_moving = False
        if isinstance(client, kafka.KafkaConsumer):
            move = Move(to, client)
            client._fetcher.moved(move)
            client._coordinator.moved(move)
        if sender is not None and sender.is_idempotent:
            batches = MovedBatches(sender, to.end)
            self._settled = self.net.call_soon(partial(batches.settle, find))
        # api_version is what the client found out; the connections find it out anew.
        known = client.config.keys() - {"api_version"}
        client.config.update((key, value) for key, value in to.config.items() if key in known)
        log.warning("The link was promoted: the client moves from cluster %s to %s", former, servers)
        moved.add_callback(lambda _: manager.recovery_event(Moved("", -1, str(former), str(servers))))

    def _has_not_ended(self, joins_until: float) -> bool:
        """Whether the client's last move goes on: it may have positions, or records in question, of the cluster before."""
        if not self.is_wanted:
            return False
        client = self._client()
        if not isinstance(client, kafka.KafkaConsumer):
            return self._settled is not None and not self._settled.is_done
        is_joining = client._coordinator.is_moving and time.monotonic() < joins_until
        return client._fetcher.is_of_former_cluster or is_joining
