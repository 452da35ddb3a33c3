"""One definition of health: every row of its table, in the words of `status`, the page, the metric and /healthz alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition
from prometheus_client import CollectorRegistry

from support.link_samples import NOW_MS, state, troubled
from tolerant_client.errors import DataLossError
from tolerant_client.mirror.batches.losses import LedgerRow, LossReason
from tolerant_client.mirror.engine.translated.foresight import Foreseen
from tolerant_client.mirror.engine.translated.target_checks import LostOffsets, Resumption
from tolerant_client.mirror.life import comparison, status
from tolerant_client.mirror.life.comparison import Comparison, compare_ends, is_comparable
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.lost_copies import LostCopies
from tolerant_client.mirror.life.mirrors import mirror_reasons, standing
from tolerant_client.mirror.life.plan_findings import gone_refusals, made_again_warnings
from tolerant_client.mirror.life.status import LinkStatus, read_rows
from tolerant_client.mirror.life.status_reasons import (
    ADOPTED_UNCOMPARED,
    TAKEN_UNKNOWN,
    LinkFacts,
    LinkScope,
    Looks,
    missing_reasons,
    shortened,
    still,
    uncompared_reasons,
)
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.health import (
    DELETED_ON_SOURCE,
    DELETED_ON_TARGET,
    TRANSLATED_COPY_DELETED,
    Health,
    Reason,
    kept_beyond,
    waiting_reasons,
)
from tolerant_client.mirror.state.lacking import Lacking, sort_lacking
from tolerant_client.mirror.state.ledger import Ledger
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.link_topics import BesideFile, LinkView
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.open_transactions import Held, OpenTransaction
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.monitoring.prometheus import LinkCollector
from tolerant_client.ops.monitoring.server import liveness
from tolerant_client.ops.monitoring.status import state_json
from tolerant_client.ops.service.link_state import DutyState, LeftOut, LinkState, Phase, TaskReport

P = TopicPartition("orders", 0)
SOME_MINUTES_AGO = NOW_MS - 300_000
HELD = Held(P, 100, 50, OpenTransaction(P, 7, 0, 100, SOME_MINUTES_AGO, 50), None, "kafka-transactions.sh ...")
ROW = LedgerRow(NOW_MS, "A-B", "orders", 0, 4, 8, "retention", "gone")
RUN = Run("A-B", "r", "m1", 812, SOME_MINUTES_AGO, SOME_MINUTES_AGO, False)


ONE_TOPIC = LinkView({"orders": [0]}, {"orders": [0]}, {}, {})


def told(reason: str) -> TaskReport:
    return replace(state().report, waiting={P: Waiting(reason, SOME_MINUTES_AGO)})


# health, what makes it, and words of the first reason.
ROWS: list[tuple[Health, dict[str, Any], str]] = [
    (Health.HEALTHY, {}, ""),
    (Health.HEALTHY, {"ledger": (ROW,)}, ""),  # an accepted loss is told, and no reason
    (Health.HEALTHY, {"ledger": None}, ""),
    (Health.PAUSED, {"control": LinkControl(paused=frozenset(("",)))}, "paused the whole link"),
    (Health.PAUSED, {"control": LinkControl(paused=frozenset(("orders",))), "report": told("its broker says no")}, "paused topic orders"),
    (Health.PROMOTED, {"control": LinkControl(is_promotion_begun=True, is_fenced=True)}, ""),
    (Health.PROMOTED, {"control": LinkControl(is_promotion_begun=True, is_fenced=True), "phase": Phase.STOPPED}, ""),
    (Health.HANDED_BACK, {"control": LinkControl(is_handed_back=True), "unreachable": {"source": "gone"}}, ""),
    (Health.WAITING, {"phase": Phase.RESTARTING, "problem": "lost"}, "started again: lost"),
    (Health.WAITING, {"phase": Phase.STARTING}, "starting for 60 min"),
    (Health.WAITING, {"report": told("append answered NotEnoughReplicasError")}, "orders-0 since 2025-11-22 08:21:40 UTC: append answered"),
    (Health.WAITING, {"still": {P: SOME_MINUTES_AGO}}, "orders-0 since 2025-11-22 08:21:40 UTC: it is at offset 1,000,000"),
    (Health.WAITING, {"held": (HELD,)}, "producer id 7"),
    (Health.WAITING, {"duties": {"sync_topic_acls": DutyState(NOW_MS, "no")}}, "sync_topic_acls: no"),
    (Health.WAITING, {"duties": {"beat": DutyState(NOW_MS - 200_000, "", 1.0)}}, "beat: no round has ended for 200 s"),
    (Health.UNKNOWN, {"unreachable": {"source": "refused"}}, "The source cluster does not respond: refused"),
    (Health.UNKNOWN, {"control_problem": "none of ours"}, "has paused, limited or promoted the link is unknown: none of ours"),
    (Health.UNKNOWN, {"blind": "KeyError: x"}, "cannot be checked: KeyError: x"),
    (Health.UNKNOWN, {"leaderless": {"source": LeftOut(2, "orders-1: no leader")}}, "2 partitions of the source cannot be checked"),
    (Health.UNKNOWN, {"report": TaskReport(NOW_MS - 91_000)}, "No micro-batch has ended for 91 s"),
    (Health.UNKNOWN, {"report": TaskReport(), "started_ms": NOW_MS - 200_000}, "No micro-batch has ended for 200 s"),
    (Health.UNKNOWN, {"time_ms": NOW_MS - 3 * 3_600_000}, "last checked 3.0 h ago: all numbers are that old"),
    (Health.UNKNOWN, {"phase": Phase.STOPPED}, "stopped: all numbers are as of then"),
    (Health.BLOCKED, {"report": replace(state().report, blocked={P: "has a foreign record batch"})}, "orders-0: has a foreign"),
    (Health.BLOCKED, {"phase": Phase.FAILED, "problem": "out of memory"}, "The mirror has failed: out of memory"),
    (Health.BLOCKED, {"control": LinkControl(is_promotion_begun=True)}, "promotion has begun and has not ended"),
]  # fmt: skip

CODES = {Health.WAITING: 1, Health.UNKNOWN: 1, Health.BLOCKED: 2}


@pytest.mark.parametrize(("health", "change", "words"), ROWS)
def test_every_row_of_the_table_is_told_alike(health: Health, change: dict[str, Any], words: str) -> None:
    sample: LinkState = replace(state(), **change)
    board = Board()
    board.tell(sample)
    found, reasons = health_of(sample, NOW_MS)
    assert found is health
    assert words in (reasons[0].text if reasons else ""), reasons
    code = CODES.get(health, 0)
    page = state_json(board, NOW_MS)["link"]
    assert (page["health"], page["level"]) == (health.value, ("ok", "warning", "critical")[code])
    assert [reason["text"] for reason in page["reasons"]] == [reason.text for reason in reasons]
    registry = CollectorRegistry()
    registry.register(LinkCollector(board, lambda: NOW_MS))
    assert registry.get_sample_value("tolerant_mirror_health", {"link": "A-B"}) == code
    status, response = liveness(board, NOW_MS)
    is_dead = sample.phase is Phase.FAILED or NOW_MS - sample.time_ms > 120_000
    assert (status, response["dead"]) == ((HTTPStatus.SERVICE_UNAVAILABLE, ["A-B"]) if is_dead else (HTTPStatus.OK, []))
    assert response["links"]["A-B"]["health"] == health.value and response["status"] == (
        "dead" if is_dead else health.value
    )
    assert response["links"]["A-B"]["reasons"] == [reason.text for reason in reasons[:5]]
    is_rest = {"is_promoted": health is Health.PROMOTED, "is_handed_back": health is Health.HANDED_BACK}
    seen = LinkStatus(
        "A-B", NOW_MS, False, is_rest["is_promoted"], None, 0.0, (), reasons, (), (), is_rest["is_handed_back"]
    )
    assert (seen.health, seen.exit_code) == (health, 3 if code else 0)
    assert seen.to_json()["health"] == health.value


def test_every_health_has_its_row_in_the_docstring_and_in_the_readme() -> None:
    from importlib.resources import files

    from tolerant_client.mirror.state import health as module

    readme = files("tolerant_client.ops.monitoring").joinpath("README.md").read_text()
    for health in Health:
        assert f"| {health.value} " in (module.__doc__ or "") and f"| {health.value} " in readme
    assert {row[0] for row in ROWS} == set(Health)


def test_the_worst_reason_comes_first() -> None:
    health, reasons = health_of(replace(troubled(), unreachable={"target": "away"}), NOW_MS)
    assert health is Health.BLOCKED
    assert [reason.health for reason in reasons] == [Health.BLOCKED, Health.UNKNOWN, Health.WAITING]
    assert reasons[0].text.startswith("audit.log-2: ")


def test_a_transaction_that_was_begun_just_now_is_none_that_anything_waits_for() -> None:
    young = HELD._replace(transaction=OpenTransaction(P, 7, 0, 100, NOW_MS - 2_000, 50))
    assert health_of(replace(state(), held=(young,)), NOW_MS) == (Health.HEALTHY, ())


def test_a_mirror_that_nobody_sees_is_not_healthy() -> None:
    assert mirror_reasons("dr", [replace(RUN, is_alive=True)]) == []
    waits = replace(RUN, is_alive=True, pid=813, holds=False)
    assert mirror_reasons("dr", [replace(RUN, is_alive=True), waits]) == []
    assert mirror_reasons("dr", [RUN, waits]) == [
        Reason(
            Health.WAITING,
            "no mirror of link dr copies: one runs on m1 (process 813), which holds no partition: it waits until they are free, and"
            " copies nothing",
        )
    ], "RUN is dead, and held them up to a lease ago"
    (dead,) = mirror_reasons("dr", [RUN])
    assert dead.health is Health.UNKNOWN
    assert dead.text == (
        "no mirror of link dr is seen at work: the last one, on m1 (process 812), was last seen at 2025-11-22 08:21:40 UTC. If"
        " that process still runs, it cannot say so: grant its user Read and Write on topic tolerant-mirror-claims of the target;"
        " otherwise start a mirror"
    )
    (ended,) = mirror_reasons("dr", [replace(RUN, is_ended=True)])
    assert "no mirror of link dr runs: the last one, on m1 (process 812), ended at" in ended.text
    assert "in the last hour" in mirror_reasons("dr", [])[0].text
    assert "unknown" in mirror_reasons("dr", None)[0].text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            Errors.TopicAuthorizationFailedError("no"),
            "may not be read: grant us Read and Describe on topic tolerant-mirror-l",
        ),
        (Errors.KafkaTimeoutError("late"), "could not be read in time"),
    ],
)
def test_a_ledger_that_cannot_be_read_hides_nothing_else_of_the_status(error: Exception, told: str) -> None:
    async def waits(future: Any, timeout_ms: float) -> None:
        raise error

    net = SimpleNamespace(call_soon_with_future=lambda function: None)
    target: Any = SimpleNamespace(heard=waits, net=net)
    rows, (reason,) = asyncio.run(read_rows(target, Ledger(target, "dr")))
    assert rows is None and reason.health is Health.UNKNOWN and told in reason.text


def test_logs_that_were_not_compared_are_unknown() -> None:
    (reason,) = uncompared_reasons(None)
    assert reason.health is Health.UNKNOWN and "both logs are the same is unknown" in reason.text
    (reason,) = uncompared_reasons(Comparison({}, (P,)))
    assert reason.health is Health.UNKNOWN and reason.text.startswith("orders-0 could not be compared")
    (reason,) = uncompared_reasons(Comparison({}, refused={P: "Fetch of it is not allowed"}))
    assert reason == Reason(Health.UNKNOWN, "orders-0 could not be compared: Fetch of it is not allowed")
    assert uncompared_reasons(Comparison({})) == []


@pytest.mark.parametrize(
    ("control", "is_translated", "is_told"),
    [
        (LinkControl(producer_ids=(7,)), False, True),
        (LinkControl(producer_ids=(7,)), True, False),
        (LinkControl(), False, False),
        (LinkControl(producer_ids=(7,), is_promotion_begun=True), False, False),
    ],
)
def test_a_link_has_logs_to_compare_once_it_has_copied_with_identical_offsets(
    control: LinkControl, is_translated: bool, is_told: bool
) -> None:
    assert is_comparable(control, is_translated) is is_told


def test_partitions_of_one_reason_are_told_together_and_many_reasons_not_one_by_one() -> None:
    waits = {TopicPartition("orders", n): Waiting("no replicas", NOW_MS - n) for n in range(3)}
    assert waiting_reasons(waits) == [
        Reason(Health.WAITING, "orders-2 and 2 more partitions since 2025-11-22 08:26:39 UTC: no replicas")
    ]
    many = {TopicPartition("orders", n): Waiting(f"reason {n}", NOW_MS) for n in range(9)}
    assert waiting_reasons(many)[-1].text == "and 4 more like this"


def test_what_needs_a_person_is_told_as_blocked_and_what_cures_itself_as_waiting() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    waits = {first: Waiting("a record is too large", NOW_MS, is_blocked=True), second: Waiting("no replicas", NOW_MS)}
    found = [(reason.health, reason.text.partition(" ")[0]) for reason in waiting_reasons(waits)]
    assert found == [(Health.BLOCKED, "orders-0"), (Health.WAITING, "orders-1")]


def test_what_cannot_be_copied_yet_does_not_stand_still() -> None:
    held, moving, standing = (
        PartitionLag(P, 10, 10, 50),
        PartitionLag(TopicPartition("orders", 1), 10, 50, 50),
        PartitionLag(TopicPartition("orders", 2), 10, 50, 50),
    )
    (reason,) = still([held, moving, standing], [held, replace(moving, position=11), standing], LinkControl(), 2.0)
    assert reason.health is Health.WAITING and reason.text.startswith(
        "orders-2 has not moved for 2 s: it is at offset 10"
    )
    assert still([standing], [standing], LinkControl(paused_partitions=frozenset({standing.partition})), 2.0) == []
    (reason,) = still([standing], [standing], LinkControl(bytes_per_s=50), 2.0)
    assert reason.text.endswith("; the link is limited to 50 bytes a second (tolerant-kafka throttle changes that)")


def test_that_adopted_logs_are_not_compared_before_the_first_start_is_told() -> None:
    prepared = LinkControl(topics=LinkTopics.of("orders").to_json(), adopted={P: 9})
    for control, is_told in (
        (prepared, True),
        (replace(prepared, producer_ids=(7,)), False),
        (replace(prepared, is_promotion_begun=True, is_fenced=True), False),
    ):
        assert (ADOPTED_UNCOMPARED in status_by(control).notes) is is_told


def test_what_stood_still_and_cannot_be_seen_in_the_last_look_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = PartitionLag(P, 10, 50, 50)
    looks = [([standing], {}), ([standing], {}), ([], {P: "its leader does not respond"})]
    found = read_by(monkeypatch, looks, {})
    assert looks == [] and found.health is Health.UNKNOWN
    assert Reason(Health.UNKNOWN, "how far orders-0 is copied is unknown: its leader does not respond") in found.reasons
    assert Reason(Health.UNKNOWN, "A mirror of link dr runs on m1, and its control says nothing") in found.reasons


def test_what_another_link_has_is_told_with_that_reason_and_is_neither_compared_nor_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its target log, which the other link's producers write to by now, says nothing of this link."""
    why = "Topic orders of this target is the copy of link A-B, which was promoted"
    for mirrors in ([], [replace(RUN, is_alive=True, waiting={P: Waiting(why, 5, is_blocked=True)})]):
        looked: list[Any] = []
        found = read_by(monkeypatch, [([], {}), ([], {})], {P: why}, looked, mirrors)
        assert looked == [[], []], "no lag, and nothing to compare"
        assert found.reasons[0] == Reason(Health.BLOCKED, f"orders-0: {why}")
        assert [r.health for r in found.reasons].count(Health.BLOCKED) == 1, "once, if its mirror says so, too"
        (topic,) = found.topics
        assert (topic.lag, topic.unknown) == (None, (0,))


