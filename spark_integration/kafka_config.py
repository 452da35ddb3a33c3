"""Kafka's Java configuration names to kafka-python's: what can be mapped, and a clear no to the rest.

Laws:
- A property that would be silently without effect on security is refused.
- No message contains a password; values of sasl.* and ssl.*password are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from tolerant_client.errors import OptionError

FORBIDDEN: Final[Mapping[str, str]] = {
    "auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "key.deserializer": "keys are always binary",
    "value.deserializer": "values are always binary",
    "key.serializer": "keys are always binary",
    "value.serializer": "values are always binary",
    "enable.auto.commit": "no offsets are committed",
    "interceptor.classes": "no Java classes are loaded",
}

_INTEGERS: Final = (
    "request.timeout.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
    "metadata.max.age.ms", "connections.max.idle.ms",
)  # fmt: skip
# These tune a consumer group or Java's client; a read here has neither.
_WITHOUT_EFFECT: Final = (
    "group.id", "group.instance.id", "session.timeout.ms", "heartbeat.interval.ms",
    "max.poll.records", "max.poll.interval.ms", "fetch.min.bytes", "fetch.max.wait.ms",
    "fetch.max.bytes", "max.partition.fetch.bytes", "default.api.timeout.ms",
    "partition.assignment.strategy", "allow.auto.create.topics", "check.crcs", "client.dns.lookup",
    "retry.backoff.ms", "receive.buffer.bytes", "send.buffer.bytes",
)  # fmt: skip
_SECURITY: Final = (
    "bootstrap.servers", "client.id", "security.protocol", "sasl.mechanism", "sasl.jaas.config",
    "ssl.truststore.type", "ssl.truststore.location", "ssl.keystore.type", "ssl.keystore.location",
    "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JAAS: Final = re.compile(r"\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)\s+(.*?)\s*;\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")


def kafka_python_config(java: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's keys for Java properties (without the prefix `kafka.`).

    Raises OptionError naming the property that is forbidden, unknown or wrong.
    """
    for name in java:
        if name in FORBIDDEN:
            raise OptionError(f"kafka.{name} is not supported: {FORBIDDEN[name]}")
        if name not in (*_SECURITY, *_INTEGERS, *_WITHOUT_EFFECT):
            raise OptionError(f"Unknown or unsupported option 'kafka.{name}'{_nearest(name)}")
    servers = [server.strip() for server in java.get("bootstrap.servers", "").split(",") if server.strip()]
    if not servers:
        raise OptionError("kafka.bootstrap.servers is required: HOST:PORT[,HOST:PORT...]")
    config: dict[str, Any] = {"bootstrap_servers": servers}
    if "client.id" in java:
        config["client_id"] = java["client.id"]
    for name in _INTEGERS:
        if name in java:
            if not java[name].strip().isdigit():
                raise OptionError(f"kafka.{name} is {java[name]!r}; it must be a whole number")
            config[name.replace(".", "_")] = int(java[name])
    protocol = java.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise OptionError(f"kafka.security.protocol must be one of {', '.join(_PROTOCOLS)}")
    config["security_protocol"] = protocol
    if protocol.startswith("SASL_"):
        config.update(_sasl(java))
    if protocol.endswith("SSL"):
        config.update(_ssl(java))
    unused = [
        name
        for name in java
        if (name.startswith("sasl.") and not protocol.startswith("SASL_"))
        or (name.startswith("ssl.") and not protocol.endswith("SSL"))
    ]
    if unused:
        raise OptionError(f"kafka.{unused[0]} has no effect with kafka.security.protocol {protocol}")
    return config


def _sasl(java: Mapping[str, str]) -> dict[str, Any]:
    mechanism = java.get("sasl.mechanism", "").strip()
    if mechanism not in _LOGIN_MODULES:
        raise OptionError(f"kafka.sasl.mechanism must be one of {', '.join(_LOGIN_MODULES)}")
    match = _JAAS.fullmatch(java.get("sasl.jaas.config", ""))
    wanted = _LOGIN_MODULES[mechanism]
    example = f'{wanted} required username="..." password="...";'
    if match is None:
        raise OptionError(f"kafka.sasl.jaas.config is missing or not of the form: {example}")
    # Distributions that shade Kafka rename the package, not the class.
    if match[1].rpartition(".")[2] != wanted.rpartition(".")[2]:
        raise OptionError(f"kafka.sasl.jaas.config names another login module; {mechanism} needs: {example}")
    given = {}
    position = 0
    while position < len(match[2]):
        option = _JAAS_OPTION.match(match[2], position)
        if option is None:
            raise OptionError(f"kafka.sasl.jaas.config cannot be read; expected: {example}")
        value = next(text for text in option.groups()[1:] if text is not None)
        given[option[1]] = re.sub(r"\\(.)", r"\1", value)
        position = option.end()
    if not given.get("username") or "password" not in given:
        raise OptionError(f"kafka.sasl.jaas.config lacks username or password; expected: {example}")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": given["username"],
        "sasl_plain_password": given["password"],
    }


def _ssl(java: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for store, keys in (
        ("truststore", ("ssl_cafile",)),
        ("keystore", ("ssl_certfile", "ssl_keyfile")),
    ):
        kind = java.get(f"ssl.{store}.type", "PEM").strip().upper()
        location = java.get(f"ssl.{store}.location")
        if kind != "PEM" or (location or "").lower().endswith((".jks", ".p12", ".pfx")):
            raise OptionError(
                f"kafka.ssl.{store}.location must be a PEM file here: Python reads no Java keystores"
            )
        if location:
            config.update(dict.fromkeys(keys, location))
    if "ssl.key.password" in java:
        config["ssl_password"] = java["ssl.key.password"]
    algorithm = java.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", ""):
        raise OptionError("kafka.ssl.endpoint.identification.algorithm must be https, or empty")
    config["ssl_check_hostname"] = algorithm == "https"
    return config


def _nearest(name: str) -> str:
    known = (*_SECURITY, *_INTEGERS, *_WITHOUT_EFFECT)
    for close in difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"; did you mean 'kafka.{close}'?"
    return ""
