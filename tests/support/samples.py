"""A request and its answer for every API that kafka-python speaks, made from its own schemas.

Laws:
- `request(n)` is kafka-python's own object; everything in it that has room is
  filled with `n`: strings are "s<n>", integers n, arrays have one element.
- `answer(n)` is filled the same way, so it echoes the request's topics, groups
  and partitions by construction, and no two answers of an API are equal.
- What a value means (an error code, a session epoch) is set by name, in VALUES
  and in the overrides of a sample, never by position.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas.fields.codecs import EncodeBufferPool

from support.fake_broker import batch
from tolerant_client.tracker.rules import apis

for _module in ("admin", "consumer", "metadata", "producer", "sasl"):
    importlib.import_module(f"kafka.protocol.{_module}")

CANARY = b"canary-of-the-payload"
PRODUCER_ID = 4000
CLIENT_ID = "matrix"
MECHANISM = "PLAIN"

_ROOM = 1 << 20  # the oldest kafka-python does not make room for what follows a large field

# Fields whose value means something, in requests and in answers.
VALUES: dict[str, Any] = {
    "error_code": 0,
    "error_message": None,
    "throttle_time_ms": 0,
    "acks": -1,
    "max_wait_ms": 500,
    "session_timeout_ms": 500,
    "rebalance_timeout_ms": 500,
    "timeout_ms": 500,
    "magic_byte": 2,
    "mechanism": MECHANISM,
    "mechanisms": [MECHANISM],
    "auth_bytes": b"",
    "key_type": 0,
    "bootstrap_port": 9092,
    "port": 9092,
    "aborted_transactions": None,
    "records": None,
    "tag": None,
}


@dataclass(frozen=True)
class Sample:
    """One kind of request; `request_values` and `answer_values` go before VALUES."""

    name: str
    api_key: int
    version: int
    request_values: Mapping[str, Any] = field(default_factory=dict)
    answer_values: Mapping[str, Any] = field(default_factory=dict)
    is_repeatable: bool = False
    """True where a broker does no harm when it runs the request twice (the table of docs/requests.md)."""
    is_idempotent: bool = False
    """True for batches with a producer id, which the broker appends once."""

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def request(self, n: int) -> Any:
        """kafka-python's request object; shared by all who ask for this `n`."""
        return _request(self, n)

    def answer(self, n: int) -> Any:
        """kafka-python's answer object."""
        return _answer(self, n)

    def body(self, n: int) -> bytes:
        """The answer's bytes behind the correlation id."""
        return _body(self, n)

    def answered(self, n: int) -> dict[str, Any]:
        """What the caller of `request(n)` must get."""
        return encoded_and_back(self, self.body(n))


def encoded_and_back(sample: Sample, body: bytes) -> dict[str, Any]:
    """kafka-python's reading of an answer, as a dict."""
    response = response_class(sample.api_key).decode(b"\0\0\0\0" + body, version=sample.version, header=True)
    return contents(response)


def contents(response: Any) -> dict[str, Any]:
    """An answer's fields, comparable."""
    fields: dict[str, Any] = response.to_dict(json=False)
    return fields


@cache
def _request(sample: Sample, n: int) -> Any:
    values = {k: v(n) if callable(v) else v for k, v in sample.request_values.items()}
    request = filled(request_class(sample.api_key), sample.version, n, values)
    return request


@cache
def _answer(sample: Sample, n: int) -> Any:
    values = {k: v(n) if callable(v) else v for k, v in sample.answer_values.items()}
    return filled(response_class(sample.api_key), sample.version, n, values)


@cache
def _body(sample: Sample, n: int) -> bytes:
    return encoded(sample.answer(n))


def encoded(response: Any) -> bytes:
    """An answer's bytes behind the correlation id."""
    response.with_header(correlation_id=0)
    EncodeBufferPool._get().ensure(_ROOM)
    return bytes(response.encode(header=True, framed=False)[4:])


def filled(message_class: Any, version: int, n: int, values: Mapping[str, Any]) -> Any:
    """A message of `message_class` with every field of `version` filled."""
    message = _fill(message_class._struct, message_class[None], version, n, values)
    message.API_VERSION = version
    return message


def _fill(struct: Any, data_class: Any, version: int, n: int, values: Mapping[str, Any]) -> Any:
    known = {}
    for part in struct._fields:
        if not part.for_version_q(version) or part.tag is not None:
            continue
        known[part.name] = _value(part, version, n, values)
    return data_class(version=version, **known)


def _value(part: Any, version: int, n: int, values: Mapping[str, Any]) -> Any:
    for source in (values, VALUES):
        if part.name in source:
            return source[part.name]
    if part.is_struct_array():
        return [_fill(part.array_of, part.array_of.data_class, version, n, values)]
    if part.is_array():
        return [_simple(part.array_of._type_str, n)]
    if part.is_struct():
        return _fill(part, part.data_class, version, n, values)
    return _simple(part.type_str, n)