def test_a_source_that_is_away_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    view = LinkView({}, {"orders": [0]}, {"orders": [0]}, {})
    run = replace(RUN, is_alive=True)
    lag = PartitionLag(P, 563)
    looks = [([lag], {}), ([lag], {})]
    found = read_by(monkeypatch, looks, {}, [], [run], is_source_away=True, see_topics=view, why_forgotten=None)
    assert (found.topics[0].copied, found.topics[0].lag, found.mirrors, found.reasons) == (563, None, (run,), ())


def test_while_the_source_is_away_nothing_is_told_of_topics_that_were_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file from which a topic was removed: the link had begun it, and its healthy copy was called deleted."""
    users = TopicPartition("users", 0)
    control = LinkControl(
        topics=LinkTopics.of("orders|users").to_json(),
        producer_ids=(7,),
        begun={P: TopicIds(), users: TopicIds()},
        copied={users: 5},
    )
    lag, view = PartitionLag(P, 563), LinkView({}, {"orders": [0]}, {"orders": [0]}, {})
    looks, told = [([lag], {}), ([lag], {})], {"see_topics": view, "why_forgotten": None, "read_control": control}
    run = replace(RUN, is_alive=True)
    found = read_by(monkeypatch, looks, {}, [], [run], given=LinkTopics.of("orders"), is_source_away=True, **told)
    assert [topic.topic for topic in found.topics] == ["orders"] and found.reasons == ()


def test_whether_another_link_has_the_topics_is_unknown_if_the_controls_cannot_be_read_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing is compared: it may be another link's log."""
    found = read_by(monkeypatch, [([], {}), ([], {})], None, why_forgotten=None)
    assert Reason(Health.UNKNOWN, TAKEN_UNKNOWN) in found.reasons


