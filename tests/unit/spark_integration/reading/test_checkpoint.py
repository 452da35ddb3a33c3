"""Checkpoints of Spark: which batch counts, and how its file is parsed, in both versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from spark_integration.reading.checkpoint import parse_offset_log, read_checkpoint, starting_offsets
from spark_integration.reading.offsets import first_end, nested_offsets
from tolerant_client.errors import OptionError

V1 = 'v1\n{"batchWatermarkMs":0,"conf":{"a":"b:c"}}\n{"t":{"0":5,"1":-1}}\n-\n{"u":{"0":7}}\n42'
V2 = 'v2\n{"conf":{}}\nclicks:{"t": {"0": 5}}\norders:-\nrate:42'
KAFKA = 'v1\n{}\n{"t":{"0":5}}'


def write(folder: Path, planned: dict[int, str], committed: list[int]) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, text in planned.items():
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in committed:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_sources_are_lines_or_have_names() -> None:
    assert parse_offset_log(V1, "f") == {"0": '{"t":{"0":5,"1":-1}}', "1": None, "2": '{"u":{"0":7}}', "3": "42"}
    assert parse_offset_log(V2, "f") == {"clicks": '{"t": {"0": 5}}', "orders": None, "rate": "42"}


def test_the_only_kafka_source_needs_no_name() -> None:
    assert starting_offsets(parse_offset_log(V2, "f"), None, "f") == ("clicks", '{"t":{"0":5}}')
    assert starting_offsets(parse_offset_log(V1, "f"), "2", "f") == ("2", '{"u":{"0":7}}')


def test_what_is_beside_the_offsets_is_left_out() -> None:
    end = first_end(
        nested_offsets({TopicPartition("t", 0): 5}, {"t": "mZ0x-_"}, "MkU3"),
        nested_offsets({TopicPartition("t", 0): 2}, {"t": "mZ0x-_"}, "MkU3"),
    )
    for text in (f"v1\n{{}}\n{json.dumps(end)}", f"v2\n{{}}\n0:{json.dumps(end)}"):
        assert starting_offsets(parse_offset_log(text, "f"), None, "f") == ("0", '{"t":{"0":5}}')


@pytest.mark.parametrize(
    ("text", "source", "reason"),
    [
        (V1, None, r"several Kafka sources: choose one with --source \(0 reads t; 2 reads u\)"),
        (V1, "7", "no source '7', only 0, 1, 2, 3"),
        (V1, "1", "source 1 is not a Kafka source that has begun"),
        (V1, "3", "source 3 is not a Kafka source"),
        ("v1\n{}\n42", None, "no Kafka source that has begun, among 1 sources"),
        ("v1\n{}\n{}", None, "no Kafka source that has begun"),
        ('v1\n{}\n{"began at:{}":{}}', None, "no Kafka source that has begun"),
        ('v1\n{}\n{"t":{"0":true}}', None, "no Kafka source that has begun"),
        ('v1\n{}\n{"t":{"x":1}}', None, "no Kafka source that has begun"),
        ('v1\n{}\n{"t":5}', None, "no Kafka source that has begun"),
        ("v3\n{}\n{}", None, "has version 'v3'; known are v1 and v2"),
        ("", None, "has version ''"),
        ("v1", None, "ends before its first source"),
        ("v2\n{}\nclicks", None, "a line without a source's name"),
        (KAFKA + '\n{"u":{"0":7,"1":', None, "within the offset of source 1: it is damaged; .* with --batch"),
        (KAFKA[:-2], "0", "within the offset of source 0: it is damaged"),
        ("v1\n{}\n" + "[" * 100_000, None, "it is damaged"),
    ],
)
def test_what_cannot_be_taken_is_named(text: str, source: str | None, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        starting_offsets(parse_offset_log(text, "offsets/3"), source, "offsets/3")


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_last_committed_batch_counts(tmp_path: Path, prefix: str) -> None:
    """Batch 10 follows batch 9, and batch 11 was only planned."""
    folder = write(tmp_path / "a b", {9: KAFKA, 10: KAFKA.replace("5", "6"), 11: KAFKA.replace("5", "7")}, [9, 10])
    found = read_checkpoint(f"{prefix}{folder}/")
    assert (found.planned, found.committed, found.choose(None)) == ((9, 10, 11), (9, 10), 10)
    assert found.read(10) == {"0": '{"t":{"0":6}}'}
    assert found.choose(11) == 11
    with pytest.raises(OptionError, match=r"does not have batch 3 \(any more, or yet\): it has 9 to 11"):
        found.choose(3)


def test_a_query_that_committed_nothing_has_no_place(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: KAFKA}, [])
    with pytest.raises(OptionError, match="has no committed batch.*--batch 0"):
        read_checkpoint(str(folder)).choose(None)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/nowhere", "/nowhere is not the checkpoint of a streaming query: .* checkpointLocation"),
        ("gopher://x/y", "gopher://x/y cannot be read"),
        ("dbfs:/x", "dbfs:/x cannot be read"),
    ],
)
def test_what_is_no_checkpoint_is_named(location: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read_checkpoint(location)


def test_no_password_of_an_address_is_shown() -> None:
    with pytest.raises(OptionError, match=r"checkpoint s3://\*\*\*@bucket/x y cannot be read") as caught:
        read_checkpoint("s3://KEY:canary/4711@bucket/x y")
    assert "canary" not in str(caught.value)
    with pytest.raises(OptionError, match="gopher://container@account/x cannot"):
        read_checkpoint("gopher://container@account/x")  # as abfss:// has it


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    found = read_checkpoint(str(write(tmp_path, {0: KAFKA}, [0])))
    (tmp_path / "offsets" / "0").unlink()
    with pytest.raises(OptionError, match="offsets/0 cannot be read"):
        found.read(0)
