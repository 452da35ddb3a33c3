"""What belongs to a link: topics that only grow, and a name for each pair of clusters."""

from __future__ import annotations

import re
from collections.abc import Collection, Coroutine
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.link import beginning, scope
from tolerant_client.mirror.link.beginning import (
    copied_identically,
    grown,
    look_for_others,
    refuse_circle,
    require_same_source,
)
from tolerant_client.mirror.link.control import Controls, LinkControl, TopicIds, controls_of, encode_control
from tolerant_client.mirror.link.naming import chosen_name, default_name
from tolerant_client.mirror.link.scope import made_anew, only_on_target
from tolerant_client.mirror.replication_policy import DefaultReplicationPolicy, IdentityReplicationPolicy, TopicNames
from tolerant_client.mirror.topic_filter import LinkTopics, TopicFilter
from tolerant_client.raw import RawCluster
from tolerant_client.record_batch import Record


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
    renamed = LinkTopics(TopicFilter(("orders",)), TopicNames(DefaultReplicationPolicy(), "A"))
    with pytest.raises(OptionError, match="start it with --source, --target and --topics, as before") as caught:
        grown(written("orders"), renamed)
    assert "promote" not in str(caught.value)
    kept = LinkTopics(TopicFilter(("orders",)), TopicNames(IdentityReplicationPolicy(), "A"))
    with pytest.raises(OptionError, match="start it with --config and the file that began it, as before"):
        grown(written(kept), LinkTopics.of("orders"))


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


# -- records that cannot be read ----------------------------------------------

RUBBISH = b'{"version":1,"topics":"rubbish","producer_ids":[1]}'
OF_A_MIRROR = b'{"version":2,"source_cluster_id":"B-id","topics":["another form"]}'


class Keeper:
    """A cluster whose control topic has these records."""

    def __init__(self, *records: tuple[bytes | None, bytes | None]) -> None:
        self.name = "target"
        self.records = [Record(n, 1, key, value) for n, (key, value) in enumerate(records)]
        self.controls = controls_of(self.records)

    async def cluster_id(self) -> str:
        return "B-id"


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(cluster: Keeper, begun_of: Collection[str] = ()) -> Controls:
        return controls_of(cluster.records, begun_of)

    for module in (beginning, scope):
        monkeypatch.setattr(module, "read_controls", read)


def outcome(course: Coroutine[Any, Any, Any]) -> Any:
    with pytest.raises(StopIteration) as done:
        course.send(None)
    return done.value.value


def others(keeper: Keeper, *names: str, link: str = "dr") -> tuple[str, ...]:
    found = outcome(look_for_others(cast(RawCluster, keeper), link, names, is_identical=True))
    found.require_none()
    return cast("tuple[str, ...]", found.warnings)


def circle(source: Keeper, *names: str) -> tuple[str, ...]:
    course = refuse_circle(cast(RawCluster, source), cast(RawCluster, Keeper()), names, "dr")
    return cast("tuple[str, ...]", outcome(course))


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize(
    "value", [RUBBISH, b"rubbish", b'{"version":2}', b'{"version":1,"is_promoted":true,"source_cluster_id":"B-id","topics":5}']
)
def test_a_record_that_says_of_no_link_that_it_copies_stops_nobody_and_is_told(value: bytes) -> None:
    keeper = Keeper((b"some\x1b[2K\none" + b"x" * 5_000, value), (b"\xff", value), (None, value))
    warnings = others(keeper, "orders")
    assert len(warnings) == 3 and all(len(warning) < 700 and warning.isprintable() for warning in warnings)
    assert "the record with key 'some\\x1b[2K\\nonex" in warnings[0] and "left out; take away the right" in warnings[0]
    assert circle(keeper, "orders") == ()
    given = LinkTopics.of("orders")
    assert outcome(scope._refuse_another(cast(RawCluster, keeper), "dr", given, ["orders"])) is None


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize("key", [b"eu", b"e\x1b[2K" + b"x" * 5_000])
def test_a_record_that_may_be_of_a_mirror_of_the_same_topics_stops_a_start_and_names_all(key: bytes) -> None:
    keeper, shown = Keeper((key, OF_A_MIRROR)), re.escape(repr(key.decode()[:200]))
    told = f"{shown} in tolerant-mirror-control cannot be read .*newer.* from cluster 'B-id' .*topic clicks. .*repair with the target as --target and that key as --link"
    given = LinkTopics.of(".*")
    for look in (
        lambda: others(keeper, "orders", "clicks"),
        lambda: circle(keeper, "orders", "clicks"),
        lambda: outcome(scope._refuse_another(cast(RawCluster, keeper), "dr", given, ["orders", "clicks"])),
    ):
        with pytest.raises(OptionError, match=told) as caught:
            look()
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1_500


