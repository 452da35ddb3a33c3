"""The prefix of a schema registry: split off where it exists; other values stay unchanged."""

from __future__ import annotations

import struct

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.reading.schema_framing import split_framing

payloads = (
    st.none()
    | st.binary(max_size=12)
    | st.builds(
        lambda schema_id, rest: b"\0" + struct.pack(">i", schema_id) + rest,
        st.integers(-(2**31), 2**31 - 1),
        st.binary(max_size=9),
    )
)


@given(values=st.lists(payloads, max_size=20), skipped=st.integers(0, 3))
def test_framed_payloads_are_split_and_others_are_not(values: list[bytes | None], skipped: int) -> None:
    column = pa.array(values, pa.binary()).slice(skipped)
    bodies, ids = split_framing(column)
    assert (bodies.type, ids.type) == (pa.binary(), pa.int32())
    expected = []
    for value in values[skipped:]:
        if value is not None and len(value) >= 5 and value[0] == 0:
            expected.append((value[5:], struct.unpack(">i", value[1:5])[0]))
        else:
            expected.append((value, None))
    assert list(zip(bodies.to_pylist(), ids.to_pylist())) == expected
