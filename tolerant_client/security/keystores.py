"""TLS as Java clients describe it (kafka.ssl.*): truststores and keystores in JKS, PKCS12 and PEM.

Laws:
- TlsSettings can be pickled and shows no secret; files are read by the process that connects, when it connects.
- The content of a file decides its type, not its name: keytool writes PKCS12 into files named .jks.
- A private key is written to disk only encrypted under a one-time password, in a file owned by this user that is
  deleted at once (Python's TLS reads keys from files only).
- A property that restricts the TLS negotiation is applied exactly or refused.

Facts: DefaultSslEngineFactory.java and SslConfigs.java of Kafka; KIP-651 (PEM).
"""

from __future__ import annotations

import re
import secrets
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tolerant_client.errors import OptionError
from tolerant_client.security.cipher_suites import restrict
from tolerant_client.security.java_keystore import MAGIC, KeystoreError, open_private_key, read_java_keystore

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

TYPES: Final = ("JKS", "PKCS12", "PEM")
PROPERTIES: Final = (
    "ssl.cipher.suites", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.password",
    "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password",
    "ssl.truststore.type",
)  # fmt: skip
# These configure parts of the JVM.
WITHOUT_EFFECT: Final = ("ssl.keymanager.algorithm", "ssl.protocol", "ssl.secure.random.implementation")
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_BROKEN_VERSIONS: Final = ("SSLV2HELLO", "SSLV3", "TLSV1", "TLSV1.1")
_VERSIONS: Final = {"TLSV1.2": ssl.TLSVersion.TLSv1_2, "TLSV1.3": ssl.TLSVersion.TLSv1_3}
_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----((?:(?!-----).)*)-----END \1-----", re.DOTALL)
_CONVERT: Final = "keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype PKCS12"
# Marks a private key in PKCS12 (pkcs8ShroudedKeyBag of RFC 7292, in DER); the mark itself is not encrypted.
_KEY_BAG: Final = bytes.fromhex("060b2a864886f70d010c0a0102")


@dataclass(frozen=True)
class Store:
    """The location of keys or certificates: a file, or PEM text in the option itself."""

    option: str
    location: str | None = None
    pem: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)

    @property
    def key_option(self) -> str:
        """The option of the key's password, for a keystore."""
        return f"{self.option.removesuffix('keystore')}key.password"


