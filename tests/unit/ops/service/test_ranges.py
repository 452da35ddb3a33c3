"""payload=ranges without Spark running: how rows are dealt to tasks, and the errors of wrong options."""

from __future__ import annotations

import json
import pickle
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from spark_integration.mirror.mirror_job import original_error
from spark_integration.mirror.stream_ranges import RangesStreamReader, RangesStreamWriter
from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import (
    ClusterUnreachableError,
    LinkPromotedError,
    OptionError,
    RecordRefusedError,
    TargetDivergedError,
    TolerantClientError,
)
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.planned_link import PlannedLink
from tolerant_client.mirror.engine.preflight import RefusalFacts
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_rows import MappedTopics, mapped_topics
from tolerant_client.mirror.state.plan import TopicsPlan
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicCreation, TopicFilter
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.ranges import Range, RangesPlanner, dealt
from tolerant_client.ops.service.ranges_scope import Scope
from tolerant_client.ops.service.task_reports import RunReport

rows: st.SearchStrategy[dict[TopicPartition, int]] = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 50)), st.integers(0, 10**9), max_size=60
)

FIRST, SECOND, NEW = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("new", 0)
ONCE = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders.*", once=True)
TAIL = replace(ONCE, once=False)


@given(rows, st.integers(1, 70))
def test_every_partition_is_dealt_to_one_task_and_no_task_is_idle_beside_two(
    size: dict[TopicPartition, int], tasks: int
) -> None:
    found = dealt(size, tasks)
    assert found.keys() == size.keys()
    assert len(set(found.values())) == min(tasks, len(size))


@given(rows, st.integers(1, 8))
def test_no_task_has_more_than_its_share_and_one_largest_partition(size: dict[TopicPartition, int], tasks: int) -> None:
    found = dealt(size, tasks)
    loads = [sum(n + 1 for r, n in size.items() if found[r] == task) for task in set(found.values())]
    if loads:
        assert max(loads) <= sum(loads) / len(loads) + max(size.values()) + 1


@given(rows, st.integers(1, 8))
def test_dealing_is_the_same_each_time(size: dict[TopicPartition, int], tasks: int) -> None:
    assert dealt(size, tasks) == dealt(dict(reversed(size.items())), tasks)


@given(rows, rows, st.integers(1, 8))
def test_a_partition_keeps_its_task(
    first: dict[TopicPartition, int], second: dict[TopicPartition, int], tasks: int
) -> None:
    before = dealt(first, tasks)
    after = dealt(second, tasks, before)
    assert all(after[p] == task for p, task in before.items() if p in after)
    assert after.keys() == second.keys()


