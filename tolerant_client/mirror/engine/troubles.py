"""What went wrong with a partition since it last moved.  A finding that would stop the partition is believed only when it is
made three times without progress in between.

No clock here: time is an argument.
"""

from __future__ import annotations

from collections import deque

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.patience import BELIEVED_AFTER, Backoff
from tolerant_client.cluster.producer.partition import is_too_large
from tolerant_client.errors import PartitionRefusedError, TargetDivergedError, TolerantClientError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.state.link_control import link_options
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS

# What deleting a target topic takes.
WITH_WHAT_IT_HAS = "with what only it has (compare both with tolerant-kafka verify first)"
_ABSENT_S = 3.0  # brokers learn of a new topic at slightly different times
_PAUSES = Backoff()

# Refusals that only mean "this is not the next batch": another writer appended it
# (45, 46), or the broker's producer state is not what we read (47, 59).
_NOT_NEXT = {
    Errors.OutOfOrderSequenceNumberError.errno,
    Errors.DuplicateSequenceNumberError.errno,
    Errors.InvalidProducerEpochError.errno,
    Errors.UnknownProducerIdError.errno,
    Errors.OffsetOutOfRangeError.errno,
}


class Troubles:
    """The troubles of one partition; `count` is their number ever, `since` when those after the last move began."""

    def __init__(self) -> None:
        self.count = 0
        self.since: float | None = None
        self.absent_since: float | None = None
        self._reasons: deque[str] = deque(maxlen=5)
        self._doubts = 0
        self._damage = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The last ones since the partition moved."""
        return tuple(self._reasons)

    def add(self, reason: str, now: float) -> float | None:
        """Records a trouble; returns how many seconds to wait before the next try, or None to try at once."""
        self.count += 1
        pause_s = None
        if self.since is None:
            self.since = now
        elif len(self._reasons) > 1:
            pause_s = _PAUSES.pause_s(self._doubts + len(self._reasons))
        self._reasons.append(reason)
        return pause_s

    def is_believed(self) -> bool:
        """Counts a finding that would stop the partition; True once it was made often enough."""
        self._doubts += 1
        return self._doubts >= BELIEVED_AFTER

    def damaged(self, what: str) -> None:
        """Counts findings of damage anew if this damage differs from the last: damage that changes happened in transit."""
        if what != self._damage:
            self._damage, self._doubts = what, 0

    def is_absent_for_good(self, now: float) -> bool:
        """Notes that the target does not have the partition; True once that lasts."""
        if self.absent_since is None:
            self.absent_since = now
        return now - self.absent_since > _ABSENT_S

    def moved(self) -> None:
        """Notes that the log has grown or is whole.  Findings still count: only a response shows whether a refusal persists."""
        self.since = None
        self._reasons.clear()

    def progressed(self) -> None:
        """Notes that something was appended."""
        self.moved()
        self._doubts = 0


def refusal(
    partition: str, doing: str, offset: int, error_code: int, right: str, reason: str = ""
) -> PartitionRefusedError | None:
    """The error that stops a partition whose fetch or append is refused with this code repeatedly; None for a passing refusal.

    `right` is what such a request needs of its topic, with topic and cluster; `reason` is what the broker says of this refusal.
    """
    error = Errors.for_code(error_code)
    if error_code in _NOT_NEXT or getattr(error, "retriable", False):
        return None
    # What brokers say of a timestamp has the time of each try, and the record's place in our batch as its offset.
    is_steady = error is not Errors.InvalidTimestampError
    said = (reason if is_steady else "") or getattr(error, "description", "")
    return PartitionRefusedError(
        f"{partition}: {doing} at offset {offset} was refused with {error.__name__} (error {error_code}: {said})"
    ).advising(remedy(error_code, right))


def gone(partition: str) -> TolerantClientError:
    """The error that stops a partition that the target no longer has."""
    return TolerantClientError(
        f"{partition}: the target no longer has this partition: its topic was deleted there; the"
        " mirror creates the topic and fills it again at its next check of the topics, or at its next start"
    )


def shortened(partition: str, finding: str) -> TargetDivergedError:
    """The error for a log of the target that has become shorter than what was acknowledged."""
    return TargetDivergedError(
        f"The target log of {partition} has become shorter while the mirror wrote it: {finding}; its topic was deleted"
        " and created again there, or an election took records back"
    ).advising(fill_again())


def fill_again(*, is_begun: bool = True) -> str:
    """How an operator has a target topic copied again, and what that deletes.

    Where the control does not say that the link `is_begun` there, it may have been promoted, and the control deleted since.
    """
    how = f"delete the target topic, {WITH_WHAT_IT_HAS}: the next start creates it and fills it again"
    if is_begun:
        return how
    return (
        f"{how}. But the control does not say that the link has begun this log: if it was promoted before, and the control was deleted"
        " since, the topic is its applications', and tolerant-kafka failover writes that down again"
    )


def times_would_change(partition: str) -> PartitionRefusedError:
    """The error that stops a partition whose target topic has LogAppendTime (M6)."""
    return PartitionRefusedError(
        f"{partition}: the target's topic has message.timestamp.type=LogAppendTime, which would rewrite timestamps"
    ).advising("set it to CreateTime, and a running mirror resumes")


def read_refusal(partition: TopicPartition, source_topic: str, what: str) -> PartitionRefusedError:
    """The error that stops a partition whose position cannot be found, since a cluster does not let us read a log of it."""
    topic, number = partition
    there = f"topic {topic} and topics that begin with {OWN_TOPICS} of the target"
    right = f"Read, Describe and DescribeConfigs on topic {source_topic} of the source, and on {there},"
    refused = Errors.TopicAuthorizationFailedError.errno
    return PartitionRefusedError(f"{topic}-{number}: {what}").advising(remedy(refused, right))


def copy_refusal(what: str, error: BaseException | None, topic: str, source_topic: str) -> PartitionRefusedError:
    """The error that stops a translated copy into a topic, and the rows of its map, which one of the clusters refuses."""
    there = f"Write, Read and Describe on topic {topic} and on topics that begin with {OWN_TOPICS} of the target"
    right = f"Read and Describe on topic {source_topic} of the source, and {there},"
    return PartitionRefusedError(what).advising(remedy(error_code(error), right))


def error_code(error: BaseException | None) -> int | None:
    """The code of a broker's response, if the error is one."""
    return error.errno if isinstance(error, Errors.BrokerResponseError) else None


