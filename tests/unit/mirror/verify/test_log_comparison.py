"""verify's comparison: the cuts between batches do not matter, every record does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.legacy_sets import message_set
from tolerant_client.errors import RecordBatchError, TolerantClientError
from tolerant_client.mirror.batches.gaps import FILLER, is_filler
from tolerant_client.mirror.verify import log_comparison
from tolerant_client.mirror.verify.log_columns import NO_BATCHES, read_batches
from tolerant_client.mirror.verify.log_comparison import LogComparison
from tolerant_client.mirror.verify.outcome import Difference
from tolerant_client.records.record_batch import HEADER_SIZE, BatchHeader, Record, encode_batch, read_header, restamp

SOURCE, TARGET = LogComparison.SOURCE, LogComparison.TARGET
Batch = tuple[BatchHeader, memoryview]


def log(count: int, first: int = 0) -> list[Record]:
    return [Record(first + n, 1000 + n, b"k%d" % n, b"value %d" % n, (("h", b"%d" % n),)) for n in range(count)]


def batch(
    records: Sequence[Record], codec: int = 0, until: int | None = None, base_offset: int | None = None, **more: Any
) -> Batch:
    """One batch of these records, with holes where offsets are missing."""
    base = records[0].offset if base_offset is None else base_offset
    offsets = [record.offset for record in records]
    delta = (until or offsets[-1] + 1) - 1 - base
    data = encode_batch(records, base_offset=base, offsets=offsets, last_offset_delta=delta, codec=codec, **more)
    return read_header(data), memoryview(data)


def cut(records: Sequence[Record], cuts: set[int], codec: int = 0, **more: Any) -> list[Batch]:
    """The records as batches that begin at these indexes."""
    bounds = sorted({0, *(c for c in cuts if c < len(records)), len(records)})
    return [batch(records[a:b], codec, **more) for a, b in zip(bounds, bounds[1:])]


def marker(offset: int, producer_id: int = -1, is_commit: bool = True) -> Batch:
    record = Record(offset, 1, b"\0\0\0" + bytes([is_commit]), b"")
    data = encode_batch([record], base_offset=offset, producer_id=producer_id, is_transactional=True, is_control=True)
    return read_header(data), memoryview(data)


def filler(from_offset: int, until_offset: int) -> list[Batch]:
    return [batch([Record(n, 1000, None, None, ((FILLER, None),)) for n in range(from_offset, until_offset)])]


def compare(
    source: list[Batch],
    target: list[Batch],
    start: int = 0,
    until: int | None = None,
    at_once: int = 3,
    aborted: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> LogComparison:
    """Feeds both sides as verify does, a few batches at a time; fails where verify would not end."""
    ends = [side[-1][0].next_offset if side else start for side in (source, target)]
    comparison = LogComparison(start, min(ends) if until is None else until, **options)
    for _ in range(2 * (len(source) + len(target)) + 4):
        if comparison.is_done:
            return comparison
        for side, batches in ((SOURCE, source), (TARGET, target)):
            position = comparison.position(side)
            if more := [view for header, view in batches if header.next_offset > position][:at_once]:
                add(comparison, side, b"".join(more), aborted if side == SOURCE else ())
            else:
                comparison.add(side, NO_BATCHES, comparison.until_offset)  # the log has nothing more
        comparison.compare()
        if comparison.difference is not None:
            comparison.go_behind()
        elif comparison.must_look_back:
            look_back(comparison, source, target)
    look_back(comparison, source, target)
    comparison.fail_without_proof()
    assert comparison.is_done, "the comparison does not end"
    return comparison


def look_back(comparison: LogComparison, *sides: list[Batch]) -> None:
    comparison.look_back((0, 0))
    for side, batches in enumerate(sides):
        for header, view in batches:
            if comparison.position(side) < min(comparison.look_until(side), header.next_offset):
                add(comparison, side, bytes(view))
                comparison.compare()
    comparison.end_look_back()


def add(comparison: LogComparison, side: int, data: bytes, aborted: Sequence[tuple[int, int]] = ()) -> None:
    comparison.add(side, *read_batches(memoryview(data), comparison.position(side), aborted))


cuts = st.sets(st.integers(1, 59))
codec_ids = st.integers(0, 4)


@settings(max_examples=60)
@given(st.integers(1, 60), cuts, cuts, codec_ids, codec_ids, st.integers(1, 5), st.sampled_from([1, 200, 1 << 20]))
def test_logs_cut_into_batches_differently_are_identical(
    count: int, one: set[int], other: set[int], codec: int, other_codec: int, at_once: int, decoded: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_comparison, "DECODED_BYTES", decoded)
        comparison = compare(cut(log(count), one, codec), cut(log(count), other, other_codec), at_once=at_once)
    assert comparison.difference is None
    assert comparison.identical_until == count
    assert comparison.records == count


@settings(max_examples=60)
@given(st.data())
def test_changed_record_is_found_at_its_offset(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    place = data.draw(st.integers(0, count - 1))
    own = b"%d" % place
    field, value = data.draw(
        st.sampled_from(
            [
                ("timestamp", 5),
                ("timestamp", -1),
                ("key", None),
                ("key", b""),
                ("key", b"K%d" % place),
                ("value", b"other"),
                ("value", None),
                ("value", b""),
                ("value", b"value %d" % (place + 100)),
                ("headers", ()),
                ("headers", (("h", None),)),
                ("headers", (("h", b""),)),
                ("headers", (("H", own),)),
                ("headers", (("h", own), ("h", own))),
                ("headers", (("h" + own.decode(), b""),)),
            ]
        )
    )
    changed = log(count)
    changed[place] = changed[place]._replace(**{field: value})
    codec = data.draw(codec_ids)
    comparison = compare(cut(log(count), data.draw(cuts), codec), cut(changed, data.draw(cuts), codec))
    assert comparison.difference == Difference(place, f"{field} differs")
    assert comparison.identical_until == place
    assert place <= comparison.records < count


def test_order_of_headers_counts_and_so_does_null_beside_empty() -> None:
    base = Record(0, 1, b"k", b"v", (("a", b"1"), ("b", None), ("a", b"2")))
    for other in (
        (("b", None), ("a", b"1"), ("a", b"2")),
        (("a", b"2"), ("b", None), ("a", b"1")),
        (("a", b"1"), ("b", b""), ("a", b"2")),
        (("a", b"1"), ("b", None), ("a", b"2"), ("a", b"2")),
    ):
        comparison = compare([batch([base])], [batch([base._replace(headers=other)], codec=1)])
        assert comparison.difference == Difference(0, "headers differs")
    for field in ("key", "value"):
        comparison = compare([batch([base._replace(**{field: None})])], [batch([base._replace(**{field: b""})])])
        assert comparison.difference == Difference(0, f"{field} differs")


def test_records_with_more_headers_than_numpy_reads_are_compared_one_by_one() -> None:
    many = tuple((f"h{n}", b"%d" % n if n % 3 else None) for n in range(100))
    records = [r._replace(headers=many) for r in log(4)]
    assert compare(cut(records, {1}), cut(records, {2, 3}, 4)).records == 4
    records[2] = records[2]._replace(headers=(*many[:99], ("h99", b"98")))
    comparison = compare(cut([r._replace(headers=many) for r in log(4)], {1}), cut(records, {2, 3}, 4))
    assert comparison.difference == Difference(2, "headers differs")


@settings(max_examples=60)
@given(st.data())
def test_missing_record_is_found_at_its_offset_on_either_side(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 60))
    place = data.draw(st.integers(0, count - 1))
    whole = cut(log(count), data.draw(cuts))
    holed = [r for r in log(count) if r.offset != place]
    bounds = sorted({0, *(c for c in data.draw(cuts) if c < len(holed)), len(holed)})
    parts = [batch(holed[a:b]) for a, b in zip(bounds, bounds[1:])]
    comparison = compare(whole, parts, until=count)
    assert comparison.difference == Difference(place, "missing on the target")
    comparison = compare(parts, whole, until=count)
    assert comparison.difference == Difference(place, "missing on the source")
    assert comparison.identical_until == place


def test_two_swapped_records_are_found_at_the_first() -> None:
    swapped = log(10)
    swapped[4], swapped[7] = swapped[7]._replace(offset=4), swapped[4]._replace(offset=7)
    assert compare(cut(log(10), {5}), cut(swapped, {5})).difference == Difference(4, "timestamp differs")


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 4]))
def test_any_flipped_byte_in_compressed_records_is_found_or_is_refused(seed: int, codec: int) -> None:
    """The checksum is made right again: what is left to notice is the flip itself."""
    chance = random.Random(seed)
    records = [r._replace(value=chance.randbytes(200)) for r in log(5)]
    header, view = batch(records, codec)
    flipped = bytearray(view)
    flipped[chance.randrange(HEADER_SIZE, len(flipped))] ^= 1 << chance.randrange(8)
    restamp(flipped, -1, -1, -1, 0)
    try:
        comparison = compare([(header, view)], [(read_header(flipped), memoryview(flipped))])
    except RecordBatchError:
        return
    # Some bytes of gzip's and lz4's framing mean nothing to a reader.
    assert comparison.difference is not None or comparison.records == 5


@settings(max_examples=60)
@given(st.data())
def test_records_missing_on_both_sides_are_no_difference_and_the_comparison_ends(data: st.DataObject) -> None:
    """Compacted logs: holes inside batches, and batches that end with one."""
    count = data.draw(st.integers(2, 40))
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    left = [r for r in log(count) if r.offset not in gone]

    def side() -> list[Batch]:
        bounds = sorted({0, count, *data.draw(st.sets(st.integers(1, count - 1), max_size=6))})
        batches = []
        for a, b in zip(bounds, bounds[1:]):
            inside = [r for r in left if a <= r.offset < b]
            if inside:
                batches.append(batch(inside, until=b, base_offset=a))
        return batches

    comparison = compare(side(), side())
    assert comparison.difference is None


def test_shorter_log_is_identical_as_far_as_it_goes_though_it_ends_in_a_hole() -> None:
    # The target's batch covers offsets 0 to 9 without a record at 8 and 9, the source's 0 to 20.
    records = [r for r in log(21) if r.offset not in (8, 9)]
    comparison = compare([batch(records)], [batch(records[:8], until=10)])
    assert comparison.difference is None
    assert comparison.identical_until == 10


def test_identical_batches_are_compared_without_being_opened() -> None:
    _, view = batch(log(5), codec=4)
    broken = bytearray(view)
    broken[HEADER_SIZE:] = b"\xff" * (len(broken) - HEADER_SIZE)
    copies = []
    for producer_id in (5, 6):
        restamp(broken, producer_id, 0, producer_id, 0, is_transactional=producer_id == 5)
        copies.append([(read_header(broken), memoryview(bytes(broken)))])
    comparison = compare(*copies)
    assert (comparison.identical_until, comparison.records) == (5, 5)


@pytest.mark.parametrize("side", [SOURCE, TARGET])
def test_control_batches_hold_nothing_to_compare(side: int) -> None:
    batches: list[list[Batch]] = [cut(log(5), set()), cut(log(5), {2})]
    batches[side].append(marker(5))
    comparison = compare(*batches)
    assert comparison.difference is None
    assert comparison.identical_until == 5


def test_comparison_starts_where_both_logs_have_records() -> None:
    comparison = compare(cut(log(20), {7}), cut(log(10, 10), set()), start=10)
    assert comparison.difference is not None  # these are other records at the same offsets
    same = [r for r in log(20) if r.offset >= 10]
    comparison = compare(cut(log(20), {7}), cut(same, set()), start=10)
    assert comparison.difference is None
    assert (comparison.identical_until, comparison.records) == (20, 10)


def test_slices_of_a_log_add_up_to_the_whole() -> None:
    sides = cut(log(50), {7, 20, 33}, 2), cut(log(50), {11, 30}, 4)
    parts = [compare(*sides, start=a, until=b) for a, b in ((0, 13), (13, 20), (20, 50))]
    assert [p.difference for p in parts] == [None] * 3
    assert [p.records for p in parts] == [13, 7, 30]


def test_batch_that_came_already_is_ignored() -> None:
    comparison = LogComparison(0, 5)
    for _ in range(2):
        comparison.add(SOURCE, *read_batches(batch(log(5))[1], 0))
    add(comparison, TARGET, bytes(batch(log(5))[1]))
    comparison.compare()
    assert (comparison.identical_until, comparison.records) == (5, 5)


def test_aborted_records_of_the_source_need_not_be_on_the_target() -> None:
    kept = [r for r in log(30) if not 10 <= r.offset < 20]
    source = [
        *cut(log(10), {4}),
        batch(log(30)[10:20], producer_id=77, producer_epoch=0, base_sequence=0, is_transactional=True),
        *cut(log(30)[20:29], set()),
        marker(29, 77, is_commit=False),
    ]
    target = [*cut(kept[:10], set()), *filler(10, 20), *cut(kept[10:19], {3}), *filler(29, 30)]
    comparison = compare(source, target, aborted=[(77, 10)])
    assert comparison.difference is None
    assert (comparison.records, comparison.filler) == (19, 11)
    assert compare(source, target).difference == Difference(10, "the target has filler in place of the record")


def test_filler_may_stand_only_where_the_source_has_no_record_and_only_on_the_target() -> None:
    holed = [*cut(log(3), set()), *cut(log(6)[4:], set())]
    filled = [holed[0], *filler(3, 4), holed[1]]
    comparison = compare(holed, filled)
    assert (comparison.difference, comparison.records, comparison.filler) == (None, 5, 1)
    assert compare(filled, holed).difference == Difference(3, "missing on the target")
    assert compare(filled, filled).difference is None  # a mirror of a mirror copies filler as it copies records
    assert compare(cut(log(6), set()), filled).difference == Difference(
        3, "the target has filler in place of the record"
    )


def test_record_that_only_resembles_filler_counts() -> None:
    holed = [*cut(log(3), set()), *cut(log(6)[4:], set())]
    for like in (
        Record(3, 1, None, None, ((FILLER, None),)),
        Record(3, 1, None, None, ((FILLER, b"17"),)),
        Record(3, 1, FILLER.encode(), None, ((FILLER, None),)),
        Record(3, 1, b"tolerant.fillex", None, ((FILLER, None),)),
        Record(3, 1, None, b"value", ((FILLER, None),)),
        Record(3, 1, None, b"", ((FILLER, None),)),
        Record(3, 1, b"", None, ((FILLER, None),)),
        Record(3, 1, None, None, ((FILLER, None), ("x", None))),
        Record(3, 1, None, None, (("tolerant.fillex", None),)),
        Record(3, 1, None, None),
    ):
        found = compare(holed, [holed[0], batch([like]), holed[1]]).difference
        assert found == (None if is_filler(like) else Difference(3, "missing on the source"))


def test_log_append_time_of_the_source_is_compared_as_a_time_not_as_a_type() -> None:
    stamped = cut(log(10), {5}, log_append_time=9_000)
    right = [r._replace(timestamp=9_000) for r in log(10)]
    assert compare(stamped, cut(right, {3})).difference is None
    assert compare(stamped, cut(log(10), {3})).difference == Difference(0, "timestamp differs")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_old_message_formats_are_compared_with_the_new_one(magic: int, codec: int) -> None:
    pairs = [(None, b"first"), (b"k", None), (b"", b""), (b"key", b"value" * 9)]
    data = message_set(magic, codec, pairs, 0, 1000) + message_set(magic, codec, pairs, 4, 2000)
    records = [
        Record(4 * part + n, (1000 * (part + 1) + n) if magic else -1, *pair)
        for part in (0, 1)
        for n, pair in enumerate(pairs)
    ]
    for changed in (None, 5):
        target = list(records)
        if changed is not None:
            target[changed] = target[changed]._replace(value=b"")
        comparison = LogComparison(0, 8)
        add(comparison, SOURCE, data)
        add(comparison, TARGET, b"".join(bytes(view) for _, view in cut(target, {3})))
        comparison.compare()
        assert comparison.difference == (None if changed is None else Difference(5, "value differs"))
        assert comparison.records == (8 if changed is None else 5)


def test_a_difference_where_the_ledger_tells_of_a_loss_is_one_and_the_comparison_goes_on_behind_it() -> None:
    changed = [r._replace(value=b"other") if 3 <= r.offset < 5 else r for r in log(10) if r.offset != 7]
    target = cut([r for r in changed if r.offset < 7], {4}) + cut([r for r in changed if r.offset > 7], set())
    source = cut(log(10), {6})
    comparison = compare(source, target, told=[(3, 5), (7, 8)], until=10)
    assert (comparison.told_difference, comparison.difference) == (Difference(3, "value differs"), None)
    assert (comparison.records, comparison.told_records, comparison.compared_until) == (7, 3, 10)
    comparison = compare(source, target, told=[(2, 6)], until=10)
    assert comparison.told_difference == Difference(3, "value differs")
    assert (comparison.difference, comparison.told_records) == (Difference(7, "missing on the target"), 2)
    comparison = compare(source, target, told=[(4, 8)], until=10)
    assert (comparison.told_difference, comparison.difference) == (None, Difference(3, "value differs"))
    # What is the same is the same, whatever the ledger tells.
    comparison = compare(source, cut(log(10), {2}), told=[(0, 10)])
    assert (comparison.told_difference, comparison.told_records, comparison.records) == (None, 0, 10)


def test_a_record_that_the_target_cannot_take_may_be_missing_or_filled_but_is_no_other_record() -> None:
    source = cut(log(6), {2})
    filled = [*cut(log(3), set()), *filler(3, 4), *cut(log(6)[4:], set())]
    for target in (filled, [*cut(log(3), set()), *cut(log(6)[4:], set())]):
        comparison = compare(source, target, left_out=[3])
        assert (comparison.difference, comparison.left_out_records, comparison.records) == (None, 1, 5)
        assert compare(source, target, left_out=[2, 4]).difference is not None
    other = [r._replace(value=b"other") if r.offset == 3 else r for r in log(6)]
    assert compare(source, cut(other, set()), left_out=[3]).difference == Difference(3, "value differs")
    assert compare(source, cut(log(6), set()), left_out=[3]).left_out_records == 0


def keyed(keys: str, gone: str = "") -> list[Record]:
    """A record for each letter; a capital letter is a tombstone; those at the places marked with - in `gone` are not there."""
    return [
        Record(n, 1000 + n, letter.lower().encode(), None if letter.isupper() else b"%d" % n)
        for n, letter in enumerate(keys)
        if not (n < len(gone) and gone[n] == "-")
    ]


@pytest.mark.parametrize(
    ("keys", "gone", "difference"),
    [
        ("abab", "--", None),  # both superseded
        ("abcb", "--", Difference(0, "missing on the target, and no later record has its key")),
        ("aAbb", "--", None),  # superseded by a tombstone that was removed too
        ("aBcc", " -", None),
        ("aabb", "--", Difference(1, "missing on the target, and no later record has its key")),
        ("aaab", "--", None),
        ("abcabx", "---", Difference(2, "missing on the target, and no later record has its key")),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_compacted_record_must_be_superseded(keys: str, gone: str, difference: Difference | None, size: int) -> None:
    def batches(records: list[Record]) -> list[Batch]:
        return [batch([r for r in records if a <= r.offset < a + size], until=a + size, base_offset=a)
                for a in range(0, len(keys), size) if any(a <= r.offset < a + size for r in records)]  # fmt: skip

    whole, holed = batches(keyed(keys)), batches(keyed(keys, gone))
    comparison = compare(whole, holed, until=len(keys), is_compacted=(False, True))
    assert comparison.difference == difference
    assert comparison.compacted == gone.count("-")
    turned = compare(holed, whole, until=len(keys), is_compacted=(True, True)).difference
    assert (turned and turned.offset) == (difference and difference.offset)
    assert turned is None or "write the tombstone on the source again" in turned.reason, (
        "what deleted it was not copied"
    )
    # Where the log is not compacted, nothing may be missing.
    assert compare(whole, holed, until=len(keys), is_compacted=(True, False)).difference is not None


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ("abc-x", "-bcAx", 3),  # deleted, and cleaned, only there
        ("abc-x", "abcAx", 3),  # not even cleaned
        ("abc-x", "--cAx", 1),
        ("A-b-x", "--bAx", 3),
        ("abA-x", "abAAx", 3),
        ("abcax", "abcAx", 3),
        ("aAb-a", "aAbAa", None),  # superseded on both sides
        ("-bc-x", "-bcAx", None),  # removed after what it deleted
        ("-bc-x", "abcAx", None),
        ("---Ax", "aaaAx", None),
        ("----x", "aaaAx", None),
        ("----x", "aAaAx", None),
        ("-bc-x", "abc-x", 0),  # its tombstone is gone from both sides
        ("ab-ax", "abA-x", 3),
        ("ab-bA", "-bAb-", 4),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("full", [0, 64 << 20])
def test_tombstone_may_be_missing_only_with_all_older_records_of_its_key(
    one: str, other: str, difference: int | None, size: int, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner removes it no earlier than these, so the key would be alive on one side and deleted on the other."""
    monkeypatch.setattr(log_comparison, "MAX_UNPROVED_BYTES", full)

    def batches(letters: str) -> list[Batch]:
        records = keyed(letters, "".join(letter if letter == "-" else " " for letter in letters))
        return [batch(part, until=a + size, base_offset=a) for a in range(0, len(letters), size)
                if (part := [r for r in records if a <= r.offset < a + size])]  # fmt: skip

    for source, target in ((one, other), (other, one)):
        try:
            found = compare(batches(source), batches(target), until=5, is_compacted=(True, True)).difference
        except TolerantClientError:
            assert not full, "all keys have room"
        else:
            assert (found and found.offset) == difference
    if difference == 3 and one[3] == "-" and other[3] == "A" and full:
        assert found == Difference(
            3, "the tombstone is missing on the target, which still has an older record of its key"
        )


