"""What verify says of a partition and of all, and what a later run takes from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.cli.verify import _rows, print_report, verdict
from tolerant_client.errors import OptionError, OversizedRecordError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.batches.rewrite import rewrite
from tolerant_client.mirror.logs.committed import Committed
from tolerant_client.mirror.state.copied_back import CopiedBack
from tolerant_client.mirror.state.ledger import limit_of
from tolerant_client.mirror.verify.outcome import Difference, NotCompared, Outcome, covered, worst
from tolerant_client.mirror.verify.report import (
    LedgerRange,
    LogBounds,
    PartitionReport,
    Resumed,
    VerifyReport,
    Waiting,
    partition_report,
    read_state,
    share,
)
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.records.record_batch import Record, encode_batch, read_header

PARTITION = TopicPartition("t", 0)
IDS: dict[str, Any] = {
    "source": {"cluster": "a", "topics": {"t": "1"}},
    "target": {"cluster": "b", "topics": {"t": "2"}},
}
WRONG = Difference(25, "value differs")
IDENTICAL, EXPLAINED, NOT_COMPARED, DIFFERENT = Outcome
OPEN = "an open transaction"


def done(start: int, until: int, **more: Any) -> SliceResult:
    return SliceResult(
        Slice("t", 0, start, until), more.pop("records", until - start), more.pop("compared_until", until), **more
    )


def logs(*bounds: int | None) -> LogBounds:
    """(source start, end, target start, end), or with the last stable offsets as LogBounds has them."""
    if len(bounds) == 4:
        bounds = (bounds[0], bounds[1], bounds[1], bounds[2], bounds[3], bounds[3])
    return LogBounds(*bounds)


def report(bounds: tuple[int | None, ...], *results: SliceResult, **more: Any) -> PartitionReport:
    options = {"allow_behind": False, "waiting": (Waiting(OPEN), Waiting(OPEN)), **more}
    return partition_report(PARTITION, logs(*bounds), results, **options)


def test_what_was_never_to_be_copied_is_told_apart_from_what_the_target_no_longer_has() -> None:
    found = report((0, 40, 30, 40), done(30, 40), begun_at=10)
    assert [part[:2] for part in found.not_compared] == [(0, 10), (10, 30)] and found.outcome is NOT_COMPARED
    assert "never to be copied" in found.not_compared[0].reason and "no longer has them" in found.not_compared[1].reason
    (only,) = report((5, 40, 10, 40), done(10, 40), begun_at=20).not_compared
    assert only[:2] == (5, 10) and "never to be copied" in only.reason


@pytest.mark.parametrize(("target_end", "gone"), [(0, []), (30, ["0 to 30"]), (60, ["0 to 50"])])
def test_the_target_has_nothing_where_its_log_has_ended(target_end: int, gone: list[str]) -> None:
    """The source has lost its first 50 offsets."""
    found = report((50, 100, 0, target_end), *([done(50, 60)] if target_end == 60 else []))
    assert found.identical_until == target_end
    assert [offsets for *_, offsets, _, said in _rows(found) if "the source no longer has what" in said] == gone


@pytest.mark.parametrize(
    ("bounds", "back", "is_other"),
    [
        ((0, 30, 0, 20), CopiedBack("link back has copied back to it"), True),  # applications write at home again
        ((0, 20, 0, 30), CopiedBack("link back has copied back to it"), True),  # the link back lags
        (
            (0, 30, 0, 20),
            CopiedBack("link back has copied back to it", 20),
            True,
        ),  # and what the target has had since is cut
        ((0, 20, 0, 20), CopiedBack("link back has copied back to it", 20), True),
        ((0, 20, 0, 20), CopiedBack("link back has copied back to it"), False),  # nothing differs
    ],
)
@pytest.mark.parametrize("allow_behind", [False, True])
def test_a_target_that_was_copied_back_is_neither_different_nor_identical_where_the_logs_differ_since(
    bounds: tuple[int, ...], back: CopiedBack, is_other: bool, allow_behind: bool
) -> None:
    found = report(bounds, done(0, 20), back=back, allow_behind=allow_behind)
    assert found.outcome is (NOT_COMPARED if is_other else IDENTICAL) and found.compared == 20 and not found.lag
    text = f"the target is no longer the source's copy: {back.why}"
    assert found.error == (text if is_other else None) and found.first_difference is None
    said = [row[-1] for row in _rows(found)]
    assert said[:1] == ([f"not compared: {text}"] if is_other else [])
    wrong = report(bounds, done(0, 20, compared_until=15, difference=WRONG._replace(offset=15)), back=back)
    assert wrong.outcome is DIFFERENT, "what was found counts"
    damaged = report(bounds, done(0, 20, compared_until=5, error="a checksum is wrong"), back=back)
    assert (damaged.error, damaged.outcome) == ("a checksum is wrong", NOT_COMPARED)


def test_only_a_difference_is_called_one_where_a_report_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    unread = "the brokers of the source do not respond, so what it has there is unknown"
    for error, begin, is_different in ((unread, "t-0: not compared: the brokers", False), (None, "t-0", True)):
        part = report(
            (0, 40, 0, 40), done(0, 40, compared_until=25, difference=WRONG if is_different else None, error=error)
        )
        print_report(VerifyReport((part,), 40, 0.1, {}))
        said = capsys.readouterr().out
        assert ("first difference" in said) is is_different and begin in said
        assert ("first difference: offset 25: value differs" in said) is is_different


def test_heartbeats_after_the_end_of_a_promoted_copy_are_not_compared() -> None:
    for bounds, until, found in (
        (logs(0, 96, 96, 0, 62, 62), 60, logs(0, 60, 60, 0, 62, 62)),  # two fences: the promotion was repeated
        (logs(0, 60, 60, 0, 61, 61), 60, logs(0, 60, 60, 0, 61, 61)),
        (logs(80, 96, 96, 0, 62, 62), 60, logs(60, 60, 60, 0, 62, 62)),  # retention has taken those that were copied
        (logs(0, 96, 96, 0, 62, 62), None, logs(0, 96, 96, 0, 62, 62)),
    ):
        assert bounds.source_before(until) == found


def test_slices_are_put_together_up_to_the_first_that_differs() -> None:
    found = report((0, 40, 0, 40), done(0, 20), done(20, 30, compared_until=25, difference=WRONG), done(30, 40))
    assert (found.identical_until, found.first_difference, found.records) == (25, WRONG, 40)
    assert (found.held, found.compared) == (40, 36)  # the rest of the second slice was not
    assert found.not_compared == (NotCompared(26, 30, "they are after the difference at offset 25"),)


def test_slice_that_could_not_be_compared_ends_what_is_identical_but_hides_no_difference() -> None:
    wrong = Difference(35, "value differs")
    parts = done(0, 20, compared_until=12, error="no leader"), done(20, 40, compared_until=35, difference=wrong)
    found = report((0, 40, 0, 40), *parts)
    assert (found.identical_until, found.first_difference, found.error) == (12, wrong, "no leader")
    assert found.outcome is DIFFERENT
    assert report((0, 40, 0, 40), parts[0], done(20, 40)).outcome is NOT_COMPARED


def test_a_difference_that_the_ledger_tells_of_is_one_and_the_first_other_one_is_said_too() -> None:
    told, other = Difference(3, "value differs"), Difference(30, "key differs")
    rows = [LedgerRange(3, 5, "truncation")]
    found = report((0, 40, 0, 40), done(0, 40, told_difference=told, told_records=2), ledger=rows)
    assert (found.outcome, found.first_difference, found.untold_difference) == (DIFFERENT, told, None)
    assert (found.identical_until, found.compared, found.ledger, found.told_records) == (3, 40, tuple(rows), 2)
    found = report((0, 40, 0, 40), done(0, 40, told_difference=told, difference=other, compared_until=30), ledger=rows)
    assert (found.first_difference, found.untold_difference, found.identical_until) == (told, other, 3)


def test_what_the_source_has_after_the_end_of_the_target_is_told_as_far_as_it_was_read() -> None:
    for rest, told in (
        (None, ""),
        (Committed(0, 45), ", and how many committed records the source has after that is unknown: they could not be read"),
        (Committed(1, 48), ", and the source has 1 committed record after that"),
        (Committed(3, 45), ", and the source has at least 3 committed records after that"),
    ):  # fmt: skip
        found = report((0, 48, 0, 40), done(0, 40), rest=rest)
        (gap,) = found.not_compared
        assert gap.reason == f"the target log ends at 40{told}" and gap.matters
        assert found.outcome is (NOT_COMPARED if rest == Committed(0, 45) else DIFFERENT), (
            "without a record it is no difference"
        )


GONE = Difference(40, "the target log ends earlier, and the source no longer has its offsets 40 to 50")
EARLY, LATE = Difference(40, "the target log ends earlier"), Difference(40, "the source log ends earlier")
NO_TARGET = Difference(0, "the target has no such partition")


@pytest.mark.parametrize(
    ("bounds", "options", "difference", "outcome", "compared", "gaps"),
    [
        ((0, 40, 0, 40), {}, None, IDENTICAL, (40, 40), []),
        # One log starts later.
        ((5, 40, 0, 40), {}, None, IDENTICAL, (35, 35), []),
        ((0, 40, 5, 40), {}, None, NOT_COMPARED, (35, 40), [(0, 5)]),
        ((0, 40, 40, 40), {}, None, NOT_COMPARED, (0, 40), [(0, 40)]),
        ((0, 40, 60, 60), {}, Difference(40, "the source log ends earlier"), DIFFERENT, (0, 40), [(0, 40)]),
        ((40, 40, 0, 40), {}, None, IDENTICAL, (0, 0), []),
        ((0, 0, 0, 0), {}, None, IDENTICAL, (0, 0), []),
        # One log ends earlier.
        ((0, 41, 0, 40), {}, EARLY, DIFFERENT, (40, 41), [(40, 41)]),
        ((0, 41, 0, 40), {"allow_behind": True}, None, IDENTICAL, (40, 41), [(40, 41)]),
        ((0, 48, 0, 40), {"rest": Committed(0, 48)}, None, IDENTICAL, (48, 48), []),
        ((0, 48, 0, 40), {"rest": Committed(0, 47)}, None, NOT_COMPARED, (40, 48), [(40, 48)]),
        ((0, 48, 0, 40), {"rest": Committed(1, 48)}, EARLY, DIFFERENT, (40, 48), [(40, 48)]),
        ((0, 8, 0, 0), {"rest": Committed(0, 8)}, None, IDENTICAL, (8, 8), []),
        ((0, 40, 0, 0), {}, Difference(0, "the target log ends earlier"), DIFFERENT, (0, 40), [(0, 40)]),
        ((0, 40, 0, 0), {"allow_behind": True}, None, NOT_COMPARED, (0, 40), [(0, 40)]),
        ((50, 50, 0, 40), {"allow_behind": True}, None, NOT_COMPARED, (0, 0), []),
        ((50, 50, 0, 40), {}, GONE, DIFFERENT, (0, 0), []),
        ((50, 60, 0, 40), {"rest": Committed(0, 60)}, GONE, DIFFERENT, (0, 10), [(50, 60)]),
        ((0, 40, 0, 45), {}, LATE, DIFFERENT, (40, 40), []),
        ((0, 40, 0, 45), {"allow_behind": True}, LATE, DIFFERENT, (40, 40), []),
        ((0, 40, 0, 45), {"ledger": [LedgerRange(38, 45, "truncation")]}, LATE, DIFFERENT, (40, 40), []),
        # One side has no such partition.
        ((0, 40, None, None), {}, NO_TARGET, DIFFERENT, (0, 40), [(0, 40)]),
        ((0, 40, None, None), {"allow_behind": True}, None, NOT_COMPARED, (0, 40), [(0, 40)]),
        ((None, None, 7, 40), {}, Difference(7, "the source has no such partition"), DIFFERENT, (0, 0), []),
        ((None, None, 0, 0), {}, None, IDENTICAL, (0, 0), []),
        # An open transaction: source start, last stable offset, end; target's.
        ((0, 40, 60, 0, 40, 40), {}, None, NOT_COMPARED, (40, 60), [(40, 60)]),
        ((0, 0, 60, 0, 0, 0), {}, None, NOT_COMPARED, (0, 60), [(0, 60)]),
        ((0, 40, 60, 0, 40, 40), {"waiting": (Waiting(OPEN, False), Waiting(""))}, None, IDENTICAL, (40, 60), [(40, 60)]),
        ((0, 40, 60, 0, 50, 50), {}, Difference(40, "the source has not committed what the target has"), DIFFERENT, (40, 60), [(40, 60)]),
        ((0, 60, 60, 0, 40, 60), {}, None, NOT_COMPARED, (40, 60), [(40, 60)]),
        ((0, 60, 60, 0, 40, 50), {"allow_behind": True}, None, NOT_COMPARED, (40, 60), [(40, 50), (50, 60)]),
        # What the ledger tells of.
        ((5, 40, 0, 40), {"ledger": [LedgerRange(2, 5, "retention", True)]}, None, EXPLAINED, (35, 35), []),
        ((5, 40, 5, 40), {"ledger": [LedgerRange(2, 5, "retention", True)]}, None, IDENTICAL, (35, 35), []),
        ((5, 40, 0, 40), {"ledger": [LedgerRange(2, 5, "truncation")]}, None, IDENTICAL, (35, 35), []),
    ],
)  # fmt: skip
def test_what_is_said_before_a_record_is_compared(
    bounds: tuple[int | None, ...],
    options: dict[str, Any],
    difference: Difference | None,
    outcome: Outcome,
    compared: tuple[int, int],
    gaps: list[tuple[int, int]],
) -> None:
    start, until = logs(*bounds).common
    found = report(bounds, *([done(start, until)] if until > start else []), **options)
    assert (found.first_difference, found.outcome) == (difference, outcome)
    assert (found.compared, found.held) == compared
    assert [part[:2] for part in found.not_compared] == gaps


@pytest.mark.parametrize(
    ("difference", "error", "matters", "held", "compared", "explained", "outcome"),
    [
        (None, None, None, 10, 10, 0, IDENTICAL),
        (None, None, None, 0, 0, 0, IDENTICAL),
        (None, None, None, 10, 10, 2, EXPLAINED),
        (None, None, False, 10, 4, 0, IDENTICAL),
        (None, None, False, 10, 0, 0, NOT_COMPARED),
        (None, None, True, 10, 9, 0, NOT_COMPARED),
        (None, None, True, 10, 9, 2, NOT_COMPARED),
        (None, "unreadable", None, 10, 10, 0, NOT_COMPARED),
        (WRONG, None, None, 10, 10, 0, DIFFERENT),
        (WRONG, "unreadable", True, 10, 0, 3, DIFFERENT),
    ],
)
def test_outcome_of_a_range(
    difference: Difference | None,
    error: str | None,
    matters: bool | None,
    held: int,
    compared: int,
    explained: int,
    outcome: Outcome,
) -> None:
    gaps = [] if matters is None else [NotCompared(0, 1, "why", matters)]
    bounds, ends = (None,) * 6, {"first_difference": difference, "not_compared": tuple(gaps), "error": error}
    found = PartitionReport("t", 0, *bounds, 0, held=held, compared=compared, explained=explained, **ends)
    assert found.outcome is outcome


def test_the_worst_outcome_counts_and_has_an_exit_code_of_its_own() -> None:
    assert [outcome.exit_code for outcome in (IDENTICAL, DIFFERENT, NOT_COMPARED, EXPLAINED)] == [0, 1, 2, 3]
    assert worst([IDENTICAL, EXPLAINED]) is EXPLAINED
    assert worst([NOT_COMPARED, EXPLAINED]) is NOT_COMPARED
    assert worst([NOT_COMPARED, DIFFERENT, IDENTICAL]) is DIFFERENT
    assert worst([]) is NOT_COMPARED


def whole(*parts: PartitionReport) -> VerifyReport:
    return VerifyReport(parts, sum(p.records for p in parts), 1.0, IDS)


def test_nothing_compared_is_not_identical() -> None:
    empty, full = report((0, 0, 0, 0)), report((0, 40, 0, 40), done(0, 40))
    assert (whole(empty).outcome, whole(empty).identical) == (NOT_COMPARED, False)
    assert verdict(whole(empty)).startswith("NOTHING COMPARED: 0 of 0 offsets")
    assert whole(empty, full).outcome is IDENTICAL
    assert verdict(whole(empty, full)).startswith("identical: 40 of 40 offsets of the source compared (100 %)")


def test_verdict_says_the_share_and_what_the_ledger_explains() -> None:
    behind = report((0, 3000, 0, 2999), done(0, 2999), allow_behind=True)
    assert verdict(whole(behind)) == (
        "identical: 2,999 of 3,000 offsets of the source compared (99.9 %), 2,999 records, in 1.0 s, the target is 1 offset behind"
    )
    explained = report((0, 40, 0, 40), done(0, 40, left_out=1))
    assert verdict(whole(explained)).startswith("identical except 1 offset that the ledger explains: 40 of 40")
    emptied = report((0, 40, 40, 40))
    assert verdict(whole(emptied)).startswith("NOTHING COMPARED: 0 of 40 offsets")
    short = report((0, 40, 5, 40), done(5, 40))
    assert verdict(whole(short)).startswith("NOT COMPARED to the end: 35 of 40 offsets")
    hidden = PartitionReport("t", 1, *(None,) * 6, 0, error="we may not describe it")
    assert verdict(whole(report((0, 40, 0, 40), done(0, 40)), hidden)).startswith(
        "NOT COMPARED to the end: 40 of 40 offsets of the source compared, besides 1 partition that could not be counted, 40 records"
    )
    assert whole(report((0, 40, 0, 40), done(0, 40)), hidden).as_json()["share"] is None
    wrong = report((0, 40, 0, 40), done(0, 40, compared_until=25, difference=WRONG))
    assert verdict(whole(wrong)).startswith("DIFFERENT: 26 of 40 offsets")


def test_share_is_never_rounded_up_to_all() -> None:
    assert (share(40, 40), share(99_999_999, 100_000_000), share(0, 40), share(0, 0)) == (1.0, 0.9999, 0.0, None)


def test_offsets_that_several_reasons_name_are_counted_once() -> None:
    parts = [NotCompared(5, 10, "a"), NotCompared(0, 6, "b"), NotCompared(20, 90, "c"), NotCompared(30, 40, "d")]
    assert covered(parts, 0, 50) == 40
    assert covered(parts, 8, 25) == 7
    assert covered([], 0, 50) == 0


def test_limit_of_a_ledger_row_is_what_the_error_of_a_large_record_says() -> None:
    large = encode_batch([Record(0, 1, b"k", b"." * 3000)], base_offset=7)
    with pytest.raises(OversizedRecordError) as caught:
        rewrite([(read_header(large), memoryview(large))], 7, fill_holes=True, is_compacted=False, max_batch_bytes=2000)
    row = LedgerRow(1, "l", "t", 0, 7, 8, "oversized", str(caught.value.at("t-0")))
    assert limit_of(row) == caught.value.limit == 2000
    assert limit_of(row._replace(detail="")) is None


def test_what_was_lost_between_two_runs_is_not_taken_as_compared() -> None:
    earlier = NotCompared(3, 5, "a log starts at 5 now")
    found = report((0, 40, 0, 40), done(20, 40), resumed=Resumed(0, 20, (earlier,)))
    assert (found.from_offset, found.resumed_at, found.identical_until, found.compared) == (0, 20, 40, 38)
    assert found.not_compared == (earlier,) and found.outcome is NOT_COMPARED
    found = report((0, 40, 30, 40), done(30, 40), resumed=Resumed(0, 20, (earlier,)))
    assert (found.resumed_at, found.compared, found.outcome) == (30, 10, NOT_COMPARED)
    found = report((30, 40, 0, 40), done(30, 40), resumed=Resumed(0, 20, (earlier,)))
    assert (found.compared, found.held, found.outcome) == (10, 10, IDENTICAL)


def test_what_the_ledger_explained_in_an_earlier_run_is_still_said() -> None:
    rows = [LedgerRange(7, 8, "oversized", True), LedgerRange(30, 31, "oversized", True)]
    first = report((0, 20, 0, 20), done(0, 20, left_out=1), ledger=rows)
    assert (first.explained, first.ledger) == (1, (rows[0],))
    later = report((0, 40, 0, 40), done(20, 40, left_out=1), ledger=rows, resumed=Resumed(0, 20))
    assert (later.explained, later.outcome) == (2, EXPLAINED)


def test_report_is_the_state_of_a_later_run() -> None:
    gone = NotCompared(4, 6, "gone", False)
    text = json.dumps(whole(report((0, 40, 2, 40), done(2, 40, not_compared=(gone,)))).as_json())
    found, warnings = read_state(json.loads(text), IDS)
    assert warnings == []
    assert found == {
        PARTITION: Resumed(2, 40, (NotCompared(0, 2, "the target no longer has them: its log starts at 2"), gone))
    }
    told = json.loads(text)
    assert (told["outcome"], told["share"], told["held"], told["compared"]) == ("not compared", 0.9, 40, 36)
    assert (told["partitions"][0]["outcome"], told["partitions"][0]["share"]) == ("not compared", 0.9)


def test_topic_that_was_created_again_is_compared_from_its_start() -> None:
    state = whole(report((0, 40, 0, 40), done(0, 40))).as_json()
    other = {**IDS, "target": {"cluster": "b", "topics": {"t": "3"}}}
    found, (warning,) = read_state(state, other)
    assert found == {} and "target" in warning


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 1},
        {"version": 2, "ids": IDS, "partitions": []},  # its ledger excused what was never compared
        {"version": 3, "ids": IDS},
        {"version": 3, "ids": IDS, "partitions": [{"topic": "t"}]},
        {"version": 3, "ids": {**IDS, "source": {"cluster": "c", "topics": {}}}, "partitions": []},
    ],
)
def test_state_that_proves_nothing_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="resume"):
        read_state(state, IDS)
