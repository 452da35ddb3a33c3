"""A finding of a check: severity, thing, evidence and remedy.  Pure.

Laws:
- A finding names a thing, shows evidence that was read from a broker (never a
  guess), and gives a remedy; many things of one kind are one finding.
- The brokers' version decides how the effect of a setting is judged.
- A fact that one cluster does not tell is no finding about the other.
- A check that could not be made is a finding, too.
- A report does not grow with the cluster (bounded).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, ParamSpec

_P = ParamSpec("_P")

HEALTHY, ERRORS, NOT_EXAMINED, WARNINGS = 0, 1, 2, 3  # exit codes

_SHOWN = 10
_ALIKE = 20


class Severity(str, enum.Enum):
    """ERROR breaks a client or a mirror now, WARNING will after one more failure, INFO is good to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


# Every check, and what it covers.  README.md of this folder has each with its evidence and remedy.
CHECKS: Final = {
    "addresses": "each bootstrap address and each advertised address: name, connection, TLS, login, first response",
    "versions": "the versions that the brokers speak, and whether they agree",
    "same-cluster": "source and target are two clusters, and all bootstrap addresses of each lead to one cluster",
    "rights": "the rights of our principal, compared with what a mirror needs",
    "controller": "whether there is an active controller, and the quorum follows it",
    "partitions": "partitions without leader, below min.insync.replicas, or with replicas missing",
    "coordinators": "partitions of __consumer_offsets and __transaction_state that do not serve, and whom that breaks",
    "log-dirs": "log directories that are offline or nearly full",
    "durability": "replication factor, min.insync.replicas, unclean elections, of topics and of internal ones",
    "elections": "leaders, brokers and in-sync replicas that change during the examination",
    "clocks": "the controller's clock against ours and the other cluster's, and records from the future",
    "quotas": "quotas that apply to our principal and client id",
    "transactions": "open transactions that hold back the last stable offset",
    "topics": "topics of the target that cannot hold the copy, or hurt it",
    "sizes": "record sizes that one side accepts and the other does not",
    "retention": "records not copied yet, and when the source's time and size limits delete them",
    "ledger": "losses that the link has recorded",
    "control": "what of the link is blocked, paused, throttled or promoted",
    "examination": "whether the doctor finished",
}


@dataclass(frozen=True)
class Finding:
    """`cluster` is "source", "target" or "cluster", or "link" if it concerns both."""

    severity: Severity
    check: str
    cluster: str
    thing: str
    evidence: str
    remedy: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.value}


class Told(NamedTuple):
    """What a check reports of one thing; `check` and `cluster` only if they differ from the check's own."""

    severity: Severity
    thing: str
    evidence: str
    remedy: str
    check: str = ""
    cluster: str = ""


def check(name: str, *, cluster: str = "") -> Callable[[Callable[_P, Iterator[Told]]], Callable[_P, Iterator[Finding]]]:
    """Turns what a check function reports into findings of `cluster`, or of the cluster that its first argument names."""
    assert name in CHECKS

    def registered(function: Callable[_P, Iterator[Told]]) -> Callable[_P, Iterator[Finding]]:
        @functools.wraps(function)
        def found(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[Finding]:
            where: Any = cluster or args[0]
            for told in function(*args, **kwargs):
                of = told.cluster or (where if isinstance(where, str) else where.name)
                yield Finding(told.severity, told.check or name, of, told.thing, told.evidence, told.remedy)

        return found

    return registered


def exit_code(findings: Iterable[Finding], *, is_examined: bool) -> int:
    """HEALTHY, WARNINGS or ERRORS by the worst finding; NOT_EXAMINED if a cluster did not respond at all."""
    if not is_examined:
        return NOT_EXAMINED
    codes = {Severity.ERROR: ERRORS, Severity.WARNING: WARNINGS, Severity.INFO: HEALTHY}
    return codes[worst(finding.severity for finding in findings)]


def worst(severities: Iterable[Severity]) -> Severity:
    """The worst severity; INFO if there are none."""
    found = set(severities)
    return next((severity for severity in Severity if severity in found), Severity.INFO)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; equal ones in the order in which they were found."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def bounded(findings: Iterable[Finding]) -> list[Finding]:
    """The first findings of each severity, check and cluster, and one finding that counts the rest."""
    kept: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        kept.setdefault((finding.severity, finding.check, finding.cluster), []).append(finding)
    found: list[Finding] = []
    for alike in kept.values():
        found += alike[:_ALIKE]
        if rest := alike[_ALIKE:]:
            first = rest[0]
            said = f"like those above: {some([finding.thing for finding in rest])}"
            found.append(replace(first, thing=f"{len(rest)} more", evidence=said, remedy="As for those above"))
    return found


def some(things: Collection[object], limit: int = _SHOWN) -> str:
    """The first few of many, for a sentence: "a, b and 7 more"."""
    shown = [str(thing) for thing in things][:limit]
    rest = len(things) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "") if shown else "none"


def duration(ms: float) -> str:
    """A span of time for a sentence: "3.2 s", "25 min", "4.0 h", "12 days"."""
    seconds = abs(ms) / 1000
    if seconds < 90:
        return f"{seconds:.1f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"


def size(count: float) -> str:
    """Bytes for a sentence: "900 bytes", "1.0 MiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"