def test_tombstones_that_one_side_has_removed_need_no_more_memory_than_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_comparison, "MAX_UNPROVED_BYTES", 200)
    records = [Record(n, 1000, b"%05d" % n, None) for n in range(1, 1000)]
    records += [Record(1000, 1000, b"last", b"v")]
    whole, cleaned = cut(records, set(range(0, 1000, 7))), [batch(records[-1:], base_offset=0)]
    for sides in ((whole, cleaned), (cleaned, whole)):
        comparison = compare(*sides, is_compacted=(True, True))
        assert (comparison.difference, comparison.compacted) == (None, 999)
    outlived = [batch([Record(0, 1000, b"00007", b"v"), records[-1]], base_offset=0)]
    found = compare(whole, outlived, is_compacted=(True, True)).difference
    assert found is not None and found.offset == 7


def test_record_behind_the_compared_range_proves_too() -> None:
    source, target = cut(keyed("abcax"), {1, 2, 3}), cut(keyed("abcax", "-"), {1, 2})
    comparison = LogComparison(0, 3, is_compacted=(False, True))
    add(comparison, SOURCE, b"".join(view for _, view in source[:3]))
    add(comparison, TARGET, bytes(target[0][1]))
    add(comparison, TARGET, bytes(target[1][1]))
    comparison.add(TARGET, NO_BATCHES, 3)
    comparison.compare()
    assert comparison.is_compared and not comparison.is_done
    assert comparison.identical_until == 0
    add(comparison, SOURCE, bytes(source[3][1]))
    comparison.compare()
    assert comparison.is_done
    assert (comparison.difference, comparison.identical_until) == (None, 3)


def test_batches_that_cannot_be_trusted_are_refused_but_not_those_before() -> None:
    good, bad = bytes(batch(log(5))[1]), bytearray(batch(log(10)[5:])[1])
    bad[-1] ^= 1
    found, end = read_batches(memoryview(good + bytes(bad)), 0)
    assert (len(found.views), end) == (1, 5)
    with pytest.raises(RecordBatchError, match="CRC"):
        read_batches(memoryview(bytes(bad)), 5)
    with pytest.raises(RecordBatchError, match="without a whole"):
        read_batches(memoryview(good[:-1]), 0)
    with pytest.raises(RecordBatchError, match="order"):
        read_batches(memoryview(bytes(batch(log(10)[5:])[1]) + good), 0)


def test_records_that_do_not_add_up_name_their_side() -> None:
    right = cut(log(6), {3})
    _, view = batch(log(6))
    broken = bytearray(view)
    broken[HEADER_SIZE + 1] ^= 0xFF
    broken[HEADER_SIZE] ^= 0x10
    restamp(broken, -1, -1, -1, 0)
    with pytest.raises(RecordBatchError, match="on the target"):
        compare(right, [(read_header(broken), memoryview(broken))])
