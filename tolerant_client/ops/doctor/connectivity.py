"""What it means that an address does, or does not, respond; versions; which cluster it belongs to.  Pure.

The stages of a connection are tried one after the other, so that a failure shows its stage: name resolution,
connection, TLS, login, the first response of a broker.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, some

_EXPIRES_SOON_S = 30 * 86_400
_PRODUCE, _RECORD_BATCHES = 0, 3  # API key, and the version that introduced record batches (KIP-98, Kafka 0.11)


class Stage(enum.IntEnum):
    """How far a probe got: the stage that failed, or SPOKEN."""

    NAME = 1
    CONNECTION = 2
    TLS = 3
    LOGIN = 4
    RESPONSE = 5
    SPOKEN = 6


@dataclass(frozen=True)
class Probe:
    """One address that was probed from here.

    `node_id` is that of the broker which advertises it, None for a bootstrap address that no broker advertises.  `error`
    has the words of the side that refused.  `speaks_tls` is the result of a trial, None without one.
    `certificate_expires` is in seconds since 1970.
    """

    address: str
    is_bootstrap: bool
    node_id: int | None
    stage: Stage
    error: str = ""
    seconds: float = 0.0
    speaks_tls: bool | None = None
    certificate_expires: float | None = None
    cluster_id: str | None = None
    brokers: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    version: str = ""
    api_versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def _who(self) -> str:
        return (
            f"broker {self.node_id} at {self.address}"
            if self.node_id is not None
            else f"bootstrap address {self.address}"
        )


@check("addresses")
def address_findings(name: str, protocol: str, probes: Sequence[Probe], now_s: float) -> Iterator[Told]:
    """Problems of a cluster's addresses; `protocol` is security.protocol of the client."""
    bootstraps = [probe for probe in probes if probe.is_bootstrap]
    is_any_spoken = any(probe.stage is Stage.SPOKEN for probe in bootstraps)
    comes_from_afar = any(not _is_loopback(probe.host) for probe in bootstraps)
    for probe in probes:
        is_advertised = probe.node_id is not None
        if is_advertised and comes_from_afar and _is_loopback(probe.host):
            yield Told(
                Severity.ERROR,
                probe._who,
                "the broker advertises a loopback address: clients on other machines connect to themselves",
                f"Set advertised.listeners of broker {probe.node_id} to an address that its clients can reach",
            )
        elif probe.stage is not Stage.SPOKEN:
            what, remedy = explain(probe, protocol)
            if is_advertised and probe.stage <= Stage.CONNECTION:
                remedy += (
                    f"; advertised.listeners of broker {probe.node_id} sends clients to this address: if it is"
                    " wrong from here, correct it there"
                )
            is_bad = is_advertised or not is_any_spoken
            yield Told(Severity.ERROR if is_bad else Severity.WARNING, probe._who, what, remedy)
        yield from _certificate(probe, now_s)


def explain(probe: Probe, protocol: str) -> tuple[str, str]:
    """What failed, in plain words, and the remedy."""
    said = f" ({probe.error})" if probe.error else ""
    words = probe.error.lower()
    if probe.stage is Stage.NAME:
        return (
            f"the name {probe.host} has no address here{said}",
            f"Correct the name, or make {probe.host} known to DNS here",
        )
    if probe.stage is Stage.CONNECTION:
        if "refused" in words:
            return f"nothing listens there{said}", "Start the broker, or correct the port"
        return (
            f"it does not accept the connection{said}",
            "Check for a firewall, a missing route, or a host that is down",
        )
    if probe.stage is Stage.TLS:
        return _explain_tls(probe, said, words)
    if probe.stage is Stage.LOGIN:
        if "mechanism" in words:
            return (
                f"the broker does not offer our SASL mechanism{said}",
                "Set sasl.mechanism to one that its listener has",
            )
        return (
            f"the broker refuses our login{said}",
            "Correct user and password (or token, or ticket) in the client properties",
        )
    if probe.speaks_tls and not protocol.endswith("SSL"):
        secured = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
        return (
            f"its listener speaks TLS, and security.protocol is {protocol}",
            f"Set security.protocol to {secured}, or use the port of a listener without TLS",
        )
    if "timed out" in words or "timeout" in words or "within" in words:
        return (
            f"it accepts connections and does not respond{said}",
            "Check the broker: it hangs, is overloaded, or what listens there is not a Kafka broker",
        )
    login = (
        "" if protocol.startswith("SASL") else " Listeners that require a login (SASL) close connections without one."
    )
    return (
        f"it accepts connections but does not respond as a Kafka broker{said}.{login}",
        "Give the port of a client listener, and the security.protocol of that listener",
    )