def remedy(error_code: int | None, right: str, otherwise: str = "check the topic's configuration and ACLs") -> str:
    """What an operator does about a request that is refused with this code, and for lack of `right` if that is the reason."""
    if error_code is not None and is_too_large(error_code):
        return (
            "raise max.message.bytes of the target's topic, or set its compression.type to producer: with another one its brokers"
            " store batches otherwise than the source's"
        )
    lacking = {
        Errors.TopicAuthorizationFailedError.errno: right,
        Errors.ClusterAuthorizationFailedError.errno: "IdempotentWrite on the target cluster",  # before Kafka 2.8
        Errors.TransactionalIdAuthorizationFailedError.errno: f"Write on transactional ids that begin with {OWN_TOPICS} of"
        " the target",
    }.get(error_code)
    return otherwise if lacking is None else f"grant {lacking} to the mirror's user, and a running mirror resumes"


def fill_remedy(error: Errors.KafkaError, right: str) -> str:
    """What an operator can do if a target refuses to have a gap filled otherwise than with records."""
    if isinstance(error, Errors.InvalidTimestampError):
        return (
            "the filler's time is this machine's: set its clock right (tolerant-kafka doctor compares it with the brokers'), or"
            " raise message.timestamp.after.max.ms (clock ahead) or message.timestamp.before.max.ms of the target's topic"
        )
    return remedy(error_code(error), right, f"check the mirror's ACLs, or set {GapFill.RECORDS.option}")


def others_remedy(topic: str, link: str, target: Cluster, *, is_begun: bool) -> str:
    """What an operator does about records of others in a topic that the link has on its target.

    Where the control does not say that the link `is_begun` there, it may have been promoted, and the control deleted: then the topic
    is its applications'.
    """
    which = link_options(link, target)
    others = (
        "Stop that producer. If nobody needs what others wrote there, delete the target topic: the next start fills it again"
        if is_begun
        else "Nothing on the target says that the link has begun this log. If it was promoted before, and the control was deleted since, the"
        f" topic is its applications': run tolerant-kafka failover {which}{'' if target.file_options else ' --topics REGEX'}, which writes"
        " that down again. If not, leave the topic out"
    )
    return (
        f"{others}; to copy after what others wrote, if nothing was copied there yet: a link of its own with --offsets translated and"
        f" another --link; to have the other topics copied until then: tolerant-kafka pause {which} --topic {topic}"
    )
