"""Probes addresses from here, stage by stage, each in its own thread and within a deadline.

A name may take long to resolve, a login may ask another server: neither can be
interrupted, so a probe that is late is abandoned and reported as late.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.ops.doctor.connectivity import Probe, Stage

_AT_ONCE = 64  # threads
_PREFIX = re.compile(r"^(\[Error -?\d+\] )?(\w+Error: )*")  # of kafka-python's errors


@dataclass(frozen=True)
class Address:
    """An address to probe; `node_id` of the broker that advertises it."""

    host: str
    port: int
    is_bootstrap: bool = False
    node_id: int | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT of bootstrap.servers."""
    host, _, port = text.strip().rpartition(":")
    return Address(host.strip("[]"), int(port), is_bootstrap=True)


def probe_all(addresses: Iterable[Address], config: Mapping[str, Any], timeout_s: float) -> list[Probe]:
    """Probes every address, many at a time; `config` is Cluster's, `timeout_s` applies to each address."""
    found: list[Probe] = []
    waiting = list(addresses)
    while waiting:
        chunk, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        trials = [_Trial(address, config, timeout_s) for address in chunk]
        deadline = time.monotonic() + timeout_s + 1  # longer than the probe's own deadline
        for trial in trials:
            trial.thread.join(max(0.0, deadline - time.monotonic()))
            found.append(trial.result())
    return found


class _Trial:
    """One address, probed in a thread; `result` is what is known when it is called."""

    def __init__(self, address: Address, config: Mapping[str, Any], timeout_s: float) -> None:
        self._address, self._config, self._timeout_s = address, config, timeout_s
        self._began = time.monotonic()
        late = f"nothing within {timeout_s:.0f} s"
        self._probe = Probe(str(address), address.is_bootstrap, address.node_id, Stage.NAME, late)
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"probe {address}")
        self.thread.start()

    def result(self) -> Probe:
        return self._probe

    def _run(self) -> None:
        try:
            self._try()
        except (OSError, Errors.KafkaError, ValueError) as error:
            self._failed(self._probe.stage, error)

    def _try(self) -> None:
        address, protocol = self._address, str(self._config.get("security_protocol", "PLAINTEXT"))
        try:
            socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return self._failed(Stage.NAME, error)
        self._reached(Stage.CONNECTION)
        try:
            socket.create_connection((address.host, address.port), self._left_s()).close()
        except OSError as error:
            return self._failed(Stage.CONNECTION, error)
        if protocol.endswith("SSL"):
            self._reached(Stage.TLS)
            self._read_certificate()
            if self._probe.speaks_tls is False:
                return None
        self._reached(Stage.RESPONSE)
        with Cluster({**self._config, "bootstrap_servers": [str(address)]}, name=str(address)) as cluster:
            try:
                cluster.run(self._speak, cluster)
            except Errors.KafkaError as error:
                return self._not_spoken(error, protocol)
            metadata, data = cluster.manager.cluster, cluster.manager.broker_version_data
            self._probe = replace(
                self._probe,
                stage=Stage.SPOKEN,
                error="",
                seconds=time.monotonic() - self._began,
                cluster_id=metadata.cluster_id,
                brokers={broker.node_id: (broker.host, broker.port) for broker in metadata.brokers()},
                version=".".join(map(str, data.broker_version)),
                api_versions=dict(data.api_versions),
            )

    async def _speak(self, cluster: Cluster) -> None:
        """One connection whose failure is raised unchanged, then the first responses: connect() alone would keep trying."""
        manager = cluster.manager
        (node,) = manager.cluster.bootstrap_brokers()
        connection = manager.get_connection(
            node.node_id,
            timeout_ms=self._left_s() * 1000,
            pop_on_close=False,
            refresh_metadata_on_err=False,
            reset_backoff_on_connect=False,
        )
        try:
            await connection
        finally:
            manager._conns.pop(node.node_id, connection).close()
        await cluster.connect(int(max(1.0, self._left_s()) * 1000))

    def _not_spoken(self, error: BaseException, protocol: str) -> None:
        chain = _chain(error)
        words = _own_words(chain)
        if any(
            isinstance(one, (Errors.SaslAuthenticationFailedError, Errors.UnsupportedSaslMechanismError))
            for one in chain
        ):
            stage = Stage.LOGIN
        elif any(isinstance(one, ssl.SSLError) for one in chain) or "TLS handshake" in words or "CERTIFICATE" in words:
            stage = Stage.TLS
        elif any(isinstance(one, OptionError) for one in chain):
            stage = Stage.LOGIN  # no token or ticket could be obtained
        else:
            stage = Stage.RESPONSE
        if stage is Stage.RESPONSE and not protocol.endswith("SSL"):
            self._read_certificate()  # does it require TLS?
        self._failed(stage, words)

    def _read_certificate(self) -> None:
        """Whether the address speaks TLS, and when its certificate expires; trusts any certificate, and sends nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        where, wait_s = (self._address.host, self._address.port), max(1.0, self._left_s())
        try:
            with socket.create_connection(where, wait_s) as plain:
                with context.wrap_socket(plain, server_hostname=self._address.host) as secured:
                    certificate = secured.getpeercert(binary_form=True)
        except ssl.SSLError as error:
            is_other = error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
            self._probe = replace(self._probe, speaks_tls=None if not is_other else False, error=str(error))
            return
        except OSError as error:  # closed or reset at once, or no response
            self._probe = replace(self._probe, speaks_tls=False, error=str(error))
            return
        self._probe = replace(self._probe, speaks_tls=True, certificate_expires=_expires(certificate))

    def _left_s(self) -> float:
        return max(0.1, self._began + self._timeout_s - time.monotonic())

    def _reached(self, stage: Stage) -> None:
        self._probe = replace(self._probe, stage=stage)

    def _failed(self, stage: Stage, error: object) -> None:
        self._probe = replace(self._probe, stage=stage, error=str(error), seconds=time.monotonic() - self._began)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _own_words(chain: list[BaseException]) -> str:
    """The message of the innermost error that has one, without kafka-python's class names."""
    for error in reversed(chain):
        if words := _PREFIX.sub("", str(error)):
            return words
    return type(chain[0]).__name__


def _expires(certificate: bytes | None) -> float | None:
    if certificate is None:
        return None
    from cryptography import x509

    try:
        found = x509.load_der_x509_certificate(certificate)
    except ValueError:
        return None
    expires = getattr(found, "not_valid_after_utc", None)  # cryptography 42 and newer
    return None if expires is None else float(expires.timestamp())
