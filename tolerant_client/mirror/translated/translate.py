"""Translates offsets of a link with translated offsets, and moves a consumer group to the target without replays.

A consumer that stood at an offset of the source and goes on at its translation reads every copied record once
(OffsetMap).  What is not on the target yet cannot be translated: the translation then is the end of what is, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.translated.map_topic import read_maps, require_map_topic
from tolerant_client.mirror.translated.offset_map import OffsetMap, Place, Translation
from tolerant_client.producer_transaction import GROUP, Coordinators, raise_for_code
from tolerant_client.raw import RawCluster

_ALL_TOPICS = 2  # OffsetFetch that tells all offsets of a group
_LAST_OFFSET_FETCH = 7
_LAST_DESCRIBE = 5
_LAST_COMMIT = 7
_IDLE = ("Empty", "Dead", "")


class TranslatedOffset(NamedTuple):
    """An offset of `partition` and where that is in `target`; both None where nothing of the partition is in the map."""

    partition: TopicPartition
    offset: int
    target: TopicPartition | None
    found: Translation | None

    @property
    def is_exact(self) -> bool:
        """Whether a consumer that goes on there reads each record once."""
        return self.found is not None and self.found.place in (Place.RECORD, Place.NEXT, Place.END)


class GroupCommit(NamedTuple):
    """An offset of a group on the target: `before` is what it had, -1 for none; `is_written` whether it has `offset` now."""

    target: TopicPartition
    offset: int
    before: int
    is_written: bool


async def translate(
    target: RawCluster, link: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TranslatedOffset]:
    """Target offsets for offsets of the source.  Raises OptionError where the link has no map."""
    await require_map_topic(target, link)
    maps = await read_maps(target, link, offsets)
    return {partition: _translated(partition, offset, maps.get(partition)) for partition, offset in offsets.items()}


async def translate_back(
    target: RawCluster, link: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TranslatedOffset]:
    """Source offsets for offsets of the target, for the way back; `partition` is the target's here, `target` the source's."""
    await require_map_topic(target, link)
    by_target = {found.target: found for found in (await read_maps(target, link)).values()}
    back: dict[TopicPartition, TranslatedOffset] = {}
    for partition, offset in offsets.items():
        known = by_target.get(partition)
        back[partition] = (
            TranslatedOffset(partition, offset, None, None)
            if known is None
            else TranslatedOffset(partition, offset, known.partition, known.source_of(offset))
        )
    return back


async def translate_group(
    source: RawCluster, target: RawCluster, link: str, group: str
) -> dict[TopicPartition, TranslatedOffset]:
    """Target offsets for what a group has committed on the source.

    Raises OptionError where the link has no map, or the group has committed nothing.
    """
    committed = await group_offsets(source, group)
    if not committed:
        raise OptionError(f"Group {group!r} has committed no offset on the source; check --group and --source")
    return await translate(target, link, committed)


def _translated(partition: TopicPartition, offset: int, known: OffsetMap | None) -> TranslatedOffset:
    if known is None:
        return TranslatedOffset(partition, offset, None, None)
    return TranslatedOffset(partition, offset, known.target, known.translate(offset))


async def group_offsets(cluster: RawCluster, group: str) -> dict[TopicPartition, int]:
    """What a group has committed (KIP-88: brokers since 0.10.2)."""

    def read(answer: Any) -> dict[TopicPartition, int]:
        raise_for_code(answer.error_code, f"reading the offsets of group {group!r}")
        found = {}
        for topic in answer.topics:
            for part in topic.partitions:
                raise_for_code(part.error_code, f"reading the offset of {topic.name} for group {group!r}")
                if part.committed_offset >= 0:
                    found[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
        return found

    return await Coordinators(cluster).ask(
        GROUP,
        group,
        "reading committed offsets",
        lambda: OffsetFetchRequest(group_id=group, topics=None, min_version=_ALL_TOPICS, max_version=_LAST_OFFSET_FETCH),
        read,
    )


async def commit_group(
    target: RawCluster, group: str, offsets: Iterable[TranslatedOffset], *, is_forced: bool = False
) -> list[GroupCommit]:
    """Commits translated offsets for a group that is idle on the target; backwards only if `is_forced`.

    Offsets that nothing is known of are left out.  Raises OptionError, before
    anything is written, where the group has members; brokers refuse such a commit, too.
    """
    wanted = {o.target: o.found.translated for o in offsets if o.target is not None and o.found is not None}
    coordinators = Coordinators(target)
    await _require_idle(coordinators, group)
    before = await group_offsets(target, group)
    written = {p: offset for p, offset in wanted.items() if is_forced or offset > before.get(p, -1)}
    if written:
        await _commit(coordinators, group, written)
    return [GroupCommit(p, offset, before.get(p, -1), p in written) for p, offset in wanted.items()]


async def _require_idle(coordinators: Coordinators, group: str) -> None:
    def read(answer: Any) -> None:
        (described,) = answer.groups
        raise_for_code(described.error_code, f"describing group {group!r}")
        if described.members or described.group_state not in _IDLE:
            raise _busy(group, f"{len(described.members)} members, state {described.group_state}")

    await coordinators.ask(
        GROUP, group, "describing a group", lambda: DescribeGroupsRequest(groups=[group], max_version=_LAST_DESCRIBE), read
    )


async def _commit(coordinators: Coordinators, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for partition, offset in offsets.items():
        topics.setdefault(partition.topic, []).append(
            topic_type.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        )

    def read(answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code in (Errors.UnknownMemberIdError.errno, Errors.IllegalGenerationError.errno):
                    raise _busy(group, "it has members")
                raise_for_code(part.error_code, f"committing {topic.name}-{part.partition_index} for group {group!r}")

    await coordinators.ask(
        GROUP,
        group,
        "committing translated offsets",
        lambda: OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
            max_version=_LAST_COMMIT,
        ),
        read,
    )


def _busy(group: str, why: str) -> OptionError:
    return OptionError(
        f"Group {group!r} is in use on the target ({why}): its offsets may be moved only while nobody consumes;"
        " stop its consumers first"
    )


