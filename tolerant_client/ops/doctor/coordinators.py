"""Coordinator partitions that do not serve, and the groups and transactional ids that this breaks (incident 3).  Pure.

No broker lists a group whose coordinator is unavailable: the groups that are hit can be named only if their names are
known from elsewhere (the other cluster, the command line).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.facts import ClusterFacts, Partition, Topic
from tolerant_client.ops.doctor.finding import Severity, Told, check, some
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_of

_WHO = {OFFSETS_TOPIC: "group", TRANSACTIONS_TOPIC: "transactional id"}
_REPLICATION_SETTING = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}


@check("coordinators")
def coordinator_findings(facts: ClusterFacts, topic: str, names: Collection[str]) -> Iterator[Told]:
    """Findings of __consumer_offsets and group ids, or of __transaction_state and transactional ids."""
    found = facts.topics.get(topic)
    if found is None:
        yield from _not_there(facts, topic)
        return
    if found.error_code:
        yield Told(
            Severity.INFO,
            f"topic {topic}",
            f"we may not see it: whether every {_WHO[topic]} has a coordinator is unknown",
            f"Allow Describe on topic {topic}",
        )
        return
    min_isr = facts.min_isr(topic)
    leaderless = [p for p in found.partitions if p.leader < 0]
    silent = [p for p in found.partitions if p.leader in facts.silent]
    below = [p for p in found.partitions if facts.is_below_min_isr(p)]
    short = [p for p in found.partitions if p.leader >= 0 and len(p.isr) < len(p.replicas) and p not in below]
    kind = _WHO[topic]
    for partitions, problem in (
        (leaderless, f"no leader: each {kind} there waits for a coordinator for ever (error 15)"),
        (silent, f"a leader that does not respond here: no {kind} there can continue"),
        (below, f"fewer in-sync replicas than min.insync.replicas={min_isr}: no {kind} there can commit"),
    ):
        if partitions:
            yield _finding(facts, found, partitions, problem, _of(partitions, names, len(found.partitions)))
    if short:
        yield Told(
            Severity.WARNING,
            _label(topic, short),
            f"{len(short)} of {len(found.partitions)} have replicas that are not in sync. {_first(short[0])}",
            f"Start {_away(facts, short)}, or check why the replicas lag",
        )


def _of(partitions: Iterable[Partition], names: Collection[str], count: int) -> dict[int, list[str]]:
    hit: dict[int, list[str]] = {p.index: [] for p in partitions}
    for name in sorted(names):
        index = partition_of(name, count)
        if index in hit:
            hit[index].append(name)
    return hit


def _finding(
    facts: ClusterFacts, topic: Topic, partitions: Sequence[Partition], problem: str, hit: dict[int, list[str]]
) -> Told:
    kind = _WHO[topic.name]
    known = [f"{name} ({topic.name}-{index})" for index, names in hit.items() for name in names]
    whom = (
        f"hit of those we know: {some(known)}"
        if known
        else f"no {kind} that we know is hit, but no broker lists one whose coordinator is unavailable"
    )
    in_sync = {n for p in partitions for n in p.isr if n not in facts.living}
    unclean = (
        f"; only {facts.named(in_sync)} had everything: an unclean election would lose what the others lack"
        if in_sync
        else ""
    )
    return Told(
        Severity.ERROR,
        _label(topic.name, partitions),
        f"{len(partitions)} of {len(topic.partitions)} have {problem}; {whom}. {_first(partitions[0])}",
        f"Start {_away(facts, partitions)}, or if that is impossible, reassign these"
        f" partitions to brokers that run{unclean}. To see whether a {kind} is hit: doctor"
        f" {'--group' if kind == 'group' else '--transactional-id'} NAME",
    )


def _label(topic: str, partitions: Sequence[Partition]) -> str:
    return f"{topic} {'partition' if len(partitions) == 1 else 'partitions'} {some([p.index for p in partitions])}"


def _away(facts: ClusterFacts, partitions: Iterable[Partition]) -> str:
    away = {n for p in partitions for n in p.replicas if n not in facts.living or n in facts.silent or n not in p.isr}
    return facts.named(away) if away else "the brokers that hold them"


def _first(partition: Partition) -> str:
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    return f"{partition}: leader {leader}, replicas {some(partition.replicas)}, in sync {some(partition.isr)}"


def _not_there(facts: ClusterFacts, topic: str) -> Iterator[Told]:
    """Brokers create the topic for the first group or transaction, unless it needs more replicas than there are brokers."""
    wanted = facts.broker_setting(_REPLICATION_SETTING[topic])
    brokers = len(facts.living)
    if wanted is not None and int(wanted) > brokers:
        yield Told(
            Severity.ERROR,
            f"topic {topic}",
            f"it does not exist and cannot be created: {_REPLICATION_SETTING[topic]}={wanted}, and there are"
            f" {counted(brokers, 'broker')}",
            f"Start more brokers, or set {_REPLICATION_SETTING[topic]} to {brokers} at most",
        )
