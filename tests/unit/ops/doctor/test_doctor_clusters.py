"""The doctor's findings about one cluster, decided from facts: a table for each check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace

import pytest
from kafka.structs import TopicPartition

from support.tree import ROOT
from tolerant_client.cluster.admin.log_dirs import LogDir
from tolerant_client.cluster.admin.transactions import CoordinatorView
from tolerant_client.mirror.state.open_transactions import OpenTransaction
from tolerant_client.ops.doctor.access import (
    group_right_findings,
    hidden_findings,
    principal,
    quota_findings,
    right_findings,
    transactional_id_findings,
)
from tolerant_client.ops.doctor.clocks import both_clocks_findings, clock_findings, future_findings
from tolerant_client.ops.doctor.coordinators import coordinator_findings
from tolerant_client.ops.doctor.describe import Quota
from tolerant_client.ops.doctor.durability import durability_findings
from tolerant_client.ops.doctor.elections import Snapshot, election_findings
from tolerant_client.ops.doctor.facts import (
    INTERNAL_TOPICS,
    OPERATIONS,
    Broker,
    ClusterFacts,
    Partition,
    Quorum,
    Topic,
)
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.replication import controller_findings, log_dir_findings, partition_findings
from tolerant_client.ops.doctor.rights import CHECKPOINTS, RIGHTS, Asked, Duty, asked, created_names
from tolerant_client.ops.doctor.transactions import still_open, transaction_findings
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_of

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
NOW = 1_763_775_000_000
MINUTE = 60_000
EVERYTHING = frozenset(OPERATIONS.values())


def cluster(*topics: Topic, nodes: Iterable[int] = (1, 2, 3), **more: object) -> ClusterFacts:
    brokers = {node: Broker(node, f"b{node}", 9092) for node in nodes}
    facts = ClusterFacts("source", "b1:9092", "id", 1, brokers, {topic.name: topic for topic in topics})
    return replace(facts, **more)


def topic(name: str, *partitions: tuple[int, tuple[int, ...], tuple[int, ...]], **more: object) -> Topic:
    """`partitions` are (leader, replicas, in sync)."""
    parts = tuple(Partition(name, n, leader, 5, replicas, isr) for n, (leader, replicas, isr) in enumerate(partitions))
    return replace(Topic(name, parts), **more)


def judged(findings: Iterable[Finding]) -> list[tuple[Severity, str]]:
    return [(f.severity, f.thing) for f in findings]


ALL = (1, 2, 3)
SOUND = (1, ALL, ALL)


# -- partitions ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "min_isr", "expected", "words"),
    [
        (SOUND, "2", None, ""),
        ((-1, ALL, (3,)), "2", ERROR, "have no leader"),
        ((1, ALL, (1,)), "2", ERROR, "fewer in-sync replicas than min.insync.replicas=2"),
        ((1, ALL, (1, 2)), "2", WARNING, "1 of them refuse writes after one more failure"),
        ((1, ALL, (1, 2)), "1", WARNING, "replicas that are not in sync;"),
        ((1, ALL, (1, 2)), None, WARNING, "replicas that are not in sync;"),  # the brokers do not tell
        ((1, (1,), (1,)), "2", ERROR, "fewer in-sync replicas"),
    ],
)
def test_partition_is_judged_by_leader_and_in_sync_replicas(
    partition: tuple[int, tuple[int, ...], tuple[int, ...]], min_isr: str | None, expected: Severity | None, words: str
) -> None:
    configs = {} if min_isr is None else {"orders": {"min.insync.replicas": min_isr}}
    found = list(partition_findings(cluster(topic("orders", SOUND, partition), configs=configs)))
    assert [f.severity for f in found] == ([] if expected is None else [expected])
    if expected is not None:
        (one,) = found
        assert words in one.evidence.replace("; partition 1:", ";") and "1 of 2 partitions (1)" in one.evidence


@pytest.mark.parametrize(("version", "is_refused"), [((3, 6), True), ((3, 7), False), ((4, 2), False)])
@pytest.mark.parametrize("name", ["orders", OFFSETS_TOPIC])
def test_brokers_since_3_7_ask_for_no_more_in_sync_replicas_than_a_partition_has(
    version: tuple[int, ...], is_refused: bool, name: str
) -> None:
    """Partition.scala, effectiveMinIsr (KAFKA-15583): acks=all needs no more replicas than the partition has."""
    alone = cluster(topic(name, (1, (1,), (1,))), configs={name: {"min.insync.replicas": "2"}}, version=version)
    found = [
        *partition_findings(alone),
        *durability_findings(alone, ["orders"]),
        *coordinator_findings(alone, OFFSETS_TOPIC, []),
    ]
    refused = [f for f in found if f.severity is ERROR and f.thing.startswith((f"topic {name}", f"{name} part"))]
    assert bool([f for f in refused if "min.insync.replicas" in f.evidence]) is is_refused
    two = cluster(topic("orders", (1, (1, 2), (1,))), configs={"orders": {"min.insync.replicas": "3"}}, version=version)
    (below,) = [f for f in partition_findings(two) if f.severity is ERROR]  # its other replica is away: refused by all
    assert "fewer in-sync replicas than min.insync.replicas=3" in below.evidence


def test_more_in_sync_replicas_than_there_are_let_no_broker_restart_since_3_7() -> None:
    facts = cluster(
        topic("orders", (1, (1, 2), (1, 2))), configs={"orders": {"min.insync.replicas": "3"}}, version=(4, 2)
    )
    (one,) = durability_findings(facts, ["orders"])
    assert one.severity is WARNING and "is above the replication factor (orders: 3 of 2): while any one" in one.evidence


def test_many_partitions_of_a_topic_are_one_finding_and_brokers_that_are_away_are_named() -> None:
    lost = topic("orders", *[(-1, (3,), (3,))] * 40)
    found = list(partition_findings(cluster(lost, nodes=(1, 2))))
    assert judged(found) == [(ERROR, "topic orders"), (ERROR, "broker 3")]
    assert "40 of 40 partitions (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 30 more)" in found[0].evidence
    assert "Start broker 3 (not registered)" in found[0].remedy
    assert "40 replicas assigned to it" in found[1].evidence


def test_leader_that_does_not_answer_here_is_an_error_though_metadata_is_content() -> None:
    (one,) = partition_findings(cluster(topic("orders", (2, ALL, ALL)), silent=frozenset({2})))
    assert (
        one.severity is ERROR
        and "led by a broker that does not respond here" in one.evidence
        and "b2:9092" in one.remedy
    )


def test_commands_for_partitions_and_settings_are_whole() -> None:
    facts = cluster(topic("orders", SOUND, (-1, (3,), (3,))), nodes=(1, 2))
    assert (
        partition_findings(facts)
        .__next__()
        .remedy.endswith(
            " kafka-leader-election.sh --bootstrap-server b1:9092 --election-type unclean --topic orders --partition 1"
        )
    )
    secured = replace(facts, is_secured=True)
    assert secured.tool("kafka-leader-election.sh").endswith(" --admin.config admin.properties")
    alone = cluster(topic("a", SOUND), topic("b", SOUND), configs={name: {"min.insync.replicas": "1"} for name in "ab"})
    (one,) = durability_findings(alone, ["a", "b"])
    assert one.remedy == (
        "kafka-configs.sh --bootstrap-server b1:9092 --alter --entity-type topics --entity-name a"
        " --add-config min.insync.replicas=2  # and likewise for 1 more topic"
    )


def test_fenced_broker_without_replicas_is_a_warning() -> None:
    facts = cluster(topic("orders", SOUND))
    facts = replace(facts, brokers={**facts.brokers, 4: Broker(4, "b4", 9092, is_fenced=True)})
    assert judged(partition_findings(facts)) == [(WARNING, "broker 4")]


def test_coordinators_topics_are_left_to_their_own_check() -> None:
    facts = cluster(topic(OFFSETS_TOPIC, (-1, ALL, (1,))))
    assert list(partition_findings(facts)) == []


# -- coordinators (incident 3) ------------------------------------------------


def offsets_topic(leaderless: set[int], name: str = OFFSETS_TOPIC) -> Topic:
    return topic(name, *[(-1, (3,), (3,)) if n in leaderless else (1, (1,), (1,)) for n in range(50)])


@pytest.mark.parametrize(("name", "kind"), [(OFFSETS_TOPIC, "group"), (TRANSACTIONS_TOPIC, "transactional id")])
def test_names_that_hash_to_a_partition_without_leader_are_told(name: str, kind: str) -> None:
    names = ["billing", "orders-app", "gruppe-\u00e9\U0001f600"]
    at = {n: partition_of(n, 50) for n in names}
    assert len(set(at.values())) == 3
    facts = cluster(offsets_topic({at["billing"]}, name), nodes=(1, 2))
    (one,) = coordinator_findings(facts, name, names)
    assert (one.severity, one.thing) == (ERROR, f"{name} partition {at['billing']}")
    assert f"hit of those we know: billing ({name}-{at['billing']})" in one.evidence
    assert "orders-app" not in one.evidence
    assert "Start broker 3 (not registered)" in one.remedy and "unclean election" in one.remedy
    assert f"each {kind} there waits for a coordinator for ever" in one.evidence


def test_nobody_known_is_hit_is_not_said_as_nobody_is_hit() -> None:
    (one,) = coordinator_findings(cluster(offsets_topic({0}), nodes=(1, 2)), OFFSETS_TOPIC, ["billing"])
    assert "no group that we know is hit, but no broker lists one whose coordinator is unavailable" in one.evidence


@pytest.mark.parametrize(
    ("part", "silent", "severity", "words"),
    [
        ((2, ALL, ALL), {2}, ERROR, "a leader that does not respond here"),
        ((1, ALL, (1,)), set(), ERROR, "fewer in-sync replicas than min.insync.replicas=2"),
        ((1, ALL, (1, 2)), set(), WARNING, "replicas that are not in sync"),
    ],
)
def test_coordinator_partition_that_cannot_serve(
    part: tuple[int, tuple[int, ...], tuple[int, ...]], silent: set[int], severity: Severity, words: str
) -> None:
    facts = cluster(
        topic(OFFSETS_TOPIC, SOUND, part),
        silent=frozenset(silent),
        configs={OFFSETS_TOPIC: {"min.insync.replicas": "2"}},
    )
    (one,) = coordinator_findings(facts, OFFSETS_TOPIC, [])
    assert one.severity is severity and words in one.evidence


@pytest.mark.parametrize(("wanted", "expected"), [("3", []), ("4", [ERROR]), (None, [])])
def test_offsets_topic_that_is_not_there(wanted: str | None, expected: list[Severity]) -> None:
    settings = {} if wanted is None else {1: {"offsets.topic.replication.factor": wanted}}
    found = coordinator_findings(cluster(broker_configs=settings), OFFSETS_TOPIC, [])
    assert [f.severity for f in found] == expected


def test_offsets_topic_that_we_may_not_see() -> None:
    (one,) = coordinator_findings(cluster(topic(OFFSETS_TOPIC, error_code=29)), OFFSETS_TOPIC, ["billing"])
    assert one.severity is INFO and "is unknown" in one.evidence


def test_sound_coordinators_are_not_mentioned() -> None:
    facts = cluster(topic(OFFSETS_TOPIC, SOUND), topic(TRANSACTIONS_TOPIC, SOUND))
    assert [f for name in INTERNAL_TOPICS for f in coordinator_findings(facts, name, ["billing"])] == []


# -- durability (incident 4) --------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "configs", "severity", "words"),
    [
        ((1, 2, 3), {"min.insync.replicas": "2"}, None, ""),
        ((1, 2, 3), {}, None, ""),  # not told
        ((1,), {}, WARNING, "replication factor 1"),
        ((1, 2, 3), {"min.insync.replicas": "1"}, WARNING, "min.insync.replicas=1"),
        ((1, 2), {"min.insync.replicas": "2"}, WARNING, "equals the replication factor (orders: 2)"),
        ((1, 2), {"min.insync.replicas": "3"}, ERROR, "above the replication factor (orders: 3 of 2)"),
        ((1, 2, 3), {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}, WARNING, "enable=true"),
        ((1, 2, 3), {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}, None, ""),
    ],
)
def test_durability_rules(
    replicas: tuple[int, ...], configs: dict[str, str], severity: Severity | None, words: str
) -> None:
    facts = cluster(topic("orders", (1, replicas, replicas)), configs={"orders": configs})
    found = list(durability_findings(facts, ["orders"]))
    assert [f.severity for f in found] == ([] if severity is None else [severity])
    assert all(words in f.evidence and f.thing == "topic orders" for f in found)


def test_durability_judges_internal_topics_and_no_topics_that_were_not_chosen() -> None:
    facts = cluster(topic(OFFSETS_TOPIC, (1, (1,), (1,))), topic("other", (1, (1,), (1,))))
    assert judged(durability_findings(facts, [])) == [(WARNING, f"topic {OFFSETS_TOPIC}")]


def test_cluster_of_one_broker_is_told_once_and_not_topic_by_topic() -> None:
    single = (1, (1,), (1,))
    facts = cluster(
        topic("a", single), topic("b", single), nodes=(1,), configs={n: {"min.insync.replicas": "1"} for n in "ab"}
    )
    assert judged(durability_findings(facts, ["a", "b"])) == [(WARNING, "the cluster")]


# -- elections (incident 5) ---------------------------------------------------


def snapshots(*epochs: list[int], brokers: list[set[int]] | None = None) -> list[Snapshot]:
    """Snapshots, one second apart, of one topic's partitions with these leader epochs."""
    there = brokers or [set(ALL)] * len(epochs)
    return [
        Snapshot(
            float(second),
            frozenset(there[second]),
            {("t", n): Partition("t", n, 1 + epoch % 3, epoch, ALL, ALL) for n, epoch in enumerate(found)},
        )
        for second, found in enumerate(epochs)
    ]


