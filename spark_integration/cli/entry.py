"""The entry point of tolerant-kafka: an interrupt during the import of the command ends it like any later interrupt.

Without the extra [cli] the command says in one sentence what to install.
"""

from __future__ import annotations

import signal
import sys

_CLI = frozenset({"javaproperties", "prometheus_client", "rich", "typer"})  # the modules of the extra [cli]


def main() -> None:
    """Imports the command, which takes a second or more, and runs it."""
    try:
        from spark_integration.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except ModuleNotFoundError as error:
        if error.name not in _CLI:
            raise
        print(
            f"tolerant-kafka: the command line needs the package {error.name}: install tolerant-client with its extra"
            " [cli] (in a checkout: pip install '.[cli]'), or with [spark] for the engine that scales",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    run()
