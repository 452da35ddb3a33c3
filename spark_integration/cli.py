"""The command tolerant-kafka: mirrors of topics, their life, and what is wrong with clusters.

Exit codes: 0 done (verify: identical), 1 failed on the way (verify: different),
2 could not start (verify: not compared), 3 done, but look at it, 128 and the
signal's number where a copy was interrupted (130: SIGINT, 143: SIGTERM).
"""

from __future__ import annotations

import logging
import sys

import typer
from kafka.errors import KafkaError

from spark_integration.commands.demo import demo
from spark_integration.commands.doctor import doctor
from spark_integration.commands.exits import exit_code, tell_failure
from spark_integration.commands.failback import failback
from spark_integration.commands.mirror import mirror
from spark_integration.commands.offsets import offsets
from spark_integration.commands.pause import pause, resume, throttle
from spark_integration.commands.plan import plan
from spark_integration.commands.promote import failover, promote
from spark_integration.commands.status import status
from spark_integration.commands.take_over import hand_back, take_over
from spark_integration.commands.translate import translate
from spark_integration.commands.verify import verify

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
_PANELS = {
    "Copying": (mirror, verify, demo),
    "A link's life": (plan, status, pause, resume, throttle, promote, failover, failback, take_over, hand_back),
    "Clusters and offsets": (doctor, translate, offsets),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)


def main() -> None:
    """Runs the command; every error is one sentence on standard error."""
    # kafka-python logs each lost connection as an error; what matters is said by our errors.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("tolerant_client").setLevel(logging.CRITICAL)
    try:
        app()
    except KafkaError as error:
        tell_failure(error)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