def _simple(kind: str, n: int) -> Any:
    if kind == "string":
        return f"s{n}"
    if kind in ("int32", "int64"):
        return n
    if kind == "bool":
        return False
    if kind == "uuid":
        return uuid.UUID(int=n + 1)
    if kind in ("bytes", "records"):
        return CANARY + b"%d" % n
    if kind == "float64":
        return float(n)
    return set() if kind == "bitfield" else 0


# -- which APIs there are -----------------------------------------------------


def _subclasses(parent: Any) -> Iterator[Any]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)


@cache
def _classes(kind: str) -> dict[int, Any]:
    return {
        c.API_KEY: c
        for c in _subclasses(ApiMessage)
        if c._class_version is None and c._json is not None and c.type == kind
    }


def request_class(api_key: int) -> Any:
    """kafka-python's request class of an API."""
    return _classes("request")[api_key]


def response_class(api_key: int) -> Any:
    """kafka-python's answer class of an API."""
    return _classes("response")[api_key]


def known_apis() -> set[int]:
    """The APIs that this kafka-python has requests for."""
    return set(_classes("request"))


PER_PARTITION = 5  # batches of one partition in flight, as many as a broker remembers


def _partition(n: int) -> int:
    return n // PER_PARTITION


def _batch(producer_id: int, n: int) -> bytes:
    sequence = n % PER_PARTITION if producer_id >= 0 else -1
    return batch(producer_id, sequence, payload=CANARY + b"%d" % n)


def _produce(name: str, producer_id: int, **more: Any) -> Sample:
    def topics(n: int) -> list[Any]:
        topic_class = request_class(apis.PRODUCE).TopicProduceData
        part = topic_class.PartitionProduceData(version=9, index=_partition(n), records=_batch(producer_id, n))
        return [topic_class(version=9, name="t", partition_data=[part])]

    def responses(n: int) -> list[Any]:
        topic_class = response_class(apis.PRODUCE).TopicProduceResponse
        offset = n % PER_PARTITION
        part = topic_class.PartitionProduceResponse(version=9, index=_partition(n), error_code=0, base_offset=offset)
        return [topic_class(version=9, name="t", partition_responses=[part])]

    values = {"topic_data": topics, "transactional_id": None, "timeout_ms": 1000}
    values.update(more.pop("request_values", {}))
    return Sample(name, apis.PRODUCE, 9, values, {"responses": responses}, **more)


# What a broker may run twice without harm: the table of docs/requests.md, read for this test alone, so that
# a wrong row in api_rows.py is found.  Everything else runs once, or its caller sends it again.
REPEATABLE = {
    # read only
    "ListOffsets", "Metadata", "OffsetFetch", "FindCoordinator", "FindCoordinator of 0.8.2", "OffsetForLeaderEpoch",
    "DescribeGroups", "ListGroups", "ApiVersions", "DescribeAcls", "DescribeConfigs", "DescribeLogDirs",
    "ListPartitionReassignments", "DescribeClientQuotas", "DescribeUserScramCredentials", "DescribeQuorum",
    "DescribeCluster", "DescribeProducers", "DescribeTransactions", "ListTransactions", "ListConfigResources",
    "DescribeTopicPartitions", "Fetch without a session", "CreateTopics to validate", "CreatePartitions to validate",
    # the broker knows the repeat, or a repeat ends where the first one did
    "Produce with a producer id", "SyncGroup", "SyncGroup of a follower", "Heartbeat", "LeaveGroup",
    "OffsetCommit", "OffsetDelete",
    "JoinGroup with a member id", "JoinGroup of a static member", "JoinGroup without a member id",
    "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "EndTxn before KIP-890",
    "InitProducerId without a transaction", "InitProducerId with its epoch", "InitProducerId",
    "DeleteTopics by id", "DeleteRecords", "ElectLeaders", "CreateAcls", "AlterUserScramCredentials",
    # sets the same values
    "AlterPartitionReassignments", "AlterReplicaLogDirs", "AlterConfigs", "IncrementalAlterConfigs",
    "AlterClientQuotas", "UpdateFeatures",
}  # fmt: skip


def _ordinal(n: int) -> int:
    return n


def _supported(n: int) -> list[Any]:
    key_class = response_class(apis.API_VERSIONS).ApiVersion
    return [
        key_class(version=4, api_key=k, min_version=0, max_version=request_class(k).max_version) for k in known_apis()
    ]


# Where nothing else tells two answers of an API apart.
_THROTTLED = ("Heartbeat", "AddOffsetsToTxn", "CreateAcls", "UpdateFeatures", "EndTxn before KIP-890")
_ANSWER_VALUES: dict[str, dict[str, Any]] = {
    "Fetch in a session": {"session_id": 7},
    "Fetch without a session": {"session_id": 0},
    **{name: {"throttle_time_ms": _ordinal} for name in _THROTTLED},
    "ApiVersions": {"api_keys": _supported, "throttle_time_ms": _ordinal},
    "DescribeUserScramCredentials": {"mechanism": 1},
}
_REQUEST_VALUES: dict[str, dict[str, Any]] = {
    "AlterUserScramCredentials": {"mechanism": 1},
    "DescribeCluster": {"endpoint_type": _ordinal},
    "ListConfigResources": {"resource_types": lambda n: [n]},
}

