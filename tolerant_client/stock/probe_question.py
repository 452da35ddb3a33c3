"""What a probe sends: a request that the broker understands, that costs nothing, and whose response fits no other."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kafka.errors as Errors
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.tracker.rules.requests import KafkaRequest

_DISTINCT_METADATA = (8, 10, 2, 1)
"""Versions of Metadata, in order of preference: each lays its response out differently from every later version.

The response is flexible since 9, lacks the cluster's authorized operations since 11, and has a throttle time since 3
and a cluster id since 2 (MetadataResponse.json); 10 is the last version that asks for the operations.
"""


def harmless_question(versions: Any) -> KafkaRequest | None:
    """The request that a probe sends: this broker is known to understand it, and it asks for nothing.

    It is Metadata of no topic, in an older version than clients use.  A stream out of step may hand its response to
    another request: in the clients' version that would say that there are no topics, in the older one it does not
    decode.  Where there is no such version (Kafka 0.8 to 0.10.0) it is ListOffsets of no partition.  It is never
    ApiVersions: brokers before 0.10 throw on it, and gateways answer it themselves.
    """
    for version in _DISTINCT_METADATA:
        question = MetadataRequest(topics=[])
        with suppress(Errors.IncompatibleBrokerVersion):
            if version < versions.api_version(question):
                question.API_VERSION = versions.api_version(question, version, version)
                return KafkaRequest(question)
    question = ListOffsetsRequest(replica_id=-1, topics=[])
    try:
        question.API_VERSION = versions.api_version(question)
    except Errors.IncompatibleBrokerVersion:
        return None
    return KafkaRequest(question)
