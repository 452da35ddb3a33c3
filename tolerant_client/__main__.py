"""Runs a program with the stock `kafka` classes made tolerant; the program does not change.

    python -m tolerant_client [--policy patient] [--counters] your_script.py [arguments...]
    python -m tolerant_client [--policy patient] [--counters] -m your.module [arguments...]

The program sees the same `sys.argv`, `sys.path`, `__main__`, exit codes and
tracebacks as under `python your_script.py args...`.  Processes that it forks
are tolerant too; processes that it spawns run stock Python.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from tolerant_client import OptionError, install, recovery_counters

_OUR_FILES = {__file__, runpy.run_path.__code__.co_filename}

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def main(arguments: list[str]) -> None:
    """Installs, then runs the program named in `arguments`; ends as the program ends."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        install(options.policy)
    except OptionError as error:
        parser.error(str(error))
    if options.counters:
        atexit.register(_print_counters)
    sys.excepthook = _without_our_frames(sys.excepthook)
    # argparse drops a `--` before the program's own arguments (bpo-17050).
    dropped = [arg for arg in arguments[: len(arguments) - len(options.arguments)][-1:] if arg == "--"]
    sys.argv = [options.program, *dropped, *options.arguments]
    if options.is_module and not _is_there(options.program):
        parser.error(f"no module named {options.program!r}")
    elif options.is_module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    elif not os.path.isfile(options.program):
        parser.error(f"can't open file {options.program!r}: no such file")
    else:
        _run_script(options.program)


def _is_there(module: str) -> bool:
    """Whether there is such a module; what else its packages fail to import, runpy tells."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        return error.name is None or not f"{module}.".startswith(f"{error.name}.")


def _run_script(path: str) -> None:
    """Runs a file as `python path` does; its `__main__` outlives it (runpy's does not), for threads and exits."""
    if not getattr(sys.flags, "safe_path", False):
        # `python -m` puts the working directory there, `python script` the script's directory.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    path = os.path.abspath(path)
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    vars(module).update(__builtins__=sys.modules["builtins"], __cached__=None)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tolerant_client",
        description="Runs a Python program with kafka-python's clients made tolerant of lost and wrong responses.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--policy", default="balanced", help="how far recovery goes: strict, balanced (the default) or patient"
    )
    parser.add_argument("--counters", action="store_true", help="print what recovery did, to stderr, at the end")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("program", help="a script, or with -m a module")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    rest.required = False  # else argparse asks for them where the program is missing
    return parser


def _print_counters() -> None:
    counts = recovery_counters().as_dict()
    rows = [(kind, api, str(node), str(count)) for (kind, api, node), count in counts.items()]
    table = [("event", "api", "node", "count"), *sorted(rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for kind, api, node, count in table:
        line = f"{kind:{widths[0]}}  {api:{widths[1]}}  {node:{widths[2]}}  {count:>{widths[3]}}"
        print(f"tolerant_client: {line}", file=sys.stderr)


def _without_our_frames(hook: _Hook) -> _Hook:
    """Wraps an excepthook: its tracebacks start in the program, not in our frames."""

    def shorter(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> object:
        start = trace
        while start is not None and start.tb_frame.f_code.co_filename in _OUR_FILES:
            start = start.tb_next
        if start is not None:
            trace = start
        return hook(kind, error.with_traceback(trace), trace)

    return shorter


if __name__ == "__main__":
    main(sys.argv[1:])
