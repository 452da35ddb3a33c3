"""What belongs to a link: topics that only grow, and a name for each pair of clusters."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import kafka.errors as Errors
import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetClaimedError
from tolerant_client.mirror.engine import circles, planned_link, preflight, prepare
from tolerant_client.mirror.engine.circles import link_back, links_into, refuse_circle
from tolerant_client.mirror.engine.former_copies import FormerCopies
from tolerant_client.mirror.engine.planned_link import PlannedLink
from tolerant_client.mirror.engine.preflight import (
    copied_by_others,
    grown,
    look_for_others,
    of_the_same_id,
    require_same_source,
)
from tolerant_client.mirror.life.naming import chosen_name, default_name
from tolerant_client.mirror.state import link_topics, promoted_copies
from tolerant_client.mirror.state.control_record import Controls, controls_of, encode_control
from tolerant_client.mirror.state.known_maps import KnownMaps
from tolerant_client.mirror.state.link_control import LinkControl, LinkKindError, MovedTopic, TopicIds
from tolerant_client.mirror.state.link_topics import (
    PARTITION_NOT_ON_SOURCE,
    LinkView,
    begun_partitions,
    beside_file,
    created_again,
    known_topics,
    only_on_target,
    partitions_of_link,
    partitions_on_target,
    see_topics,
)
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.map_topic import map_partition, map_topic
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.mirror.state.plan import TopicSpec, TopicsPlan
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.state.topics import DescribedTopics, FittedTopics
from tolerant_client.records.record_batch import Record

ORDERS = frozenset(TopicPartition("orders", n) for n in range(2))
P, ORDER_1 = sorted(ORDERS)
AWAY = {map_partition("eu", p): "it has no leader" for p in ORDERS}


def copied(topic_id: str, *partitions: TopicPartition) -> dict[TopicPartition, MapRow]:
    """The newest rows of partitions that were copied into a topic with this id."""
    return {p: MapRow(RowKey(p, 0), p.topic, ("s", topic_id), 9, 0, (Run(0, 0, 9),)) for p in partitions}


def respond_with_maps(monkeypatch: pytest.MonkeyPatch, mapped_topics: Callable[..., Any]) -> None:
    async def each(target: object, of: Mapping[str, Any], **_: object) -> dict[str, MappedTopics]:
        return {link: await mapped_topics(target, link, control, of=asked) for link, (control, asked) in of.items()}

    monkeypatch.setattr(promoted_copies, "mapped_topics", mapped_topics)
    monkeypatch.setattr(promoted_copies, "read_each_map", each)


def written(topics: LinkTopics | str, source: str | None = "A-id", **changes: object) -> LinkControl:
    return LinkControl(topics=LinkTopics.of(topics).to_json(), source_cluster_id=source, **changes)  # type: ignore[arg-type]


def test_a_start_with_other_topics_adds_to_what_the_link_takes() -> None:
    first = written("orders|audit")
    both = grown(first, LinkTopics.of("payments.*"))
    assert all(both.takes(name) for name in ("orders", "audit", "payments.eu"))
    assert not both.takes("clicks")
    again = LinkTopics.from_json(both.to_json())
    assert again == both and str(both) == "payments.* and orders|audit"
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
        "promoted": written("t", begun=begun, is_promotion_begun=True),
        "of another source": written("t", "B-id", begun=begun),
    }
    found = created_again(controls, "A-id", {"t": now, "u": TopicIds("", "x")})
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


class FakeCluster:
    """A cluster that has topics of two partitions, and lists those alone that it does not hide."""

    def __init__(self, *topics: str, name: str = "source", hidden: Collection[str] = ()) -> None:
        self.name, self.topics, self.hidden, self.asked = name, topics, hidden, list[str]()

    async def partitions(self, topics: Collection[str] | None = None) -> dict[str, list[int]]:
        if topics is None:
            return {topic: [0, 1] for topic in self.topics if topic not in self.hidden}
        self.asked += topics
        if set(topics) & set(self.hidden):
            raise Errors.TopicAuthorizationFailedError("topic")
        return {topic: [0, 1] for topic in self.topics if topic in topics}

    async def send(self, request: MetadataRequest) -> SimpleNamespace:
        refused = Errors.TopicAuthorizationFailedError.errno
        told = [
            SimpleNamespace(name=t.name, error_code=refused if t.name in self.hidden else 0) for t in request.topics
        ]
        return SimpleNamespace(topics=told)

    def wire_topic(self, topic: str) -> str:
        return topic

    topic_of = wire_topic


def seen(
    source: FakeCluster | None,
    target: FakeCluster,
    topics: LinkTopics | str,
    control: LinkControl = LinkControl(),
    mapped: MappedTopics = NO_MAP,
) -> LinkView:
    course = see_topics(cast("Cluster | None", source), cast(Cluster, target), LinkTopics.of(topics), control, mapped)
    return cast(LinkView, outcome(course))


def test_a_topic_of_the_link_that_the_source_has_deleted_is_still_one_of_the_link() -> None:
    target = FakeCluster("orders", "orders.old", "of-the-target", "tolerant-mirror-control")
    source = FakeCluster("orders")
    assert seen(source, target, "orders.*").gone == {"orders.old": [0, 1]} and source.asked == ["orders.old"]
    assert seen(FakeCluster("orders", "orders.old"), target, "orders.*").gone == {}
    named = LinkTopics(TopicFilter((".*",)), TopicNames(DefaultReplicationPolicy(), "A"))
    view = seen(FakeCluster("A.orders"), FakeCluster("A.orders", "A.old", "A.heartbeats", "own"), named)
    assert view.gone == {"A.old": [0, 1]} and not view.hidden


OTHER = TopicPartition("orders", 0)
CONTROL = {"topics": LinkTopics.of(".*").to_json(), "source_cluster_id": "A-id"}
IDENTICAL = LinkControl(producer_ids=(0,), begun={OTHER: TopicIds("s", "t")}, **CONTROL)  # type: ignore[arg-type]
TRANSLATED = LinkControl(map_id="m", **CONTROL)  # type: ignore[arg-type]
PREPARED = LinkControl(adopted={OTHER: 7}, **CONTROL)  # type: ignore[arg-type]
ROWS = MappedTopics(frozenset({OTHER}))
HALF_READ = ROWS._replace(unread={TopicPartition("tolerant-mirror-offsets-dr", 3): "no leader"})


@pytest.mark.parametrize(
    ("control", "mapped", "is_known"),
    [
        (IDENTICAL, NO_MAP, True),
        (TRANSLATED, ROWS, True),
        (PREPARED, NO_MAP, True),
        (LinkControl(), NO_MAP, False),  # it was deleted
        (LinkControl(), ROWS, False),
        (replace(IDENTICAL, begun={}), NO_MAP, False),  # version 0.1 did not write it
        (TRANSLATED, NO_MAP, False),  # its map is lost
        (TRANSLATED, HALF_READ, False),
        (replace(PREPARED, adopted={}), NO_MAP, False),
        (replace(IDENTICAL, is_hidden=True), NO_MAP, False),
    ],
)
def test_a_topic_that_the_target_alone_has_is_its_own_where_the_link_is_known_to_have_begun_none_of_it(
    control: LinkControl, mapped: MappedTopics, is_known: bool
) -> None:
    source, target = FakeCluster("orders"), FakeCluster("orders", "own", name="target")
    view = seen(source, target, ".*", control, mapped)
    assert (view.gone, view.beside) == (({}, {"own": [0, 1]}) if is_known else ({"own": [0, 1]}, {}))
    assert bool(view.why_gone) is not is_known and view.on_source.keys() == {"orders"}
    has = begun_partitions(control, mapped)
    assert has == ({OTHER} if is_known else None)
    # Nor has the link copied more than a file names that has less than before.
    beside = outcome(beside_file(None, cast(Cluster, target), control, "dr", LinkTopics.of("orders"), mapped))
    assert bool(beside.kept) is (control.topics is not None and not is_known)


def test_partitions_that_the_link_has_copied_and_its_source_has_no_more_are_gone() -> None:
    """A topic was created again there with fewer; what else the target has more of is no affair of the link."""

    class Wider(FakeCluster):
        async def partitions(self, topics: Collection[str] | None = None) -> dict[str, list[int]]:
            return dict.fromkeys(await super().partitions(topics), [0, 1, 2, 3])

    begun = dict.fromkeys([TopicPartition("orders", n) for n in (0, 2)], TopicIds("s", "t"))
    of_map = MappedTopics(frozenset(begun))  # all that a link with translated offsets has
    for control, mapped in ((LinkControl(begun=begun), NO_MAP), (LinkControl(), of_map)):
        view = seen(FakeCluster("orders"), Wider("orders"), "orders", control, mapped)
        assert view.gone == {"orders": [2]}
        assert view.why_gone == {TopicPartition("orders", 2): PARTITION_NOT_ON_SOURCE}
    assert seen(FakeCluster("orders"), Wider("orders"), "orders").gone == {}


@pytest.mark.parametrize(
    ("link", "is_identical", "topic", "other", "other_is", "twin"),
    [
        ("a", True, "x-gap-y", "a-gap-x", True, "y"),
        ("a-gap-x", True, "y", "a", True, "x-gap-y"),
        ("a", False, "x-copy-y", "a-copy-x", False, "y"),
        ("a", True, "x-copy-y", "a-gap-x", False, "y"),
        ("dr", True, "n1", "dr-copy-eu", True, None),
        ("dr-gap-eu", True, "n1", "dr", False, None),
        ("a", True, "x-gap-y", "a", True, None),
    ],
)
def test_links_are_kept_apart_only_where_a_topic_of_each_has_the_same_transactional_ids(
    link: str, is_identical: bool, topic: str, other: str, other_is: bool, twin: str | None
) -> None:
    found = of_the_same_id(link, [topic], other, is_identical=is_identical, other_is=other_is)
    assert found == ({} if twin is None else {topic: twin})


@pytest.mark.parametrize(
    ("link", "is_identical", "other", "other_is", "generation", "refused"),
    [
        ("a", True, "a-gap-t-0", True, 0, {"t": "has the transactional id of link a-gap-t-0 itself"}),
        ("a", False, "a-copy-t-0", True, 0, {"t": "has the transactional id of link a-copy-t-0 itself"}),
        ("a", True, "a-copy-t-0", True, 0, {}),
        ("a", True, "a-gap-t-0", True, 1, {}),  # its next life has another id
        ("a-gap-u-12", True, "a", True, 0, {"t": "topic u of link a", "v": "topic u of link a"}),
        ("a-copy-u-12", True, "a", False, 0, {"t": "topic u of link a", "v": "topic u of link a"}),
        ("a-gap-w-12", True, "a", True, 0, {}),
        ("a~1", True, "a", True, 1, {"t": "has a transactional id of link a:", "v": "of link a:"}),
        ("a", False, "a-copy-t", False, 0, {}),
        ("a", False, "b", False, 0, {}),
    ],
)
@pytest.mark.usefixtures("keepers")
def test_no_link_has_a_transactional_id_of_its_own_that_fills_gaps_or_copies_for_another_one(
    link: str, is_identical: bool, other: str, other_is: bool, generation: int, refused: dict[str, str]
) -> None:
    control = written("u", producer_ids=(7,) if other_is else (), generation=generation)
    keeper = Keeper((other.encode(), encode_control(control, 1)))
    found = outcome(look_for_others(cast(Cluster, keeper), link, ["t", "v"], is_identical=is_identical)).refused
    assert found.keys() == refused.keys() and all(refused[name] in why for name, why in found.items())


@pytest.mark.usefixtures("keepers")
def test_two_links_with_translated_offsets_are_kept_apart_where_their_copies_have_the_same_ids() -> None:
    keeper = Keeper((b"a-copy-x", encode_control(written("y"), 1)))
    found = outcome(look_for_others(cast(Cluster, keeper), "a", ["x-copy-y", "y"], is_identical=False)).refused
    assert found.keys() == {"x-copy-y"} and "topic y of link a-copy-x" in found["x-copy-y"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_topic_that_a_cluster_does_not_let_us_describe_is_not_gone_but_unknown(exists: bool) -> None:
    both, one = FakeCluster("orders", "clicks", name="target"), ("orders", "clicks") if exists else ("orders",)
    view = seen(FakeCluster(*one, hidden=["clicks"]), both, ".*")
    assert (view.gone, view.on_source, view.on_target) == ({}, {"orders": [0, 1]}, {"orders": [0, 1]})
    assert view.hidden == dict.fromkeys(CLICKS, "topic clicks of the source may not be described; grant Describe on it")
    view = seen(both, FakeCluster(*one, name="target", hidden=["clicks"]), ".*")
    assert view.hidden == dict.fromkeys(CLICKS, "topic clicks of the target may not be described; grant Describe on it")


CLICKS = [TopicPartition("clicks", n) for n in (0, 1)]
REMEMBERED = {"begun": dict.fromkeys(CLICKS, TopicIds("s", "t"))}, {"copied": {CLICKS[0]: 7}}, {"unfenced": {CLICKS[0]}}


CLICKS_MAPPED = MappedTopics(frozenset(CLICKS))


@pytest.mark.parametrize(("changes", "mapped"), [*((changes, NO_MAP) for changes in REMEMBERED), ({}, CLICKS_MAPPED)])
def test_what_no_cluster_lists_is_known_from_the_links_control_or_map_or_by_its_name(
    changes: dict[str, Any], mapped: MappedTopics
) -> None:
    target = FakeCluster("orders", "clicks", name="target", hidden=["clicks"])
    control = written(".*", **changes)
    for course in (
        partitions_on_target(cast(Cluster, target), LinkTopics.of(".*"), "dr", control, mapped),
        partitions_on_target(cast(Cluster, target), LinkTopics.of("orders,clicks"), "dr", LinkControl(), NO_MAP),
        partitions_of_link(*2 * [cast(Cluster, target)], LinkTopics.of(".*"), "dr", control, mapped),
        only_on_target(*2 * [cast(Cluster, target)], LinkTopics.of(".*"), "dr", control, mapped),
    ):
        with pytest.raises(
            OptionError, match="topic clicks of the .* may not be described; grant Describe on it, then run"
        ):
            outcome(course)
    shown = FakeCluster("orders", "clicks", name="target")
    assert len(outcome(partitions_on_target(cast(Cluster, shown), LinkTopics.of(".*"), "dr", control, mapped))) == 4
    gone = FakeCluster("orders", name="target")
    assert len(outcome(partitions_on_target(cast(Cluster, gone), LinkTopics.of(".*"), "dr", control, mapped))) == 2


def test_a_map_that_cannot_be_read_is_in_the_way_of_a_promotion_but_of_no_failover() -> None:
    cluster, topics = cast(Cluster, FakeCluster("orders")), LinkTopics.of(".*")
    mapped = MappedTopics(
        frozenset({TopicPartition("orders", 0)}), {TopicPartition("tolerant-mirror-offsets-dr", 3): "no leader"}
    )
    for course in (partitions_of_link, only_on_target):
        with pytest.raises(OptionError, match=r"tolerant-mirror-offsets-dr-3 cannot be read, so whether link dr has"):
            outcome(course(cluster, cluster, topics, "dr", LinkControl(), mapped))
    assert len(outcome(partitions_on_target(cluster, topics, "dr", LinkControl(), mapped))) == 2


def test_the_names_of_a_map_are_those_on_the_target() -> None:
    renamed = LinkTopics(TopicFilter((".*",)), TopicNames(DefaultReplicationPolicy(), "A"))
    target = FakeCluster("A.clicks", name="target", hidden=["A.clicks"])
    with pytest.raises(OptionError, match="topic A.clicks of the target may not be described"):
        mapped = MappedTopics(frozenset({TopicPartition("A.clicks", 0)}))
        outcome(partitions_on_target(cast(Cluster, target), renamed, "dr", LinkControl(), mapped))


def test_a_start_is_refused_what_the_source_hides_of_its_link_and_is_told_what_it_has_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reached(FakeCluster):
        bootstrap_servers, names, manager = "", None, SimpleNamespace(cluster=SimpleNamespace(brokers=list))

        async def connect(self) -> None:
            pass

        require_record_batches = connect

        async def cluster_id(self) -> None:
            pass

    def respond(name: str, value: object) -> None:
        async def tell(*_: object) -> object:
            return value

        monkeypatch.setattr(planned_link, name, tell)

    respond("describe_each_topic", DescribedTopics({}, {}))
    respond("fit_each_topic", FittedTopics((), (), {}))
    respond("stable_ends", LedOffsets({}, {}))
    respond("unled_copies", {})
    source, target = Reached("clicks", hidden=["clicks"]), Reached("clicks", "deleted", "another", name="target")
    remembered = dict.fromkeys([CLICKS[0], TopicPartition("deleted", 0)], TopicIds("s", "t"))
    clusters = [cast(Cluster, source), cast(Cluster, target)]
    mapped = outcome(planned_link.plan_link(*clusters, ".*", written(".*"), CLICKS_MAPPED))
    assert mapped.waiting.keys() == set(CLICKS), "a link with translated offsets"
    planned = outcome(planned_link.plan_link(*clusters, ".*", written(".*", begun=remembered)))
    assert planned.waiting == dict.fromkeys(CLICKS, planned.topics.refused["clicks"])
    assert planned.gone == {"deleted": [0, 1]}, "of another one nobody says that the link has copied it"
    with pytest.raises(OptionError, match="topic clicks of the source may not be described; grant Describe on it"):
        planned.require_all()


def test_an_expression_is_asked_for_as_a_name_where_it_can_be_one_and_matches_nothing_else() -> None:
    asked = known_topics(LinkTopics.of("a.b,orders,x|y,tolerant-mirror-x,c.d"), LinkControl(), ["a-b"])
    assert asked == {"orders", "c.d"}
    strange = written(".*", begun={TopicPartition(name, 0): TopicIds("", "") for name in ("a b", "..", "")})
    assert known_topics(LinkTopics.of(".*"), strange, []) == set()
    named = LinkTopics(TopicFilter(("orders",)), TopicNames(DefaultReplicationPolicy(), "A"))
    assert known_topics(named, LinkControl(), []) == {"A.orders"}


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

    topics: Mapping[str, list[int]] = {}  # beside offset maps
    bootstrap_servers, manager = "b:1", SimpleNamespace(config={"security_protocol": "PLAINTEXT"})

    def __init__(self, *records: tuple[bytes | None, bytes | None]) -> None:
        self.name = "target"
        self.maps: dict[str, list[int]] = {}
        self.records = [Record(n, 1, key, value) for n, (key, value) in enumerate(records)]
        self.controls = controls_of(self.records)

    is_by_own_names = True

    def by_own_names(self) -> Keeper:
        same = copy(self)
        same.is_by_own_names = True
        return same

    async def cluster_id(self) -> str:
        return "B-id"

    async def read(self, begun_of: Collection[str]) -> Controls:
        """As a ControlsWatch."""
        return controls_of(self.records, begun_of)

    async def partitions(self, topics: Collection[str] | None = None) -> dict[str, list[int]]:
        assert self.is_by_own_names, "the names of our target are no names of our source"
        there = {**self.topics, **self.maps}
        return {topic: there[topic] for topic in (there if topics is None else topics) if topic in there}


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(cluster: Keeper, begun_of: Collection[str] = ()) -> Controls:
        return controls_of(cluster.records, begun_of)

    async def read_one(cluster: Keeper, link: str) -> LinkControl:
        return cluster.controls.links.get(link, LinkControl())

    monkeypatch.setattr(circles, "read_control", read_one)
    for module in (preflight, circles, link_topics):
        monkeypatch.setattr(module, "read_controls", read)


def outcome(course: Coroutine[Any, Any, Any]) -> Any:
    with pytest.raises(StopIteration) as done:
        course.send(None)
    return done.value.value


def others(keeper: Keeper, *names: str, link: str = "dr") -> tuple[str, ...]:
    found = outcome(look_for_others(cast(Cluster, keeper), link, names, is_identical=True))
    found.require_none()
    return cast("tuple[str, ...]", found.warnings)


def circle(source: Keeper, *names: str, own: LinkControl = LinkControl()) -> tuple[str, ...]:
    target = Keeper((b"dr", encode_control(own, 1)))
    source.is_by_own_names = False
    into = outcome(links_into(cast(Cluster, source)))
    course = refuse_circle(cast(Cluster, source), cast(Cluster, target), names, "dr", into)
    return cast("tuple[str, ...]", outcome(course))


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize(
    "value",
    [RUBBISH, b"rubbish", b'{"version":2}', b'{"version":1,"is_promoted":true,"source_cluster_id":"B-id","topics":5}'],
)
def test_a_record_that_says_of_no_link_that_it_copies_stops_nobody_and_is_told(value: bytes) -> None:
    keeper = Keeper((b"x" * 225, value), (b"someone", value))
    warnings = others(keeper, "orders")
    assert len(warnings) == 2 and all(len(warning) < 700 and warning.isprintable() for warning in warnings)
    assert "the record with key 'someone' in" in warnings[1] and "ignored; revoke the right" in warnings[1]
    assert circle(keeper, "orders") == ()
    given = LinkTopics.of("orders")
    assert outcome(link_topics._refuse_another(cast(Cluster, keeper), "dr", given, ["orders"])) is None


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize("key", [b"a b", b"some\x1b[2K\none", b"x" * 226, b"\xff", b"", None])
@pytest.mark.parametrize("value", [RUBBISH, OF_A_MIRROR, encode_control(written(".*", "B-id"), 1)])
def test_a_record_under_a_name_that_no_link_can_have_stops_nobody(key: bytes | None, value: bytes) -> None:
    keeper = Keeper((key, value))
    assert keeper.controls == Controls({}) and others(keeper, "orders") == circle(keeper, "orders") == ()


@pytest.mark.usefixtures("keepers")
def test_a_link_the_other_way_whose_promotion_is_not_finished_is_still_a_circle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(circles, "plain_options", lambda link, *clusters: f"{len(clusters)} {link}")

    def of(**promotion: Any) -> Keeper:
        topics = LinkTopics.of("orders|clicks").to_json()
        control = LinkControl(source_cluster_id="B-id", topics=topics, producer_ids=(7,), **promotion)
        return Keeper((b"eu", encode_control(control, 1)))

    half = "circle with link eu, which copied topic orders .* promotion was begun and not finished.*: tolerant-kafka promote 2 eu"
    with pytest.raises(OptionError, match=half):
        circle(of(is_promotion_begun=True), "orders")
    left = of(is_promotion_begun=True, unfenced=frozenset({TopicPartition("orders", 1)}))
    with pytest.raises(OptionError, match="failover left partitions .* orders-1; .*: tolerant-kafka failover 1 eu"):
        circle(left, "orders")
    assert circle(left, "clicks") == circle(of(is_promotion_begun=True, is_fenced=True), "orders") == ()

    found = LinkControl(
        is_promotion_begun=True, topics=LinkTopics.of(".*").to_json()
    )  # by a failover without a control
    prepared = LinkControl(source_cluster_id="A-id", topics=LinkTopics.of("orders").to_json())  # by failback
    late = replace(found, unfenced=left.controls.links["eu"].unfenced)
    for control, advice in ((found, "promote 2 eu"), (late, "failover 1 eu")):
        source = Keeper((b"eu", encode_control(control, 1)))
        with pytest.raises(OptionError, match=f"which may have copied topic orders .*: tolerant-kafka {advice}"):
            circle(source, "orders", own=prepared)
        assert circle(source, "orders", own=replace(prepared, producer_ids=(9,))) == (), "it may be of another cluster"
    assert circle(Keeper((b"eu", encode_control(late, 1))), "clicks") == ()
    assert circle(Keeper((b"eu", encode_control(replace(found, is_fenced=True), 1))), "orders") == ()

    begun = {TopicPartition("orders", 0): TopicIds("s", "t")}
    eu = written("orders|clicks", "B-id")  # with translated offsets
    beside = written("orders", "C-id", producer_ids=(7,), begun=begun)
    source = Keeper((b"eu", encode_control(eu, 1)), (b"l2", encode_control(beside, 1)))
    assert circle(source, "orders") == (), "it is refused that topic, which an identical link has"
    with pytest.raises(OptionError, match="link eu .* topic clicks from"):
        circle(source, "orders", "clicks")

    def back(keeper: Keeper) -> Any:
        return outcome(link_back(cast(Cluster, keeper), cast(Cluster, Keeper()), ["orders", "clicks"]))

    assert back(of()) == "link eu copies topic clicks and 1 more from this target to this source"
    assert back(of(is_promotion_begun=True)) == ""


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize("key", [b"eu", b"e" * 225])
def test_a_record_that_may_be_of_a_mirror_of_the_same_topics_stops_a_start_and_names_all(key: bytes) -> None:
    keeper, shown = Keeper((key, OF_A_MIRROR)), re.escape(repr(key.decode()[:200]))
    told = f"{shown} in tolerant-mirror-control cannot be read .*newer.* from cluster 'B-id' .*topic clicks. .*repair with the target as --target and that key as --link"
    given = LinkTopics.of(".*")
    for look in (
        lambda: others(keeper, "orders", "clicks"),
        lambda: circle(keeper, "orders", "clicks"),
        lambda: outcome(link_topics._refuse_another(cast(Cluster, keeper), "dr", given, ["orders", "clicks"])),
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
    keeper, told = (
        Keeper((b"eu", live), (b"eu", OF_A_MIRROR)),
        "run tolerant-kafka repair with the target as --target and that key as --link$",
    )
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
        (
            b"eu",
            encode_control(written("orders|later", producer_ids=(7,), begun={TopicPartition("orders", 0): ids}), 1),
        ),
        (b"tr", encode_control(written("clicks|mine"), 1)),
        (b"old", encode_control(written("audit", producer_ids=(8,), is_promotion_begun=True), 1)),
        (b"dr", encode_control(written(".*", producer_ids=(9,), begun={TopicPartition("mine", 0): ids}), 1)),
    )
    keeper.maps = {map_topic("tr"): [0]}
    names = ["audit", "orders", "later", "clicks", "mine"]
    found = outcome(look_for_others(cast(Cluster, keeper), "dr", names, is_identical=is_identical, is_new=is_new))
    assert found.refused.keys() == refused.keys()
    after = outcome(look_for_others(cast(Cluster, keeper), "zz", ["later"], is_identical=True, is_new=True))
    assert after.refused["later"].startswith("Link eu may copy into topic later") or "dr" in after.refused["later"]
    for name, kind in refused.items():
        assert (
            f" {'copies' if name == 'orders' else 'may copy'} into topic {name} of this target" in found.refused[name]
        )
        assert (f"with {kind} offsets, and only one link may write" in found.refused[name]) == bool(kind)


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize(
    ("ids", "ends", "is_refused"),
    [
        ({"orders": "t"}, {0: 9}, True),
        ({"orders": "t"}, {0: 0, 1: 9}, True),
        ({"orders": "t"}, {}, True),  # no leader: unknown
        ({}, {0: 9}, True),  # brokers without ids
        ({"orders": "another"}, {0: 9}, False),  # it was deleted, and created again
        ({"orders": "t"}, {0: 0, 1: 0}, False),
        (None, {}, False),
    ],
)
def test_a_translated_link_appends_nothing_to_a_log_that_an_identical_start_of_it_has_begun(
    monkeypatch: pytest.MonkeyPatch, ids: dict[str, str] | None, ends: dict[int, int], is_refused: bool
) -> None:
    """An earlier version took it for identical once."""

    async def topic_ids(*_: object) -> dict[str, str]:
        return ids or {}

    async def log_ends(_: object, asked: Collection[TopicPartition]) -> LedOffsets:
        return LedOffsets({p: ends[p.partition] for p in asked if p.partition in ends}, {})

    monkeypatch.setattr(preflight, "topic_ids", topic_ids)
    monkeypatch.setattr(preflight, "list_led_offsets", log_ends)
    begun = {TopicPartition("orders", n): TopicIds("s", "t") for n in range(2)}
    own = written("orders|clicks", map_id="m", producer_ids=(7,), begun=begun)
    keeper = Keeper((b"dr", encode_control(own, 1)))
    keeper.maps = {} if ids is None else {"orders": [0, 1]}
    for is_new in (False, True):
        looking = look_for_others(cast(Cluster, keeper), "dr", ["orders", "clicks"], is_identical=False, is_new=is_new)
        refused = outcome(looking).refused
        assert refused.keys() == ({"orders"} if is_refused else set())
        assert all("or delete it on the target, also what others wrote there: it" in why for why in refused.values())


def test_a_start_of_the_other_kind_is_refused_before_it_writes_and_also_when_both_start_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. Neither finds a record of the link.  2. One writes that it starts.  3. The other finds that when it writes."""
    given = AsyncMock()
    for name in ("init_producer_id", "ensure_map_topic", "write_down", "make_topics"):
        monkeypatch.setattr(prepare, name, given)
    monkeypatch.setattr(prepare, "plan_link", AsyncMock(return_value=PlannedLink(TopicsPlan((), ()), {}, {})))
    cluster, told = Mock(spec=Cluster, cluster_id=AsyncMock(return_value="A-id"), file_options=""), []

    async def update(_: object, __: str, change: Callable[[LinkControl], LinkControl]) -> None:
        told.append(change(control))

    monkeypatch.setattr(preflight, "update_control", update)
    for is_translated, control in ((False, written("t", map_id="m")), (True, written("t", producer_ids=(7,)))):
        monkeypatch.setattr(prepare, "read_control", AsyncMock(return_value=control))
        for goes_on in (False, True):
            starting = prepare.prepare_link(cluster, cluster, "t", "dr", is_translated=is_translated, goes_on=goes_on)
            with pytest.raises(LinkKindError):
                asyncio.run(starting)
        ids = (None, {}, {}, "m") if is_translated else (8, {}, {}, None)
        with pytest.raises(LinkKindError):
            asyncio.run(preflight.write_down(cluster, cluster, "dr", LinkTopics.of("u"), *ids))
    given.assert_not_awaited()
    assert told == []


