"""The position of a streaming query, read from its checkpoint without Spark.

A checkpoint has a file offsets/N for each planned micro-batch N, and commits/N for each committed one.  offsets/N holds
the end of batch N: `v1`, a line of metadata, and a line for each source in the query's order; `v2` writes the source's
name and a colon before it (OffsetSeqLog.scala of Spark).  A Kafka source's line is `{"topic":{"0":23}}`, which is also
the format of startingOffsets; our source adds topic ids and the query's start (offsets.py), which are left out here.

Laws:
- The last committed batch counts: a start there repeats a batch that was planned but not committed; a start after that
  batch might skip it.
- A truncated file is refused: a source would be missing.
- No password of an address (s3://KEY:SECRET@bucket) is shown.
- Parsing is pure; only read_checkpoint and Checkpoint.read access files, through pyarrow.fs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyarrow import ArrowException, fs

from tolerant_client.errors import OptionError

_NO_OFFSET: Final = "-"
_DAMAGED: Final = "it is damaged; choose another batch with --batch"
# Hadoop's schemes for which pyarrow has another name.
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "viewfs": "hdfs"}


@dataclass(frozen=True)
class Checkpoint:
    """The batches of a checkpoint, in order; `location` is for messages."""

    location: str
    planned: tuple[int, ...]
    committed: tuple[int, ...]
    filesystem: Any
    path: str

    def choose(self, batch: int | None) -> int:
        """The requested batch, or the last committed one; raises OptionError if there is none."""
        if batch is not None:
            if batch not in self.planned:
                raise OptionError(
                    f"{self.location} does not have batch {batch} (any more, or yet): it has"
                    f" {self.planned[0]} to {self.planned[-1]}; give one of them, or no --batch"
                )
            return batch
        done = [number for number in self.planned if number in self.committed]
        if not done:
            raise OptionError(
                f"{self.location} has no committed batch: the query has written nothing; start it anew, or use"
                f" --batch {self.planned[0]} for what it was about to write"
            )
        return done[-1]

    def read(self, batch: int) -> dict[str, str | None]:
        """Each source's offset at the end of a batch, by the source's name or number; None before its first offset."""
        path = f"{self.path}/offsets/{batch}"
        try:
            with self.filesystem.open_input_stream(path) as stream:
                text = stream.read().decode("utf-8")
        except (OSError, ValueError) as error:
            raise OptionError(f"{self.location}/offsets/{batch} cannot be read: {_shown(str(error))}") from None
        return parse_offset_log(text, f"{self.location}/offsets/{batch}")


def read_checkpoint(location: str) -> Checkpoint:
    """The checkpoint at a path or an address (file:, hdfs://, s3://, gs://, abfss://).

    Raises OptionError naming the location and the remedy.
    """
    try:
        filesystem, path = _open(location)
        planned, committed = (_numbers(filesystem, f"{path}/{name}") for name in ("offsets", "commits"))
    except (OSError, ArrowException) as error:
        reason = _shown(str(error).partition("\n")[0])
        raise OptionError(
            f"The checkpoint {_shown(location)} cannot be read: {reason}; for hdfs:// pyarrow needs the Hadoop client's"
            " CLASSPATH, for object stores their credentials in the environment, or copy the folder here"
        ) from None
    if not planned:
        raise OptionError(
            f"{_shown(location)} is not the checkpoint of a streaming query: it has no files in a folder named offsets;"
            " give the value of the query's option checkpointLocation"
        )
    return Checkpoint(_shown(location), planned, committed, filesystem, path)


def parse_offset_log(text: str, name: str) -> dict[str, str | None]:
    """The lines of one file, by source; `name` is used in errors.

    Raises OptionError.
    """
    version, _, rest = text.partition("\n")
    if version.strip() not in ("v1", "v2"):
        raise OptionError(f"{name} has version {version.strip()[:20]!r}; known are v1 and v2 (Spark 2 to 4)")
    _metadata, found, rest = rest.partition("\n")
    if not found:
        raise OptionError(f"{name} ends before its first source: it is truncated")
    offsets: dict[str, str | None] = {}
    for place, line in enumerate(rest.rstrip("\n").split("\n")):
        source, colon, offset = line.partition(":") if version.strip() == "v2" else (str(place), ":", line)
        if not colon:
            raise OptionError(f"{name} has a line without a source's name: {_DAMAGED}")
        if offset.lstrip().startswith(("{", "[")) and not _is_json(offset):
            raise OptionError(f"{name} ends within the offset of source {source}: {_DAMAGED}")
        offsets[source] = None if offset.strip() == _NO_OFFSET else offset
    return offsets


def starting_offsets(offsets: Mapping[str, str | None], source: str | None, name: str) -> tuple[str, str]:
    """The source and its JSON for startingOffsets: the only Kafka source, or the requested one.

    Raises OptionError if that leaves none, or several.
    """
    if source is not None:
        if source not in offsets:
            raise OptionError(f"{name} has no source {source!r}, only {', '.join(offsets)}")
        found = _kafka_offsets(offsets[source])
        if found is None:
            raise OptionError(f"{name}: source {source} is not a Kafka source that has begun")
        return source, found
    kafka = {source: found for source, line in offsets.items() if (found := _kafka_offsets(line)) is not None}
    if not kafka:
        raise OptionError(f"{name} has no Kafka source that has begun, among {len(offsets)} sources")
    if len(kafka) > 1:
        topics = "; ".join(f"{source} reads {', '.join(json.loads(found))}" for source, found in kafka.items())
        raise OptionError(f"{name} has several Kafka sources: choose one with --source ({topics})")
    return next(iter(kafka.items()))


def _kafka_offsets(line: str | None) -> str | None:
    """The line without spaces, if it is the offset of a Kafka source."""
    try:
        topics = json.loads(line or "")
    except ValueError:
        return None
    is_kafka = isinstance(topics, dict) and all(
        isinstance(partitions, dict)
        and all(number.isdecimal() and type(offset) is int for number, offset in partitions.items())
        for partitions in topics.values()
    )
    offsets = {topic: numbers for topic, numbers in topics.items() if ":" not in topic} if is_kafka else {}
    return json.dumps(offsets, separators=(",", ":")) if offsets else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(text: str) -> str:
    return re.sub(r"(?<=://)[^@\s]*:[^@\s]*(?=@)", "***", text)


def _open(location: str) -> tuple[Any, str]:
    match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):(/.*)", location)
    if match is None:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location))
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    if scheme == "file":  # Hadoop writes file:/path
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    opened: tuple[Any, str] = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
    return opened


def _numbers(filesystem: Any, folder: str) -> tuple[int, ...]:
    listed = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return tuple(sorted(int(info.base_name) for info in listed if info.is_file and info.base_name.isdecimal()))
