"""Reads the lag of a link from its two clusters, by partition: in offsets, in seconds and in bytes.

`status`, the status page, the metrics and `doctor` show these numbers.
Laws:
- An unknown value is None, or absent, never 0.
- A link that was prepared, and no mirror of which has started, has what it is to continue after (`adopted`): nothing says yet whether
  its target's logs have the source's offsets.
- The copies of a promoted link end where its fence said, not where the target's logs end: others write there now.
- What a source has deleted before it was copied is lost, not copied: the copy of a log that the link has begun never had what lies
  between its end and the source's log start.  Not below where the copy was to begin, nor heartbeats, nor where a promotion that was
  run again has found no record (`empty_until`): those are no data.
- The target is asked before the source, so a reported lag is never too small; the source's high watermark before its last stable
  offset, so that records appended in between do not look like an open transaction.
- Functions that return `left_out` make no partition wait for another one: they leave out those without a leader that responds.
- The cost of ages is bounded: one request per broker, of about a MiB, for MOST_AGES partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.log_dirs import describe_log_dirs, tells_log_dirs
from tolerant_client.cluster.admin.offsets import (
    LedOffsets,
    LogOffsets,
    list_led_log_offsets,
    list_led_offsets,
    not_before_start,
)
from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED, Cluster
from tolerant_client.mirror.batches.divergence import Range, first_header
from tolerant_client.mirror.life.fence import before_markers
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import is_heartbeats
from tolerant_client.mirror.state.map_rows import copied_until, last_rows
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.state.topics import read_ids
from tolerant_client.records.record_batch import BatchHeader

MOST_AGES = 64
_AGES_MAX_BYTES = 1 << 20
_LOOKS = 2  # Metadata is refreshed in between, so a former leader does not hide that its topic is gone
MAP_LOST = "the offset map of the link is lost"
NEVER_HAD = "the link had not copied it when it was promoted"
END_UNKNOWN = "its control does not say where the copy ended (version 0.1 did not write it)"


@dataclass(frozen=True)
class PartitionLag:
    """The lag of one partition; offsets are the source's, half-open, and those before `position` are copied.

    The source's log begins at `source_start`, is committed up to `stable_end` (the last stable offset), and ends at
    `source_end` (the high watermark); all that is unknown where `untold` says why.  `oldest_ms` is the time of the first record that is not copied, `bytes_per_offset` the
    average size of an offset.  The copy was to have all from `begun_at` on; None if nothing of it was begun, or if that is no data.
    """

    partition: TopicPartition
    position: int | None = None
    stable_end: int | None = None
    source_end: int | None = None
    source_start: int | None = None
    oldest_ms: int | None = None
    bytes_per_offset: float | None = None
    begun_at: int | None = None
    untold: str | None = None

    @property
    def lag_offsets(self) -> int | None:
        """The offsets that the source has and the target lacks, including those after the start of an open transaction."""
        if self.source_end is None or self.position is None:
            return None
        return max(0, self.source_end - max(self.position, self.source_start or 0))

    @property
    def deleted(self) -> Range | None:
        """The offsets that the source has deleted before they were copied; None without any, or if that is unknown."""
        if self.source_end is None or self.position is None or self.begun_at is None:
            return None
        start, until = max(self.position, self.begun_at), min(self.source_start or 0, self.source_end)
        return (start, until) if start < until else None

    @property
    def left_offsets(self) -> int | None:
        """The offsets that the target lacks, also those that the source has deleted since."""
        start, until = self.deleted or (0, 0)
        return None if self.lag_offsets is None else self.lag_offsets + until - start

    @property
    def copyable(self) -> int:
        """The offsets that a mirror can copy now, those before the last stable offset; 0 also if that is unknown."""
        if self.stable_end is None or self.position is None:
            return 0
        return max(0, self.stable_end - max(self.position, self.source_start or 0))

    @property
    def ahead(self) -> int:
        """The target's offsets after the end of the source's log: they are no copy, or the source has lost them."""
        return 0 if self.source_end is None or self.position is None else max(0, self.position - self.source_end)

    @property
    def open_offsets(self) -> int:
        """The offsets from the first record of an open transaction on: no mirror copies them before it has ended."""
        return 0 if self.stable_end is None or self.source_end is None else max(0, self.source_end - self.stable_end)

    @property
    def open_span(self) -> tuple[int, int] | None:
        """These offsets: from the last stable offset to the high watermark."""
        if self.stable_end is None or self.source_end is None or not self.open_offsets:
            return None
        return self.stable_end, self.source_end

    @property
    def lag_bytes(self) -> float | None:
        lag = self.lag_offsets
        if not lag:
            return None if lag is None else 0.0
        return None if self.bytes_per_offset is None else lag * self.bytes_per_offset

    def lag_seconds(self, now_ms: float) -> float | None:
        """The age of the oldest record that is not copied; 0 if there is none."""
        if self.lag_offsets == 0:
            return 0.0
        return None if self.lag_offsets is None or self.oldest_ms is None else max(now_ms - self.oldest_ms, 0) / 1000

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


def positions_of(lags: Iterable[PartitionLag]) -> dict[TopicPartition, int]:
    """How far each partition is copied, without those of which that is unknown."""
    return {lag.partition: lag.position for lag in lags if lag.position is not None}


def open_spans(lags: Iterable[PartitionLag]) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets that open transactions hold back: from the last stable offset to the high watermark."""
    return {lag.partition: span for lag in lags if (span := lag.open_span) is not None}


