"""What our principal may do, against what a mirror does; and the quotas that hold it back.  Pure.

Brokers tell the operations that a principal may do (KIP-430), whatever grants them: ACLs, super.users, another
authorizer.  Of transactional ids they tell only Describe, which Write implies.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_integration.doctor.describe import Quota
from spark_integration.doctor.facts import Cluster
from spark_integration.doctor.finding import Finding, Severity, number_of, size, some

_NOT_AUTHORIZED = 29  # TOPIC_AUTHORIZATION_FAILED
_SHOWN_IN_COMMAND = 20
_ANONYMOUS = "User:ANONYMOUS"
_UNKNOWN = "User:PRINCIPAL"  # only the brokers know it


class Need(NamedTuple):
    """An operation that a mirror does."""

    role: str  # "source" or "target"
    resource: str  # "topic", "cluster" or "group"
    operation: str
    severity: Severity
    purpose: str


NEEDS: Sequence[Need] = (
    Need("source", "topic", "Read", Severity.ERROR, "reading the records"),
    Need("source", "topic", "Describe", Severity.ERROR, "finding partitions and their ends"),
    Need("source", "topic", "DescribeConfigs", Severity.ERROR, "giving the target's topics the same configuration"),
    Need("source", "group", "Describe", Severity.INFO, "copying what groups have committed"),
    Need("source", "cluster", "Describe", Severity.INFO, "finding all groups, copying ACLs, and the doctor's own looks"),
    Need("target", "topic", "Write", Severity.ERROR, "writing the records"),
    Need("target", "topic", "Read", Severity.ERROR, "comparing the end of the copy with the source"),
    Need("target", "topic", "Describe", Severity.ERROR, "finding partitions and their ends"),
    Need("target", "topic", "DescribeConfigs", Severity.ERROR, "knowing what the topics take"),
    Need("target", "topic", "Delete", Severity.WARNING, "starting a log where the source's starts (DeleteRecords)"),
    Need("target", "topic", "Alter", Severity.WARNING, "adding the partitions that the source gains"),
    Need("target", "topic", "AlterConfigs", Severity.WARNING, "keeping topic configurations the same"),
    Need("target", "group", "Read", Severity.INFO, "committing for groups that are copied"),
    Need("target", "cluster", "Create", Severity.INFO, "creating topics (or Create on these topics)"),
    Need("target", "cluster", "Describe", Severity.INFO, "finding all groups, and the doctor's own looks"),
    Need("target", "cluster", "Alter", Severity.INFO, "copying ACLs"),
    Need("target", "cluster", "ClusterAction", Severity.INFO, "--gap-fill markers (no other way of filling gaps needs it)"),
)


def principal(config: Mapping[str, Any]) -> str:
    """Our principal as an ACL names it, where the client's configuration tells it."""
    user = config.get("sasl_plain_username")
    if user:
        return f"User:{str(user).replace('=2C', ',').replace('=3D', '=')}"
    return _ANONYMOUS if config.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else _UNKNOWN


def right_findings(facts: Cluster, topics: Collection[str], who: str) -> Iterator[Finding]:
    """Rights to topics and to the cluster that a mirror of these topics lacks; `facts.name` is its role."""
    needs = [need for need in NEEDS if need.role == facts.name]
    known = [facts.topics[name] for name in sorted(topics) if name in facts.topics]
    hidden = [topic.name for topic in known if topic.error_code == _NOT_AUTHORIZED]
    if hidden:
        operations = [need.operation for need in needs if need.resource == "topic" and need.severity is Severity.ERROR]
        options = [f"--topic {shlex.quote(name)}" for name in hidden[:_SHOWN_IN_COMMAND]]
        yield Finding(
            Severity.ERROR if needs else Severity.INFO,
            "rights",
            facts.name,
            f"topic {some(hidden)}",
            f"not even Describe is allowed to {who}: whether it exists is not told",
            _acls(facts, who, [*operations, *(["Create"] if facts.name == "target" else [])] or ["Describe"], options),
        )
    told = [topic for topic in known if topic.operations is not None]
    for need in needs:
        if need.resource == "topic":
            lacking = [t.name for t in told if t.operations is not None and need.operation not in t.operations]
            if lacking:
                yield _lacking(facts, "topic", need.operation, lacking, need.severity, need.purpose, who)
        elif need.resource == "cluster" and facts.operations is not None and need.operation not in facts.operations:
            yield _lacking(facts, "cluster", need.operation, ["kafka-cluster"], need.severity, need.purpose, who)
    if needs and known and not told and not hidden:
        yield Finding(
            Severity.INFO,
            "rights",
            facts.name,
            number_of(len(known), "topic"),
            "the brokers do not tell what a principal may do (before Kafka 2.3)",
            "Compare kafka-acls.sh --list with the table of rights in this project's documentation",
        )


