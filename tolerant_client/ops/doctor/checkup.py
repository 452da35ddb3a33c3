"""Runs checks one after the other, each within a deadline; a check that could not be made is a finding.

Laws:
- No check ends the examination, whatever its error.
- A check that is not allowed, or gets no response, says what it would have needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, TolerantClientError, text_of
from tolerant_client.ops.doctor.finding import CHECKS, Finding, Severity, exit_code

_T = TypeVar("_T")

# The right that a check needs, in the terms of kafka-acls.sh.
_NEEDED = {
    "controller": "Describe on the cluster",
    "log-dirs": "Describe on the cluster",
    "quotas": "DescribeConfigs on the cluster",
    "durability": "DescribeConfigs on the topics and the cluster",
    "transactions": "Read on the topics",
    "ledger": "Read on topic tolerant-mirror-ledger of the target",
    "control": "Read on topic tolerant-mirror-control of the target",
    "retention": "Read on the topics of both clusters",
}


@dataclass(frozen=True)
class CheckRun:
    """A check of one cluster that was tried; `outcome` is "made" or "not-made"."""

    check: str
    cluster: str
    outcome: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "cluster": self.cluster,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 3),
        }


@dataclass
class Checkup:
    """What was tried and found so far; shared by the threads that examine the clusters."""

    check_s: float = 10.0  # time limit of one check
    findings: list[Finding] = field(default_factory=list)
    runs: list[CheckRun] = field(default_factory=list)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    names: tuple[str, ...] = ()  # of the clusters to examine
    is_cut_off: bool = False
    _doing: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_examined(self) -> bool:
        """Whether every cluster has responded."""
        return not self.unexamined

    @property
    def unexamined(self) -> list[str]:
        """The clusters that have not responded."""
        examined = {cluster["name"] for cluster in self.clusters if cluster["is_examined"]}
        return [name for name in self.names if name not in examined]

    @property
    def exit_code(self) -> int:
        return exit_code(self.findings, is_examined=self.is_examined)

    def add(self, findings: Iterable[Finding]) -> None:
        found = list(findings)
        with self._lock:
            if not self.is_cut_off:
                self.findings = list(dict.fromkeys([*self.findings, *found]))

    def ask(self, check: str, cluster: Cluster, function: Callable[..., Awaitable[_T]], *args: Any) -> _T | None:
        """The result of a check's coroutine; None after an error, which becomes a finding."""

        async def bounded() -> _T:
            future = cluster.net.call_soon_with_future(function, *args)
            response: _T = await cluster.manager.wait_for(future, self.check_s * 1000)
            return response

        return self.make(check, cluster.name, lambda: cluster.run(bounded))

    def make(self, check: str, cluster: str, function: Callable[[], _T]) -> _T | None:
        """The result of a check's function; None after an error, which becomes a finding."""
        began, outcome = time.monotonic(), "not-made"
        self._doing[threading.get_ident()] = f"{check} of the {cluster}"
        try:
            result = function()
            outcome = "made"
            return result
        except Exception as error:  # a check that fails must not hide the findings of others
            self.add([not_made(check, cluster, error)])
            return None
        finally:
            with self._lock:
                self._doing.pop(threading.get_ident(), None)
                self.runs.append(CheckRun(check, cluster, outcome, time.monotonic() - began))

    def guard(self, cluster: str, function: Callable[[], None]) -> None:
        """Calls a function; an error that it does not catch becomes a finding, and the others continue."""
        try:
            function()
        except Exception as error:
            self.add([not_made("examination", cluster, error)])

    def cut_off(self, seconds: float) -> None:
        """Ends with the findings so far, because something without a deadline blocks (a name server, a token server)."""
        with self._lock:
            doing = ", ".join(self._doing.values()) or "nothing that was recorded"
            self.findings.append(
                Finding(
                    Severity.WARNING,
                    "examination",
                    "link",
                    "the whole examination",
                    f"it was ended after {seconds:.0f} s, during: {doing}",
                    "Check the name server, and the server of tokens or tickets; then run doctor again",
                )
            )
            self.is_cut_off = True


def not_made(check: str, cluster: str, error: BaseException) -> Finding:
    """The finding for a check that could not be made."""
    title = CHECKS[check]
    words = text_of(error) or type(error).__name__
    if isinstance(error, Errors.UnsupportedVersionError):
        return Finding(Severity.INFO, check, cluster, f"not checked: {title}", words, "None; newer brokers report it")
    if isinstance(error, Errors.AuthorizationError) or "AUTHORIZATION_FAILED" in words.upper():
        needed = _NEEDED.get(check, "Describe on what it checks")
        return Finding(
            Severity.INFO, check, cluster, f"not checked: {title}", f"not allowed: {words}", f"Allow {needed}"
        )
    if isinstance(error, (Errors.KafkaError, OSError)):
        remedy = "Check the broker that did not respond, then run doctor again"
        if not isinstance(error, (ClusterUnreachableError, Errors.KafkaTimeoutError)):
            remedy = "Check the brokers' logs, then run doctor again"
        if isinstance(error, TolerantClientError) and error.remedy:
            words, remedy = error.finding, f"{error.remedy[0].upper()}{error.remedy[1:]}"
        return Finding(Severity.WARNING, check, cluster, f"not checked: {title}", words, remedy)
    words = f"{type(error).__name__}: {words}"
    return Finding(Severity.WARNING, check, cluster, f"not checked: {title}", words, "A fault of the doctor: report it")


def side_by_side(functions: Iterable[Callable[[], None]]) -> None:
    """Runs functions in threads and waits for all; errors that they do not catch are lost (use Checkup.guard)."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