@pytest.mark.parametrize(
    ("epochs", "severity", "thing"),
    [
        ([[5] * 40, [5] * 40], None, ""),
        ([[5] * 40, [6] + [5] * 39], INFO, "leader of t-0"),
        ([[5] * 40, [7] + [5] * 39], WARNING, "leader of t-0"),  # twice between two looks
        ([[5] * 40, [6] + [5] * 39, [7] + [5] * 39], WARNING, "leader of t-0"),
        ([[5] * 40, [6] * 10 + [5] * 30], ERROR, "election storm"),  # storm_threshold: a fifth, at least 10
        ([[5] * 40, [6] * 9 + [5] * 31], INFO, "leader of t-0, t-1, t-2 and 6 more"),
        ([[5] * 40, [3] + [5] * 39], None, ""),  # of a broker that lags behind, or a topic created again
    ],
)
def test_elections_between_looks_are_counted(epochs: list[list[int]], severity: Severity | None, thing: str) -> None:
    found = judged(election_findings("source", snapshots(*epochs)))
    assert found == ([] if severity is None else [(severity, thing)])


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([{1, 2, 3}, {1, 2, 3}], []),
        ([{1, 2}, {1, 2, 3}], []),  # started once
        ([{1, 2, 3}, {1, 2}], [(ERROR, "broker 3")]),
        ([{1, 2, 3}, {1, 2}, {1, 2, 3}], [(WARNING, "broker 3")]),
        ([{1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2}, {1, 2, 3}], [(ERROR, "broker 3")]),
    ],
)
def test_brokers_that_come_and_go(brokers: list[set[int]], expected: list[tuple[Severity, str]]) -> None:
    looks = snapshots(*[[5]] * len(brokers), brokers=brokers)
    assert judged(election_findings("source", looks)) == expected


