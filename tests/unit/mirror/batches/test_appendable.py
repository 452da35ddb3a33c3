"""What a response means for the target; the letters are the laws in appendable.py's docstring."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from support.legacy_sets import message
from tolerant_client.cluster.fetch import FetchedPartition
from tolerant_client.errors import OversizedRecordError, RecordBatchError
from tolerant_client.mirror.batches.appendable import (
    FILLED_AT_ONCE,
    Appendable,
    AppendRules,
    Claim,
    Course,
    cover,
)
from tolerant_client.mirror.batches.appendable import appendable as in_steps
from tolerant_client.mirror.batches.gaps import Gap, GapFill, is_filler
from tolerant_client.mirror.batches.rewrite import BATCHES_AT_ONCE, rewrite
from tolerant_client.records.codecs import GZIP, NONE, ZSTD
from tolerant_client.records.record_batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    read_header,
)
from tolerant_client.records.record_sets import iter_record_sets

TP = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
ABORT, COMMIT = 0, 1
WAYS = [GapFill.TRANSACTIONS, GapFill.RECORDS, GapFill.MARKERS]


def rules(way: GapFill = GapFill.TRANSACTIONS, limit: int = 1 << 20, left_out: Sequence[int] = ()) -> AppendRules:
    return AppendRules(way is GapFill.RECORDS, False, limit, left_out, filler=None if way is GapFill.RECORDS else way)


def appendable(*given: Any) -> Course:
    """All courses of a response as one."""
    courses = list(in_steps(*given))
    items = [item for course in courses for item in course.items]
    return Course(items, courses[-1].position, courses[-1].shown, max(course.leader_epoch for course in courses))


def data(
    base_offset: int, count: int = 3, *, pid: int = -1, size: int = 10, offsets: Sequence[int] | None = None
) -> bytes:
    numbers = offsets or range(base_offset, base_offset + count)
    return encode_batch(
        [Record(0, NOW_MS + n, b"%d" % n, b"v" * size) for n in numbers],
        base_offset=base_offset,
        offsets=offsets,
        producer_id=pid,
        producer_epoch=0 if pid >= 0 else -1,
        base_sequence=0 if pid >= 0 else -1,
        is_transactional=pid >= 0,
    )


def marker(offset: int, pid: int, kind: int) -> bytes:
    record = Record(0, NOW_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return encode_batch(
        [record], base_offset=offset, producer_id=pid, producer_epoch=0, is_transactional=True, is_control=True
    )


def response(*batches: bytes, aborted: Sequence[tuple[int, int]] = ()) -> FetchedPartition:
    return FetchedPartition(TP, 0, 10**9, 10**9, 0, tuple(aborted), memoryview(bytearray().join(batches)))


def twice(
    part: FetchedPartition, position: int, way: AppendRules = rules(), until: int | None = None
) -> list[Appendable]:
    """What two equal responses lead to; views are read once each, since they are stamped in place."""
    first = appendable(part, position, until, way, (), NOW_MS)
    if not first.shown:
        return first.items
    second = appendable(part, first.position, until, way, first.shown, NOW_MS)
    return [*first.items, *second.items]


def outline(items: Sequence[Appendable]) -> list[tuple[int, int, str]]:
    return [
        (i.from_offset, i.until_offset, "gap") if isinstance(i, Gap) else (i[0].base_offset, i[0].next_offset, "batch")
        for i in items
    ]


def test_law_b_whole_batches_are_the_received_bytes() -> None:
    part = response(data(10, 20, size=2000), data(30, 20, size=2000))
    course = appendable(part, 10, None, rules(), (), NOW_MS)
    assert outline(course.items) == [(10, 30, "batch"), (30, 50, "batch")]
    assert all(item[1].obj is part.records.obj for item in course.items if not isinstance(item, Gap))
    assert (course.position, course.shown) == (50, frozenset())


def test_law_b_neighbouring_small_batches_become_one() -> None:
    part = response(*(data(n, 1) for n in range(10, 60)))
    assert outline(appendable(part, 10, None, rules(), (), NOW_MS).items) == [(10, 60, "batch")]


def test_batches_from_the_end_on_are_left_for_later() -> None:
    part = response(data(10, 5), data(15, 5), data(20, 5))
    course = appendable(part, 10, 15, rules(), (), NOW_MS)
    assert (outline(course.items), course.position) == ([(10, 15, "batch")], 15)


def test_law_c_marker_is_a_gap_at_once_and_committed_data_is_not() -> None:
    part = response(data(10, 3, pid=7), marker(13, 7, COMMIT), data(14, 2, pid=7), marker(16, 7, COMMIT))
    course = appendable(part, 10, None, rules(), (), NOW_MS)
    assert outline(course.items) == [(10, 13, "batch"), (13, 14, "gap"), (14, 16, "batch"), (16, 17, "gap")]
    assert not course.shown


def test_law_c_aborted_data_is_a_gap() -> None:
    part = response(
        data(10, 3, pid=7), data(13, 2, pid=8), marker(15, 7, ABORT), marker(16, 8, COMMIT), aborted=[(7, 10)]
    )
    course = appendable(part, 10, None, rules(), (), NOW_MS)
    assert outline(course.items) == [(10, 13, "gap"), (13, 15, "batch"), (15, 17, "gap")]
    assert not course.shown


def of_epoch(batch: bytes, leader_epoch: int) -> bytes:
    return batch[:12] + struct.pack(">i", leader_epoch) + batch[16:]


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
@pytest.mark.parametrize("way", [GapFill.TRANSACTIONS, GapFill.RECORDS])
def test_an_election_while_a_transaction_is_open_is_known_by_its_marker(way: GapFill, kind: int) -> None:
    """The source ends the data's epoch before the marker: with the marker's end it would look truncated."""
    aborted = [(7, 10)] if kind == ABORT else []
    part = response(of_epoch(data(10, 3, pid=7), 5), of_epoch(marker(13, 7, kind), 6), aborted=aborted)
    course = appendable(part, 10, None, rules(way), (), NOW_MS)
    assert (course.position, course.leader_epoch) == (14, 6)
    part = response(
        of_epoch(data(10, 3, pid=7), 5), of_epoch(marker(13, 7, kind), 6), of_epoch(data(14), 6), aborted=aborted
    )
    assert appendable(part, 10, 14, rules(way), (), NOW_MS).leader_epoch == 6
    assert appendable(part, 10, 13, rules(way), (), NOW_MS).leader_epoch == 5


def places(claims: Collection[Claim]) -> set[tuple[int, int]]:
    return {(claim.header.base_offset, claim.header.next_offset) for claim in claims}


def test_law_d_hole_shown_once_holds_back_all_behind_it() -> None:
    part = response(data(10, 2), data(20, 2), data(30, 2))
    first = appendable(part, 10, None, rules(), (), NOW_MS)
    assert (outline(first.items), first.position) == ([(10, 12, "batch")], 12)
    assert places(first.shown) == {(20, 22), (30, 32)}
    part = response(data(20, 2), data(31, 2))
    second = appendable(part, 12, None, rules(), first.shown, NOW_MS)
    assert outline(second.items) == [(12, 20, "gap"), (20, 22, "batch")]
    assert places(second.shown) == {(31, 33)}


def test_law_d_batch_that_begins_before_the_position_must_be_shown_twice() -> None:
    good, bad = response(data(100, 10)), response(data(98, 10))  # one bit of the base offset
    first = appendable(bad, 100, None, rules(), (), NOW_MS)
    assert (first.items, first.position) == ([], 100)
    second = appendable(good, 100, None, rules(), first.shown, NOW_MS)
    assert [r.offset for r in committed(second.items)] == list(range(100, 110))
    assert [r.offset for r in committed(twice(response(data(98, 10)), 100))] == list(range(100, 108))


@pytest.mark.parametrize("way", WAYS)
def test_law_d_message_that_seems_to_lie_behind_a_hole_must_be_shown_twice(way: GapFill) -> None:
    messages = [message(1, n, NOW_MS, b"%d" % n, b"v") for n in [*range(9), 9 | 512]]
    first = appendable(response(*messages), 0, None, rules(way), (), NOW_MS)
    assert (first.items, first.position) == ([], 0)
    messages[-1] = message(1, 9, NOW_MS, b"9", b"v")
    second = appendable(response(*messages), 0, None, rules(way), first.shown, NOW_MS)
    assert [r.key for r in committed(second.items)] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("offsets", [[0, 1, 2, 7], [0, 1, 6, 8]])
def test_law_d_run_of_messages_is_believed_when_each_lies_where_it_did(offsets: list[int]) -> None:
    """A run's header describes only its first and its last message."""

    def run(offsets: Sequence[int]) -> FetchedPartition:
        return response(*(message(1, n, NOW_MS, b"%d" % number, b"v") for number, n in enumerate(offsets)))

    first = appendable(run([0, 1, 6, 7]), 0, None, rules(), (), NOW_MS)
    second = appendable(run(offsets), 0, None, rules(), first.shown, NOW_MS)
    assert second.items == []
    third = appendable(run(offsets), 0, None, rules(), second.shown, NOW_MS)
    assert [r.offset for r in committed(third.items)] == offsets


