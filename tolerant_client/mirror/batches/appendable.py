"""What one fetched partition means for the target: batches to append, and gaps.

Laws:
A. Items follow each other without a hole from `position` on; of the source nothing is left out but what
   a gap names.
B. A batch passes through untouched wherever it can (M1); it is rewritten only if the target would refuse
   it, or together with small neighbours.  But before `separate_until` nothing is joined, and there a batch is cut: one of those
   batches was refused, or the record there.
   What is rewritten of a response is rewritten in as few calls as possible, across gaps: many transactions of few records
   cost no call each (rewrite.py).
C. A gap consists of offsets without a committed record: control batches, aborted transactions, holes.
D. What no checksum covers must have been in the response before, too (Claim): that a batch begins
   elsewhere than where the one before it ends (base offsets lie outside every CRC), or that a
   transaction whose marker is not in the response is aborted or not (no checksum covers the list of these).
E. A transaction's marker and the list of aborted transactions agree, or the response is damaged.
F. What lies before a batch that is damaged itself, or before a record that is too large, is appended first: it is as good as in a
   response that ends there.  Batches that contradict each other spoil the response, since either may be wrong.
G. A response is decided in steps, none of which takes long, however many batches it has: the event loop turns between them, and
   the claim on the target's partition is renewed.  The courses of a response follow each other without a hole; whoever
   drops the rest of them has lost nothing but time.

Not covered: damage that moves a batch across a hole to exactly where the one before it ends.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import uuid
import zlib
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import OversizedRecordError, RecordBatchError, TolerantClientError
from tolerant_client.mirror.batches.gaps import Gap, GapFill, filler_batches, filler_time
from tolerant_client.mirror.batches.rewrite import (
    LARGEST_HOLE,
    SMALL_BATCH_BYTES,
    Coalesced,
    coalesce,
    is_enough,
    must_rewrite,
    rewrite,
)
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type
from tolerant_client.records.record_sets import iter_record_sets

Batch: TypeAlias = tuple[BatchHeader, memoryview]
Appendable: TypeAlias = "Batch | Gap"
_T = TypeVar("_T")

FILLED_AT_ONCE: Final = 5_000_000  # offsets that are filled with records at once, 10 MB of them

NO_PRODUCER: Final = -1
_STEP: Final = 512  # batches or items
_STEP_RECORDS: Final = 4096
_STEP_BYTES: Final = 1 << 18


class AppendRules(NamedTuple):
    """What the target's topic accepts; sizes are in bytes.

    With `fills_with_records` a gap becomes records among the data.  Otherwise it stays a Gap, and `filler` is asked to fill it; None
    where nobody has to.

    `remembered_ms` is how long its brokers surely remember a producer, from the timestamps of its last append.  With a `codec`
    all batches are sent in that one: the brokers store them so, and refuse those that become too large by it.
    Batches of the source that begin before `separate_until` are appended each by itself, and one that goes on there in two parts.
    """

    fills_with_records: bool
    is_compacted: bool
    max_batch_bytes: int
    left_out: Collection[int] = ()  # offsets of records that the user's policy gave up
    remembered_ms: int = 0
    codec: int | None = None
    separate_until: int = 0
    filler: GapFill | None = None
    joined_bytes: int | None = None  # what small batches are joined up to; by default, max_batch_bytes

    def joins(self, header: BatchHeader) -> bool:
        """Whether a batch may go together with its neighbours."""
        return header.size < SMALL_BATCH_BYTES and header.base_offset >= self.separate_until

    @property
    def longest_filled(self) -> int:
        """How many offsets without a record may lie inside a batch, where they become records."""
        return LARGEST_HOLE if self.fills_with_records else 0

    @property
    def has_gaps(self) -> bool:
        """Whether gaps take offsets on the target.  Where they do not, small batches are joined across them when they are sent."""
        return self.fills_with_records or self.filler is not None


class AppendState(NamedTuple):
    """Where and by which producer the next batch is appended, as read from the target's log.

    `producer_id` is NO_PRODUCER if nothing tells the next sequence: the writer then needs a new producer id.
    `topic_id` is that of the log that was read, None if the brokers have none: a name is not a topic.  `last_ms` is the timestamp
    of the producer's last batch there, None if nothing tells it: fillers of gaps have other producers.
    """

    log_end: int
    producer_id: int
    producer_epoch: int
    next_sequence: int
    topic_id: uuid.UUID | None = None
    last_ms: int | None = None


class Claim(NamedTuple):
    """What a single response says of a batch: that it lies where its header says, and is aborted or not (Law D)."""

    header: BatchHeader
    is_aborted: bool


class Course(NamedTuple):
    """`items` lead to `position`; `shown` are the claims about what lies after it, for the next response to confirm.

    `leader_epoch` is the source's, of the last batch before `position`, even a marker or an aborted batch: an election
    while a transaction is open gives its marker a different epoch.  -1 without a batch.
    """

    items: list[Appendable]
    position: int
    shown: frozenset[Claim]
    leader_epoch: int


def appendable(
    part: FetchedPartition,
    position: int,
    until: int | None,
    rules: AppendRules,
    believed: Collection[Claim],
    now_ms: int,
) -> Iterator[Course]:
    """What to append of a response to a fetch at `position`, course after course; batches from `until` on are left for later.

    `believed` are the claims of the response before, `now_ms` is the timestamp of filler without neighbours.
    A step that decides nothing yet is a course without items (Law G).

    Raises RecordBatchError for a response that cannot be trusted, or a batch at `position` that cannot be read, and
    OversizedRecordError for a record at `position` that no batch of the target can hold: always before the first item.
    """
    at = position
    try:
        while (joined := _joined(part.records, at, until, rules)) is not None:
            part = part._replace(records=part.records[joined.size :])
            at = joined.last.next_offset
            yield Course(list(joined.items), at, frozenset(), joined.last.partition_leader_epoch)
        for course in _courses(part, at, until, rules, believed, now_ms):
            yield course
            at = course.position
    except TolerantClientError:
        if at == position:
            raise
        # Found again once what lies before it is appended (Law F).


def _joined(records: memoryview, position: int, until: int | None, rules: AppendRules) -> Coalesced | None:
    """The plain small batches at the start of a response, if there are any."""
    if rules.left_out or rules.codec is not None or position < rules.separate_until:
        return None
    size, joined_bytes = rules.max_batch_bytes, rules.joined_bytes
    with suppress(TolerantClientError):  # found again batch by batch (Law F)
        return coalesce(records, position, until=until, max_batch_bytes=size, joined_bytes=joined_bytes)
    return None


def _courses(
    part: FetchedPartition,
    position: int,
    until: int | None,
    rules: AppendRules,
    believed: Collection[Claim],
    now_ms: int,
) -> Iterator[Course]:
    pieces: list[Appendable] = []
    claims: list[Claim] = []
    at, is_held = position, False
    bases: list[int] = []  # of the batches taken...
    epochs = [-1]  # ...and the leader epochs before the first and after each
    nothing = Course([], position, frozenset(believed), -1)
    sets = yield from _collected(_sound_sets(part.records, position), nothing)
    markers = yield from _collected(_markers(sets), nothing)
    for number, (piece, claim, header) in enumerate(_pieces(part.aborted, position, sets, markers[::-1]), 1):
        if not number % _STEP:
            yield nothing
        if claim is not None:
            claims.append(claim)
            is_held = is_held or claim not in believed
        if is_held:
            continue
        if until is not None and (piece.from_offset if isinstance(piece, Gap) else piece[0].base_offset) >= until:
            break
        pieces.append(piece)
        at = _end(piece)
        if at > header.base_offset:
            bases.append(header.base_offset)
            epochs.append(header.partition_leader_epoch)
    shown = frozenset(claims if pieces or claims else believed)
    at, room, before_ms = position, FILLED_AT_ONCE, -1
    try:
        for items in _in_steps(_items(pieces, position, rules)):
            if rules.fills_with_records:
                items, room, before_ms = _filled(items, rules, now_ms, room, before_ms)
            at = _end(items[-1])
            yield Course(items, at, shown, epochs[bisect_left(bases, at)])
            if not room:
                break
    except TolerantClientError:
        if at == position:
            raise
    shown = frozenset(claim for claim in shown if claim.header.next_offset > at)
    yield Course([], at, shown, epochs[bisect_left(bases, at)])


def _end(item: Appendable) -> int:
    return item.until_offset if isinstance(item, Gap) else item[0].next_offset


def _collected(each: Iterable[_T], step: Course) -> Generator[Course, None, list[_T]]:
    found: list[_T] = []
    for one in each:
        found.append(one)
        if not len(found) % _STEP:
            yield step
    return found


def _in_steps(items: Iterable[Appendable]) -> Iterator[list[Appendable]]:
    """Items in lists that end with a batch, or at the end of all; an error comes after what lies before it (Law F)."""
    some: list[Appendable] = []
    size = records = 0
    try:
        for item in items:
            some.append(item)
            if isinstance(item, Gap):
                continue
            size += item[0].size
            records += item[0].record_count
            if len(some) >= _STEP or size >= _STEP_BYTES or records >= _STEP_RECORDS:
                yield some
                some, size, records = [], 0, 0
    except TolerantClientError:
        if not some:
            raise
    if some:
        yield some


def _pieces(
    named: Iterable[tuple[int, int]], position: int, sets: Sequence[Batch], markers: Sequence[int | None]
) -> Iterator[tuple[Appendable, Claim | None, BatchHeader]]:
    """Committed batches and gaps in order, each with its claim, if any, and the batch that it is or precedes."""
    aborted = AbortedTransactions(named)
    at = position
    for (header, batch), marker in zip(sets, markers):
        if header.next_offset <= at:
            raise RecordBatchError(f"batch that ends before offset {at} was asked for", header.base_offset)
        is_in_transaction = header.is_transactional and not header.is_control and header.record_count > 0
        is_aborted = aborted.cover(header, batch) and is_in_transaction
        if is_in_transaction and marker is not None and is_aborted != (marker == ABORT):
            outcome, listed = ("commits", "aborted") if is_aborted else ("aborts", "committed")
            raise RecordBatchError(
                f"marker that {outcome} a transaction which the response lists as {listed}", header.base_offset
            )
        claim = None
        if header.base_offset != at or (is_in_transaction and marker is None) or _has_loose_offsets(header):
            claim = Claim(header if header.magic > 1 else header._replace(crc=zlib.crc32(batch)), is_aborted)
        if header.base_offset > at:
            yield Gap(at, header.base_offset), claim, header
            at = header.base_offset
        if header.is_control or is_aborted or not header.record_count:
            yield Gap(at, header.next_offset), claim, header
        else:
            yield (header, batch), claim, header
        at = header.next_offset


def _sound_sets(records: memoryview, position: int) -> Iterator[Batch]:
    """The sets before the first one that is damaged itself (Law F); raises RecordBatchError if that is the first one."""
    last: Batch | None = None
    try:
        for last in iter_record_sets(records, from_offset=position):
            yield last
    except RecordBatchError as error:
        if last is None or error.offset < last[0].next_offset:
            raise


def _markers(sets: Sequence[Batch]) -> Iterator[int | None]:
    """For each set, the last one first, the type of the marker that ends the transaction which it may be in.

    None if that is not in the response.
    """
    following: dict[int, int] = {}  # by producer
    for header, batch in reversed(sets):
        if header.is_control and header.record_count:
            following[header.producer_id] = control_type(batch)
        elif header.is_control:
            following.pop(header.producer_id, None)  # the cleaner has emptied it
        yield following.get(header.producer_id)


def _has_loose_offsets(header: BatchHeader) -> bool:
    """True for a run of v0 or v1 messages with holes: each message's offset lies outside its CRC."""
    return header.magic < 2 and not header.codec and header.record_count != header.last_offset_delta + 1