def test_replicas_that_leave_and_join_are_unsteady() -> None:
    def look(at: float, isr: tuple[int, ...]) -> Snapshot:
        return Snapshot(at, frozenset(ALL), {("t", 0): Partition("t", 0, 1, 5, ALL, isr)})

    steady = [look(0, ALL), look(1, (1, 2))]
    assert judged(election_findings("source", steady)) == []
    (one,) = election_findings("source", [*steady, look(2, (2, 1, 3))])
    assert one.severity is WARNING and "t-0" in one.evidence


# -- controllers and log directories ------------------------------------------


def quorum(leader: int = 1, skew: float = 0, **voters: int) -> Quorum:
    """A quorum; `voters` maps "v2" to the voter's lag in ms."""
    now = NOW + int(skew)
    followers = {int(name[1:]): (90, now - behind) for name, behind in voters.items()}
    return Quorum(leader, 100, {1: (100, now), **followers}, now, NOW - 20, NOW + 20)


@pytest.mark.parametrize(
    ("seen", "failure", "expected"),
    [
        (quorum(v2=500, v3=500), "", []),
        (quorum(v2=500, v3=60_000), "", [(ERROR, "controllers 3")]),  # two of three: none more may fail
        (quorum(v2=5, v3=5, v4=5, v5=60_000), "", [(WARNING, "controllers 5")]),
        (quorum(leader=-1), "", [(ERROR, "controller")]),
        (None, "no answer", [(ERROR, "controller")]),
        (None, "", []),  # ZooKeeper, and metadata names a controller
    ],
)
def test_controllers(seen: Quorum | None, failure: str, expected: list[tuple[Severity, str]]) -> None:
    assert judged(controller_findings(cluster(), seen, failure)) == expected