@pytest.fixture(autouse=True)
def no_moves_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clusters of these tests respond to nothing else."""
    monkeypatch.setattr(RangesPlanner, "_learn_moves", lambda planner: None)


def reader(
    settings: MirrorSettings = ONCE, ends: dict[TopicPartition, int] | None = None, folder: str | None = None
) -> RangesStreamReader:
    """A reader whose last plan found `ends`, and that plans no more."""
    made = RangesStreamReader(MirrorJob(settings, folder=folder).options)
    made._scope = Scope(ends or {FIRST: 10, SECOND: 0, NEW: 3})
    made._refreshed_at = made._looked_at = float("inf")
    return made


def planned(made: RangesStreamReader) -> list[list[Range]]:
    """The rows of each task of the first micro-batch."""
    start = made.initialOffset()
    end = made.latestOffset(start, None)  # type: ignore[arg-type]
    assert end != start  # or else Spark runs no micro-batch
    return [ranges for task in made.partitions(start, end) for (ranges,) in made.read(task)]


def test_once_plans_every_log_and_then_nothing_more() -> None:
    """An empty partition is begun, too: what its source loses later was not copied."""
    made = reader()
    (rows,) = planned(made)
    assert sorted(rows) == [("new", 0, 3), ("orders", 0, 10), ("orders", 1, 0)]
    end = {"trigger": 1}
    assert made.latestOffset(end, None) == end  # type: ignore[arg-type]


def test_ends_that_are_cut_by_a_time_are_final_however_long_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(ends={FIRST: 7})  # as prepareForTriggerAvailableNow leaves it
    made._refreshed_at = made._looked_at = time.monotonic() - 3600
    monkeypatch.setattr(made, "_planned", lambda: Scope({FIRST: 10}))
    assert planned(made) == [[("orders", 0, 7)]]


@pytest.mark.parametrize(
    "is_promoted", [True, False, None], ids=["promoted", "not promoted", "the target is away, too"]
)
def test_a_mirror_whose_source_is_gone_ends_with_the_promotion_of_its_link(
    monkeypatch: pytest.MonkeyPatch, is_promoted: bool | None
) -> None:
    made: Any = reader()
    away = ClusterUnreachableError("The source at a:1 could not be reached")

    class Clusters:
        file_options, bootstrap_servers = "", "b:1"

        def run(self, *_: Any) -> LinkControl:
            if is_promoted is None:
                raise ClusterUnreachableError("The target at b:1 could not be reached")
            return LinkControl(is_promotion_begun=is_promoted, is_fenced=is_promoted)

    def refresh() -> None:
        raise away

    made._clusters = (Clusters(), Clusters())
    monkeypatch.setattr(made, "_refresh", refresh)
    with pytest.raises(LinkPromotedError if is_promoted else ClusterUnreachableError) as caught:
        made.look()
    assert "was promoted: its target belongs" in str(caught.value) if is_promoted else caught.value is away


@pytest.mark.parametrize("offsets, learns", [("identical", 1), ("translated", 0)])
def test_a_mirror_learns_of_moves_each_time_that_it_plans_after_its_start(
    monkeypatch: pytest.MonkeyPatch, offsets: str, learns: int
) -> None:
    """Its start has done so already (prepare_link)."""
    learned: list[RangesPlanner] = []
    monkeypatch.setattr(RangesPlanner, "_learn_moves", lambda planner: learned.append(planner))
    made = reader(replace(TAIL, offsets=offsets, refresh_s=0))
    made._refreshed_at = made._looked_at = float("-inf")
    monkeypatch.setattr(made, "_planned", lambda: Scope({FIRST: 10}))
    made._refresh()
    assert not learned
    made._refresh()
    assert learned == [made] * learns


@pytest.mark.parametrize("has_planned", [False, True])
def test_a_mirror_waits_for_topics_once_it_runs(monkeypatch: pytest.MonkeyPatch, has_planned: bool) -> None:
    asked: list[LinkTopics] = []
    known: list[MappedTopics] = []

    class Clusters:
        partitions = None

        def run(self, ask: Any, *arguments: Any) -> Any:
            asked.extend(argument for argument in arguments if isinstance(argument, LinkTopics))
            if ask is read_control:
                return LinkControl()
            if isinstance(ask, partial) and ask.func is mapped_topics:
                return MappedTopics(frozenset({FIRST}))
            known.extend(argument for argument in arguments if isinstance(argument, MappedTopics))
            return {} if isinstance(arguments[0], set) else PlannedLink(TopicsPlan((), ()), {}, {})

    made = reader(replace(TAIL, refresh_s=0))
    made._scope = Scope({SECOND: 4} if has_planned else {})
    made._refreshed_at = time.monotonic() if has_planned else float("-inf")
    monkeypatch.setattr(made, "_connected", lambda: (Clusters(), Clusters()))
    made._refresh()
    assert [topics.waits_for_topics for topics in asked] == [has_planned]
    had = SECOND if has_planned else FIRST
    assert known == [MappedTopics(frozenset({had}))], "what the map or this run has copied may be gone from the source"


def test_a_planner_of_a_former_life_of_its_link_creates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may start it again when the link was promoted, and prepared again."""
    asked: list[Any] = []

    class Clusters:
        def run(self, *arguments: Any) -> LinkControl:
            asked.append(arguments)
            return LinkControl(
                is_promotion_begun=True, is_fenced=True
            )  # as a later one is to who belongs to generation 3

    made = RangesStreamReader(MirrorJob(TAIL, 7, None, 3).options)
    target = Mock(spec=Cluster, file_options="--link dr")
    monkeypatch.setattr(made, "_connected", lambda: (Clusters(), target))
    with pytest.raises(LinkPromotedError, match="was promoted: its target belongs to its own producers"):
        made.initialOffset()
    assert asked == [(read_control, target, TAIL.link, 3)]


def test_tail_mode_plans_all_partitions_without_an_end_each_time() -> None:
    made = reader(TAIL)
    (rows,) = planned(made)
    assert sorted(rows) == [("new", 0, None), ("orders", 0, None), ("orders", 1, None)]
    assert made.latestOffset({"trigger": 7}, None) == {"trigger": 8}  # type: ignore[arg-type]


