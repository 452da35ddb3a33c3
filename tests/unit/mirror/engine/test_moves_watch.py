"""What a running link writes down of the moves of its topics to its source."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from kafka.errors import MessageSizeTooLargeError
from kafka.structs import TopicPartition

from support.control_topic import ControlTopic
from support.moved_links import moved
from tolerant_client.mirror.engine.moves_watch import MovesWatch
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.topic_filter import LinkTopics

COPIED = "a.orders"  # the source's orders on the target


class Renamed:
    """The source with the names that its topics have on the target."""

    def __init__(self, source: ControlTopic) -> None:
        self.source = source

    def by_own_names(self) -> ControlTopic:
        return self.source

    def wire_topic(self, name: str) -> str:
        return name.removeprefix("a.")


class Link:
    """A link, and what its mirror knows after each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.target = ControlTopic(monkeypatch), ControlTopic(monkeypatch)
        self.watch = MovesWatch(cast(Any, Renamed(self.source)), cast(Any, self.target), "dr")

    async def known(self) -> dict[str, int]:
        await self.watch.write({COPIED})
        return dict((await self.target.read()).known_moves)

    async def promoted(self, link: str, control: LinkControl) -> None:
        await update_control(cast(Any, self.source), link, lambda _: control)


def test_a_promotion_to_the_source_is_known_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch)

    async def run() -> None:
        await link.target.change(topics=LinkTopics.of("orders").to_json())
        assert await link.known() == {} and len(link.target.log) == 1
        await link.promoted("up", moved("orders|users", 7))
        assert await link.known() == {COPIED: 7}
        link.source.read_from.clear()
        link.target.read_from.clear()
        await link.watch.write({COPIED})
        assert link.source.read_from == link.target.read_from == [], "nothing is news"
        await link.promoted("up", moved("orders", 9))
        assert await link.known() == {COPIED: 9}
        link.source.log.clear()  # its control topic was created again
        await link.promoted("other", moved("orders", 3))
        assert await link.known() == {COPIED: 9}
        link.source.is_refused = True
        assert await link.known() == {COPIED: 9}

    asyncio.run(run())


def test_a_move_is_known_for_which_a_control_had_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch)
    begun = {TopicPartition("orders", 0): TopicIds("s", "t")}

    async def run() -> None:
        await link.target.change(topics=LinkTopics.of("orders").to_json())
        said = moved("orders", copied_until={}, primary_since={}, unsaid_since_ms=7, begun=begun, target_cluster_id="b")
        await link.promoted("up", said)
        assert await link.known() == {COPIED: 7}

    asyncio.run(run())


@pytest.mark.parametrize(
    "control",
    [
        replace(moved("orders"), is_fenced=False),
        LinkControl(),
        LinkControl(is_handed_back=True),
        LinkControl(topics=LinkTopics.of("orders").to_json(), generation=1),  # prepared again, for another source, say
    ],
)
def test_nothing_is_written_for_a_link_that_is_over_or_whose_control_was_deleted(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl
) -> None:
    link = Link(monkeypatch)

    async def run() -> None:
        await update_control(cast(Any, link.target), "dr", lambda _: control)
        await link.promoted("up", moved("orders", 7))
        written = len(link.target.log)
        assert await link.known() == {} and len(link.target.log) == written

    asyncio.run(run())


@pytest.mark.parametrize("said", [{"producer_ids": ()}, {"map_id": "m"}])
def test_what_a_link_that_has_copied_nothing_as_it_is_knows_is_nothing_to_know(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    """One that was only prepared, or has translated offsets, beside one whose mirror runs."""
    link = Link(monkeypatch)
    upstream = LinkControl(topics=LinkTopics.of("orders").to_json(), producer_ids=(1,), known_moves={"orders": 5})

    async def run() -> None:
        await link.target.change(topics=LinkTopics.of("orders").to_json())
        await link.promoted("up", replace(upstream, **said))
        assert await link.known() == {}
        await link.promoted("up", upstream)
        assert await link.known() == {COPIED: 5}

    asyncio.run(run())


def test_a_control_that_has_no_room_for_moves_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(monkeypatch)

    async def refuse(key: bytes, value: bytes) -> int:
        raise MessageSizeTooLargeError("the control of link dr is that large: raise max.message.bytes")

    async def run() -> None:
        await link.target.change(topics=LinkTopics.of("orders").to_json())
        await link.promoted("up", moved("orders", 7))
        monkeypatch.setattr(link.target, "put", refuse)
        assert await link.known() == {} == await link.known()

    asyncio.run(run())
    assert caplog.text.count("link dr does not note the promotions to its source: ") == 1
