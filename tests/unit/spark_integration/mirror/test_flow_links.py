"""Flows of a MirrorMaker 2 file as links of a service: settings, duties, and the status page's data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition
from prometheus_client import CollectorRegistry

from spark_integration.mirror import flow_links, flow_watches
from spark_integration.mirror.flow_links import duties_of, link_of
from spark_integration.mirror.flow_watches import FlowWatches
from spark_integration.mirror.supervisor import SupervisedLink
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, LoginRefusedError, TolerantClientError
from tolerant_client.mirror.engine.copy_metrics import Span
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.follow.group_positions import GroupPosition
from tolerant_client.mirror.follow.groups import GroupMove, GroupsReport
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.health import Health
from tolerant_client.ops.mm2.flows import Flow, read_flows
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.monitoring.link_sample import LinkSample
from tolerant_client.ops.monitoring.prometheus import LinkCollector
from tolerant_client.ops.service.link_events import LinkEvent
from tolerant_client.ops.service.link_state import LinkState, Phase, TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorSettings

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


def test_a_limit_of_the_file_is_what_the_link_is_started_with(tmp_path: Path) -> None:
    limited = flow(tmp_path, "tolerant.throttle = 1000000")
    assert link_of(limited).settings.bytes_per_s == 1_000_000
    assert link_of(flow(tmp_path)).settings.bytes_per_s is None
    # A rate that a duty recorded as the link's would outlive the file, and overrule the operator's "off".
    assert not [duty.name for duty in duties_of(limited) if "throttle" in duty.name]


def test_a_round_of_groups_looks_at_the_control_before_it_reads_and_before_it_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Watch:
        def __init__(self, _: Any, link: str) -> None:
            assert link == "A-B"

        async def require_not_promoted(self) -> None:
            done.append("look")

    async def read(*_: Any) -> None:
        done.append("read")

    async def sync(*_: Any, may_write: Callable[[], Awaitable[None]], **__: Any) -> None:
        done.append("sync")
        await may_write()

    monkeypatch.setattr(flow_links, "ControlWatch", Watch)
    monkeypatch.setattr(flow_links.SharedPositions, "read", read)
    monkeypatch.setattr(flow_links, "sync_groups", sync)
    duties = {duty.name: duty for duty in duties_of(flow(tmp_path, "sync.group.offsets.enabled = true"))}
    clusters = cast(Cluster, None), cast(Cluster, None)
    with pytest.raises(StopIteration):
        duties["sync of group offsets"].round(*clusters, frozenset()).__await__().send(None)
    assert done == ["look", "read", "sync", "look"]


def test_how_long_a_groups_offset_took_is_on_the_board() -> None:
    move = GroupMove(GroupPosition("billing", TopicPartition("orders", 3), 70, 70, "", False), 50)
    (shown,) = flow_watches._groups(GroupsReport((move,), 0, (), (), latency_ms=40))
    assert shown[:4] == ("billing", "orders", 3, 70) and shown.latency == Span().seen(40)


class FakeWatch:
    """Records what a LinkWatch is told."""

    made: list[FakeWatch] = []

    def __init__(self, settings: MirrorSettings, *_: Any, **options: Any) -> None:
        self.settings = settings
        self.told: list[Any] = []
        self.options = options
        self.sample = LinkSample(LinkState("A-B"))
        self.made.append(self)

    def __enter__(self) -> FakeWatch:
        return self

    def stop(self) -> None:
        self.told.append("stopping")

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.told.append(error or "closed")

    def tell(self, report: TaskReport) -> None:
        self.told.append(report)

    def tell_phase(self, phase: Phase, problem: str = "") -> None:
        self.told.append((phase, problem))


said: list[LinkEvent] = []


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[FlowWatches, Board]:
    FakeWatch.made.clear()
    said.clear()
    monkeypatch.setattr(flow_watches, "LinkWatch", FakeWatch)
    board = Board()
    links = [SupervisedLink(MirrorSettings({}, {}, "orders", name), aliases=("A", "B")) for name in ("A-B", "B-A")]
    return FlowWatches(links, board, said.append), board


def test_a_link_that_never_ran_is_on_the_board_with_its_problem(watched: tuple[FlowWatches, Board]) -> None:
    watches, board = watched
    with watches:
        watches.tell(LinkEvent("B-A", "failed", "failed, and is started again in 4 s: away"))
        phases = {state.link: (state.phase, state.problem) for state in board.states()}
    assert phases["A-B"] == (Phase.STARTING, "")
    assert phases["B-A"] == (Phase.RESTARTING, "failed, and is started again in 4 s: away")


@pytest.mark.parametrize(
    "error, health",
    [
        (ClusterUnreachableError("no broker of the target", "target"), Health.UNKNOWN),
        (LoginRefusedError("The target refuses our login", "target"), Health.BLOCKED),
    ],
)
def test_a_start_that_fails_for_a_cluster_says_so_of_the_cluster(
    error: Exception, health: Health, watched: tuple[FlowWatches, Board]
) -> None:
    watches, board = watched
    with watches:
        watches.tell(LinkEvent("B-A", "failed", f"failed, and is started again in 4 s: {error}", error))
        _, state = board.states()
    registry = CollectorRegistry()
    registry.register(LinkCollector(board, lambda: 0))
    labels = {"link": "B-A", "cluster": "target"}
    assert registry.get_sample_value("tolerant_mirror_cluster_reachable", labels) == 0
    found, reasons = health_of(state, state.started_ms)
    assert found is health and str(error) in reasons[0].text


def test_events_go_to_the_watch_of_their_link(watched: tuple[FlowWatches, Board]) -> None:
    watches, _ = watched
    report = TaskReport(time_ms=1)
    with watches:
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {TopicPartition("orders", 0): 5})))
        watches.tell(LinkEvent("A-B", "report", "", report))
        watches.tell(LinkEvent("A-B", "failed", "away"))
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
        watches.tell(LinkEvent("A-B", "promoted", "not started"))
        watches.tell(LinkEvent("A-B", "stopped", "stopped"))
        watches.tell(LinkEvent("A-B", "dead", "Spark does not end"))
        watches.tell(LinkEvent("C-D", "duty", "heartbeats"))  # of a flow that copies nothing
    (watch,) = FakeWatch.made
    assert watch.told == [
        report,
        (Phase.RESTARTING, "away"),
        (Phase.RUNNING, ""),
        (Phase.STOPPED, "not started"),
        (Phase.STOPPED, ""),
        (Phase.FAILED, "Spark does not end"),
        "stopping",
        "closed",
    ]


def test_what_a_watch_sees_stand_still_is_an_event_of_its_link_also_where_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_watches, "LinkWatch", FakeWatch)
    FakeWatch.made.clear()
    heard: list[LinkEvent] = []
    with FlowWatches([SupervisedLink(MirrorSettings({}, {}, "orders", "A-B"))], None, heard.append) as watches:
        watches.tell(LinkEvent("A-B", "failed", "away"))
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
        FakeWatch.made[0].options["say"]("waiting: orders-0: 6 offsets from 4 on wait for an open transaction")
    (event,) = heard
    assert (event.link, event.kind) == ("A-B", "standing") and "open transaction" in event.text


def test_a_round_that_could_not_do_all_is_a_problem_of_its_duty(watched: tuple[FlowWatches, Board]) -> None:
    watches, _ = watched
    refused, kept = Left("group g", "refused", "grant Read on it"), Left("group h", "ahead", "it is further on")
    with watches:
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
        (watch,) = FakeWatch.made

        def problem(left: tuple[Left, ...] | None) -> str:
            if left is None:
                watches.tell(LinkEvent("A-B", "duty failed", "groups failed, and is tried again: away", "groups"))
            else:
                watches.tell(LinkEvent("A-B", "duty", "groups", GroupsReport((), 0, (), left)))
            return watch.sample.state.duties["groups"].problem

        assert problem((kept,)) == ""
        assert problem((kept, refused)) == "incomplete: group g: grant Read on it"
        assert problem(None) == "failed, and is tried again: away"
        assert problem(()) == ""


def test_a_promoted_link_that_was_never_started_is_shown_as_promoted(watched: tuple[FlowWatches, Board]) -> None:
    watches, board = watched
    with watches:
        watches.tell(LinkEvent("B-A", "promoted", "not started: it was promoted"))
        (found,) = [state for state in board.states() if state.link == "B-A"]
    assert (found.phase, found.control.is_promotion_begun) == (Phase.STOPPED, True)


def test_watches_are_told_what_the_process_died_of(watched: tuple[FlowWatches, Board]) -> None:
    watches, _ = watched
    with pytest.raises(TolerantClientError):
        with watches:
            watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
            raise TolerantClientError("Spark died")
    (watch,) = FakeWatch.made
    assert watch.told[0] == "stopping" and str(watch.told[1]).endswith("Spark died")


def test_watches_know_the_intervals_of_duties_and_the_files_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeWatch.made.clear()
    said.clear()
    monkeypatch.setattr(flow_watches, "LinkWatch", FakeWatch)
    with FlowWatches([link_of(flow(tmp_path, "tolerant.throttle = 5000"))], Board(), said.append) as watches:
        watches.tell(LinkEvent("A-B", "started", "copying", PreparedLink(1, (), {})))
    (watch,) = FakeWatch.made
    assert watch.settings.bytes_per_s == 5_000
    assert watch.options["console"].quiet  # what happens is printed once, by EventPrinter
    assert watch.options["duties"]["heartbeats"] == 1 and watch.options["duties"]["checkpoints"] == 60
