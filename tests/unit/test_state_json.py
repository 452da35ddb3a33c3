"""Whatever anybody wrote to the mirror's own topics is read within bounds, or refused as documented."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from tolerant_client.errors import OffsetMapError, OptionError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.follow.mm2_records import decode_checkpoint
from tolerant_client.mirror.state.claims import Claim
from tolerant_client.mirror.state.claims_record import ClaimsRecord, Holder, Waiting, decode_claims, encode_claims
from tolerant_client.mirror.state.claims_topic import claimed_by
from tolerant_client.mirror.state.control_record import decode_control, encode_control
from tolerant_client.mirror.state.health import utc
from tolerant_client.mirror.state.ledger import decode_row, encode_row, lost_offsets
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.mm2_positions import decode_position
from tolerant_client.mirror.state.offset_map import CommittedRows, MapRow, OffsetMap, RowKey, Run
from tolerant_client.mirror.state.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    TopicNames,
)
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicCreation, TopicFilter
from tolerant_client.records.record_batch import Record, encode_batch, read_header
from tolerant_client.state_json import MOST, MOST_PARTITIONS, Moment, Whole, decoded, named_partition

P = TopicPartition("orders", 3)
HOLDER = Holder("h", "dr", "run", "m1", 1, 1_700_000_000_000)
ROW = MapRow(RowKey(P, 0), "copy", ("a", "b"), 20, 1, (Run(0, 0, 5), Run(7, 9, 3)))
NAMED = LinkTopics(
    TopicFilter(("orders", "a.*")),
    TopicNames(IdentityReplicationPolicy(source_alias="A"), "A"),
    "B",
    also=(TopicFilter(),),
)
SAMPLES: dict[str, bytes] = {
    "row": encode_row(LedgerRow(1, "dr", "orders", 3, 4, 9, "retention", "", "id")).value or b"",
    "control": encode_control(
        LinkControl(
            frozenset({"orders"}), 5, False, False, 1, "id", NAMED.to_json(), (4,), {P: 1}, {P: 2}, {"new": [1]}, False,
            frozenset({P}), {P: TopicIds("a", "b")}, {P: 9},
        ),
        1,
    ),
    "claims": encode_claims(ClaimsRecord(HOLDER, 1, frozenset({P}), frozenset({P}), {P: Waiting("why", 1)}, 1)),
    "topics": NAMED.to_json().encode(),
    "map": ROW.encode(),
    "names": TopicNames(DefaultReplicationPolicy("_"), "A").to_json().encode(),
    "creation": LinkTopics(creation=TopicCreation(3, ("a.*",))).to_json().encode(),
    "position": b'{"offset": 41}',
}  # fmt: skip

NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**40, -(10**400), 10**4299, 2**63 - 1, 2**63, 2**31 - 1, 2**31, -1, 20_000_000]),
    st.floats(),
    st.text(st.characters(exclude_categories=()), max_size=5),
    st.sampled_from(
        ["\ud800", "orders-3", "(" * 5_000, "a{99999999999999999999}", "[", "NaN", "", "\x1b[2K", "9" * 5_000, "\u0663"]
    ),
)
JSON = st.recursive(
    NASTY,
    lambda deeper: st.lists(deeper, max_size=4) | st.dictionaries(st.text(max_size=3), deeper, max_size=4),
    max_leaves=12,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(place for name, child in children for place in places(child, (*at, name)))]


def with_another(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = with_another(copy[at[0]], at[1:], value)
    return copy


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """JSON of any kind (as Python writes it, with NaN), mostly a mirror's own documents with one or two values exchanged."""
    document = json.loads(draw(st.sampled_from(sorted(SAMPLES.values()))))
    for _ in range(draw(st.integers(0, 2))):
        document = with_another(document, draw(st.sampled_from(places(document))), draw(JSON))
    return draw(
        st.sampled_from(
            [json.dumps(document).encode(), json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")]
        )
    )


def read_row(data: bytes) -> None:
    """A row is always reported: what is summed, shown and encoded of it is within bounds."""
    row = decode_row(Record(1, MOST, None, data))
    assert encode_row(row).value and f"{sum(lost_offsets([row] * 100).values()):,}"
    assert utc(row.time_ms) and str(row).encode()


def read_control(data: bytes) -> None:
    try:
        control = decode_control(data)
    except OptionError as error:
        assert len(str(error)) < 500
        return
    assert decode_control(encode_control(control, 1)) == control
    assert len(control.begun) <= MOST_PARTITIONS
    if control.topics is not None:
        read_topics(control.topics.encode())


def read_claims(data: bytes) -> None:
    record = decode_claims(b"h", data)
    if record is not None:
        assert decode_claims(b"h", encode_claims(record)) == record
        assert str(claimed_by(P, Claim(P, record.holder, 1, 0))).encode()
        assert all(utc(wait.since_ms) for wait in record.waiting.values())


def read_topics(data: bytes) -> None:
    try:
        topics = LinkTopics.from_json(data.decode("utf-8", "replace"))
    except OptionError as error:
        assert len(str(error)) < 3_000, "only a part of it is quoted"
        return
    assert LinkTopics.from_json(topics.to_json()) == topics
    topics.writes("orders")


def read_names(data: bytes) -> None:
    try:
        names = TopicNames.from_json(data.decode("utf-8", "replace"))
    except OptionError:
        return
    assert TopicNames.from_json(names.to_json()) == names and names.to_target("orders").encode()


def read_map(data: bytes) -> None:
    for key, value in ((ROW.key.encode(), data), (data, ROW.encode())):
        batch = memoryview(encode_batch([Record(0, 1, key, value)]))
        try:
            ((_, row),) = CommittedRows("map-0").feed(read_header(batch), batch)
        except OffsetMapError:
            continue
        assert row is not None and MapRow.decode(RowKey.decode(row.key.encode()), row.encode()) == row
        assert OffsetMap([row]).translate(5).translated <= MOST


def read_position(data: bytes) -> None:
    for found in (
        decode_position(data, b'{"offset": 1}'),
        decode_position(b'["MirrorSourceConnector", %s]' % data, data),
    ):
        assert found is None or 0 < found[2] <= MOST


@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize(
    "read", [read_row, read_control, read_claims, read_topics, read_names, read_map, read_position]
)
@given(data=documents() | st.binary(max_size=40))
def test_whatever_is_written_ends_as_documented(read: Callable[[bytes], None], data: bytes) -> None:
    read(data)


@pytest.mark.parametrize(
    "read", [read_row, read_control, read_claims, read_topics, read_names, read_map, read_position]
)
@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b'{"a":' * 200_000, b"NaN", b"-Infinity", b"1e999", b"9" * 5_000, b'"\\ud800"', b"\xff\xfe", b""],
)
def test_what_is_nested_deeply_or_no_number_ends_as_documented(read: Callable[[bytes], None], data: bytes) -> None:
    read(data)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_whatever_bytes_come_as_mm2_writes_them_are_refused_with_a_value_error(key: bytes, value: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_checkpoint(key, value)


def test_what_mirrors_write_is_read() -> None:
    """The samples above are valid before their values are exchanged."""
    assert decode_row(Record(0, 1, None, SAMPLES["row"])).until_offset == 9
    assert decode_control(SAMPLES["control"]).begun == {P: TopicIds("a", "b")}
    claims = decode_claims(b"h", SAMPLES["claims"])
    assert claims is not None and claims.names == {P}
    assert LinkTopics.from_json(SAMPLES["topics"].decode()) == NAMED
    assert MapRow.decode(ROW.key, SAMPLES["map"]) == ROW
    key = b'["MirrorSourceConnector",{"cluster":"A","partition":1,"topic":"orders"}]'
    assert decode_position(key, SAMPLES["position"]) == ("A", TopicPartition("orders", 1), 42)


class Number(msgspec.Struct):
    number: Whole


@pytest.mark.parametrize("value", ["true", "1.0", '"1"', "null", "-1", str(2**63), "[1]", "1e2", "9" * 5_000])
def test_no_whole_number_is_refused_without_its_digits(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        decoded(f'{{"number":{value}}}', Number)
    assert value not in str(caught.value).replace(str(MOST), "") or value in ("null", "true")
    assert decoded(f'{{"number":{MOST}}}', Number).number == MOST


def test_texts_and_names_of_partitions_are_those_that_can_be_encoded() -> None:
    assert decoded('["\\ud83d\\ude00 \u00e9"]', list[str]) == ["\U0001f600 \u00e9"]
    assert named_partition("2147483647") == 2**31 - 1
    for wrong in (b'["\\ud83d"]', b"[3]", '["\ud83d"]'.encode("utf-8", "surrogatepass"), b'{"\\ud83d":"a"}'):
        with pytest.raises(ValueError):
            decoded(wrong, list[str])
        with pytest.raises(ValueError):
            decoded(wrong, dict[str, str])
    for digits in ("", "-1", "2147483648", "\u0663", "9" * 5_000, "+1"):
        with pytest.raises(ValueError):
            named_partition(digits)
    for wrong in (b"[NaN]", b"[Infinity]", b"[253370764800000]", b"", None):
        with pytest.raises(ValueError):
            decoded(wrong, list[Moment])


_FIRST_USE = """
import sys, threading
from tolerant_client.mirror.state.topic_filter import LinkTopics

sys.setswitchinterval(1e-6)
together = threading.Barrier(8)

def read() -> None:
    together.wait()
    try:
        LinkTopics.from_json('{"filter": 1}')
    except Exception:
        pass

threads = [threading.Thread(target=read) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_that_read_a_type_for_the_first_time_at_once_crash_nothing() -> None:
    """msgspec alone ends two of three such processes with a segmentation fault."""
    ended = [subprocess.run([sys.executable, "-c", _FIRST_USE], timeout=240, check=False).returncode for _ in range(8)]
    assert ended == [0] * 8
