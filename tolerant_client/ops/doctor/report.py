"""A finished examination for people (lines) and for programs (JSON with a stable schema)."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from tolerant_client.mirror.state.health import counted
from tolerant_client.ops.doctor.checkup import Checkup
from tolerant_client.ops.doctor.finding import (
    ERRORS,
    HEALTHY,
    NOT_EXAMINED,
    WARNINGS,
    Severity,
    bounded,
    by_severity,
)
from tolerant_client.ops.printing import cell

_VERSION = 1
_OUTCOMES = {HEALTHY: "healthy", WARNINGS: "warnings", ERRORS: "errors", NOT_EXAMINED: "not-examined"}
_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def as_json(checkup: Checkup, seconds: float) -> dict[str, Any]:
    """The JSON document; fields are added, never renamed; `version` rises when one is removed."""
    return {
        "version": _VERSION,
        "outcome": _OUTCOMES[checkup.exit_code],
        "exit_code": checkup.exit_code,
        "seconds": round(seconds, 3),
        "clusters": sorted(checkup.clusters, key=lambda cluster: str(cluster["name"])),
        "findings": [finding.as_json() for finding in bounded(by_severity(checkup.findings))],
        "checks": [run.as_json() for run in checkup.runs],
    }


def print_report(checkup: Checkup, seconds: float, console: Console, *, is_brief: bool = False) -> None:
    """Prints the clusters, three lines for each finding, and a verdict; `is_brief` leaves out findings of severity info.

    A line is not folded, so that the command of a remedy can be copied from it.
    """
    for cluster in sorted(checkup.clusters, key=lambda cluster: str(cluster["name"])):
        said = "could not be examined"  # it does not respond, or refuses us: a finding says which
        if cluster["is_examined"]:
            said = (
                f"cluster {cluster['cluster_id']}, {counted(cluster['brokers'], 'broker')},"
                f" {counted(cluster['topics'], 'topic')}, {counted(cluster['partitions'], 'partition')}"
            )
        console.print(cell(f"{cluster['name']} {cluster['bootstrap_servers']}: {said}"), soft_wrap=True)
    shown = [f for f in bounded(by_severity(checkup.findings)) if not (is_brief and f.severity is Severity.INFO)]
    for finding in shown:
        severity = (finding.severity.value, _COLOURS[finding.severity])
        heading = Text.assemble(severity, cell(f": {finding.cluster}, {finding.check}: {finding.thing}"))
        for line in (heading, cell(f"  found: {finding.evidence}"), cell(f"  to do: {finding.remedy}")):
            console.print(line, soft_wrap=True)
    counts = {severity: sum(f.severity is severity for f in checkup.findings) for severity in Severity}
    made = sum(run.outcome == "made" for run in checkup.runs)
    verdict = _OUTCOMES[checkup.exit_code].upper() if checkup.exit_code else "healthy"
    found = ", ".join(counted(counts[severity], noun) for severity, noun in _NOUNS.items())
    runs = f"{made} of {len(checkup.runs)} checks"
    if away := checkup.unexamined:  # most checks of these clusters were never tried
        verdict, runs = f"NOT EXAMINED ({' and '.join(away)})", counted(made, "check")
    console.print(Text(f"{verdict}: {found}; {runs} made in {seconds:.1f} s"), soft_wrap=True)
