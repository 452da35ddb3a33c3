"""What a mirror, plan, status and --once make of a source whose log an unclean election has cut (M7, incident 4)."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import (
    T0,
    append_batches,
    append_records,
    both,
    consume,
    create_replicated,
    ends,
    losses,
    mirror,
    values,
)
from support.raising_copier import LinkCopier
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import DataLossError, SourceTruncatedError, TolerantClientError, text_of
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.life.plan_report import LinkPlan, plan_everything
from tolerant_client.mirror.life.status import LinkStatus, read_status
from tolerant_client.mirror.logs.reading import source_truncations
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing import KafkaCluster

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

CONTINUE = MirrorPolicy(on_loss=LossPolicy.CONTINUE)
SHORTER, LONGER = "cut-shorter", "cut-longer"  # than what was copied; both with translated offsets
KEPT = "cut-kept"  # shorter, with identical offsets
# Begun at the source's end, and then nothing was copied.
BEGUN, BEGUN_KEPT = "cut-begun", "cut-begun-kept"
NOW = T0 + 1_000  # after what the source had before the cut


@contextmanager
def three_nodes() -> Iterator[KafkaCluster]:
    # One election by unclean replicas at once, not after five minutes.
    settings = {"unclean.leader.election.enable": "true", "unclean.leader.election.interval.ms": "1000"}
    with KafkaCluster(nodes=3, broker_config=settings, heap="256m") as cluster:
        yield cluster
    gc.collect()  # the sockets of refused connections, while their warnings are still ignored


def shrink(cluster: KafkaCluster, *topics: str) -> None:
    """Leaves node 1 as the only in-sync replica, with 100 records more than node 2 has."""
    servers = cluster.bootstrap_servers
    for topic in topics:
        create_replicated(
            servers, topic, [1, 2], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        )
        append_records(servers, topic, 100)
    cluster.kill(2)
    for topic in topics:
        append_records(servers, topic, 100, first=100)  # waits until the in-sync replicas are one


def cut(cluster: KafkaCluster, records_after: Mapping[str, int]) -> str:
    """Node 1 dies, and node 2 leads these topics (an unclean election), and gets other records; the address of a node that lives."""
    third = f"127.0.0.1:{cluster.servers_of('PLAINTEXT').split(',')[2].rpartition(':')[2]}"
    cluster.kill(1)
    cluster.restart(2, wait=False)
    with Cluster({"bootstrap_servers": third}, name="source", patience_ms=60_000) as source:

        async def led_by_the_other() -> None:
            await source.track(records_after)
            while {source.manager.cluster.leader_for_partition(TopicPartition(t, 0)) for t in records_after} != {2}:
                await source.refresh()
                await source.net.sleep(0.5)

        source.run(led_by_the_other)
    append_others(third, records_after)
    return third


def append_others(servers: str, records: Mapping[str, int]) -> None:
    for topic, count in records.items():
        other = encode_batch([Record(0, NOW, None, b"other %d" % n) for n in range(count)])
        append_batches(servers, [(TopicPartition(topic, 0), other)])


@pytest.mark.parametrize(("records_after", "from_ms"), [(50, None), (150, None), (150, NOW)])
def test_what_an_unclean_election_took_back_is_found_and_written_down(
    target: str, records_after: int, from_ms: int | None
) -> None:
    """Also of a mirror at work that has begun at the source's end, and copied nothing yet."""
    topic = f"trouble-cut-{records_after}-{from_ms}"
    with three_nodes() as cluster:
        servers, partition = cluster.bootstrap_servers, TopicPartition(topic, 0)
        shrink(cluster, topic)
        with both(servers, target) as (origin, copy):

            async def run() -> dict[TopicPartition, int]:
                link = await prepare_link(origin, copy, topic, topic, from_ms=from_ms)
                copier = LinkCopier(origin, copy, identical_offsets(link.producer_id), link=topic)
                await copier.copy({partition: 200}, lease_ms=600_000)
                epoch = copier.strategy.partitions[partition].leader_epoch
                cut(cluster, {topic: records_after})  # blocks this loop: the mirror sleeps meanwhile
                truncated = await source_truncations(origin, {partition: (epoch, 200)})
                with pytest.raises(SourceTruncatedError, match="other records from offset 100 on"):
                    await copier.copy({partition: 250}, hold_ms=30_000, lease_ms=60_000)
                return truncated

            assert origin.run(run) == {partition: 100}
        assert ends(target, topic) == [200]
        (progress,) = mirror(servers, target, topic, topic, policy=CONTINUE).values()
        assert losses(target, topic) == [(0, 100, 200, "truncation")]
        assert progress.acked == max(200, 100 + records_after)
        assert values(target, topic, 250).get(249) == (b"other 149" if records_after == 150 else None)
        assert mirror(servers, target, topic, topic)[partition].losses == 0


