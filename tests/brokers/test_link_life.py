"""The life of a link on two real clusters: paused, throttled, promoted, failed over, and back."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import kafka
import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import (
    T0,
    append_records,
    both,
    compare,
    consume,
    create_again,
    create_topic,
    delete_topic,
    ends,
    make_anew,
    mirror,
    move_groups,
    prepare,
    prepare_translated_link,
)
from support.raising_copier import LinkCopier
from support.settled import changing, until
from support.tree import SUPPORT
from tolerant_client.cluster.admin.coordinators import Coordinators
from tolerant_client.cluster.admin.topics import delete_records, delete_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import (
    LinkPausedError,
    LinkPromotedError,
    OptionError,
    ProducerFencedError,
    TargetDivergedError,
    text_of,
)
from tolerant_client.mirror.batches.gaps import Gap
from tolerant_client.mirror.engine import circles
from tolerant_client.mirror.engine.identical.fill import MarkerFiller, TransactionFiller
from tolerant_client.mirror.engine.identical.gap_producer import GapProducer
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.engine.translated.partition import TranslatedPartition
from tolerant_client.mirror.life import comparison
from tolerant_client.mirror.life.failback import failback
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.lens import MAP_LOST, NEVER_HAD
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.repair import repair
from tolerant_client.mirror.life.shared_log import SharedLog, compare_logs, with_losses
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.state import control_topic
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.control_topic import (
    ControlWatch,
    read_control,
    read_controls,
    update_control,
    write_record,
)
from tolerant_client.mirror.state.control_topic import control_topic as control_of_links
from tolerant_client.mirror.state.health import Health
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import map_topic
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.mirror.verify.outcome import Outcome
from tolerant_client.mirror.verify.report import VerifyReport
from tolerant_client.mirror.verify.verification import Verification, compare_here
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.link_examination import Subject, examine
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

WRITER = SUPPORT / "mirror_process.py"


def control_of(target: str, link: str, **changes: Any) -> LinkControl:
    """Makes changes to a link's control, as an operator does."""
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:

        async def change() -> LinkControl:
            return await update_control(cluster, link, lambda now: replace(now, **changes))

        return cluster.run(change)


def run(source: str, target: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    with both(source, target) as (origin, copy):

        async def call() -> Any:
            return await function(origin, copy, *args, **named)

        return origin.run(call)


def fail_over(target: str, link: str, **named: Any) -> Any:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:

        async def call() -> Any:
            return await failover(cluster, link, **named)

        return cluster.run(call)


def delete_control(target: str) -> None:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [CONTROL_TOPIC])


@pytest.fixture(scope="module", autouse=True)
def no_control_is_left(source: str) -> Iterator[None]:
    """Links back leave a control on the cluster that is every other test's source; their starts would read it."""
    yield
    with Cluster({"bootstrap_servers": source}, name="source") as cluster:
        if CONTROL_TOPIC in cluster.run(cluster.partitions, [CONTROL_TOPIC]):
            cluster.run(delete_topics, cluster, [CONTROL_TOPIC])


