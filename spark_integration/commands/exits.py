"""Exit codes of tolerant-kafka, and how it says what went wrong; the table of all of them is in mirroring/README.md."""

from __future__ import annotations

from typing import Final

import typer

from spark_integration.printing import echo
from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.testing import ClusterStartError

FAILED: Final = 1
NOT_STARTED: Final = 2  # wrong options, or a cluster that does not answer at the start: nothing was written
LOOK: Final = 3  # done, but an operator has to look


def exit_code(error: Exception) -> int:
    """That of a command which ends with this error before it has begun."""
    return NOT_STARTED if isinstance(error, (OptionError, ClusterStartError, ClusterUnreachableError)) else FAILED


def tell_failure(error: Exception) -> None:
    """Says an error as one sentence on standard error."""
    echo(f"tolerant-kafka: {str(error).removeprefix(f'{type(error).__name__}: ')}", err=True)
