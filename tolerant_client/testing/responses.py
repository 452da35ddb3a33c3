"""Reads the parts of Kafka's requests and responses that the fault proxy needs, and puts errors into responses.

This is the only module of the package that imports kafka-python: for the names of the APIs, and to decode, change
and encode a response at the version of its request.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

# Importing them registers their response classes.
import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer  # noqa: F401
from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry
from kafka.protocol.api_key import ApiKey

from tolerant_client.tracker.primitives import read_uvarint, skip_tags

API_NAMES = frozenset(key.name for key in ApiKey)

_NAMES = {int(key): key.name for key in ApiKey}
_PRODUCE = int(ApiKey.Produce)
_PRODUCE_FLEXIBLE = 9
_PRODUCE_TRANSACTIONAL = 3
_ERROR_FIELDS = ("error_code", "partition_error_code")
# The values that a broker sends with an error; the other fields of the same structure do not change.
_BESIDE_AN_ERROR: dict[str, dict[str, Any]] = {
    "Fetch": {"records": b"", "aborted_transactions": []},
    "Produce": {"base_offset": -1},
    "ListOffsets": {"offset": -1, "timestamp": -1, "old_style_offsets": []},
    "Metadata": {"partitions": []},
    "FindCoordinator": {"node_id": -1, "host": "", "port": -1},
    "InitProducerId": {"producer_id": -1, "producer_epoch": -1},
}


class Request(NamedTuple):
    """The request fields that are needed to read its response, which itself carries only the correlation id."""

    api_key: int
    api_version: int
    correlation_id: int
    expects_response: bool


class NotEnough(Exception):
    """Reading the request's header needs more bytes."""


def api_name(api_key: int) -> str:
    """The API's name as Kafka spells it."""
    return _NAMES.get(api_key) or f"Api{api_key}"


def read_request(head: bytes | bytearray) -> Request:
    """Read the start of a request's frame, its length included.

    Raises NotEnough if `head` is too short; Produce is read up to its acks.
    """
    try:
        api_key, api_version, correlation_id = struct.unpack_from(">hhi", head, 4)
        expects_response = api_key != _PRODUCE or _produce_acks(head, api_version) != 0
    except (struct.error, IndexError, ValueError):
        raise NotEnough from None
    return Request(api_key, api_version, correlation_id, expects_response)


def _produce_acks(head: bytes | bytearray, version: int) -> int:
    """Layout: the header (client id, tags since v9), transactional id since v3, acks."""
    (length,) = struct.unpack_from(">h", head, 12)
    position = 14 + max(length, 0)
    if version >= _PRODUCE_FLEXIBLE:
        length, position = read_uvarint(head, skip_tags(head, position))
        position += max(length - 1, 0)
    elif version >= _PRODUCE_TRANSACTIONAL:
        (length,) = struct.unpack_from(">h", head, position)
        position += 2 + max(length, 0)
    (acks,) = struct.unpack_from(">h", head, position)
    return int(acks)


def with_error(frame: bytes | bytearray, api_key: int, api_version: int, error_code: int) -> bytes | None:
    """The frame of the same response with `error_code` in it; None if that is impossible."""
    try:
        header = RequestHeader(request_api_key=api_key, request_api_version=api_version)
        response_class = ResponseClassRegistry.get_response_class(header)
        if response_class is None:
            return None
        response = response_class.decode(bytes(frame), version=api_version, header=True, framed=True)
        name = api_name(api_key)
        if not _set_error(response, api_version, name, error_code, _BESIDE_AN_ERROR.get(name, {})):
            return None
        # decode() has set the version.  If encode() gets it too, kafka-python 3.0 also wants it in the header, where
        # only requests have it.
        return bytes(response.encode(header=True, framed=True))
    # An unknown version or a malformed response may raise anything in kafka-python: the response then passes unchanged.
    except Exception:
        return None


def _set_error(part: Any, version: int, api: str, error_code: int, beside: dict[str, Any]) -> bool:
    """Set the error in the innermost structures that have an error field; returns whether there was one."""
    fields = {name: f for name, f in part.fields.items() if f.for_version_q(version)}
    found = False
    # Clients read Metadata's errors from the topic: a broker that reports one there sends no partitions.
    is_metadata_topic = api == "Metadata" and "partitions" in fields
    if not is_metadata_topic:
        for name, described in fields.items():
            value = getattr(part, name)
            if described.is_struct_array():
                for item in value or ():
                    found |= _set_error(item, version, api, error_code, beside)
            elif described.is_struct() and value is not None:
                found |= _set_error(value, version, api, error_code, beside)
    places = [name for name in _ERROR_FIELDS if name in fields]
    if found or not places:
        return found
    # The top-level code of a Fetch response is about its session; a response without new records has no partition.
    if api == "Fetch" and "partition_index" not in fields:
        return False
    for name in places:
        setattr(part, name, error_code)
    for name, value in beside.items():
        if name in fields:
            setattr(part, name, value)
    return True