def _items(pieces: list[Appendable], position: int, rules: AppendRules) -> Iterator[Appendable]:
    """Pieces as they are appended: runs rewritten if necessary, gaps joined."""
    run: list[Batch] = []  # decided together, from `start` on, with the gaps between them
    start, size, at = position, 0, position
    gap: Gap | None = None  # after the run, and not covered by an item yet
    for piece in pieces:
        if isinstance(piece, Gap):
            gap = piece if gap is None else Gap(gap.from_offset, piece.until_offset)
            at = piece.until_offset
            continue
        header, _ = piece
        is_rewritten = _is_rewritten(header, at, rules)
        is_passed = not is_rewritten and not rules.joins(header)
        is_separate = bool(run) and run[0][0].base_offset < rules.separate_until
        if run and (is_passed or is_separate or is_enough(len(run), size, run[-1][0].codec)):
            yield from _run(run, start, rules)
            run, size = [], 0
        if not run:
            start = at
            if gap is not None and is_rewritten and gap.until_offset - gap.from_offset <= rules.longest_filled:
                start = gap.from_offset
            elif gap is not None:
                yield gap
        if is_passed:
            yield piece
        else:
            run.append(piece)
            size += header.size
        gap = None
        at = header.next_offset
    if run:
        yield from _run(run, start, rules)
    if gap is not None:
        yield gap


