"""What one fetched partition means for the target: batches to append, and gaps.

Laws:
A. Items follow each other without a hole from `position` on; of the source nothing is left out but what
   a gap names.
B. A batch passes through untouched wherever it can (M1); it is rewritten only if the target would refuse
   it, or if it is too small to be sent alone.  But before `separate_until` nothing is joined: one of those batches was refused.
C. A gap consists of offsets without a committed record: control batches, aborted transactions, holes.
D. What no checksum covers must have been in the response before, too (Claim): that a batch begins
   elsewhere than where the one before it ends (base offsets lie outside every CRC), or that a
   transaction whose marker is not in the response is aborted or not (no checksum covers the list of these).
E. A transaction's marker and the list of aborted transactions agree, or the response is damaged.
F. What lies before a batch that is damaged itself, or before a record that is too large, is appended first: it is as good as in a
   response that ends there.  Batches that contradict each other spoil the response, since either may be wrong.

Not covered: damage that moves a batch across a hole to exactly where the one before it ends.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import OversizedRecordError, RecordBatchError, TolerantClientError
from tolerant_client.mirror.batches.gaps import Gap, GapFill, filler_batches, filler_time
from tolerant_client.mirror.batches.rewrite import LARGEST_HOLE, SMALL_BATCH_BYTES, coalesce, must_rewrite, rewrite
from tolerant_client.records.read_committed import AbortedTransactions
from tolerant_client.records.record_batch import ABORT, BatchHeader, control_type
from tolerant_client.records.record_sets import iter_record_sets

Batch: TypeAlias = tuple[BatchHeader, memoryview]
Appendable: TypeAlias = "Batch | Gap"

FILLED_AT_ONCE: Final = 5_000_000  # offsets that are filled with records at once, 10 MB of them

NO_PRODUCER: Final = -1
_REWRITTEN_AT_ONCE: Final = 4 << 20  # bytes; the event loop is blocked meanwhile


class AppendRules(NamedTuple):
    """What the target's topic accepts; sizes are in bytes.

    With `fills_with_records` a gap becomes records among the data.  Otherwise it stays a Gap, and `filler` is asked to fill it; None
    where nobody has to.

    `remembered_ms` is how long its brokers surely remember a producer, from the timestamps of its last append.  With a `codec`
    all batches are sent in that one: the brokers store them so, and refuse those that become too large by it.
    Batches of the source that begin before `separate_until` are appended each by itself.
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
) -> Course:
    """What to append of a response to a fetch at `position`; batches from `until` on are left for later.

    `believed` are the claims of the response before, `now_ms` is the timestamp of filler without neighbours.

    Raises RecordBatchError for a response that cannot be trusted, or a batch at `position` that cannot be read, and
    OversizedRecordError for a record at `position` that no batch of the target can hold.
    """
    joined = None
    with suppress(TolerantClientError):  # found again batch by batch (Law F)
        if not rules.left_out and rules.codec is None and position >= rules.separate_until:
            joined = coalesce(
                part.records,
                position,
                until=until,
                max_batch_bytes=rules.max_batch_bytes,
                joined_bytes=rules.joined_bytes,
            )
    if joined is None:
        return _course(part, position, until, rules, believed, now_ms)
    part = part._replace(records=part.records[joined.size :])
    at, leader_epoch = joined.last.next_offset, joined.last.partition_leader_epoch
    try:
        course = _course(part, at, until, rules, believed, now_ms)
    except TolerantClientError:
        course = Course([], at, frozenset(), -1)  # found again once what lies before it is appended
    return course._replace(items=[*joined.items, *course.items], leader_epoch=max(course.leader_epoch, leader_epoch))


def _course(
    part: FetchedPartition,
    position: int,
    until: int | None,
    rules: AppendRules,
    believed: Collection[Claim],
    now_ms: int,
) -> Course:
    pieces: list[Appendable] = []
    claims: list[Claim] = []
    at, is_held = position, False
    epochs: list[tuple[int, int]] = []  # of the batches taken: base offset, leader epoch
    for piece, claim, header in _pieces(part, position):
        if claim is not None:
            claims.append(claim)
            is_held = is_held or claim not in believed
        if is_held:
            continue
        if until is not None and (piece.from_offset if isinstance(piece, Gap) else piece[0].base_offset) >= until:
            break
        pieces.append(piece)
        at = piece.until_offset if isinstance(piece, Gap) else piece[0].next_offset
        if at > header.base_offset:
            epochs.append((header.base_offset, header.partition_leader_epoch))
    items: list[Appendable] = []
    try:
        items.extend(_items(pieces, position, rules))
    except (OversizedRecordError, RecordBatchError):
        if not items:
            raise
        at = items[-1].until_offset if isinstance(items[-1], Gap) else items[-1][0].next_offset  # Law F
    if rules.fills_with_records:
        items, at = _filled(items, at, rules, now_ms)
    if pieces or claims:
        believed = [claim for claim in claims if claim.header.next_offset > at]
    return Course(items, at, frozenset(believed), next((epoch for base, epoch in reversed(epochs) if base < at), -1))


