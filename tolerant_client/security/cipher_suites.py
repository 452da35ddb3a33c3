"""Cipher suites by the names that Java clients use (kafka.ssl.cipher.suites): exactly these are allowed, or an error.

Facts: RFC 5289, 7905 and 8446; `openssl ciphers -stdname`.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Sequence
from typing import Final

from tolerant_client.errors import OptionError

# RFC 8446; the last one is not a suite, but signals RFC 5746, which OpenSSL always follows.
_SUITES_OF_13: Final = (
    "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256", "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
)  # fmt: skip


def restrict(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Allows exactly `suites` (IANA's names, as Java writes them).

    Python cannot select single suites of TLS 1.3, so a list with only some of them restricts the connection to TLS 1.2.
    Raises OptionError naming the suite.
    """
    # OpenSSL would read other names as patterns, and allow every suite that matches.
    if wrong := [suite for suite in suites if not re.fullmatch(r"[A-Z0-9_]+", suite)]:
        raise OptionError(f"kafka.ssl.cipher.suites has {wrong[0]!r}; write IANA's names, such as {_SUITES_OF_13[0]}")
    of_13 = {suite for suite in suites if "_WITH_" not in suite}
    of_12 = [suite for suite in suites if "_WITH_" in suite]
    offered = {cipher["name"] for cipher in context.get_ciphers() if cipher["name"].startswith("TLS_")}
    if not offered <= of_13:
        if context.minimum_version == ssl.TLSVersion.TLSv1_3 or not of_12:
            raise OptionError(
                "kafka.ssl.cipher.suites: Python allows the suites of TLS 1.3 only together;"
                f" name all of {', '.join(sorted(offered))}, or name suites of TLS 1.2"
            )
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    wanted = {openssl_name(suite): suite for suite in of_12}
    if of_12:
        with contextlib.suppress(ssl.SSLError):  # OpenSSL knows none of them: reported below
            context.set_ciphers(":".join(wanted))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    allowed = {cipher["name"] for cipher in context.get_ciphers()} - offered
    unknown = [*(of_13 - {*_SUITES_OF_13}), *(suite for name, suite in wanted.items() if name not in allowed)]
    if unknown or (of_12 and allowed != wanted.keys()):
        raise OptionError(
            f"kafka.ssl.cipher.suites: OpenSSL does not know {', '.join(sorted(unknown or of_12))}; remove that"
        )
    if context.minimum_version > context.maximum_version:
        raise OptionError(
            "kafka.ssl.cipher.suites and kafka.ssl.enabled.protocols leave no version of TLS: names of TLS 1.2 suites"
            " contain _WITH_, those of TLS 1.3 do not"
        )


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a TLS 1.2 cipher suite, from the IANA name that Java uses (RFC 5289, 7905)."""
    exchange, _, cipher = suite.removeprefix("TLS_").removeprefix("SSL_").partition("_WITH_")
    cipher = (
        re.sub(r"AES_(\d+)_", r"AES\1-", cipher)
        .replace("CBC_", "")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    )
    prefix = "" if exchange == "RSA" else exchange.replace("_", "-") + "-"
    return prefix + cipher.replace("_", "-")
