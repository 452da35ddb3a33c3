"""Mirror Kafka topics between clusters, manage the link, diagnose problems.

Exit codes: 0 done (verify: identical); 1 failed after the start (verify: different);
2 could not start (verify: not compared); 3 done, but needs attention; 130 or 143 a copy
was interrupted (SIGINT, SIGTERM); 141 nobody reads the output any more (SIGPIPE); 74 the
output could not be written (a full disk).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from kafka.errors import KafkaError

from spark_integration.cli.command import Command, Group, unbundled
from spark_integration.cli.demo import demo
from spark_integration.cli.doctor import doctor
from spark_integration.cli.exits import exit_code, tell_failure
from spark_integration.cli.failback import failback
from spark_integration.cli.list_links import list_links
from spark_integration.cli.mirror import mirror
from spark_integration.cli.offsets import offsets
from spark_integration.cli.pause import pause, resume, throttle
from spark_integration.cli.plan import plan
from spark_integration.cli.promote import failover, promote
from spark_integration.cli.repair import repair
from spark_integration.cli.status import status
from spark_integration.cli.take_over import hand_back, take_over
from spark_integration.cli.translate import translate
from spark_integration.cli.verify import verify
from tolerant_client.ops.printing import LogFormatter, echo

_LOGGERS = ("kafka", "tolerant_client", "spark_integration")
_LOG = logging.StreamHandler()
_LOG.setFormatter(LogFormatter())

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=__doc__,
    rich_markup_mode="markdown",  # joins a docstring's lines, whatever the terminal's width
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        echo(f"tolerant-kafka {importlib.metadata.version('tolerant-client')}")
        raise typer.Exit


def _log(verbose: int) -> None:
    logging.basicConfig(handlers=[_LOG])
    if verbose:
        _LOG.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            callback=_log,
            show_default=False,
            help="Log on standard error: -v what happens, -vv each request.",
        ),
    ] = 0,
) -> None:
    """Options of every command."""


_PANELS = {
    "Copying": (mirror, verify, demo),
    "A link's life": (
        list_links,
        plan,
        status,
        pause,
        resume,
        throttle,
        promote,
        failover,
        failback,
        take_over,
        hand_back,
        repair,
    ),
    "Clusters and offsets": (doctor, translate, offsets),
}
_NAMES: dict[Any, str] = {list_links: "list"}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(_NAMES.get(command), cls=Command, rich_help_panel=panel)(unbundled(command))


class PipedOut(io.TextIOWrapper):
    """Standard output whose reader may leave: then the command ends as if by SIGPIPE, with an exit code of no other meaning."""

    def write(self, text: str) -> int:
        with _ended_by_reader():
            return super().write(text)

    def flush(self) -> None:
        with _ended_by_reader():
            super().flush()


@contextlib.contextmanager
def _ended_by_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _drop_the_rest()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        _drop_the_rest()
        echo(f"tolerant-kafka: standard output cannot be written: {error.strerror}", err=True)
        raise SystemExit(os.EX_IOERR) from None


def _drop_the_rest() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes what is left


def _opened(stream: Any, mode: str) -> Any:
    """A standard stream; a closed one is replaced by the null device, also for child processes."""
    if stream is None:
        stream = open(os.devnull, mode)
        os.set_inheritable(stream.fileno(), True)
    return stream


def main() -> None:
    """Runs the command; every error is one sentence on standard error."""
    sys.stdin = _opened(sys.stdin, "r")
    out = _opened(sys.stdout, "w")
    sys.stderr = _opened(sys.stderr, "w")
    errors = "backslashreplace" if out.errors == "strict" else out.errors  # for characters that the encoding lacks
    sys.stdout = PipedOut(out.buffer, out.encoding, errors, line_buffering=bool(out.line_buffering))
    # kafka-python logs each lost connection as an error; our errors say what matters.
    for name in ("kafka", "tolerant_client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # py4j logs tracebacks of a JVM that has ended, with the root logger.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KafkaError as error:
        tell_failure(error)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