def test_what_a_micro_batch_copies_is_in_no_offset_and_goes_to_its_executors_alone() -> None:
    many = {TopicPartition("wide", number): number for number in range(1, 10_001)}
    made = reader(replace(TAIL, tasks=2), many)
    start = made.initialOffset()
    assert len(json.dumps(made.latestOffset(start, None))) < 20  # type: ignore[arg-type]
    travelled = pickle.dumps(made)
    assert len(travelled) < 200
    (task,) = made.partitions(start, {"trigger": 1})
    assert [len(ranges) for (ranges,) in pickle.loads(travelled).read(task)] == [5_000, 5_000]


def test_a_reader_looks_for_leaders_between_two_looks_for_topics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = reader(replace(TAIL, refresh_s=600), folder=str(tmp_path))
    away = "it has no leader on the target"
    looks = [
        (LedOffsets({FIRST: 12, NEW: 3}, {SECOND: "it has no leader"}), {}),
        (LedOffsets({SECOND: 1, NEW: 3}, {}), {NEW: away, SECOND: away}),
        (LedOffsets({SECOND: 1}, {}), {}),
    ]
    told_by = [each for look in looks for each in look]  # the source, then the target
    monkeypatch.setattr(made, "_lacks_topics", lambda: False)
    monkeypatch.setattr(made, "_connected", lambda: (Asked(lambda: told_by.pop(0)), None))
    made._refreshed_at = time.monotonic()
    for waits in ({SECOND: "it has no leader"}, {NEW: away, SECOND: away}, {}):
        made._looked_at = float("-inf")
        made.latestOffset({"trigger": 0}, None)  # type: ignore[arg-type]
        told = RunReport(tmp_path).waiting.read().waiting
        assert {p: wait.reason for p, wait in told.items()} == waits
        assert made._looked_at > float("-inf")
    assert made._scope.ends == {FIRST: 12, SECOND: 1, NEW: 3}


REFUSED = Scope({FIRST: 10}, refused={NEW: "Link X copies into topic new of this target"})


