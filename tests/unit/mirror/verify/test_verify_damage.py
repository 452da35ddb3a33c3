"""Every kind of damage, planted in otherwise identical logs, is found at its first offset; undamaged logs are identical.

A log is made twice: as a model (what each offset holds, and what a read_committed consumer sees of it) and as the bytes
that a broker would respond with.  What verify must say is derived from the models, what it says comes from the bytes.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from kafka.structs import TopicPartition

from support.legacy_sets import message_set
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.verify import log_comparison
from tolerant_client.mirror.verify.log_columns import NO_BATCHES, read_batches
from tolerant_client.mirror.verify.outcome import Outcome
from tolerant_client.mirror.verify.report import LedgerRange, LogBounds, PartitionReport, partition_report
from tolerant_client.mirror.verify.slices import Running, Slice
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.records.record_sets import iter_record_sets

PARTITION = TopicPartition("t", 0)
T0 = 1_700_000_000_000
REASONS = ("retention", "truncation", "recreation", "oversized", "refused")
ABORTED, LIVE = 77, 5  # producer ids


@dataclass
class Log:
    """What each offset holds: `records` are seen, `aborted` and `markers` are not; all others are holes."""

    end: int
    records: dict[int, Record] = field(default_factory=dict)
    aborted: dict[int, Record] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    magic: int = 2
    is_compacted: bool = False

    def seen(self, *, is_target: bool) -> dict[int, Record]:
        return {o: r for o, r in self.records.items() if not (is_target and r.headers == ((FILLER, None),))}


def records_of(chance: random.Random, count: int, keys: int | None, magic: int) -> list[Record]:
    made = []
    for n in range(count):
        key = b"%d" % chance.randrange(keys) if keys else chance.choice((None, b"", b"k%d" % n))
        is_tombstone = keys is not None and chance.random() < 0.1
        value = None if is_tombstone else b"%d " % n + b"." * chance.randrange(30)
        headers = (
            () if magic < 2 else tuple((f"h{h}", chance.choice((None, b"%d" % n))) for h in range(chance.randrange(3)))
        )
        time = T0 + (n if magic < 2 else 3 * n - chance.randrange(9))
        made.append(Record(n, -1 if magic == 0 else time, key, value, headers))
    return made


def source_log(chance: random.Random, kind: str, count: int) -> Log:
    magic = int(kind[1]) if kind in ("v0", "v1") else 2
    compacted = kind == "compacted"
    log = Log(count, magic=magic, is_compacted=compacted)
    for record in records_of(chance, count, max(2, count // 4) if compacted else None, magic):
        log.records[record.offset] = record
    if kind == "transactional":
        at = 0
        while at < count:
            run = chance.randrange(1, 9)
            if chance.random() < 0.4:
                log.aborted |= {o: log.records.pop(o) for o in range(at, min(at + run, count - 1)) if o in log.records}
            marker = min(at + run, count - 1)
            log.records.pop(marker, None)
            log.markers.add(marker)
            at = marker + 1
    return log


def clean(chance: random.Random, log: Log, passes: int) -> None:
    """As a cleaner: each pass reaches further, removes what a later record there supersedes, and tombstones that one before left."""
    end, old = 0, set[int]()
    for _ in range(passes):
        end = chance.randrange(end, log.end + 1)
        last = {r.key: o for o, r in sorted(log.records.items()) if o < end}
        for offset, record in list(log.records.items()):
            if offset < end and (last[record.key] != offset or (offset in old and chance.random() < 0.5)):
                del log.records[offset]
        old = {o for o, r in log.records.items() if o < end and r.value is None}


def copy_of(chance: random.Random, source: Log) -> Log:
    """The target as the mirror leaves it: where the source has no record, filler, a marker or aborted filler."""
    filler = Record(0, T0, None, None, ((FILLER, None),))
    log = Log(source.end, dict(source.records), is_compacted=source.is_compacted)
    for offset in range(source.end):
        if offset not in source.records and not source.is_compacted:
            way = chance.randrange(3)
            if way == 0:
                log.markers.add(offset)
            else:
                (log.records if way == 1 else log.aborted)[offset] = filler._replace(offset=offset)
    return log


def encoded(chance: random.Random, log: Log) -> list[bytes]:
    """The log as batches, cut anywhere, each with a codec of its own."""
    offsets = sorted({*log.records, *log.aborted, *log.markers})
    batches, at = [], 0
    while at < len(offsets):
        first = offsets[at]
        if first in log.markers:
            control = Record(first, 1, b"\0\0\0\0", b"")
            batches.append(
                encode_batch([control], base_offset=first, producer_id=ABORTED, is_transactional=True, is_control=True)
            )
            at += 1
            continue
        held = log.records if first in log.records else log.aborted
        until = at + 1
        most = chance.choice((1, 3, 50, 1000))
        while until < len(offsets) and offsets[until] in held and until - at < most:
            if log.magic < 2 and offsets[until] != offsets[until - 1] + 1:
                break
            until += 1
        run = [held[o] for o in offsets[at:until]]
        if log.magic < 2:
            pairs = [(r.key, r.value) for r in run]
            batches.append(message_set(log.magic, chance.randrange(4), pairs, first, max(0, run[0].timestamp)))
        else:
            who = ABORTED if held is log.aborted else chance.choice((-1, LIVE))
            given = offsets[at:until]
            batches.append(
                encode_batch(
                    run,
                    base_offset=first,
                    offsets=given,
                    codec=chance.randrange(5),
                    producer_id=who,
                    producer_epoch=min(who, 0),
                    base_sequence=min(who, 0),
                    is_transactional=who == ABORTED,
                )
            )
        at = until
    return batches


def until_of(data: bytes) -> int:
    return [header.next_offset for header, _ in iter_record_sets(memoryview(data))][-1]


def compared(chance: random.Random, source: Log, target: Log, ledger: tuple[LedgerRange, ...] = ()) -> PartitionReport:
    """What verify says; the two loops are those of SlicesComparison, without brokers."""
    bounds = LogBounds(0, source.end, source.end, 0, target.end, target.end)
    start, until = bounds.common
    told = tuple(row[:2] for row in ledger)
    running = Running(Slice("t", 0, start, until, (source.is_compacted, target.is_compacted), told), 1 << 20)
    log = running.log
    sides = []
    for side in (source, target):
        batches = encoded(chance, side)
        sides.append((batches, [until_of(data) for data in batches]))
    aborted = [aborted_runs(side) for side in (source, target)]
    while not log.is_done:
        for number, (batches, ends) in enumerate(sides):
            position = log.position(number)
            if log.is_looking_back and position >= log.look_until(number):
                continue
            first = bisect.bisect_right(ends, position)
            behind = min(len(ends), first + chance.randrange(1, 6 + len(ends) // 20))
            if first == behind:
                log.add(number, NO_BATCHES, (source, target)[number].end)
                continue
            # A broker tells of every aborted transaction that reaches into its response.
            pairs = [(ABORTED, start) for start, end in aborted[number] if start < ends[behind - 1] and end >= position]
            log.add(number, *read_batches(memoryview(b"".join(batches[first:behind])), position, pairs))
        log.compare()
        if log.difference is not None:
            if running.suspect == log.difference:
                if not log.go_behind():
                    break
            else:
                running.suspect = log.difference
                log.start_over()
        elif log.is_looking_back:
            if all(log.position(n) >= log.look_until(n) for n in range(2)):
                log.end_look_back()
        elif log.is_compared and all(log.position(n) >= side.end for n, side in enumerate((source, target))):
            if not log.unproved.tombstones:
                log.fail_without_proof()
                break
            log.look_back((0, 0))
    return partition_report(
        PARTITION, bounds, [running.result()] if until > start else [], allow_behind=False, ledger=ledger
    )


def aborted_runs(log: Log) -> list[tuple[int, int]]:
    """Where aborted data begins, and the marker that ends it."""
    markers = sorted(log.markers)
    starts = [o for o in sorted(log.aborted) if o - 1 not in log.aborted]
    return [(start, [*markers, log.end][bisect.bisect_right(markers, start)]) for start in starts]


def first_difference(source: Log, target: Log) -> int | None:
    """What is to be found, from the models alone."""
    one, other = source.seen(is_target=False), target.seen(is_target=True)
    until = min(source.end, target.end)
    last: dict[bytes | None, int] = {}
    for log in (one, other):
        for offset, record in log.items():
            last[record.key] = max(last.get(record.key, -1), offset)
    for offset in range(until):
        mine, theirs = one.get(offset), other.get(offset)
        if mine is not None and theirs is None and target.is_compacted and offset not in target.records:
            if may_be_missing(mine, other, last):
                continue
        if mine is None and theirs is not None and source.is_compacted:
            if may_be_missing(theirs, one, last):
                continue
        if mine != theirs:
            return offset
    return None if source.end == target.end else until


def may_be_missing(record: Record, there: dict[int, Record], last: dict[bytes | None, int]) -> bool:
    if record.key is None or last[record.key] > record.offset:
        return True
    return record.value is None and record.key not in {r.key for r in there.values()}


# -- damage: each changes the target, and returns False where there is nothing to damage ----


def put(log: Log, offset: int, record: Record | None) -> None:
    for held in (log.records, log.aborted):
        held.pop(offset, None)
    log.markers.discard(offset)
    if record is not None:
        log.records[offset] = record._replace(offset=offset)


def shift(log: Log, at: int, by: int) -> None:
    """Everything from `at` on lies `by` offsets further."""
    log.records, log.aborted = (
        {o + by * (o >= at): r._replace(offset=o + by * (o >= at)) for o, r in held.items()}
        for held in (log.records, log.aborted)
    )
    log.markers = {o + by * (o >= at) for o in log.markers}
    log.end += by


def lose(chance: random.Random, source: Log, target: Log) -> None:
    put(target, chance.choice(sorted(source.records)), None)


def lose_the_last_of_a_key(chance: random.Random, source: Log, target: Log) -> None:
    last = {r.key: o for o, r in sorted(source.records.items())}
    put(
        target,
        chance.choice([o for o in last.values() if source.records[o].value is not None] or [source.end - 1]),
        None,
    )


def lose_the_tombstone_of_a_key(chance: random.Random, source: Log, target: Log) -> None:
    last = {r.key: o for o, r in sorted(source.records.items())}
    if deleted := [o for o in last.values() if source.records[o].value is None]:
        put(target, chance.choice(deleted), None)


def double(chance: random.Random, source: Log, target: Log) -> None:
    """A batch is appended twice, all behind it is shifted: the log ends later."""
    at = chance.randrange(1, target.end + 1)
    again = [target.records.get(o) for o in range(max(0, at - chance.randrange(1, 9)), at)]
    shift(target, at, len(again))
    for number, record in enumerate(again):
        put(target, at + number, record)


def double_and_go_on(chance: random.Random, source: Log, target: Log) -> None:
    """A batch is appended twice, then some are missing: behind them every offset is right again."""
    at = chance.randrange(1, max(2, target.end))
    count = chance.randrange(1, min(9, at + 1))
    until = min(at + chance.randrange(1, 50), target.end)
    held = {o: target.records.get(o) for o in range(target.end)}
    for offset in range(at, until):
        put(target, offset, held[offset - count])


def shift_by_one(chance: random.Random, source: Log, target: Log) -> None:
    at = chance.randrange(target.end)
    shift(target, at, 1)
    target.end -= 1
    put(target, target.end, None)


def swap(chance: random.Random, source: Log, target: Log) -> None:
    one, other = chance.sample(sorted(source.records), 2) if len(source.records) > 1 else [0, 0]
    if one != other:
        first, second = target.records[one], target.records[other]
        put(target, one, second)
        put(target, other, first)


def change(name: str, value: object) -> Callable[[random.Random, Log, Log], None]:
    def damage(chance: random.Random, source: Log, target: Log) -> None:
        offset = chance.choice(sorted(source.records))
        target.records[offset] = target.records[offset]._replace(**{name: value})

    damage.__name__ = f"change_{name}_to_{value}"
    return damage


def fill(chance: random.Random, source: Log, target: Log) -> None:
    put(target, chance.choice(sorted(source.records)), Record(0, T0, None, None, ((FILLER, None),)))


def mark(chance: random.Random, source: Log, target: Log) -> None:
    offset = chance.choice(sorted(source.records))
    put(target, offset, None)
    target.markers.add(offset)


def append(chance: random.Random, source: Log, target: Log) -> None:
    target.end += 1
    put(
        target,
        target.end - 1,
        chance.choice((Record(0, T0, b"x", b"more"), Record(0, T0, None, None, ((FILLER, None),)))),
    )


def end_early(chance: random.Random, source: Log, target: Log) -> None:
    until = chance.randrange(target.end)
    for offset in range(until, target.end):
        put(target, offset, None)
    target.end = until


def show_what_was_aborted(chance: random.Random, source: Log, target: Log) -> None:
    if source.aborted:
        offset = chance.choice(sorted(source.aborted))
        put(target, offset, source.aborted[offset])


def add_where_the_source_has_none(chance: random.Random, source: Log, target: Log) -> None:
    free = [o for o in range(source.end) if o not in source.records]
    if free:
        put(target, chance.choice(free), Record(0, T0, b"a key of its own", b"foreign"))


DAMAGE = [
    lose,
    lose_the_last_of_a_key,
    lose_the_tombstone_of_a_key,
    double,
    double_and_go_on,
    shift_by_one,
    swap,
    change("timestamp", 5),
    change("key", b"other"),
    change("key", b"1"),
    change("value", b"other"),
    change("value", None),
    change("headers", (("other", None),)),
    fill,
    mark,
    append,
    end_early,
    show_what_was_aborted,
    add_where_the_source_has_none,
]
KINDS = ["plain", "transactional", "compacted", "v0", "v1"]


def logs(seed: str, count: int) -> tuple[random.Random, Log, Log]:
    chance = random.Random(seed)
    source = source_log(chance, seed.split()[0], count)
    target = copy_of(chance, source)
    if source.is_compacted:
        for log in (source, target):
            clean(chance, log, chance.randrange(4))
    return chance, source, target


SMALL = [
    (f"{kind} {n}", random.Random(f"{kind} {n} size").choice((1, 2, 7, 60, 200))) for kind in KINDS for n in range(3)
]
LARGE = [(f"{kind} large", 10_000) for kind in KINDS]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """So that a window of decoded records ends anywhere in short logs."""
    if "large" not in request.node.name:
        monkeypatch.setattr(log_comparison, "DECODED_BYTES", random.Random(request.node.name).choice((1, 500, 1 << 20)))


@pytest.mark.parametrize(("seed", "count"), SMALL + LARGE)
def test_undamaged_logs_are_identical_whatever_the_ledger_tells(seed: str, count: int) -> None:
    chance, source, target = logs(seed, count)
    for ledger in ((), tuple(LedgerRange(0, count, reason) for reason in REASONS)):
        found = compared(chance, source, target, ledger)
        assert (found.first_difference, found.outcome) == (None, Outcome.IDENTICAL)
        assert (found.compared, found.told_records) == (count, 0)
        assert found.records == len(source.records.keys() & target.records.keys())


@pytest.mark.parametrize("seed", [f"compacted cleaned {n}" for n in range(150)])
def test_a_lost_record_is_found_unless_a_cleaning_or_a_later_record_of_its_key_explains_it(seed: str) -> None:
    chance = random.Random(seed)
    whole = source_log(chance, "compacted", chance.randrange(4, 40))
    for record in list(whole.records.values()):
        if chance.random() < 0.3:
            whole.records[record.offset] = record._replace(value=None)
    sides = [replace(whole, records=dict(whole.records)) for _ in range(2)]
    for log in sides:
        clean(chance, log, chance.randrange(4))
    assert compared(chance, *sides).outcome is Outcome.IDENTICAL

    log = chance.choice([log for log in sides if log.records])
    lost = log.records.pop(chance.choice(sorted(log.records)))
    given, left = ([o for o, r in sorted(each.records.items()) if r.key == lost.key] for each in (whole, log))
    is_clean = given[len(given) - len(left) :] == left and (left or whole.records[given[-1]].value is None)
    outcome = compared(chance, *sides).outcome
    if is_clean:
        assert outcome is Outcome.IDENTICAL
    elif all(offset < lost.offset for offset in left) and any(lost.offset in side.records for side in sides):
        assert outcome is Outcome.DIFFERENT
    if outcome is Outcome.IDENTICAL:
        one, other = ({r.key: r.value for _, r in sorted(side.records.items())} for side in sides)
        assert all(one.get(key) == other.get(key) for key in one.keys() | other.keys()), "another table"


@pytest.mark.parametrize(("seed", "count"), SMALL)
def test_damage_is_found_at_its_first_offset_with_and_without_rows_of_the_ledger(seed: str, count: int) -> None:
    for damage in DAMAGE:
        check(seed, count, damage)


@pytest.mark.parametrize(("number", "seed", "count"), [(number, *large) for number, large in enumerate(LARGE)])
def test_damage_is_found_in_long_logs(number: int, seed: str, count: int) -> None:
    for damage in DAMAGE[number :: len(LARGE)]:
        check(seed, count, damage)


def check(seed: str, count: int, damage: Callable[[random.Random, Log, Log], None]) -> None:
    chance, source, target = logs(seed, count)
    target.records |= source.records  # else a cleaner may have taken what is to be changed
    if source.records:
        damage(chance, source, target)
    expected = first_difference(source, target)
    for ledger in ((), rows_around(chance, expected, count)):
        found = compared(chance, source, target, ledger)
        difference = found.first_difference
        what = damage.__name__, expected, difference
        assert found.outcome is (Outcome.IDENTICAL if expected is None else Outcome.DIFFERENT), what
        if expected is None or difference is None:
            continue
        if not source.is_compacted:
            assert (difference.offset, found.identical_until) == (expected, expected), what
        else:  # what is missing before a difference might still have been proved behind it: then it is not the one named
            assert found.identical_until <= expected <= difference.offset, what


def rows_around(chance: random.Random, offset: int | None, count: int) -> tuple[LedgerRange, ...]:
    """Rows that excuse nothing, of every reason, over the damage."""
    at = offset or 0
    return tuple(
        LedgerRange(max(0, at - chance.randrange(9)), at + 1 + chance.randrange(9), reason) for reason in REASONS
    )
