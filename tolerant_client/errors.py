"""Every error that tolerant-client raises, in one tree.

    TolerantClientError(KafkaError)
      ConnectionLostError(+KafkaConnectionError)        the connection of a request ended; `__cause__` says why
        ConnectionTimedOutError(+RequestTimedOutError)  ... because a request on it got no response in time
        ClientMovesError                                ... because its client moves to another cluster
      SslAuthenticationError(+KafkaConnectionError)     one side refused the other in the TLS handshake: a certificate, a version
      CorrelationIdMismatchError(+CorrelationIdError)   a response that no request waits for
      FrameError(+InvalidReceiveError)                  bytes that are no Kafka frame
      RecoveryExhaustedError(+KafkaConnectionError)     gave up after `history`
      OutcomeUnknownError                               may have been applied; we never send it again
        TransactionOutcomeUnknownError(+kafka's ProducerFencedError)
                                                        a commit that may or may not have taken effect
      RecordBatchError(+CorruptRecordError)             a record batch that cannot be trusted
      OptionError(+ValueError)                          a wrong option, found before anything is written
      ClusterUnreachableError                           no broker of a cluster responds
      LoginRefusedError(+SaslAuthenticationFailedError) a cluster refuses our login until somebody corrects it
      TargetDivergedError                               the target log holds what the source does not
      DataLossError                                     the source no longer has what should be copied
        SourceTruncatedError                            ... or what was already copied: it was truncated or recreated
      LinkPausedError                                   an operator has paused a partition of the link
      LinkPromotedError                                 the link was promoted and may not write any more
      TargetClaimedError                                another mirror writes this partition of the target
      StoppedError                                      a stop was asked for during a wait; what was waited for is given up
      UnsupportedSourceError                            the source has something that we do not copy yet
      PartitionRefusedError                             a cluster refuses to read or write a partition: a right or setting
        OrdersHiddenError                               ... or the operator's orders, without which nothing is copied
      OversizedRecordError                              a record too large for any batch that the target takes
      OffsetMapError                                    a translated link's offset map contradicts what was copied
      CoordinatorUnavailableError(+CoordinatorNotAvailableError, +KafkaTimeoutError)
                                                        a group or transactional id has no coordinator
      NotMirroredError(+KafkaTimeoutError)              a record that its own cluster has, and a standby perhaps not
      DeliveryTimeoutError(+KafkaTimeoutError)          records were not acknowledged in time; may have been written
      RecordRefusedError                                a record that the broker or the topic refuses
        RecordTooLargeError                             ... because of its size
      ProducerFencedError                               another producer has taken over the transactional.id
      RepeatDiffersError                                a repeated write has other rows than the committed one

A message names the thing, the place and the remedy.  All of them pickle, so
that the driver can raise what a Spark worker raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from kafka.errors import (
    CoordinatorNotAvailableError,
    CorrelationIdError,
    CorruptRecordError,
    InvalidReceiveError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
)
from kafka.errors import ProducerFencedError as KafkaProducerFencedError

_Error = TypeVar("_Error", bound="TolerantClientError")


class TolerantClientError(KafkaError):  # type: ignore[misc]  # kafka-python is untyped
    """Base of every error raised by tolerant-client; `remedy` is the end of its message that says what to do, if that is known."""

    args: tuple[Any, ...]
    remedy = ""

    def __str__(self) -> str:
        return self._text().replace("\n", "\\n")  # a name within it may have a line end, which Spark's texts are cut at

    def _text(self) -> str:
        return str(super().__str__())

    @property
    def finding(self) -> str:
        """Its message without class name and remedy."""
        return str(self.args[0]).removesuffix(self.remedy).rstrip("; ") if self.remedy else str(self.args[0])

    def advising(self: _Error, remedy: str) -> _Error:
        """This error with a remedy at the end of its message; one that begins with a capital letter is a sentence of its own."""
        message = f"{self.args[0]}{'.' if remedy[:1].isupper() else ';'} {remedy}"
        self.args = (message, *self.args[1:])
        self.remedy = remedy
        return self


class ConnectionLostError(TolerantClientError, KafkaConnectionError):  # type: ignore[misc]
    """The connection of a request ended before its response; `__cause__` says why.  Retriable."""


class ConnectionTimedOutError(ConnectionLostError, RequestTimedOutError):  # type: ignore[misc]
    """The connection of a request was given up because a request on it got no response in time."""

    def _text(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class ClientMovesError(ConnectionLostError):
    """The client has ended the connection of a request, since it moves to the cluster that a promotion leads it to."""


class SslAuthenticationError(TolerantClientError, KafkaConnectionError):  # type: ignore[misc]
    """One side refused the other in the TLS handshake: its certificate, version or cipher."""


class CorrelationIdMismatchError(TolerantClientError, CorrelationIdError):  # type: ignore[misc]
    """A response carried a correlation id that no request in flight has."""

    def __init__(self, message: str, expected: int | None = None, received: int | None = None) -> None:
        super().__init__(message, expected, received)
        self.expected = expected
        self.received = received

    def _text(self) -> str:
        return str(self.args[0])


class FrameError(TolerantClientError, InvalidReceiveError):  # type: ignore[misc]
    """The bytes received are not a Kafka frame; the connection cannot continue."""


class RecoveryExhaustedError(TolerantClientError, KafkaConnectionError):  # type: ignore[misc]
    """A request was lost more often than the policy allows; `history` lists each loss."""

    def __init__(self, message: str, history: Sequence[str] = ()) -> None:
        super().__init__(message, tuple(history))
        self.history = tuple(history)

    def _text(self) -> str:
        return "; ".join(dict.fromkeys([str(self.args[0]), *self.history]))


class OutcomeUnknownError(TolerantClientError):
    """The request may have been applied: its response was lost and a repeat is not safe."""


class TransactionOutcomeUnknownError(OutcomeUnknownError, KafkaProducerFencedError):  # type: ignore[misc]
    """A transaction may or may not be committed; the producer has ended, and who handles fencing handles this."""

    def _text(self) -> str:
        return str(self.args[0])


class RecordBatchError(TolerantClientError, CorruptRecordError):  # type: ignore[misc]
    """A record batch that cannot be trusted; `offset` is its base offset."""

    def __init__(self, message: str, offset: int = -1) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def _text(self) -> str:
        return f"{self.args[0]} (base offset {self.offset})"

    def at(self, place: str) -> RecordBatchError:
        """The same error, with the partition in its message."""
        return RecordBatchError(f"{place}: {self.args[0]}", self.offset)


class OptionError(TolerantClientError, ValueError):
    """A wrong option or an impossible combination; nothing has been written."""


class ClusterUnreachableError(TolerantClientError):
    """No broker of a cluster could be reached; `cluster` is "source" or "target", or "" where that is not known."""

    def __init__(self, message: str, cluster: str = "") -> None:
        super().__init__(message, cluster)
        self.cluster = cluster

    def _text(self) -> str:
        return str(self.args[0])


class LoginRefusedError(TolerantClientError, SaslAuthenticationFailedError):  # type: ignore[misc]
    """The brokers of `cluster` refuse our login (SASL); no retry helps until somebody corrects it on either side."""

    def __init__(self, message: str, cluster: str = "") -> None:
        super().__init__(message, cluster)
        self.cluster = cluster

    def _text(self) -> str:
        return str(self.args[0])


class TargetDivergedError(TolerantClientError):
    """The target log holds records that the source does not have at these offsets."""


class DataLossError(TolerantClientError):
    """The source no longer has records that should have been copied."""


class SourceTruncatedError(DataLossError):
    """The source no longer has records that were copied: it was truncated, or its topic recreated."""


class LinkPausedError(TolerantClientError):
    """An operator has paused a partition, its topic or the whole link; nothing is wrong."""


class LinkPromotedError(TolerantClientError):
    """The link was promoted: its target belongs to its own producers, and the link may not write there any more."""


class TargetClaimedError(TolerantClientError):
    """Another mirror writes this partition of the target; one partition has one writer."""


class StoppedError(TolerantClientError):
    """A stop was asked for while something was waited for, which is given up; nothing is wrong."""


class UnsupportedSourceError(TolerantClientError):
    """The source log holds something that the mirror does not copy yet."""


class PartitionRefusedError(TolerantClientError):
    """A cluster refuses to let us read or write a partition until somebody grants a right or corrects a setting."""


class OrdersHiddenError(PartitionRefusedError):
    """The target does not let us read a link's control, so whether the link is paused or promoted is unknown."""


