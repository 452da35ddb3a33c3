"""What a copier with translated offsets does if its map is deleted while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest

from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.engine.translated import offsets as module
from tolerant_client.mirror.engine.translated.offsets import TranslatedOffsets


@pytest.mark.parametrize("finding", ["the map was deleted", None, Errors.KafkaConnectionError("away")])
def test_a_map_that_is_gone_stops_all_partitions_with_the_words_of_a_start(
    monkeypatch: pytest.MonkeyPatch, finding: str | None | Exception
) -> None:
    looks: list[Any] = []
    stopped: list[TolerantClientError] = []

    async def lost_map(*_: Any) -> str | None:
        looks.append(now)
        if isinstance(finding, Exception):
            raise finding
        return finding

    def spawn(step: Any, *_: Any) -> None:
        with pytest.raises(StopIteration):
            step().send(None)

    now = 0.0
    link = SimpleNamespace(
        source=None,
        target=None,
        name="dr",
        clock=lambda: now,
        control=SimpleNamespace(value=None),
        tasks=SimpleNamespace(spawn=spawn, notify=lambda: None),
    )
    monkeypatch.setattr(module, "lost_map", lost_map)
    strategy: Any = TranslatedOffsets.__new__(TranslatedOffsets)
    strategy.__dict__.update(
        _link=link,
        _next_clearing=1e9,
        _next_map_look=5.0,
        _map_lost=0,
        partitions={n: SimpleNamespace(stop=stopped.append) for n in range(2)},
    )
    is_gone = isinstance(finding, str)
    for now in (1.0, 6.0, 7.0, 9.0, 10.0):
        strategy.watch()
    assert looks == ([6.0, 9.0] if is_gone else [6.0]) and not stopped, "a broker that has just started may not know it"
    for now in (12.0, 17.0):
        strategy.watch()
    assert looks == ([6.0, 9.0, 12.0, 17.0] if is_gone else [6.0, 17.0])
    assert [error.args[0] for error in stopped] == ([finding] * 4 if is_gone else [])
    assert all(isinstance(error, TargetDivergedError) for error in stopped)
