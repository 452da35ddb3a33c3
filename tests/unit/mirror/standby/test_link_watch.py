"""When a client learns that its link was promoted, and what it makes of everything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, OrdersHiddenError
from tolerant_client.mirror.standby.clients import _is_promoted
from tolerant_client.mirror.standby.link_watch import LinkWatch, NewestControl
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.topic_filter import LinkTopics

BEGUN = {TopicPartition("orders", 0): TopicIds()}
PROMOTED = LinkControl(
    is_promotion_begun=True, is_fenced=True, begun=BEGUN, copied_until={TopicPartition("orders", 0): 7}
)


class Scripted(LinkWatch):
    """Whose standby responds as told."""

    def __init__(self, *told: LinkControl | Exception) -> None:
        async def sleep(seconds: float) -> None:
            pass

        net = SimpleNamespace(sleep=sleep, run=lambda call: asyncio.run(call()))
        manager = SimpleNamespace(closed=False)
        cluster = SimpleNamespace(net=net, manager=manager, run=net.run, close=lambda: None)
        self.cluster = cast(Cluster, cluster)
        self._link = "A-B"
        self.told = list(told)

    async def control(self) -> LinkControl:
        said = self.told.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def _changed(self) -> None:
        pass


def watch(*told: LinkControl | Exception, is_wanted: Callable[[], bool] = lambda: True) -> Any:
    return asyncio.run(Scripted(*told).promoted(is_wanted))


def test_it_waits_until_the_link_is_promoted_and_fenced() -> None:
    assert watch(LinkControl(), LinkControl(is_promotion_begun=True), PROMOTED) is PROMOTED


def test_each_reason_why_nothing_is_known_is_told_once_until_something_is(caplog: pytest.LogCaptureFixture) -> None:
    silent = [Errors.KafkaTimeoutError(f"no response for {n} s") for n in range(3)]
    odd, refused = RuntimeError("odd"), Errors.KafkaConnectionError("expired")
    with caplog.at_level(logging.WARNING):
        watch(*silent, refused, silent[0], odd, refused, LinkControl(), refused, PROMOTED)
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == ["no response for 0 s", "expired", "odd", "expired"]


def test_nobody_waits_for_a_client_that_is_gone() -> None:
    wanted = [True, True, False]
    assert watch(LinkControl(), LinkControl(), PROMOTED, is_wanted=lambda: wanted.pop(0)) is None


def test_a_promoted_link_that_does_not_tell_where_its_copies_end_is_not_followed_in_place() -> None:
    with pytest.raises(OptionError, match="does not tell where its copies end"):
        watch(LinkControl(is_promotion_begun=True, is_fenced=True, begun=BEGUN))


def test_a_later_generation_counts_as_what_it_says() -> None:
    control = LinkControl(generation=2)
    following = NewestControl(cast(Cluster, None), "A-B")
    following.is_read, following.value = True, LinkControl(generation=1)
    assert following._as_of_our_life(control) is control


@pytest.mark.parametrize(
    "wrong",
    [
        Errors.SaslAuthenticationFailedError("expired"),
        OrdersHiddenError("hidden"),
        Errors.RequestTimedOutError("late"),
        OSError("odd"),
    ],
)
def test_whatever_is_wrong_with_the_standby_does_not_stop_a_client_whose_cluster_is_well(
    wrong: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert not _is_promoted(Scripted(wrong))
    assert "Whether link A-B is promoted is unknown" in caplog.text


def test_a_link_that_cannot_be_followed_stops_it() -> None:
    with pytest.raises(OptionError):
        _is_promoted(Scripted(OptionError("translated")))


def control_of(control: LinkControl) -> LinkControl:
    """What a watch makes of it."""

    async def connect(patience_ms: int) -> None:
        pass

    async def refresh() -> LinkControl:
        return control

    watch: Any = Scripted()
    watch.cluster, watch._control = SimpleNamespace(connect=connect), SimpleNamespace(refresh=refresh)
    watch._patience_ms = 0
    return asyncio.run(LinkWatch.control(watch))


def test_a_link_that_failback_has_prepared_is_followed_before_it_runs() -> None:
    prepared = LinkControl(generation=1, source_cluster_id="A", topics=LinkTopics().to_json())
    assert control_of(prepared) is prepared


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (LinkControl(map_id="m", topics="{}"), "has translated offsets"),
        (LinkControl(map_id="m", topics="{}", producer_ids=(1,)), "has translated offsets"),
        (LinkControl(is_promotion_begun=True), "has never run with identical offsets"),
        (LinkControl(), "The standby knows no link"),
    ],
)
def test_a_link_whose_offsets_are_others_or_not_known_is_refused(control: LinkControl, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        control_of(control)
