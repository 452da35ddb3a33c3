"""Which link leads a client back, and what is made of all others."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.groups import CommittedOffset
from tolerant_client.errors import OptionError
from tolerant_client.mirror.standby import way_back
from tolerant_client.mirror.standby.way_back import Led, WayBack
from tolerant_client.mirror.state import control_record, control_topic
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls, decode_control, encode_control
from tolerant_client.mirror.state.link_control import LinkControl, MovedTopic, TopicIds
from tolerant_client.mirror.state.replication_policy import IdentityReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.records.record_batch import Record

LEFT = LinkControl(
    primary_since={"orders": MovedTopic(2), "audit": MovedTopic(2)},
    target_cluster_id="of-b",
    is_promotion_begun=True,
    is_fenced=True,
    topics=LinkTopics(TopicFilter(("orders", "audit"))).to_json(),
    copied_until={TopicPartition("orders", 0): 5, TopicPartition("audit", 0): 0},
)


def back(*topics: str, knows: int | None, **said: Any) -> LinkControl:
    """A link with these topics, which knows of the last moves to its source then."""
    known: dict[str, Any] = {"topics": LinkTopics(TopicFilter(topics)).to_json(), "source_cluster_id": "of-b"}
    if said.get("is_promotion_begun"):
        known["primary_since"] = dict.fromkeys(topics, MovedTopic((knows or 0) + 1))
    moves = {} if knows is None else dict.fromkeys(topics, knows)
    return LinkControl(**{**known, **said}, known_moves=moves, producer_ids=(7,))


class Home:
    """The control topic of the cluster that the client has left."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.id, self.leader_epochs = "one", [0]
        self.is_there = True
        self.read: list[int] = []  # offsets
        self.waited_at: list[int] = []

    def has(self, link: str, control: LinkControl) -> None:
        self.log.append(Record(len(self.log), 0, link.encode(), encode_control(control, 0, len(self.log))))

    async def exists(self) -> bool:
        return self.is_there

    async def end(self) -> int:
        return len(self.log)

    async def fetch(self, position: int, *, max_wait_ms: int) -> None:
        self.waited_at.append(position)

    async def records(self, start: int, end: int) -> list[Record]:
        self.read += range(start, end)
        return self.log[start:end]


