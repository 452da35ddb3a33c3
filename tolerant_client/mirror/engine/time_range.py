"""Where a link's copies begin and end that is to copy a range of time: `--from` and `--until`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster, OffsetAndEpoch
from tolerant_client.errors import ClusterUnreachableError, OptionError, text_of
from tolerant_client.mirror.engine.troubles import WITH_WHAT_IT_HAS
from tolerant_client.mirror.logs.times import first_records
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import read_maps
from tolerant_client.mirror.state.map_topic import has_map


class ForeseenStarts(NamedTuple):
    """Where a start would have copies begin, the link's control then, and why it would refuse."""

    offsets: dict[TopicPartition, int]
    control: LinkControl
    refused: list[str]


def require_all_led(waiting: Mapping[TopicPartition, str]) -> None:
    """Raises ClusterUnreachableError if a partition cannot begin at a time, as it waits for a reason.  Pure."""
    if waiting:
        partition, why = min(waiting.items())
        raise ClusterUnreachableError(
            f"{partition.topic}-{partition.partition} cannot begin at the time of --from: {why}; start the mirror when all"
            " partitions can, or leave the topic out"
        )


async def starts_of_range(
    source: Cluster,
    target: Cluster,
    link: str,
    partitions: Collection[TopicPartition],
    from_ms: int,
    control: LinkControl,
    *,
    is_translated: bool,
) -> tuple[dict[TopicPartition, OffsetAndEpoch], dict[str, str]]:
    """Where these copies begin that have no record older than a time, and the ids of the source's topics whose offsets these are.

    Raises OptionError for what was copied before.
    """
    # Read before the offsets: a topic that is created again meanwhile gets no start.
    ids = {name: str(found) for name, found in (await topic_ids(source, {p.topic for p in partitions})).items()}
    if is_translated:
        return await translated_starts(source, target, partitions, link, from_ms, control, ids), ids
    return await identical_starts(source, target, partitions, from_ms, control, ids), ids


async def foresee_starts(
    source: Cluster,
    target: Cluster,
    link: str,
    partitions: Collection[TopicPartition],
    waiting: Mapping[TopicPartition, str],
    from_ms: int | None,
    control: LinkControl,
    *,
    is_translated: bool,
) -> ForeseenStarts:
    """What a start of these copies would do; `waiting` cannot begin now."""
    if from_ms is None:
        return ForeseenStarts({}, control, [])
    try:
        require_all_led(waiting)
        asked = source, target, link, partitions, from_ms, control
        starts, ids = await starts_of_range(*asked, is_translated=is_translated)
    except (OptionError, ClusterUnreachableError) as error:
        return ForeseenStarts({}, control, [text_of(error)])
    return ForeseenStarts({p: at.offset for p, at in starts.items()}, control.with_starts(starts, ids), [])


async def translated_starts(
    source: Cluster,
    target: Cluster,
    ends: Collection[TopicPartition],
    link: str,
    from_ms: int,
    control: LinkControl,
    source_ids: Mapping[str, str],
) -> dict[TopicPartition, OffsetAndEpoch]:
    """Where partitions begin of which nothing was copied; raises OptionError for others."""
    begun = await read_maps(target, link, ends) if await has_map(target, link, control) else {}
    if old := [p for p in ends if p in begun and p not in control.starts]:
        raise OptionError(
            f"{old[0].topic}-{old[0].partition} was copied by link {link} before: only what nothing was copied of can begin at"
            " a time; leave --from out, or use another link"
        )
    held = {p for p in control.starts if control.start_of(p, source_ids.get(p.topic, "")) is not None}
    return await offsets_at(source, set(ends) - begun.keys() - held, from_ms)


async def identical_starts(
    source: Cluster,
    target: Cluster,
    partitions: Iterable[TopicPartition],
    time_ms: int,
    control: LinkControl,
    source_ids: Mapping[str, str],
) -> dict[TopicPartition, OffsetAndEpoch]:
    """Where the target's empty logs should begin, so that no record older than `time_ms` is copied.

    With identical offsets only an empty log can begin at an offset.  Logs that were begun at an offset before keep it, unless
    the source's topics, whose ids are `source_ids`, were created again since.
    Raises OptionError for a log that is not empty.
    """
    wanted = list(partitions)
    there = await target.partitions({p.topic for p in wanted})
    present = [p for p in wanted if p.partition in there.get(p.topic, ())]
    ends = await target.list_offsets(dict.fromkeys(present, LATEST))
    if full := [p for p in present if ends[p] and p not in control.starts]:
        raise OptionError(
            f"{full[0].topic}-{full[0].partition} of the target ends at offset {ends[full[0]]}: only an empty log can begin at a"
            f" time ({len(full)} of {len(wanted)} partitions are not empty); leave --from out, or delete the topic"
            f" there, {WITH_WHAT_IT_HAS}"
        )
    new = [p for p in wanted if not ends.get(p) and control.start_of(p, source_ids.get(p.topic, "")) is None]
    return await offsets_at(source, new, time_ms)


async def ends_at(source: Cluster, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """The ends of what is older than `time_ms`: each is at most the offset of the first record of that time or later."""
    found = await offsets_at(source, ends, time_ms)
    return {p: min(end, found[p].offset) for p, end in ends.items()}


async def offsets_at(
    source: Cluster, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, OffsetAndEpoch]:
    """The first record at or after a time, or the last stable offset if there is none, with the leader epoch that was told with it."""
    wanted = list(partitions)
    told = await source.list_offsets_and_epochs(dict.fromkeys(wanted, time_ms))
    ends = await source.list_offsets_and_epochs(dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    first = await source.list_offsets_and_epochs(dict.fromkeys(wanted, EARLIEST))
    told = {p: at for p, at in told.items() if at.offset >= 0}
    found = await first_records(source, told, {p: at.offset for p, at in ends.items()}, time_ms)
    return {p: max(first[p], found.get(p, ends[p])) for p in wanted}
