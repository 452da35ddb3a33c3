"""The ledger of losses: a topic on the target that says which source offsets it lacks, and why.

Topic `tolerant-mirror-ledger`, one partition, never deleted from
(cleanup.policy=delete without limits).  A record's key is "link/topic/partition",
its timestamp the time when the loss was found, its value JSON:

    {"version": 1, "time_ms": 1763775000000, "link": "default", "topic": "orders", "partition": 3,
     "from_offset": 100, "until_offset": 140, "reason": "retention", "detail": "...", "topic_id": "..."}

Offsets are half-open; reasons are those of losses.LossReason.  Laws:
- All in-sync replicas acknowledge a row before the mirror resumes.
- A record that no mirror can have written counts as a row with the reason UNREADABLE: none is skipped.
- Racing writers, and lost responses, may write a row twice: equal
  rows are one, whatever their time and detail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import kafka.errors as Errors
import msgspec
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.topics import topic_ids
from tolerant_client.cluster.admin.transactions import fresh_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.state_topic import StateTopic
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.state_json import LAST_MS, Moment, PartitionNumber, Whole, decoded

LEDGER_TOPIC = "tolerant-mirror-ledger"
UNREADABLE = "unreadable"  # the reason of a row for a record that is no row

_LIMIT_TOLD = re.compile(r"max\.message\.bytes is (\d+)")  # in the text of OversizedRecordError
_VERSION = 1
_FRESH_PRODUCER = (  # the broker has forgotten our producer id: a new one writes the row again
    Errors.OutOfOrderSequenceNumberError,
    Errors.InvalidProducerEpochError,
    Errors.UnknownProducerIdError,
)


class _Document(msgspec.Struct):
    """The value of a record, as above."""

    time_ms: Moment
    link: str
    topic: str
    partition: PartitionNumber
    from_offset: Whole
    until_offset: Whole
    reason: str
    detail: str
    topic_id: str = ""


def encode_row(row: LedgerRow) -> Record:
    """The record of the ledger topic for a row."""
    value = msgspec.json.encode({"version": _VERSION, **row._asdict()})
    return Record(0, row.time_ms, f"{row.link}/{row.topic}/{row.partition}".encode(), value)


def decode_row(record: Record) -> LedgerRow:
    """The row in a record; a row with the reason UNREADABLE if the record is none."""
    try:
        row = LedgerRow(*msgspec.structs.astuple(decoded(record.value, _Document)))
    except ValueError:
        row = None
    if row is None or row.from_offset > row.until_offset:
        seen_ms = min(max(0, record.timestamp), LAST_MS)  # the timestamp, too, may be invalid
        return LedgerRow(seen_ms, "", "", -1, 0, 0, UNREADABLE, f"record at offset {record.offset} is no ledger row")
    return row


def limit_of(row: LedgerRow) -> int | None:
    """The target's max.message.bytes that a record exceeded; None if the row does not say it."""
    told = _LIMIT_TOLD.search(row.detail)
    return None if told is None else int(told[1])


