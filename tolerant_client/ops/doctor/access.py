"""The rights of our principal compared with the needs of a mirror, and the quotas that limit it.  Pure.

Brokers report the operations that a principal may do (KIP-430), whatever grants them: ACLs, super.users, another
authorizer.  Of transactional ids they report only Describe, which Write implies.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.describe import Quota
from tolerant_client.ops.doctor.facts import ClusterFacts, Topic
from tolerant_client.ops.doctor.finding import Severity, Told, check, size, some, worst
from tolerant_client.ops.doctor.rights import Asked, Duty, Right, rights_to

_NOT_AUTHORIZED = 29  # TOPIC_AUTHORIZATION_FAILED
_SHOWN_IN_COMMAND = 20
_ANONYMOUS = "User:ANONYMOUS"
_UNKNOWN = "User:PRINCIPAL"  # only the brokers know our principal


def principal(config: Mapping[str, Any]) -> str:
    """Our principal as an ACL names it, if the client's configuration contains it."""
    user = config.get("sasl_plain_username")
    if user:
        return f"User:{str(user).replace('=2C', ',').replace('=3D', '=')}"
    return _ANONYMOUS if config.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else _UNKNOWN


@check("rights")
def right_findings(
    facts: ClusterFacts, asked: Iterable[Asked], who: str, uncreatable: Collection[str] = ()
) -> Iterator[Told]:
    """The rights to topics and to the cluster that a link lacks; brokers refuse us to create `uncreatable`."""
    hidden: dict[str, list[Right]] = {}
    lacking: list[_Lack] = []
    untold: set[str] = set()
    for right, names in asked:
        if right.resource == "cluster":
            if facts.operations or "Describe" in right.operations:
                lacking += _lacking(right, {} if facts.operations is None else {"kafka-cluster": facts.operations})
            elif facts.operations is not None:
                yield _not_told(facts, right, who)
            continue
        allowed: dict[str, Collection[str]] = {}
        for topic in (facts.topics[name] for name in names if name in facts.topics):
            if topic.error_code == _NOT_AUTHORIZED:
                hidden.setdefault(topic.name, []).append(right)
            elif topic.operations is None:
                untold.add(topic.name)
            else:
                allowed[topic.name] = {*topic.operations, "Create"}  # the topic exists and need not be created
        allowed |= {name: set(right.operations) - {"Create"} for name in names if name in uncreatable}
        lacking += _lacking(right, allowed)
    yield from _hidden(facts, hidden, who)
    yield from _told(facts, lacking, who)
    if untold:
        yield Told(
            Severity.INFO,
            counted(len(untold), "topic"),
            "the brokers do not report what a principal may do (before Kafka 2.3)",
            f"Compare {facts.tool('kafka-acls.sh')} --list with the table of rights in this project's guide to security",
        )


def _not_told(facts: ClusterFacts, right: Right, who: str) -> Told:
    return Told(
        Severity.INFO,
        "the cluster",
        f"{who} needs Describe to see whether {' and '.join(right.operations)} is allowed; needed for {right.purpose}",
        _acls(facts, who, [*right.operations, "Describe"], "cluster", []),
    )


@check("rights")
def hidden_findings(facts: ClusterFacts, topics: Iterable[Topic], who: str) -> Iterator[Told]:
    """Topics that our principal may not see, for the examination of a single cluster."""
    for topic in topics:
        if topic.error_code == _NOT_AUTHORIZED:
            yield _unseen(facts, [topic.name], Severity.INFO, ["Describe"], who)


@check("rights")
def group_right_findings(
    facts: ClusterFacts, rights: Mapping[str, Collection[str]], duties: Collection[Duty], who: str
) -> Iterator[Told]:
    """Groups whose offsets a mirror could not copy; `rights` are ours for each group."""
    for right in rights_to(facts.name, "group", duties):
        yield from _told(facts, _lacking(right, rights), who)


@check("rights")
def transactional_id_findings(
    facts: ClusterFacts, ids: Mapping[str, bool], duties: Collection[Duty], who: str
) -> Iterator[Told]:
    """Transactional ids of a mirror that our principal may not even describe."""
    lacking = sorted(name for name, may in ids.items() if not may)
    for right in rights_to(facts.name, "transactional-id", duties) if lacking else ():
        yield Told(
            right.severity,
            f"transactional id {some(lacking, 3)}",
            f"not even Describe, which Write implies, is allowed to {who}; Write is needed for {right.purpose}",
            _acls(facts, who, right.operations, "transactional-id", [right.name], is_prefix=True),
        )