def test_a_link_that_may_share_topics_is_not_blocked_by_another_link_before_its_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why, looked, given = "Topic orders of this target is the copy of link A-B", list[Any](), LinkTopics.of("orders")
    told = {"read_control": LinkControl(), "why_forgotten": None}
    found = read_by(monkeypatch, [([], {}), ([], {})], {P: why}, looked, given=given, **told)
    assert looked == [[P], [P]] and not [r for r in found.reasons if r.health is Health.BLOCKED]


def read_by(
    monkeypatch: pytest.MonkeyPatch,
    looks: list[Any],
    taken: dict[TopicPartition, str] | None,
    looked: list[Any] | None = None,
    mirrors: list[Run] | None = None,
    given: LinkTopics | None = None,
    is_source_away: bool = False,
    **told: Any,
) -> LinkStatus:
    """The status of link "dr" with one topic, as these looks at both clusters show it."""

    async def look_led(_: Any, __: Any, ___: Any, partitions: Any, *____: Any) -> Any:
        if looked is not None:
            looked.append(list(partitions))
        return looks.pop(0)

    async def within_bound(_: Any, function: Any, *args: Any) -> Any:
        assert taken is not None or function is not status.compare_ends, "it may be another link's log"
        if function is status.lost_copies:
            return LostCopies()
        return taken if isinstance(function, partial) and function.func is status.find_taken else None

    def say(name: str, value: Any) -> None:
        async def tell(*_: Any, **__: Any) -> Any:
            return value() if callable(value) else value

        monkeypatch.setattr(status, name, tell)

    for name, value in {
        "look_at_claims": None,
        "read_control": LinkControl(topics=LinkTopics.of("orders").to_json()),
        "require_not_forgotten": None,
        "mapped_topics": NO_MAP,
        "see_topics": ONE_TOPIC,
        "has_map": False,
        "lost_map": None,
        "read_rows": ({}, []),
        "find_held": [],
        "seen_mirrors": mirrors or [],
        "why_forgotten": "A mirror of link dr runs on m1, and its control says nothing",
        "beside_file": BesideFile(),
        "never_copied": ([], {}),
        **told,
    }.items():
        say(name, value)

    async def sleep(_: float) -> None:
        pass

    cluster: Any = SimpleNamespace(
        net=SimpleNamespace(sleep=sleep),
        cluster_id=AsyncMock(return_value="A"),
        insist=None,
        bootstrap_servers="b:1",
        quota_words=lambda: "",
        manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"}),
        file_options="",
    )
    monkeypatch.setattr(status, "look_led", look_led)
    monkeypatch.setattr(status, "within_bound", within_bound)
    source: Any = None if is_source_away else cluster
    return asyncio.run(status.read_status(source, cluster, "dr", given, is_source_away=is_source_away))


