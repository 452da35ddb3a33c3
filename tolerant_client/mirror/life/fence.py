"""Stops every process of a link from writing to its target for good, also one that is asleep now.

Laws:
A. The control says that the link is promoted before anything is fenced (control_topic.py).  A mirror checks the control after it
   has read a log or taken over a transactional.id, so it never uses what it derived from a log that is fenced already; one that
   may not read the control takes nothing over.  The fence stops a mirror that took over before.  One of a former life of the link,
   even if it was only started in the next one, is told that it was promoted (ControlWatch).
B. Identical offsets: a mirror's batches carry the link's producer id with the epoch that the log showed it.  An aborted,
   empty transaction of the link's transactional.id leaves a marker with a higher epoch of that id in every partition, and
   a leader refuses batches with a lower one (ProducerAppendInfo.java, checkProducerEpoch).  The marker takes one offset,
   which no consumer sees.  Gap fillers have transactional.ids of their own: a new epoch ends their open transactions.
C. If the link's transactional.id has expired, the coordinator gives it another producer id.  Only a record with the former id
   fences that id: one filler record in each partition where it was the last to write, and that no fence has followed.  So the id of
   an earlier generation of the link, which its own promotion has fenced, costs no record, which every consumer would see.
D. Translated offsets: each partition has a transactional.id; a new epoch fences its copier.  It writes nothing except the
   marker that ends an open transaction.
E. Bare markers (GapFill.MARKERS, and AUTO where they may be written) carry no epoch that a broker could refuse, so their filler
   checks the control before each request.  A request that was in flight when the control was written may arrive after the
   fence: for a partition that was being filled, at most one request of at most 2,000 markers.  They do no harm: no consumer
   sees them, they end no application's transaction (nobody has their producer ids), and the copy ends before the fence,
   whatever follows it.
F. A second command that fences takes the transactional.id over, and ends the first one's transaction.  The first one may be the
   late one, when applications write already: so each checks, once it has the transactional.id, that the control still names it
   (`promotion`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.admin.transactions import can_describe_producers, describe_producers, transactional_ids
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.stamped import StampedAppends
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.errors import TolerantClientError
from tolerant_client.mirror.batches.gaps import Gap, filler_batches
from tolerant_client.mirror.logs.reading import read_headers
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import copier_id
from tolerant_client.records.record_batch import BatchHeader

_TIMEOUT_MS = 30_000
_FILLER_BYTES = 16 << 10


class Fenced(NamedTuple):
    """Where the copy of a partition ends for good; `marker` is the offset of the fence's marker, `records` those of its filler."""

    copied_until: int
    marker: int
    records: tuple[int, ...] = ()


async def fence_identical(
    target: Cluster,
    link: str,
    control: LinkControl,
    partitions: Collection[TopicPartition],
    require_promotion: Callable[[], Awaitable[None]],
) -> dict[TopicPartition, Fenced]:
    """Fences a link with identical offsets whose control says that it is promoted; no application may write yet.

    `require_promotion` raises if another command promotes it by now (law F).  Raises TolerantClientError if a marker is not found,
    and KafkaError; a repeat fences again.
    """
    prefix = f"tolerant-mirror-{link}-gap-"
    used = await transactional_ids(target, prefix)
    names = [f"{prefix}{p.topic}-{p.partition}" for p in partitions]
    await _fence_ids(target, [name for name in names if used is None or name in used])
    before = await target.list_offsets(dict.fromkeys(partitions, LATEST))
    ending = await read_headers(target, {p: end - 1 for p, end in before.items() if end > control.adopted.get(p, 0)})
    transaction = ProducerTransaction(target, f"tolerant-mirror-{control.producer_name(link)}", _TIMEOUT_MS)
    await transaction.begin()
    await require_promotion()
    for some in chunks(partitions):
        await transaction.add_partitions(some)
    await transaction.begin()  # aborts it: its markers have the next epoch; returns once they are written
    markers = await _markers(target, before, transaction.producer_id)
    # Markers of earlier fences that did not finish may precede this one.
    ends = await before_markers(target, markers, {*control.producer_ids, transaction.producer_id}, control.adopted)
    records = await _fence_former(target, control, transaction.producer_id, partitions, ending)
    return {p: Fenced(ends[p], markers[p], records.get(p, ())) for p in partitions}


async def fence_translated(target: Cluster, link: str, partitions: Iterable[TopicPartition]) -> None:
    """Fences the copiers of a link with translated offsets whose control says that it is promoted."""
    # ListTransactions does not name all: it leaves out ids that we may not describe and ids without a coordinator now.
    await _fence_ids(target, [copier_id(link, p) for p in partitions])


async def _fence_ids(target: Cluster, wanted: Sequence[str]) -> None:
    """Gives transactional ids a new epoch, which aborts their open transactions."""

    async def begin(name: str) -> None:
        await ProducerTransaction(target, name, _TIMEOUT_MS).begin()

    for some in chunks(wanted):
        for future in [target.net.call_soon_with_future(begin, name) for name in some]:
            await future


async def _markers(
    target: Cluster, before: Mapping[TopicPartition, int], producer_id: int
) -> dict[TopicPartition, int]:
    """The offset of the last marker of a producer at or after the offset `before`."""
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
            f"{missing[0].topic}-{missing[0].partition} of the target has no marker of the link's producer id {producer_id}"
            f" from offset {before[missing[0]]} on, so the link may not be fenced there; promote it again"
        )
    return found


async def before_markers(
    target: Cluster,
    ends: Mapping[TopicPartition, int],
    producer_ids: Collection[int],
    floors: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where the logs end without the fences of these producers that end them, but not before `floors`.

    Only a fence writes markers with a link's own producer ids.  One that was interrupted may have written a filler record after
    its marker for each former id (law C): single records of the link count as such if its own marker is before them.
    """
    found = dict(ends)
    steps = dict.fromkeys(found, 0)  # single records since the last marker
    ending = found
    while ending:
        headers = await read_headers(target, {p: at - 1 for p, at in ending.items() if at > floors.get(p, 0)})
        own = {p: h for p, h in headers.items() if h.producer_id in producer_ids}
        markers = {p: h.base_offset for p, h in own.items() if h.is_control}
        singles = {
            p: h.base_offset
            for p, h in own.items()
            if p not in markers and h.base_offset + 1 == h.next_offset and steps[p] < len(producer_ids)
        }
        steps |= {p: steps[p] + 1 for p in singles} | dict.fromkeys(markers, 0)
        found |= markers
        ending = {**markers, **singles}
    return found


async def _fence_former(
    target: Cluster,
    control: LinkControl,
    producer_id: int,
    partitions: Iterable[TopicPartition],
    ending: Mapping[TopicPartition, BatchHeader],
) -> dict[TopicPartition, tuple[int, ...]]:
    """Law C: writes the records that fence the link's former producer ids where these may still write; their offsets."""
    former: dict[TopicPartition, dict[int, int]] = {}
    ids = set(control.producer_ids) - {producer_id}  # other ids are applications', which must not be fenced
    for partition, header in ending.items():
        if header.producer_id in ids and not header.is_control and not header.is_transactional:
            former.setdefault(partition, {})[header.producer_id] = header.producer_epoch
    if can_describe_producers(target) and ids:
        for partition, entries in (await describe_producers(target, partitions)).items():
            for entry in entries:
                if (
                    entry.producer_id in ids and entry.last_sequence >= 0
                ):  # else its last fence has its newest epoch here
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
