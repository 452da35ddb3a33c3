"""A mirror with exactly the rights of the table (doctor/rights.py, guides/security.md), and with one of them less."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as Errors
import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.structs import TopicPartition

from spark_integration.cli.doctor import flow_subjects
from spark_integration.mirror.flow_links import duties_of, heartbeats_of
from support.guarded_cluster import start_guarded
from support.mirror_link import append_records, configure, create_topic
from support.raising_copier import LinkCopier
from support.settled import changing
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.mm2_positions import whether_mm2_runs
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.mirror.verify.outcome import Outcome
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.ops.doctor.checkup import Checkup
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.link_examination import examine
from tolerant_client.ops.doctor.rights import RIGHTS, Duty
from tolerant_client.ops.mm2.flows import Flow, read_flows
from tolerant_client.security.kafka_config import kafka_python_config
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PASSWORD = "not-secret"
TOPIC, GROUP = "orders", "billing"
COPIES = {"source": [TOPIC], "target": [f"A.{TOPIC}", "A.heartbeats"]}
IMPLYING = {"Describe": {"Read", "Write", "Delete", "Alter"}, "DescribeConfigs": {"AlterConfigs"}}

# What a link that runs already does not need in one round: the doctor tells of it before the mirror has to.
UNUSED = {
    *(
        ("topic", name, operation)
        for name in COPIES["target"]
        for operation in ("Create", "Alter", "AlterConfigs", "Delete")
    ),
    *(("topic", "tolerant-mirror-", operation) for operation in ("Create", "Write", "DescribeConfigs")),
    *(("topic", "A.checkpoints.internal", operation) for operation in ("Create", "Write")),
    ("topic", "heartbeats", "Create"),
    ("topic", "A.heartbeats", "Write"),
    ("topic", TOPIC, "Describe"),  # a link that waits for topics may start with none
    ("group", GROUP, "Read"),
    ("cluster", "kafka-cluster", "Alter"),
}

Grant = tuple[str, str, str, str]  # role, resource, name, operation


def guarded(factory: Callable[..., KafkaCluster]) -> KafkaCluster:
    """User mirror may do what an ACL allows; the broker and this test (ANONYMOUS) may do everything."""
    return start_guarded(factory, {"mirror": PASSWORD})


def grants() -> list[Grant]:
    """What the table gives a link with every duty, but markers, old brokers and MirrorMaker 2's own offsets."""
    found: dict[Grant, None] = {}
    for right in RIGHTS:
        if right.duty in (Duty.MARKERS, Duty.MARKERS_IF_ALLOWED, Duty.TAKE_OVER) or right.before is not None:
            continue
        copied = [GROUP] if right.resource == "group" else COPIES[right.role]
        names = ["kafka-cluster"] if right.resource == "cluster" else [right.name] if right.name else copied
        found |= {
            (right.role, right.resource, name, operation): None for name in names for operation in right.operations
        }
    return list(found)


