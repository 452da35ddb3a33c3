"""Adapts kafka-python's requests to the interface that the tracker knows (apis.Request).

Laws:
- A request is encoded once; a resend patches its correlation id in a copy of
  the first twelve bytes and shares all others.
- Decoding a response must consume its body exactly.  A response that names something else
  than its request raises OtherSubject (identity.py, apis.py), and the tracker decides.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from tolerant_client.tracker.primitives import skip_tags
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.api_rows import FETCH_IN_SESSION, ApiRow
from tolerant_client.tracker.rules.apis import Buffer, OtherSubject, Request
from tolerant_client.tracker.rules.identity import Names, speaks_of, spoken_of
from tolerant_client.tracker.rules.request_facts import expected_ms, order_keys, partitions_of, row_of

_ID_AT = 8  # length, api_key, api_version, correlation_id (RequestHeader.json)
_ID_END = 12
_OUT_OF_ORDER_SEQUENCE = 45
_SMALL = 4096  # bytes; a smaller body is copied to decode it
_LARGEST_SETUP = 1 << 20  # bytes; int16 numbers 65,536 APIs at most, with 7 bytes each in ApiVersions
_LARGEST_ERROR_CODE = 255  # Errors.java has 134 codes (Kafka 4.2) and gets some five a year

_Decode = Callable[[memoryview, int], tuple[Any, int]]
_decoders: dict[tuple[int, int], _Decode] = {}
_names: dict[type, str] = {}


def with_correlation_id(buffers: list[Buffer], correlation_id: int) -> list[Buffer]:
    """The same frame under another correlation id; all bytes after the id are shared."""
    first = memoryview(buffers[0])
    prefix = bytearray(first[:_ID_END])
    struct.pack_into(">i", prefix, _ID_AT, correlation_id)
    rest = first[_ID_END:]
    return [prefix, rest, *buffers[1:]] if len(rest) else [prefix, *buffers[1:]]


class KafkaRequest(Request):
    """One of kafka-python's own requests."""

    __slots__ = ("API_KEY", "API_VERSION", "_order_keys", "_request", "expected_ms", "name", "row")

    row: ApiRow

    def __init__(self, request: Any) -> None:
        self._request = request
        key: int = request.API_KEY
        self.API_KEY = key
        self.API_VERSION: int = request.API_VERSION
        kind = type(request)
        name = _names.get(kind)
        if name is None:
            name = _names[kind] = str(request.name).removesuffix("Request")
        self.name = name
        self.row = row_of(key, request)
        self.expected_ms = expected_ms(key, request)
        self._order_keys: tuple[Any, ...] | None = None

    @property
    def order_keys(self) -> tuple[Any, ...]:
        if self._order_keys is None:
            self._order_keys = order_keys(self.API_KEY, self._request)
        return self._order_keys

    @property
    def yields_to_newer(self) -> bool:
        return self.row.yields_to_newer

    def expect_response(self) -> bool:
        return bool(self._request.expect_response())

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The whole frame as kafka-python encodes it."""
        self._request.with_header(correlation_id=correlation_id, client_id=client_id)
        return [self._request.encode(framed=True, header=True)]

    def decode_response(self, body: memoryview) -> Any:
        """kafka-python's response object; raises ValueError unless the body is consumed exactly."""
        key = self.API_KEY, self.API_VERSION
        if self.API_KEY in apis.SETUP and len(body) > _LARGEST_SETUP:
            raise ValueError(f"{self.name} response has {len(body)} bytes, and nobody has proved who sends it")
        if self.API_KEY == apis.API_VERSIONS and bytes(body[:2]) != b"\0\0":
            # A broker that does not know the version answers in version 0 (KIP-511).
            key = self.API_KEY, 0
        decode = _decoders.get(key) or _compile(self._request.header, key)
        # kafka-python truncates a tagged field that runs past the end; one more byte makes it end past len(body).
        whole = memoryview(bytes(body) + b"\0") if len(body) < _SMALL else body
        response, end = decode(whole, 0)
        if end != len(body):
            raise ValueError(f"{self.name} response has {len(body)} bytes, its fields {end}")
        self._check_identity(response)
        return response

    def is_out_of_turn(self, response: Any) -> bool:
        """True when the broker refused a batch because it had not seen the one before it."""
        if self.API_KEY != apis.PRODUCE:
            return False
        return _OUT_OF_ORDER_SEQUENCE in _codes(response)

    def is_unmistakable(self, response: Any) -> bool:
        """A broker names at least itself; a Metadata response without brokers is as short as many others."""
        return self.API_KEY != apis.METADATA or bool(response.brokers)

    def _check_identity(self, response: Any) -> None:
        """A response that decodes may still belong to another request: it must name what this one asked for."""
        request = self._request
        meant: Any = response
        if self.API_KEY == apis.PRODUCE:
            names: Any = partitions_of(response.responses, "name", "partition_responses", "index")
            codes = _codes(response)
            speaks = names == set(self.order_keys) and len(codes) == len(names)
            if not all(-1 <= code <= _LARGEST_ERROR_CODE for code in codes):
                # On a code that it does not know, kafka-python would fail this batch and all later ones for good.
                raise ValueError(f"{self.name} response has an error code that no Kafka has")
            # kafka-python raises KeyError for a partition it did not send, and a batch that is not named waits on:
            meant = None
        elif self.API_KEY != apis.FETCH:
            speaks = speaks_of(self.API_KEY, self.API_VERSION, request, response)
            names = None if speaks else spoken_of(self.API_KEY, self.API_VERSION, response)
        else:
            speaks, names = self._fetched(response)
        if isinstance(names, Counter) and max(names.values(), default=0) > 1:
            # One subject under another one's name: its records or offset would move the other one's position.
            meant = None
        if not speaks:
            raise OtherSubject(f"{self.name} response names something else than its request", meant, names)

    def _fetched(self, response: Any) -> tuple[bool, Names]:
        """Whether it names what was asked for; a partition named twice is another one under its name."""
        request = self._request
        is_incremental = self.row is FETCH_IN_SESSION and request.session_epoch != 0
        if is_incremental and response.session_id not in (request.session_id, 0):
            return False, Counter([(response.session_id,)])
        by = "topic_id" if self.API_VERSION >= apis.FETCH_BY_ID_VERSION else "topic"
        answered = partitions_of(response.responses, by, "partitions", "partition_index")
        if len(answered) < sum(len(topic.partitions) for topic in response.responses):
            return False, Counter((getattr(t, by), p.partition_index) for t in response.responses for p in t.partitions)
        speaks = is_incremental or answered <= partitions_of(request.topics, by, "partitions", "partition")
        return speaks, Counter() if speaks else Counter(answered)