def group_right_findings(facts: Cluster, rights: Mapping[str, Collection[str]], who: str) -> Iterator[Finding]:
    """Groups whose offsets a mirror could not copy."""
    for need in NEEDS:
        if need.role == facts.name and need.resource == "group":
            lacking = sorted(group for group, allowed in rights.items() if need.operation not in allowed)
            if lacking:
                yield _lacking(facts, "group", need.operation, lacking, need.severity, need.purpose, who)


def transactional_id_findings(facts: Cluster, ids: Mapping[str, bool], who: str) -> Iterator[Finding]:
    """Transactional ids of a mirror that our principal may not even describe."""
    lacking = sorted(name for name, may in ids.items() if not may)
    if not lacking:
        return
    prefix = _common_prefix(lacking)
    yield Finding(
        Severity.ERROR,
        "rights",
        facts.name,
        f"transactional id {some(lacking, 3)}",
        "not even Describe, which Write implies, is allowed: a mirror needs Write for its producer id and for transactions",
        _acls(facts, who, ["Write"], ["--resource-pattern-type prefixed", f"--transactional-id {prefix}"]),
    )


def quota_findings(name: str, found: Iterable[Quota], who: str, client_id: str) -> Iterator[Finding]:
    """Quotas that may apply to our principal and client id; which one does, ClientQuotaManager.java decides by precedence."""
    ours = {"user": who.removeprefix("User:"), "client-id": client_id}
    for quota in found:
        entity = dict(quota.entity)
        is_unknown = who == _UNKNOWN and entity.get("user") is not None
        if not entity.keys() <= ours.keys() or is_unknown:
            continue
        if any(value is not None and value != ours[kind] for kind, value in entity.items()):
            continue
        of = " and ".join(f"{kind} {'(default)' if value is None else value}" for kind, value in entity.items())
        limits = ", ".join(_limit(key, value) for key, value in quota.values)
        yield Finding(
            Severity.INFO,
            "quotas",
            name,
            f"quota of {of}",
            f"{limits} for each broker",
            "Raise it (kafka-configs.sh --alter --add-config) if a mirror has to be faster; it waits as long as it is told to",
        )


def _limit(key: str, value: float) -> str:
    return f"{key} {size(value)}/s" if key.endswith("byte_rate") else f"{key} {value:g}"


def _lacking(
    facts: Cluster, resource: str, operation: str, names: Sequence[str], severity: Severity, purpose: str, who: str
) -> Finding:
    thing = "the cluster" if resource == "cluster" else f"{resource} {some(names)}"
    options = [f"--{resource} {shlex.quote(name)}" for name in names[:_SHOWN_IN_COMMAND]]
    if resource == "cluster":
        options = ["--cluster"]
    return Finding(
        severity,
        "rights",
        facts.name,
        thing,
        f"{operation} is not allowed to {who}; it is needed for {purpose}",
        _acls(facts, who, [operation], options),
    )


def _acls(facts: Cluster, who: str, operations: Sequence[str], resources: Sequence[str]) -> str:
    wanted = " ".join(f"--operation {operation}" for operation in operations)
    return (
        f"kafka-acls.sh --bootstrap-server {facts.bootstrap_servers} --add --allow-principal {shlex.quote(who)}"
        f" {wanted} {' '.join(resources)}"
    )


def _common_prefix(names: Sequence[str]) -> str:
    low, high = min(names), max(names)
    for index, letter in enumerate(low):
        if index >= len(high) or high[index] != letter:
            return low[:index]
    return low
