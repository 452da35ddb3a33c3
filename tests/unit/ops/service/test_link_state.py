"""link_state.py: the sums of task reports, and what a sample says about topics and the link's health."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from support.link_samples import NOW_MS, state
from support.link_samples import seen as sample
from tolerant_client.mirror.engine.copy_metrics import LATENCY_BOUNDS_MS, Copied, Measured, Span
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.service.link_state import OTHERS, LinkState, PartitionState, TaskReport
from tolerant_client.ops.service.task_reports import ReportFile

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
spans = st.lists(st.integers(0, 10**6), max_size=5).map(lambda times: seen(*times))
copies = st.builds(Copied, st.integers(0, 10**9), st.integers(0, 10**12), spans, spans)
partitions = st.builds(TopicPartition, st.sampled_from(["orders", "a.b-c", "x"]), st.integers(0, 99))
reports = st.builds(
    TaskReport,
    st.just(0),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 9),
    st.dictionaries(partitions, st.integers(1, 9), max_size=3),
    st.integers(0, 9),
    st.dictionaries(partitions, st.text(), max_size=3),
    st.dictionaries(partitions, st.text(), max_size=3),
    st.dictionaries(partitions, st.builds(Waiting, st.text(), st.integers(0, 10**15)), max_size=3),
    st.dictionaries(partitions, st.integers(0, 10**15), max_size=3),
    st.dictionaries(partitions, copies, max_size=3),
    st.dictionaries(partitions, copies, max_size=3),
    st.lists(st.integers(0, 99), min_size=len(LATENCY_BOUNDS_MS) + 1, max_size=len(LATENCY_BOUNDS_MS) + 1).map(tuple),
    st.dictionaries(st.sampled_from(["lost", "retired"]), st.integers(0, 99)),
    throttles=st.dictionaries(st.sampled_from(["produce", "fetch"]), st.integers(0, 99).map(Span().seen)),
)


def seen(*times: int) -> Span:
    span = Span()
    for time in times:
        span = span.seen(time)
    return span


@settings(max_examples=25)
@given(reports)
def test_report_is_the_same_after_its_way_through_a_file(report: TaskReport) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ReportFile(Path(folder) / "report").write(report)
        assert ReportFile(Path(folder) / "report").read() == report


@settings(max_examples=25)
@given(st.lists(reports, max_size=4), st.integers(0, 4))
def test_micro_batches_add_up_however_tasks_are_dealt_to_them(tasks: list[TaskReport], cut: int) -> None:
    at_once = TaskReport().plus(tasks, 9)
    one_by_one = TaskReport().plus(tasks[:cut], 8).plus(tasks[cut:], 9)
    for name in ("records", "bytes", "troubles", "losses", "filled", "latencies", "acked", "copied"):
        assert getattr(one_by_one, name) == getattr(at_once, name), name
    assert sum(one_by_one.recoveries.values()) == sum(sum(task.recoveries.values()) for task in tasks)


def test_only_the_last_micro_batch_says_what_is_paused_and_what_is_latest() -> None:
    first = TaskReport(paused={FIRST: "why"}, copied={FIRST: Copied(1, 10)})
    both = TaskReport().plus([first], 1).plus([TaskReport(copied={SECOND: Copied(2, 20)})], 2)
    assert (both.paused, both.latest) == ({}, {SECOND: Copied(2, 20)})
    assert both.copied == {FIRST: Copied(1, 10), SECOND: Copied(2, 20)}


def test_what_a_process_has_measured_becomes_part_of_its_report() -> None:
    copied = {FIRST: Copied(3, 30), SECOND: Copied(1, 10)}
    report = TaskReport(troubles=1).measured(Measured(copied, (1,) * 15, {"lost": 2}))
    assert (report.records, report.bytes, report.copied, report.recoveries["lost"], report.troubles) == (
        4,
        40,
        copied,
        2,
        1,
    )


def test_spans_know_the_least_the_greatest_and_the_last() -> None:
    span = seen(5, 1, 9, 3)
    assert (span.number, span.total, span.least, span.greatest, span.last, span.mean) == (4, 18, 1, 9, 3, 4.5)
    assert Span().plus(span) == span == span.plus(Span())


@pytest.mark.parametrize(
    ("known", "lag", "size", "age"),
    [
        (PartitionState(FIRST), None, None, None),
        (sample(FIRST, 10, 10), 0, 0.0, 0.0),
        (sample(FIRST, 10, 20), 0, 0.0, 0.0),  # filler, or other writers
        (sample(FIRST, 10, 7), 3, None, None),
        (sample(FIRST, 10, 7, NOW_MS - 1_500, 100.0), 3, 300.0, 1.5),
        (sample(FIRST, 10, 7, NOW_MS + 9_000, 100.0), 3, 300.0, 0.0),  # a producer's clock that is ahead
        (sample(FIRST, 10, 4, None, 2.0, 99), 6, 12.0, None),  # translated offsets: the target's end says nothing
    ],
)
def test_lag_is_none_while_it_is_not_known(known: PartitionState, lag: int, size: float, age: float) -> None:
    assert (known.lag_offsets, known.lag_bytes, known.lag_seconds(NOW_MS)) == (lag, size, age)


def test_topic_is_the_sum_of_its_partitions_and_as_old_as_the_oldest() -> None:
    found = LinkState(
        "A-B",
        NOW_MS,
        partitions={
            FIRST: sample(FIRST, 10, 8, NOW_MS - 1_000, 10.0, offsets_per_s=5.0),
            SECOND: sample(SECOND, 10, 4, NOW_MS - 9_000, offsets_per_s=1.0),
            TopicPartition("other", 0): PartitionState(TopicPartition("other", 0)),
        },
        report=TaskReport(NOW_MS, blocked={SECOND: "why"}, copied={FIRST: Copied(8, 80)}),
    )
    orders, other = found.topics["orders"], found.topics["other"]
    assert (orders.lag_offsets, orders.lag_bytes, orders.lag_seconds, orders.offsets_per_s) == (8, 20.0, 9.0, 6.0)
    assert (orders.records, orders.bytes, orders.blocked, orders.partitions) == (8, 80, 1, 2)
    assert (other.lag_offsets, other.lag_bytes, other.source_end) == (None, None, None)


def test_topic_counts_what_is_behind_whose_age_is_known_and_what_is_paused() -> None:
    found = LinkState(
        "A-B",
        NOW_MS,
        partitions={
            FIRST: sample(FIRST, 10, 8, NOW_MS - 1_000),
            SECOND: sample(SECOND, 10, 4),
            TopicPartition("orders", 2): sample(TopicPartition("orders", 2), 10, 10),
        },
        control=LinkControl(paused=frozenset(("other",)), paused_partitions=frozenset({TopicPartition("orders", 1)})),
    )
    (orders,) = found.topics.values()
    assert (orders.behind, orders.aged, orders.paused) == (2, 1, 1)


@pytest.mark.parametrize(
    ("control", "own_rate", "limit", "said_by"),
    [
        (LinkControl(), None, None, ""),
        (LinkControl(), 500, 500, "start"),
        (LinkControl(bytes_per_s=200), 500, 200, "operator"),
        (LinkControl(bytes_per_s=0), 500, None, ""),  # the operator has lifted it
    ],
)
def test_limit_is_the_operators_or_else_the_one_of_the_start(
    control: LinkControl, own_rate: int | None, limit: int | None, said_by: str
) -> None:
    found = LinkState("A-B", control=control, own_rate=own_rate)
    assert (found.throttle_bytes, found.throttle_from) == (limit, said_by)


def test_topics_beyond_the_limit_are_one_row_and_no_sum_changes() -> None:
    found = state(topics=30)
    rows = found.most(10)
    assert [row.topic for row in rows[:2]] == ["topic-0029", "topic-0028"]  # most behind
    assert (len(rows), rows[-1].topic) == (11, OTHERS)
    for name in ("partitions", "lag_offsets", "records", "offsets_per_s"):
        assert sum(getattr(row, name) for row in rows) == sum(getattr(row, name) for row in found.topics.values()), name
    assert OTHERS not in [row.topic for row in found.most(30)]