@pytest.fixture
def running(source: str, target: str) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Mirrors as processes of their own; killed at the end."""
    started = []

    def start(topics: str, link: str) -> subprocess.Popen[str]:
        options = json.dumps({"hold_ms": 60_000, "lease_ms": 0})
        command = [sys.executable, str(WRITER), source, target, topics, link, options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "copying\n"
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


# -- pause and throttle -------------------------------------------------------


def test_a_running_mirror_obeys_pause_resume_and_promotion(source: str, target: str, running: Any) -> None:
    create_topic(source, "life-a", 2)
    create_topic(source, "life-b", 1)
    append_records(source, "life-a", 100, partitions=2)
    process = running("life-[ab]", "life-pause")
    until(lambda: ends(target, "life-a", 2) == [100, 100])
    control_of(
        target, "life-pause", paused=frozenset({"life-b"}), paused_partitions=frozenset({TopicPartition("life-a", 1)})
    )
    time.sleep(2.0)
    append_records(source, "life-a", 50, partitions=2, first=100)
    append_records(source, "life-b", 50)
    until(lambda: ends(target, "life-a", 2) == [150, 100])
    assert ends(target, "life-b") == [0]
    control_of(target, "life-pause", paused_partitions=frozenset())
    assert until(lambda: ends(target, "life-a", 2) == [150, 150]) < 5
    control_of(target, "life-pause", paused=frozenset())
    until(lambda: ends(target, "life-b") == [50])
    control_of(target, "life-pause", is_promotion_begun=True)
    assert process.wait(timeout=240) == 1
    assert "LinkPromotedError" in process.stderr.read()
    with pytest.raises(LinkPromotedError):
        prepare(source, target, "life-[ab]", "life-pause")
    assert compare(source, target, "life-[ab]").identical


def test_what_is_paused_is_told_and_the_rest_of_a_run_is_done(source: str, target: str) -> None:
    create_topic(source, "life-once", 2)
    append_records(source, "life-once", 100, partitions=2)
    control_of(target, "life-once", paused_partitions=frozenset({TopicPartition("life-once", 1)}))
    progress = mirror(source, target, "life-once", "life-once")
    paused = progress[TopicPartition("life-once", 1)]
    assert paused.is_paused and isinstance(paused.error, LinkPausedError)
    resume = f"tolerant-kafka resume --target {target} --link life-once --topic life-once --partition 1"
    assert f"paused by an operator; to resume: {resume}" in str(paused.error)
    assert not progress[TopicPartition("life-once", 0)].is_paused
    assert ends(target, "life-once", 2) == [100, 0]


def test_a_throttled_link_copies_no_faster_than_it_may(source: str, target: str) -> None:
    create_topic(source, "life-slow", 2)
    size = append_records(source, "life-slow", 3_000, partitions=2, per_batch=20, size=200)
    control_of(target, "life-slow", bytes_per_s=size // 2)

    async def copy(origin: Cluster, there: Cluster) -> dict[TopicPartition, Progress]:
        prepared = await prepare_link(origin, there, "life-slow", "life-slow")
        copier = LinkCopier(origin, there, identical_offsets(prepared.producer_id), link="life-slow")
        return await copier.copy(prepared.ends)

    started = time.monotonic()
    run(source, target, copy)
    assert 1.2 < time.monotonic() - started < 60
    assert compare(source, target, "life-slow").identical


# -- promotion ----------------------------------------------------------------


def test_batches_that_were_on_their_way_are_refused_after_promotion(source: str, target: str) -> None:
    """1. a mirror has stamped batches, 2. the link is promoted, 3. they arrive, before or after those of applications."""
    topic, link = "life-fence", "life-fence"
    create_topic(source, topic, 2)
    append_records(source, topic, 100, partitions=2)
    mirror(source, target, topic, link)
    append_records(source, topic, 100, partitions=2, first=100, per_batch=10)
    on_their_way: list[tuple[int, Any, Future]] = []
    with both(source, target) as (origin, there):
        produce = there.produce

        def hold(node_id: int, batches: Any, *_: Any, **__: Any) -> Future:
            future = Future()
            on_their_way.append((node_id, batches, future))
            return future

        copying: list[Future] = []

        async def begin() -> None:
            prepared = await prepare_link(origin, there, topic, link)
            copier = LinkCopier(origin, there, identical_offsets(prepared.producer_id), link=link)
            there.produce = hold  # type: ignore[method-assign]
            copying.append(origin.net.call_soon_with_future(copier.copy, prepared.ends))
            while not on_their_way:
                await origin.net.sleep(0.01)

        origin.run(begin)
        assert fail_over(target, link).is_done
        fenced = ends(target, topic, 2)
        assert fenced == [101, 101]

        async def arrive() -> list[int]:
            codes = []
            there.produce = produce  # type: ignore[method-assign]
            for node_id, batches, future in on_their_way:
                answer = await there.produce(node_id, batches)
                codes += [part.error_code for part in answer]
                future.success(answer)
            with pytest.raises(LinkPromotedError):
                await copying[0]
            return codes

        assert set(origin.run(arrive)) == {Errors.InvalidProducerEpochError.errno}
    assert ends(target, topic, 2) == fenced


def test_a_gap_that_was_being_filled_is_fenced_too(source: str, target: str) -> None:
    topic, link = "life-gap", "life-gap"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic, 1)
    append_records(source, topic, 10)
    mirror(source, target, topic, link)
    with Cluster({"bootstrap_servers": target}, name="target") as there:
        name = f"tolerant-mirror-{link}-gap-{topic}-0"
        producer = GapProducer(there, Coordinators(there), name, partition, time.monotonic)

        async def begin() -> None:
            await producer.begin()
            await producer.add()
            await producer.produce(Gap(10, 15), 1 << 14)

        control = ControlWatch(there, link)

        async def may_write(_: TopicPartition) -> None:
            await control.require_not_promoted()

        fillers = [TransactionFiller(there, link, may_write), MarkerFiller(there, may_write)]
        there.run(begin)
        done = fail_over(target, link)
        after = ends(target, topic)
        for filler in fillers:
            with pytest.raises(LinkPromotedError):
                there.run(filler.fill, partition, Gap(17, 18))
        assert done.partitions[0].copied_until == 16  # 10 records, 5 of an aborted transaction, and its marker
        for late in (producer.add, producer.abort):
            with pytest.raises(ProducerFencedError):
                there.run(late)
        with pytest.raises(ProducerFencedError):

            async def produce() -> None:
                await producer.produce(Gap(17, 18), 1 << 14)

            there.run(produce)
    assert ends(target, topic) == after == [17]


def test_a_failover_holds_though_a_mirror_was_killed_that_had_not_seen_it_when_it_wrote(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, copied = "life-killed-writer", {TopicPartition("life-killed-writer", 0): 100}
    held = control_of(target, link, producer_ids=(1,))
    append = control_topic.write_record

    class Killed(Exception):
        pass

    async def append_late_and_die(*args: Any) -> int:
        monkeypatch.undo()
        control_of(target, link, is_promotion_begun=True, is_fenced=True)
        await append(*args)
        raise Killed

    monkeypatch.setattr(control_topic, "write_record", append_late_and_die)
    with pytest.raises(Killed):
        control_of(target, link, copied=copied)
    promoted = replace(held, is_promotion_begun=True, is_fenced=True)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        assert cluster.run(read_control, cluster, link) == promoted
        assert cluster.run(read_controls, cluster).links[link] == promoted
    assert control_of(target, link, bytes_per_s=7) == replace(promoted, bytes_per_s=7)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_frozen_mirror_that_wakes_after_promotion_appends_nothing(
    source: str, target: str, running: Any, seed: int
) -> None:
    topic = link = f"life-frozen-{seed}"
    create_topic(source, topic, 2)
    append_records(source, topic, 200_000, partitions=2, per_batch=10)
    process = running(topic, link)
    until(lambda: ends(target, topic, 2)[0] > 0)
    time.sleep(random.Random(seed).uniform(0, 0.3))
    process.send_signal(signal.SIGSTOP)  # with batches in its queues, and answers on their way
    time.sleep(0.5)
    assert fail_over(target, link).is_done
    before = ends(target, topic, 2)
    append_records(target, topic, 100, partitions=2, first=1_000_000)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=240) == 1
    assert "LinkPromotedError" in process.stderr.read()
    assert ends(target, topic, 2) == [end + 100 for end in before]


def test_promotion_waits_until_nothing_is_left_to_copy(source: str, target: str) -> None:
    topic, link = "life-promote", "life-promote"
    create_topic(source, topic, 1)
    append_records(source, topic, 100)
    mirror(source, target, topic, link)
    append_records(source, topic, 10, first=100)
    report = run(source, target, promote, link, deadline_s=1.0)
    assert not report.is_done and report.exit_code == 3 and "10 offsets are not copied" in report.blockers[0]
    assert not run(source, target, lambda _, there: read_control(there, link)).is_promotion_begun
    mirror(source, target, topic, link)
    assert run(source, target, promote, link, deadline_s=5.0, is_dry_run=True).exit_code == 0
    assert ends(target, topic) == [110]
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:  # as retention does
        assert cluster.run(delete_records, cluster, TopicPartition(topic, 0), 110) == 0
    report = run(source, target, promote, link, deadline_s=5.0)
    assert report.is_done and report.exit_code == 0
    assert report.warnings[-1].startswith(
        "the target no longer has offsets 0 to 110 of life-promote-0, which the source has"
    )
    assert ends(target, topic) == [111]  # the fence
    again = run(source, target, promote, link)
    assert again.is_done and ends(target, topic) == [111]
    control_of(target, link, is_fenced=False, copied_until={})  # as if it had died behind the fence
    for rehearsed in (run(source, target, promote, link, is_dry_run=True), fail_over(target, link, is_dry_run=True)):
        assert rehearsed.partitions[0].copied_until == 110 and not rehearsed.partitions[0].lag
    again = run(source, target, promote, link)
    assert again.is_done and again.exit_code == 0 and again.partitions[0].copied_until == 110
    assert ends(target, topic) == [112]
    append_records(source, topic, 5, first=110)
    again, without = run(source, target, promote, link), fail_over(target, link)
    assert again.is_done and again.exit_code == 3 and without.exit_code == 0
    assert [(p.copied_until, p.lag) for p in (*again.partitions, *without.partitions)] == [(110, 5), (110, None)]
    json.dumps(report.to_json())


def test_a_promoted_copy_is_identical_up_to_its_fence_and_what_lies_there_unpromoted_is_a_difference(
    source: str, target: str
) -> None:
    topic, link = "life-verified", "life-verified"
    create_topic(source, topic, 2)
    append_records(source, topic, 100)  # partition 1 is empty
    mirror(source, target, topic, link)

    async def compared(origin: Cluster, there: Cluster) -> tuple[VerifyReport, list[str]]:
        verification = Verification(origin, there, topic)
        return await compare_here(verification), verification.warnings

    assert run(source, target, promote, link, deadline_s=5.0).is_done
    control_of(target, link, is_fenced=False, copied_until={})  # as two promotions at once, which write two fences
    assert run(source, target, promote, link).is_done and ends(target, topic, 2) == [102, 2]
    report, (warning,) = run(source, target, compared)
    assert report.outcome is Outcome.IDENTICAL, report
    assert "from the fence on" in warning and "(life-verified-0: 100, life-verified-1: 0)" in warning
    append_records(target, topic, 5, first=100)  # an application's, after the fence
    assert run(source, target, compared)[0].outcome is Outcome.IDENTICAL
    for first, left in ((100, 1), (101, 5)):  # left behind; the second fence is at the source's end at first
        append_records(source, topic, left, first=first)
        report, (warning,) = run(source, target, compared)
        assert report.outcome is Outcome.DIFFERENT and "(life-verified-0: 100, life-verified-1: 0)" in warning
    control_of(target, link, is_promotion_begun=False, is_fenced=False)
    assert run(source, target, compared)[0].outcome is Outcome.DIFFERENT


def test_what_is_no_copy_is_in_the_way_of_a_promotion(source: str, target: str) -> None:
    topic, link = "life-foreign", "life-foreign"
    create_topic(source, topic, 2)
    append_records(source, topic, 100, partitions=2)
    mirror(source, target, topic, link)
    append_records(target, topic, 10, first=100)  # somebody else's, in partition 0; nothing is left to copy
    report = run(source, target, promote, link, deadline_s=0.0)
    assert not report.is_done and report.exit_code == 3 and not any(p.lag for p in report.partitions)
    (found,) = report.blockers
    assert "life-foreign-0" in found and "foreign record batch at offset 100" in found
    assert not run(source, target, lambda _, there: read_control(there, link)).is_promotion_begun


def test_what_is_paused_keeps_no_start_from_copying_the_rest_and_is_compared_once_it_is_resumed(
    source: str, target: str
) -> None:
    topic, link = "life-left-out", "life-left-out"
    create_topic(source, topic, 2)
    append_records(source, topic, 100, partitions=2)
    mirror(source, target, topic, link)
    with kafka.KafkaProducer(bootstrap_servers=target) as stranger:
        stranger.send(topic, b"foreign", partition=0).get(30)
    append_records(source, topic, 50, first=100, partitions=2)
    with pytest.raises(TargetDivergedError) as raised:
        prepare(source, target, topic, link)
    pause = f"tolerant-kafka pause --target {target} --link {link} --topic {topic}"
    assert str(raised.value).endswith(f"to have the other topics copied until then: {pause}")
    control_of(target, link, paused_partitions=frozenset({TopicPartition(topic, 0)}))
    assert mirror(source, target, topic, link)[TopicPartition(topic, 0)].is_paused
    assert ends(target, topic, 2) == [101, 150]
    found = run(source, target, read_status, link, LinkTopics.of(topic))
    assert not [r for r in found.reasons if r.health is Health.BLOCKED], found.reasons
    (note,) = found.notes
    assert note.startswith(
        "paused, and blocked once it is resumed: The target log of life-left-out-0 has a foreign record"
    )
    plan = run(source, target, plan_everything, link, topic)
    assert note in plan.warnings and not plan.refusals
    resume = f"tolerant-kafka resume --target {target} --link {link} --topic {topic} --partition 0"
    (planned,) = plan.topics
    assert planned.paused == {0: f"paused by an operator; to resume: {resume}"}, "in the mirror's words"
    assert (plan.exit_code, planned.waiting) == (3, {})
    assert not run(source, target, promote, link, deadline_s=0.0, is_dry_run=True).is_done

    async def resumed(origin: Cluster, there: Cluster) -> None:
        prepared = await prepare_link(origin, there, topic, link)
        copier = LinkCopier(origin, there, identical_offsets(prepared.producer_id), link=link)
        await copier.copy(prepared.ends, lease_ms=60_000)
        await update_control(there, link, lambda now: replace(now, paused_partitions=frozenset()))
        for _ in range(20):
            await copier.copy(prepared.ends, hold_ms=1_000, lease_ms=60_000)

    with pytest.raises(TargetDivergedError, match="life-left-out-0 has a foreign record batch at offset 100"):
        run(source, target, resumed)
    assert ends(target, topic, 2) == [101, 150]
    with pytest.raises(TargetDivergedError):
        prepare(source, target, topic, link)


def test_open_transactions_of_the_source_are_in_the_way_of_a_promotion(source: str, target: str) -> None:
    topic, link = "life-open", "life-open"
    create_topic(source, topic, 1)
    append_records(source, topic, 10)
    with Cluster({"bootstrap_servers": source}, name="source") as origin:
        producer = GapProducer(origin, Coordinators(origin), "life-open", TopicPartition(topic, 0), time.monotonic)

        async def begin() -> None:
            await producer.begin()
            await producer.add()
            await producer.produce(Gap(10, 12), 1 << 14)

        origin.run(begin)
        mirror(source, target, topic, link)
        report = run(source, target, promote, link, deadline_s=0.0)
        assert not report.is_done and "transactions are open" in report.blockers[0]
        assert "producer id" in report.warnings[0] and "--start-offset 10" in report.warnings[0]
        origin.run(producer.abort)
    until(lambda: ends(source, topic) == [13])
    mirror(source, target, topic, link)
    assert run(source, target, promote, link, deadline_s=5.0).is_done


@pytest.mark.parametrize("is_committed", [False, True])
def test_of_what_a_failover_left_on_the_source_committed_records_are_counted(
    source: str, target: str, is_committed: bool
) -> None:
    """A transaction that was open when the source was lost ends once it is back."""
    topic = link = f"life-rest-{is_committed}"
    create_topic(source, topic, 1)
    append_records(source, topic, 10)
    mirror(source, target, topic, link)
    with kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(7):
            producer.send(topic, b"%d" % n)
        producer.flush()
        assert fail_over(target, link).exit_code == 0
        append_records(target, topic, 5, first=900)  # an application's
        clusters = ("--source", source, "--target", target, "--link", link)
        code, found = invoke("promote", *clusters)
        (part,) = found["partitions"]
        assert (code, part["lag"], part["left_records"], part["left_unread"]) == (3, 7, 0, 7)
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    until(lambda: ends(source, topic) == [18])
    code, found = invoke("promote", *clusters)
    (part,) = found["partitions"]
    assert (code, part["lag"], part["left_unread"]) == (3 if is_committed else 0, 8, 0)
    assert part["left_records"] == (7 if is_committed else 0)
    report = compare(source, target, topic)
    (compared,) = report.partitions
    assert report.outcome is (Outcome.DIFFERENT if is_committed else Outcome.IDENTICAL)
    assert [gap.reason for gap in compared.not_compared] == (
        ["the target log ends at 10, and the source has 7 committed records after that"] if is_committed else []
    )


def test_what_the_source_has_in_partitions_that_no_mirror_had_seen_is_left_behind(source: str, target: str) -> None:
    topics = "life-unseen.*"
    create_topic(source, "life-unseen-a", 2)
    append_records(source, "life-unseen-a", 10, partitions=2)
    mirror(source, target, topics, "unseen")
    with changing(source) as admin:
        admin.create_partitions({"life-unseen-a": 3})
    create_topic(source, "life-unseen-b")
    with closing(kafka.KafkaProducer(bootstrap_servers=source)) as producer:
        for number in range(5):
            producer.send("life-unseen-a", b"late%d" % number, partition=2).get(20)
    append_records(source, "life-unseen-b", 3)
    assert fail_over(target, "unseen").is_done
    told = (
        "8 committed records of life-unseen-a-2 and 1 more partition were not copied: only the source has what is there"
    )
    status = run(source, target, read_status, "unseen")
    assert status.is_promoted and told in status.notes, status
    for is_dry_run in (True, False):
        report = run(source, target, promote, "unseen", is_dry_run=is_dry_run)
        assert report.exit_code == 3 and report.left_behind == told, report
    create_topic(target, "life-unseen-b")  # by an application, or a broker that creates topics
    report = run(source, target, promote, "unseen")
    assert (
        report.exit_code == 3
        and report.left_behind == f"5 committed records of life-unseen-a-2 {told.partition('partition ')[2]}"
    )
    assert report.unknown_left == (f"what life-unseen-b-0 left behind on the source is unknown: {NEVER_HAD}",)
    create_topic(source, "life-unseen-c")
    append_records(source, "life-unseen-c", 4)
    mirror(source, target, "life-unseen-c", "of-another-link")
    assert run(source, target, promote, "unseen") == report
    assert fail_over(target, "of-another-link").is_done
    with both(source, target) as (origin, there):
        there.run(delete_topics, there, ["life-unseen-c"])  # what that link left behind is its to tell
        assert origin.run(promote, origin, there, "unseen") == report
        for until in (2, 5):
            assert origin.run(delete_records, origin, TopicPartition("life-unseen-a", 2), until) == 0
            found = origin.run(promote, origin, there, "unseen")
            deleted = (
                f"offsets 0 to {until} of life-unseen-a-2 were not copied, and the source has deleted them: nobody has"
            )
            assert found.exit_code == 3 and deleted in found.left_behind, "as it is said of what the link had begun"
            assert ("3 committed records of life-unseen-a-2" in found.left_behind) is (until == 2)
            assert found.left_behind in origin.run(read_status, origin, there, "unseen").notes


@pytest.mark.parametrize("is_translated", [False, True])
def test_what_the_source_has_deleted_of_what_a_failover_left_there_is_said_to_be_lost(
    source: str, target: str, is_translated: bool
) -> None:
    topic = link = f"life-trimmed-{is_translated}"
    create_topic(source, topic, 5)
    append_records(source, topic, 100, partitions=4)  # partition 4 is empty

    def delete(number: int, before: int) -> None:  # as retention does
        with Cluster({"bootstrap_servers": source}, name="source") as cluster:
            cluster.run(delete_records, cluster, TopicPartition(topic, number), before)

    delete(3, 100)  # before the link
    mirror(source, target, topic, link, is_translated=is_translated)
    append_records(source, topic, 50, first=100, partitions=2)
    append_records(source, topic, 1, first=100, partitions=5)
    assert fail_over(target, link).exit_code == 0
    for number, before in enumerate((151, 120, 60, 100, 1)):
        delete(number, before)
    clusters = ("--source", source, "--target", target, "--link", link)
    code, found = invoke("promote", *clusters)
    assert code == 3
    parts = [(p["lag"], p["left_deleted"], p["left_records"]) for p in found["partitions"]]
    assert parts == [(51, [100, 151], 0), (51, [100, 120], 31), (1, None, 1), (1, None, 1), (1, [0, 1], 0)]
    said = CliRunner().invoke(app, ["promote", *clusters, "--yes"]).output
    assert f"offsets 100 to 151 of {topic}-0 were not copied, and the source has deleted them" in " ".join(said.split())
    status = run(source, target, read_status, link)
    assert [(t.lag, t.lost) for t in status.topics] == [(33, 72)]
    deleted = [
        f"offsets {start} to {until} of {topic}-{n}" for n, start, until in ((0, 100, 151), (1, 100, 120), (4, 0, 1))
    ]
    records = f"33 committed records of {topic}-1 and 2 more partitions"
    assert [text.split(" were not copied")[0] for text in status.notes[0].split("; ")] == [records, *deleted]
    assert status.notes == (run(source, target, promote, link).left_behind,), "one function makes the sentence"
    if not is_translated:
        report = compare(source, target, topic)
        found = [p.first_difference for p in report.partitions]
        assert [at.offset for at in found] == [100, 100, 100, 100, 0]
        gone = [at.reason.removeprefix("the target log ends earlier") for at in found]
        assert gone[2:4] == ["", ""] and all("no longer has its offsets" in text for text in gone[:2] + gone[4:])
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [topic])
    status = run(source, target, read_status, link)
    (reason,) = status.reasons
    assert (status.exit_code, status.health) == (3, Health.UNKNOWN) and "not on the target any more" in reason.text
    assert [(t.topic, t.unknown) for t in status.topics] == [(topic, (0, 1, 2))], "the copies of 3 and 4 were empty"


def test_what_a_failover_left_without_a_record_is_no_loss_once_a_promotion_has_written_that_down(
    source: str, target: str
) -> None:
    topic = link = "life-empty"
    create_topic(source, topic, 3)
    append_records(source, topic, 100, partitions=3)
    mirror(source, target, topic, link)
    with closing(kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(3):
            producer.send(topic, b"aborted", partition=number)
        producer.flush()
        assert fail_over(target, link).exit_code == 0
        producer.abort_transaction()  # as the source's coordinator does once it is back
    append_records(source, topic, 1, first=100, partitions=1)

    def delete(**before: int) -> None:  # as retention does
        with Cluster({"bootstrap_servers": source}, name="source") as cluster:
            for number, offset in before.items():
                cluster.run(delete_records, cluster, TopicPartition(topic, int(number[1:])), offset)

    def left() -> list[tuple[Any, ...]]:
        report = run(source, target, promote, link)
        return [(p.lag, p.left_deleted, p.left_records) for p in report.partitions]

    found = [(3, None, 1), (2, None, 0), (2, None, 0)]
    rehearsed = run(source, target, promote, link, is_dry_run=True)
    assert [(p.lag, p.left_deleted, p.left_records) for p in rehearsed.partitions] == found
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        assert cluster.run(control_topic.read_control, cluster, link).empty_until == {}
        assert left() == found
        empty = {TopicPartition(topic, number): 102 for number in (1, 2)}
        assert cluster.run(control_topic.read_control, cluster, link).empty_until == empty
    append_records(source, topic, 2, first=200, partitions=3)
    delete(p0=105, p1=102, p2=103)  # a record of the last one, too, of which nobody knows
    assert left() == [(5, (100, 105), 0), (2, None, 2), (2, (102, 103), 1)]
    gone = [p.first_difference and p.first_difference.reason for p in compare(source, target, topic).partitions]
    assert all("no longer has its offsets" in str(reason) for reason in (gone[0], gone[2]))
    assert gone[1] == "the target log ends earlier"
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:  # were it still the source's last
        cluster.run(
            control_topic.update_control, cluster, link, lambda now: replace(now, empty_until=dict.fromkeys(empty, 104))
        )
    delete(p1=104, p2=104)
    assert left()[1:] == [(0, None, 0)] * 2
    assert [p.first_difference for p in compare(source, target, topic).partitions[1:]] == [None, None]


# -- circles --------------------------------------------------


def test_a_link_that_would_run_in_a_circle_is_refused(source: str, target: str) -> None:
    create_topic(source, "life-circle", 1)
    append_records(source, "life-circle", 10)
    mirror(source, target, "life-circle", "life-there")
    with pytest.raises(OptionError, match="in a circle: link life-there copies topic life-circle"):
        prepare(target, source, "life-circle", "life-back")


# -- the drill ----------------------------------------------------------------


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.long)])
def test_failover_and_failback_lose_nothing_and_read_nothing_twice(
    kafka_cluster: KafkaCluster, source: str, target: str, running: Any, hangs: bool
) -> None:
    """With `hangs` the source's broker is frozen under a mirror that runs; else nobody asks it any more."""
    topic, link, group = f"life-drill-{hangs}", f"drill-{hangs}", f"life-drill-{hangs}"
    create_topic(source, topic, 2)
    append_records(source, topic, 500, partitions=2)
    seen = read(source, topic, group, 600)
    mirror(source, target, topic, link)
    append_records(source, topic, 100, partitions=2, first=500)
    mirror(source, target, topic, link)
    report = run(source, target, move_groups, LinkTopics.of(topic), TopicFilter((group,)))
    assert not report.behind
    if hangs:
        process = running(topic, link)
        kafka_cluster.pause(1)
    done = fail_over(target, link, groups=TopicFilter((group,)))
    assert done.is_done and [p.copied_until for p in done.partitions] == [600, 600]
    assert sum(place.left_to_read for place in done.group_places) == 600
    append_records(target, topic, 200, partitions=2, first=600)
    seen += read(target, topic, group, 1_000)
    assert len(seen) == len(set(seen)) == 1_600
    if hangs:
        kafka_cluster.resume(1)
        assert process.wait(timeout=240) == 1 and "LinkPromotedError" in process.stderr.read()
    back = run(target, source, failback, link)  # its topics are those of the link that it undoes
    assert back.exit_code == 0 and [p.to_copy for p in back.partitions] == [201, 201]
    progress = mirror(target, source, topic, link)
    assert [p.records for p in progress.values()] == [201, 201]
    assert compare(target, source, topic).identical
    append_records(target, topic, 10, partitions=2, first=800)
    assert [p.records for p in mirror(target, source, topic, link).values()] == [10, 10]
    assert compare(target, source, topic).identical
    # The source is promoted, and the first link begins another life, or another one goes on with what it adopts.
    assert run(target, source, promote, link, deadline_s=5.0).is_done
    assert compare(source, target, topic).identical, "nothing was written since"
    append_records(source, topic, 5, partitions=2, first=900)
    home = compare(source, target, topic)
    assert home.outcome is Outcome.NOT_COMPARED and home.compared == 2 * 811 and home.held == 2 * 817
    assert {p.error for p in home.partitions} == {
        f"the target is no longer the source's copy: link {link} has copied back to it"
    }
    again = link if hangs else f"{link}-again"
    # Of several links nothing tells which one another name undoes.
    assert run(source, target, failback, again, topic).is_done
    assert [p.records for p in mirror(source, target, topic, again).values()] == [6, 6]
    assert compare(source, target, topic).identical


