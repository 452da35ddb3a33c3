"""Java's truststores and keystores, as keytool writes them: their content is used, and errors name the fault."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from support.keystores import PASSWORD, Identity
from tolerant_client.errors import OptionError
from tolerant_client.security import keystores
from tolerant_client.security.cipher_suites import openssl_name
from tolerant_client.security.java_keystore import KeystoreError, open_private_key, read_java_keystore
from tolerant_client.security.keystores import TlsSettings, tls_settings

WRONG = "wrong-canary-secret"
KEY_PASSWORD = "key-canary-secret"


class Stores:
    """A root, an intermediate authority, a server and a client of it, in every form."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Identity("root", is_authority=True)
        self.middle = Identity("middle", self.root, is_authority=True)
        self.server = Identity("server", self.middle)
        self.client = Identity("client", self.middle)
        (folder / "root.pem").write_text(self.root.certificate_pem())
        (folder / "client.pem").write_text(self.client.key_pem(KEY_PASSWORD) + self.client.chain_pem())
        for kind in ("JKS", "PKCS12"):
            self.root.truststore(folder / f"root.{kind}", kind)
            self.client.keystore(folder / f"client.{kind}", kind)
        # keytool of Java 8 writes other ciphers, into a file named .jks.
        self.client.keystore(folder / "old.jks", "PKCS12", "-J-Dkeystore.pkcs12.legacy")

    def options(self, trust: str, key: str | None = None, **more: str) -> dict[str, str]:
        java = {"ssl.truststore.location": str(self.folder / trust), "ssl.truststore.password": PASSWORD}
        if key is not None:
            java |= {"ssl.keystore.location": str(self.folder / key), "ssl.keystore.password": PASSWORD}
            java["ssl.key.password"] = KEY_PASSWORD if key.endswith(".pem") else PASSWORD
        return {**java, **{name.replace("__", "."): value for name, value in more.items()}}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def greet(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, Any]:
    """One handshake over a socket pair: the negotiated version, and the name in the client's certificate."""
    ours, theirs = socket.socketpair()
    seen: list[Any] = []

    def serve() -> None:
        with theirs:
            try:
                with server.wrap_socket(theirs, server_side=True) as peer:
                    seen.append(peer.getpeercert())
                    peer.sendall(b"x")
            except OSError:
                pass  # the client's side raises the error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname="127.0.0.1") as peer:
            assert peer.recv(1) == b"x"  # under TLS 1.3 a refused certificate shows only here
            version = peer.version()
    finally:
        thread.join()
    return str(version), seen[0]


