"""The world of a link, for tests of promotion and failover."""

from __future__ import annotations

import pytest

from support.promotion_world import World, stand_in


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return stand_in(monkeypatch)