@pytest.mark.parametrize("lists", [([(7, 10)], []), ([], [(7, 10)]), ([(7, 10)], [(7 ^ 64, 10)])])
def test_law_d_outcome_of_a_transaction_without_its_marker_must_be_shown_twice(
    lists: tuple[list[tuple[int, int]], ...],
) -> None:
    shown = frozenset[Claim]()
    for aborted in lists:
        course = appendable(response(data(10, 3, pid=7), aborted=aborted), 10, None, rules(), shown, NOW_MS)
        assert (course.items, course.position) == ([], 10)
        shown = course.shown
    course = appendable(response(data(10, 3, pid=7), aborted=lists[-1]), 10, None, rules(), shown, NOW_MS)
    assert outline(course.items) == [(10, 13, "gap" if (7, 10) in lists[-1] else "batch")]


def test_law_d_long_transaction_goes_on_with_every_second_response_however_far_it_reaches() -> None:
    log = [data(n, 2, pid=7) for n in range(10, 50, 2)]
    position, items, shown = 10, [], frozenset[Claim]()
    for reach in range(3, 12):
        rest = [b for b in log if read_header(b).base_offset >= position][:reach]
        course = appendable(response(*rest), position, None, rules(), shown, NOW_MS)
        assert course.position > position or not shown
        items += course.items
        position, shown = course.position, course.shown
    assert_contiguous(items, 10, position)
    assert position >= 40


