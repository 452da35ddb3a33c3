"""What a probe asks: a request that the broker is known to understand, at no cost, and whose response is nobody else's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kafka.errors as Errors
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from tolerant_client.tracker.rules.requests import KafkaRequest

_DISTINCT_METADATA = (8, 10, 2, 1)
"""Versions of Metadata after each of which all responses look otherwise, in the order of preference.

Flexible since 9, without the cluster's authorized operations since 11, with a throttle time since 3 and a cluster id
since 2 (MetadataResponse.json); 10 is what asks for the operations.
"""


def harmless_question(versions: Any) -> KafkaRequest | None:
    """The request that a probe is: one that this broker is known to understand, and that asks for nothing.

    Metadata of no topic, in an older version than clients use: on a stream out of step its response, which in theirs
    says that there are no topics, decodes as that of no other request.  Where no such version is (Kafka 0.8 to 0.10.0)
    it is ListOffsets of no partition.  Not ApiVersions, which brokers before 0.10 throw on and gateways answer by
    themselves.
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
