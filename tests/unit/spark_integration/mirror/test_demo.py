"""spark_integration/mirror/demo.py: the faults of its proxies."""

from __future__ import annotations

from spark_integration.mirror.demo import _faults
from tolerant_client.testing.faults import FaultPlan


def test_faults_spoil_about_every_fourth_answer_and_every_kind_of_them_comes_soon() -> None:
    plan = FaultPlan(_faults(), seed=0)
    answers = ("Metadata", "ListOffsets", "Fetch", "Produce") * 12
    turns = [plan.choose(api, body_size=1000, has_history=True) for api in answers]
    spoiled = [turn.fault for turn in turns if turn is not None]
    assert {type(fault) for fault in spoiled} == {type(fault) for fault in _faults()}
    assert len(answers) // 5 <= len(spoiled) <= len(answers) // 3
