"""The mirror without Spark: what it tells during a long micro-batch; no broker."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from kafka.structs import TopicPartition

from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.ops.service import local_job
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorSettings
from tolerant_client.ops.service.ranges import CopiedRanges, RangesCopier, RangesPlanner
from tolerant_client.ops.service.run_claim import RunClaim

P = TopicPartition("orders", 0)


@pytest.mark.parametrize("once", [True, False])
def test_what_its_copier_says_in_its_claims_is_told_in_the_middle_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    wait, told = {P: Waiting("old records come next", 5)}, list[TaskReport]()
    is_told = local_job.threading.Event()

    def copy(*_: object) -> CopiedRanges:
        assert is_told.wait(10)
        return CopiedRanges(TaskReport(records=3, acked={P: 10}))

    def tell(report: TaskReport) -> None:
        told.append(report)
        is_told.set()

    monkeypatch.setattr(RangesPlanner, "begin", lambda planner, is_final: None)
    monkeypatch.setattr(RangesPlanner, "tasks", lambda planner: (((*P, 10),),))
    monkeypatch.setattr(RangesPlanner, "look", lambda planner: None)
    monkeypatch.setattr(RangesCopier, "copy", copy)
    monkeypatch.setattr(local_job, "_LOOK_S", 0.05)
    servers = {"bootstrap.servers": "a:1"}
    claim = SimpleNamespace(
        besides=lambda report: replace(report, waiting=wait),
        tell=lambda report: None,
        require_held=lambda: None,
        end=lambda: None,
    )
    settings = MirrorSettings(servers, servers, "orders", once=once)
    is_stopping = iter([False, False] if not once else [False] * 100)
    ran = local_job.run(
        settings, PreparedLink(1, (), {}), lambda: next(is_stopping, True), tell, claim=cast(RunClaim, claim)
    )
    assert ran is once
    assert told[0].waiting == wait
    assert told[-1].waiting == {} and told[-1].records >= 3
