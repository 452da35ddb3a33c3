"""Translates the configuration of Java clients to kafka-python's, with its logins and certificates.

Laws:
- No message contains a password; the values of sasl.jaas.config, ssl.*password and ssl.*key are never shown.
- The result can be pickled: the process that connects reads the stores and logs in (Cluster's `credentials`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from tolerant_client.errors import OptionError
from tolerant_client.security import keystores
from tolerant_client.security.java_properties import (
    FORBIDDEN,
    FORBIDDEN_IN_WRITES,
    NUMBERS,
    TEXTS,
    check_names,
    check_values,
)

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# From Utils.java of Kafka; a listener name may precede the address, as in PLAINTEXT://host:9092.
_ADDRESS: Final = re.compile(r"(?:[\w.%-]*://)?((?:\[[0-9a-zA-Z%._:-]*\]|[0-9a-zA-Z%._-]+):[0-9]{1,5})")
_FOR_EVER_MS: Final = 10 * 365 * 86_400_000


def kafka_python_config(java: Mapping[str, str], use: Literal["read", "write"] = "read") -> dict[str, Any]:
    """Cluster's configuration for Java properties (without the prefix `kafka.`).

    Raises OptionError naming the property that is forbidden, refused or invalid.
    """
    for name, reason in (FORBIDDEN if use == "read" else FORBIDDEN_IN_WRITES).items():
        if name in java:
            raise OptionError(f"kafka.{name} is not supported: {reason}")
    servers = _servers(java.get("bootstrap.servers", ""))
    protocol = java.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise OptionError(f"kafka.security.protocol must be one of {', '.join(_PROTOCOLS)}")
    check_names(java, protocol)
    if use == "read":
        check_values(java)
    config: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": protocol}
    for name in TEXTS:
        if java.get(name):
            config[name.replace(".", "_")] = java[name]
    if "metadata_recovery_strategy" in config:  # Java ignores its case
        config["metadata_recovery_strategy"] = config["metadata_recovery_strategy"].strip().lower()
    for name in NUMBERS:
        if name in java:
            config[name.replace(".", "_")] = _number(java, name)
    if version := java.get("broker.version.fallback", "").strip():
        if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", version):
            raise OptionError(f"kafka.broker.version.fallback is {version!r}; it must be a version such as 0.9.0.1")
        config["api_version"] = tuple(int(part) for part in version.split("."))
    credentials: tuple[Any, ...] = ()
    if protocol.startswith("SASL_"):
        from tolerant_client.security.sasl import sasl_config  # imported late: few short-lived Spark workers need it

        config.update(sasl_config(java))
        credentials = config.pop("credentials", ())
    if protocol.endswith("SSL"):
        tls = keystores.tls_settings(java)
        config["ssl_check_hostname"] = tls.is_host_checked
        credentials = (*credentials, tls)
    if credentials:
        config["credentials"] = credentials
    return config


def _servers(text: str) -> list[str]:
    given = [server.strip() for server in text.split(",") if server.strip()]
    found = [_ADDRESS.fullmatch(server) for server in given]
    wrong = [server for server, match in zip(given, found, strict=True) if match is None]
    if wrong or not given:
        what = f"has the invalid address {wrong[0]!r}" if wrong else "is required"
        raise OptionError(f"kafka.bootstrap.servers {what}; write HOST:PORT[,HOST:PORT...]")
    return [match[1] for match in found if match is not None]


def _number(java: Mapping[str, str], name: str) -> int:
    text = java[name].strip()
    if name == "connections.max.idle.ms" and text == "-1":
        return _FOR_EVER_MS
    if not text.isdecimal() or len(text) > 18:
        raise OptionError(f"kafka.{name} is {java[name][:40]!r}; it must be a whole number of at most 18 digits")
    return int(text)
