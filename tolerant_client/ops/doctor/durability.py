"""Whether acknowledged records survive the loss of a broker (incident 4).  Pure.

Judged are replication.factor, min.insync.replicas and unclean.leader.election.enable.  Brokers cannot show the acks
of producers: min.insync.replicas protects only those with acks=all (tolerant-client's mirror uses it).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.facts import INTERNAL_TOPICS, UNCLEAN, ClusterFacts
from tolerant_client.ops.doctor.finding import Severity, Told, check, some

_REASSIGN = "add replicas with kafka-reassign-partitions.sh"


@check("durability")
def durability_findings(facts: ClusterFacts, topics: Collection[str]) -> Iterator[Told]:
    """One finding for each rule that topics break; judged are `topics` and those of the coordinators."""
    brokers = len(facts.living)
    judged = [facts.topics[name] for name in (*sorted(topics), *INTERNAL_TOPICS) if name in facts.topics]
    judged = [topic for topic in judged if topic.partitions]
    factor = {topic.name: topic.replication_factor for topic in judged}
    min_isr = {name: least for name in factor if (least := facts.needed_isr(name, factor[name])) is not None}

    if brokers == 1:
        yield Told(
            Severity.WARNING,
            "the cluster",
            "it has one broker: if its disk is lost all records are, and while it restarts nothing can be read or written",
            "Use three brokers or more for data that must not be lost",
        )
    single = [name for name in factor if factor[name] == 1]
    if single and brokers > 1:
        yield _finding(
            single, Severity.WARNING,
            "replication factor 1: the loss of one broker loses acknowledged records",
            f"{_REASSIGN} (3 replicas, min.insync.replicas=2)",
        )  # fmt: skip
    impossible = [name for name in min_isr if min_isr[name] > factor[name]]
    if impossible:
        name = impossible[0]
        yield _finding(
            impossible, Severity.ERROR,
            f"min.insync.replicas is above the replication factor ({name}: {min_isr[name]} of {factor[name]}):"
            " writes with acks=all are always refused",
            f"{_set(facts, impossible, f'min.insync.replicas={max(1, factor[name] - 1)}')}  # or {_REASSIGN}",
        )  # fmt: skip
    alone = [name for name in min_isr if min_isr[name] == 1 and factor[name] > 1]
    if alone:
        yield _finding(
            alone, Severity.WARNING,
            "min.insync.replicas=1: a leader alone acknowledges records, and they are lost with it",
            _set(facts, alone, "min.insync.replicas=2"),
        )  # fmt: skip
    rigid = [name for name in min_isr if min_isr[name] == factor[name] > 1]
    if rigid:
        name = rigid[0]
        told = facts.min_isr(name)
        how, of = ("equals", "") if told == factor[name] else ("is above", f"{told} of ")
        yield _finding(
            rigid, Severity.WARNING,
            f"min.insync.replicas {how} the replication factor ({name}: {of}{factor[name]}): while any one broker"
            " restarts, writes with acks=all are refused",
            f"{_set(facts, rigid, f'min.insync.replicas={factor[name] - 1}')}  # or {_REASSIGN}",
        )  # fmt: skip
    unclean = [name for name in factor if facts.config(name, UNCLEAN) == "true"]
    if unclean:
        yield _finding(
            unclean, Severity.WARNING,
            f"{UNCLEAN}=true: a replica that lags may become leader, and the records that it lacks are lost (a mirror then"
            " finds its source truncated)",
            _set(facts, unclean, f"{UNCLEAN}=false"),
        )  # fmt: skip
    yield from _default_findings(facts, brokers)


def _default_findings(facts: ClusterFacts, brokers: int) -> Iterator[Told]:
    factor = facts.broker_setting("default.replication.factor")
    if factor == "1" and brokers > 1:
        yield Told(
            Severity.INFO,
            "broker defaults",
            "default.replication.factor=1: topics created without a replication factor have one replica",
            "Set default.replication.factor=3 and min.insync.replicas=2 on the brokers",
        )


def _set(facts: ClusterFacts, topics: Sequence[str], setting: str) -> str:
    """The command for the first of these topics."""
    more = f"  # and likewise for {counted(len(topics) - 1, 'more topic')}" if len(topics) > 1 else ""
    command = f"{facts.tool('kafka-configs.sh')} --alter --entity-type topics --entity-name {shlex.quote(topics[0])}"
    return f"{command} --add-config {setting}{more}"


def _finding(topics: Collection[str], severity: Severity, evidence: str, remedy: str) -> Told:
    return Told(severity, f"topic {some(topics)}", evidence, remedy)