def status_by(
    control: LinkControl,
    view: LinkView = ONE_TOPIC,
    mirrors: Sequence[Run] | None = (),
    mapped: MappedTopics = NO_MAP,
    lost: LostCopies | None = LostCopies(),
    **more: Any,
) -> LinkStatus:
    """What a status says of what was read; nothing is compared, and no lag was seen."""
    topics = LinkTopics.from_json(control.topics or {})
    scope = LinkScope("dr", control, topics, mapped, view, is_translated=False, taken={}, lost_map=None, lost=lost)
    looks = Looks(0.0, [], 2.0, [], {})
    facts = LinkFacts(scope, looks, NOW_MS, False, {}, [], None, [], mirrors, "--link dr", "--link dr --source b:1")
    return status.status_of(replace(facts, **more), NOW_MS)


@pytest.mark.parametrize("reason", [LossReason.RETENTION, LossReason.TRUNCATION, LossReason.RECREATION])
def test_the_lag_of_a_translated_copy_is_unknown_where_the_source_has_another_log_than_was_copied(
    monkeypatch: pytest.MonkeyPatch, reason: LossReason
) -> None:
    """Its end minus the position says nothing; of what retention took alone, it does."""
    losses = ((LostOffsets(reason, 4, 10), DataLossError("The source has lost it")),)
    begins_at = None if reason is LossReason.RETENTION else 0
    one = Foreseen(("s", "t"), Resumption(4, None, False, begins_at, losses), True)
    monkeypatch.setattr(comparison, "foresee", AsyncMock(return_value={P: one}))
    source: Any = None
    compared = asyncio.run(compare_ends(source, source, [P], Ledger(source, "dr"), LinkControl(), is_translated=True))
    assert compared is not None and not compared.lost, "the target has all that was copied"
    control = LinkControl(topics=LinkTopics.of("orders").to_json(), map_id="m", begun={P: TopicIds("s", "t")})
    lag = PartitionLag(P, 10, 15, 15, 0)
    found = status_by(control, compared=compared, looks=Looks(0.0, [lag], 2.0, [lag], {}))
    ((row,), (text,)) = found.topics, [one.text for one in found.reasons if one.health is Health.BLOCKED]
    known = (5, ()) if reason is LossReason.RETENTION else (None, (0,))
    assert ((row.lag, row.unknown), text) == (known, "The source has lost it")


