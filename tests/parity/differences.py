"""Where ours differs from Spark's own source on purpose, or because Spark's API for Python sources has no choice.

Each is asserted as it is: `jvm` and `ours` are regular expressions that begin the two outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    scenario: str
    reason: str
    jvm: str
    ours: str


_SLIP = "a slip in a name is said, where the JVM's source reads something else than was meant"
_PATTERN = "patterns are those of Python's re; what only Java has is refused by name"
_TASKS = "an empty range needs no task"
_MODE = "Spark lets a Python sink have append and overwrite only, and asks before our code"

TABLE = (
    Difference("a slip in the name of an option", _SLIP, "120 rows", "option .*did you mean 'startingOffsets'"),
    Difference("an assigned partition that does not exist", _SLIP, "60 rows", "option .*has no partition 7"),
    Difference("a pattern with a class of Java's", _PATTERN, "5 rows", "option .*only Java's regular expressions know"),
    Difference("a pattern with an intersection of Java's", _PATTERN, "5 rows", "option .*subscribePattern"),
    Difference(
        "an empty partition and its Spark partition",
        _TASKS,
        "500 rows in 3 partitions",
        "500 rows in 2 partitions",
    ),
    Difference(
        "an empty topic and minPartitions", "Spark makes up a task for a Python source without ranges",
        "0 rows in 0 partitions", "0 rows in 1 partitions",
    ),
    Difference(
        "maxRecordsPerPartition 100 of uneven partitions",
        "the JVM's batch source passes over maxRecordsPerPartition without minPartitions; the guide does not",
        "604 rows in 6 partitions", "604 rows in 10 partitions",
    ),
    Difference(
        "a schema of some of the columns", "columns that are not in the schema are not even decoded",
        "option .*SCHEMA_MISMATCH", "120 rows",
    ),
    Difference(
        "an ending timestamp is not looked at",
        _SLIP,
        "120 rows",
        "option .*endingTimestamp is not valid in a streaming query",
    ),
    Difference(
        "a topic created again without failing",
        "ours keeps topic ids: the new topic is read from its beginning, not on at the old one's offsets",
        "15 rows None -> .*; 2 rows", "15 rows None -> .*; 14 rows",
    ),
    Difference(
        "a pattern that matches nothing, streamed",
        "a Python source cannot say that it knows no offset yet: it says {}",
        "$",
        "0 rows None -> {}$",
    ),
    Difference("updates of counts", _MODE, "7 records", "option .*does not support Update mode"),
    Difference("save mode errorifexists", _MODE, "2 records", "option .*UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    Difference("no save mode", _MODE, "2 records", "option .*UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
)  # fmt: skip

BY_SCENARIO = {difference.scenario: difference for difference in TABLE}