def _explain_tls(probe: Probe, said: str, words: str) -> tuple[str, str]:
    if probe.speaks_tls is False or "wrong_version_number" in words or "record layer failure" in words:
        return (
            "its listener does not speak TLS",
            "Set security.protocol to one without SSL, or use the port of a TLS listener",
        )
    if "hostname mismatch" in words or "ip address mismatch" in words:
        return (
            f"its certificate is for another name{said}",
            "Use the name in the certificate, or have one issued for this name",
        )
    if "expired" in words:
        return f"its certificate has expired{said}", "Renew the broker's certificate"
    if "certificate_verify_failed" in words or "self-signed" in words or "self signed" in words:
        return f"its certificate is not trusted{said}", "Put the authority that signed it into ssl.truststore.location"
    if "certificate required" in words or "handshake failure" in words or "bad certificate" in words:
        return (
            f"it refuses our side of the TLS handshake{said}",
            "Give a client certificate that the broker trusts (ssl.keystore.location), or allow the TLS versions it has",
        )
    return f"the TLS handshake fails{said}", "Compare the TLS versions, ciphers and certificates of both sides"


def _certificate(probe: Probe, now_s: float) -> Iterator[Told]:
    if probe.certificate_expires is None or probe.certificate_expires - now_s > _EXPIRES_SOON_S:
        return
    left_s = probe.certificate_expires - now_s
    is_over = left_s <= 0
    when = f"expired {duration(left_s * 1000)} ago" if is_over else f"expires in {duration(left_s * 1000)}"
    yield Told(
        Severity.ERROR if is_over else Severity.WARNING,
        probe._who,
        f"its TLS certificate {when}",
        "Renew the broker's certificate",
    )


@check("versions")
def version_findings(name: str, probes: Sequence[Probe], *, is_target: bool) -> Iterator[Told]:
    """Brokers with different versions, and brokers that are too old."""
    spoken = {probe.address: probe for probe in probes if probe.stage is Stage.SPOKEN and probe.api_versions}
    if not spoken:
        return
    by_version: dict[tuple[tuple[int, tuple[int, int]], ...], list[Probe]] = {}
    for probe in spoken.values():
        by_version.setdefault(tuple(sorted(probe.api_versions.items())), []).append(probe)
    if len(by_version) > 1:
        groups = "; ".join(f"{some([p.address for p in group])}: {group[0].version}" for group in by_version.values())
        yield Told(
            Severity.WARNING,
            counted(len(spoken), "broker"),
            f"they do not speak the same versions: {groups}",
            "Finish the rolling upgrade; until then a request may succeed at one broker and fail at another",
        )
    else:
        versions = some(sorted({probe.version for probe in spoken.values()}))
        evidence = f"all brokers that responded support the same API versions (Kafka {versions} or newer)"
        yield Told(Severity.INFO, counted(len(spoken), "broker"), evidence, "None needed")
    produce = min(probe.api_versions.get(_PRODUCE, (0, 0))[1] for probe in spoken.values())
    if is_target and produce < _RECORD_BATCHES:
        yield Told(
            Severity.ERROR,
            "record batches",
            f"the brokers accept Produce up to version {produce}; a mirror writes version {_RECORD_BATCHES}",
            "Use a target of Kafka 0.11 or newer",
        )


@check("same-cluster")
def identity_findings(name: str, probes: Sequence[Probe]) -> Iterator[Told]:
    """Addresses given as one cluster that lead to several clusters."""
    by_id: dict[str, list[str]] = {}
    for probe in probes:
        if probe.stage is Stage.SPOKEN and probe.cluster_id:
            by_id.setdefault(probe.cluster_id, []).append(probe.address)
    if len(by_id) > 1:
        found = "; ".join(f"{some(addresses)}: cluster {cluster_id}" for cluster_id, addresses in by_id.items())
        yield Told(
            Severity.ERROR,
            "addresses",
            f"they lead to {len(by_id)} different clusters: {found}",
            "Give bootstrap addresses of one cluster; a client uses whichever responds first",
        )


@check("same-cluster", cluster="link")
def same_cluster_findings(source_id: str | None, target_id: str | None) -> Iterator[Told]:
    """The same cluster under two addresses; brokers before 0.10.1 have no cluster id."""
    if source_id is not None and source_id == target_id:
        yield Told(
            Severity.ERROR,
            f"cluster {source_id}",
            "source and target are the same cluster: a mirror would copy topics into themselves",
            "Give the addresses of two clusters",
        )


def _is_loopback(host: str) -> bool:
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