def _is_rewritten(header: BatchHeader, at: int, rules: AppendRules) -> bool:
    return (
        must_rewrite(header, start=at, max_batch_bytes=rules.max_batch_bytes)
        or rules.codec not in (None, header.codec)
        or max(header.base_offset, at) < rules.separate_until < header.next_offset
        or any(header.base_offset <= offset < header.next_offset for offset in rules.left_out)
    )


def _run(run: list[Batch], start: int, rules: AppendRules) -> Iterator[Appendable]:
    """A run from `start` on, rewritten if necessary; an OversizedRecordError is raised after the items before its offset."""
    if not _gains(run, start, rules):
        for header, batch in run:
            if start < header.base_offset:
                yield Gap(start, header.base_offset)
            yield header, batch
            start = header.next_offset
        return
    until = run[-1][0].next_offset
    for offset in sorted(o for o in {*rules.left_out, rules.separate_until} if start <= o < until):
        yield from _rewritten(run, start, offset, rules)
        start = offset
        if offset in rules.left_out:
            yield Gap(offset, offset + 1)
            start = offset + 1
    yield from _rewritten(run, start, until, rules)


def _gains(run: list[Batch], start: int, rules: AppendRules) -> bool:
    """Whether a run must be rewritten, or becomes fewer batches by it."""
    if start < run[0][0].base_offset or any(_is_rewritten(h, max(start, h.base_offset), rules) for h, _ in run):
        return True
    return rules.has_gaps and any(
        b.base_offset - a.next_offset <= rules.longest_filled for (a, _), (b, _) in pairwise(run)
    )


