"""Throw-away authorities and certificates for 127.0.0.1, and the stores that keytool makes of them."""

from __future__ import annotations

import ipaddress
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from tolerant_client.testing.artifacts import java_executable

PASSWORD = "store-canary-secret"


class Identity:
    """A private key and its certificate, signed by `issuer` or by itself."""

    def __init__(
        self, name: str, issuer: Identity | None = None, *, is_authority: bool = False, key: Any = None
    ) -> None:
        self.name, self.issuer = name, issuer
        self.key: Any = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(timezone.utc)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign((issuer or self).key, hashes.SHA256())
        )

    @property
    def issuers(self) -> list[x509.Certificate]:
        return [] if self.issuer is None else [self.issuer.certificate, *self.issuer.issuers]

    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """PKCS8, as Java's PEM stores need it."""
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        pem: bytes = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        return pem.decode()

    def chain_pem(self) -> str:
        return self.certificate_pem() + "".join(c.public_bytes(Encoding.PEM).decode() for c in self.issuers)

    def keystore(self, path: Path, kind: str, *java: str) -> Path:
        """A keystore of the key and its chain, written by keytool."""
        made = path.with_suffix(".made")
        made.write_bytes(
            pkcs12.serialize_key_and_certificates(
                self.name.encode(), self.key, self.certificate, self.issuers, BestAvailableEncryption(PASSWORD.encode())
            )
        )
        _keytool(
            *java, "-importkeystore", "-srckeystore", str(made), "-srcstoretype", "PKCS12", "-srcstorepass", PASSWORD,
            "-destkeystore", str(path), "-deststoretype", kind, "-deststorepass", PASSWORD,
        )  # fmt: skip
        return path

    def truststore(self, path: Path, kind: str, *java: str) -> Path:
        """A truststore of the certificate, written by keytool."""
        pem = path.with_suffix(".made")
        pem.write_text(self.certificate_pem())
        _keytool(
            *java, "-importcert", "-noprompt", "-alias", self.name, "-file", str(pem),
            "-keystore", str(path), "-storetype", kind, "-storepass", PASSWORD,
        )  # fmt: skip
        return path


def _keytool(*arguments: str) -> None:
    keytool = Path(java_executable()).resolve().with_name("keytool")
    subprocess.run([str(keytool), *arguments], check=True, capture_output=True)
