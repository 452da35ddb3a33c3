"""storm.py and leader_watch.py: what is a storm, what is not, and how often metadata is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.net.selector import NetworkSelector

from tolerant_client.stock.leader_watch import RefreshPace
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.tracker.events import Event, Storm, StormOver
from tolerant_client.tracker.storm import Leader, StormDetector, storm_threshold

Leaders = dict[tuple[str, int], Leader]


def spread(partitions: int, brokers: int = 3) -> Leaders:
    """One topic, its leaders in turn on the brokers 1..n, all in epoch 0."""
    return {("t", n): (1 + n % brokers, 0) for n in range(partitions)}


def without(leaders: Leaders, node: int, brokers: int = 3) -> Leaders:
    """The same after `node` died: its partitions are led by the next broker, one epoch later."""
    return {
        p: (1 + lead % brokers, epoch + 1) if lead == node else (lead, epoch) for p, (lead, epoch) in leaders.items()
    }


def seen(detector: StormDetector, leaders: Leaders, now: float) -> list[Storm]:
    return detector.observe(leaders.items(), now)


@pytest.mark.parametrize(
    ("known", "threshold"), [(0, 10), (3, 10), (50, 10), (60, 12), (499, 99), (500, 100), (1_000_000, 100)]
)
def test_a_fifth_of_the_partitions_is_a_storm_but_never_fewer_than_ten_nor_more_than_a_hundred(
    known: int, threshold: int
) -> None:
    assert storm_threshold(known) == threshold


def test_a_dead_broker_of_three_is_one_storm_with_one_beginning_and_one_end() -> None:
    detector, leaders = StormDetector(), spread(60)
    assert seen(detector, leaders, 0.0) == []
    (begun,) = seen(detector, without(leaders, 2), 1.0)
    assert (begun.kind, begun.partitions, begun.known, begun.nodes) == ("storm", 20, 60, (2,))
    assert begun.window_ms == 10_000.0
    assert "20 of 60 partitions moved within 10 s" in begun.message
    assert "away from node 2" in begun.message
    assert seen(detector, without(leaders, 2), 1.1) == []
    assert detector.next_wakeup() == 11.0
    assert detector.expired(10.9) == []
    (over,) = detector.expired(11.0)
    assert isinstance(over, StormOver)
    assert (over.kind, over.partitions) == ("storm over", 20)
    assert detector.next_wakeup() is None
    assert detector.expired(100.0) == []


def test_partitions_that_move_one_by_one_within_the_window_add_up() -> None:
    detector, leaders = StormDetector(), spread(60)
    seen(detector, leaders, 0.0)
    events: list[Storm] = []
    for n in range(30):
        leaders["t", n] = (9, 1)
        events += seen(detector, leaders, 1.0 + n / 10)
    assert [event.kind for event in events] == ["storm"]
    assert events[0].partitions == 12


def test_a_restart_that_hands_leaders_over_slowly_is_no_storm() -> None:
    detector, leaders = StormDetector(), spread(60)
    seen(detector, leaders, 0.0)
    for n in range(60):
        leaders["t", n] = (9, 1)
        assert seen(detector, leaders, n * 1.0) == []


def test_brokers_restarted_one_after_the_other_within_the_window_are_one_storm() -> None:
    detector, leaders = StormDetector(), spread(90)
    events = seen(detector, leaders, 0.0)
    for step, node in enumerate((1, 2, 3)):
        leaders = without(leaders, node)
        events += seen(detector, leaders, 1.0 + 8 * step)
    events += detector.expired(60.0)
    assert [event.kind for event in events] == ["storm", "storm over"]
    assert events[1].partitions == 90
    assert "moved 180 times" in events[1].message  # 30, then 60, then all 90 are led by the next victim


def test_restarts_far_apart_are_a_storm_each() -> None:
    detector, leaders = StormDetector(), spread(90)
    events = seen(detector, leaders, 0.0)
    for step, node in enumerate((1, 2)):
        leaders = without(leaders, node)
        events += seen(detector, leaders, 60.0 * (step + 1))
    assert [event.kind for event in events] == ["storm", "storm over", "storm"]


def test_a_partition_that_flaps_counts_once() -> None:
    detector, leaders = StormDetector(), spread(60)
    seen(detector, leaders, 0.0)
    for epoch in range(1, 40):
        leaders["t", 0] = (1 + epoch % 3, epoch)
        assert seen(detector, leaders, epoch / 10) == []


def test_the_same_leaders_elected_again_are_a_storm() -> None:
    detector, leaders = StormDetector(), spread(60)
    seen(detector, leaders, 0.0)
    again = {p: (lead, epoch + 1) for p, (lead, epoch) in leaders.items()}
    assert [event.kind for event in seen(detector, again, 1.0)] == ["storm"]


def test_leaders_lost_without_a_successor_are_a_storm_and_the_message_counts_them() -> None:
    detector, leaders = StormDetector(), spread(60)
    seen(detector, leaders, 0.0)
    gone = {p: (-1, 1) if lead == 3 else (lead, epoch) for p, (lead, epoch) in leaders.items()}
    (begun,) = seen(detector, gone, 1.0)
    assert begun.nodes == (3,)
    assert "20 have no leader now" in begun.message


def test_metadata_of_a_broker_that_lags_behind_is_no_news() -> None:
    detector, old = StormDetector(), spread(60)
    new = {p: (lead, 7) for p, (lead, _) in without(old, 1).items()}
    seen(detector, new, 0.0)
    for step in range(20):
        assert seen(detector, old, step + 0.1) == []
        assert seen(detector, new, step + 0.2) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, spread(60)),
        ({p: (-1, 0) for p in spread(60)}, spread(60)),
        ({p: (2, 5) for p in spread(60)}, {p: (1, -1) for p in spread(60)}),
        (spread(60), {("other", n): (2, 9) for n in range(60)}),
    ],
    ids=["topic is new", "first leaders", "topic was created again", "another topic"],
)
def test_leaders_that_are_only_new_to_us_are_no_storm(before: Leaders, after: Leaders) -> None:
    detector = StormDetector()
    assert seen(detector, before, 0.0) + seen(detector, after, 1.0) + seen(detector, after, 2.0) == []


def test_brokers_without_epochs_are_judged_by_the_leaders() -> None:
    detector = StormDetector()
    before = {p: (lead, -1) for p, (lead, _) in spread(60).items()}
    after = {p: (3 if lead == 2 else lead, -1) for p, (lead, _) in before.items()}
    assert seen(detector, before, 0.0) == []
    assert [event.partitions for event in seen(detector, after, 1.0)] == [20]


def test_refreshes_that_bring_nothing_come_further_apart_up_to_a_second_and_news_resets_that() -> None:
    pace, now, pauses = RefreshPace(100.0), 0.0, []
    while now < 15.0:
        pauses.append(pace.refreshed(False, now))
        assert now > 5.0 or 80 <= pauses[-1] <= 120, "as kafka-python's"
        now += pauses[-1] / 1000
    assert all(800 <= pause <= 1200 for pause in pauses[-5:])
    assert len(set(pauses[-5:])) == 5  # jitter
    assert 80 <= pace.refreshed(True, now) <= 120


def test_refreshes_in_their_own_time_are_not_slowed_down() -> None:
    pace = RefreshPace(100.0)
    assert all(80 <= pace.refreshed(False, minute * 60.0) <= 120 for minute in range(20))


@pytest.fixture
def net() -> Iterator[NetworkSelector]:
    net = NetworkSelector()
    yield net
    net.drain()
    net.close()


def metadata(leaders: Leaders) -> dict[str, dict[int, Any]]:
    """As kafka-python's ClusterMetadata keeps it."""
    topics: dict[str, dict[int, Any]] = {}
    for (topic, index), (node, epoch) in leaders.items():
        topics.setdefault(topic, {})[index] = SimpleNamespace(leader_id=node, leader_epoch=epoch)
    return topics


