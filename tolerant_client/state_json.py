"""JSON documents as typed values: of the mirror's own topics, which anybody may have written who has Write on them.  Pure.

msgspec reads them by the types of their fields: a text can be encoded there, a number is none in quotes, NaN is none.
Laws:
- Whatever is there, reading it ends with a value within bounds or with ValueError, whose message has nothing of it.
- A number is whole and between 0 and 2^63-1, a moment is before the year 9999: what adds, shows or encodes them needs no
  bounds of its own.
- How many partitions a field names is bounded, of ranges before they are unfolded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

MOST: Final = 2**63 - 1  # what an offset, a producer id or a rate has room for (int64)
MOST_INDEX: Final = 2**31 - 1  # of a partition (int32)
LAST_MS: Final = 253_370_764_799_999  # the end of the year 9998: calendars end a year later, in every time zone
MOST_PARTITIONS: Final = 200_000  # that one field of a record names: more than a cluster has
_MOST_DEPTH: Final = 32

Whole = Annotated[int, Meta(ge=0, le=MOST)]
Moment = Annotated[int, Meta(ge=0, le=LAST_MS)]  # ms since 1970
PartitionNumber = Annotated[int, Meta(ge=0, le=MOST_INDEX)]

_T = TypeVar("_T")


def decoded(data: bytes | str | None, kind: type[_T]) -> _T:
    """A JSON document of this type; without one it is not of any."""
    try:
        return msgspec.json.decode(data or b"", type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def named_partition(digits: str) -> int:
    """The number of a partition from its digits, as a name has them."""
    if not digits.isascii() or not digits.isdecimal() or len(digits) > len(str(MOST_INDEX)):
        raise ValueError("no number of a partition")
    return msgspec.convert(int(digits), PartitionNumber)


def require_few(ranges: Iterable[range]) -> None:
    """Raises ValueError for more partitions than a field of a record may name, and for a range that ends before it begins."""
    found = list(ranges)
    if any(each.start > each.stop for each in found):
        raise ValueError("a range that ends before it begins")
    if sum(map(len, found)) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS:,} partitions")


def shallow(value: Any, depth: int = _MOST_DEPTH) -> Any:
    """Anything that is nested so little that it can be encoded again, wherever that is done."""
    if isinstance(value, (dict, list)):
        if not depth:
            raise ValueError("nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            shallow(each, depth - 1)
    return value
