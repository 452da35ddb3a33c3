"""What the control is told of logs before their first record, also where it is the same as of the topics before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.identical import begun as module
from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
FORMER, ANEW = TopicIds("s", "former"), TopicIds("s", "anew")
KNOWN = LinkControl(begun={FIRST: FORMER, SECOND: FORMER}, copied={FIRST: 70, SECOND: 90}, log_starts={FIRST: 70})


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    watch = SimpleNamespace(link="dr", value=KNOWN, updates=0)

    async def update(_: object, link: str, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
        watch.value, watch.updates = change(watch.value), watch.updates + 1
        return watch.value  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "update_control", update)
    return watch


def write(watch: Any, *args: Any, **named: Any) -> LinkControl:
    nobody: Any = None
    asyncio.run(Begun(nobody, watch).write(*args, **named))
    return watch.value  # type: ignore[no-any-return]


def test_a_log_made_anew_begins_and_was_copied_where_the_former_one_did_and_was(watch: Any) -> None:
    control = write(watch, {FIRST: ANEW}, {FIRST: 70}, log_starts={FIRST: 70})
    assert control == replace(KNOWN, begun={FIRST: ANEW, SECOND: FORMER})


def test_what_the_control_says_already_is_not_written_again(watch: Any) -> None:
    assert write(watch, {FIRST: FORMER}, {FIRST: 70, SECOND: 90}, log_starts={FIRST: 70}) == KNOWN
    assert watch.updates == 0
