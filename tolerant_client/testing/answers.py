"""What has to be understood of Kafka's requests and answers to spoil the answers well.

The only module of the package that imports kafka-python: for the names of the APIs and to decode, change and
encode an answer at the version it was asked for.
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
# What a broker puts beside an error; the other fields of the same structure are left as they are.
_BESIDE_AN_ERROR: dict[str, dict[str, Any]] = {
    "Fetch": {"records": b"", "aborted_transactions": []},
    "Produce": {"base_offset": -1},
    "ListOffsets": {"offset": -1, "timestamp": -1, "old_style_offsets": []},
    "Metadata": {"partitions": []},
    "FindCoordinator": {"node_id": -1, "host": "", "port": -1},
    "InitProducerId": {"producer_id": -1, "producer_epoch": -1},
}


class Request(NamedTuple):
    """What an answer has to be understood by: correlation ids are all that it carries itself."""

    api_key: int
    api_version: int
    correlation_id: int
    expects_answer: bool


class NotEnough(Exception):
    """More of the request is needed to read its head."""


def api_name(api_key: int) -> str:
    """The API's name as Kafka spells it."""
    return _NAMES.get(api_key) or f"Api{api_key}"


def read_request(head: bytes | bytearray) -> Request:
    """Read the start of a request's frame, its length included.

    Raises NotEnough until there is enough of it, which for Produce is up to its acks.
    """
    try:
        api_key, api_version, correlation_id = struct.unpack_from(">hhi", head, 4)
        expects_answer = api_key != _PRODUCE or _produce_acks(head, api_version) != 0
    except (struct.error, IndexError, ValueError):
        raise NotEnough from None
    return Request(api_key, api_version, correlation_id, expects_answer)


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
    """The same answer with `error_code` in it, as a frame; None if it cannot be done."""
    try:
        header = RequestHeader(request_api_key=api_key, request_api_version=api_version)
        answer_class = ResponseClassRegistry.get_response_class(header)
        if answer_class is None:
            return None
        answer = answer_class.decode(bytes(frame), version=api_version, header=True, framed=True)
        name = api_name(api_key)
        if not _set_error(answer, api_version, name, error_code, _BESIDE_AN_ERROR.get(name, {})):
            return None
        # decode() has set the version; given to encode(), kafka-python 3.0 looks for it in the header as well,
        # which only requests have.
        return bytes(answer.encode(header=True, framed=True))
    # Whatever an unknown version or a strange answer makes kafka-python raise: the answer then passes unchanged.
    except Exception:
        return None


def _set_error(part: Any, version: int, api: str, error_code: int, beside: dict[str, Any]) -> bool:
    """Set the error in the structures farthest down that have a place for it; whether there was any."""
    fields = {name: f for name, f in part.fields.items() if f.for_version_q(version)}
    found = False
    # Clients look for Metadata's errors at the topic: a broker that reports one there names no partitions.
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
    # The code at the top of a Fetch answer is about its session; a poll without news names no partition.
    if api == "Fetch" and "partition_index" not in fields:
        return False
    for name in places:
        setattr(part, name, error_code)
    for name, value in beside.items():
        if name in fields:
            setattr(part, name, value)
    return True
