"""verify's comparison: the cuts between batches do not matter, every record does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolerant_client.mirror.verify import Difference, LogComparison
from tolerant_client.record_batch import BatchHeader, Record, encode_batch, read_header

SOURCE, TARGET = LogComparison.SOURCE, LogComparison.TARGET
Batch = tuple[BatchHeader, memoryview]


def log(count: int, first: int = 0) -> list[Record]:
    return [Record(first + n, 1000 + n, b"k%d" % n, b"value %d" % n, (("h", b"%d" % n),)) for n in range(count)]


def batch(records: Sequence[Record], codec: int = 0, until: int | None = None, base_offset: int | None = None) -> Batch:
    """One batch of these records, with holes where offsets are missing."""
    base = records[0].offset if base_offset is None else base_offset
    offsets = [record.offset for record in records]
    delta = (until or offsets[-1] + 1) - 1 - base
    data = memoryview(encode_batch(records, base_offset=base, offsets=offsets, last_offset_delta=delta, codec=codec))
    return read_header(data), data


def cut(records: Sequence[Record], cuts: set[int], codec: int = 0) -> list[Batch]:
    """The records as batches that begin at these indexes."""
    bounds = sorted({0, *(c for c in cuts if c < len(records)), len(records)})
    return [batch(records[a:b], codec) for a, b in zip(bounds, bounds[1:])]


def compare(source: list[Batch], target: list[Batch], start: int = 0, at_once: int = 3) -> LogComparison:
    """Feeds both sides as verify does, a few batches at a time; fails where verify would not end."""
    comparison = LogComparison(start)
    ends = [side[-1][0].next_offset if side else start for side in (source, target)]
    for _ in range(2 * (len(source) + len(target)) + 4):
        if comparison.difference is not None or comparison.identical_until >= min(ends):
            return comparison
        for side, batches in ((SOURCE, source), (TARGET, target)):
            position = comparison.position(side)
            if comparison.needs(side) and position < min(ends):
                for header, view in [b for b in batches if b[0].next_offset > position][:at_once]:
                    comparison.add(side, header, view)
        comparison.compare()
    raise AssertionError("the comparison does not end")


cuts = st.sets(st.integers(1, 59))
codec_ids = st.integers(0, 4)


@given(st.integers(1, 60), cuts, cuts, codec_ids, codec_ids, st.integers(1, 5))
def test_logs_cut_into_batches_differently_are_identical(
    count: int, one: set[int], other: set[int], codec: int, other_codec: int, at_once: int
) -> None:
    comparison = compare(cut(log(count), one, codec), cut(log(count), other, other_codec), at_once=at_once)
    assert comparison.difference is None
    assert comparison.identical_until == count
    assert comparison.records == count


@given(st.data())
def test_changed_record_is_found_at_its_offset(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    place = data.draw(st.integers(0, count - 1))
    field, value = data.draw(
        st.sampled_from([("timestamp", 5), ("key", None), ("key", b""), ("value", b"other"), ("value", None), ("headers", ())])
    )
    changed = log(count)
    changed[place] = changed[place]._replace(**{field: value})
    comparison = compare(cut(log(count), data.draw(cuts)), cut(changed, data.draw(cuts)))
    assert comparison.difference == Difference(place, f"{field} differs")
    assert comparison.identical_until == place


@given(st.data())
def test_missing_record_is_found_at_its_offset_on_either_side(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 60))
    place = data.draw(st.integers(1, count - 2))
    whole = cut(log(count), data.draw(cuts))
    holed = [r for r in log(count) if r.offset != place]
    bounds = sorted({0, *(c for c in data.draw(cuts) if c < len(holed)), len(holed)})
    parts = [batch(holed[a:b]) for a, b in zip(bounds, bounds[1:])]
    comparison = compare(whole, parts)
    assert comparison.difference == Difference(place, "missing on the target")
    comparison = compare(parts, whole)
    assert comparison.difference == Difference(place, "missing on the source")
    assert comparison.identical_until == place


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

    source, target = side(), side()
    comparison = compare(source, target)
    assert comparison.difference is None


def test_shorter_log_is_identical_as_far_as_it_goes_though_it_ends_in_a_hole() -> None:
    # The target's batch covers offsets 0 to 9 without a record at 8 and 9, the source's 0 to 20.
    records = [r for r in log(21) if r.offset not in (8, 9)]
    comparison = compare([batch(records)], [batch(records[:8], until=10)])
    assert comparison.difference is None
    assert comparison.identical_until == 10


def test_identical_batches_are_compared_without_being_opened() -> None:
    header, view = batch(log(5), codec=4)
    broken = bytearray(view)
    broken[61:] = b"\xff" * (len(broken) - 61)
    comparison = LogComparison(0)
    comparison.add(SOURCE, header, memoryview(broken))
    comparison.add(TARGET, header, memoryview(broken))
    comparison.compare()
    assert (comparison.identical_until, comparison.records) == (5, 5)


@pytest.mark.parametrize("side", [SOURCE, TARGET])
def test_control_batches_hold_nothing_to_compare(side: int) -> None:
    marker = memoryview(encode_batch([Record(5, 1, b"\0\0\0\1", b"")], base_offset=5, is_transactional=True, is_control=True))
    batches: list[list[Batch]] = [cut(log(5), set()), cut(log(5), {2})]
    batches[side].append((read_header(marker), marker))
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


def test_batch_that_came_already_is_ignored() -> None:
    comparison = LogComparison(0)
    for _ in range(2):
        comparison.add(SOURCE, *batch(log(5)))
    comparison.add(TARGET, *batch(log(5)))
    comparison.compare()
    assert (comparison.identical_until, comparison.records) == (5, 5)
