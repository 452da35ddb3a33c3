"""The doctor's findings about a link, about addresses, and about checks that could not be made; and its output."""

from __future__ import annotations

import io
import json
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition
from rich.console import Console
from typer.testing import CliRunner

import tolerant_client.ops.doctor
from spark_integration.cli import doctor as doctor_module
from spark_integration.cli.app import app
from spark_integration.cli.doctor import flow_subjects, link_options
from support.certificate import self_signed
from support.commands import COMMANDS
from tolerant_client.errors import ClusterUnreachableError, OptionError
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.lost_copies import LostCopies
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.control_topic import FORGOTTEN
from tolerant_client.mirror.state.health import DELETED_ON_SOURCE, DELETED_ON_TARGET
from tolerant_client.mirror.state.ledger import UNREADABLE
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.mirror.state.map_rows import MappedTopics
from tolerant_client.mirror.state.offset_map import MapRow, RowKey
from tolerant_client.mirror.state.offset_map import Run as MapRun
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.replication_policy import IdentityReplicationPolicy, TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.ops.doctor import link_examination
from tolerant_client.ops.doctor.checkup import Checkup, not_made
from tolerant_client.ops.doctor.connectivity import (
    Probe,
    Stage,
    address_findings,
    identity_findings,
    same_cluster_findings,
    version_findings,
)
from tolerant_client.ops.doctor.facts import Broker, ClusterFacts, Topic
from tolerant_client.ops.doctor.finding import CHECKS, Finding, Severity, duration, exit_code, size, some
from tolerant_client.ops.doctor.link_checks import (
    Backlog,
    LinkOptions,
    Retention,
    ahead_findings,
    creation_findings,
    progress_findings,
    retention_findings,
    size_findings,
    topic_findings,
)
from tolerant_client.ops.doctor.link_examination import literal_names
from tolerant_client.ops.doctor.link_records import blocked_findings, control_findings, ledger_findings
from tolerant_client.ops.doctor.probing import parse_address, probe_all
from tolerant_client.ops.doctor.report import as_json, print_report
from tolerant_client.ops.doctor.rights import CHECKPOINTS, Duty
from tolerant_client.ops.doctor.state_topics import state_topic_findings

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
NOW = 1_763_775_000_000
HOUR, DAY = 3_600_000, 86_400_000
WEEK = 7 * DAY


def severities(findings: Any) -> list[Severity]:
    return [f.severity for f in findings]


# -- topics and sizes ---------------------------------------------------------

ORDERS = TopicPartition("orders", 0)
PLAIN = {"message.timestamp.type": "CreateTime", "cleanup.policy": "delete", "retention.ms": "1000"}
PLAIN |= {"max.message.bytes": "1048588"}
LIMITS = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}


def spec(partitions: int = 3, **settings: str) -> TopicSpec:
    effective = {**PLAIN, **LIMITS, **{name.replace("_", "."): value for name, value in settings.items()}}
    return TopicSpec("orders", partitions, 3, {}, effective)


@pytest.mark.parametrize(
    ("present", "check", "severity", "words"),
    [
        (spec(), None, None, ""),
        (None, "topics", INFO, "not on the target yet"),
        (spec(message_timestamp_type="LogAppendTime"), "topics", ERROR, "LogAppendTime"),
        (spec(partitions=2), "topics", WARNING, "2 partitions on the target and 3 on the source"),
        (spec(partitions=4), "topics", INFO, "4 partitions on the target and 3 on the source"),
        (spec(cleanup_policy="compact"), "topics", WARNING, "compacted on the target only"),
        (spec(max_message_bytes="1000"), "sizes", WARNING, "1000 bytes on the target"),
        (spec(message_timestamp_before_max_ms="5"), "topics", WARNING, "older than 5 ms"),
        (spec(retention_ms="10"), "topics", WARNING, "keeps records 10 ms on the target"),
    ],
)
def test_target_topic_against_the_source(
    present: TopicSpec | None, check: str | None, severity: Severity | None, words: str
) -> None:
    found = list(topic_findings({"orders": spec()}, {} if present is None else {"orders": present}, 3, LinkControl()))
    assert [(f.check, f.severity) for f in found] == ([] if check is None else [(check, severity)])
    assert all(words in f.evidence and f.remedy and not f.remedy.startswith(" ") for f in found)


HAD = LinkControl(begun={ORDERS: TopicIds()})


def test_a_topic_that_the_link_has_copied_and_the_target_lacks_was_deleted_there() -> None:
    deleted, missing = topic_findings({"new": replace(spec(), name="new"), "orders": spec()}, {}, 3, HAD)
    assert (deleted.severity, deleted.evidence) == (WARNING, DELETED_ON_TARGET)
    assert (missing.severity, missing.evidence) == (INFO, "not on the target yet: a mirror creates what is missing")


def test_nothing_is_copied_into_more_partitions_of_the_target_unless_the_link_has_begun_them() -> None:
    there = {"orders": spec(4)}
    (more,) = topic_findings({"orders": spec(3)}, there, 3, HAD)
    assert "nothing is copied into the others" in more.evidence, "others may write there"
    assert not list(
        topic_findings({"orders": spec(3)}, there, 3, LinkControl(begun={TopicPartition("orders", 3): TopicIds()}))
    ), "told as blocked"


def facts(**settings: str) -> ClusterFacts:
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    return ClusterFacts("target", "b:9092", "id", 1, {1: Broker(1, "b", 9092)}, {}, broker_configs={1: settings})


def test_record_that_no_request_can_hold() -> None:
    large = {"orders": spec(max_message_bytes="2000")}
    assert list(size_findings(facts(), large)) == []
    assert list(size_findings(facts(socket_request_max_bytes="2000"), large)) == []
    assert severities(size_findings(facts(socket_request_max_bytes="1999"), large)) == [WARNING]