def test_cluster_of_zookeeper_without_controller() -> None:
    assert judged(controller_findings(cluster(controller=-1), None)) == [(ERROR, "controller")]
    assert judged(controller_findings(cluster(controller=None), None)) == []  # before 0.10 none is named


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (LogDir(1, "/data", 0, 1000, 400), None),
        (LogDir(1, "/data", 0, 1000, 149), WARNING),
        (LogDir(1, "/data", 0, 1000, 49), ERROR),
        (LogDir(1, "/data", 0), None),  # not told
        (LogDir(1, "/data", 56), ERROR),
        (LogDir(1, "/data", 13), ERROR),
    ],
)
def test_log_directories(found: LogDir, severity: Severity | None) -> None:
    findings = list(log_dir_findings("source", [found]))
    assert [f.severity for f in findings] == ([] if severity is None else [severity])
    words = {56: "it is offline", 13: "error 13"}.get(found.error_code, "are left")
    assert all(words in f.evidence for f in findings)


# -- clocks -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "severity", "words"),
    [
        (0, None, ""),
        (5_010, None, ""),  # within what the round trip leaves in doubt
        (6_000, WARNING, "6.0 s ahead of ours"),
        (-6_000, WARNING, "6.0 s behind ours"),
        (-301_000, ERROR, "5 min behind ours"),
    ],
)
def test_controllers_clock(skew: float, severity: Severity | None, words: str) -> None:
    found = list(clock_findings("source", quorum(skew=skew)))
    assert [f.severity for f in found] == ([] if severity is None else [severity])
    assert all(words in f.evidence for f in found)