@pytest.fixture(scope="module")
def cut_source(target: str) -> Iterator[str]:
    """A source that was cut at offset 100, after all links had come to offset 200."""
    with three_nodes() as cluster:
        shrink(cluster, SHORTER, LONGER, KEPT, BEGUN, BEGUN_KEPT)
        for topic in SHORTER, LONGER:
            mirror(cluster.bootstrap_servers, target, topic, topic, is_translated=True)
        mirror(cluster.bootstrap_servers, target, KEPT, KEPT)
        for topic, is_translated in (BEGUN, True), (BEGUN_KEPT, False):
            mirror(cluster.bootstrap_servers, target, topic, topic, is_translated=is_translated, from_ms=NOW)
        yield cut(cluster, {SHORTER: 50, LONGER: 150, KEPT: 50, BEGUN: 150, BEGUN_KEPT: 150})


def foreseen(source: str, target: str, link: str, **policy: Any) -> tuple[LinkPlan, LinkStatus]:
    with both(source, target) as (origin, copy):
        planned = origin.run(partial(plan_everything, **policy), origin, copy, link, link)
        return planned, origin.run(read_status, origin, copy, link)


@pytest.mark.parametrize(("topic", "offsets"), [(SHORTER, "translated"), (KEPT, "identical")])
def test_a_mirror_that_policy_does_not_let_begin_exits_with_2_and_writes_nothing(
    cut_source: str, target: str, topic: str, offsets: str
) -> None:
    once = ["mirror", "--source", cut_source, "--target", target, "--topics", topic, "--link", topic, "--once"]
    with Cluster({"bootstrap_servers": target}, name="reader") as cluster:
        before = cluster.run(read_control, cluster, topic)
        done = CliRunner().invoke(app, [*once, "--tasks", "0", "--offsets", offsets, "--json"])
        found = json.loads(done.stdout)
        assert (done.exit_code, found["exit_code"]) == (2, 2), found
        assert "100" in found["error"] and losses(target, topic) == []
        assert cluster.run(read_control, cluster, topic) == before


@pytest.mark.parametrize("topic", [SHORTER, LONGER])
def test_plan_and_status_name_the_cut_that_ends_the_mirror(cut_source: str, target: str, topic: str) -> None:
    """Also once the log has grown past what was copied, and the offset from which on records were lost, not the log's end."""
    with pytest.raises(
        DataLossError, match=f"{topic}-0 was cut at offset 100, but it was copied up to 200: "
    ) as caught:
        mirror(cut_source, target, topic, topic, is_translated=True)
    text = text_of(caught.value)
    planned, status = foreseen(cut_source, target, topic)
    assert (planned.refusals, planned.exit_code) == ((text,), 3)
    assert text in status.findings and status.exit_code == 3
    continued, _ = foreseen(cut_source, target, topic, policy=CONTINUE)
    assert (continued.losses, continued.refusals) == ((text,), ())
    assert continued.exit_code == 3, "as that of the mirror that writes the row"
    left = {SHORTER: 50, LONGER: 150}[topic]
    assert continued.topics[0].to_copy == left, "from where the mirror resumes"
    assert planned.topics[0].to_copy is None and [(t.lag, t.unknown) for t in status.topics] == [(None, (0,))]
    (progress,) = mirror(cut_source, target, topic, topic, policy=CONTINUE, is_translated=True).values()
    assert (progress.acked, progress.records) == (100 + left, left)


