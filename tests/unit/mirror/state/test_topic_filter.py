"""What a link takes: lists of regular expressions, and MirrorMaker 2's rules for topics."""

from __future__ import annotations

import pickle

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import (
    CONFIG_PROPERTIES_EXCLUDE,
    TOPICS_EXCLUDE,
    LinkTopics,
    TopicCreation,
    TopicFilter,
    group_filter,
    names_of,
)

MIRROR_MAKERS = TopicFilter((".*",), TOPICS_EXCLUDE)
A_TO_B = LinkTopics(TopicFilter(), TopicNames(DefaultReplicationPolicy(), "A"), "B")


@pytest.mark.parametrize(
    ("text", "names"),
    [("a, b.*", ("a", "b.*")), (" a ,b\t,\n c ", ("a", "b", "c")), ("", ()), ("  ", ()), ("a,", ("a", ""))],
)
def test_lists_are_read_as_kafka_reads_them(text: str, names: tuple[str, ...]) -> None:
    assert names_of(text) == names


@pytest.mark.parametrize(
    ("include", "exclude", "name", "is_taken"),
    [
        (".*", "", "orders", True),
        ("orders", "", "orders.v2", False),
        ("orders, pay.*", "", "payments", True),
        ("orders|pay", "", "pay", True),
        (".*", "orders", "orders", False),
        (".*", "orders", "orders2", True),
        ("", "", "orders", False),
        (r"\Qorders.v2\E", "", "ordersxv2", False),
        (r"\Qorders.\E.*", "", "orders.v2", True),
        ("(?i)ORDERS", "", "orders", True),
        ("(?i)ORDERS, PAY", "", "pay", True),
        (r"[\-\.\[]x", "", ".x", True),
        (r"(?<year>\d{4})-.*", "", "2024-orders", True),
        (r"\d", "", "\u0661", False),  # digits are ASCII in Java
    ],
)
def test_whole_names_are_matched_and_exclusions_win(include: str, exclude: str, name: str, is_taken: bool) -> None:
    assert TopicFilter(names_of(include), names_of(exclude)).matches(name) is is_taken


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        ("orders", True),
        ("__consumer_offsets", False),
        ("mm2-x.internal", False),
        ("a.replica", False),
        ("x.internal", True),
    ],
)
def test_default_topics_of_mirror_maker(name: str, is_taken: bool) -> None:
    assert MIRROR_MAKERS.matches(name) is is_taken


@pytest.mark.parametrize(
    ("name", "is_taken"), [("shop", True), ("console-consumer-123", False), ("connect-sink", False), ("__x", False)]
)
def test_default_groups_of_mirror_maker(name: str, is_taken: bool) -> None:
    assert group_filter().matches(name) is is_taken


@pytest.mark.parametrize(
    ("name", "is_excluded"), [("min.insync.replicas", True), ("message.timestamp.type", True), ("retention.ms", False)]
)
def test_default_properties_of_mirror_maker(name: str, is_excluded: bool) -> None:
    assert TopicFilter(CONFIG_PROPERTIES_EXCLUDE).matches(name) is is_excluded


@pytest.mark.parametrize("expression", ["*orders", "orders(", "(?u)orders"])
def test_bad_expression_is_named(expression: str) -> None:
    with pytest.raises(OptionError, match="is not a regular expression"):
        TopicFilter((expression,))


@pytest.mark.parametrize("expression", [r"\p{Alpha}+", "[a-z&&[^b]]+", "[a[bc]]", "orders(?i)X"])
def test_expression_that_python_reads_otherwise_than_java_is_refused(expression: str) -> None:
    with pytest.raises(OptionError, match="which only Java's regular expressions know"):
        TopicFilter(("a",), (expression,))


@pytest.mark.parametrize(
    ("topic", "is_taken"),
    [
        ("orders", True),
        ("C.orders", True),
        ("B.orders", False),  # from the target
        ("C.B.orders", False),
        ("heartbeats", True),
        ("C.heartbeats", True),
        ("B.heartbeats", False),
        ("A.checkpoints.internal", False),
        ("mm2-offset-syncs.B.internal", False),
        ("mm2-configs.B.internal", False),
        ("__consumer_offsets", False),
        ("orders.internal", True),
        ("tolerant-mirror-ledger", False),
        ("tolerant-mirror-control", False),
    ],
)
def test_link_with_names_takes_what_mirror_maker_would(topic: str, is_taken: bool) -> None:
    assert A_TO_B.takes(topic) is is_taken


def test_heartbeats_go_with_every_link_unless_switched_off() -> None:
    names = TopicNames(DefaultReplicationPolicy(), "A")
    only_orders = TopicFilter(("orders",))
    assert LinkTopics(only_orders, names, "B").takes("heartbeats")
    assert not LinkTopics(only_orders, names, "B", copies_heartbeats=False).takes("heartbeats")
    # MirrorSourceConnectorTest.testReplicatesHeartbeatsWhenDisabledButFilterAllows
    assert LinkTopics(TopicFilter(), names, "B", copies_heartbeats=False).takes("heartbeats")


