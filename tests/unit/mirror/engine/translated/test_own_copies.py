"""What the producer of a link's copies has in the target's log, and how its transactions ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.translated import own_copies
from tolerant_client.mirror.engine.translated.own_copies import committed_copy, followed, is_uncommitted
from tolerant_client.mirror.state.offset_map import MapRow, RowKey, Run
from tolerant_client.records.record_batch import ABORT, BatchHeader, Record, encode_batch, iter_batches, read_header

P = TopicPartition("orders", 0)
OURS, THEIRS = 7, 8
COMMIT = 1


class Log:
    """A log of the target; `fetched` are the bytes of each fetch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *batches: tuple[int, str], start: int = 0) -> None:
        self.start, self.fetched = start, list[int]()
        self.batches = list[bytes]()
        for producer_id, what in batches:
            kind = {"commit": COMMIT, "abort": ABORT}.get(what)
            records = [Record(0, 1, None if kind is None else bytes([0, 0, 0, kind]), bytes(6))]
            if what == "emptied":
                records = []
            self.batches.append(
                encode_batch(
                    records,
                    base_offset=len(self.batches),
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                    is_control=kind is not None,
                )
            )
        monkeypatch.setattr(own_copies, "fetch_alone", self.fetch)

    @property
    def cluster(self) -> Any:
        async def list_offsets(wanted: Any) -> Any:
            return dict.fromkeys(wanted, self.start)

        return SimpleNamespace(list_offsets=list_offsets)

    async def fetch(self, _: Any, __: TopicPartition, offset: int, max_bytes: int) -> Any:
        assert offset >= self.start
        size = max(1, max_bytes // len(self.batches[0]))
        records = b"".join(self.batches[offset : offset + size])
        self.fetched.append(len(records))
        return SimpleNamespace(records=memoryview(records))

    async def headers(self, _: Any, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, BatchHeader]:
        return {p: read_header(memoryview(self.batches[at])) for p, at in offsets.items() if at < len(self.batches)}

    def committed(self, start: int) -> int | None:
        return asyncio.run(committed_copy(self.cluster, P, start, len(self.batches), OURS))

    def is_uncommitted(self, offset: int) -> bool:
        return asyncio.run(is_uncommitted(self.cluster, P, offset, len(self.batches), OURS))


@pytest.mark.parametrize(
    ("batches", "at"),
    [
        ([(OURS, "commit")], None),  # of the last copy that the map tells of
        ([(OURS, "commit"), (OURS, "copy"), (OURS, "commit")], 1),
        ([(OURS, "commit"), (OURS, "copy"), (OURS, "abort")], None),
        ([(OURS, "commit"), (OURS, "copy"), (OURS, "abort"), (OURS, "copy"), (OURS, "copy"), (OURS, "commit")], 3),
        ([(THEIRS, "copy"), (OURS, "commit"), (THEIRS, "commit")], None),
        ([(THEIRS, "copy"), (OURS, "copy"), (THEIRS, "abort"), (OURS, "commit")], 1),
        ([(OURS, "copy"), (THEIRS, "copy"), (THEIRS, "commit")], None),  # it is not over
    ],
)
def test_only_what_our_own_marker_commits_is_a_copy(
    monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, str]], at: int | None
) -> None:
    assert Log(monkeypatch, *batches).committed(0) == at


def test_of_a_log_into_which_others_write_much_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, *[(THEIRS, "copy")] * 20_000, (OURS, "copy"), (OURS, "commit"), start=3)
    assert log.committed(0) is None
    assert own_copies.MOST_BYTES <= sum(log.fetched) < 1.2 * own_copies.MOST_BYTES and len(log.fetched) < 12
    assert log.committed(19_000) == 20_000


@pytest.mark.parametrize(
    ("batches", "is_lost"),
    [
        ([(OURS, "copy"), (THEIRS, "copy"), (OURS, "commit")], False),
        ([(OURS, "copy"), (OURS, "abort")], True),
        ([(OURS, "copy"), (THEIRS, "copy")], True),  # its marker was cut away
        ([(OURS, "copy"), *[(THEIRS, "copy")] * 20_000, (OURS, "abort")], False),  # not read so far
    ],
)
def test_a_copy_is_uncommitted_that_was_aborted_or_has_no_marker(
    monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, str]], is_lost: bool
) -> None:
    assert Log(monkeypatch, *batches).is_uncommitted(0) == is_lost


def test_the_batches_of_these_tests_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, (OURS, "copy"), (OURS, "abort"))
    headers = [header for header, _ in iter_batches(memoryview(b"".join(log.batches)))]
    assert [(h.producer_id, h.is_control, h.is_transactional) for h in headers] == [(7, False, True), (7, True, True)]


@pytest.mark.parametrize(
    ("batches", "is_followed"),
    [
        ([(OURS, "copy"), (OURS, "commit")], False),
        ([(OURS, "copy"), (OURS, "commit"), (OURS, "copy")], True),
        ([(OURS, "copy"), (OURS, "commit"), (OURS, "commit")], False),
        ([(OURS, "copy"), (OURS, "commit"), (THEIRS, "copy"), (OURS, "copy"), (OURS, "commit")], False),
    ],
)
def test_whether_the_producer_of_the_last_copy_wrote_the_next_batch_takes_two_headers(
    monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, str]], is_followed: bool
) -> None:
    log = Log(monkeypatch, *batches)
    monkeypatch.setattr(own_copies, "read_headers", log.headers)
    row = MapRow(RowKey(P, 0), P.topic, ("", ""), 9, 0, (Run(8, 0, 1),))
    assert asyncio.run(followed(log.cluster, {P: row})) == ({P: OURS} if is_followed else {})
    monkeypatch.setattr(own_copies, "read_headers", AsyncMock(return_value={}))  # the cleaner took the last copy
    assert not asyncio.run(followed(log.cluster, {P: row}))