def kafka_name(operation: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()


@dataclass
class Link:
    """Two guarded clusters and a file of the flow A->B between them, of user mirror."""

    clusters: dict[str, KafkaCluster]
    file: Path

    @property
    def flow(self) -> Flow:
        (flow,) = read_flows(self.file).flows
        return flow

    def acl(self, grant: Grant) -> ACL:
        _, resource, name, operation = grant
        pattern = ACLResourcePatternType.PREFIXED if name.endswith("-") else ACLResourcePatternType.LITERAL
        kind = ResourceType[resource.replace("-", "_").upper()]
        allowed = ACLOperation[kafka_name(operation)]
        return ACL("User:mirror", "*", allowed, ACLPermissionType.ALLOW, ResourcePattern(kind, name, pattern))

    def grant(self) -> None:
        for role, cluster in self.clusters.items():
            with changing(cluster.bootstrap_servers) as admin:
                admin.create_acls([self.acl(grant) for grant in grants() if grant[0] == role])

    @contextmanager
    def without(self, *lacking: Grant) -> Iterator[None]:
        (role,) = {grant[0] for grant in lacking}
        acls = [self.acl(grant) for grant in lacking]
        filters = [
            ACLFilter(
                acl.principal, acl.host, acl.operation, acl.permission_type,
                ResourcePatternFilter(
                    acl.resource_pattern.resource_type, acl.resource_pattern.resource_name, acl.resource_pattern.pattern_type
                ),
            )
            for acl in acls
        ]  # fmt: skip
        servers = self.clusters[role].bootstrap_servers
        with changing(servers) as admin:
            admin.delete_acls(filters)
        try:
            yield
        finally:
            with changing(servers) as admin:
                admin.create_acls(acls)

    @contextmanager
    def both(self) -> Iterator[tuple[Cluster, Cluster]]:
        """As user mirror."""
        flow = self.flow
        config = kafka_python_config(flow.source)
        with Cluster(config, name="source", names=flow.names, patience_ms=15_000) as source:
            target = Cluster(kafka_python_config(flow.target), source.net, name="target", patience_ms=15_000)
            try:
                yield source, target
            finally:
                target.close()

    def run(self) -> list[str]:
        """Copies what there is and does every duty once; everything that was said about what could not be done."""
        flow, said = self.flow, []
        with self.both() as (source, target):

            async def copy() -> tuple[str, ...]:
                prepared = await prepare_link(source, target, flow.link_topics, flow.link, flow.policy)
                limits = CopyLimits(patience_ms=8_000)
                copier = LinkCopier(
                    source, target, identical_offsets(prepared.producer_id), limits, link=flow.link, policy=flow.policy
                )
                await copier.copy(prepared.ends)
                return prepared.warnings

            try:
                said += source.run(copy)
            except Errors.KafkaError as error:
                return [str(error)]
            for duty in duties_of(flow):
                try:
                    report: Any = source.run(duty.round, source, target, ())
                    said += [f"{duty.name}: {left.why}" for left in getattr(report, "left", ()) if left.is_failure]
                except Errors.KafkaError as error:
                    said.append(f"{duty.name}: {error}")
        for back in read_flows(self.file).heartbeats_only:
            with Cluster(kafka_python_config(back.target), name="source", patience_ms=15_000) as origin:
                try:
                    origin.run(heartbeats_of(back).round, origin, origin, ())
                except Errors.KafkaError as error:
                    said.append(f"heartbeats back: {error}")
        return said

    def examined(self) -> Checkup:
        (subject,) = flow_subjects(self.file)
        return examine(replace(subject, seconds=0))

    def lacking(self) -> list[Finding]:
        """What the doctor says of rights, notes left out."""
        findings = self.examined().findings
        return [one for one in findings if one.check == "rights" and one.severity is not Severity.INFO]


@pytest.fixture(scope="module")
def link(start_cluster: Callable[..., KafkaCluster], tmp_path_factory: pytest.TempPathFactory) -> Link:
    clusters = {role: guarded(start_cluster) for role in ("source", "target")}
    lines = ["clusters = A, B", "A->B.enabled = true", f"A->B.topics = {TOPIC}", "replication.factor = 1"]
    lines += ["sync.group.offsets.enabled = true"]
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="mirror" password="{PASSWORD}";'
    for alias, cluster in zip("AB", clusters.values()):
        lines += [
            f"{alias}.bootstrap.servers = {cluster.servers_of('SASL')}",
            f"{alias}.security.protocol = SASL_PLAINTEXT",
            f"{alias}.sasl.mechanism = PLAIN",
            f"{alias}.sasl.jaas.config = {login}",
        ]
    file = tmp_path_factory.mktemp("least") / "mm2.properties"
    file.write_text("\n".join(lines))
    link = Link(clusters, file)
    link.grant()
    origin = clusters["source"].bootstrap_servers
    create_topic(origin, TOPIC, 2, {"segment.ms": "900000"})
    append_records(origin, TOPIC, 50, partitions=2)
    producer = kafka.KafkaProducer(bootstrap_servers=origin, transactional_id="orders-app")
    producer.init_transactions()
    for ends in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(3):
            producer.send(TOPIC, b"in a transaction", partition=number % 2)
        ends()
    producer.close()
    with Cluster({"bootstrap_servers": origin}) as cluster:  # another link copies into the source
        of_c = LinkTopics.of("of-c").to_json()
        cluster.run(update_control, cluster, "C-A", lambda now: replace(now, source_cluster_id="of-c", topics=of_c))
    admin = kafka.KafkaAdminClient(bootstrap_servers=origin)
    admin.delete_records({TopicPartition(TOPIC, 0): 7})  # its log starts above 0
    admin.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=origin, group_id=GROUP, enable_auto_commit=False)
    consumer.assign([TopicPartition(TOPIC, 1)])
    consumer.commit({TopicPartition(TOPIC, 1): kafka.OffsetAndMetadata(20, "", -1)})
    consumer.close(autocommit=False)
    return link


def test_a_link_with_exactly_the_rights_of_the_table_does_all_its_duties(link: Link) -> None:
    assert [one.evidence for one in link.lacking()] == []  # while nothing is on the target yet
    assert link.run() == []
    origin = link.clusters["source"].bootstrap_servers
    with changing(origin) as admin:
        admin.create_partitions({TOPIC: kafka.admin.NewPartitions(3)})
    configure(origin, TOPIC, segment_ms="800000")
    append_records(origin, TOPIC, 10, partitions=3, first=50)
    (grown,) = link.run()
    assert "the missing ones are added on the target" in grown
    assert [one.evidence for one in link.lacking()] == []
    with link.both() as (source, target):
        report = source.run(partial(verify, source, target, link.flow.link_topics, allow_behind=True))
        assert report.identical and {p.topic for p in report.partitions} == set(COPIES["target"])
        control: LinkControl = target.run(read_control, target, link.flow.link)
        assert control.source_cluster_id and control.producer_ids