def _codes(response: Any) -> list[int]:
    """The error codes of a Produce response."""
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


class SaslToken(Request):
    """A raw SASL token (SaslHandshake version 0): neither it nor its response has a header or a correlation id."""

    __slots__ = ("_request",)

    API_KEY = apis.SASL_AUTHENTICATE
    API_VERSION = 0
    name = "SaslToken"
    is_raw = True
    expected_ms = 0.0

    def __init__(self, request: Any) -> None:
        self._request = request

    def expect_response(self) -> bool:
        return True

    def frame_buffers(self, correlation_id: int, client_id: str) -> list[Buffer]:
        """The token after its length."""
        self._request.with_header(correlation_id=correlation_id)
        return [self._request.encode(framed=True, header=True)]

    def decode_response(self, body: memoryview) -> Any:
        """The broker's token, in kafka-python's own wrapper."""
        return self._request.header.decode(io.BytesIO(bytes(body)))


def adapt(request: Any) -> Request:
    """Any request as the tracker wants it; cluster/cluster.py's own requests are returned as they are."""
    if isinstance(request, Request):
        return request
    if not hasattr(request, "API_KEY"):
        return SaslToken(request)
    return KafkaRequest(request)


def _compile(header: Any, key: tuple[int, int]) -> _Decode:
    """kafka-python's compiled decoder for a response, which starts after its header's tagged fields (KIP-482)."""
    response_class = header.get_response_class()
    _, version = key
    is_flexible = response_class.flexible_version_q(version)
    decode_body: _Decode = response_class._struct.compiled_decode_from(
        version, compact=is_flexible, tagged=is_flexible, data_class=response_class[None]
    )
    decode = decode_body
    if is_flexible and key[0] != apis.API_VERSIONS:  # its response's header never has tagged fields (KIP-511)

        def decode(body: memoryview, at: int) -> tuple[Any, int]:
            return decode_body(body, skip_tags(body, at))

    _decoders[key] = decode
    return decode