@pytest.mark.parametrize("is_translated", [False, True])
def test_groups_that_a_failover_left_behind_are_named_by_a_promotion_and_stay(
    source: str, target: str, is_translated: bool
) -> None:
    """One group read on at the source after the last round; of another the copy lacks what it has read."""
    topic = link = f"life-groups-{is_translated}"
    create_topic(source, topic)
    append_records(source, topic, 100)
    for group in ("stays", "ahead", "beyond"):
        read(source, topic, f"{link}-{group}", 40)
    mirror(source, target, topic, link, is_translated=is_translated)
    moving = partial(move_groups, link=link if is_translated else None)
    run(source, target, moving, LinkTopics.of(topic), TopicFilter((f"{link}.*",)))
    append_records(source, topic, 50, first=100)
    for group, count in (("stays", 30), ("ahead", 30), ("beyond", 110)):
        read(source, topic, f"{link}-{group}", count)
    assert fail_over(target, link).is_done
    append_records(target, topic, 100, first=1_000)  # an application's
    read(target, topic, f"{link}-ahead", 60)
    words = ("promote", "--source", source, "--target", target, "--link", link, "--groups")
    code, found = invoke(*words, f"{link}-.*")
    groups, at = found["groups"], "of the target, where its offset is 40: it was not moved"
    by = "by its position on the source it belongs at offset"
    assert (code, groups["moved"]) == (3, [])
    assert [(left["name"], left["why"]) for left in groups["left"] if left["reason"] == "over"] == [
        (f"group {link}-beyond, {topic}-0", f"{by} 100 {at}"),
        (f"group {link}-stays, {topic}-0", f"{by} 70 {at}"),
    ]
    assert [place["group"] for place in groups["behind"]] == [f"{link}-beyond"]
    assert any("link was promoted before" in text and "--reset-offsets" in text for text in found["warnings"])
    assert [read(target, topic, f"{link}-{group}", 1) for group in ("stays", "beyond")] == [[(0, 40)]] * 2
    code, found = invoke(*words, f"{link}-ahead")
    assert not [left for left in found["groups"]["left"] if left["reason"] == "over"]
    assert not any("--reset-offsets" in text for text in found["warnings"])


