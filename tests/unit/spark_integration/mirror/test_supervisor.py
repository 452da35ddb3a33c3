"""A service's links, started again after any failure, each by itself; time, chance, Spark and clusters are arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.mirror import supervisor
from spark_integration.mirror.stream_ranges import RangesStreamWriter
from spark_integration.mirror.supervisor import LinkThread, SparkLink, SparkPulse, StuckError, SupervisedLink
from tolerant_client.errors import (
    ClusterUnreachableError,
    LinkPromotedError,
    PartitionRefusedError,
    TargetDivergedError,
    TolerantClientError,
    text_of,
)
from tolerant_client.mirror.engine.copy_metrics import Measured
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.service import duties as duties_module
from tolerant_client.ops.service import ranges
from tolerant_client.ops.service.duties import Duty, DutyThread, Timetable, lanes
from tolerant_client.ops.service.link_events import EventPrinter, LinkEvent, Listeners, undone
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.restarts import LinkLife, RestartPolicy, Step
from tolerant_client.ops.service.task_reports import RunReport

POLICY = RestartPolicy(first_s=1, longest_s=60, healthy_s=60, stalled_s=300, promoted_s=45)


# -- when ---------------------------------------------------------------------


def test_each_wait_is_twice_the_one_before_and_none_longer_than_the_longest() -> None:
    assert [POLICY.wait_s(failures, 0.0) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert POLICY.wait_s(10**6, 0.0) == 60


def test_chance_takes_up_to_a_half_of_a_wait_away() -> None:
    assert POLICY.wait_s(4, 1.0) == 4
    assert 4 < POLICY.wait_s(4, 0.3) < 8


def test_a_link_is_started_at_once_and_after_a_failure_when_its_wait_is_over() -> None:
    life = LinkLife(POLICY)
    assert life.step(0) is Step.START
    wait_s = life.failed(0, 0.0)
    assert [life.step(now) for now in (0, wait_s - 0.01, wait_s)] == [Step.WAIT, Step.WAIT, Step.START]


def test_waits_grow_while_a_link_fails_again_and_again() -> None:
    life, now, waits = LinkLife(POLICY), 0.0, []
    for _ in range(4):
        life.started(now)
        life.looked(now + 5, 0)
        waits.append(life.failed(now + 5, 0.0))
        now += 100
    assert waits == [1, 2, 4, 8]


def test_a_link_that_ran_well_for_a_while_begins_with_the_shortest_wait() -> None:
    life = LinkLife(POLICY)
    for now in (0.0, 10.0, 20.0):
        life.started(now)
        assert life.failed(now, 0.0)
    life.started(100)
    life.looked(130, 0)
    life.looked(161, 1)
    assert life.failed(162, 0.0) == 1


def test_micro_batches_that_end_with_an_error_are_no_health() -> None:
    life, now, waits = LinkLife(POLICY), 0.0, []
    for _ in range(3):
        life.started(now)
        for batch in range(10):
            now += 12
            life.looked(now, batch, is_repeated=True)
            assert life.step(now + 1) is Step.LOOK
        waits.append(life.failed(now, 0.0))
    assert waits == [1, 2, 4]
    life.started(now)
    life.looked(now + 12, 0, is_repeated=True)
    life.looked(now + 71, 1)
    assert life.failures == 3
    life.looked(now + 73, 2)
    assert life.failures == 0


def test_time_alone_is_no_health() -> None:
    life = LinkLife(POLICY)
    life.started(0)
    life.failed(0, 0.0)
    life.started(10)
    life.looked(200, None)  # no micro-batch has ended
    assert life.failed(250, 0.0) == 2


def test_a_query_that_finishes_nothing_is_taken_down() -> None:
    life = LinkLife(POLICY)
    life.started(0)
    life.looked(100, 0)
    life.looked(399, 0)
    assert life.step(399) is Step.LOOK
    assert life.step(401) is Step.TAKE_DOWN


def test_a_query_that_goes_on_is_left_alone() -> None:
    life = LinkLife(POLICY)
    life.started(0)
    for batch in range(100):
        life.looked(batch * 250.0, batch)
        assert life.step(batch * 250.0 + 249) is Step.LOOK


def test_a_promoted_link_is_asked_about_later_and_counts_as_healthy() -> None:
    life = LinkLife(POLICY)
    life.failed(0, 0.0)
    assert life.promoted(10) == 45
    assert [life.step(now) for now in (54, 55)] == [Step.WAIT, Step.START]
    assert life.failed(55, 0.0) == 1


# -- one link -----------------------------------------------------------------


class FakeJob:
    """A link whose starts and checks do what the test has put into `starts` and `looks`."""

    is_repeating = False

    def __init__(self, starts: list[Any] = [], looks: list[Any] = []) -> None:
        self.starts, self.looks = list(starts), list(looks)
        self.calls: list[str] = []
        self.stop_error: Exception | None = None

    def _next(self, outcomes: list[Any], default: Any) -> Any:
        outcome = outcomes.pop(0) if outcomes else default
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def start(self) -> None:
        self.calls.append("start")
        self._next(self.starts, None)

    def look(self) -> int | None:
        self.calls.append("look")
        return self._next(self.looks, 0)

    def stop(self) -> None:
        self.calls.append("stop")
        if self.stop_error:
            raise self.stop_error

    def close(self) -> None:
        self.calls.append("close")


def thread(job: FakeJob, events: list[LinkEvent], policy: RestartPolicy = POLICY) -> LinkThread:
    return LinkThread("A-B", job, events.append, threading.Event(), policy, lambda: False)


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnreachableError("The source at a:9092 could not be reached"),
        TargetDivergedError("orders-0 has records of somebody else"),
        ConnectionRefusedError("py4j"),
        RuntimeError("a defect"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ends_a_query_is_told_in_one_sentence_and_the_link_started_again(error: Exception) -> None:
    events: list[LinkEvent] = []
    job = FakeJob(looks=[0, error])
    link = thread(job, events)
    for _ in range(3):
        link.step(time.monotonic())
    link.step(time.monotonic() + 2)
    assert job.calls == ["start", "look", "look", "stop", "start"]
    assert [event.kind for event in events] == ["failed"]
    assert "\n" not in events[0].text and str(error.args[0]) in events[0].text
    assert "started again in 1 s" in events[0].text or "started again in 0 s" in events[0].text


def test_a_start_that_fails_is_repeated() -> None:
    events: list[LinkEvent] = []
    job = FakeJob(starts=[ClusterUnreachableError("away"), ClusterUnreachableError("away")])
    link = thread(job, events)
    for later in (0, 10, 20, 30):
        link.step(time.monotonic() + later)
    assert job.calls == ["start", "stop", "start", "stop", "start", "look"]
    assert len(events) == 2


def test_a_query_without_progress_is_stopped_and_started_again() -> None:
    events: list[LinkEvent] = []
    job = FakeJob()
    link = thread(job, events)
    link.step(time.monotonic())
    link.step(time.monotonic() + 301)
    link.step(time.monotonic() + 303)
    assert job.calls == ["start", "stop", "start"]
    assert "No micro-batch" in events[0].text


def test_a_promoted_link_is_told_once_and_its_duties_end() -> None:
    events: list[LinkEvent] = []
    promoted = LinkPromotedError("Link A-B was promoted")
    job = FakeJob(starts=[promoted, promoted, promoted])
    link = thread(job, events)
    for later in (0, 50, 100):
        link.step(time.monotonic() + later)
    assert job.calls == ["start", "close", "stop"] * 3
    assert [event.kind for event in events] == ["promoted"]


def test_a_query_that_spark_does_not_end_for_long_makes_the_link_stuck() -> None:
    job = FakeJob(looks=[ClusterUnreachableError("away")])
    job.stop_error = StuckError("Spark has not ended the query")
    link = thread(job, [])
    link.step(0)
    link.step(1)
    assert link.stuck is None
    job.starts = [job.stop_error] * 10  # start begins with a stop
    for now in range(60, 300, 60):
        link.step(now)
        assert link.stuck is None
    link.step(302)
    assert link.stuck is job.stop_error


def test_a_query_that_ends_late_is_started_again() -> None:
    job = FakeJob(looks=[ClusterUnreachableError("away")])
    link = thread(job, [])
    job.stop_error = StuckError("Spark has not ended the query")
    link.step(0)
    link.step(1)
    job.stop_error = None
    link.step(100)
    assert job.calls[-1] == "start" and link.stuck is None


def test_a_failure_of_spark_with_a_page_of_text_is_one_line() -> None:
    events: list[LinkEvent] = []
    error = RuntimeError("Python worker failed to connect back.\n=== Streaming Query ===\nState")
    link = thread(FakeJob(starts=[error]), events)
    link.step(0)
    assert events[0].text.endswith(": Python worker failed to connect back.")


def test_a_stop_ends_query_and_duties() -> None:
    events: list[LinkEvent] = []
    job, stop = FakeJob(), threading.Event()
    link = LinkThread("A-B", job, events.append, stop, POLICY, lambda: False)
    link.start()
    while "start" not in job.calls:
        time.sleep(0.01)
    stop.set()
    assert link.join(5)
    assert job.calls[-2:] == ["close", "stop"]
    assert events[-1].kind == "stopped"


def test_a_stop_that_waits_no_longer_for_a_link_tells_its_end_once() -> None:
    events: list[LinkEvent] = []
    hanging, stop = threading.Event(), threading.Event()

    class Hangs(FakeJob):
        def close(self) -> None:
            hanging.wait(10)

    link = LinkThread("A-B", Hangs(), events.append, stop, POLICY, lambda: False)
    link.start()
    stop.set()
    assert not link.join(0.6)
    link.tell_end()
    assert [event.kind for event in events] == ["stopped"]
    hanging.set()
    assert link.join(5) and len(events) == 1


def test_one_dead_link_does_not_touch_another() -> None:
    stop = threading.Event()
    dead = FakeJob(starts=[RuntimeError("a defect")] * 1000)
    alive = FakeJob()
    both = [
        LinkThread(name, job, lambda event: None, stop, POLICY, lambda: False)
        for name, job in (("dead", dead), ("alive", alive))
    ]
    for link in both:
        link.start()
    while alive.calls.count("look") < 2:
        time.sleep(0.01)
    stop.set()
    assert all(link.join(5) for link in both)
    assert alive.calls.count("start") == 1


def test_a_thread_that_ends_by_itself_is_told_of_and_ends_the_process() -> None:
    events: list[LinkEvent] = []

    class Broken(FakeJob):
        def stop(self) -> None:
            raise RuntimeError("a defect")

    link = thread(Broken(starts=[ClusterUnreachableError("away")]), events)
    link.start()
    assert link.join(10)
    assert link.stuck is not None and "a defect" in str(link.stuck)
    assert events[-1].kind == "dead" and "a defect" in events[-1].text


def test_a_link_that_is_stuck_does_not_say_that_it_was_stopped() -> None:
    events: list[LinkEvent] = []
    job = FakeJob(looks=[ClusterUnreachableError("away")])
    job.stop_error = StuckError("Spark has not ended the query")
    link = thread(job, events, RestartPolicy(first_s=0.01, longest_s=0.01, stalled_s=0.01))
    link.start()
    assert link.join(20)
    assert [event.kind for event in events][-1] == "dead"


def test_nobody_who_is_told_hinders_the_others_or_who_tells(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[LinkEvent] = []

    def gone(event: LinkEvent) -> None:
        raise BrokenPipeError("standard output is closed")

    job, stop = FakeJob(), threading.Event()
    link = LinkThread("A-B", job, Listeners([gone, heard.append, gone]), stop, POLICY, lambda: False)
    job.looks = [ClusterUnreachableError("away")] * 3
    for now in (0, 1, 100, 101, 200, 201):
        link.step(now)
    assert [event.kind for event in heard] == ["failed"] * 3
    # Once each.
    assert len([record for record in caplog.records if "Telling of link A-B failed" in record.message]) == 2


def test_what_fails_while_a_signal_stops_all_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[LinkEvent] = []
    job, signalled = FakeJob(), threading.Event()
    link = LinkThread("A-B", job, heard.append, threading.Event(), POLICY, signalled.is_set)
    job.looks = [RuntimeError("Answer from Java side is empty")] * 2
    link.step(0)
    signalled.set()
    link.step(1)
    assert not heard and not caplog.records


def test_what_a_duty_leaves_by_its_rules_is_no_failure_and_what_it_could_not_do_is() -> None:
    rules = [Left("group g", "members", "in use"), Left("group h", "ahead", "further on")]
    failures = [Left("group i", reason, f"why {reason}") for reason in ("error", "refused", "leaderless")]
    assert undone(rules) == ""
    assert undone([*rules, failures[1]]) == "incomplete: group i: why refused"
    assert undone([*rules, *failures]) == "incomplete: group i: why error, and 2 more"
    assert len(undone([Left("t-0", "leaderless", "groups: " + "billing, " * 5_000)])) < 600


def test_reports_and_duties_that_go_well_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tell = EventPrinter()
    for kind in ("report", "duty"):
        tell(LinkEvent("A-B", kind, "fine"))
    tell(LinkEvent("A-B", "failed", "failed, and is started again in 4 s: because"))
    assert capsys.readouterr().err == "tolerant-kafka: A-B: failed, and is started again in 4 s: because\n"


def test_a_duty_that_fails_every_second_is_printed_once_until_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    tell = EventPrinter()
    for _ in range(3):
        tell(LinkEvent("A-B", "duty failed", "heartbeats failed: away", "heartbeats"))
    tell(LinkEvent("C-D", "duty failed", "heartbeats failed: away", "heartbeats"))
    for _ in range(2):
        tell(LinkEvent("A-B", "duty", "heartbeats"))
    assert capsys.readouterr().err.splitlines() == [
        "tolerant-kafka: A-B: heartbeats failed: away",
        "tolerant-kafka: C-D: heartbeats failed: away",
        "tolerant-kafka: A-B: heartbeats: done again",
    ]


# -- duties -------------------------------------------------------------------


async def nothing(source: Any, target: Any, stopped: Any) -> None:
    pass


def test_duties_are_due_at_once_and_then_once_an_interval() -> None:
    often, seldom = Duty("often", 10, nothing), Duty("seldom", 600, nothing)
    timetable = Timetable([often, seldom])
    assert timetable.due(0) == [often, seldom]
    timetable.begun(often, 0)
    timetable.begun(seldom, 0)
    assert timetable.due(9.9) == []
    assert timetable.due(10) == [often]
    assert timetable.due(5000) == [often, seldom]  # once, however late
    timetable.begun(often, 5000)
    assert timetable.due(5009) == [seldom]
    timetable.begun(seldom, 5000)
    timetable.failed(often, 5002)
    timetable.failed(seldom, 5002)
    assert timetable.due(5010) == [often]
    timetable.begun(often, 5010)
    assert timetable.due(5032) == [often, seldom]  # 30 s after it failed, not 600


class FakeCluster:
    """Runs coroutines at once, and counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        coroutine = function(*args)
        try:
            coroutine.send(None)
        except StopIteration as stopped:
            return stopped.value
        raise AssertionError("it waits for something")

    def close(self) -> None:
        self.closed += 1


