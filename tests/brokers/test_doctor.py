"""The doctor on real brokers with planted faults: what it finds, what it leaves alone, and that it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    NewTopic,
    ResourcePattern,
    ResourceType,
)
from kafka.protocol.admin import AlterClientQuotasRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.guarded_cluster import start_guarded
from support.mirror_link import append_records, both, create_topic, mirror, prepare_translated_link, topics_of
from support.raising_copier import LinkCopier
from support.settled import changing, settle
from tolerant_client import KafkaProducer
from tolerant_client.cluster.admin.asking import raise_for
from tolerant_client.cluster.admin.configs import alter_configs
from tolerant_client.cluster.admin.coordinators import TRANSACTION, Coordinators
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.ops.doctor import link_checks
from tolerant_client.ops.doctor.checkup import Checkup
from tolerant_client.ops.doctor.describe import describe_cluster
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.link_examination import Subject, examine
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, partition_of
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PASSWORD = "not-secret"
MINUTE_MS = 60_000


def examined(*servers: str, topics: str = "doctor-none", seconds: float = 0, **options: Any) -> Checkup:
    """Source and target, or one cluster."""
    names = ("source", "target") if len(servers) == 2 else ("cluster",)
    clusters = {name: {"bootstrap.servers": address} for name, address in zip(names, servers)}
    return examine(Subject(clusters, LinkTopics.of(topics), seconds=seconds, **options))


def found(checkup: Checkup, check: str, thing: str, severity: Severity | None = None) -> Finding:
    """The one finding of a check about a thing."""
    (one,) = [f for f in checkup.findings if f.check == check and thing in f.thing and severity in (None, f.severity)]
    return one


def none_failed(checkup: Checkup) -> bool:
    return all(run.outcome == "made" for run in checkup.runs) and bool(checkup.runs)


def now_ms() -> int:
    return int(time.time() * 1000)


def test_healthy_link_has_notes_and_warnings_of_its_single_brokers_only(source: str, target: str) -> None:
    create_topic(source, "doctor-healthy", 2)
    append_records(source, "doctor-healthy", 100, partitions=2, timestamp=now_ms())
    before = topics_of(source), topics_of(target)
    checkup = examined(source, target, topics="doctor-healthy")
    assert none_failed(checkup)
    assert {f.check for f in checkup.findings if f.severity is not Severity.INFO} <= {"durability", "log-dirs"}
    assert checkup.exit_code == 3
    assert (
        found(checkup, "topics", "doctor-healthy").evidence == "not on the target yet: a mirror creates what is missing"
    )
    assert (topics_of(source), topics_of(target)) == before  # nothing was created
    mirror(source, target, "doctor-healthy", "doctor-healthy")
    copied = examined(source, target, topics="doctor-healthy", link="doctor-healthy")
    assert none_failed(copied)
    assert {f.check for f in copied.findings} <= {"durability", "log-dirs", "versions", "control"}
    assert found(copied, "control", "doctor-healthy").evidence.startswith("no mirror of link doctor-healthy")


def test_command_prints_one_document_and_exits_by_the_worst_finding(source: str, target: str) -> None:
    create_topic(source, "doctor-command")
    arguments = ["--source", source, "--target", source, "--topics", "doctor-command", "--seconds", "0"]
    result = CliRunner().invoke(app, ["doctor", *arguments, "--json"])
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exit_code"], report["outcome"], report["version"]) == (1, 1, "errors", 1)
    same = [f for f in report["findings"] if f["check"] == "same-cluster"]
    assert [(f["severity"], f["cluster"]) for f in same] == [("error", "link")]
    assert {c["name"]: c["is_examined"] for c in report["clusters"]} == {"source": True, "target": True}
    table = CliRunner().invoke(app, ["doctor", *arguments, "--brief"], env={"COLUMNS": "200"})
    assert table.exit_code == 1 and "same-cluster" in table.stdout and "ERRORS: " in table.stdout


def test_mirror_maker_file_is_taken_with_its_names_and_links(source: str, target: str, tmp_path: Path) -> None:
    create_topic(source, "doctor-renamed", 2)
    create_topic(target, "A.doctor-renamed", config={"message.timestamp.type": "LogAppendTime"})
    file = tmp_path / "mm2.properties"
    file.write_text(
        f"clusters = A, B\nA.bootstrap.servers = {source}\nB.bootstrap.servers = {target}\n"
        "A->B.enabled = true\nA->B.topics = doctor-ren.*, doctor-not-there\n"
    )
    result = CliRunner().invoke(app, ["doctor", "--config", str(file), "--seconds", "0", "--json"])
    report = json.loads(result.stdout)
    assert (result.exit_code, report["exit_code"]) == (1, 1)
    (link,) = report["links"]
    assert link["link"] == "A-B"
    refused = [f["thing"] for f in link["findings"] if f["check"] == "topics" and f["severity"] == "error"]
    assert refused == ["topic A.doctor-renamed"]
    with pytest.raises(OptionError, match="leave the other options out"):
        CliRunner().invoke(app, ["doctor", "--config", str(file), "--source", source], catch_exceptions=False)


def test_topics_that_cannot_hold_the_copy_are_named_with_the_setting(source: str, target: str) -> None:
    create_topic(source, "doctor-stamped")
    create_topic(target, "doctor-stamped", config={"message.timestamp.type": "LogAppendTime"})
    create_topic(source, "doctor-small", config={"max.message.bytes": "2000000"})
    create_topic(target, "doctor-small", 3, config={"max.message.bytes": "100000", "cleanup.policy": "compact"})
    create_topic(source, "doctor-unclean", config={"unclean.leader.election.enable": "true"})
    checkup = examined(source, target, topics="doctor-(stamped|small|unclean)")
    assert none_failed(checkup)
    stamped = found(checkup, "topics", "doctor-stamped")
    assert (
        stamped.severity is Severity.ERROR and stamped.remedy == "Set message.timestamp.type=CreateTime on the target"
    )
    assert "100000 bytes on the target and 2000000" in found(checkup, "sizes", "doctor-small").evidence
    assert "compacted on the target only" in found(checkup, "topics", "doctor-small", Severity.WARNING).evidence
    assert (
        "3 partitions on the target and 1 on the source"
        in found(checkup, "topics", "doctor-small", Severity.INFO).evidence
    )
    unclean = found(checkup, "durability", "doctor-unclean", Severity.WARNING)
    assert "unclean.leader.election.enable=true" in unclean.evidence


def test_more_in_sync_replicas_than_there_are_is_an_error_of_brokers_that_refuse_writes(source: str) -> None:
    """As those before 3.7 do."""
    create_topic(source, "doctor-min-isr", config={"min.insync.replicas": "2"})
    with KafkaProducer(bootstrap_servers=source, acks="all", retries=0, enable_idempotence=False) as producer:
        sent = producer.send("doctor-min-isr", b"x")
        producer.flush(30)
    checkup = examined(source, topics="doctor-min-isr")
    errors = {f.check for f in checkup.findings if f.severity is Severity.ERROR and "doctor-min-isr" in f.thing}
    assert errors == ({"durability", "partitions"} if sent.failed() else set())


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_topic_of_the_link_that_the_source_has_deleted_is_an_error(
    source: str, target: str, is_translated: bool
) -> None:
    link = f"doctor-gone-{is_translated}".lower()
    for name in (f"{link}-kept", f"{link}-lost"):
        create_topic(source, name)
        append_records(source, name, 5)
    mirror(source, target, f"{link}-.*", link, is_translated=is_translated)
    with Cluster({"bootstrap_servers": source}, name="source") as cluster:
        cluster.run(delete_topics, cluster, [f"{link}-lost"])
    checkup = examined(source, target, topics=f"{link}-.*", link=link, is_translated=is_translated)
    told = [f.evidence for f in checkup.findings if f.check == "control" and f.severity is Severity.ERROR]
    assert [text.partition(": the source no longer")[0] for text in told] == [f"blocked: {link}-lost-0"], told


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_link_whose_control_is_gone_is_an_error(source: str, target: str, is_translated: bool) -> None:
    topic = link = f"doctor-forgotten-{is_translated}".lower()
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link, is_translated=is_translated)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [CONTROL_TOPIC])
    told = found(examined(source, target, topics=topic, link=link), "control", f"link {link}", Severity.ERROR)
    assert told.evidence.startswith("its control is gone") and told.remedy.endswith(
        "failover --target TARGET --topics REGEX"
    )
    named = examined(source, target, link=link, asks_control=True, is_named=True)
    assert found(named, "control", f"link {link}", Severity.ERROR).evidence.startswith("its control is gone, start")
    assert not [f for f in named.findings if f.check == "topics"], "what the link copies is unknown"


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks one after the other show what stands, since no mirror runs."""
    monkeypatch.setattr(link_checks, "_PROGRESS_S", 0)