def test_creation_that_brokers_refuse() -> None:
    (refused,) = creation_findings(facts(), ["orders"], [], "Cluster authorization failed.", "User:m")
    assert (refused.check, refused.severity) == ("rights", ERROR)
    assert refused.remedy.endswith("--operation Create --topic orders")
    (policy,) = creation_findings(facts(), ["orders"], [], "The target refuses to create topic orders: no", "User:m")
    assert (policy.check, policy.severity) == ("topics", ERROR)
    assert severities(creation_findings(facts(), ["orders"], ["created without x"], "", "User:m")) == [INFO]


LOSS = LedgerRow(1, "l", "orders", 0, 40, 60, "retention", "")


# -- retention ----------------------------------------------------------------

P = TopicPartition("orders", 0)


def backlog(
    position: int,
    start: int,
    end: int,
    age_ms: int | None = 0,
    *,
    copied: int = 0,
    appended: int = 0,
    source_bytes: int | None = None,
    partition: TopicPartition = P,
) -> Backlog:
    before = PartitionLag(partition, position - copied, end - appended, source_start=start)
    now = PartitionLag(
        partition,
        position,
        end,
        source_start=start,
        oldest_ms=None if age_ms is None else NOW - age_ms,
        bytes_per_offset=None if source_bytes is None else source_bytes / (end - start),
    )
    return Backlog(before, now)


@pytest.mark.parametrize(
    ("one", "expected", "words"),
    [
        (backlog(90, 0, 100, age_ms=DAY), [], ""),
        (backlog(100, 0, 100, age_ms=WEEK), [], ""),  # nothing is left to copy
        (backlog(90, 0, 100, age_ms=WEEK - 12 * HOUR), [WARNING], "may be deleted in 12.0 h"),
        (backlog(90, 0, 100, age_ms=WEEK - HOUR // 2), [ERROR], "may be deleted in 30 min"),
        (backlog(90, 0, 100, age_ms=WEEK + HOUR), [ERROR], "were due for deletion 60 min ago"),
        (backlog(90, 0, 100, age_ms=None), [], ""),  # its time is not known
        # 10 left, 5 gained in 10 s: ready in 20 s.
        (backlog(90, 0, 100, age_ms=WEEK + HOUR, copied=9, appended=4), [], ""),
        # 9,000 left, 5 gained in 10 s: ready in 5 h.
        (backlog(1000, 0, 10_000, age_ms=WEEK - 4 * HOUR, copied=9, appended=4), [WARNING], "all is copied in 5.0 h"),
        (backlog(1000, 0, 10_000, age_ms=WEEK - 6 * HOUR, copied=9, appended=4), [], ""),
        (backlog(1000, 0, 10_000, age_ms=WEEK - HOUR // 2, copied=9, appended=9), [ERROR], "it falls behind"),
        (backlog(0, 60, 100, age_ms=WEEK), [], ""),  # not begun
        (backlog(40, 60, 100, age_ms=0), [ERROR], "orders-0 offsets 40 to 60 are gone"),
    ],
)
def test_uncopied_records_against_their_retention(one: Backlog, expected: list[Severity], words: str) -> None:
    found = list(retention_findings([one], {"orders": Retention(WEEK, None)}, [], NOW, 10))
    assert severities(found) == expected
    assert all(words in f.evidence for f in found)


@pytest.mark.parametrize(
    ("position", "expected"),
    [(60, []), (50, [WARNING]), (11, [WARNING]), (10, [ERROR])],  # of 100 offsets in 1,000 bytes
)
def test_uncopied_bytes_against_the_size_that_is_kept(position: int, expected: list[Severity]) -> None:
    one = backlog(position, 0, 100, source_bytes=1000)
    assert severities(retention_findings([one], {"orders": Retention(None, 1000)}, [], NOW, 10)) == expected


def test_loss_that_is_in_the_ledger_is_not_told_again() -> None:
    one, row = backlog(40, 60, 100), LOSS
    assert list(retention_findings([one], {}, [row], NOW, 10)) == []
    assert severities(retention_findings([one], {}, [row._replace(until_offset=59)], NOW, 10)) == [ERROR]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, Retention(5, None)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "7"}, Retention(None, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5", "retention.bytes": "7"}, Retention(5, 7)),
        ({"retention.ms": "5"}, None),
    ],
)
def test_retention_is_what_the_cleanup_policy_makes_of_it(config: dict[str, str], expected: Retention | None) -> None:
    assert Retention.of(config) == expected


def test_target_that_is_ahead() -> None:
    assert list(ahead_findings([backlog(100, 0, 100)], LinkOptions())) == []
    assert severities(ahead_findings([backlog(101, 0, 100)], LinkOptions())) == [ERROR]


MOVING = backlog(9, 0, 100, copied=1, partition=TopicPartition("orders", 1))


@pytest.mark.parametrize(
    ("backlogs", "paused", "seconds", "words"),
    [
        ([backlog(90, 0, 100)], (), 10, "10 offsets of orders-0 wait, and none was copied in 10 s"),
        ([backlog(90, 0, 100), MOVING], (), 10, "while others move"),
        ([backlog(90, 0, 100)], (), 2, None),  # too short a look
        ([backlog(100, 0, 100)], (), 10, None),
        ([backlog(90, 0, 100, appended=10)], (), 10, None),  # all of it has just come
        ([MOVING], (), 10, None),
        ([backlog(0, 0, 100)], (), 10, None),  # never started
        ([backlog(0, 30, 100), MOVING], (), 10, "70 offsets of orders-0 wait"),
        ([backlog(90, 0, 100)], ("",), 10, None),
        ([backlog(90, 0, 100)], ("orders",), 10, None),
        ([backlog(90, 0, 100)], ("orders-1",), 10, "none was copied"),
    ],
)
def test_standstill(backlogs: list[Backlog], paused: tuple[str, ...], seconds: float, words: str | None) -> None:
    found = list(progress_findings("l", backlogs, LinkControl(paused=frozenset(paused)), seconds))
    assert severities(found) == ([] if words is None else [WARNING])
    assert all(str(words) in f.evidence for f in found)


def test_promoted_link_stands_by_intention() -> None:
    assert list(progress_findings("l", [backlog(90, 0, 100)], LinkControl(is_promotion_begun=True), 10)) == []


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (LinkControl(), []),
        (LinkControl(paused=frozenset({""})), [WARNING]),
        (LinkControl(paused=frozenset({"", "orders"})), [WARNING]),
        (LinkControl(is_promotion_begun=True), [WARNING]),
        (LinkControl(bytes_per_s=5), [INFO]),
        (LinkControl(bytes_per_s=0), []),  # the operator has taken the limit away
    ],
)
def test_control_of_the_link(control: LinkControl, expected: list[Severity]) -> None:
    assert severities(control_findings("l", control, LinkOptions(), None, None)) == expected


