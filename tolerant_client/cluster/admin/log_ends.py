"""Where the target's logs end: for their leaders, and for clients.

Laws:
- A place to append at is the end of all that the leader has.  For clients a log ends at the high watermark; what the leader
  has behind that is replicated later.  Who appends at the high watermark may append the same once more: a broker knows a
  repeat of ours only while it remembers the producer, and that of a bare marker never.
- So a place is believed only where both ends are the same.  Elsewhere it is looked for again: a follower comes to the
  leader's end, or leaves the ISR (replica.lag.time.max.ms), or an election takes back what it does not have.
- A comparison needs no place to append at: the high watermark is end enough for it (resume_point.py).
- The high watermark is asked for first, and told by the leader alone: so it is known by then who leads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import DEBUGGING_REPLICA, LATEST, Cluster

_LOOKS = 20
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.5  # with the pauses before: 5 s in all


class Unreplicated(NamedTuple):
    """A log of which the leader has more, or less, than its high watermark says; `leader_end` is -1 where it was not told."""

    high_watermark: int
    leader_end: int

    def __str__(self) -> str:
        if self.leader_end < 0:
            return (
                f"where the leader's log on the target ends was not told (its high watermark is {self.high_watermark})"
            )
        return (
            f"replication on the target is behind: the leader's log ends at {self.leader_end}, its high watermark is"
            f" {self.high_watermark}; a replica in the ISR does not follow, or another producer writes there"
        )


async def replicated_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | Unreplicated]:
    """Where logs end of which all is replicated; two requests a leader.  Raises KafkaError."""
    high = await cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    last = await log_end_offsets(cluster, high)
    return {p: _end(watermark, last.get(p, -1)) for p, watermark in high.items()}


async def replicated_end(cluster: Cluster, partition: TopicPartition) -> int:
    """As replicated_ends, of one partition; waits for its replicas for some seconds.

    Raises OffsetNotAvailableError, which is retriable, where they do not come so far.
    """
    pause = _FIRST_PAUSE_S
    for _ in range(_LOOKS):
        end = (await replicated_ends(cluster, [partition]))[partition]
        if isinstance(end, int):
            return end
        await cluster.net.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
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
    """Where the leaders' logs end, what is not replicated yet included; partitions that failed are absent.

    What describe_producers tells is as of that offset, not as of the high watermark.  One request a leader.
    """
    wanted = dict.fromkeys(partitions, LATEST)
    ends: dict[TopicPartition, int] = {}

    async def ask() -> None:
        for node, members in (await cluster.by_leader(p for p in wanted if p not in ends)).items():
            told = await cluster.offsets_at(node, members, wanted, 0, replica_id=DEBUGGING_REPLICA)
            ends.update({p: end for p, end in told.items() if isinstance(end, int)})

    if wanted:
        await cluster.insist("reading the ends of logs", ask)
    return ends


def _end(high_watermark: int, leader_end: int) -> int | Unreplicated:
    return high_watermark if leader_end == high_watermark else Unreplicated(high_watermark, leader_end)