def test_claims_outlast_a_response_that_says_nothing() -> None:
    part = response(data(10, 2, pid=7))
    first = appendable(part, 10, None, rules(), (), NOW_MS)
    cut = appendable(response(data(10, 2, pid=7)[:30]), 10, None, rules(), first.shown, NOW_MS)
    assert (cut.items, cut.position, cut.shown) == ([], 10, first.shown)
    assert outline(appendable(part, 10, None, rules(), cut.shown, NOW_MS).items) == [(10, 12, "batch")]


def test_huge_hole_is_filled_with_records_piece_by_piece() -> None:
    end = 10 + 2 * FILLED_AT_ONCE + 5
    batches, positions, items, shown = [data(8, 2), data(end, 2)], [8], list[Appendable](), frozenset[Claim]()
    while positions[-1] < end and len(positions) < 9:
        part = response(*(b for b in batches if read_header(b).next_offset > positions[-1]))
        course = appendable(part, positions[-1], None, rules(GapFill.RECORDS), shown, NOW_MS)
        positions.append(course.position)
        items += course.items
        shown = course.shown
    assert positions == [8, 10, 10 + FILLED_AT_ONCE, 10 + 2 * FILLED_AT_ONCE, end + 2]
    assert_contiguous(items, 8, end + 2)
    assert [r.offset for r in committed([items[0], items[-1]])] == [8, 9, end, end + 1]


def test_gap_is_covered_piece_by_piece_where_it_becomes_records() -> None:
    gap = Gap(5, 5 + FILLED_AT_ONCE + 3)
    assert cover(gap, rules(), NOW_MS) == ([gap], gap.until_offset)
    items, position = cover(gap, rules(GapFill.RECORDS), NOW_MS)
    assert position == 5 + FILLED_AT_ONCE
    assert_contiguous(items, 5, position)