def test_a_promotion_that_is_not_finished_is_not_called_promoted() -> None:
    half = LinkControl(is_promotion_begun=True)
    begun, over = (
        next(iter(control_findings("l", control, LinkOptions(), None, None)))
        for control in (half, replace(half, is_fenced=True))
    )
    assert "has not ended" in begun.evidence and "Run it again" in begun.remedy
    assert over.evidence.startswith("it is promoted")


LOST = "Topic tolerant-mirror-offsets-dr was deleted: unknown. Mirror it under another link name; or not"


def test_a_lost_map_is_an_error_as_long_as_the_link_copies() -> None:
    (found,) = control_findings("dr", LinkControl(), LinkOptions(), LOST, None)
    assert (found.severity, found.remedy) == (ERROR, "Mirror it under another link name; or not")
    assert found.evidence == "Topic tolerant-mirror-offsets-dr was deleted: unknown"
    assert severities(control_findings("dr", LinkControl(is_promotion_begun=True), LinkOptions(), LOST, None)) == [
        WARNING
    ]


@pytest.mark.parametrize(
    ("topic", "config", "change"),
    [
        ("claims", {"cleanup.policy": "delete", "retention.ms": "3600000"}, None),
        ("claims", {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1000"}, None),
        ("claims", {"cleanup.policy": "compact", "retention.ms": "1000"}, None),
        ("claims", {"cleanup.policy": "delete", "retention.ms": "1000"}, "retention.ms=3600000"),
        ("ledger", {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, None),
        (
            "ledger",
            {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"},
            "retention.ms=-1",
        ),
        ("ledger", {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1"}, "retention.bytes=-1"),
        ("ledger", {"cleanup.policy": "compact", "retention.ms": "1"}, "cleanup.policy=delete,retention.ms=-1"),
        ("ledger", {"cleanup.policy": "compact", "retention.ms": "-1"}, "cleanup.policy=delete"),
        ("control", {"cleanup.policy": "compact", "retention.ms": "1"}, None),
        ("control", {"cleanup.policy": "compact,delete", "retention.ms": "1"}, "cleanup.policy=compact"),
        ("offsets-dr", {"cleanup.policy": "delete", "retention.ms": "-1"}, "cleanup.policy=compact"),
        ("offsets-dr", {}, None),  # the brokers do not tell
    ],
)
def test_state_topics_that_lose_what_they_must_keep_are_named(
    topic: str, config: dict[str, str], change: str | None
) -> None:
    found = list(state_topic_findings(replace(facts(), configs={f"tolerant-mirror-{topic}": config}), "dr"))
    assert [(f.severity, f.thing) for f in found] == [(ERROR, f"topic tolerant-mirror-{topic}")] * (change is not None)
    assert [f.remedy.partition("  # ")[0].endswith(f"-{topic} --add-config {change}") for f in found] == [True] * len(
        found
    )
    is_gone = topic in ("control", "offsets-dr")
    assert ["  # nothing that is deleted already comes back" in f.remedy for f in found] == [is_gone] * len(found)


def test_a_mirror_that_runs_without_a_control_is_found() -> None:
    """As `list`, `status` and the page say it."""
    (found,) = control_findings(
        "dr", LinkControl(), LinkOptions(), None, f"A mirror of link dr runs on m1, and {FORGOTTEN}"
    )
    assert found.severity is ERROR and found.evidence.endswith("and it gets no orders")
    assert found.remedy.startswith("Stop that mirror and start it again with Create, Read and Write on that topic")


@pytest.mark.parametrize("is_over", [False, True])
def test_what_blocks_the_link_is_an_error_with_the_remedy_that_status_gives(is_over: bool) -> None:
    left, refused, earlier, waits = (TopicPartition(topic, 0) for topic in ("old", "new", "was", "slow"))
    control = LinkControl(begun={left: TopicIds()}, is_promotion_begun=is_over)
    waiting = {
        left: Waiting(DELETED_ON_SOURCE, 5, is_blocked=True),
        refused: Waiting("new-0: the record is too large; raise it, or (one; two)", 5, True, "raise it, or (one; two)"),
        earlier: Waiting("a reason of an earlier version; raise it, or (one; two)", 5, is_blocked=True),
        waits: Waiting("its broker is slow", 5),
    }
    run = Run("dr", "r", "m1", 812, 0, 9, is_alive=True, waiting=waiting)
    behind = {left: DELETED_ON_SOURCE}
    found = list(blocked_findings("dr", [run], control, behind, {}))
    copy = "Delete the copy on the target only if the topic was deleted on the source and you do not need the copy"
    expected = {
        "blocked: new-0: the record is too large": "Raise it, or (one; two)",
        "blocked: was-0: a reason of an earlier version; raise it, or (one; two)": "Do what it says; status names all partitions",
        "blocked: old-0: the source no longer has this topic, or does not show it to us (is Describe on it still granted?)": copy,
    }
    assert {f.evidence: f.remedy for f in found if f.severity is ERROR} == ({} if is_over else expected)
    assert len(found) == (0 if is_over else 3)
    without = list(blocked_findings("dr", [], control, behind, {}))
    assert [f.evidence for f in without] == [
        "blocked: old-0: the source no longer has this topic, or does not show it to us (is Describe on it still granted?)"
    ] * (not is_over)


def test_a_log_that_differs_is_told_as_blocked_though_no_mirror_runs_and_so_is_that_none_runs() -> None:
    why, control = "The target log of orders-0 has a foreign record batch at offset 20", LinkControl(producer_ids=(7,))
    one, idle = blocked_findings("dr", [], control, {}, {ORDERS: why})
    assert (one.severity, one.evidence) == (ERROR, f"blocked: {why}")
    assert (idle.severity, idle.evidence) == (WARNING, "no mirror of link dr has been seen in the last hour: start it")
    paused = replace(control, paused=frozenset({"orders"}))
    assert [f.severity for f in blocked_findings("dr", [], paused, {}, {ORDERS: why})] == [WARNING]
    assert list(blocked_findings("dr", None, control, {}, {})) == [], "the claims could not be read"
    waits = Run("dr", "run-1", "m1", 812, 1, 2, is_alive=True, holds=False)
    assert list(blocked_findings("dr", [waits], control, {}, {})) == [], "one runs, until its partitions are free"
    assert list(blocked_findings("dr", [], LinkControl(), {}, {})) == [], "no mirror was ever started"


@pytest.mark.parametrize("gone", [(), ("begun",), ("maybe",)])
def test_the_doctor_sees_that_the_source_deleted_a_topic_though_no_mirror_runs(
    monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...]
) -> None:
    old, found = {TopicPartition("old", 0): "the source has it no more"}, list[Finding]()

    def ask(_: str, __: Any, function: Any, *___: Any) -> Any:
        return LinkControl() if function.__name__ == "read_control" else None

    checkup = cast(Checkup, SimpleNamespace(ask=ask, add=found.extend))
    one: Any = SimpleNamespace(facts=ClusterFacts("target", "", None, None, {}, {}), raw=None, quorum=None)
    for name in ("_examine_rights", "_examine_topics", "_examine_backlog"):
        monkeypatch.setattr(link_examination._Link, name, lambda *_: None)
    said = (old if "begun" in gone else {}, old if "maybe" in gone else {})
    monkeypatch.setattr(link_examination._Link, "_ask_both", lambda *_: said)
    link_examination._Link(link_examination.Subject({}, link="dr"), one, one, {}, checkup).examine({})
    told = [(f.severity, f.evidence) for f in found if "old-0" in f.evidence]
    assert told == [(ERROR, "blocked: old-0: the source has it no more")] * gone.count("begun") + [
        (WARNING, "how far old-0 is copied is unknown: the source has it no more")
    ] * gone.count("maybe")


def test_the_map_of_the_link_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    control, found = LinkControl(map_id="an-id"), list[Finding]()

    def ask(check: str, cluster: Any, function: Any, *args: Any) -> Any:
        answers = {"read_control": lambda: control, "lost_map": lambda: LOST if args[1:] == ("dr", control) else None}
        return answers.get(function.__name__, lambda: None)()

    checkup = SimpleNamespace(ask=ask, add=found.extend)
    one: Any = SimpleNamespace(facts=ClusterFacts("target", "", None, None, {}, {}), raw=None, quorum=None)
    for name in ("_examine_rights", "_examine_topics", "_examine_backlog"):
        monkeypatch.setattr(link_examination._Link, name, lambda *_: None)
    monkeypatch.setattr(link_examination._Link, "_ask_both", lambda *_: None)
    subject = link_examination.Subject({}, link="dr")
    link_examination._Link(subject, one, one, {}, cast(Checkup, checkup)).examine({})
    assert [f.evidence for f in found if f.check == "control"] == [
        "Topic tolerant-mirror-offsets-dr was deleted: unknown"
    ]


def test_commands_about_the_link_are_whole(tmp_path: Path) -> None:
    given: dict[str, tuple[str | None, Path | None]]
    given = {"source": ("a:1", None), "target": ("b:1", tmp_path / "b b.properties")}
    options = link_options(given, "dr")
    assert options.of_target == f"--target b:1 --target-properties '{tmp_path}/b b.properties' --link dr"
    stopped = LinkControl(paused=frozenset({"orders"}), bytes_per_s=5)
    remedies = [finding.remedy for finding in control_findings("dr", stopped, options, None, None)]
    remedies += [finding.remedy for finding in ahead_findings([backlog(101, 0, 100)], options)]
    assert [shlex.split(text, comments=True)[:2] for text in remedies] == [
        ["tolerant-kafka", name] for name in ("resume", "throttle", "verify")
    ]
    assert "throttle off --target b:1" in remedies[1] and "verify --source a:1 --target b:1" in remedies[2]
    for text in remedies:
        _, name, *words = shlex.split(text, comments=True)
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_topics_that_an_expression_names_whole_are_meant_even_where_they_are_hidden() -> None:
    assert literal_names(LinkTopics.of(r"orders|payments\..*|a\.b")) == ["a.b", "orders"]


@pytest.mark.parametrize("switched_off", ["", "sync.topic.acls", "emit.checkpoints", "B->A.emit.heartbeats"])
def test_duties_of_a_flow_are_those_that_its_file_switches_on(tmp_path: Path, switched_off: str) -> None:
    file = tmp_path / "mm2.properties"
    lines = ["clusters = A, B", "A.bootstrap.servers = a:1", "B.bootstrap.servers = b:1", "A->B.enabled = true"]
    file.write_text("\n".join([*lines, f"{switched_off}.enabled = false"] if switched_off else lines))
    (subject,) = flow_subjects(file)
    everything = frozenset(Duty) - {Duty.MARKERS, Duty.TAKE_OVER}
    less = {
        "sync.topic.acls": {Duty.ACLS},
        "emit.checkpoints": {Duty.CHECKPOINTS, Duty.GROUPS},
        "B->A.emit.heartbeats": {Duty.HEARTBEATS_BACK},
    }
    assert subject.duties == everything - less.get(switched_off, set())
    assert subject.called == {"heartbeats": "heartbeats", CHECKPOINTS: "A.checkpoints.internal"}
    assert subject.options.of_target == f"--config {file} --flow 'A->B'"


def test_ledger_counts_offsets_by_topic_and_reason_of_its_link_only() -> None:
    row = LOSS
    rows = [
        row,
        row._replace(partition=1),
        row._replace(reason="oversized", until_offset=41),
        row._replace(link="other"),
    ]
    found = [f.evidence.partition(",")[0] for f in ledger_findings("l", rows)]
    assert found == ["1 offset not on the target (oversized)", "40 offsets not on the target (retention)"]
    assert severities(ledger_findings("l", [row._replace(link="", reason=UNREADABLE)])) == [WARNING]
    (again,) = ledger_findings("l", [row._replace(until_offset=row.from_offset, reason="recreation", time_ms=1_000)])
    assert (
        again.evidence == "its log on the source became another one (recreation), recorded at 1970-01-01 00:00:01 UTC"
    )


# -- addresses ----------------------------------------------------------------


def probe(stage: Stage, error: str = "", **more: Any) -> Probe:
    return replace(Probe("kafka.example:9092", True, None, stage, error), **more)


@pytest.mark.parametrize(
    ("one", "protocol", "words", "remedy"),
    [
        (probe(Stage.NAME, "Name or service not known"), "PLAINTEXT", "has no address here", "Correct the name"),
        (probe(Stage.CONNECTION, "Connection refused"), "PLAINTEXT", "nothing listens there", "Start the broker"),
        (probe(Stage.CONNECTION, "timed out"), "PLAINTEXT", "does not accept the connection", "firewall"),
        (probe(Stage.TLS, "[SSL: WRONG_VERSION_NUMBER]"), "SSL", "does not speak TLS", "without SSL"),
        (probe(Stage.TLS, "EOF", speaks_tls=False), "SASL_SSL", "does not speak TLS", "without SSL"),
        (probe(Stage.TLS, "CERTIFICATE_VERIFY_FAILED: self-signed"), "SSL", "is not trusted", "truststore"),
        (probe(Stage.TLS, "CERTIFICATE_VERIFY_FAILED: Hostname mismatch"), "SSL", "for another name", "Use the name"),
        (probe(Stage.TLS, "CERTIFICATE_VERIFY_FAILED: certificate has expired"), "SSL", "has expired", "Renew"),
        (
            probe(Stage.TLS, "TLSV13_ALERT_CERTIFICATE_REQUIRED: certificate required"),
            "SSL",
            "refuses our side",
            "keystore",
        ),
        (probe(Stage.LOGIN, "Authentication failed"), "SASL_SSL", "refuses our login", "user and password"),
        (probe(Stage.LOGIN, "UnsupportedSaslMechanismError"), "SASL_SSL", "does not offer our SASL", "sasl.mechanism"),
        (probe(Stage.RESPONSE, "closed", speaks_tls=True), "PLAINTEXT", "speaks TLS", "security.protocol to SSL"),
        (
            probe(Stage.RESPONSE, "closed", speaks_tls=True),
            "SASL_PLAINTEXT",
            "speaks TLS",
            "security.protocol to SASL_SSL",
        ),
        (probe(Stage.RESPONSE, "nothing within 5 s"), "PLAINTEXT", "does not respond", "hangs"),
        (probe(Stage.RESPONSE, "timed out"), "PLAINTEXT", "does not respond", "hangs"),
        (probe(Stage.RESPONSE, "not answered within its timeout"), "SASL_SSL", "does not respond", "hangs"),
        (probe(Stage.RESPONSE, "closed"), "PLAINTEXT", "require a login (SASL)", "security.protocol"),
    ],
)
def test_failed_connection_in_plain_words(one: Probe, protocol: str, words: str, remedy: str) -> None:
    (found,) = address_findings("source", protocol, [one], NOW / 1000)
    assert found.severity is ERROR and words in found.evidence and remedy in found.remedy


def test_one_bootstrap_address_of_several_is_a_warning_an_advertised_one_is_an_error() -> None:
    spoken = probe(Stage.SPOKEN)
    assert list(address_findings("source", "PLAINTEXT", [spoken], 0)) == []
    refused = probe(Stage.CONNECTION, "Connection refused", address="other:9092")
    assert severities(address_findings("source", "PLAINTEXT", [spoken, refused], 0)) == [WARNING]
    (one,) = address_findings("source", "PLAINTEXT", [spoken, replace(refused, is_bootstrap=False, node_id=2)], 0)
    assert one.severity is ERROR and "advertised.listeners of broker 2" in one.remedy


@pytest.mark.parametrize(
    ("bootstrap", "advertised", "is_wrong"),
    [
        ("kafka.example:9092", "localhost:9092", True),
        ("kafka.example:9092", "127.0.0.1:9092", True),
        ("kafka.example:9092", "[::1]:9092", True),
        ("localhost:9092", "127.0.0.1:9092", False),
        ("kafka.example:9092", "b1.example:9092", False),
    ],
)
def test_advertised_loopback_is_wrong_for_who_comes_from_afar(bootstrap: str, advertised: str, is_wrong: bool) -> None:
    # Something else may listen on our own port 9092: that it accepts connections proves nothing.
    probes = [
        probe(Stage.SPOKEN, address=bootstrap),
        probe(Stage.SPOKEN, address=advertised, is_bootstrap=False, node_id=1),
    ]
    assert severities(address_findings("source", "PLAINTEXT", probes, 0)) == ([ERROR] if is_wrong else [])


@pytest.mark.parametrize(("left_s", "expected"), [(31 * 86_400, []), (29 * 86_400, [WARNING]), (-10, [ERROR])])
def test_certificate_that_expires(left_s: float, expected: list[Severity]) -> None:
    one = probe(Stage.SPOKEN, certificate_expires=NOW / 1000 + left_s)
    assert severities(address_findings("source", "SSL", [one], NOW / 1000)) == expected


def test_versions_and_identities() -> None:
    new = probe(Stage.SPOKEN, version="4.2", api_versions={0: (0, 13)}, cluster_id="x")
    old = probe(Stage.SPOKEN, address="b2:9092", version="3.9", api_versions={0: (0, 11)}, cluster_id="x")
    ancient = probe(Stage.SPOKEN, version="0.10", api_versions={0: (0, 2)})
    assert severities(version_findings("target", [new], is_target=True)) == [INFO]
    assert severities(version_findings("target", [new, old], is_target=True)) == [WARNING]
    assert severities(version_findings("target", [ancient], is_target=True)) == [INFO, ERROR]
    assert severities(version_findings("source", [ancient], is_target=False)) == [INFO]
    assert list(identity_findings("source", [new, old])) == []
    assert severities(identity_findings("source", [new, replace(old, cluster_id="y")])) == [ERROR]
    assert severities(same_cluster_findings("x", "x")) == [ERROR]
    assert list(same_cluster_findings("x", "y")) == list(same_cluster_findings(None, None)) == []


# -- probes, on sockets of our own --------------------------------------------


@contextmanager
def listening(context: ssl.SSLContext | None = None, is_silent: bool = False) -> Iterator[str]:
    """A server that is not a broker: it sends nothing, or closes each connection after the first bytes."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            held.append(connection)
            if is_silent:
                continue
            try:
                connection.settimeout(2)
                if context is not None:
                    connection = context.wrap_socket(connection, server_side=True)
                connection.recv(100)
            except OSError:
                pass
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)
        for connection in held:
            connection.close()


def probed(address: str, **config: Any) -> Probe:
    (one,) = probe_all([parse_address(address)], {"bootstrap_servers": [address], **config}, 1.5)
    return one


def test_probe_says_at_which_stage_it_ended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    assert probed(free).stage is Stage.CONNECTION
    assert probed("no-such-host.invalid:9092").stage is Stage.NAME
    with listening() as plain:
        assert (probed(plain).stage, probed(plain, security_protocol="SSL").stage) == (Stage.RESPONSE, Stage.TLS)
        assert probed(plain, security_protocol="SSL").speaks_tls is False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    with listening(context) as secured:
        mistaken = probed(secured)
        assert (mistaken.stage, mistaken.speaks_tls) == (Stage.RESPONSE, True)
        untrusted = probed(secured, security_protocol="SSL")
        assert untrusted.stage is Stage.TLS and "CERTIFICATE_VERIFY_FAILED" in untrusted.error
        assert (
            untrusted.certificate_expires is not None and 0 < untrusted.certificate_expires - time.time() < 3 * 86_400
        )


def test_silent_address_ends_in_time() -> None:
    began = time.monotonic()
    with listening(is_silent=True) as silent:
        one = probed(silent)
    assert one.stage is Stage.RESPONSE and one.error
    assert time.monotonic() - began < 10
    assert "does not respond" in next(address_findings("source", "PLAINTEXT", [one], 0)).evidence


# -- checks that could not be made --------------------------------------------


@pytest.mark.parametrize(
    ("error", "severity", "remedy"),
    [
        (Errors.UnsupportedVersionError("the brokers of the source do not know X"), INFO, "newer brokers report it"),
        (Errors.ClusterAuthorizationFailedError("no"), INFO, "Allow Describe on the cluster"),
        (Errors.KafkaTimeoutError("10 s"), WARNING, "did not respond"),
        (Errors.UnknownError("?"), WARNING, "logs"),
        (
            OptionError("A record is not ours").advising("run tolerant-kafka repair"),
            WARNING,
            "Run tolerant-kafka repair",
        ),
        (TypeError("bug"), WARNING, "fault of the doctor"),
    ],
)
def test_check_that_could_not_be_made_is_a_finding(error: Exception, severity: Severity, remedy: str) -> None:
    checkup = Checkup()

    def check() -> None:
        raise error

    assert checkup.make("log-dirs", "source", check) is None
    (one,) = checkup.findings
    assert one == not_made("log-dirs", "source", error)
    assert one.severity is severity and remedy in one.remedy and CHECKS["log-dirs"] in one.thing
    assert [run.outcome for run in checkup.runs] == ["not-made"]


def test_examination_that_blocks_is_cut_off_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(link_examination, "_SPEAKING_S", 0.2)
    monkeypatch.setattr("tolerant_client.ops.doctor.cluster_examination.probe_all", lambda *_: released.wait(20) and [])
    subject = link_examination.Subject({"cluster": {"bootstrap.servers": "127.0.0.1:1"}}, seconds=0)
    checkup = link_examination.examine(subject, Checkup(check_s=0.1))
    released.set()
    (one,) = checkup.findings
    assert "during: addresses of the cluster" in one.evidence
    assert checkup.exit_code == 2


def test_fault_of_the_doctor_is_a_finding_and_no_health(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(link_examination, "examine_addresses", fails)
    subject = link_examination.Subject({"cluster": {"bootstrap.servers": "127.0.0.1:1"}}, seconds=0)
    checkup = link_examination.examine(subject)
    (one,) = checkup.findings
    assert (one.check, one.severity) == ("examination", WARNING) and "ZeroDivisionError: bug" in one.evidence
    assert checkup.exit_code == 2


@pytest.mark.parametrize("names", [["heartbeats", "orders"], ["heartbeats"], []])
def test_a_source_that_is_away_is_no_error_of_the_target(names: list[str]) -> None:
    """The target's topics may belong to a reverse link or to others, with names that no copy of this link has."""
    policy = IdentityReplicationPolicy(source_alias="A")
    topics = LinkTopics(TopicFilter(("orders",)), names=TopicNames(policy, "A"), target_alias="B")
    subject = link_examination.Subject(
        dict.fromkeys(("source", "target"), {"bootstrap.servers": "127.0.0.1:1"}), topics
    )
    checkup = Checkup()
    examination = link_examination._Examination(subject, dict.fromkeys(subject.clusters, {}), checkup)
    shown = {name: Topic(name) for name in names}
    found: Any = SimpleNamespace(facts=replace(facts(), topics=shown), raw=SimpleNamespace(name="target"))
    examination._found["target"] = found
    assert examination._choose_topics() == ({"orders": "orders"} if "orders" in names else {})
    assert checkup.findings == []


@pytest.mark.parametrize("name", ["source", "target", "cluster"])
def test_a_cluster_without_the_topics_is_named_as_what_it_was_given_as(name: str) -> None:
    """The target's or the only cluster's topics are no topics of a source that was not given."""
    clusters = {name: {"bootstrap.servers": "127.0.0.1:1"}}
    checkup = Checkup()
    subject = link_examination.Subject(clusters, LinkTopics.of("orders"))
    examination = link_examination._Examination(subject, {name: {}}, checkup)
    shown = {"payments": Topic("payments")}
    found: Any = SimpleNamespace(facts=replace(facts(), topics=shown), raw=SimpleNamespace(name=name))
    examination._found[name] = found
    assert examination._choose_topics() == {}
    (finding,) = checkup.findings
    assert f"No topic of the {name} matches 'orders'; the {name} has payments (" in finding.evidence


def test_wrong_properties_are_refused_before_anything_is_looked_at() -> None:
    with pytest.raises(OptionError, match="security.protocol"):
        link_examination.examine(
            link_examination.Subject({"source": {"bootstrap.servers": "a:1", "security.protocol": "X"}})
        )


# -- output -------------------------------------------------------------------


def finding(severity: Severity, check: str = "durability") -> Finding:
    return Finding(severity, check, "source", "[bold]topic", "evidence", "remedy")


@pytest.mark.parametrize(
    ("found", "is_examined", "code"),
    [
        ([], True, 0),
        ([INFO], True, 0),
        ([INFO, WARNING], True, 3),
        ([WARNING, ERROR], True, 1),
        ([ERROR], False, 2),
        ([], False, 2),
    ],
)
def test_exit_code_is_that_of_the_worst(found: list[Severity], is_examined: bool, code: int) -> None:
    assert exit_code(map(finding, found), is_examined=is_examined) == code


def test_report_does_not_grow_with_the_cluster() -> None:
    many = [replace(finding(WARNING), thing=f"topic t{n}") for n in range(5_000)]
    checkup = Checkup(names=("source",))
    checkup.add([*many, finding(ERROR)])
    checkup.add(many)
    assert len(checkup.findings) == 5_001
    shown = as_json(checkup, 1.0)["findings"]
    assert [f["severity"] for f in shown] == ["error", *["warning"] * 21]
    assert shown[-1]["thing"] == "4980 more" and "t20, topic t21" in shown[-1]["evidence"]


def test_report_has_its_schema_and_shows_names_as_they_are() -> None:
    known = {"is_examined": True, "cluster_id": "x", "brokers": 1, "topics": 2, "partitions": 3}
    checkup = Checkup(
        names=("source",),
        findings=[finding(INFO), finding(ERROR)],
        clusters=[{"name": "source", "bootstrap_servers": "b:1", **known}],
    )
    checkup.make("quotas", "source", lambda: 1)
    report = json.loads(json.dumps(as_json(checkup, 1.5)))
    assert report.keys() == {"version", "outcome", "exit_code", "seconds", "clusters", "findings", "checks"}
    assert [f["severity"] for f in report["findings"]] == ["error", "info"]
    assert report["findings"][0].keys() == {"severity", "check", "cluster", "thing", "evidence", "remedy"}
    assert report["checks"][0].keys() == {"check", "cluster", "outcome", "seconds"}
    text = io.StringIO()
    print_report(checkup, 1.5, Console(file=text, width=160))
    assert "[bold]topic" in text.getvalue() and "ERRORS: 1 error, 0 warnings, 1 note; 1 of 1 checks" in text.getvalue()
    checkup.names = ("source", "target")
    print_report(checkup, 1.5, Console(file=text, width=160))
    assert "NOT EXAMINED (target): 1 error, 0 warnings, 1 note; 1 check made" in text.getvalue()
    brief = io.StringIO()
    print_report(checkup, 1.5, Console(file=brief, width=160), is_brief=True)
    assert "info" not in brief.getvalue()


def test_every_check_is_documented_and_every_finding_is_of_one() -> None:
    folder = Path(tolerant_client.ops.doctor.__file__).parent
    documented = (folder / "README.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py") if path.name != "finding.py")
    for check in CHECKS:
        assert f"### {check}\n" in documented
        assert f'"{check}"' in code
    assert documented.count("\n### ") == len(CHECKS)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(3_200, "3.2 s"), (25 * 60_000, "25 min"), (4 * HOUR, "4.0 h"), (12 * DAY, "12 days"), (-5_000, "5.0 s")],
)
def test_durations_are_said_as_people_do(ms: float, text: str) -> None:
    assert duration(ms) == text


def test_sizes_and_lists() -> None:
    assert [size(n) for n in (900, 1 << 20, 3 << 30)] == ["900 bytes", "1.0 MiB", "3.0 GiB"]
    assert (some([]), some([1, 2]), some(range(12), 3)) == ("none", "1, 2", "0, 1, 2 and 9 more")


@pytest.mark.parametrize(
    ("given", "outcome", "link"),
    [
        ((), "mirror-abc", "mirror-abc"),
        (("--link", "dr"), "mirror-abc", "dr"),
        ((), ClusterUnreachableError("away"), "default"),  # which the examination tells
    ],
)
def test_the_doctor_examines_the_link_that_other_commands_mean(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], outcome: str | Exception, link: str
) -> None:
    examined: list[link_examination.Subject] = []

    def name(*_: object, **__: object) -> str:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def examine(subject: link_examination.Subject) -> Checkup:
        examined.append(subject)
        return Checkup()

    monkeypatch.setattr(doctor_module, "unnamed_link", name)
    monkeypatch.setattr(doctor_module, "examine", examine)
    CliRunner().invoke(app, ["doctor", "--source", "a:1", "--target", "b:1", "--json", *given])
    assert [(subject.link, subject.options.of_target) for subject in examined] == [
        (link, f"--target b:1 --link {link}")
    ]


def test_the_doctor_does_not_choose_between_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def several(*_: object, **__: object) -> str:
        raise OptionError("The target has 2 links")

    monkeypatch.setattr(doctor_module, "unnamed_link", several)
    done = CliRunner().invoke(app, ["doctor", "--source", "a:1", "--target", "b:1"])
    assert isinstance(done.exception, OptionError)


@pytest.mark.parametrize(
    ("given", "is_named"), [((), False), (("--link", "dr"), True), (("--link", "dr", "--topics", "orders"), False)]
)
def test_what_examines_a_link_that_the_target_must_know(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], is_named: bool
) -> None:
    examined: list[link_examination.Subject] = []
    monkeypatch.setattr(doctor_module, "unnamed_link", lambda *_, **__: "mirror-abc")
    monkeypatch.setattr(doctor_module, "examine", lambda subject: examined.append(subject) or Checkup())
    CliRunner().invoke(app, ["doctor", "--source", "a:1", "--target", "b:1", "--json", *given])
    assert [subject.asks_control and subject.is_named for subject in examined] == [is_named]


