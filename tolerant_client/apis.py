"""What is done when the answer to a request is lost, API by API.

The table says what a broker does with a repeat, and where that is written.
A request knows more than its API (a producer id, a fetch session), so it may
override its row with `resend_safe`.  New APIs get a row here and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

Buffer = bytes | bytearray | memoryview

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID = 17, 18, 22
OFFSET_FOR_LEADER_EPOCH, SASL_AUTHENTICATE = 23, 36


class Action(Enum):
    """What settles a lost request."""

    RESEND = "resend"
    HAND_UP = "hand up"  # a retriable error: the layer above decides
    OUTCOME_UNKNOWN = "outcome unknown"  # may have been applied; said, never repeated
    CLOSE = "close"  # the connection's own state is in doubt


class Request(Protocol):
    """The tracker's view of a request; raw.py's requests and the adapter in requests.py have it."""

    API_KEY: int
    API_VERSION: int | None

    @property
    def name(self) -> str: ...
    def expect_response(self) -> bool: ...
    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]: ...
    def decode_response(self, body: memoryview) -> Any: ...


@dataclass(frozen=True, slots=True)
class ApiRow:
    """One API's row; `source` cites the KIP or the broker's file."""

    action: Action
    reason: str
    source: str


_DEFAULT = ApiRow(Action.HAND_UP, "not known to be safe to repeat below the caller", "the layer above knows")

APIS: dict[int, ApiRow] = {
    PRODUCE: ApiRow(
        Action.OUTCOME_UNKNOWN,
        "without a producer id a repeat may double records",
        "KIP-98; ProducerStateManager.java",
    ),
    FETCH: ApiRow(
        Action.HAND_UP,
        "a session's epoch is used up (errors 70, 71): start a new session",
        "KIP-227; FetchSession.scala",
    ),
    LIST_OFFSETS: ApiRow(Action.RESEND, "read only", "KafkaApis.scala, handleListOffsetRequest"),
    METADATA: ApiRow(Action.HAND_UP, "refreshed, not resent: the next refresh is newer", "KAFKA-4669"),
    OFFSET_COMMIT: ApiRow(
        Action.HAND_UP,
        "an old commit after a newer one would rewind the group",
        "GroupMetadataManager.scala, storeOffsets",
    ),
    OFFSET_FETCH: ApiRow(Action.RESEND, "read only", "KafkaApis.scala, handleOffsetFetchRequest"),
    FIND_COORDINATOR: ApiRow(Action.RESEND, "read only", "KafkaApis.scala, handleFindCoordinatorRequest"),
    SASL_HANDSHAKE: ApiRow(
        Action.CLOSE, "stateful; a new connection starts it anew", "KIP-43; SaslServerAuthenticator.java"
    ),
    SASL_AUTHENTICATE: ApiRow(
        Action.CLOSE, "stateful; a new connection starts it anew", "KIP-152; SaslServerAuthenticator.java"
    ),
    API_VERSIONS: ApiRow(Action.CLOSE, "first on a connection; nothing else is known yet", "KIP-35"),
    INIT_PRODUCER_ID: ApiRow(
        Action.HAND_UP,
        "each call with a transactional.id bumps the epoch",
        "KIP-98, KIP-360; TransactionCoordinator.scala",
    ),
    OFFSET_FOR_LEADER_EPOCH: ApiRow(Action.RESEND, "read only", "KIP-101, KIP-320"),
}


def row_for(api_key: int) -> ApiRow:
    """The row of an API; unknown ones are handed up as retriable."""
    return APIS.get(api_key, _DEFAULT)


def action_for(request: Any, resend_plain_produce: bool = False) -> Action:
    """What settles `request` when its answer is lost."""
    resend_safe: bool | None = getattr(request, "resend_safe", None)
    if resend_safe is None:
        action = row_for(request.API_KEY).action
    elif resend_safe:
        return Action.RESEND
    else:
        action = row_for(request.API_KEY).action
        if action is Action.RESEND:
            action = Action.HAND_UP
    if action is Action.OUTCOME_UNKNOWN and request.API_KEY == PRODUCE and resend_plain_produce:
        return Action.RESEND
    return action


class ProbeRequest:
    """ApiVersions version 0: the smallest request that any broker since 0.10 answers at once.

    Brokers answer the requests of one connection in order (KIP-219 calls it a
    guarantee), so its answer says that everything before it has been dealt with.
    """

    API_KEY = API_VERSIONS
    API_VERSION: int | None = 0
    name = "Probe"
    expected_ms = 0.0
    order_keys: tuple[Any, ...] = ()

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The whole frame; version 0 has no body."""
        client = client_id.encode()
        head = struct.pack(">hhih", self.API_KEY, 0, correlation_id, len(client)) + client
        return [struct.pack(">i", len(head)) + head]

    def decode_response(self, body: memoryview) -> None:
        """Checks that the body is an ApiVersions answer of version 0; its content does not matter."""
        _, count = struct.unpack_from(">hi", body)
        if count < 0 or len(body) != 6 + 6 * count:
            raise ValueError(f"ApiVersions answer has {len(body)} bytes for {count} APIs")