@pytest.mark.parametrize("trouble", ["damage", "oversized"])
def test_trouble_behind_small_batches_leaves_them_appendable(trouble: str) -> None:
    bad = bytearray(data(70, 1, size=40_000))
    if trouble == "damage":
        bad[-1] ^= 1
    part = response(*(data(n, 1) for n in range(10, 70)), bytes(bad))
    course = appendable(part, 10, None, rules(limit=35_000), (), NOW_MS)
    assert (outline(course.items), course.position) == ([(10, 70, "batch")], 70)
    with pytest.raises(RecordBatchError if trouble == "damage" else OversizedRecordError):
        appendable(response(bytes(bad)), 70, None, rules(limit=35_000), course.shown, NOW_MS)


def broken(base_offset: int, size: int) -> bytes:
    batch = bytearray(data(base_offset, size=size))
    batch[-1] ^= 1
    return bytes(batch)


def undecodable(base_offset: int, size: int) -> bytes:
    """A batch whose checksum is right and whose compressed records are not."""
    batch = bytearray(data(base_offset, size=size))
    batch[ATTRIBUTES_OFFSET + 1] |= GZIP
    struct.pack_into(">I", batch, CRC_OFFSET, crc32c.crc32c(batch[ATTRIBUTES_OFFSET:]))
    return bytes(batch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize(
    ("bad", "limit"),
    [
        (broken(16, 10), 1 << 20),
        (broken(16, 20_000), 1 << 20),
        (broken(16, 20_000), 30_000),
        (undecodable(16, 10), 1 << 20),  # a large one passes untouched
        (undecodable(16, 20_000), 30_000),
    ],
)
def test_law_f_what_lies_before_a_damaged_batch_is_appended_first(
    bad: bytes, limit: int, size: int, way: GapFill
) -> None:
    """Above its limit the target takes no batch as it is: each is decoded."""
    part = response(data(10, size=size), data(13, size=size), bad, data(19))
    course = appendable(part, 10, None, rules(way, limit), (), NOW_MS)
    assert_contiguous(course.items, 10, 16)
    assert ([r.offset for r in committed(course.items)], course.position) == (list(range(10, 16)), 16)
    with pytest.raises(RecordBatchError):
        appendable(response(bad, data(19)), 16, None, rules(way, limit), course.shown, NOW_MS)


def test_law_f_a_hole_before_a_damaged_batch_is_believed_when_it_is_shown_twice() -> None:
    assert outline(twice(response(data(12, size=20_000), broken(15, 10)), 10)) == [(10, 12, "gap"), (12, 15, "batch")]


@pytest.mark.parametrize(
    ("kind", "aborted", "reason"),
    [
        (ABORT, [], "aborts a transaction which the response lists as committed"),
        (COMMIT, [(7, 10)], "commits .* lists as aborted"),
    ],
)
def test_law_e_marker_that_contradicts_the_list_spoils_the_response(
    kind: int, aborted: list[tuple[int, int]], reason: str
) -> None:
    with pytest.raises(RecordBatchError, match=reason):
        appendable(response(data(10, 3, pid=7), marker(13, 7, kind), aborted=aborted), 10, None, rules(), (), NOW_MS)


@pytest.mark.parametrize("batches", [[data(14), data(10)], [data(10), data(11)], [data(5, 3)]])
def test_batches_that_do_not_ascend_spoil_the_response(batches: list[bytes]) -> None:
    with pytest.raises(RecordBatchError):
        appendable(response(*batches), 10, None, rules(), (), NOW_MS)


def test_record_that_fits_in_no_batch_stops_behind_what_lies_before_it() -> None:
    part = response(data(10, 3), data(13, 1, size=5000), data(14, 3))
    course = appendable(part, 10, None, rules(limit=2000), (), NOW_MS)
    assert (outline(course.items), course.position) == ([(10, 13, "batch")], 13)
    with pytest.raises(OversizedRecordError) as caught:
        appendable(response(data(13, 1, size=5000), data(14, 3)), 13, None, rules(limit=2000), (), NOW_MS)
    assert caught.value.offset == 13


@pytest.mark.parametrize("way", WAYS)
def test_record_that_policy_gave_up_becomes_a_gap(way: GapFill) -> None:
    part = response(data(10, 3), data(13, 1, size=5000), data(14, 3))
    items = twice(part, 10, rules(way, 2000, [13]))
    assert [r.offset for r in committed(items)] == [10, 11, 12, 14, 15, 16]
    assert_contiguous(items, 10, 17)


# -- many small batches -------------------------------------------------------


def small_transactions(count: int) -> list[bytes]:
    """Transactions of three producers, each of one record: 3 batches, 3 markers, and so on."""
    log = []
    for at in range(0, 6 * count, 6):
        log += [data(at + n, 1, pid=7 + n) for n in range(3)] + [marker(at + 3 + n, 7 + n, COMMIT) for n in range(3)]
    return log


def compacted(count: int) -> list[bytes]:
    """Batches of one record, of which every other one had two."""
    records = [[Record(0, NOW_MS, b"%d" % n, b"v")] for n in range(count)]
    return [encode_batch(r, base_offset=3 * n, last_offset_delta=n % 2) for n, r in enumerate(records)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [small_transactions, compacted])
def test_law_g_a_response_of_many_small_batches_is_decided_in_short_steps_and_few_rewrites(
    make: Callable[[int], list[bytes]], way: GapFill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run between two markers cost a millisecond of its own: 20 s for a response, and the claim lasts 10 s."""
    read, rewritten, rewrites, longest = 0, 0, 0, 0

    def counted_sets(*given: Any, **named: Any) -> Iterator[Any]:
        nonlocal read
        for one in iter_record_sets(*given, **named):
            read += 1
            yield one

    def counted_rewrite(run: Sequence[Any], *given: Any, **named: Any) -> Any:
        nonlocal rewritten, rewrites
        rewritten, rewrites = rewritten + len(run), rewrites + 1
        return rewrite(run, *given, **named)

    monkeypatch.setattr("tolerant_client.mirror.batches.appendable.iter_record_sets", counted_sets)
    monkeypatch.setattr("tolerant_client.mirror.batches.appendable.rewrite", counted_rewrite)
    log = make(3000)
    part, position, items, shown = response(*log), 0, [], frozenset[Claim]()
    end = read_header(log[-1]).next_offset
    while position < end:
        for course in in_steps(part, position, None, rules(way), shown, NOW_MS):
            items += course.items
            assert len(course.items) < 1100 and _end_of(course, position) == course.position
            position, shown = course.position, course.shown
            longest, read, rewritten = max(longest, read, rewritten), 0, 0
        part = response(*(each for each in log if read_header(each).next_offset > position))
    assert_contiguous(items, 0, end)
    assert len(committed(items)) == (9000 if make is small_transactions else 3000)
    assert longest <= BATCHES_AT_ONCE and rewrites <= 3


def _end_of(course: Course, position: int) -> int:
    return outline(course.items)[-1][1] if course.items else position


def test_law_b_small_batches_alone_between_gaps_are_the_received_bytes() -> None:
    log = [each for at in range(0, 20, 2) for each in (data(at, 1, pid=7), marker(at + 1, 7, COMMIT))]
    part = response(*log)
    items = appendable(part, 0, None, rules(), (), NOW_MS).items
    assert len(items) == 20 and all(item[1].obj is part.records.obj for item in items if not isinstance(item, Gap))


def test_law_b_where_gaps_take_no_offsets_small_batches_are_joined_when_they_are_sent() -> None:
    part = response(*small_transactions(10))
    items = appendable(part, 0, None, rules()._replace(filler=None), (), NOW_MS).items
    assert [kind for _, _, kind in outline(items)] == [*["batch"] * 3, "gap"] * 10
    assert all(item[1].obj is part.records.obj for item in items if not isinstance(item, Gap))


# -- any log at all -----------------------------------------------------------


def committed(items: Sequence[Appendable]) -> list[Record]:
    """The records at the offsets of the headers: in its bytes, a rewritten batch begins at 0."""
    found = []
    for item in items:
        if not isinstance(item, Gap):
            header, batch = item
            shift = header.base_offset - read_header(batch).base_offset
            found += [r._replace(offset=r.offset + shift) for r in decode_records(batch) if not is_filler(r)]
    return found


def assert_contiguous(items: Sequence[Appendable], start: int, end: int) -> None:
    for low, high, _ in outline(items):
        assert low == start < high
        start = high
    assert start == end


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int]], list[Record], int]:
    """Batches, aborted transactions, committed records and the end of a log that begins at offset 100."""
    at, batches, aborted, open_since = 100, [], [], {}
    written: list[tuple[int, Record]] = []  # with the transaction that it is in
    outcomes: dict[int, int] = {}
    transaction = 0
    current: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from([0, 0, 0, 1, 7, 6000]))  # compacted away
        step = draw(st.sampled_from(["plain", "plain", "transactional", "end"]))
        if step == "end" and current:
            pid = draw(st.sampled_from(sorted(current)))
            kind = draw(st.sampled_from([ABORT, COMMIT]))
            if kind == ABORT:
                aborted.append((pid, open_since[pid]))
            outcomes[current.pop(pid)] = kind
            batches.append(marker(at, pid, kind))
            at += 1
            continue
        pid = draw(st.sampled_from([7, 8, 9])) if step == "transactional" else -1
        if pid >= 0 and pid not in current:
            transaction += 1
            current[pid], open_since[pid] = transaction, at
        size = draw(st.sampled_from([0, 10, 3000]))
        span = draw(st.integers(1, 12))
        kept = sorted(draw(st.sets(st.integers(0, span - 1), min_size=1)))
        batch = data(at, pid=pid, size=size, offsets=[at + n for n in kept])
        if draw(st.booleans()):  # the cleaner keeps the last offset of what it empties at the end
            records = list(decode_records(memoryview(batch)))
            batch = encode_batch(
                records,
                base_offset=at,
                offsets=[r.offset for r in records],
                last_offset_delta=span - 1,
                producer_id=pid,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=pid >= 0,
            )
        batches.append(batch)
        written += [(current.get(pid, 0), record) for record in decode_records(memoryview(batch))]
        at = read_header(batch).next_offset
    for pid, number in sorted(current.items()):
        outcomes[number] = COMMIT
        batches.append(marker(at, pid, COMMIT))
        at += 1
    return batches, aborted, [r for number, r in written if not number or outcomes[number] == COMMIT], at


class Flip(NamedTuple):
    """One flipped bit in response number `response`: of a base offset, or of the list of aborted transactions."""

    response: int
    field: str
    place: int
    bit: int

    def spoil(self, part: FetchedPartition, position: int) -> FetchedPartition:
        if self.field != "base offset":
            listed = [list(pair) for pair in part.aborted]
            if listed:
                listed[self.place % len(listed)][self.field == "first offset"] ^= 1 << min(self.bit, 62)
            return part._replace(aborted=tuple((pid, first) for pid, first in listed))
        headers = [header for header, _ in iter_batches(part.records)]
        number = self.place % len(headers)
        moved = headers[number].base_offset ^ (1 << self.bit)
        # No decoder can detect these (the docstring says so).
        if moved != (headers[number - 1].next_offset if number else position):
            at = sum(header.size for header in headers[:number]) + 7 - self.bit // 8
            part.records[at] ^= 1 << self.bit % 8
        return part


FLIPS = st.builds(
    Flip,
    st.integers(0, 5),
    st.sampled_from(["base offset", "base offset", "producer id", "first offset"]),
    st.integers(0, 30),
    st.one_of(st.integers(0, 5), st.integers(0, 63)),
)


@given(logs(), st.sampled_from(WAYS), st.sampled_from([2000, 1 << 20]), st.one_of(st.none(), FLIPS), st.data())
def test_any_log_is_covered_without_a_hole_and_keeps_its_committed_records(
    log: tuple[list[bytes], list[tuple[int, int]], list[Record], int],
    way: GapFill,
    limit: int,
    flip: Flip | None,
    choices: st.DataObject,
) -> None:
    batches, aborted, records, end = log
    expected = [r for r in records if len(r.value or b"") < 1000 or limit > 2000]
    left_out = [r.offset for r in records if r not in expected]
    cut_at = choices.draw(st.integers(100, end))
    given = rules(way, limit, left_out)._replace(separate_until=cut_at)
    position, items, shown = 100, [], frozenset[Claim]()
    for number in range(400):
        if position == end:
            break
        rest = [b for b in batches if read_header(b).next_offset > position]
        rest = rest[: choices.draw(st.integers(1, len(rest)))]
        until = read_header(rest[-1]).next_offset
        listed = [pair for pair in aborted if pair[1] < until]
        ended = {
            (pid, at)
            for pid, at in listed
            if any(
                h.is_control and h.producer_id == pid and h.base_offset > at and h.next_offset <= position
                for h in map(read_header, batches)
            )
        }
        part = response(*rest, aborted=[pair for pair in listed if pair not in ended])
        if flip is not None and flip.response == number:
            part = flip.spoil(part, position)
        try:
            course: Course = appendable(part, position, None, given, shown, NOW_MS)
        except RecordBatchError:
            assert flip is not None and flip.response == number
            shown = frozenset()
            continue
        items += course.items
        position, shown = course.position, course.shown
    assert_contiguous(items, 100, end)
    assert committed(items) == expected
    assert all(item[0].size <= limit for item in items if not isinstance(item, Gap))
    across = [item for item, (low, high, _) in zip(items, outline(items)) if low < cut_at < high]
    assert not committed(across), "only filler"
    if way is GapFill.RECORDS:
        assert not any(isinstance(item, Gap) for item in items)
    taken = {r.offset for r in expected}
    assert not any(low <= offset < high for low, high, kind in outline(items) if kind == "gap" for offset in taken)


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_batches_for_a_topic_that_stores_another_codec_are_sent_in_that_and_fit_when_they_are_stored(
    codec: int,
) -> None:
    """A broker that compresses what did not shrink makes it larger."""
    small = encode_batch([Record(0, NOW_MS, b"%d" % n, bytes(4_000)) for n in range(12)], codec=ZSTD)
    noise = encode_batch([Record(0, NOW_MS, None, random.Random(n).randbytes(500)) for n in range(30)], base_offset=12)
    same = encode_batch([Record(0, NOW_MS, None, bytes(40_000))], base_offset=42, codec=GZIP)
    log = [small, noise, *([same] if codec else [])]
    course = appendable(response(*log), 0, None, rules(limit=9_000)._replace(codec=codec), (), NOW_MS)
    batches = [item for item in course.items if not isinstance(item, Gap)]
    values = [record.value for _, batch in batches for record in decode_records(batch)]
    assert values[:12] == [bytes(4_000)] * 12 and len(values) == course.position == (43 if codec else 42)
    assert {header.codec for header, _ in batches} == {NONE, codec}
    for header, batch in batches:
        stored = encode_batch(list(decode_records(batch)), base_offset=header.base_offset, codec=codec)
        assert len(stored) <= 9_000


@pytest.mark.parametrize("way", WAYS)
def test_before_a_given_offset_each_batch_is_appended_alone(way: GapFill) -> None:
    """The second has a hole, so it is rewritten; the ones from 9 on are joined."""
    log = [data(0), data(3, offsets=[3, 5]), data(6), data(9), data(12)]
    items = twice(response(*log), 0, rules(way)._replace(separate_until=9))
    assert [item[0].base_offset for item in items if not isinstance(item, Gap)][-1] == 9
    alone = [item for item in items if not isinstance(item, Gap) and item[0].base_offset < 9]
    assert all(header.next_offset - header.base_offset <= 3 for header, _ in alone)
    assert {header.next_offset for header, _ in alone} >= {3, 6, 9}
    last = items[-1]
    assert not isinstance(last, Gap) and last[0].next_offset == 15
    assert bytes(alone[0][1]) == log[0], "untouched"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left_out", [(), (4,), (5,), (6,)])
def test_a_batch_that_goes_on_at_the_given_offset_is_cut_there(way: GapFill, left_out: Sequence[int]) -> None:
    log = [data(0, 3), data(3, 6), data(9), data(12)]
    items = twice(response(*log), 0, rules(way, left_out=left_out)._replace(separate_until=5))
    assert_contiguous(items, 0, 15)
    assert {low for low, _, _ in outline(items)} >= {0, 3, 5, 9}
    assert [r.offset for r in committed(items)] == [n for n in range(15) if n not in left_out]


@pytest.mark.parametrize("step", [1, 1 << 18])
def test_filler_after_the_last_batch_of_a_step_has_the_time_of_that_batch(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tolerant_client.mirror.batches.appendable._STEP_BYTES", step)
    log = [data(0, 3, pid=7), marker(3, 7, COMMIT)]
    courses = in_steps(response(*log), 0, None, rules(GapFill.RECORDS), (), NOW_MS + 10**9)
    (_, filler) = [item for course in courses for item in course.items]
    assert not isinstance(filler, Gap)
    assert (filler[0].base_offset, filler[0].max_timestamp) == (3, read_header(log[0]).max_timestamp)
