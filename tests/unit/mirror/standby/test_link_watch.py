"""When a client learns that its link was promoted, and what it makes of everything else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import OptionError, OrdersHiddenError
from tolerant_client.mirror.standby import link_watch
from tolerant_client.mirror.standby.clients import _told
from tolerant_client.mirror.standby.follower import Follower
from tolerant_client.mirror.standby.link_watch import FIRST_WORD_S, LinkWatch, NewestControl
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.stock.moving import Mover

BEGUN = {TopicPartition("orders", 0): TopicIds()}
PROMOTED = LinkControl(
    is_promotion_begun=True, is_fenced=True, begun=BEGUN, copied_until={TopicPartition("orders", 0): 7}
)


class Scripted(LinkWatch):
    """Whose standby responds as told; `control` may take its time."""

    def __init__(self, *told: LinkControl | Exception, seconds: float = 0.0) -> None:
        super().__init__({"bootstrap_servers": "127.0.0.1:1"}, "A-B")
        self.told = list(told)
        self.seconds = seconds

    async def control(self) -> LinkControl:
        time.sleep(self.seconds)  # as a resolver does
        said = self.told.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def _changed(self) -> None:
        pass


class Following:
    """A follower that is wanted as often as `times` says."""

    def __init__(self, times: int = 99, wrong: Exception | None = None) -> None:
        self.times = times
        self.wrong = wrong
        self.moved: list[LinkControl] = []

    @property
    def is_wanted(self) -> bool:
        self.times -= 1
        return self.times >= 0

    def heard(self, link: str, control: LinkControl) -> None:
        if self.wrong is not None:
            raise self.wrong

    def needs(self, control: LinkControl) -> set[str]:
        return {"orders", "audit"}

    group = "billing"

    def promoted(self, link: str, control: LinkControl, *, is_new: bool) -> None:
        self.moved.append(control)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkWatch, "pause", Backoff(0.001, 0.001))


@pytest.fixture(autouse=True)
def may_not_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics and groups that the client may not read on the standby."""
    refused: list[str] = []

    async def not_allowed(cluster: Cluster, topics: Collection[str], operation: int) -> list[str]:
        return [name for name in refused if name in topics]

    async def may_not_read(cluster: Cluster, group: str) -> bool:
        return group in refused

    monkeypatch.setattr(link_watch, "not_allowed", not_allowed)
    monkeypatch.setattr(link_watch, "may_not_read", may_not_read)
    return refused


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "kafka-link-A-B"]


def ends(scripted: LinkWatch) -> None:
    """Waits for the end of its thread, and for everything that it has opened."""
    deadline = time.monotonic() + 10
    while threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert scripted.is_closed and scripted._net._selector.get_map() is None


def watch(*told: LinkControl | Exception, follower: Following | None = None) -> Any:
    scripted = Scripted(*told)
    try:
        promotion = scripted.cluster.run(scripted.promoted, follower or Following())
        return promotion and promotion[0]
    finally:
        scripted.cluster.close()
        scripted._net.close()


def test_it_waits_until_the_link_is_promoted_and_fenced() -> None:
    assert watch(LinkControl(), LinkControl(is_promotion_begun=True), PROMOTED) is PROMOTED


def test_a_promotion_is_new_where_the_link_was_unpromoted_just_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_new(*told: LinkControl | Exception) -> Any:
        scripted: Any = Scripted(*told)
        try:
            return scripted.cluster.run(scripted.promoted, Following())[1]
        finally:
            scripted.cluster.close()
            scripted._net.close()

    def written(before_s: float) -> LinkControl:
        return replace(PROMOTED, written_ms=int((time.time() - before_s) * 1000))

    assert is_new(LinkControl(), written(0.5)) and not is_new(written(0.5))
    assert not is_new(LinkControl(), written(5)), "the process was frozen meanwhile, or cut off"
    assert not is_new(LinkControl(), written(-5)), "the clocks tell nothing"
    assert not is_new(LinkControl(), Errors.KafkaConnectionError("away"), written(0.5))
    monkeypatch.setattr(link_watch, "NEWS_S", 0.0)
    assert not is_new(LinkControl(), written(0.5)), "it was frozen for longer, and the clocks tell nothing"


