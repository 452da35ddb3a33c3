"""One round of each duty of a link on real brokers: groups, settings, ACLs, heartbeats and checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

import tolerant_client
from support.guarded_cluster import start_guarded
from support.mirror_link import (
    append_records,
    both,
    configure,
    create_topic,
    mirror,
    move_groups,
    prepare_translated_link,
)
from support.raising_copier import LinkCopier
from support.settled import changing, settle
from support.tree import SUPPORT
from tolerant_client.cluster.admin.acls import TopicAcl
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets, fetch_offsets, groups_home
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.limits import TransactionLimits
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow import groups as duty
from tolerant_client.mirror.follow.acls import AclsReport, sync_acls
from tolerant_client.mirror.follow.checkpoints import CheckpointsReport, KnownCheckpoints, emit_checkpoints
from tolerant_client.mirror.follow.configs import ConfigsReport, sync_configs
from tolerant_client.mirror.follow.group_positions import read_positions
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.heartbeats import emit_heartbeat
from tolerant_client.mirror.follow.mm2_records import Heartbeat, encode_heartbeat
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.state.topics import describe_topics
from tolerant_client.testing import KafkaCluster
from tolerant_client.testing.artifacts import TOOLS_MODULES, jars, java_executable

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
RENAMED = TopicNames(DefaultReplicationPolicy(), "A")


@pytest.fixture(scope="module")
def origin(authorized_cluster: KafkaCluster) -> str:
    return authorized_cluster.bootstrap_servers


@pytest.fixture(scope="module")
def copy(start_cluster: Callable[..., KafkaCluster]) -> str:
    """The target, with an authorizer of its own."""
    cluster = start_cluster(
        heap="320m",
        broker_config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )
    return cluster.bootstrap_servers


def topics(expression: str, names: TopicNames | None = None) -> LinkTopics:
    return LinkTopics(TopicFilter((expression,)), names, "B")


def groups(origin: str, copy: str, link_topics: LinkTopics, group: str, **how: Any) -> GroupsReport:
    with both(origin, copy, names=link_topics.names) as (source, target):

        async def run() -> GroupsReport:
            return await move_groups(source, target, link_topics, TopicFilter((group,)), **how)

        return source.run(run)


def commit(servers: str, group: str, offsets: dict[TopicPartition, int], metadata: str = "") -> None:
    with both(servers, servers) as (_, cluster):
        wanted = {p: CommittedOffset(offset, metadata) for p, offset in offsets.items()}
        codes, failures = cluster.run(commit_offsets, cluster, {group: wanted})
        assert not failures and set(codes[group].values()) == {0}, (codes, failures)


def committed(servers: str, group: str) -> dict[TopicPartition, tuple[int, str]]:
    with both(servers, servers) as (_, cluster):
        found, failures = cluster.run(fetch_offsets, cluster, [group])
        assert not failures
        return {p: tuple(offset) for p, offset in found[group].items()}  # type: ignore[misc]


@contextlib.contextmanager
def consumer(servers: str, group: str, topic: str) -> Iterator[Any]:
    reader = tolerant_client.KafkaConsumer(  # kafka-python's may never take over a join that outlasts its poll
        topic,
        bootstrap_servers=servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=50,
    )
    try:
        yield reader
    finally:
        reader.close(autocommit=False)


def consume(reader: Any, count: int) -> list[bytes]:
    """Values of `count` records at least, committed."""
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        values += [record.value for records in reader.poll(timeout_ms=200).values() for record in records]
    reader.commit()
    return values


async def says_empty(cluster: Cluster, names: Iterable[str]) -> tuple[dict[str, str], dict[str, Exception]]:
    return dict.fromkeys(names, "Empty"), {}


def test_a_sinks_decisions_stay_on_their_cluster(origin: str, copy: str) -> None:
    """Its group's offset is the number of a micro-batch, 700, and the log has 20 records."""
    topic, decided = "decided", "tolerant-sink-decided/0"
    create_topic(origin, topic)
    append_records(origin, topic, 20)
    mirror(origin, copy, topic, link="decided")
    for group in (decided, "reads-decided"):
        commit(origin, group, {TopicPartition(topic, 0): 701})
    report = groups(origin, copy, topics(topic), ".*decided.*")
    assert [(move.position.group, move.position.offset) for move in report.moved] == [("reads-decided", 20)]
    assert not report.left and committed(copy, decided) == {}