def distinct(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Rows in their order, each loss only once."""
    found: dict[tuple[object, ...], LedgerRow] = {}
    for row in rows:
        found.setdefault((*row[1:7], row.topic_id, row.detail if row.reason == UNREADABLE else None), row)
    return list(found.values())


def of_present_topics(rows: Iterable[LedgerRow], ids: Mapping[str, object]) -> list[LedgerRow]:
    """Rows whose target topic is still the same one, by its present `ids`."""
    return [row for row in rows if not row.topic_id or row.topic not in ids or row.topic_id == str(ids[row.topic])]


def unwritten(row: LedgerRow, rows: Iterable[LedgerRow]) -> LedgerRow | None:
    """The part of a row that the ledger lacks: of a loss that has grown only the new offsets; None if it has all."""
    start = row.from_offset
    same = [r for r in rows if r[1:4] == row[1:4] and r.reason == row.reason and r.topic_id in ("", row.topic_id)]
    if start == row.until_offset:  # a row about no lost offset
        return None if any((r.from_offset, r.until_offset) == row[4:6] for r in same) else row
    for known in sorted(same, key=lambda r: r.from_offset):
        if known.from_offset <= start:
            start = max(start, known.until_offset)
    if same and start >= row.until_offset:
        return None
    return row._replace(from_offset=start)


def lost_offsets(rows: Iterable[LedgerRow]) -> Counter[tuple[str, str]]:
    """The number of lost offsets by (topic, reason), for metrics."""
    lost: Counter[tuple[str, str]] = Counter()
    for row in rows:
        lost[row.topic, str(row.reason)] += row.until_offset - row.from_offset
    return lost


def ledger_topic(cluster: Cluster) -> StateTopic:
    """The ledger of a target, as durable as its brokers allow."""
    config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    return StateTopic(cluster, LEDGER_TOPIC, config, "the ledger", insync_of_two=2)


async def read_ledger(cluster: Cluster) -> list[LedgerRow]:
    """Every loss in the ledger of a target cluster, the oldest first; empty if there is no ledger."""
    return distinct(map(decode_row, await ledger_topic(cluster).read_all()))


class Ledger:
    """The ledger of one link; reads the topic when first needed, and creates it with the first row."""

    def __init__(self, target: Cluster, link: str) -> None:
        self._target, self._topic = target, ledger_topic(target)
        self.link = link
        self._rows: list[LedgerRow] | None = None
        self._producer_id = -1
        self._sequence = 0
        self._writing: Future | None = None

    async def rows(self, *, refresh: bool = False) -> Mapping[TopicPartition, list[LedgerRow]]:
        """The link's rows by partition; `refresh` reads those that other processes have written since."""
        if self._rows is None or refresh:
            rows = [row for row in await read_ledger(self._target) if row.link == self.link]
            ids = await topic_ids(self._target, {row.topic for row in rows}) if rows else {}
            self._rows = of_present_topics(rows, ids)
        by_partition: dict[TopicPartition, list[LedgerRow]] = {}
        for row in self._rows:
            by_partition.setdefault(TopicPartition(row.topic, row.partition), []).append(row)
        return by_partition

    async def write(self, rows: Collection[LedgerRow]) -> None:
        """Appends rows that the ledger lacks, and returns once all in-sync replicas have them.

        Raises ClusterUnreachableError if that takes longer than the target's patience, OptionError if the topic cannot be
        created.
        """
        while self._writing is not None:
            await self._writing  # one at a time: a batch's sequence continues that of the batch before
        writing = self._writing = Future()
        try:
            await self._write(rows)
        except BaseException:
            self._producer_id = -1  # the next sequence is unknown
            raise
        finally:
            self._writing = None
            writing.success(None)

    async def _write(self, rows: Collection[LedgerRow]) -> None:
        await self.rows(refresh=True)
        known = self._rows = self._rows or []
        ids = await topic_ids(self._target, {row.topic for row in rows})
        named = [row._replace(topic_id=str(ids.get(row.topic, ""))) for row in rows]
        new = [rest for row in named if (rest := unwritten(row, known)) is not None]
        if not new:
            return
        await self._topic.ensure()
        await self._target.insist("writing the ledger", lambda: self._append([encode_row(row) for row in new]))
        self._sequence += len(new)
        known += new

    async def _append(self, records: list[Record]) -> None:
        if self._producer_id < 0:
            self._producer_id, self._sequence = await fresh_producer_id(self._target), 0
        batch = encode_batch(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence)
        try:
            await self._topic.send(batch)
        except Errors.DuplicateSequenceNumberError:
            pass
        except _FRESH_PRODUCER as error:
            self._producer_id = -1
            raise Errors.RequestTimedOutError(f"{LEDGER_TOPIC} has forgotten our producer id") from error
