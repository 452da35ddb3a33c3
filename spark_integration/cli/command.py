"""What all commands do with their command line before they run.

Laws:
- A value from the environment is a default: a typed option that contradicts it takes precedence, without a warning.
- Two variables that contradict each other are refused by name, unless a typed option decides.
- Properties from the environment contain the secrets of the cluster that the environment names: no other cluster gets them.

A *bundle* is a dataclass of options that a command takes as one parameter: the command offers all of them, or those whose
names the parameter's annotation lists, as Annotated[Bundle, ("name", ...)].
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from kafka.errors import KafkaError
from typer.core import TyperCommand, TyperGroup

from spark_integration.cli.exits import echo_failure, exit_code
from tolerant_client.errors import OptionError
from tolerant_client.security.kafka_config import kafka_python_config

_FILE = frozenset({"config", "flow", "clusters"})
_CLUSTERS = frozenset({"source", "target", "source_properties", "target_properties"})
_SERVERS = frozenset({"source", "target", "cluster"})
_ONE = frozenset({"cluster", "cluster_properties"})  # of doctor
# The typed options to which a value from the environment gives way.
_GIVES_WAY = {
    "config": _CLUSTERS | _ONE | {"topics", "link"},
    "link": _FILE,
    **dict.fromkeys(_CLUSTERS, _FILE | _ONE),
}


def unbundled(function: Callable[..., None]) -> Callable[..., None]:
    """The same command with the options of its bundles in place of the bundles, because typer reads signatures."""
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, tuple[Any, Iterable[str]]] = {}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *offered = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            options[name] = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        of_kind = inspect.signature(kind).parameters
        bundles[name] = kind, offered[0] if offered else of_kind
        annotations = get_type_hints(kind, include_extras=True)
        for each in bundles[name][1]:
            options[each] = of_kind[each].replace(kind=parameter.KEYWORD_ONLY, annotation=annotations[each])

    def command(**given: Any) -> None:
        for name, (kind, offered) in bundles.items():
            given[name] = kind(**{each: given.pop(each) for each in offered})
        function(**given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {name: option.annotation for name, option in options.items()}
    command.__dict__["__signature__"] = inspect.Signature([*options.values()])
    return command


class Group(TyperGroup):
    """The command itself, before the name of one of its commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options."""
        return without_values(super().get_params(ctx))


def without_values(params: list[Any]) -> list[Any]:
    """The parameters; the help shows no value for one that takes none, as typer since 0.29 does."""
    for param in params:
        if param.metavar is None and (getattr(param, "is_flag", False) or getattr(param, "count", False)):
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command whose typed options win over the environment, and which refuses values that no cluster can have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if told := [param for param in self.params if param.envvar]:
            # Not next to each option, where they would be cut at 80 columns.
            names = ", ".join(f"{param.envvar} ({param.opts[0]})" for param in told)
            self.epilog = f"Environment variables for options that are not typed: {names}."

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own, and -v, which every command also takes after its name."""
        verbose = [param for param in ctx.find_root().command.params if param.name == "verbose"]
        return without_values([*super().get_params(ctx), *verbose])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises OptionError for variables that contradict each other, and for impossible values."""
        if ctx.resilient_parsing:  # shell completion: nothing is run, and nothing refused
            return super().parse_args(ctx, args)
        typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        told = {param.name: value for param in self.params if (value := param.value_from_envvar(ctx))}
        others = {f"{name}_properties" for name, value in typed.items() if told.get(name, value) != value}
        self.params = [
            _untold(param) if _gives_way(param) & typed.keys() or param.name in others else param
            for param in self.params
        ]
        rest = super().parse_args(ctx, args)
        ctx.params.pop("verbose", None)  # its callback has handled it
        taken = [param for param in self.params if _is_of_environment(ctx, param.name or "")]
        for param in taken:
            servers = (param.name or "").removesuffix("_properties")
            if servers != param.name and ctx.params.get(servers) is None:
                ctx.params[param.name] = None  # belongs to a cluster that is not used
        _require_agreement(param for param in taken if ctx.params[param.name] is not None)
        for param in self.params:
            value = ctx.params.get(param.name or "")
            for one in value if isinstance(value, list) else [value]:
                _require_possible(param.opts[0], one)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Raises OptionError for invalid addresses; with --json prints an error that ends the command as its document."""
        try:
            for param in self.params:
                value = ctx.params.get(param.name or "")
                if param.metavar == "HOST:PORT" and param.name in _SERVERS and value is not None:
                    is_told = _is_of_environment(ctx, param.name)
                    _require_addresses(str(param.envvar) if is_told else param.opts[0], value)
            return super().invoke(ctx)
        except KafkaError as error:
            if ctx.params.get("as_json"):
                echo_failure(error, exit_code(error))
            raise


def _gives_way(param: Any) -> frozenset[str]:
    return _GIVES_WAY.get(param.name or "", frozenset())


def _untold(param: Any) -> Any:
    found = copy.copy(param)
    found.envvar = None
    return found


def _is_of_environment(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _require_agreement(told: Iterable[Any]) -> None:
    by_name = {param.name: param for param in told}
    file = by_name.get("config")
    for name in ("source", "target", "link"):
        if file is not None and name in by_name:
            other = by_name[name]
            raise OptionError(
                f"{file.envvar} and {other.envvar} are both set, but a file names its clusters and links itself:"
                f" unset one of them, or give {file.opts[0]} or {other.opts[0]}"
            )


def _require_addresses(given_by: str, servers: str) -> None:
    try:
        kafka_python_config({"bootstrap.servers": servers})
    except OptionError as error:
        raise OptionError(error.args[0].replace("kafka.bootstrap.servers", given_by)) from None


def _require_possible(option: str, value: object) -> None:
    if isinstance(value, str) and value != value.encode(errors="replace").decode():
        raise OptionError(f"{option} {ascii(value)} is not UTF-8, which Kafka requires of names; write it in UTF-8")
    if isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{option} is {value}; it must be a number")