def test_a_start_writes_when_the_links_topics_were_last_moved_to_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clients come home with the link, also where no failback has prepared it; what other topics do is not its business."""
    written_with: list[Callable[[LinkControl], LinkControl]] = []

    async def write_down(*arguments: Any) -> None:
        written_with.append(arguments[-1])

    moved = {"t": MovedTopic(5), "own": MovedTopic(9)}
    there = Controls({"A-B": LinkControl(primary_since=moved)})
    cluster = Mock(spec=Cluster, wire_topic=str)
    planned = PlannedLink(TopicsPlan((TopicSpec("t", 1, 1, {}),), ()), {}, {})
    checked = prepare._Checked(cluster, cluster, "B-A", planned, LinkControl(), there)
    monkeypatch.setattr(prepare, "_check_link", AsyncMock(return_value=checked))
    monkeypatch.setattr(prepare, "init_producer_id", AsyncMock(return_value=7))
    monkeypatch.setattr(prepare, "former_copies", AsyncMock(return_value=FormerCopies()))
    monkeypatch.setattr(prepare, "write_down", write_down)
    monkeypatch.setattr(prepare, "make_topics", AsyncMock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        asyncio.run(prepare.prepare_link(cluster, cluster, "t", "B-A", goes_on=True))
    (change,) = written_with
    assert change(LinkControl(known_moves={"former": 2})).known_moves == {"former": 2, "t": 5}
    assert change(LinkControl(known_moves={"t": 3})).known_moves == {"t": 5}


@pytest.mark.usefixtures("keepers")
def test_a_link_that_was_only_prepared_is_told_as_that_with_the_way_to_forget_it() -> None:
    """A translated link of version 0.1 that has started says so by its map alone."""
    orders = TopicPartition("orders", 0)
    for prepared, has_map, is_told in (
        ({"adopted": {orders: 9}}, False, True),
        ({}, False, True),  # everything is to be copied again
        ({}, True, False),
        ({"producer_ids": (7,)}, False, False),
        ({"map_id": ""}, False, False),
    ):
        keeper = Keeper((b"typo", encode_control(written("orders", "B-id", **prepared), 1)))
        keeper.maps = {map_topic("typo"): [0]} if has_map else {}
        found = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=True)).refused["orders"]
        assert ("has not started yet" in found) == ("repair --forget with the target" in found) == is_told
        with pytest.raises(OptionError) as refused:
            circle(keeper, "orders")
        assert ("was prepared to copy" in str(refused.value)) == ("repair --forget" in str(refused.value)) == is_told
        assert ("Promote link typo first" in str(refused.value)) != is_told


@pytest.mark.usefixtures("keepers")
def test_of_what_is_refused_that_is_told_which_another_link_has_already_and_no_promotion_is_asked_for() -> None:
    begun = {TopicPartition("orders", 0): TopicIds("s", "t")}
    keeper = Keeper((b"eu", encode_control(written("orders|later", producer_ids=(7,), begun=begun), 1)))
    found = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders", "later", "mine"], is_identical=True))
    assert found.refused.keys() == {"orders", "later"} and found.taken == {"orders"}
    assert "use that link (a mirror with --link eu; the flow A->B of a file is link A-B)" in found.refused["orders"]
    assert "promote" not in found.refused["orders"]


def test_a_file_whose_topics_keep_their_names_goes_on_with_a_link_that_was_begun_without_one() -> None:
    identity, renamed = (
        LinkTopics(TopicFilter(("orders",)), TopicNames(policy, "A"), "B")
        for policy in (IdentityReplicationPolicy(), DefaultReplicationPolicy())
    )
    plain = written("orders|audit")
    both = grown(plain, identity)
    assert both.names == identity.names and both.takes("audit") and both.to_target("audit") == "audit"
    with pytest.raises(OptionError, match="other rules for the names of its topics"):
        grown(plain, renamed)
    with pytest.raises(OptionError, match="with --config and the file that began it"):
        grown(written(identity), LinkTopics.of("orders"))


@pytest.mark.parametrize(
    ("changes", "own", "refused"),
    [
        ({}, written("orders"), "by link eu with identical offsets"),
        ({"is_promotion_begun": True, "is_fenced": True}, written("orders"), "of link eu, which was promoted"),
        (
            {"is_promotion_begun": True, "is_fenced": True, "source_cluster_id": None},
            written("orders"),
            "of link eu, which was promoted",
        ),
        (
            {"is_promotion_begun": True, "is_fenced": True},
            LinkControl(),
            "of link eu, which was promoted",
        ),  # its source is unknown
        ({"is_promotion_begun": True}, written("orders", "C-id"), ""),  # it brings the records of another source
        ({"is_promotion_begun": True}, written("orders", adopted={TopicPartition("orders", 0): 9}), ""),
        ({"is_promotion_begun": True, "is_handed_back": True}, written("orders"), ""),
    ],
)
@pytest.mark.usefixtures("keepers")
def test_a_log_that_another_link_has_begun_identically_gets_the_same_records_from_no_translated_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], own: LinkControl, refused: str
) -> None:
    """Not while that link copies, nor once it is promoted, if the topic is the same and the translated link has not begun it."""
    now, mapped = {"orders": "t", "clicks": "t"}, list[MappedTopics]()

    async def ids(*_: object) -> dict[str, str]:
        return now

    async def mapped_topics(*_: object, **__: object) -> MappedTopics:
        return mapped[0] if mapped else NO_MAP

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    respond_with_maps(monkeypatch, mapped_topics)
    wanted = [TopicPartition("orders", n) for n in range(3)]
    begun = {p: TopicIds("s", "t") for p in (*wanted[:2], TopicPartition("clicks", 0))}
    eu = replace(written("orders", producer_ids=(7,), begun=begun), **changes)
    keeper = Keeper((b"eu", encode_control(eu, 1)), (b"dr", encode_control(own, 1)))

    def told() -> tuple[dict[str, str], dict[TopicPartition, Exception]]:
        at_start = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=False)).refused
        return at_start, outcome(
            copied_by_others(cast(Cluster, keeper), "dr", wanted, KnownMaps(time.monotonic), cast(Any, keeper))
        )

    at_start, running = told()
    assert at_start.keys() == ({"orders"} if refused else set())
    assert bool(running) == bool(refused) and all(refused in str(why) for why in running.values())
    assert set(wanted[:2]) <= running.keys() <= set(wanted) if refused else not running
    assert (
        outcome(copied_by_others(cast(Cluster, keeper), "eu", wanted, KnownMaps(time.monotonic), cast(Any, keeper)))
        == {}
    )
    if eu.is_promotion_begun:
        mapped.append(MappedTopics(frozenset(wanted[:1])))
        assert told() == ({}, {}), "it had begun the topic before"
        mapped.clear()
        now["orders"] = "another"
        assert told() == ({}, {}), "nobody's copy any more"


HALF = {  # a failover has moved another topic, and dropped when this one was moved before
    "is_fenced": False,
    "unfenced": frozenset({P}),
    "primary_since": {"clicks": MovedTopic(9, "c")},
    "adopted_ids": {P: TopicIds("s", "t")},
}


@pytest.mark.parametrize("is_identical", [True, False])
@pytest.mark.parametrize(
    ("changes", "now", "refused"),
    [
        (
            {},
            "t",
            "orders of this target is the copy of link eu, which was promoted: .* failback with source and target",
        ),
        ({}, "another", ""),  # nobody's copy any more
        ({"is_fenced": False, "unfenced": frozenset({TopicPartition("clicks", 0)})}, "t", "which was promoted"),
        (HALF, "t", "not its producers' yet: its failover left"),
        (HALF, "another", ""),
        (
            {**HALF, "primary_since": {}, "unfenced": frozenset()},
            "t",
            "not its producers' yet: its promotion was begun",
        ),
    ],
)
@pytest.mark.usefixtures("keepers")
def test_what_a_link_was_promoted_with_before_it_ran_is_its_promoted_copy(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], now: str, refused: str, is_identical: bool
) -> None:
    """It was prepared to continue it, and has begun nothing."""
    respond_with_maps(monkeypatch, AsyncMock(return_value=NO_MAP))
    monkeypatch.setattr(promoted_copies, "topic_ids", AsyncMock(return_value={"orders": now}))
    moved = {"orders": MovedTopic(5, "t")}
    eu = written("orders|clicks", is_promotion_begun=True, is_fenced=True, adopted={P: 9}, primary_since=moved)
    keeper = Keeper((b"eu", encode_control(replace(eu, **changes), 1)))
    told = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=is_identical)).refused
    assert (not told) == (not refused) and re.search(refused, told.get("orders", ""))


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize(
    ("theirs", "ours", "refused", "is_known"),
    [
        ({}, {}, "the copy of link eu, which was promoted", True),
        ({}, {"partitions": ORDERS}, "", True),  # it began there before
        (
            {},
            {"unread": AWAY},
            "whether link dr began topic orders before link eu was promoted with it is unknown",
            False,
        ),
        ({}, {"partitions": ORDERS, "unread": AWAY}, "", True),
        ({"copies": copied("former", P)}, {}, "", True),  # nobody's copy any more
        ({"copies": {}}, {}, "", True),
        (
            {"copies": {}, "unread": AWAY},
            {},
            "whether topic orders is the copy of link eu, which was promoted, is unknown",
            False,
        ),
        ({"copies": {}, "unread": {map_partition("eu", TopicPartition("x", 0)): "another part"}}, {}, "", True),
        ({"copies": {}, "unread": AWAY}, {"partitions": ORDERS}, "", True),
        ({"unread": AWAY}, {}, "the copy of link eu, which was promoted", True),
    ],
)
def test_beside_a_promoted_translated_copy_a_translated_link_begins_no_second_one_and_waits_while_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch, theirs: dict[str, Any], ours: dict[str, Any], refused: str, is_known: bool
) -> None:
    async def ids(*_: object) -> dict[str, str]:
        return {"orders": "t", "clicks": "t"}

    async def mapped_topics(_: object, link: str, *__: object, **___: object) -> MappedTopics:
        return MappedTopics(**({"copies": copied("t", *ORDERS), **theirs} if link == "eu" else ours))

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    respond_with_maps(monkeypatch, mapped_topics)
    monkeypatch.setattr(Keeper, "topics", {"orders": [0, 1], "clicks": [0]})
    eu = written("orders", map_id="m", is_promotion_begun=True, is_fenced=True)

    def told(eu: LinkControl, own: LinkControl, **how: Any) -> preflight.Others:
        keeper = cast(Cluster, Keeper((b"eu", encode_control(eu, 1)), (b"dr", encode_control(own, 1))))
        how.setdefault("is_identical", False)
        return cast(preflight.Others, outcome(look_for_others(keeper, "dr", ["orders", "clicks"], **how)))

    dr = written("orders|clicks")
    found = told(eu, dr)
    assert found.refused.keys() == ({"orders"} if refused else set())
    assert all(re.search(refused, why) and "failback" not in why for why in found.refused.values())
    assert found.taken == ({"orders"} if refused and is_known else set())
    assert found.unknown == ({"orders"} if refused and not is_known else set())
    for other, own in ((replace(eu, is_promotion_begun=False), dr), (eu, written("orders|clicks", "C-id"))):
        assert told(other, own) == preflight.Others(), "it is live, or of another source"
    keeper = Keeper((b"eu", encode_control(eu, 1)), (b"dr", encode_control(dr, 1)))
    running = outcome(
        copied_by_others(
            cast(Cluster, keeper),
            "dr",
            [*ORDERS, TopicPartition("clicks", 0)],
            KnownMaps(time.monotonic),
            cast(Any, keeper),
        )
    )
    assert running.keys() == (ORDERS if refused else set())
    for error in running.values():
        assert isinstance(error, TargetClaimedError) is is_known
        assert bool(getattr(error, "retriable", False)) is not is_known and re.search(refused, str(error))

    # Of a link the other way: what it is refused it does not copy, and what nobody knows may be a circle.
    back = written("orders", "B-id", map_id="m", is_promotion_begun=True, is_fenced=True)
    source = Keeper((b"eu", encode_control(back, 1)), (b"dr", encode_control(written("orders", "B-id", map_id="m"), 1)))
    if refused and is_known:
        assert circle(source, "orders") == ()
    else:
        with pytest.raises(
            OptionError, match="in a circle: link dr copies topic orders" if is_known else f"Nothing tells .*{refused}"
        ):
            circle(source, "orders")


@pytest.mark.parametrize(
    ("mapped", "refused", "unknown"),
    [
        ({"copies": copied("t", P), "last": 0}, True, False),
        ({"copies": copied("t", P), "last": -1}, False, False),  # it may be live: others tell that
        ({"copies": copied("former", P), "last": 2}, False, False),
        ({"copies": {}, "last": 0}, False, False),
        ({"copies": {}, "last": 0, "unread": AWAY}, False, True),
        ({"copies": {}, "unread": AWAY}, False, True),
        ({"copies": copied("t", P), "last": 0, "unread": AWAY}, True, False),
    ],
)
@pytest.mark.usefixtures("keepers")
def test_a_map_that_no_control_names_tells_of_its_copies_that_its_link_was_promoted_with_them(
    monkeypatch: pytest.MonkeyPatch, mapped: dict[str, Any], refused: bool, unknown: bool
) -> None:
    async def ids(*_: object) -> dict[str, str]:
        return {"orders": "t"}

    async def mapped_topics(_: object, link: str, *__: object, of: Any, **___: object) -> MappedTopics:
        assert set(of) == ORDERS, "no more is read"
        return MappedTopics(**mapped) if link == "eu" else NO_MAP

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    respond_with_maps(monkeypatch, mapped_topics)
    monkeypatch.setattr(Keeper, "topics", {"orders": [0, 1]})
    keeper = Keeper((b"dr", encode_control(written("orders"), 1)))
    keeper.maps = {map_topic(link): [0] for link in ("dr", "eu")}
    found = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=False))
    assert (found.taken, found.unknown) == ({"orders"} if refused else set(), {"orders"} if unknown else set())
    if unknown:
        assert "whether topic orders is the copy that link eu was promoted with is unknown" in found.refused["orders"]
    if refused:
        assert (
            f"was deleted. Leave the topic out, or, if link dr copies another source, delete {map_topic('eu')} on"
            in (found.refused["orders"])
        )
    assert not outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=True)).refused


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize("late", [(), (P,)])
def test_what_a_promotion_has_not_moved_yet_is_not_said_to_be_its_producers(
    monkeypatch: pytest.MonkeyPatch, late: Collection[TopicPartition]
) -> None:
    async def ids(_: object, names: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(names, "t")

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    begun = {TopicPartition(name, 0): TopicIds("s", "t") for name in ("orders", "clicks")}
    half = written(
        "orders|clicks",
        producer_ids=(7,),
        begun=begun,
        is_promotion_begun=True,
        unfenced=frozenset(late),
        promotion="P",
    )
    keeper = Keeper((b"eu", encode_control(half, 1)))
    told = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders", "clicks"], is_identical=True)).refused
    command = "failover --target b:1" if late else "promote --source SOURCE --target b:1"
    assert f"not its producers' yet: its {'failover left' if late else 'promotion was begun'}" in told["orders"]
    assert f"run again: tolerant-kafka {command} --link eu" in told["orders"]
    assert ("which was promoted: it belongs to its producers" in told["clicks"]) == bool(late)


def test_of_a_promoted_link_whose_control_says_what_it_copied_nothing_else_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    async def mapped_topics(*_: object, of: Any, **__: object) -> MappedTopics:
        asked.append(set(of))
        return NO_MAP

    respond_with_maps(monkeypatch, mapped_topics)
    target = Keeper()
    target.maps = {"orders": [0, 1], "clicks": [0]}
    said = {P: 5, ORDER_1: 0, TopicPartition("old", 0): 3}
    eu = written(".*", map_id="m", is_promotion_begun=True, is_fenced=True, copied_until=said)
    links, names = {"eu": eu, "dr": written(".*")}, ["orders", "clicks"]
    asking = promoted_copies.promoted_copies(cast(Cluster, target), "dr", links["dr"], links, names, is_identical=False)
    assert outcome(asking) == ({}, {}) and asked == [{P}]


def test_which_topics_are_a_promoted_copy_is_asked_of_no_topic_but_those_in_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As verify does, with all that each control has begun: its user may not describe the others."""
    asked: list[str] = []

    async def ids(_: object, names: Collection[str]) -> dict[str, str]:
        asked.extend(names)
        return dict.fromkeys(names, "t")

    async def mapped_topics(*_: object, **__: object) -> MappedTopics:
        return NO_MAP

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    respond_with_maps(monkeypatch, mapped_topics)
    begun = {TopicPartition(name, 0): TopicIds("s", "t") for name in ("orders", "hidden")}
    links = {
        "eu": written("orders|hidden", producer_ids=(7,), begun=begun, is_promotion_begun=True),
        "dr": written("orders"),
    }
    target = cast(Cluster, Keeper())

    def found(*names: str) -> promoted_copies.PromotedCopies:
        asking = promoted_copies.promoted_copies(target, "dr", links["dr"], links, names, is_identical=False)
        return cast(promoted_copies.PromotedCopies, outcome(asking))

    assert found("orders", "clicks") == ({"orders": "eu"}, {}) and asked == ["orders"]
    assert found("clicks") == ({}, {}) and asked == ["orders"]