NEVER = (
    "Link rd was never started on this target, or its record in tolerant-mirror-control was deleted; the links of this target"
    " are dr: check --target and --link, or give --topics"
)
GONE = "Link rd: its control is gone, stop its mirror and start it again; runs on m1, since 2026-11-29 08:12:40 UTC. Or give --topics"


@pytest.mark.parametrize(
    ("said", "is_named", "findings"),
    [
        (NEVER, True, [(*NEVER.rsplit(": ", 1)[:1], "Check --target and --link, or give --topics")]),
        (
            GONE,
            True,
            [
                (
                    "its control is gone, stop its mirror and start it again; runs on m1, since 2026-11-29 08:12:40 UTC",
                    "Do what it says, or give --topics",
                )
            ],
        ),
        (None, True, []),  # it could not be asked: another finding says so
        (NEVER, False, []),  # before a first start all topics are examined
    ],
)
def test_topics_are_not_judged_as_those_of_a_named_link_that_the_target_does_not_know(
    said: str | None, is_named: bool, findings: list[tuple[str, str]]
) -> None:
    clusters = dict.fromkeys(("source", "target"), {"bootstrap.servers": "127.0.0.1:1"})
    told = list[Finding]()

    def ask(_: str, __: Any, function: Any, *___: Any) -> Any:
        return LinkControl() if function.__name__ == "read_control" else said

    subject = link_examination.Subject(clusters, link="rd", asks_control=True, is_named=is_named)
    checkup = cast(Checkup, SimpleNamespace(ask=ask, add=told.extend))
    examination = link_examination._Examination(subject, dict.fromkeys(clusters, {}), checkup)
    one: Any = SimpleNamespace(facts=facts(), raw=None)
    examination._found.update(source=one, target=one)
    assert examination._take_topics() is not is_named
    assert [(f.severity, f.thing) for f in told] == [(ERROR, "link rd")] * len(findings)
    assert [(f.evidence, f.remedy) for f in told] == findings