class OversizedRecordError(TolerantClientError):
    """A source record that exceeds the target's max.message.bytes even in a batch of its own.

    `size` is that of the batch as it would be sent, `limit` is what the target takes; both in bytes.
    """

    def __init__(self, message: str, offset: int = -1, size: int = -1, limit: int = -1) -> None:
        super().__init__(message, offset, size, limit)
        self.offset = offset
        self.size = size
        self.limit = limit

    def _text(self) -> str:
        return str(self.args[0])

    def at(self, place: str) -> OversizedRecordError:
        """The same error, with the partition in its message."""
        made = OversizedRecordError(f"{place}: {self}", self.offset, self.size, self.limit)
        made.remedy = self.remedy
        return made


class OffsetMapError(TolerantClientError):
    """The offset map of a translated link holds what no mirror has written, or contradicts the target's log."""


class CoordinatorUnavailableError(TolerantClientError, CoordinatorNotAvailableError, KafkaTimeoutError):  # type: ignore[misc]
    """No broker coordinates a group (or, with `topic` __transaction_state, a transactional id).

    `partition` of `topic` is the one that `group` hashes to, -1 where the topic
    could not be seen; `leader` is -1 where there is none; `replicas` and `isr`
    are node ids; `waited_ms` is how long we looked for it.  Retriable: the
    next call looks for it again, for as long.
    """

    def __init__(
        self,
        message: str,
        group: str = "",
        topic: str = "",
        partition: int = -1,
        leader: int = -1,
        replicas: Sequence[int] = (),
        isr: Sequence[int] = (),
        waited_ms: float = 0.0,
    ) -> None:
        super().__init__(message, group, topic, partition, leader, tuple(replicas), tuple(isr), waited_ms)
        self.group = group
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.waited_ms = waited_ms

    def _text(self) -> str:
        return str(self.args[0])