def test_a_group_goes_on_at_the_target_where_it_stopped_at_the_source(
    origin: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = "moves", "moving"
    create_topic(origin, topic, partitions=2)
    append_records(origin, topic, 200, partitions=2)
    mirror(origin, copy, topic, link="moves")
    append_records(origin, topic, 100, partitions=2, first=200)
    with consumer(origin, group, topic) as reader:
        read = consume(reader, 480)
    stands = {p: offset for p, (offset, _) in committed(origin, group).items()}
    assert sum(stands.values()) == len(read)

    first = groups(origin, copy, topics(topic), group)
    assert {m.position.partition: m.position.offset for m in first.moved} == {p: min(o, 200) for p, o in stands.items()}
    assert first.behind and not first.left
    mirror(origin, copy, topic, link="moves")
    tried = groups(origin, copy, topics(topic), group, is_dry_run=True)
    second = groups(origin, copy, topics(topic), group)
    assert tried == second and second.moved and not second.behind
    assert {p: offset for p, (offset, _) in committed(copy, group).items()} == stands
    assert groups(origin, copy, topics(topic), group).moved == ()

    with consumer(copy, group, topic) as reader:
        rest = consume(reader, 600 - len(read))
        at = committed(copy, group)
        busy = groups(origin, copy, topics(topic), group)
        # It joins when it was looked at already: the broker refuses.
        monkeypatch.setattr(duty, "group_states", says_empty)
        joined = groups(origin, copy, topics(topic), group, may_rewind=True)
        monkeypatch.undo()
        assert committed(copy, group) == at
    assert not set(read) & set(rest)
    assert len(read) + len(rest) == len({*read, *rest}) == 600
    for report in (busy, joined):
        assert [left.reason for left in report.left] == ["members"] and not report.moved
    done = groups(origin, copy, topics(topic), group)
    assert {left.reason for left in done.left} == {"ahead"} and not done.moved


def test_a_group_is_moved_back_only_when_asked_and_keeps_its_metadata(origin: str, copy: str) -> None:
    create_topic(origin, "rewound")
    append_records(origin, "rewound", 100)
    mirror(origin, copy, "rewound", link="rewound")
    place = TopicPartition("rewound", 0)
    commit(origin, "rewinding", {place: 40}, "of the source")
    commit(copy, "rewinding", {place: 90})
    left = groups(origin, copy, topics("rewound"), "rewinding")
    assert [x.reason for x in left.left] == ["ahead"] and committed(copy, "rewinding")[place] == (90, "")
    moved = groups(origin, copy, topics("rewound"), "rewinding", may_rewind=True)
    assert [(m.before, m.position.offset) for m in moved.moved] == [(90, 40)]
    assert committed(copy, "rewinding")[place] == (40, "of the source")


def test_groups_of_the_new_protocol_move_too_while_they_are_empty(origin: str, copy: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    create_topic(origin, "modern")
    append_records(origin, "modern", 100)
    mirror(origin, copy, "modern", link="modern")
    place = TopicPartition("modern", 0)

    def read(servers: str, count: int) -> Any:
        reader = confluent.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "modern",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        reader.subscribe(["modern"])
        seen = []
        deadline = time.monotonic() + 30
        while len(seen) < count and time.monotonic() < deadline:
            record = reader.poll(1)
            if record is not None and record.error() is None:
                seen.append(record.offset())
        reader.commit(offsets=[confluent.TopicPartition("modern", 0, seen[-1] + 1)], asynchronous=False)
        return reader, seen

    reader, _ = read(origin, 30)
    reader.close()
    assert len(groups(origin, copy, topics("modern"), "modern").moved) == 1
    reader, seen = read(copy, 10)
    assert seen[0] == 30
    busy = groups(origin, copy, topics("modern"), "modern")
    reader.close()
    assert busy.moved == () and committed(copy, "modern")[place][0] == 40
    commit(origin, "modern", {place: 70})  # now an empty group of type consumer on both sides
    assert [m.position.offset for m in groups(origin, copy, topics("modern"), "modern").moved] == [70]
    reader, seen = read(copy, 5)
    reader.close()
    assert seen[0] == 70


def test_a_group_goes_on_behind_the_last_record_it_read_where_offsets_are_translated(origin: str, copy: str) -> None:
    names = TopicNames(DefaultReplicationPolicy(), "T")
    create_topic(origin, "shifted")
    create_topic(copy, "T.shifted")
    append_records(origin, "shifted", 100)
    append_records(copy, "T.shifted", 7, first=9_000)  # somebody else's
    limits = TransactionLimits(takeover_ms=300, linger_ms=5, commit_ms=50)
    with both(origin, copy, names=names) as (source, target):

        async def run() -> None:
            prepared = await prepare_translated_link(source, target, topics("shifted", names), "shifted")
            await LinkCopier(source, target, translated_offsets(limits), link="shifted").copy(prepared.ends)

        source.run(run)
    commit(origin, "shifting", {TopicPartition("shifted", 0): 30})
    (moved,) = groups(origin, copy, topics("shifted", names), "shifting", link="shifted").moved
    assert (moved.position.upstream, moved.position.offset, moved.before) == (30, 37, -1)
    with consumer(copy, "shifting", "T.shifted") as reader:
        assert consume(reader, 70)[0].startswith(b"0000000030/")


@pytest.mark.long
def test_a_dead_partition_of_consumer_offsets_holds_up_its_own_groups_only(
    origin: str, start_cluster: Callable[..., KafkaCluster]
) -> None:
    """Incident 3 on the target, then the same cluster as the source."""
    config = {
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "50",
        "offsets.retention.minutes": "100",
    }
    with contextlib.closing(start_cluster(nodes=3, heap="320m", broker_config=config)) as cluster:
        servers = cluster.bootstrap_servers
        place = TopicPartition("many", 0)
        for each in (origin, servers):
            admin = kafka.KafkaAdminClient(bootstrap_servers=each)
            admin.create_topics([kafka.admin.NewTopic("many", 1, 3 if each == servers else 1)])
            admin.close()
            append_records(each, "many", 100)
        wanted = [f"many-{n}" for n in range(400)]
        with both(origin, servers) as (source, target):
            everyone = TopicFilter(("many-.*",))
            offsets = {name: {place: CommittedOffset(10, "")} for name in wanted}
            assert not source.run(commit_offsets, source, offsets)[1]

            def round(one: Any, other: Any) -> GroupsReport:
                async def run() -> GroupsReport:
                    return await move_groups(one, other, topics("many"), everyone)

                began = time.monotonic()
                report = one.run(run)
                print(f"{len(report.moved)} moved, {report.unchanged} unchanged, {time.monotonic() - began:.2f} s")
                return report

            assert len(round(source, target).moved) == 400
            assert round(source, target).unchanged == 400
            offsets = {name: {place: CommittedOffset(20, "")} for name in wanted}
            assert not source.run(commit_offsets, source, offsets)[1]
            cluster.kill(3)
            deadline = time.monotonic() + 60
            while not (home := target.run(groups_home, target)).dead and time.monotonic() < deadline:
                time.sleep(0.5)
            hit = {name for name in wanted if home.dead_home_of(name)}
            report = round(source, target)
            assert 0 < len(hit) < 400 and len(report.moved) == 400 - len(hit)
            assert {left.name for left in report.left} == {f"group {name}" for name in hit}
            assert {left.reason for left in report.left} == {"leaderless"}
            assert "__consumer_offsets-" in report.left[0].why and "replicas 3" in report.left[0].why

            offsets = {name: {place: CommittedOffset(30, "")} for name in wanted if name not in hit}
            assert not target.run(commit_offsets, target, offsets)[1]
            back = round(target, source)
            assert len(back.moved) == 400 - len(hit)
            assert {left.reason for left in back.left} == {"leaderless"}
            named = " ".join(left.why for left in back.left)  # from the other cluster's list
            assert all(name in named for name in hit)


def test_settings_follow_the_source(origin: str, copy: str) -> None:
    create_topic(
        origin, "settings", config={"retention.ms": "7000000", "compression.type": "lz4", "min.insync.replicas": "2"}
    )
    create_topic(copy, "A.settings", config={"segment.ms": "900000", "max.message.bytes": "2000000"})

    def round(**how: Any) -> ConfigsReport:
        settle(copy)  # what the round before has changed
        with both(origin, copy, names=RENAMED) as (source, target):

            async def run() -> ConfigsReport:
                return await sync_configs(source, target, topics("settings", RENAMED), **how)

            return source.run(run)

    tried, done, again = round(is_dry_run=True), round(), round()
    assert tried == done and again.changed == ()
    changed = {c.name: (c.before, c.after) for c in done.changed}
    assert changed.pop("retention.ms")[1] == "7000000"
    assert changed == {"compression.type": ("producer", "lz4"), "segment.ms": ("900000", None)}

    configure(origin, "settings", cleanup_policy="compact")
    changed = {c.name: c.after for c in round(exclude=()).changed}
    assert changed["cleanup.policy"] == "compact"
    assert "min.insync.replicas" not in changed or changed["min.insync.replicas"] == "1"


def test_readers_of_a_topic_may_read_its_copy(origin: str, copy: str) -> None:
    create_topic(origin, "guarded")
    kinds = kafka.admin
    topic = kinds.ResourcePattern(kinds.ResourceType.TOPIC, "guarded")
    prefix = kinds.ResourcePattern(kinds.ResourceType.TOPIC, "guar", kinds.ACLResourcePatternType.PREFIXED)

    def acl(user: str, operation: Any, permission: Any = kinds.ACLPermissionType.ALLOW, where: Any = topic) -> Any:
        return kinds.ACL(f"User:{user}", "*", operation, permission, where)

    operations = kinds.ACLOperation
    with changing(origin) as admin:
        admin.create_acls(
            [
                acl("reader", operations.READ),
                acl("owner", operations.ALL),
                acl("writer", operations.WRITE),
                acl("enemy", operations.ALL, kinds.ACLPermissionType.DENY),
                acl("other", operations.READ, where=prefix),
            ]
        )

    def round(**how: Any) -> AclsReport:
        settle(copy)  # what the round before has changed
        with both(origin, copy, names=RENAMED) as (source, target):

            async def run() -> AclsReport:
                return await sync_acls(source, target, topics("guarded", RENAMED), **how)

            return source.run(run)

    expected = {
        TopicAcl("A.guarded", "User:reader", "*", "READ", "ALLOW"),
        TopicAcl("A.guarded", "User:owner", "*", "READ", "ALLOW"),
        TopicAcl("A.guarded", "User:enemy", "*", "ALL", "DENY"),
    }
    tried, done, again = round(is_dry_run=True), round(), round()
    assert set(done.added) == set(tried.added) == expected
    assert {left.reason for left in done.left} == {"write", "prefix"}
    assert again.added == () and again.unchanged == 3


def test_checkpoints_are_written_once_and_read_on(origin: str, copy: str) -> None:
    names = TopicNames(DefaultReplicationPolicy(), "C")
    for servers, topic in ((origin, "checked"), (copy, "C.checked")):
        create_topic(servers, topic, partitions=2)
        append_records(servers, topic, 50, partitions=2)
    commit(origin, "checking", {TopicPartition("checked", 0): 10, TopicPartition("checked", 1): 50}, "m")
    known = KnownCheckpoints("C.checkpoints.internal")

    def round(known: KnownCheckpoints) -> CheckpointsReport:
        with both(origin, copy, names=names) as (source, target):

            async def run() -> CheckpointsReport:
                wanted = TopicFilter(("checking",))
                found = await read_positions(source, target, topics("checked", names), wanted)
                return await emit_checkpoints(target, found, known, 1, replication_factor=3)

            return source.run(run)

    first = round(known)
    assert {(c.partition, c.upstream, c.downstream, c.metadata) for c in first.emitted} == {
        (TopicPartition("C.checked", 0), 10, 10, "m"),
        (TopicPartition("C.checked", 1), 50, 50, "m"),
    }
    assert round(known).emitted == round(KnownCheckpoints(known.topic)).emitted == ()
    commit(origin, "checking", {TopicPartition("checked", 1): 20}, "m")
    assert [c.downstream for c in round(known).emitted] == [20]


def test_heartbeats_go_into_a_compacted_topic(copy: str) -> None:
    with both(copy, copy) as (_, target):

        async def run() -> None:
            for now_ms in (1, 2):
                await emit_heartbeat(target, "A", "B", now_ms, topic="beats", replication_factor=3)

        target.run(run)
        spec = target.run(describe_topics, target, ["beats"])["beats"]
    assert (spec.partitions, spec.replication_factor, spec.config["cleanup.policy"]) == (1, 1, "compact")
    reader = kafka.KafkaConsumer(
        "beats", bootstrap_servers=copy, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    found = [(record.key, record.value) for _, record in zip(range(2), reader)]
    reader.close()
    assert found == [encode_heartbeat(Heartbeat("A", "B", time_ms)) for time_ms in (1, 2)]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("javac"), reason="Kafka's own MirrorClient, from source")
def test_kafkas_own_mirror_client_reads_heartbeats_and_checkpoints(origin: str, copy: str) -> None:
    for servers, topic in ((origin, "read"), (copy, "A.read")):
        create_topic(servers, topic)
        append_records(servers, topic, 50)
    commit(origin, "reading", {TopicPartition("read", 0): 33}, "metadata")
    with both(origin, copy) as (source, target):

        async def run() -> None:
            await emit_heartbeat(target, "A", "B", int(time.time() * 1000), replication_factor=3)
            await emit_heartbeat(source, "B", "A", int(time.time() * 1000), replication_factor=3)
            known = KnownCheckpoints("A.checkpoints.internal")
            found = await read_positions(source, target, topics("read", RENAMED), TopicFilter(("reading",)))
            await emit_checkpoints(target, found, known, 1, replication_factor=3)

        source.run(run)
    create_topic(copy, "A.heartbeats")  # what the engine makes when it copies heartbeats
    classpath = os.pathsep.join(str(jar) for jar in jars("4.2.0", TOOLS_MODULES))
    program = SUPPORT / "MirrorClientCheck.java"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = [java_executable(), quiet, "-cp", classpath, str(program), copy, "A", "reading"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = dict(line.split(" ", 1) for line in printed.splitlines())
    assert found["heartbeats"] == "[A.heartbeats, heartbeats]"
    assert "A.checkpoints.internal" in found["checkpoints"]
    assert (found["upstream"], found["hops"]) == ("[A]", "1")
    assert found["offsets"] == "{A.read-0=33/metadata}"


@pytest.mark.long
def test_what_is_not_granted_is_named_and_little_has_to_be(start_cluster: Callable[..., KafkaCluster]) -> None:
    """Source and target are one cluster here, with a principal for each."""
    cluster = start_guarded(start_cluster, {"reads": "r", "writes": "w"}, heap="320m")
    servers = cluster.bootstrap_servers
    create_topic(servers, "least", config={"segment.ms": "900000"})
    create_topic(servers, "A.least")
    for topic in ("least", "A.least"):
        append_records(servers, topic, 50)
    commit(servers, "least", {TopicPartition("least", 0): 20})
    kinds = kafka.admin
    admin = kinds.KafkaAdminClient(bootstrap_servers=servers)

    def grant(user: str, kind: str, name: str, *operations: str) -> None:
        pattern = kinds.ResourcePattern(kinds.ResourceType[kind], name)
        allow = kinds.ACLPermissionType.ALLOW
        admin.create_acls([kinds.ACL(f"User:{user}", "*", kinds.ACLOperation[o], allow, pattern) for o in operations])

    def as_user(user: str, **more: Any) -> Cluster:
        login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": user, "sasl_plain_password": user[0]}
        place = {"bootstrap_servers": cluster.servers_of("SASL"), "security_protocol": "SASL_PLAINTEXT"}
        return Cluster({**place, **login}, patience_ms=10_000, **more)

    def round() -> tuple[dict[str, int], set[str]]:
        """How much each duty did, and what was said about the rest."""
        settle(servers)
        link, everyone = topics("least", RENAMED), TopicFilter(("least",))
        known = KnownCheckpoints("A.checkpoints.internal")
        with as_user("reads", name="source", names=RENAMED) as source:
            target = as_user("writes", net=source.net, name="target")
            said: set[str] = set()

            async def run() -> dict[str, int]:
                moved = await move_groups(source, target, link, everyone)
                settings = await sync_configs(source, target, link)
                allowed = await sync_acls(source, target, link)
                said.update(left.why for report in (moved, settings, allowed) for left in report.left)
                done = {"groups": len(moved.moved), "configs": len(settings.changed), "acls": len(allowed.added)}
                try:
                    found = await read_positions(source, target, link, everyone)
                    report = await emit_checkpoints(target, found, known, 1, replication_factor=3)
                    return {**done, "checkpoints": len(report.emitted)}
                except OptionError as error:
                    said.add(str(error))
                    return {**done, "checkpoints": 0}

            done = source.run(run)
            target.close()
            return done, said

    nothing = dict.fromkeys(("groups", "configs", "acls", "checkpoints"), 0)
    grant("reads", "GROUP", "least", "DESCRIBE")
    grant("reads", "TOPIC", "least", "DESCRIBE")
    grant("writes", "TOPIC", "A.least", "DESCRIBE")
    done, said = round()
    assert done == nothing
    for words in (
        "GroupAuthorizationFailed",
        "grant DescribeConfigs",
        "Describe on Cluster",
        "grant Create, Describe, Read",
    ):
        assert any(words in why for why in said), (words, said)
    grant("reads", "TOPIC", "least", "DESCRIBE_CONFIGS")
    grant("writes", "GROUP", "least", "DESCRIBE")
    grant("writes", "TOPIC", "A.least", "DESCRIBE_CONFIGS")
    for user in ("reads", "writes"):
        grant(user, "CLUSTER", "kafka-cluster", "DESCRIBE")
    done, said = round()
    assert done == nothing
    for words in ("grant Read on the group", "grant AlterConfigs", "grant Alter on Cluster"):
        assert any(words in why for why in said), (words, said)
    grant("writes", "GROUP", "least", "READ")
    grant("writes", "TOPIC", "A.least", "READ", "ALTER_CONFIGS")
    grant("writes", "CLUSTER", "kafka-cluster", "ALTER")
    grant("writes", "TOPIC", "A.checkpoints.internal", "CREATE", "DESCRIBE", "READ", "WRITE")
    done, said = round()
    assert done == {"groups": 1, "configs": 1, "acls": 2, "checkpoints": 1} and not said
    admin.close()
