"""Values of a MirrorMaker 2 file, parsed as Kafka's ConfigDef parses them.

Each function raises OptionError that names the key and its line.
"""

from __future__ import annotations

import re
from typing import Final

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.topic_filter import ALL, TopicFilter
from tolerant_client.ops.mm2.precedence import Settings

NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def name_of(given: Settings, key: str, default: str) -> str:
    """A part of topic names; it may be empty, as in files from before IdentityReplicationPolicy (KAFKA-9726)."""
    setting = given.get(key)
    if setting is None:
        return default
    if setting.value and not NAME.fullmatch(setting.value):
        raise OptionError(
            f"{setting.place} is {setting.shown}; topic names have letters, digits, '.', '_' and '-' only"
        )
    return setting.value


def filter_of(given: Settings, name: str, excluded: tuple[str, ...]) -> TopicFilter:
    include = given.get(name)
    exclude = given.get(f"{name}.exclude", given.get(f"{name}.blacklist"))
    for setting in (include, exclude):
        if setting is not None:
            try:
                TopicFilter(setting.items)
            except OptionError as error:
                raise OptionError(f"{setting.place}: {error.args[0]}") from None
    return TopicFilter(ALL if include is None else include.items, excluded if exclude is None else exclude.items)


def boolean(given: Settings, name: str, default: bool) -> bool:
    return one_of(given, name, str(default).lower(), "true", "false") == "true"


def one_of(given: Settings, name: str, default: str, *others: str) -> str:
    setting = given.get(name)
    if setting is None:
        return default
    if setting.value.lower() not in (default, *others):
        expected = " or ".join(sorted({default, *others}))
        raise OptionError(f"{setting.place} is {setting.shown}; it must be {expected}")
    return setting.value.lower()


def whole(given: Settings, name: str, default: int) -> int:
    """A whole number of at least 1."""
    setting = given.get(name)
    if setting is None:
        return default
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", setting.value) or int(setting.value) < 1:
        raise OptionError(f"{setting.place} is {setting.shown}; it must be a whole number of at least 1")
    return int(setting.value)


def replicas(given: Settings, name: str, default: int) -> int:
    """A whole number of at least 1, or -1: the default of the target's brokers (KIP-464)."""
    setting = given.get(name)
    return -1 if setting is not None and setting.value == "-1" else whole(given, name, default)


def seconds(given: Settings, duty: str, is_enabled: bool, default: int) -> float | None:
    if not boolean(given, f"{duty}.enabled", is_enabled):
        return None
    setting = given.get(f"{duty}.interval.seconds")
    if setting is not None and re.fullmatch(r"-[0-9]{1,18}", setting.value) and int(setting.value) < 0:
        return None  # as in Scheduler.java
    return float(whole(given, f"{duty}.interval.seconds", default))
