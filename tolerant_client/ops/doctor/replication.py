"""Controllers, partitions and log directories that do not serve, or will not after one more failure.  Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from tolerant_client.cluster.admin.log_dirs import LogDir
from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.facts import INTERNAL_TOPICS, ClusterFacts, Partition, Quorum, Topic
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, size, some

_FULL, _NEARLY_FULL = 0.05, 0.15  # share of a log directory's bytes that is left
_KAFKA_STORAGE_ERROR = 56
_VOTER_LAG_MS = 30_000


@check("controller")
def controller_findings(facts: ClusterFacts, quorum: Quorum | None, failure: str = "") -> Iterator[Told]:
    """Missing controllers: without one a cluster elects no leaders and creates no topics.

    `quorum` is None with ZooKeeper, and if asking for it failed (`failure`).
    """
    if failure:
        yield _no_controller(f"brokers respond, but no active controller does ({failure})")
        return
    if quorum is None:
        if facts.controller is not None and facts.controller < 0:
            yield _no_controller("no broker names a controller")
        return
    if quorum.leader < 0:
        yield _no_controller("the quorum of the controllers has no leader")
        return
    behind = {
        node: quorum.leader_time_ms - caught_up
        for node, (_, caught_up) in quorum.voters.items()
        if node != quorum.leader and quorum.leader_time_ms > 0 and quorum.leader_time_ms - caught_up > _VOTER_LAG_MS
    }
    if behind:
        lags = [
            f"{node} ({'never caught up' if lag >= quorum.leader_time_ms else f'{duration(lag)} behind'})"
            for node, lag in behind.items()
        ]
        living, majority = len(quorum.voters) - len(behind), len(quorum.voters) // 2 + 1
        more = living - majority
        yield Told(
            Severity.WARNING if more else Severity.ERROR,
            f"controllers {some(sorted(behind))}",
            f"they do not follow the active controller {quorum.leader}: {some(lags)};"
            f" {living} of {len(quorum.voters)} do, {majority} are needed, so {more} more may fail",
            "Start them, or check their logs and the network between the controllers",
        )


def _no_controller(evidence: str) -> Told:
    return Told(
        Severity.ERROR,
        "controller",
        f"{evidence}: no leader is elected, no topic created, no configuration changed",
        "Start controllers until a majority runs, and check their logs",
    )


@check("partitions")
def partition_findings(facts: ClusterFacts) -> Iterator[Told]:
    """Topics with partitions that do not serve as they should; those of coordinators have their own check."""
    for name, topic in sorted(facts.topics.items()):
        if name not in INTERNAL_TOPICS:
            yield from _topic_findings(facts, topic)
    yield from _missing_brokers(facts)


def _topic_findings(facts: ClusterFacts, topic: Topic) -> Iterator[Told]:
    min_isr = facts.min_isr(topic.name)
    leaderless = [p for p in topic.partitions if p.leader < 0]
    silent = [p for p in topic.partitions if p.leader in facts.silent]
    led = [p for p in topic.partitions if p.leader >= 0]
    below = [p for p in led if facts.is_below_min_isr(p)]
    short = [p for p in led if len(p.isr) < len(p.replicas) and p not in below]
    at_least = [p for p in short if min_isr is not None and len(p.isr) == min_isr]
    if leaderless:
        yield _finding(
            topic, leaderless, Severity.ERROR, "have no leader: they can be neither read nor written",
            f"Start {_away(facts, leaderless)}; if they never come back, this loses what only they had:"
            f" {facts.tool('kafka-leader-election.sh')} --election-type unclean --topic {shlex.quote(topic.name)}"
            f" --partition {leaderless[0].index}",
        )  # fmt: skip
    if silent:
        yield _finding(
            topic, silent, Severity.ERROR, "are led by a broker that does not respond here",
            f"Restart or reconnect {facts.named(p.leader for p in silent)}",
        )  # fmt: skip
    if below:
        yield _finding(
            topic, below, Severity.ERROR,
            f"have fewer in-sync replicas than min.insync.replicas={min_isr}: writes with acks=all are refused",
            f"Start {_away(facts, below)}, or check why the replicas lag",
        )  # fmt: skip
    if short:
        one_more = f"; {len(at_least)} of them refuse writes after one more failure" if at_least else ""
        yield _finding(
            topic, short, Severity.WARNING, f"have replicas that are not in sync{one_more}",
            f"Start {_away(facts, short)}, or check why the replicas lag",
        )  # fmt: skip


def _finding(topic: Topic, partitions: Sequence[Partition], severity: Severity, what: str, remedy: str) -> Told:
    first = partitions[0]
    ids = some([p.index for p in partitions])
    evidence = (
        f"{len(partitions)} of {len(topic.partitions)} partitions ({ids}) {what}; partition {first.index}:"
        f" leader {first.leader if first.leader >= 0 else 'none'}, replicas {some(first.replicas)}, in sync {some(first.isr)}"
    )
    return Told(severity, f"topic {topic.name}", evidence, remedy)


def _away(facts: ClusterFacts, partitions: Iterable[Partition]) -> str:
    away = {node for p in partitions for node in p.replicas if node not in p.isr or node not in facts.living}
    return facts.named(away) if away else "the brokers that hold them"


def _missing_brokers(facts: ClusterFacts) -> Iterator[Told]:
    held: dict[int, int] = {}
    for topic in facts.topics.values():
        for partition in topic.partitions:
            for node in partition.replicas:
                if node not in facts.living:
                    held[node] = held.get(node, 0) + 1
    fenced = {node for node, broker in facts.brokers.items() if broker.is_fenced}
    for node in sorted(held.keys() | fenced):
        state = (
            "is registered, and sends the controller no heartbeats (fenced)" if node in fenced else "is not registered"
        )
        replicas = f"; {counted(held[node], 'replica')} assigned to it" if node in held else ""
        yield Told(
            Severity.ERROR if node in held else Severity.WARNING,
            f"broker {node}",
            f"it {state}{replicas}",
            "Start it; if it is gone for good, reassign its replicas (kafka-reassign-partitions.sh) and unregister it",
        )


@check("log-dirs")
def log_dir_findings(name: str, found: Iterable[LogDir]) -> Iterator[Told]:
    """Log directories that have failed or are nearly full."""
    for one in found:
        thing = f"log directory {one.path} of broker {one.node_id}"
        if one.error_code:
            why = "it is offline" if one.error_code == _KAFKA_STORAGE_ERROR else f"error {one.error_code}"
            yield Told(
                Severity.ERROR,
                thing,
                f"{why}: the broker serves none of its replicas in it",
                "Check the broker's log and the disk; restart the broker once the disk is sound or replaced",
            )
        elif one.total_bytes > 0 and one.usable_bytes >= 0 and one.usable_bytes / one.total_bytes < _NEARLY_FULL:
            left = one.usable_bytes / one.total_bytes
            yield Told(
                Severity.ERROR if left < _FULL else Severity.WARNING,
                thing,
                f"{size(one.usable_bytes)} of {size(one.total_bytes)} are left ({left:.0%}); a full disk takes it offline",
                "Add space, move replicas, or keep records for less time",
            )
