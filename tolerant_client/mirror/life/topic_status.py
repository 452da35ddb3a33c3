"""The status of a topic of a link: what its partitions have to copy, in sums that are None if a part of them is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.state.link_control import LinkControl


@dataclass(frozen=True)
class TopicStatus:
    """A topic by its name on the target; offsets and bytes are sums over its partitions, seconds the highest of them.

    What one cluster alone would tell is None while it does not respond: on the source `source_end`, on the target `copied`, and
    all lags.  `lag_s` and `lag_bytes` are None if they are unknown.  `unknown` are partitions whose broker does not respond,
    whose topic the source does not have, of whose copies the target has lost records, or that another link has: they are in no sum.
    """

    topic: str
    partitions: int
    source_end: int | None
    copied: int | None
    lag: int | None
    lag_s: float | None
    lag_bytes: int | None
    open_offsets: int | None  # the part of the lag after the start of open transactions
    paused: tuple[int, ...] | None = ()  # partitions
    lost: int | None = (
        0  # offsets in the ledger, or left behind and deleted on the source; None if the ledger was not read
    )
    unknown: tuple[int, ...] = ()  # partitions


def topics_of(
    ends: Iterable[PartitionLag],
    now_ms: int,
    control: LinkControl,
    rows: Mapping[TopicPartition, Iterable[LedgerRow]] | None,
    unseen: Iterable[TopicPartition] = (),
) -> list[TopicStatus]:
    """The partitions' status by topic; `unseen` partitions count, and are in no sum.  Pure; no `rows` are no known ledger."""
    topics: dict[str, list[PartitionLag]] = {}
    unknown: dict[str, list[int]] = {}
    for e in ends:
        topics.setdefault(e.partition.topic, []).append(e)
    for topic, index in unseen:
        topics.setdefault(topic, [])
        unknown.setdefault(topic, []).append(index)
    found = []
    for topic, of_topic in sorted(topics.items()):
        ages, sizes = [e.lag_seconds(now_ms) for e in of_topic], [e.lag_bytes for e in of_topic]
        found.append(
            TopicStatus(
                topic,
                len(of_topic) + len(unknown.get(topic, ())),
                _sum(e.source_end for e in of_topic),
                _sum(e.position for e in of_topic),
                _sum(e.lag_offsets for e in of_topic),
                None if None in ages or not ages else max(filter(None, ages), default=0.0),
                None if None in sizes or not sizes else int(sum(filter(None, sizes))),
                _sum(None if e.source_end is None else e.open_offsets for e in of_topic),
                tuple(sorted(e.partition.partition for e in of_topic if control.pauses(e.partition))),
                None
                if rows is None
                else sum(until - start for e in of_topic for start, until in _lost(e, control, rows)),
                tuple(sorted(unknown.get(topic, ()))),
            )
        )
    return found


def _lost(
    lag: PartitionLag, control: LinkControl, rows: Mapping[TopicPartition, Iterable[LedgerRow]]
) -> list[tuple[int, int]]:
    """The ranges that are lost.  Before a promotion the mirror writes into the ledger what the source deleted, once it goes on."""
    deleted = [lag.deleted] if control.is_promotion_begun and lag.deleted is not None else []
    return [(row.from_offset, row.until_offset) for row in rows.get(lag.partition, ())] + deleted


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None if a part of it is unknown, or all of it."""
    known = list(values)
    return None if None in known or not known else sum(filter(None, known))
