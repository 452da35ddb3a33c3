"""A Java properties file with the line number of each setting, and values from config providers.

Laws:
- A value is what java.util.Properties reads, without surrounding blanks (ConfigDef.parseType drops them).
- A variable ${provider:path:key} that cannot be resolved is an error; Kafka would use its text as the value.
- No message of this module, nor any that names a setting by its line, shows a value that came from a provider.  An error
  about a cluster's client properties may show a value whose name is not that of a secret (servers, time-outs).

Facts: java.util.Properties; ConfigTransformer.java, AllowedPaths.java and the config.provider package of Kafka (KIP-297,
KIP-421, KIP-887, KIP-993).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import javaproperties

from tolerant_client.errors import OptionError

_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PROVIDER: Final = "org.apache.kafka.common.config.provider."
_DROPPED: Final = re.compile(
    r"(?<!\\)(?:\\\\)*\\[^tnrfu\\:=#! \t\f\r\n]"
)  # a backslash that java.util.Properties drops
_COMMA: Final = re.compile(r"\s*,\s*")


@dataclass(frozen=True)
class Setting:
    """One setting and its line (counted from 1); `is_looked_up` if a provider gave a part of the value."""

    key: str
    line: int
    value: str = field(repr=False)
    is_looked_up: bool = False

    @property
    def place(self) -> str:
        return f"{self.key} (line {self.line})"

    @property
    def shown(self) -> str:
        """The value, for a message."""
        return "a value from a config provider" if self.is_looked_up else repr(self.value)

    @property
    def items(self) -> tuple[str, ...]:
        """The value split as ConfigDef splits a list."""
        return tuple(_COMMA.split(self.value)) if self.value else ()


def read_properties(path: Path) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """The settings by key, with variables resolved, and warnings.

    Raises OptionError for a file that cannot be read, and for a variable that cannot be resolved.
    """
    try:
        elements = list(javaproperties.parse(path.read_bytes()))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except javaproperties.InvalidUEscapeError:  # which quotes what may be of a password
        raise OptionError(
            f"{path} is not a properties file: \\u needs four hexadecimal digits; write \\\\u for \\u itself"
        ) from None
    settings: dict[str, Setting] = {}
    warnings = []
    line = 1
    for element in elements:
        if isinstance(element, javaproperties.KeyValue):
            setting = Setting(element.key, line, element.value.strip())
            if setting.value.startswith("->"):  # in this format a blank ends the key
                raise OptionError(f"line {line}: write {element.key}->... without blanks around the arrow")
            if setting.key in settings:
                first = settings[setting.key].line
                warnings.append(f"{setting.place} is also in line {first}; the last one counts, as in Java")
            is_copied = setting.key.split(".")[-1] in ("topics", "groups")
            if is_copied and _DROPPED.search(element.source):  # more is copied than was meant
                warnings.append(f"{setting.place} has a backslash that Java drops; write \\\\ for one that counts")
            settings[setting.key] = setting
        line += element.source.count("\n")
    return _looked_up(settings), tuple(warnings)


def _looked_up(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    providers = _providers(settings)

    def look_up(setting: Setting) -> Setting:
        def value_of(match: re.Match[str]) -> str:
            name, path, key = match[1], match[2] or "", match[3]
            if name not in providers:
                raise OptionError(f"{setting.place} uses {match[0]}, but {name!r} is not in config.providers")
            try:
                return providers[name](path, key)
            except LookupError as error:
                why = str(error.args[0])
            except OSError as error:
                why = error.strerror or type(error).__name__
            except ValueError:  # its message would show a part of the file
                why = "the file is not UTF-8, or has a wrong \\u escape"
            raise OptionError(f"{setting.place}: {match[0]} cannot be resolved: {why}")

        value = _VARIABLE.sub(value_of, setting.value)
        return setting if value == setting.value else replace(setting, value=value.strip(), is_looked_up=True)

    return {
        key: setting if key.startswith("config.providers") else look_up(setting) for key, setting in settings.items()
    }


def _providers(settings: Mapping[str, Setting]) -> dict[str, Callable[[str, str], str]]:
    names = settings.get("config.providers")
    found: dict[str, Callable[[str, str], str]] = {}
    for name in names.items if names else ():
        chosen = settings.get(f"config.providers.{name}.class")
        if chosen is None:
            raise OptionError(
                f"config.providers.{name}.class is required: {names.place if names else ''} names {name!r}"
            )
        parameters = {
            key.removeprefix(f"config.providers.{name}.param."): setting
            for key, setting in settings.items()
            if key.startswith(f"config.providers.{name}.param.")
        }
        kind = chosen.value.removeprefix(_PROVIDER)
        if kind == "EnvVarConfigProvider":
            found[name] = _environment(parameters.get("allowlist.pattern"))
        elif kind in ("FileConfigProvider", "DirectoryConfigProvider"):
            read = _from_file if kind == "FileConfigProvider" else _from_directory
            found[name] = _reader(read, _allowed(parameters.get("allowed.paths")))
        else:
            known = "FileConfigProvider, DirectoryConfigProvider and EnvVarConfigProvider"
            raise OptionError(f"{chosen.place}: only Kafka's own {known} can be used; no Java classes are loaded")
    return found


def _environment(pattern: Setting | None) -> Callable[[str, str], str]:
    try:
        allowed = re.compile(pattern.value if pattern else ".*")
    except re.error as error:
        raise OptionError(f"{pattern.place if pattern else ''} is not a regular expression ({error})") from None

    def look_up(path: str, key: str) -> str:
        if path:
            raise LookupError("environment variables have no path; write ${provider:NAME}")
        if not allowed.fullmatch(key):
            raise LookupError("allowlist.pattern does not match it")
        if key not in os.environ:
            raise LookupError("the environment has no such variable")
        return os.environ[key]

    return look_up


def _allowed(paths: Setting | None) -> tuple[Path, ...] | None:
    if paths is None or not paths.value:
        return None
    allowed = tuple(Path(os.path.normpath(part)) for part in paths.value.split(","))
    for path in allowed:
        if not path.is_absolute() or not path.exists():
            raise OptionError(f"{paths.place} has {str(path)!r}; it must be an absolute path that exists")
    return allowed


def _reader(read: Callable[[Path, str], str], allowed: tuple[Path, ...] | None) -> Callable[[str, str], str]:
    def look_up(path: str, key: str) -> str:
        if not path:
            raise LookupError("it has no path; write ${provider:path:key}")
        where = Path(path)
        if allowed is not None:
            where = Path(os.path.normpath(path))
            # A symbolic link counts as its target: those of a Secret's volume stay inside it.
            file = Path(os.path.realpath(where / key if read is _from_directory else where))
            if not any(where.is_relative_to(one) and file.is_relative_to(os.path.realpath(one)) for one in allowed):
                raise LookupError("it is not below allowed.paths")
        return read(where, key)

    return look_up


def _from_file(path: Path, key: str) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        values: dict[str, str] = javaproperties.load(file)
    if key not in values:
        raise LookupError("the file has no such key")
    return values[key]


def _from_directory(path: Path, key: str) -> str:
    file = path / key
    if os.sep in key or not file.is_file():
        raise LookupError("the directory has no such file")
    return file.read_text(encoding="utf-8")