@pytest.mark.parametrize(
    ("lacking", "words", "thing"),
    [
        (
            [("source", "topic", "tolerant-mirror-", "Read"), ("source", "topic", "tolerant-mirror-", "Describe")],
            "runs in a circle cannot be seen",
            f"topic {CONTROL_TOPIC}",
        ),
        (
            [("target", "topic", "tolerant-mirror-", "Read")],
            "Link A-B does not start, since whether an operator has paused, limited or promoted the link is unknown",
            "topic tolerant-mirror-claims",
        ),
        (
            [("target", "topic", "A.checkpoints.internal", "Read")],
            "A.checkpoints.internal of the target cannot be read",
            "topic A.checkpoints.internal",
        ),
    ],
)
def test_what_may_not_be_done_is_said_by_the_mirror_and_by_the_doctor(
    link: Link, lacking: list[Grant], words: str, thing: str
) -> None:
    assert link.run() == []
    with link.without(*lacking):
        said = link.run()
        assert any(words in text and "grant" in text for text in said), said
        found = link.lacking()
        assert any(thing in one.thing for one in found), found
        assert all("kafka-acls.sh --bootstrap-server " in one.remedy for one in found)


def test_what_may_not_be_read_on_the_source_is_not_compared_and_no_difference(link: Link) -> None:
    assert link.run() == []
    append_records(link.clusters["source"].bootstrap_servers, TOPIC, 2, first=10_000)
    with link.without(("source", "topic", TOPIC, "Read")), link.both() as (source, target):
        report = source.run(partial(verify, source, target, link.flow.link_topics))
    found = [p for p in report.partitions if p.topic == f"A.{TOPIC}"]
    assert found and {p.outcome for p in found} <= {Outcome.NOT_COMPARED, Outcome.IDENTICAL}, found
    assert any("could not be read" in gap.reason for p in found for gap in p.not_compared), found
    assert link.run() == []  # they are copied for the tests that follow


def test_control_that_may_not_be_read_is_not_overwritten(link: Link) -> None:
    """A mirror with Write alone would take back what an operator has said, and hears no promotion."""
    flow, servers = link.flow, link.clusters["target"].bootstrap_servers
    with Cluster({"bootstrap_servers": servers}, name="target") as operator:
        stopped: LinkControl = operator.run(
            update_control, operator, flow.link, lambda now: replace(now, paused=frozenset({"x"}))
        )
        with link.without(("target", "topic", "tolerant-mirror-", "Read")):
            (refused,) = link.run()
            assert "does not start" in refused and "where operators pause and promote links; grant us" in refused
            with link.both() as (source, target):
                seen = source.run(read_status, source, target, flow.link, flow.link_topics)
                planned = source.run(plan_everything, source, target, flow.link, flow.link_topics)
        unknown = "whether an operator has paused, limited or promoted the link is unknown: we may not read topic"
        for report, texts in ((seen, [reason.text for reason in seen.reasons]), (planned, planned.refusals)):
            assert report.exit_code == 3 and any(text.startswith(unknown) for text in texts), texts
        assert operator.run(read_control, operator, flow.link) == stopped


def test_that_mirrormaker_2_may_run_unseen_is_in_the_way_of_a_takeover(link: Link) -> None:
    """Brokers leave a group that we may not describe out of their lists."""
    with link.both() as (source, target):
        (text,) = source.run(whether_mm2_runs, target, "A")
        assert text.endswith("grant us Describe on group A-mm2 of the target")


@pytest.mark.long
@pytest.mark.parametrize("grant", grants(), ids=lambda grant: "-".join(grant))
def test_each_right_that_is_missing_is_named(link: Link, grant: Grant) -> None:
    role, resource, name, operation = grant
    same = {other[3] for other in grants() if other[:3] == grant[:3]}
    implying = {(*grant[:3], other) for other in same & IMPLYING.get(operation, set())}
    append_records(link.clusters["source"].bootstrap_servers, TOPIC, 1, partitions=2)
    with link.without(grant, *implying):
        found = link.lacking()
        said = link.run()
    print(grant, sorted(implying), "\n  mirror:", said, "\n  doctor:", [(one.thing, one.evidence) for one in found])
    # What is there need not be created, and of transactional ids brokers tell Describe only.
    if operation != "Create" and (resource, operation) != ("transactional-id", "Write"):
        assert any(operation in one.remedy for one in found), found
    assert said or grant[1:] in UNUSED, "the mirror is silent"


def test_a_link_is_promoted_with_the_rights_of_the_table(link: Link) -> None:
    """The last test here: the link copies nothing afterwards."""
    flow = link.flow
    with link.both() as (source, target):
        report: Any = source.run(promote, source, target, flow.link, flow.link_topics, flow.groups)
        assert report.is_done and not report.blockers
        # What a link with these rights may not read it cannot have written; that it was not looked at is said all the same.
        assert [text for text in report.warnings if " carry records of the link is unknown" not in text] == []
        assert report.groups is not None and not [left for left in report.groups.left if left.is_failure]
    findings = link.examined().findings
    assert not [one for one in findings if one.check in ("topics", "retention") and one.severity is Severity.ERROR]