@pytest.fixture(scope="module")
def demanding(stores: Stores) -> ssl.SSLContext:
    """A server that requires a client certificate signed by the root."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=stores.root.certificate_pem())
    pem = stores.folder / "server.pem"
    pem.write_text(stores.server.key_pem() + stores.server.chain_pem())
    context.load_cert_chain(pem)
    return context


@pytest.mark.parametrize("trust", ["root.JKS", "root.PKCS12", "root.pem"])
@pytest.mark.parametrize("key", ["client.JKS", "client.PKCS12", "client.pem", "old.jks"])
def test_both_sides_are_known_whatever_form_the_stores_have(
    stores: Stores, demanding: ssl.SSLContext, trust: str, key: str
) -> None:
    settings = pickle.loads(pickle.dumps(tls_settings(stores.options(trust, key))))
    version, certificate = greet(demanding, settings.context())
    assert version == "TLSv1.3"
    assert dict(pair[0] for pair in certificate["subject"])["commonName"] == "client"


def test_pem_texts_stand_in_place_even_on_one_line(stores: Stores, demanding: ssl.SSLContext) -> None:
    client, root = stores.client, stores.root
    java = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": root.certificate_pem().replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": client.key_pem(KEY_PASSWORD).replace("\n", "\\n"),
        "ssl.keystore.certificate.chain": client.chain_pem(),
        "ssl.key.password": KEY_PASSWORD,
    }
    settings = tls_settings(java)
    assert greet(demanding, settings.context())[1]
    assert "PRIVATE" not in repr(settings) and KEY_PASSWORD not in repr(settings)


def test_a_certificate_is_trusted_as_it_is_even_an_intermediate_one(stores: Stores, demanding: ssl.SSLContext) -> None:
    """Java needs no root above the certificates in its truststore."""
    java = stores.options("root.pem", "client.JKS")
    del java["ssl.truststore.location"]
    for identity in (stores.middle, stores.server):
        settings = tls_settings({**java, "ssl.truststore.certificates": identity.certificate_pem()})
        assert greet(demanding, settings.context())[1]


def test_what_is_not_trusted_is_refused(stores: Stores, demanding: ssl.SSLContext) -> None:
    stranger = Identity("stranger", is_authority=True)
    for java in ({"ssl.truststore.certificates": stranger.certificate_pem()}, {}):
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(demanding, tls_settings(java).context())


def test_the_name_is_checked_unless_the_algorithm_is_empty(stores: Stores) -> None:
    java = stores.options("root.pem")
    assert tls_settings(java).context().check_hostname
    lax = tls_settings({**java, "ssl.endpoint.identification.algorithm": ""}).context()
    assert not lax.check_hostname and lax.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("protocols", "agreed"), [("TLSv1.2", "TLSv1.2"), ("TLSv1.3", "TLSv1.3"), ("TLSv1,TLSv1.1,TLSv1.2", "TLSv1.2")]
)
def test_enabled_protocols_bound_the_version(
    stores: Stores, demanding: ssl.SSLContext, protocols: str, agreed: str
) -> None:
    java = stores.options("root.JKS", "client.JKS", ssl__enabled__protocols=protocols)
    assert greet(demanding, tls_settings(java).context())[0] == agreed


def test_cipher_suites_bear_javas_names(stores: Stores, demanding: ssl.SSLContext) -> None:
    one = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    context = tls_settings(
        stores.options("root.JKS", "client.JKS", ssl__cipher__suites=f"{one}, TLS_AES_128_GCM_SHA256")
    ).context()
    names = [c["name"] for c in context.get_ciphers() if not c["name"].startswith("TLS_")]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
    # Python cannot select some of TLS 1.3's suites: the negotiated suite is in the list all the same.
    assert greet(demanding, context)[0] == "TLSv1.2"
    with pytest.raises(OptionError, match="only together"):
        tls_settings(stores.options("root.JKS", ssl__cipher__suites="TLS_AES_128_GCM_SHA256")).context()
    everything = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"
    both = tls_settings(stores.options("root.JKS", "client.JKS", ssl__cipher__suites=everything)).context()
    assert greet(demanding, both)[0] == "TLSv1.3"
    with pytest.raises(OptionError, match="does not know TLS_NULL_WITH_NOTHING"):
        tls_settings(stores.options("root.JKS", ssl__cipher__suites="TLS_NULL_WITH_NOTHING")).context()


GOOD = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("suites", "reason"),
    [
        ("TLS_RSA_WITH_AES", "does not know TLS_RSA_WITH_AES;"),  # a prefix of many
        (f"{GOOD}:ALL", f"has '{GOOD}:ALL'; write IANA's names"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "write IANA's names"),
        (f"{GOOD},TLS_ECDHE_RSA_WITH_BOGUS", "does not know TLS_ECDHE_RSA_WITH_BOGUS;"),
        (f"{GOOD},TLS_BOGUS", "does not know TLS_BOGUS;"),
        ("TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256", "leave no version of TLS"),
    ],
)
def test_only_whole_names_of_known_suites_are_taken(suites: str, reason: str) -> None:
    java = {"ssl.cipher.suites": suites, "ssl.enabled.protocols": "TLSv1.2"}
    assert reason in refused(java)
    assert tls_settings({**java, "ssl.cipher.suites": GOOD}).context().get_ciphers()


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CCM", "AES128-CCM"),
    ],
)
def test_openssl_has_other_names_for_the_same_suites(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl_name(java) + ":@SECLEVEL=0")


def refused(java: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        tls_settings(java).context()
    text = str(caught.value)
    assert not {PASSWORD, WRONG, KEY_PASSWORD} & set(text.replace("'", " ").split())
    assert "BEGIN" not in text
    return text


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_wrong_password_is_named_not_shown(stores: Stores, kind: str) -> None:
    for name, store in (("truststore", f"root.{kind}"), ("keystore", f"client.{kind}")):
        java = {f"ssl.{name}.location": str(stores.folder / store), f"ssl.{name}.password": WRONG}
        text = refused(java)
        assert store in text and f"kafka.ssl.{name}" in text and "password" in text


def test_a_key_needs_its_own_password(stores: Stores) -> None:
    java = stores.options("root.JKS", "client.JKS", ssl__key__password=WRONG)
    assert "the password of its private key is wrong" in refused(java)
    pem = stores.options("root.pem", "client.pem")
    assert "cannot be opened" in refused({**pem, "ssl.key.password": WRONG})
    del pem["ssl.key.password"]
    assert "needs kafka.ssl.key.password" in refused(pem)


def test_a_truststore_in_jks_opens_without_a_password(stores: Stores, demanding: ssl.SSLContext) -> None:
    """As in Java, where only its digest stays unchecked."""
    java = stores.options("root.JKS", "client.JKS")
    del java["ssl.truststore.password"]
    assert greet(demanding, tls_settings(java).context())[1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither JKS nor PKCS12 nor PEM"),
        (b"hello", "neither JKS nor PKCS12 nor PEM"),
        (b"\xce\xce\xce\xce\0\0\0\2", "JCEKS keystore; convert it: keytool -importkeystore"),
        (b"\xfe\xed\xfe\xed\0\0\0\2", "its password is wrong, or the file is damaged"),
        (b"0\x82\1\1", "cannot be opened"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "cannot be opened"),
        (b"-----BEGIN OTHER-----\nAAAA\n-----END OTHER-----", "contains no certificate"),
    ],
)
def test_what_is_no_store_is_refused(stores: Stores, tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "store").write_bytes(content)
    assert reason in refused({"ssl.truststore.location": str(tmp_path / "store"), "ssl.truststore.password": PASSWORD})


def test_every_damaged_jks_file_is_refused_as_such(stores: Stores) -> None:
    whole = (stores.folder / "client.JKS").read_bytes()
    assert len(read_java_keystore(whole, PASSWORD).keys) == 1
    for size in range(0, len(whole), 37):
        with pytest.raises(KeystoreError):
            read_java_keystore(whole[:size], PASSWORD)
        with pytest.raises(KeystoreError):
            read_java_keystore(whole[:size], None)
    for position in range(0, len(whole), 37):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        with pytest.raises(KeystoreError, match="damaged"):
            read_java_keystore(bytes(flipped), PASSWORD)
    entry = read_java_keystore(whole, None).keys[0]
    assert entry.alias == "client" and len(entry.chain) == 3
    for position in range(0, len(entry.protected), 5):
        flipped = bytearray(entry.protected)
        flipped[position] ^= 1
        try:
            assert open_private_key(bytes(flipped), PASSWORD) == open_private_key(entry.protected, PASSWORD)
        except KeystoreError:
            pass  # a digest covers everything except the padding of the algorithm's name


@pytest.mark.parametrize(
    ("java", "reason"),
    [
        ({"ssl.truststore.location": "/nowhere/trust.jks"}, "/nowhere/trust.jks' cannot be read .* on every executor"),
        ({"ssl.truststore.type": "BCFKS", "ssl.truststore.location": "x"}, "type must be one of JKS, PKCS12, PEM"),
        ({"ssl.truststore.location": "x", "ssl.truststore.certificates": "y"}, "both given"),
        ({"ssl.keystore.key": "x"}, "kafka.ssl.keystore.key needs kafka.ssl.keystore.certificate.chain"),
        ({"ssl.keystore.certificate.chain": "x"}, "certificate.chain needs kafka.ssl.keystore.key"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "must name TLSv1.2 or TLSv1.3"),
        ({"ssl.enabled.protocols": "TLSv1.4,TLSv1.3"}, "must name TLSv1.2 or TLSv1.3"),
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "https, or empty"),
    ],
)
def test_what_is_wrong_is_named(java: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        tls_settings(java).context()


def test_a_keystore_needs_a_key_and_its_certificate(stores: Stores) -> None:
    java = {"ssl.keystore.location": str(stores.folder / "root.JKS"), "ssl.keystore.password": PASSWORD}
    assert "contains no private key with its certificate" in refused(java)
    alien = {"ssl.keystore.key": stores.client.key_pem(), "ssl.keystore.certificate.chain": stores.server.chain_pem()}
    assert "contains no certificate of its private key" in refused(alien)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_of_a_key_in_a_truststore_only_its_own_certificate_is_trusted(
    stores: Stores, tmp_path: Path, kind: str
) -> None:
    """As in Java; otherwise everybody with a certificate of the key's authority would be trusted."""
    path = stores.client.keystore(tmp_path / "both", kind)
    java = {"ssl.truststore.location": str(path), "ssl.truststore.password": PASSWORD}
    assert tls_settings(java).context().cert_store_stats()["x509"] == 1
    assert tls_settings(java).context().cert_store_stats()["x509_ca"] == 0
    stores.root.truststore(path, kind)  # an entry of its own
    trusted = tls_settings(java).context().get_ca_certs()
    assert [dict(pair[0] for pair in each["subject"])["commonName"] for each in trusted] == ["root"]
    stores.server.keystore(path, kind)
    assert tls_settings(java).context().cert_store_stats() == {"x509": 3, "crl": 0, "x509_ca": 1}


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_choice_between_private_keys_is_refused(stores: Stores, tmp_path: Path, kind: str) -> None:
    path = stores.client.keystore(tmp_path / "both", kind)
    stores.root.truststore(path, kind)
    java = {"ssl.keystore.location": str(path), "ssl.keystore.password": PASSWORD}
    tls_settings(java).context()
    stores.server.keystore(path, kind)
    assert "contains several private keys" in (text := refused(java)) and "-srcalias ALIAS" in text