def test_another_link_over_a_promoted_copy_is_sent_to_failback_and_never_told_to_delete_what_diverged(
    source: str, target: str
) -> None:
    create_topic(source, "life-owned")
    append_records(source, "life-owned", 100)
    mirror(source, target, "life-owned", "life-owned")
    run(source, target, promote, "life-owned", LinkTopics.of("life-owned"))
    append_records(target, "life-owned", 10, first=1_000)
    before, told = (
        ends(target, "life-owned"),
        "is the copy of link life-owned, which was promoted: .* failback with source and",
    )
    with pytest.raises(OptionError, match=f"Topic life-owned of this target {told}") as caught:
        prepare(source, target, "life-owned", "life-second")
    with pytest.raises(OptionError, match=f"Topic life-owned of this target {told}"):  # it would append all once more
        run(source, target, prepare_link, LinkTopics.of("life-owned"), "life-translated", is_translated=True)
    assert "Stop that producer" not in str(caught.value) and ends(target, "life-owned") == before
    planned = run(source, target, plan_everything, "life-second", "life-owned")
    assert planned.exit_code == 3 and any("failback" in text for text in planned.refusals)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, ["life-owned"])
    mirror(source, target, "life-owned", "life-second")  # nobody's copy any more
    assert compare(source, target, "life-owned").identical


def test_a_promotion_leaves_the_copy_of_another_link_and_the_targets_own_topic_alone(source: str, target: str) -> None:
    """Its own topics match both; its mirror was refused them, and has copied the third."""
    for topic in ("owner-theirs", "owner-ours"):
        create_topic(source, topic, 1)
        append_records(source, topic, 50)
    create_topic(target, "owner-apps", 1)
    append_records(target, "owner-apps", 30)
    mirror(source, target, "owner-theirs", "owner-x")
    mirror(source, target, "owner-ours", "owner-l")
    control_of(target, "owner-l", topics=LinkTopics.of("owner-.*").to_json())
    rehearsed = run(source, target, promote, "owner-l", is_dry_run=True)
    assert rehearsed.exit_code == 3 and not rehearsed.blockers
    done = fail_over(target, "owner-l")
    assert done.is_done and done.exit_code == 3 and [p.topic for p in done.partitions] == ["owner-ours"]
    for report in (rehearsed, done):
        assert any("owner-theirs-0 on the target: not link owner-l's" in text for text in report.not_promoted)
    assert any("owner-apps-0 on the target: not link owner-l's" in text for text in done.not_promoted)
    assert [ends(target, f"owner-{name}") for name in ("theirs", "ours", "apps")] == [[50], [51], [30]]
    append_records(source, "owner-theirs", 10, first=50)
    mirror(source, target, "owner-theirs", "owner-x")
    assert compare(source, target, "owner-theirs").identical


@pytest.mark.parametrize("is_translated", [False, True])
def test_what_the_target_alone_has_and_the_link_has_not_begun_is_its_own_for_every_command(
    source: str, target: str, is_translated: bool
) -> None:
    """Its name matches the link's topics, and the source never had it: all that the link has is copied, and nothing is to be said."""
    link = f"life-own-{is_translated}".lower()
    ours, theirs, topics = f"{link}-ours", f"{link}-theirs", f"{link}-.*"
    create_topic(source, ours, 1)
    append_records(source, ours, 20)
    mirror(source, target, topics, link, is_translated=is_translated)
    for name, count in ((theirs, 3), (f"{link}-empty", 0)):
        create_topic(target, name, 1)
        append_records(target, name, count)

    def say(is_over: bool) -> None:
        status = run(source, target, read_status, link)
        assert [t.topic for t in status.topics] == [ours], status
        assert not any("-theirs" in text or "-empty" in text for text in (*status.notes, *map(str, status.reasons)))
        compared = compare(source, target, topics)
        assert {p.topic for p in compared.partitions} == {ours} and (is_translated or compared.identical)
        if not is_over:
            planned = run(source, target, plan_everything, link, topics)
            assert planned.exit_code == 0 and not planned.warnings, planned

    say(is_over=False)
    for how in ({"is_dry_run": True}, {}, {}):
        report = run(source, target, promote, link, **how)
        assert report.exit_code == 0 and [p.topic for p in report.partitions] == [ours], report
        assert not any("-theirs" in text or "-empty" in text for text in report.warnings)
    say(is_over=True)
    assert ends(target, theirs) == [3]