def test_topics_are_not_judged_as_those_of_a_named_link_whose_control_is_hidden() -> None:
    clusters = dict.fromkeys(("source", "target"), {"bootstrap.servers": "127.0.0.1:1"})
    told = list[Finding]()
    checkup = cast(Checkup, SimpleNamespace(ask=lambda *_: LinkControl(is_hidden=True), add=told.extend))
    subject = link_examination.Subject(clusters, link="rd", asks_control=True, is_named=True)
    examination = link_examination._Examination(subject, dict.fromkeys(clusters, {}), checkup)
    one: Any = SimpleNamespace(facts=facts(), raw=None)
    examination._found.update(source=one, target=one)
    assert not examination._take_topics()
    ((severity, evidence, remedy),) = [(f.severity, f.evidence, f.remedy) for f in told]
    assert severity is ERROR and evidence.startswith("What link rd copies is unknown, since we may not read topic ")
    assert remedy == "Grant us Describe and Read on it, or give --topics"


def test_no_mirror_makes_again_what_was_deleted_after_the_link_was_promoted() -> None:
    control = replace(HAD, is_promotion_begun=True)
    assert list(topic_findings({"new": replace(spec(), name="new"), "orders": spec()}, {}, 3, control)) == []
    (lost,) = (
        f
        for f in control_findings("dr", control, LinkOptions(), None, None, LostCopies((ORDERS,)))
        if ERROR is f.severity
    )
    assert lost.evidence.startswith("orders-0: not on the target any more") and lost.remedy
    unknown, *_ = control_findings("dr", control, LinkOptions(), None, None, None)
    assert unknown.evidence.startswith("whether the target still has what the link was promoted with is unknown")


def test_what_was_copied_with_translated_offsets_is_not_said_to_be_filled_again() -> None:
    row = MapRow(RowKey(ORDERS, 0), "orders", ("s", "t"), 5, 1, (MapRun(0, 0, 5),))
    mapped = MappedTopics(frozenset({ORDERS}), copies={ORDERS: row})
    gone, missing = topic_findings({"new": replace(spec(), name="new"), "orders": spec()}, {}, 3, LinkControl(), mapped)
    assert gone.severity is ERROR and "nothing fills it again" in gone.evidence
    assert gone.remedy == "Mirror it alone under another link name to copy it again"
    assert missing.thing == "topic new"


def test_a_control_that_is_gone_is_named() -> None:
    (gone,) = control_findings("dr", LinkControl(), LinkOptions(), None, None, has_copied=True)
    assert (gone.severity, gone.evidence.partition(":")[0]) == (ERROR, "its control is gone")
    assert not list(control_findings("dr", LinkControl(), LinkOptions(), None, None)), "it was never started"