def test_clock_that_cannot_be_seen_is_said_to_be_so() -> None:
    (one,) = clock_findings("source", None)
    assert one.severity is INFO and "cannot be seen" in one.evidence


def test_clocks_of_two_clusters_are_compared_with_each_other() -> None:
    assert list(both_clocks_findings(quorum(skew=3_000), quorum(skew=-1_900))) == []
    (one,) = both_clocks_findings(quorum(skew=3_000), quorum(skew=-2_500))
    assert "5.5 s behind the source's" in one.evidence
    assert list(both_clocks_findings(None, quorum(skew=9_000))) == []


@pytest.mark.parametrize(
    ("name", "kind", "ahead", "expected"),
    [
        ("orders", "CreateTime", 59 * MINUTE, []),
        ("orders", "CreateTime", 61 * MINUTE, [(WARNING, "topic orders")]),
        ("orders", "LogAppendTime", 6_000, [(WARNING, "clock of broker 1")]),
        ("orders", "LogAppendTime", 4_000, []),
        (OFFSETS_TOPIC, "CreateTime", 6 * MINUTE, [(ERROR, "clock of broker 1")]),
        ("orders", "CreateTime", -(10**10), []),
    ],
)
def test_times_from_the_future(name: str, kind: str, ahead: int, expected: list[tuple[Severity, str]]) -> None:
    facts = cluster(topic(name, SOUND), configs={name: {"message.timestamp.type": kind}})
    assert judged(future_findings(facts, {TopicPartition(name, 0): NOW + ahead}, NOW)) == expected


# -- rights and quotas --------------------------------------------------------


EVERY_DUTY = frozenset(Duty)
GUIDE = ROOT / "spark_integration" / "guides" / "security.md"


def asked_of(
    role: str, *topics: str, duties: frozenset[Duty] = EVERY_DUTY, version: tuple[int, ...] = (2, 7)
) -> list[Asked]:
    return list(asked(role, duties, topics, {}, version))