@pytest.mark.parametrize("is_translated", [False, True])
def test_the_plan_of_a_start_at_a_time_says_what_the_mirror_then_does(
    source: str, target: str, is_translated: bool
) -> None:
    topic = link = f"life-from-{is_translated}".lower()
    create_topic(source, topic, 1)
    for first, time_ms in ((0, 1_000_000), (20, 2_000_000)):
        append_records(source, topic, 20, first=first, timestamp=time_ms)

    def planned(**how: Any) -> Any:
        return run(source, target, plan_everything, link, topic, is_translated=is_translated, **how)

    assert planned().topics[0].to_copy == 40
    at_time = planned(from_ms=2_000_000)
    assert (at_time.topics[0].to_copy, at_time.exit_code) == (20, 0), at_time
    (progress,) = mirror(source, target, topic, link, is_translated=is_translated, from_ms=2_000_000).values()
    assert progress.acked == 40 and progress.records == 20
    append_records(source, topic, 5, first=40, timestamp=3_000_000)
    later = planned(from_ms=3_000_000)  # a log that was begun at a time continues
    assert (later.topics[0].to_copy, later.exit_code) == (5, 0)

    whole = f"{topic}-whole"
    create_topic(source, whole, 1)
    append_records(source, whole, 20)
    mirror(source, target, whole, whole, is_translated=is_translated)
    with pytest.raises(OptionError) as refused:
        mirror(source, target, whole, whole, is_translated=is_translated, from_ms=1_000)
    late = run(source, target, plan_everything, whole, whole, is_translated=is_translated, from_ms=1_000)
    assert (late.refusals, late.exit_code) == ((text_of(refused.value),), 3)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_copy_whose_source_was_deleted_is_told_though_its_control_was_written_anew(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    """The control was deleted, then the topic on the source, then the mirror was started again: its batches, or those of other topics,
    show that the link had run before.  A coordinator `is_forgotten` the link's producer id by after seven days without use."""
    link = f"life-anew-{is_forgotten}".lower()
    kept, lost, topics = f"{link}-kept", f"{link}-lost", LinkTopics.of(f"{link}-.*")
    for name in (kept, lost):
        create_topic(source, name, 1)
        append_records(source, name, 20)
    mirror(source, target, topics, link)
    delete_control(target)
    with Cluster({"bootstrap_servers": source}, name="source") as cluster:
        cluster.run(delete_topics, cluster, [lost])
    if is_forgotten:
        monkeypatch.setattr(LinkControl, "producer_name", lambda control, name: f"{name}-anew")
    mirror(source, target, topics, link)

    status = run(source, target, read_status, link)
    told = [*status.findings, *(reason.text for reason in status.reasons), *status.notes]
    assert status.exit_code == 3 and any(f"{lost}-0" in text for text in told), status
    planned = run(source, target, plan_everything, link, topics)
    assert any(lost in text for text in (*planned.refusals, *planned.warnings)), planned
    compared = compare(source, target, f"{link}-.*")
    assert not compared.identical and {p.topic for p in compared.partitions} == {kept, lost}
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checkup = examine(Subject(clusters, topics, link=link, seconds=0))
    assert any(f"{lost}-0" in f.evidence for f in checkup.findings if f.check == "control"), checkup.findings
    report = run(source, target, promote, link, is_dry_run=True)
    said = (*report.warnings, *report.blockers, *report.not_promoted)
    assert any(f"{lost}-0" in text for text in said), report


@pytest.mark.parametrize(("is_translated", "has_map"), [(False, False), (True, True), (True, False)])
def test_a_promoted_copy_that_was_deleted_and_created_again_is_lost_for_every_command(
    source: str, target: str, is_translated: bool, has_map: bool
) -> None:
    """By a slip, and then by the next consumer or producer (auto.create.topics.enable); after the map of the link was deleted, too."""
    topic = link = f"life-lost-{is_translated}-{has_map}".lower()
    create_topic(source, topic, 2)
    append_records(source, topic, 20, partitions=2)
    mirror(source, target, topic, link, is_translated=is_translated)
    assert fail_over(target, link).is_done
    assert run(source, target, read_status, link).exit_code == 0
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        if is_translated and not has_map:
            cluster.run(delete_topics, cluster, [map_topic(link)])
            assert run(source, target, read_status, link).exit_code == 0
        cluster.run(delete_topics, cluster, [topic])
    for said in ("not on the target any more", "deleted and created again on the target"):
        if said.startswith("deleted and created"):
            create_topic(target, topic, 2)
            append_records(target, topic, 1)
        told = f"{topic}-0 and 1 more partition: {said}, and the link was promoted with it, so nothing copies it again"
        status = run(source, target, read_status, link)
        assert status.exit_code == 3 and status.findings[0].startswith(told), status
        assert [(t.topic, t.partitions, t.unknown) for t in status.topics] == [(topic, 2, (0, 1))]
        for report in (run(source, target, promote, link), fail_over(target, link)):
            assert report.exit_code == 3 and report.damaged[0].startswith(told), report
            assert [(p.copied_until, p.lag, p.left_records) for p in report.partitions] == [(0, None, None)] * 2, report
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [topic])
    mirror(source, target, topic, f"{link}-2", is_translated=is_translated)  # what another link has there is no loss
    assert run(source, target, read_status, link).exit_code == 0
    assert not run(source, target, promote, link).damaged and not fail_over(target, link).damaged


def told_by_doctor(source: str, target: str, link: str, words: str) -> Finding:
    """The one finding of the doctor with these words."""
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checkup = examine(Subject(clusters, LinkTopics.of(f"{link}-.*"), link=link, seconds=0))
    (one,) = [found for found in checkup.findings if words in found.evidence]
    return one


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_copy_that_was_deleted_before_a_failover_is_lost_for_every_command_after_it(
    source: str, target: str, is_translated: bool
) -> None:
    link = f"life-deleted-{is_translated}".lower()
    lost, kept = f"{link}-lost", f"{link}-kept"
    for topic in (lost, kept):
        create_topic(source, topic, 1)
        append_records(source, topic, 20)
    mirror(source, target, f"{link}-.*", link, is_translated=is_translated)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [lost])
    if is_translated:  # what no mirror fills again, nobody is told to wait for
        refused = run(source, target, promote, link)
        text, *_ = refused.blockers
        assert refused.damaged == (text,), refused
        with pytest.raises(TargetDivergedError, match=re.escape(text)):
            mirror(source, target, f"{link}-.*", link, is_translated=True)
        assert ends(target, lost) == [-1], "the topic is not made"
        assert text.startswith(f"{lost}-0: not on the target any more") and "nothing fills it again" in text
        planned = run(source, target, plan_everything, link, f"{link}-.*", is_translated=True)
        assert (planned.exit_code, planned.refusals) == (3, (text,)), planned
        assert {t.topic: t.action for t in planned.topics} == {lost: "refuse", kept: "copy"}
        assert f"topic {lost}" in told_by_doctor(source, target, link, "nothing fills it again").thing
        control_of(target, link, paused=frozenset({lost}))
        planned = run(source, target, plan_everything, link, f"{link}-.*", is_translated=True)
        assert (planned.refusals, planned.exit_code) == ((), 3) and any(text in told for told in planned.warnings)
        control_of(target, link, paused=frozenset())
    assert fail_over(target, link).exit_code == 3
    told = f"{lost}-0: not on the target any more, and the link was promoted with it"
    assert told_by_doctor(source, target, link, told).severity is Severity.ERROR
    assert run(source, target, read_status, link).findings[0].startswith(told)
    for report in (run(source, target, promote, link), fail_over(target, link)):
        assert report.exit_code == 3 and report.damaged[0].startswith(told), report


def test_a_lost_topic_that_another_link_has_copied_again_holds_no_promotion_up(source: str, target: str) -> None:
    """As the message on the lost copy advises it."""
    link = "life-recopied"
    lost, kept, other = f"{link}-lost", f"{link}-kept", f"{link}.other"
    for topic in (lost, kept):
        create_topic(source, topic, 1)
        append_records(source, topic, 20)
    mirror(source, target, f"{link}-.*", link, is_translated=True)
    delete_topic(target, lost)
    mirror(source, target, lost, other, is_translated=True)
    append_records(source, lost, 3, first=20)
    mirror(source, target, lost, other, is_translated=True)
    for is_dry_run in (True, False):
        report = run(source, target, promote, link, is_dry_run=is_dry_run, deadline_s=5.0)
        assert (report.is_done, report.blockers, report.damaged) == (not is_dry_run, (), ()), report
        assert [p.topic for p in report.partitions] == [kept]
        (text,) = report.not_promoted
        assert text.startswith(f"{lost}-0 on the target") and f"link {other} has copied it" in text
    append_records(source, lost, 2, first=23)  # the other link copies on
    assert mirror(source, target, lost, other, is_translated=True)[TopicPartition(lost, 0)].records == 2
    report = run(source, target, promote, other, deadline_s=5.0)
    assert report.is_done and report.exit_code == 0, report
    for command in (promote, read_status):
        assert run(source, target, command, link).exit_code == 0


@pytest.mark.parametrize("is_anew", [False, True])
@pytest.mark.parametrize("is_translated", [False, True])
def test_what_both_clusters_deleted_before_a_failover_is_no_loss_once_the_source_can_say_so(
    source: str, target: str, is_translated: bool, is_anew: bool
) -> None:
    """What the source has anew under that name is left behind, as everything that nobody has copied."""
    link = f"life-retired-{is_translated}-{is_anew}".lower()
    retired, kept = f"{link}-retired", f"{link}-kept"
    for topic in (retired, kept):
        create_topic(source, topic, 1)
        append_records(source, topic, 20)
    mirror(source, target, f"{link}-.*", link, is_translated=is_translated)
    for servers in (source, target):
        delete_topic(servers, retired)
    if is_anew:
        create_again(source, retired)
        append_records(source, retired, 5, first=100)
    assert fail_over(target, link).exit_code == 3, "it does not ask the source"
    assert fail_over(target, link).damaged
    left = [f"5 committed records of {retired}-0 were not copied: only the source has what is there"] * is_anew
    status = run(source, target, read_status, link)
    assert (list(status.findings), list(status.notes)) == ([], left), status
    assert is_anew or (status.exit_code, [t.topic for t in status.topics]) == (0, [kept]), status
    clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
    checked = examine(Subject(clusters, LinkTopics.of(f"{link}-.*"), link=link, seconds=0)).findings
    assert not [one for one in checked if one.severity is Severity.ERROR and retired in one.evidence], checked
    for is_dry_run in (True, False):
        report = run(source, target, promote, link, is_dry_run=is_dry_run)
        assert (report.exit_code, report.damaged) == (3 * is_anew, ()), report
        assert bool(report.left_behind) == is_anew and all(text in report.left_behind for text in left), report
    assert fail_over(target, link).exit_code == 0, "that promotion has written it down"
    if is_anew:
        create_topic(target, retired)
        append_records(target, retired, 2, first=200)  # its applications'
        for command in (promote, read_status):
            assert "deleted and created again" not in str(run(source, target, command, link))


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_source_that_is_another_cluster_is_called_so_and_its_topics_not_created_again(
    source: str, target: str, is_translated: bool
) -> None:
    topic = link = f"life-wrong-source-{is_translated}"
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link, is_translated=is_translated)
    control_of(target, link, source_cluster_id="of-another")
    make_anew(source, topic)
    for copies in ("copies", "has copied"):
        for command in (read_status, promote):
            with pytest.raises(
                OptionError, match=f"{copies} from cluster of-another, and this source is .*: check --source"
            ):
                run(source, target, command, link)
        assert fail_over(target, link).is_done


