"""A finished examination for people (tables) and for programs (JSON with a stable schema)."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
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
    """Prints the clusters, a row for each finding, and a verdict; `is_brief` leaves out findings of severity info."""
    for cluster in sorted(checkup.clusters, key=lambda cluster: str(cluster["name"])):
        said = "could not be examined"  # it does not respond, or refuses us: the table says which
        if cluster["is_examined"]:
            said = (
                f"cluster {cluster['cluster_id']}, {counted(cluster['brokers'], 'broker')},"
                f" {counted(cluster['topics'], 'topic')}, {counted(cluster['partitions'], 'partition')}"
            )
        console.print(cell(f"{cluster['name']} {cluster['bootstrap_servers']}: {said}"))
    shown = [f for f in bounded(by_severity(checkup.findings)) if not (is_brief and f.severity is Severity.INFO)]
    if shown:
        table = Table("", "check", "where", "what was found", "what to do", show_lines=True)
        for finding in shown:
            table.add_row(
                Text(finding.severity.value, style=_COLOURS[finding.severity]),
                Text("\n").join([cell(finding.cluster), cell(finding.check)]),
                cell(finding.thing),
                cell(finding.evidence),
                cell(finding.remedy),
            )
        console.print(table)
    counts = {severity: sum(f.severity is severity for f in checkup.findings) for severity in Severity}
    made = sum(run.outcome == "made" for run in checkup.runs)
    verdict = _OUTCOMES[checkup.exit_code].upper() if checkup.exit_code else "healthy"
    found = ", ".join(counted(counts[severity], noun) for severity, noun in _NOUNS.items())
    runs = f"{made} of {len(checkup.runs)} checks"
    if away := checkup.unexamined:  # most checks of these clusters were never tried
        verdict, runs = f"NOT EXAMINED ({' and '.join(away)})", counted(made, "check")
    console.print(Text(f"{verdict}: {found}; {runs} made in {seconds:.1f} s"))