def test_a_link_that_is_over_has_no_reasons_but_what_is_unfinished_of_it() -> None:
    """However its mirrors and its logs are."""
    troubled: dict[str, Any] = {
        "unread": [Reason(Health.UNKNOWN, "what was lost is unknown")],
        "compared": Comparison({P: "another record"}),
        "forgotten": "its control says nothing",
        "kept": ["a topic"],
        "is_over_in_map": "it was promoted",
    }
    copying = replace(HAD, topics=LinkTopics.of("orders").to_json(), producer_ids=(7,))
    assert len(status_by(copying, mirrors=None, **troubled).reasons) == 5
    over = status_by(replace(copying, is_promotion_begun=True, is_fenced=True), mirrors=None, **troubled)
    assert (over.reasons, over.notes, over.health) == ((), (), Health.PROMOTED)


def test_a_promoted_partition_that_the_target_has_no_more_is_named_and_unknown() -> None:
    """Nothing copies it again."""
    named = LinkTopics.of("orders|other")
    over = LinkControl(topics=named.to_json(), is_promotion_begun=True, is_fenced=True, copied_until={P: 100})
    view = LinkView({"orders": [0], "other": [0]}, {}, {}, {})
    found = status_by(over, view, lost=LostCopies((P,)))
    (reason,) = found.reasons
    assert reason.text.startswith("orders-0: not on the target any more") and "on the source alone" in reason.text
    assert (found.health, found.exit_code, [t.topic for t in found.topics]) == (Health.UNKNOWN, 3, ["orders"])
    assert status_by(over, view).reasons == ()
    found = status_by(over, view, lost=None)
    (reason,) = found.reasons
    assert "still has what the link was promoted with is unknown" in reason.text
    assert (found.health, found.exit_code) == (Health.UNKNOWN, 3)