@pytest.mark.usefixtures("short_looks")
def test_records_that_retention_took_and_will_take_are_counted(source: str, target: str) -> None:
    create_topic(source, "doctor-lost", config={"retention.ms": str(60 * MINUTE_MS), "segment.ms": str(60 * MINUTE_MS)})
    append_records(source, "doctor-lost", 100, timestamp=now_ms())
    mirror(source, target, "doctor-lost", "doctor-lost")
    append_records(source, "doctor-lost", 60, timestamp=now_ms() - 58 * MINUTE_MS)
    danger = examined(source, target, topics="doctor-lost", link="doctor-lost")
    assert "60 offsets of doctor-lost-0 wait" in found(danger, "retention", "link doctor-lost").evidence
    assert none_failed(danger)
    assert (
        "60 uncopied offsets of doctor-lost-0 may be deleted in"
        in found(danger, "retention", "topic doctor-lost").evidence
    )

    admin = kafka.KafkaAdminClient(bootstrap_servers=source)
    admin.delete_records({TopicPartition("doctor-lost", 0): 130})
    admin.close()
    lost = examined(source, target, topics="doctor-lost", link="doctor-lost")
    errors = [f.evidence for f in lost.findings if f.check == "retention" and f.severity is Severity.ERROR]
    assert any("doctor-lost-0 offsets 100 to 130 are gone" in evidence for evidence in errors)


