"""Logs in for SASL mechanisms when a client connects: Kerberos tickets, OAuth tokens, optional packages.

Laws:
- Each login can be pickled and shows no secret; calling it logs in from the process that connects (Cluster's
  `credentials`) and returns kafka-python's configuration keys.
- A token is requested once and used for four fifths of its lifetime, as Kafka's clients do, or up to its end
  while the server gives no new one.
- One process has one Kerberos login.

Facts: KIP-255 and KIP-768 (OAUTHBEARER, client credentials), KIP-342 (extensions), RFC 6749 section 4.4, RFC 7519
(exp).
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import math
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.security.keystores import TlsSettings

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750
_ERROR_CODE: Final = re.compile(r"[ -!#-\[\]-~]+")  # RFC 6749, section 5.2
_LARGEST_RESPONSE: Final = 1 << 20
_DEFAULT_TIMEOUT_S: Final = 10.0
_LIFE_USED: Final = 0.8
_LIFE_UNTOLD_S: Final = 60.0  # RFC 6749 only recommends expires_in
_BACKOFFS_S: Final = (0.2, 1.0)  # between requests for a token, after no response or a server error
_PAUSE_S: Final = 5.0  # before the next request while the token is valid; a request that took longer is not retried
_kerberos_lock = threading.Lock()
_kerberos_login: KerberosLogin | None = None  # of this process


@dataclass(frozen=True)
class KerberosLogin:
    """GSSAPI with a keytab, a ticket cache, or the credentials of this user's environment.

    MIT Kerberos takes its defaults from the environment of the process, so a process has one login: calling a
    different one raises OptionError.
    """

    service_name: str
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None

    def __call__(self) -> dict[str, Any]:
        global _kerberos_login
        _need_package("gssapi", "sasl.mechanism GSSAPI", "kerberos")
        with _kerberos_lock:
            if _kerberos_login is not None and _kerberos_login._is_other(self):
                raise OptionError(
                    f"kafka.sasl.jaas.config: this process is logged in to Kerberos as {_kerberos_login._who()} and"
                    f" cannot log in as {self._who()} too; use one principal, or spark.python.worker.reuse=false if"
                    " another query uses the other principal"
                )
            self._take()
            _kerberos_login = self
        return {"sasl_kerberos_service_name": self.service_name}

    def _is_other(self, login: KerberosLogin) -> bool:
        ours, theirs = ((each.principal, each.keytab, each.ticket_cache) for each in (self, login))
        return ours != theirs

    def _who(self) -> str:
        place = self.keytab or self.ticket_cache
        return f"{self.principal or 'the default principal'} of {place or 'the environment'}"

    def _take(self) -> None:
        if self.keytab is not None:
            if not os.access(self.keytab, os.R_OK):
                raise OptionError(
                    f"kafka.sasl.jaas.config: keyTab {self.keytab!r} cannot be read; it must be on the driver and on"
                    " every executor at that path"
                )
            self._log_in(self.keytab)
        elif self.ticket_cache is not None:
            os.environ["KRB5CCNAME"] = f"FILE:{self.ticket_cache}"

    def _log_in(self, keytab: str) -> None:
        import gssapi
        from gssapi.raw.misc import GSSError

        cache = f"MEMORY:tolerant-{self.principal or 'default'}"
        os.environ["KRB5_CLIENT_KTNAME"], os.environ["KRB5CCNAME"] = f"FILE:{keytab}", cache
        name = self.principal and gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        try:
            # Puts the first ticket into the cache; the library renews it from the same keytab.
            gssapi.Credentials(
                name=name or None, usage="initiate", store={"client_keytab": keytab, "ccache": cache}
            ).inquire()
        except GSSError as error:
            raise OptionError(
                f"Kerberos gave no ticket to {self.principal or 'the first principal'} of keyTab {keytab!r}: {error};"
                " check the principal, the keytab and the Kerberos configuration"
            ) from None


@dataclass(frozen=True)
class MskIamLogin:
    """AWS_MSK_IAM: kafka-python signs with the AWS credentials that botocore finds."""

    def __call__(self) -> dict[str, Any]:
        _need_package("botocore", "sasl.mechanism AWS_MSK_IAM", "msk")
        return {}


@dataclass(frozen=True)
class TokenLogin:
    """OAUTHBEARER: a token from an OAuth server for a client id and secret, or from a file."""

    url: str = field(repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = _DEFAULT_TIMEOUT_S
    is_urlencoded: bool = False
    tls: TlsSettings = TlsSettings()

    def __call__(self) -> dict[str, Any]:
        provider = TokenProvider(self)
        provider.token()  # raises errors now, instead of failing every connection
        return {"sasl_oauth_token_provider": provider}

    def ask(self) -> tuple[str, float]:
        """A token and its lifetime in seconds; 0 for a token from a file, which is read again at each use.

        Raises OptionError if the request is refused or its response is invalid, ClusterUnreachableError if there is no
        usable response or the server has a passing error (HTTP 408, 429 or 5xx).
        """
        if self.url.startswith("file:"):
            return self._checked(_read_token(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path))), 0.0
        body = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        pair = (self.client_id, self.client_secret)
        if self.is_urlencoded:
            pair = (urllib.parse.quote_plus(pair[0]), urllib.parse.quote_plus(pair[1]))
        request = urllib.request.Request(
            self.url,
            urllib.parse.urlencode(body).encode(),
            {
                "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        opener = self._opener()
        try:
            with opener.open(request, timeout=self.connect_timeout_s) as response:
                text = self._read(response)
        except urllib.error.HTTPError as error:
            with error:
                reason = self._reason(error)
            is_passing = error.code >= 500 or error.code in (408, 429)
            kind = ClusterUnreachableError if is_passing else OptionError
            remedy = "this passes, or is for its operator" if is_passing else "check the client's id, secret and scope"
            raise kind(f"{self._named()} responded with {error.code} {reason}; {remedy}") from None
        except OSError as error:  # includes URLError and timeouts
            raise ClusterUnreachableError(f"{self._named()} gave no token: {getattr(error, 'reason', error)}") from None
        except (http.client.HTTPException, ValueError) as error:  # their messages may contain received data
            raise ClusterUnreachableError(
                f"{self._named()} gave no token: {type(error).__name__}; does it speak HTTP there, or HTTPS?"
            ) from None
        return self._parsed(text)

    def _reason(self, error: urllib.error.HTTPError) -> str:
        """The error code in the server's response, if it arrives in time."""
        try:
            return _error_code(self._read(error))
        except (OSError, http.client.HTTPException, ValueError):
            return "without a reason"

    def _read(self, response: Any) -> bytes:
        """The body; the timeout bounds the whole read, even of a trickling response, since the read blocks the caller."""
        until, text = time.monotonic() + self.connect_timeout_s, b""
        while len(text) < _LARGEST_RESPONSE and (piece := response.read1(_LARGEST_RESPONSE)):
            text += piece
            if time.monotonic() > until:
                raise TimeoutError("timed out")
        return text

    def _opener(self) -> urllib.request.OpenerDirector:
        opener = urllib.request.OpenerDirector()
        # No redirects: they would carry the secret to another host.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=self.tls.context()),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            opener.add_handler(handler)
        return opener

    def _parsed(self, response: bytes) -> tuple[str, float]:
        try:
            fields = json.loads(response)
            token, told = fields["access_token"], fields.get("expires_in")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise OptionError(f"{self._named()} responded without an access_token in JSON") from None
        return self._checked(token), _life_s(token, told)

    def _checked(self, token: Any) -> str:
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise OptionError(f"{self._named()} gave a token that is not a bearer token (RFC 6750)")
        return token

    def _named(self) -> str:
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]  # leaves out a password in the address
        return f"sasl.oauthbearer.token.endpoint.url {parts.scheme}://{host}{parts.path}"


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """A login's token, requested again when most of its lifetime is over."""

    def __init__(self, login: TokenLogin) -> None:
        super().__init__()
        self._login = login
        self._lock = threading.Lock()
        self._token = ""
        self._fresh_until = self._ends_at = float("-inf")

    def token(self) -> str:
        with self._lock:
            if (now := time.monotonic()) >= self._fresh_until:
                has_token = now < self._ends_at
                try:
                    self._token, life = self._login.ask() if has_token else self._insist()
                    self._fresh_until, self._ends_at = now + life * _LIFE_USED, now + life
                except ClusterUnreachableError:
                    if not has_token:
                        raise
                    self._fresh_until = min(time.monotonic() + _PAUSE_S, self._ends_at)
            return self._token

    def _insist(self) -> tuple[str, float]:
        until = time.monotonic() + _PAUSE_S  # the event loop is blocked meanwhile
        for pause in _BACKOFFS_S:
            try:
                return self._login.ask()
            except ClusterUnreachableError:
                if time.monotonic() > until:
                    raise
                time.sleep(pause)
        return self._login.ask()

    def extensions(self) -> dict[str, str]:
        return dict(self._login.extensions)


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise OptionError(f"sasl.oauthbearer.token.endpoint.url: {path!r} cannot be read ({error})") from None


