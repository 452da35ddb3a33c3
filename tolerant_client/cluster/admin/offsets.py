"""Offsets of one cluster's logs: their ends, for clients and for leaders, and what leaders say of times and epochs.

Laws:
- In functions that return LedOffsets or Untold, no partition waits for another: `Cluster.list_offsets` returns all offsets
  or none; here what cannot be asked, or is not told, is reported for its partition alone.  While its ISR is too small after
  a crash a leader has no high watermark to tell (OffsetNotAvailable), but it tells those of its other partitions.
- The position to append at is the end of all that the leader has.  For clients a log ends at the high watermark; what the
  leader has beyond it is replicated later.  An append at the high watermark may append the same once more: a broker
  recognises our repeat only while it remembers the producer, and that of a bare marker never.
- So a position is believed only where both ends are the same.  Elsewhere it is looked up again: a follower reaches the
  leader's end, or leaves the ISR (replica.lag.time.max.ms), or an election drops what the new leader does not have.
- A comparison needs no position to append at: the high watermark is enough for it (resume_point.py).
- The high watermark is asked for first, and only the leader tells it: so by then it is known who leads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.ask_nodes import LATE_S, SILENT_S, ask_leaders, insist_on_leaders
from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.cluster import DEBUGGING_REPLICA, EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED, Cluster
from tolerant_client.cluster.patience import BELIEVED_AFTER, Backoff, Patience
from tolerant_client.errors import TolerantClientError

_LOOKS, _PAUSES = 20, Backoff(0.002, 0.5)  # 6.5 s in total
_EPOCHS_FOR_CLIENTS = 2  # older versions are for brokers only (ClusterAction)
_LIST_MAX_TIMESTAMP = 7


class LedOffsets(NamedTuple):
    """Offsets of the partitions that could be asked, and why each of the others could not."""

    offsets: dict[TopicPartition, int]
    left_out: dict[TopicPartition, str]

    def without(self, why: Mapping[TopicPartition, str]) -> LedOffsets:
        """These offsets without the partitions that are left out for another reason."""
        return LedOffsets({p: at for p, at in self.offsets.items() if p not in why}, {**self.left_out, **why})


class LogOffsets(NamedTuple):
    """A log's start, last stable offset and high watermark, in this order also by value."""

    start: int
    last_stable: int
    high_watermark: int


async def log_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffsets]:
    """The offsets of all these logs, or an error of `Cluster.list_offsets`."""
    wanted = dict.fromkeys(partitions, LATEST)
    high = await cluster.list_offsets(wanted)
    stable = await cluster.list_offsets(wanted, isolation_level=READ_COMMITTED)
    start = await cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
    return {p: _log_offsets(start[p], stable[p], high[p]) for p in wanted}


async def list_led_log_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], patience_ms: int = 0
) -> tuple[dict[TopicPartition, LogOffsets], dict[TopicPartition, str]]:
    """The offsets of the logs that could be asked, and why the others could not.  Waits and raises as list_led_offsets."""
    high, unled = await list_led_offsets(cluster, dict.fromkeys(partitions, LATEST), patience_ms=patience_ms)
    stable, untold = await list_led_offsets(cluster, dict.fromkeys(high, LATEST), isolation_level=READ_COMMITTED)
    start, unstarted = await list_led_offsets(cluster, dict.fromkeys(stable, EARLIEST))
    found = {p: _log_offsets(at, stable[p], high[p]) for p, at in start.items()}
    return found, {**unled, **untold, **unstarted}


def _log_offsets(start: int, stable: int, high: int) -> LogOffsets:
    """Offsets that were asked for in the order high watermark, last stable offset, start.

    Otherwise what is appended in between would seem to wait for a transaction.  Brokers (4.2) may tell a last stable offset
    below the start: that of the batch in which the log was cut.
    """
    stable = max(start, stable)
    return LogOffsets(start, stable, max(stable, high))


async def stable_ends(source: Cluster, partitions: Collection[TopicPartition], patience_ms: int = 0) -> LedOffsets:
    """How far each partition can be copied: its last stable offset, which may be below its start (`not_before_start`)."""
    asked = dict.fromkeys(partitions, LATEST)
    return await list_led_offsets(source, asked, isolation_level=READ_COMMITTED, patience_ms=patience_ms)


async def not_before_start(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """These last stable offsets, or where a log starts if that is later: brokers (4.2) may tell that of the batch cut there."""
    starts = (await list_led_offsets(cluster, dict.fromkeys(offsets, EARLIEST))).offsets
    return {p: max(offset, starts.get(p, offset)) for p, offset in offsets.items()}


async def list_led_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    patience_ms: int = 0,
    looks: int = BELIEVED_AFTER,
    within_s: float = SILENT_S,
) -> LedOffsets:
    """Like Cluster.list_offsets; where leaders are missing or fail, it asks again for `patience_ms`, and `looks` times.

    A leader that is silent for `within_s` is asked again only within `patience_ms`.

    Raises ClusterUnreachableError where no broker responds.
    """
    found: dict[TopicPartition, int] = {}
    silent: dict[int, Exception] = {}
    patience = Patience(patience_ms / 1000, Backoff(0.05))
    await cluster.connect()
    await cluster.track({p.topic for p in timestamps})

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, int | Exception]:
        return await cluster.offsets_at(node_id, members, timestamps, isolation_level)

    looked = 0
    while True:
        looked += 1
        told, left_out = await ask_leaders(
            cluster, "offset", [p for p in timestamps if p not in found], ask, silent, within_s
        )
        found |= told
        may_heal = any(cluster.known_leader(p) not in silent for p in left_out)
        if not left_out or (looked >= looks or not may_heal) and patience.is_over:
            return LedOffsets(found, left_out)
        await cluster.net.sleep(patience.pause_s())
        if not patience.is_over:
            silent.clear()
        await cluster.refresh()


