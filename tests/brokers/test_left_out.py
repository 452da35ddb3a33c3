"""One topic that cannot be copied, on real brokers: it is told, and the others are copied; M1's refusals one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition

from support.mirror_link import append_records, both, configure, create_topic, delete_topic, ends, mirror, topics_of

pytest.importorskip("pyspark")

from spark_integration.mirror.stream_ranges import RangesStreamReader
from tolerant_client.errors import OptionError, TargetDivergedError
from tolerant_client.mirror.engine.prepare import PreparedLink, prepare_link
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.health import TRANSLATED_COPY_DELETED
from tolerant_client.mirror.state.map_topic import MAP_PARTITIONS, map_partition
from tolerant_client.ops.service import ranges
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.task_reports import RunReport
from tolerant_client.testing import KafkaCluster

STAMPED = {"message.timestamp.type": "LogAppendTime"}


def prepare(source: str, target: str, topics: str, *, goes_on: bool) -> PreparedLink:
    with both(source, target) as (origin, copy):

        async def run() -> PreparedLink:
            return await prepare_link(origin, copy, topics, "left-out", goes_on=goes_on)

        return origin.run(run)


@pytest.fixture(scope="module")
def topics(source: str, target: str) -> None:
    """Of three topics the target would rewrite the times of one, and has a name that collides with another one's."""
    for name in ("left.good", "left.stamped", "left.colliding"):
        create_topic(source, name, 2)
        append_records(source, name, 10, partitions=2)
    create_topic(target, "left.stamped", 2, STAMPED)
    create_topic(target, "left_colliding")


