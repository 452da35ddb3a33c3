"""Exit codes of tolerant-kafka, and how it reports errors; the table of all codes is in mirror/README.md."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from kafka.errors import AuthorizationError, KafkaError

from tolerant_client.errors import (
    ClusterUnreachableError,
    LinkPromotedError,
    LoginRefusedError,
    OptionError,
    OrdersHiddenError,
    TargetClaimedError,
    text_of,
)
from tolerant_client.ops.printing import echo, echo_json
from tolerant_client.testing import ClusterStartError
from tolerant_client.testing.artifacts import java_executable

FAILED: Final = 1
# Wrong options, a link or target that we may not write to, a cluster unavailable: nothing was written.
NOT_STARTED: Final = 2
LOOK: Final = 3  # done, but needs an operator's attention
_NOT_BEGUN: Final = (
    OptionError,
    ClusterStartError,
    ClusterUnreachableError,
    LinkPromotedError,
    LoginRefusedError,
    OrdersHiddenError,
    TargetClaimedError,
)


def exit_code(error: Exception) -> int:
    """The exit code of a command that ends with this error before it has begun."""
    return NOT_STARTED if isinstance(error, _NOT_BEGUN) else FAILED


def require_spark(instead: str = "") -> None:
    """Raises OptionError if Spark cannot be started here; called before anything is written.

    `instead` is how the command does without Spark: "--tasks 0".
    """
    without = f"; {instead} needs neither Spark nor Java" if instead else ""
    if importlib.util.find_spec("pyspark") is None:
        raise OptionError(
            f"Spark is needed, and pyspark is not installed: in a checkout, pip install '.[spark]'{without}"
        )
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # started by spark-submit, whose JVM runs
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise OptionError(f"JAVA_HOME is {home}, but it has no bin/java: Spark needs Java 17 or newer there{without}")
    try:
        java_executable("to run Spark")
    except ClusterStartError as error:
        raise OptionError(f"{text_of(error)}{without}") from error


def tell_failure(error: Exception) -> None:
    """Prints an error as one sentence on standard error."""
    echo(f"tolerant-kafka: {_sentence(error)}", err=True)


def echo_failure(error: Exception, code: int) -> None:
    """Prints the document of a command with --json that ends with this error and this exit code."""
    echo_json({"error": _sentence(error), "exit_code": code})


@contextmanager
def ended_with(code: int, as_json: bool) -> Iterator[None]:
    """Prints any error, and ends the command with this exit code."""
    try:
        yield
    except KafkaError as error:
        tell_failure(error)
        if as_json:
            echo_failure(error, code)
        raise typer.Exit(code) from error


def _sentence(error: Exception) -> str:
    # What is said of a right that we lack is a sentence (Cluster.not_allowed).
    return (
        re.sub(rf"^\[Error \d+\] {type(error).__name__}: (?=.* )", "", text_of(error))
        if isinstance(error, AuthorizationError)
        else text_of(error)
    )


class _Terminated(SystemExit):
    """SIGTERM, as service managers send it; it ends the command like SIGINT."""


def _terminate(number: int, _: object) -> None:
    raise _Terminated(128 + number)


@contextmanager
def told_if_interrupted(what: str, is_dry_run: bool) -> Iterator[None]:
    """Prints what SIGINT or SIGTERM may leave behind ("if ..."), because the command's progress is not known here."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except (KeyboardInterrupt, _Terminated):
        if not is_dry_run:
            echo(f"tolerant-kafka: interrupted: if {what}", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