def test_errors_of_what_a_store_holds_name_it(stores: Stores, tmp_path: Path) -> None:
    weak = Identity("weak", key=rsa.generate_private_key(65537, 1024))
    encrypted = stores.client.key_pem(KEY_PASSWORD)
    # The curve's OID in the certificate of an EC key: prime256v1 becomes an unknown one.
    curve, other = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030177")
    der = stores.root.certificate.public_bytes(Encoding.DER).replace(curve, other)
    strange = f"-----BEGIN CERTIFICATE-----\n{b64encode(der).decode()}\n-----END CERTIFICATE-----"
    for key, chain, more, reason in (
        (weak.key_pem(), weak.chain_pem(), {}, "OpenSSL refuses it (EE_KEY_TOO_SMALL)"),
        (encrypted, stores.client.chain_pem(), {"ssl.key.password": ""}, "needs kafka.ssl.key.password"),
        (stores.client.key_pem(), strange, {}, "its algorithm is not supported"),
    ):
        text = refused({"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain, **more})
        assert "kafka.ssl.keystore, given as PEM text," in text and reason in text
    assert "cannot be read (embedded null byte)" in refused({"ssl.truststore.location": "a\0b"})
    (tmp_path / "cut.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
    assert "password" not in refused({"ssl.truststore.location": str(tmp_path / "cut.pem")})


def test_settings_show_no_secret(stores: Stores) -> None:
    settings = tls_settings(stores.options("root.JKS", "client.JKS"))
    assert PASSWORD not in repr(settings)
    assert settings == pickle.loads(pickle.dumps(settings))
    assert settings != tls_settings(stores.options("root.JKS", "client.JKS", ssl__key__password=WRONG))
    assert TlsSettings() != settings


def test_no_private_key_stays_on_the_disk(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, certfile: str, *args: Any, **kwargs: Any) -> None:
        seen.append((os.stat(certfile).st_mode & 0o777, Path(certfile).read_text()))
        load(self, certfile, *args, **kwargs)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    tls_settings(stores.options("root.JKS", "client.JKS")).context()
    ((mode, text),) = seen
    assert mode == 0o600 and "ENCRYPTED PRIVATE KEY" in text
    assert list(tmp_path.iterdir()) == []


def test_cryptography_is_imported_only_where_a_store_is_read() -> None:
    """Spark starts many short-lived Python workers, and each imports the options."""
    script = (
        "import sys; from tolerant_client.security.kafka_config import kafka_python_config as make;"
        "make({'bootstrap.servers': 'h:1', 'security.protocol': 'SSL', 'ssl.truststore.location': 'x'});"
        "sys.exit('cryptography' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_pem_text_of_beginnings_is_looked_through_once() -> None:
    """Before, the search from each beginning went to the end of the file."""
    text = "-----BEGIN CERTIFICATE-----\n" * 200_000
    assert keystores._PEM_BLOCK.findall(text) == []
