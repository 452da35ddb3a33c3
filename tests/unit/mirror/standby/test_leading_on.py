"""Where clients are led by promotions, one after the other, and what they follow there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.standby import clients, follower, way_back
from tolerant_client.mirror.standby.clients import Following
from tolerant_client.mirror.standby.follower import Follower
from tolerant_client.mirror.standby.link_watch import FIRST_WORD_S, PROMPT_S
from tolerant_client.mirror.standby.way_back import Led, led_on
from tolerant_client.mirror.state.link_control import LinkControl

A, B = {"bootstrap_servers": "a:1"}, {"bootstrap_servers": "b:1"}
ENDS = {TopicPartition("orders", 0): 7}
THERE = LinkControl(is_promotion_begun=True, is_fenced=True, copied_until=ENDS)
BACK = replace(THERE, generation=1, copied_until={TopicPartition("orders", 0): 9})
AT_B = Led("A-B", THERE, here=B, left=A)
AT_HOME = Led("B-A", BACK, here=A, left=B, left_at=ENDS)


class Back:
    """A way back whose cluster tells this control of this link."""

    def __init__(self, link: str, told: LinkControl | Exception) -> None:
        self.link, self.told, self.close = link, told, Mock()

    def start(self) -> futures.Future[LinkControl]:
        first: futures.Future[LinkControl] = futures.Future()
        if isinstance(self.told, Exception):
            first.set_exception(self.told)
        else:
            first.set_result(self.told)
        return first


@pytest.mark.parametrize(
    ("told", "led"),
    [
        ([LinkControl()], AT_B),
        ([OSError("lost")], AT_B),
        ([replace(BACK, is_fenced=False)], AT_B),  # a process of it may still write there
        ([BACK, LinkControl()], AT_HOME),
        ([BACK, OSError("lost")], AT_HOME),
    ],
)
def test_a_client_is_led_to_where_the_last_promotion_has_led(
    told: list[LinkControl | Exception], led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    backs = [Back(link, control) for link, control in zip(("B-A", "A-B"), told, strict=False)]
    made = iter(backs)
    monkeypatch.setattr(way_back, "WayBack", lambda of, topics: next(made))
    found, last = led_on(AT_B, set, 1.0)
    assert found == led and found.here is led.here
    assert last is backs[-1] and [back.close.called for back in backs] == [True] * (len(backs) - 1) + [False]


def test_what_a_client_has_read_where_it_comes_back_to_is_known() -> None:
    back = way_back.WayBack(AT_HOME, set)
    try:
        to = back.destination(None)
        assert (to.config, to.ends, to.left_at) == (A, BACK.copied_until, ENDS)
    finally:
        for cluster in back._clusters:
            cluster.close()
        back._net.close()


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("moved_by", [None, BACK])
@pytest.mark.parametrize("led", [AT_B, AT_HOME])
def test_a_client_moves_unless_the_last_promotion_has_led_it_home_and_follows_the_next_way_from_there(
    led: Led, moved_by: LinkControl | None, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    back: Any = SimpleNamespace(destination=Mock(), close=Mock())

    def leads(first: Led, topics: Any, within_s: float) -> Any:
        asked.append((first, within_s))
        return led, back

    monkeypatch.setattr(follower, "led_on", leads)
    mover: Any = Mock()
    Follower(mover, A, B, moved_by).promoted("A-B", THERE, is_new=is_new)
    left_at = {} if moved_by is None else moved_by.copied_until
    assert asked == [(AT_B._replace(left_at=left_at), PROMPT_S if is_new else FIRST_WORD_S)]
    assert mover.begin.called == (led is AT_B) and mover.hold_no_longer.called == (led is AT_HOME)
    ((follows, then),) = [call.args for call in mover.client._follow.call_args_list]
    assert follows is back and (then._own, then._to, then._moved_by) == (led.here, led.left, led.control)


class Client(Following):
    """Which makes itself no client."""

    def __init__(self) -> None:
        self._begin_beside_movers = self._manager = Mock()  # type: ignore[method-assign]


@pytest.mark.parametrize("is_home", [False, True])
def test_a_client_that_is_made_has_the_connection_of_the_cluster_where_it_begins(
    is_home: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    back: Any = Mock()
    monkeypatch.setattr(way_back, "led_on", lambda led, topics, within_s: (AT_HOME if is_home else led, back))
    monkeypatch.setattr(clients, "_compare_ids", Mock())
    configs: Mapping[str, Any] = {**A, "socks5_proxy": "socks5://of-a:1", "group_id": "g"}
    make = Mock(args=())
    follows, then = Client()._begin_after_promotion(make, A, B, "A-B", THERE, configs)
    make.assert_called_once_with(**(configs if is_home else {**B, "socks5_proxy": None, "group_id": "g"}))
    here, left = (A, B) if is_home else (B, A)
    assert follows is back and (then._own, then._to) == (here, left)
    assert then._moved_by is (BACK if is_home else THERE)


class Reader(clients.KafkaConsumer):
    """Which makes itself no consumer."""

    def __init__(self) -> None:
        self._begin_beside_movers = Mock()  # type: ignore[method-assign]

    def __del__(self) -> None:
        pass


def test_a_consumer_that_is_made_needs_the_topics_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = list[set[str]]()
    monkeypatch.setattr(way_back, "led_on", lambda led, topics, within_s: (needs.append(topics()) or AT_HOME, Mock()))
    monkeypatch.setattr(follower, "Mover", Mock())
    monkeypatch.setattr(clients, "Mover", Mock())
    for client, names in ((Reader(), {"orders"}), (Client(), set())):
        client._begin_after_promotion(partial(Mock(), "orders"), A, B, "A-B", THERE, A)
        assert needs.pop() == names


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_client_that_was_closed_before_it_followed_ends_the_watch(is_wanted: bool) -> None:
    watch, of = Mock(), Mock(is_wanted=is_wanted)
    client = Client()
    client._follow(watch, of)
    watch.follow.assert_called_once_with(of)
    assert watch.close.called != is_wanted and client._link_watch is watch


@pytest.mark.parametrize(("since_s", "waits"), [(10, True), (500, False)])
def test_a_consumer_that_begins_long_after_the_promotion_begins_beside_nobody(since_s: float, waits: bool) -> None:
    consumer: Any = clients.KafkaConsumer.__new__(clients.KafkaConsumer)
    consumer._closed = True
    consumer.config, consumer._coordinator = {"group_id": "g"}, Mock()
    written = replace(THERE, written_ms=int((time.time() - since_s) * 1000))
    consumer._begin_beside_movers(AT_B._replace(control=written), Mock())
    assert consumer._coordinator.begins_beside_movers.called == waits