class SourceEnds(NamedTuple):
    """High watermarks and last stable offsets of partitions, and why others are unknown."""

    ends: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]
    left_out: Mapping[TopicPartition, str]


async def look(
    source: Cluster | None,
    target: Cluster,
    link: str,
    partitions: Iterable[TopicPartition],
    is_translated: bool,
    control: LinkControl,
    *,
    patience_ms: int = 0,
) -> list[PartitionLag]:
    """How far all these partitions are copied, or an error, and their lag, or why the source does not tell it.

    Waits `patience_ms` for leaders on the source; without a source only what the target shows.
    """
    wanted = list(partitions)
    copied = await positions(target, link, wanted, is_translated, control)
    if source is None:
        return [PartitionLag(p, copied.get(p)) for p in wanted]
    there, untold = await list_led_log_offsets(source, wanted, patience_ms)
    await _ask_again(source, there, untold)
    begun = await _begun_at(target, link, copied, is_translated, control)
    return [
        PartitionLag(p, copied.get(p), untold=untold[p])
        if p in untold
        else _lag(p, copied.get(p), there[p], begun.get(p))
        for p in wanted
    ]


def _lag(partition: TopicPartition, position: int | None, log: LogOffsets, begun_at: int | None) -> PartitionLag:
    lag = PartitionLag(partition, position, log.last_stable, log.high_watermark, log.start)
    return replace(lag, begun_at=begun_at)


async def _begun_at(
    target: Cluster, link: str, copied: Mapping[TopicPartition, int], is_translated: bool, control: LinkControl
) -> dict[TopicPartition, int]:
    """From which offset on these copies, which end at `copied`, were to have all; absent for what was not begun, and heartbeats."""
    empty = [p for p, at in copied.items() if not at]
    begun = (await last_rows(target, link, empty)).keys() if is_translated and empty else control.had.keys()
    topics = LinkTopics.from_json(control.topics) if control.topics else None
    return {
        p: control.first_to_copy(p)
        for p, at in copied.items()
        if (at or p in begun) and not (topics is not None and is_heartbeats(topics, p.topic))
    }


async def look_led(
    source: Cluster | None,
    target: Cluster,
    link: str,
    partitions: Iterable[TopicPartition],
    is_translated: bool,
    control: LinkControl,
    lost: str | None,
) -> tuple[list[PartitionLag], dict[TopicPartition, str]]:
    """As look, but no partition waits for the broker of another one; also why some partitions were left out.

    Without a source the lags have positions alone.  `lost` says that the link's map is lost.
    """
    wanted = list(partitions)
    if is_translated:
        if lost is not None:
            return [], dict.fromkeys(wanted, MAP_LOST)
        maps = {p: map_partition(link, p) for p in wanted}
        away = (await list_led_offsets(target, dict.fromkeys(maps.values(), LATEST))).left_out
        left_out = {p: away[at] for p, at in maps.items() if at in away}
        copied = await copied_until(target, link, [p for p in wanted if p not in left_out])
        # The map may have been lost meanwhile.
        left_out = {p: left_out.get(p, MAP_LOST) for p in wanted if p not in copied}
        if control.is_fenced and (told := control.copied_until):
            left_out |= dict.fromkeys(copied.keys() - told.keys(), NEVER_HAD)
            copied = {p: at for p, at in copied.items() if p in told}
    else:
        ends, left_out = await list_led_offsets(target, dict.fromkeys(wanted, LATEST))
        copied = await _copies_end(target, control, ends)
        left_out = {
            **left_out,
            **dict.fromkeys(ends.keys() - copied.keys(), NEVER_HAD if control.copied_until else END_UNKNOWN),
        }
    if source is None:
        return [PartitionLag(p, copied[p]) for p in wanted if p in copied], left_out
    await source.connect(source.patience_ms)
    there, unseen = await list_led_log_offsets(source, copied)
    await _ask_again(source, there, unseen)
    begun = await _begun_at(target, link, {p: copied[p] for p in there}, is_translated, control)
    return [_lag(p, copied[p], there[p], begun.get(p)) for p in wanted if p in there], {**left_out, **unseen}


async def positions(
    target: Cluster, link: str, partitions: Collection[TopicPartition], is_translated: bool, control: LinkControl
) -> dict[TopicPartition, int]:
    """How far each partition is copied: what the link's map says, or with identical offsets the end of the target's log.

    Empty if the map is lost; without partitions of a promoted link whose control does not say where they end.
    """
    if is_translated:
        return await copied_until(target, link, partitions)
    return await _copies_end(target, control, await target.list_offsets(dict.fromkeys(partitions, LATEST)))


