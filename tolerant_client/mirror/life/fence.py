"""Keeps every process of a link from its target for good, whatever it is doing or about to wake up to.

Laws:
A. The link is written down as promoted before anything is fenced (control_topic.py), and a mirror looks there behind whatever
   it has read of the log or taken over: so what it derived from a log that is fenced already it never uses.  Who took
   something over before that is fenced by what follows.
B. Identical offsets: a mirror's batches carry the link's producer id with the epoch that the log showed it.  An aborted,
   empty transaction of the link's transactional.id leaves a marker with a higher epoch of that id in every partition, and
   a leader refuses what carries a lower one (ProducerAppendInfo.java, checkProducerEpoch).  It takes one offset, which
   no consumer sees.  The fillers of gaps have transactional.ids of their own: a new epoch ends what they had open.
C. A producer id that the coordinator no longer gives the link (its transactional.id had expired) can be fenced only by
   a record of that id: one filler record in the partitions where it was the last to write.
D. Translated offsets: each partition has a transactional.id; a new epoch fences its copier, and leaves no trace but the
   marker of a transaction that was open.
E. Bare markers (gap.fill=markers) carry no epoch that could be refused, so their filler looks at the control before each
   request.  One that was on its way when the link was written down as promoted may arrive behind the fence: for a
   partition that was being filled, at most one request of at most 2,000 markers.  They do no harm there: no consumer sees
   them, no transaction of an application ends with them (their producer ids are nobody's), and what was copied ends
   before the fence whatever comes behind it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.transactions import can_describe_producers, describe_producers, transactional_ids
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.divergence import read_headers
from tolerant_client.mirror.batches.gaps import Gap, filler_batches
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.records.record_batch import BatchHeader

_TIMEOUT_MS = 30_000
_FILLER_BYTES = 16 << 10


class Fenced(NamedTuple):
    """Where the copy of a partition ends for good; `marker` is the offset of the marker behind it, `records` of filler."""

    copied_until: int
    marker: int
    records: tuple[int, ...] = ()


async def fence_identical(
    target: Cluster, link: str, control: LinkControl, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Fenced]:
    """Fences a link with identical offsets that is written down as promoted; nobody else may write yet.

    Raises TolerantClientError where a marker is not found, and KafkaError: repeating it fences again.
    """
    prefix = f"tolerant-mirror-{link}-gap-"
    used = await transactional_ids(target, prefix)
    names = [f"{prefix}{p.topic}-{p.partition}" for p in partitions]
    await _fence_ids(target, [name for name in names if used is None or name in used])
    before = await target.list_offsets(dict.fromkeys(partitions, LATEST))
    ending = await read_headers(target, {p: end - 1 for p, end in before.items() if end > control.adopted.get(p, 0)})
    transaction = ProducerTransaction(target, f"tolerant-mirror-{control.producer_name(link)}", _TIMEOUT_MS)
    await transaction.begin()
    for some in chunks(partitions):
        await transaction.add_partitions(some)
    await transaction.begin()  # ends what is open with the markers of the next epoch, and returns when they are written
    markers = await _markers(target, before, transaction.producer_id)
    ends = await _copied_until(target, markers, transaction.producer_id)
    records = await _fence_former(target, control, transaction.producer_id, partitions, ending)
    return {p: Fenced(ends[p], markers[p], records.get(p, ())) for p in partitions}


async def fence_translated(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> None:
    """Fences the copiers of a link with translated offsets that is written down as promoted."""
    # Not only what ListTransactions names: it leaves out what we may not describe, and what has no coordinator now.
    await _fence_ids(target, [f"tolerant-mirror-{link}-copy-{p.topic}-{p.partition}" for p in partitions])


async def _fence_ids(target: Cluster, wanted: Sequence[str]) -> None:
    """Gives transactional ids a new epoch, which ends what they had open."""

    async def begin(name: str) -> None:
        await ProducerTransaction(target, name, _TIMEOUT_MS).begin()

    for some in chunks(wanted):
        for future in [target.net.call_soon_with_future(begin, name) for name in some]:
            await future


async def _markers(
    target: Cluster, before: Mapping[TopicPartition, int], producer_id: int
) -> dict[TopicPartition, int]:
    """The offset of the last marker of a producer, from offsets on."""
    ends = await target.list_offsets(dict.fromkeys(before, LATEST))
    found: dict[TopicPartition, int] = {}
    position = {p: offset for p, offset in before.items() if offset < ends[p]}
    while position:
        headers = await read_headers(target, position)
        for partition, header in headers.items():
            if header.is_control and header.producer_id == producer_id:
                found[partition] = header.base_offset
        position = {p: h.next_offset for p, h in headers.items() if h.next_offset < ends[p]}
    if missing := [p for p in before if p not in found]:
        raise TolerantClientError(
            f"{missing[0].topic}-{missing[0].partition} of the target shows no marker of the link's producer id {producer_id}"
            f" behind offset {before[missing[0]]}: the link may not be fenced there; promote it again"
        )
    return found


async def _copied_until(
    target: Cluster, markers: Mapping[TopicPartition, int], producer_id: int
) -> dict[TopicPartition, int]:
    """Where the copies end: before the marker, and before those of fences that were not brought to an end."""
    ends = dict(markers)
    while markers:
        headers = await read_headers(target, {p: ends[p] - 1 for p in markers if ends[p]})
        markers = {p: h.base_offset for p, h in headers.items() if h.is_control and h.producer_id == producer_id}
        ends |= markers
    return ends


async def _fence_former(
    target: Cluster,
    control: LinkControl,
    producer_id: int,
    partitions: Iterable[TopicPartition],
    ending: Mapping[TopicPartition, BatchHeader],
) -> dict[TopicPartition, tuple[int, ...]]:
    """Law C: the offsets of the records that fence former producer ids of the link, where they can still be used."""
    former: dict[TopicPartition, dict[int, int]] = {}
    ids = set(control.producer_ids) - {producer_id}  # whoever else wrote is an application, and is not to be fenced
    for partition, header in ending.items():
        if header.producer_id in ids and not header.is_control and not header.is_transactional:
            former.setdefault(partition, {})[header.producer_id] = header.producer_epoch
    if can_describe_producers(target) and ids:
        for partition, entries in (await describe_producers(target, partitions)).items():
            for entry in entries:
                if entry.producer_id in ids:
                    former.setdefault(partition, {})[entry.producer_id] = entry.producer_epoch
    written: dict[TopicPartition, tuple[int, ...]] = {}
    for partition, epochs in former.items():
        for old_id, epoch in epochs.items():
            offset = await _write_filler(target, partition, old_id, epoch + 1)
            written[partition] = (*written.get(partition, ()), offset)
    return written


async def _write_filler(target: Cluster, partition: TopicPartition, producer_id: int, epoch: int) -> int:
    now_ms = int(time.time() * 1000)
    what = f"fencing producer id {producer_id} in {partition.topic}-{partition.partition}"

    async def write() -> int:
        (filler,) = filler_batches(Gap(0, 1), is_compacted=True, max_batch_bytes=_FILLER_BYTES, timestamp_ms=now_ms)
        appends = StampedAppends(target, partition, producer_id, epoch, what=what)
        return await appends.append(await target.leader(partition), *filler)

    return await target.insist(what, write)