def test_copies_are_lost_though_they_end_at_0_or_the_source_has_no_record_after_them(source: str, target: str) -> None:
    """Of topics that were created again before the failover, or that end with an aborted transaction on the source."""
    link = "life-nothing-after"
    again, aborted = f"{link}-again", f"{link}-aborted"
    for topic in (again, aborted):
        create_topic(source, topic, 1)
        append_records(source, topic, 20)
    mirror(source, target, f"{link}-.*", link)
    with closing(kafka.KafkaProducer(bootstrap_servers=source, transactional_id=link)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(aborted, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    delete_topic(target, again)
    create_topic(target, again, 1)
    assert fail_over(target, link).exit_code == 3
    told = f"{again}-0: deleted and created again on the target, and the link was promoted with it"
    for command in (promote, read_status, promote):
        report = run(source, target, command, link)
        said = report.damaged if command is promote else report.findings
        assert report.exit_code == 3 and [text.startswith(told) for text in said] == [True], report
    assert not report.left_behind, "it was copied"
    assert control_of(target, link).empty_until == {TopicPartition(aborted, 0): 22}
    delete_topic(target, aborted)
    status = run(source, target, read_status, link)
    assert status.exit_code == 3 and status.findings[0].startswith(f"{aborted}-0: not on the target any more"), status
    assert not status.notes, status
    assert len(fail_over(target, link).damaged) == 2


@pytest.mark.parametrize("is_translated", [False, True])
def test_what_both_clusters_deleted_before_a_promotion_is_no_loss_for_any_command(
    source: str, target: str, is_translated: bool
) -> None:
    link = f"life-gone-{is_translated}".lower()
    gone, kept = f"{link}-gone", f"{link}-kept"
    for topic in (gone, kept):
        create_topic(source, topic, 1)
    append_records(source, gone, 20)
    mirror(source, target, f"{link}-.*", link, is_translated=is_translated)
    for servers in (source, target):
        with Cluster({"bootstrap_servers": servers}, name="target") as cluster:
            cluster.run(delete_topics, cluster, [gone])
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        dry = cluster.run(partial(failover, cluster, link, is_dry_run=True))
    said = f"topic {gone} is not on the target any more, and link {link} has copied it (no loss if it was deleted on the source, too)"
    assert dry.damaged == (said,), dry
    for _ in range(2):
        report = run(source, target, promote, link)
        assert (report.exit_code, report.damaged) == (0, ()), report
    status = run(source, target, read_status, link)
    assert (status.exit_code, [t.topic for t in status.topics]) == (0, [kept]), status
    create_topic(source, gone, 1)
    append_records(source, gone, 5)
    left = f"5 committed records of {gone}-0 were not copied"
    assert run(source, target, promote, link).left_behind.startswith(left)
    assert run(source, target, read_status, link).notes[0].startswith(left)


def test_what_a_translated_link_had_copied_is_unknown_where_its_map_was_deleted_before_the_failover(
    source: str, target: str
) -> None:
    topic = link = "life-map-lost"
    create_topic(source, topic, 1)
    append_records(source, topic, 20)
    mirror(source, target, topic, link, is_translated=True)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_topics, cluster, [map_topic(link)])
    assert fail_over(target, link).exit_code == 3
    (note,) = run(source, target, read_status, link).notes
    assert note == f"what {topic}-0 left behind on the source is unknown: {MAP_LOST}"
    for report in (run(source, target, promote, link), fail_over(target, link)):
        (unknown,) = report.unknown_left
        assert report.exit_code == 3 and unknown.startswith(f"how far link {link} had copied is unknown: Topic ")
    delete_topic(target, topic)
    for report in (run(source, target, promote, link), fail_over(target, link)):
        assert report.damaged[0].startswith(f"{topic}-0: not on the target any more"), report


def test_a_promotion_writes_nothing_where_the_link_never_ran_and_finds_what_is_its_own_without_a_control(
    source: str, target: str
) -> None:
    """The wrong file, source and target exchanged, a wrong --target or --link, one cluster given twice."""
    topic, other, topics = "never-ours", "never-apps", LinkTopics.of("never-.*")
    create_topic(source, topic, 1)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic)
    create_topic(target, other, 1)
    append_records(target, other, 5)
    create_topic(target, "never-empty", 1)
    both_ways, apps = LinkTopics.of(topic), LinkTopics.of("never-apps|never-empty")
    for wrong, match in (
        (lambda: fail_over(source, "B-A", topics=both_ways), "Nothing on the target shows that link B-A"),
        (lambda: fail_over(target, "B-A", topics=apps), "Nothing on the target shows that link B-A"),
        (
            lambda: run(target, source, promote, topic, both_ways),
            f"link {topic} copies .*are source and target exchanged",
        ),
        (lambda: run(target, target, promote, topic, both_ways), "the same cluster"),
    ):
        with pytest.raises(OptionError, match=match):
            wrong()
    assert [ends(source, topic), ends(target, topic), ends(target, other)] == [[20], [20], [5]]
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(write_record, control_of_links(cluster), topic, None)  # as if the control had been deleted
    done = fail_over(target, topic, topics=topics)
    assert done.is_done and done.exit_code == 3, done
    assert [(p.topic, p.copied_until) for p in done.partitions if p.fence_marker is not None] == [(topic, 20)]
    assert [text.partition(" on the target: not link")[0] for text in done.not_promoted] == ["never-apps-0"]
    assert [ends(target, name) for name in (topic, other, "never-empty")] == [[21], [5], [0]]
    assert compare(source, target, topic).identical
    append_records(source, topic, 3, first=20)  # nobody copies them
    again = run(source, target, promote, topic)  # the control says by now what its failover found out
    assert again.is_done and {p.topic: p.lag for p in again.partitions} == {topic: 3, "never-empty": None}
    back = run(target, source, failback, "never-back", topic, discards=True, is_dry_run=True)
    assert back.deleted_topics == (topic,) and not back.blockers


def test_the_plan_of_a_promoted_link_ends_with_that_and_a_half_promoted_one_begins_nowhere_else(
    source: str, target: str
) -> None:
    topic = "life-over"
    create_topic(source, topic, 1)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic)
    assert fail_over(target, topic).is_done
    (told,) = run(source, target, plan_everything, topic, topic).refusals  # its own fence is no other producer
    assert "was promoted" in told and "delete" not in told
    control_of(target, topic, is_fenced=False)
    for between, link in (((target, source), "over-back"), ((source, target), topic)):
        with pytest.raises(
            OptionError, match=f"begun and not finished.*promote --source {source} --target {target} --link"
        ):
            run(*between, failback, link, topic)


def test_a_promoted_link_whose_control_was_deleted_is_compared_by_its_producer_id_and_its_fence_is_named(
    source: str, target: str
) -> None:
    topic = "life-over-unknown"
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic)
    assert fail_over(target, topic).is_done
    append_records(source, topic, 2, first=20)
    delete_control(target)
    fence = f"{topic}-0 has at offset 20 the fence of this very link"
    plan = run(source, target, plan_everything, topic, topic)
    (told,) = plan.refusals
    assert fence in told and "delete" not in told, told
    status = run(source, target, read_status, topic, LinkTopics.of(topic))
    assert status.exit_code == 3 and any(fence in text for text in status.findings), status.reasons
    append_records(target, topic, 1, first=1_000)  # both logs end at 22
    for is_dry_run in (True, False):
        report = run(source, target, promote, topic, LinkTopics.of(topic), deadline_s=5.0, is_dry_run=is_dry_run)
        assert report.exit_code == 3 and any(fence in text for text in report.blockers), report.blockers


def test_nobody_is_told_to_delete_what_applications_write_after_a_failover_whose_control_was_deleted(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source has no record at the fence's offset, so what differs first is what an application wrote after it."""
    topic = "life-over-written"
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic)
    assert fail_over(target, topic).is_done
    with closing(kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    append_records(source, topic, 2, first=20)
    append_records(target, topic, 3, first=1_000)
    delete_control(target)
    (told,) = run(source, target, plan_everything, topic, topic).refusals
    assert f"{topic}-0 has at offset 20 the fence of this very link" in told and "delete" not in told

    async def forgotten(*_: Any) -> None:
        """After seven days without use."""

    monkeypatch.setattr(comparison, "known_producer_id", forgotten)
    (told,) = run(source, target, plan_everything, topic, topic).refusals
    assert "delete the target topic" not in told
    assert f"run tolerant-kafka failover --target {target} --link {topic} --topics REGEX" in told
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_records, cluster, TopicPartition(topic, 0), 24)  # retention, of all that they wrote
    (told,) = run(source, target, plan_everything, topic, topic).refusals
    assert "delete the target topic, with what only it has" in told and "the topic is its applications'" in told


def test_a_copy_that_retention_has_removed_is_unknown_once_the_control_was_deleted(source: str, target: str) -> None:
    topic = "life-over-removed"
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic)
    assert fail_over(target, topic).is_done
    append_records(source, topic, 2, first=20)
    append_records(target, topic, 3, first=1_000)
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        cluster.run(delete_records, cluster, TopicPartition(topic, 0), 21)
    delete_control(target)
    again = fail_over(target, topic, topics=LinkTopics.of(topic))
    assert again.exit_code == 3
    (damaged,) = again.damaged
    assert f"how far link {topic} had copied {topic}-0 is unknown: its log on the target begins at offset 21" in damaged
    repeated = run(source, target, promote, topic)
    (unknown,) = repeated.unknown_left
    assert f"what {topic}-0 left behind on the source is unknown" in unknown and not repeated.left_behind
    status = run(source, target, read_status, topic)
    told = [*status.findings, *(reason.text for reason in status.reasons), *status.notes]
    assert any("is unknown: no copy is on the target" in text for text in told), told
    assert not any("were not copied" in text for text in told), told


def test_a_promotion_of_a_translated_link_that_was_promoted_says_so_though_its_control_was_deleted(
    source: str, target: str
) -> None:
    topic = "life-over-translated"
    create_topic(source, topic)
    append_records(source, topic, 20)
    mirror(source, target, topic, topic, is_translated=True)
    assert fail_over(target, topic).is_done
    append_records(source, topic, 1, first=20)
    delete_control(target)
    for is_dry_run in (True, False):
        with pytest.raises(
            LinkPromotedError, match=f"{topic} was promoted, as .* tolerant-kafka failover .* writes it again"
        ):
            run(source, target, promote, topic, LinkTopics.of(topic), deadline_s=5.0, is_dry_run=is_dry_run)
    assert fail_over(target, topic, topics=LinkTopics.of(topic)).is_done
    assert "1 committed record of" in run(source, target, promote, topic).left_behind


