"""No password, token, record or group metadata in any log line, error or event, on a real broker with SASL."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable
from typing import Any

import kafka
import kafka.producer.kafka
import pytest
from kafka.admin import NewTopic, ScramMechanism, UserScramCredentialUpsertion
from kafka.structs import OffsetAndMetadata, TopicPartition

import tolerant_client
from support.canaries import Listener, listening
from support.settled import changing
from tolerant_client.testing import Corrupt, Drop, Duplicate, FaultProxy, KafkaCluster, RewriteCorrelationId, Truncate

pytestmark = pytest.mark.broker

USER, PASSWORD, WRONG = "alice", "canary-password", "canary-wrong-password"
KEY, VALUE, HEADER, NOTE = b"canary-key", b"canary-value", b"canary-header", "canary-note"
CANARIES = (PASSWORD, WRONG, KEY.decode(), VALUE.decode(), HEADER.decode(), NOTE)
RECORDS = 40


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """PROXIED speaks SASL in the clear, by PLAIN and SCRAM."""
    login, listener = "org.apache.kafka.common.security", "listener.name.proxied"
    config = {
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        f"{listener}.plain.sasl.jaas.config": f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
    }
    return start_cluster(broker_config=config, listeners={"PROXIED": "SASL_PLAINTEXT"}, heap="256m")


def traffic(listener: Listener, clients: Any, topic: str, options: dict[str, Any], **ours: Any) -> None:
    """Topics, records with keys and headers, a group that commits with metadata; errors go to the listener."""
    with clients.KafkaAdminClient(**options, **ours) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        for _ in range(3):
            admin.describe_topics([topic])
    with clients.KafkaProducer(**options, **ours) as producer:
        futures = [producer.send(topic, key=KEY, value=VALUE, headers=[("name", HEADER)]) for _ in range(RECORDS)]
        for future in futures:
            future.get(timeout=60)
    consumer = clients.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", session_timeout_ms=10_000, **options, **ours
    )
    seen = 0
    for _ in range(300):
        try:
            seen += sum(map(len, consumer.poll(timeout_ms=200).values()))
        except Exception as error:
            listener.error(error)
        if seen >= RECORDS:
            break
    for _ in range(20):
        try:
            consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(seen, NOTE, -1)})
            break
        except kafka.errors.RebalanceInProgressError:
            consumer.poll(timeout_ms=500)
    assert consumer.committed(TopicPartition(topic, 0), metadata=True).metadata == NOTE
    consumer.close()
    assert seen == RECORDS


@pytest.mark.parametrize("way", ["drop-in", "installed"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_no_canary_leaves_the_process_but_on_the_wire(
    cluster: KafkaCluster,
    fault_proxy: Callable[..., FaultProxy],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    mechanism: str,
) -> None:
    gc.collect()
    # kafka-python silences this module for good when the first producer is finalized.
    monkeypatch.setattr(kafka.producer.kafka, "log", logging.getLogger("kafka.producer.kafka"))
    topic = f"masking-{way}-{mechanism}".lower()
    faults = [
        Drop(api="OffsetFetch", every=2),
        Truncate(api="Fetch", every=5),
        Corrupt(api="Fetch", every=7),
        Duplicate(api="Produce", every=2),
        RewriteCorrelationId(api="Fetch", every=6),
    ]
    with listening() as listener, contextlib.ExitStack() as stack:
        with changing(cluster.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD, 4096)]
            )
        proxy = fault_proxy(faults=faults, cluster=cluster)
        options = {
            "bootstrap_servers": proxy.bootstrap_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        ours: dict[str, Any] = {"recovery_listener": listener.event}
        clients: Any = tolerant_client
        if way == "installed":
            tolerant_client.install(**ours)
            stack.callback(tolerant_client.uninstall)
            clients, ours = kafka, {}
        traffic(listener, clients, topic, options, **ours)
        with pytest.raises(Exception) as refused:
            clients.KafkaAdminClient(**{**options, "sasl_plain_password": WRONG}, bootstrap_timeout_ms=5_000, **ours)
        listener.error(refused.value)
    assert sum(proxy.injected.values()) > 0
    assert any("JoinGroup" in line for line in listener.lines)
    assert listener.seen(*CANARIES) == []