def test_each_reason_why_nothing_is_known_is_told_once_until_something_is(caplog: pytest.LogCaptureFixture) -> None:
    silent = [Errors.KafkaTimeoutError(f"no response for {n} s") for n in range(3)]
    odd, refused = RuntimeError("odd"), Errors.KafkaConnectionError("expired")
    with caplog.at_level(logging.WARNING):
        watch(*silent, refused, silent[0], odd, refused, LinkControl(), refused, PROMOTED)
    said = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert said == ["no response for 0 s", "expired", "odd", "expired"]


def test_what_the_client_could_not_read_is_named_once_before_the_promotion(
    may_not_read: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    may_not_read += ["audit", "else", "billing"]
    watch(LinkControl(), LinkControl(), PROMOTED)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("The client may not read audit, group billing on the standby: grant Read")


def test_nobody_waits_for_a_client_that_is_gone() -> None:
    assert watch(LinkControl(), LinkControl(), PROMOTED, follower=Following(2)) is None


def test_a_link_that_is_not_the_clients_moves_nobody_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert watch(PROMOTED, PROMOTED, follower=Following(2, OptionError("copies from another cluster"))) is None
    assert [record.getMessage() for record in caplog.records] == ["copies from another cluster"]


def test_a_promoted_link_that_does_not_tell_where_its_copies_end_is_not_followed_in_place() -> None:
    over = LinkControl(is_promotion_begun=True, is_fenced=True)
    for control in (replace(over, begun=BEGUN), replace(over, copied={TopicPartition("orders", 0): 7})):
        with pytest.raises(OptionError, match="does not tell where its copies end"):
            watch(control)


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
    scripted = Scripted(wrong)
    assert _told(scripted.start(), FIRST_WORD_S) is None
    scripted.close()
    ends(scripted)
    assert caplog.text.count("Whether link A-B is promoted is unknown: ") == 1


def test_a_link_that_cannot_be_followed_stops_it() -> None:
    scripted = Scripted(OptionError("translated"))
    with pytest.raises(OptionError):
        _told(scripted.start(), FIRST_WORD_S)
    scripted.close()
    ends(scripted)


def test_a_standby_whose_name_resolves_slowly_holds_up_neither_the_start_nor_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted, began = Scripted(PROMOTED, PROMOTED, seconds=0.8), time.monotonic()
    assert _told(scripted.start(), 0.1) is None
    following = Following()
    scripted.follow(following)
    scripted.close()
    assert time.monotonic() - began < 0.6
    ends(scripted)
    assert not following.moved


def test_what_it_is_told_after_the_start_moves_the_client_and_ends_the_thread() -> None:
    scripted, following = Scripted(OSError("odd"), LinkControl(), PROMOTED), Following()
    assert _told(scripted.start(), FIRST_WORD_S) is None
    scripted.follow(following)
    ends(scripted)
    assert following.moved == [PROMOTED]
    scripted.close()


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01, 0.1])
def test_a_close_soon_after_the_start_logs_nothing(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """Of a watch that is connecting, or waits for the next attempt."""
    begun = LinkWatch({"bootstrap_servers": "127.0.0.1:1"}, "A-B")
    begun.start()
    begun.follow(Following())
    time.sleep(seconds)
    begun.close()
    ends(begun)
    assert not [record for record in caplog.records if record.name.startswith("tolerant_client")]


def follower_of(cluster_id: str | None, *topics: str) -> Follower:
    subscription = SimpleNamespace(subscription=set(topics), assignment={})
    client: Any = FakeClient(_manager=SimpleNamespace(_net=None, cluster=SimpleNamespace(cluster_id=cluster_id)))
    client._subscription = subscription
    follower = Follower(Mover(client), {}, {})
    follower.client = client  # type: ignore[attr-defined]  # it keeps none alive
    return follower


class FakeClient(SimpleNamespace):
    """Which can be referred to weakly."""


@pytest.mark.parametrize(
    ("copies_from", "own", "message"),
    [
        ("of-c", "of-a", "Link C-B copies from cluster of-c, and the client's cluster is of-a: give the link"),
        (None, "of-a", "Link C-B does not say from which cluster it copies: the client does not follow"),
        (None, None, "Link C-B does not say from which cluster it copies: the client does not follow"),
    ],
)
def test_a_link_of_another_cluster_is_not_followed(copies_from: str | None, own: str | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        follower_of(own).heard("C-B", LinkControl(source_cluster_id=copies_from))


def test_a_link_is_heard_again_later_while_the_client_is_about_to_move() -> None:
    follower = follower_of("of-b")
    follower._mover.is_moving = True  # type: ignore[attr-defined]
    with pytest.raises(Errors.KafkaError, match="link B-A is considered once the client has left"):
        follower.heard("B-A", LinkControl(source_cluster_id="of-a"))


@pytest.mark.parametrize("own", ["of-b", None])
def test_a_link_that_undoes_the_clients_move_needs_no_other_proof(
    own: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    follower = follower_of(own)
    follower._moved_by = LinkControl()  # type: ignore[attr-defined]
    follower.heard("B-A", LinkControl(is_promotion_begun=True, is_fenced=True, topics=LinkTopics().to_json()))
    assert not caplog.records


def test_a_client_that_has_not_reached_its_own_cluster_is_compared_later_and_moves_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower, control = follower_of(None, "orders"), LinkControl(source_cluster_id="of-c")
    follower.heard("C-B", control)
    assert not caplog.records
    follower.heard("C-B", replace(control, is_promotion_begun=True, is_fenced=True))
    assert "has not reached its own cluster: it begins at the target of link C-B" in caplog.text


def test_topics_outside_the_link_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    follower = follower_of("A", "orders", "x", "y")
    control = LinkControl(source_cluster_id="A", topics=LinkTopics(TopicFilter(("orders",))).to_json())
    follower.heard("C-B", control)
    follower.heard("C-B", control)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["Link C-B does not copy x, y"]


def watch_of(*controls: LinkControl) -> LinkWatch:
    """A watch that reads these, one after the other."""
    watch: Any = SimpleNamespace(
        cluster=SimpleNamespace(connect=AsyncMock()),
        standby="the standby at b:9092",
        _control=SimpleNamespace(refresh=AsyncMock(side_effect=controls)),
        link="A-B",
        _patience_ms=0,
        _unknown_link="",
    )
    watch.require_followed = partial(LinkWatch.require_followed, watch)
    watch._say_unknown = partial(LinkWatch._say_unknown, watch)
    return cast(LinkWatch, watch)


def control_of(control: LinkControl) -> LinkControl:
    """What a watch makes of it."""
    return asyncio.run(LinkWatch.control(watch_of(control)))


def test_the_links_that_there_are_instead_are_read_once_for_as_long_as_the_link_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = AsyncMock(return_value=Controls({}))
    monkeypatch.setattr(link_watch, "read_controls", reads)
    known = LinkControl(topics=LinkTopics().to_json())
    watch = watch_of(LinkControl(), LinkControl(), known, LinkControl())
    for is_known in (False, False, True, False):
        if is_known:
            assert asyncio.run(LinkWatch.control(watch)) is known
        else:
            with pytest.raises(OptionError, match="knows no link A-B; it has no link"):
                asyncio.run(LinkWatch.control(watch))
    assert reads.await_count == 2


def test_a_link_that_failback_has_prepared_is_followed_before_it_runs() -> None:
    """Also once it was failed over without having run: its clients come home."""
    prepared = LinkControl(generation=1, source_cluster_id="A", topics=LinkTopics().to_json())
    assert control_of(prepared) is prepared
    half = replace(prepared, is_promotion_begun=True)
    over = replace(half, is_fenced=True)
    for said in (half, replace(over, primary_since={"x": MovedTopic(5)}), replace(over, unsaid_since_ms=5)):
        assert control_of(said) is said


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (LinkControl(map_id="m", topics="{}"), "has translated offsets"),
        (LinkControl(map_id="m", topics="{}", producer_ids=(1,)), "has translated offsets"),
        (LinkControl(is_promotion_begun=True, is_fenced=True), "has never run with identical offsets"),
        (LinkControl(), "The standby at b:9092 knows no link A-B; its links are B-C: check link"),
    ],
)
def test_a_link_whose_offsets_are_others_or_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, message: str
) -> None:
    async def read_controls(_: object) -> Controls:
        return Controls({"B-C": LinkControl(topics=LinkTopics().to_json()), "A-B": LinkControl()})

    monkeypatch.setattr(link_watch, "read_controls", read_controls)
    with pytest.raises(OptionError, match=message):
        control_of(control)
