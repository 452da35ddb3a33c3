"""SASL as Java clients configure it (kafka.sasl.*): the mechanism, and the login in sasl.jaas.config.

Laws:
- Messages show only the option names of sasl.jaas.config, no other part of it.
- The work of a Java class (a login, a callback) is done here or refused by name.

Facts: SaslConfigs.java and JaasConfig.java of Kafka; Krb5LoginModule of the JDK.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from tolerant_client.errors import OptionError
from tolerant_client.security.java_properties import warn_once
from tolerant_client.security.keystores import PROPERTIES, WITHOUT_EFFECT, tls_settings
from tolerant_client.security.logins import KerberosLogin, MskIamLogin, TokenLogin

_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
}
_EXAMPLES: Final = {
    "PLAIN": 'username="..." password="..."',
    "SCRAM-SHA-256": 'username="..." password="..."',
    "SCRAM-SHA-512": 'username="..." password="..."',
    "GSSAPI": 'useKeyTab=true keyTab="/path" principal="user@REALM" serviceName="kafka"',
    "OAUTHBEARER": 'clientId="..." clientSecret="..." scope="..."',
    "AWS_MSK_IAM": "",
}
# These are accepted, since this client does their work: the mechanism requires them in Java.
_HANDLERS: Final = {
    "OAUTHBEARER": "OAuthBearerLoginCallbackHandler",
    "AWS_MSK_IAM": "IAMClientCallbackHandler",
}
_TOKEN_RETRIEVERS: Final = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
_JAAS: Final = re.compile(
    r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);\s*", re.DOTALL | re.IGNORECASE
)
_JAAS_OPTION: Final = re.compile(
    r"""\s*([\w.$-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))\s*""", re.DOTALL
)
_LOGIN_TIMEOUT_MS: Final = 10_000  # where none is given; Java then waits without a limit
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def sasl_config(java: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's configuration keys for the sasl.* properties; logins are under `credentials`.

    Raises OptionError naming the property that is missing, invalid, or useless without Java.
    """
    mechanism = java.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in _MODULES:
        raise OptionError(f"kafka.sasl.mechanism must be one of {', '.join(_MODULES)}")
    for name in ("sasl.client.callback.handler.class", "sasl.login.callback.handler.class", "sasl.login.class"):
        given = java.get(name, "").rpartition(".")[2]
        if given and given != _HANDLERS.get(mechanism):
            raise OptionError(f"kafka.{name} is not supported with {mechanism}: no Java classes are loaded")
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "credentials": (_token_login(java, _jaas(java, mechanism)),)}
    options = _jaas(java, mechanism)
    if mechanism == "GSSAPI":
        return {"sasl_mechanism": mechanism, "credentials": (_kerberos_login(java, options),)}
    if mechanism == "AWS_MSK_IAM":
        if unknown := sorted(options.keys() - {"awsDebugCreds"}):
            raise OptionError(
                f"kafka.sasl.jaas.config: {unknown[0]} is not supported; botocore finds the AWS credentials"
                " (AWS_PROFILE, AWS_ROLE_ARN, the instance's role)"
            )
        return {"sasl_mechanism": mechanism, "credentials": (MskIamLogin(),)}
    return {"sasl_mechanism": mechanism, **_password(mechanism, options)}


def _password(mechanism: str, options: Mapping[str, str]) -> dict[str, Any]:
    if not options.get("username") or "password" not in options:
        raise OptionError(f"kafka.sasl.jaas.config lacks username or password; expected: {_example(mechanism)}")
    if options.get("tokenauth", "false").lower() == "true":
        raise OptionError("kafka.sasl.jaas.config: tokenauth (delegation tokens) is not supported")
    username = options["username"]
    if mechanism != "PLAIN":  # RFC 5802: these two separate the parts of a message
        username = username.replace("=", "=3D").replace(",", "=2C")
    return {"sasl_plain_username": username, "sasl_plain_password": options["password"]}


def _kerberos_login(java: Mapping[str, str], options: Mapping[str, str]) -> KerberosLogin:
    # As in Kafka, one of the two options must name the service, and two different names are refused.
    services = {name for name in (options.get("serviceName"), java.get("sasl.kerberos.service.name")) if name}
    if len(services) != 1:
        raise OptionError("kafka.sasl.kerberos.service.name or serviceName must give one name, usually: kafka")
    uses = {name: options.get(name, "false").lower() == "true" for name in ("useKeyTab", "useTicketCache")}
    if uses["useKeyTab"] and "keyTab" not in options:
        raise OptionError(f"kafka.sasl.jaas.config: useKeyTab needs keyTab; expected: {_example('GSSAPI')}")
    keytab = options["keyTab"].removeprefix("file:").removeprefix("FILE:") if uses["useKeyTab"] else None
    cache = options.get("ticketCache") if uses["useTicketCache"] else None
    return KerberosLogin(services.pop(), options.get("principal"), keytab, cache)