def test_target_that_is_longer_than_its_source_is_an_error(source: str, target: str) -> None:
    for servers, count in ((source, 5), (target, 9)):
        create_topic(servers, "doctor-ahead")
        append_records(servers, "doctor-ahead", count, timestamp=now_ms())
    ahead = found(examined(source, target, topics="doctor-ahead"), "topics", "doctor-ahead", Severity.ERROR)
    assert "up to offset 9 there, and up to 5 on the source" in ahead.evidence


def test_a_link_without_topics_is_examined_by_its_control_and_what_blocks_it_is_told_though_no_mirror_runs(
    source: str, target: str
) -> None:
    for topic in ("doctor-mine", "doctor-others"):
        create_topic(source, topic, 2)
        append_records(source, topic, 5, partitions=2, timestamp=now_ms())
        mirror(source, target, topic, topic)
    for topic in ("doctor-mine", "doctor-others"):
        with KafkaProducer(bootstrap_servers=target) as stranger:
            stranger.send(topic, b"foreign", partition=0).get(30)
    asked = ["doctor", "--source", source, "--target", target, "--link", "doctor-mine", "--seconds", "0", "--json"]

    def told(*more: str) -> list[tuple[str, str, str]]:
        report = json.loads(CliRunner().invoke(app, [*asked, *more]).stdout)
        return [(f["severity"], f["thing"], f["evidence"]) for f in report["findings"] if "doctor-" in f["thing"]]

    blocked, idle = told()
    assert blocked[:2] == ("error", "link doctor-mine"), "nothing of the other link's topics"
    assert blocked[2].startswith("blocked: The target log of doctor-mine-0 has a foreign record batch at offset 5")
    assert idle[:2] == ("warning", "link doctor-mine") and idle[2].startswith("no mirror of link doctor-mine")
    assert "doctor-others" in told("--topics", "doctor-others")[0][2]
    ((severity, thing, evidence),) = told("--link", "doctor-mistyped")
    assert (severity, thing) == ("error", "link doctor-mistyped"), "no topic is judged as one of it"
    assert evidence.startswith("Link doctor-mistyped was never started on this target") and "doctor-mine" in evidence