class FakeControl:
    value = LinkControl()

    def __init__(self, target: Any, link: str) -> None:
        pass

    async def refresh(self) -> LinkControl:
        return self.value


@pytest.fixture
def promoted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeControl]]:
    monkeypatch.setattr("tolerant_client.ops.service.duties.ControlWatch", FakeControl)
    yield FakeControl
    FakeControl.value = LinkControl()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_duty_that_fails_is_a_warning_and_no_other_duty_suffers(
    promoted: type[FakeControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, Any, Any]] = []
    made: list[tuple[FakeCluster, FakeCluster]] = []

    async def fails(source: Any, target: Any, stopped: Any) -> None:
        raise ClusterUnreachableError("away")

    async def counts(source: Any, target: Any, stopped: Any) -> int:
        return 7

    def connect() -> Any:
        made.append((FakeCluster(), FakeCluster()))
        return made[-1]

    duties = DutyThread(
        "A-B", [Duty("bad", 0.01, fails), Duty("good", 0.01, counts)], connect, lambda *all: told.append(all)
    )
    wait_for(lambda: len(told) >= 6)
    duties.close()
    assert {(name, report, type(error)) for name, report, error in told} == {
        ("bad", None, ClusterUnreachableError),
        ("good", 7, type(None)),
    }
    assert len(made) >= 2  # new connections after the failure
    told.clear()
    monkeypatch.setattr(duties_module, "AGAIN_S", 0.01)
    with closing(DutyThread("A-B", [Duty("bad", 600, fails)], connect, lambda *all: told.append(all))):
        wait_for(lambda: len(told) >= 2)
    assert all(cluster.closed == 1 for both in made for cluster in both)