@pytest.mark.parametrize("role", ["source", "target"])
def test_each_right_that_is_missing_is_found_and_none_that_is_there(role: str) -> None:
    rights = asked_of(role, "orders")
    names = {name for one in rights for name in one.names}

    def lacking(missing: str, which: str) -> set[tuple[str, str]]:
        def allowed(name: str) -> frozenset[str]:
            return EVERYTHING - {missing} if name == which else EVERYTHING

        topics = [topic(name, SOUND, operations=allowed(name)) for name in names]
        facts = cluster(*topics, name=role, operations=allowed("the cluster"))
        return {(f.thing, f.evidence.partition(" ")[0]) for f in right_findings(facts, rights, "User:m")}

    assert lacking("nothing", "orders") == set()
    for right, wanted in rights:
        for operation in set(right.operations) - {"Create"}:
            for name in wanted or ("the cluster",):
                assert lacking(operation, name) == {(f"topic {name}" if wanted else name, operation)}


def test_right_to_create_is_asked_of_the_brokers_for_what_is_missing() -> None:
    rights = asked_of("target", "orders")
    own = {"tolerant-mirror-control", "tolerant-mirror-ledger", "tolerant-mirror-claims"}
    assert created_names(rights) == own | {"heartbeats", CHECKPOINTS}
    facts = cluster(name="target", operations=EVERYTHING)
    (one,) = right_findings(facts, rights, "User:m", ["heartbeats"])
    assert one.remedy.endswith("--operation Create --topic heartbeats") and "emit.heartbeats.enabled" in one.evidence


def test_rights_are_asked_for_where_the_link_does_its_duty() -> None:
    def resources(*duties: Duty, version: tuple[int, ...] = (4, 2)) -> set[tuple[str, str]]:
        found = asked_of("target", "orders", duties=frozenset(duties), version=version)
        return {(right.resource, right.name) for right, _ in found}

    copying = {("topic", ""), ("topic", "tolerant-mirror-")}
    assert resources(Duty.COPY) == copying
    assert resources(Duty.COPY, version=(2, 7)) == copying | {("cluster", "")}
    assert resources(Duty.COPY, Duty.CHECKPOINTS) == copying | {("topic", CHECKPOINTS)}
    assert resources(Duty.ACLS) == {("cluster", "")}


def test_rights_to_the_cluster_are_told_only_to_who_may_describe_it() -> None:
    facts = cluster(name="target", operations=frozenset())
    markers = asked_of("target", duties=frozenset({Duty.MARKERS}))
    (one,) = right_findings(facts, markers, "User:m")
    assert one.severity is INFO and "whether ClusterAction is allowed" in one.evidence
    both = asked_of("source", duties=frozenset({Duty.GROUPS, Duty.ACLS}))
    (one,) = right_findings(replace(facts, name="source"), both, "User:m")
    assert one.severity is WARNING and "Describe is not allowed" in one.evidence
    assert "finding all groups; reading ACLs" in one.evidence  # one command for both


def test_the_guides_table_and_commands_are_the_rights_of_the_code() -> None:
    """One command for each resource, with all operations except those for markers, old brokers and MirrorMaker 2's offsets."""
    text = GUIDE.read_text()
    section = text[text.index("## Least rights") : text.index("## What others may do")]
    rows = [f"| {r.role} | {r.thing} | {', '.join(r.operations)} | {r.purpose} | {r.severity.value} |" for r in RIGHTS]
    assert [line for line in section.splitlines() if line.startswith("|")][2:] == rows
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    granted = {}
    for line in block.splitlines():
        words = shlex.split(line)
        assert words[:2] == ["kafka-acls.sh", "--bootstrap-server"]
        assert words[3:6] == ["--add", "--allow-principal", "User:mirror"]
        operations = {word for before, word in zip(words, words[1:]) if before == "--operation"}
        (kind,) = {"--topic", "--group", "--transactional-id", "--cluster"} & set(words)
        name = "" if kind == "--cluster" else words[words.index(kind) + 1]
        assert name.endswith("-") == ("prefixed" in words)
        granted[{"a": "source", "b": "target"}[words[2][0]], kind[2:], name] = operations
    wanted: dict[tuple[str, str, str], set[str]] = {}
    for right in RIGHTS:
        if right.duty not in (Duty.MARKERS, Duty.MARKERS_IF_ALLOWED, Duty.TAKE_OVER) and right.before is None:
            name = right.name or {"topic": "orders", "group": "billing"}.get(right.resource, "")
            wanted.setdefault((right.role, right.resource, name), set()).update(right.operations)
    assert granted == wanted


