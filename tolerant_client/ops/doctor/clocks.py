"""Clock errors, as far as they can be seen without writing.  Pure.

There is no request for a broker's time.  Visible are: the active controller's clock (DescribeQuorum reports the time of
its response, KIP-836), and the latest timestamps of logs: a timestamp set by a broker (LogAppendTime, group commits,
transaction states) that is later than our clock proves that its clock, or ours, is wrong.  A broker whose clock is slow,
and clusters with ZooKeeper, show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from kafka.structs import TopicPartition

from tolerant_client.ops.doctor.facts import INTERNAL_TOPICS, ClusterFacts, Quorum
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, some

_WARN_MS, _ERROR_MS = 5_000, 300_000  # Kerberos and most token checks allow five minutes
_FUTURE_MS = 3_600_000  # message.timestamp.after.max.ms of Kafka 4 (KIP-1030)
_TIMESTAMP_TYPE = "message.timestamp.type"
_REMEDY = "Set the clocks by NTP: retention, timestamps of records, tokens and certificates depend on them"


def skew_ms(quorum: Quorum) -> tuple[float, float]:
    """How far the controller's clock is ahead of ours, and the uncertainty of that, in ms."""
    middle = (quorum.asked_ms + quorum.answered_ms) / 2
    return quorum.leader_time_ms - middle, (quorum.answered_ms - quorum.asked_ms) / 2 + 1


@check("clocks")
def clock_findings(name: str, quorum: Quorum | None) -> Iterator[Told]:
    """The controller's clock against ours."""
    if quorum is None or quorum.leader_time_ms <= 0:
        yield Told(
            Severity.INFO,
            "clock of the brokers",
            "it cannot be seen without writing: only controllers of Kafka 3.3 and newer (KRaft) report their time",
            "Compare the hosts' clocks (chronyc tracking)",
        )
        return
    skew, doubt = skew_ms(quorum)
    severity = _severity(abs(skew) - doubt)
    if severity is not None:
        yield Told(
            severity,
            f"clock of controller {quorum.leader}",
            f"it is {duration(skew)} {'ahead of' if skew > 0 else 'behind'} ours (to within {doubt / 1000:.1f} s)",
            _REMEDY,
        )


@check("clocks", cluster="link")
def both_clocks_findings(source: Quorum | None, target: Quorum | None) -> Iterator[Told]:
    """The controllers of both clusters against each other."""
    if source is None or target is None or min(source.leader_time_ms, target.leader_time_ms) <= 0:
        return
    (first, doubt), (second, more_doubt) = skew_ms(source), skew_ms(target)
    severity = _severity(abs(first - second) - doubt - more_doubt)
    if severity is not None:
        yield Told(
            severity,
            "clocks of both clusters",
            f"the target's controller is {duration(second - first)} {'ahead of' if second > first else 'behind'} the source's",
            _REMEDY,
        )


@check("clocks")
def future_findings(facts: ClusterFacts, newest: Mapping[TopicPartition, int], now_ms: int) -> Iterator[Told]:
    """Timestamps later than our clock; `newest` is the latest of each partition."""
    stamped: dict[int, list[tuple[int, str]]] = {}  # by the broker that set the timestamps
    ahead: dict[str, int] = {}
    for partition, timestamp in newest.items():
        early = timestamp - now_ms
        is_brokers = (
            partition.topic in INTERNAL_TOPICS or facts.config(partition.topic, _TIMESTAMP_TYPE) == "LogAppendTime"
        )
        if is_brokers and early > _WARN_MS:
            stamped.setdefault(facts.leader_of(partition), []).append(
                (early, f"{partition.topic}-{partition.partition}")
            )
        elif not is_brokers and early > _FUTURE_MS:
            ahead[partition.topic] = max(timestamp, ahead.get(partition.topic, 0))
    for leader, found in sorted(stamped.items()):
        early, where = max(found)
        yield Told(
            _severity(early) or Severity.WARNING,
            f"clock of broker {leader}",
            f"it, or a broker that led {where} before it, has stamped a record {duration(early)} ahead of our clock",
            _REMEDY,
        )
    if ahead:
        latest = max(ahead, key=lambda topic: ahead[topic])
        yield Told(
            Severity.WARNING,
            f"topic {some(sorted(ahead))}",
            f"records have timestamps more than {duration(_FUTURE_MS)} ahead of our clock, {latest} up to {_time(ahead[latest])}:"
            " their segments are kept until then, and a broker of Kafka 4 refuses such records by default",
            "Correct the producers' clocks or timestamps; give a target topic message.timestamp.after.max.ms=9223372036854775807",
        )


def _severity(skew: float) -> Severity | None:
    return Severity.ERROR if skew > _ERROR_MS else Severity.WARNING if skew > _WARN_MS else None


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