async def _copies_end(
    target: Cluster, control: LinkControl, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where copies with identical offsets end whose logs have these ends; absent if that is unknown.

    While a promotion has not ended, a fence that was interrupted may have written its markers, and nobody else has written.
    A control that knows the link's producers and no source was deleted: the fence of a former promotion may end the log.
    """
    if control.is_prepared:  # the offsets of the target's logs may be others
        ids = await read_ids(None, target, {p.topic for p in ends}) if control.adopted_ids else {}
        anew = {p for p in ends if control.was_created_again(p, ids.get(p.topic, TopicIds()))}
        return {p: 0 if p in anew else control.adopted.get(p, 0) for p in ends}
    if not control.is_promotion_begun and (control.source_cluster_id is not None or not control.producer_ids):
        return dict(ends)
    told = {p: control.copied_until[p] for p in ends if p in control.copied_until}
    if control.is_fenced:
        return told
    # Once a failover has left some partitions for later, others may write to the rest.
    untold = {p: end for p, end in ends.items() if p not in told and (p in control.unfenced or not control.unfenced)}
    return {**told, **await before_markers(target, untold, control.producer_ids, control.adopted)}


async def source_ends(source: Cluster, partitions: Collection[TopicPartition], *, looks: int = _LOOKS) -> SourceEnds:
    """The source's high watermarks and last stable offsets."""
    high = await log_ends(source, partitions, looks=looks)
    stable = await list_led_offsets(
        source, dict.fromkeys(high.offsets, LATEST), isolation_level=READ_COMMITTED, looks=looks
    )
    held = {p: offset for p, offset in stable.offsets.items() if offset < high.offsets[p]}
    offsets = stable.offsets | (await not_before_start(source, held) if held else {})
    ends = {p: max(high.offsets[p], offset) for p, offset in offsets.items()}
    return SourceEnds(ends, offsets, {**high.left_out, **stable.left_out})


async def log_ends(cluster: Cluster, partitions: Collection[TopicPartition], *, looks: int = _LOOKS) -> LedOffsets:
    """The high watermarks, and why others are unknown, according to Metadata that is newer than the first refusal.

    Raises ClusterUnreachableError if no leader and no other broker responds.
    """
    await cluster.connect(cluster.patience_ms)
    found = await list_led_offsets(cluster, dict.fromkeys(partitions, LATEST), looks=looks)
    await _ask_again(cluster, found.offsets, found.left_out)
    return found


async def _ask_again(cluster: Cluster, found: Collection[TopicPartition], left_out: Collection[TopicPartition]) -> None:
    """Raises ClusterUnreachableError if no broker responds; for the next check, Metadata tell who leads what was left out."""
    if not found:
        await cluster.require_broker()
    elif left_out:
        cluster.manager.cluster.request_update()  # a silent leader may have been replaced


def written_ms(header: BatchHeader) -> int | None:
    """The timestamp of the first record of a batch; None if it has none."""
    time_ms = header.max_timestamp if header.has_log_append_time else header.base_timestamp
    return time_ms if time_ms >= 0 else None


async def oldest_ms(source: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The time of the batch at each offset; absent if it could not be read.

    Asks for the first MOST_AGES offsets.  A broker leaves out batches above the size limit, except the first one of a response
    (KIP-74): give the offsets in another order the next time.
    """
    found: dict[TopicPartition, int] = {}
    chosen = list(offsets)[:MOST_AGES]
    for node, members in (await source.by_leader(await _led(source, chosen))).items():
        fetched = await source.fetch(
            node,
            {p: offsets[p] for p in members},
            max_wait_ms=0,
            max_bytes=_AGES_MAX_BYTES,
            partition_max_bytes=_AGES_MAX_BYTES // 16,
        )
        for part in fetched:
            header = None if part.error_code else first_header(part.records)
            if header is not None and (time_ms := written_ms(header)) is not None:
                found[part.partition] = time_ms
    return found


async def bytes_per_offset(source: Cluster, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """The average size of an offset on the leaders' disks, for logs with these ends (DescribeLogDirs, KIP-113).

    Needs Describe on the cluster; a partition is absent if its size is unknown.
    """
    led = await _led(source, ends)
    if not tells_log_dirs(source):
        return {}
    starts = await source.list_offsets(dict.fromkeys(led, EARLIEST))
    sizes: dict[TopicPartition, int] = {}
    try:
        for node, members in (await source.by_leader(led)).items():
            for log_dir in await describe_log_dirs(source, node, members):
                sizes.update(log_dir.sizes)
    except Errors.ClusterAuthorizationFailedError:
        return {}
    return {p: sizes[p] / (ends[p] - start) for p, start in starts.items() if p in sizes and ends[p] > start}


async def _led(cluster: Cluster, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    await cluster.connect(cluster.patience_ms)
    await cluster.track({p.topic for p in partitions})
    led = [p for p in partitions if cluster.known_leader(p) is not None]
    if len(led) < len(partitions):
        try:
            await cluster.refresh()
        except Errors.KafkaError:
            return led
        led = [p for p in partitions if cluster.known_leader(p) is not None]
    return led
