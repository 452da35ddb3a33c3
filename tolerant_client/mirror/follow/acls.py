"""Carries over the ACLs of topics while the link runs: whoever may read a topic of the source may read its copy.

As MirrorSourceConnector.syncTopicAcls: only ACLs of literal topic names, not those of prefixes; ALLOW WRITE is
dropped, since only the mirror writes a copy, and ALLOW ALL becomes ALLOW READ; DENY is not changed, nor is DENY WRITE
(shouldReplicateAcl, targetAclBinding).
Laws:
- ACLs are added, never deleted: an operator may have created them.
- The wildcard "*" is carried over if topics keep their names; under another name it would match no topic.
- A cluster without an authorizer is reported once, and is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import kafka.errors as Errors

from tolerant_client.cluster.admin.acls import TopicAcl, create_acls, describe_acls
from tolerant_client.cluster.admin.asking import chunks
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.state.topic_filter import LinkTopics

WILDCARD = "*"

_CREATED_AT_ONCE = 500


@dataclass(frozen=True)
class AclsReport:
    """One round: ACLs added to the target (or that would be), how many were there already, and what was left.

    `left` reasons: "write", "prefix", "wildcard", "no-authorizer", "refused".
    """

    added: tuple[TopicAcl, ...]
    unchanged: int
    left: tuple[Left, ...]


def decide_acls(
    acls: Iterable[TopicAcl], present: Iterable[TopicAcl], takes: Callable[[str], bool], to_target: Callable[[str], str]
) -> tuple[list[TopicAcl], list[Left], int]:
    """The ACLs to add to the target, those that are left, and how many are there already.  Pure."""
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
            left.append(Left(str(acl), "wildcard", "it would match no topic under the target's topic names"))
            continue
        operation = "READ" if (acl.permission, acl.operation) == ("ALLOW", "ALL") else acl.operation
        wanted[acl._replace(topic=to_target(acl.topic), operation=operation)] = None
    return [acl for acl in wanted if acl not in there], left, sum(acl in there for acl in wanted)


async def sync_acls(source: Cluster, target: Cluster, topics: LinkTopics, *, is_dry_run: bool = False) -> AclsReport:
    """One round.  Needs DESCRIBE on both clusters, and ALTER on the target.

    Raises ClusterUnreachableError; a missing right or authorizer is in the report.
    """
    found: dict[str, list[TopicAcl]] = {}
    left: list[Left] = []
    for side, cluster in (("source", source), ("target", target)):
        try:
            found[side], prefixes = await cluster.insist("reading ACLs", partial(describe_acls, cluster))
        except Errors.SecurityDisabledError:
            why = "it has no authorizer (sync.topic.acls.enabled=false avoids this request)"
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
        refused: dict[TopicAcl, str] = {}
        for chunk in chunks(added, _CREATED_AT_ONCE):
            refused |= await target.insist("adding ACLs", partial(create_acls, target, chunk))
        left += [Left(str(acl), "refused", f"the target refuses it: {why}") for acl, why in refused.items()]
        added = [acl for acl in added if acl not in refused]
    return AclsReport(tuple(added), unchanged, tuple(left))