# Highest versions that speak of topics by name, and of one group in a request.
_VERSIONS = {apis.PRODUCE: 9, apis.FETCH: 11, apis.METADATA: 9}


def _plain(api_key: int) -> Sample:
    cls = request_class(api_key)
    name = str(cls.name).removesuffix("Request")
    version = min(_VERSIONS.get(api_key, cls.max_version), cls.max_version)
    return Sample(
        name,
        api_key,
        version,
        _REQUEST_VALUES.get(name, {}),
        _ANSWER_VALUES.get(name, {}),
        name in REPEATABLE,
    )


def _variant(name: str, api_key: int, version: int | None = None, /, **values: Any) -> Sample:
    plain = _plain(api_key)
    version = plain.version if version is None else version
    answer_values = _ANSWER_VALUES.get(name, {})
    return Sample(name, api_key, version, values, answer_values, name in REPEATABLE)


@cache
def samples() -> tuple[Sample, ...]:
    """One sample an API, several where what may be sent again depends on the request."""
    special = {
        apis.PRODUCE: [
            _produce("Produce", -1),
            _produce("Produce with a producer id", PRODUCER_ID, is_repeatable=True, is_idempotent=True),
        ],
        apis.FETCH: [
            _variant("Fetch in a session", apis.FETCH, session_id=7, session_epoch=3),
            _variant("Fetch without a session", apis.FETCH, session_id=0, session_epoch=-1),
        ],
        apis.FIND_COORDINATOR: [
            _plain(apis.FIND_COORDINATOR),
            _variant("FindCoordinator of 0.8.2", apis.FIND_COORDINATOR, 0),
        ],
        apis.JOIN_GROUP: [
            _variant("JoinGroup with a member id", apis.JOIN_GROUP),
            _variant("JoinGroup of a static member", apis.JOIN_GROUP, member_id=""),
            _variant("JoinGroup without a member id", apis.JOIN_GROUP, member_id="", group_instance_id=None),
            _variant("JoinGroup before KIP-394", apis.JOIN_GROUP, 3, member_id=""),
        ],
        apis.SYNC_GROUP: [
            _variant("SyncGroup", apis.SYNC_GROUP),
            _variant("SyncGroup of a follower", apis.SYNC_GROUP, assignments=[]),
        ],
        apis.CREATE_TOPICS: [
            _variant("CreateTopics", apis.CREATE_TOPICS, validate_only=False),
            _variant("CreateTopics to validate", apis.CREATE_TOPICS, validate_only=True),
        ],
        apis.DELETE_TOPICS: [
            _variant("DeleteTopics", apis.DELETE_TOPICS, topic_id=None),
            _variant("DeleteTopics by id", apis.DELETE_TOPICS, name=None),
        ],
        apis.DELETE_RECORDS: [
            _variant("DeleteRecords", apis.DELETE_RECORDS),
            _variant("DeleteRecords to the end", apis.DELETE_RECORDS, offset=-1),
        ],
        apis.INIT_PRODUCER_ID: [
            _variant("InitProducerId", apis.INIT_PRODUCER_ID, producer_id=-1, producer_epoch=-1),
            _variant("InitProducerId with its epoch", apis.INIT_PRODUCER_ID, producer_epoch=1),
            _variant(
                "InitProducerId without a transaction", apis.INIT_PRODUCER_ID,
                transactional_id=None, producer_id=-1, producer_epoch=-1,
            ),
        ],
        apis.END_TXN: [
            _variant("EndTxn", apis.END_TXN),
            _variant("EndTxn before KIP-890", apis.END_TXN, 4, producer_epoch=_ordinal),
        ],
        apis.CREATE_PARTITIONS: [
            _variant("CreatePartitions", apis.CREATE_PARTITIONS, validate_only=False),
            _variant("CreatePartitions to validate", apis.CREATE_PARTITIONS, validate_only=True),
        ],
        apis.ELECT_LEADERS: [
            _variant("ElectLeaders", apis.ELECT_LEADERS, election_type=0),
            _variant("ElectLeaders, unclean", apis.ELECT_LEADERS, election_type=1),
        ],
        apis.ALTER_PARTITION_REASSIGNMENTS: [
            _variant("AlterPartitionReassignments", apis.ALTER_PARTITION_REASSIGNMENTS),
            _variant("AlterPartitionReassignments to cancel", apis.ALTER_PARTITION_REASSIGNMENTS, replicas=None),
        ],
        apis.ALTER_USER_SCRAM_CREDENTIALS: [
            _variant("AlterUserScramCredentials", apis.ALTER_USER_SCRAM_CREDENTIALS, mechanism=1, deletions=[]),
            _variant(
                "AlterUserScramCredentials to delete", apis.ALTER_USER_SCRAM_CREDENTIALS, mechanism=1, upsertions=[]
            ),
        ],
    }  # fmt: skip
    found: list[Sample] = []
    for api_key in sorted(known_apis()):
        found += special.get(api_key) or [_plain(api_key)]
    return tuple(found)


ACKS_0 = _produce("Produce with acks=0", -1, request_values={"acks": 0})


def sample(name: str) -> Sample:
    """The sample of that name."""
    return next(s for s in samples() if s.name == name)