def expiry_words(provider: Any) -> str:
    """That a provider's token has expired, and when, to be appended to its refusal; nothing else of the token, and "" if it has not."""
    try:
        expires_at = _expires_at(provider.token())
        if expires_at > time.time():
            return ""
        return f"; our token expired at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(expires_at))} UTC"
    except Exception:  # not a JWT, or there is no token any more; the refusal is told all the same
        return ""


def _expires_at(token: str) -> float:
    """A JWT's claim exp, in seconds since 1970."""
    claims = token.split(".")[1]
    return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])


def _life_s(token: str, told: Any) -> float:
    """The token's lifetime in seconds: the server's expires_in, else the JWT's claim exp, else a fixed time."""
    try:
        if told is None:
            told = _expires_at(token) - time.time()
        life = float(told)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError):
        return _LIFE_UNTOLD_S
    return life if math.isfinite(life) else _LIFE_UNTOLD_S


def _error_code(response: bytes) -> str:
    """The error code of RFC 6749 in a response body; the body itself must not be shown."""
    try:
        code = str(json.loads(response)["error"])[:80]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "without a reason"
    return code if _ERROR_CODE.fullmatch(code) else "without a reason"


def _need_package(module: str, what: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise OptionError(
            f"{what} needs the Python package {module} on the driver and on every executor: in a checkout, "
            f"pip install '.[{extra}]'"
        )
