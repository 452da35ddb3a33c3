"""Reads three facts from a request: its row, what it may not overtake, and how long a broker may hold it.

Laws:
- A row that depends on the request is chosen by its fields: a producer id in the
  batch header (KIP-98), a fetch session (KIP-227), a member id, a topic id.
- Order keys name what a repeat could undo: a partition's records, a group's
  offsets or members, a transaction, a resource's settings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.apis import ApiRow
from tolerant_client.tracker.rules.identity import asked_for, part

# v2 record batch header: RecordBatch.java
_MAGIC_AT = 16
_PRODUCER_ID = struct.Struct(">q")
_PRODUCER_ID_AT = 43

_FIRST_FETCH_IN_SESSION = 7  # KIP-227
_FIRST_JOIN_IN_TWO_STEPS = 4  # the broker gives a member id first (KIP-394)
_FIRST_STATIC_JOIN = 5  # KIP-345
_FIRST_INIT_WITH_EPOCH = 3  # KIP-360
_FIRST_BATCHED_ADD = 4  # KIP-890
_FIRST_END_WITH_BUMP = 5  # KIP-890
_FIRST_DELETE_BY_ID = 6  # KIP-516
_UNCLEAN = 1
_LEADER_ASSIGNS_MS = 3_000.0  # a follower's SyncGroup waits for the leader's


def row_of(api_key: int, request: Any) -> ApiRow:
    """What a lost response to one of kafka-python's requests means."""
    choose = _CHOOSE_ROW.get(api_key)
    return apis.row_of_api(api_key) if choose is None else choose(request)


def order_keys(api_key: int, request: Any) -> tuple[Any, ...]:
    """What a request shares with others that it must not overtake; empty where there is nothing."""
    find = _ORDER_KEYS.get(api_key)
    return () if find is None else find(request)


def expected_ms(api_key: int, request: Any) -> float:
    """How long a broker may hold the request before it responds, in ms; 0.0 where it responds at once."""
    wait = _EXPECTED_MS.get(api_key)
    return 0.0 if wait is None else wait(request)


def partitions_of(topics: Any, topic: str, partitions: str, index: str) -> set[tuple[str, int]]:
    """(topic, partition) pairs of Produce and Fetch, read faster than identity.py reads names."""
    if isinstance(next(iter(topics), None), tuple):
        return {(t[0], part(p, index, 0)) for t in topics for p in t[1]}
    return {(getattr(t, topic), part(p, index, 0)) for t in topics for p in getattr(t, partitions)}


# -- its row ------------------------------------------------------------------


