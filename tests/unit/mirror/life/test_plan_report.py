"""What a plan says of topics that other links have, of accepted losses, and of where the mirror resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kafka.errors import TopicAuthorizationFailedError
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.offsets import LedOffsets, LogOffsets
from tolerant_client.errors import DataLossError, OrdersHiddenError, TargetDivergedError
from tolerant_client.mirror.batches.losses import LossPolicy, LossReason, MirrorPolicy
from tolerant_client.mirror.engine.planned_link import PlannedLink, without_topics
from tolerant_client.mirror.engine.preflight import Others
from tolerant_client.mirror.engine.translated.foresight import Foreseen
from tolerant_client.mirror.engine.translated.target_checks import LostOffsets, Resumption
from tolerant_client.mirror.life import plan_report
from tolerant_client.mirror.life.comparison import PAUSED_AND_BLOCKED
from tolerant_client.mirror.life.plan_report import LinkPlan
from tolerant_client.mirror.state.control_record import Controls
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED, kept_beyond
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import BesideFile, LinkView
from tolerant_client.mirror.state.map_rows import NO_MAP
from tolerant_client.mirror.state.plan import TopicSpec, TopicsPlan

OWN, THEIRS, MADE = (TopicPartition(name, 0) for name in ("own", "theirs", "made"))


@pytest.mark.parametrize(
    "ended", [{"is_promotion_begun": True, "is_fenced": True}, {"is_promotion_begun": True}, {"is_handed_back": True}]
)
def test_the_plan_of_a_link_that_is_over_says_only_that(
    monkeypatch: pytest.MonkeyPatch, ended: dict[str, bool]
) -> None:
    """Its fence in the logs is no other producer, and no topic of the new primary is one to delete."""
    control = LinkControl(producer_ids=(7,), **ended)
    monkeypatch.setattr(plan_report, "read_control", AsyncMock(return_value=control))
    clusters: list[Any] = [SimpleNamespace(file_options="--config mm2.properties") for _ in range(2)]
    found = asyncio.run(plan_report.plan_everything(*clusters, "dr", ".*"))
    assert found == LinkPlan("dr", "identical", refusals=found.refusals) and found.exit_code == 3
    (text,) = found.refusals
    assert "promote --config mm2.properties or" in text if control.is_half_promoted else "delete" not in text


@pytest.mark.parametrize(
    ("control", "is_translated", "kind"),
    [(LinkControl(map_id="m"), False, "translated"), (LinkControl(producer_ids=(7,)), True, "identical")],
)
def test_the_plan_of_a_start_with_the_other_kind_of_offsets_says_only_that(
    monkeypatch: pytest.MonkeyPatch, control: LinkControl, is_translated: bool, kind: str
) -> None:
    """Compared as the other kind, its own copies are another producer's records in a topic to delete."""
    monkeypatch.setattr(plan_report, "read_control", AsyncMock(return_value=control))
    clusters: list[Any] = [SimpleNamespace(file_options="--config mm2.properties") for _ in range(2)]
    found = asyncio.run(plan_report.plan_everything(*clusters, "dr", ".*", is_translated=is_translated))
    assert found == LinkPlan("dr", kind, refusals=found.refusals) and found.exit_code == 3
    assert "a name of its own (--link, in a file another alias)" in found.refusals[0]


@pytest.mark.parametrize(
    ("is_hidden", "error"),
    [(True, OrdersHiddenError), (False, TopicAuthorizationFailedError)],
)
def test_a_plan_that_may_read_nothing_of_the_link_says_what_a_start_says(
    monkeypatch: pytest.MonkeyPatch, is_hidden: bool, error: type[Exception]
) -> None:
    monkeypatch.setattr(plan_report, "read_control", AsyncMock(return_value=LinkControl(is_hidden=is_hidden)))
    monkeypatch.setattr(plan_report, "has_map", AsyncMock(side_effect=TopicAuthorizationFailedError("the offset map")))
    words = "Link dr does not start, since .* tolerant-mirror-control .*; grant us" if is_hidden else "the offset map"
    with pytest.raises(error, match=words):
        asyncio.run(plan_report.plan_everything(*[SimpleNamespace()] * 2, "dr", ".*"))  # type: ignore[arg-type]