def copied(reader: RangesStreamReader) -> set[str]:
    """Runs a job's next micro-batch in this process; returns the topics of which it has copied anything."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)  # type: ignore[arg-type]
    rows: list[Any] = [row for task in reader.partitions(start, end) for row in reader.read(task)]
    return {topic for (found,) in rows for topic, _, _ in found}


def test_a_mirror_that_is_started_refuses_before_anything_is_written(source: str, target: str, topics: None) -> None:
    collides = "refuses to create topic left.colliding: .*collide"
    for name, why in (("stamped", "set it to CreateTime"), ("(good|colliding)", collides)):
        with pytest.raises(OptionError, match=why):
            prepare(source, target, f"left[.]{name}", goes_on=False)
    assert "left.good" not in topics_of(target)


def test_a_service_leaves_refused_topics_out_and_says_why(source: str, target: str, topics: None) -> None:
    link = prepare(source, target, "left[.].*", goes_on=True)
    assert {p.topic for p in link.ends} == {"left.good"}
    assert link.created == ("left.good",)
    refused = {TopicPartition(f"left.{name}", n) for name in ("stamped", "colliding") for n in (0, 1)}
    assert link.waiting.keys() == refused
    assert "set it to CreateTime" in link.waiting[TopicPartition("left.stamped", 1)]
    assert "collide" in link.waiting[TopicPartition("left.colliding", 0)]


def test_a_running_mirror_leaves_out_what_is_refused_or_deleted_and_takes_it_back(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("running.a", "running.b", "running.c")
    for name in names:
        create_topic(source, name)
        append_records(source, name, 10)
    properties = [{"bootstrap.servers": servers} for servers in (source, target)]
    settings = MirrorSettings(*properties, "running[.].*", refresh_s=0)
    reader = RangesStreamReader(MirrorJob(settings, folder=str(tmp_path)).options)
    waiting = RunReport(tmp_path).waiting

    try:
        assert copied(reader) == set(names)
        assert ends(target, "running.b") == [0]  # made
        configure(target, "running.b", message_timestamp_type="LogAppendTime")
        delete_topic(source, "running.c")
        assert copied(reader) == {"running.a"}
        told = waiting.read().blocked
        assert "LogAppendTime" in told[TopicPartition("running.b", 0)]
        assert "the source no longer has this topic" in told[TopicPartition("running.c", 0)]
        configure(target, "running.b", message_timestamp_type="CreateTime")
        delete_topic(target, "running.c")
        assert copied(reader) == {"running.a", "running.b"}
        assert waiting.read().blocked == {}
        reader.stop()
        configure(target, "running.b", message_timestamp_type="LogAppendTime")
        seldom = MirrorJob(replace(settings, refresh_s=600), folder=str(tmp_path))
        reader = RangesStreamReader(seldom.options)
        assert [copied(reader), copied(reader)] == [{"running.a"}] * 2
        configure(target, "running.b", message_timestamp_type="CreateTime")
        monkeypatch.setattr(ranges, "_CHECK_S", 0.0)  # 10 s
        assert copied(reader) == {"running.a", "running.b"} and waiting.read().blocked == {}
    finally:
        reader.stop()


def test_a_translated_copy_that_the_target_has_lost_is_left_out_by_every_mirror_and_not_made_again(
    source: str, target: str, tmp_path: Path
) -> None:
    lost, kept = names = ("lost.a", "lost.b")
    for name in names:
        create_topic(source, name)
        append_records(source, name, 10)
    properties = [{"bootstrap.servers": servers} for servers in (source, target)]
    settings = MirrorSettings(*properties, "lost[.].*", "lost", offsets="translated", refresh_s=0)

    def started(**how: Any) -> PreparedLink:
        with both(source, target) as (origin, copy):

            async def run() -> PreparedLink:
                return await prepare_link(origin, copy, "lost[.].*", "lost", is_translated=True, **how)

            return origin.run(run)

    def pause(topics: set[str]) -> None:
        with both(source, target) as (_, copy):

            async def run() -> None:
                await update_control(copy, "lost", lambda now: replace(now, paused=frozenset(topics)))

            copy.run(run)

    mirror(source, target, "lost[.].*", "lost", is_translated=True)
    reader = RangesStreamReader(MirrorJob(settings, folder=str(tmp_path)).options)
    waiting = RunReport(tmp_path).waiting

    why = {TopicPartition(lost, 0): TRANSLATED_COPY_DELETED}
    try:
        assert copied(reader) == set(names)
        delete_topic(target, lost)
        assert copied(reader) == {kept}
        told = waiting.read()
        assert (told.blocked, told.made_again, ends(target, lost)) == (why, {}, [-1])
    finally:
        reader.stop()
    with pytest.raises(TargetDivergedError, match="nothing fills it again"):
        started()
    assert started(goes_on=True).waiting == why
    pause({lost})
    assert started().waiting == why and ends(target, lost) == [-1]
    pause(set())
    with pytest.raises(TargetDivergedError, match="nothing fills it again"):
        started()


def test_what_an_unread_part_of_a_map_leaves_unknown_is_planned_again_once_that_part_has_a_leader(
    source: str, start_cluster: Callable[..., KafkaCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, of = "unread.a", "unread-promoted"
    cluster = start_cluster(nodes=3, heap="256m")
    target = cluster.bootstrap_servers
    create_topic(source, topic)
    append_records(source, topic, 10)
    part = map_partition(of, TopicPartition(topic, 0))
    assigned = {
        n: [3 if n == part.partition else 1] for n in range(MAP_PARTITIONS)
    }  # its rows are on the node that goes
    with kafka.KafkaAdminClient(bootstrap_servers=target) as admin:
        compacted = {"cleanup.policy": "compact"}
        admin.create_topics([NewTopic(part.topic, -1, -1, replica_assignments=assigned, topic_configs=compacted)])
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: [1]})])
    mirror(source, target, topic, of, is_translated=True)
    with both(source, target) as (_, there):
        assert there.run(failover, there, of).is_done
    cluster.kill(3)
    properties = [{"bootstrap.servers": servers} for servers in (source, target)]
    settings = MirrorSettings(*properties, "unread[.].*", "unread-other", offsets="translated", refresh_s=600)
    reader = RangesStreamReader(MirrorJob(settings, folder=str(tmp_path)).options)
    waiting, deadline = RunReport(tmp_path).waiting, time.monotonic() + 60

    def told() -> str:
        """Why the topic is not copied, after another look."""
        monkeypatch.setattr(ranges, "_CHECK_S", 0.0)  # 10 s
        reader.latestOffset(reader.initialOffset(), None)  # type: ignore[arg-type]
        return "".join(waiting.read().blocked.values())

    try:
        while "is not copied now" not in told() or f"{part.topic}-{part.partition}, a part of" not in told():
            assert time.monotonic() < deadline  # the election
        for _ in range(10):  # nor do other facts change from now on
            assert "is not copied now" in told()
            time.sleep(0.5)
        cluster.restart(3)
        while "is not copied now" in (why := told()):
            assert time.monotonic() < deadline
        assert "of this target is the copy of link unread-promoted" in why
    finally:
        reader.stop()
