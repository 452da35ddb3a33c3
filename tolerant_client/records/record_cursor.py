"""Reads the fields of records of message format v2 one by one; invalid data raises RecordBatchError.

Lengths and deltas are varints (org.apache.kafka.common.utils.ByteUtils): zigzag, so that small negative numbers are
short too, with seven bits a byte, the lowest first.  varint_columns.py reads and makes many at once.
"""

from __future__ import annotations

from tolerant_client.errors import RecordBatchError

Headers = tuple[tuple[str, bytes | None], ...]


class RecordCursor:
    """A read position in a records section that never leaves it."""

    __slots__ = ("_base_offset", "_section", "end", "position")

    def __init__(self, section: memoryview, base_offset: int) -> None:
        self._section = section
        self._base_offset = base_offset
        self.position = 0
        self.end = len(section)

    def error(self, reason: str) -> RecordBatchError:
        return RecordBatchError(f"{reason} (byte {self.position} of the records)", self._base_offset)

    def skip(self, count: int) -> None:
        if count > self.end - self.position:
            raise self.error("record cut short")
        self.position += count

    def varint(self, bits: int = 32) -> int:
        """A number of 32 bits in at most 5 bytes, or of 64 bits in at most 10."""
        if self.position < self.end and (byte := self._section[self.position]) < 0x80:
            self.position += 1
            return (byte >> 1) ^ -(byte & 1)
        code = 0
        for shift in range(0, bits + 1, 7):
            self.skip(1)
            byte = self._section[self.position - 1]
            code |= (byte & 0x7F) << shift
            if byte < 0x80:
                if code >> bits:
                    break
                return (code >> 1) ^ -(code & 1)
        raise self.error("bad varint")

    def data(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            if length != -1:
                raise self.error(f"field length {length}")
            return None
        start = self.position
        self.skip(length)
        return bytes(self._section[start : self.position])

    def headers(self, offset: int, most: int) -> Headers:
        count = self.varint()
        if not 0 <= count <= self.end - self.position:
            raise self.error(f"header count {count}")
        if count > most:
            why = f"the record at offset {offset} has {count} headers, but at most {most} are read per record"
            spark = "a Spark query reads it with a larger maxBytesInFlight, or without includeHeaders"
            where = f"offset {offset + 1} (seek() of a consumer, startingOffsets of a Spark query)"
            raise RecordBatchError(f"{why}; {spark}; to skip it, continue at {where}", self._base_offset)
        if not count:
            return ()
        headers = []
        shared: dict[tuple[bytes, bytes | None], tuple[str, bytes | None]] = {}  # most headers are equal
        for _ in range(count):
            key = self.data()
            if key is None:
                raise self.error("header without a key")
            pair = key, self.data()
            header = shared.get(pair)
            if header is None:
                header = shared[pair] = key.decode("utf-8", "surrogateescape"), pair[1]
            headers.append(header)
        return tuple(headers)


def put_varint(buffer: bytearray, value: int) -> None:
    """Appends a number of 32 or 64 bits."""
    code = (value << 1) ^ (value >> 63)
    while code >= 0x80:
        buffer.append(code & 0x7F | 0x80)
        code >>= 7
    buffer.append(code)
