"""Decodes JSON documents of the mirror's own topics into typed values.  Pure.

Anybody with Write on these topics may have written them.  msgspec checks each field against its type: text must be
encodable, a number in quotes is not a number, and NaN is refused.
Laws:
- Reading any document ends with a value within bounds or with ValueError, whose message quotes nothing of it.
- A number is whole and between 0 and 2^63-1, a moment is before the year 9999: code that adds, shows or encodes them
  needs no bounds of its own.
- The number of partitions that a field names is bounded, and for ranges it is checked before they are expanded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

MOST: Final = 2**63 - 1  # the largest offset, producer id or rate (int64)
MOST_INDEX: Final = 2**31 - 1  # the largest partition number (int32)
LAST_MS: Final = 253_370_764_799_999  # the end of the year 9998: calendars end a year later, in every time zone
MOST_PARTITIONS: Final = 200_000  # in one field of a record; more than a cluster has
_MOST_DEPTH: Final = 32

Whole = Annotated[int, Meta(ge=0, le=MOST)]
Moment = Annotated[int, Meta(ge=0, le=LAST_MS)]  # ms since 1970
PartitionNumber = Annotated[int, Meta(ge=0, le=MOST_INDEX)]

_T = TypeVar("_T")
# msgspec (0.21) prepares a type where it is used first; two threads that do that at once crash the interpreter.
_PREPARES = threading.RLock()


def decoded(data: bytes | str | None, kind: type[_T]) -> _T:
    """Decodes a JSON document of this type; raises ValueError for any other document, and for none."""
    try:
        with _PREPARES:
            return msgspec.json.decode(data or b"", type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def converted(found: Any, kind: type[_T], *, str_keys: bool = False) -> _T:
    """What was decoded, as this type; raises ValueError for what is none of it.  With `str_keys` a number may be a key's text."""
    with _PREPARES:
        return msgspec.convert(found, kind, str_keys=str_keys)


def named_partition(digits: str) -> int:
    """The partition number that a name has as digits; raises ValueError for anything else."""
    if not digits.isascii() or not digits.isdecimal() or len(digits) > len(str(MOST_INDEX)):
        raise ValueError("not a partition number")
    return msgspec.convert(int(digits), PartitionNumber)


def require_few(ranges: Iterable[range]) -> None:
    """Raises ValueError for a range that ends before it begins, and for more than MOST_PARTITIONS partitions."""
    found = list(ranges)
    if any(each.start > each.stop for each in found):
        raise ValueError("a range that ends before it begins")
    if sum(map(len, found)) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS:,} partitions")


def shallow(value: Any, depth: int = _MOST_DEPTH) -> Any:
    """Returns the value; raises ValueError where it is nested too deeply to be encoded again."""
    if isinstance(value, (dict, list)):
        if not depth:
            raise ValueError("nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            shallow(each, depth - 1)
    return value
