"""kafka-python's requests, through the interface that the tracker knows (apis.Request).

Laws:
- A request is encoded once; a resend patches its correlation id in a copy of
  the first twelve bytes and shares all others.
- An answer must consume its body exactly, and speak of what was asked for where
  the request can tell.
- What makes a request safe to send again is read from the request itself: a
  producer id in the batch header (KIP-98), a fetch without session (KIP-227).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

from tolerant_client import apis
from tolerant_client.apis import Buffer

_ID_AT = 8  # length, api_key, api_version, correlation_id (RequestHeader.json)
_ID_END = 12
_LAST_FETCH_BY_NAME = 12  # later versions name topics by id (KIP-516)
_OUT_OF_ORDER_SEQUENCE = 45

# v2 record batch header: RecordBatch.java
_MAGIC_AT = 16
_PRODUCER_ID = struct.Struct(">q")
_PRODUCER_ID_AT = 43

_Decode = Callable[[memoryview, int], tuple[Any, int]]
_decoders: dict[tuple[int, int], _Decode] = {}
_names: dict[type, str] = {}


def with_correlation_id(buffers: list[Buffer], correlation_id: int) -> list[Buffer]:
    """The same frame under another correlation id; everything behind it is shared."""
    first = memoryview(buffers[0])
    prefix = bytearray(first[:_ID_END])
    struct.pack_into(">i", prefix, _ID_AT, correlation_id)
    rest = first[_ID_END:]
    return [prefix, rest, *buffers[1:]] if len(rest) else [prefix, *buffers[1:]]


class KafkaRequest:
    """One of kafka-python's own requests."""

    __slots__ = ("API_KEY", "API_VERSION", "_order_keys", "_request", "expected_ms", "name", "resend_safe")

    is_raw = False

    def __init__(self, request: Any) -> None:
        self._request = request
        self.API_KEY: int = request.API_KEY
        self.API_VERSION: int = request.API_VERSION
        kind = type(request)
        name = _names.get(kind)
        if name is None:
            name = _names[kind] = str(request.name).removesuffix("Request")
        self.name = name
        self.expected_ms = 0.0
        self.resend_safe: bool | None = None
        self._order_keys: tuple[Any, ...] | None = None
        if self.API_KEY == apis.FETCH:
            self.expected_ms = float(request.max_wait_ms)
            self.resend_safe = self.API_VERSION < 7 or request.session_epoch == -1
        elif self.API_KEY == apis.PRODUCE:
            self.resend_safe = _is_idempotent(request) or None
        elif self.API_KEY == apis.INIT_PRODUCER_ID:
            self.resend_safe = request.transactional_id is None or None
        elif self.API_KEY == apis.JOIN_GROUP:
            self.expected_ms = float(max(request.session_timeout_ms, request.rebalance_timeout_ms))

    @property
    def order_keys(self) -> tuple[Any, ...]:
        """What this request shares with others that it must not overtake."""
        if self._order_keys is None:
            if self.API_KEY == apis.PRODUCE:
                self._order_keys = tuple(self._produced())
            elif self.API_KEY == apis.OFFSET_COMMIT:
                self._order_keys = (("group", self._request.group_id),)
            else:
                self._order_keys = ()
        return self._order_keys

    def expect_response(self) -> bool:
        return bool(self._request.expect_response())

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The whole frame as kafka-python encodes it."""
        self._request.with_header(correlation_id=correlation_id, client_id=client_id)
        return [self._request.encode(framed=True, header=True)]

    def decode_response(self, body: memoryview) -> Any:
        """kafka-python's response object; raises ValueError unless the body is consumed exactly."""
        key = self.API_KEY, self.API_VERSION
        if self.API_KEY == apis.API_VERSIONS and bytes(body[:2]) != b"\0\0":
            # A broker that does not know the version answers in version 0 (KIP-511).
            key = self.API_KEY, 0
        decode = _decoders.get(key) or _compile(self._request.header, key)
        response, end = decode(body, 0)
        if end != len(body):
            raise ValueError(f"{self.name} answer has {len(body)} bytes, its fields {end}")
        self._check_partitions(response)
        return response

    def is_out_of_turn(self, response: Any) -> bool:
        """True when the broker refused a batch because it had not seen the one before it."""
        if self.API_KEY != apis.PRODUCE:
            return False
        return any(p.error_code == _OUT_OF_ORDER_SEQUENCE for t in response.responses for p in t.partition_responses)

    def _produced(self) -> set[tuple[str, int]]:
        return _partitions(self._request.topic_data, "name", "partition_data", "index")

    def _check_partitions(self, response: Any) -> None:
        """An answer that decodes may still be another request's: it must speak of our partitions."""
        if self.API_KEY == apis.PRODUCE:
            is_ours = self._produced() == _partitions(response.responses, "name", "partition_responses", "index")
        elif self.API_KEY == apis.LIST_OFFSETS:
            asked = _partitions(self._request.topics, "name", "partitions", "partition_index")
            is_ours = asked == _partitions(response.topics, "name", "partitions", "partition_index")
        elif self.API_KEY == apis.FETCH and self.resend_safe and self.API_VERSION <= _LAST_FETCH_BY_NAME:
            asked = _partitions(self._request.topics, "topic", "partitions", "partition")
            is_ours = asked >= _partitions(response.responses, "topic", "partitions", "partition_index")
        else:
            return
        if not is_ours:
            raise ValueError(f"{self.name} answer speaks of other partitions than its request")


