"""The fault values, their schedules, and their effect on a stream of responses, however its bytes arrive."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataResponse

from tolerant_client.testing import (
    BadLength,
    Corrupt,
    Drop,
    Duplicate,
    ErrorCode,
    Fault,
    Reorder,
    Reset,
    RewriteCorrelationId,
    Stale,
    Stall,
    Truncate,
)
from tolerant_client.testing.faults import FaultPlan
from tolerant_client.testing.responses import NotEnough, Request, read_request, with_error
from tolerant_client.testing.streams import Abort, FaultState, Piece, RequestStream, ResponseStream, Wait

FETCH, PRODUCE, METADATA, API_VERSIONS = 1, 0, 3, 18


def hits(fault: Fault, responses: int, seed: int = 0, api: str = "Fetch") -> list[int]:
    """The indexes of the responses that are hit."""
    plan = FaultPlan([fault], seed)
    return [n for n in range(responses) if plan.choose(api, 100, True)]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Drop(api="fetch"), "api is 'fetch', not a Kafka API"),
        (lambda: Drop(probability=1.5), "probability is 1.5: it must be between 0 and 1"),
        (lambda: Drop(probability=0.5, count=1), "either probability or a schedule"),
        (lambda: Drop(seed=1), "seed without probability"),
        (lambda: Drop(count=-1), "count is -1"),
        (lambda: Drop(after=-1), "after is -1"),
        (lambda: Drop(every=0), "every is 0"),
        (lambda: RewriteCorrelationId(0), "changes nothing"),
        (lambda: RewriteCorrelationId(1 << 32), "changes nothing"),
        (lambda: Truncate(0), "cut is 0"),
        (lambda: BadLength(1 << 31), "32-bit"),
        (lambda: Corrupt("header"), "where is 'header'"),  # type: ignore[arg-type]
        (lambda: Stall(-1.0), "seconds is -1.0"),
        (lambda: Stall(float("nan")), "seconds is nan"),
        (lambda: ErrorCode(0), "not 0"),
        (lambda: ErrorCode(40000), "16-bit"),
        (lambda: ErrorCode("OFFSET_OUT_OF_RANGE"), "errno of an error"),  # type: ignore[arg-type]
    ],
)
def test_impossible_values_are_refused(make: Callable[[], Fault], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_one_fault_without_a_list_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"give a list: faults=\[Drop"):
        FaultPlan(Drop(), 0)  # type: ignore[arg-type]


def test_what_is_no_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a fault"):
        FaultPlan(["Drop"], 0)  # type: ignore[list-item]


def test_faults_are_values() -> None:
    fault = Stall(0.5, api="Fetch", count=2)
    assert fault == Stall(0.5, api="Fetch", count=2)
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert hash(fault) == hash(Stall(0.5, api="Fetch", count=2))


def test_schedule_is_exact() -> None:
    assert hits(Drop(count=2, after=3, every=4), 20) == [3, 7]
    assert hits(Drop(after=18), 20) == [18, 19]
    assert hits(Drop(count=0), 20) == []


def test_seed_replays_and_another_seed_differs() -> None:
    fault = Drop(probability=0.3)
    assert hits(fault, 200, seed=1) == hits(fault, 200, seed=1)
    assert hits(fault, 200, seed=1) != hits(fault, 200, seed=2)
    own = Drop(probability=0.3, seed=9)
    assert hits(own, 200, seed=1) == hits(own, 200, seed=2)
    assert 30 <= len(hits(fault, 200, seed=1)) <= 90


def test_faults_of_the_same_kind_draw_independently() -> None:
    plan = FaultPlan([Drop(api="Fetch", probability=0.5), Drop(api="Produce", probability=0.5)], 0)
    first = [plan.choose("Fetch", 1, False) is not None for _ in range(64)]
    second = [plan.choose("Produce", 1, False) is not None for _ in range(64)]
    assert first != second


@pytest.mark.parametrize("api", ["ApiVersions", "SaslHandshake", "SaslAuthenticate"])
def test_connection_set_up_is_spared_unless_named(api: str) -> None:
    assert hits(Drop(), 3, api=api) == []
    assert hits(Drop(api=api), 3, api=api) == [0, 1, 2]


def test_first_fault_takes_the_response_and_the_second_does_not_count_it() -> None:
    first, second = Drop(count=1), Duplicate(count=1, after=1)
    plan = FaultPlan([first, second], 0)
    chosen = [plan.choose("Fetch", 1, False) for _ in range(4)]
    assert [turn and turn.fault for turn in chosen] == [first, None, second, None]


def test_fault_that_is_given_back_is_due_at_once() -> None:
    plan = FaultPlan([Reorder(count=1, after=1, every=5)], 0)
    assert plan.choose("Fetch", 1, False) is None
    turn = plan.choose("Fetch", 1, False)
    assert turn is not None
    turn.give_back()
    assert plan.choose("Fetch", 1, False) is turn
    assert plan.choose("Fetch", 1, False) is None


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


class Wire:
    """A ResponseStream with requests pending for correlation ids 0..n-1, and all pieces that came out of it."""

    def __init__(self, *faults: Fault, requests: int = 20, api_key: int = FETCH, api_version: int = 11) -> None:
        self.pending = {n: Request(api_key, api_version, n, True) for n in range(requests)}
        self.state = FaultState(faults, seed=0)
        self.stream = ResponseStream(self.pending, self.state)
        self.out: list[Piece] = []

    def feed(self, data: bytes, step: int = 1 << 30, now: float = 0.0) -> Wire:
        for begin in range(0, len(data), step):
            self.keep(self.stream.feed(memoryview(data[begin : begin + step]), now))
        return self

    def keep(self, pieces: list[Piece]) -> None:
        self.out += [bytes(piece) if isinstance(piece, memoryview) else piece for piece in pieces]

    @property
    def data(self) -> bytes:
        return b"".join(piece for piece in self.out if isinstance(piece, bytes | bytearray))

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        found, position, data = [], 0, self.data
        while position < len(data):
            size, correlation_id = struct.unpack_from(">ii", data, position)
            assert position + 4 + size <= len(data)
            found.append((correlation_id, data[position + 8 : position + 4 + size]))
            position += 4 + size
        return found


THREE = frame(0, b"zero") + frame(1, bytes(range(200)) * 3) + frame(2, b"")

BY_FAULT: list[tuple[Fault, Callable[[list[tuple[int, bytes]]], bool]]] = [
    (Drop(count=1, after=1), lambda f: [i for i, _ in f] == [0, 2]),
    (Duplicate(count=1, after=1), lambda f: [i for i, _ in f] == [0, 1, 1, 2] and f[1] == f[2]),
    (Reorder(count=1, after=1), lambda f: [i for i, _ in f] == [0, 2, 1] and len(f[2][1]) == 600),
    (RewriteCorrelationId(count=1, after=1), lambda f: [i for i, _ in f] == [0, 2, 2] and len(f[1][1]) == 600),
    (RewriteCorrelationId(-2, count=1, after=1), lambda f: [i for i, _ in f] == [0, -1, 2]),
    (Stale(count=1), lambda f: f[0] == f[1] == (0, b"zero") and [i for i, _ in f] == [0, 0, 1, 2]),
    (Truncate(count=1, after=1), lambda f: f[1][1] == (bytes(range(200)) * 3)[:300] and len(f) == 3),
    (Truncate(10_000, count=1, after=1), lambda f: f[1] == (1, b"") and len(f) == 3),
    (Corrupt(count=1, after=1), lambda f: changed(f[1][1])[0] >= 256),
    (Corrupt("body", count=1, after=1), lambda f: len(changed(f[1][1])) == 1),
    (Stall(0.5, count=1, after=1), lambda f: [i for i, _ in f] == [0, 1, 2]),
]


def test_fault_that_lasts_hits_all_that_follows_on_the_connection() -> None:
    shifted = Wire(RewriteCorrelationId(5, count=1, after=1, lasts=True)).feed(THREE)
    assert [correlation_id for correlation_id, _ in shifted.frames] == [0, 6, 7]
    dropped = Wire(Drop(count=1, after=1, lasts=True)).feed(THREE, step=3)
    assert [correlation_id for correlation_id, _ in dropped.frames] == [0]
    assert dropped.state.injected == {"Fetch/Drop": 2}


def test_bad_length_is_all_that_is_wrong() -> None:
    wire = Wire(BadLength(count=1, after=1)).feed(THREE)
    assert wire.data == THREE.replace(struct.pack(">i", 604), struct.pack(">i", -7))


def changed(body: bytes) -> list[int]:
    return [n for n, (a, b) in enumerate(zip(body, bytes(range(200)) * 3, strict=True)) if a != b]


@pytest.mark.parametrize(("fault", "is_done"), BY_FAULT, ids=lambda v: v.name if isinstance(v, Fault) else "")
@pytest.mark.parametrize("step", [1, 3, 7, 8, 9, 100, 1 << 20])
def test_fault_is_done_once_however_the_bytes_arrive(fault: Fault, is_done: Callable[..., bool], step: int) -> None:
    wire = Wire(fault).feed(THREE, step)
    assert is_done(wire.frames)
    assert wire.state.injected == {f"Fetch/{fault.name}": 1}
    assert wire.state.responses == {"Fetch": 3}


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_responses_that_no_fault_takes_are_not_changed(bodies: list[bytes], steps: list[int]) -> None:
    data = b"".join(frame(n, body) for n, body in enumerate(bodies))
    for faults in ([], [Drop(count=0)], [Stale(count=0)]):
        wire = Wire(*faults)
        position = turn = 0
        while position < len(data):
            step = steps[turn % len(steps)]
            wire.feed(data[position : position + step])
            position, turn = position + step, turn + 1
        assert wire.data == data
        assert wire.state.responses.total() == len(bodies)


def test_whole_frames_pass_as_one_view_of_the_buffer() -> None:
    wire = Wire(Drop(count=0))
    data = memoryview(THREE)
    (piece,) = wire.stream.feed(data, 0.0)
    assert isinstance(piece, memoryview) and piece.obj is data.obj and len(piece) == len(data)


def test_stall_waits_before_the_response() -> None:
    wire = Wire(Stall(0.5, count=1, after=1)).feed(THREE)
    place = wire.out.index(Wait(0.5))
    before = b"".join(piece for piece in wire.out[:place] if isinstance(piece, bytes))
    assert before == frame(0, b"zero")


def test_reset_ends_the_stream() -> None:
    wire = Wire(Reset(count=1, after=1)).feed(THREE).feed(THREE)
    assert wire.out[-1] == Abort()
    assert wire.frames == [(0, b"zero")]


def test_reorder_that_nothing_overtakes_is_no_reorder() -> None:
    wire = Wire(Reorder(count=1)).feed(frame(0, b"a"), now=10.0)
    assert wire.out == [] and wire.stream.deadline == pytest.approx(10.05)
    wire.keep(wire.stream.expire(10.04))
    assert wire.out == []
    wire.keep(wire.stream.expire(10.06))
    assert wire.frames == [(0, b"a")] and wire.state.injected == {}
    wire.feed(frame(1, b"b") + frame(2, b"c") + frame(3, b"d"))
    assert [i for i, _ in wire.frames] == [0, 2, 1, 3]
    assert wire.state.injected == {"Fetch/Reorder": 1}


def test_held_response_does_not_cut_into_the_one_that_overtakes() -> None:
    wire = Wire(Reorder(count=1)).feed(frame(0, b"a"), now=0.0).feed(frame(1, b"b" * 100)[:50], now=0.0)
    wire.keep(wire.stream.expire(1.0))
    wire.feed(frame(1, b"b" * 100)[50:])
    assert [i for i, _ in wire.frames] == [1, 0]


def test_responses_to_unknown_requests_are_left_alone() -> None:
    wire = Wire(Drop(), requests=0).feed(THREE)
    assert wire.data == THREE
    assert wire.state.responses == {"unknown": 3}


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_bytes_that_are_no_frames_pass(step: int) -> None:
    data = b"\xff\xff\xff\xff" + bytes(100)
    assert Wire(Drop()).feed(data, step).data == data


def request(api_key: int, version: int, correlation_id: int, rest: bytes = b"", client_id: bytes = b"me") -> bytes:
    head = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id
    return struct.pack(">i", len(head) + len(rest)) + head + rest


def produce(version: int, correlation_id: int, acks: int, client_id: bytes = b"me", tid: bytes | None = None) -> bytes:
    body = b""
    if version >= 9:
        body += b"\x01\x00\x02ab" if correlation_id % 2 else b"\x00"
        body += b"\x00" if tid is None else varint(len(tid) + 1) + tid
    elif version >= 3:
        body += struct.pack(">h", -1) if tid is None else struct.pack(">h", len(tid)) + tid
    return request(PRODUCE, version, correlation_id, body + struct.pack(">h", acks) + bytes(50), client_id)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("step", [1, 2, 13, 64, 65, 5000])
@pytest.mark.parametrize("version", [0, 2, 3, 8, 9, 11])
@pytest.mark.parametrize("name", [b"", b"me", b"x" * 300])
def test_requests_are_remembered_except_produce_without_acks(step: int, version: int, name: bytes) -> None:
    tid = name or None
    data = (
        produce(version, 1, 0, name, tid)
        + produce(version, 2, -1, name, tid)
        + request(FETCH, 11, 3, bytes(20))
        + produce(version, 4, 0, name, tid)
        + produce(version, 5, 1, name, tid)
        + request(API_VERSIONS, 0, 6)
    )
    pending: dict[int, Request] = {}
    stream = RequestStream(pending)
    out = b""
    for begin in range(0, len(data), step):
        out += b"".join(bytes(p) for p in stream.feed(memoryview(data[begin : begin + step])))  # type: ignore[arg-type]
    assert out == data
    assert sorted(pending) == [2, 3, 5, 6]
    assert pending[3] == Request(FETCH, 11, 3, True)


def test_head_of_a_request_needs_its_bytes_up_to_the_acks() -> None:
    data = produce(9, 2, 0, b"me", b"tid")
    enough = len(data) - 50
    assert not read_request(data[:enough]).expects_response
    for size in range(4, enough):
        with pytest.raises(NotEnough):
            read_request(data[:size])


def metadata_frame(version: int) -> bytes:
    partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
        version=version, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
    )
    topic = MetadataResponse.MetadataResponseTopic(version=version, name="t", partitions=[partition])
    response = MetadataResponse(version=version, topics=[topic])
    response.with_header(correlation_id=7)
    return bytes(response.encode(header=True, framed=True))


@pytest.mark.parametrize("version", [1, 5, 9, 12])
def test_error_code_of_metadata_is_set_at_the_topic(version: int) -> None:
    changed_frame = with_error(metadata_frame(version), METADATA, version, 5)
    assert changed_frame is not None
    response: Any = MetadataResponse.decode(changed_frame, version=version, header=True, framed=True)
    assert response.header.correlation_id == 7
    assert response.topics[0].error_code == 5
    assert response.topics[0].partitions == []


def test_response_that_cannot_be_decoded_passes_unhit() -> None:
    wire = Wire(ErrorCode(5, count=1), api_version=999).feed(THREE)
    assert wire.data == THREE
    assert wire.state.injected == {}
