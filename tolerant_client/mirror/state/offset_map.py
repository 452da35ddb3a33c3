"""The exact target offset of each source record, for target topics that other writers share.

Laws:
A. A row is committed in the transaction that copied its records, so the records of a committed row are on the target.
B. Runs ascend on both sides: the order is kept, and no copied record lies between two runs.
C. Only the newest row of a partition is ever written again; a row with RUNS_PER_ROW runs is final.
D. If the source's log is a new one from an offset on (the topic was created again, or the log truncated), a new row begins
   there: the earlier rows' runs of a former topic, and of offsets from there on, are of records that the source no longer has.
   The first run of the new row begins at that offset; it has no records if the first copied ones come later.
E. The last row of a generation that was promoted (link_control.py) says so, in each partition of the map.  It is of no copied topic, and
   its number is the generation.  So a link stays over if its control is deleted.
F. Of a topic that both clusters have deleted nothing is left to protect: where the source has another one, the link begins that in a
   new row.  A copy that the target alone has lost is never begun again.

A record of the map topic, in JSON so that any consumer can read it:

    key    ["topic", partition, number]           of the source; rows of a partition are numbered from 0
    value  {"version": 1, "target": "topic", "ids": ["source's topic id", "target's"], "position": 1200,
            "epoch": 3, "runs": [1000, 5000, 100, 0, 1, 90, ...]}

A row with one run of no records means that the link has begun there and copied nothing yet; the target offset of that run is
after all that the rows before have.  In the first row it is 0, or if the link took over from another mirror, where the log that it
took over ended.

`position` is the next source offset to copy when the row was written; `ids` show whether a topic was deleted and created
again (KIP-516; "" from brokers before 2.8), `epoch` is the newest leader epoch that was seen in the source's log (-1: none),
which shows whether the log was truncated since (KIP-101).  A run is three numbers: source offset, target offset, count; from the
second run on, the first two are the distances from the end of the run before.  (A transaction ends with a marker, which takes
one offset of the target: that is the 1.)  A null value deletes a row whose records the target no longer has.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import bisect
import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from kafka.structs import TopicPartition

from tolerant_client.errors import OffsetMapError
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.records.record_batch import ABORT, BatchHeader, Record, control_type, decode_records
from tolerant_client.state_json import MOST, PartitionNumber, Whole, decoded

RUNS_PER_ROW: Final = 64
# The key of Law E's row.  No link copies such a topic, and earlier versions, which ask a cluster for the topics of a map, may.
LAST: Final = TopicPartition(f"{OWN_TOPICS}over", 0)


class _Key(NamedTuple):
    topic: str
    partition: PartitionNumber
    number: Whole


class _Value(msgspec.Struct):
    target: str
    ids: tuple[str, str]
    position: Whole
    epoch: Annotated[int, msgspec.Meta(ge=-1, le=MOST)]
    runs: Annotated[list[Whole], msgspec.Meta(min_length=3)]
    version: Literal[1]


class Run(NamedTuple):
    """`length` records with consecutive offsets on both sides."""

    source: int
    target: int
    length: int

    @property
    def source_until(self) -> int:
        return self.source + self.length

    @property
    def target_until(self) -> int:
        return self.target + self.length


class RowKey(NamedTuple):
    """A partition of the source, and the number of a row."""

    partition: TopicPartition
    number: int

    def encode(self) -> bytes:
        return msgspec.json.encode(_Key(self.partition.topic, self.partition.partition, self.number))

    @classmethod
    def decode(cls, data: bytes | None) -> RowKey:
        """Raises ValueError for bytes that are no key of a row."""
        topic, partition, number = decoded(data, _Key)
        return cls(TopicPartition(topic, partition), number)


class MapRow(NamedTuple):
    """Up to RUNS_PER_ROW runs; `ids` are the topic ids of source and target as text, "" if unknown."""

    key: RowKey
    target_topic: str
    ids: tuple[str, str]
    position: int
    epoch: int
    runs: tuple[Run, ...]

    def encode(self) -> bytes:
        flat: list[int] = []
        at = (0, 0)
        for run in self.runs:
            flat += (run.source - at[0], run.target - at[1], run.length)
            at = (run.source_until, run.target_until)
        return msgspec.json.encode(_Value(self.target_topic, self.ids, self.position, self.epoch, flat, 1))

    @classmethod
    def decode(cls, key: RowKey, data: bytes) -> MapRow:
        """Raises ValueError for bytes that are no row, or one of a later version."""
        found = decoded(data, _Value)
        runs: list[Run] = []
        source, target = 0, 0
        for source_step, target_step, count in zip(found.runs[::3], found.runs[1::3], found.runs[2::3], strict=True):
            runs.append(Run(source + source_step, target + target_step, count))
            source, target = runs[-1].source_until, runs[-1].target_until
        if target > MOST or source > found.position:
            raise ValueError("runs that no log has")
        return cls(key, found.target, found.ids, found.position, found.epoch, tuple(runs))

    @property
    def target_until(self) -> int:
        """The target offset after the last record that was ever copied, also of a former source log; 0 if none was."""
        return self.runs[-1].target_until

    @property
    def has_copied(self) -> bool:
        """Whether the row has copied records, not only the link's beginning."""
        return self.runs[-1].length > 0

    @property
    def is_adopted(self) -> bool:
        """Whether it only says how far the link has read a log that it took over: nothing was copied to where that log ended."""
        return not self.is_kept and self.target_until > 0

    @property
    def is_kept(self) -> bool:
        """Whether its runs count: they have copied records, or show where a new log begins (Law D)."""
        return self.has_copied or self.key.number > 0

    def is_former(self, ids: tuple[str, str]) -> bool:
        """Whether both clusters have other topics now, with these ids: nothing is left of what was copied (Law F)."""
        return all(map(is_another, self.ids, ids))