def test_the_manager_tells_a_storm_once_in_the_log_to_the_listener_and_in_the_counters(
    net: NetworkSelector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Event] = []

    def listener(event: Event) -> None:
        told.append(event)
        raise RuntimeError("a listener's own fault")

    monkeypatch.setattr("tolerant_client.stock.leader_watch.StormDetector", partial(StormDetector, 200.0))
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1", recovery_listener=listener)
    manager.bootstrap_async(timeout_ms=0)
    leaders = spread(60)
    with caplog.at_level(logging.WARNING, "tolerant_client"):
        for update in (leaders, without(leaders, 2), without(leaders, 2)):
            manager.cluster._partitions = metadata(update)
            for renewed in list(manager.cluster._listeners):
                renewed(manager.cluster)
        net.run(net.sleep, 0.5)
    assert [event.kind for event in told] == ["storm", "storm over"]
    assert (manager.recovery_counters.of("storm"), manager.recovery_counters.of("storm over")) == (1, 1)
    assert sum("election storm" in record.getMessage() for record in caplog.records) == 2
    manager.close()


def connection(in_flight: int, is_connected: bool = True, is_paused: bool = False, is_doubtful: bool = False) -> Any:
    return SimpleNamespace(
        in_flight_requests=[0] * in_flight, connected=is_connected, paused=is_paused, is_doubtful=is_doubtful
    )


