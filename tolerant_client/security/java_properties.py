"""The properties of Java clients: which are used, which have no effect here, which are refused.

Laws:
- A property of the Java client is used, or has no effect (documented), or is refused by name; it is refused only if
  ignoring it would change which records are read or who is trusted.
- A name that the Java client does not know either logs a warning, as it does there, with the nearest known name.
  One that looks like a security property is refused: without it data might go unencrypted, or to anybody.

The lists are those of ConsumerConfig and ProducerConfig of Kafka 4.2; the properties that Spark itself refuses, with
its reasons, are in KafkaSourceProvider.scala (connector/kafka-0-10-sql).
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from typing import Final

from tolerant_client.errors import OptionError
from tolerant_client.security import keystores

_log = logging.getLogger(__name__)

FORBIDDEN: Final[Mapping[str, str]] = {
    "auto.offset.reset": "set startingOffsets instead; it applies to a new query only, a restarted query resumes where"
    " it stopped, and failOnDataLoss decides what happens when records are gone",
    "key.deserializer": "keys are always binary; deserialize them with DataFrame operations",
    "value.deserializer": "values are always binary; deserialize them with DataFrame operations",
    "enable.auto.commit": "offsets are in the query's checkpoint; commitOffsets=true also commits them to a group",
    "interceptor.classes": "no Java classes are loaded, and interceptors could change the records",
}
FORBIDDEN_IN_WRITES: Final[Mapping[str, str]] = {
    "key.serializer": "keys are always binary; serialize them with DataFrame operations",
    "value.serializer": "values are always binary; serialize them with DataFrame operations",
    "interceptor.classes": "no Java classes are loaded, and interceptors could change the records",
}

# Our clients have these under the same names, with _ for dots.
NUMBERS: Final = (
    "request.timeout.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "metadata.max.age.ms",
    "connections.max.idle.ms", "socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
)  # fmt: skip
TEXTS: Final = ("client.id", "client.dns.lookup", "metadata.recovery.strategy")
_ADDRESSES: Final = ("bootstrap.servers", "security.protocol")
# librdkafka's name: brokers before 0.10 do not report the API versions that they support.
OURS: Final = ("broker.version.fallback",)
# Read by options.py and by the writer.
READ_ELSEWHERE: Final = ("isolation.level", "group.id")
PRODUCING: Final = (
    "acks", "batch.size", "buffer.memory", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "delivery.timeout.ms", "enable.idempotence", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms", "partitioner.class",
    "partitioner.ignore.keys", "retries", "transaction.timeout.ms", "transaction.two.phase.commit.enable",
    "transactional.id", "key.serializer", "value.serializer",
)  # fmt: skip
# These tune a consumer group, the Java client, its JVM or its metrics; this client has none of them.
WITHOUT_EFFECT: Final = (
    "allow.auto.create.topics", "auto.commit.interval.ms", "check.crcs", "default.api.timeout.ms",
    "enable.metrics.push", "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes",
    "group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms",
    "internal.throw.on.fetch.stable.offset.unsupported", "max.partition.fetch.bytes", "max.poll.interval.ms",
    "max.poll.records", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy",
    "receive.buffer.bytes", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms",
    "share.acknowledgement.mode", "share.acquire.mode",
)  # fmt: skip
# What the Java client does and this one does not.
NOT_BUILT: Final = ("client.rack",)
SECURITY: Final = (
    *keystores.PROPERTIES,
    "sasl.mechanism", "sasl.jaas.config", "sasl.kerberos.service.name", "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class", "sasl.login.class", "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms", "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds", "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include", "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub", "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
)  # fmt: skip
# Includes properties for brokers, and for background threads of the Java client that renew tickets and tokens.
SECURITY_WITHOUT_EFFECT: Final = (
    *keystores.WITHOUT_EFFECT,
    "sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor", "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms", "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms", "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.validator.class", "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name",
)  # fmt: skip
# Ignoring these would send a reference instead of the value it stands for, or trust somebody whom the user's class
# does not trust.
REFUSED: Final[Mapping[str, str]] = {
    "config.providers": "values such as ${file:path:key} are not resolved; give the value itself",
    "security.providers": "no Java classes are loaded; TLS is Python's (OpenSSL)",
    "ssl.engine.factory.class": "no Java classes are loaded; TLS is Python's (OpenSSL)",
    "ssl.provider": "it names a provider of the JVM; TLS is Python's (OpenSSL)",
    "ssl.trustmanager.algorithm": "only PKIX is supported: a chain of certificates that ends in the truststore",
}

_TRUST_ALGORITHMS: Final = ("PKIX", "SUNX509", "SUNPKIX", "X509", "X.509")
# Wrong values are refused where the Java client refuses them, even if the property has no effect here.
_NUMERIC: Final = (".ms", ".bytes", ".records", ".samples")
_BOOLEAN: Final = ("allow.auto.create.topics", "check.crcs", "enable.metrics.push", "exclude.internal.topics")
KNOWN: Final = frozenset(
    (
        *NUMBERS,
        *TEXTS,
        *_ADDRESSES,
        *READ_ELSEWHERE,
        *PRODUCING,
        *WITHOUT_EFFECT,
        *NOT_BUILT,
        *SECURITY,
        *SECURITY_WITHOUT_EFFECT,
        *OURS,
    )
    + (*REFUSED, *FORBIDDEN, *FORBIDDEN_IN_WRITES)
)
_warned: set[str] = set()


def check_names(java: Mapping[str, str], protocol: str) -> None:
    """Warns of names without effect; raises OptionError for a refused name, or an unknown one that resembles security's."""
    for name in java:
        is_off = (name.startswith("sasl.") and not protocol.startswith("SASL_")) or (
            name.startswith("ssl.") and not protocol.endswith("SSL")
        )
        if is_off:
            warn_once(f"kafka.{name} has no effect with kafka.security.protocol {protocol}")
        elif name in REFUSED and not (
            name == "ssl.trustmanager.algorithm" and java[name].strip().upper() in _TRUST_ALGORITHMS
        ):
            raise OptionError(f"kafka.{name} is not supported: {REFUSED[name]}")
        elif name not in KNOWN:
            if _is_security(name):
                raise OptionError(f"kafka.{name} is not a property of Kafka clients{_nearest(name)}")
            warn_once(f"kafka.{name} is not a property of Kafka clients and has no effect{_nearest(name)}")


def check_values(java: Mapping[str, str]) -> None:
    """Raises OptionError for an invalid value of a property that has no effect."""
    for name in WITHOUT_EFFECT:
        value = java.get(name, "").strip()
        if name in java and name.endswith(_NUMERIC) and not re.fullmatch(r"-?[0-9]+", value):
            raise OptionError(f"kafka.{name} is {java[name]!r}; it must be a whole number")
        if name in java and name in _BOOLEAN and value.lower() not in ("true", "false"):
            raise OptionError(f"kafka.{name} is {java[name]!r}; it must be true or false")


def warn_once(text: str) -> None:
    """Logs `text` once per process: Spark passes the same options many times."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


def _is_security(name: str) -> bool:
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.75)
    return name.startswith(("ssl.", "sasl.", "security.")) or bool({*close} & {"security.protocol", *SECURITY})


def _nearest(name: str) -> str:
    for close in difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.6):
        return f"; did you mean 'kafka.{close}'?"
    return ""