def last_of(generation: int) -> MapRow:
    """The row that says that this generation of the link is over (Law E); earlier versions take it for an empty row."""
    return MapRow(RowKey(LAST, generation), LAST.topic, ("", ""), 0, -1, (Run(0, 0, 0),))


def join_runs(runs: Iterable[Run]) -> list[Run]:
    """The same runs; those that are adjacent on both sides are joined."""
    joined: list[Run] = []
    for run in runs:
        if joined and (joined[-1].source_until, joined[-1].target_until) == (run.source, run.target):
            joined[-1] = joined[-1]._replace(length=joined[-1].length + run.length)
        else:
            joined.append(run)
    return joined


def extend(
    last: MapRow | None,
    partition: TopicPartition,
    target_topic: str,
    ids: tuple[str, str],
    runs: Sequence[Run],
    position: int,
    epoch: int,
) -> list[MapRow]:
    """The rows to write after `runs` were copied: the newest, filled up, and new ones; one without records if none was copied.

    Raises OffsetMapError if the runs would not ascend: then they are not what was copied.
    """
    kept = list(last.runs) if last is not None and last.is_kept else []
    number = last.key.number if last is not None else 0
    if kept and runs and (runs[0].source < kept[-1].source_until or runs[0].target < kept[-1].target_until):
        raise OffsetMapError(
            f"{partition.topic}-{partition.partition}: offset {runs[0].source} was appended at {runs[0].target}, but the"
            f" map ends at {kept[-1].source_until} and {kept[-1].target_until}; the response or the target's log is wrong"
        )
    kept = join_runs([*kept, *runs]) or [Run(position, last.target_until if last is not None else 0, 0)]
    rows: list[MapRow] = []
    for first in range(0, len(kept), RUNS_PER_ROW):
        part = tuple(kept[first : first + RUNS_PER_ROW])
        key = RowKey(partition, number + first // RUNS_PER_ROW)
        rows.append(MapRow(key, target_topic, ids, part[-1].source_until, epoch, part))
    rows[-1] = rows[-1]._replace(position=position)
    is_untouched = last is not None and len(rows) > 1 and rows[0].runs == last.runs
    return rows[1:] if is_untouched else rows


def begun_again(last: MapRow, ids: tuple[str, str], began: int, position: int) -> MapRow:
    """The new newest row if the source's log is another one from `began` on than that of `last` (Law D), and copied from `position` on."""
    began = began if last.has_copied or not last.key.number else min(began, last.runs[0].source)
    key = last.key._replace(number=last.key.number + last.has_copied)
    # Of a topic that was created again nothing was taken over, and another log of the target has nothing before it.
    is_anew = last.is_adopted and is_another(last.ids[0], ids[0]) or last.is_former(ids)
    target = 0 if is_anew else last.target_until
    return last._replace(key=key, ids=ids, position=position, epoch=-1, runs=(Run(began, target, 0),))


def is_another(before: str, now: str) -> bool:
    """Whether two topic ids are known and differ (KIP-516)."""
    return bool(before and now and before != now)


class CommittedRows:
    """Yields the rows of a map partition's log once the log itself shows that they were committed.

    The log is read up to the high watermark with isolation level 0: the last stable offset
    would wait for the open transactions of other partitions.  Each transaction
    has one producer id and ends with one marker (KIP-98).
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._open: dict[int, list[tuple[RowKey, MapRow | None]]] = {}

    def feed(self, header: BatchHeader, batch: memoryview) -> Iterator[tuple[RowKey, MapRow | None]]:
        """Takes the next batch; yields the rows that it commits, None for a deleted row.

        Raises OffsetMapError for a record that no mirror has written, RecordBatchError for damage.
        """
        if header.is_control:
            ended = self._open.pop(header.producer_id, [])
            if ended and header.record_count and control_type(batch) != ABORT:
                yield from ended
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, []).extend(map(self._read, decode_records(batch)))
        else:
            yield from map(self._read, decode_records(batch))

    @property
    def writers(self) -> dict[TopicPartition, int]:
        """Who writes rows of these partitions in transactions that are not over: a producer id each."""
        return {key.partition: producer_id for producer_id, rows in self._open.items() for key, _ in rows}

    @property
    def undecided(self) -> dict[TopicPartition, MapRow]:
        """The newest rows of transactions that are not over: they may be committed yet."""
        return {key.partition: row for rows in self._open.values() for key, row in rows if row is not None}

    def _read(self, record: Record) -> tuple[RowKey, MapRow | None]:
        try:
            key = RowKey.decode(record.key)
            return key, None if record.value is None else MapRow.decode(key, record.value)
        except ValueError as error:
            raise OffsetMapError(
                f"{self._where} offset {record.offset} holds no row of an offset map ({type(error).__name__}): somebody"
                " else writes to that topic, or a later version of this mirror has; its offsets cannot be trusted"
            ) from error


class Place(str, enum.Enum):
    """What a translated offset stands for."""

    RECORD = "record"  # this very record
    NEXT = "next"  # there is no such record: the next one
    END = "end"  # all before it is copied, nothing after it: the lowest offset that the next record can get
    NOT_COPIED = "not-copied"  # records before it are not on the target yet: the end of the copied ones
    DELETED = "deleted"  # the target's retention has deleted it: the oldest record that the map knows
    BEFORE_TAKEOVER = "before-takeover"  # another mirror has copied it: its offset is unknown
    LOST_ROW = "lost-row"  # the map has lost what it said of it: its offset is unknown
    FORMER_TOPIC = "former-topic"  # the map is of a topic, or a log, that is there no more

    @property
    def is_known(self) -> bool:
        """Whether there is an offset."""
        return self not in (Place.BEFORE_TAKEOVER, Place.LOST_ROW, Place.FORMER_TOPIC)


class Translation(NamedTuple):
    """`offset` on one side is `translated` on the other (-1: unknown); see Place.

    `position`: source offsets before it are copied.
    """

    offset: int
    translated: int
    place: Place
    position: int


class OffsetMap:
    """The map of one source partition, made of all its rows.

    A consumer that stood at a source offset and resumes at its translation reads each record once: no copied record that it has
    read comes after the translation, and none that it has not read before it.  `runs` are empty if no record of the source's
    present log is copied: then nothing can be translated.

    Another mirror may have copied source offsets before `taken_over` for which the map has no run: such an offset has no
    translation, for the next run may be far after its record.  Nor have those between two runs of which the map has lost rows.
    """

    def __init__(self, rows: Iterable[MapRow], taken_over: int = 0) -> None:
        known = sorted(rows, key=lambda row: row.key.number)
        if not known:
            raise ValueError("an offset map without rows")
        newest = known[-1]
        self.partition = newest.key.partition
        self.target = TopicPartition(newest.target_topic, self.partition.partition)
        self.ids = newest.ids
        self.position = max(newest.position, taken_over)
        self.epoch = (
            newest.epoch if newest.position >= taken_over else -1
        )  # the newest one of the source's log, where told
        self._taken_over = taken_over
        self.target_until = newest.target_until
        ordered = [row for row in known if row.is_kept and not is_another(row.ids[0], newest.ids[0])]
        self.runs = self._joined(ordered, newest.position)
        self._lost = sorted(row.runs[0].source for row in _after_lost_rows(ordered))  # the ends of what is not known
        # Older rows were deleted, unless the row before is of a former topic.
        first = ordered[0].key.number if ordered else 0
        self._is_cut = first > 0 and first - 1 not in (row.key.number for row in known)
        self._sources = [run.source for run in self.runs]
        self._targets = [run.target for run in self.runs]

    def _joined(self, rows: Iterable[MapRow], position: int) -> list[Run]:
        """The runs of the present log, up to `position`; raises OffsetMapError if they do not ascend."""
        runs: list[Run] = []
        target = 0
        for row in rows:
            _cut(runs, row.runs[0].source)
            for run in row.runs:
                if run.target < target or runs and run.source < runs[-1].source_until:
                    raise OffsetMapError(
                        f"The offset map of {self.partition.topic}-{self.partition.partition} does not ascend at source offset"
                        f" {run.source}: its topic has been changed by somebody else; its offsets cannot be trusted"
                    )
                if run.length:
                    runs.append(run)
                target = run.target_until
        _cut(runs, position)
        return runs

    def translate(self, offset: int) -> Translation:
        """The target offset for a source offset: that of its record or of the next one after it."""
        at = bisect.bisect_right(self._sources, offset) - 1
        if at >= 0 and offset < self.runs[at].source_until:
            return Translation(
                offset, self.runs[at].target + offset - self.runs[at].source, Place.RECORD, self.position
            )
        if offset < self._taken_over or self.runs[-1].source < self._taken_over:
            return Translation(offset, -1, Place.BEFORE_TAKEOVER, self.position)
        following = self.runs[at + 1] if at + 1 < len(self.runs) else None
        if self._is_lost(offset, following):
            return Translation(offset, -1, Place.LOST_ROW, self.position)
        if following is not None:
            place = Place.DELETED if at < 0 and self._is_cut else Place.NEXT
            return Translation(offset, following.target, place, self.position)
        place = Place.END if offset <= self.position else Place.NOT_COPIED
        return Translation(offset, self.target_until, place, self.position)

    def source_of(self, offset: int) -> Translation:
        """The source offset for a target offset: that of the copied record there or of the next one after it."""
        at = bisect.bisect_right(self._targets, offset) - 1
        if at >= 0 and offset < self.runs[at].target_until:
            return Translation(
                offset, self.runs[at].source + offset - self.runs[at].target, Place.RECORD, self.position
            )
        if self._taken_over and (at < 0 or self.runs[at].source < self._taken_over):
            return Translation(offset, -1, Place.BEFORE_TAKEOVER, self.position)
        following = self.runs[at + 1] if at + 1 < len(self.runs) else None
        if self._is_lost(self.runs[at].source_until if at >= 0 else -1, following):
            return Translation(offset, -1, Place.LOST_ROW, self.position)
        if following is not None:
            place = Place.DELETED if at < 0 and self._is_cut else Place.NEXT
            return Translation(offset, following.source, place, self.position)
        return Translation(offset, self.runs[-1].source_until, Place.END, self.position)

    def _is_lost(self, offset: int, following: Run | None) -> bool:
        """Whether rows are lost that tell of records between a source offset and the run after it, or the end."""
        at = bisect.bisect_right(self._lost, offset)
        return at < len(self._lost) and (following is None or self._lost[at] <= following.source)


def _after_lost_rows(rows: Iterable[MapRow]) -> Iterator[MapRow]:
    """Those of a partition's rows, in their order, before which rows are missing, or the end of one (Law C).

    Without a loss the next row begins where a new log does, which no row reaches beyond (Law D), or after a full one.
    """
    for before, row in itertools.pairwise(rows):
        is_short = len(before.runs) < RUNS_PER_ROW and row.runs[0].source > before.position
        if is_short or row.key.number > before.key.number + 1:
            yield row


def _cut(runs: list[Run], source: int) -> None:
    """Removes the runs at this source offset and after it."""
    while runs and runs[-1].source >= source:
        runs.pop()
    if runs and runs[-1].source_until > source:
        runs[-1] = runs[-1]._replace(length=source - runs[-1].source)
