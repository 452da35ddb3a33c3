"""Option values, read as Spark reads them: every error names the option; no I/O.

`own` is a mapping from an option's name, as documented, to the text that was given.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from tolerant_client.errors import OptionError
from tolerant_client.security import java_properties

_V = TypeVar("_V")

_KAFKA_PREFIX: Final = "kafka."
_TABLE_PREFIX: Final = "option."  # V2SessionCatalog adds a table's options once more with this prefix
_SERVERS: Final = "kafka.bootstrap.servers"

# JavaUtils.timeStringAs of Spark: a number without a unit is in ms.
_DURATION: Final = re.compile(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", re.IGNORECASE)
_UNITS_US: Final = {
    "": 1000, "us": 1, "ms": 1000, "s": 10**6, "m": 60 * 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6,
}  # fmt: skip
_INT64_MAX: Final = 2**63 - 1


def split_options(options: Mapping[str, str], names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options that are known, under `names`, and the `kafka.*` ones without their prefix, in lower case.

    Others are ignored, as by Spark's own source: a query may share its options
    between readers and writers.  Raises OptionError for a known option that is misspelled
    or has the prefix, and for CREATE TABLE.
    """
    if any(name.lower().startswith(_TABLE_PREFIX + _KAFKA_PREFIX) for name in options):
        raise OptionError(
            "CREATE TABLE ... USING tolerantkafka does not work: Spark gives a table's options to no Python data source that"
            " reads it. Use CREATE TEMPORARY VIEW ... USING tolerantkafka OPTIONS (...), which takes the same options"
        )
    known = {name.lower(): name for name in names}
    own: dict[str, str] = {}
    java: dict[str, str] = {}
    for given, value in options.items():
        name = given.lower()
        bare = name.removeprefix(_KAFKA_PREFIX)
        is_java = bare != name
        if name in known:
            own[known[name]] = str(value)
        elif not (is_java and bare in java_properties.KNOWN):
            # The most common mistakes are a Kafka property without its prefix, and an option of ours with it.
            for close in difflib.get_close_matches(bare, [*known, _SERVERS], n=1, cutoff=0.85):
                raise OptionError(f"Unknown option {given!r}; did you mean {known.get(close, close)!r}?")
        if is_java:
            java[bare] = str(value)
    return own, java


def boolean(own: Mapping[str, str], name: str, default: bool) -> bool:
    return choice(own, name, {"true": True, "false": False}, default)


def choice(own: Mapping[str, str], name: str, values: Mapping[str, _V], default: _V) -> _V:
    """One of `values`, whose names are lower case; the given text may have any case."""
    if name not in own:
        return default
    text = own[name].strip().lower()
    if text not in values:
        raise OptionError(f"{name} is {own[name]!r}; it must be one of {', '.join(values)}")
    return values[text]


def positive(own: Mapping[str, str], name: str) -> int | None:
    """A whole number above 0, or None if it was not given."""
    if name not in own:
        return None
    return whole_number(own[name], name, least=1)


def whole_number(text: str, name: str, what: str = "a whole number", *, least: int = 0) -> int:
    """A whole number from `least` to the largest of Java's Long."""
    if not re.fullmatch(r"\+?[0-9]{1,19}", text.strip()) or not least <= int(text) <= _INT64_MAX:
        raise OptionError(f"{name} is {text!r}; it must be {what} from {least} to {_INT64_MAX}")
    return int(text)


def duration_ms(own: Mapping[str, str], name: str, default: int) -> int:
    """A duration such as 15m, 30s, 500ms or 500, in ms."""
    if name not in own:
        return default
    match = _DURATION.fullmatch(own[name])
    unit = _UNITS_US.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise OptionError(f"{name} is {own[name]!r}; it must be a duration such as 15m, 30s or 500ms")
    return int(match[1]) * unit // 1000