@pytest.mark.usefixtures("keepers")
def test_it_stops_nobody_once_it_was_taken_away_or_where_it_is_of_elsewhere_or_ones_own() -> None:
    assert others(Keeper((b"eu", OF_A_MIRROR), (b"eu", None)), "orders") == ()
    assert len(others(Keeper((b"dr", OF_A_MIRROR)), "orders")) == 1, "read_control refuses it, with its own words"
    assert circle(Keeper((b"eu", OF_A_MIRROR.replace(b"B-id", b"C-id"))), "orders") == ()


@pytest.mark.usefixtures("keepers")
def test_under_the_key_of_a_link_its_own_record_clears_it() -> None:
    live = encode_control(written("clicks", "A-id", producer_ids=(7,)), 1)
    keeper, told = Keeper((b"eu", live), (b"eu", OF_A_MIRROR)), "run tolerant-kafka repair with the target as --target and that key as --link$"
    for look in (lambda: others(keeper, "orders"), lambda: circle(keeper, "orders")):
        with pytest.raises(OptionError, match=told):
            look()
    again = Keeper((b"eu", live), (b"eu", OF_A_MIRROR), (b"eu", live))
    assert others(again, "orders") == circle(again, "orders") == () and again.controls.links.keys() == {"eu"}


@pytest.mark.usefixtures("keepers")
def test_rubbish_over_the_record_of_a_live_link_does_not_hide_the_link() -> None:
    live = encode_control(written("orders", "A-id", producer_ids=(7,)), 1)
    keeper = Keeper((b"eu", live), (b"eu", RUBBISH))
    with pytest.raises(OptionError, match="Link eu may copy into topic orders"):
        others(keeper, "orders")
    assert len(others(keeper, "clicks")) == 1
    assert Keeper((b"eu", live), (b"eu", None)).controls == Controls({})


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize(
    ("is_identical", "is_new", "refused"),
    [
        (True, False, {"orders": "", "later": "", "clicks": "translated"}),
        (True, True, {"orders": "", "clicks": "translated"}),
        (False, False, {"orders": "identical"}),
        (False, True, {"orders": "identical"}),
    ],
)
def test_each_topic_that_another_link_writes_or_may_is_refused_alone_and_says_why_both_cannot_be(
    is_identical: bool, is_new: bool, refused: dict[str, str]
) -> None:
    """Of `later` nobody has begun to copy anything: of two links that run the first by name has it."""
    ids = TopicIds("s", "t")
    keeper = Keeper(
        (b"eu", encode_control(written("orders|later", producer_ids=(7,), begun={TopicPartition("orders", 0): ids}), 1)),
        (b"tr", encode_control(written("clicks|mine"), 1)),
        (b"old", encode_control(written("audit", producer_ids=(8,), is_promoted=True), 1)),
        (b"dr", encode_control(written(".*", producer_ids=(9,), begun={TopicPartition("mine", 0): ids}), 1)),
    )
    names = ["audit", "orders", "later", "clicks", "mine"]
    found = outcome(look_for_others(cast(RawCluster, keeper), "dr", names, is_identical=is_identical, is_new=is_new))
    assert found.refused.keys() == refused.keys()
    after = outcome(look_for_others(cast(RawCluster, keeper), "zz", ["later"], is_identical=True, is_new=True))
    assert after.refused["later"].startswith("Link eu may copy into topic later") or "dr" in after.refused["later"]
    for name, kind in refused.items():
        assert f" {'copies' if name == 'orders' else 'may copy'} into topic {name} of this target" in found.refused[name]
        assert (f"with {kind} offsets, and what is written with identical ones" in found.refused[name]) == bool(kind)


@pytest.mark.usefixtures("keepers")
def test_a_log_that_another_link_has_begun_identically_is_its_own_until_that_is_promoted() -> None:
    wanted = [TopicPartition("orders", n) for n in range(3)]
    begun = {p: TopicIds("s", "t") for p in (*wanted[:2], TopicPartition("clicks", 0))}
    for changes, refused in (({}, set(wanted[:2])), ({"is_promoted": True}, set()), ({"is_handed_back": True}, set())):
        keeper = Keeper((b"eu", encode_control(written("orders", producer_ids=(7,), begun=begun, **changes), 1)))
        found = outcome(copied_identically(cast(RawCluster, keeper), "dr", wanted))
        assert found.keys() == refused and all("by link eu with identical offsets" in why for why in found.values())
        assert outcome(copied_identically(cast(RawCluster, keeper), "eu", wanted)) == {}


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