@dataclass(frozen=True)
class TlsSettings:
    """A client's TLS settings; calling them reads the stores and makes the context (Cluster's `credentials`).

    Raises OptionError naming the store, its file and the remedy.
    """

    truststore: Store | None = None
    keystore: Store | None = None
    is_host_checked: bool = True
    lowest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    cipher_suites: tuple[str, ...] = ()

    def __call__(self) -> dict[str, Any]:
        return {"ssl_context": self.context()}

    def context(self) -> ssl.SSLContext:
        """A client context; it always verifies the broker's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.is_host_checked
        context.minimum_version, context.maximum_version = self.lowest, self.highest
        if self.cipher_suites:
            restrict(context, self.cipher_suites)
        if self.truststore is None:
            context.load_default_certs()
        else:
            _load(_trust, context, self.truststore)
        if self.keystore is not None:
            _load(_identify, context, self.keystore)
        return context


def tls_settings(java: Mapping[str, str], prefix: str = "kafka.") -> TlsSettings:
    """The ssl.* properties, checked as far as possible without reading a file.

    Raises OptionError naming the property.
    """
    lowest, highest = _versions(java.get("ssl.enabled.protocols", ""), prefix)
    algorithm = java.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", ""):
        raise OptionError(f"{prefix}ssl.endpoint.identification.algorithm must be https, or empty")
    suites = tuple(suite.strip() for suite in java.get("ssl.cipher.suites", "").split(",") if suite.strip())
    return TlsSettings(
        truststore=_store(java, prefix, "truststore", ("ssl.truststore.certificates",)),
        keystore=_store(java, prefix, "keystore", ("ssl.keystore.key", "ssl.keystore.certificate.chain")),
        is_host_checked=algorithm == "https",
        lowest=lowest,
        highest=highest,
        cipher_suites=suites,
    )


def _store(java: Mapping[str, str], prefix: str, name: str, inline: tuple[str, ...]) -> Store | None:
    option = f"{prefix}ssl.{name}"
    kind = java.get(f"ssl.{name}.type", "JKS").strip().upper()
    if kind not in TYPES:
        raise OptionError(f"{option}.type must be one of {', '.join(TYPES)}; convert the file with {_CONVERT}")
    location = java.get(f"ssl.{name}.location")
    given = [part for part in inline if part in java]
    if given and location is not None:
        raise OptionError(f"{option}.location and {prefix}{given[0]} are both given; give one of them")
    if given and len(given) < len(inline):
        missing = next(part for part in inline if part not in java)
        raise OptionError(f"{prefix}{given[0]} needs {prefix}{missing} too")
    if location is None and not given:
        return None
    pem = "\n".join(java[part] for part in inline) if given else None
    return Store(option, location, pem, java.get(f"ssl.{name}.password"), java.get("ssl.key.password"))


def _versions(text: str, prefix: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    named = [version.strip().upper() for version in text.split(",") if version.strip()] or list(_VERSIONS)
    unknown = [version for version in named if version not in (*_BROKEN_VERSIONS, *_VERSIONS)]
    usable = sorted(_VERSIONS[version] for version in named if version in _VERSIONS)
    if unknown or not usable:
        raise OptionError(
            f"{prefix}ssl.enabled.protocols is {text!r}; it must name TLSv1.2 or TLSv1.3 (older versions are insecure)"
            " and no unknown version"
        )
    return usable[0], usable[-1]


def _load(use: Callable[[ssl.SSLContext, Store], None], context: ssl.SSLContext, store: Store) -> None:
    """Calls `use`; adds the store's name to every error that its content raises."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        use(context, store)
    except OptionError:
        raise
    except KeystoreError as error:
        raise OptionError(f"{_named(store)}: {error}") from None
    except ssl.SSLError as error:
        raise OptionError(f"{_named(store)}: OpenSSL refuses it ({error.reason})") from None
    except UnsupportedAlgorithm as error:
        raise OptionError(f"{_named(store)}: its algorithm is not supported ({error})") from None
    except (ValueError, TypeError):  # raised by `cryptography`; its message may contain content of the store
        raise OptionError(f"{_named(store)}: it cannot be opened, or is damaged") from None


def _trust(context: ssl.SSLContext, store: Store) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    _, certificates = _read(store, with_key=False)
    if not certificates:
        raise OptionError(f"{_named(store)} contains no certificate")
    context.load_verify_locations(cadata=b"".join(c.public_bytes(Encoding.DER) for c in certificates))
    # Java trusts every certificate in the store, intermediate ones too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _identify(context: ssl.SSLContext, store: Store) -> None:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    key, certificates = _read(store, with_key=True)
    if key is None or not certificates:
        raise OptionError(f"{_named(store)} contains no private key with its certificate")
    once = secrets.token_bytes(16).hex()
    with tempfile.NamedTemporaryFile(prefix="tolerant-") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(once.encode())))
        for certificate in _chain(key, certificates, store):
            file.write(certificate.public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name, password=once)


def _chain(key: Any, certificates: Sequence[Certificate], store: Store) -> list[Certificate]:
    """The key's own certificate, then the chain of those that signed it."""
    for certificate in certificates:
        if certificate.public_key() == key.public_key():
            return _path(certificate, certificates)
    raise OptionError(f"{_named(store)} contains no certificate of its private key")


def _path(certificate: Certificate, certificates: Sequence[Certificate]) -> list[Certificate]:
    chain = [certificate]
    while chain[-1].issuer != chain[-1].subject:
        above = [c for c in certificates if c.subject == chain[-1].issuer and c not in chain]
        if not above:
            break
        chain.append(above[0])
    return chain


def _read(store: Store, *, with_key: bool) -> tuple[Any, list[Certificate]]:
    """The private key, if requested and there is one, and all certificates."""
    data = store.pem.encode() if store.pem is not None else _file(store)
    if data.startswith(MAGIC):
        return _read_jks(data, store, with_key)
    if b"-----BEGIN " in data:
        return _read_pem(data, store, with_key)
    if data.startswith(b"\x30"):
        return _read_pkcs12(data, store, with_key)
    if data.startswith(_JCEKS_MAGIC):
        raise OptionError(f"{_named(store)} is a JCEKS keystore; convert it: {_CONVERT}")
    raise OptionError(f"{_named(store)} is neither JKS nor PKCS12 nor PEM")