def _pieces(part: FetchedPartition, position: int) -> Iterator[tuple[Appendable, Claim | None, BatchHeader]]:
    """Committed batches and gaps in order, each with its claim, if any, and the batch that it is or precedes."""
    sets = _sound_sets(part.records, position)
    aborted = AbortedTransactions(part.aborted)
    at = position
    for (header, batch), marker in zip(sets, _markers(sets)):
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


def _sound_sets(records: memoryview, position: int) -> list[Batch]:
    """The sets before the first one that is damaged itself (Law F); raises RecordBatchError if that is the first one."""
    sets: list[Batch] = []
    try:
        sets.extend(iter_record_sets(records, from_offset=position))
    except RecordBatchError as error:
        if not sets or error.offset < sets[-1][0].next_offset:
            raise
    return sets


def _markers(sets: Sequence[Batch]) -> list[int | None]:
    """The type of the marker that ends the transaction which a set may be in; None if it is not in the response."""
    following: dict[int, int] = {}  # by producer
    found: list[int | None] = []
    for header, batch in reversed(sets):
        if header.is_control and header.record_count:
            following[header.producer_id] = control_type(batch)
        elif header.is_control:
            following.pop(header.producer_id, None)  # the cleaner has emptied it
        found.append(following.get(header.producer_id))
    return found[::-1]


def _has_loose_offsets(header: BatchHeader) -> bool:
    """True for a run of v0 or v1 messages with holes: each message's offset lies outside its CRC."""
    return header.magic < 2 and not header.codec and header.record_count != header.last_offset_delta + 1


def _items(pieces: list[Appendable], position: int, rules: AppendRules) -> Iterator[Appendable]:
    """Pieces as they are appended: runs rewritten if necessary, gaps joined."""
    run: list[Batch] = []  # to be rewritten together, from `start` on
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
        is_split = gap is not None and not (
            rules.fills_with_records and gap.until_offset - gap.from_offset <= LARGEST_HOLE
        )
        is_separate = bool(run) and run[0][0].base_offset < rules.separate_until
        if run and (is_passed or is_split or is_separate or size >= _REWRITTEN_AT_ONCE):
            yield from _run(run, start, rules)
            run, size = [], 0
        if not run:
            start = at
            if gap is not None and is_rewritten and not is_split:
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
        or any(header.base_offset <= offset < header.next_offset for offset in rules.left_out)
    )


def _run(run: list[Batch], start: int, rules: AppendRules) -> Iterator[Appendable]:
    """A run from `start` on, rewritten if necessary; an OversizedRecordError is raised after the items before its offset."""
    if len(run) == 1 and start >= run[0][0].base_offset and not _is_rewritten(run[0][0], start, rules):
        yield run[0]  # small, and alone
        return
    until = run[-1][0].next_offset
    for offset in sorted(o for o in rules.left_out if start <= o < until):
        yield from _rewritten(run, start, offset, rules)
        yield Gap(offset, offset + 1)
        start = offset + 1
    yield from _rewritten(run, start, until, rules)


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


def _filled(items: Sequence[Appendable], end: int, rules: AppendRules, now_ms: int) -> tuple[list[Appendable], int]:
    """Items with records in place of their gaps, and where they end: at `end`, or where the filler reached its limit."""
    found: list[Appendable] = []
    room = FILLED_AT_ONCE
    for number, item in enumerate(items):
        if not isinstance(item, Gap):
            found.append(item)
            continue
        after, before = items[number + 1 : number + 2], items[max(number - 1, 0) : number]
        times = [b[0].base_timestamp for b in after if not isinstance(b, Gap)]
        times += [b[0].max_timestamp for b in before if not isinstance(b, Gap)]
        batches, at = cover(item, rules, filler_time(times, now_ms), room)
        found += batches
        room -= at - item.from_offset
        if at < item.until_offset:
            return found, at
    return found, end


def cover(gap: Gap, rules: AppendRules, timestamp_ms: int, most: int = FILLED_AT_ONCE) -> tuple[list[Appendable], int]:
    """A gap as it is appended, and where that ends: the gap itself, or filler records for its first `most` offsets."""
    if not rules.fills_with_records:
        return [gap], gap.until_offset
    gap = Gap(gap.from_offset, min(gap.until_offset, gap.from_offset + most))
    batches = filler_batches(
        gap, is_compacted=rules.is_compacted, max_batch_bytes=rules.max_batch_bytes, timestamp_ms=max(timestamp_ms, 0)
    )
    return list(batches), gap.until_offset