def test_a_link_that_another_one_leaves_no_topic_is_an_error_before_its_first_start(source: str, target: str) -> None:
    topic = "doctor-taken"
    create_topic(source, topic)
    append_records(source, topic, 10)
    mirror(source, target, topic, "doctor-owner")
    for link, findings in (("doctor-owner", 0), ("doctor-second", 1)):
        checkup = examined(source, target, topics=topic, link=link)
        errors = [f for f in checkup.findings if (f.check, f.severity) == ("control", Severity.ERROR)]
        assert len(errors) == findings and none_failed(checkup)
    assert f"Link doctor-owner copies into topic {topic}" in errors[0].evidence


@pytest.mark.long
@pytest.mark.usefixtures("short_looks")
def test_positions_of_a_renamed_link_with_translated_offsets_are_those_of_its_map(source: str, target: str) -> None:
    create_topic(source, "doctor-mapped")
    create_topic(target, "A.doctor-mapped")
    append_records(target, "A.doctor-mapped", 50, timestamp=now_ms())  # of somebody else
    append_records(source, "doctor-mapped", 10, timestamp=now_ms())
    topics = LinkTopics(TopicFilter(("doctor-mapped",)), TopicNames(DefaultReplicationPolicy(), "A"))
    with both(source, target, names=topics.names) as (origin, there):

        async def copy() -> None:
            prepared = await prepare_translated_link(origin, there, topics, "doctor-map")
            await LinkCopier(origin, there, translated_offsets(), link="doctor-map").copy(prepared.ends)

        origin.run(copy)
    append_records(source, "doctor-mapped", 5, first=10, timestamp=now_ms())
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checkup = examine(Subject(clusters, topics, "doctor-map", seconds=0))
    assert none_failed(checkup)
    assert "5 offsets of A.doctor-mapped-0 wait" in found(checkup, "retention", "link doctor-map").evidence
    assert not [f for f in checkup.findings if f.check == "topics"]


def test_a_claims_topic_that_forgets_running_mirrors_is_named_with_the_command_that_mends_it(
    source: str, target: str
) -> None:
    """An hour less ten seconds: that harms nobody who shares the target."""
    create_topic(source, "doctor-claims")
    mirror(source, target, "doctor-claims", "doctor-claims")

    def told() -> list[str]:
        checkup = examined(source, target, topics="doctor-claims", link="doctor-claims")
        assert none_failed(checkup)
        return [f"{f.evidence}; {f.remedy}" for f in checkup.findings if f.thing == f"topic {CLAIMS_TOPIC}"]

    assert told() == []
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:

        def keep(retention_ms: str) -> list[str]:
            cluster.run(alter_configs, cluster, {CLAIMS_TOPIC: {"retention.ms": retention_ms}})
            settle(target)
            return told()

        try:
            (text,) = keep("3590000")
        finally:
            assert keep("3600000") == []
    assert "it has retention.ms=3590000: running mirrors are not seen" in text
    assert text.endswith(f"--entity-name {CLAIMS_TOPIC} --add-config retention.ms=3600000")