def planned_by(monkeypatch: pytest.MonkeyPatch, planned: PlannedLink, **more: Any) -> tuple[LinkPlan, dict[str, Any]]:
    """The plan of link "dr" by what was read, and what was asked; all logs begin at offset 5 and end at `ends`."""
    asked: dict[str, Any] = {}
    ends = more.pop("ends", (5, 5))
    policy = more.pop("policy", MirrorPolicy())

    def say(name: str, value: Any) -> None:
        async def tell(*args: Any, **_: Any) -> Any:
            asked[name] = args
            return value

        monkeypatch.setattr(plan_report, name, tell)

    for name, value in {
        "read_control": LinkControl(),
        "mapped_topics": NO_MAP,
        "plan_link": planned,
        "without_lost": (planned, []),
        "lost_map": None,
        "has_map": False,
        "look_for_forgotten": None,
        "see_topics": LinkView({}, {}, {}, {}),
        "beside_file": BesideFile(),
        "look_for_others": Others({}, (), frozenset()),
        "links_into": Controls({}),
        "refuse_circle": (),
        "not_allowed": [],
        "find_held": [],
        "with_own_id": LinkControl(),
        "_differences": ({}, [], []),
        "_besides": (None, None, None),
        **more,
    }.items():
        say(name, value)

    async def led(_: Any, wanted: Any) -> LedOffsets:
        return LedOffsets(dict.fromkeys(wanted, ends[1]), {})

    async def logs(_: Any, wanted: Any) -> tuple[dict[TopicPartition, LogOffsets], dict[TopicPartition, str]]:
        return dict.fromkeys(wanted, LogOffsets(5, ends[0], ends[0])), {}

    async def partitions(names: Collection[str]) -> dict[str, list[int]]:
        return {name: [0] for name in names if name in planned.described[1]}

    async def cluster_id() -> str:
        return "id"

    monkeypatch.setattr(plan_report, "list_led_offsets", led)
    monkeypatch.setattr(plan_report, "list_led_log_offsets", logs)
    monkeypatch.setattr(Ledger, "rows", AsyncMock(return_value={}))
    both: list[Any] = [
        SimpleNamespace(
            name=name, partitions=partitions, cluster_id=cluster_id, wire_topic=str, file_options="--config f"
        )
        for name in ("source", "target")
    ]
    return asyncio.run(plan_report.plan_everything(*both, "dr", ".*", policy=policy)), asked


