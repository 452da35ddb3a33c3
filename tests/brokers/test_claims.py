"""Copiers and the claims log on real brokers: handing over, waiting, and what a copier that was frozen still sends."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.claims import holders_of
from support.log_readers import read_with_confluent
from support.mirror_link import append_records, both, compare, create_topic, delete_until, ends, prepare_translated_link
from support.raising_copier import LinkCopier
from support.settled import until
from support.tree import SUPPORT
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, TargetClaimedError
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.state.claims import LEASE_MS
from tolerant_client.mirror.state.claims_record import (
    CLAIMS_TOPIC,
    WHOLE_TOPIC,
    ClaimsRecord,
    Holder,
    Waiting,
    encode_claims,
)
from tolerant_client.mirror.state.claims_topic import claims_topic, read_claims
from tolerant_client.mirror.state.control_topic import read_control, update_control
from tolerant_client.mirror.state.link_control import TopicIds
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.mirror_settings import MirrorJob, MirrorSettings
from tolerant_client.ops.service.run_claim import RunClaim

# kafka-python leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

LEASE_S = LEASE_MS / 1000
WRITER = SUPPORT / "mirror_process.py"


@pytest.fixture(scope="module")
def clusters(kafka_cluster: Any, start_cluster: Any) -> tuple[str, str]:
    target = start_cluster(broker_config={"producer.id.expiration.check.interval.ms": "1000"})
    return kafka_cluster.bootstrap_servers, target.bootstrap_servers


def topic_of(clusters: tuple[str, str], records: int = 500) -> str:
    topic = f"claims-{secrets.token_hex(3)}"
    create_topic(clusters[0], topic)
    append_records(clusters[0], topic, records)
    return topic


def test_a_partition_is_handed_over_within_the_run_while_it_is_copied(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters)
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target):

        async def run() -> list[float]:
            link = await prepare_link(source, target, topic, topic)
            copiers = [
                LinkCopier(source, target, identical_offsets(link.producer_id), link=topic, run="one") for _ in range(2)
            ]
            took = []
            for number in range(6):
                append = LinkCopier.copy(copiers[number % 2], {only: 500}, hold_ms=600, lease_ms=60_000)
                began = time.monotonic()
                (progress,) = (await append).values()
                took.append(time.monotonic() - began - 0.6)
                assert progress.acked == 500
            return took

        took = source.run(run)
    print(f"a handover took {[round(1000 * s) for s in took[1:]]} ms, and the first claim {1000 * took[0]:.0f} ms")
    assert compare(*clusters, topic).identical


def test_another_run_is_refused_while_the_holder_lives_and_follows_once_it_is_gone(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters)
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target), both(*clusters) as (second_source, second_target):

        async def hold() -> int:
            link = await prepare_link(source, target, topic, topic)
            first = LinkCopier(source, target, identical_offsets(link.producer_id), link=topic)
            await first.copy({only: 500}, hold_ms=100, lease_ms=60_000)
            late = LinkCopier(source, target, identical_offsets(link.producer_id), link=topic)
            with pytest.raises(
                TargetClaimedError, match=f"Partition {topic}-0 of the target is written by a mirror of link"
            ):
                await late.copy({only: 500})
            return link.producer_id

        async def follow() -> float:
            began = time.monotonic()
            await LinkCopier(second_source, second_target, identical_offsets(producer_id), link=topic).copy({only: 700})
            return time.monotonic() - began

        producer_id = source.run(hold)  # and then nobody drives its loop any more: as if it were frozen
        append_records(clusters[0], topic, 200, first=500)
        assert second_source.run(follow) > LEASE_S - 4
    assert compare(*clusters, topic).identical


def test_a_copier_that_was_frozen_through_its_lease_sends_nothing_of_it(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters, 20_000)
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target), both(*clusters) as (second_source, second_target):

        async def begin() -> tuple[LinkCopier, Any]:
            link = await prepare_link(source, target, topic, topic)
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=topic)
            done = source.net.call_soon_with_future(
                partial(copier.copy_each, {only: 20_000}, hold_ms=1_000, lease_ms=60_000)
            )
            while not copier.claims.holds(only):
                await source.net.sleep(0.001)
            return copier, done

        async def follow() -> None:
            await LinkCopier(
                second_source, second_target, identical_offsets(copier.strategy.sync_loop._producer_id), link=topic
            ).copy({only: 20_000}, hold_ms=5_000, lease_ms=60_000)

        async def go_on() -> Any:
            return await done

        copier, done = source.run(begin)  # what it has queued waits for its loop to go on
        time.sleep(0.1)
        second_source.run(follow)
        assert ends(clusters[1], topic) == [20_000]
        sent = len(copier.claims.claimant._sent)
        progress = source.run(go_on)[only]
        assert progress.error is None or isinstance(progress.error, TargetClaimedError), (progress, sent)
    assert ends(clusters[1], topic) == [20_000]
    assert compare(*clusters, topic).identical


@pytest.mark.long
@pytest.mark.parametrize("run", ["", "one"], ids=["another run", "the same run"])
def test_a_copier_that_was_frozen_while_it_had_nothing_to_do_reads_its_place_anew(
    clusters: tuple[str, str], run: str
) -> None:
    """Its claim is granted to it again, and in between another has copied what comes next."""
    topic = topic_of(clusters)
    options = json.dumps({"hold_ms": 40_000, "lease_ms": 1_000, "run": run})
    process = subprocess.Popen([sys.executable, str(WRITER), *clusters, topic, topic, options])
    try:
        until(lambda: ends(clusters[1], topic) == [500])
        time.sleep(2.0)
        process.send_signal(signal.SIGSTOP)
        append_records(clusters[0], topic, 100, first=500)
        with both(*clusters) as (source, target):

            async def follow() -> None:
                link = await prepare_link(source, target, topic, topic)
                await LinkCopier(source, target, identical_offsets(link.producer_id), link=topic, run=run).copy(
                    link.ends
                )

            source.run(follow)
        assert ends(clusters[1], topic) == [600]
        time.sleep(2.5)  # the brokers forget the producer of records that old
        process.send_signal(signal.SIGCONT)
        time.sleep(5.0)
        assert ends(clusters[1], topic) == [600]
        append_records(clusters[0], topic, 50, first=600)
        until(lambda: ends(clusters[1], topic) == [650])
    finally:
        process.kill()
        process.wait()
    assert compare(*clusters, topic).identical


@pytest.mark.parametrize("is_killed", [False, True], ids=["it ends", "it is killed"])
def test_a_start_that_is_tried_again_succeeds_once_the_mirror_that_it_was_refused_for_is_gone(
    clusters: tuple[str, str], is_killed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, target = f"retried-{secrets.token_hex(3)}", {"bootstrap.servers": clusters[1]}
    with RunClaim(target, "one", "run-1") as first, RunClaim(target, "two", "run-2") as second:
        first.take([topic])
        for _ in range(2):
            with pytest.raises(
                TargetClaimedError, match=f"Topic {topic} of the target is written by a mirror of link one on"
            ):
                second.take([topic])
            time.sleep(1.0)
        assert not capsys.readouterr().err  # what a living mirror is waited for is no news
        if is_killed:
            first._net.stop(timeout_ms=2000)
        else:
            first.close()
        second.take([topic])
        assert ("waiting for a mirror of link one on" in capsys.readouterr().err) == is_killed


@pytest.mark.long
def test_a_start_is_not_refused_for_a_mirror_that_is_gone_however_much_of_its_claims_the_log_has(
    clusters: tuple[str, str],
) -> None:
    topic, ghost = f"ghost-{secrets.token_hex(3)}", Holder("ghost", "one", "run-0", "m1", 812, 1_000)
    many = frozenset(TopicPartition("wide", 2 * n) for n in range(60_000))  # 0.8 MB: the log is read in several pieces

    async def haunt(target: Cluster) -> None:
        await claims_topic(target).ensure()
        for n in range(1, 12):
            record = ClaimsRecord(ghost, n, names=many | {TopicPartition(topic, WHOLE_TOPIC)})
            await claims_topic(target).put(ghost.id.encode(), encode_claims(record))

    with Cluster({"bootstrap_servers": clusters[1]}, name="target") as target:
        target.run(haunt, target)
    with RunClaim({"bootstrap.servers": clusters[1]}, "one", "run-1") as claim:
        claim.take([topic])
        claim.require_held()


def test_a_mirror_says_which_partitions_need_a_person_and_which_wait(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters)
    large, leaderless = TopicPartition(topic, 0), TopicPartition(topic, 1)
    report = TaskReport(blocked={large: "a record is too large"}, waiting={leaderless: Waiting("no leader", 5)})
    with RunClaim({"bootstrap.servers": clusters[1]}, "one", topic) as claim:
        claim.take([topic])
        claim.tell(report)

        def told() -> dict[TopicPartition, bool]:
            with Cluster({"bootstrap_servers": clusters[1]}, name="target") as target:
                before = target.run(read_claims, target)
                time.sleep(LEASE_S / 2)
                (run,) = [run for run in target.run(read_claims, target).runs(before) if run.run == topic]
            return {p: why.is_blocked for p, why in run.waiting.items()}

        assert told() == {large: True, leaderless: False}
        claim.tell(report)
        since = claim._claims.claimant.waiting[large].since_ms
        claim.tell(report)
        assert claim._claims.claimant.waiting[large].since_ms == since


@pytest.mark.long
@pytest.mark.parametrize("is_frozen", [False, True], ids=["the holder runs", "the holder is frozen"])
def test_of_a_claims_log_whose_records_were_deleted_nobody_holds_what_another_holds(
    clusters: tuple[str, str], is_frozen: bool
) -> None:
    topic = topic_of(clusters)
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target), both(*clusters) as (second_source, second_target):
        source.net.start()  # it goes on while the other one is asked

        async def hold() -> LinkCopier:
            link = await prepare_link(source, target, topic, topic)
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=topic)
            await copier.copy({only: 500}, hold_ms=100, lease_ms=120_000)
            return copier

        first = source.run(hold)
        if is_frozen:
            source.net.stop(timeout_ms=2000)
        delete_until(clusters[1], CLAIMS_TOPIC, ends(clusters[1], CLAIMS_TOPIC)[0])
        late = LinkCopier(
            second_source, second_target, identical_offsets(first.strategy.sync_loop._producer_id), link=topic
        )

        async def want() -> list[tuple[bool, bool]]:
            late.claims.want([only])
            seen = []
            for _ in range(140):
                seen.append((first.claims.holds(only), late.claims.holds(only)))
                await second_source.net.sleep(0.1)
            return seen

        seen = second_source.run(want)
        if not is_frozen:
            source.net.stop(timeout_ms=2000)
    assert (True, True) not in seen
    assert any(one or other for one, other in seen[-10:])


def test_a_copy_that_is_done_leaves_no_claim(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters)
    with both(*clusters) as (source, target):

        async def run() -> None:
            link = await prepare_link(source, target, topic, topic)
            await LinkCopier(source, target, identical_offsets(link.producer_id), link=topic).copy(link.ends)
            log = await read_claims(target)
            assert TopicPartition(topic, 0) not in holders_of(log)

        source.run(run)


@pytest.mark.long
def test_a_log_that_was_made_anew_is_claimed_anew(clusters: tuple[str, str]) -> None:
    topic = topic_of(clusters)
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target):

        async def run() -> None:
            link = await prepare_link(source, target, topic, topic)
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=topic)
            await copier.copy({only: 500}, hold_ms=100, lease_ms=60_000)
            await delete_topic(target)
            append_records(clusters[0], topic, 100, first=500)
            await copier.copy({only: 600}, hold_ms=LEASE_MS + 2_000, lease_ms=60_000)
            assert copier.claims.holds(only)

        async def delete_topic(target: Cluster) -> None:
            from kafka.protocol.admin import DeleteTopicsRequest

            await target.send(DeleteTopicsRequest(topic_names=[CLAIMS_TOPIC], timeout_ms=10_000, max_version=3))

        source.run(run)
    assert compare(*clusters, topic).identical


def test_a_link_takes_what_its_starts_have_taken_and_other_links_are_refused(clusters: tuple[str, str]) -> None:
    first, second = topic_of(clusters), topic_of(clusters)
    with both(*clusters) as (source, target):

        async def run() -> LinkTopics:
            await prepare_link(source, target, first, "grown")
            await prepare_link(source, target, second, "grown")
            with pytest.raises(OptionError, match=f"Link grown may copy into topic {first} of this target"):
                await prepare_link(source, target, first, "another")
            plan = await plan_everything(source, target, "another", first)
            assert plan.exit_code == 3 and "Link grown may copy into topic" in plan.refusals[0]
            assert (await plan_everything(source, target, "grown", first)).exit_code == 0
            topics = (await read_control(target, "grown")).topics
            assert topics is not None
            return LinkTopics.from_json(topics)

        taken = source.run(run)
    assert taken.takes(first) and taken.takes(second)


# -- identical and translated offsets -----------------------------------------


def written_by(servers: str, topic: str) -> list[bytes | None]:
    """The keys of partition 0, as librdkafka shows them."""
    only = TopicPartition(topic, 0)
    log = read_with_confluent(servers, [only], committed=True)[only]
    return [log[offset].key for offset in sorted(log)]


@pytest.mark.long
def test_what_an_identical_copy_has_begun_no_translated_one_writes_to_while_it_runs_or_is_down(
    clusters: tuple[str, str], start_cluster: Any
) -> None:
    """Both have prepared their links before there is the topic: no start could refuse it."""
    topic, elsewhere = f"both-{secrets.token_hex(3)}", start_cluster().bootstrap_servers
    only = TopicPartition(topic, 0)
    with both(*clusters) as (source, target), both(elsewhere, clusters[1]) as (other_source, other_target):
        for servers in (clusters[0], elsewhere):
            create_topic(servers, topic)
        append_records(clusters[0], topic, 500)
        append_records(elsewhere, topic, 300)
        create_topic(clusters[1], topic)
        waits = LinkTopics(LinkTopics.of("nothing-yet").filter, waits_for_topics=True)

        async def hold() -> None:
            link = await prepare_link(source, target, waits, f"identical-{topic}")
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=f"identical-{topic}")
            await copier.copy({only: 500}, hold_ms=15_000, lease_ms=100)
            await copier.claims.released()

        async def intrude() -> None:
            await prepare_translated_link(other_source, other_target, waits, f"translated-{topic}")
            late = LinkCopier(other_source, other_target, translated_offsets(), link=f"translated-{topic}")
            while ends(clusters[1], topic) != [500]:
                await other_source.net.sleep(0.1)
            told = f"Partition {topic}-0 of the target is written by a mirror of link identical-{topic} on .* with identical"
            with pytest.raises(TargetClaimedError, match=told):
                await late.copy({only: 300})

        async def intrude_again() -> None:
            late = LinkCopier(other_source, other_target, translated_offsets(), link=f"translated-{topic}")
            told = f"{topic}-0 of the target was copied by link identical-{topic} with identical offsets"
            with pytest.raises(TargetClaimedError, match=told):
                await late.copy({only: 300})
            await update_control(
                other_target, f"identical-{topic}", lambda now: replace(now, is_promotion_begun=True, is_fenced=True)
            )
            assert (await late.copy({only: 300}))[only].records == 300

        thread = threading.Thread(target=source.run, args=(hold,))
        thread.start()
        other_source.run(intrude)
        thread.join()
        assert compare(*clusters, topic).identical and ends(clusters[1], topic) == [500]
        other_source.run(intrude_again)
    assert written_by(clusters[1], topic) == [*written_by(clusters[0], topic), *written_by(elsewhere, topic)]


@pytest.mark.long
def test_a_translated_copy_that_was_frozen_through_its_lease_writes_nothing_into_an_identical_one(
    clusters: tuple[str, str], start_cluster: Any
) -> None:
    topic, elsewhere = f"thaw-{secrets.token_hex(3)}", start_cluster().bootstrap_servers
    only = TopicPartition(topic, 0)
    create_topic(clusters[0], topic)
    append_records(clusters[0], topic, 500)
    for servers in (elsewhere, clusters[1]):
        create_topic(servers, topic)
    waits = LinkTopics(LinkTopics.of("nothing-yet").filter, waits_for_topics=True)
    with both(*clusters) as (source, target), both(elsewhere, clusters[1]) as (other_source, other_target):

        async def begin() -> tuple[LinkCopier, Any]:
            await prepare_translated_link(other_source, other_target, waits, f"translated-{topic}")
            copier = LinkCopier(other_source, other_target, translated_offsets(), link=f"translated-{topic}")
            done = other_source.net.call_soon_with_future(
                partial(copier.copy_each, {only: 0}, hold_ms=25_000, lease_ms=100)
            )
            while only not in copier.strategy.partitions or not copier.strategy.partitions[only]._is_taken_over:
                await other_source.net.sleep(0.01)
            return copier, done

        async def follow() -> LinkCopier:
            link = await prepare_link(source, target, waits, f"identical-{topic}")
            copier = LinkCopier(source, target, identical_offsets(link.producer_id), link=f"identical-{topic}")
            began = time.monotonic()
            await copier.copy({only: 500}, hold_ms=100, lease_ms=60_000)
            assert time.monotonic() - began > LEASE_S - 4
            return copier

        async def go_on() -> Any:
            return await done

        _, done = other_source.run(begin)  # and then nobody drives its loop any more: as if it were frozen
        append_records(elsewhere, topic, 300)
        source.run(follow)
        source.net.start()  # it keeps its claim
        try:
            progress = other_source.run(go_on)[only]
        finally:
            source.net.stop(timeout_ms=2000)
        assert isinstance(progress.error, TargetClaimedError), progress
    assert ends(clusters[1], topic) == [500]
    assert compare(*clusters, topic).identical


@pytest.mark.parametrize("is_identical", [True, False])
def test_a_topic_that_a_running_link_finds_is_refused_alone_where_another_link_writes_it(
    clusters: tuple[str, str], is_identical: bool
) -> None:
    pytest.importorskip("pyspark")
    from spark_integration.mirror.stream_ranges import RangesStreamReader

    name = f"found-{secrets.token_hex(3)}"
    first, second, other = f"{name}-one", f"{name}-two", f"another-{name}"
    create_topic(clusters[0], first)
    properties = [{"bootstrap.servers": servers} for servers in clusters]
    offsets = "identical" if is_identical else "translated"
    settings = MirrorSettings(*properties, f"{name}.*", name, offsets=offsets, refresh_s=0)
    reader = RangesStreamReader(MirrorJob(settings).options)
    try:
        reader.initialOffset()
        assert reader._scope.ends.keys() == {TopicPartition(first, 0)} and not reader._scope.blocked
        with both(*clusters) as (source, target):
            waits = LinkTopics(LinkTopics.of(f"{name}.*").filter, waits_for_topics=True)
            source.run(prepare_link, source, target, waits, other)
            if not is_identical:  # which such a link goes by
                ids = {TopicPartition(second, 0): TopicIds("s", "t")}
                target.run(update_control, target, other, lambda now: replace(now, begun=ids))
            create_topic(clusters[0], second)
            reader.latestOffset({"trigger": 0}, None)  # type: ignore[arg-type]  # it takes no limit
            (why,) = reader._scope.blocked.values()
            assert reader._scope.ends.keys() == {TopicPartition(first, 0)}
            assert reader._scope.blocked.keys() == {TopicPartition(second, 0)}
            assert why.startswith(
                f"Link {other} {'may copy' if is_identical else 'copies'} into topic {second} of this target"
            )
            assert ("with identical offsets" in why) != is_identical
            assert second not in target.run(target.partitions)
            target.run(update_control, target, other, lambda now: replace(now, is_promotion_begun=True, is_fenced=True))
        reader.latestOffset({"trigger": 1}, None)  # type: ignore[arg-type]  # it takes no limit
        assert (
            reader._scope.ends.keys() == {TopicPartition(first, 0), TopicPartition(second, 0)}
            and not reader._scope.blocked
        )
    finally:
        reader.stop()