def _is_idempotent(request: Any) -> bool:
    """True when every batch carries a producer id, so that the broker drops a repeat."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is None or len(records) < _PRODUCER_ID_AT + _PRODUCER_ID.size or records[_MAGIC_AT] != 2:
                return False
            if _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_AT)[0] < 0:
                return False
    return True


def _fetch_row(request: Any) -> ApiRow:
    is_alone = request.API_VERSION < _FIRST_FETCH_IN_SESSION or request.session_epoch == -1
    return rows.FETCH_ALONE if is_alone else rows.FETCH_IN_SESSION


def _join_row(request: Any) -> ApiRow:
    if request.member_id:
        return rows.JOIN_KNOWN
    if request.API_VERSION >= _FIRST_STATIC_JOIN and request.group_instance_id is not None:
        return rows.JOIN_STATIC
    return rows.JOIN_NEW if request.API_VERSION >= _FIRST_JOIN_IN_TWO_STEPS else rows.JOIN_GHOST


def _init_row(request: Any) -> ApiRow:
    if request.transactional_id is None:
        return rows.INIT_IDEMPOTENT
    knows_epoch = request.API_VERSION >= _FIRST_INIT_WITH_EPOCH and request.producer_id >= 0
    return rows.INIT_SAME_EPOCH if knows_epoch else rows.INIT_NEXT_EPOCH


def _delete_topics_row(request: Any) -> ApiRow:
    has_ids = request.API_VERSION >= _FIRST_DELETE_BY_ID and all(part(t, "name", 0) is None for t in request.topics)
    return rows.TOPIC_DELETE_BY_ID if has_ids else rows.TOPIC_DELETE_BY_NAME


def _delete_records_row(request: Any) -> ApiRow:
    offsets = [part(p, "offset", 1) for topic in request.topics for p in part(topic, "partitions", 1)]
    return rows.RECORDS_DELETE_TO_OFFSET if min(offsets, default=0) >= 0 else rows.RECORDS_DELETE_TO_END


def _elect_row(request: Any) -> ApiRow:
    is_unclean = request.API_VERSION >= 1 and request.election_type == _UNCLEAN
    return rows.ELECT_UNCLEAN if is_unclean else rows.ELECT_PREFERRED


def _reassign_row(request: Any) -> ApiRow:
    targets = [part(p, "replicas", 1) for topic in request.topics for p in part(topic, "partitions", 1)]
    return rows.REASSIGN_CANCEL if None in targets else rows.REASSIGN


_CHOOSE_ROW: dict[int, Callable[[Any], ApiRow]] = {
    apis.PRODUCE: lambda r: rows.PRODUCE_IDEMPOTENT if _is_idempotent(r) else rows.PRODUCE_PLAIN,
    apis.FETCH: _fetch_row,
    apis.JOIN_GROUP: _join_row,
    apis.INIT_PRODUCER_ID: _init_row,
    apis.END_TXN: lambda r: rows.END_KNOWN if r.API_VERSION >= _FIRST_END_WITH_BUMP else rows.END_BLIND,
    apis.CREATE_TOPICS: lambda r: rows.NOTHING_CHANGED if r.API_VERSION >= 1 and r.validate_only else rows.TOPIC_CREATE,
    apis.CREATE_PARTITIONS: lambda r: rows.NOTHING_CHANGED if r.validate_only else rows.PARTITIONS_CREATE,
    apis.DELETE_TOPICS: _delete_topics_row,
    apis.DELETE_RECORDS: _delete_records_row,
    apis.ELECT_LEADERS: _elect_row,
    apis.ALTER_PARTITION_REASSIGNMENTS: _reassign_row,
    apis.ALTER_USER_SCRAM_CREDENTIALS: lambda r: rows.SCRAM_DELETE if r.deletions else rows.SCRAM_UPSERT,
}

# -- what may not be overtaken ------------------------------------------------


def _offsets_of_group(request: Any) -> tuple[Any, ...]:
    return (("group", request.group_id),)


def _membership(request: Any) -> tuple[Any, ...]:
    return (("member", request.group_id),)


def _transaction(request: Any) -> tuple[Any, ...]:
    return () if request.transactional_id is None else (("transaction", request.transactional_id),)


def _added_to_transaction(request: Any) -> tuple[Any, ...]:
    if request.API_VERSION < _FIRST_BATCHED_ADD:
        return (("transaction", request.v3_and_below_transactional_id),)
    return tuple(("transaction", part(t, "transactional_id", 0)) for t in request.transactions)


def _all_acls(request: Any) -> tuple[Any, ...]:
    return ("acls",)


def _settings(kind: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda request: tuple((kind, *name) for name in asked_for(request.API_KEY, request))


_ORDER_KEYS: dict[int, Callable[[Any], tuple[Any, ...]]] = {
    apis.PRODUCE: lambda r: tuple(partitions_of(r.topic_data, "name", "partition_data", "index")),
    apis.OFFSET_COMMIT: _offsets_of_group,
    apis.OFFSET_DELETE: _offsets_of_group,
    apis.JOIN_GROUP: _membership,
    apis.SYNC_GROUP: _membership,
    apis.HEARTBEAT: _membership,
    apis.LEAVE_GROUP: _membership,
    apis.INIT_PRODUCER_ID: _transaction,
    apis.ADD_PARTITIONS_TO_TXN: _added_to_transaction,
    apis.ADD_OFFSETS_TO_TXN: _transaction,
    apis.TXN_OFFSET_COMMIT: _transaction,
    apis.END_TXN: _transaction,
    apis.CREATE_ACLS: _all_acls,
    apis.DELETE_ACLS: _all_acls,
    apis.ALTER_CONFIGS: _settings("config"),
    apis.INCREMENTAL_ALTER_CONFIGS: _settings("config"),
    apis.ALTER_PARTITION_REASSIGNMENTS: _settings("replicas"),
    apis.ALTER_REPLICA_LOG_DIRS: _settings("log directory"),
    apis.ALTER_CLIENT_QUOTAS: _settings("quota"),
    apis.ALTER_USER_SCRAM_CREDENTIALS: _settings("user"),
    apis.UPDATE_FEATURES: _settings("feature"),
}

# -- how long a broker may hold a request -------------------------------------


def _at_most(request: Any) -> float:
    return max(0.0, float(request.timeout_ms))


def _join_ms(request: Any) -> float:
    if _join_row(request) is rows.JOIN_NEW:
        # The broker gives an id at once (KIP-394).  Its group waits for one that was lost with the response until the
        # session of that id has ended: a repeat any sooner would keep all other members waiting.
        return float(request.session_timeout_ms)
    return float(max(request.session_timeout_ms, request.rebalance_timeout_ms))


# Produce has a timeout too, but a broker does not hold it by design: round trips
# are measured by its responses.
_EXPECTED_MS: dict[int, Callable[[Any], float]] = {
    apis.FETCH: lambda r: float(r.max_wait_ms),
    apis.JOIN_GROUP: _join_ms,
    apis.SYNC_GROUP: lambda r: 0.0 if r.assignments else _LEADER_ASSIGNS_MS,
    apis.CREATE_TOPICS: _at_most,
    apis.DELETE_TOPICS: _at_most,
    apis.DELETE_RECORDS: _at_most,
    apis.CREATE_PARTITIONS: _at_most,
    apis.ELECT_LEADERS: _at_most,
    apis.ALTER_PARTITION_REASSIGNMENTS: _at_most,
    apis.UPDATE_FEATURES: _at_most,
}
