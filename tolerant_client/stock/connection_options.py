"""Checks the options of connections before anything is connected: what no cluster could ever accept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tolerant_client.errors import OptionError, text_of
from tolerant_client.stock.stock_names import SASL_MECHANISMS, KafkaNetSocket, KafkaSSLTransport

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
_USER: Final = ("sasl_plain_username", "sasl_plain_password")
_LOGINS: Final = {
    "PLAIN": _USER,
    "SCRAM-SHA-256": _USER,
    "SCRAM-SHA-512": _USER,
    "OAUTHBEARER": ("sasl_oauth_token_provider",),
}


def check_connection(config: Mapping[str, Any], name: str) -> None:
    """Raises OptionError for options, named `name` as a whole, that cannot connect to anything; `config` has all of kafka-python's keys."""
    protocol = config["security_protocol"]
    if protocol not in _PROTOCOLS:
        raise OptionError(f"{name} has security_protocol {protocol!r}: give one of {', '.join(_PROTOCOLS)}")
    if protocol.startswith("SASL_"):
        _check_login(config, name)
    if protocol.endswith("SSL") and config["ssl_context"] is None:
        _check_tls(config, name)
    try:
        KafkaNetSocket.__new__(KafkaNetSocket, config["proxy_url"])  # which looks up no name
    except ValueError as error:
        raise OptionError(f"{name} has a proxy_url that cannot be used: {error}") from error


def _check_login(config: Mapping[str, Any], name: str) -> None:
    mechanism = config["sasl_mechanism"]
    if mechanism not in SASL_MECHANISMS:
        raise OptionError(f"{name} has sasl_mechanism {mechanism!r}: give one of {', '.join(sorted(SASL_MECHANISMS))}")
    if missing := [option for option in _LOGINS.get(mechanism, ()) if config[option] is None]:
        raise OptionError(f"{name} has no {' and no '.join(missing)}: sasl_mechanism {mechanism} needs it")


def _check_tls(config: Mapping[str, Any], name: str) -> None:
    for option in _FILES:
        if config[option]:
            try:
                with Path(config[option]).open("rb"):
                    pass
            except OSError as error:
                raise OptionError(
                    f"{name} has {option} {config[option]!r}, which cannot be read: {error.strerror}"
                ) from error
    try:
        KafkaSSLTransport._build_ssl_context(config)
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise OptionError(f"{name} has ssl_ options that cannot be used: {text_of(error)}") from error
