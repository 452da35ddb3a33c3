"""Flows of a MirrorMaker 2 file as links of a service: settings, duties, and what the status page is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.mirroring import flow_watches
from spark_integration.mirroring.flow_links import duties_of, link_of
from spark_integration.mirroring.flow_watches import FlowWatches
from spark_integration.mirroring.link_state import Phase, TaskReport
from spark_integration.mirroring.mirror_job import MirrorSettings
from spark_integration.mirroring.supervisor import LinkEvent, SupervisedLink
from spark_integration.mm2.flows import Flow, read_flows
from spark_integration.monitoring.board import Board
from tolerant_client.mirror.sync import PreparedLink

FILE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
A->B.topics = orders
"""


def flow(folder: Path, *lines: str) -> Flow:
    file = folder / "mm2.properties"
    file.write_text(FILE + "".join(f"{line}\n" for line in lines))
    (found,) = read_flows(file).flows
    return found


def test_a_flow_becomes_a_link_that_goes_on_whatever_a_partition_does(tmp_path: Path) -> None:
    link = link_of(flow(tmp_path, "tasks.max = 3", "replication.factor = 1", "refresh.topics.interval.seconds = 45"))
    settings = link.settings
    assert (settings.link, settings.tasks, settings.goes_on, settings.refresh_s) == ("A-B", 3, True, 45)
    assert settings.link_topics.to_target("orders") == "A.orders"
    assert settings.link_topics.creation.replication_factor == 1
    assert link.aliases == ("A", "B")


def test_the_duties_are_those_of_the_file_with_its_intervals(tmp_path: Path) -> None:
    duties = duties_of(flow(tmp_path, "sync.group.offsets.enabled = true", "sync.group.offsets.interval.seconds = 7"))
    assert {duty.name: duty.interval_s for duty in duties} == {
        "heartbeats": 1,
        "sync of group offsets": 7,
        "checkpoints": 60,
        "sync of topic configurations": 600,
        "sync of ACLs": 600,
        "look at all topics": 600,
    }


def test_what_the_file_switches_off_is_no_duty(tmp_path: Path) -> None:
    off = ("emit.heartbeats", "emit.checkpoints", "sync.topic.configs", "sync.topic.acls", "refresh.topics")
    duties = duties_of(flow(tmp_path, *(f"{name}.enabled = false" for name in off)))
    assert [duty.name for duty in duties] == ["look at all topics"]


def test_a_limit_of_the_file_is_a_duty(tmp_path: Path) -> None:
    assert "throttle of the file" in {duty.name for duty in duties_of(flow(tmp_path, "tolerant.throttle = 1000000"))}


class FakeWatch:
    """What a LinkWatch is told."""

    made: list[FakeWatch] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        self.told: list[Any] = []
        self.made.append(self)

    def __enter__(self) -> FakeWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.told.append("closed")

    def tell(self, report: TaskReport) -> None:
        self.told.append(report)

    def tell_phase(self, phase: Phase, problem: str = "") -> None:
        self.told.append((phase, problem))

    def tell_duty(self, duty: str, problem: str = "") -> None:
        self.told.append((duty, problem))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[FlowWatches, Board]:
    FakeWatch.made.clear()
    monkeypatch.setattr(flow_watches, "LinkWatch", FakeWatch)
    board = Board()
    links = [SupervisedLink(MirrorSettings({}, {}, "orders", name), aliases=("A", "B")) for name in ("A-B", "B-A")]
    return FlowWatches(links, board), board


def test_a_link_that_never_ran_is_on_the_board_with_its_problem(watched: tuple[FlowWatches, Board]) -> None:
    watches, board = watched
    with watches:
        watches.tell(LinkEvent("B-A", "failed", "failed, and is started again in 4 s: away"))
        phases = {state.link: (state.phase, state.problem) for state in board.states()}
    assert phases["A-B"] == (Phase.STARTING, "")
    assert phases["B-A"] == (Phase.RESTARTING, "failed, and is started again in 4 s: away")


def test_events_go_to_the_watch_of_their_link(watched: tuple[FlowWatches, Board]) -> None:
    watches, _ = watched
    report = TaskReport(time_ms=1)
    with watches:
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {TopicPartition("orders", 0): 5})))
        watches.tell(LinkEvent("A-B", "report", "", report))
        watches.tell(LinkEvent("A-B", "failed", "away"))
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
        watches.tell(LinkEvent("A-B", "duty failed", "heartbeats failed: no", "heartbeats"))
        watches.tell(LinkEvent("A-B", "duty", "heartbeats", None))
        watches.tell(LinkEvent("A-B", "promoted", "not started"))
    (watch,) = FakeWatch.made
    assert watch.told == [
        report,
        (Phase.RESTARTING, "away"),
        (Phase.RUNNING, ""),
        ("heartbeats", "heartbeats failed: no"),
        ("heartbeats", ""),
        (Phase.STOPPED, "not started"),
        "closed",
    ]
