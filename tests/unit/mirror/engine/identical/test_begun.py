"""What the control records of logs before their first record, even if it equals what it has of the topics before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.identical.begun import Begun
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
FORMER, ANEW = TopicIds("s", "former"), TopicIds("s", "anew")
KNOWN = LinkControl(begun={FIRST: FORMER, SECOND: FORMER}, copied={FIRST: 70, SECOND: 90}, log_starts={FIRST: 70})


@pytest.fixture
def watch() -> Any:
    watch = SimpleNamespace(link="dr", value=KNOWN, updates=0)

    async def update(change: Callable[[LinkControl], LinkControl]) -> LinkControl:
        watch.value, watch.updates = change(watch.value), watch.updates + 1
        return watch.value  # type: ignore[no-any-return]

    watch.update = update
    return watch


def write(
    watch: Any, *args: Any, known: LinkControl = KNOWN, ours: Collection[TopicPartition] = (FIRST, SECOND), **named: Any
) -> LinkControl:
    """The control after the write; nothing was written of partitions that are not `ours` by then, and the result says so."""
    nobody: Any = None
    watch.refused = asyncio.run(Begun(nobody, watch, lambda p: p in ours).write(*args, known=known, **named))
    return watch.value  # type: ignore[no-any-return]


def test_a_log_made_anew_begins_and_was_copied_where_the_former_one_did_and_was(watch: Any) -> None:
    control = write(watch, {FIRST: ANEW}, {FIRST: 70}, log_starts={FIRST: 70})
    assert control == replace(KNOWN, begun={FIRST: ANEW, SECOND: FORMER})


def test_what_the_control_says_already_is_not_written_again(watch: Any) -> None:
    assert write(watch, {FIRST: FORMER}, {FIRST: 70, SECOND: 90}, log_starts={FIRST: 70}) == KNOWN
    assert watch.updates == 0


@pytest.mark.parametrize("known", [LinkControl(), KNOWN], ids=["first start", "later"])
def test_a_process_that_slept_writes_nothing_of_a_log_that_another_has_begun_since(
    watch: Any, known: LinkControl
) -> None:
    """A process was frozen before it recorded its topic or its position: since then another one copies another topic."""
    newer = watch.value = LinkControl(begun={FIRST: ANEW}, copied={FIRST: 40}, log_starts={FIRST: 20})
    old = TopicIds("s", "mine")
    assert write(watch, {FIRST: old}, {FIRST: 70}, log_starts={FIRST: 30}, known=known) == newer
    assert set(watch.refused) == {FIRST}
    if known is KNOWN:
        assert write(watch, {}, {FIRST: 100}, known=known) == newer and set(watch.refused) == {FIRST}


def test_what_another_process_has_begun_alike_is_no_other(watch: Any) -> None:
    control = write(watch, {FIRST: FORMER}, {FIRST: 80}, known=LinkControl())
    assert control == replace(KNOWN, copied={FIRST: 80, SECOND: 90}) and not watch.refused


def test_a_log_start_that_another_process_has_written_since_stays(watch: Any) -> None:
    newer = watch.value = replace(KNOWN, log_starts={FIRST: 90})
    assert write(watch, {FIRST: FORMER}, log_starts={FIRST: 80}, known=KNOWN) == newer and set(watch.refused) == {FIRST}


@pytest.mark.parametrize("ids", [ANEW, FORMER], ids=["created again", "the same, or brokers before 2.8"])
def test_where_the_control_says_nothing_any_more_nobody_has_begun_another_log(watch: Any, ids: TopicIds) -> None:
    """The control topic was deleted under the mirror, with all it had; nothing is recorded of a log that is not begun."""
    watch.value = LinkControl()
    control = write(watch, {FIRST: ids, SECOND: FORMER}, {FIRST: 90}, log_starts={FIRST: 80})
    assert control == LinkControl(begun={FIRST: ids}, copied={FIRST: 90}, log_starts={FIRST: 80}) and not watch.refused
    watch.value = LinkControl()
    assert write(watch, {}, {FIRST: 100}) == LinkControl() and set(watch.refused) == {FIRST}


def test_a_process_of_a_former_life_begins_nothing_in_the_next(watch: Any) -> None:
    later = watch.value = LinkControl(generation=1)
    assert write(watch, {FIRST: ANEW}) == later and set(watch.refused) == {FIRST}


def test_a_record_that_would_be_too_large_is_told_of_those_alone_that_need_one(
    watch: Any,
) -> None:
    async def refuse(*_: Any) -> Any:
        raise Errors.MessageSizeTooLargeError("raise max.message.bytes")

    watch.update = refuse
    assert write(watch, {FIRST: ANEW, SECOND: FORMER}) == KNOWN
    assert watch.refused == {
        FIRST: "the control could not be written: [Error 10] MessageSizeTooLargeError: raise max.message.bytes"
    }


def test_nothing_is_written_of_a_partition_whose_claim_is_over_and_the_others_are(watch: Any) -> None:
    """Even if no ids show that the topic is a different one: brokers before 2.8."""
    control = write(watch, {}, {FIRST: 71, SECOND: 91}, ours=[SECOND])
    assert control == replace(KNOWN, copied={FIRST: 70, SECOND: 91}) and set(watch.refused) == {FIRST}


def test_what_could_not_be_written_does_not_come_later_with_something_else(
    watch: Any,
) -> None:
    nobody: Any = None
    begun = Begun(nobody, watch, lambda p: True)
    update = watch.update

    async def fail(*_: Any) -> Any:
        raise Errors.NotEnoughReplicasError

    async def course() -> None:
        watch.update = fail
        with pytest.raises(Errors.NotEnoughReplicasError):
            await begun.write({}, {FIRST: 71}, known=KNOWN)
        watch.update = update
        await begun.write({SECOND: ANEW}, known=KNOWN)

    asyncio.run(course())
    assert watch.value.copied == {FIRST: 70}
