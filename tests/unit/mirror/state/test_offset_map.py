"""The offset map: exact for every offset, on both sides, through rows, transactions and compaction."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from support.long import LONG
from tolerant_client.errors import OffsetMapError, TargetDivergedError
from tolerant_client.mirror.batches.losses import LossReason
from tolerant_client.mirror.batches.merge import dense
from tolerant_client.mirror.engine.translated.target_checks import (
    LostOffsets,
    check_target,
    find_losses,
    is_same_record,
    overwritten,
    resumption,
    taken_over,
)
from tolerant_client.mirror.state.offset_map import (
    RUNS_PER_ROW,
    CommittedRows,
    MapRow,
    OffsetMap,
    Place,
    RowKey,
    Run,
    begun_again,
    extend,
    join_runs,
)
from tolerant_client.records.record_batch import BatchHeader, Record, decode_records, encode_batch, read_header

PARTITION = TopicPartition("orders", 3)
IDS = ("source-id", "target-id")
T0 = 1_700_000_000_000


def rows_of(transactions: Iterable[list[Run]], position: int | None = None) -> dict[int, MapRow]:
    """What a compacted topic holds after these transactions: the last row of each number."""
    kept: dict[int, MapRow] = {}
    last = None
    for runs in transactions:
        until = runs[-1].source_until if position is None else position
        for row in extend(last, PARTITION, "copy", IDS, runs, until, 7):
            last = kept[row.key.number] = MapRow.decode(RowKey.decode(row.key.encode()), row.encode())
    return kept


# Steps to the next run on both sides, and its length.
runs_strategy = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=200)


@settings(max_examples=500 if LONG else 40)
@given(runs_strategy, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.randoms(use_true_random=False))
def test_every_offset_of_both_sides_is_translated_as_a_plain_search_does(
    steps: list[tuple[int, int, int]], source: int, target: int, rng: random.Random
) -> None:
    runs = []
    for source_step, target_step, length in steps:
        source, target = source + source_step, target + target_step
        runs.append(Run(source, target, length))
        source, target = runs[-1].source_until, runs[-1].target_until
    transactions = []
    rest = runs
    while rest:
        size = rng.randint(1, 90)
        transactions.append(rest[:size])
        rest = rest[size:]
    found = OffsetMap(rows_of(transactions).values())
    pairs = [(run.source + n, run.target + n) for run in runs for n in range(run.length)]
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    assert found.position == sources[-1] + 1
    for offset in range(max(0, sources[0] - 2), sources[-1] + 4):
        at = bisect.bisect_left(sources, offset)
        expected = targets[at] if at < len(pairs) else targets[-1] + 1
        translation = found.translate(offset)
        assert translation.translated == expected
        is_record = at < len(pairs) and sources[at] == offset
        assert (translation.place is Place.RECORD) == is_record
        assert (translation.place is Place.NOT_COPIED) == (offset > found.position)
    for offset in range(max(0, targets[0] - 2), targets[-1] + 4):
        at = bisect.bisect_left(targets, offset)
        back = found.source_of(offset)
        assert back.translated == (sources[at] if at < len(pairs) else sources[-1] + 1)
        assert (back.place is Place.RECORD) == (at < len(pairs) and targets[at] == offset)


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (90, (-1, Place.BEFORE_TAKEOVER)),
        (105, (15, Place.RECORD)),  # by this link, before MirrorMaker 2 went on
        (115, (-1, Place.BEFORE_TAKEOVER)),  # the next run is far behind its record
        (199, (-1, Place.BEFORE_TAKEOVER)),
        (200, (61, Place.NEXT)),
        (203, (62, Place.RECORD)),
        (207, (66, Place.END)),
        (300, (66, Place.NOT_COPIED)),
    ],
)
def test_what_another_mirror_has_copied_has_no_translation(offset: int, found: tuple[int, Place]) -> None:
    rows = rows_of([[Run(100, 10, 10)], [Run(202, 61, 5)]], 210)
    assert OffsetMap(rows.values(), 200).translate(offset)[1:3] == found


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (5, (-1, Place.BEFORE_TAKEOVER)),
        (12, (102, Place.RECORD)),
        (40, (-1, Place.BEFORE_TAKEOVER)),  # a copy by the other mirror
        (61, (202, Place.RECORD)),
        (70, (207, Place.END)),
    ],
)
def test_copies_by_another_mirror_are_nobodys_on_the_way_back(offset: int, found: tuple[int, Place]) -> None:
    rows = rows_of([[Run(100, 10, 10)], [Run(202, 61, 5)]], 210)
    assert OffsetMap(rows.values(), 200).source_of(offset)[1:3] == found


def test_before_anything_is_copied_after_a_takeover_only_older_copies_are_known() -> None:
    known = OffsetMap(rows_of([[Run(100, 10, 10)]]).values(), 200)
    assert known.position == 200
    assert known.translate(104)[1:3] == (14, Place.RECORD)
    for offset in (110, 200, 250):
        assert known.translate(offset).place is Place.BEFORE_TAKEOVER


def test_a_link_that_took_over_goes_on_where_it_took_over() -> None:
    (row,) = extend(None, PARTITION, "copy", IDS, [Run(50, 100, 50)], 100, 7)
    assert taken_over(row, PARTITION, IDS, 150, 90) == row
    after = taken_over(row, PARTITION, IDS, 250, 180)
    assert after is not None and (after.position, after.epoch, after.runs) == (180, -1, row.runs), (
        "the epoch may have ended before it"
    )
    assert find_losses(after, IDS[0], 150, 200) == [], "what retention took before it was copied by the other mirror"
    assert find_losses(after, IDS[0], 180, 200) == []
    ((loss, error),) = find_losses(after, IDS[0], 190, 200)
    assert loss[1:] == (180, 190) and "no longer has offsets 180 to 190" in str(error)


def test_a_row_is_filled_up_before_the_next_begins_and_final_ones_stay() -> None:
    last = None
    for n in range(3 * RUNS_PER_ROW):
        rows = extend(last, PARTITION, "copy", IDS, [Run(10 * n, 10 * n + n, 10)], 10 * n + 10, 7)
        assert [row.key.number for row in rows] == [n // RUNS_PER_ROW]
        last = rows[-1]
    assert last is not None and len(last.runs) == RUNS_PER_ROW


def test_a_transaction_of_many_runs_makes_many_rows_and_only_the_last_has_the_position() -> None:
    runs = [Run(2 * n, n, 1) for n in range(3 * RUNS_PER_ROW)]
    rows = extend(None, PARTITION, "copy", IDS, runs, 1_000_000, 7)
    assert [len(row.runs) for row in rows] == [RUNS_PER_ROW] * 3
    assert [row.position for row in rows] == [127, 255, 1_000_000]


def test_a_row_of_a_beginning_has_a_position_and_gives_way_to_the_first_records() -> None:
    (begun,) = extend(None, PARTITION, "copy", IDS, [], 50, -1)
    assert MapRow.decode(begun.key, begun.encode()) == begun and begun.position == 50 and not begun.has_copied
    (later,) = extend(begun, PARTITION, "copy", IDS, [], 60, 7)
    assert later.position == 60 and not later.has_copied
    (row,) = extend(later, PARTITION, "copy", IDS, [Run(60, 5, 10)], 70, 7)
    assert row.runs == (Run(60, 5, 10),) and row.key == begun.key and row.has_copied
    ((loss, _),) = find_losses(begun, IDS[0], 80, 90)
    assert loss == LostOffsets(LossReason.RETENTION, 50, 80)
    ((loss, _),) = find_losses(begun, "another", 0, 90)
    assert loss.reason is LossReason.RECREATION
    check_target(begun, "dr", PARTITION, (IDS[0], "another"), 0)  # nothing is there that could be gone


def lives(*rows: MapRow) -> OffsetMap:
    """The map of rows that were written one after the other, as a compacted topic holds them."""
    return OffsetMap({row.key.number: row for row in rows}.values())


def test_what_was_copied_of_a_former_topic_translates_nothing_of_the_one_that_was_made_anew() -> None:
    (former,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    ids = ("another", IDS[1])
    anew = begun_again(former, ids, 0, 0)
    assert MapRow.decode(anew.key, anew.encode()) == anew and not anew.has_copied
    assert not lives(former, anew).runs and lives(former, anew).position == 0, "nothing of the new one is copied"
    with pytest.raises(TargetDivergedError, match="ends at offset 499"):
        check_target(anew, "dr", TopicPartition("copy", 3), ids, 499)
    (written,) = extend(anew, PARTITION, "copy", ids, [], 0, -1)
    assert written == anew and begun_again(anew, ("third", IDS[1]), 5, 5).key == anew.key
    (row,) = extend(written, PARTITION, "copy", ids, [Run(2, 501, 30)], 32, 0)
    known = lives(former, written, row)
    assert known.translate(10)[1:3] == (509, Place.RECORD)
    assert known.translate(0)[1:3] == (501, Place.NEXT)
    assert known.translate(50)[1:3] == (531, Place.NOT_COPIED)
    assert known.source_of(450)[1:3] == (2, Place.NEXT), "the way back from a record of the former topic"


def test_a_log_that_was_cut_has_its_new_records_from_the_cut_on() -> None:
    (former,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    cut = begun_again(former, IDS, 60, 60)
    known = lives(former, cut)
    assert (known.position, known.runs) == (60, [Run(0, 400, 60)])
    assert known.translate(60)[1:3] == (500, Place.END), "not into what the source no longer has"
    assert known.translate(70)[1:3] == (500, Place.NOT_COPIED)
    (row,) = extend(cut, PARTITION, "copy", IDS, [Run(60, 501, 50)], 110, 9)
    known = lives(former, cut, row)
    assert known.runs == [Run(0, 400, 60), Run(60, 501, 50)]
    assert known.translate(70)[1:3] == (511, Place.RECORD)
    assert known.source_of(470)[1:3] == (60, Place.NEXT), "the source no longer has what lies there"


@pytest.mark.parametrize("lost", range(2 * RUNS_PER_ROW + 5))
def test_what_a_lost_version_of_a_row_told_of_has_no_translation(lost: int) -> None:
    """The part of the map loses the transactions from `lost` on, and the writer goes on with the next row, by what it knows."""
    runs = [Run(3 * at, 500 + 2 * at, 1) for at in range(3 * RUNS_PER_ROW)]
    versions = [rows_of([[run] for run in runs[:until]]) for until in range(1, len(runs) + 1)]
    for first in range(
        2 * RUNS_PER_ROW + 1, len(runs) + 1, RUNS_PER_ROW - 1
    ):  # what is written again is the row at that time
        newest = max(versions[first - 1])
        kept = {**(versions[lost - 1] if lost else {}), newest: versions[first - 1][newest]}
        known, whole = OffsetMap(kept.values()), OffsetMap(versions[first - 1].values())
        for offset in range(3 * first):
            found = known.translate(offset)
            if found.place is Place.DELETED:
                assert not lost, "the first rows may have been deleted: nothing tells"
            else:
                assert found == whole.translate(offset) or found.place is Place.LOST_ROW
        for offset in range(500, 500 + 2 * first):
            back = known.source_of(offset)
            assert back.place is Place.DELETED or back == whole.source_of(offset) or back.place is Place.LOST_ROW
        told = {run.source for run in known.runs}
        missing = {run.source for run in runs[:first] if run.source not in told}
        assert all(not known.translate(offset).place.is_known for offset in missing) or not lost


def test_a_hole_before_a_log_that_begins_again_is_one() -> None:
    rows = [
        MapRow(RowKey(PARTITION, 0), "copy", IDS, 10, 7, (Run(0, 400, 10),)),
        MapRow(RowKey(PARTITION, 1), "copy", IDS, 60, 7, (Run(50, 450, 0),)),
    ]
    known = OffsetMap(rows)
    assert [known.translate(offset).place for offset in (9, 10, 49, 50)] == [
        Place.RECORD,
        Place.LOST_ROW,
        Place.LOST_ROW,
        Place.END,
    ]
    assert (known.source_of(409).place, known.source_of(420).place) == (Place.RECORD, Place.LOST_ROW)


def test_a_log_that_was_cut_and_whose_start_is_beyond_that_by_now_has_lost_no_row() -> None:
    """Retention has deleted what the source had between: it is no record that was copied and is not told of."""
    (former,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 20)], 20, 7)
    found = resumption(former, former, IDS, 26, 30, 0, cut_at=12)
    assert found.position == 26 and found.row is not None
    (row,) = extend(found.row, PARTITION, "copy", IDS, [Run(26, 430, 4)], 30, 9)
    for known in (lives(former, found.row), lives(former, found.row, row)):
        assert [known.translate(offset).place for offset in (11, 12, 15, 25)] == [
            Place.RECORD,
            *[Place.NEXT if len(known.runs) > 1 else Place.END] * 3,
        ]


def test_what_holds_no_records_behind_a_cut_is_translated_to_what_comes_after_it() -> None:
    """An aborted transaction, or what the cleaner took, lies at the cut: the row that begins there still says so."""
    (former,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    cut = begun_again(former, IDS, 60, 60)
    (looked,) = extend(cut, PARTITION, "copy", IDS, [], 70, 9)
    known = lives(former, cut, looked)
    assert looked.position == 70 and not looked.has_copied and known.runs == [Run(0, 400, 60)]
    assert known.translate(65)[1:3] == (500, Place.END) and known.source_of(470)[1:3] == (60, Place.END)
    (row,) = extend(looked, PARTITION, "copy", IDS, [Run(70, 501, 50)], 120, 9)
    (row,) = extend(row, PARTITION, "copy", IDS, [Run(121, 560, 5)], 126, 9)
    assert MapRow.decode(row.key, row.encode()) == row and row.has_copied
    known = lives(former, cut, looked, row)
    assert known.runs == [Run(0, 400, 60), Run(70, 501, 50), Run(121, 560, 5)]
    assert known.translate(65)[1:3] == (501, Place.NEXT) and known.translate(59)[1:3] == (459, Place.RECORD)
    again = begun_again(row, IDS, 65, 65)
    assert lives(former, row, again).runs == [Run(0, 400, 60)] and lives(former, row, again).position == 65


def test_of_two_cuts_with_nothing_copied_between_the_first_one_stays() -> None:
    (former,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    (looked,) = extend(begun_again(former, IDS, 50, 50), PARTITION, "copy", IDS, [], 60, 9)
    again = begun_again(looked, IDS, 55, 55)
    (row,) = extend(again, PARTITION, "copy", IDS, [Run(56, 501, 40)], 96, 9)
    assert again.position == 55 and lives(former, again).translate(52)[1:3] == (500, Place.END)
    assert lives(former, row).translate(52)[1:3] == (501, Place.NEXT)


def test_neighbours_on_both_sides_are_one_run() -> None:
    assert join_runs([Run(0, 10, 5), Run(5, 15, 5), Run(10, 21, 1), Run(12, 22, 1)]) == [
        Run(0, 10, 10),
        Run(10, 21, 1),
        Run(12, 22, 1),
    ]


@pytest.mark.parametrize("wrong", [Run(99, 200, 1), Run(100, 149, 1)])
def test_an_answer_that_contradicts_the_map_is_an_error(wrong: Run) -> None:
    (row,) = extend(None, PARTITION, "copy", IDS, [Run(50, 100, 50)], 100, 7)
    with pytest.raises(OffsetMapError, match="orders-3"):
        extend(row, PARTITION, "copy", IDS, [wrong], 101, 7)


def test_rows_that_do_not_ascend_are_not_trusted() -> None:
    rows = [MapRow(RowKey(PARTITION, n), "copy", IDS, 200, 7, (Run(100, 100 - n, 10),)) for n in range(2)]
    with pytest.raises(OffsetMapError, match="does not ascend"):
        OffsetMap(rows)


def test_rows_taken_away_make_older_offsets_deleted_not_wrong() -> None:
    rows = rows_of([[Run(10 * n, 11 * n, 10)] for n in range(3 * RUNS_PER_ROW)])
    assert sorted(rows) == [0, 1, 2]
    del rows[0]
    found = OffsetMap(rows.values())
    first = 10 * RUNS_PER_ROW
    assert found.translate(first - 1)[1:3] == (11 * RUNS_PER_ROW, Place.DELETED)
    assert found.translate(first)[1:3] == (11 * RUNS_PER_ROW, Place.RECORD)
    assert found.source_of(5)[1:3] == (first, Place.DELETED)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b"{}"),
        (b"7", b"{}"),
        (b'["orders",3]', b"{}"),
        (b'["orders","3",0]', b"{}"),
        (b'["orders",3,0]', b"no json"),
        (b'["orders",3,0]', b'{"version":2,"target":"copy","ids":["",""],"position":10,"epoch":0,"runs":[0,0,10]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":["",""],"position":9,"epoch":0,"runs":[0,0,10]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":["",""],"position":10,"epoch":0,"runs":[0,0]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":["",""],"position":10,"epoch":0,"runs":[0,-1,10]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":[],"position":10,"epoch":0,"runs":[0,0,10]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":["",""],"position":10,"epoch":0,"runs":[]}'),
        (b'["orders",3,0]', b'{"version":1,"target":"copy","ids":["",""],"position":10,"runs":[0,0,10]}'),
    ],
)
def test_what_is_no_row_is_named_with_its_place_and_without_its_content(key: bytes | None, value: bytes) -> None:
    batch = memoryview(encode_batch([Record(0, T0, key, value)], base_offset=41))
    with pytest.raises(OffsetMapError, match="map-2 offset 41") as raised:
        list(CommittedRows("map-2").feed(read_header(batch), batch))
    assert "orders" not in str(raised.value)


# -- where to go on ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "start", "end", "cut_at", "lost"),
    [
        (IDS, 0, 100, None, []),
        (IDS, 100, 150, None, []),
        (("", ""), 0, 100, None, []),
        (IDS, 130, 150, None, [(LossReason.RETENTION, 100, 130)]),
        (IDS, 0, 60, None, [(LossReason.TRUNCATION, 60, 100)]),
        (IDS, 0, 150, 80, [(LossReason.TRUNCATION, 80, 100)]),
        (IDS, 120, 150, 80, [(LossReason.TRUNCATION, 80, 100), (LossReason.RETENTION, 80, 120)]),
        (("another", "target-id"), 0, 150, None, [(LossReason.RECREATION, 100, 100)]),
        (("another", "target-id"), 0, 50, None, [(LossReason.RECREATION, 100, 100)]),
        (("another", "target-id"), 120, 150, None, [(LossReason.RECREATION, 100, 100)]),
    ],
)
def test_what_the_source_has_lost_is_told_with_its_offsets(
    ids: tuple[str, str], start: int, end: int, cut_at: int | None, lost: list[tuple[LossReason, int, int]]
) -> None:
    (found,) = extend(None, PARTITION, "copy", IDS, [Run(0, 0, 100)], 100, 7)
    losses = find_losses(found, ids[0], start, end, cut_at)
    assert [loss for loss, _ in losses] == lost and all("orders-3" in str(error) for _, error in losses)


@pytest.mark.parametrize(
    ("target", "ids", "log_end", "words"),
    [
        ("other", IDS, 500, "not to other"),
        ("copy", ("source-id", "another"), 500, "created again"),
        ("copy", IDS, 499, "ends at offset 499"),
    ],
)
def test_a_target_that_cannot_hold_what_the_map_says_is_named(
    target: str, ids: tuple[str, str], log_end: int, words: str
) -> None:
    (found,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    check_target(found, "link", TopicPartition("copy", 3), IDS, 500)
    with pytest.raises(TargetDivergedError, match=words):
        check_target(found, "link", TopicPartition(target, 3), ids, log_end)


@pytest.mark.parametrize("is_there", [(False, True), (True, False), (False, False)])
def test_another_record_where_the_last_one_was_copied_says_that_the_target_lost_it(is_there: tuple[bool, bool]) -> None:
    (found,) = extend(None, PARTITION, "copy", IDS, [Run(0, 400, 100)], 100, 7)
    original, copied = Record(99, T0, b"k", b"v"), Record(499, T0, b"k", b"v")
    assert is_same_record(original, copied)
    other = copied._replace(value=b"of an application")
    assert not is_same_record(original, other)
    assert is_same_record(*(record if known else None for record, known in zip((original, other), is_there)))
    words = "copy-3 has at offset 499 another record than the one of orders-3, offset 99"
    assert words in str(overwritten(found, "link"))


# -- rows and the transactions they are in ------------------------------------


def row(number: int, partition: TopicPartition = PARTITION) -> MapRow:
    return MapRow(RowKey(partition, number), "copy", IDS, 10, 7, (Run(0, 0, 10),))


def data(producer_id: int, rows: Iterable[MapRow], is_transactional: bool = True) -> bytes:
    records = [Record(0, T0, r.key.encode(), r.encode()) for r in rows]
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=is_transactional
    )


def marker(producer_id: int, is_commit: bool) -> bytes:
    key = b"\0\0\0\1" if is_commit else b"\0\0\0\0"
    return encode_batch(
        [Record(0, T0, key, bytes(6))],
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )


def test_only_committed_rows_are_given_out_in_the_order_of_their_commits() -> None:
    committed = CommittedRows("map-0")
    given_out = []
    log = [
        data(1, [row(0)]),
        data(2, [row(1)]),
        data(3, [row(2)]),
        data(1, [row(3)]),
        marker(2, is_commit=True),
        marker(3, is_commit=False),
        marker(1, is_commit=True),
        data(3, [row(4)]),
        marker(9, is_commit=True),
        data(4, [row(5)]),
        marker(3, is_commit=True),
        encode_batch([Record(0, T0, row(0).key.encode(), None)]),
    ]
    for batch in map(memoryview, log):
        given_out += [(key.number, found) for key, found in committed.feed(read_header(batch), batch)]
    assert [number for number, _ in given_out] == [1, 0, 3, 4, 0]
    assert given_out[-1] == (0, None)


# -- batches with holes between them ------------------------------------------


def value_of(number: int) -> bytes:
    return random.Random(number).randbytes(90)  # which no codec makes smaller


def batches_of(offsets: list[list[int]], codec: int) -> list[tuple[BatchHeader, memoryview]]:
    found = []
    for group in offsets:
        records = [Record(0, T0 + n, b"k%d" % n, value_of(n), (("h", b"%d" % n),)) for n in group]
        batch = memoryview(bytearray(encode_batch(records, codec=codec)))
        found.append((read_header(batch)._replace(base_offset=group[0]), batch))
    return found


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("max_batch_bytes", [1 << 20, 400])
def test_batches_with_holes_between_become_few_and_say_where_each_record_is_from(
    codec: int, max_batch_bytes: int
) -> None:
    groups = [[5, 6, 7], [8], [10, 11], [100], [101, 102], [1 << 33]]
    made = dense(batches_of(groups, codec), max_batch_bytes, None)
    assert (len(made) == 1) == (max_batch_bytes > 400)
    found = []
    for header, batch, spans in made:
        assert header.record_count == header.last_offset_delta + 1 == sum(count for _, count in spans)
        assert len(batch) <= max_batch_bytes
        offsets = [source + n for source, count in spans for n in range(count)]
        for offset, record in zip(offsets, decode_records(batch), strict=True):
            n = int((record.key or b"")[1:])
            assert (record.timestamp, record.value, record.headers) == (T0 + n, value_of(n), (("h", b"%d" % n),))
            assert n == offset
            found.append(n)
    assert found == [n for group in groups for n in group]
    if len(made) == 1:
        assert made[0].spans == ((5, 4), (10, 2), (100, 3), (1 << 33, 1))


def test_one_batch_alone_is_not_touched() -> None:
    ((header, batch),) = batches_of([[7, 8, 9]], 0)
    before = bytes(batch)
    (made,) = dense([(header, batch)], 1 << 20, None)
    assert made.batch is batch and bytes(batch) == before and made.spans == ((7, 3),)
