"""deadLetterTopic: records that cannot be written to their topic, with the reason; pure.

A dead letter has the key, the value and the headers of its record, followed by these headers (UTF-8):

| header | meaning |
|---|---|
| tolerant.reason | why it was refused |
| tolerant.topic | its own topic, cut to 249 letters, empty if the column `topic` is null |
| tolerant.row | its number among the rows of its task, from 0 |
| tolerant.task | the number of the task |
| tolerant.trimmed | if the record is too large for the dead letter topic too: the bytes of key and value, which are left out |

Dead letters are: a record that is larger than its topic or max.request.size allows, one that its topic does not accept
(a null key if the topic is compacted, a timestamp outside the allowed range), one for a partition that its topic does
not have, and one whose topic is null, does not exist or may not be created.  Any other error, and a dead letter topic
that is wrong itself, fails the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from spark_integration.writing.columns import WriteRows
from tolerant_client.records.record_batch import Record
from tolerant_client.records.record_cursor import Headers

REASON: Final = "tolerant.reason"
TOPIC: Final = "tolerant.topic"
ROW: Final = "tolerant.row"
TASK: Final = "tolerant.task"
TRIMMED: Final = "tolerant.trimmed"
_MAX_REASON: Final = 1000  # characters
_MAX_TOPIC: Final = 249  # the longest valid name


def dead_letter(record: Record, reason: str, topic: str, row: int, task: int) -> Record:
    """The record as a dead letter."""
    why: Headers = (
        (REASON, reason[:_MAX_REASON].encode()),
        (TOPIC, topic[:_MAX_TOPIC].encode()),
        (ROW, b"%d" % row),
        (TASK, b"%d" % task),
    )
    return record._replace(headers=(*record.headers, *why))


def trimmed(letter: Record) -> Record | None:
    """The letter without key, value and its record's own headers; None if these were already left out."""
    if letter.headers[-1][0] == TRIMMED:
        return None
    size = len(letter.key or b"") + len(letter.value or b"")
    ours = letter.headers[-4:]  # those of `dead_letter`; the record itself may have headers with the same names
    return letter._replace(key=None, value=None, headers=(*ours, (TRIMMED, b"%d" % size)))


def records_of(rows: WriteRows, numbers: Iterable[int], timestamp: int) -> list[Record]:
    """Rows as records; `numbers` count from the first row."""
    return [
        Record(
            0,
            timestamp,
            None if rows.keys is None else _data(rows.keys[number]),
            _data(rows.values[number]),
            () if rows.headers is None else _headers(rows.headers[number].as_py()),
        )
        for number in numbers
    ]


def _data(scalar: Any) -> bytes | None:
    value = scalar.as_py()
    return value.encode() if isinstance(value, str) else value


def _headers(headers: list[dict[str, Any]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in headers or ())