@pytest.mark.parametrize(
    ("connections", "failed", "chosen"),
    [
        ({1: connection(3), 2: connection(1), 3: connection(2)}, (), 2),
        ({1: connection(3), 2: connection(0, is_connected=False), 3: connection(4)}, (), 1),
        ({1: connection(3)}, (), 1),
        ({1: connection(9), 3: connection(0, is_paused=True)}, (2,), 1),
        ({}, (1, 2), 3),
        ({1: connection(0, is_doubtful=True), 2: connection(4)}, (3,), 2),
        ({1: connection(0, is_doubtful=True)}, (3,), 2),
        ({1: connection(0, is_doubtful=True)}, (2, 3), 1),
        ({3: connection(0, is_paused=True)}, (1, 2), None),
    ],
    ids=[
        "least loaded", "connected first", "connected before idle", "not a dead one", "untried", "not a doubtful one",
        "untried before doubtful", "doubtful before dead", "all away",
    ],
)  # fmt: skip
def test_requests_for_any_broker_go_to_one_that_lives(
    net: NetworkSelector, connections: dict[int, Any], failed: tuple[int, ...], chosen: int | None
) -> None:
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1")
    manager.cluster._brokers = {n: SimpleNamespace(node_id=n) for n in (1, 2, 3)}
    manager._conns.update(connections)
    for node in failed:
        manager.update_backoff(node)
    assert {manager.least_loaded_node() for _ in range(20)} == {chosen}
    manager._conns.clear()
    manager.close()


def test_dead_broker_whose_pause_is_over_comes_after_an_untried_one(net: NetworkSelector) -> None:
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1")
    manager.cluster._brokers = {n: SimpleNamespace(node_id=n) for n in (1, 2)}
    manager._backoff[1] = (7, 0.0, 0.0)
    assert {manager.least_loaded_node() for _ in range(20)} == {2}
    manager.close()


def test_metadata_is_asked_for_again_and_again_while_a_leader_cannot_be_reached(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tolerant_client.stock.leader_watch._MAX_PAUSE_MS", 20.0)
    manager = TolerantConnectionManager(net, bootstrap_servers="127.0.0.1:1")
    manager.bootstrap_async(timeout_ms=0)
    asked: list[int] = []
    monkeypatch.setattr(manager.cluster, "request_update", lambda: asked.append(1))
    manager.update_backoff(1)  # leads nothing
    net.run(net.sleep, 0.2)
    assert asked == []
    manager.cluster._broker_partitions[2].add(("t", 0))
    manager.update_backoff(2)
    net.run(net.sleep, 0.5)
    assert len(asked) >= 3
    manager.cluster._broker_partitions[2].clear()  # others lead them now
    net.run(net.sleep, 0.2)
    settled = len(asked)
    net.run(net.sleep, 0.2)
    assert len(asked) == settled
    manager.close()