@check("quotas")
def quota_findings(name: str, found: Iterable[Quota], who: str, client_id: str) -> Iterator[Told]:
    """Quotas that may apply to our principal and client id; ClientQuotaManager.java defines which one takes precedence."""
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
        yield Told(
            Severity.INFO,
            f"quota of {of}",
            f"{limits} for each broker",
            "Raise it if a mirror has to be faster; it waits as long as the brokers tell it to",
        )


def _limit(key: str, value: float) -> str:
    return f"{key} {size(value)}/s" if key.endswith("byte_rate") else f"{key} {value:g}"


class _Lack(NamedTuple):
    """An operation that is not allowed on one resource."""

    right: Right
    operation: str
    name: str


def _lacking(right: Right, allowed: Mapping[str, Collection[str]]) -> list[_Lack]:
    return [
        _Lack(right, operation, name)
        for operation in right.operations
        for name, operations in allowed.items()
        if operation not in operations
    ]


def _told(facts: ClusterFacts, lacking: Iterable[_Lack], who: str) -> Iterator[Told]:
    """One finding for each operation, with all resources on which it is missing for the same reasons."""
    reasons: dict[tuple[str, str, str], list[Right]] = {}
    for right, operation, name in lacking:
        reasons.setdefault((right.resource, operation, name), []).append(right)
    alike: dict[tuple[str, str, tuple[Right, ...]], list[str]] = {}
    for (resource, operation, name), rights in reasons.items():
        alike.setdefault((resource, operation, tuple(rights)), []).append(name)
    for (resource, operation, because), names in alike.items():
        names.sort()
        yield Told(
            worst(right.severity for right in because),
            "the cluster" if resource == "cluster" else f"{resource} {some(names)}",
            f"{operation} is not allowed to {who}; it is needed for {_purposes(because)}",
            _acls(facts, who, [operation], resource, names),
        )


def _purposes(rights: Iterable[Right]) -> str:
    return "; ".join(dict.fromkeys(right.purpose for right in rights))


def _hidden(facts: ClusterFacts, hidden: Mapping[str, Sequence[Right]], who: str) -> Iterator[Told]:
    """Topics that we may not see; those that need the same rights are one finding."""
    alike: dict[tuple[Right, ...], list[str]] = {}
    for name, rights in hidden.items():
        alike.setdefault(tuple(rights), []).append(name)
    for rights, names in alike.items():
        operations = list(dict.fromkeys(operation for right in rights for operation in right.operations))
        yield _unseen(facts, sorted(names), worst(right.severity for right in rights), operations, who, rights)


def _unseen(
    facts: ClusterFacts,
    names: Sequence[str],
    severity: Severity,
    operations: Sequence[str],
    who: str,
    rights: Sequence[Right] = (),
) -> Told:
    purposes = f"; needed for {_purposes(rights)}" if rights else ""
    return Told(
        severity,
        f"topic {some(names)}",
        f"{who} is not even allowed Describe, so whether it exists is unknown{purposes}",
        _acls(facts, who, operations, "topic", names),
    )


def create_command(facts: ClusterFacts, who: str, topics: Sequence[str]) -> str:
    """The command that allows our principal to create these topics."""
    return _acls(facts, who, ["Create"], "topic", topics)


def _acls(
    facts: ClusterFacts,
    who: str,
    operations: Sequence[str],
    resource: str,
    names: Sequence[str],
    *,
    is_prefix: bool = False,
) -> str:
    """A whole command line; names beyond _SHOWN_IN_COMMAND are only counted, in a shell comment."""
    wanted = " ".join(f"--operation {operation}" for operation in operations)
    things = " ".join(f"--{resource} {shlex.quote(name)}" for name in names[:_SHOWN_IN_COMMAND])
    if resource == "cluster":
        things = "--cluster"
    pattern = " --resource-pattern-type prefixed" if is_prefix else ""
    rest = len(names) - _SHOWN_IN_COMMAND
    more = (
        f"  # and {rest} more: name their common prefix, and add --resource-pattern-type prefixed" if rest > 0 else ""
    )
    return f"{facts.tool('kafka-acls.sh')} --add --allow-principal {shlex.quote(who)} {wanted} {things}{pattern}{more}"
