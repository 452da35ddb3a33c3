"""What a lost response means, one row for each case: what we do, why, and what a repeat shows on a broker.

Laws (tests/brokers/test_repeated_requests.py sends the same bytes of every doubtful case twice):
- A request is sent again only on the connection on which a later response proved
  that the broker is done with it: the first copy cannot run after the second.
- A repeat must have the same effect as if the request had run once, at any time while
  its caller waits, and its response must not mislead the caller.
- Where a repeat could undo a newer request, the row yields to newer ones: the request
  is handed up once a newer one that shares an order key has been sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What settles a lost request."""

    RESEND = "safe to send again"
    SAME_BYTES = "same bytes only"  # the broker recognises the repeat by producer id, epoch and sequence
    HAND_UP = "hand up as retriable"  # the layer above decides
    OUTCOME_UNKNOWN = "hand up as outcome unknown"  # may have been applied; reported, never repeated
    CLOSE = "close the connection"  # the connection's own state is in doubt

    @property
    def is_resend(self) -> bool:
        """True where the tracker sends the request again by itself."""
        return self in (Action.RESEND, Action.SAME_BYTES)


@dataclass(frozen=True, slots=True)
class ApiRow:
    """What a lost response means; `source` cites the KIP or the broker's file, `when` names the case of an API.

    `check` tells the caller how to find out what an unknown outcome was.  Of the requests
    that share an order key, and whose rows have `yields_to_newer`, only the newest is ever
    sent again.
    """

    action: Action
    reason: str
    source: str
    repeat_shows: str
    when: str = ""
    yields_to_newer: bool = False
    check: str = ""
    is_read: bool = False


_SAFE, _UP, _UNKNOWN, _CLOSE = Action.RESEND, Action.HAND_UP, Action.OUTCOME_UNKNOWN, Action.CLOSE

READ_ONLY = ApiRow(_SAFE, "read only", "KafkaApis.scala", "same response", is_read=True)
NOTHING_CHANGED = ApiRow(_SAFE, "validates only", "ControllerApis.scala", "same response", "that only validates")
NOT_KNOWN = ApiRow(_UP, "not known to be safe to repeat below the caller", "the layer above knows", "not checked")

PRODUCE_IDEMPOTENT = ApiRow(
    Action.SAME_BYTES,
    "the broker remembers a producer's last 5 batches of a partition",
    "KIP-98; ProducerStateEntry.java",
    "same base offset; 45 OUT_OF_ORDER_SEQUENCE_NUMBER if older than 5 batches",
    "with a producer id",
)
PRODUCE_PLAIN = ApiRow(
    _UNKNOWN,
    "a repeat appends the records again; a producer with `retries` above 0 gets a retriable error",
    "UnifiedLog.java",
    "another base offset",
    "without a producer id",
    check=(
        "read the end of the log; use enable_idempotence=True, or `retries` above 0 if duplicate records are acceptable"
    ),
)
FETCH_ALONE = ApiRow(_SAFE, "read only", "FetchSession.scala", "same response", "outside a session", is_read=True)
FETCH_IN_SESSION = ApiRow(
    _UP,
    "its session epoch is used up: the consumer starts a new session",
    "KIP-227; FetchSession.scala",
    "71 INVALID_FETCH_SESSION_EPOCH; a second session if it opens one",
    "in a session",
    is_read=True,
)
METADATA_REFRESH = ApiRow(
    _SAFE,
    "read only: the repeat returns the metadata of its own moment",
    "KafkaApis.scala, handleTopicMetadataRequest",
    "same response",
    is_read=True,
)

# -- groups -------------------------------------------------------------------

_GROUP = "KafkaApis.scala; GroupMetadataManager.java"