def test_link_without_names_takes_what_the_filter_says_except_our_own_topics() -> None:
    link = LinkTopics(TopicFilter())
    assert link.takes("B.orders") and link.takes("x.internal")
    assert not link.takes("tolerant-mirror-ledger")
    assert (link.to_target("orders"), link.to_source("orders")) == ("orders", "orders")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_no_topic_of_kafkas_own_is_copied_and_its_name_is_refused(topic: str) -> None:
    assert not LinkTopics.of(".*").takes(topic)
    with pytest.raises(OptionError, match=f"{topic} is Kafka's own topic"):
        LinkTopics.of(f"orders,{topic}")


@pytest.mark.parametrize(
    "link",
    [
        LinkTopics(),
        A_TO_B,
        LinkTopics(
            TopicFilter(("a", "b"), TOPICS_EXCLUDE),
            TopicNames(IdentityReplicationPolicy("-"), "x"),
            "y",
            copies_heartbeats=False,
            waits_for_topics=True,
            creation=TopicCreation(3, ("min.*",), "source"),
        ),
    ],
)
def test_link_topics_survive_json_and_pickle(link: LinkTopics) -> None:
    link.takes("orders")
    assert LinkTopics.from_json(link.to_json()) == link
    assert pickle.loads(pickle.dumps(link)) == link


def test_the_option_of_a_link_that_had_other_topics_before_is_one_that_a_start_takes() -> None:
    flagged, plain = TopicFilter(("(?i)up", "down")), TopicFilter(("low", "(?:a|b)"))
    for filters, option in (((flagged,), "(?i)up,down"), ((plain, TopicFilter(("x",))), "low,(?:a|b),x")):
        topics = LinkTopics(filters[0], also=filters[1:])
        assert topics.option == option and LinkTopics.of(option).filter.include == tuple(option.split(","))
    for filters in ((plain, flagged), (flagged, plain)):
        assert LinkTopics(filters[0], also=filters[1:]).option is None, "the flags would be misplaced, or hold for all"


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(OptionError, match="Not the topics of a link"):
        LinkTopics.from_json("{}")


# What MirrorMaker 2 of Kafka 4.2.0 made on B of these topics of A, with each of the configurations below.
_ON_A = (
    "orders orders.v2 B.orders C.orders C.B.orders B_x heartbeats C.heartbeats B.heartbeats my-heartbeats"
    " C.checkpoints.internal x.internal x-internal mm2-configs.B.internal _schemas orders.replica A.orders other"
    " payments-1 payments-22 Bx B. .B ..b C..orders payments PAY clicks"
).split()


@pytest.mark.parametrize(
    ("link", "made"),
    [
        (
            LinkTopics(MIRROR_MAKERS, TopicNames(DefaultReplicationPolicy(), "A"), "B"),
            "A.A.orders A.B. A.B_x A.Bx A.C..orders A.C.heartbeats A.C.orders A.PAY A._schemas A.clicks A.heartbeats"
            " A.my-heartbeats A.orders A.orders.v2 A.other A.payments A.payments-1 A.payments-22 A.x-internal A.x.internal",
        ),
        (
            LinkTopics(
                TopicFilter(names_of(r"(?i)PAY.*, \Qorders.v2\E, C.*, .*heartbeats"), (r"payments-\d",)),
                TopicNames(IdentityReplicationPolicy(source_alias="A"), "A"),
                "B",
            ),
            "A.C.heartbeats A.heartbeats A.my-heartbeats C..orders C.B.orders C.orders PAY clicks orders.v2 payments"
            " payments-22",
        ),
        (
            LinkTopics(
                TopicFilter(names_of("B_x|orders.*, C.*"), TOPICS_EXCLUDE),
                TopicNames(DefaultReplicationPolicy("_"), "A"),
                "B",
            ),
            "A_C..orders A_C.B.orders A_C.checkpoints.internal A_C.heartbeats A_C.orders A_heartbeats A_orders A_orders.v2",
        ),
    ],
    ids=["default", "identity", "underscore"],
)
def test_topics_are_those_that_mirror_maker_made(link: LinkTopics, made: str) -> None:
    assert {link.to_target(topic) for topic in _ON_A if link.takes(topic)} == set(made.split())


@pytest.mark.parametrize("lists", [("lt|b\udcfccher", ""), ("orders", "a, \udcff")])
def test_an_expression_that_is_not_utf_8_is_told_where_it_is_given(lists: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="is not UTF-8"):
        TopicFilter(*map(names_of, lists))
