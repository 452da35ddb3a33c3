"""Codecs: round trips, Kafka's framings, and bounds that no input exceeds."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolerant_client.records import codecs

CODECS = (codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
PACKED = CODECS[1:]


@given(codec=st.sampled_from(CODECS), data=st.binary(max_size=100_000))
def test_what_was_compressed_comes_back(codec: int, data: bytes) -> None:
    assert bytes(codecs.decompress(codec, codecs.compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_large_data_comes_back(codec: int) -> None:
    data = bytes(range(256)) * 8000
    assert bytes(codecs.decompress(codec, memoryview(codecs.compress(codec, data)))) == data


def test_no_codec_copies_nothing() -> None:
    data = b"as it is"
    assert codecs.decompress(codecs.NONE, data).obj is data


@pytest.mark.parametrize("codec", PACKED)
def test_more_than_the_bound_is_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = codecs.compress(codec, bytes(100_000))
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", 100_000)
    assert len(codecs.decompress(codec, data)) == 100_000
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", 99_999)
    with pytest.raises(codecs.CodecError, match="decompresses to"):
        codecs.decompress(codec, data)


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_by_its_ratio(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED_BYTES", 2**40)
    bomb = codecs.compress(codec, bytes(codecs.RATIO_FLOOR + 1))
    if len(bomb) * codecs.MAX_RATIO < codecs.RATIO_FLOOR:
        with pytest.raises(codecs.CodecError, match="decompresses to"):
            codecs.decompress(codec, bomb)
    assert len(codecs.compress(codec, bytes(codecs.RATIO_FLOOR)))


@given(
    codec=st.sampled_from(PACKED),
    data=st.binary(min_size=1, max_size=300),
    cut=st.integers(min_value=1, max_value=20),
)
def test_truncated_data_never_yields_a_part(codec: int, data: bytes, cut: int) -> None:
    packed = codecs.compress(codec, data)[:-cut]
    try:
        assert bytes(codecs.decompress(codec, packed)) in (data, b"")
    except codecs.CodecError as error:
        assert "damaged" in str(error) or "snappy" in str(error)


@given(codec=st.sampled_from(PACKED), data=st.binary(max_size=200))
def test_garbage_raises_only_codec_error(codec: int, data: bytes) -> None:
    try:
        codecs.decompress(codec, data)
    except codecs.CodecError:
        pass


@given(data=st.binary(max_size=200))
def test_garbage_after_a_xerial_header_raises_only_codec_error(data: bytes) -> None:
    try:
        codecs.decompress(codecs.SNAPPY, b"\x82SNAPPY\x00" + data)
    except codecs.CodecError:
        pass


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(codecs.CodecError, match="unknown codec 5"):
        codecs.decompress(5, b"x")
    with pytest.raises(codecs.CodecError, match="unknown codec 7"):
        codecs.compress(7, b"x")
    assert codecs.codec_name(9) == "unknown codec 9"


def test_snappy_is_read_with_and_without_the_xerial_framing() -> None:
    data = b"librdkafka writes one raw block, Java writes blocks in a frame" * 10
    raw = bytes(cramjam.snappy.compress_raw(data))
    framed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(raw)) + raw
    assert bytes(codecs.decompress(codecs.SNAPPY, raw)) == data
    assert bytes(codecs.decompress(codecs.SNAPPY, framed)) == data
    assert bytes(codecs.decompress(codecs.SNAPPY, framed + framed)) == data + data


def test_lz4_frames_have_independent_blocks() -> None:
    frame = codecs.compress(codecs.LZ4, b"KafkaLZ4BlockInputStream reads no linked blocks" * 9000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


def test_an_lz4_block_that_does_not_pack_lies_in_its_frame_as_it_is() -> None:
    noise = random.Random(0).randbytes(600_000)
    for data in (noise, noise + bytes(300_000), bytes(262_144), noise[:262_144], noise[:262_145]):
        frame = codecs.compress(codecs.LZ4, data)
        assert len(frame) < len(data) + 40
        assert bytes(codecs.decompress(codecs.LZ4, frame)) == data


@pytest.mark.parametrize(("codec", "levels"), [(codecs.GZIP, (1, 9)), (codecs.LZ4, (1, 12)), (codecs.ZSTD, (1, 19))])
def test_levels_change_how_close_data_is_packed(codec: int, levels: tuple[int, int]) -> None:
    words = [random.Random(number).randbytes(6).hex().encode() for number in range(200)]
    data = b" ".join(random.Random(0).choices(words, k=20_000))
    fast, small = (codecs.compress(codec, data, level) for level in levels)
    assert len(small) < len(fast)
    assert bytes(codecs.decompress(codec, fast)) == bytes(codecs.decompress(codec, small)) == data


def test_gzip_is_what_python_reads() -> None:
    assert gzip.decompress(codecs.compress(codecs.GZIP, b"plain gzip")) == b"plain gzip"


@pytest.mark.parametrize(
    ("data", "checksum"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)]
)
def test_xxh32_is_the_published_one(data: bytes, checksum: int) -> None:
    assert codecs._xxh32(data) == checksum