def _token_login(java: Mapping[str, str], options: Mapping[str, str]) -> TokenLogin:
    retriever = java.get("sasl.oauthbearer.jwt.retriever.class", _TOKEN_RETRIEVERS[0]).rpartition(".")[2]
    asserted = [name for name in java if name.startswith("sasl.oauthbearer.assertion.")]
    if retriever not in _TOKEN_RETRIEVERS or asserted:
        name = asserted[0] if asserted else "sasl.oauthbearer.jwt.retriever.class"
        raise OptionError(f"kafka.{name} is not supported: use client credentials or a token in a file")
    url = java.get("sasl.oauthbearer.token.endpoint.url", "").strip()
    _check_address(url)
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE:
        warn_once(
            f"kafka.sasl.oauthbearer.token.endpoint.url: the secret goes to {parts.hostname} unencrypted; use https"
        )
    for name in options:
        if name.startswith("ssl.") and name not in (*PROPERTIES, *WITHOUT_EFFECT):
            raise OptionError(f"kafka.sasl.jaas.config: {name} is not supported; use one of {', '.join(PROPERTIES)}")
    client_id = java.get("sasl.oauthbearer.client.credentials.client.id", options.get("clientId", ""))
    client_secret = java.get("sasl.oauthbearer.client.credentials.client.secret", options.get("clientSecret", ""))
    if not url.startswith("file:") and not (client_id and client_secret):
        raise OptionError(f"kafka.sasl.jaas.config lacks clientId or clientSecret; expected: {_example('OAUTHBEARER')}")
    extensions = {
        name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
    }
    for name, value in extensions.items():  # KIP-342
        if (
            not re.fullmatch(r"[A-Za-z]+", name)
            or name.lower() == "auth"
            or not re.fullmatch(r"[\x20-\x7e\t\r\n]*", value)
        ):
            raise OptionError(f"kafka.sasl.jaas.config: extension_{name} is not a valid SASL extension (KIP-342)")
    return TokenLogin(
        url,
        client_id,
        client_secret,
        java.get("sasl.oauthbearer.scope", options.get("scope", "")),
        extensions,
        _timeout_s(java),
        java.get("sasl.oauthbearer.header.urlencode", "false").strip().lower() == "true",
        tls_settings(
            {name: value for name, value in options.items() if name.startswith("ssl.")}, "kafka.sasl.jaas.config: "
        ),
    )


def _check_address(url: str) -> None:
    """Raises OptionError for an invalid token endpoint; the address may contain a secret and is not shown."""
    option = "kafka.sasl.oauthbearer.token.endpoint.url"
    if not re.match(r"(https?|file):", url):
        raise OptionError(f"{option} is required: https://..., or file:/... for a token in a file")
    if url.startswith("file:"):
        return
    try:
        parts = urllib.parse.urlsplit(url)
        host, has_login, _port = parts.hostname, "@" in parts.netloc, parts.port
    except ValueError:
        host, has_login = None, False
    if has_login:
        raise OptionError(f"{option} has a login before its host; give clientId and clientSecret instead")
    if not host or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise OptionError(f"{option} must have the form https://HOST[:PORT]/PATH, without spaces")


def _timeout_s(java: Mapping[str, str]) -> float:
    """The larger of both timeouts: urllib has one for connecting and reading."""
    given = []
    for name in ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"):
        if name not in java:
            continue
        text = java[name].strip()
        if not text.isdecimal():
            raise OptionError(f"kafka.{name} is {text!r}; it must be a whole number")
        given.append(int(text))
    return max(given, default=_LOGIN_TIMEOUT_MS) / 1000


def _jaas(java: Mapping[str, str], mechanism: str) -> dict[str, str]:
    """The options of the login module in sasl.jaas.config."""
    text = java.get("sasl.jaas.config")
    if text is None:
        raise OptionError(
            f"kafka.sasl.jaas.config is missing (a JAAS file of the JVM is not read); expected: {_example(mechanism)}"
        )
    match = _JAAS.fullmatch(text)
    if match is None:
        raise OptionError(f"kafka.sasl.jaas.config is not of the form: {_example(mechanism)}")
    # Distributions that shade Kafka rename the package, but not the class.
    if match[1].rpartition(".")[2] != _MODULES[mechanism].rpartition(".")[2]:
        raise OptionError(
            f"kafka.sasl.jaas.config names another login module; {mechanism} needs: {_example(mechanism)}"
        )
    given: dict[str, str] = {}
    position = len(match[2]) - len(match[2].lstrip())
    while position < len(match[2]):
        option = _JAAS_OPTION.match(match[2], position)
        if option is None:
            raise OptionError(f"kafka.sasl.jaas.config has an unreadable option; expected: {_example(mechanism)}")
        value = next(text for text in option.groups()[1:] if text is not None)
        given[option[1]] = re.sub(
            r"\\(.)", lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), value, flags=re.DOTALL
        )
        position = option.end()
    return given


def _example(mechanism: str) -> str:
    return f"{_MODULES[mechanism]} required {_EXAMPLES[mechanism]}".rstrip() + ";"
