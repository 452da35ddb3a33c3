"""Keeps payloads and secrets out of what kafka-python logs, at every level.

kafka-python's debug lines print raw bytes, requests with their records, SASL
tokens and, in the admin client, the whole configuration.

Laws:
- Only a log record's arguments are replaced: levels, handlers and wording stay,
  and so do arguments that are neither payload nor secret.
- But the end of a connection that a client leaves because it moves is logged as INFO, not as an ERROR: it is no failure.
- What is not logged costs nothing: filters see only records of enabled levels.
- Only kafka-python's own loggers are filtered, not an application's `kafka.mine`.
- A filter must not raise: logging would raise it in the code that logs.  What cannot be inspected is not printed.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from kafka.protocol.data_container import DataContainer
from kafka.structs import OffsetAndMetadata

from tolerant_client.errors import ClientMovesError
from tolerant_client.stock.stock_names import ABCRecord

_MAX_DEPTH = 8  # of containers in containers; deeper ones are not printed
_TINY = 2  # bytes: a reply code of a proxy, not a payload
_SECRET_NAMES = ("pas", "pwd", "secret", "token", "proxy")  # also a mistyped password; a proxy's URL may carry one


class Description(str):
    """What is printed instead of a value; %s and %r print the same."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_HIDDEN = Description("<hidden>")
_UNPRINTABLE = Description("<unprintable>")  # its attributes raise, or another thread changes it

# Lines whose payload no type gives away, by their wording: the positions of the arguments to hide.
_PAYLOAD_AT = {
    "%s: Sending (key=%r value=%r headers=%r) to %s": (1, 2, 3),
    "Sending x01 response to server after receiving SASL OAuth error: %s": (0,),
    "HTTP CONNECT to proxy failed: %r": (0,),
}


def attach() -> None:
    """Masks the log lines of every kafka-python module imported so far; harmless to repeat."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        is_kafkas = name == "kafka" or (name.startswith("kafka.") and name in sys.modules)
        if is_kafkas and isinstance(logger, logging.Logger):
            logger.addFilter(_mask)


def _mask(record: logging.LogRecord) -> bool:
    """A logging filter that passes everything, but what is only INFO where that is not wanted."""
    if not record.args:
        return True
    places = _PAYLOAD_AT.get(record.msg, ()) if isinstance(record.msg, str) else ()
    if isinstance(record.args, Mapping):
        # logging unpacks a dictionary that is the only argument.
        record.args = _safely_masked(record.args)
        return True
    is_wanted = True
    if record.levelno > logging.INFO and any(isinstance(arg, ClientMovesError) for arg in record.args):
        record.levelno, record.levelname = logging.INFO, "INFO"
        is_wanted = logging.getLogger(record.name).isEnabledFor(logging.INFO)
    record.args = tuple(_HIDDEN if at in places else _safely_masked(arg) for at, arg in enumerate(record.args))
    return is_wanted


def _safely_masked(value: Any) -> Any:
    try:
        return masked(value)
    except Exception:
        return _UNPRINTABLE


def masked(value: Any, depth: int = 0) -> Any:
    """The value as it may be printed: without bytes, records, requests, responses and secrets."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value if len(value) <= _TINY else Description(f"<{len(value)} bytes>")
    if isinstance(value, DataContainer):
        version = getattr(value, "_version", None)
        return Description(f"<{type(value).__name__}{'' if version is None else f' v{version}'}>")
    if isinstance(value, ABCRecord):
        return Description(f"<{type(value).__name__} at offset {value.offset}>")
    if isinstance(value, OffsetAndMetadata):
        return value._replace(metadata=_HIDDEN) if value.metadata else value
    if hasattr(value, "headers") and hasattr(value, "serialized_value_size"):
        return Description(f"<{type(value).__name__} {value.topic}-{value.partition} at offset {value.offset}>")
    if isinstance(value, BaseException):
        # UnicodeDecodeError and others carry what they failed on.
        return Description(f"<{type(value).__name__}>") if any(_is_payload(arg) for arg in value.args) else value
    return _masked_container(value, depth + 1)


def _masked_container(value: Any, depth: int) -> Any:
    if not isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        return value
    if depth > _MAX_DEPTH:
        return Description(f"<{type(value).__name__} of {len(value)}>")
    if isinstance(value, dict):
        return {
            masked(key, depth): _HIDDEN if _is_secret(key) and item is not None else masked(item, depth)
            for key, item in list(value.items())  # which another thread may change
        }
    items = [masked(item, depth) for item in list(value)]
    if isinstance(value, tuple):
        return value._make(items) if hasattr(value, "_make") else tuple(items)
    if isinstance(value, frozenset):
        return frozenset(items)
    return set(items) if isinstance(value, set) else items


def _is_secret(key: object) -> bool:
    return isinstance(key, str) and any(part in key.lower() for part in _SECRET_NAMES)


def _is_payload(value: object) -> bool:
    return masked(value) is not value