def test_open_transactions_are_told_from_hanging_ones(source: str) -> None:
    create_topic(source, "doctor-open")
    producer = KafkaProducer(bootstrap_servers=source, transactional_id="doctor-transaction")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("doctor-open", b"early", timestamp_ms=now_ms() - 20 * MINUTE_MS).get(timeout=30)
    producer.send("doctor-open", b"late", timestamp_ms=now_ms() - 20 * MINUTE_MS).get(timeout=30)
    checkup = examined(source, topics="doctor-open")
    assert none_failed(checkup)
    one = found(checkup, "transactions", "doctor-transaction")
    assert one.severity is Severity.INFO and "2 offsets of doctor-open-0 wait after it" in one.evidence
    producer.abort_transaction()
    producer.close()
    assert not [f for f in examined(source, topics="doctor-open").findings if f.check == "transactions"]


def test_times_ahead_of_our_clock_are_named(source: str) -> None:
    create_topic(source, "doctor-future", config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    append_records(source, "doctor-future", 3, timestamp=now_ms() + 600 * MINUTE_MS)
    create_topic(source, "doctor-present")
    append_records(source, "doctor-present", 3, timestamp=now_ms())
    checkup = examined(source, topics="doctor-(future|present)")
    assert found(checkup, "clocks", "topic doctor-future").thing == "topic doctor-future"


def test_quotas_of_our_client_id_are_shown_and_others_are_not(source: str) -> None:
    entry = AlterClientQuotasRequest.EntryData

    def limit(client_id: str, rate: float | None) -> None:
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
                    ops=[entry.OpData(key="consumer_byte_rate", value=rate or 0.0, remove=rate is None)],
                )
            ],
            validate_only=False,
        )
        with Cluster({"bootstrap_servers": source}) as cluster:
            assert cluster.run(cluster.send, request).entries[0].error_code == 0

    names = ("tolerant-client", "somebody-else")
    for name in names:
        limit(name, 5e6)
    settle(source)
    try:
        checkup = examined(source)
    finally:
        for name in names:
            limit(name, None)
    assert found(checkup, "quotas", "quota of").thing == "quota of client-id tolerant-client"
    assert "consumer_byte_rate 4.8 MiB/s" in found(checkup, "quotas", "quota of").evidence


def test_ledger_and_control_of_the_link_are_read(source: str, target: str) -> None:
    create_topic(source, "doctor-link")
    row = dict(
        topic="doctor-link", partition=0, from_offset=10, until_offset=25, reason=LossReason.RETENTION, detail=""
    )
    with Cluster({"bootstrap_servers": target}) as cluster:

        async def write() -> None:
            await Ledger(cluster, "doctor").write([LedgerRow(time_ms=now_ms(), link="doctor", **row)])
            control = LinkControl(paused_partitions=frozenset({TopicPartition("doctor-link", 0)}), bytes_per_s=1 << 20)
            await update_control(cluster, "doctor", lambda _: control)

        cluster.run(write)
    checkup = examined(source, target, topics="doctor-link", link="doctor")
    assert none_failed(checkup)
    assert "15 offsets not on the target (retention)" in found(checkup, "ledger", "doctor-link").evidence
    assert found(checkup, "control", "link doctor", Severity.WARNING).evidence == "paused: partition doctor-link-0"
    assert found(checkup, "control", "link doctor", Severity.INFO).evidence == "it copies at most 1.0 MiB/s"
    other = examined(source, target, topics="doctor-link", link="another")
    assert not [f for f in other.findings if f.check in ("ledger", "control")]


# -- rights -------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """User mirror may do what an ACL allows; the brokers and this test (ANONYMOUS) may do everything."""
    # Without verification a transaction can be made to hang (KIP-890).
    return start_guarded(start_cluster, {"mirror": PASSWORD}, transaction_partition_verification_enable="false")


