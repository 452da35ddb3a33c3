"""Who may read the source's topics may read their copies: ACLs of topics, carried over while the link runs.

As MirrorSourceConnector.syncTopicAcls: ACLs of literal topic names only, those of prefixes are not; ALLOW WRITE is
dropped, since nobody but the mirror writes a copy, and ALLOW ALL becomes ALLOW READ; DENY stays what it is, DENY WRITE,
too (shouldReplicateAcl, targetAclBinding).
Laws:
- ACLs are added, never taken away: an operator may have made them.
- The wildcard "*" is carried over where topics keep their names; under another name it would name no topic.
- A cluster without an authorizer is named once, and is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    DescribeAclsRequest,
)

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.topic_filter import LinkTopics

WILDCARD = "*"

_CREATED_AT_ONCE = 500


class TopicAcl(NamedTuple):
    """An ACL of a literal topic name; `operation` and `permission` are Kafka's names for them."""

    topic: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return f"{self.permission} {self.operation} on topic {self.topic} to {self.principal} from {self.host}"


@dataclass(frozen=True)
class AclsReport:
    """A round: ACLs added to the target (or that would be), how many were there already, and what was left.

    `left` reasons: "write", "prefix", "wildcard", "no-authorizer", "refused".
    """

    added: tuple[TopicAcl, ...]
    unchanged: int
    left: tuple[Left, ...]


def decide_acls(
    acls: Iterable[TopicAcl], present: Iterable[TopicAcl], takes: Callable[[str], bool], to_target: Callable[[str], str]
) -> tuple[list[TopicAcl], list[Left], int]:
    """The ACLs to add to the target, what is left, and how many are there already.  Pure."""
    there = set(present)
    wanted: dict[TopicAcl, None] = {}
    left: list[Left] = []
    for acl in sorted(set(acls)):
        if not takes(acl.topic):
            continue
        if (acl.permission, acl.operation) == ("ALLOW", "WRITE"):
            left.append(Left(str(acl), "write", "nobody but the mirror writes the target's copy"))
            continue
        if acl.topic == WILDCARD and to_target(WILDCARD) != WILDCARD:
            left.append(Left(str(acl), "wildcard", "under the names that topics have on the target it would name none"))
            continue
        operation = "READ" if (acl.permission, acl.operation) == ("ALLOW", "ALL") else acl.operation
        wanted[acl._replace(topic=to_target(acl.topic), operation=operation)] = None
    return [acl for acl in wanted if acl not in there], left, sum(acl in there for acl in wanted)


async def sync_acls(source: Cluster, target: Cluster, topics: LinkTopics, *, is_dry_run: bool = False) -> AclsReport:
    """One round.  Needs DESCRIBE on the cluster on both sides, and ALTER on the target's.

    Raises ClusterUnreachableError; where one of these is not granted, or there is no authorizer, the report says so.
    """
    found: dict[str, list[TopicAcl]] = {}
    left: list[Left] = []
    for side, cluster in (("source", source), ("target", target)):
        try:
            found[side], prefixes = await _describe(cluster)
        except Errors.SecurityDisabledError:
            why = "it has no authorizer: no ACLs are carried over (sync.topic.acls.enabled=false spares the look)"
            return AclsReport((), 0, (Left(cluster.name, "no-authorizer", why),))
        except (Errors.ClusterAuthorizationFailedError, Errors.UnsupportedVersionError) as error:
            is_old = isinstance(error, Errors.UnsupportedVersionError)
            need = "Kafka 2.0 or newer is needed" if is_old else "grant Describe on Cluster"
            return AclsReport((), 0, (Left(cluster.name, "refused", f"its ACLs cannot be read ({error}); {need}"),))
        if cluster is source:
            for prefix, count in prefixes.items():
                left.append(
                    Left(f"{count} ACLs of prefix {prefix}", "prefix", "only those of whole names are carried over")
                )
    added, stay, unchanged = decide_acls(found["source"], found["target"], topics.takes, topics.to_target)
    left += stay
    if not is_dry_run:
        refused = await _create(target, added)
        left += [Left(str(acl), "refused", f"the target refuses it: {why}") for acl, why in refused.items()]
        added = [acl for acl in added if acl not in refused]
    return AclsReport(tuple(added), unchanged, tuple(left))


async def _describe(cluster: Cluster) -> tuple[list[TopicAcl], dict[str, int]]:
    """ACLs of literal topics, and how many there are of each prefix."""

    async def ask() -> tuple[list[TopicAcl], dict[str, int]]:
        answer = await cluster.send(
            DescribeAclsRequest(
                resource_type_filter=ACLResourceType.TOPIC,
                resource_name_filter=None,
                pattern_type_filter=ACLResourcePatternType.ANY,
                principal_filter=None,
                host_filter=None,
                operation=ACLOperation.ANY,
                permission_type=ACLPermissionType.ANY,
            )
        )
        if answer.error_code:
            # Not in the broker's words: they have addresses of the moment in them, and insist would believe none of them.
            raise Errors.for_code(answer.error_code)(f"reading the ACLs of the {cluster.name}")
        literal: list[TopicAcl] = []
        prefixes: dict[str, int] = {}
        for resource in answer.resources:
            if resource.pattern_type == ACLResourcePatternType.LITERAL:
                literal += [_read(resource.resource_name, acl) for acl in resource.acls]
            else:
                prefixes[resource.resource_name] = len(resource.acls)
        return literal, prefixes

    return await cluster.insist("reading ACLs", ask)


def _read(topic: str, acl: Any) -> TopicAcl:
    operation, permission = ACLOperation(acl.operation).name, ACLPermissionType(acl.permission_type).name
    return TopicAcl(topic, acl.principal, acl.host, operation, permission)


async def _create(target: Cluster, acls: list[TopicAcl]) -> dict[TopicAcl, str]:
    """Why the target refuses ACLs; creating one that is there changes nothing."""
    refused: dict[TopicAcl, str] = {}

    async def ask(chunk: list[TopicAcl]) -> None:
        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=ACLResourceType.TOPIC,
                resource_name=acl.topic,
                resource_pattern_type=ACLResourcePatternType.LITERAL,
                principal=acl.principal,
                host=acl.host,
                operation=ACLOperation[acl.operation],
                permission_type=ACLPermissionType[acl.permission],
            )
            for acl in chunk
        ]
        answer = await target.send(CreateAclsRequest(creations=creations))
        for acl, result in zip(chunk, answer.results):
            error = Errors.for_code(result.error_code)
            if result.error_code and getattr(error, "retriable", False):
                raise error(f"adding {acl}")
            if result.error_code:
                is_ours = error is Errors.ClusterAuthorizationFailedError
                refused[acl] = "grant Alter on Cluster" if is_ours else result.error_message or error.__name__

    for start in range(0, len(acls), _CREATED_AT_ONCE):
        chunk = acls[start : start + _CREATED_AT_ONCE]
        await target.insist("adding ACLs", partial(ask, chunk))
    return refused