def test_a_copy_up_to_the_ends_does_not_end_well_while_the_target_keeps_what_the_source_has_lost(
    cut_source: str, target: str
) -> None:
    """Its source has other records at those offsets, which are not copied."""
    once = ["mirror", "--source", cut_source, "--target", target, "--topics", KEPT, "--link", KEPT, "--once"]

    def copied() -> dict[str, Any]:
        done = CliRunner().invoke(app, [*once, "--tasks", "0", "--on-loss", "continue", "--json"])
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.exit_code
        return found

    why = "the source has not come to offset 200 again, which the target keeps"
    before, _ = foreseen(cut_source, target, KEPT, policy=CONTINUE)
    assert (before.exit_code, before.topics[0].waiting) == (3, {0: why}), "as the mirror that accepts the loss says"
    (lost,) = before.losses
    assert "other records from offset 100 on" in lost and not before.refusals
    first, again = copied(), copied()
    assert [(row["from_offset"], row["until_offset"]) for row in first["losses"]] == [(100, 200)]
    assert [(found["exit_code"], found["records"]) for found in (first, again)] == [(3, 0), (3, 0)]
    assert again["losses"] == [] and again["waiting"] == [{"topic": KEPT, "partition": 0, "reason": why}]
    planned, status = foreseen(cut_source, target, KEPT, policy=CONTINUE)
    assert f"{KEPT}-0: {why}" in status.findings, "though no mirror runs"
    ((number, waits),) = planned.topics[0].waiting.items()
    assert (planned.exit_code, planned.topics[0].to_copy, number) == (3, 0, 0)
    assert waits.startswith(f"{why}; in the ledger: {KEPT}-0 offsets 100 to 200: truncation")
    append_others(cut_source, {KEPT: 80})
    planned, status = foreseen(cut_source, target, KEPT, policy=CONTINUE)
    assert (planned.exit_code, planned.topics[0].to_copy) == (0, 30)
    assert not [text for text in status.findings if "which the target keeps" in text]
    grown = copied()
    assert (grown["exit_code"], grown["records"], grown["waiting"]) == (0, 30, [])


@pytest.mark.parametrize(
    ("topic", "found", "first"),
    [
        (BEGUN, "was cut at offset 100, but nothing of it was copied yet, and its copy was to begin at 200", 0),
        (BEGUN_KEPT, "has other records from offset 100 on than when its copy was begun, which has none yet", 100),
    ],
)
def test_a_link_that_has_only_begun_finds_the_cut_below_its_start_though_the_source_has_grown_past_it(
    cut_source: str, target: str, topic: str, found: str, first: int
) -> None:
    """With identical offsets the target cannot have what the source has before the start of the target's log."""
    planned, status = foreseen(cut_source, target, topic)
    assert found in planned.refusals[0] and any(found in text for text in status.findings)
    how: dict[str, Any] = {"is_translated": topic == BEGUN, "from_ms": NOW}
    with pytest.raises(TolerantClientError, match=found):
        mirror(cut_source, target, topic, topic, **how)
    for _ in range(2):
        (progress,) = mirror(cut_source, target, topic, topic, policy=CONTINUE, **how).values()
        assert losses(target, topic) == [(0, 100, 200, "truncation")]
        assert progress.acked == 250
    copied = consume(target, topic, 1, 150)[0]
    assert [value for _, _, _, value, _ in copied] == [b"other %d" % n for n in range(first, 150)]
