"""Which ACLs of the source's topics the target gets."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
import pytest

from tolerant_client.cluster.admin.acls import TopicAcl
from tolerant_client.mirror.follow import acls
from tolerant_client.mirror.follow.acls import AclsReport, decide_acls, sync_acls
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import TOPICS_EXCLUDE, LinkTopics, TopicFilter

ALL = TopicFilter((".*",), TOPICS_EXCLUDE)
RENAMED = LinkTopics(ALL, TopicNames(DefaultReplicationPolicy(), "A"), "B")
SAME = LinkTopics(ALL, TopicNames(IdentityReplicationPolicy(), "A"), "B")


def acl(topic: str, operation: str, permission: str = "ALLOW") -> TopicAcl:
    return TopicAcl(topic, "User:u", "*", operation, permission)


@pytest.mark.parametrize(
    ("found", "topics", "expected", "reason"),
    [
        (acl("t", "READ"), RENAMED, acl("A.t", "READ"), None),
        (acl("t", "READ"), SAME, acl("t", "READ"), None),
        (acl("t", "READ"), LinkTopics(), acl("t", "READ"), None),
        (acl("t", "DESCRIBE"), RENAMED, acl("A.t", "DESCRIBE"), None),
        (acl("t", "ALL"), RENAMED, acl("A.t", "READ"), None),
        (acl("t", "WRITE"), RENAMED, None, "write"),
        (acl("t", "WRITE", "DENY"), RENAMED, acl("A.t", "WRITE", "DENY"), None),
        (acl("t", "ALL", "DENY"), RENAMED, acl("A.t", "ALL", "DENY"), None),
        (acl("*", "READ"), SAME, acl("*", "READ"), None),
        (acl("*", "READ"), RENAMED, None, "wildcard"),
        (acl("*", "READ"), LinkTopics(TopicFilter(("t.*",))), None, None),
        (acl("mm2-x.internal", "READ"), RENAMED, None, None),
        (acl("B.t", "READ"), RENAMED, None, None),  # came from the target
        (acl("__consumer_offsets", "READ"), SAME, None, None),
    ],
)
def test_an_acl(found: TopicAcl, topics: LinkTopics, expected: TopicAcl | None, reason: str | None) -> None:
    added, left, unchanged = decide_acls([found], [], topics.takes, topics.to_target)
    assert added == ([expected] if expected else []) and unchanged == 0
    assert [x.reason for x in left] == ([reason] if reason else [])
    assert decide_acls([found], added, topics.takes, topics.to_target) == ([], left, len(added))


def test_two_acls_that_become_one_are_one() -> None:
    added, _, unchanged = decide_acls([acl("t", "READ"), acl("t", "ALL")], [], SAME.takes, SAME.to_target)
    assert added == [acl("t", "READ")] and unchanged == 0


class Cluster:
    def __init__(self, name: str, error: Exception | None) -> None:
        self.name, self.error = name, error

    async def insist(self, what: str, attempt: Any) -> Any:
        if self.error is not None:
            raise self.error
        return [acl("t", "READ")], {}


def drive(coroutine: Any) -> Any:
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Errors.SecurityDisabledError("no authorizer"), "no-authorizer"),
        (Errors.ClusterAuthorizationFailedError("not granted"), "refused"),
        (Errors.UnsupportedVersionError("too old"), "refused"),
    ],
)
@pytest.mark.parametrize("is_target", [False, True])
def test_a_cluster_without_readable_acls_is_named_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, is_target: bool
) -> None:
    async def refuse(*_: Any) -> Any:
        raise AssertionError("nothing may be written")

    monkeypatch.setattr(acls, "create_acls", refuse)
    source, target = Cluster("source", None if is_target else error), Cluster("target", error if is_target else None)
    report: AclsReport = drive(sync_acls(source, target, SAME))  # type: ignore[arg-type]
    assert [(x.name, x.reason) for x in report.left] == [("target" if is_target else "source", reason)]
    assert report.added == ()