def test_what_the_old_source_alone_has_is_named_and_given_up_only_when_asked(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, link = "life-lost", "life-sole"
    reads = Mock(side_effect=read_controls)
    monkeypatch.setattr(circles, "read_controls", reads)
    create_topic(source, topic, 1)
    append_records(source, topic, 100)
    mirror(source, target, topic, link)
    append_records(source, topic, 7, first=100)  # nobody copies them
    fail_over(target, link)
    append_records(target, topic, 20, first=1_000)
    reads.reset_mock()
    with pytest.raises(
        TargetDivergedError,
        match=r"is the original: link life-sole, .* failback --source \S+ --target \S+ --link life-sole-back --topics life-lost:",
    ):
        prepare(target, source, topic, "life-sole-back")
    assert reads.call_count == 1, "a start asks once who copies the other way"
    report = run(target, source, failback, "life-sole-back", topic)
    (found,) = report.partitions
    assert report.exit_code == 3 and not report.is_done
    assert (found.shared_until, found.target_end, found.lost_records, found.lost_offsets) == (
        100,
        107,
        7,
        ((100, 107),),
    )
    with pytest.raises(Exception, match="life-lost-0"):
        mirror(target, source, topic, "life-sole-back")
    report = run(target, source, failback, "life-sole-back", topic, discards=True)
    assert report.is_done and report.deleted_topics == (topic,)
    reads.reset_mock()
    mirror(target, source, topic, "life-sole-back")
    assert reads.call_count == 1
    assert compare(target, source, topic).identical


def test_a_failback_under_another_name_leaves_the_topics_of_a_live_link_alone(source: str, target: str) -> None:
    """As its mirror's start is refused; the link that has them, and other links beside it, are failed back as ever."""
    topics = ["life-live-1", "life-live-2"]
    for topic in topics:
        create_topic(source, topic, 1)
        append_records(source, topic, 50)
        mirror(source, target, topic, topic)
        run(source, target, promote, topic)
        append_records(target, topic, 10, first=1_000)
    assert run(target, source, failback, "live-back", topics[0]).is_done
    mirror(target, source, topics[0], "live-back")
    append_records(source, topics[0], 3, first=5_000)  # what would be a divergence
    for discards in (False, True):
        report = run(target, source, failback, "live-oops", "life-live-[12]", discards=discards)
        assert report.exit_code == 3 and not report.deleted_topics
        assert [p.topic for p in report.partitions] == [topics[1]], "nothing of the other is compared"
        (text,) = report.blockers
        assert text.startswith("Link live-back copies into topic life-live-1 of this target: use that link")
    assert ends(source, topics[0]) == [64]
    # A mistyped name: what it has prepared stops the right one, until it is forgotten.
    assert run(target, source, failback, "live-typo", topics[1]).is_done
    report = run(target, source, failback, "live-back-2", topics[1])
    assert report.exit_code == 3 and "run tolerant-kafka repair --forget with the target" in report.blockers[0]
    with pytest.raises(OptionError, match="link live-typo was prepared to copy topic .* run tolerant-kafka repair"):
        run(source, target, failback, "live-other-way", topics[1])
    with Cluster({"bootstrap_servers": source}, name="target") as there:
        for link, forgets, is_dry_run, code in (
            ("live-back", True, False, 0),  # a live link keeps its control
            ("live-typo", False, False, 0),
            ("live-typo", True, True, 3),
            ("live-typo", True, False, 0),
        ):
            before = there.run(read_control, there, link)
            forgotten = LinkControl(known_moves=before.known_moves)  # what it knew of moves stays
            told = there.run(partial(repair, there, link, forgets=forgets, is_dry_run=is_dry_run))
            is_forgotten = (link, forgets, is_dry_run) == ("live-typo", True, False)
            assert told.exit_code == code and bool(told.forgotten) == (link == "live-typo" and forgets)
            assert there.run(read_control, there, link) == (forgotten if is_forgotten else before)
    assert run(target, source, failback, "live-back-2", topics[1]).is_done
    mirror(target, source, topics[1], "live-back-2")
    assert compare(target, source, topics[1]).identical
    # Of two promoted links: a third takes back what the first has copied there, and its mirror may start.
    run(target, source, promote, "live-back-2", deadline_s=5.0)
    append_records(source, topics[1], 5, first=7_000)
    assert run(source, target, failback, "live-third", topics[1]).is_done
    mirror(source, target, topics[1], "live-third")
    assert compare(source, target, topics[1]).identical


def test_aborted_transactions_are_no_difference_on_the_way_back_of_the_way_back(source: str, target: str) -> None:
    """Where the failback's source was the original, the records of its aborted transactions are still in its log."""
    topic, place = "life-aborted", TopicPartition("life-aborted", 0)
    create_topic(source, topic, 1)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id="life-aborted")
    producer.init_transactions()
    for number, ends_well in enumerate((True, False, True)):
        producer.begin_transaction()
        for record in range(20):
            producer.send(topic, b"%d-%d" % (number, record), partition=0)
        producer.flush()  # else an abort sends nothing
        producer.commit_transaction() if ends_well else producer.abort_transaction()
    mirror(source, target, topic, "life-aborted")
    assert compare(source, target, topic).identical
    log = run(source, target, compare_logs, place)
    assert (log.is_proved, log.is_diverged) == (True, False) and log.shared_until == log.source_end
    create_topic(source, bare := "life-aborted-alone", 1)
    producer.begin_transaction()
    producer.send(bare, b"aborted", partition=0).get(30)
    producer.abort_transaction()
    producer.close()
    mirror(source, target, bare, bare)
    log = run(target, source, compare_logs, TopicPartition(bare, 0))
    assert (log.is_proved, log.is_diverged, log.shared_until) == (True, False, 2), "neither has a record"
    # What the target's application had committed there would be lost.
    append_records(target, topic, 3, first=1_000)
    log = run(source, target, compare_logs, place)
    assert log.is_diverged and run(source, target, partial(with_losses_on_target, log)).lost_records == 3
    # An open transaction at the offsets of these: a committed read ends before it, and sees no difference.
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id="life-aborted")
    producer.init_transactions()
    producer.begin_transaction()
    for record in range(5):
        producer.send(topic, b"open-%d" % record, partition=0)
    producer.flush()
    log = run(source, target, compare_logs, place)
    assert log.is_diverged and run(source, target, partial(with_losses_on_target, log)).lost_records == 3
    producer.abort_transaction()
    producer.close()


async def with_losses_on_target(log: SharedLog, source: Cluster, target: Cluster) -> SharedLog:
    return await with_losses(target, log)


def test_what_the_old_source_took_into_a_partition_that_nobody_had_made_on_the_target_is_counted(
    source: str, target: str
) -> None:
    topic, link = "life-grown", "grown"
    create_topic(source, topic, 1)
    append_records(source, topic, 10)
    mirror(source, target, topic, link)
    with changing(source) as admin:
        admin.create_partitions({topic: kafka.admin.NewPartitions(2)})
    append_records(source, topic, 5, partitions=2, first=10)  # nobody copies them
    fail_over(target, link)
    report = run(target, source, failback, "grown-back", topic)
    lost = [(p.partition, p.shared_until, p.target_end, p.lost_records) for p in report.partitions]
    assert report.exit_code == 3 and lost == [(0, 10, 15, 5), (1, 0, 5, 5)]
    assert "10 committed records in all" in report.blockers[0]
    assert run(target, source, failback, "grown-back", topic, discards=True).deleted_topics == (topic,)
    status = run(source, target, read_status, link)  # the link back has not made the topic again
    assert status.is_promoted and status.exit_code == 0 and "no such topic" in status.notes[0], status
    mirror(target, source, topic, "grown-back")
    assert compare(target, source, topic).identical


