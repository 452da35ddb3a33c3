"""Checkpoints as MirrorMaker 2 emits them: where each group of the source resumes in the target's topics.

RemoteClusterUtils.translateOffsets and MirrorClient.remoteConsumerOffsets read them.  MirrorMaker 2 guesses a
downstream offset from offset syncs, and writes one only if it grows; ours are exact, so every change is written,
also of a group that was set back on the source.  Its topic of offset syncs (`mm2-offset-syncs.B.internal`) is not
written: only its own MirrorCheckpointTask reads it.
Laws:
- The last checkpoint of a key counts: two processes may write the same ones, and a round may be killed anywhere.
- Nothing is deleted: a group that is gone from the source keeps its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.follow.group_positions import GroupPosition, GroupPositions
from tolerant_client.mirror.follow.internal_topics import write_records
from tolerant_client.mirror.follow.mm2_records import Checkpoint, decode_checkpoint, encode_checkpoint
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic

_READ_AT_ONCE = 50_000  # offsets

Key = tuple[str, TopicPartition]


@dataclass(frozen=True)
class CheckpointsReport:
    """One round: checkpoints written, how many were unchanged, and what was left; reasons as in groups.py."""

    emitted: tuple[Checkpoint, ...]
    unchanged: int
    left: tuple[Left, ...]


class KnownCheckpoints:
    """The last checkpoint of each group and partition in a topic; each refresh reads on from the last position."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.last: dict[Key, Checkpoint] = {}
        self._position = -1

    async def refresh(self, target: Cluster) -> None:
        """Reads the new records; all of them if the topic was created again.

        Skips records that are no checkpoints, as MirrorMaker 2 does.  Raises OptionError if we may not read the topic,
        ClusterUnreachableError.
        """
        try:
            await self._read_on(target)
        except Errors.TopicAuthorizationFailedError as error:
            raise OptionError(
                f"Topic {self.topic} of the {target.name} cannot be read ({error}); grant Create, Describe, Read and Write on"
                " it, or set emit.checkpoints.enabled=false"
            ) from error

    async def _read_on(self, target: Cluster) -> None:
        topic = StateTopic(target, self.topic, COMPACTED, self.topic)
        if not await topic.exists():
            self.last, self._position = {}, -1
            return
        start, end = await topic.start(), await topic.end()
        if not start <= self._position <= end:
            self.last, self._position = {}, start
        while self._position < end:
            until = min(self._position + _READ_AT_ONCE, end)
            for record in await topic.records(self._position, until):
                self._take(record.key, record.value)
            self._position = until

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            checkpoint = decode_checkpoint(key or b"", value or b"")
        except ValueError:
            return
        self.last[checkpoint.group, checkpoint.partition] = checkpoint


def due_checkpoints(positions: Iterable[GroupPosition], last: Mapping[Key, Checkpoint]) -> tuple[list[Checkpoint], int]:
    """The checkpoints to write, and how many are unchanged.  Pure."""
    due: list[Checkpoint] = []
    unchanged = 0
    for p in positions:
        checkpoint = Checkpoint(p.group, p.partition, p.upstream, p.offset, p.metadata)
        if last.get((p.group, p.partition)) == checkpoint:
            unchanged += 1
        else:
            due.append(checkpoint)
    return due, unchanged


async def emit_checkpoints(
    target: Cluster, groups: GroupPositions, known: KnownCheckpoints, now_ms: int, *, replication_factor: int
) -> CheckpointsReport:
    """One round for groups of the source; `known` is kept from round to round, so that each reads only new records.

    Creates the topic even if there is nothing to write: tools find the upstream cluster by its name.
    Raises OptionError if we may not create or write the topic, ClusterUnreachableError.
    """
    await known.refresh(target)
    due, unchanged = due_checkpoints(groups.positions, known.last)
    left = list(groups.left)
    records: list[tuple[bytes, bytes]] = []
    for checkpoint in list(due):
        try:
            records.append(encode_checkpoint(checkpoint))
        except ValueError as error:
            due.remove(checkpoint)
            left.append(Left(f"group {checkpoint.group[:40]}", "error", f"it does not fit into a checkpoint: {error}"))
    await write_records(target, known.topic, records, now_ms, replication_factor=replication_factor)
    return CheckpointsReport(tuple(due), unchanged, tuple(left))
