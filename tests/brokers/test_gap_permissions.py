"""What filling gaps needs of the target's ACLs, and what it says where one is missing."""

from __future__ import annotations

import os
from collections.abc import Callable

import kafka
import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.structs import TopicPartition
from support.mirror_link import create_topic, nobody_is_promoted

from tolerant_client.errors import OptionError
from tolerant_client.mirror.gaps import Gap
from tolerant_client.mirror.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.identical.log_start import start_log_at
from tolerant_client.mirror.identical.partition import AppendState
from tolerant_client.mirror.producers import init_producer_id
from tolerant_client.raw import RawCluster
from tolerant_client.testing import KafkaCluster

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.skipif(not os.environ.get("TOLERANT_LONG"), reason="a broker of its own; TOLERANT_LONG=1"),
]

PASSWORD = "not-secret"


@pytest.fixture(scope="module")
def cluster(kafka_cluster_factory: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Everybody may do what no ACL speaks of; the brokers and this test (ANONYMOUS) may do everything."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return kafka_cluster_factory(
        heap="320m",
        broker_config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{module} required user_mirror="{PASSWORD}";',
        },
        listeners={"SASL": "SASL_PLAINTEXT"},
    )


def allow(cluster: KafkaCluster, user: str, operation: ACLOperation, kind: ResourceType, name: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.create_acls([ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))])
    finally:
        admin.close()


def as_mirror(cluster: KafkaCluster) -> RawCluster:
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "mirror", "sasl_plain_password": PASSWORD}
    return RawCluster({"bootstrap_servers": cluster.servers_of("SASL"), "security_protocol": "SASL_PLAINTEXT", **login})


def test_markers_say_that_they_need_cluster_action(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "markers")
    allow(cluster, "another", ACLOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
    with as_mirror(cluster) as target:
        filler = MarkerFiller(target, nobody_is_promoted)
        with pytest.raises(OptionError, match="ClusterAction"):
            target.run(filler.fill, TopicPartition("markers", 0), Gap(0, 2))
        allow(cluster, "mirror", ACLOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "kafka-cluster")
        assert target.run(filler.fill, TopicPartition("markers", 0), Gap(0, 2)) == 2


def test_transactions_say_which_transactional_id_they_need(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "transactions")
    name = "tolerant-mirror-link-gap-transactions-0"
    allow(cluster, "another", ACLOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
    with as_mirror(cluster) as target:
        filler = TransactionFiller(target, "link", nobody_is_promoted)
        with pytest.raises(OptionError, match=f"{name}; grant it Write"):
            target.run(filler.fill, TopicPartition("transactions", 0), Gap(0, 2))
        allow(cluster, "mirror", ACLOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        assert target.run(filler.fill, TopicPartition("transactions", 0), Gap(0, 2)) == 2


def test_a_log_start_says_that_it_needs_to_delete(cluster: KafkaCluster) -> None:
    create_topic(cluster.bootstrap_servers, "starts")
    partition = TopicPartition("starts", 0)
    allow(cluster, "mirror", ACLOperation.WRITE, ResourceType.TOPIC, "starts")

    async def run() -> None:
        producer_id = await init_producer_id(target, "link")
        state = AppendState(0, producer_id, 0, 0)
        await start_log_at(target, partition, state, 50, is_compacted=False, max_batch_bytes=1 << 20)

    with as_mirror(cluster) as target, pytest.raises(OptionError, match="before offset 50 of starts-0; grant it Delete"):
        target.run(run)
