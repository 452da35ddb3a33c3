"""What failback makes of what it has read: what is adopted, deleted and refused, and which topics are brought back."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.moved_links import moved
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.failback_blockers import blockers, home_texts, lost_records
from tolerant_client.mirror.life.failback_decision import Compared, begin_again, decide, topics_to_bring_back
from tolerant_client.mirror.life.shared_log import SharedLog
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.topic_filter import LinkTopics

ORDERS = TopicPartition("orders", 0)
EQUAL = SharedLog("orders", 0, 5, 5, 9)
UNPROVED = SharedLog("orders", 0, 5, 5, 9, is_proved=False)
BARE = SharedLog("orders", 0, 5, 8, 9)  # the marker of a fence follows
LOST = SharedLog("orders", 0, 5, 8, 9, 3)
UNCOUNTED = SharedLog("orders", 0, 5, 8, 9, is_counted=False)
OWN, TAKEN, STRANGER = "own", "taken", "stranger"


def read(*logs: SharedLog, of: Collection[str] = (), heartbeats: Collection[str] = ()) -> Compared:
    """These logs, all of copies of this link (OWN) or of forward links (TAKEN)."""
    names = frozenset(log.topic for log in logs)
    none = frozenset[str]()
    own, taken = (names if kind in of else none for kind in (OWN, TAKEN))
    return Compared(logs, own, frozenset(heartbeats), taken, {}, {}, {}, {}, {})


@pytest.mark.parametrize(
    ("log", "of", "is_deleted"),
    [
        (UNPROVED, [TAKEN], True),
        (BARE, [TAKEN], True),
        (LOST, [TAKEN], True),
        (LOST, [TAKEN, OWN], True),
        (UNCOUNTED, [TAKEN], True),
        # Others may have written to the link's own former copy since.
        (BARE, [OWN], True),
        (LOST, [OWN], False),
        (UNCOUNTED, [OWN], False),
        (UNPROVED, [OWN], False),
        # An equal name is no proof.
        (BARE, [STRANGER], False),
        (LOST, [STRANGER], False),
        (UNPROVED, [STRANGER], False),
    ],
)
def test_what_differs_is_never_adopted_and_deleted_only_if_it_may_be_and_is_discarded(
    log: SharedLog, of: list[str], is_deleted: bool
) -> None:
    found = decide(read(log, of=of), discards=True)
    assert (found.deleted, found.adopted, bool(found.blockers)) == (("orders",) * is_deleted, {}, not is_deleted)
    if not is_deleted:
        assert ("this link's own copy" if OWN in of else "may be another topic of the same name") in found.blockers[0]
    found = decide(read(log, of=of), discards=False)
    assert (found.deleted, found.adopted, len(found.blockers)) == ((), {}, 1)


@pytest.mark.parametrize("discards", [False, True])
@pytest.mark.parametrize("of", [OWN, TAKEN, STRANGER])
def test_logs_that_are_proved_equal_are_adopted_whoever_copied_them(of: str, discards: bool) -> None:
    empty = SharedLog("orders", 1, 0, 0, 9)
    found = decide(read(EQUAL, empty, of=[of], heartbeats=["beats"]), discards=discards)
    assert found == ((), ("beats",), {ORDERS: 5}, ()), "heartbeats are copied again"


def test_only_of_adopted_logs_the_mirrors_stop_is_told() -> None:
    for target_end, warnings in ((5, 1), (8, 0)):
        log = SharedLog("orders", 0, 5, target_end, 9, source_start=7)
        assert len(decide(read(log, of=[TAKEN]), discards=True).warnings) == warnings


def test_each_log_is_told_once_and_what_was_not_counted_is_not_said_to_be_all() -> None:
    for log, says in (
        (UNCOUNTED, "at least 0 committed records"),
        (SharedLog("orders", 0, 5, 8, 9, 3, is_proved=False), "for 1 of them nothing shows whether it was"),
    ):
        (text,) = blockers([log], discards=False)
        assert says in text
    assert lost_records([LOST, UNCOUNTED]) == "at least 3" and lost_records([LOST, LOST]) == "6"


def test_a_link_whose_promotion_has_begun_begins_again_with_another_generation() -> None:
    """Its fence may be in the logs, also if the control does not have its producer id."""
    control = LinkControl(is_promotion_begun=True)
    assert begin_again(control, "b", LinkTopics.of("orders"), {}).generation == 1
    assert begin_again(LinkControl(), "b", LinkTopics.of("orders"), {}).generation == 0


def chosen(
    forward: dict[str, LinkControl], into_target: dict[str, LinkControl] = {}, home: Collection[str] = ()
) -> str:
    any_cluster: Any = SimpleNamespace(
        file_options="", bootstrap_servers="b:1", manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"})
    )
    return str(topics_to_bring_back(any_cluster, any_cluster, "back", forward, into_target, home))


def test_what_is_left_to_bring_back_is_neither_home_nor_undone() -> None:
    there = {"there": moved("orders|audit")}
    assert chosen(there, home=["orders"]) == "audit", "another link has brought it home"
    assert chosen(there, {"x": moved("orders", 2)}) == "audit", "it was undone, and has moved on"
    assert chosen({"there": moved("orders", copied_until={})}) == "orders", "no control names what was copied"


def test_a_link_of_an_unknown_source_counts_beside_one_of_a_known_one() -> None:
    unknown = moved("orders", producer_ids=(), source_cluster_id=None)
    with pytest.raises(OptionError, match="Links known, unknown have copied different topics"):
        chosen({"unknown": unknown, "known": moved("users")})


def test_the_command_that_copies_back_what_is_home_has_the_topics_of_its_own_link() -> None:
    home, into_target = {"orders": "x", "users": "y"}, {"x": moved("orders", 2), "y": moved("users", 2)}
    texts = home_texts(
        home, "back", home, into_target, {"there": moved("orders|users")}, lambda link, names: f"{link}: {names}", "b"
    )
    assert [text.partition("verify first), and ")[2].partition(": it is")[0] for text in texts.values()] == [
        "run x: ['orders']",
        "run y: ['users']",
    ]
