"""A target whose broker comes back without the ends of logs, as after a power failure or an unclean election: links with translated offsets."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from kafka.structs import TopicPartition

from support.mirror_link import append_records, both, create_topic, ends, mirror
from support.raising_copier import LinkCopier
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError, TolerantClientError
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow.translate import translate
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state.health import Health
from tolerant_client.mirror.state.map_rows import last_rows
from tolerant_client.mirror.state.map_topic import map_partition
from tolerant_client.mirror.state.offset_map import Place
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.records.record_batch import read_header
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NEWEST, ALL, MARKER, RUNNING = "ends-newest", "ends-all", "ends-marker", "ends-running"  # topics, and links


def cut(cluster: KafkaCluster, offsets: dict[TopicPartition, int]) -> None:
    """Kills the only broker, and restarts it with logs that end before the batches at these offsets."""
    cluster.kill(1)
    for (topic, number), offset in offsets.items():
        (folder,) = cluster.work_dir.glob(f"node-1/**/{topic}-{number}")
        for log in folder.glob("*.log"):
            data, size = memoryview(log.read_bytes()), 0
            while size < len(data) and (header := read_header(data[size:])).base_offset < offset:
                size += header.size
            os.truncate(log, size)
            if int(log.stem) > offset:
                log.unlink()
        for snapshot in folder.glob("*.snapshot"):
            snapshot.unlink()
    cluster.restart(1)


class Lost(NamedTuple):
    """A target after the cut, where its logs ended before other links copy on, and what the link said that copied meanwhile."""

    target: str
    ends: dict[str, int]
    said: TolerantClientError | None


@pytest.fixture(scope="module")
def lost(source: str, start_cluster: Callable[..., KafkaCluster]) -> Iterator[Lost]:
    cluster = start_cluster(heap="320m")
    target, rows = cluster.bootstrap_servers, dict[str, int]()
    for topic in (NEWEST, ALL, MARKER, RUNNING):
        create_topic(source, topic)
    for count in (0, 5):
        for topic in (NEWEST, ALL, MARKER):
            append_records(source, topic, 5, first=count)
            rows[topic] = ends(target, map_partition(topic, TopicPartition(topic, 0)).topic, 8)[
                map_partition(topic, TopicPartition(topic, 0)).partition
            ]
            mirror(source, target, topic, topic, is_translated=True)
    append_records(source, RUNNING, 10)
    partition = TopicPartition(RUNNING, 0)
    said: TolerantClientError | None = None
    with both(source, target) as (origin, copy):

        async def run() -> None:
            await prepare_link(origin, copy, RUNNING, RUNNING, is_translated=True)
            copier = LinkCopier(origin, copy, translated_offsets(), link=RUNNING)
            await copier.copy({partition: 10}, lease_ms=600_000)
            # It stands here meanwhile: this loop is blocked.
            cut(
                cluster,
                {
                    map_partition(NEWEST, TopicPartition(NEWEST, 0)): rows[NEWEST],
                    map_partition(ALL, TopicPartition(ALL, 0)): 0,
                    TopicPartition(MARKER, 0): ends(target, MARKER)[0] - 1,
                    partition: 0,
                },
            )
            append_records(target, RUNNING, 40, first=100)  # of others
            append_records(source, RUNNING, 3, first=10)
            await copier.copy({partition: 13})

        try:
            origin.run(run)
        except TolerantClientError as error:
            said = error
    yield Lost(target, {topic: ends(target, topic)[0] for topic in (NEWEST, ALL, MARKER, RUNNING)}, said)
    gc.collect()  # the sockets of refused connections, while their warnings are still ignored


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        (NEWEST, "the link's offset map tells of copies up to offset 5 only: it has lost rows"),
        (ALL, "the link's offset map has no row of it: it has lost rows"),
    ],
)
def test_a_map_that_has_lost_rows_lets_nothing_be_copied_twice(source: str, lost: Lost, topic: str, told: str) -> None:
    for _ in range(2):
        with pytest.raises(TargetDivergedError, match=told):
            mirror(source, lost.target, topic, topic, is_translated=True)
    with Cluster({"bootstrap_servers": lost.target}, name="target") as cluster:
        known = cluster.run(last_rows, cluster, topic, [TopicPartition(topic, 0)])
    assert {row.position for row in known.values()} <= {5} and ends(lost.target, topic) == [lost.ends[topic]]


def test_a_copy_that_has_lost_its_marker_is_no_loss_of_the_source(source: str, lost: Lost) -> None:
    """Nobody is told to go on after a loss that the source does not have; the copy would be aborted with the next one, and never come."""
    append_records(source, MARKER, 5, first=10)
    for _ in range(2):
        with pytest.raises(TargetDivergedError, match="nothing that is committed, but had .* it has lost what was"):
            mirror(source, lost.target, MARKER, MARKER, is_translated=True)


def test_a_target_that_lost_copies_under_a_running_mirror_gets_no_further_ones_behind_what_others_wrote(
    source: str, lost: Lost
) -> None:
    """Once a further record was copied, nothing would show that loss any more, and promote would end well."""
    told = "it has lost what was copied .*, and others wrote in its place"
    with pytest.raises(TargetDivergedError, match=told):
        raise lost.said or AssertionError("it has copied on")
    with pytest.raises(TargetDivergedError, match=told):
        mirror(source, lost.target, RUNNING, RUNNING, is_translated=True)
    assert lost.ends[RUNNING] == 40
    with both(source, lost.target) as (origin, copy):
        planned = origin.run(lambda: plan_everything(origin, copy, RUNNING, RUNNING, is_translated=True))
        assert planned.exit_code == 3 and [text for text in planned.refusals if re.search(told, text)], planned
        status = origin.run(lambda: read_status(origin, copy, RUNNING, LinkTopics.of(RUNNING)))
        assert status.health is Health.BLOCKED and [text for text in status.findings if re.search(told, text)], status
        promoted = origin.run(lambda: promote(origin, copy, RUNNING, LinkTopics.of(RUNNING), is_dry_run=True))
        assert promoted.exit_code == 3 and [text for text in promoted.blockers if re.search(told, text)], promoted
        (found,) = origin.run(lambda: translate(copy, RUNNING, {TopicPartition(RUNNING, 0): 9})).values()
        assert found.found is not None and found.found.place is Place.FORMER_TOPIC and "others wrote" in found.why
