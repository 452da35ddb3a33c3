"""What may be paused by name."""

from __future__ import annotations

import asyncio
import re
import sys
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from spark_integration.cli.link import GivenLink
from spark_integration.cli.options import WhichLink
from spark_integration.cli.pause import _names, _require_there, parse_rate, pause, require_known, resume, unpaused
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.link_control import WHOLE_LINK, LinkControl
from tolerant_client.mirror.state.link_pauses import paused, resumed
from tolerant_client.mirror.state.topic_filter import LinkTopics


class Guarded:
    """A target that shows us only `visible`: for all other names brokers refuse, whether or not they exist."""

    def __init__(self, **visible: int) -> None:
        self.visible = {name.replace("_", "-"): list(range(count)) for name, count in visible.items()}

    async def partitions(self, topics: Any = None) -> dict[str, list[int]]:
        if topics is not None and not self.visible.keys() >= set(topics):
            raise Errors.TopicAuthorizationFailedError("no")
        return {name: found for name, found in self.visible.items() if topics is None or name in topics}

    def run_on_target(self, ask: Any) -> Any:
        with pytest.raises(StopIteration) as stopped:
            ask(self).send(None)
        return stopped.value.value


def check(target: Guarded, topics: list[str], partitions: list[int]) -> None:
    _require_there(cast(GivenLink, target), topics, partitions)


def test_a_misspelled_topic_is_named_with_the_one_that_may_be_meant() -> None:
    class Open(Guarded):
        async def partitions(self, topics: Any = None) -> dict[str, list[int]]:
            return {name: found for name, found in self.visible.items() if topics is None or name in topics}

    for name, hint in (("ordres", "did you mean orders?"), ("x", "use the topic's name on the target")):
        with pytest.raises(OptionError, match=f"The target has no topic {name}; {re.escape(hint)}"):
            check(Open(orders=4), [name], [])


def test_a_partition_is_paused_with_the_right_to_its_topic_alone() -> None:
    check(Guarded(orders=4), ["orders"], [3])


def test_a_partition_that_is_called_as_another_topic_is_paused_alone() -> None:
    check(Guarded(orders=4, orders_3=1), ["orders"], [2, 3])
    control = paused(LinkControl(), *_names(["orders"], [3]))
    assert control.pauses(TopicPartition("orders", 3)) and not control.pauses(TopicPartition("orders-3", 0))
    control = resumed(paused(control, *_names(["orders-3"], [])), *_names(["orders"], []))
    assert control.pauses(TopicPartition("orders-3", 0)) and not control.pauses(TopicPartition("orders", 3))


def test_a_partition_that_is_not_there_is_not_paused() -> None:
    with pytest.raises(OptionError, match="orders has 4 partitions on the target; there is no partition 4"):
        check(Guarded(orders=4), ["orders"], [4])


def test_a_wrong_name_is_resumed_no_more_than_it_is_paused() -> None:
    held = LinkControl(
        frozenset({"clicks", "ordersnosuch"}), paused_partitions=frozenset({TopicPartition("orders", 3)})
    )
    assert unpaused(["nosuch", "orders", "clicks"], held) == ["nosuch"]
    assert unpaused(["orders"], LinkControl()) == ["orders"]


def test_a_link_that_the_target_does_not_have_is_refused_and_those_that_it_has_are_named() -> None:
    require_known("A-B", ["A-B"])
    with pytest.raises(OptionError, match="no link A->B; its links are A-B, C-B$"):
        require_known("A->B", {"C-B", "A-B"})
    with pytest.raises(OptionError, match="No link copies to this target; a link is known once"):
        require_known("A-B", ())


def test_a_rate_that_no_control_can_hold_is_none() -> None:
    assert (parse_rate("20M"), parse_rate("1.5Ki"), parse_rate("8000000000G")) == (20_000_000, 1536, 8 * 10**18)
    for text in ("20000000000G", "9" * 20, "9" * 400, f"1.{'9' * 400}k", "0.1k0", "0"):
        with pytest.raises(OptionError, match="is not a rate"):
            parse_rate(text)


def test_a_pause_below_that_of_the_whole_link_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controls = [LinkControl(), LinkControl(frozenset({WHOLE_LINK}))]

    def run(_: GivenLink, ask: Any) -> Any:
        if ask.__qualname__.startswith("_require_there"):
            return {"orders": [0]}, []
        return (before := controls.pop(0)), paused(before, ["orders"]), []

    monkeypatch.setattr(GivenLink, "run_on_target", run)
    which = WhichLink(target="b:1", link="dr")
    pause(which, ["orders"])
    assert capsys.readouterr().out == "Link dr: paused: topic orders; rate limit: as in the mirror's file, or none\n"
    pause(which, ["orders"])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "The whole link was paused before: resume without --topic ends that pause, and this one with it"
    ]


@pytest.mark.parametrize("command", [pause, resume])
def test_a_topic_that_another_link_copies_is_not_called_paused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    """No mirror of this link would obey.  One that nobody copies may be paused before it is added: a refused start advises that."""
    control = LinkControl(topics=LinkTopics.of("orders").to_json())

    async def partitions(topics: Any) -> dict[str, list[int]]:
        return {topic: [0] for topic in topics}

    async def update(_: Any, __: str, change: Any) -> LinkControl:
        return cast(LinkControl, change(control))

    def run(_: GivenLink, ask: Any) -> Any:
        return asyncio.run(ask(SimpleNamespace(partitions=partitions)))

    monkeypatch.setattr(GivenLink, "run_on_target", run)
    module = sys.modules[pause.__module__]
    monkeypatch.setattr(module, "read_control", AsyncMock(return_value=control))
    former = LinkControl(topics=LinkTopics.of(".*").to_json(), is_promotion_begun=True)
    links = {"A-B": control, "dr": LinkControl(topics=LinkTopics.of("dr.*").to_json()), "former": former}
    monkeypatch.setattr(module, "read_controls", AsyncMock(return_value=Controls(links)))
    monkeypatch.setattr(module, "update_control", update)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(OptionError, match="Link A-B does not have topic dr1, so nothing is changed: link dr does"):
            command(WhichLink(target="b:1", link="A-B"), ["dr1"], **options)
    command(WhichLink(target="b:1", link="A-B"), ["orders"])
    assert "does not have" not in capsys.readouterr().out
    command(WhichLink(target="b:1", link="A-B"), ["new"])
    assert (
        "Link A-B does not have new yet: a topic that is paused is not copied when it is added"
        in capsys.readouterr().out
    )
    command(WhichLink(target="b:1", link="A-B", topics="dr.*"), ["dr1"])  # its mirror is to be started with it


def test_the_command_that_resumes_partitions_names_a_topic_once() -> None:
    held = paused(LinkControl(), ["orders"], [TopicPartition("orders", 1), TopicPartition("clicks", 2)])
    command = held.resume_command([*held.paused_partitions, TopicPartition("orders", 0)], "--target b:1")
    assert command == (
        "tolerant-kafka resume --target b:1 --topic orders; tolerant-kafka resume --target b:1 --topic clicks --partition 2"
    )
