"""What a call of a transactional producer waits for, and how long.

Laws:
- Every call has an end.  A request that ends in a way that ends kafka-python's producer (above all: no response in
  time) bounds the waiting calls until a coordinator responds: after `max_block_ms` they raise a KafkaTimeoutError,
  which changes no state either.  So with a frozen coordinator calls end once both that and `request_timeout_ms` have
  passed.  Refused connections end neither kafka-python's calls nor ours.  Calls that still wait when the producer has
  been closed fail.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import kafka.errors as Errors

from tolerant_client.errors import TransactionOutcomeUnknownError

_LOOK_EVERY = 0.2  # seconds


class CallOwner(Protocol):
    """The transaction manager whose call waits."""

    transactional_id: str | None

    @property
    def is_closed(self) -> bool:
        """Whether nothing is sent any more."""

    def max_wait(self) -> float:
        """Seconds that a call without a timeout of its own may wait."""

    def answered(self) -> None:
        """Notes that a coordinator has responded."""

    def say_what_is_wrong(self, is_last_chance: bool) -> None:
        """Raises why a coordinator is away, if that is known and due."""


class WatchedResult:
    """kafka-python's TransactionalRequestResult, whose wait also watches the coordinator; `what` names the request."""

    def __init__(self, result: Any, owner: CallOwner, what: str) -> None:
        self._result = result
        self._owner = owner
        self._what = what
        self.is_told = False  # whether a caller knows its end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def wait(self, timeout_ms: float | None = None) -> bool:
        """True when the request is done, False when `timeout_ms` passed.

        Raises the request's own error, CoordinatorUnavailableError, without `timeout_ms` KafkaTimeoutError, and
        after the producer was closed TransactionOutcomeUnknownError (for a commit) or KafkaError.
        """
        began = time.monotonic()
        while True:
            longest = self._owner.max_wait() if timeout_ms is None else timeout_ms / 1000
            left = max(0.0, began + longest - time.monotonic())
            is_closed = self._owner.is_closed  # read first: what was done before the close is seen below
            if self._is_done(min(_LOOK_EVERY, left)):
                self._owner.answered()
                return True
            if is_closed:
                raise self._closed()
            self._owner.say_what_is_wrong(is_last_chance=left == 0)
            if left == 0 and timeout_ms is not None:
                return False
            if left == 0:
                raise Errors.KafkaTimeoutError(
                    f"{self._owner.transactional_id}: no response to the {self._what} within {longest:.1f} s"
                    " (max_block_ms); make the same call again to wait for it again"
                )

    def _is_done(self, patience: float) -> bool:
        try:
            is_done = bool(self._result.wait(timeout_ms=patience * 1000))
        except BaseException as error:  # an interrupt, too, which tells nobody what became of the request
            self.is_told = self.is_told or error is self._result.exception
            raise
        self.is_told = self.is_told or is_done
        return is_done

    def _closed(self) -> Errors.KafkaError:
        name = self._owner.transactional_id
        if self._what == "commit":
            return TransactionOutcomeUnknownError(
                f"{name}: the producer was closed before the response to the commit arrived: the transaction may or may"
                " not be committed. Read the topic, or the offsets that were committed with it, to find out"
            )
        return Errors.KafkaError(f"{name}: the producer was closed before the response to the {self._what} arrived")