def test_duties_that_are_apart_have_a_thread_of_their_own() -> None:
    beat, groups, acls = (
        Duty("beat", 1, nothing, is_apart=True),
        Duty("groups", 60, nothing),
        Duty("acls", 600, nothing),
    )
    assert lanes([groups, beat, acls]) == [[beat], [groups, acls]]
    assert lanes([beat]) == [[beat]] and lanes([]) == []


def test_heartbeats_go_on_while_another_duty_hangs(promoted: type[FakeControl]) -> None:
    told: list[str] = []
    hanging, ends = threading.Event(), threading.Event()

    async def hangs(source: Any, target: Any, stopped: Any) -> None:
        hanging.set()
        ends.wait(10)

    duties = [Duty("groups", 60, hangs), Duty("heartbeats", 0.01, nothing, is_apart=True)]
    threads = [
        DutyThread("A-B", lane, lambda: (FakeCluster(), FakeCluster()), lambda name, *_: told.append(name))
        for lane in lanes(duties)
    ]
    assert hanging.wait(5)
    so_far = len(told)
    wait_for(lambda: len(told) >= so_far + 3)
    assert set(told) == {"heartbeats"}
    ends.set()
    for each in threads:
        each.close()


def test_clients_that_cannot_be_closed_do_not_end_the_duties(promoted: type[FakeControl]) -> None:
    told: list[Any] = []

    class Unclosable(FakeCluster):
        def close(self) -> None:
            raise OSError("bad descriptor")

    async def fails(source: Any, target: Any, stopped: Any) -> None:
        raise ClusterUnreachableError("away")

    duties = DutyThread(
        "A-B", [Duty("bad", 0.01, fails)], lambda: (Unclosable(), Unclosable()), lambda *all: told.append(all)
    )
    wait_for(lambda: len(told) >= 3)
    duties.close()


