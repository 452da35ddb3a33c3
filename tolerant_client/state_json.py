"""What is read out of the JSON of the mirror's own topics, which anybody may have written who has Write on them.  Pure.

Laws:
- Whatever is there, reading it ends with a value within bounds or with ValueError, whose message has nothing of it.
- A number is whole and between 0 and 2^63-1, a moment is before the year 9999: what adds, shows or encodes them needs no
  bounds of its own.  A text can be encoded: it has no half of a surrogate pair.
- How many partitions a field names is bounded, of ranges before they are unfolded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MOST = 2**63 - 1  # what an offset, a producer id or a rate has room for (int64)
MOST_INDEX = 2**31 - 1  # of a partition (int32)
LAST_MS = 253_370_764_799_999  # the end of the year 9998: calendars end a year later, in every time zone
MOST_PARTITIONS = 200_000  # that one field of a record names: more than a cluster has
_MOST_DEPTH = 32


def parsed(data: bytes | str | None) -> Any:
    """What a JSON document says, None without one."""
    try:
        return json.loads(data or b"null", parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError("NaN or Infinity")


def document(data: bytes | str | None) -> dict[str, Any]:
    """What a JSON document says that is an object."""
    return members(parsed(data))


def members(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def checked(fields: Mapping[str, Any], checks: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Each field as its check reads it; raises KeyError for one that has none."""
    return {name: checks[name](value) for name, value in fields.items()}


def elements(value: Any, count: int | None = None) -> list[Any]:
    """An array, of `count` elements where that is given."""
    if not isinstance(value, list) or count not in (None, len(value)):
        raise ValueError("no array" if count is None else f"no array of {count}")
    return value


def whole(value: Any, least: int = 0, most: int = MOST) -> int:
    """A whole number between two bounds, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"no whole number between {least} and {most}")
    return value


def moment(value: Any) -> int:
    """A time in ms since 1970."""
    return whole(value, most=LAST_MS)


def partition_number(value: Any) -> int:
    """The number of a partition."""
    return whole(value, most=MOST_INDEX)


def named_partition(digits: str) -> int:
    """The number of a partition from its digits, as a member's name has them."""
    if not digits.isascii() or not digits.isdecimal() or len(digits) > len(str(MOST_INDEX)):
        raise ValueError("no number of a partition")
    return partition_number(int(digits))


def text(value: Any) -> str:
    """A text that can be encoded."""
    if not isinstance(value, str):
        raise ValueError("no text")
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("half of a surrogate pair")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def partition_range(first: Any, until: Any, least: int = 0) -> range:
    """Partitions [first, until)."""
    found = range(whole(first, least, MOST_INDEX), whole(until, least, MOST_INDEX + 1))
    if found.start > found.stop:
        raise ValueError("a range that ends before it begins")
    return found


def require_few(ranges: Iterable[range]) -> None:
    """Raises ValueError for more partitions than a field of a record may name."""
    if sum(map(len, ranges)) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS:,} partitions")


def shallow(value: Any, depth: int = _MOST_DEPTH) -> Any:
    """Anything that is nested so little that it can be encoded again, wherever that is done."""
    if isinstance(value, (dict, list)):
        if not depth:
            raise ValueError("nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            shallow(each, depth - 1)
    return value