def as_mirror(guarded: KafkaCluster, password: str = PASSWORD, mechanism: str = "PLAIN") -> dict[str, str]:
    kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "bootstrap.servers": guarded.servers_of("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'org.apache.kafka.common.security.{kind} required username="mirror" password="{password}";',
    }


def allow(
    guarded: KafkaCluster, kind: ResourceType, name: str, *operations: ACLOperation, prefixed: bool = False
) -> None:
    pattern = ACLResourcePatternType.PREFIXED if prefixed else ACLResourcePatternType.LITERAL
    resource = ResourcePattern(kind, name, pattern)
    with changing(guarded.bootstrap_servers) as admin:
        admin.create_acls(
            [ACL("User:mirror", "*", operation, ACLPermissionType.ALLOW, resource) for operation in operations]
        )


def test_missing_rights_come_with_the_command_that_grants_them(source: str, guarded: KafkaCluster) -> None:
    create_topic(source, "doctor-rights")
    create_topic(guarded.bootstrap_servers, "doctor-rights")
    allow(guarded, ResourceType.TOPIC, "doctor-rights", ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS)

    def look() -> Checkup:
        clusters = {"source": {"bootstrap.servers": source}, "target": as_mirror(guarded)}
        return examine(Subject(clusters, LinkTopics.of("doctor-rights"), seconds=0))

    def lacking(checkup: Checkup) -> dict[str, str]:
        return {
            f.evidence.partition(" ")[0]: f.remedy
            for f in checkup.findings
            if f.check == "rights" and f.severity is not Severity.INFO and "doctor-rights" in f.thing
        }

    checkup = look()
    remedies = lacking(checkup)
    assert remedies.keys() == {"Write", "Delete", "Alter"}
    grant = f"kafka-acls.sh --bootstrap-server {guarded.servers_of('SASL')} --command-config admin.properties --add"
    assert remedies["Write"] == f"{grant} --allow-principal User:mirror --operation Write --topic doctor-rights"
    ids = found(checkup, "rights", "transactional id")
    assert ids.remedy.endswith("--transactional-id tolerant-mirror- --resource-pattern-type prefixed")
    own = found(checkup, "rights", CONTROL_TOPIC)
    assert own.severity is Severity.ERROR and "--operation Create --operation Write --operation Read" in own.remedy
    assert checkup.exit_code == 1
    # What the doctor itself may not look at is said, and is no fault of the cluster.
    refused = [f for f in checkup.findings if f.thing.startswith("not checked")]
    assert {f.check for f in refused} >= {"controller", "log-dirs", "quotas"}
    assert {f.severity for f in refused} == {Severity.INFO}

    allow(guarded, ResourceType.TOPIC, "doctor-rights", ACLOperation.ALL)
    allow(guarded, ResourceType.TOPIC, "tolerant-mirror-", ACLOperation.ALL, prefixed=True)
    allow(guarded, ResourceType.TRANSACTIONAL_ID, "tolerant-mirror-default", ACLOperation.WRITE, prefixed=True)
    again = look()
    assert lacking(again) == {}
    assert not [f for f in again.findings if "transactional id" in f.thing]
    assert again.exit_code == 3


def test_topics_that_we_may_not_see_or_create_are_said_to_be_so(source: str, guarded: KafkaCluster) -> None:
    create_topic(source, "doctor-create")
    clusters = {"source": {"bootstrap.servers": source}, "target": as_mirror(guarded)}
    checkup = examine(Subject(clusters, LinkTopics.of("doctor-create"), seconds=0))
    unseen = found(checkup, "rights", "topic doctor-create")
    assert unseen.severity is Severity.ERROR and "whether it exists is unknown" in unseen.evidence
    assert unseen.remedy.endswith("--operation Create --operation Alter --operation Delete --topic doctor-create")
    allow(guarded, ResourceType.TOPIC, "doctor-create", ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS)
    refused = found(
        examine(Subject(clusters, LinkTopics.of("doctor-create"), seconds=0)), "rights", "topic doctor-create"
    )
    assert refused.severity is Severity.ERROR and "would not create it" in refused.evidence
    blind = examine(Subject({"source": as_mirror(guarded)}, LinkTopics.of("doctor-no-such"), seconds=0))
    assert "the brokers hide others" in found(blind, "topics", "topics").remedy


