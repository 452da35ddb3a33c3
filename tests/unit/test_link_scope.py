"""What belongs to a link: topics that only grow, and a name for each pair of clusters."""

from __future__ import annotations

from typing import cast

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.link.beginning import grown, require_same_source
from tolerant_client.mirror.link.control import LinkControl, TopicIds
from tolerant_client.mirror.link.naming import chosen_name, default_name
from tolerant_client.mirror.link.scope import made_anew, only_on_target
from tolerant_client.mirror.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.topic_filter import LinkTopics, TopicFilter
from tolerant_client.raw import RawCluster


def written(topics: LinkTopics | str, source: str | None = "A-id", **changes: object) -> LinkControl:
    return LinkControl(topics=LinkTopics.of(topics).to_json(), source_cluster_id=source, **changes)  # type: ignore[arg-type]


def test_a_start_with_other_topics_adds_to_what_the_link_takes() -> None:
    first = written("orders|audit")
    both = grown(first, LinkTopics.of("payments.*"))
    assert all(both.takes(name) for name in ("orders", "audit", "payments.eu"))
    assert not both.takes("clicks")
    again = LinkTopics.from_json(both.to_json())
    assert again == both and str(both) == "'payments.*' and 'orders|audit'"
    assert grown(written(both), LinkTopics.of("orders|audit")).also == (TopicFilter(("payments.*",)),)
    assert grown(written(both), LinkTopics.of("payments.*")) == both


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (TopicIds("s", "t"), []),
        (TopicIds("", ""), []),  # brokers before 2.8 do not say
        (TopicIds("other", "t"), ["source"]),
        (TopicIds("s", "other"), ["target"]),
        (TopicIds("other", "other"), ["source", "target"]),
    ],
)
def test_a_topic_with_another_id_than_it_was_begun_with_was_made_anew(now: TopicIds, told: list[str]) -> None:
    begun = {TopicPartition("t", n): TopicIds("s", "t") for n in range(3)}
    controls = {
        "live": written("t", begun=begun),
        "promoted": written("t", begun=begun, is_promoted=True),
        "of another source": written("t", "B-id", begun=begun),
    }
    found = made_anew(controls, "A-id", {"t": now, "u": TopicIds("", "x")})
    assert len(found) == len(told)
    assert all(f"on the {side} since link live" in text for side, text in zip(told, found))


def test_a_link_that_took_nothing_yet_takes_what_it_is_given() -> None:
    assert grown(LinkControl(), LinkTopics.of("orders")) == LinkTopics.of("orders")


def test_topics_that_would_get_other_names_are_refused() -> None:
    with pytest.raises(OptionError, match="other names"):
        grown(written("orders"), LinkTopics(TopicFilter(("orders",)), TopicNames(DefaultReplicationPolicy(), "A")))


class Cluster:
    """A cluster that has topics of two partitions."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    async def partitions(self) -> dict[str, list[int]]:
        return {topic: [0, 1] for topic in self.topics}


def gone(source: Cluster, target: Cluster, topics: LinkTopics) -> dict[str, list[int]]:
    course = only_on_target(cast(RawCluster, source), cast(RawCluster, target), topics)
    with pytest.raises(StopIteration) as done:
        course.send(None)
    return cast("dict[str, list[int]]", done.value.value)


def test_a_topic_of_the_link_that_the_source_has_deleted_is_still_one_of_the_link() -> None:
    target = Cluster("orders", "orders.old", "of-the-target", "tolerant-mirror-control")
    assert gone(Cluster("orders"), target, LinkTopics.of("orders.*")) == {"orders.old": [0, 1]}
    assert gone(Cluster("orders", "orders.old"), target, LinkTopics.of("orders.*")) == {}
    named = LinkTopics(TopicFilter((".*",)), TopicNames(DefaultReplicationPolicy(), "A"))
    assert gone(Cluster("A.orders"), Cluster("A.orders", "A.old", "A.heartbeats", "own"), named) == {"A.old": [0, 1]}


def test_a_link_stays_with_its_source() -> None:
    require_same_source(written("orders"), "dr", "A-id")
    require_same_source(written("orders", None), "dr", "B-id")
    require_same_source(LinkControl(), "dr", "B-id")
    with pytest.raises(OptionError, match="Link dr copies from cluster A-id, and this source is cluster B-id"):
        require_same_source(written("orders"), "dr", "B-id")


def test_two_sources_never_share_a_link_that_nobody_named() -> None:
    assert default_name("abcdefghijk", {}) == "mirror-abcdefgh"
    assert default_name("abcdefghijk", {"default": written("orders", "other")}) == "mirror-abcdefgh"
    assert default_name("abcdefghijk", {"default": written("orders", "abcdefghijk")}) == "default"
    assert default_name(None, {}) == "default"


def test_the_single_link_of_a_target_is_found_and_of_several_one_must_be_named() -> None:
    one = {"dr": written("orders"), "old": written("orders", is_promoted=True)}
    assert chosen_name(one, None, "--target b:1") == "dr"
    assert chosen_name({"old": one["old"]}, None, "--target b:1") == "old"
    assert chosen_name({"x": LinkControl()}, None, "--target b:1") is None
    two = {**one, "eu": written("orders", "B-id")}
    assert chosen_name(two, "B-id", "--target b:1") == "eu"
    with pytest.raises(OptionError, match=r"2 links: dr \(from cluster A-id\); eu .*--target b:1 --link dr"):
        chosen_name(two, None, "--target b:1")
