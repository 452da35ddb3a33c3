"""transport.py: which kernels are asked to sleep until more bytes are there."""

from __future__ import annotations

import pytest

from tolerant_client.stock.transport import heeds_low_water


@pytest.mark.parametrize(
    ("platform", "release", "heeds"),
    [
        ("linux", "3.10.0-1160.el7.x86_64", False),  # caps nothing, grows nothing: a large frame would stall
        ("linux", "4.17.19", False),
        ("linux", "4.18.0-553.el8", True),
        ("linux", "6.8.0-31-generic", True),
        ("linux", "unknown", False),
        ("darwin", "23.1.0", False),
    ],
)
def test_a_low_water_mark_is_set_only_where_buffers_grow_to_it(platform: str, release: str, heeds: bool) -> None:
    assert heeds_low_water(platform, release) is heeds
