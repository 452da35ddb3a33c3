"""Which right a broker's refusal misses, and the command that grants it.  Pure.

Laws:
- The error code names the kind of the resource, and who was refused the operation.  A mirror needs more rights than one refusal shows, and the
  doctor knows them all; a Spark query reads topics, or writes them as "sink", which reads them only where the offsets of two responses
  contradict each other and where it commits its decisions (exactlyOnce).
- A command grants what was refused, and no more.  What we do not know of it is a <PLACEHOLDER> outside quotes, so no shell runs it as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import kafka.errors as Errors

DECISION_GROUPS = "tolerant-sink-"  # groups and transactional ids of the Spark sink with exactlyOnce
_TOPIC = re.compile(r"\btopic ([\w.-]+)")
_READS = re.compile(r"(?<!topic )\b(reading|committing) ")


def remedy_of(error: BaseException, said: str, cluster: str, address: str, config: Mapping[str, Any]) -> str:
    """What to do about a refusal by the cluster that messages call `cluster`; what is `said` of it names topic and operation."""
    if cluster in ("source", "target"):
        return "tolerant-kafka doctor names the right that is missing"
    operation, thing = "Read", "it"
    if isinstance(error, Errors.ClusterAuthorizationFailedError):
        operation, which = "Write", "--topic <TOPIC>"
        thing = "the topics that are written, and before Kafka 2.8 IdempotentWrite on the cluster, too"
    elif isinstance(error, Errors.TopicAuthorizationFailedError):
        if cluster == "sink" and not _READS.search(said):
            operation = "Write"
        named = _TOPIC.search(said)
        which = f"--topic {named[1] if named else '<TOPIC>'}"
    elif isinstance(error, (Errors.GroupAuthorizationFailedError, Errors.TransactionalIdAuthorizationFailedError)):
        kind = "group"
        if isinstance(error, Errors.TransactionalIdAuthorizationFailedError):
            operation, kind = "Write", "transactional-id"
        which = f"--{kind} {DECISION_GROUPS} --resource-pattern-type prefixed"
        thing = f"{kind.replace('-', ' ')}s that begin with {DECISION_GROUPS}"
    else:
        return "grant what it needs"
    user, login = config["sasl_plain_username"], config["security_protocol"]
    principal, is_named = shlex.quote(f"User:{user}") if user else "User:<NAME>", ""
    if login == "PLAINTEXT":
        principal = "User:ANONYMOUS"
    elif not user:
        ours = (
            "the subject of our certificate" if login == "SSL" else f"the user of our {config['sasl_mechanism']} login"
        )
        is_named = f" (NAME is {ours}, as the brokers' log has it)"
    return (
        f"grant {operation} on {thing}, as a user who may alter ACLs{is_named}: kafka-acls.sh --bootstrap-server {shlex.quote(address)}"
        f" --command-config ADMIN.properties --add --allow-principal {principal} --operation {operation} {which}"
    )