def test_commands_that_grant_are_whole_and_quoted() -> None:
    facts = cluster(topic("a b", SOUND, operations=EVERYTHING - {"Read"}), operations=EVERYTHING)
    rights = asked_of("source", "a b", duties=frozenset({Duty.COPY}))
    (one,) = right_findings(facts, rights, "User:CN=mirror, O=x")
    assert one.remedy == (
        "kafka-acls.sh --bootstrap-server b1:9092 --add --allow-principal 'User:CN=mirror, O=x' --operation Read --topic 'a b'"
    )
    (secured,) = right_findings(replace(facts, is_secured=True), rights, "User:m")
    assert secured.remedy.startswith(
        "kafka-acls.sh --bootstrap-server b1:9092 --command-config admin.properties --add "
    )
    many = [topic(f"t{n:02}", SOUND, operations=EVERYTHING - {"Read"}) for n in range(50)]
    rights = asked_of("source", *(t.name for t in many), duties=frozenset({Duty.COPY}))
    (one,) = right_findings(cluster(*many), rights, "User:m")
    command, _, comment = one.remedy.partition("  # ")
    assert command.endswith("--topic t19") and comment.startswith("and 30 more")


def test_hidden_topic_and_brokers_that_do_not_tell() -> None:
    rights = asked_of("source", "orders", duties=frozenset({Duty.COPY}))
    hidden = cluster(topic("orders", error_code=29), operations=EVERYTHING)
    (one,) = right_findings(hidden, rights, "User:m")
    assert one.severity is ERROR and one.remedy.endswith(
        "--operation Read --operation Describe --operation DescribeConfigs --topic orders"
    )
    control = cluster(topic("tolerant-mirror-control", error_code=29), operations=EVERYTHING)
    (one,) = right_findings(control, rights, "User:m")
    assert one.severity is WARNING and "(loops)" in one.evidence
    assert one.remedy.endswith("--operation Read --operation Describe --topic tolerant-mirror-control")
    (untold,) = right_findings(cluster(topic("orders", SOUND)), rights, "User:m")
    assert untold.severity is INFO and "do not report" in untold.evidence
    (alone,) = hidden_findings(cluster(name="cluster"), [topic("__consumer_offsets", error_code=29)], "User:m")
    assert alone.severity is INFO and alone.remedy.endswith("--operation Describe --topic __consumer_offsets")


def test_transactional_ids_and_groups() -> None:
    target = cluster(name="target")
    assert list(transactional_id_findings(target, {"tolerant-mirror-l": True}, EVERY_DUTY, "User:m")) == []
    ids = {"tolerant-mirror-l": True, "tolerant-mirror-l-gap-t-0": False}
    (one,) = transactional_id_findings(target, ids, EVERY_DUTY, "User:m")
    assert one.remedy.endswith(
        "--operation Write --operation Describe --transactional-id tolerant-mirror- --resource-pattern-type prefixed"
    )
    rights = {"billing": frozenset({"Describe"}), "ok": EVERYTHING}
    (group,) = group_right_findings(target, rights, EVERY_DUTY, "User:m")
    assert group.thing == "group billing" and "Read is not allowed" in group.evidence
    assert list(group_right_findings(cluster(), rights, EVERY_DUTY, "User:m")) == []
    assert list(group_right_findings(target, rights, {Duty.COPY}, "User:m")) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"sasl_plain_username": "mirror", "security_protocol": "SASL_SSL"}, "User:mirror"),
        ({"sasl_plain_username": "a=2Cb=3Dc", "security_protocol": "SASL_SSL"}, "User:a,b=c"),
        ({"security_protocol": "PLAINTEXT"}, "User:ANONYMOUS"),
        ({"security_protocol": "SSL"}, "User:PRINCIPAL"),
    ],
)
def test_principal_is_named_where_the_client_knows_it(config: dict[str, str], expected: str) -> None:
    assert principal(config) == expected


