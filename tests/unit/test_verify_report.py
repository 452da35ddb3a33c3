"""What verify says of a partition, and what a later run takes from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.verify.log_comparison import Difference
from tolerant_client.mirror.verify.report import LogBounds, Resumed, VerifyReport, partition_report, read_state
from tolerant_client.mirror.verify.slices import NotCompared, Slice, SliceResult

PARTITION = TopicPartition("t", 0)
IDS: dict[str, Any] = {"source": {"cluster": "a", "topics": {"t": "1"}}, "target": {"cluster": "b", "topics": {"t": "2"}}}


def done(start: int, until: int, **more: Any) -> SliceResult:
    records, identical_until = more.pop("records", until - start), more.pop("identical_until", until)
    return SliceResult(Slice("t", 0, start, until), records, identical_until, **more)


def report(bounds: tuple[int | None, ...], *results: SliceResult, **more: Any) -> Any:
    return partition_report(PARTITION, LogBounds(*bounds), results, **{"allow_behind": False, **more})


def test_slices_are_put_together_up_to_the_first_that_differs() -> None:
    wrong = Difference(25, "value differs")
    found = report((0, 40, 0, 40), done(0, 20), done(20, 30, identical_until=25, first_difference=wrong), done(30, 40))
    assert (found.identical_until, found.first_difference, found.records) == (25, wrong, 40)


def test_slice_that_could_not_be_compared_ends_what_is_identical_but_hides_no_difference() -> None:
    wrong = Difference(35, "value differs")
    parts = done(0, 20, identical_until=12, error="no leader"), done(20, 40, identical_until=35, first_difference=wrong)
    found = report((0, 40, 0, 40), *parts)
    assert (found.identical_until, found.first_difference, found.error) == (12, wrong, "no leader")


@pytest.mark.parametrize(
    ("bounds", "options", "difference"),
    [
        ((0, 40, 0, 40), {}, None),
        ((5, 40, 0, 40), {}, None),
        ((0, 40, 5, 40), {}, None),
        ((0, 41, 0, 40), {}, Difference(40, "the target log ends earlier")),
        ((0, 41, 0, 40), {"allow_behind": True}, None),
        ((0, 40, 0, 45), {}, Difference(40, "the source log ends earlier")),
        ((0, 40, 0, 45), {"allow_behind": True}, Difference(40, "the source log ends earlier")),
        ((0, 40, 0, 45), {"accepted": [(38, 43), (43, 45)]}, None),
        ((0, 40, 0, 45), {"accepted": [(38, 43), (44, 45)]}, Difference(40, "the source log ends earlier")),
        ((0, 40, None, None), {}, Difference(0, "the target has no such partition")),
        ((0, 40, None, None), {"allow_behind": True}, None),
    ],
)
def test_ends_that_differ(bounds: tuple[int | None, ...], options: dict[str, Any], difference: Difference | None) -> None:
    results = [] if bounds[2] is None else [done(max(bounds[0] or 0, bounds[2] or 0), 40)]
    found = report(bounds, *results, **options)
    assert found.first_difference == difference
    assert found.lag == {41: 1, 40: 0 if bounds[3] else 40}[bounds[1] or 0]


def test_what_was_lost_between_two_runs_is_not_taken_as_compared() -> None:
    earlier = NotCompared(3, 5, "a log starts at 5 now")
    found = report((30, 40, 0, 40), done(30, 40), resumed=Resumed(0, 20, (earlier,)))
    assert (found.from_offset, found.resumed_at, found.identical_until) == (0, 30, 40)
    assert found.not_compared == (earlier, NotCompared(20, 30, "a log starts at 30 now"))


def test_report_is_the_state_of_a_later_run() -> None:
    part = report((0, 40, 2, 40), done(2, 40, not_compared=(NotCompared(4, 6, "gone"),)))
    text = json.dumps(VerifyReport((part,), 38, 1.0, IDS).as_json())
    assert read_state(json.loads(text), IDS) == ({PARTITION: Resumed(2, 40, (NotCompared(4, 6, "gone"),))}, [])


def test_topic_that_was_created_again_is_compared_from_its_start() -> None:
    state = VerifyReport((report((0, 40, 0, 40), done(0, 40)),), 40, 1.0, IDS).as_json()
    other = {**IDS, "target": {"cluster": "b", "topics": {"t": "3"}}}
    found, (warning,) = read_state(state, other)
    assert found == {} and "target" in warning


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 1},
        {"version": 2, "ids": IDS},
        {"version": 2, "ids": IDS, "partitions": [{"topic": "t"}]},
        {"version": 2, "ids": {**IDS, "source": {"cluster": "c", "topics": {}}}, "partitions": []},
    ],
)
def test_state_that_proves_nothing_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="resume"):
        read_state(state, IDS)
