"""Where a moved client goes on, and what parts the one cluster from the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.structs import OffsetAndMetadata, TopicPartition

from support.fake_broker import FakeBroker, serve
from tolerant_client.stock import forking
from tolerant_client.stock.bootstrap import BESIDE_S
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.moving import Destination, Move
from tolerant_client.stock.stock_names import Future, SubscriptionType

COPIED, BEGUN_EMPTY, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("else", 0)
TO = Destination({}, {COPIED: 100}, lambda topic: topic == "orders")


@pytest.mark.parametrize(
    ("partition", "offset", "place"),
    [(COPIED, 40, 40), (COPIED, 100, 100), (COPIED, 120, 100), (BEGUN_EMPTY, 7, None), (OTHER, 3, None)],
)
def test_a_position_stays_but_never_after_the_end_of_the_copies(
    partition: TopicPartition, offset: int, place: int | None
) -> None:
    assert TO.place(partition, offset) == place


@pytest.mark.parametrize(("offset", "committed", "of_another"), [(90, 90, None), (115, 100, None), (121, 121, 121)])
def test_an_offset_that_may_be_of_a_record_of_either_cluster_commits_the_end_of_the_copies(
    offset: int, committed: int, of_another: int | None
) -> None:
    assert TO.committed(COPIED, offset, 120) == committed
    assert TO.committed(OTHER, offset, 120) == TO.committed(BEGUN_EMPTY, offset, 120) == of_another


@pytest.mark.parametrize(
    ("committed", "former", "left_at", "is_behind"),
    [
        (40, {COPIED: 41}, {}, True),
        (41, {COPIED: 41}, {COPIED: 60}, False),
        (40, {BEGUN_EMPTY: 41}, {COPIED: 60}, False),  # the cluster tells that nothing is committed there
        (100, {COPIED: 120}, {}, False),  # it has committed what was not copied
        (40, None, {}, False),
        (40, None, {COPIED: 40}, True),
        (41, None, {COPIED: 40}, False),
        (100, None, {COPIED: 100}, False),  # nothing follows
    ],
)
def test_a_commit_is_left_behind_if_the_group_went_on_elsewhere_as_far_as_that_is_known(
    committed: int, former: dict[TopicPartition, int] | None, left_at: dict[TopicPartition, int], is_behind: bool
) -> None:
    to = Destination({}, {COPIED: 100}, lambda topic: topic == "orders", left_at, lambda: former)
    assert to.is_left_behind(COPIED, committed) == is_behind


def test_what_the_group_had_committed_elsewhere_is_never_after_the_end_of_the_copies() -> None:
    to = Destination({}, {COPIED: 100}, lambda topic: topic == "orders", {}, lambda: {COPIED: 120, OTHER: 7})
    assert [to.former_commit(tp) for tp in (COPIED, OTHER, BEGUN_EMPTY)] == [100, None, None]


class Client(SimpleNamespace):
    """Which can be referred to weakly."""


def fetcher(read: dict[TopicPartition, int]) -> Any:
    """Which has read so far on the former cluster."""
    return SimpleNamespace(settle=lambda to: read)


@pytest.mark.parametrize(("offset", "committed"), [(301, 301), (310, 310), (121, 121), (120, 100), (90, 90)])
def test_before_the_next_poll_nobody_knows_until_where_the_client_has_read(offset: int, committed: int) -> None:
    consumer = Client(_fetcher=fetcher({COPIED: 120}), _iterator=None)
    move = Move(TO, consumer)
    move.may_have_read = {COPIED}
    assert move.committed(COPIED, OffsetAndMetadata(offset, "", -1)) == OffsetAndMetadata(min(offset, 100), "", -1)
    move.settle()
    assert move.committed(COPIED, OffsetAndMetadata(offset, "", -1)) == OffsetAndMetadata(committed, "", -1)


def test_a_client_that_has_read_nothing_of_a_partition_commits_what_it_is_told() -> None:
    consumer = Client(_fetcher=fetcher({}), _iterator=None)
    move, asked = Move(TO, consumer), OffsetAndMetadata(701, "", -1)
    move.may_have_read = {OTHER}
    assert move.copied({COPIED: asked, OTHER: asked}) == {COPIED: asked}
    move.settle()
    assert move.copied({COPIED: asked, OTHER: asked}) == {COPIED: asked, OTHER: asked}


@pytest.mark.parametrize(("offset", "goes_to"), [(40, 40), (100, 100), (110, 100), (120, 100), (121, 121)])
def test_a_seek_before_the_next_poll_settles_the_move_and_is_one_on_the_next_cluster(offset: int, goes_to: int) -> None:
    consumer = Client(_fetcher=fetcher({COPIED: 120, OTHER: 9}), _iterator=None)
    move = Move(TO, consumer)
    move.settle()
    assert move.sought(COPIED, offset) == goes_to
    assert move.sought(OTHER, 5) == 5


def test_what_was_given_out_on_the_next_cluster_is_known_once_positions_are_its_own() -> None:
    consumer = Client(_fetcher=fetcher({COPIED: 120}), _iterator=None)
    move, state = Move(TO, consumer), SimpleNamespace(position=OffsetAndMetadata(115, "", 3))
    move.may_have_read = {COPIED}

    def committed() -> Any:
        return move.committed(COPIED, move.consumed(lambda: {COPIED: state.position})[COPIED])

    assert committed() == OffsetAndMetadata(100, "", -1)
    move.settle()
    assert committed() == OffsetAndMetadata(115, "", -1)
    assert move.committed(COPIED, state.position) == OffsetAndMetadata(100, "", -1)  # named by the application
    once = move.committed(COPIED, move.consumed(lambda: {COPIED: state.position})[COPIED])
    state.position = OffsetAndMetadata(50, "", 1)  # a seek back
    assert once is not None and move.committed(COPIED, once) == OffsetAndMetadata(115, "", -1)


@pytest.fixture
def net() -> Iterator[NetworkSelector]:
    net = NetworkSelector()
    yield net
    net.close()


def test_what_waited_for_the_former_cluster_goes_on_before_the_client_belongs_to_the_next_one(
    net: NetworkSelector,
) -> None:
    with serve(FakeBroker()) as address:
        manager = TolerantConnectionManager(net, bootstrap_servers=address)
        manager.bootstrap(10_000)
        told: list[int] = []
        response = Future()

        async def hop(depth: int) -> None:
            await (manager.call_soon(hop, depth - 1) if depth else response)

        async def applied() -> None:
            await hop(5)
            told.append(manager.moves)

        async def move() -> None:
            manager.call_soon(applied)
            await net.sleep(0.05)
            response.success(None)
            await manager.leave()
            with pytest.raises(Errors.NodeNotReadyError):
                manager.get_connection(1)
            assert told == [0]
            await manager.move({"bootstrap_servers": address})

        net.run(move)
        assert manager.moves == 1 and not manager.is_moving and manager.cluster.brokers()
        manager.close()
        net.drain()


def test_a_cluster_that_refuses_at_first_is_asked_again(
    net: NetworkSelector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(FakeBroker()) as former, serve(FakeBroker()) as next_one:
        manager = TolerantConnectionManager(net, bootstrap_servers=former)
        manager.bootstrap(10_000)
        ask, refusals = manager.bootstrap_async, [Errors.SaslAuthenticationFailedError("not yet")]
        monkeypatch.setattr(manager, "bootstrap_async", lambda: Future().failure(refusals.pop()) if refusals else ask())

        async def move() -> Any:
            await manager.leave()
            moved = manager.move({"bootstrap_servers": next_one})
            waiting = manager.call_soon(manager.cluster.refresh_metadata)  # and says nothing of no node
            await moved
            await waiting
            return manager.cluster.brokers()

        with caplog.at_level(logging.WARNING):
            (broker,) = net.run(move)
        assert caplog.text.count("cannot be used yet: [Error 58] SaslAuthenticationFailedError: not yet") == 1
        assert "No node available" not in caplog.text
        manager.close()
        net.drain()


def test_a_cluster_that_is_away_at_the_move_is_tried_once_a_second(net: NetworkSelector) -> None:
    with serve(FakeBroker()) as former:
        manager = TolerantConnectionManager(
            net, bootstrap_servers=former, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000
        )
        manager.bootstrap(10_000)

        async def move() -> float:
            await manager.leave()
            manager.move({"bootstrap_servers": "127.0.0.1:1"})
            while not (failed := [node for node in manager.unreachable_nodes() if manager.cluster.is_bootstrap(node)]):
                await net.sleep(0.01)
            return float(manager.connection_delay(failed[0]))

        assert 0 < net.run(move) <= BESIDE_S
        manager.close()
        net.drain()


def of_cluster(cluster_id: str) -> Any:
    manager = SimpleNamespace(cluster=SimpleNamespace(cluster_id=cluster_id))
    return SimpleNamespace(config={"group_id": None}, _manager=manager)


def test_a_forked_child_takes_over_no_position_of_another_cluster() -> None:
    recipe = forking._Recipe(lambda: None, (), {})
    recipe.subscription = SimpleNamespace(subscription_type=SubscriptionType.USER_ASSIGNED, assignment={})
    recipe.cluster_id = "former"
    with pytest.raises(Errors.IllegalStateError, match="the parent's positions belong to cluster former"):
        forking._resubscribe(of_cluster("next"), recipe)