class NotMirroredError(TolerantClientError, KafkaTimeoutError):  # type: ignore[misc]
    """A record of a producer with `acks="mirrored"` that is written on its own cluster, at `offset`, and was not seen on the standby.

    `offset` is negative where the leader did not tell it.
    """

    def __init__(self, why: str, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(why, topic, partition, offset)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def _text(self) -> str:
        at = f" at offset {self.offset}" if self.offset >= 0 else ""
        return f"{self.topic}-{self.partition}: the record is written on its own cluster{at}, but {self.args[0]}"


class DeliveryTimeoutError(TolerantClientError, KafkaTimeoutError):  # type: ignore[misc]
    """Records were not acknowledged within delivery.timeout.ms or `retries`; some of them may have been written."""


class RecordRefusedError(TolerantClientError):
    """A record that cannot be written to its destination, however often it is tried.

    `row` counts the rows of the task that wrote it from 0, and is -1 where it is
    not known; `partition` is -1 where none was chosen.
    """

    def __init__(self, message: str, topic: str = "", partition: int = -1, row: int = -1) -> None:
        super().__init__(message, topic, partition, row)
        self.topic = topic
        self.partition = partition
        self.row = row

    def _text(self) -> str:
        return str(self.args[0])


class RecordTooLargeError(RecordRefusedError):
    """A record that is larger than its topic, or max.request.size, allows."""


class ProducerFencedError(TolerantClientError):
    """Another producer took over the transactional.id, or the transaction timed out: it can no longer commit."""


class RepeatDiffersError(TolerantClientError):
    """A repeated write has other rows than the committed one: it is not deterministic, its source has lost some, or it was planned again."""


def error_named(name: str) -> type[TolerantClientError] | None:
    """The class of ours with that name, by which another process's traceback tells it; None if there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, TolerantClientError) else None


def text_of(error: BaseException) -> str:
    """The text of an error without its class name, with which kafka-python begins its errors' texts."""
    return str(error).removeprefix(f"{type(error).__name__}: ")
