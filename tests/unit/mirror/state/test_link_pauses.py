"""What is paused of a link, and resumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.link_control import WHOLE_LINK, LinkControl
from tolerant_client.mirror.state.link_pauses import paused, resumed

A1 = TopicPartition("a", 1)


def parted(names: Iterable[Any]) -> tuple[set[str], set[TopicPartition]]:
    """Topics and partitions apart."""
    known = set(names)
    return {name for name in known if isinstance(name, str)}, {name for name in known if not isinstance(name, str)}


def of(names: Iterable[Any]) -> LinkControl:
    topics, partitions = parted(names)
    return LinkControl(frozenset(topics), paused_partitions=frozenset(partitions))


def test_what_is_paused_adds_up() -> None:
    both = paused(paused(LinkControl(frozenset({"a"})), ["b-1"]), [], [TopicPartition("b", 1)])
    assert (both.paused, both.paused_partitions) == ({"a", "b-1"}, {("b", 1)})
    assert both.paused_words == ["topic a", "topic b-1", "partition b-1"]
    assert paused(both, [WHOLE_LINK]).paused_words == ["the whole link"]


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ({"a", "b", A1}, [WHOLE_LINK], set()),
        ({WHOLE_LINK, "b"}, [WHOLE_LINK], set()),
        ({"a", "b"}, ["a"], {"b"}),
        ({A1, TopicPartition("ab", 1), "a-1"}, ["a"], {TopicPartition("ab", 1), "a-1"}),
        ({A1, "a-1"}, ["a-1"], {A1}),
        ({A1, TopicPartition("a", 2), "a-1"}, [A1], {TopicPartition("a", 2), "a-1"}),
        ({"a"}, ["other"], {"a"}),
    ],
)
def test_what_is_resumed_is_no_longer_paused(before: set[Any], names: list[Any], after: set[Any]) -> None:
    assert resumed(of(before), *parted(names)) == of(after)


@pytest.mark.parametrize(("before", "name"), [({WHOLE_LINK}, "a"), ({"a"}, A1), ({WHOLE_LINK}, A1)])
def test_a_part_of_what_is_paused_cannot_be_resumed_alone(before: set[str], name: Any) -> None:
    with pytest.raises(OptionError, match="cannot be resumed alone, since (topic a|the whole link) is paused"):
        resumed(of(before), *parted([name]))
