"""Translates offsets of a link with translated offsets, and moves a consumer group to the target without replays.

A consumer that stood at an offset of the source and resumes at its translation reads every copied record once
(OffsetMap).  An offset that is not on the target yet is translated to the end of the copied records, and marked so.
A map of a topic that is not there any more translates nothing (former_topics.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.groups import (
    EMPTY_STATES,
    IN_USE,
    CommittedOffset,
    commit_offsets,
    fetch_offsets,
    group_states,
)
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.follow.former_topics import FormerTopics, find_former
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.map_rows import read_maps
from tolerant_client.mirror.state.map_topic import require_map_topic
from tolerant_client.mirror.state.offset_map import OffsetMap, Place, Translation

_ATTEMPT_MS = 5_000  # of one attempt to find the group's coordinator


class TranslatedOffset(NamedTuple):
    """An offset of `partition` and its translation in `target`; both None if the map has no row of the partition.

    `why` says why a map is of a former topic, `doubt` why nobody can tell whether it is.
    """

    partition: TopicPartition
    offset: int
    target: TopicPartition | None
    found: Translation | None
    why: str = ""
    doubt: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the target's offset is known."""
        return self.found is not None and self.found.place.is_known

    @property
    def is_exact(self) -> bool:
        """Whether a consumer that resumes there reads each record once."""
        return self.found is not None and self.found.place in (Place.RECORD, Place.NEXT, Place.END)


class GroupCommit(NamedTuple):
    """An offset of a group on the target; `before` is its former one, -1 for none; `is_written`: it has `offset` now, or would."""

    target: TopicPartition
    offset: int
    before: int
    is_written: bool


async def translate(
    target: Cluster, link: str, offsets: Mapping[TopicPartition, int], source: Cluster | None = None
) -> dict[TopicPartition, TranslatedOffset]:
    """Target offsets for offsets of the source, which is asked, if given, whether its topics are still those that were copied.

    Raises OptionError if the link has no map.
    """
    await require_map_topic(target, link, await read_control(target, link))
    maps = await read_maps(target, link, offsets)
    former = await find_former(source, target, link, maps.values())
    return {p: _translated(p, offset, maps.get(p), former) for p, offset in offsets.items()}


async def translate_back(
    target: Cluster, link: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TranslatedOffset]:
    """Source offsets for offsets of the target, for a failback; here `partition` is the target's and `target` the source's."""
    await require_map_topic(target, link, await read_control(target, link))
    maps = (await read_maps(target, link)).values()
    by_target = {found.target: found for found in maps if found.target in offsets}
    former = await find_former(None, target, link, by_target.values())
    back: dict[TopicPartition, TranslatedOffset] = {}
    for partition, offset in offsets.items():
        if (known := by_target.get(partition)) is None:
            back[partition] = TranslatedOffset(partition, offset, None, None)
            continue
        of = known.partition
        why = former.known.get(of, "")
        found = _nowhere(offset, known) if why else known.source_of(offset)
        back[partition] = TranslatedOffset(partition, offset, of, found, why, former.doubts.get(of, ""))
    return back


async def translate_group(
    source: Cluster, target: Cluster, link: str, group: str
) -> dict[TopicPartition, TranslatedOffset]:
    """Target offsets for the offsets that a group has committed on the source.

    Raises OptionError if the link has no map, or copies from another source, or the group has committed none.
    """
    require_same_source(await read_control(target, link), link, await source.cluster_id())
    committed = await group_offsets(source, group)
    if not committed:
        raise OptionError(f"Group {group!r} has committed no offset on the source; check --group and --source")
    return await translate(target, link, committed, source)


def _translated(
    partition: TopicPartition, offset: int, known: OffsetMap | None, former: FormerTopics
) -> TranslatedOffset:
    if known is None:
        return TranslatedOffset(partition, offset, None, None)
    why = former.known.get(partition, "")
    found = _nowhere(offset, known) if why else known.translate(offset)
    return TranslatedOffset(partition, offset, known.target, found, why, former.doubts.get(partition, ""))


def _nowhere(offset: int, known: OffsetMap) -> Translation:
    return Translation(offset, -1, Place.FORMER_TOPIC, known.position)


async def group_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """The committed offsets of a group (KIP-88: brokers since 0.10.2)."""

    async def ask() -> dict[TopicPartition, CommittedOffset]:
        found, failures = await fetch_offsets(cluster, [group], _ATTEMPT_MS)
        for error in failures.values():
            raise error
        return found[group]

    committed = await cluster.insist(f"reading the offsets of group {group!r}", ask)
    return {TopicPartition(cluster.topic_of(p.topic), p.partition): at.offset for p, at in committed.items()}


async def commit_group(
    target: Cluster,
    group: str,
    offsets: Iterable[TranslatedOffset],
    *,
    is_forced: bool = False,
    is_dry_run: bool = False,
) -> list[GroupCommit]:
    """Commits translated offsets for a group that is idle on the target; backwards only if `is_forced`.

    Offsets that cannot be translated are left out.  Raises OptionError, before
    anything is written, if the group has members; brokers refuse such a commit, too.
    """
    known = [o for o in offsets if o.is_known]
    wanted = {o.target: o.found.translated for o in known if o.target is not None and o.found is not None}
    states, failures = await group_states(target, [group])
    for error in failures.values():
        raise error
    if states[group] not in EMPTY_STATES:
        raise _busy(group, f"state {states[group]}")
    before = await group_offsets(target, group)
    written = {p: offset for p, offset in wanted.items() if is_forced or offset > before.get(p, -1)}
    if written and not is_dry_run:
        await _commit(target, group, written)
    return [GroupCommit(p, offset, before.get(p, -1), p in written) for p, offset in wanted.items()]


async def _commit(target: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    wanted = {partition: CommittedOffset(offset, "") for partition, offset in offsets.items()}
    codes, failures = await commit_offsets(target, {group: wanted})
    for error in failures.values():
        raise error
    for partition, code in codes[group].items():
        if code in IN_USE:
            raise _busy(group, "it has members")
        raise_for(code, f"committing {partition.topic}-{partition.partition} for group {group!r}")


def _busy(group: str, why: str) -> OptionError:
    return OptionError(
        f"Group {group!r} is in use on the target ({why}): its offsets may be moved only while nobody consumes;"
        " stop its consumers first"
    )