def _read_jks(data: bytes, store: Store, with_key: bool) -> tuple[Any, list[Certificate]]:
    from cryptography.hazmat.primitives.serialization import load_der_private_key
    from cryptography.x509 import load_der_x509_certificate

    keystore = read_java_keystore(data, store.password)
    # Java trusts only the first certificate of a key's chain (sun.security.validator.TrustStoreUtil).
    chains = [entry.chain if with_key else entry.chain[:1] for entry in keystore.keys]
    certificates = [*keystore.certificates, *(der for chain in chains for der in chain)]
    key = None
    if with_key and keystore.keys:
        if len(keystore.keys) > 1:
            names = ", ".join(entry.alias for entry in keystore.keys)
            raise KeystoreError(f"it contains several private keys ({names}); copy one: {_CONVERT} -srcalias ALIAS")
        password = store.key_password if store.key_password is not None else store.password
        if password is None:
            raise KeystoreError(f"its private key needs {store.option}.password")
        key = load_der_private_key(open_private_key(keystore.keys[0].protected, password), None)
    return key, [load_der_x509_certificate(der) for der in certificates]


def _read_pkcs12(data: bytes, store: Store, with_key: bool) -> tuple[Any, list[Certificate]]:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    has_several = data.count(_KEY_BAG) > 1
    if with_key and has_several:
        raise KeystoreError(f"it contains several private keys; copy one: {_CONVERT} -srcalias ALIAS")
    try:
        held = load_pkcs12(data, None if store.password is None else store.password.encode())
    except ValueError:
        raise KeystoreError(f"it cannot be opened{_unopened(store)}") from None
    named = [held.cert, *held.additional_certs]
    certificates = [entry.certificate for entry in named if entry is not None]
    if not with_key and held.key is not None and certificates:
        owners = [c for c in certificates if not _is_authority(c)] if has_several else certificates[:1]
        # As in JKS, the rest of a key's chain is not trusted.  One copy of each is removed: if a certificate of the
        # chain is trusted too, keytool has written it a second time, as a trusted entry.
        for above in [c for owner in owners for c in _path(owner, certificates)[1:]]:
            if above in certificates:
                certificates.remove(above)
    return held.key, certificates


def _is_authority(certificate: Certificate) -> bool:
    from cryptography.x509 import BasicConstraints, ExtensionNotFound

    try:
        return bool(certificate.extensions.get_extension_for_class(BasicConstraints).value.ca)
    except ExtensionNotFound:
        return False


def _read_pem(data: bytes, store: Store, with_key: bool) -> tuple[Any, list[Certificate]]:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate

    key = None
    certificates = []
    for kind, body in _PEM_BLOCK.findall(data.decode("ascii", "replace")):
        if kind.endswith("CERTIFICATE"):
            certificates.append(load_pem_x509_certificate(_rewrapped(kind, body)))
        elif kind.endswith("PRIVATE KEY") and with_key and key is None:
            if "Proc-Type" in body:
                raise KeystoreError("its private key uses an old form of encryption; convert it: openssl pkcs8 -topk8")
            password = store.key_password if kind.startswith("ENCRYPTED") else None
            if kind.startswith("ENCRYPTED") and not password:
                raise KeystoreError(f"its private key is encrypted and needs {store.key_option}")
            try:
                key = load_pem_private_key(_rewrapped(kind, body), None if password is None else password.encode())
            except ValueError:
                hint = "" if password is None else f"; is {store.key_option} right?"
                raise KeystoreError(f"its private key cannot be opened{hint}") from None
    return key, certificates


def _rewrapped(kind: str, body: str) -> bytes:
    # A properties file often has a PEM text on one line, with spaces or \n in place of line ends.
    text = re.sub(r"\s+|\\n", "", body)
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n".encode()


def _file(store: Store) -> bytes:
    assert store.location is not None
    try:
        return Path(store.location).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"{store.option}.location: {store.location!r} cannot be read ({reason}); the file must be on the"
            " driver and on every executor at that path (spark.files puts it into their working directories)"
        ) from None


def _named(store: Store) -> str:
    return (
        f"{store.option}.location {store.location!r}"
        if store.location is not None
        else f"{store.option}, given as PEM text,"
    )


def _unopened(store: Store) -> str:
    return f"; is {store.option}.password right?" if store.password is not None else f" without {store.option}.password"