def test_nothing_is_done_for_a_promoted_link(promoted: type[FakeControl]) -> None:
    done: list[int] = []

    async def counts(source: Any, target: Any, stopped: Any) -> None:
        done.append(1)

    promoted.value = LinkControl(is_promotion_begun=True)
    duties = DutyThread(
        "A-B", [Duty("counts", 0.01, counts)], lambda: (FakeCluster(), FakeCluster()), lambda *all: None
    )
    time.sleep(0.6)
    assert not done
    promoted.value = LinkControl()
    wait_for(lambda: bool(done))
    duties.close()


def test_duties_end_while_a_round_hangs() -> None:
    hanging = threading.Event()

    class Hangs(FakeCluster):
        def run(self, function: Callable[..., Any], *args: Any) -> Any:
            hanging.set()
            time.sleep(1)

    duties = DutyThread("A-B", [Duty("hangs", 1, nothing)], lambda: (Hangs(), FakeCluster()), lambda *all: None)
    assert hanging.wait(5)
    began = time.monotonic()
    duties.close(timeout_s=0.1)
    assert time.monotonic() - began < 0.5


# -- signals ------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_first_signal_asks_and_the_second_one_ends(number: signal.Signals) -> None:
    script = """
        import time
        from tolerant_client.ops.service.stop_signals import stop_signals
        stopping = stop_signals()
        print("ready", flush=True)
        while not stopping.wait(0.05):
            pass
        print("asked", flush=True)
        while True:
            time.sleep(0.05)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.stdout.readline() == "asked\n"
        child.send_signal(number)  # the same one once more, as timeout(1) sends it
        time.sleep(1.1)
        assert child.poll() is None
        child.send_signal(number)
        assert child.wait(10) == 130


# -- a partition that cannot be copied ----------------------------------------


STOPPED = TopicPartition("a-1", 11)


def writer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: TolerantClientError, *, goes_on: bool
) -> RangesStreamWriter:
    def copy(link: Any, until: Any, **_: Any) -> dict[TopicPartition, Progress]:
        return {p: Progress(5, 0, 0, 0, 0, 0, False, error if p == STOPPED else None) for p in until}

    monkeypatch.setattr(ranges, "copy_ranges", copy)
    monkeypatch.setattr(ranges, "take_measures", lambda link: Measured({}, TaskReport().latencies, {}))
    clusters = {"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}
    settings = MirrorSettings(*clusters, "a.*", once=True, goes_on=goes_on)
    return RangesStreamWriter(MirrorJob(settings, 1, str(folder)).options)


ROWS = [SimpleNamespace(topic=topic, partition=index, until_offset=None) for topic in ("a", "a-1") for index in (1, 11)]


@pytest.mark.parametrize(
    "error",
    [
        TargetDivergedError("a-1-11: records of producer 5 at offset 7"),
        PartitionRefusedError("a-1-11: append was refused; grant Write on topic a-1 of the target"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_service_reports_the_partition_that_cannot_go_on_and_lives(
    error: TolerantClientError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = writer(tmp_path, monkeypatch, error, goes_on=True)
    going_on.commit([going_on.write(iter([SimpleNamespace(ranges=ROWS)]))], 0)
    told = RunReport(tmp_path).done.read()
    assert dict(told.blocked) == {STOPPED: text_of(error)}


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [(TargetDivergedError("a-1: others"), False), (LinkPromotedError("Link A-B was promoted"), True)],
)
def test_the_query_ends_in_a_command_and_where_the_link_is_promoted(
    error: TolerantClientError, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = writer(tmp_path, monkeypatch, error, goes_on=goes_on)
    message = ending.write(iter([SimpleNamespace(ranges=ROWS)]))
    with pytest.raises(type(error)):
        ending.commit([message], 0)


def test_duties_leave_partitions_alone_whose_place_nobody_has_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """With goes_on the first micro-batch of a link ends after its hold, whatever is still being read."""
    placed, blocked, unread = (TopicPartition("orders", number) for number in range(3))
    report = TaskReport(blocked={blocked: "why"}, paused={placed: "by an operator"}, acked={placed: 4, blocked: 2})
    begun: list[frozenset[TopicPartition]] = []
    told: list[LinkEvent] = []
    waiting = {unread: Waiting("a quota", 5)}  # as its copiers say in their claims

    class Thread:
        stopped: frozenset[TopicPartition]

        def __init__(
            self, link: str, lane: object, connect: object, tell: object, stopped: frozenset[TopicPartition]
        ) -> None:
            begun.append(stopped)

    monkeypatch.setattr(supervisor, "DutyThread", Thread)
    monkeypatch.setattr(supervisor, "lanes", lambda wanted: [wanted])
    link = SparkLink(SupervisedLink(MirrorSettings({}, {}, "orders")), None, told.append, lambda: False)  # type: ignore[arg-type]
    link._claim = SimpleNamespace(  # type: ignore[assignment]
        require_held=lambda: None, tell=lambda report: None, besides=lambda report: replace(report, waiting=waiting)
    )
    link._ends = frozenset((placed, blocked, unread))
    link._report = SimpleNamespace(read=lambda: report)  # type: ignore[assignment]
    link._query = SimpleNamespace(isActive=True, lastProgress={"batchId": 0})  # type: ignore[assignment]
    assert link.look() == 0
    report = TaskReport(1, acked={placed: 4, blocked: 2, unread: 0})
    assert link.look() == 0
    (thread,) = link._duties
    assert (begun, thread.stopped) == ([frozenset((blocked, unread))], frozenset())
    assert [event.facts.waiting for event in told] == [waiting] * 2


def test_what_is_blocked_stays_so_across_a_restart_until_the_new_query_has_reported() -> None:
    """A restart for another reason must not show for a while that nobody has to do anything."""
    told: list[LinkEvent] = []
    link = SparkLink(SupervisedLink(MirrorSettings({}, {}, "orders")), None, told.append, lambda: False)  # type: ignore[arg-type]
    reports = [
        TaskReport(7, blocked={STOPPED: "grant Write"}),
        TaskReport(),
        TaskReport(8, waiting={STOPPED: Waiting("it waits", 8)}),
        TaskReport(),
    ]
    link._report = SimpleNamespace(read=lambda: reports.pop(0))  # type: ignore[assignment]
    for _ in range(4):
        link._tell_report()
    assert [dict(event.facts.blocked) for event in told] == [{STOPPED: "grant Write"}] * 2 + [{}] * 2


# -- Spark itself --------------------------------------------------------------


class SilentJvm:
    """A session whose JVM responds as long as `responds` is set."""

    def __init__(self) -> None:
        self.responds = threading.Event()
        self.asked = threading.Event()
        java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=self._is_stopped))
        self.sparkContext = SimpleNamespace(_jsc=java)

    def _is_stopped(self) -> bool:
        self.asked.set()
        self.responds.wait(10)
        return False


def test_spark_is_dead_only_after_a_silence_that_this_process_has_heard() -> None:
    jvm: Any = SilentJvm()
    pulse = SparkPulse(jvm, clock=lambda: 0.0)
    assert jvm.asked.wait(5)
    heard = [now / 2 for now in range(60)]  # 30 s of silence, then 92 s in which the process is frozen
    heard += [29.5 + 92 + now / 2 for now in range(121)]
    assert [pulse.death(now) for now in heard] == [""] * len(heard)
    assert pulse.death(heard[-1] + 0.5) == "its JVM has not responded for 60 s"
    jvm.responds.set()


def test_spark_is_dead_after_a_minute_of_silence() -> None:
    jvm: Any = SilentJvm()
    pulse = SparkPulse(jvm, clock=lambda: 0.0)
    assert jvm.asked.wait(5)
    assert {pulse.death(now / 2) for now in range(121)} == {""}
    assert pulse.death(60.5)
    jvm.responds.set()
