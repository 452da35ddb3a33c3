"""Leaders, in-sync replicas and brokers that change during the examination (incident 5).  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.facts import Partition
from tolerant_client.ops.doctor.finding import Severity, Told, check, some
from tolerant_client.tracker.storm import storm_threshold

_REMEDY = (
    "Check for brokers that lose their session (long garbage collections, slow disks, network): see the controller's log"
    " for fenced brokers, and broker.session.timeout.ms"
)


@dataclass(frozen=True)
class Snapshot:
    """All partitions and brokers at one time (monotonic seconds)."""

    at: float
    brokers: frozenset[int]
    partitions: Mapping[tuple[str, int], Partition]


@check("elections")
def election_findings(name: str, snapshots: Sequence[Snapshot]) -> Iterator[Told]:
    """The changes between the first snapshot and the last."""
    if len(snapshots) < 2:
        return
    seconds = snapshots[-1].at - snapshots[0].at
    elections: Counter[tuple[str, int]] = Counter()
    away_from: Counter[int] = Counter()
    isr_changes: Counter[tuple[str, int]] = Counter()
    for before, after in zip(snapshots, snapshots[1:]):
        for key, partition in after.partitions.items():
            known = before.partitions.get(key)
            if known is None:
                continue
            # Each election raises the epoch; a lower one belongs to a recreated topic, or to a broker with old metadata.
            raised = partition.leader_epoch - known.leader_epoch if known.leader_epoch >= 0 else 0
            count = max(raised, int(partition.leader != known.leader and partition.leader_epoch >= known.leader_epoch))
            if count > 0:
                elections[key] += count
                away_from[known.leader] += 1
            isr_changes[key] += set(partition.isr) != set(known.isr)
    yield from _moved(seconds, len(snapshots[-1].partitions), elections, away_from)
    unsteady = [key for key, count in isr_changes.items() if count >= 2]
    if unsteady:
        yield Told(
            Severity.WARNING,
            counted(len(unsteady), "partition"),
            f"replicas left and joined the in-sync replicas within {seconds:.0f} s: {some([_label(key) for key in unsteady])}",
            "Check for a replica that is slow (disk, network) compared with replica.lag.time.max.ms",
        )
    yield from _came_and_went(seconds, snapshots)


def _moved(seconds: float, known: int, elections: Counter[tuple[str, int]], away_from: Counter[int]) -> Iterator[Told]:
    if not elections:
        return
    total, threshold = sum(elections.values()), storm_threshold(known)
    nodes = [f"broker {node}" if node >= 0 else "no leader" for node, _ in away_from.most_common(3)]
    repeated = [f"{_label(key)} ({count} times)" for key, count in elections.most_common() if count > 1]
    often = f"; more than once: {some(repeated)}" if repeated else ""
    evidence = (
        f"{len(elections)} of {known} partitions were elected a leader {total} times in {seconds:.0f} s,"
        f" away from {some(nodes)}{often}"
    )
    is_storm = len(elections) >= threshold
    severity = Severity.ERROR if is_storm else Severity.WARNING if repeated else Severity.INFO
    thing = "election storm" if is_storm else f"leader of {some([_label(key) for key in elections], 3)}"
    remedy = (
        _REMEDY if severity is not Severity.INFO else "None needed if a broker was restarted; else run doctor again"
    )
    yield Told(severity, thing, evidence, remedy)


def _came_and_went(seconds: float, snapshots: Sequence[Snapshot]) -> Iterator[Told]:
    changes: Counter[int] = Counter()
    for before, after in zip(snapshots, snapshots[1:]):
        changes.update(before.brokers ^ after.brokers)
    for node, count in sorted(changes.items()):
        is_there = node in snapshots[-1].brokers
        if count == 1 and is_there:
            continue  # started once
        what = f"came and went {count} times" if count > 1 else "went away"
        yield Told(
            Severity.ERROR if not is_there or count > 2 else Severity.WARNING,
            f"broker {node}",
            f"it {what} within {seconds:.0f} s{'' if is_there else ', and is missing now'}",
            _REMEDY,
        )


def _label(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]}"