class SaslToken:
    """A raw SASL token (SaslHandshake version 0): no header, no correlation id, either way."""

    __slots__ = ("_request",)

    API_KEY = apis.SASL_AUTHENTICATE
    API_VERSION = 0
    name = "SaslToken"
    is_raw = True
    expected_ms = 0.0
    resend_safe: bool | None = None
    order_keys: tuple[Any, ...] = ()

    def __init__(self, request: Any) -> None:
        self._request = request

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The token behind its length."""
        self._request.with_header(correlation_id=correlation_id)
        return [self._request.encode(framed=True, header=True)]

    def decode_response(self, body: memoryview) -> Any:
        """The broker's token, in kafka-python's own wrapper."""
        return self._request.header.decode(io.BytesIO(bytes(body)))


def adapt(request: Any) -> Any:
    """Any request as the tracker wants it; raw.py's own pass through."""
    if hasattr(request, "frame_buffers"):
        return request
    if not hasattr(request, "API_KEY"):
        return SaslToken(request)
    return KafkaRequest(request)


def _partitions(topics: Any, topic: str, partitions: str, index: str) -> set[tuple[str, int]]:
    """Topic and partition numbers; kafka-python builds requests of objects or of plain tuples, names first."""

    def part(thing: Any, field: str, place: int) -> Any:
        return thing[place] if isinstance(thing, (tuple, list)) else getattr(thing, field)

    return {(part(t, topic, 0), part(p, index, 0)) for t in topics for p in part(t, partitions, 1)}


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


def _compile(header: Any, key: tuple[int, int]) -> _Decode:
    """kafka-python's compiled decoder for an answer, behind its header's tagged fields (KIP-482)."""
    response_class = header.get_response_class()
    _, version = key
    is_flexible = response_class.flexible_version_q(version)
    decode_body: _Decode = response_class._struct.compiled_decode_from(
        version, compact=is_flexible, tagged=is_flexible, data_class=response_class[None]
    )
    decode = decode_body
    if is_flexible and key[0] != apis.API_VERSIONS:  # its answer's header never has tagged fields (KIP-511)

        def decode(body: memoryview, at: int) -> tuple[Any, int]:
            return decode_body(body, skip_tagged_fields(body, at))

    _decoders[key] = decode
    return decode


def skip_tagged_fields(body: memoryview, at: int) -> int:
    """Where the tagged fields that start at `at` end; raises ValueError when they are cut."""
    count, at = _unsigned_varint(body, at)
    for _ in range(count):
        _, at = _unsigned_varint(body, at)
        size, at = _unsigned_varint(body, at)
        at += size
        if at > len(body):
            raise ValueError("tagged fields are cut")
    return at


def _unsigned_varint(body: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            raise ValueError("varint is cut")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("varint does not end")