@pytest.mark.parametrize(
    ("password", "mechanism", "words"),
    [("wrong", "PLAIN", "refuses our login"), (PASSWORD, "SCRAM-SHA-256", "does not offer our SASL mechanism")],
)
def test_refused_login_is_told_in_plain_words(guarded: KafkaCluster, password: str, mechanism: str, words: str) -> None:
    checkup = examine(Subject({"cluster": as_mirror(guarded, password, mechanism)}, seconds=0), Checkup(check_s=4.0))
    (one,) = checkup.findings
    assert (one.check, one.severity, checkup.exit_code) == ("addresses", Severity.ERROR, 2)
    assert words in one.evidence
    assert PASSWORD not in str(one) and "wrong" not in one.evidence


@pytest.mark.long
def test_client_without_a_login_on_a_listener_that_wants_one(guarded: KafkaCluster) -> None:
    checkup = examine(
        Subject({"cluster": {"bootstrap.servers": guarded.servers_of("SASL")}}, seconds=0), Checkup(check_s=4.0)
    )
    (one,) = checkup.findings
    assert "require a login (SASL)" in one.evidence and checkup.exit_code == 2


def test_hanging_transaction_comes_with_the_command_that_aborts_it(guarded: KafkaCluster) -> None:
    """A transactional batch in a partition that its coordinator was never told of."""
    partition = TopicPartition("doctor-hanging", 0)
    create_topic(guarded.bootstrap_servers, "doctor-hanging")
    append_records(guarded.bootstrap_servers, "doctor-hanging", 7, timestamp=now_ms())
    request = InitProducerIdRequest(
        transactional_id="doctor-hangs",
        transaction_timeout_ms=MINUTE_MS,
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,
    )

    async def hang(cluster: Cluster) -> int:
        def read(answer: Any) -> int:
            raise_for(answer.error_code, "InitProducerId")
            return int(answer.producer_id)

        producer_id = await Coordinators(cluster).ask(TRANSACTION, "doctor-hangs", "hanging", lambda: request, read)
        record = Record(0, now_ms() - 20 * MINUTE_MS, None, b"never ended")
        batch = encode_batch(
            [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        node = await cluster.leader(partition)
        (answer,) = await cluster.produce(
            node, {partition: memoryview(bytearray(batch))}, transactional_id="doctor-hangs"
        )
        assert answer.error_code == 0
        return producer_id

    with Cluster({"bootstrap_servers": guarded.bootstrap_servers}) as cluster:
        producer_id = cluster.run(hang, cluster)
    checkup = examined(guarded.bootstrap_servers, topics="doctor-hanging")
    assert none_failed(checkup)
    one = found(checkup, "transactions", "doctor-hanging-0", Severity.ERROR)
    assert f"producer id {producer_id} (epoch 0) has had it open since offset 7" in one.evidence
    assert one.remedy == (
        f"kafka-transactions.sh --bootstrap-server {guarded.bootstrap_servers} abort --topic doctor-hanging --partition 0"
        " --start-offset 7"
    )


# -- half-dead clusters -------------------------------------------------------


def test_advertised_address_that_nobody_listens_at_is_the_brokers_fault(kafka_cluster: KafkaCluster) -> None:
    """The bootstrap address answers, and sends its clients to a proxy that is not there."""
    advertised = kafka_cluster.proxied[1][1]
    subject = Subject({"cluster": {"bootstrap.servers": kafka_cluster.servers_of("PROXIED")}}, seconds=0)
    checkup = examine(subject, Checkup(check_s=4.0))
    one = found(checkup, "addresses", f"broker 1 at 127.0.0.1:{advertised}")
    assert one.severity is Severity.ERROR and "nothing listens there" in one.evidence
    assert "advertised.listeners of broker 1" in one.remedy
    assert checkup.exit_code == 2


def test_frozen_broker_is_told_from_a_dead_one_and_both_in_bounded_time(guarded: KafkaCluster) -> None:
    began = time.monotonic()
    guarded.pause(1)
    try:
        subject = Subject({"cluster": {"bootstrap.servers": guarded.bootstrap_servers}}, seconds=0)
        frozen = examine(subject, Checkup(check_s=4.0))
    finally:
        guarded.resume(1)
    assert "accepts connections and does not respond" in frozen.findings[0].evidence
    dead = examine(Subject({"cluster": {"bootstrap.servers": "127.0.0.1:1"}}, seconds=0), Checkup(check_s=4.0))
    assert "nothing listens there" in dead.findings[0].evidence
    assert (frozen.exit_code, dead.exit_code) == (2, 2)
    assert time.monotonic() - began < 30


@pytest.fixture(scope="module")
def three(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Coordinator partitions with one replica each: whoever goes takes groups with him (incident 3)."""
    config = {"offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "1"}
    config |= {"transaction.state.log.min.isr": "1", "offsets.topic.num.partitions": "50"}
    cluster = start_cluster(nodes=3, heap="256m", broker_config=config)
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic("doctor-three", 60, 3, topic_configs={"min.insync.replicas": "2"})])
    admin.close()
    return cluster


@pytest.mark.long
def test_broker_that_is_lost_restarted_or_frozen(three: KafkaCluster) -> None:
    servers = three.bootstrap_servers
    consumer = kafka.KafkaConsumer("doctor-three", bootstrap_servers=servers, group_id="makes-the-offsets-topic")
    consumer.poll(timeout_ms=5_000)
    consumer.close()
    sound = examined(servers, topics="doctor-three")
    assert none_failed(sound)
    # RF 1 of the offsets topic.
    assert {f.check for f in sound.findings if f.severity is not Severity.INFO} == {"durability"}

    restart = threading.Thread(target=three.restart, args=(2,))
    restart.start()
    storm = examined(servers, topics="doctor-three", seconds=15)
    restart.join()
    elections = [f for f in storm.findings if f.check == "elections"]
    assert any("elected a leader" in f.evidence for f in elections), elections

    frozen_at = time.monotonic()
    three.pause(3)
    try:
        frozen = examined(servers, topics="doctor-three")
        assert time.monotonic() - frozen_at < 60
        silent = [f for f in frozen.findings if f.severity is Severity.ERROR and "does not respond" in f.evidence]
        assert silent and frozen.exit_code == 1
    finally:
        three.resume(3)

    three.kill(3)
    names = [f"group-{n}" for n in range(40)]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lost = examined(servers, topics="doctor-three", groups=tuple(names))
        coordinators = [f for f in lost.findings if f.check == "coordinators" and OFFSETS_TOPIC in f.thing]
        broken = [f for f in coordinators if "have no leader" in f.evidence]
        if broken:
            break
    (one,) = broken
    with Cluster({"bootstrap_servers": servers}) as cluster:
        facts = cluster.run(describe_cluster, cluster)
    leaderless = {p.index for p in facts.topics[OFFSETS_TOPIC].partitions if p.leader < 0}
    hit = {name for name in names if partition_of(name, 50) in leaderless}
    assert 0 < len(hit) < len(names)
    assert {
        name for name in names if f"{name} (" in one.evidence
    } <= hit and f"and {len(hit) - 10} more" in one.evidence
    assert "Start broker 3" in one.remedy
    assert found(lost, "partitions", "topic doctor-three").severity is Severity.WARNING
    assert found(lost, "partitions", "broker 3").severity is Severity.ERROR
    assert lost.exit_code == 1
