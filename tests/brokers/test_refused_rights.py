"""What a Spark query is refused names the right that is missing and the command that grants it, on a broker with an authorizer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Any

import kafka
import kafka.errors as Errors
import pyarrow as pa
import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    NewTopic,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.structs import TopicPartition

from spark_integration.reading.offsets import OffsetRange
from spark_integration.reading.options import parse_read_options
from spark_integration.reading.range_fetch import RangeFetch
from support.encoding import encode_batches
from support.guarded_cluster import start_guarded
from support.settled import settle
from tolerant_client.cluster.admin.groups import CommittedOffset, may_not_read
from tolerant_client.cluster.cluster import LATEST, Cluster
from tolerant_client.cluster.producer.batch_producer import BatchProducer
from tolerant_client.cluster.producer.sender import ProducerSettings
from tolerant_client.cluster.producer.topic_lookup import TopicLookup
from tolerant_client.cluster.producer.transaction import ProducerTransaction
from tolerant_client.cluster.refused_rights import DECISION_GROUPS
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.broker

PASSWORD = "not-secret"
KINDS = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
Steps = Callable[[Cluster, str], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """User low may do what an ACL allows; the brokers and this test (ANONYMOUS) may do everything."""
    return start_guarded(start_cluster, {"low": PASSWORD})


def as_low(cluster: KafkaCluster) -> dict[str, Any]:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "low"}
    return {"bootstrap_servers": cluster.servers_of("SASL"), "sasl_plain_password": PASSWORD, **login}


async def read(cluster: Cluster, topic: str) -> None:
    """As a query's source: the ends of the topic, then a range."""
    await cluster.partitions([topic])
    partition = TopicPartition(topic, 0)
    ends = await cluster.list_offsets({partition: LATEST})
    options = parse_read_options({"kafka.bootstrap.servers": "not:1", "subscribe": topic}, is_stream=False)
    assert await RangeFetch(cluster, OffsetRange(topic, 0, 0, ends[partition]), options).next_batches()


async def write_once(cluster: Cluster, topic: str) -> None:
    """As a query's sink with exactlyOnce: its transaction, and its decision beside the topic."""
    transaction = ProducerTransaction(cluster, f"{DECISION_GROUPS}a", 60_000)
    await transaction.begin()
    await TopicLookup(cluster, 5_000).partition_counts([topic])
    partition = TopicPartition(topic, 0)
    await transaction.add_partitions([partition])
    await transaction.commit_offset(f"{DECISION_GROUPS}a", [partition], CommittedOffset(1, ""))
    await transaction.commit()
    await transaction.committed(f"{DECISION_GROUPS}a", [partition])


async def write_plainly(cluster: Cluster, topic: str) -> None:
    """As a query's sink with the default options."""
    producer = BatchProducer(cluster, ProducerSettings())
    await producer.start()
    await producer.partition_count(topic)
    (batch,) = encode_batches(None, pa.array([b"row"], pa.binary()), None, 0)
    producer.enqueue(TopicPartition(topic, 0), batch, range(1))
    await producer.flush()


@pytest.mark.parametrize(
    ("name", "steps", "rights"),
    [
        ("cluster", read, {("READ", "TOPIC")}),
        ("sink", write_plainly, {("WRITE", "TOPIC")}),
        (
            "sink",
            write_once,
            {("WRITE", "TOPIC"), ("READ", "TOPIC"), ("WRITE", "TRANSACTIONAL_ID"), ("READ", "GROUP")},
        ),
    ],
)
@pytest.mark.parametrize("may_describe", [False, True])
def test_the_commands_of_what_is_refused_grant_all_that_a_query_needs(
    cluster: KafkaCluster, name: str, steps: Steps, rights: set[tuple[str, str]], may_describe: bool
) -> None:
    topic = f"rights.{steps.__name__}-{may_describe}".lower()
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 1, 1)])
    if may_describe:
        grant(admin, ACLOperation.DESCRIBE, ResourcePattern(ResourceType.TOPIC, topic))
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer.send(topic, b"record").get(30)
    producer.close()
    settle(cluster.bootstrap_servers)
    config = as_low(cluster)
    servers = config["bootstrap_servers"]
    granted: set[tuple[str, str]] = set()
    try:
        for _ in range(len(rights) + 1):
            try:
                with Cluster(config, name=name) as asked:
                    asked.run(steps, asked, topic)
                break
            except Errors.AuthorizationError as error:
                told = re.search(r"kafka-acls.sh (.*)$", str(error))
                assert told is not None, error
                granted |= carry_out(admin, shlex.split(told[1].replace("<TOPIC>", topic)), servers)
                settle(cluster.bootstrap_servers)
        else:
            pytest.fail(f"granted {granted}, and refused nevertheless")
    finally:
        anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        admin.delete_acls([ACLFilter("User:low", None, ACLOperation.ANY, ACLPermissionType.ANY, anything)])
        admin.close()
    assert granted == rights


def test_that_a_group_may_not_be_read_is_known_before_anybody_joins_it(cluster: KafkaCluster) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    with Cluster(as_low(cluster), name="standby") as standby:
        assert standby.run(may_not_read, standby, "rights-group")
        grant(admin, ACLOperation.READ, ResourcePattern(ResourceType.GROUP, "rights-group"))
        settle(cluster.bootstrap_servers)
        assert not standby.run(may_not_read, standby, "rights-group")
        assert standby.run(may_not_read, standby, "rights-group-2")
    admin.close()


def carry_out(admin: Any, words: list[str], servers: str) -> set[tuple[str, str]]:
    """Does what kafka-acls.sh would do; returns operations and kinds of resources."""
    login = ["--command-config", "ADMIN.properties"]
    assert words[:8] == ["--bootstrap-server", servers, *login, "--add", "--allow-principal", "User:low", "--operation"]
    operations = [ACLOperation[after.upper()] for at, after in zip(words, words[1:]) if at == "--operation"]
    (at,) = (number for number, word in enumerate(words) if word in KINDS)
    is_prefix = words[at + 2 :] == ["--resource-pattern-type", "prefixed"]
    assert is_prefix or len(words) == at + 2
    pattern = ACLResourcePatternType.PREFIXED if is_prefix else ACLResourcePatternType.LITERAL
    for operation in operations:
        grant(admin, operation, ResourcePattern(KINDS[words[at]], words[at + 1], pattern))
    return {(operation.name, KINDS[words[at]].name) for operation in operations}


def grant(admin: Any, operation: ACLOperation, resource: ResourcePattern) -> None:
    admin.create_acls([ACL("User:low", "*", operation, ACLPermissionType.ALLOW, resource)])