@pytest.mark.usefixtures("keepers")
@pytest.mark.parametrize("end", [0, 9])
def test_where_brokers_know_no_ids_a_promoted_copy_is_a_log_with_records(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    async def ids(*_: object) -> dict[str, str]:
        return {}

    async def mapped_topics(*_: object, **__: object) -> MappedTopics:
        return NO_MAP

    async def ends(_: object, asked: Mapping[TopicPartition, int]) -> LedOffsets:
        return LedOffsets(dict.fromkeys(asked, end), {})

    monkeypatch.setattr(promoted_copies, "topic_ids", ids)
    respond_with_maps(monkeypatch, mapped_topics)
    monkeypatch.setattr(promoted_copies, "list_led_offsets", ends)
    begun = {TopicPartition("orders", 0): TopicIds("", "")}
    eu = written("orders", producer_ids=(7,), begun=begun, is_promotion_begun=True)
    keeper = Keeper((b"eu", encode_control(eu, 1)), (b"dr", encode_control(written("orders"), 1)))
    told = outcome(look_for_others(cast(Cluster, keeper), "dr", ["orders"], is_identical=False)).refused
    assert told.keys() == ({"orders"} if end else set())


def test_two_sources_never_share_a_link_that_nobody_named() -> None:
    assert default_name("abcdefghijk", {}) == "mirror-abcdefgh"
    assert default_name("abcdefghijk", {"default": written("orders", "other")}) == "mirror-abcdefgh"
    assert default_name("abcdefghijk", {"default": written("orders", "abcdefghijk")}) == "default"
    assert default_name(None, {}) == "default"


def test_the_single_link_of_a_target_is_found_and_of_several_one_must_be_named() -> None:
    one = {"dr": written("orders"), "old": written("orders", is_promotion_begun=True)}
    assert chosen_name(one, None, "--target b:1") == "dr"
    assert chosen_name({"old": one["old"]}, None, "--target b:1") == "old"
    assert chosen_name({"x": LinkControl()}, None, "--target b:1") is None
    two = {**one, "eu": written("orders", "B-id")}
    assert chosen_name(two, "B-id", "--target b:1") == "eu"
    with pytest.raises(OptionError, match=r"2 links: dr \(from cluster A-id\); eu .*--target b:1 --link dr"):
        chosen_name(two, None, "--target b:1")