def test_what_a_promoted_link_left_behind_is_noted_and_no_fault_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `promote` exits with 3 for; where the source does not respond, it is unknown, and said to be."""
    over = LinkControl(topics=LinkTopics.of("orders").to_json(), is_promotion_begun=True, is_fenced=True)
    told = ["2 committed records of orders-0 were not copied: only the source has what is there"]
    lag, asked = PartitionLag(P, 100, 102, 102), list[Any]()

    async def left_texts(_: Any, control: LinkControl, lags: Any, unknown: Any) -> list[str]:
        asked.append((control, lags, unknown))
        return told

    monkeypatch.setattr(status, "left_texts", left_texts)
    looks = [([lag], {NEW: "no leader"})] * 2
    unseen = PartitionLag(NEW, 0, 3, 3)  # on the source alone
    seen = [lag, unseen], {COPIED: "created again"}
    found = read_by(monkeypatch, looks, {}, read_control=over, never_copied=([unseen], {}), as_left=seen)
    assert (found.exit_code, found.health, found.notes) == (0, Health.PROMOTED, tuple(told))
    assert asked == [(over, [lag, unseen], {NEW: "no leader", COPIED: "created again"})]
    fenced, unled = replace(over, copied_until={P: 100, COPIED: 5}), {COPIED: "no leader"}
    looks = [([lag], {NEW: "another link has it by now", **unled})] * 2
    read_by(monkeypatch, looks, {}, read_control=fenced, never_copied=([], {MADE: "both have it"}), as_left=([lag], {}))
    assert asked.pop() == (fenced, [lag], {**unled, MADE: "both have it"}), "as a repeated promotion says"
    found = read_by(monkeypatch, [([PartitionLag(P, 100)], {})] * 2, {}, read_control=over, is_source_away=True)
    assert (found.exit_code, len(asked)) == (0, 1)
    assert found.notes == ("what it left behind on the source is unknown: the source does not respond",)


def test_only_what_no_other_reason_names_is_told_to_stand_still() -> None:
    lag, looks = (
        PartitionLag(P, 10, 50, 50),
        Looks(0.0, [PartitionLag(P, 10, 50, 50)], 9.0, [PartitionLag(P, 10, 50, 50)], {}),
    )
    control = replace(HAD, topics=LinkTopics.of("orders").to_json())
    run = replace(RUN, is_alive=True)
    (reason,) = status_by(control, mirrors=[run], looks=looks, again=looks).reasons
    assert reason.text.startswith("orders-0 has not moved for 9 s")
    scope = LinkScope("dr", control, LinkTopics.of("orders"), NO_MAP, ONE_TOPIC, False, {}, None)
    facts = LinkFacts(scope, looks, NOW_MS, False, {}, [], None, [], [run], "", "")
    assert facts.seems_still and facts.unexplained == [lag]
    assert not replace(facts, compared=Comparison({P: "another record"})).seems_still
    unsettled = Comparison({}, unsettled={P: "retention overtook the mirror; it resumes, as its --on-loss says"})
    assert not replace(facts, compared=unsettled).seems_still
    found = status_by(control, mirrors=[run], looks=looks, compared=unsettled)
    assert [(r.health, r.text) for r in found.reasons] == [(Health.WAITING, unsettled.unsettled[P])]
    waits = replace(run, waiting={P: Waiting("no replicas", NOW_MS)})
    assert not replace(facts, mirrors=[waits]).seems_still
    longer = replace(control, copied={P: 40})
    assert not replace(facts, scope=replace(scope, control=longer)).seems_still


def test_a_target_that_goes_on_after_its_source_is_told_though_no_mirror_runs() -> None:
    """As a running mirror tells it; not of what is paused, or told otherwise, nor where nothing was compared."""
    control = replace(HAD, topics=LinkTopics.of("orders").to_json(), producer_ids=(7,))
    (lag,) = lags = [PartitionLag(P, 100, 1, 1)]
    looks, why = (
        Looks(0.0, lags, 2.0, lags, {}),
        "orders-0: the source has not come to offset 100 again, which the target keeps",
    )

    def texts(control: LinkControl = control, **more: Any) -> list[str]:
        found = status_by(control, **{"looks": looks, "compared": Comparison({}), "mirrors": [], **more})
        return [r.text for r in found.reasons if "has not come to offset" in r.text]

    assert texts() == [why]
    run = replace(RUN, is_alive=True, waiting={P: Waiting(kept_beyond(100), NOW_MS)})
    (once,) = texts(mirrors=[run])
    assert once != why and once.startswith("orders-0 since ")
    level = [replace(lag, stable_end=100, source_end=100)]
    for other in (
        {"control": replace(control, paused=frozenset({"orders"}))},
        {"looks": Looks(0.0, level, 2.0, level, {})},
        *(
            {"compared": found}
            for found in (None, Comparison({P: "lost"}), Comparison({}, (P,)), Comparison({}, opened={P: "open"}))
        ),
    ):
        assert texts(**other) == [], other
    scope = LinkScope("dr", control, LinkTopics.of("orders"), NO_MAP, ONE_TOPIC, True, {}, None)
    assert LinkFacts(scope, looks, NOW_MS, False, {}, [], Comparison({}), [], [], "", "").ahead == {}, "it has a map"


def test_a_target_log_that_is_shorter_than_what_was_copied_is_told() -> None:
    control = LinkControl(copied={P: 1_000})
    found = shortened([PartitionLag(P, 500, 1_000, 1_000)], control, False)
    assert found[P].startswith(
        "the target's log ends at offset 500, and the link had copied it up to 1000: it has lost"
    )
    for end, known, is_translated in (
        (1_000, control, False),
        (500, control, True),
        (500, replace(control, log_starts={P: 1_000}), False),  # still to be filled up to where it begins
        (None, control, False),
    ):
        assert not shortened([PartitionLag(P, end, 1_000, 1_000)], known, is_translated)


def test_what_is_told_as_blocked_or_paused_is_not_told_as_waiting_too() -> None:
    differs, ordered, waits = (TopicPartition("orders", n) for n in range(3))
    told = {p: Waiting("the target has records of others", 5) for p in (differs, ordered, waits)}
    control = LinkControl(paused_partitions=frozenset({ordered}))
    assert standing([replace(RUN, is_alive=True, waiting=told)], [differs], control) == {waits: told[waits]}
    assert standing([replace(RUN, waiting=told)], [], control) == {}


COPIED, NEW, MADE = TopicPartition("orders", 0), TopicPartition("new", 0), TopicPartition("made", 0)
HAD = LinkControl(begun={COPIED: TopicIds("s", "t")})


def test_what_was_copied_and_is_not_on_the_target_was_deleted_there() -> None:
    """No mirror has made what nobody knows.  A mirror that runs makes both by itself."""
    deleted, unmade = missing_reasons(sort_lacking([COPIED, NEW], HAD))
    assert deleted == Reason(Health.WAITING, f"orders-0: {DELETED_ON_TARGET}")
    assert DELETED_ON_TARGET.startswith("not on the target any more")
    assert unmade.health is Health.WAITING and unmade.text.startswith(
        "new-0: not on the target yet (1 partition is not)"
    )
    (gone,) = missing_reasons(Lacking([COPIED], [], []))
    assert gone == Reason(Health.BLOCKED, f"orders-0: {TRANSLATED_COPY_DELETED}")
    (warning,) = made_again_warnings(sort_lacking([COPIED, NEW], HAD))
    assert warning.startswith("topic orders is not on the target any more")


def test_a_deleted_copy_that_is_awaited_keeps_its_row_and_its_lag_is_unknown() -> None:
    control = replace(HAD, topics=LinkTopics.of("orders|new").to_json())
    view = LinkView({"orders": [0], "new": [0]}, {}, {}, {})
    (row,) = status_by(control, view).topics
    assert (row.topic, row.partitions, row.lag, row.unknown) == ("orders", 1, None, (0,))
    over = replace(control, is_promotion_begun=True, is_fenced=True)
    assert status_by(over, view, lost=LostCopies((COPIED,))).topics == (row,)


@pytest.mark.parametrize("topics", ["orders|new", "orders"])
@pytest.mark.parametrize(("is_alive", "holds"), [(True, True), (True, False), (False, True)])
def test_a_new_topic_is_a_note_while_a_mirror_runs_that_will_create_it(
    topics: str, is_alive: bool, holds: bool
) -> None:
    """As on the page, which names what the tasks and the clusters say: nothing is wrong before the mirror has looked for topics."""
    control = replace(HAD, topics=LinkTopics.of(topics).to_json(), producer_ids=())
    run = replace(RUN, is_alive=is_alive, holds=holds)
    view = LinkView({"orders": [0], "new": [0]}, {"orders": [0]}, {}, {})
    found = status_by(control, view, [run])
    is_note = is_alive and holds and topics == "orders|new"
    assert (len(found.notes), found.exit_code) == ((1, 0) if is_note else (0, 3))
    assert not is_note or found.notes[0].startswith(
        "new-0: not on the target yet: the running mirror creates what is missing"
    )
    if is_note:  # nobody fills a deleted copy with translated offsets again
        found = status_by(control, view, [run], NO_MAP._replace(partitions=frozenset({NEW})))
        assert (found.notes, found.exit_code) == ((), 3)
    assert is_note or "new-0: not on the target yet (1 partition is not): no mirror has created it" in found.findings


def test_a_plan_names_topics_and_partitions_that_the_source_has_no_more() -> None:
    fewer, gone = gone_refusals({"old": [0, 1], "a": [2, 3]}, {"a", "b"}, "--target b:1 --link dr")
    pause = "tolerant-kafka pause --target b:1 --link dr --topic a --partition 2 --partition 3: that ends this message"
    assert fewer.startswith("a-2, a-3: the source no longer has this partition") and fewer.endswith(
        f"Once you have seen to it, {pause}"
    )
    assert gone == f"old: {DELETED_ON_SOURCE}"


@pytest.mark.parametrize(
    "mirrors", [[], [replace(RUN, is_alive=True, waiting={COPIED: Waiting(DELETED_ON_SOURCE, 5, True)})]]
)
def test_status_blocks_on_a_copy_whose_topic_the_source_deleted_until_the_copy_is_deleted_too(
    mirrors: list[Run],
) -> None:
    """In the words of the page, once, and whether or not a mirror has said so; topics that the link never copied are unknown."""
    control = replace(HAD, topics=LinkTopics.of(".*").to_json())
    view = LinkView({"a": [0]}, {"a": [0], "orders": [0], "new": [0]}, {"orders": [0], "new": [0]}, {})
    found = status_by(control, view, mirrors)
    assert [r.text for r in found.reasons if r.health is Health.BLOCKED] == [f"orders-0: {DELETED_ON_SOURCE}"]
    assert "how far new-0 is copied is unknown" in str(found.reasons) and str(found.reasons).count("orders-0") == 1
    found = status_by(control, LinkView({"a": [0]}, {"a": [0]}, {}, {}), mirrors)
    assert "orders" not in str(found.reasons)


def test_a_remedy_is_never_cut_off_and_a_partition_is_named_once() -> None:
    long = f"orders-0: {'what is wrong ' * 60}; delete it on the target"
    (reason,) = waiting_reasons({P: Waiting(long, SOME_MINUTES_AGO, is_blocked=True)})
    assert reason.text.endswith("delete it on the target") and reason.text.count("orders-0") == 1
