"""What filling gaps, promoting, and hearing the operator need of the target's ACLs, and what they say where one is missing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from support.guarded_cluster import start_guarded
from support.mirror_link import (
    append_records,
    both,
    create_topic,
    delete_topic,
    ends,
    nobody_is_promoted,
    prepare_translated_link,
    topics_of,
)
from support.raising_copier import LinkCopier
from support.settled import changing, until
from tolerant_client.cluster.admin.transactions import init_producer_id
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, PartitionRefusedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.engine.identical.log_start import start_log_at
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.testing import KafkaCluster

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.long,
]

PASSWORD = "not-secret"


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Everybody may do what no ACL speaks of; the brokers and this test (ANONYMOUS) may do everything."""
    return start_guarded(start_cluster, {"mirror": PASSWORD}, heap="320m", allow_everyone_if_no_acl_found="true")


def allow(cluster: KafkaCluster, user: str, operation: ACLOperation, kind: ResourceType, name: str) -> None:
    with changing(cluster.bootstrap_servers) as admin:
        admin.create_acls([ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))])


@contextmanager
def denied(cluster: KafkaCluster, operation: ACLOperation, topic: str) -> Iterator[None]:
    """While user mirror may not do it."""
    where = ResourcePattern(ResourceType.TOPIC, topic)
    acl = ACL("User:mirror", "*", operation, ACLPermissionType.DENY, where)
    with changing(cluster.bootstrap_servers) as admin:
        admin.create_acls([acl, ACL("User:*", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, where)])
    yield
    with changing(cluster.bootstrap_servers) as admin:
        admin.delete_acls([ACLFilter(acl.principal, acl.host, acl.operation, acl.permission_type, where)])


def as_mirror(cluster: KafkaCluster, net: NetworkSelector | None = None) -> Cluster:
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "mirror", "sasl_plain_password": PASSWORD}
    return Cluster(
        {"bootstrap_servers": cluster.servers_of("SASL"), "security_protocol": "SASL_PLAINTEXT", **login}, net
    )


def test_markers_say_that_they_need_cluster_action(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "markers")
    allow(cluster, "another", ACLOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    with as_mirror(cluster) as target:
        filler = MarkerFiller(target, nobody_is_promoted)
        with pytest.raises(PartitionRefusedError, match="ClusterAction"):
            target.run(filler.fill, TopicPartition("markers", 0), Gap(0, 2))
        allow(cluster, "mirror", ACLOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
        assert target.run(filler.fill, TopicPartition("markers", 0), Gap(0, 2)) == 2


def test_transactions_say_which_transactional_id_they_need(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "transactions")
    name = "tolerant-mirror-link-gap-transactions-0"
    allow(cluster, "another", ACLOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    with as_mirror(cluster) as target:
        filler = TransactionFiller(target, "link", nobody_is_promoted)
        with pytest.raises(PartitionRefusedError, match=f"{name}; grant it Write"):
            target.run(filler.fill, TopicPartition("transactions", 0), Gap(0, 2))
        allow(cluster, "mirror", ACLOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        assert target.run(filler.fill, TopicPartition("transactions", 0), Gap(0, 2)) == 2


def test_a_log_start_says_that_it_needs_to_delete(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "starts")
    partition = TopicPartition("starts", 0)
    for operation in (ACLOperation.WRITE, ACLOperation.READ):
        allow(cluster, "mirror", operation, ResourceType.TOPIC, "starts")

    async def run() -> None:
        producer_id = await init_producer_id(target, "link")
        state = AppendState(0, producer_id, 0, 0)
        await start_log_at(target, partition, state, 50, {producer_id}, is_compacted=False, max_batch_bytes=1 << 20)

    with (
        as_mirror(cluster) as target,
        pytest.raises(PartitionRefusedError, match="before offset 50 of starts-0; grant it Delete"),
    ):
        target.run(run)


@pytest.mark.parametrize("offsets", ["translated", "identical"])
def test_a_mirror_that_could_not_read_its_orders_for_a_moment_obeys_them_and_one_that_may_not_does_not_start(
    cluster: KafkaCluster, source: str, tmp_path: Path, offsets: str
) -> None:
    """What it had read before is no order any more: a promotion may have been written since."""
    target, topic = cluster.bootstrap_servers, f"deaf-{offsets}"
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="mirror" password="{PASSWORD}";'
    properties = tmp_path / "target.properties"
    properties.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    link = ["--source", source, "--target", cluster.servers_of("SASL"), "--target-properties", str(properties)]
    command = [sys.executable, "-m", "spark_integration.cli.app", "mirror", *link, "--topics", topic, "--link", topic]
    command += ["--tasks", "0", "--offsets", offsets]
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: topic in topics_of(target) and ends(target, topic)[0] >= 100)
        with denied(cluster, ACLOperation.READ, CONTROL_TOPIC):
            with both(source, target) as (_, there):
                there.run(
                    update_control, there, topic, lambda now: replace(now, is_promotion_begun=True, is_fenced=True)
                )
            time.sleep(2.5)  # it reads its orders once a second
            before = ends(target, topic)
            append_records(source, topic, 100, first=100)
            time.sleep(1)
            assert ends(target, topic) == before, "copied without its orders"
        _, errors = mirror.communicate(timeout=30)
        assert f"Link {topic} was promoted" in errors and ends(target, topic) == before
        with denied(cluster, ACLOperation.READ, CONTROL_TOPIC):
            anew = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert anew.returncode and f"Link {topic} does not start" in anew.stderr and "Read on it" in anew.stderr
    finally:
        mirror.kill()


def test_a_topic_that_no_cluster_shows_is_known_from_the_map_of_a_translated_link(
    cluster: KafkaCluster, source: str
) -> None:
    link, shown, hidden = "mapped", "mapped.shown", "mapped.hidden"
    for name in (shown, hidden):
        create_topic(source, name)
        append_records(source, name, 20)
    with both(source, cluster.bootstrap_servers) as (origin, there):
        until = origin.run(prepare_translated_link, origin, there, "mapped.*", link).ends
        origin.run(LinkCopier(origin, there, translated_offsets(), link=link).copy, until)
    delete_topic(source, hidden)
    allow(cluster, "another", ACLOperation.DESCRIBE, ResourceType.TOPIC, hidden)
    with both(source, cluster.bootstrap_servers) as (origin, _):
        there = as_mirror(cluster, origin.net)
        try:
            plan = origin.run(plan_everything, origin, there, link, "mapped.*")
            status = origin.run(read_status, origin, there, link)
            with pytest.raises(
                OptionError, match=f"topic {hidden} of the cluster may not be described; grant Describe"
            ):
                origin.run(lambda: promote(origin, there, link, deadline_s=3.0))
        finally:
            there.close()
    assert plan.exit_code == 3 and [t.topic for t in plan.topics if t.action == "refuse"] == [hidden]
    assert any(hidden in reason.text for reason in status.reasons)
