"""What MirrorMaker 2 has copied into a target log: its own positions say it, and records of both logs show it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import EARLIEST, LATEST, READ_COMMITTED
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.engine import copied_by_mm2 as module
from tolerant_client.mirror.engine.copied_by_mm2 import Mm2Copy, copies_of_mm2, find_copy_of_mm2, take_over_first
from tolerant_client.mirror.state.mm2_positions import Mm2Position
from tolerant_client.records.record_batch import Record

P = TopicPartition("A.orders", 0)
WIRE = TopicPartition("orders", 0)
NOTE = "mm2-offsets.A.internal"


class Log:
    """A cluster with one log."""

    file_options = "--config f --flow 'A->B'"

    def __init__(
        self,
        records: Mapping[int, Record],
        start: int = 0,
        stamped: Iterable[range] = (),
        stable: int | None = None,
    ) -> None:
        self.records, self.start, self.end = records, start, max(records, default=start - 1) + 1
        self.stamped = list(stamped)
        self.stable = self.end if stable is None else stable

    def wire_topic(self, topic: str) -> str:
        return topic.removeprefix("A.")

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        ((p, at),) = wanted.items()
        if isolation_level == READ_COMMITTED and at == LATEST:
            return {p: self.stable}
        later = (n for n, record in sorted(self.records.items()) if record.timestamp >= at)
        return {p: self.start if at == EARLIEST else self.end if at == LATEST else next(later, -1)}


@pytest.fixture(autouse=True)
def logs_without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slices(cluster: Log, spans: Any, *, is_committed: bool) -> dict[TopicPartition, LogSlice]:
        ((p, (start, end)),) = spans.items()
        end = min(end, cluster.stable if is_committed else cluster.end)
        found = {n: record for n, record in cluster.records.items() if start <= n < end}
        return {p: LogSlice(max(start, end), found, stamped=cluster.stamped)}

    monkeypatch.setattr(module, "read_slices", slices)


def log(*names: int, at: int = 0, step: int = 1) -> dict[int, Record]:
    """The records of these names, from an offset on."""
    return {at + step * n: Record(at + step * n, 1_000 + name, b"k", b"%d" % name) for n, name in enumerate(names)}


def copy_of(source: Log, target: Log, begin: int, *known: Mm2Copy) -> Mm2Copy | None:
    return asyncio.run(find_copy_of_mm2(source, target, P, begin, known))  # type: ignore[arg-type]


SOURCE = {**log(*range(50), at=3), 50: Record(50, 1_007, None, b"tick")}  # offsets 3 to 52


@pytest.mark.parametrize(
    ("target", "begin", "until", "is_copy"),
    [
        (log(*range(50)), 0, 53, True),
        (log(*range(20)), 0, 23, True),
        (log(*range(50)), 53, 53, False),  # the link took over: it begins where MirrorMaker 2 has stopped
        (log(*range(50)), 0, 0, False),
        (log(*range(30, 50), at=30), 0, 53, True),  # the target's retention has taken the first ones
        (log(*range(20), *range(9_000, 9_040)), 0, 53, True),  # somebody else wrote after it, and before it
        (log(*range(9_000, 9_300), *range(50)), 0, 53, True),
        (log(*range(9_000, 9_040)), 0, 53, False),  # another source's, or the topic was created again
        (log(7, *range(9_000, 9_040)), 0, 53, True),  # the cleaner has left one of them, with its key and its time
        ({0: Record(0, 1_007, None, b"tick")}, 0, 53, False),  # one such record by chance
        ({}, 0, 53, False),
    ],
)
def test_a_position_counts_where_the_log_has_records_from_the_beginning_on(
    target: dict[int, Record], begin: int, until: int, is_copy: bool
) -> None:
    one = Mm2Copy(NOTE, until)
    assert copy_of(Log(SOURCE), Log(target), begin, one) == (one if is_copy else None)


@pytest.mark.parametrize("records", [log(1, at=40_000), log(1, 2, at=70_000, step=60_000)])
def test_what_lies_behind_aborted_records_is_found(records: dict[int, Record]) -> None:
    source, target = Log(records), Log(log(1, 2))
    assert copy_of(source, target, 0, Mm2Copy(NOTE, source.end)) is not None
    source = Log({**records, 200_000: Record(200_000, 9, None, b"more")})
    assert copy_of(source, target, 0, Mm2Copy(NOTE, 150_000)) is not None


def test_copies_after_all_that_the_targets_own_writers_have_in_its_log_are_found() -> None:
    own = {n: Record(n, 5_000, b"own", b"%d" % n) for n in range(140_000)}
    for first in (0, 70_000, 139_940):
        target = Log({**own, **log(*range(50), at=first)})
        found = copy_of(Log(SOURCE), target, 0, Mm2Copy(NOTE, 53))
        assert (found is None) == (first == 70_000), "between what is searched"


@pytest.mark.parametrize("is_stamped", [True, False])
def test_copies_whose_times_the_targets_brokers_have_overwritten_are_found(is_stamped: bool) -> None:
    own = {n: Record(n, 5_000, b"own", b"%d" % n) for n in range(5)}
    copies = {n: record._replace(timestamp=9_000) for n, record in log(*range(50), at=5).items()}
    target = Log({**own, **copies}, stamped=[range(5, 55)] if is_stamped else [])
    assert (copy_of(Log(SOURCE), target, 0, Mm2Copy(NOTE, 53)) is not None) == is_stamped


def test_copies_after_an_open_transaction_of_others_on_the_target_are_found() -> None:
    target = Log({0: Record(0, 5_000, None, b"open"), **log(*range(50), at=1)}, stable=0)
    assert copy_of(Log(SOURCE), target, 0, Mm2Copy(NOTE, 53)) is not None


def test_it_is_unknown_while_the_sources_first_transaction_is_open() -> None:
    source, target = Log(SOURCE, stable=3), Log(log(*range(50)))
    with pytest.raises(Errors.OffsetNotAvailableError, match="until the source's transaction at offset 3 has ended"):
        copy_of(source, target, 0, Mm2Copy(NOTE, 53))
    source.stable = 53
    assert copy_of(source, target, 0, Mm2Copy(NOTE, 53)) is not None
    source.stable = 10  # the records before the transaction tell
    assert copy_of(source, Log(log(*range(9_000, 9_040))), 0, Mm2Copy(NOTE, 53)) is None


def test_of_a_source_that_has_nothing_left_nothing_is_copied_twice() -> None:
    assert copy_of(Log({}, start=60), Log(log(*range(50))), 0, Mm2Copy(NOTE, 53)) is None


def test_positions_that_cannot_be_read_leave_it_unknown() -> None:
    with pytest.raises(Errors.OffsetNotAvailableError, match=f"has copied A.orders-0 before is unknown yet: {NOTE}"):
        copy_of(Log(SOURCE), Log(log(1, 2)), 0, Mm2Copy(NOTE, unread="no leader"))


def test_positions_are_asked_for_by_the_names_of_the_source_and_under_every_alias() -> None:
    positions: dict[str, Any] = {
        "A": {WIRE: Mm2Position(53, b"", 0), TopicPartition("other", 0): Mm2Position(1, b"", 0)},
        "hidden": Errors.TopicAuthorizationFailedError("no"),
        "away": Errors.LeaderNotAvailableError("no leader"),
        "empty": {},
    }

    async def of(alias: str) -> Any:
        if isinstance(positions[alias], Exception):
            raise positions[alias]
        return positions[alias]

    known: Any = SimpleNamespace(aliases=AsyncMock(return_value=list(positions)), of=of)
    source, target = Log(SOURCE), Log(log(*range(50)))
    found = asyncio.run(copies_of_mm2(source, known, [P]))  # type: ignore[arg-type]
    first, unread = found[P]
    assert first == Mm2Copy(NOTE, 53) and (unread.topic, "no leader" in unread.unread) == (
        "mm2-offsets.away.internal",
        True,
    )
    told = asyncio.run(take_over_first(source, target, "A-B", known, [P]))  # type: ignore[arg-type]
    assert told[P].startswith(
        f"MirrorMaker 2 has copied here up to the source's offset 53, as {NOTE} of the target says"
    )
    assert "stop it, and run tolerant-kafka take-over --config f --flow 'A->B'," in told[P]
