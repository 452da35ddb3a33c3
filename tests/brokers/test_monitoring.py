"""What a watch and the tasks tell of a real link: lag before a copy, records, bytes and latencies after it."""

from __future__ import annotations

import secrets
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from kafka.structs import TopicPartition

from spark_integration.mirror.stream_ranges import RangesStreamWriter
from support.mirror_link import append_records, create_topic, prepare
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.process_copier import close_workers
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.service.link_state import Phase
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.task_reports import RunReport

EACH, PARTITIONS, AGE_MS = 500, 2, 20_000


class Row(NamedTuple):
    topic: str
    partition: int
    from_offset: int
    until_offset: int | None


def until(watch: LinkWatch, condition: Any, seconds: float = 60) -> Any:
    """The state once it is so."""
    deadline = time.monotonic() + seconds
    while not condition(watch.state):
        assert time.monotonic() < deadline, watch.state
        time.sleep(0.05)
    return watch.state


def test_lag_is_told_before_a_copy_and_what_was_copied_after_it(source: str, target: str, tmp_path: Path) -> None:
    topic = f"seen-{secrets.token_hex(4)}"
    create_topic(source, topic, PARTITIONS)
    written_ms = int(time.time() * 1000) - AGE_MS
    append_records(source, topic, EACH, partitions=PARTITIONS, timestamp=written_ms)
    link = prepare(source, target, topic, "A-B")
    properties = [{"bootstrap.servers": servers} for servers in (source, target)]
    settings = MirrorSettings(*properties, topic, once=True)
    writer = RangesStreamWriter(MirrorJob(settings, link.producer_id, str(tmp_path)).options)
    board = Board()
    with (
        StatusServer(board, "127.0.0.1:0") as server,
        LinkWatch(
            MirrorSettings(*properties, topic, "A-B"), link.ends, is_shown=False, board=board, names=("A", "B")
        ) as watch,
    ):
        before = until(
            watch, lambda state: state.topics[topic].lag_seconds and all(p.lag_bytes for p in state.partitions.values())
        ).topics[topic]
        assert before.lag_offsets == EACH * PARTITIONS
        assert AGE_MS / 1000 <= before.lag_seconds <= AGE_MS / 1000 + 120
        assert EACH * PARTITIONS * 5 < before.lag_bytes < EACH * PARTITIONS * 500  # as the source's brokers say

        message = writer.write(
            iter([SimpleNamespace(ranges=[Row(topic, index, 0, EACH) for index in range(PARTITIONS)])])
        )
        writer.commit([message], 0)
        watch.tell(RunReport(tmp_path).done.read())
        done = EACH * PARTITIONS, 0
        after = until(  # the board is told last
            watch,
            lambda _: (board.states()[0].topics[topic].records, board.states()[0].topics[topic].lag_offsets) == done,
        )
        copied = after.topics[topic]
        assert (copied.records, copied.lag_seconds, after.phase) == (EACH * PARTITIONS, 0, Phase.RUNNING)
        assert copied.bytes / copied.records == pytest.approx(before.lag_bytes / before.lag_offsets, rel=0.2)
        assert AGE_MS <= copied.latency.least <= copied.latency.greatest < AGE_MS + 240_000
        assert 0 <= copied.latency.mean - copied.age.mean < 30_000  # sent, then acknowledged
        assert (after.report.records, after.report.acked) == (
            EACH * PARTITIONS,
            {TopicPartition(topic, index): EACH for index in range(PARTITIONS)},
        )
        with urllib.request.urlopen(f"{server.url}metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        assert f'tolerant_mirror_records_total{{link="A-B",topic="{topic}"}} {EACH * PARTITIONS}.0' in lines
        mm2 = "kafka_connect_mirror_mirrorsourceconnector_record_count"
        assert f'{mm2}{{partition="1",source="A",target="B",topic="{topic}"}} {EACH}.0' in lines
        assert watch.copied == EACH * PARTITIONS

        with Cluster({"bootstrap_servers": target}) as cluster:
            held = frozenset((topic,))
            cluster.run(update_control, cluster, "A-B", lambda now: replace(now, bytes_per_s=5_000, paused=held))
        ordered = until(watch, lambda state: state.control.bytes_per_s == 5_000)
        assert (ordered.topics[topic].paused, ordered.throttle_from, ordered.leaderless) == (PARTITIONS, "operator", {})
    close_workers()


def test_a_second_copy_adds_to_the_report(source: str, target: str, tmp_path: Path) -> None:
    topic = f"seen-{secrets.token_hex(4)}"
    create_topic(source, topic)
    partition = TopicPartition(topic, 0)
    properties = [{"bootstrap.servers": servers} for servers in (source, target)]
    settings = MirrorSettings(*properties, topic, once=True)
    for number in (1, 2):
        append_records(source, topic, EACH, first=EACH * (number - 1))
        link = prepare(source, target, topic)
        writer = RangesStreamWriter(MirrorJob(settings, link.producer_id, str(tmp_path)).options)
        writer.commit([writer.write(iter([SimpleNamespace(ranges=[Row(topic, 0, 0, EACH * number)])]))], number)
        told = RunReport(tmp_path).done.read()
        assert (told.records, told.copied[partition].records, told.latest[partition].records) == (
            EACH * number,
        ) * 2 + (EACH,)
        assert sum(told.latencies) >= number
    close_workers()
    with Cluster({"bootstrap_servers": target}) as cluster:
        assert cluster.run(cluster.list_offsets, {partition: -1}) == {partition: 2 * EACH}
