"""Checks the options of connections before anything is connected: what no cluster could ever accept."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final
from urllib.parse import urlsplit

import kafka.errors as Errors
from kafka.protocol.broker_version_data import BrokerVersionData

from tolerant_client.errors import OptionError, text_of
from tolerant_client.stock.stock_names import SASL_MECHANISMS, KafkaNetSocket, KafkaSSLTransport, collect_hosts

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# What kafka-python raises for values of the wrong type.
_NOT_KAFKAS: Final = (AttributeError, LookupError, TypeError, ValueError)
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
    _check_servers(config["bootstrap_servers"], name)
    if (version := config["api_version"]) is not None:
        try:
            BrokerVersionData(version)
        except (Errors.KafkaError, *_NOT_KAFKAS) as error:
            raise OptionError(f"{name} has api_version {version!r}: give a tuple of numbers, as (3, 6)") from error
    protocol = config["security_protocol"]
    if protocol not in _PROTOCOLS:
        raise OptionError(f"{name} has security_protocol {protocol!r}: give one of {', '.join(_PROTOCOLS)}")
    if protocol.startswith("SASL_"):
        _check_login(config, name)
    if protocol.endswith("SSL"):
        _check_tls(config, name)
    check_proxy(config["proxy_url"], name)


def check_proxy(url: Any, name: str) -> None:
    """Raises OptionError for a proxy_url of `name` that cannot be used, without what it says: it may have a password."""
    try:
        KafkaNetSocket.__new__(KafkaNetSocket, url)  # which looks up no name
        is_usable = url is None or bool(urlsplit(url).hostname and urlsplit(url).port)
    except _NOT_KAFKAS:
        is_usable = False
    if not is_usable:
        raise OptionError(
            f"{name} has a proxy_url that cannot be used: give SCHEME://USER:PASSWORD@HOST:PORT, with a scheme of socks5, socks5h or"
            " http. kafka-python decodes no %2F, so it takes no user or password with one of / ? # [ ]"
        )


def _check_servers(servers: Any, name: str) -> None:
    try:
        found = collect_hosts(servers, randomize=False)
    except _NOT_KAFKAS:
        found = []
    if not any(host and 0 < port < 1 << 16 for host, port, _ in found):
        raise OptionError(f"{name} has bootstrap_servers {servers!r}: give HOST:PORT, or a list of them")


def _check_login(config: Mapping[str, Any], name: str) -> None:
    mechanism = config["sasl_mechanism"]
    if mechanism not in SASL_MECHANISMS:
        raise OptionError(f"{name} has sasl_mechanism {mechanism!r}: give one of {', '.join(sorted(SASL_MECHANISMS))}")
    if missing := [option for option in _LOGINS.get(mechanism, ()) if config[option] is None]:
        raise OptionError(f"{name} has no {' and no '.join(missing)}: sasl_mechanism {mechanism} needs it")
    for option in _USER:
        if not isinstance(config[option], (str, NoneType)):
            raise OptionError(f"{name} has a {option} that is no text")
    provider = config["sasl_oauth_token_provider"]
    if mechanism == "OAUTHBEARER" and not callable(getattr(provider, "token", None)):
        raise OptionError(f"{name} has a sasl_oauth_token_provider without token(): give an AbstractTokenProvider")


def _check_tls(config: Mapping[str, Any], name: str) -> None:
    if (context := config["ssl_context"]) is not None:
        if not isinstance(context, ssl.SSLContext):
            raise OptionError(f"{name} has ssl_context {context!r}: give an ssl.SSLContext")
        return
    for option in _FILES:
        if config[option]:
            try:
                with Path(config[option]).open("rb"):
                    pass
            except (OSError, TypeError) as error:
                raise OptionError(
                    f"{name} has {option} {config[option]!r}, which cannot be read: {getattr(error, 'strerror', error)}"
                ) from error
    try:
        KafkaSSLTransport._build_ssl_context(config)
    except (OSError, *_NOT_KAFKAS) as error:  # an ssl.SSLError is an OSError
        raise OptionError(f"{name} has ssl_ options that cannot be used: {text_of(error)}") from error
