"""What tolerant-kafka begins with: an interrupt while the command is still being imported ends it as any other does."""

from __future__ import annotations

import signal


def main() -> None:
    """Imports the command, which takes a second or more, and runs it."""
    try:
        from spark_integration.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    run()