COMMIT = ApiRow(
    _SAFE,
    "writes the same offsets; after a newer commit it would rewind the group",
    "OffsetMetadataManager.java",
    "same response; 22, 25 after a rebalance",
    yields_to_newer=True,
)
COMMIT_DELETE = ApiRow(
    _UNKNOWN,
    "the repeat may report that there is no such group, or delete a newer commit",
    "OffsetMetadataManager.java; GroupCoordinator.scala",
    "same response; 69 GROUP_ID_NOT_FOUND on Kafka 3 once nothing is left",
    yields_to_newer=True,
    check="list_group_offsets() shows what is left",
)
JOIN_KNOWN = ApiRow(
    _SAFE,
    "the member is in the group already",
    _GROUP,
    "same generation; a leader that has synced gets the next one",
    "with a member id",
    yields_to_newer=True,
)
JOIN_STATIC = ApiRow(
    _SAFE,
    "the instance rejoins as itself, under another member id",
    "KIP-345; " + _GROUP,
    "another member id, the next generation",
    "of a static member without member id",
    yields_to_newer=True,
)
JOIN_NEW = ApiRow(
    _SAFE,
    "the first member id is never used; a second rebalance waits until it expires",
    "KIP-394; " + _GROUP,
    "79 MEMBER_ID_REQUIRED with another id",
    "v4+ without member id",
    yields_to_newer=True,
)
JOIN_GHOST = ApiRow(
    _UP,
    "each repeat adds a member; the first one stalls the next rebalance until it expires",
    "KIP-394; " + _GROUP,
    "another member id, after the rebalance timeout",
    "v0-3 without member id",
)
SYNC = ApiRow(
    _SAFE, "a generation's assignment does not change", _GROUP, "same assignment; 22, 25, 27 after a rebalance"
)
BEAT = ApiRow(
    _SAFE,
    "says only that the member is alive; after a newer JoinGroup it would be refused",
    _GROUP,
    "same response; 22, 25, 27 after a rebalance",
    yields_to_newer=True,
)
LEAVE = ApiRow(
    _SAFE,
    "a member id is never reused",
    _GROUP,
    "25 UNKNOWN_MEMBER_ID for the member: it has left",
    yields_to_newer=True,
)
GROUP_DELETE = ApiRow(
    _UNKNOWN,
    "the repeat would report that there is no such group, or delete a newer one",
    "GroupMetadataManager.java",
    "69 GROUP_ID_NOT_FOUND",
    check="list_groups() shows whether the group is gone",
)

# -- transactions -------------------------------------------------------------

_TXN = "TransactionCoordinator.scala"

INIT_IDEMPOTENT = ApiRow(
    _SAFE, "the first id is never used", "KIP-98; " + _TXN, "another producer id", "without transactional.id"
)
INIT_SAME_EPOCH = ApiRow(
    _SAFE,
    "the broker knows the epoch before the last",
    "KIP-360; " + _TXN,
    "same epoch",
    "with transactional.id, producer id and epoch",
    yields_to_newer=True,
)
INIT_NEXT_EPOCH = ApiRow(
    _SAFE,
    "bumps the epoch once more; nobody has used the first",
    "KIP-98; " + _TXN,
    "the next epoch; 51 CONCURRENT_TRANSACTIONS while it ends an open transaction",
    "with transactional.id",
    yields_to_newer=True,
)
TXN_ADD = ApiRow(
    _SAFE,
    "what is in the transaction stays in it; after EndTxn the repeat would begin the next one",
    _TXN,
    "same response",
    yields_to_newer=True,
)
TXN_COMMIT = ApiRow(
    _SAFE,
    "writes the same pending offsets; after EndTxn they would outlive their transaction",
    "KIP-447; OffsetMetadataManager.java",
    "same response",
    yields_to_newer=True,
)
END_KNOWN = ApiRow(
    _SAFE,
    "the broker knows the epoch before its last bump; a newer transaction fences it",
    "KIP-890; " + _TXN,
    "same new epoch, 51 CONCURRENT_TRANSACTIONS until markers are written; 48 INVALID_TXN_STATE for the opposite"
    " outcome; 90 PRODUCER_FENCED in a newer transaction",
    "v5+",
    yields_to_newer=True,
)
END_BLIND = ApiRow(
    _SAFE,
    "the same outcome while nothing newer was sent: later it would end the next transaction",
    "KAFKA-17754; " + _TXN,
    "same response, 51 CONCURRENT_TRANSACTIONS until markers are written; 48 INVALID_TXN_STATE for the opposite outcome",
    "v0-4",
    yields_to_newer=True,
)
MARKERS = ApiRow(
    _UNKNOWN,
    "the broker does not recognise a repeated marker: it appends each one",
    "KafkaApis.scala, handleWriteTxnMarkersRequest",
    "same response, and one more marker in the log",
    check="describe_producers() shows whether the transaction is still open",
)

# -- administration -----------------------------------------------------------

_TOPICS = "ReplicationControlManager.java"