class Untold(NamedTuple):
    """Why an offset of a log is not known: what its leader says instead, or that nobody leads it."""

    why: str

    def __str__(self) -> str:
        return self.why


class Unreplicated(NamedTuple):
    """A log whose leader has more, or less, than its high watermark; `leader_end` is -1 where it was not told."""

    high_watermark: int
    leader_end: int

    def __str__(self) -> str:
        if self.leader_end < 0:
            return (
                f"the end of the leader's log on the target was not told (its high watermark is {self.high_watermark})"
            )
        return (
            f"replication on the target is behind: the leader's log ends at {self.leader_end}, its high watermark is"
            f" {self.high_watermark}; a replica in the ISR does not follow, or another producer writes there"
        )


async def replicated_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | Unreplicated | Untold]:
    """The ends of logs that are fully replicated; two requests per leader.  Raises ClusterUnreachableError."""
    wanted = dict.fromkeys(partitions, LATEST)
    high, left_out = await list_led_offsets(cluster, wanted, within_s=LATE_S)

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, int | Exception]:
        return await cluster.offsets_at(node_id, members, wanted, 0, replica_id=DEBUGGING_REPLICA)

    last, _ = await ask_leaders(cluster, "end", high, ask, {}, LATE_S)
    ends = {p: _end(watermark, last.get(p, -1)) for p, watermark in high.items()}
    return {**ends, **{p: Untold(why) for p, why in left_out.items()}}


async def replicated_end(cluster: Cluster, partition: TopicPartition) -> int:
    """Like replicated_ends, for one partition; waits for its leader, and some seconds for its replicas.

    Raises OffsetNotAvailableError, which is retriable, where the replicas do not catch up.
    """
    for look in range(_LOOKS):
        high = (await cluster.list_offsets({partition: LATEST}))[partition]
        end = _end(high, (await log_end_offsets(cluster, [partition])).get(partition, -1))
        if isinstance(end, int):
            return end
        await cluster.net.sleep(_PAUSES.pause_s(look + 1))
    error: Exception = Errors.OffsetNotAvailableError(f"{partition.topic}-{partition.partition}: {end}")
    raise error


async def replicated_ends_at(
    cluster: Cluster, node_id: int, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int | Unreplicated | Exception]:
    """What one node, asked once, says of the logs that it leads.  Raises KafkaError."""
    asked = dict.fromkeys(partitions, LATEST)
    high = await cluster.offsets_at(node_id, asked, asked, 0)
    last = await cluster.offsets_at(node_id, asked, asked, 0, replica_id=DEBUGGING_REPLICA)
    found: dict[TopicPartition, int | Unreplicated | Exception] = {}
    for partition, watermark in high.items():
        end = last.get(partition, -1)
        failed = watermark if isinstance(watermark, Exception) else end
        if isinstance(watermark, int) and isinstance(end, int):
            found[partition] = _end(watermark, end)
        elif isinstance(failed, Exception):
            found[partition] = failed
    return found


async def log_end_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the leaders' logs end, including what is not replicated yet; partitions that failed are absent.

    What describe_producers returns is as of that offset, not as of the high watermark.  One request per leader.
    """
    wanted = dict.fromkeys(partitions, LATEST)

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        told = await cluster.offsets_at(node_id, members, wanted, 0, replica_id=DEBUGGING_REPLICA)
        return {p: end for p, end in told.items() if isinstance(end, int)}

    return await insist_on_leaders(cluster, "reading the ends of logs", wanted, ask)


def _end(high_watermark: int, leader_end: int) -> int | Unreplicated:
    return high_watermark if leader_end == high_watermark else Unreplicated(high_watermark, leader_end)


async def newest_times(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The latest timestamp of each log in ms; absent for empty logs and brokers before 3.0.

    Raises TolerantClientError where a leader tells it for none of its logs.
    """
    await cluster.connect()
    if cluster.highest_version(ListOffsetsRequest) < _LIST_MAX_TIMESTAMP:
        return {}
    wanted = dict.fromkeys(partitions, MAX_TIMESTAMP)

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, int | Exception]:
        return await cluster.offsets_at(node_id, members, wanted, 0)

    await cluster.track({p.topic for p in wanted})
    found, left_out = await ask_leaders(cluster, "time", wanted, ask, {})
    told = {cluster.known_leader(partition) for partition in found}
    for partition, why in left_out.items():
        if cluster.known_leader(partition) not in {None, *told}:
            raise TolerantClientError(f"the time of {partition.topic}-{partition.partition}: {why}")
    return {partition: at for partition, at in found.items() if at >= 0}


async def leader_epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Where these leader epochs end in the leaders' logs (KIP-320); empty where the brokers (before 2.1) cannot tell."""
    if not epochs:
        return {}
    await cluster.connect()
    if cluster.highest_version(OffsetForLeaderEpochRequest) < _EPOCHS_FOR_CLIENTS:
        return {}
    topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    async def ask(node_id: int, members: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        topics: dict[str, list[Any]] = {}
        for partition in members:
            asked = topic_type.OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=-1, leader_epoch=epochs[partition]
            )
            topics.setdefault(cluster.wire_topic(partition.topic), []).append(asked)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[topic_type(topic=name, partitions=parts) for name, parts in topics.items()]
        )
        ends: dict[TopicPartition, int] = {}
        for topic in (await cluster.send(request, node_id)).topics:
            name = cluster.topic_of(topic.topic)
            for part in topic.partitions:
                raise_for(part.error_code, f"{name}-{part.partition}")
                ends[TopicPartition(name, part.partition)] = part.end_offset
        return ends

    return await insist_on_leaders(cluster, "asking where leader epochs end", epochs, ask)
