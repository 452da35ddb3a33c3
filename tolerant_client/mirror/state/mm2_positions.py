"""MirrorMaker 2's own position in each partition, and whether it runs.

It keeps its positions in `mm2-offsets.ALIAS.internal` of the target, Kafka Connect's topic of source offsets (KIP-382;
MirrorUtils.wrapPartition and wrapOffset, KafkaOffsetBackingStore.java): the key is ["MirrorSourceConnector", {"cluster":
alias, "partition": 0, "topic": "orders"}], the value {"offset": n}, where n is the last source offset that it copied.
Its workers are members of group `ALIAS-mm2` of the target (MirrorMakerConfig.workerConfig).
Its connectors in a separate Connect cluster are not seen: that cluster has another group and another topic.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Literal, NamedTuple

import kafka.errors as Errors
import msgspec
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import EMPTY_STATES, described_states
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.logs.reading import read_slices
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.records.record_batch import Record
from tolerant_client.state_json import MOST, PartitionNumber, decoded


class _Place(msgspec.Struct):
    cluster: str
    partition: PartitionNumber
    topic: str


class _Key(NamedTuple):
    connector: Literal["MirrorSourceConnector"]
    place: _Place


class _Value(msgspec.Struct):
    offset: Annotated[int, msgspec.Meta(ge=0, le=MOST - 1)]


class Mm2Position(NamedTuple):
    """Where MirrorMaker 2 would resume, and the key and partition of the record that says so, to write the next one."""

    offset: int
    key: bytes
    partition: int


_OFFSETS_TOPIC = re.compile(r"mm2-offsets\.(.+)\.internal")


def offsets_topic(source_alias: str) -> str:
    """The topic of MirrorMaker 2's positions, unless its file sets offset.storage.topic."""
    return f"mm2-offsets.{source_alias}.internal"


def decode_position(key: bytes | None, value: bytes | None) -> tuple[str, TopicPartition, int] | None:
    """The source's alias, the partition by the source's name, and the next offset; None for another connector's record."""
    try:
        place = decoded(key, _Key).place
        return place.cluster, TopicPartition(place.topic, place.partition), decoded(value, _Value).offset + 1
    except ValueError:
        return None


def encode_position(next_offset: int) -> bytes:
    """The value that makes MirrorMaker 2 resume at `next_offset`."""
    return msgspec.json.encode(_Value(next_offset - 1))


async def read_positions_of_mm2(target: Cluster, source_alias: str) -> dict[TopicPartition, Mm2Position]:
    """Where MirrorMaker 2 resumes, by partition (the source's names); empty if it has never run.

    Positions of aborted transactions (exactly.once.source.support) and positions that somebody has reset do not count.
    """
    return await KnownPositions(target).of(source_alias)


class KnownPositions:
    """MirrorMaker 2's positions on a target, on one event loop: whoever asks again has only what is new read."""

    def __init__(self, target: Cluster) -> None:
        self._target = target
        self._until: dict[TopicPartition, int] = {}
        self._newest: dict[TopicPartition, dict[bytes, Record]] = {}

    async def aliases(self) -> list[str]:
        """The aliases of sources under which MirrorMaker 2 keeps positions, as far as we may describe their topics."""
        found = map(_OFFSETS_TOPIC.fullmatch, await self._target.partitions())
        return sorted(match[1] for match in found if match is not None)

    async def of(self, source_alias: str) -> dict[TopicPartition, Mm2Position]:
        """As read_positions_of_mm2; raises KafkaError."""
        topic = offsets_topic(source_alias)
        numbers = (await self._target.partitions([topic])).get(topic, [])
        found: dict[TopicPartition, Mm2Position] = {}
        for number in numbers:
            for key, record in (await self._read(TopicPartition(topic, number))).items():
                told = decode_position(key, record.value)
                if told is not None and told[0] == source_alias:
                    found[told[1]] = Mm2Position(told[2], key, number)
        return found

    async def _read(self, partition: TopicPartition) -> dict[bytes, Record]:
        """The newest record of each key."""
        start = (await self._target.list_offsets({partition: EARLIEST}))[partition]
        end = (await self._target.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED))[partition]
        if self._until.get(partition, 0) > end:  # another topic by now
            del self._until[partition], self._newest[partition]
        newest = self._newest.setdefault(partition, {})
        if (start := max(start, self._until.get(partition, 0))) < end:
            log = (await read_slices(self._target, {partition: (start, end)}, is_committed=True))[partition]
            for offset, record in log.records.items():
                known = newest.get(record.key or b"")
                if known is None or known.offset < offset:  # another task may have read on meanwhile
                    newest[record.key or b""] = record
            self._until[partition] = max(self._until.get(partition, 0), log.until)
        return newest


async def whether_mm2_runs(target: Cluster, source_alias: str) -> tuple[str, ...]:
    """Why nothing may be changed now: MirrorMaker 2 runs, or that is unknown; empty if its group has no members."""
    group = f"{source_alias}-mm2"
    states, failures = await described_states(target, [group])
    if group in failures:
        error = failures[group]
        is_hidden = isinstance(error, Errors.GroupAuthorizationFailedError)
        remedy = f"grant us Describe on group {group} of the target" if is_hidden else "run this again when it responds"
        return (
            f"whether MirrorMaker 2 runs is unknown: the target does not describe its group {group}"
            f" ({type(error).__name__}); {remedy}",
        )
    state = states[group]
    if state in EMPTY_STATES:
        return ()
    return (
        f"MirrorMaker 2 runs: its group {group} on the target has members (state {state}). Stop it, and wait until its process"
        " has ended; after a kill it stays a member for some ten seconds",
    )


async def write_position(target: Cluster, source_alias: str, known: Mm2Position, offset: int) -> None:
    """Makes MirrorMaker 2, which must not run, resume at `offset` of a partition where it was at `known`.

    If a response is lost the record is written twice, which says the same.  Raises KafkaError.
    """
    topic = StateTopic(target, offsets_topic(source_alias), COMPACTED, "MirrorMaker 2's positions")
    record = Record(0, int(time.time() * 1000), known.key, encode_position(offset))
    await target.insist("writing MirrorMaker 2's position", lambda: topic.append([record], known.partition))