def _rewritten(run: list[Batch], start: int, until: int, rules: AppendRules) -> Iterator[Appendable]:
    if start >= until:
        return
    try:
        yield from rewrite(
            run,
            start,
            until=until,
            fill_holes=rules.fills_with_records,
            is_compacted=rules.is_compacted,
            max_batch_bytes=rules.max_batch_bytes,
            codec=rules.codec,
        )
    except OversizedRecordError as error:
        yield from _rewritten(run, start, error.offset, rules)
        raise
    except RecordBatchError as error:
        sound = [(header, batch) for header, batch in run if header.next_offset <= error.offset]
        if 0 < len(sound) < len(run):
            yield from _rewritten(sound, start, sound[-1][0].next_offset, rules)
        raise


def _filled(
    items: Sequence[Appendable], rules: AppendRules, now_ms: int, room: int, before_ms: int
) -> tuple[list[Appendable], int, int]:
    """Items with records in place of their gaps, at most `room`, and how many more there may be; 0 if they end before the items do.

    `before_ms` is the timestamp of the batch before the items, -1 if there is none; the last one's is returned.
    """
    found: list[Appendable] = []
    for item, after in zip_longest(items, items[1:]):
        if not isinstance(item, Gap):
            found.append(item)
            before_ms = item[0].max_timestamp
            continue
        after_ms = -1 if after is None or isinstance(after, Gap) else after[0].base_timestamp
        batches, at = cover(item, rules, filler_time((after_ms, before_ms), now_ms), room)
        found += batches
        room -= at - item.from_offset
        if not room:
            break
    return found, room, before_ms


def cover(gap: Gap, rules: AppendRules, timestamp_ms: int, most: int = FILLED_AT_ONCE) -> tuple[list[Appendable], int]:
    """A gap as it is appended, and where that ends: the gap itself, or filler records for its first `most` offsets."""
    if not rules.fills_with_records:
        return [gap], gap.until_offset
    gap = Gap(gap.from_offset, min(gap.until_offset, gap.from_offset + most))
    batches = filler_batches(
        gap, is_compacted=rules.is_compacted, max_batch_bytes=rules.max_batch_bytes, timestamp_ms=max(timestamp_ms, 0)
    )
    return list(batches), gap.until_offset