@pytest.mark.parametrize(
    ("entity", "applies"),
    [
        ((("user", "mirror"),), True),
        ((("user", None),), True),
        ((("user", "other"),), False),
        ((("client-id", "tolerant-client"),), True),
        ((("user", "mirror"), ("client-id", "other")), False),
        ((("user", "mirror"), ("client-id", None)), True),
        ((("ip", "10.0.0.1"),), False),
    ],
)
def test_quotas_that_apply_to_us(entity: tuple[tuple[str, str | None], ...], applies: bool) -> None:
    quota = Quota(entity, (("producer_byte_rate", 1_048_576.0),))
    found = list(quota_findings("target", [quota], "User:mirror", "tolerant-client"))
    assert len(found) == int(applies)
    assert all("producer_byte_rate 1.0 MiB/s" in f.evidence for f in found)


# -- transactions -------------------------------------------------------------

HERE = TopicPartition("orders", 2)


def opened(age_ms: int) -> OpenTransaction:
    return OpenTransaction(HERE, 4000, 3, 120, NOW - age_ms, 55)


def view(*partitions: TopicPartition, age_ms: int = 0, timeout_ms: int = MINUTE) -> CoordinatorView:
    return CoordinatorView("etl", "Ongoing", timeout_ms, NOW - age_ms, frozenset(partitions))


@pytest.mark.parametrize(
    ("one", "views", "severity", "thing"),
    [
        (opened(5_000), {4000: view()}, None, ""),  # its marker may be under way
        (opened(2 * MINUTE), {4000: view()}, ERROR, "hanging transaction in orders-2"),
        (opened(2 * MINUTE), {4000: view(HERE, age_ms=MINUTE)}, INFO, "transactional id etl (producer id 4000)"),
        (opened(9 * MINUTE), {4000: view(HERE, age_ms=9 * MINUTE)}, WARNING, "transactional id etl (producer id 4000)"),
        (opened(2 * MINUTE), {}, INFO, "producer id 4000"),  # perhaps we may not see its transactional id
        (opened(16 * MINUTE), {}, WARNING, "perhaps a hanging transaction in orders-2"),
        (opened(2 * MINUTE), None, INFO, "producer id 4000"),
        (opened(16 * MINUTE), None, WARNING, "perhaps a hanging transaction in orders-2"),
    ],
)
def test_open_transactions(
    one: OpenTransaction, views: dict[int, CoordinatorView] | None, severity: Severity | None, thing: str
) -> None:
    found = list(transaction_findings(cluster(), [one], views, NOW))
    assert judged(found) == ([] if severity is None else [(severity, thing)])
    if severity is ERROR:
        assert "producer id 4000" in found[0].evidence and "55 offsets wait" in found[0].evidence
        assert found[0].remedy == (
            "kafka-transactions.sh --bootstrap-server b1:9092 abort --topic orders --partition 2 --start-offset 120"
        )
    else:
        assert all("abort --topic" not in one.remedy for one in found), "it may be alive"


def test_transaction_that_ended_while_the_coordinators_were_asked_hangs_no_more() -> None:
    """A copy of old records has old timestamps: its age proves nothing."""
    one, other = opened(99 * MINUTE), replace(opened(99 * MINUTE), start_offset=130)
    assert still_open([one], []) == [] and still_open([one], [other]) == []
    assert still_open([one], [other, replace(one, held_back=60)]) == [replace(one, held_back=60)]


def test_the_command_against_a_hanging_transaction_quotes_what_a_broker_calls_its_topic() -> None:
    one = replace(opened(99 * MINUTE), partition=TopicPartition("$(reboot)", 2))
    for views in ({}, {4000: CoordinatorView("app", "Empty", MINUTE, 0, frozenset())}):
        (found,) = transaction_findings(cluster(), [one], views, NOW)
        assert "--topic '$(reboot)' --partition 2" in found.remedy


def test_longest_transaction_is_that_of_the_brokers() -> None:
    facts = cluster(broker_configs={1: {"transaction.max.timeout.ms": str(60 * MINUTE)}})
    assert judged(transaction_findings(facts, [opened(16 * MINUTE)], None, NOW)) == [(INFO, "producer id 4000")]
