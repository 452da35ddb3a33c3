"""The copy during Spark's start: when it needs no Spark, what it reports, and what ends it; no broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from spark_integration.mirror import head_start
from spark_integration.mirror.head_start import HeadStart
from tolerant_client.errors import DataLossError, LinkPromotedError, RecoveryExhaustedError
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorSettings
from tolerant_client.ops.service.ranges import CopiedRanges, RangesCopier, RangesPlanner

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


def copied(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    done: CopiedRanges | Exception,
    once: bool = True,
    held: Sequence[set[TopicPartition]] = (),
) -> HeadStart:
    """A head start of P up to 10 and Q up to 0 that has ended; with `once` not, what it holds after each micro-batch is told."""
    ends: dict[TopicPartition, int | None] = {P: 10, Q: 0} if once else {P: None, Q: None}
    wanted, holds = [ends, *({p: ends[p] for p in left} for left in held)], list(held)

    def copy(_: RangesCopier, until: Mapping[TopicPartition, int | None]) -> CopiedRanges:
        assert until == wanted.pop(0)
        if isinstance(done, Exception):
            raise done
        return done

    def tasks(planner: RangesPlanner) -> Any:
        return (((*P, 10 if once else None), (*Q, 0 if once else None)),)

    closed: list[bool] = []
    monkeypatch.setattr(RangesPlanner, "begin", lambda planner, is_final: None)
    monkeypatch.setattr(RangesPlanner, "tasks", tasks)
    monkeypatch.setattr(RangesCopier, "copy", copy)
    monkeypatch.setattr(RangesCopier, "held", lambda _: holds.pop(0) if holds else set())
    monkeypatch.setattr(head_start, "close_workers", lambda: closed.append(True))
    settings = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders", once=once, tasks=4)
    found = HeadStart(settings, PreparedLink(1, (), {}), folder / "here")
    found.start()
    found.join(10)
    assert not found.is_alive() and closed == [True]
    return found


def test_a_copy_up_to_all_its_ends_is_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = copied(monkeypatch, tmp_path, CopiedRanges(TaskReport(acked={P: 12, Q: 0}, records=12)))
    assert found.is_complete and found.told(None).records == 12


@pytest.mark.parametrize(
    "report",
    [
        TaskReport(acked={P: 9, Q: 0}),
        TaskReport(acked={P: 10}),  # the other one was handed over, or its log was never read
        TaskReport(acked={P: 10, Q: 0}, paused={Q: "by an operator"}),
        TaskReport(acked={P: 10, Q: 0}, blocked={P: "a loss"}),
    ],
)
def test_a_copy_that_lacks_anything_is_spark_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: TaskReport
) -> None:
    assert not copied(monkeypatch, tmp_path, CopiedRanges(report)).is_complete


def test_what_follows_its_source_goes_on_until_all_was_handed_over_and_tells_of_each_micro_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = CopiedRanges(TaskReport(acked={P: 10, Q: 0}, records=5))
    found = copied(monkeypatch, tmp_path, done, once=False, held=[{P, Q}, {Q}, set()])
    assert not found.is_complete
    assert found.told(None).records == 15, "three micro-batches, the last of Q alone"


@pytest.mark.parametrize(
    ("done", "is_kept"),
    [
        (RecoveryExhaustedError("no progress", []), False),
        (OSError("no files left"), False),
        (CopiedRanges(error=DataLossError("gone")), True),
        (LinkPromotedError("promoted"), True),
    ],
)
def test_only_an_error_that_a_repeat_may_cure_is_left_to_spark_s_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: CopiedRanges | Exception, is_kept: bool
) -> None:
    found = copied(monkeypatch, tmp_path, done)
    assert not found.is_complete
    assert found.error is ((done.error if isinstance(done, CopiedRanges) else done) if is_kept else None)


def test_what_spark_s_tasks_do_is_told_with_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = TaskReport(
        acked={P: 10, Q: 0},
        records=10,
        losses={P: 1},
        paused={Q: "by an operator"},
        waiting={P: Waiting("no leader", 1)},
    )
    found = copied(monkeypatch, tmp_path, CopiedRanges(here))
    assert found.told(None).waiting == here.waiting
    started = found.told(TaskReport(blocked={P: "refused"}))
    assert (started.records, started.paused, started.blocked) == (10, here.paused, {P: "refused"})
    assert not started.waiting, "the planner of Spark's query asks anew what has no leader"
    told = found.told(TaskReport(time_ms=5, acked={P: 15}, records=5, losses={P: 2}))
    assert (told.time_ms, told.records, told.losses) == (5, 15, {P: 3})
    assert told.acked == {P: 15, Q: 0} and not told.paused, "what stands still now is what the last micro-batch says"
