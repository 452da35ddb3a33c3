"""`plan` lists exactly what a mirror does: a flow's switches and exclusions, and nothing besides copying for a plain mirror."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli import link
from spark_integration.cli.app import app
from spark_integration.cli.plan import _lines, _show, besides_of
from spark_integration.mirror.flow_links import duties_of
from support.commands import COMMANDS
from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.planned_link import PlannedLink
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.skipped import Left
from tolerant_client.mirror.life.plan_report import Besides, LinkPlan, TopicPlan, topic_plans
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.plan import TopicSpec, TopicsPlan
from tolerant_client.ops.mm2.flows import Flow, read_flows

FILE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
DUTIES = {
    "sync.group.offsets": "sync of group offsets",
    "sync.topic.configs": "sync of topic configurations",
    "sync.topic.acls": "sync of ACLs",
    "emit.heartbeats": "heartbeats",
    "emit.checkpoints": "checkpoints",
}


def flow(folder: Path, *lines: str) -> Flow:
    file = folder / "mm2.properties"
    file.write_text(FILE + "".join(f"{line}\n" for line in lines))
    (found,) = read_flows(file).flows
    return found


def planned_duties(besides: Besides) -> set[str]:
    found = {other.split(" ")[0] for other in besides.others} & {"heartbeats", "checkpoints"}
    if besides.groups is not None:
        found.add("sync of group offsets")
    if besides.config_exclude is not None:
        found.add("sync of topic configurations")
    if besides.has_acls:
        found.add("sync of ACLs")
    return found


@pytest.mark.parametrize("switched", [(), *((key,) for key in DUTIES), tuple(DUTIES)])
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_flow_is_planned_to_do_its_duties_and_no_others(
    tmp_path: Path, switched: tuple[str, ...], value: str
) -> None:
    of = flow(tmp_path, *(f"{key}.enabled = {value}" for key in switched))
    assert planned_duties(besides_of(of)) == {duty.name for duty in duties_of(of)} & set(DUTIES.values())


def test_what_a_flow_excludes_is_excluded_from_its_plan(tmp_path: Path) -> None:
    of = flow(
        tmp_path,
        "sync.group.offsets.enabled = true",
        "groups.exclude = secret-.*",
        "config.properties.exclude = retention.*",
        "use.defaults.from = source",
        "tolerant.throttle = 1000",
    )
    besides = besides_of(of)
    assert besides.groups is not None and not besides.groups.matches("secret-1") and besides.groups.matches("billing")
    assert besides.config_exclude == ("retention.*",)
    assert besides.use_defaults_from == "source"
    assert any(
        text.startswith("sync of the offsets of groups ") and text.endswith(", every 60 s") for text in besides.others
    )
    assert "at most 1,000 bytes/s, unless the operator sets another rate" in besides.others


def test_a_plain_mirror_does_nothing_besides_and_its_plan_takes_no_groups() -> None:
    assert Besides() == Besides(None, None, "target", False, ())
    assert "groups" not in {param.name for param in COMMANDS["plan"].params}


@pytest.mark.parametrize(("options", "is_start"), [(["--topics", "orders"], True), ([], False)])
def test_topics_are_planned_for_the_link_that_a_start_with_them_would_take(
    monkeypatch: pytest.MonkeyPatch, options: list[str], is_start: bool
) -> None:
    named: list[bool] = []

    def name(*_: object, is_start: bool) -> str:
        named.append(is_start)
        raise OptionError("enough")

    monkeypatch.setattr(link, "unnamed_link", name)
    CliRunner().invoke(app, ["plan", "--source", "a:1", "--target", "b:1", *options])
    assert named == [is_start]


def test_topics_are_planned_one_by_one_with_what_waits() -> None:
    wanted = {name: TopicSpec(name, 2, 3) for name in ("new", "grown", "there", "stamped")}
    present = {
        "grown": TopicSpec("grown", 1, 1),
        "there": TopicSpec("there", 2, 2),
        "stamped": TopicSpec("stamped", 2, 1),
    }
    topics = TopicsPlan(
        (TopicSpec("new", 2, 1, {"retention.ms": "1"}),), (wanted["there"],), (wanted["grown"],), (), {"stamped": "why"}
    )
    waiting = {TopicPartition("stamped", n): "why" for n in (0, 1)} | {TopicPartition("there", 1): "no leader"}
    ends = {TopicPartition(name, n): 10 for name in ("new", "grown", "there") for n in (0, 1)}
    planned, to_copy = PlannedLink(topics, ends, waiting, (wanted, present)), {**ends, TopicPartition("there", 0): 3}
    found = list(topic_plans(planned, to_copy, LinkControl(), "--link dr"))
    assert [(t.topic, t.action, t.partitions, t.target_partitions, t.replication_factor, t.to_copy) for t in found] == [
        ("grown", "grow", 2, 1, 1, 20),
        ("new", "create", 2, 0, 1, 20),
        ("stamped", "refuse", 2, 2, 3, None),
        ("there", "copy", 2, 2, 2, 13),
    ]
    assert (found[2].why, found[3].waiting, found[1].config) == ("why", {1: "no leader"}, {"retention.ms": "1"})
    assert not any(t.paused for t in found)
    held = LinkControl(paused=frozenset({"new", "stamped"}), paused_partitions=frozenset({TopicPartition("there", 1)}))
    new, refused, there = list(topic_plans(planned, to_copy, held, "--link dr"))[1:]
    assert (there.waiting, there.to_copy) == ({}, 13), "the mirror, too, calls it paused alone"
    assert there.paused == {
        1: "paused by an operator; to resume: tolerant-kafka resume --link dr --topic there --partition 1"
    }
    assert list(_lines(LinkPlan("dr", "identical", (there,)))) == [f"paused: there-1: {there.paused[1]}"]
    assert (new.paused.keys(), refused.paused, refused.partitions) == ({0, 1}, {}, 2)
    assert LinkPlan("dr", "identical", (there,)).exit_code == 3
    assert LinkPlan("dr", "identical", (replace(there, paused={}),)).exit_code == 0


def test_one_reason_why_many_partitions_wait_is_one_line() -> None:
    waiting = dict.fromkeys(range(1_000), "the offset map of the link is lost")
    topics = tuple(TopicPlan(topic, "copy", 1_000, 1_000, 1, None, {}, waiting=waiting) for topic in ("a", "b"))
    assert list(_lines(LinkPlan("dr", "translated", topics))) == [
        "waits: a-0 and 1,999 more partitions: the offset map of the link is lost"
    ]


def test_what_partitions_have_in_common_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    many = {name: TopicSpec(name, 60, 1) for name in ("wide", "narrow")}
    planned = PlannedLink(TopicsPlan((), tuple(many.values())), {}, {}, (many, many))
    each = frozenset(TopicPartition("narrow", n) for n in range(60))
    control = LinkControl(paused=frozenset({"wide"}), paused_partitions=each)
    topics = tuple(topic_plans(planned, {}, control, "--link dr"))
    stopped = tuple(Left(f"wide-{n}", "stopped", "nothing is copied there") for n in range(60))
    unmade = Left("group g, new-0", "no-topic", "the target has no such partition")
    groups = GroupsReport((), 0, (), (*reversed(stopped), unmade))
    numbers = " ".join(f"--partition {n}" for n in range(60))
    assert list(_lines(LinkPlan("dr", "identical", topics, groups=groups))) == [
        "paused: narrow-0 and 59 more partitions: paused by an operator; to resume: tolerant-kafka resume --link dr --topic narrow"
        f" {numbers}",
        "paused: wide-0 and 59 more partitions: paused by an operator; to resume: tolerant-kafka resume --link dr --topic wide",
        "groups left: wide-0 and 59 more: nothing is copied there",
        "groups left: group g, new-0: the target has no such partition",
    ]
    why = "Topic theirs of this target is the copy of another link, which was promoted: it belongs to its producers"
    theirs, other = (TopicPlan(name, "refuse", 1, 1, 1, None, {}, why) for name in ("theirs", "other"))
    for refusals, lines in (((why,), ["refused: " + why]), ((f"theirs-0: {why}",), [f"refused: theirs-0: {why}"])):
        _show(LinkPlan("dr", "identical", (theirs, other), refusals))
        assert [line for line in capsys.readouterr().out.splitlines() if why in line] == lines, "said once"
    _show(LinkPlan("dr", "identical", (theirs,), ("another",)))
    assert f"theirs, why: {why}" in capsys.readouterr().out
