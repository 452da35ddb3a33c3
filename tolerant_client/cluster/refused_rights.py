"""Which right a broker's refusal misses, and the command that grants it.  Pure.

Law: the error code names the kind of the resource, and who was refused the operations.  A mirror needs more rights than one refusal
shows, and the doctor knows them all; a Spark query reads topics, or writes them as "sink", which reads them, too, where the offsets of
two responses contradict each other and where it commits its decisions (exactlyOnce).
"""

from __future__ import annotations

import re
import shlex

import kafka.errors as Errors

DECISION_GROUPS = "tolerant-sink-"  # groups and transactional ids of the Spark sink with exactlyOnce
_TOPIC = re.compile(r"\btopic ([\w.-]+)")


def remedy_of(error: BaseException, said: str, cluster: str, address: str, user: str | None) -> str:
    """What to do about a refusal by the cluster that messages call `cluster`; what is `said` of it names the topic."""
    if cluster in ("source", "target"):
        return "tolerant-kafka doctor names the right that is missing"
    if isinstance(error, Errors.ClusterAuthorizationFailedError):
        return "grant Write on the topics that are written, and before Kafka 2.8 IdempotentWrite on the cluster, too"
    if isinstance(error, Errors.TopicAuthorizationFailedError):
        operations = ("Write", "Read") if cluster == "sink" else ("Read",)
        named = _TOPIC.search(said)
        which, thing = f"--topic {named[1] if named else 'TOPIC'}", "it"
    elif isinstance(error, (Errors.GroupAuthorizationFailedError, Errors.TransactionalIdAuthorizationFailedError)):
        is_group = isinstance(error, Errors.GroupAuthorizationFailedError)
        operations = ("Read",) if is_group else ("Write",)
        which = f"--{'group' if is_group else 'transactional-id'} {DECISION_GROUPS} --resource-pattern-type prefixed"
        thing = f"{'groups' if is_group else 'transactional ids'} that begin with {DECISION_GROUPS}"
    else:
        return "grant what it needs"
    asked = " ".join(f"--operation {operation}" for operation in operations)
    return (
        f"grant {' and '.join(operations)} on {thing}: kafka-acls.sh --bootstrap-server {address} --add --allow-principal"
        f" {shlex.quote('User:' + (user or 'NAME'))} {asked} {which}"
    )