TOPIC_CREATE = ApiRow(
    _UNKNOWN,
    "the repeat would report somebody else's topic",
    _TOPICS,
    "36 TOPIC_ALREADY_EXISTS",
    check="describe_topics() shows whether the topic exists",
)
TOPIC_DELETE_BY_ID = ApiRow(
    _SAFE, "a topic id is never reused", "KIP-516; " + _TOPICS, "100 UNKNOWN_TOPIC_ID: it is gone", "by id"
)
TOPIC_DELETE_BY_NAME = ApiRow(
    _UNKNOWN,
    "the repeat would report that there is no such topic, or delete a newer one",
    _TOPICS,
    "3 UNKNOWN_TOPIC_OR_PARTITION",
    "by name",
    check="describe_topics() shows whether the topic is gone",
)
RECORDS_DELETE_TO_OFFSET = ApiRow(
    _SAFE, "the log start only moves forward", "KIP-107; ReplicaManager.scala", "same response", "up to an offset"
)
RECORDS_DELETE_TO_END = ApiRow(
    _UNKNOWN,
    "-1 means the high watermark: a repeat deletes what was appended since",
    "KIP-107; ReplicaManager.scala",
    "a higher low_watermark",
    "up to -1",
    check="list_partition_offsets() shows the log start; give an offset instead of -1",
)
PARTITIONS_CREATE = ApiRow(
    _UNKNOWN,
    "the repeat would report that the partitions already exist",
    _TOPICS,
    "37 INVALID_PARTITIONS",
    check="describe_topics() shows how many partitions there are",
)
REASSIGN = ApiRow(
    _SAFE,
    "sets the same replicas; it would undo a newer reassignment",
    "KIP-455; " + _TOPICS,
    "same response",
    "that sets replicas",
    yields_to_newer=True,
)
REASSIGN_CANCEL = ApiRow(
    _UNKNOWN,
    "the repeat would report that there was nothing to cancel, or cancel a newer one",
    "KIP-455; " + _TOPICS,
    "85 NO_REASSIGNMENT_IN_PROGRESS",
    "that cancels",
    yields_to_newer=True,
    check="list_partition_reassignments() shows whether it is still in progress",
)
ELECT_PREFERRED = ApiRow(
    _SAFE, "the preferred leader leads", "KIP-460; " + _TOPICS, "84 ELECTION_NOT_NEEDED: it is done", "preferred"
)
ELECT_UNCLEAN = ApiRow(
    _UNKNOWN,
    "a second unclean election may lose more records",
    "KIP-460; " + _TOPICS,
    "84 ELECTION_NOT_NEEDED",
    "unclean",
    check="describe_topics() shows who leads",
)
LOG_DIRS_ALTER = ApiRow(
    _SAFE, "the same directory; it would undo a newer move", "KIP-113", "same response", yields_to_newer=True
)
CONFIGS_ALTER = ApiRow(
    _SAFE,
    "sets the same values, and appends to a list only what it lacks; it would undo a newer change",
    "KIP-339; ConfigurationControlManager.java",
    "same response",
    yields_to_newer=True,
)
ACLS_CREATE = ApiRow(
    _SAFE,
    "an ACL exists once; it would undo a newer delete",
    "AclControlManager.java",
    "same response",
    yields_to_newer=True,
)
ACLS_DELETE = ApiRow(
    _UNKNOWN,
    "the repeat would report that nothing matched",
    "AclControlManager.java",
    "same response, but no matching ACLs",
    yields_to_newer=True,
    check="describe_acls() with the same filter shows what is left",
)
SCRAM_UPSERT = ApiRow(
    _SAFE,
    "sets the same credentials; it would undo a newer change",
    "KIP-554; ScramControlManager.java",
    "same response",
    "that only upserts",
    yields_to_newer=True,
)
SCRAM_DELETE = ApiRow(
    _UNKNOWN,
    "the repeat would report that there is no such credential",
    "KIP-554; ScramControlManager.java",
    "91 RESOURCE_NOT_FOUND",
    "that deletes",
    yields_to_newer=True,
    check="describe_user_scram_credentials() shows which credentials exist",
)
QUOTAS_ALTER = ApiRow(
    _SAFE,
    "sets the same values; it would undo a newer change",
    "KIP-546; ClientQuotaControlManager.java",
    "same response",
    yields_to_newer=True,
)
FEATURES_UPDATE = ApiRow(
    _SAFE,
    "sets the same levels; it would undo a newer change",
    "KIP-584; FeatureControlManager.java",
    "same response",
    yields_to_newer=True,
)

AUTHENTICATION = ApiRow(
    _CLOSE,
    "stateful: a new connection authenticates from the start",
    "KIP-43, KIP-152; SaslServerAuthenticator.java (not checked)",
    "34 ILLEGAL_SASL_STATE",
)
FIRST_REQUEST = ApiRow(
    _CLOSE, "the first on a connection: nothing else is known yet", "KIP-35, KIP-511", "same response"
)