def read(servers: str, topic: str, group: str, count: int) -> list[tuple[int, int]]:
    """(partition, offset) of what a group reads next; commits it."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
        max_poll_records=100,
    )
    try:
        found: list[tuple[int, int]] = []
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) >= count:
                break
        consumer.commit()
        return found
    finally:
        consumer.close()


# -- the commands -------------------------------------------------------------


def invoke(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*words, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_the_commands_of_a_life_print_one_document_each(source: str, target: str) -> None:
    clusters = ["--source", source, "--target", target, "--link", "cli"]
    onto = ["--target", target, "--link", "cli"]
    create_topic(source, "life-cli", 2, {"min.insync.replicas": "1"})
    append_records(source, "life-cli", 50, partitions=2)
    code, found = invoke("plan", *clusters, "--topics", "life-cli")
    (topic,) = found["topics"]
    assert (code, topic["action"], topic["to_copy"], topic["partitions"]) == (0, "create", 100, 2)
    assert (found["configs"], found["acls"], found["groups"], found["others"]) == (
        None,
        None,
        None,
        [],
    )  # mirror does none
    assert ends(target, "life-cli") == [-1]
    mirror(source, target, "life-cli", "cli")
    append_records(source, "life-cli", 10, partitions=2, first=50)
    code, found = invoke("status", *clusters)
    (topic,) = found["topics"]
    assert (code, topic["lag"], found["health"]) == (3, 20, "unknown")  # nothing moves, and no mirror was seen
    assert topic["lag_s"] > 0 and topic["lag_bytes"] > 0
    for words in (["status"], ["verify"], ["verify", "--topics", "life-cli"]):
        with pytest.raises(
            OptionError, match=r"Link nothing was never started .*; the links of this target are .*\bcli\b"
        ):
            invoke(*words, *clusters[:-1], "nothing")
    code, found = invoke("pause", *onto, "--topic", "life-cli", "--partition", "1", "--dry-run")
    assert (code, found["is_changed"]) == (0, True)
    assert control_of(target, "cli").paused_partitions == frozenset()
    assert invoke("pause", *onto, "--topic", "life-cli", "--partition", "1")[1]["paused_partitions"] == [
        ["life-cli", 1]
    ]
    assert invoke("throttle", "20M", *onto)[1]["bytes_per_s"] == 20_000_000
    assert invoke("throttle", "off", *onto)[1]["bytes_per_s"] == 0
    assert invoke("throttle", "default", *onto)[1]["bytes_per_s"] is None
    with pytest.raises(OptionError, match="or off, or default"):
        invoke("throttle", "fast", *onto)
    with pytest.raises(OptionError, match="no topic nothing"):
        invoke("pause", *onto, "--topic", "nothing")
    with pytest.raises(OptionError, match="no topic nothing"):
        invoke("resume", *onto, "--topic", "nothing")
    assert mirror(source, target, "life-cli", "cli")[TopicPartition("life-cli", 1)].is_paused
    assert invoke("resume", *onto)[1]["paused"] == []
    code, found = invoke("promote", *clusters, "--wait", "0", "--groups", "")
    assert code == 3 and not found["is_done"] and "10 offsets" in found["blockers"][0]
    for command in (("promote", *clusters, "--wait", "0"), ("failover", *onto)):
        with pytest.raises(OptionError, match="differ in life-cli. A link is promoted as a whole"):
            invoke(*command, "--topics", "life-none")
    code, found = invoke("failover", *onto, "--dry-run")
    assert code == 0 and not found["is_done"]
    code, found = invoke("failover", *onto)
    assert code == 0 and [p["copied_until"] for p in found["partitions"]] == [60, 50]
    code, found = invoke(
        "failback", "--source", target, "--target", source, "--link", "cli-back", "--topics", "life-cli"
    )
    assert code == 3 and [p["lost_records"] for p in found["partitions"]] == [0, 10]
    append_records(target, "life-cli", 30, first=60)  # an application's
    code, found = invoke("status", *clusters)
    (topic,) = found["topics"]
    assert (code, found["health"], topic["copied"], topic["lag"]) == (0, "promoted", 110, 10)
    left = "10 committed records of life-cli-1 were not copied: only the source has what is there"
    assert found["notes"] == [left]
    assert (
        f"left behind: {left}"
        in CliRunner().invoke(app, ["promote", *clusters, "--yes"], env={"COLUMNS": "500"}).output
    )


# -- ranges of time -----------------------------------------------------------


def test_a_range_of_time_is_copied_at_its_offsets_and_only_into_empty_logs(source: str, target: str) -> None:
    topic, link = "life-times", "life-times"
    create_topic(source, topic, 1)
    append_records(source, topic, 1_000)  # a ms each

    async def copy(origin: Cluster, there: Cluster, **bounds: int) -> dict[TopicPartition, Progress]:
        prepared = await prepare_link(origin, there, topic, link, **bounds)
        return await LinkCopier(origin, there, identical_offsets(prepared.producer_id), link=link).copy(prepared.ends)

    run(source, target, copy, from_ms=T0 + 200, until_ms=T0 + 700)
    assert [offset for offset, *_ in consume(target, topic, 1, 10**9)[0]] == list(range(200, 700))
    run(source, target, copy, from_ms=T0 + 200)
    assert [offset for offset, *_ in consume(target, topic, 1, 10**9)[0]] == list(range(200, 1_000))
    compared = compare(source, target, topic)
    # The target begins later, as it was told.
    assert compared.outcome is Outcome.NOT_COMPARED and compared.records == 800
    ((gap,),) = [part.not_compared for part in compared.partitions]
    assert (
        gap[:2] == (0, 200) and "never to be copied: the link was begun at a time (--from), at offset 200" in gap.reason
    )
    for servers in (source, target):
        create_topic(servers, f"{topic}-full", 1)
        append_records(servers, f"{topic}-full", 10)
    with pytest.raises(OptionError, match="only an empty log can begin at a time"):
        run(source, target, prepare_link, f"{topic}-full", "life-times-again", from_ms=T0 + 300)


@pytest.mark.parametrize("is_translated", [False, True], ids=["identical", "translated"])
def test_a_marker_is_no_record_of_its_time(source: str, target: str, is_translated: bool) -> None:
    """Markers have the time at which their transaction ended, records that of their event; batches are copied whole."""
    topic = f"life-times-events-{is_translated}"
    create_topic(source, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    for transaction in range(10):
        producer.begin_transaction()
        for number in range(5):
            producer.send(topic, b"x", timestamp_ms=T0 + 5 * transaction + number)
        producer.commit_transaction()
    producer.close()

    async def copy(origin: Cluster, there: Cluster, **bounds: int) -> dict[TopicPartition, Progress]:
        prepared = await prepare_link(origin, there, topic, topic, is_translated=is_translated, **bounds)
        offsets = translated_offsets() if is_translated else identical_offsets(prepared.producer_id)
        return await LinkCopier(origin, there, offsets, link=topic).copy(prepared.ends)

    for until, copied in ((T0 + 33, 35), (T0 + 90, 50)):
        run(source, target, copy, from_ms=T0 + 15, until_ms=until)
        times = [timestamp for _, timestamp, *_ in consume(target, topic, 1, 10**9)[0]]
        assert times == list(range(T0 + 15, T0 + copied))


# -- translated offsets -------------------------------------------------------


def test_a_link_with_translated_offsets_is_paused_and_promoted_too(source: str, target: str) -> None:
    topic, link = "life-translated", "life-translated"
    partition = TopicPartition(topic, 0)
    create_topic(source, topic, 1)
    append_records(source, topic, 100)
    with both(source, target) as (origin, there):
        copiers: list[LinkCopier] = []

        async def copy(lease_ms: int = 0) -> Progress:
            prepared = await prepare_translated_link(origin, there, topic, link)
            copiers.append(LinkCopier(origin, there, translated_offsets(), link=link))
            return (await copiers[0].copy(prepared.ends, lease_ms=lease_ms))[partition]

        assert origin.run(copy).acked == 100
        control_of(target, link, paused=frozenset({topic}))
        append_records(source, topic, 50, first=100)
        held = origin.run(copy)
        assert held.is_paused and held.acked < 150 and isinstance(held.error, LinkPausedError)
        plan_of = origin.run(plan_everything, origin, there, link, topic)
        assert (plan_of.offsets, plan_of.refusals) == ("translated", ())  # its logs differ, as they should
        assert [(t.action, t.to_copy) for t in plan_of.topics] == [
            ("copy", 150 - max(held.acked, 100))
        ]  # -1: not placed yet
        control_of(target, link, paused=frozenset())
        assert origin.run(copy, 60_000).acked == 150
        append_records(source, topic, 5, first=150)
        report = fail_over(target, link)  # while the copier lives on, with a transactional.id that it has used
        assert report.is_done and report.partitions[0].copied_until == 150
        before = ends(target, topic)

        async def wake() -> None:
            await copiers[0].copy({partition: 155})

        with pytest.raises(LinkPromotedError):
            origin.run(wake)
        assert ends(target, topic) == before
        with pytest.raises(LinkPromotedError):
            origin.run(copy)
    with pytest.raises(OptionError, match="translated offsets"):
        run(target, source, failback, "life-translated-back", topic)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_translated_link_goes_on_where_a_failback_adopted_a_log_up_to_its_very_end(
    source: str, target: str, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first start dies before its map has a row: the log that it finds then ends where it was adopted, too."""
    topic = f"life-adopted-{is_killed}"
    back = f"{topic}-back"
    create_topic(source, topic)
    append_records(source, topic, 30)
    mirror(source, target, topic, f"{topic}-forward")
    assert fail_over(target, f"{topic}-forward").is_done
    append_records(target, topic, 10, first=500)  # its producers' own
    assert run(target, source, failback, back, topic).is_done
    assert ends(source, topic) == [30]
    planned = run(target, source, plan_everything, back, topic, is_translated=True)
    assert planned.refusals == ()
    if is_killed:

        async def die(_: object) -> None:
            raise LinkPromotedError("as if it were killed")

        with monkeypatch.context() as patch:
            patch.setattr(TranslatedPartition, "_write_position", die)
            with pytest.raises(LinkPromotedError):
                mirror(target, source, topic, back, is_translated=True)
        assert ends(source, topic) == [30]
    for there in (40, 45):
        (progress,) = mirror(target, source, topic, back, is_translated=True).values()
        copied = consume(source, topic, 1, there + 1)[0]
        assert len(copied) == len({record[2] for record in copied}) == there and progress.losses == 0
        append_records(target, topic, 5, first=600)


def test_offsets_without_records_that_the_source_deleted_before_they_were_filled_are_filled_once_policy_accepts_that(
    source: str, target: str
) -> None:
    """Nothing tells any more that they were an aborted record and a marker; the loss is told once, and nothing is in the way later."""
    topic = link = "life-marker"
    clusters = ("--source", source, "--target", target, "--link", link)
    once = ("mirror", *clusters, "--topics", topic, "--once", "--tasks", "0")
    create_topic(source, topic)
    append_records(source, topic, 10)
    mirror(source, target, topic, link)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"aborted", partition=0).get()
    producer.abort_transaction()
    producer.close()
    assert ends(source, topic) == [12]
    with Cluster({"bootstrap_servers": source}, name="source") as cluster:  # as retention does
        cluster.run(delete_records, cluster, TopicPartition(topic, 0), 12)
    runner = CliRunner()
    refused = runner.invoke(app, once)
    assert refused.exit_code and "no longer has offsets 10 to 12" in (said := " ".join(refused.output.split()))
    assert "--on-loss continue" in said
    codes = [runner.invoke(app, [*once, *policy]).exit_code for policy in (["--on-loss", "continue"], [], [])]
    assert codes == [3, 0, 0] and ends(target, topic) == [12]
    append_records(source, topic, 5, first=10)
    assert runner.invoke(app, once).exit_code == 0 and ends(target, topic) == [17]
    assert runner.invoke(app, ["promote", *clusters, "--yes"]).exit_code == 0
