"""ACLs of topics of one cluster: reading them, and adding some."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import kafka.errors as Errors
from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    DescribeAclsRequest,
)

from tolerant_client.cluster.admin.asking import is_retriable, raise_for
from tolerant_client.cluster.cluster import Cluster


class TopicAcl(NamedTuple):
    """An ACL of a literal topic name; `operation` and `permission` are Kafka's names for them."""

    topic: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return f"{self.permission} {self.operation} on topic {self.topic} to {self.principal} from {self.host}"


async def describe_acls(cluster: Cluster) -> tuple[list[TopicAcl], dict[str, int]]:
    """ACLs of literal topic names, and the number of ACLs of each prefix; asked once."""
    response = await cluster.send(
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
    # Without the broker's message: it holds addresses that change, and `insist` would believe none of them.
    raise_for(response.error_code, f"reading the ACLs of the {cluster.name}")
    literal: list[TopicAcl] = []
    prefixes: dict[str, int] = {}
    for resource in response.resources:
        if resource.pattern_type != ACLResourcePatternType.LITERAL:
            prefixes[resource.resource_name] = len(resource.acls)
            continue
        for acl in resource.acls:
            operation, permission = ACLOperation(acl.operation).name, ACLPermissionType(acl.permission_type).name
            literal.append(TopicAcl(resource.resource_name, acl.principal, acl.host, operation, permission))
    return literal, prefixes


async def create_acls(cluster: Cluster, acls: Collection[TopicAcl]) -> dict[TopicAcl, str]:
    """Creates ACLs; returns why some are refused.  Creating one that exists changes nothing.  Asked once."""
    refused: dict[TopicAcl, str] = {}
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
        for acl in acls
    ]
    response = await cluster.send(CreateAclsRequest(creations=creations))
    for acl, result in zip(acls, response.results):
        if result.error_code:
            error = Errors.for_code(result.error_code)(f"adding {acl}")
            if is_retriable(error):
                raise error
            is_ours = isinstance(error, Errors.ClusterAuthorizationFailedError)
            refused[acl] = "grant Alter on Cluster" if is_ours else result.error_message or type(error).__name__
    return refused