@pytest.mark.parametrize("refresh_s, plans", [(600.0, [True, False, True, False]), (None, [False] * 4)])
def test_what_is_refused_is_planned_again_once_what_that_hangs_on_has_changed(
    refresh_s: float | None, plans: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check has nothing to compare with, but a change during the plan is not missed.  The last check gets no response."""
    made = reader(replace(TAIL, refresh_s=refresh_s))
    made._scope, made._refreshed_at, made._looked_at = REFUSED, time.monotonic(), time.monotonic()
    facts: list[RefusalFacts | Exception] = [*(RefusalFacts(end, {}) for end in (5, 5, 6)), KafkaTimeoutError()]
    planned: list[int] = []
    monkeypatch.setattr(made, "_connected", lambda: (Asked(lambda: raised(facts.pop(0))), None))
    monkeypatch.setattr(made, "_planned", lambda: planned.append(1) or REFUSED)  # type: ignore[func-returns-value]
    for is_planned in plans:
        made._refresh()
        assert bool(planned) is is_planned
        planned.clear()
        made._refresh()  # at once: nobody is asked
        assert not planned
        made._checked_at = float("-inf")


@pytest.mark.parametrize(
    "lacks, plans",
    [
        ([{"orders"}], 1),  # on the target: it is created again
        ([set(), {"orders"}], 1),  # on the source: that is reported
        ([set(), set()], 0),
        ([KafkaTimeoutError(), KafkaTimeoutError()], 0),
    ],
)
def test_a_topic_that_was_deleted_causes_a_plan_before_the_next_look_at_all_topics(
    lacks: list[set[str] | Exception], plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reader(replace(TAIL, refresh_s=600))
    made._scope, made._refreshed_at, made._looked_at = Scope({FIRST: 10}), time.monotonic(), float("-inf")
    answers: list[Any] = [*lacks, LedOffsets({FIRST: 11}, {}), {}]
    planned: list[int] = []
    target = Asked(lambda: None)
    monkeypatch.setattr(made, "_connected", lambda: (Asked(lambda: raised(answers.pop(0))), target))
    monkeypatch.setattr(made, "_planned", lambda: planned.append(1) or Scope({FIRST: 10}))  # type: ignore[func-returns-value]
    made._refresh()
    assert (len(planned), made._scope.ends[FIRST]) == (plans, 10 if plans else 11)


def raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class Asked:
    """A cluster whose loop gives the same result for everything."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def run(self, *_: object) -> Any:
        return self._answer()


@pytest.mark.parametrize("policy", [DefaultReplicationPolicy("_"), IdentityReplicationPolicy(source_alias="A")])
def test_planner_and_copier_are_told_the_whole_job(policy: DefaultReplicationPolicy) -> None:
    topics = LinkTopics(TopicFilter(("a", "b.*")), TopicNames(policy, "A"), "B", creation=TopicCreation(-1, ("x",)))
    losses = MirrorPolicy.parse(gap_fill=["records"], on_loss=["pause", "a.*=continue"])
    settings = MirrorSettings(
        {"bootstrap.servers": "a:1", "sasl.jaas.config": 'x password="\u00fc";'},
        {"bootstrap.servers": "b:1"},
        topics,
        "dr",
        tasks=3,
        policy=losses,
        offsets="translated",
        goes_on=True,
        refresh_s=None,
        bytes_per_s=5,
        from_ms=1,
        until_ms=2,
    )
    job = MirrorJob(settings, 7, "folder", 3)
    assert MirrorJob.of(job.options) == job
    assert type(MirrorJob.of(job.options).settings.names.policy) is type(policy)  # type: ignore[union-attr]
    written = RangesStreamWriter(job.options)._link
    assert (written.producer_id, written.policy, written.names, written.shares, written.bytes_per_s, written.run) == (
        7, losses, topics.names, 3, 5, settings.run,
    )  # fmt: skip
    assert written.generation == 3 and written.key() != replace(written, generation=4).key()


@pytest.mark.parametrize("made", [RangesStreamReader, RangesStreamWriter])
@pytest.mark.parametrize("options", [{}, {"subscribePattern": "orders"}, {"linkSecrets": "{}"}, {"linkSecrets": "["}])
def test_options_of_no_mirror_are_refused(made: Callable[[dict[str, str]], Any], options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="payload=ranges is for mirrors: start one with tolerant-kafka mirror"):
        made(options)


def test_identical_offsets_without_the_producer_id_of_the_link_are_refused_where_they_would_be_copied() -> None:
    with pytest.raises(OptionError, match="payload=ranges is for mirrors: .*need its producer id"):
        RangesStreamWriter(MirrorJob(ONCE).options)
    assert RangesStreamWriter(MirrorJob(replace(ONCE, offsets="translated")).options)._link.is_translated


def test_spark_shows_no_option_that_holds_passwords() -> None:
    """Spark's default of spark.redaction.regex, applied to names and values of options."""
    (name,) = MirrorJob(ONCE).options.keys() - {"payload"}
    assert re.search("(?i)secret|password|token|access[.]?key", name)


def test_task_without_rows_copies_nothing() -> None:
    message = RangesStreamWriter(MirrorJob(ONCE, 7).options).write(iter([]))
    assert message is not None
    assert vars(message)["copied"].report == TaskReport()


def test_error_of_a_task_comes_back_as_it_was() -> None:
    text = (
        "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "process_copier.py", line 1, in main\n'
        "tolerant_client.errors.TargetDivergedError: TargetDivergedError: The target log of orders-0 has a foreign batch\n"
        "\tat org.apache.spark.Something\n"
    )
    error = original_error(text)
    assert type(error) is TargetDivergedError
    assert "The target log of orders-0 has a foreign batch" in str(error)


@pytest.mark.parametrize("kind", [TargetDivergedError, ClusterUnreachableError, RecordRefusedError])
def test_error_of_a_task_keeps_what_follows_a_line_end_in_a_name(kind: type[TolerantClientError]) -> None:
    error = kind("written by a mirror on x\n\n\tat y (process 7): stop one of the two")
    text = "".join(traceback.format_exception_only(kind, error))
    assert "mirror on x\\n\\n\tat y (process 7): stop one" in str(
        original_error(f"Job aborted: {text}\n\tat org.apache\n")
    )


def test_error_that_is_not_ours_is_quoted_by_its_last_line() -> None:
    error = original_error("Traceback\njava.lang.OutOfMemoryError: Java heap space\n\tat x")
    assert type(error) is TolerantClientError
    assert "java.lang.OutOfMemoryError: Java heap space" in str(error)