class Watched:
    """A way back of link A-B whose client needs these topics, and is on a cluster that `has` and hides some; so does the one it has left."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch, *needs: str, left: LinkControl = LEFT) -> None:
        monkeypatch.setattr(control_topic, "control_topic", lambda cluster: home)
        at = {"bootstrap_servers": "127.0.0.1:1"}
        self.watch = WayBack(Led("A-B", left, here=at, left=at), lambda: set(needs))
        self.has = {CONTROL_TOPIC, "orders", "audit"}
        self.hides: set[str] = set()
        self.silence: Exception | None = None
        self.asked: list[set[str]] = []
        self.ids: dict[str, str] = {}
        self.home_has = {CONTROL_TOPIC, "orders", "audit"}
        self.home_hides: set[str] = set()
        self.home_silence: Exception | None = None
        self.home_ids: dict[str, str] = {}
        self.home_asked: list[set[str]] = []

        async def connect(patience_ms: int) -> None:
            pass

        async def visible_topics(cluster: Any, topics: Collection[str]) -> Any:
            is_here = cluster is self.watch._here
            (self.asked if is_here else self.home_asked).append(set(topics))
            if (silence := self.silence if is_here else self.home_silence) is not None:
                raise silence
            has, hides = (self.has, self.hides) if is_here else (self.home_has, self.home_hides)
            return {topic: [0] for topic in topics if topic in has}, {
                topic: Errors.TopicAuthorizationFailedError(topic) for topic in topics if topic in hides
            }

        async def read_ids(source: None, cluster: Any, topics: Collection[str]) -> dict[str, TopicIds]:
            ids, has = (self.ids, self.has) if cluster is self.watch._here else (self.home_ids, self.home_has)
            assert has.issuperset(topics)
            return {topic: TopicIds(target=ids.get(topic, "")) for topic in topics}

        for cluster in self.watch._clusters:
            monkeypatch.setattr(cluster, "connect", connect)
        monkeypatch.setattr(way_back, "visible_topics", visible_topics)
        monkeypatch.setattr(way_back, "read_ids", read_ids)

    def control(self) -> LinkControl:
        return self.watch._net.run(self.watch.control)

    @property
    def follows(self) -> str | None:
        """The link back that it follows."""
        try:
            return None if self.control().is_unwritten else self.watch.link
        except OptionError:
            return None

    def close(self) -> None:
        for cluster in self.watch._clusters:
            cluster.close()
        self.watch._net.close()


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def watched(home: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    one = Watched(home, monkeypatch, "orders", "audit", "not of the link")
    yield one
    one.close()


def test_the_link_that_undoes_this_very_promotion_is_followed(home: Home, watched: Watched) -> None:
    assert watched.control().is_unwritten
    home.has("older", back("orders", "audit", knows=1, is_promotion_begun=True, is_fenced=True))
    home.has("first", back("orders", "audit", knows=None))
    home.has("of-another", back("orders", "audit", knows=9, source_cluster_id="of-c"))
    assert watched.control().is_unwritten
    home.has("B-A", back("orders", "audit", knows=2))
    assert watched.control().producer_ids and watched.watch.link == "B-A"
    third = back("orders", "audit", knows=3, is_promotion_begun=True, is_fenced=True)
    home.has("B-A", third)
    assert watched.control().is_promoted, "who has slept through the third"


def test_what_was_read_is_neither_read_nor_decoded_again(
    home: Home, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def controls_of(records: Iterable[Record], begun_of: None) -> Controls:
        of = list(records)
        decoded.extend(record.offset for record in of)
        return control_record.controls_of(of, begun_of)

    monkeypatch.setattr(way_back, "controls_of", controls_of)
    home.has("B-A", back("orders", "audit", knows=2))
    home.has("C-A", back("orders", "audit", knows=1))
    for _ in range(3):
        assert not watched.control().is_unwritten
    assert home.read == sorted(decoded) == [0, 1]
    home.has("C-A", back("orders", "audit", knows=1))
    assert watched.control().known_moves == {"orders": 2, "audit": 2}
    assert home.read == sorted(decoded) == [0, 1, 2]
    home.has("B-A", back("orders", "audit", knows=1))
    assert watched.control().is_unwritten, "it undoes an earlier promotion now"
    home.is_there = False
    assert watched.control().is_unwritten, "the topic was deleted"


@pytest.mark.parametrize("seed", range(200))
def test_links_back_that_are_read_in_pieces_are_those_of_the_whole_topic(
    seed: int, home: Home, watched: Watched
) -> None:
    rng = random.Random(seed)
    unreadable = [b"junk", b'{"version": 9, "time_ms": 1}']

    def value(offset: int) -> bytes | None:
        if rng.random() < 0.3:
            return rng.choice([None, *unreadable])
        knows = rng.choice([None, 1, 2, 3])
        knew = rng.choice([0, offset, max(0, offset - 1), offset + 5])
        return encode_control(back("orders", knows=knows, generation=offset), 1_000 + offset, knew)

    keys = [b"B-A", b"C-A", b"no name\xff", b"", "D-é".encode(), None]
    log = [Record(offset, 0, rng.choice(keys), value(offset)) for offset in range(rng.randrange(2, 25))]
    while len(home.log) < len(log):
        home.log += log[len(home.log) :][: rng.randrange(1, 9)]
        watched.watch._net.run(watched.watch._back.follow)
        links = control_record.controls_of(home.log, None).links
        assert watched.watch._back.links == {n: c for n, c in links.items() if c.known_moves.get("orders", 0) >= 2}


def test_the_cluster_that_the_client_has_left_is_asked_for_its_groups_commits_until_it_tells(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = TopicPartition("orders", 0)
    refused = Errors.CoordinatorLoadInProgressError()
    told: list[Any] = [refused, ({}, {"g": refused}), ({"g": {orders: CommittedOffset(5, "")}}, {})]

    async def fetch_offsets(cluster: Any, groups: list[str]) -> Any:
        found = told.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(way_back, "fetch_offsets", fetch_offsets)
    monkeypatch.setattr(way_back, "READS_ON_S", 0.0)
    watched.watch._net.run(watched.watch._find_commits, "g")
    assert watched.watch.group_commits == {orders: 5} and not told


@pytest.mark.parametrize(("since_s", "is_recent"), [(0, True), (-60, True), (110, True), (130, False), (-130, False)])
def test_a_promotion_is_recent_as_far_as_the_clocks_of_both_tell(since_s: float, is_recent: bool) -> None:
    now_s = 1_764_000_000.5
    written = encode_control(LEFT, int((now_s - since_s) * 1000))
    assert Led("A-B", decode_control(written), here={}, left={}).is_recent(now_s) == is_recent


def test_a_link_that_copies_back_a_part_is_not_followed(home: Home, watched: Watched) -> None:
    home.has("one", back("orders", knows=2))
    home.has("other", back("audit", knows=2))
    with pytest.raises(
        OptionError, match=r"Links one, other copy back parts .* none all that the client needs \(audit, orders\)"
    ):
        watched.control()
    home.has("whole", back("audit", "orders", "more", knows=2))
    assert not watched.control().is_unwritten and watched.watch.link == "whole"


def test_a_client_without_topics_waits_for_a_link_back_of_all_that_was_copied(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Watched(home, monkeypatch)
    home.has("part", back("orders", knows=2, is_promotion_begun=True, is_fenced=True))
    with pytest.raises(OptionError, match=r"none all that the client needs \(audit, orders\)"):
        one.control()
    home.has("whole", back("audit", "orders", knows=2))
    asked = len(one.asked)
    assert one.control().producer_ids and one.watch.link == "whole"
    assert len(one.asked) == asked, "nothing is missing"
    one.close()


@pytest.mark.parametrize("has_topics", [False, True])
def test_a_topic_that_was_deleted_where_the_client_is_holds_it_no_longer(
    home: Home, has_topics: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Watched(home, monkeypatch, *(["orders", "audit"] if has_topics else []))
    home.has("B-A", back("orders", knows=2))
    assert one.follows is None
    one.has -= {"audit"}
    assert one.follows == "B-A"
    one.silence = Errors.KafkaConnectionError("lost by now")
    assert one.follows == "B-A", "it was told before"
    one.silence = None
    one.has |= {"audit"}
    assert one.follows is None, "it is there again"
    one.close()


@pytest.mark.parametrize(
    ("begun", "now", "follows"),
    [
        ([("audit", "t2")], "t2", None),
        ([("audit", "t2")], "t3", "B-A"),
        ([("audit", "t2"), ("audit", "t3")], "t3", None),  # the link itself had begun the later one
        ([("audit", "t2")], "", None),  # brokers before 2.8
        ([("audit", "")], "t3", None),
        ([("orders", "t1")], "t3", None),  # the control does not tell what the link had begun
    ],
)
def test_a_topic_that_was_created_again_where_the_client_is_holds_it_no_longer(
    home: Home, begun: list[tuple[str, str]], now: str, follows: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {TopicPartition(topic, n): TopicIds("s", target) for n, (topic, target) in enumerate(begun)}
    one = Watched(home, monkeypatch, "orders", "audit", left=replace(LEFT, begun=ids))
    home.has("B-A", back("orders", knows=2))
    one.ids = {"orders": "t1", "audit": now}
    assert one.follows == follows
    to = one.watch.destination(None)
    assert to.was_created_again(TopicPartition("audit", 0), now) == (follows is not None or len(ids) == 2)
    one.close()


def promoted_back(*topics: str, begun: dict[str, str], **said: Any) -> LinkControl:
    """A link home that is promoted, and had begun these topics, with these ids."""
    logs = {TopicPartition(topic, 0): TopicIds("s", target) for topic, target in begun.items()}
    said = {"copied_until": dict.fromkeys(logs, 5), **said}
    return back(*topics, knows=2, is_promotion_begun=True, is_fenced=True, begun=logs, **said)


@pytest.mark.parametrize(
    ("begun", "now", "is_home"),
    [
        ("t2", "t2", True),
        ("t2", "t3", False),
        ("t2", None, False),
        ("t2", "", True),  # brokers before 2.8
        ("", "t3", True),
        ("", None, False),
    ],
)
@pytest.mark.parametrize("more", [(), ("orders",)])
def test_a_topic_that_was_deleted_at_home_since_its_way_back_was_promoted_is_not_home(
    home: Home,
    begun: str,
    now: str | None,
    is_home: bool,
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(home, monkeypatch, "audit", *more)
    home.has("B-A", promoted_back("orders", "audit", begun={"orders": "t1", "audit": begun}))
    one.home_ids = {"orders": "t1", "audit": now or ""}
    one.home_has -= {"audit"} if now is None else set()
    assert one.follows == ("B-A" if is_home else None)
    if not is_home:
        with pytest.raises(OptionError, match=r"as far as it is still there, and none all that the client needs \("):
            one.control()
        home.has("again", back("audit", *more, knows=2))
        assert one.follows == "again" and not one.control().is_promoted, "which brings it home"
    one.close()


def test_a_client_whose_topics_are_home_goes_there_whatever_became_of_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Watched(home, monkeypatch, "orders")
    home.has("B-A", promoted_back("orders", "audit", begun={"orders": "t1", "audit": "t2"}))
    home.has("again", back("audit", knows=2))
    one.home_ids, one.home_has = {"orders": "t1"}, {CONTROL_TOPIC, "orders"}
    assert one.follows == "B-A" and one.control().is_promoted
    assert set().union(*one.home_asked) == {CONTROL_TOPIC, "orders"}, "and nothing else is asked"
    one.close()


def test_a_link_back_that_is_not_promoted_asks_nobody_what_is_home(home: Home, watched: Watched) -> None:
    home.has("B-A", back("orders", "audit", knows=2))
    assert watched.follows == "B-A" and not watched.home_asked


@pytest.mark.parametrize("unknown", ["silent", "knows no topic yet"])
def test_nobody_goes_home_before_it_is_told_what_is_there(home: Home, watched: Watched, unknown: str) -> None:
    home.has("B-A", promoted_back("orders", "audit", begun={"orders": "t1", "audit": "t2"}))
    watched.home_has = {CONTROL_TOPIC, "orders", "audit"} if unknown == "silent" else set()
    watched.home_silence = Errors.KafkaConnectionError("refused") if unknown == "silent" else None
    with pytest.raises(Errors.KafkaError):
        watched.control()
    watched.home_has, watched.home_silence = {CONTROL_TOPIC, "orders", "audit"}, None
    assert watched.follows == "B-A"


def test_a_topic_that_home_hides_counts_as_there(home: Home, watched: Watched) -> None:
    home.has("B-A", promoted_back("orders", "audit", begun={"orders": "t1", "audit": "t2"}))
    watched.home_has, watched.home_hides = {CONTROL_TOPIC, "orders"}, {"audit"}
    assert watched.follows == "B-A"


@pytest.mark.parametrize(
    ("audit", "again", "moved", "follows"),
    [
        (None, None, ("orders", "audit"), "B-A"),  # an operator has retired it at home
        ("t3", None, ("orders", "audit"), "B-A"),  # or has created it again
        (None, "prepared", ("orders", "audit"), None),
        ("t3", "prepared", ("orders", "audit"), None),
        ("t3", "promoted", ("orders", "audit"), "B-A"),
        (None, None, ("orders",), None),  # the promotion had left it where the clients are
        ("t3", "promoted", ("orders",), "B-A"),
    ],
)
def test_a_client_without_topics_is_held_by_what_another_link_is_to_bring_home(
    home: Home,
    audit: str | None,
    again: str | None,
    moved: tuple[str, ...],
    follows: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(home, monkeypatch)
    ends = {TopicPartition(topic, 0): 5 for topic in moved}
    home.has("B-A", promoted_back("orders", "audit", begun={"orders": "t1", "audit": "t2"}, copied_until=ends))
    if again is not None:
        is_over = again == "promoted"
        home.has("again", promoted_back("audit", begun={"audit": "t3"}) if is_over else back("audit", knows=2))
    one.home_ids = {"orders": "t1", "audit": audit or ""}
    one.home_has -= {"audit"} if audit is None else set()
    assert one.follows == follows
    one.home_has = {CONTROL_TOPIC}
    assert one.follows is None, "nothing is home"
    one.close()


def test_a_client_whose_topics_were_all_deleted_is_one_without_topics(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Watched(home, monkeypatch, "audit")
    home.has("none-of-them", back("more", knows=2))
    one.has -= {"audit"}
    assert one.follows is None
    home.has("B-A", back("orders", knows=2))
    assert one.follows == "B-A"
    one.close()


def test_a_client_whose_topics_were_all_created_again_stays_with_them(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what it uses; at home there is the old copy, unless a link back brings that topic."""
    ids = {TopicPartition("orders", 0): TopicIds("s", "t1"), TopicPartition("audit", 0): TopicIds("s", "t2")}
    one = Watched(home, monkeypatch, "audit", left=replace(LEFT, begun=ids))
    one.ids = {"orders": "t1", "audit": "t3"}
    home.has("B-A", back("orders", knows=2))
    assert one.follows is None
    home.has("B-A", back("orders", "audit", knows=2))
    assert one.follows == "B-A"
    one.close()


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("needs", [(), ("orders", "audit")])
def test_a_link_of_other_topics_is_no_way_back(
    home: Home, needs: tuple[str, ...], is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an active/active pair it copies what the other cluster has of its own, all the time."""
    one = Watched(home, monkeypatch, *needs)
    home.has("M", back("own", knows=2, **{"is_promotion_begun": True, "is_fenced": True} if is_over else {}))
    assert one.control().is_unwritten
    one.close()


def test_a_promotion_that_is_not_later_leads_nobody_back(home: Home, watched: Watched) -> None:
    """Else clients would go to and fro for ever; of version 0.1 no moment is known."""
    over: dict[str, Any] = {"is_promotion_begun": True, "is_fenced": True}
    for orders, audit, leads in ((2, 2, False), (3, 2, False), (3, None, False), (3, 3, True)):
        said = {name: MovedTopic(ms) for name, ms in (("orders", orders), ("audit", audit)) if ms is not None}
        home.has("B-A", back("orders", "audit", knows=2, **over, primary_since=said))
        assert (watched.follows == "B-A") == leads


def test_each_topic_has_its_own_last_move(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failover of the rest, which had no leader, is finished once the first topic has come home."""
    late = replace(LEFT, primary_since={"orders": MovedTopic(2), "audit": MovedTopic(5)})
    home.has("B-A", back("orders", knows=2, is_promotion_begun=True, is_fenced=True))
    for needs, leads in ((("orders",), True), (("audit",), False), ((), False)):
        one = Watched(home, monkeypatch, *needs, left=late)
        assert (one.follows == "B-A") == leads
        one.close()


def test_what_the_link_moved_in_an_earlier_life_has_no_way_back_of_its_own(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was moved of it now: a link of it alone brings nothing home, though its control still tells of the move."""
    former = replace(LEFT, primary_since={**LEFT.primary_since, "users": MovedTopic(1)})
    one = Watched(home, monkeypatch, left=former)
    home.has("B-A", back("users", knows=2))
    assert one.control().is_unwritten and not one.watch._back.links
    one.close()


@pytest.mark.parametrize("unknown", ["silent", "hidden", "knows no topic yet"])
def test_topics_of_which_nothing_is_told_hold_a_client(home: Home, watched: Watched, unknown: str) -> None:
    home.has("B-A", back("orders", knows=2))
    watched.has = {CONTROL_TOPIC, "orders"} if unknown != "knows no topic yet" else set()
    watched.silence = Errors.KafkaConnectionError("refused") if unknown == "silent" else None
    watched.hides = {"audit"} if unknown == "hidden" else set()
    assert watched.follows is None and watched.asked


def test_heartbeats_hold_nobody(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = LinkTopics(TopicFilter(("orders",)), names=TopicNames(IdentityReplicationPolicy(), "A"))
    ends = {TopicPartition("orders", 0): 5, TopicPartition("A.heartbeats", 0): 9}
    for needs in [(), ("orders", "A.heartbeats")]:
        one = Watched(home, monkeypatch, *needs, left=replace(LEFT, topics=topics.to_json(), copied_until=ends))
        one.has |= {"A.heartbeats"}
        home.has("B-A", back("orders", knows=2))
        assert one.follows == "B-A" and not one.asked
        one.close()


def test_a_link_back_with_translated_offsets_is_not_followed(home: Home, watched: Watched) -> None:
    home.has("B-A", back("orders", "audit", knows=2, map_id="m"))
    with pytest.raises(OptionError, match="Link B-A has translated offsets"):
        watched.control()


def test_nobody_is_warned_of_a_lost_cluster_but_of_a_right_that_is_missing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.watch._tell(Errors.KafkaConnectionError("refused"))
    assert not caplog.records
    watched.watch._tell(Errors.TopicAuthorizationFailedError("We may not read it: grant us Read"))
    assert [r.levelno for r in caplog.records] == [logging.WARNING] and "way back of link A-B is unknown" in caplog.text
