"""The remedy that a refused right is told with."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from tolerant_client.cluster.cluster import Cluster

SERVERS = "127.0.0.1:1, 127.0.0.1:2"
ALICE = {"sasl_plain_username": "alice", "sasl_plain_password": "x"}
SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **ALICE}
TOPIC = Errors.TopicAuthorizationFailedError


def told(error: Exception, what: str, name: str = "sink", **config: Any) -> str:
    with Cluster({"bootstrap_servers": SERVERS, **config}, name=name) as cluster:
        said = str(cluster.not_allowed(error, what))  # type: ignore[arg-type]
    assert "as a user who may alter ACLs" in said
    return said


def command(*of: Any, **config: Any) -> list[str]:
    return shlex.split(told(*of, **config).partition(": kafka-acls.sh ")[2])


def granted(*of: Any, **config: Any) -> list[str]:
    words = command(*of, **config)
    assert words[:5] == ["--bootstrap-server", SERVERS, "--command-config", "ADMIN.properties", "--add"]
    assert words[5:7] == ["--allow-principal", "User:alice"]
    return words[7:]


@pytest.mark.parametrize(
    ("said", "what", "operation"),
    [
        ((), "writing to topic orders", "Write"),
        (("topic orders",), "looking for topic orders", "Write"),
        (("adding topic orders to 'tolerant-sink-a'",), "adding partitions to a transaction", "Write"),
        (("committing an offset of topic orders for group 'g'",), "committing offsets in a transaction", "Read"),
        (("topic orders",), "reading what was acknowledged", "Read"),
    ],
)
def test_a_sink_is_granted_what_it_was_refused_and_no_more(said: tuple[str, ...], what: str, operation: str) -> None:
    assert granted(TOPIC(*said), what, **SASL) == ["--operation", operation, "--topic", "orders"]


def test_a_sink_without_a_right_to_any_topic_is_granted_write() -> None:
    refused = Errors.ClusterAuthorizationFailedError("InitProducerId"), "getting a producer id"
    assert granted(*refused, **SASL) == ["--operation", "Write", "--topic", "<TOPIC>"]
    assert "before Kafka 2.8 IdempotentWrite on the cluster, too" in told(*refused, **SASL)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"security_protocol": "SSL"}, "NAME is the subject of our certificate"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "NAME is the user of our OAUTHBEARER login",
        ),
    ],
)
def test_a_command_with_a_name_that_we_do_not_know_says_whose_it_is_and_cannot_be_run(
    config: Any, names: str, tmp_path: Path
) -> None:
    if "sasl_mechanism" in config:
        config["sasl_oauth_token_provider"] = Tokens()
    said = told(TOPIC(), "writing to topic orders", **config)
    assert names in said
    line = said.partition(": kafka-acls.sh ")[2]
    run = subprocess.run(f"echo {line}", shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode != 0 and not run.stdout and not list(tmp_path.iterdir())


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """Has none."""

    def token(self) -> str:
        raise NotImplementedError


def test_who_does_not_log_in_is_anonymous() -> None:
    words = command(TOPIC(), "reading topic orders", "cluster")
    assert words[-5:] == ["User:ANONYMOUS", "--operation", "Read", "--topic", "orders"]