def test_nothing_is_planned_for_a_topic_that_another_link_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither offsets to copy nor changes of its configuration or of groups; nor is its log compared."""
    specs = {p.topic: TopicSpec(p.topic, 1, 1) for p in (OWN, THEIRS, MADE)}
    present = {name: spec for name, spec in specs.items() if name != "made"}
    plan = TopicsPlan((specs["made"],), (specs["own"], specs["theirs"]))
    planned = PlannedLink(plan, {OWN: 50, THEIRS: 70, MADE: 90}, {}, (specs, present))
    why = "link X copies it"
    others = Others({"theirs": why, "made": why}, (), frozenset({"theirs"}))
    found, asked = planned_by(monkeypatch, planned, look_for_others=others, not_allowed=["own"])
    rows = {t.topic: (t.action, t.to_copy, t.why) for t in found.topics}
    assert rows == {"own": ("copy", 45, ""), "theirs": ("refuse", None, why), "made": ("refuse", None, why)}
    assert found.refusals == (
        why,
        "the source refuses us topic own; grant Read on it to the mirror's user",
        "the target refuses us topic own; grant Write on it to the mirror's user",
    )
    assert found.exit_code == 3
    assert asked["_differences"][2] == [OWN], "the others' logs are not compared"
    assert asked["_besides"][-1] == {THEIRS, MADE}, "their configuration and groups stay as they are"
    assert asked["refuse_circle"][2] == ["own"], "as the mirror asks"
    assert asked.keys().isdisjoint({"lost_map", "mapped_topics"}), "there is no map of which to ask more"


def planned_own(end: int) -> PlannedLink:
    specs = {"own": TopicSpec("own", 1, 1)}
    return PlannedLink(TopicsPlan((), (specs["own"],)), {OWN: end}, {}, (specs, specs))


def test_what_the_target_keeps_of_an_accepted_loss_is_waited_for_as_the_mirror_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = ({}, ["the source was truncated"], [])
    for source_end, waits in ((150, True), (200, False)):
        found, _ = planned_by(monkeypatch, planned_own(source_end), _differences=told, ends=(source_end, 200))
        assert found.topics[0].waiting == ({0: kept_beyond(200)} if waits else {})
        assert (found.exit_code, found.topics[0].to_copy, found.refusals) == (3, 0, ()), "its row wants attention"
        assert found.losses == ("the source was truncated",)
    stopped = ({OWN: "own-0 was truncated"}, [], [])
    found, _ = planned_by(monkeypatch, planned_own(150), _differences=stopped, ends=(150, 200))
    assert (found.topics[0].waiting, found.refusals) == ({}, ("own-0 was truncated",)), "said once"


def test_what_is_left_to_copy_with_translated_offsets_counts_from_where_the_mirror_resumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a cut that is before the end of what the map says."""
    resumes = {OWN: Foreseen(("1", "2"), Resumption(100, None), False)}
    found, asked = planned_by(
        monkeypatch, planned_own(150), has_map=True, require_kind=None, foresee=resumes, find_copied={}, copied_until={}
    )
    assert (found.offsets, found.topics[0].to_copy, found.topics[0].waiting) == ("translated", 50, {})
    assert not asked["copied_until"][2]
    lost = {OWN: Foreseen(("1", "2"), TargetDivergedError("made again"), False)}
    told = {"has_map": True, "require_kind": None, "foresee": lost, "find_copied": {}, "copied_until": {OWN: 140}}
    found, _ = planned_by(monkeypatch, planned_own(150), **told)
    assert (found.topics[0].to_copy, found.refusals) == (None, ("made again",)), "nothing of the copy is left there"
    for reason, again, left in (
        (LossReason.RECREATION, 0, None),
        (LossReason.TRUNCATION, 100, None),
        (LossReason.RETENTION, None, 50),
    ):
        losses = ((LostOffsets(reason, 100, 140), DataLossError("lost")),)
        told["foresee"] = {OWN: Foreseen(("1", "2"), Resumption(100, None, False, again, losses), False)}
        found, _ = planned_by(monkeypatch, planned_own(150), **told)
        assert (found.topics[0].to_copy, found.refusals) == (left, ("lost",)), "the position is one in another log"
        found, _ = planned_by(monkeypatch, planned_own(150), **told, policy=MirrorPolicy(on_loss=LossPolicy.CONTINUE))
        assert (found.topics[0].to_copy, found.losses) == (50, ("lost",))
    told = {"has_map": True, "require_kind": None, "lost_map": "the map was deleted", "copied_until": {}}
    found, _ = planned_by(monkeypatch, planned_own(150), **told, foresee={}, find_copied={})
    assert (found.topics[0].to_copy, found.refusals) == (None, ("the map was deleted",)), (
        "how far it is copied is unknown"
    )


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_translated_copy_that_the_target_has_lost_is_named_also_if_it_is_paused(
    monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """No mirror makes its topic again."""
    specs = {name: TopicSpec(name, 1, 1) for name in ("own", "made")}
    plan = TopicsPlan((specs["made"],), (specs["own"],))
    planned = PlannedLink(plan, {OWN: 5}, {MADE: "paused"}, (specs, {"own": specs["own"]}))
    told: dict[str, Any] = dict.fromkeys(("require_kind", "lost_map"))
    told |= {"has_map": True, "foresee": {}, "find_copied": {}, "copied_until": {}}
    told |= {"read_control": LinkControl(map_id="m", paused=frozenset({"made"} if is_paused else ()))}
    told["without_lost"] = without_topics(planned, {"made": TRANSLATED_COPY_DELETED}), [MADE]
    found, _ = planned_by(monkeypatch, planned, **told)
    text = f"made-0: {TRANSLATED_COPY_DELETED}"
    warned, refused = ((f"{PAUSED_AND_BLOCKED}: {text}",), ()) if is_paused else ((), (text,))
    assert (found.warnings, found.refusals, found.exit_code) == (warned, refused, 3)
    assert {t.topic: t.action for t in found.topics} == {"made": "refuse", "own": "copy"}
