"""A throw-away TLS certificate for 127.0.0.1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> Path:
    """One PEM file with the key and the certificate, its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the test's certificate, is not installed")
    pem = folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True,
        capture_output=True,
    )
    pem.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return pem
