"""What a caller is told when its request ends without a response: retriable where the layer above may send it again."""

from __future__ import annotations

import kafka.errors as Errors

from tolerant_client.errors import (
    ConnectionLostError,
    ConnectionTimedOutError,
    OutcomeUnknownError,
    RecoveryExhaustedError,
    text_of,
)
from tolerant_client.tracker.events import Failed
from tolerant_client.tracker.lifecycle import Verdict


def error_of(event: Failed, node: str) -> BaseException:
    """The error of a request that failed on the connection to `node`."""
    entry = event.request
    what = f"{node}: {event.api} v{entry.request.API_VERSION} (correlation id {event.correlation_id})"
    if event.verdict is Verdict.EXHAUSTED:
        return RecoveryExhaustedError(f"{what}: sent {entry.resends + 1} times without a response", entry.history)
    if event.verdict is Verdict.CLOSED:
        return lost(event.error or Errors.Cancelled(f"{what}: the connection was closed"), what)
    if event.verdict is Verdict.HAND_UP:
        return Errors.KafkaConnectionError(f"{what}: the response is lost ({event.reason})")  # type: ignore[no-any-return]
    error = OutcomeUnknownError(f"{what}: {event.reason}; it may have been carried out. {entry.request.row.check}")
    error.__cause__ = event.error
    return error


def lost(cause: BaseException, what: str) -> BaseException:
    """What the caller of a request is told when `cause` ended its connection: a KafkaConnectionError.

    kafka-python retries these, and in a transaction only these.  A broker's own
    error (refused credentials) and a close are handed up as they are.
    """
    is_timeout = isinstance(cause, Errors.RequestTimedOutError)
    says_enough = isinstance(cause, (Errors.KafkaConnectionError, Errors.Cancelled, Errors.BrokerResponseError))
    if says_enough and not is_timeout:
        return cause
    kind = ConnectionTimedOutError if is_timeout else ConnectionLostError
    error: BaseException = kind(f"{what}: the connection was lost: {text_of(cause)}")
    error.__cause__ = cause
    return error
