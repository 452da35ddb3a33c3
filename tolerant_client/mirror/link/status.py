"""How a link is doing, seen from both clusters, its control and its ledger; nothing is asked of its processes.

How it is measured:
- lag in offsets: the end of the source's committed part less what the target has (its log end, or the offset map's).
- lag in seconds: the age of the first record that is not copied yet; 0 where nothing waits.
- lag in bytes: those offsets times what an offset of the partition takes on the source's disks on average
  (DescribeLogDirs); None where that may not be asked.
- whether it moves: two looks, `look_s` apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import kafka.errors as Errors
from kafka.protocol.admin import DescribeLogDirsRequest
from kafka.structs import TopicPartition

from tolerant_client.mirror.divergence import read_headers
from tolerant_client.mirror.ledger import Ledger
from tolerant_client.mirror.link.control import LinkControl, link_options, read_control
from tolerant_client.mirror.link.ends import Ends, compare_ends, has_map, look
from tolerant_client.mirror.link.scope import link_topics, some
from tolerant_client.mirror.losses import LedgerRow
from tolerant_client.mirror.plan import select_topics
from tolerant_client.mirror.topic_filter import LinkTopics
from tolerant_client.raw import EARLIEST, RawCluster


@dataclass(frozen=True)
class TopicStatus:
    """A topic by its name on the target; offsets are sums over its partitions, as are bytes; seconds are the worst's.

    `lag_s` and `lag_bytes` are None where they are not known.
    """

    topic: str
    partitions: int
    source_end: int
    copied: int
    lag: int
    lag_s: float | None
    lag_bytes: int | None
    open_offsets: int  # behind transactions that are open on the source
    paused: tuple[int, ...] = ()  # partitions
    lost: int = 0  # offsets in the ledger


@dataclass(frozen=True)
class LinkStatus:
    """A link at `time_ms`; `findings` are what an operator has to look at, one sentence each."""

    link: str
    time_ms: int
    is_translated: bool
    is_promoted: bool
    bytes_per_s: int | None
    copied_per_s: float
    topics: tuple[TopicStatus, ...]
    findings: tuple[str, ...]
    losses: tuple[LedgerRow, ...] = ()

    @property
    def health(self) -> str:
        if self.findings:
            return "needs an operator"
        if self.is_promoted:
            return "promoted"
        return "paused" if any(topic.paused for topic in self.topics) else "healthy"

    @property
    def exit_code(self) -> int:
        return 3 if self.findings else 0

    def to_json(self) -> dict[str, Any]:
        losses = [row._asdict() for row in self.losses]
        return {**asdict(self), "losses": losses, "health": self.health, "exit_code": self.exit_code}


async def read_status(
    source: RawCluster, target: RawCluster, link: str, topics: LinkTopics | None = None, *, look_s: float = 2.0
) -> LinkStatus:
    """The status of a link; `topics` are what it has written down of itself where they are not given.

    Raises OptionError where nobody says what it copies, and KafkaError.
    """
    control = await read_control(target, link)
    chosen = link_topics(control, link, topics)
    names = select_topics(chosen, await source.partitions())
    there = await target.partitions(names)
    wanted = [TopicPartition(t, n) for t, numbers in (await source.partitions(names)).items() for n in numbers]
    present = [p for p in wanted if p.partition in there.get(p.topic, ())]
    missing = sorted(set(wanted) - set(present))
    is_translated = await has_map(target, link, control)
    first, began = await look(source, target, link, present, is_translated), time.monotonic()
    await source.net.sleep(look_s)
    second, seconds = await look(source, target, link, present, is_translated), time.monotonic() - began
    ledger = Ledger(target, link)
    rows = await ledger.rows()
    compared = await compare_ends(source, target, present, ledger, control, is_translated)
    waiting = [e.partition for e in second if e.lag]
    ages = await _ages(source, {e.partition: e.copied for e in second if e.lag}) if waiting else {}
    sizes = await _bytes_per_offset(source, second) if waiting else {}
    statuses = _by_topic(second, control, ages, sizes, rows)
    findings = unfinished(control, link_options(link, target), link_options(link, target, source))
    findings += still(first, second, control, seconds)
    findings += compared.differing.values() if compared is not None else ()
    if missing and not control.is_promoted:
        findings.append(
            f"{missing[0].topic}-{missing[0].partition} is not on the target ({len(missing)} partitions are not): no mirror has"
            " made it yet"
        )
    return LinkStatus(
        link,
        int(time.time() * 1000),
        is_translated,
        control.is_promoted,
        control.bytes_per_s,
        sum(b.copied - a.copied for a, b in zip(first, second)) / seconds,
        tuple(statuses),
        tuple(findings),
        tuple(row for found in rows.values() for row in found),
    )


def unfinished(control: LinkControl, of_target: str, of_both: str) -> list[str]:
    """A promotion that died before everything was fenced; pure.  The options mean the link (link_options)."""
    if not control.is_promoted or control.is_fenced:
        return []
    if control.unfenced:
        what = some(f"{p.topic}-{p.partition}" for p in sorted(control.unfenced))
        return [
            f"its failover left what had no leader, and a process of it may still write there: {what}; when it has one, or was"
            f" deleted, run again tolerant-kafka failover {of_target}"
        ]
    return [
        "its promotion was begun and not finished, so a process of it may still write to the target: before anybody else writes"
        f" there, run again tolerant-kafka promote {of_both} or, without the source, tolerant-kafka failover {of_target}"
    ]


def still(first: Iterable[Ends], second: Iterable[Ends], control: LinkControl, seconds: float) -> list[str]:
    """What stands still though there is something to copy; pure."""
    if control.is_promoted:
        return []
    found = [b for a, b in zip(first, second) if a.lag and b.lag and a.copied == b.copied and not control.pauses(b.partition)]
    if not found:
        return []
    worst = max(found, key=lambda e: e.lag)
    return [
        f"{len(found)} partitions are behind and have not moved for {seconds:.0f} s, most {worst} with {worst.lag:,} offsets at"
        f" offset {worst.copied}: look whether the mirror runs, and what it says"
    ]


def _by_topic(
    ends: Iterable[Ends],
    control: LinkControl,
    ages: Mapping[TopicPartition, float],
    sizes: Mapping[TopicPartition, float] | None,
    rows: Mapping[TopicPartition, Iterable[LedgerRow]],
) -> list[TopicStatus]:
    topics: dict[str, list[Ends]] = {}
    for e in ends:
        topics.setdefault(e.partition.topic, []).append(e)
    found = []
    for topic, of_topic in sorted(topics.items()):
        waiting = [e for e in of_topic if e.lag]
        are_sized = sizes is not None and all(e.partition in sizes for e in waiting)
        found.append(
            TopicStatus(
                topic,
                len(of_topic),
                sum(e.stable or 0 for e in of_topic),
                sum(e.copied for e in of_topic),
                sum(e.lag for e in of_topic),
                max((ages[e.partition] for e in waiting), default=0.0) if all(e.partition in ages for e in waiting) else None,
                int(sum(e.lag * sizes[e.partition] for e in waiting)) if are_sized and sizes is not None else None,
                sum(e.open_offsets for e in of_topic),
                tuple(sorted(e.partition.partition for e in of_topic if control.pauses(e.partition))),
                sum(r.until_offset - r.from_offset for e in of_topic for r in rows.get(e.partition, ())),
            )
        )
    return found


async def _ages(source: RawCluster, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """Seconds since the record at each offset was written, by its time; absent where it has none."""
    now_ms = time.time() * 1000
    headers = await read_headers(source, positions)
    return {p: max(0.0, (now_ms - h.base_timestamp) / 1000) for p, h in headers.items() if h.base_timestamp >= 0}


async def _bytes_per_offset(source: RawCluster, ends: Iterable[Ends]) -> dict[TopicPartition, float] | None:
    wanted = {e.partition: e for e in ends}
    sizes = await log_sizes(source, wanted)
    if sizes is None:
        return None
    starts = await source.list_offsets(dict.fromkeys(wanted, EARLIEST))
    spans = {p: (e.end or 0) - starts[p] for p, e in wanted.items()}
    return {p: sizes[p] / spans[p] for p in wanted if p in sizes and spans[p] > 0}


async def log_sizes(cluster: RawCluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int] | None:
    """What each partition takes on the disks of its fullest replica, bytes; None where that may not be asked (KIP-113)."""
    await cluster.connect()
    if DescribeLogDirsRequest.API_KEY not in cluster.manager.broker_version_data.api_versions:
        return None
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(cluster.wire_topic(partition.topic), []).append(partition.partition)
    describable = DescribeLogDirsRequest.DescribableLogDirTopic
    sizes: dict[TopicPartition, int] = {}

    async def ask() -> None:
        for broker in cluster.manager.cluster.brokers():
            topics = [describable(topic=name, partitions=numbers) for name, numbers in by_topic.items()]
            answer = await cluster.send(DescribeLogDirsRequest(topics=topics, max_version=3), broker.node_id)
            if code := getattr(answer, "error_code", 0):
                raise Errors.for_code(code)("DescribeLogDirs")
            for result in answer.results:
                for topic in result.topics:
                    for part in topic.partitions:
                        place = TopicPartition(cluster.topic_of(topic.name), part.partition_index)
                        sizes[place] = max(sizes.get(place, 0), part.partition_size)

    try:
        await cluster.insist("asking what logs take", ask)
    except Errors.ClusterAuthorizationFailedError:
        return None
    return sizes
